/*
 * cuda_attn_kernel.c - which attention kernel serves a shape on a card, and why.
 */
#include <string.h>

#include "cuda/cuda.h"

bool mst_cuda_attn_is_plain(const mst_attn_shape *shape)
{
    return shape->reference || shape->dtype == MSTAR_DTYPE_F32;
}

/* Whether one of two kernels of a shape and of as many rows is to be taken. */
static bool is_better(const mst_cuda_kernel *kernel, const mst_cuda_kernel *than, bool few)
{
    if (kernel->major != than->major)
        return kernel->major > than->major;
    if (kernel->stages == than->stages)
        return kernel->described && !than->described;
    return few ? kernel->stages > than->stages : kernel->stages < than->stages;
}

/* What the copy engine reads are rows that lie on 16 bytes. */
static bool may_describe(const mst_attn_shape *shape)
{
    return shape->head_dim % 8 == 0;
}

/* Kernels to choose from. */
typedef enum kinds { BY_MMA, BY_WGMMA, DESCRIBED } kinds; /* each and those before it */

/* Whether a kernel is for attention of the shape's head dim and dtype on the card, and of those. */
static bool serves(const mst_cuda_kernel *kernel, const mst_cuda *cuda, const mst_attn_shape *shape,
                   kinds of)
{
    int32_t head_dim =
        mst_cuda_attn_is_plain(shape) ? 0 : mst_cuda_attn_tile_head_dim(shape->head_dim);
    if (strcmp(kernel->op, "attention") != 0 || kernel->dtype != shape->dtype ||
        kernel->head_dim != head_dim)
        return false;
    if (kernel->major != 0 && (kernel->major != cuda->major || of == BY_MMA))
        return false;
    return !kernel->described || (of == DESCRIBED && may_describe(shape));
}

static kinds kinds_of(const mst_attn_shape *shape)
{
    return shape->wanted == MST_ATTN_FA2 ? BY_MMA : DESCRIBED;
}

/* The best kernel of those that have so many rows. */
static const mst_cuda_kernel *find(const mst_cuda *cuda, const mst_attn_shape *shape, int32_t rows,
                                   bool few, kinds of)
{
    const mst_cuda_kernel *found = NULL;
    for (int32_t i = 0; i < mst_cuda_num_kernels(); i++) {
        const mst_cuda_kernel *kernel = mst_cuda_kernel_at(i);
        if (kernel->rows == rows && serves(kernel, cuda, shape, of) &&
            (found == NULL || is_better(kernel, found, few)))
            found = kernel;
    }
    return found;
}

mstar_status mst_cuda_attn_load(mst_cuda *cuda, const mst_attn_shape *shape)
{
    mst_cuda_function unused;
    for (int32_t i = 0; i < mst_cuda_num_kernels(); i++)
        if (serves(mst_cuda_kernel_at(i), cuda, shape, kinds_of(shape)))
            MST_TRY(mst_cuda_function_get(cuda, mst_cuda_kernel_at(i), &unused));
    return MSTAR_OK;
}

const mst_cuda_kernel *mst_cuda_attn_find(const mst_cuda *cuda, const mst_attn_shape *shape,
                                          int32_t rows, bool few)
{
    return find(cuda, shape, rows, few, kinds_of(shape));
}

/* The kernel for Hopper that backend "fa3" asks for: of low tiles where there is one, or of tall
 * ones, or NULL. */
static const mst_cuda_kernel *find_fa3(const mst_cuda *cuda, const mst_attn_shape *shape)
{
    for (int32_t rows = 64; !mst_cuda_attn_is_plain(shape) && rows <= 128; rows += 64) {
        const mst_cuda_kernel *kernel = mst_cuda_attn_find(cuda, shape, rows, false);
        if (kernel != NULL && kernel->major == 9)
            return kernel;
    }
    return NULL;
}

/* The same for a kernel that was asked for by name. */
static void find_wanted(const mst_cuda *cuda, const mst_attn_shape *shape, const char **symbol,
                        const char **reason)
{
    const mst_cuda_kernel *kernel = shape->wanted == MST_ATTN_FA3 ? find_fa3(cuda, shape)
                                    : mst_cuda_attn_is_plain(shape)
                                        ? NULL
                                        : mst_cuda_attn_find(cuda, shape, 64, false);
    *symbol = kernel != NULL ? kernel->symbol : NULL;
    if (shape->dtype == MSTAR_DTYPE_F32)
        *reason = "tensor cores take bf16 and f16, and desc.q_data_type is f32";
    else if (kernel != NULL)
        *reason = kernel->major != 9   ? "mma.sync: asked for by backend \"fa2\""
                  : !kernel->described ? "wgmma: asked for by backend \"fa3\""
                  : kernel->rows > 64
                      ? "wgmma: asked for by backend \"fa3\"; mma.sync where rows lie "
                        "off 16 bytes"
                      : "wgmma: asked for by backend \"fa3\"; without the copy engine "
                        "where rows lie off 16 bytes";
    else if (cuda->major != 9)
        *reason = "wgmma is of cards of compute capability 9.0, and this one is another";
    else
        *reason =
            "wgmma kernels are for head dims 49 to 64, 72, 80, 88, 96, 113 to 128 and 241 to 256";
}

