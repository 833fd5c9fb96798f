/*
 * cuda_backend.c - an NVIDIA GPU as a device: opening, memory, streams and events.
 *
 * The device's primary context is shared with everybody else in the process; it is made current for
 * the length of a call and the caller's own comes back after it. Work is queued: a call returns
 * when the driver has taken it.
 */
#include <stdio.h>
#include <string.h>

#include "cuda/cuda_linear.h"

/* Copies of host memory up to this size go through the staging ring and do not wait. */
#define STAGED_COPY_BYTES ((size_t)1 << 20)

/* Of the enters that this thread has not left, the latest lowest: whether it pushed the context. */
static _Thread_local uint64_t pushed;

/* Where the host works on the device too, its context is current already, which costs a push and a
 * pop less. */
mstar_status mst_cuda_enter(const mst_cuda *cuda)
{
    void *now = NULL;
    const bool is_current =
        cuda->driver->context_current(&now) == MST_CUDA_SUCCESS && now == cuda->context;
    if (!is_current)
        MST_TRY(mst_cuda_check(cuda->driver, cuda->driver->context_push(cuda->context),
                               "making the device's context current"));
    pushed = pushed << 1 | !is_current;
    return MSTAR_OK;
}

void mst_cuda_leave(const mst_cuda *cuda)
{
    void *own;
    if ((pushed & 1) != 0)
        (void)cuda->driver->context_pop(&own);
    pushed >>= 1;
}

mstar_status mst_cuda_is_capturing(const mst_cuda *cuda, void *stream, bool *capturing)
{
    int state = 0;
    MST_TRY(mst_cuda_check(cuda->driver, cuda->driver->stream_capturing(stream, &state),
                           "asking whether the stream captures"));
    *capturing = state != 0;
    return MSTAR_OK;
}

mstar_status mst_cuda_check_not_capturing(const mst_cuda *cuda, void *stream, const char *what)
{
    bool capturing = false;
    MST_TRY(mst_cuda_is_capturing(cuda, stream, &capturing));
    if (capturing)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "%s was called while its stream captures; it is host work and belongs "
                        "before the capture or between replays",
                        what);
    return MSTAR_OK;
}

/* One driver call with the context current. */
#define CALL(cuda, result, what)                                                    \
    do {                                                                            \
        MST_TRY(mst_cuda_enter(cuda));                                              \
        mstar_status call_status_ = mst_cuda_check((cuda)->driver, (result), what); \
        mst_cuda_leave(cuda);                                                       \
        return call_status_;                                                        \
    } while (0)

/* ---- the device ------------------------------------------------------------------------------ */

static void cuda_close(mstar_device *device)
{
    mst_cuda *cuda = mst_cuda_of(device);
    if (cuda->context != NULL) {
        if (mst_cuda_enter(cuda) == MSTAR_OK) {
            mst_cuda_products_free(cuda);
            mst_cuda_ring_free(cuda);
            mst_cuda_modules_unload(cuda);
            if (cuda->stream != NULL)
                (void)cuda->driver->stream_destroy(cuda->stream);
            mst_cuda_leave(cuda);
        }
        (void)cuda->driver->context_release(cuda->ordinal);
    }
    (void)pthread_mutex_destroy(&cuda->lock);
    (void)pthread_mutex_destroy(&cuda->products_lock);
    mst_pool_destroy(device->pool);
    device->pool = NULL;
    mst_free(cuda);
    device->impl = NULL;
}

