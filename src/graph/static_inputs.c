/*
 * static_inputs.c - the buffers that captures read.
 *
 * All buckets and slots of a config share one buffer for each tensor, made by the first (largest)
 * capture: the dimension that varies is stored first, so that a smaller capture's tensor is the
 * start of the buffer, at the same address. The forward sees the original order of dimensions, as a
 * strided view.
 */
#include <string.h>

#include "graph/runner.h"

mst_static_input *mst_static_inputs_find(const mst_static_inputs *inputs, const char *name)
{
    for (int64_t i = 0; i < inputs->count; i++) {
        if (strcmp(inputs->items[i].name, name) == 0)
            return &inputs->items[i];
    }
    return NULL;
}

static mstar_status tensor_bytes(const mstar_tensor *tensor, size_t *bytes)
{
    *bytes = mstar_dtype_bytes(tensor->dtype);
    for (int32_t i = 0; i < tensor->rank; i++)
        MST_TRY(mst_size_mul(*bytes, (size_t)tensor->shape[i], bytes));
    return MSTAR_OK;
}

/* The host's integers of a GPU have none: plain host memory. */
static bool has_buffer(const mstar_device *device, const mstar_tensor *tensor)
{
    return mst_device_is_host(device) || !mst_input_is_host(device, tensor);
}

size_t mst_static_inputs_growth(const mst_static_inputs *inputs, const mstar_device *device,
                                const mstar_tensors *tensors)
{
    size_t growth = 0;
    int64_t fresh = 0;
    for (int64_t i = 0; i < tensors->count; i++) {
        const mstar_named_tensor *item = &tensors->items[i];
        size_t bytes;
        if (mst_static_inputs_find(inputs, item->name) != NULL)
            continue;
        if (tensor_bytes(&item->tensor, &bytes) != MSTAR_OK ||
            mst_size_add(growth, bytes, &growth) != MSTAR_OK)
            return SIZE_MAX;
        fresh++;
        growth += strlen(item->name) + 1;
        if (has_buffer(device, &item->tensor))
            growth += mst_buffer_cost(device, bytes) - bytes;
    }
    int64_t grown = mst_grown(inputs->capacity, inputs->count + fresh);
    return growth + (size_t)(grown - inputs->capacity) * sizeof *inputs->items;
}

/* The view of a tensor of this shape: its first dimension in memory is the one that varies. */
static mstar_tensor view_of(const mst_static_input *input, const mstar_device *device,
                            const mstar_tensor *tensor)
{
    mstar_tensor view = *tensor;
    view.data = input->data;
    view.device_kind = MSTAR_DEVICE_CPU;
    view.device_index = 0;
    if (input->buffer != NULL)
        mst_put_on_device(device, &view);
    int64_t stride = 1;
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        if (i == input->dim)
            continue;
        view.strides[i] = stride;
        stride *= mst_max_i64(tensor->shape[i], 1);
    }
    if (tensor->rank > 0)
        view.strides[input->dim] = stride;
    return view;
}

static mstar_status make_memory(mstar_device *device, const mstar_tensor *tensor,
                                mst_static_input *input)
{
    if (!has_buffer(device, tensor))
        return mst_alloc_zero(input->bytes, "a static input", &input->data);
    MST_TRY(mstar_buffer_create(device, input->bytes, &input->buffer));
    input->data = mstar_buffer_get_data(input->buffer);
    return MSTAR_OK;
}

static mstar_status make(mst_static_inputs *inputs, mstar_device *device,
                         const mstar_graph_config *config, int64_t num_tokens,
                         const mstar_named_tensor *item, mst_static_input **made)
{
    mst_static_input input = {.dtype = item->tensor.dtype, .rank = item->tensor.rank};
    int32_t override = -1;
    for (int64_t i = 0; i < config->num_seq_dims; i++) {
        if (strcmp(config->seq_dims[i].name, item->name) == 0)
            override = config->seq_dims[i].dim;
    }
    if (input.rank > 0) {
        mstar_status status =
            mstar_graph_choose_seq_dim(&item->tensor, num_tokens, override, &input.dim);
        if (status != MSTAR_OK)
            return mst_fail_in(status, "static input \"%.64s\"", item->name);
    }
    memcpy(input.shape, item->tensor.shape, sizeof input.shape);
    MST_TRY(tensor_bytes(&item->tensor, &input.bytes));
    MST_TRY(mst_grow((void **)&inputs->items, &inputs->capacity, inputs->count + 1,
                     sizeof *inputs->items, "static inputs"));
    MST_TRY(mst_strdup(item->name, "a static input's name", &input.name));
    mstar_status status = make_memory(device, &item->tensor, &input);
    if (status != MSTAR_OK) {
        mst_free(input.name);
        return status;
    }
    inputs->bytes += input.bytes;
    inputs->items[inputs->count++] = input;
    *made = &inputs->items[inputs->count - 1];
    return MSTAR_OK;
}

