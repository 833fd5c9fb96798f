/*
 * capture.c - a runner before its first step: which buckets fit, then one capture after another.
 *
 * prepare lays out every bucket's scratch, keeps those that fit by the memory rule, takes the pool,
 * and makes the static inputs by sending each config's largest dummy step through the hooks. What
 * fails here or at a capture drops one bucket and leaves the rest as it was.
 */
#include <stdio.h>
#include <string.h>

#include "graph/runner.h"

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

void mst_bucket_fail(mstar_graph_runner *runner, int64_t bucket, mstar_bucket_state state)
{
    mst_runner_bucket *b = &runner->buckets[bucket];
    b->state = state;
    (void)snprintf(b->reason, sizeof b->reason, "%s", mstar_last_error());
}

/* ---- prepare --------------------------------------------------------------------------------- */

static bool is_kept(const mst_runner_bucket *bucket)
{
    return bucket->state == MSTAR_BUCKET_PLANNED;
}

/* Takes need bytes of the budget, or marks the bucket. */
static bool afford(mstar_graph_runner *runner, int64_t bucket, size_t need, int64_t *left)
{
    uint8_t keep;
    int64_t bytes = need > INT64_MAX ? INT64_MAX : (int64_t)need;
    if (runner->free_bytes < 0)
        return true;
    int64_t before = *left;
    *left = mstar_graph_fit_budget(before, runner->floor_bytes, &bytes, 1, &keep);
    if (!keep) {
        (void)mst_fail(MSTAR_OUT_OF_MEMORY,
                       "needs %lld bytes more; %lld are free, of which %lld are to stay so",
                       (long long)bytes, (long long)before, (long long)runner->floor_bytes);
        mst_bucket_fail(runner, bucket, MSTAR_BUCKET_UNAFFORDABLE);
    }
    return keep != 0;
}

/* The pool is as large as the largest bucket that is kept: smaller ones use its start. */
static mstar_status lay_out_all(mstar_graph_runner *runner, int64_t *left)
{
    mstar_tensors scratch = {NULL, 0, 0};
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        mst_runner_bucket *bucket = &runner->buckets[i];
        mstar_status status =
            mst_scratch_lay_out(runner, bucket->size, &scratch, &bucket->scratch_bytes);
        if (status != MSTAR_OK) {
            mst_bucket_fail(runner, i, MSTAR_BUCKET_FAILED);
            continue;
        }
        size_t have = runner->pool_bytes;
        size_t more = bucket->scratch_bytes > have ? bucket->scratch_bytes - have : 0;
        if (afford(runner, i, more, left))
            runner->pool_bytes = have + more;
    }
    mstar_tensors_release(&scratch);
    return mstar_buffer_create(runner->device, runner->pool_bytes, &runner->pool);
}

/* Sends a dummy step as far as preprocess and makes the buffers that it asks for. */
static mstar_status intern_inputs(mstar_graph_runner *runner, int64_t index, int64_t *left)
{
    const mst_runner_bucket *bucket = &runner->buckets[index];
    mst_static_inputs *inputs = &runner->config_states[bucket->config_index].inputs;
    mst_dummy_step step;
    MST_TRY(mst_dummy_step_make(runner, index, 0, &step));
    mstar_tensors views = {NULL, 0, 0};
    mstar_status status = mst_prepare_step(runner, runner->slots[0].step, &step.context,
                                           step.inputs.items, step.inputs.count);
    if (status == MSTAR_OK &&
        afford(runner, index, mst_static_inputs_growth(inputs, &runner->staged), left))
        status =
            mst_static_inputs_intern(inputs, runner->device, runner->configs[bucket->config_index],
                                     bucket->size.num_tokens, &runner->staged, &views);
    mstar_tensors_release(&views);
    mst_reset_padding(runner, &step.context, 1);
    mst_dummy_step_release(&step);
    return status;
}

/* The first bucket of each config that can be made decides its buffers. */
static void intern_all(mstar_graph_runner *runner, int64_t *left)
{
    for (int64_t c = 0; c < runner->num_configs; c++) {
        bool made = false;
        for (int64_t i = 0; i < runner->num_buckets && !made; i++) {
            mst_runner_bucket *bucket = &runner->buckets[i];
            if (bucket->config_index != c || !is_kept(bucket))
                continue;
            if (intern_inputs(runner, i, left) != MSTAR_OK)
                mst_bucket_fail(runner, i, MSTAR_BUCKET_FAILED);
            made = is_kept(bucket);
        }
    }
}

/* Padding rows are known to the resources for the runner's life. */
static mstar_status add_padding(mstar_graph_runner *runner)
{
    for (; runner->padding_added < runner->num_padding; runner->padding_added++)
        MST_TRY(mstar_resources_add_request(runner->resources, -2 - runner->padding_added));
    return MSTAR_OK;
}

static mstar_status claim(mstar_graph_runner *runner)
{
    mstar_lease *leases;
    int64_t count = 0;
    MST_TRY(mst_alloc_array(runner->num_buckets * runner->num_slots, sizeof *leases, "leases",
                            (void **)&leases));
    for (int64_t i = 0; i < runner->num_buckets; i++)
        for (int32_t slot = 0; slot < runner->num_slots && is_kept(&runner->buckets[i]); slot++)
            leases[count++] = runner->captures[i * runner->num_slots + slot].lease;
    mstar_status status =
        mst_claim_leases(runner->resources, runner->node, leases, count, runner->node);
    mst_free(leases);
    return status;
}

