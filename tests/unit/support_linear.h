/*
 * support_linear.h - packed products for tests: a weight in any layout, the linear made of it, and
 * the comparison with float64, on every ISA level of the machine.
 *
 * The bound: a sum of K products in f32, in any fixed order, fused or not, is within
 * gamma(K + 2) * sum |x||w| of the exact one (bias included); the activation carries that on with a
 * slope of at most 1.2 and adds its own error; residual and output are one rounding each.
 */
#ifndef SUPPORT_LINEAR_H
#define SUPPORT_LINEAR_H

#include "base/base.h"
#include "support_card.h"

enum { LINEAR_MAX_K = 1536, LINEAR_MAX_N = 1152, LINEAR_MAX_ROWS = 300 };

static const mstar_dtype linear_dtypes[3] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F16};
static const mstar_dtype linear_panels[2] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16};

typedef struct linear_level {
    const char *isa;
    mstar_device *device;
    mstar_stream *streams[3]; /* one, three and four threads */
} linear_level;

/* The levels of this machine, and the GPU's (support_card.h), opened by linear_set_up and closed by
 * linear_tear_down. */
extern linear_level linear_levels[CHECK_NUM_ISAS + 1];
extern int linear_num_levels;
int linear_set_up(void **state);
int linear_tear_down(void **state);

typedef struct linear_weights {
    check_rows weight; /* [N, K], or [K, N] seen through its strides */
    check_rows bias;   /* [1, N] */
    mstar_tensor weight_view, bias_view;
    bool has_bias;
} linear_weights;

linear_weights linear_weights_make(int64_t k, int64_t n, mstar_dtype dtype, bool transposed,
                                   bool has_bias, check_rng *rng);
void linear_weights_free(linear_weights *w);
mstar_linear *linear_make(const linear_level *l, const linear_weights *w, mstar_dtype panel,
                          mstar_activation activation);

/* The weight as the panels hold it, in f64, [N, K]. */
void linear_weights_widen(const linear_weights *w, mstar_dtype panel, double *wide);
extern double linear_wide[LINEAR_MAX_K * LINEAR_MAX_N]; /* room for one */
/* Levels with bf16 dot instructions round x too, and take subnormal factors and sums for 0. */
bool linear_has_dots(const linear_level *l, mstar_dtype panel);
void linear_check_product(const char *what, const linear_weights *w, const double *wide, bool dots,
                          mstar_activation activation, const check_rows *x,
                          const check_rows *residual, const check_rows *out);
void linear_same_row(const char *what, const check_rows *a, int64_t a_row, const check_rows *b,
                     int64_t b_row);

#endif
