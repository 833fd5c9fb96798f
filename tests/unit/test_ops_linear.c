/*
 * test_ops_linear.c - packed products against float64, on every ISA level of the machine: the bound
 * is in support_linear.h. Parts of a fused product are the same as their concatenation.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support_linear.h"

/* ---- numbers --------------------------------------------------------------------------------- */

static const int64_t depths[] = {1, 3, 16, 37, 64, 257, 384, 1536};
static const int64_t columns[] = {1, 15, 16, 17, 31, 33, 63, 65, 129, 384, 1152};

/* Each case takes its options from its number, so that all values of all options come up. */
static void one_case(const linear_level *l, int64_t k, int64_t n, int number)
{
    check_rng rng = {(uint64_t)number};
    mstar_dtype panel = linear_panels[number % 2];
    mstar_activation activation = (mstar_activation)(number % 7);
    bool transposed = number % 5 == 0, has_bias = number % 3 != 0;
    int residual_kind = number / 2 % 3; /* none, apart, in place */
    int64_t rows = number * 7 % 41;
    if (k * n > 100000)
        rows = 1 + rows % 9; /* the reference costs rows * K * N */
    char what[160];
    (void)snprintf(what, sizeof what, "%s case %d K %lld N %lld rows %lld panels %s activation %s",
                   l->isa, number, (long long)k, (long long)n, (long long)rows,
                   mstar_dtype_name(panel), mstar_activation_name(activation));

    linear_weights w =
        linear_weights_make(k, n, linear_dtypes[number / 2 % 3], transposed, has_bias, &rng);
    mstar_linear *linear = linear_make(l, &w, panel, activation);
    check_rows x = check_rows_make(linear_dtypes[number / 3 % 3], rows, k, k + number % 6);
    check_rows residual = check_rows_make(linear_dtypes[number / 4 % 3], rows, n, n + number % 4);
    check_rows out = check_rows_make(linear_dtypes[number / 5 % 3], rows, n, n + number % 8);
    check_rows_fill(&x, &rng, -1.0, 1.0);
    check_rows_fill(&residual, &rng, -2.0, 2.0);
    mstar_stream *stream = l->streams[number % 3];
    const mstar_tensor *given = residual_kind > 0 ? &residual.tensor : NULL;
    CHECK_OK(card_linear_run(linear, stream, &x.tensor, given, &out.tensor));
    linear_weights_widen(&w, panel, linear_wide);
    linear_check_product(what, &w, linear_wide, linear_has_dots(l, panel), activation, &x,
                         given != NULL ? &residual : NULL, &out);
    check_rows_outside(&out, what);
    check_rows_unchanged(&x, "x");
    check_rows_unchanged(&residual, "residual");
    if (residual_kind == 2) {
        check_rows apart = check_rows_make(residual.tensor.dtype, rows, n, n);
        CHECK_OK(card_linear_run(linear, stream, &x.tensor, given, &apart.tensor));
        CHECK_OK(card_linear_run(linear, stream, &x.tensor, given, &residual.tensor));
        for (int64_t row = 0; row < rows; row++)
            linear_same_row(what, &residual, row, &apart, row);
        check_rows_outside(&residual, what);
        check_rows_free(&apart);
    }
    check_rows_free(&x);
    check_rows_free(&residual);
    check_rows_free(&out);
    mstar_linear_destroy(linear);
    linear_weights_free(&w);
}

static void products_are_near(void **state)
{
    (void)state;
    for (int l = 0; l < linear_num_levels; l++) {
        int number = 0;
        for (size_t a = 0; a < sizeof depths / sizeof depths[0]; a++) {
            for (size_t b = 0; b < sizeof columns / sizeof columns[0]; b++) {
                if (card_is_mock(linear_levels[l].device) && depths[a] * columns[b] > 20000)
                    continue; /* the mock is slow, and tries algorithms for each shape */
                int again = depths[a] * columns[b] > 100000 ? 2 : 5;
                for (int i = 0; i < again; i++)
                    one_case(&linear_levels[l], depths[a], columns[b], number++);
            }
        }
    }
}

