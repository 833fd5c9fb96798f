/*
 * pooler.c - from hidden states to vectors: pooling modes side by side, then Dense and Normalize.
 *
 * The scratch of the layers is free by now. Two stretches of it take turns: a Dense module reads
 * one and writes the other, so each is as wide as the widest vector that it ever holds.
 */
#include "model/encoder.h"

/* Widths of the two stretches, for one segment. */
static void stretch_widths(const mst_folder *folder, int64_t widths[2])
{
    int at = 0;
    widths[0] = (int64_t)folder->num_poolings * folder->config.hidden;
    widths[1] = 0;
    for (int64_t i = 0; i < folder->num_modules; i++) {
        if (folder->modules[i].kind != MST_MODULE_DENSE)
            continue;
        at = 1 - at;
        widths[at] = mst_max_i64(widths[at], folder->modules[i].out_features);
    }
}

int64_t mst_pooler_width(const mst_folder *folder)
{
    int64_t widths[2];
    stretch_widths(folder, widths);
    return widths[0] + widths[1];
}

static mstar_status pool(const mst_folder *folder, mst_worker *worker, mstar_stream *stream,
                         int64_t num_tokens, int64_t num_segments, const int32_t *skip,
                         bool cls_skips, const mstar_tensor *pooled)
{
    int64_t hidden = folder->config.hidden;
    mstar_tensor x =
        mst_place(stream->device, mst_token_rows(worker->x, worker->x_dtype, num_tokens, hidden));
    for (int32_t i = 0; i < folder->num_poolings; i++) {
        mstar_tensor columns;
        bool leaves = folder->poolings[i] != MSTAR_POOLING_CLS || cls_skips;
        MST_TRY(mstar_tensor_slice(pooled, 1, i * hidden, hidden, &columns));
        MST_TRY(mstar_pooling_run(stream, folder->poolings[i], &x, worker->offsets, num_segments,
                                  leaves ? skip : NULL, &columns));
    }
    return MSTAR_OK;
}

static mstar_status run_dense(const mst_module *module, const mst_dense *dense,
                              mstar_stream *stream, const mstar_tensor *in, const mstar_tensor *out)
{
    if (dense->residual == NULL)
        return mstar_linear_run(dense->linear, stream, in, module->residual ? in : NULL, out);
    MST_TRY(mstar_linear_run(dense->residual, stream, in, NULL, out));
    return mstar_linear_run(dense->linear, stream, in, out, out);
}

mstar_status mst_pooler_run(const mst_folder *folder, const mst_weights *weights,
                            mst_worker *worker, mstar_stream *stream, int64_t num_tokens,
                            int64_t num_segments, const int32_t *skip, bool cls_skips,
                            const float **vectors)
{
    int64_t widths[2];
    int at = 0;
    stretch_widths(folder, widths);
    float *const scratch = worker->scratch;
    float *const stretches[2] = {scratch, scratch + num_segments * widths[0]};
    mstar_tensor now = mst_place(stream->device,
                                 mst_matrix(stretches[0], num_segments,
                                            (int64_t)folder->num_poolings * folder->config.hidden));
    MST_TRY(pool(folder, worker, stream, num_tokens, num_segments, skip, cls_skips, &now));
    for (int64_t i = 0; i < folder->num_modules; i++) {
        const mst_module *module = &folder->modules[i];
        if (module->kind == MST_MODULE_NORMALIZE) {
            MST_TRY(mstar_normalize(stream, &now, &now));
            continue;
        }
        at = 1 - at;
        mstar_tensor next = mst_place(
            stream->device, mst_matrix(stretches[at], num_segments, module->out_features));
        MST_TRY(run_dense(module, &weights->dense[i], stream, &now, &next));
        now = next;
    }
    *vectors = now.data;
    return MSTAR_OK;
}
