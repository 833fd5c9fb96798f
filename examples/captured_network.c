/*
 * captured_network.c - a network of one's own behind the runner: two layers, the second with a
 * cross attention region over a memory that each request brings, captured once a bucket and
 * replayed.
 *
 * The author writes four functions (declare, preprocess, lay_out, forward) and says with a config
 * which buckets to capture. Attention is planned by two managers, which declare names; everything
 * that a forward works in is asked for by lay_out. The end of main runs every step replayed and
 * eager and compares the bits.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "mstar.h"

enum {
    WIDTH = 32,
    HEADS = 4,
    DIM = WIDTH / HEADS,
    WORDS = 100,
    MOST_TOKENS = 64, /* of a step */
    MOST_MEMORY = 64, /* rows of memory of a step: as many as tokens, here */
    MOST_REQUESTS = 4
};

#define TRY(call)                      \
    do {                               \
        mstar_status status_ = (call); \
        if (status_ != MSTAR_OK)       \
            return status_;            \
    } while (0)

typedef struct network {
    mstar_device *device;
    float words[WORDS][WIDTH];
    mstar_linear *qkv, *out;                      /* self attention */
    mstar_linear *cross_q, *cross_kv, *cross_out; /* the region */
    mstar_ragged_manager *self, *cross;
    mstar_resources *resources;
    /* of the step in hand, before they are copied to the static inputs */
    int32_t ids[MOST_TOKENS], offsets[MOST_REQUESTS + 1];
    float memory[MOST_MEMORY][WIDTH];
} network;

/* What a request brings: ids, and as many rows of memory. */
typedef struct request {
    int32_t ids[MOST_TOKENS];
    float memory[MOST_MEMORY][WIDTH];
} request;

/* ---- the four functions ---------------------------------------------------------------------- */

static mstar_status declare(void *user, const mstar_step_context *context,
                            const mstar_node_input *inputs, int64_t count, mstar_step *step)
{
    (void)user;
    TRY(mstar_step_add_resource(step, "self"));
    TRY(mstar_step_set_causal(step, "self", 0));
    TRY(mstar_step_add_resource(step, "cross"));
    for (int64_t i = 0; i < count; i++) {
        int32_t span = (int32_t)inputs[i].input_seq_len;
        int64_t handle = context->padded_requests[i];
        TRY(mstar_step_add_segment(step, "self", handle, NULL, span));
        TRY(mstar_step_add_segment(step, "cross", handle, "tokens", span));
    }
    for (int64_t i = 0; i < count; i++) /* the memory is as long as the text */
        TRY(mstar_step_add_segment(step, "cross", context->padded_requests[i], "memory",
                                   (int32_t)inputs[i].input_seq_len));
    return mstar_step_add_pair(step, "cross", "tokens", "memory");
}

static mstar_status preprocess(void *user, const mstar_step_context *context,
                               const mstar_node_input *inputs, int64_t count,
                               mstar_tensors *tensors)
{
    network *net = user;
    int64_t tokens = 0;
    (void)context;
    for (int64_t i = 0; i < count; i++) {
        const request *r = inputs[i].user;
        int64_t length = inputs[i].input_seq_len;
        if (length > 0) {
            memcpy(net->ids + tokens, r->ids, (size_t)length * sizeof *r->ids);
            memcpy(net->memory + tokens, r->memory, (size_t)length * sizeof *r->memory);
        }
        tokens += length;
        net->offsets[i + 1] = (int32_t)tokens;
    }
    mstar_tensor ids = mstar_tensor_make(net->ids, MSTAR_DTYPE_I32, 1, &tokens);
    mstar_tensor memory =
        mstar_tensor_make(net->memory, MSTAR_DTYPE_F32, 2, (int64_t[]){tokens, WIDTH});
    mstar_tensor offsets =
        mstar_tensor_make(net->offsets, MSTAR_DTYPE_I32, 1, (int64_t[]){count + 1});
    TRY(mstar_tensors_add(tensors, "ids", &ids));
    TRY(mstar_tensors_add(tensors, "memory", &memory));
    return mstar_tensors_add(tensors, "offsets", &offsets);
}

static mstar_status ask(mstar_tensors *scratch, const char *name, int64_t rows, int64_t width)
{
    mstar_tensor tensor = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, width});
    return mstar_tensors_add(scratch, name, &tensor);
}

static mstar_status lay_out(void *user, mstar_frame_size size, mstar_tensors *scratch)
{
    (void)user;
    TRY(ask(scratch, "x", size.num_tokens, WIDTH));
    TRY(ask(scratch, "wide", size.num_tokens, 3 * WIDTH)); /* qkv, later q and kv */
    TRY(ask(scratch, "context", size.num_tokens, WIDTH));
    return ask(scratch, "vectors", size.bs, WIDTH);
}

