/*
 * resources.c - a set of resources: create, claim, the life of requests.
 *
 * The set's phases are in phases.c; they share the struct through step.h.
 */
#include <stdio.h>
#include <string.h>

#include "step/step.h"

/* Hooks that the caller's struct does not reach are NULL. */
static mstar_status read_list(const mstar_resource *list, int64_t count, mstar_resource *full,
                              mstar_resource_hooks *hooks)
{
    for (int64_t i = 0; i < count; i++) {
        full[i] = list[i];
        if (list[i].hooks == NULL)
            continue;
        MST_TRY(mst_desc_read("hooks", list[i].hooks, &hooks[i], sizeof hooks[i]));
        full[i].hooks = &hooks[i];
    }
    return MSTAR_OK;
}

static mstar_status take_list(mstar_resources *set, const mstar_resource *list, int64_t count,
                              mst_arena *arena)
{
    mstar_resource *full = mst_arena_take(arena, count, sizeof *full);
    mstar_resource_hooks *hooks = mst_arena_take(arena, count, sizeof *hooks);
    int64_t *order = mst_arena_take(arena, count, sizeof *order);
    if (arena->base == NULL)
        return MSTAR_OK;
    MST_TRY(read_list(list, count, full, hooks));
    MST_TRY(mst_resource_order(full, count, order));
    for (int64_t i = 0; i < count; i++) {
        mst_resource *made = &set->list[i];
        made->self = full[order[i]].self;
        made->hooks = *full[order[i]].hooks;
        MST_TRY(mst_texts_keep(&set->texts, full[order[i]].key, &made->key));
    }
    set->count = count;
    return MSTAR_OK;
}

static mstar_status fill(mstar_resources *set, const mstar_resource *list, int64_t count)
{
    void *memory;
    mst_arena arena;
    MST_TRY(mst_alloc_array(count, sizeof *set->list, "resources", &memory));
    set->list = memory;
    for (int i = 0; i < 2; i++) {
        mstar_plan_results *results = i == 0 ? &set->present : &set->ahead;
        MST_TRY(mst_alloc_array(count, sizeof *results->values, "plan results", &memory));
        results->values = memory;
        results->set = set;
    }
    mst_arena_count(&arena);
    MST_TRY(take_list(set, list, count, &arena));
    MST_TRY(mst_alloc_zero(arena.used, "list of resources", &memory));
    mst_arena_over(&arena, memory, arena.used);
    mstar_status status = take_list(set, list, count, &arena);
    mst_free(memory);
    return status;
}

bool mst_init_checked_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t kind;
    if (pthread_mutexattr_init(&kind) != 0)
        return false;
    bool made = pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK) == 0 &&
                pthread_mutex_init(lock, &kind) == 0;
    (void)pthread_mutexattr_destroy(&kind);
    return made;
}

static bool init_locks(mstar_resources *set)
{
    if (!mst_init_checked_lock(&set->planning))
        return false;
    if (pthread_mutex_init(&set->order, NULL) == 0)
        return true;
    (void)pthread_mutex_destroy(&set->planning);
    return false;
}

mstar_status mstar_resources_create(const mstar_resource *list, int64_t count,
                                    mstar_resources **resources)
{
    void *memory;
    MST_TRY(mst_check_not_null("resources", resources));
    MST_TRY(mst_check_range("count", count, 0, MST_MAX_RESOURCES));
    if (count > 0)
        MST_TRY(mst_check_not_null("list", list));
    MST_TRY(mst_alloc_zero(sizeof(mstar_resources), "resources", &memory));
    mstar_resources *made = memory;
    if (!init_locks(made)) {
        mst_free(made);
        return mst_fail(MSTAR_OUT_OF_MEMORY, "resources: the system gives no lock");
    }
    mstar_status status = fill(made, list, count);
    if (status != MSTAR_OK) {
        mstar_resources_destroy(made); /* holds no resource yet: none is released */
        return status;
    }
    *resources = made;
    return MSTAR_OK;
}

void mstar_resources_destroy(mstar_resources *resources)
{
    if (resources == NULL)
        return;
    for (int64_t i = resources->count - 1; i >= 0; i--) {
        if (resources->list[i].hooks.release != NULL)
            resources->list[i].hooks.release(resources->list[i].self);
    }
    mst_texts_release(&resources->texts);
    mst_free(resources->list);
    mst_free(resources->present.values);
    mst_free(resources->ahead.values);
    mst_free(resources->real);
    (void)pthread_mutex_destroy(&resources->planning);
    (void)pthread_mutex_destroy(&resources->order);
    mst_free(resources);
}

int64_t mst_resources_find(const mstar_resources *set, const char *key)
{
    for (int64_t i = 0; i < set->count; i++) {
        if (strcmp(set->list[i].key, key) == 0)
            return i;
    }
    return -1;
}

mstar_status mst_fail_for(mstar_status status, const mst_resource *resource)
{
    return mst_fail_in(status, "resource \"%.64s\"", resource->key);
}

int64_t mstar_resources_get_count(const mstar_resources *resources)
{
    return resources != NULL ? resources->count : 0;
}

const char *mstar_resources_get_key(const mstar_resources *resources, int64_t index)
{
    bool there = resources != NULL && index >= 0 && index < resources->count;
    return there ? resources->list[index].key : NULL;
}

void *mstar_resources_get_self(const mstar_resources *resources, const char *key)
{
    int64_t index = resources != NULL && key != NULL ? mst_resources_find(resources, key) : -1;
    return index >= 0 ? resources->list[index].self : NULL;
}

