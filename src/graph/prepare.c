/*
 * prepare.c - a runner before its captures: which buckets fit, and how many bytes each will take.
 *
 * Every bucket's scratch is laid out and its leases are claimed. Then, bucket after bucket, largest
 * first: its resources say what they will take, its dummy steps go through the hooks, and its
 * forward is recorded and thrown away, which tells the bytes of the record. A bucket is kept when
 * all of it leaves floor_bytes free; else what was taken for it is given back, as if it had never
 * been asked for.
 */
#include <stdio.h>
#include <string.h>

#include "graph/runner.h"

void mst_bucket_fail(mstar_graph_runner *runner, int64_t bucket, mstar_bucket_state state)
{
    mst_runner_bucket *b = &runner->buckets[bucket];
    b->state = state;
    (void)snprintf(b->reason, sizeof b->reason, "%s", mstar_last_error());
    if (state != MSTAR_BUCKET_UNAFFORDABLE) /* the sum of those is told once */
        mst_log(MST_LOG_ERROR,
                "%s: the bucket of %lld requests and %lld tokens is not captured: %s", runner->node,
                (long long)b->size.bs, (long long)b->size.num_tokens, b->reason);
}

static void fail(mstar_graph_runner *runner, int64_t bucket)
{
    mst_bucket_fail(runner, bucket,
                    runner->unaffordable ? MSTAR_BUCKET_UNAFFORDABLE : MSTAR_BUCKET_FAILED);
}

/* ---- the memory rule ------------------------------------------------------------------------- */

/* What forwards took themselves; first all but most bytes of it are given back, where they can be.
 */
static size_t forward_bytes(const mstar_graph_runner *runner, size_t most)
{
    return runner->hooks.memory == NULL ? 0 : runner->hooks.memory(runner->user, most);
}

/* All that counts against free_bytes: the runner's own, graphs as told, its resources', the
 * forwards', and the driver's share. */
static size_t held_bytes(const mstar_graph_runner *runner)
{
    size_t bytes = mst_runner_bytes(runner) + mstar_resources_memory_bytes(runner->resources) +
                   forward_bytes(runner, SIZE_MAX);
    for (int64_t i = 0; i < runner->num_buckets; i++)
        bytes += runner->buckets[i].driver_bytes;
    return bytes;
}

/* Without a bound of the caller's a GPU's free memory is one. */
static mstar_status choose_bound(mstar_graph_runner *runner)
{
    mstar_device_info info = {.struct_size = sizeof info};
    if (runner->free_bytes >= 0)
        return MSTAR_OK;
    MST_TRY(mstar_device_query(runner->device, &info));
    if (info.memory_bytes > 0)
        runner->free_bytes = info.free_bytes;
    return MSTAR_OK;
}

mstar_status mst_afford(int64_t free_bytes, int64_t floor_bytes, size_t held, size_t more,
                        bool *unaffordable)
{
    uint8_t keep;
    int64_t need = more > INT64_MAX ? INT64_MAX : (int64_t)more;
    if (free_bytes < 0)
        return MSTAR_OK;
    int64_t left = free_bytes - (int64_t)held;
    (void)mstar_graph_fit_budget(left, floor_bytes, &need, 1, &keep);
    if (keep)
        return MSTAR_OK;
    *unaffordable = true;
    return mst_fail(MSTAR_OUT_OF_MEMORY,
                    "needs %lld bytes more; %lld are free, of which %lld are to stay so",
                    (long long)need, (long long)left, (long long)floor_bytes);
}

mstar_status mst_runner_afford(mstar_graph_runner *runner, size_t more)
{
    return mst_afford(runner->free_bytes, runner->floor_bytes,
                      held_bytes(runner) - runner->held_before, more, &runner->unaffordable);
}

/* ---- one bucket ------------------------------------------------------------------------------ */

/* The pool is as large as the largest bucket that is kept: smaller ones use its start. What lies in
 * it is of no use yet. */
static mstar_status resize_pool(mstar_graph_runner *runner, size_t bytes)
{
    if (runner->pool != NULL && bytes == runner->pool_bytes)
        return MSTAR_OK;
    mstar_buffer_destroy(runner->pool);
    runner->pool = NULL;
    runner->pool_bytes = 0;
    MST_TRY(mstar_buffer_create(runner->device, bytes, &runner->pool));
    runner->pool_bytes = bytes;
    return MSTAR_OK;
}

