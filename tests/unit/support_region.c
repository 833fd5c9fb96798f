/* support_region.c - see support_region.h. */
#include "support_region.h"

#include <string.h>

#include "graph/region.h"
#include "support_card.h"

static mstar_status ask(mstar_tensors *list, const char *name, int64_t rows, int64_t width)
{
    mstar_tensor tensor = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, width});
    return mstar_tensors_add(list, name, &tensor);
}

static mstar_status make_inputs(void *user, const mstar_capture_shape *shape, mstar_tensors *inputs)
{
    region_bench *b = user;
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
    const region_bench *b = user;
    mstar_status status = mstar_step_add_resource(step, "attn");
    if (status == MSTAR_OK && b->also != NULL)
        status = mstar_step_add_resource(step, b->also);
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

mstar_status region_bench_layer(region_bench *b, mstar_stream *stream, const mstar_tensor *x,
                                const mstar_tensor *qkv, const mstar_tensor *context,
                                const mstar_tensor *out, bool managed)
{
    mstar_tensor heads[4];
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
    region_bench *b = user;
    if (++b->calls_capture == b->fail_capture)
        return MSTAR_DEVICE_FAILED;
    b->served_early += mstar_region_runner_can_run(b->runner, 1, 1) == MSTAR_GRAPH_MISS_NONE;
    assert_ptr_equal(call->kwargs, b);
    assert_non_null(call->engine_inputs->lease);
    const mstar_tensor *qkv = mstar_tensors_find(call->static_inputs, "qkv");
    const mstar_tensor *given = mstar_tensors_find(call->static_inputs, "x");
    const mstar_tensor *work = mstar_tensors_find(call->static_inputs, "work");
    int64_t rows = qkv->shape[0];
    mstar_tensor x =
        mstar_tensor_make(given->data, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, NODE_WIDTH});
    mst_put_on_device(b->device, &x);
    TRY(region_bench_layer(b, call->engine_inputs->stream, &x, qkv,
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
    ((region_bench *)user)->leases_asked++;
    return count < 3;
}

void region_bench_open(region_bench *b, const int64_t *sizes, int64_t num_sizes, int64_t seq_len,
                       const int64_t *totals, int64_t num_totals)
{
    memset(b, 0, sizeof *b);
    b->device = level_open(2);
    CHECK_OK(mstar_stream_create(b->device, -1, &b->stream));
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

mstar_region_runner_desc region_bench_desc(const region_bench *b)
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

void region_bench_start(region_bench *b)
{
    mstar_region_runner_desc desc = region_bench_desc(b);
    CHECK_OK(mstar_region_runner_create(b->device, &desc, &b->runner));
    CHECK_OK(mstar_region_runner_prepare(b->runner));
    CHECK_OK(mstar_region_runner_capture(b->runner));
}

void region_bench_close(region_bench *b)
{
    mstar_region_runner_destroy(b->runner);
    mstar_piecewise_config_destroy(b->config);
    node_close(&b->node);
    mstar_stream_destroy(b->stream);
    level_close(b->device);
    assert_int_equal(check_live_allocations(), 0);
}

mstar_region_runner_info region_bench_query(const region_bench *b)
{
    mstar_region_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_region_runner_query(b->runner, &info));
    return info;
}

/* ---- eager twin ------------------------------------------------------------------------------ */

/* The layer over rows that lie in segments of these lengths, by plain calls. */
static void twin(region_bench *b, const int64_t *lengths, int64_t count, const float *rows,
                 float *out)
{
    static float none[1]; /* data of tensors without rows */
    int32_t offsets[64] = {0};
    for (int64_t i = 0; i < count; i++)
        offsets[i + 1] = offsets[i] + (int32_t)lengths[i];
    int64_t tokens = offsets[count];
    const int64_t widths[4] = {NODE_WIDTH, 3 * NODE_WIDTH, NODE_WIDTH, NODE_WIDTH};
    mstar_tensor t[4]; /* x, qkv, context, y */
    mstar_buffer *memory;
    size_t bytes = (size_t)tokens * 6 * NODE_WIDTH * sizeof(float), at = 0;
    CHECK_OK(mstar_buffer_create(b->device, bytes, &memory));
    char *data = mstar_buffer_get_data(memory);
    for (int i = 0; i < 4; i++) {
        t[i] = mstar_tensor_make(data != NULL ? data + at : (void *)none, MSTAR_DTYPE_F32, 2,
                                 (int64_t[]){tokens, widths[i]});
        mst_put_on_device(b->device, &t[i]);
        at += (size_t)(tokens * widths[i]) * sizeof(float);
    }
    size_t row_bytes = (size_t)tokens * NODE_WIDTH * sizeof(float);
    level_write(b->stream, t[0].data, rows, row_bytes);
    CHECK_OK(mstar_ragged_prefill_plan(b->node.eager, b->stream, offsets, count, 0));
    CHECK_OK(region_bench_layer(b, b->stream, &t[0], &t[1], &t[2], &t[3], false));
    level_read(b->stream, out, t[3].data, row_bytes);
    mstar_buffer_destroy(memory);
}

void region_bench_eager(region_bench *b, check_rng *rng, const int64_t *lengths, int64_t count,
                        region_rows *r)
{
    r->tokens = 0;
    for (int64_t i = 0; i < count; i++)
        r->tokens += lengths[i];
    for (int64_t i = 0; i < r->tokens; i++) {
        for (int64_t j = 0; j < NODE_WIDTH; j++)
            r->x[i][j] = (float)check_uniform(rng, -1, 1);
    }
    twin(b, lengths, count, r->x[0], r->want[0]);
}

/* The twin has the same bits for each segment alone. */
static void check_alone(region_bench *b, const int64_t *lengths, int64_t count,
                        const region_rows *r)
{
    int64_t first = 0;
    for (int64_t i = 0; i < count; first += lengths[i++]) {
        static float want[REGION_TOKENS][NODE_WIDTH];
        twin(b, &lengths[i], 1, r->x[first], want[0]);
        assert_memory_equal(want, r->want[first], (size_t)lengths[i] * sizeof want[0]);
    }
}

static void poison_buffer(mstar_stream *stream, mstar_buffer *buffer)
{
    level_fill(stream, mstar_buffer_get_data(buffer), 0xff, mstar_buffer_get_bytes(buffer));
}

static void poison(const region_bench *b)
{
    for (int64_t i = 0; i < b->runner->shapes.count * b->runner->num_slots; i++) {
        const mst_region_capture *capture = &b->runner->captures[i];
        poison_buffer(b->stream, capture->memory);
        poison_buffer(b->stream, capture->out);
    }
}

mstar_region_result region_bench_run(region_bench *b, const region_rows *r, const int64_t *lengths,
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

void region_bench_read(const region_bench *b, const mstar_tensor *tensor, void *rows)
{
    size_t bytes = sizeof(float);
    for (int32_t dim = 0; dim < tensor->rank; dim++)
        bytes *= (size_t)tensor->shape[dim];
    level_read(b->stream, rows, tensor->data, bytes);
}

const mstar_tensor *region_bench_check(region_bench *b, check_rng *rng, const int64_t *lengths,
                                       int64_t count, int64_t bs)
{
    static region_rows r;
    static float rows[REGION_TOKENS][NODE_WIDTH];
    region_bench_eager(b, rng, lengths, count, &r);
    check_alone(b, lengths, count, &r);
    poison(b);
    mstar_region_result result = region_bench_run(b, &r, lengths, count, bs);
    const mstar_tensor *y = mstar_tensors_find(result.outputs, "x");
    assert_int_equal(y->shape[0], b->seq_len > 0 ? bs : r.tokens);
    assert_int_equal(result.real_len, y->shape[0]);
    region_bench_read(b, y, rows);
    assert_memory_equal(rows, r.want, (size_t)r.tokens * sizeof r.want[0]);
    /* the input's tail is zero, whatever it was */
    const mst_region_capture *capture = NULL;
    for (int64_t i = 0; i < b->runner->shapes.count * b->runner->num_slots; i++) {
        const mst_region_capture *c = &b->runner->captures[i];
        if (c->lease.key.bs == result.bs && c->lease.key.num_tokens == result.total_tokens &&
            c->lease.slot == result.slot)
            capture = c;
    }
    assert_non_null(capture);
    region_bench_read(b, mstar_tensors_find(&capture->inputs, "x"), rows);
    for (int64_t i = r.tokens; i < result.total_tokens; i++)
        for (int64_t j = 0; j < NODE_WIDTH; j++)
            assert_true(rows[i][j] == 0);
    return y;
}
