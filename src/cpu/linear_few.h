/*
 * linear_few.h - few rows of a product against several panels at once: shared by the bodies of all
 * weight dtypes.
 *
 * Below a full register tile a panel alone has too few chains to hide the latency of a
 * multiply-add. An element's chain is the same as in tile.h, so its bits are too.
 */
#ifndef MST_LINEAR_FEW_H
#define MST_LINEAR_FEW_H

#include "cpu/simd/simd.h"

#define MST_LINEAR_PANEL (2 * VF_LANES)

/* Rows up to MST_TWO_ROWS take MST_TWO_PANELS at once, up to MST_PAIR_ROWS a pair of them. */
#define MST_TWO_ROWS 2
#if defined(MST_ISA_AVX2)
#define MST_TWO_PANELS 3 /* 12 sums of two rows fit 16 registers, */
#define MST_PAIR_ROWS 3  /* and so do those of three rows and a pair of panels */
#else
#define MST_TWO_PANELS 4
#define MST_PAIR_ROWS (VF_ROWS / 2 < 6 ? VF_ROWS / 2 : 6)
#endif
#define MST_FEW_ROWS (MST_PAIR_ROWS > MST_TWO_ROWS ? MST_PAIR_ROWS : MST_TWO_ROWS)
_Static_assert(2 * MST_PAIR_ROWS <= VF_ROWS, "a pair of panels has no more sums than a full tile");

/* Sums of the largest tile, whatever its form. */
#define MST_LINEAR_SUMS                                                                    \
    ((VF_ROWS > MST_TWO_ROWS * MST_TWO_PANELS ? VF_ROWS : MST_TWO_ROWS * MST_TWO_PANELS) * \
     MST_LINEAR_PANEL)

/* What panels hold: f32; bf16, widened on the way in; pairs of bf16 along the depth, which x holds
 * as well. */
#define MST_FEW_F32 0
#define MST_FEW_WIDENED 1
#define MST_FEW_PAIRS 2

typedef struct mst_few_args {
    const float *a;
    int64_t a_stride;
    const void *packed;     /* of the first panel, from the step of depth that a is at */
    int64_t panel_elements; /* from one panel to the next; a pair is one element */
    int64_t depth;
    float *c; /* [rows][mst_few_panels(rows) * MST_LINEAR_PANEL] */
    bool fresh;
} mst_few_args;

/* Panels that a tile of this many rows takes at once. */
static inline int mst_few_panels(int64_t rows)
{
    return rows <= MST_TWO_ROWS ? MST_TWO_PANELS : rows <= MST_PAIR_ROWS ? 2 : 1;
}

static inline __attribute__((always_inline)) void
mst_few_body(const mst_few_args *few, const int rows, const int panels, const int kind)
{
    vf acc[MST_FEW_ROWS][2 * MST_TWO_PANELS];
    const float *a = few->a;
    const int64_t width = panels * MST_LINEAR_PANEL;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < 2 * panels; v++)
            acc[r][v] = few->fresh ? vf_zero() : vf_load(few->c + r * width + v * VF_LANES);
    }
    for (int64_t i = 0; i < few->depth; i++) {
        vf b[2 * MST_TWO_PANELS];
#pragma GCC unroll 8
        for (int v = 0; v < 2 * panels; v++) {
            int64_t at = (v / 2) * few->panel_elements + i * MST_LINEAR_PANEL + (v % 2) * VF_LANES;
            b[v] = kind == MST_FEW_WIDENED ? vf_load_bf16((const uint16_t *)few->packed + at)
                                           : vf_load((const float *)few->packed + at);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf x = vf_set1(a[r * few->a_stride + i]);
#pragma GCC unroll 8
            for (int v = 0; v < 2 * panels; v++)
                acc[r][v] = kind == MST_FEW_PAIRS ? vf_dot_pairs(x, b[v], acc[r][v])
                                                  : vf_fma(x, b[v], acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < 2 * panels; v++)
            vf_store(few->c + r * width + v * VF_LANES, acc[r][v]);
    }
}

/* 1 <= rows <= MST_FEW_ROWS; kind is a constant at every call. */
static inline __attribute__((always_inline)) void mst_few_tile(const mst_few_args *few, int rows,
                                                               const int kind)
{
    switch (rows) {
    case 1:
        mst_few_body(few, 1, MST_TWO_PANELS, kind);
        break;
    case 2:
        mst_few_body(few, 2, MST_TWO_PANELS, kind);
        break;
#if VF_ROWS / 2 >= 3
    case 3:
        mst_few_body(few, 3, 2, kind);
        break;
#endif
#if VF_ROWS / 2 >= 6
    case 4:
        mst_few_body(few, 4, 2, kind);
        break;
    case 5:
        mst_few_body(few, 5, 2, kind);
        break;
    case 6:
        mst_few_body(few, 6, 2, kind);
        break;
#endif
    default:
        break;
    }
}

#endif
