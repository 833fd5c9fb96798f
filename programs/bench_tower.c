/*
 * bench_tower.c - mstar bench tower: whole stacks of encoder layers over the workloads of a file.
 *
 * A workload has name, layers, width, heads, head_dim, mlp, norm ("pre", "post"), activation (a
 * name of mstar_activation_name) and lens. A forward is captured once and replayed. us is what a
 * caller waits for one replay, from the call to the synchronised stream; eager_us the same for
 * plain calls; capture_us what recording one forward took. On a GPU device_us is a replay between
 * two of the device's events and replay_us what the host spends in the call. Before anything is
 * timed, the replay must give the bits of the plain calls; first and last are two of the numbers
 * that it gave: those of the first column in the first and in the last row.
 */
#include <stdlib.h>
#include <string.h>

#include "bench_problem.h"
#include "tower.h"

#define MAX_REPLAYS 64 /* of a GPU, timed by events */

typedef struct tower_bench {
    mstar_device *device;
    mstar_stream *stream;
    const cli_tower_config *config;
    cli_tower *tower;
    mstar_graph *graph;
    mstar_event *start, *end;
    double capture_time, eager_time, wall_time, device_time, host_time;
    int runs;
} tower_bench;

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

/* ---- the file -------------------------------------------------------------------------------- */

/* A whole number in [1, high], or the bench stops with the field's name. */
static int read_size(const char *path, const char *name, const json_t *object, const char *key,
                     int64_t high, int32_t *size)
{
    const json_t *value = json_object_get(object, key);
    int64_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 1 || number > high)
        return cli_fail(CLI_FAILED, "%s: workload %s: \"%s\" must be from 1 to %lld", path, name,
                        key, (long long)high);
    *size = (int32_t)number;
    return CLI_OK;
}

static int read_activation(const char *path, const char *name, const char *text,
                           mstar_activation *activation)
{
    for (int i = MSTAR_ACTIVATION_NONE; i <= MSTAR_ACTIVATION_SIGMOID; i++) {
        if (text != NULL && strcmp(text, mstar_activation_name((mstar_activation)i)) == 0) {
            *activation = (mstar_activation)i;
            return CLI_OK;
        }
    }
    return cli_problem_fail(path, name, "\"activation\" must be gelu, gelu_tanh, relu, silu, ...");
}

