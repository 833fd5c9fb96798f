/* cpu_attn.c - walks a plan's work list over the threads of a stream. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_launch.h"

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

/* The plan in force: a recorded run meets another one at every replay. */
static mstar_status read_plan(mst_attn_call *call)
{
    int64_t tokens = *call->live.num_tokens;
    int64_t kv_tokens = *call->live.num_kv_tokens;
    if (tokens > call->q_rows)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "attention: the plan has %lld query tokens; q and out were recorded with "
                        "%lld rows",
                        (long long)tokens, (long long)call->q_rows);
    if (kv_tokens > call->kv_rows)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "attention: the plan has %lld key tokens; k and v were recorded with %lld "
                        "rows",
                        (long long)kv_tokens, (long long)call->kv_rows);
    call->num_items = *call->live.num_items;
    call->causal = *call->live.causal;
    call->zero_begin = tokens;
    return MSTAR_OK;
}

static mstar_status prepare(mst_launch *launch, int32_t max_threads)
{
    mst_attn_job *job = &launch->as.attn;
    mst_attn_call *call = &job->call;
    if (launch->recorded)
        MST_TRY(read_plan(call));
    atomic_store_explicit(&job->next, 0, memory_order_relaxed);
    int64_t work = mst_max_i64(call->num_items, call->zero_begin < call->zero_end ? 1 : 0);
    if (mst_choice_holds(&launch->choice, call->zero_begin, max_threads))
        max_threads = launch->choice.tasks;
    launch->tasks = (int32_t)mst_min_i64(max_threads, work);
    return MSTAR_OK;
}

/* How a segment is cut into items belongs to the plan; here it is on how many threads. */
static int32_t choices(const mst_launch *launch, int32_t threads, mst_choice *list)
{
    mst_choice rule = {.rows = launch->max_rows, .threads = threads, .tasks = threads};
    return mst_choices_of_tasks(&rule, threads, list);
}

static void key(const mst_launch *launch, mst_launch_key *key)
{
    const mst_attn_call *call = &launch->as.attn.call;
    const mst_attn_shape *shape = call->shape;
    *key =
        (mst_launch_key){{shape->num_qo_heads, shape->num_kv_heads, shape->head_dim, shape->dtype,
                          shape->window_left, shape->window_right, shape->reference, call->q_rows,
                          call->kv_rows, call->zero_end, call->q_row_stride, call->k_row_stride,
                          call->v_row_stride, call->out_row_stride, call->lse != NULL}};
}

/* Rows x heads x (keys + 1). */
static int64_t work_of(const mst_attn_item *item)
{
    int64_t rows = (int64_t)item->q_rows * item->num_kv_heads;
    int64_t work;
    if (__builtin_mul_overflow(rows, (int64_t)item->kv_end - item->kv_begin + 1, &work))
        return INT64_MAX;
    return work;
}

static void clear_rows(const mst_attn_call *call, int64_t begin, int64_t end)
{
    const mst_attn_shape *shape = call->shape;
    size_t bytes = mstar_dtype_bytes(shape->dtype);
    for (int64_t row = begin; row < end; row++) {
        for (int32_t h = 0; h < shape->num_qo_heads; h++) {
            int64_t at = row * call->out_row_stride + h * call->out_head_stride;
            memset((unsigned char *)call->out + at * (int64_t)bytes, 0,
                   (size_t)shape->head_dim * bytes);
            if (call->lse != NULL)
                call->lse[row * call->lse_row_stride + h] = -INFINITY;
        }
    }
}

bool mst_attn_takes_ahead(const mst_attn_item *item, int64_t items_left, int32_t threads)
{
    return items_left >= 8 * (int64_t)threads && work_of(item) <= MST_ATTN_ITEM_WORK;
}

int64_t mst_attn_items_at_once(const mst_attn_item *item, int64_t items_left, int32_t threads)
{
    int64_t worth_a_start = MST_ATTN_ITEM_WORK / mst_max_i64(work_of(item), 1);
    int64_t share = items_left / (8 * (int64_t)threads);
    return mst_max_i64(mst_min_i64(worth_a_start, share), 1);
}

