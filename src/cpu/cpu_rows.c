/*
 * cpu_rows.c - the row by row operations over the threads of a stream.
 *
 * One job type for all: the rows are cut evenly, and each task runs one function row by row.
 */
#include "cpu/cpu_launch.h"

/* Elements below which waking a second thread costs more than it saves. */
#define TASK_ELEMENTS 8192

typedef mst_rows_job rows_job;

/* What all rows touch together. Recorded offsets may be anything. */
static int64_t count_elements(const mst_launch *launch)
{
    const rows_job *job = &launch->as.rows;
    if (job->cu_seqlens == NULL)
        return launch->rows * job->row_elements;
    int64_t tokens = (int64_t)job->cu_seqlens[launch->rows] - job->cu_seqlens[0];
    return mst_max_i64(0, mst_min_i64(tokens, job->x.num_rows)) * job->width;
}

int32_t mst_rows_split(int64_t elements, int64_t rows, int32_t threads)
{
    int64_t tasks = mst_min_i64(elements / TASK_ELEMENTS, threads);
    return (int32_t)mst_min_i64(mst_max_i64(1, tasks), rows);
}

static mstar_status prepare(mst_launch *launch, int32_t max_threads)
{
    if (launch->rows == 0) {
        launch->tasks = 0;
        return MSTAR_OK;
    }
    if (mst_choice_holds(&launch->choice, launch->rows, max_threads))
        launch->tasks = (int32_t)mst_min_i64(launch->choice.tasks, launch->rows);
    else
        launch->tasks = mst_rows_split(count_elements(launch), launch->rows, max_threads);
    return MSTAR_OK;
}

/* Offsets of a pooling are other ones at every replay: all rows of x count. */
static int32_t choices(const mst_launch *launch, int32_t threads, mst_choice *list)
{
    const rows_job *job = &launch->as.rows;
    int64_t rows = launch->max_rows;
    int64_t elements =
        job->cu_seqlens != NULL ? job->x.num_rows * job->width : rows * job->row_elements;
    mst_choice rule = {
        .rows = rows, .threads = threads, .tasks = mst_rows_split(elements, rows, threads)};
    return mst_choices_of_tasks(&rule, rows, list);
}

static void key(const mst_launch *launch, mst_launch_key *key)
{
    const rows_job *job = &launch->as.rows;
    *key = (mst_launch_key){{job->width, job->x.dtype, job->x.row_stride, job->x.num_rows,
                             job->residual.data != NULL, job->residual.row_stride, job->out.dtype,
                             job->out.row_stride, job->activation, job->pooling, job->num_tables,
                             job->num_heads, job->head_dim, job->rotary_dim, job->interleaved,
                             job->weight != NULL}};
}

/* Whether what row reads lies inside of its tensors; told to have been checked unless recorded. */
static bool is_sound(const rows_job *job, int64_t row)
{
    for (int32_t i = 0; i < job->num_tables; i++) {
        if (job->ids[i][row] < 0 || job->ids[i][row] >= job->tables[i].num_rows)
            return false;
    }
    if (job->cu_seqlens == NULL)
        return true;
    int32_t begin = job->cu_seqlens[row], end = job->cu_seqlens[row + 1];
    return 0 <= begin && begin <= end && end <= job->x.num_rows &&
           (job->skip == NULL || job->skip[row] >= 0);
}

/* Rows ahead of the one that is summed. */
#define TABLES_AHEAD 2

/* Ids lead all over tables that no cache holds: a row is asked for before its turn comes. Those of
 * a recorded launch may be anything: addresses are integers here, and asking for them is safe. */
static void ask_for_tables(const rows_job *job, int64_t row)
{
    for (int32_t t = 0; t < job->num_tables; t++) {
        const mst_rows *table = &job->tables[t];
        uintptr_t element = mstar_dtype_bytes(table->dtype);
        uintptr_t row_bytes = (uintptr_t)table->row_stride * element;
        uintptr_t data = (uintptr_t)table->data + (uintptr_t)job->ids[t][row] * row_bytes;
        for (uintptr_t i = 0; i < (uintptr_t)job->width * element; i += MST_CACHE_LINE)
            __builtin_prefetch((const void *)(data + i));
    }
}

