/* support_mock_cuda.c - see the header. */
#include "support_mock_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fenv.h>

#include "mock_simt.h"
#include "support_check.h"
#include "support_mock_blas.h"
#include "support_mock_launch.h"
#include "support_mock_track.h"

static mock_cuda mock;

/* What a capture has recorded, and what graphs and executables hold. */
typedef struct mock_graph {
    mock_launch *launches;
    int64_t count;
} mock_graph;

/* Counts a call, and answers with the failure that was asked for when its turn has come. */
static int enter(mock_call call)
{
    mock.calls[call]++;
    if (mock.fail_after > 0 && mock.fail_call == call && --mock.fail_after == 0)
        return mock.fail_result;
    return 0;
}
#define ENTER(name)                      \
    do {                                 \
        int enter_ = enter(MOCK_##name); \
        if (enter_ != 0)                 \
            return enter_;               \
    } while (0)

/* A live handle; what it is does not matter. */
static int make(void **handle)
{
    *handle = calloc(1, 16);
    mock.live++;
    return 0;
}
static int drop(void *handle)
{
    free(handle);
    mock.live--;
    return 0;
}
static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static int m_init(unsigned flags)
{
    (void)flags;
    ENTER(init);
    return 0;
}
static int m_driver_version(int *version)
{
    ENTER(driver_version);
    *version = mock.version;
    return 0;
}
static int m_error_name(int result, const char **text)
{
    static char name[32];
    ENTER(error_name);
    (void)snprintf(name, sizeof name, "MOCK_ERROR_%d", result);
    *text = name;
    return 0;
}
static int m_error_string(int result, const char **text)
{
    (void)result;
    ENTER(error_string);
    *text = "the mock was told to fail";
    return 0;
}
static int m_device_count(int *count)
{
    ENTER(device_count);
    *count = mock.devices;
    return 0;
}
static int m_device_get(int *device, int ordinal)
{
    ENTER(device_get);
    *device = ordinal;
    return 0;
}
static int m_device_name(char *text, int bytes, int device)
{
    (void)device;
    ENTER(device_name);
    (void)snprintf(text, (size_t)bytes, "Mock GPU");
    return 0;
}
static int m_device_attribute(int *value, int attribute, int device)
{
    (void)device;
    ENTER(device_attribute);
    *value = attribute == MST_CUDA_ATTRIBUTE_MULTIPROCESSORS ? mock.multiprocessors
             : attribute == MST_CUDA_ATTRIBUTE_MAJOR         ? mock.major
             : attribute == MST_CUDA_ATTRIBUTE_L2_BYTES      ? 60 << 20
                                                             : 0;
    return 0;
}
static int m_context_retain(void **context, int device)
{
    (void)device;
    ENTER(context_retain);
    mock.live++;
    *context = &mock;
    return 0;
}
static int m_context_release(int device)
{
    (void)device;
    ENTER(context_release);
    mock.live--;
    return 0;
}
static int m_context_current(void **context)
{
    ENTER(context_current);
    *context = mock.is_current || mock.context_depth > 0 ? &mock : NULL;
    return 0;
}
static int m_context_push(void *context)
{
    ENTER(context_push);
    if (context != &mock)
        return MST_CUDA_INVALID_CONTEXT;
    mock.context_depth++;
    return 0;
}
static int m_context_pop(void **context)
{
    ENTER(context_pop);
    *context = &mock;
    mock.context_depth--;
    return 0;
}
static int m_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    ENTER(memory_info);
    *free_bytes = (size_t)mock.free_bytes;
    *total_bytes = (size_t)1 << 40;
    return 0;
}
static int m_memory_alloc(uint64_t *address, size_t bytes)
{
    ENTER(memory_alloc);
    if (mock.capturing != NULL && mock.capture_mode != MST_CUDA_CAPTURE_RELAXED)
        return MST_CUDA_CAPTURE_FIRST;
    if (bytes > (size_t)mock.free_bytes)
        return MST_CUDA_OUT_OF_MEMORY;
    *address = (uint64_t)(uintptr_t)track_memory(bytes, MST_CUDA_MEMORY_DEVICE);
    mock.live++;
    return *address == 0 ? MST_CUDA_OUT_OF_MEMORY : 0;
}
static int m_memory_free(uint64_t address)
{
    ENTER(memory_free);
    track_memory_gone(pointer(address));
    return drop(pointer(address));
}
static int m_memory_set(uint64_t address, unsigned char value, size_t bytes, void *stream)
{
    ENTER(memory_set);
    if (mock.capturing != NULL && mock.capturing == stream)
        mock_cuda_fault("memory is cleared inside a capture");
    track_work(stream);
    memset(pointer(address), value, bytes);
    return 0;
}
static int m_host_alloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER(host_alloc);
    *memory = track_memory(bytes, MST_CUDA_MEMORY_HOST);
    mock.live++;
    return *memory == NULL ? MST_CUDA_OUT_OF_MEMORY : 0;
}
static int m_host_free(void *memory)
{
    ENTER(host_free);
    track_memory_gone(memory);
    return drop(memory);
}
typedef struct mock_copy {
    void *to;
    const void *from;
    size_t bytes;
} mock_copy;
static void run_copy(const void *args)
{
    const mock_copy *copy = args;
    memcpy(copy->to, copy->from, copy->bytes);
}
static int m_copy(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    ENTER(copy);
    track_work(stream);
    const mock_copy copy = {pointer(to), pointer(from), bytes};
    if (mock.capturing == NULL || mock.capturing != stream) {
        run_copy(&copy);
        return 0;
    }
    mock.launches--; /* a node of the graph, and no kernel */
    return mock_cuda_call(stream, run_copy, &copy, sizeof copy);
}
static int m_pointer_attributes(unsigned count, int *attributes, void **values, uint64_t address)
{
    ENTER(pointer_attributes);
    for (unsigned i = 0; i < count; i++) {
        if (!track_attribute(pointer(address), attributes[i], mock.memory_ordinal, values[i]))
            return MST_CUDA_INVALID_VALUE;
    }
    return 0;
}
static int m_stream_create(void **stream, unsigned flags)
{
    (void)flags;
    ENTER(stream_create);
    return make(stream);
}
static int m_stream_destroy(void *stream)
{
    ENTER(stream_destroy);
    track_stream_gone(stream);
    return drop(stream);
}
static int m_stream_context(void *stream, void **context)
{
    ENTER(stream_context);
    if (stream == (void *)-1)
        return MST_CUDA_INVALID_HANDLE;
    *context = stream == (void *)-2 ? NULL : &mock;
    return 0;
}
static int m_stream_synchronize(void *stream)
{
    (void)stream;
    ENTER(stream_synchronize);
    return 0;
}
static int m_stream_wait_event(void *stream, void *event, unsigned flags)
{
    (void)flags;
    ENTER(stream_wait_event);
    track_wait(stream, event);
    return 0;
}
static int m_stream_capturing(void *stream, int *capturing)
{
    ENTER(stream_capturing);
    *capturing = mock.capturing != NULL && mock.capturing == stream;
    return 0;
}
static int m_event_create(void **event, unsigned flags)
{
    (void)flags;
    ENTER(event_create);
    *event = calloc(1, sizeof(track_event));
    mock.live++;
    return 0;
}
static int m_event_destroy(void *event)
{
    ENTER(event_destroy);
    return drop(event);
}
static int m_event_record(void *event, void *stream)
{
    ENTER(event_record);
    track_record(event, stream);
    return 0;
}
static int m_event_query(void *event)
{
    (void)event;
    ENTER(event_query);
    return mock.events_pending ? MST_CUDA_NOT_READY : 0;
}
static int m_event_synchronize(void *event)
{
    (void)event;
    ENTER(event_synchronize);
    return 0;
}
static int m_event_elapsed(float *ms, void *start, void *end)
{
    (void)start;
    (void)end;
    ENTER(event_elapsed);
    *ms = 1.5F;
    return 0;
}
static int m_module_load(void **module, const void *image)
{
    (void)image;
    ENTER(module_load);
    return make(module);
}
static int m_module_unload(void *module)
{
    ENTER(module_unload);
    return drop(module);
}
/* A function is its own name in the backend's static list. */
static int m_module_function(void **function, void *module, const char *name)
{
    (void)module;
    ENTER(module_function);
    for (int32_t i = 0; i < mst_cuda_num_kernels(); i++) {
        if (strcmp(mst_cuda_kernel_at(i)->symbol, name) == 0) {
            *function = (void *)(uintptr_t)mst_cuda_kernel_at(i);
            return 0;
        }
    }
    return 500;
}
static int m_function_set(void *function, int attribute, int value)
{
    (void)function;
    (void)attribute;
    (void)value;
    ENTER(function_set);
    return 0;
}
static int m_function_get(int *value, int attribute, void *function)
{
    (void)function;
    ENTER(function_get);
    if (attribute != MST_CUDA_FUNCTION_PTX_VERSION)
        return MST_CUDA_INVALID_VALUE;
    *value = mock.ptx_version;
    return 0;
}
static int m_function_occupancy(int *blocks, void *function, int threads, size_t shared_bytes)
{
    (void)function;
    (void)threads;
    ENTER(function_occupancy);
    *blocks = shared_bytes > 0 ? (int)(227 * 1024 / (shared_bytes + 1024)) : 16;
    return 0;
}

