/* py_op.c - what the operations share: inputs, the output, the stream, integers. */
#include <string.h>

#include "py_core.h"

void mstc_op_begin(mstc_state *state, mstc_op *op)
{
    op->state = state;
    op->place = (mstc_place){.device = NULL};
    op->stream = NULL;
    op->zero = false;
    op->num_inputs = 0;
    op->like = NULL;
    op->out = NULL;
    op->is_new = false;
    memset(&op->out_view, 0, sizeof op->out_view);
}

/* The first input says where. */
static int settle(mstc_op *op, const mstc_view *first)
{
    if (op->place.device == NULL && mstc_view_place(op->state, first, &op->place) < 0)
        return -1;
    op->stream = mstc_stream_take(op->state, &op->place, first->owner);
    return op->stream == NULL ? -1 : 0;
}

static const char *dimensions_of(int32_t rank)
{
    return rank == 1 ? "one size" : rank == 2 ? "rows and columns" : "tokens, heads and head dim";
}

int mstc_op_input(mstc_op *op, const char *name, PyObject *object, int32_t rank, int32_t dtype,
                  const mstar_tensor **tensor)
{
    *tensor = NULL;
    if (object == Py_None)
        return 0;
    const bool anywhere = op->place.device == NULL;
    const mstc_wish wish = {.name = name,
                            .device_kind = anywhere ? -1 : (int32_t)op->place.kind,
                            .device_index = op->place.index,
                            .rank = rank,
                            .dtype = dtype,
                            .dimensions = dimensions_of(rank)};
    mstc_input *input = &op->inputs[op->num_inputs];
    if (mstc_input_take(op->state, &wish, object, input) < 0)
        return -1;
    op->num_inputs++;
    if (op->stream == NULL && settle(op, &input->view) < 0)
        return -1;
    *tensor = &input->tensor;
    return 0;
}

int mstc_op_output(mstc_op *op, PyObject *given, PyObject *like, const mstc_view *like_view,
                   mstar_dtype dtype, int32_t rank, const int64_t *shape)
{
    op->like = like;
    op->is_new = given == Py_None;
    op->out = mstc_output_take(op->state, given, like, like_view, &dtype, op->zero, rank, shape,
                               &op->out_view);
    if (op->out == NULL)
        return -1;
    op->out_tensor = mstc_view_tensor(&op->out_view, dtype);
    return mstc_session_wrote(&op->out_tensor) < 0
               ? -1
               : mstc_session_keep(op->state, op->out, op->out_view.data);
}

mstar_status mstc_op_pack(mstc_op *op)
{
    mstar_status status = MSTAR_OK;
    for (int i = 0; i < op->num_inputs && status == MSTAR_OK; i++)
        status = mstc_input_pack(&op->inputs[i]);
    return status;
}

PyObject *mstc_op_end(mstc_op *op, int failed, mstar_status status)
{
    if (!failed && status != MSTAR_OK)
        mstc_raise(status);
    mstc_view_drop(&op->out_view);
    while (op->num_inputs > 0)
        mstc_input_drop(&op->inputs[--op->num_inputs]);
    if (op->stream != NULL)
        mstc_stream_done(op->state, &op->place, op->stream);
    if (failed || status != MSTAR_OK) {
        Py_XDECREF(op->out);
        return NULL;
    }
    return op->is_new ? mstc_output_finish(op->state, op->like, op->out) : op->out;
}

int mstc_op_integers(mstc_state *state, const char *name, const char *kind, int64_t least,
                     PyObject *object, mstc_integers *integers)
{
    const mstc_session *session = mstc_session_now();
    const bool capturing = session != NULL && session->capturing;
    const bool is_tensor =
        PyObject_CheckBuffer(object) || PyObject_HasAttr(object, state->name_dlpack);
    integers->has_view = false;
    integers->copied.values = integers->copied.inline_values;
    if (is_tensor && !PyBytes_Check(object) && !PyByteArray_Check(object)) {
        mstar_dtype dtype;
        mstc_view *view = &integers->view;
        if (mstc_view_take(state, object, name, view) < 0)
            return -1;
        integers->has_view = true;
        if (mstc_view_dtype(view, name, &dtype) == 0 && dtype == MSTAR_DTYPE_I32 &&
            view->rank == 1 && view->device_type == MSTAR_DEVICE_CPU && mstc_view_is_plain(view)) {
            integers->values = view->data;
            integers->count = view->shape[0];
            if (mstc_session_keep(state, object, view->data) == 0)
                return 0;
            mstc_integers_drop(integers);
            return -1;
        }
        PyErr_Clear();
        mstc_integers_drop(integers);
    }
    if (capturing) {
        PyErr_Format(PyExc_ValueError,
                     "%s would be copied, and a capture would keep the copy of today: give %s as a "
                     "contiguous tensor of int32 in host memory",
                     name, kind);
        return -1;
    }
    if (mstc_integers_take(state, object, name, kind, least, &integers->copied) < 0)
        return -1;
    integers->values = integers->copied.values;
    integers->count = integers->copied.count;
    return 0;
}

void mstc_integers_drop(mstc_integers *integers)
{
    if (integers->has_view)
        mstc_view_drop(&integers->view);
    integers->has_view = false;
    mstc_offsets_drop(&integers->copied);
}
