/*
 * test_cpu_choices.c - the CPU backend's decisions, all pure functions: which level serves a
 * machine, how a product is cut into tasks and blocks, how a segment is cut into tiles, when a
 * thread takes work ahead. Properties over random and extreme arguments; a failure prints what it
 * takes to repeat it.
 */
#include <string.h>

#include "support_check.h"

enum { ROUNDS = 4000 };

/* ---- which level ----------------------------------------------------------------------------- */

static void level_names(void **state)
{
    (void)state;
    const char *const isas[] = CHECK_ISAS;
    mst_isa isa = MST_ISA_LEVELS;
    for (int i = 0; i < CHECK_NUM_ISAS; i++) {
        assert_string_equal(mst_isa_name((mst_isa)i), isas[i]);
        CHECK_OK(mst_isa_parse("max_isa", isas[i], &isa));
        assert_int_equal(isa, i);
    }
    assert_string_equal(mst_isa_name(MST_ISA_LEVELS), "unknown");
    assert_string_equal(mst_isa_name((mst_isa)-1), "unknown");
#if defined(__aarch64__)
    const char *const foreign[] = {"avx2", "avx512", "avx512bf16", "amx", "", "Scalar", "neon "};
    const char *const accepted = "are scalar, neon";
#elif defined(__x86_64__)
    const char *const foreign[] = {"neon", "", "AVX2", "avx", "avx5122", "avx512 "};
    const char *const accepted = "are scalar, avx2, avx512, avx512bf16, amx";
#else
    const char *const foreign[] = {"neon", "avx2", ""};
    const char *const accepted = "are scalar";
#endif
    isa = MST_ISA_LEVELS;
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        CHECK_INVALID(mst_isa_parse("MSTAR_MAX_ISA", foreign[i], &isa), accepted);
        assert_non_null(strstr(mstar_last_error(), "MSTAR_MAX_ISA is \""));
        assert_non_null(strstr(mstar_last_error(), foreign[i]));
        assert_int_equal(isa, MST_ISA_LEVELS);
    }
}

static const char *const lowered = "lowered by the test";

static void level_choice(void **state)
{
    (void)state;
    for (int best = 0; best < MST_ISA_LEVELS; best++) {
        for (int limit = 0; limit < MST_ISA_LEVELS; limit++) {
            int lower = best < limit ? best : limit;
            const char *reason = NULL;
            assert_int_equal(mst_isa_choose((mst_isa)best, (mst_isa)limit, false, lowered, &reason),
                             lower);
            if (limit < best)
                assert_ptr_equal(reason, lowered);
            else
                assert_non_null(strstr(reason, "best ISA"));
            /* what is asked for by name is never taken for something else */
            if (limit <= best)
                assert_int_equal(
                    mst_isa_choose((mst_isa)best, (mst_isa)limit, true, lowered, &reason), limit);
            else
                assert_true(mst_isa_choose((mst_isa)best, (mst_isa)limit, true, lowered, &reason) <=
                            (mst_isa)lower);
            assert_true(strlen(reason) > 0);
            assert_true(strlen(reason) < sizeof((mstar_device_info *)NULL)->isa_reason);
        }
    }
}

