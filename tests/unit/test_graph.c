/*
 * test_graph.c - what may stand inside a capture and what may not, what is left after a capture
 * that failed, and the small calls around graphs.
 */
#include <pthread.h>
#include <string.h>

#include "support_replay.h"

typedef struct fixture {
    mstar_device *device;
    mstar_stream *stream, *other;
    mstar_buffer *buffer;
    net_weights weights;
    net_state graph, eager;
} fixture;

static fixture f;

static int set_up(void **state)
{
    CHECK_OK(mstar_device_open("cpu", NULL, &f.device));
    CHECK_OK(mstar_stream_create(f.device, -1, &f.stream));
    CHECK_OK(mstar_stream_create(f.device, 1, &f.other));
    CHECK_OK(mstar_buffer_create(f.device, 256, &f.buffer));
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
    mstar_buffer_destroy(f.buffer);
    mstar_stream_destroy(f.stream);
    mstar_stream_destroy(f.other);
    CHECK_OK(mstar_device_close(f.device));
    return 0;
}

/* A capture and a replay as they should be: whatever came before has left nothing behind. */
static void all_is_well(void)
{
    mstar_graph *graph = NULL;
    net_step step;
    check_rng rng = {11};
    net_step_random(&step, &rng);
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(net_forward(&f.weights, &f.graph, f.stream, NULL));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    CHECK_OK(net_stage(&f.graph, f.stream, &step));
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    CHECK_OK(net_stage(&f.eager, f.other, &step));
    CHECK_OK(net_forward(&f.weights, &f.eager, f.other, &step));
    net_compare(&f.graph, &f.eager, &step, "afterwards");
    CHECK_OK(mstar_stream_synchronize(f.stream));
    mstar_graph_destroy(graph);
}

/* ---- refused by name, and the capture is lost -------------------------------------------------
 */

static mstar_status try_synchronize(void)
{
    return mstar_stream_synchronize(f.stream);
}

static mstar_status try_synchronize_other(void)
{
    return mstar_stream_synchronize(f.other);
}

static mstar_status try_buffer(void)
{
    mstar_buffer *buffer;
    return mstar_buffer_create(f.device, 16, &buffer);
}

static mstar_status try_upload(void)
{
    return mstar_buffer_upload(f.buffer, f.stream, 0, "text", 4);
}

static mstar_status try_download(void)
{
    char text[4];
    return mstar_buffer_download(f.buffer, f.stream, 0, text, 4);
}

static mstar_status try_stream(void)
{
    mstar_stream *stream;
    return mstar_stream_create(f.device, 1, &stream);
}

static mstar_status try_event(void)
{
    mstar_event *event;
    return mstar_event_create(f.device, &event);
}

static mstar_status try_wrapper(void)
{
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill *wrapper;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = desc.head_dim = 8;
    return mstar_ragged_prefill_create(f.device, &desc, NULL, 0, &wrapper);
}

static mstar_status try_linear(void)
{
    float one = 1;
    mstar_tensor weight = mstar_tensor_make(&one, MSTAR_DTYPE_F32, 2, (const int64_t[]){1, 1});
    const mstar_tensor *weights[] = {&weight};
    mstar_linear *linear;
    return mstar_linear_create(f.device, NULL, weights, NULL, 1, &linear);
}

static mstar_status try_plan(void)
{
    return mstar_ragged_prefill_plan(f.graph.self, f.stream, (const int32_t[]){0, 3}, 1, 0);
}

static mstar_status try_nested(void)
{
    return mstar_graph_capture_begin(f.stream);
}

static mstar_status try_second(void)
{
    return mstar_graph_capture_begin(f.other);
}

static mstar_tensor heads_of(float *data)
{
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 3,
                             (const int64_t[]){NET_TOKENS, NET_HEADS, NET_DIM});
}

static mstar_status run_attention(mstar_ragged_prefill *wrapper, mstar_stream *stream)
{
    mstar_tensor in = heads_of(&f.graph.x[0][0]), out = heads_of(&f.graph.context[0][0]);
    return mstar_ragged_prefill_run(wrapper, stream, &in, &in, &in, &out, NULL);
}

