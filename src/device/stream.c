/* stream.c - streams: an order of work, and how many threads it may use. */
#include "device/backend.h"

mstar_status mstar_stream_create(mstar_device *device, int32_t num_threads, mstar_stream **stream)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("stream", stream));
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

void mstar_stream_destroy(mstar_stream *stream)
{
    if (stream == NULL)
        return;
    mstar_device *device = stream->device;
    device->backend->stream_close(stream);
    mst_free(stream);
    mst_device_release(device);
}

mstar_status mstar_stream_synchronize(mstar_stream *stream)
{
    MST_TRY(mst_check_not_null("stream", stream));
    return stream->device->backend->stream_synchronize(stream);
}

mstar_device *mstar_stream_get_device(const mstar_stream *stream)
{
    return stream != NULL ? stream->device : NULL;
}
