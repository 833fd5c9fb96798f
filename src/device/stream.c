/* stream.c - streams: an order of work, and how many threads it may use. */
#include "device/backend.h"

mstar_status mstar_stream_create(mstar_device *device, int32_t num_threads, mstar_stream **stream)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_capture_refuse("create of a stream"));
    if (num_threads != -1 && (num_threads < 1 || num_threads > MST_MAX_THREADS))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "num_threads is %d; it must be from 1 to %d, or -1 for all of the device's",
                        num_threads, MST_MAX_THREADS);
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mstar_stream), "stream", &memory));
    mstar_stream *made = memory;
    made->device = device;
    bool all = num_threads == -1 || num_threads > device->num_threads;
    made->max_threads = all ? device->num_threads : num_threads;
    mstar_status status = device->backend->stream_open(made);
    if (status != MSTAR_OK) {
        mst_free(made);
        return status;
    }
    mst_device_retain(device);
    *stream = made;
    return MSTAR_OK;
}

mstar_status mstar_stream_wrap(mstar_device *device, void *native, mstar_stream **stream)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_capture_refuse("wrap of a stream"));
    if (device->backend->stream_wrap == NULL)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "device \"%s\" has no streams but its own; make one with "
                        "mstar_stream_create",
                        device->backend->name);
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mstar_stream), "stream", &memory));
    mstar_stream *made = memory;
    made->device = device;
    made->max_threads = device->num_threads;
    mstar_status status = device->backend->stream_wrap(made, native);
    if (status != MSTAR_OK) {
        mst_free(made);
        return status;
    }
    mst_device_retain(device);
    *stream = made;
    return MSTAR_OK;
}

void *mstar_stream_get_native(const mstar_stream *stream)
{
    if (stream == NULL || stream->device->backend->stream_native == NULL)
        return NULL;
    return stream->device->backend->stream_native(stream);
}

void mstar_stream_destroy(mstar_stream *stream)
{
    if (stream == NULL)
        return;
    mstar_device *device = stream->device;
    mst_capture_drop(stream);
    device->backend->stream_close(stream);
    mst_free(stream);
    mst_device_release(device);
}

mstar_status mstar_stream_synchronize(mstar_stream *stream)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_capture_refuse("synchronize"));
    return stream->device->backend->stream_synchronize(stream);
}

mstar_status mstar_stream_set_rows(mstar_stream *stream, const int64_t *num_rows)
{
    MST_TRY(mst_check_not_null("stream", stream));
    if ((uintptr_t)num_rows % sizeof *num_rows != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "num_rows is %p; it must be aligned to %zu bytes",
                        (const void *)num_rows, sizeof *num_rows);
    stream->num_rows = num_rows;
    return MSTAR_OK;
}

mstar_status mst_stream_rows(const mstar_stream *stream, int64_t num_rows, int64_t *rows)
{
    *rows = num_rows;
    if (stream->num_rows == NULL)
        return MSTAR_OK;
    if (*stream->num_rows < 0 || *stream->num_rows > num_rows)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "the live row count is %lld; the tensors have %lld rows",
                        (long long)*stream->num_rows, (long long)num_rows);
    *rows = *stream->num_rows;
    return MSTAR_OK;
}

mstar_device *mstar_stream_get_device(const mstar_stream *stream)
{
    return stream != NULL ? stream->device : NULL;
}
