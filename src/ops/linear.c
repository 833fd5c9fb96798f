/*
 * linear.c - matrix products with weights that are packed once.
 *
 * The object owns the packed panels and a full f32 bias (zeros where none was given), padded with
 * zeros to whole vectors, so that a kernel has one path. It is read-only after create: that is why
 * several streams may run it at once.
 */
#include <string.h>

#include "ops/ops.h"

struct mstar_linear {
    mstar_device *device;
    mst_linear_shape shape;
    void *packed;
    size_t packed_bytes;
    float *bias;
};

void mstar_linear_desc_init(mstar_linear_desc *desc)
{
    if (desc == NULL)
        return;
    memset(desc, 0, sizeof *desc);
    desc->struct_size = (uint32_t)sizeof *desc;
    desc->weight_dtype = MSTAR_DTYPE_F32;
    desc->activation = MSTAR_ACTIVATION_NONE;
}

static mstar_status check_desc(const mstar_device *device, const mstar_linear_desc *desc)
{
    bool f16 = device->backend->kind != MSTAR_DEVICE_CPU && desc->weight_dtype == MSTAR_DTYPE_F16;
    if (desc->weight_dtype != MSTAR_DTYPE_F32 && desc->weight_dtype != MSTAR_DTYPE_BF16 && !f16)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.weight_dtype is %s; it must be f32 or bf16%s",
                        mstar_dtype_name(desc->weight_dtype),
                        device->backend->kind != MSTAR_DEVICE_CPU ? " or f16" : "");
    MST_TRY(mst_ops_check_activation("desc.activation", desc->activation));
    if (desc->reserved != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.reserved is %d; it must be 0",
                        desc->reserved);
    return MSTAR_OK;
}

/* A part's weight or bias: host memory of a compute dtype, any strides. */
static mstar_status check_part(const char *list, int32_t part, const mstar_tensor *tensor,
                               int32_t rank)
{
    mstar_status status = mst_tensor_check_rank("tensor", tensor, rank);
    if (status == MSTAR_OK && !mst_dtype_is_compute(tensor->dtype))
        status = mst_fail(MSTAR_INVALID_ARGUMENT, "dtype is %s; it must be f32, bf16 or f16",
                          mstar_dtype_name(tensor->dtype));
    if (status == MSTAR_OK && tensor->device_kind != MSTAR_DEVICE_CPU)
        status = mst_fail(MSTAR_INVALID_ARGUMENT, "device_kind is %d; it must be %d (CPU)",
                          (int)tensor->device_kind, (int)MSTAR_DEVICE_CPU);
    for (int32_t dim = 0; status == MSTAR_OK && dim < rank; dim++)
        status = mst_check_range(dim == 0 ? "shape[0]" : "shape[1]", tensor->shape[dim], 1,
                                 MST_MAX_WIDTH);
    return status == MSTAR_OK ? MSTAR_OK : mst_fail_in(status, "%s[%d]", list, part);
}

/* Checks all parts; the product's shape goes to *shape, whether there are biases to *has_bias. */
static mstar_status check_parts(const mstar_tensor *const *weights,
                                const mstar_tensor *const *biases, int32_t num_parts,
                                mst_linear_shape *shape, bool *has_bias)
{
    MST_TRY(mst_check_range("num_parts", num_parts, 1, MST_MAX_PARTS));
    MST_TRY(mst_check_not_null("weights", (const void *)weights));
    *has_bias = biases != NULL && biases[0] != NULL;
    shape->out_features = 0;
    for (int32_t part = 0; part < num_parts; part++) {
        MST_TRY(check_part("weights", part, weights[part], 2));
        if (part == 0)
            shape->in_features = weights[0]->shape[1];
        if (weights[part]->shape[1] != shape->in_features)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "weights[%d].shape[1] is %lld; it must be %lld as in weights[0]", part,
                            (long long)weights[part]->shape[1], (long long)shape->in_features);
        shape->out_features += weights[part]->shape[0];
        bool given = biases != NULL && biases[part] != NULL;
        if (given != *has_bias)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "biases[%d] is %s and biases[0] is %s; all must be given or none", part,
                            given ? "given" : "NULL", *has_bias ? "given" : "NULL");
        if (!given)
            continue;
        MST_TRY(check_part("biases", part, biases[part], 1));
        if (biases[part]->shape[0] != weights[part]->shape[0])
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "biases[%d].shape[0] is %lld; it must be %lld as in weights[%d]", part,
                            (long long)biases[part]->shape[0], (long long)weights[part]->shape[0],
                            part);
    }
    return mst_check_range("out_features of all parts", shape->out_features, 1, MST_MAX_WIDTH);
}