/* ---- launches -------------------------------------------------------------------------------- */

void mock_cuda_fault(const char *text)
{
    if (mock.fault[0] == '\0')
        (void)snprintf(mock.fault, sizeof mock.fault, "%s", text);
}

/* A card does not compute by the host's floating-point mode. */
static int run(const mock_launch *launch)
{
    fenv_t mode;
    (void)fegetenv(&mode);
    (void)fesetenv(FE_DFL_ENV);
    int result = 0;
    if (launch->kernel == NULL)
        launch->call(launch->args.call);
    else
        result = mock_run_kernel(launch);
    (void)fesetenv(&mode);
    return result;
}

static int run_or_record(void *stream, const mock_launch *launch)
{
    mock.launches++;
    track_work(stream);
    if (mock.capturing == NULL || mock.capturing != stream)
        return run(launch);
    mock_graph *graph = mock.recorded;
    graph->launches =
        realloc(graph->launches, (size_t)(graph->count + 1) * sizeof *graph->launches);
    memcpy(&graph->launches[graph->count++], launch, sizeof *launch);
    return 0;
}

int mock_cuda_call(void *stream, mock_call_function *call, const void *args, size_t bytes)
{
    mock_launch launch = {.call = call};
    memcpy(launch.args.call, args, bytes);
    return run_or_record(stream, &launch);
}

