/*
 * support_node.h - a small encoder behind the runner's hooks, for tests: embedding, two layers of
 * self attention, mean pooling. It plans its own wrappers in preprocess, one for each bucket and
 * slot and one for eager steps, or (managed) declares its steps to a ragged attention manager. It
 * can be made to fail at a chosen call of a hook.
 */
#ifndef SUPPORT_NODE_H
#define SUPPORT_NODE_H

#include "support_check.h"

#include "mstar/ragged.h"
#include "mstar/runner.h"

enum {
    NODE_HEADS = 2,
    NODE_DIM = 8,
    NODE_WIDTH = NODE_HEADS * NODE_DIM,
    NODE_LAYERS = 2,
    NODE_WORDS = 50,
    NODE_TOKENS = 256, /* of a step or a bucket, at most */
    NODE_REQUESTS = 16,
    NODE_WRAPPERS = 128
};

/* Which hook fails at which of its calls, counted from 1; 0: none. */
typedef struct node_fault {
    int declare, preprocess, lay_out, forward;
    int in_capture; /* 1: only calls of forward under a capture are counted */
} node_fault;

typedef struct node_wrapper {
    int64_t bs, num_tokens;
    int32_t slot;
    mstar_ragged_prefill *wrapper;
} node_wrapper;

typedef struct node {
    mstar_device *device;
    mstar_linear *qkv[NODE_LAYERS], *out[NODE_LAYERS];
    struct {
        float words[NODE_WORDS][NODE_WIDTH], places[NODE_TOKENS][NODE_WIDTH];
        float gain[NODE_WIDTH], shift[NODE_WIDTH];
    } own;
    mstar_buffer *own_there; /* a copy of own where the device has memory of its own */
    node_wrapper wrappers[NODE_WRAPPERS];
    int num_wrappers;
    mstar_ragged_prefill *eager;
    mstar_ragged_manager *manager; /* NULL: not managed */
    mstar_resources *resources;
    int32_t ids[NODE_TOKENS], positions[NODE_TOKENS], offsets[NODE_REQUESTS + 1];
    node_fault fault, calls;
    const char *also; /* key of another resource that steps touch; NULL: none */
} node;

void node_open(node *n, mstar_device *device, uint64_t seed);
/* From here on steps are declared: desc.resources is n->resources, hooks come after this. */
void node_manage(node *n);
void node_close(node *n);
mstar_node_hooks node_hooks(const node *n);

/* The template of a batched config and the maker of a packed one: user is not read. */
mstar_status node_make_input(void *user, int64_t num_tokens, mstar_node_input *input);

/* A step of requests with random ids; inputs point into it. */
typedef struct node_step {
    int64_t count;
    int64_t requests[NODE_REQUESTS];
    int32_t ids[NODE_TOKENS];
    mstar_named_tensor tensors[NODE_REQUESTS];
    mstar_node_input inputs[NODE_REQUESTS];
} node_step;
void node_step_fill(node_step *step, check_rng *rng, const int64_t *lengths, int64_t count);

/* Results of a step: pooled rows, and the hidden rows of all tokens. */
typedef struct node_result {
    float pooled[NODE_REQUESTS][NODE_WIDTH];
    float hidden[NODE_TOKENS][NODE_WIDTH];
} node_result;
/* Runs a step (eager 1: not replayed) and copies its results out; returns why it was not replayed.
 */
mstar_graph_miss node_run(mstar_graph_runner *runner, const char *walk, const node_step *step,
                          int eager, node_result *result);
/* Equal bits of a step's results, whoever made them. */
void node_check_equal(const node_step *step, const node_result *a, const node_result *b);
/* Each request through eager steps of its own. */
void node_run_alone(mstar_graph_runner *runner, const char *walk, const node_step *step,
                    node_result *result);

#endif
