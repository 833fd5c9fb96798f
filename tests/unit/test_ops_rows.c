/*
 * test_ops_rows.c - norms, normalise and activations against float64, on every ISA level of the
 * machine.
 *
 * Bounds come from the number of roundings and what they are scaled by. Three exact properties do
 * the rest: a row's bits do not depend on the other rows, the threads or its place; a narrow output
 * is the f32 output rounded once; a narrow input is its widened f32.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "support_card.h"

#define U 0x1p-24

static const mstar_dtype dtypes[3] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F16};
static const int64_t widths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 384, 1000};
enum { NUM_WIDTHS = sizeof widths / sizeof widths[0], MAX_WIDTH = 16500 };

typedef struct level {
    const char *isa;
    mstar_device *device;
    mstar_stream *stream, *alone; /* four threads, one thread */
} level;

static const char *const isas[CHECK_NUM_ISAS] = CHECK_ISAS;
static level levels[CHECK_NUM_ISAS + 1]; /* of processors, and the GPU */
static int num_levels;

static int set_up(void **state)
{
    (void)state;
    for (int i = card_is_real() ? CHECK_NUM_ISAS : 0; i <= CHECK_NUM_ISAS; i++) {
        bool cuda = i == CHECK_NUM_ISAS;
        level l = {.isa = cuda ? "cuda" : isas[i],
                   .device = cuda ? card_open() : check_open(isas[i], 4)};
        if (l.device == NULL)
            continue;
        CHECK_OK(mstar_stream_create(l.device, -1, &l.stream));
        CHECK_OK(mstar_stream_create(l.device, 1, &l.alone));
        levels[num_levels++] = l;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < num_levels; i++) {
        mstar_stream_destroy(levels[i].stream);
        mstar_stream_destroy(levels[i].alone);
        card_close(levels[i].device);
    }
    assert_int_equal(check_live_allocations(), 0);
    return 0;
}

/* ---- one row operation under a name ---------------------------------------------------------- */

typedef enum op_kind { LAYER_NORM, RMS_NORM, NORMALIZE, ACTIVATION } op_kind;

typedef struct op {
    op_kind kind;
    mstar_activation activation;
    double eps;
    check_rows weight, bias;
    bool has_bias;
} op;

static mstar_tensor vector_of(const check_rows *rows)
{
    mstar_tensor t = rows->tensor;
    t.rank = 1;
    t.shape[0] = t.shape[1];
    t.strides[0] = 1;
    return t;
}

static void run_op(const op *o, mstar_stream *stream, const mstar_tensor *x,
                   const mstar_tensor *residual, const mstar_tensor *out)
{
    mstar_tensor weight, bias;
    switch (o->kind) {
    case LAYER_NORM:
        weight = vector_of(&o->weight);
        bias = vector_of(&o->bias);
        CHECK_OK(
            card_layer_norm(stream, x, residual, &weight, o->has_bias ? &bias : NULL, o->eps, out));
        break;
    case RMS_NORM:
        weight = vector_of(&o->weight);
        CHECK_OK(card_rms_norm(stream, x, residual, &weight, o->eps, out));
        break;
    case NORMALIZE:
        CHECK_OK(card_normalize(stream, x, out));
        break;
    case ACTIVATION:
        CHECK_OK(card_activation_run(stream, o->activation, x, out));
        break;
    }
}

static op make_op(op_kind kind, int64_t width, check_rng *rng)
{
    op o = {.kind = kind, .eps = 1e-12, .has_bias = check_integer(rng, 0, 1) == 1};
    o.weight = check_rows_make(MSTAR_DTYPE_F32, 1, width, width);
    o.bias = check_rows_make(MSTAR_DTYPE_F32, 1, width, width);
    check_rows_fill(&o.weight, rng, -2.0, 2.0);
    check_rows_fill(&o.bias, rng, -2.0, 2.0);
    return o;
}

static void free_op(op *o)
{
    check_rows_unchanged(&o->weight, "weight");
    check_rows_unchanged(&o->bias, "bias");
    check_rows_free(&o->weight);
    check_rows_free(&o->bias);
}

/* ---- references ------------------------------------------------------------------------------ */

