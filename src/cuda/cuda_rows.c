/*
 * cuda_rows.c - the row operations: what each launches, with how many threads, and what it reads.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "cuda/cuda_rows.h"

/* ---- pure functions -------------------------------------------------------------------------- */

/* As few threads as keep a row in registers between the passes of a norm. */
int32_t mst_cuda_row_team(int64_t width)
{
    const int64_t kept = 4 * (int64_t)MST_CUDA_KEPT;
    return width <= 32 * kept ? 32 : width <= 128 * kept ? 128 : MST_CUDA_MAX_TEAM;
}

/* A multiprocessor's threads from which on two rows for each team leave none idle. */
#define MANY_THREADS (40 * 32)

/* Four warps a block, or the one team that is larger. */
int32_t mst_cuda_row_teams(int32_t team)
{
    return team < 128 ? 128 / team : 1;
}

int32_t mst_cuda_norm_together(int64_t rows, int64_t width, int64_t multiprocessors)
{
    const int64_t team = mst_cuda_row_team(width);
    return width <= team * 4 * (MST_CUDA_FEW - 1) && rows * team >= multiprocessors * MANY_THREADS
               ? MST_CUDA_TOGETHER
               : 1;
}

/* Elements are counted in 32 bits. */
static bool is_near(const mst_cuda_rows *rows, int64_t num_rows)
{
    return rows->row_stride >= 0 && rows->row_stride <= INT32_MAX / num_rows;
}

bool mst_cuda_norm_is_few(const mst_cuda_row_args *a)
{
    const bool types = a->x.dtype == a->out.dtype || a->x.dtype == MST_CUDA_F32;
    return a->whole && a->together == 1 && a->residual.data == NULL && types && a->team <= 128 &&
           a->width <= 4 * (int64_t)(MST_CUDA_FEW - 1) * a->team && a->num_rows > 0 &&
           a->num_rows <= INT32_MAX && is_near(&a->x, a->num_rows) && is_near(&a->out, a->num_rows);
}

static int32_t dtype_code(mstar_dtype dtype)
{
    return dtype == MSTAR_DTYPE_F32    ? MST_CUDA_F32
           : dtype == MSTAR_DTYPE_BF16 ? MST_CUDA_BF16
                                       : MST_CUDA_F16;
}

mst_cuda_rows mst_cuda_rows_of(const mst_rows *rows)
{
    if (rows->data == NULL)
        return (mst_cuda_rows){.data = NULL};
    bool vector = rows->row_stride % 4 == 0 &&
                  (uintptr_t)rows->data % (4 * mstar_dtype_bytes(rows->dtype)) == 0;
    return (mst_cuda_rows){rows->data, rows->row_stride, dtype_code(rows->dtype), vector};
}

void mst_cuda_fill_frequencies(double theta, int32_t rotary_dim, double *frequencies)
{
    for (int32_t i = 0; i < rotary_dim / 2; i++)
        frequencies[i] = pow(theta, -2.0 * i / (double)rotary_dim);
}

/* ---- launching ------------------------------------------------------------------------------- */

mstar_status mst_cuda_rows_load(mst_cuda *cuda)
{
    mst_cuda_function function;
    for (int32_t i = 0; i < MST_CUDA_ROW_OPS; i++)
        MST_TRY(mst_cuda_function_get(cuda, mst_cuda_row_kernel((mst_cuda_row_op)i), &function));
    return MSTAR_OK;
}

#define MAX_INPUTS (MST_MAX_TABLES + 1)

/* One operation: its kernel, its arguments, the host's vectors and where they go among them. */
typedef struct row_job {
    mst_cuda_row_op op;
    mst_cuda_row_args args;
    mst_cuda_recorded recorded;
    mst_cuda_input inputs[MAX_INPUTS];
    size_t places[MAX_INPUTS]; /* offsets of the pointers */
    int32_t num_inputs;
} row_job;

#define PLACE(member) offsetof(mst_cuda_row_args, member)

static void add_input(row_job *job, const void *host, size_t bytes, size_t place)
{
    job->inputs[job->num_inputs] = (mst_cuda_input){.host = host, .bytes = bytes};
    job->places[job->num_inputs++] = place;
}

/* A pooling's blocks are a segment and 128 columns; no grid is higher than this. */
#define MAX_COLUMN_BLOCKS 65535

static mstar_status launch(const mst_cuda *cuda, void *stream, mst_cuda_row_op op,
                           mst_cuda_row_args *args)
{
    const mst_cuda_kernel *kernel = mst_cuda_row_kernel(op);
    const int32_t teams = mst_cuda_row_teams(args->team);
    mst_cuda_grid grid = {.x = mst_ceil_div(args->num_rows, (int64_t)teams * args->together),
                          .y = 1,
                          .threads = teams * args->team};
    if (op == MST_CUDA_ROW_POOLING)
        grid = (mst_cuda_grid){.x = args->num_rows,
                               .y = mst_ceil_div(args->width, MST_CUDA_POOL_LANES * 4),
                               .threads = MST_CUDA_POOL_THREADS};
    return mst_cuda_launch(cuda, kernel, grid, stream, args);
}

