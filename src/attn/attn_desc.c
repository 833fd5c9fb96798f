/*
 * attn_desc.c - defaults and checks of the wrappers' desc, and mstar_padded_head_dim.
 *
 * Every check is made here, once, at create: what a mst_attn_config holds is right. Fields that are
 * reserved for later are refused by name with MSTAR_NOT_SUPPORTED, so that setting one is never
 * silently without effect; mistakes are MSTAR_INVALID_ARGUMENT.
 */
#include <math.h>
#include <string.h>

#include "attn/attn.h"

#define MAX_HEADS 4096
#define MAX_HEAD_DIM 256
/* Kernels multiply it by log2 e in f32, which must not become an infinity: 0 * inf is NaN. */
#define MAX_SCALE 0x1p127

mstar_status mstar_padded_head_dim(int32_t head_dim, int32_t *padded)
{
    static const int32_t supported[] = {64, 128, 256};
    MST_TRY(mst_check_not_null("padded", padded));
    for (size_t i = 0; i < sizeof supported / sizeof supported[0]; i++) {
        if (head_dim <= supported[i]) {
            *padded = supported[i];
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_INVALID_ARGUMENT, "head_dim is %d; the largest supported is %d", head_dim,
                    MAX_HEAD_DIM);
}

void mstar_ragged_prefill_desc_init(mstar_ragged_prefill_desc *desc)
{
    if (desc == NULL)
        return;
    memset(desc, 0, sizeof *desc);
    desc->struct_size = (uint32_t)sizeof *desc;
    desc->max_num_segments = -1;
    desc->max_total_tokens = -1;
    desc->max_total_kv_tokens = -1;
    desc->q_data_type = MSTAR_DTYPE_BF16;
    desc->sm_scale = (double)NAN;
    desc->kv_layout = MSTAR_KV_NHD;
    desc->window_left = -1;
    desc->window_right = -1;
    desc->value_head_dim = -1;
    desc->k_scale = (double)NAN;
    desc->v_scale = (double)NAN;
}

void mstar_ragged_cross_prefill_desc_init(mstar_ragged_cross_prefill_desc *desc)
{
    mstar_ragged_prefill_desc_init(desc);
}

void mstar_prefixed_prefill_desc_init(mstar_prefixed_prefill_desc *desc)
{
    mstar_ragged_prefill_desc_init(desc);
}

static mstar_status check_reserved(const mstar_ragged_prefill_desc *desc)
{
    if (desc->value_head_dim != -1)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "desc.value_head_dim is %d; it is reserved and must be -1",
                        desc->value_head_dim);
    if (desc->num_sinks != 0)
        return mst_fail(MSTAR_NOT_SUPPORTED, "desc.num_sinks is %d; it is reserved and must be 0",
                        desc->num_sinks);
    if (!(desc->logits_soft_cap >= 0.0 && desc->logits_soft_cap <= 0.0))
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "desc.logits_soft_cap is %g; it is reserved and must be 0",
                        desc->logits_soft_cap);
    if (!isnan(desc->k_scale))
        return mst_fail(MSTAR_NOT_SUPPORTED, "desc.k_scale is %g; it is reserved and must be NaN",
                        desc->k_scale);
    if (!isnan(desc->v_scale))
        return mst_fail(MSTAR_NOT_SUPPORTED, "desc.v_scale is %g; it is reserved and must be NaN",
                        desc->v_scale);
    return MSTAR_OK;
}

static mstar_status check_heads(const mstar_ragged_prefill_desc *desc)
{
    MST_TRY(mst_check_range("desc.num_qo_heads", desc->num_qo_heads, 1, MAX_HEADS));
    MST_TRY(mst_check_range("desc.num_kv_heads", desc->num_kv_heads, 1, desc->num_qo_heads));
    if (desc->num_qo_heads % desc->num_kv_heads != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.num_kv_heads is %d; it must divide num_qo_heads, which is %d",
                        desc->num_kv_heads, desc->num_qo_heads);
    return mst_check_range("desc.head_dim", desc->head_dim, 1, MAX_HEAD_DIM);
}

static mstar_status read_dtype(const mstar_ragged_prefill_desc *desc, mst_attn_config *config)
{
    mstar_dtype dtype = desc->q_data_type;
    if (dtype == MSTAR_DTYPE_F8_E4M3 || dtype == MSTAR_DTYPE_F8_E5M2)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "desc.q_data_type is %s; fp8 is reserved, and accepted are bf16, f16 and "
                        "f32",
                        mstar_dtype_name(dtype));
    if (!mst_dtype_is_compute(dtype))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.q_data_type is %s (%d); accepted are bf16, f16 and f32",
                        mstar_dtype_name(dtype), (int)dtype);
    config->shape.dtype = dtype;
    return MSTAR_OK;
}

static mstar_status read_scale(const mstar_ragged_prefill_desc *desc, mst_attn_config *config)
{
    /* the true head dim, not the padded one */
    double scale = isnan(desc->sm_scale) ? 1.0 / sqrt((double)desc->head_dim) : desc->sm_scale;
    if (!(fabs(scale) <= MAX_SCALE))
        return mst_fail(
            MSTAR_INVALID_ARGUMENT,
            "desc.sm_scale is %g; it must be NaN (derived) or finite, at most 2^127 = %g "
            "either way",
            scale, MAX_SCALE);
    config->sm_scale = scale;
    config->shape.sm_scale = (float)scale;
    return MSTAR_OK;
}

