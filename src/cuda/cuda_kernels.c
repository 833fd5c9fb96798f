/*
 * cuda_kernels.c - the embedded kernels: their list, and loading them on first use.
 *
 * An image is a fatbin that the build puts into the library, one for each head dim and one for
 * rows; it holds machine code for the cards it was built for and PTX for later ones. A module is
 * loaded when a kernel of it is first asked for, which is when a wrapper or a stream is created,
 * never in a run.
 */
#include <string.h>

#include "cuda/attn_args.h"
#include "cuda/cuda.h"
#include "cuda/cuda_images.h"
#include "cuda/linear_args.h"

enum {
#define MST_IMAGE(name) IMAGE_##name,
    MST_CUDA_IMAGES(MST_IMAGE)
#undef MST_IMAGE
        NUM_IMAGES
};

/* What attn_tile.cuh computes for its tile. */
#define PITCH(HD) (((HD) / 8 + 1) * 16)
#define SHARED(HD, BN, MT, STAGES) (64 * (MT)*PITCH(HD) + 2 * (STAGES) * (BN)*PITCH(HD))
#define SLOT(HD, MT) (128 * (MT) * ((HD) / 2 + 4))

#define ATTN_LINE(TYPE, DTYPE, HD, BN, MT, STAGES)                               \
    {.op = "attention",                                                          \
     .symbol = "mst_attn_" #TYPE "_hd" #HD "_m" #MT "n" #BN "s" #STAGES "_sm80", \
     .module = IMAGE_attn_hd##HD,                                                \
     .dtype = DTYPE,                                                             \
     .head_dim = HD,                                                             \
     .block_keys = BN,                                                           \
     .rows = 64 * (MT),                                                          \
     .stages = STAGES,                                                           \
     .threads = 128,                                                             \
     .shared_bytes = SHARED(HD, BN, MT, STAGES),                                 \
     .slot_floats = SLOT(HD, MT),                                                \
     .waits = true},
#define GROUP_SHARED(HD, BN, STAGES) (64 * (HD)*2 + 2 * (STAGES) * (BN) * (HD)*2 + 192)
#define GROUP_LINE(TYPE, DTYPE, HD, BN, STAGES, KIND, BULK)                        \
    {.op = "attention",                                                            \
     .symbol = "mst_attn_" #TYPE "_hd" #HD "_" #KIND "1n" #BN "s" #STAGES "_sm90", \
     .module = IMAGE_attn_group,                                                   \
     .dtype = DTYPE,                                                               \
     .head_dim = HD,                                                               \
     .block_keys = BN,                                                             \
     .rows = 64,                                                                   \
     .stages = STAGES,                                                             \
     .threads = 128,                                                               \
     .shared_bytes = GROUP_SHARED(HD, BN, STAGES),                                 \
     .slot_floats = SLOT(HD, 1),                                                   \
     .major = 9,                                                                   \
     .described = BULK,                                                            \
     .waits = true},
#define TALL_LINE(TYPE, DTYPE, HD, GROUPS, STAGES)                              \
    {.op = "attention",                                                         \
     .symbol = "mst_attn_" #TYPE "_hd" #HD "_g" #GROUPS "n64s" #STAGES "_sm90", \
     .module = IMAGE_attn_hopper,                                               \
     .dtype = DTYPE,                                                            \
     .head_dim = HD,                                                            \
     .block_keys = 64,                                                          \
     .rows = 64 * (GROUPS),                                                     \
     .stages = STAGES,                                                          \
     .threads = 128 * ((GROUPS) + 1),                                           \
     .shared_bytes = MST_CUDA_HOPPER_SHARED(HD, GROUPS, STAGES),                \
     .slot_floats = SLOT(HD, GROUPS),                                           \
     .major = 9,                                                                \
     .described = true},
#define REFERENCE_LINE(TYPE, DTYPE)                 \
    {.op = "attention",                             \
     .symbol = "mst_attn_" #TYPE "_reference_sm80", \
     .module = IMAGE_attn_reference,                \
     .dtype = DTYPE,                                \
     .block_keys = 32,                              \
     .rows = 64,                                    \
     .threads = 128},

