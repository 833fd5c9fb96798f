/*
 * py_output.c - outputs from the caller's own framework.
 *
 * numpy is asked from here, since a call costs less than a microsecond; every other framework goes
 * through mstarc._frameworks, which knows how each makes an empty array.
 */
#include <string.h>

#include "py_core.h"

static bool is_named(PyObject *type, const char *module)
{
    PyObject *name = PyObject_GetAttrString(type, "__module__");
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    const bool same = text != NULL && strcmp(text, module) == 0;
    if (text == NULL)
        PyErr_Clear();
    Py_XDECREF(name);
    return same;
}

/* 1 like is an array of numpy, which is then known for the next time; 0 it is not; -1 exception. */
static int is_numpy(mstc_state *state, PyObject *like)
{
    PyObject *type = (PyObject *)Py_TYPE(like);
    if (state->numpy_array != NULL)
        return type == state->numpy_array;
    if (!is_named(type, "numpy"))
        return 0;
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL)
        return -1;
    state->numpy_empty = PyObject_GetAttrString(numpy, "empty");
    state->numpy_float32 = PyObject_CallMethod(numpy, "dtype", "s", "float32");
    state->numpy_float16 = PyObject_CallMethod(numpy, "dtype", "s", "float16");
    PyObject *array = PyObject_GetAttrString(numpy, "ndarray");
    Py_DECREF(numpy);
    if (state->numpy_empty == NULL || state->numpy_float32 == NULL ||
        state->numpy_float16 == NULL || array == NULL) {
        Py_CLEAR(state->numpy_empty);
        Py_CLEAR(state->numpy_float32);
        Py_CLEAR(state->numpy_float16);
        Py_XDECREF(array);
        return -1;
    }
    state->numpy_array = array;
    return type == array;
}

/* Whether like is torch's own Tensor, and no other class of that package. */
static bool is_torch(mstc_state *state, PyObject *like)
{
    PyObject *type = (PyObject *)Py_TYPE(like);
    if (state->torch_tensor != NULL || !is_named(type, "torch"))
        return type == state->torch_tensor;
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *tensor = torch == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
    state->torch_empty_like = tensor == NULL ? NULL : PyObject_GetAttrString(torch, "empty_like");
    Py_XDECREF(torch);
    if (state->torch_empty_like != NULL)
        state->torch_tensor = Py_NewRef(tensor);
    Py_XDECREF(tensor);
    PyErr_Clear(); /* what it makes by shape and dtype will do */
    return state->torch_tensor != NULL && type == state->torch_tensor;
}

/* Whether an output has the dtype, shape and strides of the first input. */
static bool is_alike(const mstc_view *like, mstar_dtype dtype, int32_t rank, const int64_t *shape)
{
    const mstar_tensor compact = mstar_tensor_make(NULL, dtype, rank, shape);
    mstar_dtype theirs;
    if (mstc_view_dtype(like, "out", &theirs) < 0) {
        PyErr_Clear();
        return false;
    }
    if (like->rank != rank || theirs != dtype)
        return false;
    for (int i = 0; i < rank; i++)
        if (like->shape[i] != shape[i] || like->strides[i] != compact.strides[i])
            return false;
    return true;
}

