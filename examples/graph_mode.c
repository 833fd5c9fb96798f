/*
 * graph_mode.c - one wrapper under fixed ceilings, planned again for each step.
 *
 * Graph mode is for hosts that record a step once and replay it: everything that a recording could
 * hold (offsets, workspace, plan memory) keeps its address, any layout under the ceilings is a plan
 * away, and rows past the plan come out as exact zeros. The results are those of eager mode, bit
 * for bit.
 */
#include <mstar.h>
#include <stdio.h>
#include <string.h>

enum { HEADS = 4, HEAD_DIM = 32, MAX_SEGMENTS = 6, MAX_TOKENS = 48, STEPS = 3 };

/* Static buffers of the ceilings' size, as a recorded step has them. */
static float q[MAX_TOKENS][HEADS][HEAD_DIM], k[MAX_TOKENS][HEADS][HEAD_DIM],
    v[MAX_TOKENS][HEADS][HEAD_DIM];
static float graph_out[MAX_TOKENS][HEADS][HEAD_DIM], eager_out[MAX_TOKENS][HEADS][HEAD_DIM];

typedef struct step {
    int64_t num_segments;
    int32_t cu_seqlens[MAX_SEGMENTS + 1];
} step;

static const step steps[STEPS] = {
    {3, {0, 10, 20, 30}},
    {6, {0, 1, 2, 3, 4, 5, 48}},
    {2, {0, 0, 7}},
};

static void fill(float *values, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
    }
}

static mstar_status run(mstar_ragged_prefill *wrapper, mstar_stream *stream, float *result)
{
    const int64_t shape[] = {MAX_TOKENS, HEADS, HEAD_DIM};
    const mstar_tensor tq = mstar_tensor_make(q, MSTAR_DTYPE_F32, 3, shape);
    const mstar_tensor tk = mstar_tensor_make(k, MSTAR_DTYPE_F32, 3, shape);
    const mstar_tensor tv = mstar_tensor_make(v, MSTAR_DTYPE_F32, 3, shape);
    const mstar_tensor to = mstar_tensor_make(result, MSTAR_DTYPE_F32, 3, shape);
    mstar_status status = mstar_ragged_prefill_run(wrapper, stream, &tq, &tk, &tv, &to, NULL);
    return status == MSTAR_OK ? mstar_stream_synchronize(stream) : status;
}

/* Whether every row from the plan's end on is exactly zero. */
static int tail_is_zero(int32_t tokens)
{
    for (int32_t t = tokens; t < MAX_TOKENS; t++)
        for (int32_t i = 0; i < HEADS; i++)
            for (int32_t j = 0; j < HEAD_DIM; j++)
                if (!(graph_out[t][i][j] == 0.0f))
                    return 0;
    return 1;
}

static mstar_status take_steps(mstar_ragged_prefill *graph, mstar_ragged_prefill *eager,
                               mstar_stream *stream, int *good)
{
    mstar_ragged_prefill_info first = {.struct_size = sizeof first};
    mstar_status status = mstar_ragged_prefill_query(graph, &first);
    for (int i = 0; status == MSTAR_OK && i < STEPS; i++) {
        const int64_t segments = steps[i].num_segments;
        const int32_t *offsets = steps[i].cu_seqlens;
        const int32_t tokens = offsets[segments];
        memset(graph_out, 0xff, sizeof graph_out); /* NaN: nothing of it may be left */
        status = mstar_ragged_prefill_plan(graph, stream, offsets, segments, 0);
        if (status == MSTAR_OK)
            status = run(graph, stream, &graph_out[0][0][0]);
        if (status == MSTAR_OK)
            status = mstar_ragged_prefill_plan(eager, stream, offsets, segments, 0);
        if (status == MSTAR_OK)
            status = run(eager, stream, &eager_out[0][0][0]);
        mstar_ragged_prefill_info now = {.struct_size = sizeof now};
        if (status == MSTAR_OK)
            status = mstar_ragged_prefill_query(graph, &now);
        if (status != MSTAR_OK)
            break;
        const int same = memcmp(graph_out, eager_out, (size_t)tokens * sizeof q[0]) == 0;
        const int fixed = now.q_offsets == first.q_offsets;
        const int zero = tail_is_zero(tokens);
        printf("step %d: %lld segments, %2d tokens: %s, offsets %s, tail %s\n", i,
               (long long)now.num_segments, tokens, same ? "bits of eager mode" : "OTHER BITS",
               fixed ? "where they were" : "MOVED", zero ? "zero" : "NOT ZERO");
        *good = *good && same && fixed && zero;
    }
    if (status != MSTAR_OK)
        return status;

    /* A layout over a ceiling is refused, and the former plan stays in force. */
    const int32_t over[] = {0, MAX_TOKENS + 1};
    if (mstar_ragged_prefill_plan(graph, stream, over, 1, 0) != MSTAR_INVALID_ARGUMENT)
        return MSTAR_INTERNAL;
    printf("refused: %s\n", mstar_last_error());
    return run(graph, stream, &graph_out[0][0][0]);
}

int main(void)
{
    fill(&q[0][0][0], sizeof q / sizeof(float), 1);
    fill(&k[0][0][0], sizeof k / sizeof(float), 2);
    fill(&v[0][0][0], sizeof v / sizeof(float), 3);

    mstar_device *device = NULL;
    mstar_stream *stream = NULL;
    mstar_ragged_prefill *graph = NULL, *eager = NULL;
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = HEADS;
    desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;

    mstar_status status = mstar_device_open("cpu", NULL, &device);
    if (status == MSTAR_OK)
        status = mstar_stream_create(device, -1, &stream);
    if (status == MSTAR_OK)
        status = mstar_ragged_prefill_create(device, &desc, NULL, 0, &eager);
    desc.accelerator_graph = 1;
    desc.max_num_segments = MAX_SEGMENTS;
    desc.max_total_tokens = MAX_TOKENS;
    if (status == MSTAR_OK)
        status = mstar_ragged_prefill_create(device, &desc, NULL, 0, &graph);

    int good = 1;
    if (status == MSTAR_OK)
        status = take_steps(graph, eager, stream, &good);
    if (status != MSTAR_OK)
        fprintf(stderr, "graph_mode: %s: %s\n", mstar_status_text(status), mstar_last_error());
    mstar_ragged_prefill_destroy(graph);
    mstar_ragged_prefill_destroy(eager);
    mstar_stream_destroy(stream);
    if (device != NULL && mstar_device_close(device) != MSTAR_OK)
        good = 0;
    return status == MSTAR_OK && good ? 0 : 1;
}
