/*
 * worker_graphs.c - a worker's forwards captured once a bucket, and replayed.
 *
 * A worker's arena, ids and offsets never move, so a capture needs no static inputs and no scratch
 * of its own: it reads and writes the worker's memory, with the rows of a bucket and the live count
 * of the batch. What each bucket has beside the recorded launches is a graph-mode wrapper, whose
 * workspace is the worker's. Pooling and what follows it stay eager: they are a few launches whose
 * kinds depend on the call.
 */
#include <string.h>

#include "graph/graph.h"
#include "model/encoder.h"

struct mst_worker_graphs {
    const mst_bert_config *config;
    const mst_weights *weights;
    mst_worker *worker;
    const mstar_graph_config *buckets;
    mstar_graph_runner *runner;
    mstar_ragged_prefill **wrappers; /* one a token count of the config, ascending */
    const int64_t *tokens;
    int64_t num_tokens;
    mstar_node_input *inputs; /* of a step */
    int64_t *requests;
    int64_t max_requests;
    bool shared; /* by all threads, at times: the first worker's */
};

/* ---- which buckets --------------------------------------------------------------------------- */

/* Four steps an octave from here on, as a share of padding at most 1 in 8. */
#define SMALLEST_BUCKET 16
/* Texts of fewer tokens than this on average run eager: their batch would need a larger list. */
#define TOKENS_A_TEXT 4

int64_t mst_graph_buckets(int64_t max_tokens, const int64_t *given, int64_t num_given,
                          int64_t *tokens, int64_t capacity)
{
    int64_t count = 0, last = 0;
    for (int64_t next = 0; last < max_tokens; last = next) {
        if (num_given > 0) {
            next = max_tokens;
            for (int64_t i = 0; i < num_given; i++)
                next = given[i] > last ? mst_min_i64(next, given[i]) : next;
        } else {
            int64_t octave = SMALLEST_BUCKET;
            while (2 * octave <= last)
                octave *= 2;
            next = last == 0 ? SMALLEST_BUCKET : last + octave / 4;
        }
        next = mst_min_i64(next, max_tokens);
        if (count < capacity)
            tokens[count] = next;
        count++;
    }
    return count;
}

static mstar_status no_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    (void)user;
    (void)num_tokens;
    (void)input;
    return MSTAR_OK;
}

mstar_status mst_graph_config_open(int64_t max_tokens, const mstar_encoder_desc *asked,
                                   mstar_graph_config **config)
{
    const int64_t *given = asked->graph_tokens;
    int64_t num_given = asked->num_graph_tokens;
    int64_t count = mst_graph_buckets(max_tokens, given, num_given, NULL, 0);
    int64_t bs = mst_max_i64(1, max_tokens / TOKENS_A_TEXT);
    void *tokens;
    MST_TRY(mst_alloc_array(count, sizeof(int64_t), "bucket sizes", &tokens));
    (void)mst_graph_buckets(max_tokens, given, num_given, tokens, count);
    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "embed";
    desc.capture_batch_sizes = &bs;
    desc.num_capture_batch_sizes = 1;
    desc.capture_token_lengths = tokens;
    desc.num_capture_token_lengths = count;
    desc.make_node_input = no_input;
    desc.compile = asked->graph_compile;
    desc.compile_mode = asked->graph_compile_mode;
    mstar_status status = mstar_packed_graph_config_create(&desc, config);
    mst_free(tokens);
    return status;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static mstar_ragged_prefill *wrapper_of(const mst_worker_graphs *g, const mstar_lease *lease)
{
    if (lease == NULL)
        return g->worker->attention;
    int64_t i = 0;
    while (g->tokens[i] != lease->key.num_tokens)
        i++;
    return g->wrappers[i];
}

/* A dummy step: tokens of id 0, since choices by timing run it. */
static void fill_dummy(mst_worker *worker, const mstar_node_input *inputs, int64_t count)
{
    worker->offsets[0] = 0;
    for (int64_t i = 0; i < count; i++)
        worker->offsets[i + 1] = worker->offsets[i] + (int32_t)inputs[i].input_seq_len;
    size_t bytes = (size_t)worker->offsets[count] * sizeof(int32_t);
    memset(worker->ids, 0, bytes);
    memset(worker->type_ids, 0, bytes);
    memset(worker->positions, 0, bytes);
}

static mstar_status preprocess(void *user, const mstar_step_context *context,
                               const mstar_node_input *inputs, int64_t count,
                               mstar_tensors *tensors)
{
    mst_worker_graphs *g = user;
    int32_t *offsets = g->worker->offsets;
    (void)tensors;
    if (context->capturing) /* else the caller has filled them */
        fill_dummy(g->worker, inputs, count);
    int64_t time = mst_stage_start(g->worker);
    MST_TRY(mstar_ragged_prefill_plan(wrapper_of(g, context->lease), context->stream, offsets,
                                      context->num_requests, 0));
    (void)mst_stage_end(g->worker, MSTAR_STAGE_ATTENTION, time);
    return MSTAR_OK;
}

static mstar_status forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    mst_worker_graphs *g = user;
    (void)outputs; /* the hidden states are the worker's x */
    return mst_bert_run(g->config, g->weights, g->worker, wrapper_of(g, frame->context->lease),
                        frame->stream, frame->size.num_tokens);
}

