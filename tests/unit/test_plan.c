/*
 * test_plan.c - the planner (src/attn/plan.c) over a fake backend: what the work list must cover
 * and in which order, that both passes and both modes agree, and that nothing of the plan in force
 * changes when a plan fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn.h"
#include "support_fake_device.h"
#include "support_random.h"

#define MAX_SEGMENTS 16
#define MAX_TOKENS 400
#define MAX_KV_TOKENS 500

static mst_attn_config make_config(mst_attn_kind kind, bool graph, int32_t kv_heads, int32_t group)
{
    mst_attn_config config = {.kind = kind,
                              .shape = {.num_qo_heads = kv_heads * group,
                                        .num_kv_heads = kv_heads,
                                        .head_dim = 8,
                                        .dtype = MSTAR_DTYPE_F32,
                                        .sm_scale = 1.0F,
                                        .window_left = -1,
                                        .window_right = -1},
                              .graph = graph,
                              .max_num_segments = graph ? MAX_SEGMENTS : -1,
                              .max_total_tokens = graph ? MAX_TOKENS : -1,
                              .max_total_kv_tokens = graph ? MAX_KV_TOKENS : -1};
    if (kind == MST_ATTN_SELF)
        config.max_total_kv_tokens = config.max_total_tokens;
    return config;
}

typedef struct random_layout {
    int32_t q[MAX_SEGMENTS + 1], kv[MAX_SEGMENTS + 1];
    mst_attn_layout layout;
} random_layout;

/* Lengths of several characters: empty ones, ones, short ones, and now and then a long one. */
static int32_t random_length(test_random *random, int32_t left)
{
    static const int32_t most[] = {0, 1, 1, 5, 9, 40, 300};
    int64_t pick = test_random_between(random, 0, 6);
    return (int32_t)mst_min_i64(test_random_between(random, 0, most[pick]), left);
}

static void make_layout(test_random *random, mst_attn_kind kind, random_layout *made)
{
    int64_t segments = test_random_between(random, 0, MAX_SEGMENTS);
    made->q[0] = 0;
    made->kv[0] = 0;
    for (int64_t i = 0; i < segments; i++) {
        made->q[i + 1] = made->q[i] + random_length(random, MAX_TOKENS - made->q[i]);
        made->kv[i + 1] = made->kv[i] + random_length(random, MAX_KV_TOKENS - made->kv[i]);
    }
    const int32_t *kv = kind == MST_ATTN_SELF ? made->q : made->kv;
    made->layout = (mst_attn_layout){made->q, kv, segments, made->q[segments], kv[segments]};
}

static int compare_place(const mst_attn_item *a, const mst_attn_item *b)
{
    if (a->segment != b->segment)
        return a->segment < b->segment ? -1 : 1;
    if (a->kv_head_begin != b->kv_head_begin)
        return a->kv_head_begin < b->kv_head_begin ? -1 : 1;
    return (a->q_begin > b->q_begin) - (a->q_begin < b->q_begin);
}

static int32_t class_of(const mst_attn_config *config, const mst_attn_item *item)
{
    int64_t group = config->shape.num_qo_heads / config->shape.num_kv_heads;
    return mst_attn_cost_class(
        mst_attn_cost(item->q_rows, item->num_kv_heads * group, item->kv_end - item->kv_begin));
}

