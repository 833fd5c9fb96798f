/*
 * region_runner.c - a region's life and its runs.
 */
#include <stdio.h>
#include <string.h>

#include "graph/region.h"
#include "step/step.h"

void mstar_region_runner_desc_init(mstar_region_runner_desc *desc)
{
    if (desc != NULL)
        *desc = (mstar_region_runner_desc){.struct_size = sizeof *desc,
                                           .num_slots = -1,
                                           .node = "node",
                                           .num_warmups = 2,
                                           .first_handle = -1,
                                           .free_bytes = -1};
}

void mstar_region_call_init(mstar_region_call *call)
{
    if (call != NULL)
        *call = (mstar_region_call){.struct_size = sizeof *call, .real_bs = -1};
}

const char *mstar_region_runner_get_label(const mstar_region_runner *runner)
{
    return runner != NULL ? runner->label : NULL;
}

/* ---- create ---------------------------------------------------------------------------------- */

static mstar_status check_desc(mstar_device *device, const mstar_region_runner_desc *desc)
{
    MST_TRY(mst_check_not_null("desc.node", desc->node));
    MST_TRY(mst_check_not_null("desc.label", desc->label));
    MST_TRY(mst_check_not_null("desc.config", desc->config));
    MST_TRY(mst_check_not_null("desc.stream", desc->stream));
    if (desc->num_slots != -1)
        MST_TRY(mst_check_range("desc.num_slots", desc->num_slots, 1, 64));
    MST_TRY(mst_check_range("desc.num_warmups", desc->num_warmups, 0, 100));
    MST_TRY(mst_check_range("desc.first_handle", desc->first_handle, INT64_MIN / 2, -1));
    MST_TRY(mst_check_range("desc.free_bytes", desc->free_bytes, -1, INT64_MAX));
    MST_TRY(mst_check_range("desc.floor_bytes", desc->floor_bytes, 0, INT64_MAX));
    if (desc->config->info.declare_step != NULL && desc->resources == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.config declares steps and desc.resources is NULL");
    if (desc->stream->device != device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.stream was made on another device");
    return MSTAR_OK;
}

/* Asks the declaration about rows that no resource knows yet. */
static mstar_status choose_slots(const mstar_region_runner_desc *desc, mstar_region_runner *runner)
{
    const mstar_piecewise_config_info *config = &runner->config->info;
    runner->num_slots = desc->num_slots;
    if (runner->num_slots > 0)
        return MSTAR_OK;
    runner->num_slots = 1;
    if (config->declare_step == NULL || runner->shapes.count == 0)
        return MSTAR_OK;
    const mstar_capture_shape *shape = &runner->shapes.items[0];
    int declared = 0;
    MST_TRY(mst_region_handles(runner, 0, NULL, 0, shape->bs));
    mstar_status status = config->declare_step(config->user, runner->handles, shape->bs,
                                               shape->seq_lens, shape->bs, runner->step, &declared);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "%s: declare_step", runner->key_info);
    if (declared && mstar_resources_double_buffers(runner->resources, runner->step))
        runner->num_slots = 2;
    return MSTAR_OK;
}

static void sort_order(mstar_region_runner *runner)
{
    const mstar_capture_shape *shapes = runner->shapes.items;
    for (int64_t i = 0; i < runner->shapes.count; i++) {
        int64_t at = i;
        for (; at > 0; at--) { /* insertion: as many shapes as a list holds, once */
            const mstar_capture_shape *before = &shapes[runner->order[at - 1]];
            bool larger = shapes[i].bs != before->bs
                              ? shapes[i].bs > before->bs
                              : shapes[i].total_tokens > before->total_tokens;
            if (!larger)
                break;
            runner->order[at] = runner->order[at - 1];
        }
        runner->order[at] = i;
    }
}

static mstar_status make_captures(mstar_region_runner *runner)
{
    int64_t shapes = runner->shapes.count;
    MST_TRY(mst_alloc_array(shapes * runner->num_slots, sizeof *runner->captures, "captures",
                            (void **)&runner->captures));
    for (int64_t i = 0; i < shapes * runner->num_slots; i++) {
        const mstar_capture_shape *shape = &runner->shapes.items[i / runner->num_slots];
        runner->captures[i].lease = (mstar_lease){
            .key = {.walk = MSTAR_REGION_WALK,
                    .additional_key_info = runner->key_info,
                    .bs = shape->bs,
                    .num_tokens = shape->total_tokens},
            .slot = (int32_t)(i % runner->num_slots),
        };
    }
    return MSTAR_OK;
}

static mstar_status fill(const mstar_region_runner_desc *desc, mstar_region_runner *runner)
{
    runner->stream = desc->stream;
    runner->config = desc->config;
    runner->resources = desc->resources;
    runner->num_warmups = desc->num_warmups;
    runner->free_bytes = desc->free_bytes;
    runner->floor_bytes = desc->floor_bytes;
    runner->first_handle =
        desc->first_handle < -1 ? desc->first_handle : mst_resources_free_handle(desc->resources);
    MST_TRY(mst_strdup(desc->node, "a node's name", &runner->node));
    MST_TRY(mst_strdup(desc->label, "a region's label", &runner->label));
    size_t bytes = strlen(desc->node) + strlen(desc->label) + 2;
    MST_TRY(mst_alloc(bytes, "a region's name", (void **)&runner->key_info));
    (void)snprintf(runner->key_info, bytes, "%s_%s", desc->node, desc->label);
    if (runner->resources != NULL)
        MST_TRY(mstar_step_create(&runner->step));
    MST_TRY(mstar_piecewise_config_make_capture_shapes(runner->config, NULL, 0, &runner->shapes));
    int64_t shapes = runner->shapes.count;
    int64_t max_bs = runner->config->info.max_batch_size;
    MST_TRY(mst_alloc_array(shapes, sizeof *runner->order, "shapes", (void **)&runner->order));
    MST_TRY(mst_alloc_array(shapes, 1, "shapes", (void **)&runner->captured));
    MST_TRY(mst_alloc_array(max_bs, sizeof *runner->handles, "handles of a step",
                            (void **)&runner->handles));
    sort_order(runner);
    MST_TRY(choose_slots(desc, runner));
    runner->num_handles = max_bs * runner->num_slots;
    mst_resources_take_handles(runner->resources, runner->first_handle, runner->num_handles);
    return make_captures(runner);
}

mstar_status mstar_region_runner_create(mstar_device *device, const mstar_region_runner_desc *given,
                                        mstar_region_runner **runner)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("desc", given));
    MST_TRY(mst_check_not_null("runner", runner));
    mstar_region_runner_desc desc;
    mstar_region_runner_desc_init(&desc);
    MST_TRY(mst_desc_read("desc", given, &desc, sizeof desc));
    MST_TRY(check_desc(device, &desc));
    mstar_region_runner *made;
    MST_TRY(mst_alloc_zero(sizeof *made, "a region's runner", (void **)&made));
    made->device = device;
    mstar_status status = fill(&desc, made);
    if (status != MSTAR_OK) {
        mstar_region_runner_destroy(made);
        return status;
    }
    *runner = made;
    return MSTAR_OK;
}

