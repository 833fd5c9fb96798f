/*
 * region.h - the parts of a region's runner.
 */
#ifndef MST_GRAPH_REGION_H
#define MST_GRAPH_REGION_H

#include "device/backend.h"
#include "graph/graph.h"
#include "graph/runner.h"
#include "mstar/region.h"

/* One shape in one slot. */
typedef struct mst_region_capture {
    mstar_tensors inputs; /* of the shape, all with memory */
    size_t input_bytes;   /* of those that came without memory, and where they lie */
    mstar_buffer *memory;
    void *host_memory;     /* the same for integers where the device has memory of its own */
    mstar_tensors outputs; /* of the shape, in out */
    size_t output_bytes;
    mstar_buffer *out;
    mstar_graph *graph; /* NULL: not captured */
    mstar_lease lease;
    bool claimed;
    int64_t num_tokens, num_requests; /* live counts */
} mst_region_capture;

struct mstar_region_runner {
    mstar_device *device;
    mstar_stream *stream;
    char *node, *label, *key_info;
    const mstar_piecewise_config *config;
    mstar_resources *resources;
    mstar_step *step;
    int32_t num_slots, num_warmups, next_slot;
    int64_t first_handle, num_handles, handles_added;
    int64_t free_bytes, floor_bytes; /* free -1: no bound */
    bool unaffordable;               /* why the shape under way failed */
    size_t held_before;              /* by the resources */
    _Atomic mst_runner_phase phase;  /* READY: captured does not change any more */
    mstar_capture_shapes shapes;
    int64_t *order; /* shapes as they are captured: largest first */
    uint8_t *captured;
    mst_region_capture *captures; /* [shape * num_slots + slot] */
    int64_t *handles;             /* max_batch_size */
    int64_t *lengths;             /* of the step in progress, grown */
    int64_t lengths_capacity;
    mstar_tensors results; /* views given out by the latest run */
    bool leased;           /* leased_slot is for the next run */
    int32_t leased_slot;
    mst_tuning tuning;
    mstar_status first_failure; /* of a shape */
    mstar_region_runner_info info;
};

/* region_capture.c */
/* declare, admit and plan of the region's own step; *declared 0: it has no resource work. */
mstar_status mst_region_plan(mstar_region_runner *runner, const mstar_step_context *context,
                             const int64_t *lengths, int64_t count, int *declared);
mstar_step_context mst_region_context(const mstar_region_runner *runner,
                                      const mst_region_capture *capture, const int64_t *requests,
                                      int64_t num_requests, int64_t bs);
/* The handles that pad in a slot, all max_batch_size of them. */
mstar_status mst_region_handles(mstar_region_runner *runner, int32_t slot, const int64_t *real,
                                int64_t num_real, int64_t bs);
void mst_region_reset_padding(mstar_region_runner *runner, const mstar_step_context *context,
                              int free_storage);

/* All that it holds is given back, its lease too. */
void mst_region_drop_capture(mstar_region_runner *runner, mst_region_capture *capture);

/* region_runner.c: the slot of a run: what was leased, else the next one. */
int32_t mst_region_take_slot(mstar_region_runner *runner);

#endif
