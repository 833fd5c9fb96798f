/* activation.c - element-wise functions and their names. */
#include "ops/ops.h"

static const char *const activation_names[] = {
    [MSTAR_ACTIVATION_NONE] = "none",           [MSTAR_ACTIVATION_GELU] = "gelu",
    [MSTAR_ACTIVATION_GELU_TANH] = "gelu_tanh", [MSTAR_ACTIVATION_RELU] = "relu",
    [MSTAR_ACTIVATION_SILU] = "silu",           [MSTAR_ACTIVATION_TANH] = "tanh",
    [MSTAR_ACTIVATION_SIGMOID] = "sigmoid",
};
#define NUM_ACTIVATIONS (sizeof activation_names / sizeof activation_names[0])

const char *mstar_activation_name(mstar_activation activation)
{
    return (size_t)activation < NUM_ACTIVATIONS ? activation_names[activation] : "unknown";
}

mstar_status mst_ops_check_activation(const char *name, mstar_activation activation)
{
    return mst_check_range(name, (int64_t)activation, 0, (int64_t)NUM_ACTIVATIONS - 1);
}

static mstar_status run_activation(mstar_stream *stream, mstar_activation activation,
                                   const mstar_tensor *x, const mstar_tensor *out)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_ops_check_has(stream->device, stream->device->backend->activation != NULL,
                              "activation"));
    MST_TRY(mst_ops_check_activation("activation", activation));
    MST_TRY(mst_ops_check_input(stream->device, "x", x, 2));
    MST_TRY(mst_ops_check_output(stream->device, "out", out, 2));
    MST_TRY(mst_ops_check_shape("out", out, "x", x));
    MST_TRY(mst_ops_check_in_place("x", x, out));
    if (x->shape[0] == 0 || x->shape[1] == 0)
        return MSTAR_OK;
    return stream->device->backend->activation(stream, x->shape[0], x->shape[1], activation,
                                               mst_ops_rows(x), mst_ops_rows(out));
}

mstar_status mstar_activation_run(mstar_stream *stream, mstar_activation activation,
                                  const mstar_tensor *x, const mstar_tensor *out)
{
    return mst_capture_note(stream, run_activation(stream, activation, x, out));
}
