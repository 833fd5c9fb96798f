/*
 * cpu_backend.c - the CPU as a device: opening, memory, streams and events.
 *
 * A stream does its work before the call returns, so events are only times and waiting is nothing.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cpu/cpu_launch.h"

#define BUFFER_ALIGNMENT 256
#define BUFFER_OVERHEAD (BUFFER_ALIGNMENT + sizeof(void *))

static void cpu_close(mstar_device *device)
{
    mst_pool_destroy(device->pool);
    device->pool = NULL;
    mst_free(device->impl);
    device->impl = NULL;
}

static mstar_status cpu_open(mstar_device *device, const mstar_device_desc *desc)
{
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_cpu), "CPU device", &memory));
    mst_cpu *cpu = memory;
    device->impl = cpu;
    mstar_status status = MSTAR_OK;
    MST_TRY_GOTO(mst_cpu_dispatch(desc->max_isa, cpu), failed);
    MST_TRY_GOTO(mst_resolve_threads(desc->num_threads, &device->num_threads), failed);
    MST_TRY_GOTO(mst_pool_create(device->num_threads, desc->parallel_for, desc->parallel_host,
                                 &device->pool),
                 failed);
    mst_cpu_model(cpu->model, sizeof cpu->model);
    mst_cpu_caches(&cpu->l1d_bytes, &cpu->l2_bytes, &cpu->l3_bytes);
    return MSTAR_OK;
failed:
    cpu_close(device);
    return status;
}

static mstar_status cpu_query(const mstar_device *device, mstar_device_info *info)
{
    const mst_cpu *cpu = mst_cpu_of(device);
    (void)snprintf(info->name, sizeof info->name, "cpu");
    (void)snprintf(info->model, sizeof info->model, "%s", cpu->model);
    (void)snprintf(info->isa, sizeof info->isa, "%s", mst_isa_name(cpu->isa));
    (void)snprintf(info->isa_best, sizeof info->isa_best, "%s", mst_isa_name(cpu->isa_best));
    (void)snprintf(info->isa_reason, sizeof info->isa_reason, "%s",
                   cpu->isa == cpu->isa_best ? "" : cpu->kernel_reason);
    info->l1d_bytes = cpu->l1d_bytes;
    info->l2_bytes = cpu->l2_bytes;
    info->l3_bytes = cpu->l3_bytes;
    return MSTAR_OK;
}

/* The block's own address is kept in the pointer before the aligned one. */
static mstar_status cpu_memory_alloc(mstar_device *device, size_t bytes, void **memory)
{
    (void)device;
    size_t whole;
    void *block;
    *memory = NULL;
    MST_TRY(mst_size_add(bytes, BUFFER_OVERHEAD, &whole));
    MST_TRY(mst_alloc_zero(whole, "device buffer", &block));
    uintptr_t at = (uintptr_t)block + sizeof(void *);
    at = (at + BUFFER_ALIGNMENT - 1) & ~(uintptr_t)(BUFFER_ALIGNMENT - 1);
    memcpy((void *)(at - sizeof(void *)), &block, sizeof block);
    *memory = (void *)at;
    return MSTAR_OK;
}

static void cpu_memory_free(mstar_device *device, void *memory)
{
    (void)device;
    if (memory == NULL)
        return;
    void *block;
    memcpy(&block, (unsigned char *)memory - sizeof(void *), sizeof block);
    mst_free(block);
}

static mstar_status copy_prepare(mst_launch *launch, int32_t max_threads)
{
    (void)max_threads;
    launch->tasks = launch->as.copy.bytes > 0 ? 1 : 0;
    return MSTAR_OK;
}

static void copy_task(mst_launch *launch, int32_t index)
{
    const mst_copy_job *job = &launch->as.copy;
    (void)index;
    memmove(job->destination, job->source, job->bytes);
}

