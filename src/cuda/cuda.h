/* cuda.h - the CUDA backend's own: what a device, a stream and an event hold, and who fills what.
 */
#ifndef MST_CUDA_H
#define MST_CUDA_H

#include <pthread.h>

#include "cuda/cuda_blas.h"
#include "cuda/cuda_driver.h"
#include "device/backend.h"

/* ---- cuda_stage.c: pinned memory on its way to the device ------------------------------------ */

#define MST_CUDA_STAGES 8

typedef struct mst_cuda_stage {
    void *memory; /* pinned */
    size_t bytes;
    void *event; /* when the copy out of it has ended */
    bool taken;  /* between take and send */
    bool sent;   /* event has been recorded */
} mst_cuda_stage;

typedef struct mst_cuda_ring {
    pthread_mutex_t lock;
    mst_cuda_stage **stages;
    int64_t num_stages, capacity;
    int64_t next;
} mst_cuda_ring;

/* ---- kernels --------------------------------------------------------------------------------- */

/* One compiled kernel of the .def list. Static. */
typedef struct mst_cuda_kernel {
    const char *op; /* "attention", "linear", or a row operation */
    const char *symbol;
    int32_t module; /* index of its embedded image */
    mstar_dtype dtype;
    int32_t head_dim;   /* of the tile: serves smaller ones down to 15 less; 0: any */
    int32_t block_keys; /* keys of a block: part of the order of sums */
    int32_t rows;       /* of a tile */
    int32_t stages;     /* of k and v in shared memory */
    int32_t threads;
    int32_t shared_bytes;
    int32_t slot_floats; /* of a partial result; 0: keys are never split */
    int32_t major;       /* compute capability that it is for alone; 0: any */
    bool described;      /* k and v, to the copy engine: takes mst_cuda_hopper_args */
    bool waits;          /* for the kernel before it, itself, where that is compiled for sm_90 */
} mst_cuda_kernel;

#define MST_CUDA_MAX_KERNELS 128
#define MST_CUDA_MAX_MODULES 32

/* The row operations, each one kernel for all dtypes; norms have one more, for few rows. */
typedef enum mst_cuda_row_op {
    MST_CUDA_ROW_LAYER_NORM,
    MST_CUDA_ROW_RMS_NORM,
    MST_CUDA_ROW_NORMALIZE,
    MST_CUDA_ROW_ACTIVATION,
    MST_CUDA_ROW_EMBEDDING,
    MST_CUDA_ROW_POOLING,
    MST_CUDA_ROW_ROTARY,
    MST_CUDA_ROW_LAYER_NORM_FEW,
    MST_CUDA_ROW_RMS_NORM_FEW,
    MST_CUDA_ROW_OPS
} mst_cuda_row_op;

/* A kernel on a device. */
typedef struct mst_cuda_function {
    void *handle;        /* NULL: not asked for yet */
    int32_t blocks;      /* that share a multiprocessor */
    bool overlaps;       /* may begin before the kernel ahead of it in the stream has ended */
    int32_t alone_bytes; /* shared memory of a block that has a multiprocessor to itself; 0: the
                            kernel's own */
} mst_cuda_function;

/* ---- the objects ----------------------------------------------------------------------------- */

/* cuda_nvtx.c: both NULL unless MSTAR_NVTX asks for ranges. */
typedef struct mst_cuda_nvtx {
    int (*push)(const char *name);
    int (*pop)(void);
} mst_cuda_nvtx;

typedef struct mst_cuda {
    const mst_cuda_driver *driver;
    int ordinal; /* the driver's handle of the device */
    void *context;
    void *stream; /* our own, for what has no stream: zeroing, the first plan of graph mode */
    int multiprocessors, major, minor;
    char model[64];
    int64_t l2_bytes;
    pthread_mutex_t lock; /* modules and functions */
    void *modules[MST_CUDA_MAX_MODULES];
    mst_cuda_function functions[MST_CUDA_MAX_KERNELS];
    mst_cuda_ring ring;
    mst_cuda_nvtx nvtx;
    /* cuda_product.c: NULL until the first product is made */
    const mst_blas *blas;
    void *blas_handle;
    struct mst_cuda_product *products;
    pthread_mutex_t products_lock; /* while one is found */
} mst_cuda;