void mstar_region_runner_destroy(mstar_region_runner *runner)
{
    if (runner == NULL)
        return;
    for (int64_t i = 0; i < runner->handles_added; i++)
        mstar_resources_remove_request(runner->resources, runner->first_handle - i);
    for (int64_t i = 0; runner->captures != NULL && i < runner->shapes.count * runner->num_slots;
         i++) {
        mst_region_capture *capture = &runner->captures[i];
        mst_region_drop_capture(runner, capture);
    }
    if (runner->phase == MST_RUNNER_READY)
        mst_resources_note_captured(runner->resources, -1);
    mstar_step_destroy(runner->step);
    mstar_capture_shapes_release(&runner->shapes);
    mstar_tensors_release(&runner->results);
    mst_free(runner->captures);
    mst_free(runner->captured);
    mst_free(runner->order);
    mst_free(runner->handles);
    mst_free(runner->lengths);
    mst_free(runner->key_info);
    mst_free(runner->label);
    mst_free(runner->node);
    mst_free(runner);
}

mstar_status mstar_region_runner_query(const mstar_region_runner *runner,
                                       mstar_region_runner_info *info)
{
    MST_TRY(mst_check_not_null("runner", runner));
    mstar_region_runner_info full = runner->info;
    const mstar_piecewise_config_info *config = &runner->config->info;
    full.compile_mode = config->compile ? config->effective_compile_mode : "none";
    full.num_slots = runner->num_slots;
    full.num_shapes = runner->shapes.count;
    full.num_handles = runner->num_handles;
    return mst_info_write("info", &full, sizeof full, info);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static mstar_status choose(const mstar_region_runner *runner, int64_t bs, int64_t tokens,
                           mstar_graph_choice *choice)
{
    *choice = (mstar_graph_choice){.struct_size = sizeof *choice};
    if (runner->phase != MST_RUNNER_READY) {
        choice->miss = MSTAR_GRAPH_MISS_NOT_CAPTURED;
        choice->index = -1;
        return MSTAR_OK;
    }
    return mstar_piecewise_choose(runner->config, &runner->shapes, runner->captured, bs, tokens,
                                  choice);
}

mstar_graph_miss mstar_region_runner_can_run(const mstar_region_runner *runner, int64_t bs,
                                             int64_t num_tokens)
{
    mstar_graph_choice choice;
    if (runner == NULL || choose(runner, bs, num_tokens, &choice) != MSTAR_OK)
        return MSTAR_GRAPH_MISS_DISABLED;
    return choice.miss;
}

int mstar_region_runner_can_lease(const mstar_region_runner *runner, const mstar_node_input *inputs,
                                  int64_t count)
{
    int64_t tokens;
    if (runner == NULL || !runner->config->info.lease_before_step || (inputs == NULL && count > 0))
        return 0;
    const mstar_piecewise_config_info *config = &runner->config->info;
    if (mst_count_tokens(inputs, count, 1, &tokens) != MSTAR_OK ||
        mstar_region_runner_can_run(runner, count, tokens) != MSTAR_GRAPH_MISS_NONE)
        return 0;
    return config->can_lease == NULL || config->can_lease(config->user, inputs, count) != 0;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Rows of so many bytes to the start of a buffer, zeros behind them. */
static mstar_status fill_rows(mstar_stream *stream, const mstar_tensor *from,
                              const mstar_tensor *to, size_t row)
{
    const mst_backend *backend = stream->device->backend;
    size_t bytes = row * (size_t)from->shape[0];
    size_t rest = row * (size_t)(to->shape[0] - from->shape[0]);
    if (to->device_kind != MSTAR_DEVICE_CPU) {
        if (bytes > 0)
            MST_TRY(backend->copy(stream, to->data, from->data, bytes));
        return rest > 0 ? backend->clear(stream, (char *)to->data + bytes, rest) : MSTAR_OK;
    }
    if (bytes > 0)
        memcpy(to->data, from->data, bytes);
    if (rest > 0)
        memset((char *)to->data + bytes, 0, rest);
    return MSTAR_OK;
}

/* The call's tensors to the start of the buffers of their names, zeros behind them. */
static mstar_status stage(const mst_region_capture *capture, const mstar_tensors *inputs,
                          mstar_stream *stream)
{
    for (int64_t i = 0; inputs != NULL && i < inputs->count; i++) {
        const mstar_tensor *from = &inputs->items[i].tensor;
        const mstar_tensor *to = mstar_tensors_find(&capture->inputs, inputs->items[i].name);
        if (to == NULL)
            continue;
        bool fits = from->dtype == to->dtype && from->rank == to->rank && to->rank > 0 &&
                    from->shape[0] <= to->shape[0];
        size_t row = mstar_dtype_bytes(to->dtype);
        for (int32_t dim = to->rank - 1; fits && dim >= 0; dim--) {
            int64_t compact = (int64_t)(row / mstar_dtype_bytes(to->dtype));
            fits = (dim == 0 || from->shape[dim] == to->shape[dim]) &&
                   (from->shape[dim] <= 1 || from->strides[dim] == compact) &&
                   (to->shape[dim] <= 1 || to->strides[dim] == compact);
            if (dim > 0)
                row *= (size_t)to->shape[dim];
        }
        if (!fits)
            return mst_fail(
                MSTAR_INVALID_ARGUMENT,
                "input \"%.64s\" does not fit its buffer: same dtype and rank, compact, "
                "at most as many rows and the other dimensions equal",
                inputs->items[i].name);
        MST_TRY(mst_input_check_place(inputs->items[i].name, from, to, true));
        MST_TRY(fill_rows(stream, from, to, row));
    }
    return MSTAR_OK;
}

static mstar_status batch_size(const mstar_region_call *call, int64_t *bs)
{
    *bs = call->real_bs;
    if (*bs < 0 && call->requests != NULL)
        *bs = call->num_requests;
    if (*bs < 0 && call->seq_lens != NULL)
        *bs = call->num_seq_lens;
    if (*bs >= 0)
        return MSTAR_OK;
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "call.real_bs is -1 and neither requests nor seq_lens are given");
}

static mstar_status sum_tokens(const mstar_region_call *call, int64_t *tokens)
{
    *tokens = call->seq_lens != NULL ? 0 : -1;
    for (int64_t i = 0; call->seq_lens != NULL && i < call->num_seq_lens; i++) {
        if (call->seq_lens[i] < 0 || call->seq_lens[i] > INT32_MAX)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "call.seq_lens[%lld] is %lld; it must be from 0 to %d", (long long)i,
                            (long long)call->seq_lens[i], INT32_MAX);
        *tokens += call->seq_lens[i];
    }
    return MSTAR_OK;
}

