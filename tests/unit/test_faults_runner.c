/*
 * test_faults_runner.c - cases K20 and K21 of the known faults that the runner of whole forwards
 * answers: one arena for all buckets, results, and a replay that fails.
 */
#include <stdlib.h>
#include <string.h>

#include "support_faults.h"
#include "support_runner.h"

/* ---- a forward of layers over one temporary -------------------------------------------------- */

/* y = tanh(... tanh(x)) by so many layers, each of which writes the one temporary. */
typedef struct layers {
    int64_t count, width, max_rows;
    float *x; /* [max_rows, width] host memory */
} layers;

static mstar_status preprocess(void *user, const mstar_step_context *context,
                               const mstar_node_input *inputs, int64_t count,
                               mstar_tensors *tensors)
{
    const layers *l = user;
    int64_t shape[2] = {0, l->width};
    (void)context;
    for (int64_t i = 0; i < count; i++)
        shape[0] += inputs[i].input_seq_len;
    mstar_tensor x = mstar_tensor_make(l->x, MSTAR_DTYPE_F32, 2, shape);
    return mstar_tensors_add(tensors, "x", &x);
}

static mstar_status lay_out(void *user, mstar_frame_size size, mstar_tensors *scratch)
{
    const layers *l = user;
    const int64_t shape[] = {size.num_tokens, l->width};
    mstar_tensor y = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2, shape);
    return mstar_tensors_add(scratch, "y", &y);
}

static mstar_status forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    const layers *l = user;
    const mstar_tensor *y = mstar_tensors_find(frame->scratch, "y");
    const mstar_tensor *from = mstar_tensors_find(frame->inputs, "x");
    mstar_status status = MSTAR_OK;
    for (int64_t i = 0; i < l->count && status == MSTAR_OK; i++, from = y)
        status = mstar_activation_run(frame->stream, MSTAR_ACTIVATION_TANH, from, y);
    return status != MSTAR_OK ? status : mstar_tensors_add(outputs, "y", y);
}

static mstar_status make_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    (void)user;
    input->input_seq_len = num_tokens;
    return MSTAR_OK;
}

typedef struct layers_runner {
    layers layers;
    mstar_device *device;
    mstar_graph_config *config;
    mstar_graph_runner *runner;
} layers_runner;

static void open_layers(layers_runner *r, int64_t count, int64_t width, const int64_t *rows,
                        int64_t num_rows)
{
    static const int64_t one[] = {1};
    mstar_packed_graph_config_desc config;
    mstar_graph_runner_desc desc;
    mstar_node_hooks hooks;
    int64_t most = rows[num_rows - 1];
    *r = (layers_runner){.layers = {count, width, most, NULL}};
    CHECK_OK(mstar_device_open("cpu", NULL, &r->device));
    r->layers.x = malloc((size_t)(most * width) * sizeof(float));
    assert_non_null(r->layers.x);
    for (int64_t i = 0; i < most * width; i++)
        r->layers.x[i] = (float)(i % 97) / 97.0F;
    mstar_packed_graph_config_desc_init(&config);
    config.capture_graph_walk = "w";
    config.capture_batch_sizes = one;
    config.num_capture_batch_sizes = 1;
    config.capture_token_lengths = rows;
    config.num_capture_token_lengths = num_rows;
    config.make_node_input = make_input;
    CHECK_OK(mstar_packed_graph_config_create(&config, &r->config));
    mstar_node_hooks_init(&hooks);
    hooks.preprocess = preprocess;
    hooks.lay_out = lay_out;
    hooks.forward = forward;
    const mstar_graph_config *configs[] = {r->config};
    mstar_graph_runner_desc_init(&desc);
    desc.hooks = &hooks;
    desc.user = &r->layers;
    desc.configs = configs;
    desc.num_configs = 1;
    desc.num_warmups = 0;
    CHECK_OK(mstar_graph_runner_create(r->device, &desc, &r->runner));
    CHECK_OK(mstar_graph_runner_prepare(r->runner));
    CHECK_OK(mstar_graph_runner_capture(r->runner));
}

