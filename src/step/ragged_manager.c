/*
 * ragged_manager.c - plans of the labels of a step, and the runs against them.
 *
 * There are two sets of plans: the present one, and the one planned ahead for the other slot. Each
 * keeps the segments that it was made from, so that a plan can tell whether what waits is its own.
 * One lock covers whatever a second thread may touch while it plans ahead; a forward takes it for
 * the look-up of a label only.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "step/step.h"

/* The plans of one step. */
typedef struct plans {
    mst_grouping grouping;
    mst_ragged_wrapper **wrappers; /* of grouping.layouts, in their order */
    int64_t wrappers_capacity;
    bool valid;
    bool leased;
    mstar_bucket_key key; /* texts are those of the wrappers, or NULL without any */
    int32_t slot;
    int causal;
} plans;

struct mstar_ragged_manager {
    mstar_device *device;
    pthread_mutex_t lock;
    mst_ragged_store store;
    plans *present, *ahead; /* ahead->valid: one is pending */
    plans both[2];
    const char *label; /* that NULL stands for; NULL itself: nothing is planned */
    int64_t layer;
    int64_t num_plans, num_pre_plans, num_promoted, num_stale;
};

mstar_status mstar_ragged_manager_create(mstar_device *device,
                                         const mstar_ragged_manager_desc *desc,
                                         mstar_ragged_manager **manager)
{
    mst_ragged_config config;
    mst_ragged_store store;
    void *memory;
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("manager", manager));
    MST_TRY(mst_ragged_config_read(desc, &config));
    MST_TRY(mst_ragged_store_open(device, &config, &store)); /* holds nothing yet */
    MST_TRY(mst_alloc_zero(sizeof(mstar_ragged_manager), "ragged manager", &memory));
    mstar_ragged_manager *made = memory;
    made->device = device;
    made->store = store;
    made->present = &made->both[0];
    made->ahead = &made->both[1];
    if (pthread_mutex_init(&made->lock, NULL) != 0) {
        mst_free(made);
        return mst_fail(MSTAR_OUT_OF_MEMORY, "ragged manager: the lock could not be made");
    }
    mst_device_retain(device);
    *manager = made;
    return MSTAR_OK;
}

void mstar_ragged_manager_destroy(mstar_ragged_manager *manager)
{
    if (manager == NULL)
        return;
    mstar_device *device = manager->device;
    for (int i = 0; i < 2; i++) {
        mst_grouping_release(&manager->both[i].grouping);
        mst_free(manager->both[i].wrappers);
    }
    mst_ragged_store_close(&manager->store);
    (void)pthread_mutex_destroy(&manager->lock);
    mst_free(manager);
    mst_device_release(device);
}

/* ---- planning ---------------------------------------------------------------------------------
 */

static mstar_status find_wrappers(mstar_ragged_manager *manager, const mstar_step_context *context,
                                  plans *made)
{
    const mstar_bucket_key *bucket = context->lease != NULL ? &context->lease->key : NULL;
    int64_t count = made->grouping.num_layouts;
    void *memory = made->wrappers;
    MST_TRY(mst_grow(&memory, &made->wrappers_capacity, count, sizeof *made->wrappers,
                     "wrappers of a step"));
    made->wrappers = memory;
    made->leased = bucket != NULL;
    made->key = (mstar_bucket_key){NULL, NULL, 0, 0};
    for (int64_t i = 0; i < count; i++) {
        MST_TRY(mst_ragged_store_find(&manager->store, bucket, context->slot,
                                      made->grouping.layouts[i].label, &made->wrappers[i]));
        made->key = made->wrappers[i]->key;
    }
    return MSTAR_OK;
}

/* What fails leaves nothing planned: a wrapper may hold the new layout already. */
static mstar_status make_plans(mstar_ragged_manager *manager, const mstar_step_context *context,
                               const mstar_resource_step *step, plans *made)
{
    mstar_ragged_kind kind = manager->store.config.kind;
    made->valid = false;
    MST_TRY(mst_group_segments(kind, step, &made->grouping));
    MST_TRY(find_wrappers(manager, context, made));
    for (int64_t i = 0; i < made->grouping.num_layouts; i++) {
        const mst_label_layout *layout = &made->grouping.layouts[i];
        mstar_status status =
            mst_ragged_wrapper_plan(kind, made->wrappers[i], context->stream, layout, step->causal);
        if (status != MSTAR_OK)
            return mst_fail_in(status, "label \"%.64s\"", layout->label);
    }
    made->slot = context->slot;
    made->causal = step->causal;
    made->valid = true;
    return MSTAR_OK;
}