/* Every row of every head has one owner, whose keys hold all that the row sees and lie inside. */
static void check_list(const mst_attn_config *config, const mst_attn_layout *layout, bool causal,
                       const mst_attn_plan *plan)
{
    static unsigned char owners[MAX_TOKENS][8];
    const mst_attn_shape *shape = &config->shape;
    memset(owners, 0, sizeof owners);
    for (int64_t i = 0; i < plan->num_items; i++) {
        const mst_attn_item *item = &plan->items[i];
        assert_true(item->segment >= 0 && item->segment < layout->num_segments);
        int32_t first = layout->q_offsets[item->segment];
        int64_t lq = layout->q_offsets[item->segment + 1] - first;
        int64_t lk = layout->kv_offsets[item->segment + 1] - layout->kv_offsets[item->segment];
        assert_true(item->q_rows >= 1 && item->q_begin >= 0 && item->q_begin + item->q_rows <= lq);
        assert_true(item->num_kv_heads >= 1 && item->kv_head_begin >= 0 &&
                    item->kv_head_begin + item->num_kv_heads <= shape->num_kv_heads);
        assert_true(item->kv_begin >= 0 && item->kv_begin <= item->kv_end && item->kv_end <= lk);
        assert_int_equal(item->split, 0);
        assert_int_equal(item->num_splits, 1);
        assert_int_equal(item->slot, -1);
        for (int64_t row = item->q_begin; row < item->q_begin + item->q_rows; row++) {
            for (int32_t h = 0; h < item->num_kv_heads; h++)
                owners[first + row][item->kv_head_begin + h]++;
            for (int64_t key = 0; key < lk; key++) {
                int64_t place = lk - lq + row;
                bool visible = (!causal || key <= place) &&
                               (shape->window_left < 0 || place - key <= shape->window_left) &&
                               (shape->window_right < 0 || key - place <= shape->window_right);
                if (visible)
                    assert_true(key >= item->kv_begin && key < item->kv_end);
            }
        }
        if (i > 0) {
            int32_t before = class_of(config, item - 1);
            int32_t here = class_of(config, item);
            assert_true(before <= here);
            if (before == here)
                assert_true(compare_place(item - 1, item) < 0);
        }
    }
    for (int64_t token = 0; token < layout->num_tokens; token++) {
        for (int32_t h = 0; h < shape->num_kv_heads; h++)
            assert_int_equal(owners[token][h], 1);
    }
}

static void check_offsets(const int32_t *got, const int32_t *want, int64_t segments,
                          int64_t entries)
{
    assert_memory_equal(got, want, (size_t)(segments + 1) * sizeof *got);
    for (int64_t i = segments + 1; i < entries; i++)
        assert_int_equal(got[i], want[segments]);
}

static uint64_t allocations(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    assert_int_equal(mstar_memory_query(&info), MSTAR_OK);
    return info.total_allocations;
}

static uint64_t live_allocations(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    assert_int_equal(mstar_memory_query(&info), MSTAR_OK);
    return info.live_allocations;
}

