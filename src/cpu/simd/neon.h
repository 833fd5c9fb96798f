/*
 * neon.h - vf as four floats: Advanced SIMD of every 64-bit ARM processor.
 *
 * Twelve rows by two vectors are 24 of the 32 registers; two hold columns and the rest let loads
 * run ahead. vmaxq_f32 and vminq_f32 give NaN when either operand is NaN, so both are a comparison
 * and a selection here.
 */
#ifndef MST_SIMD_NEON_H
#define MST_SIMD_NEON_H

#include <arm_neon.h>

#define VF_LANES 4
#define VF_ROWS 12

typedef float32x4_t vf;
typedef uint32x4_t vm;

static inline vf vf_zero(void)
{
    return vdupq_n_f32(0.0f);
}
static inline vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
static inline vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
static inline vf vf_load_n(const float *p, int n)
{
    if (n == 4)
        return vld1q_f32(p);
    vf x = vld1q_lane_f32(p, vf_zero(), 0);
    if (n > 1)
        x = vld1q_lane_f32(p + 1, x, 1);
    if (n > 2)
        x = vld1q_lane_f32(p + 2, x, 2);
    return x;
}
static inline void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
static inline void vf_store_n(float *p, vf x, int n)
{
    if (n == 4) {
        vst1q_f32(p, x);
        return;
    }
    vst1q_lane_f32(p, x, 0);
    if (n > 1)
        vst1q_lane_f32(p + 1, x, 1);
    if (n > 2)
        vst1q_lane_f32(p + 2, x, 2);
}

static inline uint16x4_t vf_load_half_n(const uint16_t *p, int n)
{
    if (n == 4)
        return vld1_u16(p);
    uint16x4_t x = vld1_lane_u16(p, vdup_n_u16(0), 0);
    if (n > 1)
        x = vld1_lane_u16(p + 1, x, 1);
    if (n > 2)
        x = vld1_lane_u16(p + 2, x, 2);
    return x;
}
static inline void vf_store_half_n(uint16_t *p, uint16x4_t x, int n)
{
    if (n == 4) {
        vst1_u16(p, x);
        return;
    }
    vst1_lane_u16(p, x, 0);
    if (n > 1)
        vst1_lane_u16(p + 1, x, 1);
    if (n > 2)
        vst1_lane_u16(p + 2, x, 2);
}
static inline vf vf_load_bf16_n(const uint16_t *p, int n)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vf_load_half_n(p, n)), 16));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    return vf_load_bf16_n(p, 4);
}
static inline vf vf_load_f16_n(const uint16_t *p, int n)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vf_load_half_n(p, n)));
}
/* Round to nearest even on the upper half; NaN keeps its upper half, made quiet. */
static inline void vf_store_bf16_n(uint16_t *p, vf x, int n)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vf_store_half_n(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16), n);
}
static inline void vf_store_f16_n(uint16_t *p, vf x, int n)
{
    vf_store_half_n(p, vreinterpret_u16_f16(vcvt_f16_f32(x)), n);
}

static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline vf vf_sqrt(vf a)
{
    return vsqrtq_f32(a);
}
static inline vf vf_abs(vf a)
{
    return vabsq_f32(a);
}
static inline vf vf_round(vf a)
{
    return vrndnq_f32(a);
}
/* Two factors: each is a normal number, so that only the last product is rounded. */
static inline vf vf_scale2(vf a, vf n)
{
    int32x4_t whole = vcvtq_s32_f32(n);
    int32x4_t half = vshrq_n_s32(whole, 1);
    int32x4_t rest = vsubq_s32(whole, half);
    int32x4_t bias = vdupq_n_s32(127);
    vf first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    vf second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmulq_f32(vmulq_f32(a, first), second);
}
static inline vm vf_less(vf a, vf b)
{
    return vcltq_f32(a, b);
}
static inline vm vf_less_equal(vf a, vf b)
{
    return vcleq_f32(a, b);
}
static inline vm vm_and(vm a, vm b)
{
    return vandq_u32(a, b);
}
static inline vf vf_select(vm mask, vf a, vf b)
{
    return vbslq_f32(mask, a, b);
}
static inline vf vf_iota(void)
{
    static const float lanes[VF_LANES] = {0, 1, 2, 3};
    return vld1q_f32(lanes);
}
static inline float vf_sum(vf a)
{
    float32x2_t half = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}
static inline float vf_top(vf a)
{
    vf half = vf_max(a, vextq_f32(a, a, 2));
    return vgetq_lane_f32(vf_max(half, vextq_f32(half, half, 1)), 0);
}
/* Four rows of four become four columns: pairs, then pairs of pairs. */
static inline void vf_transpose(vf *r)
{
    float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1]));
    float64x2_t b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3]));
    float64x2_t d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

#endif
