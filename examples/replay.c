/*
 * replay.c - a forward recorded once and replayed for batches of any layout.
 *
 * Everything static is sized for the largest batch. The forward is written once: with live row
 * counts set on the stream it works on the rows of the plan in force, whether it runs now or is
 * recorded. A step is then: write ids, plan, replay. The vectors are those of the same calls on
 * tensors of exactly the batch's size, bit for bit.
 */
#include <mstar.h>
#include <stdio.h>
#include <string.h>

#define TRY(call)                    \
    do {                             \
        mstar_status status_ = call; \
        if (status_ != MSTAR_OK)     \
            return status_;          \
    } while (0)

enum {
    WORDS = 100,
    HEADS = 4,
    HEAD_DIM = 8,
    WIDTH = HEADS * HEAD_DIM,
    MAX_TEXTS = 8,
    MAX_TOKENS = 64
};

typedef struct net {
    mstar_stream *stream;
    mstar_linear *qkv, *out;
    mstar_ragged_prefill *attention;
    mstar_ragged_prefill_info info;
    int32_t ids[MAX_TOKENS]; /* written before each step */
    float x[MAX_TOKENS][WIDTH], qkv_rows[MAX_TOKENS][3 * WIDTH], context[MAX_TOKENS][WIDTH];
    float vectors[MAX_TEXTS][WIDTH];
} net;

static float words[WORDS][WIDTH], qkv_weight[3 * WIDTH][WIDTH], out_weight[WIDTH][WIDTH];

static mstar_tensor rows(void *data, int64_t count, int64_t width)
{
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 2, (const int64_t[]){count, width});
}

/* texts and tokens: the ceilings under live row counts, or a batch's exact sizes. */
static mstar_status forward(net *n, int64_t texts, int64_t tokens, const int32_t *offsets)
{
    mstar_tensor table = rows(words, WORDS, WIDTH), x = rows(n->x, tokens, WIDTH);
    mstar_tensor qkv = rows(n->qkv_rows, tokens, 3 * WIDTH);
    mstar_tensor context = rows(n->context, tokens, WIDTH);
    mstar_tensor vectors = rows(n->vectors, texts, WIDTH), heads, part[3];
    const mstar_tensor *tables[] = {&table};
    const int32_t *ids[] = {n->ids};
    for (int i = 0; i < 3; i++) {
        TRY(mstar_tensor_slice(&qkv, 1, i * WIDTH, WIDTH, &part[i]));
        TRY(mstar_tensor_split_dim(&part[i], 1, HEADS, HEAD_DIM, &part[i]));
    }
    TRY(mstar_tensor_split_dim(&context, 1, HEADS, HEAD_DIM, &heads));
    TRY(mstar_stream_set_rows(n->stream, n->info.token_counter));
    TRY(mstar_embedding(n->stream, tables, ids, 1, &x));
    TRY(mstar_linear_run(n->qkv, n->stream, &x, NULL, &qkv));
    TRY(mstar_ragged_prefill_run(n->attention, n->stream, &part[0], &part[1], &part[2], &heads,
                                 NULL));
    TRY(mstar_linear_run(n->out, n->stream, &context, &x, &x));
    TRY(mstar_stream_set_rows(n->stream, n->info.segment_counter));
    TRY(mstar_pooling_run(n->stream, MSTAR_POOLING_MEAN, &x, offsets, texts, NULL, &vectors));
    TRY(mstar_normalize(n->stream, &vectors, &vectors));
    return mstar_stream_set_rows(n->stream, NULL);
}

static mstar_status open_net(net *n, mstar_device *device, int graph_mode)
{
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = HEADS;
    desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    if (graph_mode) {
        desc.accelerator_graph = 1;
        desc.max_num_segments = MAX_TEXTS;
        desc.max_total_tokens = MAX_TOKENS;
    }
    const mstar_tensor qkv = rows(qkv_weight, 3 * WIDTH, WIDTH);
    const mstar_tensor out = rows(out_weight, WIDTH, WIDTH);
    const mstar_tensor *qkv_parts[] = {&qkv}, *out_parts[] = {&out};
    TRY(mstar_stream_create(device, -1, &n->stream));
    TRY(mstar_linear_create(device, NULL, qkv_parts, NULL, 1, &n->qkv));
    TRY(mstar_linear_create(device, NULL, out_parts, NULL, 1, &n->out));
    TRY(mstar_ragged_prefill_create(device, &desc, NULL, 0, &n->attention));
    n->info.struct_size = sizeof n->info;
    return mstar_ragged_prefill_query(n->attention, &n->info);
}