/* 2,000 random layouts, eager and graph, with one pair of plans that is re-planned 20 times. */
static void lists_cover_everything_once(void **state)
{
    static const int64_t windows[] = {-1, -1, -1, 0, 1, 7, 50, INT64_MAX};
    fake_device fake;
    uint64_t live = live_allocations();
    int64_t items = 0;
    (void)state;
    fake_device_init(&fake);
    for (int shape = 0; shape < 100; shape++) {
        test_random random = {(uint64_t)shape + 1};
        mst_attn_kind kind = (mst_attn_kind)test_random_between(&random, 0, 2);
        int32_t kv_heads = (int32_t)test_random_between(&random, 1, 5);
        int32_t group = (int32_t)test_random_between(&random, 1, 4);
        mst_attn_config eager = make_config(kind, false, kv_heads, group);
        mst_attn_config graph = make_config(kind, true, kv_heads, group);
        mst_attn_plan eager_plan = {0};
        mst_attn_plan graph_plan = {0};
        eager.shape.window_left = windows[test_random_between(&random, 0, 7)];
        eager.shape.window_right = windows[test_random_between(&random, 0, 7)];
        graph.shape = eager.shape;
        fake.vary = test_random_between(&random, 0, 1) == 1;
        fake.tile.rows = (int32_t)test_random_between(&random, 1, 64);
        fake.tile.heads = (int32_t)test_random_between(&random, 1, 6);
        fake.worst = fake.vary ? (mst_attn_tile){1, 1} : fake.tile;
        assert_int_equal(mst_attn_plan_reserve(&eager_plan, &fake.device, &eager), MSTAR_OK);
        assert_int_equal(mst_attn_plan_reserve(&graph_plan, &fake.device, &graph), MSTAR_OK);
        const mst_attn_plan fixed = graph_plan;
        uint64_t before = allocations();
        for (int i = 0; i < 20; i++) {
            random_layout made;
            make_layout(&random, kind, &made);
            bool causal = kind != MST_ATTN_CROSS && test_random_between(&random, 0, 1) == 1;
            assert_int_equal(
                mst_attn_plan_make(&graph_plan, &fake.device, &graph, &made.layout, causal),
                MSTAR_OK);
            assert_int_equal(allocations(), before);
            assert_int_equal(
                mst_attn_plan_make(&eager_plan, &fake.device, &eager, &made.layout, causal),
                MSTAR_OK);
            before = allocations();
            check_list(&eager, &made.layout, causal, &eager_plan);
            /* both modes give the same list */
            assert_int_equal(graph_plan.num_items, eager_plan.num_items);
            if (eager_plan.num_items > 0)
                assert_memory_equal(graph_plan.items, eager_plan.items,
                                    (size_t)eager_plan.num_items * sizeof(mst_attn_item));
            assert_int_equal(eager_plan.num_items, eager_plan.items_capacity);
            check_offsets(eager_plan.q_offsets, made.layout.q_offsets, made.layout.num_segments, 0);
            check_offsets(eager_plan.kv_offsets, made.layout.kv_offsets, made.layout.num_segments,
                          0);
            check_offsets(graph_plan.q_offsets, made.layout.q_offsets, made.layout.num_segments,
                          MAX_SEGMENTS + 1);
            check_offsets(graph_plan.kv_offsets, made.layout.kv_offsets, made.layout.num_segments,
                          MAX_SEGMENTS + 1);
            assert_ptr_equal(graph_plan.items, fixed.items);
            assert_ptr_equal(graph_plan.q_offsets, fixed.q_offsets);
            assert_ptr_equal(graph_plan.kv_offsets, fixed.kv_offsets);
            assert_int_equal(graph_plan.block_bytes, fixed.block_bytes);
            assert_int_equal(eager_plan.num_tokens, made.layout.num_tokens);
            assert_int_equal(eager_plan.num_kv_tokens, made.layout.num_kv_tokens);
            assert_int_equal(eager_plan.causal, causal);
            items += eager_plan.num_items;
        }
        mst_attn_plan_free(&eager_plan);
        mst_attn_plan_free(&graph_plan);
    }
    assert_true(items > 20000);
    assert_int_equal(live_allocations(), live);
}

/* A segment's items, less its number, are the same whatever stands around it. */
static void items_depend_on_the_segment_alone(void **state)
{
    static const int32_t alone[] = {0, 37};
    static const int32_t batch[] = {0, 5, 5, 42, 43, 143};
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_SELF, false, 5, 2);
    mst_attn_plan one = {0};
    mst_attn_plan many = {0};
    mst_attn_layout one_layout = {alone, alone, 1, 37, 37};
    mst_attn_layout many_layout = {batch, batch, 5, 143, 143};
    (void)state;
    fake_device_init(&fake);
    fake.vary = true;
    assert_int_equal(mst_attn_plan_make(&one, &fake.device, &config, &one_layout, true), MSTAR_OK);
    assert_int_equal(mst_attn_plan_make(&many, &fake.device, &config, &many_layout, true),
                     MSTAR_OK);
    int64_t found = 0;
    for (int64_t i = 0; i < many.num_items; i++) {
        mst_attn_item item = many.items[i];
        if (item.segment != 2)
            continue;
        item.segment = 0;
        assert_true(found < one.num_items);
        assert_memory_equal(&item, &one.items[found], sizeof item);
        found++;
    }
    assert_int_equal(found, one.num_items);
    mst_attn_plan_free(&one);
    mst_attn_plan_free(&many);
}

