/*
 * test_cuda_sharings.c - our own product for Hopper cards: each way of sharing the work beside the
 * others, with all that may follow the sums, and what is launched for it. Over the mock, where the
 * product is plain C; on a card (`test_cuda_sharings cuda:0`) by its kernels.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_linear.h"
#include "mock_simt.h"
#include "support_linear.h"
#include "support_mock_cuda.h"

static mstar_device *device;
static mstar_stream *stream;

static int set_up(void **state)
{
    (void)state;
    device = card_open();
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mstar_stream_destroy(stream);
    card_close(device);
    return 0;
}

/* One product in device memory, and what is compared of it. */
typedef struct shared_product {
    mst_cuda_fused fused;
    mstar_buffer *buffer;
    size_t out_at, out_bytes;
} shared_product;

/* Operands side by side, residual, live count and result last; out is a multiple of 8. */
static shared_product make_shared(mstar_dtype dtype, int64_t rows, int64_t in, int64_t out,
                                  int64_t live)
{
    check_rng rng = {21};
    const int64_t halves = (rows + out) * in, floats = (rows + 1) * out;
    const size_t floats_at = (size_t)halves * 2;
    shared_product p = {.out_bytes = (size_t)(rows * out) * sizeof(float)};
    p.out_at = floats_at + (size_t)floats * sizeof(float) + 16;
    char *host = calloc(1, p.out_at + p.out_bytes);
    for (int64_t i = 0; i < halves; i++)
        mst_store_element(host, dtype, i, (float)check_uniform(&rng, -0.4, 0.4));
    for (int64_t i = 0; i < floats; i++)
        ((float *)(void *)(host + floats_at))[i] = (float)check_uniform(&rng, -1.0, 1.0);
    *(int64_t *)(void *)(host + p.out_at - 16) = live;
    CHECK_OK(mstar_buffer_create(device, p.out_at + p.out_bytes, &p.buffer));
    CHECK_OK(mstar_buffer_upload(p.buffer, stream, 0, host, p.out_at + p.out_bytes));
    CHECK_OK(mstar_stream_synchronize(stream));
    free(host);
    char *data = mstar_buffer_get_data(p.buffer);
    p.fused = (mst_cuda_fused){.in_features = in,
                               .out_features = out,
                               .dtype = dtype,
                               .num_rows = rows,
                               .live = (const int64_t *)(const void *)(data + p.out_at - 16),
                               .x = data,
                               .weights = data + rows * in * 2,
                               .residual.data = data + floats_at,
                               .bias = (const float *)(const void *)(data + floats_at) + rows * out,
                               .x_distance = in,
                               .out.data = data + p.out_at};
    return p;
}

/* Few tiles have a block each, by a kernel of their own, and a multiprocessor each where there are
 * enough; of many tiles a block takes its share. */
static void expect_launch(const mst_cuda_fused *f)
{
    static const int64_t rows[] = {128, 128, 128, 64}, columns[] = {128, 128, 72, 64};
    const int64_t tiles = mst_ceil_div(f->num_rows, rows[f->sharing]) *
                          mst_ceil_div(f->out_features, columns[f->sharing]);
    const int64_t multiprocessors = mst_cuda_of(device)->multiprocessors;
    const bool few = f->sharing >= MST_CUDA_LINEAR_MIDDLE;
    const int64_t alone = 116 << 10;
    if (card_is_real())
        return;
    assert_true((strstr(mock_cuda_now()->kernel, "mst_linear_few_") != NULL) == few);
    assert_int_equal(mock_cuda_now()->grid, few ? tiles : mst_min_i64(tiles, multiprocessors));
    assert_int_equal(mock_cuda_now()->shared_bytes, !few ? MST_CUDA_LINEAR_SHARED
                                                    : tiles <= multiprocessors
                                                        ? alone
                                                        : MST_CUDA_LINEAR_FEW_SHARED);
}

