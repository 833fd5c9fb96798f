/*
 * region_capture.c - a region before its first run: static inputs of its own for each shape and
 * slot, then one capture after another, with results copied out as the last of the recorded work.
 */
#include <stdio.h>

#include "graph/region.h"
#include "step/step.h"

/* ---- steps ----------------------------------------------------------------------------------- */

mstar_step_context mst_region_context(const mstar_region_runner *runner,
                                      const mst_region_capture *capture, const int64_t *requests,
                                      int64_t num_requests, int64_t bs)
{
    mstar_step_context context;
    mstar_step_context_init(&context);
    context.walk = MSTAR_REGION_WALK;
    context.slot = capture->lease.slot;
    context.requests = requests; /* the real ones: padding rows are no requests of the batch */
    context.num_requests = num_requests;
    context.padded_requests = runner->handles;
    context.num_padded_requests = bs;
    context.lease = &capture->lease;
    context.stream = runner->stream;
    context.resources = runner->resources;
    return context;
}

mstar_status mst_region_handles(mstar_region_runner *runner, int32_t slot, const int64_t *real,
                                int64_t num_real, int64_t bs)
{
    int64_t first = runner->first_handle - slot * runner->config->info.max_batch_size;
    return mstar_graph_pad_handles(real, num_real, bs, first, runner->handles);
}

void mst_region_reset_padding(mstar_region_runner *runner, const mstar_step_context *context,
                              int free_storage)
{
    for (int64_t i = 0; runner->resources != NULL && i < context->num_padded_requests; i++) {
        if (context->padded_requests[i] < 0)
            mstar_resources_reset_request(runner->resources, context->padded_requests[i],
                                          free_storage);
    }
}

static mstar_status declare(mstar_region_runner *runner, const mstar_step_context *context,
                            const int64_t *lengths, int64_t count, int *declared)
{
    const mstar_piecewise_config_info *config = &runner->config->info;
    *declared = 0;
    if (config->declare_step == NULL)
        return MSTAR_OK;
    mstar_step_clear(runner->step);
    mstar_status status =
        config->declare_step(config->user, context->padded_requests, context->num_padded_requests,
                             lengths, count, runner->step, declared);
    return status == MSTAR_OK ? MSTAR_OK
                              : mst_fail_in(status, "%s: declare_step", runner->key_info);
}

mstar_status mst_region_plan(mstar_region_runner *runner, const mstar_step_context *context,
                             const int64_t *lengths, int64_t count, int *declared)
{
    MST_TRY(declare(runner, context, lengths, count, declared));
    if (!*declared)
        return MSTAR_OK;
    mstar_admission admission = {.struct_size = sizeof admission};
    MST_TRY(mstar_resources_admit(runner->resources, context, runner->step, &admission));
    if (admission.outcome != MSTAR_ADMITTED)
        return mst_fail(admission.outcome == MSTAR_NOT_READY ? MSTAR_BUSY : MSTAR_CANCELLED,
                        "%s: resource \"%.64s\" does not admit the step: %.128s", runner->key_info,
                        admission.resource != NULL ? admission.resource : "", admission.reason);
    return mstar_resources_plan(runner->resources, context, runner->step);
}

/* ---- the memory rule ------------------------------------------------------------------------- */

/* OUT_OF_MEMORY, and runner->unaffordable, where so many bytes more would break it. */
static mstar_status afford(mstar_region_runner *runner, size_t more)
{
    const mstar_region_runner_info *info = &runner->info;
    size_t held = info->static_input_bytes + info->output_bytes + info->graph_bytes +
                  mstar_resources_memory_bytes(runner->resources) - runner->held_before;
    return mst_afford(runner->free_bytes, runner->floor_bytes, held, more, &runner->unaffordable);
}

