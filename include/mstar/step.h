/*
 * mstar/step.h - the step protocol: what a forward will touch is said before it runs, and the
 * resources that it touches are made ready in order.
 *
 *   declare     the model fills a mstar_step: for each resource, which requests bring how many
 *               tokens under which label. Pure: no state changes, requests may be unknown yet.
 *   admit       each resource reserves what the step needs; the first that cannot ends it
 *   plan        each resource plans, in the order of dependencies, and may leave a result for later
 *               ones; the results of the former step are gone
 *   preprocess  the model's own, and the forward, which reads planned state only
 *   commit      lengths advance, for real rows only
 *   publish     results become visible to others
 *
 * admit, plan, commit and publish are calls on a set of resources, the set of one node. A call out
 * of this order is MSTAR_OUT_OF_ORDER; admit starts a step over at any time.
 *
 * Lock step: ranks that are given the same steps must take the same decisions. So a resource
 * decides from the step, the context and its own state, never from clocks, addresses or threads,
 * and no hook waits for the device.
 */
#ifndef MSTAR_STEP_H
#define MSTAR_STEP_H

#include "mstar/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plain records ----------------------------------------------------------------------------
 */

/* The label of segments that name none. */
#define MSTAR_DEFAULT_LABEL "main"

/* request: >= 0 a real row, <= -2 a padding row; -1 ("not stamped") is refused. span: tokens; 0
 * takes part without adding any. */
typedef struct mstar_segment {
    int64_t request;
    const char *label;
    int32_t span;
    int32_t reserved;
} mstar_segment;

/* Two labels that attention reads together: queries of one, keys of the other. */
typedef struct mstar_label_pair {
    const char *q_label, *kv_label;
} mstar_label_pair;

/* What a step asks of one resource, as the resource sees it. Borrowed for the call. */
typedef struct mstar_resource_step {
    const char *key;
    const mstar_segment *segments; /* its own, else the step's default ones */
    int64_t num_segments;
    const mstar_label_pair *pairs;
    int64_t num_pairs;
    int32_t causal; /* for attention; 1 unless the declaration says 0 */
    int32_t reserved;
    const void *details; /* whatever else the resource's own header asks for */
} mstar_resource_step;

/* The name of a captured bucket. Texts are compared by their bytes, NULL only with NULL. */
typedef struct mstar_bucket_key {
    const char *walk;                /* the walk that was captured, never an alias */
    const char *additional_key_info; /* NULL: none */
    int64_t bs, num_tokens;
} mstar_bucket_key;
/* 1 or 0. */
MSTAR_API int mstar_bucket_key_equal(const mstar_bucket_key *a, const mstar_bucket_key *b);

/* A bucket taken for one step, and which of its buffers. */
typedef struct mstar_lease {
    mstar_bucket_key key;
    int32_t slot;
    int32_t reserved;
} mstar_lease;

typedef struct mstar_resources mstar_resources;

/* What the engine adds to a step. Borrowed for the call. */
typedef struct mstar_step_context {
    uint32_t struct_size;
    int32_t capturing;       /* 1: the forward will be captured */
    int32_t pre_plan;        /* written by the library: 1 inside mstar_resources_pre_plan */
    int32_t slot;            /* of an eager step too */
    const char *walk;        /* as asked for, alias or not */
    const int64_t *requests; /* real rows */
    int64_t num_requests;
    const int64_t *padded_requests; /* real rows, then padding rows; NULL: requests */
    int64_t num_padded_requests;
    const mstar_lease *lease;         /* NULL: an eager step */
    const char *const *region_leases; /* labels of the regions that hold one */
    int64_t num_region_leases;
    mstar_stream *stream;       /* orders uploads */
    mstar_resources *resources; /* of the node */
} mstar_step_context;
MSTAR_API void mstar_step_context_init(mstar_step_context *context);
/* 1 when the region of this label holds a lease, else 0: declare leaves out what it plans itself.
 */
MSTAR_API int mstar_step_context_holds_region(const mstar_step_context *context, const char *label);

/* ---- a step -----------------------------------------------------------------------------------
 */

/*
 * A declaration, filled by the calls below. Texts are copied. _clear empties it and keeps its
 * memory: a step that is filled again with what it has held before allocates nothing.
 */
typedef struct mstar_step mstar_step;
MSTAR_API mstar_status mstar_step_create(mstar_step **step);
MSTAR_API void mstar_step_destroy(mstar_step *step);
MSTAR_API void mstar_step_clear(mstar_step *step);
/* The step will touch the resource of this key. A key that is there already is refused. */
MSTAR_API mstar_status mstar_step_add_resource(mstar_step *step, const char *key);
/* key NULL: to the default segments, which serve every resource without segments of its own.
 * MSTAR_NOT_FOUND for a key that was not added. label NULL: MSTAR_DEFAULT_LABEL. */
