/*
 * kernels.h - the table of kernels of one ISA level, and what the bodies share.
 *
 * Each src/cpu/body_*.c is compiled once for every ISA level, with MST_ISA naming it; body_table.c
 * gathers a level's functions into one table, and dispatch.c picks a table once for a device.
 */
#ifndef MST_CPU_KERNELS_H
#define MST_CPU_KERNELS_H

#include "device/backend.h"

#define MST_JOIN_(a, b) a##_##b
#define MST_JOIN(a, b) MST_JOIN_(a, b)
/* MST_FOR_ISA(mst_attn_item) is mst_attn_item_avx2 in the avx2 build of a body. */
#define MST_FOR_ISA(name) MST_JOIN(name, MST_ISA)

/*
 * ISA levels of this architecture in rising order, each holding what is below it:
 * X(LEVEL, level, more) for each, `more` being handed on. Levels of other architectures have no
 * name here: to ask for one is a mistake, not a limit.
 */
#if defined(__x86_64__)
#define MST_FOR_EACH_ISA(X, more) \
    X(SCALAR, scalar, more)       \
    X(AVX2, avx2, more)           \
    X(AVX512, avx512, more) X(AVX512BF16, avx512bf16, more) X(AMX, amx, more)
#elif defined(__aarch64__)
#define MST_FOR_EACH_ISA(X, more) X(SCALAR, scalar, more) X(NEON, neon, more)
#else
#define MST_FOR_EACH_ISA(X, more) X(SCALAR, scalar, more)
#endif

/* Rows x keys x kv heads of an item of attention that is worth its start; several heads share an
 * item while it stays below. */
#define MST_ATTN_ITEM_WORK 49152

typedef struct mst_linear_work {
    const mst_linear_shape *shape;
    const void *packed;
    const float *bias;
    mst_rows x, residual, out;
} mst_linear_work;

typedef struct mst_linear_kernels {
    size_t (*packed_bytes)(const mst_linear_shape *shape);
    /* Columns of panels [panel_begin, panel_end) that come from this part, whose first row is
       column first_row; columns past out_features become 0. */
    void (*pack)(const mst_linear_shape *shape, const mstar_tensor *weight, int64_t first_row,
                 void *packed, int64_t panel_begin, int64_t panel_end);
    /* Rows [row_begin, row_end) of panels [panel_begin, panel_end). */
    void (*block)(const mst_linear_work *work, int64_t row_begin, int64_t row_end,
                  int64_t panel_begin, int64_t panel_end);
} mst_linear_kernels;

typedef struct mst_kernels {
    const char *isa;
    bool pairs; /* bf16 is multiplied in pairs, x rounded to bf16 */

    size_t (*attn_scratch_bytes)(const mst_attn_shape *shape); /* of one thread */
    mst_attn_tile (*attn_tile)(const mst_attn_shape *shape, int64_t lq, int64_t lk);
    /* Items that follow each other in a list. next: what this thread will run after, to be asked
       for meanwhile; NULL when not known. */
    void (*attn_items)(const mst_attn_call *call, const mst_attn_item *items, int64_t num_items,
                       const mst_attn_item *next, void *scratch);

    int64_t linear_panel;                       /* columns of a panel */
    int64_t linear_tile;                        /* rows of a full register tile */
    mst_linear_kernels linear_f32, linear_bf16; /* by the panels' dtype */

    void (*layer_norm_row)(int64_t width, mst_rows x, mst_rows residual, const float *weight,
                           const float *bias, float eps, mst_rows out, int64_t row);
    void (*rms_norm_row)(int64_t width, mst_rows x, mst_rows residual, const float *weight,
                         float eps, mst_rows out, int64_t row);
    void (*activation_row)(int64_t width, mstar_activation activation, mst_rows x, mst_rows out,
                           int64_t row);
    void (*embedding_row)(int64_t width, const mst_rows *tables, const int32_t *const *ids,
                          int32_t num_tables, mst_rows out, int64_t row);
    void (*pooling_segment)(mstar_pooling pooling, int64_t width, mst_rows x, int64_t row_begin,
                            int64_t row_end, int64_t skipped, mst_rows out, int64_t segment);
    void (*normalize_row)(int64_t width, mst_rows x, mst_rows out, int64_t row);
    void (*rotary_row)(int32_t num_heads, int32_t head_dim, mst_rows x, int64_t x_head_stride,
                       int32_t position, double theta, int32_t rotary_dim, bool interleaved,
                       mst_rows out, int64_t out_head_stride, int64_t row);
} mst_kernels;

static inline const mst_linear_kernels *mst_linear_of(const mst_kernels *kernels,
                                                      const mst_linear_shape *shape)
{
    return shape->weight_dtype == MSTAR_DTYPE_BF16 ? &kernels->linear_bf16 : &kernels->linear_f32;
}

#define MST_DECLARE_KERNELS(LEVEL, level, unused) extern const mst_kernels mst_kernels_##level;
MST_FOR_EACH_ISA(MST_DECLARE_KERNELS, _)
#undef MST_DECLARE_KERNELS

#endif
