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

int mstc_session_keep(mstc_state *state, PyObject *object)
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
    return PyList_Append(session->keep, owner);
}

/* ---- streams --------------------------------------------------------------------------------- */

mstar_stream *mstc_stream_take(mstc_state *state)
{
    if (innermost != NULL && innermost->stream != NULL)
        return innermost->stream;
    if (state->num_streams > 0)
        return state->streams[--state->num_streams];
    mstar_device *device = mstc_device(state, "cpu");
    mstar_stream *stream;
    if (device == NULL)
        return NULL;
    mstar_status status = mstar_stream_create(device, -1, &stream);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return stream;
}

void mstc_stream_done(mstc_state *state, mstar_stream *stream)
{
    if (innermost != NULL && innermost->stream == stream)
        return;
    if (state->num_streams < MSTC_MAX_STREAMS)
        state->streams[state->num_streams++] = stream;
    else
        mstar_stream_destroy(stream);
}

/* More streams than this are few: frameworks take theirs from a pool. */
mstar_stream *mstc_native_stream(mstc_state *state, mstar_device *device, void *native)
{
    for (int i = 0; i < state->num_natives; i++)
        if (state->natives[i].device == device && state->natives[i].native == native)
            return state->natives[i].stream;
    if (state->num_natives == MSTC_MAX_STREAMS) {
        PyErr_Format(PyExc_RuntimeError,
                     "work on more than %d streams of GPUs in one process is not supported",
                     MSTC_MAX_STREAMS);
        return NULL;
    }
    mstar_stream *stream;
    mstar_status status = mstar_stream_wrap(device, native, &stream);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    const int place = state->num_natives++;
    state->natives[place].device = device;
    state->natives[place].native = native;
    state->natives[place].stream = stream;
    return stream;
}

/* ---- pools ----------------------------------------------------------------------------------- */

/*
 * Blocks stay where they are until nobody refers to the pool, so a graph may hold their addresses.
 * The interpreter's lock guards it.
 */
struct mstc_pool {
    Py_ssize_t references;
    size_t count, capacity, bytes;
    struct {
        void *block;
        size_t bytes;
        bool used;
    } * blocks;
};

mstc_pool *mstc_pool_create(void)
{
    mstc_pool *pool = PyMem_Calloc(1, sizeof *pool);
    if (pool != NULL)
        pool->references = 1;
    return pool;
}

void mstc_pool_release(mstc_pool *pool)
{
    if (pool == NULL || --pool->references > 0)
        return;
    for (size_t i = 0; i < pool->count; i++)
        PyMem_Free(pool->blocks[i].block);
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

static bool add_block(mstc_pool *pool, size_t bytes)
{
    if (pool->count == pool->capacity) {
        const size_t capacity = pool->capacity == 0 ? 16 : pool->capacity * 2;
        void *grown = PyMem_Realloc(pool->blocks, capacity * sizeof *pool->blocks);
        if (grown == NULL)
            return false;
        pool->blocks = grown;
        pool->capacity = capacity;
    }
    void *block = PyMem_Malloc(bytes);
    if (block == NULL)
        return false;
    pool->blocks[pool->count].block = block;
    pool->blocks[pool->count].bytes = bytes;
    pool->blocks[pool->count].used = false;
    pool->count++;
    pool->bytes += bytes;
    return true;
}

void *mstc_pool_take(mstc_pool *pool, size_t bytes)
{
    const size_t place = find_free(pool, bytes);
    if (place == pool->count && !add_block(pool, bytes))
        return NULL;
    pool->blocks[place].used = true;
    pool->references++;
    return pool->blocks[place].block;
}

void mstc_pool_give(mstc_pool *pool, void *block)
{
    for (size_t i = 0; i < pool->count; i++)
        if (pool->blocks[i].block == block)
            pool->blocks[i].used = false;
    mstc_pool_release(pool);
}

size_t mstc_pool_bytes(const mstc_pool *pool)
{
    return pool == NULL ? 0 : pool->bytes;
}
