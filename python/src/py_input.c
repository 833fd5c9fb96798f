/*
 * py_input.c - tensors of one call: looked at, checked, and copied where a kernel cannot read them
 * as they are.
 */
#include "py_core.h"

enum { ALIGNMENT = 64 };

static int check_device(const mstc_wish *wish, const mstc_view *view)
{
    const bool cpu = wish->device_kind == MSTAR_DEVICE_CPU;
    if (wish->device_kind < 0 ||
        (view->device_type == wish->device_kind && (cpu || view->device_id == wish->device_index)))
        return 0;
    PyErr_Format(PyExc_ValueError, "%s lies on DLPack device (%d, %d); expected (%d, %d)",
                 wish->name, (int)view->device_type, (int)view->device_id, (int)wish->device_kind,
                 (int)wish->device_index);
    return -1;
}

static int check(const mstc_wish *wish, mstc_input *input)
{
    const mstc_view *view = &input->view;
    if (view->rank != wish->rank) {
        PyErr_Format(PyExc_ValueError, "%s has %d dimensions; expected %d: %s", wish->name,
                     (int)view->rank, (int)wish->rank, wish->dimensions);
        return -1;
    }
    if (check_device(wish, view) < 0 || mstc_view_dtype(view, wish->name, &input->from) < 0)
        return -1;
    if (input->from == MSTAR_DTYPE_F8_E4M3 || input->from == MSTAR_DTYPE_F8_E5M2) {
        PyErr_Format(PyExc_NotImplementedError, "%s is %s; fp8 inputs are not there yet",
                     wish->name, mstc_view_dtype_name(view));
        return -1;
    }
    const bool read_as_is = input->from == MSTAR_DTYPE_F32 || input->from == MSTAR_DTYPE_BF16 ||
                            input->from == MSTAR_DTYPE_F16;
    input->dtype = wish->dtype >= 0 ? (mstar_dtype)wish->dtype
                   : read_as_is     ? input->from
                                    : MSTAR_DTYPE_F32;
    input->must_pack = input->from != input->dtype || !mstc_view_is_plain(view);
    return 0;
}

/* On a device the framework casts, in the order of its own stream. */
static int cast_on_device(mstc_state *state, const mstc_wish *wish, mstc_input *input)
{
    PyObject *module = mstc_frameworks(state);
    PyObject *cast = module == NULL ? NULL
                                    : PyObject_CallMethod(module, "cast", "Os", input->view.owner,
                                                          mstc_dtype_name(input->dtype));
    if (cast == NULL)
        return -1;
    mstc_view_drop(&input->view);
    const int result = mstc_view_take(state, cast, wish->name, &input->view);
    Py_DECREF(cast);
    if (result == 0 && (check(wish, input) < 0 || input->must_pack)) {
        if (PyErr_Occurred() == NULL)
            PyErr_Format(PyExc_TypeError, "%s was cast to %s by its framework and is %s",
                         wish->name, mstc_dtype_name(input->dtype),
                         mstc_view_dtype_name(&input->view));
        return -1;
    }
    return result;
}

static int make_room(const mstc_wish *wish, mstc_input *input)
{
    const mstc_session *session = mstc_session_now();
    if (session != NULL && session->capturing) {
        PyErr_Format(PyExc_ValueError,
                     "%s would be copied (it is %s and read as %s, or its last dimension is not "
                     "contiguous); a capture would keep the copy of today: give it as it is read",
                     wish->name, mstc_view_dtype_name(&input->view), mstc_dtype_name(input->dtype));
        return -1;
    }
    size_t bytes = mstar_dtype_bytes(input->dtype);
    for (int i = 0; i < input->view.rank; i++)
        bytes *= (size_t)input->view.shape[i];
    input->packed = PyMem_Malloc(bytes + ALIGNMENT);
    if (input->packed == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    const uintptr_t address = (uintptr_t)input->packed;
    input->tensor = mstar_tensor_make((char *)input->packed + (ALIGNMENT - address % ALIGNMENT),
                                      input->dtype, input->view.rank, input->view.shape);
    return 0;
}

static int fill(mstc_state *state, const mstc_wish *wish, mstc_input *input)
{
    if (check(wish, input) < 0)
        return -1;
    if (input->must_pack && input->view.device_type != MSTAR_DEVICE_CPU &&
        cast_on_device(state, wish, input) < 0)
        return -1;
    if (input->must_pack)
        return make_room(wish, input);
    input->tensor = mstc_view_tensor(&input->view, input->dtype);
    return mstc_session_keep(state, input->view.owner, input->view.data);
}

int mstc_input_take(mstc_state *state, const mstc_wish *wish, PyObject *object, mstc_input *input)
{
    input->packed = NULL;
    if (mstc_view_take(state, object, wish->name, &input->view) < 0)
        return -1;
    if (fill(state, wish, input) == 0)
        return 0;
    mstc_input_drop(input);
    return -1;
}

mstar_status mstc_input_pack(mstc_input *input)
{
    return input->must_pack
               ? mstc_view_pack(&input->view, input->from, input->dtype, input->tensor.data)
               : MSTAR_OK;
}

void mstc_input_drop(mstc_input *input)
{
    PyMem_Free(input->packed);
    input->packed = NULL;
    mstc_view_drop(&input->view);
}
