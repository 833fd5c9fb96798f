/*
 * test_cuda_attention.c - attention of the CUDA backend: over a mock driver, which carries out the
 * very images and arguments that a card would read, with `test_cuda_attention cuda:0` on a card,
 * and with `test_cuda_attention emulated` over the mock and an emulated GPU that runs the kernels'
 * own source.
 *
 * On the mock alone it is the work list, the choices and the life of images that are tested. The
 * emulation adds the kernels' numbers, waits and barriers, except for how a card sums.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "support_attn.h"
#include "support_check.h"
#include "support_mock_cuda.h"
#if defined(MST_EMULATED_KERNELS)
#include "emulated_kernels.h"
#endif

static const char *card; /* "cuda:0", or NULL for the mock */
static bool emulated;    /* the mock runs the kernels' own source: slow, so there is less of it */
static mock_cuda *mock;
static mstar_device *device;
static mstar_stream *stream;

/* Tests' own tensors begin off any alignment. Where this is set, the device's copy begins on 16
 * bytes, so that with a head dim of a multiple of 8 and no gaps the kernels copy rows by 16 bytes,
 * not by elements. */
static bool aligned;

static int set_up(void **state)
{
    (void)state;
    aligned = false;
    if (card == NULL) {
        mock = mock_cuda_install();
#if defined(MST_EMULATED_KERNELS)
        if (emulated) { /* few blocks, so that each takes work again and again */
            mock->run_tile = emulated_launch;
            mock->multiprocessors = 2;
        }
#endif
        CHECK_OK(mock_cuda_open(&device));
    } else {
        CHECK_OK(mstar_device_open(card, NULL, &device));
    }
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mstar_stream_destroy(stream);
    if (card == NULL) {
        mock_cuda_close(device);
        mock_cuda_remove();
    } else {
        CHECK_OK(mstar_device_close(device));
    }
    return 0;
}

/* ---- a problem's blocks on the device -------------------------------------------------------- */

typedef struct mirror {
    mstar_buffer *buffer;
    mstar_tensor tensor;
    size_t at; /* of the block in the buffer */
} mirror;

static void mirror_make(const attn_block *block, mirror *made)
{
    size_t offset = block->tensor.data != NULL
                        ? (size_t)((unsigned char *)block->tensor.data - block->bytes)
                        : 0;
    made->at = aligned ? (16 - offset % 16) % 16 : 0;
    CHECK_OK(mstar_buffer_create(device, made->at + block->num_bytes, &made->buffer));
    CHECK_OK(mstar_buffer_upload(made->buffer, stream, made->at, block->bytes, block->num_bytes));
    made->tensor = block->tensor;
    made->tensor.device_kind = MSTAR_DEVICE_CUDA;
    made->tensor.device_index = 0;
    if (block->tensor.data != NULL)
        made->tensor.data =
            (unsigned char *)mstar_buffer_get_data(made->buffer) + made->at + offset;
}

static void mirror_fetch(const mirror *from, attn_block *block)
{
    CHECK_OK(mstar_buffer_download(from->buffer, stream, from->at, block->bytes, block->num_bytes));
    CHECK_OK(mstar_stream_synchronize(stream));
}

typedef struct mirrors {
    mirror q, k, v, out, lse;
} mirrors;

static void mirrors_make(const attn_data *data, mirrors *made)
{
    mirror_make(&data->q, &made->q);
    mirror_make(&data->k, &made->k);
    mirror_make(&data->v, &made->v);
    mirror_make(&data->out, &made->out);
    mirror_make(&data->lse, &made->lse);
}

static void mirrors_free(mirrors *made)
{
    mstar_buffer_destroy(made->q.buffer);
    mstar_buffer_destroy(made->k.buffer);
    mstar_buffer_destroy(made->v.buffer);
    mstar_buffer_destroy(made->out.buffer);
    mstar_buffer_destroy(made->lse.buffer);
}

static void run_wrapper(const attn_wrapper *wrapper, const attn_data *data, const mirrors *m)
{
    CHECK_OK(attn_run(wrapper, stream, &m->q.tensor, &m->k.tensor, &m->v.tensor, &m->out.tensor,
                      data->lse_tensor != NULL ? &m->lse.tensor : NULL));
}

