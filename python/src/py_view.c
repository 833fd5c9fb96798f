/*
 * py_view.c - looks at tensors that come in, without copying them.
 *
 * The order is that of cost: our own Tensor, the buffer protocol (numpy, array, memoryview), the
 * framework's C table (torch from 2.10), what its class is known to tell sooner (cupy's, and
 * torch's before that), the __dlpack__ method (jax and others), and in the end arrays of numpy
 * whose dtype neither of the two can name (bfloat16 of ml_dtypes).
 */
#include <string.h>

#include "py_core.h"

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_BOOL = 6,
    DL_E4M3 = 10,
    DL_E5M2 = 12
};

static const char versioned_name[] = "dltensor_versioned",
                  used_versioned[] = "used_dltensor_versioned";
static const char legacy_name[] = "dltensor", used_legacy[] = "used_dltensor";

static const struct {
    uint8_t code, bits;
    int8_t dtype; /* mstar_dtype; -1: the library has none */
    const char *name;
} kinds[] = {
    {DL_FLOAT, 32, MSTAR_DTYPE_F32, "float32"},
    {DL_BFLOAT, 16, MSTAR_DTYPE_BF16, "bfloat16"},
    {DL_FLOAT, 16, MSTAR_DTYPE_F16, "float16"},
    {DL_FLOAT, 64, MSTAR_DTYPE_F64, "float64"},
    {DL_INT, 64, MSTAR_DTYPE_I64, "int64"},
    {DL_INT, 32, MSTAR_DTYPE_I32, "int32"},
    {DL_INT, 16, MSTAR_DTYPE_I16, "int16"},
    {DL_INT, 8, MSTAR_DTYPE_I8, "int8"},
    {DL_UINT, 8, MSTAR_DTYPE_U8, "uint8"},
    {DL_BOOL, 8, MSTAR_DTYPE_BOOL, "bool"},
    {DL_E4M3, 8, MSTAR_DTYPE_F8_E4M3, "float8_e4m3fn"},
    {DL_E5M2, 8, MSTAR_DTYPE_F8_E5M2, "float8_e5m2"},
    {DL_UINT, 16, -1, "uint16"},
    {DL_UINT, 32, -1, "uint32"},
    {DL_UINT, 64, -1, "uint64"},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

static int find_kind(uint8_t code, uint8_t bits)
{
    for (int i = 0; i < NUM_KINDS; i++)
        if (kinds[i].code == code && kinds[i].bits == bits)
            return i;
    return -1;
}

const char *mstc_view_dtype_name(const mstc_view *view)
{
    int kind = find_kind(view->code, view->bits);
    return kind < 0 ? "unknown" : kinds[kind].name;
}

int mstc_view_dtype(const mstc_view *view, const char *name, mstar_dtype *dtype)
{
    int kind = find_kind(view->code, view->bits);
    if (kind < 0 || kinds[kind].dtype < 0) {
        PyErr_Format(PyExc_TypeError, "%s has dtype %s, which cannot be converted", name,
                     mstc_view_dtype_name(view));
        return -1;
    }
    *dtype = (mstar_dtype)kinds[kind].dtype;
    return 0;
}

int mstc_view_place(mstc_state *state, const mstc_view *view, mstc_place *place)
{
    char name[16] = "cpu";
    if (view->device_type != DL_CPU)
        (void)PyOS_snprintf(name, sizeof name, "cuda:%d", (int)view->device_id);
    return mstc_place_of(state, name, place);
}

/* ---- the buffer protocol --------------------------------------------------------------------- */

/* One element in the format language of struct, native byte order. */
static int read_format(const Py_buffer *buffer, const char *name, mstc_view *view)
{
    const char *format = buffer->format == NULL ? "B" : buffer->format;
    static const int probe = 1;
    const char native = *(const char *)&probe == 1 ? '<' : '>';
    const char *letter = format;
    if (*letter == '@' || *letter == '=' || *letter == native)
        letter++;
    if (letter[0] != '\0' && letter[1] == '\0') {
        if (strchr("efd", letter[0]) != NULL)
            view->code = DL_FLOAT;
        else if (strchr("bhilqn", letter[0]) != NULL)
            view->code = DL_INT;
        else if (strchr("BHILQN", letter[0]) != NULL)
            view->code = DL_UINT;
        else if (letter[0] == '?')
            view->code = DL_BOOL;
        else
            letter = "";
        view->bits = (uint8_t)(buffer->itemsize * 8);
        if (letter[0] != '\0' && find_kind(view->code, view->bits) >= 0)
            return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s has elements of format '%.40s', which cannot be read", name,
                 format);
    return -1;
}

static int from_buffer(const char *name, mstc_view *view)
{
    const Py_buffer *buffer = &view->buffer;
    if (read_format(buffer, name, view) < 0)
        return -1;
    if (buffer->ndim > MSTAR_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions; at most %d are read", name,
                     buffer->ndim, MSTAR_MAX_RANK);
        return -1;
    }
    view->data = buffer->buf;
    view->device_type = DL_CPU;
    view->rank = buffer->ndim;
    view->read_only = buffer->readonly != 0;
    for (int i = 0; i < buffer->ndim; i++) {
        view->shape[i] = buffer->shape[i];
        if (buffer->strides[i] % buffer->itemsize != 0 && buffer->shape[i] > 1) {
            PyErr_Format(
                PyExc_ValueError,
                "%s has a stride of %zd bytes in dimension %d, which is no multiple of its "
                "element of %zd bytes; pass a contiguous copy",
                name, buffer->strides[i], i, buffer->itemsize);
            return -1;
        }
        view->strides[i] = buffer->strides[i] / buffer->itemsize;
    }
    return 0;
}

