/*
 * runner.c - a runner's life and what it tells.
 */
#include <math.h>
#include <stdio.h>

#include "graph/runner.h"
#include "step/step.h"

void mstar_node_hooks_init(mstar_node_hooks *hooks)
{
    if (hooks != NULL)
        *hooks = (mstar_node_hooks){.struct_size = sizeof *hooks};
}

void mstar_graph_runner_desc_init(mstar_graph_runner_desc *desc)
{
    if (desc != NULL)
        *desc = (mstar_graph_runner_desc){.struct_size = sizeof *desc,
                                          .num_threads = -1,
                                          .node = "node",
                                          .num_slots = -1,
                                          .num_warmups = 2,
                                          .free_bytes = -1,
                                          .max_waste = (double)NAN};
}

void mstar_runner_step_init(mstar_runner_step *step)
{
    if (step != NULL)
        *step = (mstar_runner_step){.struct_size = sizeof *step};
}

static const char *const state_names[] = {"planned", "captured", "unaffordable", "failed",
                                          "disagreed"};

const char *mstar_bucket_state_name(mstar_bucket_state state)
{
    size_t index = (size_t)state;
    return index < sizeof state_names / sizeof state_names[0] ? state_names[index] : "unknown";
}

/* ---- create ---------------------------------------------------------------------------------- */

static mstar_status check_desc(const mstar_graph_runner_desc *desc, mstar_node_hooks *hooks)
{
    MST_TRY(mst_check_not_null("desc.hooks", desc->hooks));
    mstar_node_hooks_init(hooks);
    MST_TRY(mst_desc_read("desc.hooks", desc->hooks, hooks, sizeof *hooks));
    if (hooks->forward == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.hooks.forward is NULL");
    if ((hooks->declare != NULL) != (desc->resources != NULL))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.%s is given without desc.%s",
                        hooks->declare != NULL ? "hooks.declare" : "resources",
                        hooks->declare != NULL ? "resources" : "hooks.declare");
    MST_TRY(mst_check_not_null("desc.node", desc->node));
    MST_TRY(mst_check_range("desc.num_configs", desc->num_configs, 0, 4096));
    if (desc->num_configs > 0)
        MST_TRY(mst_check_not_null("desc.configs", desc->configs));
    for (int64_t i = 0; i < desc->num_configs; i++) {
        if (desc->configs[i] == NULL)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.configs[%lld] is NULL", (long long)i);
    }
    if (desc->num_slots != -1)
        MST_TRY(mst_check_range("desc.num_slots", desc->num_slots, 1, MST_MAX_SLOTS));
    MST_TRY(mst_check_range("desc.num_warmups", desc->num_warmups, 0, 100));
    MST_TRY(mst_check_range("desc.free_bytes", desc->free_bytes, -1, INT64_MAX));
    MST_TRY(mst_check_range("desc.floor_bytes", desc->floor_bytes, 0, INT64_MAX));
    return MSTAR_OK;
}

static mstar_status make_configs(const mstar_graph_runner_desc *desc, mstar_graph_runner *runner)
{
    MST_TRY(mst_alloc_array(desc->num_configs, sizeof(mstar_graph_config *), "configs of a runner",
                            (void **)&runner->configs));
    MST_TRY(mst_alloc_array(desc->num_configs, sizeof *runner->config_states, "configs of a runner",
                            (void **)&runner->config_states));
    int64_t handle = runner->first_padding = mst_resources_free_handle(runner->resources);
    for (int64_t i = 0; i < desc->num_configs; i++) {
        const mstar_graph_config *config = desc->configs[i];
        runner->configs[i] = config;
        runner->num_configs = i + 1;
        runner->config_states[i].first_handle = handle;
        handle -= config->max_batch_size * runner->num_slots;
        runner->max_bs = mst_max_i64(runner->max_bs, config->max_batch_size);
        MST_TRY(mstar_graph_config_make_node_inputs(config, config->max_batch_size, 0,
                                                    &runner->config_states[i].padding));
    }
    runner->num_padding = runner->first_padding - handle;
    mst_resources_take_handles(runner->resources, runner->first_padding, runner->num_padding);
    return MSTAR_OK;
}

