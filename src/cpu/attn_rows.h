/*
 * attn_rows.h - rows of q, k and v on their way into attention: queries transposed, keys and values
 * read where they lie or copied, values that a row must not see made zeros.
 */
#ifndef MST_ATTN_ROWS_H
#define MST_ATTN_ROWS_H

#include "cpu/attn_pack.h"

/* Columns [d, d + n) of VF_LANES rows, transposed, to qt from lane r on. */
static inline __attribute__((always_inline)) void
transpose_block(const attn_tile *t, const mstar_dtype dtype, const bool pairs, const int64_t *at,
                int64_t r, int64_t d, const int n)
{
    const void *q = t->call->q;
    float *to = t->scratch->qt + r;
    vf block[VF_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < VF_LANES; i++)
        block[i] = vf_load_any_n(q, dtype, at[i] + d, n);
    vf_transpose(block);
    if (pairs) {
#pragma GCC unroll 8
        for (int i = 0; i < n; i += 2)
            vf_store(to + (d + i) / 2 * PACK_LANES,
                     vf_pack_pairs(block[i], i + 1 < VF_LANES ? block[i + 1] : vf_zero()));
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            vf_store(to + (d + i) * PACK_LANES, block[i]);
    }
}

/* qt[d][r] = Q[r][d] for all rows of a pack; lanes past them repeat the last. */
static inline __attribute__((always_inline)) void
transpose_queries(const attn_pack *pack, const mstar_dtype dtype, const bool pairs)
{
    const attn_tile *t = &pack->tile[0];
    int64_t dim = t->call->shape->head_dim;
    for (int64_t r = 0; r < pack->rows; r += VF_LANES) {
        const int64_t *at = pack->q_at + r;
        int64_t d = 0;
        for (; d + VF_LANES <= dim; d += VF_LANES)
            transpose_block(t, dtype, pairs, at, r, d, VF_LANES);
        if (d < dim)
            transpose_block(t, dtype, pairs, at, r, d, (int)(dim - d));
    }
}

/* The same with the dtype chosen once, outside the loops. Tiles find zeros past D. */
static void load_queries(const attn_pack *pack)
{
    const attn_tile *t = &pack->tile[0];
    for (int64_t d = mst_ceil_div(t->call->shape->head_dim, 2); t->tiles && d % 16 != 0; d++)
        memset(t->scratch->qt + d * PACK_LANES, 0, PACK_LANES * sizeof(float));
    switch (t->call->shape->dtype) {
    case MSTAR_DTYPE_BF16:
        transpose_queries(pack, MSTAR_DTYPE_BF16, VF_PAIRS);
        break;
    case MSTAR_DTYPE_F16:
        transpose_queries(pack, MSTAR_DTYPE_F16, false);
        break;
    default:
        transpose_queries(pack, MSTAR_DTYPE_F32, false);
        break;
    }
}

/* Rows of `dim` elements, `step` apart, as f32 in whole vectors; zeros past dim. */
static inline __attribute__((always_inline)) void widen_rows(const void *data,
                                                             const mstar_dtype dtype, int64_t at,
                                                             int64_t step, int64_t rows,
                                                             int64_t dim, float *to, int64_t stride)
{
    int64_t whole = dim / VF_LANES * VF_LANES;
    for (int64_t j = 0; j < rows; j++, at += step, to += stride) {
        int64_t d = 0;
        for (; d < whole; d += VF_LANES)
            vf_store(to + d, vf_load_any_n(data, dtype, at + d, VF_LANES));
        if (d < dim)
            vf_store(to + d, vf_load_any_n(data, dtype, at + d, (int)(dim - d)));
    }
}

/* The same with the dtype chosen once, outside the loops. */
static void load_rows(const attn_tile *t, const void *data, int64_t at, int64_t step, int64_t rows,
                      float *to)
{
    int64_t dim = t->call->shape->head_dim;
    switch (t->call->shape->dtype) {
    case MSTAR_DTYPE_BF16:
        widen_rows(data, MSTAR_DTYPE_BF16, at, step, rows, dim, to, t->stride);
        break;
    case MSTAR_DTYPE_F16:
        widen_rows(data, MSTAR_DTYPE_F16, at, step, rows, dim, to, t->stride);
        break;
    default:
        widen_rows(data, MSTAR_DTYPE_F32, at, step, rows, dim, to, t->stride);
        break;
    }
}

/* Where key `first` of the tile's head begins in k, and its value in v. */
static int64_t row_of_keys(const attn_tile *t, int64_t first)
{
    return (t->k_first + first) * t->call->k_row_stride + t->kv_head * t->call->k_head_stride;
}
static int64_t row_of_values(const attn_tile *t, int64_t first)
{
    return (t->k_first + first) * t->call->v_row_stride + t->kv_head * t->call->v_head_stride;
}

