/* py_shape.c - views of a Tensor: slices, and other shapes of the same elements. */
#include "py_core.h"

/* One slice of dimension dim of look; a whole number takes the dimension away. */
static int apply_index(mstar_tensor *look, int dim, PyObject *index, bool *taken_away)
{
    Py_ssize_t start, stop, step, size = (Py_ssize_t)look->shape[dim];
    *taken_away = !PySlice_Check(index);
    if (!*taken_away) {
        if (PySlice_Unpack(index, &start, &stop, &step) < 0)
            return -1;
        if (step < 1) {
            PyErr_Format(PyExc_ValueError, "a slice's step is %zd; it is at least 1", step);
            return -1;
        }
        const Py_ssize_t length = PySlice_AdjustIndices(size, &start, &stop, step);
        look->data = length == 0 || look->data == NULL
                         ? look->data
                         : (char *)look->data + (size_t)start * (size_t)look->strides[dim] *
                                                    mstar_dtype_bytes(look->dtype);
        look->shape[dim] = length;
        look->strides[dim] *= step;
        return 0;
    }
    start = PyNumber_AsSsize_t(index, PyExc_IndexError);
    if (start == -1 && PyErr_Occurred() != NULL)
        return -1;
    if (start < -size || start >= size) {
        PyErr_Format(PyExc_IndexError, "index %zd of dimension %d, which has %zd", start, dim,
                     size);
        return -1;
    }
    start += start < 0 ? size : 0;
    if (look->data != NULL)
        look->data = (char *)look->data +
                     (size_t)start * (size_t)look->strides[dim] * mstar_dtype_bytes(look->dtype);
    return 0;
}

/* tensor[i], tensor[a:b], tensor[a:b, c:d]: a view. */
PyObject *mstc_tensor_subscript(PyObject *self, PyObject *index)
{
    mstar_tensor look = mstc_tensor_look((mstc_tensor *)self);
    const Py_ssize_t count = PyTuple_Check(index) ? PyTuple_Size(index) : 1;
    if (count > look.rank) {
        PyErr_Format(PyExc_IndexError, "%zd indices for %d dimensions", count, (int)look.rank);
        return NULL;
    }
    int kept = 0;
    for (int dim = 0; dim < look.rank; dim++) {
        bool taken_away = false;
        if (dim < count) {
            PyObject *part = PyTuple_Check(index) ? PyTuple_GetItem(index, dim) : index;
            if (apply_index(&look, dim, part, &taken_away) < 0)
                return NULL;
        }
        if (!taken_away) {
            look.shape[kept] = look.shape[dim];
            look.strides[kept++] = look.strides[dim];
        }
    }
    look.rank = kept;
    return mstc_tensor_view(PyType_GetModuleState(Py_TYPE(self)), &look, self);
}

/* The sizes of reshape(2, 3) or reshape((2, 3)), one of which may be -1. */
static int read_sizes(PyObject *args, int64_t elements, int64_t *shape, int *rank)
{
    PyObject *sizes = PyTuple_Size(args) == 1 ? PyTuple_GetItem(args, 0) : NULL;
    if (sizes == NULL || !PyTuple_Check(sizes))
        sizes = args;
    const Py_ssize_t count = PyTuple_Size(sizes);
    int open = -1;
    int64_t product = 1;
    if (count > MSTAR_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%zd dimensions; at most %d", count, MSTAR_MAX_RANK);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
        if (shape[i] == -1 && PyErr_Occurred() != NULL)
            return -1;
        if (shape[i] == -1 && open < 0) {
            open = i;
        } else if (shape[i] < 0 || (shape[i] > 0 && product > elements / shape[i] + 1)) {
            PyErr_Format(PyExc_ValueError, "size %lld in dimension %d of %lld elements",
                         (long long)shape[i], i, (long long)elements);
            return -1;
        } else {
            product *= shape[i];
        }
    }
    if (open >= 0) {
        shape[open] = product == 0 ? 0 : elements / product;
        product *= shape[open];
    }
    if (product != elements) {
        PyErr_Format(PyExc_ValueError, "%lld elements cannot have the shape %S",
                     (long long)elements, sizes);
        return -1;
    }
    *rank = (int)count;
    return 0;
}

/* Drops dimensions of one element, whose strides say nothing. */
static int squeeze(const mstar_tensor *from, int64_t *shape, int64_t *strides)
{
    int rank = 0;
    for (int i = 0; i < from->rank; i++) {
        if (from->shape[i] == 1)
            continue;
        shape[rank] = from->shape[i];
        strides[rank++] = from->strides[i];
    }
    return rank;
}

/*
 * Strides of a new shape over the same elements, of which there are some; false where there are
 * none without a copy. From the last dimension on: as many old ones as are dense among themselves
 * and hold equally many elements as some new ones become these.
 */
static bool reshape_strides(const mstar_tensor *from, int rank, const int64_t *shape,
                            int64_t *strides)
{
    int64_t old_shape[MSTAR_MAX_RANK], old_strides[MSTAR_MAX_RANK];
    int old = squeeze(from, old_shape, old_strides) - 1, new = rank - 1;
    while (old >= 0) {
        int64_t have = old_shape[old], want = 1, stride = old_strides[old];
        const int64_t base = stride;
        while (want < have || (new >= 0 && want == have &&shape[new] == 1)) {
            strides[new] = stride;
            stride *= shape[new];
            want *= shape[new --];
            while (have < want) {
                if (--old < 0 || old_strides[old] != base * have)
                    return false;
                have *= old_shape[old];
            }
        }
        old--;
    }
    return true; /* what is left of the new shape are ones */
}

PyObject *mstc_tensor_reshape(PyObject *self, PyObject *args)
{
    const mstc_tensor *from = (const mstc_tensor *)self;
    mstar_tensor look = mstc_tensor_look(from);
    const int64_t elements = (int64_t)(from->bytes / mstar_dtype_bytes(from->dtype));
    int64_t shape[MSTAR_MAX_RANK] = {0};
    int rank = 0;
    if (read_sizes(args, elements, shape, &rank) < 0)
        return NULL;
    mstar_tensor made = mstar_tensor_make(look.data, look.dtype, rank, shape);
    made.device_kind = look.device_kind;
    made.device_index = look.device_index;
    if (elements != 0 && !reshape_strides(&look, rank, shape, made.strides)) {
        PyErr_SetString(PyExc_ValueError,
                        "the tensor's strides have no such shape without a copy; clone() it first");
        return NULL;
    }
    return mstc_tensor_view(PyType_GetModuleState(Py_TYPE(self)), &made, self);
}
