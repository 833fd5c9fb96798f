/* test_cuda.c - the CUDA backend over a mock driver: opening, memory, the staging ring, streams. */
#include <string.h>

#include "support_check.h"
#include "support_mock_cuda.h"

static mock_cuda *mock;

static int set_up(void **state)
{
    (void)state;
    mock = mock_cuda_install();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mock_cuda_remove();
    return 0;
}

static void opens_and_tells(void **state)
{
    (void)state;
    mstar_device *device;
    CHECK_OK(mock_cuda_open(&device));
    mstar_device_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_device_query(device, &info));
    assert_int_equal(info.kind, MSTAR_DEVICE_CUDA);
    assert_string_equal(info.name, "cuda:0");
    assert_string_equal(info.model, "Mock GPU");
    assert_string_equal(info.isa, "sm_90");
    assert_int_equal(info.l2_bytes, 60 << 20);
    assert_int_equal(info.memory_bytes, (int64_t)1 << 40);
    assert_int_equal(info.free_bytes, mock->free_bytes);
    mock->fail_call = MOCK_memory_info;
    mock->fail_after = 1;
    mock->fail_result = 999;
    CHECK_FAILED(mstar_device_query(device, &info), MSTAR_DEVICE_FAILED, "free memory");
    mstar_kernel_info kernel = {.struct_size = sizeof kernel};
    int32_t count = 0;
    while (mstar_device_query_kernel(device, count, &kernel) == MSTAR_OK) {
        if (strcmp(kernel.op, "attention") == 0 || strcmp(kernel.op, "linear") == 0)
            assert_non_null(strstr(kernel.symbol, kernel.dtype));
        else
            assert_non_null(strstr(kernel.symbol, kernel.op));
        count++;
    }
    assert_int_equal(count, mst_cuda_num_kernels() + 3); /* and the library's products */
    assert_true(count <= 79);                            /* what a build compiles */
    mock_cuda_close(device);
}

static void says_why_there_is_no_device(void **state)
{
    (void)state;
    mstar_device *device;
    mock->version = 11080;
    CHECK_FAILED(mock_cuda_open(&device), MSTAR_DEVICE_UNAVAILABLE,
                 "the NVIDIA driver is for CUDA 11.8");
    mock->version = 99000;
    mock->devices = 0;
    CHECK_FAILED(mock_cuda_open(&device), MSTAR_DEVICE_UNAVAILABLE, "sees no device");
    mock->devices = 1;
    mock->major = 7;
    CHECK_FAILED(mock_cuda_open(&device), MSTAR_DEVICE_UNAVAILABLE, "need 8.0");
}

/* Each call that opening makes, failed once: a clear error, nothing left behind, and the next try
 * is fine. */
static void survives_each_failed_call(void **state)
{
    (void)state;
    const mock_call calls[] = {MOCK_init,         MOCK_driver_version,   MOCK_device_count,
                               MOCK_device_get,   MOCK_device_attribute, MOCK_device_name,
                               MOCK_context_push, MOCK_context_retain,   MOCK_stream_create};
    mstar_device *device;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        mock->fail_call = calls[i];
        mock->fail_after = 1;
        mock->fail_result = 999;
        CHECK_FAILED(mock_cuda_open(&device), MSTAR_DEVICE_FAILED, "MOCK_ERROR_999");
        assert_int_equal(mock->live, 0);
        CHECK_OK(mock_cuda_open(&device));
        mock_cuda_close(device);
    }
}

static void memory_is_zero_and_copies_stay_inside(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    mstar_buffer *buffer;
    unsigned char bytes[300], back[300];
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_buffer_create(device, 300, &buffer));
    memset(back, 1, sizeof back);
    CHECK_OK(mstar_buffer_download(buffer, stream, 0, back, 300));
    CHECK_OK(mstar_stream_synchronize(stream));
    for (int i = 0; i < 300; i++)
        assert_int_equal(back[i], 0);
    for (int i = 0; i < 300; i++)
        bytes[i] = (unsigned char)i;
    CHECK_OK(mstar_buffer_upload(buffer, stream, 7, bytes, 200));
    CHECK_OK(mstar_buffer_download(buffer, stream, 0, back, 300));
    for (int i = 0; i < 300; i++)
        assert_int_equal(back[i], i >= 7 && i < 207 ? (unsigned char)(i - 7) : 0);
    CHECK_INVALID(mstar_buffer_upload(buffer, stream, 101, bytes, 200), "past the end");
    mock->free_bytes = 1000;
    mstar_buffer *large;
    CHECK_FAILED(mstar_buffer_create(device, 1001, &large), MSTAR_OUT_OF_MEMORY, "1000 of");
    mstar_buffer_destroy(buffer);
    mstar_stream_destroy(stream);
    mock_cuda_close(device);
}

