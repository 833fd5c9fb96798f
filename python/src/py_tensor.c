/*
 * py_tensor.c - mstarc.Tensor: what the package returns where the caller's framework has no array
 * for it (numpy and bfloat16) or there is no framework at all. It lies on the CPU or on a GPU,
 * where its methods work in the order of the stream that the caller's framework works on.
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

/* The session's pool where it is of this device; NULL: the CPU. */
static mstc_pool *pool_of(const mstar_device *device)
{
    const mstc_session *session = mstc_session_now();
    return session != NULL && session->pool != NULL && mstc_pool_device(session->pool) == device
               ? session->pool
               : NULL;
}

static mstar_status take_block(mstc_tensor *self, mstar_device *device, size_t bytes)
{
    mstar_buffer *buffer = NULL;
    mstar_status status = MSTAR_OK;
    self->pool = pool_of(device);
    if (self->pool != NULL) {
        status = mstc_pool_take(self->pool, bytes, &self->block);
    } else if (device != NULL) {
        status = mstar_buffer_create(device, bytes, &buffer);
        self->block = buffer;
    } else {
        self->block = PyMem_Malloc(bytes);
        if (self->block == NULL)
            status = mstar_fail(MSTAR_OUT_OF_MEMORY, "no memory for a tensor");
    }
    if (status != MSTAR_OK) {
        self->pool = NULL;
        self->block = NULL;
        return status;
    }
    const uintptr_t address = (uintptr_t)self->block;
    self->data = device != NULL ? mstar_buffer_get_data(self->block)
                                : (char *)self->block + (ALIGNMENT - address % ALIGNMENT);
    return MSTAR_OK;
}

mstc_tensor *mstc_tensor_new(mstc_state *state, const mstc_place *place, mstar_dtype dtype,
                             int32_t rank, const int64_t *shape)
{
    const size_t bytes = block_bytes(dtype, rank, shape);
    const bool on_cpu = place == NULL || place->kind == MSTAR_DEVICE_CPU;
    mstc_tensor *self = bytes == 0 ? NULL : allocate(state);
    if (bytes == 0)
        PyErr_NoMemory();
    if (self == NULL)
        return NULL;
    const mstar_tensor compact = mstar_tensor_make(NULL, dtype, rank, shape);
    set_shape(self, &compact);
    self->device_kind = on_cpu ? MSTAR_DEVICE_CPU : place->kind;
    self->device_index = on_cpu ? 0 : place->index;
    mstar_status status = take_block(self, on_cpu ? NULL : place->device, bytes);
    if (status != MSTAR_OK) {
        Py_DECREF(self);
        mstc_raise(status);
        return NULL;
    }
    return self;
}

PyObject *mstc_tensor_view(mstc_state *state, const mstar_tensor *view, PyObject *base)
{
    mstc_tensor *self = allocate(state);
    if (self == NULL)
        return NULL;
    set_shape(self, view);
    self->device_kind = view->device_kind;
    self->device_index = view->device_index;
    self->data = view->data;
    self->base = Py_NewRef(base);
    return (PyObject *)self;
}

mstar_tensor mstc_tensor_look(const mstc_tensor *self)
{
    mstar_tensor look = mstar_tensor_make(self->data, self->dtype, self->rank, self->shape);
    memcpy(look.strides, self->strides, sizeof look.strides);
    look.device_kind = self->device_kind;
    look.device_index = self->device_index;
    return look;
}

