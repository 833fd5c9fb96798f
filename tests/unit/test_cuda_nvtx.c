/* test_cuda_nvtx.c - ranges for profilers over a fake library: which there are, that each ends, and
 * what is said where the library is not what it should be. */
#include <dlfcn.h>
#include <stdlib.h>

#include "support_check.h"
#include "support_mock_cuda.h"

enum { TOKENS = 5, HEADS = 2, DIM = 8, WIDTH = HEADS * DIM };

static mock_cuda *mock;
static void *library;
static const char *(*range_log)(void);
static int (*range_depth)(void);
static void (*range_clear)(void);

typedef void (*any_function)(void);
static any_function find(const char *symbol)
{
    union {
        void *data;
        any_function code;
    } found = {dlsym(library, symbol)};
    assert_non_null(found.data);
    return found.code;
}

static int set_up(void **state)
{
    (void)state;
    library = dlopen(MST_FAKE_NVTX, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return -1;
    range_log = (const char *(*)(void))find("fake_nvtx_log");
    range_depth = (int (*)(void))find("fake_nvtx_depth");
    range_clear = (void (*)(void))find("fake_nvtx_clear");
    range_clear();
    mock = mock_cuda_install();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unsetenv("MSTAR_NVTX");
    mock_cuda_remove();
    (void)dlclose(library);
    return 0;
}

/* Every kind of range is there once, ends, and a run inside a capture lies inside its range. */
static void use(mstar_device *device, const char *create, const char *plan, const char *run,
                const char *capture, const char *replay)
{
    const int32_t offsets[] = {0, TOKENS};
    const int64_t shape[] = {TOKENS, HEADS, DIM};
    const size_t bytes = TOKENS * WIDTH * sizeof(uint16_t);
    mstar_stream *stream;
    mstar_buffer *memory;
    mstar_ragged_prefill *attention;
    mstar_graph *graph;
    mstar_ragged_prefill_desc desc;
    mstar_tensor t[4];
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = HEADS;
    desc.head_dim = DIM;
    desc.q_data_type = MSTAR_DTYPE_BF16;
    desc.accelerator_graph = 1;
    desc.max_num_segments = 1;
    desc.max_total_tokens = TOKENS;
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_buffer_create(device, 4 * bytes, &memory));
    for (int i = 0; i < 4; i++) {
        char *at = (char *)mstar_buffer_get_data(memory) + (size_t)i * bytes;
        t[i] = mstar_tensor_make(at, MSTAR_DTYPE_BF16, 3, shape);
        t[i].device_kind = MSTAR_DEVICE_CUDA;
    }
#define SAYS(text)                              \
    do {                                        \
        assert_string_equal(range_log(), text); \
        assert_int_equal(range_depth(), 0);     \
        range_clear();                          \
    } while (0)
    range_clear();
    CHECK_OK(mstar_ragged_prefill_create(device, &desc, NULL, 0, &attention));
    SAYS(create);
    CHECK_OK(mstar_ragged_prefill_plan(attention, stream, offsets, 1, 0));
    SAYS(plan);
    CHECK_OK(mstar_ragged_prefill_run(attention, stream, &t[0], &t[1], &t[2], &t[3], NULL));
    SAYS(run);
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(mstar_ragged_prefill_run(attention, stream, &t[0], &t[1], &t[2], &t[3], NULL));
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    SAYS(capture);
    CHECK_OK(mstar_graph_replay(graph, stream));
    SAYS(replay);
    CHECK_OK(mstar_graph_capture_begin(stream));
    mstar_graph_capture_abort(stream);
    assert_int_equal(range_depth(), 0);
    range_clear();
    /* a call that fails ends its range, and leaves none open behind it */
    const mock_call calls[] = {MOCK_launch_with, MOCK_graph_launch, MOCK_copy};
    for (int i = 0; i < 3; i++) {
        mock->fail_call = calls[i];
        mock->fail_after = 1;
        mock->fail_result = 999;
        mstar_status status =
            i == 0   ? mstar_ragged_prefill_run(attention, stream, &t[0], &t[1], &t[2], &t[3], NULL)
            : i == 1 ? mstar_graph_replay(graph, stream)
                     : mstar_ragged_prefill_plan(attention, stream, offsets, 1, 0);
        assert_int_equal(status, MSTAR_DEVICE_FAILED);
        assert_int_equal(range_depth(), 0);
    }
    mstar_graph_destroy(graph);
    mstar_ragged_prefill_destroy(attention);
    mstar_buffer_destroy(memory);
    mstar_stream_destroy(stream);
}

static void marks_what_is_done(void **state)
{
    (void)state;
    mstar_device *device;
    setenv("MSTAR_NVTX", MST_FAKE_NVTX, 1);
    CHECK_OK(mock_cuda_open(&device));
    use(device, "<mstar plan>", "<mstar plan>", "<mstar attention>",
        "<mstar capture<mstar attention>>", "<mstar replay>");
    mock_cuda_close(device);
}

static void is_off_by_default(void **state)
{
    (void)state;
    static const char *const values[] = {NULL, "", "0"};
    for (int i = 0; i < 3; i++) {
        mstar_device *device;
        if (values[i] != NULL)
            setenv("MSTAR_NVTX", values[i], 1);
        CHECK_OK(mock_cuda_open(&device));
        use(device, "", "", "", "", "");
        mock_cuda_close(device);
    }
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    mstar_device *device;
    setenv("MSTAR_NVTX", "yes", 1);
    CHECK_INVALID(mock_cuda_open(&device), "MSTAR_NVTX is \"yes\"; it must be 0, 1 or the path");
    setenv("MSTAR_NVTX", "/none/libnvtx.so", 1);
    CHECK_FAILED(mock_cuda_open(&device), MSTAR_DEVICE_UNAVAILABLE,
                 "MSTAR_NVTX is \"/none/libnvtx.so\"");
    setenv("MSTAR_NVTX", MST_OTHER_LIBRARY, 1);
    CHECK_FAILED(mock_cuda_open(&device), MSTAR_DEVICE_UNAVAILABLE, "has no nvtxRangePushA");
    assert_int_equal(mock->live, 0);
    unsetenv("MSTAR_NVTX");
    CHECK_OK(mock_cuda_open(&device));
    mock_cuda_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(marks_what_is_done, set_up, tear_down),
        cmocka_unit_test_setup_teardown(is_off_by_default, set_up, tear_down),
        cmocka_unit_test_setup_teardown(says_what_is_wrong, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