typedef struct mst_cuda_stream {
    void *handle;
    bool is_own; /* else the caller's */
    /* device memory that work of this stream shares, one after the other: cuda_inputs.c */
    void *inputs, *scratch;
    size_t inputs_bytes, scratch_bytes;
} mst_cuda_stream;

static inline mst_cuda *mst_cuda_of(const mstar_device *device)
{
    return device->impl;
}
static inline void *mst_cuda_handle(const mstar_stream *stream)
{
    return ((const mst_cuda_stream *)stream->impl)->handle;
}
/* A device pointer as the driver's integer, and back. */
static inline uint64_t mst_cuda_address(const void *memory)
{
    return (uint64_t)(uintptr_t)memory;
}
static inline void *mst_cuda_pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* cuda_backend.c: makes the device's context current on this thread, and the former one again. The
 * host may have a context of its own, which stays as it was. */
mstar_status mst_cuda_enter(const mst_cuda *cuda);
void mst_cuda_leave(const mst_cuda *cuda);
/* Whether the stream captures; the second: OUT_OF_ORDER naming what, where it does. The context is
 * current. */
mstar_status mst_cuda_is_capturing(const mst_cuda *cuda, void *stream, bool *capturing);
mstar_status mst_cuda_check_not_capturing(const mst_cuda *cuda, void *stream, const char *what);

/* cuda_nvtx.c. Reads MSTAR_NVTX and opens the library that it asks for. */
mstar_status mst_cuda_nvtx_open(mst_cuda_nvtx *nvtx);
/* The vtable's range. */
void mst_cuda_range(const mstar_device *device, const char *name);

/* cuda_stage.c. The context is current in all of them. */
void mst_cuda_ring_init(mst_cuda_ring *ring);
void mst_cuda_ring_free(mst_cuda *cuda);
/*
 * A stage of at least so many bytes that nothing reads any more. The ring grows when all are in
 * use; while the stream captures it does not, and the answer is BUSY.
 */
mstar_status mst_cuda_stage_take(mst_cuda *cuda, void *stream, size_t bytes,
                                 mst_cuda_stage **stage);
/* Copies the stage's first bytes to the device in stream order, and gives the stage back. */
mstar_status mst_cuda_stage_send(mst_cuda *cuda, void *stream, mst_cuda_stage *stage, void *to,
                                 size_t bytes);
/* Gives a stage back unsent. */
void mst_cuda_stage_drop(mst_cuda *cuda, mst_cuda_stage *stage);

/* cuda_kernels.c */
int32_t mst_cuda_num_kernels(void);
const mst_cuda_kernel *mst_cuda_kernel_at(int32_t index);
int32_t mst_cuda_kernel_index(const mst_cuda_kernel *kernel);
const mst_cuda_kernel *mst_cuda_row_kernel(mst_cuda_row_op op);
/* Of products in bf16 or f16; few: of one tile for each block. */
const mst_cuda_kernel *mst_cuda_linear_kernel_of(mstar_dtype dtype, bool few);
/* Loads the kernel's module on first use. The context is current. */
mstar_status mst_cuda_function_get(mst_cuda *cuda, const mst_cuda_kernel *kernel,
                                   mst_cuda_function *function);
void mst_cuda_modules_unload(mst_cuda *cuda);
/* Blocks of a launch, and threads of each. */
typedef struct mst_cuda_grid {
    int64_t x, y;
    int32_t threads;
    bool alone; /* a multiprocessor for each, where the function has alone_bytes */
} mst_cuda_grid;
/*
 * Launches a kernel that was loaded, args its one argument. Where the kernel waits itself it is
 * scheduled while the kernel before it in the stream, or in the graph that is captured, comes to
 * its end. The context is current.
 */
mstar_status mst_cuda_launch(const mst_cuda *cuda, const mst_cuda_kernel *kernel,
                             mst_cuda_grid grid, void *stream, void *args);
mstar_status mst_cuda_query_kernel(const mstar_device *device, int32_t index,
                                   mstar_kernel_info *info);

/* ---- cuda_attn.c: entries of the vtable ------------------------------------------------------ */

void mst_cuda_attn_kernel(const mstar_device *device, const mst_attn_shape *shape,
                          const char **symbol, const char **reason);
