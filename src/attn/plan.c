/*
 * plan.c - the planner: a checked layout becomes offsets and a work list in stable memory.
 *
 * Each segment is cut into row tiles, counted from its own first row, and groups of kv heads; the
 * backend names the tile from the segment alone, so an item never depends on its neighbours. Every
 * row of every head belongs to exactly one item, also rows that see no key (their item has no keys
 * and writes the zeros).
 *
 * The list runs from the heaviest item to the lightest, so that threads that take the next free
 * item finish together. Under a mask the items of one segment of the self wrapper are of many
 * weights, and far apart in such a list; where the backend names what its cache holds, the list
 * runs so through as many segments at a time, and then through the next. It is sorted while it is
 * made: first the items of each cost class are counted, then each item is put at its class's next
 * place. That is stable, linear, and needs no memory besides the list. Within a class, items stand
 * segment by segment, head group by head group, then by rows, so neighbours share their keys in
 * cache.
 *
 * Storage is one block. Its size comes from an arena in counting mode, and the same function then
 * cuts it. Eager mode lets it grow by doubling; graph mode takes all at create. Nothing of the plan
 * in force is touched before everything that can fail has succeeded.
 */
#include <string.h>

#include "attn/attn.h"

enum { FULL, LAST }; /* classes of a cut */

/* One layout on its way to a work list. */
typedef struct planner {
    const mstar_device *device;
    const mst_attn_shape *shape;
    const mst_attn_layout *layout;
    int64_t group; /* query heads of a kv head */
    bool causal;
    bool masked;         /* some row may see less than all keys */
    mst_attn_tile fixed; /* the tile of every segment; rows 0: the backend names each one's */
    int64_t near_tokens; /* keys of the segments that are listed together; INT64_MAX: of all */
    mst_attn_cut *known;
} planner;

/* Fixed cost of an item's rows (reading q, writing out), counted as so many keys. */
#define ROW_OVERHEAD_KEYS 8

int64_t mst_attn_cost(int64_t q_rows, int64_t num_heads, int64_t num_keys)
{
    int64_t cost;
    if (__builtin_mul_overflow(q_rows * num_heads, num_keys + ROW_OVERHEAD_KEYS, &cost))
        return INT64_MAX;
    return cost;
}

int32_t mst_attn_cost_class(int64_t cost)
{
    uint64_t value = cost < 1 ? 1 : (uint64_t)cost;
    int32_t octave = 63 - __builtin_clzll(value); /* 0..62 */
    uint64_t eighth = octave >= 3 ? value >> (octave - 3) : value << (3 - octave);
    return MST_ATTN_COST_CLASSES - 1 - (octave * 8 + (int32_t)(eighth & 7));
}

int64_t mst_attn_max_items(int64_t max_num_segments, int64_t max_total_tokens, int32_t num_kv_heads,
                           mst_attn_tile worst)
{
    /* A segment's first row opens a tile, and so does every rows-th after it: the most tiles come
       from as many segments as possible, all of one row but the rest of the tokens on one. */
    int64_t segments = mst_min_i64(max_num_segments, max_total_tokens);
    int64_t tiles = segments + (max_total_tokens - segments) / mst_max_i64(worst.rows, 1);
    return tiles * mst_ceil_div(num_kv_heads, mst_max_i64(worst.heads, 1));
}

static int32_t class_of(const planner *p, int64_t num_rows, int64_t num_heads, int64_t keys)
{
    return mst_attn_cost_class(mst_attn_cost(num_rows, num_heads * p->group, keys));
}

static int32_t last_rows(const mst_attn_cut *cut)
{
    return cut->lq - (cut->tiles - 1) * cut->rows;
}

static int32_t last_heads(const planner *p, const mst_attn_cut *cut)
{
    return p->shape->num_kv_heads - (cut->groups - 1) * cut->heads;
}

