/* cuda_linear.c - one product from its operands: what is converted, multiplied and finished. */
#include <string.h>

#include "cuda/cuda_linear.h"

#define ALIGN 16 /* bytes of what cuBLASLt reads and writes */

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

typedef struct linear_job {
    const mst_linear_shape *shape;
    mst_cuda_multiply multiply;
    int64_t num_rows; /* as called: what kernels of ours are told */
    mst_rows x, residual, out;
    bool convert; /* x goes to scratch first */
    bool finish;  /* the product goes to scratch, and a kernel makes out of it */
} linear_job;

/* What cuBLASLt can do without help: a result that is stored as it is. */
static bool is_direct(const linear_job *job, const mst_cuda_product *product)
{
    return job->residual.data == NULL && job->shape->activation == MSTAR_ACTIVATION_NONE &&
           is_aligned(&job->out) &&
           (job->out.dtype == MSTAR_DTYPE_F32 ||
            (job->out.dtype == product->dtype && product->narrow.count > 0));
}

static void plan_run(const mst_cuda_product *product, const void *packed, const float *bias,
                     int64_t rows, linear_job *job)
{
    mst_cuda_multiply *m = &job->multiply;
    job->convert = job->x.dtype != product->dtype || !is_aligned(&job->x);
    job->finish = !is_direct(job, product);
    m->product = product;
    m->num_rows = rows;
    m->weights = packed;
    m->bias = bias;
    m->x = job->x.data;
    m->x_distance = job->convert ? mst_cuda_linear_distance(product->in_features, product->dtype)
                                 : job->x.row_stride;
    m->out = job->out.data;
    m->out_dtype = job->finish ? MSTAR_DTYPE_F32 : job->out.dtype;
    m->out_distance = job->finish ? mst_cuda_linear_distance(product->out_features, MSTAR_DTYPE_F32)
                                  : job->out.row_stride;
    const mst_cuda_class *members =
        m->out_dtype == MSTAR_DTYPE_F32 ? &product->wide : &product->narrow;
    m->algorithm = &members->algorithms[mst_cuda_class_member(members, rows)];
}

/* With the context current: scratch for x in the product's dtype, then for the product in f32. */
static mstar_status place_scratch(mstar_stream *stream, linear_job *job)
{
    mst_cuda_multiply *m = &job->multiply;
    void *scratch;
    size_t x_bytes = 0, out_bytes = 0;
    if (job->convert)
        x_bytes = (size_t)(m->num_rows * m->x_distance) * mstar_dtype_bytes(m->product->dtype);
    if (job->finish)
        out_bytes = (size_t)(m->num_rows * m->out_distance) * sizeof(float);
    if (x_bytes + out_bytes == 0)
        return MSTAR_OK;
    MST_TRY(mst_cuda_scratch_take(stream, x_bytes + out_bytes, &scratch));
    if (job->convert)
        m->x = scratch;
    if (job->finish)
        m->out = (char *)scratch + x_bytes;
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
    return mst_cuda_multiply_run(mst_cuda_of(stream->device), mst_cuda_handle(stream),
                                 &job->multiply);
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
    if (!job->finish)
        return MSTAR_OK;
    mst_rows from = {m->out, MSTAR_DTYPE_F32, m->out_distance, job->num_rows};
    return mst_cuda_finish(stream, job->num_rows, m->product->out_features, job->shape->activation,
                           from, NULL, job->residual, job->out);
}

/* A graph multiplies all the rows that were recorded; those past the live count, which nothing
 * reads, are harmless: rows do not know one another. */
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
    linear_job job = {
        .shape = shape, .num_rows = num_rows, .x = x, .residual = residual, .out = out};
    plan_run(mst_cuda_product_get(cuda, shape), packed, bias, rows, &job);
    return run(stream, &job);
}