/* Far more pairs of lengths than the planner keeps cuts of: each segment is still cut as it is
 * alone. */
static void many_lengths_are_not_mixed_up(void **state)
{
    enum { SEGMENTS = 900 };
    static int32_t q[SEGMENTS + 1], kv[SEGMENTS + 1];
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_PREFIXED, false, 5, 2);
    mst_attn_plan all = {0};
    mst_attn_plan one = {0};
    test_random random = {23};
    (void)state;
    fake_device_init(&fake);
    fake.vary = true;
    for (int i = 0; i < SEGMENTS; i++) {
        q[i + 1] = q[i] + (int32_t)test_random_between(&random, 0, 20);
        kv[i + 1] = kv[i] + (int32_t)test_random_between(&random, 0, 900);
    }
    mst_attn_layout layout = {q, kv, SEGMENTS, q[SEGMENTS], kv[SEGMENTS]};
    for (int causal = 0; causal < 2; causal++) {
        assert_int_equal(mst_attn_plan_make(&all, &fake.device, &config, &layout, causal == 1),
                         MSTAR_OK);
        int64_t found = 0;
        for (int i = 0; i < SEGMENTS; i++) {
            const int32_t q_alone[] = {0, q[i + 1] - q[i]};
            const int32_t kv_alone[] = {0, kv[i + 1] - kv[i]};
            mst_attn_layout alone = {q_alone, kv_alone, 1, q_alone[1], kv_alone[1]};
            assert_int_equal(mst_attn_plan_make(&one, &fake.device, &config, &alone, causal == 1),
                             MSTAR_OK);
            int64_t next = 0;
            for (int64_t j = 0; j < all.num_items; j++) {
                mst_attn_item item = all.items[j];
                if (item.segment != i)
                    continue;
                item.segment = 0;
                assert_true(next < one.num_items);
                assert_memory_equal(&item, &one.items[next], sizeof item);
                next++;
            }
            assert_int_equal(next, one.num_items);
            found += next;
        }
        assert_int_equal(found, all.num_items);
    }
    mst_attn_plan_free(&all);
    mst_attn_plan_free(&one);
}

static void heavier_items_come_first(void **state)
{
    static const int32_t offsets[] = {0, 2, 202, 205, 245};
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_SELF, false, 1, 1);
    mst_attn_plan plan = {0};
    mst_attn_layout layout = {offsets, offsets, 4, 245, 245};
    (void)state;
    fake_device_init(&fake);
    fake.tile = (mst_attn_tile){64, 1};
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &layout, false), MSTAR_OK);
    assert_int_equal(plan.num_items, 7); /* 1 + 4 + 1 + 1 */
    static const int32_t want[][2] = {{1, 0}, {1, 64}, {1, 128}, {3, 0}, {1, 192}, {2, 0}, {0, 0}};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(plan.items[i].segment, want[i][0]);
        assert_int_equal(plan.items[i].q_begin, want[i][1]);
    }
    mst_attn_plan_free(&plan);
}

static void cost_classes_are_ordered(void **state)
{
    test_random random = {7};
    (void)state;
    assert_int_equal(mst_attn_cost_class(0), MST_ATTN_COST_CLASSES - 1);
    assert_int_equal(mst_attn_cost_class(1), MST_ATTN_COST_CLASSES - 1);
    assert_int_equal(mst_attn_cost_class(INT64_MAX), 0);
    assert_int_equal(mst_attn_cost(INT32_MAX, 4096, INT32_MAX), INT64_MAX); /* saturates */
    for (int64_t cost = 1; cost < 5000; cost++)
        assert_true(mst_attn_cost_class(cost) >= mst_attn_cost_class(cost + 1));
    for (int i = 0; i < 5000; i++) {
        int64_t cost = (int64_t)(test_random_bits(&random) >> test_random_between(&random, 1, 60));
        int32_t class = mst_attn_cost_class(cost);
        assert_true(class >= 0 && class < MST_ATTN_COST_CLASSES);
        if (cost >= 8 && cost < INT64_MAX / 2) {
            /* an eighth more is another class, and never a lighter one */
            assert_true(mst_attn_cost_class(cost + cost / 8 + 1) < class);
            assert_true(mst_attn_cost_class(cost + 1) <= class);
        }
    }
    assert_true(mst_attn_cost(3, 2, 10) > mst_attn_cost(3, 2, 9));
    assert_true(mst_attn_cost(1, 1, 0) > 0); /* a row without keys is work too */
}