/* Pinned memory, which the driver reads later, has been read on return as well: it is staged, or
 * waited for. */
static void pinned_memory_has_been_read(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    mstar_buffer *buffer;
    void *pinned;
    const size_t small = (size_t)1 << 20, large = small + 1;
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_buffer_create(device, large, &buffer));
    const mst_cuda_driver *driver = mst_cuda_of(device)->driver;
    assert_int_equal(driver->host_alloc(&pinned, large, 0), 0);
    memset(pinned, 7, large);
    mock->events_pending = true;
    int64_t waits = mock->calls[MOCK_stream_synchronize];
    int64_t stages = mst_cuda_of(device)->ring.num_stages;
    CHECK_OK(mstar_buffer_upload(buffer, stream, 0, pinned, small));
    assert_int_equal(mst_cuda_of(device)->ring.num_stages, stages + 1);
    assert_int_equal(mock->calls[MOCK_stream_synchronize], waits);
    CHECK_OK(mstar_buffer_upload(buffer, stream, 0, pinned, large));
    assert_int_equal(mst_cuda_of(device)->ring.num_stages, stages + 1);
    assert_int_equal(mock->calls[MOCK_stream_synchronize], waits + 1);
    assert_memory_equal(mstar_buffer_get_data(buffer), pinned, large);
    mock->events_pending = false;
    assert_int_equal(driver->host_free(pinned), 0);
    mstar_buffer_destroy(buffer);
    mstar_stream_destroy(stream);
    mock_cuda_close(device);
}

/* With copies that never end, every upload takes a stage of its own and none waits; with copies
 * that have ended the first stages serve again. */
static void ring_grows_and_reuses(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    mstar_buffer *buffer;
    char byte = 5;
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_buffer_create(device, 64, &buffer));
    mock->events_pending = true;
    for (int i = 0; i < 3 * MST_CUDA_STAGES; i++)
        CHECK_OK(mstar_buffer_upload(buffer, stream, 0, &byte, 1));
    assert_int_equal(mst_cuda_of(device)->ring.num_stages, 3 * MST_CUDA_STAGES);
    assert_int_equal(mock->calls[MOCK_event_synchronize], 0);
    mock->events_pending = false;
    int64_t allocations = mock->calls[MOCK_host_alloc];
    for (int i = 0; i < 100; i++)
        CHECK_OK(mstar_buffer_upload(buffer, stream, 0, &byte, 1));
    assert_int_equal(mock->calls[MOCK_host_alloc], allocations);
    mstar_buffer_destroy(buffer);
    mstar_stream_destroy(stream);
    mock_cuda_close(device);
}

/* While the caller's stream captures nothing may be allocated: full is BUSY, and afterwards fine.
 */
static void full_ring_in_a_capture_is_busy(void **state)
{
    (void)state;
    mstar_device *device;
    mst_cuda_stage *stage;
    CHECK_OK(mock_cuda_open(&device));
    mst_cuda *cuda = mst_cuda_of(device);
    int handle;
    mock->capturing = &handle;
    CHECK_FAILED(mst_cuda_stage_take(cuda, &handle, 10, &stage), MSTAR_BUSY, "cannot grow");
    mock->capturing = NULL;
    CHECK_OK(mst_cuda_stage_take(cuda, &handle, 10, &stage));
    mst_cuda_stage_drop(cuda, stage);
    mock_cuda_close(device);
}

