/*
 * cuda_linear.h - matrix products: cuBLASLt's algorithms for a shape, and the entries of the
 * vtable.
 *
 * Weights lie as given, [out, in] row by row, each row padded to 16 bytes. A product is one launch:
 * of cuBLASLt, with the bias as its epilogue, where the result is f32 and nothing follows; of a
 * kernel of ours that does the rest too on cards that have it. Elsewhere, and where the layout asks
 * for more, a result in f32 goes to scratch and a kernel of the rows finishes it, with the same
 * bits.
 */
#ifndef MST_CUDA_LINEAR_H
#define MST_CUDA_LINEAR_H

#include "cuda/cuda_blas.h"
#include "cuda/cuda_rows.h"
#include "cuda/linear_args.h"

/* ---- cuda_fused.c: the product in a kernel of ours ------------------------------------------- */

enum { MST_CUDA_SHARING_BY_SIZE = -1 };

/* out[rows, n] = activation(x w^T + bias) + residual. x and weights lie on 16 bytes, every row too,
 * as does out. */
typedef struct mst_cuda_fused {
    int64_t in_features, out_features;
    mstar_dtype dtype; /* of x and the weights: bf16 or f16 */
    int64_t num_rows;
    const int64_t *live; /* device memory: rows to do now; NULL: all */
    int32_t sharing;     /* MST_CUDA_LINEAR_WIDE and so on, or MST_CUDA_SHARING_BY_SIZE */
    const void *weights, *x;
    const float *bias;
    int64_t x_distance;
    mstar_activation activation;
    mst_rows residual, out;
} mst_cuda_fused;

/* Whether this device has it for products in dtype; loads it then. NOT_SUPPORTED says why not. The
 * context is current. */
mstar_status mst_cuda_fused_load(mst_cuda *cuda, mstar_dtype dtype);
/* Pure: whether it can add the residual and store the result. */
bool mst_cuda_fused_takes(mstar_dtype dtype, const mst_rows *residual, const mst_rows *out);
/* Pure: how blocks share the work, MST_CUDA_LINEAR_WIDE and so on, on so many multiprocessors. */
int32_t mst_cuda_fused_sharing(int64_t rows, int64_t out_features, mstar_activation activation,
                               int64_t multiprocessors);
/* Pure: whether each tile then has a block of its own, of the kernel for few tiles. */
bool mst_cuda_fused_is_few(int32_t sharing);
/* After load. The context is current. */
mstar_status mst_cuda_fused_run(const mst_cuda *cuda, void *stream, const mst_cuda_fused *fused);

/* ---- cuda_product.c: which algorithms a shape may use ---------------------------------------- */

#define MST_CUDA_MEMBERS 6

/*
 * Algorithms whose rows have the same bits, each for up to so many rows. They were found on this
 * device: the reference is our own kernel, or else the first one proposed, and an algorithm is a
 * member when the rows of a trial with it were those of the reference, bit for bit. Rows cannot
 * depend on how many there are inside of one algorithm either: sums are not split, and no workspace
 * is given that a split could use.
 */
typedef struct mst_cuda_class {
    int32_t count;
    int64_t rows[MST_CUDA_MEMBERS]; /* ascending */
    mst_blas_algorithm algorithms[MST_CUDA_MEMBERS];
} mst_cuda_class;

typedef struct mst_cuda_product {
    int64_t in_features, out_features;
    mstar_dtype dtype;      /* of x and the weights */
    bool fused;             /* a kernel of ours has the same bits */
    mst_cuda_class members; /* at least one where not fused */
    struct mst_cuda_product *next;
} mst_cuda_product;

/* Pure: the member for a number of rows; -1 for none. */
int32_t mst_cuda_class_member(const mst_cuda_class *members, int64_t rows);
/* Columns of a row of weights in memory, or of x in scratch. */
int64_t mst_cuda_linear_distance(int64_t columns, mstar_dtype dtype);

/* One multiplication: out[rows, n] = x w^T + bias in f32, the distances in elements. */
typedef struct mst_cuda_multiply {
    const mst_cuda_product *product;
    const mst_blas_algorithm *algorithm;
    int64_t num_rows;
    const void *weights, *x;
    const float *bias;
    float *out;
    int64_t x_distance, out_distance;
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
