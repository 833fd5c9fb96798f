/*
 * cuda_attn_list.c - the planner's list of row tiles in the form that attention kernels take it in:
 * host memory in, host memory out.
 */
#include <stddef.h>
#include <string.h>

#include "cuda/attn_args.h"
#include "cuda/cuda.h"

int32_t mst_cuda_attn_least_split(const mst_attn_shape *shape)
{
    int64_t part = mst_cuda_attn_is_plain(shape)
                       ? 0
                       : mst_cuda_attn_part_keys(mst_cuda_attn_tile_head_dim(shape->head_dim), 1,
                                                 shape->num_kv_heads, INT32_MAX);
    return part > 0 ? (int32_t)part : INT32_MAX;
}

/* A tile that whole segments share, and what they take of it; none where count is 0. */
typedef struct open_tile {
    int32_t count;
    int64_t rows, keys;
} open_tile;

/* Whether a whole segment leaves room in a tile for another, which takes 16 places of each at
 * least. */
static bool leaves_room(int64_t rows, int64_t keys, int32_t block_keys)
{
    return mst_cuda_attn_fits(1, 16, 16, rows, keys, block_keys);
}

/* Puts a segment that leaves room into the open tile, or else into the next, which is open then.
 * Whether it has joined others. */
static bool join(open_tile *open, int64_t rows, int64_t keys, int32_t block_keys)
{
    bool joins = open->count > 0 &&
                 mst_cuda_attn_fits(open->count, open->rows, open->keys, rows, keys, block_keys);
    if (!joins)
        *open = (open_tile){0, 0, 0};
    open->count++;
    open->rows += mst_round_up(rows, 16);
    open->keys += mst_round_up(keys, 16);
    return joins;
}

/* A list on its way from the planner's form to the kernels'. */
typedef struct list_writer {
    const mst_attn_call *plan;
    const mst_attn_shape *shape;
    int32_t group;
    int32_t rows; /* of a tile */
    int32_t tile_head_dim;
    int32_t least_split;          /* a segment of fewer keys is not split */
    int64_t num_slots, max_slots; /* parts of tiles; each has a partial result for every kv head */
    mst_cuda_attn_item *items;
    int64_t num_items;
    bool shares;
    int32_t block_keys;
    open_tile open;
    mst_cuda_attn_item *open_item; /* its place in the list */
} list_writer;

_Static_assert(sizeof(mst_cuda_attn_shared) == sizeof(mst_cuda_attn_item) &&
                   offsetof(mst_cuda_attn_shared, slot) == offsetof(mst_cuda_attn_item, slot),
               "one stands in the place of the other");

/* An item of a whole segment becomes the first of a tile that is shared. */
static void open_to_others(mst_cuda_attn_item *item)
{
    mst_cuda_attn_shared shared = {.first = {{item->q_first, item->kv_first}},
                                   .rows = (uint32_t)item->row_end,
                                   .keys = (uint32_t)item->lk,
                                   .slot = MST_CUDA_SHARED};
    memcpy(item, &shared, sizeof shared);
}

/* A segment beside the index before it in the tile that they share. */
static void add_sharer(mst_cuda_attn_item *item, int32_t index, int32_t q_first, int32_t kv_first,
                       int32_t rows, int32_t keys)
{
    if (index == 1)
        open_to_others(item);
    mst_cuda_attn_shared *to = (mst_cuda_attn_shared *)(void *)item;
    to->first[index].q = q_first;
    to->first[index].kv = kv_first;
    to->rows |= (uint32_t)rows << (8 * index);
    to->keys |= (uint32_t)keys << (8 * index);
}

/* The latest item, which has more keys than a part: its parts as items of their own, or one item
 * that does them in turn. */
static void write_parts(list_writer *w, int64_t part)
{
    mst_cuda_attn_item item = w->items[--w->num_items];
    int32_t begin = item.key_begin, end = item.key_end;
    int64_t first = begin / part;
    int64_t num_parts = end > begin ? (end - 1) / part + 1 - first : 1;
    item.num_splits = (int32_t)num_parts;
    if (num_parts == 1 || w->num_slots + num_parts > w->max_slots) {
        w->items[w->num_items++] = item;
        return;
    }
    item.slot = (int32_t)w->num_slots;
    w->num_slots += num_parts;
    for (int64_t i = 0; i < num_parts; i++) {
        item.split = (int32_t)i;
        item.key_begin = (int32_t)mst_max_i64(begin, (first + i) * part);
        item.key_end = (int32_t)mst_min_i64(end, (first + i + 1) * part);
        w->items[w->num_items++] = item;
    }
}

