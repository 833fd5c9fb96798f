/* norm.c - layer norm, rms norm, and rows scaled to length 1. */
#include <float.h>

#include "ops/ops.h"

/* x, residual and out of a norm; everything that does not depend on which one it is. */
static mstar_status check_norm(const mstar_stream *stream, const mstar_tensor *x,
                               const mstar_tensor *residual, const mstar_tensor *out)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_ops_check_has(stream->device, stream->device->backend->layer_norm != NULL, "norm"));
    const mstar_device *device = stream->device;
    MST_TRY(mst_ops_check_input(device, "x", x, 2));
    MST_TRY(mst_ops_check_output(device, "out", out, 2));
    MST_TRY(mst_ops_check_shape("out", out, "x", x));
    MST_TRY(mst_ops_check_in_place("x", x, out));
    if (residual == NULL)
        return MSTAR_OK;
    MST_TRY(mst_ops_check_input(device, "residual", residual, 2));
    MST_TRY(mst_ops_check_shape("residual", residual, "x", x));
    return mst_ops_check_in_place("residual", residual, out);
}

static mstar_status check_eps(double eps)
{
    if (!(eps >= 0 && eps <= (double)FLT_MAX))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "eps is %g; it must be from 0 to %g", eps,
                        (double)FLT_MAX);
    return MSTAR_OK;
}

static bool nothing_to_do(const mstar_tensor *x)
{
    return x->shape[0] == 0 || x->shape[1] == 0;
}

static mstar_status run_layer_norm(mstar_stream *stream, const mstar_tensor *x,
                                   const mstar_tensor *residual, const mstar_tensor *weight,
                                   const mstar_tensor *bias, double eps, const mstar_tensor *out)
{
    MST_TRY(check_norm(stream, x, residual, out));
    MST_TRY(mst_ops_check_vector(stream->device, "weight", weight, x->shape[1], out));
    if (bias != NULL)
        MST_TRY(mst_ops_check_vector(stream->device, "bias", bias, x->shape[1], out));
    MST_TRY(check_eps(eps));
    if (nothing_to_do(x))
        return MSTAR_OK;
    return stream->device->backend->layer_norm(
        stream, x->shape[0], x->shape[1], mst_ops_rows(x), mst_ops_rows(residual), weight->data,
        bias != NULL ? bias->data : NULL, (float)eps, mst_ops_rows(out));
}

mstar_status mstar_layer_norm(mstar_stream *stream, const mstar_tensor *x,
                              const mstar_tensor *residual, const mstar_tensor *weight,
                              const mstar_tensor *bias, double eps, const mstar_tensor *out)
{
    return mst_capture_note(stream, run_layer_norm(stream, x, residual, weight, bias, eps, out));
}

static mstar_status run_rms_norm(mstar_stream *stream, const mstar_tensor *x,
                                 const mstar_tensor *residual, const mstar_tensor *weight,
                                 double eps, const mstar_tensor *out)
{
    MST_TRY(check_norm(stream, x, residual, out));
    MST_TRY(mst_ops_check_vector(stream->device, "weight", weight, x->shape[1], out));
    MST_TRY(check_eps(eps));
    if (nothing_to_do(x))
        return MSTAR_OK;
    return stream->device->backend->rms_norm(stream, x->shape[0], x->shape[1], mst_ops_rows(x),
                                             mst_ops_rows(residual), weight->data, (float)eps,
                                             mst_ops_rows(out));
}

mstar_status mstar_rms_norm(mstar_stream *stream, const mstar_tensor *x,
                            const mstar_tensor *residual, const mstar_tensor *weight, double eps,
                            const mstar_tensor *out)
{
    return mst_capture_note(stream, run_rms_norm(stream, x, residual, weight, eps, out));
}

static mstar_status run_normalize(mstar_stream *stream, const mstar_tensor *x,
                                  const mstar_tensor *out)
{
    MST_TRY(check_norm(stream, x, NULL, out));
    if (nothing_to_do(x))
        return MSTAR_OK;
    return stream->device->backend->normalize(stream, x->shape[0], x->shape[1], mst_ops_rows(x),
                                              mst_ops_rows(out));
}

mstar_status mstar_normalize(mstar_stream *stream, const mstar_tensor *x, const mstar_tensor *out)
{
    return mst_capture_note(stream, run_normalize(stream, x, out));
}
