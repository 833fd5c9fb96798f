/*
 * ragged_store.c - the wrappers and workspaces of a manager, made at first need and kept.
 *
 * Graph and eager wrappers of one (label, slot) share a workspace, since a slot runs one step at a
 * time. Wrappers are reached through pointers that hold: a plan keeps them while the store grows.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step/step.h"

/* ---- the three public types as one ------------------------------------------------------------
 */

static mstar_status create_object(mstar_device *device, mstar_ragged_kind kind,
                                  const mstar_ragged_prefill_desc *desc, mstar_buffer *workspace,
                                  void **object)
{
    void *memory = mstar_buffer_get_data(workspace);
    size_t bytes = mstar_buffer_get_bytes(workspace);
    mstar_ragged_prefill *self = NULL;
    mstar_ragged_cross_prefill *cross = NULL;
    mstar_prefixed_prefill *prefixed = NULL;
    mstar_status status;
    switch (kind) {
    case MSTAR_RAGGED_CROSS:
        status = mstar_ragged_cross_prefill_create(device, desc, memory, bytes, &cross);
        *object = cross;
        return status;
    case MSTAR_RAGGED_PREFIXED:
        status = mstar_prefixed_prefill_create(device, desc, memory, bytes, &prefixed);
        *object = prefixed;
        return status;
    default:
        status = mstar_ragged_prefill_create(device, desc, memory, bytes, &self);
        *object = self;
        return status;
    }
}

static void destroy_object(mstar_ragged_kind kind, void *object)
{
    switch (kind) {
    case MSTAR_RAGGED_CROSS:
        mstar_ragged_cross_prefill_destroy(object);
        break;
    case MSTAR_RAGGED_PREFIXED:
        mstar_prefixed_prefill_destroy(object);
        break;
    default:
        mstar_ragged_prefill_destroy(object);
    }
}

static mstar_status query_object(mstar_ragged_kind kind, const void *object,
                                 mstar_ragged_prefill_info *info)
{
    switch (kind) {
    case MSTAR_RAGGED_CROSS:
        return mstar_ragged_cross_prefill_query(object, info);
    case MSTAR_RAGGED_PREFIXED:
        return mstar_prefixed_prefill_query(object, info);
    default:
        return mstar_ragged_prefill_query(object, info);
    }
}

mstar_status mst_ragged_wrapper_plan(mstar_ragged_kind kind, const mst_ragged_wrapper *wrapper,
                                     mstar_stream *stream, const mst_label_layout *layout,
                                     int causal)
{
    const mst_label_group *q = layout->q;
    const mst_label_group *kv = layout->kv;
    switch (kind) {
    case MSTAR_RAGGED_CROSS:
        return mstar_ragged_cross_prefill_plan(wrapper->object, stream, q->offsets, q->num_segments,
                                               kv->offsets, kv->num_segments);
    case MSTAR_RAGGED_PREFIXED:
        return mstar_prefixed_prefill_plan(wrapper->object, stream, q->offsets, q->num_segments,
                                           kv->offsets, kv->num_segments, causal);
    default:
        return mstar_ragged_prefill_plan(wrapper->object, stream, q->offsets, q->num_segments,
                                         causal);
    }
}

mstar_status mst_ragged_wrapper_run(mstar_ragged_kind kind, const mst_ragged_wrapper *wrapper,
                                    mstar_stream *stream, const mstar_tensor *q,
                                    const mstar_tensor *k, const mstar_tensor *v,
                                    const mstar_tensor *out, const mstar_tensor *lse)
{
    switch (kind) {
    case MSTAR_RAGGED_CROSS:
        return mstar_ragged_cross_prefill_run(wrapper->object, stream, q, k, v, out, lse);
    case MSTAR_RAGGED_PREFIXED:
        return mstar_prefixed_prefill_run(wrapper->object, stream, q, k, v, out, lse);
    default:
        return mstar_ragged_prefill_run(wrapper->object, stream, q, k, v, out, lse);
    }
}

mstar_status mst_ragged_wrapper_query(mstar_ragged_kind kind, const mst_ragged_wrapper *wrapper,
                                      mstar_ragged_prefill_info *info)
{
    return query_object(kind, wrapper->object, info);
}

/* ---- workspaces -------------------------------------------------------------------------------
 */

/* The environment's size, which must hold what run needs. */
static mstar_status read_workspace_bytes(size_t needed, size_t *bytes)
{
    const char *text = mst_env_get(MST_ENV_WORKSPACE_MB);
    *bytes = needed;
    if (text == NULL)
        return MSTAR_OK;
    char *end = NULL;
    errno = 0;
    long long mib = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || mib < 0 || mib > INT32_MAX)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"%.32s\"; it must be from 0 to %d",
                        mst_env_name(MST_ENV_WORKSPACE_MB), text, INT32_MAX);
    *bytes = (size_t)mib << 20;
    if (*bytes < needed)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s is %lld, which is %zu bytes; attention of this manager needs %zu",
                        mst_env_name(MST_ENV_WORKSPACE_MB), mib, *bytes, needed);
    return MSTAR_OK;
}

