/* support_mock_cuda.c - see the header. */
#include "support_mock_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_check.h"

static mock_cuda mock;

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
    *value = attribute == MST_CUDA_ATTRIBUTE_MULTIPROCESSORS ? 132
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
    if (bytes > (size_t)mock.free_bytes)
        return MST_CUDA_OUT_OF_MEMORY;
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == NULL)
        return MST_CUDA_OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);
    *address = (uint64_t)(uintptr_t)memory;
    mock.live++;
    return 0;
}
static int m_memory_free(uint64_t address)
{
    ENTER(memory_free);
    return drop(pointer(address));
}
static int m_memory_set(uint64_t address, unsigned char value, size_t bytes, void *stream)
{
    (void)stream;
    ENTER(memory_set);
    memset(pointer(address), value, bytes);
    return 0;
}
static int m_host_alloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER(host_alloc);
    *memory = malloc(bytes);
    mock.live++;
    return *memory == NULL ? MST_CUDA_OUT_OF_MEMORY : 0;
}
static int m_host_free(void *memory)
{
    ENTER(host_free);
    return drop(memory);
}
static int m_copy(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    (void)stream;
    ENTER(copy);
    memcpy(pointer(to), pointer(from), bytes);
    return 0;
}
/* Nothing is known, as of pageable memory: no failure. */
static int m_pointer_attributes(unsigned count, int *attributes, void **values, uint64_t address)
{
    (void)address;
    ENTER(pointer_attributes);
    for (unsigned i = 0; i < count; i++) {
        if (attributes[i] != MST_CUDA_POINTER_MEMORY_TYPE)
            return MST_CUDA_INVALID_VALUE;
        memset(values[i], 0, sizeof(unsigned));
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
    (void)stream;
    (void)event;
    (void)flags;
    ENTER(stream_wait_event);
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
    return make(event);
}
static int m_event_destroy(void *event)
{
    ENTER(event_destroy);
    return drop(event);
}
static int m_event_record(void *event, void *stream)
{
    (void)event;
    (void)stream;
    ENTER(event_record);
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
static int m_function_occupancy(int *blocks, void *function, int threads, size_t shared_bytes)
{
    (void)function;
    (void)threads;
    ENTER(function_occupancy);
    *blocks = shared_bytes > 0 ? (int)(227 * 1024 / (shared_bytes + 1024)) : 16;
    return 0;
}

/* ---- launches -------------------------------------------------------------------------------- */

typedef struct mock_launch {
    mst_cuda_attn_args args;
    const mst_cuda_kernel *kernel;
} mock_launch;

static void fault(const char *text)
{
    if (mock.fault[0] == '\0')
        (void)snprintf(mock.fault, sizeof mock.fault, "%s", text);
}

/* One query row of one head, gathered over all items that hold a part of it. */
typedef struct mock_row {
    double max, sum, out[256];
    int64_t keys; /* seen so far, each once */
} mock_row;

static void see(const mock_launch *launch, const mst_cuda_attn_item *item, int32_t token,
                int64_t head, mock_row *row)
{
    const mst_cuda_attn_args *a = &launch->args;
    mstar_dtype dtype = launch->kernel->dtype;
    int64_t kv_head = head / a->group;
    int64_t q = ((int64_t)item->q_first + token) * a->q_row_stride + head * a->q_head_stride;
    int64_t diagonal = (int64_t)item->lk - item->lq + token;
    double scale = (double)a->scale_log2 * (a->negative ? -1.0 : 1.0) * 0.6931471805599453;
    for (int64_t key = item->key_begin; key < item->key_end; key++) {
        if ((a->header->causal && key > diagonal) ||
            (a->window_left != MST_CUDA_NO_WINDOW && key < diagonal - a->window_left) ||
            (a->window_right != MST_CUDA_NO_WINDOW && key > diagonal + a->window_right))
            continue;
        int64_t k = (item->kv_first + key) * a->k_row_stride + kv_head * a->k_head_stride;
        int64_t v = (item->kv_first + key) * a->v_row_stride + kv_head * a->v_head_stride;
        double score = 0.0;
        for (int32_t d = 0; d < a->head_dim; d++)
            score += (double)mst_load_element(a->q, dtype, q + d) *
                     (double)mst_load_element(a->k, dtype, k + d);
        score *= scale;
        double max = row->keys > 0 ? fmax(row->max, score) : score;
        double keep = row->keys > 0 ? exp(row->max - max) : 0.0;
        double weight = exp(score - max);
        row->sum = row->sum * keep + weight;
        for (int32_t d = 0; d < a->head_dim; d++)
            row->out[d] =
                row->out[d] * keep + weight * (double)mst_load_element(a->v, dtype, v + d);
        row->max = max;
        row->keys++;
    }
}

static void finish_row(const mock_launch *launch, int64_t token, int64_t head, const mock_row *row)
{
    const mst_cuda_attn_args *a = &launch->args;
    int64_t out = token * a->out_row_stride + head * a->out_head_stride;
    for (int32_t d = 0; d < a->head_dim; d++)
        mst_store_element(a->out, launch->kernel->dtype, out + d,
                          row->keys > 0 ? (float)(row->out[d] / row->sum) : 0.0F);
    if (a->lse != NULL)
        a->lse[token * a->lse_row_stride + head] =
            row->keys > 0 ? (float)(row->max + log(row->sum)) : -INFINITY;
}

static void check_item(const mock_launch *launch, const mst_cuda_attn_item *item)
{
    if (item->row_end <= item->row_begin || item->row_end - item->row_begin > launch->kernel->rows)
        fault("an item has no rows, or more than the kernel's tile");
    if (item->key_begin < 0 || item->key_end > item->lk || item->part_keys < 1)
        fault("an item's keys leave its segment");
    if (item->slot >= 0 &&
        (item->split < 0 || item->split >= item->num_splits ||
         item->key_begin / item->part_keys != (item->key_end - 1) / item->part_keys))
        fault("a part crosses the border of parts");
    mock.split_items += item->slot >= 0;
    mock.items++;
}

static int run(const mock_launch *launch)
{
    const mst_cuda_attn_args *a = &launch->args;
    const mst_cuda_attn_header *header = a->header;
    int64_t heads = (int64_t)a->num_kv_heads * a->group;
    mock_row *rows = calloc((size_t)(header->num_tokens * heads) + 1, sizeof *rows);
    bool *written = calloc((size_t)header->num_tokens + 1, sizeof *written);
    if (a->counters->next != 0 || a->counters->done != 0)
        fault("the counters were not 0 at a launch");
    for (int32_t i = 0; i < header->num_items; i++) {
        const mst_cuda_attn_item *item = &a->items[i];
        check_item(launch, item);
        for (int32_t at = item->row_begin; at < item->row_end; at++) {
            int32_t token = at / a->group;
            written[item->q_first + token] = true;
            for (int32_t k = 0; k < a->num_kv_heads; k++) {
                int64_t head = (int64_t)k * a->group + at % a->group;
                see(launch, item, token, head, &rows[(item->q_first + token) * heads + head]);
            }
        }
    }
    for (int64_t token = 0; token < header->num_tokens; token++)
        for (int64_t head = 0; head < heads && written[token]; head++)
            finish_row(launch, token, head, &rows[token * heads + head]);
    mock_row none = {.keys = 0};
    for (int64_t token = header->num_tokens; token < a->zero_end; token++)
        for (int64_t head = 0; head < heads; head++)
            finish_row(launch, token, head, &none);
    free(rows);
    free(written);
    return 0;
}

static int m_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                    void *stream, void **arguments, void **extra)
{
    mock_launch launch = {.kernel = function};
    (void)extra;
    ENTER(launch);
    memcpy(&launch.args, arguments[0], sizeof launch.args);
    mock.launches++;
    mock.grid = grid_x;
    (void)snprintf(mock.kernel, sizeof mock.kernel, "%s", launch.kernel->symbol);
    if (grid_x < 1 || grid_y != 1 || grid_z != 1 || block_x != 128 || block_y != 1 ||
        block_z != 1 || (int32_t)shared_bytes != launch.kernel->shared_bytes)
        fault("a launch of the wrong size");
    if (mock.capturing == NULL || mock.capturing != stream)
        return run(&launch);
    mock.recorded = realloc(mock.recorded, (size_t)(mock.num_recorded + 1) * sizeof launch);
    memcpy(&mock.recorded[mock.num_recorded++], &launch, sizeof launch);
    return 0;
}

/* ---- graphs: one at a time ------------------------------------------------------------------- */

static int m_capture_begin(void *stream, int mode)
{
    (void)mode;
    ENTER(capture_begin);
    mock.capturing = stream;
    mock.num_recorded = 0;
    return 0;
}
static int m_capture_end(void *stream, void **graph)
{
    (void)stream;
    *graph = NULL;
    mock.capturing = NULL;
    ENTER(capture_end);
    return make(graph);
}
static int m_graph_nodes(void *graph, void **nodes, size_t *count)
{
    (void)graph;
    (void)nodes;
    ENTER(graph_nodes);
    *count = (size_t)mock.num_recorded;
    return 0;
}
static int m_graph_instantiate(void **executable, void *graph, unsigned long long flags)
{
    (void)graph;
    (void)flags;
    ENTER(graph_instantiate);
    return make(executable);
}
static int m_graph_launch(void *executable, void *stream)
{
    (void)executable;
    (void)stream;
    ENTER(graph_launch);
    for (int64_t i = 0; i < mock.num_recorded; i++)
        (void)run(&mock.recorded[i]);
    return 0;
}
static int m_graph_exec_destroy(void *executable)
{
    ENTER(graph_exec_destroy);
    return drop(executable);
}
static int m_graph_destroy(void *graph)
{
    ENTER(graph_destroy);
    return drop(graph);
}

/* ---- the table ------------------------------------------------------------------------------- */

mock_cuda *mock_cuda_install(void)
{
    static const mst_cuda_driver driver = {
#define MOCK_MEMBER(name, symbol, arguments) .name = m_##name,
        MST_CUDA_FUNCTIONS(MOCK_MEMBER)
#undef MOCK_MEMBER
    };
    mock = (mock_cuda){.version = 99000, .devices = 1, .major = 9, .free_bytes = (int64_t)1 << 34};
    mst_cuda_driver_replace(&driver);
    return &mock;
}

void mock_cuda_remove(void)
{
    mst_cuda_driver_replace(NULL);
    free(mock.recorded);
    mock.recorded = NULL;
    assert_int_equal(mock.live, 0);
    assert_int_equal(mock.context_depth, 0);
    assert_string_equal(mock.fault, "");
}

mstar_status mock_cuda_open(mstar_device **device)
{
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = 1;
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
