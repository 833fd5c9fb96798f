/*
 * bench_attn_gpu.c - mstar bench attn on a GPU.
 *
 * Several sets of q, k, v and out lie in device memory, together past the second-level cache, and
 * run follows run from set to set in one captured graph. The device's own events time its replays;
 * the median replay over the runs in it is the figure. plan_us and replay_us are what the host
 * spends in one call; replays come in bursts of four, as the steps of a queue do.
 */
#include "bench_attn.h"

#include <stdlib.h>

#define CACHE_BYTES ((size_t)200 << 20) /* three times the largest cache of today's cards */
#define MAX_SETS 24
#define GRAPH_SECONDS 6e-3
#define REPLAYS 7
#define BURSTS 8 /* of calls whose time on the host is taken */
#define BURST 4

typedef struct gpu_bench {
    cli_attn_run run;
    mstar_device *device;
    mstar_dtype dtype;
    mstar_buffer *memory;
    mstar_event *start, *end;
    mstar_graph *graph;
    size_t q_bytes, kv_bytes, set_bytes; /* of one tensor, of a set */
    int64_t sets, runs;
} gpu_bench;

static int check(mstar_status status)
{
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}
#define TRY(expression)               \
    do {                              \
        int try_code_ = (expression); \
        if (try_code_ != CLI_OK)      \
            return try_code_;         \
    } while (0)

/* Tensors of one set; sets follow each other. */
static void use_set(gpu_bench *bench, int64_t set)
{
    const cli_attn_work *work = bench->run.work;
    int64_t q_shape[3] = {work->q_tokens, work->heads, work->dim};
    int64_t k_shape[3] = {work->kv_tokens, work->kv_heads, work->dim};
    char *at = (char *)mstar_buffer_get_data(bench->memory) + (size_t)set * bench->set_bytes;
    mstar_tensor *const tensors[] = {&bench->run.q, &bench->run.out, &bench->run.k, &bench->run.v};
    for (int i = 0; i < 4; i++) {
        *tensors[i] = mstar_tensor_make(at, bench->dtype, 3, i < 2 ? q_shape : k_shape);
        tensors[i]->device_kind = MSTAR_DEVICE_CUDA;
        at += i < 2 ? bench->q_bytes : bench->kv_bytes;
    }
}

