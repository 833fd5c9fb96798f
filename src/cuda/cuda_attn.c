/*
 * cuda_attn.c - attention on a GPU: a plan's image in device memory, and the launch that reads it.
 *
 * The planner's list names row tiles of all kv heads, heaviest first. The image is that list with
 * all a block needs in each item, behind a header with the counts; it is written into a pinned
 * stage and goes to the device in one copy, in stream order, so that a plan neither waits nor races
 * with a replay in flight. In graph mode its address, the kernel and the grid are fixed by the
 * ceilings.
 */
#include <math.h>
#include <string.h>

#include "cuda/attn_args.h"
#include "cuda/cuda.h"

/* Partial results of one plan, counted in tiles of 64 rows of one head. A plan that would need more
 * leaves the rest of its parts to be done one after the other, with the same bits. */
#define MAX_SLOTS 896
#define ITEM_ROWS 128 /* rows of the group in an item of the planner's list */
/* Keys and values of segments that are listed together under a mask: a third of an H200's
 * second-level cache, and work for all of its multiprocessors. */
#define NEAR_BYTES (16LL << 20)

typedef struct mst_cuda_attn_image {
    mst_attn_shape shape;
    const mst_cuda_kernel *kernel; /* graph mode: from the ceilings; eager: from the latest plan */
    mst_cuda_function function;
    /* where the kernel has its keys described and they cannot be */
    const mst_cuda_kernel *undescribed;
    mst_cuda_function undescribed_function;
    bool graph;
    int64_t max_items; /* that memory holds */
    unsigned char *memory;
    mst_cuda_stage *stage; /* between begin and end */
    int64_t num_items;     /* that the grid is made for; graph mode: the most that a plan has */
} mst_cuda_attn_image;

/* The image's memory: counters and arrivals belong to the kernels, the rest is uploaded. */
#define ARRIVALS_AT 64
#define HEADER_AT (ARRIVALS_AT + MAX_SLOTS * 4)
#define ITEMS_AT (HEADER_AT + 64)
_Static_assert(HEADER_AT % 64 == 0, "the header is aligned");
_Static_assert(sizeof(mst_cuda_attn_item) == 48, "an item is three copies of 16 bytes");

/* Blocks of 64 rows that one multiprocessor is given at most. */
static int32_t blocks_limit(const mst_attn_shape *shape)
{
    return mst_cuda_attn_tile_head_dim(shape->head_dim) > 128 ? 2 : 4;
}

static bool may_split(const mst_attn_shape *shape)
{
    return mst_cuda_attn_least_split(shape) < INT32_MAX;
}

/* Whether some segment of at most so many keys is cut into parts. */
static bool splits_any(const mst_attn_shape *shape, int64_t keys)
{
    return may_split(shape) && mst_cuda_attn_part_keys(mst_cuda_attn_tile_head_dim(shape->head_dim),
                                                       1, shape->num_kv_heads, keys) > 0;
}

size_t mst_cuda_attn_scratch_bytes(const mstar_device *device, const mst_attn_shape *shape)
{
    if (!may_split(shape))
        return 0;
    const mst_cuda *cuda = mst_cuda_of(device);
    size_t slot = (size_t)mst_cuda_attn_find(cuda, shape, 64, false)->slot_floats * sizeof(float);
    size_t blocks = (size_t)cuda->multiprocessors * (size_t)blocks_limit(shape);
    return slot * (MAX_SLOTS + blocks);
}

/* Of any segment. */
mst_attn_tile mst_cuda_attn_worst_tile(const mstar_device *device, const mst_attn_shape *shape)
{
    (void)device;
    return (mst_attn_tile){(int32_t)mst_max_i64(ITEM_ROWS / mst_cuda_attn_group_of(shape), 1),
                           shape->num_kv_heads};
}

int64_t mst_cuda_attn_near_tokens(const mstar_device *device, const mst_attn_shape *shape)
{
    (void)device;
    return NEAR_BYTES / mst_cuda_attn_key_bytes(shape);
}

