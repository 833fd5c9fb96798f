/*
 * run.c - one call over the plan in force: checks of the five tensors, then the backend's call.
 *
 * Every row the plan names is known to lie inside the tensors before a pointer leaves here, so a
 * kernel has nothing left to check. Nothing is allocated and nothing of the wrapper changes.
 */
#include <string.h>

#include "attn/attn.h"

/* What a side of the plan asks of its tensors' rows. */
typedef struct row_rule {
    int64_t planned;
    const char *planned_name;
    int64_t ceiling; /* -1 none */
    const char *ceiling_name;
} row_rule;

static mstar_status check_rows(const char *name, const mstar_tensor *tensor, int32_t dim,
                               const row_rule *rule)
{
    int64_t rows = tensor->shape[dim];
    if (rows < rule->planned)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.shape[%d] is %lld; the plan has %lld %s", name,
                        dim, (long long)rows, (long long)rule->planned, rule->planned_name);
    if (rule->ceiling >= 0 && rows > rule->ceiling)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.shape[%d] is %lld; the ceiling %s is %lld",
                        name, dim, (long long)rows, rule->ceiling_name, (long long)rule->ceiling);
    return MSTAR_OK;
}

static mstar_status check_place(const mst_attn_wrapper *wrapper, const char *name,
                                const mstar_tensor *tensor)
{
    const mstar_device *device = wrapper->device;
    if (tensor->device_kind != device->backend->kind || tensor->device_index != device->index)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s is on device kind %d index %d; the wrapper is on kind %d index %d",
                        name, (int)tensor->device_kind, tensor->device_index,
                        (int)device->backend->kind, device->index);
    return MSTAR_OK;
}

/* One of q, k, v and out: 3-D, the desc's dtype, heads and head dim, rows at least the plan's. */
static mstar_status check_operand(const mst_attn_wrapper *wrapper, const char *name,
                                  const mstar_tensor *tensor, int32_t row_dim, int32_t num_heads,
                                  const row_rule *rule)
{
    const mst_attn_shape *shape = &wrapper->config.shape;
    MST_TRY(mst_tensor_check_compute(name, tensor, 3));
    MST_TRY(check_place(wrapper, name, tensor));
    if (tensor->dtype != shape->dtype)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.dtype is %s; the desc's q_data_type is %s",
                        name, mstar_dtype_name(tensor->dtype), mstar_dtype_name(shape->dtype));
    MST_TRY(mst_tensor_check_dim(name, tensor, 1 - row_dim, num_heads));
    MST_TRY(mst_tensor_check_dim(name, tensor, 2, shape->head_dim));
    return check_rows(name, tensor, row_dim, rule);
}

/* What is written must have one place an element: rows apart, or heads apart. */
static mstar_status check_no_self_overlap(const char *name, const mstar_tensor *tensor)
{
    int64_t rows = tensor->shape[0];
    int64_t heads = tensor->shape[1];
    int64_t row = tensor->strides[0];
    int64_t head = tensor->rank == 3 ? tensor->strides[1] : 1;
    int64_t width = tensor->rank == 3 ? tensor->shape[2] : 1;
    if (rows == 0)
        return MSTAR_OK;
    bool heads_fit_row = rows == 1 || row >= (heads - 1) * head + width;
    bool rows_fit_head = heads == 1 || head >= (rows - 1) * row + width;
    if ((heads == 1 || head >= width) && heads_fit_row)
        return MSTAR_OK;
    if ((rows == 1 || row >= width) && rows_fit_head)
        return MSTAR_OK;
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "%s.strides[0] is %lld over %lld rows and its heads are %lld apart, %lld wide: "
                    "elements of %s would share memory",
                    name, (long long)row, (long long)rows, (long long)head, (long long)width, name);
}

static mstar_status check_lse(const mst_attn_wrapper *wrapper, const mstar_tensor *lse,
                              const mstar_tensor *out)
{
    if (!wrapper->config.return_lse) {
        if (lse != NULL)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "lse is not NULL; the desc's return_lse is 0, so it must be");
        return MSTAR_OK;
    }
    if (lse == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "lse is NULL; the desc's return_lse is 1, so it must be given");
    MST_TRY(mst_tensor_check_compute("lse", lse, 2));
    MST_TRY(check_place(wrapper, "lse", lse));
    if (lse->dtype != MSTAR_DTYPE_F32)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "lse.dtype is %s; it must be f32",
                        mstar_dtype_name(lse->dtype));
    MST_TRY(mst_tensor_check_dim("lse", lse, 0, out->shape[0]));
    MST_TRY(mst_tensor_check_dim("lse", lse, 1, wrapper->config.shape.num_qo_heads));
    return check_no_self_overlap("lse", lse);
}

