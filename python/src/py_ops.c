/*
 * py_ops.c - the operations of mstar/ops.h. They run at once, or are recorded where the forward of
 * a runner is being captured. The interpreter's lock is released meanwhile.
 */
#include <string.h>

#include "py_core.h"

static mstc_state *state_of_module(PyObject *module)
{
    return PyModule_GetState(module);
}

static int check_given(const char *name, PyObject *object)
{
    if (object != Py_None)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s is None; expected a tensor", name);
    return -1;
}

static int find_activation(const char *text, mstar_activation *activation)
{
    for (int i = MSTAR_ACTIVATION_NONE; i <= MSTAR_ACTIVATION_SIGMOID; i++) {
        if (strcmp(text, mstar_activation_name((mstar_activation)i)) == 0) {
            *activation = (mstar_activation)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "activation is '%.40s'; there are 'none', 'gelu', 'gelu_tanh', 'relu', 'silu', "
                 "'tanh' and 'sigmoid'",
                 text);
    return -1;
}

/* ---- linear ---------------------------------------------------------------------------------- */

typedef struct mstc_linear {
    PyObject_HEAD mstar_linear *linear;
    mstc_place place;
    int64_t in_features, out_features;
} mstc_linear;

enum { MAX_PARTS = 8 };

/* The weights and biases of all parts; a part's bias is None or a tensor. */
static int take_parts(mstc_state *state, PyObject *list, const char *name, int32_t rank,
                      mstc_input *inputs, const mstar_tensor **tensors, int *taken)
{
    const mstc_wish wish = {.name = name,
                            .device_kind = MSTAR_DEVICE_CPU,
                            .rank = rank,
                            .dtype = -1,
                            .dimensions = rank == 2 ? "out and in features" : "out features"};
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *item = PyList_GetItem(list, i);
        tensors[i] = NULL;
        if (item == Py_None && rank == 1)
            continue;
        if (mstc_input_take(state, &wish, item, &inputs[*taken]) < 0)
            return -1;
        mstar_status status = mstc_input_pack(&inputs[*taken]);
        tensors[i] = &inputs[(*taken)++].tensor;
        if (status != MSTAR_OK) {
            mstc_raise(status);
            return -1;
        }
    }
    return 0;
}

static int make_linear(mstc_state *state, mstc_linear *self, const mstar_linear_desc *desc,
                       PyObject *weights, PyObject *biases)
{
    const mstar_tensor *weight[MAX_PARTS], *bias[MAX_PARTS];
    const int32_t parts = (int32_t)PyList_Size(weights);
    mstar_linear_info info = {.struct_size = sizeof info};
    mstar_device *device = self->place.device;
    int taken = 0, failed = 0;
    mstc_input *inputs = PyMem_Calloc(2 * MAX_PARTS, sizeof *inputs);
    if (inputs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    failed = failed || take_parts(state, weights, "weight", 2, inputs, weight, &taken) < 0 ||
             take_parts(state, biases, "bias", 1, inputs, bias, &taken) < 0;
    mstar_status status = MSTAR_OK;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status =
            mstar_linear_create(device, desc, weight, bias, parts, &self->linear);
        Py_END_ALLOW_THREADS if (status == MSTAR_OK) status =
            mstar_linear_query(self->linear, &info);
        self->in_features = info.in_features;
        self->out_features = info.out_features;
    }
    while (taken > 0)
        mstc_input_drop(&inputs[--taken]);
    PyMem_Free(inputs);
    if (status != MSTAR_OK)
        mstc_raise(status);
    return failed || status != MSTAR_OK ? -1 : 0;
}

