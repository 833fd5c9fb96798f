/* py_hooks.c - contexts, steps, tensors and inputs between the library's records and Python. */
#include "py_hooks.h"

/* ---- contexts and steps ---------------------------------------------------------------------- */

PyObject *mstc_int_tuple(const int64_t *values, int64_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (int64_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (value == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, value) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

int64_t *mstc_int_array(PyObject *sequence, int64_t *count)
{
    const Py_ssize_t size = PySequence_Size(sequence);
    int64_t *values = size < 0 ? NULL : PyMem_Malloc((size_t)(size + 1) * sizeof *values);
    if (values == NULL && size >= 0)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; values != NULL && i < size; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        PyObject *number = item == NULL ? NULL : PyNumber_Index(item);
        values[i] = number == NULL ? -1 : PyLong_AsLongLong(number);
        const bool failed = values[i] == -1 && PyErr_Occurred() != NULL;
        Py_XDECREF(number);
        Py_XDECREF(item);
        if (failed) {
            PyMem_Free(values);
            values = NULL;
        }
    }
    *count = size;
    return values;
}

PyObject *mstc_context_tuple(const mstar_step_context *context)
{
    const bool pads = context->padded_requests != NULL;
    PyObject *real = mstc_int_tuple(context->requests, context->num_requests);
    PyObject *padded = mstc_int_tuple(pads ? context->padded_requests : context->requests,
                                      pads ? context->num_padded_requests : context->num_requests);
    PyObject *lease =
        context->lease == NULL
            ? Py_NewRef(Py_None)
            : Py_BuildValue("(LLsz)", (long long)context->lease->key.bs,
                            (long long)context->lease->key.num_tokens, context->lease->key.walk,
                            context->lease->key.additional_key_info);
    PyObject *stream = PyLong_FromVoidPtr(
        context->stream == NULL ? NULL : mstar_stream_get_native(context->stream));
    PyObject *tuple = NULL;
    if (real != NULL && padded != NULL && lease != NULL && stream != NULL)
        tuple = Py_BuildValue("(siiOOOO)", context->walk, (int)context->slot,
                              (int)context->capturing, real, padded, lease, stream);
    Py_XDECREF(stream);
    Py_XDECREF(real);
    Py_XDECREF(padded);
    Py_XDECREF(lease);
    return tuple;
}

static int check_status(mstar_status status)
{
    if (status == MSTAR_OK)
        return 0;
    mstc_raise(status);
    return -1;
}

static int fill_segments(mstar_step *step, const char *key, PyObject *segments)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(segments); i++) {
        long long handle;
        const char *label;
        int span;
        if (!PyArg_ParseTuple(PyTuple_GetItem(segments, i), "Lsi", &handle, &label, &span) ||
            check_status(mstar_step_add_segment(step, key, handle, label, span)) < 0)
            return -1;
    }
    return 0;
}

static int fill_resource(mstar_step *step, PyObject *entry)
{
    const char *key, *q_label, *kv_label;
    int causal;
    PyObject *segments, *pairs;
    if (!PyArg_ParseTuple(entry, "siOO!", &key, &causal, &segments, &PyTuple_Type, &pairs) ||
        check_status(mstar_step_add_resource(step, key)) < 0 ||
        check_status(mstar_step_set_causal(step, key, causal)) < 0 ||
        (segments != Py_None && fill_segments(step, key, segments) < 0))
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(pairs); i++)
        if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "ss", &q_label, &kv_label) ||
            check_status(mstar_step_add_pair(step, key, q_label, kv_label)) < 0)
            return -1;
    return 0;
}

int mstc_step_fill(mstar_step *step, PyObject *lowered)
{
    PyObject *entries, *defaults;
    const char *key_info;
    if (!PyArg_ParseTuple(lowered, "O!O!z", &PyTuple_Type, &entries, &PyTuple_Type, &defaults,
                          &key_info))
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(entries); i++)
        if (fill_resource(step, PyTuple_GetItem(entries, i)) < 0)
            return -1;
    if (fill_segments(step, NULL, defaults) < 0)
        return -1;
    return check_status(mstar_step_set_additional_key_info(step, key_info));
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const char holder_name[] = "mstarc.held";

static void drop_holder(PyObject *capsule)
{
    mstc_view *view = PyCapsule_GetPointer(capsule, holder_name);
    mstc_view_drop(view);
    PyMem_Free(view);
}

