/*
 * bench.h - what the benches of `mstar bench` share: the clock, medians, the machine's own peak,
 * numbers to work on, and the document that all of them print.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "options.h"
#include "report.h"
#include "session.h"

/* Seconds on a clock that never goes back. */
double cli_bench_now(void);
/* Sorts the values; 0 for none. */
double cli_bench_median(double *values, int count);

/*
 * Runs work(context) once to warm up, then at least min_runs times and until seconds have passed
 * (at most 1000 times); the median of the runs in seconds. A failure's exit code, or CLI_OK.
 */
typedef int (*cli_bench_work)(void *context);
int cli_bench_time(cli_bench_work work, void *context, int min_runs, double seconds, double *median,
                   int *runs);

/*
 * GFLOP/s of a loop of independent multiply-adds on registers, on all threads at once: the ceiling
 * of this machine for this ISA level, f32 or bf16 pairs. 0 where the level has no such instruction.
 * Each call measures for about 0.1 s; callers ask before, between and after, and keep the largest.
 */
double cli_bench_peak(const mstar_device_info *machine, mstar_dtype dtype);

/* Sum over all threads of what rate(context, index, count) returns, all at about the same time. */
typedef double (*cli_bench_rate)(const void *context, int index, int count);
double cli_bench_all_threads(int threads, cli_bench_rate rate, const void *context);

/*
 * GB/s at which all threads together read `bytes` bytes, each a part of its own over and over, from
 * whatever cache or memory holds them then: no product whose weights take as many bytes can read
 * them faster. The best of three measurements of 0.01 s; callers ask before and after.
 */
double cli_bench_read(const mstar_device_info *machine, const void *data, size_t bytes);

/* Fills with values in (-1, 1) that depend on the seed alone. */
void cli_bench_fill(void *data, mstar_dtype dtype, size_t count, uint64_t seed);

/* Opens the document: bench, commit and build, machine, ISA, threads, dtype. */
void cli_bench_start(cli_report *report, const char *bench, const mstar_device_info *machine,
                     const char *dtype);
/* The document's "rows". */
json_t *cli_bench_rows(const cli_report *report);
/* A new row of them. */
json_t *cli_bench_row(cli_report *report);
void cli_bench_put_number(cli_report *report, json_t *row, const char *key, double value);
void cli_bench_put_integer(cli_report *report, json_t *row, const char *key, int64_t value);
void cli_bench_put_text(cli_report *report, json_t *row, const char *key, const char *value);
/* Adds of_peak to every row that has gflops, prints (rows as a table without --json), frees. With
 * --check-goals CLI_FAILED after it where a row misses what its file accepts. */
int cli_bench_finish(cli_report *report, const cli_options *options, double peak_gflops);

/* bench_attn.c, bench_plan.c, bench_linear.c, bench_embed.c, bench_replay.c, bench_tower.c,
 * bench_graphs.c */
int cli_bench_attn(const cli_options *options);
int cli_bench_plan(const cli_options *options);
int cli_bench_linear(const cli_options *options);
int cli_bench_embed(const cli_options *options);
int cli_bench_replay(const cli_options *options);
int cli_bench_tower(const cli_options *options);
int cli_bench_graphs(const cli_options *options);
/* bench_embed.c: all texts of options->input. */
int cli_bench_read_texts(const cli_options *options, cli_chunk *chunk);

#endif