/* What a plan of the dummy step will take of the resources. */
static mstar_status ask_resources(mstar_region_runner *runner, const mstar_step_context *context,
                                  const mstar_capture_shape *shape)
{
    int declared;
    size_t more = 0;
    if (runner->free_bytes < 0)
        return MSTAR_OK;
    MST_TRY(declare(runner, context, shape->seq_lens, shape->bs, &declared));
    if (declared)
        MST_TRY(mstar_resources_claim_bytes(runner->resources, context, runner->step, &more));
    return afford(runner, more);
}

/* ---- static inputs --------------------------------------------------------------------------- */

static mstar_status make_inputs(mstar_region_runner *runner, int64_t shape, int32_t slot)
{
    const mstar_piecewise_config_info *config = &runner->config->info;
    mst_region_capture *capture = &runner->captures[shape * runner->num_slots + slot];
    mstar_status status =
        config->make_static_inputs(config->user, &runner->shapes.items[shape], &capture->inputs);
    if (status != MSTAR_OK)
        return mst_fail(status, "make_static_inputs answers \"%s\"", mstar_status_text(status));
    size_t bytes = 0, host_bytes = 0;
    MST_TRY(mst_scratch_place_host(&capture->inputs, runner->device, &capture->host_memory,
                                   &host_bytes));
    MST_TRY(mst_scratch_bytes(&capture->inputs, true, &bytes));
    MST_TRY(afford(runner, bytes + host_bytes));
    MST_TRY(mstar_buffer_create(runner->device, bytes, &capture->memory));
    mst_scratch_place(&capture->inputs, runner->device, mstar_buffer_get_data(capture->memory));
    capture->input_bytes = bytes + host_bytes;
    runner->info.static_input_bytes += capture->input_bytes;
    return MSTAR_OK;
}

void mst_region_drop_capture(mstar_region_runner *runner, mst_region_capture *capture)
{
    mstar_graph_destroy(capture->graph);
    capture->graph = NULL;
    if (capture->claimed)
        mstar_resources_unclaim(runner->resources, &capture->lease);
    mstar_tensors_release(&capture->inputs);
    mstar_tensors_release(&capture->outputs);
    mstar_buffer_destroy(capture->memory);
    mstar_buffer_destroy(capture->out);
    mst_free(capture->host_memory);
    runner->info.static_input_bytes -= capture->input_bytes;
    runner->info.output_bytes -= capture->output_bytes;
    *capture = (mst_region_capture){.lease = capture->lease};
}

static void drop(mstar_region_runner *runner, int64_t shape, mstar_status status)
{
    if (runner->first_failure == MSTAR_OK)
        runner->first_failure = status;
    runner->info.num_unaffordable += runner->unaffordable;
    runner->unaffordable = false;
    const mstar_capture_shape *dropped = &runner->shapes.items[shape];
    runner->captured[shape] = 0;
    mst_log(MST_LOG_ERROR, "%s: the shape of %lld requests and %lld tokens is not captured: %s",
            runner->key_info, (long long)dropped->bs, (long long)dropped->total_tokens,
            mstar_last_error());
    if (runner->info.first_failure[0] == '\0')
        (void)snprintf(runner->info.first_failure, sizeof runner->info.first_failure, "%s",
                       mstar_last_error());
    for (int32_t slot = 0; slot < runner->num_slots; slot++)
        mst_region_drop_capture(runner, &runner->captures[shape * runner->num_slots + slot]);
}

static mstar_status claim(mstar_region_runner *runner)
{
    mstar_lease *leases;
    int64_t count = runner->shapes.count * runner->num_slots;
    if (runner->resources == NULL)
        return MSTAR_OK;
    MST_TRY(mst_alloc_array(count, sizeof *leases, "leases", (void **)&leases));
    for (int64_t i = 0; i < count; i++)
        leases[i] = runner->captures[i].lease;
    mstar_status status =
        mst_claim_leases(runner->resources, runner->node, leases, count, runner->key_info);
    mst_free(leases);
    for (int64_t i = 0; i < count && status == MSTAR_OK; i++)
        runner->captures[i].claimed = true;
    return status;
}

