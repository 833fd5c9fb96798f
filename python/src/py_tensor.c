/*
 * py_tensor.c - mstarc.Tensor: what the package returns where the caller's framework has no array
 * for it (numpy and bfloat16) or there is no framework at all.
 */
#include <string.h>

#include "py_core.h"

enum { ALIGNMENT = 256 }; /* what DLPack asks of data */

const char *mstc_dtype_name(mstar_dtype dtype)
{
    switch (dtype) {
    case MSTAR_DTYPE_F32:
        return "float32";
    case MSTAR_DTYPE_BF16:
        return "bfloat16";
    case MSTAR_DTYPE_F16:
        return "float16";
    default:
        return mstar_dtype_name(dtype);
    }
}

static mstc_state *state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

mstc_tensor *mstc_tensor_new(mstc_state *state, mstar_dtype dtype, int32_t rank,
                             const int64_t *shape)
{
    allocfunc alloc = PyType_GetSlot(state->tensor_type, Py_tp_alloc);
    mstc_tensor *self = (mstc_tensor *)alloc(state->tensor_type, 0);
    if (self == NULL)
        return NULL;
    size_t bytes = mstar_dtype_bytes(dtype);
    self->dtype = dtype;
    self->rank = rank;
    for (int i = rank - 1; i >= 0; i--) {
        self->shape[i] = shape[i];
        self->buffer_shape[i] = (Py_ssize_t)shape[i];
        self->buffer_strides[i] = (Py_ssize_t)bytes;
        if (shape[i] != 0 && bytes > (size_t)PTRDIFF_MAX / 2 / (size_t)shape[i]) {
            Py_DECREF(self);
            PyErr_NoMemory();
            return NULL;
        }
        bytes *= (size_t)shape[i];
    }
    self->bytes = bytes;
    self->block = PyMem_Malloc(bytes + ALIGNMENT);
    if (self->block == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    const uintptr_t address = (uintptr_t)self->block;
    self->data = (char *)self->block + (ALIGNMENT - address % ALIGNMENT);
    return self;
}

static void tensor_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((mstc_tensor *)self)->block);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int tensor_getbuffer(PyObject *exporter, Py_buffer *buffer, int flags)
{
    mstc_tensor *self = (mstc_tensor *)exporter;
    const char *format = self->dtype == MSTAR_DTYPE_F32   ? "f"
                         : self->dtype == MSTAR_DTYPE_F16 ? "e"
                                                          : NULL;
    buffer->obj = NULL;
    if (format == NULL) {
        PyErr_Format(PyExc_BufferError,
                     "the buffer protocol has no %s; use DLPack, or .to(\"float32\") first",
                     mstc_dtype_name(self->dtype));
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

static PyObject *tensor_to(PyObject *self, PyObject *dtype_object)
{
    mstc_state *state = state_of(self);
    const mstc_tensor *from = (const mstc_tensor *)self;
    PyObject *module = mstc_frameworks(state);
    PyObject *name =
        module == NULL ? NULL : PyObject_CallMethod(module, "dtype_name", "O", dtype_object);
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    mstar_dtype dtype;
    mstar_status status = MSTAR_OK;
    mstc_tensor *made = NULL;
    if (text != NULL && (status = mstar_dtype_parse(text, &dtype)) == MSTAR_OK) {
        made = mstc_tensor_new(state, dtype, from->rank, from->shape);
        const size_t count = from->bytes / mstar_dtype_bytes(from->dtype);
        if (made != NULL) {
            Py_BEGIN_ALLOW_THREADS status =
                mstar_convert(from->data, from->dtype, made->data, dtype, count);
            Py_END_ALLOW_THREADS
        }
    }
    Py_XDECREF(name);
    if (status != MSTAR_OK) {
        Py_CLEAR(made);
        mstc_raise(status);
    }
    return (PyObject *)made;
}

static PyObject *tensor_clone(PyObject *self, PyObject *unused)
{
    (void)unused;
    const mstc_tensor *from = (const mstc_tensor *)self;
    mstc_tensor *made = mstc_tensor_new(state_of(self), from->dtype, from->rank, from->shape);
    if (made != NULL)
        memcpy(made->data, from->data, from->bytes);
    return (PyObject *)made;
}

/* Through a float32 memoryview, which knows how. */
static PyObject *tensor_tolist(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *wide = ((mstc_tensor *)self)->dtype == MSTAR_DTYPE_F32
                         ? Py_NewRef(self)
                         : PyObject_CallMethod(self, "to", "s", "float32");
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
     "A new Tensor of another dtype, rounded to nearest (ties to even)."},
    {"clone", tensor_clone, METH_NOARGS, "clone($self, /)\n--\n\nA copy with memory of its own."},
    {"tolist", tensor_tolist, METH_NOARGS,
     "tolist($self, /)\n--\n\nNested lists of floats; every dtype widens exactly."},
    {"numpy", tensor_numpy, METH_NOARGS,
     "numpy($self, /)\n--\n\n"
     "A numpy array on the same memory (float32 and float16; TypeError for bfloat16)."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tensor_attributes[] = {
    {"shape", get_shape, NULL, "Sizes, a tuple of ints.", NULL},
    {"dtype", get_dtype, NULL, "mstarc.float32, mstarc.bfloat16 or mstarc.float16.", NULL},
    {"device", get_device, NULL, "mstarc.device('cpu').", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of the elements.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_doc,
     "A contiguous tensor in host memory, made by this package.\n\n"
     "Speaks DLPack (numpy.from_dlpack, torch.from_dlpack, jax.dlpack.from_dlpack) and,\n"
     "for float32 and float16, the buffer protocol (numpy.asarray). May be handed on as\n"
     "q, k or v. Cannot be made by hand."},
    {Py_tp_dealloc, (void *)tensor_dealloc},
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
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = tensor_slots,
};
