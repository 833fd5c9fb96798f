/*
 * test_graph_runner.c - whole forwards captured and replayed: equal bits replayed, eager and alone,
 * whatever memory held before; slots that take turns while the next step is planned ahead.
 */
#include "support_card.h"
#include "support_pairs.h"
#include "support_runner.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- replay ---------------------------------------------------------------------------------- */

static void test_sequence(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4}, lengths[] = {16, 64, 128};
    static bench b;
    check_rng rng = {1};
    bench_open(&b, 2);
    b.configs[0] = bench_packed("encode", sizes, 2, lengths, 3);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    bench_start(&b, &desc);
    assert_int_equal(bench_query(&b).num_captured, 6);
    for (int round = 0; round < 2; round++) {
        /* large, small, large; interleaved buckets; empty requests; a bucket filled to the brim */
        bench_check_step(&b, "encode", &rng, (int64_t[]){32, 32, 32, 32}, 4, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&b, "encode", &rng, (int64_t[]){7, 0, 1}, 3, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&b, "encode", &rng, (int64_t[]){100, 28}, 2, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&b, "encode", &rng, (int64_t[]){16}, 1, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&b, "encode", &rng, (int64_t[]){1}, 1, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&b, "encode", &rng, (int64_t[]){128}, 1, MSTAR_GRAPH_MISS_NONE);
        /* what no bucket holds runs eager, with a reason */
        bench_check_step(&b, "encode", &rng, (int64_t[]){100, 29}, 2, MSTAR_GRAPH_MISS_TOKENS);
        bench_check_step(&b, "encode", &rng, (int64_t[]){1, 1, 1, 1, 1}, 5,
                         MSTAR_GRAPH_MISS_BATCH_SIZE);
        bench_check_step(&b, "other", &rng, (int64_t[]){3}, 1, MSTAR_GRAPH_MISS_WALK);
    }
    mstar_graph_runner_info info = bench_query(&b);
    assert_int_equal(info.replays, 12);
    assert_int_equal(info.misses[MSTAR_GRAPH_MISS_NONE], 12);
    assert_int_equal(info.misses[MSTAR_GRAPH_MISS_TOKENS], 2);
    assert_int_equal(info.misses[MSTAR_GRAPH_MISS_BATCH_SIZE], 2);
    assert_int_equal(info.misses[MSTAR_GRAPH_MISS_WALK], 2);
    assert_int_equal(info.replayed_tokens, 2 * (128 + 8 + 128 + 16 + 1 + 128));
    assert_int_equal(info.padding_tokens, 2 * (0 + 8 + 0 + 0 + 15 + 0));
    int64_t replays = 0, steps = 0;
    for (int64_t i = 0; i < info.num_buckets; i++)
        replays += bench_query_bucket(&b, i).replays;
    for (int i = 0; i < MSTAR_NUM_GRAPH_MISSES; i++)
        steps += info.misses[i];
    assert_int_equal(replays, info.replays);
    assert_int_equal(steps, info.replays + info.eager_steps); /* every step is accounted for */
    bench_close(&b);
}

/* Layout after layout over one set of captures; each has the bits of eager and of each request
 * alone, and nothing is captured anew. */
static void test_replays_of_random_layouts(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {12};
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 2, true));
    mstar_graph_runner_info before = bench_query(&b);
    int64_t layouts = check_part(card_is_mock(b.device) ? 60 : 1000);
    for (int64_t i = 0; i < layouts; i++) {
        int64_t lengths[4], count = check_integer(&rng, 1, 4), left = bench_lengths[2];
        for (int64_t j = 0; j < count; j++)
            left -= lengths[j] = check_integer(&rng, 0, left);
        bench_check_step(&b, "w", &rng, lengths, count, MSTAR_GRAPH_MISS_NONE);
    }
    mstar_graph_runner_info after = bench_query(&b);
    assert_int_equal(after.replays, layouts);
    assert_int_equal(after.num_captured, 3);
    assert_int_equal(after.capture_ns, before.capture_ns);
    assert_int_equal(after.graph_bytes, before.graph_bytes);
    bench_close(&b);
}

