/*
 * node_input.c - named tensors and the inputs of requests: lists, copies that share nothing.
 */
#include <string.h>

#include "base/base.h"
#include "mstar/node.h"

/* ---- named tensors --------------------------------------------------------------------------- */

void mstar_tensors_init(mstar_tensors *tensors)
{
    if (tensors != NULL)
        *tensors = (mstar_tensors){NULL, 0, 0};
}

void mstar_tensors_release(mstar_tensors *tensors)
{
    if (tensors == NULL)
        return;
    for (int64_t i = 0; i < tensors->count; i++)
        mst_free((void *)(uintptr_t)tensors->items[i].name);
    mst_free(tensors->items);
    mstar_tensors_init(tensors);
}

const mstar_tensor *mstar_tensors_find(const mstar_tensors *tensors, const char *name)
{
    if (tensors == NULL || name == NULL)
        return NULL;
    for (int64_t i = 0; i < tensors->count; i++) {
        if (strcmp(tensors->items[i].name, name) == 0)
            return &tensors->items[i].tensor;
    }
    return NULL;
}

mstar_status mstar_tensors_add(mstar_tensors *tensors, const char *name, const mstar_tensor *tensor)
{
    MST_TRY(mst_check_not_null("tensors", tensors));
    if (name == NULL)
        name = "x";
    MST_TRY(mst_check_not_null(name, tensor));
    mstar_tensor view = *tensor;
    if (view.data == NULL)
        view.data = tensors; /* a shape alone: whoever takes the list brings the memory */
    MST_TRY(mst_tensor_check(name, &view));
    if (mstar_tensors_find(tensors, name) != NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "name is \"%.64s\"; there is a tensor of that name already", name);
    char *copy = NULL;
    MST_TRY(mst_strdup(name, "a tensor's name", &copy));
    mstar_status status = mst_grow((void **)&tensors->items, &tensors->capacity, tensors->count + 1,
                                   sizeof *tensors->items, "named tensors");
    if (status != MSTAR_OK) {
        mst_free(copy);
        return status;
    }
    tensors->items[tensors->count++] = (mstar_named_tensor){copy, *tensor};
    return MSTAR_OK;
}

/* ---- the input of a request ------------------------------------------------------------------ */

/* Copies a strided view into compact memory, one run of the last dimension at a time. */
static void copy_compact(const mstar_tensor *from, mstar_tensor *to, size_t count)
{
    size_t element = mstar_dtype_bytes(from->dtype);
    int64_t index[MSTAR_MAX_RANK] = {0};
    for (size_t i = 0; i < count; i++) {
        int64_t offset = 0;
        for (int32_t dim = 0; dim < from->rank; dim++)
            offset += index[dim] * from->strides[dim];
        memcpy((char *)to->data + i * element, (const char *)from->data + (size_t)offset * element,
               element);
        for (int32_t dim = from->rank - 1; dim >= 0; dim--) {
            if (++index[dim] < from->shape[dim])
                break;
            index[dim] = 0;
        }
    }
}

static mstar_status clone_tensor(const mstar_named_tensor *from, mstar_named_tensor *to)
{
    const char *name = from->name != NULL ? from->name : "x";
    MST_TRY(mst_tensor_check(name, &from->tensor));
    if (from->tensor.device_kind != MSTAR_DEVICE_CPU)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "tensor \"%.64s\" lies on device kind %d; inputs are cloned in host memory "
                        "(kind %d) only",
                        name, (int)from->tensor.device_kind, (int)MSTAR_DEVICE_CPU);
    size_t count = 1, bytes;
    for (int32_t dim = 0; dim < from->tensor.rank; dim++)
        MST_TRY(mst_size_mul(count, (size_t)from->tensor.shape[dim], &count));
    MST_TRY(mst_size_mul(count, mstar_dtype_bytes(from->tensor.dtype), &bytes));
    char *copied_name = NULL;
    MST_TRY(mst_strdup(name, "a tensor's name", &copied_name));
    void *data = NULL;
    mstar_status status = mst_alloc(bytes, "a clone of an input tensor", &data);
    if (status != MSTAR_OK) {
        mst_free(copied_name);
        return status;
    }
    *to =
        (mstar_named_tensor){copied_name, mstar_tensor_make(data, from->tensor.dtype,
                                                            from->tensor.rank, from->tensor.shape)};
    copy_compact(&from->tensor, &to->tensor, count);
    return MSTAR_OK;
}

static mstar_status check_input(const mstar_node_input *input)
{
    MST_TRY(mst_check_not_null("input", input));
    MST_TRY(mst_check_range("input.input_seq_len", input->input_seq_len, 0, INT32_MAX));
    MST_TRY(mst_check_range("input.num_tensors", input->num_tensors, 0, INT32_MAX));
    if (input->num_tensors > 0)
        MST_TRY(mst_check_not_null("input.tensors", input->tensors));
    if (input->user_release != NULL && input->user_clone == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "input.user_release is given without user_clone; "
                                                "clones would be released more than once");
    return MSTAR_OK;
}

mstar_status mstar_node_input_clone(const mstar_node_input *input, mstar_node_input *clone)
{
    MST_TRY(check_input(input));
    MST_TRY(mst_check_not_null("clone", clone));
    mstar_node_input made = {.input_seq_len = input->input_seq_len,
                             .user_clone = input->user_clone,
                             .user_release = input->user_release};
    mstar_status status = MSTAR_OK;
    if (input->num_tensors > 0)
        MST_TRY_GOTO(mst_alloc_array(input->num_tensors, sizeof *made.tensors, "an input's tensors",
                                     (void **)&made.tensors),
                     failed);
    for (; made.num_tensors < input->num_tensors; made.num_tensors++)
        MST_TRY_GOTO(
            clone_tensor(&input->tensors[made.num_tensors], &made.tensors[made.num_tensors]),
            failed);
    made.user = input->user;
    if (input->user != NULL && input->user_clone != NULL) {
        made.user = input->user_clone(input->user);
        if (made.user == NULL) {
            status = mst_fail(MSTAR_OUT_OF_MEMORY, "input.user_clone answered NULL");
            goto failed;
        }
    }
    *clone = made;
    return MSTAR_OK;
failed:
    mstar_node_input_release(&made);
    return status;
}

void mstar_node_input_release(mstar_node_input *input)
{
    if (input == NULL)
        return;
    for (int64_t i = 0; i < input->num_tensors; i++) {
        mst_free((void *)(uintptr_t)input->tensors[i].name);
        mst_free(input->tensors[i].tensor.data);
    }
    mst_free(input->tensors);
    if (input->user != NULL && input->user_release != NULL)
        input->user_release(input->user);
    *input = (mstar_node_input){.input_seq_len = 0};
}

void mstar_node_inputs_release(mstar_node_inputs *inputs)
{
    if (inputs == NULL)
        return;
    for (int64_t i = 0; i < inputs->count; i++)
        mstar_node_input_release(&inputs->items[i]);
    mst_free(inputs->items);
    *inputs = (mstar_node_inputs){NULL, 0};
}
