/*
 * cpu_rows.c - the row by row operations over the threads of a stream.
 *
 * One job type for all: the rows are cut evenly, and each part runs one function row by row.
 */
#include "cpu/cpu.h"

/* Elements below which waking a second thread costs more than it saves. */
#define PART_ELEMENTS 8192

typedef struct rows_job rows_job;
struct rows_job {
    void (*row)(const rows_job *job, int64_t row);
    const mst_kernels *kernels;
    int64_t num_rows, parts;
    int64_t width;
    mst_rows x, residual, out;
    const float *weight, *bias;
    float eps;
    mstar_activation activation;
    mstar_pooling pooling;
    const mst_rows *tables;
    const int32_t *const *ids;
    int32_t num_tables;
    const int32_t *cu_seqlens, *skip;
    int32_t num_heads, head_dim, rotary_dim;
    int64_t x_head_stride, out_head_stride;
    const int32_t *positions;
    double theta;
    bool interleaved;
};

static void rows_task(void *context, int32_t index)
{
    const rows_job *job = context;
    int64_t begin, end;
    mst_cut(job->num_rows, 1, job->parts, index, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        job->row(job, row);
}

/* elements: what all rows touch together, for the choice of parts. */
static mstar_status run_rows(mstar_stream *stream, rows_job *job, int64_t elements)
{
    if (job->num_rows == 0)
        return MSTAR_OK;
    job->kernels = mst_cpu_of(stream->device)->kernels;
    job->parts = mst_max_i64(1, mst_min_i64(elements / PART_ELEMENTS, stream->max_threads));
    job->parts = mst_min_i64(job->parts, job->num_rows);
    mst_parallel_for(stream->device->pool, stream->max_threads, (int32_t)job->parts, rows_task,
                     job);
    return MSTAR_OK;
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
    rows_job job = {.row = layer_norm,
                    .num_rows = num_rows,
                    .width = width,
                    .x = x,
                    .residual = residual,
                    .weight = weight,
                    .bias = bias,
                    .eps = eps,
                    .out = out};
    return run_rows(stream, &job, num_rows * width);
}

static void rms_norm(const rows_job *job, int64_t row)
{
    job->kernels->rms_norm_row(job->width, job->x, job->residual, job->weight, job->eps, job->out,
                               row);
}

mstar_status mst_cpu_rms_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                              mst_rows residual, const float *weight, float eps, mst_rows out)
{
    rows_job job = {.row = rms_norm,
                    .num_rows = num_rows,
                    .width = width,
                    .x = x,
                    .residual = residual,
                    .weight = weight,
                    .eps = eps,
                    .out = out};
    return run_rows(stream, &job, num_rows * width);
}

static void activation_row(const rows_job *job, int64_t row)
{
    job->kernels->activation_row(job->width, job->activation, job->x, job->out, row);
}

mstar_status mst_cpu_activation(mstar_stream *stream, int64_t num_rows, int64_t width,
                                mstar_activation activation, mst_rows x, mst_rows out)
{
    rows_job job = {.row = activation_row,
                    .num_rows = num_rows,
                    .width = width,
                    .activation = activation,
                    .x = x,
                    .out = out};
    return run_rows(stream, &job, num_rows * width);
}

static void embedding(const rows_job *job, int64_t row)
{
    job->kernels->embedding_row(job->width, job->tables, job->ids, job->num_tables, job->out, row);
}

mstar_status mst_cpu_embedding(mstar_stream *stream, int64_t num_rows, int64_t width,
                               const mst_rows *tables, const int32_t *const *ids,
                               int32_t num_tables, mst_rows out)
{
    rows_job job = {.row = embedding,
                    .num_rows = num_rows,
                    .width = width,
                    .tables = tables,
                    .ids = ids,
                    .num_tables = num_tables,
                    .out = out};
    return run_rows(stream, &job, num_rows * width);
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
    rows_job job = {.row = pooling_row,
                    .num_rows = num_segments,
                    .width = width,
                    .pooling = pooling,
                    .x = x,
                    .cu_seqlens = cu_seqlens,
                    .skip = skip,
                    .out = out};
    int64_t tokens = num_segments > 0 ? (int64_t)cu_seqlens[num_segments] - cu_seqlens[0] : 0;
    return run_rows(stream, &job, tokens * width);
}

static void normalize(const rows_job *job, int64_t row)
{
    job->kernels->normalize_row(job->width, job->x, job->out, row);
}

mstar_status mst_cpu_normalize(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                               mst_rows out)
{
    rows_job job = {.row = normalize, .num_rows = num_rows, .width = width, .x = x, .out = out};
    return run_rows(stream, &job, num_rows * width);
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
    rows_job job = {.row = rotary,
                    .num_rows = num_tokens,
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
    return run_rows(stream, &job, num_tokens * num_heads * head_dim);
}