static void plan_wrapper(const attn_wrapper *wrapper, const attn_problem *problem)
{
    CHECK_OK(attn_plan(wrapper, stream, problem->q_offsets, problem->num_segments,
                       problem->kv_offsets, problem->num_segments, problem->causal));
}

/* Runs a problem and brings out and lse back into data. */
static void run_problem(const attn_problem *problem, const char *backend, attn_data *data)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mirrors m;
    attn_problem_desc(problem, &desc);
    desc.backend = backend;
    mirrors_make(data, &m);
    CHECK_OK(attn_create(device, problem->kind, &desc, NULL, 0, &wrapper));
    plan_wrapper(&wrapper, problem);
    run_wrapper(&wrapper, data, &m);
    mirror_fetch(&m.out, &data->out);
    mirror_fetch(&m.lse, &data->lse);
    attn_destroy(&wrapper);
    mirrors_free(&m);
}

/* q.k itself must lie inside f32; problems of large values may pass it before the scale. */
static bool dots_fit(const attn_problem *problem, const attn_reference *reference)
{
    double scale =
        isnan(problem->sm_scale) ? 1.0 / sqrt((double)problem->head_dim) : fabs(problem->sm_scale);
    if (problem->values != ATTN_LARGE)
        return true;
    for (int64_t i = 0; i < reference->tokens * problem->num_qo_heads; i++)
        if (isfinite(reference->lse[i]) && !(fabs(reference->lse[i]) < scale * 1e37))
            return false;
    return true;
}

/* Numbers against float64, and not a byte outside the planned rows. */
static bool check_problem(const attn_problem *problem, const char *backend)
{
    attn_data data;
    attn_reference reference;
    attn_data_make(problem, &data);
    attn_reference_make(problem, &data, &reference);
    bool good = true;
    if (dots_fit(problem, &reference)) {
        unsigned char *out = attn_block_copy(&data.out);
        unsigned char *lse = attn_block_copy(&data.lse);
        int64_t rows = attn_problem_tokens(problem);
        run_problem(problem, backend, &data);
        bool rounds = problem->dtype != MSTAR_DTYPE_F32 && backend == NULL;
        good = attn_reference_check(problem, &data, &reference, rounds ? "sm80" : "reference");
        if (!attn_block_same_outside(&data.out, out, 0, rows) ||
            !attn_block_same_outside(&data.lse, lse, 0, problem->return_lse ? rows : 0)) {
            printf("%s: bytes outside the planned rows changed\n", attn_problem_text(problem));
            good = false;
        }
        free(out);
        free(lse);
    }
    attn_reference_free(&reference);
    attn_data_free(&data);
    return good;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void numbers(void **state)
{
    (void)state;
    const uint64_t problems = card != NULL ? 400 : emulated ? 12 : 60;
    int64_t bad = 0;
    for (uint64_t seed = 1; seed <= problems; seed++) {
        attn_problem problem;
        attn_problem_random(seed, 400000, &problem);
        aligned = seed % 3 != 0;
        if (aligned) {
            problem.head_dim = (problem.head_dim + 7) / 8 * 8;
            problem.gaps = false;
        }
        bad += !check_problem(&problem, NULL);
        problem.dtype = seed % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16;
        if (problem.values != ATTN_NORMAL) /* whose range f16 does not have */
            problem.dtype = MSTAR_DTYPE_BF16;
        bad += !check_problem(&problem, NULL);
        if (seed % 4 == 0)
            bad += !check_problem(&problem, "reference");
    }
    assert_int_equal(bad, 0);
}

/* Every head dim, with grouped heads, a causal mask and a split: few rows over many keys. */
static void every_head_dim(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int32_t dim = 1; dim <= 256; dim += card != NULL ? 1 : emulated ? 39 : 17) {
        attn_problem problem;
        attn_problem_init(&problem);
        problem.seed = (uint64_t)dim;
        problem.kind = ATTN_PREFIXED;
        problem.dtype = dim % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16;
        problem.head_dim = dim;
        problem.num_qo_heads = 6;
        problem.num_kv_heads = 2;
        problem.causal = dim % 3 == 0;
        problem.return_lse = 1;
        problem.extra_rows = 3;
        assert_true(attn_problem_add(&problem, 50, 70));
        assert_true(attn_problem_add(&problem, 80, 0)); /* work without keys, then other work */
        assert_true(attn_problem_add(&problem, 3, dim % 5 == 0 ? 1700 : 130));
        bad += !check_problem(&problem, NULL);
        problem.head_dim = (dim + 7) / 8 * 8;
        aligned = true;
        bad += !check_problem(&problem, NULL);
        aligned = false;
    }
    assert_int_equal(bad, 0);
    if (card == NULL)
        assert_true(mock->split_items > 0);
}

