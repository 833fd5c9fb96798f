/*
 * cuda_linear.h - matrix products: cuBLASLt's algorithms for a shape, and the entries of the
 * vtable.
 *
 * Weights lie as given, [out, in] row by row, each row padded to 16 bytes. A product is one
 * multiplication with the bias as its epilogue; where activation, residual or layout ask for more,
 * it goes to scratch in f32 and a kernel of ours finishes it.
 */
#ifndef MST_CUDA_LINEAR_H
#define MST_CUDA_LINEAR_H

#include "cuda/cuda_blas.h"
#include "cuda/cuda_rows.h"

/* ---- cuda_product.c: which algorithms a shape may use ---------------------------------------- */

#define MST_CUDA_MEMBERS 6

/*
 * Algorithms whose rows have the same bits, each for up to so many rows. They were found on this
 * device: the first is the reference, and another one is a member when the rows of a trial with it
 * were those of the reference, bit for bit. Rows cannot depend on how many there are inside of one
 * algorithm either: keys are not split, and no workspace is given that a split could use.
 */
typedef struct mst_cuda_class {
    int32_t count;
    int64_t rows[MST_CUDA_MEMBERS]; /* ascending */
    mst_blas_algorithm algorithms[MST_CUDA_MEMBERS];
} mst_cuda_class;

typedef struct mst_cuda_product {
    int64_t in_features, out_features;
    mstar_dtype dtype;     /* of x and the weights */
    mst_cuda_class wide;   /* results in f32: at least one member */
    mst_cuda_class narrow; /* in dtype, the wide one's rounded once: maybe none */
    struct mst_cuda_product *next;
} mst_cuda_product;

/* Pure: the member for a number of rows; -1 for none. */
int32_t mst_cuda_class_member(const mst_cuda_class *members, int64_t rows);
/* Columns of a row of weights in memory, or of x in scratch. */
int64_t mst_cuda_linear_distance(int64_t columns, mstar_dtype dtype);

/* One multiplication: out[rows, n] = x w^T + bias, the distances in elements. */
typedef struct mst_cuda_multiply {
    const mst_cuda_product *product;
    const mst_blas_algorithm *algorithm;
    int64_t num_rows;
    const void *weights, *x;
    const float *bias;
    void *out;
    int64_t x_distance, out_distance;
    mstar_dtype out_dtype;
} mst_cuda_multiply;
/* The context is current. */
mstar_status mst_cuda_multiply_run(const mst_cuda *cuda, void *stream,
                                   const mst_cuda_multiply *multiply);

/* Finds the algorithms of a shape, once a device; waits for the trials. The context is current. */
mstar_status mst_cuda_product_prepare(mst_cuda *cuda, const mst_linear_shape *shape);
/* What prepare has found; NULL before. */
const mst_cuda_product *mst_cuda_product_get(mst_cuda *cuda, const mst_linear_shape *shape);
void mst_cuda_products_free(mst_cuda *cuda);

/* ---- cuda_linear.c: entries of the vtable ---------------------------------------------------- */

size_t mst_cuda_linear_packed_bytes(const mstar_device *device, const mst_linear_shape *shape);
const char *mst_cuda_linear_kernel(const mstar_device *device, const mst_linear_shape *shape);
mstar_dtype mst_cuda_linear_x_dtype(const mstar_device *device, const mst_linear_shape *shape);
void mst_cuda_linear_pack(const mstar_device *device, const mst_linear_shape *shape,
                          const mstar_tensor *weight, int64_t first_row, void *packed);
mstar_status mst_cuda_linear_prepare(mstar_device *device, const mst_linear_shape *shape);
mstar_status mst_cuda_linear_run(mstar_stream *stream, const mst_linear_shape *shape,
                                 const void *packed, const float *bias, int64_t num_rows,
                                 mst_rows x, mst_rows residual, mst_rows out);

#endif
