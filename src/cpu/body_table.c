/* body_table.c - the kernels of one ISA level, gathered. */
#include "cpu/body.h"

#define MST_TEXT_(x) #x
#define MST_TEXT(x) MST_TEXT_(x)

const mst_kernels MST_FOR_ISA(mst_kernels) = {
    .isa = MST_TEXT(MST_ISA),
    .pairs = VF_PAIRS,
    .attn_scratch_bytes = MST_FOR_ISA(mst_attn_scratch_bytes),
    .attn_tile = MST_FOR_ISA(mst_attn_tile_choose),
    .attn_items = MST_FOR_ISA(mst_attn_items_run),
    .linear_panel = 2 * VF_LANES,
    .linear_tile = VF_ROWS,
    .linear_f32 = {MST_FOR_ISA(mst_linear_packed_bytes), MST_FOR_ISA(mst_linear_pack),
                   MST_FOR_ISA(mst_linear_block)},
#if defined(MST_ISA_AVX512BF16)
    .linear_bf16 = {MST_FOR_ISA(mst_linear_bf16_packed_bytes), MST_FOR_ISA(mst_linear_bf16_pack),
                    MST_FOR_ISA(mst_linear_bf16_block)},
#else
    .linear_bf16 = {MST_FOR_ISA(mst_linear_packed_bytes), MST_FOR_ISA(mst_linear_pack),
                    MST_FOR_ISA(mst_linear_block)},
#endif
    .layer_norm_row = MST_FOR_ISA(mst_layer_norm_row),
    .rms_norm_row = MST_FOR_ISA(mst_rms_norm_row),
    .activation_row = MST_FOR_ISA(mst_activation_row),
    .embedding_row = MST_FOR_ISA(mst_embedding_row),
    .pooling_segment = MST_FOR_ISA(mst_pooling_segment),
    .normalize_row = MST_FOR_ISA(mst_normalize_row),
    .rotary_row = MST_FOR_ISA(mst_rotary_row),
};