/* Row r of a causal segment sees key j, and so what v holds there. */
static bool sees(const attn_problem *problem, int64_t row, int64_t key)
{
    int64_t lq = problem->q_offsets[1], lk = problem->kv_offsets[1];
    return key <= lk - lq + row;
}

/* A NaN and an infinity in v: rows that see their keys have them, in their columns, and no other
 * element is touched, though both keys lie in blocks that are partly masked. */
static void non_finite_v_stays_where_it_is_seen(void **state)
{
    (void)state;
    const int32_t dims[] = {64, 80, 128, 256};
    aligned = true;
    for (size_t d = 0; d < 2 * sizeof dims / sizeof dims[0]; d++) {
        attn_problem problem;
        attn_data data;
        attn_reference reference;
        attn_problem_init(&problem);
        problem.kind = ATTN_PREFIXED;
        problem.causal = 1;
        problem.dtype = d % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16;
        problem.head_dim = dims[d / 2];
        problem.num_qo_heads = 2;
        assert_true(attn_problem_add(&problem, 100, 150));
        attn_data_make(&problem, &data);
        attn_reference_make(&problem, &data, &reference);
        attn_set(&data.v.tensor, 90, 0, 3, NAN);
        attn_set(&data.v.tensor, 139, 0, 60, INFINITY);
        run_problem(&problem, NULL, &data);
        for (int64_t row = 0; row < 100; row++) {
            for (int64_t h = 0; h < 2; h++) {
                const double *right = reference.out + (row * 2 + h) * problem.head_dim;
                if (sees(&problem, row, 90)) {
                    assert_true(isnan(attn_get(&data.out.tensor, row, h, 3)));
                    attn_set(&data.out.tensor, row, h, 3, (float)right[3]);
                }
                if (sees(&problem, row, 139)) {
                    assert_true(attn_get(&data.out.tensor, row, h, 60) == INFINITY);
                    attn_set(&data.out.tensor, row, h, 60, (float)right[60]);
                }
            }
        }
        assert_true(attn_reference_check(&problem, &data, &reference, "sm80"));
        attn_reference_free(&reference);
        attn_data_free(&data);
    }
}

/* A layout of many segments; segment i alone must give the same bits, with few and with many rows
 * around it, which is what tile height and stages depend on. */
static void alone_as_in_company(void **state)
{
    (void)state;
    const int32_t dims[] = {40, 80, 128, 256};
    aligned = true;
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
        attn_problem all;
        attn_problem_init(&all);
        all.kind = ATTN_PREFIXED;
        all.dtype = MSTAR_DTYPE_BF16;
        all.head_dim = dims[d];
        all.num_qo_heads = 8;
        all.num_kv_heads = 4;
        all.causal = (int)(d % 2);
        all.return_lse = 1;
        const int32_t lengths[][2] = {{130, 200}, {7, 1600},  {1, 1},     {64, 64},   {0, 5},
                                      {33, 0},    {300, 300}, {50, 1018}, {900, 1000}};
        int64_t segments = card != NULL ? 9 : 5; /* the mock is slow */
        for (int64_t i = 0; i < segments; i++)
            assert_true(attn_problem_add(&all, lengths[i][0], lengths[i][1]));
        attn_data data;
        attn_data_make(&all, &data);
        run_problem(&all, NULL, &data);
        for (int64_t i = 0; i < segments; i++) {
            attn_problem one = all;
            int64_t q = all.q_offsets[i], k = all.kv_offsets[i];
            one.num_segments = 0;
            assert_true(attn_problem_add(&one, lengths[i][0], lengths[i][1]));
            attn_data part;
            attn_data_make(&one, &part);
            attn_copy_rows(&part.q.tensor, 0, &data.q.tensor, q, lengths[i][0]);
            attn_copy_rows(&part.k.tensor, 0, &data.k.tensor, k, lengths[i][1]);
            attn_copy_rows(&part.v.tensor, 0, &data.v.tensor, k, lengths[i][1]);
            run_problem(&one, NULL, &part);
            assert_true(attn_same_bits(&part.out.tensor, 0, &data.out.tensor, q, lengths[i][0]));
            attn_data_free(&part);
        }
        attn_data_free(&data);
    }
}