/* ---- DLPack ---------------------------------------------------------------------------------- */

static int from_dl_tensor(const mstar_dl_tensor *from, const char *name, mstc_view *view)
{
    if (from->ndim < 0 || from->ndim > MSTAR_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions; 0 to %d are read", name,
                     (int)from->ndim, MSTAR_MAX_RANK);
        return -1;
    }
    if (from->dtype.lanes != 1 || find_kind(from->dtype.code, from->dtype.bits) < 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s has elements of DLPack type code %d with %d bits and %d lanes, which "
                     "cannot be read",
                     name, (int)from->dtype.code, (int)from->dtype.bits, (int)from->dtype.lanes);
        return -1;
    }
    view->device_type = from->device.device_type;
    view->device_id = from->device.device_id;
    if (view->device_type == DL_CUDA_HOST) {
        view->device_type = DL_CPU;
        view->device_id = 0;
    } else if (view->device_type == DL_CUDA_MANAGED) {
        view->device_type = DL_CUDA;
    }
    if (view->device_type != DL_CPU && view->device_type != DL_CUDA) {
        PyErr_Format(PyExc_ValueError,
                     "%s lies on a device of DLPack type %d; CPU (1) and CUDA (2) are read", name,
                     (int)view->device_type);
        return -1;
    }
    view->code = from->dtype.code;
    view->bits = from->dtype.bits;
    view->rank = from->ndim;
    int64_t compact = 1;
    for (int i = from->ndim - 1; i >= 0; i--) {
        view->shape[i] = from->shape[i];
        if (from->shape[i] < 0) {
            PyErr_Format(PyExc_ValueError, "%s has size %lld in dimension %d", name,
                         (long long)from->shape[i], i);
            return -1;
        }
        view->strides[i] = from->strides == NULL ? compact : from->strides[i];
        compact *= from->shape[i];
    }
    if (from->data == NULL && compact != 0) {
        PyErr_Format(PyExc_ValueError, "%s has elements and no data", name);
        return -1;
    }
    view->data = from->data == NULL ? NULL : (char *)from->data + from->byte_offset;
    return 0;
}

