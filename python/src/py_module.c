/* py_module.c - the module mstarc._core: its state, its exceptions, its devices. */
#include <string.h>

#include "py_core.h"

void mstc_raise(mstar_status status)
{
    static const struct {
        const char *name;
        PyObject **class;
    } classes[] = {
        {"ValueError", &PyExc_ValueError},
        {"KeyError", &PyExc_KeyError},
        {"NotImplementedError", &PyExc_NotImplementedError},
        {"MemoryError", &PyExc_MemoryError},
        {"OSError", &PyExc_OSError},
        {"TimeoutError", &PyExc_TimeoutError},
    };
    PyObject *class = PyExc_RuntimeError;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(classes[i].name, mstar_status_python(status)) == 0)
            class = *classes[i].class;
    if (mstar_last_error()[0] == '\0')
        PyErr_SetString(class, mstar_status_text(status));
    else
        mstc_raise_as(class);
}

void mstc_raise_as(PyObject *class)
{
    PyObject *text = mstc_text(mstar_last_error());
    if (text != NULL)
        PyErr_SetObject(class, text);
    Py_XDECREF(text);
}

PyObject *mstc_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *mstc_frameworks(mstc_state *state)
{
    if (state->frameworks == NULL)
        state->frameworks = PyImport_ImportModule("mstarc._frameworks");
    return state->frameworks;
}

static int open_place(const char *name, mstc_place *place)
{
    mstar_device_info info = {.struct_size = sizeof info};
    mstar_device *device = NULL;
    mstar_status status = mstar_device_open(name, NULL, &device);
    if (status == MSTAR_NOT_FOUND) { /* a name that is no name is a bad value, not a missing key */
        mstc_raise_as(PyExc_ValueError);
        return -1;
    }
    if (status == MSTAR_OK)
        status = mstar_device_query(device, &info);
    if (status != MSTAR_OK) {
        mstc_raise(status);
        if (device != NULL)
            mstar_device_close(device);
        return -1;
    }
    *place = (mstc_place){device, info.kind, info.kind == MSTAR_DEVICE_CPU ? 0 : info.index};
    return 0;
}

int mstc_place_of(mstc_state *state, const char *name, mstc_place *place)
{
    int at = 0;
    while (at < MSTC_MAX_DEVICES && state->devices[at].place.device != NULL) {
        if (strcmp(state->devices[at].name, name) == 0) {
            *place = state->devices[at].place;
            return 0;
        }
        at++;
    }
    if (at == MSTC_MAX_DEVICES || strlen(name) >= sizeof state->devices[0].name) {
        PyErr_Format(PyExc_ValueError, "device is '%.40s', which is not the name of a device",
                     name);
        return -1;
    }
    if (open_place(name, place) < 0)
        return -1;
    state->devices[at].place = *place;
    strcpy(state->devices[at].name, name);
    return 0;
}

mstar_device *mstc_device(mstc_state *state, const char *name)
{
    mstc_place place;
    return mstc_place_of(state, name, &place) < 0 ? NULL : place.device;
}

void mstc_lock(PyThread_type_lock lock)
{
    if (PyThread_acquire_lock(lock, NOWAIT_LOCK))
        return;
    Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(lock, WAIT_LOCK);
    Py_END_ALLOW_THREADS
}

/* ---- the module ------------------------------------------------------------------------------ */

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddObjectRef(module, name, (PyObject *)*type);
}

static int intern(const char *text, PyObject **name)
{
    *name = PyUnicode_InternFromString(text);
    return *name == NULL ? -1 : 0;
}

/* Callbacks and deleters find their thread's first interpreter (PyGILState_Ensure), no other. */
static int check_interpreter(void)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0)
        return 0;
    PyErr_SetString(PyExc_ImportError,
                    "mstarc serves the main interpreter of a process, not its subinterpreters");
    return -1;
}

