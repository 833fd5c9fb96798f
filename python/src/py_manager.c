/* py_manager.c - managers of ragged attention, and the set of them that a node's steps declare. */
#include <string.h>

#include "py_hooks.h"

/* ---- a manager ------------------------------------------------------------------------------- */

typedef struct mstc_manager {
    PyObject_HEAD mstar_ragged_manager *manager;
    mstc_place place;
    mstar_dtype dtype;
    int32_t num_qo_heads, head_dim; /* of this rank */
} mstc_manager;

static int create_manager(mstc_manager *self, const mstar_ragged_manager_desc *desc)
{
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    mstar_status status = mstar_ragged_manager_create(self->place.device, desc, &self->manager);
    if (status == MSTAR_OK)
        status = mstar_ragged_manager_query(self->manager, &info);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return -1;
    }
    self->dtype = info.dtype;
    self->num_qo_heads = info.num_qo_heads;
    self->head_dim = info.head_dim;
    return 0;
}

static PyObject *manager_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind",
                            "num_qo_heads",
                            "num_kv_heads",
                            "head_dim",
                            "sm_scale",
                            "max_segments_per_request",
                            "max_tokens_per_request",
                            "backend",
                            "dtype",
                            "tp_world_size",
                            "device",
                            NULL};
    mstar_ragged_manager_desc desc;
    mstar_ragged_manager_desc_init(&desc);
    int kind;
    long long segments, tokens;
    const char *backend, *dtype, *device;
    mstar_dtype parsed;
    mstc_place place;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiiidLLssis:Manager", names, &kind,
                                     &desc.num_qo_heads, &desc.num_kv_heads, &desc.head_dim,
                                     &desc.sm_scale, &segments, &tokens, &backend, &dtype,
                                     &desc.tp_world_size, &device) ||
        mstc_place_of(PyType_GetModuleState(type), device, &place) < 0)
        return NULL;
    mstar_status status = mstar_dtype_parse(dtype, &parsed);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    desc.kind = (mstar_ragged_kind)kind;
    desc.max_segments_per_request = segments;
    desc.max_tokens_per_request = tokens;
    desc.flashinfer_backend = backend;
    desc.dtype = (int32_t)parsed;
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    mstc_manager *self = (mstc_manager *)alloc(type, 0);
    if (self != NULL)
        self->place = place;
    if (self != NULL && create_manager(self, &desc) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void manager_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    mstar_ragged_manager_destroy(((mstc_manager *)object)->manager);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* The first row that an eager run leaves as it was: those past the plan; rows: it leaves none. */
static int64_t begin_of_tail(const mstc_manager *self, const char *label, int64_t rows)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    if (mstc_session_now()->capturing ||
        mstar_ragged_manager_query_wrapper(self->manager, label, &info) != MSTAR_OK ||
        info.num_tokens < 0 || info.num_tokens >= rows)
        return rows;
    return info.num_tokens;
}

/* A device's output began as zeros where that is needed. */
static void clear_tail(const mstc_manager *self, const char *label, const mstar_tensor *out)
{
    if (self->place.kind != MSTAR_DEVICE_CPU)
        return;
    const int64_t begin = begin_of_tail(self, label, out->shape[0]);
    const size_t row = (size_t)out->strides[0] * mstar_dtype_bytes(out->dtype);
    if (begin < out->shape[0])
        memset((char *)out->data + (size_t)begin * row, 0, (size_t)(out->shape[0] - begin) * row);
}

static bool begins_as_zeros(const mstc_manager *self, const char *label, const mstar_tensor *q)
{
    return self->place.kind != MSTAR_DEVICE_CPU &&
           begin_of_tail(self, label, q->shape[0]) < q->shape[0];
}

/* run(q, k, v, label or None) */
static PyObject *manager_run(PyObject *object, PyObject *args)
{
    const mstc_manager *self = (const mstc_manager *)object;
    mstc_state *state = PyType_GetModuleState(Py_TYPE(object));
    PyObject *given[3];
    const mstar_tensor *q, *k, *v;
    const char *label;
    const mstc_session *session = mstc_session_now();
    mstc_op op;
    if (!PyArg_ParseTuple(args, "OOOz", &given[0], &given[1], &given[2], &label))
        return NULL;
    for (int i = 0; i < 3; i++) {
        if (given[i] == Py_None) {
            PyErr_Format(PyExc_TypeError, "%c is None; expected a tensor", "qkv"[i]);
            return NULL;
        }
    }
    if (session == NULL || session->stream == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a manager runs inside the forward of a runner, which plans for it");
        return NULL;
    }
    mstc_op_begin(state, &op);
    op.place = self->place;
    mstar_status status = MSTAR_OK;
    const int32_t dtype = (int32_t)self->dtype;
    int failed = mstc_session_keep(state, object, NULL) < 0 ||
                 mstc_op_input(&op, "q", given[0], 3, dtype, &q) < 0 ||
                 mstc_op_input(&op, "k", given[1], 3, dtype, &k) < 0 ||
                 mstc_op_input(&op, "v", given[2], 3, dtype, &v) < 0;
    if (!failed) {
        op.zero = begins_as_zeros(self, label, q);
        failed = mstc_op_output(&op, Py_None, given[0], &op.inputs[0].view, self->dtype, 3,
                                (int64_t[]){q->shape[0], self->num_qo_heads, self->head_dim}) < 0;
    }
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK)
            status = mstar_ragged_manager_run(self->manager, op.stream, label, q, k, v,
                                              &op.out_tensor, NULL);
        if (status == MSTAR_OK)
            clear_tail(self, label, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    return mstc_op_end(&op, failed, status);
}

