/*
 * place.c - what of an encoder lies in its device's memory, where that is not the host's.
 *
 * Weights are built in host memory, as for a processor, and sent once. Ids, positions and offsets
 * stay on the host: operations take them from there.
 */
#include "model/encoder.h"

bool mst_place_is_host(const mstar_device *device)
{
    return mst_device_is_host(device);
}

int32_t mst_encoder_forwarders(const mstar_encoder *encoder)
{
    return mst_place_is_host(encoder->device) ? encoder->num_workers : 1;
}

mstar_tensor mst_place(const mstar_device *device, mstar_tensor tensor)
{
    tensor.device_kind = device->backend->kind;
    tensor.device_index = device->index;
    return tensor;
}

static mstar_status send(mstar_device *device, mstar_stream *stream, const void *host, size_t bytes,
                         mstar_buffer **buffer)
{
    MST_TRY(mstar_buffer_create(device, bytes, buffer));
    MST_TRY(mstar_buffer_upload(*buffer, stream, 0, host, bytes));
    return mstar_stream_synchronize(stream); /* the host's copy may go */
}

/* A norm's vectors move with the block that they are cut from. */
static void move_norm(const mstar_device *device, const mst_weights *weights, mst_norm *norm)
{
    mstar_tensor *const tensors[2] = {&norm->weight, &norm->bias};
    char *block = mstar_buffer_get_data(weights->placed[MST_PLACED_NORMS]);
    for (int i = 0; i < 2; i++) {
        tensors[i]->data = block + ((const char *)tensors[i]->data - (const char *)weights->norms);
        *tensors[i] = mst_place(device, *tensors[i]);
    }
}

static mstar_status place_all(mstar_device *device, mstar_stream *stream, size_t norm_bytes,
                              mst_weights *weights)
{
    mstar_tensor *const tables[3] = {&weights->words, &weights->positions, &weights->types};
    for (int i = 0; i < 3; i++) {
        size_t bytes = (size_t)(tables[i]->shape[0] * tables[i]->shape[1]) *
                       mstar_dtype_bytes(tables[i]->dtype);
        MST_TRY(send(device, stream, tables[i]->data, bytes, &weights->placed[i]));
        tables[i]->data = mstar_buffer_get_data(weights->placed[i]);
        *tables[i] = mst_place(device, *tables[i]);
        mst_free(weights->owned_tables[i]);
        weights->owned_tables[i] = NULL;
    }
    MST_TRY(send(device, stream, weights->norms, norm_bytes, &weights->placed[MST_PLACED_NORMS]));
    move_norm(device, weights, &weights->embedding_norm);
    for (int32_t i = 0; i < weights->num_layers; i++) {
        move_norm(device, weights, &weights->layers[i].attention_norm);
        move_norm(device, weights, &weights->layers[i].out_norm);
    }
    mst_free(weights->norms);
    weights->norms = NULL;
    return MSTAR_OK;
}

mstar_status mst_weights_place(mstar_device *device, size_t norm_bytes, mst_weights *weights)
{
    mstar_stream *stream;
    if (mst_place_is_host(device))
        return MSTAR_OK;
    MST_TRY(mstar_stream_create(device, 1, &stream));
    mstar_status status = place_all(device, stream, norm_bytes, weights);
    mstar_stream_destroy(stream);
    return status;
}

mstar_status mst_worker_fetch(mst_worker *worker, mstar_stream *stream, const float **rows,
                              int64_t num_rows, int64_t stride)
{
    const mstar_device *device = stream->device;
    if (mst_place_is_host(device))
        return mstar_stream_synchronize(stream);
    MST_TRY(device->backend->copy(stream, worker->host_rows, *rows,
                                  (size_t)(num_rows * stride) * sizeof **rows));
    *rows = worker->host_rows;
    return mstar_stream_synchronize(stream);
}

mstar_status mst_worker_hidden(const mst_bert_config *config, mst_worker *worker,
                               mstar_stream *stream, int64_t num_tokens)
{
    const mstar_device *device = stream->device;
    if (worker->sum == worker->x)
        return MSTAR_OK;
    mstar_tensor x =
        mst_place(device, mst_token_rows(worker->x, worker->x_dtype, num_tokens, config->hidden));
    mstar_tensor wide =
        mst_place(device, mst_token_rows(worker->sum, MSTAR_DTYPE_F32, num_tokens, config->hidden));
    return mstar_activation_run(stream, MSTAR_ACTIVATION_NONE, &x, &wide);
}
