/*
 * test_cuda_runner.c - what runners and regions do for a device with memory of its own: numbers are
 * sent there, integers stay, steps wait for one another on the device and never on the host. Over
 * the mock driver, or on a card. The suites of runners and regions run there as well.
 */
#include "support_card.h"
#include "support_mock_cuda.h"
#include "support_mock_track.h"
#include "support_region.h"
#include "support_runner.h"

#include <stdlib.h>
#include <string.h>

#include "graph/region.h"
#include "graph/runner.h"

enum { WIDTH = 12, TOKENS = 64, SPARE = 5, ALL = TOKENS * (WIDTH + SPARE) };

/* ---- a forward that hands back what it was given --------------------------------------------- */

typedef struct echo {
    float rows[ALL]; /* [tokens, WIDTH], rows row_stride apart */
    float turned[WIDTH * TOKENS];
    int32_t ids[TOKENS];
    int64_t row_stride;
    mstar_buffer *there;  /* gives x from the device's memory; NULL: from the host's */
    bool ids_there;       /* says so of ids that are host memory */
    mstar_buffer *ids_on; /* gives ids from the device's memory, but under walk "host" */
    mstar_device_kind x_kind, ids_kind; /* that forward saw */
    const void *ids_data;
} echo;

static mstar_status echo_preprocess(void *user, const mstar_step_context *context,
                                    const mstar_node_input *inputs, int64_t count,
                                    mstar_tensors *tensors)
{
    echo *e = user;
    int64_t tokens = 0;
    bool ids_on = e->ids_on != NULL && strcmp(context->walk, "host") != 0;
    for (int64_t i = 0; i < count; i++)
        tokens += inputs[i].input_seq_len;
    mstar_tensor x = mstar_tensor_make(e->rows, MSTAR_DTYPE_F32, 2, (int64_t[]){tokens, WIDTH});
    x.strides[0] = e->row_stride;
    if (e->there != NULL) {
        x.data = mstar_buffer_get_data(e->there);
        x.device_kind = MSTAR_DEVICE_CUDA;
    }
    mstar_tensor turned =
        mstar_tensor_make(e->turned, MSTAR_DTYPE_F32, 2, (int64_t[]){WIDTH, tokens});
    mstar_tensor ids = mstar_tensor_make(e->ids, MSTAR_DTYPE_I32, 1, &tokens);
    if (e->ids_there || ids_on)
        ids.device_kind = MSTAR_DEVICE_CUDA;
    if (ids_on)
        ids.data = mstar_buffer_get_data(e->ids_on);
    mstar_status status = mstar_tensors_add(tensors, "x", &x);
    if (status == MSTAR_OK)
        status = mstar_tensors_add(tensors, "turned", &turned);
    return status == MSTAR_OK ? mstar_tensors_add(tensors, "ids", &ids) : status;
}

static mstar_status echo_lay_out(void *user, mstar_frame_size size, mstar_tensors *scratch)
{
    (void)user;
    mstar_tensor y =
        mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2, (int64_t[]){size.num_tokens, WIDTH});
    mstar_status status = mstar_tensors_add(scratch, "y", &y);
    return status == MSTAR_OK ? mstar_tensors_add(scratch, "z", &y) : status;
}

static mstar_status echo_forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    echo *e = user;
    const mstar_tensor *x = mstar_tensors_find(frame->inputs, "x");
    const mstar_tensor *turned = mstar_tensors_find(frame->inputs, "turned");
    const mstar_tensor *y = mstar_tensors_find(frame->scratch, "y");
    const mstar_tensor *z = mstar_tensors_find(frame->scratch, "z");
    e->x_kind = x->device_kind;
    const mstar_tensor *ids = mstar_tensors_find(frame->inputs, "ids");
    e->ids_kind = ids->device_kind;
    e->ids_data = ids->data;
    mstar_status status = mstar_activation_run(frame->stream, MSTAR_ACTIVATION_NONE, x, y);
    if (status == MSTAR_OK && frame->context->lease != NULL) { /* stored tokens first */
        mstar_tensor back = *z;
        back.data = turned->data;
        back.strides[0] = turned->strides[1];
        status = mstar_activation_run(frame->stream, MSTAR_ACTIVATION_NONE, &back, z);
    }
    if (status == MSTAR_OK)
        status = mstar_tensors_add(outputs, "y", y);
    return status == MSTAR_OK ? mstar_tensors_add(outputs, "z", z) : status;
}

/* One request of so many tokens through a bucket of TOKENS and one of half as many; the same under
 * a second walk, "host", where there are two configs. */