static void close_net(net *n)
{
    mstar_ragged_prefill_destroy(n->attention);
    mstar_linear_destroy(n->qkv);
    mstar_linear_destroy(n->out);
    mstar_stream_destroy(n->stream);
}

static const struct {
    int64_t texts;
    int32_t offsets[MAX_TEXTS + 1];
} batches[] = {{1, {0, 3}}, {8, {0, 8, 16, 24, 32, 40, 48, 56, 64}}, {3, {0, 20, 20, 33}}};

/* One batch through the graph and through plain calls; *same: equal bits. */
static mstar_status one_step(net *recorded, mstar_graph *graph, net *plain, int which, int *same)
{
    const int64_t texts = batches[which].texts;
    const int32_t *offsets = batches[which].offsets;
    const int64_t tokens = offsets[texts];
    for (int64_t i = 0; i < tokens; i++)
        recorded->ids[i] = plain->ids[i] = (int32_t)((i * 7 + which) % WORDS);

    TRY(mstar_ragged_prefill_plan(recorded->attention, recorded->stream, offsets, texts, 0));
    TRY(mstar_graph_replay(graph, recorded->stream));

    TRY(mstar_ragged_prefill_plan(plain->attention, plain->stream, offsets, texts, 0));
    TRY(forward(plain, texts, tokens, offsets));
    *same =
        memcmp(recorded->vectors, plain->vectors, (size_t)texts * sizeof plain->vectors[0]) == 0;
    return MSTAR_OK;
}

static mstar_status run(net *recorded, net *plain, mstar_graph **graph, int *good)
{
    TRY(mstar_graph_capture_begin(recorded->stream));
    mstar_status status = forward(recorded, MAX_TEXTS, MAX_TOKENS, recorded->info.q_offsets);
    if (status != MSTAR_OK) {
        mstar_graph_capture_abort(recorded->stream);
        return status;
    }
    TRY(mstar_graph_capture_end(recorded->stream, graph));

    mstar_graph_info info = {.struct_size = sizeof info};
    TRY(mstar_graph_query(*graph, &info));
    printf("recorded %lld launches in %lld waves, %zu bytes\n", (long long)info.nodes,
           (long long)info.waves, info.bytes);
    for (int i = 0; i < 3; i++) {
        int same = 0;
        TRY(one_step(recorded, *graph, plain, i, &same));
        printf("%lld texts, %2d tokens: %s\n", (long long)batches[i].texts,
               batches[i].offsets[batches[i].texts], same ? "bits of plain calls" : "OTHER BITS");
        *good = *good && same;
    }
    return MSTAR_OK;
}

static void fill(float *values, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = ((float)(seed >> 8) / (float)(1 << 23) - 1.0f) * 0.3f;
    }
}

int main(void)
{
    static net recorded, plain;
    mstar_device *device = NULL;
    mstar_graph *graph = NULL;
    int good = 1;
    fill(&words[0][0], sizeof words / sizeof(float), 1);
    fill(&qkv_weight[0][0], sizeof qkv_weight / sizeof(float), 2);
    fill(&out_weight[0][0], sizeof out_weight / sizeof(float), 3);

    mstar_status status = mstar_device_open("cpu", NULL, &device);
    if (status == MSTAR_OK)
        status = open_net(&recorded, device, 1);
    if (status == MSTAR_OK)
        status = open_net(&plain, device, 0);
    if (status == MSTAR_OK)
        status = run(&recorded, &plain, &graph, &good);
    if (status != MSTAR_OK)
        fprintf(stderr, "replay: %s: %s\n", mstar_status_text(status), mstar_last_error());
    mstar_graph_destroy(graph);
    close_net(&recorded);
    close_net(&plain);
    if (device != NULL && mstar_device_close(device) != MSTAR_OK)
        good = 0;
    return status == MSTAR_OK && good ? 0 : 1;
}