/* What a norm must give for one row, and how far an f32 evaluation may be from it. */
static void norm_reference(const op *o, const check_rows *x, const check_rows *residual,
                           int64_t row, double *want, double *bound)
{
    int64_t width = x->tensor.shape[1];
    double n = (double)width;
    static double y[MAX_WIDTH], y_error[MAX_WIDTH];
    double sum = 0.0, sum_abs = 0.0;
    for (int64_t i = 0; i < width; i++) {
        y[i] = (double)check_rows_get(x, row, i);
        if (residual != NULL)
            y[i] += (double)check_rows_get(residual, row, i);
        y_error[i] = residual != NULL ? U * fabs(y[i]) : 0.0;
        sum += y[i];
        sum_abs += fabs(y[i]);
    }
    if (o->kind == LAYER_NORM) {
        double mean = sum / n;
        double mean_error = (check_gamma(width + 1) + 2 * U) * sum_abs / n;
        for (int64_t i = 0; i < width; i++) {
            y[i] -= mean;
            y_error[i] += mean_error;
            y_error[i] += U * (fabs(y[i]) + y_error[i]);
        }
    }
    double squares = 0.0, squares_error = 0.0;
    for (int64_t i = 0; i < width; i++) {
        squares += y[i] * y[i];
        squares_error += 2.0 * fabs(y[i]) * y_error[i] + y_error[i] * y_error[i];
    }
    squares_error += check_gamma(width + 2) * (squares + squares_error);
    double eps = o->kind == NORMALIZE ? 0.0 : o->eps;
    double divisor = o->kind == NORMALIZE ? 1.0 : n;
    double scale, high, low;
    if (o->kind == NORMALIZE) {
        scale = 1.0 / fmax(sqrt(squares), 1e-12);
        high = 1.0 / fmax(sqrt(fmax(squares - squares_error, 0.0)), 1e-12);
        low = 1.0 / fmax(sqrt(squares + squares_error), 1e-12);
    } else {
        scale = 1.0 / sqrt(squares / divisor + eps);
        high = 1.0 / sqrt(fmax(squares - squares_error, 0.0) / divisor + eps * (1.0 - 2 * U));
        low = 1.0 / sqrt((squares + squares_error) / divisor + eps * (1.0 + 2 * U));
    }
    /* mean of squares, sum with eps, root, quotient, each once */
    double scale_error = fmax(high - scale, scale - low) + 4 * U * high;
    for (int64_t i = 0; i < width; i++) {
        double unit = y[i] * scale;
        double unit_error = y_error[i] * (scale + scale_error) + fabs(y[i]) * scale_error;
        unit_error += U * (fabs(unit) + unit_error);
        double w = o->kind == NORMALIZE ? 1.0 : (double)check_rows_get(&o->weight, 0, i);
        double b =
            o->kind == LAYER_NORM && o->has_bias ? (double)check_rows_get(&o->bias, 0, i) : 0.0;
        want[i] = unit * w + b;
        bound[i] = fabs(w) * unit_error + 2 * U * (fabs(unit * w) + fabs(want[i])) + 0x1p-148;
    }
}

static void check_row_near(const char *what, const check_rows *out, int64_t row, const double *want,
                           const double *bound)
{
    for (int64_t i = 0; i < out->tensor.shape[1]; i++) {
        double got = (double)check_rows_get(out, row, i);
        double all = bound[i] + check_rounding(out->tensor.dtype, fabs(want[i]) + bound[i]);
        if (!check_near(got, want[i], all))
            fail_msg("%s row %lld column %lld of %lld: %.9g instead of %.9g +- %.3g", what,
                     (long long)row, (long long)i, (long long)out->tensor.shape[1], got, want[i],
                     all);
    }
}

/* Rows of different kinds: ordinary, large offset, constant, tiny, huge, zero. */
static void fill_kinds(check_rows *x, check_rng *rng)
{
    bool f16 = x->tensor.dtype == MSTAR_DTYPE_F16;
    for (int64_t row = 0; row < x->tensor.shape[0]; row++) {
        int64_t kind = row % 7;
        double constant = check_uniform(rng, -10.0, 10.0);
        for (int64_t i = 0; i < x->tensor.shape[1]; i++) {
            double value = check_uniform(rng, -1.0, 1.0);
            if (kind == 1)
                value += 100.0;
            else if (kind == 2)
                value = constant;
            else if (kind == 3)
                value *= f16 ? 1e-4 : 1e-20;
            else if (kind == 4)
                value *= f16 ? 1e4 : 1e15;
            else if (kind == 5)
                value = 0.0;
            check_rows_set(x, row, i, value);
        }
    }
    check_rows_freeze(x);
}

