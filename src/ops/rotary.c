/* rotary.c - rotary position embedding. */
#include <float.h>

#include "ops/ops.h"

static mstar_status run_rotary(mstar_stream *stream, const mstar_tensor *x,
                               const int32_t *positions, double theta, int32_t rotary_dim,
                               int interleaved, const mstar_tensor *out)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_ops_check_has(stream->device, stream->device->backend->rotary != NULL, "rotary"));
    MST_TRY(mst_ops_check_input(stream->device, "x", x, 3));
    MST_TRY(mst_ops_check_output(stream->device, "out", out, 3));
    MST_TRY(mst_ops_check_shape("out", out, "x", x));
    MST_TRY(mst_ops_check_in_place("x", x, out));
    MST_TRY(mst_ops_check_ints("positions", positions, x->shape[0], out));
    if (!(theta > 0 && theta <= DBL_MAX))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "theta is %g; it must be finite and above 0",
                        theta);
    MST_TRY(mst_check_range("rotary_dim", rotary_dim, 0, x->shape[2]));
    if (rotary_dim % 2 != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "rotary_dim is %d; it must be even", rotary_dim);
    MST_TRY(mst_check_range("interleaved", interleaved, 0, 1));
    if (x->shape[0] == 0 || x->shape[1] == 0 || x->shape[2] == 0)
        return MSTAR_OK;
    return stream->device->backend->rotary(stream, x->shape[0], (int32_t)x->shape[1],
                                           (int32_t)x->shape[2], mst_ops_rows(x), x->strides[1],
                                           positions, theta, rotary_dim, interleaved != 0,
                                           mst_ops_rows(out), out->strides[1]);
}

mstar_status mstar_rotary(mstar_stream *stream, const mstar_tensor *x, const int32_t *positions,
                          double theta, int32_t rotary_dim, int interleaved,
                          const mstar_tensor *out)
{
    return mst_capture_note(stream,
                            run_rotary(stream, x, positions, theta, rotary_dim, interleaved, out));
}