static void make_bucket(mstar_graph_runner *runner, int64_t index)
{
    const mstar_graph_bucket *row = &runner->table[index];
    runner->buckets[index] = (mst_runner_bucket){
        .config_index = row->config_index,
        .size = {row->bs, row->num_tokens},
        .compile_mode = row->config->compile ? row->config->effective_compile_mode : NULL,
    };
    for (int32_t slot = 0; slot < runner->num_slots; slot++) {
        mst_capture *capture = &runner->captures[index * runner->num_slots + slot];
        capture->lease = (mstar_lease){
            .key = {.walk = row->config->walk,
                    .additional_key_info = row->config->key_info,
                    .bs = row->bs,
                    .num_tokens = row->num_tokens},
            .slot = slot,
        };
    }
}

static mstar_status make_buckets(mstar_graph_runner *runner)
{
    int64_t count;
    MST_TRY(mstar_graph_list_captures(runner->configs, runner->num_configs, 1, NULL, 0, &count));
    MST_TRY(mst_alloc_array(count, sizeof *runner->table, "buckets", (void **)&runner->table));
    MST_TRY(mst_alloc_array(count, sizeof *runner->buckets, "buckets", (void **)&runner->buckets));
    MST_TRY(mst_alloc_array(count, 1, "buckets", (void **)&runner->captured));
    MST_TRY(mst_alloc_array(count * runner->num_slots, sizeof *runner->captures, "captures",
                            (void **)&runner->captures));
    runner->num_buckets = count;
    MST_TRY(mstar_graph_list_captures(runner->configs, runner->num_configs, 1, runner->table, count,
                                      &count));
    for (int64_t i = 0; i < count; i++)
        make_bucket(runner, i);
    return MSTAR_OK;
}

static mstar_status make_slots(mstar_graph_runner *runner)
{
    MST_TRY(mst_alloc_array(runner->num_slots, sizeof *runner->slots, "slots",
                            (void **)&runner->slots));
    for (int32_t i = 0; i < runner->num_slots; i++) {
        mst_slot *slot = &runner->slots[i];
        MST_TRY(mst_alloc_array(runner->max_bs, sizeof *slot->handles, "handles of a step",
                                (void **)&slot->handles));
        MST_TRY(mst_alloc_array(runner->max_bs, sizeof *slot->padded, "inputs of a step",
                                (void **)&slot->padded));
        if (runner->resources != NULL)
            MST_TRY(mstar_step_create(&slot->step));
    }
    return MSTAR_OK;
}

/* MSTAR_NUM_SLOTS: 2 unless it says so; 1 would have a step planned into the one that runs. */
static mstar_status wished_slots(int32_t *slots)
{
    const char *text = mst_env_get(MST_ENV_NUM_SLOTS);
    const char *name = mst_env_name(MST_ENV_NUM_SLOTS);
    *slots = 2;
    if (text == NULL)
        return MSTAR_OK;
    int64_t value = 0;
    for (const char *at = text; *at != '\0' && value <= 64; at++)
        value = *at >= '0' && *at <= '9' ? value * 10 + (*at - '0') : 65;
    if (value < 1 || value > 64)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"%.32s\"; it must be a number from 1 to 64",
                        name, text);
    if (value == 1)
        mst_log(MST_LOG_WARNING, "%s is 1; double buffering takes 2", name);
    *slots = value < 2 ? 2 : (int32_t)value;
    return MSTAR_OK;
}

static mstar_status choose_slots(const mstar_graph_runner_desc *desc, int32_t *slots)
{
    int32_t wished;
    *slots = desc->num_slots;
    if (*slots > 0)
        return MSTAR_OK;
    MST_TRY(wished_slots(&wished));
    *slots = mstar_graph_num_slots(mstar_resources_double_buffers(desc->resources, NULL),
                                   mstar_resources_can_pre_plan(desc->resources, NULL),
                                   mst_env_flag(MST_ENV_PRE_PLAN, true), wished);
    return MSTAR_OK;
}

static mstar_status fill(const mstar_graph_runner_desc *desc, mstar_graph_runner *runner)
{
    runner->user = desc->user;
    runner->resources = desc->resources;
    runner->sync = mst_env_flag(MST_ENV_STEP_SYNC, false);
    MST_TRY(choose_slots(desc, &runner->num_slots));
    runner->num_warmups = desc->num_warmups;
    runner->free_bytes = desc->free_bytes;
    runner->floor_bytes = desc->floor_bytes;
    runner->max_waste = desc->max_waste;
    runner->agree = desc->agree;
    runner->agree_user = desc->agree_user;
    MST_TRY(mst_strdup(desc->node, "a node's name", &runner->node));
    MST_TRY(mstar_stream_create(runner->device, desc->num_threads, &runner->stream));
    MST_TRY(make_configs(desc, runner));
    MST_TRY(make_buckets(runner));
    MST_TRY(make_slots(runner));
    return mst_order_open(runner);
}

