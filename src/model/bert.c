/*
 * bert.c - the forward of a post-norm BERT encoder over packed tokens.
 *
 * Rows are the real tokens of all texts end to end; there is no padded row anywhere. Query, key
 * and value come out of one product and go to the attention as three strided slices. Each
 * residual sum is the epilogue of the product before it, so that a half layer is: product,
 * product with residual in place, norm in place.
 */
#include "model/encoder.h"

typedef struct forward {
    const mst_bert_config *config;
    mst_worker *worker;
    mstar_ragged_prefill *attention;
    mstar_stream *stream;
    int64_t tokens;
    mstar_tensor x;             /* [T, hidden] */
    mstar_tensor sum;           /* what a norm reads: x itself, or a product that x is added to */
    bool apart;                 /* the latter */
    mstar_tensor q, k, v;       /* [T, H, D], slices of qkv */
    mstar_tensor qkv;           /* [T, 3 hidden] */
    mstar_tensor context;       /* [T, hidden] */
    mstar_tensor context_heads; /* the same as [T, H, D] */
    mstar_tensor middle;        /* [T, intermediate] */
} forward;

static mstar_status lay_out(forward *f)
{
    const mst_bert_config *config = f->config;
    int64_t hidden = config->hidden;
    mstar_dtype dtype = f->worker->dtype;
    char *scratch = f->worker->scratch;
    int64_t qkv_bytes =
        f->tokens * mst_token_stride(3 * hidden) * (int64_t)mstar_dtype_bytes(dtype);
    mstar_tensor *const slices[3] = {&f->q, &f->k, &f->v};
    const mst_worker *worker = f->worker;
    const mstar_device *device = f->stream->device;
    f->apart = worker->sum != worker->x;
    f->x = mst_place(device, mst_token_rows(worker->x, worker->x_dtype, f->tokens, hidden));
    f->sum = mst_place(device, mst_token_rows(worker->sum, MSTAR_DTYPE_F32, f->tokens, hidden));
    f->qkv = mst_place(device, mst_token_rows(scratch, dtype, f->tokens, 3 * hidden));
    f->context = mst_place(device, mst_token_rows(scratch + qkv_bytes, dtype, f->tokens, hidden));
    f->middle = mst_place(device, mst_token_rows(scratch, dtype, f->tokens, config->intermediate));
    for (int i = 0; i < 3; i++) {
        MST_TRY(mstar_tensor_slice(&f->qkv, 1, i * hidden, hidden, slices[i]));
        MST_TRY(mstar_tensor_split_dim(slices[i], 1, config->heads, config->head_dim, slices[i]));
    }
    return mstar_tensor_split_dim(&f->context, 1, config->heads, config->head_dim,
                                  &f->context_heads);
}

/* x = norm(sum + residual) */
static mstar_status norm(const forward *f, const mstar_tensor *residual, const mst_norm *weights)
{
    return mstar_layer_norm(f->stream, &f->sum, residual, &weights->weight, &weights->bias,
                            f->config->layer_norm_eps, &f->x);
}

/* x = norm(in W^T + x): the product adds x where it is what it writes to, else the norm does. */
static mstar_status product_and_norm(const forward *f, const mstar_linear *linear,
                                     const mstar_tensor *in, const mst_norm *weights,
                                     mstar_stage stage)
{
    int64_t time = mst_stage_start(f->worker);
    MST_TRY(mstar_linear_run(linear, f->stream, in, f->apart ? NULL : &f->x, &f->sum));
    time = mst_stage_end(f->worker, stage, time);
    MST_TRY(norm(f, f->apart ? &f->x : NULL, weights));
    (void)mst_stage_end(f->worker, MSTAR_STAGE_NORM, time);
    return MSTAR_OK;
}

static mstar_status embed_tokens(const forward *f, const mst_weights *weights)
{
    const mstar_tensor *tables[3] = {&weights->words, &weights->positions, &weights->types};
    const int32_t *ids[3] = {f->worker->ids, f->worker->positions, f->worker->type_ids};
    MST_TRY(mstar_embedding(f->stream, tables, ids, 3, &f->sum));
    return norm(f, NULL, &weights->embedding_norm);
}

static mstar_status run_layer(const forward *f, const mst_layer *layer)
{
    mst_worker *worker = f->worker;
    int64_t time = mst_stage_start(worker);
    MST_TRY(mstar_linear_run(layer->qkv, f->stream, &f->x, NULL, &f->qkv));
    time = mst_stage_end(worker, MSTAR_STAGE_QKV, time);
    MST_TRY(mstar_ragged_prefill_run(f->attention, f->stream, &f->q, &f->k, &f->v,
                                     &f->context_heads, NULL));
    (void)mst_stage_end(worker, MSTAR_STAGE_ATTENTION, time);
    MST_TRY(product_and_norm(f, layer->attention_out, &f->context, &layer->attention_norm,
                             MSTAR_STAGE_PROJECTION));
    time = mst_stage_start(worker);
    MST_TRY(mstar_linear_run(layer->up, f->stream, &f->x, NULL, &f->middle));
    (void)mst_stage_end(worker, MSTAR_STAGE_UP, time);
    return product_and_norm(f, layer->down, &f->middle, &layer->out_norm, MSTAR_STAGE_DOWN);
}

mstar_status mst_bert_run(const mst_bert_config *config, const mst_weights *weights,
                          mst_worker *worker, mstar_ragged_prefill *attention, mstar_stream *stream,
                          int64_t num_tokens)
{
    forward f = {.config = config,
                 .worker = worker,
                 .attention = attention,
                 .stream = stream,
                 .tokens = num_tokens};
    MST_TRY(lay_out(&f));
    int64_t time = mst_stage_start(worker);
    MST_TRY(embed_tokens(&f, weights));
    (void)mst_stage_end(worker, MSTAR_STAGE_EMBEDDING, time);
    for (int32_t i = 0; i < weights->num_layers; i++)
        MST_TRY(run_layer(&f, &weights->layers[i]));
    return MSTAR_OK;
}

mstar_status mst_bert_forward(const mst_bert_config *config, const mst_weights *weights,
                              mst_worker *worker, mstar_stream *stream, int64_t num_tokens,
                              int64_t num_segments)
{
    if (worker->graphs != NULL)
        return mst_worker_graphs_forward(worker->graphs, stream, num_segments);
    int64_t time = mst_stage_start(worker);
    MST_TRY(mstar_ragged_prefill_plan(worker->attention, stream, worker->offsets, num_segments, 0));
    (void)mst_stage_end(worker, MSTAR_STAGE_ATTENTION, time);
    return mst_bert_run(config, weights, worker, worker->attention, stream, num_tokens);
}
