/*
 * mstar/runner.h - whole forwards captured once a bucket and replayed.
 *
 * An engine's author implements four functions of a network (mstar_node_hooks) and says with graph
 * configs which buckets to capture. The runner then serves steps: it pads a step to the smallest
 * bucket that holds it, stages its inputs, replays, and hands out the results; a step without a
 * bucket runs eager through the same four functions, and the reason is counted.
 *
 *   life     create -> prepare (every runner before any capture) -> capture -> step ... -> destroy
 *   memory   one pool for the scratch and results of all buckets, as large as the largest needs;
 *            one buffer for each static input of a config. Both are known before anything is
 *            captured.
 *   rows     operations run on the real rows of a step only: the live counts of a frame.
 *   threads  one at a time, but for mstar_graph_runner_pre_plan and _query: a call of the others
 *            while one is under way, from a hook too, is MSTAR_OUT_OF_ORDER.
 *
 * The results of a step have the same bits replayed, eager, and request by request, as far as the
 * network is made of this library's operations.
 */
#ifndef MSTAR_RUNNER_H
#define MSTAR_RUNNER_H

#include "mstar/graph.h"
#include "mstar/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what an author implements --------------------------------------------------------------- */

/* The size of a step or of a bucket. */
typedef struct mstar_frame_size {
    int64_t bs;         /* requests */
    int64_t num_tokens; /* plan tokens */
} mstar_frame_size;

/* What a forward sees. */
typedef struct mstar_frame {
    uint32_t struct_size;
    int32_t capturing; /* 1 while work is recorded; 0 in eager steps and warm-ups */
    const mstar_step_context *context;
    mstar_stream *stream;
    mstar_frame_size size; /* of the tensors: the bucket's; in an eager step the step's own */
    /* How many of them are real, at addresses that hold for this bucket and slot. While forward
       runs, the stream's live row count is num_tokens; a forward whose operation works on requests
       sets num_requests, and num_tokens again (mstar_stream_set_rows). */
    const int64_t *num_tokens, *num_requests;
    const mstar_tensors *inputs;  /* what preprocess gave; static buffers under a lease. On a GPU
                                     numbers are in its memory; integers are host memory, as
                                     operations read ids, positions and offsets, unless preprocess
                                     gave them on the device */
    const mstar_tensors *scratch; /* what lay_out asked for, the device's; contents undefined */
} mstar_frame;

/*
 * The network. user is the first argument of all. context->lease is NULL in an eager step; else it
 * names the bucket by its capture walk and the slot, and inputs are padded to the bucket's bs:
 * padding rows have handles below 0. Strings and records in arguments are borrowed for the call.
 */
typedef struct mstar_node_hooks {
    uint32_t struct_size;
    uint32_t reserved;
    /* What the step needs of each resource; pure. NULL: nothing. */
    mstar_status (*declare)(void *user, const mstar_step_context *context,
                            const mstar_node_input *inputs, int64_t count, mstar_step *step);
    /* Adds the tensors that forward reads, in host memory or the device's, and does the step's host
       work. Under a lease they are copied to static buffers of the same names before the next call
       of a hook; on a GPU an eager step's numbers are sent there as well. Integers lie, step by
       step, where the first dummy step of a walk had them. */
    mstar_status (*preprocess)(void *user, const mstar_step_context *context,
                               const mstar_node_input *inputs, int64_t count,
                               mstar_tensors *tensors);
    /* Adds tensors without data: the memory that a forward of this size works in, results included.
       Pure, and never larger for a smaller size. NULL: none. */
    mstar_status (*lay_out)(void *user, mstar_frame_size size, mstar_tensors *scratch);
    /* Gives work to frame->stream and adds its results to outputs: views of scratch or of memory of
       its own, rows (of tokens or of requests) first. Under a capture (prepare makes one as well,
       to count it) its host code runs once, and what it read is baked; at replay only the contents
       of buffers and plans change. Required. */
    mstar_status (*forward)(void *user, const mstar_frame *frame, mstar_tensors *outputs);
    /* Bytes of memory that forwards took for themselves and keep for captures, beside what lay_out
       asks for: counted against free_bytes. While the runner is prepared nothing that was recorded
       is kept, so before it answers, what is not in use is given back until no more than most bytes
       are left, the latest first; SIZE_MAX: nothing is. NULL: none. */
    size_t (*memory)(void *user, size_t most);
} mstar_node_hooks;
MSTAR_API void mstar_node_hooks_init(mstar_node_hooks *hooks);

/* ---- runner ---------------------------------------------------------------------------------- */

typedef struct mstar_graph_runner mstar_graph_runner;

/* Flags that other ranks answer to: sets captured[i] to 0 where another rank dropped bucket i. */
typedef mstar_status (*mstar_graph_agree)(void *user, uint8_t *captured, int64_t num_buckets);

