/*
 * backend.h - THE SEAM: everything the library asks of a device.
 *
 * A backend is one vtable. Callers above (attn, ops, model) have checked every argument; a backend
 * only has to be right. Pointers in calls are device memory unless a comment says host. Rows, heads
 * and strides count elements. On the CPU a call has finished when it returns; on a GPU it is
 * queued.
 *
 * A stream with a live row count (stream->num_rows) does that many of the rows that a call names,
 * the count being read when the work runs; attention follows its plan instead. A stream that
 * captures (stream->graph) records compute entries and copies: each replay then runs them, in an
 * order that gives what the recorded order gives. The contents of ids and offsets have been checked
 * for work that runs now; recorded work checks them itself, since they are other ones by then.
 *
 * Promise of every compute entry: the bits of an output row depend only on that row's own inputs
 * (attention: on its segment), never on how many rows there are, their place, or the threads.
 */
#ifndef MST_BACKEND_H
#define MST_BACKEND_H

#include <stdatomic.h>

#include "base/base.h"
#include "mstar/attention.h"
#include "mstar/device.h"
#include "mstar/ops.h"

typedef struct mst_backend mst_backend;

struct mstar_device {
    const mst_backend *backend;
    int32_t index;
    int32_t num_threads;   /* as resolved */
    mst_pool *pool;        /* CPU threads of this device */
    void *impl;            /* the backend's own */
    _Atomic int64_t users; /* live streams, events, buffers, wrappers, linears, encoders */
};

struct mstar_stream {
    mstar_device *device;
    int32_t max_threads;     /* >= 1 */
    mstar_graph *graph;      /* what records this stream's work; NULL: it runs */
    const int64_t *num_rows; /* the live row count (mstar_stream_set_rows); NULL: none */
    void *impl;
};

struct mstar_event {
    mstar_device *device;
    bool recorded;
    int64_t time_ns; /* CPU */
    void *impl;
};

struct mstar_graph {
    mstar_device *device;
    int64_t replays;
    mstar_status failure; /* of the capture: the first refusal; MSTAR_OK so far */
    char failure_text[256];
    void *impl; /* the recorded work, the backend's own */
};

/* ---- graphs ---------------------------------------------------------------------------------- */

/* How a graph is specialised for the sizes that it was recorded with. Nothing of it reaches the
 * bits. */
typedef struct mst_compile {
    bool by_timing; /* candidates are timed; else rules decide */
    const mstar_graph
        *like; /* takes over what was chosen for an equal graph; NULL: there is none */
    /* Calls run(context) once and answers how long that took. node: as graph_query_node counts. */
    int64_t (*measure)(void *user, int64_t node, int32_t candidate, void (*run)(void *context),
                       void *context);
    void *user; /* measure's first argument */
} mst_compile;

typedef struct mst_compiled {
    int64_t specialised; /* launches that have something to choose, chosen for these sizes */
    int64_t tuned;       /* of them, chosen otherwise than by rule */
    int64_t dropped;     /* candidates whose bits were others */
} mst_compiled;

/* ---- attention ------------------------------------------------------------------------------- */

/* A kernel of a GPU that was asked for by name. */
typedef enum mst_attn_wanted {
    MST_ATTN_ANY,
    MST_ATTN_FA2, /* the portable one for tensor cores */
    MST_ATTN_FA3  /* the one for Hopper */
} mst_attn_wanted;

/* What a wrapper is, fixed at create. */
typedef struct mst_attn_shape {
    int32_t num_qo_heads, num_kv_heads, head_dim;
    mstar_dtype dtype;
    float sm_scale;
    int64_t window_left, window_right; /* -1 no limit */
    bool reference;                    /* the scalar kernel was asked for by name */
    mst_attn_wanted wanted;
} mst_attn_shape;

/* How the rows and heads of one segment are cut into items: a pure function of the segment alone.
 */
typedef struct mst_attn_tile {
    int32_t rows;  /* query rows of an item, >= 1 */
    int32_t heads; /* kv heads of an item, >= 1 */
} mst_attn_tile;

/*
 * One piece of work: query rows [q_begin, q_begin + q_rows) of a segment, for kv heads
 * [kv_head_begin, kv_head_begin + num_kv_heads) and all their query heads, over keys
 * [kv_begin, kv_end) of the segment (a superset of what its rows see). Rows and keys count from the
 * segment's own start. All items of a plan cover every visible (row, key, head) exactly once.
 */
