/*
 * encoder.c - the text encoder object: load, query, release.
 *
 * Load runs from cheap to dear: the caller's desc, the folder's configs, the tokenizer, the
 * checkpoint's headers, and only then memory for weights and workers.
 */
#include <stdio.h>
#include <string.h>

#include "model/encoder.h"
#include "model/tokenizer.h"

/* Of one forward that all threads share; and of one that a worker has to itself, whose activations
 * then stay near its core: 256 tokens were 3 % faster than 1024 on two cores of 1 MiB. */
#define DEFAULT_BATCH_TOKENS 1024
#define DEFAULT_WORKER_TOKENS 256
#define DEVICE_BATCH_TOKENS 8192 /* of a GPU, which wants many rows */
#define MAX_BATCH_TOKENS (1 << 24)

void mstar_encoder_desc_init(mstar_encoder_desc *desc)
{
    if (desc == NULL)
        return;
    memset(desc, 0, sizeof *desc);
    desc->struct_size = (uint32_t)sizeof *desc;
    desc->dtype = MSTAR_DTYPE_F32;
    desc->pooling = -1;
    desc->normalize = -1;
    desc->max_tokens = -1;
    desc->truncate = MSTAR_TRUNCATE_END;
    desc->max_batch_tokens = -1;
    desc->prompt_name = NULL;
    desc->graph_compile = 1;
}

static mstar_status check_desc(const mstar_device *device, const mstar_encoder_desc *desc)
{
    bool host = mst_place_is_host(device);
    if (desc->dtype != MSTAR_DTYPE_F32 && desc->dtype != MSTAR_DTYPE_BF16 &&
        (host || desc->dtype != MSTAR_DTYPE_F16))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.dtype is %s (%d); it must be f32 or bf16%s",
                        mstar_dtype_name(desc->dtype), (int)desc->dtype, host ? "" : " or f16");
    MST_TRY(mst_check_range("desc.pooling", desc->pooling, -1, MST_NUM_POOLINGS - 1));
    MST_TRY(mst_check_range("desc.normalize", desc->normalize, -1, 1));
    MST_TRY(mst_check_range("desc.timing", desc->timing, 0, 1));
    MST_TRY(mst_check_range("desc.graphs", desc->graphs, 0, 1));
    if (desc->graphs && desc->timing)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.graphs is 1 and desc.timing too; a replay has no stages to time");
    MST_TRY(mst_check_range("desc.graph_compile", desc->graph_compile, 0, 1));
    MST_TRY(mst_check_range("desc.num_graph_tokens", desc->num_graph_tokens, 0, 4096));
    if (desc->num_graph_tokens > 0)
        MST_TRY(mst_check_not_null("desc.graph_tokens", desc->graph_tokens));
    for (int64_t i = 0; i < desc->num_graph_tokens; i++)
        MST_TRY(mst_check_range("desc.graph_tokens", desc->graph_tokens[i], 1, INT32_MAX));
    MST_TRY(mst_check_range("desc.truncate", (int64_t)desc->truncate, MSTAR_TRUNCATE_END,
                            MSTAR_TRUNCATE_ERROR));
    return MSTAR_OK;
}

/* ---- load ------------------------------------------------------------------------------------ */

/* Tokens of a text without a limit, special ones included; *last_special: the last is one. */
static mstar_status count_tokens(const mstar_tokenizer *tokenizer, const char *text, int64_t *count,
                                 bool *last_special)
{
    mstar_tokens tokens;
    const mstar_text given = {text, strlen(text)};
    mstar_tokens_init(&tokens);
    mstar_status status = mstar_tokenizer_encode(tokenizer, NULL, &given, NULL, &tokens);
    if (status == MSTAR_OK) {
        *count = tokens.count;
        *last_special = tokens.count > 0 && tokens.special[tokens.count - 1] != 0;
    }
    mstar_tokens_release(&tokens);
    return status;
}

