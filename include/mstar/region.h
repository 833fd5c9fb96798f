/*
 * mstar/region.h - a region of a forward captured on its own, while what surrounds it stays eager.
 *
 * The network calls the region itself: it asks whether a capture serves the batch
 * (mstar_region_runner_can_run), runs it, or runs its own eager code. Each shape of the config has
 * its own static inputs in each slot; what a call brings is copied to their start and the rest is
 * zeroed. Results are copied, as the last of the captured work, to buffers that no other capture
 * writes: they hold until this runner's next run, and mstar_region_result_copy keeps one longer.
 *
 *   life     create -> prepare (every runner before any capture) -> capture -> run ... -> destroy
 *   threads  one at a time, as the forward that calls it; can_run and can_lease from any thread
 */
#ifndef MSTAR_REGION_H
#define MSTAR_REGION_H

#include "mstar/runner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Walk of the bucket keys of all regions; the additional key info is "<node>_<label>". */
#define MSTAR_REGION_WALK "__region__"

typedef struct mstar_region_runner_desc {
    uint32_t struct_size;
    int32_t num_slots; /* -1 (default): 1, or 2 where the region's declared step has a resource that
                          asks for double buffering */
    const char *node;  /* default "node" */
    const char *label; /* required: the region's name in the node */
    const mstar_piecewise_config *config; /* required; kept */
    mstar_resources *resources;           /* kept; NULL: none. Needed by a config that declares */
    mstar_stream *stream;                 /* required; kept: the stream of the forward around */
    int32_t num_warmups;                  /* default 2 */
    int32_t reserved;
    int64_t first_handle; /* rows that pad have handles from here down, num_handles of info of
                             them; -1 (default): below those of all runners over the resources */
    int64_t free_bytes;   /* memory that prepare and capture may take: static inputs, results,
                             graphs and the resources' buffers; -1 (default) no bound */
    int64_t floor_bytes;  /* of it to be left over; default 0 */
} mstar_region_runner_desc;
MSTAR_API void mstar_region_runner_desc_init(mstar_region_runner_desc *desc);

typedef struct mstar_region_runner mstar_region_runner;
MSTAR_API mstar_status mstar_region_runner_create(mstar_device *device,
                                                  const mstar_region_runner_desc *desc,
                                                  mstar_region_runner **runner);
MSTAR_API void mstar_region_runner_destroy(mstar_region_runner *runner);
/* Claims the resources' buffers of every shape and slot. Then, shape after shape, largest first,
 * makes the static inputs, runs the region once and records it once, to make its results' buffers
 * and count its graph: after it the info tells every byte. A shape that breaks the memory rule
 * (free_bytes, floor_bytes) or for which some of it fails is dropped, and what was taken for it is
 * given back. */
MSTAR_API mstar_status mstar_region_runner_prepare(mstar_region_runner *runner);
/* Captures every shape, largest first. A failure drops the shape, all slots of it, and is logged;
 * where MSTAR_REQUIRE_ACCELERATOR_GRAPHS is 1, or any text but 0, it is an error. */
MSTAR_API mstar_status mstar_region_runner_capture(mstar_region_runner *runner);

/* Why a batch cannot be served; NONE: it can. num_tokens -1: not known. No shape is captured before
 * mstar_region_runner_capture is over. */
MSTAR_API mstar_graph_miss mstar_region_runner_can_run(const mstar_region_runner *runner,
                                                       int64_t bs, int64_t num_tokens);
/* 1 when the config wants its lease before the outer step is declared, its can_lease agrees, and a
 * capture serves the batch (its tokens are the sum of input_seq_len); else 0. can_lease is called
 * on the thread that asks, from several at a time where several ask. Takes nothing: a node without
 * a runner of whole forwards asks this itself. */
MSTAR_API int mstar_region_runner_can_lease(const mstar_region_runner *runner,
                                            const mstar_node_input *inputs, int64_t count);
/* Borrowed. */
MSTAR_API const char *mstar_region_runner_get_label(const mstar_region_runner *runner);