/* ---- capture --------------------------------------------------------------------------------- */

static mstar_status run_region(mstar_region_runner *runner, mst_region_capture *capture,
                               const mstar_step_context *context, mstar_tensors *outputs)
{
    const mstar_piecewise_config_info *config = &runner->config->info;
    const mstar_piecewise_call_inputs call = {.static_inputs = &capture->inputs,
                                              .engine_inputs = context,
                                              .kwargs = config->forward_kwargs,
                                              .num_tokens = &capture->num_tokens,
                                              .num_requests = &capture->num_requests};
    mst_tensors_clear(outputs);
    MST_TRY(mstar_stream_set_rows(runner->stream, &capture->num_tokens));
    mstar_status status = config->capture_fn(config->user, &call, outputs);
    MST_TRY(mstar_stream_set_rows(runner->stream, NULL));
    if (status != MSTAR_OK)
        return mst_fail_in(status, "capture_fn");
    return outputs->count > 0 ? MSTAR_OK
                              : mst_fail(MSTAR_INVALID_ARGUMENT, "capture_fn adds no result");
}

/* Buffers like the results of a run, outside of what any capture works in. */
static mstar_status make_outputs(mstar_region_runner *runner, mst_region_capture *capture,
                                 const mstar_tensors *results)
{
    size_t bytes;
    mst_tensors_clear(&capture->outputs);
    for (int64_t i = 0; i < results->count; i++) {
        const mstar_tensor *result = &results->items[i].tensor;
        mstar_tensor shape = mstar_tensor_make(NULL, result->dtype, result->rank, result->shape);
        for (int32_t dim = 0; dim < result->rank; dim++) {
            if (result->shape[dim] > 1 && result->strides[dim] != shape.strides[dim])
                return mst_fail(MSTAR_NOT_SUPPORTED,
                                "result \"%.64s\" has stride %lld in dimension %d; results are "
                                "compact",
                                results->items[i].name, (long long)result->strides[dim], dim);
        }
        if (result->rank == 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "result \"%.64s\" has rank 0; it needs rows",
                            results->items[i].name);
        MST_TRY(mstar_tensors_add(&capture->outputs, results->items[i].name, &shape));
    }
    MST_TRY(mst_scratch_bytes(&capture->outputs, false, &bytes));
    MST_TRY(afford(runner, bytes));
    MST_TRY(mstar_buffer_create(runner->device, bytes, &capture->out));
    mst_scratch_place(&capture->outputs, runner->device, mstar_buffer_get_data(capture->out));
    capture->output_bytes = bytes;
    runner->info.output_bytes += bytes;
    return MSTAR_OK;
}

static mstar_status copy_out(mstar_region_runner *runner, const mst_region_capture *capture,
                             const mstar_tensors *results)
{
    for (int64_t i = 0; i < capture->outputs.count; i++) {
        const mstar_named_tensor *to = &capture->outputs.items[i];
        const mstar_tensor *from = mstar_tensors_find(results, to->name);
        size_t bytes = mstar_dtype_bytes(to->tensor.dtype);
        if (from == NULL)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "result \"%.64s\" of the warm-up is not there in the capture",
                            to->name);
        for (int32_t dim = 0; dim < to->tensor.rank; dim++) {
            if (from->rank != to->tensor.rank || from->dtype != to->tensor.dtype ||
                from->shape[dim] != to->tensor.shape[dim])
                return mst_fail(MSTAR_INVALID_ARGUMENT,
                                "result \"%.64s\" has another dtype or shape than in the warm-up",
                                to->name);
        }
        for (int32_t dim = 0; dim < to->tensor.rank; dim++)
            bytes *= (size_t)to->tensor.shape[dim];
        if (bytes > 0)
            MST_TRY(
                runner->device->backend->copy(runner->stream, to->tensor.data, from->data, bytes));
    }
    return MSTAR_OK;
}