static size_t on_256(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static int fill_memory(gpu_bench *bench)
{
    const cli_attn_work *work = bench->run.work;
    size_t width = mstar_dtype_bytes(bench->dtype) * (size_t)work->dim;
    bench->q_bytes = on_256((size_t)work->q_tokens * (size_t)work->heads * width);
    bench->kv_bytes = on_256((size_t)work->kv_tokens * (size_t)work->kv_heads * width);
    bench->set_bytes = 2 * (bench->q_bytes + bench->kv_bytes);
    bench->sets = (int64_t)(CACHE_BYTES / bench->set_bytes) + 2;
    bench->sets = bench->sets > MAX_SETS ? MAX_SETS : bench->sets;
    TRY(check(mstar_buffer_create(bench->device, (size_t)bench->sets * bench->set_bytes,
                                  &bench->memory)));
    void *host = malloc(bench->set_bytes);
    if (host == NULL)
        return cli_fail_memory("workload", bench->set_bytes);
    cli_bench_fill(host, bench->dtype, bench->set_bytes / mstar_dtype_bytes(bench->dtype), 7);
    int code = CLI_OK;
    for (int64_t set = 0; code == CLI_OK && set < bench->sets; set++)
        code = check(mstar_buffer_upload(bench->memory, bench->run.stream,
                                         (size_t)set * bench->set_bytes, host, bench->set_bytes));
    free(host);
    return code;
}

/* Seconds between two events around one call of work. */
static int timed(gpu_bench *bench, int (*work)(gpu_bench *), double *seconds)
{
    int64_t ns = 0;
    TRY(check(mstar_event_record(bench->start, bench->run.stream)));
    TRY(work(bench));
    TRY(check(mstar_event_record(bench->end, bench->run.stream)));
    TRY(check(mstar_event_synchronize(bench->end)));
    TRY(check(mstar_event_elapsed_ns(bench->start, bench->end, &ns)));
    *seconds = (double)ns * 1e-9;
    return CLI_OK;
}

static int run_first(gpu_bench *bench)
{
    use_set(bench, 0);
    return cli_attn_run_once(&bench->run);
}

static int replay(gpu_bench *bench)
{
    return check(mstar_graph_replay(bench->graph, bench->run.stream));
}

static int capture(gpu_bench *bench)
{
    TRY(check(mstar_graph_capture_begin(bench->run.stream)));
    for (int64_t i = 0; i < bench->runs; i++) {
        use_set(bench, i % bench->sets);
        int code = cli_attn_run_once(&bench->run);
        if (code != CLI_OK) {
            mstar_graph_capture_abort(bench->run.stream);
            return code;
        }
    }
    return check(mstar_graph_capture_end(bench->run.stream, &bench->graph));
}

static int measure(gpu_bench *bench, double *run_time, double *replay_time)
{
    double once = 0, times[REPLAYS], host[BURSTS * BURST];
    TRY(timed(bench, run_first, &once)); /* does not count: clocks and caches come up */
    TRY(timed(bench, run_first, &once));
    double runs = once > 0 ? GRAPH_SECONDS / once : 1;
    bench->runs = runs < 2 ? 2 : runs > MAX_SETS ? MAX_SETS : (int64_t)runs;
    TRY(capture(bench));
    TRY(timed(bench, replay, &once));
    for (int i = 0; i < REPLAYS; i++) {
        TRY(timed(bench, replay, &times[i]));
        times[i] /= (double)bench->runs;
    }
    /* a call right after a long wait finds the processor asleep, and is one of four */
    for (int i = 0; i < BURSTS * BURST; i++) {
        double before = cli_bench_now();
        TRY(replay(bench));
        host[i] = cli_bench_now() - before;
        if (i % BURST == BURST - 1)
            TRY(check(mstar_stream_synchronize(bench->run.stream)));
    }
    *run_time = cli_bench_median(times, REPLAYS);
    *replay_time = cli_bench_median(host, BURSTS * BURST);
    return CLI_OK;
}

static int bench_all(gpu_bench *bench, cli_report *report, json_t *row)
{
    double plan_time = 0, run_time = 0, replay_time = 0;
    int plans = 0;
    TRY(fill_memory(bench));
    TRY(check(mstar_event_create(bench->device, &bench->start)));
    TRY(check(mstar_event_create(bench->device, &bench->end)));
    TRY(cli_attn_create(bench->device, bench->dtype, &bench->run));
    TRY(cli_bench_time(cli_attn_plan_once, &bench->run, 20, 0.01, &plan_time, &plans));
    TRY(measure(bench, &run_time, &replay_time));
    cli_bench_put_text(report, row, "kernel", cli_attn_kernel(&bench->run));
    cli_bench_put_number(report, row, "us", run_time * 1e6);
    cli_bench_put_number(report, row, "gflops", bench->run.work->flops / run_time * 1e-9);
    cli_bench_put_number(report, row, "plan_us", plan_time * 1e6);
    cli_bench_put_number(report, row, "replay_us", replay_time * 1e6);
    cli_bench_put_integer(report, row, "runs", bench->runs);
    return CLI_OK;
}

int cli_bench_attn_gpu(cli_session *session, mstar_stream *stream, const cli_attn_work *work,
                       mstar_dtype dtype, cli_report *report, json_t *row)
{
    cli_attn_work graph_work = cli_attn_in_graph_mode(work); /* a graph holds no other runs */
    gpu_bench bench = {
        .run = {.work = &graph_work, .stream = stream}, .device = session->device, .dtype = dtype};
    int code = bench_all(&bench, report, row);
    mstar_graph_destroy(bench.graph);
    cli_attn_destroy(&bench.run);
    mstar_event_destroy(bench.start);
    mstar_event_destroy(bench.end);
    mstar_buffer_destroy(bench.memory);
    return code;
}
