/*
 * py_attention.c - one planned attention, behind the three wrapper classes of the package.
 *
 * plan and run drop the interpreter's lock while the library works. Another Python thread may then
 * call the same object; the object's own lock makes it wait.
 */
#include <string.h>

#include "py_core.h"

enum { SELF, CROSS, PREFIXED };

typedef struct mstc_attention {
    PyObject_HEAD int kind;
    void *wrapper; /* one of the library's three */
    PyThread_type_lock lock;
    mstc_place place;
    int32_t num_qo_heads, head_dim;
    mstar_dtype dtype;
    bool graph;
    int64_t max_total_tokens;
    int64_t planned_tokens; /* rows of the latest plan */
    uint64_t offset_syncs;  /* plans whose offsets lay on a device */
    uint64_t input_syncs;   /* runs that wait for the device before they give q, k or v back */
    mstc_view workspace;    /* held as long as the wrapper may write to it */
} mstc_attention;

static mstc_state *state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

/* ---- the library's three names for each call --------------------------------------------------
 */

static mstar_status create(int kind, mstar_device *device, const mstar_ragged_prefill_desc *desc,
                           void *workspace, size_t bytes, void **wrapper)
{
    switch (kind) {
    case SELF:
        return mstar_ragged_prefill_create(device, desc, workspace, bytes,
                                           (mstar_ragged_prefill **)wrapper);
    case CROSS:
        return mstar_ragged_cross_prefill_create(device, desc, workspace, bytes,
                                                 (mstar_ragged_cross_prefill **)wrapper);
    default:
        return mstar_prefixed_prefill_create(device, desc, workspace, bytes,
                                             (mstar_prefixed_prefill **)wrapper);
    }
}

static void destroy(int kind, void *wrapper)
{
    switch (kind) {
    case SELF:
        mstar_ragged_prefill_destroy(wrapper);
        break;
    case CROSS:
        mstar_ragged_cross_prefill_destroy(wrapper);
        break;
    default:
        mstar_prefixed_prefill_destroy(wrapper);
        break;
    }
}

static mstar_status plan(const mstc_attention *self, mstar_stream *stream, const mstc_offsets *q,
                         const mstc_offsets *kv, int causal)
{
    switch (self->kind) {
    case SELF:
        return mstar_ragged_prefill_plan(self->wrapper, stream, q->values, q->count - 1, causal);
    case CROSS:
        return mstar_ragged_cross_prefill_plan(self->wrapper, stream, q->values, q->count - 1,
                                               kv->values, kv->count - 1);
    default:
        return mstar_prefixed_prefill_plan(self->wrapper, stream, q->values, q->count - 1,
                                           kv->values, kv->count - 1, causal);
    }
}

static mstar_status run(const mstc_attention *self, mstar_stream *stream, const mstar_tensor *q,
                        const mstar_tensor *k, const mstar_tensor *v, const mstar_tensor *out)
{
    switch (self->kind) {
    case SELF:
        return mstar_ragged_prefill_run(self->wrapper, stream, q, k, v, out, NULL);
    case CROSS:
        return mstar_ragged_cross_prefill_run(self->wrapper, stream, q, k, v, out, NULL);
    default:
        return mstar_prefixed_prefill_run(self->wrapper, stream, q, k, v, out, NULL);
    }
}

