/*
 * test_ops_linear.c - packed products against float64, on every ISA level of the machine.
 *
 * The bound: a sum of K products in f32, in any fixed order, fused or not, is within
 * gamma(K + 2) * sum |x||w| of the exact one (bias included); the activation carries that on with a
 * slope of at most 1.2 and adds its own error; residual and output are one rounding each. Exact
 * properties do the rest: the bits of a row do not depend on the number of rows, its place, the
 * threads or the caller's floating-point mode, and parts are the same as their concatenation.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "support_check.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define U 0x1p-24

static const mstar_dtype dtypes[3] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F16};
static const mstar_dtype panels[2] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16};

enum { MAX_K = 1536, MAX_N = 1152, MAX_ROWS = 300 };

typedef struct level {
    const char *isa;
    mstar_device *device;
    mstar_stream *streams[3]; /* one, three and four threads */
} level;

static const char *const isas[CHECK_NUM_ISAS] = CHECK_ISAS;
static level levels[CHECK_NUM_ISAS];
static int num_levels;

static int set_up(void **state)
{
    (void)state;
    for (int i = 0; i < CHECK_NUM_ISAS; i++) {
        level l = {.isa = isas[i], .device = check_open(isas[i], 4)};
        if (l.device == NULL)
            continue;
        const int32_t threads[3] = {1, 3, -1};
        for (int s = 0; s < 3; s++)
            CHECK_OK(mstar_stream_create(l.device, threads[s], &l.streams[s]));
        levels[num_levels++] = l;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < num_levels; i++) {
        for (int s = 0; s < 3; s++)
            mstar_stream_destroy(levels[i].streams[s]);
        CHECK_OK(mstar_device_close(levels[i].device));
    }
    assert_int_equal(check_live_allocations(), 0);
    return 0;
}

/* ---- a weight and its product ---------------------------------------------------------------- */

typedef struct weights {
    check_rows weight; /* [N, K], or [K, N] seen through its strides */
    check_rows bias;   /* [1, N] */
    mstar_tensor weight_view, bias_view;
    bool has_bias;
} weights;

static weights make_weights(int64_t k, int64_t n, mstar_dtype dtype, bool transposed, bool has_bias,
                            check_rng *rng)
{
    weights w = {.has_bias = has_bias};
    w.weight =
        transposed ? check_rows_make(dtype, k, n, n + 3) : check_rows_make(dtype, n, k, k + 5);
    check_rows_fill(&w.weight, rng, -1.0, 1.0);
    w.weight_view = w.weight.tensor;
    if (transposed) {
        w.weight_view.shape[0] = n;
        w.weight_view.shape[1] = k;
        w.weight_view.strides[0] = 1;
        w.weight_view.strides[1] = w.weight.tensor.strides[0];
    }
    /* every second element of a longer vector: any stride is taken */
    w.bias = check_rows_make(dtype, n, 1, 2);
    check_rows_fill(&w.bias, rng, -1.0, 1.0);
    w.bias_view = w.bias.tensor;
    w.bias_view.rank = 1;
    return w;
}

static void free_weights(weights *w)
{
    check_rows_unchanged(&w->weight, "weight");
    check_rows_unchanged(&w->bias, "bias");
    check_rows_free(&w->weight);
    check_rows_free(&w->bias);
}

static mstar_linear *make_linear(const level *l, const weights *w, mstar_dtype panel,
                                 mstar_activation activation)
{
    mstar_linear_desc desc;
    mstar_linear_desc_init(&desc);
    desc.weight_dtype = panel;
    desc.activation = activation;
    const mstar_tensor *weight_list[1] = {&w->weight_view}, *bias_list[1] = {&w->bias_view};
    mstar_linear *linear = NULL;
    CHECK_OK(mstar_linear_create(l->device, &desc, weight_list, w->has_bias ? bias_list : NULL, 1,
                                 &linear));
    return linear;
}

