/*
 * test_attention_api.c - the wrappers' contract beside their numbers: every refused plan and
 * run with its text, calls out of order, workspaces, and a failure at each allocation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_attn.h"
#include "support_check.h"

static mstar_device *device;
static mstar_device *other_device;

static int open_devices(void **state)
{
    mstar_device_desc desc;
    (void)state;
    mstar_device_desc_init(&desc);
    desc.num_threads = 2;
    return mstar_device_open("cpu", &desc, &device) != MSTAR_OK ||
           mstar_device_open("cpu", &desc, &other_device) != MSTAR_OK;
}

static int close_devices(void **state)
{
    (void)state;
    return mstar_device_close(device) != MSTAR_OK || mstar_device_close(other_device) != MSTAR_OK;
}

static uint64_t total_allocations(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    attn_must(mstar_memory_query(&info));
    return info.total_allocations;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static void refused_plans_keep_the_former(void **state)
{
    static const int32_t good[] = {0, 4, 10};
    static const int32_t good_kv[] = {0, 7, 9};
    static const int32_t late[] = {1, 4, 10};
    static const int32_t falling[] = {0, 11, 10};
    static const int32_t over[] = {0, 31, 31};
    static const int32_t five[] = {0, 1, 2, 3, 4, 5};
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int graph = 0; graph <= 1; graph++) {
            attn_problem problem;
            attn_data before;
            attn_data after;
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            mstar_stream *foreign = NULL;
            mstar_ragged_prefill_info info = {.struct_size = sizeof info};
            const char *q_name = kind == 0 ? "cu_seqlens[0] is 1" : "q_cu_seqlens[0] is 1";
            attn_problem_init(&problem);
            problem.kind = (attn_kind)kind;
            problem.num_qo_heads = 4;
            problem.num_kv_heads = 2;
            problem.head_dim = 16;
            problem.return_lse = 0;
            attn_problem_add(&problem, 4, 7);
            attn_problem_add(&problem, 6, 2);
            attn_data_make(&problem, &before);
            attn_data_make(&problem, &after);
            attn_graph_desc(&desc);
            desc.accelerator_graph = graph;
            attn_must(attn_create(device, problem.kind, &desc, NULL, 0, &wrapper));
            attn_must(attn_plan(&wrapper, NULL, good, 2, good_kv, 2, 0));
            attn_must(attn_run(&wrapper, NULL, &before.q.tensor, &before.k.tensor, &before.v.tensor,
                               &before.out.tensor, NULL));
            attn_refused(attn_plan(&wrapper, NULL, late, 2, good_kv, 2, 0), MSTAR_INVALID_ARGUMENT,
                         q_name, "must be 0");
            attn_refused(attn_plan(&wrapper, NULL, falling, 2, good_kv, 2, 0),
                         MSTAR_INVALID_ARGUMENT, "[2] is 10", "before is 11");
            attn_refused(attn_plan(&wrapper, NULL, NULL, 2, good_kv, 2, 0), MSTAR_INVALID_ARGUMENT,
                         "cu_seqlens is NULL", "3 offsets");
            attn_refused(attn_plan(&wrapper, NULL, good, -1, good_kv, -1, 0),
                         MSTAR_INVALID_ARGUMENT, "num_segments is -1", "from 0");
            if (kind != ATTN_CROSS) {
                attn_refused(attn_plan(&wrapper, NULL, good, 2, good_kv, 2, 2),
                             MSTAR_INVALID_ARGUMENT, "causal is 2", "from 0 to 1");
                attn_refused(attn_plan(&wrapper, NULL, good, 2, good_kv, 2, -1),
                             MSTAR_INVALID_ARGUMENT, "causal is -1", "from 0 to 1");
            }
            if (kind != ATTN_SELF) {
                attn_refused(attn_plan(&wrapper, NULL, good, 2, good_kv, 1, 0),
                             MSTAR_INVALID_ARGUMENT, "q_num_segments is 2", "kv_num_segments is 1");
                attn_refused(attn_plan(&wrapper, NULL, good, 2, falling, 2, 0),
                             MSTAR_INVALID_ARGUMENT, "kv_cu_seqlens[2] is 10", "before is 11");
            }
            if (graph) {
                attn_refused(attn_plan(&wrapper, NULL, over, 2, good_kv, 2, 0),
                             MSTAR_INVALID_ARGUMENT, "ends at 31", "max_total_tokens is 30");
                attn_refused(attn_plan(&wrapper, NULL, five, 5, five, 5, 0), MSTAR_INVALID_ARGUMENT,
                             "num_segments is 5", "max_num_segments is 4");
                if (kind != ATTN_SELF)
                    attn_refused(attn_plan(&wrapper, NULL, good, 2, over, 2, 0),
                                 MSTAR_INVALID_ARGUMENT, "kv_cu_seqlens ends at 31 key tokens",
                                 "max_total_kv_tokens is 30");
            }
            attn_must(mstar_stream_create(other_device, 1, &foreign));
            attn_refused(attn_plan(&wrapper, foreign, good, 2, good_kv, 2, 0),
                         MSTAR_INVALID_ARGUMENT, "stream", "another device");
            attn_refused(attn_run(&wrapper, foreign, &after.q.tensor, &after.k.tensor,
                                  &after.v.tensor, &after.out.tensor, NULL),
                         MSTAR_INVALID_ARGUMENT, "stream", "another device");
            mstar_stream_destroy(foreign);
            attn_must(attn_query(&wrapper, &info));
            assert_int_equal(info.plans, 1);
            assert_int_equal(info.num_segments, 2);
            assert_int_equal(info.num_tokens, 10);
            attn_must(attn_run(&wrapper, NULL, &after.q.tensor, &after.k.tensor, &after.v.tensor,
                               &after.out.tensor, NULL));
            assert_true(attn_same_bits(&before.out.tensor, 0, &after.out.tensor, 0, 10));
            attn_destroy(&wrapper);
            attn_data_free(&before);
            attn_data_free(&after);
        }
}

/* Eager mode has no ceilings, whatever the desc says. */
static void eager_ignores_ceilings(void **state)
{
    static const int32_t offsets[] = {0, 10, 20, 30, 40, 50};
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    (void)state;
    attn_small_desc(&desc);
    desc.max_num_segments = 0;
    desc.max_total_tokens = 1;
    desc.max_total_kv_tokens = -9;
    attn_must(attn_create(device, ATTN_PREFIXED, &desc, NULL, 0, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, offsets, 5, offsets, 5, 1));
    attn_destroy(&wrapper);
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Tensors of one small problem, for calls that are wrong in one point. */
typedef struct run_set {
    attn_data data;
    attn_wrapper wrapper;
    mstar_tensor q, k, v, out, lse;
} run_set;

static void refuse_run(const run_set *good, const run_set *bad, const char *a, const char *b)
{
    unsigned char *out = attn_block_copy(&good->data.out);
    unsigned char *lse = attn_block_copy(&good->data.lse);
    attn_refused(attn_run(&good->wrapper, NULL, &bad->q, &bad->k, &bad->v, &bad->out, &bad->lse),
                 MSTAR_INVALID_ARGUMENT, a, b);
    assert_memory_equal(out, good->data.out.bytes, good->data.out.num_bytes);
    assert_memory_equal(lse, good->data.lse.bytes, good->data.lse.num_bytes);
    free(out);
    free(lse);
}

static void bad_tensors(int kind, int hnd, int graph)
{
    static const int32_t q[] = {0, 4, 10};
    static const int32_t kv[] = {0, 7, 9};
    attn_problem problem;
    run_set good;
    run_set bad;
    mstar_ragged_prefill_desc desc;
    int kv_row = hnd;
    attn_problem_init(&problem);
    problem.kind = (attn_kind)kind;
    problem.num_qo_heads = 4;
    problem.num_kv_heads = 2;
    problem.head_dim = 16;
    problem.kv_layout = hnd ? MSTAR_KV_HND : MSTAR_KV_NHD;
    attn_problem_add(&problem, 4, 7);
    attn_problem_add(&problem, 6, 2);
    int64_t keys = attn_problem_kv_tokens(&problem);
    attn_data_make(&problem, &good.data);
    attn_graph_desc(&desc);
    desc.accelerator_graph = graph;
    desc.max_total_kv_tokens = 20;
    desc.kv_layout = problem.kv_layout;
    desc.return_lse = 1;
    attn_must(attn_create(device, problem.kind, &desc, NULL, 0, &good.wrapper));
    attn_must(attn_plan(&good.wrapper, NULL, q, 2, kv, 2, 0));
    good.q = good.data.q.tensor;
    good.k = good.data.k.tensor;
    good.v = good.data.v.tensor;
    good.out = good.data.out.tensor;
    good.lse = good.data.lse.tensor;
#define REFUSE(change, a, b)           \
    do {                               \
        bad = good;                    \
        change;                        \
        refuse_run(&good, &bad, a, b); \
    } while (0)
    REFUSE(bad.q.rank = 2, "q.rank is 2", "must be 3");
    REFUSE(bad.k.rank = -1, "k.rank is -1", "from 0 to 8");
    REFUSE(bad.q.dtype = MSTAR_DTYPE_BF16, "q.dtype is bf16", "q_data_type is f32");
    REFUSE(bad.v.dtype = MSTAR_DTYPE_F16, "v.dtype is f16", "q_data_type is f32");
    REFUSE(bad.out.dtype = MSTAR_DTYPE_I32, "out.dtype is i32", "f32, bf16 or f16");
    REFUSE(bad.q.shape[1] = 3, "q.shape[1] is 3", "must be 4");
    REFUSE(bad.out.shape[1] = 5, "out.shape[1] is 5", "must be 4");
    REFUSE(bad.k.shape[1 - kv_row] = 1, hnd ? "k.shape[0] is 1" : "k.shape[1] is 1", "must be 2");
    REFUSE(bad.v.shape[2] = 15, "v.shape[2] is 15", "must be 16");
    REFUSE(bad.q.shape[0] = 9, "q.shape[0] is 9", kind == 0 ? "10 tokens" : "10 query tokens");
    REFUSE(bad.out.shape[0] = 9, "out.shape[0] is 9", kind == 0 ? "10 tokens" : "10 query tokens");
    REFUSE(bad.k.shape[kv_row] = keys - 1, hnd ? "k.shape[1] is" : "k.shape[0] is",
           kind == 0 ? "10 tokens" : "9 key tokens");
    REFUSE(bad.v.shape[kv_row] = 0, hnd ? "v.shape[1] is 0" : "v.shape[0] is 0",
           kind == 0 ? "10 tokens" : "9 key tokens");
    REFUSE(bad.q.strides[2] = 2, "q.strides[2] is 2", "contiguous");
    REFUSE(bad.out.strides[2] = 0, "out.strides[2] is 0", "contiguous");
    REFUSE(bad.k.strides[0] = -1, "k: ", "strides[0] is -1");
    REFUSE(bad.q.strides[0] = INT64_MAX / 2, "q: shape[0] = 10", "address space");
    REFUSE(bad.q.data = NULL, "q.data is NULL", "no dimension is 0");
    REFUSE(bad.v.data = (char *)bad.v.data + 1, "v.data", "aligned to 4 bytes");
    REFUSE(bad.k.device_kind = MSTAR_DEVICE_CUDA, "k is on device kind 2", "kind 1 index 0");
    REFUSE(bad.out.device_index = 1, "out is on device kind 1 index 1", "kind 1 index 0");
    REFUSE(bad.out.strides[0] = 0, "out.strides[0] is 0 over 10 rows", "share memory");
    REFUSE(bad.out.strides[1] = 8, "heads are 8 apart, 16 wide", "share memory");
    REFUSE(bad.out.strides[0] = 63, "out.strides[0] is 63", "share memory");
    REFUSE(bad.out = bad.q, "out and q overlap", "memory");
    REFUSE(bad.v.data = (char *)bad.out.data + 60, "out and v overlap", "memory");
    REFUSE(bad.lse.data = bad.k.data, "k", "overlap");
    REFUSE(bad.lse.data = bad.out.data, "out and lse overlap", "memory");
    REFUSE(bad.lse.dtype = MSTAR_DTYPE_F16, "lse.dtype is f16", "f32");
    REFUSE(bad.lse.rank = 3, "lse.rank is 3", "must be 2");
    REFUSE(bad.lse.shape[0] = 11, "lse.shape[0] is 11", "must be 10");
    REFUSE(bad.lse.shape[1] = 2, "lse.shape[1] is 2", "must be 4");
    REFUSE(bad.lse.strides[0] = 0, "lse.strides[0] is 0", "share memory");
    REFUSE(bad.lse.strides[1] = 2, "lse.strides[1] is 2", "contiguous");
    if (graph) {
        REFUSE(bad.q.shape[0] = 31, "q.shape[0] is 31", "max_total_tokens is 30");
        REFUSE((bad.out.shape[0] = 31, bad.lse.shape[0] = 31), "out.shape[0] is 31",
               "max_total_tokens is 30");
        REFUSE(bad.k.shape[kv_row] = 31, hnd ? "k.shape[1] is 31" : "k.shape[0] is 31",
               kind == 0 ? "max_total_tokens is 30" : "max_total_kv_tokens is 20");
    }
#undef REFUSE
    /* NULL tensors, and an lse that is missing */
    const mstar_tensor *all[] = {&good.q, &good.k, &good.v, &good.out, &good.lse};
    static const char *const names[] = {"q", "k", "v", "out", "lse"};
    for (int i = 0; i < 5; i++) {
        const mstar_tensor *given[5];
        memcpy(given, all, sizeof given);
        given[i] = NULL;
        attn_refused(
            attn_run(&good.wrapper, NULL, given[0], given[1], given[2], given[3], given[4]),
            MSTAR_INVALID_ARGUMENT, names[i], "NULL");
    }
    attn_must(attn_run(&good.wrapper, NULL, &good.q, &good.k, &good.v, &good.out, &good.lse));
    attn_destroy(&good.wrapper);
    attn_data_free(&good.data);
}

static void bad_tensors_are_refused(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int hnd = 0; hnd <= 1; hnd++)
            for (int graph = 0; graph <= 1; graph++)
                bad_tensors(kind, hnd, graph);
}

