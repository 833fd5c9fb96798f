/* support_replay.c - see support_replay.h. */
#include "support_replay.h"

#include <math.h>
#include <string.h>

static mstar_tensor matrix(void *data, int64_t rows, int64_t width)
{
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 2, (const int64_t[]){rows, width});
}

static mstar_linear *make_linear(mstar_device *device, int64_t in, int64_t out,
                                 mstar_activation activation, check_rng *rng)
{
    static float weight[3 * NET_WIDTH * 2 * NET_WIDTH], bias[3 * NET_WIDTH];
    for (int64_t i = 0; i < in * out; i++)
        weight[i] = (float)check_uniform(rng, -0.3, 0.3);
    for (int64_t i = 0; i < out; i++)
        bias[i] = (float)check_uniform(rng, -0.3, 0.3);
    mstar_tensor w = matrix(weight, out, in);
    mstar_tensor b = mstar_tensor_make(bias, MSTAR_DTYPE_F32, 1, &out);
    const mstar_tensor *weights[] = {&w}, *biases[] = {&b};
    mstar_linear_desc desc;
    mstar_linear_desc_init(&desc);
    desc.activation = activation;
    mstar_linear *linear = NULL;
    CHECK_OK(mstar_linear_create(device, &desc, weights, biases, 1, &linear));
    return linear;
}

void net_weights_open(net_weights *weights, mstar_device *device, uint64_t seed)
{
    check_rng rng = {seed};
    const int64_t w = NET_WIDTH;
    memset(weights, 0, sizeof *weights);
    weights->device = device;
    for (int i = 0; i < NET_LAYERS; i++) {
        weights->qkv[i] = make_linear(device, w, 3 * w, MSTAR_ACTIVATION_NONE, &rng);
        weights->out[i] = make_linear(device, w, w, MSTAR_ACTIVATION_NONE, &rng);
        weights->up[i] = make_linear(device, w, 2 * w, MSTAR_ACTIVATION_GELU, &rng);
        weights->down[i] = make_linear(device, 2 * w, w, MSTAR_ACTIVATION_NONE, &rng);
    }
    weights->cross_q = make_linear(device, w, w, MSTAR_ACTIVATION_NONE, &rng);
    weights->cross_k = make_linear(device, w, w, MSTAR_ACTIVATION_NONE, &rng);
    weights->cross_v = make_linear(device, w, w, MSTAR_ACTIVATION_NONE, &rng);
    for (int i = 0; i < NET_WORDS; i++)
        for (int j = 0; j < NET_WIDTH; j++)
            weights->words[i][j] = (float)check_uniform(&rng, -1, 1);
    for (int j = 0; j < NET_WIDTH; j++) {
        weights->gain[j] = (float)check_uniform(&rng, 0.5, 1.5);
        weights->shift[j] = (float)check_uniform(&rng, -0.1, 0.1);
    }
}

void net_weights_close(net_weights *weights)
{
    for (int i = 0; i < NET_LAYERS; i++) {
        mstar_linear_destroy(weights->qkv[i]);
        mstar_linear_destroy(weights->out[i]);
        mstar_linear_destroy(weights->up[i]);
        mstar_linear_destroy(weights->down[i]);
    }
    mstar_linear_destroy(weights->cross_q);
    mstar_linear_destroy(weights->cross_k);
    mstar_linear_destroy(weights->cross_v);
}

static void random_offsets(check_rng *rng, int32_t segments, int32_t ceiling, int32_t *offsets)
{
    int32_t left = (int32_t)check_integer(rng, 0, ceiling);
    offsets[0] = 0;
    for (int32_t s = 0; s < segments; s++) {
        int32_t length = s == segments - 1 ? left : (int32_t)check_integer(rng, 0, left);
        if (check_integer(rng, 0, 3) == 0)
            length = 0;
        left -= length;
        offsets[s + 1] = offsets[s] + length;
    }
}

void net_step_random(net_step *step, check_rng *rng)
{
    memset(step, 0, sizeof *step);
    step->num_segments = (int32_t)check_integer(rng, 0, NET_SEGMENTS);
    random_offsets(rng, step->num_segments, NET_TOKENS, step->offsets);
    random_offsets(rng, step->num_segments, NET_KEYS, step->key_offsets);
    for (int i = 0; i < NET_TOKENS; i++)
        step->ids[i] = (int32_t)check_integer(rng, 0, NET_WORDS - 1);
    for (int i = 0; i < NET_KEYS; i++)
        for (int j = 0; j < NET_WIDTH; j++)
            step->keys[i][j] = (float)check_uniform(rng, -1, 1);
}