static mstar_status query(const mstc_attention *self, mstar_ragged_prefill_info *info)
{
    switch (self->kind) {
    case SELF:
        return mstar_ragged_prefill_query(self->wrapper, info);
    case CROSS:
        return mstar_ragged_cross_prefill_query(self->wrapper, info);
    default:
        return mstar_prefixed_prefill_query(self->wrapper, info);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A caller's scratch: any bytes, writable, contiguous, on the wrapper's device. */
static int take_workspace(mstc_state *state, mstc_attention *self, PyObject *object, void **memory,
                          size_t *bytes)
{
    const size_t alignment = 64;
    mstc_view *view = &self->workspace;
    *memory = NULL;
    *bytes = 0;
    if (object == Py_None)
        return 0;
    if (mstc_view_take(state, object, "workspace_buffer", view) < 0)
        return -1;
    int64_t count = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        if (view->shape[i] != 1 && view->strides[i] != count) {
            PyErr_SetString(PyExc_ValueError, "workspace_buffer is not contiguous");
            return -1;
        }
        count *= view->shape[i];
    }
    if (view->read_only) {
        PyErr_SetString(PyExc_ValueError, "workspace_buffer is read-only");
        return -1;
    }
    if (view->device_type != (int32_t)self->place.kind || view->device_id != self->place.index) {
        PyErr_Format(PyExc_ValueError,
                     "workspace_buffer lies on DLPack device (%d, %d); the wrapper is on (%d, %d)",
                     (int)view->device_type, (int)view->device_id, (int)self->place.kind,
                     (int)self->place.index);
        return -1;
    }
    const size_t have = (size_t)count * (view->bits / 8u);
    const size_t skip = (alignment - (uintptr_t)view->data % alignment) % alignment;
    *memory = (char *)view->data + skip;
    *bytes = have > skip ? have - skip : 0;
    if (view->data == NULL) { /* no bytes at all: the library says how many it needs */
        static _Alignas(64) char nothing[64];
        *memory = nothing;
    }
    return 0;
}

static int read_layout(const char *text, mstar_kv_layout *layout)
{
    if (strcmp(text, "NHD") == 0) {
        *layout = MSTAR_KV_NHD;
    } else if (strcmp(text, "HND") == 0) {
        *layout = MSTAR_KV_HND;
    } else {
        PyErr_Format(PyExc_ValueError, "kv_layout is '%.40s'; accepted are 'NHD' and 'HND'", text);
        return -1;
    }
    return 0;
}

static int attention_create(mstc_state *state, mstc_attention *self, const char *device_name,
                            const mstar_ragged_prefill_desc *desc, PyObject *workspace)
{
    void *memory;
    size_t bytes;
    if (mstc_place_of(state, device_name, &self->place) < 0 ||
        take_workspace(state, self, workspace, &memory, &bytes) < 0)
        return -1;
    mstar_status status =
        create(self->kind, self->place.device, desc, memory, bytes, &self->wrapper);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return -1;
    }
    return 0;
}

