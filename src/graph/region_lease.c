/*
 * region_lease.c - the regions of a node: leased before the outer step is declared, so that the
 * declaration can leave out what they plan themselves.
 *
 * A lease is a slot of the region, taken ahead of its run. Nothing else is reserved: what was
 * captured stays, so a region that serves a batch now serves it in a moment too.
 */
#include <string.h>

#include "graph/region.h"

/* ---- which regions --------------------------------------------------------------------------- */

/* Padding handles [first, first - count) of both, counted down. */
static bool handles_meet(int64_t first_a, int64_t count_a, int64_t first_b, int64_t count_b)
{
    return first_a > first_b - count_b && first_b > first_a - count_a;
}

/* Two rows of one handle would share their state in the resources. */
static mstar_status check_handles(const mstar_graph_runner *runner,
                                  const mstar_region_runner *region)
{
    if (region->resources == NULL)
        return MSTAR_OK;
    if (region->resources == runner->resources &&
        handles_meet(region->first_handle, region->num_handles, runner->first_padding,
                     runner->num_padding))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "region %s pads with %lld handles from %lld down; %s pads the same "
                        "resources with %lld from %lld down",
                        region->key_info, (long long)region->num_handles,
                        (long long)region->first_handle, runner->node,
                        (long long)runner->num_padding, (long long)runner->first_padding);
    for (int64_t i = 0; i < runner->num_regions; i++) {
        const mstar_region_runner *other = runner->regions[i];
        if (region->resources == other->resources &&
            handles_meet(region->first_handle, region->num_handles, other->first_handle,
                         other->num_handles))
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "region %s pads with %lld handles from %lld down; region %s pads the "
                            "same resources with %lld from %lld down",
                            region->key_info, (long long)region->num_handles,
                            (long long)region->first_handle, other->key_info,
                            (long long)other->num_handles, (long long)other->first_handle);
    }
    return MSTAR_OK;
}

mstar_status mstar_graph_runner_add_region(mstar_graph_runner *runner, mstar_region_runner *region)
{
    MST_TRY(mst_check_not_null("runner", runner));
    MST_TRY(mst_check_not_null("region", region));
    if (runner->phase >= MST_RUNNER_CAPTURING)
        return mst_fail(MSTAR_OUT_OF_ORDER, "%s has captured already; its regions are added before",
                        runner->node);
    if (region->device != runner->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "region %s is on another device than %s",
                        region->key_info, runner->node);
    for (int64_t i = 0; i < runner->num_regions; i++) {
        if (strcmp(runner->regions[i]->label, region->label) == 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "%s has a region \"%.64s\" already",
                            runner->node, region->label);
    }
    MST_TRY(check_handles(runner, region));
    int64_t count = runner->num_regions + 1;
    MST_TRY(mst_grow((void **)&runner->regions, &runner->regions_capacity, count,
                     sizeof(mstar_region_runner *), "regions of a node"));
    MST_TRY(mst_grow((void **)&runner->region_labels, &runner->labels_capacity, count,
                     sizeof *runner->region_labels, "regions of a node"));
    runner->regions[runner->num_regions] = region;
    runner->num_regions = count;
    return MSTAR_OK;
}

mstar_status mst_check_regions_prepared(const mstar_graph_runner *runner)
{
    for (int64_t i = 0; i < runner->num_regions; i++) {
        if (runner->regions[i]->phase == MST_RUNNER_NEW)
            return mst_fail(MSTAR_OUT_OF_ORDER,
                            "%s captures before its region \"%.64s\" was prepared", runner->node,
                            runner->regions[i]->label);
    }
    return MSTAR_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

mstar_status mst_lease_regions(mstar_graph_runner *runner, const mstar_runner_step *step,
                               mstar_step_context *context)
{
    context->region_leases = runner->region_labels;
    for (int64_t i = 0; i < runner->num_regions; i++) {
        mstar_region_runner *region = runner->regions[i];
        if (!mstar_region_runner_can_lease(region, step->inputs, step->count))
            continue;
        if (region->stream != step->stream)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "step.stream is another one than that of region %s, which would run "
                            "in the step",
                            region->key_info);
        region->leased_slot = mst_region_take_slot(region);
        region->leased = true;
        region->info.leases++;
        runner->region_labels[context->num_region_leases++] = region->label;
        atomic_fetch_add_explicit(&runner->stats.region_leases, 1, memory_order_relaxed);
    }
    return MSTAR_OK;
}

void mst_return_leases(mstar_graph_runner *runner)
{
    for (int64_t i = 0; i < runner->num_regions; i++) {
        mstar_region_runner *region = runner->regions[i];
        if (!region->leased)
            continue;
        region->leased = false;
        region->info.unused_leases++;
        if ((region->leased_slot + 1) % region->num_slots == region->next_slot)
            region->next_slot = region->leased_slot; /* nobody has run since */
    }
}