static void norm_case(const level *l, op_kind kind, int64_t width, int64_t rows, int combination,
                      check_rng *rng)
{
    static double want[MAX_WIDTH], bound[MAX_WIDTH];
    op o = make_op(kind, width, rng);
    if (combination % 2 == 1)
        o.eps = 1e-5;
    int64_t gap = check_integer(rng, 0, 9);
    check_rows x = check_rows_make(dtypes[combination % 3], rows, width, width + gap);
    check_rows r = check_rows_make(dtypes[combination / 3 % 3], rows, width, width + 3);
    check_rows out = check_rows_make(dtypes[combination / 9 % 3], rows, width, width + gap);
    fill_kinds(&x, rng);
    check_rows_fill(&r, rng, -1.0, 1.0);
    bool with = kind != NORMALIZE && check_integer(rng, 0, 1) == 1;
    run_op(&o, l->stream, &x.tensor, with ? &r.tensor : NULL, &out.tensor);
    for (int64_t row = 0; row < rows; row++) {
        norm_reference(&o, &x, with ? &r : NULL, row, want, bound);
        check_row_near(l->isa, &out, row, want, bound);
    }
    check_rows_outside(&out, "out");
    check_rows_unchanged(&x, "x");
    check_rows_unchanged(&r, "residual");
    check_rows_free(&x);
    check_rows_free(&r);
    check_rows_free(&out);
    free_op(&o);
}

static void norms_are_near(void **state)
{
    (void)state;
    check_rng rng = {1};
    int combination = 0;
    for (int l = 0; l < num_levels; l++) {
        for (int kind = LAYER_NORM; kind <= NORMALIZE; kind++) {
            for (int w = 0; w < NUM_WIDTHS; w++)
                norm_case(&levels[l], (op_kind)kind, widths[w], 14, combination++, &rng);
        }
    }
}

/* ---- exact properties of all row operations -------------------------------------------------- */

static void same_row(const char *what, const check_rows *a, int64_t a_row, const check_rows *b,
                     int64_t b_row)
{
    if (memcmp(check_row(a, a_row), check_row(b, b_row), check_row_bytes(a)) != 0)
        fail_msg("%s: row %lld differs from row %lld of the other run", what, (long long)a_row,
                 (long long)b_row);
}

static void properties_of(const level *l, op *o, int64_t width, check_rng *rng)
{
    enum { ROWS = 61 };
    bool residual_allowed = o->kind <= RMS_NORM;
    char what[96];
    (void)snprintf(what, sizeof what, "%s op %d.%d width %lld", l->isa, (int)o->kind,
                   (int)o->activation, (long long)width);
    check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width + 5);
    check_rows r = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width + 2);
    check_rows out = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width + 1);
    fill_kinds(&x, rng);
    check_rows_fill(&r, rng, -1.0, 1.0);
    const mstar_tensor *residual = residual_allowed ? &r.tensor : NULL;
    run_op(o, l->stream, &x.tensor, residual, &out.tensor);
    check_rows_outside(&out, what);

    /* fewer rows, another place, another stride, another number of threads */
    for (int64_t count = 1; count <= ROWS; count += count < 9 ? 1 : 13) {
        int64_t first = check_integer(rng, 0, ROWS - count);
        check_rows part = check_rows_make(MSTAR_DTYPE_F32, count, width, width + 3);
        mstar_tensor xs, rs;
        CHECK_OK(mstar_tensor_slice(&x.tensor, 0, first, count, &xs));
        CHECK_OK(mstar_tensor_slice(&r.tensor, 0, first, count, &rs));
        run_op(o, count % 2 ? l->alone : l->stream, &xs, residual_allowed ? &rs : NULL,
               &part.tensor);
        for (int64_t row = 0; row < count; row++)
            same_row(what, &part, row, &out, first + row);
        check_rows_outside(&part, what);
        check_rows_free(&part);
    }

    /* narrow outputs are the f32 result rounded once; narrow inputs are their widened values */
    for (int narrow = 1; narrow < 3; narrow++) {
        check_rows small = check_rows_make(dtypes[narrow], ROWS, width, width + 4);
        run_op(o, l->stream, &x.tensor, residual, &small.tensor);
        for (int64_t row = 0; row < ROWS; row++) {
            for (int64_t i = 0; i < width; i++) {
                unsigned char one[4];
                mst_store_element(one, dtypes[narrow], 0, check_rows_get(&out, row, i));
                float want = mst_load_element(one, dtypes[narrow], 0);
                float got = check_rows_get(&small, row, i);
                assert_true(memcmp(&want, &got, sizeof want) == 0);
            }
        }
        check_rows_outside(&small, what);
        check_rows nx = check_rows_make(dtypes[narrow], ROWS, width, width + 4);
        check_rows wx = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width);
        check_rows nr = check_rows_make(dtypes[narrow], ROWS, width, width + 1);
        check_rows wr = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width);
        check_rows a = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width);
        check_rows b = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width);
        fill_kinds(&nx, rng);
        check_rows_fill(&nr, rng, -1.0, 1.0);
        for (int64_t row = 0; row < ROWS; row++) {
            for (int64_t i = 0; i < width; i++) {
                check_rows_set(&wx, row, i, (double)check_rows_get(&nx, row, i));
                check_rows_set(&wr, row, i, (double)check_rows_get(&nr, row, i));
            }
        }
        run_op(o, l->stream, &nx.tensor, residual_allowed ? &nr.tensor : NULL, &a.tensor);
        run_op(o, l->stream, &wx.tensor, residual_allowed ? &wr.tensor : NULL, &b.tensor);
        for (int64_t row = 0; row < ROWS; row++)
            same_row(what, &a, row, &b, row);
        check_rows_free(&small);
        check_rows_free(&nx);
        check_rows_free(&wx);
        check_rows_free(&nr);
        check_rows_free(&wr);
        check_rows_free(&a);
        check_rows_free(&b);
    }

    /* in place on the residual, then on x */
    if (residual_allowed) {
        run_op(o, l->stream, &x.tensor, &r.tensor, &r.tensor);
        for (int64_t row = 0; row < ROWS; row++)
            same_row(what, &r, row, &out, row);
        check_rows_outside(&r, what);
        memcpy(r.block, r.shadow, r.bytes);
    }
    run_op(o, l->stream, &x.tensor, residual, &x.tensor);
    for (int64_t row = 0; row < ROWS; row++)
        same_row(what, &x, row, &out, row);
    check_rows_outside(&x, what);
    memcpy(x.block, x.shadow, x.bytes);

    /* what is wrong with one row stays in it */
    check_rows_set(&x, 7, width - 1, (double)NAN);
    check_rows_set(&x, 20, 0, (double)INFINITY);
    check_rows bad = check_rows_make(MSTAR_DTYPE_F32, ROWS, width, width);
    run_op(o, l->stream, &x.tensor, residual, &bad.tensor);
    assert_true(isnan(check_rows_get(&bad, 7, width - 1)));
    if (o->kind != ACTIVATION)
        assert_true(isnan(check_rows_get(&bad, 7, 0)));
    for (int64_t row = 0; row < ROWS; row++) {
        if (row != 7 && row != 20)
            same_row(what, &bad, row, &out, row);
    }
    check_rows_free(&bad);
    check_rows_free(&x);
    check_rows_free(&r);
    check_rows_free(&out);
}

