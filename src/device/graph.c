/*
 * graph.c - capture and replay: what may stand inside a capture, and the life of a graph.
 *
 * Which stream a thread captures is kept per thread, so that other threads allocate, copy and plan
 * as they like meanwhile. A refusal inside a capture loses it, and so does a call on its stream
 * that fails for another reason: whoever ignores a status must not get a graph that lacks a call.
 */
#include <stdio.h>
#include <string.h>

#include "device/backend.h"

static _Thread_local mstar_stream *captured; /* by this thread; NULL: none */

mstar_status mst_capture_note(mstar_stream *stream, mstar_status status)
{
    if (status == MSTAR_OK || stream == NULL || stream != captured)
        return status;
    mstar_graph *graph = stream->graph;
    if (graph->failure == MSTAR_OK) {
        graph->failure = status;
        (void)snprintf(graph->failure_text, sizeof graph->failure_text, "%s", mstar_last_error());
    }
    return status;
}

mstar_status mst_capture_refuse(const char *call)
{
    if (captured == NULL)
        return MSTAR_OK;
    return mst_capture_note(captured, mst_fail(MSTAR_OUT_OF_ORDER,
                                               "%s must not stand inside a capture, and this "
                                               "thread captures a stream",
                                               call));
}

mstar_status mst_capture_check(const mstar_stream *stream)
{
    if (stream == captured)
        return MSTAR_OK;
    if (captured != NULL)
        return mst_capture_refuse("work on another stream (NULL is another stream too)");
    if (stream->graph != NULL)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "the stream is being captured by another thread; it takes work from that "
                        "one only");
    return MSTAR_OK;
}

static void free_graph(mstar_graph *graph)
{
    mstar_device *device = graph->device;
    device->backend->graph_close(graph);
    mst_free(graph);
    mst_device_release(device);
}

mstar_status mstar_graph_capture_begin(mstar_stream *stream)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_capture_refuse("a second capture_begin"));
    if (stream->graph != NULL)
        return mst_fail(MSTAR_OUT_OF_ORDER, "the stream is being captured by another thread");
    mstar_device *device = stream->device;
    if (device->backend->capture_begin == NULL)
        return mst_fail(MSTAR_NOT_SUPPORTED, "device \"%s\" has no graphs", device->backend->name);
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mstar_graph), "graph", &memory));
    mstar_graph *graph = memory;
    graph->device = device;
    mstar_status status = device->backend->capture_begin(stream, graph);
    if (status != MSTAR_OK) {
        device->backend->graph_close(graph);
        mst_free(graph);
        return mst_fail_in(status, "capture_begin");
    }
    mst_device_retain(device);
    stream->graph = graph;
    captured = stream;
    return MSTAR_OK;
}

/* Takes the stream out of its capture. */
static mstar_graph *leave(mstar_stream *stream)
{
    mstar_graph *graph = stream->graph;
    stream->graph = NULL;
    if (captured == stream)
        captured = NULL;
    return graph;
}

mstar_status mstar_graph_capture_end(mstar_stream *stream, mstar_graph **graph)
{
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_check_not_null("graph", graph));
    if (stream != captured)
        return mst_fail(MSTAR_OUT_OF_ORDER, "capture_end without a capture_begin on this %s",
                        stream->graph != NULL ? "thread" : "stream");
    mstar_graph *made = stream->graph;
    mstar_status status = stream->device->backend->capture_end(stream, made);
    (void)leave(stream);
    if (made->failure != MSTAR_OK)
        status = mst_fail(made->failure, "the capture was lost: %s", made->failure_text);
    else if (status != MSTAR_OK)
        status = mst_fail_in(status, "capture_end");
    if (status != MSTAR_OK) {
        free_graph(made);
        return status;
    }
    *graph = made;
    return MSTAR_OK;
}

void mst_capture_drop(mstar_stream *stream)
{
    if (stream->graph == NULL)
        return;
    stream->device->backend->capture_abort(stream, stream->graph);
    free_graph(leave(stream));
}

void mstar_graph_capture_abort(mstar_stream *stream)
{
    if (stream != NULL && stream == captured)
        mst_capture_drop(stream);
}

int mstar_stream_is_capturing(const mstar_stream *stream)
{
    return stream != NULL && stream->graph != NULL ? 1 : 0;
}

mstar_status mstar_graph_replay(mstar_graph *graph, mstar_stream *stream)
{
    MST_TRY(mst_check_not_null("graph", graph));
    MST_TRY(mst_check_not_null("stream", stream));
    MST_TRY(mst_capture_refuse("a replay"));
    MST_TRY(mst_capture_check(stream));
    if (stream->device != graph->device)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "graph and stream were made on two devices");
    MST_TRY(graph->device->backend->graph_replay(graph, stream));
    graph->replays++;
    return MSTAR_OK;
}

void mstar_graph_destroy(mstar_graph *graph)
{
    if (graph != NULL)
        free_graph(graph);
}

mstar_status mstar_graph_query(const mstar_graph *graph, mstar_graph_info *info)
{
    MST_TRY(mst_check_not_null("graph", graph));
    MST_TRY(mst_check_not_null("info", info));
    mstar_graph_info full;
    memset(&full, 0, sizeof full);
    graph->device->backend->graph_query(graph, &full);
    full.replays = graph->replays;
    full.bytes += sizeof *graph;
    return mst_info_write("info", &full, sizeof full, info);
}

mstar_status mstar_graph_query_node(const mstar_graph *graph, int64_t index,
                                    mstar_graph_node_info *info)
{
    MST_TRY(mst_check_not_null("graph", graph));
    MST_TRY(mst_check_not_null("info", info));
    const mst_backend *backend = graph->device->backend;
    mstar_graph_info whole;
    mstar_graph_node_info full;
    memset(&whole, 0, sizeof whole);
    memset(&full, 0, sizeof full);
    backend->graph_query(graph, &whole);
    if (index < 0 || index >= whole.nodes)
        return mst_fail(MSTAR_NOT_FOUND, "index is %lld; the graph has %lld nodes",
                        (long long)index, (long long)whole.nodes);
    backend->graph_query_node(graph, index, &full);
    return mst_info_write("info", &full, sizeof full, info);
}
