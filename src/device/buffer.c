/* buffer.c - device memory with its size, and copies that stay inside it. */
#include "device/backend.h"

struct mstar_buffer {
    mstar_device *device;
    void *data; /* NULL for 0 bytes */
    size_t bytes;
};

mstar_status mstar_buffer_create(mstar_device *device, size_t bytes, mstar_buffer **buffer)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("buffer", buffer));
    MST_TRY(mst_capture_refuse("create of a buffer"));
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mstar_buffer), "buffer", &memory));
    mstar_buffer *made = memory;
    made->device = device;
    made->bytes = bytes;
    if (bytes > 0) {
        mstar_status status = device->backend->memory_alloc(device, bytes, &made->data);
        if (status != MSTAR_OK) {
            mst_free(made);
            return status;
        }
    }
    mst_device_retain(device);
    *buffer = made;
    return MSTAR_OK;
}

size_t mst_buffer_cost(const mstar_device *device, size_t bytes)
{
    return sizeof(mstar_buffer) + (bytes > 0 ? bytes + device->backend->memory_overhead : 0);
}

void mstar_buffer_destroy(mstar_buffer *buffer)
{
    if (buffer == NULL)
        return;
    mstar_device *device = buffer->device;
    if (buffer->data != NULL)
        device->backend->memory_free(device, buffer->data);
    mst_free(buffer);
    mst_device_release(device);
}

void *mstar_buffer_get_data(const mstar_buffer *buffer)
{
    return buffer != NULL ? buffer->data : NULL;
}

size_t mstar_buffer_get_bytes(const mstar_buffer *buffer)
{
    return buffer != NULL ? buffer->bytes : 0;
}

static mstar_status check_range(const char *name, const mstar_buffer *buffer, size_t offset_bytes,
                                size_t bytes)
{
    if (offset_bytes > buffer->bytes || bytes > buffer->bytes - offset_bytes)
        return mst_fail(
            MSTAR_INVALID_ARGUMENT,
            "%soffset_bytes %zu plus bytes %zu is past the end of the buffer of %zu bytes", name,
            offset_bytes, bytes, buffer->bytes);
    return MSTAR_OK;
}

static bool overlap(const void *one, const void *other, size_t bytes)
{
    uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
    return a < b ? b - a < bytes : a - b < bytes;
}

/* Everything that up and down have in common; the device address of the range goes to *place. A
 * recorded copy would read or write host memory that may be gone at a replay. */
static mstar_status check_copy(const mstar_buffer *buffer, const mstar_stream *stream,
                               size_t offset_bytes, const char *host_name, const void *host,
                               size_t bytes, unsigned char **place)
{
    MST_TRY(mst_check_not_null("buffer", buffer));
    MST_TRY(mst_check_not_null("stream", stream));
    if (stream->device != buffer->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "buffer and stream were made on two devices");
    MST_TRY(mst_capture_refuse("upload or download"));
    MST_TRY(check_range("", buffer, offset_bytes, bytes));
    *place = NULL;
    if (bytes == 0)
        return MSTAR_OK;
    MST_TRY(mst_check_not_null(host_name, host));
    *place = (unsigned char *)buffer->data + offset_bytes;
    if (overlap(*place, host, bytes))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s overlaps the range of the buffer", host_name);
    return MSTAR_OK;
}

mstar_status mstar_buffer_upload(mstar_buffer *buffer, mstar_stream *stream, size_t offset_bytes,
                                 const void *source, size_t bytes)
{
    unsigned char *place = NULL;
    MST_TRY(check_copy(buffer, stream, offset_bytes, "source", source, bytes, &place));
    return bytes == 0 ? MSTAR_OK : buffer->device->backend->copy(stream, place, source, bytes);
}

mstar_status mstar_buffer_download(const mstar_buffer *buffer, mstar_stream *stream,
                                   size_t offset_bytes, void *destination, size_t bytes)
{
    unsigned char *place = NULL;
    MST_TRY(check_copy(buffer, stream, offset_bytes, "destination", destination, bytes, &place));
    return bytes == 0 ? MSTAR_OK : buffer->device->backend->copy(stream, destination, place, bytes);
}

static mstar_status copy_range(mstar_buffer *destination, mstar_stream *stream,
                               size_t destination_offset_bytes, const mstar_buffer *source,
                               size_t source_offset_bytes, size_t bytes)
{
    MST_TRY(mst_check_not_null("destination", destination));
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_check_not_null("source", source));
    if (stream->device != destination->device || stream->device != source->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "destination, source and stream were made on two devices");
    MST_TRY(check_range("destination_", destination, destination_offset_bytes, bytes));
    MST_TRY(check_range("source_", source, source_offset_bytes, bytes));
    if (bytes == 0)
        return MSTAR_OK;
    unsigned char *to = (unsigned char *)destination->data + destination_offset_bytes;
    const unsigned char *from = (const unsigned char *)source->data + source_offset_bytes;
    if (overlap(to, from, bytes))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "destination_offset_bytes %zu and source_offset_bytes %zu: the ranges of "
                        "%zu bytes overlap in one buffer",
                        destination_offset_bytes, source_offset_bytes, bytes);
    return stream->device->backend->copy(stream, to, from, bytes);
}

mstar_status mstar_buffer_copy(mstar_buffer *destination, mstar_stream *stream,
                               size_t destination_offset_bytes, const mstar_buffer *source,
                               size_t source_offset_bytes, size_t bytes)
{
    return mst_capture_note(stream, copy_range(destination, stream, destination_offset_bytes,
                                               source, source_offset_bytes, bytes));
}
