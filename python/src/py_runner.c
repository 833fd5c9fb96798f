/*
 * py_runner.c - the runner of whole forwards, with the network and the configs in Python.
 *
 * The library calls four functions of this file, which call methods of a driver, an object of the
 * package. Nothing is laid out beforehand: a forward makes tensors as it goes, under a capture from
 * the runner's pool, and what else a capture reads is kept in a list.
 */
#include <string.h>

#include "py_hooks.h"

typedef struct mstc_runner {
    PyObject_HEAD mstc_state *state;
    mstc_place place;
    PyObject *driver;    /* _declare, _preprocess and _forward */
    PyObject *resources; /* Resources, or NULL */
    PyObject *keep;      /* list: what captures read */
    PyObject *staged;    /* {name: holder} of the latest preprocess */
    PyObject *outputs;   /* {name: holder} of the latest forward, until it is handed out */
    PyObject *constants; /* until all is captured: results that no operation makes; or NULL */
    mstc_pool *pool;
    mstc_config *configs;
    Py_ssize_t num_configs;
    mstar_graph_runner *runner;
    mstc_turn turn, plan_turn;
    mstc_turn build_turn; /* prepare and capture: a query waits for them, and for no step */
} mstc_runner;

/* ---- hooks ----------------------------------------------------------------------------------- */

/* Whose bucket a failure is. */
static mstar_status fail(const mstar_step_context *context)
{
    return context->lease == NULL
               ? mstc_session_fail(-1, -1)
               : mstc_session_fail(context->lease->key.bs, context->lease->key.num_tokens);
}

/* driver.NAME(context, inputs) */
static PyObject *call_driver(mstc_runner *self, const char *name, const mstar_step_context *context,
                             const mstar_node_input *inputs, int64_t count)
{
    if (self->driver == NULL || mstc_session_is_over())
        return NULL;
    PyObject *given = mstc_context_tuple(context);
    PyObject *list = given == NULL ? NULL : mstc_inputs_list(inputs, count);
    PyObject *result =
        list == NULL ? NULL : PyObject_CallMethod(self->driver, name, "OO", given, list);
    Py_XDECREF(list);
    Py_XDECREF(given);
    return result;
}

static mstar_status declare(void *user, const mstar_step_context *context,
                            const mstar_node_input *inputs, int64_t count, mstar_step *step)
{
    PyGILState_STATE held = PyGILState_Ensure();
    PyObject *lowered = call_driver(user, "_declare", context, inputs, count);
    mstar_status status = MSTAR_OK;
    if (lowered == NULL || mstc_step_fill(step, lowered) < 0)
        status = PyErr_Occurred() != NULL ? fail(context) : MSTAR_CANCELLED;
    Py_XDECREF(lowered);
    PyGILState_Release(held);
    return status;
}

static mstar_status preprocess(void *user, const mstar_step_context *context,
                               const mstar_node_input *inputs, int64_t count,
                               mstar_tensors *tensors)
{
    mstc_runner *self = user;
    PyGILState_STATE held = PyGILState_Ensure();
    PyObject *arrays = call_driver(self, "_preprocess", context, inputs, count);
    PyObject *holders =
        arrays == NULL ? NULL : mstc_tensors_take(self->state, arrays, NULL, tensors);
    mstar_status status = MSTAR_OK;
    if (holders == NULL) {
        status = PyErr_Occurred() != NULL ? fail(context) : MSTAR_CANCELLED;
    } else {
        Py_XDECREF(self->staged);
        self->staged = holders;
    }
    Py_XDECREF(arrays);
    PyGILState_Release(held);
    return status;
}

/* The results of a forward stay alive: with the capture, or until those of a step are handed out.
 */
static int take_outputs(mstc_runner *self, const mstar_frame *frame, PyObject *arrays,
                        mstar_tensors *outputs)
{
    PyObject *holders = mstc_tensors_take(self->state, arrays, NULL, outputs);
    if (holders == NULL)
        return -1;
    const bool checked = frame->context->lease != NULL && self->place.kind == MSTAR_DEVICE_CPU;
    if ((checked && mstc_results_check(&self->constants, outputs, holders, frame->size.bs,
                                       frame->size.num_tokens) < 0) ||
        (frame->capturing && PyList_Append(self->keep, holders) < 0)) {
        Py_DECREF(holders);
        return -1;
    }
    Py_XDECREF(self->outputs);
    self->outputs = holders;
    return 0;
}

