/*
 * mstar/device.h - devices, streams, events, buffers, and threads.
 *
 * Devices are named: "cpu" (always there), "cuda:0" (MSTAR_DEVICE_UNAVAILABLE with the reason where
 * there is none). On the CPU a stream runs its work on the calling thread and the device's pool
 * before the call returns; on a GPU work is queued. Code written for streams is right on both.
 */
#ifndef MSTAR_DEVICE_H
#define MSTAR_DEVICE_H

#include "mstar/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mstar_device mstar_device;
typedef struct mstar_stream mstar_stream;
typedef struct mstar_event mstar_event;
typedef struct mstar_buffer mstar_buffer;
typedef struct mstar_graph mstar_graph;

/*
 * A host's own thread pool: runs task(context, i) once for every i in [0, num_tasks), on any
 * threads, in any order, and returns when all have finished. The library's results never depend on
 * how many threads there are or which one runs what.
 */
typedef void (*mstar_parallel_task)(void *context, int32_t index);
typedef void (*mstar_parallel_for)(void *host, int32_t num_tasks, mstar_parallel_task task,
                                   void *context);

typedef struct mstar_device_desc {
    uint32_t struct_size;
    int32_t num_threads; /* -1: MSTAR_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process
                            may use; 1..1024. With parallel_for: how many tasks to cut work into. */
    mstar_parallel_for parallel_for; /* NULL: the library's own pool */
    void *parallel_host;             /* first argument of parallel_for; kept */
    const char *max_isa; /* the highest level to use: on x86-64 "scalar", "avx2", "avx512",
                            "avx512bf16", "amx"; on aarch64 "scalar", "neon"; names of another
                            architecture are refused; NULL: MSTAR_MAX_ISA, else no limit */
} mstar_device_desc;
MSTAR_API void mstar_device_desc_init(mstar_device_desc *desc);

/*
 * Opens a device by name; desc may be NULL for the defaults. The own pool starts num_threads - 1
 * threads. A device may be used by several threads at once, and by the child after a fork (the
 * pool's threads are started again there). Close every object made on it first.
 */
MSTAR_API mstar_status mstar_device_open(const char *name, const mstar_device_desc *desc,
                                         mstar_device **device);
/* MSTAR_BUSY, and the device stays open, while anything made on it is alive: streams, events,
 * buffers, wrappers, linears, encoders. NULL is MSTAR_OK. */
MSTAR_API mstar_status mstar_device_close(mstar_device *device);

typedef struct mstar_device_info {
    uint32_t struct_size;
    mstar_device_kind kind;
    int32_t index;
    int32_t num_threads;
    char name[16];       /* "cpu" */
    char model[64];      /* the processor's own name */
    char isa[16];        /* the level in use: "avx2" */
    char isa_best[16];   /* the best level this machine and build have */
    char isa_reason[96]; /* why isa is not isa_best (a limit; another level is faster on this
                            processor); "" when it is */
    int64_t l1d_bytes, l2_bytes,
        l3_bytes;                     /* data caches as read from the machine; 0 where unknown */
    int64_t memory_bytes, free_bytes; /* of a GPU: all its memory, and what of it is free now,
                                         whoever has the rest; 0 on a processor */
} mstar_device_info;
MSTAR_API mstar_status mstar_device_query(const mstar_device *device, mstar_device_info *info);

/*
 * Which kernel each operation uses on this device and why. Returns MSTAR_NOT_FOUND past the last
 * index. Strings are static.
 */
typedef struct mstar_kernel_info {
    uint32_t struct_size;
    uint32_t reserved;
    const char *op;     /* "attention", "linear", "layer_norm", ... */
    const char *dtype;  /* "f32", "bf16", ... */
    const char *symbol; /* "mst_attn_f32_avx2" */
    const char *reason; /* "best ISA of this machine", "lowered by MSTAR_MAX_ISA", ... */
} mstar_kernel_info;
MSTAR_API mstar_status mstar_device_query_kernel(const mstar_device *device, int32_t index,
                                                 mstar_kernel_info *info);

