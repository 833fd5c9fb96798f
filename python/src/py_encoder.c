/* py_encoder.c - a text encoder behind mstarc.Embedder. */
#include <string.h>

#include "py_core.h"

typedef struct mstc_encoder {
    PyObject_HEAD mstar_device *device; /* its own when the caller named a number of threads */
    mstar_device *host;                 /* where vectors lie: the same, or the shared "cpu" */
    mstar_stream *stream;               /* of host */
    mstar_encoder *encoder;
    bool owns_device;
    PyThread_type_lock lock;
    int32_t dims;
    bool normalizes; /* the folder's own modules do */
} mstc_encoder;

static mstar_status load(mstc_encoder *self, const char *folder, const mstar_encoder_desc *desc)
{
    mstar_encoder_info info = {.struct_size = sizeof info};
    mstar_status status = mstar_stream_create(self->host, -1, &self->stream);
    if (status == MSTAR_OK)
        status = mstar_encoder_load(self->device, folder, desc, &self->encoder);
    if (status == MSTAR_OK)
        status = mstar_encoder_query(self->encoder, &info);
    self->dims = info.dims;
    self->normalizes = info.normalize == 1;
    return status;
}

/* The shared device, or one of its own with so many threads. */
static int open_device(mstc_state *state, mstc_encoder *self, const char *name, int num_threads)
{
    if (num_threads == -1) {
        self->device = mstc_device(state, name);
        return self->device == NULL ? -1 : 0;
    }
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = num_threads;
    mstar_status status = mstar_device_open(name, &desc, &self->device);
    self->owns_device = status == MSTAR_OK;
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return -1;
    }
    return 0;
}

static int raise_load(mstar_status status)
{
    if (status == MSTAR_NOT_FOUND) /* of a folder or file, which Python names so */
        mstc_raise_as(PyExc_FileNotFoundError);
    else
        mstc_raise(status);
    return -1;
}

static int read_truncate(const char *text, mstar_truncate *truncate)
{
    if (strcmp(text, "end") == 0) {
        *truncate = MSTAR_TRUNCATE_END;
    } else if (strcmp(text, "start") == 0) {
        *truncate = MSTAR_TRUNCATE_START;
    } else if (strcmp(text, "error") == 0) {
        *truncate = MSTAR_TRUNCATE_ERROR;
    } else {
        PyErr_Format(PyExc_ValueError,
                     "truncate is '%.40s'; accepted are 'end', 'start' and 'error'", text);
        return -1;
    }
    return 0;
}

