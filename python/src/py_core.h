/*
 * py_core.h - the parts of the extension module mstarc._core and what they share.
 *
 * The module is thin: it turns Python objects into tensors and offsets, calls libmstar without the
 * interpreter's lock, and turns statuses into exceptions. Rules of every function here:
 *   - it is called with the interpreter's lock held;
 *   - an int result of -1 and a NULL object mean that a Python exception is set;
 *   - memory comes from PyMem_*, apart from what a consumer of DLPack may free without the lock.
 * Only the limited API of Python 3.11 is used, so one build serves 3.11 and later.
 */
#ifndef MSTC_PY_CORE_H
#define MSTC_PY_CORE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdbool.h>

#include <mstar.h>

/* ---- module state ---------------------------------------------------------------------------- */

enum { MSTC_MAX_DEVICES = 32 };

/* What one import holds. Names are interned once, since a lookup with a fresh string costs more
 * than the call that follows. */
typedef struct mstc_state {
    PyTypeObject *tensor_type, *attention_type, *encoder_type;
    PyObject *frameworks;                /* module mstarc._frameworks, once it is needed */
    PyObject *numpy_array, *numpy_empty; /* once numpy has been met */
    PyObject *numpy_float32, *numpy_float16;
    PyObject *name_dlpack, *name_dlpack_device, *name_exchange, *name_max_version, *name_stream;
    PyObject *dlpack_version; /* (1, 1) */
    PyObject *no_arguments;   /* () */
    struct {
        char name[16];
        mstar_device *device;
    } devices[MSTC_MAX_DEVICES]; /* opened at first use, open until the process ends */
} mstc_state;

/* Sets the exception of a status (the table of mstar/base.h) with the library's own text. */
void mstc_raise(mstar_status status);
/* mstarc._frameworks.NAME(...): what is rare and needs to know frameworks. Borrowed module. */
PyObject *mstc_frameworks(mstc_state *state);
/* A device by name, shared by all that ask; NULL with an exception. */
mstar_device *mstc_device(mstc_state *state, const char *name);
/* One object at a time: a lock that waits without the interpreter's lock. */
void mstc_lock(PyThread_type_lock lock);

/* ---- tensors that come in -------------------------------------------------------------------- */

/*
 * A borrowed look at a Python tensor: data, type, shape and strides, and what keeps them alive.
 * Strides count elements and may be negative, unlike those of mstar_tensor.
 */
typedef struct mstc_view {
    void *data;
    int32_t device_type, device_id; /* as DLPack counts; host memory of CUDA counts as CPU */
    uint8_t code, bits;             /* as DLPack counts: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool */
    int32_t rank;
    int64_t shape[MSTAR_MAX_RANK];
    int64_t strides[MSTAR_MAX_RANK];
    bool read_only;
    bool has_buffer;
    Py_buffer buffer;
    PyObject *owner, *capsule;
    void *managed; /* of the capsule */
    bool versioned;
} mstc_view;

/* Buffer protocol, the framework's C table, or __dlpack__, whichever is fastest. name is for
 * messages. Data on a GPU is made visible to the caller's current stream. Zero copy. */
int mstc_view_take(mstc_state *state, PyObject *object, const char *name, mstc_view *view);
/* Accepts a zeroed view. A pending exception stays pending. */
void mstc_view_drop(mstc_view *view);
/* The library's dtype; -1 with a TypeError for one it does not have. */
int mstc_view_dtype(const mstc_view *view, const char *name, mstar_dtype *dtype);
/* "float32", "int64": what messages call it. */
const char *mstc_view_dtype_name(const mstc_view *view);
/* Last dimension contiguous, no negative stride, elements on their natural addresses. */
bool mstc_view_is_plain(const mstc_view *view);
/* The view as the library's tensor; only for plain views. */
mstar_tensor mstc_view_tensor(const mstc_view *view, mstar_dtype dtype);
/*
 * Copies a CPU view, whatever its strides, into contiguous memory as dtype (f32, bf16, f16): one
 * rounding, by way of float32. data has room for all elements. Needs no interpreter lock.
 */