/* The weight as the panels hold it, in f64, [N, K]. */
static void widen_weights(const weights *w, mstar_dtype panel, double *wide)
{
    const mstar_tensor *t = &w->weight_view;
    for (int64_t j = 0; j < t->shape[0]; j++) {
        for (int64_t i = 0; i < t->shape[1]; i++) {
            float value =
                mst_load_element(t->data, t->dtype, j * t->strides[0] + i * t->strides[1]);
            if (panel == MSTAR_DTYPE_BF16)
                value = mst_bf16_to_f32(mst_f32_to_bf16(value));
            wide[j * t->shape[1] + i] = (double)value;
        }
    }
}

static double wide_weights[MAX_K * MAX_N], wide_x[MAX_K];

/* Levels with bf16 dot instructions round x too, and take subnormal factors and sums for 0. */
static bool has_dots(const level *l, mstar_dtype panel)
{
    bool dots = strcmp(l->isa, "avx512bf16") == 0 || strcmp(l->isa, "amx") == 0;
    return dots && panel == MSTAR_DTYPE_BF16;
}

static void check_product(const char *what, const weights *w, const double *wide, bool dots,
                          mstar_activation activation, const check_rows *x,
                          const check_rows *residual, const check_rows *out)
{
    int64_t k = w->weight_view.shape[1], n = w->weight_view.shape[0];
    for (int64_t row = 0; row < x->tensor.shape[0]; row++) {
        for (int64_t i = 0; i < k; i++) {
            float value = check_rows_get(x, row, i);
            wide_x[i] = (double)(dots ? mst_bf16_to_f32(mst_f32_to_bf16(value)) : value);
        }
        for (int64_t j = 0; j < n; j++) {
            double b = w->has_bias ? (double)check_rows_get(&w->bias, j, 0) : 0.0;
            double sum = b, sum_abs = fabs(b), lost = 0.0;
            for (int64_t i = 0; i < k; i++) {
                double product = wide_x[i] * wide[j * k + i];
                sum += product;
                sum_abs += fabs(product);
                lost += 0x1p-126 * (1.0 + fabs(wide_x[i]) + fabs(wide[j * k + i]));
            }
            /* the reference's own roundings are 2^-29 of this */
            double error = check_gamma(k + 2) * sum_abs;
            error += dots ? lost : 0x1p-148 * (double)k;
            double want = check_activation(activation, sum);
            error = 1.2 * error + 1.01 * check_activation_error(activation, sum);
            if (residual != NULL) {
                want += (double)check_rows_get(residual, row, j);
                error += U * (fabs(want) + error);
            }
            error += check_rounding(out->tensor.dtype, fabs(want) + error);
            double got = (double)check_rows_get(out, row, j);
            if (!check_near(got, want, error))
                fail_msg("%s: row %lld column %lld: %.9g instead of %.9g +- %.3g", what,
                         (long long)row, (long long)j, got, want, error);
        }
    }
}