static int run_forward(mstc_runner *self, const mstar_frame *frame, mstar_tensors *outputs)
{
    const bool eager = frame->context->lease == NULL;
    PyObject *given = mstc_context_tuple(frame->context);
    /* an eager step's are what preprocess gave, or were sent to memory of the runner's */
    PyObject *inputs = mstc_tensors_dict(self->state, frame->inputs, (PyObject *)self,
                                         eager ? self->staged : NULL);
    PyObject *arrays = NULL;
    Py_CLEAR(self->outputs); /* memory that this forward may have */
    if (given != NULL && inputs != NULL)
        arrays = PyObject_CallMethod(self->driver, "_forward", "OiLLO", given,
                                     (int)frame->capturing, (long long)frame->size.bs,
                                     (long long)frame->size.num_tokens, inputs);
    const int result = arrays == NULL ? -1 : take_outputs(self, frame, arrays, outputs);
    Py_XDECREF(arrays);
    Py_XDECREF(inputs);
    Py_XDECREF(given);
    return result;
}

static mstar_status forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    mstc_runner *self = user;
    mstc_session *session = mstc_session_now();
    PyGILState_STATE held = PyGILState_Ensure();
    mstar_status status = MSTAR_CANCELLED;
    if (self->driver != NULL && !mstc_session_is_over()) {
        session->stream = frame->stream;
        session->num_written = 0;
        session->num_tokens = frame->num_tokens;
        session->num_requests = frame->num_requests;
        session->capturing = frame->capturing != 0;
        session->pool = frame->context->lease == NULL ? NULL : self->pool;
        session->keep = self->keep;
        session->inputs = frame->inputs;
        session->driver = self->place.kind == MSTAR_DEVICE_CPU ? NULL : self->driver;
        status = run_forward(self, frame, outputs) == 0 ? MSTAR_OK : fail(frame->context);
        session->stream = NULL;
        session->capturing = false;
        session->pool = NULL;
        session->inputs = NULL;
        session->driver = NULL;
    }
    PyGILState_Release(held);
    return status;
}

/* Recordings are thrown away while the runner is prepared, and with them goes what they read. */
static void let_go(mstc_runner *self)
{
    Py_CLEAR(self->outputs);
    if (PyList_SetSlice(self->keep, 0, PyList_Size(self->keep), NULL) < 0)
        PyErr_Clear();
}

/* What the pools of other frameworks hold; 0 with an exception. */
static size_t their_bytes(const mstc_runner *self)
{
    PyObject *answer = PyObject_CallMethod(self->driver, "_pool_bytes", NULL);
    const size_t bytes = answer == NULL ? 0 : PyLong_AsSize_t(answer);
    Py_XDECREF(answer);
    return PyErr_Occurred() == NULL ? bytes : 0;
}

/* The pool, and those of other frameworks, which give nothing back. */
static size_t memory(void *user, size_t most)
{
    mstc_runner *self = user;
    if (self->driver == NULL)
        return 0;
    PyGILState_STATE held = PyGILState_Ensure();
    if (most < SIZE_MAX) {
        let_go(self);
        mstc_pool_trim(self->pool, most);
    }
    const size_t bytes = mstc_pool_bytes(self->pool) + their_bytes(self);
    if (PyErr_Occurred() != NULL)
        (void)mstc_session_fail(-1, -1);
    PyGILState_Release(held);
    return bytes;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int create(mstc_runner *self, PyObject *configs, mstar_graph_runner_desc *desc)
{
    mstar_node_hooks hooks;
    const Py_ssize_t count = PyTuple_Size(configs);
    const mstar_graph_config **list = PyMem_Calloc((size_t)count + 1, sizeof *list);
    self->configs = PyMem_Calloc((size_t)count + 1, sizeof *self->configs);
    if (list == NULL || self->configs == NULL) {
        PyMem_Free(list);
        PyErr_NoMemory();
        return -1;
    }
    int failed = 0;
    self->num_configs = count;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        failed = mstc_config_read(PyTuple_GetItem(configs, i), &self->configs[i]) < 0;
        list[i] = self->configs[i].config;
    }
    mstar_node_hooks_init(&hooks);
    hooks.declare = self->resources == NULL ? NULL : declare;
    hooks.preprocess = preprocess;
    hooks.forward = forward;
    hooks.memory = memory;
    desc->hooks = &hooks;
    desc->user = self;
    desc->configs = list;
    desc->num_configs = count;
    if (self->resources != NULL)
        desc->resources = ((mstc_resources *)self->resources)->resources;
    if (!failed) {
        mstc_session session;
        mstc_session_begin(&session);
        mstar_status status = mstar_graph_runner_create(self->place.device, desc, &self->runner);
        failed = mstc_session_end(&session, status) < 0;
    }
    PyMem_Free(list);
    return failed ? -1 : 0;
}

