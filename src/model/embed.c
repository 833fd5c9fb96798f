/*
 * embed.c - calls of a text encoder: texts, ids or hidden states.
 *
 * All three become a list of segments, which is sorted, cut into batches and run; the results go
 * straight to the caller's rows, so that neither the order nor the cut can be seen outside.
 * Everything is checked and tokenised before the first row is written.
 */
#include <stdatomic.h>
#include <string.h>

#include "model/encoder.h"

typedef struct embedding_call {
    mstar_encoder *encoder;
    float *out;
    int64_t row_stride;
    bool hidden;    /* rows are tokens, not segments */
    bool skips;     /* segments leave tokens out of pooling */
    bool cls_skips; /* CLS pooling too */
    int64_t num_batches;
    _Atomic int64_t next; /* batch */
    atomic_bool failed;
} embedding_call;

/* ---- one batch ------------------------------------------------------------------------------- */

/* Packs segments [first, end) of the order into the worker; returns their tokens. */
static int64_t pack(const mstar_encoder *encoder, int64_t first, int64_t end, mst_worker *worker)
{
    int64_t tokens = 0;
    worker->offsets[0] = 0;
    for (int64_t i = first; i < end; i++) {
        int64_t place = encoder->order[i];
        const mst_segment *segment = &encoder->segments[place];
        int32_t length = encoder->lengths[place];
        memcpy(worker->ids + tokens, segment->ids, (size_t)length * sizeof(int32_t));
        if (segment->type_ids != NULL)
            memcpy(worker->type_ids + tokens, segment->type_ids, (size_t)length * sizeof(int32_t));
        else
            memset(worker->type_ids + tokens, 0, (size_t)length * sizeof(int32_t));
        for (int32_t j = 0; j < length; j++)
            worker->positions[tokens + j] = j;
        tokens += length;
        worker->offsets[i - first + 1] = (int32_t)tokens;
        worker->skip[i - first] = segment->skip;
    }
    return tokens;
}

static mstar_status run_stages(const embedding_call *call, mst_worker *worker, mstar_stream *stream,
                               int64_t batch)
{
    const mstar_encoder *encoder = call->encoder;
    const mst_folder *folder = &encoder->folder;
    int64_t first = batch > 0 ? encoder->ends[batch - 1] : 0;
    int64_t end = encoder->ends[batch];
    int64_t tokens = pack(encoder, first, end, worker);
    MST_TRY(
        mst_bert_forward(&folder->config, &encoder->weights, worker, stream, tokens, end - first));
    int64_t time = mst_stage_start(worker);
    const float *rows = worker->sum;
    size_t width = (size_t)folder->config.hidden;
    int64_t stride = mst_token_stride(folder->config.hidden);
    if (!call->hidden) {
        MST_TRY(mst_pooler_run(folder, &encoder->weights, worker, stream, tokens, end - first,
                               call->skips ? worker->skip : NULL, call->cls_skips, &rows));
        width = (size_t)folder->dims;
        stride = folder->dims;
    } else {
        MST_TRY(mst_worker_hidden(&folder->config, worker, stream, tokens));
    }
    MST_TRY(mst_worker_fetch(worker, stream, &rows, call->hidden ? tokens : end - first, stride));
    for (int64_t i = first; i < end; i++) {
        int64_t place = encoder->order[i];
        int64_t count = call->hidden ? encoder->lengths[place] : 1;
        int64_t row = call->hidden ? encoder->segments[place].first : place;
        for (int64_t j = 0; j < count; j++) {
            memcpy(call->out + (row + j) * call->row_stride, rows, width * sizeof *rows);
            rows += stride;
        }
    }
    (void)mst_stage_end(worker, MSTAR_STAGE_POOL, time);
    return MSTAR_OK;
}

static mstar_status run_batch(const embedding_call *call, mst_worker *worker, mstar_stream *stream,
                              int64_t batch)
{
    mst_stages_begin(worker, stream);
    return mst_stages_end(worker, run_stages(call, worker, stream, batch));
}

/* ---- all batches ----------------------------------------------------------------------------- */

static void run_batches(void *context, int32_t index)
{
    embedding_call *call = context;
    mst_worker *worker = &call->encoder->workers[index];
    while (!atomic_load(&call->failed)) {
        int64_t batch = atomic_fetch_add(&call->next, 1);
        if (batch >= call->num_batches)
            return;
        worker->status = run_batch(call, worker, worker->stream, batch);
        if (worker->status != MSTAR_OK) {
            (void)strncpy(worker->error, mstar_last_error(), sizeof worker->error - 1);
            atomic_store(&call->failed, true);
        }
    }
}

