/*
 * attn_softmax.h - which keys a row sees, and one step of the online softmax over the lanes of a
 * pack.
 */
#ifndef MST_ATTN_SOFTMAX_H
#define MST_ATTN_SOFTMAX_H

#include "cpu/attn_pack.h"
#include "cpu/simd/vmath.h"

/* Saturating sums: windows may be as large as int64 holds. */
static int64_t add_sat(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b > 0 ? INT64_MAX : INT64_MIN) : sum;
}

static bool is_masked(const mst_attn_call *call)
{
    return call->causal || call->shape->window_left >= 0 || call->shape->window_right >= 0;
}

/* Keys that the tile's rows see, by the mask. */
static void find_visible(attn_tile *t)
{
    const mst_attn_shape *shape = t->call->shape;
    t->all_low = 0;
    t->all_high = t->lk;
    if (!is_masked(t->call))
        return;
    int64_t r = t->lane;
    for (int64_t q = 0; q < t->item->q_rows; q++) {
        int64_t place = t->lk - t->lq + t->item->q_begin + q;
        int64_t low = 0;
        int64_t high = t->lk;
        if (t->call->causal)
            high = mst_min_i64(high, place + 1);
        if (shape->window_right >= 0)
            high = mst_min_i64(high, add_sat(add_sat(place, shape->window_right), 1));
        if (shape->window_left >= 0)
            low = mst_max_i64(low, add_sat(place, -shape->window_left));
        if (low >= high) {
            low = 0;
            high = 0;
        }
        t->all_low = mst_max_i64(t->all_low, low);
        t->all_high = mst_min_i64(t->all_high, high);
        for (int32_t h = 0; h < t->heads; h++, r++) {
            t->scratch->first_seen[r] = low;
            t->scratch->end_seen[r] = high;
        }
    }
}

/* Visible keys of each lane relative to the first of its tile's step; lanes past the rows see none.
 */
static void place_keys(const attn_pack *pack)
{
    const attn_scratch *scratch = pack->tile[0].scratch;
    bool masked = is_masked(pack->tile[0].call);
    for (int32_t i = 0; i < pack->count; i++) {
        const attn_tile *t = &pack->tile[i];
        for (int64_t r = t->lane; r < t->lane + t->rows; r++) {
            int64_t low = masked ? scratch->first_seen[r] - t->first : 0;
            int64_t high = masked ? scratch->end_seen[r] - t->first : t->keys;
            scratch->low[r] = (float)mst_min_i64(mst_max_i64(low, 0), t->keys);
            scratch->high[r] = (float)mst_min_i64(mst_max_i64(high, 0), t->keys);
        }
    }
    for (int64_t r = pack->rows; r % VF_LANES != 0; r++) {
        scratch->low[r] = 0;
        scratch->high[r] = 0;
    }
}

/* 2^(2 (x - top)) for halved scores. */
static inline __attribute__((always_inline)) vf weight_of(vf x, vf top)
{
    vf below = vf_sub(x, top);
    return vf_exp2_nonpositive(vf_add(below, below));
}

/* Weight of one key for VF_LANES rows; masked scores have been scaled already. */
static inline __attribute__((always_inline)) vf weigh(const float *s, vf scale, vf shift,
                                                      const bool masked)
{
    vf x = vf_load(s);
    if (!masked)
        x = vf_mul(x, scale);
    return weight_of(x, shift);
}

/* The scaled score of key j, -inf where it is not in [low, high). Masked scores are put back. */
static inline __attribute__((always_inline)) vf scale_score(float *s, int64_t j, vf scale, vf low,
                                                            vf high, const bool masked)
{
    vf x = vf_mul(vf_load(s + j * PACK_LANES), scale);
    if (masked) {
        vf place = vf_set1((float)j);
        vm seen = vm_and(vf_less_equal(low, place), vf_less(place, high));
        x = vf_select(seen, x, vf_set1(-INFINITY));
        vf_store(s + j * PACK_LANES, x);
    }
    return x;
}