/* Growth of the pool and of the resources, asked before any of it is taken. */
static mstar_status ask(mstar_graph_runner *runner, int64_t index, const mst_dummy_step *step)
{
    const mst_runner_bucket *bucket = &runner->buckets[index];
    size_t more = 0;
    if (runner->hooks.declare != NULL) {
        mstar_step *declared = runner->slots[step->context.slot].step;
        MST_TRY(
            mst_declare(runner, declared, &step->context, step->inputs.items, step->inputs.count));
        MST_TRY(mstar_resources_claim_bytes(runner->resources, &step->context, declared, &more));
    }
    if (bucket->scratch_bytes > runner->pool_bytes)
        MST_TRY(mst_size_add(more, bucket->scratch_bytes - runner->pool_bytes, &more));
    return mst_runner_afford(runner, more);
}

/* A recording that is thrown away: what it says of itself. */
static mstar_status count_graph(mstar_graph_runner *runner, mst_capture *capture,
                                mstar_frame *frame, mstar_graph_info *info)
{
    *info = (mstar_graph_info){.struct_size = sizeof *info};
    MST_TRY(mst_record(runner, capture, frame));
    mstar_status status = mstar_graph_query(capture->graph, info);
    mstar_graph_destroy(capture->graph);
    capture->graph = NULL;
    return status;
}

static mstar_status take_step(mstar_graph_runner *runner, int64_t index, mst_dummy_step *step)
{
    mst_runner_bucket *bucket = &runner->buckets[index];
    mst_capture *capture = &runner->captures[index * runner->num_slots + step->context.slot];
    mstar_frame frame;
    mstar_graph_info graph;
    MST_TRY(ask(runner, index, step));
    if (bucket->scratch_bytes > runner->pool_bytes)
        MST_TRY(resize_pool(runner, bucket->scratch_bytes));
    MST_TRY(mst_ready_capture(runner, index, step, runner->num_warmups > 0 ? 1 : 0, &frame));
    MST_TRY(count_graph(runner, capture, &frame, &graph));
    MST_TRY(mst_runner_afford(runner, graph.bytes + graph.driver_bytes));
    bucket->graph_bytes += graph.bytes;
    bucket->driver_bytes += graph.driver_bytes;
    return MSTAR_OK;
}

static mstar_status take_slot(mstar_graph_runner *runner, int64_t index, int32_t slot)
{
    mst_dummy_step step;
    MST_TRY(mst_dummy_step_make(runner, index, slot, &step));
    mstar_status status = take_step(runner, index, &step);
    mst_reset_padding(runner, &step.context, 1);
    mst_dummy_step_release(&step);
    return status;
}

void mst_bucket_unclaim(mstar_graph_runner *runner, int64_t bucket)
{
    mst_runner_bucket *b = &runner->buckets[bucket];
    for (int32_t slot = 0; b->claimed && slot < runner->num_slots; slot++)
        mstar_resources_unclaim(runner->resources,
                                &runner->captures[bucket * runner->num_slots + slot].lease);
    b->claimed = false;
    b->resource_bytes = 0;
}

/* What a bucket found; what is younger is its own. */
typedef struct before {
    size_t pool_bytes;
    int64_t num_inputs;
    size_t resource_bytes, forward_bytes;
} before;

static void give_back(mstar_graph_runner *runner, int64_t index, const before *had)
{
    mst_runner_bucket *bucket = &runner->buckets[index];
    for (int32_t slot = 0; slot < runner->num_slots; slot++)
        mst_capture_clear(&runner->captures[index * runner->num_slots + slot]);
    bucket->graph_bytes = bucket->driver_bytes = 0;
    mst_static_inputs_trim(&runner->config_states[bucket->config_index].inputs, had->num_inputs);
    mst_bucket_unclaim(runner, index);
    (void)forward_bytes(runner, had->forward_bytes);
    (void)resize_pool(runner, had->pool_bytes); /* else the next bucket or the end makes it anew */
}