static mstar_status try_eager_wrapper(void)
{
    return run_attention(f.eager.self, f.stream);
}

static mstar_status try_null_stream(void)
{
    return run_attention(f.graph.self, NULL);
}

static mstar_status activate(mstar_stream *stream)
{
    mstar_tensor x =
        mstar_tensor_make(f.graph.x, MSTAR_DTYPE_F32, 2, (const int64_t[]){NET_TOKENS, NET_WIDTH});
    return mstar_activation_run(stream, MSTAR_ACTIVATION_RELU, &x, &x);
}

static mstar_status try_other_stream(void)
{
    return activate(f.other);
}

static mstar_status try_bad_arguments(void)
{
    mstar_tensor x =
        mstar_tensor_make(f.graph.x, MSTAR_DTYPE_F32, 2, (const int64_t[]){NET_TOKENS, NET_WIDTH});
    mstar_tensor out = x;
    out.shape[0] = 3;
    return mstar_normalize(f.stream, &x, &out);
}

static mstar_status try_bad_copy(void)
{
    return mstar_buffer_copy(f.buffer, f.stream, 0, f.buffer, 1, 8);
}

static mstar_status try_bad_attention(void)
{
    mstar_tensor in = heads_of(&f.graph.x[0][0]);
    return mstar_ragged_prefill_run(f.graph.self, f.stream, &in, &in, &in, &in, NULL);
}

/* A call that fails for its arguments is missing as well. */
static void failed_calls_lose_the_capture(void **state)
{
    (void)state;
    mstar_status (*const calls[])(void) = {try_bad_arguments, try_bad_copy, try_bad_attention};
    static const char *const named[] = {"out.shape[0] is 3", "overlap", "overlap"};
    for (int i = 0; i < 3; i++) {
        mstar_graph *graph = NULL;
        CHECK_OK(mstar_graph_capture_begin(f.stream));
        CHECK_INVALID(calls[i](), named[i]);
        CHECK_OK(activate(f.stream));
        CHECK_INVALID(mstar_graph_capture_end(f.stream, &graph), named[i]);
        assert_null(graph);
    }
    all_is_well();
}

static void refusals_lose_the_capture(void **state)
{
    (void)state;
    const struct {
        mstar_status (*call)(void);
        const char *named;
    } cases[] = {
        {try_synchronize, "synchronize must not"}, {try_synchronize_other, "synchronize must not"},
        {try_buffer, "create of a buffer"},        {try_upload, "upload or download"},
        {try_download, "upload or download"},      {try_stream, "create of a stream"},
        {try_event, "create of an event"},         {try_wrapper, "create of a wrapper"},
        {try_linear, "create of a linear"},        {try_plan, "plan must not"},
        {try_nested, "a second capture_begin"},    {try_second, "a second capture_begin"},
        {try_eager_wrapper, "eager-mode wrapper"}, {try_null_stream, "another stream"},
        {try_other_stream, "another stream"},
    };
    uint64_t live = check_live_allocations();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mstar_graph *graph = NULL;
        CHECK_OK(mstar_graph_capture_begin(f.stream));
        CHECK_OK(activate(f.stream));
        CHECK_FAILED(cases[i].call(), MSTAR_OUT_OF_ORDER, cases[i].named);
        CHECK_OK(activate(f.stream)); /* goes on, for nothing */
        CHECK_FAILED(mstar_graph_capture_end(f.stream, &graph), MSTAR_OUT_OF_ORDER, cases[i].named);
        assert_non_null(strstr(mstar_last_error(), "the capture was lost"));
        assert_null(graph);
        assert_int_equal(mstar_stream_is_capturing(f.stream), 0);
        assert_int_equal(check_live_allocations(), live);
    }
    all_is_well();
}

/* The first refusal is the one that is told. */
static void the_first_refusal_is_named(void **state)
{
    (void)state;
    mstar_graph *graph = NULL;
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    (void)try_plan();
    (void)try_buffer();
    CHECK_FAILED(mstar_graph_capture_end(f.stream, &graph), MSTAR_OUT_OF_ORDER, "plan must not");
    all_is_well();
}