/*
 * A stream orders work. A stream is used by one thread at a time; different streams of a device may
 * be used at once. num_threads: -1 all of the device's, 1 the calling thread only, else at most
 * that many.
 */
MSTAR_API mstar_status mstar_stream_create(mstar_device *device, int32_t num_threads,
                                           mstar_stream **stream);
/*
 * A stream of the host's own as one of ours: on a GPU native is its CUstream or cudaStream_t (NULL
 * the default stream), kept, and must outlive the wrapper; it belongs to the device's primary
 * context. Destroying the wrapper leaves it alone. MSTAR_NOT_SUPPORTED on the CPU.
 */
MSTAR_API mstar_status mstar_stream_wrap(mstar_device *device, void *native, mstar_stream **stream);
/* The CUstream behind a stream, borrowed; NULL on the CPU. */
MSTAR_API void *mstar_stream_get_native(const mstar_stream *stream);
MSTAR_API void mstar_stream_destroy(mstar_stream *stream);
/* Returns when all work queued on the stream has finished. MSTAR_OUT_OF_ORDER while a GPU's stream
 * captures, whose capture goes on. */
MSTAR_API mstar_status mstar_stream_synchronize(mstar_stream *stream);
/* The device of a stream, borrowed. */
MSTAR_API mstar_device *mstar_stream_get_device(const mstar_stream *stream);

MSTAR_API mstar_status mstar_event_create(mstar_device *device, mstar_event **event);
MSTAR_API void mstar_event_destroy(mstar_event *event);
/* Marks the stream's work so far. */
MSTAR_API mstar_status mstar_event_record(mstar_event *event, mstar_stream *stream);
/* Makes later work of the stream wait for the event. An event never recorded is already done. */
MSTAR_API mstar_status mstar_stream_wait_event(mstar_stream *stream, mstar_event *event);
/* *done: 1 when the recorded work has finished or nothing was recorded, else 0. */
MSTAR_API mstar_status mstar_event_query(mstar_event *event, int *done);
MSTAR_API mstar_status mstar_event_synchronize(mstar_event *event);
/* Nanoseconds between two recorded, finished events; MSTAR_OUT_OF_ORDER when one was never
 * recorded. */
MSTAR_API mstar_status mstar_event_elapsed_ns(const mstar_event *start, const mstar_event *end,
                                              int64_t *ns);

/* Device memory, zeroed, aligned to 256 bytes. bytes may be 0. */
MSTAR_API mstar_status mstar_buffer_create(mstar_device *device, size_t bytes,
                                           mstar_buffer **buffer);
MSTAR_API void mstar_buffer_destroy(mstar_buffer *buffer);
/* The address on the device; never changes. NULL for 0 bytes. */
MSTAR_API void *mstar_buffer_get_data(const mstar_buffer *buffer);
MSTAR_API size_t mstar_buffer_get_bytes(const mstar_buffer *buffer);
/*
 * Copies in stream order; MSTAR_INVALID_ARGUMENT where offset + bytes passes the buffer's end. The
 * source of an upload may be changed when the call returns, and what is downloaded is there once
 * the stream has been synchronized.
 */
MSTAR_API mstar_status mstar_buffer_upload(mstar_buffer *buffer, mstar_stream *stream,
                                           size_t offset_bytes, const void *source, size_t bytes);
MSTAR_API mstar_status mstar_buffer_download(const mstar_buffer *buffer, mstar_stream *stream,
                                             size_t offset_bytes, void *destination, size_t bytes);
/* From buffer to buffer of one device; the ranges may not overlap. May be captured. */
MSTAR_API mstar_status mstar_buffer_copy(mstar_buffer *destination, mstar_stream *stream,
                                         size_t destination_offset_bytes,
                                         const mstar_buffer *source, size_t source_offset_bytes,
                                         size_t bytes);

/*
 * Live row count: while it is set, the operations of mstar/ops.h that are given to the stream, run
 * or captured, work on rows [0, *num_rows) of their tensors (segments, for pooling), *num_rows
 * being read when the work runs. Rows past it are neither read nor written. A count below 0 or
 * above the tensors' rows is refused when it is met. Attention follows its own plan; the counters
 * that a graph-mode wrapper shows are made to be set here. num_rows: device memory (on the CPU any
 * memory), kept; NULL removes it.
 */