static mstar_status read_attributes(mst_cuda *cuda, int32_t index)
{
    const mst_cuda_driver *driver = cuda->driver;
    const struct {
        int *value;
        int attribute;
    } wanted[] = {{&cuda->multiprocessors, MST_CUDA_ATTRIBUTE_MULTIPROCESSORS},
                  {&cuda->major, MST_CUDA_ATTRIBUTE_MAJOR},
                  {&cuda->minor, MST_CUDA_ATTRIBUTE_MINOR}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        MST_TRY(mst_cuda_check(
            driver, driver->device_attribute(wanted[i].value, wanted[i].attribute, cuda->ordinal),
            "asking for the device's attributes"));
    int l2 = 0;
    (void)driver->device_attribute(&l2, MST_CUDA_ATTRIBUTE_L2_BYTES, cuda->ordinal);
    cuda->l2_bytes = l2;
    MST_TRY(mst_cuda_check(driver,
                           driver->device_name(cuda->model, (int)sizeof cuda->model, cuda->ordinal),
                           "asking for the device's name"));
    cuda->model[sizeof cuda->model - 1] = '\0';
    if (cuda->major < 8)
        return mst_fail(
            MSTAR_DEVICE_UNAVAILABLE,
            "device \"cuda:%d\" (%s) has compute capability %d.%d; the kernels need 8.0 "
            "or newer",
            index, cuda->model, cuda->major, cuda->minor);
    return MSTAR_OK;
}

static mstar_status open_device(mstar_device *device, mst_cuda *cuda, const mstar_device_desc *desc)
{
    int count = 0;
    MST_TRY(mst_cuda_driver_get(&cuda->driver));
    MST_TRY(mst_cuda_nvtx_open(&cuda->nvtx));
    const mst_cuda_driver *driver = cuda->driver;
    MST_TRY(mst_cuda_check(driver, driver->device_count(&count), "counting the devices"));
    if (count == 0)
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE, "the NVIDIA driver sees no device");
    if (device->index >= count)
        return mst_fail(MSTAR_NOT_FOUND, "device \"cuda:%d\": this machine has %d, from cuda:0 on",
                        device->index, count);
    MST_TRY(mst_cuda_check(driver, driver->device_get(&cuda->ordinal, device->index),
                           "opening the device"));
    MST_TRY(read_attributes(cuda, device->index));
    MST_TRY(mst_resolve_threads(desc->num_threads, &device->num_threads));
    MST_TRY(mst_pool_create(device->num_threads, desc->parallel_for, desc->parallel_host,
                            &device->pool));
    MST_TRY(mst_cuda_check(driver, driver->context_retain(&cuda->context, cuda->ordinal),
                           "taking the device's context"));
    CALL(cuda, driver->stream_create(&cuda->stream, MST_CUDA_STREAM_NON_BLOCKING),
         "making a stream");
}

static mstar_status cuda_open(mstar_device *device, const mstar_device_desc *desc)
{
    void *memory;
    if (desc->max_isa != NULL)
        return mst_fail(
            MSTAR_INVALID_ARGUMENT,
            "desc.max_isa is \"%.32s\"; it is about processors and must be NULL for a GPU",
            desc->max_isa);
    MST_TRY(mst_alloc_zero(sizeof(mst_cuda), "CUDA device", &memory));
    mst_cuda *cuda = memory;
    device->impl = cuda;
    (void)pthread_mutex_init(&cuda->lock, NULL);
    (void)pthread_mutex_init(&cuda->products_lock, NULL);
    mst_cuda_ring_init(&cuda->ring);
    mstar_status status = open_device(device, cuda, desc);
    if (status != MSTAR_OK)
        cuda_close(device);
    return status;
}

