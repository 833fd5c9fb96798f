/*
 * declared_step.c - a step as the model declares it, built call by call.
 *
 * Everything grows and nothing shrinks: after the first few steps a declaration allocates nothing.
 * Resources are few, so that a walk over them finds a key.
 */
#include <string.h>

#include "step/step.h"

typedef struct segments {
    mstar_segment *items;
    int64_t count, capacity;
} segments;

typedef struct declared {
    const char *key;
    segments own;
    mstar_label_pair *pairs;
    int64_t num_pairs, pairs_capacity;
    int32_t causal;
    const void *details;
} declared;

struct mstar_step {
    declared *resources; /* those past num_resources keep their memory */
    int64_t num_resources, resources_capacity, resources_made;
    segments defaults;
    const char *additional_key_info;
    mst_texts texts;
    mst_phase phase;
};

mstar_status mstar_step_create(mstar_step **step)
{
    void *memory;
    MST_TRY(mst_check_not_null("step", step));
    MST_TRY(mst_alloc_zero(sizeof(mstar_step), "step", &memory));
    *step = memory;
    return MSTAR_OK;
}

void mstar_step_destroy(mstar_step *step)
{
    if (step == NULL)
        return;
    for (int64_t i = 0; i < step->resources_made; i++) {
        mst_free(step->resources[i].own.items);
        mst_free(step->resources[i].pairs);
    }
    mst_free(step->resources);
    mst_free(step->defaults.items);
    mst_texts_release(&step->texts);
    mst_free(step);
}

size_t mst_step_bytes(const mstar_step *step)
{
    if (step == NULL)
        return 0;
    size_t bytes = sizeof *step + (size_t)step->resources_capacity * sizeof *step->resources +
                   (size_t)step->defaults.capacity * sizeof *step->defaults.items +
                   mst_texts_bytes(&step->texts);
    for (int64_t i = 0; i < step->resources_made; i++)
        bytes += (size_t)step->resources[i].own.capacity * sizeof *step->resources[i].own.items +
                 (size_t)step->resources[i].pairs_capacity * sizeof *step->resources[i].pairs;
    return bytes;
}

void mstar_step_clear(mstar_step *step)
{
    if (step == NULL)
        return;
    step->num_resources = 0;
    step->defaults.count = 0;
    step->additional_key_info = NULL;
    step->phase = MST_DECLARED;
}

mst_phase mst_step_phase(const mstar_step *step)
{
    return step->phase;
}

void mst_step_set_phase(mstar_step *step, mst_phase phase)
{
    step->phase = phase;
}

static declared *find(const mstar_step *step, const char *key)
{
    for (int64_t i = 0; i < step->num_resources; i++) {
        if (strcmp(step->resources[i].key, key) == 0)
            return &step->resources[i];
    }
    return NULL;
}

/* What the calls on one resource of a step have in common. */
static mstar_status find_checked(mstar_step *step, const char *key, declared **resource)
{
    MST_TRY(mst_check_not_null("step", step));
    MST_TRY(mst_check_not_null("key", key));
    *resource = find(step, key);
    if (*resource == NULL)
        return mst_fail(MSTAR_NOT_FOUND, "the step has no resource \"%.64s\"; add it first", key);
    step->phase = MST_DECLARED;
    return MSTAR_OK;
}

mstar_status mstar_step_add_resource(mstar_step *step, const char *key)
{
    MST_TRY(mst_check_not_null("step", step));
    MST_TRY(mst_check_not_null("key", key));
    if (find(step, key) != NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "the step has resource \"%.64s\" already", key);
    const char *kept;
    MST_TRY(mst_texts_keep(&step->texts, key, &kept));
    if (step->num_resources == step->resources_made) {
        void *items = step->resources;
        MST_TRY(mst_grow(&items, &step->resources_capacity, step->resources_made + 1,
                         sizeof *step->resources, "resources of a step"));
        step->resources = items;
        memset(&step->resources[step->resources_made++], 0, sizeof *step->resources);
    }
    declared *made = &step->resources[step->num_resources++];
    made->key = kept;
    made->own.count = 0;
    made->num_pairs = 0;
    made->causal = 1;
    made->details = NULL;
    step->phase = MST_DECLARED;
    return MSTAR_OK;
}

static mstar_status keep_label(mstar_step *step, const char *name, const char *label,
                               const char **kept)
{
    if (label == NULL)
        label = MSTAR_DEFAULT_LABEL;
    if (label[0] == '\0')
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"\"; a label has at least one letter",
                        name);
    return mst_texts_keep(&step->texts, label, kept);
}