static bool is_on_cpu(const mstc_tensor *self)
{
    return self->device_kind == MSTAR_DEVICE_CPU;
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
    else if (is_on_cpu(self))
        PyMem_Free(self->block);
    else
        mstar_buffer_destroy(self->block); /* a view has none */
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
    if (!is_on_cpu(self)) {
        PyErr_Format(PyExc_BufferError, "the tensor lies on cuda:%d; use .cpu() first",
                     (int)self->device_index);
        return -1;
    }
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
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    PyObject *name = is_on_cpu(tensor) ? PyUnicode_FromString("cpu")
                                       : PyUnicode_FromFormat("cuda:%d", (int)tensor->device_index);
    PyObject *device = module == NULL || name == NULL
                           ? NULL
                           : PyObject_CallMethod(module, "own_device", "O", name);
    Py_XDECREF(name);
    return device;
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
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    const char *name = mstc_dtype_name(tensor->dtype);
    PyObject *text = NULL;
    if (shape != NULL && is_on_cpu(tensor))
        text = PyUnicode_FromFormat("mstarc.Tensor(shape=%S, dtype=mstarc.%s)", shape, name);
    else if (shape != NULL)
        text = PyUnicode_FromFormat("mstarc.Tensor(shape=%S, dtype=mstarc.%s, device='cuda:%d')",
                                    shape, name, (int)tensor->device_index);
    Py_XDECREF(shape);
    return text;
}

/* ---- methods --------------------------------------------------------------------------------- */

/* A compact copy as dtype, -1: its own; place NULL: where the tensor lies. */
static PyObject *copy_as(mstc_state *state, PyObject *self, const mstc_place *place, int32_t dtype)
{
    mstc_place own;
    mstc_view view;
    if (mstc_view_take(state, self, "tensor", &view) < 0)
        return NULL;
    PyObject *made = NULL;
    if (place != NULL || mstc_view_place(state, &view, &own) == 0)
        made = mstc_tensor_copy(state, &view, "tensor", place == NULL ? &own : place, dtype);
    mstc_view_drop(&view);
    return made;
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
            made = copy_as(state, self, NULL, (int32_t)dtype);
        else
            mstc_raise(status);
    }
    Py_XDECREF(name);
    return made;
}

static PyObject *tensor_clone(PyObject *self, PyObject *unused)
{
    (void)unused;
    return copy_as(state_of(self), self, NULL, -1);
}

static PyObject *tensor_cpu(PyObject *self, PyObject *unused)
{
    (void)unused;
    mstc_place cpu;
    if (is_on_cpu((const mstc_tensor *)self))
        return Py_NewRef(self);
    return mstc_place_of(state_of(self), "cpu", &cpu) < 0 ? NULL
                                                          : copy_as(state_of(self), self, &cpu, -1);
}

/* What the interpreter has by itself from 3.12 on. */
static PyObject *tensor_buffer(PyObject *self, PyObject *flags)
{
    Py_buffer buffer;
    const long asked = PyLong_AsLong(flags);
    if ((asked == -1 && PyErr_Occurred() != NULL) ||
        PyObject_GetBuffer(self, &buffer, (int)asked) < 0)
        return NULL;
    PyBuffer_Release(&buffer);
    return PyMemoryView_FromObject(self);
}

/* Through a memoryview, which knows how. */
static PyObject *tensor_tolist(PyObject *self, PyObject *unused)
{
    (void)unused;
    const mstar_dtype dtype = ((mstc_tensor *)self)->dtype;
    PyObject *here = tensor_cpu(self, NULL);
    PyObject *wide = here == NULL ? NULL
                     : dtype == MSTAR_DTYPE_BF16 || dtype == MSTAR_DTYPE_F16
                         ? PyObject_CallMethod(here, "to", "s", "float32")
                         : Py_NewRef(here);
    Py_XDECREF(here);
    PyObject *view = wide == NULL ? NULL : PyMemoryView_FromObject(wide);
    PyObject *list = view == NULL ? NULL : PyObject_CallMethod(view, "tolist", NULL);
    Py_XDECREF(view);
    Py_XDECREF(wide);
    return list;
}

static PyObject *tensor_numpy(PyObject *self, PyObject *unused)
{
    (void)unused;
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    if (!is_on_cpu(tensor)) {
        PyErr_Format(PyExc_TypeError, "the tensor lies on cuda:%d; use .cpu().numpy()",
                     (int)tensor->device_index);
        return NULL;
    }
    if (tensor->dtype == MSTAR_DTYPE_BF16) {
        PyErr_SetString(PyExc_TypeError, "numpy has no bfloat16; use .to(\"float32\").numpy()");
        return NULL;
    }
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *array = numpy == NULL ? NULL : PyObject_CallMethod(numpy, "asarray", "O", self);
    Py_XDECREF(numpy);
    return array;
}