/* Linear(weights, biases, activation, weight_dtype, device): lists of equal length, on the CPU. */
static PyObject *linear_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"weights", "biases", "activation", "weight_dtype", "device", NULL};
    PyObject *weights, *biases;
    const char *activation, *dtype, *device;
    mstc_place place;
    mstar_linear_desc desc;
    mstar_linear_desc_init(&desc);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!sss:Linear", names, &PyList_Type, &weights,
                                     &PyList_Type, &biases, &activation, &dtype, &device))
        return NULL;
    const Py_ssize_t parts = PyList_Size(weights);
    if (parts < 1 || parts > MAX_PARTS || PyList_Size(biases) != parts) {
        PyErr_Format(PyExc_ValueError, "%zd weights and %zd biases; 1 to %d of each", parts,
                     PyList_Size(biases), MAX_PARTS);
        return NULL;
    }
    if (find_activation(activation, &desc.activation) < 0 ||
        mstc_place_of(PyType_GetModuleState(type), device, &place) < 0)
        return NULL;
    mstar_status status = mstar_dtype_parse(dtype, &desc.weight_dtype);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    mstc_linear *self = (mstc_linear *)alloc(type, 0);
    if (self != NULL)
        self->place = place;
    if (self != NULL && make_linear(PyType_GetModuleState(type), self, &desc, weights, biases) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void linear_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    mstar_linear_destroy(((mstc_linear *)object)->linear);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* run(x, residual, out) */
static PyObject *linear_run(PyObject *object, PyObject *args)
{
    const mstc_linear *self = (const mstc_linear *)object;
    mstc_state *state = PyType_GetModuleState(Py_TYPE(object));
    PyObject *x_object, *residual_object, *out;
    const mstar_tensor *x, *residual;
    mstc_op op;
    if (!PyArg_ParseTuple(args, "OOO", &x_object, &residual_object, &out) ||
        check_given("x", x_object) < 0)
        return NULL;
    mstc_op_begin(state, &op);
    op.place = self->place;
    mstar_status status = MSTAR_OK;
    int failed = mstc_session_keep(state, object, NULL) < 0 ||
                 mstc_op_input(&op, "x", x_object, 2, -1, &x) < 0 ||
                 mstc_op_input(&op, "residual", residual_object, 2, -1, &residual) < 0 ||
                 mstc_op_output(&op, out, x_object, &op.inputs[0].view, op.inputs[0].dtype, 2,
                                (int64_t[]){x->shape[0], self->out_features}) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK)
            status = mstar_linear_run(self->linear, op.stream, x, residual, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    return mstc_op_end(&op, failed, status);
}

static PyObject *linear_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    mstar_linear_info info = {.struct_size = sizeof info};
    mstar_status status = mstar_linear_query(((mstc_linear *)object)->linear, &info);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_BuildValue("{s:L,s:L,s:s,s:n,s:s}", "in_features", (long long)info.in_features,
                         "out_features", (long long)info.out_features, "weight_dtype",
                         mstc_dtype_name(info.weight_dtype), "packed_bytes",
                         (Py_ssize_t)info.packed_bytes, "kernel", info.kernel);
}