size_t mst_cuda_attn_scratch_bytes(const mstar_device *device, const mst_attn_shape *shape);
mst_attn_tile mst_cuda_attn_worst_tile(const mstar_device *device, const mst_attn_shape *shape);
int64_t mst_cuda_attn_near_tokens(const mstar_device *device, const mst_attn_shape *shape);
mstar_status mst_cuda_attn_image_create(mstar_device *device, const mst_attn_shape *shape,
                                        int64_t max_segments, int64_t max_tokens,
                                        int64_t max_kv_tokens, void **image);
void mst_cuda_attn_image_destroy(mstar_device *device, void *image);
mstar_status mst_cuda_attn_image_begin(mstar_stream *stream, mstar_device *device, void *image,
                                       int64_t num_segments, int64_t num_tokens);
mstar_status mst_cuda_attn_image_end(mstar_stream *stream, mstar_device *device, void *image,
                                     const mst_attn_call *plan, int64_t num_tokens);
mstar_status mst_cuda_attn_run(mstar_stream *stream, const mst_attn_call *call);
void mst_cuda_attn_planned(const mstar_device *device, const void *image, const char **symbol,
                           const char **reason);

/* ---- cuda_graph.c: entries of the vtable ----------------------------------------------------- */

mstar_status mst_cuda_capture_begin(mstar_stream *stream, mstar_graph *graph);
mstar_status mst_cuda_capture_end(mstar_stream *stream, mstar_graph *graph);
void mst_cuda_capture_abort(mstar_stream *stream, mstar_graph *graph);
mstar_status mst_cuda_graph_replay(mstar_graph *graph, mstar_stream *stream);
void mst_cuda_graph_close(mstar_graph *graph);
void mst_cuda_graph_query(const mstar_graph *graph, mstar_graph_info *info);
/* Notes what a replay must check about a recorded attention. */
mstar_status mst_cuda_record_attn(mstar_stream *stream, const mst_attn_call *call);

/* ---- cuda_attn_kernel.c ---------------------------------------------------------------------- */

/* Query heads of a kv head. */
static inline int32_t mst_cuda_attn_group_of(const mst_attn_shape *shape)
{
    return shape->num_qo_heads / shape->num_kv_heads;
}

/* Of a key and its value, all heads. */
static inline int64_t mst_cuda_attn_key_bytes(const mst_attn_shape *shape)
{
    return 2LL * shape->num_kv_heads * shape->head_dim * (int64_t)mstar_dtype_bytes(shape->dtype);
}

/* Whether a shape has a plain kernel alone: f32, or by name. */
bool mst_cuda_attn_is_plain(const mst_attn_shape *shape);
/*
 * The kernel for a shape: of those with its head dim, dtype and rows, one made for this kind of
 * card, and the one with more stages where few tiles leave a multiprocessor to fewer blocks. Never
 * NULL for rows that some kernel has.
 */
const mst_cuda_kernel *mst_cuda_attn_find(const mst_cuda *cuda, const mst_attn_shape *shape,
                                          int32_t rows, bool few);
/* Loads all that plans of the shape may have, which then cannot fail for it. The context is
 * current. */
mstar_status mst_cuda_attn_load(mst_cuda *cuda, const mst_attn_shape *shape);
/* Row tiles of a layout: of 64 rows, of 128, and of 64 where short segments share them; keys of its
 * longest segment, 0 in a causal plan. */
typedef struct mst_cuda_attn_tiles {
    int64_t of_64, of_128, shared;
    int64_t whole_keys;
} mst_cuda_attn_tiles;
/* The same for a layout that has so many tiles. */
const mst_cuda_kernel *mst_cuda_attn_pick(const mst_cuda *cuda, const mst_attn_shape *shape,
                                          const mst_cuda_attn_tiles *tiles);
/*
 * What stands in for a kernel that has its keys described where they cannot be: of the same rows,
 * over the same list, with the same bits. NULL for a kernel that describes none.
 */
const mst_cuda_kernel *mst_cuda_attn_undescribed(const mst_cuda *cuda, const mst_attn_shape *shape,
                                                 const mst_cuda_kernel *kernel);
/* Why a plan has the kernel that was picked for it. Static. */
const char *mst_cuda_attn_reason(const mstar_device *device, const mst_attn_shape *shape,
                                 const mst_cuda_kernel *kernel);

