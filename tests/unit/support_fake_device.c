/* support_fake_device.c - see the header. */
#include "support_fake_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static fake_device *fake_of(const mstar_device *device)
{
    return device->impl;
}

static mstar_status fake_memory_alloc(mstar_device *device, size_t bytes, void **memory)
{
    MST_TRY(mst_alloc_zero(bytes, "fake device memory", memory));
    fake_of(device)->live_memory++;
    return MSTAR_OK;
}

static void fake_memory_free(mstar_device *device, void *memory)
{
    fake_of(device)->live_memory--;
    mst_free(memory);
}

static mstar_status fake_stream_open(mstar_stream *stream)
{
    (void)stream;
    return MSTAR_OK;
}

static void fake_stream_close(mstar_stream *stream)
{
    (void)stream;
}

static void fake_attn_kernel(const mstar_device *device, const mst_attn_shape *shape,
                             const char **symbol, const char **reason)
{
    (void)device;
    *symbol = shape->reference ? "fake_reference" : "fake_attention";
    *reason = "there is no other";
}

static size_t fake_attn_scratch_bytes(const mstar_device *device, const mst_attn_shape *shape)
{
    (void)shape;
    return fake_of(device)->scratch_bytes;
}

static mst_attn_tile fake_attn_tile(const mstar_device *device, const mst_attn_shape *shape,
                                    int64_t lq, int64_t lk)
{
    const fake_device *fake = fake_of(device);
    (void)shape;
    if (!fake->vary)
        return fake->tile;
    return (mst_attn_tile){(int32_t)(1 + (lq * 7 + lk * 3) % 9), (int32_t)(1 + (lq + lk) % 3)};
}

static mst_attn_tile fake_attn_worst_tile(const mstar_device *device, const mst_attn_shape *shape)
{
    (void)shape;
    return fake_of(device)->worst;
}

static int64_t fake_attn_near_tokens(const mstar_device *device, const mst_attn_shape *shape)
{
    (void)shape;
    return fake_of(device)->near_tokens;
}

static bool sees(const mst_attn_call *call, int64_t lq, int64_t lk, int64_t row, int64_t key)
{
    int64_t distance = key - (lk - lq + row); /* < 0: before the row's own place */
    return (!call->causal || distance <= 0) &&
           (call->shape->window_left < 0 || -distance <= call->shape->window_left) &&
           (call->shape->window_right < 0 || distance <= call->shape->window_right);
}

static void one_row(const mst_attn_call *call, const mst_attn_item *item, int64_t row, int32_t head,
                    double *weights)
{
    const mst_attn_shape *shape = call->shape;
    mstar_dtype dtype = shape->dtype;
    int64_t first_q = call->q_offsets[item->segment];
    int64_t first_k = call->kv_offsets[item->segment];
    int64_t lq = call->q_offsets[item->segment + 1] - first_q;
    int64_t lk = call->kv_offsets[item->segment + 1] - first_k;
    int32_t kv_head = head / (shape->num_qo_heads / shape->num_kv_heads);
    double max = -(double)INFINITY;
    double sum = 0.0;
    for (int64_t j = item->kv_begin; j < item->kv_end; j++) {
        double score = 0.0;
        if (!sees(call, lq, lk, row, j))
            continue;
        for (int64_t d = 0; d < shape->head_dim; d++)
            score += (double)mst_load_element(call->q, dtype,
                                              (first_q + row) * call->q_row_stride +
                                                  head * call->q_head_stride + d) *
                     (double)mst_load_element(call->k, dtype,
                                              (first_k + j) * call->k_row_stride +
                                                  kv_head * call->k_head_stride + d);
        weights[j] = score * (double)shape->sm_scale;
        max = fmax(max, weights[j]);
    }
    for (int64_t j = item->kv_begin; j < item->kv_end; j++) {
        weights[j] = sees(call, lq, lk, row, j) ? exp(weights[j] - max) : 0.0;
        sum += weights[j];
    }
    for (int64_t d = 0; d < shape->head_dim; d++) {
        double value = 0.0;
        for (int64_t j = item->kv_begin; j < item->kv_end; j++) {
            if (sees(call, lq, lk, row, j))
                value += weights[j] / sum *
                         (double)mst_load_element(call->v, dtype,
                                                  (first_k + j) * call->v_row_stride +
                                                      kv_head * call->v_head_stride + d);
        }
        mst_store_element(call->out, dtype,
                          (first_q + row) * call->out_row_stride + head * call->out_head_stride + d,
                          (float)value);
    }
    if (call->lse != NULL)
        call->lse[(first_q + row) * call->lse_row_stride + head] = (float)(max + log(sum));
}

static mstar_status fake_attn_run(mstar_stream *stream, const mst_attn_call *call)
{
    fake_device *fake = fake_of(stream->device);
    const mst_attn_shape *shape = call->shape;
    int32_t group = shape->num_qo_heads / shape->num_kv_heads;
    fake->runs++;
    fake->last = *call;
    memset(call->scratch, 0x5a, fake->scratch_bytes);
    for (int64_t i = 0; i < call->num_items; i++) {
        const mst_attn_item *item = &call->items[i];
        double *weights = calloc((size_t)item->kv_end + 1, sizeof *weights);
        for (int64_t row = item->q_begin; row < item->q_begin + item->q_rows; row++) {
            for (int32_t head = item->kv_head_begin * group;
                 head < (item->kv_head_begin + item->num_kv_heads) * group; head++)
                one_row(call, item, row, head, weights);
        }
        free(weights);
    }
    for (int64_t row = call->zero_begin; row < call->zero_end; row++) {
        for (int32_t head = 0; head < shape->num_qo_heads; head++) {
            for (int64_t d = 0; d < shape->head_dim; d++)
                mst_store_element(call->out, shape->dtype,
                                  row * call->out_row_stride + head * call->out_head_stride + d,
                                  0.0F);
            if (call->lse != NULL)
                call->lse[row * call->lse_row_stride + head] = -INFINITY;
        }
    }
    return MSTAR_OK;
}

void fake_device_init(fake_device *fake)
{
    memset(fake, 0, sizeof *fake);
    fake->backend = (mst_backend){.name = "fake",
                                  .kind = MSTAR_DEVICE_CPU,
                                  .memory_alloc = fake_memory_alloc,
                                  .memory_free = fake_memory_free,
                                  .stream_open = fake_stream_open,
                                  .stream_close = fake_stream_close,
                                  .attn_kernel = fake_attn_kernel,
                                  .attn_scratch_bytes = fake_attn_scratch_bytes,
                                  .attn_tile = fake_attn_tile,
                                  .attn_worst_tile = fake_attn_worst_tile,
                                  .attn_near_tokens = fake_attn_near_tokens,
                                  .attn_run = fake_attn_run};
    fake->device.backend = &fake->backend;
    fake->device.num_threads = 1;
    fake->device.impl = fake;
    fake->tile = (mst_attn_tile){4, 1};
    fake->worst = (mst_attn_tile){1, 1};
    fake->near_tokens = INT64_MAX;
    fake->scratch_bytes = 256;
}
