/*
 * test_region_runner.c - regions captured inside an eager forward: the bits of eager, zeroed tails,
 * results outside of what captures work in, slots, and captures that fail.
 */
#include "support_node.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/region.h"

/*
 * The region is the first layer of the small encoder without its norm: x -> qkv -> self attention
 * -> projection and residual, with a ragged manager for the attention.
 */
typedef struct bench {
    mstar_device *device;
    mstar_stream *stream;
    node node;
    mstar_piecewise_config *config;
    mstar_region_runner *runner;
    int64_t seq_len; /* batched; 0: packed */
    int fail_inputs, fail_capture, calls_inputs, calls_capture;
    int leases_asked;
} bench;

static mstar_status ask(mstar_tensors *list, const char *name, int64_t rows, int64_t width)
{
    mstar_tensor tensor = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, width});
    return mstar_tensors_add(list, name, &tensor);
}

static mstar_status make_inputs(void *user, const mstar_capture_shape *shape, mstar_tensors *inputs)
{
    bench *b = user;
    if (++b->calls_inputs == b->fail_inputs)
        return MSTAR_OUT_OF_MEMORY;
    mstar_status status;
    if (b->seq_len > 0) {
        mstar_tensor x = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 3,
                                           (int64_t[]){shape->bs, b->seq_len, NODE_WIDTH});
        status = mstar_tensors_add(inputs, "x", &x);
    } else {
        status = ask(inputs, "x", shape->total_tokens, NODE_WIDTH);
    }
    if (status == MSTAR_OK)
        status = ask(inputs, "qkv", shape->total_tokens, 3 * NODE_WIDTH);
    if (status == MSTAR_OK)
        status = ask(inputs, "context", shape->total_tokens, NODE_WIDTH);
    return status == MSTAR_OK ? ask(inputs, "work", shape->total_tokens, NODE_WIDTH) : status;
}

static mstar_status declare_step(void *user, const int64_t *requests, int64_t num_requests,
                                 const int64_t *lengths, int64_t num_lengths, mstar_step *step,
                                 int *declared)
{
    (void)user;
    mstar_status status = mstar_step_add_resource(step, "attn");
    if (status == MSTAR_OK)
        status = mstar_step_set_causal(step, "attn", 0);
    for (int64_t i = 0; status == MSTAR_OK && i < num_lengths; i++)
        status =
            mstar_step_add_segment(step, NULL, requests[i < num_requests ? i : num_requests - 1],
                                   NULL, (int32_t)lengths[i]);
    *declared = 1;
    return status;
}

#define TRY(call)                 \
    do {                          \
        mstar_status s_ = (call); \
        if (s_ != MSTAR_OK)       \
            return s_;            \
    } while (0)

/* The same launches for the region (manager) and for its eager twin (wrapper). */
static mstar_status run_layer(bench *b, mstar_stream *stream, int64_t rows, const mstar_tensor *x,
                              const mstar_tensor *qkv, const mstar_tensor *context,
                              const mstar_tensor *out, bool managed)
{
    mstar_tensor heads[4];
    (void)rows;
    for (int part = 0; part < 3; part++) {
        TRY(mstar_tensor_slice(qkv, 1, part * NODE_WIDTH, NODE_WIDTH, &heads[part]));
        TRY(mstar_tensor_split_dim(&heads[part], 1, NODE_HEADS, NODE_DIM, &heads[part]));
    }
    TRY(mstar_tensor_split_dim(context, 1, NODE_HEADS, NODE_DIM, &heads[3]));
    TRY(mstar_linear_run(b->node.qkv[0], stream, x, NULL, qkv));
    if (managed)
        TRY(mstar_ragged_manager_run(b->node.manager, stream, NULL, &heads[0], &heads[1], &heads[2],
                                     &heads[3], NULL));
    else
        TRY(mstar_ragged_prefill_run(b->node.eager, stream, &heads[0], &heads[1], &heads[2],
                                     &heads[3], NULL));
    return mstar_linear_run(b->node.out[0], stream, context, x, out);
}

