/*
 * row_math.h - activations in f32, for kernels: the formulas of the processors' kernels. Nothing of
 * a math library is used but fmaf, so that a card, and the tests' emulation of one, give the bits
 * that the scalar level of a processor gives with a fused multiply-add. NaN goes through; results
 * underflow gradually.
 *
 * real is the kernel's: a float, or several that go the way together. Where MST_NEAR is 1 arguments
 * lie in [-8, 8], and the GELUs have the same bits without a branch, as nothing underflows on the
 * way; a file may include this once for each.
 */

/* Also the kernel's: MST_DEVICE, MST_NEAR, fmaf, fabsf, below(a, b, y, n) which is a < b ? y : n,
 * and where near scale2(x, n + SHIFT) which is x 2^n for an integral n, both x and that being
 * normal, positive(x), which is x or 0, the larger, and reciprocal(x), 1 / x within a bit or so. */

/* n + SHIFT, n being the whole number nearest to x: |x| < 2^22. Its low bits are n's. */
#define MST_SHIFT 12582912.0f
MST_DEVICE real shift_whole(real x)
{
    return x + MST_SHIFT;
}

#if MST_NEAR
/* 1 / x and y / x to the nearest: x in [1, 8], y in [2^-80, 1]. */
MST_DEVICE real invert(real x)
{
    real r = reciprocal(x);
    return fmaf(r, fmaf(x * -1.0f, r, 1.0f), r);
}

MST_DEVICE real divide(real y, real x)
{
    real r = invert(x), q = y * r;
    q = fmaf(r, fmaf(x * -1.0f, q, y), q);
    return fmaf(r, fmaf(x * -1.0f, q, y), q);
}
#else
/* x * 2^n for an integral n in [-252, 252], with gradual underflow. */
MST_DEVICE real scale2(real x, real shifted)
{
    real n = shifted - MST_SHIFT;
    int whole = n == n ? (int)n : 0;
    int half = whole / 2;
    return x * bits_to_float((uint32_t)(127 + half) << 23) *
           bits_to_float((uint32_t)(127 + whole - half) << 23);
}

MST_DEVICE real positive(real x)
{
    return below(x, 0.0f, 0.0f, x);
}

MST_DEVICE real invert(real x)
{
    return 1.0f / x;
}

MST_DEVICE real divide(real y, real x)
{
    return y / x;
}
#endif

/* e^x within about 1 ulp: two parts of ln 2, a polynomial of degree 6, times 2^n. */
MST_DEVICE real exp_f32(real x)
{
    real y = x;
#if !MST_NEAR
    y = below(x, -105.0f, -105.0f, x); /* a NaN in x stays */
    y = below(89.0f, y, 89.0f, y);
#endif
    real shifted = shift_whole(y * 1.44269504f), n = shifted - MST_SHIFT;
    real r = fmaf(n, -0.693359375f, y);
    r = fmaf(n, 2.12194440e-4f, r);
    real p = 0.001381453813f;
    p = fmaf(p, r, 0.008368745316f);
    p = fmaf(p, r, 0.041668390827f);
    p = fmaf(p, r, 0.166665203968f);
    p = fmaf(p, r, 0.499999934319f);
    return scale2(fmaf(p, r * r, r) + 1.0f, shifted);
}

MST_DEVICE real sigmoid_f32(real x)
{
    real zero = 0.0f, e = exp_f32(zero - fabsf(x)); /* never overflows */
    return divide(below(x, 0.0f, e, 1.0f), e + 1.0f);
}

/* max(x, 0) - |x| Phi(-|x|), Phi(-a) = 2^(-a^2 log2(e) / 2) P(1 / (1 + 0.3 a)). */
MST_DEVICE real gelu_f32(real x)
{
    real a = fabsf(x);
#if !MST_NEAR
    a = below(14.6f, a, 14.6f, a);
#endif
    real t = invert(fmaf(a, 0.3f, 1.0f));
    real y = a * a * -0.72134752f;
    real shifted = shift_whole(y);
    real f = y - (shifted - MST_SHIFT);
    real e = 0.00132647273f;
    e = fmaf(e, f, 0.00967151299f);
    e = fmaf(e, f, 0.0555073358f);
    e = fmaf(e, f, 0.240222424f);
    e = fmaf(e, f, 0.693147004f);
    e = fmaf(e, f, 1.0f);
    real p = -0.0384117588f;
    p = fmaf(p, t, 0.16932863f);
    p = fmaf(p, t, -0.228995398f);
    p = fmaf(p, t, 0.0768894553f);
    p = fmaf(p, t, -0.142799586f);
    p = fmaf(p, t, -0.0945712924f);
    p = fmaf(p, t, -0.12194898f);
    p = fmaf(p, t, -0.119483694f);
    p = fmaf(p, t, -7.40278483e-06f);
    return fmaf(a, scale2(p * e, shifted), positive(x));
}

/* x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same value as the tanh form. */
MST_DEVICE real gelu_tanh_f32(real x)
{
    real u = fmaf(x * x * x, 0.044715f, x) * 1.5957691216057308f;
    real y = x * sigmoid_f32(u);
    return below(u, -105.0f, 0.0f, y); /* sigmoid is exactly 0 there, and -inf * 0 is NaN */
}

#if !MST_NEAR
MST_DEVICE real tanh_f32(real x)
{
    real a = fabsf(x);
    if (a < 0.625f) {
        real s = x * x;
        real p = -0.005704978442f;
        p = fmaf(p, s, 0.020639078808f);
        p = fmaf(p, s, -0.05373971218f);
        p = fmaf(p, s, 0.133314421579f);
        p = fmaf(p, s, -0.333332819402f);
        return fmaf(p * s, x, x);
    }
    real e = exp_f32(a * -2.0f);
    real large = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? 0.0f - large : large;
}

/* mstar_activation's values, as a kernel has no headers. */
enum { GELU = 1, GELU_TANH = 2, RELU = 3, SILU = 4, TANH = 5, SIGMOID = 6 };

MST_DEVICE real activate(int activation, real x)
{
    switch (activation) {
    case GELU:
        return gelu_f32(x);
    case GELU_TANH:
        return gelu_tanh_f32(x);
    case RELU:
        return x < 0.0f ? 0.0f : x;
    case SILU:
        return x < -105.0f ? 0.0f : x * sigmoid_f32(x);
    case TANH:
        return tanh_f32(x);
    case SIGMOID:
        return sigmoid_f32(x);
    default:
        return x;
    }
}
#endif
