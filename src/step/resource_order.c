/*
 * resource_order.c - in which order the resources of a set plan.
 *
 * The first listed resource whose dependencies have all been placed comes next, until all have or
 * none can: what is left then holds a circle, and walking along dependencies that are left must
 * come to it.
 */
#include <string.h>

#include "step/step.h"

static int64_t find(const mstar_resource *list, int64_t count, const char *key)
{
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(list[i].key, key) == 0)
            return i;
    }
    return -1;
}

static mstar_status check_resource(const mstar_resource *list, int64_t index)
{
    const mstar_resource *resource = &list[index];
    if (resource->key == NULL || resource->key[0] == '\0')
        return mst_fail(MSTAR_INVALID_ARGUMENT, "list[%lld].key is %s", (long long)index,
                        resource->key == NULL ? "NULL" : "empty");
    if (resource->hooks == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "resource \"%.64s\": hooks is NULL", resource->key);
    int64_t same = find(list, index, resource->key);
    if (same >= 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "list[%lld] and list[%lld] both have key \"%.64s\"",
                        (long long)same, (long long)index, resource->key);
    if (resource->num_depends < 0 || (resource->num_depends > 0 && resource->depends_on == NULL))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "resource \"%.64s\": num_depends is %d with depends_on %s", resource->key,
                        resource->num_depends, resource->depends_on == NULL ? "NULL" : "given");
    return MSTAR_OK;
}

static bool plans(const mstar_resource *resource)
{
    return resource->hooks->plan != NULL;
}

static mstar_status check_depends(const mstar_resource *list, int64_t count, int64_t index)
{
    const mstar_resource *resource = &list[index];
    for (int32_t d = 0; d < resource->num_depends; d++) {
        const char *key = resource->depends_on[d];
        if (key == NULL)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "resource \"%.64s\": depends_on[%d] is NULL",
                            resource->key, d);
        int64_t on = find(list, count, key);
        if (on < 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "resource \"%.64s\" depends on \"%.64s\", which is not in the list",
                            resource->key, key);
        if (on == index)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "resource \"%.64s\" depends on itself",
                            resource->key);
        if (plans(resource) && resource->hooks->pre_plans && plans(&list[on]) &&
            !list[on].hooks->pre_plans)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "resource \"%.64s\" pre-plans and depends on \"%.64s\", which does not",
                            resource->key, key);
    }
    return MSTAR_OK;
}

/* The first dependency that has not been placed; -1: none. */
static int64_t waits_for(const mstar_resource *list, int64_t count, int64_t index,
                         const bool *placed)
{
    for (int32_t d = 0; d < list[index].num_depends; d++) {
        int64_t on = find(list, count, list[index].depends_on[d]);
        if (!placed[on])
            return on;
    }
    return -1;
}

static mstar_status fail_circle(const mstar_resource *list, int64_t count, const bool *placed)
{
    int64_t at = 0;
    while (placed[at])
        at++;
    for (int64_t i = 0; i < count; i++) /* after so many steps the walk is inside the circle */
        at = waits_for(list, count, at, placed);
    int64_t next = waits_for(list, count, at, placed);
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "resources depend on one another in a circle: \"%.64s\" on \"%.64s\", and that "
                    "in the end on \"%.64s\"",
                    list[at].key, list[next].key, list[at].key);
}

mstar_status mst_resource_order(const mstar_resource *list, int64_t count, int64_t *order)
{
    void *memory;
    mstar_status status = MSTAR_OK;
    for (int64_t i = 0; i < count; i++)
        MST_TRY(check_resource(list, i));
    for (int64_t i = 0; i < count; i++)
        MST_TRY(check_depends(list, count, i));
    MST_TRY(mst_alloc_array(count, sizeof(bool), "order of resources", &memory));
    bool *placed = memory;
    for (int64_t place = 0; place < count && status == MSTAR_OK; place++) {
        int64_t next = 0;
        while (next < count && (placed[next] || waits_for(list, count, next, placed) >= 0))
            next++;
        if (next == count) {
            status = fail_circle(list, count, placed);
        } else {
            placed[next] = true;
            order[place] = next;
        }
    }
    mst_free(memory);
    return status;
}