typedef struct echo_bench {
    mstar_device *device;
    const mstar_graph_config *configs[2];
    int64_t num_configs;
    mstar_graph_runner *runner;
    echo echo;
} echo_bench;

static mstar_graph_config *echo_config(const char *walk)
{
    mstar_graph_config *config;
    static const int64_t sizes[] = {1}, lengths[] = {TOKENS, TOKENS / 2};
    static const mstar_input_seq_dim dims[] = {{.name = "turned", .dim = 1},
                                               {.name = "x", .dim = 0}};
    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = walk;
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = 1;
    desc.capture_token_lengths = lengths;
    desc.num_capture_token_lengths = 2;
    desc.make_node_input = node_make_input;
    desc.input_seq_dims = dims;
    desc.num_input_seq_dims = 2;
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    return config;
}

static void echo_capture(echo_bench *b)
{
    static const char *const walks[] = {"w", "host"};
    for (int64_t i = 0; i < b->num_configs; i++)
        b->configs[i] = echo_config(walks[i]);
    mstar_node_hooks hooks;
    mstar_node_hooks_init(&hooks);
    hooks.preprocess = echo_preprocess;
    hooks.lay_out = echo_lay_out;
    hooks.forward = echo_forward;
    mstar_graph_runner_desc runner;
    mstar_graph_runner_desc_init(&runner);
    runner.hooks = &hooks;
    runner.user = &b->echo;
    runner.configs = b->configs;
    runner.num_configs = b->num_configs;
    CHECK_OK(mstar_graph_runner_create(b->device, &runner, &b->runner));
    CHECK_OK(mstar_graph_runner_prepare(b->runner));
    CHECK_OK(mstar_graph_runner_capture(b->runner));
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_runner_query(b->runner, &info));
    assert_int_equal(info.num_captured, 2 * b->num_configs);
    /* the largest bucket's: rows, the same turned, ids */
    assert_int_equal(info.static_input_bytes, b->num_configs * TOKENS * (2 * WIDTH * 4 + 4));
}

static void echo_device(echo_bench *b)
{
    memset(b, 0, sizeof *b);
    b->echo.row_stride = WIDTH;
    b->num_configs = 1;
    b->device = level_open(1);
}

static void echo_open(echo_bench *b)
{
    echo_device(b);
    echo_capture(b);
}

static void echo_close(echo_bench *b)
{
    mstar_graph_runner_destroy(b->runner);
    for (int64_t i = 0; i < b->num_configs; i++)
        mstar_graph_config_destroy((mstar_graph_config *)(uintptr_t)b->configs[i]);
    mstar_buffer_destroy(b->echo.there);
    mstar_buffer_destroy(b->echo.ids_on);
    level_close(b->device);
    assert_int_equal(check_live_allocations(), 0);
}

static mstar_status echo_walk(echo_bench *b, const char *walk, int64_t tokens, int eager,
                              mstar_stream *stream, mstar_runner_result *result)
{
    static const int64_t handle = 3;
    const mstar_node_input input = {.input_seq_len = tokens};
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.eager = eager;
    step.walk = walk;
    step.requests = &handle;
    step.inputs = &input;
    step.count = 1;
    step.stream = stream;
    result->struct_size = sizeof *result;
    return mstar_graph_runner_step(b->runner, &step, result);
}

static mstar_status echo_step(echo_bench *b, int64_t tokens, int eager, mstar_stream *stream,
                              mstar_runner_result *result)
{
    return echo_walk(b, "w", tokens, eager, stream, result);
}

/* New numbers, a step, and what came back. */
static void echo_check(echo_bench *b, check_rng *rng, int64_t tokens, int eager)
{
    echo *e = &b->echo;
    mstar_stream *stream = mstar_graph_runner_get_stream(b->runner);
    static float got[TOKENS][WIDTH];
    for (int64_t i = 0; i < ALL; i++)
        e->rows[i] = (float)check_uniform(rng, -1, 1);
    for (int64_t i = 0; i < WIDTH * TOKENS; i++)
        e->turned[i] = (float)check_uniform(rng, -1, 1);
    if (e->there != NULL)
        level_write(stream, mstar_buffer_get_data(e->there), e->rows, sizeof e->rows);
    level_fill(stream, mstar_buffer_get_data(b->runner->pool), 0xff, b->runner->pool_bytes);
    mstar_runner_result result;
    CHECK_OK(echo_step(b, tokens, eager, NULL, &result));
    assert_int_equal(result.miss, eager ? MSTAR_GRAPH_MISS_DISABLED : MSTAR_GRAPH_MISS_NONE);
    assert_int_equal(e->x_kind, MSTAR_DEVICE_CUDA);
    assert_int_equal(e->ids_kind, e->ids_on != NULL ? MSTAR_DEVICE_CUDA : MSTAR_DEVICE_CPU);
    size_t bytes = (size_t)tokens * sizeof got[0];
    level_read(stream, got, mstar_tensors_find(result.outputs, "y")->data, bytes);
    for (int64_t i = 0; i < tokens; i++)
        assert_memory_equal(got[i], e->rows + i * e->row_stride, sizeof got[i]);
    if (eager)
        return;
    level_read(stream, got, mstar_tensors_find(result.outputs, "z")->data, bytes);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t j = 0; j < WIDTH; j++)
            assert_true(got[i][j] == e->turned[j * tokens + i]);
}

