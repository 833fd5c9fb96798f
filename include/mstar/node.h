/*
 * mstar/node.h - what one request brings to one step of a node: named tensors, a token count, and
 * whatever else the model's author keeps.
 *
 * Plain records, filled by hand or by the functions below. A list remembers who owns what: a record
 * that the library made (clone, add) is given back with _release, one that the caller filled by
 * hand belongs to the caller.
 */
#ifndef MSTAR_NODE_H
#define MSTAR_NODE_H

#include "mstar/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor and its name. The name is borrowed from whoever owns the record. */
typedef struct mstar_named_tensor {
    const char *name;
    mstar_tensor tensor;
} mstar_named_tensor;

/* A growable list of views by name: zero it (or _init), add, release. It owns its names and not the
 * tensors' memory. */
typedef struct mstar_tensors {
    mstar_named_tensor *items;
    int64_t count;
    int64_t capacity;
} mstar_tensors;
MSTAR_API void mstar_tensors_init(mstar_tensors *tensors);
MSTAR_API void mstar_tensors_release(mstar_tensors *tensors);
/* name is copied; NULL stands for "x", the name of a single result. A name that is there already
 * is refused. data may be NULL where only the shape is asked for. */
MSTAR_API mstar_status mstar_tensors_add(mstar_tensors *tensors, const char *name,
                                         const mstar_tensor *tensor);
/* Borrowed until the list changes; NULL when there is none of that name. */
MSTAR_API const mstar_tensor *mstar_tensors_find(const mstar_tensors *tensors, const char *name);

/*
 * The input of one request. user is the author's own (token ids, keyword arguments, a Python
 * object); user_clone makes another of it or answers NULL when it cannot, user_release takes one
 * back. Without user_clone clones share the pointer, and user_release must then be NULL too.
 */
typedef struct mstar_node_input {
    int64_t input_seq_len; /* tokens of this request, >= 0; default 0: a node without tokens */
    mstar_named_tensor *tensors;
    int64_t num_tensors;
    void *user;
    void *(*user_clone)(void *user);
    void (*user_release)(void *user);
} mstar_node_input;

/*
 * A copy that shares nothing: names and tensors are copied (compact, in host memory: other devices
 * are refused by name), user by user_clone. Release it once.
 */
MSTAR_API mstar_status mstar_node_input_clone(const mstar_node_input *input,
                                              mstar_node_input *clone);
/* Takes back what _clone made, and zeroes the record. */
MSTAR_API void mstar_node_input_release(mstar_node_input *input);

/* Inputs of a batch, one a request, owned by the list. */
typedef struct mstar_node_inputs {
    mstar_node_input *items;
    int64_t count;
} mstar_node_inputs;
MSTAR_API void mstar_node_inputs_release(mstar_node_inputs *inputs);

#ifdef __cplusplus
}
#endif

#endif
