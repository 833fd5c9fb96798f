/* test_live_rows.c - live row counts, and what a replay refuses: ids, offsets, plans and counts
 * that do not fit what was recorded. */
#include <string.h>

#include "support_replay.h"

typedef struct fixture {
    mstar_device *device;
    mstar_stream *stream, *other;
    net_weights weights;
    net_state graph;
} fixture;

static fixture f;

static int set_up(void **state)
{
    CHECK_OK(mstar_device_open("cpu", NULL, &f.device));
    CHECK_OK(mstar_stream_create(f.device, -1, &f.stream));
    CHECK_OK(mstar_stream_create(f.device, 1, &f.other));
    net_weights_open(&f.weights, f.device, 3);
    net_state_open(&f.graph, f.device, true);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    net_state_close(&f.graph);
    net_weights_close(&f.weights);
    mstar_stream_destroy(f.stream);
    mstar_stream_destroy(f.other);
    CHECK_OK(mstar_device_close(f.device));
    return 0;
}

static mstar_tensor heads_of(float *data)
{
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 3,
                             (const int64_t[]){NET_TOKENS, NET_HEADS, NET_DIM});
}

static mstar_status activate(mstar_stream *stream)
{
    mstar_tensor x =
        mstar_tensor_make(f.graph.x, MSTAR_DTYPE_F32, 2, (const int64_t[]){NET_TOKENS, NET_WIDTH});
    return mstar_activation_run(stream, MSTAR_ACTIVATION_RELU, &x, &x);
}

/* ---- live row counts --------------------------------------------------------------------------
 */

static void live_rows_now(void **state)
{
    (void)state;
    int64_t rows = 3;
    for (int t = 0; t < NET_TOKENS; t++)
        f.graph.x[t][0] = -1;
    CHECK_OK(mstar_stream_set_rows(f.other, &rows));
    CHECK_OK(activate(f.other));
    assert_true(f.graph.x[2][0] == 0 && f.graph.x[3][0] == -1);
    rows = NET_TOKENS + 1;
    CHECK_INVALID(activate(f.other), "the live row count is 41; the tensors have 40 rows");
    rows = -1;
    CHECK_INVALID(activate(f.other), "the live row count is -1");
    rows = 0;
    CHECK_OK(activate(f.other));
    assert_true(f.graph.x[3][0] == -1);
    CHECK_INVALID(mstar_stream_set_rows(NULL, &rows), "stream is NULL");
    CHECK_INVALID(mstar_stream_set_rows(f.other, (const int64_t *)((const char *)&rows + 4)),
                  "aligned to 8");

    /* ids past the count are not looked at */
    mstar_tensor table = mstar_tensor_make(f.weights.words, MSTAR_DTYPE_F32, 2,
                                           (const int64_t[]){NET_WORDS, NET_WIDTH});
    mstar_tensor out =
        mstar_tensor_make(f.graph.x, MSTAR_DTYPE_F32, 2, (const int64_t[]){2, NET_WIDTH});
    const mstar_tensor *tables[] = {&table};
    const int32_t ids[] = {1, -7}, *id_list[] = {ids};
    rows = 1;
    CHECK_OK(mstar_embedding(f.other, tables, id_list, 1, &out));
    rows = 2;
    CHECK_INVALID(mstar_embedding(f.other, tables, id_list, 1, &out), "ids[0][1] is -7");
    CHECK_OK(mstar_stream_set_rows(f.other, NULL));
    CHECK_OK(activate(f.other));
    assert_true(f.graph.x[3][0] == 0);
}

/* ---- what a replay refuses ---------------------------------------------------------------------
 */

static void replay_of_bad_ids(void **state)
{
    (void)state;
    mstar_graph *graph = NULL;
    mstar_tensor table = mstar_tensor_make(f.weights.words, MSTAR_DTYPE_F32, 2,
                                           (const int64_t[]){NET_WORDS, NET_WIDTH});
    mstar_tensor out =
        mstar_tensor_make(f.graph.x, MSTAR_DTYPE_F32, 2, (const int64_t[]){4, NET_WIDTH});
    mstar_tensor after =
        mstar_tensor_make(f.graph.context, MSTAR_DTYPE_F32, 2, (const int64_t[]){4, NET_WIDTH});
    const mstar_tensor *tables[] = {&table, &table};
    int32_t ids[] = {1, 2, 3, 4}, more[] = {0, 0, 0, 0};
    const int32_t *lists[] = {ids, more};
    f.graph.context[0][0] = 7;
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(mstar_embedding(f.stream, tables, lists, 2, &out));
    CHECK_OK(mstar_activation_run(f.stream, MSTAR_ACTIVATION_NONE, &out, &after));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    mstar_stream *const streams[] = {f.stream, f.other};
    for (int s = 0; s < 2; s++) {
        more[2] = NET_WORDS;
        CHECK_INVALID(mstar_graph_replay(graph, streams[s]),
                      "ids[1][2] is 50; tables[1] has rows 0 to 49");
        assert_true(f.graph.context[0][0] == 7); /* what comes after does not run */
        more[2] = INT32_MIN;
        CHECK_INVALID(mstar_graph_replay(graph, streams[s]), "ids[1][2] is -2147483648");
        more[2] = 0;
    }
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    assert_true(f.graph.context[0][0] == f.graph.x[0][0]);
    mstar_graph_destroy(graph);
}