static int m_tensor_map_encode(void *map, int type, uint32_t rank, void *address,
                               const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                               const uint32_t *steps, int interleave, int swizzle, int promotion,
                               int fill)
{
    ENTER(tensor_map_encode);
    return mock.context_depth == 0 ? MST_CUDA_INVALID_CONTEXT
                                   : simt_map_encode(map, type, rank, address, sizes, strides, box,
                                                     steps, interleave, swizzle, promotion, fill);
}
static int launch(const mst_cuda_launch_config *c, void *function, void **arguments)
{
    mock_launch launch = {
        .kernel = function, .grid_x = c->grid_x, .grid_y = c->grid_y, .threads = c->block_x};
    memcpy(&launch.args, arguments[0], mock_args_bytes(launch.kernel));
    mock.grid = c->grid_x;
    mock.shared_bytes = c->shared_bytes;
    mock.overlaps = c->num_attributes > 0;
    (void)snprintf(mock.kernel, sizeof mock.kernel, "%s", launch.kernel->symbol);
    mock_check_launch(c, launch.kernel);
    return run_or_record(c->stream, &launch);
}

static int m_launch_with(const mst_cuda_launch_config *config, void *function, void **arguments,
                         void **extra)
{
    (void)extra;
    ENTER(launch_with);
    return launch(config, function, arguments);
}
/* ---- graphs: one capture at a time ----------------------------------------------------------- */

