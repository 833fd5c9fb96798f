/* cuda_linear.c - one product from its operands: what is converted, multiplied and finished. */
#include <string.h>

#include "cuda/cuda_linear.h"

#define ALIGN 16 /* bytes of what cuBLASLt reads and writes */
/* From this depth on cuBLASLt, whose blocks share what they fetch, and a row kernel after it are
 * faster than our own kernel but for a few rows: 322 + 54 us against 440 for 23328 x 4304 x 1152 on
 * an H200, 12 + 5 against 14 for 256. */
#define LONG_DEPTH 4096

int64_t mst_cuda_linear_distance(int64_t columns, mstar_dtype dtype)
{
    return mst_round_up(columns, ALIGN / (int64_t)mstar_dtype_bytes(dtype));
}

size_t mst_cuda_linear_packed_bytes(const mstar_device *device, const mst_linear_shape *shape)
{
    (void)device;
    return (size_t)(shape->out_features *
                    mst_cuda_linear_distance(shape->in_features, shape->weight_dtype)) *
           mstar_dtype_bytes(shape->weight_dtype);
}

const char *mst_cuda_linear_kernel(const mstar_device *device, const mst_linear_shape *shape)
{
    (void)device;
    return shape->weight_dtype == MSTAR_DTYPE_F32    ? "cublaslt_f32"
           : shape->weight_dtype == MSTAR_DTYPE_BF16 ? "cublaslt_bf16"
                                                     : "cublaslt_f16";
}

mstar_dtype mst_cuda_linear_x_dtype(const mstar_device *device, const mst_linear_shape *shape)
{
    (void)device;
    return shape->weight_dtype;
}

/* packed is host memory, as the device will have it. */
void mst_cuda_linear_pack(const mstar_device *device, const mst_linear_shape *shape,
                          const mstar_tensor *weight, int64_t first_row, void *packed)
{
    (void)device;
    int64_t distance = mst_cuda_linear_distance(shape->in_features, shape->weight_dtype);
    for (int64_t row = 0; row < weight->shape[0]; row++) {
        for (int64_t i = 0; i < shape->in_features; i++)
            mst_store_element(packed, shape->weight_dtype, (first_row + row) * distance + i,
                              mst_load_element(weight->data, weight->dtype,
                                               row * weight->strides[0] + i * weight->strides[1]));
    }
}

mstar_status mst_cuda_linear_prepare(mstar_device *device, const mst_linear_shape *shape)
{
    mst_cuda *cuda = mst_cuda_of(device);
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_product_prepare(cuda, shape);
    mst_cuda_leave(cuda);
    return status;
}

/* ---- run ------------------------------------------------------------------------------------- */

static bool is_aligned(const mst_rows *rows)
{
    return (uintptr_t)rows->data % ALIGN == 0 &&
           (size_t)rows->row_stride * mstar_dtype_bytes(rows->dtype) % ALIGN == 0;
}

/* How a product is made. */
typedef enum linear_way {
    WAY_DIRECT, /* cuBLASLt stores the result */
    WAY_FUSED,  /* our own kernel does all */
    WAY_FINISH  /* the product goes to scratch, and a kernel of the rows makes the result of it */
} linear_way;

typedef struct linear_job {
    const mst_linear_shape *shape;
    const mst_cuda_product *product;
    mst_cuda_multiply multiply;
    mst_cuda_fused fused;
    int64_t num_rows; /* as called: what kernels of ours are told */
    mst_rows x, residual, out;
    linear_way way;
    bool convert; /* x goes to scratch first */
} linear_job;

static bool has_member(const linear_job *job)
{
    return job->product->members.count > 0;
}

/* In so few tiles that our own kernel does not multiply for long. */
static bool is_small(const mst_cuda *cuda, const linear_job *job)
{
    return mst_cuda_fused_sharing(job->multiply.num_rows, job->shape->out_features,
                                  job->shape->activation,
                                  cuda->multiprocessors) == MST_CUDA_LINEAR_SMALL;
}

static linear_way way_of(const mst_cuda *cuda, const linear_job *job)
{
    bool plain = job->residual.data == NULL && job->shape->activation == MSTAR_ACTIVATION_NONE &&
                 job->out.dtype == MSTAR_DTYPE_F32 && is_aligned(&job->out);
    if (plain && has_member(job))
        return WAY_DIRECT;
    if (job->shape->in_features >= LONG_DEPTH && has_member(job) && !is_small(cuda, job))
        return WAY_FINISH;
    return job->product->fused &&
                   mst_cuda_fused_takes(job->product->dtype, &job->residual, &job->out)
               ? WAY_FUSED
               : WAY_FINISH;
}

/* What our own kernel multiplies; plain: nothing follows, and the result is as multiply has it. */
static mst_cuda_fused fused_of(const linear_job *job, bool plain)
{
    const mst_cuda_multiply *m = &job->multiply;
    mst_cuda_fused fused = {.in_features = job->shape->in_features,
                            .out_features = job->shape->out_features,
                            .dtype = job->product->dtype,
                            .sharing = MST_CUDA_SHARING_BY_SIZE,
                            .num_rows = m->num_rows,
                            .weights = m->weights,
                            .x = m->x,
                            .bias = m->bias,
                            .x_distance = m->x_distance,
                            .out = {m->out, MSTAR_DTYPE_F32, m->out_distance, m->num_rows}};
    if (plain)
        return fused;
    fused.activation = job->shape->activation;
    fused.residual = job->residual;
    fused.out = job->out;
    return fused;
}

