/* test_buffer.c - device memory and copies that stay inside it. */
#include <string.h>

#include "base/base.h"
#include "support_check.h"

typedef struct fixture {
    mstar_device *device, *other;
    mstar_stream *stream, *elsewhere;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    CHECK_OK(mstar_device_open("cpu", NULL, &f.device));
    CHECK_OK(mstar_device_open("cpu", NULL, &f.other));
    CHECK_OK(mstar_stream_create(f.device, -1, &f.stream));
    CHECK_OK(mstar_stream_create(f.other, -1, &f.elsewhere));
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    mstar_stream_destroy(f->stream);
    mstar_stream_destroy(f->elsewhere);
    CHECK_OK(mstar_device_close(f->device));
    CHECK_OK(mstar_device_close(f->other));
    return 0;
}

static void sizes(void **state)
{
    fixture *f = *state;
    const size_t sizes[] = {0, 1, 255, 256, 257, 100000};
    for (int i = 0; i < 6; i++) {
        mstar_buffer *buffer;
        CHECK_OK(mstar_buffer_create(f->device, sizes[i], &buffer));
        assert_int_equal(mstar_buffer_get_bytes(buffer), sizes[i]);
        unsigned char *data = mstar_buffer_get_data(buffer);
        assert_int_equal(data == NULL, sizes[i] == 0);
        assert_int_equal((uintptr_t)data % 256, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(data[j], 0);
        if (sizes[i] > 0)
            memset(data, 0xff, sizes[i]); /* the next one is zeroed again */
        assert_ptr_equal(mstar_buffer_get_data(buffer), data);
        mstar_buffer_destroy(buffer);
    }
    assert_null(mstar_buffer_get_data(NULL));
    assert_int_equal(mstar_buffer_get_bytes(NULL), 0);
    mstar_buffer *buffer = NULL;
    CHECK_INVALID(mstar_buffer_create(NULL, 1, &buffer), "device is NULL");
    CHECK_INVALID(mstar_buffer_create(f->device, 1, NULL), "buffer is NULL");
    const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 64, SIZE_MAX - 300, SIZE_MAX / 2};
    for (int i = 0; i < 4; i++)
        CHECK_FAILED(mstar_buffer_create(f->device, absurd[i], &buffer), MSTAR_OUT_OF_MEMORY,
                     "bytes");
    assert_null(buffer);
}

static void copies(void **state)
{
    fixture *f = *state;
    mstar_buffer *buffer;
    CHECK_OK(mstar_buffer_create(f->device, 100, &buffer));
    unsigned char source[100], back[102];
    for (int i = 0; i < 100; i++)
        source[i] = (unsigned char)(i + 1);
    CHECK_OK(mstar_buffer_upload(buffer, f->stream, 0, source, 100));
    CHECK_OK(mstar_buffer_upload(buffer, f->stream, 10, source, 5));
    CHECK_OK(mstar_buffer_upload(buffer, f->stream, 99, source, 1));
    memset(back, 0x77, sizeof back);
    CHECK_OK(mstar_buffer_download(buffer, f->stream, 0, back + 1, 100));
    assert_int_equal(back[0], 0x77);
    assert_int_equal(back[101], 0x77);
    for (int i = 0; i < 100; i++)
        assert_int_equal(back[i + 1], i == 99 ? 1 : i >= 10 && i < 15 ? i - 9 : i + 1);
    CHECK_OK(mstar_buffer_upload(buffer, f->stream, 100, NULL, 0)); /* nothing, at the end */
    CHECK_OK(mstar_buffer_download(buffer, f->stream, 0, NULL, 0));

    unsigned char before[100];
    memcpy(before, mstar_buffer_get_data(buffer), 100);
    static const size_t outside[][2] = {
        {0, 101}, {1, 100}, {100, 1}, {101, 0}, {SIZE_MAX, 1}, {1, SIZE_MAX}, {SIZE_MAX, SIZE_MAX}};
    for (int i = 0; i < 7; i++) {
        CHECK_INVALID(mstar_buffer_upload(buffer, f->stream, outside[i][0], source, outside[i][1]),
                      "is past the end of the buffer of 100 bytes");
        CHECK_INVALID(mstar_buffer_download(buffer, f->stream, outside[i][0], back, outside[i][1]),
                      "is past the end of the buffer of 100 bytes");
    }
    CHECK_INVALID(mstar_buffer_upload(NULL, f->stream, 0, source, 1), "buffer is NULL");
    CHECK_INVALID(mstar_buffer_upload(buffer, NULL, 0, source, 1), "stream is NULL");
    CHECK_INVALID(mstar_buffer_upload(buffer, f->stream, 0, NULL, 1), "source is NULL");
    CHECK_INVALID(mstar_buffer_upload(buffer, f->elsewhere, 0, source, 1), "two devices");
    CHECK_INVALID(mstar_buffer_download(NULL, f->stream, 0, back, 1), "buffer is NULL");
    CHECK_INVALID(mstar_buffer_download(buffer, NULL, 0, back, 1), "stream is NULL");
    CHECK_INVALID(mstar_buffer_download(buffer, f->stream, 0, NULL, 1), "destination is NULL");
    CHECK_INVALID(mstar_buffer_download(buffer, f->elsewhere, 0, back, 1), "two devices");
    unsigned char *data = mstar_buffer_get_data(buffer);
    CHECK_INVALID(mstar_buffer_upload(buffer, f->stream, 10, data + 19, 10), "source overlaps");
    CHECK_INVALID(mstar_buffer_upload(buffer, f->stream, 10, data + 1, 10), "source overlaps");
    CHECK_INVALID(mstar_buffer_download(buffer, f->stream, 10, data + 10, 1), "destination");
    assert_memory_equal(data, before, 100);
    CHECK_OK(mstar_buffer_upload(buffer, f->stream, 10, data + 20, 10)); /* apart, in one buffer */
    assert_memory_equal(data + 10, before + 20, 10);
    mstar_buffer_destroy(buffer);
    CHECK_OK(mstar_buffer_create(f->device, 0, &buffer));
    CHECK_OK(mstar_buffer_upload(buffer, f->stream, 0, NULL, 0));
    CHECK_INVALID(mstar_buffer_upload(buffer, f->stream, 0, source, 1), "buffer of 0 bytes");
    mstar_buffer_destroy(buffer);
}

static mstar_status try_create(void *context)
{
    fixture *f = context;
    mstar_buffer *buffer = NULL;
    mstar_status status = mstar_buffer_create(f->device, 1000, &buffer);
    mstar_buffer_destroy(buffer);
    return status;
}

static void create_without_memory(void **state)
{
    assert_int_equal(check_alloc_faults(try_create, *state), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(copies),
        cmocka_unit_test(create_without_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
