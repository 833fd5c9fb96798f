/*
 * py_hooks.h - what the two runners hand to Python and take from it.
 *
 * Every function needs the interpreter's lock; a callback of the library takes it first:
 *     PyGILState_STATE held = PyGILState_Ensure();
 */
#ifndef MSTC_PY_HOOKS_H
#define MSTC_PY_HOOKS_H

#include "py_core.h"

/* (walk, slot, capturing, requests, padded requests, lease or None, stream); a lease is
 * (bs, num_tokens, walk, key info or None); the stream's address on a GPU, 0 on the CPU. */
PyObject *mstc_context_tuple(const mstar_step_context *context);
PyObject *mstc_int_tuple(const int64_t *values, int64_t count);
/* A sequence of ints as a new array, freed with PyMem_Free; never NULL but with an exception. */
int64_t *mstc_int_array(PyObject *sequence, int64_t *count);
/*
 * A step as the package's classes lower it: ((key, causal, segments or None, pairs), ...), the
 * default segments, the key info or None. A segment is (handle, label, span).
 */
int mstc_step_fill(mstar_step *step, PyObject *lowered);

/* A tensor that is held: a capsule that owns a mstc_view, freed with it. */
PyObject *mstc_hold(mstc_state *state, PyObject *object, const char *name);
const mstc_view *mstc_held(PyObject *holder);
/* {name: array} to records and {name: holder}. static_on: they are static inputs of a region there,
 * compact and writable, numbers in its memory; NULL: they are not. NULL with an exception. */
PyObject *mstc_tensors_take(mstc_state *state, PyObject *arrays, const mstc_place *static_on,
                            mstar_tensors *tensors);
/* Records to {name: Tensor}; what keeps their memory: the holder of the name where it is the
 * holder's, else base, or, without one, the holders. base and holders may be NULL, not both. */
PyObject *mstc_tensors_dict(mstc_state *state, const mstar_tensors *tensors, PyObject *base,
                            PyObject *holders);

/*
 * On the CPU, under a lease: results of a forward that no operation writes, nor are static inputs.
 * A replay would hand out today's contents: they may be where they were in the forward of that size
 * before, as constants are, which *constants keeps alive; elsewhere they are refused by name. -1
 * with an exception.
 */
int mstc_results_check(PyObject **constants, const mstar_tensors *results, PyObject *holders,
                       int64_t bs, int64_t num_tokens);

/* Objects with input_seq_len as records that borrow them. Freed with PyMem_Free. */
mstar_node_input *mstc_inputs_take(PyObject *list, int64_t *count);
/* The objects behind records, a new list. */
PyObject *mstc_inputs_list(const mstar_node_input *inputs, int64_t count);

/* One call at a time: waits for other threads, and refuses a call from inside of one. */
typedef struct mstc_turn {
    PyThread_type_lock lock;
    unsigned long thread; /* that has it; 0: none */
} mstc_turn;
int mstc_turn_init(mstc_turn *turn);
int mstc_turn_take(mstc_turn *turn, const char *what);
void mstc_turn_give(mstc_turn *turn);
/* For a call that only reads: waits for other threads, but not for its own, whose turn it is then.
 * True: it has the turn and gives it back. */
bool mstc_turn_read(mstc_turn *turn);

/* The host waits for what the caller's stream has been given: a capture, which has a stream of its
 * own, reads it. Nothing on the CPU. */
int mstc_wait_for_caller(mstc_state *state, const mstc_place *place);

/* ---- whole-forward configs ---------------------------------------------------------------------
 */

/* What a config's callbacks need. */
typedef struct mstc_config {
    mstar_graph_config *config;
    PyObject *make, *layout; /* callables; NULL: none */
    PyObject *last;          /* the latest input that make gave */
} mstc_config;

/*
 * made, zeroed, from (packed, walk, replay walks, key info or None, compile, compile mode or None,
 * batch sizes, method, sequence dims, multiplier, caps, template or None, token lengths, make or
 * None, layout or None). It stays where it is: the config's callbacks point to it.
 */
int mstc_config_read(PyObject *tuple, mstc_config *made);
void mstc_config_drop(mstc_config *config);

/* ---- resources ------------------------------------------------------------------------------- */

typedef struct mstc_resources {
    PyObject_HEAD mstar_resources *resources;
    PyObject *managers; /* dict */
} mstc_resources;

#endif
