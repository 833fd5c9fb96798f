/*
 * runner.h - the parts of a runner, in the order in which a step meets them.
 */
#ifndef MST_GRAPH_RUNNER_H
#define MST_GRAPH_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/backend.h"
#include "graph/graph.h"
#include "mstar/runner.h"

/* ---- scratch.c: memory that a forward works in ----------------------------------------------- */

/* Asks lay_out for a size. *bytes: what place needs; tensors without data. */
mstar_status mst_scratch_lay_out(const mstar_graph_runner *runner, mstar_frame_size size,
                                 mstar_tensors *scratch, size_t *bytes);
/* Bytes of the tensors that have no data; one with data is refused unless it may be there. */
mstar_status mst_scratch_bytes(const mstar_tensors *scratch, bool may_have_data, size_t *bytes);
/* Gives every tensor without data its place in a block of the device's memory of at least that many
 * bytes. */
void mst_scratch_place(mstar_tensors *scratch, const mstar_device *device, void *block);
/* The same for those that are host memory whatever the device, in a zeroed block that is made for
 * them; none on a processor. */
mstar_status mst_scratch_place_host(mstar_tensors *scratch, const mstar_device *device,
                                    void **block, size_t *bytes);

/* ---- device_inputs.c: where a device reads a step's tensors ---------------------------------- */

/* Whether an input is host memory whatever the device: integers are, unless they were given on it.
 */
bool mst_input_is_host(const mstar_device *device, const mstar_tensor *tensor);
/* Says that the tensor's data is the device's memory. */
void mst_put_on_device(const mstar_device *device, mstar_tensor *tensor);
/* INVALID_ARGUMENT where from lies on a device and cannot be copied to `to` in one piece. */
mstar_status mst_input_check_place(const char *name, const mstar_tensor *from,
                                   const mstar_tensor *to, bool same_layout);
bool mst_is_same_layout(const mstar_tensor *a, const mstar_tensor *b);
/* Both host memory, of one shape. */
void mst_copy_elements(const mstar_tensor *from, const mstar_tensor *to, size_t count);
/* Host memory to the device, gathered on the way; to fills the bytes from its data on. */
mstar_status mst_send_gathered(mstar_stream *stream, const mstar_tensor *from,
                               const mstar_tensor *to, size_t bytes);
/* What the forward of an eager step reads: runner->staged, numbers sent to the device. */
mstar_status mst_eager_inputs(mstar_graph_runner *runner, const mstar_runner_step *step,
                              const mstar_tensors **inputs);

/* ---- static_inputs.c: buffers that captures read --------------------------------------------- */

/* One buffer of a config, as large as its largest capture needs; smaller ones use its start. */
typedef struct mst_static_input {
    char *name;
    mstar_dtype dtype;
    int32_t rank;
    int32_t dim;                   /* that varies; stored first */
    int64_t shape[MSTAR_MAX_RANK]; /* of the largest; shape[dim] is the room */
    size_t bytes;
    mstar_buffer *buffer; /* NULL: host memory of a device that has its own */
    void *data;           /* of either */
} mst_static_input;

typedef struct mst_static_inputs {
    mst_static_input *items;
    int64_t count, capacity;
    size_t bytes; /* of all */
} mst_static_inputs;

/* NULL: none of that name. */
mst_static_input *mst_static_inputs_find(const mst_static_inputs *inputs, const char *name);
/* Bytes that interning the tensors would take; SIZE_MAX: more than there can be. */
size_t mst_static_inputs_growth(const mst_static_inputs *inputs, const mstar_device *device,
                                const mstar_tensors *tensors);
/*
 * Finds or makes the buffer of each tensor and adds a view of the tensor's shape to views. The
 * first call decides which dimension varies; later ones must have the same other dimensions and no
 * more along it.
 */
mstar_status mst_static_inputs_intern(mst_static_inputs *inputs, mstar_device *device,
                                      const mstar_graph_config *config, int64_t num_tokens,
                                      const mstar_tensors *tensors, mstar_tensors *views);
/* Copies tensors to the start of the buffers of their names; names that no capture has are ignored,
 * buffers that are not named keep their contents, and so does what lies past a tensor. */
mstar_status mst_static_inputs_stage(const mst_static_inputs *inputs, const mstar_tensors *tensors,
                                     mstar_stream *stream);
