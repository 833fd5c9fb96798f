/* test_graph_traffic.c - buckets from traffic: the programme against brute force, and by hand. */
#include "support_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mstar/graph.h"
#include "support_random.h"

#define MAX_STEPS 24

/* Padding of all steps with the given buckets by the runner's rule; -1 when one is not served. */
static int64_t slow_padding(const mstar_traffic_step *steps, int64_t num_steps,
                            const int64_t (*buckets)[2], int64_t num_buckets)
{
    int64_t padding = 0;
    for (int64_t i = 0; i < num_steps; i++) {
        int64_t best = -1;
        for (int64_t j = 0; j < num_buckets; j++) {
            bool fits = buckets[j][0] >= steps[i].bs && buckets[j][1] >= steps[i].num_tokens;
            if (fits && (best < 0 || buckets[j][1] < best))
                best = buckets[j][1];
        }
        if (best < 0)
            return -1;
        padding += steps[i].count * (best - steps[i].num_tokens);
    }
    return padding;
}

/* Every set of at most max_buckets pairs (bs, tokens) that occur: exponential, and nothing assumed
 * about bs being free. */
static void brute(const mstar_traffic_step *steps, int64_t num_steps, int64_t max_buckets,
                  int64_t (*buckets)[2], int64_t used, int64_t from, int64_t *best, int64_t *fewest)
{
    int64_t padding = slow_padding(steps, num_steps, (const int64_t(*)[2])buckets, used);
    if (padding >= 0 && (*best < 0 || padding < *best || (padding == *best && used < *fewest))) {
        *best = padding;
        *fewest = used;
    }
    if (used == max_buckets)
        return;
    for (int64_t i = from; i < num_steps * num_steps; i++) {
        buckets[used][0] = steps[i / num_steps].bs;
        buckets[used][1] = steps[i % num_steps].num_tokens;
        brute(steps, num_steps, max_buckets, buckets, used + 1, i + 1, best, fewest);
    }
}

static void check_served(const mstar_traffic_step *steps, int64_t num_steps,
                         const mstar_traffic_bucket *buckets, int64_t count)
{
    mstar_traffic_bucket again[64];
    memcpy(again, buckets, (size_t)count * sizeof *buckets);
    int64_t missed = -1, total = 0;
    for (int64_t i = 0; i < num_steps; i++)
        total += steps[i].count;
    CHECK_OK(mstar_traffic_serve(steps, num_steps, again, count, &missed));
    assert_int_equal(missed, 0);
    for (int64_t i = 0; i < count; i++) {
        assert_memory_equal(&again[i], &buckets[i], sizeof again[i]);
        assert_int_equal(buckets[i].padding_tokens,
                         buckets[i].steps * buckets[i].num_tokens - buckets[i].tokens);
        total -= buckets[i].steps;
        if (i > 0)
            assert_true(buckets[i].num_tokens > buckets[i - 1].num_tokens);
    }
    assert_int_equal(total, 0);
}

static void test_brute_force(void **state)
{
    (void)state;
    check_rng rng = {5};
    for (int round = 0; round < 400; round++) {
        mstar_traffic_step steps[6];
        int64_t num_steps = check_integer(&rng, 1, 6), max_buckets = check_integer(&rng, 1, 3);
        for (int64_t i = 0; i < num_steps; i++)
            steps[i] = (mstar_traffic_step){check_integer(&rng, 1, 4), check_integer(&rng, 0, 30),
                                            check_integer(&rng, 0, 5)};
        int64_t pairs[8][2], best = -1, fewest = 0;
        brute(steps, num_steps, max_buckets, pairs, 0, 0, &best, &fewest);
        mstar_traffic_bucket buckets[3];
        int64_t count = -1, padding = 0;
        CHECK_OK(mstar_traffic_plan(steps, num_steps, max_buckets, buckets, &count));
        for (int64_t i = 0; i < count; i++)
            padding += buckets[i].padding_tokens;
        assert_int_equal(padding, best);
        assert_int_equal(count, fewest);
        check_served(steps, num_steps, buckets, count);
    }
}

