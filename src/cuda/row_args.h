/*
 * row_args.h - what a launch of a row operation reads: plain C, shared by the host and kernels.
 *
 * One struct for all of them, as most of it is the rows. A team of threads does a row; how many
 * threads it has follows from the width alone, since it is part of the order of sums.
 */
#ifndef MST_CUDA_ROW_ARGS_H
#define MST_CUDA_ROW_ARGS_H

#include <stdint.h>

/* Elements of a row, as kernels name them. */
enum { MST_CUDA_F32, MST_CUDA_BF16, MST_CUDA_F16 };

typedef struct mst_cuda_rows {
    void *data; /* NULL: absent */
    int64_t row_stride;
    int32_t dtype;
    int32_t vector; /* every fourth element of a row lies where four are read at once */
} mst_cuda_rows;

enum { MST_CUDA_MAX_TABLES = 8 };
/* Threads of a team at most; of a pooling block: 32 lanes of four columns, 8 shares of the tokens.
 */
enum {
    MST_CUDA_MAX_TEAM = 512,
    MST_CUDA_POOL_LANES = 32,
    MST_CUDA_POOL_SHARES = 8,
    MST_CUDA_POOL_THREADS = 256
};
/* Groups of four elements that a thread keeps between the passes over a row; of a row of which it
 * reads all at once; rows that a team of a norm does together where there is one group less. */
enum { MST_CUDA_KEPT = 8, MST_CUDA_FEW = 4, MST_CUDA_TOGETHER = 2 };

typedef struct mst_cuda_row_args {
    const int64_t *live; /* device memory: rows to do now; NULL: num_rows */
    int64_t num_rows, width;
    int32_t team;     /* threads of a row */
    int32_t together; /* rows of a norm's team: 1 or MST_CUDA_TOGETHER */
    int32_t whole;    /* a norm may read MST_CUDA_FEW groups a thread, fours at once, and no more */
    int32_t activation; /* an mstar_activation */
    mst_cuda_rows x, residual, out;
    const float *weight, *bias; /* bias NULL: none */
    float eps;
    int32_t pooling;               /* an mstar_pooling */
    const int32_t *offsets, *skip; /* of segments; skip NULL: none */
    int32_t num_tables, num_heads;
    mst_cuda_rows tables[MST_CUDA_MAX_TABLES];
    const int32_t *ids[MST_CUDA_MAX_TABLES];
    const int32_t *positions;
    const double *frequencies; /* rotary_dim / 2 */
    int64_t x_head_stride, out_head_stride;
    int32_t head_dim, rotary_dim, interleaved;
} mst_cuda_row_args;

#endif