typedef struct mst_attn_item {
    int32_t segment;
    int32_t q_begin, q_rows;
    int32_t kv_begin, kv_end;
    int32_t kv_head_begin, num_kv_heads;
    int32_t split, num_splits; /* part of the keys; 0 of 1 where keys are not split */
    int32_t slot;              /* partial result's place; -1 without a split */
} mst_attn_item;

/*
 * What of a graph-mode plan changes from plan to plan, at one address (host memory) for the
 * wrapper's life. A recorded run reads it at every replay. num_items NULL: an eager plan.
 */
typedef struct mst_attn_live {
    const int64_t *num_items, *num_tokens, *num_kv_tokens;
    const bool *causal;
} mst_attn_live;

typedef struct mst_attn_call {
    const mst_attn_shape *shape;
    bool causal;
    const int32_t *q_offsets, *kv_offsets; /* num_segments + 1 each */
    const mst_attn_item *items;
    int64_t num_items;
    const void *q, *k, *v;
    void *out;
    float *lse; /* NULL when not wanted; [row * lse_row_stride + head] */
    int64_t q_row_stride, q_head_stride;
    int64_t k_row_stride, k_head_stride;
    int64_t v_row_stride, v_head_stride;
    int64_t out_row_stride, out_head_stride;
    int64_t lse_row_stride;
    int64_t zero_begin,
        zero_end;  /* rows of out (lse: -inf) to clear: graph mode's tail; equal = none */
    void *scratch; /* attn_scratch_bytes, aligned to 64 */
    void *image; /* the plan as the device reads it (attn_image_create); NULL where it reads ours */
    mst_attn_live live;
    int64_t q_rows, kv_rows; /* rows that q and out have, that k and v have */
} mst_attn_call;

/* ---- ops ------------------------------------------------------------------------------------- */

/* A matrix of rows: dtype f32, bf16 or f16, columns contiguous. data NULL: absent. */
typedef struct mst_rows {
    void *data;
    mstar_dtype dtype;
    int64_t row_stride;
    int64_t num_rows; /* as many as there are: a table's for the ids, x's for pooling's offsets */
} mst_rows;

/* Tables of one embedding, at most. */
#define MST_MAX_TABLES 8

/* The bias of a product is padded with zeros to this many columns: kernels read whole vectors. */
#define MST_LINEAR_PAD 64

typedef struct mst_linear_shape {
    int64_t in_features, out_features;
    mstar_dtype weight_dtype; /* of the panels; f16 on GPUs only */
    mstar_activation activation;
} mst_linear_shape;

struct mst_backend {
    const char *name; /* "cpu", "cuda" */
    mstar_device_kind kind;

    /* Fills device->impl, num_threads and pool. */
    mstar_status (*open)(mstar_device *device, const mstar_device_desc *desc);
    void (*close)(mstar_device *device);
    mstar_status (*query)(const mstar_device *device, mstar_device_info *info);
    /* NOT_FOUND past the last kernel. */
    mstar_status (*query_kernel)(const mstar_device *device, int32_t index,
                                 mstar_kernel_info *info);

    /* Host memory that memory_alloc takes beyond the bytes asked for. */
    size_t memory_overhead;
    mstar_status (*memory_alloc)(mstar_device *device, size_t bytes,
                                 void **memory); /* zeroed, 256-aligned */
    void (*memory_free)(mstar_device *device, void *memory);
    /* Whether the address is memory of this device. NULL where any address of the host's is. */
    bool (*memory_is_own)(const mstar_device *device, const void *memory);
    mstar_status (*copy)(mstar_stream *stream, void *destination, const void *source, size_t bytes);
    /* Zeroes device memory in stream order; not recorded. NULL where memory is the host's. */
    mstar_status (*clear)(mstar_stream *stream, void *memory, size_t bytes);

    mstar_status (*stream_open)(mstar_stream *stream);
    /* The same over a stream of the caller's; NULL where there are none. */
    mstar_status (*stream_wrap)(mstar_stream *stream, void *native);
    void *(*stream_native)(const mstar_stream *stream);
    void (*stream_close)(mstar_stream *stream);
    mstar_status (*stream_synchronize)(mstar_stream *stream);
    mstar_status (*event_open)(mstar_event *event);
    void (*event_close)(mstar_event *event);
    mstar_status (*event_record)(mstar_event *event, mstar_stream *stream);
    mstar_status (*stream_wait_event)(mstar_stream *stream, mstar_event *event);
    mstar_status (*event_query)(mstar_event *event, int *done);
    mstar_status (*event_synchronize)(mstar_event *event);
    mstar_status (*event_elapsed_ns)(const mstar_event *start, const mstar_event *end, int64_t *ns);