/* Keys of a part of the segment, INT32_MAX where its keys are not split. */
static int32_t part_of(const list_writer *w, int32_t lq, int32_t lk)
{
    if (lk < w->least_split)
        return INT32_MAX;
    int64_t part = mst_cuda_attn_part_keys(w->tile_head_dim, (int64_t)lq * w->group,
                                           w->shape->num_kv_heads, lk);
    return part > 0 ? (int32_t)part : INT32_MAX;
}

/* What the tiles of an item have in common; begin and end of its keys. */
typedef struct item_keys {
    int32_t q_first, kv_first, lq, lk, begin, end, part_keys;
} item_keys;

/* Written where it stays, field by field: a copy of a struct just made waits for its stores. */
static inline void write_tile(mst_cuda_attn_item *to, item_keys keys, int32_t row, int32_t row_end)
{
    *to = (mst_cuda_attn_item){.q_first = keys.q_first,
                               .kv_first = keys.kv_first,
                               .lq = keys.lq,
                               .lk = keys.lk,
                               .row_begin = row,
                               .row_end = row_end,
                               .key_begin = keys.begin,
                               .key_end = keys.end,
                               .split = 0,
                               .num_splits = 1,
                               .slot = -1,
                               .part_keys = keys.part_keys};
}

static inline item_keys keys_of(const mst_attn_call *plan, const mst_attn_item *item)
{
    const int32_t *q = plan->q_offsets + item->segment;
    const int32_t *kv = plan->kv_offsets + item->segment;
    return (item_keys){.q_first = q[0],
                       .kv_first = kv[0],
                       .lq = q[1] - q[0],
                       .lk = kv[1] - kv[0],
                       .begin = item->kv_begin,
                       .end = item->kv_end,
                       .part_keys = INT32_MAX};
}

/* The items of a row tile, or its place in a tile that is shared. */
static void write_item(list_writer *w, const mst_attn_item *from)
{
    item_keys keys = keys_of(w->plan, from);
    const int32_t group = w->group, rows = w->rows, key_last = keys.end;
    const int32_t end = (from->q_begin + from->q_rows) * group;
    keys.part_keys = part_of(w, keys.lq, keys.lk);
    if (w->shares && from->q_rows == keys.lq && leaves_room(end, keys.lk, w->block_keys)) {
        if (join(&w->open, end, keys.lk, w->block_keys)) {
            add_sharer(w->open_item, w->open.count - 1, keys.q_first, keys.kv_first, end, keys.lk);
            return;
        }
        w->open_item = &w->items[w->num_items];
    }
    for (int32_t row = from->q_begin * group; row < end;) {
        int32_t row_end = end - row > rows ? row + rows : end;
        if (w->plan->causal) { /* a low tile sees less than the item it is cut from */
            int64_t last = (int64_t)keys.lk - keys.lq + (row_end - 1) / group;
            keys.end = (int32_t)mst_max_i64(keys.begin, mst_min_i64(key_last, last + 1));
        }
        write_tile(&w->items[w->num_items++], keys, row, row_end);
        if (keys.end > keys.part_keys)
            write_parts(w, keys.part_keys);
        row = row_end;
    }
}

/* An item of a segment that may be split; where the next one goes. */
static __attribute__((noinline)) mst_cuda_attn_item *
write_split(list_writer *w, const mst_attn_item *from, mst_cuda_attn_item *to)
{
    w->num_items = to - w->items;
    write_item(w, from);
    return w->items + w->num_items;
}

/* The list where tiles are not shared, see the keys of the item that they are cut from, and are
 * one or two of an item: the second is written either way, and counted where there is one, since a
 * branch would go either way. */