/* A batched capture: padding rows keep their span, and real rows never see them. */
static void test_batched(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2, 8};
    static bench b;
    check_rng rng = {2};
    bench_open(&b, 1);
    b.configs[0] = bench_batched("decode", sizes, 2, 5);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    desc.num_slots = 2;
    bench_start(&b, &desc);
    bench_check_step(&b, "decode", &rng, (int64_t[]){5, 5}, 2, MSTAR_GRAPH_MISS_NONE);
    bench_check_step(&b, "decode", &rng, (int64_t[]){5}, 1, MSTAR_GRAPH_MISS_NONE);
    bench_check_step(&b, "decode", &rng, (int64_t[]){5, 5, 5}, 3, MSTAR_GRAPH_MISS_NONE);
    assert_int_equal(bench_query(&b).padding_tokens, 0); /* their rows are all computed */
    bench_close(&b);
}

/* Random configs and sequences of steps: the bits never depend on the bucket. Two hundred pairs;
 * the soak of graphs makes thousands. */
static void test_property(void **state)
{
    (void)state;
    pair_counts counts = {0};
    for (int64_t i = 0; i < 200; i++)
        pair_check(3, i, &counts);
    assert_true(counts.replayed > counts.eager && counts.ahead > 0);
}

/* ---- planned ahead --------------------------------------------------------------------------- */

typedef struct ahead {
    mstar_graph_runner *runner;
    const node_step *step;
    mstar_status status;
    mstar_graph_miss miss;
} ahead;

static void *plan_ahead(void *context)
{
    ahead *a = context;
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = a->step->requests;
    step.inputs = a->step->inputs;
    step.count = a->step->count;
    a->status = mstar_graph_runner_pre_plan(a->runner, &step, &a->miss);
    return NULL;
}

/* While a step runs on one slot, the next is planned into the other from a second thread; every
 * seventh announcement is of a step that does not come. */
static void test_pre_plan(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4}, lengths[] = {16, 48};
    static bench b;
    check_rng rng = {11};
    bench_open(&b, 1);
    node_manage(&b.node);
    b.configs[0] = bench_packed("w", sizes, 2, lengths, 2);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    bench_start(&b, &desc);
    assert_int_equal(bench_query(&b).num_slots, 2); /* a manager asks for them */
    static node_step steps[2], other;
    static node_result replayed, eager;
    int64_t spans[2][4];
    for (int i = 0; i < 4; i++)
        spans[0][i] = 4;
    node_step_fill(&steps[0], &rng, spans[0], 4);
    int32_t slot = -1;
    const int rounds = level_is_card() ? 30 : 200;
    for (int round = 0; round < rounds; round++) {
        node_step *now = &steps[round % 2], *next = &steps[(round + 1) % 2];
        int64_t count = check_integer(&rng, 1, 4);
        for (int64_t i = 0; i < count; i++)
            spans[1][i] = check_integer(&rng, 0, 12);
        node_step_fill(next, &rng, spans[1], count);
        node_step_fill(&other, &rng, (int64_t[]){3, 3, 3}, 3);
        ahead a = {.runner = b.runner, .step = round % 7 == 6 ? &other : next};
        pthread_t thread;
        mstar_runner_step step;
        mstar_runner_step_init(&step);
        step.walk = "w";
        step.requests = now->requests;
        step.inputs = now->inputs;
        step.count = now->count;
        mstar_runner_result result = {.struct_size = sizeof result};
        bool mock = card_is_mock(b.device); /* which serves one thread at a time */
        if (!mock)
            assert_int_equal(pthread_create(&thread, NULL, plan_ahead, &a), 0);
        CHECK_OK(mstar_graph_runner_step(b.runner, &step, &result));
        if (mock)
            assert_int_equal(pthread_create(&thread, NULL, plan_ahead, &a), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        CHECK_OK(a.status);
        assert_int_equal(a.miss, MSTAR_GRAPH_MISS_NONE);
        assert_int_not_equal(result.slot, slot); /* slots take turns */
        slot = result.slot;
        mstar_stream *stream = mstar_graph_runner_get_stream(b.runner);
        level_read(stream, replayed.pooled, mstar_tensors_find(result.outputs, "pooled")->data,
                   (size_t)now->count * sizeof *replayed.pooled);
        level_read(stream, replayed.hidden, mstar_tensors_find(result.outputs, "hidden")->data,
                   (size_t)result.num_tokens * sizeof *replayed.hidden);
        if (round % 5 == 0) { /* an eager step between: its slot counts too */
            (void)node_run(b.runner, "w", now, 1, &eager);
            node_check_equal(now, &replayed, &eager);
            (void)node_run(b.runner, "w", now, 1, &eager);
        }
    }
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query(b.node.manager, &info));
    assert_true(info.pre_plans > 0);
    assert_true(info.promoted > 0 && info.promoted + info.stale <= info.pre_plans);
    bench_close(&b);
}