static mstar_graph_runner_info query(const layers_runner *r)
{
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_runner_query(r->runner, &info));
    return info;
}

static void close_layers(layers_runner *r)
{
    mstar_graph_runner_destroy(r->runner);
    mstar_graph_config_destroy(r->config);
    CHECK_OK(mstar_device_close(r->device));
    free(r->layers.x);
}

/* One request of so many rows, eager or not; returns its first row's result. */
static const float *step_of(const layers_runner *r, int64_t rows, int eager, mstar_stream *stream)
{
    static const int64_t request[] = {7};
    mstar_node_input input = {.input_seq_len = rows};
    mstar_runner_step step;
    mstar_runner_result result = {.struct_size = sizeof result};
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = request;
    step.inputs = &input;
    step.count = 1;
    step.eager = eager;
    step.stream = stream;
    CHECK_OK(mstar_graph_runner_step(r->runner, &step, &result));
    assert_int_equal(result.miss == MSTAR_GRAPH_MISS_NONE, !eager);
    assert_int_equal(result.num_tokens, rows);
    return mstar_tensors_find(result.outputs, "y")->data;
}

/* A replay's rows have the bits of the direct run. */
static void check_rows_of(const layers_runner *r, int64_t rows, mstar_stream *stream)
{
    size_t bytes = (size_t)(rows * r->layers.width) * sizeof(float);
    float *direct = malloc(bytes);
    assert_non_null(direct);
    memcpy(direct, step_of(r, rows, 1, stream), bytes);
    assert_memory_equal(step_of(r, rows, 0, stream), direct, bytes);
    free(direct);
}

/* ---- K21: one arena -------------------------------------------------------------------------- */

/* Three layers in one temporary: what the runner and its graph hold is the temporary and the static
 * input, of the same size. A sixteenth of the case's gibibyte in the release preset, a mebibyte
 * elsewhere. */
static void one_temporary(void **state)
{
    fault_case *c = *state;
    int64_t bytes = fault_integer(c, "tmp_bytes") / (fault_large_runs() ? 16 : 1024);
    int64_t count = fault_integer(c, "layers");
    int64_t rows = bytes / (1024 * (int64_t)sizeof(float));
    layers_runner r;
    fault_outcome(c, "bounded_bytes");
    open_layers(&r, count, 1024, &rows, 1);
    mstar_graph_runner_info info = query(&r);
    assert_true(info.scratch_bytes >= (size_t)bytes);
    assert_true(info.scratch_bytes <= (size_t)bytes + 65536);
    assert_true(info.graph_bytes <= 65536);
    check_rows_of(&r, 3, NULL);
    close_layers(&r);
}

/* Buckets of rows up to the largest, and the bytes that all of them hold together. */
static size_t bytes_of_buckets(int64_t largest, int64_t count, int64_t num_streams)
{
    enum { WIDTH = 4096 };
    int64_t rows[16];
    layers_runner r;
    assert_true(count <= 16);
    for (int64_t i = 0; i < count; i++)
        rows[i] = largest * (i + 1) / count;
    open_layers(&r, 3, WIDTH, rows, count);
    mstar_graph_runner_info info = query(&r);
    size_t total = info.scratch_bytes + info.static_input_bytes + info.graph_bytes;
    assert_int_equal(info.num_captured, count);
    mstar_stream *streams[16] = {NULL};
    for (int64_t i = 0; i < num_streams; i++)
        CHECK_OK(mstar_stream_create(r.device, 1, &streams[i]));
    for (int64_t i = 0; i < count; i++)
        check_rows_of(&r, rows[i], streams[num_streams > 0 ? i % num_streams : 0]);
    info = query(&r);
    assert_int_equal(info.scratch_bytes + info.static_input_bytes + info.graph_bytes, total);
    for (int64_t i = 0; i < num_streams; i++)
        mstar_stream_destroy(streams[i]);
    close_layers(&r);
    return total;
}