/* The result of one sharing, over bytes that say what was not written. */
static void run_shared(const shared_product *p, int32_t sharing, void *host)
{
    mst_cuda *cuda = mst_cuda_of(device);
    mst_cuda_fused fused = p->fused;
    fused.sharing = sharing;
    memset(host, 0x5a, p->out_bytes);
    CHECK_OK(mstar_buffer_upload(p->buffer, stream, p->out_at, host, p->out_bytes));
    CHECK_OK(mst_cuda_enter(cuda));
    CHECK_OK(mst_cuda_fused_run(cuda, mst_cuda_handle(stream), &fused));
    mst_cuda_leave(cuda);
    expect_launch(&fused);
    CHECK_OK(mstar_buffer_download(p->buffer, stream, p->out_at, host, p->out_bytes));
    CHECK_OK(mstar_stream_synchronize(stream));
}

/* Every way of sharing the work has the same bits, with all that may follow the sums. */
static void check_sharings(mstar_dtype dtype, int64_t rows, int64_t in, int64_t out, int64_t live)
{
    shared_product p = make_shared(dtype, rows, in, out, live);
    void *residual = p.fused.residual.data;
    char *want = malloc(p.out_bytes), *got = malloc(p.out_bytes);
    for (int i = 0; i < 4 * 2 * 3; i++) {
        const mstar_dtype out_dtype = i / 4 % 2 == 0 ? dtype : MSTAR_DTYPE_F32;
        p.fused.activation = (mstar_activation)(i % 4); /* none, both GELUs, and another */
        p.fused.out = (mst_rows){p.fused.out.data, out_dtype, out, rows};
        p.fused.residual = (mst_rows){i / 8 == 0 ? NULL : residual,
                                      i / 8 == 1 ? dtype : MSTAR_DTYPE_F32, out, rows};
        run_shared(&p, MST_CUDA_LINEAR_SMALL, want);
        const size_t done = (size_t)(live * out) * mstar_dtype_bytes(out_dtype);
        memset(got, 0x5a, p.out_bytes);
        assert_memory_equal(want + done, got + done, p.out_bytes - done);
        for (int32_t sharing = 0; sharing < MST_CUDA_LINEAR_SMALL; sharing++) {
            run_shared(&p, sharing, got);
            assert_memory_equal(got, want, p.out_bytes);
        }
    }
    free(want);
    free(got);
    mstar_buffer_destroy(p.buffer);
}

/* Over more tiles than blocks have at once and ragged ends; steps of the depth that are one, as
 * many as each ring has stages (7, 5, 4), and more than twice as many; no live row, one, and so
 * many that some blocks have one tile and some none. */
static void sharings_have_the_same_bits(void **state)
{
    (void)state;
    const bool real = card_is_real();
    const int64_t rows = real ? check_part(7173) : 21, out = real ? 552 : 24;
    const int64_t depths[] = {real ? 392 : 16, real ? 64 : 8, real ? 320 : 24, real ? 256 : 32,
                              real ? 1032 : 40};
    const int64_t lives[] = {rows - 3, rows / 4, 1, 0};
    mst_cuda *cuda = mst_cuda_of(device);
    const int multiprocessors = cuda->multiprocessors;
    for (int half = 1; half < 3; half++) {
        CHECK_OK(mst_cuda_enter(cuda));
        bool has = mst_cuda_fused_load(cuda, linear_dtypes[half]) == MSTAR_OK;
        mst_cuda_leave(cuda);
        for (int i = 0; i < 5 && has; i++)
            check_sharings(linear_dtypes[half], rows, depths[i], out, lives[0]);
        for (int i = 1; i < 4 && has; i++)
            check_sharings(linear_dtypes[half], rows, depths[0], out, lives[i]);
        if (!real && has) { /* more tiles than multiprocessors */
            cuda->multiprocessors = 3;
            check_sharings(linear_dtypes[half], 130, 8, 136, 130);
            cuda->multiprocessors = multiprocessors;
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sharings_have_the_same_bits, set_up, tear_down),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
