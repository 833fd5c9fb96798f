/*
 * row_math.h - activations in f32, for kernels: the formulas of the processors' kernels, one
 * element at a time. Nothing of a math library is used but fmaf, so that a card, and the tests'
 * emulation of one, give the bits that the scalar level of a processor gives with a fused
 * multiply-add. NaN goes through; results underflow gradually.
 */
#ifndef MST_CUDA_ROW_MATH_H
#define MST_CUDA_ROW_MATH_H

/* MST_DEVICE, fmaf, fabsf: the kernel's. mstar_activation's values, as a kernel has no headers. */
enum { GELU = 1, GELU_TANH = 2, RELU = 3, SILU = 4, TANH = 5, SIGMOID = 6 };

MST_DEVICE float round_whole(float x) /* to nearest; |x| < 2^22 */
{
    return (x + 12582912.0f) - 12582912.0f;
}

/* x * 2^n for an integral n in [-252, 252], with gradual underflow. */
MST_DEVICE float scale2(float x, float n)
{
    int whole = n == n ? (int)n : 0;
    int half = whole / 2;
    return x * bits_to_float((uint32_t)(127 + half) << 23) *
           bits_to_float((uint32_t)(127 + whole - half) << 23);
}

/* e^x within about 1 ulp: two parts of ln 2, a polynomial of degree 6, times 2^n. */
MST_DEVICE float exp_f32(float x)
{
    float y = -105.0f > x ? -105.0f : x; /* a NaN in x stays */
    y = 89.0f < y ? 89.0f : y;
    float n = round_whole(y * 1.44269504f);
    float r = fmaf(n, -0.693359375f, y);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 0.001381453813f;
    p = fmaf(p, r, 0.008368745316f);
    p = fmaf(p, r, 0.041668390827f);
    p = fmaf(p, r, 0.166665203968f);
    p = fmaf(p, r, 0.499999934319f);
    return scale2(fmaf(p, r * r, r) + 1.0f, n);
}

MST_DEVICE float sigmoid_f32(float x)
{
    float e = exp_f32(0.0f - fabsf(x)); /* never overflows */
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

MST_DEVICE float tanh_f32(float x)
{
    float a = fabsf(x);
    if (a < 0.625f) {
        float s = x * x;
        float p = -0.005704978442f;
        p = fmaf(p, s, 0.020639078808f);
        p = fmaf(p, s, -0.05373971218f);
        p = fmaf(p, s, 0.133314421579f);
        p = fmaf(p, s, -0.333332819402f);
        return fmaf(p * s, x, x);
    }
    float e = exp_f32(a * -2.0f);
    float large = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? 0.0f - large : large;
}

/* max(x, 0) - |x| Phi(-|x|), Phi(-a) = 2^(-a^2 log2(e) / 2) P(1 / (1 + 0.3 a)). */
MST_DEVICE float gelu_f32(float x)
{
    float a = 14.6f < fabsf(x) ? 14.6f : fabsf(x);
    float t = 1.0f / fmaf(a, 0.3f, 1.0f);
    float y = a * a * -0.72134752f;
    float n = round_whole(y);
    float f = y - n;
    float e = 0.00132647273f;
    e = fmaf(e, f, 0.00967151299f);
    e = fmaf(e, f, 0.0555073358f);
    e = fmaf(e, f, 0.240222424f);
    e = fmaf(e, f, 0.693147004f);
    e = fmaf(e, f, 1.0f);
    float p = -0.0384117588f;
    p = fmaf(p, t, 0.16932863f);
    p = fmaf(p, t, -0.228995398f);
    p = fmaf(p, t, 0.0768894553f);
    p = fmaf(p, t, -0.142799586f);
    p = fmaf(p, t, -0.0945712924f);
    p = fmaf(p, t, -0.12194898f);
    p = fmaf(p, t, -0.119483694f);
    p = fmaf(p, t, -7.40278483e-06f);
    return fmaf(a, scale2(p * e, n), 0.0f > x ? 0.0f : x);
}

/* x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the same value as the tanh form. */
MST_DEVICE float gelu_tanh_f32(float x)
{
    float u = fmaf(x * x * x, 0.044715f, x) * 1.5957691216057308f;
    float y = x * sigmoid_f32(u);
    return u < -105.0f ? 0.0f : y; /* sigmoid is exactly 0 there, and -inf * 0 is NaN */
}

MST_DEVICE float activate(int activation, float x)
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
