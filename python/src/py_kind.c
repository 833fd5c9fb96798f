/*
 * py_kind.c - what is known of a class of arrays: asked once, since asking costs more than a call.
 * The last MSTC_MAX_KINDS classes are kept, and kept alive.
 */
#include "py_core.h"

/* The table lives as long as the class. */
static const mstc_dl_exchange *find_table(mstc_state *state, PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttr((PyObject *)type, state->name_exchange);
    const mstc_dl_exchange *table = NULL;
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (capsule == NULL)
        PyErr_Clear();
    Py_XDECREF(capsule);
    if (table != NULL &&
        (table->header.version.major != MSTAR_DLPACK_MAJOR || table->tensor_from_object == NULL))
        table = NULL;
    return table;
}

static void drop(mstc_kind *kind)
{
    Py_CLEAR(kind->look);
    PyTypeObject *type = kind->type;
    kind->type = NULL;
    Py_XDECREF((PyObject *)type);
}

/* None becomes NULL. A new reference. */
static PyObject *item(PyObject *tuple, Py_ssize_t index)
{
    PyObject *found = PyTuple_GetItem(tuple, index);
    return found == NULL || found == Py_None ? NULL : Py_NewRef(found);
}

static int ask(mstc_state *state, PyTypeObject *type, mstc_kind *kind)
{
    PyObject *module = mstc_frameworks(state);
    PyObject *answer =
        module == NULL ? NULL : PyObject_CallMethod(module, "kind_of", "O", (PyObject *)type);
    int framework = MSTC_OTHER;
    PyObject *look;
    if (answer == NULL || !PyArg_ParseTuple(answer, "iiO", &framework, &kind->habits, &look)) {
        Py_XDECREF(answer);
        return -1;
    }
    kind->framework = (mstc_framework)framework;
    kind->look = look == Py_None ? NULL : Py_NewRef(look);
    Py_DECREF(answer);
    return 0;
}

static int ask_torch(mstc_state *state)
{
    mstc_torch *torch = &state->torch;
    PyObject *module = mstc_frameworks(state);
    PyObject *makers = module == NULL ? NULL : PyObject_CallMethod(module, "torch_makers", NULL);
    if (makers == NULL)
        return -1;
    PyObject **const fields[] = {&torch->empty_cpu, &torch->empty_cuda, &torch->current_device,
                                 &torch->float32,   &torch->bfloat16,   &torch->float16};
    for (Py_ssize_t i = 0; i < (Py_ssize_t)(sizeof fields / sizeof fields[0]); i++) {
        PyObject *former = *fields[i]; /* another thread's, or of an attempt that failed */
        *fields[i] = item(makers, i);
        Py_XDECREF(former);
    }
    Py_DECREF(makers);
    return PyErr_Occurred() == NULL ? 0 : -1;
}

static const mstc_kind *learn(mstc_state *state, PyTypeObject *type)
{
    mstc_kind found = {.table = find_table(state, type)};
    if (ask(state, type, &found) < 0)
        return NULL;
    if (found.framework == MSTC_TORCH && state->torch.float32 == NULL && ask_torch(state) < 0) {
        Py_XDECREF(found.look);
        return NULL;
    }
    found.type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    mstc_kind *kind = &state->kinds[state->next_kind];
    state->next_kind = (state->next_kind + 1) % MSTC_MAX_KINDS;
    mstc_kind former = *kind;
    *kind = found;
    drop(&former);
    return kind;
}

const mstc_kind *mstc_kind_of(mstc_state *state, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < MSTC_MAX_KINDS; i++)
        if (state->kinds[i].type == type)
            return &state->kinds[i];
    return learn(state, type);
}

void mstc_kinds_clear(mstc_state *state)
{
    mstc_torch *torch = &state->torch;
    for (int i = 0; i < MSTC_MAX_KINDS; i++)
        drop(&state->kinds[i]);
    Py_CLEAR(torch->empty_cpu);
    Py_CLEAR(torch->empty_cuda);
    Py_CLEAR(torch->current_device);
    Py_CLEAR(torch->float32);
    Py_CLEAR(torch->bfloat16);
    Py_CLEAR(torch->float16);
}

int mstc_kinds_traverse(mstc_state *state, visitproc visit, void *arg)
{
    for (int i = 0; i < MSTC_MAX_KINDS; i++) {
        Py_VISIT((PyObject *)state->kinds[i].type);
        Py_VISIT(state->kinds[i].look);
    }
    return 0;
}
