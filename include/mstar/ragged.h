/*
 * mstar/ragged.h - the managers of ragged attention: who makes wrappers, how big, and which plan
 * holds for which label.
 *
 * A manager is a resource (mstar/step.h) over the wrappers of mstar/attention.h. Planning a step
 * groups its segments by label, in order of appearance, and plans one layout a label. A step with a
 * lease uses graph-mode wrappers, one for each (bucket, slot, label), made at that key's first plan
 * and sized from the bucket, so that captured runs stay right; an eager step uses one eager wrapper
 * for each (label, slot). Both share the workspace of the same (label, slot).
 *
 * Cross and prefixed managers read pairs of labels: the layout of q_label against that of kv_label,
 * planned and run under "q_label:kv_label". For prefixed attention the spans under kv_label are the
 * frozen prefix and the query's own tokens together.
 *
 * Plans of labels that a step does not declare are dropped when it is planned.
 */
#ifndef MSTAR_RAGGED_H
#define MSTAR_RAGGED_H

#include "mstar/attention.h"
#include "mstar/step.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mstar_ragged_kind {
    MSTAR_RAGGED_SELF = 0,
    MSTAR_RAGGED_CROSS = 1,
    MSTAR_RAGGED_PREFIXED = 2
} mstar_ragged_kind;

typedef struct mstar_ragged_manager_desc {
    uint32_t struct_size;
    mstar_ragged_kind kind;                       /* default SELF */
    int32_t num_qo_heads, num_kv_heads, head_dim; /* of the whole model; no defaults */
    int32_t tp_world_size; /* default 1. Query heads are divided by it, kv heads too, or are one
                              where there are not more of them; head_dim never is */
    double sm_scale;       /* NaN: head_dim ** -0.5 */
    int64_t max_segments_per_request; /* default 1 */
    int64_t max_tokens_per_request;   /* -1 (default): the bucket's token count is enough */
    const char *flashinfer_backend;   /* as mstar_ragged_prefill_desc.backend; copied */
    int32_t dtype;                    /* mstar_dtype of q, k, v and out; -1: engine_dtype */
    int32_t engine_dtype;             /* the engine's KV dtype; -1 (default): none. One is needed */
    mstar_kv_layout kv_layout;
    int32_t return_lse;
    int64_t window_left, window_right;
} mstar_ragged_manager_desc;
MSTAR_API void mstar_ragged_manager_desc_init(mstar_ragged_manager_desc *desc);
/*
 * What a deployment may change, by name and text: "flashinfer_backend", "max_segments_per_request",
 * "max_tokens_per_request". MSTAR_NOT_FOUND, listing these, for anything else. The backend's text
 * is kept, not copied.
 */
MSTAR_API mstar_status mstar_ragged_manager_desc_override(mstar_ragged_manager_desc *desc,
                                                          const char *name, const char *value);

/* Ceilings of a bucket's wrappers; pure. A bucket whose ceilings pass INT32_MAX is refused. */
MSTAR_API mstar_status mstar_ragged_manager_ceilings(const mstar_ragged_manager_desc *desc,
                                                     const mstar_bucket_key *bucket,
                                                     int64_t *max_num_segments,
                                                     int64_t *max_total_tokens);

typedef struct mstar_ragged_manager mstar_ragged_manager;
/*
 * desc is copied and checked whole, heads and backend included. MSTAR_WORKSPACE_BUFFER_MB sets the
 * size of each workspace; unset, it is what run needs, and less than that is refused.
 */
MSTAR_API mstar_status mstar_ragged_manager_create(mstar_device *device,
                                                   const mstar_ragged_manager_desc *desc,
                                                   mstar_ragged_manager **manager);
MSTAR_API void mstar_ragged_manager_destroy(mstar_ragged_manager *manager);
/*
 * The manager as a resource under a key. It asks for double buffering, pre-plans, and depends on
 * nothing. The manager stays the caller's and must outlive the set. On a GPU it belongs to one set:
 * the set is what orders the steps and plans of runners that share wrappers.
 */
MSTAR_API mstar_status mstar_ragged_manager_get_resource(mstar_ragged_manager *manager,
                                                         const char *key, mstar_resource *resource);

/*
 * Runs the present plan of a label, as mstar_ragged_prefill_run and its like do, and counts the
 * layer up. label NULL: the manager's current one. MSTAR_NOT_FOUND for a label that is not planned,
 * listing those that are.
 */
MSTAR_API mstar_status mstar_ragged_manager_run(mstar_ragged_manager *manager, mstar_stream *stream,
                                                const char *label, const mstar_tensor *q,
                                                const mstar_tensor *k, const mstar_tensor *v,
                                                const mstar_tensor *out, const mstar_tensor *lse);
/* The label that NULL stands for until the next plan, which makes it "main" again (cross and
 * prefixed: the step's first pair). MSTAR_NOT_FOUND as above. */
MSTAR_API mstar_status mstar_ragged_manager_set_label(mstar_ragged_manager *manager,
                                                      const char *label);

typedef enum mstar_ragged_counter {
    MSTAR_COUNT_TOKENS = 0,
    MSTAR_COUNT_KV_TOKENS = 1,
    MSTAR_COUNT_SEGMENTS = 2
} mstar_ragged_counter;
/* The live count of a label's present plan, for mstar_stream_set_rows; *count NULL for an eager
 * plan, whose tensors have the exact size. Labels as for run. */
MSTAR_API mstar_status mstar_ragged_manager_get_counter(mstar_ragged_manager *manager,
                                                        const char *label,
                                                        mstar_ragged_counter which,
                                                        const int64_t **count);
/* The wrapper behind a label's present plan: sizes, offsets, kernel. */
MSTAR_API mstar_status mstar_ragged_manager_query_wrapper(mstar_ragged_manager *manager,
                                                          const char *label,
                                                          mstar_ragged_prefill_info *info);

typedef struct mstar_ragged_manager_info {
    uint32_t struct_size;
    mstar_ragged_kind kind;
    int32_t num_qo_heads, num_kv_heads, head_dim; /* of this rank */
    mstar_dtype dtype;
    double sm_scale;
    int64_t graph_wrappers, eager_wrappers, workspaces;
    int64_t plans, pre_plans, promoted, stale; /* stale: pre-plans that served no step */
    int64_t planned_labels;                    /* now */
    int64_t layer;                             /* runs since the latest plan */
    int32_t pending;                           /* 1: a pre-plan waits */
    int32_t reserved;
    size_t workspace_bytes; /* of one */
    size_t memory_bytes;    /* of all that the manager holds */
} mstar_ragged_manager_info;
MSTAR_API mstar_status mstar_ragged_manager_query(mstar_ragged_manager *manager,
                                                  mstar_ragged_manager_info *info);

#ifdef __cplusplus
}
#endif

#endif