static mstar_status capture_fn(void *user, const mstar_piecewise_call_inputs *call,
                               mstar_tensors *outputs)
{
    bench *b = user;
    if (++b->calls_capture == b->fail_capture)
        return MSTAR_DEVICE_FAILED;
    assert_ptr_equal(call->kwargs, b);
    assert_non_null(call->engine_inputs->lease);
    const mstar_tensor *qkv = mstar_tensors_find(call->static_inputs, "qkv");
    const mstar_tensor *given = mstar_tensors_find(call->static_inputs, "x");
    const mstar_tensor *work = mstar_tensors_find(call->static_inputs, "work");
    int64_t rows = qkv->shape[0];
    mstar_tensor x =
        mstar_tensor_make(given->data, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, NODE_WIDTH});
    TRY(run_layer(b, call->engine_inputs->stream, rows, &x, qkv,
                  mstar_tensors_find(call->static_inputs, "context"), work, true));
    if (b->seq_len == 0)
        return mstar_tensors_add(outputs, NULL, work); /* filed under "x" */
    mstar_tensor y = mstar_tensor_make(work->data, MSTAR_DTYPE_F32, 3,
                                       (int64_t[]){rows / b->seq_len, b->seq_len, NODE_WIDTH});
    return mstar_tensors_add(outputs, "x", &y);
}

static int can_lease(void *user, const mstar_node_input *inputs, int64_t count)
{
    (void)inputs;
    ((bench *)user)->leases_asked++;
    return count < 3;
}

/* seq_len 0: packed with these totals. */
static void open_bench(bench *b, const int64_t *sizes, int64_t num_sizes, int64_t seq_len,
                       const int64_t *totals, int64_t num_totals)
{
    memset(b, 0, sizeof *b);
    CHECK_OK(mstar_device_open("cpu", &(mstar_device_desc){.struct_size = 8, .num_threads = 1},
                               &b->device));
    CHECK_OK(mstar_stream_create(b->device, 1, &b->stream));
    node_open(&b->node, b->device, 21);
    node_manage(&b->node);
    b->seq_len = seq_len;
    mstar_piecewise_config_desc desc;
    mstar_piecewise_packed_config_desc_init(&desc);
    desc.capture_fn = capture_fn;
    desc.make_static_inputs = make_inputs;
    desc.declare_step = declare_step;
    desc.user = desc.forward_kwargs = b;
    desc.lease_before_step = 1;
    desc.can_lease = can_lease;
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = num_sizes;
    if (seq_len > 0) {
        desc.seq_len = seq_len;
        CHECK_OK(mstar_piecewise_batched_config_create(&desc, &b->config));
    } else {
        desc.total_tokens = totals;
        desc.num_total_tokens = num_totals;
        CHECK_OK(mstar_piecewise_packed_config_create(&desc, &b->config));
    }
}

static mstar_region_runner_desc runner_desc(const bench *b)
{
    mstar_region_runner_desc desc;
    mstar_region_runner_desc_init(&desc);
    desc.node = "tower";
    desc.label = "blocks";
    desc.config = b->config;
    desc.resources = b->node.resources;
    desc.stream = b->stream;
    return desc;
}

static void start(bench *b)
{
    mstar_region_runner_desc desc = runner_desc(b);
    CHECK_OK(mstar_region_runner_create(b->device, &desc, &b->runner));
    CHECK_OK(mstar_region_runner_prepare(b->runner));
    CHECK_OK(mstar_region_runner_capture(b->runner));
}

static void close_bench(bench *b)
{
    mstar_region_runner_destroy(b->runner);
    mstar_piecewise_config_destroy(b->config);
    node_close(&b->node);
    mstar_stream_destroy(b->stream);
    CHECK_OK(mstar_device_close(b->device));
    assert_int_equal(check_live_allocations(), 0);
}

static mstar_region_runner_info query(const bench *b)
{
    mstar_region_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_region_runner_query(b->runner, &info));
    return info;
}

/* ---- eager twin ------------------------------------------------------------------------------ */

