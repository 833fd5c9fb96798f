/* ops_check.c - the checks that several operations share. */
#include "ops/ops.h"

static mstar_status check_place(const mstar_device *device, const char *name,
                                const mstar_tensor *tensor)
{
    if (tensor->device_kind != device->backend->kind || tensor->device_index != device->index)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s lives on device kind %d index %d; it must be on %s:%d (kind %d)", name,
                        (int)tensor->device_kind, tensor->device_index, device->backend->name,
                        device->index, (int)device->backend->kind);
    return MSTAR_OK;
}

mstar_status mst_ops_check_has(const mstar_device *device, bool has, const char *operation)
{
    return has ? MSTAR_OK
               : mst_fail(MSTAR_NOT_SUPPORTED, "%s does not run on device \"%s\" in this version",
                          operation, device->backend->name);
}

mstar_status mst_ops_check_input(const mstar_device *device, const char *name,
                                 const mstar_tensor *tensor, int32_t rank)
{
    MST_TRY(mst_tensor_check_compute(name, tensor, rank));
    MST_TRY(check_place(device, name, tensor));
    for (int32_t dim = 0; dim < rank; dim++) {
        int64_t bound = dim == 0 ? MST_MAX_ROWS : MST_MAX_WIDTH;
        if (tensor->shape[dim] > bound)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.shape[%d] is %lld; it must be at most %lld",
                            name, dim, (long long)tensor->shape[dim], (long long)bound);
    }
    return MSTAR_OK;
}

/*
 * The contiguous last dimension first, then from the smallest stride up: each must step over all
 * that the ones before it reach. This is enough for no two elements to share memory, and every
 * layout that a slice, a split or a permutation of a compact tensor gives passes.
 */
static mstar_status check_no_overlap(const char *name, const mstar_tensor *tensor)
{
    for (int32_t dim = 0; dim < tensor->rank; dim++) {
        if (tensor->shape[dim] == 0)
            return MSTAR_OK;
    }
    bool used[MSTAR_MAX_RANK] = {false};
    int64_t reach = 1;
    for (int32_t step = 0; step < tensor->rank; step++) {
        int32_t next = step == 0 ? tensor->rank - 1 : -1;
        for (int32_t dim = 0; step > 0 && dim < tensor->rank; dim++) {
            if (!used[dim] && (next < 0 || tensor->strides[dim] < tensor->strides[next]))
                next = dim;
        }
        used[next] = true;
        if (tensor->shape[next] == 1)
            continue;
        if (tensor->strides[next] < reach)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "%s.strides[%d] is %lld; it must be at least %lld, since %s is written "
                            "and its elements must not overlap",
                            name, next, (long long)tensor->strides[next], (long long)reach, name);
        reach += (tensor->shape[next] - 1) * tensor->strides[next];
    }
    return MSTAR_OK;
}

mstar_status mst_ops_check_output(const mstar_device *device, const char *name,
                                  const mstar_tensor *tensor, int32_t rank)
{
    MST_TRY(mst_ops_check_input(device, name, tensor, rank));
    return check_no_overlap(name, tensor);
}

mstar_status mst_ops_check_shape(const char *name, const mstar_tensor *tensor,
                                 const char *like_name, const mstar_tensor *like)
{
    for (int32_t dim = 0; dim < like->rank; dim++) {
        if (tensor->shape[dim] != like->shape[dim])
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "%s.shape[%d] is %lld; it must be %lld as in %s", name, dim,
                            (long long)tensor->shape[dim], (long long)like->shape[dim], like_name);
    }
    return MSTAR_OK;
}

mstar_status mst_ops_check_in_place(const char *input_name, const mstar_tensor *input,
                                    const mstar_tensor *out)
{
    if (mst_tensor_same_view(input, out))
        return MSTAR_OK;
    return mst_tensor_check_apart(input_name, input, "out", out);
}

mstar_status mst_ops_check_ints(const char *name, const int32_t *values, int64_t count,
                                const mstar_tensor *out)
{
    if (count == 0)
        return MSTAR_OK;
    MST_TRY(mst_check_not_null(name, values));
    if ((uintptr_t)values % sizeof *values != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is %p; it must be aligned to %zu bytes", name,
                        (const void *)values, sizeof *values);
    uintptr_t first, end;
    mst_tensor_extent(out, &first, &end);
    uintptr_t begin = (uintptr_t)values;
    if (begin < end && first < begin + (uintptr_t)count * sizeof *values)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s and out overlap in memory", name);
    return MSTAR_OK;
}

mstar_status mst_ops_check_vector(const mstar_device *device, const char *name,
                                  const mstar_tensor *tensor, int64_t width,
                                  const mstar_tensor *out)
{
    MST_TRY(mst_tensor_check_compute(name, tensor, 1));
    MST_TRY(check_place(device, name, tensor));
    if (tensor->dtype != MSTAR_DTYPE_F32)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.dtype is %s; it must be f32", name,
                        mstar_dtype_name(tensor->dtype));
    MST_TRY(mst_tensor_check_dim(name, tensor, 0, width));
    return mst_tensor_check_apart(name, tensor, "out", out);
}

mstar_status mst_ops_rows_now(const mstar_stream *stream, int64_t num_rows, int64_t *rows)
{
    *rows = 0;
    return stream->graph != NULL ? MSTAR_OK : mst_stream_rows(stream, num_rows, rows);
}

mst_rows mst_ops_rows(const mstar_tensor *tensor)
{
    if (tensor == NULL)
        return (mst_rows){.data = NULL};
    return (mst_rows){tensor->data, tensor->dtype, tensor->strides[0], tensor->shape[0]};
}
