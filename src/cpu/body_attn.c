/*
 * body_attn.c - ragged attention of one work item, for one ISA level.
 *
 * A tile is up to TILE_ROWS query rows of one kv head (the query heads of a group are rows of the
 * same tile, so keys are read once for all of them). Query rows are the lanes: Q is transposed once
 * a tile, and for each block of BLOCK keys, counted from the segment's first key,
 *   S^T = K Q^T         a key a row, a query row a lane
 *   one online softmax step, all lanes at once, without a sum across lanes
 *   O += P V            P read by columns
 * The order of every sum depends on the segment alone: over D from 0 up for S, over keys from the
 * block's first up for O and for the weights' sum. Blocks that a row does not see change none of
 * its bits, so how rows share tiles never shows.
 *
 * Weights are 2^(s - max) with s = q.k * sm_scale * log2 e, so that the largest weighs exactly 1. s
 * is kept halved: any score that f32 holds stays finite.
 *
 * Where the ISA multiplies pairs of bf16 (VF_PAIRS), bf16 inputs stay bf16: Q, K and V are laid out
 * in pairs (along D for S, along keys for O), weights are rounded to bf16 for O += P V, and their
 * sum is taken before rounding. With tile registers (AMX_TILES) the same layouts feed tiles of
 * 16 x 16 sums: S^T is K, read where it lies, times Q in pairs; for O += P V the weights are turned
 * to rows. Elsewhere, and for f16, inputs are widened exactly.
 *
 * Masking is by selection on key indices: invisible scores become -inf before the maximum and weigh
 * exactly 0. Since 0 * NaN is NaN, a block that some row sees only partly is checked for values of
 * V that are not finite, and then each row is multiplied over its own visible keys only.
 */
#include <math.h>

#include "cpu/body.h"
#include "cpu/simd/amx.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/vmath.h"

#define TILE_ROWS 64
/* Whole register tiles of keys. */
#if defined(MST_ISA_AVX512)
#define BLOCK 70
#elif defined(MST_ISA_AVX2) || defined(MST_ISA_NEON)
#define BLOCK 72
#else
#define BLOCK 64
#endif
/* The same for bf16 on tile registers: a step costs O a way to memory and back, so it is long. */
#if AMX_TILES
#define TILE_BLOCK 128
#else
#define TILE_BLOCK BLOCK
#endif
#define MAX_BLOCK (TILE_BLOCK > BLOCK ? TILE_BLOCK : BLOCK)
/* Pairs of weights of a row, and a line off a power of two. */
#define WEIGHTS_STRIDE (TILE_BLOCK / 2 + 16)
#define HALF_LOG2_E 0.7213475204444817f
#define LN_2 0.69314718055994531

typedef struct attn_scratch {
    float *qt;                      /* [D][TILE_ROWS] */
    float *k;                       /* [MAX_BLOCK][stride] */
    float *v;                       /* [MAX_BLOCK][stride]; k's place, but for tiles */
    float *s;                       /* [MAX_BLOCK][TILE_ROWS], scores and then weights */
    float *p;                       /* [TILE_ROWS][WEIGHTS_STRIDE], weights by rows; for tiles */
    float *o;                       /* [TILE_ROWS][stride] */
    float *max, *sum, *keep;        /* [TILE_ROWS]; max in units of 2 log 2 */
    float *low, *high;              /* visible keys of a row within the block: [low, high) */
    int64_t *first_seen, *end_seen; /* and within the segment */
} attn_scratch;

/* Rows of K and V in scratch: whole vectors, and a line off a power of two. */
static int64_t row_stride(const mst_attn_shape *shape)
{
    return mst_round_up(shape->head_dim, 16) + 16;
}

