/* cpu_linear.c - cuts packing and products into tasks; the sums are in body_linear.c. */
#include "cpu/cpu_launch.h"

static int64_t count_panels(const mst_kernels *kernels, const mst_linear_shape *shape)
{
    return mst_ceil_div(shape->out_features, kernels->linear_panel);
}

size_t mst_cpu_linear_packed_bytes(const mstar_device *device, const mst_linear_shape *shape)
{
    return mst_linear_of(mst_cpu_of(device)->kernels, shape)->packed_bytes(shape);
}

const char *mst_cpu_linear_kernel(const mstar_device *device, const mst_linear_shape *shape)
{
    return mst_kernel_symbol("linear", shape->weight_dtype, mst_cpu_of(device)->kernels);
}

mstar_dtype mst_cpu_linear_x_dtype(const mstar_device *device, const mst_linear_shape *shape)
{
    bool pairs = mst_cpu_of(device)->kernels->pairs && shape->weight_dtype == MSTAR_DTYPE_BF16;
    return pairs ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F32;
}

void mst_cut(int64_t n, int64_t unit, int64_t parts, int64_t i, int64_t *begin, int64_t *end)
{
    int64_t units = mst_ceil_div(n, unit);
    int64_t each = units / parts;
    int64_t rest = units % parts;
    int64_t first = i * each + mst_min_i64(i, rest);
    int64_t count = each + (i < rest ? 1 : 0);
    *begin = mst_min_i64(first * unit, n);
    *end = mst_min_i64((first + count) * unit, n);
}

/*
 * Rows are cut while every thread gets two full tiles or more: then a thread keeps its rows in its
 * cache over all panels. Fewer rows are shared by all, and the panels are cut.
 */
mst_linear_grid mst_linear_split(int64_t rows, int64_t panels, int64_t tile, int32_t threads)
{
    if (threads <= 1 || rows <= 0)
        return (mst_linear_grid){1, 1};
    int64_t tiles = mst_ceil_div(rows, tile);
    if (tiles >= 2 * (int64_t)threads)
        return (mst_linear_grid){threads, 1};
    return (mst_linear_grid){1, mst_min_i64(panels, threads)};
}

/* Half of the cache for x; the panel that streams past and the output share the rest. */
int64_t mst_linear_row_block(int64_t depth, int64_t tile, int64_t l2_bytes)
{
    if (l2_bytes <= 0)
        l2_bytes = 256 * 1024;
    int64_t rows = l2_bytes / 2 / mst_max_i64(depth * 4, 1);
    return mst_max_i64(rows / tile, 2) * tile;
}

typedef struct pack_job {
    const mst_kernels *kernels;
    const mst_linear_shape *shape;
    const mstar_tensor *weight;
    int64_t first_row, panel_begin, panel_end;
    int64_t parts;
    void *packed;
} pack_job;

static void pack_task(void *context, int32_t index)
{
    const pack_job *job = context;
    int64_t begin, end;
    mst_cut(job->panel_end - job->panel_begin, 1, job->parts, index, &begin, &end);
    mst_linear_of(job->kernels, job->shape)
        ->pack(job->shape, job->weight, job->first_row, job->packed, job->panel_begin + begin,
               job->panel_begin + end);
}

void mst_cpu_linear_pack(const mstar_device *device, const mst_linear_shape *shape,
                         const mstar_tensor *weight, int64_t first_row, void *packed)
{
    const mst_kernels *kernels = mst_cpu_of(device)->kernels;
    if (weight->shape[0] == 0)
        return;
    pack_job job = {.kernels = kernels,
                    .shape = shape,
                    .weight = weight,
                    .first_row = first_row,
                    .panel_begin = first_row / kernels->linear_panel,
                    .panel_end = mst_ceil_div(first_row + weight->shape[0], kernels->linear_panel),
                    .packed = packed};
    job.parts = mst_min_i64(job.panel_end - job.panel_begin, (int64_t)device->num_threads * 4);
    mst_parallel_for(device->pool, device->num_threads, (int32_t)job.parts, pack_task, &job);
}

