/*
 * test_plan_near.c - the order of a plan's work list where a device names the tokens that its cache
 * holds.
 */
#include <string.h>

#include "attn/attn.h"
#include "support_check.h"
#include "support_fake_device.h"
#include "support_random.h"

#define MAX_SEGMENTS 24

static mst_attn_config config = {.kind = MST_ATTN_SELF,
                                 .shape = {.num_qo_heads = 1,
                                           .num_kv_heads = 1,
                                           .head_dim = 8,
                                           .dtype = MSTAR_DTYPE_F32,
                                           .sm_scale = 1.0F,
                                           .window_left = -1,
                                           .window_right = -1},
                                 .max_num_segments = -1,
                                 .max_total_tokens = -1,
                                 .max_total_kv_tokens = -1};

static void check_order(fake_device *fake, const int32_t *offsets, bool causal,
                        const int32_t (*want)[2])
{
    mst_attn_plan plan = {0};
    mst_attn_layout layout = {offsets, offsets, 4, offsets[4], offsets[4]};
    assert_int_equal(mst_attn_plan_make(&plan, &fake->device, &config, &layout, causal), MSTAR_OK);
    assert_int_equal(plan.num_items, 11);
    for (int i = 0; i < 11; i++) {
        assert_int_equal(plan.items[i].segment, want[i][0]);
        assert_int_equal(plan.items[i].q_begin, want[i][1]);
    }
    mst_attn_plan_free(&plan);
}

/* Tiles of 4 rows, 16 tokens near: two segments of 8, then one of 24, which has more of its own. */
static void near_segments_come_together(void **state)
{
    static const int32_t offsets[] = {0, 8, 16, 40, 44};
    static const int32_t masked[][2] = {{0, 4},  {1, 4}, {0, 0}, {1, 0}, {2, 20}, {2, 16},
                                        {2, 12}, {2, 8}, {2, 4}, {2, 0}, {3, 0}};
    static const int32_t alike[][2] = {{2, 0}, {2, 4}, {2, 8}, {2, 12}, {2, 16}, {2, 20},
                                       {0, 0}, {0, 4}, {1, 0}, {1, 4},  {3, 0}};
    fake_device fake;
    (void)state;
    fake_device_init(&fake);
    fake.near_tokens = 16;
    check_order(&fake, offsets, true, masked);
    check_order(&fake, offsets, false, alike);
}

/* With keys of their own, the tiles of a segment weigh much the same, and all go by weight. */
static void segments_with_prefixes_go_by_weight(void **state)
{
    static const int32_t offsets[] = {0, 8, 16, 40, 44};
    static const int32_t masked[][2] = {{2, 20}, {2, 16}, {2, 12}, {2, 8}, {0, 4}, {1, 4},
                                        {2, 4},  {0, 0},  {1, 0},  {2, 0}, {3, 0}};
    fake_device fake;
    (void)state;
    fake_device_init(&fake);
    fake.near_tokens = 16;
    config.kind = MST_ATTN_PREFIXED;
    check_order(&fake, offsets, true, masked);
    config.kind = MST_ATTN_SELF;
}

/* What follows a segment of too many tokens is listed with it. */
static void a_large_segment_takes_the_rest(void **state)
{
    static const int32_t offsets[] = {0, 24, 32, 40, 44};
    static const int32_t masked[][2] = {{0, 20}, {0, 16}, {0, 12}, {0, 8}, {0, 4}, {1, 4},
                                        {2, 4},  {0, 0},  {1, 0},  {2, 0}, {3, 0}};
    fake_device fake;
    (void)state;
    fake_device_init(&fake);
    fake.near_tokens = 16;
    check_order(&fake, offsets, true, masked);
}

/* Whatever is near, the list has the same items, each once. */
static void no_item_is_lost(void **state)
{
    test_random random = {11};
    fake_device fake;
    (void)state;
    for (int i = 0; i < 500; i++) {
        int32_t offsets[MAX_SEGMENTS + 1] = {0};
        int64_t segments = test_random_between(&random, 0, MAX_SEGMENTS);
        for (int64_t s = 0; s < segments; s++)
            offsets[s + 1] = offsets[s] + (int32_t)test_random_between(&random, 0, 30);
        mst_attn_layout layout = {offsets, offsets, segments, offsets[segments], offsets[segments]};
        mst_attn_plan all = {0}, near = {0};
        fake_device_init(&fake);
        assert_int_equal(mst_attn_plan_make(&all, &fake.device, &config, &layout, true), MSTAR_OK);
        fake.near_tokens = test_random_between(&random, 0, 200);
        assert_int_equal(mst_attn_plan_make(&near, &fake.device, &config, &layout, true), MSTAR_OK);
        assert_int_equal(near.num_items, all.num_items);
        for (int64_t a = 0; a < all.num_items; a++) {
            int found = 0;
            for (int64_t n = 0; n < near.num_items; n++)
                found += memcmp(&all.items[a], &near.items[n], sizeof *all.items) == 0;
            assert_int_equal(found, 1);
        }
        mst_attn_plan_free(&all);
        mst_attn_plan_free(&near);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_segments_come_together),
        cmocka_unit_test(segments_with_prefixes_go_by_weight),
        cmocka_unit_test(a_large_segment_takes_the_rest),
        cmocka_unit_test(no_item_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
