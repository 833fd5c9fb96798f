/* scalar.h - vf as one float: the plain reference that every other ISA is tested against. */
#ifndef MST_SIMD_SCALAR_H
#define MST_SIMD_SCALAR_H

#define VF_LANES 1
#define VF_ROWS 4 /* rows of a register tile */

typedef float vf;
typedef bool vm;

static inline vf vf_zero(void)
{
    return 0.0f;
}
static inline vf vf_set1(float x)
{
    return x;
}
static inline vf vf_load(const float *p)
{
    return *p;
}
static inline vf vf_load_n(const float *p, int n)
{
    (void)n;
    return *p;
}
static inline void vf_store(float *p, vf x)
{
    *p = x;
}
static inline void vf_store_n(float *p, vf x, int n)
{
    (void)n;
    *p = x;
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    return mst_bf16_to_f32(*p);
}
static inline vf vf_load_bf16_n(const uint16_t *p, int n)
{
    (void)n;
    return mst_bf16_to_f32(*p);
}
static inline vf vf_load_f16_n(const uint16_t *p, int n)
{
    (void)n;
    return mst_f16_to_f32(*p);
}
static inline void vf_store_bf16_n(uint16_t *p, vf x, int n)
{
    (void)n;
    *p = mst_f32_to_bf16(x);
}
static inline void vf_store_f16_n(uint16_t *p, vf x, int n)
{
    (void)n;
    *p = mst_f32_to_f16(x);
}
static inline vf vf_add(vf a, vf b)
{
    return a + b;
}
static inline vf vf_sub(vf a, vf b)
{
    return a - b;
}
static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}
static inline vf vf_div(vf a, vf b)
{
    return a / b;
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
static inline vf vf_max(vf a, vf b)
{
    return a > b ? a : b;
}
static inline vf vf_min(vf a, vf b)
{
    return a < b ? a : b;
}
static inline vf vf_sqrt(vf a)
{
    return sqrtf(a);
}
static inline vf vf_abs(vf a)
{
    return fabsf(a);
}
/* Rounds to the nearest integer; |a| < 2^22. */
static inline vf vf_round(vf a)
{
    return (a + 0x1.8p23f) - 0x1.8p23f;
}
/* a * 2^n for an integral n in [-252, 252], with gradual underflow. A NaN n comes with a NaN a, and
 * C leaves its conversion open. */
static inline vf vf_scale2(vf a, vf n)
{
    int whole = n == n ? (int)n : 0;
    int half = whole / 2;
    uint32_t first = (uint32_t)(127 + half) << 23;
    uint32_t second = (uint32_t)(127 + whole - half) << 23;
    float f, s;
    memcpy(&f, &first, sizeof f);
    memcpy(&s, &second, sizeof s);
    return a * f * s;
}
static inline vm vf_less(vf a, vf b)
{
    return a < b;
}
static inline vm vf_less_equal(vf a, vf b)
{
    return a <= b;
}
static inline vm vm_and(vm a, vm b)
{
    return a && b;
}
/* mask ? a : b */
static inline vf vf_select(vm mask, vf a, vf b)
{
    return mask ? a : b;
}
/* 0, 1, 2, ... */
static inline vf vf_iota(void)
{
    return 0.0f;
}
static inline float vf_sum(vf a)
{
    return a;
}
static inline float vf_top(vf a)
{
    return a;
}
static inline void vf_transpose(vf *rows)
{
    (void)rows;
}

#endif