static void same_row(const char *what, const check_rows *a, int64_t a_row, const check_rows *b,
                     int64_t b_row)
{
    if (memcmp(check_row(a, a_row), check_row(b, b_row), check_row_bytes(a)) != 0)
        fail_msg("%s: row %lld differs from row %lld of the other run", what, (long long)a_row,
                 (long long)b_row);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static const int64_t depths[] = {1, 3, 16, 37, 64, 257, 384, 1536};
static const int64_t columns[] = {1, 15, 16, 17, 31, 33, 63, 65, 129, 384, 1152};

/* Each case takes its options from its number, so that all values of all options come up. */
static void one_case(const level *l, int64_t k, int64_t n, int number)
{
    check_rng rng = {(uint64_t)number};
    mstar_dtype panel = panels[number % 2];
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

    weights w = make_weights(k, n, dtypes[number / 2 % 3], transposed, has_bias, &rng);
    mstar_linear *linear = make_linear(l, &w, panel, activation);
    check_rows x = check_rows_make(dtypes[number / 3 % 3], rows, k, k + number % 6);
    check_rows residual = check_rows_make(dtypes[number / 4 % 3], rows, n, n + number % 4);
    check_rows out = check_rows_make(dtypes[number / 5 % 3], rows, n, n + number % 8);
    check_rows_fill(&x, &rng, -1.0, 1.0);
    check_rows_fill(&residual, &rng, -2.0, 2.0);
    mstar_stream *stream = l->streams[number % 3];
    const mstar_tensor *given = residual_kind > 0 ? &residual.tensor : NULL;
    CHECK_OK(mstar_linear_run(linear, stream, &x.tensor, given, &out.tensor));
    widen_weights(&w, panel, wide_weights);
    check_product(what, &w, wide_weights, has_dots(l, panel), activation, &x,
                  given != NULL ? &residual : NULL, &out);
    check_rows_outside(&out, what);
    check_rows_unchanged(&x, "x");
    check_rows_unchanged(&residual, "residual");
    if (residual_kind == 2) {
        check_rows apart = check_rows_make(residual.tensor.dtype, rows, n, n);
        CHECK_OK(mstar_linear_run(linear, stream, &x.tensor, given, &apart.tensor));
        CHECK_OK(mstar_linear_run(linear, stream, &x.tensor, given, &residual.tensor));
        for (int64_t row = 0; row < rows; row++)
            same_row(what, &residual, row, &apart, row);
        check_rows_outside(&residual, what);
        check_rows_free(&apart);
    }
    check_rows_free(&x);
    check_rows_free(&residual);
    check_rows_free(&out);
    mstar_linear_destroy(linear);
    free_weights(&w);
}

static void products_are_near(void **state)
{
    (void)state;
    for (int l = 0; l < num_levels; l++) {
        int number = 0;
        for (size_t a = 0; a < sizeof depths / sizeof depths[0]; a++) {
            for (size_t b = 0; b < sizeof columns / sizeof columns[0]; b++) {
                int again = depths[a] * columns[b] > 100000 ? 2 : 5;
                for (int i = 0; i < again; i++)
                    one_case(&levels[l], depths[a], columns[b], number++);
            }
        }
    }
}

/* Values whose products and sums leave the middle of f32's range. */
static void products_of_extreme_numbers(void **state)
{
    (void)state;
    check_rng rng = {9};
    for (int l = 0; l < num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            weights w = make_weights(64, 40, MSTAR_DTYPE_F32, false, true, &rng);
            for (int64_t j = 0; j < 40; j++) {
                for (int64_t i = 0; i < 64; i++)
                    check_rows_set(&w.weight, j, i,
                                   ldexp(check_uniform(&rng, -1.0, 1.0), (int)(j * 5 - 120)));
            }
            check_rows_freeze(&w.weight);
            mstar_linear *linear = make_linear(&levels[l], &w, panels[p], MSTAR_ACTIVATION_NONE);
            check_rows x = check_rows_make(MSTAR_DTYPE_F32, 9, 64, 64);
            check_rows out = check_rows_make(MSTAR_DTYPE_F32, 9, 40, 40);
            for (int64_t row = 0; row < 9; row++) {
                for (int64_t i = 0; i < 64; i++)
                    check_rows_set(&x, row, i,
                                   ldexp(check_uniform(&rng, -1.0, 1.0), (int)(row * 6 - 24)));
            }
            check_rows_freeze(&x);
            CHECK_OK(mstar_linear_run(linear, levels[l].streams[2], &x.tensor, NULL, &out.tensor));
            widen_weights(&w, panels[p], wide_weights);
            check_product(levels[l].isa, &w, wide_weights, has_dots(&levels[l], panels[p]),
                          MSTAR_ACTIVATION_NONE, &x, NULL, &out);
            check_rows_free(&x);
            check_rows_free(&out);
            mstar_linear_destroy(linear);
            free_weights(&w);
        }
    }
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void rows_alone(const level *l, int64_t k, int64_t n, mstar_dtype panel, mstar_dtype x_dtype,
                       bool all_counts)
{
    check_rng rng = {(uint64_t)(k * 31 + n)};
    int64_t most = k * n > 1000000 ? 61 : MAX_ROWS;
    char what[96];
    (void)snprintf(what, sizeof what, "%s K %lld N %lld panels %s x %s", l->isa, (long long)k,
                   (long long)n, mstar_dtype_name(panel), mstar_dtype_name(x_dtype));
    weights w = make_weights(k, n, MSTAR_DTYPE_F32, false, true, &rng);
    mstar_linear *linear = make_linear(l, &w, panel, MSTAR_ACTIVATION_GELU);
    check_rows x = check_rows_make(x_dtype, most, k, k + 1);
    check_rows residual = check_rows_make(MSTAR_DTYPE_F32, most, n, n);
    check_rows all = check_rows_make(MSTAR_DTYPE_F32, most, n, n);
    check_rows_fill(&x, &rng, -1.0, 1.0);
    check_rows_fill(&residual, &rng, -1.0, 1.0);
    CHECK_OK(mstar_linear_run(linear, l->streams[2], &x.tensor, &residual.tensor, &all.tensor));
    if (most == MAX_ROWS) {
        widen_weights(&w, panel, wide_weights);
        check_product(what, &w, wide_weights, has_dots(l, panel), MSTAR_ACTIVATION_GELU, &x,
                      &residual, &all);
    }
    for (int64_t count = 1; count <= most; count++) {
        bool wanted = all_counts || count <= 17 || count == 29 || count == 47 || count == 100;
        if (!wanted || (most < MAX_ROWS && count > 8))
            continue;
        int64_t first = check_integer(&rng, 0, most - count);
        mstar_tensor xs, rs;
        CHECK_OK(mstar_tensor_slice(&x.tensor, 0, first, count, &xs));
        CHECK_OK(mstar_tensor_slice(&residual.tensor, 0, first, count, &rs));
        check_rows part = check_rows_make(MSTAR_DTYPE_F32, count, n, n + 1);
        for (int s = 0; s < (all_counts ? 1 : 3); s++) {
            CHECK_OK(mstar_linear_run(linear, l->streams[(count + s) % 3], &xs, &rs, &part.tensor));
            for (int64_t row = 0; row < count; row++)
                same_row(what, &part, row, &all, first + row);
        }
        check_rows_free(&part);
    }
    check_rows_free(&x);
    check_rows_free(&residual);
    check_rows_free(&all);
    mstar_linear_destroy(linear);
    free_weights(&w);
}

static void a_rows_bits_are_its_own(void **state)
{
    (void)state;
    for (int l = 0; l < num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            rows_alone(&levels[l], 16, 33, panels[p], dtypes[p], true);
            rows_alone(&levels[l], 1, 1, panels[p], dtypes[0], true);
            rows_alone(&levels[l], 257, 65, panels[p], dtypes[2 - p], false);
            rows_alone(&levels[l], 384, 129, panels[p], dtypes[p], false);
        }
        rows_alone(&levels[l], 1536, 1152, MSTAR_DTYPE_F32, MSTAR_DTYPE_F32, false);
    }
}