void net_state_open(net_state *state, mstar_device *device, bool graph)
{
    mstar_ragged_prefill_desc desc;
    memset(state, 0, sizeof *state);
    state->graph = graph;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = NET_HEADS;
    desc.num_kv_heads = NET_HEADS;
    desc.head_dim = NET_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    if (graph) {
        desc.accelerator_graph = 1;
        desc.max_num_segments = NET_SEGMENTS;
        desc.max_total_tokens = NET_TOKENS;
        desc.max_total_kv_tokens = NET_KEYS;
    }
    CHECK_OK(mstar_ragged_prefill_create(device, &desc, NULL, 0, &state->self));
    CHECK_OK(mstar_ragged_cross_prefill_create(device, &desc, NULL, 0, &state->cross));
    state->self_info.struct_size = sizeof state->self_info;
    state->cross_info.struct_size = sizeof state->cross_info;
    CHECK_OK(mstar_ragged_prefill_query(state->self, &state->self_info));
    CHECK_OK(mstar_ragged_cross_prefill_query(state->cross, &state->cross_info));
    net_state_poison(state);
}

void net_state_close(net_state *state)
{
    mstar_ragged_prefill_destroy(state->self);
    mstar_ragged_cross_prefill_destroy(state->cross);
}

void net_state_poison(net_state *state)
{
    memset(state->x, 0xff, sizeof state->x);
    memset(state->qkv, 0xff, sizeof state->qkv);
    memset(state->context, 0xff, sizeof state->context);
    memset(state->middle, 0xff, sizeof state->middle);
    memset(state->cross_q, 0xff, sizeof state->cross_q);
    memset(state->cross_k, 0xff, sizeof state->cross_k);
    memset(state->cross_v, 0xff, sizeof state->cross_v);
    memset(state->pooled, 0xff, sizeof state->pooled);
    memset(state->ids, 0xff, sizeof state->ids);
    memset(state->keys, 0xff, sizeof state->keys);
}

mstar_status net_stage(net_state *state, mstar_stream *stream, const net_step *step)
{
    int64_t n = step->num_segments;
    memcpy(state->ids, step->ids, (size_t)step->offsets[n] * sizeof step->ids[0]);
    memcpy(state->keys, step->keys, (size_t)step->key_offsets[n] * sizeof step->keys[0]);
    MST_TRY(mstar_ragged_prefill_plan(state->self, stream, step->offsets, n, 0));
    return mstar_ragged_cross_prefill_plan(state->cross, stream, step->offsets, n,
                                           step->key_offsets, n);
}

static mstar_tensor heads(void *data, int64_t rows, int64_t stride)
{
    mstar_tensor tensor =
        mstar_tensor_make(data, MSTAR_DTYPE_F32, 3, (const int64_t[]){rows, NET_HEADS, NET_DIM});
    tensor.strides[0] = stride;
    return tensor;
}

static mstar_status self_layer(const net_weights *weights, net_state *s, mstar_stream *stream,
                               int64_t tokens, int layer)
{
    const int64_t w = NET_WIDTH;
    mstar_tensor x = matrix(s->x, tokens, w), qkv = matrix(s->qkv, tokens, 3 * w);
    mstar_tensor context = matrix(s->context, tokens, w), middle = matrix(s->middle, tokens, 2 * w);
    mstar_tensor q = heads(s->qkv, tokens, 3 * w), k = heads(&s->qkv[0][w], tokens, 3 * w);
    mstar_tensor v = heads(&s->qkv[0][2 * w], tokens, 3 * w), o = heads(s->context, tokens, w);
    mstar_tensor gain = mstar_tensor_make((void *)(uintptr_t)weights->gain, MSTAR_DTYPE_F32, 1, &w);
    mstar_tensor shift =
        mstar_tensor_make((void *)(uintptr_t)weights->shift, MSTAR_DTYPE_F32, 1, &w);
    MST_TRY(mstar_linear_run(weights->qkv[layer], stream, &x, NULL, &qkv));
    MST_TRY(mstar_rotary(stream, &q, s->ids, 100.0, NET_DIM, 0, &q));
    MST_TRY(mstar_rotary(stream, &k, s->ids, 100.0, NET_DIM, 0, &k));
    MST_TRY(mstar_ragged_prefill_run(s->self, stream, &q, &k, &v, &o, NULL));
    MST_TRY(mstar_linear_run(weights->out[layer], stream, &context, &x, &x));
    MST_TRY(mstar_layer_norm(stream, &x, NULL, &gain, &shift, 1e-5, &x));
    MST_TRY(mstar_linear_run(weights->up[layer], stream, &x, NULL, &middle));
    MST_TRY(mstar_linear_run(weights->down[layer], stream, &middle, &x, &x));
    return mstar_rms_norm(stream, &x, NULL, &gain, 1e-5, &x);
}