/* Takes over what the capsule holds; from here on mstc_view_drop gives it back. */
static int from_capsule(PyObject *capsule, const char *name, mstc_view *view)
{
    if (PyCapsule_IsValid(capsule, versioned_name)) {
        mstar_dl_managed_tensor_versioned *managed = PyCapsule_GetPointer(capsule, versioned_name);
        if (managed->version.major > MSTAR_DLPACK_MAJOR) {
            PyErr_Format(PyExc_BufferError, "%s speaks DLPack %u.%u; this package reads %d.x", name,
                         managed->version.major, managed->version.minor, MSTAR_DLPACK_MAJOR);
            return -1;
        }
        if (PyCapsule_SetName(capsule, used_versioned) < 0)
            return -1;
        view->managed = managed;
        view->versioned = true;
        view->read_only = (managed->flags & MSTAR_DLPACK_FLAG_READ_ONLY) != 0;
        return from_dl_tensor(&managed->dl_tensor, name, view);
    }
    if (PyCapsule_IsValid(capsule, legacy_name)) {
        mstc_dl_legacy *managed = PyCapsule_GetPointer(capsule, legacy_name);
        if (PyCapsule_SetName(capsule, used_legacy) < 0)
            return -1;
        view->managed = managed;
        return from_dl_tensor(&managed->dl_tensor, name, view);
    }
    PyErr_Format(PyExc_BufferError,
                 "%s.__dlpack__() gave %R; expected an unused capsule named '%s' or '%s'", name,
                 capsule, versioned_name, legacy_name);
    return -1;
}

/* Where an array says that it lies. */
static int ask_device(mstc_state *state, PyObject *object, int *type, int *index)
{
    PyObject *device = PyObject_CallMethodObjArgs(object, state->name_dlpack_device, NULL);
    if (device == NULL)
        return -1;
    const int parsed = PyTuple_Check(device) && PyArg_ParseTuple(device, "ii", type, index);
    Py_DECREF(device);
    if (parsed)
        return 0;
    PyErr_Clear();
    PyErr_SetString(PyExc_BufferError, "__dlpack_device__() did not give two integers");
    return -1;
}

/* What a framework does with memory that it has handed out, as mstarc._frameworks._habits has it.
 */
enum { FREES_AT_ONCE = 1, NEVER_CHANGES = 2 };
/* Streams that are no addresses, as DLPack counts. */
enum { NO_ORDER = -1, DEFAULT_STREAM = 1 };

/* The stream that will read. There is nothing to wait for in a forward, where every framework works
 * on the forward's, nor where the array's own framework is the one that the caller's stream is
 * asked of. */
static PyObject *reading_stream(mstc_state *state, PyObject *object, int index, int habits)
{
    const mstc_session *session = mstc_session_now();
    const bool inside = session != NULL && session->stream != NULL &&
                        mstar_stream_get_native(session->stream) != NULL;
    const mstc_view where = {.device_type = DL_CUDA, .device_id = index};
    mstc_place place;
    if (inside || (habits & FREES_AT_ONCE) == 0)
        return PyLong_FromLong(NO_ORDER);
    if (mstc_view_place(state, &where, &place) < 0) {
        PyErr_Clear(); /* a device that is not there is refused by whoever reads */
        return PyLong_FromLong(DEFAULT_STREAM);
    }
    PyObject *module = mstc_frameworks(state);
    PyObject *number =
        module == NULL ? NULL : PyObject_CallMethod(module, "work_stream", "Oi", object, index);
    if (number == NULL || PyObject_IsTrue(number) != 0)
        return number;
    Py_DECREF(number);
    return PyLong_FromLong(DEFAULT_STREAM);
}

/* {"max_version": (1, 1)}, and on CUDA the stream that will read. */
static PyObject *dlpack_keywords(mstc_state *state, PyObject *stream, bool version)
{
    PyObject *keywords = PyDict_New();
    int failed = keywords == NULL;
    if (!failed && version)
        failed = PyDict_SetItem(keywords, state->name_max_version, state->dlpack_version) < 0;
    if (!failed && stream != NULL)
        failed = PyDict_SetItem(keywords, state->name_stream, stream) < 0;
    if (failed)
        Py_CLEAR(keywords);
    return keywords;
}

static PyObject *call_with(mstc_state *state, PyObject *method, PyObject *stream, bool version)
{
    PyObject *keywords = dlpack_keywords(state, stream, version);
    PyObject *capsule =
        keywords == NULL ? NULL : PyObject_Call(method, state->no_arguments, keywords);
    Py_XDECREF(keywords);
    return capsule;
}

