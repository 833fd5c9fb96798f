/*
 * soak_graphs.c - many random pairs of a config and a sequence of steps: whole forwards with their
 * own wrappers or managed ones, planned ahead on a second thread or not, and regions. A step has
 * the same bits replayed, eager and request by request, and no memory is kept.
 *
 *   soak_graphs PAIRS [SEED [DEVICE]]
 *
 * DEVICE: "cuda:0", or "mock" for the mock of a GPU; a processor without it.
 */
#include <stdio.h>

#include "support_card.h"
#include "support_pairs.h"
#include "support_soak.h"

static int64_t pairs;
static uint64_t seed;

/* Nothing of a pair is left to be brought into a state. */
static void settle(void *context)
{
    (void)context;
}

static void random_pairs(void **state)
{
    (void)state;
    soak_memory memory;
    pair_counts counts = {0};
    soak_memory_start(&memory, pairs, 0, 0);
    memory.library_only = level_is_card(); /* a driver keeps memory of its own */
    for (int64_t i = 0; i < pairs; i++) {
        pair_check(seed, i, &counts);
        soak_memory_step(&memory, i + 1, settle, NULL);
    }
    /* the run would say little if most steps had found no capture */
    assert_true(counts.replayed > counts.eager);
    printf("%lld pairs: %lld steps replayed, %lld eager, %lld beside a plan made ahead; no bit "
           "differs\n",
           (long long)pairs, (long long)counts.replayed, (long long)counts.eager,
           (long long)counts.ahead);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_pairs)};
    if (argc < 2 || argc > 4)
        soak_fail("usage: soak_graphs PAIRS [SEED [DEVICE]]");
    pairs = soak_count(argv[1]);
    seed = argc > 2 ? (uint64_t)soak_count(argv[2]) : 1;
    if (argc > 3)
        soak_level(argv[3]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    soak_memory_end();
    return failed != 0;
}
