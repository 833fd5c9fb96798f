/*
 * linear_args.h - what a launch of our own product reads: plain C, shared by the host and the
 * kernel.
 */
#ifndef MST_CUDA_LINEAR_ARGS_H
#define MST_CUDA_LINEAR_ARGS_H

#include <stdint.h>

#include "cuda/tensor_map.h"

/*
 * How the work is shared: rows and columns of a block's tile. Each of its two groups of four warps
 * has half of the rows, or of the columns where there are 64 rows; PING: every second tile. Bits do
 * not depend on it. Where there are few tiles, from FIRST_FEW on, a kernel of its own takes one for
 * each block.
 */
#define MST_CUDA_LINEAR_MANY(X) \
    X(PING, 128, 128)           \
    X(WIDE, 128, 128)
#define MST_CUDA_LINEAR_FEW(X) \
    X(MIDDLE, 128, 72)         \
    X(SMALL, 64, 64)
#define MST_CUDA_LINEAR_SHARINGS(X) MST_CUDA_LINEAR_MANY(X) MST_CUDA_LINEAR_FEW(X)
enum {
#define MST_CUDA_LINEAR_NAME(NAME, ROWS, COLUMNS) MST_CUDA_LINEAR_##NAME,
    MST_CUDA_LINEAR_SHARINGS(MST_CUDA_LINEAR_NAME)
#undef MST_CUDA_LINEAR_NAME
        MST_CUDA_LINEAR_NUM_SHARINGS,
    MST_CUDA_LINEAR_FIRST_FEW = MST_CUDA_LINEAR_MIDDLE
};

/* Elements of a step over the depth; threads. */
enum {
    MST_CUDA_LINEAR_DEPTH = 64,
    MST_CUDA_LINEAR_THREADS = 384,
    MST_CUDA_LINEAR_FEW_THREADS = 288
};
/* Of shared memory: steps that are fetched ahead, then a tile of 64 x 128 in f32 for each of the
 * two groups, then barriers; and up to 1023 bytes before all that. */
enum {
    MST_CUDA_LINEAR_RING_BYTES = 160 * 1024,
    MST_CUDA_LINEAR_STAGED_BYTES = 2 * 64 * 128 * 4,
    MST_CUDA_LINEAR_MAX_STAGES = 7,
    MST_CUDA_LINEAR_SHARED = 1024 + MST_CUDA_LINEAR_RING_BYTES + MST_CUDA_LINEAR_STAGED_BYTES +
                             (2 * MST_CUDA_LINEAR_MAX_STAGES + 2) * 8
};
/* Where a block has one tile: the ring, where the tile is staged after it, then barriers and the
 * tile's bias. */
enum {
    MST_CUDA_LINEAR_FEW_RING_BYTES = 112 * 1024,
    MST_CUDA_LINEAR_FEW_COLUMNS = 72, /* of a tile at most */
    MST_CUDA_LINEAR_FEW_SHARED = MST_CUDA_LINEAR_FEW_RING_BYTES +
                                 2 * MST_CUDA_LINEAR_MAX_STAGES * 8 +
                                 MST_CUDA_LINEAR_FEW_COLUMNS * 4
};

/* Elements of a matrix, as the kernel names them. */
enum { MST_CUDA_LINEAR_F32, MST_CUDA_LINEAR_HALF /* the kernel's own 16-bit dtype */ };

typedef struct mst_cuda_linear_args {
    mst_cuda_tensor_map x, weights; /* boxes of DEPTH elements of a tile's rows, or columns */
    const int64_t *live;            /* device memory: rows to do now; NULL: num_rows */
    int64_t num_rows, out_features, in_features;
    const float *bias;    /* padded with zeros to a multiple of 4 */
    const void *residual; /* NULL: none */
    void *out;            /* on 16 bytes, as is every row */
    int64_t residual_stride, out_stride;
    int32_t residual_type, out_type;
    int32_t residual_vector; /* every fourth element lies where four are read at once */
    int32_t activation;      /* an mstar_activation */
    int32_t sharing;         /* of the work, as above */
} mst_cuda_linear_args;

#endif