static void test_pre_plan_refused(void **state)
{
    (void)state;
    static bench b;
    static node_step step;
    check_rng rng = {12};
    node_step_fill(&step, &rng, (int64_t[]){5}, 1);
    ahead a = {.step = &step};
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 2, false));
    a.runner = b.runner;
    (void)plan_ahead(&a);
    CHECK_FAILED(a.status, MSTAR_OUT_OF_ORDER, "none and 2");
    bench_close(&b);
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 1, true));
    a.runner = b.runner;
    (void)plan_ahead(&a);
    CHECK_FAILED(a.status, MSTAR_OUT_OF_ORDER, "resources and 1");
    bench_close(&b);
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 2, true));
    a.runner = b.runner;
    step.inputs[0].input_seq_len = 65;
    (void)plan_ahead(&a);
    CHECK_OK(a.status);
    assert_int_equal(a.miss, MSTAR_GRAPH_MISS_TOKENS);
    bench_close(&b);
}

static void test_slots_from_environment(void **state)
{
    (void)state;
    static bench b;
    static const struct {
        const char *slots;
        int32_t want; /* 0: refused */
    } rows[] = {{"2", 2}, {"3", 3}, {"1", 2}, {"0", 0}, {"x", 0}, {"65", 0}, {"", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        setenv("MSTAR_NUM_SLOTS", rows[i].slots, 1);
        bench_open(&b, 1);
        node_manage(&b.node);
        mstar_node_hooks hooks = node_hooks(&b.node);
        mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
        if (rows[i].want > 0) {
            bench_start(&b, &desc);
            assert_int_equal(bench_query(&b).num_slots, rows[i].want);
        } else {
            CHECK_INVALID(mstar_graph_runner_create(b.device, &desc, &b.runner), "MSTAR_NUM_SLOTS");
        }
        bench_close(&b);
    }
    unsetenv("MSTAR_NUM_SLOTS");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_batched),
        cmocka_unit_test(test_replays_of_random_layouts),
        cmocka_unit_test(test_property),
        cmocka_unit_test(test_pre_plan),
        cmocka_unit_test(test_pre_plan_refused),
        cmocka_unit_test(test_slots_from_environment),
    };
    const struct CMUnitTest card_tests[] = {
        cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_batched),
        cmocka_unit_test(test_replays_of_random_layouts),
        cmocka_unit_test(test_pre_plan),
        cmocka_unit_test(test_pre_plan_refused),
    };
    card_choose(argc, argv);
    int failed = card_is_real() ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
    level_use_card(true);
    return failed + cmocka_run_group_tests(card_tests, NULL, NULL);
}
