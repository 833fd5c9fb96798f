/*
 * graph_file.c - a plan of graph buckets to JSON and back.
 */
#include "graph_file.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char walk[] = "embed";

enum { VERSION = 1, MAX_BUCKETS = 4096, MAX_LEVELS = 4000000 };

void cli_graph_plan_release(cli_graph_plan *plan)
{
    free(plan->buckets);
    free(plan->levels);
    memset(plan, 0, sizeof *plan);
}

/* ---- to JSON --------------------------------------------------------------------------------- */

static int64_t largest_bs(const cli_graph_plan *plan)
{
    int64_t bs = 1;
    for (int64_t i = 0; i < plan->num_buckets; i++)
        bs = plan->buckets[i].bs > bs ? plan->buckets[i].bs : bs;
    return bs;
}

static json_t *token_lengths(const cli_graph_plan *plan)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < plan->num_buckets; i++)
        (void)json_array_append_new(list, json_integer(plan->buckets[i].num_tokens));
    return list;
}

static json_t *config_json(const cli_graph_plan *plan)
{
    return json_pack("{s:s, s:s, s:[I], s:o, s:i, s:b, s:s?}", "type",
                     mstar_graph_config_type_name(MSTAR_GRAPH_FLASH_INFER_PACKED),
                     "capture_graph_walk", walk, "capture_batch_sizes",
                     (json_int_t)largest_bs(plan), "capture_token_lengths", token_lengths(plan),
                     "total_tokens_multiplier", 1, "compile", !plan->no_compile, "compile_mode",
                     plan->compile_mode[0] != '\0' ? plan->compile_mode : NULL);
}

static json_t *buckets_json(const cli_graph_plan *plan)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < plan->num_buckets; i++) {
        const mstar_traffic_bucket *bucket = &plan->buckets[i];
        (void)json_array_append_new(
            list, json_pack("{s:I, s:I, s:I, s:I, s:I}", "bs", (json_int_t)bucket->bs, "tokens",
                            (json_int_t)bucket->num_tokens, "steps", (json_int_t)bucket->steps,
                            "real_tokens", (json_int_t)bucket->tokens, "padding_tokens",
                            (json_int_t)bucket->padding_tokens));
    }
    return list;
}

static json_t *rule_json(const cli_graph_rule *rule)
{
    return json_pack("{s:I, s:f}", "buckets", (json_int_t)rule->num_buckets, "expected_waste",
                     rule->waste);
}

static json_t *number_or_null(int64_t value)
{
    return value >= 0 ? json_integer(value) : json_null();
}

static json_t *traffic_json(const cli_graph_plan *plan)
{
    json_t *levels = json_array();
    for (int64_t i = 0; i < plan->num_levels; i++)
        (void)json_array_append_new(levels,
                                    json_pack("[I, I]", (json_int_t)plan->levels[i].num_tokens,
                                              (json_int_t)plan->levels[i].count));
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "lengths", (json_int_t)plan->num_lengths,
                     "steps", (json_int_t)plan->num_steps, "tokens", (json_int_t)plan->num_tokens,
                     "batch_size", number_or_null(plan->batch_size), "max_tokens",
                     number_or_null(plan->max_tokens), "levels", levels);
}

static json_t *memory_json(const cli_graph_plan *plan)
{
    if (plan->memory_bytes < 0)
        return json_null();
    return json_pack("{s:I, s:o}", "bytes", (json_int_t)plan->memory_bytes, "budget_bytes",
                     number_or_null(plan->budget_bytes));
}

json_t *cli_graph_plan_to_json(const cli_graph_plan *plan)
{
    return json_pack("{s:i, s:[o], s:f, s:o, s:o, s:o, s:o, s:o}", "mstar_graphs", VERSION,
                     "configs", config_json(plan), "expected_waste", plan->waste, "buckets",
                     buckets_json(plan), "powers_of_two", rule_json(&plan->powers), "quarter_steps",
                     rule_json(&plan->quarters), "traffic", traffic_json(plan), "memory",
                     memory_json(plan));
}

/* ---- from JSON ------------------------------------------------------------------------------- */