static void wrapper_desc(const mst_ragged_store *store, mstar_ragged_prefill_desc *desc)
{
    *desc = store->config.wrapper;
    desc->backend = store->config.backend[0] != '\0' ? store->config.backend : NULL;
}

mstar_status mst_ragged_store_open(mstar_device *device, const mst_ragged_config *config,
                                   mst_ragged_store *store)
{
    memset(store, 0, sizeof *store);
    store->device = device;
    store->config = *config;
    static const mst_attn_kind kinds[] = {MST_ATTN_SELF, MST_ATTN_CROSS, MST_ATTN_PREFIXED};
    mstar_ragged_prefill_desc desc;
    mst_attn_config checked;
    wrapper_desc(store, &desc);
    MST_TRY(mst_attn_config_read(device, kinds[config->kind], &desc, &checked));
    store->sm_scale = checked.sm_scale;
    return read_workspace_bytes(device->backend->attn_scratch_bytes(device, &checked.shape),
                                &store->workspace_bytes);
}

void mst_ragged_store_close(mst_ragged_store *store)
{
    for (int64_t i = 0; i < store->num_wrappers; i++) {
        destroy_object(store->config.kind, store->wrappers[i]->object);
        mst_free(store->wrappers[i]);
    }
    for (int64_t i = 0; i < store->num_workspaces; i++)
        mstar_buffer_destroy(store->workspaces[i].buffer);
    mst_free(store->wrappers);
    mst_free(store->workspaces);
    mst_free(store->claims.items);
    mst_texts_release(&store->texts);
    memset(store, 0, sizeof *store);
}

static mstar_status find_workspace(mst_ragged_store *store, const char *label, int32_t slot,
                                   mstar_buffer **buffer)
{
    for (int64_t i = 0; i < store->num_workspaces; i++) {
        const mst_ragged_workspace *workspace = &store->workspaces[i];
        if (workspace->slot == slot && workspace->label == label) {
            *buffer = workspace->buffer;
            return MSTAR_OK;
        }
    }
    void *memory = store->workspaces;
    MST_TRY(mst_grow(&memory, &store->workspaces_capacity, store->num_workspaces + 1,
                     sizeof *store->workspaces, "workspaces"));
    store->workspaces = memory;
    MST_TRY(mstar_buffer_create(store->device, store->workspace_bytes, buffer));
    store->workspaces[store->num_workspaces++] = (mst_ragged_workspace){label, slot, *buffer};
    return MSTAR_OK;
}

/* ---- wrappers ---------------------------------------------------------------------------------
 */

static mst_ragged_wrapper *look_up(const mst_ragged_store *store, const mstar_bucket_key *bucket,
                                   int32_t slot, const char *label)
{
    for (int64_t i = 0; i < store->num_wrappers; i++) {
        mst_ragged_wrapper *wrapper = store->wrappers[i];
        if (wrapper->slot == slot && wrapper->graph == (bucket != NULL) &&
            strcmp(wrapper->label, label) == 0 &&
            (bucket == NULL || mstar_bucket_key_equal(&wrapper->key, bucket)))
            return wrapper;
    }
    return NULL;
}

static mstar_status fill_wrapper(mst_ragged_store *store, const mstar_bucket_key *bucket,
                                 const char *label, mst_ragged_wrapper *wrapper)
{
    mstar_ragged_prefill_desc desc;
    mstar_buffer *workspace;
    wrapper_desc(store, &desc);
    MST_TRY(mst_texts_keep(&store->texts, label, &wrapper->label));
    if (bucket != NULL) {
        MST_TRY(mst_bucket_key_keep(&store->texts, bucket, &wrapper->key));
        desc.accelerator_graph = 1;
        MST_TRY(mst_ragged_ceilings(&store->config, bucket, &desc.max_num_segments,
                                    &desc.max_total_tokens));
    }
    MST_TRY(find_workspace(store, wrapper->label, wrapper->slot, &workspace));
    MST_TRY(create_object(store->device, store->config.kind, &desc, workspace, &wrapper->object));
    wrapper->info.struct_size = sizeof wrapper->info;
    return query_object(store->config.kind, wrapper->object, &wrapper->info);
}

