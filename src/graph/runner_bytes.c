/*
 * runner_bytes.c - what a runner holds, to the byte: everything that it has taken from the
 * allocator, and its graphs as they were counted.
 */
#include <string.h>

#include "graph/runner.h"
#include "step/step.h"

static size_t tensors_bytes(const mstar_tensors *tensors)
{
    size_t bytes = (size_t)tensors->capacity * sizeof *tensors->items;
    for (int64_t i = 0; i < tensors->count; i++)
        bytes += strlen(tensors->items[i].name) + 1;
    return bytes;
}

/* Of clones: compact tensors. What user_clone made is the author's. */
static size_t node_inputs_bytes(const mstar_node_inputs *inputs)
{
    size_t bytes = (size_t)inputs->count * sizeof *inputs->items;
    for (int64_t i = 0; i < inputs->count; i++) {
        const mstar_node_input *input = &inputs->items[i];
        bytes += (size_t)input->num_tensors * sizeof *input->tensors;
        for (int64_t j = 0; j < input->num_tensors; j++) {
            const mstar_tensor *tensor = &input->tensors[j].tensor;
            size_t elements = mstar_dtype_bytes(tensor->dtype);
            for (int32_t dim = 0; dim < tensor->rank; dim++)
                elements *= (size_t)tensor->shape[dim];
            bytes += strlen(input->tensors[j].name) + 1 + elements;
        }
    }
    return bytes;
}

static size_t buffer_bytes(const mstar_buffer *buffer, const mstar_device *device)
{
    return buffer != NULL ? mst_buffer_cost(device, mstar_buffer_get_bytes(buffer)) : 0;
}

static size_t input_bytes(const mst_static_input *input, const mstar_device *device)
{
    return input->buffer != NULL ? buffer_bytes(input->buffer, device) : input->bytes;
}

static size_t configs_bytes(const mstar_graph_runner *runner)
{
    size_t each = sizeof *runner->configs + sizeof *runner->config_states;
    size_t bytes = (size_t)runner->num_configs * each;
    for (int64_t i = 0; i < runner->num_configs; i++) {
        const mst_static_inputs *inputs = &runner->config_states[i].inputs;
        bytes += node_inputs_bytes(&runner->config_states[i].padding);
        bytes += (size_t)inputs->capacity * sizeof *inputs->items;
        for (int64_t j = 0; j < inputs->count; j++)
            bytes +=
                strlen(inputs->items[j].name) + 1 + input_bytes(&inputs->items[j], runner->device);
    }
    return bytes;
}

static size_t slots_bytes(const mstar_graph_runner *runner)
{
    size_t bs = (size_t)runner->max_bs, bytes = 0;
    for (int32_t i = 0; i < runner->num_slots; i++)
        bytes += sizeof *runner->slots + bs * (sizeof(int64_t) + sizeof(mstar_node_input)) +
                 mst_step_bytes(runner->slots[i].step);
    return bytes;
}

static size_t buckets_bytes(const mstar_graph_runner *runner)
{
    size_t buckets = (size_t)runner->num_buckets;
    size_t bytes = buckets * (sizeof *runner->buckets + sizeof *runner->table + 1);
    for (int64_t i = 0; i < runner->num_buckets; i++)
        bytes += runner->buckets[i].graph_bytes;
    for (size_t i = 0; i < buckets * (size_t)runner->num_slots; i++) {
        const mst_capture *capture = &runner->captures[i];
        bytes += sizeof *capture + tensors_bytes(&capture->inputs) +
                 tensors_bytes(&capture->scratch) + tensors_bytes(&capture->outputs);
    }
    return bytes;
}

size_t mst_runner_bytes(const mstar_graph_runner *runner)
{
    size_t bytes = sizeof *runner + strlen(runner->node) + 1 + sizeof *runner->stream;
    bytes += configs_bytes(runner) + slots_bytes(runner) + buckets_bytes(runner);
    bytes += mst_order_bytes(runner);
    bytes += (size_t)runner->regions_capacity * sizeof(struct mstar_region_runner *);
    bytes += (size_t)runner->labels_capacity * sizeof *runner->region_labels;
    return bytes + buffer_bytes(runner->pool, runner->device) +
           (size_t)runner->staged.capacity * sizeof *runner->staged.items;
}

void mst_runner_note_bytes(mstar_graph_runner *runner)
{
    runner->own_bytes = mst_runner_bytes(runner);
    runner->resource_bytes = mstar_resources_memory_bytes(runner->resources);
}
