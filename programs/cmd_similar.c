/*
 * cmd_similar.c - mstar similar: the lines closest to a query, or the closest pairs of lines.
 *
 * Against a query only the best lines are held, so FILE may be of any size. For pairs all vectors
 * are held and every pair is looked at, which is why their number is bounded. Empty lines have
 * nothing to show and take no part.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "output.h"
#include "progress.h"
#include "session.h"
#include "utf8.h"

enum { MAX_PAIR_LINES = 50000 };

/* ---- the best so far ------------------------------------------------------------------------- */

typedef struct hit {
    double score;
    int64_t a, b; /* lines for a query (b is 0), indices into the corpus for pairs */
    char *text;   /* query only: a copy */
    size_t bytes;
} hit;

typedef struct best {
    hit *hits; /* score descending, then a and b ascending */
    int64_t count, limit;
} best;

/* Hits come in ascending order of (a, b), so a new one stands behind its equals. Returns its place,
 * or NULL when it is not among the best; the text of one that is pushed out is freed. */
static hit *best_insert(best *list, double score, int64_t a, int64_t b)
{
    if (list->count == list->limit && !(score > list->hits[list->count - 1].score))
        return NULL;
    if (list->count == list->limit)
        free(list->hits[--list->count].text);
    int64_t low = 0, high = list->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list->hits[middle].score >= score)
            low = middle + 1;
        else
            high = middle;
    }
    hit *place = list->hits + low;
    memmove(place + 1, place, (size_t)(list->count - low) * sizeof *place);
    *place = (hit){.score = score, .a = a, .b = b};
    list->count++;
    return place;
}

