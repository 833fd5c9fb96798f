/* tensor.c - views and their checks. */
#include <string.h>

#include "base/base.h"

mstar_tensor mstar_tensor_make(void *data, mstar_dtype dtype, int32_t rank, const int64_t *shape)
{
    mstar_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.device_kind = MSTAR_DEVICE_CPU;
    tensor.rank = rank;
    if (rank < 0 || rank > MSTAR_MAX_RANK || (rank > 0 && shape == NULL)) {
        tensor.rank = -1;
        return tensor;
    }
    int64_t stride = 1;
    for (int32_t i = rank - 1; i >= 0; i--) {
        tensor.shape[i] = shape[i];
        tensor.strides[i] = stride;
        if (__builtin_mul_overflow(stride, mst_max_i64(shape[i], 1), &stride)) {
            tensor.rank = -1;
            return tensor;
        }
    }
    return tensor;
}

mstar_status mstar_tensor_slice(const mstar_tensor *tensor, int32_t dim, int64_t start,
                                int64_t length, mstar_tensor *view)
{
    MST_TRY(mst_tensor_check("tensor", tensor));
    MST_TRY(mst_check_not_null("view", view));
    if (tensor->rank == 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "tensor has rank 0; a slice needs a dimension");
    MST_TRY(mst_check_range("dim", dim, 0, tensor->rank - 1));
    MST_TRY(mst_check_range("start", start, 0, tensor->shape[dim]));
    MST_TRY(mst_check_range("length", length, 0, tensor->shape[dim] - start));
    mstar_tensor result = *tensor;
    result.shape[dim] = length;
    if (result.data != NULL &&
        length > 0) /* an empty view keeps its data: start may stand past the end */
        result.data = (char *)result.data +
                      start * result.strides[dim] * (int64_t)mstar_dtype_bytes(result.dtype);
    *view = result;
    return MSTAR_OK;
}

mstar_status mstar_tensor_split_dim(const mstar_tensor *tensor, int32_t dim, int64_t outer,
                                    int64_t inner, mstar_tensor *view)
{
    MST_TRY(mst_tensor_check("tensor", tensor));
    MST_TRY(mst_check_not_null("view", view));
    if (tensor->rank == 0 || tensor->rank == MSTAR_MAX_RANK)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "tensor has rank %d; splitting needs a rank from 1 to %d", tensor->rank,
                        MSTAR_MAX_RANK - 1);
    MST_TRY(mst_check_range("dim", dim, 0, tensor->rank - 1));
    MST_TRY(mst_check_range("outer", outer, 0, INT64_MAX));
    MST_TRY(mst_check_range("inner", inner, 0, INT64_MAX));
    int64_t product;
    if (__builtin_mul_overflow(outer, inner, &product) || product != tensor->shape[dim])
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "outer %lld times inner %lld is not shape[%d] = %lld", (long long)outer,
                        (long long)inner, dim, (long long)tensor->shape[dim]);
    mstar_tensor result = *tensor;
    result.rank = tensor->rank + 1;
    for (int32_t i = tensor->rank; i > dim + 1; i--) {
        result.shape[i] = tensor->shape[i - 1];
        result.strides[i] = tensor->strides[i - 1];
    }
    result.shape[dim] = outer;
    result.shape[dim + 1] = inner;
    result.strides[dim + 1] = tensor->strides[dim];
    /* of an empty dimension neither the stride nor one of the two sizes is bounded by memory */
    if (__builtin_mul_overflow(tensor->strides[dim], mst_max_i64(inner, 1), &result.strides[dim]))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "inner %lld times strides[%d] = %lld passes the address space",
                        (long long)inner, dim, (long long)tensor->strides[dim]);
    *view = result;
    return MSTAR_OK;
}

static bool is_empty(const mstar_tensor *tensor)
{
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0)
            return true;
    }
    return false;
}

mstar_status mst_tensor_check(const char *name, const mstar_tensor *tensor)
{
    MST_TRY(mst_check_not_null(name, tensor));
    if (mstar_dtype_bytes(tensor->dtype) == 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s.dtype is %d; it must be one of MSTAR_DTYPE_LIST", name,
                        (int)tensor->dtype);
    if (tensor->rank < 0 || tensor->rank > MSTAR_MAX_RANK)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.rank is %d; it must be from 0 to %d", name,
                        tensor->rank, MSTAR_MAX_RANK);
    int64_t last = 0;
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0 || tensor->strides[i] < 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "%s: shape[%d] is %lld and strides[%d] is %lld; both must be 0 or more",
                            name, i, (long long)tensor->shape[i], i, (long long)tensor->strides[i]);
        int64_t reach;
        if (tensor->shape[i] > 0 &&
            (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->strides[i], &reach) ||
             __builtin_add_overflow(last, reach, &last)))
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "%s: shape[%d] = %lld with strides[%d] = %lld passes the address space",
                            name, i, (long long)tensor->shape[i], i, (long long)tensor->strides[i]);
    }
    if (last > INT64_MAX / 16)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s: its last element is number %lld, past the address space", name,
                        (long long)last);
    if (tensor->data == NULL && !is_empty(tensor))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.data is NULL and no dimension is 0", name);
    size_t bytes = mstar_dtype_bytes(tensor->dtype);
    if ((uintptr_t)tensor->data % bytes != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s.data is %p; a %s tensor must be aligned to %zu bytes", name,
                        tensor->data, mstar_dtype_name(tensor->dtype), bytes);
    return MSTAR_OK;
}

