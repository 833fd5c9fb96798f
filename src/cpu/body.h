/* body.h - functions that every body defines for its ISA level; see kernels.h for what they do. */
#ifndef MST_CPU_BODY_H
#define MST_CPU_BODY_H

#include "cpu/kernels.h"
#include "cpu/simd/simd.h"

size_t MST_FOR_ISA(mst_attn_scratch_bytes)(const mst_attn_shape *shape);
mst_attn_tile MST_FOR_ISA(mst_attn_tile_choose)(const mst_attn_shape *shape, int64_t lq,
                                                int64_t lk);
void MST_FOR_ISA(mst_attn_items_run)(const mst_attn_call *call, const mst_attn_item *items,
                                     int64_t num_items, const mst_attn_item *next, void *scratch);

size_t MST_FOR_ISA(mst_linear_packed_bytes)(const mst_linear_shape *shape);
void MST_FOR_ISA(mst_linear_pack)(const mst_linear_shape *shape, const mstar_tensor *weight,
                                  int64_t first_row, void *packed, int64_t panel_begin,
                                  int64_t panel_end);
void MST_FOR_ISA(mst_linear_block)(const mst_linear_work *work, int64_t row_begin, int64_t row_end,
                                   int64_t panel_begin, int64_t panel_end);

#if defined(MST_ISA_AVX512BF16)
size_t MST_FOR_ISA(mst_linear_bf16_packed_bytes)(const mst_linear_shape *shape);
void MST_FOR_ISA(mst_linear_bf16_pack)(const mst_linear_shape *shape, const mstar_tensor *weight,
                                       int64_t first_row, void *packed, int64_t panel_begin,
                                       int64_t panel_end);
void MST_FOR_ISA(mst_linear_bf16_block)(const mst_linear_work *work, int64_t row_begin,
                                        int64_t row_end, int64_t panel_begin, int64_t panel_end);
#endif

void MST_FOR_ISA(mst_layer_norm_row)(int64_t width, mst_rows x, mst_rows residual,
                                     const float *weight, const float *bias, float eps,
                                     mst_rows out, int64_t row);
void MST_FOR_ISA(mst_rms_norm_row)(int64_t width, mst_rows x, mst_rows residual,
                                   const float *weight, float eps, mst_rows out, int64_t row);
void MST_FOR_ISA(mst_activation_row)(int64_t width, mstar_activation activation, mst_rows x,
                                     mst_rows out, int64_t row);
void MST_FOR_ISA(mst_embedding_row)(int64_t width, const mst_rows *tables,
                                    const int32_t *const *ids, int32_t num_tables, mst_rows out,
                                    int64_t row);
void MST_FOR_ISA(mst_pooling_segment)(mstar_pooling pooling, int64_t width, mst_rows x,
                                      int64_t row_begin, int64_t row_end, int64_t skipped,
                                      mst_rows out, int64_t segment);
void MST_FOR_ISA(mst_normalize_row)(int64_t width, mst_rows x, mst_rows out, int64_t row);
void MST_FOR_ISA(mst_rotary_row)(int32_t num_heads, int32_t head_dim, mst_rows x,
                                 int64_t x_head_stride, int32_t position, double theta,
                                 int32_t rotary_dim, bool interleaved, mst_rows out,
                                 int64_t out_head_stride, int64_t row);

#endif