/* Releases those from count on. */
void mst_static_inputs_trim(mst_static_inputs *inputs, int64_t count);
void mst_static_inputs_release(mst_static_inputs *inputs);

/* ---- specialise.c ---------------------------------------------------------------------------- */

/* Who tells how long a candidate takes; measure NULL: the clock. */
typedef struct mst_tuning {
    int64_t (*measure)(void *user, int64_t node, int32_t candidate, void (*run)(void *context),
                       void *context);
    void *user;
} mst_tuning;

typedef struct mst_specialised {
    mst_compiled counts;
    int64_t tuning_ns;
} mst_specialised;

/* mode: in force; NULL: the graph stays as it was recorded. like: see mst_compile. */
mstar_status mst_specialise(mstar_graph *graph, mstar_stream *stream, const char *mode,
                            const mstar_graph *like, const mst_tuning *tuning,
                            mst_specialised *made);

/* ---- runner.c -------------------------------------------------------------------------------- */

/* One bucket in one slot. */
typedef struct mst_capture {
    mstar_graph *graph;               /* NULL: not captured */
    int64_t num_tokens, num_requests; /* live counts */
    mstar_lease lease;
    mstar_tensors inputs, scratch, outputs;
} mst_capture;

typedef struct mst_runner_bucket {
    int32_t config_index;
    mstar_bucket_state state;
    mstar_frame_size size;
    size_t scratch_bytes, graph_bytes; /* of graphs: as counted, then as captured */
    size_t driver_bytes; /* of the graphs, as measured: never in the sums of what is ours */
    size_t resource_bytes;
    bool claimed; /* its leases, of every slot */
    int64_t nodes, capture_ns;
    const char *compile_mode;    /* static; NULL: compile is 0 */
    mst_specialised specialised; /* counts of one slot, time of all */
    _Atomic int64_t replays, tokens, padding_tokens;
    char reason[160];
} mst_runner_bucket;

typedef struct mst_runner_config {
    mstar_node_inputs padding; /* max_batch_size rows that pad */
    int64_t first_handle;      /* of slot 0; a slot has max_batch_size of them */
    mst_static_inputs inputs;
} mst_runner_config;

typedef struct mst_runner_stats {
    _Atomic int64_t replays, eager_steps, replayed_tokens, padding_tokens, eager_tokens;
    _Atomic int64_t misses[16];
    _Atomic int64_t region_leases;
    _Atomic size_t eager_bytes;
} mst_runner_stats;

/* What a step in a slot is made of; the next step, planned ahead, has another slot. */
typedef struct mst_slot {
    mstar_step *step;         /* NULL: the node has no resources */
    int64_t *handles;         /* max_bs */
    mstar_node_input *padded; /* max_bs, borrowed records */
    mstar_event *done;        /* after the latest step in this slot; NULL on a processor */
    mstar_event *planned;     /* after the latest plan made ahead; NULL on a processor */
} mst_slot;

typedef enum mst_runner_phase {
    MST_RUNNER_NEW,
    MST_RUNNER_PREPARED,
    MST_RUNNER_CAPTURING,
    MST_RUNNER_READY
} mst_runner_phase;

struct mstar_graph_runner {
    mstar_device *device;
    mstar_stream *stream;
    char *node;
    mstar_node_hooks hooks;
    void *user;
    const mstar_graph_config **configs;
    int64_t num_configs;
    mst_runner_config *config_states;
    mstar_resources *resources;
    int32_t num_slots, num_warmups;
    int64_t free_bytes, floor_bytes; /* free -1: no bound */
    double max_waste;
    mstar_graph_agree agree;
    void *agree_user;

    _Atomic mst_runner_phase phase; /* READY: captured does not change any more */
    bool laid_out, taken;           /* how far prepare is */
    bool unaffordable;              /* why the bucket under way failed */
    size_t held_before;             /* what free_bytes does not count */
    mstar_status first_failure;     /* of a bucket */
    mst_runner_bucket *buckets;     /* in the order of capture */
    mstar_graph_bucket *table;      /* the same, for mstar_graph_choose */
    uint8_t *captured;
    int64_t num_buckets;
    mst_capture *captures; /* [bucket * num_slots + slot] */
    mstar_buffer *pool;
    size_t pool_bytes;
    size_t own_bytes, resource_bytes; /* when prepare or capture was over: may be asked for while
                                         steps run */
    int64_t capture_ns;
    mst_tuning tuning;
    const mstar_graph_runner *like; /* of the same configs: its choices are taken over; or NULL */

