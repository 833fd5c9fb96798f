/*
 * py_pack.c - from views to the library's tensors, with a contiguous copy where a view's strides,
 * addresses or dtype are not what the kernels read.
 */
#include <string.h>

#include "py_core.h"

static int64_t count_elements(const mstc_view *view)
{
    int64_t count = 1;
    for (int i = 0; i < view->rank; i++)
        count *= view->shape[i];
    return count;
}

bool mstc_view_is_plain(const mstc_view *view)
{
    if (count_elements(view) == 0)
        return true;
    if ((uintptr_t)view->data % (view->bits / 8u) != 0)
        return false;
    for (int i = 0; i < view->rank; i++) {
        if (view->shape[i] == 1)
            continue;
        if (view->strides[i] < 0 || (i == view->rank - 1 && view->strides[i] != 1))
            return false;
    }
    return true;
}

mstar_tensor mstc_view_tensor(const mstc_view *view, mstar_dtype dtype)
{
    mstar_tensor tensor = mstar_tensor_make(view->data, dtype, view->rank, view->shape);
    tensor.device_kind = (mstar_device_kind)view->device_type;
    tensor.device_index = view->device_id;
    for (int i = 0; i < view->rank; i++)
        if (view->shape[i] != 1 && count_elements(view) != 0) /* else any stride says the same */
            tensor.strides[i] = view->strides[i];
    return tensor;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Elements of one row, whatever their addresses, as float32. */
static void widen_row(const char *from, int64_t stride_bytes, mstar_dtype dtype, float *to,
                      int64_t n)
{
    for (int64_t i = 0; i < n; i++, from += stride_bytes) {
        switch (dtype) {
#define MSTC_WIDEN(DTYPE, type)             \
    case MSTAR_DTYPE_##DTYPE: {             \
        type value;                         \
        memcpy(&value, from, sizeof value); \
        to[i] = (float)value;               \
        break;                              \
    }
            MSTC_WIDEN(F32, float)
            MSTC_WIDEN(F64, double)
            MSTC_WIDEN(I64, int64_t)
            MSTC_WIDEN(I32, int32_t)
            MSTC_WIDEN(I16, int16_t)
            MSTC_WIDEN(I8, int8_t)
            MSTC_WIDEN(U8, uint8_t)
            MSTC_WIDEN(BOOL, uint8_t)
#undef MSTC_WIDEN
        default: {
            uint16_t half;
            memcpy(&half, from, sizeof half);
            mstar_convert(&half, dtype, &to[i], MSTAR_DTYPE_F32, 1);
            break;
        }
        }
    }
}

static void gather_row(const char *from, int64_t stride_bytes, size_t bytes, char *to, int64_t n)
{
    if (stride_bytes == (int64_t)bytes) {
        memcpy(to, from, (size_t)n * bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++, from += stride_bytes, to += bytes)
        memcpy(to, from, bytes);
}

static mstar_status pack_row(const char *from, int64_t stride_bytes, mstar_dtype from_dtype,
                             char *to, mstar_dtype to_dtype, int64_t n)
{
    enum { PART = 256 };
    if (from_dtype == to_dtype) {
        gather_row(from, stride_bytes, mstar_dtype_bytes(to_dtype), to, n);
        return MSTAR_OK;
    }
    float part[PART];
    for (int64_t done = 0; done < n; done += PART) {
        const int64_t now = n - done < PART ? n - done : PART;
        widen_row(from + done * stride_bytes, stride_bytes, from_dtype, part, now);
        mstar_status status =
            mstar_convert(part, MSTAR_DTYPE_F32, to + (size_t)done * mstar_dtype_bytes(to_dtype),
                          to_dtype, (size_t)now);
        if (status != MSTAR_OK)
            return status;
    }
    return MSTAR_OK;
}

mstar_status mstc_view_pack(const mstc_view *view, mstar_dtype from, mstar_dtype to, void *data)
{
    const int64_t bytes = view->bits / 8, count = count_elements(view);
    const int32_t last = view->rank - 1;
    const int64_t row = view->rank == 0 ? 1 : view->shape[last];
    const int64_t stride = view->rank == 0 ? 0 : view->strides[last] * bytes;
    int64_t place[MSTAR_MAX_RANK] = {0};
    char *out = data;
    for (int64_t done = 0; done < count; done += row) {
        const char *begin = view->data;
        for (int i = 0; i < last; i++)
            begin += place[i] * view->strides[i] * bytes;
        mstar_status status = pack_row(begin, stride, from, out, to, row);
        if (status != MSTAR_OK)
            return status;
        out += (size_t)row * mstar_dtype_bytes(to);
        for (int i = last - 1; i >= 0 && ++place[i] == view->shape[i]; i--)
            place[i] = 0;
    }
    return MSTAR_OK;
}
