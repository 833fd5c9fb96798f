/*
 * phases.c - admit, plan, commit and publish of one step over a set of resources, and the plan of
 * the next one ahead.
 *
 * Where a step stands is kept in the step, since an engine that runs requests one by one admits
 * all of them first. Commit and publish are given the segments of real rows only: a resource that
 * saw a padding row here would write its state over a real one's.
 */
#include <stdio.h>
#include <string.h>

#include "step/step.h"

static void list_keys(const mstar_resources *set, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < set->count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s\"%.32s\"", i > 0 ? ", " : "",
                                 set->list[i].key);
}

static mstar_status check_keys(const mstar_resources *set, const mstar_step *step)
{
    for (int64_t i = 0; i < mstar_step_get_num_resources(step); i++) {
        mstar_resource_step resource;
        char keys[160];
        MST_TRY(mstar_step_query_resource(step, i, &resource));
        if (mst_resources_find(set, resource.key) >= 0)
            continue;
        list_keys(set, keys, sizeof keys);
        return mst_fail(MSTAR_NOT_FOUND,
                        "the step declares resource \"%.64s\", which is not in the set; it has %s",
                        resource.key, set->count > 0 ? keys : "none");
    }
    return MSTAR_OK;
}

/* Every phase begins with this; *full is the caller's context with all fields there. */
static mstar_status check_call(const mstar_resources *set, const mstar_step_context *context,
                               const mstar_step *step, mstar_step_context *full)
{
    MST_TRY(mst_check_not_null("resources", set));
    MST_TRY(mst_check_not_null("context", context));
    MST_TRY(mst_check_not_null("step", step));
    mstar_step_context_init(full);
    MST_TRY(mst_desc_read("context", context, full, sizeof *full));
    full->struct_size = (uint32_t)sizeof *full;
    full->pre_plan = 0;
    if (full->lease != NULL)
        full->slot = full->lease->slot;
    if (full->padded_requests == NULL) {
        full->padded_requests = full->requests;
        full->num_padded_requests = full->num_requests;
    }
    return check_keys(set, step);
}

static mstar_status check_phase(const char *call, const mstar_step *step, mst_phase low,
                                mst_phase high)
{
    static const char *const names[] = {"declared", "admitted", "planned", "committed",
                                        "published"};
    mst_phase phase = mst_step_phase(step);
    if (phase < low || phase > high)
        return mst_fail(MSTAR_OUT_OF_ORDER, "%s of a step that is %s; it must be %s first", call,
                        names[phase], names[low]);
    return MSTAR_OK;
}

/* ---- admit ------------------------------------------------------------------------------------
 */

static mstar_status admit(mstar_resources *set, const mstar_step_context *context,
                          const mstar_step *step, mstar_admission *admission)
{
    for (int64_t i = 0; i < set->count; i++) {
        const mst_resource *resource = &set->list[i];
        mstar_resource_step part;
        if (resource->hooks.admit == NULL || !mst_step_find(step, resource->key, &part))
            continue;
        mstar_status status = resource->hooks.admit(resource->self, context, &part, admission);
        if (status != MSTAR_OK)
            return mst_fail_for(status, resource);
        admission->reason[sizeof admission->reason - 1] = '\0';
        if (admission->outcome != MSTAR_ADMITTED) {
            admission->resource = resource->key;
            return MSTAR_OK;
        }
    }
    return MSTAR_OK;
}

mstar_status mstar_resources_admit(mstar_resources *resources, const mstar_step_context *context,
                                   mstar_step *step, mstar_admission *admission)
{
    mstar_step_context full;
    mstar_admission decided;
    MST_TRY(check_call(resources, context, step, &full));
    MST_TRY(mst_check_not_null("admission", admission));
    memset(&decided, 0, sizeof decided);
    decided.struct_size = (uint32_t)sizeof decided;
    decided.request = -1;
    MST_TRY(admit(resources, &full, step, &decided));
    MST_TRY(mst_info_write("admission", &decided, sizeof decided, admission));
    mst_step_set_phase(step, decided.outcome == MSTAR_ADMITTED ? MST_ADMITTED : MST_DECLARED);
    return MSTAR_OK;
}

