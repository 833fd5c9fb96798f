/* support_card.c - see support_card.h. */
#include "support_card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_mock_cuda.h"

static const char *card;

void card_choose(int argc, char **argv)
{
    card = argc > 1 ? argv[1] : NULL;
}

bool card_is_real(void)
{
    return card != NULL;
}

bool card_is_mock(const mstar_device *device)
{
    return card == NULL && device->backend->kind == MSTAR_DEVICE_CUDA;
}

mstar_device *card_open(void)
{
    return card_open_threads(1);
}

mstar_device *card_open_threads(int32_t threads)
{
    mstar_device *device = NULL;
    if (card == NULL) {
        (void)mock_cuda_install();
        CHECK_OK(mock_cuda_open_threads(threads, &device));
    } else {
        mstar_device_desc desc;
        mstar_device_desc_init(&desc);
        desc.num_threads = threads;
        CHECK_OK(mstar_device_open(card, &desc, &device));
    }
    printf("[ ISA      ] %s\n", card == NULL ? "cuda over the mock" : card);
    return device;
}

void card_close(mstar_device *device)
{
    if (device->backend->kind == MSTAR_DEVICE_CUDA && card == NULL) {
        mock_cuda_close(device);
        mock_cuda_remove();
    } else {
        CHECK_OK(mstar_device_close(device));
    }
}

/* ---- levels ---------------------------------------------------------------------------------- */

static bool on_card;

void level_use_card(bool use)
{
    on_card = use;
}

bool level_is_card(void)
{
    return on_card;
}

mstar_device *level_open(int32_t threads)
{
    mstar_device_desc desc;
    mstar_device *device;
    if (on_card)
        return card_open_threads(threads);
    mstar_device_desc_init(&desc);
    desc.num_threads = threads;
    CHECK_OK(mstar_device_open("cpu", &desc, &device));
    return device;
}

void level_close(mstar_device *device)
{
    card_close(device);
}

static void move(mstar_stream *stream, void *to, const void *from, size_t bytes)
{
    const mstar_device *device = mstar_stream_get_device(stream);
    if (bytes == 0)
        return;
    if (device->backend->kind == MSTAR_DEVICE_CPU) {
        memcpy(to, from, bytes);
        return;
    }
    CHECK_OK(device->backend->copy(stream, to, from, bytes));
    CHECK_OK(mstar_stream_synchronize(stream));
}

void level_read(mstar_stream *stream, void *to, const void *from, size_t bytes)
{
    move(stream, to, from, bytes);
}

void level_write(mstar_stream *stream, void *to, const void *from, size_t bytes)
{
    move(stream, to, from, bytes);
}

void level_fill(mstar_stream *stream, void *memory, int byte, size_t bytes)
{
    if (bytes == 0)
        return;
    void *pattern = malloc(bytes);
    assert_non_null(pattern);
    memset(pattern, byte, bytes);
    move(stream, memory, pattern, bytes);
    free(pattern);
}

/* ---- loans ----------------------------------------------------------------------------------- */

enum { MAX_LOANS = 12 };

typedef struct loan {
    const check_rows_block *block;
    mstar_buffer *buffer;
    mstar_tensor tensor;
} loan;

typedef struct loans {
    mstar_stream *stream;
    int count;
    loan list[MAX_LOANS];
} loans;

static mstar_buffer *buffer_of(const loans *all, const check_rows_block *block)
{
    for (int i = 0; i < all->count; i++) {
        if (all->list[i].block == block)
            return all->list[i].buffer;
    }
    mstar_buffer *buffer;
    CHECK_OK(mstar_buffer_create(mstar_stream_get_device(all->stream), block->bytes, &buffer));
    CHECK_OK(mstar_buffer_upload(buffer, all->stream, 0, block->memory, block->bytes));
    return buffer;
}

