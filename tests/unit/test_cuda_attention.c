/*
 * test_cuda_attention.c - attention of the CUDA backend: over a mock driver, which carries out the
 * very images and arguments that a card would read, with `test_cuda_attention cuda:0` on a card,
 * and with `test_cuda_attention emulated` over the mock and an emulated GPU that runs the kernels'
 * own source.
 *
 * On the mock alone it is the work list that is tested. The
 * emulation adds the kernels' numbers, waits and barriers, except for how a card sums.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_check.h"
#include "support_cuda_attn.h"
#if defined(MST_EMULATED_KERNELS)
#include "emulated_kernels.h"
#else
#define emulated_launch NULL
#endif

/* ---- tests ----------------------------------------------------------------------------------- */

static int64_t check_seed(uint64_t seed)
{
    attn_problem problem;
    int64_t bad = 0;
    cuda_attn_be_a_card_of(seed % 4 < 2 ? 8 : 9);
    attn_problem_random(seed, 400000, &problem);
    gpu.aligned = seed % 3 != 0;
    if (gpu.aligned) {
        problem.head_dim = (problem.head_dim + 7) / 8 * 8;
        problem.gaps = false;
    }
    bad += !cuda_attn_check_problem(&problem, NULL);
    problem.dtype = seed % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16;
    if (problem.values != ATTN_NORMAL) /* whose range f16 does not have */
        problem.dtype = MSTAR_DTYPE_BF16;
    bad += !cuda_attn_check_problem(&problem, NULL);
    if (seed % 4 == 0)
        bad += !cuda_attn_check_problem(&problem, "reference");
    return bad;
}

static void numbers(void **state)
{
    (void)state;
    const uint64_t problems = (uint64_t)check_part(gpu.card != NULL ? 400 : gpu.emulated ? 12 : 60);
    const uint64_t large[] = {76, 88, 101, 116, 151, 163, 164, 232, 274}; /* ATTN_LARGE */
    int64_t bad = 0;
    for (uint64_t seed = 1; seed <= problems; seed++)
        bad += check_seed(seed);
    for (size_t i = 0; gpu.emulated && i < sizeof large / sizeof large[0]; i++)
        bad += check_seed(large[i]);
    assert_int_equal(bad, 0);
}

/* Every head dim, with grouped heads, a causal mask and a split: few rows over many keys. */
static void every_head_dim(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int32_t dim = 1; dim <= 256; dim += gpu.card != NULL ? 1 : gpu.emulated ? 39 : 17) {
        attn_problem problem;
        attn_problem_init(&problem);
        cuda_attn_be_a_card_of(dim % 4 < 2 ? 8 : 9);
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
        bad += !cuda_attn_check_problem(&problem, NULL);
        problem.head_dim = (dim + 7) / 8 * 8;
        gpu.aligned = true;
        bad += !cuda_attn_check_problem(&problem, NULL);
        gpu.aligned = false;
    }
    assert_int_equal(bad, 0);
    if (gpu.card == NULL)
        assert_true(gpu.mock->split_items > 0);
}

/* NaNs have many bits: all become one. */
static void settle_nans(attn_data *data, int64_t rows, const attn_problem *problem)
{
    for (int64_t row = 0; row < rows; row++)
        for (int32_t h = 0; h < problem->num_qo_heads; h++)
            for (int32_t d = 0; d < problem->head_dim; d++)
                if (isnan(attn_get(&data->out.tensor, row, h, d)))
                    attn_set(&data->out.tensor, row, h, d, NAN);
}

/* Each segment of a problem that has run, alone: the same bits. */
static void check_each_alone(const attn_problem *all, attn_data *data)
{
    settle_nans(data, all->q_offsets[all->num_segments], all);
    for (int64_t i = 0; i < all->num_segments; i++) {
        attn_problem one = *all;
        int64_t q = all->q_offsets[i], k = all->kv_offsets[i];
        int32_t lq = (int32_t)(all->q_offsets[i + 1] - q);
        int32_t lk = (int32_t)(all->kv_offsets[i + 1] - k);
        one.num_segments = 0;
        assert_true(attn_problem_add(&one, lq, lk));
        attn_data part;
        attn_data_make(&one, &part);
        attn_copy_rows(&part.q.tensor, 0, &data->q.tensor, q, lq);
        attn_copy_rows(&part.k.tensor, 0, &data->k.tensor, k, lk);
        attn_copy_rows(&part.v.tensor, 0, &data->v.tensor, k, lk);
        cuda_attn_run_problem(&one, NULL, &part);
        settle_nans(&part, lq, &one);
        assert_true(attn_same_bits(&part.out.tensor, 0, &data->out.tensor, q, lq));
        if (all->return_lse)
            assert_memory_equal(part.lse.tensor.data,
                                (const float *)data->lse.tensor.data + q * all->num_qo_heads,
                                (size_t)lq * (size_t)all->num_qo_heads * sizeof(float));
        attn_data_free(&part);
    }
}