/* One row's stride may be anything: it becomes one that the library and the copy engine take. */
static void place_one_row(linear_job *job)
{
    const mst_cuda_product *product = job->product;
    job->x.row_stride = mst_cuda_linear_distance(product->in_features, job->x.dtype);
    job->out.row_stride = mst_cuda_linear_distance(product->out_features, job->out.dtype);
}

static void plan_run(const mst_cuda *cuda, const void *packed, const float *bias, int64_t rows,
                     linear_job *job)
{
    const mst_cuda_product *product = job->product;
    mst_cuda_multiply *m = &job->multiply;
    if (rows == 1)
        place_one_row(job);
    job->convert = job->x.dtype != product->dtype || !is_aligned(&job->x) ||
                   job->x.row_stride < product->in_features;
    m->product = product;
    m->num_rows = rows;
    job->way = way_of(cuda, job);
    m->weights = packed;
    m->bias = bias;
    m->x = job->x.data;
    m->x_distance = job->convert ? mst_cuda_linear_distance(product->in_features, product->dtype)
                                 : job->x.row_stride;
    m->out = job->out.data;
    m->out_distance = job->way == WAY_FINISH
                          ? mst_cuda_linear_distance(product->out_features, MSTAR_DTYPE_F32)
                          : job->out.row_stride;
    if (has_member(job))
        m->algorithm = &product->members.algorithms[mst_cuda_class_member(&product->members, rows)];
}

/* With the context current: scratch for x in the product's dtype, then for the product in f32. */
static mstar_status place_scratch(mstar_stream *stream, linear_job *job)
{
    mst_cuda_multiply *m = &job->multiply;
    void *scratch;
    size_t x_bytes = 0, out_bytes = 0;
    if (job->convert)
        x_bytes = (size_t)(m->num_rows * m->x_distance) * mstar_dtype_bytes(m->product->dtype);
    if (job->way == WAY_FINISH)
        out_bytes = (size_t)(m->num_rows * m->out_distance) * sizeof(float);
    if (x_bytes + out_bytes == 0)
        return MSTAR_OK;
    MST_TRY(mst_cuda_scratch_take(stream, x_bytes + out_bytes, &scratch));
    if (job->convert)
        m->x = scratch;
    if (job->way == WAY_FINISH)
        m->out = (float *)(void *)((char *)scratch + x_bytes);
    return MSTAR_OK;
}

static mstar_status in_context(mstar_stream *stream, linear_job *job,
                               mstar_status (*step)(mstar_stream *stream, linear_job *job))
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = step(stream, job);
    mst_cuda_leave(cuda);
    return status;
}

static mstar_status multiply(mstar_stream *stream, linear_job *job)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    void *handle = mst_cuda_handle(stream);
    if (job->way != WAY_FUSED && has_member(job))
        return mst_cuda_multiply_run(cuda, handle, &job->multiply);
    mst_cuda_fused fused = fused_of(job, job->way == WAY_FINISH);
    if (stream->graph != NULL && stream->num_rows != NULL) {
        mst_cuda_input live = {.host = stream->num_rows, .bytes = sizeof *stream->num_rows};
        MST_TRY(mst_cuda_inputs_send(stream, &live, 1));
        fused.live = live.device;
    }
    return mst_cuda_fused_run(cuda, handle, &fused);
}

static mstar_status run(mstar_stream *stream, linear_job *job)
{
    mst_cuda_multiply *m = &job->multiply;
    const mst_rows none = {.data = NULL};
    MST_TRY(in_context(stream, job, place_scratch));
    if (job->convert) {
        mst_rows to = {(void *)(uintptr_t)m->x, m->product->dtype, m->x_distance, job->num_rows};
        MST_TRY(mst_cuda_finish(stream, job->num_rows, m->product->in_features,
                                MSTAR_ACTIVATION_NONE, job->x, NULL, none, to));
    }
    MST_TRY(in_context(stream, job, multiply));
    if (job->way != WAY_FINISH)
        return MSTAR_OK;
    mst_rows from = {m->out, MSTAR_DTYPE_F32, m->out_distance, job->num_rows};
    return mst_cuda_finish(stream, job->num_rows, m->product->out_features, job->shape->activation,
                           from, NULL, job->residual, job->out);
}

/* In a graph cuBLASLt multiplies all the rows that were recorded; those past the live count, which
 * nothing reads, are harmless: rows do not know one another. */
mstar_status mst_cuda_linear_run(mstar_stream *stream, const mst_linear_shape *shape,
                                 const void *packed, const float *bias, int64_t num_rows,
                                 mst_rows x, mst_rows residual, mst_rows out)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    int64_t rows = num_rows;
    MST_TRY(mst_capture_check(stream));
    if (stream->graph == NULL) {
        MST_TRY(mst_stream_rows(stream, num_rows, &rows));
    } else {
        const mst_cuda_recorded recorded = {
            .name = "linear", .live = stream->num_rows, .max_rows = num_rows};
        MST_TRY(mst_cuda_record_check(mst_cuda_record_of(stream), &recorded));
    }
    if (rows == 0)
        return MSTAR_OK;
    linear_job job = {.shape = shape,
                      .product = mst_cuda_product_get(cuda, shape),
                      .num_rows = num_rows,
                      .x = x,
                      .residual = residual,
                      .out = out};
    plan_run(cuda, packed, bias, rows, &job);
    return run(stream, &job);
}
