/*
 * py_tensor.c - mstarc.Tensor: what the package returns where the caller's framework has no array
 * for it (numpy and bfloat16) or there is no framework at all.
 */
#include <string.h>

#include "py_core.h"

enum { ALIGNMENT = 256 }; /* what DLPack asks of data */

const char *mstc_dtype_name(mstar_dtype dtype)
{
    static const char *const names[] = {
        [MSTAR_DTYPE_F32] = "float32",
        [MSTAR_DTYPE_BF16] = "bfloat16",
        [MSTAR_DTYPE_F16] = "float16",
        [MSTAR_DTYPE_F64] = "float64",
        [MSTAR_DTYPE_I64] = "int64",
        [MSTAR_DTYPE_I32] = "int32",
        [MSTAR_DTYPE_I16] = "int16",
        [MSTAR_DTYPE_I8] = "int8",
        [MSTAR_DTYPE_U8] = "uint8",
        [MSTAR_DTYPE_BOOL] = "bool",
        [MSTAR_DTYPE_F8_E4M3] = "float8_e4m3fn",
        [MSTAR_DTYPE_F8_E5M2] = "float8_e5m2",
    };
    return (size_t)dtype < sizeof names / sizeof names[0] ? names[dtype] : "unknown";
}

static mstc_state *state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

/* Shape and strides, also in the words of the buffer protocol. */
static void set_shape(mstc_tensor *self, const mstar_tensor *shape)
{
    const size_t element = mstar_dtype_bytes(shape->dtype);
    self->dtype = shape->dtype;
    self->rank = shape->rank;
    self->bytes = element;
    for (int i = 0; i < shape->rank; i++) {
        self->shape[i] = shape->shape[i];
        self->strides[i] = shape->strides[i];
        self->buffer_shape[i] = (Py_ssize_t)shape->shape[i];
        self->buffer_strides[i] = (Py_ssize_t)shape->strides[i] * (Py_ssize_t)element;
        self->bytes *= (size_t)shape->shape[i];
    }
}

/* Bytes of a compact tensor and room to align it; 0 where they pass what an address can count. */
static size_t block_bytes(mstar_dtype dtype, int32_t rank, const int64_t *shape)
{
    size_t bytes = mstar_dtype_bytes(dtype);
    for (int i = rank - 1; i >= 0; i--) {
        if (shape[i] != 0 && bytes > (size_t)PTRDIFF_MAX / 2 / (size_t)shape[i])
            return 0;
        bytes *= (size_t)shape[i];
    }
    return bytes + ALIGNMENT;
}

static mstc_tensor *allocate(mstc_state *state)
{
    allocfunc alloc = PyType_GetSlot(state->tensor_type, Py_tp_alloc);
    return (mstc_tensor *)alloc(state->tensor_type, 0);
}

mstc_tensor *mstc_tensor_new(mstc_state *state, mstar_dtype dtype, int32_t rank,
                             const int64_t *shape)
{
    const size_t bytes = block_bytes(dtype, rank, shape);
    mstc_tensor *self = bytes == 0 ? NULL : allocate(state);
    if (bytes == 0)
        PyErr_NoMemory();
    if (self == NULL)
        return NULL;
    const mstar_tensor compact = mstar_tensor_make(NULL, dtype, rank, shape);
    set_shape(self, &compact);
    const mstc_session *session = mstc_session_now();
    self->pool = session == NULL ? NULL : session->pool;
    self->block = self->pool == NULL ? PyMem_Malloc(bytes) : mstc_pool_take(self->pool, bytes);
    if (self->block == NULL) {
        self->pool = NULL;
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    const uintptr_t address = (uintptr_t)self->block;
    self->data = (char *)self->block + (ALIGNMENT - address % ALIGNMENT);
    return self;
}

PyObject *mstc_tensor_view(mstc_state *state, const mstar_tensor *view, PyObject *base)
{
    mstc_tensor *self = allocate(state);
    if (self == NULL)
        return NULL;
    set_shape(self, view);
    self->data = view->data;
    self->base = Py_NewRef(base);
    return (PyObject *)self;
}

mstar_tensor mstc_tensor_look(const mstc_tensor *self)
{
    mstar_tensor look = mstar_tensor_make(self->data, self->dtype, self->rank, self->shape);
    memcpy(look.strides, self->strides, sizeof look.strides);
    return look;
}

static bool is_compact(const mstc_tensor *self)
{
    const mstar_tensor compact = mstar_tensor_make(NULL, self->dtype, self->rank, self->shape);
    for (int i = 0; i < self->rank && self->bytes > 0; i++)
        if (self->shape[i] != 1 && self->strides[i] != compact.strides[i])
            return false;
    return true;
}

static int tensor_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((mstc_tensor *)self)->base);
    return 0;
}

/* The memory is out of reach from here on, and so are the elements. */
static int tensor_clear(PyObject *object)
{
    mstc_tensor *self = (mstc_tensor *)object;
    if (self->base != NULL) {
        self->data = NULL;
        memset(self->shape, 0, sizeof self->shape);
        memset(self->buffer_shape, 0, sizeof self->buffer_shape);
        self->bytes = 0;
        Py_CLEAR(self->base);
    }
    return 0;
}