/* Special tokens and type ids come from a list of their own in tokenizer.json. */
static mstar_status check_template(const mstar_encoder *encoder)
{
    const mst_folder *folder = &encoder->folder;
    int32_t max_id, max_type;
    mst_template_limits(&encoder->tokenizer->single, &max_id, &max_type);
    if (max_id >= folder->config.vocab_size)
        return mst_fail(
            MSTAR_BAD_DATA,
            "%s: the tokenizer adds a special token of id %d; vocab_size of config.json "
            "is %d",
            folder->transformer, max_id, folder->config.vocab_size);
    if (max_type >= folder->config.type_vocab_size)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: the tokenizer gives type id %d; type_vocab_size of config.json is %d",
                        folder->transformer, max_type, folder->config.type_vocab_size);
    return MSTAR_OK;
}

static mstar_status load_tokenizer(const mstar_encoder_desc *desc, mstar_encoder *encoder)
{
    const mst_folder *folder = &encoder->folder;
    int64_t count;
    bool last_special;
    MST_TRY(mstar_tokenizer_load(folder->transformer, &encoder->tokenizer));
    int64_t vocab = mstar_tokenizer_get_vocab_size(encoder->tokenizer);
    if (vocab > folder->config.vocab_size)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: the tokenizer has ids up to %lld; vocab_size of config.json is %d",
                        folder->transformer, (long long)(vocab - 1), folder->config.vocab_size);
    MST_TRY(check_template(encoder));
    MST_TRY(count_tokens(encoder->tokenizer, "", &count, &last_special));
    if (folder->max_tokens < count)
        return mst_fail(desc->max_tokens != -1 ? MSTAR_INVALID_ARGUMENT : MSTAR_BAD_DATA,
                        "%s is %lld; special tokens alone are %lld",
                        desc->max_tokens != -1 ? "desc.max_tokens" : folder->max_tokens_source,
                        (long long)folder->max_tokens, (long long)count);
    mstar_tokenize_desc_init(&encoder->tokenize);
    encoder->tokenize.max_tokens = folder->max_tokens;
    encoder->tokenize.truncate = desc->truncate;
    if (!folder->include_prompt && folder->prompt[0] != '\0') {
        /* the closing special token belongs to the text, not to the prompt */
        MST_TRY(count_tokens(encoder->tokenizer, folder->prompt, &count, &last_special));
        encoder->prompt_tokens =
            (int32_t)mst_min_i64(count - (last_special ? 1 : 0), folder->max_tokens);
    }
    return MSTAR_OK;
}

static mstar_status choose_batch_tokens(const mstar_encoder_desc *desc, mstar_encoder *encoder)
{
    encoder->max_batch_tokens = mst_max_i64(DEFAULT_BATCH_TOKENS, encoder->folder.max_tokens);
    encoder->worker_batch_tokens = mst_max_i64(DEFAULT_WORKER_TOKENS, encoder->folder.max_tokens);
    if (!mst_place_is_host(encoder->device))
        encoder->max_batch_tokens = mst_max_i64(DEVICE_BATCH_TOKENS, encoder->folder.max_tokens);
    else if (encoder->device->num_threads == 1)
        encoder->max_batch_tokens = encoder->worker_batch_tokens;
    if (desc->max_batch_tokens == -1)
        return MSTAR_OK;
    MST_TRY(mst_check_range("desc.max_batch_tokens", desc->max_batch_tokens,
                            encoder->folder.max_tokens, MAX_BATCH_TOKENS));
    encoder->max_batch_tokens = desc->max_batch_tokens;
    encoder->worker_batch_tokens = desc->max_batch_tokens;
    return MSTAR_OK;
}

/*
 * A workspace has a piece a thread, and every thread has a worker: with a workspace each, memory
 * would grow with the square of the threads. Workers are serial and touch the first piece of theirs
 * only, so their workspaces overlap from the second on; the first worker's, which all threads use
 * when a batch is shared by rows, never runs at the same time as the others.
 */
