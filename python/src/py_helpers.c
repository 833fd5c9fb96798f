/* py_helpers.c - functions without an object: head dims, token layouts, what was built. */
#include "py_core.h"

static PyObject *padded_head_dim(PyObject *module, PyObject *argument)
{
    (void)module;
    int overflow = 0;
    PyObject *number = PyNumber_Index(argument);
    if (number == NULL)
        return NULL;
    long long wide = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow > 0 || wide > INT32_MAX)
        wide = INT32_MAX;
    if (overflow < 0 || wide < 0)
        wide = 0;
    int32_t padded;
    mstar_status status = mstar_padded_head_dim((int32_t)wide, &padded);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return PyLong_FromLong(padded);
}

/* ---- token layouts and compile modes --------------------------------------------------------- */

/* An int that fits int64; the library names the rest of what is wrong. */
static int read_count(PyObject *object, const char *name, int64_t *count)
{
    int overflow = 0;
    PyObject *number = PyNumber_Index(object);
    if (number == NULL)
        return -1;
    *count = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow != 0)
        PyErr_Format(PyExc_ValueError, "%s is %S, which no batch has", name, number);
    Py_DECREF(number);
    return overflow != 0 || PyErr_Occurred() != NULL ? -1 : 0;
}

static PyObject *to_list(const int64_t *values, int64_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; list != NULL && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *lay_out(PyObject *args, mstar_status (*layout)(int64_t, int64_t, int64_t *))
{
    PyObject *total_object, *bs_object, *list = NULL;
    int64_t total, bs;
    if (!PyArg_ParseTuple(args, "OO", &total_object, &bs_object) ||
        read_count(total_object, "total_tokens", &total) < 0 ||
        read_count(bs_object, "bs", &bs) < 0)
        return NULL;
    const bool fits = bs >= 1 && bs <= MSTAR_MAX_BATCH_SIZE;
    int64_t *lengths = PyMem_Malloc((fits ? (size_t)bs : 1) * sizeof *lengths);
    if (lengths == NULL)
        return PyErr_NoMemory();
    mstar_status status = layout(total, bs, lengths);
    if (status == MSTAR_OK)
        list = to_list(lengths, bs);
    else
        mstc_raise(status);
    PyMem_Free(lengths);
    return list;
}

static PyObject *distribute_tokens(PyObject *module, PyObject *args)
{
    (void)module;
    return lay_out(args, mstar_distribute_tokens);
}

static PyObject *decode_rows_then_prompt(PyObject *module, PyObject *args)
{
    (void)module;
    return lay_out(args, mstar_decode_rows_then_prompt);
}

static PyObject *effective_compile_mode(PyObject *module, PyObject *argument)
{
    (void)module;
    const char *mode = NULL, *effective;
    if (argument != Py_None && (mode = PyUnicode_AsUTF8AndSize(argument, NULL)) == NULL)
        return NULL;
    mstar_status status = mstar_check_compile_mode(mode);
    if (status == MSTAR_OK)
        status = mstar_effective_compile_mode(mode, &effective);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return PyUnicode_FromString(effective);
}

static PyObject *check_compile_mode(PyObject *module, PyObject *argument)
{
    (void)module;
    const char *mode = PyUnicode_AsUTF8AndSize(argument, NULL);
    if (mode == NULL)
        return NULL;
    mstar_status status = mstar_check_compile_mode(mode);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_NewRef(argument);
}

/* ---- the library ----------------------------------------------------------------------------- */

static PyObject *build_info(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(mstar_build_info());
}

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(mstar_version());
}

static PyObject *device_info(PyObject *module, PyObject *argument)
{
    const char *name = PyUnicode_AsUTF8AndSize(argument, NULL);
    mstar_device *device = name == NULL ? NULL : mstc_device(PyModule_GetState(module), name);
    mstar_device_info info = {.struct_size = sizeof info};
    if (device == NULL)
        return NULL;
    mstar_status status = mstar_device_query(device, &info);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_BuildValue("{s:s,s:i,s:s,s:s,s:s,s:s}", "name", info.name, "num_threads",
                         (int)info.num_threads, "model", info.model, "isa", info.isa, "isa_best",
                         info.isa_best, "isa_reason", info.isa_reason);
}

static PyObject *memory_info(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    mstar_memory_info info = {.struct_size = sizeof info};
    mstar_status status = mstar_memory_query(&info);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_BuildValue("{s:K,s:K,s:K}", "live_bytes", (unsigned long long)info.live_bytes,
                         "live_allocations", (unsigned long long)info.live_allocations,
                         "peak_bytes", (unsigned long long)info.peak_bytes);
}

PyMethodDef mstc_helper_functions[] = {
    {"padded_head_dim", padded_head_dim, METH_O, NULL},
    {"distribute_tokens", distribute_tokens, METH_VARARGS, NULL},
    {"decode_rows_then_prompt", decode_rows_then_prompt, METH_VARARGS, NULL},
    {"check_compile_mode", check_compile_mode, METH_O, NULL},
    {"effective_compile_mode", effective_compile_mode, METH_O, NULL},
    {"build_info", build_info, METH_NOARGS, NULL},
    {"version", version, METH_NOARGS, NULL},
    {"device_info", device_info, METH_O, NULL},
    {"memory_info", memory_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