    /* Held while a step is made ready and while one is planned ahead, let go before the forward:
       whoever comes second sees which slot is next. Runners over a set have that of the set. It
       refuses a thread that has it already: a hook that calls back. */
    pthread_mutex_t *lock, own_lock;
    atomic_bool busy; /* in prepare, capture or a step */
    int32_t next_slot;
    bool sync; /* MSTAR_ENGINE_STEP_SYNC */
    int64_t max_bs;
    int64_t first_padding, num_padding, padding_added; /* handles that pad, from the first down */
    mst_slot *slots;
    int32_t latest_slot;       /* of the latest step; -1: none, or a processor */
    int32_t open_slot;         /* of the step in progress; the same */
    mstar_stream *plan_stream; /* of plans made ahead; NULL on a processor */
    mstar_tensors staged;      /* what preprocess gave */
    mstar_buffer *eager_pool, *eager_input_pool;
    mstar_tensors eager_inputs, eager_scratch, eager_outputs;
    int64_t eager_tokens, eager_requests; /* live counts of eager steps */
    struct mstar_region_runner **regions; /* of the node, in the order added */
    const char **region_labels;           /* that hold a lease in the step at hand */
    int64_t num_regions, regions_capacity, labels_capacity;
    mst_runner_stats stats;
};

/* OUT_OF_ORDER while the runner is in another call: a hook calls back, or another thread calls. */
mstar_status mst_runner_enter(mstar_graph_runner *runner);
/* Passes status on. */
mstar_status mst_runner_leave(mstar_graph_runner *runner, mstar_status status);
/* Gives back a capture's graph and lists. */
void mst_capture_clear(mst_capture *capture);
/* Empties a list and keeps its memory for the next step. */
void mst_tensors_clear(mstar_tensors *tensors);
/* Nanoseconds on a clock that never goes back. */
int64_t mst_runner_now(void);

/* ---- stream_order.c: what steps and plans wait for on a device that works on its own --------- */

mstar_status mst_order_open(mstar_graph_runner *runner);
void mst_order_close(mstar_graph_runner *runner);
size_t mst_order_bytes(const mstar_graph_runner *runner);
/* The host waits for the latest step: before memory that it uses is given back. */
mstar_status mst_order_wait(const mstar_graph_runner *runner);
/* The same for the plans that it made ahead. */
mstar_status mst_order_wait_plans(const mstar_graph_runner *runner);
/* For all steps and plans of the runners that share its resources: before plans of a capture. */
mstar_status mst_order_wait_all(const mstar_graph_runner *runner);
/* Around a step in a slot; begin with the lock held. end: whatever the step's status, which it
 * passes on, and however far the step came; a second end does nothing. A step that could not be
 * made ready ends before the lock is let go: what it planned is not present, so that nobody refuses
 * to plan over it. */
mstar_status mst_order_begin(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream);
mstar_status mst_order_end(mstar_graph_runner *runner, mstar_stream *stream, mstar_status status);
/* Around a plan that is made ahead into a slot, with the lock held; end as with steps. */
mstar_status mst_order_plan_begin(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream);
mstar_status mst_order_plan_end(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream,
                                mstar_status status);

/* ---- serve_step.c ---------------------------------------------------------------------------- */

/* Whether the config's captures are of the step's walk and key info. */
bool mst_config_serves_step(const mstar_graph_config *config, const mstar_runner_step *step);
/* Grows a buffer of eager steps to so many bytes; what it held is lost. */
mstar_status mst_eager_reserve(mstar_graph_runner *runner, size_t bytes, mstar_buffer **buffer);

/* ---- step_work.c: one step's way through hooks and resources --------------------------------- */

/* The forward with the stream's live row count set, outputs emptied first. */
mstar_status mst_run_forward(mstar_graph_runner *runner, const mstar_frame *frame,
                             mstar_tensors *outputs);
/* declare alone, and the check of its key info against the lease's. */
mstar_status mst_declare(mstar_graph_runner *runner, mstar_step *step,
                         const mstar_step_context *context, const mstar_node_input *inputs,
                         int64_t count);
