/* py_config.c - whole-forward configs: Python's, lowered to a tuple, as the library's. */
#include <string.h>

#include "py_hooks.h"

static void release_object(void *user)
{
    PyGILState_STATE held = PyGILState_Ensure();
    Py_DECREF((PyObject *)user);
    PyGILState_Release(held);
}

/* The template of a batched config, cloned by its own method. */
static void *clone_template(void *user)
{
    PyGILState_STATE held = PyGILState_Ensure();
    PyObject *made =
        mstc_session_is_over() ? NULL : PyObject_CallMethod((PyObject *)user, "clone", NULL);
    if (made == NULL && PyErr_Occurred() != NULL)
        (void)mstc_session_fail(-1, -1);
    PyGILState_Release(held);
    return made;
}

/* What make_node_input gave is new: its copy is itself. */
static void *share_input(void *user)
{
    PyGILState_STATE held = PyGILState_Ensure();
    PyObject *same = Py_NewRef((PyObject *)user);
    PyGILState_Release(held);
    return same;
}

static int make_input(mstc_config *config, int64_t num_tokens, mstar_node_input *input)
{
    PyObject *made = PyObject_CallFunction(config->make, "L", (long long)num_tokens);
    PyObject *length = made == NULL ? NULL : PyObject_GetAttrString(made, "input_seq_len");
    if (length == NULL) {
        Py_XDECREF(made);
        return -1;
    }
    input->input_seq_len = PyLong_AsLongLong(length);
    Py_DECREF(length);
    Py_XDECREF(config->last);
    config->last = made;
    input->user = made;
    input->user_clone = share_input;
    input->user_release = release_object;
    return input->input_seq_len == -1 && PyErr_Occurred() != NULL ? -1 : 0;
}

static mstar_status call_make(void *user, int64_t num_tokens, mstar_node_input *input)
{
    PyGILState_STATE held = PyGILState_Ensure();
    mstar_status status = MSTAR_CANCELLED;
    if (!mstc_session_is_over())
        status =
            make_input(user, num_tokens, input) == 0 ? MSTAR_OK : mstc_session_fail(-1, num_tokens);
    PyGILState_Release(held);
    return status;
}

static mstar_status call_layout(void *user, int64_t total_tokens, int64_t bs, int64_t *lengths)
{
    const mstc_config *config = user;
    PyGILState_STATE held = PyGILState_Ensure();
    int64_t count = 0, *values = NULL;
    PyObject *list =
        mstc_session_is_over()
            ? NULL
            : PyObject_CallFunction(config->layout, "LL", (long long)total_tokens, (long long)bs);
    if (list != NULL)
        values = mstc_int_array(list, &count);
    mstar_status status = MSTAR_CANCELLED;
    if (values != NULL && count == bs) {
        memcpy(lengths, values, (size_t)bs * sizeof *lengths);
        status = MSTAR_OK;
    } else if (!mstc_session_is_over()) {
        if (PyErr_Occurred() == NULL)
            PyErr_Format(PyExc_ValueError, "token_layout(%lld, %lld) gave %lld lengths",
                         (long long)total_tokens, (long long)bs, (long long)count);
        status = mstc_session_fail(bs, total_tokens);
    }
    PyMem_Free(values);
    Py_XDECREF(list);
    PyGILState_Release(held);
    return status;
}

static mstar_status create_config(const mstar_graph_config_desc *desc, bool packed,
                                  mstar_graph_config **config)
{
    return packed ? mstar_packed_graph_config_create(desc, config)
                  : mstar_batched_graph_config_create(desc, config);
}

/* Names of a tuple of texts, borrowed from it. Freed with PyMem_Free. */
static const char **text_array(PyObject *tuple, int64_t *count)
{
    *count = PyTuple_Size(tuple);
    const char **texts = PyMem_Calloc((size_t)*count + 1, sizeof *texts);
    if (texts == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; texts != NULL && i < *count; i++) {
        texts[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, i), NULL);
        if (texts[i] == NULL) {
            PyMem_Free(texts);
            return NULL;
        }
    }
    return texts;
}

/* ((name, dim), ...) */
static mstar_input_seq_dim *dim_array(PyObject *tuple, int64_t *count)
{
    *count = PyTuple_Size(tuple);
    mstar_input_seq_dim *dims = PyMem_Calloc((size_t)*count + 1, sizeof *dims);
    if (dims == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; dims != NULL && i < *count; i++) {
        int dim;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tuple, i), "si", &dims[i].name, &dim)) {
            PyMem_Free(dims);
            return NULL;
        }
        dims[i].dim = dim;
    }
    return dims;
}

int mstc_config_read(PyObject *tuple, mstc_config *made)
{
    PyObject *walks, *sizes, *dims, *template, *lengths, *make, *layout;
    int packed, compile, caps;
    long long multiplier;
    mstar_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    if (!PyArg_ParseTuple(tuple, "psO!zpzO!sO!LpOO!OO", &packed, &desc.capture_graph_walk,
                          &PyTuple_Type, &walks, &desc.additional_key_info, &compile,
                          &desc.compile_mode, &PyTuple_Type, &sizes, &desc.capture_forward_method,
                          &PyTuple_Type, &dims, &multiplier, &caps, &template, &PyTuple_Type,
                          &lengths, &make, &layout))
        return -1;
    mstar_node_input single = {.input_seq_len = 0};
    int64_t *size_array = NULL, *length_array = NULL;
    mstar_input_seq_dim *dims_array = NULL;
    const char **walk_array = text_array(walks, &desc.num_replay_graph_walks);
    int result = -1;
    if (walk_array == NULL ||
        (size_array = mstc_int_array(sizes, &desc.num_capture_batch_sizes)) == NULL ||
        (length_array = mstc_int_array(lengths, &desc.num_capture_token_lengths)) == NULL ||
        (dims_array = dim_array(dims, &desc.num_input_seq_dims)) == NULL)
        goto done;
    desc.compile = compile;
    desc.caps_eager_batch_size = caps;
    desc.total_tokens_multiplier = multiplier;
    desc.replay_graph_walks = walk_array;
    desc.capture_batch_sizes = size_array;
    desc.input_seq_dims = dims_array;
    if (packed) {
        made->make = Py_NewRef(make);
        made->layout = layout == Py_None ? NULL : Py_NewRef(layout);
        desc.capture_token_lengths = length_array;
        desc.make_node_input = call_make;
        desc.token_layout = made->layout == NULL ? NULL : call_layout;
        desc.user = made;
    } else {
        PyObject *length = PyObject_GetAttrString(template, "input_seq_len");
        single.input_seq_len = length == NULL ? -1 : PyLong_AsLongLong(length);
        Py_XDECREF(length);
        if (PyErr_Occurred() != NULL)
            goto done;
        single.user = template;
        single.user_clone = clone_template;
        single.user_release = release_object;
        desc.single_request_inputs = &single;
    }
    mstc_session session;
    mstc_session_begin(&session);
    mstar_status status = create_config(&desc, packed != 0, &made->config);
    result = mstc_session_end(&session, status);
done:
    PyMem_Free(walk_array);
    PyMem_Free(size_array);
    PyMem_Free(length_array);
    PyMem_Free(dims_array);
    return result;
}

void mstc_config_drop(mstc_config *config)
{
    mstar_graph_config_destroy(config->config);
    Py_XDECREF(config->make);
    Py_XDECREF(config->layout);
    Py_XDECREF(config->last);
    memset(config, 0, sizeof *config);
}