static PyMethodDef linear_methods[] = {
    {"run", linear_run, METH_VARARGS, NULL},
    {"info", linear_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot linear_slots[] = {
    {Py_tp_new, (void *)linear_new},
    {Py_tp_dealloc, (void *)linear_dealloc},
    {Py_tp_methods, linear_methods},
    {0, NULL},
};

PyType_Spec mstc_linear_spec = {
    .name = "mstarc._core.Linear",
    .basicsize = sizeof(mstc_linear),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = linear_slots,
};

/* ---- row by row ------------------------------------------------------------------------------ */

/* An output of x's own shape. */
static int output_like_x(mstc_op *op, PyObject *out, PyObject *x)
{
    const mstc_input *input = &op->inputs[0];
    return mstc_op_output(op, out, x, &input->view, input->dtype, input->view.rank,
                          input->view.shape);
}

/* norm(x, weight, bias, eps, residual, out, rms) */
static PyObject *norm(PyObject *module, PyObject *args)
{
    PyObject *x_object, *weight_object, *bias_object, *residual_object, *out;
    const mstar_tensor *x, *weight, *bias, *residual;
    double eps;
    int rms;
    mstc_op op;
    if (!PyArg_ParseTuple(args, "OOOdOOp", &x_object, &weight_object, &bias_object, &eps,
                          &residual_object, &out, &rms) ||
        check_given("x", x_object) < 0 || check_given("weight", weight_object) < 0)
        return NULL;
    mstc_op_begin(state_of_module(module), &op);
    mstar_status status = MSTAR_OK;
    int failed = mstc_op_input(&op, "x", x_object, 2, -1, &x) < 0 ||
                 mstc_op_input(&op, "weight", weight_object, 1, MSTAR_DTYPE_F32, &weight) < 0 ||
                 mstc_op_input(&op, "bias", bias_object, 1, MSTAR_DTYPE_F32, &bias) < 0 ||
                 mstc_op_input(&op, "residual", residual_object, 2, -1, &residual) < 0 ||
                 output_like_x(&op, out, x_object) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK && rms)
            status = mstar_rms_norm(op.stream, x, residual, weight, eps, &op.out_tensor);
        else if (status == MSTAR_OK)
            status = mstar_layer_norm(op.stream, x, residual, weight, bias, eps, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    return mstc_op_end(&op, failed, status);
}

/* activate(x, name, out) */
static PyObject *activate(PyObject *module, PyObject *args)
{
    PyObject *x_object, *out;
    const mstar_tensor *x;
    const char *name;
    mstar_activation activation;
    mstc_op op;
    if (!PyArg_ParseTuple(args, "OsO", &x_object, &name, &out) ||
        find_activation(name, &activation) < 0 || check_given("x", x_object) < 0)
        return NULL;
    mstc_op_begin(state_of_module(module), &op);
    mstar_status status = MSTAR_OK;
    int failed =
        mstc_op_input(&op, "x", x_object, 2, -1, &x) < 0 || output_like_x(&op, out, x_object) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK)
            status = mstar_activation_run(op.stream, activation, x, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    return mstc_op_end(&op, failed, status);
}

/* normalize(x, out) */
static PyObject *normalize(PyObject *module, PyObject *args)
{
    PyObject *x_object, *out;
    const mstar_tensor *x;
    mstc_op op;
    if (!PyArg_ParseTuple(args, "OO", &x_object, &out) || check_given("x", x_object) < 0)
        return NULL;
    mstc_op_begin(state_of_module(module), &op);
    mstar_status status = MSTAR_OK;
    int failed =
        mstc_op_input(&op, "x", x_object, 2, -1, &x) < 0 || output_like_x(&op, out, x_object) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK)
            status = mstar_normalize(op.stream, x, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    return mstc_op_end(&op, failed, status);
}

static int check_count(const char *name, int64_t count, int64_t expected)
{
    if (count == expected)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s has %lld entries; expected %lld", name, (long long)count,
                 (long long)expected);
    return -1;
}

/* rotary(x, positions, theta, rotary_dim, interleaved, out) */
static PyObject *rotary(PyObject *module, PyObject *args)
{
    PyObject *x_object, *positions_object, *out;
    const mstar_tensor *x;
    double theta;
    int rotary_dim, interleaved;
    mstc_integers positions;
    mstc_op op;
    mstc_state *state = state_of_module(module);
    if (!PyArg_ParseTuple(args, "OOdipO", &x_object, &positions_object, &theta, &rotary_dim,
                          &interleaved, &out) ||
        check_given("x", x_object) < 0 ||
        mstc_op_integers(state, "positions", "positions", INT32_MIN, positions_object, &positions) <
            0)
        return NULL;
    mstc_op_begin(state, &op);
    mstar_status status = MSTAR_OK;
    int failed = mstc_op_input(&op, "x", x_object, 3, -1, &x) < 0 ||
                 check_count("positions", positions.count, x->shape[0]) < 0 ||
                 output_like_x(&op, out, x_object) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK)
            status = mstar_rotary(op.stream, x, positions.values, theta, (int32_t)rotary_dim,
                                  interleaved, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    mstc_integers_drop(&positions);
    return mstc_op_end(&op, failed, status);
}

/* ---- embedding ------------------------------------------------------------------------------- */

enum { MAX_TABLES = 8 };

static PyObject *embed(mstc_state *state, PyObject *tables, PyObject *ids, PyObject *out,
                       mstc_integers *integers)
{
    const int count = (int)PyList_Size(tables);
    const mstar_tensor *table[MAX_TABLES];
    const int32_t *values[MAX_TABLES];
    mstc_op op;
    mstc_op_begin(state, &op);
    mstar_status status = MSTAR_OK;
    int failed = 0, taken = 0;
    for (int i = 0; i < count && !failed; i++) {
        failed = mstc_op_input(&op, "table", PyList_GetItem(tables, i), 2, -1, &table[i]) < 0 ||
                 mstc_op_integers(state, "ids", "ids", INT32_MIN, PyList_GetItem(ids, i),
                                  &integers[i]) < 0;
        if (!failed) {
            values[i] = integers[taken++].values;
            failed = check_count("ids", integers[i].count, integers[0].count) < 0;
        }
    }
    /* numpy's bfloat16 has a name only where ids have it; on a GPU ids have no memory to give */
    mstc_view plain = {.code = 2, .device_type = MSTAR_DEVICE_CPU};
    const bool on_cpu = op.place.kind == MSTAR_DEVICE_CPU;
    if (!failed)
        failed = mstc_op_output(&op, out, PyList_GetItem(on_cpu ? ids : tables, 0),
                                on_cpu ? &plain : &op.inputs[0].view, op.inputs[0].dtype, 2,
                                (int64_t[]){integers[0].count, table[0]->shape[1]}) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK)
            status = mstar_embedding(op.stream, table, values, count, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    while (taken > 0)
        mstc_integers_drop(&integers[--taken]);
    return mstc_op_end(&op, failed, status);
}

/* embedding(tables, ids, out): lists of equal length. */
static PyObject *embedding(PyObject *module, PyObject *args)
{
    PyObject *tables, *ids, *out;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyList_Type, &tables, &PyList_Type, &ids, &out))
        return NULL;
    const Py_ssize_t count = PyList_Size(tables);
    if (count < 1 || count > MAX_TABLES || PyList_Size(ids) != count) {
        PyErr_Format(PyExc_ValueError, "%zd tables and %zd ids; 1 to %d of each", count,
                     PyList_Size(ids), MAX_TABLES);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (check_given("table", PyList_GetItem(tables, i)) < 0)
            return NULL;
    mstc_integers *integers = PyMem_Calloc(MAX_TABLES, sizeof *integers);
    if (integers == NULL)
        return PyErr_NoMemory();
    PyObject *result = embed(state_of_module(module), tables, ids, out, integers);
    PyMem_Free(integers);
    return result;
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* pooling(x, cu_seqlens, mode, skip or None, out) */
static PyObject *pooling(PyObject *module, PyObject *args)
{
    PyObject *x_object, *offsets_object, *skip_object, *out;
    const char *mode;
    const mstar_tensor *x;
    mstar_pooling how;
    mstc_integers offsets = {.count = 0}, skip = {.count = 0};
    mstc_op op;
    mstc_state *state = state_of_module(module);
    if (!PyArg_ParseTuple(args, "OOsOO", &x_object, &offsets_object, &mode, &skip_object, &out) ||
        check_given("x", x_object) < 0)
        return NULL;
    mstar_status status = mstar_pooling_parse(mode, &how);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    if (mstc_op_integers(state, "cu_seqlens", "offsets", 0, offsets_object, &offsets) < 0)
        return NULL;
    const bool skips = skip_object != Py_None;
    if (skips && mstc_op_integers(state, "skip", "counts", 0, skip_object, &skip) < 0) {
        mstc_integers_drop(&offsets);
        return NULL;
    }
    int failed = 0;
    mstc_op_begin(state, &op);
    const int64_t segments = offsets.count - 1;
    if (offsets.count < 1) {
        PyErr_SetString(PyExc_ValueError,
                        "cu_seqlens is empty; it has one entry more than segments, the first 0");
        failed = 1;
    }
    failed = failed || (skips && check_count("skip", skip.count, segments) < 0) ||
             mstc_op_input(&op, "x", x_object, 2, -1, &x) < 0 ||
             mstc_op_output(&op, out, x_object, &op.inputs[0].view, op.inputs[0].dtype, 2,
                            (int64_t[]){segments, x->shape[1]}) < 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS status = mstc_op_pack(&op);
        if (status == MSTAR_OK)
            status = mstar_pooling_run(op.stream, how, x, offsets.values, segments,
                                       skips ? skip.values : NULL, &op.out_tensor);
        Py_END_ALLOW_THREADS
    }
    mstc_integers_drop(&offsets);
    if (skips)
        mstc_integers_drop(&skip);
    return mstc_op_end(&op, failed, status);
}