mstar_status mst_runner_enter(mstar_graph_runner *runner)
{
    if (!atomic_exchange(&runner->busy, true))
        return MSTAR_OK;
    return mst_fail(MSTAR_OUT_OF_ORDER,
                    "%s: the runner is called from inside of one of its hooks, or by another "
                    "thread",
                    runner->node);
}

mstar_status mst_runner_leave(mstar_graph_runner *runner, mstar_status status)
{
    atomic_store(&runner->busy, false);
    return status;
}

mstar_status mstar_graph_runner_create(mstar_device *device, const mstar_graph_runner_desc *given,
                                       mstar_graph_runner **runner)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("desc", given));
    MST_TRY(mst_check_not_null("runner", runner));
    mstar_graph_runner_desc desc;
    mstar_graph_runner_desc_init(&desc);
    MST_TRY(mst_desc_read("desc", given, &desc, sizeof desc));
    mstar_node_hooks hooks;
    MST_TRY(check_desc(&desc, &hooks));
    mstar_graph_runner *made;
    MST_TRY(mst_alloc_zero(sizeof *made, "a graph runner", (void **)&made));
    made->device = device;
    made->latest_slot = made->open_slot = -1;
    made->hooks = hooks;
    made->lock = desc.resources != NULL ? &desc.resources->planning : &made->own_lock;
    if (!mst_init_checked_lock(&made->own_lock)) {
        mst_free(made);
        return mst_fail(MSTAR_OUT_OF_MEMORY, "a graph runner: the system gives no lock");
    }
    mstar_status status = fill(&desc, made);
    if (status != MSTAR_OK) {
        mstar_graph_runner_destroy(made);
        return status;
    }
    mst_runner_note_bytes(made);
    *runner = made;
    return MSTAR_OK;
}

mstar_stream *mstar_graph_runner_get_stream(const mstar_graph_runner *runner)
{
    return runner != NULL ? runner->stream : NULL;
}

void mst_graph_runner_take_over(mstar_graph_runner *runner, const mstar_graph_runner *like)
{
    runner->like = like;
}

void mst_capture_clear(mst_capture *capture)
{
    mstar_graph_destroy(capture->graph);
    capture->graph = NULL;
    mstar_tensors_release(&capture->inputs);
    mstar_tensors_release(&capture->scratch);
    mstar_tensors_release(&capture->outputs);
}

void mstar_graph_runner_destroy(mstar_graph_runner *runner)
{
    if (runner == NULL)
        return;
    mst_resources_drop_planner(runner->resources, runner); /* nobody takes it over */
    (void)mst_order_wait(runner);
    (void)mst_order_wait_plans(runner);
    for (int64_t i = 0; i < runner->padding_added; i++)
        mstar_resources_remove_request(runner->resources, runner->first_padding - i);
    for (int64_t i = 0; runner->captures != NULL && i < runner->num_buckets * runner->num_slots;
         i++)
        mst_capture_clear(&runner->captures[i]);
    for (int64_t i = 0; runner->captures != NULL && i < runner->num_buckets; i++)
        mst_bucket_unclaim(runner, i);
    if (runner->phase == MST_RUNNER_READY)
        mst_resources_note_captured(runner->resources, -1);
    mst_order_close(runner);
    for (int32_t i = 0; runner->slots != NULL && i < runner->num_slots; i++) {
        mstar_step_destroy(runner->slots[i].step);
        mst_free(runner->slots[i].handles);
        mst_free(runner->slots[i].padded);
    }
    for (int64_t i = 0; i < runner->num_configs; i++) {
        mstar_node_inputs_release(&runner->config_states[i].padding);
        mst_static_inputs_release(&runner->config_states[i].inputs);
    }
    mstar_tensors_release(&runner->staged);
    mstar_tensors_release(&runner->eager_inputs);
    mstar_tensors_release(&runner->eager_scratch);
    mstar_tensors_release(&runner->eager_outputs);
    mstar_buffer_destroy(runner->pool);
    mstar_buffer_destroy(runner->eager_pool);
    mstar_buffer_destroy(runner->eager_input_pool);
    mstar_stream_destroy(runner->stream);
    mst_free(runner->captures);
    mst_free(runner->captured);
    mst_free(runner->buckets);
    mst_free(runner->table);
    mst_free(runner->slots);
    mst_free(runner->configs);
    mst_free(runner->config_states);
    mst_free(runner->regions);
    mst_free(runner->region_labels);
    mst_free(runner->node);
    (void)pthread_mutex_destroy(&runner->own_lock);
    mst_free(runner);
}