static void buckets_share_the_arena(void **state)
{
    fault_case *c = *state;
    int64_t largest = fault_integer(c, "largest_rows");
    size_t one = bytes_of_buckets(largest, 1, 0);
    size_t all = bytes_of_buckets(largest, fault_integer(c, "buckets"), 0);
    assert_true((double)all <= 1.1 * (double)one);
}

static void streams_share_the_arena(void **state)
{
    fault_case *c = *state;
    int64_t count = fault_integer(c, "buckets");
    assert_int_equal(bytes_of_buckets(320, count, fault_integer(c, "streams")),
                     bytes_of_buckets(320, count, 1));
}

/* ---- results, and replays that fail ---------------------------------------------------------- */

static const int64_t lengths[] = {16};
static const int64_t sizes[] = {4};

static void open_bench(bench *b, mstar_node_hooks *hooks)
{
    bench_open(b, 2);
    b->configs[0] = bench_packed("w", sizes, 1, lengths, 1);
    b->num_configs = 1;
    *hooks = node_hooks(&b->node);
    mstar_graph_runner_desc desc = bench_desc(b, hooks);
    bench_start(b, &desc);
}

static mstar_status take_step(const bench *b, const node_step *given, mstar_runner_result *result)
{
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = given->requests;
    step.inputs = given->inputs;
    step.count = given->count;
    *result = (mstar_runner_result){.struct_size = sizeof *result};
    return mstar_graph_runner_step(b->runner, &step, result);
}

/* Results are borrowed until the next step, as the header says: A's stay while nothing else runs,
 * B's stand at the same address, and A's come again with the same bits. */
static void results_are_borrowed(void **state)
{
    static bench b;
    static node_step steps[2];
    fault_case *c = *state;
    check_rng rng = {201};
    mstar_node_hooks hooks;
    mstar_runner_result result;
    float kept[2][NODE_WIDTH];
    assert_int_equal(json_array_size(fault_get(c, "replays")), 2);
    open_bench(&b, &hooks);
    for (int i = 0; i < 2; i++)
        node_step_fill(&steps[i], &rng, (const int64_t[]){5 + i}, 1);
    const void *place = NULL;
    for (int i = 0; i < 4; i++) {
        CHECK_OK(take_step(&b, &steps[i % 2], &result));
        const mstar_tensor *pooled = mstar_tensors_find(result.outputs, "pooled");
        if (place != NULL)
            assert_ptr_equal(pooled->data, place);
        place = pooled->data;
        if (i < 2)
            memcpy(kept[i], pooled->data, sizeof kept[i]);
        else
            assert_memory_equal(pooled->data, kept[i - 2], sizeof kept[i - 2]);
    }
    assert_memory_not_equal(kept[0], kept[1], sizeof kept[0]);
    bench_close(&b);
}

/* The first replay fails on an id that no table holds (a direct run would too): a status for that
 * step, no results of another step in its place, and the next replay is right. */
static void first_replay_fails(void **state)
{
    static bench b;
    static node_step bad;
    static node_step good;
    fault_case *c = *state;
    check_rng rng = {189};
    mstar_node_hooks hooks;
    mstar_runner_result result;
    fault_outcome(c, "recover");
    fault_says(c, "inject", "first replay fails");
    open_bench(&b, &hooks);
    node_step_fill(&bad, &rng, (const int64_t[]){6}, 1);
    bad.ids[2] = NODE_WORDS + 9;
    CHECK_INVALID(take_step(&b, &bad, &result), "replay");
    assert_null(result.outputs);
    assert_int_equal(bench_query(&b).replays, 0);
    node_step_fill(&good, &rng, (const int64_t[]){6}, 1);
    CHECK_OK(take_step(&b, &good, &result));
    assert_int_equal(result.miss, MSTAR_GRAPH_MISS_NONE);
    bench_check_step(&b, "w", &rng, (const int64_t[]){3, 9}, 2, MSTAR_GRAPH_MISS_NONE);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-189", first_replay_fails),      FAULT("BR-193", one_temporary),
        FAULT("BR-197", streams_share_the_arena), FAULT("BR-198", buckets_share_the_arena),
        FAULT("BR-201", results_are_borrowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