static void an_unwanted_lse_is_refused(void **state)
{
    static const int32_t offsets[] = {0, 3};
    static float data[3][3 * 4 * 16];
    static float lse[3 * 4];
    const int64_t shapes[][3] = {{3, 4, 16}, {3, 2, 16}, {3, 4, 0}};
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    (void)state;
    attn_small_desc(&desc);
    mstar_tensor q = mstar_tensor_make(data[0], MSTAR_DTYPE_F32, 3, shapes[0]);
    mstar_tensor kv = mstar_tensor_make(data[1], MSTAR_DTYPE_F32, 3, shapes[1]);
    mstar_tensor out = mstar_tensor_make(data[2], MSTAR_DTYPE_F32, 3, shapes[0]);
    mstar_tensor row = mstar_tensor_make(lse, MSTAR_DTYPE_F32, 2, shapes[2]);
    attn_must(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, offsets, 1, NULL, 0, 0));
    attn_refused(attn_run(&wrapper, NULL, &q, &kv, &kv, &out, &row), MSTAR_INVALID_ARGUMENT,
                 "lse is not NULL", "return_lse is 0");
    attn_must(attn_run(&wrapper, NULL, &q, &kv, &kv, &out, NULL)); /* k and v may be one tensor */
    attn_destroy(&wrapper);
}

