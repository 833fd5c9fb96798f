/*
 * test_runner_device.c - runners on a device that fails, that has no graphs, or that is asked to
 * wait: each call to the device fails once in prepare, capture and a step, of whole forwards and of
 * regions; what is left is right, and nothing leaks. Slots and waits as the environment says.
 */
#include "mock_backend.h"
#include "support_region.h"
#include "support_runner.h"

#include <stdlib.h>
#include <string.h>

/* ---- each call fails once -------------------------------------------------------------------- */

/* prepare and capture with the n-th call to the device failing; false when there is no such call.
 */
static bool start_with(bench *b, mock_backend *mock, int64_t n)
{
    bench_open(b, 1);
    node_manage(&b->node);
    mock_install(mock, b->device);
    b->configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    b->num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b->node);
    mstar_graph_runner_desc desc = bench_desc(b, &hooks);
    CHECK_OK(mstar_graph_runner_create(b->device, &desc, &b->runner));
    mock_fail_at(mock, n);
    mstar_status status = mstar_graph_runner_prepare(b->runner);
    if (status != MSTAR_OK) { /* a claim that failed is tried again */
        assert_non_null(strstr(mstar_last_error(), "mock: "));
        CHECK_OK(mstar_graph_runner_prepare(b->runner));
    }
    CHECK_OK(mstar_graph_runner_capture(b->runner));
    bool happened = mock->failed != NULL;
    mock_fail_at(mock, 0);
    return happened;
}

static void close_mocked(bench *b, mock_backend *mock)
{
    mstar_graph_runner_destroy(b->runner);
    b->runner = NULL;
    mock_remove(mock, b->device);
    bench_close(b);
}

static void captures_of_whole_forwards(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {71};
    int64_t dropped = 0, calls = 0;
    for (int64_t n = 1;; n++) {
        mock_backend mock;
        bool happened = start_with(&b, &mock, n);
        mstar_graph_runner_info info = bench_query(&b);
        assert_true(info.num_captured >= 2);
        assert_int_equal(info.num_captured + info.num_failed, 3);
        for (int64_t i = 0; i < 3; i++) {
            mstar_runner_bucket_info bucket = bench_query_bucket(&b, i);
            if (bucket.state == MSTAR_BUCKET_FAILED)
                assert_non_null(strstr(bucket.reason, "mock: "));
        }
        dropped += info.num_failed;
        bool large = bench_query_bucket(&b, 0).state == MSTAR_BUCKET_CAPTURED;
        bench_check_step(&b, "w", &rng, (int64_t[]){30, 34}, 2,
                         large ? MSTAR_GRAPH_MISS_NONE : MSTAR_GRAPH_MISS_NOT_CAPTURED);
        bench_check_step(&b, "w", &rng, (int64_t[]){3, 4, 5}, 3, MSTAR_GRAPH_MISS_NONE);
        close_mocked(&b, &mock);
        if (!happened)
            break;
        calls++;
    }
    assert_true(calls > 20 && dropped > 10);
}

/* A replayed step and an eager one with each of their calls failing once: the error names the
 * call, and the same step is right afterwards. */
static void steps_of_whole_forwards(void **state)
{
    (void)state;
    static bench b;
    static node_step step;
    check_rng rng = {72};
    mock_backend mock;
    (void)start_with(&b, &mock, 0);
    node_step_fill(&step, &rng, (int64_t[]){9, 4}, 2);
    int64_t failed[2] = {0, 0};
    for (int eager = 0; eager < 2; eager++) {
        for (int64_t n = 1;; n++) {
            mstar_runner_step request;
            mstar_runner_result result = {.struct_size = sizeof result};
            mstar_runner_step_init(&request);
            request.walk = "w";
            request.eager = eager;
            request.requests = step.requests;
            request.inputs = step.inputs;
            request.count = step.count;
            mock_fail_at(&mock, n);
            mstar_status status = mstar_graph_runner_step(b.runner, &request, &result);
            bool happened = mock.failed != NULL;
            mock_fail_at(&mock, 0);
            if (!happened) {
                CHECK_OK(status);
                break;
            }
            assert_int_equal(status, MSTAR_DEVICE_FAILED);
            assert_non_null(strstr(mstar_last_error(), "mock: "));
            failed[eager]++;
            bench_check_step(&b, "w", &rng, (int64_t[]){9, 4}, 2, MSTAR_GRAPH_MISS_NONE);
        }
    }
    assert_true(failed[0] >= 2 && failed[1] >= 8);
    close_mocked(&b, &mock);
}

