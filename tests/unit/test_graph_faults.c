/*
 * test_graph_faults.c - every call of the seam failed once, over a whole life of captured forwards:
 * the reason is told, nothing is left open, and the next capture is as good as any.
 */
#include <stdio.h>
#include <string.h>

#include "mock_backend.h"
#include "support_ragged.h"
#include "support_replay.h"

typedef struct fixture {
    mstar_device *device;
    mock_backend mock;
    net_weights weights;
    net_state graph, eager;
} fixture;

static fixture f;

static int set_up(void **state)
{
    CHECK_OK(mstar_device_open("cpu", NULL, &f.device));
    mock_install(&f.mock, f.device);
    net_weights_open(&f.weights, f.device, 3);
    net_state_open(&f.graph, f.device, true);
    net_state_open(&f.eager, f.device, false);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    net_state_close(&f.graph);
    net_state_close(&f.eager);
    net_weights_close(&f.weights);
    assert_int_equal(f.mock.live_memory, 0);
    assert_int_equal(f.mock.live_streams, 0);
    assert_int_equal(f.mock.live_graphs, 0);
    mock_remove(&f.mock, f.device);
    CHECK_OK(mstar_device_close(f.device));
    return 0;
}

/* Captures, and replays three layouts. careful: statuses of calls inside the capture are read. */
static mstar_status life(mstar_stream *stream, mstar_graph **graph, bool careful)
{
    net_step step;
    check_rng rng = {4};
    MST_TRY(mstar_graph_capture_begin(stream));
    mstar_status status = net_forward(&f.weights, &f.graph, stream, NULL);
    if (careful && status != MSTAR_OK) {
        mstar_graph_capture_abort(stream);
        return status;
    }
    MST_TRY(mstar_graph_capture_end(stream, graph));
    for (int i = 0; i < 3; i++) {
        net_step_random(&step, &rng);
        MST_TRY(net_stage(&f.graph, stream, &step));
        MST_TRY(mstar_graph_replay(*graph, stream));
        MST_TRY(mstar_stream_synchronize(stream));
    }
    return MSTAR_OK;
}

static void check_good(mstar_stream *stream)
{
    net_step step;
    mstar_graph *graph = NULL;
    check_rng rng = {17};
    mock_fail_at(&f.mock, 0);
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(net_forward(&f.weights, &f.graph, stream, NULL));
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    for (int i = 0; i < 2; i++) {
        net_step_random(&step, &rng);
        CHECK_OK(net_stage(&f.graph, stream, &step));
        CHECK_OK(mstar_graph_replay(graph, stream));
        CHECK_OK(net_stage(&f.eager, stream, &step));
        CHECK_OK(net_forward(&f.weights, &f.eager, stream, &step));
        net_compare(&f.graph, &f.eager, &step, "after a fault");
    }
    mstar_graph_destroy(graph);
}

static void each_call_failed_once(bool careful)
{
    mstar_stream *stream;
    CHECK_OK(mstar_stream_create(f.device, -1, &stream));
    check_good(stream); /* eager plans have grown to what they need */
    uint64_t live = check_live_allocations();
    int64_t users = atomic_load(&f.device->users), failed = 0;
    bool saw_begin = false, saw_end = false, saw_replay = false, saw_launch = false;
    for (int64_t n = 1;; n++) {
        mstar_graph *graph = NULL;
        mock_fail_at(&f.mock, n);
        mstar_status status = life(stream, &graph, careful);
        mstar_graph_destroy(graph);
        (void)mstar_stream_set_rows(stream, NULL);
        if (f.mock.failed == NULL) {
            CHECK_OK(status);
            break;
        }
        char named[64];
        (void)snprintf(named, sizeof named, "mock: %s fails", f.mock.failed);
        CHECK_FAILED(status, MSTAR_DEVICE_FAILED, named);
        saw_begin = saw_begin || strcmp(f.mock.failed, "capture_begin") == 0;
        saw_end = saw_end || strcmp(f.mock.failed, "capture_end") == 0;
        saw_replay = saw_replay || strcmp(f.mock.failed, "graph_replay") == 0;
        saw_launch = saw_launch || strcmp(f.mock.failed, "attn_run") == 0;
        failed++;
        assert_int_equal(mstar_stream_is_capturing(stream), 0);
        assert_int_equal(f.mock.live_graphs, 0);
        assert_int_equal(check_live_allocations(), live);
        assert_int_equal(atomic_load(&f.device->users), users);
        check_good(stream);
    }
    mock_fail_at(&f.mock, 0);
    /* begin, 26 launches, end, three times replay and synchronize */
    assert_int_equal(failed, 1 + 26 + 1 + 6);
    assert_true(saw_begin && saw_end && saw_replay && saw_launch);
    mstar_stream_destroy(stream);
}

