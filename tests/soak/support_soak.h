/*
 * support_soak.h - what the soak programs share: stopping with a text, and memory that must stay
 * flat.
 */
#ifndef SUPPORT_SOAK_H
#define SUPPORT_SOAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mstar.h"

/* Prints one line and ends the program with 1. */
_Noreturn void soak_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with the library's text, unless the status is OK. */
void soak_must(mstar_status status, const char *what);
/* A count from the command line, from 1 to a billion. */
int64_t soak_count(const char *text);
void *soak_alloc(size_t bytes);
/* Everything runs on this GPU from here on (support_card.h), or ends with what is wrong. */
void soak_level(const char *device);

/*
 * Memory over a run of `total` steps: what the library holds and what the process has in memory.
 * Both are taken once the first tenth is done, when every buffer has met its largest input, and
 * looked at again at each tenth after it. The library's allocations and bytes
 * may not grow by more than their slack; the process may grow by SOAK_SLACK_BYTES: a step that
 * leaked 100 bytes would pass that in 90,000 steps. Under a sanitizer, which keeps freed memory,
 * only the library is looked at. Before a look `settle` brings the objects into one state, since a
 * plan holds what its layout needs.
 */
typedef struct soak_memory {
    int64_t total, next;
    int tenths;
    uint64_t slack_bytes, slack_allocations;
    uint64_t live_bytes, live_allocations;
    size_t resident_bytes;
    bool library_only; /* set after the start: the process is not looked at */
} soak_memory;
#define SOAK_SLACK_BYTES ((size_t)8 << 20)
void soak_memory_start(soak_memory *memory, int64_t total, uint64_t slack_bytes,
                       uint64_t slack_allocations);
/* After `done` steps; prints a line each tenth. */
void soak_memory_step(soak_memory *memory, int64_t done, void (*settle)(void *context),
                      void *context);
/* At the end: nothing of the library's is left. */
void soak_memory_end(void);

#endif