static void run_before_plan(void **state)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_problem problem;
    attn_data data;
    (void)state;
    attn_problem_init(&problem);
    problem.num_qo_heads = 4;
    problem.num_kv_heads = 2;
    problem.head_dim = 16;
    attn_problem_add(&problem, 4, 4);
    for (int kind = 0; kind < 3; kind++) {
        problem.kind = (attn_kind)kind;
        attn_data_make(&problem, &data);
        attn_small_desc(&desc);
        attn_must(attn_create(device, problem.kind, &desc, NULL, 0, &wrapper));
        attn_refused(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                              &data.out.tensor, NULL),
                     MSTAR_OUT_OF_ORDER, "run", "before plan");
        /* a refused plan is no plan */
        attn_refused(attn_plan(&wrapper, NULL, NULL, 1, NULL, 1, 0), MSTAR_INVALID_ARGUMENT, "NULL",
                     "");
        attn_refused(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                              &data.out.tensor, NULL),
                     MSTAR_OUT_OF_ORDER, "run", "before plan");
        attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, 1, problem.kv_offsets, 1, 0));
        attn_must(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                           &data.out.tensor, NULL));
        attn_destroy(&wrapper);
        attn_data_free(&data);
    }
}

/* No segments, and only empty ones: nothing is written, tensors may have no memory at all. */
static void empty_layouts_run(void **state)
{
    static const int32_t zeros[] = {0, 0, 0};
    const int64_t q_shape[] = {0, 4, 16};
    const int64_t kv_shape[] = {0, 2, 16};
    mstar_tensor q = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 3, q_shape);
    mstar_tensor kv = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 3, kv_shape);
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int graph = 0; graph <= 1; graph++) {
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            attn_graph_desc(&desc);
            desc.accelerator_graph = graph;
            attn_must(attn_create(device, (attn_kind)kind, &desc, NULL, 0, &wrapper));
            attn_must(attn_plan(&wrapper, NULL, NULL, 0, NULL, 0, 0));
            attn_must(attn_run(&wrapper, NULL, &q, &kv, &kv, &q, NULL));
            attn_must(attn_plan(&wrapper, NULL, zeros, 2, zeros, 2, 0));
            attn_must(attn_run(&wrapper, NULL, &q, &kv, &kv, &q, NULL));
            attn_destroy(&wrapper);
        }
}