/* The most items that a layout can give: its tiles, and what splitting may add. */
static mstar_status bound_items(const mst_attn_shape *shape, int64_t num_segments,
                                int64_t num_tokens, int64_t *items)
{
    int64_t group = mst_cuda_attn_group_of(shape);
    int64_t rows = mst_max_i64(ITEM_ROWS / group, 1);
    int64_t segments = mst_min_i64(num_segments, num_tokens);
    int64_t tiles = segments + (num_tokens - segments) / rows;
    *items = tiles * mst_ceil_div(rows * group, 64) + MAX_SLOTS;
    if (num_tokens * group > INT32_MAX || *items * shape->num_kv_heads > INT32_MAX)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "%lld query tokens of %d heads are more than the CUDA backend numbers; a "
                        "plan may have %d rows of a group",
                        (long long)num_tokens, shape->num_qo_heads, INT32_MAX);
    return MSTAR_OK;
}

/* The kernel and what stands in for it, both loaded: a run may be captured, and loads nothing. */
static mstar_status choose_kernel(mst_cuda *cuda, mst_cuda_attn_image *image,
                                  const mst_cuda_attn_tiles *tiles)
{
    const mst_cuda_kernel *kernel = mst_cuda_attn_pick(cuda, &image->shape, tiles);
    const mst_cuda_kernel *undescribed = mst_cuda_attn_undescribed(cuda, &image->shape, kernel);
    mst_cuda_function function;
    MST_TRY(mst_cuda_function_get(cuda, kernel, &function));
    if (undescribed != NULL)
        MST_TRY(mst_cuda_function_get(cuda, undescribed, &image->undescribed_function));
    image->kernel = kernel;
    image->function = function;
    image->undescribed = undescribed;
    return MSTAR_OK;
}

static mstar_status take_memory(mstar_device *device, mst_cuda_attn_image *image, int64_t max_items)
{
    void *memory = NULL;
    MST_TRY(device->backend->memory_alloc(
        device, ITEMS_AT + (size_t)max_items * sizeof(mst_cuda_attn_item), &memory));
    image->memory = memory;
    image->max_items = max_items;
    return MSTAR_OK;
}

/* Graph mode's kernel: for the ceilings, as if tokens were spread evenly over the segments. */
static mstar_status fix_kernel(mstar_device *device, mst_cuda_attn_image *image,
                               int64_t max_segments, int64_t max_tokens, int64_t max_kv_tokens)
{
    mst_cuda *cuda = mst_cuda_of(device);
    mst_cuda_attn_tiles tiles;
    mst_cuda_attn_tiles_of_even(&image->shape, max_segments, max_tokens, max_kv_tokens, &tiles);
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = choose_kernel(cuda, image, &tiles);
    mst_cuda_leave(cuda);
    return status;
}

/* Eager mode's kernels, one of which each plan picks. */
static mstar_status load_kernels(mstar_device *device, const mst_attn_shape *shape)
{
    mst_cuda *cuda = mst_cuda_of(device);
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = mst_cuda_attn_load(cuda, shape);
    mst_cuda_leave(cuda);
    return status;
}

mstar_status mst_cuda_attn_image_create(mstar_device *device, const mst_attn_shape *shape,
                                        int64_t max_segments, int64_t max_tokens,
                                        int64_t max_kv_tokens, void **image)
{
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_cuda_attn_image), "attention image", &memory));
    mst_cuda_attn_image *made = memory;
    made->shape = *shape;
    made->graph = max_segments >= 0;
    int64_t max_items = 1;
    mstar_status status = MSTAR_OK;
    if (made->graph) {
        MST_TRY_GOTO(bound_items(shape, max_segments, max_tokens, &max_items), failed);
        MST_TRY_GOTO(fix_kernel(device, made, max_segments, max_tokens, max_kv_tokens), failed);
        made->num_items = max_items - (splits_any(shape, max_kv_tokens) ? 0 : MAX_SLOTS);
    } else {
        MST_TRY_GOTO(load_kernels(device, shape), failed);
    }
    MST_TRY_GOTO(take_memory(device, made, max_items), failed);
    *image = made;
    return MSTAR_OK;
failed:
    mst_free(made);
    return status;
}

void mst_cuda_attn_image_destroy(mstar_device *device, void *image)
{
    mst_cuda_attn_image *own = image;
    if (own == NULL)
        return;
    if (own->stage != NULL)
        mst_cuda_stage_drop(mst_cuda_of(device), own->stage);
    device->backend->memory_free(device, own->memory);
    mst_free(own);
}

