/* mock_backend.c - see mock_backend.h. */
#include "mock_backend.h"

static mock_backend *mock_of(const mstar_device *device)
{
    return (mock_backend *)(uintptr_t)device->backend;
}

static mstar_status pass(mock_backend *mock, const char *entry)
{
    mock->calls++;
    if (mock->calls != mock->fail_at)
        return MSTAR_OK;
    mock->failed = entry;
    return mst_fail(MSTAR_DEVICE_FAILED, "mock: %s fails", entry);
}

/* ---- memory, streams, events ------------------------------------------------------------------
 */

static mstar_status mock_memory_alloc(mstar_device *device, size_t bytes, void **memory)
{
    mock_backend *mock = mock_of(device);
    *memory = NULL;
    MST_TRY(pass(mock, "memory_alloc"));
    MST_TRY(mock->real->memory_alloc(device, bytes, memory));
    mock->live_memory++;
    return MSTAR_OK;
}

static void mock_memory_free(mstar_device *device, void *memory)
{
    mock_backend *mock = mock_of(device);
    if (memory != NULL)
        mock->live_memory--;
    mock->real->memory_free(device, memory);
}

static mstar_status mock_stream_open(mstar_stream *stream)
{
    mock_backend *mock = mock_of(stream->device);
    MST_TRY(pass(mock, "stream_open"));
    MST_TRY(mock->real->stream_open(stream));
    mock->live_streams++;
    return MSTAR_OK;
}

static void mock_stream_close(mstar_stream *stream)
{
    mock_backend *mock = mock_of(stream->device);
    mock->live_streams--;
    mock->real->stream_close(stream);
}

static mstar_status mock_stream_synchronize(mstar_stream *stream)
{
    mock_backend *mock = mock_of(stream->device);
    mock->waits++;
    MST_TRY(pass(mock, "stream_synchronize"));
    return mock->real->stream_synchronize(stream);
}

static mstar_status mock_event_open(mstar_event *event)
{
    mock_backend *mock = mock_of(event->device);
    MST_TRY(pass(mock, "event_open"));
    MST_TRY(mock->real->event_open(event));
    mock->live_events++;
    return MSTAR_OK;
}

static void mock_event_close(mstar_event *event)
{
    mock_backend *mock = mock_of(event->device);
    mock->live_events--;
    mock->real->event_close(event);
}

static mstar_status mock_event_record(mstar_event *event, mstar_stream *stream)
{
    mock_backend *mock = mock_of(event->device);
    MST_TRY(pass(mock, "event_record"));
    return mock->real->event_record(event, stream);
}

static mstar_status mock_stream_wait_event(mstar_stream *stream, mstar_event *event)
{
    mock_backend *mock = mock_of(event->device);
    MST_TRY(pass(mock, "stream_wait_event"));
    return mock->real->stream_wait_event(stream, event);
}

static mstar_status mock_event_synchronize(mstar_event *event)
{
    mock_backend *mock = mock_of(event->device);
    mock->waits++;
    MST_TRY(pass(mock, "event_synchronize"));
    return mock->real->event_synchronize(event);
}

/* ---- work -------------------------------------------------------------------------------------
 */

