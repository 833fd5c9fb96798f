/* test_arena.c - the same takes count first and fill second. */
#include <string.h>

#include "base/base.h"
#include "support_check.h"

/* Random takes; returns how many pieces were given. */
static int take_many(mst_arena *arena, uint64_t seed, unsigned char **pieces, size_t *bytes)
{
    check_rng rng = {seed};
    int given = 0;
    for (int i = 0; i < 20; i++) {
        int64_t count = check_integer(&rng, 0, 100);
        size_t size = (size_t)check_integer(&rng, 0, 17);
        unsigned char *piece = mst_arena_take(arena, count, size);
        if (piece == NULL)
            continue;
        pieces[given] = piece;
        bytes[given] = (size_t)count * size;
        given++;
    }
    return given;
}

static void counting_equals_filling(void **state)
{
    (void)state;
    unsigned char *pieces[20];
    size_t bytes[20];
    for (uint64_t seed = 1; seed <= 200; seed++) {
        mst_arena arena;
        mst_arena_count(&arena);
        assert_int_equal(take_many(&arena, seed, pieces, bytes), 0);
        assert_false(arena.overflowed);
        size_t need = arena.used;
        void *base;
        CHECK_OK(mst_alloc(need, "arena", &base));
        mst_arena_over(&arena, base, need);
        assert_int_equal(take_many(&arena, seed, pieces, bytes), 20);
        assert_false(arena.overflowed);
        assert_int_equal(arena.used, need);
        for (int i = 0; i < 20; i++) {
            assert_int_equal((uintptr_t)pieces[i] % 64, 0);
            assert_true(pieces[i] >= (unsigned char *)base);
            assert_true(pieces[i] + bytes[i] <= (unsigned char *)base + need);
            if (i > 0)
                assert_true(pieces[i] >= pieces[i - 1] + bytes[i - 1]);
            memset(pieces[i], i, bytes[i]);
        }
        if (need > 0) { /* one byte less is noticed, and what came before stays right */
            mst_arena_over(&arena, base, need - 1);
            (void)take_many(&arena, seed, pieces, bytes);
            assert_true(arena.overflowed);
            assert_true(arena.used <= need - 1);
        }
        mst_free(base);
    }
}

static void overflow_is_marked(void **state)
{
    (void)state;
    static _Alignas(64) unsigned char base[256];
    static const struct {
        int64_t count;
        size_t size;
    } takes[] = {{-1, 1}, {INT64_MAX, 16}, {INT64_MAX, 2}, {1, SIZE_MAX}, {1, SIZE_MAX - 63}};
    for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++) {
        for (int over = 0; over < 2; over++) {
            mst_arena arena;
            if (over)
                mst_arena_over(&arena, base, sizeof base);
            else
                mst_arena_count(&arena);
            (void)mst_arena_take(&arena, 1, 64);
            assert_null(mst_arena_take(&arena, takes[i].count, takes[i].size));
            assert_true(arena.overflowed);
            assert_int_equal(arena.used, 64);
        }
    }
    mst_arena arena;
    mst_arena_over(&arena, base, sizeof base);
    assert_non_null(mst_arena_take(&arena, 4, 64));
    assert_null(mst_arena_take(&arena, 1, 1));
    assert_true(arena.overflowed);
    assert_int_equal(arena.used, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counting_equals_filling),
        cmocka_unit_test(overflow_is_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