/* ---- bytes of a claim -------------------------------------------------------------------------
 */

mstar_status mstar_resources_claim_bytes(mstar_resources *resources,
                                         const mstar_step_context *context, const mstar_step *step,
                                         size_t *bytes)
{
    mstar_step_context full;
    MST_TRY(check_call(resources, context, step, &full));
    MST_TRY(mst_check_not_null("bytes", bytes));
    MST_TRY(mst_check_not_null("context.lease", full.lease));
    size_t sum = 0;
    for (int64_t i = 0; i < resources->count; i++) {
        const mst_resource *resource = &resources->list[i];
        mstar_resource_step part;
        size_t more = 0;
        if (resource->hooks.claim_bytes == NULL || !mst_step_find(step, resource->key, &part))
            continue;
        mstar_status status = resource->hooks.claim_bytes(resource->self, &full, &part, &more);
        if (status == MSTAR_OK)
            status = mst_size_add(sum, more, &sum);
        if (status != MSTAR_OK)
            return mst_fail_for(status, resource);
    }
    *bytes = sum;
    return MSTAR_OK;
}

/* ---- plan -------------------------------------------------------------------------------------
 */

static void clear_results(const mstar_resources *set, mstar_plan_results *results)
{
    for (int64_t i = 0; i < set->count; i++)
        results->values[i] = NULL;
}

const void *mstar_plan_results_find(const mstar_plan_results *results, const char *key)
{
    int64_t index = results != NULL && key != NULL ? mst_resources_find(results->set, key) : -1;
    return index >= 0 ? results->values[index] : NULL;
}

const void *mstar_resources_get_result(const mstar_resources *resources, const char *key)
{
    return resources != NULL ? mstar_plan_results_find(&resources->present, key) : NULL;
}

/* Drops the pre-plans of the first count resources. */
static void drop_first(const mstar_resources *set, int64_t count, int32_t slot)
{
    for (int64_t i = 0; i < count; i++) {
        if (set->list[i].hooks.drop_pre_plan != NULL)
            set->list[i].hooks.drop_pre_plan(set->list[i].self, slot);
    }
}

static mstar_status plan(mstar_resources *set, const mstar_step_context *context,
                         const mstar_step *step, mstar_plan_results *results)
{
    clear_results(set, results);
    for (int64_t i = 0; i < set->count; i++) {
        const mst_resource *resource = &set->list[i];
        mstar_resource_step part;
        if (resource->hooks.plan == NULL || !mst_step_find(step, resource->key, &part))
            continue;
        const void *result = NULL;
        mstar_status status =
            resource->hooks.plan(resource->self, context, &part, results, &result);
        if (status != MSTAR_OK) {
            clear_results(set, results);
            (void)mst_fail_for(status, resource);
            if (context->pre_plan)
                drop_first(set, i, context->slot);
            return status;
        }
        results->values[i] = result;
    }
    return MSTAR_OK;
}

mstar_status mstar_resources_plan(mstar_resources *resources, const mstar_step_context *context,
                                  mstar_step *step)
{
    mstar_step_context full;
    MST_TRY(mst_capture_refuse("plan of a step"));
    MST_TRY(check_call(resources, context, step, &full));
    MST_TRY(check_phase("plan", step, MST_ADMITTED, MST_PLANNED));
    mst_step_set_phase(step, MST_ADMITTED);
    MST_TRY(plan(resources, &full, step, &resources->present));
    mst_step_set_phase(step, MST_PLANNED);
    return MSTAR_OK;
}

/* ---- plan ahead -------------------------------------------------------------------------------
 */

/* The first planning resource of the step that does not pre-plan; NULL: all do. */
static const mst_resource *who_does_not_pre_plan(const mstar_resources *set, const mstar_step *step,
                                                 int64_t *planning)
{
    *planning = 0;
    for (int64_t i = 0; i < set->count; i++) {
        const mst_resource *resource = &set->list[i];
        mstar_resource_step part;
        if (resource->hooks.plan == NULL ||
            (step != NULL && !mst_step_find(step, resource->key, &part)))
            continue;
        ++*planning;
        if (!resource->hooks.pre_plans)
            return resource;
    }
    return NULL;
}