static PyObject *shape_tuple(int32_t rank, const int64_t *shape)
{
    PyObject *tuple = PyTuple_New(rank);
    for (int i = 0; tuple != NULL && i < rank; i++) {
        PyObject *size = PyLong_FromLongLong(shape[i]);
        if (size == NULL || PyTuple_SetItem(tuple, i, size) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *ask_framework(mstc_state *state, PyObject *like, mstar_dtype dtype, bool zero,
                               PyObject *shape)
{
    PyObject *module = mstc_frameworks(state);
    return module == NULL ? NULL
                          : PyObject_CallMethod(module, zero ? "zeros_like" : "empty_like", "OOs",
                                                like, shape, mstc_dtype_name(dtype));
}

/* Ours, where the view lies. */
static PyObject *new_tensor(mstc_state *state, const mstc_view *like, mstar_dtype dtype,
                            int32_t rank, const int64_t *shape)
{
    mstc_place place;
    if (mstc_view_place(state, like, &place) < 0)
        return NULL;
    return (PyObject *)mstc_tensor_new(state, &place, dtype, rank, shape);
}

PyObject *mstc_output_new(mstc_state *state, PyObject *like, const mstc_view *like_view,
                          mstar_dtype dtype, bool zero, int32_t rank, const int64_t *shape,
                          mstc_view *view)
{
    PyObject *made = NULL;
    const int numpy = is_numpy(state, like);
    const bool own = Py_TYPE(like) == state->tensor_type ||
                     (numpy == 1 && dtype == MSTAR_DTYPE_BF16 && like_view->code != 4);
    if (numpy < 0)
        return NULL;
    if (numpy == 0 && !zero && is_torch(state, like) && is_alike(like_view, dtype, rank, shape)) {
        /* sooner than by shape and dtype */
        made = PyObject_CallFunctionObjArgs(state->torch_empty_like, like, NULL);
        if (made == NULL)
            return NULL;
    } else if (!own) {
        PyObject *sizes = shape_tuple(rank, shape);
        if (sizes == NULL)
            return NULL;
        if (numpy == 1 && dtype != MSTAR_DTYPE_BF16)
            made = PyObject_CallFunctionObjArgs(
                state->numpy_empty, sizes,
                dtype == MSTAR_DTYPE_F32 ? state->numpy_float32 : state->numpy_float16, NULL);
        else
            made = ask_framework(state, like, dtype, zero, sizes);
        Py_DECREF(sizes);
        if (made == NULL)
            return NULL;
        if (made == Py_None)
            Py_CLEAR(made);
    }
    if (made == NULL)
        made = new_tensor(state, like_view, dtype, rank, shape);
    if (made == NULL || mstc_view_take(state, made, "out", view) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}

static int check_given(const mstc_view *view, const mstc_view *like, mstar_dtype *dtype,
                       int32_t rank, const int64_t *shape)
{
    bool fits = view->rank == rank;
    for (int i = 0; fits && i < rank; i++)
        fits = view->shape[i] == shape[i];
    if (!fits)
        PyErr_Format(PyExc_ValueError,
                     rank == 2 ? "out has another shape than [%lld, %lld]"
                               : "out has another shape than [%lld, %lld, %lld]",
                     (long long)shape[0], (long long)shape[1], (long long)shape[rank - 1]);
    else if (view->read_only)
        PyErr_SetString(PyExc_ValueError, "out is read-only");
    else if (view->device_type != like->device_type || view->device_id != like->device_id)
        PyErr_Format(PyExc_ValueError,
                     "out lies on DLPack device (%d, %d); the operation runs on (%d, %d)",
                     (int)view->device_type, (int)view->device_id, (int)like->device_type,
                     (int)like->device_id);
    else if (!mstc_view_is_plain(view))
        PyErr_SetString(PyExc_ValueError, "out's last dimension is not contiguous");
    else
        return mstc_view_dtype(view, "out", dtype);
    return -1;
}

PyObject *mstc_output_take(mstc_state *state, PyObject *given, PyObject *like,
                           const mstc_view *like_view, mstar_dtype *dtype, bool zero, int32_t rank,
                           const int64_t *shape, mstc_view *view)
{
    if (given == Py_None)
        return mstc_output_new(state, like, like_view, *dtype, zero, rank, shape, view);
    if (mstc_view_take(state, given, "out", view) < 0)
        return NULL;
    if (check_given(view, like_view, dtype, rank, shape) == 0)
        return Py_NewRef(given);
    mstc_view_drop(view);
    return NULL;
}

PyObject *mstc_output_finish(mstc_state *state, PyObject *like, PyObject *made)
{
    if (Py_TYPE(made) != state->tensor_type || Py_TYPE(like) == state->tensor_type ||
        (PyObject *)Py_TYPE(like) == state->numpy_array)
        return made;
    PyObject *module = mstc_frameworks(state);
    PyObject *finished =
        module == NULL ? NULL : PyObject_CallMethod(module, "adopt", "OO", like, made);
    Py_DECREF(made);
    return finished;
}