/* Intel's bf16 dot instructions are slow where there are no tiles. */
static void level_choice_on_intel(void **state)
{
    (void)state;
#if defined(__x86_64__)
    static const char *const best = "best ISA of this machine and build";
    static const char *const slow = "vdpbf16ps is slower than f32 multiply-adds on Intel";
    static const struct {
        mst_isa best, limit, want;
        const char *reason;
    } cases[] = {
        {MST_ISA_LEVEL_AVX512BF16, MST_ISA_LEVEL_AMX, MST_ISA_LEVEL_AVX512, slow},
        {MST_ISA_LEVEL_AVX512BF16, MST_ISA_LEVEL_AVX512BF16, MST_ISA_LEVEL_AVX512BF16, best},
        {MST_ISA_LEVEL_AVX512BF16, MST_ISA_LEVEL_AVX512, MST_ISA_LEVEL_AVX512, lowered},
        {MST_ISA_LEVEL_AVX512BF16, MST_ISA_LEVEL_SCALAR, MST_ISA_LEVEL_SCALAR, lowered},
        {MST_ISA_LEVEL_AMX, MST_ISA_LEVEL_AMX, MST_ISA_LEVEL_AMX, best},
        {MST_ISA_LEVEL_AMX, MST_ISA_LEVEL_AVX512BF16, MST_ISA_LEVEL_AVX512BF16, lowered},
        {MST_ISA_LEVEL_AVX512, MST_ISA_LEVEL_AMX, MST_ISA_LEVEL_AVX512, best},
        {MST_ISA_LEVEL_AVX512, MST_ISA_LEVEL_AVX512BF16, MST_ISA_LEVEL_AVX512, best},
        {MST_ISA_LEVEL_AVX2, MST_ISA_LEVEL_AMX, MST_ISA_LEVEL_AVX2, best},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *reason = NULL;
        assert_int_equal(mst_isa_choose(cases[i].best, cases[i].limit, true, lowered, &reason),
                         cases[i].want);
        assert_string_equal(reason, cases[i].reason);
    }
#else
    /* no level of this architecture is passed over for anybody */
    for (int isa = 0; isa < MST_ISA_LEVELS; isa++) {
        const char *reason = NULL;
        assert_int_equal(
            mst_isa_choose((mst_isa)isa, (mst_isa)(MST_ISA_LEVELS - 1), true, lowered, &reason),
            isa);
    }
    assert_false(mst_cpu_is_intel());
#endif
}

/* ---- how products are cut -------------------------------------------------------------------- */

/* Parts follow each other from 0 to n, begin at whole units, and differ by one unit at most. */
static void check_cut(int64_t n, int64_t unit, int64_t parts)
{
    int64_t at = 0, least = INT64_MAX, most = 0;
    for (int64_t i = 0; i < parts; i++) {
        int64_t begin = -1, end = -1;
        mst_cut(n, unit, parts, i, &begin, &end);
        int64_t units = mst_ceil_div(end - begin, unit);
        least = mst_min_i64(least, units);
        most = mst_max_i64(most, units);
        bool whole = begin % unit == 0 || begin == n;
        if (begin != at || end < begin || !whole)
            fail_msg("n %lld unit %lld parts %lld: part %lld is [%lld, %lld), the last ended at "
                     "%lld",
                     (long long)n, (long long)unit, (long long)parts, (long long)i,
                     (long long)begin, (long long)end, (long long)at);
        at = end;
    }
    if (at != n || most - least > 1)
        fail_msg("n %lld unit %lld parts %lld: ended at %lld with %lld to %lld units a part",
                 (long long)n, (long long)unit, (long long)parts, (long long)at, (long long)least,
                 (long long)most);
}

static void cuts(void **state)
{
    (void)state;
    for (int64_t n = 0; n <= 40; n++) {
        for (int64_t unit = 1; unit <= 9; unit++) {
            for (int64_t parts = 1; parts <= 12; parts++)
                check_cut(n, unit, parts);
        }
    }
    check_rng rng = {11};
    for (int i = 0; i < ROUNDS; i++) {
        int64_t n = check_integer(&rng, 0, (int64_t)1 << check_integer(&rng, 1, 40));
        check_cut(n, check_integer(&rng, 1, 64), check_integer(&rng, 1, 200));
    }
    check_cut(INT64_MAX / 128, 64, 1024);
}

/* Tasks as cpu_linear.c makes them of a grid: every row of every panel belongs to exactly one. */
static void check_grid_covers(int64_t rows, int64_t panels, int64_t tile, int32_t threads)
{
    enum { MAX_ROWS = 400, MAX_PANELS = 24 };
    static unsigned char seen[MAX_ROWS][MAX_PANELS];
    assert_true(rows <= MAX_ROWS && panels <= MAX_PANELS);
    memset(seen, 0, sizeof seen);
    mst_linear_grid grid = mst_linear_split(rows, panels, tile, threads);
    for (int64_t task = 0; task < grid.row_parts * grid.panel_parts; task++) {
        int64_t row_begin, row_end, panel_begin, panel_end;
        mst_cut(rows, tile, grid.row_parts, task / grid.panel_parts, &row_begin, &row_end);
        mst_cut(panels, 1, grid.panel_parts, task % grid.panel_parts, &panel_begin, &panel_end);
        /* no thread is woken for nothing */
        assert_true(row_begin < row_end && panel_begin < panel_end);
        for (int64_t r = row_begin; r < row_end; r++) {
            for (int64_t p = panel_begin; p < panel_end; p++)
                seen[r][p]++;
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t p = 0; p < panels; p++) {
            if (seen[r][p] != 1)
                fail_msg("rows %lld panels %lld tile %lld threads %d: row %lld of panel %lld is "
                         "in %d tasks",
                         (long long)rows, (long long)panels, (long long)tile, threads, (long long)r,
                         (long long)p, seen[r][p]);
        }
    }
}

