/*
 * serve_step.c - one step: choose a bucket, pad, stage, replay; or run eager and say why.
 */
#include <string.h>

#include "graph/runner.h"
#include "step/step.h"

static mstar_status check_step(const mstar_graph_runner *runner, const mstar_runner_step *step)
{
    if (step->stream != NULL && step->stream->device != runner->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "step.stream was made on another device than %s",
                        runner->node);
    MST_TRY(mst_check_not_null("step.walk", step->walk));
    MST_TRY(mst_check_range("step.eager", step->eager, 0, 1));
    MST_TRY(mst_check_range("step.count", step->count, 0, MSTAR_MAX_BATCH_SIZE));
    if (step->count > 0) {
        MST_TRY(mst_check_not_null("step.requests", step->requests));
    }
    for (int64_t i = 0; i < step->count; i++) {
        if (step->requests[i] < 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "step.requests[%lld] is %lld; handles of requests are 0 or more",
                            (long long)i, (long long)step->requests[i]);
    }
    return mst_check_distinct("step.requests", step->requests, step->count);
}

static void count(_Atomic int64_t *counter, int64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static mstar_status choose(const mstar_graph_runner *runner, const mstar_runner_step *step,
                           int64_t tokens, mstar_graph_choice *choice)
{
    *choice = (mstar_graph_choice){
        .struct_size = sizeof *choice, .miss = MSTAR_GRAPH_MISS_DISABLED, .index = -1};
    if (step->eager)
        return MSTAR_OK;
    mstar_graph_request request = {.struct_size = sizeof request,
                                   .with_padding = 1,
                                   .walk = step->walk,
                                   .additional_key_info = step->additional_key_info,
                                   .bs = step->count,
                                   .num_tokens = tokens,
                                   .max_waste = runner->max_waste};
    return mstar_graph_choose(runner->table, runner->captured, runner->num_buckets, &request,
                              choice);
}

/* A thread that has it already is in a hook. */
static mstar_status lock(mstar_graph_runner *runner)
{
    return pthread_mutex_lock(runner->lock) == 0
               ? MSTAR_OK
               : mst_fail(MSTAR_OUT_OF_ORDER,
                          "%s: the runner is called from inside of one of its hooks, or of those "
                          "of a runner over the same resources",
                          runner->node);
}

/* After a step was made ready, or not. */
static mstar_status unlock(mstar_graph_runner *runner, mstar_stream *stream, mstar_status status)
{
    if (status != MSTAR_OK)
        status = mst_order_end(runner, stream, status);
    (void)pthread_mutex_unlock(runner->lock);
    return status;
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* A step's lease: its bucket, padded in a slot. */
typedef struct leased_step {
    mst_runner_bucket *bucket;
    const mst_runner_config *config;
    mst_capture *capture;
    mst_slot *slot;
    int64_t tokens;      /* padding rows' included */
    int64_t real_tokens; /* of the step's own requests; 0 where inputs are not built */
    mstar_step_context context;
} leased_step;

/* inputs NULL: not built; a batched config's template stands for them. */
static mstar_status pad(mstar_graph_runner *runner, const mstar_runner_step *step, int64_t index,
                        int32_t slot, leased_step *leased)
{
    mst_runner_bucket *bucket = &runner->buckets[index];
    const mst_runner_config *state = &runner->config_states[bucket->config_index];
    int64_t bs = bucket->size.bs;
    leased->bucket = bucket;
    leased->config = state;
    leased->capture = &runner->captures[index * runner->num_slots + slot];
    leased->slot = &runner->slots[slot];
    MST_TRY(mstar_graph_pad_handles(step->requests, step->count, bs,
                                    mst_first_handle(runner, bucket->config_index, slot),
                                    leased->slot->handles));
    for (int64_t i = 0; i < bs; i++)
        leased->slot->padded[i] =
            i < step->count && step->inputs != NULL ? step->inputs[i] : state->padding.items[i];
    const int64_t multiplier = runner->configs[bucket->config_index]->multiplier;
    MST_TRY(mst_count_tokens(leased->slot->padded, bs, multiplier, &leased->tokens));
    MST_TRY(mst_count_tokens(step->inputs, step->inputs == NULL ? 0 : step->count, multiplier,
                             &leased->real_tokens));
    leased->context = (mstar_step_context){
        .struct_size = sizeof leased->context,
        .slot = slot,
        .walk = step->walk,
        .requests = step->requests,
        .num_requests = step->count,
        .padded_requests = leased->slot->handles,
        .num_padded_requests = bs,
        .lease = &leased->capture->lease,
        .stream = step->stream,
        .resources = runner->resources,
    };
    return MSTAR_OK;
}

static void count_replay(mstar_graph_runner *runner, const leased_step *leased)
{
    int64_t padding = leased->bucket->size.num_tokens - leased->tokens;
    count(&leased->bucket->replays, 1);
    count(&leased->bucket->tokens, leased->tokens);
    count(&leased->bucket->padding_tokens, padding);
    count(&runner->stats.replays, 1);
    count(&runner->stats.replayed_tokens, leased->tokens);
    count(&runner->stats.padding_tokens, padding);
}

/* Everything before the launch; the lock is the caller's. */
static mstar_status make_ready(mstar_graph_runner *runner, const mstar_runner_step *step,
                               int64_t index, leased_step *leased)
{
    int32_t slot = runner->next_slot;
    runner->next_slot = (slot + 1) % runner->num_slots;
    MST_TRY(pad(runner, step, index, slot, leased));
    MST_TRY(mst_order_begin(runner, slot, step->stream));
    return mst_prepare_step(runner, leased->slot->step, &leased->context, leased->slot->padded,
                            leased->bucket->size.bs);
}

static mstar_status launch(mstar_graph_runner *runner, const mstar_runner_step *step,
                           leased_step *leased)
{
    MST_TRY(mst_static_inputs_stage(&leased->config->inputs, &runner->staged, step->stream));
    leased->capture->num_tokens = leased->tokens;
    leased->capture->num_requests = step->count;
    mstar_status status = mstar_graph_replay(leased->capture->graph, step->stream);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "%s: replay", runner->node);
    return mst_commit_step(runner, leased->slot->step, &leased->context);
}

static mstar_status replay(mstar_graph_runner *runner, const mstar_runner_step *step, int64_t index,
                           mstar_runner_result *result)
{
    leased_step leased = {.tokens = 0};
    MST_TRY(lock(runner));
    mstar_status status = unlock(runner, step->stream, make_ready(runner, step, index, &leased));
    if (status == MSTAR_OK)
        status = launch(runner, step, &leased);
    status = mst_order_end(runner, step->stream, status);
    mst_reset_padding(runner, &leased.context, 1);
    MST_TRY(status);
    count_replay(runner, &leased);
    *result = (mstar_runner_result){
        .slot = leased.context.slot,
        .miss = MSTAR_GRAPH_MISS_NONE,
        .size = leased.bucket->size,
        .num_tokens = leased.real_tokens,
        .num_requests = step->count,
        .outputs = &leased.capture->outputs,
    };
    return MSTAR_OK;
}

/* ---- eager ----------------------------------------------------------------------------------- */

mstar_status mst_eager_reserve(mstar_graph_runner *runner, size_t bytes, mstar_buffer **buffer)
{
    size_t have = mstar_buffer_get_bytes(*buffer);
    if (bytes <= have)
        return MSTAR_OK;
    mstar_buffer *grown;
    MST_TRY(mstar_buffer_create(runner->device, bytes, &grown));
    mstar_status status = mst_order_wait(runner); /* the latest step may still read it */
    if (status != MSTAR_OK) {
        mstar_buffer_destroy(grown);
        return status;
    }
    mstar_buffer_destroy(*buffer);
    *buffer = grown;
    atomic_fetch_add(&runner->stats.eager_bytes, bytes - have);
    return MSTAR_OK;
}

/* The scratch of eager steps grows to what the largest of them needs. */
static mstar_status reserve(mstar_graph_runner *runner, mstar_frame_size size)
{
    size_t bytes;
    MST_TRY(mst_scratch_lay_out(runner, size, &runner->eager_scratch, &bytes));
    MST_TRY(mst_eager_reserve(runner, bytes, &runner->eager_pool));
    mst_scratch_place(&runner->eager_scratch, runner->device,
                      mstar_buffer_get_data(runner->eager_pool));
    return MSTAR_OK;
}

static mstar_status ready_eager(mstar_graph_runner *runner, const mstar_runner_step *step,
                                mstar_step_context *context)
{
    int32_t slot = runner->next_slot;
    runner->next_slot = (slot + 1) % runner->num_slots;
    *context = (mstar_step_context){
        .struct_size = sizeof *context,
        .slot = slot,
        .walk = step->walk,
        .requests = step->requests,
        .num_requests = step->count,
        .padded_requests = step->requests,
        .num_padded_requests = step->count,
        .stream = step->stream,
        .resources = runner->resources,
    };
    if (!step->eager)
        MST_TRY(mst_lease_regions(runner, step, context));
    MST_TRY(mst_order_begin(runner, slot, step->stream));
    return mst_prepare_step(runner, runner->slots[slot].step, context, step->inputs, step->count);
}

static mstar_status eager_step(mstar_graph_runner *runner, const mstar_runner_step *step,
                               int64_t tokens, mstar_graph_miss miss, mstar_runner_result *result)
{
    mstar_frame_size size = {step->count, tokens};
    mstar_step_context context;
    MST_TRY(reserve(runner, size));
    MST_TRY(lock(runner));
    MST_TRY(unlock(runner, step->stream, ready_eager(runner, step, &context)));
    const mstar_tensors *inputs;
    MST_TRY(mst_eager_inputs(runner, step, &inputs));
    runner->eager_tokens = tokens;
    runner->eager_requests = step->count;
    const mstar_frame frame = {
        .struct_size = sizeof frame,
        .context = &context,
        .stream = step->stream,
        .size = size,
        .num_tokens = &runner->eager_tokens,
        .num_requests = &runner->eager_requests,
        .inputs = inputs,
        .scratch = &runner->eager_scratch,
    };
    MST_TRY(mst_run_forward(runner, &frame, &runner->eager_outputs));
    MST_TRY(mst_commit_step(runner, runner->slots[context.slot].step, &context));
    *result = (mstar_runner_result){
        .slot = context.slot,
        .miss = miss,
        .size = size,
        .num_tokens = tokens,
        .num_requests = step->count,
        .outputs = &runner->eager_outputs,
    };
    count(&runner->stats.eager_steps, 1);
    count(&runner->stats.eager_tokens, tokens);
    return MSTAR_OK;
}

static mstar_status run_eager(mstar_graph_runner *runner, const mstar_runner_step *step,
                              int64_t tokens, mstar_graph_miss miss, mstar_runner_result *result)
{
    mstar_status status = eager_step(runner, step, tokens, miss, result);
    status = mst_order_end(runner, step->stream, status);
    mst_return_leases(runner);
    return status;
}

/* ---- a step ---------------------------------------------------------------------------------- */

bool mst_config_serves_step(const mstar_graph_config *config, const mstar_runner_step *step)
{
    return mst_config_serves(config, step->walk) &&
           mst_same_text(config->key_info, step->additional_key_info);
}

/* Plan tokens of an eager step: those of the first config that lists its walk, else its input's. */
static int64_t eager_multiplier(const mstar_graph_runner *runner, const mstar_runner_step *step)
{
    for (int64_t i = 0; i < runner->num_configs; i++) {
        if (mst_config_serves_step(runner->configs[i], step))
            return runner->configs[i]->multiplier;
    }
    return 1;
}

static mstar_status serve(mstar_graph_runner *runner, mstar_runner_step *step,
                          mstar_runner_result *made)
{
    int64_t tokens;
    if (step->stream == NULL)
        step->stream = runner->stream;
    MST_TRY(mst_count_tokens(step->inputs, step->count, 1, &tokens));
    mstar_graph_choice choice;
    MST_TRY(choose(runner, step, tokens, &choice));
    *made = (mstar_runner_result){.miss = choice.miss};
    if (choice.index >= 0) {
        MST_TRY(replay(runner, step, choice.index, made));
    } else if (step->count > 0) {
        MST_TRY(
            mst_count_tokens(step->inputs, step->count, eager_multiplier(runner, step), &tokens));
        MST_TRY(run_eager(runner, step, tokens, choice.miss, made));
    } else {
        made->miss = MSTAR_GRAPH_MISS_EMPTY;
    }
    count(&runner->stats.misses[made->miss], 1);
    return runner->sync ? mstar_stream_synchronize(step->stream) : MSTAR_OK;
}

mstar_status mstar_graph_runner_step(mstar_graph_runner *runner, const mstar_runner_step *given,
                                     mstar_runner_result *result)
{
    MST_TRY(mst_check_not_null("runner", runner));
    MST_TRY(mst_check_not_null("step", given));
    MST_TRY(mst_check_not_null("result", result));
    mstar_runner_step step;
    mstar_runner_result made;
    mstar_runner_step_init(&step);
    MST_TRY(mst_desc_read("step", given, &step, sizeof step));
    MST_TRY(check_step(runner, &step));
    if (step.count > 0)
        MST_TRY(mst_check_not_null("step.inputs", step.inputs));
    MST_TRY(mst_runner_enter(runner));
    MST_TRY(mst_runner_leave(runner, serve(runner, &step, &made)));
    return mst_info_write("result", &made, sizeof made, result);
}

/* ---- the next step, planned ahead ------------------------------------------------------------ */

/* The lock is the caller's. */
static mstar_status plan_ahead(mstar_graph_runner *runner, const mstar_runner_step *step,
                               int64_t index)
{
    leased_step leased;
    int32_t at = runner->next_slot;
    mst_slot *slot = &runner->slots[at];
    MST_TRY(pad(runner, step, index, at, &leased));
    MST_TRY(mst_declare(runner, slot->step, &leased.context, slot->padded, leased.bucket->size.bs));
    MST_TRY(mst_order_plan_begin(runner, at, step->stream));
    mstar_resources_drop_pre_plan(runner->resources, at);
    runner->resources->slots[at].planner = runner;
    mstar_status status = mstar_resources_pre_plan(runner->resources, &leased.context, slot->step);
    return mst_order_plan_end(runner, at, step->stream, status);
}

mstar_status mstar_graph_runner_pre_plan(mstar_graph_runner *runner, const mstar_runner_step *given,
                                         mstar_graph_miss *miss)
{
    MST_TRY(mst_check_not_null("runner", runner));
    MST_TRY(mst_check_not_null("step", given));
    MST_TRY(mst_check_not_null("miss", miss));
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    MST_TRY(mst_desc_read("step", given, &step, sizeof step));
    MST_TRY(check_step(runner, &step));
    if (runner->num_slots < 2 || runner->hooks.declare == NULL)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "%s: a step can be planned ahead by a node with resources and two slots; "
                        "this one has %s and %d",
                        runner->node, runner->hooks.declare != NULL ? "resources" : "none",
                        runner->num_slots);
    if (runner->phase != MST_RUNNER_READY)
        return mst_fail(MSTAR_OUT_OF_ORDER, "the runner of %s plans ahead before it has captured",
                        runner->node);
    if (step.stream == NULL)
        step.stream = runner->plan_stream;
    int64_t tokens = -1;
    if (step.inputs != NULL)
        MST_TRY(mst_count_tokens(step.inputs, step.count, 1, &tokens));
    mstar_graph_choice choice;
    MST_TRY(choose(runner, &step, tokens, &choice));
    *miss = choice.miss;
    if (choice.index < 0)
        return MSTAR_OK;
    MST_TRY(lock(runner));
    mstar_status status = plan_ahead(runner, &step, choice.index);
    (void)pthread_mutex_unlock(runner->lock);
    return status == MSTAR_OK ? MSTAR_OK : mst_fail_in(status, "%s: pre_plan", runner->node);
}
