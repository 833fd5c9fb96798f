/*
 * cuda_driver.h - the one table of driver functions, and what a failed one means.
 *
 * libcuda.so.1 is opened at run time, so that one binary serves machines with and without a card.
 * Everything in src/cuda calls the driver through this table; tests put a mock in its place. The
 * names and values below are the driver's own interface, written out so that a build needs none of
 * its headers. Streams, events, modules and functions are handles; device addresses are integers.
 */
#ifndef MST_CUDA_DRIVER_H
#define MST_CUDA_DRIVER_H

#include "base/base.h"

/* What a launch may ask for beside its size. */
typedef struct mst_cuda_launch_attribute {
    int32_t id, padding;
    union {
        uint64_t words[8];
        int32_t overlap;
    } value;
} mst_cuda_launch_attribute;
enum { MST_CUDA_LAUNCH_OVERLAP = 6 }; /* begin before what is ahead in the stream has ended */

typedef struct mst_cuda_launch_config {
    uint32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void *stream;
    mst_cuda_launch_attribute *attributes;
    uint32_t num_attributes;
} mst_cuda_launch_config;

#define MST_CUDA_FUNCTIONS(X)                                                                    \
    X(init, "cuInit", (unsigned flags))                                                          \
    X(driver_version, "cuDriverGetVersion", (int *version))                                      \
    X(error_name, "cuGetErrorName", (int result, const char **text))                             \
    X(error_string, "cuGetErrorString", (int result, const char **text))                         \
    X(device_count, "cuDeviceGetCount", (int *count))                                            \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                     \
    X(device_name, "cuDeviceGetName", (char *text, int bytes, int device))                       \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))         \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                  \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                             \
    X(context_current, "cuCtxGetCurrent", (void **context))                                      \
    X(context_push, "cuCtxPushCurrent_v2", (void *context))                                      \
    X(context_pop, "cuCtxPopCurrent_v2", (void **context))                                       \
    X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))               \
    X(memory_alloc, "cuMemAlloc_v2", (uint64_t * address, size_t bytes))                         \
    X(memory_free, "cuMemFree_v2", (uint64_t address))                                           \
    X(memory_set, "cuMemsetD8Async",                                                             \
      (uint64_t address, unsigned char value, size_t bytes, void *stream))                       \
    X(host_alloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))               \
    X(host_free, "cuMemFreeHost", (void *memory))                                                \
    X(copy, "cuMemcpyAsync", (uint64_t to, uint64_t from, size_t bytes, void *stream))           \
    X(pointer_attributes, "cuPointerGetAttributes",                                              \
      (unsigned count, int *attributes, void **values, uint64_t address))                        \
    X(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                          \
    X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                      \
    X(stream_context, "cuStreamGetCtx", (void *stream, void **context))                          \
    X(stream_synchronize, "cuStreamSynchronize", (void *stream))                                 \
    X(stream_wait_event, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags))       \
    X(stream_capturing, "cuStreamIsCapturing", (void *stream, int *capturing))                   \
    X(event_create, "cuEventCreate", (void **event, unsigned flags))                             \
    X(event_destroy, "cuEventDestroy_v2", (void *event))                                         \
    X(event_record, "cuEventRecord", (void *event, void *stream))                                \
    X(event_query, "cuEventQuery", (void *event))                                                \
    X(event_synchronize, "cuEventSynchronize", (void *event))                                    \
    X(event_elapsed, "cuEventElapsedTime", (float *ms, void *start, void *end))                  \
    X(module_load, "cuModuleLoadData", (void **module, const void *image))                       \
    X(module_unload, "cuModuleUnload", (void *module))                                           \
    X(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name)) \
    X(function_set, "cuFuncSetAttribute", (void *function, int attribute, int value))            \
    X(function_get, "cuFuncGetAttribute", (int *value, int attribute, void *function))           \
    X(function_occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                         \
      (int *blocks, void *function, int threads, size_t shared_bytes))                           \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                            \
    X(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                        \
    X(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                           \
    X(graph_nodes, "cuGraphGetNodes", (void *graph, void **nodes, size_t *count))                \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                          \
      (void **executable, void *graph, unsigned long long flags))                                \
    X(graph_launch, "cuGraphLaunch", (void *executable, void *stream))                           \
    X(graph_exec_destroy, "cuGraphExecDestroy", (void *executable))                              \
    X(graph_destroy, "cuGraphDestroy", (void *graph))                                            \
    X(tensor_map_encode, "cuTensorMapEncodeTiled",                                               \
      (void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,                 \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,      \
       int swizzle, int promotion, int fill))                                                    \
    X(launch_with, "cuLaunchKernelEx",                                                           \
      (const mst_cuda_launch_config *config, void *function, void **arguments, void **extra))

/* Each returns a CUresult: 0 is success. */
typedef struct mst_cuda_driver {
#define MST_CUDA_MEMBER(name, symbol, arguments) int(*name) arguments;
    MST_CUDA_FUNCTIONS(MST_CUDA_MEMBER)
#undef MST_CUDA_MEMBER
} mst_cuda_driver;

enum {
    MST_CUDA_SUCCESS = 0,
    MST_CUDA_INVALID_VALUE = 1,
    MST_CUDA_OUT_OF_MEMORY = 2,
    MST_CUDA_NO_DEVICE = 100,
    MST_CUDA_INVALID_DEVICE = 101,
    MST_CUDA_INVALID_IMAGE = 200,
    MST_CUDA_INVALID_CONTEXT = 201,
    MST_CUDA_NO_BINARY = 209,
    MST_CUDA_UNSUPPORTED_PTX = 222,
    MST_CUDA_INVALID_HANDLE = 400,
    MST_CUDA_NOT_READY = 600,
    MST_CUDA_CAPTURE_FIRST = 900, /* what a stream that captures refuses */
    MST_CUDA_CAPTURE_LAST = 908
};

enum { /* device attributes */
       MST_CUDA_ATTRIBUTE_MULTIPROCESSORS = 16,
       MST_CUDA_ATTRIBUTE_L2_BYTES = 38,
       MST_CUDA_ATTRIBUTE_MAJOR = 75,
       MST_CUDA_ATTRIBUTE_MINOR = 76,
       MST_CUDA_ATTRIBUTE_SHARED_BYTES = 97 /* of a block that asks for it */
};
enum { MST_CUDA_POINTER_MEMORY_TYPE = 2, MST_CUDA_POINTER_ORDINAL = 9 };
enum { MST_CUDA_MEMORY_HOST = 1, MST_CUDA_MEMORY_DEVICE = 2 };
enum { /* of a tensor map */
       MST_CUDA_MAP_F16 = 6,
       MST_CUDA_MAP_BF16 = 9,
       MST_CUDA_MAP_SWIZZLE_128 = 3,
       MST_CUDA_MAP_PROMOTE_256 = 3
};
enum { /* of a function */
       MST_CUDA_FUNCTION_PTX_VERSION = 5,
       MST_CUDA_FUNCTION_SHARED_BYTES = 8,
       MST_CUDA_FUNCTION_CARVEOUT = 9
};
enum { MST_CUDA_CAPTURE_THREAD_LOCAL = 1, MST_CUDA_CAPTURE_RELAXED = 2 };
enum { MST_CUDA_STREAM_NON_BLOCKING = 1, MST_CUDA_EVENT_NO_TIMING = 2 };

/* The oldest driver that is taken: that of the toolkit which built the kernels. */
#ifndef MST_CUDA_MIN_DRIVER
#define MST_CUDA_MIN_DRIVER 12000
#endif

/*
 * The table: libcuda.so.1, opened on the first call and kept. DEVICE_UNAVAILABLE says what is
 * missing: the library, a function, a driver that is new enough. Any thread.
 */
mstar_status mst_cuda_driver_get(const mst_cuda_driver **driver);
/* For tests: this table instead; NULL: the real one again. Not while a device is open. */
void mst_cuda_driver_replace(const mst_cuda_driver *driver);

/* MSTAR_OK for 0, else a failure that names what was asked and the driver's own words. */
mstar_status mst_cuda_check(const mst_cuda_driver *driver, int result, const char *what);

#endif