/* Same dtype, rank and other dimensions, and no more along the one that varies. */
static mstar_status check(const mst_static_input *input, const mstar_tensor *tensor)
{
    if (tensor->dtype != input->dtype || tensor->rank != input->rank)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "static input \"%.64s\" is %s of rank %d; its buffer was made for %s of "
                        "rank %d",
                        input->name, mstar_dtype_name(tensor->dtype), tensor->rank,
                        mstar_dtype_name(input->dtype), input->rank);
    for (int32_t i = 0; i < tensor->rank; i++) {
        bool fits = i == input->dim ? tensor->shape[i] <= input->shape[i]
                                    : tensor->shape[i] == input->shape[i];
        if (!fits)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "static input \"%.64s\" has size %lld in dimension %d; its buffer was "
                            "made by the largest capture, which comes first, with %lld%s",
                            input->name, (long long)tensor->shape[i], i, (long long)input->shape[i],
                            i == input->dim ? " at most"
                                            : ", and another dimension varies: see input_seq_dims");
    }
    return MSTAR_OK;
}

mstar_status mst_static_inputs_intern(mst_static_inputs *inputs, mstar_device *device,
                                      const mstar_graph_config *config, int64_t num_tokens,
                                      const mstar_tensors *tensors, mstar_tensors *views)
{
    mst_tensors_clear(views);
    for (int64_t i = 0; i < tensors->count; i++) {
        const mstar_named_tensor *item = &tensors->items[i];
        mst_static_input *input = mst_static_inputs_find(inputs, item->name);
        if (input == NULL)
            MST_TRY(make(inputs, device, config, num_tokens, item, &input));
        MST_TRY(check(input, &item->tensor));
        mstar_tensor view = view_of(input, device, &item->tensor);
        MST_TRY(mstar_tensors_add(views, item->name, &view));
    }
    return MSTAR_OK;
}

/* ---- staging --------------------------------------------------------------------------------- */

/* What fits but does not lie in memory as the buffer does is gathered. */
static mstar_status stage_one(const mst_static_input *input, const mstar_tensor *tensor,
                              size_t bytes, mstar_stream *stream)
{
    mstar_tensor view = view_of(input, stream->device, tensor);
    bool same = mst_is_same_layout(tensor, &view);
    MST_TRY(mst_input_check_place(input->name, tensor, &view, same));
    if (same && input->buffer != NULL)
        return mstar_buffer_upload(input->buffer, stream, 0, tensor->data, bytes);
    if (view.device_kind != MSTAR_DEVICE_CPU)
        return mst_send_gathered(stream, tensor, &view, bytes);
    mst_copy_elements(tensor, &view, bytes / mstar_dtype_bytes(tensor->dtype));
    return MSTAR_OK;
}

mstar_status mst_static_inputs_stage(const mst_static_inputs *inputs, const mstar_tensors *tensors,
                                     mstar_stream *stream)
{
    for (int64_t i = 0; i < tensors->count; i++) {
        const mstar_tensor *tensor = &tensors->items[i].tensor;
        const mst_static_input *input = mst_static_inputs_find(inputs, tensors->items[i].name);
        if (input == NULL)
            continue;
        MST_TRY(check(input, tensor));
        size_t bytes;
        MST_TRY(tensor_bytes(tensor, &bytes));
        if (bytes == 0)
            continue;
        MST_TRY(stage_one(input, tensor, bytes, stream));
    }
    return MSTAR_OK;
}

void mst_static_inputs_trim(mst_static_inputs *inputs, int64_t count)
{
    while (inputs->count > count) {
        mst_static_input *last = &inputs->items[--inputs->count];
        inputs->bytes -= last->bytes;
        mst_free(last->name);
        if (last->buffer == NULL)
            mst_free(last->data);
        mstar_buffer_destroy(last->buffer);
    }
}

void mst_static_inputs_release(mst_static_inputs *inputs)
{
    mst_static_inputs_trim(inputs, 0);
    mst_free(inputs->items);
    *inputs = (mst_static_inputs){.items = NULL};
}