static mstar_status take_workspaces(mstar_encoder *encoder, mstar_dtype dtype, size_t *piece,
                                    size_t *whole)
{
    size_t threads = (size_t)encoder->device->num_threads;
    mstar_ragged_prefill_desc desc;
    mst_worker_attention(&encoder->folder, dtype, &desc);
    MST_TRY(mstar_ragged_prefill_workspace_query(encoder->device, &desc, whole));
    if (!mst_place_is_host(encoder->device)) {
        *piece = 0;
        encoder->workspaces_bytes = *whole;
        MST_TRY(mstar_buffer_create(encoder->device, *whole, &encoder->workspaces_buffer));
        encoder->workspaces = mstar_buffer_get_data(encoder->workspaces_buffer);
        return MSTAR_OK;
    }
    *piece = *whole / threads;
    encoder->workspaces_bytes = *whole + (threads - 1) * *piece;
    return mst_alloc(encoder->workspaces_bytes, "attention workspaces", &encoder->workspaces);
}

static mstar_status open_graph_configs(const mstar_encoder_desc *desc, mstar_encoder *encoder)
{
    MST_TRY(mst_graph_config_open(encoder->max_batch_tokens, desc, &encoder->graph_configs[0]));
    return mst_graph_config_open(encoder->worker_batch_tokens, desc, &encoder->graph_configs[1]);
}

static mstar_status open_workers(const mstar_encoder_desc *desc, mstar_encoder *encoder)
{
    void *memory;
    mstar_dtype dtype;
    size_t piece, whole;
    MST_TRY(mst_weights_x_dtype(&encoder->weights, &dtype));
    MST_TRY(
        mst_alloc_array(encoder->folder.max_tokens + 1, sizeof(int64_t), "length counts", &memory));
    encoder->counts = memory;
    MST_TRY(mst_alloc_array(encoder->device->num_threads, sizeof *encoder->workers, "workers",
                            &memory));
    encoder->workers = memory;
    MST_TRY(take_workspaces(encoder, dtype, &piece, &whole));
    if (desc->graphs)
        MST_TRY(open_graph_configs(desc, encoder));
    for (int32_t i = 0; i < encoder->device->num_threads; i++) {
        /* the first worker's memory also serves the forwards that all threads share */
        int64_t tokens = i == 0 ? encoder->max_batch_tokens : encoder->worker_batch_tokens;
        if (i > 0 && !mst_place_is_host(encoder->device)) {
            mst_worker_open_bare(&encoder->workers[i]);
            encoder->num_workers++;
            encoder->workers[i].timing = desc->timing != 0; /* of texts to ids */
            continue;
        }
        /* a device with memory of its own has no workspaces here */
        unsigned char *workspace = encoder->workspaces;
        if (workspace != NULL)
            workspace += (size_t)i * piece;
        MST_TRY(mst_worker_open(encoder->device, &encoder->folder, dtype, tokens, workspace, whole,
                                &encoder->workers[i]));
        encoder->num_workers++;
        if (desc->timing)
            MST_TRY(mst_stages_open(encoder->device, &encoder->workers[i]));
        if (desc->graphs)
            MST_TRY(mst_worker_graphs_open(encoder->device, &encoder->folder, &encoder->weights,
                                           encoder->graph_configs[i == 0 ? 0 : 1], workspace, whole,
                                           encoder->workers, &encoder->workers[i]));
    }
    return mstar_stream_create(encoder->device, -1, &encoder->stream);
}

static mstar_status load_all(const char *path, const mstar_encoder_desc *desc,
                             mstar_encoder *encoder)
{
    MST_TRY(mst_folder_read(path, desc, &encoder->folder));
    MST_TRY(choose_batch_tokens(desc, encoder));
    MST_TRY(load_tokenizer(desc, encoder));
    MST_TRY(mst_weights_load(encoder->device, &encoder->folder, encoder->dtype, &encoder->weights));
    return open_workers(desc, encoder);
}

mstar_status mstar_encoder_load(mstar_device *device, const char *folder,
                                const mstar_encoder_desc *desc, mstar_encoder **encoder)
{
    mstar_encoder_desc full;
    void *memory;
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("folder", folder));
    MST_TRY(mst_check_not_null("encoder", encoder));
    mstar_encoder_desc_init(&full);
    MST_TRY(mst_desc_read("desc", desc, &full, sizeof full));
    MST_TRY(check_desc(device, &full));
    MST_TRY(mst_alloc_zero(sizeof **encoder, "encoder", &memory));
    mstar_encoder *fresh = memory;
    fresh->device = device;
    fresh->dtype = full.dtype;
    mst_device_retain(device);
    mstar_status status = load_all(folder, &full, fresh);
    if (status != MSTAR_OK) {
        mstar_encoder_release(fresh);
        return status;
    }
    *encoder = fresh;
    return MSTAR_OK;
}

