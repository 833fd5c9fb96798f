/*
 * cuda_graph.c - capture and replay: the driver's own graphs behind the seam.
 *
 * The stream itself captures, so a launch is recorded by being launched. What a later plan changes
 * lies in device memory that the launches read. What is left to a replay is to see that the plan of
 * each recorded attention still fits the tensors that were recorded, and what cuda_record.c keeps.
 */
#include "cuda/cuda_rows.h"

/* Rows of one recorded attention, and its plan's live counts. */
typedef struct recorded_rows {
    mst_attn_live live;
    int64_t q_rows, kv_rows;
} recorded_rows;

typedef struct cuda_graph {
    void *executable;
    recorded_rows *rows;
    int64_t num_rows, rows_capacity;
    int64_t nodes;
    size_t driver_bytes;
    mst_cuda_record *record;
} cuda_graph;

mstar_status mst_cuda_capture_begin(mstar_stream *stream, mstar_graph *graph)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    MST_TRY(mst_alloc_zero(sizeof(cuda_graph), "graph", &graph->impl));
    MST_TRY(mst_cuda_record_open(&((cuda_graph *)graph->impl)->record));
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_check(
        cuda->driver,
        cuda->driver->capture_begin(mst_cuda_handle(stream), MST_CUDA_CAPTURE_THREAD_LOCAL),
        "beginning a capture");
    mst_cuda_leave(cuda);
    if (status == MSTAR_OK)
        mst_cuda_range(stream->device, "mstar capture"); /* until its end or abort */
    return status;
}

mst_cuda_record *mst_cuda_record_of(const mstar_stream *stream)
{
    return ((const cuda_graph *)stream->graph->impl)->record;
}

mstar_status mst_cuda_record_attn(mstar_stream *stream, const mst_attn_call *call)
{
    cuda_graph *g = stream->graph->impl;
    void *rows = g->rows;
    mstar_status status =
        mst_grow(&rows, &g->rows_capacity, g->num_rows + 1, sizeof *g->rows, "recorded attention");
    g->rows = rows;
    if (status != MSTAR_OK)
        return status;
    g->rows[g->num_rows++] = (recorded_rows){call->live, call->q_rows, call->kv_rows};
    return MSTAR_OK;
}

static bool ask_free(const mst_cuda *cuda, size_t *bytes)
{
    size_t total = 0;
    return cuda->driver->memory_info(bytes, &total) == MST_CUDA_SUCCESS;
}

static mstar_status instantiate(const mst_cuda *cuda, void *driver_graph, cuda_graph *g)
{
    size_t nodes = 0, before = 0, after = 0;
    MST_TRY(mst_cuda_check(cuda->driver, cuda->driver->graph_nodes(driver_graph, NULL, &nodes),
                           "counting a graph's nodes"));
    g->nodes = (int64_t)nodes;
    bool known = ask_free(cuda, &before);
    MST_TRY(mst_cuda_check(cuda->driver,
                           cuda->driver->graph_instantiate(&g->executable, driver_graph, 0),
                           "making a graph ready"));
    known = ask_free(cuda, &after) && known;
    g->driver_bytes = known && before > after ? before - after : 0;
    return MSTAR_OK;
}

mstar_status mst_cuda_capture_end(mstar_stream *stream, mstar_graph *graph)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    void *driver_graph = NULL;
    mst_cuda_range(stream->device, NULL);
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_check(
        cuda->driver, cuda->driver->capture_end(mst_cuda_handle(stream), &driver_graph),
        "ending a capture");
    if (status == MSTAR_OK && graph->failure == MSTAR_OK)
        status = instantiate(cuda, driver_graph, graph->impl);
    if (driver_graph != NULL)
        (void)cuda->driver->graph_destroy(driver_graph);
    mst_cuda_leave(cuda);
    return status;
}

void mst_cuda_capture_abort(mstar_stream *stream, mstar_graph *graph)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    void *driver_graph = NULL;
    (void)graph;
    mst_cuda_range(stream->device, NULL);
    if (mst_cuda_enter(cuda) != MSTAR_OK)
        return;
    (void)cuda->driver->capture_end(mst_cuda_handle(stream), &driver_graph);
    if (driver_graph != NULL)
        (void)cuda->driver->graph_destroy(driver_graph);
    mst_cuda_leave(cuda);
}

/* A plan that has outgrown what was recorded would read past the tensors. */
static mstar_status check_rows(const cuda_graph *g)
{
    for (int64_t i = 0; i < g->num_rows; i++) {
        const recorded_rows *rows = &g->rows[i];
        if (rows->live.num_items == NULL)
            continue;
        if (*rows->live.num_tokens > rows->q_rows)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "the plan has %lld query tokens; the tensors that were recorded have "
                            "%lld rows",
                            (long long)*rows->live.num_tokens, (long long)rows->q_rows);
        if (*rows->live.num_kv_tokens > rows->kv_rows)
            return mst_fail(
                MSTAR_INVALID_ARGUMENT,
                "the plan has %lld key tokens; the tensors that were recorded have %lld "
                "rows",
                (long long)*rows->live.num_kv_tokens, (long long)rows->kv_rows);
    }
    return MSTAR_OK;
}

static mstar_status replay(mstar_graph *graph, mstar_stream *stream)
{
    mst_cuda *cuda = mst_cuda_of(stream->device);
    const cuda_graph *g = graph->impl;
    void *handle = mst_cuda_handle(stream);
    MST_TRY(check_rows(g));
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_record_replay(cuda, g->record, handle);
    if (status == MSTAR_OK)
        status = mst_cuda_check(cuda->driver, cuda->driver->graph_launch(g->executable, handle),
                                "replaying a graph");
    if (status == MSTAR_OK)
        status = mst_cuda_record_launched(cuda, g->record, handle);
    mst_cuda_leave(cuda);
    return status;
}

mstar_status mst_cuda_graph_replay(mstar_graph *graph, mstar_stream *stream)
{
    mst_cuda_range(stream->device, "mstar replay");
    mstar_status status = replay(graph, stream);
    mst_cuda_range(stream->device, NULL);
    return status;
}

void mst_cuda_graph_close(mstar_graph *graph)
{
    const mst_cuda *cuda = mst_cuda_of(graph->device);
    cuda_graph *g = graph->impl;
    if (g == NULL)
        return;
    if (g->executable != NULL && mst_cuda_enter(cuda) == MSTAR_OK) {
        (void)cuda->driver->graph_exec_destroy(g->executable);
        mst_cuda_leave(cuda);
    }
    mst_cuda_record_close(cuda, g->record);
    mst_free(g->rows);
    mst_free(g);
    graph->impl = NULL;
}

/* The driver keeps edges and waves to itself: both stay 0. */
void mst_cuda_graph_query(const mstar_graph *graph, mstar_graph_info *info)
{
    const cuda_graph *g = graph->impl;
    info->nodes = g->nodes;
    info->driver_bytes = g->driver_bytes;
    info->bytes =
        sizeof *g + (size_t)g->rows_capacity * sizeof *g->rows + mst_cuda_record_bytes(g->record);
}