typedef struct rows {
    float x[NODE_TOKENS][NODE_WIDTH], want[NODE_TOKENS][NODE_WIDTH];
    int64_t tokens;
} rows;

static void run_eager(bench *b, check_rng *rng, const int64_t *lengths, int64_t count, rows *r)
{
    static float qkv[NODE_TOKENS][3 * NODE_WIDTH], context[NODE_TOKENS][NODE_WIDTH];
    int32_t offsets[64] = {0};
    for (int64_t i = 0; i < count; i++)
        offsets[i + 1] = offsets[i] + (int32_t)lengths[i];
    r->tokens = offsets[count];
    for (int64_t i = 0; i < r->tokens; i++) {
        for (int64_t j = 0; j < NODE_WIDTH; j++)
            r->x[i][j] = (float)check_uniform(rng, -1, 1);
    }
    int64_t shape[2] = {r->tokens, NODE_WIDTH}, wide[2] = {r->tokens, 3 * NODE_WIDTH};
    mstar_tensor x = mstar_tensor_make(r->x, MSTAR_DTYPE_F32, 2, shape);
    mstar_tensor t_qkv = mstar_tensor_make(qkv, MSTAR_DTYPE_F32, 2, wide);
    mstar_tensor t_context = mstar_tensor_make(context, MSTAR_DTYPE_F32, 2, shape);
    mstar_tensor want = mstar_tensor_make(r->want, MSTAR_DTYPE_F32, 2, shape);
    CHECK_OK(mstar_ragged_prefill_plan(b->node.eager, b->stream, offsets, count, 0));
    CHECK_OK(run_layer(b, b->stream, r->tokens, &x, &t_qkv, &t_context, &want, false));
}

static void poison_buffer(mstar_buffer *buffer)
{
    if (mstar_buffer_get_bytes(buffer) > 0)
        memset(mstar_buffer_get_data(buffer), 0xff, mstar_buffer_get_bytes(buffer));
}

static void poison(const bench *b)
{
    for (int64_t i = 0; i < b->runner->shapes.count * b->runner->num_slots; i++) {
        const mst_region_capture *capture = &b->runner->captures[i];
        poison_buffer(capture->memory);
        poison_buffer(capture->out);
    }
}

static mstar_region_result run_region(bench *b, const rows *r, const int64_t *lengths,
                                      int64_t count, int64_t bs)
{
    mstar_tensors inputs;
    mstar_tensors_init(&inputs);
    mstar_tensor x = mstar_tensor_make((void *)(uintptr_t)r->x, MSTAR_DTYPE_F32, 2,
                                       (int64_t[]){r->tokens, NODE_WIDTH});
    if (b->seq_len > 0)
        x = mstar_tensor_make((void *)(uintptr_t)r->x, MSTAR_DTYPE_F32, 3,
                              (int64_t[]){bs, b->seq_len, NODE_WIDTH});
    CHECK_OK(mstar_tensors_add(&inputs, "x", &x));
    CHECK_OK(mstar_tensors_add(&inputs, "unknown", &x)); /* ignored */
    static const int64_t handles[] = {11, 12, 13, 14};
    mstar_region_call call;
    mstar_region_call_init(&call);
    call.inputs = &inputs;
    call.requests = handles;
    call.num_requests = bs;
    call.seq_lens = lengths;
    call.num_seq_lens = count;
    mstar_region_result result = {.struct_size = sizeof result};
    CHECK_OK(mstar_region_runner_run(b->runner, &call, &result));
    mstar_tensors_release(&inputs);
    return result;
}