#define LAUNCH(entry, ...)                            \
    do {                                              \
        mock_backend *mock = mock_of(stream->device); \
        MST_TRY(pass(mock, #entry));                  \
        mock->launches++;                             \
        return mock->real->entry(__VA_ARGS__);        \
    } while (0)

static mstar_status mock_copy(mstar_stream *stream, void *destination, const void *source,
                              size_t bytes)
{
    LAUNCH(copy, stream, destination, source, bytes);
}

static mstar_status mock_attn_run(mstar_stream *stream, const mst_attn_call *call)
{
    LAUNCH(attn_run, stream, call);
}

static mstar_status mock_linear_run(mstar_stream *stream, const mst_linear_shape *shape,
                                    const void *packed, const float *bias, int64_t num_rows,
                                    mst_rows x, mst_rows residual, mst_rows out)
{
    LAUNCH(linear_run, stream, shape, packed, bias, num_rows, x, residual, out);
}

static mstar_status mock_layer_norm(mstar_stream *stream, int64_t num_rows, int64_t width,
                                    mst_rows x, mst_rows residual, const float *weight,
                                    const float *bias, float eps, mst_rows out)
{
    LAUNCH(layer_norm, stream, num_rows, width, x, residual, weight, bias, eps, out);
}

static mstar_status mock_rms_norm(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                                  mst_rows residual, const float *weight, float eps, mst_rows out)
{
    LAUNCH(rms_norm, stream, num_rows, width, x, residual, weight, eps, out);
}

static mstar_status mock_activation(mstar_stream *stream, int64_t num_rows, int64_t width,
                                    mstar_activation activation, mst_rows x, mst_rows out)
{
    LAUNCH(activation, stream, num_rows, width, activation, x, out);
}

static mstar_status mock_rotary(mstar_stream *stream, int64_t num_tokens, int32_t num_heads,
                                int32_t head_dim, mst_rows x, int64_t x_head_stride,
                                const int32_t *positions, double theta, int32_t rotary_dim,
                                bool interleaved, mst_rows out, int64_t out_head_stride)
{
    LAUNCH(rotary, stream, num_tokens, num_heads, head_dim, x, x_head_stride, positions, theta,
           rotary_dim, interleaved, out, out_head_stride);
}

static mstar_status mock_embedding(mstar_stream *stream, int64_t num_rows, int64_t width,
                                   const mst_rows *tables, const int32_t *const *ids,
                                   int32_t num_tables, mst_rows out)
{
    LAUNCH(embedding, stream, num_rows, width, tables, ids, num_tables, out);
}

static mstar_status mock_pooling(mstar_stream *stream, mstar_pooling pooling, int64_t width,
                                 mst_rows x, const int32_t *cu_seqlens, int64_t num_segments,
                                 const int32_t *skip, mst_rows out)
{
    LAUNCH(pooling, stream, pooling, width, x, cu_seqlens, num_segments, skip, out);
}

static mstar_status mock_normalize(mstar_stream *stream, int64_t num_rows, int64_t width,
                                   mst_rows x, mst_rows out)
{
    LAUNCH(normalize, stream, num_rows, width, x, out);
}

/* ---- graphs -----------------------------------------------------------------------------------
 */

static mstar_status mock_capture_begin(mstar_stream *stream, mstar_graph *graph)
{
    mock_backend *mock = mock_of(stream->device);
    mock->live_graphs++; /* closed in whatever state begin leaves it */
    MST_TRY(pass(mock, "capture_begin"));
    return mock->real->capture_begin(stream, graph);
}

static mstar_status mock_capture_end(mstar_stream *stream, mstar_graph *graph)
{
    mock_backend *mock = mock_of(stream->device);
    MST_TRY(pass(mock, "capture_end"));
    return mock->real->capture_end(stream, graph);
}

static void mock_capture_abort(mstar_stream *stream, mstar_graph *graph)
{
    mock_of(stream->device)->real->capture_abort(stream, graph);
}

static mstar_status mock_graph_compile(mstar_graph *graph, mstar_stream *stream,
                                       const mst_compile *how, mst_compiled *what)
{
    mock_backend *mock = mock_of(graph->device);
    MST_TRY(pass(mock, "graph_compile"));
    return mock->real->graph_compile(graph, stream, how, what);
}

static mstar_status mock_graph_replay(mstar_graph *graph, mstar_stream *stream)
{
    mock_backend *mock = mock_of(graph->device);
    MST_TRY(pass(mock, "graph_replay"));
    mock->replays++;
    return mock->real->graph_replay(graph, stream);
}

static void mock_graph_close(mstar_graph *graph)
{
    mock_backend *mock = mock_of(graph->device);
    mock->live_graphs--;
    mock->real->graph_close(graph);
}

void mock_install(mock_backend *mock, mstar_device *device)
{
    *mock = (mock_backend){.backend = *device->backend, .real = device->backend};
    mst_backend *backend = &mock->backend;
    backend->memory_alloc = mock_memory_alloc;
    backend->memory_free = mock_memory_free;
    backend->copy = mock_copy;
    backend->stream_open = mock_stream_open;
    backend->stream_close = mock_stream_close;
    backend->stream_synchronize = mock_stream_synchronize;
    backend->event_open = mock_event_open;
    backend->event_close = mock_event_close;
    backend->event_record = mock_event_record;
    backend->stream_wait_event = mock_stream_wait_event;
    backend->event_synchronize = mock_event_synchronize;
    backend->attn_run = mock_attn_run;
    backend->linear_run = mock_linear_run;
    backend->layer_norm = mock_layer_norm;
    backend->rms_norm = mock_rms_norm;
    backend->activation = mock_activation;
    backend->rotary = mock_rotary;
    backend->embedding = mock_embedding;
    backend->pooling = mock_pooling;
    backend->normalize = mock_normalize;
    backend->capture_begin = mock_capture_begin;
    backend->capture_end = mock_capture_end;
    backend->capture_abort = mock_capture_abort;
    backend->graph_compile = mock_graph_compile;
    backend->graph_replay = mock_graph_replay;
    backend->graph_close = mock_graph_close;
    device->backend = backend;
}

void mock_remove(mock_backend *mock, mstar_device *device)
{
    device->backend = mock->real;
}

void mock_fail_at(mock_backend *mock, int64_t n)
{
    mock->calls = 0;
    mock->fail_at = n;
    mock->failed = NULL;
}