mstar_status mst_tensor_check_rank(const char *name, const mstar_tensor *tensor, int32_t rank)
{
    MST_TRY(mst_tensor_check(name, tensor));
    if (tensor->rank != rank)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.rank is %d; it must be %d", name, tensor->rank,
                        rank);
    return MSTAR_OK;
}

mstar_status mst_tensor_check_compute(const char *name, const mstar_tensor *tensor, int32_t rank)
{
    MST_TRY(mst_tensor_check_rank(name, tensor, rank));
    if (!mst_dtype_is_compute(tensor->dtype))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.dtype is %s; it must be f32, bf16 or f16", name,
                        mstar_dtype_name(tensor->dtype));
    /* the strides of an empty tensor say nothing, and NumPy writes zeros */
    if (rank > 0 && tensor->shape[rank - 1] > 1 && tensor->strides[rank - 1] != 1 &&
        !is_empty(tensor))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s.strides[%d] is %lld; the last dimension must be contiguous (1)", name,
                        rank - 1, (long long)tensor->strides[rank - 1]);
    return MSTAR_OK;
}

mstar_status mst_tensor_check_dim(const char *name, const mstar_tensor *tensor, int32_t dim,
                                  int64_t size)
{
    if (tensor->shape[dim] != size)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.shape[%d] is %lld; it must be %lld", name, dim,
                        (long long)tensor->shape[dim], (long long)size);
    return MSTAR_OK;
}

void mst_tensor_extent(const mstar_tensor *tensor, uintptr_t *first, uintptr_t *end)
{
    *first = 0;
    *end = 0;
    if (tensor->data == NULL || is_empty(tensor))
        return;
    int64_t last = 0;
    for (int32_t i = 0; i < tensor->rank; i++)
        last += (tensor->shape[i] - 1) * tensor->strides[i];
    *first = (uintptr_t)tensor->data;
    *end = *first + (uintptr_t)(last + 1) * mstar_dtype_bytes(tensor->dtype);
}

/* Distance between two views of the same strides, as bytes into one row: see check_apart. */
static bool rows_interleave_apart(const mstar_tensor *a, const mstar_tensor *b)
{
    if (a->rank < 2 || a->rank != b->rank || a->dtype != b->dtype || a->strides[0] != b->strides[0])
        return false;
    int64_t row_bytes = a->strides[0] * (int64_t)mstar_dtype_bytes(a->dtype);
    if (row_bytes <= 0)
        return false;
    int64_t width[2];
    const mstar_tensor *both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        int64_t last = 0;
        for (int32_t dim = 1; dim < both[i]->rank; dim++)
            last += (both[i]->shape[dim] - 1) * both[i]->strides[dim];
        width[i] = (last + 1) * (int64_t)mstar_dtype_bytes(both[i]->dtype);
    }
    /* place of b's rows within a's period: apart when b starts after a's row ends and ends before
     * the next */
    intptr_t offset = (intptr_t)((uintptr_t)b->data - (uintptr_t)a->data) % (intptr_t)row_bytes;
    if (offset < 0)
        offset += (intptr_t)row_bytes;
    return offset >= width[0] && offset + width[1] <= row_bytes;
}

mstar_status mst_tensor_check_apart(const char *a_name, const mstar_tensor *a, const char *b_name,
                                    const mstar_tensor *b)
{
    uintptr_t a_first, a_end, b_first, b_end;
    mst_tensor_extent(a, &a_first, &a_end);
    mst_tensor_extent(b, &b_first, &b_end);
    if (a_first >= b_end || b_first >= a_end || rows_interleave_apart(a, b))
        return MSTAR_OK;
    return mst_fail(MSTAR_INVALID_ARGUMENT, "%s and %s overlap in memory", a_name, b_name);
}

bool mst_tensor_same_view(const mstar_tensor *a, const mstar_tensor *b)
{
    if (a->data != b->data || a->dtype != b->dtype || a->rank != b->rank)
        return false;
    for (int32_t i = 0; i < a->rank; i++) {
        if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->strides[i] != b->strides[i]))
            return false;
    }
    return true;
}