static mstar_status cuda_query(const mstar_device *device, mstar_device_info *info)
{
    const mst_cuda *cuda = mst_cuda_of(device);
    (void)snprintf(info->name, sizeof info->name, "cuda:%d", device->index);
    (void)snprintf(info->model, sizeof info->model, "%s", cuda->model);
    (void)snprintf(info->isa, sizeof info->isa, "sm_%d%d", cuda->major, cuda->minor);
    (void)snprintf(info->isa_best, sizeof info->isa_best, "sm_%d%d", cuda->major, cuda->minor);
    info->l2_bytes = cuda->l2_bytes;
    size_t free_bytes = 0, total_bytes = 0;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status =
        mst_cuda_check(cuda->driver, cuda->driver->memory_info(&free_bytes, &total_bytes),
                       "asking for the free memory");
    mst_cuda_leave(cuda);
    info->memory_bytes = (int64_t)total_bytes;
    info->free_bytes = (int64_t)free_bytes;
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static mstar_status alloc_zeroed(const mst_cuda *cuda, size_t bytes, void **memory)
{
    const mst_cuda_driver *driver = cuda->driver;
    uint64_t address = 0;
    int result = driver->memory_alloc(&address, bytes);
    if (result == MST_CUDA_OUT_OF_MEMORY) {
        size_t free_bytes = 0, total_bytes = 0;
        (void)driver->memory_info(&free_bytes, &total_bytes);
        return mst_fail(MSTAR_OUT_OF_MEMORY,
                        "%zu bytes of device memory were asked for; %zu of %zu are free", bytes,
                        free_bytes, total_bytes);
    }
    MST_TRY(mst_cuda_check(driver, result, "taking device memory"));
    mstar_status status = mst_cuda_check(
        driver, driver->memory_set(address, 0, bytes, cuda->stream), "clearing device memory");
    if (status == MSTAR_OK)
        status = mst_cuda_check(driver, driver->stream_synchronize(cuda->stream),
                                "clearing device memory");
    if (status != MSTAR_OK) {
        (void)driver->memory_free(address);
        return status;
    }
    *memory = mst_cuda_pointer(address);
    return MSTAR_OK;
}

static mstar_status cuda_memory_alloc(mstar_device *device, size_t bytes, void **memory)
{
    const mst_cuda *cuda = mst_cuda_of(device);
    *memory = NULL;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = alloc_zeroed(cuda, bytes > 0 ? bytes : 1, memory);
    mst_cuda_leave(cuda);
    return status;
}

static void cuda_memory_free(mstar_device *device, void *memory)
{
    const mst_cuda *cuda = mst_cuda_of(device);
    if (memory == NULL || mst_cuda_enter(cuda) != MSTAR_OK)
        return;
    (void)cuda->driver->memory_free(mst_cuda_address(memory));
    mst_cuda_leave(cuda);
}

/* What memory is to the driver: the device's, or the host's and pinned; 0: the host's, pageable. Of
 * that the plural form says 0 where the singular one fails, and what watches a program for failed
 * calls would report each copy. */
static unsigned memory_type(const mst_cuda *cuda, const void *memory)
{
    unsigned type = 0;
    int attribute = MST_CUDA_POINTER_MEMORY_TYPE;
    void *value = &type;
    return cuda->driver->pointer_attributes(1, &attribute, &value, mst_cuda_address(memory)) ==
                   MST_CUDA_SUCCESS
               ? type
               : 0;
}

/* Pinned memory of the host, which kernels reach as well, is taken too; another device's is not. */
static bool memory_is_own(const mstar_device *device, const void *memory)
{
    const mst_cuda *cuda = mst_cuda_of(device);
    unsigned type = 0;
    int ordinal = -1;
    int attributes[] = {MST_CUDA_POINTER_MEMORY_TYPE, MST_CUDA_POINTER_ORDINAL};
    void *values[] = {&type, &ordinal};
    if (mst_cuda_enter(cuda) != MSTAR_OK)
        return false;
    bool known = cuda->driver->pointer_attributes(2, attributes, values,
                                                  mst_cuda_address(memory)) == MST_CUDA_SUCCESS;
    mst_cuda_leave(cuda);
    return known && (type == MST_CUDA_MEMORY_HOST ||
                     (type == MST_CUDA_MEMORY_DEVICE && ordinal == cuda->ordinal));
}

/* Host memory has been read when this returns, pinned memory too, which the driver would read when
 * the stream comes to it. */
static mstar_status copy(mst_cuda *cuda, void *stream, void *to, const void *from, size_t bytes)
{
    unsigned from_type = memory_type(cuda, from);
    bool from_host = from_type == 0 || from_type == MST_CUDA_MEMORY_HOST;
    if (from_host || memory_type(cuda, to) == 0)
        MST_TRY(mst_cuda_check_not_capturing(cuda, stream, "a copy of host memory"));
    if (from_host && bytes <= STAGED_COPY_BYTES) {
        mst_cuda_stage *stage;
        MST_TRY(mst_cuda_stage_take(cuda, stream, bytes, &stage));
        memcpy(stage->memory, from, bytes);
        return mst_cuda_stage_send(cuda, stream, stage, to, bytes);
    }
    MST_TRY(mst_cuda_check(
        cuda->driver,
        cuda->driver->copy(mst_cuda_address(to), mst_cuda_address(from), bytes, stream),
        "copying memory"));
    if (from_type != MST_CUDA_MEMORY_HOST)
        return MSTAR_OK;
    return mst_cuda_check(cuda->driver, cuda->driver->stream_synchronize(stream),
                          "waiting for a copy of pinned host memory");
}

static mstar_status cuda_copy(mstar_stream *stream, void *destination, const void *source,
                              size_t bytes)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    if (bytes == 0)
        return MSTAR_OK;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = copy(cuda, mst_cuda_handle(stream), destination, source, bytes);
    mst_cuda_leave(cuda);
    return status;
}