static void lay_out(mst_arena *arena, const mst_attn_shape *shape, attn_scratch *scratch)
{
    int64_t stride = row_stride(shape);
    int64_t depth = mst_round_up(shape->head_dim, 16);
    scratch->qt = mst_arena_take(arena, depth * TILE_ROWS, sizeof(float));
    scratch->k = mst_arena_take(arena, MAX_BLOCK * stride, sizeof(float));
    scratch->v = AMX_TILES ? mst_arena_take(arena, MAX_BLOCK * stride, sizeof(float)) : scratch->k;
    scratch->s = mst_arena_take(arena, MAX_BLOCK * TILE_ROWS, sizeof(float));
    scratch->p = mst_arena_take(arena, AMX_TILES * TILE_ROWS * WEIGHTS_STRIDE, sizeof(float));
    scratch->o = mst_arena_take(arena, TILE_ROWS * stride, sizeof(float));
    scratch->max = mst_arena_take(arena, TILE_ROWS, sizeof(float));
    scratch->sum = mst_arena_take(arena, TILE_ROWS, sizeof(float));
    scratch->keep = mst_arena_take(arena, TILE_ROWS, sizeof(float));
    scratch->low = mst_arena_take(arena, TILE_ROWS, sizeof(float));
    scratch->high = mst_arena_take(arena, TILE_ROWS, sizeof(float));
    scratch->first_seen = mst_arena_take(arena, TILE_ROWS, sizeof(int64_t));
    scratch->end_seen = mst_arena_take(arena, TILE_ROWS, sizeof(int64_t));
}

size_t MST_FOR_ISA(mst_attn_scratch_bytes)(const mst_attn_shape *shape)
{
    mst_arena arena;
    attn_scratch scratch;
    mst_arena_count(&arena);
    lay_out(&arena, shape, &scratch);
    return arena.used;
}

/* Heads of a group that fit one tile. */
static int32_t group_chunk(const mst_attn_shape *shape)
{
    return (int32_t)mst_min_i64(shape->num_qo_heads / shape->num_kv_heads, TILE_ROWS);
}

/*
 * Rows: as many as a tile holds, evened out over the tiles of the segment. Heads: short segments
 * take several, so that an item is worth its start.
 */
mst_attn_tile MST_FOR_ISA(mst_attn_tile_choose)(const mst_attn_shape *shape, int64_t lq, int64_t lk)
{
    int64_t most = mst_max_i64(1, TILE_ROWS / group_chunk(shape));
    int64_t tiles = mst_max_i64(1, mst_ceil_div(lq, most));
    int64_t rows = mst_max_i64(1, mst_ceil_div(lq, tiles));
    int64_t work = rows * mst_min_i64(mst_max_i64(lk, 1), 4096);
    int64_t heads = mst_min_i64(shape->num_kv_heads, mst_max_i64(1, MST_ATTN_ITEM_WORK / work));
    return (mst_attn_tile){(int32_t)rows, (int32_t)heads};
}

typedef struct attn_tile {
    const mst_attn_call *call;
    const mst_attn_item *item;
    attn_scratch scratch;
    int64_t q_first, k_first; /* packed rows of the segment's first query and key */
    int64_t lq, lk;
    int32_t kv_head;
    int32_t head_first, heads; /* query heads of this tile */
    int64_t rows;              /* q_rows * heads */
    int64_t lanes;             /* rows, rounded up to whole vectors */
    int64_t stride, width;     /* of rows in scratch; columns of D in whole vectors */
    int64_t all_low, all_high; /* keys that every row sees */
    int64_t block;             /* keys of a step */
    bool pairs;                /* bf16 in pairs */
    bool tiles;                /* and on tile registers */
} attn_tile;

/* Row r of the tile is query row q_begin + r / heads of head head_first + r % heads; a place walks
 * the rows in order, without a division. */
typedef struct row_place {
    int64_t row, head; /* packed query row, query head */
    int32_t left;      /* heads left of this query row */
} row_place;

static row_place first_place(const attn_tile *t)
{
    return (row_place){t->q_first + t->item->q_begin, t->head_first, t->heads};
}