static int drop_graph(mock_graph *graph)
{
    free(graph->launches);
    return drop(graph);
}

static int m_capture_mode(int *mode)
{
    ENTER(capture_mode);
    int former = mock.capture_mode;
    mock.capture_mode = *mode;
    *mode = former;
    return 0;
}
static int m_capture_begin(void *stream, int mode)
{
    ENTER(capture_begin);
    if (mock.capturing != NULL)
        return MST_CUDA_CAPTURE_FIRST;
    mock.capturing = stream;
    mock.capture_mode = mode;
    return make((void **)&mock.recorded);
}
static int m_capture_end(void *stream, void **graph)
{
    (void)stream;
    *graph = NULL;
    mock.capturing = NULL;
    int failed = enter(MOCK_capture_end);
    if (failed != 0)
        (void)drop_graph(mock.recorded);
    else
        *graph = mock.recorded;
    mock.recorded = NULL;
    return failed;
}
static int m_graph_nodes(void *graph, void **nodes, size_t *count)
{
    (void)nodes;
    ENTER(graph_nodes);
    *count = (size_t)((const mock_graph *)graph)->count;
    return 0;
}
static int m_graph_instantiate(void **executable, void *graph, unsigned long long flags)
{
    const mock_graph *from = graph;
    (void)flags;
    ENTER(graph_instantiate);
    (void)make(executable);
    mock_graph *to = *executable;
    to->launches = calloc((size_t)from->count + 1, sizeof *to->launches);
    to->count = from->count;
    if (from->count > 0) /* an empty graph has no list */
        memcpy(to->launches, from->launches, (size_t)from->count * sizeof *to->launches);
    mock.free_bytes -= mock.graph_bytes;
    return 0;
}
static int m_graph_launch(void *executable, void *stream)
{
    const mock_graph *graph = executable;
    ENTER(graph_launch);
    track_work(stream);
    for (int64_t i = 0; i < graph->count; i++)
        (void)run(&graph->launches[i]);
    return 0;
}
static int m_graph_exec_destroy(void *executable)
{
    ENTER(graph_exec_destroy);
    mock.free_bytes += mock.graph_bytes;
    return drop_graph(executable);
}
static int m_graph_destroy(void *graph)
{
    ENTER(graph_destroy);
    return drop_graph(graph);
}

/* ---- the table ------------------------------------------------------------------------------- */

mock_cuda *mock_cuda_install(void)
{
    static const mst_cuda_driver driver = {
#define MOCK_MEMBER(name, symbol, arguments) .name = m_##name,
        MST_CUDA_FUNCTIONS(MOCK_MEMBER)
#undef MOCK_MEMBER
    };
    mock = (mock_cuda){.version = 99000,
                       .devices = 1,
                       .major = 9,
                       .ptx_version = 90,
                       .multiprocessors = 132,
                       .free_bytes = (int64_t)1 << 34};
    track_reset();
    mst_cuda_driver_replace(&driver);
    mock_blas_install();
    return &mock;
}

mock_cuda *mock_cuda_now(void)
{
    return &mock;
}

void mock_cuda_remove(void)
{
    mst_cuda_driver_replace(NULL);
    mock_blas_remove();
    assert_int_equal(mock.live, 0);
    assert_int_equal(mock.context_depth, 0);
    assert_string_equal(mock.fault, "");
}

mstar_status mock_cuda_open(mstar_device **device)
{
    return mock_cuda_open_threads(1, device);
}

mstar_status mock_cuda_open_threads(int32_t threads, mstar_device **device)
{
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = threads;
    mstar_device *made = calloc(1, sizeof *made);
    made->backend = mst_cuda_backend();
    mstar_status status = made->backend->open(made, &desc);
    if (status != MSTAR_OK) {
        free(made);
        return status;
    }
    *device = made;
    return MSTAR_OK;
}

void mock_cuda_close(mstar_device *device)
{
    assert_int_equal(atomic_load(&device->users), 0);
    device->backend->close(device);
    free(device);
}
