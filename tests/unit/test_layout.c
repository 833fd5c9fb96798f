/*
 * test_layout.c - offsets and their refusals (src/attn/layout.c): each error names the argument,
 * its value and the bound, and leaves the caller's layout untouched.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn.h"

static mst_attn_config eager(mst_attn_kind kind)
{
    return (mst_attn_config){
        .kind = kind, .max_num_segments = -1, .max_total_tokens = -1, .max_total_kv_tokens = -1};
}

static mst_attn_config graph(mst_attn_kind kind, int64_t segments, int64_t tokens,
                             int64_t kv_tokens)
{
    return (mst_attn_config){.kind = kind,
                             .graph = true,
                             .max_num_segments = segments,
                             .max_total_tokens = tokens,
                             .max_total_kv_tokens = kv_tokens};
}

static const mst_attn_layout untouched = {NULL, NULL, -77, -78, -79};

static void assert_text(const char *part)
{
    if (strstr(mstar_last_error(), part) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", mstar_last_error(), part);
}

static void refuse_self(const mst_attn_config *config, const int32_t *offsets, int64_t segments,
                        const char *a, const char *b)
{
    mst_attn_layout layout = untouched;
    assert_int_equal(mst_attn_layout_self(config, offsets, segments, &layout),
                     MSTAR_INVALID_ARGUMENT);
    assert_text(a);
    assert_text(b);
    assert_memory_equal(&layout, &untouched, sizeof layout);
}

static void refuse_pair(const mst_attn_config *config, const int32_t *q, int64_t q_segments,
                        const int32_t *kv, int64_t kv_segments, const char *a, const char *b)
{
    mst_attn_layout layout = untouched;
    assert_int_equal(mst_attn_layout_pair(config, q, q_segments, kv, kv_segments, &layout),
                     MSTAR_INVALID_ARGUMENT);
    assert_text(a);
    assert_text(b);
    assert_memory_equal(&layout, &untouched, sizeof layout);
}

static void self_is_both_sides(void **state)
{
    static const int32_t offsets[] = {0, 3, 3, 10};
    mst_attn_config config = eager(MST_ATTN_SELF);
    mst_attn_layout layout;
    (void)state;
    assert_int_equal(mst_attn_layout_self(&config, offsets, 3, &layout), MSTAR_OK);
    assert_ptr_equal(layout.q_offsets, offsets);
    assert_ptr_equal(layout.kv_offsets, offsets);
    assert_int_equal(layout.num_segments, 3);
    assert_int_equal(layout.num_tokens, 10);
    assert_int_equal(layout.num_kv_tokens, 10);
}

static void pair_keeps_sides_apart(void **state)
{
    /* prefixes 3 and 9 before 2 and 4 fresh tokens */
    static const int32_t q[] = {0, 2, 6};
    static const int32_t kv[] = {0, 5, 18};
    mst_attn_config config = eager(MST_ATTN_PREFIXED);
    mst_attn_layout layout;
    (void)state;
    assert_int_equal(mst_attn_layout_pair(&config, q, 2, kv, 2, &layout), MSTAR_OK);
    assert_ptr_equal(layout.q_offsets, q);
    assert_ptr_equal(layout.kv_offsets, kv);
    assert_int_equal(layout.num_segments, 2);
    assert_int_equal(layout.num_tokens, 6);
    assert_int_equal(layout.num_kv_tokens, 18);
}

static void empty_layouts_are_ordinary(void **state)
{
    static const int32_t zeros[] = {0, 0, 0, 0};
    static const int32_t kv[] = {0, 0, 7, 7};
    mst_attn_config self = eager(MST_ATTN_SELF);
    mst_attn_config cross = graph(MST_ATTN_CROSS, 3, 0, 7);
    mst_attn_layout layout;
    (void)state;
    assert_int_equal(mst_attn_layout_self(&self, zeros, 3, &layout), MSTAR_OK);
    assert_int_equal(layout.num_tokens, 0);
    assert_int_equal(mst_attn_layout_self(&self, zeros, 0, &layout), MSTAR_OK);
    assert_int_equal(layout.num_segments, 0);
    assert_int_equal(mst_attn_layout_self(&self, NULL, 0, &layout), MSTAR_OK);
    assert_int_equal(layout.num_segments, 0);
    assert_int_equal(layout.q_offsets[0], 0);
    assert_int_equal(mst_attn_layout_pair(&cross, NULL, 0, NULL, 0, &layout), MSTAR_OK);
    assert_int_equal(mst_attn_layout_pair(&cross, zeros, 3, kv, 3, &layout), MSTAR_OK);
    assert_int_equal(layout.num_kv_tokens, 7);
}