/* ---- cuda_attn_list.c ------------------------------------------------------------------------ */

struct mst_cuda_attn_item;
/* Keys that no segment of the shape with fewer is split at; INT32_MAX where none is split. */
int32_t mst_cuda_attn_least_split(const mst_attn_shape *shape);
/* The items of a plan for a kernel, at most max_slots of them parts of one; how many there are.
 * items has room for one more. */
int64_t mst_cuda_attn_write_list(const mst_cuda *cuda, const mst_attn_shape *shape,
                                 const mst_cuda_kernel *kernel, const mst_attn_call *plan,
                                 int64_t max_slots, struct mst_cuda_attn_item *items);
/* The tiles of a plan, and of one of so many tokens spread evenly over segments, 1 or more. */
void mst_cuda_attn_tiles_of(const mst_attn_shape *shape, const mst_attn_call *plan,
                            mst_cuda_attn_tiles *tiles);
void mst_cuda_attn_tiles_of_even(const mst_attn_shape *shape, int64_t segments, int64_t tokens,
                                 int64_t kv_tokens, mst_cuda_attn_tiles *tiles);

/* ---- cuda_attn_choice.c: pure functions ------------------------------------------------------ */

/*
 * Keys of a part where a segment's keys are split over blocks, else 0. Knows the segment alone:
 * rows of the group of one kv head, kv heads, keys. Few tiles over many keys are split.
 */
int64_t mst_cuda_attn_part_keys(int32_t tile_head_dim, int64_t rows, int64_t num_kv_heads,
                                int64_t lk);
/*
 * Whether so many tiles of 64 rows, of all kv heads, leave room for kernels of more stages: fewer
 * of their blocks share a multiprocessor. Above head dim 128 it is one, and parts of keys are to
 * come.
 */
bool mst_cuda_attn_is_few(int32_t tile_head_dim, int64_t tiles, int64_t multiprocessors);
/*
 * Whether the copy engine is the faster way for low tiles to bring keys and values: not where those
 * of one segment, of so many keys that every row sees, are more than twice the second-level cache.
 * key_bytes: of a key and its value, all heads.
 */
bool mst_cuda_attn_is_fetched(int64_t whole_keys, int64_t key_bytes, int64_t l2_bytes);
/*
 * Rows of a tile for a layout: 64, or 128 where the head dim has such a kernel, it is the fastest
 * of cards of this compute capability, little of it would be empty and the card would still be
 * full. Bits do not depend on it.
 */
int32_t mst_cuda_attn_tile_rows(int32_t major, int32_t tile_head_dim, int64_t tiles_of_64,
                                int64_t tiles_of_128, int64_t num_kv_heads,
                                int64_t multiprocessors);
/*
 * Whether short segments of a layout may share tiles: of 64 rows, multiplied by mma.sync, where
 * there are more tiles than multiprocessors work on at a time. Bits do not depend on it.
 */
bool mst_cuda_attn_shares(int32_t tile_rows, int64_t num_items, int64_t num_kv_heads,
                          int64_t multiprocessors);
/*
 * Whether a segment of so many rows and keys goes into a tile of 64 rows and one block of keys
 * beside count others that take so many, all rounded up to 16.
 */
bool mst_cuda_attn_fits(int32_t count, int64_t rows_taken, int64_t keys_taken, int64_t rows,
                        int64_t keys, int32_t block_keys);
/*
 * Whether kernels by mma.sync are to serve a layout for the tiles that its short segments share,
 * where a card has kernels by wgmma, which share none. Where bits agree, up to head dim 128.
 */
bool mst_cuda_attn_prefers_sharing(int32_t tile_head_dim, int64_t tiles, int64_t shared_tiles,
                                   int64_t num_kv_heads, int64_t multiprocessors);
/*
 * Blocks of tiles of so many rows for one multiprocessor, of those that fit; each keeps a partial
 * result of its own, and there is memory for limit tiles of 64 rows.
 */
int32_t mst_cuda_attn_blocks(int32_t fit, int32_t rows, int32_t limit);
/* The head dim of the tile that serves one: the next multiple of 16. */
int32_t mst_cuda_attn_tile_head_dim(int32_t head_dim);

#endif