static mstar_status run_by_segments(embedding_call *call)
{
    mstar_encoder *encoder = call->encoder;
    for (int32_t i = 0; i < encoder->num_workers; i++)
        encoder->workers[i].status = MSTAR_OK;
    mst_parallel_for(encoder->device->pool, encoder->num_workers, encoder->num_workers, run_batches,
                     call);
    for (int32_t i = 0; i < encoder->num_workers; i++) {
        const mst_worker *worker = &encoder->workers[i];
        if (worker->status != MSTAR_OK)
            return mst_fail(worker->status, "%s", worker->error);
    }
    return MSTAR_OK;
}

static mstar_status run_by_rows(embedding_call *call)
{
    for (int64_t batch = 0; batch < call->num_batches; batch++)
        MST_TRY(run_batch(call, &call->encoder->workers[0], call->encoder->stream, batch));
    return MSTAR_OK;
}

static void cut_batches(embedding_call *call, mst_batch_mode mode, int64_t num_segments,
                        int64_t num_tokens)
{
    mstar_encoder *encoder = call->encoder;
    int64_t limit =
        mode == MST_BATCH_SEGMENTS ? encoder->worker_batch_tokens : encoder->max_batch_tokens;
    int64_t parts = mst_batch_parts(num_tokens, limit, mode, encoder->num_workers);
    call->num_batches = mst_batch_cut(encoder->lengths, encoder->order, num_segments, num_tokens,
                                      parts, limit, encoder->ends);
}

/* Runs the encoder's segments; empty ones give zeros. */
static mstar_status run_call(embedding_call *call, int64_t num_segments)
{
    mstar_encoder *encoder = call->encoder;
    int64_t tokens = 0;
    for (int64_t i = 0; i < num_segments; i++) {
        tokens += encoder->lengths[i];
        call->skips = call->skips || encoder->segments[i].skip > 0;
    }
    int64_t filled =
        mst_batch_order(encoder->lengths, num_segments, (int32_t)encoder->folder.max_tokens,
                        encoder->counts, encoder->order);
    mst_batch_mode mode = mst_place_is_host(encoder->device)
                              ? mst_batch_choose(filled, tokens, encoder->num_workers)
                              : MST_BATCH_ROWS; /* one worker gives the device all its work */
    cut_batches(call, mode, filled, tokens);
    if (mode == MST_BATCH_SEGMENTS &&
        !mst_batch_is_even(encoder->lengths, encoder->order, encoder->ends, call->num_batches,
                           encoder->folder.config.hidden, encoder->num_workers)) {
        mode = MST_BATCH_ROWS;
        cut_batches(call, mode, filled, tokens);
    }
    MST_TRY(mode == MST_BATCH_SEGMENTS ? run_by_segments(call) : run_by_rows(call));
    for (int64_t i = 0; i < num_segments && !call->hidden; i++) {
        if (encoder->lengths[i] == 0)
            memset(call->out + i * call->row_stride, 0,
                   (size_t)encoder->folder.dims * sizeof *call->out);
    }
    return MSTAR_OK;
}

mstar_status mst_encoder_reserve(mstar_encoder *encoder, int64_t num_segments)
{
    MST_TRY(mst_grow((void **)&encoder->segments, &encoder->segments_capacity, num_segments,
                     sizeof *encoder->segments, "segments"));
    MST_TRY(mst_grow((void **)&encoder->lengths, &encoder->lengths_capacity, num_segments,
                     sizeof *encoder->lengths, "lengths"));
    MST_TRY(mst_grow((void **)&encoder->order, &encoder->order_capacity, num_segments,
                     sizeof *encoder->order, "order"));
    return mst_grow((void **)&encoder->ends, &encoder->ends_capacity, num_segments,
                    sizeof *encoder->ends, "batch ends");
}

/* ---- texts ----------------------------------------------------------------------------------- */

static mstar_status check_rows(const char *name, const void *rows, int64_t count,
                               const char *stride_name, int64_t row_stride, int64_t width)
{
    if (count > 0)
        MST_TRY(mst_check_not_null(name, rows));
    return mst_check_range(stride_name, row_stride, width, INT64_MAX / 8 / mst_max_i64(count, 1));
}

mstar_status mstar_encoder_embed(mstar_encoder *encoder, const mstar_text *texts, int64_t count,
                                 float *vectors, int64_t row_stride, mstar_text_result *results)
{
    MST_TRY(mst_check_not_null("encoder", encoder));
    MST_TRY(mst_check_range("count", count, 0, INT64_MAX / 64));
    MST_TRY(check_rows("vectors", vectors, count, "row_stride", row_stride, encoder->folder.dims));
    if (count == 0)
        return MSTAR_OK;
    MST_TRY(mst_check_not_null("texts", texts));
    MST_TRY(mst_encoder_reserve(encoder, count));
    MST_TRY(mst_encoder_tokenize(encoder, texts, count));
    embedding_call call = {.encoder = encoder, .out = vectors, .row_stride = row_stride};
    MST_TRY(run_call(&call, count));
    for (int64_t i = 0; results != NULL && i < count; i++)
        results[i] = (mstar_text_result){encoder->lengths[i], encoder->segments[i].untruncated};
    return MSTAR_OK;
}

