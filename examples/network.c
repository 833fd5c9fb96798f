/*
 * network.c - an engine author's own encoder, built from the ops and a wrapper, no model layer.
 *
 * Two pre-norm layers over packed tokens: RMS norm, fused query-key-value projection, rotary
 * positions, causal grouped attention, SiLU feed-forward; then a layer norm, mean pooling and
 * normalising. The same network stands below as plain loops in f64, and the vectors are compared.
 */
#include <float.h>
#include <math.h>
#include <mstar.h>
#include <stdio.h>
#include <string.h>

enum {
    VOCAB = 50,
    WIDTH = 64,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 16,
    FUSED = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    INNER = 96,
    LAYERS = 2,
    MAX_TOKENS = 64,
    SEGMENTS = 4
};
static const double theta = 10000.0, eps = 1e-6;

/* ---- weights: any numbers do ----------------------------------------------------------------- */

typedef struct layer_weights {
    float norm1[WIDTH], norm2[WIDTH];
    float q[HEADS * HEAD_DIM][WIDTH], k[KV_HEADS * HEAD_DIM][WIDTH], v[KV_HEADS * HEAD_DIM][WIDTH];
    float o[WIDTH][HEADS * HEAD_DIM];
    float up[INNER][WIDTH], up_bias[INNER];
    float down[WIDTH][INNER], down_bias[WIDTH];
} layer_weights;

static float embedding[VOCAB][WIDTH];
static layer_weights layers[LAYERS];
static float last_norm[WIDTH], last_bias[WIDTH];

static uint32_t random_state = 7;
static void fill(void *memory, size_t bytes, float middle, float spread)
{
    float *values = memory;
    for (size_t i = 0; i < bytes / sizeof *values; i++) {
        random_state = random_state * 1664525u + 1013904223u;
        values[i] = middle + spread * ((float)(random_state >> 8) / (float)(1 << 23) - 1.0f);
    }
}

static void fill_weights(void)
{
    fill(embedding, sizeof embedding, 0, 1);
    for (int i = 0; i < LAYERS; i++) {
        fill(&layers[i], sizeof layers[i], 0, 0.2f);
        fill(layers[i].norm1, sizeof layers[i].norm1, 1, 0.2f);
        fill(layers[i].norm2, sizeof layers[i].norm2, 1, 0.2f);
    }
    fill(last_norm, sizeof last_norm, 1, 0.2f);
    fill(last_bias, sizeof last_bias, 0, 0.2f);
}

/* ---- the network on the library -------------------------------------------------------------- */

typedef struct network {
    mstar_device *device;
    mstar_stream *stream;
    mstar_ragged_prefill *attention; /* one plan a step serves all layers */
    mstar_linear *qkv[LAYERS], *o[LAYERS], *up[LAYERS], *down[LAYERS];
} network;

#define TRY(call)                         \
    do {                                  \
        mstar_status try_status = (call); \
        if (try_status != MSTAR_OK)       \
            return try_status;            \
    } while (0)

static mstar_tensor vector(float *data, int64_t size)
{
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 1, &size);
}

static mstar_tensor matrix(void *data, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    return mstar_tensor_make(data, MSTAR_DTYPE_F32, 2, shape);
}

/* Packs one weight; bias may be NULL. */
static mstar_status pack(network *net, void *weight, float *bias, int64_t rows, int64_t columns,
                         mstar_activation activation, mstar_linear **linear)
{
    const mstar_tensor w = matrix(weight, rows, columns), b = vector(bias, rows);
    const mstar_tensor *weights[] = {&w}, *biases[] = {&b};
    mstar_linear_desc desc;
    mstar_linear_desc_init(&desc);
    desc.activation = activation;
    return mstar_linear_create(net->device, &desc, weights, bias == NULL ? NULL : biases, 1,
                               linear);
}