void mstar_encoder_release(mstar_encoder *encoder)
{
    if (encoder == NULL)
        return;
    for (int32_t i = 0; i < encoder->num_workers; i++)
        mst_worker_close(&encoder->workers[i]);
    for (int i = 0; i < 2; i++)
        mstar_graph_config_destroy(encoder->graph_configs[i]);
    mstar_stream_destroy(encoder->stream);
    mst_weights_release(&encoder->weights);
    mstar_tokenizer_release(encoder->tokenizer);
    mst_folder_release(&encoder->folder);
    mst_free(encoder->workers);
    if (encoder->workspaces_buffer != NULL)
        mstar_buffer_destroy(encoder->workspaces_buffer);
    else
        mst_free(encoder->workspaces);
    mst_free(encoder->counts);
    mst_free(encoder->segments);
    mst_free(encoder->lengths);
    mst_free(encoder->order);
    mst_free(encoder->ends);
    mst_device_release(encoder->device);
    mst_free(encoder);
}

/* ---- query ----------------------------------------------------------------------------------- */

static void copy_text(char *out, size_t bytes, const char *text)
{
    (void)snprintf(out, bytes, "%s", text);
}

/* Cut to fit, but never inside a UTF-8 sequence. */
static void copy_prompt(char *out, size_t bytes, const char *prompt)
{
    size_t length = strlen(prompt);
    if (length >= bytes) {
        length = bytes - 1;
        while (length > 0 && ((unsigned char)prompt[length] & 0xc0) == 0x80)
            length--;
    }
    memcpy(out, prompt, length);
    out[length] = '\0';
}

mstar_status mstar_encoder_query(const mstar_encoder *encoder, mstar_encoder_info *info)
{
    mstar_encoder_info full;
    MST_TRY(mst_check_not_null("encoder", encoder));
    const mst_folder *folder = &encoder->folder;
    const mst_bert_config *config = &folder->config;
    memset(&full, 0, sizeof full);
    full.struct_size = (uint32_t)sizeof full;
    full.layers = config->layers;
    full.heads = config->heads;
    full.head_dim = config->head_dim;
    full.hidden = config->hidden;
    full.intermediate = config->intermediate;
    full.dims = (int32_t)folder->dims;
    full.normalize = folder->normalize;
    full.num_poolings = folder->num_poolings;
    memcpy(full.poolings, folder->poolings, sizeof full.poolings);
    full.dtype = encoder->dtype;
    full.vocab_size = config->vocab_size;
    full.max_tokens = folder->max_tokens;
    full.max_batch_tokens = encoder->max_batch_tokens;
    full.parameters = encoder->weights.parameters;
    full.weight_bytes = encoder->weights.bytes;
    full.num_workers = mst_encoder_forwarders(encoder);
    full.arena_bytes = encoder->workspaces_bytes;
    for (int32_t i = 0; i < encoder->num_workers; i++) {
        size_t bytes;
        MST_TRY(mst_worker_bytes(&encoder->workers[i], &bytes));
        full.arena_bytes += bytes;
    }
    copy_text(full.model_type, sizeof full.model_type, config->model_type);
    copy_text(full.activation, sizeof full.activation, mstar_activation_name(config->activation));
    copy_text(full.pooling_source, sizeof full.pooling_source, folder->pooling_source);
    copy_text(full.normalize_source, sizeof full.normalize_source, folder->normalize_source);
    copy_text(full.max_tokens_source, sizeof full.max_tokens_source, folder->max_tokens_source);
    copy_text(full.prompt_source, sizeof full.prompt_source, folder->prompt_source);
    copy_prompt(full.prompt, sizeof full.prompt, folder->prompt);
    return mst_info_write("info", &full, sizeof full, info);
}

const mstar_tokenizer *mstar_encoder_get_tokenizer(const mstar_encoder *encoder)
{
    return encoder != NULL ? encoder->tokenizer : NULL;
}