static mstar_status replay(mstar_region_runner *runner, const mstar_region_call *call,
                           const mstar_capture_shape *shape, mst_region_capture *capture,
                           const mstar_step_context *context, int64_t bs)
{
    int declared = 0;
    if (call->requests != NULL) {
        int64_t count;
        MST_TRY(mstar_piecewise_config_replay_seq_lens(runner->config, shape, call->seq_lens,
                                                       call->num_seq_lens, bs, NULL, 0, &count));
        MST_TRY(mst_grow((void **)&runner->lengths, &runner->lengths_capacity, count,
                         sizeof *runner->lengths, "lengths of a step"));
        MST_TRY(mstar_piecewise_config_replay_seq_lens(runner->config, shape, call->seq_lens,
                                                       call->num_seq_lens, bs, runner->lengths,
                                                       count, &count));
        MST_TRY(mst_region_plan(runner, context, runner->lengths, count, &declared));
    }
    mstar_status status = mstar_graph_replay(capture->graph, runner->stream);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "%s: replay", runner->key_info);
    if (!declared)
        return MSTAR_OK;
    MST_TRY(mstar_resources_commit(runner->resources, context, runner->step));
    return mstar_resources_publish(runner->resources, context, runner->step);
}

static mstar_status give(mstar_region_runner *runner, const mst_region_capture *capture,
                         int64_t real_len)
{
    mst_tensors_clear(&runner->results);
    for (int64_t i = 0; i < capture->outputs.count; i++) {
        mstar_tensor view = capture->outputs.items[i].tensor;
        view.shape[0] = mst_min_i64(view.shape[0], real_len);
        MST_TRY(mstar_tensors_add(&runner->results, capture->outputs.items[i].name, &view));
    }
    return MSTAR_OK;
}

