/*
 * bench_embed.c - mstar bench embed: strings to vectors, with the model loaded once and the texts
 * read before the clock starts.
 *
 * Work is counted over real tokens: two operations for each weight of the encoder's products and
 * four for each visible pair of tokens, layer and hidden column.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

typedef struct embed_run {
    cli_session *session;
    const cli_chunk *texts;
    float *vectors;
    mstar_text_result *results;
} embed_run;

static int run_once(void *context)
{
    const embed_run *run = context;
    mstar_status status =
        mstar_encoder_embed(run->session->encoder, run->texts->texts, run->texts->count,
                            run->vectors, run->session->model.dims, run->results);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

static double count_flops(const mstar_encoder_info *model, const mstar_text_result *results,
                          int64_t count, int64_t *tokens)
{
    double hidden = model->hidden;
    double weights = model->layers * (4 * hidden * hidden + 2 * hidden * model->intermediate);
    double flops = 0;
    *tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        double n = (double)results[i].tokens;
        *tokens += results[i].tokens;
        flops += 2 * weights * n + 4 * hidden * n * n * model->layers;
    }
    return flops;
}

/* What each stage takes of the time of all stages, per mille rounded: the workers' times added. */
static int put_shares(const cli_session *session, cli_report *report)
{
    mstar_encoder_times times = {.struct_size = sizeof times};
    if (mstar_encoder_query_times(session->encoder, &times) != MSTAR_OK)
        return cli_fail(CLI_INTERNAL, "%s", mstar_last_error());
    double sum = 0;
    for (int i = 0; i < times.num_stages && i < MSTAR_NUM_STAGES; i++)
        sum += (double)times.ns[i];
    for (int i = 0; i < times.num_stages && i < MSTAR_NUM_STAGES && sum > 0; i++)
        cli_report_value(report, "stage_share", mstar_stage_name((mstar_stage)i),
                         json_real(round((double)times.ns[i] / sum * 1000) / 1000));
    return CLI_OK;
}

int cli_bench_read_texts(const cli_options *options, cli_chunk *chunk)
{
    cli_input input = {0};
    const cli_chunk_limits all = {.max_texts = INT64_MAX,
                                  .max_bytes = (size_t)1 << 40,
                                  .max_tokens = INT64_MAX,
                                  .max_text_tokens = 1000000};
    int code = cli_input_open(&input, options->input, (int)options->input_format);
    if (code == CLI_OK)
        code = cli_input_read(&input, &all, chunk);
    cli_input_close(&input);
    if (code == CLI_OK && chunk->count == 0)
        code = cli_fail(CLI_FAILED, "%s has no texts", options->input);
    return code;
}

/* Once more with times, which a GPU's events would make longer. */
static int run_timed(embed_run *run, const cli_options *options)
{
    cli_session_unload(run->session);
    run->session->timing = true;
    int code = cli_session_load(run->session, options, options->prompt_name);
    return code == CLI_OK ? run_once(run) : code;
}

static int bench_texts(cli_session *session, const cli_options *options, const cli_chunk *chunk,
                       cli_report *report, double *peak)
{
    mstar_dtype dtype = session->model.dtype;
    embed_run run = {.session = session, .texts = chunk};
    size_t bytes = (size_t)chunk->count * (size_t)session->model.dims * sizeof(float);
    run.vectors = malloc(bytes);
    run.results = malloc((size_t)chunk->count * sizeof *run.results);
    int code = CLI_OK;
    if (run.vectors == NULL || run.results == NULL)
        code = cli_fail_memory("vectors", bytes);
    double time = 0;
    int runs = 0;
    *peak = cli_bench_peak(&session->machine, dtype);
    if (code == CLI_OK)
        code = cli_bench_time(run_once, &run, 3, 5.0, &time, &runs);
    double after = cli_bench_peak(&session->machine, dtype);
    *peak = after > *peak ? after : *peak;
    if (code == CLI_OK) {
        int64_t tokens;
        double flops = count_flops(&session->model, run.results, chunk->count, &tokens);
        json_t *row = cli_bench_row(report);
        cli_bench_put_text(report, row, "name", options->input);
        cli_bench_put_integer(report, row, "texts", chunk->count);
        cli_bench_put_integer(report, row, "tokens", tokens);
        cli_bench_put_number(report, row, "ms", time * 1e3);
        cli_bench_put_number(report, row, "texts_per_s", (double)chunk->count / time);
        cli_bench_put_number(report, row, "tokens_per_s", (double)tokens / time);
        cli_bench_put_number(report, row, "gflops", flops / time * 1e-9);
        cli_bench_put_integer(report, row, "runs", runs);
        if (!session->timing)
            code = run_timed(&run, options);
        if (code == CLI_OK)
            code = put_shares(session, report);
    }
    free(run.vectors);
    free(run.results);
    return code;
}

int cli_bench_embed(const cli_options *options)
{
    if (options->model == NULL || options->input == NULL)
        return cli_fail(CLI_USAGE, "bench embed needs --model DIR and --input FILE. Try 'mstar "
                                   "bench --help'");
    cli_session session = {0};
    cli_report report = {0};
    cli_chunk chunk = {0};
    double peak = 0;
    int code = cli_bench_read_texts(options, &chunk);
    if (code == CLI_OK)
        code = cli_session_open_named(&session, options->device, options->threads);
    session.timing = session.machine.kind == MSTAR_DEVICE_CPU;
    double start = cli_bench_now();
    if (code == CLI_OK)
        code = cli_session_load(&session, options, options->prompt_name);
    double load = cli_bench_now() - start;
    if (code == CLI_OK) {
        cli_bench_start(&report, "embed", &session.machine, mstar_dtype_name(session.model.dtype));
        cli_report_text(&report, NULL, "model", options->model);
        cli_bench_put_number(&report, report.root, "load_ms", load * 1e3);
        code = bench_texts(&session, options, &chunk, &report, &peak);
    }
    if (code == CLI_OK)
        code = cli_bench_finish(&report, options, peak);
    else
        json_decref(report.root);
    cli_chunk_release(&chunk);
    cli_session_close(&session);
    return code;
}
