/*
 * test_ops_linear_bits.c - what never changes a bit of a packed product: the number of rows, a
 * row's place, the threads, the dtype that holds the same values, bad values in other rows, and the
 * caller's floating-point mode. On every ISA level of the machine.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support_linear.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- bits ------------------------------------------------------------------------------------ */

static void rows_alone(const linear_level *l, int64_t k, int64_t n, mstar_dtype panel,
                       mstar_dtype x_dtype, bool all_counts)
{
    check_rng rng = {(uint64_t)(k * 31 + n)};
    int64_t most = k * n > 1000000 ? 61 : LINEAR_MAX_ROWS;
    char what[96];
    (void)snprintf(what, sizeof what, "%s K %lld N %lld panels %s x %s", l->isa, (long long)k,
                   (long long)n, mstar_dtype_name(panel), mstar_dtype_name(x_dtype));
    linear_weights w = linear_weights_make(k, n, MSTAR_DTYPE_F32, false, true, &rng);
    mstar_linear *linear = linear_make(l, &w, panel, MSTAR_ACTIVATION_GELU);
    check_rows x = check_rows_make(x_dtype, most, k, k + 1);
    check_rows residual = check_rows_make(MSTAR_DTYPE_F32, most, n, n);
    check_rows all = check_rows_make(MSTAR_DTYPE_F32, most, n, n);
    check_rows_fill(&x, &rng, -1.0, 1.0);
    check_rows_fill(&residual, &rng, -1.0, 1.0);
    CHECK_OK(card_linear_run(linear, l->streams[2], &x.tensor, &residual.tensor, &all.tensor));
    if (most == LINEAR_MAX_ROWS) {
        linear_weights_widen(&w, panel, linear_wide);
        linear_check_product(what, &w, linear_wide, linear_has_dots(l, panel),
                             MSTAR_ACTIVATION_GELU, &x, &residual, &all);
    }
    for (int64_t count = 1; count <= most; count++) {
        bool wanted = all_counts || count <= 17 || count == 29 || count == 47 || count == 100;
        if (!wanted || (most < LINEAR_MAX_ROWS && count > 8))
            continue;
        int64_t first = check_integer(&rng, 0, most - count);
        mstar_tensor xs, rs;
        CHECK_OK(mstar_tensor_slice(&x.tensor, 0, first, count, &xs));
        CHECK_OK(mstar_tensor_slice(&residual.tensor, 0, first, count, &rs));
        check_rows part = check_rows_make(MSTAR_DTYPE_F32, count, n, n + 1);
        for (int s = 0; s < (all_counts ? 1 : 3); s++) {
            CHECK_OK(card_linear_run(linear, l->streams[(count + s) % 3], &xs, &rs, &part.tensor));
            for (int64_t row = 0; row < count; row++)
                linear_same_row(what, &part, row, &all, first + row);
        }
        check_rows_free(&part);
    }
    check_rows_free(&x);
    check_rows_free(&residual);
    check_rows_free(&all);
    mstar_linear_destroy(linear);
    linear_weights_free(&w);
}

static void a_rows_bits_are_its_own(void **state)
{
    (void)state;
    for (int l = 0; l < linear_num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            rows_alone(&linear_levels[l], 16, 33, linear_panels[p], linear_dtypes[p], true);
            rows_alone(&linear_levels[l], 1, 1, linear_panels[p], linear_dtypes[0], true);
            rows_alone(&linear_levels[l], 257, 65, linear_panels[p], linear_dtypes[2 - p], false);
            rows_alone(&linear_levels[l], 384, 129, linear_panels[p], linear_dtypes[p], false);
        }
        if (!card_is_mock(linear_levels[l].device))
            rows_alone(&linear_levels[l], 1536, 1152, MSTAR_DTYPE_F32, MSTAR_DTYPE_F32, false);
    }
}

