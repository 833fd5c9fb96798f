/*
 * ragged_config.c - a manager's desc: defaults, checks, what a deployment may change, heads of a
 * rank, ceilings of a bucket.
 *
 * Heads in a desc are the whole model's and stay so: what a rank computes is derived, so that
 * nothing is ever divided twice.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step/step.h"

void mstar_ragged_manager_desc_init(mstar_ragged_manager_desc *desc)
{
    if (desc == NULL)
        return;
    memset(desc, 0, sizeof *desc);
    desc->struct_size = (uint32_t)sizeof *desc;
    desc->kind = MSTAR_RAGGED_SELF;
    desc->tp_world_size = 1;
    desc->sm_scale = (double)NAN;
    desc->max_segments_per_request = 1;
    desc->max_tokens_per_request = -1;
    desc->dtype = -1;
    desc->engine_dtype = -1;
    desc->kv_layout = MSTAR_KV_NHD;
    desc->window_left = -1;
    desc->window_right = -1;
}

/* ---- what a deployment may change -------------------------------------------------------------
 */

static mstar_status read_count(const char *name, const char *value, int64_t *count)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || number < 1 || number > INT32_MAX)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"%.32s\"; it must be from 1 to %d", name,
                        value, INT32_MAX);
    *count = number;
    return MSTAR_OK;
}

mstar_status mstar_ragged_manager_desc_override(mstar_ragged_manager_desc *desc, const char *name,
                                                const char *value)
{
    MST_TRY(mst_check_not_null("desc", desc));
    MST_TRY(mst_check_not_null("name", name));
    MST_TRY(mst_check_not_null("value", value));
    if (strcmp(name, "flashinfer_backend") == 0) {
        desc->flashinfer_backend = value;
        return MSTAR_OK;
    }
    if (strcmp(name, "max_segments_per_request") == 0)
        return read_count(name, value, &desc->max_segments_per_request);
    if (strcmp(name, "max_tokens_per_request") == 0)
        return read_count(name, value, &desc->max_tokens_per_request);
    return mst_fail(MSTAR_NOT_FOUND,
                    "\"%.64s\" cannot be overridden; flashinfer_backend, max_segments_per_request "
                    "and max_tokens_per_request can",
                    name);
}

/* ---- checks -----------------------------------------------------------------------------------
 */

static mstar_status read_dtype(const mstar_ragged_manager_desc *desc, mstar_dtype *dtype)
{
    int32_t chosen = desc->dtype >= 0 ? desc->dtype : desc->engine_dtype;
    if (chosen < 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.dtype and desc.engine_dtype are both -1; one must be given");
    *dtype = (mstar_dtype)chosen;
    return MSTAR_OK;
}

static mstar_status read_heads(const mstar_ragged_manager_desc *desc, int32_t *qo, int32_t *kv)
{
    int32_t world = desc->tp_world_size;
    MST_TRY(mst_check_range("desc.tp_world_size", world, 1, INT32_MAX));
    MST_TRY(mst_check_range("desc.num_qo_heads", desc->num_qo_heads, 1, INT32_MAX));
    MST_TRY(mst_check_range("desc.num_kv_heads", desc->num_kv_heads, 1, INT32_MAX));
    bool kv_fits = desc->num_kv_heads <= world || desc->num_kv_heads % world == 0;
    if (desc->num_qo_heads % world != 0 || !kv_fits)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.%s is %d; it must be a multiple of tp_world_size %d",
                        kv_fits ? "num_qo_heads" : "num_kv_heads",
                        kv_fits ? desc->num_qo_heads : desc->num_kv_heads, world);
    *qo = desc->num_qo_heads / world;
    *kv = desc->num_kv_heads <= world ? 1 : desc->num_kv_heads / world;
    return MSTAR_OK;
}

mstar_status mst_ragged_config_read(const mstar_ragged_manager_desc *given,
                                    mst_ragged_config *config)
{
    mstar_ragged_manager_desc desc;
    mstar_dtype dtype = MSTAR_DTYPE_BF16;
    mstar_ragged_manager_desc_init(&desc);
    MST_TRY(mst_check_not_null("desc", given));
    MST_TRY(mst_desc_read("desc", given, &desc, sizeof desc));
    memset(config, 0, sizeof *config);
    MST_TRY(
        mst_check_range("desc.kind", (int64_t)desc.kind, MSTAR_RAGGED_SELF, MSTAR_RAGGED_PREFIXED));
    MST_TRY(mst_check_range("desc.max_segments_per_request", desc.max_segments_per_request, 1,
                            INT32_MAX));
    MST_TRY(
        mst_check_range("desc.max_tokens_per_request", desc.max_tokens_per_request, -1, INT32_MAX));
    MST_TRY(read_dtype(&desc, &dtype));
    config->kind = desc.kind;
    config->max_segments_per_request = desc.max_segments_per_request;
    config->max_tokens_per_request = desc.max_tokens_per_request;
    const char *backend = desc.flashinfer_backend != NULL ? desc.flashinfer_backend : "";
    if (strlen(backend) >= sizeof config->backend)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.flashinfer_backend is \"%.64s\"; it is not a backend's name",
                        backend);
    (void)snprintf(config->backend, sizeof config->backend, "%s", backend);

    mstar_ragged_prefill_desc *wrapper = &config->wrapper;
    mstar_ragged_prefill_desc_init(wrapper);
    MST_TRY(read_heads(&desc, &wrapper->num_qo_heads, &wrapper->num_kv_heads));
    wrapper->head_dim = desc.head_dim;
    wrapper->q_data_type = dtype;
    wrapper->sm_scale = desc.sm_scale;
    wrapper->kv_layout = desc.kv_layout;
    wrapper->return_lse = desc.return_lse;
    wrapper->window_left = desc.window_left;
    wrapper->window_right = desc.window_right;
    return MSTAR_OK;
}

/* ---- ceilings ---------------------------------------------------------------------------------
 */

mstar_status mst_ragged_ceilings(const mst_ragged_config *config, const mstar_bucket_key *bucket,
                                 int64_t *max_num_segments, int64_t *max_total_tokens)
{
    MST_TRY(mst_check_range("bucket.bs", bucket->bs, 1, INT32_MAX));
    MST_TRY(mst_check_range("bucket.num_tokens", bucket->num_tokens, 0, INT32_MAX));
    /* none of the factors is above INT32_MAX */
    int64_t segments = bucket->bs * config->max_segments_per_request;
    int64_t tokens = mst_max_i64(bucket->num_tokens,
                                 bucket->bs * mst_max_i64(config->max_tokens_per_request, 0));
    if (segments > INT32_MAX || tokens > INT32_MAX)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "bucket of bs %lld and %lld tokens: its ceilings would be %lld segments "
                        "and %lld tokens; the largest is %d",
                        (long long)bucket->bs, (long long)bucket->num_tokens, (long long)segments,
                        (long long)tokens, INT32_MAX);
    *max_num_segments = segments;
    *max_total_tokens = tokens;
    return MSTAR_OK;
}

mstar_status mstar_ragged_manager_ceilings(const mstar_ragged_manager_desc *desc,
                                           const mstar_bucket_key *bucket,
                                           int64_t *max_num_segments, int64_t *max_total_tokens)
{
    mst_ragged_config config;
    MST_TRY(mst_check_not_null("bucket", bucket));
    MST_TRY(mst_check_not_null("max_num_segments", max_num_segments));
    MST_TRY(mst_check_not_null("max_total_tokens", max_total_tokens));
    MST_TRY(mst_ragged_config_read(desc, &config));
    return mst_ragged_ceilings(&config, bucket, max_num_segments, max_total_tokens);
}
