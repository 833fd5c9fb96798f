/*
 * cmd_graphs_plan.c - mstar graphs plan: token counts in, the buckets that pad them least out.
 */
#include <stdlib.h>
#include <string.h>

#include "graph_file.h"
#include "session.h"

/* ---- token counts ---------------------------------------------------------------------------- */

typedef struct counts {
    int64_t *values, *lines; /* the line of each, for messages */
    int64_t count, capacity;
} counts;

static int add_count(counts *all, int64_t value, int64_t line)
{
    if (all->count == all->capacity) {
        int64_t grown = all->capacity > 0 ? 2 * all->capacity : 4096;
        size_t bytes = (size_t)grown * sizeof(int64_t);
        int64_t *values = realloc(all->values, bytes);
        if (values == NULL)
            return cli_fail_memory("token counts", bytes);
        all->values = values;
        int64_t *lines = realloc(all->lines, bytes);
        if (lines == NULL)
            return cli_fail_memory("token counts", bytes);
        all->lines = lines;
        all->capacity = grown;
    }
    all->values[all->count] = value;
    all->lines[all->count++] = line;
    return CLI_OK;
}

/* Digits, with blanks around them; -1 for anything else. */
static int64_t parse_count(const mstar_text *text)
{
    size_t i = 0, end = text->bytes;
    while (i < end && (text->data[i] == ' ' || text->data[i] == '\t'))
        i++;
    while (end > i && (text->data[end - 1] == ' ' || text->data[end - 1] == '\t'))
        end--;
    int64_t value = 0;
    if (i == end)
        return -1;
    for (; i < end; i++) {
        if (text->data[i] < '0' || text->data[i] > '9')
            return -1;
        value = value * 10 + (text->data[i] - '0');
        if (value > INT32_MAX)
            return -1;
    }
    return value;
}

/* Token counts of texts as the model's encoder would see them: prompt, special tokens, limit. */
typedef struct counter {
    const mstar_tokenizer *tokenizer; /* NULL: the lines are counts */
    mstar_tokenize_desc desc;
    const char *prompt;
    mstar_tokens tokens;
    char *bytes;
    size_t capacity;
} counter;