static void wraps_the_callers_stream(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    int native;
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_wrap(device, &native, &stream));
    assert_ptr_equal(mstar_stream_get_native(stream), &native);
    int64_t destroyed = mock->calls[MOCK_stream_destroy];
    mstar_stream_destroy(stream);
    assert_int_equal(mock->calls[MOCK_stream_destroy], destroyed);
    CHECK_INVALID(mstar_stream_wrap(device, (void *)-1, &stream), "not a stream");
    CHECK_INVALID(mstar_stream_wrap(device, (void *)-2, &stream), "another context");
    CHECK_INVALID(mstar_stream_wrap(NULL, &native, &stream), "device is NULL");
    mock_cuda_close(device);
    mstar_device *cpu;
    CHECK_OK(mstar_device_open("cpu", NULL, &cpu));
    CHECK_FAILED(mstar_stream_wrap(cpu, &native, &stream), MSTAR_NOT_SUPPORTED,
                 "mstar_stream_create");
    CHECK_OK(mstar_device_close(cpu));
}

static void events_tell_time(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    mstar_event *start, *end;
    int64_t ns;
    int done;
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_event_create(device, &start));
    CHECK_OK(mstar_event_create(device, &end));
    CHECK_OK(mstar_event_record(start, stream));
    CHECK_OK(mstar_event_record(end, stream));
    mock->events_pending = true;
    CHECK_OK(mstar_event_query(end, &done));
    assert_int_equal(done, 0);
    mock->events_pending = false;
    CHECK_OK(mstar_event_query(end, &done));
    assert_int_equal(done, 1);
    CHECK_OK(mstar_stream_wait_event(stream, end));
    CHECK_OK(mstar_event_elapsed_ns(start, end, &ns));
    assert_int_equal(ns, 1500000);
    mstar_event_destroy(start);
    mstar_event_destroy(end);
    mstar_stream_destroy(stream);
    mock_cuda_close(device);
}

/* The driver's library itself, where there is none. */
static void says_that_there_is_no_driver(void **state)
{
    (void)state;
    const mst_cuda_driver *driver;
    mst_cuda_driver_replace(NULL);
    mstar_status status = mst_cuda_driver_get(&driver);
    if (status != MSTAR_OK) {
        assert_int_equal(status, MSTAR_DEVICE_UNAVAILABLE);
        assert_non_null(strstr(mstar_last_error(), "NVIDIA driver"));
    }
    mock = mock_cuda_install(); /* and then there is one */
    mstar_device *device;
    CHECK_OK(mock_cuda_open(&device));
    mock_cuda_close(device);
}

static void refuses_an_index_past_the_last(void **state)
{
    (void)state;
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    mstar_device device = {.backend = mst_cuda_backend(), .index = 1};
    CHECK_FAILED(device.backend->open(&device, &desc), MSTAR_NOT_FOUND,
                 "\"cuda:1\": this machine has 1, from cuda:0 on");
    mock->devices = 2;
    CHECK_OK(device.backend->open(&device, &desc));
    device.backend->close(&device);
}

/* A context that is gone (709: destroyed, 3: after a fork) fails each call by name, and what is
 * left can be destroyed; where it comes back everything works on. */
static void calls_without_a_context(void **state)
{
    (void)state;
    const int results[] = {3, 709};
    char byte = 1;
    int done;
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        mstar_device *device;
        mstar_stream *stream;
        mstar_buffer *buffer, *other;
        mstar_event *event;
        mstar_graph *graph;
        mstar_device_info info = {.struct_size = sizeof info};
        CHECK_OK(mock_cuda_open(&device));
        CHECK_OK(mstar_stream_create(device, -1, &stream));
        CHECK_OK(mstar_buffer_create(device, 64, &buffer));
        CHECK_OK(mstar_event_create(device, &event));
        CHECK_OK(mstar_event_record(event, stream));
        for (int call = 0; call < 8; call++) {
            mock->fail_call = MOCK_context_push;
            mock->fail_after = 1;
            mock->fail_result = results[i];
            mstar_status status = call == 0   ? mstar_buffer_upload(buffer, stream, 0, &byte, 1)
                                  : call == 1 ? mstar_buffer_download(buffer, stream, 0, &byte, 1)
                                  : call == 2 ? mstar_stream_synchronize(stream)
                                  : call == 3 ? mstar_buffer_create(device, 64, &other)
                                  : call == 4 ? mstar_event_record(event, stream)
                                  : call == 5 ? mstar_event_query(event, &done)
                                  : call == 6 ? mstar_graph_capture_begin(stream)
                                              : mstar_device_query(device, &info);
            assert_int_equal(status, MSTAR_DEVICE_FAILED);
            assert_non_null(strstr(mstar_last_error(), "MOCK_ERROR_"));
            mock->fail_after = 0;
        }
        CHECK_OK(mstar_buffer_upload(buffer, stream, 0, &byte, 1));
        CHECK_OK(mstar_graph_capture_begin(stream));
        CHECK_OK(mstar_graph_capture_end(stream, &graph));
        mstar_graph_destroy(graph);
        mstar_event_destroy(event);
        mstar_buffer_destroy(buffer);
        mstar_stream_destroy(stream);
        mock_cuda_close(device);
    }
}