static PyObject *manager_set_label(PyObject *object, PyObject *argument)
{
    const char *label = PyUnicode_AsUTF8AndSize(argument, NULL);
    if (label == NULL)
        return NULL;
    mstar_status status = mstar_ragged_manager_set_label(((mstc_manager *)object)->manager, label);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_NewRef(Py_None);
}

static PyObject *manager_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    mstar_status status = mstar_ragged_manager_query(((mstc_manager *)object)->manager, &info);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_BuildValue("{s:i,s:i,s:i,s:s,s:d,s:L,s:L,s:L,s:L,s:L,s:n}", "num_qo_heads",
                         (int)info.num_qo_heads, "num_kv_heads", (int)info.num_kv_heads, "head_dim",
                         (int)info.head_dim, "dtype", mstc_dtype_name(info.dtype), "sm_scale",
                         info.sm_scale, "graph_wrappers", (long long)info.graph_wrappers,
                         "eager_wrappers", (long long)info.eager_wrappers, "plans",
                         (long long)info.plans, "pre_plans", (long long)info.pre_plans, "promoted",
                         (long long)info.promoted, "memory_bytes", (Py_ssize_t)info.memory_bytes);
}

/* count_rows(label or None, 0 query tokens, 1 key tokens, 2 segments): a live count of a plan is
 * what operations of the forward in hand count from now on. */
static PyObject *manager_count_rows(PyObject *object, PyObject *args)
{
    const mstc_session *session = mstc_session_now();
    const char *label;
    const int64_t *rows = NULL;
    int which;
    if (!PyArg_ParseTuple(args, "zi", &label, &which))
        return NULL;
    if (session == NULL || session->stream == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "rows are counted inside the forward of a runner only");
        return NULL;
    }
    mstar_status status = mstar_ragged_manager_get_counter(((mstc_manager *)object)->manager, label,
                                                           (mstar_ragged_counter)which, &rows);
    if (status == MSTAR_OK) /* an eager plan has none: its tensors are of the exact size */
        status = mstar_stream_set_rows(session->stream, rows);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_NewRef(Py_None);
}

static PyMethodDef manager_methods[] = {
    {"run", manager_run, METH_VARARGS, NULL},
    {"set_label", manager_set_label, METH_O, NULL},
    {"count_rows", manager_count_rows, METH_VARARGS, NULL},
    {"info", manager_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot manager_slots[] = {
    {Py_tp_new, (void *)manager_new},
    {Py_tp_dealloc, (void *)manager_dealloc},
    {Py_tp_methods, manager_methods},
    {0, NULL},
};

PyType_Spec mstc_manager_spec = {
    .name = "mstarc._core.Manager",
    .basicsize = sizeof(mstc_manager),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = manager_slots,
};

/* ---- the resources of a node ----------------------------------------------------------------- */

enum { MAX_RESOURCES = 64 };

static int fill_list(mstc_state *state, PyObject *managers, mstar_resource *list, int64_t *count)
{
    PyObject *key, *manager;
    Py_ssize_t place = 0;
    *count = 0;
    while (PyDict_Next(managers, &place, &key, &manager)) {
        const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
        if (name == NULL)
            return -1;
        if (Py_TYPE(manager) != state->manager_type || *count == MAX_RESOURCES) {
            PyErr_Format(PyExc_TypeError, "resource '%s' is a %R; at most %d managers", name,
                         Py_TYPE(manager), MAX_RESOURCES);
            return -1;
        }
        mstar_status status = mstar_ragged_manager_get_resource(((mstc_manager *)manager)->manager,
                                                                name, &list[(*count)++]);
        if (status != MSTAR_OK) {
            mstc_raise(status);
            return -1;
        }
    }
    return 0;
}

/* Resources({key: Manager}) */
static PyObject *resources_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"managers", NULL};
    PyObject *managers;
    mstar_resource list[MAX_RESOURCES];
    int64_t count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Resources", names, &PyDict_Type,
                                     &managers) ||
        fill_list(PyType_GetModuleState(type), managers, list, &count) < 0)
        return NULL;
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    mstc_resources *self = (mstc_resources *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    mstar_status status = mstar_resources_create(list, count, &self->resources);
    self->managers = PyDict_Copy(managers);
    if (status != MSTAR_OK)
        mstc_raise(status);
    if (status != MSTAR_OK || self->managers == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void resources_dealloc(PyObject *object)
{
    mstc_resources *self = (mstc_resources *)object;
    PyTypeObject *type = Py_TYPE(object);
    mstar_resources_destroy(self->resources);
    Py_XDECREF(self->managers);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyType_Slot resources_slots[] = {
    {Py_tp_new, (void *)resources_new},
    {Py_tp_dealloc, (void *)resources_dealloc},
    {0, NULL},
};

PyType_Spec mstc_resources_spec = {
    .name = "mstarc._core.Resources",
    .basicsize = sizeof(mstc_resources),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = resources_slots,
};
