/*
 * py_region.c - the runner of one region, with the config's callables in Python: capture_fn,
 * make_static_inputs, declare_step and can_lease, reached through methods of a driver.
 */
#include <string.h>

#include "py_hooks.h"

typedef struct mstc_region {
    PyObject_HEAD mstc_state *state;
    mstc_place place;
    mstar_event *order;  /* between the caller's stream and the region's; NULL on the CPU */
    PyObject *driver;    /* _capture, _make_inputs, _declare and _can_lease */
    PyObject *resources; /* Resources, or NULL */
    PyObject *buffers;   /* {(bs, tokens): [{name: holder} of each slot]}: static inputs */
    PyObject *recorded;  /* set of (bs, tokens): what the prepare or capture in hand has recorded */
    PyObject *keep;      /* list: what captures read beside them */
    PyObject *outputs;   /* {name: holder} of the latest run of the region's code */
    PyObject *constants; /* until all is captured: results that no operation makes; or NULL */
    mstc_pool *pool;
    mstar_piecewise_config *config;
    mstar_stream *stream;
    mstar_region_runner *runner;
    mstc_turn turn;
} mstc_region;

/* ---- static inputs --------------------------------------------------------------------------- */

static PyObject *shape_key(int64_t bs, int64_t total_tokens)
{
    return Py_BuildValue("(LL)", (long long)bs, (long long)total_tokens);
}

/* Slots come in order. */
static int keep_inputs(mstc_region *self, const mstar_capture_shape *shape, PyObject *holders)
{
    PyObject *key = shape_key(shape->bs, shape->total_tokens);
    PyObject *slots = key == NULL ? NULL : PyDict_GetItemWithError(self->buffers, key);
    int result = -1;
    if (slots != NULL) {
        result = PyList_Append(slots, holders);
    } else if (key != NULL && PyErr_Occurred() == NULL) {
        slots = Py_BuildValue("[O]", holders);
        result = slots == NULL ? -1 : PyDict_SetItem(self->buffers, key, slots);
        Py_XDECREF(slots);
    }
    Py_XDECREF(key);
    return result;
}

/* {name: holder} of a shape's slot, borrowed; NULL with an exception. */
static PyObject *inputs_of(const mstc_region *self, const mstar_lease *lease)
{
    PyObject *key = shape_key(lease->key.bs, lease->key.num_tokens);
    PyObject *slots = key == NULL ? NULL : PyDict_GetItemWithError(self->buffers, key);
    if (slots == NULL && PyErr_Occurred() == NULL)
        PyErr_SetObject(PyExc_KeyError, key);
    Py_XDECREF(key);
    return slots == NULL ? NULL : PyList_GetItem(slots, lease->slot);
}

/* What fails once is no more recorded, whatever its other slots are. */
static int note_run(mstc_region *self, const mstar_lease *lease, bool failed, bool capturing)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *key = shape_key(lease->key.bs, lease->key.num_tokens);
    int result = key == NULL ? -1 : 0;
    if (key != NULL && failed)
        result = PySet_Discard(self->recorded, key);
    else if (key != NULL && capturing)
        result = PySet_Add(self->recorded, key);
    Py_XDECREF(key);
    if (type != NULL)
        PyErr_Restore(type, value, trace);
    return failed || result < 0 ? -1 : 0;
}

/* After a prepare or a capture: shapes that it has not recorded are dropped, and their static
 * inputs are given back. */
