/* test_batching.c - the pure functions that cut a call into batches, against slow versions. */
#include "support_folder.h"

#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"

#define MAX_SEGMENTS 400
#define MAX_LENGTH 130

static void test_choose(void **state)
{
    (void)state;
    assert_int_equal(mst_batch_choose(0, 0, 4), MST_BATCH_ROWS);
    assert_int_equal(mst_batch_choose(1000, 1000000, 1), MST_BATCH_ROWS);
    assert_int_equal(mst_batch_choose(8, 1024, 4), MST_BATCH_SEGMENTS);
    assert_int_equal(mst_batch_choose(7, 1024, 4), MST_BATCH_ROWS);
    assert_int_equal(mst_batch_choose(8, 1023, 4), MST_BATCH_ROWS);
    assert_int_equal(mst_batch_choose(INT64_MAX / 2, INT64_MAX / 2, 1024), MST_BATCH_SEGMENTS);
    /* the rule as it is written down: segments >= 2 workers and tokens >= 256 workers */
    for (int32_t workers = 2; workers < 9; workers++) {
        for (int64_t segments = 0; segments < 20; segments++) {
            for (int64_t tokens = 0; tokens < 2400; tokens += 31) {
                bool many = segments >= 2 * workers && tokens >= 256 * (int64_t)workers;
                assert_int_equal(mst_batch_choose(segments, tokens, workers),
                                 many ? MST_BATCH_SEGMENTS : MST_BATCH_ROWS);
            }
        }
    }
}

static void test_parts(void **state)
{
    (void)state;
    assert_int_equal(mst_batch_parts(0, 1024, MST_BATCH_ROWS, 4), 1);
    assert_int_equal(mst_batch_parts(1024, 1024, MST_BATCH_ROWS, 4), 1);
    assert_int_equal(mst_batch_parts(1025, 1024, MST_BATCH_ROWS, 4), 2);
    for (int64_t tokens = 1024; tokens < 100000; tokens += 777) {
        int64_t parts = mst_batch_parts(tokens, 1024, MST_BATCH_SEGMENTS, 4);
        /* every worker gets as many, none of them over the bound, none needlessly small */
        assert_int_equal(parts % 4, 0);
        assert_true(parts * 1024 >= tokens);
        assert_true(tokens / parts >= 256);
    }
}

static void fill(test_random *random, int32_t *lengths, int64_t count, int32_t max_length)
{
    for (int64_t i = 0; i < count; i++) {
        bool empty = test_random_between(random, 0, 9) == 0;
        lengths[i] = empty ? 0 : (int32_t)test_random_between(random, 1, max_length);
    }
}

/* Selection by repeated search: the longest that is left, the first of them. */
static int64_t slow_order(const int32_t *lengths, int64_t count, int64_t *order)
{
    bool taken[MAX_SEGMENTS] = {false};
    int64_t placed = 0;
    for (;;) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++) {
            if (!taken[i] && lengths[i] > 0 && (best < 0 || lengths[i] > lengths[best]))
                best = i;
        }
        if (best < 0)
            return placed;
        taken[best] = true;
        order[placed++] = best;
    }
}

static void test_order(void **state)
{
    (void)state;
    test_random random = {11};
    int32_t lengths[MAX_SEGMENTS];
    int64_t counts[MAX_LENGTH + 2];
    int64_t order[MAX_SEGMENTS];
    int64_t wanted[MAX_SEGMENTS];
    for (int round = 0; round < 200; round++) {
        int64_t count = test_random_between(&random, 0, MAX_SEGMENTS);
        int32_t max_length = (int32_t)test_random_between(&random, 1, MAX_LENGTH);
        fill(&random, lengths, count, max_length);
        for (int i = 0; i < MAX_LENGTH + 2; i++)
            counts[i] = -77; /* scratch is not read, and not written past max_length */
        int64_t placed = mst_batch_order(lengths, count, max_length, counts, order);
        assert_int_equal(placed, slow_order(lengths, count, wanted));
        assert_memory_equal(order, wanted, (size_t)placed * sizeof *order);
        assert_int_equal(counts[max_length + 1], -77);
    }
}

/* How far a border in front of place i is from the ideal one of a part, in half tokens. */
static int64_t distance(int64_t tokens, int64_t part, int64_t parts, int64_t before)
{
    int64_t ideal = tokens * part / parts;
    return before > ideal ? before - ideal : ideal - before;
}

static void test_cut(void **state)
{
    (void)state;
    test_random random = {12};
    int32_t lengths[MAX_SEGMENTS];
    int64_t counts[MAX_LENGTH + 2];
    int64_t order[MAX_SEGMENTS];
    int64_t ends[MAX_SEGMENTS];
    for (int round = 0; round < 500; round++) {
        int64_t count = test_random_between(&random, 0, MAX_SEGMENTS);
        int32_t max_length = (int32_t)test_random_between(&random, 1, MAX_LENGTH);
        int64_t bound = max_length + test_random_between(&random, 0, 2000);
        fill(&random, lengths, count, max_length);
        int64_t tokens = 0;
        for (int64_t i = 0; i < count; i++)
            tokens += lengths[i];
        int64_t placed = mst_batch_order(lengths, count, max_length, counts, order);
        int64_t parts = mst_batch_parts(tokens, bound, MST_BATCH_SEGMENTS, 3);
        int64_t batches = mst_batch_cut(lengths, order, placed, tokens, parts, bound, ends);
        int64_t first = 0;
        int64_t before = 0;
        for (int64_t b = 0; b < batches; b++) {
            int64_t inside = 0;
            assert_true(ends[b] > first && ends[b] <= placed);
            for (int64_t i = first; i < ends[b]; i++)
                inside += lengths[order[i]];
            assert_true(inside <= bound);
            before += inside;
            /* cut where the bound asks for it, or at the place nearest to some ideal border */
            bool single = ends[b] == first + 1; /* a batch is never empty, whatever the borders */
            if (!single && b + 1 < batches && inside + lengths[order[ends[b]]] <= bound) {
                bool near = false;
                for (int64_t part = 1; part < parts && !near; part++)
                    near = 2 * distance(tokens, part, parts, before) <=
                           lengths[order[ends[b]]] + lengths[order[ends[b] - 1]];
                assert_true(near);
            }
            first = ends[b];
        }
        assert_int_equal(first, placed);
        assert_int_equal(before, tokens);
        assert_int_equal(batches == 0, placed == 0);
    }
}

