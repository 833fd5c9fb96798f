/* tensor_map.h - the driver's description of a tensor in memory: plain C, shared by the host and
 * kernels. */
#ifndef MST_CUDA_TENSOR_MAP_H
#define MST_CUDA_TENSOR_MAP_H

#include <stdint.h>

/* What the copy engine reads. */
typedef struct __attribute__((aligned(64))) mst_cuda_tensor_map {
    uint64_t data[16];
} mst_cuda_tensor_map;

#endif
