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

/* Where memory lies and work is done: a device by name, "cpu" or "cuda:0". */
typedef struct mstc_place {
    mstar_device *device; /* borrowed: open until the process ends */
    mstar_device_kind kind;
    int32_t index;
} mstc_place;

/* ---- module state ---------------------------------------------------------------------------- */

enum { MSTC_MAX_DEVICES = 32, MSTC_MAX_STREAMS = 64, MSTC_MAX_KINDS = 16 };

/* A stream of a caller's on a GPU, by its own address. */
typedef struct mstc_native {
    mstar_device *device;
    void *native;
    mstar_stream *stream;
} mstc_native;

typedef struct mstc_dl_exchange mstc_dl_exchange;

/* Frameworks whose own array class the extension knows by itself. */
typedef enum mstc_framework { MSTC_OTHER, MSTC_NUMPY, MSTC_TORCH, MSTC_CUPY } mstc_framework;

/* What is known of a class of arrays, found once. */
typedef struct mstc_kind {
    PyTypeObject *type;            /* kept */
    mstc_framework framework;      /* MSTC_OTHER for subclasses too */
    int habits;                    /* as mstarc._frameworks._habits has them */
    const mstc_dl_exchange *table; /* of C functions; NULL: there is none, or it is too new */
    PyObject *look;                /* sooner than __dlpack__; NULL: there is no such function */
} mstc_kind;

/* How torch makes an array. */
typedef struct mstc_torch {
    PyObject *empty_cpu, *empty_cuda; /* of (shape, strides, dtype); NULL: this torch has none */
    PyObject *current_device;         /* that empty_cuda works on; there wherever that is */
    PyObject *float32, *bfloat16, *float16;
} mstc_torch;

/* What one import holds. Names are interned once, since a lookup with a fresh string costs more
 * than the call that follows. */
typedef struct mstc_state {
    PyTypeObject *tensor_type, *attention_type, *encoder_type;
    PyTypeObject *linear_type, *manager_type, *resources_type, *runner_type, *region_type;
    PyObject *frameworks; /* module mstarc._frameworks, once it is needed */
    PyObject *numpy_empty, *numpy_float32, *numpy_float16; /* once numpy has been met */
    mstc_torch torch;                                      /* once torch has been met */
    mstc_kind kinds[MSTC_MAX_KINDS];                       /* the latest ones, in turn */
    int next_kind;
    PyObject *name_dlpack, *name_dlpack_device, *name_exchange, *name_max_version, *name_stream;
    PyObject *dlpack_version; /* (1, 1) */
    PyObject *no_arguments;   /* () */
    struct {
        char name[16];
        mstc_place place;
    } devices[MSTC_MAX_DEVICES];             /* opened at first use, open until the process ends */
    mstar_stream *streams[MSTC_MAX_STREAMS]; /* of the CPU, not in use now */
    int num_streams;
    mstc_native *natives; /* as many as callers have worked on, the latest last */
    Py_ssize_t num_natives, natives_capacity;
} mstc_state;

/* Sets the exception of a status (the table of mstar/base.h) with the library's own text. */
void mstc_raise(mstar_status status);
/* A text of the library's: it may be cut within a character. A new str. */
PyObject *mstc_text(const char *text);
/* An exception with the library's own text. */
void mstc_raise_as(PyObject *class);
/* mstarc._frameworks.NAME(...): what is rare and needs to know frameworks. Borrowed module. */
PyObject *mstc_frameworks(mstc_state *state);
/* What is known of the object's class, until the next class is met; NULL with an exception. */
const mstc_kind *mstc_kind_of(mstc_state *state, PyObject *object);
void mstc_kinds_clear(mstc_state *state);
int mstc_kinds_traverse(mstc_state *state, visitproc visit, void *arg);
/* A device by name, shared by all that ask; NULL with an exception. */
mstar_device *mstc_device(mstc_state *state, const char *name);
/* The same, and what it is. */
int mstc_place_of(mstc_state *state, const char *name, mstc_place *place);
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
    mstar_stream *reader; /* waited for before the memory is given back; NULL: nobody has to */
} mstc_view;