mstar_status mstar_graph_runner_prepare(mstar_graph_runner *runner)
{
    MST_TRY(mst_check_not_null("runner", runner));
    if (runner->phase != MST_RUNNER_NEW)
        return mst_fail(MSTAR_OUT_OF_ORDER, "the runner of %s has been prepared already",
                        runner->node);
    int64_t left = runner->free_bytes;
    if (runner->pool == NULL) /* else a claim that failed is tried again */
        MST_TRY(lay_out_all(runner, &left));
    if (runner->resources != NULL) {
        MST_TRY(add_padding(runner));
        MST_TRY(claim(runner));
    }
    intern_all(runner, &left);
    runner->phase = MST_RUNNER_PREPARED;
    return MSTAR_OK;
}

/* ---- capture --------------------------------------------------------------------------------- */

static mstar_status record(mstar_graph_runner *runner, mst_capture *capture, mstar_frame *frame)
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

static mstar_status capture_step(mstar_graph_runner *runner, int64_t index, int32_t slot,
                                 const mst_dummy_step *step)
{
    const mst_runner_bucket *bucket = &runner->buckets[index];
    const mstar_graph_config *config = runner->configs[bucket->config_index];
    mst_static_inputs *inputs = &runner->config_states[bucket->config_index].inputs;
    mst_capture *capture = &runner->captures[index * runner->num_slots + slot];
    size_t bytes;
    MST_TRY(mst_scratch_lay_out(runner, bucket->size, &capture->scratch, &bytes));
    if (bytes > runner->pool_bytes)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "lay_out asks for %zu bytes now; when the runner was prepared it asked for "
                        "%zu",
                        bytes, bucket->scratch_bytes);
    mst_scratch_place(&capture->scratch, mstar_buffer_get_data(runner->pool));
    capture->num_tokens = bucket->size.num_tokens;
    capture->num_requests = bucket->size.bs;
    mstar_frame frame = {
        .struct_size = sizeof frame,
        .context = &step->context,
        .stream = runner->stream,
        .size = bucket->size,
        .num_tokens = &capture->num_tokens,
        .num_requests = &capture->num_requests,
        .inputs = &capture->inputs,
        .scratch = &capture->scratch,
    };
    /* once more after each warm-up, so that the capture sees what the first one saw */
    for (int32_t i = 0; i <= runner->num_warmups; i++) {
        MST_TRY(mst_prepare_step(runner, runner->slots[slot].step, &step->context,
                                 step->inputs.items, step->inputs.count));
        MST_TRY(mst_static_inputs_intern(inputs, runner->device, config, bucket->size.num_tokens,
                                         &runner->staged, &capture->inputs));
        MST_TRY(mst_static_inputs_stage(inputs, &runner->staged, runner->stream));
        if (i < runner->num_warmups)
            MST_TRY(mst_run_forward(runner, &frame, &capture->outputs));
        MST_TRY(mstar_stream_synchronize(runner->stream));
        if (i < runner->num_warmups)
            mst_reset_padding(runner, &step->context, 0);
    }
    return record(runner, capture, &frame);
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
    mstar_status status = capture_step(runner, index, slot, &step);
    mst_reset_padding(runner, &step.context, 1);
    mst_dummy_step_release(&step);
    MST_TRY(status);
    mstar_graph_info info = {.struct_size = sizeof info};
    MST_TRY(specialise(runner, index, slot));
    MST_TRY(mstar_graph_query(runner->captures[index * runner->num_slots + slot].graph, &info));
    bucket->graph_bytes += info.bytes;
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
    runner->buckets[index].graph_bytes = 0;
    runner->buckets[index].specialised.counts = (mst_compiled){0, 0, 0};
    runner->captured[index] = 0;
    mst_log(MST_LOG_ERROR, "%s: the bucket of %lld requests and %lld tokens is not captured: %s",
            runner->node, (long long)runner->buckets[index].size.bs,
            (long long)runner->buckets[index].size.num_tokens, runner->buckets[index].reason);
}

static mstar_status capture_bucket(mstar_graph_runner *runner, int64_t index)
{
    mstar_status status = MSTAR_OK;
    int64_t start = mst_runner_now();
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
    const char *required = mst_env_get(MST_ENV_REQUIRE_GRAPHS);
    if (required == NULL || strcmp(required, "1") != 0)
        return MSTAR_OK;
    return mst_fail(first_failure != MSTAR_OK ? first_failure : MSTAR_OUT_OF_MEMORY,
                    "%s: captured %lld of %lld buckets and %s is 1; the first that is missing, of "
                    "%lld requests and %lld tokens: %s",
                    runner->node, (long long)captured, (long long)runner->num_buckets,
                    mst_env_name(MST_ENV_REQUIRE_GRAPHS), (long long)bucket->size.bs,
                    (long long)bucket->size.num_tokens, bucket->reason);
}

mstar_status mstar_graph_runner_capture(mstar_graph_runner *runner)
{
    MST_TRY(mst_check_not_null("runner", runner));
    if (runner->phase != MST_RUNNER_PREPARED)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        runner->phase == MST_RUNNER_NEW
                            ? "the runner of %s captures before it was prepared"
                            : "the runner of %s has captured already",
                        runner->node);
    MST_TRY(mst_check_regions_prepared(runner));
    runner->phase = MST_RUNNER_READY;
    mstar_status first = MSTAR_OK;
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        if (!is_kept(&runner->buckets[i]))
            continue;
        mstar_status status = capture_bucket(runner, i);
        first = first != MSTAR_OK ? first : status;
    }
    MST_TRY(agree(runner));
    if (runner->resources != NULL)
        MST_TRY(mstar_resources_validate(runner->resources));
    return report(runner, first);
}