/* More parts than there are places for partial results: the rest is done in turn, same bits. */
static void parts_beyond_the_slots(void **state)
{
    (void)state;
    attn_problem problem;
    attn_problem_init(&problem);
    problem.kind = ATTN_CROSS;
    problem.dtype = MSTAR_DTYPE_F16;
    problem.head_dim = 8;
    problem.num_qo_heads = problem.num_kv_heads = 64;
    for (int i = 0; i < 8; i++)
        assert_true(attn_problem_add(&problem, 1, 1540));
    attn_data data;
    attn_data_make(&problem, &data);
    /* the same segment eight times */
    for (int64_t i = 1; i < 8; i++) {
        attn_copy_rows(&data.q.tensor, i, &data.q.tensor, 0, 1);
        attn_copy_rows(&data.k.tensor, problem.kv_offsets[i], &data.k.tensor, 0, 1540);
        attn_copy_rows(&data.v.tensor, problem.kv_offsets[i], &data.v.tensor, 0, 1540);
    }
    run_problem(&problem, NULL, &data);
    for (int64_t i = 1; i < 8; i++)
        assert_true(attn_same_bits(&data.out.tensor, 0, &data.out.tensor, i, 1));
    if (card == NULL) { /* 640 places, 128 a segment */
        assert_int_equal(mock->split_items, 10);
        assert_int_equal(mock->items, 13);
    }
    attn_data_free(&data);
}

/* Graph mode: one capture, many plans; the launch and its grid never change, rows past the plan are
 * zero, and what the graph gives is what a fresh eager wrapper gives. */
static void replays_after_any_plan(void **state)
{
    (void)state;
    attn_problem problem;
    aligned = true;
    attn_problem_init(&problem);
    problem.kind = ATTN_SELF;
    problem.dtype = MSTAR_DTYPE_BF16;
    problem.head_dim = 72;
    problem.num_qo_heads = problem.num_kv_heads = 4;
    problem.return_lse = 1;
    const int32_t layouts[][4] = {{128, 128, 128, 128}, {100, 60, 30, 20}, {100, 60, 30, 0},
                                  {190, 20, 0, 0},      {7, 0, 0, 0},      {0, 0, 0, 0},
                                  {512, 0, 0, 0},       {64, 64, 64, 64}};
    for (int i = 0; i < 4; i++)
        assert_true(attn_problem_add(&problem, layouts[0][i], layouts[0][i]));
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_data data;
    mirrors m;
    mstar_graph *graph;
    attn_problem_desc(&problem, &desc);
    desc.accelerator_graph = 1;
    desc.max_num_segments = 4;
    desc.max_total_tokens = 512;
    attn_data_make(&problem, &data);
    mirrors_make(&data, &m);
    CHECK_OK(attn_create(device, problem.kind, &desc, NULL, 0, &wrapper));
    CHECK_OK(mstar_graph_capture_begin(stream));
    run_wrapper(&wrapper, &data, &m);
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    mstar_graph_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_query(graph, &info));
    assert_int_equal(info.nodes, 1);
    for (size_t at = 0; at < sizeof layouts / sizeof layouts[0]; at++) {
        attn_problem now = problem;
        now.num_segments = 0;
        for (int i = 0; i < 4; i++)
            assert_true(attn_problem_add(&now, layouts[at][i], layouts[at][i]));
        now.extra_rows = 512 - attn_problem_tokens(&now);
        plan_wrapper(&wrapper, &now);
        CHECK_OK(mstar_graph_replay(graph, stream));
        mirror_fetch(&m.out, &data.out);
        mirror_fetch(&m.lse, &data.lse);
        for (int64_t row = attn_problem_tokens(&now); row < 512; row++)
            for (int64_t h = 0; h < 4; h++) {
                assert_true(attn_get(&data.lse.tensor, row, h, 0) == -INFINITY);
                for (int64_t e = 0; e < 72; e++)
                    assert_true(attn_get(&data.out.tensor, row, h, e) == 0.0F);
            }
        mstar_tensor graph_out = data.out.tensor;
        unsigned char *kept = attn_block_copy(&data.out);
        graph_out.data = kept + ((unsigned char *)data.out.tensor.data - data.out.bytes);
        run_problem(&now, NULL, &data);
        assert_true(attn_same_bits(&data.out.tensor, 0, &graph_out, 0, attn_problem_tokens(&now)));
        free(kept);
    }
    mstar_graph_destroy(graph);
    attn_destroy(&wrapper);
    mirrors_free(&m);
    attn_data_free(&data);
}

