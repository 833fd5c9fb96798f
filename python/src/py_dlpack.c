/* py_dlpack.c - capsules of our own tensors, for DLPack 1.x and for the time before it. */
#include <stdlib.h>

#include "py_core.h"

static const char versioned_name[] = "dltensor_versioned", legacy_name[] = "dltensor";

/* Consumers may let go on any thread, with or without the interpreter's lock, and after its end. */
static void release_owner(void *owner)
{
    if (!Py_IsInitialized())
        return;
    PyGILState_STATE held = PyGILState_Ensure();
    Py_DECREF((PyObject *)owner);
    PyGILState_Release(held);
}

/* A capsule that nobody consumed takes its tensor along. */
static void drop_versioned(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, versioned_name))
        return;
    mstar_dl_managed_tensor_versioned *managed = PyCapsule_GetPointer(capsule, versioned_name);
    managed->deleter(managed);
}

static void drop_legacy(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, legacy_name))
        return;
    mstc_dl_legacy *managed = PyCapsule_GetPointer(capsule, legacy_name);
    managed->deleter(managed);
}

static PyObject *versioned_capsule(mstc_tensor *self, uint64_t flags)
{
    const mstar_tensor tensor = mstc_tensor_look(self);
    mstar_dl_managed_tensor_versioned *managed = NULL;
    mstar_status status =
        mstar_tensor_to_dlpack(&tensor, Py_NewRef((PyObject *)self), release_owner, &managed);
    if (status != MSTAR_OK) {
        Py_DECREF((PyObject *)self);
        mstc_raise(status);
        return NULL;
    }
    managed->flags |= flags;
    PyObject *capsule = PyCapsule_New(managed, versioned_name, drop_versioned);
    if (capsule == NULL)
        managed->deleter(managed);
    return capsule;
}

/* The older struct wraps the newer one, which owns shape and strides. Consumers call this without
 * the interpreter's lock, so its memory is malloc's. */
static void delete_legacy(mstc_dl_legacy *legacy)
{
    mstar_dl_managed_tensor_versioned *inner = legacy->manager_ctx;
    inner->deleter(inner);
    free(legacy);
}

static PyObject *legacy_capsule(mstc_tensor *self)
{
    const mstar_tensor tensor = mstc_tensor_look(self);
    mstar_dl_managed_tensor_versioned *inner = NULL;
    mstc_dl_legacy *legacy = malloc(sizeof *legacy);
    if (legacy == NULL)
        return PyErr_NoMemory();
    mstar_status status =
        mstar_tensor_to_dlpack(&tensor, Py_NewRef((PyObject *)self), release_owner, &inner);
    if (status != MSTAR_OK) {
        free(legacy);
        Py_DECREF((PyObject *)self);
        mstc_raise(status);
        return NULL;
    }
    legacy->dl_tensor = inner->dl_tensor;
    legacy->manager_ctx = inner;
    legacy->deleter = delete_legacy;
    PyObject *capsule = PyCapsule_New(legacy, legacy_name, drop_legacy);
    if (capsule == NULL)
        delete_legacy(legacy);
    return capsule;
}

static int check_device(const mstc_tensor *self, PyObject *device)
{
    int type = 0, index = 0;
    if (device == Py_None)
        return 0;
    if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &type, &index)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "dl_device is %R; expected (device type, device id)", device);
        return -1;
    }
    if (type == (int)self->device_kind && index == self->device_index)
        return 0;
    PyErr_Format(PyExc_BufferError, "dl_device is (%d, %d); this tensor lies on (%d, %d)", type,
                 index, (int)self->device_kind, (int)self->device_index);
    return -1;
}

/* Numbers with a meaning of their own in DLPack; any other is a stream's address. */
enum { NO_ORDER = -1, DEFAULT_STREAM = 1 };

/* What the caller's stream has been given is done before what the reader's stream gets from now on.
 * reader: as DLPack has it; None: the default stream. */
static int order_after_caller(mstc_state *state, const mstc_tensor *self, PyObject *reader)
{
    const mstar_tensor look = mstc_tensor_look(self);
    mstc_view view = {.device_type = (int32_t)look.device_kind, .device_id = look.device_index};
    mstc_place place;
    mstar_event *event = NULL;
    const long long number = reader == Py_None ? DEFAULT_STREAM : PyLong_AsLongLong(reader);
    if (number == -1 && PyErr_Occurred() != NULL)
        return -1;
    if (number == NO_ORDER)
        return 0;
    void *native = number == DEFAULT_STREAM ? NULL : (void *)(uintptr_t)number;
    mstar_stream *from =
        mstc_view_place(state, &view, &place) < 0 ? NULL : mstc_stream_take(state, &place, NULL);
    if (from == NULL)
        return -1;
    if (mstar_stream_get_native(from) == native)
        return 0;
    mstar_stream *to = mstc_native_stream(state, place.device, native);
    if (to == NULL)
        return -1;
    mstar_status status = mstar_event_create(place.device, &event);
    if (status == MSTAR_OK)
        status = mstar_event_record(event, from);
    if (status == MSTAR_OK)
        status = mstar_stream_wait_event(to, event);
    mstar_event_destroy(event);
    if (status == MSTAR_OK)
        return 0;
    mstc_raise(status);
    return -1;
}

PyObject *mstc_tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    int major = 0, minor = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream, &version,
                                     &device, &copy))
        return NULL;
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    const bool on_cpu = tensor->device_kind == MSTAR_DEVICE_CPU;
    if (on_cpu && stream != Py_None) {
        PyErr_Format(PyExc_BufferError, "stream is %R; a tensor on the CPU has none", stream);
        return NULL;
    }
    if (version != Py_None) {
        if (!PyTuple_Check(version) || !PyArg_ParseTuple(version, "ii", &major, &minor)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "max_version is %R; expected (major, minor)", version);
            return NULL;
        }
    }
    if (check_device(tensor, device) < 0)
        return NULL;
    const int copied = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (copied < 0)
        return NULL;
    PyObject *source = copied ? PyObject_CallMethod(self, "clone", NULL) : Py_NewRef(self);
    if (source == NULL)
        return NULL;
    /* the copy too is work that the caller's stream has been given */
    if (!on_cpu && order_after_caller(PyType_GetModuleState(Py_TYPE(self)), tensor, stream) < 0) {
        Py_DECREF(source);
        return NULL;
    }
    PyObject *capsule = major >= 1 ? versioned_capsule((mstc_tensor *)source,
                                                       copied ? MSTAR_DLPACK_FLAG_IS_COPIED : 0)
                                   : legacy_capsule((mstc_tensor *)source);
    Py_DECREF(source);
    return capsule;
}

PyObject *mstc_tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    const mstc_tensor *tensor = (const mstc_tensor *)self;
    return Py_BuildValue("(ii)", (int)tensor->device_kind, (int)tensor->device_index);
}
