/*
 * stream_order.c - what a runner's steps and plans wait for, where a device works while the host
 * goes on.
 *
 * Steps share static inputs, the pool and, slot by slot, the plans of the resources. So a step
 * waits for the one before it, whatever stream that ran on, and for the plan that was made ahead
 * into its slot; a plan made ahead, on a stream of its own, waits for the step that used its slot
 * last. All of it is the device's waiting: the host never does. Runners over the same resources
 * share plans as well: a step waits for the latest one of any of them.
 */
#include "graph/runner.h"
#include "step/step.h"

mstar_status mst_order_open(mstar_graph_runner *runner)
{
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    for (int32_t i = 0; i < runner->num_slots; i++) {
        MST_TRY(mstar_event_create(runner->device, &runner->slots[i].done));
        MST_TRY(mstar_event_create(runner->device, &runner->slots[i].planned));
    }
    if (runner->num_slots < 2 || runner->hooks.declare == NULL)
        return MSTAR_OK;
    return mstar_stream_create(runner->device, 1, &runner->plan_stream);
}

void mst_order_close(mstar_graph_runner *runner)
{
    for (int32_t i = 0; runner->slots != NULL && i < runner->num_slots; i++) {
        if (runner->resources != NULL && runner->resources->done == runner->slots[i].done)
            runner->resources->done = NULL;
        mstar_event_destroy(runner->slots[i].done);
        mstar_event_destroy(runner->slots[i].planned);
    }
    mstar_stream_destroy(runner->plan_stream);
}

size_t mst_order_bytes(const mstar_graph_runner *runner)
{
    size_t bytes = runner->plan_stream != NULL ? sizeof *runner->plan_stream : 0;
    if (!mst_device_is_host(runner->device))
        bytes += (size_t)runner->num_slots * 2 * sizeof(mstar_event);
    return bytes;
}

mstar_status mst_order_wait(const mstar_graph_runner *runner)
{
    if (mst_device_is_host(runner->device) || runner->slots == NULL || runner->latest_slot < 0)
        return MSTAR_OK;
    return mstar_event_synchronize(runner->slots[runner->latest_slot].done);
}

mstar_status mst_order_wait_all(const mstar_graph_runner *runner)
{
    MST_TRY(mst_order_wait(runner));
    bool shared = runner->resources != NULL && runner->resources->done != NULL;
    return shared ? mstar_event_synchronize(runner->resources->done) : MSTAR_OK;
}

mstar_status mst_order_begin(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream)
{
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    if (runner->latest_slot >= 0)
        MST_TRY(mstar_stream_wait_event(stream, runner->slots[runner->latest_slot].done));
    if (runner->resources != NULL && runner->resources->done != NULL)
        MST_TRY(mstar_stream_wait_event(stream, runner->resources->done));
    MST_TRY(mstar_stream_wait_event(stream, runner->slots[slot].planned));
    runner->open_slot = slot;
    return MSTAR_OK;
}

mstar_status mst_order_end(mstar_graph_runner *runner, mstar_stream *stream, mstar_status status)
{
    int32_t slot = runner->open_slot;
    if (slot < 0)
        return status;
    runner->latest_slot = slot;
    runner->open_slot = -1;
    if (runner->resources != NULL)
        runner->resources->done = runner->slots[slot].done;
    if (status == MSTAR_OK)
        return mstar_event_record(runner->slots[slot].done, stream);
    /* part of the step may have been given to the stream */
    mstar_event *done = runner->slots[slot].done;
    if (runner->device->backend->event_record(done, stream) == MSTAR_OK)
        done->recorded = true;
    return status;
}

mstar_status mst_order_plan_begin(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream)
{
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    MST_TRY(mstar_stream_wait_event(stream, runner->slots[slot].done));
    return mstar_stream_wait_event(stream, runner->slots[slot].planned);
}

mstar_status mst_order_plan_end(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream)
{
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    return mstar_event_record(runner->slots[slot].planned, stream);
}