static void make_cut(const planner *p, int32_t lq, int32_t lk, mst_attn_cut *cut)
{
    mst_attn_tile tile = p->fixed;
    if (tile.rows == 0)
        tile = p->device->backend->attn_tile(p->device, p->shape, lq, lk);
    cut->lq = lq;
    cut->lk = lk;
    cut->rows = tile.rows < 1 ? 1 : tile.rows;
    cut->heads = tile.heads < 1 ? 1 : tile.heads;
    cut->tiles = lq <= cut->rows ? 1 : (int32_t)mst_ceil_div(lq, cut->rows);
    cut->groups = p->shape->num_kv_heads <= cut->heads
                      ? 1
                      : (int32_t)mst_ceil_div(p->shape->num_kv_heads, cut->heads);
    for (int rows = FULL; rows <= LAST; rows++)
        for (int heads = FULL; heads <= LAST; heads++)
            cut->classes[rows][heads] = (int16_t)class_of(
                p, rows == FULL && cut->tiles > 1 ? cut->rows : last_rows(cut),
                heads == FULL && cut->groups > 1 ? cut->heads : last_heads(p, cut), lk);
}

/* The cut of a segment; NULL for one without rows. Valid until the next call. */
static inline const mst_attn_cut *cut_of(planner *p, int64_t segment)
{
    const mst_attn_layout *layout = p->layout;
    int32_t lq = layout->q_offsets[segment + 1] - layout->q_offsets[segment];
    int32_t lk = layout->kv_offsets[segment + 1] - layout->kv_offsets[segment];
    if (lq == 0)
        return NULL;
    mst_attn_cut *cut = &p->known[((uint32_t)lq + 31 * (uint32_t)(lk - lq)) % MST_ATTN_KNOWN_CUTS];
    if (cut->lq != lq || cut->lk != lk)
        make_cut(p, lq, lk, cut);
    return cut;
}

/* Keys that rows [row, row + num_rows) see. */
static inline mst_key_range keys_of(const planner *p, const mst_attn_cut *cut, int64_t row,
                                    int64_t num_rows)
{
    if (!p->masked)
        return (mst_key_range){0, cut->lk};
    return mst_attn_visible(cut->lq, cut->lk, row, row + num_rows, p->causal, p->shape->window_left,
                            p->shape->window_right);
}

/* Counts a segment's items by class where no row is masked: all tiles but the last are alike. What
 * is not there has a class too, and is counted 0 times: a branch would go either way. */
static void count_alike(const mst_attn_cut *cut, int64_t *classes)
{
    int64_t tiles = cut->tiles - 1, groups = cut->groups - 1;
    classes[cut->classes[LAST][LAST]]++;
    classes[cut->classes[FULL][LAST]] += tiles;
    if (groups == 0)
        return;
    classes[cut->classes[LAST][FULL]] += groups;
    classes[cut->classes[FULL][FULL]] += tiles * groups;
}

/* The same tile by tile. */
static void count_masked(planner *p, int64_t segment, int64_t *classes)
{
    const mst_attn_cut *cut = cut_of(p, segment);
    if (cut == NULL)
        return;
    for (int64_t row = 0; row < cut->lq; row += cut->rows) {
        int64_t num_rows = mst_min_i64(cut->rows, cut->lq - row);
        mst_key_range range = keys_of(p, cut, row, num_rows);
        int64_t keys = range.end - range.begin;
        classes[class_of(p, num_rows, last_heads(p, cut), keys)]++;
        if (cut->groups > 1)
            classes[class_of(p, num_rows, cut->heads, keys)] += cut->groups - 1;
    }
}

static inline mst_attn_item item_of(int64_t segment, int64_t row, int64_t num_rows,
                                    mst_key_range keys, int64_t head, int64_t num_heads)
{
    return (mst_attn_item){.segment = (int32_t)segment,
                           .q_begin = (int32_t)row,
                           .q_rows = (int32_t)num_rows,
                           .kv_begin = (int32_t)keys.begin,
                           .kv_end = (int32_t)keys.end,
                           .kv_head_begin = (int32_t)head,
                           .num_kv_heads = (int32_t)num_heads,
                           .split = 0,
                           .num_splits = 1,
                           .slot = -1};
}

