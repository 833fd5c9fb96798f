/*
 * backend.h - THE SEAM: everything the library asks of a device.
 *
 * A backend is one vtable. Callers above (attn, ops, model) have checked every argument; a backend
 * only has to be right. Pointers in calls are device memory unless a comment says host. Rows, heads
 * and strides count elements. On the CPU a call has finished when it returns; on a GPU it is
 * queued.
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
    int32_t max_threads; /* >= 1 */
    void *impl;
};

struct mstar_event {
    mstar_device *device;
    bool recorded;
    int64_t time_ns; /* CPU */
    void *impl;
};

/* ---- attention ------------------------------------------------------------------------------- */

/* What a wrapper is, fixed at create. */
typedef struct mst_attn_shape {
    int32_t num_qo_heads, num_kv_heads, head_dim;
    mstar_dtype dtype;
    float sm_scale;
    int64_t window_left, window_right; /* -1 no limit */
    bool reference;                    /* the scalar kernel was asked for by name */
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
} mst_attn_call;

/* ---- ops ------------------------------------------------------------------------------------- */

/* A matrix of rows: dtype f32, bf16 or f16, columns contiguous. data NULL: absent. */
typedef struct mst_rows {
    void *data;
    mstar_dtype dtype;
    int64_t row_stride;
} mst_rows;

/* The bias of a product is padded with zeros to this many columns: kernels read whole vectors. */
#define MST_LINEAR_PAD 64

typedef struct mst_linear_shape {
    int64_t in_features, out_features;
    mstar_dtype weight_dtype; /* of the panels */
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

    mstar_status (*memory_alloc)(mstar_device *device, size_t bytes,
                                 void **memory); /* zeroed, 256-aligned */
    void (*memory_free)(mstar_device *device, void *memory);
    mstar_status (*copy)(mstar_stream *stream, void *destination, const void *source, size_t bytes);

    mstar_status (*stream_open)(mstar_stream *stream);
    void (*stream_close)(mstar_stream *stream);
    mstar_status (*stream_synchronize)(mstar_stream *stream);
    mstar_status (*event_open)(mstar_event *event);
    void (*event_close)(mstar_event *event);
    mstar_status (*event_record)(mstar_event *event, mstar_stream *stream);
    mstar_status (*stream_wait_event)(mstar_stream *stream, mstar_event *event);
    mstar_status (*event_query)(mstar_event *event, int *done);
    mstar_status (*event_synchronize)(mstar_event *event);
    mstar_status (*event_elapsed_ns)(const mstar_event *start, const mstar_event *end, int64_t *ns);

    /* Kernel that serves this shape: symbol and reason, static strings. */
    void (*attn_kernel)(const mstar_device *device, const mst_attn_shape *shape,
                        const char **symbol, const char **reason);
    /* Scratch of one run, whatever the layout. */
    size_t (*attn_scratch_bytes)(const mstar_device *device, const mst_attn_shape *shape);
    /* Pure: tile of a segment of lq rows and lk keys. */
    mst_attn_tile (*attn_tile)(const mstar_device *device, const mst_attn_shape *shape, int64_t lq,
                               int64_t lk);
    /* Pure: what attn_tile amounts to at worst. No segment of lq rows is cut into more than
       ceil(lq / rows) row tiles or ceil(num_kv_heads / heads) head groups; sizes the work list of
       graph mode. NULL: {1, 1}. */
    mst_attn_tile (*attn_worst_tile)(const mstar_device *device, const mst_attn_shape *shape);
    mstar_status (*attn_run)(mstar_stream *stream, const mst_attn_call *call);

    size_t (*linear_packed_bytes)(const mstar_device *device, const mst_linear_shape *shape);
    const char *(*linear_kernel)(const mstar_device *device, const mst_linear_shape *shape);
    /* The dtype of x that the kernel reads without a conversion; others give the same bits. */
    mstar_dtype (*linear_x_dtype)(const mstar_device *device, const mst_linear_shape *shape);
    /* Packs rows [first_row, first_row + num_rows) of the [out, in] matrix from one part (host
       memory, any strides, dtype f32, bf16 or f16) into packed. Parts come in order and cover all
       rows. */
    void (*linear_pack)(const mstar_device *device, const mst_linear_shape *shape,
                        const mstar_tensor *weight, int64_t first_row, void *packed);
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

/* registry.c: backend by the part of a device name before ':'; NULL when there is none. */
const mst_backend *mst_backend_find(const char *name, size_t name_bytes);
/* cpu/cpu_backend.c */
const mst_backend *mst_cpu_backend(void);

/* device.c: objects that live on a device count themselves in and out. */
void mst_device_retain(mstar_device *device);
void mst_device_release(mstar_device *device);

#endif
