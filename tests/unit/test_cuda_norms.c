/*
 * test_cuda_norms.c - the norms of the CUDA backend: which kernel takes a norm's rows, and that its
 * bits do not depend on that. Over the mock, and with `test_cuda_norms cuda:0` on a card.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_rows.h"
#include "support_card.h"
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

/* Two rows for a team of a norm where each has two of them to do. */
static void rows_of_a_norm_together(void **state)
{
    (void)state;
    assert_int_equal(mst_cuda_norm_together(132 * 40, 384, 132), 2);
    assert_int_equal(mst_cuda_norm_together(132 * 40 - 1, 384, 132), 1);
    assert_int_equal(mst_cuda_norm_together(1000000, 388, 132), 1);
    assert_int_equal(mst_cuda_norm_together(132 * 10, 1152, 132), 2);
    assert_int_equal(mst_cuda_norm_together(132 * 10 - 1, 1152, 132), 1);
    assert_int_equal(mst_cuda_norm_together(1000000, 1540, 132), 1);
}

/* What the kernel of few rows takes for granted, one by one. */
static void few_rows_by_a_kernel_of_their_own(void **state)
{
    (void)state;
    static float memory[16];
    const mst_cuda_rows halves = {memory, 1152, MST_CUDA_BF16, 1};
    const mst_cuda_row_args few = {.num_rows = 256,
                                   .width = 1152,
                                   .team = 128,
                                   .together = 1,
                                   .whole = 1,
                                   .x = halves,
                                   .out = halves};
    mst_cuda_row_args a = few;
    assert_true(mst_cuda_norm_is_few(&a));
    a.width = 1536;
    assert_true(mst_cuda_norm_is_few(&a));
    a.width = 1540;
    assert_false(mst_cuda_norm_is_few(&a));
    a.width = 4100;
    a.team = 512;
    assert_false(mst_cuda_norm_is_few(&a));
    a.width = 384;
    a.team = 32;
    assert_true(mst_cuda_norm_is_few(&a));
    a.width = 388;
    assert_false(mst_cuda_norm_is_few(&a));
    a = few;
    a.whole = 0;
    assert_false(mst_cuda_norm_is_few(&a));
    a = few;
    a.together = 2;
    assert_false(mst_cuda_norm_is_few(&a));
    a = few;
    a.residual = halves;
    assert_false(mst_cuda_norm_is_few(&a));
    a = few;
    a.out.dtype = MST_CUDA_F16;
    assert_false(mst_cuda_norm_is_few(&a));
    a.x.dtype = MST_CUDA_F32;
    assert_true(mst_cuda_norm_is_few(&a));
    a.x.dtype = MST_CUDA_F16;
    a.out.dtype = MST_CUDA_F32;
    assert_false(mst_cuda_norm_is_few(&a));
    a = few;
    a.num_rows = 0;
    assert_false(mst_cuda_norm_is_few(&a));
    a = few;
    a.x.row_stride = INT32_MAX / 256;
    assert_true(mst_cuda_norm_is_few(&a));
    a.x.row_stride++;
    assert_false(mst_cuda_norm_is_few(&a));
    a = few;
    a.out.row_stride = -1152;
    assert_false(mst_cuda_norm_is_few(&a));
}

enum { NORM_ROWS = 7 };

/* A norm with one row for a team, or two. */
static void run_norm(int together, bool rms, const check_rows *from, const check_rows *residual,
                     const check_rows *weight, const check_rows *out)
{
    mst_cuda_of(device)->multiprocessors = together == 2 ? 0 : INT32_MAX;
    const mstar_tensor *r = residual != NULL ? &residual->tensor : NULL;
    mstar_tensor w = weight->tensor;
    w.rank = 1;
    w.shape[0] = w.shape[1];
    w.strides[0] = 1;
    if (rms)
        CHECK_OK(card_rms_norm(stream, &from->tensor, r, &w, 1e-5, &out->tensor));
    else
        CHECK_OK(card_layer_norm(stream, &from->tensor, r, &w, &w, 1e-5, &out->tensor));
}

static void expect_same_rows(const check_rows *one, const check_rows *two)
{
    assert_memory_equal(one->block, two->block, one->bytes);
}