static void events_are_refused(void **state)
{
    (void)state;
    mstar_event *event;
    int done = 0;
    CHECK_OK(mstar_event_create(f.device, &event));
    for (int i = 0; i < 3; i++) {
        mstar_graph *graph = NULL;
        CHECK_OK(mstar_graph_capture_begin(f.stream));
        mstar_status status = i == 0   ? mstar_event_record(event, f.stream)
                              : i == 1 ? mstar_stream_wait_event(f.stream, event)
                                       : mstar_event_synchronize(event);
        CHECK_FAILED(status, MSTAR_OUT_OF_ORDER, i == 2 ? "synchronize" : "an event");
        CHECK_FAILED(mstar_graph_capture_end(f.stream, &graph), MSTAR_OUT_OF_ORDER, "lost");
    }
    CHECK_OK(mstar_event_query(event, &done));
    mstar_event_destroy(event);
    all_is_well();
}

static void replay_inside_a_capture(void **state)
{
    (void)state;
    mstar_graph *graph = NULL, *second = NULL;
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(activate(f.stream));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_FAILED(mstar_graph_replay(graph, f.other), MSTAR_OUT_OF_ORDER, "a replay must not");
    CHECK_FAILED(mstar_graph_capture_end(f.stream, &second), MSTAR_OUT_OF_ORDER, "a replay");
    CHECK_OK(mstar_graph_replay(graph, f.other));
    mstar_graph_destroy(graph);
}

/* ---- the calls themselves ---------------------------------------------------------------------
 */

static void arguments(void **state)
{
    (void)state;
    mstar_graph *graph = NULL;
    mstar_graph_info info = {.struct_size = sizeof info};
    CHECK_INVALID(mstar_graph_capture_begin(NULL), "stream is NULL");
    CHECK_INVALID(mstar_graph_capture_end(NULL, &graph), "stream is NULL");
    CHECK_FAILED(mstar_graph_capture_end(f.stream, &graph), MSTAR_OUT_OF_ORDER,
                 "capture_end without a capture_begin on this stream");
    mstar_graph_capture_abort(NULL);
    mstar_graph_capture_abort(f.stream);
    mstar_graph_destroy(NULL);
    assert_int_equal(mstar_stream_is_capturing(NULL), 0);

    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_INVALID(mstar_graph_capture_end(f.stream, NULL), "graph is NULL");
    assert_int_equal(mstar_stream_is_capturing(f.stream), 1); /* nothing has changed */
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));      /* nothing in it */
    CHECK_OK(mstar_graph_query(graph, &info));
    assert_int_equal(info.nodes, 0);
    assert_int_equal(info.waves, 0);
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    CHECK_INVALID(mstar_graph_replay(NULL, f.stream), "graph is NULL");
    CHECK_INVALID(mstar_graph_replay(graph, NULL), "stream is NULL");
    CHECK_INVALID(mstar_graph_query(NULL, &info), "graph is NULL");
    CHECK_INVALID(mstar_graph_query(graph, NULL), "info is NULL");
    info.struct_size = 0;
    CHECK_INVALID(mstar_graph_query(graph, &info), "struct_size");

    mstar_device *elsewhere;
    mstar_stream *foreign;
    CHECK_OK(mstar_device_open("cpu", NULL, &elsewhere));
    CHECK_OK(mstar_stream_create(elsewhere, 1, &foreign));
    CHECK_INVALID(mstar_graph_replay(graph, foreign), "two devices");
    mstar_stream_destroy(foreign);
    CHECK_OK(mstar_device_close(elsewhere));
    mstar_graph_destroy(graph);
}