/* Where the host works in the device's context too, it is not pushed again, and stays. */
static void a_context_that_is_current(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_buffer *buffer;
    CHECK_OK(mock_cuda_open(&device));
    const int64_t *pushes = &mock->calls[MOCK_context_push], *pops = &mock->calls[MOCK_context_pop];
    const int64_t before = *pushes;
    assert_true(before > 0 && *pops == before);
    mock->is_current = true;
    CHECK_OK(mstar_buffer_create(device, 64, &buffer));
    assert_int_equal(*pushes, before);
    assert_int_equal(*pops, before);
    mock->is_current = false;
    mstar_buffer_destroy(buffer);
    assert_true(*pushes > before && *pops == *pushes);
    mock->is_current = true; /* where asking fails it is pushed */
    mock->fail_call = MOCK_context_current;
    mock->fail_after = 1;
    mock->fail_result = 201;
    const int64_t after = *pushes;
    CHECK_OK(mstar_buffer_create(device, 64, &buffer));
    assert_true(*pushes == after + 1 && *pops == *pushes);
    mstar_buffer_destroy(buffer);
    mock_cuda_close(device);
}

/* A stream of the caller's that the caller captures: what cannot be recorded says so, and after
 * the capture the same call is fine. */
static void the_callers_capture(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    mstar_buffer *buffer;
    char bytes[4] = {1, 2, 3, 4}, back[4];
    int native;
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_wrap(device, &native, &stream));
    CHECK_OK(mstar_buffer_create(device, 64, &buffer));
    mock->capturing = &native;
    CHECK_FAILED(mstar_buffer_upload(buffer, stream, 0, bytes, 4), MSTAR_OUT_OF_ORDER,
                 "a copy of host memory was called while its stream captures");
    CHECK_FAILED(mstar_buffer_download(buffer, stream, 0, back, 4), MSTAR_OUT_OF_ORDER, "captures");
    CHECK_FAILED(mstar_graph_capture_begin(stream), MSTAR_OUT_OF_ORDER, "MOCK_ERROR_900");
    CHECK_FAILED(mstar_stream_synchronize(stream), MSTAR_OUT_OF_ORDER,
                 "waiting for a stream was called while its stream captures");
    mock->capturing = NULL;
    CHECK_OK(mstar_buffer_upload(buffer, stream, 0, bytes, 4));
    CHECK_OK(mstar_buffer_download(buffer, stream, 0, back, 4));
    CHECK_OK(mstar_stream_synchronize(stream));
    assert_memory_equal(back, bytes, 4);
    mstar_buffer_destroy(buffer);
    mstar_stream_destroy(stream);
    mock_cuda_close(device);
}