mstar_status mstc_view_pack(const mstc_view *view, mstar_dtype from, mstar_dtype to, void *data);

/* Offsets of a plan, as the library takes them. */
typedef struct mstc_offsets {
    int32_t *values;
    Py_ssize_t count; /* entries, segments + 1 */
    bool from_device; /* they had to be fetched from a device */
    int32_t inline_values[130];
} mstc_offsets;
/* A list or tuple of ints, or a one-dimensional tensor of integers; every value is checked against
 * the range of int32. */
int mstc_offsets_take(mstc_state *state, PyObject *object, const char *name, mstc_offsets *offsets);
void mstc_offsets_drop(mstc_offsets *offsets);

/* ---- tensors that go out --------------------------------------------------------------------- */

/* mstarc.Tensor: contiguous memory on the CPU that speaks DLPack and the buffer protocol. */
typedef struct mstc_tensor {
    PyObject_HEAD void *block; /* what is freed */
    void *data;                /* aligned to 256 bytes, as DLPack asks */
    size_t bytes;
    mstar_dtype dtype;
    int32_t rank;
    int64_t shape[MSTAR_MAX_RANK];
    Py_ssize_t buffer_shape[MSTAR_MAX_RANK], buffer_strides[MSTAR_MAX_RANK];
} mstc_tensor;
/* A new Tensor whose contents are not set. */
mstc_tensor *mstc_tensor_new(mstc_state *state, mstar_dtype dtype, int32_t rank,
                             const int64_t *shape);
/* "float32": the long name of a dtype. Static. */
const char *mstc_dtype_name(mstar_dtype dtype);

/*
 * A contiguous output for a call whose first input is `like`, from like's own framework where that
 * can be written to, else a Tensor; *view looks at its memory. zero: on a device, where the caller
 * cannot write zeros itself, ask the framework for them. NULL with an exception.
 */
PyObject *mstc_output_new(mstc_state *state, PyObject *like, const mstc_view *like_view,
                          mstar_dtype dtype, bool zero, int32_t rank, const int64_t *shape,
                          mstc_view *view);
/* What is handed to the caller in the end: frameworks whose arrays never change (jax) get theirs
 * here, from the Tensor that was filled. Steals made. */
PyObject *mstc_output_finish(mstc_state *state, PyObject *like, PyObject *made);

/* ---- DLPack ---------------------------------------------------------------------------------- */

/* DLManagedTensor of DLPack before 1.0. */
typedef struct mstc_dl_legacy {
    mstar_dl_tensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct mstc_dl_legacy *self);
} mstc_dl_legacy;

/* The table of C functions of DLPack 1.2, which a framework's tensor type carries as the attribute
 * __dlpack_c_exchange_api__. */
typedef struct mstc_dl_exchange {
    struct {
        struct {
            uint32_t major, minor;
        } version;
        void *previous;
    } header;
    void *allocate;
    void *managed_from_object;
    void *managed_to_object;
    int (*tensor_from_object)(void *object, mstar_dl_tensor *tensor); /* borrowed; no waiting */
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void **stream);
} mstc_dl_exchange;
/* The table of an object's type; NULL without an exception where there is none or it is too new. */
const mstc_dl_exchange *mstc_exchange_of(mstc_state *state, PyObject *object);

/* Methods of Tensor that make capsules. */
PyObject *mstc_tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *mstc_tensor_dlpack_device(PyObject *self, PyObject *unused);

/* ---- types and functions --------------------------------------------------------------------- */

extern PyType_Spec mstc_tensor_spec, mstc_attention_spec, mstc_encoder_spec;
/* Functions without an object that part brings to the module. */
extern PyMethodDef mstc_helper_functions[];

#endif