PyObject *mstc_hold(mstc_state *state, PyObject *object, const char *name)
{
    mstc_view *view = PyMem_Calloc(1, sizeof *view);
    if (view == NULL)
        return PyErr_NoMemory();
    PyObject *holder = NULL;
    if (mstc_view_take(state, object, name, view) == 0) {
        holder = PyCapsule_New(view, holder_name, drop_holder);
        if (holder == NULL)
            mstc_view_drop(view);
    }
    if (holder == NULL)
        PyMem_Free(view);
    return holder;
}

const mstc_view *mstc_held(PyObject *holder)
{
    return PyCapsule_GetPointer(holder, holder_name);
}

static bool is_compact(const mstc_view *view)
{
    int64_t compact = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        if (view->shape[i] > 1 && view->strides[i] != compact)
            return false;
        compact *= view->shape[i];
    }
    return true;
}

/* A tensor that does not lie as or where it must, as a Tensor that does. */
static PyObject *hold_copy(mstc_state *state, PyObject *object, const char *name,
                           const mstc_place *place)
{
    mstc_view view;
    if (mstc_view_take(state, object, name, &view) < 0)
        return NULL;
    PyObject *made = mstc_tensor_copy(state, &view, name, place, -1);
    mstc_view_drop(&view);
    PyObject *holder = made == NULL ? NULL : mstc_hold(state, made, name);
    Py_XDECREF(made);
    return holder;
}

static bool is_integer(const mstc_view *view)
{
    return view->code == 0 || view->code == 1 || view->code == 6;
}

/* Where a tensor has to be copied to; a place without a device: nowhere. static_on: where static
 * inputs lie that are written to, numbers on a device; NULL: they are no static inputs. */
static int copy_to_where(mstc_state *state, const mstc_view *view, const mstc_place *static_on,
                         mstc_place *place)
{
    const bool on_cpu = view->device_type == MSTAR_DEVICE_CPU;
    place->device = NULL;
    if (static_on != NULL && static_on->kind != MSTAR_DEVICE_CPU && on_cpu && !is_integer(view)) {
        *place = *static_on;
        return 0;
    }
    const bool writable = static_on == NULL || (is_compact(view) && !view->read_only);
    if (on_cpu && !(mstc_view_is_plain(view) && writable))
        return mstc_place_of(state, "cpu", place);
    return 0;
}

static int take_one(mstc_state *state, PyObject *holders, PyObject *key, PyObject *array,
                    const mstc_place *static_on, mstar_tensors *tensors)
{
    mstc_place place;
    mstar_dtype dtype;
    const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, NULL) : NULL;
    if (name == NULL && PyErr_Occurred() == NULL)
        PyErr_Format(PyExc_TypeError, "a tensor is named %R; names are str", key);
    PyObject *holder = name == NULL ? NULL : mstc_hold(state, array, name);
    if (holder == NULL || copy_to_where(state, mstc_held(holder), static_on, &place) < 0) {
        Py_XDECREF(holder);
        return -1;
    }
    if (place.device != NULL) {
        Py_DECREF(holder);
        holder = hold_copy(state, array, name, &place);
        if (holder == NULL)
            return -1;
    }
    const mstc_view *view = mstc_held(holder);
    int result = mstc_view_dtype(view, name, &dtype);
    if (result == 0) {
        const mstar_tensor tensor = mstc_view_tensor(view, dtype);
        result = check_status(mstar_tensors_add(tensors, name, &tensor));
    }
    if (result == 0)
        result = PyDict_SetItem(holders, key, holder);
    Py_DECREF(holder);
    return result;
}

PyObject *mstc_tensors_take(mstc_state *state, PyObject *arrays, const mstc_place *static_on,
                            mstar_tensors *tensors)
{
    PyObject *holders = PyDict_New(), *key, *array;
    Py_ssize_t place = 0;
    if (holders == NULL || !PyDict_Check(arrays)) {
        PyErr_Format(PyExc_TypeError, "%R; expected a dict of tensors", Py_TYPE(arrays));
        Py_XDECREF(holders);
        return NULL;
    }
    while (PyDict_Next(arrays, &place, &key, &array)) {
        if (take_one(state, holders, key, array, static_on, tensors) < 0) {
            Py_DECREF(holders);
            return NULL;
        }
    }
    return holders;
}

/* Borrowed. */
static PyObject *keeper_of(const mstar_named_tensor *item, PyObject *base, PyObject *holders)
{
    PyObject *holder = holders == NULL ? NULL : PyDict_GetItemString(holders, item->name);
    if (base == NULL)
        return holder == NULL ? holders : holder;
    return holder != NULL && mstc_held(holder)->data == item->tensor.data ? holder : base;
}

