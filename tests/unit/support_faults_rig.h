/*
 * support_faults_rig.h - wrappers in graph mode, each captured once over static tensors of its
 * ceilings, and replayed with layout after layout.
 */
#ifndef SUPPORT_FAULTS_RIG_H
#define SUPPORT_FAULTS_RIG_H

#include "support_faults.h"

/* One wrapper and one captured run of it on each level, all for one shape. */
typedef struct fault_rig {
    attn_wrapper wrapper[ATTN_MAX_ISAS];
    mstar_stream *stream[ATTN_MAX_ISAS];
    mstar_graph *graph[ATTN_MAX_ISAS];
    attn_data fixed[ATTN_MAX_ISAS]; /* what the graph reads and writes */
    const int32_t *offsets[ATTN_MAX_ISAS][2];
    int64_t segments, rows, keys; /* ceilings */
} fault_rig;

void fault_rig_make(fault_rig *rig, const attn_problem *shape, int64_t segments, int64_t rows,
                    int64_t keys);
void fault_rig_free(fault_rig *rig);
/*
 * Ceilings from the problems and from "bucket", "bucket_rows", "max_rows" and "max_kv" where the
 * case has them; the problems are made to be of one kind. Captured with the first one planned.
 */
void fault_rig_for(fault_rig *rig, fault_case *c, attn_problem *problems, int count);
/*
 * Plans one layout on every level, runs it on tensors of the ceiling's rows that are NaN past the
 * plan, and replays it: both have the bits of a direct call, rows past the plan are zeros, no input
 * and no address changes, and the static offsets past the plan repeat the last one.
 */
void fault_rig_step(fault_rig *rig, const attn_problem *problem);
/* The replay alone: the step's data into the static tensors, plan, replay, compare. */
void fault_rig_replay(fault_rig *rig, int32_t isa, const attn_problem *problem,
                      const attn_data *data, const attn_data *direct);

#endif
