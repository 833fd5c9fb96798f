/*
 * wrapper.c - create, plan, query and destroy of the three public wrappers.
 *
 * The three public types are names of one struct, mst_attn_wrapper, and are never completed: the
 * compiler keeps a cross wrapper out of a prefixed call while the code exists once. Graph mode
 * takes its memory and is planned at its ceilings here; a captured run is then right before and
 * after any plan.
 */
#include <string.h>

#include "attn/attn.h"

#define CORE(wrapper) ((mst_attn_wrapper *)(void *)(wrapper))
#define CORE_CONST(wrapper) ((const mst_attn_wrapper *)(const void *)(wrapper))

static mstar_status workspace_query(mstar_device *device, mst_attn_kind kind,
                                    const mstar_ragged_prefill_desc *desc, size_t *workspace_bytes)
{
    mst_attn_config config;
    MST_TRY(mst_attn_config_read(device, kind, desc, &config));
    MST_TRY(mst_check_not_null("workspace_bytes", workspace_bytes));
    *workspace_bytes = device->backend->attn_scratch_bytes(device, &config.shape);
    return MSTAR_OK;
}

mstar_status mst_attn_wrapper_bytes(const mstar_device *device, mst_attn_kind kind,
                                    const mstar_ragged_prefill_desc *desc, size_t *bytes)
{
    mst_attn_config config;
    MST_TRY(mst_attn_config_read(device, kind, desc, &config));
    MST_TRY(mst_attn_plan_bytes(device, &config, bytes));
    *bytes += sizeof(mst_attn_wrapper);
    if (device->backend->kind == MSTAR_DEVICE_CPU)
        *bytes += sizeof(mstar_stream);
    return MSTAR_OK;
}

static void destroy(mst_attn_wrapper *wrapper)
{
    if (wrapper == NULL)
        return;
    mstar_device *device = wrapper->device;
    mst_attn_plan_free(&wrapper->plan);
    if (wrapper->image != NULL)
        device->backend->attn_image_destroy(device, wrapper->image);
    if (wrapper->workspace_is_own && wrapper->workspace != NULL)
        device->backend->memory_free(device, wrapper->workspace);
    mstar_stream_destroy(wrapper->stream);
    mst_device_release(device);
    mst_free(wrapper);
}

static mstar_status take_workspace(mst_attn_wrapper *wrapper, void *workspace,
                                   size_t workspace_bytes)
{
    mstar_device *device = wrapper->device;
    size_t needed = device->backend->attn_scratch_bytes(device, &wrapper->config.shape);
    wrapper->workspace_bytes = needed;
    if (workspace == NULL) {
        wrapper->workspace_is_own = true;
        return needed == 0 ? MSTAR_OK
                           : device->backend->memory_alloc(device, needed, &wrapper->workspace);
    }
    if (workspace_bytes < needed)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "workspace_bytes is %zu; this desc needs %zu (see workspace_query)",
                        workspace_bytes, needed);
    if ((uintptr_t)workspace % MST_CACHE_LINE != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "workspace is %p; it must be aligned to %d bytes",
                        workspace, MST_CACHE_LINE);
    if (device->backend->memory_is_own != NULL &&
        !device->backend->memory_is_own(device, workspace))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "workspace is %p, which is no memory of the wrapper's device, %s:%d",
                        workspace, device->backend->name, device->index);
    wrapper->workspace = workspace;
    return MSTAR_OK;
}

static mstar_status make_plan_and_send(mst_attn_wrapper *wrapper, mstar_stream *stream,
                                       const mst_attn_layout *layout, bool causal)
{
    mst_attn_plan *plan = &wrapper->plan;
    mstar_device *device = wrapper->device;
    const mst_backend *backend = device->backend;
    if (wrapper->image != NULL)
        MST_TRY(backend->attn_image_begin(stream, device, wrapper->image, layout->num_segments,
                                          layout->num_tokens));
    MST_TRY(mst_attn_plan_make(plan, device, &wrapper->config, layout, causal));
    if (wrapper->image == NULL)
        return MSTAR_OK;
    mst_attn_call call = {.shape = &wrapper->config.shape,
                          .causal = plan->causal,
                          .q_offsets = plan->q_offsets,
                          .kv_offsets = plan->kv_offsets,
                          .items = plan->items,
                          .num_items = plan->num_items};
    mstar_status status =
        backend->attn_image_end(stream, device, wrapper->image, &call, plan->num_tokens);
    plan->ready = status == MSTAR_OK; /* a device that fails here has failed for good */
    return status;
}