/* A device's memory is its own, not another's; of the host's only what is pinned. */
static void memory_of_this_device_alone(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_buffer *buffer;
    void *pinned;
    char host;
    CHECK_OK(mock_cuda_open(&device));
    const mst_cuda_driver *driver = mst_cuda_of(device)->driver;
    assert_int_equal(driver->host_alloc(&pinned, 64, 0), 0);
    CHECK_OK(mstar_buffer_create(device, 64, &buffer));
    const void *data = mstar_buffer_get_data(buffer);
    assert_true(device->backend->memory_is_own(device, data));
    assert_false(device->backend->memory_is_own(device, &host));
    mock->memory_ordinal = 1;
    assert_false(device->backend->memory_is_own(device, data));
    assert_true(device->backend->memory_is_own(device, pinned));
    mock->memory_ordinal = 0;
    mock->fail_call = MOCK_pointer_attributes;
    mock->fail_after = 1;
    mock->fail_result = 999;
    assert_false(device->backend->memory_is_own(device, data));
    assert_int_equal(driver->host_free(pinned), 0);
    mstar_buffer_destroy(buffer);
    mock_cuda_close(device);
}

/* What the driver takes for a graph is told where it was asked for twice, before and after. */
static void driver_bytes_of_a_graph(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    mock->graph_bytes = 1000;
    for (int failed = 0; failed <= 2; failed++) {
        mstar_graph *graph;
        mstar_graph_info info = {.struct_size = sizeof info};
        CHECK_OK(mstar_graph_capture_begin(stream));
        mock->fail_call = MOCK_memory_info;
        mock->fail_after = failed;
        mock->fail_result = 999;
        CHECK_OK(mstar_graph_capture_end(stream, &graph));
        assert_int_equal(mock->fail_after, 0);
        CHECK_OK(mstar_graph_query(graph, &info));
        assert_int_equal(info.driver_bytes, failed == 0 ? 1000 : 0);
        mstar_graph_destroy(graph);
    }
    mstar_stream_destroy(stream);
    mock_cuda_close(device);
}

/* What a driver's answer becomes. */
static void maps_results(void **state)
{
    (void)state;
    const struct {
        int result;
        mstar_status status;
    } cases[] = {{0, MSTAR_OK},
                 {MST_CUDA_OUT_OF_MEMORY, MSTAR_OUT_OF_MEMORY},
                 {MST_CUDA_NO_DEVICE, MSTAR_DEVICE_UNAVAILABLE},
                 {MST_CUDA_NO_BINARY, MSTAR_DEVICE_UNAVAILABLE},
                 {MST_CUDA_INVALID_HANDLE, MSTAR_INVALID_ARGUMENT},
                 {MST_CUDA_CAPTURE_FIRST, MSTAR_OUT_OF_ORDER},
                 {MST_CUDA_CAPTURE_LAST, MSTAR_OUT_OF_ORDER},
                 {MST_CUDA_CAPTURE_LAST + 1, MSTAR_DEVICE_FAILED},
                 {719, MSTAR_DEVICE_FAILED}};
    const mst_cuda_driver *driver;
    CHECK_OK(mst_cuda_driver_get(&driver));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(mst_cuda_check(driver, cases[i].result, "this"), cases[i].status);
}

/* Operations that this backend lacks are refused by name, never called. */
static void refuses_what_it_lacks(void **state)
{
    (void)state;
    mstar_device *device;
    mstar_stream *stream;
    CHECK_OK(mock_cuda_open(&device));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    if (device->backend->linear_run == NULL)
        CHECK_FAILED(mstar_linear_create(device, NULL, NULL, NULL, 1, NULL), MSTAR_INVALID_ARGUMENT,
                     "linear is NULL");
    mstar_stream_destroy(stream);
    mock_cuda_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(opens_and_tells, set_up, tear_down),
        cmocka_unit_test_setup_teardown(says_why_there_is_no_device, set_up, tear_down),
        cmocka_unit_test_setup_teardown(survives_each_failed_call, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_is_zero_and_copies_stay_inside, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pinned_memory_has_been_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ring_grows_and_reuses, set_up, tear_down),
        cmocka_unit_test_setup_teardown(full_ring_in_a_capture_is_busy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wraps_the_callers_stream, set_up, tear_down),
        cmocka_unit_test_setup_teardown(events_tell_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(says_that_there_is_no_driver, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_an_index_past_the_last, set_up, tear_down),
        cmocka_unit_test_setup_teardown(calls_without_a_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_context_that_is_current, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_callers_capture, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_of_this_device_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(driver_bytes_of_a_graph, set_up, tear_down),
        cmocka_unit_test_setup_teardown(maps_results, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_what_it_lacks, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
