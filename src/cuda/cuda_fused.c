/*
 * cuda_fused.c - launches of our own product: what the copy engine is told about the matrices, and
 * what the kernel can store.
 */
#include <string.h>

#include "cuda/cuda_linear.h"

#define ALIGN 16 /* bytes */

/* Rows and columns of a block's tile. */
typedef struct mst_cuda_tile {
    int32_t rows, columns;
} mst_cuda_tile;

mstar_status mst_cuda_fused_load(mst_cuda *cuda, mstar_dtype dtype)
{
    mst_cuda_function function;
    if (dtype == MSTAR_DTYPE_F32)
        return mst_fail(MSTAR_NOT_SUPPORTED, "products in f32 are cuBLASLt's alone");
    if (cuda->major != 9)
        return mst_fail(MSTAR_NOT_SUPPORTED, "the product's kernel is for sm_90 alone");
    MST_TRY(mst_cuda_function_get(cuda, mst_cuda_linear_kernel_of(dtype, false), &function));
    return mst_cuda_function_get(cuda, mst_cuda_linear_kernel_of(dtype, true), &function);
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

static const mst_cuda_tile tiles[] = {
#define TILE(NAME, ROWS, COLUMNS) {ROWS, COLUMNS},
    MST_CUDA_LINEAR_SHARINGS(TILE)
#undef TILE
};

static int64_t blocks_of(int64_t rows, int64_t out_features, int32_t sharing)
{
    const mst_cuda_tile *t = &tiles[sharing];
    return mst_ceil_div(rows, t->rows) * mst_ceil_div(out_features, t->columns);
}

/* Tiles of a multiprocessor from which on each group has its own though an activation follows: one
 * group alone takes longer to compute it, which the last tiles wait for. */
#define MANY_TILES 8

/* Timed on an H200: the smallest tiles of which each has a multiprocessor of its own, or else the
 * largest. */
int32_t mst_cuda_fused_sharing(int64_t rows, int64_t out_features, mstar_activation activation,
                               int64_t multiprocessors)
{
    const int64_t many = activation == MSTAR_ACTIVATION_NONE ? 1 : MANY_TILES;
    int32_t sharing = MST_CUDA_LINEAR_NUM_SHARINGS - 1;
    while (sharing > MST_CUDA_LINEAR_WIDE &&
           blocks_of(rows, out_features, sharing) > multiprocessors)
        sharing--;
    return sharing == MST_CUDA_LINEAR_WIDE &&
                   blocks_of(rows, out_features, sharing) > many * multiprocessors
               ? MST_CUDA_LINEAR_PING
               : sharing;
}

bool mst_cuda_fused_is_few(int32_t sharing)
{
    return sharing >= MST_CUDA_LINEAR_FIRST_FEW;
}

static mstar_status describe(const mst_cuda *cuda, mstar_dtype dtype, const void *data,
                             int64_t columns, int64_t rows, int64_t distance, uint32_t box_rows,
                             mst_cuda_tensor_map *map)
{
    const uint64_t sizes[] = {(uint64_t)columns, (uint64_t)rows};
    const uint64_t strides[] = {(uint64_t)distance * mstar_dtype_bytes(dtype)};
    const uint32_t box[] = {MST_CUDA_LINEAR_DEPTH, box_rows}, steps[] = {1, 1};
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
    args.sharing = f->sharing != MST_CUDA_SHARING_BY_SIZE
                       ? f->sharing
                       : mst_cuda_fused_sharing(f->num_rows, f->out_features, f->activation,
                                                cuda->multiprocessors);
    const mst_cuda_tile *tile = &tiles[args.sharing];
    MST_TRY(describe(cuda, f->dtype, f->x, f->in_features, f->num_rows, f->x_distance,
                     (uint32_t)tile->rows, &args.x));
    MST_TRY(describe(cuda, f->dtype, f->weights, f->in_features, f->out_features,
                     mst_cuda_linear_distance(f->in_features, f->dtype), (uint32_t)tile->columns,
                     &args.weights));
    const int64_t blocks = blocks_of(f->num_rows, f->out_features, args.sharing);
    const bool few = mst_cuda_fused_is_few(args.sharing);
    const mst_cuda_kernel *kernel = mst_cuda_linear_kernel_of(f->dtype, few);
    /* Blocks that begin early would be packed on what multiprocessors are free, two on each. */
    mst_cuda_grid grid = {.x = few ? blocks : mst_min_i64(blocks, cuda->multiprocessors),
                          .y = 1,
                          .threads = kernel->threads,
                          .alone = few && blocks <= cuda->multiprocessors};
    return mst_cuda_launch(cuda, kernel, grid, stream, &args);
}
