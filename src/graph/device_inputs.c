/*
 * device_inputs.c - the step's tensors where a device reads them.
 *
 * Operations take ids, positions and offsets from host memory whatever the device, so integers stay
 * there; numbers go to the device. Integers that an author gives in the device's memory, for
 * kernels of their own, stay in that. On a processor everything is host memory and nothing is
 * moved.
 */
#include <string.h>

#include "graph/runner.h"

bool mst_input_is_host(const mstar_device *device, const mstar_tensor *tensor)
{
    switch (tensor->dtype) {
    case MSTAR_DTYPE_I64:
    case MSTAR_DTYPE_I32:
    case MSTAR_DTYPE_I16:
    case MSTAR_DTYPE_I8:
    case MSTAR_DTYPE_U8:
    case MSTAR_DTYPE_BOOL:
        return tensor->device_kind == MSTAR_DEVICE_CPU;
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
                        "input \"%.64s\" is %s on a device; it was captured in host memory", name,
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
    /* of host memory a copy returns when it has been read */
    mstar_status status = stream->device->backend->copy(stream, to->data, packed, bytes);
    mst_free(packed);
    return status;
}

/* ---- eager steps ----------------------------------------------------------------------------- */

/* The static input of that name that captures of the step's walk have, else that any has; NULL:
 * none. */
static const mst_static_input *captured_input(const mstar_graph_runner *runner,
                                              const mstar_runner_step *step, const char *name)
{
    const mst_static_input *other = NULL;
    for (int64_t i = 0; i < runner->num_configs; i++) {
        const mst_static_input *input =
            mst_static_inputs_find(&runner->config_states[i].inputs, name);
        if (input != NULL && mst_config_serves_step(runner->configs[i], step))
            return input;
        other = other != NULL ? other : input;
    }
    return other;
}

/* Host memory that forward will see on the device: numbers, and integers that were captured there.
 */
static bool is_to_be_sent(const mstar_graph_runner *runner, const mstar_runner_step *step,
                          const mstar_named_tensor *item)
{
    if (item->tensor.device_kind != MSTAR_DEVICE_CPU)
        return false;
    if (!mst_input_is_host(runner->device, &item->tensor))
        return true;
    const mst_static_input *captured = captured_input(runner, step, item->name);
    return captured != NULL && captured->buffer != NULL;
}

/* Integers that were captured in host memory are read there. */
static mstar_status check_view(const mstar_graph_runner *runner, const mstar_runner_step *step,
                               const mstar_named_tensor *item)
{
    const mst_static_input *captured = captured_input(runner, step, item->name);
    mstar_tensor want = item->tensor;
    if (captured != NULL && captured->buffer == NULL)
        want.device_kind = MSTAR_DEVICE_CPU;
    return mst_input_check_place(item->name, &item->tensor, &want, true);
}

/* What forward will see of each tensor: those to be sent are compact and have no memory yet. */
static mstar_status list_views(mstar_graph_runner *runner, const mstar_runner_step *step)
{
    const mstar_device *device = runner->device;
    mst_tensors_clear(&runner->eager_inputs);
    for (int64_t i = 0; i < runner->staged.count; i++) {
        const mstar_named_tensor *item = &runner->staged.items[i];
        mstar_tensor view = item->tensor;
        MST_TRY(check_view(runner, step, item));
        if (is_to_be_sent(runner, step, item)) {
            view = mstar_tensor_make(NULL, view.dtype, view.rank, view.shape);
            mst_put_on_device(device, &view);
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

mstar_status mst_eager_inputs(mstar_graph_runner *runner, const mstar_runner_step *step,
                              const mstar_tensors **inputs)
{
    mstar_tensors *views = &runner->eager_inputs;
    size_t bytes;
    *inputs = &runner->staged;
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    MST_TRY(list_views(runner, step));
    MST_TRY(mst_scratch_bytes(views, true, &bytes));
    MST_TRY(mst_eager_reserve(runner, bytes, &runner->eager_input_pool));
    int64_t at = 0;
    mst_scratch_place(views, runner->device, mstar_buffer_get_data(runner->eager_input_pool));
    for (; at < views->count; at++) {
        const mstar_named_tensor *item = &runner->staged.items[at];
        if (is_to_be_sent(runner, step, item))
            MST_TRY(send(step->stream, &item->tensor, &views->items[at].tensor));
        else
            views->items[at].tensor = item->tensor; /* an empty one has been placed too */
    }
    *inputs = views;
    return MSTAR_OK;
}