static const mstar_tensor *check_region(bench *b, check_rng *rng, const int64_t *lengths,
                                        int64_t count, int64_t bs)
{
    static rows r;
    run_eager(b, rng, lengths, count, &r);
    poison(b);
    mstar_region_result result = run_region(b, &r, lengths, count, bs);
    const mstar_tensor *y = mstar_tensors_find(result.outputs, "x");
    assert_int_equal(y->shape[0], b->seq_len > 0 ? bs : r.tokens);
    assert_int_equal(result.real_len, y->shape[0]);
    assert_memory_equal(y->data, r.want, (size_t)r.tokens * sizeof r.want[0]);
    /* the input's tail is zero, whatever it was */
    const mst_region_capture *capture = NULL;
    for (int64_t i = 0; i < b->runner->shapes.count * b->runner->num_slots; i++) {
        const mst_region_capture *c = &b->runner->captures[i];
        if (c->lease.key.bs == result.bs && c->lease.key.num_tokens == result.total_tokens &&
            c->lease.slot == result.slot)
            capture = c;
    }
    assert_non_null(capture);
    const float *x = mstar_tensors_find(&capture->inputs, "x")->data;
    for (int64_t i = r.tokens * NODE_WIDTH; i < result.total_tokens * NODE_WIDTH; i++)
        assert_true(x[i] == 0);
    return y;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_packed(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2}, totals[] = {128, 32, 64};
    static bench b;
    check_rng rng = {31};
    open_bench(&b, sizes, 2, 0, totals, 3);
    start(&b);
    mstar_region_runner_info info = query(&b);
    assert_int_equal(info.num_captured, 6);
    assert_int_equal(info.num_slots, 2); /* the manager asks for two */
    assert_int_equal(info.num_handles, 4);
    for (int round = 0; round < 3; round++) {
        (void)check_region(&b, &rng, (int64_t[]){128}, 1, 1);
        (void)check_region(&b, &rng, (int64_t[]){60, 20}, 2, 2);
        (void)check_region(&b, &rng, (int64_t[]){5}, 1, 1);
        (void)check_region(&b, &rng, (int64_t[]){0, 1}, 2, 2);
        (void)check_region(&b, &rng, (int64_t[]){33}, 1, 1);
    }
    for (int i = 0; i < 200; i++) {
        int64_t lengths[2], bs = check_integer(&rng, 1, 2);
        for (int64_t j = 0; j < bs; j++)
            lengths[j] = check_integer(&rng, 0, 64);
        (void)check_region(&b, &rng, lengths, bs, bs);
    }
    info = query(&b);
    assert_int_equal(info.replays, 215);
    assert_true(info.tokens > 0 && info.padding_tokens > 0);
    close_bench(&b);
}

/* Views alias the runner's buffers; a copy outlives the next run. */
static void test_views_and_copies(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {16};
    static bench b;
    static float kept[16][NODE_WIDTH], before[16][NODE_WIDTH];
    check_rng rng = {32};
    open_bench(&b, sizes, 1, 0, totals, 1);
    mstar_region_runner_desc desc = runner_desc(&b);
    desc.num_slots = 1;
    CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
    CHECK_OK(mstar_region_runner_prepare(b.runner));
    CHECK_OK(mstar_region_runner_capture(b.runner));
    static rows r;
    run_eager(&b, &rng, (int64_t[]){9}, 1, &r);
    mstar_region_result result = run_region(&b, &r, (int64_t[]){9}, 1, 1);
    mstar_tensor copy = mstar_tensor_make(kept, MSTAR_DTYPE_F32, 2, (int64_t[]){9, NODE_WIDTH});
    CHECK_OK(mstar_region_result_copy(&result, "x", &copy));
    const void *address = mstar_tensors_find(result.outputs, "x")->data;
    memcpy(before, kept, sizeof before);
    CHECK_FAILED(mstar_region_result_copy(&result, "y", &copy), MSTAR_NOT_FOUND, "\"y\"");
    copy.shape[0] = 8;
    CHECK_INVALID(mstar_region_result_copy(&result, "x", &copy), "copy");
    const mstar_tensor *y = check_region(&b, &rng, (int64_t[]){16}, 1, 1);
    assert_ptr_equal(y->data, address); /* the view of before shows the new run */
    assert_memory_not_equal(y->data, before, 9 * sizeof before[0]);
    assert_memory_equal(kept, before, sizeof before);
    close_bench(&b);
}