static mstar_status network_open(network *net)
{
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = HEADS;
    desc.num_kv_heads = KV_HEADS;
    desc.head_dim = HEAD_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    TRY(mstar_device_open("cpu", NULL, &net->device));
    TRY(mstar_stream_create(net->device, -1, &net->stream));
    TRY(mstar_ragged_prefill_create(net->device, &desc, NULL, 0, &net->attention));
    for (int i = 0; i < LAYERS; i++) {
        layer_weights *w = &layers[i];
        /* three weights, one product */
        const mstar_tensor q = matrix(w->q, HEADS * HEAD_DIM, WIDTH);
        const mstar_tensor k = matrix(w->k, KV_HEADS * HEAD_DIM, WIDTH);
        const mstar_tensor v = matrix(w->v, KV_HEADS * HEAD_DIM, WIDTH);
        const mstar_tensor *parts[] = {&q, &k, &v};
        TRY(mstar_linear_create(net->device, NULL, parts, NULL, 3, &net->qkv[i]));
        TRY(pack(net, w->o, NULL, WIDTH, HEADS * HEAD_DIM, MSTAR_ACTIVATION_NONE, &net->o[i]));
        TRY(pack(net, w->up, w->up_bias, INNER, WIDTH, MSTAR_ACTIVATION_SILU, &net->up[i]));
        TRY(pack(net, w->down, w->down_bias, WIDTH, INNER, MSTAR_ACTIVATION_NONE, &net->down[i]));
    }
    return MSTAR_OK;
}

static mstar_status network_close(network *net)
{
    for (int i = 0; i < LAYERS; i++) {
        mstar_linear_destroy(net->qkv[i]);
        mstar_linear_destroy(net->o[i]);
        mstar_linear_destroy(net->up[i]);
        mstar_linear_destroy(net->down[i]);
    }
    mstar_ragged_prefill_destroy(net->attention);
    mstar_stream_destroy(net->stream);
    return net->device == NULL ? MSTAR_OK : mstar_device_close(net->device);
}

/* Activations of the largest step; a step uses the first rows. */
static float x[MAX_TOKENS][WIDTH], h[MAX_TOKENS][WIDTH], fused[MAX_TOKENS][FUSED],
    mixed[MAX_TOKENS][HEADS * HEAD_DIM], inner[MAX_TOKENS][INNER];

static mstar_status layer_forward(network *net, int i, int64_t tokens, const int32_t *positions)
{
    const mstar_tensor tx = matrix(x, tokens, WIDTH), th = matrix(h, tokens, WIDTH);
    const mstar_tensor tfused = matrix(fused, tokens, FUSED);
    const mstar_tensor tmixed = matrix(mixed, tokens, HEADS * HEAD_DIM);
    const mstar_tensor tinner = matrix(inner, tokens, INNER);
    const mstar_tensor norm1 = vector(layers[i].norm1, WIDTH);
    const mstar_tensor norm2 = vector(layers[i].norm2, WIDTH);

    /* q, k, v and the attention's output as [T, heads, head_dim] views of the same memory */
    mstar_tensor heads, q, k, v, out;
    TRY(mstar_tensor_split_dim(&tfused, 1, HEADS + 2 * KV_HEADS, HEAD_DIM, &heads));
    TRY(mstar_tensor_slice(&heads, 1, 0, HEADS, &q));
    TRY(mstar_tensor_slice(&heads, 1, HEADS, KV_HEADS, &k));
    TRY(mstar_tensor_slice(&heads, 1, HEADS + KV_HEADS, KV_HEADS, &v));
    TRY(mstar_tensor_split_dim(&tmixed, 1, HEADS, HEAD_DIM, &out));

    TRY(mstar_rms_norm(net->stream, &tx, NULL, &norm1, eps, &th));
    TRY(mstar_linear_run(net->qkv[i], net->stream, &th, NULL, &tfused));
    TRY(mstar_rotary(net->stream, &q, positions, theta, HEAD_DIM, 0, &q));
    TRY(mstar_rotary(net->stream, &k, positions, theta, HEAD_DIM, 0, &k));
    TRY(mstar_ragged_prefill_run(net->attention, net->stream, &q, &k, &v, &out, NULL));
    TRY(mstar_linear_run(net->o[i], net->stream, &tmixed, &tx, &tx)); /* residual in place */

    TRY(mstar_rms_norm(net->stream, &tx, NULL, &norm2, eps, &th));
    TRY(mstar_linear_run(net->up[i], net->stream, &th, NULL, &tinner));
    return mstar_linear_run(net->down[i], net->stream, &tinner, &tx, &tx);
}