/* Narrow rows of x are their widened values; a narrow out is the f32 result rounded once. */
static void dtypes_are_exact(void **state)
{
    (void)state;
    enum { ROWS = 23, K = 300, N = 37 };
    check_rng rng = {12};
    for (int l = 0; l < num_levels; l++) {
        for (int narrow = 1; narrow < 3; narrow++) {
            weights w = make_weights(K, N, dtypes[narrow], false, true, &rng);
            mstar_linear *linear =
                make_linear(&levels[l], &w, panels[narrow % 2], MSTAR_ACTIVATION_SILU);
            check_rows x = check_rows_make(dtypes[narrow], ROWS, K, K);
            check_rows wide = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
            check_rows a = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows b = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows c = check_rows_make(dtypes[narrow], ROWS, N, N);
            check_rows_fill(&x, &rng, -1.0, 1.0);
            for (int64_t row = 0; row < ROWS; row++) {
                for (int64_t i = 0; i < K; i++)
                    check_rows_set(&wide, row, i, (double)check_rows_get(&x, row, i));
            }
            mstar_stream *stream = levels[l].streams[1];
            CHECK_OK(mstar_linear_run(linear, stream, &x.tensor, NULL, &a.tensor));
            CHECK_OK(mstar_linear_run(linear, stream, &wide.tensor, NULL, &b.tensor));
            CHECK_OK(mstar_linear_run(linear, stream, &x.tensor, NULL, &c.tensor));
            for (int64_t row = 0; row < ROWS; row++) {
                same_row("widened x", &a, row, &b, row);
                for (int64_t j = 0; j < N; j++) {
                    unsigned char one[4];
                    mst_store_element(one, dtypes[narrow], 0, check_rows_get(&a, row, j));
                    float want = mst_load_element(one, dtypes[narrow], 0);
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
            free_weights(&w);
        }
    }
}

static void bad_rows_stay_apart(void **state)
{
    (void)state;
    enum { ROWS = 20, K = 70, N = 50 };
    check_rng rng = {13};
    for (int l = 0; l < num_levels; l++) {
        weights w = make_weights(K, N, MSTAR_DTYPE_F32, false, true, &rng);
        mstar_linear *linear = make_linear(&levels[l], &w, MSTAR_DTYPE_F32, MSTAR_ACTIVATION_NONE);
        check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
        check_rows good = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        check_rows bad = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        check_rows_fill(&x, &rng, -1.0, 1.0);
        CHECK_OK(mstar_linear_run(linear, levels[l].streams[2], &x.tensor, NULL, &good.tensor));
        check_rows_set(&x, 5, K - 1, (double)NAN);
        check_rows_set(&x, 11, 0, (double)INFINITY);
        CHECK_OK(mstar_linear_run(linear, levels[l].streams[2], &x.tensor, NULL, &bad.tensor));
        for (int64_t row = 0; row < ROWS; row++) {
            if (row != 5 && row != 11)
                same_row("bad rows", &bad, row, &good, row);
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
        free_weights(&w);
    }
}

/* Packing and running in the caller's odd modes give the bits of an ordinary caller. */
static void the_callers_mode_does_not_matter(void **state)
{
    (void)state;
#if defined(__x86_64__)
    enum { ROWS = 9, K = 50, N = 35 };
    check_rng rng = {14};
    for (int l = 0; l < num_levels; l++) {
        weights w = make_weights(K, N, MSTAR_DTYPE_F32, false, true, &rng);
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
            mstar_linear *linear = make_linear(&levels[l], &w, panels[p], MSTAR_ACTIVATION_NONE);
            CHECK_OK(mstar_linear_run(linear, levels[l].streams[0], &x.tensor, NULL, &want.tensor));
            mstar_linear_destroy(linear);
            unsigned int before = _mm_getcsr();
            const unsigned int modes[] = {0x9fc0U, 0x5f80U, 0x3f80U, 0x7f80U};
            for (int m = 0; m < 4; m++) {
                for (int s = 0; s < 3; s++) {
                    _mm_setcsr(modes[m]);
                    linear = make_linear(&levels[l], &w, panels[p], MSTAR_ACTIVATION_NONE);
                    mstar_status status = mstar_linear_run(linear, levels[l].streams[s], &x.tensor,
                                                           NULL, &got.tensor);
                    unsigned int after = _mm_getcsr() & ~0x3fU;
                    _mm_setcsr(before);
                    CHECK_OK(status);
                    assert_int_equal(after, modes[m]);
                    mstar_linear_destroy(linear);
                    for (int64_t row = 0; row < ROWS; row++)
                        same_row("mode", &got, row, &want, row);
                }
            }
            check_rows_free(&want);
            check_rows_free(&got);
        }
        check_rows_free(&x);
        free_weights(&w);
    }
#endif
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void parts_are_their_concatenation(void **state)
{
    (void)state;
    enum { ROWS = 11, PARTS = 5, K = 45, N = 5 + 16 + 3 + 40 + 17 };
    const int64_t part_columns[PARTS] = {5, 16, 3, 40, 17};
    check_rng rng = {15};
    for (int l = 0; l < num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            weights parts[PARTS];
            const mstar_tensor *weight_list[PARTS], *bias_list[PARTS];
            weights whole = make_weights(K, N, MSTAR_DTYPE_F32, false, true, &rng);
            int64_t row = 0;
            for (int i = 0; i < PARTS; i++) {
                parts[i] = make_weights(K, part_columns[i], dtypes[i % 3], i % 2 == 1, true, &rng);
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
            desc.weight_dtype = panels[p];
            mstar_linear *fused = NULL;
            CHECK_OK(mstar_linear_create(levels[l].device, &desc, weight_list, bias_list, PARTS,
                                         &fused));
            mstar_linear_info info = {.struct_size = sizeof info};
            CHECK_OK(mstar_linear_query(fused, &info));
            assert_int_equal(info.in_features, K);
            assert_int_equal(info.out_features, N);
            mstar_linear *single =
                make_linear(&levels[l], &whole, panels[p], MSTAR_ACTIVATION_NONE);
            check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, K, K);
            check_rows a = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows b = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
            check_rows_fill(&x, &rng, -1.0, 1.0);
            CHECK_OK(mstar_linear_run(fused, levels[l].streams[2], &x.tensor, NULL, &a.tensor));
            CHECK_OK(mstar_linear_run(single, levels[l].streams[0], &x.tensor, NULL, &b.tensor));
            for (int64_t i = 0; i < ROWS; i++)
                same_row("parts", &a, i, &b, i);
            widen_weights(&whole, panels[p], wide_weights);
            check_product("parts", &whole, wide_weights, has_dots(&levels[l], panels[p]),
                          MSTAR_ACTIVATION_NONE, &x, NULL, &a);
            check_rows_free(&x);
            check_rows_free(&a);
            check_rows_free(&b);
            mstar_linear_destroy(fused);
            mstar_linear_destroy(single);
            for (int i = 0; i < PARTS; i++)
                free_weights(&parts[i]);
            free_weights(&whole);
        }
    }
}

/* q, k and v are slices of one fused output, and x a slice of a wider tensor. */
static void slices_of_wider_tensors(void **state)
{
    (void)state;
    enum { ROWS = 13, K = 24, N = 24 };
    check_rng rng = {16};
    for (int l = 0; l < num_levels; l++) {
        weights w = make_weights(K, N, MSTAR_DTYPE_F32, false, false, &rng);
        mstar_linear *linear = make_linear(&levels[l], &w, MSTAR_DTYPE_F32, MSTAR_ACTIVATION_TANH);
        check_rows fused = check_rows_make(MSTAR_DTYPE_F32, ROWS, 3 * K, 3 * K);
        check_rows want = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        check_rows_fill(&fused, &rng, -1.0, 1.0);
        mstar_tensor x, out;
        CHECK_OK(mstar_tensor_slice(&fused.tensor, 1, K, K, &x));
        CHECK_OK(mstar_tensor_slice(&fused.tensor, 1, 2 * K, K, &out)); /* rows interleave */
        CHECK_OK(mstar_linear_run(linear, levels[l].streams[0], &x, NULL, &want.tensor));
        CHECK_OK(mstar_linear_run(linear, levels[l].streams[2], &x, NULL, &out));
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
        free_weights(&w);
    }
}

/* info.x_dtype: where it is bf16, an f32 x and the same x rounded to bf16 give the same bits. */
static void x_is_read_as_said(void **state)
{
    (void)state;
    enum { ROWS = 37, K = 75, N = 40 };
    check_rng rng = {17};
    for (int l = 0; l < num_levels; l++) {
        for (int p = 0; p < 2; p++) {
            weights w = make_weights(K, N, MSTAR_DTYPE_F32, false, true, &rng);
            mstar_linear *linear = make_linear(&levels[l], &w, panels[p], MSTAR_ACTIVATION_GELU);
            mstar_linear_info info = {.struct_size = sizeof info};
            CHECK_OK(mstar_linear_query(linear, &info));
            bool dots = has_dots(&levels[l], panels[p]);
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
            CHECK_OK(mstar_linear_run(linear, levels[l].streams[0], &x.tensor, NULL, &want.tensor));
            CHECK_OK(
                mstar_linear_run(linear, levels[l].streams[2], &rounded.tensor, NULL, &got.tensor));
            for (int64_t row = 0; row < ROWS; row++)
                same_row("rounded x", &got, row, &want, row);
            check_rows_free(&x);
            check_rows_free(&rounded);
            check_rows_free(&want);
            check_rows_free(&got);
            mstar_linear_destroy(linear);
            free_weights(&w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(x_is_read_as_said),
        cmocka_unit_test(products_are_near),
        cmocka_unit_test(products_of_extreme_numbers),
        cmocka_unit_test(a_rows_bits_are_its_own),
        cmocka_unit_test(dtypes_are_exact),
        cmocka_unit_test(bad_rows_stay_apart),
        cmocka_unit_test(the_callers_mode_does_not_matter),
        cmocka_unit_test(parts_are_their_concatenation),
        cmocka_unit_test(slices_of_wider_tensors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
