/*
 * support_replay.h - a small network over static buffers, for tests of capture and replay: tokens
 * of several requests through embedding, two layers of self attention and one of cross attention,
 * pooling and normalize. It can be run over tensors of exactly the step's size (eager) or over
 * buffers of a ceiling's size with live row counts (what is captured).
 */
#ifndef SUPPORT_REPLAY_H
#define SUPPORT_REPLAY_H

#include "support_check.h"

enum {
    NET_HEADS = 2,
    NET_DIM = 8,
    NET_WIDTH = NET_HEADS * NET_DIM,
    NET_LAYERS = 2,
    NET_WORDS = 50,
    NET_SEGMENTS = 5, /* ceilings */
    NET_TOKENS = 40,
    NET_KEYS = 24
};

typedef struct net_weights {
    mstar_device *device;
    mstar_linear *qkv[NET_LAYERS], *out[NET_LAYERS], *up[NET_LAYERS], *down[NET_LAYERS];
    mstar_linear *cross_q, *cross_k, *cross_v;
    float words[NET_WORDS][NET_WIDTH];
    float gain[NET_WIDTH], shift[NET_WIDTH];
} net_weights;
void net_weights_open(net_weights *weights, mstar_device *device, uint64_t seed);
void net_weights_close(net_weights *weights);

/* One step: token ids, key rows, and both layouts. */
typedef struct net_step {
    int32_t num_segments;
    int32_t offsets[NET_SEGMENTS + 1], key_offsets[NET_SEGMENTS + 1];
    int32_t ids[NET_TOKENS];
    float keys[NET_KEYS][NET_WIDTH];
} net_step;
/* Any layout under the ceilings, empty segments and empty steps among them. */
void net_step_random(net_step *step, check_rng *rng);

/* Buffers and wrappers, of a ceiling's size (graph) or any (eager). */
typedef struct net_state {
    bool graph;
    mstar_ragged_prefill *self;
    mstar_ragged_cross_prefill *cross;
    mstar_ragged_prefill_info self_info, cross_info;
    int32_t ids[NET_TOKENS];
    float keys[NET_KEYS][NET_WIDTH];
    float x[NET_TOKENS][NET_WIDTH], qkv[NET_TOKENS][3 * NET_WIDTH], context[NET_TOKENS][NET_WIDTH],
        middle[NET_TOKENS][2 * NET_WIDTH];
    float cross_q[NET_TOKENS][NET_WIDTH], cross_k[NET_KEYS][NET_WIDTH],
        cross_v[NET_KEYS][NET_WIDTH];
    float pooled[NET_SEGMENTS][NET_WIDTH];
} net_state;
void net_state_open(net_state *state, mstar_device *device, bool graph);
void net_state_close(net_state *state);
/* Every activation becomes NaN. */
void net_state_poison(net_state *state);
/* Copies inputs in (rows past the step stay as they are) and plans both wrappers. */
mstar_status net_stage(net_state *state, mstar_stream *stream, const net_step *step);
/* The forward: graph states use ceilings and live counts, eager ones the step's exact sizes. */
mstar_status net_forward(const net_weights *weights, net_state *state, mstar_stream *stream,
                         const net_step *step);
/* x of the step's tokens and its pooled vectors have the same bits in both, and are finite. */
void net_compare(const net_state *got, const net_state *want, const net_step *step,
                 const char *what);

#endif
