/*
 * session.c - a device and an encoder as the options ask for them, and texts through them.
 */
#include "session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph_file.h"

/* ---- opening --------------------------------------------------------------------------------- */

int cli_session_open_device(cli_session *session, int64_t threads)
{
    return cli_session_open_named(session, NULL, threads);
}

int cli_session_open_named(cli_session *session, const char *name, int64_t threads)
{
    memset(session, 0, sizeof *session);
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = (int32_t)threads;
    mstar_status status = mstar_device_open(name != NULL ? name : "cpu", &desc, &session->device);
    if (status == MSTAR_OK) {
        session->machine.struct_size = sizeof session->machine;
        status = mstar_device_query(session->device, &session->machine);
    }
    if (status == MSTAR_OK)
        return CLI_OK;
    /* The desc holds what the parser has checked: a refusal is about the environment. */
    bool environment = status == MSTAR_INVALID_ARGUMENT || status == MSTAR_NOT_SUPPORTED;
    return cli_fail(environment ? CLI_BAD_CONFIG : cli_exit_code(status), "%s", mstar_last_error());
}

/*
 * The library names a refused argument by its field of the desc; our users know the option. Such a
 * refusal says that the command line does not fit the model, whatever its status.
 */
int cli_fail_load(mstar_status status)
{
    static const char *const names[][2] = {
        {"desc.max_batch_tokens", "--batch-tokens"},
        {"desc.max_tokens", "--max-tokens"},
        {"desc.prompt_name", "--prompt-name"},
        {"desc.pooling", "--pooling"},
        {"desc.normalize", "--no-normalize"},
        {"desc.truncate", "--truncate"},
        {"desc.dtype", "--dtype"},
    };
    const char *text = mstar_last_error();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t bytes = strlen(names[i][0]);
        if (strncmp(text, names[i][0], bytes) == 0)
            return cli_fail(CLI_USAGE, "%s%s", names[i][1], text + bytes);
    }
    int code = cli_exit_code(status);
    if (strncmp(text, "MSTAR_", 6) == 0) /* a variable of the environment */
        return cli_fail(CLI_BAD_CONFIG, "%s", text);
    if (status == MSTAR_NOT_FOUND)
        code = CLI_NO_INPUT;
    else if (status == MSTAR_INVALID_ARGUMENT)
        code = CLI_USAGE;
    else if (status == MSTAR_BAD_DATA || status == MSTAR_IO_FAILED || status == MSTAR_NOT_SUPPORTED)
        code = CLI_BAD_CONFIG;
    return cli_fail(code, "%s", text);
}

/* Buckets and compile mode of a plan's file. plan, whose texts desc borrows, and *tokens are the
 * caller's to give back. */
static int read_plan(const char *path, cli_graph_plan *plan, int64_t **tokens,
                     mstar_encoder_desc *desc)
{
    int code = cli_graph_plan_read(path, plan);
    if (code != CLI_OK)
        return code;
    *tokens = malloc((size_t)plan->num_buckets * sizeof **tokens);
    if (*tokens == NULL)
        return cli_fail_memory("buckets", (size_t)plan->num_buckets * sizeof **tokens);
    for (int64_t i = 0; i < plan->num_buckets; i++) {
        if (plan->buckets[i].num_tokens > 0) /* a bucket of no tokens serves no batch of ours */
            (*tokens)[desc->num_graph_tokens++] = plan->buckets[i].num_tokens;
    }
    desc->graph_tokens = *tokens;
    desc->graph_compile = !plan->no_compile;
    if (plan->compile_mode[0] != '\0')
        desc->graph_compile_mode = plan->compile_mode;
    return CLI_OK;
}