/* declare, admit, plan, and preprocess into runner->staged. BUSY or CANCELLED when not admitted. */
mstar_status mst_prepare_step(mstar_graph_runner *runner, mstar_step *step,
                              const mstar_step_context *context, const mstar_node_input *inputs,
                              int64_t count);
/* commit and publish. */
mstar_status mst_commit_step(mstar_graph_runner *runner, mstar_step *step,
                             const mstar_step_context *context);
/* Padding rows begin anew. */
void mst_reset_padding(mstar_graph_runner *runner, const mstar_step_context *context,
                       int free_storage);
/* Plan tokens of inputs under a config's multiplier (config NULL: 1). INVALID_ARGUMENT past the
 * int32 range. */
mstar_status mst_count_tokens(const mstar_node_input *inputs, int64_t count, int64_t multiplier,
                              int64_t *tokens);

/* Claims the buffers of all leases of a node at once; an error begins with who. */
mstar_status mst_claim_leases(mstar_resources *resources, const char *node,
                              const mstar_lease *leases, int64_t count, const char *who);

/* ---- region_lease.c: regions of a node, leased before the outer step is declared ------------- */

/* Leases the regions that want it and names them in the context of an eager step. */
mstar_status mst_lease_regions(mstar_graph_runner *runner, const mstar_runner_step *step,
                               mstar_step_context *context);
/* What the step has not used. */
void mst_return_leases(mstar_graph_runner *runner);
/* Every region is prepared before anything of the node is captured. */
mstar_status mst_check_regions_prepared(const mstar_graph_runner *runner);

/* ---- prepare.c ------------------------------------------------------------------------------- */

/* Records why a bucket is not captured, the present error text, and logs it. */
void mst_bucket_fail(mstar_graph_runner *runner, int64_t bucket, mstar_bucket_state state);
/* Gives back the claims of a bucket's leases, if there are any; its graphs are gone. */
void mst_bucket_unclaim(mstar_graph_runner *runner, int64_t bucket);
/* The memory rule, free_bytes -1: none. OUT_OF_MEMORY and *unaffordable where it does not hold with
 * so many bytes more than those held. */
mstar_status mst_afford(int64_t free_bytes, int64_t floor_bytes, size_t held, size_t more,
                        bool *unaffordable);
/* OUT_OF_MEMORY, and runner->unaffordable, where so many bytes more would break the memory rule. */
mstar_status mst_runner_afford(mstar_graph_runner *runner, size_t more);
static inline bool mst_bucket_is_kept(const mst_runner_bucket *bucket)
{
    return bucket->state == MSTAR_BUCKET_PLANNED;
}

/* ---- runner_bytes.c -------------------------------------------------------------------------- */

/* All that the runner holds for its captures and between steps, with the graphs of its buckets as
 * they were counted. What eager steps took is told apart. */
size_t mst_runner_bytes(const mstar_graph_runner *runner);
/* Keeps the figures that a query tells. */
void mst_runner_note_bytes(mstar_graph_runner *runner);

/* ---- capture.c ------------------------------------------------------------------------------- */

/* The inputs and the context of a bucket's dummy step in a slot; inputs to be released. */
typedef struct mst_dummy_step {
    mstar_node_inputs inputs;
    int64_t *handles;
    mstar_step_context context;
} mst_dummy_step;
mstar_status mst_dummy_step_make(mstar_graph_runner *runner, int64_t bucket, int32_t slot,
                                 mst_dummy_step *step);
void mst_dummy_step_release(mst_dummy_step *step);
/* Lays out the bucket's scratch, sends the step through the hooks and so many warm-ups, and fills
 * *frame for the recording that follows. */
mstar_status mst_ready_capture(mstar_graph_runner *runner, int64_t bucket,
                               const mst_dummy_step *step, int32_t num_warmups, mstar_frame *frame);
/* Records the forward into capture->graph and capture->outputs. */
mstar_status mst_record(mstar_graph_runner *runner, mst_capture *capture, mstar_frame *frame);
/* First of the max_batch_size handles that pad in this slot of a config. */
int64_t mst_first_handle(const mstar_graph_runner *runner, int32_t config_index, int32_t slot);

#endif