static int fail_at(const char *path, const char *format, ...) CLI_PRINTF(2, 3);
static int fail_at(const char *path, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return cli_fail(CLI_BAD_CONFIG, "%s: %s", path, text);
}

/* A whole number of an object, from 0 up; -1 and told when it is not there or out of range. */
static int64_t read_integer(const char *path, const char *where, const json_t *object,
                            const char *key, int64_t high)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > high) {
        (void)fail_at(path, "%s%s must be a whole number from 0 to %lld", where, key,
                      (long long)high);
        return -1;
    }
    return json_integer_value(value);
}

static int read_buckets(const char *path, const json_t *root, cli_graph_plan *plan)
{
    const json_t *list = json_object_get(root, "buckets");
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > MAX_BUCKETS)
        return fail_at(path, "buckets must be a list of 1 to %d buckets", MAX_BUCKETS);
    plan->buckets = calloc(count, sizeof *plan->buckets);
    if (plan->buckets == NULL)
        return cli_fail_memory("buckets", count * sizeof *plan->buckets);
    for (size_t i = 0; i < count; i++) {
        char where[48];
        (void)snprintf(where, sizeof where, "buckets[%zu].", i);
        const json_t *item = json_array_get(list, i);
        mstar_traffic_bucket *bucket = &plan->buckets[i];
        bucket->bs = read_integer(path, where, item, "bs", MSTAR_MAX_BATCH_SIZE);
        if (bucket->bs < 0)
            return CLI_BAD_CONFIG;
        bucket->num_tokens = read_integer(path, where, item, "tokens", INT32_MAX);
        if (bucket->num_tokens < 0)
            return CLI_BAD_CONFIG;
        if (bucket->bs == 0)
            return fail_at(path, "%sbs must be at least 1", where);
        if (i > 0 && bucket->num_tokens <= plan->buckets[i - 1].num_tokens)
            return fail_at(path, "%stokens must be more than those of the bucket before it", where);
        plan->num_buckets++;
    }
    return CLI_OK;
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static int read_compile(const char *path, const json_t *config, cli_graph_plan *plan)
{
    const json_t *compile = json_object_get(config, "compile");
    const json_t *mode = json_object_get(config, "compile_mode");
    if (compile != NULL && !json_is_boolean(compile))
        return fail_at(path, "configs[0].compile must be true or false");
    plan->no_compile = json_is_false(compile);
    if (mode == NULL || json_is_null(mode))
        return CLI_OK;
    if (!json_is_string(mode))
        return fail_at(path, "configs[0].compile_mode must be a string or null");
    if (mstar_check_compile_mode(json_string_value(mode)) != MSTAR_OK)
        return fail_at(path, "configs[0].%s", mstar_last_error());
    (void)snprintf(plan->compile_mode, sizeof plan->compile_mode, "%s", json_string_value(mode));
    return CLI_OK;
}

/* What captures: one config, of the buckets read before. What it says otherwise would be passed
 * over. */
static int read_config(const char *path, const json_t *root, cli_graph_plan *plan)
{
    const json_t *list = json_object_get(root, "configs");
    if (list == NULL)
        return CLI_OK;
    const json_t *config = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_object(config))
        return fail_at(path, "configs must be a list of one config");
    const char *type = mstar_graph_config_type_name(MSTAR_GRAPH_FLASH_INFER_PACKED);
    if (!is_text(json_object_get(config, "type"), type))
        return fail_at(path, "configs[0].type must be \"%s\"", type);
    if (!is_text(json_object_get(config, "capture_graph_walk"), walk))
        return fail_at(path, "configs[0].capture_graph_walk must be \"%s\"", walk);
    const json_t *multiplier = json_object_get(config, "total_tokens_multiplier");
    if (multiplier != NULL && json_integer_value(multiplier) != 1)
        return fail_at(path, "configs[0].total_tokens_multiplier must be 1");
    const json_t *lengths = json_object_get(config, "capture_token_lengths");
    bool same = json_array_size(lengths) == (size_t)plan->num_buckets;
    for (int64_t i = 0; same && i < plan->num_buckets; i++) {
        const json_t *length = json_array_get(lengths, (size_t)i);
        same = json_is_integer(length) && json_integer_value(length) == plan->buckets[i].num_tokens;
    }
    if (!same)
        return fail_at(path, "configs[0].capture_token_lengths must be the tokens of buckets");
    return read_compile(path, config, plan);
}