static int module_exec(PyObject *module)
{
    mstc_state *state = PyModule_GetState(module);
    if (check_interpreter() < 0 ||
        add_type(module, &mstc_tensor_spec, "Tensor", &state->tensor_type) < 0 ||
        add_type(module, &mstc_attention_spec, "Attention", &state->attention_type) < 0 ||
        add_type(module, &mstc_encoder_spec, "Encoder", &state->encoder_type) < 0 ||
        add_type(module, &mstc_linear_spec, "Linear", &state->linear_type) < 0 ||
        add_type(module, &mstc_manager_spec, "Manager", &state->manager_type) < 0 ||
        add_type(module, &mstc_resources_spec, "Resources", &state->resources_type) < 0 ||
        add_type(module, &mstc_runner_spec, "Runner", &state->runner_type) < 0 ||
        add_type(module, &mstc_region_spec, "Region", &state->region_type) < 0 ||
        intern("__dlpack__", &state->name_dlpack) < 0 ||
        intern("__dlpack_device__", &state->name_dlpack_device) < 0 ||
        intern("__dlpack_c_exchange_api__", &state->name_exchange) < 0 ||
        intern("max_version", &state->name_max_version) < 0 ||
        intern("stream", &state->name_stream) < 0)
        return -1;
    state->dlpack_version = Py_BuildValue("(ii)", MSTAR_DLPACK_MAJOR, MSTAR_DLPACK_MINOR);
    state->no_arguments = PyTuple_New(0);
    if (state->dlpack_version == NULL || state->no_arguments == NULL)
        return -1;
    return PyModule_AddFunctions(module, mstc_helper_functions) < 0
               ? -1
               : PyModule_AddFunctions(module, mstc_op_functions);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    mstc_state *state = PyModule_GetState(module);
    Py_VISIT(state->tensor_type);
    Py_VISIT(state->attention_type);
    Py_VISIT(state->encoder_type);
    Py_VISIT(state->linear_type);
    Py_VISIT(state->manager_type);
    Py_VISIT(state->resources_type);
    Py_VISIT(state->runner_type);
    Py_VISIT(state->region_type);
    Py_VISIT(state->frameworks);
    Py_VISIT(state->numpy_empty);
    return mstc_kinds_traverse(state, visit, arg);
}

static int module_clear(PyObject *module)
{
    mstc_state *state = PyModule_GetState(module);
    Py_CLEAR(state->tensor_type);
    Py_CLEAR(state->attention_type);
    Py_CLEAR(state->encoder_type);
    Py_CLEAR(state->linear_type);
    Py_CLEAR(state->manager_type);
    Py_CLEAR(state->resources_type);
    Py_CLEAR(state->runner_type);
    Py_CLEAR(state->region_type);
    Py_CLEAR(state->frameworks);
    Py_CLEAR(state->numpy_empty);
    Py_CLEAR(state->numpy_float32);
    Py_CLEAR(state->numpy_float16);
    mstc_kinds_clear(state);
    Py_CLEAR(state->name_dlpack);
    Py_CLEAR(state->name_dlpack_device);
    Py_CLEAR(state->name_exchange);
    Py_CLEAR(state->name_max_version);
    Py_CLEAR(state->name_stream);
    Py_CLEAR(state->dlpack_version);
    Py_CLEAR(state->no_arguments);
    return 0;
}

/* Devices stay open where something made on them is still alive: the process is ending then. */
static void module_free(void *module)
{
    mstc_state *state = PyModule_GetState(module);
    module_clear(module);
    while (state->num_streams > 0)
        mstar_stream_destroy(state->streams[--state->num_streams]);
    while (state->num_natives > 0)
        mstar_stream_destroy(state->natives[--state->num_natives].stream);
    PyMem_Free(state->natives);
    state->natives = NULL;
    for (int i = 0; i < MSTC_MAX_DEVICES && state->devices[i].place.device != NULL; i++)
        mstar_device_close(state->devices[i].place.device);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mstarc._core",
    .m_doc = "The C core of mstarc. Use the classes of the package instead.",
    .m_size = sizeof(mstc_state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&module_def);
}