static void captures_of_regions(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2}, totals[] = {16, 64};
    static region_bench b;
    check_rng rng = {73};
    int64_t dropped = 0;
    for (int64_t n = 1;; n++) {
        mock_backend mock;
        region_bench_open(&b, sizes, 2, 0, totals, 2);
        mock_install(&mock, b.device);
        mstar_region_runner_desc desc = region_bench_desc(&b);
        CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
        mock_fail_at(&mock, n);
        mstar_status status = mstar_region_runner_prepare(b.runner);
        if (status == MSTAR_OK)
            CHECK_OK(mstar_region_runner_capture(b.runner));
        else
            assert_non_null(strstr(mstar_last_error(), "mock: "));
        bool happened = mock.failed != NULL;
        mock_fail_at(&mock, 0);
        if (status == MSTAR_OK) {
            mstar_region_runner_info info = region_bench_query(&b);
            assert_true(info.num_captured >= 3);
            dropped += 4 - info.num_captured;
            if (info.num_captured < 4)
                assert_non_null(strstr(info.first_failure, "mock: "));
            const int64_t lengths[] = {10, 3};
            if (mstar_region_runner_can_run(b.runner, 2, 13) == MSTAR_GRAPH_MISS_NONE)
                (void)region_bench_check(&b, &rng, lengths, 2, 2);
            if (mstar_region_runner_can_run(b.runner, 1, 10) == MSTAR_GRAPH_MISS_NONE)
                (void)region_bench_check(&b, &rng, lengths, 1, 1);
        }
        mstar_region_runner_destroy(b.runner);
        b.runner = NULL;
        mock_remove(&mock, b.device);
        region_bench_close(&b);
        if (!happened)
            break;
    }
    assert_true(dropped > 10);
}

/* ---- no graphs ------------------------------------------------------------------------------- */

static void a_device_without_graphs(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {74};
    mock_backend mock;
    bench_open(&b, 1);
    node_manage(&b.node);
    mock_install(&mock, b.device);
    mock.backend.capture_begin = NULL;
    b.configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    bench_start(&b, &desc);
    mstar_graph_runner_info info = bench_query(&b);
    assert_int_equal(info.num_captured, 0);
    assert_int_equal(info.num_failed, 3);
    assert_non_null(strstr(bench_query_bucket(&b, 0).reason, "has no graphs"));
    bench_check_step(&b, "w", &rng, (int64_t[]){9, 4}, 2, MSTAR_GRAPH_MISS_NOT_CAPTURED);
    assert_int_equal(mstar_graph_batch_cap(b.configs, 1, "w"), 4); /* caps batches all the same */
    close_mocked(&b, &mock);
}

/* ---- the environment ------------------------------------------------------------------------- */

static void waits_after_each_step(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        int64_t waits;
    } rows[] = {{NULL, 0}, {"0", 0}, {"1", 1}};
    static node_step step;
    static node_result result;
    check_rng rng = {75};
    node_step_fill(&step, &rng, (int64_t[]){9, 4}, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static bench b;
        mock_backend mock;
        if (rows[i].value != NULL)
            setenv("MSTAR_ENGINE_STEP_SYNC", rows[i].value, 1);
        (void)start_with(&b, &mock, 0);
        unsetenv("MSTAR_ENGINE_STEP_SYNC"); /* read when the runner was made */
        for (int eager = 0; eager < 2; eager++) {
            int64_t before = mock.waits;
            (void)node_run(b.runner, "w", &step, eager, &result);
            assert_int_equal(mock.waits - before, rows[i].waits);
        }
        close_mocked(&b, &mock);
    }
}

static mstar_status plan_nothing(void *self, const mstar_step_context *context,
                                 const mstar_resource_step *step, const mstar_plan_results *results,
                                 const void **result)
{
    (void)self;
    (void)context;
    (void)step;
    (void)results;
    (void)result;
    return MSTAR_OK;
}

/* A resource that could plan ahead and needs no two slots gets them for that alone. */
static void slots_for_planning_ahead(void **state)
{
    (void)state;
    static const struct {
        const char *pre_plan, *slots;
        int pre_plans;
        int32_t want;
    } rows[] = {{NULL, NULL, 1, 2}, {"1", NULL, 1, 2}, {"0", NULL, 1, 1}, {NULL, "3", 1, 3},
                {"0", "3", 1, 1},   {"1", NULL, 0, 1}, {NULL, "3", 0, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static bench b;
        const mstar_resource_hooks planner = {
            .struct_size = sizeof planner, .pre_plans = rows[i].pre_plans, .plan = plan_nothing};
        const mstar_resource list[] = {{.key = "attn", .hooks = &planner, .self = &b}};
        if (rows[i].pre_plan != NULL)
            setenv("MSTAR_PRE_PLAN_SPEC", rows[i].pre_plan, 1);
        if (rows[i].slots != NULL)
            setenv("MSTAR_NUM_SLOTS", rows[i].slots, 1);
        bench_open(&b, 1);
        node_manage(&b.node);
        mstar_resources_destroy(b.node.resources);
        CHECK_OK(mstar_resources_create(list, 1, &b.node.resources));
        mstar_node_hooks hooks = node_hooks(&b.node);
        mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
        desc.configs = NULL;
        desc.num_configs = 0;
        CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
        assert_int_equal(bench_query(&b).num_slots, rows[i].want);
        bench_close(&b);
        unsetenv("MSTAR_PRE_PLAN_SPEC");
        unsetenv("MSTAR_NUM_SLOTS");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captures_of_whole_forwards), cmocka_unit_test(steps_of_whole_forwards),
        cmocka_unit_test(captures_of_regions),        cmocka_unit_test(a_device_without_graphs),
        cmocka_unit_test(waits_after_each_step),      cmocka_unit_test(slots_for_planning_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
