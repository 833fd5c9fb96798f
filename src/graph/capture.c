/*
 * capture.c - a runner before its first step: dummy steps, and one capture after another. A capture
 * that fails drops its bucket and leaves the rest as it was.
 */
#include <stdio.h>

#include "graph/runner.h"
#include "step/step.h"

/* ---- dummy steps ----------------------------------------------------------------------------- */

int64_t mst_first_handle(const mstar_graph_runner *runner, int32_t config_index, int32_t slot)
{
    return runner->config_states[config_index].first_handle -
           slot * runner->configs[config_index]->max_batch_size;
}

mstar_status mst_dummy_step_make(mstar_graph_runner *runner, int64_t bucket, int32_t slot,
                                 mst_dummy_step *step)
{
    const mst_runner_bucket *b = &runner->buckets[bucket];
    const mst_capture *capture = &runner->captures[bucket * runner->num_slots + slot];
    *step = (mst_dummy_step){.handles = NULL};
    mstar_status status;
    MST_TRY_GOTO(mstar_graph_config_make_node_inputs(runner->configs[b->config_index], b->size.bs,
                                                     b->size.num_tokens, &step->inputs),
                 failed);
    MST_TRY_GOTO(mst_alloc_array(b->size.bs, sizeof *step->handles, "handles of a dummy step",
                                 (void **)&step->handles),
                 failed);
    MST_TRY_GOTO(mstar_graph_pad_handles(NULL, 0, b->size.bs,
                                         mst_first_handle(runner, b->config_index, slot),
                                         step->handles),
                 failed);
    step->context = (mstar_step_context){
        .struct_size = sizeof step->context,
        .capturing = 1,
        .walk = capture->lease.key.walk,
        .requests = step->handles,
        .num_requests = b->size.bs,
        .padded_requests = step->handles,
        .num_padded_requests = b->size.bs,
        .lease = &capture->lease,
        .slot = slot,
        .stream = runner->stream,
        .resources = runner->resources,
    };
    return MSTAR_OK;
failed:
    mst_dummy_step_release(step);
    return status;
}

void mst_dummy_step_release(mst_dummy_step *step)
{
    mstar_node_inputs_release(&step->inputs);
    mst_free(step->handles);
    step->handles = NULL;
}

/* ---- capture --------------------------------------------------------------------------------- */

mstar_status mst_ready_capture(mstar_graph_runner *runner, int64_t index,
                               const mst_dummy_step *step, int32_t num_warmups, mstar_frame *frame)
{
    const mst_runner_bucket *bucket = &runner->buckets[index];
    const mstar_graph_config *config = runner->configs[bucket->config_index];
    mst_static_inputs *inputs = &runner->config_states[bucket->config_index].inputs;
    int32_t slot = step->context.slot;
    mst_capture *capture = &runner->captures[index * runner->num_slots + slot];
    size_t bytes;
    MST_TRY(mst_scratch_lay_out(runner, bucket->size, &capture->scratch, &bytes));
    if (bytes > bucket->scratch_bytes)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "lay_out asks for %zu bytes now; when the runner was prepared it asked for "
                        "%zu",
                        bytes, bucket->scratch_bytes);
    mst_scratch_place(&capture->scratch, runner->device, mstar_buffer_get_data(runner->pool));
    capture->num_tokens = bucket->size.num_tokens;
    capture->num_requests = bucket->size.bs;
    *frame = (mstar_frame){
        .struct_size = sizeof *frame,
        .context = &step->context,
        .stream = runner->stream,
        .size = bucket->size,
        .num_tokens = &capture->num_tokens,
        .num_requests = &capture->num_requests,
        .inputs = &capture->inputs,
        .scratch = &capture->scratch,
    };
    /* once more after each warm-up, so that the capture sees what the first one saw */
    for (int32_t i = 0; i <= num_warmups; i++) {
        MST_TRY(mst_prepare_step(runner, runner->slots[slot].step, &step->context,
                                 step->inputs.items, step->inputs.count));
        if (runner->phase == MST_RUNNER_NEW)
            MST_TRY(mst_runner_afford(
                runner, mst_static_inputs_growth(inputs, runner->device, &runner->staged)));
        MST_TRY(mst_static_inputs_intern(inputs, runner->device, config, bucket->size.num_tokens,
                                         &runner->staged, &capture->inputs));
        MST_TRY(mst_static_inputs_stage(inputs, &runner->staged, runner->stream));
        if (i < num_warmups)
            MST_TRY(mst_run_forward(runner, frame, &capture->outputs));
        MST_TRY(mstar_stream_synchronize(runner->stream));
        if (i < num_warmups)
            mst_reset_padding(runner, &step->context, 0);
    }
    return MSTAR_OK;
}

