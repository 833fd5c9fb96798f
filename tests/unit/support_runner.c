/* support_runner.c - a runner over the small encoder of support_node.h. */
#include "support_runner.h"

#include <math.h>
#include <string.h>

#include "graph/runner.h"
#include "support_card.h"

const int64_t bench_lengths[3] = {16, 32, 64};
const int64_t bench_sizes[1] = {4};

mstar_graph_config *bench_packed(const char *walk, const int64_t *sizes, int64_t num_sizes,
                                 const int64_t *lengths, int64_t num_lengths)
{
    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = walk;
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = num_sizes;
    desc.capture_token_lengths = lengths;
    desc.num_capture_token_lengths = num_lengths;
    desc.make_node_input = node_make_input;
    mstar_graph_config *config;
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    return config;
}

mstar_graph_config *bench_batched(const char *walk, const int64_t *sizes, int64_t num_sizes,
                                  int64_t length)
{
    mstar_node_input single = {.input_seq_len = 0};
    CHECK_OK(node_make_input(NULL, length, &single));
    mstar_batched_graph_config_desc desc;
    mstar_batched_graph_config_desc_init(&desc);
    desc.capture_graph_walk = walk;
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = num_sizes;
    desc.single_request_inputs = &single;
    mstar_graph_config *config;
    CHECK_OK(mstar_batched_graph_config_create(&desc, &config));
    return config;
}

mstar_graph_runner_desc bench_desc(bench *b, const mstar_node_hooks *hooks)
{
    mstar_graph_runner_desc desc;
    mstar_graph_runner_desc_init(&desc);
    desc.node = "tiny";
    desc.hooks = hooks;
    desc.user = &b->node;
    desc.configs = b->configs;
    desc.num_configs = b->num_configs;
    desc.resources = b->node.resources;
    return desc;
}

/* A device, the node, and no configs yet. */
void bench_open(bench *b, int32_t threads)
{
    memset(b, 0, sizeof *b);
    b->device = level_open(threads);
    node_open(&b->node, b->device, 9);
}

void bench_start(bench *b, const mstar_graph_runner_desc *desc)
{
    CHECK_OK(mstar_graph_runner_create(b->device, desc, &b->runner));
    CHECK_OK(mstar_graph_runner_prepare(b->runner));
    CHECK_OK(mstar_graph_runner_capture(b->runner));
}

void bench_close(bench *b)
{
    mstar_graph_runner_destroy(b->runner);
    node_close(&b->node);
    for (int64_t i = 0; i < b->num_configs; i++)
        mstar_graph_config_destroy((mstar_graph_config *)(uintptr_t)b->configs[i]);
    level_close(b->device);
    assert_int_equal(check_live_allocations(), 0);
}

mstar_graph_runner_info bench_query(const bench *b)
{
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_runner_query(b->runner, &info));
    return info;
}

mstar_runner_bucket_info bench_query_bucket(const bench *b, int64_t index)
{
    mstar_runner_bucket_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_runner_query_bucket(b->runner, index, &info));
    return info;
}

/* What a replay must not read: NaN in all activations, ids outside every table past the real ones
 * (staging writes those that count). */
void bench_poison(bench *b)
{
    mstar_graph_runner *runner = b->runner;
    mstar_stream *stream = mstar_graph_runner_get_stream(runner);
    level_fill(stream, mstar_buffer_get_data(runner->pool), 0xff, runner->pool_bytes);
    for (int64_t i = 0; i < runner->num_configs; i++) {
        const mst_static_inputs *inputs = &runner->config_states[i].inputs;
        for (int64_t j = 0; j < inputs->count; j++) {
            if (inputs->items[j].buffer != NULL)
                level_fill(stream, inputs->items[j].data, 0x7f, inputs->items[j].bytes);
            else
                memset(inputs->items[j].data, 0x7f, inputs->items[j].bytes);
        }
    }
}

/* Replay, eager and alone give the same bits. */
void bench_check_step(bench *b, const char *walk, check_rng *rng, const int64_t *lengths,
                      int64_t count, mstar_graph_miss want)
{
    static node_step step;
    static node_result replayed, eager, alone;
    node_step_fill(&step, rng, lengths, count);
    bench_poison(b);
    assert_int_equal(node_run(b->runner, walk, &step, 0, &replayed), want);
    assert_int_equal(node_run(b->runner, walk, &step, 1, &eager), MSTAR_GRAPH_MISS_DISABLED);
    node_check_equal(&step, &replayed, &eager);
    node_run_alone(b->runner, walk, &step, &alone);
    node_check_equal(&step, &replayed, &alone);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < NODE_WIDTH; j++)
            assert_true(isfinite(replayed.pooled[i][j]));
    }
}

/* Opens a bench of three buckets with a fault, and captures. */
mstar_status bench_capture_with(bench *b, node_fault fault, int32_t slots, bool managed)
{
    bench_open(b, 1);
    if (managed)
        node_manage(&b->node);
    b->configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    b->num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b->node);
    mstar_graph_runner_desc desc = bench_desc(b, &hooks);
    desc.num_slots = slots;
    b->node.fault = fault;
    CHECK_OK(mstar_graph_runner_create(b->device, &desc, &b->runner));
    CHECK_OK(mstar_graph_runner_prepare(b->runner));
    mstar_status status = mstar_graph_runner_capture(b->runner);
    memset(&b->node.fault, 0, sizeof b->node.fault);
    return status;
}