#define ROW_KERNEL(OP, NAME)         \
    {.op = #OP,                      \
     .symbol = "mst_" #NAME "_sm80", \
     .module = IMAGE_rows,           \
     .threads = 128,                 \
     .waits = true},
#define ROW_LINE(NAME) ROW_KERNEL(NAME, NAME)

#define LINEAR_LINE(NAME, KIND, TYPE, DTYPE)         \
    {.op = "linear",                                 \
     .symbol = "mst_" #NAME "_" #TYPE "_sm90",       \
     .module = IMAGE_linear,                         \
     .dtype = DTYPE,                                 \
     .rows = 128,                                    \
     .threads = MST_CUDA_LINEAR_##KIND##THREADS,     \
     .shared_bytes = MST_CUDA_LINEAR_##KIND##SHARED, \
     .waits = true},
/* bf16 and f16, for many tiles, then for few */
#define LINEAR_LINES(NAME, KIND)                    \
    LINEAR_LINE(NAME, KIND, bf16, MSTAR_DTYPE_BF16) \
    LINEAR_LINE(NAME, KIND, f16, MSTAR_DTYPE_F16)

static const mst_cuda_kernel kernels[] = {
    /* in the order of mst_cuda_row_op */
    ROW_LINE(layer_norm) ROW_LINE(rms_norm) ROW_LINE(normalize) ROW_LINE(activation)
        ROW_LINE(embedding) ROW_LINE(pooling) ROW_LINE(rotary)
            ROW_KERNEL(layer_norm, layer_norm_few) ROW_KERNEL(rms_norm, rms_norm_few)
                LINEAR_LINES(linear, ) LINEAR_LINES(linear_few, FEW_)
                    REFERENCE_LINE(f32, MSTAR_DTYPE_F32) REFERENCE_LINE(bf16, MSTAR_DTYPE_BF16)
                        REFERENCE_LINE(f16, MSTAR_DTYPE_F16)
#define MST_ATTN(HD, BN, MT, STAGES, BLOCKS)              \
    ATTN_LINE(bf16, MSTAR_DTYPE_BF16, HD, BN, MT, STAGES) \
    ATTN_LINE(f16, MSTAR_DTYPE_F16, HD, BN, MT, STAGES)
#include "cuda/cuda_attn.def"
#undef MST_ATTN
#define MST_ATTN_GROUP(HD, BN, STAGES, BLOCKS)                   \
    GROUP_LINE(bf16, MSTAR_DTYPE_BF16, HD, BN, STAGES, m, false) \
    GROUP_LINE(f16, MSTAR_DTYPE_F16, HD, BN, STAGES, m, false)
#define MST_ATTN_BULK(HD, BN, STAGES, BLOCKS)                   \
    GROUP_LINE(bf16, MSTAR_DTYPE_BF16, HD, BN, STAGES, c, true) \
    GROUP_LINE(f16, MSTAR_DTYPE_F16, HD, BN, STAGES, c, true)
#include "cuda/cuda_attn_group.def"
#undef MST_ATTN_GROUP
#undef MST_ATTN_BULK
#define MST_ATTN_TALL(HD, GROUPS, STAGES)                 \
    TALL_LINE(bf16, MSTAR_DTYPE_BF16, HD, GROUPS, STAGES) \
    TALL_LINE(f16, MSTAR_DTYPE_F16, HD, GROUPS, STAGES)
#include "cuda/cuda_attn_tall.def"
#undef MST_ATTN_TALL
};
#define NUM_KERNELS ((int32_t)(sizeof kernels / sizeof kernels[0]))
_Static_assert(sizeof kernels / sizeof kernels[0] <= MST_CUDA_MAX_KERNELS, "too many kernels");
_Static_assert((int)NUM_IMAGES <= MST_CUDA_MAX_MODULES, "too many images");

static const void *const images[NUM_IMAGES] = {
#define MST_IMAGE(name) [IMAGE_##name] = MST_CUDA_IMAGE(name),
    MST_CUDA_IMAGES(MST_IMAGE)
#undef MST_IMAGE
};

int32_t mst_cuda_num_kernels(void)
{
    return NUM_KERNELS;
}

const mst_cuda_kernel *mst_cuda_kernel_at(int32_t index)
{
    return index >= 0 && index < NUM_KERNELS ? &kernels[index] : NULL;
}