/* Encoder(folder, device, num_threads, dtype, max_tokens, truncate, prompt_name) */
static PyObject *encoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"folder",     "device",   "num_threads", "dtype",
                            "max_tokens", "truncate", "prompt_name", NULL};
    mstar_encoder_desc desc;
    mstar_encoder_desc_init(&desc);
    const char *folder, *device, *dtype, *truncate;
    int num_threads;
    long long max_tokens;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ssisLsz:Encoder", names, &folder, &device,
                                     &num_threads, &dtype, &max_tokens, &truncate,
                                     &desc.prompt_name))
        return NULL;
    desc.max_tokens = max_tokens;
    if (read_truncate(truncate, &desc.truncate) < 0)
        return NULL;
    mstar_status status = mstar_dtype_parse(dtype, &desc.dtype);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    mstc_encoder *self = (mstc_encoder *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lock = PyThread_allocate_lock();
    if (self->lock == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    mstc_state *state = PyType_GetModuleState(type);
    int failed = open_device(state, self, device, num_threads);
    if (failed == 0) {
        self->host = strcmp(device, "cpu") == 0 ? self->device : mstc_device(state, "cpu");
        failed = self->host == NULL ? -1 : 0;
    }
    if (failed == 0) {
        Py_BEGIN_ALLOW_THREADS status = load(self, folder, &desc);
        Py_END_ALLOW_THREADS if (status != MSTAR_OK) failed = raise_load(status);
    }
    if (failed != 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void encoder_dealloc(PyObject *object)
{
    mstc_encoder *self = (mstc_encoder *)object;
    PyTypeObject *type = Py_TYPE(object);
    mstar_encoder_release(self->encoder);
    mstar_stream_destroy(self->stream);
    if (self->owns_device)
        mstar_device_close(self->device);
    if (self->lock != NULL)
        PyThread_free_lock(self->lock);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* ---- texts to vectors ------------------------------------------------------------------------ */

/* Borrowed UTF-8 of each string of a tuple, which the tuple keeps alive. */
static int read_texts(PyObject *tuple, Py_ssize_t count, mstar_text *texts)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *text = PyTuple_GetItem(tuple, i);
        Py_ssize_t bytes;
        if (!PyUnicode_Check(text)) {
            PyErr_Format(PyExc_TypeError, "sentences[%zd] is a %R; expected a str", i,
                         Py_TYPE(text));
            return -1;
        }
        texts[i].data = PyUnicode_AsUTF8AndSize(text, &bytes);
        if (texts[i].data == NULL)
            return -1;
        texts[i].bytes = (size_t)bytes;
    }
    return 0;
}

static mstar_status embed(mstc_encoder *self, const mstar_text *texts, int64_t count,
                          bool normalize, const mstc_tensor *vectors)
{
    mstar_status status =
        mstar_encoder_embed(self->encoder, texts, count, vectors->data, self->dims, NULL);
    if (status != MSTAR_OK || !normalize || self->normalizes || count == 0)
        return status;
    const mstar_tensor rows = mstar_tensor_make(vectors->data, MSTAR_DTYPE_F32, 2, vectors->shape);
    status = mstar_normalize(self->stream, &rows, &rows);
    return status == MSTAR_OK ? mstar_stream_synchronize(self->stream) : status;
}

/* encode(tuple of str, normalize) -> Tensor [n, dims] f32 */
static PyObject *encoder_encode(PyObject *object, PyObject *args)
{
    mstc_encoder *self = (mstc_encoder *)object;
    PyObject *sentences;
    int normalize;
    if (!PyArg_ParseTuple(args, "Op:encode", &sentences, &normalize))
        return NULL;
    PyObject *tuple = PySequence_Tuple(sentences);
    if (tuple == NULL)
        return NULL;
    const Py_ssize_t count = PyTuple_Size(tuple);
    mstar_text *texts = PyMem_Malloc((size_t)(count + 1) * sizeof *texts);
    const int64_t shape[2] = {count, self->dims};
    mstc_tensor *vectors = NULL;
    if (texts == NULL)
        PyErr_NoMemory();
    else if (read_texts(tuple, count, texts) == 0)
        vectors = mstc_tensor_new(PyType_GetModuleState(Py_TYPE(object)), NULL, MSTAR_DTYPE_F32, 2,
                                  shape);
    if (vectors != NULL) {
        mstar_status status;
        mstc_lock(self->lock);
        Py_BEGIN_ALLOW_THREADS status = embed(self, texts, count, normalize != 0, vectors);
        Py_END_ALLOW_THREADS PyThread_release_lock(self->lock);
        if (status != MSTAR_OK) {
            Py_CLEAR(vectors);
            mstc_raise(status);
        }
    }
    PyMem_Free(texts);
    Py_DECREF(tuple);
    return (PyObject *)vectors;
}

static PyObject *encoder_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_encoder *self = (mstc_encoder *)object;
    mstar_encoder_info info = {.struct_size = sizeof info};
    mstc_lock(self->lock);
    mstar_status status = mstar_encoder_query(self->encoder, &info);
    PyThread_release_lock(self->lock);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_BuildValue(
        "{s:i,s:i,s:O,s:L,s:s,s:s,s:s,s:s,s:s,s:s,s:K,s:n}", "dims", (int)info.dims, "layers",
        (int)info.layers, "normalize", info.normalize == 1 ? Py_True : Py_False, "max_tokens",
        (long long)info.max_tokens, "model_type", info.model_type, "dtype",
        mstc_dtype_name(info.dtype), "pooling_source", info.pooling_source, "normalize_source",
        info.normalize_source, "max_tokens_source", info.max_tokens_source, "prompt", info.prompt,
        "parameters", (unsigned long long)info.parameters, "weight_bytes",
        (Py_ssize_t)info.weight_bytes);
}

static PyMethodDef encoder_methods[] = {
    {"encode", encoder_encode, METH_VARARGS, NULL},
    {"info", encoder_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot encoder_slots[] = {
    {Py_tp_new, (void *)encoder_new},
    {Py_tp_dealloc, (void *)encoder_dealloc},
    {Py_tp_methods, encoder_methods},
    {0, NULL},
};

PyType_Spec mstc_encoder_spec = {
    .name = "mstarc._core.Encoder",
    .basicsize = sizeof(mstc_encoder),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = encoder_slots,
};
