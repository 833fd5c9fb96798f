/*
 * ragged_layout.c - from the segments of a step to one layout a label.
 *
 * Labels stand in the order in which they appear; the segments of one label keep theirs. Two walks:
 * one counts, one fills. A pair reads two labels that must list the same requests in the same
 * order, since query segment i attends key segment i.
 */
#include <stdio.h>
#include <string.h>

#include "step/step.h"

static mst_label_group *find(const mst_grouping *grouping, const char *label)
{
    for (int64_t i = 0; i < grouping->num_groups; i++) {
        const char *own = grouping->groups[i].label;
        if (own == label || strcmp(own, label) == 0)
            return &grouping->groups[i];
    }
    return NULL;
}

static mstar_status count_segments(const mstar_resource_step *step, mst_grouping *grouping)
{
    grouping->num_groups = 0;
    for (int64_t i = 0; i < step->num_segments; i++) {
        mst_label_group *group = find(grouping, step->segments[i].label);
        if (group == NULL) {
            void *groups = grouping->groups;
            MST_TRY(mst_grow(&groups, &grouping->groups_capacity, grouping->num_groups + 1,
                             sizeof *grouping->groups, "groups of segments"));
            grouping->groups = groups;
            group = &grouping->groups[grouping->num_groups];
            memset(group, 0, sizeof *group);
            MST_TRY(mst_texts_keep(&grouping->texts, step->segments[i].label, &group->label));
            grouping->num_groups++;
        }
        group->num_segments++;
    }
    return MSTAR_OK;
}

static mstar_status take_memory(const mstar_resource_step *step, mst_grouping *grouping)
{
    void *memory = grouping->offsets;
    MST_TRY(mst_grow(&memory, &grouping->offsets_capacity,
                     step->num_segments + grouping->num_groups, sizeof *grouping->offsets,
                     "offsets of a step"));
    grouping->offsets = memory;
    memory = grouping->requests;
    MST_TRY(mst_grow(&memory, &grouping->requests_capacity, step->num_segments,
                     sizeof *grouping->requests, "requests of a step"));
    grouping->requests = memory;
    int64_t segments = 0;
    for (int64_t i = 0; i < grouping->num_groups; i++) {
        mst_label_group *group = &grouping->groups[i];
        group->offsets = grouping->offsets + segments + i;
        group->requests = grouping->requests + segments;
        segments += group->num_segments;
        group->num_segments = 0;
        group->offsets[0] = 0;
    }
    return MSTAR_OK;
}

static mstar_status fill_groups(const mstar_resource_step *step, mst_grouping *grouping)
{
    for (int64_t i = 0; i < step->num_segments; i++) {
        const mstar_segment *segment = &step->segments[i];
        mst_label_group *group = find(grouping, segment->label);
        int64_t end = (int64_t)group->offsets[group->num_segments] + segment->span;
        if (end > INT32_MAX)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "label \"%.32s\": the spans add up to %lld tokens at segment %lld; at "
                            "most %d go into one layout",
                            group->label, (long long)end, (long long)group->num_segments,
                            INT32_MAX);
        group->requests[group->num_segments++] = segment->request;
        group->offsets[group->num_segments] = (int32_t)end;
    }
    return MSTAR_OK;
}

static mstar_status add_layout(mst_grouping *grouping, const char *label, const mst_label_group *q,
                               const mst_label_group *kv)
{
    void *layouts = grouping->layouts;
    MST_TRY(mst_grow(&layouts, &grouping->layouts_capacity, grouping->num_layouts + 1,
                     sizeof *grouping->layouts, "layouts of a step"));
    grouping->layouts = layouts;
    grouping->layouts[grouping->num_layouts++] = (mst_label_layout){label, q, kv};
    return MSTAR_OK;
}

static mstar_status find_side(const mst_grouping *grouping, const char *side, const char *label,
                              const mst_label_group **group)
{
    *group = find(grouping, label);
    if (*group == NULL)
        return mst_fail(MSTAR_NOT_FOUND, "a pair's %s is \"%.64s\", which no segment has", side,
                        label);
    return MSTAR_OK;
}

static mstar_status check_pair(const mst_label_group *q, const mst_label_group *kv)
{
    if (q->num_segments != kv->num_segments)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "labels \"%.32s\" and \"%.32s\" are a pair with %lld and %lld segments; "
                        "both must list the same requests",
                        q->label, kv->label, (long long)q->num_segments,
                        (long long)kv->num_segments);
    for (int64_t i = 0; i < q->num_segments; i++) {
        if (q->requests[i] != kv->requests[i])
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "labels \"%.32s\" and \"%.32s\" are a pair whose segment %lld is of "
                            "request %lld and of request %lld; both must list the same requests in "
                            "the same order",
                            q->label, kv->label, (long long)i, (long long)q->requests[i],
                            (long long)kv->requests[i]);
    }
    return MSTAR_OK;
}