/* ---- all of them ------------------------------------------------------------------------------
 */

/* Those of the first count resources that are given claims. */
static void unclaim_from(mstar_resources *set, int64_t count, const mstar_lease *lease)
{
    for (int64_t i = count - 1; i >= 0; i--) {
        const mst_resource *resource = &set->list[i];
        if (resource->hooks.claim != NULL && resource->hooks.unclaim != NULL)
            resource->hooks.unclaim(resource->self, lease);
    }
}

static void give_back(mstar_resources *set, int64_t count, const mstar_claim *claim)
{
    for (int64_t i = 0; i < claim->num_leases; i++)
        unclaim_from(set, count, &claim->leases[i]);
}

mstar_status mstar_resources_claim(mstar_resources *resources, const mstar_claim *claim)
{
    mstar_claim full;
    memset(&full, 0, sizeof full);
    full.struct_size = (uint32_t)sizeof full;
    MST_TRY(mst_check_not_null("resources", resources));
    MST_TRY(mst_check_not_null("claim", claim));
    MST_TRY(mst_desc_read("claim", claim, &full, sizeof full));
    full.struct_size = (uint32_t)sizeof full;
    full.captured = resources->num_captured > 0;
    MST_TRY(mst_check_range("claim.num_leases", full.num_leases, 0, INT64_MAX));
    if (full.num_leases > 0)
        MST_TRY(mst_check_not_null("claim.leases", full.leases));
    for (int64_t i = 0; i < resources->count; i++) {
        const mst_resource *resource = &resources->list[i];
        if (resource->hooks.claim == NULL)
            continue;
        mstar_status status = resource->hooks.claim(resource->self, &full);
        if (status == MSTAR_OK)
            continue;
        (void)mst_fail_for(status, resource);
        give_back(resources, i, &full);
        return status;
    }
    return MSTAR_OK;
}

void mstar_resources_unclaim(mstar_resources *resources, const mstar_lease *lease)
{
    if (resources != NULL && lease != NULL)
        unclaim_from(resources, resources->count, lease);
}

void mst_resources_note_captured(mstar_resources *set, int by)
{
    if (set != NULL)
        set->num_captured += by;
}

void mst_resources_drop_planner(mstar_resources *set, const void *planner)
{
    if (set == NULL || pthread_mutex_lock(&set->planning) != 0)
        return;
    for (int32_t slot = 0; slot < MST_MAX_SLOTS; slot++) {
        if (set->slots[slot].planner != planner)
            continue;
        mstar_resources_drop_pre_plan(set, slot);
        set->slots[slot].planner = NULL;
    }
    (void)pthread_mutex_unlock(&set->planning);
}

int64_t mst_resources_free_handle(const mstar_resources *set)
{
    return set != NULL ? -2 - set->handles_taken : -2;
}

void mst_resources_take_handles(mstar_resources *set, int64_t first, int64_t count)
{
    if (set != NULL)
        set->handles_taken = mst_max_i64(set->handles_taken, -2 - (first - count));
}

mstar_status mstar_resources_validate(mstar_resources *resources)
{
    MST_TRY(mst_check_not_null("resources", resources));
    for (int64_t i = 0; i < resources->count; i++) {
        const mst_resource *resource = &resources->list[i];
        if (resource->hooks.validate == NULL)
            continue;
        mstar_status status = resource->hooks.validate(resource->self);
        if (status != MSTAR_OK)
            return mst_fail_for(status, resource);
    }
    return MSTAR_OK;
}

size_t mstar_resources_memory_bytes(const mstar_resources *resources)
{
    size_t bytes = 0;
    for (int64_t i = 0; resources != NULL && i < resources->count; i++) {
        const mst_resource *resource = &resources->list[i];
        if (resource->hooks.memory_bytes != NULL)
            bytes += resource->hooks.memory_bytes(resource->self);
    }
    return bytes;
}

/* ---- requests ---------------------------------------------------------------------------------
 */

static mstar_status check_request(int64_t request)
{
    if (request == -1)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "request is -1, which no row has; real ones are 0 and up, padding rows -2 "
                        "and down");
    return MSTAR_OK;
}

static void remove_from(mstar_resources *set, int64_t count, int64_t request)
{
    for (int64_t i = count - 1; i >= 0; i--) {
        if (set->list[i].hooks.remove_request != NULL)
            set->list[i].hooks.remove_request(set->list[i].self, request);
    }
}

mstar_status mstar_resources_add_request(mstar_resources *resources, int64_t request)
{
    MST_TRY(mst_check_not_null("resources", resources));
    MST_TRY(check_request(request));
    for (int64_t i = 0; i < resources->count; i++) {
        const mst_resource *resource = &resources->list[i];
        if (resource->hooks.add_request == NULL)
            continue;
        mstar_status status = resource->hooks.add_request(resource->self, request);
        if (status != MSTAR_OK) {
            (void)mst_fail_for(status, resource);
            remove_from(resources, i, request);
            return status;
        }
    }
    return MSTAR_OK;
}

void mstar_resources_remove_request(mstar_resources *resources, int64_t request)
{
    if (resources != NULL)
        remove_from(resources, resources->count, request);
}

void mstar_resources_reset_request(mstar_resources *resources, int64_t request, int free_storage)
{
    for (int64_t i = 0; resources != NULL && i < resources->count; i++) {
        const mst_resource *resource = &resources->list[i];
        if (resource->hooks.reset_request != NULL)
            resource->hooks.reset_request(resource->self, request, free_storage);
    }
}