/* *cu is the caller's to free, failed or not. */
static int read_tower(const char *path, const json_t *object, cli_tower_config *config,
                      int32_t **cu)
{
    static const char *const keys[] = {"layers", "width", "heads", "head_dim", "mlp"};
    static const int64_t most[] = {1000, 65536, 4096, 256, 262144};
    int32_t *const sizes[] = {&config->layers, &config->width, &config->heads, &config->head_dim,
                              &config->mlp};
    const char *name = json_string_value(json_object_get(object, "name"));
    const char *norm = json_string_value(json_object_get(object, "norm"));
    const json_t *lens = json_object_get(object, "lens");
    if (name == NULL)
        return cli_problem_fail(path, "?", "it has no \"name\"");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        TRY(read_size(path, name, object, keys[i], most[i], sizes[i]));
    if (norm == NULL || (strcmp(norm, "pre") != 0 && strcmp(norm, "post") != 0))
        return cli_problem_fail(path, name, "\"norm\" must be pre or post");
    config->pre_norm = strcmp(norm, "pre") == 0;
    TRY(read_activation(path, name, json_string_value(json_object_get(object, "activation")),
                        &config->activation));
    if (!cli_problem_has_lengths(lens))
        return cli_problem_fail(path, name, "\"lens\" must be a list, or \"repeat\" and \"times\"");
    *cu = cli_problem_offsets(lens, &config->num_segments, &config->num_tokens);
    if (*cu == NULL || config->num_tokens == 0)
        return cli_problem_fail(path, name,
                                "its lengths are none, no whole numbers, negative or too large");
    config->cu = *cu;
    return CLI_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int run_eager(void *context)
{
    const tower_bench *bench = context;
    TRY(check(cli_tower_forward(bench->tower)));
    return check(mstar_stream_synchronize(bench->stream));
}

static int replay(void *context)
{
    const tower_bench *bench = context;
    TRY(check(mstar_graph_replay(bench->graph, bench->stream)));
    return check(mstar_stream_synchronize(bench->stream));
}

static int capture(tower_bench *bench)
{
    double before = cli_bench_now();
    TRY(check(mstar_graph_capture_begin(bench->stream)));
    mstar_status status = cli_tower_forward(bench->tower);
    if (status != MSTAR_OK) {
        int code = check(status);
        mstar_graph_capture_abort(bench->stream);
        return code;
    }
    TRY(check(mstar_graph_capture_end(bench->stream, &bench->graph)));
    bench->capture_time = cli_bench_now() - before;
    return CLI_OK;
}

static double element(const tower_bench *bench, const char *output, int64_t row)
{
    mstar_dtype dtype = bench->config->dtype;
    float value = 0;
    size_t at = (size_t)row * (size_t)bench->config->width * mstar_dtype_bytes(dtype);
    (void)mstar_convert(output + at, dtype, &value, MSTAR_DTYPE_F32, 1);
    return value;
}

/* Runs plain calls and a replay, whose outputs must be the same bits. */
static int compare(tower_bench *bench, char *eager, char *replayed, cli_report *report, json_t *row)
{
    size_t bytes = cli_tower_output_bytes(bench->config);
    TRY(run_eager(bench));
    TRY(check(cli_tower_read(bench->tower, eager)));
    TRY(capture(bench));
    TRY(replay(bench));
    TRY(check(cli_tower_read(bench->tower, replayed)));
    if (memcmp(eager, replayed, bytes) != 0)
        return cli_fail(CLI_INTERNAL, "a replay gave other bits than plain calls");
    cli_bench_put_number(report, row, "first", element(bench, eager, 0));
    cli_bench_put_number(report, row, "last", element(bench, eager, bench->config->num_tokens - 1));
    return CLI_OK;
}

static int verify(tower_bench *bench, cli_report *report, json_t *row)
{
    size_t bytes = cli_tower_output_bytes(bench->config);
    char *outputs = malloc(2 * bytes);
    if (outputs == NULL)
        return cli_fail_memory("outputs", 2 * bytes);
    int code = compare(bench, outputs, outputs + bytes, report, row);
    free(outputs);
    return code;
}

/* The device's own clock around replays, and the host's around the calls. */
static int time_device(tower_bench *bench)
{
    double device[MAX_REPLAYS], host[MAX_REPLAYS];
    int count = bench->runs < MAX_REPLAYS ? bench->runs : MAX_REPLAYS;
    TRY(check(mstar_event_create(bench->device, &bench->start)));
    TRY(check(mstar_event_create(bench->device, &bench->end)));
    for (int i = 0; i < count; i++) {
        int64_t ns = 0;
        TRY(check(mstar_event_record(bench->start, bench->stream)));
        double before = cli_bench_now();
        TRY(check(mstar_graph_replay(bench->graph, bench->stream)));
        host[i] = cli_bench_now() - before;
        TRY(check(mstar_event_record(bench->end, bench->stream)));
        TRY(check(mstar_event_synchronize(bench->end)));
        TRY(check(mstar_event_elapsed_ns(bench->start, bench->end, &ns)));
        device[i] = (double)ns * 1e-9;
    }
    bench->device_time = cli_bench_median(device, count);
    bench->host_time = cli_bench_median(host, count);
    return CLI_OK;
}

static int run_tower(tower_bench *bench, bool on_gpu, cli_report *report, json_t *row)
{
    int eager_runs;
    mstar_graph_info info = {.struct_size = sizeof info};
    TRY(cli_tower_open(bench->device, bench->stream, bench->config, &bench->tower));
    TRY(verify(bench, report, row));
    TRY(check(mstar_graph_query(bench->graph, &info)));
    TRY(cli_bench_time(run_eager, bench, 3, 0.3, &bench->eager_time, &eager_runs));
    TRY(cli_bench_time(replay, bench, 3, 1.0, &bench->wall_time, &bench->runs));
    if (on_gpu)
        TRY(time_device(bench));
    cli_bench_put_number(report, row, "us", bench->wall_time * 1e6);
    cli_bench_put_number(report, row, "gflops",
                         cli_tower_flops(bench->config) / bench->wall_time * 1e-9);
    cli_bench_put_number(report, row, "eager_us", bench->eager_time * 1e6);
    cli_bench_put_number(report, row, "capture_us", bench->capture_time * 1e6);
    if (on_gpu) {
        cli_bench_put_number(report, row, "device_us", bench->device_time * 1e6);
        cli_bench_put_number(report, row, "replay_us", bench->host_time * 1e6);
    }
    cli_bench_put_integer(report, row, "launches", info.nodes);
    cli_bench_put_integer(report, row, "runs", bench->runs);
    return CLI_OK;
}

static int bench_tower(cli_session *session, mstar_stream *stream, const cli_tower_config *config,
                       cli_report *report, json_t *row)
{
    tower_bench bench = {.device = session->device, .stream = stream, .config = config};
    int code = run_tower(&bench, session->machine.kind != MSTAR_DEVICE_CPU, report, row);
    mstar_event_destroy(bench.start);
    mstar_event_destroy(bench.end);
    mstar_graph_destroy(bench.graph);
    cli_tower_close(bench.tower);
    return code;
}

/* One row of the document; *peak grows. */
static int bench_workload(const cli_options *options, cli_session *session, mstar_stream *stream,
                          const json_t *object, cli_report *report, double *peak)
{
    cli_tower_config config = {.dtype = (mstar_dtype)options->dtype};
    int32_t *cu = NULL;
    int code = read_tower(options->workloads, object, &config, &cu);
    if (code == CLI_OK) {
        json_t *row = cli_bench_row(report);
        double now = session->machine.kind == MSTAR_DEVICE_CPU
                         ? cli_bench_peak(&session->machine, config.dtype)
                         : 0;
        *peak = now > *peak ? now : *peak;
        cli_bench_put_text(report, row, "name", json_string_value(json_object_get(object, "name")));
        cli_bench_put_integer(report, row, "tokens", config.num_tokens);
        if (cli_tower_flops(&config) > (double)options->max_gflop * 1e9)
            cli_bench_put_text(report, row, "skipped", "more work than --max-gflop");
        else
            code = bench_tower(session, stream, &config, report, row);
        cli_problem_put_peers(object, report, row);
    }
    free(cu);
    return code;
}

int cli_bench_tower(const cli_options *options)
{
    mstar_dtype dtype = (mstar_dtype)options->dtype;
    cli_session session = {0};
    cli_report report = {0};
    mstar_stream *stream = NULL;
    double peak = 0;
    json_t *list;
    int code = cli_problems_read(options, "tower", &list);
    if (code == CLI_OK)
        code = cli_session_open_named(&session, options->device, options->threads);
    if (code == CLI_OK)
        code = check(mstar_stream_create(session.device, -1, &stream));
    if (code == CLI_OK)
        cli_bench_start(&report, "tower", &session.machine, mstar_dtype_name(dtype));
    for (size_t i = 0; code == CLI_OK && i < json_array_size(list); i++)
        code = bench_workload(options, &session, stream, json_array_get(list, i), &report, &peak);
    if (code == CLI_OK)
        code = cli_bench_finish(&report, options, peak);
    else
        json_decref(report.root);
    mstar_stream_destroy(stream);
    cli_session_close(&session);
    json_decref(list);
    return code;
}
