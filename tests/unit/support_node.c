/* support_node.c - a small encoder behind the runner's hooks. */
#include "support_node.h"

#include <string.h>

#include "graph/runner.h"
#include "support_card.h"

#define TRY(call)                 \
    do {                          \
        mstar_status s_ = (call); \
        if (s_ != MSTAR_OK)       \
            return s_;            \
    } while (0)

static void fill(check_rng *rng, float *values, int64_t count, double scale)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)check_uniform(rng, -scale, scale);
}

/* A tensor of own, where the device reads it. */
static mstar_tensor own_tensor(const node *n, const float *values, int32_t rank,
                               const int64_t *shape)
{
    mstar_tensor tensor =
        mstar_tensor_make((void *)(uintptr_t)values, MSTAR_DTYPE_F32, rank, shape);
    if (n->own_there == NULL)
        return tensor;
    tensor.data = (char *)mstar_buffer_get_data(n->own_there) +
                  ((const char *)values - (const char *)&n->own);
    mst_put_on_device(n->device, &tensor);
    return tensor;
}

static mstar_linear *make_linear(node *n, check_rng *rng, int64_t rows)
{
    static float weight[3 * NODE_WIDTH * NODE_WIDTH], bias[3 * NODE_WIDTH];
    fill(rng, weight, rows * NODE_WIDTH, 0.4);
    fill(rng, bias, rows, 0.1);
    mstar_tensor w = mstar_tensor_make(weight, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, NODE_WIDTH});
    mstar_tensor b = mstar_tensor_make(bias, MSTAR_DTYPE_F32, 1, &rows);
    const mstar_tensor *ws = &w, *bs = &b;
    mstar_linear *linear;
    CHECK_OK(mstar_linear_create(n->device, NULL, &ws, &bs, 1, &linear));
    return linear;
}

static mstar_ragged_prefill_desc attention_desc(void)
{
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = NODE_HEADS;
    desc.head_dim = NODE_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    return desc;
}

void node_open(node *n, mstar_device *device, uint64_t seed)
{
    check_rng rng = {seed};
    memset(n, 0, sizeof *n);
    n->device = device;
    for (int i = 0; i < NODE_LAYERS; i++) {
        n->qkv[i] = make_linear(n, &rng, 3 * NODE_WIDTH);
        n->out[i] = make_linear(n, &rng, NODE_WIDTH);
    }
    fill(&rng, n->own.words[0], NODE_WORDS * NODE_WIDTH, 1);
    fill(&rng, n->own.places[0], NODE_TOKENS * NODE_WIDTH, 1);
    fill(&rng, n->own.gain, NODE_WIDTH, 1);
    fill(&rng, n->own.shift, NODE_WIDTH, 1);
    if (device->backend->kind != MSTAR_DEVICE_CPU) {
        mstar_stream *stream;
        CHECK_OK(mstar_stream_create(device, 1, &stream));
        CHECK_OK(mstar_buffer_create(device, sizeof n->own, &n->own_there));
        level_write(stream, mstar_buffer_get_data(n->own_there), &n->own, sizeof n->own);
        mstar_stream_destroy(stream);
    }
    mstar_ragged_prefill_desc desc = attention_desc();
    CHECK_OK(mstar_ragged_prefill_create(device, &desc, NULL, 0, &n->eager));
}

void node_manage(node *n)
{
    mstar_ragged_manager_desc desc;
    mstar_ragged_manager_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = NODE_HEADS;
    desc.head_dim = NODE_DIM;
    desc.dtype = MSTAR_DTYPE_F32;
    mstar_resource resource;
    CHECK_OK(mstar_ragged_manager_create(n->device, &desc, &n->manager));
    CHECK_OK(mstar_ragged_manager_get_resource(n->manager, "attn", &resource));
    CHECK_OK(mstar_resources_create(&resource, 1, &n->resources));
}

