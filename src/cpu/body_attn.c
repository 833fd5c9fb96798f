/*
 * body_attn.c - ragged attention of one work item, for one ISA level.
 *
 * A tile is up to TILE_ROWS query rows of one kv head (the query heads of a group are rows of the
 * same tile, so keys are read once for all of them). For each block of BLOCK keys, counted from the
 * segment's first key: K is transposed into scratch, S = Q K^T, one online softmax step, O += P V.
 * The order of every sum depends on the segment alone: over D from 0 up for S, over keys from the
 * block's first up for O, over lanes of a block for the row sum. Blocks that a row does not see
 * change none of its bits, so how rows share tiles never shows.
 *
 * Masking is by selection on key indices: invisible scores become -inf before the maximum and weigh
 * exactly 0. Since 0 * NaN is NaN, a block that some row sees only partly is checked for values of
 * V that are not finite, and then each row is multiplied over its own visible keys only.
 */
#include <math.h>

#include "cpu/body.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/vmath.h"

#define BLOCK 64
#if defined(MST_ISA_AVX512)
#define TILE_ROWS 70
#elif defined(MST_ISA_AVX2)
#define TILE_ROWS 72
#else
#define TILE_ROWS 64
#endif

typedef struct attn_scratch {
    float *q;  /* [TILE_ROWS][D] */
    float *kt; /* [D][BLOCK] */
    float *v;  /* [BLOCK][width] */
    float *s;  /* [TILE_ROWS][BLOCK], scores and then weights */
    float *o;  /* [TILE_ROWS][width] */
    float *max;
    float *sum;
    int64_t *low; /* visible keys of each row: [low, high) */
    int64_t *high;
} attn_scratch;

static int64_t row_width(const mst_attn_shape *shape)
{
    return mst_round_up(shape->head_dim, VF_LANES);
}

static void lay_out(mst_arena *arena, const mst_attn_shape *shape, attn_scratch *scratch)
{
    int64_t width = row_width(shape);
    scratch->q = mst_arena_take(arena, (int64_t)TILE_ROWS * shape->head_dim, sizeof(float));
    scratch->kt = mst_arena_take(arena, (int64_t)shape->head_dim * BLOCK, sizeof(float));
    scratch->v = mst_arena_take(arena, BLOCK * width, sizeof(float));
    scratch->s = mst_arena_take(arena, TILE_ROWS * BLOCK, sizeof(float));
    scratch->o = mst_arena_take(arena, TILE_ROWS * width, sizeof(float));
    scratch->max = mst_arena_take(arena, TILE_ROWS, sizeof(float));
    scratch->sum = mst_arena_take(arena, TILE_ROWS, sizeof(float));
    scratch->low = mst_arena_take(arena, TILE_ROWS, sizeof(int64_t));
    scratch->high = mst_arena_take(arena, TILE_ROWS, sizeof(int64_t));
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
    int64_t heads = mst_min_i64(shape->num_kv_heads, mst_max_i64(1, 8192 / work));
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
    int64_t width;
    int64_t all_low, all_high; /* keys that every row sees */
} attn_tile;

static void load_queries(attn_tile *t)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    mstar_dtype dtype = call->shape->dtype;
    for (int64_t r = 0; r < t->item->q_rows; r++) {
        for (int64_t h = 0; h < t->heads; h++) {
            int64_t at = (t->q_first + t->item->q_begin + r) * call->q_row_stride +
                         (t->head_first + h) * call->q_head_stride;
            float *row = t->scratch.q + (r * t->heads + h) * dim;
            for (int64_t i = 0; i < dim; i += VF_LANES) {
                int n = vf_left(dim, i);
                vf_store_n(row + i, vf_load_any_n(call->q, dtype, at + i, n), n);
            }
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
    for (int64_t r = 0; r < t->item->q_rows; r++) {
        int64_t place = t->lk - t->lq + t->item->q_begin + r;
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
        for (int64_t h = 0; h < t->heads; h++) {
            t->scratch.low[r * t->heads + h] = low;
            t->scratch.high[r * t->heads + h] = high;
        }
    }
}

/* kt[d][j] = K[first + j][d] for j < n, 0 up to the next multiple of VF_LANES. */
static void pack_keys(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    int64_t at = (t->k_first + first) * call->k_row_stride + t->kv_head * call->k_head_stride;
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int keys = vf_left(n, j);
        for (int64_t d = 0; d < dim; d += VF_LANES) {
            int lanes = vf_left(dim, d);
            vf block[VF_LANES];
            for (int i = 0; i < keys; i++)
                block[i] = vf_load_any_n(call->k, call->shape->dtype,
                                         at + (j + i) * call->k_row_stride + d, lanes);
            for (int i = keys; i < VF_LANES; i++)
                block[i] = vf_zero();
            vf_transpose(block);
            for (int i = 0; i < lanes; i++)
                vf_store(t->scratch.kt + (d + i) * BLOCK + j, block[i]);
        }
    }
}

