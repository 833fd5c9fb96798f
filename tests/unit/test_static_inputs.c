/*
 * test_static_inputs.c - the buffers that captures read: one for each tensor of a config, made by
 * the largest capture, of which a smaller one sees the start; which dimension varies is decided
 * once; a step's tensors replace the start and leave the tail as it was.
 */
#include "support_runner.h"

#include <string.h>

#include "graph/runner.h"

enum { TOKENS = 8, MOST = 4 * TOKENS * 3 };

static bench b;
static mst_static_inputs inputs;
static mstar_tensors views;

static mstar_tensor tensor_of(void *data, int64_t first, int64_t second)
{
    return mstar_tensor_make(data, MSTAR_DTYPE_I32, 2, (int64_t[]){first, second});
}

/* One tensor of a capture of so many tokens. */
static mstar_status intern(const char *name, int64_t tokens, int64_t first, int64_t second)
{
    static int32_t zeros[MOST];
    mstar_tensors given;
    mstar_tensors_init(&given);
    mstar_tensor tensor = tensor_of(zeros, first, second);
    CHECK_OK(mstar_tensors_add(&given, name, &tensor));
    mstar_status status =
        mst_static_inputs_intern(&inputs, b.device, b.configs[0], tokens, &given, &views);
    mstar_tensors_release(&given);
    return status;
}

static mstar_status stage(const char *name, const mstar_tensor *tensor)
{
    mstar_tensors given;
    mstar_tensors_init(&given);
    CHECK_OK(mstar_tensors_add(&given, name, tensor));
    mstar_status status =
        mst_static_inputs_stage(&inputs, &given, mstar_graph_runner_get_stream(b.runner));
    mstar_tensors_release(&given);
    return status;
}

static int32_t at(const mstar_tensor *tensor, int64_t i, int64_t j)
{
    return ((const int32_t *)tensor->data)[i * tensor->strides[0] + j * tensor->strides[1]];
}

static mstar_tensor view(void)
{
    assert_int_equal(views.count, 1);
    return views.items[0].tensor;
}

/* A config whose "turned" varies along its first dimension, whatever its sizes look like. */
static int open_all(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, lengths[] = {TOKENS, TOKENS / 2};
    static const mstar_input_seq_dim dims[] = {{.name = "turned", .dim = 0}};
    mstar_packed_graph_config_desc desc;
    bench_open(&b, 1);
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "w";
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = 1;
    desc.capture_token_lengths = lengths;
    desc.num_capture_token_lengths = 2;
    desc.make_node_input = node_make_input;
    desc.input_seq_dims = dims;
    desc.num_input_seq_dims = 1;
    CHECK_OK(mstar_packed_graph_config_create(&desc, (mstar_graph_config **)&b.configs[0]));
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc runner = bench_desc(&b, &hooks);
    CHECK_OK(mstar_graph_runner_create(b.device, &runner, &b.runner));
    mstar_tensors_init(&views);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    mstar_tensors_release(&views);
    mst_static_inputs_release(&inputs);
    bench_close(&b);
    return 0;
}

/* [3, tokens]: the second dimension varies and is stored first, so that a smaller capture's tensor
 * is the start of the same buffer. */
static void smaller_ones_are_the_start(void **state)
{
    (void)state;
    CHECK_OK(intern("grid", TOKENS, 3, TOKENS));
    mstar_tensor large = view();
    assert_int_equal(large.strides[1], 3);
    assert_int_equal(large.strides[0], 1);
    /* three tokens: by its sizes alone the first dimension would do as well as the second */
    CHECK_OK(intern("grid", 3, 3, 3));
    mstar_tensor small = view();
    assert_ptr_equal(small.data, large.data);
    assert_memory_equal(small.strides, large.strides, 2 * sizeof small.strides[0]);
    int32_t given[3 * TOKENS];
    for (int32_t i = 0; i < 3 * TOKENS; i++)
        given[i] = i;
    mstar_tensor full = tensor_of(given, 3, TOKENS);
    CHECK_OK(stage("grid", &full));
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < TOKENS; j++)
            assert_int_equal(at(&large, i, j), i * TOKENS + j);
    /* two tokens of a later step: the start is replaced, the tail keeps what it held */
    const int32_t two[] = {100, 101, 110, 111, 120, 121};
    mstar_tensor part = tensor_of((void *)(uintptr_t)two, 3, 2);
    CHECK_OK(stage("grid", &part));
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < TOKENS; j++)
            assert_int_equal(at(&large, i, j), j < 2 ? 100 + 10 * i + j : i * TOKENS + j);
}

/* A dimension that happens to be as long as the capture has tokens is not the one that varies. */
static void the_config_decides(void **state)
{
    (void)state;
    CHECK_OK(intern("turned", TOKENS, 2, TOKENS));
    assert_int_equal(view().strides[0], TOKENS);
    CHECK_OK(intern("turned", TOKENS / 2, 1, TOKENS));
    assert_int_equal(view().strides[0], TOKENS);
    CHECK_INVALID(intern("turned", TOKENS, 3, TOKENS), "has size 3 in dimension 0");
    assert_non_null(strstr(mstar_last_error(), "largest capture, which comes first, with 2"));
    CHECK_INVALID(intern("turned", TOKENS, 2, TOKENS / 2), "see input_seq_dims");
}

static void what_does_not_fit(void **state)
{
    (void)state;
    static int32_t zeros[MOST];
    CHECK_OK(intern("plain", TOKENS, TOKENS, 3));
    CHECK_INVALID(intern("plain", TOKENS, TOKENS + 1, 3), "has size 9 in dimension 0");
    CHECK_INVALID(intern("plain", TOKENS, TOKENS, 2), "has size 2 in dimension 1");
    mstar_tensor wide = tensor_of(zeros, TOKENS + 1, 3);
    CHECK_INVALID(stage("plain", &wide), "\"plain\" has size 9");
    mstar_tensor floats = mstar_tensor_make(zeros, MSTAR_DTYPE_F32, 2, (int64_t[]){2, 3});
    CHECK_INVALID(stage("plain", &floats), "is f32 of rank 2");
    mstar_tensor flat = mstar_tensor_make(zeros, MSTAR_DTYPE_I32, 1, (int64_t[]){3});
    CHECK_INVALID(stage("plain", &flat), "is i32 of rank 1");
    CHECK_OK(stage("of nobody", &wide)); /* a name that no capture has */
    mstar_tensor none = tensor_of(zeros, 0, 3);
    CHECK_OK(stage("plain", &none));
}

/* A step whose tensor lies elsewhere than compactly is gathered. */
static void strided_tensors(void **state)
{
    (void)state;
    int32_t given[4 * 5];
    for (int32_t i = 0; i < 20; i++)
        given[i] = i;
    CHECK_OK(intern("gathered", TOKENS, TOKENS, 3));
    mstar_tensor tensor = tensor_of(given, 4, 3);
    tensor.strides[0] = 5; /* rows of five, of which three are meant */
    CHECK_OK(stage("gathered", &tensor));
    mstar_tensor seen = view();
    for (int64_t i = 0; i < 4; i++)
        for (int64_t j = 0; j < 3; j++)
            assert_int_equal(at(&seen, i, j), 5 * i + j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smaller_ones_are_the_start),
        cmocka_unit_test(the_config_decides),
        cmocka_unit_test(what_does_not_fit),
        cmocka_unit_test(strided_tensors),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