/* A layout of many segments; segment i alone must give the same bits, with few and with many rows
 * around it, which is what tile height and stages depend on. */
static void alone_as_in_company(void **state)
{
    (void)state;
    const int32_t dims[] = {40, 80, 128, 256, 64, 128, 256};
    gpu.aligned = true;
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
        attn_problem all;
        cuda_attn_be_a_card_of(d < 4 ? 8 : 9);
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
        int64_t segments = gpu.card != NULL ? 9 : 5; /* the mock is slow */
        for (int64_t i = 0; i < segments; i++)
            assert_true(attn_problem_add(&all, lengths[i][0], lengths[i][1]));
        attn_data data;
        attn_data_make(&all, &data);
        cuda_attn_run_problem(&all, NULL, &data);
        check_each_alone(&all, &data);
        attn_data_free(&data);
    }
}

/* Segments of a few rows and keys, which share tiles: the numbers, and each one's bits alone, with
 * a NaN and an infinity in one of them, windows, causal, grouped heads and a scale below 0. */
static void short_segments_share_tiles(void **state)
{
    (void)state;
    const int32_t dims[] = {24, 64, 72, 128, 200};
    test_random random = {11};
    int64_t shared = gpu.card == NULL ? gpu.mock->shared_items : 0;
    cuda_attn_be_a_card_of(8); /* wgmma shares nothing */
    for (size_t d = 0; d < (size_t)check_part(2 * sizeof dims / sizeof dims[0]); d++) {
        attn_problem all;
        attn_problem_init(&all);
        all.seed = d;
        all.kind = d % 3 == 0 ? ATTN_SELF : ATTN_PREFIXED;
        all.dtype = d % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16;
        all.head_dim = dims[d / 2];
        all.num_kv_heads = 8;
        all.num_qo_heads = d % 4 == 1 ? 24 : 8;
        all.causal = d % 2 == 1;
        all.return_lse = 1;
        if (d % 5 == 2)
            all.window_left = 5;
        if (d % 5 == 4)
            all.sm_scale = -0.25F;
        gpu.aligned = d % 4 != 3;
        for (int i = 0; i < 40; i++) { /* now and then one that shares with nobody */
            int32_t lq = (int32_t)test_random_between(&random, 0, i % 8 == 7 ? 80 : 17);
            int32_t more = (int32_t)test_random_between(&random, 0, i % 8 == 3 ? 70 : 12);
            assert_true(attn_problem_add(&all, lq, all.kind == ATTN_SELF ? lq : lq + more));
        }
        assert_true(cuda_attn_check_problem(&all, NULL));
        attn_data data;
        attn_data_make(&all, &data);
        int64_t keys = all.kv_offsets[all.num_segments];
        attn_set(&data.v.tensor, keys / 2, 0, 3, NAN);
        attn_set(&data.v.tensor, keys / 3, 1, 7, INFINITY);
        attn_set(&data.k.tensor, keys / 4, 2, 1, NAN);
        cuda_attn_run_problem(&all, NULL, &data);
        check_each_alone(&all, &data);
        attn_data_free(&data);
    }
    gpu.aligned = false;
    if (gpu.card == NULL)
        assert_true(gpu.mock->shared_items - shared > 100);
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
    cuda_attn_run_problem(&problem, NULL, &data);
    for (int64_t i = 1; i < 8; i++)
        assert_true(attn_same_bits(&data.out.tensor, 0, &data.out.tensor, i, 1));
    if (gpu.card == NULL) { /* 896 places, 128 a segment */
        assert_int_equal(gpu.mock->split_items, 14);
        assert_int_equal(gpu.mock->items, 15);
    }
    attn_data_free(&data);
}

/* Graph mode: one capture, many plans; the launch and its grid never change, rows past the plan are
 * zero, and what the graph gives is what a fresh eager wrapper gives. */
