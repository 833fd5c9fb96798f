/*
 * bench.c - clock, medians and the document of the benches.
 *
 * The document is one JSON object: facts at the top, "peak_gflops", and "rows". Without --json the
 * same is printed as lines and one table.
 */
#include "bench_problem.h"

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

json_t *cli_bench_rows(const cli_report *report)
{
    return json_object_get(report->root, "rows");
}

json_t *cli_bench_row(cli_report *report)
{
    json_t *row = json_object();
    if (json_array_append_new(cli_bench_rows(report), row) != 0)
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

/* Columns are the keys of all rows, in the order in which they are met; a row that lacks one leaves
 * it blank. */
static void print_table(const json_t *rows)
{
    json_t *columns = json_object();
    const char *key;
    json_t *value;
    for (size_t i = 0; i < json_array_size(rows); i++)
        (void)json_object_update_missing(columns, json_array_get(rows, i));
    json_object_foreach(columns, key, value)(void) printf(" %14s", key);
    (void)printf("\n");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_object_foreach(columns, key, value)
            print_value(json_object_get(json_array_get(rows, i), key));
        (void)printf("\n");
    }
    json_decref(columns);
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

/* Rows as a table, without --json. */
static int print_document(cli_report *report, const cli_options *options)
{
    if (options->json || report->failed)
        return cli_report_print(report, true);
    show_numbers(report, report->root);
    json_t *rows = json_incref(cli_bench_rows(report));
    (void)json_object_del(report->root, "rows");
    int code = cli_report_print(report, false);
    if (code == CLI_OK)
        print_table(rows);
    json_decref(rows);
    return fflush(stdout) == 0 ? code : cli_fail(CLI_IO_FAILED, "standard output: write failed");
}

/* The exit code of --check-goals; one line says as many of the missed as it holds. */
static int judge_goals(const json_t *missed, int64_t goals)
{
    char list[1200] = "";
    size_t used = 0, count = json_array_size(missed);
    if (goals == 0)
        return cli_fail(CLI_FAILED, "no goals to check: no row has an accept_ figure");
    if (count == 0)
        return CLI_OK;
    for (size_t i = 0; i < count && used < sizeof list; i++) {
        int n = snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                         json_string_value(json_array_get(missed, i)));
        used += n > 0 ? (size_t)n : 0;
    }
    return cli_fail(CLI_FAILED, "%zu of %lld goals missed: %s", count, (long long)goals, list);
}

int cli_bench_finish(cli_report *report, const cli_options *options, double peak_gflops)
{
    json_t *rows = cli_bench_rows(report);
    json_t *missed = json_array();
    int64_t goals = 0;
    for (size_t i = 0; i < json_array_size(rows) && peak_gflops > 0; i++) {
        json_t *row = json_array_get(rows, i);
        json_t *gflops = json_object_get(row, "gflops");
        if (gflops != NULL)
            cli_bench_put_number(report, row, "of_peak", json_number_value(gflops) / peak_gflops);
    }
    cli_bench_put_number(report, report->root, "peak_gflops", peak_gflops);
    if (options->check_goals) {
        goals = cli_problem_check(rows, report, missed);
        cli_report_integer(report, NULL, "goals", goals);
        cli_report_value(report, NULL, "missed", json_incref(missed));
    }
    int code = print_document(report, options);
    if (code == CLI_OK && options->check_goals)
        code = judge_goals(missed, goals);
    json_decref(missed);
    return code;
}