static void a_capture_refuses_a_plan(void **state)
{
    (void)state;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_graph *graph;
    const int32_t offsets[] = {0, 5};
    attn_graph_desc(&desc);
    CHECK_OK(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_FAILED(attn_plan(&wrapper, stream, offsets, 1, NULL, 0, 0), MSTAR_OUT_OF_ORDER, "plan");
    CHECK_FAILED(mstar_graph_capture_end(stream, &graph), MSTAR_OUT_OF_ORDER, "plan");
    CHECK_OK(attn_plan(&wrapper, stream, offsets, 1, NULL, 0, 0));
    attn_destroy(&wrapper);
}

/* Everything that create and plan ask of the driver, failed once: an error, nothing lost, and the
 * same calls are fine afterwards. */
static void survives_failed_calls(void **state)
{
    (void)state;
    if (card != NULL)
        return;
    const mock_call calls[] = {MOCK_memory_alloc,       MOCK_memory_set,   MOCK_module_load,
                               MOCK_module_function,    MOCK_function_set, MOCK_function_occupancy,
                               MOCK_host_alloc,         MOCK_event_create, MOCK_stream_capturing,
                               MOCK_stream_synchronize, MOCK_context_push};
    for (int graph = 0; graph < 2; graph++) {
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
            mstar_device *fresh;
            mstar_stream *own;
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            const int32_t offsets[] = {0, 5, 9};
            CHECK_OK(mock_cuda_open(&fresh));
            CHECK_OK(mstar_stream_create(fresh, -1, &own));
            int live = mock->live;
            attn_small_desc(&desc);
            desc.q_data_type = MSTAR_DTYPE_BF16;
            if (graph) {
                desc.accelerator_graph = 1;
                desc.max_num_segments = 4;
                desc.max_total_tokens = 30;
            }
            mock->fail_call = calls[i];
            mock->fail_after = 1;
            mock->fail_result = 999;
            mstar_status status = attn_create(fresh, ATTN_SELF, &desc, NULL, 0, &wrapper);
            if (status == MSTAR_OK) {
                status = attn_plan(&wrapper, own, offsets, 2, NULL, 0, 0);
                if (status != MSTAR_OK) {
                    assert_int_equal(status, MSTAR_DEVICE_FAILED);
                    CHECK_OK(attn_plan(&wrapper, own, offsets, 2, NULL, 0, 0));
                }
                attn_destroy(&wrapper);
            }
            mock->fail_after = 0;
            CHECK_OK(attn_create(fresh, ATTN_SELF, &desc, NULL, 0, &wrapper));
            CHECK_OK(attn_plan(&wrapper, own, offsets, 2, NULL, 0, 0));
            attn_destroy(&wrapper);
            (void)live;
            mstar_stream_destroy(own);
            mock_cuda_close(fresh);
        }
    }
}

