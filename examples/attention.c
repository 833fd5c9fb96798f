/*
 * attention.c - ragged self attention, straight on a fused query-key-value projection.
 *
 * Five requests of different lengths, one of them empty, lie packed end to end. The layout is
 * planned once, and run once a layer. At the end one request is computed alone: its rows have the
 * same bits as in the batch.
 */
#include <mstar.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 3, SEGMENTS = 5, HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64, TOKENS = 63 };
enum { FUSED = (HEADS + 2 * KV_HEADS) * HEAD_DIM };

static float qkv[LAYERS][TOKENS][FUSED];
static float out[LAYERS][TOKENS][HEADS][HEAD_DIM];
static float alone[TOKENS][HEADS][HEAD_DIM];

/* The three views of rows [begin, begin + rows) of a fused projection: no copy is made. */
static mstar_status split(float *fused, int64_t begin, int64_t rows, mstar_tensor *q,
                          mstar_tensor *k, mstar_tensor *v)
{
    const int64_t shape[] = {rows, HEADS + 2 * KV_HEADS, HEAD_DIM};
    const mstar_tensor heads = mstar_tensor_make(fused + begin * FUSED, MSTAR_DTYPE_F32, 3, shape);
    mstar_status status = mstar_tensor_slice(&heads, 1, 0, HEADS, q);
    if (status == MSTAR_OK)
        status = mstar_tensor_slice(&heads, 1, HEADS, KV_HEADS, k);
    if (status == MSTAR_OK)
        status = mstar_tensor_slice(&heads, 1, HEADS + KV_HEADS, KV_HEADS, v);
    return status;
}

static mstar_status run(mstar_ragged_prefill *wrapper, mstar_stream *stream, float *fused,
                        int64_t begin, int64_t rows, float *result)
{
    const int64_t shape[] = {rows, HEADS, HEAD_DIM};
    const mstar_tensor to = mstar_tensor_make(result, MSTAR_DTYPE_F32, 3, shape);
    mstar_tensor q, k, v;
    mstar_status status = split(fused, begin, rows, &q, &k, &v);
    if (status == MSTAR_OK)
        status = mstar_ragged_prefill_run(wrapper, stream, &q, &k, &v, &to, NULL);
    return status;
}

static mstar_status demonstrate(mstar_ragged_prefill *wrapper, mstar_stream *stream)
{
    /* requests of 5, 0, 17, 1 and 40 tokens */
    const int32_t cu_seqlens[SEGMENTS + 1] = {0, 5, 5, 22, 23, TOKENS};
    mstar_status status = mstar_ragged_prefill_plan(wrapper, stream, cu_seqlens, SEGMENTS, 1);
    for (int layer = 0; status == MSTAR_OK && layer < LAYERS; layer++)
        status = run(wrapper, stream, &qkv[layer][0][0], 0, TOKENS, &out[layer][0][0][0]);
    if (status == MSTAR_OK)
        status = mstar_stream_synchronize(stream);
    if (status != MSTAR_OK)
        return status;

    /* the third request alone, in the last layer */
    const int32_t one[] = {0, 17};
    status = mstar_ragged_prefill_plan(wrapper, stream, one, 1, 1);
    if (status == MSTAR_OK)
        status = run(wrapper, stream, &qkv[LAYERS - 1][0][0], 5, 17, &alone[0][0][0]);
    if (status == MSTAR_OK)
        status = mstar_stream_synchronize(stream);
    return status;
}

int main(void)
{
    uint32_t state = 1; /* any numbers do */
    for (size_t i = 0; i < sizeof qkv / sizeof(float); i++) {
        state = state * 1664525u + 1013904223u;
        ((float *)qkv)[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
    }

    mstar_device *device = NULL;
    mstar_stream *stream = NULL;
    mstar_ragged_prefill *wrapper = NULL;
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = HEADS;
    desc.num_kv_heads = KV_HEADS;
    desc.head_dim = HEAD_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};

    mstar_status status = mstar_device_open("cpu", NULL, &device);
    if (status == MSTAR_OK)
        status = mstar_stream_create(device, -1, &stream);
    if (status == MSTAR_OK)
        status = mstar_ragged_prefill_create(device, &desc, NULL, 0, &wrapper);
    if (status == MSTAR_OK)
        status = demonstrate(wrapper, stream);
    if (status == MSTAR_OK)
        status = mstar_ragged_prefill_query(wrapper, &info);

    int failed = status != MSTAR_OK;
    if (failed) {
        fprintf(stderr, "attention: %s: %s\n", mstar_status_text(status), mstar_last_error());
    } else {
        const int same = memcmp(alone, out[LAYERS - 1][5], 17 * sizeof alone[0]) == 0;
        printf("%s (%s), %zu bytes of workspace, %lld plans\n", info.kernel, info.kernel_reason,
               info.workspace_bytes, (long long)info.plans);
        for (int layer = 0; layer < LAYERS; layer++)
            printf("layer %d: last row of request 4, head 0: %9.6f %9.6f %9.6f ...\n", layer,
                   (double)out[layer][TOKENS - 1][0][0], (double)out[layer][TOKENS - 1][0][1],
                   (double)out[layer][TOKENS - 1][0][2]);
        printf("request 2 alone: %s\n", same ? "the same bits" : "OTHER BITS");
        failed = !same;
    }
    mstar_ragged_prefill_destroy(wrapper);
    mstar_stream_destroy(stream);
    if (device != NULL && mstar_device_close(device) != MSTAR_OK)
        failed = 1;
    return failed;
}