/* Values whose products and sums leave the middle of f32's range. */
static void products_of_extreme_numbers(void **state)
{
    (void)state;
    check_rng rng = {9};
    for (int l = 0; l < linear_num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            linear_weights w = linear_weights_make(64, 40, MSTAR_DTYPE_F32, false, true, &rng);
            for (int64_t j = 0; j < 40; j++) {
                for (int64_t i = 0; i < 64; i++)
                    check_rows_set(&w.weight, j, i,
                                   ldexp(check_uniform(&rng, -1.0, 1.0), (int)(j * 5 - 120)));
            }
            check_rows_freeze(&w.weight);
            mstar_linear *linear =
                linear_make(&linear_levels[l], &w, linear_panels[p], MSTAR_ACTIVATION_NONE);
            check_rows x = check_rows_make(MSTAR_DTYPE_F32, 9, 64, 64);
            check_rows out = check_rows_make(MSTAR_DTYPE_F32, 9, 40, 40);
            for (int64_t row = 0; row < 9; row++) {
                for (int64_t i = 0; i < 64; i++)
                    check_rows_set(&x, row, i,
                                   ldexp(check_uniform(&rng, -1.0, 1.0), (int)(row * 6 - 24)));
            }
            check_rows_freeze(&x);
            CHECK_OK(
                card_linear_run(linear, linear_levels[l].streams[2], &x.tensor, NULL, &out.tensor));
            linear_weights_widen(&w, linear_panels[p], linear_wide);
            linear_check_product(linear_levels[l].isa, &w, linear_wide,
                                 linear_has_dots(&linear_levels[l], linear_panels[p]),
                                 MSTAR_ACTIVATION_NONE, &x, NULL, &out);
            check_rows_free(&x);
            check_rows_free(&out);
            mstar_linear_destroy(linear);
            linear_weights_free(&w);
        }
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void parts_are_their_concatenation(void **state)
{
    (void)state;
    enum { ROWS = 11, PARTS = 5, K = 45, N = 5 + 16 + 3 + 40 + 17 };
    const int64_t part_columns[PARTS] = {5, 16, 3, 40, 17};
    check_rng rng = {15};
    for (int l = 0; l < linear_num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            linear_weights parts[PARTS];
            const mstar_tensor *weight_list[PARTS], *bias_list[PARTS];
            linear_weights whole = linear_weights_make(K, N, MSTAR_DTYPE_F32, false, true, &rng);
            int64_t row = 0;
            for (int i = 0; i < PARTS; i++) {
                parts[i] = linear_weights_make(K, part_columns[i], linear_dtypes[i % 3], i % 2 == 1,
                                               true, &rng);
                weight_list[i] = &parts[i].weight_view;
                bias_list[i] = &parts[i].bias_view;
                const mstar_tensor *t = &parts[i].weight_view;
                for (int64_t j = 0; j < part_columns[i]; j++, row++) {
                    for (int64_t k = 0; k < K; k++)
                        check_rows_set(
                            &whole.weight, row, k,
                            (double)mst_load_element(t->data, t->dtype,
                                                     j * t->strides[0] + k * t->strides[1]));
                    check_rows_set(&whole.bias, row, 0,
                                   (double)check_rows_get(&parts[i].bias, j, 0));
                }
            }
            check_rows_freeze(&whole.weight);
            check_rows_freeze(&whole.bias);
            mstar_linear_desc desc;
            mstar_linear_desc_init(&desc);
            desc.weight_dtype = linear_panels[p];
            mstar_linear *fused = NULL;
            CHECK_OK(mstar_linear_create(linear_levels[l].device, &desc, weight_list, bias_list,
                                         PARTS, &fused));
            mstar_linear_info info = {.struct_size = sizeof info};
            CHECK_OK(mstar_linear_query(fused, &info));
            assert_int_equal(info.in_features, K);
            assert_int_equal(info.out_features, N);
            mstar_linear *single =
                linear_make(&linear_levels[l], &whole, linear_panels[p], MSTAR_ACTIVATION_NONE);
            check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
            check_rows a = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows b = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows_fill(&x, &rng, -1.0, 1.0);
            CHECK_OK(
                card_linear_run(fused, linear_levels[l].streams[2], &x.tensor, NULL, &a.tensor));
            CHECK_OK(
                card_linear_run(single, linear_levels[l].streams[0], &x.tensor, NULL, &b.tensor));
            for (int64_t i = 0; i < ROWS; i++)
                linear_same_row("parts", &a, i, &b, i);
            linear_weights_widen(&whole, linear_panels[p], linear_wide);
            linear_check_product("parts", &whole, linear_wide,
                                 linear_has_dots(&linear_levels[l], linear_panels[p]),
                                 MSTAR_ACTIVATION_NONE, &x, NULL, &a);
            check_rows_free(&x);
            check_rows_free(&a);
            check_rows_free(&b);
            mstar_linear_destroy(fused);
            mstar_linear_destroy(single);
            for (int i = 0; i < PARTS; i++)
                linear_weights_free(&parts[i]);
            linear_weights_free(&whole);
        }
    }
}