static void task(mst_launch *launch, int32_t index)
{
    const rows_job *job = &launch->as.rows;
    bool check = launch->recorded && (job->num_tables > 0 || job->cu_seqlens != NULL);
    int64_t begin, end;
    mst_cut(launch->rows, 1, launch->tasks, index, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        if (check && !is_sound(job, row)) {
            atomic_store_explicit(&launch->bad, true, memory_order_relaxed);
            return;
        }
        if (job->num_tables > 0 && row + TABLES_AHEAD < end)
            ask_for_tables(job, row + TABLES_AHEAD);
        job->row(job, row);
    }
}

static mstar_status explain(const mst_launch *launch)
{
    const rows_job *job = &launch->as.rows;
    int64_t row = 0;
    while (row < launch->rows - 1 && is_sound(job, row))
        row++;
    for (int32_t i = 0; i < job->num_tables; i++) {
        if (job->ids[i][row] < 0 || job->ids[i][row] >= job->tables[i].num_rows)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "replay of an embedding: ids[%d][%lld] is %d; tables[%d] has rows 0 to "
                            "%lld",
                            i, (long long)row, job->ids[i][row], i,
                            (long long)job->tables[i].num_rows - 1);
    }
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "replay of a pooling: segment %lld has offsets %d to %d and skips %d; offsets "
                    "must rise within 0 to %lld and skip is 0 or more",
                    (long long)row, job->cu_seqlens[row], job->cu_seqlens[row + 1],
                    job->skip != NULL ? job->skip[row] : 0, (long long)job->x.num_rows);
}

static void touch(const mst_launch *launch, mst_regions *regions)
{
    const rows_job *job = &launch->as.rows;
    int64_t rows = launch->max_rows;
    uint64_t ints = (uint64_t)rows * sizeof(int32_t);
    uint64_t floats = (uint64_t)job->width * sizeof(float);
    if (job->num_heads > 0) {
        mst_regions_add_heads(regions, job->x.data, job->x.dtype, rows, job->x.row_stride,
                              job->num_heads, job->x_head_stride, job->head_dim, false);
        mst_regions_add_heads(regions, job->out.data, job->out.dtype, rows, job->out.row_stride,
                              job->num_heads, job->out_head_stride, job->head_dim, true);
        mst_regions_add_bytes(regions, job->positions, ints, false);
        return;
    }
    mst_regions_add_rows(regions, &job->x, job->cu_seqlens != NULL ? job->x.num_rows : rows,
                         job->width, false);
    mst_regions_add_rows(regions, &job->residual, rows, job->width, false);
    mst_regions_add_rows(regions, &job->out, rows, job->width, true);
    mst_regions_add_bytes(regions, job->weight, floats, false);
    mst_regions_add_bytes(regions, job->bias, floats, false);
    for (int32_t i = 0; i < job->num_tables; i++) {
        mst_regions_add_rows(regions, &job->tables[i], job->tables[i].num_rows, job->width, false);
        mst_regions_add_bytes(regions, job->ids[i], ints, false);
    }
    mst_regions_add_bytes(regions, job->cu_seqlens, ints + sizeof(int32_t), false);
    mst_regions_add_bytes(regions, job->skip, ints, false);
}

#define KIND(name)                                        \
    {                                                     \
        name, prepare, task, touch, explain, choices, key \
    }

static mstar_status run_rows(mstar_stream *stream, const mst_launch_kind *kind, int64_t num_rows,
                             const rows_job *job)
{
    mst_launch launch = {.kind = kind, .max_rows = num_rows, .live_rows = stream->num_rows};
    launch.as.rows = *job;
    launch.as.rows.kernels = mst_cpu_of(stream->device)->kernels;
    return mst_cpu_submit(stream, &launch);
}

static void layer_norm(const rows_job *job, int64_t row)
{
    job->kernels->layer_norm_row(job->width, job->x, job->residual, job->weight, job->bias,
                                 job->eps, job->out, row);
}

mstar_status mst_cpu_layer_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                                mst_rows residual, const float *weight, const float *bias,
                                float eps, mst_rows out)
{
    static const mst_launch_kind kind = KIND("layer_norm");
    rows_job job = {.row = layer_norm,
                    .row_elements = width,
                    .width = width,
                    .x = x,
                    .residual = residual,
                    .weight = weight,
                    .bias = bias,
                    .eps = eps,
                    .out = out};
    return run_rows(stream, &kind, num_rows, &job);
}

static void rms_norm(const rows_job *job, int64_t row)
{
    job->kernels->rms_norm_row(job->width, job->x, job->residual, job->weight, job->eps, job->out,
                               row);
}

