/* test_device.c - opening by name, options, what a device says of itself, and closing. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "support_check.h"

static mstar_device *const untouched = (mstar_device *)(uintptr_t)0x40;

static void names(void **state)
{
    (void)state;
    mstar_device *device = untouched;
    CHECK_INVALID(mstar_device_open(NULL, NULL, &device), "name is NULL");
    CHECK_INVALID(mstar_device_open("cpu", NULL, NULL), "device is NULL");
    const char *const unknown[] = {"", "gpu", "CPU", "cp", "cpux", ":", ":0", "cuda2", "rocm:0"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        CHECK_FAILED(mstar_device_open(unknown[i], NULL, &device), MSTAR_NOT_FOUND, "\"cpu\"");
        assert_non_null(strstr(mstar_last_error(), unknown[i]));
    }
    const char *const malformed[] = {
        "cpu:", "cpu:x", "cpu:-1", "cpu:0x", "cuda:", "cuda:0:1", "cuda:99999999999999999999"};
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++)
        CHECK_FAILED(mstar_device_open(malformed[i], NULL, &device), MSTAR_NOT_FOUND,
                     "is not a device name");
    CHECK_FAILED(mstar_device_open("cpu:1", NULL, &device), MSTAR_NOT_FOUND,
                 "\"cpu:1\": there is one CPU device");
    const char *const cuda[] = {"cuda", "cuda:0", "cuda:7"};
    for (size_t i = 0; i < sizeof cuda / sizeof cuda[0]; i++) {
        /* a build with that backend may find a card, or not the seventh */
        mstar_status status = mstar_device_open(cuda[i], NULL, &device);
        if (status == MSTAR_OK) {
            CHECK_OK(mstar_device_close(device));
            device = untouched;
            continue;
        }
        assert_true(status == MSTAR_DEVICE_UNAVAILABLE || status == MSTAR_NOT_FOUND);
        assert_non_null(strstr(mstar_last_error(), cuda[i]));
    }
    assert_ptr_equal(device, untouched);
    char longest[3000];
    memset(longest, 'y', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CHECK_FAILED(mstar_device_open(longest, NULL, &device), MSTAR_NOT_FOUND, "yyyy");
    const char *const good[] = {"cpu", "cpu:0"};
    for (size_t i = 0; i < 2; i++) {
        CHECK_OK(mstar_device_open(good[i], NULL, &device));
        CHECK_OK(mstar_device_close(device));
    }
    CHECK_OK(mstar_device_close(NULL));
}

static mstar_status open_with(int32_t threads, const char *isa, mstar_device **device)
{
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = threads;
    desc.max_isa = isa;
    return mstar_device_open("cpu", &desc, device);
}

static void options(void **state)
{
    (void)state;
    mstar_device *device = untouched;
    CHECK_INVALID(open_with(0, NULL, &device), "num_threads is 0; it must be from 1 to 1024");
    CHECK_INVALID(open_with(1025, NULL, &device), "num_threads is 1025");
    CHECK_INVALID(open_with(-2, NULL, &device), "num_threads is -2");
    CHECK_INVALID(open_with(1, "sse9", &device), "sse9");
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.struct_size = 0;
    CHECK_INVALID(mstar_device_open("cpu", &desc, &device), "desc.struct_size is 0");
    assert_ptr_equal(device, untouched);
    desc.struct_size = offsetof(mstar_device_desc, parallel_for); /* an older caller */
    desc.num_threads = 3;
    memset(&desc.parallel_for, 0x55, sizeof desc - offsetof(mstar_device_desc, parallel_for));
    CHECK_OK(mstar_device_open("cpu", &desc, &device));
    mstar_device_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_device_query(device, &info));
    assert_int_equal(info.num_threads, 3);
    CHECK_OK(mstar_device_close(device));
    setenv("MSTAR_NUM_THREADS", "2", 1);
    CHECK_OK(mstar_device_open("cpu", NULL, &device));
    CHECK_OK(mstar_device_query(device, &info));
    assert_int_equal(info.num_threads, 2);
    CHECK_OK(mstar_device_close(device));
    setenv("MSTAR_NUM_THREADS", "two", 1);
    device = untouched;
    CHECK_INVALID(mstar_device_open("cpu", NULL, &device), "MSTAR_NUM_THREADS is \"two\"");
    unsetenv("MSTAR_NUM_THREADS");
    setenv("MSTAR_MAX_ISA", "fast", 1);
    CHECK_INVALID(mstar_device_open("cpu", NULL, &device), "MSTAR_MAX_ISA");
    assert_ptr_equal(device, untouched);
    setenv("MSTAR_MAX_ISA", "scalar", 1);
    CHECK_OK(mstar_device_open("cpu", NULL, &device));
    CHECK_OK(mstar_device_query(device, &info));
    assert_string_equal(info.isa, "scalar");
    CHECK_OK(mstar_device_close(device));
    unsetenv("MSTAR_MAX_ISA");
}