static mstar_status cuda_clear(mstar_stream *stream, void *memory, size_t bytes)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    void *handle = mst_cuda_handle(stream);
    if (bytes == 0)
        return MSTAR_OK;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_check_not_capturing(cuda, handle, "clearing of memory");
    if (status == MSTAR_OK)
        status = mst_cuda_check(
            cuda->driver, cuda->driver->memory_set(mst_cuda_address(memory), 0, bytes, handle),
            "clearing device memory");
    mst_cuda_leave(cuda);
    return status;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static mstar_status make_stream(mstar_stream *stream, void *handle, bool is_own)
{
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_cuda_stream), "CUDA stream", &memory));
    *(mst_cuda_stream *)memory = (mst_cuda_stream){.handle = handle, .is_own = is_own};
    stream->impl = memory;
    return MSTAR_OK;
}

static mstar_status stream_open(mstar_stream *stream)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    void *handle = NULL;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_rows_load(cuda);
    if (status == MSTAR_OK)
        status = mst_cuda_check(cuda->driver,
                                cuda->driver->stream_create(&handle, MST_CUDA_STREAM_NON_BLOCKING),
                                "making a stream");
    if (status == MSTAR_OK) {
        status = make_stream(stream, handle, true);
        if (status != MSTAR_OK)
            (void)cuda->driver->stream_destroy(handle);
    }
    mst_cuda_leave(cuda);
    return status;
}

/* The caller's stream, which stays the caller's. */
static mstar_status stream_wrap(mstar_stream *stream, void *native)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    void *context = NULL;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status =
        mst_cuda_check(cuda->driver, cuda->driver->stream_context(native, &context),
                       "native is not a stream that the driver knows");
    if (status == MSTAR_OK)
        status = mst_cuda_rows_load(cuda);
    mst_cuda_leave(cuda);
    MST_TRY(status);
    if (context != cuda->context)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "native is a stream of another context than the primary one of cuda:%d",
                        stream->device->index);
    return make_stream(stream, native, false);
}

static void stream_close(mstar_stream *stream)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    mst_cuda_stream *own = stream->impl;
    if (mst_cuda_enter(cuda) == MSTAR_OK) {
        mst_cuda_stream_memory_free(cuda, own);
        if (own->is_own)
            (void)cuda->driver->stream_destroy(own->handle);
        mst_cuda_leave(cuda);
    }
    mst_free(own);
}

static void *stream_native(const mstar_stream *stream)
{
    return mst_cuda_handle(stream);
}

static mstar_status stream_synchronize(mstar_stream *stream)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    void *handle = mst_cuda_handle(stream);
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_check_not_capturing(cuda, handle, "waiting for a stream");
    if (status == MSTAR_OK)
        status = mst_cuda_check(cuda->driver, cuda->driver->stream_synchronize(handle),
                                "waiting for the stream");
    mst_cuda_leave(cuda);
    return status;
}

static mstar_status event_open(mstar_event *event)
{
    const mst_cuda *cuda = mst_cuda_of(event->device);
    CALL(cuda, cuda->driver->event_create(&event->impl, 0), "making an event");
}

static void event_close(mstar_event *event)
{
    const mst_cuda *cuda = mst_cuda_of(event->device);
    if (mst_cuda_enter(cuda) != MSTAR_OK)
        return;
    (void)cuda->driver->event_destroy(event->impl);
    mst_cuda_leave(cuda);
}

static mstar_status event_record(mstar_event *event, mstar_stream *stream)
{
    const mst_cuda *cuda = mst_cuda_of(event->device);
    CALL(cuda, cuda->driver->event_record(event->impl, mst_cuda_handle(stream)),
         "recording an event");
}

