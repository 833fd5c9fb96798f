/* test_stream_event.c - streams and events, on the CPU and over a backend that queues. */
#include <string.h>

#include "device/backend.h"
#include "support_check.h"

typedef struct fixture {
    mstar_device *device, *other;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = 4;
    CHECK_OK(mstar_device_open("cpu", &desc, &f.device));
    CHECK_OK(mstar_device_open("cpu", &desc, &f.other));
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    CHECK_OK(mstar_device_close(f->device));
    CHECK_OK(mstar_device_close(f->other));
    return 0;
}

static void streams(void **state)
{
    fixture *f = *state;
    mstar_stream *stream = (mstar_stream *)f, *const untouched = stream;
    CHECK_INVALID(mstar_stream_create(NULL, -1, &stream), "device is NULL");
    CHECK_INVALID(mstar_stream_create(f->device, -1, NULL), "stream is NULL");
    const int32_t bad[] = {0, -2, 1025, INT32_MIN, INT32_MAX};
    for (int i = 0; i < 5; i++)
        CHECK_INVALID(mstar_stream_create(f->device, bad[i], &stream),
                      "it must be from 1 to 1024, or -1");
    assert_ptr_equal(stream, untouched);
    static const int32_t counts[][2] = {{-1, 4}, {1, 1}, {3, 3}, {4, 4}, {5, 4}, {1024, 4}};
    for (int i = 0; i < 6; i++) {
        CHECK_OK(mstar_stream_create(f->device, counts[i][0], &stream));
        assert_int_equal(stream->max_threads, counts[i][1]);
        assert_ptr_equal(mstar_stream_get_device(stream), f->device);
        CHECK_OK(mstar_stream_synchronize(stream));
        mstar_stream_destroy(stream);
    }
    CHECK_INVALID(mstar_stream_synchronize(NULL), "stream is NULL");
    assert_null(mstar_stream_get_device(NULL));
}

static void events(void **state)
{
    fixture *f = *state;
    mstar_stream *stream, *elsewhere;
    mstar_event *a, *b, *foreign;
    CHECK_OK(mstar_stream_create(f->device, -1, &stream));
    CHECK_OK(mstar_stream_create(f->other, -1, &elsewhere));
    CHECK_OK(mstar_event_create(f->device, &a));
    CHECK_OK(mstar_event_create(f->device, &b));
    CHECK_OK(mstar_event_create(f->other, &foreign));

    int done = 7;
    int64_t ns = -7;
    CHECK_OK(mstar_event_query(a, &done)); /* never recorded: done, and nobody waits */
    assert_int_equal(done, 1);
    CHECK_OK(mstar_event_synchronize(a));
    CHECK_OK(mstar_stream_wait_event(stream, a));
    CHECK_FAILED(mstar_event_elapsed_ns(a, b, &ns), MSTAR_OUT_OF_ORDER, "start was never recorded");
    CHECK_OK(mstar_event_record(a, stream));
    CHECK_FAILED(mstar_event_elapsed_ns(a, b, &ns), MSTAR_OUT_OF_ORDER, "end was never recorded");
    CHECK_FAILED(mstar_event_elapsed_ns(b, a, &ns), MSTAR_OUT_OF_ORDER, "start was never recorded");
    assert_int_equal(ns, -7);
    CHECK_OK(mstar_event_record(b, stream));
    CHECK_OK(mstar_event_elapsed_ns(a, b, &ns));
    assert_true(ns >= 0);
    int64_t back = 1;
    CHECK_OK(mstar_event_elapsed_ns(b, a, &back));
    assert_true(back == -ns);
    CHECK_OK(mstar_event_elapsed_ns(a, a, &ns));
    assert_true(ns == 0);
    done = 7;
    CHECK_OK(mstar_event_query(a, &done));
    assert_int_equal(done, 1);
    CHECK_OK(mstar_event_synchronize(a));
    CHECK_OK(mstar_stream_wait_event(stream, a));

    CHECK_INVALID(mstar_event_create(NULL, &a), "device is NULL");
    CHECK_INVALID(mstar_event_create(f->device, NULL), "event is NULL");
    CHECK_INVALID(mstar_event_record(NULL, stream), "event is NULL");
    CHECK_INVALID(mstar_event_record(a, NULL), "stream is NULL");
    CHECK_INVALID(mstar_event_record(a, elsewhere), "two devices");
    CHECK_INVALID(mstar_stream_wait_event(NULL, a), "stream is NULL");
    CHECK_INVALID(mstar_stream_wait_event(stream, NULL), "event is NULL");
    CHECK_INVALID(mstar_stream_wait_event(stream, foreign), "two devices");
    CHECK_INVALID(mstar_event_query(NULL, &done), "event is NULL");
    CHECK_INVALID(mstar_event_query(a, NULL), "done is NULL");
    CHECK_INVALID(mstar_event_synchronize(NULL), "event is NULL");
    CHECK_INVALID(mstar_event_elapsed_ns(NULL, a, &ns), "start is NULL");
    CHECK_INVALID(mstar_event_elapsed_ns(a, NULL, &ns), "end is NULL");
    CHECK_INVALID(mstar_event_elapsed_ns(a, b, NULL), "ns is NULL");
    CHECK_INVALID(mstar_event_elapsed_ns(a, foreign, &ns), "two devices");

    mstar_event_destroy(a);
    mstar_event_destroy(b);
    mstar_event_destroy(foreign);
    mstar_stream_destroy(stream);
    mstar_stream_destroy(elsewhere);
}