/* A pending pre-plan on this slot: 1 taken over, 0 it is another step's and gone. Without one, or
 * on another slot, nothing. */
static mstar_status try_promote(mstar_ragged_manager *manager, const mstar_step_context *context,
                                const mstar_resource_step *step, bool *promoted)
{
    plans *ahead = manager->ahead;
    *promoted = false;
    if (!ahead->valid || ahead->slot != context->slot)
        return MSTAR_OK;
    /* the present plan is over: its memory holds the segments to compare with */
    plans *present = manager->present;
    present->valid = false;
    MST_TRY(mst_group_segments(manager->store.config.kind, step, &present->grouping));
    bool same = context->lease != NULL && ahead->causal == step->causal &&
                (ahead->grouping.num_layouts == 0 ||
                 mstar_bucket_key_equal(&ahead->key, &context->lease->key)) &&
                mst_grouping_equal(&ahead->grouping, &present->grouping);
    if (!same) {
        ahead->valid = false;
        manager->num_stale++;
        return MSTAR_OK;
    }
    manager->present = ahead;
    manager->ahead = present;
    manager->num_promoted++;
    *promoted = true;
    return MSTAR_OK;
}

static void begin_step(mstar_ragged_manager *manager)
{
    const mst_grouping *grouping = &manager->present->grouping;
    manager->layer = 0;
    manager->label = NULL;
    if (!manager->present->valid)
        return;
    bool pairs = manager->store.config.kind != MSTAR_RAGGED_SELF;
    manager->label = MSTAR_DEFAULT_LABEL;
    if (pairs && grouping->num_layouts > 0)
        manager->label = grouping->layouts[0].label;
}

static mstar_status plan_now(mstar_ragged_manager *manager, const mstar_step_context *context,
                             const mstar_resource_step *step)
{
    bool promoted;
    manager->num_plans++;
    MST_TRY(try_promote(manager, context, step, &promoted));
    return promoted ? MSTAR_OK : make_plans(manager, context, step, manager->present);
}

static mstar_status plan_ahead(mstar_ragged_manager *manager, const mstar_step_context *context,
                               const mstar_resource_step *step)
{
    if (context->lease == NULL)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "pre-plan without a lease: eager wrappers share their workspace with the "
                        "step that runs");
    if (manager->ahead->valid)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "a pre-plan is pending on slot %d; it must be taken over or dropped before "
                        "another on slot %d",
                        manager->ahead->slot, context->slot);
    const plans *present = manager->present;
    if (present->valid && present->leased && present->slot == context->slot &&
        mstar_bucket_key_equal(&present->key, &context->lease->key))
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "pre-plan of the bucket and slot %d that the present step has; take "
                        "another slot",
                        context->slot);
    MST_TRY(make_plans(manager, context, step, manager->ahead));
    manager->num_pre_plans++;
    return MSTAR_OK;
}

/* ---- the resource -----------------------------------------------------------------------------
 */

/* Wrappers are made by plans and never move, so that claims may come after captures. */
static mstar_status claim_hook(void *self, const mstar_claim *claim)
{
    mstar_ragged_manager *manager = self;
    mst_ragged_store *store = &manager->store;
    for (int64_t i = 0; i < claim->num_leases; i++) {
        int64_t segments, tokens;
        MST_TRY(mst_ragged_ceilings(&store->config, &claim->leases[i].key, &segments, &tokens));
    }
    (void)pthread_mutex_lock(&manager->lock);
    mstar_status status =
        mst_claims_add(&store->claims, &store->texts, claim->leases, claim->num_leases);
    (void)pthread_mutex_unlock(&manager->lock);
    return status;
}

static mstar_status growth(const mstar_ragged_manager *manager, const mstar_step_context *context,
                           const mstar_resource_step *step, size_t *bytes)
{
    const plans *present = manager->present;
    mst_grouping probe = {.groups = NULL};
    mstar_status status = mst_group_segments(manager->store.config.kind, step, &probe);
    if (status == MSTAR_OK)
        status = mst_ragged_store_growth(&manager->store, &context->lease->key, context->slot,
                                         probe.layouts, probe.num_layouts, bytes);
    if (status == MSTAR_OK) {
        int64_t grown = mst_grown(present->wrappers_capacity, probe.num_layouts);
        *bytes += (size_t)(grown - present->wrappers_capacity) * sizeof *present->wrappers;
        *bytes += mst_grouping_growth(&present->grouping, &probe);
    }
    mst_grouping_release(&probe);
    return status;
}

