/*
 * support_mock_attn.c - a launch of attention on the mock driver, item by item in double precision.
 */
#include <math.h>
#include <stdlib.h>

#include "support_mock_cuda.h"

/* One query row of one head, gathered over all items that hold a part of it. */
typedef struct mock_row {
    double max, sum, out[256];
    int64_t keys; /* seen so far, each once */
} mock_row;

typedef struct attn_launch {
    mock_cuda *mock;
    const mst_cuda_kernel *kernel;
    const mst_cuda_attn_args *args;
    mock_row *rows; /* of all tokens and query heads */
    bool *written;  /* of all tokens */
} attn_launch;

static void see(const attn_launch *launch, const mst_cuda_attn_item *item, int32_t token,
                int64_t head, mock_row *row)
{
    const mst_cuda_attn_args *a = launch->args;
    mstar_dtype dtype = launch->kernel->dtype;
    int64_t kv_head = head / a->group;
    int64_t q = ((int64_t)item->q_first + token) * a->q_row_stride + head * a->q_head_stride;
    int64_t diagonal = (int64_t)item->lk - item->lq + token;
    double scale = (double)a->scale_log2 * (a->negative ? -1.0 : 1.0) * 0.6931471805599453;
    for (int64_t key = item->key_begin; key < item->key_end; key++) {
        if ((a->header->causal && key > diagonal) ||
            (a->window_left != MST_CUDA_NO_WINDOW && key < diagonal - a->window_left) ||
            (a->window_right != MST_CUDA_NO_WINDOW && key > diagonal + a->window_right))
            continue;
        int64_t k = (item->kv_first + key) * a->k_row_stride + kv_head * a->k_head_stride;
        int64_t v = (item->kv_first + key) * a->v_row_stride + kv_head * a->v_head_stride;
        double score = 0.0;
        for (int32_t d = 0; d < a->head_dim; d++)
            score += (double)mst_load_element(a->q, dtype, q + d) *
                     (double)mst_load_element(a->k, dtype, k + d);
        score *= scale;
        double max = row->keys > 0 ? fmax(row->max, score) : score;
        double keep = row->keys > 0 ? exp(row->max - max) : 0.0;
        double weight = exp(score - max);
        row->sum = row->sum * keep + weight;
        for (int32_t d = 0; d < a->head_dim; d++)
            row->out[d] =
                row->out[d] * keep + weight * (double)mst_load_element(a->v, dtype, v + d);
        row->max = max;
        row->keys++;
    }
}

static void finish_row(const attn_launch *launch, int64_t token, int64_t head, const mock_row *row)
{
    const mst_cuda_attn_args *a = launch->args;
    int64_t out = token * a->out_row_stride + head * a->out_head_stride;
    for (int32_t d = 0; d < a->head_dim; d++)
        mst_store_element(a->out, launch->kernel->dtype, out + d,
                          row->keys > 0 ? (float)(row->out[d] / row->sum) : 0.0F);
    if (a->lse != NULL)
        a->lse[token * a->lse_row_stride + head] =
            row->keys > 0 ? (float)(row->max + log(row->sum)) : -INFINITY;
}

/* The segments that share a tile, as items of their own; returns how many. */
static int members_of(const attn_launch *launch, const mst_cuda_attn_shared *shared,
                      mst_cuda_attn_item *members)
{
    int count = 0;
    int32_t row_places = 0, places = 0, group = launch->args->group;
    for (; count < MST_CUDA_SHARERS && (shared->keys >> (8 * count) & 255U) != 0; count++) {
        int32_t rows = (int32_t)(shared->rows >> (8 * count) & 255U);
        int32_t keys = (int32_t)(shared->keys >> (8 * count) & 255U);
        members[count] = (mst_cuda_attn_item){.q_first = shared->first[count].q,
                                              .kv_first = shared->first[count].kv,
                                              .lq = rows / group,
                                              .lk = keys,
                                              .row_end = rows,
                                              .key_end = keys,
                                              .num_splits = 1,
                                              .slot = -1,
                                              .part_keys = INT32_MAX};
        if (rows == 0 || rows % group != 0)
            mock_cuda_fault("a segment of a shared tile has no rows, or parts of tokens");
        row_places += (rows + 15) / 16 * 16;
        places += (keys + 15) / 16 * 16;
    }
    for (int i = count; i < MST_CUDA_SHARERS; i++)
        if ((shared->rows >> (8 * i) & 255U) != 0 || (shared->keys >> (8 * i) & 255U) != 0)
            mock_cuda_fault("a shared tile has rows or keys past its last segment");
    if (launch->kernel->rows != 64 || launch->kernel->major != 0 || count < 2 || row_places > 64 ||
        places > launch->kernel->block_keys)
        mock_cuda_fault("what shares a tile is no tile, alone, or does not fit it");
    launch->mock->shared_items++;
    return count;
}

