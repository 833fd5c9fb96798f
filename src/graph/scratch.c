/*
 * scratch.c - the memory that a forward works in: asked for by name and shape, so that its size is
 * known before anything runs.
 */
#include "graph/runner.h"

#define ALIGNMENT 256

/* Bytes from the first to the last element of a view. */
static mstar_status view_bytes(const mstar_tensor *tensor, size_t *bytes)
{
    size_t last = 0;
    for (int32_t dim = 0; dim < tensor->rank; dim++) {
        size_t step;
        if (tensor->shape[dim] == 0) {
            *bytes = 0;
            return MSTAR_OK;
        }
        MST_TRY(
            mst_size_mul((size_t)(tensor->shape[dim] - 1), (size_t)tensor->strides[dim], &step));
        MST_TRY(mst_size_add(last, step, &last));
    }
    MST_TRY(mst_size_add(last, 1, &last));
    MST_TRY(mst_size_mul(last, mstar_dtype_bytes(tensor->dtype), bytes));
    MST_TRY(mst_size_add(*bytes, ALIGNMENT - 1, bytes));
    *bytes &= ~(size_t)(ALIGNMENT - 1);
    return MSTAR_OK;
}

mstar_status mst_scratch_bytes(const mstar_tensors *scratch, bool may_have_data, size_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < scratch->count; i++) {
        const mstar_named_tensor *item = &scratch->items[i];
        if (item->tensor.data != NULL && may_have_data)
            continue;
        if (item->tensor.data != NULL)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "tensor \"%.64s\" has data; only its shape is asked for", item->name);
        size_t piece;
        MST_TRY(view_bytes(&item->tensor, &piece));
        MST_TRY(mst_size_add(*bytes, piece, bytes));
    }
    return MSTAR_OK;
}

mstar_status mst_scratch_lay_out(const mstar_graph_runner *runner, mstar_frame_size size,
                                 mstar_tensors *scratch, size_t *bytes)
{
    *bytes = 0;
    mst_tensors_clear(scratch);
    if (runner->hooks.lay_out == NULL)
        return MSTAR_OK;
    mstar_status status = runner->hooks.lay_out(runner->user, size, scratch);
    if (status == MSTAR_OK)
        status = mst_scratch_bytes(scratch, false, bytes);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "%s: lay_out for %lld requests of %lld tokens", runner->node,
                           (long long)size.bs, (long long)size.num_tokens);
    return MSTAR_OK;
}

void mst_scratch_place(mstar_tensors *scratch, const mstar_device *device, void *block)
{
    char *at = block;
    for (int64_t i = 0; i < scratch->count; i++) {
        mstar_tensor *tensor = &scratch->items[i].tensor;
        size_t piece = 0;
        if (tensor->data != NULL)
            continue;                     /* it came with memory of its own */
        (void)view_bytes(tensor, &piece); /* they have been added up */
        tensor->data = piece > 0 ? at : NULL;
        mst_put_on_device(device, tensor);
        at += piece;
    }
}

/* Those of the list that stay host memory and have none yet; to is given to them piece by piece. */
static mstar_status host_pieces(mstar_tensors *scratch, const mstar_device *device, char *to,
                                size_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < scratch->count; i++) {
        mstar_tensor *tensor = &scratch->items[i].tensor;
        size_t piece;
        if (tensor->data != NULL || !mst_input_is_host(device, tensor))
            continue;
        MST_TRY(view_bytes(tensor, &piece));
        if (to != NULL && piece > 0)
            tensor->data = to + *bytes;
        MST_TRY(mst_size_add(*bytes, piece, bytes));
    }
    return MSTAR_OK;
}

mstar_status mst_scratch_place_host(mstar_tensors *scratch, const mstar_device *device,
                                    void **block, size_t *bytes)
{
    *block = NULL;
    *bytes = 0;
    if (mst_device_is_host(device))
        return MSTAR_OK;
    MST_TRY(host_pieces(scratch, device, NULL, bytes));
    if (*bytes == 0)
        return MSTAR_OK;
    MST_TRY(mst_alloc_zero(*bytes, "integers among static inputs", block));
    return host_pieces(scratch, device, *block, bytes);
}
