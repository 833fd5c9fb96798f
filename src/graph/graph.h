/*
 * graph.h - the area's header: what configs and bucket rules share.
 */
#ifndef MST_GRAPH_H
#define MST_GRAPH_H

#include "base/base.h"
#include "mstar/graph.h"
#include "mstar/runner.h"

/* ---- token_layout.c -------------------------------------------------------------------------- */

/* bs in 1..MSTAR_MAX_BATCH_SIZE, total in 0..INT32_MAX. */
mstar_status mst_check_layout_size(int64_t total_tokens, int64_t bs);
/* Runs a layout and holds it to its contract; the error names config, bs and total. lengths has
 * room for bs. */
mstar_status mst_run_layout(mstar_token_layout layout, void *user, int64_t total_tokens, int64_t bs,
                            int64_t *lengths);

/* ---- config_lists.c: lists that configs copy and check --------------------------------------- */

#define MST_NUM_DEFAULT_BATCH_SIZES 7
extern const int64_t mst_default_batch_sizes[MST_NUM_DEFAULT_BATCH_SIZES];

/* A list of integers in low..high, none twice, copied. name is "desc.capture_batch_sizes". */
mstar_status mst_copy_integers(const char *name, const int64_t *values, int64_t count, int64_t low,
                               int64_t high, int64_t **copy);
/* capture_batch_sizes as given, or the default; *largest is their maximum. */
mstar_status mst_copy_batch_sizes(const int64_t *sizes, int64_t count, int64_t **copy,
                                  int64_t *copied, int64_t *largest);
/* The place of a text among the two names of a type; what is "config type". */
mstar_status mst_parse_type(const char *what, const char *text, const char *const names[2],
                            int *index);
/* A flag of a desc: 0 or 1. */
mstar_status mst_check_flag(const char *name, int32_t value);
/* A text of a desc that may not be empty; NULL only where it is optional. */
mstar_status mst_copy_text(const char *name, const char *text, bool required, char **copy);

/* ---- compile_mode.c -------------------------------------------------------------------------- */

/* The mode that a config copies: NULL or a static string. */
mstar_status mst_read_compile_mode(const char *given, const char **mode, const char **effective);

/* ---- graph_config.c -------------------------------------------------------------------------- */

struct mstar_graph_config {
    mstar_graph_config_type type;
    char *walk;
    char **replay_walks; /* at least one */
    int64_t num_replay_walks;
    char *key_info; /* NULL: none */
    bool compile;
    bool caps_eager_batch_size;
    const char *compile_mode;           /* static; NULL: not given */
    const char *effective_compile_mode; /* static */
    int64_t *batch_sizes;
    int64_t num_batch_sizes, max_batch_size;
    char *forward_method;
    mstar_input_seq_dim *seq_dims;
    int64_t num_seq_dims;
    int64_t multiplier;
    mstar_node_input single; /* batched */
    int64_t *token_lengths;  /* packed */
    int64_t num_token_lengths;
    mstar_make_node_input make_node_input;
    mstar_token_layout layout;
    void *user;
};

/* Token counts at each size: 1 for batched. */
static inline int64_t mst_config_num_totals(const mstar_graph_config *config)
{
    return config->type == MSTAR_GRAPH_BASIC_BATCHED ? 1 : config->num_token_lengths;
}
/* The index-th of them, without a check: create has looked at every pair. */
static inline int64_t mst_config_total(const mstar_graph_config *config, int64_t bs, int64_t index)
{
    return config->type == MSTAR_GRAPH_BASIC_BATCHED
               ? config->single.input_seq_len * bs * config->multiplier
               : config->token_lengths[index] * config->multiplier;
}
/* May the walk replay the config's captures (its own walk included)? */
bool mst_config_serves(const mstar_graph_config *config, const char *walk);
/* Is the walk one that the config lists? */
bool mst_config_lists(const mstar_graph_config *config, const char *walk);
/* Equality of two texts, either of which may be NULL. */
bool mst_same_text(const char *a, const char *b);

/* ---- graph_rules.c --------------------------------------------------------------------------- */

/* No request twice, whose state a step would advance twice. */
mstar_status mst_check_distinct(const char *name, const int64_t *requests, int64_t count);

/* ---- piecewise_config.c ---------------------------------------------------------------------- */

struct mstar_piecewise_config {
    mstar_piecewise_config_info info; /* pointers into the members below */
    int64_t *batch_sizes;
    int64_t *totals;
};

/* ---- runner.c -------------------------------------------------------------------------------- */

/* Before capture: the buckets of runner take over what was chosen for those of like, which has the
 * same configs, has captured, and lives until this capture is over. */
void mst_graph_runner_take_over(mstar_graph_runner *runner, const mstar_graph_runner *like);

#endif