static mstar_status prepare(mst_launch *launch, int32_t max_threads)
{
    mst_product_job *job = &launch->as.product;
    if (mst_choice_holds(&launch->choice, launch->rows, max_threads)) {
        job->grid = launch->choice.grid;
        job->row_block = launch->choice.row_block;
    } else {
        job->grid =
            mst_linear_split(launch->rows, job->panels, job->kernels->linear_tile, max_threads);
        job->row_block = job->rule_block;
    }
    launch->tasks = launch->rows == 0 ? 0 : (int32_t)(job->grid.row_parts * job->grid.panel_parts);
    return MSTAR_OK;
}

static int32_t choices(const mst_launch *launch, int32_t threads, mst_choice *list)
{
    const mst_product_job *job = &launch->as.product;
    int64_t tile = job->kernels->linear_tile;
    mst_choice rule = {.rows = launch->max_rows,
                       .threads = threads,
                       .grid = mst_linear_split(launch->max_rows, job->panels, tile, threads),
                       .row_block = job->rule_block};
    return mst_choices_of_product(&rule, job->panels, tile, list);
}

static void key(const mst_launch *launch, mst_launch_key *key)
{
    const mst_linear_work *work = &launch->as.product.work;
    const mst_linear_shape *shape = work->shape;
    *key = (mst_launch_key){{shape->in_features, shape->out_features, shape->weight_dtype,
                             shape->activation, work->x.dtype, work->x.row_stride,
                             work->residual.data != NULL, work->residual.dtype,
                             work->residual.row_stride, work->out.dtype, work->out.row_stride}};
}

static void task(mst_launch *launch, int32_t index)
{
    const mst_product_job *job = &launch->as.product;
    int64_t row_begin, row_end, panel_begin, panel_end;
    /* by single rows: the last tiles of a part are evened out, which costs less than unequal parts
     */
    mst_cut(launch->rows, 1, job->grid.row_parts, index / job->grid.panel_parts, &row_begin,
            &row_end);
    mst_cut(job->panels, 1, job->grid.panel_parts, index % job->grid.panel_parts, &panel_begin,
            &panel_end);
    for (int64_t row = row_begin; row < row_end; row += job->row_block)
        mst_linear_of(job->kernels, job->work.shape)
            ->block(&job->work, row, mst_min_i64(row + job->row_block, row_end), panel_begin,
                    panel_end);
}

/* The panels and their bias are nobody's output. */
static void touch(const mst_launch *launch, mst_regions *regions)
{
    const mst_linear_work *work = &launch->as.product.work;
    int64_t rows = launch->max_rows;
    mst_regions_add_rows(regions, &work->x, rows, work->shape->in_features, false);
    mst_regions_add_rows(regions, &work->residual, rows, work->shape->out_features, false);
    mst_regions_add_rows(regions, &work->out, rows, work->shape->out_features, true);
}

mstar_status mst_cpu_linear_run(mstar_stream *stream, const mst_linear_shape *shape,
                                const void *packed, const float *bias, int64_t num_rows, mst_rows x,
                                mst_rows residual, mst_rows out)
{
    static const mst_launch_kind kind = {.name = "linear",
                                         .prepare = prepare,
                                         .task = task,
                                         .touch = touch,
                                         .choices = choices,
                                         .key = key};
    const mst_cpu *cpu = mst_cpu_of(stream->device);
    mst_launch launch = {.kind = &kind, .max_rows = num_rows, .live_rows = stream->num_rows};
    launch.as.product =
        (mst_product_job){.kernels = cpu->kernels,
                          .work = {.shape = shape,
                                   .packed = packed,
                                   .bias = bias,
                                   .x = x,
                                   .residual = residual,
                                   .out = out},
                          .panels = count_panels(cpu->kernels, shape),
                          .rule_block = mst_linear_row_block(
                              shape->in_features, cpu->kernels->linear_tile, cpu->l2_bytes)};
    return mst_cpu_submit(stream, &launch);
}