MSTAR_API mstar_status mstar_step_add_segment(mstar_step *step, const char *key, int64_t request,
                                              const char *label, int32_t span);
MSTAR_API mstar_status mstar_step_add_pair(mstar_step *step, const char *key, const char *q_label,
                                           const char *kv_label);
MSTAR_API mstar_status mstar_step_set_causal(mstar_step *step, const char *key, int causal);
/* details is kept, not copied. */
MSTAR_API mstar_status mstar_step_set_details(mstar_step *step, const char *key,
                                              const void *details);
/* The additional part of the bucket key; NULL: none. */
MSTAR_API mstar_status mstar_step_set_additional_key_info(mstar_step *step, const char *text);
/* Borrowed until the step changes; NULL: none. */
MSTAR_API const char *mstar_step_get_additional_key_info(const mstar_step *step);
MSTAR_API int64_t mstar_step_get_num_resources(const mstar_step *step);
/* Copied out; what it points to is borrowed until the step changes. MSTAR_NOT_FOUND past the last
 * index. */
MSTAR_API mstar_status mstar_step_query_resource(const mstar_step *step, int64_t index,
                                                 mstar_resource_step *resource);

/* ---- resources --------------------------------------------------------------------------------
 */

typedef enum mstar_admission_outcome {
    MSTAR_ADMITTED = 0,
    MSTAR_NOT_READY = 1, /* try again later: something is short for now */
    MSTAR_REFUSED = 2    /* this request can never be served */
} mstar_admission_outcome;

typedef struct mstar_admission {
    uint32_t struct_size;
    mstar_admission_outcome outcome;
    int64_t request;      /* whose; -1: the whole step's */
    const char *resource; /* key of who said so; NULL when admitted. Borrowed from the set */
    char reason[160];
} mstar_admission;

/* What all captures of a runner together will need, told to every resource before any of them. */
typedef struct mstar_claim {
    uint32_t struct_size;
    int32_t captured; /* written by the library: 1 when another runner over the set has captured.
                         What it baked must stay where it is: a resource that would move it refuses
                         the claim */
    const char *node;
    const mstar_lease *leases; /* every bucket and slot */
    int64_t num_leases;
    int64_t max_bs, max_tokens;
} mstar_claim;

/* Results of the resources that have planned already. */
typedef struct mstar_plan_results mstar_plan_results;
/* NULL: no such resource in this step, not planned yet, or it left none. */
MSTAR_API const void *mstar_plan_results_find(const mstar_plan_results *results, const char *key);

/*
 * The hooks of a resource; every one may be NULL, which is: nothing to do. self is the resource's
 * own. A hook that fails leaves a text (mstar_last_error) that the set puts the key before.
 */
typedef struct mstar_resource_hooks {
    uint32_t struct_size;
    int32_t pre_plans;      /* 1: plan may be called ahead, with context->pre_plan, on a second
                               thread while the step before it runs */
    int32_t double_buffers; /* 1: asks for two slots */
    int32_t reserved;
    /* May be called again, by other runners too; memory grows only. Each lease counts as claimed
       once more. A claim that fails has claimed nothing. */
    mstar_status (*claim)(void *self, const mstar_claim *claim);
    mstar_status (*admit)(void *self, const mstar_step_context *context,
                          const mstar_resource_step *step, mstar_admission *admission);
    mstar_status (*plan)(void *self, const mstar_step_context *context,
                         const mstar_resource_step *step, const mstar_plan_results *results,
                         const void **result);
    /* These two see the segments of real rows only. */
    mstar_status (*commit)(void *self, const mstar_step_context *context,
                           const mstar_resource_step *step);
    mstar_status (*publish)(void *self, const mstar_step_context *context,
                            const mstar_resource_step *step);
    mstar_status (*add_request)(void *self, int64_t request);
    void (*remove_request)(void *self, int64_t request);
    void (*reset_request)(void *self, int64_t request, int free_storage);
    void (*drop_pre_plan)(void *self, int32_t slot);
    mstar_status (*validate)(void *self);     /* once, after warm-up */
    size_t (*memory_bytes)(const void *self); /* what it holds now */
    void (*release)(void *self);              /* the set takes the resource over and releases it */
    /* Bytes that a plan of this step, whose lease is claimed, will take beyond what is held. */
    mstar_status (*claim_bytes)(void *self, const mstar_step_context *context,
                                const mstar_resource_step *step, size_t *bytes);
    /* A lease is claimed once less: it is not captured after all, or its runner is destroyed. Once
       nobody claims it, what was taken for it alone is given back, and a plan for it is over. Not
       called without claim. The managers of ragged attention ignore a lease that is not claimed. */
    void (*unclaim)(void *self, const mstar_lease *lease);
} mstar_resource_hooks;

