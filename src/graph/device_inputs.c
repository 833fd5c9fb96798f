/*
 * device_inputs.c - the step's tensors where a device reads them.
 *
 * Operations take ids, positions and offsets from host memory whatever the device, so integers stay
 * there; numbers go to the device. On a processor everything is host memory and nothing is moved.
 */
#include <string.h>

#include "graph/runner.h"

bool mst_input_is_host(const mstar_device *device, mstar_dtype dtype)
{
    switch (dtype) {
    case MSTAR_DTYPE_I64:
    case MSTAR_DTYPE_I32:
    case MSTAR_DTYPE_I16:
    case MSTAR_DTYPE_I8:
    case MSTAR_DTYPE_U8:
    case MSTAR_DTYPE_BOOL:
        return true;
    default:
        return mst_device_is_host(device);
    }
}

void mst_put_on_device(const mstar_device *device, mstar_tensor *tensor)
{
    tensor->device_kind = device->backend->kind;
    tensor->device_index = device->index;
}

mstar_status mst_input_check_place(const char *name, const mstar_tensor *from,
                                   const mstar_tensor *to, bool same_layout)
{
    if (from->device_kind == MSTAR_DEVICE_CPU)
        return MSTAR_OK;
    if (to->device_kind == MSTAR_DEVICE_CPU)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "input \"%.64s\" is %s on a device; it is read from host memory", name,
                        mstar_dtype_name(from->dtype));
    return same_layout ? MSTAR_OK
                       : mst_fail(MSTAR_INVALID_ARGUMENT,
                                  "input \"%.64s\" lies on a device with strides of its own; only "
                                  "host memory is gathered",
                                  name);
}

void mst_copy_elements(const mstar_tensor *from, const mstar_tensor *to, size_t count)
{
    size_t element = mstar_dtype_bytes(from->dtype);
    int64_t index[MSTAR_MAX_RANK] = {0};
    for (size_t i = 0; i < count; i++) {
        int64_t a = 0, b = 0;
        for (int32_t dim = 0; dim < from->rank; dim++) {
            a += index[dim] * from->strides[dim];
            b += index[dim] * to->strides[dim];
        }
        memcpy((char *)to->data + (size_t)b * element,
               (const char *)from->data + (size_t)a * element, element);
        for (int32_t dim = from->rank - 1; dim >= 0; dim--) {
            if (++index[dim] < from->shape[dim])
                break;
            index[dim] = 0;
        }
    }
}

bool mst_is_same_layout(const mstar_tensor *a, const mstar_tensor *b)
{
    for (int32_t i = 0; i < a->rank; i++) {
        if (a->shape[i] > 1 && a->strides[i] != b->strides[i])
            return false;
    }
    return true;
}

mstar_status mst_send_gathered(mstar_stream *stream, const mstar_tensor *from,
                               const mstar_tensor *to, size_t bytes)
{
    void *packed;
    mstar_tensor gathered = *to;
    MST_TRY(mst_alloc(bytes, "an input on its way to the device", &packed));
    gathered.data = packed;
    mst_copy_elements(from, &gathered, bytes / mstar_dtype_bytes(from->dtype));
    /* of pageable memory a copy returns when it has been read */
    mstar_status status = stream->device->backend->copy(stream, to->data, packed, bytes);
    mst_free(packed);
    return status;
}

/* ---- eager steps ----------------------------------------------------------------------------- */

/* What forward will see of each tensor: those to be sent are compact and have no memory yet. */
static mstar_status list_views(mstar_graph_runner *runner)
{
    const mstar_device *device = runner->device;
    mst_tensors_clear(&runner->eager_inputs);
    for (int64_t i = 0; i < runner->staged.count; i++) {
        const mstar_named_tensor *item = &runner->staged.items[i];
        mstar_tensor view = item->tensor;
        if (!mst_input_is_host(device, view.dtype) && view.device_kind == MSTAR_DEVICE_CPU) {
            view = mstar_tensor_make(NULL, view.dtype, view.rank, view.shape);
            mst_put_on_device(device, &view);
        } else {
            mstar_tensor want = view;
            if (mst_input_is_host(device, view.dtype))
                want.device_kind = MSTAR_DEVICE_CPU;
            MST_TRY(mst_input_check_place(item->name, &view, &want, true));
        }
        MST_TRY(mstar_tensors_add(&runner->eager_inputs, item->name, &view));
    }
    return MSTAR_OK;
}

/* Bytes of a compact tensor. */
static size_t compact_bytes(const mstar_tensor *tensor)
{
    size_t bytes = mstar_dtype_bytes(tensor->dtype);
    for (int32_t dim = 0; dim < tensor->rank; dim++)
        bytes *= (size_t)tensor->shape[dim];
    return bytes;
}

static mstar_status send(mstar_stream *stream, const mstar_tensor *from, const mstar_tensor *to)
{
    size_t bytes = compact_bytes(to);
    if (bytes == 0 || from->data == to->data)
        return MSTAR_OK;
    if (mst_is_same_layout(from, to))
        return stream->device->backend->copy(stream, to->data, from->data, bytes);
    return mst_send_gathered(stream, from, to, bytes);
}

mstar_status mst_eager_inputs(mstar_graph_runner *runner, mstar_stream *stream,
                              const mstar_tensors **inputs)
{
    mstar_tensors *views = &runner->eager_inputs;
    size_t bytes;
    *inputs = &runner->staged;
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    MST_TRY(list_views(runner));
    MST_TRY(mst_scratch_bytes(views, true, &bytes));
    MST_TRY(mst_eager_reserve(runner, bytes, &runner->eager_input_pool));
    int64_t at = 0;
    mst_scratch_place(views, runner->device, mstar_buffer_get_data(runner->eager_input_pool));
    for (; at < views->count; at++) {
        const mstar_tensor *from = &runner->staged.items[at].tensor;
        if (mst_input_is_host(runner->device, from->dtype))
            views->items[at].tensor = *from; /* an empty one has been placed too */
        else
            MST_TRY(send(stream, from, &views->items[at].tensor));
    }
    *inputs = views;
    return MSTAR_OK;
}