void node_close(node *n)
{
    mstar_resources_destroy(n->resources);
    mstar_ragged_manager_destroy(n->manager);
    for (int i = 0; i < NODE_LAYERS; i++) {
        mstar_linear_destroy(n->qkv[i]);
        mstar_linear_destroy(n->out[i]);
    }
    for (int i = 0; i < n->num_wrappers; i++)
        mstar_ragged_prefill_destroy(n->wrappers[i].wrapper);
    mstar_ragged_prefill_destroy(n->eager);
    mstar_buffer_destroy(n->own_there);
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static mstar_status trip(int *calls, int at)
{
    return ++*calls == at ? MSTAR_DEVICE_FAILED : MSTAR_OK;
}

static mstar_status find_wrapper(node *n, const mstar_lease *lease, mstar_ragged_prefill **wrapper)
{
    *wrapper = n->eager;
    if (lease == NULL)
        return MSTAR_OK;
    for (int i = 0; i < n->num_wrappers; i++) {
        const node_wrapper *w = &n->wrappers[i];
        *wrapper = w->wrapper;
        if (w->bs == lease->key.bs && w->num_tokens == lease->key.num_tokens &&
            w->slot == lease->slot)
            return MSTAR_OK;
    }
    assert_true(n->num_wrappers < NODE_WRAPPERS);
    mstar_ragged_prefill_desc desc = attention_desc();
    desc.accelerator_graph = 1;
    desc.max_num_segments = lease->key.bs;
    desc.max_total_tokens = lease->key.num_tokens;
    TRY(mstar_ragged_prefill_create(n->device, &desc, NULL, 0, wrapper));
    n->wrappers[n->num_wrappers++] =
        (node_wrapper){lease->key.bs, lease->key.num_tokens, lease->slot, *wrapper};
    return MSTAR_OK;
}

static mstar_status declare(void *user, const mstar_step_context *context,
                            const mstar_node_input *inputs, int64_t count, mstar_step *step)
{
    node *n = user;
    TRY(trip(&n->calls.declare, n->fault.declare));
    TRY(mstar_step_add_resource(step, "attn"));
    TRY(mstar_step_set_causal(step, "attn", 0));
    if (n->also != NULL)
        TRY(mstar_step_add_resource(step, n->also));
    for (int64_t i = 0; i < count; i++)
        TRY(mstar_step_add_segment(step, NULL, context->padded_requests[i], NULL,
                                   (int32_t)inputs[i].input_seq_len));
    return MSTAR_OK;
}

static mstar_status preprocess(void *user, const mstar_step_context *context,
                               const mstar_node_input *inputs, int64_t count,
                               mstar_tensors *tensors)
{
    node *n = user;
    TRY(trip(&n->calls.preprocess, n->fault.preprocess));
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < inputs[i].input_seq_len; j++, tokens++) {
            n->ids[tokens] = ((const int32_t *)inputs[i].tensors[0].tensor.data)[j];
            n->positions[tokens] = (int32_t)j;
        }
        n->offsets[i + 1] = (int32_t)tokens;
    }
    if (n->manager == NULL) {
        mstar_ragged_prefill *wrapper;
        TRY(find_wrapper(n, context->lease, &wrapper));
        TRY(mstar_ragged_prefill_plan(wrapper, context->stream, n->offsets, count, 0));
    }
    int64_t borders = count + 1;
    mstar_tensor ids = mstar_tensor_make(n->ids, MSTAR_DTYPE_I32, 1, &tokens);
    mstar_tensor positions = mstar_tensor_make(n->positions, MSTAR_DTYPE_I32, 1, &tokens);
    mstar_tensor offsets = mstar_tensor_make(n->offsets, MSTAR_DTYPE_I32, 1, &borders);
    TRY(mstar_tensors_add(tensors, "ids", &ids));
    TRY(mstar_tensors_add(tensors, "positions", &positions));
    return mstar_tensors_add(tensors, "offsets", &offsets);
}

static mstar_status ask(mstar_tensors *scratch, const char *name, int64_t rows, int64_t width)
{
    mstar_tensor tensor = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, width});
    return mstar_tensors_add(scratch, name, &tensor);
}