static void bad_offsets_are_refused(void **state)
{
    static const int32_t late[] = {1, 4, 8};
    static const int32_t falling[] = {0, 5, 3, 8};
    static const int32_t negative[] = {0, -1, 8};
    static const int32_t good[] = {0, 4, 8};
    static const int32_t good3[] = {0, 4, 8, 8};
    mst_attn_config self = eager(MST_ATTN_SELF);
    mst_attn_config cross = eager(MST_ATTN_CROSS);
    (void)state;
    refuse_self(&self, late, 2, "cu_seqlens[0] is 1", "must be 0");
    refuse_self(&self, late, 0, "cu_seqlens[0] is 1", "must be 0");
    refuse_self(&self, falling, 3, "cu_seqlens[2] is 3", "before is 5");
    refuse_self(&self, negative, 2, "cu_seqlens[1] is -1", "before is 0");
    refuse_self(&self, NULL, 2, "cu_seqlens is NULL", "3 offsets");
    refuse_self(&self, good, -1, "num_segments is -1", "from 0 to 2147483646");
    refuse_self(&self, good, INT32_MAX, "num_segments is 2147483647", "from 0 to 2147483646");
    refuse_self(&self, good, INT64_MAX, "num_segments is 9223372036854775807", "2147483646");
    refuse_pair(&cross, late, 2, good, 2, "q_cu_seqlens[0] is 1", "must be 0");
    refuse_pair(&cross, good, 2, late, 2, "kv_cu_seqlens[0] is 1", "must be 0");
    refuse_pair(&cross, good3, 3, falling, 3, "kv_cu_seqlens[2] is 3", "before is 5");
    refuse_pair(&cross, good, 2, NULL, 2, "kv_cu_seqlens is NULL", "3 offsets");
    refuse_pair(&cross, good, -1, good, -1, "q_num_segments is -1", "from 0");
}

static void unequal_counts_name_both(void **state)
{
    static const int32_t two[] = {0, 4, 8};
    static const int32_t three[] = {0, 4, 8, 8};
    mst_attn_config cross = eager(MST_ATTN_CROSS);
    mst_attn_config prefixed = graph(MST_ATTN_PREFIXED, 4, 100, 100);
    (void)state;
    refuse_pair(&cross, two, 2, three, 3, "q_num_segments is 2", "kv_num_segments is 3");
    refuse_pair(&prefixed, three, 3, two, 2, "q_num_segments is 3", "kv_num_segments is 2");
    refuse_pair(&cross, two, 2, NULL, 0, "q_num_segments is 2", "kv_num_segments is 0");
}

static void ceilings_are_exact(void **state)
{
    static const int32_t full[] = {0, 512, 512, 512, 512};
    static const int32_t over[] = {0, 512, 513, 513, 513};
    static const int32_t five[] = {0, 1, 2, 3, 4, 5};
    static const int32_t small[] = {0, 1, 2, 3, 4};
    mst_attn_config self = graph(MST_ATTN_SELF, 4, 512, 512);
    mst_attn_config cross = graph(MST_ATTN_CROSS, 4, 512, 10);
    mst_attn_layout layout;
    (void)state;
    assert_int_equal(mst_attn_layout_self(&self, full, 4, &layout), MSTAR_OK);
    refuse_self(&self, over, 2, "ends at 513", "max_total_tokens is 512");
    refuse_self(&self, five, 5, "num_segments is 5", "max_num_segments is 4");
    assert_int_equal(mst_attn_layout_pair(&cross, full, 4, small, 4, &layout), MSTAR_OK);
    refuse_pair(&cross, over, 4, small, 4, "q_cu_seqlens ends at 513 query tokens",
                "max_total_tokens is 512");
    refuse_pair(&cross, small, 4, full, 4, "kv_cu_seqlens ends at 512 key tokens",
                "max_total_kv_tokens is 10");
    refuse_pair(&cross, five, 5, five, 5, "q_num_segments is 5", "max_num_segments is 4");
}

static void int32_limits_are_accepted(void **state)
{
    static const int32_t most[] = {0, 0, INT32_MAX, INT32_MAX};
    mst_attn_config self = eager(MST_ATTN_SELF);
    mst_attn_layout layout;
    (void)state;
    assert_int_equal(mst_attn_layout_self(&self, most, 3, &layout), MSTAR_OK);
    assert_int_equal(layout.num_tokens, INT32_MAX);
}

static void spread_puts_the_remainder_first(void **state)
{
    static const struct {
        int64_t total, segments;
        int32_t want[9];
    } cases[] = {
        {10, 3, {0, 4, 7, 10}},
        {7, 4, {0, 4, 5, 6, 7}},
        {3, 4, {0, 3, 3, 3, 3}},
        {0, 3, {0, 0, 0, 0}},
        {5, 1, {0, 5}},
        {11, 4, {0, 5, 7, 9, 11}},
        {512, 8, {0, 64, 128, 192, 256, 320, 384, 448, 512}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t got[9];
        mst_attn_spread(cases[i].total, cases[i].segments, got);
        assert_memory_equal(got, cases[i].want, (size_t)(cases[i].segments + 1) * sizeof got[0]);
    }
    int32_t limit[3];
    mst_attn_spread(INT32_MAX, 2, limit);
    assert_int_equal(limit[1], 1073741824);
    assert_int_equal(limit[2], INT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self_is_both_sides),
        cmocka_unit_test(pair_keeps_sides_apart),
        cmocka_unit_test(empty_layouts_are_ordinary),
        cmocka_unit_test(bad_offsets_are_refused),
        cmocka_unit_test(unequal_counts_name_both),
        cmocka_unit_test(ceilings_are_exact),
        cmocka_unit_test(int32_limits_are_accepted),
        cmocka_unit_test(spread_puts_the_remainder_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