/* V of the block as f32 rows of whole vectors: in place where it is that already. */
static const float *get_values(const attn_tile *t, int64_t first, int64_t n, int64_t *stride)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    int64_t at = (t->k_first + first) * call->v_row_stride + t->kv_head * call->v_head_stride;
    if (call->shape->dtype == MSTAR_DTYPE_F32 && dim == t->width) {
        *stride = call->v_row_stride;
        return (const float *)call->v + at;
    }
    for (int64_t j = 0; j < n; j++) {
        for (int64_t d = 0; d < dim; d += VF_LANES) {
            vf x = vf_load_any_n(call->v, call->shape->dtype, at + j * call->v_row_stride + d,
                                 vf_left(dim, d));
            vf_store(t->scratch.v + j * t->width + d, x);
        }
    }
    *stride = t->width;
    return t->scratch.v;
}

static bool all_finite(const float *v, int64_t stride, int64_t rows, int64_t width)
{
    vf probe = vf_zero();
    for (int64_t j = 0; j < rows; j++) {
        for (int64_t d = 0; d < width; d += VF_LANES)
            probe = vf_fma(vf_load(v + j * stride + d), vf_zero(), probe);
    }
    float sum = vf_sum(probe);
    return sum == 0.0f;
}

/*
 * One online softmax step of row r over keys [first, first + n): scores in s become weights, the
 * row's maximum and sum move on, and its output is scaled when the maximum grew.
 */
static void softmax_row(const attn_tile *t, int64_t r, int64_t first, int64_t n, bool masked)
{
    float *s = t->scratch.s + r * BLOCK;
    const vf scale = vf_set1(t->call->shape->sm_scale);
    const vf nothing = vf_set1(-INFINITY);
    int64_t vectors = mst_ceil_div(n, VF_LANES);
    float low = 0.0f;
    float high = 0.0f;
    vf top = nothing;
    if (masked) {
        low = (float)mst_min_i64(mst_max_i64(t->scratch.low[r] - first, 0), n);
        high = (float)mst_min_i64(mst_max_i64(t->scratch.high[r] - first, 0), n);
        for (int64_t i = 0; i < vectors; i++) {
            vf place = vf_add(vf_iota(), vf_set1((float)(i * VF_LANES)));
            vm seen = vm_and(vf_less_equal(vf_set1(low), place), vf_less(place, vf_set1(high)));
            vf x = vf_select(seen, vf_mul(vf_load(s + i * VF_LANES), scale), nothing);
            vf_store(s + i * VF_LANES, x);
            top = vf_max(x, top);
        }
    } else {
        for (int64_t i = 0; i < vectors; i++) {
            vf x = vf_mul(vf_load(s + i * VF_LANES), scale);
            vf_store(s + i * VF_LANES, x);
            top = vf_max(x, top);
        }
    }
    float before = t->scratch.max[r];
    float block_top = vf_top(top);
    float now = block_top > before ? block_top : before;
    /* nothing seen yet: any finite shift gives weights of exactly 0 */
    vf shift = vf_set1(now == -INFINITY ? 0.0f : now);
    vf sum = vf_zero();
    for (int64_t i = 0; i < vectors; i++) {
        vf p = vf_exp(vf_sub(vf_load(s + i * VF_LANES), shift));
        vf_store(s + i * VF_LANES, p);
        sum = vf_add(sum, p);
    }
    float block_sum = vf_sum(sum);
    if (now > before) {
        float keep = 0.0f;
        if (before != -INFINITY) {
            float lanes[VF_LANES];
            vf_store(lanes, vf_exp(vf_set1(before - now)));
            keep = lanes[0];
        }
        float *o = t->scratch.o + r * t->width;
        for (int64_t d = 0; d < t->width; d += VF_LANES)
            vf_store(o + d, vf_mul(vf_load(o + d), vf_set1(keep)));
        t->scratch.sum[r] *= keep;
        t->scratch.max[r] = now;
    }
    t->scratch.sum[r] += block_sum;
}