/* q, k and v are slices of one fused output, and x a slice of a wider tensor. */
static void slices_of_wider_tensors(void **state)
{
    (void)state;
    enum { ROWS = 13, K = 24, N = 24 };
    check_rng rng = {16};
    for (int l = 0; l < linear_num_levels; l++) {
        linear_weights w = linear_weights_make(K, N, MSTAR_DTYPE_F32, false, false, &rng);
        mstar_linear *linear =
            linear_make(&linear_levels[l], &w, MSTAR_DTYPE_F32, MSTAR_ACTIVATION_TANH);
        check_rows fused = check_rows_make(MSTAR_DTYPE_F32, ROWS, 3 * K, 3 * K);
        check_rows want = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        check_rows_fill(&fused, &rng, -1.0, 1.0);
        mstar_tensor x, out;
        CHECK_OK(mstar_tensor_slice(&fused.tensor, 1, K, K, &x));
        CHECK_OK(mstar_tensor_slice(&fused.tensor, 1, 2 * K, K, &out)); /* rows interleave */
        CHECK_OK(card_linear_run(linear, linear_levels[l].streams[0], &x, NULL, &want.tensor));
        CHECK_OK(card_linear_run(linear, linear_levels[l].streams[2], &x, NULL, &out));
        for (int64_t row = 0; row < ROWS; row++) {
            for (int64_t j = 0; j < 3 * K; j++) {
                float got = check_rows_get(&fused, row, j),
                      expected = check_rows_get(&want, row, j % K);
                const float *before =
                    (const float *)(const void *)(fused.shadow +
                                                  ((const unsigned char *)check_row(&fused, row) -
                                                   fused.block));
                assert_memory_equal(&got, j < 2 * K ? &before[j] : &expected, sizeof got);
            }
        }
        check_rows_free(&fused);
        check_rows_free(&want);
        mstar_linear_destroy(linear);
        linear_weights_free(&w);
    }
}

/* info.x_dtype: where it is bf16, an f32 x and the same x rounded to bf16 give the same bits. */
static void x_is_read_as_said(void **state)
{
    (void)state;
    enum { ROWS = 37, K = 75, N = 40 };
    check_rng rng = {17};
    for (int l = 0; l < linear_num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            linear_weights w = linear_weights_make(K, N, MSTAR_DTYPE_F32, false, true, &rng);
            mstar_linear *linear =
                linear_make(&linear_levels[l], &w, linear_panels[p], MSTAR_ACTIVATION_GELU);
            mstar_linear_info info = {.struct_size = sizeof info};
            CHECK_OK(mstar_linear_query(linear, &info));
            bool dots = linear_has_dots(&linear_levels[l], linear_panels[p]);
            assert_int_equal(info.x_dtype, dots ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F32);
            check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
            check_rows rounded = check_rows_make(info.x_dtype, ROWS, K, K);
            check_rows want = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows got = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows_fill(&x, &rng, -1.0, 1.0);
            for (int64_t row = 0; row < ROWS; row++) {
                for (int64_t k = 0; k < K; k++)
                    check_rows_set(&rounded, row, k, (double)check_rows_get(&x, row, k));
            }
            check_rows_freeze(&rounded);
            CHECK_OK(card_linear_run(linear, linear_levels[l].streams[0], &x.tensor, NULL,
                                     &want.tensor));
            CHECK_OK(card_linear_run(linear, linear_levels[l].streams[2], &rounded.tensor, NULL,
                                     &got.tensor));
            for (int64_t row = 0; row < ROWS; row++)
                linear_same_row("rounded x", &got, row, &want, row);
            check_rows_free(&x);
            check_rows_free(&rounded);
            check_rows_free(&want);
            check_rows_free(&got);
            mstar_linear_destroy(linear);
            linear_weights_free(&w);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(x_is_read_as_said),
        cmocka_unit_test(products_are_near),
        cmocka_unit_test(products_of_extreme_numbers),
        cmocka_unit_test(parts_are_their_concatenation),
        cmocka_unit_test(slices_of_wider_tensors),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, linear_set_up, linear_tear_down);
}