/* The copy waits for nothing, so that it runs beside the first activation. */
static void nodes_are_listed(void **state)
{
    (void)state;
    mstar_graph *graph = NULL;
    mstar_graph_info info = {.struct_size = sizeof info};
    mstar_graph_node_info node = {.struct_size = sizeof node};
    const int64_t rows = 2;
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(activate(f.stream));
    CHECK_OK(mstar_stream_set_rows(f.stream, &rows));
    CHECK_OK(activate(f.stream));
    CHECK_OK(mstar_stream_set_rows(f.stream, NULL));
    CHECK_OK(run_attention(f.graph.self, f.stream));
    CHECK_OK(mstar_buffer_copy(f.buffer, f.stream, 100, f.buffer, 0, 8));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    CHECK_OK(mstar_graph_query(graph, &info));
    assert_int_equal(info.nodes, 4);
    assert_int_equal(info.waves, 3);
    assert_int_equal(info.edges, 2);
    static const struct {
        const char *op;
        int64_t wave, rows;
        int32_t live;
    } nodes[] = {{"activation", 0, NET_TOKENS, 0},
                 {"copy", 0, 8, 0},
                 {"activation", 1, NET_TOKENS, 1},
                 {"attention", 2, NET_TOKENS, 1}};
    for (int i = 0; i < 4; i++) {
        CHECK_OK(mstar_graph_query_node(graph, i, &node));
        assert_string_equal(node.op, nodes[i].op);
        assert_int_equal(node.wave, nodes[i].wave);
        assert_int_equal(node.num_rows, nodes[i].rows);
        assert_int_equal(node.live_rows, nodes[i].live);
    }
    CHECK_FAILED(mstar_graph_query_node(graph, 4, &node), MSTAR_NOT_FOUND,
                 "index is 4; the graph has 4 nodes");
    CHECK_FAILED(mstar_graph_query_node(graph, -1, &node), MSTAR_NOT_FOUND, "index is -1");
    CHECK_INVALID(mstar_graph_query_node(NULL, 0, &node), "graph is NULL");
    CHECK_INVALID(mstar_graph_query_node(graph, 0, NULL), "info is NULL");
    mstar_graph_destroy(graph);
}

static void a_graph_keeps_its_device_open(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    mstar_graph *graph = NULL;
    CHECK_OK(mstar_device_open("cpu", NULL, &device));
    CHECK_OK(mstar_stream_create(device, 1, &stream));
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    mstar_stream_destroy(stream);
    CHECK_FAILED(mstar_device_close(device), MSTAR_BUSY, "1 objects");
    mstar_graph_destroy(graph);
    CHECK_OK(mstar_device_close(device));
}

/* Aborted, or destroyed in the middle: nothing is left, and the thread may capture again. */
static void abandoned_captures(void **state)
{
    (void)state;
    uint64_t live = check_live_allocations();
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(activate(f.stream));
    mstar_graph_capture_abort(f.stream);
    assert_int_equal(mstar_stream_is_capturing(f.stream), 0);
    assert_int_equal(check_live_allocations(), live);
    mstar_stream *stream;
    CHECK_OK(mstar_stream_create(f.device, 1, &stream));
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(activate(stream));
    mstar_stream_destroy(stream);
    assert_int_equal(check_live_allocations(), live);
    all_is_well();
}

/* Nothing runs while it is recorded. */
static void recording_does_not_run(void **state)
{
    (void)state;
    mstar_graph *graph = NULL;
    for (int t = 0; t < NET_TOKENS; t++)
        for (int i = 0; i < NET_WIDTH; i++)
            f.graph.x[t][i] = -2;
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(activate(f.stream));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    assert_true(f.graph.x[0][0] == -2);
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    assert_true(f.graph.x[0][0] == 0);
    mstar_graph_destroy(graph);
}

