/*
 * support_mock_launch.h - one launch over the mock driver: what it carries, what must be right
 * about it, and carrying it out.
 */
#ifndef SUPPORT_MOCK_LAUNCH_H
#define SUPPORT_MOCK_LAUNCH_H

#include "cuda/linear_args.h"
#include "cuda/row_args.h"
#include "support_mock_cuda.h"

/* With a copy of its arguments. */
typedef struct mock_launch {
    const mst_cuda_kernel *kernel; /* NULL: a call */
    mock_call_function *call;
    unsigned grid_x, grid_y, threads;
    union {
        mst_cuda_attn_args attn;
        mst_cuda_hopper_args hopper;
        mst_cuda_row_args rows;
        mst_cuda_linear_args linear;
        unsigned char call[MOCK_CALL_BYTES];
    } args;
} mock_launch;

/* Of a kernel's one argument. */
size_t mock_args_bytes(const mst_cuda_kernel *kernel);
/* A fault where the size is not the kernel's, or more is asked for than it and the card have. */
void mock_check_launch(const mst_cuda_launch_config *config, const mst_cuda_kernel *kernel);
/* Of a kernel, on the installed mock; 0. */
int mock_run_kernel(const mock_launch *launch);

#endif