/* One request with many segments: a tower of images. */
static void test_many_segments(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {64};
    static bench b;
    check_rng rng = {33};
    open_bench(&b, sizes, 1, 0, totals, 1);
    node_close(&b.node); /* a manager of up to six segments a request */
    node_open(&b.node, b.device, 21);
    mstar_ragged_manager_desc manager;
    mstar_ragged_manager_desc_init(&manager);
    manager.num_qo_heads = manager.num_kv_heads = NODE_HEADS;
    manager.head_dim = NODE_DIM;
    manager.dtype = MSTAR_DTYPE_F32;
    manager.max_segments_per_request = 6;
    mstar_resource resource;
    CHECK_OK(mstar_ragged_manager_create(b.device, &manager, &b.node.manager));
    CHECK_OK(mstar_ragged_manager_get_resource(b.node.manager, "attn", &resource));
    CHECK_OK(mstar_resources_create(&resource, 1, &b.node.resources));
    start(&b);
    (void)check_region(&b, &rng, (int64_t[]){9, 8, 7, 6, 5, 4}, 6, 1);
    (void)check_region(&b, &rng, (int64_t[]){30, 0, 20}, 3, 1);
    (void)check_region(&b, &rng, (int64_t[]){64}, 1, 1);
    close_bench(&b);
}

static void test_batched(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4};
    static bench b;
    check_rng rng = {34};
    open_bench(&b, sizes, 2, 12, NULL, 0);
    start(&b);
    (void)check_region(&b, &rng, (int64_t[]){12}, 1, 1);
    (void)check_region(&b, &rng, (int64_t[]){12, 12, 12, 12}, 4, 4);
    (void)check_region(&b, &rng, (int64_t[]){12, 12}, 2,
                       2); /* padding rows are real work on zeros */
    (void)check_region(&b, &rng, (int64_t[]){12, 12, 12}, 3, 3);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 5, -1), MSTAR_GRAPH_MISS_BATCH_SIZE);
    close_bench(&b);
}

static void test_can_run_and_lease(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4}, totals[] = {32, 64};
    static bench b;
    open_bench(&b, sizes, 2, 0, totals, 2);
    mstar_region_runner_desc desc = runner_desc(&b);
    CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
    assert_string_equal(mstar_region_runner_get_label(b.runner), "blocks");
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, 5), MSTAR_GRAPH_MISS_NOT_CAPTURED);
    CHECK_FAILED(mstar_region_runner_capture(b.runner), MSTAR_OUT_OF_ORDER, "before it was");
    CHECK_OK(mstar_region_runner_prepare(b.runner));
    CHECK_OK(mstar_region_runner_capture(b.runner));
    CHECK_FAILED(mstar_region_runner_prepare(b.runner), MSTAR_OUT_OF_ORDER, "prepared already");
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, 64), MSTAR_GRAPH_MISS_NONE);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, 65), MSTAR_GRAPH_MISS_TOKENS);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, -1), MSTAR_GRAPH_MISS_NOT_BUILT);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 5, 5), MSTAR_GRAPH_MISS_BATCH_SIZE);
    mstar_node_input inputs[3] = {
        {.input_seq_len = 30}, {.input_seq_len = 30}, {.input_seq_len = 30}};
    assert_int_equal(mstar_region_runner_can_lease(b.runner, inputs, 2), 1);
    assert_int_equal(mstar_region_runner_can_lease(b.runner, inputs, 3), 0); /* 90 tokens */
    assert_int_equal(b.leases_asked, 1); /* asked only where a capture serves */
    inputs[2].input_seq_len = 0;
    assert_int_equal(mstar_region_runner_can_lease(b.runner, inputs, 3), 0); /* can_lease says so */
    assert_int_equal(b.leases_asked, 2);
    close_bench(&b);
}