/* A window that reaches past both ends of any segment becomes "no limit", so that a kernel's own
 * arithmetic on it stays far from overflow. */
static int64_t normal_window(int64_t window)
{
    return window > 2 * (int64_t)INT32_MAX ? -1 : window;
}

static mstar_status read_backend(const mstar_device *device, const char *name,
                                 mst_attn_config *config)
{
    config->shape.reference = false;
    config->shape.wanted = MST_ATTN_ANY;
    if (name == NULL || strcmp(name, "auto") == 0 || strcmp(name, "native") == 0)
        return MSTAR_OK;
    if (strcmp(name, "reference") == 0) {
        config->shape.reference = true;
        return MSTAR_OK;
    }
    bool on_gpu = device->backend->kind == MSTAR_DEVICE_CUDA;
    if (on_gpu && (strcmp(name, "fa2") == 0 || strcmp(name, "fa3") == 0)) {
        const char *symbol, *reason;
        config->shape.wanted = name[2] == '2' ? MST_ATTN_FA2 : MST_ATTN_FA3;
        device->backend->attn_kernel(device, &config->shape, &symbol, &reason);
        if (symbol == NULL)
            return mst_fail(MSTAR_NOT_SUPPORTED,
                            "desc.backend is \"%s\": %s; accepted are auto, native and reference",
                            name, reason);
        return MSTAR_OK;
    }
    if (strcmp(name, "fa2") == 0 || strcmp(name, "fa3") == 0)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "desc.backend is \"%s\", which exists on a GPU only, and the device is %s; "
                        "accepted are auto, native and reference",
                        name, device->backend->name);
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "desc.backend is \"%.64s\"; accepted are auto, native, reference, fa2 and fa3",
                    name);
}

static mstar_status read_ceilings(const mstar_ragged_prefill_desc *desc, mst_attn_config *config)
{
    config->max_num_segments = -1;
    config->max_total_tokens = -1;
    config->max_total_kv_tokens = -1;
    if (!config->graph) /* without effect in eager mode */
        return MSTAR_OK;
    if (desc->max_num_segments == -1)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.max_num_segments is -1, not given; graph mode needs it, from 1 to %d",
                        INT32_MAX - 1);
    if (desc->max_total_tokens == -1)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.max_total_tokens is -1, not given; graph mode needs it, from 0 to %d",
                        INT32_MAX);
    MST_TRY(mst_check_range("desc.max_num_segments", desc->max_num_segments, 1, INT32_MAX - 1));
    MST_TRY(mst_check_range("desc.max_total_tokens", desc->max_total_tokens, 0, INT32_MAX));
    config->max_num_segments = desc->max_num_segments;
    config->max_total_tokens = desc->max_total_tokens;
    config->max_total_kv_tokens = desc->max_total_tokens;
    if (config->kind != MST_ATTN_SELF && desc->max_total_kv_tokens != -1) {
        MST_TRY(
            mst_check_range("desc.max_total_kv_tokens", desc->max_total_kv_tokens, 0, INT32_MAX));
        config->max_total_kv_tokens = desc->max_total_kv_tokens;
    }
    return MSTAR_OK;
}

mstar_status mst_attn_config_read(const mstar_device *device, mst_attn_kind kind,
                                  const mstar_ragged_prefill_desc *desc, mst_attn_config *config)
{
    mstar_ragged_prefill_desc full;
    mstar_ragged_prefill_desc_init(&full);
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("desc", desc));
    MST_TRY(mst_desc_read("desc", desc, &full, sizeof full));

    mst_attn_config read;
    memset(&read, 0, sizeof read);
    read.kind = kind;
    MST_TRY(check_heads(&full));
    MST_TRY(mst_check_range("desc.accelerator_graph", full.accelerator_graph, 0, 1));
    MST_TRY(read_dtype(&full, &read));
    MST_TRY(read_scale(&full, &read));
    MST_TRY(mst_check_range("desc.kv_layout", (int64_t)full.kv_layout, MSTAR_KV_NHD, MSTAR_KV_HND));
    MST_TRY(mst_check_range("desc.return_lse", full.return_lse, 0, 1));
    MST_TRY(mst_check_range("desc.window_left", full.window_left, -1, INT64_MAX));
    MST_TRY(mst_check_range("desc.window_right", full.window_right, -1, INT64_MAX));
    MST_TRY(check_reserved(&full));
    read.shape.num_qo_heads = full.num_qo_heads;
    read.shape.num_kv_heads = full.num_kv_heads;
    read.shape.head_dim = full.head_dim;
    read.shape.window_left = normal_window(full.window_left);
    read.shape.window_right = normal_window(full.window_right);
    MST_TRY(mstar_padded_head_dim(full.head_dim, &read.padded_head_dim));
    MST_TRY(read_backend(device, full.backend, &read));
    read.graph = full.accelerator_graph == 1;
    MST_TRY(read_ceilings(&full, &read));
    read.kv_layout = full.kv_layout;
    read.return_lse = full.return_lse == 1;
    *config = read;
    return MSTAR_OK;
}