/* Plans, and sends the plan to a device that keeps an image of it. */
static mstar_status make_plan(mst_attn_wrapper *wrapper, mstar_stream *stream,
                              const mst_attn_layout *layout, bool causal)
{
    const mstar_device *device = wrapper->device;
    if (device->backend->range == NULL)
        return make_plan_and_send(wrapper, stream, layout, causal);
    device->backend->range(device, "mstar plan");
    mstar_status status = make_plan_and_send(wrapper, stream, layout, causal);
    device->backend->range(device, NULL);
    return status;
}

static mstar_status make_image(mst_attn_wrapper *wrapper)
{
    const mst_attn_config *config = &wrapper->config;
    mstar_device *device = wrapper->device;
    if (device->backend->attn_image_create == NULL)
        return MSTAR_OK;
    return device->backend->attn_image_create(device, &config->shape, config->max_num_segments,
                                              config->max_total_tokens, config->max_total_kv_tokens,
                                              &wrapper->image);
}

/* Graph mode is planned at its ceilings, from its own offset vectors. */
static mstar_status prime(mst_attn_wrapper *wrapper)
{
    const mst_attn_config *config = &wrapper->config;
    mst_attn_plan *plan = &wrapper->plan;
    mst_attn_spread(config->max_total_tokens, config->max_num_segments, plan->q_offsets);
    if (plan->kv_offsets != plan->q_offsets)
        mst_attn_spread(config->max_total_kv_tokens, config->max_num_segments, plan->kv_offsets);
    mst_attn_layout layout = {plan->q_offsets, plan->kv_offsets, config->max_num_segments,
                              config->max_total_tokens, config->max_total_kv_tokens};
    return make_plan(wrapper, NULL, &layout, false);
}

static mstar_status create(mstar_device *device, mst_attn_kind kind,
                           const mstar_ragged_prefill_desc *desc, void *workspace,
                           size_t workspace_bytes, void **created)
{
    mst_attn_config config;
    void *memory = NULL;
    mstar_status status;
    MST_TRY(mst_capture_refuse("create of a wrapper"));
    MST_TRY(mst_attn_config_read(device, kind, desc, &config));
    MST_TRY(mst_check_not_null("wrapper", created));
    MST_TRY(mst_alloc_zero(sizeof(mst_attn_wrapper), "attention wrapper", &memory));
    mst_attn_wrapper *wrapper = memory;
    wrapper->config = config;
    wrapper->device = device;
    mst_device_retain(device);
    MST_TRY_GOTO(take_workspace(wrapper, workspace, workspace_bytes), fail);
    if (device->backend->kind == MSTAR_DEVICE_CPU)
        MST_TRY_GOTO(mstar_stream_create(device, -1, &wrapper->stream), fail);
    MST_TRY_GOTO(mst_attn_plan_reserve(&wrapper->plan, device, &wrapper->config), fail);
    MST_TRY_GOTO(make_image(wrapper), fail);
    if (config.graph)
        MST_TRY_GOTO(prime(wrapper), fail);
    device->backend->attn_kernel(device, &wrapper->config.shape, &wrapper->kernel,
                                 &wrapper->kernel_reason);
    *created = wrapper;
    return MSTAR_OK;
fail:
    destroy(wrapper);
    return status;
}

static mstar_status plan_layout(mst_attn_wrapper *wrapper, mstar_stream *stream,
                                const mst_attn_layout *layout, int causal)
{
    MST_TRY(mst_capture_refuse("plan"));
    MST_TRY(mst_check_range("causal", causal, 0, 1));
    MST_TRY(mst_attn_pick_stream(wrapper, stream, &stream));
    MST_TRY(make_plan(wrapper, stream, layout, causal == 1));
    wrapper->plans++;
    return MSTAR_OK;
}

static mstar_status plan_self(mst_attn_wrapper *wrapper, mstar_stream *stream,
                              const int32_t *cu_seqlens, int64_t num_segments, int causal)
{
    mst_attn_layout layout;
    MST_TRY(mst_check_not_null("wrapper", wrapper));
    MST_TRY(mst_attn_layout_self(&wrapper->config, cu_seqlens, num_segments, &layout));
    return plan_layout(wrapper, stream, &layout, causal);
}