static void next_place(const attn_tile *t, row_place *place)
{
    place->head++;
    if (--place->left == 0)
        *place = (row_place){place->row + 1, t->head_first, t->heads};
}

/* One block of VF_LANES rows and n columns from column d on, transposed; rows may be missing. */
static inline __attribute__((always_inline)) void transpose_block(const void *q,
                                                                  const mstar_dtype dtype,
                                                                  const int64_t *at, int rows,
                                                                  int64_t d, const int n, vf *block)
{
    if (rows == VF_LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < VF_LANES; i++)
            block[i] = vf_load_any_n(q, dtype, at[i] + d, n);
    } else {
        for (int i = 0; i < VF_LANES; i++)
            block[i] = i < rows ? vf_load_any_n(q, dtype, at[i] + d, n) : vf_zero();
    }
    vf_transpose(block);
}

/* Columns [d, d + n) of VF_LANES rows from row r on: to qt. */
static inline __attribute__((always_inline)) void
store_block(const attn_tile *t, int64_t r, int64_t d, const int n, const vf *block)
{
    if (t->pairs) {
#pragma GCC unroll 8
        for (int i = 0; i < n; i += 2)
            vf_store(t->scratch.qt + (d + i) / 2 * TILE_ROWS + r,
                     vf_pack_pairs(block[i], i + 1 < VF_LANES ? block[i + 1] : vf_zero()));
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            vf_store(t->scratch.qt + (d + i) * TILE_ROWS + r, block[i]);
    }
}

/* qt[d][r] = Q[r][d]; lanes past the rows are 0. */
static inline __attribute__((always_inline)) void transpose_queries(const attn_tile *t,
                                                                    const mstar_dtype dtype)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    row_place place = first_place(t);
    for (int64_t r = 0; r < t->lanes; r += VF_LANES) {
        int rows = vf_left(t->rows, r);
        int64_t at[VF_LANES] = {0};
        for (int i = 0; i < rows; i++) {
            at[i] = place.row * call->q_row_stride + place.head * call->q_head_stride;
            next_place(t, &place);
        }
        vf block[VF_LANES];
        int64_t d = 0;
        for (; d + VF_LANES <= dim; d += VF_LANES) {
            transpose_block(call->q, dtype, at, rows, d, VF_LANES, block);
            store_block(t, r, d, VF_LANES, block);
        }
        if (d < dim) {
            transpose_block(call->q, dtype, at, rows, d, (int)(dim - d), block);
            store_block(t, r, d, (int)(dim - d), block);
        }
    }
}

/* The same with the dtype chosen once, outside the loops. Tiles find zeros past D. */
static void load_queries(const attn_tile *t)
{
    for (int64_t d = mst_ceil_div(t->call->shape->head_dim, 2); t->tiles && d % 16 != 0; d++)
        memset(t->scratch.qt + d * TILE_ROWS, 0, (size_t)t->lanes * sizeof(float));
    switch (t->call->shape->dtype) {
    case MSTAR_DTYPE_BF16:
        transpose_queries(t, MSTAR_DTYPE_BF16);
        break;
    case MSTAR_DTYPE_F16:
        transpose_queries(t, MSTAR_DTYPE_F16);
        break;
    default:
        transpose_queries(t, MSTAR_DTYPE_F32);
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

/* n keys from first on: f32 in whole vectors, or bf16 pairs along D; zeros past D. */
static void load_keys(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    int64_t at = row_of_keys(t, first);
    if (!t->pairs) {
        load_rows(t, call->k, at, call->k_row_stride, n, t->scratch.k);
        return;
    }
    int64_t whole = t->tiles ? mst_round_up(dim, 32) : mst_round_up(dim, 2);
    for (int64_t j = 0; j < n; j++, at += call->k_row_stride) {
        uint16_t *to = (uint16_t *)(void *)(t->scratch.k + j * t->stride);
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
        float *to = t->scratch.v + j / 2 * t->stride;
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
        memset(t->scratch.v + j * t->stride, 0, (size_t)t->width * sizeof(float));
}

/* n values from first on: f32, or bf16 pairs along keys; zeros past D. */
static void load_values(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t at = row_of_values(t, first);
    if (t->pairs)
        load_value_pairs(t, at, n);
    else
        load_rows(t, call->v, at, call->v_row_stride, n, t->scratch.v);
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
            uint16_t *half = (uint16_t *)(void *)(t->scratch.v + j / 2 * t->stride) + j % 2;
            for (int64_t d = 0; d < t->width; d++)
                half[2 * d] = 0;
        } else {
            memset(t->scratch.v + j * t->stride, 0, (size_t)t->width * sizeof(float));
        }
    }
}

/* Saturating sums: windows may be as large as int64 holds. */
static int64_t add_sat(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b > 0 ? INT64_MAX : INT64_MIN) : sum;
}