static void add_values(const attn_tile *t, int64_t first, int64_t n, bool partly)
{
    int64_t stride;
    const float *v = get_values(t, first, n, &stride);
    if (!partly || all_finite(v, stride, n, t->width)) {
        mst_tile_all(t->scratch.s, BLOCK, v, stride, n, t->scratch.o, t->width, t->rows, t->width,
                     false);
        return;
    }
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t low = mst_max_i64(t->scratch.low[r] - first, 0);
        int64_t high = mst_min_i64(t->scratch.high[r] - first, n);
        if (low < high)
            mst_tile_all(t->scratch.s + r * BLOCK + low, BLOCK, v + low * stride, stride,
                         high - low, t->scratch.o + r * t->width, t->width, 1, t->width, false);
    }
}

/* Natural logarithm of a positive f32, by the series of 2 atanh((m - 1) / (m + 1)) in f64. */
static float log_f32(float x)
{
    if (!(x < INFINITY))
        return x;
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
    return (float)(2.0 * u * series + exponent * 0.69314718055994531);
}

static void store_rows(const attn_tile *t)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t row = t->q_first + t->item->q_begin + r / t->heads;
        int64_t head = t->head_first + r % t->heads;
        int64_t at = row * call->out_row_stride + head * call->out_head_stride;
        float sum = t->scratch.sum[r];
        bool nothing = sum == 0.0f;
        for (int64_t d = 0; d < dim; d += VF_LANES) {
            vf o = vf_load(t->scratch.o + r * t->width + d);
            o = nothing ? vf_zero() : vf_div(o, vf_set1(sum));
            vf_store_any_n(call->out, call->shape->dtype, at + d, o, vf_left(dim, d));
        }
        if (call->lse != NULL)
            call->lse[row * call->lse_row_stride + head] =
                nothing ? -INFINITY : t->scratch.max[r] + log_f32(sum);
    }
}

static void run_tile(attn_tile *t)
{
    load_queries(t);
    find_visible(t);
    memset(t->scratch.o, 0, (size_t)(t->rows * t->width) * sizeof(float));
    for (int64_t r = 0; r < t->rows; r++) {
        t->scratch.max[r] = -INFINITY;
        t->scratch.sum[r] = 0.0f;
    }
    int64_t dim = t->call->shape->head_dim;
    for (int64_t first = t->item->kv_begin / BLOCK * BLOCK; first < t->item->kv_end;
         first += BLOCK) {
        int64_t n = mst_min_i64(BLOCK, t->item->kv_end - first);
        bool partly = t->all_low > first || t->all_high < first + n;
        pack_keys(t, first, n);
        mst_tile_all(t->scratch.q, dim, t->scratch.kt, BLOCK, dim, t->scratch.s, BLOCK, t->rows,
                     mst_round_up(n, VF_LANES), true);
        for (int64_t r = 0; r < t->rows; r++)
            softmax_row(t, r, first, n, partly || n % VF_LANES != 0);
        add_values(t, first, n, partly);
    }
    store_rows(t);
}

void MST_FOR_ISA(mst_attn_item_run)(const mst_attn_call *call, const mst_attn_item *item,
                                    void *scratch)
{
    const mst_attn_shape *shape = call->shape;
    attn_tile t = {.call = call, .item = item, .width = row_width(shape)};
    mst_arena arena;
    mst_arena_over(&arena, scratch, SIZE_MAX);
    lay_out(&arena, shape, &t.scratch);
    t.q_first = call->q_offsets[item->segment];
    t.k_first = call->kv_offsets[item->segment];
    t.lq = call->q_offsets[item->segment + 1] - t.q_first;
    t.lk = call->kv_offsets[item->segment + 1] - t.k_first;
    int32_t group = shape->num_qo_heads / shape->num_kv_heads;
    int32_t chunk = group_chunk(shape);
    for (int32_t i = 0; i < item->num_kv_heads; i++) {
        t.kv_head = item->kv_head_begin + i;
        for (int32_t h = 0; h < group; h += chunk) {
            t.head_first = t.kv_head * group + h;
            t.heads = h + chunk <= group ? chunk : group - h;
            t.rows = (int64_t)item->q_rows * t.heads;
            run_tile(&t);
        }
    }
}