/* ---- ids ------------------------------------------------------------------------------------- */

static mstar_status check_ids(const char *name, const int32_t *ids, int64_t count, int32_t bound)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= bound)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "%s[%lld] is %d; it must be from 0 to %d", name,
                            (long long)i, ids[i], bound - 1);
    }
    return MSTAR_OK;
}

static mstar_status check_offsets(const int32_t *cu_seqlens, int64_t num_segments,
                                  int64_t max_tokens)
{
    if (cu_seqlens[0] != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "cu_seqlens[0] is %d; it must be 0", cu_seqlens[0]);
    for (int64_t i = 0; i < num_segments; i++) {
        int64_t length = (int64_t)cu_seqlens[i + 1] - cu_seqlens[i];
        if (length < 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "cu_seqlens[%lld] is %d, below cu_seqlens[%lld] = %d",
                            (long long)(i + 1), cu_seqlens[i + 1], (long long)i, cu_seqlens[i]);
        if (length > max_tokens)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "segment %lld has %lld tokens; max_tokens is %lld", (long long)i,
                            (long long)length, (long long)max_tokens);
    }
    return MSTAR_OK;
}

/* Checks a packed list of ids and makes it the encoder's segments. */
static mstar_status take_ids(mstar_encoder *encoder, const int32_t *ids, const int32_t *type_ids,
                             const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip)
{
    const mst_bert_config *config = &encoder->folder.config;
    MST_TRY(mst_check_not_null("cu_seqlens", cu_seqlens));
    MST_TRY(check_offsets(cu_seqlens, num_segments, encoder->folder.max_tokens));
    int64_t tokens = cu_seqlens[num_segments];
    if (tokens > 0)
        MST_TRY(mst_check_not_null("ids", ids));
    MST_TRY(check_ids("ids", ids, tokens, config->vocab_size));
    if (type_ids != NULL)
        MST_TRY(check_ids("type_ids", type_ids, tokens, config->type_vocab_size));
    if (skip != NULL)
        MST_TRY(check_ids("skip", skip, num_segments, INT32_MAX));
    MST_TRY(mst_encoder_reserve(encoder, num_segments));
    for (int64_t i = 0; i < num_segments; i++) {
        int32_t length = cu_seqlens[i + 1] - cu_seqlens[i];
        encoder->lengths[i] = length;
        encoder->segments[i] =
            (mst_segment){.ids = length > 0 ? ids + cu_seqlens[i] : NULL, /* ids may be NULL */
                          .type_ids = type_ids != NULL ? type_ids + cu_seqlens[i] : NULL,
                          .first = cu_seqlens[i],
                          .untruncated = length,
                          .skip = skip != NULL ? (int32_t)mst_min_i64(skip[i], length) : 0};
    }
    return MSTAR_OK;
}

mstar_status mstar_encoder_embed_ids(mstar_encoder *encoder, const int32_t *ids,
                                     const int32_t *type_ids, const int32_t *cu_seqlens,
                                     int64_t num_segments, const int32_t *skip, float *vectors,
                                     int64_t row_stride)
{
    MST_TRY(mst_check_not_null("encoder", encoder));
    MST_TRY(mst_check_range("num_segments", num_segments, 0, INT32_MAX));
    MST_TRY(check_rows("vectors", vectors, num_segments, "row_stride", row_stride,
                       encoder->folder.dims));
    if (num_segments == 0)
        return MSTAR_OK;
    MST_TRY(take_ids(encoder, ids, type_ids, cu_seqlens, num_segments, skip));
    embedding_call call = {
        .encoder = encoder, .out = vectors, .row_stride = row_stride, .cls_skips = true};
    return run_call(&call, num_segments);
}

mstar_status mstar_encoder_hidden(mstar_encoder *encoder, const int32_t *ids,
                                  const int32_t *type_ids, const int32_t *cu_seqlens,
                                  int64_t num_segments, float *out, int64_t row_stride)
{
    MST_TRY(mst_check_not_null("encoder", encoder));
    MST_TRY(mst_check_range("num_segments", num_segments, 0, INT32_MAX));
    MST_TRY(mst_check_range("row_stride", row_stride, encoder->folder.config.hidden,
                            INT64_MAX / 8 / INT32_MAX));
    if (num_segments == 0)
        return MSTAR_OK;
    MST_TRY(take_ids(encoder, ids, type_ids, cu_seqlens, num_segments, NULL));
    if (cu_seqlens[num_segments] > 0)
        MST_TRY(mst_check_not_null("out", out));
    embedding_call call = {
        .encoder = encoder, .out = out, .row_stride = row_stride, .hidden = true};
    return run_call(&call, num_segments);
}