static mstar_status lay_out(void *user, mstar_frame_size size, mstar_tensors *scratch)
{
    node *n = user;
    TRY(trip(&n->calls.lay_out, n->fault.lay_out));
    TRY(ask(scratch, "hidden", size.num_tokens, NODE_WIDTH));
    TRY(ask(scratch, "qkv", size.num_tokens, 3 * NODE_WIDTH));
    TRY(ask(scratch, "context", size.num_tokens, NODE_WIDTH));
    return ask(scratch, "pooled", size.bs, NODE_WIDTH);
}

static mstar_status layer(node *n, const mstar_frame *frame, mstar_ragged_prefill *attention, int i)
{
    const mstar_tensor *x = mstar_tensors_find(frame->scratch, "hidden");
    const mstar_tensor *qkv = mstar_tensors_find(frame->scratch, "qkv");
    const mstar_tensor *context = mstar_tensors_find(frame->scratch, "context");
    mstar_tensor heads[4];
    for (int part = 0; part < 3; part++) {
        TRY(mstar_tensor_slice(qkv, 1, part * NODE_WIDTH, NODE_WIDTH, &heads[part]));
        TRY(mstar_tensor_split_dim(&heads[part], 1, NODE_HEADS, NODE_DIM, &heads[part]));
    }
    TRY(mstar_tensor_split_dim(context, 1, NODE_HEADS, NODE_DIM, &heads[3]));
    int64_t width = NODE_WIDTH;
    mstar_tensor gain = own_tensor(n, n->own.gain, 1, &width);
    mstar_tensor shift = own_tensor(n, n->own.shift, 1, &width);
    TRY(mstar_linear_run(n->qkv[i], frame->stream, x, NULL, qkv));
    if (n->manager != NULL)
        TRY(mstar_ragged_manager_run(n->manager, frame->stream, NULL, &heads[0], &heads[1],
                                     &heads[2], &heads[3], NULL));
    else
        TRY(mstar_ragged_prefill_run(attention, frame->stream, &heads[0], &heads[1], &heads[2],
                                     &heads[3], NULL));
    TRY(mstar_linear_run(n->out[i], frame->stream, context, x, x));
    return mstar_layer_norm(frame->stream, x, NULL, &gain, &shift, 1e-5, x);
}

static mstar_status forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    node *n = user;
    if (frame->capturing || !n->fault.in_capture)
        TRY(trip(&n->calls.forward, n->fault.forward));
    mstar_ragged_prefill *attention = NULL;
    if (n->manager == NULL)
        TRY(find_wrapper(n, frame->context->lease, &attention));
    const mstar_tensor *x = mstar_tensors_find(frame->scratch, "hidden");
    const mstar_tensor *pooled = mstar_tensors_find(frame->scratch, "pooled");
    mstar_tensor words = own_tensor(n, n->own.words[0], 2, (int64_t[]){NODE_WORDS, NODE_WIDTH});
    mstar_tensor places = own_tensor(n, n->own.places[0], 2, (int64_t[]){NODE_TOKENS, NODE_WIDTH});
    const mstar_tensor *tables[2] = {&words, &places};
    const int32_t *ids[2] = {mstar_tensors_find(frame->inputs, "ids")->data,
                             mstar_tensors_find(frame->inputs, "positions")->data};
    TRY(mstar_embedding(frame->stream, tables, ids, 2, x));
    for (int i = 0; i < NODE_LAYERS; i++)
        TRY(layer(n, frame, attention, i));
    TRY(mstar_stream_set_rows(frame->stream, frame->num_requests));
    TRY(mstar_pooling_run(frame->stream, MSTAR_POOLING_MEAN, x,
                          mstar_tensors_find(frame->inputs, "offsets")->data, frame->size.bs, NULL,
                          pooled));
    TRY(mstar_stream_set_rows(frame->stream, frame->num_tokens));
    TRY(mstar_tensors_add(outputs, "hidden", x));
    return mstar_tensors_add(outputs, "pooled", pooled);
}