static mstar_status stream_wait_event(mstar_stream *stream, mstar_event *event)
{
    const mst_cuda *cuda = mst_cuda_of(event->device);
    CALL(cuda, cuda->driver->stream_wait_event(mst_cuda_handle(stream), event->impl, 0),
         "making a stream wait");
}

static mstar_status event_query(mstar_event *event, int *done)
{
    const mst_cuda *cuda = mst_cuda_of(event->device);
    MST_TRY(mst_cuda_enter(cuda));
    int result = cuda->driver->event_query(event->impl);
    mst_cuda_leave(cuda);
    *done = result == MST_CUDA_SUCCESS;
    return result == MST_CUDA_NOT_READY ? MSTAR_OK
                                        : mst_cuda_check(cuda->driver, result, "asking an event");
}

static mstar_status event_synchronize(mstar_event *event)
{
    const mst_cuda *cuda = mst_cuda_of(event->device);
    CALL(cuda, cuda->driver->event_synchronize(event->impl), "waiting for an event");
}

static mstar_status event_elapsed_ns(const mstar_event *start, const mstar_event *end, int64_t *ns)
{
    const mst_cuda *cuda = mst_cuda_of(start->device);
    float ms = 0.0F;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status =
        mst_cuda_check(cuda->driver, cuda->driver->event_elapsed(&ms, start->impl, end->impl),
                       "reading the time between two events");
    mst_cuda_leave(cuda);
    *ns = (int64_t)((double)ms * 1e6);
    return status;
}

const mst_backend *mst_cuda_backend(void)
{
    static const mst_backend backend = {
        .name = "cuda",
        .kind = MSTAR_DEVICE_CUDA,
        .open = cuda_open,
        .close = cuda_close,
        .query = cuda_query,
        .query_kernel = mst_cuda_query_kernel,
        .memory_alloc = cuda_memory_alloc,
        .memory_free = cuda_memory_free,
        .memory_is_own = memory_is_own,
        .copy = cuda_copy,
        .clear = cuda_clear,
        .stream_open = stream_open,
        .stream_wrap = stream_wrap,
        .stream_native = stream_native,
        .stream_close = stream_close,
        .stream_synchronize = stream_synchronize,
        .event_open = event_open,
        .event_close = event_close,
        .event_record = event_record,
        .stream_wait_event = stream_wait_event,
        .event_query = event_query,
        .event_synchronize = event_synchronize,
        .event_elapsed_ns = event_elapsed_ns,
        .capture_begin = mst_cuda_capture_begin,
        .capture_end = mst_cuda_capture_end,
        .capture_abort = mst_cuda_capture_abort,
        .graph_replay = mst_cuda_graph_replay,
        .range = mst_cuda_range,
        .graph_close = mst_cuda_graph_close,
        .graph_query = mst_cuda_graph_query,
        .attn_kernel = mst_cuda_attn_kernel,
        .attn_scratch_bytes = mst_cuda_attn_scratch_bytes,
        .attn_worst_tile = mst_cuda_attn_worst_tile,
        .attn_near_tokens = mst_cuda_attn_near_tokens,
        .attn_image_create = mst_cuda_attn_image_create,
        .attn_planned = mst_cuda_attn_planned,
        .attn_image_destroy = mst_cuda_attn_image_destroy,
        .attn_image_begin = mst_cuda_attn_image_begin,
        .attn_image_end = mst_cuda_attn_image_end,
        .attn_run = mst_cuda_attn_run,
        .linear_packed_bytes = mst_cuda_linear_packed_bytes,
        .linear_kernel = mst_cuda_linear_kernel,
        .linear_x_dtype = mst_cuda_linear_x_dtype,
        .linear_pack = mst_cuda_linear_pack,
        .linear_prepare = mst_cuda_linear_prepare,
        .linear_run = mst_cuda_linear_run,
        .layer_norm = mst_cuda_layer_norm,
        .rms_norm = mst_cuda_rms_norm,
        .activation = mst_cuda_activation,
        .rotary = mst_cuda_rotary,
        .embedding = mst_cuda_embedding,
        .pooling = mst_cuda_pooling,
        .normalize = mst_cuda_normalize,
    };
    return &backend;
}