/* The most items over all ways to lay out the tokens, found by trying them all. */
static int64_t most_tiles(int64_t segments, int64_t tokens, int64_t rows)
{
    int64_t most = 0;
    if (segments == 0)
        return 0;
    for (int64_t first = 0; first <= tokens; first++) {
        int64_t tiles = mst_ceil_div(first, rows) + most_tiles(segments - 1, tokens - first, rows);
        most = mst_max_i64(most, tiles);
    }
    return most;
}

static void graph_capacity_is_exact(void **state)
{
    (void)state;
    for (int64_t segments = 1; segments <= 4; segments++)
        for (int64_t tokens = 0; tokens <= 14; tokens++)
            for (int32_t rows = 1; rows <= 6; rows++)
                for (int32_t heads = 1; heads <= 4; heads++)
                    assert_int_equal(
                        mst_attn_max_items(segments, tokens, 3, (mst_attn_tile){rows, heads}),
                        most_tiles(segments, tokens, rows) * mst_ceil_div(3, heads));
    /* no overflow at the limits */
    assert_int_equal(mst_attn_max_items(INT32_MAX - 1, INT32_MAX, 4096, (mst_attn_tile){1, 1}),
                     (int64_t)INT32_MAX * 4096);
}

static void limits_of_int32_plan(void **state)
{
    static const int32_t offsets[] = {0, 1, INT32_MAX, INT32_MAX};
    static const int32_t kv[] = {0, INT32_MAX - 1, INT32_MAX - 1, INT32_MAX};
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_PREFIXED, false, 2, 2048);
    mst_attn_plan plan = {0};
    mst_attn_layout layout = {offsets, kv, 3, INT32_MAX, INT32_MAX};
    mst_attn_layout self = {offsets, offsets, 3, INT32_MAX, INT32_MAX};
    (void)state;
    fake_device_init(&fake);
    fake.tile = (mst_attn_tile){1 << 30, 2};
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &layout, true), MSTAR_OK);
    /* two tiles of 2^30 rows without keys weigh more than one row over all its keys */
    assert_int_equal(plan.num_items, 3);
    assert_int_equal(plan.items[0].q_rows, 1 << 30);
    assert_int_equal(plan.items[0].kv_end, 0);
    assert_int_equal(plan.items[1].q_begin, 1 << 30);
    assert_int_equal(plan.items[1].q_rows, (1 << 30) - 2);
    assert_int_equal(plan.items[2].segment, 0);
    assert_int_equal(plan.items[2].kv_end, INT32_MAX - 1);
    config.shape.window_left = INT64_MAX;
    config.shape.window_right = INT64_MAX;
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &self, false), MSTAR_OK);
    assert_int_equal(plan.num_items, 3);
    assert_int_equal(plan.items[0].kv_end, INT32_MAX - 1);
    mst_attn_plan_free(&plan);
}

static int fail_all(void *context, uint64_t number, size_t bytes)
{
    (void)context;
    (void)number;
    (void)bytes;
    return 1;
}

