/*
 * support_fake_device.h - a device made in the test: a small backend whose attention is a naive
 * double-precision loop over the work list, with knobs for tiles and faults, and counters.
 *
 * It answers what can be known without a real kernel: what a plan hands to a backend, and whether
 * walking the items as documented gives the right numbers.
 */
#ifndef SUPPORT_FAKE_DEVICE_H
#define SUPPORT_FAKE_DEVICE_H

#include "device/backend.h"

typedef struct fake_device {
    mstar_device device;
    mst_backend backend;
    mst_attn_tile tile;   /* of every segment, unless vary */
    bool vary;            /* tiles differ from segment to segment */
    mst_attn_tile worst;  /* as answered; {1, 1} covers any tile */
    int64_t near_tokens;  /* as answered */
    size_t scratch_bytes; /* as answered */
    int64_t live_memory;  /* memory_alloc less memory_free */
    int64_t runs;         /* attn_run calls */
    mst_attn_call last;   /* the latest one */
} fake_device;

/* A CPU device of one thread, tiles of 4 rows and 1 head, 256 bytes of scratch. */
void fake_device_init(fake_device *fake);

#endif
