/*
 * test_cuda_plans.c - steps and plans made ahead wait for one another on the device and never on
 * the host, those of runners over the same resources too. Over the mock driver.
 */
#include "support_card.h"
#include "support_mock_cuda.h"
#include "support_mock_track.h"
#include "support_runner.h"

#include "graph/runner.h"

/* A step whose results stay where they are: nothing is sent after it. */
static void step_only(mstar_graph_runner *runner, const node_step *step, int eager)
{
    mstar_runner_step request;
    mstar_runner_result result = {.struct_size = sizeof result};
    mstar_runner_step_init(&request);
    request.eager = eager;
    request.walk = "w";
    request.requests = step->requests;
    request.inputs = step->inputs;
    request.count = step->count;
    CHECK_OK(mstar_graph_runner_step(runner, &request, &result));
    assert_int_equal(result.miss, eager ? MSTAR_GRAPH_MISS_DISABLED : MSTAR_GRAPH_MISS_NONE);
}

/* A step of one runner waits, on the device, for the last one of another over the same resources:
 * they share plans. */
static void runners_that_share_plans(void **state)
{
    (void)state;
    static bench b;
    static node_step step;
    static node_result got, want;
    check_rng rng = {87};
    mstar_graph_runner *runners[2];
    if (card_is_real())
        return;
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 2, true));
    runners[0] = b.runner;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    bench_start(&b, &desc);
    runners[1] = b.runner;
    const mock_cuda *mock = mock_cuda_now();
    for (int i = 0; i < 12; i++) {
        mstar_graph_runner *runner = runners[i % 2];
        const void *ours = mstar_stream_get_native(mstar_graph_runner_get_stream(runner));
        const void *theirs =
            mstar_stream_get_native(mstar_graph_runner_get_stream(runners[1 - i % 2]));
        int64_t syncs = mock->calls[MOCK_stream_synchronize] + mock->calls[MOCK_event_synchronize];
        node_step_fill(&step, &rng, (int64_t[]){5, 3, 9}, 3);
        step_only(runner, &step, i / 2 % 2);
        assert_true(i == 0 || track_is_after(ours, theirs)); /* before any step the host waited */
        assert_false(track_is_after(theirs, ours));
        if (i >= 4) /* the first eager steps make their buffers */
            assert_int_equal(
                mock->calls[MOCK_stream_synchronize] + mock->calls[MOCK_event_synchronize], syncs);
    }
    (void)node_run(b.runner, "w", &step, 1, &want);
    mstar_graph_runner_destroy(runners[1]);
    b.runner = runners[0];
    (void)node_run(b.runner, "w", &step, 0, &got);
    node_check_equal(&step, &got, &want);
    bench_close(&b);
}

static mstar_status plan_ahead(const bench *b, const node_step *next, mstar_stream *stream)
{
    mstar_graph_miss miss;
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = next->requests;
    step.inputs = next->inputs;
    step.count = next->count;
    step.stream = stream;
    mstar_status status = mstar_graph_runner_pre_plan(b->runner, &step, &miss);
    assert_int_equal(miss, MSTAR_GRAPH_MISS_NONE);
    return status;
}

/* A plan made ahead, on a stream of the runner's or of the caller's, waits for the step that had
 * its slot, and the step that comes waits for the plan; the host waits for neither. */