static void rows_stand_alone(void **state)
{
    (void)state;
    check_rng rng = {2};
    for (int l = 0; l < num_levels; l++) {
        for (int w = 0; w < NUM_WIDTHS - 1; w++) {
            for (int kind = LAYER_NORM; kind <= NORMALIZE; kind++) {
                op o = make_op((op_kind)kind, widths[w], &rng);
                properties_of(&levels[l], &o, widths[w], &rng);
                free_op(&o);
            }
            op o = make_op(ACTIVATION, widths[w], &rng);
            o.activation = (mstar_activation)(w % 7);
            properties_of(&levels[l], &o, widths[w], &rng);
            free_op(&o);
        }
        for (int a = MSTAR_ACTIVATION_NONE; a <= MSTAR_ACTIVATION_SIGMOID; a++) {
            op o = make_op(ACTIVATION, 33, &rng);
            o.activation = (mstar_activation)a;
            properties_of(&levels[l], &o, 33, &rng);
            free_op(&o);
        }
    }
}

/* A GPU does these with teams of several warps, and the widest without keeping the row. */
static void wide_rows(void **state)
{
    (void)state;
    const int64_t wide[] = {1025, 1500, 4100, MAX_WIDTH};
    check_rng rng = {11};
    int combination = 0;
    for (int l = 0; l < num_levels; l++) {
        for (int w = 0; w < 4; w++) {
            for (int kind = LAYER_NORM; kind <= ACTIVATION; kind++) {
                if (kind != ACTIVATION)
                    norm_case(&levels[l], (op_kind)kind, wide[w], 2, combination++, &rng);
                op o = make_op((op_kind)kind, wide[w], &rng);
                o.activation = MSTAR_ACTIVATION_SILU;
                check_rows x = check_rows_make(MSTAR_DTYPE_F32, 3, wide[w], wide[w] + 3);
                check_rows all = check_rows_make(MSTAR_DTYPE_F32, 3, wide[w], wide[w]);
                check_rows one = check_rows_make(MSTAR_DTYPE_F32, 1, wide[w], wide[w]);
                mstar_tensor last;
                check_rows_fill(&x, &rng, -1.0, 1.0);
                CHECK_OK(mstar_tensor_slice(&x.tensor, 0, 2, 1, &last));
                run_op(&o, levels[l].stream, &x.tensor, NULL, &all.tensor);
                run_op(&o, levels[l].alone, &last, NULL, &one.tensor);
                same_row("a wide row", &one, 0, &all, 2);
                check_rows_free(&x);
                check_rows_free(&all);
                check_rows_free(&one);
                free_op(&o);
            }
        }
    }
}

