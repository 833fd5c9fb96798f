/*
 * step.h - the step area: a declared step, the order of a set's resources, and the parts of the
 * ragged attention managers.
 */
#ifndef MST_STEP_H
#define MST_STEP_H

#include <pthread.h>

#include "attn/attn.h"
#include "base/base.h"
#include "device/backend.h"
#include "mstar/ragged.h"
#include "mstar/step.h"

/* ---- kept_texts.c: texts kept once ----------------------------------------------------------- */

/* Zero it, add, release. Pointers stay valid until the release. */
typedef struct mst_texts {
    char **items;
    int64_t count, capacity;
} mst_texts;
/* The kept copy of text: the one that is there already, else a new one. */
mstar_status mst_texts_keep(mst_texts *texts, const char *text, const char **kept);
void mst_texts_release(mst_texts *texts);
size_t mst_texts_bytes(const mst_texts *texts);
/* Bytes that keeping these would add. Texts may be NULL or come twice. */
size_t mst_texts_growth(const mst_texts *texts, const char *const *more, int64_t count);

/* ---- declared_step.c --------------------------------------------------------------------------
 */

typedef enum mst_phase {
    MST_DECLARED,
    MST_ADMITTED,
    MST_PLANNED,
    MST_COMMITTED,
    MST_PUBLISHED
} mst_phase;

/* All that the step holds; 0 for NULL. */
size_t mst_step_bytes(const mstar_step *step);
mst_phase mst_step_phase(const mstar_step *step);
void mst_step_set_phase(mstar_step *step, mst_phase phase);
/* False when the step has no resource of that key. */
bool mst_step_find(const mstar_step *step, const char *key, mstar_resource_step *resource);

/* ---- resource_order.c -------------------------------------------------------------------------
 */

/*
 * Pure, apart from scratch memory: order[i] is the index of the resource that comes i-th, each
 * after all that it depends on and else as listed. Checks keys, dependencies, and who pre-plans.
 */
mstar_status mst_resource_order(const mstar_resource *list, int64_t count, int64_t *order);

/* ---- resources.c, phases.c ---------------------------------------------------------------------
 */

#define MST_MAX_RESOURCES 1024
#define MST_MAX_SLOTS 64

/* What the runners over a set gave to one slot. The events are a runner's, and gone from here
 * before they are destroyed. */
typedef struct mst_set_slot {
    mstar_event *done;    /* after the latest step; NULL: none, or a processor */
    mstar_event *planned; /* after the latest plan made ahead; the same */
    const void *planner;  /* who made that plan; NULL: none */
} mst_set_slot;

typedef struct mst_resource {
    const char *key;
    void *self;
    mstar_resource_hooks hooks;
} mst_resource;

struct mstar_plan_results {
    const mstar_resources *set;
    const void **values; /* by place in the set */
};

struct mstar_resources {
    mst_resource *list; /* in the order in which they plan */
    int64_t count;
    mst_texts texts;
    mstar_plan_results present, ahead; /* of the step that runs; of the one planned ahead */
    mstar_segment *real;               /* segments without padding rows, for commit and publish */
    int64_t real_capacity;
    _Atomic int64_t num_captured; /* runners that have captured over the set and are alive */
    int64_t handles_taken;        /* for padding rows, from -2 down */
    /* Held by a runner over the set while it makes a step ready and while it plans one ahead;
       refuses a thread that has it already. slots[].planner goes by it. */
    pthread_mutex_t planning;
    pthread_mutex_t order; /* of done, and of the events in slots: for moments */
    mstar_event *done;     /* of the latest step that a runner gave to a device; NULL: none */
    mst_set_slot slots[MST_MAX_SLOTS];
};
/* -1: not there. */
int64_t mst_resources_find(const mstar_resources *set, const char *key);
/* A runner over the set has captured, +1, or is gone, -1. set may be NULL, here and below. */
void mst_resources_note_captured(mstar_resources *set, int by);
/* Below all handles that runners over the set pad with. */
int64_t mst_resources_free_handle(const mstar_resources *set);
/* A lock that refuses a thread that has it already; false: the system gives none. */
bool mst_init_checked_lock(pthread_mutex_t *lock);
/* Drops the plans that this runner made ahead and that are nobody else's by now. */
void mst_resources_drop_planner(mstar_resources *set, const void *planner);
/* From first down, for the rows of a runner that pad. */
void mst_resources_take_handles(mstar_resources *set, int64_t first, int64_t count);
/* Puts the resource's key before the present text; returns status. */
mstar_status mst_fail_for(mstar_status status, const mst_resource *resource);

/* ---- lease_claims.c ---------------------------------------------------------------------------
 */

typedef struct mst_lease_claim {
    mstar_lease lease; /* texts are kept ones */
    int64_t times;
} mst_lease_claim;

/* Zero it, add; items are freed with mst_free. */
typedef struct mst_lease_claims {
    mst_lease_claim *items;
    int64_t count, capacity;
} mst_lease_claims;
/* All of them once more, or none. */
mstar_status mst_claims_add(mst_lease_claims *claims, mst_texts *texts, const mstar_lease *leases,
                            int64_t count);