static void replays_after_any_plan(void **state)
{
    (void)state;
    attn_problem problem;
    gpu.aligned = true;
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
    cuda_attn_mirrors m;
    mstar_graph *graph;
    attn_problem_desc(&problem, &desc);
    desc.accelerator_graph = 1;
    desc.max_num_segments = 4;
    desc.max_total_tokens = 512;
    attn_data_make(&problem, &data);
    cuda_attn_mirrors_make(&data, &m);
    CHECK_OK(attn_create(gpu.device, problem.kind, &desc, NULL, 0, &wrapper));
    CHECK_OK(mstar_graph_capture_begin(gpu.stream));
    cuda_attn_run_wrapper(&wrapper, &data, &m);
    CHECK_OK(mstar_graph_capture_end(gpu.stream, &graph));
    mstar_graph_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_query(graph, &info));
    assert_int_equal(info.nodes, 1);
    for (size_t at = 0; at < sizeof layouts / sizeof layouts[0]; at++) {
        attn_problem now = problem;
        now.num_segments = 0;
        for (int i = 0; i < 4; i++)
            assert_true(attn_problem_add(&now, layouts[at][i], layouts[at][i]));
        now.extra_rows = 512 - attn_problem_tokens(&now);
        cuda_attn_plan_wrapper(&wrapper, &now);
        CHECK_OK(mstar_graph_replay(graph, gpu.stream));
        cuda_attn_mirror_fetch(&m.out, &data.out);
        cuda_attn_mirror_fetch(&m.lse, &data.lse);
        for (int64_t row = attn_problem_tokens(&now); row < 512; row++)
            for (int64_t h = 0; h < 4; h++) {
                assert_true(attn_get(&data.lse.tensor, row, h, 0) == -INFINITY);
                for (int64_t e = 0; e < 72; e++)
                    assert_true(attn_get(&data.out.tensor, row, h, e) == 0.0F);
            }
        mstar_tensor graph_out = data.out.tensor;
        unsigned char *kept = attn_block_copy(&data.out);
        graph_out.data = kept + ((unsigned char *)data.out.tensor.data - data.out.bytes);
        cuda_attn_run_problem(&now, NULL, &data);
        assert_true(attn_same_bits(&data.out.tensor, 0, &graph_out, 0, attn_problem_tokens(&now)));
        free(kept);
    }
    mstar_graph_destroy(graph);
    attn_destroy(&wrapper);
    cuda_attn_mirrors_free(&m);
    attn_data_free(&data);
}

static bool agrees(const attn_problem *problem, const char *backend, const attn_data *portable)
{
    attn_data data;
    attn_data_make(problem, &data);
    cuda_attn_run_problem(problem, backend, &data);
    int64_t rows = attn_problem_tokens(problem);
    bool same = attn_same_bits(&data.out.tensor, 0, &portable->out.tensor, 0, rows) &&
                attn_same_bits(&data.lse.tensor, 0, &portable->lse.tensor, 0, rows);
    if (!same)
        (void)printf("problem %llu: backend %s differs\n", (unsigned long long)problem->seed,
                     backend);
    attn_data_free(&data);
    return same;
}

/* A random problem by mma.sync, by wgmma and by what is picked: the same bits of out and of lse,
 * also with rows off 16 bytes. At head dim 256 blocks of keys differ, and so do bits. */
static bool agree_on(uint64_t seed)
{
    const int32_t dims[] = {128, 64, 72, 96, 80, 120, 88, 50};
    attn_problem problem;
    attn_data portable;
    attn_problem_random(seed, 400000, &problem);
    gpu.aligned = seed % 5 != 0;
    problem.head_dim = dims[seed % 8];
    problem.gaps = problem.gaps && !gpu.aligned;
    problem.return_lse = 1;
    problem.dtype =
        seed % 3 == 0 && problem.values == ATTN_NORMAL ? MSTAR_DTYPE_F16 : MSTAR_DTYPE_BF16;
    attn_data_make(&problem, &portable);
    cuda_attn_run_problem(&problem, "fa2", &portable);
    bool same = agrees(&problem, "fa3", &portable) && agrees(&problem, "auto", &portable);
    attn_data_free(&portable);
    return same;
}

static void hopper_has_the_portable_bits(void **state)
{
    (void)state;
    if (gpu.card != NULL && mst_cuda_of(gpu.device)->major != 9)
        return;
    const uint64_t problems = (uint64_t)check_part(gpu.card != NULL ? 400 : 12);
    int64_t bad = 0;
    for (uint64_t seed = 1; seed <= problems; seed++)
        bad += !agree_on(seed);
    gpu.aligned = false;
    assert_int_equal(bad, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest numeric[] = {
        cmocka_unit_test_setup_teardown(numbers, cuda_attn_set_up, cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(every_head_dim, cuda_attn_set_up, cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(alone_as_in_company, cuda_attn_set_up, cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(short_segments_share_tiles, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(parts_beyond_the_slots, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(replays_after_any_plan, cuda_attn_set_up,
                                        cuda_attn_tear_down),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test_setup_teardown(hopper_has_the_portable_bits, cuda_attn_set_up,
                                        cuda_attn_tear_down),
    };
    cuda_attn_arguments(argc, argv, emulated_launch);
    int failed = cmocka_run_group_tests(numeric, NULL, NULL);
    return gpu.emulated ? failed : failed + cmocka_run_group_tests(others, NULL, NULL);
}