static void levels(void **state)
{
    (void)state;
    const char *const isas[] = CHECK_ISAS;
    int ran = 0;
    for (int i = 0; i < CHECK_NUM_ISAS; i++) {
        mstar_device *device = check_open(isas[i], 1);
        if (device == NULL)
            continue;
        ran++;
        mstar_device_info info = {.struct_size = sizeof info};
        CHECK_OK(mstar_device_query(device, &info));
        assert_int_equal(info.kind, MSTAR_DEVICE_CPU);
        assert_int_equal(info.index, 0);
        assert_string_equal(info.name, "cpu");
        assert_true(strlen(info.model) > 0);
        bool best = strcmp(info.isa, info.isa_best) == 0;
        assert_int_equal(best, info.isa_reason[0] == '\0');
        int32_t kernels = 0;
        mstar_kernel_info kernel = {.struct_size = sizeof kernel};
        mstar_status status;
        while ((status = mstar_device_query_kernel(device, kernels, &kernel)) == MSTAR_OK) {
            assert_non_null(kernel.op);
            assert_non_null(kernel.dtype);
            assert_non_null(strstr(kernel.symbol, isas[i]));
            assert_true(strlen(kernel.reason) > 0);
            kernels++;
            assert_true(kernels < 1000);
        }
        assert_int_equal(status, MSTAR_NOT_FOUND);
        assert_true(kernels >= 3);
        CHECK_INVALID(mstar_device_query_kernel(device, -1, &kernel), "index is -1");
        CHECK_INVALID(mstar_device_query_kernel(device, 0, NULL), "info is NULL");
        CHECK_INVALID(mstar_device_query(device, NULL), "info is NULL");
        kernel.struct_size = 0;
        CHECK_INVALID(mstar_device_query_kernel(device, 0, &kernel), "struct_size is 0");
        CHECK_OK(mstar_device_close(device));
    }
    assert_true(ran >= 1); /* scalar is everywhere */
    mstar_device_info info = {.struct_size = sizeof info};
    mstar_kernel_info kernel = {.struct_size = sizeof kernel};
    CHECK_INVALID(mstar_device_query(NULL, &info), "device is NULL");
    CHECK_INVALID(mstar_device_query_kernel(NULL, 0, &kernel), "device is NULL");
}