/* array.astype(dtype, copy=copy is True): itself where it is of that dtype. */
static PyObject *cast_array(PyObject *array, PyObject *dtype, PyObject *copy)
{
    PyObject *method = PyObject_GetAttrString(array, "astype");
    PyObject *args = Py_BuildValue("(O)", dtype);
    PyObject *keywords = Py_BuildValue("{s:O}", "copy", copy == Py_True ? Py_True : Py_False);
    PyObject *made = method == NULL || args == NULL || keywords == NULL
                         ? NULL
                         : PyObject_Call(method, args, keywords);
    Py_XDECREF(method);
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    return made;
}

/* What numpy asks where the buffer protocol has no answer: it would else wrap the Tensor itself. */
static PyObject *tensor_array(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", names, &dtype, &copy))
        return NULL;
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    const bool widens = dtype != Py_None && is_on_cpu(tensor) && tensor->dtype == MSTAR_DTYPE_BF16;
    PyObject *from = widens ? PyObject_CallMethod(self, "to", "s", "float32") : Py_NewRef(self);
    PyObject *array = from == NULL ? NULL : tensor_numpy(from, NULL);
    Py_XDECREF(from);
    if (array == NULL || (dtype == Py_None && copy != Py_True))
        return array;
    PyObject *made = dtype == Py_None ? PyObject_CallMethod(array, "copy", NULL)
                                      : cast_array(array, dtype, copy);
    if (made != NULL && copy == Py_False && (widens || made != array)) {
        Py_CLEAR(made);
        PyErr_Format(PyExc_ValueError, "a tensor of %s is no array of %S without a copy",
                     mstc_dtype_name(tensor->dtype), dtype);
    }
    Py_DECREF(array);
    return made;
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))mstc_tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A DLPack capsule of this memory, without a copy unless copy is True."},
    {"__dlpack_device__", mstc_tensor_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\n(1, 0): the CPU; (2, N): cuda:N."},
    {"__buffer__", tensor_buffer, METH_O,
     "__buffer__($self, flags, /)\n--\n\nA memoryview; BufferError for bfloat16 and off the CPU."},
    {"__array__", (PyCFunction)(void (*)(void))tensor_array, METH_VARARGS | METH_KEYWORDS,
     "__array__($self, dtype=None, copy=None)\n--\n\n"
     "numpy(), as dtype where one is given: then bfloat16 too."},
    {"to", tensor_to, METH_O,
     "to($self, dtype, /)\n--\n\n"
     "A new contiguous Tensor of another floating dtype, rounded to nearest (ties to even). On a\n"
     "GPU it goes by way of the host."},
    {"cpu", tensor_cpu, METH_NOARGS,
     "cpu($self, /)\n--\n\n"
     "A copy in host memory, after the work that the caller's stream has; on the CPU the tensor\n"
     "itself."},
    {"clone", tensor_clone, METH_NOARGS, "clone($self, /)\n--\n\nA copy with memory of its own."},
    {"reshape", mstc_tensor_reshape, METH_VARARGS,
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
    {"device", get_device, NULL, "mstarc.device('cpu') or mstarc.device('cuda:N').", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of the elements.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_doc,
     "A tensor made by this package, on the CPU or on a GPU: mstarc.tensor and mstarc.zeros make\n"
     "one.\n\n"
     "Speaks DLPack (numpy.from_dlpack, torch.from_dlpack, jax.dlpack.from_dlpack) and, on the "
     "CPU\n"
     "and except for bfloat16, the buffer protocol (numpy.asarray). Slices and reshape give "
     "views.\n"
     "It has no arithmetic: mstarc.ops has, and what is done there is recorded in a capture."},
    {Py_tp_dealloc, (void *)tensor_dealloc},
    {Py_tp_traverse, (void *)tensor_traverse},
    {Py_tp_clear, (void *)tensor_clear},
    {Py_mp_subscript, (void *)mstc_tensor_subscript},
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
