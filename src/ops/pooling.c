/* pooling.c - one vector a segment, and the names of the modes. */
#include <string.h>

#include "ops/ops.h"

static const char *const pooling_names[] = {
    [MSTAR_POOLING_CLS] = "cls",
    [MSTAR_POOLING_MAX] = "max",
    [MSTAR_POOLING_MEAN] = "mean",
    [MSTAR_POOLING_MEAN_SQRT_LEN] = "mean_sqrt_len",
    [MSTAR_POOLING_WEIGHTED_MEAN] = "weightedmean",
    [MSTAR_POOLING_LAST] = "lasttoken",
};
#define NUM_POOLINGS (sizeof pooling_names / sizeof pooling_names[0])

const char *mstar_pooling_name(mstar_pooling pooling)
{
    return (size_t)pooling < NUM_POOLINGS ? pooling_names[pooling] : "unknown";
}

/* A name of ours, alone or as sentence-transformers spells its keys: pooling_mode_NAME_tokens. */
mstar_status mstar_pooling_parse(const char *text, mstar_pooling *pooling)
{
    static const char prefix[] = "pooling_mode_";
    MST_TRY(mst_check_not_null("text", text));
    MST_TRY(mst_check_not_null("pooling", pooling));
    const char *name = text;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    for (size_t i = 0; i < NUM_POOLINGS; i++) {
        size_t bytes = strlen(pooling_names[i]);
        if (strncmp(name, pooling_names[i], bytes) != 0)
            continue;
        const char *rest = name + bytes;
        if (*rest == '\0' || strcmp(rest, "_token") == 0 || strcmp(rest, "_tokens") == 0) {
            *pooling = (mstar_pooling)i;
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "pooling is \"%.64s\"; accepted are cls, max, mean, mean_sqrt_len, "
                    "weightedmean and lasttoken",
                    text);
}

static mstar_status check_segments(const int32_t *cu_seqlens, int64_t num_segments,
                                   const int32_t *skip, int64_t num_rows)
{
    if (num_segments == 0)
        return MSTAR_OK;
    if (cu_seqlens[0] != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "cu_seqlens[0] is %d; it must be 0", cu_seqlens[0]);
    for (int64_t s = 0; s < num_segments; s++) {
        if (cu_seqlens[s + 1] < cu_seqlens[s])
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "cu_seqlens[%lld] is %d; it must be at least the one before it, %d",
                            (long long)s + 1, cu_seqlens[s + 1], cu_seqlens[s]);
        if (skip != NULL && skip[s] < 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "skip[%lld] is %d; it must be 0 or more",
                            (long long)s, skip[s]);
    }
    if (cu_seqlens[num_segments] > num_rows)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "cu_seqlens[%lld] is %d; it must be at most x.shape[0] = %lld",
                        (long long)num_segments, cu_seqlens[num_segments], (long long)num_rows);
    return MSTAR_OK;
}

static mstar_status run_pooling(mstar_stream *stream, mstar_pooling pooling, const mstar_tensor *x,
                                const int32_t *cu_seqlens, int64_t num_segments,
                                const int32_t *skip, const mstar_tensor *out)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_ops_check_has(stream->device, stream->device->backend->pooling != NULL, "pooling"));
    MST_TRY(mst_check_range("pooling", (int64_t)pooling, 0, (int64_t)NUM_POOLINGS - 1));
    MST_TRY(mst_ops_check_input(stream->device, "x", x, 2));
    MST_TRY(mst_ops_check_output(stream->device, "out", out, 2));
    MST_TRY(mst_check_range("num_segments", num_segments, 0, MST_MAX_ROWS));
    MST_TRY(mst_tensor_check_dim("out", out, 0, num_segments));
    MST_TRY(mst_tensor_check_dim("out", out, 1, x->shape[1]));
    MST_TRY(mst_tensor_check_apart("x", x, "out", out));
    if (num_segments > 0)
        MST_TRY(mst_ops_check_ints("cu_seqlens", cu_seqlens, num_segments + 1, out));
    if (skip != NULL)
        MST_TRY(mst_ops_check_ints("skip", skip, num_segments, out));
    int64_t read_now;
    MST_TRY(mst_ops_rows_now(stream, num_segments, &read_now));
    MST_TRY(check_segments(cu_seqlens, read_now, skip, x->shape[0]));
    if (num_segments == 0 || x->shape[1] == 0)
        return MSTAR_OK;
    return stream->device->backend->pooling(stream, pooling, x->shape[1], mst_ops_rows(x),
                                            cu_seqlens, num_segments, skip, mst_ops_rows(out));
}

mstar_status mstar_pooling_run(mstar_stream *stream, mstar_pooling pooling, const mstar_tensor *x,
                               const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip,
                               const mstar_tensor *out)
{
    return mst_capture_note(stream,
                            run_pooling(stream, pooling, x, cu_seqlens, num_segments, skip, out));
}