/* The tensor on the stream's device: a view of the same place in a copy of its block. */
static const mstar_tensor *lend(loans *all, const mstar_tensor *tensor)
{
    const mstar_device *device = mstar_stream_get_device(all->stream);
    if (tensor == NULL || device->backend->kind == MSTAR_DEVICE_CPU)
        return tensor;
    const check_rows_block *block = check_rows_find(tensor->data);
    assert_non_null(block);
    assert_true(all->count < MAX_LOANS);
    mstar_buffer *buffer = buffer_of(all, block);
    loan *made = &all->list[all->count++];
    *made = (loan){block, buffer, *tensor};
    made->tensor.device_kind = MSTAR_DEVICE_CUDA;
    made->tensor.data = (unsigned char *)mstar_buffer_get_data(buffer) +
                        ((const unsigned char *)tensor->data - block->memory);
    return &made->tensor;
}

static mstar_status bring_back(loans *all, mstar_status status)
{
    for (int i = 0; i < all->count; i++) {
        bool again = false; /* a block that was lent twice has one buffer */
        for (int j = 0; j < i; j++)
            again = again || all->list[j].block == all->list[i].block;
        if (again)
            continue;
        CHECK_OK(mstar_buffer_download(all->list[i].buffer, all->stream, 0,
                                       all->list[i].block->memory, all->list[i].block->bytes));
        CHECK_OK(mstar_stream_synchronize(all->stream));
        mstar_buffer_destroy(all->list[i].buffer);
    }
    return status;
}

/* ---- operations ------------------------------------------------------------------------------ */

mstar_status card_layer_norm(mstar_stream *stream, const mstar_tensor *x,
                             const mstar_tensor *residual, const mstar_tensor *weight,
                             const mstar_tensor *bias, double eps, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = lend(&all, x);
    residual = lend(&all, residual);
    weight = lend(&all, weight);
    bias = lend(&all, bias);
    out = lend(&all, out);
    return bring_back(&all, mstar_layer_norm(stream, x, residual, weight, bias, eps, out));
}

mstar_status card_rms_norm(mstar_stream *stream, const mstar_tensor *x,
                           const mstar_tensor *residual, const mstar_tensor *weight, double eps,
                           const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = lend(&all, x);
    residual = lend(&all, residual);
    weight = lend(&all, weight);
    out = lend(&all, out);
    return bring_back(&all, mstar_rms_norm(stream, x, residual, weight, eps, out));
}

mstar_status card_normalize(mstar_stream *stream, const mstar_tensor *x, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = lend(&all, x);
    out = lend(&all, out);
    return bring_back(&all, mstar_normalize(stream, x, out));
}

mstar_status card_activation_run(mstar_stream *stream, mstar_activation activation,
                                 const mstar_tensor *x, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = lend(&all, x);
    out = lend(&all, out);
    return bring_back(&all, mstar_activation_run(stream, activation, x, out));
}

mstar_status card_rotary(mstar_stream *stream, const mstar_tensor *x, const int32_t *positions,
                         double theta, int32_t rotary_dim, int interleaved, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = lend(&all, x);
    out = lend(&all, out);
    return bring_back(&all,
                      mstar_rotary(stream, x, positions, theta, rotary_dim, interleaved, out));
}

mstar_status card_embedding(mstar_stream *stream, const mstar_tensor *const *tables,
                            const int32_t *const *ids, int32_t num_tables, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    const mstar_tensor *lent[MST_MAX_TABLES];
    for (int32_t i = 0; i < num_tables; i++)
        lent[i] = lend(&all, tables[i]);
    out = lend(&all, out);
    return bring_back(&all, mstar_embedding(stream, lent, ids, num_tables, out));
}

mstar_status card_pooling_run(mstar_stream *stream, mstar_pooling pooling, const mstar_tensor *x,
                              const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip,
                              const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = lend(&all, x);
    out = lend(&all, out);
    return bring_back(&all,
                      mstar_pooling_run(stream, pooling, x, cu_seqlens, num_segments, skip, out));
}

mstar_status card_linear_run(const mstar_linear *linear, mstar_stream *stream,
                             const mstar_tensor *x, const mstar_tensor *residual,
                             const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = lend(&all, x);
    residual = lend(&all, residual);
    out = lend(&all, out);
    return bring_back(&all, mstar_linear_run(linear, stream, x, residual, out));
}