mstar_status mst_record(mstar_graph_runner *runner, mst_capture *capture, mstar_frame *frame)
{
    frame->capturing = 1;
    MST_TRY(mstar_graph_capture_begin(runner->stream));
    mstar_status status = mst_run_forward(runner, frame, &capture->outputs);
    if (status != MSTAR_OK) {
        mstar_graph_capture_abort(runner->stream);
        return status;
    }
    return mstar_graph_capture_end(runner->stream, &capture->graph);
}

static mstar_status capture_step(mstar_graph_runner *runner, int64_t index,
                                 const mst_dummy_step *step)
{
    mstar_frame frame;
    MST_TRY(mst_ready_capture(runner, index, step, runner->num_warmups, &frame));
    return mst_record(runner, &runner->captures[index * runner->num_slots + step->context.slot],
                      &frame);
}

/* All slots of a bucket are alike: the first is tuned, the others take over what it has. */
static mstar_status specialise(mstar_graph_runner *runner, int64_t index, int32_t slot)
{
    mst_runner_bucket *bucket = &runner->buckets[index];
    const mst_capture *first = &runner->captures[index * runner->num_slots];
    const mstar_graph *like = slot > 0 ? first->graph : NULL;
    if (like == NULL && runner->like != NULL)
        like = runner->like->captures[index * runner->like->num_slots].graph;
    mst_specialised made;
    MST_TRY(mst_specialise(first[slot].graph, runner->stream, bucket->compile_mode, like,
                           &runner->tuning, &made));
    int64_t dropped = bucket->specialised.counts.dropped;
    bucket->specialised.counts = made.counts;
    bucket->specialised.counts.dropped += dropped;
    bucket->specialised.tuning_ns += made.tuning_ns;
    return MSTAR_OK;
}

static mstar_status capture_slot(mstar_graph_runner *runner, int64_t index, int32_t slot)
{
    mst_runner_bucket *bucket = &runner->buckets[index];
    mst_dummy_step step;
    MST_TRY(mst_dummy_step_make(runner, index, slot, &step));
    mstar_status status = capture_step(runner, index, &step);
    mst_reset_padding(runner, &step.context, 1);
    mst_dummy_step_release(&step);
    MST_TRY(status);
    mstar_graph_info info = {.struct_size = sizeof info};
    MST_TRY(specialise(runner, index, slot));
    MST_TRY(mstar_graph_query(runner->captures[index * runner->num_slots + slot].graph, &info));
    bucket->graph_bytes += info.bytes;
    bucket->driver_bytes += info.driver_bytes;
    bucket->nodes = info.nodes;
    return MSTAR_OK;
}

/* A bucket of which some slots were captured is none: two steps would share a plan's buffers. */
static void drop(mstar_graph_runner *runner, int64_t index, mstar_bucket_state state)
{
    mst_bucket_fail(runner, index, state);
    for (int32_t slot = 0; slot < runner->num_slots; slot++) {
        mst_capture *capture = &runner->captures[index * runner->num_slots + slot];
        mstar_graph_destroy(capture->graph);
        capture->graph = NULL;
        mst_tensors_clear(&capture->outputs);
    }
    mst_bucket_unclaim(runner, index);
    runner->buckets[index].graph_bytes = runner->buckets[index].driver_bytes = 0;
    runner->buckets[index].specialised.counts = (mst_compiled){0, 0, 0};
    runner->captured[index] = 0;
}