int32_t mst_region_take_slot(mstar_region_runner *runner)
{
    int32_t slot = runner->leased ? runner->leased_slot : runner->next_slot;
    if (!runner->leased)
        runner->next_slot = (slot + 1) % runner->num_slots;
    runner->leased = false;
    return slot;
}

static mstar_status serve(mstar_region_runner *runner, const mstar_region_call *call, int64_t index,
                          int64_t bs, int64_t tokens, mstar_region_result *result)
{
    const mstar_capture_shape *shape = &runner->shapes.items[index];
    int32_t slot = mst_region_take_slot(runner);
    mst_region_capture *capture = &runner->captures[index * runner->num_slots + slot];
    bool packed = runner->config->info.type == MSTAR_PIECEWISE_PACKED;
    MST_TRY(stage(capture, call->inputs, runner->stream));
    MST_TRY(mst_region_handles(runner, slot, call->requests,
                               call->requests != NULL ? call->num_requests : 0, shape->bs));
    capture->num_tokens = packed ? tokens : shape->total_tokens;
    capture->num_requests = bs;
    mstar_step_context context =
        mst_region_context(runner, capture, call->requests,
                           call->requests != NULL ? call->num_requests : 0, shape->bs);
    mstar_status status = replay(runner, call, shape, capture, &context, bs);
    mst_region_reset_padding(runner, &context, packed);
    MST_TRY(status);
    int64_t real_len = packed ? tokens : bs;
    MST_TRY(give(runner, capture, real_len));
    runner->info.replays++;
    runner->info.tokens += capture->num_tokens;
    runner->info.padding_tokens += shape->total_tokens - capture->num_tokens;
    *result = (mstar_region_result){.slot = slot,
                                    .bs = shape->bs,
                                    .total_tokens = shape->total_tokens,
                                    .real_len = real_len,
                                    .outputs = &runner->results,
                                    .stream = runner->stream};
    return MSTAR_OK;
}