static mstar_status cross_layer(const net_weights *weights, net_state *s, mstar_stream *stream,
                                int64_t tokens, int64_t num_keys)
{
    const int64_t w = NET_WIDTH;
    mstar_tensor x = matrix(s->x, tokens, w), keys = matrix(s->keys, num_keys, w);
    mstar_tensor cq = matrix(s->cross_q, tokens, w), ck = matrix(s->cross_k, num_keys, w);
    mstar_tensor cv = matrix(s->cross_v, num_keys, w), o = heads(s->context, tokens, w);
    mstar_tensor q = heads(s->cross_q, tokens, w), k = heads(s->cross_k, num_keys, w);
    mstar_tensor v = heads(s->cross_v, num_keys, w), context = matrix(s->context, tokens, w);
    MST_TRY(mstar_linear_run(weights->cross_q, stream, &x, NULL, &cq));
    MST_TRY(mstar_stream_set_rows(stream, s->graph ? s->cross_info.kv_token_counter : NULL));
    MST_TRY(mstar_linear_run(weights->cross_k, stream, &keys, NULL, &ck));
    MST_TRY(mstar_linear_run(weights->cross_v, stream, &keys, NULL, &cv));
    MST_TRY(mstar_stream_set_rows(stream, s->graph ? s->self_info.token_counter : NULL));
    MST_TRY(mstar_ragged_cross_prefill_run(s->cross, stream, &q, &k, &v, &o, NULL));
    return mstar_activation_run(stream, MSTAR_ACTIVATION_TANH, &context, &x);
}

mstar_status net_forward(const net_weights *weights, net_state *s, mstar_stream *stream,
                         const net_step *step)
{
    int64_t segments = s->graph ? NET_SEGMENTS : step->num_segments;
    int64_t tokens = s->graph ? NET_TOKENS : step->offsets[step->num_segments];
    int64_t num_keys = s->graph ? NET_KEYS : step->key_offsets[step->num_segments];
    const int32_t *offsets = s->graph ? s->self_info.q_offsets : step->offsets;
    mstar_tensor x = matrix(s->x, tokens, NET_WIDTH);
    mstar_tensor words = matrix((void *)(uintptr_t)weights->words, NET_WORDS, NET_WIDTH);
    mstar_tensor pooled = matrix(s->pooled, segments, NET_WIDTH);
    const mstar_tensor *tables[] = {&words};
    const int32_t *ids[] = {s->ids};
    MST_TRY(mstar_stream_set_rows(stream, s->graph ? s->self_info.token_counter : NULL));
    MST_TRY(mstar_embedding(stream, tables, ids, 1, &x));
    MST_TRY(self_layer(weights, s, stream, tokens, 0));
    MST_TRY(cross_layer(weights, s, stream, tokens, num_keys));
    MST_TRY(self_layer(weights, s, stream, tokens, 1));
    MST_TRY(mstar_stream_set_rows(stream, s->graph ? s->self_info.segment_counter : NULL));
    MST_TRY(mstar_pooling_run(stream, MSTAR_POOLING_MEAN, &x, offsets, segments, NULL, &pooled));
    MST_TRY(mstar_normalize(stream, &pooled, &pooled));
    return mstar_stream_set_rows(stream, NULL);
}

static void compare_rows(const float (*got)[NET_WIDTH], const float (*want)[NET_WIDTH],
                         int64_t rows, const char *what, const char *which)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < NET_WIDTH; j++) {
            if (!isfinite(want[i][j]) || memcmp(&got[i][j], &want[i][j], sizeof(float)) != 0)
                fail_msg("%s: %s[%lld][%lld] is %a instead of %a", what, which, (long long)i,
                         (long long)j, (double)got[i][j], (double)want[i][j]);
        }
    }
}

void net_compare(const net_state *got, const net_state *want, const net_step *step,
                 const char *what)
{
    compare_rows(got->x, want->x, step->offsets[step->num_segments], what, "x");
    compare_rows(got->pooled, want->pooled, step->num_segments, what, "pooled");
}