static void check_split(int64_t rows, int64_t panels, int64_t tile, int32_t threads)
{
    mst_linear_grid grid = mst_linear_split(rows, panels, tile, threads);
    int64_t tasks = grid.row_parts * grid.panel_parts;
    bool fits = grid.row_parts >= 1 && grid.panel_parts >= 1 && grid.panel_parts <= panels;
    fits = fits && tasks <= mst_max_i64(threads, 1);
    /* all threads work unless there is too little to hand out */
    if (rows > 0 && panels >= threads)
        fits = fits && tasks == mst_max_i64(threads, 1);
    /* rows are cut only where each thread has two full tiles */
    if (grid.row_parts > 1)
        fits = fits && grid.panel_parts == 1 && mst_ceil_div(rows, tile) >= 2 * grid.row_parts;
    if (!fits)
        fail_msg("rows %lld panels %lld tile %lld threads %d: %lld row parts, %lld panel parts",
                 (long long)rows, (long long)panels, (long long)tile, threads,
                 (long long)grid.row_parts, (long long)grid.panel_parts);
}

static void splits(void **state)
{
    (void)state;
    check_rng rng = {12};
    for (int i = 0; i < ROUNDS; i++) {
        int64_t rows = check_integer(&rng, 0, (int64_t)1 << check_integer(&rng, 1, 40));
        int64_t panels = check_integer(&rng, 1, (int64_t)1 << check_integer(&rng, 1, 20));
        int32_t threads = (int32_t)check_integer(&rng, 1, (int64_t)1 << check_integer(&rng, 1, 10));
        check_split(rows, panels, check_integer(&rng, 1, 32), threads);
    }
    for (int i = 0; i < 300; i++)
        check_grid_covers(check_integer(&rng, 1, 400), check_integer(&rng, 1, 24),
                          check_integer(&rng, 1, 32), (int32_t)check_integer(&rng, 1, 40));
    check_split(0, 1, 1, 1024);
    check_split(INT64_MAX / 64, 1, 14, 1024);
}

/* Whole tiles, two at least; what is more than two stays within half of the cache, and no more
   would. */
static void check_row_block(int64_t depth, int64_t tile, int64_t l2_bytes)
{
    int64_t block = mst_linear_row_block(depth, tile, l2_bytes);
    int64_t half = (l2_bytes > 0 ? l2_bytes : 256 * 1024) / 2;
    int64_t row_bytes = mst_max_i64(depth * (int64_t)sizeof(float), 1);
    bool fits = block % tile == 0 && block >= 2 * tile;
    fits = fits && (block == 2 * tile || block * row_bytes <= half);
    fits = fits && (block + tile) * row_bytes > half;
    if (!fits)
        fail_msg("depth %lld tile %lld l2 %lld: %lld rows", (long long)depth, (long long)tile,
                 (long long)l2_bytes, (long long)block);
}

static void row_blocks(void **state)
{
    (void)state;
    check_rng rng = {13};
    for (int i = 0; i < ROUNDS; i++)
        check_row_block(check_integer(&rng, 1, (int64_t)1 << check_integer(&rng, 1, 31)),
                        check_integer(&rng, 1, 32),
                        check_integer(&rng, -1, (int64_t)1 << check_integer(&rng, 1, 30)));
    check_row_block(384, 14, 0);
    check_row_block(384, 14, -1);
    assert_int_equal(mst_linear_row_block(384, 6, 0), mst_linear_row_block(384, 6, 256 * 1024));
    assert_true(mst_linear_row_block(0, 6, 1 << 20) >= 12);
}