static void replay_of_bad_offsets(void **state)
{
    (void)state;
    static const struct {
        int32_t offsets[3], skip[2];
        const char *named;
    } bad[] = {
        {{0, 3, 2}, {0, 0}, "segment 1 has offsets 3 to 2"},
        {{0, 2, 5}, {0, 0}, "offsets must rise within 0 to 4"},
        {{-1, 2, 4}, {0, 0}, "segment 0 has offsets -1 to 2"},
        {{0, 2, 4}, {0, -1}, "skips -1"},
        {{INT32_MIN, INT32_MAX, 0}, {0, 0}, "segment 0"},
    };
    mstar_graph *graph = NULL;
    mstar_tensor x =
        mstar_tensor_make(f.graph.x, MSTAR_DTYPE_F32, 2, (const int64_t[]){4, NET_WIDTH});
    mstar_tensor out =
        mstar_tensor_make(f.graph.pooled, MSTAR_DTYPE_F32, 2, (const int64_t[]){2, NET_WIDTH});
    int32_t offsets[3] = {9, 9, 9}, skip[2] = {-5, 0}; /* not looked at while recording */
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(mstar_pooling_run(f.stream, MSTAR_POOLING_MEAN, &x, offsets, 2, skip, &out));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memcpy(offsets, bad[i].offsets, sizeof offsets);
        memcpy(skip, bad[i].skip, sizeof skip);
        CHECK_INVALID(mstar_graph_replay(graph, f.stream), bad[i].named);
    }
    memcpy(offsets, (const int32_t[]){0, 1, 4}, sizeof offsets);
    memset(skip, 0, sizeof skip);
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    assert_memory_equal(f.graph.pooled[0], f.graph.x[0], sizeof f.graph.x[0]);
    mstar_graph_destroy(graph);
}

/* A wrapper may have higher ceilings than the tensors that a capture gives it. */
static void replay_of_a_plan_that_does_not_fit(void **state)
{
    (void)state;
    mstar_graph *graph = NULL;
    mstar_tensor in = heads_of(&f.graph.x[0][0]), out = heads_of(&f.graph.context[0][0]);
    in.shape[0] = out.shape[0] = 10;
    CHECK_OK(mstar_ragged_prefill_plan(f.graph.self, f.stream, (const int32_t[]){0, 4}, 1, 0));
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(mstar_ragged_prefill_run(f.graph.self, f.stream, &in, &in, &in, &out, NULL));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    CHECK_OK(mstar_ragged_prefill_plan(f.graph.self, f.stream, (const int32_t[]){0, 11}, 1, 0));
    CHECK_INVALID(mstar_graph_replay(graph, f.stream),
                  "the plan has 11 query tokens; q and out were recorded with 10 rows");
    CHECK_OK(mstar_ragged_prefill_plan(f.graph.self, f.stream, (const int32_t[]){0, 10}, 1, 1));
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    mstar_graph_destroy(graph);
}

static void replay_of_a_count_that_does_not_fit(void **state)
{
    (void)state;
    mstar_graph *graph = NULL;
    int64_t rows = 5;
    CHECK_OK(mstar_stream_set_rows(f.stream, &rows));
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(activate(f.stream));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    CHECK_OK(mstar_stream_set_rows(f.stream, NULL)); /* the graph keeps it */
    rows = NET_TOKENS + 1;
    CHECK_INVALID(mstar_graph_replay(graph, f.stream), "activation: the live row count is 41");
    rows = 0;
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    mstar_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_rows_now),
        cmocka_unit_test(replay_of_bad_ids),
        cmocka_unit_test(replay_of_bad_offsets),
        cmocka_unit_test(replay_of_a_plan_that_does_not_fit),
        cmocka_unit_test(replay_of_a_count_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
