/*
 * bench_linear.c - mstar bench linear: packed products of every layer shape of MiniLM and bge-base,
 * from 1 to 2048 rows.
 *
 * A product can end no sooner than its multiply-adds at the measured peak, nor than its weights,
 * read once, at the measured speed of reads: the later of the two is its limit.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct product {
    const mstar_linear *linear;
    mstar_stream *stream;
    mstar_tensor x, out;
    int repeats; /* products of one timed run, so that it lasts some microseconds */
} product;

static int run_once(void *context)
{
    const product *run = context;
    for (int i = 0; i < run->repeats; i++) {
        mstar_status status = mstar_linear_run(run->linear, run->stream, &run->x, NULL, &run->out);
        if (status != MSTAR_OK)
            return cli_fail(cli_exit_code(status), "%s", mstar_last_error());
    }
    return CLI_OK;
}

static const int64_t shapes[][2] = {
    /* in_features, out_features: MiniLM, then bge-base */
    {384, 1152}, {384, 384}, {384, 1536}, {1536, 384},
    {768, 2304}, {768, 768}, {768, 3072}, {3072, 768},
};
static const int64_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  11,   12,
                                     14, 16, 24, 32, 48, 63, 64, 128, 256, 512, 1024, 2048};
enum {
    NUM_SHAPES = sizeof shapes / sizeof shapes[0],
    NUM_ROW_COUNTS = sizeof row_counts / sizeof row_counts[0],
    MAX_ROWS = 2048
};

/* What reading its weights takes at least, in the rows of one shape. */
static void put_read(cli_report *report, size_t first, double bytes, double gbps)
{
    const json_t *rows = cli_bench_rows(report);
    for (size_t i = first; i < json_array_size(rows) && gbps > 0; i++) {
        json_t *row = json_array_get(rows, i);
        cli_bench_put_number(report, row, "read_gbps", gbps);
        cli_bench_put_number(report, row, "read_us", bytes / gbps * 1e-3);
    }
}

/* The share of its limit that each row reaches, once the peak is known. */
static void put_limits(cli_report *report, double peak)
{
    const json_t *rows = cli_bench_rows(report);
    for (size_t i = 0; i < json_array_size(rows) && peak > 0; i++) {
        json_t *row = json_array_get(rows, i);
        double us = json_number_value(json_object_get(row, "us"));
        double gflops = json_number_value(json_object_get(row, "gflops"));
        double limit = us * gflops / peak;
        double read_us = json_number_value(json_object_get(row, "read_us"));
        cli_bench_put_number(report, row, "of_limit", (read_us > limit ? read_us : limit) / us);
    }
}

static int bench_shape(cli_session *session, mstar_stream *stream, const int64_t *shape,
                       mstar_dtype dtype, float *memory, cli_report *report, double *peak)
{
    int64_t k = shape[0], n = shape[1];
    float *x = memory;
    float *out = x + MAX_ROWS * k;
    float *w = out + MAX_ROWS * n;
    cli_bench_fill(x, MSTAR_DTYPE_F32, (size_t)(MAX_ROWS * k), 3);
    cli_bench_fill(w, MSTAR_DTYPE_F32, (size_t)(n * k), 5);
    int64_t weight_shape[2] = {n, k};
    mstar_tensor weight = mstar_tensor_make(w, MSTAR_DTYPE_F32, 2, weight_shape);
    const mstar_tensor *weights = &weight;
    mstar_linear_desc desc;
    mstar_linear_desc_init(&desc);
    desc.weight_dtype = dtype;
    mstar_linear *linear = NULL;
    if (mstar_linear_create(session->device, &desc, &weights, NULL, 1, &linear) != MSTAR_OK)
        return cli_fail(CLI_FAILED, "%s", mstar_last_error());
    double now = cli_bench_peak(&session->machine, dtype);
    *peak = now > *peak ? now : *peak;
    size_t bytes = (size_t)(n * k) * mstar_dtype_bytes(dtype);
    double gbps = cli_bench_read(&session->machine, w, bytes);
    size_t first = json_array_size(cli_bench_rows(report));
    int code = CLI_OK;
    for (int i = 0; i < NUM_ROW_COUNTS && code == CLI_OK; i++) {
        int64_t rows = row_counts[i];
        double flops = 2.0 * (double)rows * (double)k * (double)n;
        int64_t x_shape[2] = {rows, k}, out_shape[2] = {rows, n};
        product run = {.linear = linear,
                       .stream = stream,
                       .x = mstar_tensor_make(x, MSTAR_DTYPE_F32, 2, x_shape),
                       .out = mstar_tensor_make(out, MSTAR_DTYPE_F32, 2, out_shape),
                       .repeats = 1 + (int)(2e7 / flops)};
        double time = 0;
        int runs = 0;
        code = cli_bench_time(run_once, &run, 5, 0.1, &time, &runs);
        if (code != CLI_OK)
            break;
        char name[64];
        (void)snprintf(name, sizeof name, "%lldx%lld", (long long)k, (long long)n);
        json_t *row = cli_bench_row(report);
        cli_bench_put_text(report, row, "name", name);
        cli_bench_put_integer(report, row, "rows", rows);
        cli_bench_put_number(report, row, "us", time / run.repeats * 1e6);
        cli_bench_put_number(report, row, "gflops", flops * run.repeats / time * 1e-9);
        cli_bench_put_integer(report, row, "runs", runs);
    }
    double after = cli_bench_read(&session->machine, w, bytes);
    put_read(report, first, (double)bytes, after > gbps ? after : gbps);
    mstar_linear_destroy(linear);
    return code;
}

int cli_bench_linear(const cli_options *options)
{
    const size_t bytes = (size_t)(MAX_ROWS * (3072 + 3072) + 3072 * 3072) * sizeof(float);
    float *memory = malloc(bytes);
    if (memory == NULL)
        return cli_fail_memory("products", bytes);
    mstar_dtype dtype = (mstar_dtype)options->dtype;
    cli_session session = {0};
    cli_report report = {0};
    mstar_stream *stream = NULL;
    double peak = 0;
    int code = cli_session_open_device(&session, options->threads);
    if (code == CLI_OK && mstar_stream_create(session.device, -1, &stream) != MSTAR_OK)
        code = cli_fail(CLI_FAILED, "%s", mstar_last_error());
    if (code == CLI_OK)
        cli_bench_start(&report, "linear", &session.machine, mstar_dtype_name(dtype));
    for (int i = 0; i < NUM_SHAPES && code == CLI_OK; i++)
        code = bench_shape(&session, stream, shapes[i], dtype, memory, &report, &peak);
    if (code == CLI_OK) {
        put_limits(&report, peak);
        code = cli_bench_finish(&report, options, peak);
    } else {
        json_decref(report.root);
    }
    mstar_stream_destroy(stream);
    cli_session_close(&session);
    free(memory);
    return code;
}