    /* ---- graphs; all NULL on a device without ---- */
    /* From here on stream->graph == graph. */
    mstar_status (*capture_begin)(mstar_stream *stream, mstar_graph *graph);
    /* Makes what was recorded ready for replay. Failed or not, the stream records no more. */
    mstar_status (*capture_end)(mstar_stream *stream, mstar_graph *graph);
    /* The same without a graph; graph_close follows. */
    void (*capture_abort)(mstar_stream *stream, mstar_graph *graph);
    /* Specialises the graph for a replay on this stream, before its first one. By timing, it runs
       the work over what the buffers hold, and leaves there what a replay would. A failure leaves
       the graph as it was, or chosen in part: right either way. NULL: nothing to specialise. */
    mstar_status (*graph_compile)(mstar_graph *graph, mstar_stream *stream, const mst_compile *how,
                                  mst_compiled *what);
    mstar_status (*graph_replay)(mstar_graph *graph, mstar_stream *stream);
    /* Frees what the graph holds in whatever state a begin has left it. */
    void (*graph_close)(mstar_graph *graph);
    void (*graph_query)(const mstar_graph *graph, mstar_graph_info *info);
    /* index is one of the nodes that graph_query counts. */
    void (*graph_query_node)(const mstar_graph *graph, int64_t index, mstar_graph_node_info *info);

    /* Kernel that serves this shape: symbol and reason, static strings. The symbol is NULL where
       the wanted one does not exist, and the reason says why. */
    void (*attn_kernel)(const mstar_device *device, const mst_attn_shape *shape,
                        const char **symbol, const char **reason);
    /* Scratch of one run, whatever the layout. */
    size_t (*attn_scratch_bytes)(const mstar_device *device, const mst_attn_shape *shape);
    /* Pure: tile of a segment of lq rows and lk keys. NULL: attn_worst_tile for every segment. */
    mst_attn_tile (*attn_tile)(const mstar_device *device, const mst_attn_shape *shape, int64_t lq,
                               int64_t lk);
    /* Pure: what attn_tile amounts to at worst. No segment of lq rows is cut into more than
       ceil(lq / rows) row tiles or ceil(num_kv_heads / heads) head groups; sizes the work list of
       graph mode. NULL: {1, 1}. */
    mst_attn_tile (*attn_worst_tile)(const mstar_device *device, const mst_attn_shape *shape);
    /* Pure: so many tokens' keys and values, of all heads, stay in a cache of the device while they
       are read again. Under a mask the self wrapper's segments of that many are listed together, as
       far as none has more alone. NULL: all are. */
    int64_t (*attn_near_tokens)(const mstar_device *device, const mst_attn_shape *shape);
    /* Begins a named range of a profiler on this thread; NULL ends the last. NULL: has none. */
    void (*range)(const mstar_device *device, const char *name);
    /*
     * A device that does not read host memory keeps an image of the plan; all five are NULL where
     * it does. create: graph mode's ceilings, -1 in eager mode. planned: attn_kernel's answers for
     * the plan in force, left alone before the first. begin: everything about a plan of
     * so many segments and query tokens that can fail for want of memory; the former image stays
     * in force. end: writes the plan (offsets, items, causal of the call; nothing else is set) and
     * sends it in stream order. stream NULL, for graph mode's first plan: waits until it is there.
     */
    mstar_status (*attn_image_create)(mstar_device *device, const mst_attn_shape *shape,
                                      int64_t max_segments, int64_t max_tokens,
                                      int64_t max_kv_tokens, void **image);
    void (*attn_planned)(const mstar_device *device, const void *image, const char **symbol,
                         const char **reason);
    void (*attn_image_destroy)(mstar_device *device, void *image);
    mstar_status (*attn_image_begin)(mstar_stream *stream, mstar_device *device, void *image,
                                     int64_t num_segments, int64_t num_tokens);
    mstar_status (*attn_image_end)(mstar_stream *stream, mstar_device *device, void *image,
                                   const mst_attn_call *plan, int64_t num_tokens);
    mstar_status (*attn_run)(mstar_stream *stream, const mst_attn_call *call);