/* However many rows a team has, an odd one at the end and rows in place too. */
static void rows_together_have_their_bits(void **state)
{
    (void)state;
    static const mstar_dtype dtypes[] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F16};
    static const int64_t widths[] = {36, 384, 1152};
    const int multiprocessors = mst_cuda_of(device)->multiprocessors;
    check_rng rng = {5};
    for (int i = 0; i < 3 * 4 * 3 * 2; i++) {
        const mstar_dtype dtype = dtypes[i % 3];
        const int residual = i / 3 % 4; /* none, or of these dtypes */
        const int64_t width = widths[i / 12 % 3];
        const bool rms = i / 36 == 1;
        check_rows from = check_rows_make(dtype, NORM_ROWS, width, width + 8);
        check_rows r = check_rows_make(residual > 0 ? dtypes[residual - 1] : dtype, NORM_ROWS,
                                       width, width + 8);
        check_rows weight = check_rows_make(MSTAR_DTYPE_F32, 1, width, width);
        check_rows one = check_rows_make(dtype, NORM_ROWS, width, width + 8);
        check_rows two = check_rows_make(dtype, NORM_ROWS, width, width + 8);
        check_rows_fill(&from, &rng, -4.0, 4.0);
        check_rows_fill(&r, &rng, -4.0, 4.0);
        check_rows_fill(&weight, &rng, -1.0, 1.0);
        run_norm(1, rms, &from, residual > 0 ? &r : NULL, &weight, &one);
        run_norm(2, rms, &from, residual > 0 ? &r : NULL, &weight, &two);
        expect_same_rows(&one, &two);
        run_norm(2, rms, &from, residual > 0 ? &r : NULL, &weight, &from);
        expect_same_rows(&one, &from);
        check_rows_free(&from);
        check_rows_free(&r);
        check_rows_free(&weight);
        check_rows_free(&one);
        check_rows_free(&two);
    }
    mst_cuda_of(device)->multiprocessors = multiprocessors;
}

/* Rows that are hard on a norm, one of each kind. */
static void fill_hard(check_rows *rows, check_rng *rng)
{
    const int64_t width = rows->tensor.shape[1];
    static const double factors[NORM_ROWS] = {1.0, 1.0, 1.0, 0.0, 1e-30, 1e-7, 1.0};
    for (int64_t row = 0; row < NORM_ROWS; row++)
        for (int64_t i = 0; i < width; i++)
            check_rows_set(rows, row, i,
                           factors[row] * check_uniform(rng, -4.0, 4.0) + (row == 6 ? 3e4 : 0.0));
    check_rows_set(rows, 1, width - 1, HUGE_VAL);
    check_rows_set(rows, 2, width / 2, NAN);
    if (rows->tensor.dtype != MSTAR_DTYPE_F32)
        return;
    check_rows_set(rows, 5, 0, 3e38); /* the sum of squares is not finite */
    check_rows_set(rows, 6, 0, 3e38); /* nor is the sum */
    check_rows_set(rows, 6, width - 1, 3e38);
}

/* Bits are the same, or both are NaN. */
static void expect_equal_rows(const check_rows *got, const check_rows *want, int64_t rows)
{
    check_rows_outside(got, "few rows");
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < got->tensor.shape[1]; i++) {
            const float y = check_rows_get(got, row, i), z = check_rows_get(want, row, i);
            assert_true(memcmp(&y, &z, sizeof y) == 0 || (isnan(y) && isnan(z)));
        }
    }
}

static void expect_kernel(const char *symbol)
{
    if (!card_is_real())
        assert_string_equal(mock_cuda_now()->kernel, symbol);
}