/* ---- live rows ------------------------------------------------------------------------------- */

/* set_rows("tokens", "requests" or "all"): what operations of the forward in hand count. */
static PyObject *set_rows(PyObject *module, PyObject *argument)
{
    (void)module;
    const mstc_session *session = mstc_session_now();
    const char *what = PyUnicode_AsUTF8AndSize(argument, NULL);
    if (what == NULL)
        return NULL;
    if (session == NULL || session->stream == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "rows are counted inside the forward of a runner only");
        return NULL;
    }
    const int64_t *rows = strcmp(what, "tokens") == 0     ? session->num_tokens
                          : strcmp(what, "requests") == 0 ? session->num_requests
                                                          : NULL;
    mstar_status status = mstar_stream_set_rows(session->stream, rows);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    return Py_NewRef(Py_None);
}

static int read_shape(PyObject *sizes, int64_t shape[MSTAR_MAX_RANK])
{
    const Py_ssize_t rank = PyTuple_Size(sizes);
    if (rank > MSTAR_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "%zd dimensions; at most %d", rank, MSTAR_MAX_RANK);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
        if (shape[i] < 0) {
            if (PyErr_Occurred() == NULL)
                PyErr_Format(PyExc_ValueError, "size %lld in dimension %zd", (long long)shape[i],
                             i);
            return -1;
        }
    }
    return 0;
}