/* ---- tests of inputs ------------------------------------------------------------------------- */

/* Replayed and eager, growing and shrinking, compact rows and rows apart. */
static void numbers_reach_the_device(void **state)
{
    (void)state;
    static echo_bench b;
    check_rng rng = {81};
    echo_open(&b);
    static const int64_t tokens[] = {TOKENS, 7, TOKENS / 2, 1, 33, TOKENS};
    for (size_t i = 0; i < 2 * sizeof tokens / sizeof tokens[0]; i++) {
        b.echo.row_stride = i % 2 == 0 ? WIDTH : WIDTH + SPARE;
        echo_check(&b, &rng, tokens[i / 2], 0);
        echo_check(&b, &rng, tokens[i / 2], 1);
    }
    echo_close(&b);
}

/* A tensor that lies there already is read in place or copied there; integers that were captured in
 * host memory may not. */
static void inputs_of_the_device(void **state)
{
    (void)state;
    static echo_bench b;
    check_rng rng = {82};
    mstar_runner_result result;
    echo_open(&b);
    CHECK_OK(mstar_buffer_create(b.device, sizeof b.echo.rows, &b.echo.there));
    echo_check(&b, &rng, 20, 0);
    echo_check(&b, &rng, 20, 1);
    b.echo.row_stride = WIDTH + SPARE;
    echo_check(&b, &rng, 20, 1); /* an operation reads any strides */
    CHECK_INVALID(echo_step(&b, 20, 0, NULL, &result), "only host memory is gathered");
    b.echo.row_stride = WIDTH;
    b.echo.ids_there = true;
    CHECK_INVALID(echo_step(&b, 20, 0, NULL, &result), "\"ids\" is i32 on a device");
    CHECK_INVALID(echo_step(&b, 20, 1, NULL, &result), "\"ids\" is i32 on a device");
    b.echo.ids_there = false;
    echo_check(&b, &rng, 20, 0);
    echo_close(&b);
}

/* Integers that the first dummy step has there are there in each step, wherever they come from. */
static void integers_of_the_device(void **state)
{
    (void)state;
    static echo_bench b;
    mstar_runner_result result;
    int32_t got[TOKENS];
    echo_device(&b);
    CHECK_OK(mstar_buffer_create(b.device, sizeof b.echo.ids, &b.echo.ids_on));
    echo_capture(&b);
    mstar_buffer *there = b.echo.ids_on;
    mstar_stream *stream = mstar_graph_runner_get_stream(b.runner);
    const void *captured = b.echo.ids_data;
    for (int32_t i = 0; i < 8; i++) {
        const bool eager = i % 2 != 0;
        for (int32_t j = 0; j < TOKENS; j++)
            b.echo.ids[j] = 100 * i + j;
        level_write(stream, mstar_buffer_get_data(there), b.echo.ids, sizeof b.echo.ids);
        b.echo.ids_on = i / 2 % 2 == 0 ? there : NULL;
        CHECK_OK(echo_step(&b, 11, eager, NULL, &result));
        const void *seen = eager ? b.echo.ids_data : captured;
        level_read(stream, got, seen, 11 * sizeof got[0]);
        assert_memory_equal(got, b.echo.ids, 11 * sizeof got[0]);
        assert_int_equal(b.echo.ids_kind, MSTAR_DEVICE_CUDA);
    }
    b.echo.ids_on = there;
    echo_close(&b);
}

/* One name on the device under a walk and on the host under another: an eager step has it where its
 * own walk was captured. */