/* Every call fails once: one shape is dropped, the others are right. */
static void test_every_call_fails_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {32, 64};
    static bench b;
    check_rng rng = {35};
    for (int hook = 0; hook < 2; hook++) {
        /* two shapes in two slots: inputs 4, captures 3 each */
        for (int call = 1; call <= (hook == 0 ? 4 : 12); call++) {
            open_bench(&b, sizes, 1, 0, totals, 2);
            *(hook == 0 ? &b.fail_inputs : &b.fail_capture) = call;
            start(&b);
            mstar_region_runner_info info = query(&b);
            assert_int_equal(info.num_captured, 1);
            assert_non_null(
                strstr(info.first_failure, hook == 0 ? "make_static_inputs" : "capture_fn"));
            assert_false(mstar_stream_is_capturing(b.stream));
            bool large = mstar_region_runner_can_run(b.runner, 1, 64) == MSTAR_GRAPH_MISS_NONE;
            b.fail_inputs = b.fail_capture = 0;
            if (large) /* the larger total stands in for the dropped one */
                (void)check_region(&b, &rng, (int64_t[]){20}, 1, 1);
            (void)check_region(&b, &rng, (int64_t[]){large ? 64 : 32}, 1, 1);
            close_bench(&b);
        }
    }
    setenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS", "1", 1);
    open_bench(&b, sizes, 1, 0, totals, 2);
    b.fail_capture = 1;
    mstar_region_runner_desc desc = runner_desc(&b);
    CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
    CHECK_OK(mstar_region_runner_prepare(b.runner));
    CHECK_FAILED(mstar_region_runner_capture(b.runner), MSTAR_DEVICE_FAILED,
                 "tower_blocks: captured 1 of 2");
    close_bench(&b);
    unsetenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS");
}

static void test_refused(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2}, totals[] = {32};
    static bench b;
    check_rng rng = {36};
    open_bench(&b, sizes, 1, 0, totals, 1);
    mstar_region_runner_desc desc;
#define REFUSE(change, piece)                                                         \
    do {                                                                              \
        desc = runner_desc(&b);                                                       \
        change;                                                                       \
        CHECK_INVALID(mstar_region_runner_create(b.device, &desc, &b.runner), piece); \
        assert_null(b.runner);                                                        \
    } while (0)
    REFUSE(desc.label = NULL, "desc.label is NULL");
    REFUSE(desc.config = NULL, "desc.config is NULL");
    REFUSE(desc.stream = NULL, "desc.stream is NULL");
    REFUSE(desc.resources = NULL, "desc.resources is NULL");
    REFUSE(desc.num_slots = 0, "desc.num_slots is 0");
    REFUSE(desc.first_handle = -1, "desc.first_handle is -1");
    start(&b);
    mstar_region_call call;
    mstar_region_result result = {.struct_size = sizeof result};
    mstar_region_call_init(&call);
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "call.real_bs is -1");
    call.real_bs = 1;
    CHECK_FAILED(mstar_region_runner_run(b.runner, &call, &result), MSTAR_OUT_OF_ORDER,
                 "ask can_run first");
    call.seq_lens = (int64_t[]){33};
    call.num_seq_lens = 1;
    CHECK_FAILED(mstar_region_runner_run(b.runner, &call, &result), MSTAR_OUT_OF_ORDER,
                 "33 tokens");
    call.seq_lens = (int64_t[]){-1};
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "call.seq_lens[0] is -1");
    call.seq_lens = (int64_t[]){5};
    float x[6][NODE_WIDTH] = {{0}};
    mstar_tensors inputs;
    mstar_tensors_init(&inputs);
    mstar_tensor narrow = mstar_tensor_make(x, MSTAR_DTYPE_F32, 2, (int64_t[]){5, NODE_WIDTH - 1});
    CHECK_OK(mstar_tensors_add(&inputs, "x", &narrow));
    call.inputs = &inputs;
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "input \"x\"");
    mstar_tensors_release(&inputs);
    assert_int_equal(query(&b).refused, 2);
    (void)check_region(&b, &rng, (int64_t[]){5, 7}, 2, 2); /* still usable */
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed),
                                       cmocka_unit_test(test_views_and_copies),
                                       cmocka_unit_test(test_many_segments),
                                       cmocka_unit_test(test_batched),
                                       cmocka_unit_test(test_can_run_and_lease),
                                       cmocka_unit_test(test_every_call_fails_once),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
