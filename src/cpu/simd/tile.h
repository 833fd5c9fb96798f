/*
 * tile.h - the one register tile behind products and attention:
 *
 *   c[r][j] += sum over i in [0, depth) of a(r, i) * b[i * b_stride + j]
 *
 * for up to VF_ROWS rows and one or two vectors of columns, where a(r, i) is a[r * a_stride + i]
 * (MST_TILE_ROWS) or a[i * a_stride + r] (MST_TILE_COLUMNS). Each element is one chain of fused
 * multiply-adds over i from 0 up (of pairs of bf16 with MST_TILE_PAIRS, where an element of a and b
 * is a pair and depth counts pairs), whatever the tile's height or width: cutting rows, columns or
 * depth differently never changes a bit. c lives in memory (L1) between calls.
 */
#ifndef MST_SIMD_TILE_H
#define MST_SIMD_TILE_H

#include "cpu/simd/simd.h"

#define MST_TILE_ROWS 0
#define MST_TILE_COLUMNS 1
#define MST_TILE_PAIRS 2
/* Asks for one line of t->fetch at each step: what the next tiles will read, while this one runs.
 */
#define MST_TILE_FETCH 4

typedef struct mst_tile_args {
    const float *a;
    int64_t a_stride;
    const float *b;
    int64_t b_stride;
    int64_t depth;
    float *c;
    int64_t c_stride;
    bool fresh; /* start from 0 instead of c */
    const char *fetch;
} mst_tile_args;

/* rows and vectors are constants at every call, so the loops unroll and acc stays in registers. */
static inline __attribute__((always_inline)) void
mst_tile_body(const mst_tile_args *t, const int rows, const int vectors, const int order)
{
    vf acc[VF_ROWS][2];
    const float *a = t->a;
    const float *b = t->b;
    const int64_t a_stride = t->a_stride;
    const int64_t b_stride = t->b_stride;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            acc[r][v] = vf_zero();
    }
    if (!t->fresh) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                acc[r][v] = vf_load(t->c + r * t->c_stride + v * VF_LANES);
        }
    }
    for (int64_t i = 0; i < t->depth; i++) {
        vf bv[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            bv[v] = vf_load(b + v * VF_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf x = vf_set1(order & MST_TILE_COLUMNS ? a[r] : a[r * a_stride]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                acc[r][v] = order & MST_TILE_PAIRS ? vf_dot_pairs(x, bv[v], acc[r][v])
                                                   : vf_fma(x, bv[v], acc[r][v]);
        }
        if (order & MST_TILE_FETCH)
            __builtin_prefetch(t->fetch + i * MST_CACHE_LINE, 0, 2);
        a += order & MST_TILE_COLUMNS ? a_stride : 1;
        b += b_stride;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            vf_store(t->c + r * t->c_stride + v * VF_LANES, acc[r][v]);
    }
}

#define MST_TILE_CASE(n)                                      \
    case n:                                                   \
        if (vectors == 2)                                     \
            mst_tile_body(t, n <= VF_ROWS ? n : 1, 2, order); \
        else                                                  \
            mst_tile_body(t, n <= VF_ROWS ? n : 1, 1, order); \
        break;

/* 1 <= rows <= VF_ROWS, vectors 1 or 2. */
static inline __attribute__((always_inline)) void mst_tile_switch(const mst_tile_args *t, int rows,
                                                                  int vectors, const int order)
{
    switch (rows) {
        MST_TILE_CASE(1)
        MST_TILE_CASE(2)
        MST_TILE_CASE(3)
        MST_TILE_CASE(4)
#if VF_ROWS > 4
        MST_TILE_CASE(5)
        MST_TILE_CASE(6)
#endif
#if VF_ROWS > 6
        MST_TILE_CASE(7)
        MST_TILE_CASE(8)
        MST_TILE_CASE(9)
        MST_TILE_CASE(10)
        MST_TILE_CASE(11)
        MST_TILE_CASE(12)
#endif
#if VF_ROWS > 12
        MST_TILE_CASE(13)
        MST_TILE_CASE(14)
#endif
    default:
        break;
    }
}

static MST_UNUSED void mst_tile_by_rows(const mst_tile_args *t, int rows, int vectors)
{
    mst_tile_switch(t, rows, vectors, MST_TILE_ROWS);
}

static MST_UNUSED void mst_tile_by_rows_fetching(const mst_tile_args *t, int rows, int vectors)
{
    mst_tile_switch(t, rows, vectors, MST_TILE_ROWS | MST_TILE_FETCH);
}

static MST_UNUSED void mst_tile_by_columns(const mst_tile_args *t, int rows, int vectors)
{
    mst_tile_switch(t, rows, vectors, MST_TILE_COLUMNS);
}

#if VF_PAIRS
static MST_UNUSED void mst_pair_tile_by_rows(const mst_tile_args *t, int rows, int vectors)
{
    mst_tile_switch(t, rows, vectors, MST_TILE_ROWS | MST_TILE_PAIRS);
}

static MST_UNUSED void mst_pair_tile_by_columns(const mst_tile_args *t, int rows, int vectors)
{
    mst_tile_switch(t, rows, vectors, MST_TILE_COLUMNS | MST_TILE_PAIRS);
}
#else
#define mst_pair_tile_by_rows mst_tile_by_rows
#define mst_pair_tile_by_columns mst_tile_by_columns
#endif

/* Height of the next tile when `left` rows are left: full tiles, the last two evened out. */
static inline int mst_tile_rows(int64_t left)
{
    if (left <= VF_ROWS)
        return (int)left;
    if (left < 2 * VF_ROWS)
        return (int)((left + 1) / 2);
    return VF_ROWS;
}

/*
 * c[rows][columns] (+)= a b; columns a multiple of VF_LANES. What is read from afar stays near for
 * the tiles that share it: rows of a for all columns, or columns of b for all rows.
 */
static MST_UNUSED void mst_tile_all(mst_tile_args whole, int order, int64_t rows, int64_t columns)
{
    static void (*const tiles[])(const mst_tile_args *, int, int) = {
        [MST_TILE_ROWS] = mst_tile_by_rows,
        [MST_TILE_COLUMNS] = mst_tile_by_columns,
        [MST_TILE_ROWS | MST_TILE_PAIRS] = mst_pair_tile_by_rows,
        [MST_TILE_COLUMNS | MST_TILE_PAIRS] = mst_pair_tile_by_columns,
    };
    bool by_columns = order & MST_TILE_COLUMNS;
    int64_t row_step = by_columns ? 1 : whole.a_stride;
    for (int64_t r = 0, j = 0; r < rows && j < columns;) {
        int height = mst_tile_rows(rows - r);
        int vectors = columns - j >= 2 * VF_LANES ? 2 : 1;
        mst_tile_args t = whole;
        t.a += r * row_step;
        t.b += j;
        t.c += r * whole.c_stride + j;
        tiles[order](&t, height, vectors);
        int64_t next_r = r + height;
        int64_t next_j = j + 2 * VF_LANES;
        if (by_columns) {
            r = next_r < rows ? next_r : 0;
            j = next_r < rows ? j : next_j;
        } else {
            j = next_j < columns ? next_j : 0;
            r = next_j < columns ? r : next_r;
        }
    }
}

#endif