void mst_cuda_attn_kernel(const mstar_device *device, const mst_attn_shape *shape,
                          const char **symbol, const char **reason)
{
    const mst_cuda *cuda = mst_cuda_of(device);
    if (shape->wanted != MST_ATTN_ANY) {
        find_wanted(cuda, shape, symbol, reason);
        return;
    }
    const mst_cuda_kernel *kernel = mst_cuda_attn_find(cuda, shape, 64, false);
    *symbol = kernel->symbol;
    if (shape->reference)
        *reason = "asked for by backend \"reference\"";
    else if (shape->dtype == MSTAR_DTYPE_F32)
        *reason = "f32 has no tensor-core kernel";
    else if (kernel->major == 9)
        *reason =
            kernel->head_dim > 128
                ? "wgmma, which cards of compute capability 9.0 have; without the copy engine "
                  "where rows lie off 16 bytes"
                : "wgmma, which cards of compute capability 9.0 have, at head dim 128 without the "
                  "copy engine where rows lie off 16 bytes; plans of short segments take "
                  "mma.sync";
    else if (cuda->major == 9)
        *reason = "mma.sync; at head dims 72, 80, 88 and 96 plans of many long segments take wgmma "
                  "in tall tiles";
    else
        *reason = "mma.sync; tile height and stages are chosen for each plan";
}

const mst_cuda_kernel *mst_cuda_attn_pick(const mst_cuda *cuda, const mst_attn_shape *shape,
                                          const mst_cuda_attn_tiles *tiles)
{
    bool plain = mst_cuda_attn_is_plain(shape), wgmma = shape->wanted != MST_ATTN_FA2;
    int32_t tile_head_dim = mst_cuda_attn_tile_head_dim(shape->head_dim), rows = 64;
    if (shape->wanted == MST_ATTN_FA3) {
        rows = find_fa3(cuda, shape)->rows;
    } else if (!plain) {
        rows = mst_cuda_attn_tile_rows(wgmma ? cuda->major : 0, tile_head_dim, tiles->of_64,
                                       tiles->of_128, shape->num_kv_heads, cuda->multiprocessors);
        if (mst_cuda_attn_prefers_sharing(tile_head_dim, tiles->of_64, tiles->shared,
                                          shape->num_kv_heads, cuda->multiprocessors))
            wgmma = false;
    }
    bool few = mst_cuda_attn_is_few(tile_head_dim, tiles->of_64 * shape->num_kv_heads,
                                    cuda->multiprocessors);
    const int64_t key_bytes = mst_cuda_attn_key_bytes(shape);
    kinds of = !wgmma ? BY_MMA
               : rows > 64 || mst_cuda_attn_is_fetched(tiles->whole_keys, key_bytes, cuda->l2_bytes)
                   ? DESCRIBED
                   : BY_WGMMA;
    return find(cuda, shape, rows, few, of);
}

const mst_cuda_kernel *mst_cuda_attn_undescribed(const mst_cuda *cuda, const mst_attn_shape *shape,
                                                 const mst_cuda_kernel *kernel)
{
    return kernel->described ? find(cuda, shape, kernel->rows, false, BY_WGMMA) : NULL;
}

const char *mst_cuda_attn_reason(const mstar_device *device, const mst_attn_shape *shape,
                                 const mst_cuda_kernel *kernel)
{
    const mst_cuda *cuda = mst_cuda_of(device);
    const bool any = shape->wanted == MST_ATTN_ANY;
    const char *symbol, *reason;
    if (any && kernel->described && kernel->rows > 64)
        return "wgmma in tall tiles, for a plan (a graph's ceilings) of many long segments; "
               "mma.sync where rows lie off 16 bytes";
    if (any && kernel->major == 0 && mst_cuda_attn_find(cuda, shape, 64, false)->major == 9)
        return "mma.sync, for a plan (a graph's ceilings) of short segments, which share its tiles";
    if (any && kernel->major == 9 && !kernel->described && may_describe(shape) &&
        kernel->stages == 1)
        return "wgmma, which cards of compute capability 9.0 have; without the copy engine, for a "
               "plan (a graph's ceilings) of segments beyond the second-level cache";
    mst_cuda_attn_kernel(device, shape, &symbol, &reason);
    return reason;
}
