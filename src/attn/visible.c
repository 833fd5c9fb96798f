/*
 * visible.c - the key range that some rows of a segment can see: the mask as integers.
 *
 * Row r stands at diagonal lk - lq + r and sees keys from diagonal - window_left up to diagonal +
 * reach, where reach is 0 with causal, else window_right. Both ends move by one a row and a row's
 * own range is never narrower than one key, so what several rows see has no holes and its ends are
 * those of the first and the last row.
 */
#include "attn/attn.h"

/* Lengths are int32, so a window of 2^32 reaches past either end from any row. */
#define BOUNDLESS (INT64_C(1) << 32)

mst_key_range mst_attn_visible(int64_t lq, int64_t lk, int64_t row_begin, int64_t row_end,
                               bool causal, int64_t window_left, int64_t window_right)
{
    mst_key_range range = {0, 0};
    if (row_begin >= row_end || lk <= 0)
        return range;
    int64_t before = window_left < 0 ? BOUNDLESS : mst_min_i64(window_left, BOUNDLESS);
    int64_t after = window_right < 0 ? BOUNDLESS : mst_min_i64(window_right, BOUNDLESS);
    if (causal)
        after = 0;
    int64_t first_diagonal = lk - lq + row_begin;
    int64_t last_diagonal = lk - lq + row_end - 1;
    int64_t begin = mst_max_i64(0, first_diagonal - before);
    int64_t end = mst_min_i64(lk, last_diagonal + after + 1);
    if (begin < end) {
        range.begin = begin;
        range.end = end;
    }
    return range;
}