/* A forward that is recorded works in memory that it uses again, which no replay would clear. */
static int check_may_zero(const mstc_place *place)
{
    const mstc_session *session = mstc_session_now();
    const mstar_device *device = place->kind == MSTAR_DEVICE_CPU ? NULL : place->device;
    if (session == NULL || session->pool == NULL || mstc_pool_device(session->pool) != device)
        return 0;
    PyErr_SetString(
        PyExc_RuntimeError,
        "zeros are made inside a forward that is recorded, and a replay would not clear "
        "them: make them outside of it");
    return -1;
}

/* zeros(shape, dtype name, device name); device memory begins as zeros. */
static PyObject *zeros(PyObject *module, PyObject *args)
{
    PyObject *sizes;
    const char *name, *device;
    mstar_dtype dtype;
    int64_t shape[MSTAR_MAX_RANK];
    mstc_place place;
    mstc_state *state = state_of_module(module);
    if (!PyArg_ParseTuple(args, "O!ss", &PyTuple_Type, &sizes, &name, &device))
        return NULL;
    mstar_status status = mstar_dtype_parse(name, &dtype);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    if (read_shape(sizes, shape) < 0 || mstc_place_of(state, device, &place) < 0 ||
        check_may_zero(&place) < 0)
        return NULL;
    const int32_t rank = (int32_t)PyTuple_Size(sizes);
    mstc_tensor *made = mstc_tensor_new(state, &place, dtype, rank, shape);
    if (made != NULL && place.kind == MSTAR_DEVICE_CPU)
        memset(made->data, 0, made->bytes);
    return (PyObject *)made;
}

/* tensor(array, dtype name or None, device name): a contiguous copy as a Tensor. */
static PyObject *tensor(PyObject *module, PyObject *args)
{
    PyObject *array;
    const char *name, *device;
    mstar_dtype dtype = MSTAR_DTYPE_F32;
    mstc_place place;
    mstc_view view;
    mstc_state *state = state_of_module(module);
    if (!PyArg_ParseTuple(args, "Ozs", &array, &name, &device))
        return NULL;
    mstar_status status = name == NULL ? MSTAR_OK : mstar_dtype_parse(name, &dtype);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        return NULL;
    }
    if (mstc_place_of(state, device, &place) < 0 ||
        mstc_view_take(state, array, "array", &view) < 0)
        return NULL;
    PyObject *made =
        mstc_tensor_copy(state, &view, "array", &place, name == NULL ? -1 : (int32_t)dtype);
    mstc_view_drop(&view);
    return made;
}

PyMethodDef mstc_op_functions[] = {
    {"norm", norm, METH_VARARGS, NULL},           {"activate", activate, METH_VARARGS, NULL},
    {"normalize", normalize, METH_VARARGS, NULL}, {"rotary", rotary, METH_VARARGS, NULL},
    {"embedding", embedding, METH_VARARGS, NULL}, {"pooling", pooling, METH_VARARGS, NULL},
    {"set_rows", set_rows, METH_O, NULL},         {"zeros", zeros, METH_VARARGS, NULL},
    {"tensor", tensor, METH_VARARGS, NULL},       {NULL, NULL, 0, NULL},
};