static void tensor_dealloc(PyObject *object)
{
    mstc_tensor *self = (mstc_tensor *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->pool != NULL)
        mstc_pool_give(self->pool, self->block);
    else
        PyMem_Free(self->block);
    Py_CLEAR(self->base);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* The letter of a dtype in the format language of struct; NULL where it has none. */
static const char *format_of(mstar_dtype dtype)
{
    switch (dtype) {
    case MSTAR_DTYPE_F32:
        return "f";
    case MSTAR_DTYPE_F16:
        return "e";
    case MSTAR_DTYPE_F64:
        return "d";
    case MSTAR_DTYPE_I64:
        return "q";
    case MSTAR_DTYPE_I32:
        return "i";
    case MSTAR_DTYPE_I16:
        return "h";
    case MSTAR_DTYPE_I8:
        return "b";
    case MSTAR_DTYPE_U8:
        return "B";
    case MSTAR_DTYPE_BOOL:
        return "?";
    default:
        return NULL;
    }
}

static int tensor_getbuffer(PyObject *exporter, Py_buffer *buffer, int flags)
{
    mstc_tensor *self = (mstc_tensor *)exporter;
    const char *format = format_of(self->dtype);
    buffer->obj = NULL;
    if (format == NULL) {
        PyErr_Format(PyExc_BufferError,
                     "the buffer protocol has no %s; use DLPack, or .to(\"float32\") first",
                     mstc_dtype_name(self->dtype));
        return -1;
    }
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !is_compact(self)) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous; ask for strides");
        return -1;
    }
    memset(buffer, 0, sizeof *buffer);
    buffer->obj = Py_NewRef(exporter);
    buffer->buf = self->data;
    buffer->len = (Py_ssize_t)self->bytes;
    buffer->itemsize = (Py_ssize_t)mstar_dtype_bytes(self->dtype);
    buffer->format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? (char *)(uintptr_t)format : NULL;
    buffer->ndim = self->rank;
    buffer->shape = (flags & PyBUF_ND) == PyBUF_ND ? self->buffer_shape : NULL;
    buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->buffer_strides : NULL;
    return 0;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    PyObject *shape = PyTuple_New(tensor->rank);
    for (int i = 0; shape != NULL && i < tensor->rank; i++) {
        PyObject *size = PyLong_FromLongLong(tensor->shape[i]);
        if (size == NULL || PyTuple_SetItem(shape, i, size) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    PyObject *module = mstc_frameworks(state_of(self));
    return module == NULL ? NULL
                          : PyObject_CallMethod(module, "own_dtype", "s",
                                                mstc_dtype_name(((mstc_tensor *)self)->dtype));
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)unused;
    PyObject *module = mstc_frameworks(state_of(self));
    return module == NULL ? NULL : PyObject_CallMethod(module, "own_device", "s", "cpu");
}

static PyObject *get_ndim(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((mstc_tensor *)self)->rank);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((mstc_tensor *)self)->bytes);
}

static Py_ssize_t tensor_length(PyObject *self)
{
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    if (tensor->rank == 0) {
        PyErr_SetString(PyExc_TypeError, "a tensor without dimensions has no length");
        return -1;
    }
    return (Py_ssize_t)tensor->shape[0];
}

static PyObject *tensor_repr(PyObject *self)
{
    PyObject *shape = get_shape(self, NULL);
    PyObject *text = shape == NULL
                         ? NULL
                         : PyUnicode_FromFormat("mstarc.Tensor(shape=%S, dtype=mstarc.%s)", shape,
                                                mstc_dtype_name(((mstc_tensor *)self)->dtype));
    Py_XDECREF(shape);
    return text;
}

/* ---- methods --------------------------------------------------------------------------------- */

/* A compact copy as dtype; from and dtype are equal, or dtype is a floating one. */
static PyObject *copy_as(mstc_state *state, PyObject *self, mstar_dtype dtype)
{
    const mstc_tensor *from = (const mstc_tensor *)self;
    mstc_tensor *made = mstc_tensor_new(state, dtype, from->rank, from->shape);
    mstc_view view;
    if (made == NULL || mstc_view_take(state, self, "tensor", &view) < 0) {
        Py_XDECREF((PyObject *)made);
        return NULL;
    }
    mstar_status status;
    Py_BEGIN_ALLOW_THREADS status = mstc_view_pack(&view, from->dtype, dtype, made->data);
    Py_END_ALLOW_THREADS mstc_view_drop(&view);
    if (status != MSTAR_OK) {
        Py_CLEAR(made);
        mstc_raise(status);
    }
    return (PyObject *)made;
}

static PyObject *tensor_to(PyObject *self, PyObject *dtype_object)
{
    mstc_state *state = state_of(self);
    PyObject *module = mstc_frameworks(state);
    PyObject *name =
        module == NULL ? NULL : PyObject_CallMethod(module, "dtype_name", "O", dtype_object);
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    mstar_dtype dtype;
    PyObject *made = NULL;
    if (text != NULL) {
        mstar_status status = mstar_dtype_parse(text, &dtype);
        if (status == MSTAR_OK)
            made = copy_as(state, self, dtype);
        else
            mstc_raise(status);
    }
    Py_XDECREF(name);
    return made;
}

