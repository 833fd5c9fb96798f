/* attn_hopper.cu - the attention kernels of tall tiles for Hopper, from cuda_attn_tall.def. Compiled
 * for sm_90a alone, without contraction of products and sums. */
#include "cuda/attn_hopper.cuh"

#define MST_ATTN_TALL(HD, GROUPS, STAGES)                                                        \
    MST_HOPPER_KERNEL(mst_attn_bf16_hd##HD##_g##GROUPS##n64s##STAGES##_sm90, bf16, HD, GROUPS,   \
                      STAGES)                                                                    \
    MST_HOPPER_KERNEL(mst_attn_f16_hd##HD##_g##GROUPS##n64s##STAGES##_sm90, f16, HD, GROUPS, STAGES)
#include "cuda/cuda_attn_tall.def"
