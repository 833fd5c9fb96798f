/*
 * support_mock_attn.c - a launch of attention on the mock driver, item by item in double precision.
 */
#include <math.h>
#include <stdlib.h>

#include "support_mock_cuda.h"

typedef struct attn_launch {
    mock_cuda *mock;
    const mst_cuda_kernel *kernel;
    const mst_cuda_attn_args *args;
} attn_launch;

/* One query row of one head, gathered over all items that hold a part of it. */
typedef struct mock_row {
    double max, sum, out[256];
    int64_t keys; /* seen so far, each once */
} mock_row;

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

/* The kernel's source, in another order of blocks and warps each time. */
static void run_tile(const attn_launch *launch, unsigned grid)
{
    const mst_cuda_attn_args *a = launch->args;
    const char *found = launch->mock->run_tile(launch->kernel->symbol, a, grid,
                                               (size_t)launch->kernel->shared_bytes,
                                               (unsigned)launch->mock->launches);
    if (found != NULL)
        mock_cuda_fault(found);
    for (int32_t i = 0; i < a->header->num_items; i++)
        check_item(launch, &a->items[i]);
    if (a->counters->next != 0 || a->counters->done != 0)
        mock_cuda_fault("the counters were not 0 after a launch");
}

int mock_attention_run(mock_cuda *mock, const mst_cuda_kernel *kernel, const mst_cuda_attn_args *a,
                       unsigned grid)
{
    const attn_launch all = {mock, kernel, a}, *launch = &all;
    const mst_cuda_attn_header *header = a->header;
    if (mock->run_tile != NULL) {
        run_tile(launch, grid);
        return 0;
    }
    int64_t heads = (int64_t)a->num_kv_heads * a->group;
    mock_row *rows = calloc((size_t)(header->num_tokens * heads) + 1, sizeof *rows);
    bool *written = calloc((size_t)header->num_tokens + 1, sizeof *written);
    if (a->counters->next != 0 || a->counters->done != 0)
        mock_cuda_fault("the counters were not 0 at a launch");
    for (int32_t i = 0; i < header->num_items; i++) {
        const mst_cuda_attn_item *item = &a->items[i];
        check_item(launch, item);
        for (int32_t at = item->row_begin; at < item->row_end; at++) {
            int32_t token = at / a->group;
            written[item->q_first + token] = true;
            for (int32_t k = 0; k < a->num_kv_heads; k++) {
                int64_t head = (int64_t)k * a->group + at % a->group;
                see(launch, item, token, head, &rows[(item->q_first + token) * heads + head]);
            }
        }
    }
    for (int64_t token = 0; token < header->num_tokens; token++)
        for (int64_t head = 0; head < heads && written[token]; head++)
            finish_row(launch, token, head, &rows[token * heads + head]);
    mock_row none = {.keys = 0};
    for (int64_t token = header->num_tokens; token < a->zero_end; token++)
        for (int64_t head = 0; head < heads; head++)
            finish_row(launch, token, head, &none);
    free(rows);
    free(written);
    return 0;
}