static mstar_status pair_layout(const mstar_label_pair *pair, mst_grouping *grouping)
{
    const mst_label_group *q, *kv;
    char text[256];
    const char *label;
    MST_TRY(find_side(grouping, "q_label", pair->q_label, &q));
    MST_TRY(find_side(grouping, "kv_label", pair->kv_label, &kv));
    MST_TRY(check_pair(q, kv));
    int length = snprintf(text, sizeof text, "%s:%s", pair->q_label, pair->kv_label);
    if (length < 0 || (size_t)length >= sizeof text)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "the labels of a pair are %d letters long together; at most %zu are kept",
                        length, sizeof text - 1);
    for (int64_t i = 0; i < grouping->num_layouts; i++) {
        if (strcmp(grouping->layouts[i].label, text) == 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "pair \"%s\" is named twice", text);
    }
    MST_TRY(mst_texts_keep(&grouping->texts, text, &label));
    return add_layout(grouping, label, q, kv);
}

static mstar_status make_layouts(mstar_ragged_kind kind, const mstar_resource_step *step,
                                 mst_grouping *grouping)
{
    grouping->num_layouts = 0;
    if (kind == MSTAR_RAGGED_SELF) {
        if (step->num_pairs > 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "the step names %lld pairs; self attention reads single labels",
                            (long long)step->num_pairs);
        for (int64_t i = 0; i < grouping->num_groups; i++)
            MST_TRY(add_layout(grouping, grouping->groups[i].label, &grouping->groups[i], NULL));
        return MSTAR_OK;
    }
    if (step->num_pairs == 0 && step->num_segments > 0)
        return mst_fail(
            MSTAR_INVALID_ARGUMENT,
            "the step names no pair; cross and prefixed attention read pairs of labels");
    for (int64_t i = 0; i < step->num_pairs; i++)
        MST_TRY(pair_layout(&step->pairs[i], grouping));
    return MSTAR_OK;
}

mstar_status mst_group_segments(mstar_ragged_kind kind, const mstar_resource_step *step,
                                mst_grouping *grouping)
{
    MST_TRY(count_segments(step, grouping));
    MST_TRY(take_memory(step, grouping));
    MST_TRY(fill_groups(step, grouping));
    return make_layouts(kind, step, grouping);
}

void mst_grouping_release(mst_grouping *grouping)
{
    mst_free(grouping->groups);
    mst_free(grouping->layouts);
    mst_free(grouping->offsets);
    mst_free(grouping->requests);
    mst_texts_release(&grouping->texts);
    memset(grouping, 0, sizeof *grouping);
}

size_t mst_grouping_bytes(const mst_grouping *grouping)
{
    return (size_t)grouping->groups_capacity * sizeof *grouping->groups +
           (size_t)grouping->layouts_capacity * sizeof *grouping->layouts +
           (size_t)grouping->offsets_capacity * sizeof *grouping->offsets +
           (size_t)grouping->requests_capacity * sizeof *grouping->requests +
           mst_texts_bytes(&grouping->texts);
}

/* A list of have's that would hold count elements. */
static size_t list_growth(int64_t capacity, int64_t count, size_t size)
{
    return (size_t)(mst_grown(capacity, count) - capacity) * size;
}

size_t mst_grouping_growth(const mst_grouping *have, const mst_grouping *want)
{
    int64_t segments = 0;
    for (int64_t i = 0; i < want->num_groups; i++)
        segments += want->groups[i].num_segments;
    return list_growth(have->groups_capacity, want->num_groups, sizeof *have->groups) +
           list_growth(have->layouts_capacity, want->num_layouts, sizeof *have->layouts) +
           list_growth(have->offsets_capacity, segments + want->num_groups, sizeof *have->offsets) +
           list_growth(have->requests_capacity, segments, sizeof *have->requests) +
           mst_texts_growth(&have->texts, (const char *const *)want->texts.items,
                            want->texts.count);
}

static bool same_group(const mst_label_group *a, const mst_label_group *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    size_t count = (size_t)a->num_segments;
    return a->num_segments == b->num_segments &&
           memcmp(a->offsets, b->offsets, (count + 1) * sizeof *a->offsets) == 0 &&
           memcmp(a->requests, b->requests, count * sizeof *a->requests) == 0;
}

bool mst_grouping_equal(const mst_grouping *a, const mst_grouping *b)
{
    if (a->num_layouts != b->num_layouts)
        return false;
    for (int64_t i = 0; i < a->num_layouts; i++) {
        const mst_label_layout *one = &a->layouts[i];
        const mst_label_layout *other = &b->layouts[i];
        if (strcmp(one->label, other->label) != 0 || !same_group(one->q, other->q) ||
            !same_group(one->kv, other->kv))
            return false;
    }
    return true;
}