static void buffers_are_copied(void **state)
{
    (void)state;
    char text[8] = "";
    mstar_graph *graph = NULL;
    CHECK_OK(mstar_buffer_upload(f.buffer, f.stream, 0, "abcdefg", 8));
    CHECK_OK(mstar_buffer_copy(f.buffer, f.stream, 100, f.buffer, 0, 8));
    CHECK_OK(mstar_buffer_download(f.buffer, f.stream, 100, text, 8));
    assert_string_equal(text, "abcdefg");
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    CHECK_OK(mstar_buffer_copy(f.buffer, f.stream, 100, f.buffer, 0, 8));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    CHECK_OK(mstar_buffer_upload(f.buffer, f.stream, 0, "ABCDEFG", 8));
    CHECK_OK(mstar_graph_replay(graph, f.stream));
    CHECK_OK(mstar_buffer_download(f.buffer, f.stream, 100, text, 8));
    assert_string_equal(text, "ABCDEFG");
    mstar_graph_destroy(graph);

    CHECK_OK(mstar_buffer_copy(f.buffer, f.stream, 256, f.buffer, 256, 0));
    CHECK_INVALID(mstar_buffer_copy(f.buffer, f.stream, 7, f.buffer, 0, 8), "overlap");
    CHECK_INVALID(mstar_buffer_copy(f.buffer, f.stream, 250, f.buffer, 0, 8),
                  "destination_offset_bytes 250 plus bytes 8");
    CHECK_INVALID(mstar_buffer_copy(f.buffer, f.stream, 0, f.buffer, SIZE_MAX, 8),
                  "source_offset_bytes");
    CHECK_INVALID(mstar_buffer_copy(NULL, f.stream, 0, f.buffer, 0, 8), "destination is NULL");
    CHECK_INVALID(mstar_buffer_copy(f.buffer, NULL, 0, f.buffer, 0, 8), "stream is NULL");
    CHECK_INVALID(mstar_buffer_copy(f.buffer, f.stream, 0, NULL, 0, 8), "source is NULL");
}

/* ---- other threads -----------------------------------------------------------------------------
 */

static void *on_another_thread(void *argument)
{
    mstar_graph *graph = NULL;
    mstar_buffer *buffer = NULL;
    (void)argument;
    CHECK_FAILED(mstar_graph_capture_begin(f.stream), MSTAR_OUT_OF_ORDER, "by another thread");
    CHECK_FAILED(mstar_graph_capture_end(f.stream, &graph), MSTAR_OUT_OF_ORDER, "on this thread");
    CHECK_FAILED(activate(f.stream), MSTAR_OUT_OF_ORDER, "being captured by another thread");
    mstar_graph_capture_abort(f.stream); /* not this thread's */
    CHECK_OK(mstar_buffer_create(f.device, 64, &buffer));
    CHECK_OK(mstar_buffer_upload(buffer, f.other, 0, "text", 4));
    CHECK_OK(mstar_stream_synchronize(f.other));
    mstar_buffer_destroy(buffer);
    return NULL;
}

static void other_threads_are_free(void **state)
{
    (void)state;
    pthread_t thread;
    mstar_graph *graph = NULL;
    CHECK_OK(mstar_graph_capture_begin(f.stream));
    assert_int_equal(pthread_create(&thread, NULL, on_another_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    CHECK_OK(activate(f.stream));
    CHECK_OK(mstar_graph_capture_end(f.stream, &graph));
    mstar_graph_destroy(graph);
}

/* ---- without memory ----------------------------------------------------------------------------
 */

static mstar_status try_capture(void *context)
{
    mstar_graph *graph = NULL;
    (void)context;
    mstar_status status = mstar_graph_capture_begin(f.stream);
    if (status != MSTAR_OK)
        return status;
    (void)net_forward(&f.weights, &f.graph, f.stream, NULL); /* a status that nobody reads */
    status = mstar_graph_capture_end(f.stream, &graph);
    mstar_graph_destroy(graph);
    (void)mstar_stream_set_rows(f.stream, NULL);
    return status;
}

static void capture_without_memory(void **state)
{
    (void)state;
    /* graph, its own part, list, waves, order, block */
    assert_true(check_alloc_faults(try_capture, NULL) >= 6);
    all_is_well();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_lose_the_capture),
        cmocka_unit_test(failed_calls_lose_the_capture),
        cmocka_unit_test(the_first_refusal_is_named),
        cmocka_unit_test(events_are_refused),
        cmocka_unit_test(replay_inside_a_capture),
        cmocka_unit_test(arguments),
        cmocka_unit_test(nodes_are_listed),
        cmocka_unit_test(a_graph_keeps_its_device_open),
        cmocka_unit_test(abandoned_captures),
        cmocka_unit_test(recording_does_not_run),
        cmocka_unit_test(buffers_are_copied),
        cmocka_unit_test(other_threads_are_free),
        cmocka_unit_test(capture_without_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
