/*
 * test_replay.c - a replay has the bits of the same calls made one by one: random programs over
 * shared memory (any two launches may depend on one another in any way), and a network replayed
 * with layouts it was not captured with. What must not be touched is poisoned.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support_replay.h"

enum { PROGRAMS = 600, MAX_THREADS = 4 };

static mstar_device *devices[CHECK_NUM_ISAS];
static int num_devices;

static int open_devices(void **state)
{
    (void)state;
    static const char *const isas[] = CHECK_ISAS;
    for (int i = 0; i < CHECK_NUM_ISAS; i++) {
        mstar_device *device = check_open(isas[i], MAX_THREADS);
        if (device != NULL)
            devices[num_devices++] = device;
    }
    return num_devices > 0 ? 0 : -1;
}

static int close_devices(void **state)
{
    (void)state;
    for (int i = 0; i < num_devices; i++)
        CHECK_OK(mstar_device_close(devices[i]));
    return 0;
}

/* ---- random programs ------------------------------------------------------------------------- */

enum { PLACES = 7, ROWS = 24, WIDTH = 32, PLACE = ROWS * WIDTH, MAX_OPS = 40 };

/* The memory of a program: places of ROWS x WIDTH floats, ids and offsets behind them. */
typedef struct memory {
    mstar_buffer *buffer;
    float *places;
    int32_t ids[ROWS];
    int32_t offsets[ROWS + 1];
    int64_t counts[2];
} memory;

static void fill_memory(memory *m, uint64_t seed)
{
    check_rng rng = {seed};
    for (int i = 0; i < PLACES * PLACE; i++)
        m->places[i] = (float)check_uniform(&rng, -2, 2);
    for (int i = 0; i < ROWS; i++)
        m->ids[i] = (int32_t)check_integer(&rng, 0, ROWS - 1);
    for (int i = 0; i < ROWS; i++)
        m->offsets[i + 1] = m->offsets[i] + (int32_t)check_integer(&rng, 0, 1);
    m->counts[0] = check_integer(&rng, 0, ROWS);
    m->counts[1] = check_integer(&rng, 0, ROWS);
}

static int other_place(check_rng *rng, int place)
{
    return (place + (int)check_integer(rng, 1, PLACES - 1)) % PLACES;
}

/* A place, or half of its columns. */
static mstar_tensor view(const memory *m, int place, int part)
{
    mstar_tensor tensor = mstar_tensor_make(m->places + place * PLACE, MSTAR_DTYPE_F32, 2,
                                            (const int64_t[]){ROWS, WIDTH});
    if (part < 2)
        CHECK_OK(mstar_tensor_slice(&tensor, 1, part * WIDTH / 2, WIDTH / 2, &tensor));
    return tensor;
}

static mstar_status one_op(check_rng *rng, const memory *m, mstar_stream *stream,
                           const mstar_linear *linear)
{
    int to = (int)check_integer(rng, 0, PLACES - 1);
    int from = other_place(rng, to);
    int third = other_place(rng, to);
    int part = (int)check_integer(rng, 0, 3);
    const mstar_tensor x = view(m, from, part), out = view(m, to, part);
    const mstar_tensor whole = view(m, from, 2), whole_out = view(m, to, 2);
    const mstar_tensor residual = view(m, third, part), whole_residual = view(m, third, 2);
    const mstar_tensor gain = mstar_tensor_make(m->places + third * PLACE, MSTAR_DTYPE_F32, 1,
                                                (const int64_t[]){out.shape[1]});
    const mstar_tensor *tables[] = {&x, &residual};
    const int32_t *ids[] = {m->ids, m->ids};
    const int64_t *const counts[] = {NULL, &m->counts[0], &m->counts[1]};
    MST_TRY(mstar_stream_set_rows(stream, counts[check_integer(rng, 0, 2)]));
    switch (check_integer(rng, 0, 7)) {
    case 0:
        return mstar_activation_run(stream, MSTAR_ACTIVATION_SIGMOID, &x, &out);
    case 1:
        return mstar_activation_run(stream, MSTAR_ACTIVATION_TANH, &out, &out);
    case 2:
        return mstar_layer_norm(stream, &x, &residual, &gain, NULL, 1e-3, &out);
    case 3:
        return mstar_linear_run(linear, stream, &whole,
                                check_integer(rng, 0, 1) ? &whole_residual : NULL, &whole_out);
    case 4:
        return mstar_normalize(stream, &x, &out);
    case 5:
        return mstar_embedding(stream, tables, ids, 2, &out);
    case 6:
        return mstar_pooling_run(stream, MSTAR_POOLING_MAX, &x, m->offsets, ROWS, NULL, &out);
    default:
        return mstar_buffer_copy(m->buffer, stream, (size_t)to * PLACE * sizeof(float) + 64,
                                 m->buffer, (size_t)from * PLACE * sizeof(float),
                                 (size_t)check_integer(rng, 1, PLACE - 16) * sizeof(float));
    }
}

