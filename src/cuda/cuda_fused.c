/*
 * cuda_fused.c - launches of our own product: what the copy engine is told about the matrices, and
 * what the kernel can store.
 */
#include <string.h>

#include "cuda/cuda_linear.h"

#define ALIGN 16 /* bytes */

mstar_status mst_cuda_fused_load(mst_cuda *cuda, mstar_dtype dtype)
{
    mst_cuda_function function;
    if (dtype == MSTAR_DTYPE_F32)
        return mst_fail(MSTAR_NOT_SUPPORTED, "products in f32 are cuBLASLt's alone");
    if (cuda->major != 9)
        return mst_fail(MSTAR_NOT_SUPPORTED, "the product's kernel is for sm_90 alone");
    return mst_cuda_function_get(cuda, mst_cuda_linear_kernel_of(dtype), &function);
}

static bool takes(mstar_dtype dtype, mstar_dtype other)
{
    return other == MSTAR_DTYPE_F32 || other == dtype;
}

bool mst_cuda_fused_takes(mstar_dtype dtype, const mst_rows *residual, const mst_rows *out)
{
    return takes(dtype, out->dtype) && (uintptr_t)out->data % ALIGN == 0 &&
           (size_t)out->row_stride * mstar_dtype_bytes(out->dtype) % ALIGN == 0 &&
           (residual->data == NULL || takes(dtype, residual->dtype));
}

static int64_t tiles_of(int64_t rows, int64_t out_features, int64_t tile)
{
    return mst_ceil_div(rows, tile) * mst_ceil_div(out_features, tile);
}

/* Timed on an H200: small tiles while each has a multiprocessor of its own; the halves of a tile
 * until there are enough tiles for one to be finished beside the next. */
int32_t mst_cuda_fused_sharing(int64_t rows, int64_t out_features, int64_t multiprocessors)
{
    if (tiles_of(rows, out_features, MST_CUDA_LINEAR_SMALL_TILE) <= multiprocessors)
        return MST_CUDA_LINEAR_SMALL;
    return tiles_of(rows, out_features, MST_CUDA_LINEAR_TILE) <= 3 * multiprocessors
               ? MST_CUDA_LINEAR_HALVES
               : MST_CUDA_LINEAR_IN_TURN;
}

static mstar_status describe(const mst_cuda *cuda, mstar_dtype dtype, const void *data,
                             int64_t columns, int64_t rows, int64_t distance, uint32_t tile,
                             mst_cuda_tensor_map *map)
{
    const uint64_t sizes[] = {(uint64_t)columns, (uint64_t)rows};
    const uint64_t strides[] = {(uint64_t)distance * mstar_dtype_bytes(dtype)};
    const uint32_t box[] = {MST_CUDA_LINEAR_DEPTH, tile}, steps[] = {1, 1};
    return mst_cuda_check(cuda->driver,
                          cuda->driver->tensor_map_encode(
                              map, dtype == MSTAR_DTYPE_BF16 ? MST_CUDA_MAP_BF16 : MST_CUDA_MAP_F16,
                              2, (void *)(uintptr_t)data, sizes, strides, box, steps, 0,
                              MST_CUDA_MAP_SWIZZLE_128, MST_CUDA_MAP_PROMOTE_256, 0),
                          "describing a matrix");
}

static int32_t type_of(mstar_dtype dtype)
{
    return dtype == MSTAR_DTYPE_F32 ? MST_CUDA_LINEAR_F32 : MST_CUDA_LINEAR_HALF;
}

mstar_status mst_cuda_fused_run(const mst_cuda *cuda, void *stream, const mst_cuda_fused *f)
{
    const mst_cuda_kernel *kernel = mst_cuda_linear_kernel_of(f->dtype);
    void *handle = cuda->functions[mst_cuda_kernel_index(kernel)].handle;
    mst_cuda_rows residual = mst_cuda_rows_of(&f->residual);
    mst_cuda_linear_args args;
    memset(&args, 0, sizeof args);
    args.live = f->live;
    args.num_rows = f->num_rows;
    args.out_features = f->out_features;
    args.in_features = f->in_features;
    args.bias = f->bias;
    args.residual = residual.data;
    args.residual_stride = residual.row_stride;
    args.residual_type = type_of(f->residual.dtype);
    args.residual_vector = residual.vector;
    args.out = f->out.data;
    args.out_stride = f->out.row_stride;
    args.out_type = type_of(f->out.dtype);
    args.activation = (int32_t)f->activation;
    args.sharing =
        f->sharing != MST_CUDA_SHARING_BY_SIZE
            ? f->sharing
            : mst_cuda_fused_sharing(f->num_rows, f->out_features, cuda->multiprocessors);
    uint32_t tile =
        args.sharing == MST_CUDA_LINEAR_SMALL ? MST_CUDA_LINEAR_SMALL_TILE : MST_CUDA_LINEAR_TILE;
    MST_TRY(
        describe(cuda, f->dtype, f->x, f->in_features, f->num_rows, f->x_distance, tile, &args.x));
    MST_TRY(describe(cuda, f->dtype, f->weights, f->in_features, f->out_features,
                     mst_cuda_linear_distance(f->in_features, f->dtype), tile, &args.weights));
    int64_t tiles = tiles_of(f->num_rows, f->out_features, tile);
    unsigned blocks = (unsigned)mst_min_i64(tiles, cuda->multiprocessors);
    void *arguments[] = {&args};
    return mst_cuda_check(cuda->driver,
                          cuda->driver->launch(handle, blocks, 1, 1, (unsigned)kernel->threads, 1,
                                               1, (unsigned)kernel->shared_bytes, stream, arguments,
                                               NULL),
                          kernel->symbol);
}
