/*
 * attn_args.h - what a launch of an attention kernel reads: plain C, shared by the host and
 * kernels.
 *
 * Everything a later plan may change (counts, causality, offsets, items) is read from device
 * memory, so that a captured launch serves every plan; the rest is fixed by the wrapper and its
 * tensors.
 */
#ifndef MST_CUDA_ATTN_ARGS_H
#define MST_CUDA_ATTN_ARGS_H

#include <stdint.h>

#include "cuda/tensor_map.h"

/*
 * One piece of work of a plan, for every kv head: rows of one segment over a range of its keys.
 * Three copies of 16 bytes. Rows of the group: query row * group + query head of the group.
 */
typedef struct mst_cuda_attn_item {
    int32_t q_first, kv_first;  /* the segment's first token on each side */
    int32_t lq, lk;             /* the segment's tokens */
    int32_t row_begin, row_end; /* rows of the group, from the segment's first */
    int32_t key_begin, key_end; /* keys, from the segment's first */
    int32_t split, num_splits;
    int32_t slot; /* of the tile's first part; -1: one block does all parts, one after the other */
    int32_t part_keys; /* of a part; without a split, any number past key_end */
} mst_cuda_attn_item;

/*
 * In the place of an item: whole segments of few rows and keys that share a tile of 64 rows and one
 * block of keys. Rows and keys of each begin on a multiple of 16, so that the matrix instructions
 * see them as they would alone, and no product has operands of two. Byte i of a word is segment
 * i's.
 */
#define MST_CUDA_SHARERS 4
#define MST_CUDA_SHARED (-2) /* slot of an item is -1 or more */

typedef struct mst_cuda_attn_shared {
    struct {
        int32_t q, kv;
    } first[MST_CUDA_SHARERS]; /* tokens, as q_first and kv_first of an item */
    uint32_t rows, keys;       /* of each, rows of the group; 0 past the last segment */
    int32_t slot;              /* MST_CUDA_SHARED, where an item has its slot */
    int32_t reserved;
} mst_cuda_attn_shared;

/* First words of a plan's image, written by the upload. */
typedef struct mst_cuda_attn_header {
    int32_t num_items;
    int32_t num_tokens;
    int32_t causal;
    int32_t reserved;
} mst_cuda_attn_header;

/* Written by kernels only; zero before the first launch, and zero again after each. */
typedef struct mst_cuda_attn_counters {
    uint32_t next; /* work taken beyond the first of each block */
    uint32_t done; /* blocks that have finished */
} mst_cuda_attn_counters;

typedef struct mst_cuda_attn_args {
    const void *q, *k, *v;
    void *out;
    float *lse; /* NULL when not wanted */
    const mst_cuda_attn_header *header;
    const mst_cuda_attn_item *items;
    mst_cuda_attn_counters *counters;
    uint32_t *arrivals;  /* one a split tile and head, zero between launches */
    float *partials;     /* partial results, one slot a part, tile and head */
    float *own_partials; /* one slot a block of the grid */
    int64_t q_row_stride, q_head_stride;
    int64_t k_row_stride, k_head_stride;
    int64_t v_row_stride, v_head_stride;
    int64_t out_row_stride, out_head_stride;
    int64_t lse_row_stride;
    int64_t zero_end;                  /* rows of out from header->num_tokens up to here become 0 */
    int32_t num_kv_heads, group;       /* query heads of a kv head */
    int32_t head_dim;                  /* true */
    int32_t window_left, window_right; /* MST_CUDA_NO_WINDOW: no limit */
    float scale_log2;                  /* |sm_scale| * log2 e, never 0 */
    float half_scale;                  /* sm_scale * log2 e / 2, what the plain kernels take */
    int32_t negative;                  /* sm_scale is below 0 */
    int32_t elements;                  /* q, k, v cannot be read 16 bytes at a time */
    int32_t out_vector;                /* rows of out may be written 16 bytes at a time */
} mst_cuda_attn_args;

/* What the kernels for Hopper read: k and v for the copy engine too, whose elements are never read
 * one by one then: elements of a head, kv heads, rows; boxes of 64 elements of one head of 64 rows.
 */
typedef struct mst_cuda_hopper_args {
    mst_cuda_tensor_map k, v;
    mst_cuda_attn_args attn;
} mst_cuda_hopper_args;

#define MST_CUDA_NO_WINDOW (1 << 30)

/*
 * Shared memory of a kernel for Hopper: a ring of k and v in STAGES blocks of 64 keys, atoms of 64
 * columns; rows of q and out of each of GROUPS groups of 64 rows, twice; four items; barriers; and
 * up to 1023 bytes before all that.
 */
#define MST_CUDA_HOPPER_BLOCK(HD) (((HD) + 63) / 64 * 8192)
#define MST_CUDA_HOPPER_PITCH(HD) (((HD) / 8 + 1) * 16)
#define MST_CUDA_HOPPER_ROWS(HD)                                  \
    (((MST_CUDA_HOPPER_BLOCK(HD) > 64 * MST_CUDA_HOPPER_PITCH(HD) \
           ? MST_CUDA_HOPPER_BLOCK(HD)                            \
           : 64 * MST_CUDA_HOPPER_PITCH(HD)) +                    \
      1023) /                                                     \
     1024 * 1024)
#define MST_CUDA_HOPPER_SHARED(HD, GROUPS, STAGES)                                           \
    (1024 + 2 * (STAGES)*MST_CUDA_HOPPER_BLOCK(HD) + 2 * (GROUPS)*MST_CUDA_HOPPER_ROWS(HD) + \
     16 * MST_CUDA_HOPPER_PITCH(HD) + (4 * (STAGES) + 12) * 8)

#endif