static double dot(const float *a, const float *b, int64_t dims)
{
    double sum[4] = {0, 0, 0, 0};
    int64_t i = 0;
    for (; i + 4 <= dims; i += 4) {
        for (int64_t j = 0; j < 4; j++)
            sum[j] += (double)a[i + j] * (double)b[i + j];
    }
    for (; i < dims; i++)
        sum[0] += (double)a[i] * (double)b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/*
 * a_square and b_square are the vectors' products with themselves; the square root of their product
 * makes the score of equal vectors exactly 1, so that equal lines tie. Rounding must not print a
 * score above 1. A vector of zeros is close to nothing.
 */
static double cosine(const float *a, double a_square, const float *b, double b_square, int64_t dims)
{
    if (!(a_square > 0) || !(b_square > 0))
        return 0;
    double value = dot(a, b, dims) / sqrt(a_square * b_square);
    return value > 1 ? 1 : value < -1 ? -1 : value;
}

/* ---- all lines, for pairs -------------------------------------------------------------------- */

typedef struct corpus {
    float *vectors;
    double *squares; /* dot(vector, vector) */
    char **texts;
    size_t *bytes;
    int64_t *lines;
    int64_t count, capacity;
} corpus;

static bool grow(void *pointer_to_array, int64_t capacity, size_t size)
{
    void *old;
    memcpy(&old, pointer_to_array, sizeof old);
    void *grown = realloc(old, (size_t)capacity * size);
    if (grown == NULL)
        return false;
    memcpy(pointer_to_array, &grown, sizeof grown);
    return true;
}

static int corpus_add(corpus *all, const float *vector, int64_t dims, const mstar_text *text,
                      const cli_input *input, int64_t line)
{
    if (all->count == MAX_PAIR_LINES)
        return cli_fail(CLI_FAILED, "%s has more than %d lines; --pairs takes up to %d",
                        input->label, MAX_PAIR_LINES, MAX_PAIR_LINES);
    if (all->count == all->capacity) {
        int64_t want = all->capacity * 2 + 256;
        if (!grow(&all->vectors, want, (size_t)dims * sizeof(float)) ||
            !grow(&all->squares, want, sizeof(double)) ||
            !grow(&all->texts, want, sizeof(char *)) || !grow(&all->bytes, want, sizeof(size_t)) ||
            !grow(&all->lines, want, sizeof(int64_t)))
            return cli_fail_memory("vectors", (size_t)want * (size_t)dims * sizeof(float));
        all->capacity = want;
    }
    char *copy = malloc(text->bytes + 1);
    if (copy == NULL)
        return cli_fail_memory("a text", text->bytes);
    memcpy(copy, text->data, text->bytes);
    memcpy(all->vectors + all->count * dims, vector, (size_t)dims * sizeof(float));
    all->squares[all->count] = dot(vector, vector, dims);
    all->texts[all->count] = copy;
    all->bytes[all->count] = text->bytes;
    all->lines[all->count] = line;
    all->count++;
    return CLI_OK;
}

static void corpus_release(corpus *all)
{
    for (int64_t i = 0; i < all->count; i++)
        free(all->texts[i]);
    free(all->vectors);
    free(all->squares);
    free(all->texts);
    free(all->bytes);
    free(all->lines);
}

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct search {
    const cli_options *options;
    cli_session session;
    cli_input input;
    cli_embedder embedder;
    float *query;
    double query_square;
    corpus all;
    best list;
} search;

static const char *query_prompt(const cli_options *options)
{
    return options->query_prompt_name != NULL ? options->query_prompt_name : options->prompt_name;
}

static int embed_query(search *s)
{
    int64_t dims = s->session.model.dims;
    s->query = malloc((size_t)dims * sizeof(float));
    if (s->query == NULL)
        return cli_fail_memory("the query", (size_t)dims * sizeof(float));
    mstar_text text = {s->options->query, strlen(s->options->query)};
    mstar_text_result result = {0};
    mstar_status status =
        mstar_encoder_embed(s->session.encoder, &text, 1, s->query, dims, &result);
    if (status != MSTAR_OK)
        return cli_fail(cli_exit_code(status), "--query: %s", mstar_last_error());
    if (result.untruncated_tokens > result.tokens)
        cli_note("the query was cut from %lld to %lld tokens", (long long)result.untruncated_tokens,
                 (long long)result.tokens);
    s->query_square = dot(s->query, s->query, dims);
    if (!isfinite(s->query_square))
        return cli_fail(CLI_FAILED, "the vector of the query is not finite");
    return CLI_OK;
}

/* Loads the model for the lines; a query with a prompt of its own is embedded by a load before. */
static int prepare(search *s)
{
    const cli_options *options = s->options;
    bool own_prompt = options->query != NULL && options->query_prompt_name != NULL;
    int code = cli_session_open_named(&s->session, options->device, options->threads);
    if (code == CLI_OK && own_prompt) {
        code = cli_session_load(&s->session, options, query_prompt(options));
        if (code == CLI_OK)
            code = embed_query(s);
        cli_session_unload(&s->session);
    }
    if (code == CLI_OK)
        code = cli_session_load(&s->session, options, options->prompt_name);
    if (code == CLI_OK && options->query != NULL && !own_prompt)
        code = embed_query(s);
    return code;
}

static int use_chunk(search *s, const cli_chunk *chunk)
{
    int64_t dims = s->session.model.dims;
    for (int64_t i = 0; i < chunk->count; i++) {
        const float *vector = s->embedder.values + i * dims;
        const mstar_text *text = &chunk->texts[i];
        int64_t line = chunk->items[i].line;
        if (chunk->items[i].empty)
            continue;
        if (s->options->pairs) {
            int code = corpus_add(&s->all, vector, dims, text, &s->input, line);
            if (code != CLI_OK)
                return code;
            continue;
        }
        double score = cosine(s->query, s->query_square, vector, dot(vector, vector, dims), dims);
        hit *place = best_insert(&s->list, score, line, 0);
        if (place == NULL)
            continue;
        place->text = malloc(text->bytes + 1);
        if (place->text == NULL)
            return cli_fail_memory("a text", text->bytes);
        memcpy(place->text, text->data, text->bytes);
        place->bytes = text->bytes;
    }
    return CLI_OK;
}

static int read_lines(search *s)
{
    cli_chunk chunk = {0};
    cli_progress progress;
    cli_chunk_limits limits = cli_session_chunk_limits(&s->session);
    cli_progress_start(&progress, (int)s->options->progress, s->input.total_bytes);
    int code;
    for (;;) {
        code = cli_input_read(&s->input, &limits, &chunk);
        if (code != CLI_OK || chunk.count == 0)
            break;
        code = cli_embed_chunk(&s->session, s->options, &s->input, &chunk, &s->embedder);
        if (code == CLI_OK)
            code = use_chunk(s, &chunk);
        if (code != CLI_OK || cli_signal_pending() != 0)
            break;
        cli_progress_update(&progress, s->embedder.texts, s->embedder.tokens, s->input.bytes_taken);
    }
    cli_progress_end(&progress);
    cli_chunk_release(&chunk);
    return code;
}

static void find_pairs(search *s)
{
    const corpus *all = &s->all;
    int64_t dims = s->session.model.dims;
    for (int64_t a = 0; a < all->count && cli_signal_pending() == 0; a++) {
        const float *vector = all->vectors + a * dims;
        for (int64_t b = a + 1; b < all->count; b++) {
            double score =
                cosine(vector, all->squares[a], all->vectors + b * dims, all->squares[b], dims);
            (void)best_insert(&s->list, score, a, b);
        }
    }
}

/* ---- printing -------------------------------------------------------------------------------- */

/* For people: control characters would let a text move the cursor or change the terminal. */
static void put_plain(cli_output *output, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        size_t length = cli_utf8_length(text + i, bytes - i);
        unsigned char c = (unsigned char)text[i];
        bool c1 = length == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0;
        if (length == 0)
            cli_put_text(output, "\xef\xbf\xbd");
        else if (c == '\t')
            cli_put(output, " ", 1);
        else if (c < 0x20 || c == 0x7f || c1)
            cli_put(output, "?", 1);
        else
            cli_put(output, text + i, length);
        i += length > 0 ? length : 1;
    }
    cli_put(output, "\n", 1);
}