typedef struct mstar_resource {
    const char *key;
    const mstar_resource_hooks *hooks;
    void *self;
    const char *const *depends_on; /* keys */
    int32_t num_depends;
    int32_t reserved;
} mstar_resource;

/*
 * The resources of one node, in the order of dependencies and else as listed. Texts and hooks are
 * copied. Refused, naming the key: two of one key, a dependency that is unknown, on itself or in a
 * circle, a resource that pre-plans and depends on one that plans and does not. A set that was
 * refused has released nothing.
 *
 * Threads: one at a time, but that pre_plan and drop_pre_plan may run on a second thread while the
 * first runs a forward, replays or commits.
 */
MSTAR_API mstar_status mstar_resources_create(const mstar_resource *list, int64_t count,
                                              mstar_resources **resources);
MSTAR_API void mstar_resources_destroy(mstar_resources *resources);
MSTAR_API int64_t mstar_resources_get_count(const mstar_resources *resources);
/* In the order in which they plan; NULL past the last. Borrowed. */
MSTAR_API const char *mstar_resources_get_key(const mstar_resources *resources, int64_t index);
/* The resource's own pointer; NULL for an unknown key. */
MSTAR_API void *mstar_resources_get_self(const mstar_resources *resources, const char *key);

/* A claim that one resource refuses is given back to those before it. */
MSTAR_API mstar_status mstar_resources_claim(mstar_resources *resources, const mstar_claim *claim);
/* What a plan of the declared step with the context's lease will take, all resources together:
 * exact for those that have the hook, nothing for the others. */
MSTAR_API mstar_status mstar_resources_claim_bytes(mstar_resources *resources,
                                                   const mstar_step_context *context,
                                                   const mstar_step *step, size_t *bytes);
/* One lease of a claim, told to the resources that have both hooks. A runner gives back those of
 * buckets that it drops, and all at its end. */
MSTAR_API void mstar_resources_unclaim(mstar_resources *resources, const mstar_lease *lease);
MSTAR_API mstar_status mstar_resources_validate(mstar_resources *resources);
MSTAR_API size_t mstar_resources_memory_bytes(const mstar_resources *resources);

/*
 * The phases. MSTAR_NOT_FOUND, listing the keys there are, for a step that names a resource that is
 * not in the set. MSTAR_OK from admit says that it was decided: admission->outcome holds what. What
 * was reserved before a refusal stays so; admit again, or reset the requests. A plan that fails
 * leaves the step admitted and without results.
 */
MSTAR_API mstar_status mstar_resources_admit(mstar_resources *resources,
                                             const mstar_step_context *context, mstar_step *step,
                                             mstar_admission *admission);
MSTAR_API mstar_status mstar_resources_plan(mstar_resources *resources,
                                            const mstar_step_context *context, mstar_step *step);
MSTAR_API mstar_status mstar_resources_commit(mstar_resources *resources,
                                              const mstar_step_context *context, mstar_step *step);
MSTAR_API mstar_status mstar_resources_publish(mstar_resources *resources,
                                               const mstar_step_context *context, mstar_step *step);
/* Of the step planned last; NULL as with mstar_plan_results_find. */
MSTAR_API const void *mstar_resources_get_result(const mstar_resources *resources, const char *key);

/*
 * Plans the next step ahead: the later plan of the same step then only takes over what is there.
 * All planning resources of the step do it or none: MSTAR_NOT_SUPPORTED names one that does not.
 * MSTAR_OUT_OF_ORDER without a lease, and while another one is pending. Dropped by
 * drop_pre_plan when the batch has changed; a plan of another step on the slot drops it too.
 */
MSTAR_API mstar_status mstar_resources_pre_plan(mstar_resources *resources,
                                                const mstar_step_context *context,
                                                mstar_step *step);
MSTAR_API void mstar_resources_drop_pre_plan(mstar_resources *resources, int32_t slot);
/* Of the step's resources, or of all for a step of NULL. 1 or 0. */
MSTAR_API int mstar_resources_can_pre_plan(const mstar_resources *resources,
                                           const mstar_step *step);
MSTAR_API int mstar_resources_double_buffers(const mstar_resources *resources,
                                             const mstar_step *step);

/* A request begins; when one resource fails, those before it are told that it is gone again. */
MSTAR_API mstar_status mstar_resources_add_request(mstar_resources *resources, int64_t request);
MSTAR_API void mstar_resources_remove_request(mstar_resources *resources, int64_t request);
/* State back to its beginning; storage kept or, with free_storage 1, given back. */
MSTAR_API void mstar_resources_reset_request(mstar_resources *resources, int64_t request,
                                             int free_storage);

#ifdef __cplusplus
}
#endif

#endif