mstar_status mstar_region_runner_run(mstar_region_runner *runner, const mstar_region_call *given,
                                     mstar_region_result *result)
{
    MST_TRY(mst_check_not_null("runner", runner));
    MST_TRY(mst_check_not_null("call", given));
    MST_TRY(mst_check_not_null("result", result));
    mstar_region_call call;
    mstar_region_call_init(&call);
    MST_TRY(mst_desc_read("call", given, &call, sizeof call));
    int64_t bs, tokens;
    MST_TRY(batch_size(&call, &bs));
    if (call.requests != NULL) {
        MST_TRY(mst_check_range("call.num_requests", call.num_requests, 0, bs));
        MST_TRY(mst_check_distinct("call.requests", call.requests, call.num_requests));
    }
    MST_TRY(sum_tokens(&call, &tokens));
    mstar_graph_choice choice;
    MST_TRY(choose(runner, bs, tokens, &choice));
    if (choice.index < 0) {
        runner->info.refused++;
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "%s: no capture serves %lld requests of %lld tokens: %s; ask can_run first",
                        runner->key_info, (long long)bs, (long long)tokens,
                        mstar_graph_miss_text(choice.miss));
    }
    mstar_region_result made;
    MST_TRY(serve(runner, &call, choice.index, bs, tokens, &made));
    return mst_info_write("result", &made, sizeof made, result);
}

/* After what the region's stream has been given; host memory is there on return. */
static mstar_status copy_from_device(const mstar_region_result *result, const void *from,
                                     const mstar_tensor *copy, size_t bytes)
{
    mstar_stream *stream = result->stream;
    if (stream == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "result.struct_size is %u; a copy from a device needs result.stream, which "
                        "lies behind it",
                        result->struct_size);
    MST_TRY(mst_capture_refuse("copy of a region's result"));
    MST_TRY(stream->device->backend->copy(stream, copy->data, from, bytes));
    return copy->device_kind == MSTAR_DEVICE_CPU ? mstar_stream_synchronize(stream) : MSTAR_OK;
}

mstar_status mstar_region_result_copy(const mstar_region_result *result, const char *name,
                                      const mstar_tensor *copy)
{
    MST_TRY(mst_check_not_null("result", result));
    mstar_region_result full = {.struct_size = result->struct_size};
    MST_TRY(mst_desc_read("result", result, &full, sizeof full));
    const mstar_tensor *from = mstar_tensors_find(full.outputs, name);
    if (from == NULL)
        return mst_fail(MSTAR_NOT_FOUND, "the region has no result \"%.64s\"",
                        name != NULL ? name : "");
    MST_TRY(mst_tensor_check_rank("copy", copy, from->rank));
    size_t bytes = mstar_dtype_bytes(from->dtype);
    if (copy->dtype != from->dtype)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "copy is %s; the result is %s",
                        mstar_dtype_name(copy->dtype), mstar_dtype_name(from->dtype));
    for (int32_t dim = from->rank - 1; dim >= 0; dim--) {
        MST_TRY(mst_tensor_check_dim("copy", copy, dim, from->shape[dim]));
        if (from->shape[dim] > 1 && copy->strides[dim] != from->strides[dim])
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "copy has stride %lld in dimension %d; it must be compact, %lld",
                            (long long)copy->strides[dim], dim, (long long)from->strides[dim]);
        bytes *= (size_t)from->shape[dim];
    }
    if (bytes == 0)
        return MSTAR_OK;
    if (from->device_kind == MSTAR_DEVICE_CPU && copy->device_kind == MSTAR_DEVICE_CPU) {
        memcpy(copy->data, from->data, bytes);
        return MSTAR_OK;
    }
    return copy_from_device(&full, from->data, copy, bytes);
}