typedef struct mstar_graph_runner_desc {
    uint32_t struct_size;
    int32_t num_threads;           /* of the runner's stream; -1 (default) all of the device's */
    const char *node;              /* name in messages; default "node" */
    const mstar_node_hooks *hooks; /* required; copied */
    void *user;                    /* kept */
    const mstar_graph_config *const *configs; /* kept: they must outlive the runner */
    int64_t num_configs;
    mstar_resources *resources; /* kept; NULL: the node has none */
    int32_t num_slots;          /* -1 (default): 1, or MSTAR_NUM_SLOTS (2) where a resource asks for
                                   double buffering or can pre-plan; else 1..64 */
    int32_t num_warmups;        /* forwards before a capture; default 2. With any, prepare makes
                                   one of its own before it counts */
    int64_t free_bytes;         /* memory that prepare and capture may take, resources' buffers
                                   and a driver's share included; -1 (default): what the device has
                                   free when prepare begins, no bound on a processor */
    int64_t floor_bytes;        /* of it to be left over; default 0 */
    double max_waste;           /* as in mstar_graph_request; NaN (default) */
    mstar_graph_agree agree;    /* NULL: this process is alone */
    void *agree_user;
} mstar_graph_runner_desc;
MSTAR_API void mstar_graph_runner_desc_init(mstar_graph_runner_desc *desc);

MSTAR_API mstar_status mstar_graph_runner_create(mstar_device *device,
                                                 const mstar_graph_runner_desc *desc,
                                                 mstar_graph_runner **runner);
MSTAR_API void mstar_graph_runner_destroy(mstar_graph_runner *runner);
/* The stream that steps without one of their own run on. Borrowed. */
MSTAR_API mstar_stream *mstar_graph_runner_get_stream(const mstar_graph_runner *runner);

/*
 * Claims what the captures need and counts it: all scratch is laid out and all leases are claimed;
 * then, bucket after bucket, largest first, a dummy step goes through the hooks, resources and all,
 * into static inputs, and the forward is recorded and thrown away. A bucket that breaks the memory
 * rule (free_bytes, floor_bytes) or fails is dropped, and what was taken for it is given back.
 * After it mstar_graph_runner_query tells every byte that will be held, graphs included.
 *
 * Runners that share resources are all prepared before the first of them captures, unless none of
 * the resources moves what it has claimed; one that would is told (mstar_claim.captured) and
 * refuses. Their steps come one at a time, and on a GPU one after another whatever their streams;
 * one of them at a time plans ahead, a plan and the steps in its slot likewise one after another,
 * and none while one is prepared or captures. Buckets of equal keys share what the resources hold
 * for them, until the last runner that claimed them is destroyed or has dropped them.
 */
MSTAR_API mstar_status mstar_graph_runner_prepare(mstar_graph_runner *runner);

/*
 * Captures every bucket that prepare kept, largest first. A capture that fails drops its bucket,
 * all slots of it, and the others go on: the runner logs which and why, and serves their steps
 * eager. MSTAR_OK then, unless MSTAR_REQUIRE_ACCELERATOR_GRAPHS is 1, or any text but 0: then the
 * status of the first failure, naming the buckets.
 */
MSTAR_API mstar_status mstar_graph_runner_capture(mstar_graph_runner *runner);

/* A step. */
typedef struct mstar_runner_step {
    uint32_t struct_size;
    int32_t eager; /* 1: no replay, whatever is captured; default 0 */
    const char *walk;
    const char *additional_key_info; /* NULL: none */
    const int64_t *requests;         /* count handles, each >= 0, none twice */
    const mstar_node_input *inputs;  /* one a request */
    int64_t count;
    mstar_stream *stream; /* NULL: the runner's own */
} mstar_runner_step;
MSTAR_API void mstar_runner_step_init(mstar_runner_step *step);

typedef struct mstar_runner_result {
    uint32_t struct_size;
    int32_t slot;
    mstar_graph_miss miss; /* NONE: replayed */
    int32_t reserved;
    mstar_frame_size size; /* of the tensors */
    int64_t num_tokens;    /* plan tokens of the step's own requests */
    int64_t num_requests;  /* of the step */
    /* Results as forward named them, size.num_tokens or size.bs rows of which the first num_tokens
       or num_requests are results, the requests' in their order. Behind them are the rows of a
       batched bucket that pad, computed and not results, and what is left of former steps.
       Borrowed until the runner's next step or its end. */
    const mstar_tensors *outputs;
} mstar_runner_result;

/*
 * Serves one step. MSTAR_BUSY when a resource is not ready for it (try again later); any other
 * failure leaves the runner usable. No requests: MSTAR_OK, miss EMPTY, no outputs. The work is
 * ordered by the runner's stream; on the CPU it is done.
 */
MSTAR_API mstar_status mstar_graph_runner_step(mstar_graph_runner *runner,
                                               const mstar_runner_step *step,
                                               mstar_runner_result *result);