/* Larger ones against the plain quadratic programme, every bound on the number of buckets. */
static void test_quadratic(void **state)
{
    (void)state;
    check_rng rng = {6};
    for (int round = 0; round < 60; round++) {
        enum { N = 60 };
        mstar_traffic_step steps[N];
        int64_t n = check_integer(&rng, 1, N), tokens = 0;
        for (int64_t i = 0; i < n; i++) {
            tokens += check_integer(&rng, 1, 50); /* ascending, none twice */
            steps[i] = (mstar_traffic_step){1, tokens, check_integer(&rng, 0, 1000)};
        }
        static int64_t cost[N + 1][N + 1]; /* [buckets][levels] */
        for (int64_t k = 0; k <= n; k++) {
            for (int64_t j = 0; j <= n; j++) {
                cost[k][j] = j == 0 ? 0 : INT64_MAX;
                int64_t run = 0;
                for (int64_t i = j - 1; k > 0 && i >= 0; i--) {
                    run += steps[i].count * (steps[j - 1].num_tokens - steps[i].num_tokens);
                    if (cost[k - 1][i] != INT64_MAX && cost[k - 1][i] + run < cost[k][j])
                        cost[k][j] = cost[k - 1][i] + run;
                }
            }
        }
        for (int64_t k = 1; k <= n; k++) {
            mstar_traffic_bucket buckets[N];
            int64_t count, padding = 0;
            CHECK_OK(mstar_traffic_plan(steps, n, k, buckets, &count));
            for (int64_t i = 0; i < count; i++)
                padding += buckets[i].padding_tokens;
            assert_int_equal(padding, cost[k][n]); /* at most k: runs from level 0 are free */
            check_served(steps, n, buckets, count);
        }
    }
}

static void test_by_hand(void **state)
{
    (void)state;
    mstar_traffic_bucket buckets[8];
    int64_t count;
    CHECK_OK(mstar_traffic_plan(NULL, 0, 8, buckets, &count));
    assert_int_equal(count, 0);
    /* order and repetition do not matter; bs is the largest that a bucket serves */
    static const mstar_traffic_step steps[] = {
        {1, 100, 1}, {9, 10, 3}, {2, 11, 1}, {3, 10, 2}, {1, 99, 1}};
    CHECK_OK(mstar_traffic_plan(steps, 5, 2, buckets, &count));
    assert_int_equal(count, 2);
    assert_int_equal(buckets[0].num_tokens, 11);
    assert_int_equal(buckets[0].bs, 9);
    assert_int_equal(buckets[0].steps, 6);
    assert_int_equal(buckets[0].tokens, 61);
    assert_int_equal(buckets[0].padding_tokens, 5);
    assert_int_equal(buckets[1].num_tokens, 100);
    assert_int_equal(buckets[1].padding_tokens, 1);
    assert_true(fabs(mstar_traffic_waste(buckets, count) - 6.0 / 266.0) < 1e-15);
    /* no more buckets than are of use */
    CHECK_OK(mstar_traffic_plan(steps, 5, 8, buckets, &count));
    assert_int_equal(count, 4);
    assert_true(mstar_traffic_waste(buckets, count) == 0);
    assert_true(mstar_traffic_waste(NULL, 0) == 0);
    /* a step of count 0 must not miss, and costs nothing */
    static const mstar_traffic_step bound[] = {{1, 10, 5}, {4, 64, 0}};
    CHECK_OK(mstar_traffic_plan(bound, 2, 2, buckets, &count));
    assert_int_equal(count, 2);
    assert_int_equal(buckets[1].num_tokens, 64);
    assert_int_equal(buckets[1].steps, 0);
}

static void test_serve(void **state)
{
    (void)state;
    static const mstar_traffic_step steps[] = {{2, 10, 3}, {1, 40, 1}, {8, 5, 2}};
    mstar_traffic_bucket buckets[] = {
        {.bs = 4, .num_tokens = 32}, {.bs = 2, .num_tokens = 16}, {.bs = 1, .num_tokens = 16}};
    int64_t missed;
    CHECK_OK(mstar_traffic_serve(steps, 3, buckets, 3, &missed));
    assert_int_equal(missed, 3); /* 40 tokens, and twice 8 requests */
    assert_int_equal(buckets[1].steps, 3);
    assert_int_equal(buckets[1].padding_tokens, 18);
    assert_int_equal(buckets[0].steps + buckets[2].steps, 0);
}

