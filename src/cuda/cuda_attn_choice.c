/*
 * cuda_attn_choice.c - what attention on a GPU decides, as pure functions: integers in, integers
 * out.
 */
#include "cuda/attn_args.h"
#include "cuda/cuda.h"

/* Splitting pays where one segment alone would leave most of a card idle, and costs a trip of its
 * partial results through memory; both bounds are about a card of some hundred multiprocessors. */
#define FEW_TILES 128
#define PART_KEYS_NARROW 1024
/* Head dims above 128, whose blocks of keys take longer: parts of so many keys or more, all of one
 * size but the last, which is what they leave. A tile waits for the longest. */
#define LEAST_KEYS_WIDE 352
#define BLOCK_KEYS_WIDE 64 /* a part is whole blocks of any kernel */

int32_t mst_cuda_attn_tile_head_dim(int32_t head_dim)
{
    return (int32_t)mst_round_up(head_dim, 16);
}

int64_t mst_cuda_attn_part_keys(int32_t tile_head_dim, int64_t rows, int64_t num_kv_heads,
                                int64_t lk)
{
    if (num_kv_heads > FEW_TILES || mst_ceil_div(rows, 64) * num_kv_heads > FEW_TILES)
        return 0;
    if (tile_head_dim > 128) {
        int64_t parts = lk / LEAST_KEYS_WIDE;
        return parts < 2 ? 0 : mst_round_up(mst_ceil_div(lk, parts), BLOCK_KEYS_WIDE);
    }
    return lk < PART_KEYS_NARROW + PART_KEYS_NARROW / 2 ? 0 : PART_KEYS_NARROW;
}

int32_t mst_cuda_attn_blocks(int32_t fit, int32_t rows, int32_t limit)
{
    return (int32_t)mst_min_i64(fit, (int64_t)limit * 64 / rows);
}

bool mst_cuda_attn_is_few(int32_t tile_head_dim, int64_t tiles, int64_t multiprocessors)
{
    return tile_head_dim > 128 ? tiles * 3 <= multiprocessors : tiles <= 2 * multiprocessors;
}

bool mst_cuda_attn_is_fetched(int64_t whole_keys, int64_t key_bytes, int64_t l2_bytes)
{
    return whole_keys * key_bytes <= 2 * l2_bytes;
}

int32_t mst_cuda_attn_tile_rows(int32_t major, int32_t tile_head_dim, int64_t tiles_of_64,
                                int64_t tiles_of_128, int64_t num_kv_heads, int64_t multiprocessors)
{
    if (tile_head_dim <= 64 || tile_head_dim > 128)
        return 64;
    if (major == 9 && tile_head_dim == 128) /* cuda_attn_group.def */
        return 64;
    /* a row of a tall tile costs about four fifths of one of a low tile */
    bool dense = tiles_of_128 * 128 * 4 < tiles_of_64 * 64 * 5;
    bool fills = tiles_of_128 * num_kv_heads >= 2 * multiprocessors;
    return dense && fills ? 128 : 64;
}

bool mst_cuda_attn_shares(int32_t tile_rows, int64_t num_items, int64_t num_kv_heads,
                          int64_t multiprocessors)
{
    return tile_rows == 64 && num_items * num_kv_heads > 2 * multiprocessors;
}

bool mst_cuda_attn_fits(int32_t count, int64_t rows_taken, int64_t keys_taken, int64_t rows,
                        int64_t keys, int32_t block_keys)
{
    return count < MST_CUDA_SHARERS && keys > 0 && rows_taken + rows <= 64 &&
           keys_taken + keys <= block_keys;
}

/* A tile by mma.sync costs up to a quarter more than one by wgmma. */
bool mst_cuda_attn_prefers_sharing(int32_t tile_head_dim, int64_t tiles, int64_t shared_tiles,
                                   int64_t num_kv_heads, int64_t multiprocessors)
{
    return tile_head_dim <= 128 && /* above, bits differ */
           mst_cuda_attn_shares(64, tiles, num_kv_heads, multiprocessors) &&
           shared_tiles * 4 <= tiles * 3;
}