static int load(cli_session *session, const cli_options *options, const mstar_encoder_desc *desc)
{
    mstar_status status =
        mstar_encoder_load(session->device, options->model, desc, &session->encoder);
    if (status != MSTAR_OK)
        return cli_fail_load(status);
    session->model.struct_size = sizeof session->model;
    status = mstar_encoder_query(session->encoder, &session->model);
    return status == MSTAR_OK ? CLI_OK : cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

int cli_session_load(cli_session *session, const cli_options *options, const char *prompt_name)
{
    int64_t *tokens = NULL;
    cli_graph_plan plan = {.buckets = NULL};
    mstar_encoder_desc desc;
    mstar_encoder_desc_init(&desc);
    desc.dtype = (mstar_dtype)options->dtype;
    desc.pooling = (int32_t)options->pooling;
    desc.normalize = options->no_normalize ? 0 : -1;
    desc.max_tokens = options->max_tokens;
    desc.truncate = (mstar_truncate)options->truncate;
    desc.max_batch_tokens = (int32_t)options->batch_tokens;
    desc.prompt_name = prompt_name;
    desc.timing = session->timing;
    desc.graphs = options->graphs != NULL && strcmp(options->graphs, "off") != 0;
    int code = CLI_OK;
    if (desc.graphs && strcmp(options->graphs, "on") != 0)
        code = read_plan(options->graphs, &plan, &tokens, &desc);
    if (code == CLI_OK)
        code = load(session, options, &desc);
    free(tokens);
    cli_graph_plan_release(&plan);
    return code;
}

void cli_session_unload(cli_session *session)
{
    mstar_encoder_release(session->encoder);
    session->encoder = NULL;
}

void cli_session_close(cli_session *session)
{
    cli_session_unload(session);
    if (session->device != NULL)
        (void)mstar_device_close(session->device);
    session->device = NULL;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

cli_chunk_limits cli_session_chunk_limits(const cli_session *session)
{
    int64_t workers = session->model.num_workers > 0 ? session->model.num_workers : 1;
    int64_t tokens = session->model.max_batch_tokens * workers * 2;
    return (cli_chunk_limits){.max_texts = 4096,
                              .max_bytes = (size_t)8 << 20,
                              .max_tokens = tokens > 4096 ? tokens : 4096,
                              .max_text_tokens = session->model.max_tokens};
}

static int embedder_reserve(cli_embedder *embedder, int64_t count, int64_t dims)
{
    if (count <= embedder->capacity)
        return CLI_OK;
    size_t bytes = (size_t)count * (size_t)dims * sizeof(float);
    float *values = realloc(embedder->values, bytes);
    if (values == NULL)
        return cli_fail_memory("vectors", bytes);
    embedder->values = values;
    bytes = (size_t)count * sizeof(mstar_text_result);
    mstar_text_result *results = realloc(embedder->results, bytes);
    if (results == NULL)
        return cli_fail_memory("results", bytes);
    embedder->results = results;
    embedder->capacity = count;
    return CLI_OK;
}

/*
 * The library names the length and the bound, but not our line: with --truncate error the texts of
 * the chunk are tried one by one until the one that is refused.
 */
static int fail_embed(cli_session *session, const cli_options *options, const cli_input *input,
                      const cli_chunk *chunk, cli_embedder *embedder, mstar_status status)
{
    if (status == MSTAR_INVALID_ARGUMENT && options->truncate == MSTAR_TRUNCATE_ERROR) {
        for (int64_t i = 0; i < chunk->count && cli_signal_pending() == 0; i++) {
            status = mstar_encoder_embed(session->encoder, &chunk->texts[i], 1, embedder->values,
                                         session->model.dims, NULL);
            if (status != MSTAR_OK) {
                static const char place[] = "texts[0]: "; /* the line says it better */
                const char *text = mstar_last_error();
                if (strncmp(text, place, sizeof place - 1) == 0)
                    text += sizeof place - 1;
                return cli_fail(cli_exit_code(status), "%s:%lld:1: %s", input->label,
                                (long long)chunk->items[i].line, text);
            }
        }
    }
    return cli_fail(cli_exit_code(status), "%s", mstar_last_error());
}

int cli_embed_chunk(cli_session *session, const cli_options *options, const cli_input *input,
                    const cli_chunk *chunk, cli_embedder *embedder)
{
    int64_t dims = session->model.dims;
    int code = embedder_reserve(embedder, chunk->count, dims);
    if (code != CLI_OK)
        return code;
    mstar_status status = mstar_encoder_embed(session->encoder, chunk->texts, chunk->count,
                                              embedder->values, dims, embedder->results);
    if (status != MSTAR_OK)
        return fail_embed(session, options, input, chunk, embedder, status);
    for (int64_t i = 0; i < chunk->count; i++) {
        const cli_chunk_item *item = &chunk->items[i];
        const mstar_text_result *result = &embedder->results[i];
        for (int64_t j = 0; j < dims; j++) {
            /* JSON has no NaN, and a vector with one is of no use in any format. */
            if (!isfinite(embedder->values[i * dims + j]))
                return cli_fail(CLI_FAILED,
                                "%s:%lld:1: component %lld of the vector is not finite; the "
                                "model's weights may be damaged",
                                input->label, (long long)item->line, (long long)j);
        }
        embedder->tokens += result->tokens;
        if (result->untruncated_tokens > result->tokens) {
            if (embedder->truncated++ == 0)
                embedder->first_truncated_line = item->line;
        }
        if (item->empty && embedder->empty++ == 0)
            embedder->first_empty_line = item->line;
    }
    embedder->texts += chunk->count;
    return CLI_OK;
}

void cli_embedder_report(const cli_embedder *embedder, int64_t max_tokens)
{
    if (embedder->truncated > 0)
        cli_note("%lld of %lld texts were cut to %lld tokens, the first in line %lld",
                 (long long)embedder->truncated, (long long)embedder->texts, (long long)max_tokens,
                 (long long)embedder->first_truncated_line);
    if (embedder->empty > 0)
        cli_note("%lld of %lld texts are empty, the first in line %lld", (long long)embedder->empty,
                 (long long)embedder->texts, (long long)embedder->first_empty_line);
}

void cli_embedder_release(cli_embedder *embedder)
{
    free(embedder->values);
    free(embedder->results);
    memset(embedder, 0, sizeof *embedder);
}