static void failed_growth_keeps_the_plan(void **state)
{
    static const int32_t small[] = {0, 3, 7};
    static const int32_t large[] = {0, 100, 300, 4000};
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_SELF, false, 2, 1);
    mst_attn_plan plan = {0};
    mst_attn_layout small_layout = {small, small, 2, 7, 7};
    mst_attn_layout large_layout = {large, large, 3, 4000, 4000};
    (void)state;
    fake_device_init(&fake);
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &small_layout, true),
                     MSTAR_OK);
    const mst_attn_plan before = plan;
    unsigned char *copy = malloc(plan.block_bytes);
    assert_non_null(copy);
    memcpy(copy, plan.block, plan.block_bytes);
    mstar_set_alloc_fault(fail_all, NULL);
    mstar_status status = mst_attn_plan_make(&plan, &fake.device, &config, &large_layout, false);
    mstar_set_alloc_fault(NULL, NULL);
    assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
    assert_memory_equal(&plan, &before, offsetof(mst_attn_plan, known));
    assert_memory_equal(plan.block, copy, plan.block_bytes);
    free(copy);
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &large_layout, false),
                     MSTAR_OK);
    assert_int_equal(plan.num_tokens, 4000);
    mst_attn_plan_free(&plan);
}

/* Growing by doubling: planning longer and longer layouts allocates a handful of times. */
static void eager_storage_grows_geometrically(void **state)
{
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_SELF, false, 1, 1);
    mst_attn_plan plan = {0};
    (void)state;
    fake_device_init(&fake);
    uint64_t before = allocations();
    size_t bytes = 0;
    for (int32_t tokens = 1; tokens <= 4000; tokens++) {
        int32_t offsets[] = {0, tokens};
        mst_attn_layout layout = {offsets, offsets, 1, tokens, tokens};
        assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &layout, false),
                         MSTAR_OK);
        assert_true(plan.block_bytes >= bytes);
        bytes = plan.block_bytes;
    }
    assert_true(allocations() - before <= 12);
    /* and shrinking layouts keep it */
    static const int32_t one[] = {0, 1};
    mst_attn_layout layout = {one, one, 1, 1, 1};
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &layout, false), MSTAR_OK);
    assert_int_equal(plan.block_bytes, bytes);
    mst_attn_plan_free(&plan);
}

static void a_backend_finer_than_its_word_is_caught(void **state)
{
    static const int32_t offsets[] = {0, 100, 400};
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_SELF, true, 2, 1);
    mst_attn_plan plan = {0};
    mst_attn_layout layout = {offsets, offsets, 2, 400, 400};
    (void)state;
    fake_device_init(&fake);
    fake.worst = (mst_attn_tile){64, 2};
    fake.tile = (mst_attn_tile){64, 2};
    assert_int_equal(mst_attn_plan_reserve(&plan, &fake.device, &config), MSTAR_OK);
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &layout, false), MSTAR_OK);
    const mst_attn_plan before = plan;
    fake.tile = (mst_attn_tile){3, 1}; /* of lengths that are not known yet */
    static const int32_t others[] = {0, 101, 400};
    mst_attn_layout finer = {others, others, 2, 400, 400};
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &finer, false),
                     MSTAR_INTERNAL);
    assert_memory_equal(&plan, &before, offsetof(mst_attn_plan, known));
    mst_attn_plan_free(&plan);
}

