/* cpu_attn.c - walks a plan's work list over the threads of a stream. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"

static const mst_kernels *kernels_for(const mstar_device *device, const mst_attn_shape *shape)
{
    return shape->reference ? &mst_kernels_scalar : mst_cpu_of(device)->kernels;
}

void mst_cpu_attn_kernel(const mstar_device *device, const mst_attn_shape *shape,
                         const char **symbol, const char **reason)
{
    *symbol = mst_kernel_symbol("attention", shape->dtype, kernels_for(device, shape));
    *reason =
        shape->reference ? "asked for by backend \"reference\"" : mst_cpu_of(device)->kernel_reason;
}

/* One piece a thread of the device: a stream never has more. */
size_t mst_cpu_attn_scratch_bytes(const mstar_device *device, const mst_attn_shape *shape)
{
    return kernels_for(device, shape)->attn_scratch_bytes(shape) * (size_t)device->num_threads;
}

mst_attn_tile mst_cpu_attn_tile(const mstar_device *device, const mst_attn_shape *shape, int64_t lq,
                                int64_t lk)
{
    return kernels_for(device, shape)->attn_tile(shape, lq, lk);
}

/* The most rows a tile takes; a tile of a very long segment over very many keys has one head. */
mst_attn_tile mst_cpu_attn_worst_tile(const mstar_device *device, const mst_attn_shape *shape)
{
    mst_attn_tile tile = kernels_for(device, shape)->attn_tile(shape, INT32_MAX, INT32_MAX);
    tile.heads = 1;
    return tile;
}

typedef struct attn_job {
    const mst_attn_call *call;
    const mst_kernels *kernels;
    size_t scratch_bytes; /* of one thread */
    _Atomic int64_t next;
} attn_job;

/* The list is ordered longest first; each thread takes the next item until none is left. */
static void attn_task(void *context, int32_t index)
{
    attn_job *job = context;
    unsigned char *scratch =
        (unsigned char *)job->call->scratch + job->scratch_bytes * (size_t)index;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (i >= job->call->num_items)
            return;
        job->kernels->attn_item(job->call, &job->call->items[i], scratch);
    }
}

static void clear_tail(const mst_attn_call *call)
{
    const mst_attn_shape *shape = call->shape;
    size_t bytes = mstar_dtype_bytes(shape->dtype);
    for (int64_t row = call->zero_begin; row < call->zero_end; row++) {
        for (int32_t h = 0; h < shape->num_qo_heads; h++) {
            int64_t at = row * call->out_row_stride + h * call->out_head_stride;
            memset((unsigned char *)call->out + at * (int64_t)bytes, 0,
                   (size_t)shape->head_dim * bytes);
            if (call->lse != NULL)
                call->lse[row * call->lse_row_stride + h] = -INFINITY;
        }
    }
}

mstar_status mst_cpu_attn_run(mstar_stream *stream, const mst_attn_call *call)
{
    const mst_kernels *kernels = kernels_for(stream->device, call->shape);
    attn_job job = {.call = call,
                    .kernels = kernels,
                    .scratch_bytes = kernels->attn_scratch_bytes(call->shape)};
    atomic_init(&job.next, 0);
    int64_t tasks = mst_min_i64(stream->max_threads, call->num_items);
    if (tasks > 0)
        mst_parallel_for(stream->device->pool, stream->max_threads, (int32_t)tasks, attn_task,
                         &job);
    clear_tail(call);
    return MSTAR_OK;
}
