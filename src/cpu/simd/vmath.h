/*
 * vmath.h - exp, tanh, sigmoid and the activations on vf; our own, so that bits do not depend on a
 * libm. Polynomials were fitted by iterated weighted least squares on Chebyshev nodes to the
 * relative errors given. NaN goes through; results underflow gradually.
 */
#ifndef MST_SIMD_VMATH_H
#define MST_SIMD_VMATH_H

#include "cpu/simd/simd.h"
#include "mstar/ops.h"

/*
 * e^x within about 1 ulp: x = n ln 2 + r (Cody and Waite, two parts of ln 2), e^r by a polynomial
 * of degree 6 (3.1e-9), times 2^n. Below -105 the result is 0, above 89 infinity.
 */
static inline vf vf_exp(vf x)
{
    /* the constant first: a NaN in x is the second operand and stays */
    vf y = vf_min(vf_set1(89.0f), vf_max(vf_set1(-105.0f), x));
    vf n = vf_round(vf_mul(y, vf_set1(1.44269504f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), y);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(0.001381453813f);
    p = vf_fma(p, r, vf_set1(0.008368745316f));
    p = vf_fma(p, r, vf_set1(0.041668390827f));
    p = vf_fma(p, r, vf_set1(0.166665203968f));
    p = vf_fma(p, r, vf_set1(0.499999934319f));
    vf r2 = vf_mul(r, r);
    p = vf_add(vf_fma(p, r2, r), vf_set1(1.0f));
    return vf_scale2(p, n);
}

/*
 * 2^x for x <= 0, the softmax weight: exactly 1 at 0 and exactly 0 at -inf. x = n + f, 2^f by a
 * polynomial of degree 6 (2.0e-9), times 2^n. NaN goes through.
 */
static inline vf vf_exp2_nonpositive(vf x)
{
    vf y = vf_max(vf_set1(-151.0f), x);
    vf n = vf_round(y);
    vf f = vf_sub(y, n);
    vf p = vf_set1(1.535333981906e-04f);
    p = vf_fma(p, f, vf_set1(1.339890065560e-03f));
    p = vf_fma(p, f, vf_set1(9.618437614828e-03f));
    p = vf_fma(p, f, vf_set1(5.550332408158e-02f));
    p = vf_fma(p, f, vf_set1(2.402264791016e-01f));
    p = vf_fma(p, f, vf_set1(6.931472028819e-01f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return vf_scale2(p, n);
}

static inline vf vf_sigmoid(vf x)
{
    vf one = vf_set1(1.0f);
    /* e^-|x| never overflows: 1 / (1 + e) or e / (1 + e), both with full relative accuracy */
    vf e = vf_exp(vf_sub(vf_zero(), vf_abs(x)));
    vf top = vf_select(vf_less(x, vf_zero()), e, one);
    return vf_div(top, vf_add(one, e));
}

/* |x| < 0.625: x + x^3 P(x^2) (4.4e-9); else sign(x) (1 - 2 e / (1 + e)) with e = e^(-2|x|). */
static inline vf vf_tanh(vf x)
{
    vf one = vf_set1(1.0f);
    vf a = vf_abs(x);
    vf e = vf_exp(vf_mul(a, vf_set1(-2.0f)));
    vf large = vf_div(vf_sub(one, e), vf_add(one, e));
    large = vf_select(vf_less(x, vf_zero()), vf_sub(vf_zero(), large), large);
    vf s = vf_mul(x, x);
    vf p = vf_set1(-0.005704978442f);
    p = vf_fma(p, s, vf_set1(0.020639078808f));
    p = vf_fma(p, s, vf_set1(-0.05373971218f));
    p = vf_fma(p, s, vf_set1(0.133314421579f));
    p = vf_fma(p, s, vf_set1(-0.333332819402f));
    vf small = vf_fma(vf_mul(p, s), x, x);
    return vf_select(vf_less(a, vf_set1(0.625f)), small, large);
}

/*
 * x Phi(x) as max(x, 0) - |x| Phi(-|x|), so that the left tail keeps its relative accuracy. With
 * a = |x|, Phi(-a) = 2^(-a^2 log2(e) / 2) P(t), t = 1 / (1 + 0.3 a), P of degree 8 (6.4e-8); the
 * power of two is taken apart as n + f, 2^f by a polynomial of degree 5 (1.1e-7). From 14.6 on the
 * tail is 0 in f32; the bound keeps infinities out of the product. P is carried with its sign
 * turned, for the multiply-add at the end.
 */
static inline vf vf_gelu(vf x)
{
    vf a = vf_min(vf_set1(14.6f), vf_abs(x));
    vf t = vf_reciprocal(vf_fma(a, vf_set1(0.3f), vf_set1(1.0f)));
    vf y = vf_mul(vf_mul(a, a), vf_set1(-0.72134752f));
    vf n = vf_round(y);
    vf f = vf_sub(y, n);
    vf e = vf_set1(0.00132647273f);
    e = vf_fma(e, f, vf_set1(0.00967151299f));
    e = vf_fma(e, f, vf_set1(0.0555073358f));
    e = vf_fma(e, f, vf_set1(0.240222424f));
    e = vf_fma(e, f, vf_set1(0.693147004f));
    e = vf_fma(e, f, vf_set1(1.0f));
    vf p = vf_set1(-0.0384117588f);
    p = vf_fma(p, t, vf_set1(0.16932863f));
    p = vf_fma(p, t, vf_set1(-0.228995398f));
    p = vf_fma(p, t, vf_set1(0.0768894553f));
    p = vf_fma(p, t, vf_set1(-0.142799586f));
    p = vf_fma(p, t, vf_set1(-0.0945712924f));
    p = vf_fma(p, t, vf_set1(-0.12194898f));
    p = vf_fma(p, t, vf_set1(-0.119483694f));
    p = vf_fma(p, t, vf_set1(-7.40278483e-06f));
    return vf_fma(a, vf_scale2(vf_mul(p, e), n), vf_max(vf_zero(), x));
}

/* x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same value as the tanh form. */
static inline vf vf_gelu_tanh(vf x)
{
    vf cube = vf_mul(vf_mul(x, x), x);
    vf u = vf_mul(vf_fma(cube, vf_set1(0.044715f), x), vf_set1(1.5957691216057308f));
    vf y = vf_mul(x, vf_sigmoid(u));
    /* sigmoid is exactly 0 there, and -inf * 0 must not be NaN */
    return vf_select(vf_less(u, vf_set1(-105.0f)), vf_zero(), y);
}

static inline vf vf_silu(vf x)
{
    return vf_select(vf_less(x, vf_set1(-105.0f)), vf_zero(), vf_mul(x, vf_sigmoid(x)));
}

static inline vf vf_activate(mstar_activation activation, vf x)
{
    switch (activation) {
    case MSTAR_ACTIVATION_GELU:
        return vf_gelu(x);
    case MSTAR_ACTIVATION_GELU_TANH:
        return vf_gelu_tanh(x);
    case MSTAR_ACTIVATION_RELU:
        return vf_select(vf_less(x, vf_zero()), vf_zero(), x);
    case MSTAR_ACTIVATION_SILU:
        return vf_silu(x);
    case MSTAR_ACTIVATION_TANH:
        return vf_tanh(x);
    case MSTAR_ACTIVATION_SIGMOID:
        return vf_sigmoid(x);
    default:
        return x;
    }
}

#endif