/* The kernel that is launched for one segment repeated, eager or with these as ceilings. */
static const char *kernel_of(int32_t heads, int32_t kv_heads, int32_t dim, int32_t length,
                             int32_t times, bool graph)
{
    attn_problem problem;
    attn_wrapper wrapper;
    mstar_ragged_prefill_desc desc;
    attn_problem_init(&problem);
    problem.dtype = MSTAR_DTYPE_BF16;
    problem.num_qo_heads = heads;
    problem.num_kv_heads = kv_heads;
    problem.head_dim = dim;
    for (int32_t i = 0; i < times; i++)
        assert_true(attn_problem_add(&problem, length, length));
    attn_problem_desc(&problem, &desc);
    if (graph) {
        desc.accelerator_graph = 1;
        desc.max_num_segments = times;
        desc.max_total_tokens = (int64_t)length * times;
    }
    CHECK_OK(attn_create(device, problem.kind, &desc, NULL, 0, &wrapper));
    plan_wrapper(&wrapper, &problem);
    const mst_attn_wrapper *own = wrapper.object;
    static char symbol[64];
    (void)snprintf(symbol, sizeof symbol, "%s", mst_cuda_attn_image_kernel(own->image)->symbol);
    attn_destroy(&wrapper);
    return symbol;
}

static void picks_the_kernel_for_the_layout(void **state)
{
    (void)state;
    for (int graph = 0; graph < 2; graph++) {
        assert_string_equal(kernel_of(16, 16, 128, 1024, 8, graph),
                            "mst_attn_bf16_hd128_m2n64s2_sm80");
        assert_string_equal(kernel_of(32, 32, 128, 64, 9, graph),
                            "mst_attn_bf16_hd128_m1n64s1_sm80");
        assert_string_equal(kernel_of(32, 8, 128, 240, 1, graph),
                            "mst_attn_bf16_hd128_m1n64s2_sm80");
        assert_string_equal(kernel_of(16, 16, 72, 729, 8, graph),
                            "mst_attn_bf16_hd80_m2n64s2_sm80");
        assert_string_equal(kernel_of(16, 16, 80, 64, 90, graph),
                            "mst_attn_bf16_hd80_m1n64s2_sm80");
        assert_string_equal(kernel_of(12, 12, 64, 90, 90, graph),
                            "mst_attn_bf16_hd64_m1n64s2_sm80");
    }
}

static void backends_by_name(void **state)
{
    (void)state;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    attn_small_desc(&desc);
    desc.backend = "fa2";
    CHECK_FAILED(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper), MSTAR_NOT_SUPPORTED,
                 "f32");
    desc.q_data_type = MSTAR_DTYPE_BF16;
    CHECK_OK(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_OK(attn_query(&wrapper, &info));
    assert_non_null(strstr(info.kernel, "bf16_hd16"));
    attn_destroy(&wrapper);
    desc.backend = "fa3";
    CHECK_FAILED(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper), MSTAR_NOT_SUPPORTED,
                 "Hopper");
    desc.backend = "reference";
    CHECK_OK(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_OK(attn_query(&wrapper, &info));
    assert_non_null(strstr(info.kernel, "reference"));
    attn_destroy(&wrapper);
    attn_small_desc(&desc);
    CHECK_OK(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_FAILED(attn_plan(&wrapper, NULL, NULL, 0, NULL, 0, 0), MSTAR_INVALID_ARGUMENT,
                 "stream is NULL");
    attn_destroy(&wrapper);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest numeric[] = {
        cmocka_unit_test_setup_teardown(numbers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_head_dim, set_up, tear_down),
        cmocka_unit_test_setup_teardown(non_finite_v_stays_where_it_is_seen, set_up, tear_down),
        cmocka_unit_test_setup_teardown(alone_as_in_company, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parts_beyond_the_slots, set_up, tear_down),
        cmocka_unit_test_setup_teardown(replays_after_any_plan, set_up, tear_down),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test_setup_teardown(a_capture_refuses_a_plan, set_up, tear_down),
        cmocka_unit_test_setup_teardown(survives_failed_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(picks_the_kernel_for_the_layout, set_up, tear_down),
        cmocka_unit_test_setup_teardown(backends_by_name, set_up, tear_down),
    };
    emulated = argc > 1 && strcmp(argv[1], "emulated") == 0;
    card = argc > 1 && !emulated ? argv[1] : NULL;
    int failed = cmocka_run_group_tests(numeric, NULL, NULL);
    return emulated ? failed : failed + cmocka_run_group_tests(others, NULL, NULL);
}