static int count_tokens(counter *c, const mstar_text *text, int64_t *count)
{
    size_t prompt = strlen(c->prompt), bytes = prompt + text->bytes;
    if (bytes > c->capacity) {
        char *grown = realloc(c->bytes, 2 * bytes);
        if (grown == NULL)
            return cli_fail_memory("a text", 2 * bytes);
        c->bytes = grown;
        c->capacity = 2 * bytes;
    }
    if (bytes > 0) {
        memcpy(c->bytes, c->prompt, prompt);
        memcpy(c->bytes + prompt, text->data, text->bytes);
    }
    mstar_text joined = {c->bytes != NULL ? c->bytes : "", bytes};
    mstar_status status = mstar_tokenizer_encode(c->tokenizer, &c->desc, &joined, NULL, &c->tokens);
    *count = c->tokens.count;
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

static int add_chunk(counter *c, const cli_input *input, const cli_chunk *chunk, counts *all)
{
    for (int64_t i = 0; i < chunk->count; i++) {
        const mstar_text *text = &chunk->texts[i];
        int64_t value = 0, line = chunk->items[i].line;
        if (c->tokenizer != NULL) {
            int code = count_tokens(c, text, &value);
            if (code != CLI_OK)
                return code;
        } else if (chunk->items[i].empty) {
            continue; /* a blank line holds no count */
        } else {
            value = parse_count(text);
            if (value < 0)
                return cli_fail(CLI_FAILED,
                                "%s:%lld:1: '%.*s' is not a token count, a whole number from 0 to "
                                "%d; texts need --model",
                                input->label, (long long)line,
                                (int)(text->bytes < 40 ? text->bytes : 40), text->data, INT32_MAX);
        }
        int code = add_count(all, value, line);
        if (code != CLI_OK)
            return code;
    }
    return CLI_OK;
}

static int read_counts(counter *c, cli_input *input, counts *all)
{
    static const cli_chunk_limits limits = {.max_texts = 4096,
                                            .max_bytes = (size_t)1 << 20,
                                            .max_tokens = INT64_MAX,
                                            .max_text_tokens = 0};
    cli_chunk chunk = {0};
    int code;
    do {
        code = cli_input_read(input, &limits, &chunk);
        if (code == CLI_OK)
            code = add_chunk(c, input, &chunk, all);
    } while (code == CLI_OK && chunk.count > 0 && cli_signal_pending() == 0);
    cli_chunk_release(&chunk);
    if (code == CLI_OK && cli_signal_pending() != 0)
        code = cli_stopped(all->count);
    if (code == CLI_OK && all->count == 0)
        code = cli_fail(CLI_FAILED, "%s: there is no token count in it", input->label);
    return code;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What captures take: activations once, for the largest bucket, and a plan for each. */
typedef struct memory {
    cli_session *session; /* NULL: not known */
    int64_t max_segments;
} memory;

static int plan_bytes(const memory *m, int64_t tokens, int64_t *bytes)
{
    const mstar_encoder_info *model = &m->session->model;
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = model->heads;
    desc.head_dim = model->head_dim;
    desc.q_data_type = model->dtype;
    desc.accelerator_graph = 1;
    desc.max_num_segments = m->max_segments;
    desc.max_total_tokens = tokens;
    mstar_ragged_prefill *wrapper = NULL;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    mstar_status status = mstar_ragged_prefill_create(m->session->device, &desc, NULL, 0, &wrapper);
    if (status == MSTAR_OK)
        status = mstar_ragged_prefill_query(wrapper, &info);
    mstar_ragged_prefill_destroy(wrapper);
    *bytes = (int64_t)info.plan_bytes;
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

static int plan_memory(const memory *m, const mstar_traffic_bucket *buckets, int64_t count,
                       int64_t *total)
{
    const mstar_encoder_info *model = &m->session->model;
    double a_token =
        (double)model->arena_bytes /
        ((double)model->max_batch_tokens * (model->num_workers > 0 ? model->num_workers : 1));
    *total = (int64_t)(a_token * (double)buckets[count - 1].num_tokens);
    for (int64_t i = 0; i < count; i++) {
        int64_t bytes;
        int code = plan_bytes(m, buckets[i].num_tokens, &bytes);
        if (code != CLI_OK)
            return code;
        *total += bytes;
    }
    return CLI_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void set_bs(mstar_traffic_bucket *buckets, int64_t count, int64_t bs)
{
    for (int64_t i = 0; i < count; i++)
        buckets[i].bs = bs;
}

/* Sorted, one a token count. */
static int compare_steps(const void *a, const void *b)
{
    const mstar_traffic_step *x = a, *y = b;
    return (x->num_tokens > y->num_tokens) - (x->num_tokens < y->num_tokens);
}

static void join_levels(cli_graph_plan *plan)
{
    int64_t count = 0;
    qsort(plan->levels, (size_t)plan->num_levels, sizeof *plan->levels, compare_steps);
    for (int64_t i = 0; i < plan->num_levels; i++) {
        const mstar_traffic_step *step = &plan->levels[i];
        plan->num_steps += step->count;
        plan->num_tokens += step->count * step->num_tokens;
        mstar_traffic_step *last = count > 0 ? &plan->levels[count - 1] : NULL;
        if (last != NULL && last->num_tokens == step->num_tokens) {
            last->count += step->count;
            last->bs = last->bs > step->bs ? last->bs : step->bs;
        } else {
            plan->levels[count++] = *step;
        }
    }
    plan->num_levels = count;
}

static int make_levels(const cli_options *options, const counts *all, const char *label,
                       cli_graph_plan *plan)
{
    size_t bytes = (size_t)(all->count + 1) * sizeof *plan->levels;
    plan->levels = malloc(bytes);
    if (plan->levels == NULL)
        return cli_fail_memory("steps", bytes);
    plan->num_lengths = all->count;
    plan->batch_size = options->batch_size;
    plan->max_tokens = options->step_tokens;
    for (int64_t i = 0; options->step_tokens >= 0 && i < all->count; i++) {
        if (all->values[i] > options->step_tokens)
            return cli_fail(CLI_USAGE, "%s:%lld:1: %lld tokens; --max-tokens is %lld", label,
                            (long long)all->lines[i], (long long)all->values[i],
                            (long long)options->step_tokens);
    }
    mstar_status status =
        mstar_traffic_batch(all->values, all->count, options->batch_size, options->step_tokens,
                            plan->levels, &plan->num_levels);
    if (status != MSTAR_OK)
        return cli_fail(CLI_FAILED, "%s: %s", label, mstar_last_error());
    if (options->step_tokens >= 0) /* no step of that rule may miss */
        plan->levels[plan->num_levels++] = (mstar_traffic_step){1, options->step_tokens, 0};
    join_levels(plan);
    return CLI_OK;
}

/* One request more or fewer costs a packed bucket nothing: all get the largest bs. */
static int64_t largest_bs(const cli_graph_plan *plan)
{
    int64_t bs = 1;
    for (int64_t i = 0; i < plan->num_levels; i++)
        bs = plan->levels[i].bs > bs ? plan->levels[i].bs : bs;
    return bs;
}

static int plan_buckets(const cli_options *options, memory *m, cli_graph_plan *plan)
{
    size_t bytes = (size_t)options->max_buckets * sizeof *plan->buckets;
    plan->buckets = malloc(bytes);
    if (plan->buckets == NULL)
        return cli_fail_memory("buckets", bytes);
    plan->budget_bytes = options->budget;
    m->max_segments = largest_bs(plan);
    for (int64_t most = options->max_buckets;; most = plan->num_buckets - 1) {
        mstar_status status = mstar_traffic_plan(plan->levels, plan->num_levels, most,
                                                 plan->buckets, &plan->num_buckets);
        if (status != MSTAR_OK)
            return cli_fail(cli_exit_code(status), "%s", mstar_last_error());
        if (m->session == NULL)
            break;
        int code = plan_memory(m, plan->buckets, plan->num_buckets, &plan->memory_bytes);
        if (code != CLI_OK)
            return code;
        if (options->budget < 0 || plan->memory_bytes <= options->budget)
            break;
        if (plan->num_buckets == 1)
            return cli_fail(CLI_FAILED,
                            "--budget is %lld; the largest step, of %lld tokens, needs %lld bytes",
                            (long long)options->budget, (long long)plan->buckets[0].num_tokens,
                            (long long)plan->memory_bytes);
    }
    set_bs(plan->buckets, plan->num_buckets, m->max_segments);
    plan->waste = mstar_traffic_waste(plan->buckets, plan->num_buckets);
    return CLI_OK;
}

/* The waste of buckets 1, 2, 4 ... (steps 1), or of that many steps an octave. */
static int plan_rule(const cli_graph_plan *plan, int64_t steps, cli_graph_rule *rule)
{
    enum { ROOM = 256 };
    mstar_traffic_bucket buckets[ROOM];
    int64_t most = plan->levels[plan->num_levels - 1].num_tokens, count = 0, missed, at = 1;
    for (;;) {
        buckets[count++] = (mstar_traffic_bucket){.bs = MSTAR_MAX_BATCH_SIZE, .num_tokens = at};
        if (at >= most || count == ROOM)
            break;
        int64_t octave = 1;
        while (2 * octave <= at)
            octave *= 2;
        at += octave / steps > 0 ? octave / steps : 1;
        at = at > INT32_MAX ? INT32_MAX : at;
    }
    mstar_status status =
        mstar_traffic_serve(plan->levels, plan->num_levels, buckets, count, &missed);
    rule->num_buckets = count;
    rule->waste = mstar_traffic_waste(buckets, count);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

/* ---- the command ----------------------------------------------------------------------------- */

static int check_options(const cli_options *options)
{
    if (options->file != NULL)
        return cli_fail(CLI_USAGE,
                        "'%s' is one argument too many after 'plan'; token counts come from "
                        "--lengths",
                        options->file);
    if (options->lengths == NULL)
        return cli_fail(CLI_USAGE, "graphs plan needs --lengths FILE. Try 'mstar graphs --help'");
    if (options->svg != NULL)
        return cli_fail(CLI_USAGE, "--svg is an option of graphs show");
    if (options->batch_size >= 0 && options->step_tokens >= 0)
        return cli_fail(CLI_USAGE, "give only one of --batch-size and --max-tokens");
    if (options->budget >= 0 && options->model == NULL)
        return cli_fail(CLI_USAGE, "--budget needs --model, whose shape says how much a token "
                                   "takes");
    return CLI_OK;
}

static int open_model(const cli_options *options, cli_session *session, counter *c)
{
    cli_options plain = {.command = CLI_GRAPHS, .model = options->model};
    plain.pooling = plain.max_tokens = plain.batch_tokens = -1;
    int code = cli_session_open_device(session, -1);
    if (code == CLI_OK)
        code = cli_session_load(session, &plain, NULL);
    if (code != CLI_OK)
        return code;
    c->tokenizer = mstar_encoder_get_tokenizer(session->encoder);
    c->prompt = session->model.prompt;
    c->desc.max_tokens = session->model.max_tokens;
    return CLI_OK;
}

static int plan_all(const cli_options *options, const counts *all, const char *label,
                    cli_session *session, cli_graph_plan *plan)
{
    memory m = {.session = options->model != NULL ? session : NULL};
    int code = make_levels(options, all, label, plan);
    if (code == CLI_OK)
        code = plan_buckets(options, &m, plan);
    if (code == CLI_OK)
        code = plan_rule(plan, 1, &plan->powers);
    if (code == CLI_OK)
        code = plan_rule(plan, 4, &plan->quarters);
    if (code == CLI_OK && options->output != NULL)
        code = cli_graph_plan_print(plan, true, options->output);
    if (code == CLI_OK)
        code = cli_graph_plan_print(plan, options->json != 0, NULL);
    return code;
}

int cli_run_graphs_plan(const cli_options *options)
{
    cli_session session = {0};
    cli_input input = {0};
    counter c = {.prompt = ""};
    counts all = {0};
    cli_graph_plan plan = {.memory_bytes = -1, .budget_bytes = -1};
    mstar_tokenize_desc_init(&c.desc);
    mstar_tokens_init(&c.tokens);
    int code = check_options(options);
    int format = options->model != NULL && options->input_format != CLI_INPUT_LINES
                     ? CLI_INPUT_JSONL
                     : CLI_INPUT_LINES;
    if (code == CLI_OK)
        code = cli_input_open(&input, options->lengths, format);
    if (code == CLI_OK && options->model != NULL)
        code = open_model(options, &session, &c);
    if (code == CLI_OK)
        code = read_counts(&c, &input, &all);
    if (code == CLI_OK)
        code = plan_all(options, &all, input.label, &session, &plan);
    cli_graph_plan_release(&plan);
    cli_input_close(&input);
    cli_session_close(&session);
    mstar_tokens_release(&c.tokens);
    free(c.bytes);
    free(all.values);
    free(all.lines);
    return code;
}
