/*
 * cmd_embed.c - mstar embed: texts in, vectors out, chunk by chunk.
 *
 * Files are opened before the model is loaded, so that a wrong path is told at once.
 */
#include "graph_file.h"
#include "options.h"
#include "progress.h"
#include "session.h"
#include "vectors.h"

static int embed_all(cli_session *session, const cli_options *options, cli_input *input,
                     cli_vectors *vectors, cli_embedder *embedder)
{
    cli_chunk chunk = {0};
    cli_progress progress;
    cli_chunk_limits limits = cli_session_chunk_limits(session);
    cli_progress_start(&progress, (int)options->progress, input->total_bytes);
    int code;
    for (;;) {
        code = cli_input_read(input, &limits, &chunk);
        if (code != CLI_OK || chunk.count == 0)
            break;
        code = cli_embed_chunk(session, options, input, &chunk, embedder);
        if (code != CLI_OK)
            break;
        code = cli_vectors_write(vectors, &chunk, embedder->values, embedder->results);
        if (code != CLI_OK)
            break;
        cli_progress_update(&progress, embedder->texts, embedder->tokens, input->bytes_taken);
        if (cli_signal_pending() != 0)
            break;
    }
    cli_progress_end(&progress);
    cli_chunk_release(&chunk);
    if (code == CLI_OK && cli_signal_pending() != 0)
        code = cli_stopped(embedder->texts);
    return code;
}

int cli_run_embed(const cli_options *options)
{
    cli_input input = {0};
    cli_output output = {0};
    cli_session session = {0};
    cli_vectors vectors = {0};
    cli_embedder embedder = {0};
    int code = cli_input_open(&input, options->operand, (int)options->input_format);
    if (code == CLI_OK)
        code = cli_output_open(&output, options->output);
    if (code == CLI_OK)
        code = cli_session_open_named(&session, options->device, options->threads);
    if (code == CLI_OK)
        code = cli_session_load(&session, options, options->prompt_name);
    if (code == CLI_OK)
        code = cli_vectors_open(&vectors, &output, (int)options->format, session.model.dims);
    if (code == CLI_OK)
        code = embed_all(&session, options, &input, &vectors, &embedder);
    if (code == CLI_OK)
        code = cli_vectors_finish(&vectors);
    if (code == CLI_OK)
        code = cli_output_commit(&output);
    if (code == CLI_OK)
        cli_embedder_report(&embedder, session.model.max_tokens);
    if (code == CLI_OK && options->stats)
        code = cli_graph_stats_note(&session);
    cli_vectors_close(&vectors);
    cli_embedder_release(&embedder);
    cli_session_close(&session);
    cli_output_close(&output);
    cli_input_close(&input);
    return code;
}
