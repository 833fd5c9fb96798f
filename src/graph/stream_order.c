/*
 * stream_order.c - what a runner's steps and plans wait for, where a device works while the host
 * goes on.
 *
 * Steps share static inputs, the pool and, slot by slot, the plans of the resources. So a step
 * waits for the one before it, whatever stream that ran on, and for the plan that was made ahead
 * into its slot; a plan made ahead, on a stream of its own, waits for the step that used its slot
 * last and for the plan before it there. All of it is the device's waiting: the host never does.
 * Runners over the same resources share plans as well, so all of this is kept in the set: steps and
 * plans wait for those of any of them.
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

static void drop(mstar_event **kept, const mstar_event *event)
{
    if (*kept == event)
        *kept = NULL;
}

/* Takes a slot's events out of the set. They are over, and so is what they waited for. */
static void leave_set(mstar_resources *set, int32_t slot, const mst_slot *ours)
{
    if (set == NULL)
        return;
    (void)pthread_mutex_lock(&set->order);
    drop(&set->done, ours->done);
    drop(&set->slots[slot].done, ours->done);
    drop(&set->slots[slot].planned, ours->planned);
    (void)pthread_mutex_unlock(&set->order);
}

void mst_order_close(mstar_graph_runner *runner)
{
    for (int32_t i = 0; runner->slots != NULL && i < runner->num_slots; i++) {
        leave_set(runner->resources, i, &runner->slots[i]);
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

/* ---- the host waits -------------------------------------------------------------------------- */

static mstar_status synchronize(mstar_event *event)
{
    return event != NULL ? mstar_event_synchronize(event) : MSTAR_OK;
}

mstar_status mst_order_wait(const mstar_graph_runner *runner)
{
    if (mst_device_is_host(runner->device) || runner->slots == NULL || runner->latest_slot < 0)
        return MSTAR_OK;
    return mstar_event_synchronize(runner->slots[runner->latest_slot].done);
}

mstar_status mst_order_wait_plans(const mstar_graph_runner *runner)
{
    mstar_status status = MSTAR_OK;
    for (int32_t i = 0; runner->slots != NULL && i < runner->num_slots && status == MSTAR_OK; i++)
        status = synchronize(runner->slots[i].planned);
    return status;
}

mstar_status mst_order_wait_all(const mstar_graph_runner *runner)
{
    mstar_resources *set = runner->resources;
    MST_TRY(mst_order_wait(runner));
    if (set == NULL)
        return MSTAR_OK;
    (void)pthread_mutex_lock(&set->order);
    mstar_status status = synchronize(set->done);
    for (int32_t i = 0; i < MST_MAX_SLOTS && status == MSTAR_OK; i++)
        status = synchronize(set->slots[i].planned);
    (void)pthread_mutex_unlock(&set->order);
    return status;
}

/* ---- the device waits ------------------------------------------------------------------------ */

static mstar_status wait_for(mstar_stream *stream, mstar_event *event)
{
    return event != NULL ? mstar_stream_wait_event(stream, event) : MSTAR_OK;
}

/* Two events of the set; NULL: none. */
static mstar_status wait_for_both(mstar_resources *set, mstar_stream *stream,
                                  mstar_event *const *first, mstar_event *const *second)
{
    (void)pthread_mutex_lock(&set->order);
    mstar_status status = wait_for(stream, *first);
    if (status == MSTAR_OK)
        status = wait_for(stream, *second);
    (void)pthread_mutex_unlock(&set->order);
    return status;
}

/* Part of what failed may have been given to the stream. */
static mstar_status record(mstar_event *event, mstar_stream *stream, mstar_status status)
{
    if (status == MSTAR_OK)
        return mstar_event_record(event, stream);
    if (event->device->backend->event_record(event, stream) == MSTAR_OK)
        event->recorded = true;
    return status;
}

mstar_status mst_order_begin(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream)
{
    mstar_resources *set = runner->resources;
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    if (runner->latest_slot >= 0)
        MST_TRY(mstar_stream_wait_event(stream, runner->slots[runner->latest_slot].done));
    if (set != NULL)
        MST_TRY(wait_for_both(set, stream, &set->done, &set->slots[slot].planned));
    runner->open_slot = slot;
    return MSTAR_OK;
}

mstar_status mst_order_end(mstar_graph_runner *runner, mstar_stream *stream, mstar_status status)
{
    int32_t slot = runner->open_slot;
    mstar_resources *set = runner->resources;
    if (slot < 0)
        return status;
    mstar_event *done = runner->slots[slot].done;
    runner->latest_slot = slot;
    runner->open_slot = -1;
    if (set == NULL)
        return record(done, stream, status);
    (void)pthread_mutex_lock(&set->order);
    set->done = set->slots[slot].done = done;
    status = record(done, stream, status);
    (void)pthread_mutex_unlock(&set->order);
    return status;
}

mstar_status mst_order_plan_begin(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream)
{
    mstar_resources *set = runner->resources;
    if (mst_device_is_host(runner->device))
        return MSTAR_OK;
    return wait_for_both(set, stream, &set->slots[slot].done, &set->slots[slot].planned);
}

mstar_status mst_order_plan_end(mstar_graph_runner *runner, int32_t slot, mstar_stream *stream,
                                mstar_status status)
{
    mstar_resources *set = runner->resources;
    if (mst_device_is_host(runner->device))
        return status;
    (void)pthread_mutex_lock(&set->order);
    set->slots[slot].planned = runner->slots[slot].planned;
    status = record(runner->slots[slot].planned, stream, status);
    (void)pthread_mutex_unlock(&set->order);
    return status;
}