/* Narrow rows of x are their widened values; a narrow out is the f32 result rounded once. */
static void dtypes_are_exact(void **state)
{
    (void)state;
    enum { ROWS = 23, K = 300, N = 37 };
    check_rng rng = {12};
    for (int l = 0; l < linear_num_levels; l++) {
        for (int narrow = 1; narrow < 3; narrow++) {
            linear_weights w = linear_weights_make(K, N, linear_dtypes[narrow], false, true, &rng);
            mstar_linear *linear = linear_make(&linear_levels[l], &w, linear_panels[narrow % 2],
                                               MSTAR_ACTIVATION_SILU);
            check_rows x = check_rows_make(linear_dtypes[narrow], ROWS, K, K);
            check_rows wide = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
            check_rows a = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows b = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows c = check_rows_make(linear_dtypes[narrow], ROWS, N, N);
            check_rows_fill(&x, &rng, -1.0, 1.0);
            for (int64_t row = 0; row < ROWS; row++) {
                for (int64_t i = 0; i < K; i++)
                    check_rows_set(&wide, row, i, (double)check_rows_get(&x, row, i));
            }
            mstar_stream *stream = linear_levels[l].streams[1];
            CHECK_OK(card_linear_run(linear, stream, &x.tensor, NULL, &a.tensor));
            CHECK_OK(card_linear_run(linear, stream, &wide.tensor, NULL, &b.tensor));
            CHECK_OK(card_linear_run(linear, stream, &x.tensor, NULL, &c.tensor));
            for (int64_t row = 0; row < ROWS; row++) {
                linear_same_row("widened x", &a, row, &b, row);
                for (int64_t j = 0; j < N; j++) {
                    unsigned char one[4];
                    mst_store_element(one, linear_dtypes[narrow], 0, check_rows_get(&a, row, j));
                    float want = mst_load_element(one, linear_dtypes[narrow], 0);
                    float got = check_rows_get(&c, row, j);
                    assert_memory_equal(&want, &got, sizeof want);
                }
            }
            check_rows_free(&x);
            check_rows_free(&wide);
            check_rows_free(&a);
            check_rows_free(&b);
            check_rows_free(&c);
            mstar_linear_destroy(linear);
            linear_weights_free(&w);
        }
    }
}

/* A copy of x with another distance between its rows. */
static check_rows spread(const check_rows *x, mstar_dtype dtype, int64_t stride)
{
    int64_t rows = x->tensor.shape[0], width = x->tensor.shape[1];
    check_rows copy = check_rows_make(dtype, rows, width, stride);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i++)
            check_rows_set(&copy, row, i, (double)check_rows_get(x, row, i));
    }
    check_rows_freeze(&copy);
    return copy;
}

/* Rows 4096 bytes apart, which are taken in lower tiles, and rows that are not; a residual of f32,
 * which is added in whole vectors, and one of bf16. */
static void strides_do_not_matter(void **state)
{
    (void)state;
    enum { ROWS = 43, K = 1024, N = 192 };
    const mstar_activation activations[2] = {MSTAR_ACTIVATION_NONE, MSTAR_ACTIVATION_GELU};
    check_rng rng = {15};
    linear_weights w = linear_weights_make(K, N, MSTAR_DTYPE_F32, false, true, &rng);
    check_rows narrow = check_rows_make(MSTAR_DTYPE_BF16, ROWS, N, N);
    check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
    check_rows_fill(&x, &rng, -1.0, 1.0);
    check_rows_fill(&narrow, &rng, -1.0, 1.0);
    check_rows apart = spread(&x, MSTAR_DTYPE_F32, K + 16);
    check_rows wide = spread(&narrow, MSTAR_DTYPE_F32, N + 3);
    for (int c = 0; c < linear_num_levels * 8; c++) {
        const linear_level *l = &linear_levels[c / 8];
        if (c % 8 > 3 && card_is_mock(l->device))
            continue; /* the mock is slow */
        mstar_linear *linear = linear_make(l, &w, linear_panels[c % 2], activations[c / 2 % 2]);
        bool add = c / 4 % 2 == 1;
        check_rows want = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        CHECK_OK(card_linear_run(linear, l->streams[0], &apart.tensor, add ? &wide.tensor : NULL,
                                 &want.tensor));
        for (int64_t count = 1; count <= ROWS; count += count < 16 ? 1 : 9) {
            mstar_tensor xs, rs;
            CHECK_OK(mstar_tensor_slice(&x.tensor, 0, ROWS - count, count, &xs));
            CHECK_OK(mstar_tensor_slice(&narrow.tensor, 0, ROWS - count, count, &rs));
            check_rows got = check_rows_make(MSTAR_DTYPE_F32, count, N, N + 5);
            CHECK_OK(
                card_linear_run(linear, l->streams[count % 3], &xs, add ? &rs : NULL, &got.tensor));
            for (int64_t row = 0; row < count; row++)
                linear_same_row("strides", &got, row, &want, ROWS - count + row);
            check_rows_outside(&got, "strides");
            check_rows_free(&got);
        }
        check_rows_free(&want);
        mstar_linear_destroy(linear);
    }
    check_rows_free(&x);
    check_rows_free(&apart);
    check_rows_free(&narrow);
    check_rows_free(&wide);
    linear_weights_free(&w);
}