static int check_constant(PyObject *constants, PyObject *key, const char *name,
                          const mstar_tensor *tensor, PyObject *holder)
{
    PyObject *before = PyDict_GetItemWithError(constants, key);
    if (before == NULL)
        return PyErr_Occurred() != NULL ? -1 : PyDict_SetItem(constants, key, holder);
    if (mstc_held(before)->data == tensor->data)
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "result '%s' is not made by an operation that is recorded, and a replay would not "
                 "make it again: on the CPU a forward is made of mstarc.ops and of attention",
                 name);
    return -1;
}

int mstc_results_check(PyObject **constants, const mstar_tensors *results, PyObject *holders,
                       int64_t bs, int64_t num_tokens)
{
    if (*constants == NULL && (*constants = PyDict_New()) == NULL)
        return -1;
    int result = 0;
    for (int64_t i = 0; i < results->count && result == 0; i++) {
        const mstar_tensor *tensor = &results->items[i].tensor;
        const char *name = results->items[i].name;
        bool empty = false;
        for (int dim = 0; dim < tensor->rank; dim++)
            empty = empty || tensor->shape[dim] == 0;
        if (empty || mstc_session_is_recorded(tensor->data))
            continue;
        PyObject *key = Py_BuildValue("(sLL)", name, (long long)bs, (long long)num_tokens);
        result = key == NULL ? -1
                             : check_constant(*constants, key, name, tensor,
                                              PyDict_GetItemString(holders, name));
        Py_XDECREF(key);
    }
    return result;
}

PyObject *mstc_tensors_dict(mstc_state *state, const mstar_tensors *tensors, PyObject *base,
                            PyObject *holders)
{
    PyObject *dict = PyDict_New();
    for (int64_t i = 0; dict != NULL && i < tensors->count; i++) {
        const mstar_named_tensor *item = &tensors->items[i];
        PyObject *view = mstc_tensor_view(state, &item->tensor, keeper_of(item, base, holders));
        if (view == NULL || PyDict_SetItemString(dict, item->name, view) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(view);
    }
    return dict;
}

/* ---- inputs of requests ---------------------------------------------------------------------- */

mstar_node_input *mstc_inputs_take(PyObject *list, int64_t *count)
{
    const Py_ssize_t size = PyList_Size(list);
    mstar_node_input *inputs = PyMem_Calloc((size_t)size + 1, sizeof *inputs);
    if (inputs == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; inputs != NULL && i < size; i++) {
        PyObject *item = PyList_GetItem(list, i);
        PyObject *length = PyObject_GetAttrString(item, "input_seq_len");
        inputs[i].user = item;
        inputs[i].input_seq_len = length == NULL ? -1 : PyLong_AsLongLong(length);
        Py_XDECREF(length);
        if (inputs[i].input_seq_len == -1 && PyErr_Occurred() != NULL) {
            PyMem_Free(inputs);
            return NULL;
        }
    }
    *count = size;
    return inputs;
}

PyObject *mstc_inputs_list(const mstar_node_input *inputs, int64_t count)
{
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = inputs[i].user;
        if (PyList_Append(list, item == NULL ? Py_None : item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* ---- turns ----------------------------------------------------------------------------------- */

int mstc_turn_init(mstc_turn *turn)
{
    turn->lock = PyThread_allocate_lock();
    turn->thread = 0;
    if (turn->lock != NULL)
        return 0;
    PyErr_NoMemory();
    return -1;
}

int mstc_turn_take(mstc_turn *turn, const char *what)
{
    const unsigned long me = PyThread_get_thread_ident();
    if (turn->thread == me) {
        PyErr_Format(PyExc_RuntimeError, "%s is called from inside of one of its own callbacks",
                     what);
        return -1;
    }
    mstc_lock(turn->lock);
    turn->thread = me;
    return 0;
}

bool mstc_turn_read(mstc_turn *turn)
{
    const unsigned long me = PyThread_get_thread_ident();
    if (turn->thread == me)
        return false;
    mstc_lock(turn->lock);
    turn->thread = me;
    return true;
}

void mstc_turn_give(mstc_turn *turn)
{
    turn->thread = 0;
    PyThread_release_lock(turn->lock);
}

int mstc_wait_for_caller(mstc_state *state, const mstc_place *place)
{
    if (place->kind == MSTAR_DEVICE_CPU)
        return 0;
    mstar_stream *stream = mstc_caller_stream(state, place, NULL);
    if (stream == NULL)
        return -1;
    mstar_status status;
    Py_BEGIN_ALLOW_THREADS status = mstar_stream_synchronize(stream);
    Py_END_ALLOW_THREADS return check_status(status);
}
