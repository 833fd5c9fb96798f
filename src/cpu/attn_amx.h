/*
 * attn_amx.h - the two products of attention on tile registers, for bf16. At levels without them
 * the functions stand for themselves and are never reached.
 */
#ifndef MST_ATTN_AMX_H
#define MST_ATTN_AMX_H

#include "cpu/attn_rows.h"

#if AMX_TILES

/*
 * S^T = K Q^T, 32 keys by 32 queries at a time. Whole tiles of keys may lie anywhere, `keys` and
 * `key_bytes` apart; from key `copied` on they are in scratch.
 */
static void score_tiles(const attn_tile *t, const void *keys, size_t key_bytes, int64_t copied,
                        int64_t n)
{
    const size_t q_bytes = PACK_LANES * sizeof(float);
    int64_t steps = mst_ceil_div(t->call->shape->head_dim, 32);
    amx_after_stores();
    for (int64_t j = 0; j < n; j += 32) {
        bool two = j + 16 < n;
        const char *k[2];
        size_t k_bytes[2];
        for (int i = 0; i < 2; i++) {
            bool in_place = j + i * 16 < copied;
            k_bytes[i] = in_place ? key_bytes : (size_t)t->stride * sizeof(float);
            k[i] = (in_place ? (const char *)keys : (const char *)t->scratch->k) +
                   (size_t)(j + i * 16) * k_bytes[i];
        }
        for (int64_t r = 0; r < t->lanes; r += 32) {
            bool wide = r + 16 < t->lanes;
            const float *q = t->scratch->qt + t->lane + r;
            float *s = t->scratch->s + j * PACK_LANES + t->lane + r;
            amx_zero(0);
            amx_zero(1);
            amx_zero(2);
            amx_zero(3);
            for (int64_t d = 0; d < steps; d++, q += 16 * PACK_LANES) {
                amx_load(4, k[0] + d * 64, k_bytes[0]);
                amx_load(6, q, q_bytes);
                amx_dot(0, 4, 6);
                if (wide) {
                    amx_load(7, q + 16, q_bytes);
                    amx_dot(1, 4, 7);
                }
                if (two) {
                    amx_load(5, k[1] + d * 64, k_bytes[1]);
                    amx_dot(2, 5, 6);
                    if (wide)
                        amx_dot(3, 5, 7);
                }
            }
            amx_store(0, s, q_bytes);
            if (wide)
                amx_store(1, s + 16, q_bytes);
            if (two)
                amx_store(2, s + 16 * PACK_LANES, q_bytes);
            if (two && wide)
                amx_store(3, s + 16 * PACK_LANES + 16, q_bytes);
        }
    }
}

/* Keys stay where they lie if their rows are whole lines of pairs, but for what is left of a tile
 * of 16: nothing past the segment is read. */
static void scores_on_tiles(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    size_t key_bytes = (size_t)call->k_row_stride * sizeof(uint16_t);
    bool in_place = call->shape->head_dim % 32 == 0 && key_bytes % SET_BYTES != 0;
    int64_t copied = in_place ? n / 16 * 16 : 0;
    if (copied < n)
        load_keys(t, first, copied, n - copied);
    score_tiles(t, (const uint16_t *)call->k + row_of_keys(t, first), key_bytes, copied, n);
}

/* Weights of n keys, pairs of keys by rows of queries as tiles want them; zeros up to a whole tile
 * of pairs. */
static void turn_weights(const attn_tile *t, int64_t n)
{
    int64_t pairs = mst_ceil_div(n, 2);
    for (int64_t r = 0; r < t->lanes; r += VF_LANES) {
        for (int64_t j = 0; j < pairs; j += VF_LANES) {
            vf block[VF_LANES];
#pragma GCC unroll 16
            for (int i = 0; i < VF_LANES; i++)
                block[i] = j + i < pairs
                               ? vf_load(t->scratch->s + (j + i) * PACK_LANES + t->lane + r)
                               : vf_zero();
            vf_transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < VF_LANES; i++)
                vf_store(t->scratch->p + (r + i) * WEIGHTS_STRIDE + j, block[i]);
        }
    }
}

/* o (+)= P V for up to 32 rows of weights at p, n keys. */
static void weigh_tiles(const attn_tile *t, const float *p, float *o, bool two, int64_t n,
                        bool fresh)
{
    const size_t p_bytes = WEIGHTS_STRIDE * sizeof(float);
    const size_t bytes = (size_t)t->stride * sizeof(float);
    amx_after_stores();
    for (int64_t d = 0; d < t->width; d += 32) {
        bool wide = d + 16 < t->width;
        const float *v = t->scratch->v + d;
        float *c = o + d;
        if (fresh) {
            amx_zero(0);
            amx_zero(1);
            amx_zero(2);
            amx_zero(3);
        } else {
            amx_load(0, c, bytes);
            if (wide)
                amx_load(1, c + 16, bytes);
            if (two)
                amx_load(2, c + 16 * t->stride, bytes);
            if (two && wide)
                amx_load(3, c + 16 * t->stride + 16, bytes);
        }
        for (int64_t j = 0; j < n; j += 32, v += 16 * t->stride) {
            amx_load(4, p + j / 2, p_bytes);
            amx_load(6, v, bytes);
            amx_dot(0, 4, 6);
            if (wide) {
                amx_load(7, v + 16, bytes);
                amx_dot(1, 4, 7);
            }
            if (two) {
                amx_load(5, p + 16 * WEIGHTS_STRIDE + j / 2, p_bytes);
                amx_dot(2, 5, 6);
                if (wide)
                    amx_dot(3, 5, 7);
            }
        }
        amx_store(0, c, bytes);
        if (wide)
            amx_store(1, c + 16, bytes);
        if (two)
            amx_store(2, c + 16 * t->stride, bytes);
        if (two && wide)
            amx_store(3, c + 16 * t->stride + 16, bytes);
    }
}

/* One row alone: its tile runs in a copy, in the place of K, of which only that row is kept. */
static void add_row_on_tiles(const attn_tile *t, int64_t r, int64_t n, bool fresh)
{
    size_t bytes = (size_t)t->width * sizeof(float);
    float *copy = t->scratch->k + r % 16 * t->stride;
    memcpy(copy, t->scratch->o + (t->lane + r) * t->stride, bytes);
    weigh_tiles(t, t->scratch->p + r / 16 * 16 * WEIGHTS_STRIDE, t->scratch->k, false, n, fresh);
    memcpy(t->scratch->o + (t->lane + r) * t->stride, copy, bytes);
}

static void add_rows_on_tiles(const attn_tile *t, int64_t n, bool fresh)
{
    for (int64_t r = 0; r < t->rows; r += 32)
        weigh_tiles(t, t->scratch->p + r * WEIGHTS_STRIDE,
                    t->scratch->o + (t->lane + r) * t->stride, r + 16 < t->rows, n, fresh);
}

#else

static void scores_on_tiles(const attn_tile *t, int64_t first, int64_t n)
{
    (void)t, (void)first, (void)n;
}
static void turn_weights(const attn_tile *t, int64_t n)
{
    (void)t, (void)n;
}
static void add_row_on_tiles(const attn_tile *t, int64_t r, int64_t n, bool fresh)
{
    (void)t, (void)r, (void)n, (void)fresh;
}
static void add_rows_on_tiles(const attn_tile *t, int64_t n, bool fresh)
{
    (void)t, (void)n, (void)fresh;
}

#endif

#endif