static void integers_lie_by_walk(void **state)
{
    (void)state;
    static echo_bench b;
    mstar_runner_result result;
    echo_device(&b);
    b.num_configs = 2;
    CHECK_OK(mstar_buffer_create(b.device, sizeof b.echo.ids, &b.echo.ids_on));
    echo_capture(&b);
    mstar_buffer *there = b.echo.ids_on;
    for (int i = 0; i < 2; i++) {
        b.echo.ids_on = i == 0 ? there : NULL;
        CHECK_OK(echo_walk(&b, "w", 11, 1, NULL, &result));
        assert_int_equal(b.echo.ids_kind, MSTAR_DEVICE_CUDA);
        CHECK_OK(echo_walk(&b, "host", 11, 1, NULL, &result));
        assert_int_equal(b.echo.ids_kind, MSTAR_DEVICE_CPU);
        CHECK_OK(echo_walk(&b, "host", 11, 0, NULL, &result));
    }
    b.echo.ids_there = true;
    CHECK_INVALID(echo_walk(&b, "host", 11, 1, NULL, &result), "\"ids\" is i32 on a device");
    b.echo.ids_on = there;
    echo_close(&b);
}

/* ---- tests of order -------------------------------------------------------------------------- */

/* Each step waits, on the device, for the one before; the host waits for none. */
static void steps_of_two_streams(void **state)
{
    (void)state;
    static echo_bench b;
    mstar_runner_result result;
    mstar_stream *other;
    if (card_is_real())
        return;
    echo_open(&b);
    CHECK_OK(mstar_stream_create(b.device, 1, &other));
    const mock_cuda *mock = mock_cuda_now();
    const void *ours = mstar_stream_get_native(mstar_graph_runner_get_stream(b.runner));
    const void *theirs = mstar_stream_get_native(other);
    CHECK_OK(echo_step(&b, 9, 0, NULL, &result));
    CHECK_OK(echo_step(&b, 9, 1, NULL, &result));
    for (int i = 0; i < 8; i++) {
        int64_t syncs = mock->calls[MOCK_stream_synchronize] + mock->calls[MOCK_event_synchronize];
        CHECK_OK(echo_step(&b, 9, i / 2 % 2, i % 2 == 0 ? other : NULL, &result));
        /* the other one's work before this step, but none of what it gets from now on */
        assert_true(track_is_after(i % 2 == 0 ? theirs : ours, i % 2 == 0 ? ours : theirs));
        assert_false(track_is_after(i % 2 == 0 ? ours : theirs, i % 2 == 0 ? theirs : ours));
        assert_int_equal(mock->calls[MOCK_stream_synchronize] + mock->calls[MOCK_event_synchronize],
                         syncs);
    }
    CHECK_OK(mstar_stream_synchronize(other));
    mstar_stream_destroy(other);
    echo_close(&b);
}

/* Each call of the driver that a step makes for inputs or for order, failing once: an error, and
 * the next step is right. */
static void calls_that_fail(void **state)
{
    (void)state;
    static echo_bench b;
    check_rng rng = {84};
    mstar_runner_result result;
    const mock_call calls[] = {MOCK_stream_wait_event, MOCK_event_record, MOCK_copy,
                               MOCK_host_alloc, MOCK_graph_launch};
    if (card_is_real())
        return;
    echo_open(&b);
    echo_check(&b, &rng, 5, 1);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        mock_cuda *mock = mock_cuda_now();
        int64_t failed = 0;
        for (int eager = 0; eager < 2; eager++) {
            for (int64_t n = 1; n < 20; n++) {
                mock->fail_call = calls[i];
                mock->fail_result = 700;
                mock->fail_after = n;
                mstar_status status = echo_step(&b, 11, eager, NULL, &result);
                bool happened = mock->fail_after == 0;
                mock->fail_after = 0;
                assert_true(status == MSTAR_OK || happened);
                failed += status != MSTAR_OK;
                echo_check(&b, &rng, 11, eager);
                if (!happened)
                    break;
            }
        }
        assert_true(failed > 0 || calls[i] == MOCK_host_alloc);
    }
    echo_close(&b);
}

/* Without a bound of the caller's the device's free memory is it, and the driver's share counts
 * there; what is ours is told without it. */
static void free_memory_is_the_bound(void **state)
{
    (void)state;
    enum { SHARE = 1 << 16 };
    static bench b;
    size_t ours = 0;
    if (card_is_real())
        return;
    for (int limited = 0; limited < 2; limited++) {
        bench_open(&b, 1);
        b.configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
        b.num_configs = 1;
        mstar_node_hooks hooks = node_hooks(&b.node);
        mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
        desc.num_slots = 1;
        mock_cuda *mock = mock_cuda_now();
        mock->graph_bytes = SHARE;
        CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
        int64_t before = mock->free_bytes;
        if (limited) /* all that is ours, two shares, and not the third */
            mock->free_bytes = (int64_t)ours + 3 * SHARE - 1;
        CHECK_OK(mstar_graph_runner_prepare(b.runner));
        mock->free_bytes = before;
        CHECK_OK(mstar_graph_runner_capture(b.runner));
        mstar_graph_runner_info info = bench_query(&b);
        assert_int_equal(info.num_captured, limited ? 2 : 3);
        assert_int_equal(info.num_unaffordable, limited ? 1 : 0);
        assert_int_equal(info.driver_bytes, (size_t)info.num_captured * SHARE);
        assert_int_equal(before - mock->free_bytes, (int64_t)info.driver_bytes);
        assert_int_equal(info.total_bytes, info.scratch_bytes + info.static_input_bytes +
                                               info.graph_bytes + info.host_bytes +
                                               info.eager_bytes);
        ours = info.total_bytes - b.runner->held_before;
        bench_close(&b);
    }
}

