/*
 * cmd_tokenize.c - mstar tokenize: texts in, token ids out.
 */
#include <string.h>

#include "options.h"
#include "output.h"
#include "progress.h"
#include "session.h"

static void put_ids(cli_output *output, const mstar_tokens *tokens, const char *between)
{
    for (int64_t i = 0; i < tokens->count; i++) {
        if (i > 0)
            cli_put_text(output, between);
        cli_put_integer(output, tokens->ids[i]);
    }
}

static const char *token_text(const mstar_tokenizer *tokenizer, int32_t id)
{
    const char *text = mstar_tokenizer_get_token(tokenizer, id);
    return text != NULL ? text : "";
}

static void put_object(cli_output *output, const mstar_tokenizer *tokenizer, const cli_chunk *chunk,
                       int64_t i, const mstar_tokens *tokens)
{
    const cli_chunk_item *item = &chunk->items[i];
    cli_put_format(output, "{\"index\":%lld", (long long)(chunk->first_index + i));
    if (item->id_bytes > 0) {
        cli_put_text(output, ",\"id\":");
        cli_put(output, chunk->bytes + item->id_offset, item->id_bytes);
    }
    cli_put_format(output, ",\"truncated\":%s,\"ids\":[",
                   tokens->untruncated_count > tokens->count ? "true" : "false");
    put_ids(output, tokens, ",");
    cli_put_text(output, "],\"tokens\":[");
    for (int64_t j = 0; j < tokens->count; j++) {
        const char *text = token_text(tokenizer, tokens->ids[j]);
        if (j > 0)
            cli_put(output, ",", 1);
        cli_put_json(output, text, strlen(text));
    }
    cli_put_text(output, "],\"offsets\":[");
    for (int64_t j = 0; j < tokens->count; j++)
        cli_put_format(output, "%s[%d,%d]", j > 0 ? "," : "", (int)tokens->starts[j],
                       (int)tokens->ends[j]);
    cli_put_text(output, "]}\n");
}

static void put_tokens(cli_output *output, const mstar_tokenizer *tokenizer, int format,
                       const cli_chunk *chunk, int64_t i, const mstar_tokens *tokens)
{
    if (format == CLI_TOKENS_JSONL) {
        put_object(output, tokenizer, chunk, i, tokens);
        return;
    }
    if (format == CLI_TOKENS_IDS) {
        put_ids(output, tokens, " ");
    } else {
        for (int64_t j = 0; j < tokens->count; j++) {
            if (j > 0)
                cli_put(output, " ", 1);
            cli_put_text(output, token_text(tokenizer, tokens->ids[j]));
        }
    }
    cli_put(output, "\n", 1);
}

static int tokenize_all(const mstar_tokenizer *tokenizer, const cli_options *options,
                        cli_input *input, cli_output *output, cli_embedder *counts)
{
    static const cli_chunk_limits limits = {.max_texts = 1024,
                                            .max_bytes = (size_t)1 << 20,
                                            .max_tokens = INT64_MAX,
                                            .max_text_tokens = 0};
    mstar_tokenize_desc desc;
    mstar_tokenize_desc_init(&desc);
    desc.add_special_tokens = options->no_special ? 0 : 1;
    desc.max_tokens = options->max_tokens;
    desc.truncate = (mstar_truncate)options->truncate;
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    cli_chunk chunk = {0};
    cli_progress progress;
    cli_progress_start(&progress, (int)options->progress, input->total_bytes);
    /* A limit that has no room for the special tokens is told before any text is read. */
    static const mstar_text nothing = {"", 0};
    mstar_status fits = mstar_tokenizer_encode(tokenizer, &desc, &nothing, NULL, &tokens);
    int code = fits == MSTAR_OK ? CLI_OK : cli_fail_load(fits);
    while (code == CLI_OK) {
        code = cli_input_read(input, &limits, &chunk);
        if (code != CLI_OK || chunk.count == 0)
            break;
        for (int64_t i = 0; i < chunk.count && code == CLI_OK; i++) {
            mstar_status status =
                mstar_tokenizer_encode(tokenizer, &desc, &chunk.texts[i], NULL, &tokens);
            if (status != MSTAR_OK) {
                code = cli_fail(cli_exit_code(status), "%s:%lld:1: %s", input->label,
                                (long long)chunk.items[i].line, mstar_last_error());
                break;
            }
            put_tokens(output, tokenizer, (int)options->format, &chunk, i, &tokens);
            counts->tokens += tokens.count;
            if (tokens.untruncated_count > tokens.count && counts->truncated++ == 0)
                counts->first_truncated_line = chunk.items[i].line;
            if (chunk.items[i].empty && counts->empty++ == 0)
                counts->first_empty_line = chunk.items[i].line;
        }
        counts->texts += chunk.count;
        int written = cli_output_flush(output); /* also the texts before a refused one */
        code = code != CLI_OK ? code : written;
        if (code != CLI_OK || cli_signal_pending() != 0)
            break;
        cli_progress_update(&progress, counts->texts, counts->tokens, input->bytes_taken);
    }
    cli_progress_end(&progress);
    cli_chunk_release(&chunk);
    mstar_tokens_release(&tokens);
    if (code == CLI_OK && cli_signal_pending() != 0)
        code = cli_stopped(counts->texts);
    return code;
}

int cli_run_tokenize(const cli_options *options)
{
    cli_input input = {0};
    cli_output output = {0};
    cli_embedder counts = {0};
    mstar_tokenizer *tokenizer = NULL;
    int code = cli_input_open(&input, options->operand, (int)options->input_format);
    if (code == CLI_OK)
        code = cli_output_open(&output, options->output);
    if (code == CLI_OK) {
        mstar_status status = mstar_tokenizer_load(options->model, &tokenizer);
        if (status != MSTAR_OK)
            code = cli_fail_load(status);
    }
    if (code == CLI_OK)
        code = tokenize_all(tokenizer, options, &input, &output, &counts);
    if (code == CLI_OK)
        code = cli_output_commit(&output);
    if (code == CLI_OK)
        cli_embedder_report(&counts, options->max_tokens);
    mstar_tokenizer_release(tokenizer);
    cli_output_close(&output);
    cli_input_close(&input);
    return code;
}
