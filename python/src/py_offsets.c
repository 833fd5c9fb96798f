/* py_offsets.c - the offsets of a plan, from lists and integer tensors to checked int32. */
#include <string.h>

#include "py_core.h"

static int out_of_range(const mstc_offsets *offsets, const char *name, Py_ssize_t index,
                        PyObject *value)
{
    PyErr_Format(PyExc_ValueError, "%s[%zd] is %S; %s lie in %lld..%d", name, index, value,
                 offsets->kind, (long long)offsets->least, INT32_MAX);
    return -1;
}

static int reserve(mstc_offsets *offsets, Py_ssize_t count)
{
    const size_t have = sizeof offsets->inline_values / sizeof offsets->inline_values[0];
    offsets->count = count;
    if ((size_t)count <= have)
        return 0;
    offsets->values = PyMem_Malloc((size_t)count * sizeof *offsets->values);
    if (offsets->values == NULL) {
        offsets->values = offsets->inline_values;
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int from_object(const mstc_offsets *offsets, PyObject *item, const char *name,
                       Py_ssize_t index, int32_t *value)
{
    PyObject *number = PyNumber_Index(item);
    if (number == NULL) {
        PyErr_Format(PyExc_TypeError, "%s[%zd] is %R; %s are integers", name, index, item,
                     offsets->kind);
        return -1;
    }
    int overflow = 0;
    const long long wide = PyLong_AsLongLongAndOverflow(number, &overflow);
    int result = 0;
    if (overflow != 0 || wide < offsets->least || wide > INT32_MAX)
        result = out_of_range(offsets, name, index, number);
    else
        *value = (int32_t)wide;
    Py_DECREF(number);
    return result;
}

static int from_sequence(PyObject *object, const char *name, mstc_offsets *offsets)
{
    const Py_ssize_t count = PySequence_Size(object);
    if (count < 0) {
        PyErr_Format(PyExc_TypeError, "%s is a %R, which has no length", name, Py_TYPE(object));
        return -1;
    }
    if (reserve(offsets, count) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(object, i);
        const int failed =
            item == NULL || from_object(offsets, item, name, i, &offsets->values[i]) < 0;
        Py_XDECREF(item);
        if (failed)
            return -1;
    }
    return 0;
}

/* Element i of integers of any size. Values past int64 come back as INT64_MIN. */
static int64_t read_integer(const mstc_view *view, int64_t i)
{
    const char *at = (const char *)view->data + i * view->strides[0] * (view->bits / 8);
    const bool is_signed = view->code == 0;
    switch (view->bits) {
#define MSTC_READ(bits)                                                         \
    case bits: {                                                                \
        uint##bits##_t value;                                                   \
        memcpy(&value, at, sizeof value);                                       \
        const int64_t wide = is_signed ? (int##bits##_t)value : (int64_t)value; \
        return !is_signed && wide < 0 ? INT64_MIN : wide;                       \
    }
        MSTC_READ(8)
        MSTC_READ(16)
        MSTC_READ(32)
        MSTC_READ(64)
#undef MSTC_READ
    default:
        return INT64_MIN;
    }
}

static int from_view(const mstc_view *view, const char *name, mstc_offsets *offsets)
{
    if (view->code > 1) {
        PyErr_Format(PyExc_TypeError, "%s has dtype %s; %s are integers (int32 or int64)", name,
                     mstc_view_dtype_name(view), offsets->kind);
        return -1;
    }
    if (view->rank != 1) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions; %s have 1", name, (int)view->rank,
                     offsets->kind);
        return -1;
    }
    if (reserve(offsets, (Py_ssize_t)view->shape[0]) < 0)
        return -1;
    for (int64_t i = 0; i < view->shape[0]; i++) {
        const int64_t wide = read_integer(view, i);
        if (wide < offsets->least || wide > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "%s[%lld] is %lld; %s lie in %lld..%d", name,
                         (long long)i, (long long)wide, offsets->kind, (long long)offsets->least,
                         INT32_MAX);
            return -1;
        }
        offsets->values[i] = (int32_t)wide;
    }
    return 0;
}

static int from_tensor(mstc_state *state, PyObject *object, const char *name, mstc_offsets *offsets)
{
    mstc_view view;
    if (mstc_view_take(state, object, name, &view) < 0)
        return -1;
    if (view.device_type != MSTAR_DEVICE_CPU && !offsets->from_device) {
        mstc_view_drop(&view);
        PyObject *module = mstc_frameworks(state);
        PyObject *host =
            module == NULL ? NULL : PyObject_CallMethod(module, "to_host", "O", object);
        offsets->from_device = true;
        const int result = host == NULL ? -1 : from_tensor(state, host, name, offsets);
        Py_XDECREF(host);
        return result;
    }
    const int result = from_view(&view, name, offsets);
    mstc_view_drop(&view);
    return result;
}

int mstc_integers_take(mstc_state *state, PyObject *object, const char *name, const char *kind,
                       int64_t least, mstc_offsets *offsets)
{
    offsets->kind = kind;
    offsets->least = least;
    offsets->values = offsets->inline_values;
    offsets->count = 0;
    offsets->from_device = false;
    int result;
    if (PyUnicode_Check(object) || PyBytes_Check(object) || PyByteArray_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is a %R; expected a list of ints or a tensor of integers",
                     name, Py_TYPE(object));
        result = -1;
    } else if (PyList_Check(object) || PyTuple_Check(object)) {
        result = from_sequence(object, name, offsets);
    } else if (PyObject_CheckBuffer(object) || PyObject_HasAttr(object, state->name_dlpack)) {
        result = from_tensor(state, object, name, offsets);
    } else if (PySequence_Check(object)) {
        result = from_sequence(object, name, offsets);
    } else {
        PyErr_Format(PyExc_TypeError, "%s is a %R; expected a list of ints or a tensor of integers",
                     name, Py_TYPE(object));
        result = -1;
    }
    if (result < 0)
        mstc_offsets_drop(offsets);
    return result;
}

int mstc_offsets_take(mstc_state *state, PyObject *object, const char *name, mstc_offsets *offsets)
{
    if (mstc_integers_take(state, object, name, "offsets", 0, offsets) < 0)
        return -1;
    if (offsets->count > 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s is empty; it has one entry more than segments, the first 0",
                 name);
    mstc_offsets_drop(offsets);
    return -1;
}

void mstc_offsets_drop(mstc_offsets *offsets)
{
    if (offsets->values != offsets->inline_values)
        PyMem_Free(offsets->values);
    offsets->values = offsets->inline_values;
}