MSTAR_API mstar_status mstar_stream_set_rows(mstar_stream *stream, const int64_t *num_rows);

/*
 * Capture and replay: between begin and end, operations, attention runs and buffer copies that are
 * given to the stream are recorded in place of being run; a replay runs all of them, with the bits
 * that running them one by one gives.
 *
 *   What is read at every replay: the contents of tensors, ids, positions and offsets, live row
 *   counts, and the plans of graph-mode wrappers. So plan again, write new ids, replay.
 *   What is fixed: addresses, shapes, dtypes, scalars. Whatever was recorded (tensors, wrappers,
 *   linears, counters) is borrowed and must outlive the graph.
 *
 * A thread has one capture at a time and ends it itself. Until then, on this thread, these are
 * MSTAR_OUT_OF_ORDER: a second begin, a replay, synchronise, events, creating buffers, streams,
 * wrappers and linears, upload and download, a plan, a run of an eager-mode wrapper, work on
 * another stream. Such a refusal loses the capture, as does a call on the stream that fails for its
 * arguments: end names the first one and makes no graph.
 * Other threads, and other streams on them, are free meanwhile.
 */
/* MSTAR_NOT_SUPPORTED on a device without graphs; the CPU has them. */
MSTAR_API mstar_status mstar_graph_capture_begin(mstar_stream *stream);
/* Failed or not, the stream is an ordinary one again (not when graph is NULL, or on a thread that
 * does not capture this stream: nothing changes then). A graph may be empty. */
MSTAR_API mstar_status mstar_graph_capture_end(mstar_stream *stream, mstar_graph **graph);
/* Ends the capture without a graph; nothing happens on a stream that this thread does not capture.
   Destroying the stream does the same. */
MSTAR_API void mstar_graph_capture_abort(mstar_stream *stream);
/* 1 or 0. */
MSTAR_API int mstar_stream_is_capturing(const mstar_stream *stream);

/*
 * Runs what was recorded, in the order of any stream of the device; allocates nothing. One replay
 * of a graph at a time; different graphs may replay at once. Refused before anything runs: a plan
 * or a row count with more rows than the recorded tensors have. An id outside its table, or offsets
 * outside their rows, end the replay with MSTAR_INVALID_ARGUMENT, and what it writes is then
 * undefined, though never outside of the recorded tensors.
 */
MSTAR_API mstar_status mstar_graph_replay(mstar_graph *graph, mstar_stream *stream);
MSTAR_API void mstar_graph_destroy(mstar_graph *graph);

typedef struct mstar_graph_info {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t nodes; /* recorded launches */
    int64_t edges; /* pairs of which the second waits for the first and for nothing in between */
    int64_t waves; /* steps of a replay; the nodes of a wave overlap */
    int64_t replays;
    size_t bytes;        /* of memory that the graph holds */
    size_t driver_bytes; /* the driver's own share on a GPU, measured: by so much the device's free
                            memory fell while the graph was made ready. Not in bytes; 0 on a
                            processor, and where the driver had room left */
} mstar_graph_info;
MSTAR_API mstar_status mstar_graph_query(const mstar_graph *graph, mstar_graph_info *info);

/* One launch, in the order in which a single thread replays them. MSTAR_NOT_FOUND past the last. */
typedef struct mstar_graph_node_info {
    uint32_t struct_size;
    int32_t live_rows; /* 1: its rows follow a live count or a plan; 0: num_rows always */
    const char *op;    /* "linear", "attention", "layer_norm", "copy", ...; static */
    int64_t wave;
    int64_t num_rows; /* the most it works on: rows of its tensors as recorded; bytes of a copy */
} mstar_graph_node_info;
MSTAR_API mstar_status mstar_graph_query_node(const mstar_graph *graph, int64_t index,
                                              mstar_graph_node_info *info);

#ifdef __cplusplus
}
#endif

#endif
