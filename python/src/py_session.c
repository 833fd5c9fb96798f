/*
 * py_session.c - calls that call back into Python: their exceptions, their memory, their streams.
 *
 * The library calls back on the thread that called it. What a callback raises is kept until the
 * call is over, and raised there as it was.
 */
#include <stdlib.h>
#include <string.h>

#include "py_core.h"

static _Thread_local mstc_session *innermost;

mstc_session *mstc_session_now(void)
{
    return innermost;
}

void mstc_session_begin(mstc_session *session)
{
    memset(session, 0, sizeof *session);
    session->outer = innermost;
    innermost = session;
}

int mstc_session_end(mstc_session *session, mstar_status status)
{
    innermost = session->outer;
    PyMem_Free(session->written);
    if (session->error_type != NULL) {
        PyErr_Restore(session->error_type, session->error_value, session->error_trace);
        return -1;
    }
    if (status == MSTAR_OK)
        return 0;
    mstc_raise(status);
    return -1;
}

static int collect(mstc_session *session, int64_t bs, int64_t num_tokens, PyObject *error)
{
    PyObject *entry = Py_BuildValue("(LLO)", (long long)bs, (long long)num_tokens,
                                    error == NULL ? Py_None : error);
    const int result = entry == NULL ? -1 : PyList_Append(session->failures, entry);
    Py_XDECREF(entry);
    return result;
}

/* "ValueError: text", which the library then says after what it was doing. */
static mstar_status leave_text(PyObject *value)
{
    char text[512];
    PyObject *name = value == NULL ? NULL : PyType_GetName(Py_TYPE(value));
    PyObject *said = name == NULL ? NULL : PyUnicode_FromFormat("%U: %S", name, value);
    const char *utf8 = said == NULL ? NULL : PyUnicode_AsUTF8AndSize(said, NULL);
    (void)PyOS_snprintf(text, sizeof text, "%.500s", utf8 == NULL ? "a callback failed" : utf8);
    PyErr_Clear();
    Py_XDECREF(said);
    Py_XDECREF(name);
    return mstar_fail(MSTAR_CANCELLED, text);
}

mstar_status mstc_session_fail(int64_t bs, int64_t num_tokens)
{
    mstc_session *session = innermost;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL && value != NULL)
        PyException_SetTraceback(value, trace);
    const mstar_status status = leave_text(value);
    const bool ordinary = value != NULL && PyErr_GivenExceptionMatches(value, PyExc_Exception);
    if (session == NULL || session->error_type != NULL ||
        (ordinary && session->failures != NULL && collect(session, bs, num_tokens, value) == 0)) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Clear();
        session->error_type = type;
        session->error_value = value;
        session->error_trace = trace;
    }
    return status;
}

PyObject *mstc_collected(PyObject *failures, int result)
{
    if (result == 0)
        return failures;
    if (PyList_Size(failures) > 0) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        PyObject *first = PyTuple_GetItem(PyList_GetItem(failures, 0), 2);
        if (value != NULL && first != value)
            PyException_SetCause(value, Py_NewRef(first));
        PyErr_Restore(type, value, trace);
    }
    Py_DECREF(failures);
    return NULL;
}

bool mstc_session_is_over(void)
{
    return innermost == NULL || innermost->error_type != NULL;
}

/* Bytes from element 0 to behind the last one. */
static size_t extent(const mstar_tensor *tensor)
{
    size_t last = 0;
    for (int dim = 0; dim < tensor->rank; dim++)
        last +=
            tensor->shape[dim] > 0 ? (size_t)((tensor->shape[dim] - 1) * tensor->strides[dim]) : 0;
    return (last + 1) * mstar_dtype_bytes(tensor->dtype);
}

/* Whether memory is a static input's. */
static bool is_static(const mstc_session *session, const void *data)
{
    for (int64_t i = 0; session->inputs != NULL && i < session->inputs->count; i++) {
        const mstar_tensor *input = &session->inputs->items[i].tensor;
        if ((uintptr_t)data - (uintptr_t)input->data < extent(input))
            return true;
    }
    return false;
}

