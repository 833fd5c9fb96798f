/* bench_attn.h - one attention workload and the wrapper that runs it, for both kinds of device. */
#ifndef CLI_BENCH_ATTN_H
#define CLI_BENCH_ATTN_H

#include "bench.h"

typedef struct cli_attn_work {
    const char *name, *kind;
    const char *backend; /* NULL: auto */
    int causal;
    int32_t heads, kv_heads, dim;
    int64_t segments, q_tokens, kv_tokens;
    int64_t max_segments, max_tokens; /* graph mode's ceilings; 0: eager */
    int64_t max_kv_tokens;            /* -1: max_tokens */
    int32_t *q_cu, *kv_cu;
    double flops;
} cli_attn_work;

typedef struct cli_attn_run {
    const cli_attn_work *work;
    mstar_stream *stream;
    mstar_ragged_prefill *self;
    mstar_ragged_cross_prefill *cross;
    mstar_prefixed_prefill *prefixed;
    mstar_tensor q, k, v, out;
} cli_attn_run;

/* One workload of a file (see bench_attn.c) for a backend (NULL: auto); an exit code, a failure has
 * been told with path and name. To be released, failed or not; name and kind are the object's. */
int cli_attn_work_read(const cli_options *options, const json_t *object, cli_attn_work *work);
void cli_attn_work_release(cli_attn_work *work);
/* The same with ceilings that just hold it, where it has none. Shares the offsets. */
cli_attn_work cli_attn_in_graph_mode(const cli_attn_work *work);

/* Each answers with an exit code; a failure has been reported. context: a cli_attn_run. */
int cli_attn_create(mstar_device *device, mstar_dtype dtype, cli_attn_run *run);
/* The symbol of the kernel that a wrapper uses. */
const char *cli_attn_kernel(const cli_attn_run *run);
int cli_attn_plan_once(void *context);
int cli_attn_run_once(void *context);
void cli_attn_destroy(cli_attn_run *run);

/* bench_attn_gpu.c: one workload on a GPU, timed by the device's own events over a replayed graph
 * of runs that go through several sets of tensors, so that none is found in the cache. */
int cli_bench_attn_gpu(cli_session *session, mstar_stream *stream, const cli_attn_work *work,
                       mstar_dtype dtype, cli_report *report, json_t *row);

#endif