static void print_plain(const search *s, cli_output *output)
{
    for (int64_t i = 0; i < s->list.count; i++) {
        const hit *h = &s->list.hits[i];
        if (!s->options->pairs) {
            cli_put_format(output, "%7.4f  %6lld  ", h->score, (long long)h->a);
            put_plain(output, h->text, h->bytes);
            continue;
        }
        cli_put_format(output, "%7.4f  %6lld  ", h->score, (long long)s->all.lines[h->a]);
        put_plain(output, s->all.texts[h->a], s->all.bytes[h->a]);
        cli_put_format(output, "         %6lld  ", (long long)s->all.lines[h->b]);
        put_plain(output, s->all.texts[h->b], s->all.bytes[h->b]);
    }
}

static void print_json(const search *s, cli_output *output)
{
    const cli_options *options = s->options;
    cli_put_text(output, "{\"model\":");
    cli_put_json(output, options->model, strlen(options->model));
    if (options->query != NULL) {
        cli_put_text(output, ",\"query\":");
        cli_put_json(output, options->query, strlen(options->query));
    }
    cli_put_format(output, ",\"texts\":%lld,\"%s\":[", (long long)s->embedder.texts,
                   options->pairs ? "pairs" : "results");
    for (int64_t i = 0; i < s->list.count; i++) {
        const hit *h = &s->list.hits[i];
        cli_put_format(output, "%s{\"rank\":%lld,\"score\":", i > 0 ? "," : "", (long long)i + 1);
        cli_put_f32(output, (float)h->score);
        if (options->pairs) {
            cli_put_format(output, ",\"lines\":[%lld,%lld],\"texts\":[",
                           (long long)s->all.lines[h->a], (long long)s->all.lines[h->b]);
            cli_put_json(output, s->all.texts[h->a], s->all.bytes[h->a]);
            cli_put(output, ",", 1);
            cli_put_json(output, s->all.texts[h->b], s->all.bytes[h->b]);
            cli_put_text(output, "]}");
        } else {
            cli_put_format(output, ",\"line\":%lld,\"text\":", (long long)h->a);
            cli_put_json(output, h->text, h->bytes);
            cli_put(output, "}", 1);
        }
    }
    cli_put_text(output, "]}\n");
}

int cli_run_similar(const cli_options *options)
{
    search s = {.options = options, .list = {.limit = options->top}};
    cli_output output = {0};
    int code = cli_input_open(&s.input, options->operand, (int)options->input_format);
    if (code == CLI_OK)
        code = cli_output_open(&output, options->output);
    if (code == CLI_OK) {
        s.list.hits = calloc((size_t)options->top + 1, sizeof(hit));
        if (s.list.hits == NULL)
            code = cli_fail_memory("the best lines", (size_t)options->top * sizeof(hit));
    }
    if (code == CLI_OK)
        code = prepare(&s);
    if (code == CLI_OK)
        code = read_lines(&s);
    if (code == CLI_OK && options->pairs)
        find_pairs(&s);
    if (code == CLI_OK && cli_signal_pending() != 0)
        code = cli_stopped(s.embedder.texts);
    if (code == CLI_OK) {
        if (options->json)
            print_json(&s, &output);
        else
            print_plain(&s, &output);
        code = cli_output_commit(&output);
    }
    if (code == CLI_OK)
        cli_embedder_report(&s.embedder, s.session.model.max_tokens);
    for (int64_t i = 0; i < s.list.count; i++)
        free(s.list.hits[i].text);
    free(s.list.hits);
    free(s.query);
    corpus_release(&s.all);
    cli_embedder_release(&s.embedder);
    cli_session_close(&s.session);
    cli_output_close(&output);
    cli_input_close(&s.input);
    return code;
}
