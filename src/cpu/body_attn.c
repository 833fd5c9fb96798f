/*
 * body_attn.c - ragged attention of work items, for one ISA level.
 *
 * A tile is up to TILE_ROWS query rows of one kv head (the query heads of a group are rows of the
 * same tile, so keys are read once for all of them). Query rows are the lanes: Q is transposed once
 * a tile, and for each block of BLOCK keys, counted from the segment's first key,
 *   S^T = K Q^T         a key a row, a query row a lane
 *   one online softmax step, all lanes at once, without a sum across lanes
 *   O += P V            P read by columns
 * Tiles of short segments that end inside a vector lie side by side in a pack, whichever segments
 * and heads they are of: one transposition and one softmax step serve all of them. A tile's scores
 * are found for whole vectors of lanes, and what it computes in the lanes after its own the next
 * tile replaces. Keys past a tile's own are masked.
 *
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

#include "cpu/attn_amx.h"
#include "cpu/attn_fetch.h"
#include "cpu/attn_rows.h"
#include "cpu/attn_softmax.h"
#include "cpu/simd/tile.h"

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

/* S^T of n keys from first on. Lanes past the tile's rows get what the next tile of the pack
 * replaces. */
static void find_scores(const attn_tile *t, int64_t first, int64_t n)
{
    const mst_attn_call *call = t->call;
    int64_t dim = call->shape->head_dim;
    if (t->tiles) {
        scores_on_tiles(t, first, n);
        return;
    }
    mst_tile_args args = {.a = t->scratch->k,
                          .a_stride = t->stride,
                          .b = t->scratch->qt + t->lane,
                          .b_stride = PACK_LANES,
                          .depth = t->pairs ? mst_ceil_div(dim, 2) : dim,
                          .c = t->scratch->s + t->lane,
                          .c_stride = PACK_LANES,
                          .fresh = true};
    if (keys_serve_in_place(t)) {
        args.a = (const float *)call->k + row_of_keys(t, first);
        args.a_stride = call->k_row_stride;
    } else {
        load_keys(t, first, 0, n);
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
    int64_t row = t->lane + (only < 0 ? 0 : only);
    mst_tile_args args = {.a = t->scratch->s + row,
                          .a_stride = PACK_LANES,
                          .b = v,
                          .b_stride = v_stride,
                          .depth = t->pairs ? mst_ceil_div(n, 2) : n,
                          .c = t->scratch->o + row * t->stride,
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
            hide_values(t, n, (int64_t)t->scratch->low[t->lane + r],
                        (int64_t)t->scratch->high[t->lane + r]);
            multiply_values(t, t->scratch->v, t->stride, n, r, fresh);
        }
    } else if (values_serve_in_place(t)) {
        multiply_values(t, (const float *)t->call->v + row_of_values(t, first),
                        t->call->v_row_stride, n, -1, fresh);
    } else {
        load_values(t, first, n);
        multiply_values(t, t->scratch->v, t->stride, n, -1, fresh);
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
    row_walk out = first_row(t, call->out_row_stride, call->out_head_stride);
    for (int64_t r = 0; r < t->rows; r++, next_row(&out)) {
        const float *o = t->scratch->o + (t->lane + r) * t->stride;
        bool seen = t->scratch->sum[t->lane + r] != 0.0f;
        vf scale = vf_set1(t->scratch->keep[t->lane + r]);
        int64_t d = 0;
        for (; d < whole; d += VF_LANES) {
            vf x = seen ? vf_mul(vf_load(o + d), scale) : vf_zero();
            vf_store_any_n(call->out, dtype, out.at + d, x, VF_LANES);
        }
        if (d < dim) {
            vf x = seen ? vf_mul(vf_load(o + d), scale) : vf_zero();
            vf_store_any_n(call->out, dtype, out.at + d, x, (int)(dim - d));
        }
    }
}

static void store_lse(const attn_tile *t)
{
    const mst_attn_call *call = t->call;
    row_walk lse = first_row(t, call->lse_row_stride, 1);
    for (int64_t r = 0; r < t->rows; r++, next_row(&lse))
        call->lse[lse.at] = lse_of(t->scratch->max[t->lane + r], t->scratch->sum[t->lane + r]);
}

static void store_rows(const attn_tile *t)
{
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

/* Key at which the first step begins: most items begin at the first, and a division takes long. */
static int64_t first_step(const attn_tile *t)
{
    int64_t begin = t->item->kv_begin;
    return begin == 0 ? 0 : begin / t->block * t->block;
}

/* The step of a tile whose first key is `first`. */
static void take_step(attn_tile *t, int64_t first)
{
    t->first = first;
    t->keys = mst_max_i64(mst_min_i64(t->block, t->item->kv_end - first), 0);
    t->partly = t->all_low > first || t->all_high < first + t->keys;
}

/* Scores, weights and output of one step of each tile. */
static void run_step(const attn_pack *pack, bool first_block)
{
    for (int32_t i = 0; i < pack->count; i++)
        find_scores(&pack->tile[i], pack->tile[i].first, pack->tile[i].keys);
    softmax_block(pack, first_block);
    for (int32_t i = 0; i < pack->count; i++) {
        const attn_tile *t = &pack->tile[i];
        add_values(t, t->first, t->keys, t->partly, first_block);
    }
}

/* Runs the tiles of a pack, if any, and empties it. A tile of several steps is alone in its pack;
 * one that sees no key takes a step over none, which gives zeros. */
static void run_pack(attn_pack *pack)
{
    if (pack->count == 0)
        return;
    const attn_scratch *scratch = pack->tile[0].scratch;
    for (int64_t r = pack->rows; r % VF_LANES != 0; r++)
        pack->q_at[r] = pack->q_at[r - 1];
    load_queries(pack);
    for (int32_t i = 0; i < pack->count; i++) {
        attn_tile *t = &pack->tile[i];
        find_visible(t);
        take_step(t, first_step(t));
    }
    run_step(pack, true);
    attn_tile *t = &pack->tile[0];
    for (int64_t first = t->first + t->block; pack->count == 1 && first < t->item->kv_end;
         first += t->block) {
        take_step(t, first);
        run_step(pack, false);
    }
    for (int64_t r = 0; r < pack->rows; r += VF_LANES)
        vf_store(scratch->keep + r, vf_div(vf_set1(1.0f), vf_load(scratch->sum + r)));
    for (int32_t i = 0; i < pack->count; i++)
        store_rows(&pack->tile[i]);
    pack->count = 0;
    pack->rows = 0;
}

/* Where the rows of Q begin; those of one head are found many at a time. */
static void place_queries(const attn_tile *t, int64_t *at)
{
    int64_t stride = t->call->q_row_stride;
    row_walk q = first_row(t, stride, t->call->q_head_stride);
    if (t->heads == 1) {
        for (int64_t r = 0; r < t->rows; r++)
            at[r] = q.at + r * stride;
        return;
    }
    for (int64_t r = 0; r < t->rows; r++, next_row(&q))
        at[r] = q.at;
}

/* Whether a tile of so many rows runs beside others: it ends inside a vector, and takes one step.
 */
static bool shares_pack(const attn_tile *t, int64_t rows)
{
    return rows % VF_LANES != 0 && rows <= TILE_ROWS / 2 &&
           t->item->kv_end <= first_step(t) + t->block;
}

/*
 * Puts a tile like `of`, with so many query heads from head_first on, into the pack, which runs
 * first if the tile does not fit. `of` has been written long before: a copy of what is still on its
 * way to the cache would wait for it.
 */
static void add_tile(attn_pack *pack, const attn_tile *of, int32_t kv_head, int32_t head_first,
                     int32_t heads)
{
    int64_t rows = (int64_t)of->item->q_rows * heads;
    bool alone = !shares_pack(of, rows);
    if (alone || pack->count == MAX_PACK || pack->rows + rows > TILE_ROWS)
        run_pack(pack);
    attn_tile *t = &pack->tile[pack->count++];
    *t = *of;
    t->kv_head = kv_head;
    t->head_first = head_first;
    t->heads = heads;
    t->rows = rows;
    t->lane = pack->rows;
    t->lanes = mst_round_up(rows, VF_LANES);
    place_queries(t, pack->q_at + t->lane);
    pack->rows += rows;
    if (alone)
        run_pack(pack);
}

/* All tiles of one item. */
static void add_item(attn_pack *pack, attn_tile *t, const mst_attn_item *item,
                     const mst_attn_item *next)
{
    const mst_attn_call *call = t->call;
    const mst_attn_shape *shape = call->shape;
    t->item = item;
    t->q_first = call->q_offsets[item->segment];
    t->k_first = call->kv_offsets[item->segment];
    t->lq = call->q_offsets[item->segment + 1] - t->q_first;
    t->lk = call->kv_offsets[item->segment + 1] - t->k_first;
    int32_t group = shape->num_qo_heads / shape->num_kv_heads;
    int32_t chunk = group_chunk(shape);
    /* no more than the cache holds, and no keys that this item reads itself: asking for what is
       there is not free either */
    bool next_head = !fetched_whole(shape, item) && item->kv_end - item->kv_begin <= 256;
    bool next_item = next != NULL && fetched_whole(shape, next) &&
                     (next->segment != item->segment || next->kv_head_begin != item->kv_head_begin);
    for (int32_t i = 0; i < item->num_kv_heads; i++) {
        int32_t kv_head = item->kv_head_begin + i;
        if (next_head && i + 1 < item->num_kv_heads) {
            mst_attn_item rest = *item;
            rest.kv_head_begin = kv_head + 1;
            fetch_item(call, &rest, 0, 1, false);
        }
        if (next_item)
            fetch_item(call, next, i, item->num_kv_heads, true);
        for (int32_t h = 0; h < group; h += chunk)
            add_tile(pack, t, kv_head, kv_head * group + h, h + chunk <= group ? chunk : group - h);
    }
}

void MST_FOR_ISA(mst_attn_items_run)(const mst_attn_call *call, const mst_attn_item *items,
                                     int64_t num_items, const mst_attn_item *next, void *memory)
{
    const mst_attn_shape *shape = call->shape;
    attn_scratch scratch;
    attn_pack pack;
    attn_tile t = {.call = call,
                   .scratch = &scratch,
                   .stride = row_stride(shape),
                   .width = mst_round_up(shape->head_dim, VF_LANES),
                   .pairs = VF_PAIRS && shape->dtype == MSTAR_DTYPE_BF16,
                   .tiles = AMX_TILES && shape->dtype == MSTAR_DTYPE_BF16};
    t.block = t.tiles ? TILE_BLOCK : BLOCK;
    mst_arena arena;
    mst_arena_over(&arena, memory, SIZE_MAX);
    lay_out(&arena, shape, &scratch);
    pack.count = 0;
    pack.rows = 0;
    if (t.tiles)
        amx_open();
    for (int64_t i = 0; i < num_items; i++)
        add_item(&pack, &t, &items[i], i + 1 < num_items ? &items[i + 1] : next);
    run_pack(&pack);
    if (t.tiles)
        amx_close();
}