mstar_status mstar_step_add_segment(mstar_step *step, const char *key, int64_t request,
                                    const char *label, int32_t span)
{
    MST_TRY(mst_check_not_null("step", step));
    segments *list = &step->defaults;
    if (key != NULL) {
        declared *resource;
        MST_TRY(find_checked(step, key, &resource));
        list = &resource->own;
    }
    if (request == -1)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "request is -1, which no row has; real ones are 0 and up, padding rows -2 "
                        "and down");
    MST_TRY(mst_check_range("span", span, 0, INT32_MAX));
    const char *kept;
    MST_TRY(keep_label(step, "label", label, &kept));
    void *items = list->items;
    MST_TRY(mst_grow(&items, &list->capacity, list->count + 1, sizeof *list->items,
                     "segments of a step"));
    list->items = items;
    list->items[list->count++] = (mstar_segment){.request = request, .label = kept, .span = span};
    step->phase = MST_DECLARED;
    return MSTAR_OK;
}

mstar_status mstar_step_add_pair(mstar_step *step, const char *key, const char *q_label,
                                 const char *kv_label)
{
    declared *resource;
    mstar_label_pair pair;
    MST_TRY(find_checked(step, key, &resource));
    MST_TRY(keep_label(step, "q_label", q_label, &pair.q_label));
    MST_TRY(keep_label(step, "kv_label", kv_label, &pair.kv_label));
    void *pairs = resource->pairs;
    MST_TRY(mst_grow(&pairs, &resource->pairs_capacity, resource->num_pairs + 1,
                     sizeof *resource->pairs, "pairs of a step"));
    resource->pairs = pairs;
    resource->pairs[resource->num_pairs++] = pair;
    return MSTAR_OK;
}

mstar_status mstar_step_set_causal(mstar_step *step, const char *key, int causal)
{
    declared *resource;
    MST_TRY(find_checked(step, key, &resource));
    MST_TRY(mst_check_range("causal", causal, 0, 1));
    resource->causal = causal;
    return MSTAR_OK;
}

mstar_status mstar_step_set_details(mstar_step *step, const char *key, const void *details)
{
    declared *resource;
    MST_TRY(find_checked(step, key, &resource));
    resource->details = details;
    return MSTAR_OK;
}

mstar_status mstar_step_set_additional_key_info(mstar_step *step, const char *text)
{
    MST_TRY(mst_check_not_null("step", step));
    const char *kept = NULL;
    if (text != NULL)
        MST_TRY(mst_texts_keep(&step->texts, text, &kept));
    step->additional_key_info = kept;
    return MSTAR_OK;
}

const char *mstar_step_get_additional_key_info(const mstar_step *step)
{
    return step != NULL ? step->additional_key_info : NULL;
}

int64_t mstar_step_get_num_resources(const mstar_step *step)
{
    return step != NULL ? step->num_resources : 0;
}

static void describe(const mstar_step *step, const declared *from, mstar_resource_step *resource)
{
    const segments *list = from->own.count > 0 ? &from->own : &step->defaults;
    *resource = (mstar_resource_step){.key = from->key,
                                      .segments = list->items,
                                      .num_segments = list->count,
                                      .pairs = from->pairs,
                                      .num_pairs = from->num_pairs,
                                      .causal = from->causal,
                                      .details = from->details};
}

mstar_status mstar_step_query_resource(const mstar_step *step, int64_t index,
                                       mstar_resource_step *resource)
{
    MST_TRY(mst_check_not_null("step", step));
    MST_TRY(mst_check_not_null("resource", resource));
    if (index < 0 || index >= step->num_resources)
        return mst_fail(MSTAR_NOT_FOUND, "index is %lld; the step has %lld resources",
                        (long long)index, (long long)step->num_resources);
    describe(step, &step->resources[index], resource);
    return MSTAR_OK;
}

bool mst_step_find(const mstar_step *step, const char *key, mstar_resource_step *resource)
{
    const declared *found = find(step, key);
    if (found != NULL)
        describe(step, found, resource);
    return found != NULL;
}

void mstar_step_context_init(mstar_step_context *context)
{
    if (context == NULL)
        return;
    memset(context, 0, sizeof *context);
    context->struct_size = (uint32_t)sizeof *context;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

int mstar_step_context_holds_region(const mstar_step_context *context, const char *label)
{
    if (context == NULL || label == NULL)
        return 0;
    for (int64_t i = 0; i < context->num_region_leases; i++) {
        if (strcmp(context->region_leases[i], label) == 0)
            return 1;
    }
    return 0;
}

int mstar_bucket_key_equal(const mstar_bucket_key *a, const mstar_bucket_key *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->bs == b->bs && a->num_tokens == b->num_tokens && same_text(a->walk, b->walk) &&
           same_text(a->additional_key_info, b->additional_key_info);
}
