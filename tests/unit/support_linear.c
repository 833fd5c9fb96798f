/* support_linear.c - see support_linear.h. */
#include <math.h>
#include <string.h>

#include "support_linear.h"

#define U 0x1p-24

static const char *const isas[CHECK_NUM_ISAS] = CHECK_ISAS;
linear_level linear_levels[CHECK_NUM_ISAS + 1];
int linear_num_levels;

int linear_set_up(void **state)
{
    (void)state;
    for (int i = card_is_real() ? CHECK_NUM_ISAS : 0; i <= CHECK_NUM_ISAS; i++) {
        bool cuda = i == CHECK_NUM_ISAS;
        linear_level l = {.isa = cuda ? "cuda" : isas[i],
                          .device = cuda ? card_open() : check_open(isas[i], 4)};
        if (l.device == NULL)
            continue;
        const int32_t threads[3] = {1, 3, -1};
        for (int s = 0; s < 3; s++)
            CHECK_OK(mstar_stream_create(l.device, threads[s], &l.streams[s]));
        linear_levels[linear_num_levels++] = l;
    }
    return 0;
}

int linear_tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < linear_num_levels; i++) {
        for (int s = 0; s < 3; s++)
            mstar_stream_destroy(linear_levels[i].streams[s]);
        card_close(linear_levels[i].device);
    }
    assert_int_equal(check_live_allocations(), 0);
    return 0;
}

/* ---- a weight and its product ---------------------------------------------------------------- */

linear_weights linear_weights_make(int64_t k, int64_t n, mstar_dtype dtype, bool transposed,
                                   bool has_bias, check_rng *rng)
{
    linear_weights w = {.has_bias = has_bias};
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

void linear_weights_free(linear_weights *w)
{
    check_rows_unchanged(&w->weight, "weight");
    check_rows_unchanged(&w->bias, "bias");
    check_rows_free(&w->weight);
    check_rows_free(&w->bias);
}

mstar_linear *linear_make(const linear_level *l, const linear_weights *w, mstar_dtype panel,
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

void linear_weights_widen(const linear_weights *w, mstar_dtype panel, double *wide)
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

double linear_wide[LINEAR_MAX_K * LINEAR_MAX_N];
static double wide_x[LINEAR_MAX_K];

bool linear_has_dots(const linear_level *l, mstar_dtype panel)
{
    bool dots = strcmp(l->isa, "avx512bf16") == 0 || strcmp(l->isa, "amx") == 0 ||
                strcmp(l->isa, "cuda") == 0;
    return dots && panel == MSTAR_DTYPE_BF16;
}

void linear_check_product(const char *what, const linear_weights *w, const double *wide, bool dots,
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

void linear_same_row(const char *what, const check_rows *a, int64_t a_row, const check_rows *b,
                     int64_t b_row)
{
    if (memcmp(check_row(a, a_row), check_row(b, b_row), check_row_bytes(a)) != 0)
        fail_msg("%s: row %lld differs from row %lld of the other run", what, (long long)a_row,
                 (long long)b_row);
}
