/*
 * mock_backend.h - a backend around a real one: it counts what is asked of the seam, fails the call
 * that a test names by number, and knows what is still open.
 *
 * Numbers run over the entries that can fail, in the order in which they are called, from 1.
 */
#ifndef MOCK_BACKEND_H
#define MOCK_BACKEND_H

#include "device/backend.h"

typedef struct mock_backend {
    mst_backend backend; /* first: an entry finds the mock through device->backend */
    const mst_backend *real;
    int64_t calls;      /* so far */
    int64_t fail_at;    /* 0: none */
    const char *failed; /* the entry that was failed; NULL: none yet */
    int64_t live_memory, live_streams, live_events, live_graphs;
    int64_t waits;    /* synchronize, of streams and events */
    int64_t launches; /* compute entries and copies that were let through */
    int64_t replays;
} mock_backend;

/* The device works through the mock until it is removed. */
void mock_install(mock_backend *mock, mstar_device *device);
void mock_remove(mock_backend *mock, mstar_device *device);
/* From now on numbers start again, and call number n fails with "mock: ENTRY fails". */
void mock_fail_at(mock_backend *mock, int64_t n);

#endif
