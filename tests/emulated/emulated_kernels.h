/* emulated_kernels.h - the attention kernels on the host, for C: see emulated_gpu.h. */
#ifndef EMULATED_KERNELS_H
#define EMULATED_KERNELS_H

#include <stddef.h>

#include "cuda/attn_args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs every block of the grid, in an order drawn from the seed. NULL, or what is wrong; static. */
const char *emulated_launch(const char *symbol, const mst_cuda_attn_args *args, unsigned grid,
                            size_t shared_bytes, unsigned seed);

#ifdef __cplusplus
}
#endif

#endif
