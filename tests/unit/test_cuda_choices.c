/* test_cuda_choices.c - what the CUDA backend decides from numbers alone: parts, tiles, instances.
 */
#include "cuda/cuda.h"
#include "cuda/cuda_linear.h"
#include "support_check.h"

/* ---- choices --------------------------------------------------------------------------------- */

static void splits_by_the_segment_alone(void **state)
{
    (void)state;
    /* few rows over many keys; not where there are enough tiles, or too few keys */
    assert_int_equal(mst_cuda_attn_part_keys(64, 126, 32, 8160), 1024);
    assert_int_equal(mst_cuda_attn_part_keys(64, 258, 16, 7998), 1024);
    assert_int_equal(mst_cuda_attn_part_keys(256, 400, 1, 703), 0);
    assert_int_equal(mst_cuda_attn_part_keys(256, 400, 1, 704), 384);
    assert_int_equal(mst_cuda_attn_part_keys(256, 400, 1, 850), 448);
    assert_int_equal(mst_cuda_attn_part_keys(256, 400, 1, 1018), 512);
    assert_int_equal(mst_cuda_attn_part_keys(256, 400, 1, 1055), 576);
    assert_int_equal(mst_cuda_attn_part_keys(256, 400, 1, 1850), 384);
    assert_int_equal(mst_cuda_attn_part_keys(256, 1, 1, INT32_MAX), 384);
    assert_int_equal(mst_cuda_attn_part_keys(64, 426, 20, 1500), 0);
    assert_int_equal(mst_cuda_attn_part_keys(128, 16384, 24, 512), 0);
    assert_int_equal(mst_cuda_attn_part_keys(128, 64, 32, 1024), 0);
    /* at the bounds: 128 tiles, 3/2 of a part */
    assert_int_equal(mst_cuda_attn_part_keys(64, 64 * 128, 1, 1536), 1024);
    assert_int_equal(mst_cuda_attn_part_keys(64, 64 * 128 + 1, 1, 1536), 0);
    assert_int_equal(mst_cuda_attn_part_keys(64, 1, 1, 1535), 0);
    assert_int_equal(mst_cuda_attn_part_keys(64, 1, 129, INT32_MAX), 0);
}

static void tiles_by_the_layout(void **state)
{
    (void)state;
    assert_int_equal(mst_cuda_attn_tile_head_dim(1), 16);
    assert_int_equal(mst_cuda_attn_tile_head_dim(72), 80);
    assert_int_equal(mst_cuda_attn_tile_head_dim(256), 256);
    /* long segments that fill the card take tall tiles; short ones, few ones and other dims do not
     */
    assert_int_equal(mst_cuda_attn_tile_rows(8, 128, 256, 128, 16, 132), 128);
    assert_int_equal(mst_cuda_attn_tile_rows(8, 128, 9, 9, 32, 132), 64);
    assert_int_equal(mst_cuda_attn_tile_rows(8, 128, 15, 8, 8, 132), 64);
    assert_int_equal(mst_cuda_attn_tile_rows(8, 80, 1024, 1024, 16, 132), 64);
    assert_int_equal(mst_cuda_attn_tile_rows(8, 64, 256, 128, 16, 132), 64);
    assert_int_equal(mst_cuda_attn_tile_rows(8, 144, 256, 128, 16, 132), 64);
    /* Hopper's own kernels, where there are some, are low */
    assert_int_equal(mst_cuda_attn_tile_rows(9, 128, 256, 128, 16, 132), 64);
    assert_int_equal(mst_cuda_attn_tile_rows(9, 96, 256, 128, 16, 132), 128);
}

/* Kernels of more stages are for layouts that leave multiprocessors idle. */
static void few_tiles_by_the_head_dim(void **state)
{
    (void)state;
    assert_true(mst_cuda_attn_is_few(128, 264, 132));
    assert_false(mst_cuda_attn_is_few(128, 265, 132));
    assert_true(mst_cuda_attn_is_few(256, 44, 132));
    assert_false(mst_cuda_attn_is_few(256, 45, 132));
}

/* A card with 50 MB of second-level cache, 16 heads of 128. */
static void long_segments_are_copied(void **state)
{
    (void)state;
    assert_true(mst_cuda_attn_is_fetched(8192, 4 * 16 * 128, 50 << 20));
    assert_true(mst_cuda_attn_is_fetched(12800, 4 * 16 * 128, 50 << 20));
    assert_false(mst_cuda_attn_is_fetched(12801, 4 * 16 * 128, 50 << 20));
    assert_true(mst_cuda_attn_is_fetched(0, 4 * 16 * 128, 50 << 20)); /* causal */
}