/* A captured reader sees the static vectors; a caller may plan from them, but not crosswise. */
static void own_vectors_may_be_planned_from(void **state)
{
    static const int32_t q[] = {0, 10, 30};
    static const int32_t kv[] = {0, 15, 50};
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_CROSS, true, 1, 1);
    mst_attn_plan plan = {0};
    mst_attn_layout layout = {q, kv, 2, 30, 50};
    (void)state;
    fake_device_init(&fake);
    assert_int_equal(mst_attn_plan_reserve(&plan, &fake.device, &config), MSTAR_OK);
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &layout, false), MSTAR_OK);
    mst_attn_layout own = {plan.q_offsets, plan.kv_offsets, 2, 30, 50};
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &own, false), MSTAR_OK);
    check_offsets(plan.q_offsets, q, 2, MAX_SEGMENTS + 1);
    check_offsets(plan.kv_offsets, kv, 2, MAX_SEGMENTS + 1);
    mst_attn_layout crossed = {q, plan.q_offsets, 2, 30, 30};
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &crossed, false),
                     MSTAR_INVALID_ARGUMENT);
    assert_non_null(strstr(mstar_last_error(), "kv_cu_seqlens"));
    crossed = (mst_attn_layout){plan.kv_offsets, kv, 2, 50, 50};
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &crossed, false),
                     MSTAR_INVALID_ARGUMENT);
    assert_non_null(strstr(mstar_last_error(), "q_cu_seqlens"));
    check_offsets(plan.q_offsets, q, 2, MAX_SEGMENTS + 1);
    check_offsets(plan.kv_offsets, kv, 2, MAX_SEGMENTS + 1);
    mst_attn_plan_free(&plan);
}

static void reserving_can_fail(void **state)
{
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_CROSS, true, 4096, 1);
    mst_attn_plan plan = {0};
    const mst_attn_plan none = {0};
    (void)state;
    fake_device_init(&fake);
    config.max_num_segments = INT32_MAX - 1;
    config.max_total_tokens = INT32_MAX;
    config.max_total_kv_tokens = INT32_MAX;
    mstar_set_alloc_fault(fail_all, NULL);
    mstar_status status = mst_attn_plan_reserve(&plan, &fake.device, &config);
    mstar_set_alloc_fault(NULL, NULL);
    assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
    assert_non_null(strstr(mstar_last_error(), "attention plan at its ceilings"));
    assert_memory_equal(&plan, &none, offsetof(mst_attn_plan, known));
}

static int fail_over_a_tebibyte(void *context, uint64_t number, size_t bytes)
{
    (void)context;
    (void)number;
    return bytes > (size_t)1 << 40;
}

/* 2^31 rows of 4096 heads by tiles of 4 rows: 2^41 items. Walking them takes hours, and the memory
 * that they need is not there: it must be asked for first. */
static void memory_is_asked_for_before_the_walk(void **state)
{
    static const int32_t offsets[] = {0, 7, INT32_MAX};
    fake_device fake;
    mst_attn_config config = make_config(MST_ATTN_SELF, false, 4096, 1);
    mst_attn_plan plan = {0};
    mst_attn_layout small = {offsets, offsets, 1, 7, 7};
    mst_attn_layout layout = {offsets, offsets, 2, INT32_MAX, INT32_MAX};
    (void)state;
    fake_device_init(&fake);
    assert_int_equal(mst_attn_plan_make(&plan, &fake.device, &config, &small, false), MSTAR_OK);
    assert_int_equal(plan.num_items, 2 * 4096);
    mst_attn_plan before = plan;
    mstar_set_alloc_fault(fail_over_a_tebibyte, NULL);
    mstar_status status = mst_attn_plan_make(&plan, &fake.device, &config, &layout, true);
    mstar_set_alloc_fault(NULL, NULL);
    assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
    assert_memory_equal(&plan, &before, offsetof(mst_attn_plan, known));
    mst_attn_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_cover_everything_once),
        cmocka_unit_test(items_depend_on_the_segment_alone),
        cmocka_unit_test(many_lengths_are_not_mixed_up),
        cmocka_unit_test(heavier_items_come_first),
        cmocka_unit_test(cost_classes_are_ordered),
        cmocka_unit_test(graph_capacity_is_exact),
        cmocka_unit_test(limits_of_int32_plan),
        cmocka_unit_test(failed_growth_keeps_the_plan),
        cmocka_unit_test(eager_storage_grows_geometrically),
        cmocka_unit_test(a_backend_finer_than_its_word_is_caught),
        cmocka_unit_test(own_vectors_may_be_planned_from),
        cmocka_unit_test(reserving_can_fail),
        cmocka_unit_test(memory_is_asked_for_before_the_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
