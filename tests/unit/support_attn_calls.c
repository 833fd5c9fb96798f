/* support_attn_calls.c - the three wrappers behind one set of calls, over the device's memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn.h"
#include "support_attn.h"
#include "support_card.h"
#include "support_loans.h"

/* ---- wrappers -------------------------------------------------------------------------------- */

const char *attn_kind_name(attn_kind kind)
{
    static const char *const names[] = {"self", "cross", "prefixed"};
    return names[kind];
}

mstar_status attn_workspace_query(mstar_device *device, attn_kind kind,
                                  const mstar_ragged_prefill_desc *desc, size_t *bytes)
{
    switch (kind) {
    case ATTN_SELF:
        return mstar_ragged_prefill_workspace_query(device, desc, bytes);
    case ATTN_CROSS:
        return mstar_ragged_cross_prefill_workspace_query(device, desc, bytes);
    default:
        return mstar_prefixed_prefill_workspace_query(device, desc, bytes);
    }
}

mstar_status attn_create(mstar_device *device, attn_kind kind,
                         const mstar_ragged_prefill_desc *desc, void *workspace, size_t bytes,
                         attn_wrapper *wrapper)
{
    mstar_ragged_prefill *self = NULL;
    mstar_ragged_cross_prefill *cross = NULL;
    mstar_prefixed_prefill *prefixed = NULL;
    mstar_status status;
    wrapper->kind = kind;
    switch (kind) {
    case ATTN_SELF:
        status = mstar_ragged_prefill_create(device, desc, workspace, bytes, &self);
        wrapper->object = self;
        return status;
    case ATTN_CROSS:
        status = mstar_ragged_cross_prefill_create(device, desc, workspace, bytes, &cross);
        wrapper->object = cross;
        return status;
    default:
        status = mstar_prefixed_prefill_create(device, desc, workspace, bytes, &prefixed);
        wrapper->object = prefixed;
        return status;
    }
}

static mstar_device *device_of(const attn_wrapper *wrapper)
{
    const mst_attn_wrapper *own = wrapper->object;
    return own->device;
}

mstar_status attn_plan(const attn_wrapper *wrapper, mstar_stream *stream, const int32_t *q,
                       int64_t q_segments, const int32_t *kv, int64_t kv_segments, int causal)
{
    stream = card_stream(device_of(wrapper), stream);
    switch (wrapper->kind) {
    case ATTN_SELF:
        return mstar_ragged_prefill_plan(wrapper->object, stream, q, q_segments, causal);
    case ATTN_CROSS:
        return mstar_ragged_cross_prefill_plan(wrapper->object, stream, q, q_segments, kv,
                                               kv_segments);
    default:
        return mstar_prefixed_prefill_plan(wrapper->object, stream, q, q_segments, kv, kv_segments,
                                           causal);
    }
}

static mstar_status run_tensors(const attn_wrapper *wrapper, mstar_stream *stream,
                                const mstar_tensor *q, const mstar_tensor *k, const mstar_tensor *v,
                                const mstar_tensor *out, const mstar_tensor *lse)
{
    switch (wrapper->kind) {
    case ATTN_SELF:
        return mstar_ragged_prefill_run(wrapper->object, stream, q, k, v, out, lse);
    case ATTN_CROSS:
        return mstar_ragged_cross_prefill_run(wrapper->object, stream, q, k, v, out, lse);
    default:
        return mstar_prefixed_prefill_run(wrapper->object, stream, q, k, v, out, lse);
    }
}

typedef struct run_tensors_of {
    const mstar_tensor *q, *k, *v, *out, *lse;
} run_tensors_of;

/* Aligned now and not then: no bit depends on it. */
static void lend_all(loans *all, run_tensors_of *t)
{
    static _Atomic unsigned runs;
    all->aligned = atomic_fetch_add(&runs, 1) % 2 == 0;
    t->q = loans_lend(all, t->q);
    t->k = loans_lend(all, t->k);
    t->v = loans_lend(all, t->v);
    t->out = loans_lend_out(all, t->out);
    t->lse = loans_lend_out(all, t->lse);
}