/* With the context current. */
static mstar_status send_and_launch(mstar_stream *stream, row_job *job)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    MST_TRY(mst_cuda_inputs_send(stream, job->inputs, job->num_inputs));
    for (int32_t i = 0; i < job->num_inputs; i++)
        memcpy((char *)&job->args + job->places[i], &job->inputs[i].device, sizeof(void *));
    return launch(cuda, mst_cuda_handle(stream), job->op, &job->args);
}

/* Rows to do now: the live ones, or all where a graph records, which then reads the live count. */
static mstar_status begin(mstar_stream *stream, const char *name, mst_cuda_row_op op,
                          int64_t num_rows, int64_t width, row_job *job)
{
    memset(job, 0, sizeof *job);
    job->op = op;
    job->args.width = width;
    job->args.num_rows = num_rows;
    job->args.team = mst_cuda_row_team(width);
    job->args.together = 1;
    job->recorded = (mst_cuda_recorded){.name = name, .max_rows = num_rows};
    MST_TRY(mst_capture_check(stream));
    if (stream->graph == NULL)
        return mst_stream_rows(stream, num_rows, &job->args.num_rows);
    job->recorded.live = stream->num_rows;
    if (stream->num_rows != NULL)
        add_input(job, stream->num_rows, sizeof *stream->num_rows, PLACE(live));
    return MSTAR_OK;
}

static mstar_status run(mstar_stream *stream, row_job *job)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    if (job->args.num_rows == 0)
        return MSTAR_OK;
    if (stream->graph != NULL)
        MST_TRY(mst_cuda_record_check(mst_cuda_record_of(stream), &job->recorded));
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = send_and_launch(stream, job);
    mst_cuda_leave(cuda);
    return status;
}

/* ---- the operations -------------------------------------------------------------------------- */

/* Whether fours of all that a norm reads and writes lie together and aligned, in so few groups. */
static bool is_whole(const mst_cuda_row_args *a)
{
    return a->x.vector && a->out.vector && (a->residual.data == NULL || a->residual.vector) &&
           (uintptr_t)a->weight % 16 == 0 && (uintptr_t)a->bias % 16 == 0 && a->width % 4 == 0 &&
           a->width <= 4 * (int64_t)MST_CUDA_FEW * a->team;
}

/* A team does rows together, or one row, by the kernel of few rows where that can. */
static void choose_norm(row_job *job, int64_t multiprocessors)
{
    mst_cuda_row_args *a = &job->args;
    if (a->whole)
        a->together = mst_cuda_norm_together(a->num_rows, a->width, multiprocessors);
    if (!mst_cuda_norm_is_few(a))
        return;
    if (job->op == MST_CUDA_ROW_RMS_NORM)
        job->op = MST_CUDA_ROW_RMS_NORM_FEW;
    else if (a->bias != NULL)
        job->op = MST_CUDA_ROW_LAYER_NORM_FEW;
}

/* Of a norm, and of what runs by the same arguments. */
static mstar_status run_norm(mstar_stream *stream, row_job *job, mst_rows x, mst_rows residual,
                             const float *weight, const float *bias, float eps, mst_rows out)
{
    job->args.x = mst_cuda_rows_of(&x);
    job->args.residual = mst_cuda_rows_of(&residual);
    job->args.out = mst_cuda_rows_of(&out);
    job->args.weight = weight;
    job->args.bias = bias;
    job->args.eps = eps;
    job->args.whole = is_whole(&job->args);
    if (weight != NULL)
        choose_norm(job, mst_cuda_of(stream->device)->multiprocessors);
    return run(stream, job);
}

mstar_status mst_cuda_layer_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                                 mst_rows residual, const float *weight, const float *bias,
                                 float eps, mst_rows out)
{
    row_job job;
    MST_TRY(begin(stream, "layer_norm", MST_CUDA_ROW_LAYER_NORM, num_rows, width, &job));
    return run_norm(stream, &job, x, residual, weight, bias, eps, out);
}

mstar_status mst_cuda_rms_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                               mst_rows residual, const float *weight, float eps, mst_rows out)
{
    row_job job;
    MST_TRY(begin(stream, "rms_norm", MST_CUDA_ROW_RMS_NORM, num_rows, width, &job));
    return run_norm(stream, &job, x, residual, weight, NULL, eps, out);
}