static mstar_status plan_pair(mst_attn_wrapper *wrapper, mstar_stream *stream,
                              const int32_t *q_cu_seqlens, int64_t q_num_segments,
                              const int32_t *kv_cu_seqlens, int64_t kv_num_segments, int causal)
{
    mst_attn_layout layout;
    MST_TRY(mst_check_not_null("wrapper", wrapper));
    MST_TRY(mst_attn_layout_pair(&wrapper->config, q_cu_seqlens, q_num_segments, kv_cu_seqlens,
                                 kv_num_segments, &layout));
    return plan_layout(wrapper, stream, &layout, causal);
}

static mstar_status query(const mst_attn_wrapper *wrapper, mstar_ragged_prefill_info *info)
{
    MST_TRY(mst_check_not_null("wrapper", wrapper));
    const mst_attn_config *config = &wrapper->config;
    const mst_attn_plan *plan = &wrapper->plan;
    bool planned = wrapper->plans > 0; /* priming is not the caller's plan */
    mstar_ragged_prefill_info full;
    memset(&full, 0, sizeof full);
    full.struct_size = (uint32_t)sizeof full;
    full.num_qo_heads = config->shape.num_qo_heads;
    full.num_kv_heads = config->shape.num_kv_heads;
    full.head_dim = config->shape.head_dim;
    full.padded_head_dim = config->padded_head_dim;
    full.accelerator_graph = config->graph ? 1 : 0;
    full.sm_scale = config->sm_scale;
    full.q_data_type = config->shape.dtype;
    full.kv_layout = config->kv_layout;
    full.max_num_segments = config->max_num_segments;
    full.max_total_tokens = config->max_total_tokens;
    full.max_total_kv_tokens = config->max_total_kv_tokens;
    full.num_segments = planned ? plan->num_segments : 0;
    full.num_tokens = planned ? plan->num_tokens : 0;
    full.num_kv_tokens = planned ? plan->num_kv_tokens : 0;
    full.num_work_items = planned ? plan->num_items : 0;
    full.plans = wrapper->plans;
    full.padded_copies = wrapper->padded_copies;
    full.workspace_bytes = wrapper->workspace_bytes;
    full.plan_bytes = plan->block_bytes;
    full.kernel = wrapper->kernel;
    full.kernel_reason = wrapper->kernel_reason;
    if (wrapper->image != NULL)
        wrapper->device->backend->attn_planned(wrapper->device, wrapper->image, &full.kernel,
                                               &full.kernel_reason);
    full.q_offsets = config->graph ? plan->q_offsets : NULL;
    full.kv_offsets = config->graph ? plan->kv_offsets : NULL;
    full.token_counter = config->graph ? &plan->num_tokens : NULL;
    full.kv_token_counter = config->graph ? &plan->num_kv_tokens : NULL;
    full.segment_counter = config->graph ? &plan->num_segments : NULL;
    return mst_info_write("info", &full, sizeof full, info);
}

/* ---- the public names ------------------------------------------------------------------------ */

mstar_status mstar_ragged_prefill_workspace_query(mstar_device *device,
                                                  const mstar_ragged_prefill_desc *desc,
                                                  size_t *workspace_bytes)
{
    return workspace_query(device, MST_ATTN_SELF, desc, workspace_bytes);
}

mstar_status mstar_ragged_cross_prefill_workspace_query(mstar_device *device,
                                                        const mstar_ragged_cross_prefill_desc *desc,
                                                        size_t *workspace_bytes)
{
    return workspace_query(device, MST_ATTN_CROSS, desc, workspace_bytes);
}

mstar_status mstar_prefixed_prefill_workspace_query(mstar_device *device,
                                                    const mstar_prefixed_prefill_desc *desc,
                                                    size_t *workspace_bytes)
{
    return workspace_query(device, MST_ATTN_PREFIXED, desc, workspace_bytes);
}

mstar_status mstar_ragged_prefill_create(mstar_device *device,
                                         const mstar_ragged_prefill_desc *desc, void *workspace,
                                         size_t workspace_bytes, mstar_ragged_prefill **wrapper)
{
    void *created = NULL;
    MST_TRY(mst_check_not_null("wrapper", wrapper));
    MST_TRY(create(device, MST_ATTN_SELF, desc, workspace, workspace_bytes, &created));
    *wrapper = created;
    return MSTAR_OK;
}