mstar_status attn_run(const attn_wrapper *wrapper, mstar_stream *stream, const mstar_tensor *q,
                      const mstar_tensor *k, const mstar_tensor *v, const mstar_tensor *out,
                      const mstar_tensor *lse)
{
    if (mst_device_is_host(device_of(wrapper)))
        return run_tensors(wrapper, stream, q, k, v, out, lse);
    loans all = {.stream = card_stream(device_of(wrapper), stream)};
    run_tensors_of t = {q, k, v, out, lse};
    lend_all(&all, &t);
    return loans_return(&all, run_tensors(wrapper, all.stream, t.q, t.k, t.v, t.out, t.lse));
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* What a graph's run was recorded over, as long as the graph lives. */
typedef struct graph_loans {
    const mstar_graph *graph;
    loans all;
    struct graph_loans *next;
} graph_loans;
static graph_loans *kept;

mstar_status attn_capture(const attn_wrapper *wrapper, mstar_stream *stream, const attn_data *data,
                          mstar_graph **graph)
{
    graph_loans *made = calloc(1, sizeof *made);
    assert_non_null(made);
    run_tensors_of t = {&data->q.tensor, &data->k.tensor, &data->v.tensor, &data->out.tensor,
                        data->lse_tensor};
    made->all.stream = stream;
    lend_all(&made->all, &t);
    mstar_status status = mstar_graph_capture_begin(stream);
    if (status == MSTAR_OK) {
        status = run_tensors(wrapper, stream, t.q, t.k, t.v, t.out, t.lse);
        mstar_status end = mstar_graph_capture_end(stream, graph);
        status = status != MSTAR_OK ? status : end;
    }
    if (status != MSTAR_OK || made->all.count == 0) {
        loans_drop(&made->all);
        free(made);
        return status;
    }
    made->graph = *graph;
    made->next = kept;
    kept = made;
    return status;
}

mstar_status attn_replay(mstar_graph *graph, mstar_stream *stream)
{
    graph_loans *of = kept;
    while (of != NULL && of->graph != graph)
        of = of->next;
    if (of == NULL)
        return mstar_graph_replay(graph, stream);
    of->all.stream = stream;
    loans_send(&of->all);
    mstar_status status = mstar_graph_replay(graph, stream);
    loans_fetch(&of->all);
    return status;
}

void attn_graph_destroy(mstar_graph *graph)
{
    mstar_graph_destroy(graph);
    for (graph_loans **at = &kept; *at != NULL; at = &(*at)->next) {
        if ((*at)->graph == graph) {
            graph_loans *gone = *at;
            *at = gone->next;
            loans_drop(&gone->all);
            free(gone);
            return;
        }
    }
}

mstar_status attn_query(const attn_wrapper *wrapper, mstar_ragged_prefill_info *info)
{
    switch (wrapper->kind) {
    case ATTN_SELF:
        return mstar_ragged_prefill_query(wrapper->object, info);
    case ATTN_CROSS:
        return mstar_ragged_cross_prefill_query(wrapper->object, info);
    default:
        return mstar_prefixed_prefill_query(wrapper->object, info);
    }
}

void attn_destroy(const attn_wrapper *wrapper)
{
    switch (wrapper->kind) {
    case ATTN_SELF:
        mstar_ragged_prefill_destroy(wrapper->object);
        break;
    case ATTN_CROSS:
        mstar_ragged_cross_prefill_destroy(wrapper->object);
        break;
    default:
        mstar_prefixed_prefill_destroy(wrapper->object);
        break;
    }
}

/* ---- calls that must succeed or be refused --------------------------------------------------- */

void attn_must(mstar_status status)
{
    if (status != MSTAR_OK)
        fail_msg("%s", mstar_last_error());
}

void attn_refused(mstar_status got, mstar_status want, const char *a, const char *b)
{
    if (got != want)
        fail_msg("status %s instead of %s (%s; %s): %s", mstar_status_name(got),
                 mstar_status_name(want), a, b, mstar_last_error());
    if (strstr(mstar_last_error(), a) == NULL || strstr(mstar_last_error(), b) == NULL)
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", mstar_last_error(), a, b);
}

/* ---- problems -------------------------------------------------------------------------------- */

static void run_once(const attn_problem *problem, mstar_device *device, mstar_stream *stream,
                     const int32_t *q_offsets, const int32_t *kv_offsets, int64_t num_segments,
                     const mstar_tensor *tensors, const mstar_tensor *lse)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_problem_desc(problem, &desc);
    if (attn_create(device, problem->kind, &desc, NULL, 0, &wrapper) != MSTAR_OK ||
        attn_plan(&wrapper, stream, q_offsets, num_segments, kv_offsets, num_segments,
                  problem->causal) != MSTAR_OK ||
        attn_run(&wrapper, stream, &tensors[0], &tensors[1], &tensors[2], &tensors[3], lse) !=
            MSTAR_OK)
        fail_msg("%s: %s", attn_problem_text(problem), mstar_last_error());
    attn_destroy(&wrapper);
}

void attn_problem_run(const attn_problem *problem, mstar_device *device, mstar_stream *stream,
                      const attn_data *data)
{
    const mstar_tensor tensors[] = {data->q.tensor, data->k.tensor, data->v.tensor,
                                    data->out.tensor};
    run_once(problem, device, stream, problem->q_offsets, problem->kv_offsets,
             problem->num_segments, tensors, data->lse_tensor);
}

void attn_problem_run_part(const attn_problem *problem, mstar_device *device, mstar_stream *stream,
                           const attn_data *data, const attn_data *to, int64_t begin, int64_t end)
{
    int32_t q[ATTN_MAX_SEGMENTS + 1];
    int32_t kv[ATTN_MAX_SEGMENTS + 1];
    int32_t kv_dim = problem->kv_layout == MSTAR_KV_HND ? 1 : 0;
    int64_t count = end - begin;
    for (int64_t i = 0; i <= count; i++) {
        q[i] = problem->q_offsets[begin + i] - problem->q_offsets[begin];
        kv[i] = problem->kv_offsets[begin + i] - problem->kv_offsets[begin];
    }
    int64_t q_first = problem->q_offsets[begin];
    int64_t kv_first = problem->kv_offsets[begin];
    const mstar_tensor rows[] = {attn_rows(&data->q.tensor, 0, q_first, q[count]),
                                 attn_rows(&data->k.tensor, kv_dim, kv_first, kv[count]),
                                 attn_rows(&data->v.tensor, kv_dim, kv_first, kv[count]),
                                 attn_rows(&to->out.tensor, 0, q_first, q[count])};
    mstar_tensor lse = attn_rows(&to->lse.tensor, 0, q_first, q[count]);
    run_once(problem, device, stream, q, kv, count, rows, problem->return_lse ? &lse : NULL);
}