static int drop_unrecorded(mstc_region *self)
{
    PyObject *keys = PyDict_Keys(self->buffers);
    int result = keys == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_Size(keys); i++) {
        PyObject *key = PyList_GetItem(keys, i);
        const int recorded = PySet_Contains(self->recorded, key);
        result = recorded < 0 ? -1 : recorded ? 0 : PyDict_DelItem(self->buffers, key);
    }
    Py_XDECREF(keys);
    return result;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static int run_region(mstc_region *self, const mstar_piecewise_call_inputs *call,
                      mstar_tensors *outputs, bool capturing)
{
    PyObject *given = mstc_context_tuple(call->engine_inputs);
    PyObject *held = inputs_of(self, call->engine_inputs->lease);
    PyObject *inputs =
        held == NULL ? NULL
                     : mstc_tensors_dict(self->state, call->static_inputs, (PyObject *)self, held);
    PyObject *arrays = NULL;
    Py_CLEAR(self->outputs); /* memory that this run may have: they have been copied */
    if (given != NULL && inputs != NULL)
        arrays =
            PyObject_CallMethod(self->driver, "_capture", "OiO", given, (int)capturing, inputs);
    PyObject *holders =
        arrays == NULL ? NULL : mstc_tensors_take(self->state, arrays, NULL, outputs);
    const mstar_bucket_key *bucket = &call->engine_inputs->lease->key;
    int result = holders == NULL ? -1 : 0;
    if (result == 0 && self->place.kind == MSTAR_DEVICE_CPU)
        result =
            mstc_results_check(&self->constants, outputs, holders, bucket->bs, bucket->num_tokens);
    if (result == 0 && capturing)
        result = PyList_Append(self->keep, holders);
    self->outputs = holders;
    Py_XDECREF(arrays);
    Py_XDECREF(inputs);
    Py_XDECREF(given);
    return note_run(self, call->engine_inputs->lease, result < 0, capturing);
}

static mstar_status capture_fn(void *user, const mstar_piecewise_call_inputs *call,
                               mstar_tensors *outputs)
{
    mstc_region *self = user;
    mstc_session *session = mstc_session_now();
    const mstar_bucket_key *key = &call->engine_inputs->lease->key;
    const bool capturing = mstar_stream_is_capturing(self->stream) != 0;
    PyGILState_STATE held = PyGILState_Ensure();
    mstar_status status = MSTAR_CANCELLED;
    if (self->driver != NULL && !mstc_session_is_over()) {
        session->stream = self->stream;
        session->num_written = 0;
        session->num_tokens = call->num_tokens;
        session->num_requests = call->num_requests;
        session->capturing = capturing;
        session->pool = self->pool;
        session->keep = self->keep;
        session->inputs = call->static_inputs;
        session->driver = self->place.kind == MSTAR_DEVICE_CPU ? NULL : self->driver;
        status = run_region(self, call, outputs, capturing) == 0
                     ? MSTAR_OK
                     : mstc_session_fail(key->bs, key->num_tokens);
        session->stream = NULL;
        session->capturing = false;
        session->pool = NULL;
        session->inputs = NULL;
        session->driver = NULL;
    }
    PyGILState_Release(held);
    return status;
}

static mstar_status make_inputs(void *user, const mstar_capture_shape *shape, mstar_tensors *inputs)
{
    mstc_region *self = user;
    PyGILState_STATE held = PyGILState_Ensure();
    mstar_status status = MSTAR_CANCELLED;
    if (self->driver != NULL && !mstc_session_is_over()) {
        PyObject *lengths = mstc_int_tuple(shape->seq_lens, shape->bs);
        PyObject *arrays =
            lengths == NULL
                ? NULL
                : PyObject_CallMethod(self->driver, "_make_inputs", "LOL", (long long)shape->bs,
                                      lengths, (long long)shape->total_tokens);
        PyObject *holders =
            arrays == NULL ? NULL : mstc_tensors_take(self->state, arrays, &self->place, inputs);
        status = holders != NULL && keep_inputs(self, shape, holders) == 0
                     ? MSTAR_OK
                     : mstc_session_fail(shape->bs, shape->total_tokens);
        Py_XDECREF(holders);
        Py_XDECREF(arrays);
        Py_XDECREF(lengths);
    }
    PyGILState_Release(held);
    return status;
}