    size_t (*linear_packed_bytes)(const mstar_device *device, const mst_linear_shape *shape);
    const char *(*linear_kernel)(const mstar_device *device, const mst_linear_shape *shape);
    /* The dtype of x that the kernel reads without a conversion; others give the same bits. */
    mstar_dtype (*linear_x_dtype)(const mstar_device *device, const mst_linear_shape *shape);
    /* Packs rows [first_row, first_row + num_rows) of the [out, in] matrix from one part (host
       memory, any strides, dtype f32, bf16 or f16) into packed, host memory that is zero at first.
       Parts come in order and cover all rows. */
    void (*linear_pack)(const mstar_device *device, const mst_linear_shape *shape,
                        const mstar_tensor *weight, int64_t first_row, void *packed);
    /* What runs of this shape need that may take long or fail. NULL: nothing. */
    mstar_status (*linear_prepare)(mstar_device *device, const mst_linear_shape *shape);
    /* out = activation(x W^T + bias) + residual. bias: f32 [out_features], never NULL, padded with
       zeros to a multiple of MST_LINEAR_PAD. */
    mstar_status (*linear_run)(mstar_stream *stream, const mst_linear_shape *shape,
                               const void *packed, const float *bias, int64_t num_rows, mst_rows x,
                               mst_rows residual, mst_rows out);

    mstar_status (*layer_norm)(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                               mst_rows residual, const float *weight, const float *bias, float eps,
                               mst_rows out);
    mstar_status (*rms_norm)(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                             mst_rows residual, const float *weight, float eps, mst_rows out);
    mstar_status (*activation)(mstar_stream *stream, int64_t num_rows, int64_t width,
                               mstar_activation activation, mst_rows x, mst_rows out);
    /* x and out are [T, H, D]; positions and ids are host memory on the CPU. */
    mstar_status (*rotary)(mstar_stream *stream, int64_t num_tokens, int32_t num_heads,
                           int32_t head_dim, mst_rows x, int64_t x_head_stride,
                           const int32_t *positions, double theta, int32_t rotary_dim,
                           bool interleaved, mst_rows out, int64_t out_head_stride);
    mstar_status (*embedding)(mstar_stream *stream, int64_t num_rows, int64_t width,
                              const mst_rows *tables, const int32_t *const *ids, int32_t num_tables,
                              mst_rows out);
    mstar_status (*pooling)(mstar_stream *stream, mstar_pooling pooling, int64_t width, mst_rows x,
                            const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip,
                            mst_rows out);
    mstar_status (*normalize)(mstar_stream *stream, int64_t num_rows, int64_t width, mst_rows x,
                              mst_rows out);
};

/* Whether the device's memory is the host's. */
static inline bool mst_device_is_host(const mstar_device *device)
{
    return device->backend->kind == MSTAR_DEVICE_CPU;
}

/* registry.c: backend by the part of a device name before ':'; NULL when there is none. */
const mst_backend *mst_backend_find(const char *name, size_t name_bytes);
/* cpu/cpu_backend.c */
const mst_backend *mst_cpu_backend(void);
/* cuda/cuda_backend.c; only a build with kernels offers it by name */
const mst_backend *mst_cuda_backend(void);

/*
 * graph.c: MSTAR_OUT_OF_ORDER naming the call while this thread captures, and the capture is then
 * lost; MSTAR_OK otherwise. First line of everything that must not stand inside a capture.
 */
mstar_status mst_capture_refuse(const char *call);
/* The same for work given to a stream: fine on the stream that this thread captures, and on any
 * stream that nobody captures while this thread does not. A backend asks before it takes work. */
mstar_status mst_capture_check(const mstar_stream *stream);
/* Returns status; where it is a failure and this thread captures the stream, the capture is lost,
 * for the present error text. Every public call that gives work to a stream ends with it. */
mstar_status mst_capture_note(mstar_stream *stream, mstar_status status);
/* Ends a capture of the stream without a graph, whoever began it; nothing where there is none. */
void mst_capture_drop(mstar_stream *stream);

/* stream.c: rows that work of num_rows rows does now: the live row count where there is one.
 * INVALID_ARGUMENT when it is more, or negative. */
mstar_status mst_stream_rows(const mstar_stream *stream, int64_t num_rows, int64_t *rows);

/* buffer.c: what mstar_buffer_create takes for so many bytes, its record included. */
size_t mst_buffer_cost(const mstar_device *device, size_t bytes);

/* device.c: objects that live on a device count themselves in and out. */
void mst_device_retain(mstar_device *device);
void mst_device_release(mstar_device *device);

#endif