static void copy_touch(const mst_launch *launch, mst_regions *regions)
{
    const mst_copy_job *job = &launch->as.copy;
    mst_regions_add_bytes(regions, job->source, job->bytes, false);
    mst_regions_add_bytes(regions, job->destination, job->bytes, true);
}

static mstar_status cpu_copy(mstar_stream *stream, void *destination, const void *source,
                             size_t bytes)
{
    static const mst_launch_kind kind = {
        .name = "copy", .prepare = copy_prepare, .task = copy_task, .touch = copy_touch};
    mst_launch launch = {.kind = &kind, .max_rows = (int64_t)bytes};
    launch.as.copy = (mst_copy_job){destination, source, bytes};
    return mst_cpu_submit(stream, &launch);
}

static mstar_status stream_nothing(mstar_stream *stream)
{
    (void)stream;
    return MSTAR_OK;
}

static void stream_close(mstar_stream *stream)
{
    (void)stream;
}

static mstar_status event_nothing(mstar_event *event)
{
    (void)event;
    return MSTAR_OK;
}

static void event_close(mstar_event *event)
{
    (void)event;
}

static mstar_status event_record(mstar_event *event, mstar_stream *stream)
{
    (void)stream;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    event->time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    event->recorded = true;
    return MSTAR_OK;
}

static mstar_status stream_wait_event(mstar_stream *stream, mstar_event *event)
{
    (void)stream;
    (void)event;
    return MSTAR_OK;
}

static mstar_status event_query(mstar_event *event, int *done)
{
    (void)event;
    *done = 1;
    return MSTAR_OK;
}

static mstar_status event_elapsed_ns(const mstar_event *start, const mstar_event *end, int64_t *ns)
{
    *ns = end->time_ns - start->time_ns;
    return MSTAR_OK;
}

const mst_backend *mst_cpu_backend(void)
{
    static const mst_backend backend = {
        .name = "cpu",
        .kind = MSTAR_DEVICE_CPU,
        .open = cpu_open,
        .close = cpu_close,
        .query = cpu_query,
        .query_kernel = mst_cpu_query_kernel,
        .memory_overhead = BUFFER_OVERHEAD,
        .memory_alloc = cpu_memory_alloc,
        .memory_free = cpu_memory_free,
        .copy = cpu_copy,
        .stream_open = stream_nothing,
        .stream_close = stream_close,
        .stream_synchronize = stream_nothing,
        .event_open = event_nothing,
        .event_close = event_close,
        .event_record = event_record,
        .stream_wait_event = stream_wait_event,
        .event_query = event_query,
        .event_synchronize = event_nothing,
        .event_elapsed_ns = event_elapsed_ns,
        .capture_begin = mst_cpu_capture_begin,
        .capture_end = mst_cpu_capture_end,
        .capture_abort = mst_cpu_capture_abort,
        .graph_compile = mst_cpu_graph_compile,
        .graph_replay = mst_cpu_graph_replay,
        .graph_close = mst_cpu_graph_close,
        .graph_query = mst_cpu_graph_query,
        .graph_query_node = mst_cpu_graph_query_node,
        .attn_kernel = mst_cpu_attn_kernel,
        .attn_scratch_bytes = mst_cpu_attn_scratch_bytes,
        .attn_tile = mst_cpu_attn_tile,
        .attn_worst_tile = mst_cpu_attn_worst_tile,
        .attn_run = mst_cpu_attn_run,
        .linear_packed_bytes = mst_cpu_linear_packed_bytes,
        .linear_kernel = mst_cpu_linear_kernel,
        .linear_x_dtype = mst_cpu_linear_x_dtype,
        .linear_pack = mst_cpu_linear_pack,
        .linear_run = mst_cpu_linear_run,
        .layer_norm = mst_cpu_layer_norm,
        .rms_norm = mst_cpu_rms_norm,
        .activation = mst_cpu_activation,
        .rotary = mst_cpu_rotary,
        .embedding = mst_cpu_embedding,
        .pooling = mst_cpu_pooling,
        .normalize = mst_cpu_normalize,
    };
    return &backend;
}