/* ---- workspaces ------------------------------------------------------------------------------ */

static void workspaces(void **state)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_buffer *buffer = NULL;
    size_t bytes = 0;
    char text[64];
    (void)state;
    attn_small_desc(&desc);
    attn_must(attn_workspace_query(device, ATTN_SELF, &desc, &bytes));
    assert_true(bytes > 0);
    attn_must(mstar_buffer_create(device, bytes + 64, &buffer));
    unsigned char *data = mstar_buffer_get_data(buffer);
    uint64_t live = check_live_allocations();
    (void)snprintf(text, sizeof text, "needs %zu", bytes);
    attn_refused(attn_create(device, ATTN_SELF, &desc, data, bytes - 1, &wrapper),
                 MSTAR_INVALID_ARGUMENT, "workspace_bytes is", text);
    attn_refused(attn_create(device, ATTN_SELF, &desc, data, 0, &wrapper), MSTAR_INVALID_ARGUMENT,
                 "workspace_bytes is 0", text);
    attn_refused(attn_create(device, ATTN_SELF, &desc, data + 8, bytes, &wrapper),
                 MSTAR_INVALID_ARGUMENT, "workspace is", "aligned to 64");
    assert_int_equal(check_live_allocations(), live);
    attn_must(attn_create(device, ATTN_SELF, &desc, data, bytes, &wrapper));
    attn_destroy(&wrapper);
    attn_must(attn_create(device, ATTN_SELF, &desc, data + 64, bytes, &wrapper));
    attn_destroy(&wrapper); /* does not free it */
    memset(data, 1, bytes);
    mstar_buffer_destroy(buffer);
}