/* Columns [first, first + WIDTH) as heads. */
static mstar_status heads_of(const mstar_tensor *rows, int64_t first, mstar_tensor *heads)
{
    TRY(mstar_tensor_slice(rows, 1, first, WIDTH, heads));
    return mstar_tensor_split_dim(heads, 1, HEADS, DIM, heads);
}

static mstar_status forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    network *net = user;
    mstar_stream *stream = frame->stream;
    const mstar_tensor *x = mstar_tensors_find(frame->scratch, "x");
    const mstar_tensor *wide = mstar_tensors_find(frame->scratch, "wide");
    const mstar_tensor *context = mstar_tensors_find(frame->scratch, "context");
    const mstar_tensor *vectors = mstar_tensors_find(frame->scratch, "vectors");
    const mstar_tensor *memory = mstar_tensors_find(frame->inputs, "memory");
    const int32_t *ids = mstar_tensors_find(frame->inputs, "ids")->data;
    mstar_tensor words =
        mstar_tensor_make(net->words, MSTAR_DTYPE_F32, 2, (int64_t[]){WORDS, WIDTH});
    const mstar_tensor *table = &words;
    mstar_tensor part[3], kv, q, c;
    TRY(heads_of(context, 0, &c));
    TRY(mstar_embedding(stream, &table, &ids, 1, x));
    /* layer 1: self attention */
    for (int i = 0; i < 3; i++)
        TRY(heads_of(wide, i * WIDTH, &part[i]));
    TRY(mstar_linear_run(net->qkv, stream, x, NULL, wide));
    TRY(mstar_ragged_manager_run(net->self, stream, NULL, &part[0], &part[1], &part[2], &c, NULL));
    TRY(mstar_linear_run(net->out, stream, context, x, x));
    /* layer 2: cross attention, each request over its own memory */
    TRY(mstar_tensor_slice(wide, 1, 0, WIDTH, &q));
    TRY(mstar_tensor_slice(wide, 1, WIDTH, 2 * WIDTH, &kv));
    TRY(mstar_linear_run(net->cross_q, stream, x, NULL, &q));
    TRY(mstar_linear_run(net->cross_kv, stream, memory, NULL, &kv));
    TRY(mstar_ragged_manager_run(net->cross, stream, NULL, &part[0], &part[1], &part[2], &c, NULL));
    TRY(mstar_linear_run(net->cross_out, stream, context, x, x));
    /* one vector a request: these operations count requests */
    TRY(mstar_stream_set_rows(stream, frame->num_requests));
    TRY(mstar_pooling_run(stream, MSTAR_POOLING_MEAN, x,
                          mstar_tensors_find(frame->inputs, "offsets")->data, frame->size.bs, NULL,
                          vectors));
    TRY(mstar_normalize(stream, vectors, vectors));
    TRY(mstar_stream_set_rows(stream, frame->num_tokens));
    return mstar_tensors_add(outputs, "vectors", vectors);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static uint32_t seed = 1;
static float any(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-33f;
}

static mstar_status make_linear(network *net, int64_t rows, mstar_linear **linear)
{
    static float weight[3 * WIDTH * WIDTH];
    for (int64_t i = 0; i < rows * WIDTH; i++)
        weight[i] = any();
    mstar_tensor w = mstar_tensor_make(weight, MSTAR_DTYPE_F32, 2, (int64_t[]){rows, WIDTH});
    const mstar_tensor *weights = &w, *none = NULL;
    return mstar_linear_create(net->device, NULL, &weights, &none, 1, linear);
}

static mstar_status make_managers(network *net)
{
    mstar_resource list[2];
    mstar_ragged_manager_desc desc;
    mstar_ragged_manager_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = HEADS;
    desc.head_dim = DIM;
    desc.dtype = MSTAR_DTYPE_F32;
    TRY(mstar_ragged_manager_create(net->device, &desc, &net->self));
    desc.kind = MSTAR_RAGGED_CROSS;
    TRY(mstar_ragged_manager_create(net->device, &desc, &net->cross));
    TRY(mstar_ragged_manager_get_resource(net->self, "self", &list[0]));
    TRY(mstar_ragged_manager_get_resource(net->cross, "cross", &list[1]));
    return mstar_resources_create(list, 2, &net->resources);
}

static mstar_status open_network(network *net)
{
    memset(net, 0, sizeof *net);
    TRY(mstar_device_open("cpu", NULL, &net->device));
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WIDTH; j++)
            net->words[i][j] = any();
    TRY(make_linear(net, 3 * WIDTH, &net->qkv));
    TRY(make_linear(net, WIDTH, &net->out));
    TRY(make_linear(net, WIDTH, &net->cross_q));
    TRY(make_linear(net, 2 * WIDTH, &net->cross_kv));
    TRY(make_linear(net, WIDTH, &net->cross_out));
    return make_managers(net);
}