void mst_cuda_attn_planned(const mstar_device *device, const void *image, const char **symbol,
                           const char **reason)
{
    const mst_cuda_attn_image *own = image;
    if (own->kernel == NULL)
        return;
    *symbol = own->kernel->symbol;
    *reason = mst_cuda_attn_reason(device, &own->shape, own->kernel);
}

static size_t upload_bytes(int64_t num_items)
{
    return ITEMS_AT - HEADER_AT + (size_t)num_items * sizeof(mst_cuda_attn_item);
}

static void *handle_or_own(const mst_cuda *cuda, const mstar_stream *stream)
{
    return stream != NULL ? mst_cuda_handle(stream) : cuda->stream;
}

/* More memory, with the plan that is in force until another is complete: what comes after may fail.
 */
static mstar_status grow_memory(mstar_device *device, mst_cuda_attn_image *image, void *handle,
                                int64_t items)
{
    const mst_cuda *cuda = mst_cuda_of(device);
    unsigned char *former = image->memory;
    int64_t former_items = image->max_items;
    MST_TRY(take_memory(device, image, mst_max_i64(items, 2 * former_items)));
    mstar_status status =
        mst_cuda_check(cuda->driver,
                       cuda->driver->copy(mst_cuda_address(image->memory), mst_cuda_address(former),
                                          HEADER_AT + upload_bytes(image->num_items), handle),
                       "moving a plan");
    if (status != MSTAR_OK) {
        device->backend->memory_free(device, image->memory);
        image->memory = former;
        image->max_items = former_items;
        return status;
    }
    device->backend->memory_free(device, former); /* waits for what still reads it */
    return MSTAR_OK;
}

mstar_status mst_cuda_attn_image_begin(mstar_stream *stream, mstar_device *device, void *image,
                                       int64_t num_segments, int64_t num_tokens)
{
    mst_cuda *cuda = mst_cuda_of(device);
    mst_cuda_attn_image *own = image;
    int64_t items = 0;
    MST_TRY(bound_items(&own->shape, num_segments, num_tokens, &items));
    MST_TRY(mst_cuda_enter(cuda));
    void *handle = handle_or_own(cuda, stream);
    mstar_status status = mst_cuda_check_not_capturing(cuda, handle, "plan");
    if (status == MSTAR_OK && items > own->max_items)
        status = grow_memory(device, own, handle, items);
    if (status == MSTAR_OK && own->stage != NULL && own->stage->bytes < upload_bytes(items)) {
        mst_cuda_stage_drop(cuda, own->stage);
        own->stage = NULL;
    }
    if (status == MSTAR_OK && own->stage == NULL)
        status = mst_cuda_stage_take(cuda, handle, upload_bytes(items), &own->stage);
    mst_cuda_leave(cuda);
    return status;
}

mstar_status mst_cuda_attn_image_end(mstar_stream *stream, mstar_device *device, void *image,
                                     const mst_attn_call *plan, int64_t num_tokens)
{
    mst_cuda *cuda = mst_cuda_of(device);
    mst_cuda_attn_image *own = image;
    MST_TRY(mst_cuda_enter(cuda));
    mstar_status status = MSTAR_OK;
    if (!own->graph) {
        mst_cuda_attn_tiles tiles;
        mst_cuda_attn_tiles_of(&own->shape, plan, &tiles);
        status = choose_kernel(cuda, own, &tiles);
    }
    if (status == MSTAR_OK) {
        mst_cuda_attn_header *header = own->stage->memory;
        int64_t max_slots = MAX_SLOTS * 64 / own->kernel->rows / own->shape.num_kv_heads;
        int64_t num_items =
            mst_cuda_attn_write_list(cuda, &own->shape, own->kernel, plan, max_slots,
                                     (void *)((char *)header + (ITEMS_AT - HEADER_AT)));
        *header = (mst_cuda_attn_header){(int32_t)num_items, (int32_t)num_tokens, plan->causal, 0};
        if (!own->graph)
            own->num_items = num_items;
        void *handle = handle_or_own(cuda, stream);
        status = mst_cuda_stage_send(cuda, handle, own->stage, own->memory + HEADER_AT,
                                     upload_bytes(num_items));
        own->stage = NULL;
        if (status == MSTAR_OK && stream == NULL)
            status = mst_cuda_check(cuda->driver, cuda->driver->stream_synchronize(handle),
                                    "waiting for the first plan");
    }
    mst_cuda_leave(cuda);
    return status;
}

