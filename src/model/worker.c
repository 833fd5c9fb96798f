/*
 * worker.c - one serial stream with the memory of one batch.
 *
 * Everything that a forward touches is cut from one arena, sized at load for the largest batch;
 * the same code counts the bytes and hands out the pieces. A layer's wide products share one
 * region, since they are never alive together: qkv and the attention's output in the first half of
 * a layer, the intermediate rows in the second, pooled vectors after the last.
 */
#include "model/encoder.h"

/* Bytes for one token. */
static int64_t scratch_bytes(const mst_folder *folder, mstar_dtype dtype)
{
    int64_t hidden = folder->config.hidden;
    int64_t attention = mst_token_stride(3 * hidden) + mst_token_stride(hidden);
    int64_t width = mst_max_i64(attention, mst_token_stride(folder->config.intermediate));
    return mst_max_i64(width * (int64_t)mstar_dtype_bytes(dtype),
                       mst_pooler_width(folder) * (int64_t)sizeof(float));
}

/* What operations read and write. */
static void cut_rows(mst_arena *arena, const mst_folder *folder, int64_t tokens, bool host,
                     mst_worker *worker)
{
    int64_t elements = tokens * mst_token_stride(folder->config.hidden);
    worker->sum = mst_arena_take(arena, elements, sizeof(float));
    worker->x =
        host ? worker->sum : mst_arena_take(arena, elements, mstar_dtype_bytes(worker->x_dtype));
    worker->scratch = mst_arena_take(arena, tokens * scratch_bytes(folder, worker->dtype), 1);
}

/* What the host reads and writes. */
static void cut_host(mst_arena *arena, const mst_folder *folder, int64_t tokens, bool host,
                     mst_worker *worker)
{
    int64_t width = mst_max_i64(mst_token_stride(folder->config.hidden), folder->dims);
    worker->host_rows = host ? NULL : mst_arena_take(arena, tokens * width, sizeof(float));
    worker->ids = mst_arena_take(arena, tokens, sizeof(int32_t));
    worker->type_ids = mst_arena_take(arena, tokens, sizeof(int32_t));
    worker->positions = mst_arena_take(arena, tokens, sizeof(int32_t));
    worker->offsets = mst_arena_take(arena, tokens + 1, sizeof(int32_t));
    worker->skip = mst_arena_take(arena, tokens, sizeof(int32_t));
}

void mst_worker_attention(const mst_folder *folder, mstar_dtype dtype,
                          mstar_ragged_prefill_desc *desc)
{
    mstar_ragged_prefill_desc_init(desc);
    desc->num_qo_heads = folder->config.heads;
    desc->num_kv_heads = folder->config.heads;
    desc->head_dim = folder->config.head_dim;
    desc->q_data_type = dtype;
}

/* On the host one arena holds both; a device has one of its own. */
static mstar_status open_memory(mstar_device *device, const mst_folder *folder, int64_t tokens,
                                mst_worker *worker)
{
    bool host = mst_place_is_host(device);
    mst_arena arena, rows;
    mst_arena_count(&arena);
    mst_arena_count(&rows);
    cut_rows(host ? &arena : &rows, folder, tokens, host, worker);
    cut_host(&arena, folder, tokens, host, worker);
    if (arena.overflowed || rows.overflowed)
        return mst_fail(MSTAR_OUT_OF_MEMORY,
                        "max_batch_tokens is %lld; its activations pass the address space",
                        (long long)tokens);
    worker->memory_bytes = arena.used + rows.used;
    MST_TRY(mst_alloc(arena.used, "activations", &worker->memory));
    mst_arena_over(&arena, worker->memory, arena.used);
    if (!host) {
        MST_TRY(mstar_buffer_create(device, rows.used, &worker->device_memory));
        mst_arena_over(&rows, mstar_buffer_get_data(worker->device_memory), rows.used);
    }
    cut_rows(host ? &arena : &rows, folder, tokens, host, worker);
    cut_host(&arena, folder, tokens, host, worker);
    return MSTAR_OK;
}

static mstar_status open_all(mstar_device *device, const mst_folder *folder, int64_t tokens,
                             void *workspace, size_t workspace_bytes, mst_worker *worker)
{
    MST_TRY(open_memory(device, folder, tokens, worker));
    MST_TRY(mstar_stream_create(device, 1, &worker->stream));
    mstar_ragged_prefill_desc desc;
    mst_worker_attention(folder, worker->dtype, &desc);
    return mstar_ragged_prefill_create(device, &desc, workspace, workspace_bytes,
                                       &worker->attention);
}

void mst_worker_open_bare(mst_worker *worker)
{
    *worker = (mst_worker){.stream = NULL};
    mstar_tokens_init(&worker->tokens);
}

mstar_status mst_worker_open(mstar_device *device, const mst_folder *folder, mstar_dtype dtype,
                             int64_t max_batch_tokens, void *workspace, size_t workspace_bytes,
                             mst_worker *worker)
{
    mst_worker_open_bare(worker);
    worker->dtype = dtype;
    worker->x_dtype = mst_place_is_host(device) ? MSTAR_DTYPE_F32 : dtype;
    mstar_status status =
        open_all(device, folder, max_batch_tokens, workspace, workspace_bytes, worker);
    if (status != MSTAR_OK)
        mst_worker_close(worker);
    return status;
}

void mst_worker_close(mst_worker *worker)
{
    mst_worker_graphs_close(worker->graphs);
    mst_stages_close(worker);
    mstar_ragged_prefill_destroy(worker->attention);
    mstar_stream_destroy(worker->stream);
    mstar_buffer_destroy(worker->device_memory);
    mst_free(worker->memory);
    mstar_tokens_release(&worker->tokens);
    mst_free(worker->stored_ids);
    mst_free(worker->text);
    mst_free(worker->lower);
    *worker = (mst_worker){.stream = NULL};
}

mstar_status mst_worker_bytes(const mst_worker *worker, size_t *bytes)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    size_t graphs = 0;
    *bytes = 0;
    if (worker->attention == NULL)
        return MSTAR_OK; /* it only tokenises */
    MST_TRY(mstar_ragged_prefill_query(worker->attention, &info));
    if (worker->graphs != NULL)
        MST_TRY(mst_worker_graphs_bytes(worker->graphs, &graphs));
    *bytes = worker->memory_bytes + info.plan_bytes + graphs;
    return MSTAR_OK;
}