/* Buffer protocol, the framework's C table, or __dlpack__, whichever is fastest. name is for
 * messages. Data on a GPU is made visible to the caller's current stream. Zero copy. */
int mstc_view_take(mstc_state *state, PyObject *object, const char *name, mstc_view *view);
/* Accepts a zeroed view. A pending exception stays pending. Waits for view->reader. */
void mstc_view_drop(mstc_view *view);
/* Where it lies; opens the device. */
int mstc_view_place(mstc_state *state, const mstc_view *view, mstc_place *place);
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
    const char *kind; /* what messages call them: "offsets", "ids" */
    int64_t least;
    int32_t inline_values[130];
} mstc_offsets;
/* A list or tuple of ints, or a one-dimensional tensor of integers; every value is checked against
 * the range of int32. */
int mstc_offsets_take(mstc_state *state, PyObject *object, const char *name, mstc_offsets *offsets);
/* The same for other integers from least up; there may be none. */
int mstc_integers_take(mstc_state *state, PyObject *object, const char *name, const char *kind,
                       int64_t least, mstc_offsets *offsets);
void mstc_offsets_drop(mstc_offsets *offsets);

/* ---- tensors that go out --------------------------------------------------------------------- */

/* Memory that captures work in: what a tensor gives back serves the next one. */
typedef struct mstc_pool mstc_pool;

/* mstarc.Tensor: memory that speaks DLPack and, on the CPU, the buffer protocol. It owns a block,
 * of a pool's or its own, or looks at what its base owns. */
typedef struct mstc_tensor {
    PyObject_HEAD void *block; /* what is given back; NULL: a view */
    mstc_pool *pool;           /* whose the block is */
    PyObject *base;            /* of a view */
    mstar_device_kind device_kind;
    int32_t device_index;
    void *data;   /* aligned to 256 bytes in a block, as DLPack asks */
    size_t bytes; /* of the elements */
    mstar_dtype dtype;
    int32_t rank;
    int64_t shape[MSTAR_MAX_RANK], strides[MSTAR_MAX_RANK];
    Py_ssize_t buffer_shape[MSTAR_MAX_RANK], buffer_strides[MSTAR_MAX_RANK];
} mstc_tensor;
/* A new contiguous Tensor whose contents are not set, from the session's pool where that is of this
 * place. place NULL: the CPU. */
mstc_tensor *mstc_tensor_new(mstc_state *state, const mstc_place *place, mstar_dtype dtype,
                             int32_t rank, const int64_t *shape);
/* tensor[index] and tensor.reshape(*sizes): views. */
PyObject *mstc_tensor_subscript(PyObject *self, PyObject *index);
PyObject *mstc_tensor_reshape(PyObject *self, PyObject *sizes);
/* A contiguous copy, anywhere, of a view that can be read as dtype, in the order of the caller's
 * stream; host memory is there on return. */
PyObject *mstc_tensor_copy(mstc_state *state, const mstc_view *view, const char *name,
                           const mstc_place *place, int32_t dtype);
/* A Tensor on memory that base keeps alive. */
PyObject *mstc_tensor_view(mstc_state *state, const mstar_tensor *view, PyObject *base);
/* The Tensor as the library's tensor. */
mstar_tensor mstc_tensor_look(const mstc_tensor *self);
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

/* ---- calls that call back ----------------------------------------------------------------------
 */

/*
 * What a thread is doing inside a call that may call Python back: which stream a forward gives its
 * work to, whether that is recorded, and what a callback has raised. Lies on the caller's stack;
 * a region inside a forward has a session of its own inside the forward's.
 */
typedef struct mstc_range {
    uintptr_t begin, end;
} mstc_range;