/* Rows a multiple of this apart fall into one set of the first cache. */
#define SET_BYTES 4096

/*
 * f32 is read where it lies: the second cache gives a block's rows faster than a copy is written
 * beside all else that the first one holds. Rows of one set push each other out, so that they are
 * copied where they are read more than twice. Values are read in whole vectors. The order of sums
 * is the same.
 */
static bool keys_serve_in_place(const attn_tile *t)
{
    const mst_attn_call *call = t->call;
    return call->shape->dtype == MSTAR_DTYPE_F32 &&
           call->k_row_stride * (int64_t)sizeof(float) % SET_BYTES != 0;
}
static bool values_serve_in_place(const attn_tile *t)
{
    const mst_attn_call *call = t->call;
    return call->shape->dtype == MSTAR_DTYPE_F32 && call->shape->head_dim % VF_LANES == 0 &&
           (t->rows <= 2 * VF_ROWS || call->v_row_stride * (int64_t)sizeof(float) % SET_BYTES != 0);
}

/* Keys [from, from + n) of the block at `first`, to their places in scratch: f32 in whole vectors,
 * or bf16 pairs along D; zeros past D. */
static void load_keys(const attn_tile *t, int64_t first, int64_t from, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    int64_t at = row_of_keys(t, first + from);
    float *keys = t->scratch->k + from * t->stride;
    if (!t->pairs) {
        load_rows(t, call->k, at, call->k_row_stride, n, keys);
        return;
    }
    int64_t whole = t->tiles ? mst_round_up(dim, 32) : mst_round_up(dim, 2);
    for (int64_t j = 0; j < n; j++, at += call->k_row_stride) {
        uint16_t *to = (uint16_t *)(void *)(keys + j * t->stride);
        memcpy(to, (const uint16_t *)call->k + at, (size_t)dim * sizeof *to);
        memset(to + dim, 0, (size_t)(whole - dim) * sizeof *to);
    }
}

/* Rows j and j + 1 of V as pairs, for all even j below n; the row past an odd n is zeros, and for
 * tiles all pairs up to a whole tile. */
static void load_value_pairs(const attn_tile *t, int64_t at, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    for (int64_t j = 0; j < n; j += 2, at += 2 * call->v_row_stride) {
        float *to = t->scratch->v + j / 2 * t->stride;
        for (int64_t d = 0; d < dim; d += VF_LANES) {
            int lanes = vf_left(dim, d);
            vf x = vf_load_any_n(call->v, MSTAR_DTYPE_BF16, at + d, lanes);
            vf y = j + 1 < n ? vf_load_any_n(call->v, MSTAR_DTYPE_BF16, at + call->v_row_stride + d,
                                             lanes)
                             : vf_zero();
            vf_store(to + d, vf_pack_pairs(x, y));
        }
    }
    for (int64_t j = mst_ceil_div(n, 2); t->tiles && j % 16 != 0; j++)
        memset(t->scratch->v + j * t->stride, 0, (size_t)t->width * sizeof(float));
}

/* n values from first on: f32, or bf16 pairs along keys; zeros past D. */
static void load_values(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t at = row_of_values(t, first);
    if (t->pairs)
        load_value_pairs(t, at, n);
    else
        load_rows(t, call->v, at, call->v_row_stride, n, t->scratch->v);
}

/* Whether the n values from first on are all finite. */
static bool values_are_finite(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    int64_t at = row_of_values(t, first);
    vf sum = vf_zero();
    for (int64_t j = 0; j < n; j++, at += call->v_row_stride) {
        for (int64_t d = 0; d < dim; d += VF_LANES)
            sum = vf_fma(vf_load_any_n(call->v, call->shape->dtype, at + d, vf_left(dim, d)),
                         vf_zero(), sum);
    }
    return vf_sum(sum) == 0.0f;
}

/* Makes the loaded values outside [low, high) zeros: whole rows, or halves of pairs. */
static void hide_values(const attn_tile *t, int64_t n, int64_t low, int64_t high)
{
    for (int64_t j = 0; j < n; j++) {
        if (j >= low && j < high)
            continue;
        if (t->pairs) {
            uint16_t *half = (uint16_t *)(void *)(t->scratch->v + j / 2 * t->stride) + j % 2;
            for (int64_t d = 0; d < t->width; d++)
                half[2 * d] = 0;
        } else {
            memset(t->scratch->v + j * t->stride, 0, (size_t)t->width * sizeof(float));
        }
    }
}

#endif