/* Items that a thread has taken; none at the end of the list. */
typedef struct taken_items {
    const mst_attn_item *first;
    int64_t count;
} taken_items;

/* How many is decided by what seems to be next: another thread may take that meanwhile. */
static taken_items take_items(mst_attn_job *job, int32_t threads)
{
    const mst_attn_call *call = &job->call;
    int64_t i = atomic_load_explicit(&job->next, memory_order_relaxed);
    if (i >= call->num_items)
        return (taken_items){NULL, 0};
    int64_t count = mst_attn_items_at_once(&call->items[i], call->num_items - i, threads);
    i = atomic_fetch_add_explicit(&job->next, count, memory_order_relaxed);
    if (i >= call->num_items)
        return (taken_items){NULL, 0};
    return (taken_items){&call->items[i], mst_min_i64(count, call->num_items - i)};
}

/*
 * The list is ordered longest first; each task takes the next items until none is left, then clears
 * its part of the tail. Of short items it takes several at once, and the next before it computes
 * some, so that their rows are in the cache by then.
 */
static void task(mst_launch *launch, int32_t index)
{
    mst_attn_job *job = &launch->as.attn;
    const mst_attn_call *call = &job->call;
    unsigned char *scratch = (unsigned char *)call->scratch + job->scratch_bytes * (size_t)index;
    taken_items next = {NULL, 0};
    for (taken_items now = take_items(job, launch->tasks); now.count > 0; now = next) {
        int64_t left = call->items + call->num_items - now.first;
        bool ahead = mst_attn_takes_ahead(now.first, left, launch->tasks);
        if (ahead)
            next = take_items(job, launch->tasks);
        job->kernels->attn_items(call, now.first, now.count, ahead ? next.first : NULL, scratch);
        if (!ahead)
            next = take_items(job, launch->tasks);
    }
    int64_t begin, end;
    mst_cut(call->zero_end - call->zero_begin, 1, launch->tasks, index, &begin, &end);
    clear_rows(call, call->zero_begin + begin, call->zero_begin + end);
}

static void touch(const mst_launch *launch, mst_regions *regions)
{
    const mst_attn_job *job = &launch->as.attn;
    const mst_attn_call *call = &job->call;
    const mst_attn_shape *shape = call->shape;
    int64_t head_dim = shape->head_dim;
    mst_regions_add_heads(regions, call->q, shape->dtype, call->q_rows, call->q_row_stride,
                          shape->num_qo_heads, call->q_head_stride, head_dim, false);
    mst_regions_add_heads(regions, call->k, shape->dtype, call->kv_rows, call->k_row_stride,
                          shape->num_kv_heads, call->k_head_stride, head_dim, false);
    mst_regions_add_heads(regions, call->v, shape->dtype, call->kv_rows, call->v_row_stride,
                          shape->num_kv_heads, call->v_head_stride, head_dim, false);
    mst_regions_add_heads(regions, call->out, shape->dtype, call->zero_end, call->out_row_stride,
                          shape->num_qo_heads, call->out_head_stride, head_dim, true);
    mst_regions_add_heads(regions, call->lse, MSTAR_DTYPE_F32, call->zero_end, call->lse_row_stride,
                          shape->num_qo_heads, 1, 1, true);
    mst_regions_add_scratch(regions, call->scratch, job->workspace_bytes);
}

mstar_status mst_cpu_attn_run(mstar_stream *stream, const mst_attn_call *call)
{
    static const mst_launch_kind kind = {.name = "attention",
                                         .prepare = prepare,
                                         .task = task,
                                         .touch = touch,
                                         .choices = choices,
                                         .key = key};
    const mst_kernels *kernels = kernels_for(stream->device, call->shape);
    mst_launch launch = {.kind = &kind, .max_rows = call->q_rows, .follows_plan = true};
    launch.as.attn.call = *call;
    launch.as.attn.kernels = kernels;
    launch.as.attn.scratch_bytes = kernels->attn_scratch_bytes(call->shape);
    launch.as.attn.workspace_bytes = mst_cpu_attn_scratch_bytes(stream->device, call->shape);
    return mst_cpu_submit(stream, &launch);
}
