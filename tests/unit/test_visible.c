/*
 * test_visible.c - the mask as integers (src/attn/visible.c), against the definition in
 * mstar/attention.h taken key by key.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn/attn.h"

/* The header's sentence, in 128 bits so that it cannot overflow. */
static bool sees(int64_t lq, int64_t lk, int64_t row, int64_t key, bool causal, int64_t left,
                 int64_t right)
{
    __extension__ typedef __int128 wide;
    wide place = (wide)lk - lq + row;
    return (!causal || key <= place) && (left < 0 || key >= place - left) &&
           (right < 0 || key <= place + right);
}

static void equals_brute_force_on_small_segments(void **state)
{
    static const int64_t windows[] = {-1, 0, 1, 2, 3, 5, 9, INT64_MAX};
    enum { NUM_WINDOWS = sizeof windows / sizeof windows[0] };
    int64_t checked = 0;
    (void)state;
    for (int64_t lq = 1; lq <= 7; lq++)
        for (int64_t lk = 0; lk <= 8; lk++)
            for (int causal = 0; causal <= 1; causal++)
                for (int l = 0; l < NUM_WINDOWS; l++)
                    for (int r = 0; r < NUM_WINDOWS; r++)
                        for (int64_t begin = 0; begin < lq; begin++)
                            for (int64_t end = begin + 1; end <= lq; end++) {
                                mst_key_range want = {0, 0};
                                for (int64_t row = begin; row < end; row++)
                                    for (int64_t key = 0; key < lk; key++) {
                                        if (!sees(lq, lk, row, key, causal, windows[l], windows[r]))
                                            continue;
                                        if (want.end == 0 || key < want.begin)
                                            want.begin = key;
                                        want.end = mst_max_i64(want.end, key + 1);
                                    }
                                mst_key_range got = mst_attn_visible(lq, lk, begin, end, causal,
                                                                     windows[l], windows[r]);
                                assert_int_equal(got.begin, want.begin);
                                assert_int_equal(got.end, want.end);
                                checked++;
                            }
    assert_int_equal(checked, 84 * 9 * 2 * 64); /* row ranges, lk, causal, windows */
}

/* One row near the int32 limits: its range's ends are visible and their neighbours are not. */
static void check_row(int64_t lq, int64_t lk, int64_t row, bool causal, int64_t left, int64_t right)
{
    mst_key_range got = mst_attn_visible(lq, lk, row, row + 1, causal, left, right);
    assert_true(got.begin >= 0 && got.begin <= got.end && got.end <= lk);
    if (got.begin == got.end) {
        /* a row's keys are one run, so they are none only when none of these is one */
        int64_t place = lk - lq + row;
        int64_t near[] = {0, lk - 1, place, mst_min_i64(mst_max_i64(place, 0), lk - 1)};
        for (size_t i = 0; i < sizeof near / sizeof near[0]; i++) {
            if (near[i] >= 0 && near[i] < lk)
                assert_false(sees(lq, lk, row, near[i], causal, left, right));
        }
        return;
    }
    assert_true(sees(lq, lk, row, got.begin, causal, left, right));
    assert_true(sees(lq, lk, row, got.end - 1, causal, left, right));
    if (got.begin > 0)
        assert_false(sees(lq, lk, row, got.begin - 1, causal, left, right));
    if (got.end < lk)
        assert_false(sees(lq, lk, row, got.end, causal, left, right));
}

static void stays_right_at_the_int32_limits(void **state)
{
    static const int64_t lengths[] = {1, 2, 1000, INT32_MAX - 1, INT32_MAX};
    static const int64_t windows[] = {-1,
                                      0,
                                      1,
                                      INT32_MAX - 1,
                                      INT32_MAX,
                                      (int64_t)INT32_MAX + 1,
                                      2 * (int64_t)INT32_MAX,
                                      INT64_MAX - 1,
                                      INT64_MAX};
    enum {
        NUM_LENGTHS = sizeof lengths / sizeof lengths[0],
        NUM_WINDOWS = sizeof windows / sizeof windows[0]
    };
    (void)state;
    for (int q = 0; q < NUM_LENGTHS; q++)
        for (int k = 0; k < NUM_LENGTHS; k++)
            for (int l = 0; l < NUM_WINDOWS; l++)
                for (int r = 0; r < NUM_WINDOWS; r++)
                    for (int causal = 0; causal <= 1; causal++) {
                        int64_t rows[] = {0, lengths[q] / 2, lengths[q] - 1};
                        for (int i = 0; i < 3; i++)
                            check_row(lengths[q], lengths[k], rows[i], causal, windows[l],
                                      windows[r]);
                    }
}

static void nothing_to_see_is_one_value(void **state)
{
    static const struct {
        int64_t lq, lk, begin, end, left, right;
        bool causal;
    } cases[] = {
        {4, 0, 0, 4, -1, -1, false}, /* no keys */
        {4, 1, 0, 3, -1, -1, true},  /* more queries than keys: rows 0..2 */
        {5, 2, 0, 3, -1, -1, true},  {4, 4, 2, 2, -1, -1, false}, /* no rows */
        {9, 2, 0, 3, -1, 3, false}, /* places -7..-5 reach -2 at most */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mst_key_range got = mst_attn_visible(cases[i].lq, cases[i].lk, cases[i].begin, cases[i].end,
                                             cases[i].causal, cases[i].left, cases[i].right);
        assert_int_equal(got.begin, 0);
        assert_int_equal(got.end, 0);
    }
}

/* Counts that other projects once got wrong: alignment to the end, and a window counting itself. */
static void visible_counts_of_known_cases(void **state)
{
    static const struct {
        int64_t lq, lk, left, right;
        bool causal;
        int64_t want[6];
    } cases[] = {
        {2, 5, -1, -1, true, {4, 5}},
        {4, 6, -1, -1, true, {3, 4, 5, 6}},
        {6, 6, 2, -1, true, {1, 2, 3, 3, 3, 3}},
        {6, 6, 2, 0, false, {1, 2, 3, 3, 3, 3}},
        {5, 2, -1, -1, true, {0, 0, 0, 1, 2}},
        {4, 4, 0, 0, false, {1, 1, 1, 1}},
        {3, 3, -1, 1, false, {2, 3, 3}},
        {2, 5, -1, -1, false, {5, 5}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t row = 0; row < cases[i].lq; row++) {
            mst_key_range got = mst_attn_visible(cases[i].lq, cases[i].lk, row, row + 1,
                                                 cases[i].causal, cases[i].left, cases[i].right);
            assert_int_equal(got.end - got.begin, cases[i].want[row]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_brute_force_on_small_segments),
        cmocka_unit_test(stays_right_at_the_int32_limits),
        cmocka_unit_test(nothing_to_see_is_one_value),
        cmocka_unit_test(visible_counts_of_known_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