/* Once less; true when it was claimed and nobody claims it any more. */
bool mst_claims_drop(mst_lease_claims *claims, const mstar_lease *lease);
/* The key with kept texts. */
mstar_status mst_bucket_key_keep(mst_texts *texts, const mstar_bucket_key *bucket,
                                 mstar_bucket_key *key);

/* ---- ragged_config.c --------------------------------------------------------------------------
 */

/* A manager's desc after its checks. */
typedef struct mst_ragged_config {
    mstar_ragged_kind kind;
    char backend[16]; /* "" for NULL */
    int64_t max_segments_per_request, max_tokens_per_request;
    mstar_ragged_prefill_desc wrapper; /* eager; heads of this rank */
} mst_ragged_config;
mstar_status mst_ragged_config_read(const mstar_ragged_manager_desc *desc,
                                    mst_ragged_config *config);
mstar_status mst_ragged_ceilings(const mst_ragged_config *config, const mstar_bucket_key *bucket,
                                 int64_t *max_num_segments, int64_t *max_total_tokens);

/* ---- ragged_layout.c: from segments to offsets ------------------------------------------------
 */

/* The segments of one label, in the order of the step. */
typedef struct mst_label_group {
    const char *label;
    int64_t num_segments;
    int32_t *offsets;  /* num_segments + 1 */
    int64_t *requests; /* num_segments */
} mst_label_group;

/* One layout to plan. kv is NULL for self. */
typedef struct mst_label_layout {
    const char *label; /* "q:kv" for pairs */
    const mst_label_group *q, *kv;
} mst_label_layout;

/* Memory of one grouping, kept from step to step. Zero it, release it. */
typedef struct mst_grouping {
    mst_label_group *groups;
    int64_t num_groups, groups_capacity;
    mst_label_layout *layouts;
    int64_t num_layouts, layouts_capacity;
    int32_t *offsets;
    int64_t offsets_capacity;
    int64_t *requests;
    int64_t requests_capacity;
    mst_texts texts;
} mst_grouping;
/* Checks everything; labels are kept in grouping->texts. */
mstar_status mst_group_segments(mstar_ragged_kind kind, const mstar_resource_step *step,
                                mst_grouping *grouping);
void mst_grouping_release(mst_grouping *grouping);
size_t mst_grouping_bytes(const mst_grouping *grouping);
/* Bytes that have grows by when it holds what want holds. */
size_t mst_grouping_growth(const mst_grouping *have, const mst_grouping *want);
/* The same labels, requests and spans in the same order. */
bool mst_grouping_equal(const mst_grouping *a, const mst_grouping *b);

/* ---- ragged_store.c: wrappers and workspaces, made once ---------------------------------------
 */

typedef struct mst_ragged_wrapper {
    bool graph;
    mstar_bucket_key key; /* graph only; texts are the store's */
    const char *label;
    int32_t slot;
    int64_t workspace;              /* index */
    void *object;                   /* of the kind's public type */
    mstar_ragged_prefill_info info; /* as created: addresses of offsets and counters */
} mst_ragged_wrapper;

typedef struct mst_ragged_workspace {
    const char *label;
    int32_t slot;
    mstar_buffer *buffer;
} mst_ragged_workspace;

typedef struct mst_ragged_store {
    mstar_device *device;
    mst_ragged_config config;
    size_t workspace_bytes; /* of each */
    double sm_scale;        /* derived where the desc leaves it open */
    mst_ragged_wrapper **wrappers;
    int64_t num_wrappers, wrappers_capacity;
    mst_ragged_workspace *workspaces;
    int64_t num_workspaces, workspaces_capacity;
    mst_lease_claims claims;
    mst_texts texts;
} mst_ragged_store;
mstar_status mst_ragged_store_open(mstar_device *device, const mst_ragged_config *config,
                                   mst_ragged_store *store);
void mst_ragged_store_close(mst_ragged_store *store);
/* The wrapper of (bucket, slot, label), or of (label, slot) for a bucket of NULL; made when it is
 * not there. Its address holds until the store is closed. */
mstar_status mst_ragged_store_find(mst_ragged_store *store, const mstar_bucket_key *bucket,
                                   int32_t slot, const char *label, mst_ragged_wrapper **wrapper);
/* What finding the wrappers of these labels would add. */
mstar_status mst_ragged_store_growth(const mst_ragged_store *store, const mstar_bucket_key *bucket,
                                     int32_t slot, const mst_label_layout *layouts,
                                     int64_t num_layouts, size_t *bytes);
/* Takes the lease's wrappers away, every label. */
void mst_ragged_store_forget(mst_ragged_store *store, const mstar_lease *lease);
size_t mst_ragged_store_bytes(const mst_ragged_store *store);

mstar_status mst_ragged_wrapper_plan(mstar_ragged_kind kind, const mst_ragged_wrapper *wrapper,
                                     mstar_stream *stream, const mst_label_layout *layout,
                                     int causal);
mstar_status mst_ragged_wrapper_run(mstar_ragged_kind kind, const mst_ragged_wrapper *wrapper,
                                    mstar_stream *stream, const mstar_tensor *q,
                                    const mstar_tensor *k, const mstar_tensor *v,
                                    const mstar_tensor *out, const mstar_tensor *lse);
mstar_status mst_ragged_wrapper_query(mstar_ragged_kind kind, const mst_ragged_wrapper *wrapper,
                                      mstar_ragged_prefill_info *info);

#endif
