/*
 * step_work.c - one step's way through the author's hooks and the resources.
 */
#include <time.h>

#include "graph/runner.h"

int64_t mst_runner_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void mst_tensors_clear(mstar_tensors *tensors)
{
    for (int64_t i = 0; i < tensors->count; i++)
        mst_free((void *)(uintptr_t)tensors->items[i].name);
    tensors->count = 0;
}

mstar_status mst_claim_leases(mstar_resources *resources, const char *node,
                              const mstar_lease *leases, int64_t count, const char *who)
{
    mstar_claim all = {
        .struct_size = sizeof all, .node = node, .leases = leases, .num_leases = count};
    for (int64_t i = 0; i < count; i++) {
        all.max_bs = mst_max_i64(all.max_bs, leases[i].key.bs);
        all.max_tokens = mst_max_i64(all.max_tokens, leases[i].key.num_tokens);
    }
    mstar_status status = mstar_resources_claim(resources, &all);
    return status == MSTAR_OK ? MSTAR_OK : mst_fail_in(status, "%s: claim", who);
}

mstar_status mst_count_tokens(const mstar_node_input *inputs, int64_t count, int64_t multiplier,
                              int64_t *tokens)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (inputs[i].input_seq_len < 0 || inputs[i].input_seq_len > INT32_MAX)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "inputs[%lld].input_seq_len is %lld; it must be from 0 to %d",
                            (long long)i, (long long)inputs[i].input_seq_len, INT32_MAX);
        sum += inputs[i].input_seq_len;
    }
    int64_t plan_tokens;
    if (__builtin_mul_overflow(sum, multiplier, &plan_tokens) || plan_tokens > INT32_MAX)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "inputs have %lld tokens in all, %lld times in a plan; a step has at most "
                        "%d",
                        (long long)sum, (long long)multiplier, INT32_MAX);
    *tokens = plan_tokens;
    return MSTAR_OK;
}

/* ---- resources ------------------------------------------------------------------------------- */

mstar_status mst_declare(mstar_graph_runner *runner, mstar_step *step,
                         const mstar_step_context *context, const mstar_node_input *inputs,
                         int64_t count)
{
    mstar_step_clear(step);
    mstar_status status = runner->hooks.declare(runner->user, context, inputs, count, step);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "%s: declare", runner->node);
    const char *key_info = mstar_step_get_additional_key_info(step);
    if (context->lease != NULL &&
        !mst_same_text(key_info, context->lease->key.additional_key_info)) {
        const char *leased = context->lease->key.additional_key_info;
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "%s: the step declares key info \"%.64s\" under a lease of key info "
                        "\"%.64s\"",
                        runner->node, key_info != NULL ? key_info : "",
                        leased != NULL ? leased : "");
    }
    return MSTAR_OK;
}

static mstar_status admit(mstar_graph_runner *runner, mstar_step *step,
                          const mstar_step_context *context)
{
    mstar_admission admission = {.struct_size = sizeof admission};
    MST_TRY(mstar_resources_admit(runner->resources, context, step, &admission));
    if (admission.outcome == MSTAR_ADMITTED)
        return MSTAR_OK;
    bool later = admission.outcome == MSTAR_NOT_READY;
    return mst_fail(later ? MSTAR_BUSY : MSTAR_CANCELLED,
                    "%s: resource \"%.64s\" %s the step, request %lld: %.128s", runner->node,
                    admission.resource != NULL ? admission.resource : "",
                    later ? "is not ready for" : "refuses", (long long)admission.request,
                    admission.reason);
}

mstar_status mst_prepare_step(mstar_graph_runner *runner, mstar_step *step,
                              const mstar_step_context *context, const mstar_node_input *inputs,
                              int64_t count)
{
    if (runner->hooks.declare != NULL) {
        MST_TRY(mst_declare(runner, step, context, inputs, count));
        MST_TRY(admit(runner, step, context));
        MST_TRY(mstar_resources_plan(runner->resources, context, step));
    }
    mst_tensors_clear(&runner->staged);
    if (runner->hooks.preprocess == NULL)
        return MSTAR_OK;
    mstar_status status =
        runner->hooks.preprocess(runner->user, context, inputs, count, &runner->staged);
    return status == MSTAR_OK ? MSTAR_OK : mst_fail_in(status, "%s: preprocess", runner->node);
}

mstar_status mst_commit_step(mstar_graph_runner *runner, mstar_step *step,
                             const mstar_step_context *context)
{
    if (runner->hooks.declare == NULL)
        return MSTAR_OK;
    MST_TRY(mstar_resources_commit(runner->resources, context, step));
    return mstar_resources_publish(runner->resources, context, step);
}

void mst_reset_padding(mstar_graph_runner *runner, const mstar_step_context *context,
                       int free_storage)
{
    for (int64_t i = 0; runner->resources != NULL && i < context->num_padded_requests; i++) {
        if (context->padded_requests[i] < 0)
            mstar_resources_reset_request(runner->resources, context->padded_requests[i],
                                          free_storage);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

mstar_status mst_run_forward(mstar_graph_runner *runner, const mstar_frame *frame,
                             mstar_tensors *outputs)
{
    mst_tensors_clear(outputs);
    MST_TRY(mstar_stream_set_rows(frame->stream, frame->num_tokens));
    mstar_status status = runner->hooks.forward(runner->user, frame, outputs);
    mstar_status reset = mstar_stream_set_rows(frame->stream, NULL);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "%s: forward", runner->node);
    return reset;
}
