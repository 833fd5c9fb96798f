/* event.c - events: places in a stream's order that others wait for and that time can be read at.
 */
#include "device/backend.h"

mstar_status mstar_event_create(mstar_device *device, mstar_event **event)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("event", event));
    MST_TRY(mst_capture_refuse("create of an event"));
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mstar_event), "event", &memory));
    mstar_event *made = memory;
    made->device = device;
    mstar_status status = device->backend->event_open(made);
    if (status != MSTAR_OK) {
        mst_free(made);
        return status;
    }
    mst_device_retain(device);
    *event = made;
    return MSTAR_OK;
}

void mstar_event_destroy(mstar_event *event)
{
    if (event == NULL)
        return;
    mstar_device *device = event->device;
    device->backend->event_close(event);
    mst_free(event);
    mst_device_release(device);
}

static mstar_status check_pair(const mstar_event *event, const mstar_stream *stream)
{
    MST_TRY(mst_check_not_null("event", event));
    MST_TRY(mst_check_not_null("stream", stream));
    if (event->device != stream->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "event and stream were made on two devices");
    return mst_capture_refuse("an event");
}

mstar_status mstar_event_record(mstar_event *event, mstar_stream *stream)
{
    MST_TRY(check_pair(event, stream));
    MST_TRY(event->device->backend->event_record(event, stream));
    event->recorded = true;
    return MSTAR_OK;
}

mstar_status mstar_stream_wait_event(mstar_stream *stream, mstar_event *event)
{
    MST_TRY(check_pair(event, stream));
    if (!event->recorded)
        return MSTAR_OK;
    return event->device->backend->stream_wait_event(stream, event);
}

mstar_status mstar_event_query(mstar_event *event, int *done)
{
    MST_TRY(mst_check_not_null("event", event));
    MST_TRY(mst_check_not_null("done", done));
    if (!event->recorded) {
        *done = 1;
        return MSTAR_OK;
    }
    return event->device->backend->event_query(event, done);
}

mstar_status mstar_event_synchronize(mstar_event *event)
{
    MST_TRY(mst_check_not_null("event", event));
    MST_TRY(mst_capture_refuse("synchronize"));
    if (!event->recorded)
        return MSTAR_OK;
    return event->device->backend->event_synchronize(event);
}

mstar_status mstar_event_elapsed_ns(const mstar_event *start, const mstar_event *end, int64_t *ns)
{
    MST_TRY(mst_check_not_null("start", start));
    MST_TRY(mst_check_not_null("end", end));
    MST_TRY(mst_check_not_null("ns", ns));
    if (start->device != end->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "start and end were made on two devices");
    if (!start->recorded || !end->recorded)
        return mst_fail(MSTAR_OUT_OF_ORDER, "%s was never recorded",
                        start->recorded ? "end" : "start");
    return start->device->backend->event_elapsed_ns(start, end, ns);
}
