/*
 * py_output.c - outputs from the caller's own framework.
 *
 * numpy and torch are asked from here, since a call is to cost little more than the memory; every
 * other framework goes through mstarc._frameworks, which knows how each makes an empty array.
 */
#include "py_core.h"

static int meet_numpy(mstc_state *state)
{
    if (state->numpy_empty != NULL)
        return 0;
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL)
        return -1;
    state->numpy_float32 = PyObject_CallMethod(numpy, "dtype", "s", "float32");
    state->numpy_float16 = PyObject_CallMethod(numpy, "dtype", "s", "float16");
    state->numpy_empty = PyObject_GetAttrString(numpy, "empty");
    Py_DECREF(numpy);
    if (state->numpy_empty != NULL && state->numpy_float32 != NULL && state->numpy_float16 != NULL)
        return 0;
    Py_CLEAR(state->numpy_empty);
    Py_CLEAR(state->numpy_float32);
    Py_CLEAR(state->numpy_float16);
    return -1;
}

static PyObject *tuple_of(int32_t rank, const int64_t *values)
{
    PyObject *tuple = PyTuple_New(rank);
    for (int i = 0; tuple != NULL && i < rank; i++) {
        PyObject *size = PyLong_FromLongLong(values[i]);
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

static PyObject *make_of_numpy(mstc_state *state, mstar_dtype dtype, PyObject *sizes)
{
    if (meet_numpy(state) < 0)
        return NULL;
    return PyObject_CallFunctionObjArgs(
        state->numpy_empty, sizes,
        dtype == MSTAR_DTYPE_F32 ? state->numpy_float32 : state->numpy_float16, NULL);
}

/* Whether what torch makes on "cuda" now lies where the view does; -1 with an exception. */
static int is_current(const mstc_torch *torch, const mstc_view *like)
{
    PyObject *number = PyObject_CallNoArgs(torch->current_device);
    const long index = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    return PyErr_Occurred() != NULL ? -1 : index == like->device_id;
}

/* By the function that torch's compiled code makes memory with, which does little else. NULL
 * without an exception: the framework is to be asked as any other. */
static PyObject *make_of_torch(const mstc_torch *torch, const mstc_view *like, mstar_dtype dtype,
                               int32_t rank, const int64_t *shape, PyObject *sizes)
{
    const bool cpu = like->device_type == MSTAR_DEVICE_CPU;
    PyObject *empty = cpu ? torch->empty_cpu : torch->empty_cuda;
    PyObject *type = dtype == MSTAR_DTYPE_F32    ? torch->float32
                     : dtype == MSTAR_DTYPE_BF16 ? torch->bfloat16
                     : dtype == MSTAR_DTYPE_F16  ? torch->float16
                                                 : NULL;
    if (empty == NULL || type == NULL || (!cpu && is_current(torch, like) <= 0))
        return NULL;
    const mstar_tensor compact = mstar_tensor_make(NULL, dtype, rank, shape);
    PyObject *steps = tuple_of(rank, compact.strides);
    PyObject *made =
        steps == NULL ? NULL : PyObject_CallFunctionObjArgs(empty, sizes, steps, type, NULL);
    Py_XDECREF(steps);
    return made;
}

/* Of like's own framework; None where it is to be a Tensor of ours. */
static PyObject *make_alike(mstc_state *state, PyObject *like, const mstc_view *like_view,
                            mstar_dtype dtype, bool zero, int32_t rank, const int64_t *shape)
{
    const mstc_kind *kind = mstc_kind_of(state, like);
    if (kind == NULL)
        return NULL;
    const mstc_framework framework = kind->framework;
    const bool bfloat16 = dtype == MSTAR_DTYPE_BF16;
    if (framework == MSTC_NUMPY && bfloat16 && like_view->code != 4)
        return Py_NewRef(Py_None);
    PyObject *sizes = tuple_of(rank, shape), *made = NULL;
    if (sizes == NULL)
        return NULL;
    if (framework == MSTC_NUMPY && !bfloat16)
        made = make_of_numpy(state, dtype, sizes);
    else if (framework == MSTC_TORCH && !zero)
        made = make_of_torch(&state->torch, like_view, dtype, rank, shape, sizes);
    if (made == NULL && PyErr_Occurred() == NULL)
        made = ask_framework(state, like, dtype, zero, sizes);
    Py_DECREF(sizes);
    return made;
}

PyObject *mstc_output_new(mstc_state *state, PyObject *like, const mstc_view *like_view,
                          mstar_dtype dtype, bool zero, int32_t rank, const int64_t *shape,
                          mstc_view *view)
{
    PyObject *made = NULL;
    if (Py_TYPE(like) != state->tensor_type) {
        made = make_alike(state, like, like_view, dtype, zero, rank, shape);
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
    if (Py_TYPE(made) != state->tensor_type || Py_TYPE(like) == state->tensor_type)
        return made;
    const mstc_kind *kind = mstc_kind_of(state, like);
    if (kind != NULL && kind->framework == MSTC_NUMPY)
        return made;
    PyObject *module = kind == NULL ? NULL : mstc_frameworks(state);
    PyObject *finished =
        module == NULL ? NULL : PyObject_CallMethod(module, "adopt", "OO", like, made);
    Py_DECREF(made);
    return finished;
}
