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

static int check_device(PyObject *device)
{
    int type = 0, index = 0;
    if (device == Py_None)
        return 0;
    if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &type, &index)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "dl_device is %R; expected (device type, device id)", device);
        return -1;
    }
    if (type == MSTAR_DEVICE_CPU)
        return 0;
    PyErr_Format(PyExc_BufferError, "dl_device is (%d, %d); this tensor lies on the CPU, (1, 0)",
                 type, index);
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
    if (stream != Py_None) {
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
    if (check_device(device) < 0)
        return NULL;
    const int copied = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (copied < 0)
        return NULL;
    PyObject *source = copied ? PyObject_CallMethod(self, "clone", NULL) : Py_NewRef(self);
    if (source == NULL)
        return NULL;
    PyObject *capsule = major >= 1 ? versioned_capsule((mstc_tensor *)source,
                                                       copied ? MSTAR_DLPACK_FLAG_IS_COPIED : 0)
                                   : legacy_capsule((mstc_tensor *)source);
    Py_DECREF(source);
    return capsule;
}

PyObject *mstc_tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("(ii)", MSTAR_DEVICE_CPU, 0);
}