/* Nothing that is written may share a byte with anything else of the call. */
static mstar_status check_apart(const mst_attn_wrapper *wrapper, const mstar_tensor *q,
                                const mstar_tensor *k, const mstar_tensor *v,
                                const mstar_tensor *out, const mstar_tensor *lse)
{
    const struct {
        const char *name;
        const mstar_tensor *tensor;
    } others[] = {{"q", q}, {"k", k}, {"v", v}, {"lse", lse}};
    int64_t workspace_bytes = (int64_t)wrapper->workspace_bytes;
    mstar_tensor workspace =
        mstar_tensor_make(wrapper->workspace, MSTAR_DTYPE_U8, 1, &workspace_bytes);
    MST_TRY(mst_tensor_check_apart("out", out, "the workspace", &workspace));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (others[i].tensor == NULL)
            continue;
        MST_TRY(mst_tensor_check_apart("out", out, others[i].name, others[i].tensor));
        MST_TRY(
            mst_tensor_check_apart(others[i].name, others[i].tensor, "the workspace", &workspace));
        if (lse != NULL && lse != others[i].tensor)
            MST_TRY(mst_tensor_check_apart("lse", lse, others[i].name, others[i].tensor));
    }
    return MSTAR_OK;
}

mstar_status mst_attn_pick_stream(const mst_attn_wrapper *wrapper, mstar_stream *given,
                                  mstar_stream **stream)
{
    if (given == NULL) {
        if (wrapper->stream == NULL)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "stream is NULL, which only the CPU allows; the wrapper is on %s",
                            wrapper->device->backend->name);
        *stream = wrapper->stream;
        return MSTAR_OK;
    }
    if (given->device != wrapper->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "stream is of another device than the one the wrapper was created on");
    *stream = given;
    return MSTAR_OK;
}

mstar_status mst_attn_run(mst_attn_wrapper *wrapper, mstar_stream *stream, const mstar_tensor *q,
                          const mstar_tensor *k, const mstar_tensor *v, const mstar_tensor *out,
                          const mstar_tensor *lse)
{
    MST_TRY(mst_check_not_null("wrapper", wrapper));
    const mst_attn_config *config = &wrapper->config;
    const mst_attn_plan *plan = &wrapper->plan;
    const mst_attn_shape *shape = &config->shape;
    MST_TRY(mst_attn_pick_stream(wrapper, stream, &stream));
    MST_TRY(mst_capture_check(stream));
    if (stream->graph != NULL && !config->graph)
        return mst_capture_refuse("run of an eager-mode wrapper, whose plan moves,");
    if (!plan->ready)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "run was called before plan; in eager mode a wrapper is planned first");

    bool one_side = config->kind == MST_ATTN_SELF;
    row_rule q_rule = {plan->num_tokens, one_side ? "tokens" : "query tokens",
                       config->max_total_tokens, "max_total_tokens"};
    row_rule kv_rule = {plan->num_kv_tokens, one_side ? "tokens" : "key tokens",
                        config->max_total_kv_tokens,
                        one_side ? "max_total_tokens" : "max_total_kv_tokens"};
    int32_t kv_row_dim = config->kv_layout == MSTAR_KV_HND ? 1 : 0;
    MST_TRY(check_operand(wrapper, "q", q, 0, shape->num_qo_heads, &q_rule));
    MST_TRY(check_operand(wrapper, "k", k, kv_row_dim, shape->num_kv_heads, &kv_rule));
    MST_TRY(check_operand(wrapper, "v", v, kv_row_dim, shape->num_kv_heads, &kv_rule));
    MST_TRY(check_operand(wrapper, "out", out, 0, shape->num_qo_heads, &q_rule));
    MST_TRY(check_no_self_overlap("out", out));
    MST_TRY(check_lse(wrapper, lse, out));
    MST_TRY(check_apart(wrapper, q, k, v, out, lse));

    mst_attn_call call;
    memset(&call, 0, sizeof call);
    call.shape = shape;
    call.causal = plan->causal;
    call.q_offsets = plan->q_offsets;
    call.kv_offsets = plan->kv_offsets;
    call.items = plan->items;
    call.num_items = plan->num_items;
    call.q = q->data;
    call.k = k->data;
    call.v = v->data;
    call.out = out->data;
    call.q_row_stride = q->strides[0];
    call.q_head_stride = q->strides[1];
    call.k_row_stride = k->strides[kv_row_dim];
    call.k_head_stride = k->strides[1 - kv_row_dim];
    call.v_row_stride = v->strides[kv_row_dim];
    call.v_head_stride = v->strides[1 - kv_row_dim];
    call.out_row_stride = out->strides[0];
    call.out_head_stride = out->strides[1];
    if (lse != NULL) {
        call.lse = lse->data;
        call.lse_row_stride = lse->strides[0];
    }
    if (config->graph) {
        call.zero_begin = plan->num_tokens;
        call.zero_end = out->shape[0];
    }
    call.scratch = wrapper->workspace;
    call.image = wrapper->image;
    call.q_rows = mst_min_i64(q->shape[0], out->shape[0]);
    call.kv_rows = mst_min_i64(k->shape[kv_row_dim], v->shape[kv_row_dim]);
    if (config->graph)
        call.live = (mst_attn_live){&plan->num_items, &plan->num_tokens, &plan->num_kv_tokens,
                                    &plan->causal};
    if (stream->graph == NULL && call.num_items == 0 && call.zero_begin == call.zero_end)
        return MSTAR_OK;
    return wrapper->device->backend->attn_run(stream, &call);
}
