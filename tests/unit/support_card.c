/* support_card.c - see support_card.h. */
#include "support_card.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_loans.h"
#include "support_mock_cuda.h"

static const char *card;

static int mock_devices; /* open */

void card_choose(int argc, char **argv)
{
    card = argc > 1 && strcmp(argv[1], "mock") != 0 ? argv[1] : NULL;
}

bool card_is_real(void)
{
    return card != NULL;
}

bool card_is_mock(const mstar_device *device)
{
    return card == NULL && device->backend->kind == MSTAR_DEVICE_CUDA;
}

/* ---- a stream for calls that name none ------------------------------------------------------- */

enum { MAX_DEVICES = 16 };
static struct {
    const mstar_device *device;
    mstar_stream *stream;
} defaults[MAX_DEVICES];
static pthread_mutex_t defaults_lock = PTHREAD_MUTEX_INITIALIZER;

mstar_stream *card_stream(mstar_device *device, mstar_stream *stream)
{
    if (stream != NULL || device->backend->kind == MSTAR_DEVICE_CPU)
        return stream;
    int at = 0;
    (void)pthread_mutex_lock(&defaults_lock);
    while (at < MAX_DEVICES && defaults[at].device != device && defaults[at].device != NULL)
        at++;
    assert_true(at < MAX_DEVICES);
    if (defaults[at].device == NULL) {
        CHECK_OK(mstar_stream_create(device, -1, &defaults[at].stream));
        defaults[at].device = device;
    }
    stream = defaults[at].stream;
    (void)pthread_mutex_unlock(&defaults_lock);
    return stream;
}

static void drop_default_stream(const mstar_device *device)
{
    mstar_stream *dropped = NULL;
    int last = MAX_DEVICES - 1;
    (void)pthread_mutex_lock(&defaults_lock);
    while (last > 0 && defaults[last].device == NULL)
        last--;
    for (int at = 0; at <= last && dropped == NULL; at++) {
        if (defaults[at].device != device)
            continue;
        dropped = defaults[at].stream;
        defaults[at] = defaults[last];
        defaults[last].device = NULL;
    }
    (void)pthread_mutex_unlock(&defaults_lock);
    mstar_stream_destroy(dropped);
}

/* ---- devices --------------------------------------------------------------------------------- */

mstar_device *card_open(void)
{
    return card_open_threads(1);
}

mstar_device *card_open_threads(int32_t threads)
{
    mstar_device *device = NULL;
    if (card == NULL) {
        if (mock_devices++ == 0)
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
    drop_default_stream(device);
    if (card_is_mock(device)) {
        mock_cuda_close(device);
        if (--mock_devices == 0)
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

void level_choose(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "mock") == 0 || strncmp(argv[1], "cuda", 4) == 0)) {
        card_choose(argc, argv);
        on_card = true;
    }
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

void *level_take(mstar_device *device, size_t bytes)
{
    void *memory = NULL;
    if (mst_device_is_host(device))
        assert_int_equal(posix_memalign(&memory, 64, bytes), 0);
    else
        CHECK_OK(device->backend->memory_alloc(device, bytes, &memory));
    return memory;
}

void level_give(mstar_device *device, void *memory)
{
    if (mst_device_is_host(device))
        free(memory);
    else
        device->backend->memory_free(device, memory);
}

void level_set(mstar_device *device, void *memory, int byte, size_t bytes)
{
    if (mst_device_is_host(device))
        memset(memory, byte, bytes);
    else
        level_fill(card_stream(device, NULL), memory, byte, bytes);
}

void level_expect(mstar_device *device, const void *memory, int byte, size_t bytes)
{
    if (bytes == 0)
        return;
    unsigned char *read = malloc(bytes);
    assert_non_null(read);
    if (mst_device_is_host(device))
        memcpy(read, memory, bytes);
    else
        level_read(card_stream(device, NULL), read, memory, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(read[i], byte);
    free(read);
}

/* ---- operations ------------------------------------------------------------------------------ */

mstar_status card_layer_norm(mstar_stream *stream, const mstar_tensor *x,
                             const mstar_tensor *residual, const mstar_tensor *weight,
                             const mstar_tensor *bias, double eps, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = loans_lend(&all, x);
    residual = loans_lend(&all, residual);
    weight = loans_lend(&all, weight);
    bias = loans_lend(&all, bias);
    out = loans_lend_out(&all, out);
    return loans_return(&all, mstar_layer_norm(stream, x, residual, weight, bias, eps, out));
}

mstar_status card_rms_norm(mstar_stream *stream, const mstar_tensor *x,
                           const mstar_tensor *residual, const mstar_tensor *weight, double eps,
                           const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = loans_lend(&all, x);
    residual = loans_lend(&all, residual);
    weight = loans_lend(&all, weight);
    out = loans_lend_out(&all, out);
    return loans_return(&all, mstar_rms_norm(stream, x, residual, weight, eps, out));
}

mstar_status card_normalize(mstar_stream *stream, const mstar_tensor *x, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = loans_lend(&all, x);
    out = loans_lend_out(&all, out);
    return loans_return(&all, mstar_normalize(stream, x, out));
}

mstar_status card_activation_run(mstar_stream *stream, mstar_activation activation,
                                 const mstar_tensor *x, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = loans_lend(&all, x);
    out = loans_lend_out(&all, out);
    return loans_return(&all, mstar_activation_run(stream, activation, x, out));
}

mstar_status card_rotary(mstar_stream *stream, const mstar_tensor *x, const int32_t *positions,
                         double theta, int32_t rotary_dim, int interleaved, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = loans_lend(&all, x);
    out = loans_lend_out(&all, out);
    return loans_return(&all,
                        mstar_rotary(stream, x, positions, theta, rotary_dim, interleaved, out));
}

mstar_status card_embedding(mstar_stream *stream, const mstar_tensor *const *tables,
                            const int32_t *const *ids, int32_t num_tables, const mstar_tensor *out)
{
    loans all = {.stream = stream};
    const mstar_tensor *lent[MST_MAX_TABLES];
    for (int32_t i = 0; i < num_tables; i++)
        lent[i] = loans_lend(&all, tables[i]);
    out = loans_lend_out(&all, out);
    return loans_return(&all, mstar_embedding(stream, lent, ids, num_tables, out));
}

mstar_status card_pooling_run(mstar_stream *stream, mstar_pooling pooling, const mstar_tensor *x,
                              const int32_t *cu_seqlens, int64_t num_segments, const int32_t *skip,
                              const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = loans_lend(&all, x);
    out = loans_lend_out(&all, out);
    return loans_return(&all,
                        mstar_pooling_run(stream, pooling, x, cu_seqlens, num_segments, skip, out));
}

mstar_status card_linear_run(const mstar_linear *linear, mstar_stream *stream,
                             const mstar_tensor *x, const mstar_tensor *residual,
                             const mstar_tensor *out)
{
    loans all = {.stream = stream};
    x = loans_lend(&all, x);
    residual = loans_lend(&all, residual);
    out = loans_lend_out(&all, out);
    return loans_return(&all, mstar_linear_run(linear, stream, x, residual, out));
}