int32_t mst_cuda_kernel_index(const mst_cuda_kernel *kernel)
{
    return (int32_t)(kernel - kernels);
}

const mst_cuda_kernel *mst_cuda_row_kernel(mst_cuda_row_op op)
{
    return &kernels[op];
}

const mst_cuda_kernel *mst_cuda_linear_kernel_of(mstar_dtype dtype, bool few)
{
    return &kernels[MST_CUDA_ROW_OPS + 2 * few + (dtype == MSTAR_DTYPE_F16)];
}

/* From which on a kernel can wait for the one before it, in graphs too: compute capability times
 * ten, and driver. */
#define WAITS_FROM 90
#define WAITS_FROM_DRIVER 12030

/* PTX of an older card, compiled for this one, does not wait. */
static mstar_status find_overlap(const mst_cuda *cuda, const mst_cuda_kernel *kernel, void *handle,
                                 bool *overlaps)
{
    const mst_cuda_driver *driver = cuda->driver;
    int ptx = 0, version = 0;
    *overlaps = false;
    if (!kernel->waits || cuda->major < WAITS_FROM / 10)
        return MSTAR_OK;
    MST_TRY(mst_cuda_check(driver, driver->driver_version(&version), kernel->symbol));
    MST_TRY(mst_cuda_check(
        driver, driver->function_get(&ptx, MST_CUDA_FUNCTION_PTX_VERSION, handle), kernel->symbol));
    *overlaps = ptx >= WAITS_FROM && version >= WAITS_FROM_DRIVER;
    return MSTAR_OK;
}

/* Shared memory of a block that has a multiprocessor of compute capability 9.0 to itself: over half
 * of 228 KB. */
#define ALONE_BYTES (116 << 10)

static int32_t alone_bytes_of(const mst_cuda *cuda, const mst_cuda_kernel *kernel)
{
    bool others_fit = kernel->shared_bytes > 0 && kernel->shared_bytes < ALONE_BYTES;
    return cuda->major == 9 && kernel->waits && others_fit ? ALONE_BYTES : 0;
}

static mstar_status load_function(mst_cuda *cuda, const mst_cuda_kernel *kernel,
                                  mst_cuda_function *function)
{
    const mst_cuda_driver *driver = cuda->driver;
    void **module = &cuda->modules[kernel->module];
    if (*module == NULL)
        MST_TRY(mst_cuda_check(driver, driver->module_load(module, images[kernel->module]),
                               "loading the kernels of this build"));
    void *handle = NULL;
    MST_TRY(mst_cuda_check(driver, driver->module_function(&handle, *module, kernel->symbol),
                           kernel->symbol));
    const int32_t alone = alone_bytes_of(cuda, kernel);
    if (kernel->shared_bytes > 0) {
        MST_TRY(mst_cuda_check(driver,
                               driver->function_set(handle, MST_CUDA_FUNCTION_SHARED_BYTES,
                                                    alone > 0 ? alone : kernel->shared_bytes),
                               kernel->symbol));
        MST_TRY(mst_cuda_check(
            driver, driver->function_set(handle, MST_CUDA_FUNCTION_CARVEOUT, 100), kernel->symbol));
    }
    bool overlaps;
    MST_TRY(find_overlap(cuda, kernel, handle, &overlaps));
    int blocks = 0;
    MST_TRY(mst_cuda_check(
        driver,
        driver->function_occupancy(&blocks, handle, kernel->threads, (size_t)kernel->shared_bytes),
        kernel->symbol));
    *function = (mst_cuda_function){handle, blocks < 1 ? 1 : blocks, overlaps, alone};
    return MSTAR_OK;
}

mstar_status mst_cuda_function_get(mst_cuda *cuda, const mst_cuda_kernel *kernel,
                                   mst_cuda_function *function)
{
    mst_cuda_function *known = &cuda->functions[kernel - kernels];
    mstar_status status = MSTAR_OK;
    (void)pthread_mutex_lock(&cuda->lock);
    if (known->handle == NULL)
        status = load_function(cuda, kernel, known);
    *function = *known;
    (void)pthread_mutex_unlock(&cuda->lock);
    return status;
}