static void careful_callers(void **state)
{
    (void)state;
    each_call_failed_once(true);
}

/* A caller that does not read the status of a call inside the capture gets no graph without it. */
static void careless_callers(void **state)
{
    (void)state;
    each_call_failed_once(false);
}

/* A replay that fails has run nothing: the same step again, as plain calls, is right. */
static void a_failed_replay_is_made_up_for(void **state)
{
    (void)state;
    mstar_stream *stream;
    mstar_graph *graph = NULL;
    net_step step;
    check_rng rng = {8};
    net_step_random(&step, &rng);
    CHECK_OK(mstar_stream_create(f.device, -1, &stream));
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(net_forward(&f.weights, &f.graph, stream, NULL));
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    CHECK_OK(net_stage(&f.graph, stream, &step));
    mock_fail_at(&f.mock, 1);
    CHECK_FAILED(mstar_graph_replay(graph, stream), MSTAR_DEVICE_FAILED, "graph_replay fails");
    mstar_graph_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_query(graph, &info));
    assert_int_equal(info.replays, 0);
    CHECK_OK(net_forward(&f.weights, &f.graph, stream, NULL));
    CHECK_OK(net_stage(&f.eager, stream, &step));
    CHECK_OK(net_forward(&f.weights, &f.eager, stream, &step));
    net_compare(&f.graph, &f.eager, &step, "plain calls in place of a replay");
    CHECK_OK(mstar_graph_replay(graph, stream));
    net_compare(&f.graph, &f.eager, &step, "and the replay afterwards");
    mstar_graph_destroy(graph);
    mstar_stream_destroy(stream);
}

static void a_device_without_graphs(void **state)
{
    (void)state;
    mstar_stream *stream;
    CHECK_OK(mstar_stream_create(f.device, 1, &stream));
    mstar_status (*begin)(mstar_stream *, mstar_graph *) = f.mock.backend.capture_begin;
    f.mock.backend.capture_begin = NULL;
    uint64_t live = check_live_allocations();
    CHECK_FAILED(mstar_graph_capture_begin(stream), MSTAR_NOT_SUPPORTED, "has no graphs");
    assert_int_equal(check_live_allocations(), live);
    f.mock.backend.capture_begin = begin;
    check_good(stream);
    mstar_stream_destroy(stream);
}

/* ---- managers: memory of the device refused at each place --------------------------------------
 */

static mstar_status plan_both_ways(ragged_fixture *r)
{
    const mstar_lease lease = {.key = {"prefill", NULL, 2, 16}, .slot = 1};
    ragged_declare(r, (const ragged_part[]){{"a", 1, 3}, {"b", 1, 8}}, 2, NULL, 0);
    MST_TRY(ragged_plan(r, NULL, 0));
    MST_TRY(ragged_plan(r, &lease, 0));
    return ragged_run(r, "b", 16, 16);
}

static void managers_and_a_failing_device(void **state)
{
    (void)state;
    int64_t failed = 0;
    for (int64_t n = 1;; n++) {
        ragged_fixture r;
        mock_backend mock;
        ragged_open(&r, MSTAR_RAGGED_SELF, NULL);
        mock_install(&mock, r.device);
        mock_fail_at(&mock, n);
        mstar_status status = plan_both_ways(&r);
        const char *entry = mock.failed;
        if (entry == NULL) {
            CHECK_OK(status);
            assert_int_equal(mock.waits, 0); /* planning never waits for the device */
        } else {
            CHECK_FAILED(status, MSTAR_DEVICE_FAILED, entry);
            mock_fail_at(&mock, 0);
            CHECK_OK(plan_both_ways(&r)); /* what was made is used, what was not is made */
            ragged_check(&r, "a", MSTAR_RAGGED_SELF, (const int32_t[]){3}, NULL, 1, 0, 16, true);
            failed++;
        }
        mstar_step_destroy(r.step);
        mstar_resources_destroy(r.set);
        mstar_ragged_manager_destroy(r.manager);
        assert_int_equal(mock.live_memory, 0);
        mock_remove(&mock, r.device);
        mstar_stream_destroy(r.stream);
        CHECK_OK(mstar_device_close(r.device));
        if (entry == NULL)
            break;
    }
    /* four workspaces, a stream for each of four wrappers, one run */
    assert_int_equal(failed, 4 + 4 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(careful_callers),
        cmocka_unit_test(careless_callers),
        cmocka_unit_test(a_failed_replay_is_made_up_for),
        cmocka_unit_test(a_device_without_graphs),
        cmocka_unit_test(managers_and_a_failing_device),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