static void close_counts_users(void **state)
{
    (void)state;
    mstar_device *device;
    CHECK_OK(open_with(1, NULL, &device));
    mstar_stream *streams[2];
    mstar_event *event;
    mstar_buffer *buffer;
    CHECK_OK(mstar_stream_create(device, -1, &streams[0]));
    CHECK_OK(mstar_stream_create(device, 1, &streams[1]));
    CHECK_OK(mstar_event_create(device, &event));
    CHECK_OK(mstar_buffer_create(device, 100, &buffer));
    float one = 1.0f;
    const int64_t shape[2] = {1, 1};
    mstar_tensor weight = mstar_tensor_make(&one, MSTAR_DTYPE_F32, 2, shape);
    const mstar_tensor *weights[1] = {&weight};
    mstar_linear *linear;
    CHECK_OK(mstar_linear_create(device, NULL, weights, NULL, 1, &linear));
    CHECK_FAILED(mstar_device_close(device), MSTAR_BUSY, "5 objects made on it are alive");
    mstar_linear_destroy(linear);
    CHECK_FAILED(mstar_device_close(device), MSTAR_BUSY, "4 objects");
    mstar_stream_destroy(streams[0]);
    mstar_event_destroy(event);
    CHECK_FAILED(mstar_device_close(device), MSTAR_BUSY, "2 objects");
    CHECK_OK(mstar_stream_synchronize(streams[1])); /* still usable */
    mstar_stream_destroy(streams[1]);
    mstar_buffer_destroy(buffer);
    CHECK_OK(mstar_device_close(device));
    mstar_linear_destroy(NULL);
    mstar_stream_destroy(NULL);
    mstar_event_destroy(NULL);
    mstar_buffer_destroy(NULL);
}

/* A device is used by several threads at once: everyone counts. */
static void *make_and_destroy(void *device)
{
    for (int i = 0; i < 200; i++) {
        mstar_stream *stream = NULL;
        mstar_buffer *buffer = NULL;
        if (mstar_stream_create(device, 1, &stream) != MSTAR_OK ||
            mstar_buffer_create(device, 64, &buffer) != MSTAR_OK)
            return device;
        mstar_buffer_destroy(buffer);
        mstar_stream_destroy(stream);
    }
    return NULL;
}

static void threads_share_a_device(void **state)
{
    (void)state;
    mstar_device *device;
    CHECK_OK(open_with(2, NULL, &device));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_and_destroy, device), 0);
    for (int i = 0; i < 4; i++) {
        void *failed = device;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    CHECK_OK(mstar_device_close(device));
}

static _Atomic int host_calls;
static void host_for(void *host, int32_t num_tasks, mstar_parallel_task task, void *context)
{
    assert_ptr_equal(host, &host_calls);
    atomic_fetch_add(&host_calls, 1);
    for (int32_t i = num_tasks - 1; i >= 0; i--)
        task(context, i);
}

static void a_hosts_pool_is_used(void **state)
{
    (void)state;
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = 4;
    desc.parallel_for = host_for;
    desc.parallel_host = &host_calls;
    mstar_device *device;
    CHECK_OK(mstar_device_open("cpu", &desc, &device));
    mstar_stream *stream, *alone;
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_stream_create(device, 1, &alone));
    check_rows x = check_rows_make(MSTAR_DTYPE_F32, 200, 200, 200);
    check_rows out = check_rows_make(MSTAR_DTYPE_F32, 200, 200, 200);
    check_rng rng = {1};
    check_rows_fill(&x, &rng, -1.0, 1.0);
    atomic_store(&host_calls, 0);
    CHECK_OK(mstar_activation_run(alone, MSTAR_ACTIVATION_GELU, &x.tensor, &out.tensor));
    assert_int_equal(atomic_load(&host_calls), 0);
    CHECK_OK(mstar_activation_run(stream, MSTAR_ACTIVATION_GELU, &x.tensor, &out.tensor));
    assert_true(atomic_load(&host_calls) > 0);
    check_rows_free(&x);
    check_rows_free(&out);
    mstar_stream_destroy(stream);
    mstar_stream_destroy(alone);
    CHECK_OK(mstar_device_close(device));
}

static mstar_status try_open(void *context)
{
    (void)context;
    mstar_device *device = NULL;
    mstar_status status = open_with(2, NULL, &device);
    if (status == MSTAR_OK)
        return mstar_device_close(device);
    assert_null(device);
    return status;
}

static void open_without_memory(void **state)
{
    (void)state;
    assert_true(check_alloc_faults(try_open, NULL) >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(options),
        cmocka_unit_test(levels),
        cmocka_unit_test(close_counts_users),
        cmocka_unit_test(threads_share_a_device),
        cmocka_unit_test(a_hosts_pool_is_used),
        cmocka_unit_test(open_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