/*
 * Makes the region known to the runner of its node's whole forwards, before that captures. From
 * then on, before a step that runs eager is declared, each region whose can_lease (above) says so
 * is leased, and the context's region_leases name it in every hook of the step: declare leaves out
 * what the region plans itself, and forward runs the region. The region still declares, plans and
 * commits on its own; its next run takes the slot that was leased. A lease that the step has not
 * used when it ends, well or not, is given back and counted.
 *
 * No lease is taken for a step that is replayed whole, nor for one that asks to be eager. A leased
 * region and its step share a stream: MSTAR_INVALID_ARGUMENT for a step on another one.
 *
 * Refused: another device, a label that the runner has already, and padding handles that the runner
 * or another of its regions uses for the same resources. A region is prepared before the runner
 * captures, and outlives the runner's last step.
 */
MSTAR_API mstar_status mstar_graph_runner_add_region(mstar_graph_runner *runner,
                                                     mstar_region_runner *region);

typedef struct mstar_region_call {
    uint32_t struct_size;
    uint32_t reserved;
    const mstar_tensors *inputs; /* by name, host memory or the device's (to integers in host memory
                                    only host memory); names that the region lacks are ignored,
                                    buffers that are not named keep their contents. Device memory is
                                    read in stream order */
    const int64_t *requests;     /* each >= 0, none twice; NULL: the region's resources are not
                                    touched */
    int64_t num_requests;
    const int64_t *seq_lens; /* NULL: not known. One request may bring several */
    int64_t num_seq_lens;
    int64_t real_bs; /* -1: num_requests, else num_seq_lens */
} mstar_region_call;
MSTAR_API void mstar_region_call_init(mstar_region_call *call);

typedef struct mstar_region_result {
    uint32_t struct_size;
    int32_t slot;
    int64_t bs, total_tokens; /* of the shape */
    int64_t real_len;         /* rows of outputs: real tokens (packed), real requests (batched) */
    const mstar_tensors *outputs; /* views of the first real_len rows, until the next run */
    mstar_stream *stream;         /* the region's, that results come in order of. Borrowed */
} mstar_region_result;

/*
 * MSTAR_OUT_OF_ORDER when no capture serves the call: ask first. MSTAR_BUSY or MSTAR_CANCELLED when
 * a resource does not admit it. A failure leaves the runner usable.
 */
MSTAR_API mstar_status mstar_region_runner_run(mstar_region_runner *runner,
                                               const mstar_region_call *call,
                                               mstar_region_result *result);
/* Copies one result into memory of the caller's, a compact tensor of the same dtype and shape; from
 * a device in stream order, and waits for a copy in host memory. MSTAR_NOT_FOUND for a name that
 * there is not. */
MSTAR_API mstar_status mstar_region_result_copy(const mstar_region_result *result, const char *name,
                                                const mstar_tensor *copy);

typedef struct mstar_region_runner_info {
    uint32_t struct_size;
    int32_t num_slots;
    int64_t num_shapes, num_captured;
    int64_t num_handles; /* padding handles in use, from first_handle down */
    size_t static_input_bytes, output_bytes, graph_bytes; /* known when prepared */
    int64_t capture_ns;
    int64_t replays, refused; /* refused: runs without a capture */
    int64_t tokens, padding_tokens;
    char first_failure[160];       /* "" or why the first dropped shape was */
    int64_t leases, unused_leases; /* taken before a step; given back by a step without a run */
    const char *compile_mode;      /* in force; "none": compile is 0. Static string */
    int64_t specialised, tuned, dropped_choices, tuning_ns; /* as in mstar_graph_runner_info, but
                                                               every slot counts */
    int64_t num_unaffordable;                               /* shapes dropped by the memory rule */
    size_t resource_bytes; /* that the resources took when it was prepared */
} mstar_region_runner_info;
MSTAR_API mstar_status mstar_region_runner_query(const mstar_region_runner *runner,
                                                 mstar_region_runner_info *info);

#ifdef __cplusplus
}
#endif

#endif