/* Puts a segment's items at their classes' next places. */
static void cut_segment(planner *p, int64_t segment, int64_t *next, mst_attn_item *items)
{
    const mst_attn_cut *cut = cut_of(p, segment);
    if (cut == NULL)
        return;
    int64_t kv_heads = p->shape->num_kv_heads;
    int64_t class_cost = -1; /* the cost that class is of */
    int32_t class = 0;
    for (int64_t head = 0; head < kv_heads; head += cut->heads) {
        int64_t num_heads = mst_min_i64(cut->heads, kv_heads - head);
        for (int64_t row = 0; row < cut->lq; row += cut->rows) {
            int64_t num_rows = mst_min_i64(cut->rows, cut->lq - row);
            mst_key_range keys = keys_of(p, cut, row, num_rows);
            int64_t cost = mst_attn_cost(num_rows, num_heads * p->group, keys.end - keys.begin);
            if (cost != class_cost) {
                class_cost = cost;
                class = mst_attn_cost_class(cost);
            }
            items[next[class]++] = item_of(segment, row, num_rows, keys, head, num_heads);
        }
    }
}

/* The same where no row is masked and an item has all heads. */
static void cut_alike(planner *p, int64_t segment, int64_t *next, mst_attn_item *items)
{
    const mst_attn_cut *cut = cut_of(p, segment);
    if (cut == NULL)
        return;
    int32_t heads = p->shape->num_kv_heads;
    mst_key_range keys = {0, cut->lk};
    int64_t row = 0;
    for (; row + cut->rows < cut->lq; row += cut->rows)
        items[next[cut->classes[FULL][LAST]]++] = item_of(segment, row, cut->rows, keys, 0, heads);
    items[next[cut->classes[LAST][LAST]]++] = item_of(segment, row, cut->lq - row, keys, 0, heads);
}

/* Counts of the classes become their first places, from first on; the end of the last. */
static int64_t starts_of(int64_t *classes, int64_t first)
{
    int64_t sum = first;
    for (int32_t i = 0; i < MST_ATTN_COST_CLASSES; i++) {
        int64_t count = classes[i];
        classes[i] = sum;
        sum += count;
    }
    return sum;
}

/* One past the last segment that is listed with first: of those whose keys stay near together, or
 * all that follow where it has too many alone. */
static int64_t near_end(const planner *p, int64_t first)
{
    const int32_t *kv = p->layout->kv_offsets;
    int64_t end = first + 1;
    if (kv[end] - kv[first] > p->near_tokens)
        return p->layout->num_segments;
    while (end < p->layout->num_segments && (int64_t)kv[end + 1] - kv[first] <= p->near_tokens)
        end++;
    return end;
}

/* The list under a mask. */
static void list_masked(planner *p, mst_attn_item *items)
{
    int64_t end, num_items = 0;
    for (int64_t first = 0; first < p->layout->num_segments; first = end) {
        int64_t classes[MST_ATTN_COST_CLASSES] = {0};
        end = near_end(p, first);
        for (int64_t segment = first; segment < end; segment++)
            count_masked(p, segment, classes);
        num_items = starts_of(classes, num_items);
        for (int64_t segment = first; segment < end; segment++)
            cut_segment(p, segment, classes, items);
    }
}

/* The same where every row sees all keys; classes: the items of each. */
static void list_alike(planner *p, int64_t *classes, mst_attn_item *items)
{
    bool all_heads = p->fixed.heads >= p->shape->num_kv_heads;
    (void)starts_of(classes, 0);
    for (int64_t segment = 0; segment < p->layout->num_segments; segment++)
        if (all_heads)
            cut_alike(p, segment, classes, items);
        else
            cut_segment(p, segment, classes, items);
}