/* One length for all: batches differ by one segment at most, so that workers finish together. */
static void test_cut_is_even(void **state)
{
    (void)state;
    int32_t lengths[MAX_SEGMENTS];
    int64_t order[MAX_SEGMENTS];
    int64_t ends[MAX_SEGMENTS];
    for (int64_t i = 0; i < MAX_SEGMENTS; i++) {
        lengths[i] = 16;
        order[i] = i;
    }
    for (int64_t parts = 1; parts <= 40; parts++) {
        int64_t batches = mst_batch_cut(lengths, order, MAX_SEGMENTS, MAX_SEGMENTS * 16, parts,
                                        MAX_SEGMENTS * 16, ends);
        assert_int_equal(batches, parts);
        for (int64_t b = 0; b < batches; b++) {
            int64_t segments = ends[b] - (b > 0 ? ends[b - 1] : 0);
            assert_in_range(segments, MAX_SEGMENTS / parts - 1, MAX_SEGMENTS / parts + 2);
        }
    }
}

/* The same by a simulation in steps of one token, and by the rule as it is written down. */
static bool slow_even(const int64_t *costs, int64_t batches, int32_t workers)
{
    int64_t left[8] = {0};
    int64_t next = 0, time = 0, sum = 0;
    for (int64_t b = 0; b < batches; b++)
        sum += costs[b];
    for (bool busy = true; busy; time += busy ? 1 : 0) {
        busy = false;
        for (int32_t w = 0; w < workers; w++) {
            if (left[w] == 0 && next < batches)
                left[w] = costs[next++];
            busy = busy || left[w] > 0;
            left[w] -= left[w] > 0 ? 1 : 0;
        }
    }
    int64_t share = (sum + workers - 1) / workers;
    return time <= share + share / 32 + 8;
}

static void test_is_even(void **state)
{
    (void)state;
    test_random random = {13};
    int32_t lengths[MAX_SEGMENTS];
    int64_t counts[MAX_LENGTH + 2];
    int64_t order[MAX_SEGMENTS];
    int64_t ends[MAX_SEGMENTS];
    int64_t costs[MAX_SEGMENTS];
    int even = 0, uneven = 0;
    assert_int_equal(mst_batch_cost(256, 384), 256 + 256 * 256 / 1152);
    assert_int_equal(mst_batch_cost(12, 384), 12);
    for (int round = 0; round < 400; round++) {
        int32_t workers = (int32_t)test_random_between(&random, 2, 8);
        int64_t hidden = test_random_between(&random, 8, 400);
        int64_t count = test_random_between(&random, 1, 60);
        fill(&random, lengths, count, MAX_LENGTH);
        int64_t tokens = 0;
        for (int64_t i = 0; i < count; i++)
            tokens += lengths[i];
        int64_t placed = mst_batch_order(lengths, count, MAX_LENGTH, counts, order);
        int64_t parts = test_random_between(&random, 1, 5 * workers);
        int64_t batches = mst_batch_cut(lengths, order, placed, tokens, parts, tokens, ends);
        for (int64_t b = 0, i = 0; b < batches; b++) {
            for (costs[b] = 0; i < ends[b]; i++)
                costs[b] += mst_batch_cost(lengths[order[i]], hidden);
        }
        bool want = batches > 4 * workers || slow_even(costs, batches, workers);
        assert_int_equal(mst_batch_is_even(lengths, order, ends, batches, hidden, workers), want);
        even += want ? 1 : 0;
        uneven += want ? 0 : 1;
    }
    assert_true(even > 50 && uneven > 50);
}

/* One text of 256 tokens among 31 of 12: whoever gets it is done long before the other. */
static void test_a_long_text_is_uneven(void **state)
{
    (void)state;
    enum { TEXTS = 32 };
    int32_t lengths[TEXTS];
    int64_t order[TEXTS], ends[TEXTS];
    for (int i = 0; i < TEXTS; i++) {
        lengths[i] = i == 0 ? 256 : 12;
        order[i] = i;
    }
    int64_t parts = mst_batch_parts(628, 256, MST_BATCH_SEGMENTS, 2);
    int64_t batches = mst_batch_cut(lengths, order, TEXTS, 628, parts, 256, ends);
    assert_false(mst_batch_is_even(lengths, order, ends, batches, 384, 2));
    for (int i = 0; i < TEXTS; i++)
        lengths[i] = 24;
    parts = mst_batch_parts(TEXTS * 24, 256, MST_BATCH_SEGMENTS, 2);
    batches = mst_batch_cut(lengths, order, TEXTS, TEXTS * 24, parts, 256, ends);
    assert_true(mst_batch_is_even(lengths, order, ends, batches, 384, 2));
    assert_true(mst_batch_is_even(lengths, order, ends, 1, 384, MST_EVEN_WORKERS + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choose),
                                       cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_cut_is_even),
                                       cmocka_unit_test(test_is_even),
                                       cmocka_unit_test(test_a_long_text_is_uneven)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