typedef struct mstc_session {
    struct mstc_session *outer;
    mstar_stream *stream;                     /* of the forward in hand; NULL: none */
    const int64_t *num_tokens, *num_requests; /* live counts of the forward */
    mstc_pool *pool;                          /* where new tensors come from; NULL: fresh memory */
    const mstar_tensors *inputs;              /* of the forward: memory that outlives its capture */
    PyObject *driver;                         /* _owns(address): memory of its own pools */
    mstc_range *written; /* by operations of the forward in hand: only on the CPU under a lease */
    size_t num_written, written_capacity;
    bool capturing;
    PyObject *keep; /* list of what a capture reads, which must outlive it */
    PyObject
        *failures; /* list of (bs, tokens, exception) where failures are collected; else NULL */
    PyObject *error_type, *error_value, *error_trace; /* what a callback raised */
} mstc_session;
/* The calling thread's innermost; NULL outside of any. */
mstc_session *mstc_session_now(void);
/* Zeroes the session and makes it the innermost. */
void mstc_session_begin(mstc_session *session);
/* Ends it. -1 with the exception of a callback as it was raised, or else that of the status. */
int mstc_session_end(mstc_session *session, mstar_status status);
/* In a callback, with an exception set: takes it over. What to answer the library. */
mstar_status mstc_session_fail(int64_t bs, int64_t num_tokens);
/* What a call with collected failures answers: them, or, where it failed itself, NULL with its
 * exception, whose cause is the first of them. Steals failures. */
PyObject *mstc_collected(PyObject *failures, int result);
/* True when a callback need not begin, since the call is to end: something like Ctrl-C. */
bool mstc_session_is_over(void);
/* An object that work refers to stays alive as long as what is being captured. data: its memory, or
 * NULL; static inputs need no keeping. */
int mstc_session_keep(mstc_state *state, PyObject *object, const void *data);
/* An operation writes to this tensor, and to its memory alone. */
int mstc_session_wrote(const mstar_tensor *out);
/* Whether a replay finds today's contents there: a static input's, or an operation's output's. */
bool mstc_session_is_recorded(const void *data);
/*
 * The stream for an operation: the forward's; else, on the CPU, one that nobody else uses
 * meanwhile, and on a GPU the one that the framework of like, an array there, works on now (like
 * NULL: torch's or cupy's). Given back by mstc_stream_done. NULL with an exception.
 */
mstar_stream *mstc_stream_take(mstc_state *state, const mstc_place *place, PyObject *like);
void mstc_stream_done(mstc_state *state, const mstc_place *place, mstar_stream *stream);
/* A stream of the caller's on a GPU as one of the library's, kept as long as the module: work that
 * the caller has captured refers to memory of it. As many are kept as were alive at once, since the
 * driver uses addresses again. NULL with an exception. */
mstar_stream *mstc_native_stream(mstc_state *state, mstar_device *device, void *native);
/* On a GPU, whatever forward is in hand: the caller's. */
mstar_stream *mstc_caller_stream(mstc_state *state, const mstc_place *place, PyObject *like);

/* Memory of a device; NULL: host memory. One reference is the caller's; NULL without memory. */
mstc_pool *mstc_pool_create(mstar_device *device);
mstar_device *mstc_pool_device(const mstc_pool *pool);
void mstc_pool_release(mstc_pool *pool);
/* A block (of a device: an mstar_buffer) and a reference. */
mstar_status mstc_pool_take(mstc_pool *pool, size_t bytes, void **block);
void mstc_pool_give(mstc_pool *pool, void *block);
/* Gives back blocks that nobody uses, the latest first, until it holds no more than most bytes. */
void mstc_pool_trim(mstc_pool *pool, size_t most);
/* What it holds, in use or not. */
size_t mstc_pool_bytes(const mstc_pool *pool);

/* ---- inputs of operations -------------------------------------------------------------------- */

/* What an operation expects of a tensor. */
typedef struct mstc_wish {
    const char *name;
    int32_t device_kind; /* mstar_device_kind; -1: any */
    int32_t device_index;
    int32_t rank;
    int32_t dtype; /* mstar_dtype that the tensor is cast to; -1: one that kernels read, as it is */
    const char *dimensions; /* "tokens, heads and head dim" */
} mstc_wish;