/* ---- run ------------------------------------------------------------------------------------- */

static bool on_16_bytes(const void *data, int64_t row_stride, int64_t head_stride)
{
    return (uintptr_t)data % 16 == 0 && row_stride % 8 == 0 && head_stride % 8 == 0;
}

static void fill_scale(float sm_scale, mst_cuda_attn_args *args)
{
    /* the tensor-core kernels multiply a -inf by it, so it is never 0: with the least number there
       is, weights of any scores are 1 */
    float scale = fabsf(sm_scale) * 1.44269504088896340736f;
    args->negative = sm_scale < 0.0F;
    args->scale_log2 = scale < 0x1p-149F ? 0x1p-149F : scale;
    args->half_scale = sm_scale * 0.72134752044448170368f;
}

static int32_t window_of(int64_t window)
{
    return window < 0 || window >= MST_CUDA_NO_WINDOW ? MST_CUDA_NO_WINDOW : (int32_t)window;
}

static void fill(const mst_attn_call *call, const mst_cuda_attn_image *image,
                 mst_cuda_attn_args *args)
{
    const mst_attn_shape *shape = call->shape;
    args->q = call->q;
    args->k = call->k;
    args->v = call->v;
    args->out = call->out;
    args->lse = call->lse;
    args->counters = (void *)image->memory;
    args->arrivals = (void *)(image->memory + ARRIVALS_AT);
    args->header = (const void *)(image->memory + HEADER_AT);
    args->items = (const void *)(image->memory + ITEMS_AT);
    args->partials = call->scratch;
    if (may_split(shape))
        args->own_partials = (float *)call->scratch + (size_t)MAX_SLOTS * 64 *
                                                          (size_t)image->kernel->slot_floats /
                                                          (size_t)image->kernel->rows;
    args->q_row_stride = call->q_row_stride;
    args->q_head_stride = call->q_head_stride;
    args->k_row_stride = call->k_row_stride;
    args->k_head_stride = call->k_head_stride;
    args->v_row_stride = call->v_row_stride;
    args->v_head_stride = call->v_head_stride;
    args->out_row_stride = call->out_row_stride;
    args->out_head_stride = call->out_head_stride;
    args->lse_row_stride = call->lse_row_stride;
    args->zero_end = call->zero_end;
    args->num_kv_heads = shape->num_kv_heads;
    args->group = mst_cuda_attn_group_of(shape);
    args->head_dim = shape->head_dim;
    args->window_left = window_of(shape->window_left);
    args->window_right = window_of(shape->window_right);
    fill_scale(shape->sm_scale, args);
    args->elements = shape->head_dim % 8 != 0 ||
                     !on_16_bytes(call->q, call->q_row_stride, call->q_head_stride) ||
                     !on_16_bytes(call->k, call->k_row_stride, call->k_head_stride) ||
                     !on_16_bytes(call->v, call->v_row_stride, call->v_head_stride);
    args->out_vector = shape->head_dim % 8 == 0 &&
                       on_16_bytes(call->out, call->out_row_stride, call->out_head_stride);
}

/* Whether the copy engine can be told of such strides; of one head there is none to tell. */
static bool can_describe(const mst_attn_shape *shape, int64_t row_stride, int64_t head_stride)
{
    const int64_t limit = (int64_t)1 << 39; /* elements of 2 bytes */
    return row_stride > 0 && row_stride < limit &&
           (shape->num_kv_heads == 1 || (head_stride > 0 && head_stride < limit));
}