/* Memory for the partial results of a multiprocessor's blocks is counted in tiles of 64 rows. */
static void blocks_by_their_memory(void **state)
{
    (void)state;
    assert_int_equal(mst_cuda_attn_blocks(3, 64, 4), 3);
    assert_int_equal(mst_cuda_attn_blocks(7, 64, 4), 4);
    assert_int_equal(mst_cuda_attn_blocks(2, 128, 4), 2);
    assert_int_equal(mst_cuda_attn_blocks(3, 128, 4), 2);
    assert_int_equal(mst_cuda_attn_blocks(3, 64, 2), 2);
    assert_int_equal(mst_cuda_attn_blocks(1, 128, 4), 1);
}

static void short_segments_share(void **state)
{
    (void)state;
    assert_true(mst_cuda_attn_shares(64, 23, 12, 132));
    assert_false(mst_cuda_attn_shares(64, 22, 12, 132)); /* all tiles run at once anyway */
    assert_false(mst_cuda_attn_shares(128, 1000, 12, 132));
    assert_true(mst_cuda_attn_fits(0, 0, 0, 64, 64, 64));
    assert_true(mst_cuda_attn_fits(1, 16, 16, 48, 48, 64));
    assert_false(mst_cuda_attn_fits(1, 16, 16, 49, 16, 64)); /* rows */
    assert_false(mst_cuda_attn_fits(1, 16, 16, 16, 49, 64)); /* keys */
    assert_false(mst_cuda_attn_fits(1, 16, 16, 16, 17, 32)); /* a smaller block */
    assert_true(mst_cuda_attn_fits(3, 48, 48, 16, 16, 64));
    assert_false(mst_cuda_attn_fits(4, 4, 0, 1, 1, 64));
    assert_false(mst_cuda_attn_fits(0, 0, 0, 5, 0, 64)); /* nothing to see */
    /* mma.sync for the sake of it, where the bits allow it */
    assert_true(mst_cuda_attn_prefers_sharing(64, 1000, 750, 12, 132));
    assert_false(mst_cuda_attn_prefers_sharing(64, 1000, 751, 12, 132));
    assert_true(mst_cuda_attn_prefers_sharing(128, 1000, 250, 12, 132));
    assert_false(mst_cuda_attn_prefers_sharing(144, 1000, 250, 12, 132));
    assert_false(mst_cuda_attn_prefers_sharing(64, 22, 6, 12, 132));
}

/* On 132 multiprocessors: the smallest tiles of which each has its own; of more, a group has its
 * own too, with an activation from many on. */
static void sharing_by_the_tiles(void **state)
{
    (void)state;
    enum {
        PING = MST_CUDA_LINEAR_PING,
        WIDE = MST_CUDA_LINEAR_WIDE,
        MIDDLE = MST_CUDA_LINEAR_MIDDLE,
        SMALL = MST_CUDA_LINEAR_SMALL
    };
    const int64_t cases[][4] = {
        /* rows, columns; without an activation, with one */
        {1, 1, SMALL, SMALL},
        {256, 1152, SMALL, SMALL},
        {128, 66 * 64, SMALL, SMALL},
        {129, 66 * 64, MIDDLE, MIDDLE},
        {256, 66 * 72, MIDDLE, MIDDLE},
        {257, 66 * 72, WIDE, WIDE},
        {128 * 12, 128 * 11, WIDE, WIDE},
        {128 * 12 + 1, 128 * 11, PING, WIDE},
        {128 * 96, 128 * 11, PING, WIDE},
        {128 * 96 + 1, 128 * 11, PING, PING},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int gelu = 0; gelu < 2; gelu++)
            assert_int_equal(mst_cuda_fused_sharing(cases[i][0], cases[i][1],
                                                    gelu ? MSTAR_ACTIVATION_GELU : 0, 132),
                             cases[i][2 + gelu]);
    }
    assert_false(mst_cuda_fused_is_few(PING) || mst_cuda_fused_is_few(WIDE));
    assert_true(mst_cuda_fused_is_few(MIDDLE) && mst_cuda_fused_is_few(SMALL));
}

/* Every instance costs time to compile and room in the library. */
static void few_enough_kernels(void **state)
{
    (void)state;
#define MST_ATTN(HD, BN, MT, STAGES, BLOCKS) +2 /* bf16 and f16 */
    const int count = 0
#include "cuda/cuda_attn.def"
        ;
#undef MST_ATTN
    assert_in_range(count, 32, 64); /* every multiple of 16 at least once */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_by_the_segment_alone), cmocka_unit_test(tiles_by_the_layout),
        cmocka_unit_test(few_tiles_by_the_head_dim),   cmocka_unit_test(blocks_by_their_memory),
        cmocka_unit_test(long_segments_are_copied),    cmocka_unit_test(short_segments_share),
        cmocka_unit_test(sharing_by_the_tiles),        cmocka_unit_test(few_enough_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
