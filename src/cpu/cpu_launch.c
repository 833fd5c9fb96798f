/* cpu_launch.c - runs a launch or has it recorded; what launches touch, as regions. */
#include <string.h>

#include "cpu/cpu_launch.h"

static mstar_status read_rows(mst_launch *launch)
{
    launch->rows = launch->max_rows;
    if (launch->live_rows == NULL)
        return MSTAR_OK;
    launch->rows = *launch->live_rows;
    if (launch->rows < 0 || launch->rows > launch->max_rows)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s: the live row count is %lld; the tensors have %lld rows",
                        launch->kind->name, (long long)launch->rows, (long long)launch->max_rows);
    return MSTAR_OK;
}

mstar_status mst_launch_prepare(mst_launch *launch, int32_t max_threads)
{
    atomic_store_explicit(&launch->bad, false, memory_order_relaxed);
    MST_TRY(read_rows(launch));
    return launch->kind->prepare(launch, max_threads);
}

static void run_task(void *context, int32_t index)
{
    mst_launch *launch = context;
    launch->kind->task(launch, index);
}

mstar_status mst_cpu_submit(mstar_stream *stream, mst_launch *launch)
{
    MST_TRY(mst_capture_check(stream));
    if (stream->graph != NULL)
        return mst_cpu_record(stream, launch);
    MST_TRY(mst_launch_prepare(launch, stream->max_threads));
    mst_parallel_for(stream->device->pool, stream->max_threads, launch->tasks, run_task, launch);
    return MSTAR_OK;
}

/* ---- regions --------------------------------------------------------------------------------- */

static uintptr_t region_end(const mst_region *region)
{
    return region->begin + (uintptr_t)(region->num_rows - 1) * region->stride + region->width;
}

bool mst_regions_overlap(const mst_region *a, const mst_region *b)
{
    if (a->begin >= region_end(b) || b->begin >= region_end(a))
        return false;
    uint64_t stride = a->stride;
    if (stride != b->stride || stride == 0 || a->width > stride || b->width > stride)
        return true;
    /* b's columns, counted from a's first one */
    uint64_t column = b->begin >= a->begin ? (b->begin - a->begin) % stride
                                           : stride - 1 - (a->begin - b->begin - 1) % stride;
    return column < a->width || column + b->width > stride;
}

void mst_regions_add(mst_regions *regions, const void *data, uint64_t width, uint64_t stride,
                     int64_t num_rows, bool written)
{
    if (data == NULL || num_rows <= 0 || width == 0)
        return;
    regions->list[regions->count++] = (mst_region){.begin = (uintptr_t)data,
                                                   .width = width,
                                                   .stride = stride,
                                                   .num_rows = num_rows,
                                                   .written = written};
}

void mst_regions_add_bytes(mst_regions *regions, const void *data, uint64_t bytes, bool written)
{
    mst_regions_add(regions, data, bytes, bytes, 1, written);
}

void mst_regions_add_scratch(mst_regions *regions, const void *data, uint64_t bytes)
{
    int32_t place = regions->count;
    mst_regions_add_bytes(regions, data, bytes, true);
    if (regions->count > place)
        regions->list[place].scratch = true;
}

void mst_regions_add_rows(mst_regions *regions, const mst_rows *rows, int64_t num_rows,
                          int64_t width, bool written)
{
    uint64_t element = mstar_dtype_bytes(rows->dtype);
    mst_regions_add(regions, rows->data, (uint64_t)width * element,
                    (uint64_t)rows->row_stride * element, num_rows, written);
}

void mst_regions_add_heads(mst_regions *regions, const void *data, mstar_dtype dtype,
                           int64_t num_rows, int64_t row_stride, int64_t num_heads,
                           int64_t head_stride, int64_t head_dim, bool written)
{
    uint64_t element = mstar_dtype_bytes(dtype);
    bool rows_outside = row_stride >= head_stride;
    int64_t inner = rows_outside ? (num_heads - 1) * head_stride : (num_rows - 1) * row_stride;
    if (num_rows <= 0 || num_heads <= 0)
        return;
    mst_regions_add(regions, data, (uint64_t)(inner + head_dim) * element,
                    (uint64_t)(rows_outside ? row_stride : head_stride) * element,
                    rows_outside ? num_rows : num_heads, written);
}

bool mst_regions_conflict(const mst_regions *a, const mst_regions *b)
{
    for (int32_t i = 0; i < a->count; i++) {
        for (int32_t j = 0; j < b->count; j++) {
            if ((a->list[i].written || b->list[j].written) &&
                mst_regions_overlap(&a->list[i], &b->list[j]))
                return true;
        }
    }
    return false;
}
