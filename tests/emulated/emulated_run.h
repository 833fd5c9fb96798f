/* emulated_run.h - between the emulated machine and the kernels compiled over it. */
#ifndef EMULATED_RUN_H
#define EMULATED_RUN_H

#include <cstddef>

#include "cuda/attn_args.h"

typedef void emulated_kernel(const mst_cuda_attn_args &args, char *shared);
const char *emulated_run(emulated_kernel *symbol, const mst_cuda_attn_args *args, unsigned grid,
                         size_t shared_bytes, unsigned seed);

#endif