static void run_program(uint64_t seed, const memory *m, mstar_stream *stream,
                        const mstar_linear *linear)
{
    check_rng rng = {seed};
    int64_t num_ops = check_integer(&rng, 1, MAX_OPS);
    for (int64_t i = 0; i < num_ops; i++)
        CHECK_OK(one_op(&rng, m, stream, linear));
    CHECK_OK(mstar_stream_set_rows(stream, NULL));
}

static void open_memory(memory *m, mstar_device *device)
{
    memset(m, 0, sizeof *m);
    CHECK_OK(mstar_buffer_create(device, PLACES * PLACE * sizeof(float), &m->buffer));
    m->places = mstar_buffer_get_data(m->buffer);
}

static void same_memory(const memory *got, const memory *want, uint64_t seed, const char *isa,
                        int threads)
{
    if (memcmp(got->places, want->places, PLACES * PLACE * sizeof(float)) != 0)
        fail_msg("program %llu on %s with %d threads: the replay has other bits",
                 (unsigned long long)seed, isa, threads);
}

static void random_programs(void **state)
{
    (void)state;
    int64_t nodes = 0, waves = 0;
    for (int d = 0; d < num_devices; d++) {
        mstar_device *device = devices[d];
        mstar_device_info info = {.struct_size = sizeof info};
        CHECK_OK(mstar_device_query(device, &info));
        static float weight[WIDTH * WIDTH];
        check_rng rng = {77};
        for (int i = 0; i < WIDTH * WIDTH; i++)
            weight[i] = (float)check_uniform(&rng, -0.3, 0.3);
        mstar_tensor w =
            mstar_tensor_make(weight, MSTAR_DTYPE_F32, 2, (const int64_t[]){WIDTH, WIDTH});
        const mstar_tensor *weights[] = {&w};
        mstar_linear *linear;
        CHECK_OK(mstar_linear_create(device, NULL, weights, NULL, 1, &linear));
        memory eager, replayed;
        open_memory(&eager, device);
        open_memory(&replayed, device);
        static const int threads[] = {1, 2, MAX_THREADS};
        mstar_stream *streams[3];
        for (int t = 0; t < 3; t++)
            CHECK_OK(mstar_stream_create(device, threads[t], &streams[t]));
        for (uint64_t seed = (uint64_t)d; seed < PROGRAMS; seed += (uint64_t)num_devices) {
            mstar_graph *graph = NULL;
            fill_memory(&replayed, seed);
            CHECK_OK(mstar_graph_capture_begin(streams[2]));
            run_program(seed, &replayed, streams[2], linear);
            CHECK_OK(mstar_graph_capture_end(streams[2], &graph));
            mstar_graph_info of = {.struct_size = sizeof of};
            CHECK_OK(mstar_graph_query(graph, &of));
            nodes += of.nodes;
            waves += of.waves;
            for (int t = 0; t < 3; t++) { /* new contents and counts for each replay */
                uint64_t data = seed * 3 + (uint64_t)t;
                fill_memory(&eager, data);
                fill_memory(&replayed, data);
                run_program(seed, &eager, streams[0], linear);
                CHECK_OK(mstar_graph_replay(graph, streams[t]));
                same_memory(&replayed, &eager, seed, info.isa, threads[t]);
            }
            mstar_graph_destroy(graph);
        }
        for (int t = 0; t < 3; t++)
            mstar_stream_destroy(streams[t]);
        mstar_buffer_destroy(eager.buffer);
        mstar_buffer_destroy(replayed.buffer);
        mstar_linear_destroy(linear);
    }
    /* the test would say nothing if every program were one chain, or none had an order */
    assert_true(waves < nodes * 9 / 10);
    assert_true(waves > nodes / 8);
}

/* ---- a network, replayed with layouts it has not seen ---------------------------------------- */

static uint64_t count_allocations(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_memory_query(&info));
    return info.total_allocations;
}

