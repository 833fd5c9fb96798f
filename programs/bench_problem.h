/*
 * bench_problem.h - what is measured, as data: a JSON list of objects with a name each, and what
 * others reach on them.
 *
 * floor_us, fa2_class_us, best_us, goal_us and peer_plan_us of a problem (a card's floor; the best
 * mma.sync kernel; the best of all; what we are after; the fastest plan of another) are carried
 * into its row. accept_X bounds the row's
 * figure X: --check-goals compares them.
 */
#ifndef CLI_BENCH_PROBLEM_H
#define CLI_BENCH_PROBLEM_H

#include "bench.h"

/* The file of --workloads; CLI_USAGE without one. The caller's to release. */
int cli_problems_read(const cli_options *options, const char *bench, json_t **list);

/* Tells path, the problem's name and the reason; CLI_FAILED. */
int cli_problem_fail(const char *path, const char *name, const char *reason);

/* Lengths are a list, or {"repeat": n, "times": m}. */
bool cli_problem_has_lengths(const json_t *value);
/* Their offsets, to be freed; NULL when a length is negative, there are too many tokens for int32,
 * or no memory. */
int32_t *cli_problem_offsets(const json_t *lengths, int64_t *segments, int64_t *tokens);

/* What others reach and what is accepted, into the row. */
void cli_problem_put_peers(const json_t *problem, cli_report *report, json_t *row);

/* The same of one figure only, such as plan_us: what others reach of it and what is accepted. */
void cli_problem_put_figure(const json_t *problem, const char *figure, cli_report *report,
                            json_t *row);

/*
 * How many figures of the rows are bounded, and a text for each that misses: "W2 us 214.5 > 208.6",
 * or "T1 us not measured" for a row without the figure. One that is not a number misses.
 */
int64_t cli_problem_check(const json_t *rows, cli_report *report, json_t *missed);

#endif
