/*
 * support_ragged.h - what the tests of the ragged managers share: a manager in a set of its own,
 * steps from short lists, and rows of q, k and v whose attention is known from a plain wrapper.
 */
#ifndef SUPPORT_RAGGED_H
#define SUPPORT_RAGGED_H

#include "step/step.h"
#include "support_check.h"

enum { RAGGED_HEADS = 2, RAGGED_DIM = 8, RAGGED_ROWS = 64, RAGGED_MAX_SEGMENTS = 16 };

typedef struct ragged_part {
    const char *label;
    int64_t request;
    int32_t span;
} ragged_part;

typedef struct ragged_fixture {
    mstar_device *device;
    mstar_stream *stream;
    mstar_ragged_manager *manager;
    mstar_resources *set;
    mstar_step *step;
    mstar_step_context context;
    float q[RAGGED_ROWS][RAGGED_HEADS][RAGGED_DIM], k[RAGGED_ROWS][RAGGED_HEADS][RAGGED_DIM],
        v[RAGGED_ROWS][RAGGED_HEADS][RAGGED_DIM], out[RAGGED_ROWS][RAGGED_HEADS][RAGGED_DIM];
} ragged_fixture;

void ragged_desc(mstar_ragged_kind kind, mstar_ragged_manager_desc *desc);
/* desc NULL: ragged_desc of the kind. */
void ragged_open(ragged_fixture *f, mstar_ragged_kind kind, const mstar_ragged_manager_desc *desc);
void ragged_close(ragged_fixture *f);

/* A step of the manager's resource, replacing what the fixture's step held. pair: NULL, or
 * "q:kv". */
void ragged_declare(ragged_fixture *f, const ragged_part *parts, int count, const char *pair,
                    int causal);
/* admit and plan; lease NULL: eager, on the slot. */
mstar_status ragged_plan(ragged_fixture *f, const mstar_lease *lease, int32_t slot);
mstar_ragged_manager_info ragged_info(const ragged_fixture *f);
mstar_ragged_prefill_info ragged_wrapper_info(const ragged_fixture *f, const char *label);

/* Runs a label over rows of q and out, kv_rows of k and v; out is NaN before. */
mstar_status ragged_run(ragged_fixture *f, const char *label, int64_t rows, int64_t kv_rows);
/* Runs it and compares the planned rows of out, bit for bit, with an eager wrapper of its own over
 * these lengths; rows beyond are checked to be 0 where zero_tail. */
void ragged_check(ragged_fixture *f, const char *label, mstar_ragged_kind kind, const int32_t *q,
                  const int32_t *kv, int count, int causal, int64_t rows, bool zero_tail);

#endif