/*
 * One online softmax step of VF_LANES rows from row r on over n keys: scores in s become weights,
 * maxima and sums move on, keep says by what the output so far has to be scaled.
 */
static inline __attribute__((always_inline)) void softmax_lanes(const attn_tile *t, int64_t r,
                                                                int64_t n, vf scale, bool first,
                                                                const bool masked, const bool pairs)
{
    float *s = t->scratch->s + r;
    const vf nothing = vf_set1(-INFINITY);
    vf low = vf_zero();
    vf high = vf_zero();
    if (masked) {
        low = vf_load(t->scratch->low + r);
        high = vf_load(t->scratch->high + r);
    }
    /* four chains, so that none waits for the last maximum: it is the same in any order */
    vf tops[4] = {nothing, nothing, nothing, nothing};
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            tops[i] = vf_max(scale_score(s, j + i, scale, low, high, masked), tops[i]);
    }
    for (; j < n; j++)
        tops[0] = vf_max(scale_score(s, j, scale, low, high, masked), tops[0]);
    vf top = vf_max(vf_max(tops[0], tops[1]), vf_max(tops[2], tops[3]));
    vf before = first ? nothing : vf_load(t->scratch->max + r);
    vf now = vf_max(top, before);
    /* nothing seen yet: any finite shift gives weights of exactly 0 */
    vf shift = vf_select(vf_less_equal(now, nothing), vf_zero(), now);
    vf sum = vf_zero();
    for (j = 0; j < n; j++) {
        vf p = weigh(s + j * PACK_LANES, scale, shift, masked);
        sum = vf_add(sum, p);
        if (!pairs) {
            vf_store(s + j * PACK_LANES, p);
            continue;
        }
        /* the pair of rows j and j + 1 takes row j / 2, which has been read */
        vf next = vf_zero();
        if (++j < n) {
            next = weigh(s + j * PACK_LANES, scale, shift, masked);
            sum = vf_add(sum, next);
        }
        vf_store(s + j / 2 * PACK_LANES, vf_pack_pairs(p, next));
    }
    vf_store(t->scratch->max + r, now);
    if (!first) {
        vf keep = weight_of(before, shift);
        vf_store(t->scratch->keep + r, keep);
        sum = vf_fma(vf_load(t->scratch->sum + r), keep, sum);
    }
    vf_store(t->scratch->sum + r, sum);
}

/* All lanes of a pack over the keys of its longest step; first_block: there are no maxima and sums
 * yet, nor output that would have to be scaled. */
static void softmax_block(const attn_pack *pack, bool first_block)
{
    const attn_tile *t = &pack->tile[0];
    vf scale = vf_mul(vf_set1(t->call->shape->sm_scale), vf_set1(HALF_LOG2_E));
    int64_t n = t->keys;
    bool masked = t->partly;
    for (int32_t i = 1; i < pack->count; i++) {
        masked = masked || pack->tile[i].partly || pack->tile[i].keys != n;
        n = mst_max_i64(n, pack->tile[i].keys);
    }
    if (masked)
        place_keys(pack);
    for (int64_t r = 0; r < pack->rows; r += VF_LANES) {
        if (t->pairs && masked)
            softmax_lanes(t, r, n, scale, first_block, true, true);
        else if (t->pairs)
            softmax_lanes(t, r, n, scale, first_block, false, true);
        else if (masked)
            softmax_lanes(t, r, n, scale, first_block, true, false);
        else
            softmax_lanes(t, r, n, scale, first_block, false, false);
    }
    for (int64_t r = 0; r < pack->rows && !first_block; r++) {
        float keep = t->scratch->keep[r];
        if (keep == 1.0f)
            continue;
        float *o = t->scratch->o + r * t->stride;
        for (int64_t d = 0; d < t->width; d += VF_LANES)
            vf_store(o + d, vf_mul(vf_load(o + d), vf_set1(keep)));
    }
}

#endif