int mstc_session_wrote(const mstar_tensor *out)
{
    mstc_session *session = innermost;
    if (session == NULL || session->pool == NULL || mstc_pool_device(session->pool) != NULL)
        return 0;
    if (session->num_written == session->written_capacity) {
        const size_t capacity = session->written_capacity * 2 + 16;
        mstc_range *grown = PyMem_Realloc(session->written, capacity * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        session->written = grown;
        session->written_capacity = capacity;
    }
    const uintptr_t begin = (uintptr_t)out->data;
    session->written[session->num_written++] = (mstc_range){begin, begin + extent(out)};
    return 0;
}

bool mstc_session_is_recorded(const void *data)
{
    const mstc_session *session = innermost;
    const uintptr_t address = (uintptr_t)data;
    for (size_t i = 0; i < session->num_written; i++)
        if (address >= session->written[i].begin && address < session->written[i].end)
            return true;
    return is_static(session, data);
}

/* Whether memory is of the driver's own pools, as another framework cut it; -1 with an exception.
 */
static int is_owned(const mstc_session *session, const void *data)
{
    if (session->driver == NULL)
        return 0;
    PyObject *answer =
        PyObject_CallMethod(session->driver, "_owns", "K", (unsigned long long)(uintptr_t)data);
    const int owned = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return owned;
}

int mstc_session_keep(mstc_state *state, PyObject *object, const void *data)
{
    mstc_session *session = innermost;
    if (session == NULL || !session->capturing || session->keep == NULL)
        return 0;
    PyObject *owner = object;
    while (Py_TYPE(owner) == state->tensor_type && ((mstc_tensor *)owner)->base != NULL)
        owner = ((mstc_tensor *)owner)->base;
    if (Py_TYPE(owner) == state->tensor_type && ((mstc_tensor *)owner)->pool != NULL)
        return 0; /* its memory is the pool's: another tensor may have it once this one is gone */
    if (Py_TYPE(owner) == state->runner_type || Py_TYPE(owner) == state->region_type)
        return 0; /* a static input: it lives as long as the capture */
    if (data != NULL && Py_TYPE(owner) != state->tensor_type) {
        if (is_static(session, data))
            return 0; /* another framework's view of one: kept, it would keep the runner */
        const int owned = is_owned(session, data);
        if (owned != 0)
            return owned < 0 ? -1 : 0;
    }
    return PyList_Append(session->keep, owner);
}

/* ---- streams --------------------------------------------------------------------------------- */

static mstar_stream *cpu_stream(mstc_state *state, mstar_device *device)
{
    mstar_stream *stream;
    if (state->num_streams > 0)
        return state->streams[--state->num_streams];
    mstar_status status = mstar_stream_create(device, -1, &stream);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return stream;
}

static mstar_stream *forward_stream(const mstc_place *place)
{
    return innermost != NULL && innermost->stream != NULL &&
                   mstar_stream_get_device(innermost->stream) == place->device
               ? innermost->stream
               : NULL;
}

mstar_stream *mstc_stream_take(mstc_state *state, const mstc_place *place, PyObject *like)
{
    mstar_stream *stream = forward_stream(place);
    if (stream != NULL)
        return stream;
    return place->kind == MSTAR_DEVICE_CPU ? cpu_stream(state, place->device)
                                           : mstc_caller_stream(state, place, like);
}

void mstc_stream_done(mstc_state *state, const mstc_place *place, mstar_stream *stream)
{
    if (place->kind != MSTAR_DEVICE_CPU || stream == forward_stream(place))
        return;
    if (state->num_streams < MSTC_MAX_STREAMS)
        state->streams[state->num_streams++] = stream;
    else
        mstar_stream_destroy(stream);
}

static int grow_natives(mstc_state *state)
{
    if (state->num_natives < state->natives_capacity)
        return 0;
    const Py_ssize_t capacity = state->natives_capacity * 2 + 8;
    mstc_native *grown = PyMem_Realloc(state->natives, (size_t)capacity * sizeof *grown);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    state->natives = grown;
    state->natives_capacity = capacity;
    return 0;
}

mstar_stream *mstc_native_stream(mstc_state *state, mstar_device *device, void *native)
{
    for (Py_ssize_t i = state->num_natives - 1; i >= 0; i--)
        if (state->natives[i].device == device && state->natives[i].native == native)
            return state->natives[i].stream;
    mstar_stream *stream;
    if (grow_natives(state) < 0)
        return NULL;
    mstar_status status = mstar_stream_wrap(device, native, &stream);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    state->natives[state->num_natives++] = (mstc_native){device, native, stream};
    return stream;
}

/* A framework's table of C functions answers sooner than its Python. 1 told, 0 there is none, -1 an
 * exception. */
static int ask_table(mstc_state *state, PyObject *like, int32_t index, void **native)
{
    const mstc_kind *kind = like == NULL ? NULL : mstc_kind_of(state, like);
    if (kind == NULL)
        return like == NULL ? 0 : -1;
    if (kind->table == NULL || kind->table->current_work_stream == NULL)
        return 0;
    const bool told = kind->table->current_work_stream(MSTAR_DEVICE_CUDA, index, native) == 0;
    PyErr_Clear();
    return told;
}

mstar_stream *mstc_caller_stream(mstc_state *state, const mstc_place *place, PyObject *like)
{
    void *native = NULL;
    const int told = ask_table(state, like, place->index, &native);
    if (told != 0)
        return told < 0 ? NULL : mstc_native_stream(state, place->device, native);
    PyObject *module = mstc_frameworks(state);
    PyObject *number = module == NULL
                           ? NULL
                           : PyObject_CallMethod(module, "work_stream", "Oi",
                                                 like == NULL ? Py_None : like, (int)place->index);
    if (number == NULL)
        return NULL;
    native = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    if (native == NULL && PyErr_Occurred() != NULL)
        return NULL;
    return mstc_native_stream(state, place->device, native);
}

/* ---- pools ----------------------------------------------------------------------------------- */

/*
 * Blocks stay where they are until nobody refers to the pool, so a graph may hold their addresses.
 * The interpreter's lock guards it.
 */
struct mstc_pool {
    mstar_device *device; /* whose memory the blocks are, each a buffer; NULL: host memory */
    Py_ssize_t references;
    size_t count, capacity, bytes;
    struct {
        void *block;
        size_t bytes;
        bool used;
    } * blocks;
};

mstc_pool *mstc_pool_create(mstar_device *device)
{
    mstc_pool *pool = PyMem_Calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->device = device;
    pool->references = 1;
    return pool;
}

mstar_device *mstc_pool_device(const mstc_pool *pool)
{
    return pool->device;
}

static mstar_status no_memory(void)
{
    return mstar_fail(MSTAR_OUT_OF_MEMORY, "no memory for a tensor");
}

static mstar_status take_block(const mstc_pool *pool, size_t bytes, void **block)
{
    mstar_buffer *buffer = NULL;
    mstar_status status = MSTAR_OK;
    if (pool->device != NULL) {
        status = mstar_buffer_create(pool->device, bytes, &buffer);
        *block = buffer;
    } else {
        *block = PyMem_Malloc(bytes);
        if (*block == NULL)
            status = no_memory();
    }
    return status;
}

static void give_block(const mstc_pool *pool, void *block)
{
    if (pool->device == NULL)
        PyMem_Free(block);
    else
        mstar_buffer_destroy(block);
}

void mstc_pool_release(mstc_pool *pool)
{
    if (pool == NULL || --pool->references > 0)
        return;
    for (size_t i = 0; i < pool->count; i++)
        give_block(pool, pool->blocks[i].block);
    PyMem_Free(pool->blocks);
    PyMem_Free(pool);
}

/* The smallest free block that is large enough; pool->count where there is none. */
static size_t find_free(const mstc_pool *pool, size_t bytes)
{
    size_t best = pool->count;
    for (size_t i = 0; i < pool->count; i++)
        if (!pool->blocks[i].used && pool->blocks[i].bytes >= bytes &&
            (best == pool->count || pool->blocks[i].bytes < pool->blocks[best].bytes))
            best = i;
    return best;
}

static mstar_status add_block(mstc_pool *pool, size_t bytes)
{
    if (pool->count == pool->capacity) {
        const size_t capacity = pool->capacity == 0 ? 16 : pool->capacity * 2;
        void *grown = PyMem_Realloc(pool->blocks, capacity * sizeof *pool->blocks);
        if (grown == NULL)
            return no_memory();
        pool->blocks = grown;
        pool->capacity = capacity;
    }
    void *block;
    mstar_status status = take_block(pool, bytes, &block);
    if (status != MSTAR_OK)
        return status;
    pool->blocks[pool->count].block = block;
    pool->blocks[pool->count].bytes = bytes;
    pool->blocks[pool->count].used = false;
    pool->count++;
    pool->bytes += bytes;
    return MSTAR_OK;
}

mstar_status mstc_pool_take(mstc_pool *pool, size_t bytes, void **block)
{
    const size_t place = find_free(pool, bytes);
    mstar_status status = place == pool->count ? add_block(pool, bytes) : MSTAR_OK;
    if (status != MSTAR_OK)
        return status;
    pool->blocks[place].used = true;
    pool->references++;
    *block = pool->blocks[place].block;
    return MSTAR_OK;
}

void mstc_pool_give(mstc_pool *pool, void *block)
{
    for (size_t i = 0; i < pool->count; i++)
        if (pool->blocks[i].block == block)
            pool->blocks[i].used = false;
    mstc_pool_release(pool);
}

void mstc_pool_trim(mstc_pool *pool, size_t most)
{
    for (size_t i = pool->count; i > 0 && pool->bytes > most; i--) {
        if (pool->blocks[i - 1].used)
            continue;
        give_block(pool, pool->blocks[i - 1].block);
        pool->bytes -= pool->blocks[i - 1].bytes;
        pool->count--;
        memmove(&pool->blocks[i - 1], &pool->blocks[i],
                (pool->count + 1 - i) * sizeof *pool->blocks);
    }
}

size_t mstc_pool_bytes(const mstc_pool *pool)
{
    return pool == NULL ? 0 : pool->bytes;
}
