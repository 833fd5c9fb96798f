/*
 * attn_group.cu - the attention kernels of cuda_attn_group.def, in one image for sm_90a. Compiled
 * without contraction of products and sums.
 */
#include "cuda/attn_tile.cuh"

#define MST_ATTN_GROUP(HD, BN, STAGES, BLOCKS) \
    MST_ATTN_KERNEL(mst_attn_bf16_hd##HD##_m1n##BN##s##STAGES##_sm90, bf16, HD, BN, 1, STAGES, \
                    BLOCKS, true) \
    MST_ATTN_KERNEL(mst_attn_f16_hd##HD##_m1n##BN##s##STAGES##_sm90, f16, HD, BN, 1, STAGES, \
                    BLOCKS, true)
#define MST_ATTN_BULK(HD, BN, STAGES, BLOCKS) \
    MST_ATTN_BULK_KERNEL(mst_attn_bf16_hd##HD##_c1n##BN##s##STAGES##_sm90, bf16, HD, BN, STAGES, \
                         BLOCKS) \
    MST_ATTN_BULK_KERNEL(mst_attn_f16_hd##HD##_c1n##BN##s##STAGES##_sm90, f16, HD, BN, STAGES, \
                         BLOCKS)
#include "cuda/cuda_attn_group.def"
