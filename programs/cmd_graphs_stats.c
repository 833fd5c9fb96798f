/*
 * cmd_graphs_stats.c - mstar graphs stats: texts through an encoder with graphs, and what became of
 * every batch.
 */
#include <string.h>

#include "graph_file.h"

static int embed_all(cli_session *session, const cli_options *options, cli_input *input)
{
    cli_chunk chunk = {0};
    cli_embedder embedder = {0};
    cli_chunk_limits limits = cli_session_chunk_limits(session);
    int code;
    do {
        code = cli_input_read(input, &limits, &chunk);
        if (code == CLI_OK && chunk.count > 0)
            code = cli_embed_chunk(session, options, input, &chunk, &embedder);
    } while (code == CLI_OK && chunk.count > 0 && cli_signal_pending() == 0);
    if (code == CLI_OK && cli_signal_pending() != 0)
        code = cli_stopped(embedder.texts);
    cli_embedder_release(&embedder);
    cli_chunk_release(&chunk);
    return code;
}

int cli_run_graphs_stats(const cli_options *options)
{
    cli_session session = {0};
    cli_input input = {0};
    if (options->model == NULL)
        return cli_fail(CLI_USAGE, "graphs stats needs --model DIR. Try 'mstar graphs --help'");
    if (options->lengths != NULL || options->svg != NULL)
        return cli_fail(CLI_USAGE, "%s is no option of graphs stats",
                        options->lengths != NULL ? "--lengths" : "--svg");
    if (strcmp(options->graphs, "off") == 0)
        return cli_fail(CLI_USAGE, "--graphs is off; graphs stats has nothing to say then");
    cli_options plain = {.command = CLI_GRAPHS, .model = options->model, .graphs = options->graphs};
    plain.pooling = plain.max_tokens = plain.batch_tokens = -1;
    int format = options->input_format == CLI_INPUT_JSONL ? CLI_INPUT_JSONL : CLI_INPUT_LINES;
    int code = cli_input_open(&input, options->file, format);
    if (code == CLI_OK)
        code = cli_session_open_device(&session, -1);
    if (code == CLI_OK)
        code = cli_session_load(&session, &plain, NULL);
    if (code == CLI_OK)
        code = embed_all(&session, &plain, &input);
    if (code == CLI_OK)
        code = cli_graph_stats_print(&session, options->json != 0);
    cli_session_close(&session);
    cli_input_close(&input);
    return code;
}