static mstar_status claim_bytes_hook(void *self, const mstar_step_context *context,
                                     const mstar_resource_step *step, size_t *bytes)
{
    mstar_ragged_manager *manager = self;
    (void)pthread_mutex_lock(&manager->lock);
    mstar_status status = growth(manager, context, step, bytes);
    (void)pthread_mutex_unlock(&manager->lock);
    return status;
}

static void forget(mstar_ragged_manager *manager, const mstar_lease *lease)
{
    for (int i = 0; i < 2; i++) {
        plans *made = &manager->both[i];
        if (made->leased && made->slot == lease->slot &&
            mstar_bucket_key_equal(&made->key, &lease->key))
            made->valid = false;
    }
    mst_ragged_store_forget(&manager->store, lease);
}

static void unclaim_hook(void *self, const mstar_lease *lease)
{
    mstar_ragged_manager *manager = self;
    (void)pthread_mutex_lock(&manager->lock);
    if (mst_claims_drop(&manager->store.claims, lease))
        forget(manager, lease);
    (void)pthread_mutex_unlock(&manager->lock);
}

static mstar_status plan_hook(void *self, const mstar_step_context *context,
                              const mstar_resource_step *step, const mstar_plan_results *results,
                              const void **result)
{
    mstar_ragged_manager *manager = self;
    mstar_status status;
    (void)results;
    (void)pthread_mutex_lock(&manager->lock);
    if (context->pre_plan) {
        status = plan_ahead(manager, context, step);
    } else {
        status = plan_now(manager, context, step);
        begin_step(manager);
    }
    (void)pthread_mutex_unlock(&manager->lock);
    *result = manager;
    return status;
}

static void drop_hook(void *self, int32_t slot)
{
    mstar_ragged_manager *manager = self;
    (void)pthread_mutex_lock(&manager->lock);
    if (manager->ahead->valid && manager->ahead->slot == slot) {
        manager->ahead->valid = false;
        manager->num_stale++;
    }
    (void)pthread_mutex_unlock(&manager->lock);
}

static size_t count_bytes(const mstar_ragged_manager *manager)
{
    size_t bytes = sizeof *manager + mst_ragged_store_bytes(&manager->store);
    for (int i = 0; i < 2; i++)
        bytes += mst_grouping_bytes(&manager->both[i].grouping) +
                 (size_t)manager->both[i].wrappers_capacity * sizeof *manager->both[i].wrappers;
    return bytes;
}

static size_t bytes_hook(const void *self)
{
    const mstar_ragged_manager *manager = self;
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&manager->lock;
    (void)pthread_mutex_lock(lock);
    size_t bytes = count_bytes(manager);
    (void)pthread_mutex_unlock(lock);
    return bytes;
}

mstar_status mstar_ragged_manager_get_resource(mstar_ragged_manager *manager, const char *key,
                                               mstar_resource *resource)
{
    static const mstar_resource_hooks hooks = {.struct_size = sizeof hooks,
                                               .pre_plans = 1,
                                               .double_buffers = 1,
                                               .claim = claim_hook,
                                               .plan = plan_hook,
                                               .drop_pre_plan = drop_hook,
                                               .claim_bytes = claim_bytes_hook,
                                               .unclaim = unclaim_hook,
                                               .memory_bytes = bytes_hook};
    MST_TRY(mst_check_not_null("manager", manager));
    MST_TRY(mst_check_not_null("key", key));
    MST_TRY(mst_check_not_null("resource", resource));
    *resource = (mstar_resource){.key = key, .hooks = &hooks, .self = manager};
    return MSTAR_OK;
}

/* ---- the present plans ------------------------------------------------------------------------
 */

static mstar_status fail_unplanned(const mstar_ragged_manager *manager, const char *label)
{
    char planned[192] = "";
    size_t used = 0;
    const plans *present = manager->present;
    for (int64_t i = 0; present->valid && i < present->grouping.num_layouts; i++) {
        if (used < sizeof planned)
            used += (size_t)snprintf(planned + used, sizeof planned - used, "%s\"%.64s\"",
                                     i > 0 ? ", " : "", present->grouping.layouts[i].label);
    }
    return mst_fail(MSTAR_NOT_FOUND, "label \"%.64s\" is not planned; planned %s %s", label,
                    present->valid && present->grouping.num_layouts == 1 ? "is" : "are",
                    planned[0] != '\0' ? planned : "none");
}

/* With the lock held. *kept: the label in the manager's own memory. */
static mstar_status find_planned(const mstar_ragged_manager *manager, const char *label,
                                 mst_ragged_wrapper **wrapper, const char **kept)
{
    const plans *present = manager->present;
    if (label == NULL)
        label = manager->label != NULL ? manager->label : MSTAR_DEFAULT_LABEL;
    for (int64_t i = 0; present->valid && i < present->grouping.num_layouts; i++) {
        if (strcmp(present->grouping.layouts[i].label, label) == 0) {
            *wrapper = present->wrappers[i];
            *kept = present->grouping.layouts[i].label;
            return MSTAR_OK;
        }
    }
    return fail_unplanned(manager, label);
}