mstar_status mst_cuda_normalize(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                                mst_rows out)
{
    row_job job;
    MST_TRY(begin(stream, "normalize", MST_CUDA_ROW_NORMALIZE, num_rows, width, &job));
    return run_norm(stream, &job, x, (mst_rows){.data = NULL}, NULL, NULL, 0.0F, out);
}

mstar_status mst_cuda_finish(mstar_stream *stream, int64_t num_rows, int64_t width,
                             mstar_activation activation, mst_rows x, const float *bias,
                             mst_rows residual, mst_rows out)
{
    row_job job;
    MST_TRY(begin(stream, "activation", MST_CUDA_ROW_ACTIVATION, num_rows, width, &job));
    job.args.activation = (int32_t)activation;
    return run_norm(stream, &job, x, residual, NULL, bias, 0.0F, out);
}

mstar_status mst_cuda_activation(mstar_stream *stream, int64_t num_rows, int64_t width,
                                 mstar_activation activation, mst_rows x, mst_rows out)
{
    return mst_cuda_finish(stream, num_rows, width, activation, x, NULL, (mst_rows){.data = NULL},
                           out);
}

mstar_status mst_cuda_embedding(mstar_stream *stream, int64_t num_rows, int64_t width,
                                const mst_rows *tables, const int32_t *const *ids,
                                int32_t num_tables, mst_rows out)
{
    row_job job;
    MST_TRY(begin(stream, "embedding", MST_CUDA_ROW_EMBEDDING, num_rows, width, &job));
    job.args.num_tables = job.recorded.num_tables = num_tables;
    for (int32_t i = 0; i < num_tables; i++) {
        job.args.tables[i] = mst_cuda_rows_of(&tables[i]);
        job.recorded.ids[i] = ids[i];
        job.recorded.table_rows[i] = tables[i].num_rows;
        add_input(&job, ids[i], (size_t)job.args.num_rows * sizeof(int32_t),
                  PLACE(ids) + (size_t)i * sizeof(void *));
    }
    job.args.out = mst_cuda_rows_of(&out);
    return run(stream, &job);
}

static mst_cuda_rows columns_from(mst_rows rows, int64_t first)
{
    if (rows.data != NULL) /* no rows need no memory */
        rows.data = (char *)rows.data + (size_t)first * mstar_dtype_bytes(rows.dtype);
    return mst_cuda_rows_of(&rows);
}

mstar_status mst_cuda_pooling(mstar_stream *stream, mstar_pooling pooling, int64_t width,
                              mst_rows x, const int32_t *cu_seqlens, int64_t num_segments,
                              const int32_t *skip, mst_rows out)
{
    row_job job;
    const int64_t step = (int64_t)MAX_COLUMN_BLOCKS * MST_CUDA_POOL_LANES * 4;
    MST_TRY(begin(stream, "pooling", MST_CUDA_ROW_POOLING, num_segments, width, &job));
    job.args.pooling = (int32_t)pooling;
    job.recorded.offsets = cu_seqlens;
    job.recorded.skip = skip;
    job.recorded.x_rows = x.num_rows;
    size_t bytes = (size_t)job.args.num_rows * sizeof(int32_t);
    add_input(&job, cu_seqlens, bytes + sizeof(int32_t), PLACE(offsets));
    if (skip != NULL)
        add_input(&job, skip, bytes, PLACE(skip));
    for (int64_t first = 0; first < width; first += step) {
        job.args.width = mst_min_i64(step, width - first);
        job.args.x = columns_from(x, first);
        job.args.out = columns_from(out, first);
        MST_TRY(run(stream, &job));
    }
    return MSTAR_OK;
}

mstar_status mst_cuda_rotary(mstar_stream *stream, int64_t num_tokens, int32_t num_heads,
                             int32_t head_dim, mst_rows x, int64_t x_head_stride,
                             const int32_t *positions, double theta, int32_t rotary_dim,
                             bool interleaved, mst_rows out, int64_t out_head_stride)
{
    row_job job;
    MST_TRY(begin(stream, "rotary", MST_CUDA_ROW_ROTARY, num_tokens, rotary_dim / 2, &job));
    job.args.num_heads = num_heads;
    job.args.head_dim = head_dim;
    job.args.rotary_dim = rotary_dim;
    job.args.interleaved = interleaved;
    job.args.x = mst_cuda_rows_of(&x);
    job.args.out = mst_cuda_rows_of(&out);
    job.args.x_head_stride = x_head_stride;
    job.args.out_head_stride = out_head_stride;
    add_input(&job, positions, (size_t)job.args.num_rows * sizeof(int32_t), PLACE(positions));
    add_input(&job, NULL, (size_t)(rotary_dim / 2) * sizeof(double), PLACE(frequencies));
    job.inputs[job.num_inputs - 1].theta = theta;
    job.inputs[job.num_inputs - 1].rotary_dim = rotary_dim;
    return run(stream, &job);
}