/* One step: token ids of all segments, packed, to one vector a segment. */
static mstar_status forward(network *net, const int32_t *ids, const int32_t *cu_seqlens,
                            int64_t num_segments, float *vectors)
{
    const int32_t tokens = cu_seqlens[num_segments];
    int32_t positions[MAX_TOKENS];
    for (int64_t s = 0; s < num_segments; s++)
        for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++)
            positions[t] = t - cu_seqlens[s];

    const mstar_tensor table = matrix(embedding, VOCAB, WIDTH), tx = matrix(x, tokens, WIDTH);
    const mstar_tensor to = matrix(vectors, num_segments, WIDTH);
    const mstar_tensor norm = vector(last_norm, WIDTH), bias = vector(last_bias, WIDTH);
    const mstar_tensor *tables[] = {&table};
    TRY(mstar_ragged_prefill_plan(net->attention, net->stream, cu_seqlens, num_segments, 1));
    TRY(mstar_embedding(net->stream, tables, &ids, 1, &tx));
    for (int i = 0; i < LAYERS; i++)
        TRY(layer_forward(net, i, tokens, positions));
    TRY(mstar_layer_norm(net->stream, &tx, NULL, &norm, &bias, eps, &tx));
    TRY(mstar_pooling_run(net->stream, MSTAR_POOLING_MEAN, &tx, cu_seqlens, num_segments, NULL,
                          &to));
    TRY(mstar_normalize(net->stream, &to, &to));
    return mstar_stream_synchronize(net->stream);
}

/* ---- the same network as plain loops in f64, one segment at a time --------------------------- */

static void product(const double *in, const float *weight, const float *bias, int rows, int columns,
                    double *out)
{
    for (int r = 0; r < rows; r++) {
        out[r] = bias == NULL ? 0 : (double)bias[r];
        for (int c = 0; c < columns; c++)
            out[r] += (double)weight[r * columns + c] * in[c];
    }
}

static void rms(const double *in, const float *weight, double *out)
{
    double square = 0;
    for (int i = 0; i < WIDTH; i++)
        square += in[i] * in[i];
    for (int i = 0; i < WIDTH; i++)
        out[i] = in[i] / sqrt(square / WIDTH + eps) * (double)weight[i];
}

static void rotate(double *head, int position)
{
    for (int i = 0; i < HEAD_DIM / 2; i++) {
        const double angle = position * pow(theta, -2.0 * i / HEAD_DIM);
        const double a = head[i], b = head[i + HEAD_DIM / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + HEAD_DIM / 2] = b * cos(angle) + a * sin(angle);
    }
}

static double ry[MAX_TOKENS][WIDTH], rfused[MAX_TOKENS][FUSED];

static void reference_attention(int t, double *out)
{
    for (int head = 0; head < HEADS; head++) {
        const int kv_head = head / (HEADS / KV_HEADS);
        const double *q = &rfused[t][head * HEAD_DIM];
        double score[MAX_TOKENS], largest = -INFINITY, sum = 0;
        for (int j = 0; j <= t; j++) {
            const double *k = &rfused[j][(HEADS + kv_head) * HEAD_DIM];
            score[j] = 0;
            for (int d = 0; d < HEAD_DIM; d++)
                score[j] += q[d] * k[d] / sqrt((double)HEAD_DIM);
            largest = fmax(largest, score[j]);
        }
        memset(out + head * HEAD_DIM, 0, HEAD_DIM * sizeof *out);
        for (int j = 0; j <= t; j++)
            sum += exp(score[j] - largest);
        for (int j = 0; j <= t; j++) {
            const double *v = &rfused[j][(HEADS + KV_HEADS + kv_head) * HEAD_DIM];
            for (int d = 0; d < HEAD_DIM; d++)
                out[head * HEAD_DIM + d] += exp(score[j] - largest) / sum * v[d];
        }
    }
}