static PyObject *call_dlpack(mstc_state *state, PyObject *object, PyObject *method, int habits)
{
    int type = 0, index = 0;
    PyObject *stream = NULL;
    if (ask_device(state, object, &type, &index) < 0)
        return NULL;
    if (type == DL_CUDA || type == DL_CUDA_MANAGED) {
        stream = reading_stream(state, object, index, habits);
        if (stream == NULL)
            return NULL;
    }
    PyObject *capsule = call_with(state, method, stream, true);
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* a producer from before DLPack 1.0 knows no max_version */
        capsule = call_with(state, method, stream, false);
    }
    Py_XDECREF(stream);
    return capsule;
}

/* The wait before memory of a framework that frees at once is given back; none inside of forwards,
 * where work that is captured keeps what it reads. */
static void find_reader(mstc_state *state, PyObject *object, mstc_view *view)
{
    const mstc_session *session = mstc_session_now();
    mstc_place place;
    if (view->device_type != DL_CUDA || (session != NULL && session->stream != NULL))
        return;
    if (mstc_view_place(state, view, &place) == 0)
        view->reader = mstc_caller_stream(state, &place, object);
    PyErr_Clear(); /* a device that is not there is refused by whoever reads */
}

/* 1 taken, 0 the object has no such method, -1 an exception. */
static int from_dlpack(mstc_state *state, PyObject *object, const char *name, int habits,
                       mstc_view *view)
{
    PyObject *method = PyObject_GetAttr(object, state->name_dlpack);
    if (method == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    view->capsule = call_dlpack(state, object, method, habits);
    Py_DECREF(method);
    if (view->capsule == NULL || from_capsule(view->capsule, name, view) < 0)
        return -1;
    view->read_only = view->read_only || (habits & NEVER_CHANGES) != 0;
    if ((habits & FREES_AT_ONCE) != 0)
        find_reader(state, object, view);
    return 1;
}

/* ---- a class's own way -------------------------------------------------------------------------
 */

/* An array on a GPU as its address, device, shape, strides in bytes, DLPack type code and bytes of
 * an element. */
static int from_fields(PyObject *fields, const char *name, mstc_view *view)
{
    unsigned long long address;
    int device, code, bytes;
    PyObject *sizes, *steps;
    if (!PyArg_ParseTuple(fields, "KiO!O!ii", &address, &device, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &steps, &code, &bytes))
        return -1;
    int64_t shape[MSTAR_MAX_RANK], strides[MSTAR_MAX_RANK];
    const Py_ssize_t rank = PyTuple_Size(sizes);
    for (Py_ssize_t i = 0; i < rank && i < MSTAR_MAX_RANK; i++) {
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
        strides[i] = PyLong_AsLongLong(PyTuple_GetItem(steps, i)) / bytes;
    }
    if (PyErr_Occurred() != NULL)
        return -1;
    const mstar_dl_tensor tensor = {.data = (void *)(uintptr_t)address,
                                    .device = {DL_CUDA, device},
                                    .ndim = (int32_t)rank,
                                    .dtype = {(uint8_t)code, (uint8_t)(bytes * 8), 1},
                                    .shape = shape,
                                    .strides = strides};
    return from_dl_tensor(&tensor, name, view);
}

/* look gives the fields, a capsule, or None for an array that __dlpack__ is to be asked for. 1, 0
 * or -1 as above. */
static int from_look(PyObject *look, PyObject *object, const char *name, mstc_view *view)
{
    PyObject *seen = PyObject_CallFunctionObjArgs(look, object, NULL);
    if (seen == NULL)
        return -1;
    int taken = 0;
    if (PyTuple_Check(seen))
        taken = from_fields(seen, name, view) < 0 ? -1 : 1;
    else if (seen != Py_None)
        taken = from_capsule(seen, name, view) < 0 ? -1 : 1;
    Py_DECREF(seen);
    return taken;
}

static int from_array(mstc_state *state, PyObject *object, const char *name, mstc_view *view)
{
    const mstc_kind *kind = mstc_kind_of(state, object);
    if (kind == NULL)
        return -1;
    if (kind->table != NULL) {
        mstar_dl_tensor tensor;
        return kind->table->tensor_from_object(object, &tensor) != 0
                   ? -1
                   : from_dl_tensor(&tensor, name, view);
    }
    const int habits = kind->habits;
    PyObject *look = Py_XNewRef(kind->look);
    int taken = look == NULL ? 0 : from_look(look, object, name, view);
    Py_XDECREF(look);
    if (taken == 0)
        taken = from_dlpack(state, object, name, habits, view);
    if (taken == 0)
        PyErr_Format(PyExc_TypeError,
                     "%s is a %R; expected a tensor that speaks the buffer protocol or DLPack "
                     "(numpy, torch, jax, cupy, mstarc.Tensor)",
                     name, Py_TYPE(object));
    return taken == 1 ? 0 : -1;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void from_own(mstc_tensor *tensor, mstc_view *view)
{
    view->data = tensor->data;
    view->device_type = (int32_t)tensor->device_kind;
    view->device_id = tensor->device_index;
    for (int i = 0; i < NUM_KINDS; i++) {
        if (kinds[i].dtype == (int8_t)tensor->dtype) {
            view->code = kinds[i].code;
            view->bits = kinds[i].bits;
        }
    }
    view->rank = tensor->rank;
    memcpy(view->shape, tensor->shape, sizeof view->shape);
    memcpy(view->strides, tensor->strides, sizeof view->strides);
}

/* numpy arrays of ml_dtypes.bfloat16: the same bits as uint16. 1, 0 or -1 as above. */
static int from_bits(mstc_state *state, PyObject *object, const char *name, mstc_view *view)
{
    PyObject *module = mstc_frameworks(state);
    PyObject *bits =
        module == NULL ? NULL : PyObject_CallMethod(module, "bfloat16_bits", "O", object);
    if (bits == NULL)
        return -1;
    int taken = 0;
    if (bits != Py_None) {
        taken = PyObject_GetBuffer(bits, &view->buffer, PyBUF_RECORDS_RO) < 0 ? -1 : 1;
        view->has_buffer = taken == 1;
        if (taken == 1 && from_buffer(name, view) < 0)
            taken = -1;
        view->code = DL_BFLOAT;
    }
    Py_DECREF(bits);
    return taken;
}

static int take(mstc_state *state, PyObject *object, const char *name, mstc_view *view)
{
    if (Py_TYPE(object) == state->tensor_type) {
        from_own((mstc_tensor *)object, view);
        return 0;
    }
    const mstc_kind *kind = mstc_kind_of(state, object);
    if (kind == NULL)
        return -1;
    /* arrays on a GPU may offer a buffer for memory that the host reaches too, and refuse it slowly
     */
    if (kind->look == NULL && PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &view->buffer, PyBUF_RECORDS_RO) == 0) {
            view->has_buffer = true;
            return from_buffer(name, view);
        }
        PyErr_Clear(); /* a device array, or a dtype without a format */
        const int bits = from_bits(state, object, name, view);
        if (bits != 0)
            return bits < 0 ? -1 : 0;
    }
    return from_array(state, object, name, view);
}