mstar_status mst_cuda_launch(const mst_cuda *cuda, const mst_cuda_kernel *kernel,
                             mst_cuda_grid grid, void *stream, void *args)
{
    const mst_cuda_function *function = &cuda->functions[kernel - kernels];
    const bool alone = grid.alone && function->alone_bytes > 0;
    mst_cuda_launch_attribute overlap = {.id = MST_CUDA_LAUNCH_OVERLAP, .value.overlap = 1};
    mst_cuda_launch_config config = {
        .grid_x = (uint32_t)grid.x,
        .grid_y = (uint32_t)grid.y,
        .grid_z = 1,
        .block_x = (uint32_t)grid.threads,
        .block_y = 1,
        .block_z = 1,
        .shared_bytes = (uint32_t)(alone ? function->alone_bytes : kernel->shared_bytes),
        .stream = stream,
        .attributes = &overlap,
        .num_attributes = function->overlaps ? 1 : 0};
    void *arguments[] = {args};
    return mst_cuda_check(cuda->driver,
                          cuda->driver->launch_with(&config, function->handle, arguments, NULL),
                          kernel->symbol);
}

void mst_cuda_modules_unload(mst_cuda *cuda)
{
    for (int32_t i = 0; i < NUM_IMAGES; i++) {
        if (cuda->modules[i] != NULL)
            (void)cuda->driver->module_unload(cuda->modules[i]);
        cuda->modules[i] = NULL;
    }
    memset(cuda->functions, 0, sizeof cuda->functions);
}

/* The products, which are the library's kernels. */
#define PRODUCT(type)                                                \
    {                                                                \
        .op = "linear", .dtype = #type, .symbol = "cublaslt_" #type, \
        .reason = "cuBLASLt, opened when a first product is made"    \
    }
static const mstar_kernel_info products[] = {PRODUCT(f32), PRODUCT(bf16), PRODUCT(f16)};
#define NUM_PRODUCTS ((int32_t)(sizeof products / sizeof products[0]))

static const char *row_reason(const mstar_device *device, int32_t index)
{
    mst_cuda *cuda = mst_cuda_of(device);
    (void)pthread_mutex_lock(&cuda->lock);
    mst_cuda_function function = cuda->functions[index];
    (void)pthread_mutex_unlock(&cuda->lock);
    if (function.handle == NULL)
        return "one kernel for f32, bf16 and f16; loaded with the first stream";
    return function.overlaps ? "one kernel for f32, bf16 and f16; begins while the one before ends"
                             : "one kernel for f32, bf16 and f16; begins after the one before: to "
                               "wait itself it needs sm_90 and driver 12.3";
}

mstar_status mst_cuda_query_kernel(const mstar_device *device, int32_t index,
                                   mstar_kernel_info *info)
{
    if (index >= NUM_KERNELS + NUM_PRODUCTS)
        return mst_fail(MSTAR_NOT_FOUND, "index is %d; this device has %d kernels", index,
                        NUM_KERNELS + NUM_PRODUCTS);
    if (index >= NUM_KERNELS) {
        *info = products[index - NUM_KERNELS];
        return MSTAR_OK;
    }
    info->op = kernels[index].op;
    info->symbol = kernels[index].symbol;
    if (index < MST_CUDA_ROW_OPS) {
        info->dtype = "any";
        info->reason = row_reason(device, index);
        return MSTAR_OK;
    }
    info->dtype = mstar_dtype_name(kernels[index].dtype);
    if (kernels[index].module == IMAGE_linear)
        info->reason = mst_cuda_of(device)->major == 9
                           ? "wgmma: what cuBLASLt cannot store in one launch"
                           : "not used: wgmma is sm_90's; a row kernel finishes cuBLASLt's result";
    else if (kernels[index].module == IMAGE_attn_group)
        info->reason =
            kernels[index].described ? "wgmma and the copy engine, sm_90" : "wgmma, sm_90";
    else if (kernels[index].described)
        info->reason = "wgmma and the copy engine, sm_90: plans of many long segments";
    else
        info->reason = kernels[index].head_dim == 0 ? "f32, or asked for by name"
                                                    : "mma.sync, sm_80 and newer";
    return MSTAR_OK;
}