static PyObject *attention_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind",
                            "num_qo_heads",
                            "num_kv_heads",
                            "head_dim",
                            "max_num_segments",
                            "max_total_tokens",
                            "max_total_kv_tokens",
                            "device",
                            "accelerator_graph",
                            "sm_scale",
                            "q_data_type",
                            "kv_layout",
                            "backend",
                            "workspace",
                            NULL};
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    int kind = SELF, graph = 0;
    long long segments, tokens, kv_tokens;
    const char *device, *dtype, *layout, *backend;
    PyObject *workspace;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiiiLLLspdsssO:Attention", names, &kind,
                                     &desc.num_qo_heads, &desc.num_kv_heads, &desc.head_dim,
                                     &segments, &tokens, &kv_tokens, &device, &graph,
                                     &desc.sm_scale, &dtype, &layout, &backend, &workspace))
        return NULL;
    desc.max_num_segments = segments;
    desc.max_total_tokens = tokens;
    desc.max_total_kv_tokens = kv_tokens;
    desc.accelerator_graph = graph;
    desc.backend = backend;
    if (kind < SELF || kind > PREFIXED) {
        PyErr_Format(PyExc_ValueError, "kind is %d; 0, 1 and 2 exist", kind);
        return NULL;
    }
    if (read_layout(layout, &desc.kv_layout) < 0)
        return NULL;
    mstar_status status = mstar_dtype_parse(dtype, &desc.q_data_type);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    mstc_attention *self = (mstc_attention *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->kind = kind;
    self->num_qo_heads = desc.num_qo_heads;
    self->head_dim = desc.head_dim;
    self->dtype = desc.q_data_type;
    self->graph = graph != 0;
    self->max_total_tokens = tokens;
    self->lock = PyThread_allocate_lock();
    if (self->lock == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(self);
    } else if (attention_create(PyType_GetModuleState(type), self, device, &desc, workspace) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void attention_dealloc(PyObject *object)
{
    mstc_attention *self = (mstc_attention *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    destroy(self->kind, self->wrapper);
    mstc_view_drop(&self->workspace);
    if (self->lock != NULL)
        PyThread_free_lock(self->lock);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int attention_traverse(PyObject *object, visitproc visit, void *arg)
{
    mstc_attention *self = (mstc_attention *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->workspace.owner);
    return 0;
}

/* ---- plan ------------------------------------------------------------------------------------ */

/* The stream of a call; NULL: the wrapper's own, on the CPU outside of forwards. */
static int find_stream(mstc_state *state, const mstc_attention *self, PyObject *like,
                       mstar_stream **stream)
{
    const mstc_session *session = mstc_session_now();
    if (self->place.kind == MSTAR_DEVICE_CPU) {
        const bool inside = session != NULL && session->stream != NULL &&
                            mstar_stream_get_device(session->stream) == self->place.device;
        *stream = inside ? session->stream : NULL;
        return 0;
    }
    *stream = mstc_stream_take(state, &self->place, like);
    return *stream == NULL ? -1 : 0;
}

static PyObject *plan_offsets(mstc_state *state, mstc_attention *self, const mstc_offsets *q,
                              const mstc_offsets *kv, int causal)
{
    mstar_status status;
    mstar_stream *stream;
    if (find_stream(state, self, NULL, &stream) < 0)
        return NULL;
    mstc_lock(self->lock);
    Py_BEGIN_ALLOW_THREADS status = plan(self, stream, q, kv, causal);
    Py_END_ALLOW_THREADS if (status == MSTAR_OK)
    {
        self->planned_tokens = q->values[q->count - 1];
        self->offset_syncs += (uint64_t)(q->from_device || (kv != NULL && kv->from_device));
    }
    PyThread_release_lock(self->lock);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_NewRef(Py_None);
}

/* plan(q_cu_seqlens, kv_cu_seqlens or None, causal) */
static PyObject *attention_plan(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    mstc_attention *self = (mstc_attention *)object;
    mstc_state *state = state_of(object);
    mstc_offsets q, kv;
    PyObject *result = NULL;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "plan takes q_cu_seqlens, kv_cu_seqlens and causal");
        return NULL;
    }
    const int causal = PyObject_IsTrue(args[2]);
    const bool pair = self->kind != SELF;
    if (causal < 0 ||
        mstc_offsets_take(state, args[0], pair ? "q_cu_seqlens" : "cu_seqlens", &q) < 0)
        return NULL;
    if (!pair) {
        result = plan_offsets(state, self, &q, NULL, causal);
    } else if (mstc_offsets_take(state, args[1], "kv_cu_seqlens", &kv) == 0) {
        result = plan_offsets(state, self, &q, &kv, causal);
        mstc_offsets_drop(&kv);
    }
    mstc_offsets_drop(&q);
    return result;
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Casts what must be cast, runs, and zeroes the rows past the plan. Without the interpreter. */
static mstar_status run_inputs(const mstc_attention *self, mstar_stream *stream,
                               mstc_input inputs[3], const mstar_tensor *out)
{
    mstar_status status = MSTAR_OK;
    for (int i = 0; i < 3 && status == MSTAR_OK; i++)
        status = mstc_input_pack(&inputs[i]);
    if (status == MSTAR_OK)
        status = run(self, stream, &inputs[0].tensor, &inputs[1].tensor, &inputs[2].tensor, out);
    /* graph mode does this itself, and device memory came zeroed */
    if (status == MSTAR_OK && !self->graph && self->place.kind == MSTAR_DEVICE_CPU &&
        out->shape[0] > self->planned_tokens) {
        const size_t row = (size_t)out->strides[0] * mstar_dtype_bytes(self->dtype);
        const size_t begin = (size_t)self->planned_tokens;
        memset((char *)out->data + begin * row, 0, ((size_t)out->shape[0] - begin) * row);
    }
    return status;
}

static PyObject *run_into_new(mstc_state *state, mstc_attention *self, PyObject *q,
                              mstc_input inputs[3])
{
    const int64_t shape[3] = {inputs[0].view.shape[0], self->num_qo_heads, self->head_dim};
    mstc_view view;
    mstar_stream *stream;
    const bool cpu = self->place.kind == MSTAR_DEVICE_CPU;
    const bool zero = !cpu && !self->graph && shape[0] > self->planned_tokens;
    if (find_stream(state, self, q, &stream) < 0)
        return NULL;
    PyObject *made = mstc_output_new(state, q, &inputs[0].view, self->dtype, zero, 3, shape, &view);
    if (made == NULL)
        return NULL;
    const mstar_tensor out = mstc_view_tensor(&view, self->dtype);
    if (mstc_session_keep(state, (PyObject *)self, NULL) < 0 || mstc_session_wrote(&out) < 0 ||
        mstc_session_keep(state, made, view.data) < 0) {
        mstc_view_drop(&view);
        Py_DECREF(made);
        return NULL;
    }
    mstar_status status;
    mstc_lock(self->lock);
    Py_BEGIN_ALLOW_THREADS status = run_inputs(self, stream, inputs, &out);
    Py_END_ALLOW_THREADS PyThread_release_lock(self->lock);
    mstc_view_drop(&view);
    if (status != MSTAR_OK) {
        Py_DECREF(made);
        mstc_raise(status);
        return NULL;
    }
    return mstc_output_finish(state, q, made);
}

static int check_rows(const mstc_attention *self, const mstc_input *q)
{
    if (!self->graph || q->view.shape[0] <= self->max_total_tokens)
        return 0;
    PyErr_Format(PyExc_AssertionError, "q has %lld rows; max_total_tokens is %lld",
                 (long long)q->view.shape[0], (long long)self->max_total_tokens);
    return -1;
}

static PyObject *attention_run(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    static const char *const names[] = {"q", "k", "v"};
    mstc_attention *self = (mstc_attention *)object;
    mstc_state *state = state_of(object);
    mstc_input inputs[3];
    PyObject *result = NULL;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "run takes q, k and v");
        return NULL;
    }
    int taken = 0;
    mstc_wish wish = {.device_kind = (int32_t)self->place.kind,
                      .device_index = self->place.index,
                      .rank = 3,
                      .dtype = (int32_t)self->dtype,
                      .dimensions = "tokens, heads and head dim"};
    while (taken < 3) {
        wish.name = names[taken];
        if (mstc_input_take(state, &wish, args[taken], &inputs[taken]) < 0)
            break;
        taken++;
    }
    if (taken == 3 && check_rows(self, &inputs[0]) == 0)
        result = run_into_new(state, self, args[0], inputs);
    bool waits = false;
    while (taken > 0) {
        waits = waits || inputs[taken - 1].view.reader != NULL;
        mstc_input_drop(&inputs[--taken]);
    }
    self->input_syncs += waits;
    return result;
}

/* ---- state ----------------------------------------------------------------------------------- */

static PyObject *attention_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_attention *self = (mstc_attention *)object;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    mstc_lock(self->lock);
    mstar_status status = query(self, &info);
    PyThread_release_lock(self->lock);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_BuildValue(
        "{s:i,s:d,s:L,s:L,s:L,s:L,s:L,s:L,s:K,s:K,s:n,s:n,s:s,s:s}", "padded_head_dim",
        (int)info.padded_head_dim, "sm_scale", info.sm_scale, "num_segments",
        (long long)info.num_segments, "num_tokens", (long long)info.num_tokens, "num_kv_tokens",
        (long long)info.num_kv_tokens, "num_work_items", (long long)info.num_work_items, "plans",
        (long long)info.plans, "padded_copies", (long long)info.padded_copies, "offset_syncs",
        (unsigned long long)self->offset_syncs, "input_syncs",
        (unsigned long long)self->input_syncs, "workspace_bytes", (Py_ssize_t)info.workspace_bytes,
        "plan_bytes", (Py_ssize_t)info.plan_bytes, "kernel", info.kernel, "kernel_reason",
        info.kernel_reason);
}

static PyMethodDef attention_methods[] = {
    {"plan", (PyCFunction)(void (*)(void))attention_plan, METH_FASTCALL, NULL},
    {"run", (PyCFunction)(void (*)(void))attention_run, METH_FASTCALL, NULL},
    {"info", attention_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot attention_slots[] = {
    {Py_tp_new, (void *)attention_new},
    {Py_tp_dealloc, (void *)attention_dealloc},
    {Py_tp_traverse, (void *)attention_traverse},
    {Py_tp_methods, attention_methods},
    {0, NULL},
};

PyType_Spec mstc_attention_spec = {
    .name = "mstarc._core.Attention",
    .basicsize = sizeof(mstc_attention),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = attention_slots,
};