mstar_node_hooks node_hooks(const node *n)
{
    mstar_node_hooks hooks;
    mstar_node_hooks_init(&hooks);
    if (n->manager != NULL)
        hooks.declare = declare;
    hooks.preprocess = preprocess;
    hooks.lay_out = lay_out;
    hooks.forward = forward;
    return hooks;
}

mstar_status node_make_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    static int32_t ids[NODE_TOKENS];
    static mstar_named_tensor tensor;
    (void)user;
    for (int i = 0; i < NODE_TOKENS; i++)
        ids[i] = 1 + i % 7;
    tensor.name = "ids";
    tensor.tensor = mstar_tensor_make(ids, MSTAR_DTYPE_I32, 1, &num_tokens);
    input->input_seq_len = num_tokens;
    input->tensors = &tensor;
    input->num_tensors = 1;
    return MSTAR_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

void node_step_fill(node_step *step, check_rng *rng, const int64_t *lengths, int64_t count)
{
    int64_t at = 0;
    memset(step, 0, sizeof *step);
    step->count = count;
    for (int64_t i = 0; i < count; i++) {
        step->requests[i] = check_integer(rng, 0, 1000) * NODE_REQUESTS + i;
        step->tensors[i].name = "ids";
        step->tensors[i].tensor =
            mstar_tensor_make(step->ids + at, MSTAR_DTYPE_I32, 1, &lengths[i]);
        step->inputs[i] = (mstar_node_input){
            .input_seq_len = lengths[i], .tensors = &step->tensors[i], .num_tensors = 1};
        for (int64_t j = 0; j < lengths[i]; j++)
            step->ids[at++] = (int32_t)check_integer(rng, 0, NODE_WORDS - 1);
    }
}

static mstar_graph_miss run_range(mstar_graph_runner *runner, const char *walk,
                                  const node_step *step, int64_t first, int64_t count, int eager,
                                  float (*pooled)[NODE_WIDTH], float (*hidden)[NODE_WIDTH])
{
    mstar_runner_step request;
    mstar_runner_step_init(&request);
    request.walk = walk;
    request.eager = eager;
    request.requests = step->requests + first;
    request.inputs = step->inputs + first;
    request.count = count;
    mstar_runner_result result = {.struct_size = sizeof result};
    CHECK_OK(mstar_graph_runner_step(runner, &request, &result));
    if (count == 0)
        return result.miss;
    assert_int_equal(result.num_requests, count);
    const mstar_tensor *tensor = mstar_tensors_find(result.outputs, "pooled");
    assert_int_equal(tensor->shape[0], result.size.bs);
    mstar_stream *stream = mstar_graph_runner_get_stream(runner);
    level_read(stream, pooled, tensor->data, (size_t)count * sizeof *pooled);
    tensor = mstar_tensors_find(result.outputs, "hidden");
    assert_int_equal(tensor->shape[0], result.size.num_tokens);
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += request.inputs[i].input_seq_len;
    assert_int_equal(tokens, result.num_tokens);
    /* without a token the output may be a view of nothing */
    level_read(stream, hidden, tensor->data, (size_t)tokens * sizeof *hidden);
    return result.miss;
}

mstar_graph_miss node_run(mstar_graph_runner *runner, const char *walk, const node_step *step,
                          int eager, node_result *result)
{
    return run_range(runner, walk, step, 0, step->count, eager, result->pooled, result->hidden);
}

void node_run_alone(mstar_graph_runner *runner, const char *walk, const node_step *step,
                    node_result *result)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < step->count; i++) {
        (void)run_range(runner, walk, step, i, 1, 1, result->pooled + i, result->hidden + tokens);
        tokens += step->inputs[i].input_seq_len;
    }
}

void node_check_equal(const node_step *step, const node_result *a, const node_result *b)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < step->count; i++)
        tokens += step->inputs[i].input_seq_len;
    assert_memory_equal(a->pooled, b->pooled, (size_t)step->count * sizeof *a->pooled);
    assert_memory_equal(a->hidden, b->hidden, (size_t)tokens * sizeof *a->hidden);
}