static void write_unshared(list_writer *w)
{
    const mst_attn_call *plan = w->plan;
    const int32_t group = w->group, rows = w->rows, least_split = w->least_split;
    mst_cuda_attn_item *to = w->items;
    for (int64_t i = 0; i < plan->num_items; i++) {
        const mst_attn_item *from = &plan->items[i];
        const item_keys keys = keys_of(plan, from);
        const int32_t row = from->q_begin * group, end = row + from->q_rows * group;
        const int32_t middle = end - row > rows ? row + rows : end;
        if (keys.lk >= least_split) {
            to = write_split(w, from, to);
            continue;
        }
        write_tile(&to[0], keys, row, middle);
        write_tile(&to[1], keys, middle, end);
        to += 1 + (middle < end);
    }
    w->num_items = to - w->items;
}

int64_t mst_cuda_attn_write_list(const mst_cuda *cuda, const mst_attn_shape *shape,
                                 const mst_cuda_kernel *kernel, const mst_attn_call *plan,
                                 int64_t max_slots, mst_cuda_attn_item *items)
{
    list_writer w = {.plan = plan,
                     .shape = shape,
                     .group = mst_cuda_attn_group_of(shape),
                     .rows = kernel->rows,
                     .tile_head_dim = mst_cuda_attn_tile_head_dim(shape->head_dim),
                     .least_split = mst_cuda_attn_least_split(shape),
                     .max_slots = max_slots,
                     .items = items,
                     .shares = !mst_cuda_attn_is_plain(shape) && kernel->major == 0 &&
                               mst_cuda_attn_shares(kernel->rows, plan->num_items,
                                                    shape->num_kv_heads, cuda->multiprocessors),
                     .block_keys = kernel->block_keys};
    if (!w.shares && !plan->causal && w.group <= 2 * w.rows)
        write_unshared(&w);
    else
        for (int64_t i = 0; i < plan->num_items; i++)
            write_item(&w, &plan->items[i]);
    return w.num_items;
}

/* ---- how many tiles there are ---------------------------------------------------------------- */

#define SHARED_KEYS 64 /* a block's, where sharing is an alternative to wgmma */

/* Tiles that another segment, whole, adds to those before it. */
static int64_t add_shared(open_tile *open, int64_t rows, int64_t keys)
{
    if (!leaves_room(rows, keys, SHARED_KEYS))
        return mst_ceil_div(rows, 64);
    return join(open, rows, keys, SHARED_KEYS) ? 0 : 1;
}

void mst_cuda_attn_tiles_of(const mst_attn_shape *shape, const mst_attn_call *plan,
                            mst_cuda_attn_tiles *tiles)
{
    const int64_t group = mst_cuda_attn_group_of(shape);
    open_tile open = {0, 0, 0};
    *tiles = (mst_cuda_attn_tiles){0, 0, 0, 0};
    for (int64_t i = 0; i < plan->num_items; i++) {
        const mst_attn_item *item = &plan->items[i];
        const int32_t *q = plan->q_offsets + item->segment;
        const int32_t *kv = plan->kv_offsets + item->segment;
        int64_t rows = item->q_rows * group;
        if (!plan->causal)
            tiles->whole_keys = mst_max_i64(tiles->whole_keys, kv[1] - kv[0]);
        tiles->of_64 += mst_ceil_div(rows, 64);
        tiles->of_128 += mst_ceil_div(rows, 128);
        tiles->shared += item->q_rows == q[1] - q[0] ? add_shared(&open, rows, kv[1] - kv[0])
                                                     : mst_ceil_div(rows, 64);
    }
}

void mst_cuda_attn_tiles_of_even(const mst_attn_shape *shape, int64_t segments, int64_t tokens,
                                 int64_t kv_tokens, mst_cuda_attn_tiles *tiles)
{
    int64_t rows = mst_ceil_div(tokens, segments) * mst_cuda_attn_group_of(shape);
    int64_t keys = mst_ceil_div(kv_tokens, segments);
    open_tile open = {0, 0, 0};
    int64_t sharers = 1;
    (void)add_shared(&open, rows, keys);
    while (sharers < segments && add_shared(&open, rows, keys) == 0)
        sharers++;
    tiles->whole_keys = keys;
    tiles->of_64 = mst_ceil_div(rows, 64) * segments;
    tiles->of_128 = mst_ceil_div(rows, 128) * segments;
    tiles->shared = sharers > 1 ? mst_ceil_div(segments, sharers) : tiles->of_64;
}