static void lengths_past_f32(void **state)
{
    (void)state;
    const double scales[] = {1e-45, 1e-40, 1e-30, 1e-20, 1e-13, 1e-12,
                             1e-11, 1e18,  1e20,  1e37,  3.3e38};
    static double want[1000], bound[1000];
    op o = {.kind = NORMALIZE};
    for (int l = 0; l < num_levels; l++) {
        for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
            for (int w = 0; w < NUM_WIDTHS; w++) {
                int64_t width = widths[w];
                check_rows x = check_rows_make(MSTAR_DTYPE_F32, 1, width, width);
                check_rows out = check_rows_make(MSTAR_DTYPE_F32, 1, width, width);
                for (int64_t i = 0; i < width; i++)
                    check_rows_set(&x, 0, i,
                                   scales[s] * (i % 3 == 1 ? -1.0 : 0.5 + (double)(i % 2) / 2));
                run_op(&o, levels[l].stream, &x.tensor, NULL, &out.tensor);
                norm_reference(&o, &x, NULL, 0, want, bound);
                check_row_near(levels[l].isa, &out, 0, want, bound);
                check_rows_free(&x);
                check_rows_free(&out);
            }
        }
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

static void check_activations(const level *l, check_rows *x, check_rows *out)
{
    for (int a = MSTAR_ACTIVATION_NONE; a <= MSTAR_ACTIVATION_SIGMOID; a++) {
        mstar_activation activation = (mstar_activation)a;
        CHECK_OK(card_activation_run(l->stream, activation, &x->tensor, &out->tensor));
        for (int64_t row = 0; row < x->tensor.shape[0]; row++) {
            for (int64_t i = 0; i < x->tensor.shape[1]; i++) {
                double v = (double)check_rows_get(x, row, i);
                double want = check_activation(activation, v);
                double bound = check_activation_error(activation, v);
                double got = (double)check_rows_get(out, row, i);
                bound += check_rounding(MSTAR_DTYPE_F32, want);
                if (!check_near(got, want, bound))
                    fail_msg("%s %s(%a): %a instead of %a +- %a", l->isa,
                             mstar_activation_name(activation), v, got, want, bound);
            }
        }
    }
}

static void activations_over_all_floats(void **state)
{
    (void)state;
    enum { ROWS = 160, WIDTH = 1001 };
    for (int l = 0; l < num_levels; l++) {
        check_rows x = check_rows_make(MSTAR_DTYPE_F32, ROWS, WIDTH, WIDTH);
        check_rows out = check_rows_make(MSTAR_DTYPE_F32, ROWS, WIDTH, WIDTH);
        uint32_t bits = 12345;
        for (int64_t i = 0; i < ROWS * WIDTH; i++) {
            float value;
            bits += 26813U; /* about once around all patterns */
            memcpy(&value, &bits, sizeof value);
            memcpy((float *)x.tensor.data + i, &value, sizeof value);
        }
        const float special[] = {0.0f,     -0.0f,   INFINITY, -INFINITY,  NAN,        FLT_MAX,
                                 -FLT_MAX, FLT_MIN, -FLT_MIN, 0x1p-149f,  -0x1p-149f, -87.3f,
                                 -88.0f,   -103.9f, -104.0f,  -105.0f,    88.0f,      88.73f,
                                 89.0f,    0.625f,  -0.625f,  0.62499994f};
        memcpy(x.tensor.data, special, sizeof special);
        check_activations(&levels[l], &x, &out);
        check_rng rng = {3};
        check_rows_fill(&x, &rng, -14.0, 14.0);
        check_activations(&levels[l], &x, &out);
        check_rows_fill(&x, &rng, -110.0, 0.0);
        check_activations(&levels[l], &x, &out);
        check_rows_free(&x);
        check_rows_free(&out);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_near),
        cmocka_unit_test(rows_stand_alone),
        cmocka_unit_test(wide_rows),
        cmocka_unit_test(lengths_past_f32),
        cmocka_unit_test(activations_over_all_floats),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
