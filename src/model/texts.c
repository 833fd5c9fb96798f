/*
 * texts.c - the texts of a call become token ids, on all threads.
 *
 * Workers take small chunks in ascending order, so that whichever fails, the failure of the lowest
 * text is always among those found, and the error does not depend on the threads. Ids land in the
 * worker's own store; they are pointed at only when all is done, since a store moves as it grows.
 */
#include <stdatomic.h>
#include <string.h>

#include "model/encoder.h"

#define CHUNK_TEXTS 16

typedef struct tokenizing {
    mstar_encoder *encoder;
    const mstar_text *texts;
    int64_t count;
    _Atomic int64_t next;
    atomic_bool failed;
} tokenizing;

/* What the tokenizer gets: prompt and text, lowercased where the folder says so. */
static mstar_status prepare(const mst_folder *folder, mst_worker *worker, const mstar_text *text,
                            mstar_text *prepared)
{
    size_t prompt_bytes = strlen(folder->prompt);
    *prepared = *text;
    if (prompt_bytes > 0) {
        size_t bytes;
        MST_TRY(mst_size_add(prompt_bytes, text->bytes, &bytes));
        MST_TRY(mst_grow(&worker->text, &worker->text_capacity, (int64_t)bytes, 1, "text"));
        memcpy(worker->text, folder->prompt, prompt_bytes);
        if (text->bytes > 0)
            memcpy((char *)worker->text + prompt_bytes, text->data, text->bytes);
        *prepared = (mstar_text){worker->text, bytes};
    }
    if (folder->lower_case) {
        size_t bytes;
        MST_TRY(mst_lowercase(prepared->data, prepared->bytes, &worker->lower,
                              &worker->lower_capacity, &bytes));
        *prepared = (mstar_text){worker->lower, bytes};
    }
    return MSTAR_OK;
}

/* Prompt tokens that are left after truncation; those cut from the start were prompt too. */
static int32_t count_skip(const mstar_encoder *encoder, const mstar_tokens *tokens)
{
    int64_t skip = encoder->prompt_tokens;
    if (skip > 0 && encoder->tokenize.truncate == MSTAR_TRUNCATE_START)
        skip = mst_max_i64(1, skip - (tokens->untruncated_count - tokens->count));
    return (int32_t)mst_min_i64(skip, tokens->count);
}

static mstar_status tokenize_one(mstar_encoder *encoder, int32_t worker_index,
                                 const mstar_text *text, int64_t place)
{
    mst_worker *worker = &encoder->workers[worker_index];
    mstar_tokens *tokens = &worker->tokens;
    mstar_text prepared;
    if (text->data == NULL && text->bytes > 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "data is NULL and bytes is %zu", text->bytes);
    MST_TRY(prepare(&encoder->folder, worker, text, &prepared));
    MST_TRY(
        mstar_tokenizer_encode(encoder->tokenizer, &encoder->tokenize, &prepared, NULL, tokens));
    int64_t count = tokens->count;
    bool typed = false;
    for (int64_t i = 0; i < count; i++)
        typed = typed || tokens->type_ids[i] != 0;
    int64_t want = worker->num_stored + count * (typed ? 2 : 1);
    MST_TRY(mst_grow((void **)&worker->stored_ids, &worker->stored_capacity, want, sizeof(int32_t),
                     "token ids"));
    if (count > 0) { /* else the store may still be without memory */
        int32_t *ids = worker->stored_ids + worker->num_stored;
        memcpy(ids, tokens->ids, (size_t)count * sizeof *ids);
        if (typed)
            memcpy(ids + count, tokens->type_ids, (size_t)count * sizeof *ids);
    }
    encoder->segments[place] = (mst_segment){.first = worker->num_stored,
                                             .untruncated = tokens->untruncated_count,
                                             .worker = worker_index,
                                             .skip = count_skip(encoder, tokens),
                                             .typed = typed};
    encoder->lengths[place] = (int32_t)count;
    worker->num_stored = want;
    return MSTAR_OK;
}

static void tokenize_chunks(void *context, int32_t index)
{
    tokenizing *call = context;
    mst_worker *worker = &call->encoder->workers[index];
    while (!atomic_load(&call->failed)) {
        int64_t time = mst_stage_start(worker);
        int64_t first = atomic_fetch_add(&call->next, CHUNK_TEXTS);
        int64_t end = mst_min_i64(call->count, first + CHUNK_TEXTS);
        if (first >= call->count)
            return;
        for (int64_t i = first; i < end; i++) {
            worker->status = tokenize_one(call->encoder, index, &call->texts[i], i);
            if (worker->status == MSTAR_OK)
                continue;
            worker->failed_text = i;
            (void)strncpy(worker->error, mstar_last_error(), sizeof worker->error - 1);
            atomic_store(&call->failed, true);
            return;
        }
        (void)mst_stage_end(worker, MSTAR_STAGE_TOKENIZE, time);
    }
}

static mstar_status find_failure(const mstar_encoder *encoder)
{
    const mst_worker *first = NULL;
    for (int32_t i = 0; i < encoder->num_workers; i++) {
        const mst_worker *worker = &encoder->workers[i];
        if (worker->status != MSTAR_OK &&
            (first == NULL || worker->failed_text < first->failed_text))
            first = worker;
    }
    return first == NULL ? MSTAR_OK
                         : mst_fail(first->status, "texts[%lld]: %s", (long long)first->failed_text,
                                    first->error);
}

mstar_status mst_encoder_tokenize(mstar_encoder *encoder, const mstar_text *texts, int64_t count)
{
    tokenizing call = {.encoder = encoder, .texts = texts, .count = count};
    int32_t tasks = (int32_t)mst_min_i64(encoder->num_workers, mst_ceil_div(count, CHUNK_TEXTS));
    for (int32_t i = 0; i < encoder->num_workers; i++) {
        encoder->workers[i].num_stored = 0;
        encoder->workers[i].status = MSTAR_OK;
    }
    mst_parallel_for(encoder->device->pool, tasks, tasks, tokenize_chunks, &call);
    MST_TRY(find_failure(encoder));
    for (int64_t i = 0; i < count; i++) {
        mst_segment *segment = &encoder->segments[i];
        if (encoder->lengths[i] == 0)
            continue;
        segment->ids = encoder->workers[segment->worker].stored_ids + segment->first;
        segment->type_ids = segment->typed ? segment->ids + encoder->lengths[i] : NULL;
    }
    return MSTAR_OK;
}