/* out or an input inside the workspace would be overwritten while it is read. */
static void tensors_in_the_workspace(void **state)
{
    static const int32_t offsets[] = {0, 3};
    static float values[2][3 * 4 * 16];
    const int64_t shapes[][3] = {{3, 4, 16}, {3, 2, 16}};
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    size_t bytes = 0;
    void *workspace = NULL;
    (void)state;
    attn_small_desc(&desc);
    attn_must(attn_workspace_query(device, ATTN_SELF, &desc, &bytes));
    assert_true(bytes >= sizeof values[0]);
    assert_int_equal(posix_memalign(&workspace, 64, bytes), 0);
    attn_must(attn_create(device, ATTN_SELF, &desc, workspace, bytes, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, offsets, 1, NULL, 0, 0));
    mstar_tensor q = mstar_tensor_make(values[0], MSTAR_DTYPE_F32, 3, shapes[0]);
    mstar_tensor kv = mstar_tensor_make(values[1], MSTAR_DTYPE_F32, 3, shapes[1]);
    mstar_tensor inside = mstar_tensor_make(workspace, MSTAR_DTYPE_F32, 3, shapes[0]);
    attn_refused(attn_run(&wrapper, NULL, &q, &kv, &kv, &inside, NULL), MSTAR_INVALID_ARGUMENT,
                 "out and the workspace overlap", "");
    attn_refused(attn_run(&wrapper, NULL, &inside, &kv, &kv, &q, NULL), MSTAR_INVALID_ARGUMENT,
                 "q and the workspace overlap", "");
    attn_destroy(&wrapper);
    free(workspace);
}

