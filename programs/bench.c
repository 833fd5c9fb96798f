/*
 * bench.c - clock, medians and the document of the benches.
 *
 * The document is one JSON object: facts at the top, "peak_gflops", and "rows". Without --json the
 * same is printed as lines and one table.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double cli_bench_now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_bench_median(double *values, int count)
{
    if (count == 0)
        return 0;
    qsort(values, (size_t)count, sizeof values[0], compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

int cli_bench_time(cli_bench_work work, void *context, int min_runs, double seconds, double *median,
                   int *runs)
{
    enum { MAX_RUNS = 1000 };
    double *times = malloc(MAX_RUNS * sizeof *times);
    if (times == NULL)
        return cli_fail_memory("run times", MAX_RUNS * sizeof *times);
    int code = work(context);
    double start = cli_bench_now();
    double before = start;
    int count = 0;
    while (code == CLI_OK && count < MAX_RUNS && (count < min_runs || before - start < seconds)) {
        code = work(context);
        double after = cli_bench_now();
        times[count++] = after - before;
        before = after;
        if (cli_signal_pending() != 0)
            code = cli_stopped(0);
    }
    *median = cli_bench_median(times, count);
    *runs = count;
    free(times);
    return code;
}

void cli_bench_fill(void *data, mstar_dtype dtype, size_t count, uint64_t seed)
{
    enum { STEP = 256 };
    float values[STEP];
    size_t bytes = mstar_dtype_bytes(dtype);
    uint64_t state = seed * 2 + 1;
    for (size_t at = 0; at < count; at += STEP) {
        size_t n = count - at < STEP ? count - at : STEP;
        for (size_t i = 0; i < n; i++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            values[i] = (float)((double)(state >> 40) / (double)(1U << 23) - 1.0);
        }
        (void)mstar_convert(values, MSTAR_DTYPE_F32, (char *)data + at * bytes, dtype, n);
    }
}

void cli_bench_start(cli_report *report, const char *bench, const mstar_device_info *machine,
                     const char *dtype)
{
    cli_report_start(report);
    cli_report_text(report, NULL, "bench", bench);
    cli_report_text(report, NULL, "build", mstar_build_info());
    cli_report_text(report, NULL, "machine", machine->model);
    cli_report_text(report, NULL, "isa", machine->isa);
    cli_report_integer(report, NULL, "threads", machine->num_threads);
    cli_report_text(report, NULL, "dtype", dtype);
    cli_report_value(report, NULL, "rows", json_array());
}

json_t *cli_bench_row(cli_report *report)
{
    json_t *row = json_object();
    if (json_array_append_new(json_object_get(report->root, "rows"), row) != 0)
        report->failed = true;
    return row;
}

static void put(cli_report *report, json_t *row, const char *key, json_t *value)
{
    if (json_object_set_new(row, key, value) != 0)
        report->failed = true;
}

/* Rounded to 5 significant digits: more would be noise. */
void cli_bench_put_number(cli_report *report, json_t *row, const char *key, double value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%.5g", value);
    put(report, row, key, json_real(strtod(text, NULL)));
}

void cli_bench_put_integer(cli_report *report, json_t *row, const char *key, int64_t value)
{
    put(report, row, key, json_integer(value));
}

void cli_bench_put_text(cli_report *report, json_t *row, const char *key, const char *value)
{
    put(report, row, key, cli_report_string(value));
}

static void print_value(const json_t *value)
{
    if (json_is_string(value))
        (void)printf(" %14s", json_string_value(value));
    else if (json_is_integer(value))
        (void)printf(" %14lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        (void)printf(" %14.5g", json_real_value(value));
    else
        (void)printf(" %14s", "");
}

/* Columns are the keys of the first row; a row that lacks one leaves it blank. */
static void print_table(const json_t *rows)
{
    json_t *first = json_array_get(rows, 0);
    const char *key;
    json_t *value;
    json_object_foreach(first, key, value)(void) printf(" %14s", key);
    (void)printf("\n");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_object_foreach(first, key, value)
            print_value(json_object_get(json_array_get(rows, i), key));
        (void)printf("\n");
    }
}

/* The aligned lines of a report know texts and integers. */
static void show_numbers(cli_report *report, json_t *object)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value)
    {
        if (json_is_object(value))
            show_numbers(report, value);
        if (!json_is_real(value))
            continue;
        char text[32];
        (void)snprintf(text, sizeof text, "%.5g", json_real_value(value));
        cli_bench_put_text(report, object, key, text);
    }
}

int cli_bench_finish(cli_report *report, const cli_options *options, double peak_gflops)
{
    json_t *rows = json_object_get(report->root, "rows");
    for (size_t i = 0; i < json_array_size(rows) && peak_gflops > 0; i++) {
        json_t *row = json_array_get(rows, i);
        json_t *gflops = json_object_get(row, "gflops");
        if (gflops != NULL)
            cli_bench_put_number(report, row, "of_peak", json_number_value(gflops) / peak_gflops);
    }
    cli_bench_put_number(report, report->root, "peak_gflops", peak_gflops);
    if (options->json || report->failed)
        return cli_report_print(report, true);
    show_numbers(report, report->root);
    json_t *kept = json_incref(rows);
    (void)json_object_del(report->root, "rows");
    int code = cli_report_print(report, false);
    if (code == CLI_OK)
        print_table(kept);
    json_decref(kept);
    return fflush(stdout) == 0 ? code : cli_fail(CLI_IO_FAILED, "standard output: write failed");
}