static void pack_parts(const mstar_linear *linear, const mstar_tensor *const *weights,
                       const mstar_tensor *const *biases, int32_t num_parts, void *packed,
                       float *bias)
{
    int64_t first_row = 0;
    for (int32_t part = 0; part < num_parts; part++) {
        linear->device->backend->linear_pack(linear->device, &linear->shape, weights[part],
                                             first_row, packed);
        for (int64_t i = 0; biases != NULL && i < biases[part]->shape[0]; i++)
            bias[first_row + i] = mst_load_element(biases[part]->data, biases[part]->dtype,
                                                   i * biases[part]->strides[0]);
        first_row += weights[part]->shape[0];
    }
}

/* Packs into host memory and takes that to the device. */
static mstar_status send_parts(const mstar_linear *linear, const mstar_tensor *const *weights,
                               const mstar_tensor *const *biases, int32_t num_parts,
                               size_t bias_bytes)
{
    const mst_backend *backend = linear->device->backend;
    mstar_stream *stream;
    void *packed, *bias = NULL;
    MST_TRY(mst_alloc_zero(linear->packed_bytes, "packed weights", &packed));
    mstar_status status = mst_alloc_zero(bias_bytes, "bias", &bias);
    if (status == MSTAR_OK)
        status = mstar_stream_create(linear->device, 1, &stream);
    if (status == MSTAR_OK) {
        pack_parts(linear, weights, biases, num_parts, packed, bias);
        status = backend->copy(stream, linear->packed, packed, linear->packed_bytes);
        if (status == MSTAR_OK)
            status = backend->copy(stream, linear->bias, bias, bias_bytes);
        if (status == MSTAR_OK)
            status = backend->stream_synchronize(stream);
        mstar_stream_destroy(stream);
    }
    mst_free(packed);
    mst_free(bias);
    return status;
}

/* biases NULL: none. What there is of the memory belongs to the linear, failed or not. */
static mstar_status fill_linear(mstar_linear *linear, const mstar_tensor *const *weights,
                                const mstar_tensor *const *biases, int32_t num_parts)
{
    mstar_device *device = linear->device;
    const mst_backend *backend = device->backend;
    size_t bias_bytes =
        (size_t)mst_round_up(linear->shape.out_features, MST_LINEAR_PAD) * sizeof(float);
    void *memory = NULL;
    linear->packed_bytes = backend->linear_packed_bytes(device, &linear->shape);
    MST_TRY(backend->memory_alloc(device, linear->packed_bytes, &linear->packed));
    MST_TRY(backend->memory_alloc(device, bias_bytes, &memory));
    linear->bias = memory;
    if (backend->kind == MSTAR_DEVICE_CPU)
        pack_parts(linear, weights, biases, num_parts, linear->packed, linear->bias);
    else
        MST_TRY(send_parts(linear, weights, biases, num_parts, bias_bytes));
    return backend->linear_prepare == NULL ? MSTAR_OK
                                           : backend->linear_prepare(device, &linear->shape);
}

static void free_linear(mstar_linear *linear)
{
    if (linear->bias != NULL)
        linear->device->backend->memory_free(linear->device, linear->bias);
    if (linear->packed != NULL)
        linear->device->backend->memory_free(linear->device, linear->packed);
    mst_free(linear);
}