static void test_batch(void **state)
{
    (void)state;
    static const int64_t lengths[] = {5, 3, 9, 1, 1, 0, 9};
    mstar_traffic_step steps[7];
    int64_t count;
    CHECK_OK(mstar_traffic_batch(lengths, 7, -1, -1, steps, &count));
    assert_int_equal(count, 7);
    assert_int_equal(steps[2].num_tokens, 9);
    CHECK_OK(mstar_traffic_batch(lengths, 7, 3, -1, steps, &count));
    assert_int_equal(count, 3);
    static const mstar_traffic_step by_three[] = {{3, 17, 1}, {3, 2, 1}, {1, 9, 1}};
    assert_memory_equal(steps, by_three, sizeof by_three);
    CHECK_OK(mstar_traffic_batch(lengths, 7, -1, 10, steps, &count));
    static const mstar_traffic_step by_ten[] = {{2, 8, 1}, {2, 10, 1}, {3, 10, 1}};
    assert_int_equal(count, 3);
    assert_memory_equal(steps, by_ten, sizeof by_ten);
    CHECK_INVALID(mstar_traffic_batch(lengths, 7, -1, 8, steps, &count), "lengths[2] is 9");
    CHECK_INVALID(mstar_traffic_batch(lengths, 7, 2, 8, steps, &count), "one of them must be -1");
    CHECK_INVALID(mstar_traffic_batch(lengths, 7, 0, -1, steps, &count), "batch_size is 0");
    CHECK_INVALID(mstar_traffic_batch((int64_t[]){-1}, 1, 1, -1, steps, &count),
                  "lengths[0] is -1");
    CHECK_OK(mstar_traffic_batch(NULL, 0, 4, -1, NULL, &count));
    assert_int_equal(count, 0);
}

static void test_refused(void **state)
{
    (void)state;
    mstar_traffic_step steps[2] = {{1, 1, 1}, {1, 1, 1}};
    mstar_traffic_bucket buckets[2];
    int64_t count = 77;
    CHECK_INVALID(mstar_traffic_plan(steps, 2, 0, buckets, &count), "max_buckets is 0");
    CHECK_INVALID(mstar_traffic_plan(NULL, 2, 1, buckets, &count), "steps is NULL");
    CHECK_INVALID(mstar_traffic_plan(steps, -1, 1, buckets, &count), "num_steps is -1");
    CHECK_INVALID(mstar_traffic_plan(steps, 2, 1, NULL, &count), "buckets is NULL");
    steps[1].bs = 0;
    CHECK_INVALID(mstar_traffic_plan(steps, 2, 1, buckets, &count), "steps[1]: bs is 0");
    steps[1] = (mstar_traffic_step){1, -1, 1};
    CHECK_INVALID(mstar_traffic_plan(steps, 2, 1, buckets, &count), "num_tokens is -1");
    steps[1] = (mstar_traffic_step){1, 1, -1};
    CHECK_INVALID(mstar_traffic_plan(steps, 2, 1, buckets, &count), "count is -1");
    steps[0].count = steps[1].count = INT32_MAX;
    CHECK_INVALID(mstar_traffic_plan(steps, 2, 1, buckets, &count), "count of all steps");
    assert_int_equal(count, 77);
    /* the largest that is taken does not overflow */
    steps[0] = (mstar_traffic_step){1, INT32_MAX, 1};
    steps[1] = (mstar_traffic_step){1, 0, INT32_MAX - 1};
    CHECK_OK(mstar_traffic_plan(steps, 2, 1, buckets, &count));
    assert_int_equal(buckets[0].padding_tokens, (int64_t)INT32_MAX * (INT32_MAX - 1));
}

/* 40 buckets on log-normal lengths of median 60 to 512 waste at most 8 %. */
static void test_log_normal(void **state)
{
    (void)state;
    enum { N = 20000 };
    static int64_t lengths[N];
    static mstar_traffic_step steps[N];
    for (int median = 60; median <= 512; median += 113) {
        test_random random = {(uint64_t)median};
        for (int i = 0; i < N; i++) {
            double length = median * exp(0.8 * test_random_normal(&random));
            lengths[i] = (int64_t)fmin(fmax(length, 1), 8192);
        }
        int64_t num_steps, count;
        mstar_traffic_bucket buckets[40];
        CHECK_OK(mstar_traffic_batch(lengths, N, -1, -1, steps, &num_steps));
        CHECK_OK(mstar_traffic_plan(steps, num_steps, 40, buckets, &count));
        double waste = mstar_traffic_waste(buckets, count);
        assert_true(waste > 0 && waste <= 0.08);
    }
}

static mstar_status attempt(void *context)
{
    (void)context;
    static const mstar_traffic_step steps[] = {{1, 5, 1}, {2, 9, 4}};
    mstar_traffic_bucket buckets[2];
    int64_t count;
    return mstar_traffic_plan(steps, 2, 2, buckets, &count);
}

static void test_alloc_faults(void **state)
{
    (void)state;
    assert_int_equal(check_alloc_faults(attempt, NULL), 3);
    assert_int_equal(check_live_allocations(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brute_force), cmocka_unit_test(test_quadratic),
        cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_serve),
        cmocka_unit_test(test_batch),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_log_normal),  cmocka_unit_test(test_alloc_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
