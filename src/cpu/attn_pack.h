/*
 * attn_pack.h - what attention works on, at one ISA level: row tiles, packs of them, and the
 * scratch of a thread. Shared by the parts of body_attn.c, which says how they work together.
 */
#ifndef MST_ATTN_PACK_H
#define MST_ATTN_PACK_H

#include "cpu/body.h"
#include "cpu/simd/amx.h"

#define TILE_ROWS 64
/* Tiles of a pack, and its lanes: whole vectors from any lane that a tile may begin at. */
#define MAX_PACK 8
#define PACK_LANES (TILE_ROWS + VF_LANES)
/* Whole register tiles of keys. */
#if defined(MST_ISA_AVX512)
#define BLOCK 70
#elif defined(MST_ISA_AVX2) || defined(MST_ISA_NEON)
#define BLOCK 72
#else
#define BLOCK 64
#endif
/* The same for bf16 on tile registers: a step costs O a way to memory and back, so it is long. */
#if AMX_TILES
#define TILE_BLOCK 128
#else
#define TILE_BLOCK BLOCK
#endif
#define MAX_BLOCK (TILE_BLOCK > BLOCK ? TILE_BLOCK : BLOCK)
/* Pairs of weights of a row, and a line off a power of two. */
#define WEIGHTS_STRIDE (TILE_BLOCK / 2 + 16)
#define HALF_LOG2_E 0.7213475204444817f
#define LN_2 0.69314718055994531

typedef struct attn_scratch {
    float *qt;                      /* [D][PACK_LANES] */
    float *k;                       /* [MAX_BLOCK][stride] */
    float *v;                       /* [MAX_BLOCK][stride]; k's place, but for tiles */
    float *s;                       /* [MAX_BLOCK][PACK_LANES], scores and then weights */
    float *p;                       /* [TILE_ROWS][WEIGHTS_STRIDE], weights by rows; for tiles */
    float *o;                       /* [PACK_LANES][stride] */
    float *max, *sum, *keep;        /* [PACK_LANES]; max in units of 2 log 2 */
    float *low, *high;              /* visible keys of a row within the block: [low, high) */
    int64_t *first_seen, *end_seen; /* and within the segment */
} attn_scratch;

/* Rows of K and V in scratch: whole vectors, and a line off a power of two. */
static int64_t row_stride(const mst_attn_shape *shape)
{
    return mst_round_up(shape->head_dim, 16) + 16;
}

static void lay_out(mst_arena *arena, const mst_attn_shape *shape, attn_scratch *scratch)
{
    int64_t stride = row_stride(shape);
    int64_t depth = mst_round_up(shape->head_dim, 16);
    scratch->qt = mst_arena_take(arena, depth * PACK_LANES, sizeof(float));
    scratch->k = mst_arena_take(arena, MAX_BLOCK * stride, sizeof(float));
    scratch->v = AMX_TILES ? mst_arena_take(arena, MAX_BLOCK * stride, sizeof(float)) : scratch->k;
    scratch->s = mst_arena_take(arena, MAX_BLOCK * PACK_LANES, sizeof(float));
    scratch->p = mst_arena_take(arena, AMX_TILES * TILE_ROWS * WEIGHTS_STRIDE, sizeof(float));
    scratch->o = mst_arena_take(arena, PACK_LANES * stride, sizeof(float));
    scratch->max = mst_arena_take(arena, PACK_LANES, sizeof(float));
    scratch->sum = mst_arena_take(arena, PACK_LANES, sizeof(float));
    scratch->keep = mst_arena_take(arena, PACK_LANES, sizeof(float));
    scratch->low = mst_arena_take(arena, PACK_LANES, sizeof(float));
    scratch->high = mst_arena_take(arena, PACK_LANES, sizeof(float));
    scratch->first_seen = mst_arena_take(arena, PACK_LANES, sizeof(int64_t));
    scratch->end_seen = mst_arena_take(arena, PACK_LANES, sizeof(int64_t));
}

/* A row tile; in its pack it has lanes [lane, lane + rows). */
typedef struct attn_tile {
    const mst_attn_call *call;
    const mst_attn_item *item;
    const attn_scratch *scratch;
    int64_t q_first, k_first; /* packed rows of the segment's first query and key */
    int64_t lq, lk;
    int32_t kv_head;
    int32_t head_first, heads; /* query heads of this tile */
    int64_t rows;              /* q_rows * heads */
    int64_t lane, lanes;       /* the first; rows, rounded up to whole vectors */
    int64_t stride, width;     /* of rows in scratch; columns of D in whole vectors */
    int64_t all_low, all_high; /* keys that every row sees */
    int64_t block;             /* keys of a step */
    int64_t first, keys;       /* of the step at hand */
    bool partly;               /* some row does not see all of them */
    bool pairs;                /* bf16 in pairs */
    bool tiles;                /* and on tile registers */
} attn_tile;

/* Tiles side by side: one tile of a long segment, or several of short ones, whose lanes follow each
 * other. */
typedef struct attn_pack {
    attn_tile tile[MAX_PACK];
    int32_t count;
    int64_t rows;
    int64_t q_at[PACK_LANES]; /* where each row of Q begins */
} attn_pack;

/* Row r of the tile is query row q_begin + r / heads of head head_first + r % heads; a walk gives
 * where each begins in a tensor, in order, without a division. */
typedef struct row_walk {
    int64_t at;
    int64_t to_head, to_row; /* to the next head of this query row; to the first of the next one */
    int32_t heads, left;     /* of a query row; of this one, with the head at hand */
} row_walk;

static row_walk first_row(const attn_tile *t, int64_t row_stride, int64_t head_stride)
{
    int64_t row = t->q_first + t->item->q_begin;
    return (row_walk){.at = row * row_stride + t->head_first * head_stride,
                      .to_head = head_stride,
                      .to_row = row_stride - (t->heads - 1) * head_stride,
                      .heads = t->heads,
                      .left = t->heads};
}

static void next_row(row_walk *walk)
{
    bool last = --walk->left == 0;
    walk->at += last ? walk->to_row : walk->to_head;
    walk->left = last ? walk->heads : walk->left;
}

#endif