static mstar_status record(mstar_region_runner *runner, mst_region_capture *capture,
                           const mstar_step_context *context, mstar_tensors *results)
{
    MST_TRY(mstar_graph_capture_begin(runner->stream));
    mstar_status status = run_region(runner, capture, context, results);
    if (status == MSTAR_OK)
        status = copy_out(runner, capture, results);
    if (status != MSTAR_OK) {
        mstar_graph_capture_abort(runner->stream);
        return status;
    }
    return mstar_graph_capture_end(runner->stream, &capture->graph);
}

/* Every capture of a region is specialised on its own. */
static mstar_status specialise(mstar_region_runner *runner, const mst_region_capture *capture)
{
    const mstar_piecewise_config_info *config = &runner->config->info;
    mst_specialised made;
    MST_TRY(mst_specialise(capture->graph, runner->stream,
                           config->compile ? config->effective_compile_mode : NULL, NULL,
                           &runner->tuning, &made));
    runner->info.specialised += made.counts.specialised;
    runner->info.tuned += made.counts.tuned;
    runner->info.dropped_choices += made.counts.dropped;
    runner->info.tuning_ns += made.tuning_ns;
    return MSTAR_OK;
}

/* Plans and warms up, so that a recording may follow; *context is of the dummy step. The first run
 * tells the results' shapes. */
static mstar_status ready_slot(mstar_region_runner *runner, int64_t index, int32_t slot,
                               int32_t warmups, mstar_step_context *context, mstar_tensors *results)
{
    const mstar_capture_shape *shape = &runner->shapes.items[index];
    mst_region_capture *capture = &runner->captures[index * runner->num_slots + slot];
    int declared;
    capture->num_tokens = shape->total_tokens;
    capture->num_requests = shape->bs;
    MST_TRY(mst_region_handles(runner, slot, NULL, 0, shape->bs));
    *context = mst_region_context(runner, capture, runner->handles, shape->bs, shape->bs);
    context->capturing = 1;
    if (runner->phase == MST_RUNNER_NEW)
        MST_TRY(ask_resources(runner, context, shape));
    for (int32_t i = 0; i <= warmups; i++) {
        MST_TRY(mst_region_plan(runner, context, shape->seq_lens, shape->bs, &declared));
        if (i == warmups)
            break;
        mstar_status status = run_region(runner, capture, context, results);
        mst_region_reset_padding(runner, context, 0);
        MST_TRY(status);
        if (capture->out == NULL)
            MST_TRY(make_outputs(runner, capture, results));
    }
    return MSTAR_OK;
}

/* Readies and records; *bytes: of the graph. */
static mstar_status record_slot(mstar_region_runner *runner, int64_t index, int32_t slot,
                                int32_t warmups, size_t *bytes)
{
    mst_region_capture *capture = &runner->captures[index * runner->num_slots + slot];
    mstar_tensors results = {NULL, 0, 0};
    mstar_step_context context = {.num_padded_requests = 0};
    mstar_status status = ready_slot(runner, index, slot, warmups, &context, &results);
    if (status == MSTAR_OK)
        status = record(runner, capture, &context, &results);
    /* a batched region's padding rows are used at every replay and keep their storage */
    mst_region_reset_padding(runner, &context, runner->config->info.type == MSTAR_PIECEWISE_PACKED);
    mstar_tensors_release(&results);
    MST_TRY(status);
    mstar_graph_info info = {.struct_size = sizeof info};
    MST_TRY(mstar_graph_query(capture->graph, &info));
    *bytes = info.bytes;
    return MSTAR_OK;
}

static mstar_status capture_slot(mstar_region_runner *runner, int64_t index, int32_t slot)
{
    size_t bytes;
    MST_TRY(record_slot(runner, index, slot, runner->num_warmups, &bytes));
    MST_TRY(specialise(runner, &runner->captures[index * runner->num_slots + slot]));
    runner->info.graph_bytes += bytes;
    return MSTAR_OK;
}