static mstar_status declare(void *user, const int64_t *requests, int64_t num_requests,
                            const int64_t *lengths, int64_t num_lengths, mstar_step *step,
                            int *declared)
{
    mstc_region *self = user;
    PyGILState_STATE held = PyGILState_Ensure();
    mstar_status status = MSTAR_CANCELLED;
    if (self->driver != NULL && !mstc_session_is_over()) {
        PyObject *handles = mstc_int_tuple(requests, num_requests);
        PyObject *spans = handles == NULL ? NULL : mstc_int_tuple(lengths, num_lengths);
        PyObject *lowered =
            spans == NULL ? NULL
                          : PyObject_CallMethod(self->driver, "_declare", "OO", handles, spans);
        *declared = lowered != NULL && lowered != Py_None;
        const int failed =
            lowered == NULL || (lowered != Py_None && mstc_step_fill(step, lowered) < 0);
        status = failed ? mstc_session_fail(num_requests, -1) : MSTAR_OK;
        Py_XDECREF(lowered);
        Py_XDECREF(spans);
        Py_XDECREF(handles);
    }
    PyGILState_Release(held);
    return status;
}

static int can_lease(void *user, const mstar_node_input *inputs, int64_t count)
{
    mstc_region *self = user;
    PyGILState_STATE held = PyGILState_Ensure();
    int answer = 0;
    if (self->driver != NULL && !mstc_session_is_over()) {
        PyObject *list = mstc_inputs_list(inputs, count);
        PyObject *result =
            list == NULL ? NULL : PyObject_CallMethod(self->driver, "_can_lease", "O", list);
        answer = result == NULL ? -1 : PyObject_IsTrue(result);
        if (answer < 0)
            (void)mstc_session_fail(count, -1);
        Py_XDECREF(result);
        Py_XDECREF(list);
    }
    PyGILState_Release(held);
    return answer > 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

/*
 * (packed, batch sizes, seq_len, total tokens, compile, compile mode or None, declares,
 *  lease before step, has can_lease)
 */
static int read_config(mstc_region *self, PyObject *tuple)
{
    PyObject *sizes, *totals;
    int packed, compile, declares, early, asks;
    long long seq_len;
    mstar_piecewise_config_desc desc;
    mstar_piecewise_packed_config_desc_init(&desc);
    if (!PyArg_ParseTuple(tuple, "pO!LO!pzppp", &packed, &PyTuple_Type, &sizes, &seq_len,
                          &PyTuple_Type, &totals, &compile, &desc.compile_mode, &declares, &early,
                          &asks))
        return -1;
    int64_t *size_array = mstc_int_array(sizes, &desc.num_capture_batch_sizes);
    int64_t *total_array =
        size_array == NULL ? NULL : mstc_int_array(totals, &desc.num_total_tokens);
    if (total_array == NULL) {
        PyMem_Free(size_array);
        return -1;
    }
    desc.compile = compile;
    desc.capture_fn = capture_fn;
    desc.make_static_inputs = make_inputs;
    desc.declare_step = declares ? declare : NULL;
    desc.can_lease = asks ? can_lease : NULL;
    desc.user = self;
    desc.lease_before_step = early;
    desc.capture_batch_sizes = size_array;
    desc.seq_len = packed ? -1 : seq_len;
    desc.total_tokens = packed ? total_array : NULL;
    desc.num_total_tokens = packed ? desc.num_total_tokens : 0;
    mstc_session session;
    mstc_session_begin(&session);
    mstar_status status = packed ? mstar_piecewise_packed_config_create(&desc, &self->config)
                                 : mstar_piecewise_batched_config_create(&desc, &self->config);
    PyMem_Free(size_array);
    PyMem_Free(total_array);
    return mstc_session_end(&session, status);
}

static int create(mstc_region *self, PyObject *config, mstar_region_runner_desc *desc)
{
    mstar_device *device = self->place.device;
    if (read_config(self, config) < 0)
        return -1;
    mstar_status status = mstar_stream_create(device, -1, &self->stream);
    if (status == MSTAR_OK && self->place.kind != MSTAR_DEVICE_CPU)
        status = mstar_event_create(device, &self->order);
    desc->config = self->config;
    desc->stream = self->stream;
    if (self->resources != NULL)
        desc->resources = ((mstc_resources *)self->resources)->resources;
    mstc_session session;
    mstc_session_begin(&session);
    if (status == MSTAR_OK)
        status = mstar_region_runner_create(device, desc, &self->runner);
    return mstc_session_end(&session, status);
}

/* Region(driver, resources or None, config, node, label, num_slots, num_warmups, device,
 * free_bytes, floor_bytes) */
static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"driver",     "resources",   "config",      "node",
                            "label",      "num_slots",   "num_warmups", "device",
                            "free_bytes", "floor_bytes", NULL};
    PyObject *driver, *resources, *config;
    int slots, warmups;
    long long free_bytes, floor_bytes;
    const char *device;
    mstc_place place;
    mstar_region_runner_desc desc;
    mstar_region_runner_desc_init(&desc);
    mstc_state *state = PyType_GetModuleState(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!ssiisLL:Region", names, &driver, &resources,
                                     &PyTuple_Type, &config, &desc.node, &desc.label, &slots,
                                     &warmups, &device, &free_bytes, &floor_bytes) ||
        mstc_place_of(state, device, &place) < 0)
        return NULL;
    if (resources != Py_None && Py_TYPE(resources) != state->resources_type) {
        PyErr_Format(PyExc_TypeError, "resources is a %R", Py_TYPE(resources));
        return NULL;
    }
    desc.num_slots = slots;
    desc.num_warmups = warmups;
    desc.free_bytes = free_bytes;
    desc.floor_bytes = floor_bytes;
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    mstc_region *self = (mstc_region *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->state = state;
    self->place = place;
    self->driver = Py_NewRef(driver);
    self->resources = resources == Py_None ? NULL : Py_NewRef(resources);
    self->buffers = PyDict_New();
    self->recorded = PySet_New(NULL);
    self->keep = PyList_New(0);
    self->pool = mstc_pool_create(place.kind == MSTAR_DEVICE_CPU ? NULL : place.device);
    if (self->pool == NULL)
        PyErr_NoMemory();
    if (self->buffers == NULL || self->recorded == NULL || self->keep == NULL ||
        self->pool == NULL || mstc_turn_init(&self->turn) < 0 || create(self, config, &desc) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int region_traverse(PyObject *object, visitproc visit, void *arg)
{
    mstc_region *self = (mstc_region *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->driver);
    Py_VISIT(self->buffers);
    Py_VISIT(self->keep);
    Py_VISIT(self->outputs);
    Py_VISIT(self->constants);
    return 0;
}

/* Without a driver nothing is called or replayed any more. */
static int region_clear(PyObject *object)
{
    mstc_region *self = (mstc_region *)object;
    Py_CLEAR(self->driver);
    Py_CLEAR(self->buffers);
    Py_CLEAR(self->recorded);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->outputs);
    Py_CLEAR(self->constants);
    return 0;
}

static void region_dealloc(PyObject *object)
{
    mstc_region *self = (mstc_region *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    mstar_region_runner_destroy(self->runner);
    mstar_piecewise_config_destroy(self->config);
    mstar_event_destroy(self->order);
    mstar_stream_destroy(self->stream);
    (void)region_clear(object);
    Py_XDECREF(self->resources);
    mstc_pool_release(self->pool);
    if (self->turn.lock != NULL)
        PyThread_free_lock(self->turn.lock);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* prepare or capture: a new list of (bs, tokens, exception) of what callbacks raised. */
static PyObject *collecting(mstc_region *self, mstar_status (*call)(mstar_region_runner *))
{
    mstc_session session;
    PyObject *failures = PyList_New(0);
    if (failures == NULL || mstc_wait_for_caller(self->state, &self->place) < 0 ||
        mstc_turn_take(&self->turn, "the runner") < 0) {
        Py_XDECREF(failures);
        return NULL;
    }
    mstc_session_begin(&session);
    session.failures = failures;
    (void)PySet_Clear(self->recorded);
    mstar_status status;
    Py_BEGIN_ALLOW_THREADS status = call(self->runner);
    if (status == MSTAR_OK) /* what is dropped may be in use */
        status = mstar_stream_synchronize(self->stream);
    Py_END_ALLOW_THREADS int result = mstc_session_end(&session, status);
    if (result == 0)
        result = drop_unrecorded(self);
    mstc_turn_give(&self->turn);
    return mstc_collected(failures, result);
}

/* What prepare records it throws away, and with it goes what that has read. */
static PyObject *region_prepare(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_region *self = (mstc_region *)object;
    PyObject *failures = collecting(self, mstar_region_runner_prepare);
    if (failures != NULL && PyList_SetSlice(self->keep, 0, PyList_Size(self->keep), NULL) < 0)
        Py_CLEAR(failures);
    return failures;
}

static PyObject *region_capture(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_region *self = (mstc_region *)object;
    PyObject *failures = collecting(self, mstar_region_runner_capture);
    Py_CLEAR(self->constants);
    return failures;
}

/* can_run(bs, num_tokens or -1): "none", or why not. */
static PyObject *region_can_run(PyObject *object, PyObject *args)
{
    long long bs, tokens;
    if (!PyArg_ParseTuple(args, "LL", &bs, &tokens))
        return NULL;
    return PyUnicode_FromString(mstar_graph_miss_name(
        mstar_region_runner_can_run(((mstc_region *)object)->runner, bs, tokens)));
}

/* can_lease(list of inputs) */
static PyObject *region_can_lease(PyObject *object, PyObject *list)
{
    mstc_region *self = (mstc_region *)object;
    int64_t count;
    mstar_node_input *inputs = mstc_inputs_take(list, &count);
    if (inputs == NULL)
        return NULL;
    mstc_session session;
    mstc_session_begin(&session);
    int answer;
    Py_BEGIN_ALLOW_THREADS answer = mstar_region_runner_can_lease(self->runner, inputs, count);
    Py_END_ALLOW_THREADS PyMem_Free(inputs);
    return mstc_session_end(&session, MSTAR_OK) < 0 ? NULL : PyBool_FromLong(answer);
}

/* What comes next on `later` waits, on the device, for what `earlier` has. */
static mstar_status follow(mstc_region *self, mstar_stream *later, mstar_stream *earlier)
{
    if (self->order == NULL)
        return MSTAR_OK;
    mstar_status status = mstar_event_record(self->order, earlier);
    return status == MSTAR_OK ? mstar_stream_wait_event(later, self->order) : status;
}

/* The region has a stream of its own, between two places of the caller's; a run that fails may have
 * been given work before. */
static mstar_status run_in_order(mstc_region *self, mstar_stream *caller,
                                 const mstar_region_call *call, mstar_region_result *made)
{
    mstar_status status = follow(self, self->stream, caller);
    if (status != MSTAR_OK)
        return status;
    status = mstar_region_runner_run(self->runner, call, made);
    const mstar_status order = follow(self, caller, self->stream);
    return status == MSTAR_OK ? order : status;
}

static PyObject *run_call(mstc_region *self, const mstar_region_call *call)
{
    mstar_region_result made = {.struct_size = sizeof made};
    mstc_session session;
    if (self->driver == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the region is being collected");
        return NULL;
    }
    mstar_stream *caller = NULL;
    if (self->order != NULL) {
        caller = mstc_stream_take(self->state, &self->place, NULL);
        if (caller == NULL)
            return NULL;
    }
    if (mstc_turn_take(&self->turn, "the runner") < 0)
        return NULL;
    mstc_session_begin(&session);
    mstar_status status;
    Py_BEGIN_ALLOW_THREADS status = run_in_order(self, caller, call, &made);
    Py_END_ALLOW_THREADS PyObject *result = NULL;
    if (mstc_session_end(&session, status) == 0) {
        PyObject *outputs = mstc_tensors_dict(self->state, made.outputs, (PyObject *)self, NULL);
        if (outputs != NULL)
            result = Py_BuildValue("(iLLLN)", (int)made.slot, (long long)made.bs,
                                   (long long)made.total_tokens, (long long)made.real_len, outputs);
    }
    mstc_turn_give(&self->turn);
    return result;
}

/* run({name: array}, handles or None, lengths or None, real_bs or -1) */
static PyObject *region_run(PyObject *object, PyObject *args)
{
    mstc_region *self = (mstc_region *)object;
    PyObject *arrays, *handles, *lengths, *result = NULL;
    long long real_bs;
    mstar_region_call call;
    mstar_region_call_init(&call);
    mstar_tensors tensors = {NULL, 0, 0};
    if (!PyArg_ParseTuple(args, "O!OOL", &PyDict_Type, &arrays, &handles, &lengths, &real_bs))
        return NULL;
    int64_t *requests = NULL, *spans = NULL;
    PyObject *holders = mstc_tensors_take(self->state, arrays, NULL, &tensors);
    bool failed = holders == NULL;
    if (!failed && handles != Py_None)
        failed = (requests = mstc_int_array(handles, &call.num_requests)) == NULL;
    if (!failed && lengths != Py_None)
        failed = (spans = mstc_int_array(lengths, &call.num_seq_lens)) == NULL;
    if (!failed) {
        call.inputs = &tensors;
        call.requests = requests;
        call.seq_lens = spans;
        call.real_bs = real_bs;
        result = run_call(self, &call);
    }
    mstar_tensors_release(&tensors);
    PyMem_Free(requests);
    PyMem_Free(spans);
    Py_XDECREF(holders);
    return result;
}

static PyObject *region_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstc_region *self = (mstc_region *)object;
    mstar_region_runner_info info = {.struct_size = sizeof info};
    const bool turn = mstc_turn_read(&self->turn);
    mstar_status status = mstar_region_runner_query(self->runner, &info);
    if (turn)
        mstc_turn_give(&self->turn);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_BuildValue(
        "{s:i,s:L,s:L,s:n,s:n,s:n,s:n,s:L,s:L,s:L,s:L,s:L,s:L,s:n}", "num_slots",
        (int)info.num_slots, "num_shapes", (long long)info.num_shapes, "num_captured",
        (long long)info.num_captured, "pool_bytes", (Py_ssize_t)mstc_pool_bytes(self->pool),
        "static_input_bytes", (Py_ssize_t)info.static_input_bytes, "output_bytes",
        (Py_ssize_t)info.output_bytes, "graph_bytes", (Py_ssize_t)info.graph_bytes, "capture_ns",
        (long long)info.capture_ns, "replays", (long long)info.replays, "refused",
        (long long)info.refused, "tokens", (long long)info.tokens, "padding_tokens",
        (long long)info.padding_tokens, "num_unaffordable", (long long)info.num_unaffordable,
        "resource_bytes", (Py_ssize_t)info.resource_bytes);
}

static PyMethodDef region_methods[] = {
    {"prepare", region_prepare, METH_NOARGS, NULL},
    {"capture", region_capture, METH_NOARGS, NULL},
    {"can_run", region_can_run, METH_VARARGS, NULL},
    {"can_lease", region_can_lease, METH_O, NULL},
    {"run", region_run, METH_VARARGS, NULL},
    {"info", region_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot region_slots[] = {
    {Py_tp_new, (void *)region_new},           {Py_tp_dealloc, (void *)region_dealloc},
    {Py_tp_traverse, (void *)region_traverse}, {Py_tp_clear, (void *)region_clear},
    {Py_tp_methods, region_methods},           {0, NULL},
};

PyType_Spec mstc_region_spec = {
    .name = "mstarc._core.Region",
    .basicsize = sizeof(mstc_region),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = region_slots,
};