/* ---- life ------------------------------------------------------------------------------------ */

static mstar_status open_wrappers(mstar_device *device, const mst_folder *folder, void *workspace,
                                  size_t workspace_bytes, mst_worker_graphs *g)
{
    void *memory;
    mstar_graph_config_info info = {.struct_size = sizeof info};
    MST_TRY(mstar_graph_config_query(g->buckets, &info));
    g->tokens = info.capture_token_lengths;
    MST_TRY(mst_alloc_array(info.num_capture_token_lengths, sizeof *g->wrappers,
                            "wrappers of buckets", &memory));
    g->wrappers = memory;
    mstar_ragged_prefill_desc desc;
    mst_worker_attention(folder, g->worker->dtype, &desc);
    desc.accelerator_graph = 1;
    for (; g->num_tokens < info.num_capture_token_lengths; g->num_tokens++) {
        desc.max_total_tokens = g->tokens[g->num_tokens];
        desc.max_num_segments = info.max_batch_size;
        MST_TRY(mstar_ragged_prefill_create(device, &desc, workspace, workspace_bytes,
                                            &g->wrappers[g->num_tokens]));
    }
    g->max_requests = g->tokens[g->num_tokens - 1];
    MST_TRY(mst_alloc_array(g->max_requests, sizeof *g->inputs, "inputs of a step", &memory));
    g->inputs = memory;
    MST_TRY(mst_alloc_array(g->max_requests, sizeof *g->requests, "requests of a step", &memory));
    g->requests = memory;
    for (int64_t i = 0; i < g->max_requests; i++)
        g->requests[i] = i;
    return MSTAR_OK;
}

/* like: another worker of the same size, whose forwards are cut as these; NULL for the first
 * worker, whose forwards all threads may share, and for the second. */
static mstar_status open_runner(mstar_device *device, const mst_worker_graphs *like,
                                mst_worker_graphs *g)
{
    mstar_node_hooks hooks;
    mstar_node_hooks_init(&hooks);
    hooks.preprocess = preprocess;
    hooks.forward = forward;
    mstar_graph_runner_desc desc;
    mstar_graph_runner_desc_init(&desc);
    desc.node = "encoder";
    desc.hooks = &hooks;
    desc.user = g;
    desc.configs = &g->buckets;
    desc.num_configs = 1;
    desc.num_slots = 1;
    desc.num_warmups = 0; /* kernels are chosen already, and nothing is compiled at a first run */
    desc.num_threads = g->shared ? -1 : 1;
    MST_TRY(mstar_graph_runner_create(device, &desc, &g->runner));
    if (like != NULL)
        mst_graph_runner_take_over(g->runner, like->runner);
    MST_TRY(mstar_graph_runner_prepare(g->runner));
    return mstar_graph_runner_capture(g->runner);
}

mstar_status mst_worker_graphs_open(mstar_device *device, const mst_folder *folder,
                                    const mst_weights *weights, const mstar_graph_config *buckets,
                                    void *workspace, size_t workspace_bytes,
                                    const mst_worker *workers, mst_worker *worker)
{
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_worker_graphs), "graphs of a worker", &memory));
    mst_worker_graphs *g = memory;
    g->config = &folder->config;
    g->weights = weights;
    g->worker = worker;
    g->buckets = buckets;
    g->shared = worker == workers;
    const mst_worker_graphs *like = worker - workers > 1 ? workers[1].graphs : NULL;
    mstar_status status = open_wrappers(device, folder, workspace, workspace_bytes, g);
    if (status == MSTAR_OK)
        status = open_runner(device, like, g);
    if (status != MSTAR_OK) {
        mst_worker_graphs_close(g);
        return status;
    }
    worker->graphs = g;
    return MSTAR_OK;
}

void mst_worker_graphs_close(mst_worker_graphs *graphs)
{
    if (graphs == NULL)
        return;
    mstar_graph_runner_destroy(graphs->runner);
    for (int64_t i = 0; i < graphs->num_tokens; i++)
        mstar_ragged_prefill_destroy(graphs->wrappers[i]);
    mst_free(graphs->wrappers);
    mst_free(graphs->inputs);
    mst_free(graphs->requests);
    mst_free(graphs);
}

/* ---- steps ----------------------------------------------------------------------------------- */