mstar_status mst_cpu_rms_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                              mst_rows residual, const float *weight, float eps, mst_rows out)
{
    static const mst_launch_kind kind = KIND("rms_norm");
    rows_job job = {.row = rms_norm,
                    .row_elements = width,
                    .width = width,
                    .x = x,
                    .residual = residual,
                    .weight = weight,
                    .eps = eps,
                    .out = out};
    return run_rows(stream, &kind, num_rows, &job);
}

static void activation_row(const rows_job *job, int64_t row)
{
    job->kernels->activation_row(job->width, job->activation, job->x, job->out, row);
}

mstar_status mst_cpu_activation(mstar_stream *stream, int64_t num_rows, int64_t width,
                                mstar_activation activation, mst_rows x, mst_rows out)
{
    static const mst_launch_kind kind = KIND("activation");
    rows_job job = {.row = activation_row,
                    .row_elements = width,
                    .width = width,
                    .activation = activation,
                    .x = x,
                    .out = out};
    return run_rows(stream, &kind, num_rows, &job);
}

static void embedding(const rows_job *job, int64_t row)
{
    job->kernels->embedding_row(job->width, job->tables, job->ids, job->num_tables, job->out, row);
}

mstar_status mst_cpu_embedding(mstar_stream *stream, int64_t num_rows, int64_t width,
                               const mst_rows *tables, const int32_t *const *ids,
                               int32_t num_tables, mst_rows out)
{
    static const mst_launch_kind kind = KIND("embedding");
    rows_job job = {.row = embedding,
                    .row_elements = width,
                    .width = width,
                    .num_tables = num_tables,
                    .out = out};
    for (int32_t i = 0; i < num_tables; i++) {
        job.tables[i] = tables[i];
        job.ids[i] = ids[i];
    }
    return run_rows(stream, &kind, num_rows, &job);
}

static void pooling_row(const rows_job *job, int64_t segment)
{
    int64_t begin = job->cu_seqlens[segment];
    int64_t end = job->cu_seqlens[segment + 1];
    int64_t skipped = job->skip != NULL ? mst_min_i64(job->skip[segment], end - begin) : 0;
    job->kernels->pooling_segment(job->pooling, job->width, job->x, begin + skipped, end, skipped,
                                  job->out, segment);
}

mstar_status mst_cpu_pooling(mstar_stream *stream, mstar_pooling pooling, int64_t width, mst_rows x,
                             const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip,
                             mst_rows out)
{
    static const mst_launch_kind kind = KIND("pooling");
    rows_job job = {.row = pooling_row,
                    .width = width,
                    .pooling = pooling,
                    .x = x,
                    .cu_seqlens = cu_seqlens,
                    .skip = skip,
                    .out = out};
    return run_rows(stream, &kind, num_segments, &job);
}

static void normalize(const rows_job *job, int64_t row)
{
    job->kernels->normalize_row(job->width, job->x, job->out, row);
}

mstar_status mst_cpu_normalize(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                               mst_rows out)
{
    static const mst_launch_kind kind = KIND("normalize");
    rows_job job = {.row = normalize, .row_elements = width, .width = width, .x = x, .out = out};
    return run_rows(stream, &kind, num_rows, &job);
}

static void rotary(const rows_job *job, int64_t row)
{
    job->kernels->rotary_row(job->num_heads, job->head_dim, job->x, job->x_head_stride,
                             job->positions[row], job->theta, job->rotary_dim, job->interleaved,
                             job->out, job->out_head_stride, row);
}

mstar_status mst_cpu_rotary(mstar_stream *stream, int64_t num_tokens, int32_t num_heads,
                            int32_t head_dim, mst_rows x, int64_t x_head_stride,
                            const int32_t *positions, double theta, int32_t rotary_dim,
                            bool interleaved, mst_rows out, int64_t out_head_stride)
{
    static const mst_launch_kind kind = KIND("rotary");
    rows_job job = {.row = rotary,
                    .row_elements = (int64_t)num_heads * head_dim,
                    .num_heads = num_heads,
                    .head_dim = head_dim,
                    .x = x,
                    .x_head_stride = x_head_stride,
                    .positions = positions,
                    .theta = theta,
                    .rotary_dim = rotary_dim,
                    .interleaved = interleaved,
                    .out = out,
                    .out_head_stride = out_head_stride};
    return run_rows(stream, &kind, num_tokens, &job);
}