static void close_network(network *net)
{
    mstar_resources_destroy(net->resources);
    mstar_ragged_manager_destroy(net->cross);
    mstar_ragged_manager_destroy(net->self);
    mstar_linear_destroy(net->cross_out);
    mstar_linear_destroy(net->cross_kv);
    mstar_linear_destroy(net->cross_q);
    mstar_linear_destroy(net->out);
    mstar_linear_destroy(net->qkv);
    if (net->device != NULL)
        (void)mstar_device_close(net->device);
}

/* The dummy request of a capture, and with 0 tokens the row that pads a step. */
static mstar_status make_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    static request dummy; /* word 0 throughout */
    (void)user;
    input->input_seq_len = num_tokens;
    input->user = &dummy;
    return MSTAR_OK;
}

static mstar_status open_runner(network *net, const mstar_graph_config *const *config,
                                mstar_graph_runner **runner)
{
    mstar_node_hooks hooks;
    mstar_node_hooks_init(&hooks);
    hooks.declare = declare;
    hooks.preprocess = preprocess;
    hooks.lay_out = lay_out;
    hooks.forward = forward;
    mstar_graph_runner_desc desc;
    mstar_graph_runner_desc_init(&desc);
    desc.node = "network";
    desc.hooks = &hooks;
    desc.user = net;
    desc.configs = config;
    desc.num_configs = 1;
    desc.resources = net->resources;
    TRY(mstar_graph_runner_create(net->device, &desc, runner));
    TRY(mstar_graph_runner_prepare(*runner));
    return mstar_graph_runner_capture(*runner);
}

/* Replayed and eager give the same bits, or BAD_DATA. */
static mstar_status run_step(mstar_graph_runner *runner, const int64_t *lengths, int64_t count)
{
    static request requests[MOST_REQUESTS];
    static float replayed[MOST_REQUESTS][WIDTH];
    int64_t handles[MOST_REQUESTS];
    mstar_node_input inputs[MOST_REQUESTS];
    memset(inputs, 0, sizeof inputs);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < lengths[i]; j++) {
            requests[i].ids[j] = (int32_t)((i * 31 + j * 7) % WORDS);
            for (int64_t k = 0; k < WIDTH; k++)
                requests[i].memory[j][k] = any();
        }
        handles[i] = i;
        inputs[i].input_seq_len = lengths[i];
        inputs[i].user = &requests[i];
    }
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.walk = "encode";
    step.requests = handles;
    step.inputs = inputs;
    step.count = count;
    mstar_runner_result result = {.struct_size = sizeof result};
    size_t bytes = (size_t)count * sizeof replayed[0];
    TRY(mstar_graph_runner_step(runner, &step, &result));
    memcpy(replayed, mstar_tensors_find(result.outputs, "vectors")->data, bytes);
    printf("%lld requests, %lld tokens: %s", (long long)count, (long long)result.num_tokens,
           result.miss == MSTAR_GRAPH_MISS_NONE ? "replayed" : mstar_graph_miss_text(result.miss));
    step.eager = 1;
    TRY(mstar_graph_runner_step(runner, &step, &result));
    bool same = memcmp(replayed, mstar_tensors_find(result.outputs, "vectors")->data, bytes) == 0;
    printf(", %s\n", same ? "the bits of eager" : "OTHER BITS THAN EAGER");
    return same ? MSTAR_OK : MSTAR_BAD_DATA;
}

static mstar_status run_all(network *net, mstar_graph_config **config, mstar_graph_runner **runner)
{
    static const int64_t sizes[] = {MOST_REQUESTS}, tokens[] = {16, 32, 48};
    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "encode";
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = 1;
    desc.capture_token_lengths = tokens;
    desc.num_capture_token_lengths = 3;
    desc.make_node_input = make_input;
    TRY(open_network(net));
    TRY(mstar_packed_graph_config_create(&desc, config));
    TRY(open_runner(net, (const mstar_graph_config *const *)config, runner));
    TRY(run_step(*runner, (int64_t[]){12, 20, 9, 7}, 4));
    TRY(run_step(*runner, (int64_t[]){3}, 1));
    TRY(run_step(*runner, (int64_t[]){16, 0, 15}, 3));
    TRY(run_step(*runner, (int64_t[]){30, 30}, 2)); /* more than any bucket: eager */
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    TRY(mstar_graph_runner_query(*runner, &info));
    printf("%lld buckets captured, %lld replays, %zu bytes of scratch\n",
           (long long)info.num_captured, (long long)info.replays, info.scratch_bytes);
    return MSTAR_OK;
}

int main(void)
{
    static network net;
    mstar_graph_config *config = NULL;
    mstar_graph_runner *runner = NULL;
    mstar_status status = run_all(&net, &config, &runner);
    if (status != MSTAR_OK)
        fprintf(stderr, "%s: %s\n", mstar_status_text(status), mstar_last_error());
    mstar_graph_runner_destroy(runner);
    mstar_graph_config_destroy(config);
    close_network(&net);
    return status == MSTAR_OK ? 0 : 1;
}