/* A recording that is thrown away: how large the results are, and the graph. */
static mstar_status count_slot(mstar_region_runner *runner, int64_t index, int32_t slot)
{
    mst_region_capture *capture = &runner->captures[index * runner->num_slots + slot];
    size_t bytes;
    MST_TRY(record_slot(runner, index, slot, 1, &bytes));
    mstar_graph_destroy(capture->graph);
    capture->graph = NULL;
    MST_TRY(afford(runner, bytes));
    runner->info.graph_bytes += bytes;
    return MSTAR_OK;
}

/* What went wrong with a shape of which some slots were counted does not count. */
static void take_shape(mstar_region_runner *runner, int64_t shape)
{
    size_t before = runner->info.graph_bytes;
    mstar_status status = MSTAR_OK;
    runner->captured[shape] = 1;
    for (int32_t slot = 0; status == MSTAR_OK && slot < runner->num_slots; slot++) {
        status = make_inputs(runner, shape, slot);
        if (status == MSTAR_OK)
            status = count_slot(runner, shape, slot);
    }
    if (status == MSTAR_OK)
        return;
    drop(runner, shape, status);
    runner->info.graph_bytes = before;
}

mstar_status mstar_region_runner_prepare(mstar_region_runner *runner)
{
    MST_TRY(mst_check_not_null("runner", runner));
    if (runner->phase != MST_RUNNER_NEW)
        return mst_fail(MSTAR_OUT_OF_ORDER, "region %s has been prepared already",
                        runner->key_info);
    for (; runner->resources != NULL && runner->handles_added < runner->num_handles;
         runner->handles_added++)
        MST_TRY(mstar_resources_add_request(runner->resources,
                                            runner->first_handle - runner->handles_added));
    runner->held_before = mstar_resources_memory_bytes(runner->resources);
    MST_TRY(claim(runner)); /* else it is prepared again */
    for (int64_t i = 0; i < runner->shapes.count; i++)
        take_shape(runner, runner->order[i]);
    runner->info.resource_bytes =
        mstar_resources_memory_bytes(runner->resources) - runner->held_before;
    runner->phase = MST_RUNNER_PREPARED;
    return MSTAR_OK;
}

mstar_status mstar_region_runner_capture(mstar_region_runner *runner)
{
    MST_TRY(mst_check_not_null("runner", runner));
    if (runner->phase != MST_RUNNER_PREPARED)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        runner->phase == MST_RUNNER_NEW
                            ? "region %s captures before it was prepared"
                            : "region %s has captured already",
                        runner->key_info);
    runner->phase = MST_RUNNER_CAPTURING;
    mst_resources_note_captured(runner->resources, 1);
    runner->info.graph_bytes = 0; /* counted so far */
    int64_t start = mst_runner_now();
    for (int64_t i = 0; i < runner->shapes.count; i++) {
        int64_t shape = runner->order[i];
        size_t before = runner->info.graph_bytes;
        for (int32_t slot = 0; runner->captured[shape] && slot < runner->num_slots; slot++) {
            mstar_status status = capture_slot(runner, shape, slot);
            if (status == MSTAR_OK)
                continue;
            drop(runner, shape, status);
            runner->info.graph_bytes = before;
        }
        runner->info.num_captured += runner->captured[shape];
    }
    runner->info.capture_ns = mst_runner_now() - start - runner->info.tuning_ns;
    runner->phase = MST_RUNNER_READY;
    if (runner->info.num_captured == runner->shapes.count ||
        !mst_env_flag(MST_ENV_REQUIRE_GRAPHS, false))
        return MSTAR_OK;
    return mst_fail(runner->first_failure,
                    "region %s: captured %lld of %lld shapes and %s is set: %s", runner->key_info,
                    (long long)runner->info.num_captured, (long long)runner->shapes.count,
                    mst_env_name(MST_ENV_REQUIRE_GRAPHS), runner->info.first_failure);
}