static void find_visible(attn_tile *t)
{
    const mst_attn_shape *shape = t->call->shape;
    t->all_low = 0;
    t->all_high = t->lk;
    if (!t->call->causal && shape->window_left < 0 && shape->window_right < 0)
        return;
    int64_t r = 0;
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
            t->scratch.first_seen[r] = low;
            t->scratch.end_seen[r] = high;
        }
    }
}

/* Visible keys of each lane relative to the block's first; lanes past the rows see none. */
static void place_block(const attn_tile *t, int64_t first, int64_t n)
{
    for (int64_t r = 0; r < t->lanes; r++) {
        int64_t low = r < t->rows ? t->scratch.first_seen[r] - first : 0;
        int64_t high = r < t->rows ? t->scratch.end_seen[r] - first : 0;
        t->scratch.low[r] = (float)mst_min_i64(mst_max_i64(low, 0), n);
        t->scratch.high[r] = (float)mst_min_i64(mst_max_i64(high, 0), n);
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
    vf x = vf_mul(vf_load(s + j * TILE_ROWS), scale);
    if (masked) {
        vf place = vf_set1((float)j);
        vm seen = vm_and(vf_less_equal(low, place), vf_less(place, high));
        x = vf_select(seen, x, vf_set1(-INFINITY));
        vf_store(s + j * TILE_ROWS, x);
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
    float *s = t->scratch.s + r;
    const vf nothing = vf_set1(-INFINITY);
    vf low = vf_zero();
    vf high = vf_zero();
    if (masked) {
        low = vf_load(t->scratch.low + r);
        high = vf_load(t->scratch.high + r);
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
    vf before = first ? nothing : vf_load(t->scratch.max + r);
    vf now = vf_max(top, before);
    /* nothing seen yet: any finite shift gives weights of exactly 0 */
    vf shift = vf_select(vf_less_equal(now, nothing), vf_zero(), now);
    vf sum = vf_zero();
    for (j = 0; j < n; j++) {
        vf p = weigh(s + j * TILE_ROWS, scale, shift, masked);
        sum = vf_add(sum, p);
        if (!pairs) {
            vf_store(s + j * TILE_ROWS, p);
            continue;
        }
        /* the pair of rows j and j + 1 takes row j / 2, which has been read */
        vf next = vf_zero();
        if (++j < n) {
            next = weigh(s + j * TILE_ROWS, scale, shift, masked);
            sum = vf_add(sum, next);
        }
        vf_store(s + j / 2 * TILE_ROWS, vf_pack_pairs(p, next));
    }
    vf_store(t->scratch.max + r, now);
    if (!first) {
        vf keep = weight_of(before, shift);
        vf_store(t->scratch.keep + r, keep);
        sum = vf_fma(vf_load(t->scratch.sum + r), keep, sum);
    }
    vf_store(t->scratch.sum + r, sum);
}

/* first_block: there are no maxima and sums yet, nor output that would have to be scaled. */
static void softmax_block(const attn_tile *t, int64_t n, bool masked, bool first_block)
{
    vf scale = vf_mul(vf_set1(t->call->shape->sm_scale), vf_set1(HALF_LOG2_E));
    for (int64_t r = 0; r < t->lanes; r += VF_LANES) {
        if (t->pairs && masked)
            softmax_lanes(t, r, n, scale, first_block, true, true);
        else if (t->pairs)
            softmax_lanes(t, r, n, scale, first_block, false, true);
        else if (masked)
            softmax_lanes(t, r, n, scale, first_block, true, false);
        else
            softmax_lanes(t, r, n, scale, first_block, false, false);
    }
    for (int64_t r = 0; r < t->rows && !first_block; r++) {
        float keep = t->scratch.keep[r];
        if (keep == 1.0f)
            continue;
        float *o = t->scratch.o + r * t->stride;
        for (int64_t d = 0; d < t->width; d += VF_LANES)
            vf_store(o + d, vf_mul(vf_load(o + d), vf_set1(keep)));
    }
}

#if AMX_TILES

/*
 * S^T = K Q^T, 32 keys by 32 queries at a time. Whole tiles of keys may lie anywhere, `keys` and
 * `key_bytes` apart; from key `copied` on they are in scratch.
 */
static void score_tiles(const attn_tile *t, const void *keys, size_t key_bytes, int64_t copied,
                        int64_t n)
{
    const size_t q_bytes = TILE_ROWS * sizeof(float);
    int64_t steps = mst_ceil_div(t->call->shape->head_dim, 32);
    amx_after_stores();
    for (int64_t j = 0; j < n; j += 32) {
        bool two = j + 16 < n;
        const char *k[2];
        size_t k_bytes[2];
        for (int i = 0; i < 2; i++) {
            bool in_place = j + i * 16 < copied;
            k_bytes[i] = in_place ? key_bytes : (size_t)t->stride * sizeof(float);
            k[i] = (in_place ? (const char *)keys : (const char *)t->scratch.k) +
                   (size_t)(j + i * 16) * k_bytes[i];
        }
        for (int64_t r = 0; r < t->lanes; r += 32) {
            bool wide = r + 16 < t->lanes;
            const float *q = t->scratch.qt + r;
            float *s = t->scratch.s + j * TILE_ROWS + r;
            amx_zero(0);
            amx_zero(1);
            amx_zero(2);
            amx_zero(3);
            for (int64_t d = 0; d < steps; d++, q += 16 * TILE_ROWS) {
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
                amx_store(2, s + 16 * TILE_ROWS, q_bytes);
            if (two && wide)
                amx_store(3, s + 16 * TILE_ROWS + 16, q_bytes);
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
    if (copied < n) {
        attn_tile rest = *t;
        rest.scratch.k += copied * t->stride;
        load_keys(&rest, first + copied, n - copied);
    }
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
                block[i] =
                    j + i < pairs ? vf_load(t->scratch.s + (j + i) * TILE_ROWS + r) : vf_zero();
            vf_transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < VF_LANES; i++)
                vf_store(t->scratch.p + (r + i) * WEIGHTS_STRIDE + j, block[i]);
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
        const float *v = t->scratch.v + d;
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
    float *copy = t->scratch.k + r % 16 * t->stride;
    memcpy(copy, t->scratch.o + r * t->stride, bytes);
    weigh_tiles(t, t->scratch.p + r / 16 * 16 * WEIGHTS_STRIDE, t->scratch.k, false, n, fresh);
    memcpy(t->scratch.o + r * t->stride, copy, bytes);
}

static void add_rows_on_tiles(const attn_tile *t, int64_t n, bool fresh)
{
    for (int64_t r = 0; r < t->rows; r += 32)
        weigh_tiles(t, t->scratch.p + r * WEIGHTS_STRIDE, t->scratch.o + r * t->stride,
                    r + 16 < t->rows, n, fresh);
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

/* S^T of n keys from first on. */
static void find_scores(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    if (t->tiles) {
        scores_on_tiles(t, first, n);
        return;
    }
    mst_tile_args args = {.a = t->scratch.k,
                          .a_stride = t->stride,
                          .b = t->scratch.qt,
                          .b_stride = TILE_ROWS,
                          .depth = t->pairs ? mst_ceil_div(dim, 2) : dim,
                          .c = t->scratch.s,
                          .c_stride = TILE_ROWS,
                          .fresh = true};
    if (keys_serve_in_place(t)) {
        args.a = (const float *)call->k + row_of_keys(t, first);
        args.a_stride = call->k_row_stride;
    } else {
        load_keys(t, first, n);
    }
    mst_tile_all(args, MST_TILE_ROWS | (t->pairs ? MST_TILE_PAIRS : 0), n, t->lanes);
}

/* O += P V over loaded values, or those at v: all rows, or row `only` where it is not negative. */
static void multiply_values(const attn_tile *t, const float *v, int64_t v_stride, int64_t n,
                            int64_t only, bool fresh)
{
    if (t->tiles) {
        if (only < 0)
            add_rows_on_tiles(t, n, fresh);
        else
            add_row_on_tiles(t, only, n, fresh);
        return;
    }
    int64_t row = only < 0 ? 0 : only;
    mst_tile_args args = {.a = t->scratch.s + row,
                          .a_stride = TILE_ROWS,
                          .b = v,
                          .b_stride = v_stride,
                          .depth = t->pairs ? mst_ceil_div(n, 2) : n,
                          .c = t->scratch.o + row * t->stride,
                          .c_stride = t->stride,
                          .fresh = fresh};
    mst_tile_all(args, MST_TILE_COLUMNS | (t->pairs ? MST_TILE_PAIRS : 0), only < 0 ? t->rows : 1,
                 t->width);
}

static void add_values(const attn_tile *t, int64_t first, int64_t n, bool partly, bool fresh)
{
    if (t->tiles)
        turn_weights(t, n);
    if (partly && !values_are_finite(t, first, n)) {
        for (int64_t r = 0; r < t->rows; r++) {
            load_values(t, first, n);
            hide_values(t, n, (int64_t)t->scratch.low[r], (int64_t)t->scratch.high[r]);
            multiply_values(t, t->scratch.v, t->stride, n, r, fresh);
        }
    } else if (values_serve_in_place(t)) {
        multiply_values(t, (const float *)t->call->v + row_of_values(t, first),
                        t->call->v_row_stride, n, -1, fresh);
    } else {
        load_values(t, first, n);
        multiply_values(t, t->scratch.v, t->stride, n, -1, fresh);
    }
}

/* Natural logarithm of a positive number, by the series of 2 atanh((m - 1) / (m + 1)) in f64. */
static double log_f64(float x)
{
    int exponent;
    double m = frexp((double)x, &exponent);
    if (m < 0.70710678118654752) {
        m *= 2.0;
        exponent--;
    }
    double u = (m - 1.0) / (m + 1.0);
    double w = u * u;
    double series = 1.0 / 15.0;
    for (int k = 13; k >= 1; k -= 2)
        series = series * w + 1.0 / k;
    return 2.0 * u * series + exponent * LN_2;
}

static float lse_of(float max, float sum)
{
    if (sum == 0.0f)
        return -INFINITY;
    if (!(sum < INFINITY))
        return sum; /* NaN */
    return (float)((double)max * (2.0 * LN_2) + log_f64(sum));
}

/* Rows of O over their sums, which keep holds as reciprocals. A row that saw nothing becomes 0. */
static inline __attribute__((always_inline)) void divide_rows(const attn_tile *t,
                                                              const mstar_dtype dtype)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    int64_t whole = dim / VF_LANES * VF_LANES;
    row_place place = first_place(t);
    for (int64_t r = 0; r < t->rows; r++, next_place(t, &place)) {
        int64_t at = place.row * call->out_row_stride + place.head * call->out_head_stride;
        const float *o = t->scratch.o + r * t->stride;
        bool seen = t->scratch.sum[r] != 0.0f;
        vf scale = vf_set1(t->scratch.keep[r]);
        int64_t d = 0;
        for (; d < whole; d += VF_LANES) {
            vf x = seen ? vf_mul(vf_load(o + d), scale) : vf_zero();
            vf_store_any_n(call->out, dtype, at + d, x, VF_LANES);
        }
        if (d < dim) {
            vf x = seen ? vf_mul(vf_load(o + d), scale) : vf_zero();
            vf_store_any_n(call->out, dtype, at + d, x, (int)(dim - d));
        }
    }
}

static void store_lse(const attn_tile *t)
{
    const mst_attn_call *call = t->call;
    row_place place = first_place(t);
    for (int64_t r = 0; r < t->rows; r++, next_place(t, &place))
        call->lse[place.row * call->lse_row_stride + place.head] =
            lse_of(t->scratch.max[r], t->scratch.sum[r]);
}

static void store_rows(const attn_tile *t)
{
    for (int64_t r = 0; r < t->lanes; r += VF_LANES)
        vf_store(t->scratch.keep + r, vf_div(vf_set1(1.0f), vf_load(t->scratch.sum + r)));
    switch (t->call->shape->dtype) {
    case MSTAR_DTYPE_BF16:
        divide_rows(t, MSTAR_DTYPE_BF16);
        break;
    case MSTAR_DTYPE_F16:
        divide_rows(t, MSTAR_DTYPE_F16);
        break;
    default:
        divide_rows(t, MSTAR_DTYPE_F32);
        break;
    }
    if (t->call->lse != NULL)
        store_lse(t);
}

static void run_tile(attn_tile *t)
{
    t->rows = (int64_t)t->item->q_rows * t->heads;
    t->lanes = mst_round_up(t->rows, VF_LANES);
    load_queries(t);
    find_visible(t);
    if (t->item->kv_begin == t->item->kv_end)
        memset(t->scratch.sum, 0, (size_t)t->lanes * sizeof(float));
    int64_t begin = t->item->kv_begin / t->block * t->block;
    for (int64_t first = begin; first < t->item->kv_end; first += t->block) {
        int64_t n = mst_min_i64(t->block, t->item->kv_end - first);
        bool partly = t->all_low > first || t->all_high < first + n;
        find_scores(t, first, n);
        if (partly)
            place_block(t, first, n);
        softmax_block(t, n, partly, first == begin);
        add_values(t, first, n, partly, first == begin);
    }
    store_rows(t);
}

/* ---- asking for what comes next ---- */

/* Rows [first, first + rows) of heads [head, head + heads): a head's row is a few lines, and at a
 * stride of all heads the hardware does not see them coming. */
static void fetch_rows(const mst_attn_shape *shape, const void *data, int64_t first, int64_t rows,
                       int64_t row_stride, int64_t head, int64_t heads, int64_t head_stride)
{
    int64_t bytes = (int64_t)mstar_dtype_bytes(shape->dtype);
    int64_t width = shape->head_dim * bytes;
    if (head_stride == shape->head_dim) { /* one run of bytes */
        width *= heads;
        heads = 1;
    }
    for (int64_t j = first; j < first + rows; j++) {
        const char *row = (const char *)data + (j * row_stride + head * head_stride) * bytes;
        for (int64_t h = 0; h < heads; h++, row += head_stride * bytes) {
            for (int64_t i = 0; i < width; i += MST_CACHE_LINE)
                __builtin_prefetch(row + i, 0, 2);
        }
    }
}

/* Part `part` of `parts` of an item's rows: of all its heads, or of the first of them. */
static void fetch_item(const mst_attn_call *call, const mst_attn_item *item, int64_t part,
                       int64_t parts, bool all_heads)
{
    const mst_attn_shape *shape = call->shape;
    int64_t group = shape->num_qo_heads / shape->num_kv_heads;
    int64_t heads = all_heads ? item->num_kv_heads : 1;
    int64_t head = item->kv_head_begin;
    int64_t keys = item->kv_end - item->kv_begin;
    int64_t first = call->kv_offsets[item->segment] + item->kv_begin + keys * part / parts;
    int64_t rows = keys * (part + 1) / parts - keys * part / parts;
    fetch_rows(shape, call->k, first, rows, call->k_row_stride, head, heads, call->k_head_stride);
    fetch_rows(shape, call->v, first, rows, call->v_row_stride, head, heads, call->v_head_stride);
    first = call->q_offsets[item->segment] + item->q_begin + item->q_rows * part / parts;
    rows = item->q_rows * (part + 1) / parts - item->q_rows * part / parts;
    fetch_rows(shape, call->q, first, rows, call->q_row_stride, head * group, heads * group,
               call->q_head_stride);
    fetch_rows(shape, call->out, first, rows, call->out_row_stride, head * group, heads * group,
               call->out_head_stride);
}

/* Bytes of an item that stay in the second cache while the item before it is computed, and how many
 * are asked for at once. */
#define FETCH_BYTES (256 * 1024)
#define FETCH_BURST (32 * 1024)

static bool fetched_whole(const mst_attn_shape *shape, const mst_attn_item *item)
{
    int64_t group = shape->num_qo_heads / shape->num_kv_heads;
    int64_t rows = 2 * ((int64_t)item->kv_end - item->kv_begin) + 2 * group * item->q_rows;
    int64_t burst = rows * shape->head_dim * (int64_t)mstar_dtype_bytes(shape->dtype);
    return burst <= FETCH_BURST && burst * item->num_kv_heads <= FETCH_BYTES;
}

void MST_FOR_ISA(mst_attn_item_run)(const mst_attn_call *call, const mst_attn_item *item,
                                    const mst_attn_item *next, void *scratch)
{
    const mst_attn_shape *shape = call->shape;
    attn_tile t = {.call = call,
                   .item = item,
                   .stride = row_stride(shape),
                   .width = mst_round_up(shape->head_dim, VF_LANES),
                   .pairs = VF_PAIRS && shape->dtype == MSTAR_DTYPE_BF16,
                   .tiles = AMX_TILES && shape->dtype == MSTAR_DTYPE_BF16};
    t.block = t.tiles ? TILE_BLOCK : BLOCK;
    mst_arena arena;
    mst_arena_over(&arena, scratch, SIZE_MAX);
    lay_out(&arena, shape, &t.scratch);
    t.q_first = call->q_offsets[item->segment];
    t.k_first = call->kv_offsets[item->segment];
    t.lq = call->q_offsets[item->segment + 1] - t.q_first;
    t.lk = call->kv_offsets[item->segment + 1] - t.k_first;
    int32_t group = shape->num_qo_heads / shape->num_kv_heads;
    int32_t chunk = group_chunk(shape);
    if (t.tiles)
        amx_open();
    /* no more than the cache holds, and no keys that this item reads itself: asking for what is
       there is not free either */
    bool next_head = !fetched_whole(shape, item) && item->kv_end - item->kv_begin <= 256;
    bool next_item = next != NULL && fetched_whole(shape, next) &&
                     (next->segment != item->segment || next->kv_head_begin != item->kv_head_begin);
    for (int32_t i = 0; i < item->num_kv_heads; i++) {
        t.kv_head = item->kv_head_begin + i;
        if (next_head && i + 1 < item->num_kv_heads) {
            mst_attn_item rest = *item;
            rest.kv_head_begin = t.kv_head + 1;
            fetch_item(call, &rest, 0, 1, false);
        }
        if (next_item)
            fetch_item(call, next, i, item->num_kv_heads, true);
        for (int32_t h = 0; h < group; h += chunk) {
            t.head_first = t.kv_head * group + h;
            t.heads = h + chunk <= group ? chunk : group - h;
            run_tile(&t);
        }
    }
    if (t.tiles)
        amx_close();
}