static mstar_status try_create(void *context)
{
    fixture *f = context;
    mstar_stream *stream = NULL;
    mstar_event *event = NULL;
    mstar_status status = mstar_stream_create(f->device, -1, &stream);
    if (status == MSTAR_OK)
        status = mstar_event_create(f->device, &event);
    mstar_stream_destroy(stream);
    mstar_event_destroy(event);
    return status;
}

static void create_without_memory(void **state)
{
    assert_true(check_alloc_faults(try_create, *state) >= 2);
}

/* ---- a backend that refuses ------------------------------------------------------------------ */

/* The seam's errors come through unchanged, and what failed to open is neither kept nor counted. */
static mstar_status refuse_stream(mstar_stream *stream)
{
    (void)stream;
    return mst_fail(MSTAR_DEVICE_FAILED, "the queue is on fire");
}

static mstar_status refuse_event(mstar_event *event)
{
    (void)event;
    return mst_fail(MSTAR_DEVICE_FAILED, "no bell");
}

static mstar_status refuse_record(mstar_event *event, mstar_stream *stream)
{
    (void)event;
    (void)stream;
    return mst_fail(MSTAR_DEVICE_FAILED, "no ink");
}

static mstar_status not_yet(mstar_event *event, int *done)
{
    (void)event;
    *done = 0;
    return MSTAR_OK;
}

static void a_backends_errors_come_through(void **state)
{
    fixture *f = *state;
    uint64_t live = check_live_allocations();
    const mst_backend *real = f->device->backend;
    mst_backend broken = *real;
    mstar_stream *stream = NULL;
    mstar_event *event = NULL;
    broken.stream_open = refuse_stream;
    broken.event_open = refuse_event;
    f->device->backend = &broken;
    mstar_status status = mstar_stream_create(f->device, -1, &stream);
    CHECK_FAILED(status, MSTAR_DEVICE_FAILED, "on fire");
    status = mstar_event_create(f->device, &event);
    CHECK_FAILED(status, MSTAR_DEVICE_FAILED, "no bell");
    assert_null(stream);
    assert_null(event);
    assert_int_equal(atomic_load(&f->device->users), 0);
    assert_int_equal(check_live_allocations(), live);

    broken = *real;
    broken.event_record = refuse_record;
    broken.event_query = not_yet;
    CHECK_OK(mstar_stream_create(f->device, -1, &stream));
    CHECK_OK(mstar_event_create(f->device, &event));
    CHECK_FAILED(mstar_event_record(event, stream), MSTAR_DEVICE_FAILED, "no ink");
    int done = 7;
    CHECK_OK(mstar_event_query(event, &done)); /* a record that failed recorded nothing */
    assert_int_equal(done, 1);
    broken.event_record = real->event_record;
    CHECK_OK(mstar_event_record(event, stream));
    CHECK_OK(mstar_event_query(event, &done));
    assert_int_equal(done, 0);
    mstar_event_destroy(event);
    mstar_stream_destroy(stream);
    f->device->backend = real;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams),
        cmocka_unit_test(events),
        cmocka_unit_test(create_without_memory),
        cmocka_unit_test(a_backends_errors_come_through),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
