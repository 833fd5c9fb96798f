/*
 * attn_fetch.h - attention asks for the rows that it will work on next: a head's row is a few
 * lines, and at a stride of all heads the hardware does not see them coming.
 */
#ifndef MST_ATTN_FETCH_H
#define MST_ATTN_FETCH_H

#include "cpu/attn_pack.h"

/* Rows [first, first + rows) of heads [head, head + heads). */
static void fetch_rows(const mst_attn_shape *shape, const void *data, int64_t first, int64_t rows,
                       int64_t row_stride, int64_t head, int64_t heads, int64_t head_stride)
{
    int64_t bytes = (int64_t)mstar_dtype_bytes(shape->dtype);
    int64_t width = shape->head_dim * bytes;
    if (head_stride == shape->head_dim) { /* one run of bytes */
        width *= heads;
        heads = 1;
    }
    for (int64_t j = first; j < first + rows; j++) {
        const char *row = (const char *)data + (j * row_stride + head * head_stride) * bytes;
        for (int64_t h = 0; h < heads; h++, row += head_stride * bytes) {
            for (int64_t i = 0; i < width; i += MST_CACHE_LINE)
                __builtin_prefetch(row + i, 0, 2);
        }
    }
}

/* Part `part` of `parts` of an item's rows: of all its heads, or of the first of them. */
static void fetch_item(const mst_attn_call *call, const mst_attn_item *item, int64_t part,
                       int64_t parts, bool all_heads)
{
    const mst_attn_shape *shape = call->shape;
    int64_t group = shape->num_qo_heads / shape->num_kv_heads;
    int64_t heads = all_heads ? item->num_kv_heads : 1;
    int64_t head = item->kv_head_begin;
    int64_t keys = item->kv_end - item->kv_begin;
    int64_t first = call->kv_offsets[item->segment] + item->kv_begin + keys * part / parts;
    int64_t rows = keys * (part + 1) / parts - keys * part / parts;
    fetch_rows(shape, call->k, first, rows, call->k_row_stride, head, heads, call->k_head_stride);
    fetch_rows(shape, call->v, first, rows, call->v_row_stride, head, heads, call->v_head_stride);
    first = call->q_offsets[item->segment] + item->q_begin + item->q_rows * part / parts;
    rows = item->q_rows * (part + 1) / parts - item->q_rows * part / parts;
    fetch_rows(shape, call->q, first, rows, call->q_row_stride, head * group, heads * group,
               call->q_head_stride);
    fetch_rows(shape, call->out, first, rows, call->out_row_stride, head * group, heads * group,
               call->out_head_stride);
}

/* Bytes of an item that stay in the second cache while the item before it is computed, and how many
 * are asked for at once. */
#define FETCH_BYTES (256 * 1024)
#define FETCH_BURST (32 * 1024)

static bool fetched_whole(const mst_attn_shape *shape, const mst_attn_item *item)
{
    int64_t group = shape->num_qo_heads / shape->num_kv_heads;
    int64_t rows = 2 * ((int64_t)item->kv_end - item->kv_begin) + 2 * group * item->q_rows;
    int64_t burst = rows * shape->head_dim * (int64_t)mstar_dtype_bytes(shape->dtype);
    return burst <= FETCH_BURST && burst * item->num_kv_heads <= FETCH_BYTES;
}

#endif