mstar_status mst_ragged_store_find(mst_ragged_store *store, const mstar_bucket_key *bucket,
                                   int32_t slot, const char *label, mst_ragged_wrapper **wrapper)
{
    *wrapper = look_up(store, bucket, slot, label);
    if (*wrapper != NULL)
        return MSTAR_OK;
    void *memory = store->wrappers;
    MST_TRY(mst_grow(&memory, &store->wrappers_capacity, store->num_wrappers + 1,
                     sizeof *store->wrappers, "wrappers"));
    store->wrappers = memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_ragged_wrapper), "wrapper", &memory));
    mst_ragged_wrapper *made = memory;
    made->graph = bucket != NULL;
    made->slot = slot;
    mstar_status status = fill_wrapper(store, bucket, label, made);
    if (status != MSTAR_OK) {
        destroy_object(store->config.kind, made->object);
        mst_free(made);
        return status;
    }
    store->wrappers[store->num_wrappers++] = made;
    *wrapper = made;
    return MSTAR_OK;
}

static bool has_workspace(const mst_ragged_store *store, int32_t slot, const char *label)
{
    for (int64_t i = 0; i < store->num_workspaces; i++) {
        if (store->workspaces[i].slot == slot && strcmp(store->workspaces[i].label, label) == 0)
            return true;
    }
    return false;
}

/* One wrapper, its record included. */
static mstar_status wrapper_bytes(const mst_ragged_store *store, const mstar_bucket_key *bucket,
                                  size_t *bytes)
{
    static const mst_attn_kind kinds[] = {MST_ATTN_SELF, MST_ATTN_CROSS, MST_ATTN_PREFIXED};
    mstar_ragged_prefill_desc desc;
    wrapper_desc(store, &desc);
    desc.accelerator_graph = 1;
    MST_TRY(mst_ragged_ceilings(&store->config, bucket, &desc.max_num_segments,
                                &desc.max_total_tokens));
    MST_TRY(mst_attn_wrapper_bytes(store->device, kinds[store->config.kind], &desc, bytes));
    *bytes += sizeof(mst_ragged_wrapper);
    return MSTAR_OK;
}

mstar_status mst_ragged_store_growth(const mst_ragged_store *store, const mstar_bucket_key *bucket,
                                     int32_t slot, const mst_label_layout *layouts,
                                     int64_t num_layouts, size_t *bytes)
{
    int64_t wrappers = 0, workspaces = 0;
    size_t each;
    void *memory;
    MST_TRY(wrapper_bytes(store, bucket, &each));
    MST_TRY(mst_alloc_array(num_layouts + 2, sizeof(const char *), "texts", &memory));
    const char **texts = memory;
    for (int64_t i = 0; i < num_layouts; i++) {
        if (look_up(store, bucket, slot, layouts[i].label) != NULL)
            continue;
        texts[wrappers++] = layouts[i].label;
        workspaces += !has_workspace(store, slot, layouts[i].label);
    }
    if (wrappers > 0) {
        texts[wrappers] = bucket->walk;
        texts[wrappers + 1] = bucket->additional_key_info;
    }
    *bytes = mst_texts_growth(&store->texts, texts, num_layouts + 2);
    mst_free(memory);
    *bytes += (size_t)wrappers * each;
    *bytes += (size_t)workspaces * mst_buffer_cost(store->device, store->workspace_bytes);
    int64_t grown = mst_grown(store->wrappers_capacity, store->num_wrappers + wrappers);
    *bytes += (size_t)(grown - store->wrappers_capacity) * sizeof *store->wrappers;
    grown = mst_grown(store->workspaces_capacity, store->num_workspaces + workspaces);
    *bytes += (size_t)(grown - store->workspaces_capacity) * sizeof *store->workspaces;
    return MSTAR_OK;
}

void mst_ragged_store_forget(mst_ragged_store *store, const mstar_lease *lease)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < store->num_wrappers; i++) {
        mst_ragged_wrapper *wrapper = store->wrappers[i];
        if (!wrapper->graph || wrapper->slot != lease->slot ||
            !mstar_bucket_key_equal(&wrapper->key, &lease->key)) {
            store->wrappers[kept++] = wrapper;
            continue;
        }
        destroy_object(store->config.kind, wrapper->object);
        mst_free(wrapper);
    }
    store->num_wrappers = kept;
}

size_t mst_ragged_store_bytes(const mst_ragged_store *store)
{
    size_t bytes =
        (size_t)store->wrappers_capacity * sizeof *store->wrappers +
        (size_t)store->workspaces_capacity * sizeof *store->workspaces +
        (size_t)store->claims.capacity * sizeof *store->claims.items +
        (size_t)store->num_workspaces * mst_buffer_cost(store->device, store->workspace_bytes) +
        mst_texts_bytes(&store->texts);
    for (int64_t i = 0; i < store->num_wrappers; i++) {
        mstar_ragged_prefill_info info = {.struct_size = sizeof info};
        if (query_object(store->config.kind, store->wrappers[i]->object, &info) == MSTAR_OK)
            bytes += info.plan_bytes + sizeof(mst_attn_wrapper) + sizeof(mst_ragged_wrapper) +
                     (store->device->backend->kind == MSTAR_DEVICE_CPU ? sizeof(mstar_stream) : 0);
    }
    return bytes;
}