/* Runner(driver, resources or None, configs, node, num_slots, num_warmups, max_waste, device,
 * free_bytes, floor_bytes) */
static PyObject *runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"driver",     "resources",   "configs",   "node",
                            "num_slots",  "num_warmups", "max_waste", "device",
                            "free_bytes", "floor_bytes", NULL};
    PyObject *driver, *resources, *configs;
    int slots, warmups;
    long long free_bytes, floor_bytes;
    const char *device;
    mstc_place place;
    mstar_graph_runner_desc desc;
    mstar_graph_runner_desc_init(&desc);
    mstc_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!siidsLL:Runner", names, &driver, &resources,
                                     &PyTuple_Type, &configs, &desc.node, &slots, &warmups,
                                     &desc.max_waste, &device, &free_bytes, &floor_bytes) ||
        mstc_place_of(state, device, &place) < 0)
        return NULL;
    if (resources != Py_None && Py_TYPE(resources) != state->resources_type) {
        PyErr_Format(PyExc_TypeError, "resources is a %R", Py_TYPE(resources));
        return NULL;
    }
    desc.num_slots = slots;
    desc.free_bytes = free_bytes;
    desc.floor_bytes = floor_bytes;
    desc.num_warmups = warmups;
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    mstc_runner *self = (mstc_runner *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->state = state;
    self->place = place;
    self->driver = Py_NewRef(driver);
    self->resources = resources == Py_None ? NULL : Py_NewRef(resources);
    self->keep = PyList_New(0);
    self->pool = mstc_pool_create(place.kind == MSTAR_DEVICE_CPU ? NULL : place.device);
    if (self->pool == NULL)
        PyErr_NoMemory();
    if (self->keep == NULL || self->pool == NULL || mstc_turn_init(&self->turn) < 0 ||
        mstc_turn_init(&self->plan_turn) < 0 || mstc_turn_init(&self->build_turn) < 0 ||
        create(self, configs, &desc) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int runner_traverse(PyObject *object, visitproc visit, void *arg)
{
    mstc_runner *self = (mstc_runner *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->driver);
    Py_VISIT(self->keep);
    Py_VISIT(self->staged);
    Py_VISIT(self->outputs);
    Py_VISIT(self->constants);
    for (Py_ssize_t i = 0; i < self->num_configs; i++) {
        Py_VISIT(self->configs[i].make);
        Py_VISIT(self->configs[i].layout);
        Py_VISIT(self->configs[i].last);
    }
    return 0;
}

/* Without a driver nothing is called or replayed any more. */
static int runner_clear(PyObject *object)
{
    mstc_runner *self = (mstc_runner *)object;
    Py_CLEAR(self->driver);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->staged);
    Py_CLEAR(self->outputs);
    Py_CLEAR(self->constants);
    return 0;
}

static void runner_dealloc(PyObject *object)
{
    mstc_runner *self = (mstc_runner *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    mstar_graph_runner_destroy(self->runner);
    for (Py_ssize_t i = 0; i < self->num_configs; i++)
        mstc_config_drop(&self->configs[i]);
    PyMem_Free(self->configs);
    (void)runner_clear(object);
    Py_XDECREF(self->resources);
    mstc_pool_release(self->pool);
    mstc_turn *const turns[] = {&self->turn, &self->plan_turn, &self->build_turn};
    for (int i = 0; i < 3; i++)
        if (turns[i]->lock != NULL)
            PyThread_free_lock(turns[i]->lock);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* prepare or capture: a new list of (bs, tokens, exception) of what callbacks raised. */
static PyObject *collecting(mstc_runner *self, mstar_status (*call)(mstar_graph_runner *))
{
    mstc_session session;
    PyObject *failures = PyList_New(0);
    if (failures == NULL || mstc_wait_for_caller(self->state, &self->place) < 0 ||
        mstc_turn_take(&self->turn, "the runner") < 0) {
        Py_XDECREF(failures);
        return NULL;
    }
    const bool builds = mstc_turn_read(&self->build_turn);
    mstc_session_begin(&session);
    session.failures = failures;
    mstar_status status;
    Py_BEGIN_ALLOW_THREADS status = call(self->runner);
    Py_END_ALLOW_THREADS const int result = mstc_session_end(&session, status);
    if (builds)
        mstc_turn_give(&self->build_turn);
    mstc_turn_give(&self->turn);
    return mstc_collected(failures, result);
}

/* What prepare records it throws away, and with it goes what that has read. */
static PyObject *runner_prepare(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_runner *self = (mstc_runner *)object;
    PyObject *failures = collecting(self, mstar_graph_runner_prepare);
    if (failures != NULL && PyList_SetSlice(self->keep, 0, PyList_Size(self->keep), NULL) < 0)
        Py_CLEAR(failures);
    return failures;
}

static PyObject *runner_capture(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_runner *self = (mstc_runner *)object;
    PyObject *failures = collecting(self, mstar_graph_runner_capture);
    Py_CLEAR(self->constants);
    return failures;
}

/* (walk, key info or None, handles, inputs or None, eager) */
static int read_step(PyObject *args, mstar_runner_step *step)
{
    PyObject *handles, *inputs;
    int eager;
    mstar_runner_step_init(step);
    if (!PyArg_ParseTuple(args, "szO!Op", &step->walk, &step->additional_key_info, &PyTuple_Type,
                          &handles, &inputs, &eager))
        return -1;
    step->eager = eager;
    step->requests = mstc_int_array(handles, &step->count);
    int64_t count = step->count;
    if (step->requests != NULL && inputs != Py_None)
        step->inputs = mstc_inputs_take(inputs, &count);
    if (step->requests == NULL || (inputs != Py_None && step->inputs == NULL) ||
        count != step->count) {
        if (PyErr_Occurred() == NULL)
            PyErr_Format(PyExc_ValueError, "%lld request ids and %lld inputs",
                         (long long)step->count, (long long)count);
        PyMem_Free((void *)(uintptr_t)step->requests);
        PyMem_Free((void *)(uintptr_t)step->inputs);
        return -1;
    }
    return 0;
}

static void drop_step(const mstar_runner_step *step)
{
    PyMem_Free((void *)(uintptr_t)step->requests);
    PyMem_Free((void *)(uintptr_t)step->inputs);
}

/* (miss, slot, bs, bucket tokens, tokens, requests, {name: Tensor}) */
static PyObject *result_tuple(mstc_runner *self, const mstar_runner_result *result)
{
    const mstar_tensors none = {NULL, 0, 0};
    const bool replayed = result->miss == MSTAR_GRAPH_MISS_NONE;
    PyObject *outputs =
        mstc_tensors_dict(self->state, result->outputs == NULL ? &none : result->outputs,
                          replayed ? (PyObject *)self : NULL, replayed ? NULL : self->outputs);
    return outputs == NULL
               ? NULL
               : Py_BuildValue("(siLLLLN)", mstar_graph_miss_name(result->miss), (int)result->slot,
                               (long long)result->size.bs, (long long)result->size.num_tokens,
                               (long long)result->num_tokens, (long long)result->num_requests,
                               outputs);
}

static PyObject *runner_step(PyObject *object, PyObject *args)
{
    mstc_runner *self = (mstc_runner *)object;
    mstar_runner_step step;
    mstar_runner_result made = {.struct_size = sizeof made};
    if (read_step(args, &step) < 0)
        return NULL;
    PyObject *result = NULL;
    if (self->place.kind != MSTAR_DEVICE_CPU) {
        step.stream = mstc_caller_stream(self->state, &self->place, NULL);
        if (step.stream == NULL) {
            drop_step(&step);
            return NULL;
        }
    }
    if (mstc_turn_take(&self->turn, "the runner") == 0) {
        mstc_session session;
        mstc_session_begin(&session);
        mstar_status status;
        Py_BEGIN_ALLOW_THREADS status = mstar_graph_runner_step(self->runner, &step, &made);
        Py_END_ALLOW_THREADS if (mstc_session_end(&session, status) == 0) result =
            result_tuple(self, &made);
        Py_CLEAR(self->outputs); /* the result has them; one that is an input has the runner */
        mstc_turn_give(&self->turn);
    }
    drop_step(&step);
    return result;
}

static PyObject *runner_pre_plan(PyObject *object, PyObject *args)
{
    mstc_runner *self = (mstc_runner *)object;
    mstar_runner_step step;
    mstar_graph_miss miss = MSTAR_GRAPH_MISS_NONE;
    if (read_step(args, &step) < 0)
        return NULL;
    PyObject *result = NULL;
    if (mstc_turn_take(&self->plan_turn, "pre_plan") == 0) {
        mstc_session session;
        mstc_session_begin(&session);
        mstar_status status;
        Py_BEGIN_ALLOW_THREADS status = mstar_graph_runner_pre_plan(self->runner, &step, &miss);
        Py_END_ALLOW_THREADS if (mstc_session_end(&session, status) == 0) result =
            PyUnicode_FromString(mstar_graph_miss_name(miss));
        mstc_turn_give(&self->plan_turn);
    }
    drop_step(&step);
    return result;
}

/* ---- what happened --------------------------------------------------------------------------- */

static PyObject *runner_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_runner *self = (mstc_runner *)object;
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    const bool turn = mstc_turn_read(&self->build_turn);
    mstar_status status = mstar_graph_runner_query(self->runner, &info);
    if (turn)
        mstc_turn_give(&self->build_turn);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    PyObject *misses = PyDict_New();
    for (int i = 1; misses != NULL && i < MSTAR_NUM_GRAPH_MISSES; i++) {
        PyObject *count = PyLong_FromLongLong(info.misses[i]);
        if (count == NULL ||
            PyDict_SetItemString(misses, mstar_graph_miss_name((mstar_graph_miss)i), count) < 0)
            Py_CLEAR(misses);
        Py_XDECREF(count);
    }
    return misses == NULL
               ? NULL
               : Py_BuildValue(
                     "{s:i,s:L,s:L,s:L,s:n,s:n,s:n,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:n,s:n,s:N}",
                     "num_slots", (int)info.num_slots, "num_buckets", (long long)info.num_buckets,
                     "num_captured", (long long)info.num_captured, "num_failed",
                     (long long)info.num_failed, "pool_bytes",
                     (Py_ssize_t)mstc_pool_bytes(self->pool), "static_input_bytes",
                     (Py_ssize_t)info.static_input_bytes, "graph_bytes",
                     (Py_ssize_t)info.graph_bytes, "capture_ns", (long long)info.capture_ns,
                     "replays", (long long)info.replays, "eager_steps", (long long)info.eager_steps,
                     "replayed_tokens", (long long)info.replayed_tokens, "padding_tokens",
                     (long long)info.padding_tokens, "eager_tokens", (long long)info.eager_tokens,
                     "num_unaffordable", (long long)info.num_unaffordable, "total_bytes",
                     (Py_ssize_t)(info.total_bytes + mstc_pool_bytes(self->pool)), "resource_bytes",
                     (Py_ssize_t)info.resource_bytes, "misses", misses);
}

static PyObject *bucket_dict(const mstar_runner_bucket_info *bucket)
{
    return Py_BuildValue(
        "{s:i,s:s,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:N}", "config_index", (int)bucket->config_index,
        "state", mstar_bucket_state_name(bucket->state), "bs", (long long)bucket->size.bs,
        "num_tokens", (long long)bucket->size.num_tokens, "nodes", (long long)bucket->nodes,
        "capture_ns", (long long)bucket->capture_ns, "replays", (long long)bucket->replays,
        "tokens", (long long)bucket->tokens, "padding_tokens", (long long)bucket->padding_tokens,
        "reason", mstc_text(bucket->reason));
}

/* Every bucket, in the order of capture. */
static PyObject *runner_buckets(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_runner *self = (mstc_runner *)object;
    PyObject *list = PyList_New(0);
    const bool turn = mstc_turn_read(&self->build_turn);
    for (int64_t i = 0; list != NULL; i++) {
        mstar_runner_bucket_info bucket = {.struct_size = sizeof bucket};
        if (mstar_graph_runner_query_bucket(self->runner, i, &bucket) != MSTAR_OK)
            break;
        PyObject *entry = bucket_dict(&bucket);
        if (entry == NULL || PyList_Append(list, entry) < 0)
            Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    if (turn)
        mstc_turn_give(&self->build_turn);
    return list;
}

static PyMethodDef runner_methods[] = {
    {"prepare", runner_prepare, METH_NOARGS, NULL},
    {"capture", runner_capture, METH_NOARGS, NULL},
    {"step", runner_step, METH_VARARGS, NULL},
    {"pre_plan", runner_pre_plan, METH_VARARGS, NULL},
    {"info", runner_info, METH_NOARGS, NULL},
    {"buckets", runner_buckets, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_new, (void *)runner_new},           {Py_tp_dealloc, (void *)runner_dealloc},
    {Py_tp_traverse, (void *)runner_traverse}, {Py_tp_clear, (void *)runner_clear},
    {Py_tp_methods, runner_methods},           {0, NULL},
};

PyType_Spec mstc_runner_spec = {
    .name = "mstarc._core.Runner",
    .basicsize = sizeof(mstc_runner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = runner_slots,
};