int mstc_view_take(mstc_state *state, PyObject *object, const char *name, mstc_view *view)
{
    memset(view, 0, offsetof(mstc_view, buffer));
    view->has_buffer = false;
    view->capsule = NULL;
    view->managed = NULL;
    view->versioned = false;
    view->reader = NULL;
    view->owner = object;
    Py_INCREF(object);
    if (take(state, object, name, view) == 0)
        return 0;
    mstc_view_drop(view);
    return -1;
}

/* What the framework lent; its deleter may run Python. */
static void give_back(mstc_view *view)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (view->reader != NULL) {
        Py_BEGIN_ALLOW_THREADS(void) mstar_stream_synchronize(view->reader);
        Py_END_ALLOW_THREADS view->reader = NULL;
    }
    if (view->managed != NULL && view->versioned) {
        mstar_dl_managed_tensor_versioned *managed = view->managed;
        if (managed->deleter != NULL)
            managed->deleter(managed);
    } else if (view->managed != NULL) {
        mstc_dl_legacy *managed = view->managed;
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
    view->managed = NULL;
    if (view->has_buffer)
        PyBuffer_Release(&view->buffer);
    view->has_buffer = false;
    Py_CLEAR(view->capsule);
    PyErr_Restore(type, value, trace);
}

void mstc_view_drop(mstc_view *view)
{
    if (view->managed != NULL || view->has_buffer || view->reader != NULL || view->capsule != NULL)
        give_back(view);
    Py_CLEAR(view->owner);
}