static void reference_layer(const layer_weights *w, int tokens)
{
    double normed[WIDTH], mix[HEADS * HEAD_DIM], add[WIDTH], wide[INNER];
    for (int t = 0; t < tokens; t++) {
        rms(ry[t], w->norm1, normed);
        product(normed, &w->q[0][0], NULL, HEADS * HEAD_DIM, WIDTH, rfused[t]);
        product(normed, &w->k[0][0], NULL, KV_HEADS * HEAD_DIM, WIDTH,
                rfused[t] + HEADS * HEAD_DIM);
        product(normed, &w->v[0][0], NULL, KV_HEADS * HEAD_DIM, WIDTH,
                rfused[t] + (HEADS + KV_HEADS) * HEAD_DIM);
        for (int head = 0; head < HEADS + KV_HEADS; head++)
            rotate(&rfused[t][head * HEAD_DIM], t);
    }
    for (int t = 0; t < tokens; t++) {
        reference_attention(t, mix);
        product(mix, &w->o[0][0], NULL, WIDTH, HEADS * HEAD_DIM, add);
        for (int i = 0; i < WIDTH; i++)
            ry[t][i] += add[i];
        rms(ry[t], w->norm2, normed);
        product(normed, &w->up[0][0], w->up_bias, INNER, WIDTH, wide);
        for (int i = 0; i < INNER; i++)
            wide[i] /= 1 + exp(-wide[i]);
        product(wide, &w->down[0][0], w->down_bias, WIDTH, INNER, add);
        for (int i = 0; i < WIDTH; i++)
            ry[t][i] += add[i];
    }
}

static void reference(const int32_t *ids, int tokens, double *vector)
{
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < WIDTH; i++)
            ry[t][i] = (double)embedding[ids[t]][i];
    for (int i = 0; i < LAYERS; i++)
        reference_layer(&layers[i], tokens);
    memset(vector, 0, WIDTH * sizeof *vector);
    for (int t = 0; t < tokens; t++) {
        double mean = 0, variance = 0;
        for (int i = 0; i < WIDTH; i++)
            mean += ry[t][i] / WIDTH;
        for (int i = 0; i < WIDTH; i++)
            variance += (ry[t][i] - mean) * (ry[t][i] - mean) / WIDTH;
        for (int i = 0; i < WIDTH; i++)
            vector[i] += ((ry[t][i] - mean) / sqrt(variance + eps) * (double)last_norm[i] +
                          (double)last_bias[i]) /
                         tokens;
    }
    double length = 0;
    for (int i = 0; i < WIDTH; i++)
        length += vector[i] * vector[i];
    for (int i = 0; i < WIDTH; i++)
        vector[i] /= sqrt(length);
}

/* ---- both, compared -------------------------------------------------------------------------- */

static int compare(const float *vectors, const int32_t *ids, const int32_t *cu_seqlens)
{
    /* each rounding is half an epsilon; a layer chains four products of at most INNER terms */
    const double tolerance = FLT_EPSILON * INNER * (4 * LAYERS);
    int good = 1;
    for (int s = 0; s < SEGMENTS; s++) {
        const float *got = vectors + s * WIDTH;
        const int tokens = cu_seqlens[s + 1] - cu_seqlens[s];
        double want[WIDTH], largest = 0;
        reference(ids + cu_seqlens[s], tokens, want);
        for (int i = 0; i < WIDTH; i++) {
            const double error = fabs((double)got[i] - want[i]);
            if (!(error <= tolerance))
                good = 0;
            largest = fmax(largest, error);
        }
        printf("segment %d, %2d tokens: %8.5f %8.5f %8.5f ...  largest difference %.1e of %.1e\n",
               s, tokens, (double)got[0], (double)got[1], (double)got[2], largest, tolerance);
    }
    return good;
}

int main(void)
{
    const int32_t cu_seqlens[SEGMENTS + 1] = {0, 1, 9, 42, MAX_TOKENS};
    int32_t ids[MAX_TOKENS];
    for (int32_t t = 0; t < MAX_TOKENS; t++)
        ids[t] = t * 17 % VOCAB;
    fill_weights();

    network net = {0};
    float vectors[SEGMENTS * WIDTH];
    mstar_status status = network_open(&net);
    if (status == MSTAR_OK)
        status = forward(&net, ids, cu_seqlens, SEGMENTS, vectors);
    if (status != MSTAR_OK)
        fprintf(stderr, "network: %s: %s\n", mstar_status_text(status), mstar_last_error());
    const int good = status == MSTAR_OK && compare(vectors, ids, cu_seqlens);
    return network_close(&net) == MSTAR_OK && good ? 0 : 1;
}