mstar_status mstar_ragged_cross_prefill_create(mstar_device *device,
                                               const mstar_ragged_cross_prefill_desc *desc,
                                               void *workspace, size_t workspace_bytes,
                                               mstar_ragged_cross_prefill **wrapper)
{
    void *created = NULL;
    MST_TRY(mst_check_not_null("wrapper", wrapper));
    MST_TRY(create(device, MST_ATTN_CROSS, desc, workspace, workspace_bytes, &created));
    *wrapper = created;
    return MSTAR_OK;
}

mstar_status mstar_prefixed_prefill_create(mstar_device *device,
                                           const mstar_prefixed_prefill_desc *desc, void *workspace,
                                           size_t workspace_bytes, mstar_prefixed_prefill **wrapper)
{
    void *created = NULL;
    MST_TRY(mst_check_not_null("wrapper", wrapper));
    MST_TRY(create(device, MST_ATTN_PREFIXED, desc, workspace, workspace_bytes, &created));
    *wrapper = created;
    return MSTAR_OK;
}

void mstar_ragged_prefill_destroy(mstar_ragged_prefill *wrapper)
{
    destroy(CORE(wrapper));
}

void mstar_ragged_cross_prefill_destroy(mstar_ragged_cross_prefill *wrapper)
{
    destroy(CORE(wrapper));
}

void mstar_prefixed_prefill_destroy(mstar_prefixed_prefill *wrapper)
{
    destroy(CORE(wrapper));
}

mstar_status mstar_ragged_prefill_plan(mstar_ragged_prefill *wrapper, mstar_stream *stream,
                                       const int32_t *cu_seqlens, int64_t num_segments, int causal)
{
    return plan_self(CORE(wrapper), stream, cu_seqlens, num_segments, causal);
}

mstar_status mstar_ragged_cross_prefill_plan(mstar_ragged_cross_prefill *wrapper,
                                             mstar_stream *stream, const int32_t *q_cu_seqlens,
                                             int64_t q_num_segments, const int32_t *kv_cu_seqlens,
                                             int64_t kv_num_segments)
{
    return plan_pair(CORE(wrapper), stream, q_cu_seqlens, q_num_segments, kv_cu_seqlens,
                     kv_num_segments, 0);
}

mstar_status mstar_prefixed_prefill_plan(mstar_prefixed_prefill *wrapper, mstar_stream *stream,
                                         const int32_t *q_cu_seqlens, int64_t q_num_segments,
                                         const int32_t *kv_cu_seqlens, int64_t kv_num_segments,
                                         int causal)
{
    return plan_pair(CORE(wrapper), stream, q_cu_seqlens, q_num_segments, kv_cu_seqlens,
                     kv_num_segments, causal);
}

mstar_status mstar_ragged_prefill_run(mstar_ragged_prefill *wrapper, mstar_stream *stream,
                                      const mstar_tensor *q, const mstar_tensor *k,
                                      const mstar_tensor *v, const mstar_tensor *out,
                                      const mstar_tensor *lse)
{
    return mst_capture_note(stream, mst_attn_run(CORE(wrapper), stream, q, k, v, out, lse));
}

mstar_status mstar_ragged_cross_prefill_run(mstar_ragged_cross_prefill *wrapper,
                                            mstar_stream *stream, const mstar_tensor *q,
                                            const mstar_tensor *k, const mstar_tensor *v,
                                            const mstar_tensor *out, const mstar_tensor *lse)
{
    return mst_capture_note(stream, mst_attn_run(CORE(wrapper), stream, q, k, v, out, lse));
}

mstar_status mstar_prefixed_prefill_run(mstar_prefixed_prefill *wrapper, mstar_stream *stream,
                                        const mstar_tensor *q, const mstar_tensor *k,
                                        const mstar_tensor *v, const mstar_tensor *out,
                                        const mstar_tensor *lse)
{
    return mst_capture_note(stream, mst_attn_run(CORE(wrapper), stream, q, k, v, out, lse));
}

mstar_status mstar_ragged_prefill_query(const mstar_ragged_prefill *wrapper,
                                        mstar_ragged_prefill_info *info)
{
    return query(CORE_CONST(wrapper), info);
}

mstar_status mstar_ragged_cross_prefill_query(const mstar_ragged_cross_prefill *wrapper,
                                              mstar_ragged_prefill_info *info)
{
    return query(CORE_CONST(wrapper), info);
}

mstar_status mstar_prefixed_prefill_query(const mstar_prefixed_prefill *wrapper,
                                          mstar_ragged_prefill_info *info)
{
    return query(CORE_CONST(wrapper), info);
}