mstar_status mst_worker_graphs_forward(mst_worker_graphs *graphs, mstar_stream *stream,
                                       int64_t num_segments)
{
    const int32_t *offsets = graphs->worker->offsets;
    for (int64_t i = 0; i < num_segments; i++)
        graphs->inputs[i].input_seq_len = offsets[i + 1] - offsets[i];
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.walk = "embed";
    step.requests = graphs->requests;
    step.inputs = graphs->inputs;
    step.count = num_segments;
    step.stream = stream;
    mstar_runner_result result = {.struct_size = sizeof result};
    return mstar_graph_runner_step(graphs->runner, &step, &result);
}

/* Of the wrapper of one bucket, or of all for num_tokens -1. */
static mstar_status wrapper_bytes(const mst_worker_graphs *graphs, int64_t num_tokens,
                                  size_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < graphs->num_tokens; i++) {
        mstar_ragged_prefill_info info = {.struct_size = sizeof info};
        if (num_tokens >= 0 && graphs->tokens[i] != num_tokens)
            continue;
        MST_TRY(mstar_ragged_prefill_query(graphs->wrappers[i], &info));
        *bytes += info.plan_bytes;
    }
    return MSTAR_OK;
}

mstar_status mst_worker_graphs_bytes(const mst_worker_graphs *graphs, size_t *bytes)
{
    mstar_graph_runner_info runner = {.struct_size = sizeof runner};
    MST_TRY(mstar_graph_runner_query(graphs->runner, &runner));
    MST_TRY(wrapper_bytes(graphs, -1, bytes));
    *bytes += sizeof *graphs + runner.graph_bytes + runner.host_bytes;
    *bytes += (size_t)graphs->max_requests * (sizeof *graphs->inputs + sizeof *graphs->requests);
    return MSTAR_OK;
}

/* ---- of an encoder --------------------------------------------------------------------------- */

static void add_info(const mstar_graph_runner_info *one, mstar_graph_runner_info *sum)
{
    sum->num_slots = one->num_slots;
    sum->num_buckets += one->num_buckets;
    sum->num_captured += one->num_captured;
    sum->num_unaffordable += one->num_unaffordable;
    sum->num_failed += one->num_failed;
    sum->scratch_bytes += one->scratch_bytes;
    sum->static_input_bytes += one->static_input_bytes;
    sum->graph_bytes += one->graph_bytes;
    sum->driver_bytes += one->driver_bytes;
    sum->host_bytes += one->host_bytes;
    sum->eager_bytes += one->eager_bytes;
    sum->capture_ns += one->capture_ns;
    sum->replays += one->replays;
    sum->eager_steps += one->eager_steps;
    for (int i = 0; i < MSTAR_NUM_GRAPH_MISSES; i++)
        sum->misses[i] += one->misses[i];
    sum->replayed_tokens += one->replayed_tokens;
    sum->padding_tokens += one->padding_tokens;
    sum->eager_tokens += one->eager_tokens;
    sum->specialised += one->specialised;
    sum->tuned += one->tuned;
    sum->dropped_choices += one->dropped_choices;
    sum->tuning_ns += one->tuning_ns;
    sum->resource_bytes += one->resource_bytes;
    sum->total_bytes += one->total_bytes;
}

mstar_status mstar_encoder_query_graphs(const mstar_encoder *encoder, mstar_graph_runner_info *info)
{
    MST_TRY(mst_check_not_null("encoder", encoder));
    mstar_graph_runner_info sum = {.num_buckets = 0};
    for (int32_t i = 0; i < encoder->num_workers; i++) {
        mstar_graph_runner_info one = {.struct_size = sizeof one};
        if (encoder->workers[i].attention == NULL)
            continue; /* it only tokenises */
        if (encoder->workers[i].graphs == NULL)
            return mst_fail(MSTAR_OUT_OF_ORDER, "the encoder was loaded without desc.graphs");
        MST_TRY(mstar_graph_runner_query(encoder->workers[i].graphs->runner, &one));
        MST_TRY(wrapper_bytes(encoder->workers[i].graphs, -1, &one.resource_bytes));
        add_info(&one, &sum);
    }
    return mst_info_write("info", &sum, sizeof sum, info);
}

mstar_status mstar_encoder_query_graph_bucket(const mstar_encoder *encoder, int32_t worker,
                                              int64_t index, mstar_runner_bucket_info *info)
{
    MST_TRY(mst_check_not_null("encoder", encoder));
    MST_TRY(mst_check_range("worker", worker, 0, mst_encoder_forwarders(encoder) - 1));
    if (encoder->workers[worker].graphs == NULL)
        return mst_fail(MSTAR_OUT_OF_ORDER, "the encoder was loaded without desc.graphs");
    const mst_worker_graphs *graphs = encoder->workers[worker].graphs;
    mstar_runner_bucket_info full = {.struct_size = sizeof full};
    MST_TRY(mstar_graph_runner_query_bucket(graphs->runner, index, &full));
    MST_TRY(wrapper_bytes(graphs, full.size.num_tokens, &full.resource_bytes));
    return mst_info_write("info", &full, sizeof full, info);
}
