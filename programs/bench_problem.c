/*
 * bench_problem.c - files of problems, and figures against what is accepted of them.
 */
#include "bench_problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_problem_fail(const char *path, const char *name, const char *reason)
{
    return cli_fail(CLI_FAILED, "%s: workload %s: %s", path, name, reason);
}

int cli_problems_read(const cli_options *options, const char *bench, json_t **list)
{
    *list = NULL;
    if (options->workloads == NULL)
        return cli_fail(CLI_USAGE, "bench %s needs --workloads FILE. Try 'mstar bench --help'",
                        bench);
    json_error_t error;
    *list = json_load_file(options->workloads, JSON_REJECT_DUPLICATES, &error);
    if (*list == NULL)
        return cli_fail(error.line < 0 ? CLI_NO_INPUT : CLI_FAILED, "%s:%d:%d: %s",
                        options->workloads, error.line, error.column, error.text);
    if (!json_is_array(*list))
        return cli_fail(CLI_FAILED, "%s: it must be a list of workloads", options->workloads);
    return CLI_OK;
}

bool cli_problem_has_lengths(const json_t *value)
{
    return json_is_array(value) || (json_is_integer(json_object_get(value, "repeat")) &&
                                    json_is_integer(json_object_get(value, "times")));
}

int32_t *cli_problem_offsets(const json_t *lengths, int64_t *segments, int64_t *tokens)
{
    const json_t *repeat = json_object_get(lengths, "repeat");
    int64_t times = json_integer_value(json_object_get(lengths, "times"));
    *segments = repeat != NULL ? times : (int64_t)json_array_size(lengths);
    *tokens = 0;
    if (*segments < 0 || *segments > INT32_MAX)
        return NULL;
    int32_t *offsets = calloc((size_t)*segments + 1, sizeof *offsets);
    for (int64_t i = 0; offsets != NULL && i < *segments; i++) {
        const json_t *item = repeat != NULL ? repeat : json_array_get(lengths, (size_t)i);
        int64_t length = json_is_integer(item) ? json_integer_value(item) : -1;
        if (length < 0 || length > INT32_MAX - *tokens) {
            free(offsets);
            return NULL;
        }
        *tokens += length;
        offsets[i + 1] = (int32_t)*tokens;
    }
    return offsets;
}

static bool is_accepted(const char *key)
{
    return strncmp(key, "accept_", strlen("accept_")) == 0;
}

void cli_problem_put_peers(const json_t *problem, cli_report *report, json_t *row)
{
    static const char *const keys[] = {"floor_us", "fa2_class_us", "best_us", "goal_us",
                                       "peer_plan_us"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *value = json_object_get(problem, keys[i]);
        if (json_is_number(value))
            cli_bench_put_number(report, row, keys[i], json_number_value(value));
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)problem, key, value)
    {
        if (is_accepted(key) && json_is_number(value))
            cli_bench_put_number(report, row, key, json_number_value(value));
    }
}

void cli_problem_put_figure(const json_t *problem, const char *figure, cli_report *report,
                            json_t *row)
{
    static const char *const owners[] = {"peer_", "accept_"};
    for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++) {
        char key[64];
        (void)snprintf(key, sizeof key, "%s%s", owners[i], figure);
        const json_t *value = json_object_get(problem, key);
        if (json_is_number(value))
            cli_bench_put_number(report, row, key, json_number_value(value));
    }
}

/* The goal `key` of a row: false where the figure is good enough; else text says what is missed. */
static bool miss_goal(const json_t *row, const char *key, double bound, char *text, size_t bytes)
{
    const char *name = json_string_value(json_object_get(row, "name"));
    const char *figure = key + strlen("accept_");
    const json_t *value = json_object_get(row, figure);
    if (json_is_number(value) && json_number_value(value) <= bound)
        return false;
    name = name != NULL ? name : "?";
    if (json_is_number(value))
        (void)snprintf(text, bytes, "%s %s %.5g > %.5g", name, figure, json_number_value(value),
                       bound);
    else
        (void)snprintf(text, bytes, "%s %s not measured", name, figure);
    return true;
}

int64_t cli_problem_check(const json_t *rows, cli_report *report, json_t *missed)
{
    int64_t goals = 0;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        const char *key;
        json_t *bound;
        json_object_foreach(row, key, bound)
        {
            char text[160];
            if (!is_accepted(key))
                continue;
            goals++;
            if (miss_goal(row, key, json_number_value(bound), text, sizeof text) &&
                json_array_append_new(missed, cli_report_string(text)) != 0)
                report->failed = true;
        }
    }
    return goals;
}