static void bad_rows_stay_apart(void **state)
{
    (void)state;
    enum { ROWS = 20, K = 70, N = 50 };
    check_rng rng = {13};
    for (int l = 0; l < linear_num_levels; l++) {
        linear_weights w = linear_weights_make(K, N, MSTAR_DTYPE_F32, false, true, &rng);
        mstar_linear *linear =
            linear_make(&linear_levels[l], &w, MSTAR_DTYPE_F32, MSTAR_ACTIVATION_NONE);
        check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
        check_rows good = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        check_rows bad = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        check_rows_fill(&x, &rng, -1.0, 1.0);
        CHECK_OK(
            card_linear_run(linear, linear_levels[l].streams[2], &x.tensor, NULL, &good.tensor));
        check_rows_set(&x, 5, K - 1, (double)NAN);
        check_rows_set(&x, 11, 0, (double)INFINITY);
        CHECK_OK(
            card_linear_run(linear, linear_levels[l].streams[2], &x.tensor, NULL, &bad.tensor));
        for (int64_t row = 0; row < ROWS; row++) {
            if (row != 5 && row != 11)
                linear_same_row("bad rows", &bad, row, &good, row);
        }
        for (int64_t j = 0; j < N; j++) {
            assert_true(isnan(check_rows_get(&bad, 5, j)));
            float sign = check_rows_get(&w.weight, j, 0);
            assert_true(check_rows_get(&bad, 11, j) == copysignf(INFINITY, sign));
        }
        check_rows_free(&x);
        check_rows_free(&good);
        check_rows_free(&bad);
        mstar_linear_destroy(linear);
        linear_weights_free(&w);
    }
}

/* Packing and running in the caller's odd modes give the bits of an ordinary caller. */
static void the_callers_mode_does_not_matter(void **state)
{
    (void)state;
#if defined(__x86_64__)
    enum { ROWS = 9, K = 50, N = 35 };
    check_rng rng = {14};
    for (int l = 0; l < linear_num_levels; l++) {
        linear_weights w = linear_weights_make(K, N, MSTAR_DTYPE_F32, false, true, &rng);
        for (int64_t j = 0; j < N; j += 2) { /* columns whose sums are subnormal */
            for (int64_t i = 0; i < K; i++)
                check_rows_set(&w.weight, j, i, check_uniform(&rng, -1.0, 1.0) * 0x1p-130);
            check_rows_set(&w.bias, j, 0, 0.0);
        }
        check_rows_freeze(&w.weight);
        check_rows_freeze(&w.bias);
        check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
        check_rows_fill(&x, &rng, -1.0, 1.0);
        for (int p = 0; p < 2; p++) {
            check_rows want = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows got = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            mstar_linear *linear =
                linear_make(&linear_levels[l], &w, linear_panels[p], MSTAR_ACTIVATION_NONE);
            CHECK_OK(card_linear_run(linear, linear_levels[l].streams[0], &x.tensor, NULL,
                                     &want.tensor));
            mstar_linear_destroy(linear);
            unsigned int before = _mm_getcsr();
            const unsigned int modes[] = {0x9fc0U, 0x5f80U, 0x3f80U, 0x7f80U};
            for (int m = 0; m < 4; m++) {
                for (int s = 0; s < 3; s++) {
                    _mm_setcsr(modes[m]);
                    linear =
                        linear_make(&linear_levels[l], &w, linear_panels[p], MSTAR_ACTIVATION_NONE);
                    mstar_status status = card_linear_run(linear, linear_levels[l].streams[s],
                                                          &x.tensor, NULL, &got.tensor);
                    unsigned int after = _mm_getcsr() & ~0x3fU;
                    _mm_setcsr(before);
                    CHECK_OK(status);
                    assert_int_equal(after, modes[m]);
                    mstar_linear_destroy(linear);
                    for (int64_t row = 0; row < ROWS; row++)
                        linear_same_row("mode", &got, row, &want, row);
                }
            }
            check_rows_free(&want);
            check_rows_free(&got);
        }
        check_rows_free(&x);
        linear_weights_free(&w);
    }
#endif
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rows_bits_are_its_own),
        cmocka_unit_test(dtypes_are_exact),
        cmocka_unit_test(strides_do_not_matter),
        cmocka_unit_test(bad_rows_stay_apart),
        cmocka_unit_test(the_callers_mode_does_not_matter),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, linear_set_up, linear_tear_down);
}
