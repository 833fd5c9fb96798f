/*
 * bench_graphs.c - mstar bench graphs: a real model's batches run eager and replayed, side by side
 * in one run: single short texts, and with --input the texts of a file.
 *
 * Both encoders live on one device and take turns, so that a machine that slows down slows both.
 * waste is the share of the replayed buckets' rows that held no token; what it costs in time is
 * replay_share - 1.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 400, LEAST_ROUNDS = 5, MAX_TOKENS = 128 };

static const int32_t text_tokens[] = {8, 16, 32, 64, MAX_TOKENS};
enum { NUM_TEXT_TOKENS = sizeof text_tokens / sizeof text_tokens[0] };

/* The same model twice: [0] eager, [1] with graphs. */
typedef struct pair {
    mstar_encoder *encoder[2];
    mstar_encoder_info model;
    const mstar_text *texts; /* NULL: one segment of ids */
    int64_t count;
    int32_t ids[MAX_TOKENS], offsets[2];
    float *vectors;
    int64_t tokens; /* of the texts */
    mstar_text_result *results;
} pair;

static int run(pair *p, int which)
{
    mstar_encoder *encoder = p->encoder[which];
    mstar_status status = p->texts != NULL
                              ? mstar_encoder_embed(encoder, p->texts, p->count, p->vectors,
                                                    p->model.dims, p->results)
                              : mstar_encoder_embed_ids(encoder, p->ids, NULL, p->offsets, 1, NULL,
                                                        p->vectors, p->model.dims);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

static mstar_graph_runner_info query(const pair *p)
{
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    (void)mstar_encoder_query_graphs(p->encoder[1], &info);
    return info;
}

/* Medians of both in seconds, one run of each in turn, for about so many seconds. */
static int time_both(pair *p, double seconds, double *medians, int *rounds)
{
    static double times[2][MOST_ROUNDS];
    int code = run(p, 0), count = 0;
    if (code == CLI_OK)
        code = run(p, 1);
    double start = cli_bench_now();
    while (code == CLI_OK && count < MOST_ROUNDS &&
           (count < LEAST_ROUNDS || cli_bench_now() - start < seconds)) {
        for (int i = 0; i < 2 && code == CLI_OK; i++) {
            int which = (count + i) % 2; /* neither is always the first */
            double before = cli_bench_now();
            code = run(p, which);
            times[which][count] = cli_bench_now() - before;
        }
        count++;
    }
    for (int i = 0; i < 2; i++)
        medians[i] = cli_bench_median(times[i], count);
    *rounds = count;
    return code;
}

static int bench_row(pair *p, const char *name, int64_t texts, double seconds, cli_report *report)
{
    double medians[2];
    int rounds;
    mstar_graph_runner_info before = query(p);
    int code = time_both(p, seconds, medians, &rounds);
    if (code != CLI_OK)
        return code;
    mstar_graph_runner_info after = query(p);
    double padding = (double)(after.padding_tokens - before.padding_tokens);
    double tokens = (double)(after.replayed_tokens - before.replayed_tokens);
    for (int64_t i = 0; p->texts != NULL && i < texts; i++)
        p->tokens += p->results[i].tokens;
    json_t *row = cli_bench_row(report);
    cli_bench_put_text(report, row, "name", name);
    cli_bench_put_integer(report, row, "texts", texts);
    cli_bench_put_integer(report, row, "tokens", p->tokens);
    cli_bench_put_number(report, row, "eager_us", medians[0] * 1e6);
    cli_bench_put_number(report, row, "replay_us", medians[1] * 1e6);
    cli_bench_put_number(report, row, "replay_share", medians[1] / medians[0]);
    cli_bench_put_number(report, row, "waste", padding > 0 ? padding / (padding + tokens) : 0);
    cli_bench_put_integer(report, row, "buckets", after.num_captured);
    cli_bench_put_integer(report, row, "eager_steps", after.eager_steps - before.eager_steps);
    cli_bench_put_integer(report, row, "rounds", rounds);
    return CLI_OK;
}

static int bench_texts(pair *p, const char *name, const cli_chunk *chunk, cli_report *report)
{
    size_t bytes = (size_t)chunk->count * (size_t)p->model.dims * sizeof(float);
    p->vectors = malloc(bytes);
    p->results = malloc((size_t)chunk->count * sizeof *p->results);
    p->texts = chunk->texts;
    p->count = chunk->count;
    p->tokens = 0;
    int code =
        p->vectors != NULL && p->results != NULL ? CLI_OK : cli_fail_memory("vectors", bytes);
    if (code == CLI_OK)
        code = bench_row(p, name, chunk->count, 8, report);
    free(p->results);
    free(p->vectors);
    return code;
}

/* Any ids do: the time of a text depends on how many there are. */
static int bench_single(pair *p, cli_report *report)
{
    int code = CLI_OK;
    p->vectors = malloc((size_t)p->model.dims * sizeof(float));
    if (p->vectors == NULL)
        return cli_fail_memory("a vector", (size_t)p->model.dims * sizeof(float));
    for (int i = 0; i < MAX_TOKENS; i++)
        p->ids[i] = (int32_t)(i * 37 % p->model.vocab_size);
    for (int i = 0; i < NUM_TEXT_TOKENS && code == CLI_OK; i++) {
        if (text_tokens[i] > p->model.max_tokens)
            break;
        p->tokens = p->offsets[1] = text_tokens[i];
        code = bench_row(p, "one text", 1, 1, report);
    }
    free(p->vectors);
    return code;
}

static int load(const cli_options *options, cli_session *session, pair *p)
{
    mstar_encoder_desc desc;
    mstar_encoder_desc_init(&desc);
    desc.dtype = (mstar_dtype)options->dtype;
    desc.max_batch_tokens = (int32_t)options->batch_tokens;
    for (int i = 0; i < 2; i++) {
        desc.graphs = i;
        mstar_status status =
            mstar_encoder_load(session->device, options->model, &desc, &p->encoder[i]);
        if (status != MSTAR_OK)
            return cli_fail_load(status);
    }
    p->model.struct_size = sizeof p->model;
    mstar_status status = mstar_encoder_query(p->encoder[1], &p->model);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

int cli_bench_graphs(const cli_options *options)
{
    cli_session session = {0};
    cli_report report = {0};
    cli_chunk chunk = {0};
    pair p;
    memset(&p, 0, sizeof p);
    if (options->model == NULL)
        return cli_fail(CLI_USAGE, "bench graphs needs --model DIR. Try 'mstar bench --help'");
    int code = options->input != NULL ? cli_bench_read_texts(options, &chunk) : CLI_OK;
    if (code == CLI_OK)
        code = cli_session_open_device(&session, options->threads);
    if (code == CLI_OK)
        code = load(options, &session, &p);
    if (code == CLI_OK) {
        cli_bench_start(&report, "graphs", &session.machine, mstar_dtype_name(p.model.dtype));
        cli_report_text(&report, NULL, "model", options->model);
        code = bench_single(&p, &report);
    }
    if (code == CLI_OK && options->input != NULL)
        code = bench_texts(&p, options->input, &chunk, &report);
    if (code == CLI_OK)
        code = cli_bench_finish(&report, options, cli_bench_peak(&session.machine, p.model.dtype));
    else
        json_decref(report.root);
    cli_chunk_release(&chunk);
    mstar_encoder_release(p.encoder[0]);
    mstar_encoder_release(p.encoder[1]);
    cli_session_close(&session);
    return code;
}