/* ---- what it tells --------------------------------------------------------------------------- */

static void count_buckets(const mstar_graph_runner *runner, mstar_graph_runner_info *info)
{
    for (int64_t i = 0; i < runner->num_buckets; i++) {
        const mst_runner_bucket *bucket = &runner->buckets[i];
        info->num_captured += bucket->state == MSTAR_BUCKET_CAPTURED;
        info->num_unaffordable += bucket->state == MSTAR_BUCKET_UNAFFORDABLE;
        info->num_failed +=
            bucket->state == MSTAR_BUCKET_FAILED || bucket->state == MSTAR_BUCKET_DISAGREED;
        info->graph_bytes += bucket->graph_bytes;
        info->driver_bytes += bucket->driver_bytes;
        info->specialised += bucket->specialised.counts.specialised;
        info->tuned += bucket->specialised.counts.tuned;
        info->dropped_choices += bucket->specialised.counts.dropped;
        info->tuning_ns += bucket->specialised.tuning_ns;
    }
    for (int64_t i = 0; i < runner->num_configs; i++)
        info->static_input_bytes += runner->config_states[i].inputs.bytes;
}

mstar_status mstar_graph_runner_query(const mstar_graph_runner *runner,
                                      mstar_graph_runner_info *info)
{
    MST_TRY(mst_check_not_null("runner", runner));
    const mst_runner_stats *stats = &runner->stats;
    mstar_graph_runner_info full = {
        .num_slots = runner->num_slots,
        .num_buckets = runner->num_buckets,
        .scratch_bytes = runner->pool_bytes,
        .resource_bytes = runner->resource_bytes,
        .total_bytes = runner->own_bytes,
        .eager_bytes = atomic_load(&stats->eager_bytes),
        .capture_ns = runner->capture_ns,
        .replays = atomic_load(&stats->replays),
        .eager_steps = atomic_load(&stats->eager_steps),
        .replayed_tokens = atomic_load(&stats->replayed_tokens),
        .padding_tokens = atomic_load(&stats->padding_tokens),
        .eager_tokens = atomic_load(&stats->eager_tokens),
        .num_handles = runner->num_padding,
        .first_handle = runner->first_padding,
        .region_leases = atomic_load(&stats->region_leases),
    };
    for (int i = 0; i < MSTAR_NUM_GRAPH_MISSES; i++)
        full.misses[i] = atomic_load(&stats->misses[i]);
    count_buckets(runner, &full);
    full.host_bytes =
        full.total_bytes - full.scratch_bytes - full.static_input_bytes - full.graph_bytes;
    full.total_bytes += full.eager_bytes;
    return mst_info_write("info", &full, sizeof full, info);
}

mstar_status mstar_graph_runner_query_bucket(const mstar_graph_runner *runner, int64_t index,
                                             mstar_runner_bucket_info *info)
{
    MST_TRY(mst_check_not_null("runner", runner));
    if (index < 0 || index >= runner->num_buckets)
        return mst_fail(MSTAR_NOT_FOUND, "index is %lld; the runner has %lld buckets",
                        (long long)index, (long long)runner->num_buckets);
    const mst_runner_bucket *bucket = &runner->buckets[index];
    mstar_runner_bucket_info full = {
        .config_index = bucket->config_index,
        .state = bucket->state,
        .size = bucket->size,
        .scratch_bytes = bucket->scratch_bytes,
        .graph_bytes = bucket->graph_bytes,
        .resource_bytes = bucket->resource_bytes,
        .nodes = bucket->nodes,
        .capture_ns = bucket->capture_ns,
        .replays = atomic_load(&bucket->replays),
        .tokens = atomic_load(&bucket->tokens),
        .padding_tokens = atomic_load(&bucket->padding_tokens),
        .compile_mode = bucket->compile_mode != NULL ? bucket->compile_mode : "none",
        .specialised = bucket->specialised.counts.specialised,
        .tuned = bucket->specialised.counts.tuned,
        .dropped_choices = bucket->specialised.counts.dropped,
        .tuning_ns = bucket->specialised.tuning_ns,
    };
    (void)snprintf(full.reason, sizeof full.reason, "%s", bucket->reason);
    return mst_info_write("info", &full, sizeof full, info);
}