/* ---- how segments are cut -------------------------------------------------------------------- */

/* Rows of a tile, over all heads of its group that share it, that a kernel's scratch holds. */
enum { TILE_ROWS = 64 };

static int64_t group_of(const mst_attn_shape *shape)
{
    return mst_min_i64(shape->num_qo_heads / shape->num_kv_heads, TILE_ROWS);
}

static void check_tile(const char *isa, const mstar_device *device, const mst_attn_shape *shape,
                       int64_t lq, int64_t lk)
{
    mst_attn_tile tile = mst_cpu_attn_tile(device, shape, lq, lk);
    mst_attn_tile worst = mst_cpu_attn_worst_tile(device, shape);
    int64_t most = TILE_ROWS / group_of(shape);
    bool fits = tile.rows >= 1 && tile.heads >= 1 && tile.heads <= shape->num_kv_heads;
    fits = fits && tile.rows * group_of(shape) <= TILE_ROWS && tile.rows <= mst_max_i64(lq, 1);
    /* no more tiles than full ones would be, and none higher than that takes */
    int64_t tiles = fits ? mst_ceil_div(lq, tile.rows) : 0;
    fits = fits && tiles == mst_ceil_div(lq, most);
    fits = fits && (tile.rows == 1 || mst_ceil_div(lq, tile.rows - 1) > tiles);
    /* several heads only while an item stays small */
    fits = fits && (tile.heads == 1 ||
                    tile.heads * tile.rows * mst_min_i64(lk, 4096) <= MST_ATTN_ITEM_WORK);
    /* what a work list at its ceilings is sized by */
    fits = fits && tiles <= mst_ceil_div(lq, worst.rows);
    fits = fits && mst_ceil_div(shape->num_kv_heads, tile.heads) <=
                       mst_ceil_div(shape->num_kv_heads, worst.heads);
    if (!fits)
        fail_msg("%s: heads %d/%d lq %lld lk %lld: %d rows, %d heads", isa, shape->num_qo_heads,
                 shape->num_kv_heads, (long long)lq, (long long)lk, tile.rows, tile.heads);
}

static void tiles(void **state)
{
    (void)state;
    const char *const isas[] = CHECK_ISAS;
    for (int i = 0; i < CHECK_NUM_ISAS; i++) {
        mstar_device *device = check_open(isas[i], 1);
        if (device == NULL)
            continue;
        check_rng rng = {14};
        for (int round = 0; round < ROUNDS; round++) {
            mst_attn_shape shape = {.dtype = MSTAR_DTYPE_F32,
                                    .num_kv_heads = (int32_t)check_integer(&rng, 1, 40),
                                    .head_dim = (int32_t)check_integer(&rng, 1, 256),
                                    .window_left = -1,
                                    .window_right = -1,
                                    .reference = check_integer(&rng, 0, 1) == 1};
            int64_t group = check_integer(&rng, 1, (int64_t)1 << check_integer(&rng, 0, 7));
            shape.num_qo_heads = shape.num_kv_heads * (int32_t)group;
            check_tile(isas[i], device, &shape,
                       check_integer(&rng, 0, (int64_t)1 << check_integer(&rng, 1, 30)),
                       check_integer(&rng, 0, (int64_t)1 << check_integer(&rng, 1, 30)));
            check_tile(isas[i], device, &shape, INT32_MAX, INT32_MAX);
            check_tile(isas[i], device, &shape, check_integer(&rng, 1, 130), 0);
        }
        CHECK_OK(mstar_device_close(device));
    }
}