/*
 * Plans the step that comes next while one is running, from a second thread: its bucket's resources
 * are planned in the next slot, and the step, when it comes as announced (same walk and requests),
 * finds that done. inputs may be NULL where they are not built yet: then a batched capture is
 * meant. *miss: NONE, or why the step will not be replayed and nothing was planned. A step that is
 * being made ready is waited for; a plan that serves no step after all is dropped.
 * On a GPU the plan is sent on step->stream, NULL: a stream of the runner's for plans alone; it
 * waits there for the step that used the slot last, and the step that comes waits for the plan.
 * MSTAR_OUT_OF_ORDER without resources or with one slot, and until the runner has captured;
 * MSTAR_NOT_SUPPORTED when a resource cannot.
 */
MSTAR_API mstar_status mstar_graph_runner_pre_plan(mstar_graph_runner *runner,
                                                   const mstar_runner_step *step,
                                                   mstar_graph_miss *miss);

/* ---- what happened --------------------------------------------------------------------------- */

typedef struct mstar_graph_runner_info {
    uint32_t struct_size;
    int32_t num_slots;
    int64_t num_buckets;      /* that the configs ask for */
    int64_t num_captured;     /* whole buckets */
    int64_t num_unaffordable; /* dropped by the memory rule */
    int64_t num_failed;       /* whose capture failed */
    size_t scratch_bytes;     /* the pool */
    size_t static_input_bytes;
    size_t graph_bytes; /* what is recorded; before capture, what will be */
    size_t host_bytes;  /* the runner's own records */
    size_t eager_bytes; /* scratch of eager steps, as large as they needed */
    int64_t capture_ns; /* of all captures, warm-ups included, choosing not */
    int64_t replays, eager_steps;
    int64_t misses[16];      /* by mstar_graph_miss; NONE is 0 */
    int64_t replayed_tokens; /* real ones of replayed steps */
    int64_t padding_tokens;  /* bucket tokens less real ones, over replays */
    int64_t eager_tokens;
    int64_t num_handles;     /* that pad, from first_handle down */
    int64_t region_leases;   /* that steps took for regions before they were declared */
    int64_t specialised;     /* launches cut for their bucket, one slot of each counted */
    int64_t tuned;           /* of them, otherwise than by rule */
    int64_t dropped_choices; /* candidates that gave other bits */
    int64_t tuning_ns;       /* of choosing, apart from capture_ns */
    size_t resource_bytes;   /* of the resources, as they tell; others may share them */
    size_t total_bytes;      /* all that the runner holds: the five kinds above, not resources */
    int64_t first_handle;    /* of rows that pad: below those of runners that were created over the
                                same resources before; -2 for the first */
    size_t driver_bytes;     /* the driver's share of the graphs, measured (mstar_graph_info) */
} mstar_graph_runner_info;
/* May be called from any thread while steps run: counters are then those of some moment. */
MSTAR_API mstar_status mstar_graph_runner_query(const mstar_graph_runner *runner,
                                                mstar_graph_runner_info *info);

typedef enum mstar_bucket_state {
    MSTAR_BUCKET_PLANNED = 0,      /* not captured yet */
    MSTAR_BUCKET_CAPTURED = 1,     /* serves steps */
    MSTAR_BUCKET_UNAFFORDABLE = 2, /* no room by the memory rule */
    MSTAR_BUCKET_FAILED = 3,       /* its capture failed: see reason */
    MSTAR_BUCKET_DISAGREED = 4     /* another rank dropped it */
} mstar_bucket_state;
/* "planned", "captured", ...; "unknown" outside. Static string. */
MSTAR_API const char *mstar_bucket_state_name(mstar_bucket_state state);

typedef struct mstar_runner_bucket_info {
    uint32_t struct_size;
    int32_t config_index;
    mstar_bucket_state state;
    int32_t reserved;
    mstar_frame_size size;
    size_t scratch_bytes; /* what its forward works in; inside the shared pool */
    size_t graph_bytes;   /* of all slots; known when the runner is prepared */
    int64_t nodes;        /* recorded launches of one slot */
    int64_t capture_ns;   /* of all slots */
    int64_t replays, tokens, padding_tokens;
    char reason[160];         /* "" or why it is not captured */
    const char *compile_mode; /* in force; "none": compile is 0. Static string */
    int64_t specialised;      /* launches of one slot cut for the bucket */
    int64_t tuned;            /* of them, otherwise than by rule */
    int64_t dropped_choices;  /* candidates that gave other bits */
    int64_t tuning_ns;        /* of choosing, all slots, apart from capture_ns */
    size_t resource_bytes;    /* that the resources took for it, all slots */
} mstar_runner_bucket_info;
/* Buckets in the order of capture; MSTAR_NOT_FOUND past the last. */
MSTAR_API mstar_status mstar_graph_runner_query_bucket(const mstar_graph_runner *runner,
                                                       int64_t index,
                                                       mstar_runner_bucket_info *info);

#ifdef __cplusplus
}
#endif

#endif
