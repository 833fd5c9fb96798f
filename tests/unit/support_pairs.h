/*
 * support_pairs.h - random pairs of a config and a sequence of steps, for the property that a
 * step's bits do not depend on how it is run: replayed, eager, or request by request, whatever the
 * buckets, slots and plans made ahead, and whatever memory held before.
 */
#ifndef SUPPORT_PAIRS_H
#define SUPPORT_PAIRS_H

#include <stdint.h>

typedef struct pair_counts {
    int64_t replayed, eager; /* steps and runs of regions */
    int64_t ahead;           /* steps planned ahead on a second thread, or meant to be */
} pair_counts;

/* Pair `number` of a series: the same whenever it is asked for. Adds to counts. A bit that differs
 * fails the test and names the pair. Nothing is left of it. */
void pair_check(uint64_t seed, int64_t number, pair_counts *counts);

#endif