/* ---- tests of regions ------------------------------------------------------------------------ */

/* What the eager forward around a region has made on the device goes into it without the host. */
static void regions_take_and_give_device_memory(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {32};
    static region_bench b;
    static region_rows r;
    static float got[9][NODE_WIDTH];
    check_rng rng = {85};
    region_bench_open(&b, sizes, 1, 0, totals, 1);
    region_bench_start(&b);
    const int64_t lengths[] = {9}, handle = 4;
    region_bench_eager(&b, &rng, lengths, 1, &r);
    mstar_buffer *memory;
    CHECK_OK(mstar_buffer_create(b.device, 2 * sizeof got, &memory));
    level_write(b.stream, mstar_buffer_get_data(memory), r.x, sizeof got);
    mstar_tensor x = mstar_tensor_make(mstar_buffer_get_data(memory), MSTAR_DTYPE_F32, 2,
                                       (int64_t[]){9, NODE_WIDTH});
    mst_put_on_device(b.device, &x);
    mstar_tensors inputs = {NULL, 0, 0};
    CHECK_OK(mstar_tensors_add(&inputs, "x", &x));
    mstar_region_call call;
    mstar_region_call_init(&call);
    call.inputs = &inputs;
    call.requests = &handle;
    call.num_requests = 1;
    call.seq_lens = lengths;
    call.num_seq_lens = 1;
    mstar_region_result result = {.struct_size = sizeof result};
    CHECK_OK(mstar_region_runner_run(b.runner, &call, &result));
    assert_ptr_equal(result.stream, b.stream);
    assert_int_equal(mstar_tensors_find(result.outputs, "x")->device_kind, MSTAR_DEVICE_CUDA);
    mstar_tensor there = x; /* a copy on the device, then one here */
    there.data = (char *)x.data + sizeof got;
    CHECK_OK(mstar_region_result_copy(&result, "x", &there));
    level_read(b.stream, got, there.data, sizeof got);
    assert_memory_equal(got, r.want, sizeof got);
    mstar_tensor here = mstar_tensor_make(got, MSTAR_DTYPE_F32, 2, x.shape);
    memset(got, 0xff, sizeof got);
    CHECK_OK(mstar_region_result_copy(&result, "x", &here));
    assert_memory_equal(got, r.want, sizeof got);
    result.struct_size = offsetof(mstar_region_result, stream); /* of a caller that is older */
    CHECK_INVALID(mstar_region_result_copy(&result, "x", &here), "needs result.stream");
    mstar_tensors_release(&inputs);
    mstar_buffer_destroy(memory);
    region_bench_close(&b);
}

static void regions_refuse_another_devices_stream(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {32};
    static region_bench b;
    mstar_device *cpu;
    mstar_stream *stream;
    CHECK_OK(mstar_device_open("cpu", NULL, &cpu));
    CHECK_OK(mstar_stream_create(cpu, 1, &stream));
    region_bench_open(&b, sizes, 1, 0, totals, 1);
    mstar_region_runner_desc desc = region_bench_desc(&b);
    desc.stream = stream;
    CHECK_INVALID(mstar_region_runner_create(b.device, &desc, &b.runner), "on another device");
    mstar_stream_destroy(stream);
    CHECK_OK(mstar_device_close(cpu));
    region_bench_close(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_reach_the_device),
        cmocka_unit_test(inputs_of_the_device),
        cmocka_unit_test(integers_of_the_device),
        cmocka_unit_test(integers_lie_by_walk),
        cmocka_unit_test(steps_of_two_streams),
        cmocka_unit_test(calls_that_fail),
        cmocka_unit_test(free_memory_is_the_bound),
        cmocka_unit_test(regions_take_and_give_device_memory),
        cmocka_unit_test(regions_refuse_another_devices_stream),
    };
    card_choose(argc, argv);
    level_use_card(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