static mstar_status find_locked(mstar_ragged_manager *manager, const char *label,
                                mst_ragged_wrapper **wrapper)
{
    const char *kept;
    MST_TRY(mst_check_not_null("manager", manager));
    (void)pthread_mutex_lock(&manager->lock);
    mstar_status status = find_planned(manager, label, wrapper, &kept);
    (void)pthread_mutex_unlock(&manager->lock);
    return status;
}

mstar_status mstar_ragged_manager_run(mstar_ragged_manager *manager, mstar_stream *stream,
                                      const char *label, const mstar_tensor *q,
                                      const mstar_tensor *k, const mstar_tensor *v,
                                      const mstar_tensor *out, const mstar_tensor *lse)
{
    mst_ragged_wrapper *wrapper;
    MST_TRY(find_locked(manager, label, &wrapper));
    MST_TRY(mst_ragged_wrapper_run(manager->store.config.kind, wrapper, stream, q, k, v, out, lse));
    manager->layer++;
    return MSTAR_OK;
}

mstar_status mstar_ragged_manager_set_label(mstar_ragged_manager *manager, const char *label)
{
    mst_ragged_wrapper *wrapper;
    const char *kept = NULL;
    MST_TRY(mst_check_not_null("manager", manager));
    MST_TRY(mst_check_not_null("label", label));
    (void)pthread_mutex_lock(&manager->lock);
    mstar_status status = find_planned(manager, label, &wrapper, &kept);
    if (status == MSTAR_OK)
        manager->label = kept;
    (void)pthread_mutex_unlock(&manager->lock);
    return status;
}

mstar_status mstar_ragged_manager_get_counter(mstar_ragged_manager *manager, const char *label,
                                              mstar_ragged_counter which, const int64_t **count)
{
    mst_ragged_wrapper *wrapper;
    MST_TRY(mst_check_not_null("count", (const void *)count));
    MST_TRY(mst_check_range("which", (int64_t)which, MSTAR_COUNT_TOKENS, MSTAR_COUNT_SEGMENTS));
    MST_TRY(find_locked(manager, label, &wrapper));
    const int64_t *const counts[] = {wrapper->info.token_counter, wrapper->info.kv_token_counter,
                                     wrapper->info.segment_counter};
    *count = counts[which];
    return MSTAR_OK;
}

mstar_status mstar_ragged_manager_query_wrapper(mstar_ragged_manager *manager, const char *label,
                                                mstar_ragged_prefill_info *info)
{
    mst_ragged_wrapper *wrapper;
    MST_TRY(find_locked(manager, label, &wrapper));
    return mst_ragged_wrapper_query(manager->store.config.kind, wrapper, info);
}

mstar_status mstar_ragged_manager_query(mstar_ragged_manager *manager,
                                        mstar_ragged_manager_info *info)
{
    mstar_ragged_manager_info full;
    MST_TRY(mst_check_not_null("manager", manager));
    MST_TRY(mst_check_not_null("info", info));
    memset(&full, 0, sizeof full);
    (void)pthread_mutex_lock(&manager->lock);
    const mst_ragged_store *store = &manager->store;
    const mstar_ragged_prefill_desc *wrapper = &store->config.wrapper;
    full.kind = store->config.kind;
    full.num_qo_heads = wrapper->num_qo_heads;
    full.num_kv_heads = wrapper->num_kv_heads;
    full.head_dim = wrapper->head_dim;
    full.dtype = wrapper->q_data_type;
    full.sm_scale = store->sm_scale;
    for (int64_t i = 0; i < store->num_wrappers; i++)
        full.graph_wrappers += store->wrappers[i]->graph;
    full.eager_wrappers = store->num_wrappers - full.graph_wrappers;
    full.workspaces = store->num_workspaces;
    full.plans = manager->num_plans;
    full.pre_plans = manager->num_pre_plans;
    full.promoted = manager->num_promoted;
    full.stale = manager->num_stale;
    full.planned_labels = manager->present->valid ? manager->present->grouping.num_layouts : 0;
    full.layer = manager->layer;
    full.pending = manager->ahead->valid ? 1 : 0;
    full.workspace_bytes = store->workspace_bytes;
    full.memory_bytes = count_bytes(manager);
    (void)pthread_mutex_unlock(&manager->lock);
    return mst_info_write("info", &full, sizeof full, info);
}
