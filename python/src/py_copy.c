/*
 * py_copy.c - tensors copied to a Tensor: to the host, to a device, and on a device.
 *
 * Bytes that lie as they should are copied by the device, in the order of the caller's stream; what
 * has strides or another dtype goes by way of the host.
 */
#include "py_core.h"

/* A view's whole memory: where its element 0 is in it, and its length. */
typedef struct span {
    size_t before, bytes;
} span;

/* Negative strides lead to elements before element 0. */
static span span_of(const mstc_view *view, mstar_dtype dtype)
{
    const size_t element = mstar_dtype_bytes(dtype);
    size_t before = 0, after = 0;
    for (int i = 0; i < view->rank; i++) {
        if (view->shape[i] == 0)
            return (span){0, 0};
        const int64_t reach = (view->shape[i] - 1) * view->strides[i];
        if (reach < 0)
            before += (size_t)-reach;
        else
            after += (size_t)reach;
    }
    return (span){before * element, (before + after + 1) * element};
}

/* Device memory as it lies, in new host memory; NULL with an exception. */
static char *fetch(mstc_state *state, const mstc_view *view, span all)
{
    const size_t bytes = all.bytes;
    const char *begin = (const char *)view->data - all.before;
    mstc_place place;
    mstar_buffer *buffer = NULL;
    mstar_stream *stream = mstc_view_place(state, view, &place) < 0
                               ? NULL
                               : mstc_stream_take(state, &place, view->owner);
    char *memory = stream == NULL ? NULL : PyMem_Malloc(bytes + 1);
    if (memory == NULL) {
        if (stream != NULL)
            PyErr_NoMemory();
        return NULL;
    }
    mstar_status status;
    Py_BEGIN_ALLOW_THREADS status = mstar_buffer_create(place.device, bytes, &buffer);
    if (status == MSTAR_OK)
        status = mstar_buffer_upload(buffer, stream, 0, begin, bytes);
    if (status == MSTAR_OK)
        status = mstar_buffer_download(buffer, stream, 0, memory, bytes);
    if (status == MSTAR_OK)
        status = mstar_stream_synchronize(stream);
    mstar_buffer_destroy(buffer);
    Py_END_ALLOW_THREADS if (status == MSTAR_OK) return memory;
    PyMem_Free(memory);
    mstc_raise(status);
    return NULL;
}

static PyObject *copy_to_host(mstc_state *state, const mstc_view *view, mstar_dtype from,
                              mstar_dtype dtype)
{
    mstc_tensor *made = mstc_tensor_new(state, NULL, dtype, view->rank, view->shape);
    mstc_view here = *view;
    char *fetched = NULL;
    if (made == NULL)
        return NULL;
    if (view->device_type != MSTAR_DEVICE_CPU) {
        const span memory = span_of(view, from);
        fetched = fetch(state, view, memory);
        if (fetched == NULL) {
            Py_DECREF((PyObject *)made);
            return NULL;
        }
        here.data = fetched + memory.before;
    }
    mstar_status status;
    Py_BEGIN_ALLOW_THREADS status = mstc_view_pack(&here, from, dtype, made->data);
    Py_END_ALLOW_THREADS PyMem_Free(fetched);
    if (status != MSTAR_OK) {
        Py_CLEAR(made);
        mstc_raise(status);
    }
    return (PyObject *)made;
}

/* Bytes as they lie, from the host or from the device. */
static PyObject *send(mstc_state *state, const mstc_view *view, const mstc_place *place,
                      mstar_dtype dtype)
{
    mstc_tensor *made = mstc_tensor_new(state, place, dtype, view->rank, view->shape);
    PyObject *like = view->device_type == MSTAR_DEVICE_CPU ? NULL : view->owner;
    mstar_stream *stream = made == NULL ? NULL : mstc_stream_take(state, place, like);
    if (stream == NULL) {
        Py_XDECREF((PyObject *)made);
        return NULL;
    }
    mstar_status status = MSTAR_OK;
    if (made->bytes > 0) {
        Py_BEGIN_ALLOW_THREADS status =
            mstar_buffer_upload(made->block, stream, 0, view->data, made->bytes);
        Py_END_ALLOW_THREADS
    }
    if (status != MSTAR_OK) {
        Py_CLEAR(made);
        mstc_raise(status);
    }
    return (PyObject *)made;
}

PyObject *mstc_tensor_copy(mstc_state *state, const mstc_view *view, const char *name,
                           const mstc_place *place, int32_t dtype)
{
    mstar_dtype from;
    if (mstc_view_dtype(view, name, &from) < 0)
        return NULL;
    const mstc_session *session = mstc_session_now();
    if (session != NULL && session->capturing && view->device_type == MSTAR_DEVICE_CPU) {
        PyErr_Format(PyExc_ValueError,
                     "%s is copied inside a forward that is recorded, and a replay would not copy "
                     "it again",
                     name);
        return NULL;
    }
    const mstar_dtype to = dtype < 0 ? from : (mstar_dtype)dtype;
    const bool on_cpu = place->kind == MSTAR_DEVICE_CPU;
    const mstar_tensor compact = mstar_tensor_make(NULL, from, view->rank, view->shape);
    bool as_it_lies = from == to;
    for (int i = 0; i < view->rank; i++)
        as_it_lies = as_it_lies && (view->shape[i] <= 1 || view->strides[i] == compact.strides[i]);
    if (on_cpu)
        return copy_to_host(state, view, from, to);
    if (as_it_lies)
        return send(state, view, place, to);
    PyObject *packed = copy_to_host(state, view, from, to);
    mstc_view here;
    if (packed == NULL || mstc_view_take(state, packed, name, &here) < 0) {
        Py_XDECREF(packed);
        return NULL;
    }
    PyObject *made = send(state, &here, place, to);
    mstc_view_drop(&here);
    Py_DECREF(packed);
    return made;
}
