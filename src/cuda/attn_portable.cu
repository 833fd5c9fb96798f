/*
 * attn_portable.cu - the attention kernels of one head dim, MST_ATTN_HD, from cuda_attn.def.
 * Compiled once a head dim, without contraction of products and sums.
 */
#include "cuda/attn_tile.cuh"

#define MST_ATTN(HD, BN, MT, STAGES, BLOCKS)                                                       \
    MST_ATTN_KERNEL(mst_attn_bf16_hd##HD##_m##MT##n##BN##s##STAGES##_sm80, bf16, HD, BN, MT,       \
                    STAGES, BLOCKS, false)                                                         \
    MST_ATTN_KERNEL(mst_attn_f16_hd##HD##_m##MT##n##BN##s##STAGES##_sm80, f16, HD, BN, MT, STAGES, \
                    BLOCKS, false)
#include "cuda/cuda_attn.def"