static int read_levels(const char *path, const json_t *traffic, cli_graph_plan *plan)
{
    const json_t *list = json_object_get(traffic, "levels");
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count > MAX_LEVELS)
        return fail_at(path, "traffic.levels must be a list of [tokens, steps] pairs");
    plan->levels = calloc(count > 0 ? count : 1, sizeof *plan->levels);
    if (plan->levels == NULL)
        return cli_fail_memory("traffic", count * sizeof *plan->levels);
    for (size_t i = 0; i < count; i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *tokens = json_array_get(pair, 0), *steps = json_array_get(pair, 1);
        int64_t previous = i > 0 ? plan->levels[i - 1].num_tokens : -1;
        if (json_array_size(pair) != 2 || !json_is_integer(tokens) || !json_is_integer(steps) ||
            json_integer_value(tokens) <= previous || json_integer_value(tokens) > INT32_MAX ||
            json_integer_value(steps) < 0 || json_integer_value(steps) > INT32_MAX)
            return fail_at(path,
                           "traffic.levels[%zu] must be [tokens, steps], whole numbers, tokens "
                           "ascending",
                           i);
        plan->levels[i] =
            (mstar_traffic_step){1, json_integer_value(tokens), json_integer_value(steps)};
        plan->num_steps += plan->levels[i].count;
        if (plan->num_steps > INT32_MAX) /* else their tokens may pass an int64 */
            return fail_at(path, "traffic.levels[%zu] makes it more than %d steps", i, INT32_MAX);
        plan->num_tokens += plan->levels[i].count * plan->levels[i].num_tokens;
    }
    plan->num_levels = (int64_t)count;
    return CLI_OK;
}

static cli_graph_rule read_rule(const json_t *root, const char *key)
{
    const json_t *rule = json_object_get(root, key);
    return (cli_graph_rule){json_integer_value(json_object_get(rule, "buckets")),
                            json_number_value(json_object_get(rule, "expected_waste"))};
}

static int read_document(const char *path, const json_t *root, cli_graph_plan *plan)
{
    const json_t *version = json_object_get(root, "mstar_graphs");
    if (!json_is_integer(version) || json_integer_value(version) != VERSION)
        return fail_at(path, "mstar_graphs must be %d; is this a file of mstar graphs plan?",
                       VERSION);
    int code = read_buckets(path, root, plan);
    if (code == CLI_OK)
        code = read_levels(path, json_object_get(root, "traffic"), plan);
    if (code != CLI_OK)
        return code;
    plan->num_lengths =
        read_integer(path, "traffic.", json_object_get(root, "traffic"), "lengths", INT32_MAX);
    if (plan->num_lengths < 0)
        return CLI_BAD_CONFIG;
    plan->powers = read_rule(root, "powers_of_two");
    plan->quarters = read_rule(root, "quarter_steps");
    int64_t missed;
    /* what each bucket serves follows from the traffic, whatever the document says */
    mstar_status status = mstar_traffic_serve(plan->levels, plan->num_levels, plan->buckets,
                                              plan->num_buckets, &missed);
    if (status != MSTAR_OK)
        return fail_at(path, "%s", mstar_last_error());
    if (missed > 0)
        return fail_at(path, "%lld steps of the traffic have more tokens than the largest bucket",
                       (long long)missed);
    plan->waste = mstar_traffic_waste(plan->buckets, plan->num_buckets);
    return read_config(path, root, plan);
}

int cli_graph_plan_read(const char *path, cli_graph_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->batch_size = plan->max_tokens = plan->memory_bytes = plan->budget_bytes = -1;
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        if (json_error_code(&error) == json_error_cannot_open_file)
            return cli_fail(CLI_NO_INPUT, "%s", error.text);
        return cli_fail(CLI_BAD_CONFIG, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    }
    int code = read_document(path, root, plan);
    json_decref(root);
    if (code != CLI_OK)
        cli_graph_plan_release(plan);
    return code;
}