static void replay_is_eager(mstar_device *device, int32_t num_threads, int rounds)
{
    static net_weights weights;
    static net_state eager, graph, serial;
    mstar_stream *stream, *one;
    mstar_graph *recorded = NULL;
    net_step step;
    check_rng rng = {5};
    CHECK_OK(mstar_stream_create(device, num_threads, &stream));
    CHECK_OK(mstar_stream_create(device, 1, &one));
    net_weights_open(&weights, device, 1);
    net_state_open(&eager, device, false);
    net_state_open(&serial, device, true);
    net_state_open(&graph, device, true);

    /* captured with whatever plan is in force: here the priming at the ceilings */
    CHECK_OK(mstar_graph_capture_begin(stream));
    assert_int_equal(mstar_stream_is_capturing(stream), 1);
    CHECK_OK(net_forward(&weights, &graph, stream, NULL));
    CHECK_OK(mstar_graph_capture_end(stream, &recorded));
    assert_int_equal(mstar_stream_is_capturing(stream), 0);
    mstar_graph_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_query(recorded, &info));
    assert_int_equal(info.nodes, 1 + 9 + 5 + 9 + 2);
    assert_true(info.waves < info.nodes); /* both rotaries of a layer, the three cross products */
    assert_true(info.edges >= info.nodes - 3 && info.bytes > sizeof info);

    for (int i = 0; i < rounds; i++) {
        char what[64];
        (void)snprintf(what, sizeof what, "round %d with %d threads", i, num_threads);
        net_step_random(&step, &rng);
        net_state_poison(&graph);
        net_state_poison(&eager);
        uint64_t allocations = count_allocations();
        CHECK_OK(net_stage(&graph, stream, &step));
        CHECK_OK(mstar_graph_replay(recorded, stream));
        assert_int_equal(count_allocations(), allocations);
        CHECK_OK(net_stage(&eager, one, &step));
        CHECK_OK(net_forward(&weights, &eager, one, &step));
        net_compare(&graph, &eager, &step, what);
        if (i % 8 == 0) { /* the calls themselves, over the ceilings and the live counts */
            net_state_poison(&serial);
            CHECK_OK(net_stage(&serial, one, &step));
            CHECK_OK(net_forward(&weights, &serial, one, &step));
            net_compare(&serial, &eager, &step, what);
        }
        /* rows past the plan: products and norms have left them alone */
        for (int t = step.offsets[step.num_segments]; t < NET_TOKENS; t++)
            for (int j = 0; j < NET_WIDTH; j++)
                assert_int_equal(memcmp(&graph.x[t][j], &(uint32_t){0xffffffffU}, 4), 0);
    }
    CHECK_OK(mstar_graph_query(recorded, &info));
    assert_int_equal(info.replays, rounds);

    mstar_graph_destroy(recorded);
    net_state_close(&eager);
    net_state_close(&serial);
    net_state_close(&graph);
    net_weights_close(&weights);
    mstar_stream_destroy(stream);
    mstar_stream_destroy(one);
}

static void network_replays(void **state)
{
    (void)state;
    for (int d = 0; d < num_devices; d++) {
        replay_is_eager(devices[d], 1, 60);
        replay_is_eager(devices[d], MAX_THREADS, 60);
    }
}

/* ---- two threads, two graphs, one device ----------------------------------------------------- */

typedef struct worker {
    mstar_device *device;
    uint64_t seed;
    net_weights weights;
    net_state eager, graph;
} worker;

static void *replay_alone(void *argument)
{
    worker *w = argument;
    mstar_stream *stream = NULL, *one = NULL;
    mstar_graph *graph = NULL;
    net_step step;
    check_rng rng = {w->seed};
    CHECK_OK(mstar_stream_create(w->device, -1, &stream));
    CHECK_OK(mstar_stream_create(w->device, 1, &one));
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(net_forward(&w->weights, &w->graph, stream, NULL));
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    for (int i = 0; i < 40; i++) {
        net_step_random(&step, &rng);
        CHECK_OK(net_stage(&w->graph, stream, &step));
        CHECK_OK(mstar_graph_replay(graph, stream));
        CHECK_OK(net_stage(&w->eager, one, &step));
        CHECK_OK(net_forward(&w->weights, &w->eager, one, &step));
        net_compare(&w->graph, &w->eager, &step, "two threads");
    }
    mstar_graph_destroy(graph);
    mstar_stream_destroy(stream);
    mstar_stream_destroy(one);
    return NULL;
}

static void two_threads_capture_and_replay(void **state)
{
    (void)state;
    static worker workers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        workers[i].device = devices[num_devices - 1];
        workers[i].seed = (uint64_t)i + 9;
        net_weights_open(&workers[i].weights, workers[i].device, 1);
        net_state_open(&workers[i].eager, workers[i].device, false);
        net_state_open(&workers[i].graph, workers[i].device, true);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, replay_alone, &workers[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        net_state_close(&workers[i].eager);
        net_state_close(&workers[i].graph);
        net_weights_close(&workers[i].weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs),
        cmocka_unit_test(network_replays),
        cmocka_unit_test(two_threads_capture_and_replay),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