/* Ahead of short items only, never of the last ones, and the shorter the sooner. */
static void taking_ahead(void **state)
{
    (void)state;
    check_rng rng = {15};
    for (int round = 0; round < ROUNDS; round++) {
        int64_t most = (int64_t)1 << check_integer(&rng, 1, 31);
        mst_attn_item item = {.q_rows = (int32_t)check_integer(&rng, 1, 64),
                              .kv_end = (int32_t)check_integer(&rng, 0, most - 1),
                              .num_kv_heads = (int32_t)check_integer(&rng, 1, 40)};
        item.kv_begin = (int32_t)check_integer(&rng, 0, item.kv_end);
        int32_t threads = (int32_t)check_integer(&rng, 1, MST_MAX_THREADS);
        int64_t left = check_integer(&rng, 1, most);
        int64_t keys = (int64_t)item.kv_end - item.kv_begin;
        bool ahead = mst_attn_takes_ahead(&item, left, threads);
        bool short_item = item.q_rows * keys * item.num_kv_heads <= MST_ATTN_ITEM_WORK;
        if (ahead && (!short_item || left < 8 * (int64_t)threads))
            fail_msg("%d rows, %lld keys, %d heads, %lld left, %d threads: taken ahead",
                     item.q_rows, (long long)keys, item.num_kv_heads, (long long)left, threads);
        if (ahead) {
            mst_attn_item shorter = item;
            shorter.kv_end = item.kv_begin;
            assert_true(mst_attn_takes_ahead(&shorter, left, threads));
            assert_true(mst_attn_takes_ahead(&item, left + 1, threads));
            assert_true(mst_attn_takes_ahead(&item, left, (threads + 1) / 2));
        }
    }
    /* texts of 16 tokens and 12 heads, two threads: until 16 are left */
    mst_attn_item text = {.q_rows = 16, .kv_end = 16, .num_kv_heads = 12};
    assert_true(mst_attn_takes_ahead(&text, 16, 2));
    assert_false(mst_attn_takes_ahead(&text, 15, 2));
    mst_attn_item longest = {.q_rows = 64, .kv_end = INT32_MAX, .num_kv_heads = 1};
    assert_false(mst_attn_takes_ahead(&longest, INT64_MAX, 1));
}

/* As many as are worth a start together, within an eighth of a thread's share; one at least. */
static void items_at_once(void **state)
{
    (void)state;
    check_rng rng = {16};
    for (int round = 0; round < ROUNDS; round++) {
        mst_attn_item item = {
            .q_rows = (int32_t)check_integer(&rng, 1, 64),
            .kv_end = (int32_t)check_integer(&rng, 0, (int64_t)1 << check_integer(&rng, 0, 30)),
            .num_kv_heads = (int32_t)check_integer(&rng, 1, 40)};
        int32_t threads = (int32_t)check_integer(&rng, 1, MST_MAX_THREADS);
        int64_t left = check_integer(&rng, 1, (int64_t)1 << check_integer(&rng, 1, 31));
        int64_t count = mst_attn_items_at_once(&item, left, threads);
        int64_t work = (int64_t)item.q_rows * item.num_kv_heads * (item.kv_end + (int64_t)1);
        if (count < 1 || count > left ||
            (count > 1 && (count * work > MST_ATTN_ITEM_WORK || count * 8 * threads > left)))
            fail_msg("%d rows, %d keys, %d heads, %lld left, %d threads: %lld at once", item.q_rows,
                     item.kv_end, item.num_kv_heads, (long long)left, threads, (long long)count);
    }
    /* short texts of one head, two threads */
    mst_attn_item text = {.q_rows = 8, .kv_end = 8, .num_kv_heads = 1};
    assert_int_equal(mst_attn_items_at_once(&text, 512, 2), 32);
    assert_int_equal(mst_attn_items_at_once(&text, 31, 2), 1);
    assert_int_equal(mst_attn_items_at_once(&text, INT64_MAX, 1), MST_ATTN_ITEM_WORK / 72);
    mst_attn_item longest = {.q_rows = INT32_MAX, .kv_end = INT32_MAX, .num_kv_heads = INT32_MAX};
    assert_int_equal(mst_attn_items_at_once(&longest, INT64_MAX, 1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_names),
        cmocka_unit_test(level_choice),
        cmocka_unit_test(level_choice_on_intel),
        cmocka_unit_test(cuts),
        cmocka_unit_test(splits),
        cmocka_unit_test(row_blocks),
        cmocka_unit_test(tiles),
        cmocka_unit_test(taking_ahead),
        cmocka_unit_test(items_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
