/*
 * graph_file.h - a plan of graph buckets as a document: what `mstar graphs plan` writes, and what
 * `graphs show` and `embed --graphs FILE` read.
 *
 *   mstar_graphs    1, the version of the document
 *   configs         one packed config, of the walk "embed", with the fields of
 *                   mstar_packed_graph_config_desc; its compile and compile_mode may be changed by
 *                   hand, its capture_token_lengths are those of the buckets
 *   expected_waste  padding / (padding + real) tokens of the traffic below
 *   buckets         bs, tokens, and what each serves of the traffic
 *   powers_of_two, quarter_steps    how many buckets those would be, and their waste
 *   traffic         how many lengths and steps there were, and [tokens, steps] pairs
 *   memory          with --model: bytes, budget_bytes; else null
 */
#ifndef CLI_GRAPH_FILE_H
#define CLI_GRAPH_FILE_H

#include <jansson.h>

#include "options.h"
#include "output.h"
#include "session.h"

typedef struct cli_graph_rule {
    int64_t num_buckets;
    double waste;
} cli_graph_rule;

typedef struct cli_graph_plan {
    mstar_traffic_bucket *buckets; /* ascending */
    int64_t num_buckets;
    bool no_compile;       /* of the config */
    char compile_mode[64]; /* "": none */
    double waste;
    cli_graph_rule powers, quarters;
    mstar_traffic_step *levels; /* the traffic: ascending, one a token count */
    int64_t num_levels;
    int64_t num_lengths, num_steps, num_tokens;
    int64_t batch_size, max_tokens;     /* how lengths became steps; -1 */
    int64_t memory_bytes, budget_bytes; /* -1: not known, not given */
} cli_graph_plan;

void cli_graph_plan_release(cli_graph_plan *plan);

/* The document; NULL when memory runs out. */
json_t *cli_graph_plan_to_json(const cli_graph_plan *plan);
/* Reads a document. A failure is told with the file's name and the place in it. */
int cli_graph_plan_read(const char *path, cli_graph_plan *plan);

/* graph_picture.c: the buckets against the traffic. */
void cli_graph_plan_put_text(cli_output *output, const cli_graph_plan *plan);
void cli_graph_plan_put_svg(cli_output *output, const cli_graph_plan *plan);

/* cmd_graphs.c: the document or the table, to a file or (path NULL) to standard output. */
int cli_graph_plan_print(const cli_graph_plan *plan, bool as_json, const char *path);
/* graph_stats.c: what became of the batches of an encoder with graphs, as a report, or in a few
 * lines on standard error. */
int cli_graph_stats_print(const cli_session *session, bool as_json);
int cli_graph_stats_note(const cli_session *session);
/* cmd_graphs_stats.c */
int cli_run_graphs_stats(const cli_options *options);
/* cmd_graphs_plan.c */
int cli_run_graphs_plan(const cli_options *options);

#endif