static bool describe(const mst_cuda *cuda, const mst_attn_call *call, const void *data,
                     int64_t row_stride, int64_t head_stride, mst_cuda_tensor_map *map)
{
    const mst_attn_shape *shape = call->shape;
    const uint64_t sizes[] = {(uint64_t)shape->head_dim, (uint64_t)shape->num_kv_heads,
                              (uint64_t)call->kv_rows};
    const uint64_t strides[] = {
        (uint64_t)(shape->num_kv_heads == 1 ? mst_round_up(shape->head_dim, 8) : head_stride) * 2,
        (uint64_t)row_stride * 2};
    const uint32_t box[] = {64, 1, 64}, steps[] = {1, 1, 1};
    return cuda->driver->tensor_map_encode(
               map, shape->dtype == MSTAR_DTYPE_BF16 ? MST_CUDA_MAP_BF16 : MST_CUDA_MAP_F16, 3,
               (void *)(uintptr_t)data, sizes, strides, box, steps, 0, MST_CUDA_MAP_SWIZZLE_128,
               MST_CUDA_MAP_PROMOTE_256, 0) == MST_CUDA_SUCCESS;
}

/* What the copy engine is told of k and v; false where it cannot be told, or nothing is there. */
static bool describe_keys(const mst_cuda *cuda, const mst_attn_call *call,
                          mst_cuda_hopper_args *args)
{
    const mst_attn_shape *shape = call->shape;
    if (args->attn.elements || !can_describe(shape, call->k_row_stride, call->k_head_stride) ||
        !can_describe(shape, call->v_row_stride, call->v_head_stride))
        return false;
    return call->kv_rows > 0 &&
           describe(cuda, call, call->k, call->k_row_stride, call->k_head_stride, &args->k) &&
           describe(cuda, call, call->v, call->v_row_stride, call->v_head_stride, &args->v);
}

/* Blocks stay and take work, so more than fit are never launched. */
static unsigned grid_of(const mst_cuda *cuda, const mst_cuda_attn_image *image, int32_t fit)
{
    int64_t blocks = mst_cuda_attn_blocks(fit, image->kernel->rows, blocks_limit(&image->shape));
    int64_t work = image->num_items * image->shape.num_kv_heads;
    return (unsigned)mst_max_i64(1, mst_min_i64(work, blocks * cuda->multiprocessors));
}

/* A plan of eager mode brings another kernel and another grid than a graph would have kept. Our own
 * captures are refused before. */
static mstar_status refuse_capture(const mst_cuda *cuda, const mst_cuda_attn_image *image,
                                   void *handle)
{
    bool capturing = false;
    if (image->graph)
        return MSTAR_OK;
    MST_TRY(mst_cuda_is_capturing(cuda, handle, &capturing));
    return !capturing ? MSTAR_OK
                      : mst_fail(MSTAR_OUT_OF_ORDER,
                                 "run of an eager-mode wrapper, whose plan moves, was called while "
                                 "its stream captures; graph mode is for that");
}

static mstar_status launch(mstar_stream *stream, const mst_attn_call *call)
{
    const mst_cuda *cuda = mst_cuda_of(stream->device);
    const mst_cuda_attn_image *image = call->image;
    const mst_cuda_kernel *kernel = image->kernel;
    int32_t fit = image->function.blocks;
    mst_cuda_hopper_args args;
    memset(&args, 0, sizeof args);
    fill(call, image, &args.attn);
    if (stream->graph != NULL)
        MST_TRY(mst_cuda_record_attn(stream, call));
    MST_TRY(mst_cuda_enter(cuda));
    if (kernel->described && !describe_keys(cuda, call, &args)) {
        kernel = image->undescribed;
        fit = image->undescribed_function.blocks;
    }
    mst_cuda_grid grid = {.x = grid_of(cuda, image, fit), .y = 1, .threads = kernel->threads};
    grid.alone = grid.x <= cuda->multiprocessors;
    mstar_status status = refuse_capture(cuda, image, mst_cuda_handle(stream));
    if (status == MSTAR_OK)
        status = mst_cuda_launch(cuda, kernel, grid, mst_cuda_handle(stream),
                                 kernel->described ? (void *)&args : &args.attn);
    mst_cuda_leave(cuda);
    return status;
}

mstar_status mst_cuda_attn_run(mstar_stream *stream, const mst_attn_call *call)
{
    mst_cuda_range(stream->device, "mstar attention");
    mstar_status status = launch(stream, call);
    mst_cuda_range(stream->device, NULL);
    return status;
}