/* ---- a failure at each allocation ------------------------------------------------------------ */

typedef struct fault {
    uint64_t fails_at;
    bool hit;
} fault;

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    fault *f = context;
    (void)bytes;
    if (number != f->fails_at)
        return 0;
    f->hit = true;
    return 1;
}

/* Create, plan small, plan large, run; true when all succeeded. What failed is tried again without
 * the fault and must then work, the plan before still being in force. */
static bool sweep_once(attn_kind kind, int graph, fault *f)
{
    static const int32_t small[] = {0, 2};
    attn_problem problem;
    attn_data data;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_problem_init(&problem);
    problem.kind = kind;
    problem.num_qo_heads = 4;
    problem.num_kv_heads = 2;
    problem.head_dim = 16;
    problem.return_lse = 0;
    for (int i = 0; i < 40; i++)
        attn_problem_add(&problem, 10, 12);
    attn_data_make(&problem, &data);
    attn_graph_desc(&desc);
    desc.accelerator_graph = graph;
    desc.max_num_segments = 40;
    desc.max_total_tokens = 400;
    desc.max_total_kv_tokens = 480;
    uint64_t live = check_live_allocations();
    bool good = false;
    mstar_set_alloc_fault(fail_at, f);
    mstar_status status = attn_create(device, kind, &desc, NULL, 0, &wrapper);
    if (status != MSTAR_OK) {
        assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
        assert_null(wrapper.object);
        assert_int_equal(check_live_allocations(), live);
        goto done;
    }
    status = attn_plan(&wrapper, NULL, small, 1, small, 1, 0);
    if (status != MSTAR_OK) {
        assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
        assert_int_equal(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                                  &data.out.tensor, NULL),
                         MSTAR_OUT_OF_ORDER);
        attn_must(attn_plan(&wrapper, NULL, small, 1, small, 1, 0));
    }
    bool planned = status == MSTAR_OK;
    status = attn_plan(&wrapper, NULL, problem.q_offsets, 40, problem.kv_offsets, 40, 0);
    if (status != MSTAR_OK) {
        mstar_ragged_prefill_info info = {.struct_size = sizeof info};
        assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
        attn_must(attn_query(&wrapper, &info));
        assert_int_equal(info.num_tokens, 2); /* the former plan */
        attn_must(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                           &data.out.tensor, NULL));
        attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, 40, problem.kv_offsets, 40, 0));
    }
    good = planned && status == MSTAR_OK;
    uint64_t before = total_allocations();
    attn_must(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                       &data.out.tensor, NULL));
    assert_int_equal(total_allocations(), before); /* run allocates nothing */
    if (graph) {
        attn_must(attn_plan(&wrapper, NULL, small, 1, small, 1, 0));
        assert_int_equal(total_allocations(), before); /* nor does plan in graph mode */
    }
    attn_destroy(&wrapper);
    assert_int_equal(check_live_allocations(), live);
done:
    mstar_set_alloc_fault(NULL, NULL);
    attn_data_free(&data);
    return good;
}

static void a_failure_at_each_allocation(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int graph = 0; graph <= 1; graph++) {
            fault f = {.fails_at = 1};
            while (!sweep_once((attn_kind)kind, graph, &f)) {
                assert_true(f.hit); /* only the fault makes it fail */
                assert_true(f.fails_at < 50);
                f = (fault){.fails_at = f.fails_at + 1};
            }
            assert_false(f.hit);
            assert_true(f.fails_at > (graph ? 3 : 5)); /* wrapper, stream, workspace, plans */
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_plans_keep_the_former),
        cmocka_unit_test(eager_ignores_ceilings),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(an_unwanted_lse_is_refused),
        cmocka_unit_test(run_before_plan),
        cmocka_unit_test(empty_layouts_run),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(tensors_in_the_workspace),
        cmocka_unit_test(a_failure_at_each_allocation),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