static void check_item(const attn_launch *launch, const mst_cuda_attn_item *item)
{
    if (item->row_end <= item->row_begin || item->row_end - item->row_begin > launch->kernel->rows)
        mock_cuda_fault("an item has no rows, or more than the kernel's tile");
    if (item->key_begin < 0 || item->key_end > item->lk || item->part_keys < 1)
        mock_cuda_fault("an item's keys leave its segment");
    if (item->slot >= 0 &&
        (item->split < 0 || item->split >= item->num_splits ||
         item->key_begin / item->part_keys != (item->key_end - 1) / item->part_keys))
        mock_cuda_fault("a part crosses the border of parts");
    launch->mock->split_items += item->slot >= 0;
    launch->mock->items++;
}

/* Calls visit with every item of the list; with those of a shared tile one after the other. */
static void each_item(const attn_launch *launch,
                      void (*visit)(const attn_launch *launch, const mst_cuda_attn_item *item))
{
    for (int32_t i = 0; i < launch->args->header->num_items; i++) {
        const mst_cuda_attn_item *item = &launch->args->items[i];
        mst_cuda_attn_item members[MST_CUDA_SHARERS];
        if (item->slot != MST_CUDA_SHARED) {
            visit(launch, item);
            continue;
        }
        int count = members_of(launch, (const void *)item, members);
        for (int k = 0; k < count; k++)
            visit(launch, &members[k]);
    }
}

/* The kernel's source, in another order of blocks and warps each time. */
static void run_tile(const attn_launch *launch, unsigned grid)
{
    const mst_cuda_attn_args *a = launch->args;
    const char *found = launch->mock->run_tile(launch->kernel->symbol, a, grid,
                                               (size_t)launch->kernel->shared_bytes,
                                               (unsigned)launch->mock->launches);
    if (found != NULL)
        mock_cuda_fault(found);
    each_item(launch, check_item);
    if (a->counters->next != 0 || a->counters->done != 0)
        mock_cuda_fault("the counters were not 0 after a launch");
}

static void see_item(const attn_launch *launch, const mst_cuda_attn_item *item)
{
    const mst_cuda_attn_args *a = launch->args;
    int64_t heads = (int64_t)a->num_kv_heads * a->group;
    check_item(launch, item);
    for (int32_t at = item->row_begin; at < item->row_end; at++) {
        int32_t token = at / a->group;
        launch->written[item->q_first + token] = true;
        for (int32_t k = 0; k < a->num_kv_heads; k++) {
            int64_t head = (int64_t)k * a->group + at % a->group;
            see(launch, item, token, head, &launch->rows[(item->q_first + token) * heads + head]);
        }
    }
}

int mock_attention_run(mock_cuda *mock, const mst_cuda_kernel *kernel, const mst_cuda_attn_args *a,
                       unsigned grid)
{
    const mst_cuda_attn_header *header = a->header;
    attn_launch all = {.mock = mock, .kernel = kernel, .args = a};
    if (mock->run_tile != NULL) {
        run_tile(&all, grid);
        return 0;
    }
    int64_t heads = (int64_t)a->num_kv_heads * a->group;
    all.rows = calloc((size_t)(header->num_tokens * heads) + 1, sizeof *all.rows);
    all.written = calloc((size_t)header->num_tokens + 1, sizeof *all.written);
    if (a->counters->next != 0 || a->counters->done != 0)
        mock_cuda_fault("the counters were not 0 at a launch");
    each_item(&all, see_item);
    for (int64_t token = 0; token < header->num_tokens; token++)
        for (int64_t head = 0; head < heads && all.written[token]; head++)
            finish_row(&all, token, head, &all.rows[token * heads + head]);
    mock_row none = {.keys = 0};
    for (int64_t token = header->num_tokens; token < a->zero_end; token++)
        for (int64_t head = 0; head < heads; head++)
            finish_row(&all, token, head, &none);
    free(all.rows);
    free(all.written);
    return 0;
}