mstar_status mstar_linear_create(mstar_device *device, const mstar_linear_desc *desc,
                                 const mstar_tensor *const *weights,
                                 const mstar_tensor *const *biases, int32_t num_parts,
                                 mstar_linear **linear)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("linear", linear));
    MST_TRY(mst_capture_refuse("create of a linear"));
    MST_TRY(mst_ops_check_has(device, device->backend->linear_run != NULL, "linear"));
    mstar_linear_desc full;
    mstar_linear_desc_init(&full);
    MST_TRY(mst_desc_read("desc", desc, &full, sizeof full));
    MST_TRY(check_desc(device, &full));
    mst_linear_shape shape = {0, 0, full.weight_dtype, full.activation};
    bool has_bias;
    MST_TRY(check_parts(weights, biases, num_parts, &shape, &has_bias));

    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mstar_linear), "linear", &memory));
    mstar_linear *made = memory;
    made->device = device;
    made->shape = shape;
    mstar_status status = fill_linear(made, weights, has_bias ? biases : NULL, num_parts);
    if (status != MSTAR_OK) {
        free_linear(made);
        return status;
    }
    mst_device_retain(device);
    *linear = made;
    return MSTAR_OK;
}

void mstar_linear_destroy(mstar_linear *linear)
{
    if (linear == NULL)
        return;
    mstar_device *device = linear->device;
    free_linear(linear);
    mst_device_release(device);
}

static mstar_status run_linear(const mstar_linear *linear, mstar_stream *stream,
                               const mstar_tensor *x, const mstar_tensor *residual,
                               const mstar_tensor *out)
{
    MST_TRY(mst_check_not_null("linear", linear));
    MST_TRY(mst_check_not_null("stream", stream));
    const mstar_device *device = linear->device;
    if (stream->device != device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "linear and stream were made on two devices");
    MST_TRY(mst_ops_check_input(device, "x", x, 2));
    MST_TRY(mst_tensor_check_dim("x", x, 1, linear->shape.in_features));
    MST_TRY(mst_ops_check_output(device, "out", out, 2));
    MST_TRY(mst_tensor_check_dim("out", out, 0, x->shape[0]));
    MST_TRY(mst_tensor_check_dim("out", out, 1, linear->shape.out_features));
    MST_TRY(mst_tensor_check_apart("x", x, "out", out));
    if (residual != NULL) {
        MST_TRY(mst_ops_check_input(device, "residual", residual, 2));
        MST_TRY(mst_ops_check_shape("residual", residual, "out", out));
        MST_TRY(mst_ops_check_in_place("residual", residual, out));
    }
    if (x->shape[0] == 0)
        return MSTAR_OK;
    return device->backend->linear_run(stream, &linear->shape, linear->packed, linear->bias,
                                       x->shape[0], mst_ops_rows(x), mst_ops_rows(residual),
                                       mst_ops_rows(out));
}

mstar_status mstar_linear_run(const mstar_linear *linear, mstar_stream *stream,
                              const mstar_tensor *x, const mstar_tensor *residual,
                              const mstar_tensor *out)
{
    return mst_capture_note(stream, run_linear(linear, stream, x, residual, out));
}

mstar_status mstar_linear_query(const mstar_linear *linear, mstar_linear_info *info)
{
    MST_TRY(mst_check_not_null("linear", linear));
    MST_TRY(mst_check_not_null("info", info));
    mstar_linear_info full;
    memset(&full, 0, sizeof full);
    full.weight_dtype = linear->shape.weight_dtype;
    full.in_features = linear->shape.in_features;
    full.out_features = linear->shape.out_features;
    full.packed_bytes = linear->packed_bytes;
    full.kernel = linear->device->backend->linear_kernel(linear->device, &linear->shape);
    full.x_dtype = linear->device->backend->linear_x_dtype(linear->device, &linear->shape);
    return mst_info_write("info", &full, sizeof full, info);
}