/* The kernel of few rows beside the one that takes them as they come; in place too. */
static void few_rows_have_their_bits(void **state)
{
    (void)state;
    static const mstar_dtype types[][2] = {{MSTAR_DTYPE_F32, MSTAR_DTYPE_F32},
                                           {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16},
                                           {MSTAR_DTYPE_F32, MSTAR_DTYPE_F16},
                                           {MSTAR_DTYPE_BF16, MSTAR_DTYPE_BF16},
                                           {MSTAR_DTYPE_F16, MSTAR_DTYPE_F16}};
    static const int64_t widths[] = {4, 36, 128, 260, 384, 1028, 1152, 1536};
    const int multiprocessors = mst_cuda_of(device)->multiprocessors;
    check_rng rng = {6};
    for (int i = 0; i < 5 * 8 * 2; i++) {
        const mstar_dtype *type = types[i % 5];
        const int64_t width = widths[i / 5 % 8];
        const bool rms = i / 40 == 1;
        check_rows from = check_rows_make(type[0], NORM_ROWS, width, width + 4);
        check_rows odd = check_rows_make(type[0], NORM_ROWS, width, width + 5);
        check_rows weight = check_rows_make(MSTAR_DTYPE_F32, 1, width, width);
        check_rows few = check_rows_make(type[1], NORM_ROWS, width, width + 8);
        check_rows more = check_rows_make(type[1], NORM_ROWS, width, width + 8);
        fill_hard(&from, &rng);
        for (int64_t j = 0; j < NORM_ROWS * width; j++)
            check_rows_set(&odd, j / width, j % width,
                           (double)check_rows_get(&from, j / width, j % width));
        check_rows_fill(&weight, &rng, -1.0, 1.0);
        run_norm(1, rms, &from, NULL, &weight, &few);
        expect_kernel(rms ? "mst_rms_norm_few_sm80" : "mst_layer_norm_few_sm80");
        run_norm(1, rms, &odd, NULL, &weight, &more);
        expect_kernel(rms ? "mst_rms_norm_sm80" : "mst_layer_norm_sm80");
        expect_equal_rows(&few, &more, NORM_ROWS);
        run_norm(2, rms, &from, NULL, &weight, &more);
        expect_kernel(rms ? "mst_rms_norm_sm80" : "mst_layer_norm_sm80");
        expect_equal_rows(&few, &more, NORM_ROWS);
        if (type[0] == type[1]) {
            run_norm(1, rms, &from, NULL, &weight, &from);
            expect_kernel(rms ? "mst_rms_norm_few_sm80" : "mst_layer_norm_few_sm80");
            expect_equal_rows(&from, &few, NORM_ROWS);
        }
        check_rows_free(&from);
        check_rows_free(&odd);
        check_rows_free(&weight);
        check_rows_free(&few);
        check_rows_free(&more);
    }
    mst_cuda_of(device)->multiprocessors = multiprocessors;
}

/* A graph's few rows, of which some live: those past the count are not written. */
static void few_live_rows_in_a_graph(void **state)
{
    (void)state;
    enum { TEAMS = 2, ROWS = 6 };
    static const int64_t widths[TEAMS] = {256, 1152};
    for (int i = 0; i < TEAMS; i++) {
        const int64_t width = widths[i];
        const size_t bytes = (size_t)((2 * ROWS + 1) * width) * sizeof(float);
        mstar_buffer *memory;
        mstar_graph *graph;
        int64_t live = 0;
        float *host = malloc(bytes);
        assert_non_null(host);
        for (int64_t j = 0; j < (2 * ROWS + 1) * width; j++)
            host[j] = j < (ROWS + 1) * width ? (float)(j % 7) : -1.0F;
        CHECK_OK(mstar_buffer_create(device, bytes, &memory));
        CHECK_OK(mstar_buffer_upload(memory, stream, 0, host, bytes));
        float *data = mstar_buffer_get_data(memory);
        mstar_tensor weight =
            mstar_tensor_make(data + ROWS * width, MSTAR_DTYPE_F32, 1, (const int64_t[]){width});
        mstar_tensor rows =
            mstar_tensor_make(data, MSTAR_DTYPE_F32, 2, (const int64_t[]){ROWS, width});
        mstar_tensor out = mstar_tensor_make(data + (ROWS + 1) * width, MSTAR_DTYPE_F32, 2,
                                             (const int64_t[]){ROWS, width});
        weight.device_kind = rows.device_kind = out.device_kind = MSTAR_DEVICE_CUDA;
        CHECK_OK(mstar_stream_set_rows(stream, &live));
        CHECK_OK(mstar_graph_capture_begin(stream));
        CHECK_OK(mstar_layer_norm(stream, &rows, NULL, &weight, &weight, 1e-5, &out));
        CHECK_OK(mstar_graph_capture_end(stream, &graph));
        CHECK_OK(mstar_stream_set_rows(stream, NULL));
        for (live = 0; live <= ROWS; live += live == 0 ? 5 : 1) {
            CHECK_OK(mstar_graph_replay(graph, stream));
            expect_kernel("mst_layer_norm_few_sm80");
            CHECK_OK(mstar_buffer_download(memory, stream, 0, host, bytes));
            CHECK_OK(mstar_stream_synchronize(stream));
            for (int64_t j = 0; j < ROWS * width; j++)
                assert_true((host[(ROWS + 1) * width + j] != -1.0F) == (j / width < live));
        }
        mstar_graph_destroy(graph);
        mstar_buffer_destroy(memory);
        free(host);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_norm_together),
        cmocka_unit_test(few_rows_by_a_kernel_of_their_own),
        cmocka_unit_test_setup_teardown(rows_together_have_their_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(few_rows_have_their_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(few_live_rows_in_a_graph, set_up, tear_down),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