/* A tensor on its way into the library. */
typedef struct mstc_input {
    mstc_view view;
    mstar_dtype dtype, from;
    mstar_tensor tensor;
    bool must_pack;
    void *packed;
} mstc_input;
/* Checks, and finds memory for a copy where one is needed, which a capture refuses. */
int mstc_input_take(mstc_state *state, const mstc_wish *wish, PyObject *object, mstc_input *input);
/* Makes the copy. Needs no interpreter lock. */
mstar_status mstc_input_pack(mstc_input *input);
void mstc_input_drop(mstc_input *input);
/* The tensor that the caller gave to write to, checked, its dtype in *dtype; for None a new one
 * like `like`. It lies where like_view says. A new reference. */
PyObject *mstc_output_take(mstc_state *state, PyObject *given, PyObject *like,
                           const mstc_view *like_view, mstar_dtype *dtype, bool zero, int32_t rank,
                           const int64_t *shape, mstc_view *view);

/*
 * One operation: what it reads, where it writes, on which stream. op_begin zeroes; every input is
 * added (None, where that is allowed, gives a NULL tensor), then the output; op_end gives all back
 * and answers the output, or NULL with an exception where something failed. The first input is not
 * None: it says where the operation runs, and on whose stream.
 */
enum { MSTC_MAX_INPUTS = 10 };
typedef struct mstc_op {
    mstc_state *state;
    mstc_place place; /* where all of it lies: the first input's, unless it was set before */
    mstar_stream *stream;
    bool zero; /* a new output begins as zeros */
    mstc_input inputs[MSTC_MAX_INPUTS];
    int num_inputs;
    PyObject *like, *out; /* like: borrowed, whose framework makes the output */
    bool is_new;          /* out was made here */
    mstc_view out_view;
    mstar_tensor out_tensor;
} mstc_op;
void mstc_op_begin(mstc_state *state, mstc_op *op);
int mstc_op_input(mstc_op *op, const char *name, PyObject *object, int32_t rank, int32_t dtype,
                  const mstar_tensor **tensor);
int mstc_op_output(mstc_op *op, PyObject *given, PyObject *like, const mstc_view *like_view,
                   mstar_dtype dtype, int32_t rank, const int64_t *shape);
/* Copies what has to be. Needs no interpreter lock. */
mstar_status mstc_op_pack(mstc_op *op);
PyObject *mstc_op_end(mstc_op *op, int failed, mstar_status status);

/* int32 values that work reads: the tensor's own memory, or a copy outside of captures. */
typedef struct mstc_integers {
    const int32_t *values;
    int64_t count;
    mstc_view view;
    bool has_view;
    mstc_offsets copied;
} mstc_integers;
int mstc_op_integers(mstc_state *state, const char *name, const char *kind, int64_t least,
                     PyObject *object, mstc_integers *integers);
void mstc_integers_drop(mstc_integers *integers);

/* ---- DLPack ---------------------------------------------------------------------------------- */

/* DLManagedTensor of DLPack before 1.0. */
typedef struct mstc_dl_legacy {
    mstar_dl_tensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct mstc_dl_legacy *self);
} mstc_dl_legacy;

/* The table of C functions of DLPack 1.2, which a framework's tensor type carries as the attribute
 * __dlpack_c_exchange_api__. */
struct mstc_dl_exchange {
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
};

/* Methods of Tensor that make capsules. */
PyObject *mstc_tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *mstc_tensor_dlpack_device(PyObject *self, PyObject *unused);

/* ---- types and functions --------------------------------------------------------------------- */

extern PyType_Spec mstc_tensor_spec, mstc_attention_spec, mstc_encoder_spec;
extern PyType_Spec mstc_linear_spec, mstc_manager_spec, mstc_resources_spec, mstc_runner_spec,
    mstc_region_spec;
/* Functions without an object that part brings to the module. */
extern PyMethodDef mstc_helper_functions[], mstc_op_functions[];

#endif