static mstar_status take_bucket(mstar_graph_runner *runner, int64_t index)
{
    mst_runner_bucket *bucket = &runner->buckets[index];
    const before had = {
        .pool_bytes = runner->pool_bytes,
        .num_inputs = runner->config_states[bucket->config_index].inputs.count,
        .resource_bytes = mstar_resources_memory_bytes(runner->resources),
        .forward_bytes = forward_bytes(runner, SIZE_MAX),
    };
    mstar_status status = MSTAR_OK;
    runner->unaffordable = false;
    for (int32_t slot = 0; slot < runner->num_slots && status == MSTAR_OK; slot++)
        status = take_slot(runner, index, slot);
    mst_tensors_clear(&runner->staged);
    if (status != MSTAR_OK) {
        fail(runner, index);
        give_back(runner, index, &had);
        return runner->unaffordable ? MSTAR_OK : status;
    }
    bucket->resource_bytes = mstar_resources_memory_bytes(runner->resources) - had.resource_bytes;
    return MSTAR_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void note_failure(mstar_graph_runner *runner, mstar_status status)
{
    if (runner->first_failure == MSTAR_OK)
        runner->first_failure = status;
}

/* Scratch of every bucket; those whose scratch alone is too much are not claimed either. */
static void lay_out_all(mstar_graph_runner *runner)
{
    mstar_tensors scratch = {NULL, 0, 0};
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        mst_runner_bucket *bucket = &runner->buckets[i];
        runner->unaffordable = false;
        mstar_status status =
            mst_scratch_lay_out(runner, bucket->size, &scratch, &bucket->scratch_bytes);
        if (status == MSTAR_OK)
            status = mst_runner_afford(runner, bucket->scratch_bytes);
        if (status == MSTAR_OK)
            continue;
        fail(runner, i);
        note_failure(runner, runner->unaffordable ? MSTAR_OK : status);
    }
    mstar_tensors_release(&scratch);
}

/* Padding rows are known to the resources for the runner's life. */
static mstar_status add_padding(mstar_graph_runner *runner)
{
    for (; runner->padding_added < runner->num_padding && runner->resources != NULL;
         runner->padding_added++)
        MST_TRY(mstar_resources_add_request(runner->resources,
                                            runner->first_padding - runner->padding_added));
    return MSTAR_OK;
}

/* All leases at once, before anything is planned: a resource sees what it is to serve. */
static mstar_status claim_all(mstar_graph_runner *runner)
{
    mstar_lease *leases;
    int64_t count = 0;
    if (runner->resources == NULL)
        return MSTAR_OK;
    MST_TRY(mst_alloc_array(runner->num_buckets * runner->num_slots, sizeof *leases, "leases",
                            (void **)&leases));
    for (int64_t i = 0; i < runner->num_buckets; i++)
        for (int32_t slot = 0; slot < runner->num_slots && mst_bucket_is_kept(&runner->buckets[i]);
             slot++)
            leases[count++] = runner->captures[i * runner->num_slots + slot].lease;
    mstar_status status =
        mst_claim_leases(runner->resources, runner->node, leases, count, runner->node);
    mst_free(leases);
    for (int64_t i = 0; i < runner->num_buckets && status == MSTAR_OK; i++)
        runner->buckets[i].claimed = mst_bucket_is_kept(&runner->buckets[i]);
    return status;
}

static mstar_status finish_pool(mstar_graph_runner *runner)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        const mst_runner_bucket *bucket = &runner->buckets[i];
        if (mst_bucket_is_kept(bucket) && bucket->scratch_bytes > bytes)
            bytes = bucket->scratch_bytes;
    }
    return resize_pool(runner, bytes);
}

static mstar_status prepare(mstar_graph_runner *runner)
{
    if (runner->phase != MST_RUNNER_NEW)
        return mst_fail(MSTAR_OUT_OF_ORDER, "the runner of %s has been prepared already",
                        runner->node);
    MST_TRY(mst_order_wait_all(runner));
    MST_TRY(add_padding(runner));
    if (!runner->laid_out) {
        MST_TRY(choose_bound(runner));
        runner->held_before = held_bytes(runner);
        lay_out_all(runner);
        runner->laid_out = true;
    }
    if (!runner->taken) { /* else only the pool is missing; a claim that failed is made again */
        MST_TRY(claim_all(runner));
        for (int64_t i = 0; i < runner->num_buckets; i++) {
            if (mst_bucket_is_kept(&runner->buckets[i]))
                note_failure(runner, take_bucket(runner, i));
        }
        runner->taken = true;
    }
    MST_TRY(finish_pool(runner));
    mst_runner_note_bytes(runner);
    runner->phase = MST_RUNNER_PREPARED;
    return MSTAR_OK;
}

mstar_status mstar_graph_runner_prepare(mstar_graph_runner *runner)
{
    MST_TRY(mst_check_not_null("runner", runner));
    MST_TRY(mst_runner_enter(runner));
    return mst_runner_leave(runner, prepare(runner));
}