/* Cuts a block for so many offsets a side and items; with a counting arena, finds its size. */
static void lay_out(mst_arena *arena, bool one_side, int64_t num_offsets, int64_t num_items,
                    mst_attn_plan *plan)
{
    plan->q_offsets = mst_arena_take(arena, num_offsets, sizeof *plan->q_offsets);
    plan->kv_offsets =
        one_side ? plan->q_offsets : mst_arena_take(arena, num_offsets, sizeof *plan->kv_offsets);
    plan->items = mst_arena_take(arena, num_items, sizeof *plan->items);
    plan->items_capacity = num_items;
}

static mstar_status measure(bool one_side, int64_t num_offsets, int64_t num_items, size_t *bytes)
{
    mst_attn_plan unused;
    mst_arena arena;
    mst_arena_count(&arena);
    lay_out(&arena, one_side, num_offsets, num_items, &unused);
    if (arena.overflowed)
        return mst_fail(MSTAR_OUT_OF_MEMORY,
                        "attention plan: %lld offsets and %lld work items pass the address space",
                        (long long)num_offsets, (long long)num_items);
    *bytes = arena.used;
    return MSTAR_OK;
}

static mst_attn_tile worst_tile(const mstar_device *device, const mst_attn_shape *shape)
{
    const mst_backend *backend = device->backend;
    return backend->attn_worst_tile != NULL ? backend->attn_worst_tile(device, shape)
                                            : (mst_attn_tile){1, 1};
}

static int64_t most_items(const mstar_device *device, const mst_attn_config *config)
{
    return mst_attn_max_items(config->max_num_segments, config->max_total_tokens,
                              config->shape.num_kv_heads, worst_tile(device, &config->shape));
}

mstar_status mst_attn_plan_bytes(const mstar_device *device, const mst_attn_config *config,
                                 size_t *bytes)
{
    *bytes = 0;
    if (!config->graph)
        return MSTAR_OK;
    return measure(config->kind == MST_ATTN_SELF, config->max_num_segments + 1,
                   most_items(device, config), bytes);
}

mstar_status mst_attn_plan_reserve(mst_attn_plan *plan, const mstar_device *device,
                                   const mst_attn_config *config)
{
    if (!config->graph)
        return MSTAR_OK;
    int64_t num_items = most_items(device, config);
    bool one_side = config->kind == MST_ATTN_SELF;
    size_t bytes = 0;
    void *block;
    MST_TRY(mst_attn_plan_bytes(device, config, &bytes));
    MST_TRY(mst_alloc(bytes, "attention plan at its ceilings", &block));
    mst_arena arena;
    mst_arena_over(&arena, block, bytes);
    plan->block = block;
    plan->block_bytes = bytes;
    lay_out(&arena, one_side, config->max_num_segments + 1, num_items, plan);
    return MSTAR_OK;
}

/* Eager mode: makes the block hold so much, or changes nothing. */
static mstar_status grow_block(mst_attn_plan *plan, bool one_side, int64_t num_offsets,
                               int64_t num_items)
{
    size_t bytes = 0;
    void *block = plan->block;
    size_t block_bytes = plan->block_bytes;
    MST_TRY(measure(one_side, num_offsets, num_items, &bytes));
    if (bytes > block_bytes) {
        block_bytes =
            block_bytes > SIZE_MAX / 2 || bytes > 2 * block_bytes ? bytes : 2 * block_bytes;
        MST_TRY(mst_alloc(block_bytes, "attention plan", &block));
        mst_free(plan->block);
        plan->block = block;
        plan->block_bytes = block_bytes;
    }
    mst_arena arena;
    mst_arena_over(&arena, block, block_bytes);
    lay_out(&arena, one_side, num_offsets, num_items, plan);
    return MSTAR_OK;
}

/* Copies num_segments + 1 offsets; in graph mode the tail repeats the last one, so that what a
 * recorded graph reads there are empty segments. */
static void copy_offsets(int32_t *to, const int32_t *from, int64_t num_segments,
                         int64_t max_num_segments)
{
    memmove(to, from, (size_t)(num_segments + 1) * sizeof *to);
    for (int64_t i = num_segments + 1; i <= max_num_segments; i++)
        to[i] = to[num_segments];
}