static void plans_made_ahead(void **state)
{
    (void)state;
    static bench b;
    static node_step step;
    static node_result got, want;
    check_rng rng = {83};
    mstar_stream *theirs;
    if (card_is_real())
        return;
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 2, true));
    CHECK_OK(mstar_stream_create(b.device, 1, &theirs));
    const mock_cuda *mock = mock_cuda_now();
    const void *ours = mstar_stream_get_native(mstar_graph_runner_get_stream(b.runner));
    for (int i = 0; i < 12; i++) {
        node_step_fill(&step, &rng, (int64_t[]){5, 3, 9}, 3);
        mstar_stream *stream = i % 2 == 0 ? theirs : NULL;
        const void *planning =
            mstar_stream_get_native(stream != NULL ? stream : b.runner->plan_stream);
        assert_ptr_not_equal(planning, ours);
        int64_t syncs = mock->calls[MOCK_stream_synchronize] + mock->calls[MOCK_event_synchronize];
        CHECK_OK(plan_ahead(&b, &step, stream));
        assert_int_equal(mock->calls[MOCK_stream_synchronize] + mock->calls[MOCK_event_synchronize],
                         syncs);
        assert_false(track_is_after(ours, planning));
        if (i % 3 == 2) { /* another step comes: that plan is dropped, but its copy is in flight */
            static node_step other;
            node_step_fill(&other, &rng, (int64_t[]){1, 2}, 2);
            assert_int_equal(node_run(b.runner, "w", &other, 0, &got), MSTAR_GRAPH_MISS_NONE);
            assert_true(track_is_after(ours, planning));
            continue;
        }
        assert_int_equal(node_run(b.runner, "w", &step, 0, &got), MSTAR_GRAPH_MISS_NONE);
        assert_true(track_is_after(ours, planning));
        (void)node_run(b.runner, "w", &step, 1, &want);
        (void)node_run(b.runner, "w", &step, 1, &want); /* two: the slots' turns stay as they are */
        node_check_equal(&step, &got, &want);
        CHECK_OK(plan_ahead(&b, &step, stream)); /* the slot of the step before the last */
        CHECK_OK(plan_ahead(&b, &step, stream)); /* once more */
        (void)node_run(b.runner, "w", &step, 0, &got);
        node_check_equal(&step, &got, &want);
    }
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query(b.node.manager, &info));
    assert_true(info.promoted > 0);
    CHECK_OK(mstar_stream_synchronize(theirs));
    mstar_stream_destroy(theirs);
    bench_close(&b);
}

/* Two runners' buckets of equal keys have the same wrappers: a plan waits for the step that had its
 * slot last, whoever's, and a step for the plan that was made into its slot. */
static void plans_of_two_runners(void **state)
{
    (void)state;
    static bench b;
    static node_step step;
    check_rng rng = {88};
    if (card_is_real())
        return;
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 2, true));
    mstar_graph_runner *first = b.runner;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    desc.num_slots = 2;
    bench_start(&b, &desc);
    const void *ours = mstar_stream_get_native(mstar_graph_runner_get_stream(first));
    const void *planning = mstar_stream_get_native(b.runner->plan_stream);
    node_step_fill(&step, &rng, (int64_t[]){5, 3, 9}, 3);
    for (int i = 0; i < 2; i++) /* slots 0 and 1 */
        step_only(first, &step, 0);
    step_only(b.runner, &step, 0);
    assert_false(track_is_after(planning, ours));
    CHECK_OK(plan_ahead(&b, &step, NULL)); /* slot 1, of the other runner's latest step */
    assert_true(track_is_after(planning, ours));
    step_only(first, &step, 0); /* slot 0 */
    assert_false(track_is_after(ours, planning));
    node_step_fill(&step, &rng, (int64_t[]){4, 8}, 2);
    step_only(first, &step, 0);
    assert_true(track_is_after(ours, planning)); /* that plan is dropped; its copy is in flight */
    step_only(b.runner, &step, 0);
    CHECK_OK(plan_ahead(&b, &step, NULL)); /* slot 0 */
    int64_t syncs = mock_cuda_now()->calls[MOCK_event_synchronize];
    mstar_graph_runner_destroy(b.runner);
    /* its latest step, what its memory waits for, and the plans of both slots */
    assert_true(mock_cuda_now()->calls[MOCK_event_synchronize] - syncs >= 5);
    b.runner = first;
    step_only(first, &step, 0);
    bench_close(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runners_that_share_plans),
        cmocka_unit_test(plans_made_ahead),
        cmocka_unit_test(plans_of_two_runners),
    };
    card_choose(argc, argv);
    level_use_card(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