static PyObject *tensor_clone(PyObject *self, PyObject *unused)
{
    (void)unused;
    return copy_as(state_of(self), self, ((mstc_tensor *)self)->dtype);
}

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
static PyObject *tensor_subscript(PyObject *self, PyObject *index)
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
    return mstc_tensor_view(state_of(self), &look, self);
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

static PyObject *tensor_reshape(PyObject *self, PyObject *args)
{
    const mstc_tensor *from = (const mstc_tensor *)self;
    mstar_tensor look = mstc_tensor_look(from);
    const int64_t elements = (int64_t)(from->bytes / mstar_dtype_bytes(from->dtype));
    int64_t shape[MSTAR_MAX_RANK] = {0};
    int rank = 0;
    if (read_sizes(args, elements, shape, &rank) < 0)
        return NULL;
    mstar_tensor made = mstar_tensor_make(look.data, look.dtype, rank, shape);
    if (elements != 0 && !reshape_strides(&look, rank, shape, made.strides)) {
        PyErr_SetString(PyExc_ValueError,
                        "the tensor's strides have no such shape without a copy; clone() it first");
        return NULL;
    }
    return mstc_tensor_view(state_of(self), &made, self);
}

/* Through a memoryview, which knows how. */
static PyObject *tensor_tolist(PyObject *self, PyObject *unused)
{
    (void)unused;
    const mstar_dtype dtype = ((mstc_tensor *)self)->dtype;
    PyObject *wide = dtype == MSTAR_DTYPE_BF16 || dtype == MSTAR_DTYPE_F16
                         ? PyObject_CallMethod(self, "to", "s", "float32")
                         : Py_NewRef(self);
    PyObject *view = wide == NULL ? NULL : PyMemoryView_FromObject(wide);
    PyObject *list = view == NULL ? NULL : PyObject_CallMethod(view, "tolist", NULL);
    Py_XDECREF(view);
    Py_XDECREF(wide);
    return list;
}

static PyObject *tensor_numpy(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (((mstc_tensor *)self)->dtype == MSTAR_DTYPE_BF16) {
        PyErr_SetString(PyExc_TypeError, "numpy has no bfloat16; use .to(\"float32\").numpy()");
        return NULL;
    }
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *array = numpy == NULL ? NULL : PyObject_CallMethod(numpy, "asarray", "O", self);
    Py_XDECREF(numpy);
    return array;
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))mstc_tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule of this memory, without a copy unless copy is True."},
    {"__dlpack_device__", mstc_tensor_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\n(1, 0): the CPU."},
    {"to", tensor_to, METH_O,
     "to($self, dtype, /)\n--\n\n"
     "A new contiguous Tensor of another floating dtype, rounded to nearest (ties to even)."},
    {"clone", tensor_clone, METH_NOARGS, "clone($self, /)\n--\n\nA copy with memory of its own."},
    {"reshape", tensor_reshape, METH_VARARGS,
     "reshape($self, /, *shape)\n--\n\n"
     "A view of the same elements in another shape, one size of which may be -1.\n\n"
     "Splits a strided dimension ([T, H * D] of a fused projection into [T, H, D]). ValueError\n"
     "where that takes a copy."},
    {"tolist", tensor_tolist, METH_NOARGS,
     "tolist($self, /)\n--\n\nNested lists of floats; every dtype widens exactly."},
    {"numpy", tensor_numpy, METH_NOARGS,
     "numpy($self, /)\n--\n\n"
     "A numpy array on the same memory; TypeError for bfloat16, which numpy lacks."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tensor_attributes[] = {
    {"shape", get_shape, NULL, "Sizes, a tuple of ints.", NULL},
    {"dtype", get_dtype, NULL, "A dtype of this package, such as mstarc.bfloat16.", NULL},
    {"device", get_device, NULL, "mstarc.device('cpu').", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of the elements.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_doc,
     "A tensor in host memory, made by this package: mstarc.empty and mstarc.tensor make one.\n\n"
     "Speaks DLPack (numpy.from_dlpack, torch.from_dlpack, jax.dlpack.from_dlpack) and, except\n"
     "for bfloat16, the buffer protocol (numpy.asarray). Slices and reshape give views. It has no\n"
     "arithmetic: mstarc.ops has, and what is done there is recorded in a capture."},
    {Py_tp_dealloc, (void *)tensor_dealloc},
    {Py_tp_traverse, (void *)tensor_traverse},
    {Py_tp_clear, (void *)tensor_clear},
    {Py_mp_subscript, (void *)tensor_subscript},
    {Py_mp_length, (void *)tensor_length},
    {Py_tp_repr, (void *)tensor_repr},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_attributes},
    {Py_sq_length, (void *)tensor_length},
    {Py_bf_getbuffer, (void *)tensor_getbuffer},
    {0, NULL},
};

PyType_Spec mstc_tensor_spec = {
    .name = "mstarc.Tensor",
    .basicsize = sizeof(mstc_tensor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = tensor_slots,
};
