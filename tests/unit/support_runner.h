/*
 * support_runner.h - a runner over the small encoder of support_node.h: configs, opening, closing,
 * poisoned memory, and the check that replayed, eager and alone give the same bits.
 */
#ifndef SUPPORT_RUNNER_H
#define SUPPORT_RUNNER_H

#include "support_node.h"

typedef struct bench {
    mstar_device *device;
    node node;
    const mstar_graph_config *configs[3];
    int64_t num_configs;
    mstar_graph_runner *runner;
} bench;

mstar_graph_config *bench_packed(const char *walk, const int64_t *sizes, int64_t num_sizes,
                                 const int64_t *lengths, int64_t num_lengths);
mstar_graph_config *bench_batched(const char *walk, const int64_t *sizes, int64_t num_sizes,
                                  int64_t length);
/* A device, the node, and no configs yet. */
void bench_open(bench *b, int32_t threads);
mstar_graph_runner_desc bench_desc(bench *b, const mstar_node_hooks *hooks);
/* Creates, prepares, captures. */
void bench_start(bench *b, const mstar_graph_runner_desc *desc);
/* Nothing may be left. */
void bench_close(bench *b);
mstar_graph_runner_info bench_query(const bench *b);
mstar_runner_bucket_info bench_query_bucket(const bench *b, int64_t index);

/* What a replay must not read: NaN in all activations, ids outside every table past the real ones
 * (staging writes those that count). */
void bench_poison(bench *b);
/* Replay, eager and alone give the same bits; want: why it is not replayed. */
void bench_check_step(bench *b, const char *walk, check_rng *rng, const int64_t *lengths,
                      int64_t count, mstar_graph_miss want);

/*
 * Opens a bench of three packed buckets of four requests, 16, 32 and 64 tokens under walk "w", with
 * a fault that is taken away after the capture, whose status is returned.
 */
mstar_status bench_capture_with(bench *b, node_fault fault, int32_t slots, bool managed);
extern const int64_t bench_lengths[3];
extern const int64_t bench_sizes[1];

#endif
