/*
 * support_region.h - a region of the small encoder of support_node.h, for tests: the config and its
 * hooks, each of which can be made to fail at a chosen call, and a runner over them.
 */
#ifndef SUPPORT_REGION_H
#define SUPPORT_REGION_H

#include "support_node.h"

#include "mstar/region.h"

/*
 * The region is the first layer of the small encoder without its norm: x -> qkv -> self attention
 * -> projection and residual, with a ragged manager for the attention.
 */
typedef struct region_bench {
    mstar_device *device;
    mstar_stream *stream;
    node node;
    mstar_piecewise_config *config;
    mstar_region_runner *runner;
    int64_t seq_len; /* batched; 0: packed */
    int fail_inputs, fail_capture, calls_inputs, calls_capture;
    int leases_asked;
    int served_early; /* calls of the region's code that found a capture to serve it */
    const char *also; /* key of another resource that the region's steps touch; NULL: none */
} region_bench;

/* A device, a stream, a managed node and a config; seq_len 0: packed with these totals. */
void region_bench_open(region_bench *b, const int64_t *sizes, int64_t num_sizes, int64_t seq_len,
                       const int64_t *totals, int64_t num_totals);
/* Region "blocks" of node "tower". */
mstar_region_runner_desc region_bench_desc(const region_bench *b);
/* Creates, prepares, captures. */
void region_bench_start(region_bench *b);
/* Nothing may be left. */
void region_bench_close(region_bench *b);
mstar_region_runner_info region_bench_query(const region_bench *b);
/* The same launches for the region (manager) and for its eager twin (wrapper). */
mstar_status region_bench_layer(region_bench *b, mstar_stream *stream, const mstar_tensor *x,
                                const mstar_tensor *qkv, const mstar_tensor *context,
                                const mstar_tensor *out, bool managed);

/* Random rows of a step, and what the eager twin makes of them. */
enum { REGION_TOKENS = 1024 };
typedef struct region_rows {
    float x[REGION_TOKENS][NODE_WIDTH], want[REGION_TOKENS][NODE_WIDTH];
    int64_t tokens;
} region_rows;
void region_bench_eager(region_bench *b, check_rng *rng, const int64_t *lengths, int64_t count,
                        region_rows *r);
/* The runner over the same rows; at most four requests. */
mstar_region_result region_bench_run(region_bench *b, const region_rows *r, const int64_t *lengths,
                                     int64_t count, int64_t bs);
/* A compact f32 tensor of the region's device, copied to rows. */
void region_bench_read(const region_bench *b, const mstar_tensor *tensor, void *rows);
/* A run over poisoned buffers has the bits of the twin over the batch and over each segment alone,
 * and leaves zeros past the real rows. Returns the result. */
const mstar_tensor *region_bench_check(region_bench *b, check_rng *rng, const int64_t *lengths,
                                       int64_t count, int64_t bs);

#endif