static mstar_status capture_bucket(mstar_graph_runner *runner, int64_t index)
{
    mstar_status status = MSTAR_OK;
    int64_t start = mst_runner_now();
    runner->buckets[index].graph_bytes = 0; /* counted so far */
    runner->buckets[index].driver_bytes = 0;
    for (int32_t slot = 0; slot < runner->num_slots && status == MSTAR_OK; slot++)
        status = capture_slot(runner, index, slot);
    if (status == MSTAR_OK) {
        runner->buckets[index].state = MSTAR_BUCKET_CAPTURED;
        runner->captured[index] = 1;
    } else {
        drop(runner, index, MSTAR_BUCKET_FAILED);
    }
    runner->buckets[index].capture_ns =
        mst_runner_now() - start - runner->buckets[index].specialised.tuning_ns;
    runner->capture_ns += runner->buckets[index].capture_ns;
    return status;
}

/* Every rank serves a bucket, or none. */
static mstar_status agree(mstar_graph_runner *runner)
{
    if (runner->agree == NULL || runner->num_buckets == 0)
        return MSTAR_OK;
    mstar_status status = runner->agree(runner->agree_user, runner->captured, runner->num_buckets);
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        bool ours = runner->buckets[i].state == MSTAR_BUCKET_CAPTURED;
        if (ours && (status != MSTAR_OK || !runner->captured[i])) {
            (void)mst_fail(MSTAR_DEVICE_FAILED, "another rank does not have it");
            drop(runner, i, MSTAR_BUCKET_DISAGREED);
        }
        runner->captured[i] = runner->buckets[i].state == MSTAR_BUCKET_CAPTURED;
    }
    return status == MSTAR_OK ? MSTAR_OK : mst_fail(status, "%s: agree failed", runner->node);
}

/* Tells what is missing; an error where the environment wants everything. */
static mstar_status report(const mstar_graph_runner *runner, mstar_status first_failure)
{
    int64_t captured = 0, missing = -1;
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        bool there = runner->buckets[i].state == MSTAR_BUCKET_CAPTURED;
        captured += there;
        if (!there && missing < 0)
            missing = i;
    }
    if (missing < 0)
        return MSTAR_OK;
    const mst_runner_bucket *bucket = &runner->buckets[missing];
    mst_log(MST_LOG_ERROR, "%s: captured %lld of %lld buckets; the others run eager", runner->node,
            (long long)captured, (long long)runner->num_buckets);
    if (!mst_env_flag(MST_ENV_REQUIRE_GRAPHS, false))
        return MSTAR_OK;
    return mst_fail(
        first_failure != MSTAR_OK ? first_failure : MSTAR_OUT_OF_MEMORY,
        "%s: captured %lld of %lld buckets and %s is set; the first that is missing, of "
        "%lld requests and %lld tokens: %s",
        runner->node, (long long)captured, (long long)runner->num_buckets,
        mst_env_name(MST_ENV_REQUIRE_GRAPHS), (long long)bucket->size.bs,
        (long long)bucket->size.num_tokens, bucket->reason);
}

static mstar_status capture_all(mstar_graph_runner *runner)
{
    if (runner->phase != MST_RUNNER_PREPARED)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        runner->phase == MST_RUNNER_NEW
                            ? "the runner of %s captures before it was prepared"
                            : "the runner of %s has captured already",
                        runner->node);
    MST_TRY(mst_check_regions_prepared(runner));
    MST_TRY(mst_order_wait_all(runner));
    runner->phase = MST_RUNNER_CAPTURING;
    mst_resources_note_captured(runner->resources, 1);
    mstar_status first = runner->first_failure;
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        if (!mst_bucket_is_kept(&runner->buckets[i]))
            continue;
        mstar_status status = capture_bucket(runner, i);
        first = first != MSTAR_OK ? first : status;
    }
    mst_tensors_clear(&runner->staged);
    mstar_status agreed = agree(runner);
    runner->phase = MST_RUNNER_READY;
    mst_runner_note_bytes(runner);
    MST_TRY(agreed);
    if (runner->resources != NULL)
        MST_TRY(mstar_resources_validate(runner->resources));
    return report(runner, first);
}

mstar_status mstar_graph_runner_capture(mstar_graph_runner *runner)
{
    MST_TRY(mst_check_not_null("runner", runner));
    MST_TRY(mst_runner_enter(runner));
    return mst_runner_leave(runner, capture_all(runner));
}