int mstar_resources_can_pre_plan(const mstar_resources *resources, const mstar_step *step)
{
    int64_t planning;
    return resources != NULL && who_does_not_pre_plan(resources, step, &planning) == NULL &&
           planning > 0;
}

int mstar_resources_double_buffers(const mstar_resources *resources, const mstar_step *step)
{
    for (int64_t i = 0; resources != NULL && i < resources->count; i++) {
        const mst_resource *resource = &resources->list[i];
        mstar_resource_step part;
        if (resource->hooks.double_buffers &&
            (step == NULL || mst_step_find(step, resource->key, &part)))
            return 1;
    }
    return 0;
}

mstar_status mstar_resources_pre_plan(mstar_resources *resources, const mstar_step_context *context,
                                      mstar_step *step)
{
    mstar_step_context full;
    int64_t planning;
    MST_TRY(mst_capture_refuse("pre-plan of a step"));
    MST_TRY(check_call(resources, context, step, &full));
    if (full.lease == NULL)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "pre-plan without a lease: an eager step shares its memory with the one "
                        "that runs");
    const mst_resource *unable = who_does_not_pre_plan(resources, step, &planning);
    if (unable != NULL)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "resource \"%.64s\" plans and does not pre-plan; all of a step do or none",
                        unable->key);
    full.pre_plan = 1;
    return plan(resources, &full, step, &resources->ahead);
}

void mstar_resources_drop_pre_plan(mstar_resources *resources, int32_t slot)
{
    if (resources != NULL)
        drop_first(resources, resources->count, slot);
}

/* ---- commit and publish -----------------------------------------------------------------------
 */

/* Leaves out padding rows. The copy is the set's and holds until the next call. */
static mstar_status keep_real(mstar_resources *set, mstar_resource_step *part)
{
    void *memory = set->real;
    MST_TRY(mst_grow(&memory, &set->real_capacity, part->num_segments, sizeof *set->real,
                     "segments of real rows"));
    set->real = memory;
    int64_t count = 0;
    for (int64_t i = 0; i < part->num_segments; i++) {
        if (part->segments[i].request >= 0)
            set->real[count++] = part->segments[i];
    }
    part->segments = set->real;
    part->num_segments = count;
    return MSTAR_OK;
}

typedef mstar_status (*after_hook)(void *self, const mstar_step_context *context,
                                   const mstar_resource_step *step);

static mstar_status after(mstar_resources *set, const mstar_step_context *context,
                          const mstar_step *step, bool publishes)
{
    for (int64_t i = 0; i < set->count; i++) {
        const mst_resource *resource = &set->list[i];
        after_hook hook = publishes ? resource->hooks.publish : resource->hooks.commit;
        mstar_resource_step part;
        if (hook == NULL || !mst_step_find(step, resource->key, &part))
            continue;
        MST_TRY(keep_real(set, &part));
        mstar_status status = hook(resource->self, context, &part);
        if (status != MSTAR_OK)
            return mst_fail_for(status, resource);
    }
    return MSTAR_OK;
}

mstar_status mstar_resources_commit(mstar_resources *resources, const mstar_step_context *context,
                                    mstar_step *step)
{
    mstar_step_context full;
    MST_TRY(check_call(resources, context, step, &full));
    MST_TRY(check_phase("commit", step, MST_PLANNED, MST_PLANNED));
    mst_step_set_phase(step, MST_DECLARED); /* half a commit must not be made twice */
    MST_TRY(after(resources, &full, step, false));
    mst_step_set_phase(step, MST_COMMITTED);
    return MSTAR_OK;
}

mstar_status mstar_resources_publish(mstar_resources *resources, const mstar_step_context *context,
                                     mstar_step *step)
{
    mstar_step_context full;
    MST_TRY(check_call(resources, context, step, &full));
    MST_TRY(check_phase("publish", step, MST_COMMITTED, MST_COMMITTED));
    MST_TRY(after(resources, &full, step, true));
    mst_step_set_phase(step, MST_PUBLISHED);
    return MSTAR_OK;
}