/* The static vectors of graph mode are shown to the caller, who may plan from them: the same side
 * is fine, but the other side's would be overwritten before it is read. */
static mstar_status check_sides_apart(const mst_attn_plan *plan, const mst_attn_config *config,
                                      const mst_attn_layout *layout)
{
    uintptr_t own_bytes = (uintptr_t)(config->max_num_segments + 1) * sizeof(int32_t);
    uintptr_t given_bytes = (uintptr_t)(layout->num_segments + 1) * sizeof(int32_t);
    uintptr_t own_q = (uintptr_t)plan->q_offsets;
    uintptr_t own_kv = (uintptr_t)plan->kv_offsets;
    uintptr_t q = (uintptr_t)layout->q_offsets;
    uintptr_t kv = (uintptr_t)layout->kv_offsets;
    if ((q < own_kv + own_bytes && own_kv < q + given_bytes) ||
        (kv < own_q + own_bytes && own_q < kv + given_bytes))
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s lies in the wrapper's own offsets of the other side; pass a copy",
                        kv < own_q + own_bytes && own_q < kv + given_bytes ? "kv_cu_seqlens"
                                                                           : "q_cu_seqlens");
    return MSTAR_OK;
}

mstar_status mst_attn_plan_make(mst_attn_plan *plan, const mstar_device *device,
                                const mst_attn_config *config, const mst_attn_layout *layout,
                                bool causal)
{
    int64_t classes[MST_ATTN_COST_CLASSES] = {0};
    planner p = {.device = device,
                 .shape = &config->shape,
                 .layout = layout,
                 .group = config->shape.num_qo_heads / config->shape.num_kv_heads,
                 .causal = causal,
                 .known = plan->known,
                 .near_tokens = INT64_MAX,
                 .masked =
                     causal || config->shape.window_left >= 0 || config->shape.window_right >= 0};
    bool one_side = config->kind == MST_ATTN_SELF;
    if (device->backend->attn_tile == NULL)
        p.fixed = worst_tile(device, &config->shape);
    if (one_side && device->backend->attn_near_tokens != NULL)
        p.near_tokens = device->backend->attn_near_tokens(device, &config->shape);

    /* counted without a walk over the items, so that a layout too large for memory is refused at
       once */
    int64_t num_items = 0;
    for (int64_t segment = 0; segment < layout->num_segments; segment++) {
        const mst_attn_cut *cut = cut_of(&p, segment);
        if (cut == NULL)
            continue;
        num_items += (int64_t)cut->tiles * cut->groups;
        if (!p.masked)
            count_alike(cut, classes);
    }
    if (config->graph) {
        if (num_items > plan->items_capacity)
            return mst_fail(MSTAR_INTERNAL,
                            "the layout has %lld work items and the ceilings were sized for %lld: "
                            "the backend cut a segment finer than its worst tile",
                            (long long)num_items, (long long)plan->items_capacity);
        if (!one_side)
            MST_TRY(check_sides_apart(plan, config, layout));
    } else {
        MST_TRY(grow_block(plan, one_side, layout->num_segments + 1, num_items));
    }

    /* nothing fails from here on */
    if (p.masked)
        list_masked(&p, plan->items);
    else
        list_alike(&p, classes, plan->items);
    copy_offsets(plan->q_offsets, layout->q_offsets, layout->num_segments,
                 config->max_num_segments);
    if (!one_side)
        copy_offsets(plan->kv_offsets, layout->kv_offsets, layout->num_segments,
                     config->max_num_segments);
    plan->num_items = num_items;
    plan->num_segments = layout->num_segments;
    plan->num_tokens = layout->num_tokens;
    plan->num_kv_tokens = layout->num_kv_tokens;
    plan->causal = causal;
    plan->ready = true;
    return MSTAR_OK;
}

void mst_attn_plan_free(mst_attn_plan *plan)
{
    mst_free(plan->block);
    memset(plan, 0, sizeof *plan);
}
