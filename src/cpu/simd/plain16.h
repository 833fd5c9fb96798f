/*
 * plain16.h - vf as sixteen floats in plain C, with pairs of bf16: the shape of AVX-512 BF16
 * without its instructions, so that a test runs the bodies of that shape on any machine.
 */
#ifndef MST_SIMD_PLAIN16_H
#define MST_SIMD_PLAIN16_H

#define VF_LANES 16
#define VF_ROWS 14
#define VF_PAIRS 1

typedef struct vf {
    float lane[VF_LANES];
} vf;
typedef struct vm {
    bool lane[VF_LANES];
} vm;

#define PLAIN_LANES(type, expression)  \
    type result;                       \
    for (int i = 0; i < VF_LANES; i++) \
        result.lane[i] = (expression); \
    return result

static inline MST_UNUSED vf vf_set1(float x)
{
    PLAIN_LANES(vf, x);
}
static inline MST_UNUSED vf vf_zero(void)
{
    return vf_set1(0.0f);
}
static inline MST_UNUSED vf vf_load_n(const float *p, int n)
{
    PLAIN_LANES(vf, i < n ? p[i] : 0.0f);
}
static inline MST_UNUSED vf vf_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline MST_UNUSED void vf_store_n(float *p, vf x, int n)
{
    memcpy(p, &x, (size_t)n * sizeof *p);
}
static inline MST_UNUSED void vf_store(float *p, vf x)
{
    vf_store_n(p, x, VF_LANES);
}
static inline MST_UNUSED vf vf_load_bf16_n(const uint16_t *p, int n)
{
    PLAIN_LANES(vf, i < n ? mst_bf16_to_f32(p[i]) : 0.0f);
}
static inline MST_UNUSED vf vf_load_bf16(const uint16_t *p)
{
    return vf_load_bf16_n(p, VF_LANES);
}
static inline MST_UNUSED vf vf_load_f16_n(const uint16_t *p, int n)
{
    PLAIN_LANES(vf, i < n ? mst_f16_to_f32(p[i]) : 0.0f);
}
static inline MST_UNUSED void vf_store_bf16_n(uint16_t *p, vf x, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = mst_f32_to_bf16(x.lane[i]);
}
static inline MST_UNUSED void vf_store_f16_n(uint16_t *p, vf x, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = mst_f32_to_f16(x.lane[i]);
}
static inline MST_UNUSED vf vf_add(vf a, vf b)
{
    PLAIN_LANES(vf, a.lane[i] + b.lane[i]);
}
static inline MST_UNUSED vf vf_sub(vf a, vf b)
{
    PLAIN_LANES(vf, a.lane[i] - b.lane[i]);
}
static inline MST_UNUSED vf vf_mul(vf a, vf b)
{
    PLAIN_LANES(vf, a.lane[i] * b.lane[i]);
}
static inline MST_UNUSED vf vf_div(vf a, vf b)
{
    PLAIN_LANES(vf, a.lane[i] / b.lane[i]);
}
static inline MST_UNUSED vf vf_fma(vf a, vf b, vf c)
{
    PLAIN_LANES(vf, a.lane[i] * b.lane[i] + c.lane[i]);
}
static inline MST_UNUSED vf vf_max(vf a, vf b)
{
    PLAIN_LANES(vf, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
static inline MST_UNUSED vf vf_min(vf a, vf b)
{
    PLAIN_LANES(vf, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]);
}
static inline MST_UNUSED vf vf_sqrt(vf a)
{
    PLAIN_LANES(vf, sqrtf(a.lane[i]));
}
static inline MST_UNUSED vf vf_abs(vf a)
{
    PLAIN_LANES(vf, fabsf(a.lane[i]));
}
static inline MST_UNUSED vf vf_round(vf a)
{
    PLAIN_LANES(vf, nearbyintf(a.lane[i]));
}
/* a NaN n comes with a NaN a, and C leaves its conversion open */
static inline MST_UNUSED vf vf_scale2(vf a, vf n)
{
    PLAIN_LANES(vf, ldexpf(a.lane[i], n.lane[i] == n.lane[i] ? (int)n.lane[i] : 0));
}
static inline MST_UNUSED vm vf_less(vf a, vf b)
{
    PLAIN_LANES(vm, a.lane[i] < b.lane[i]);
}
static inline MST_UNUSED vm vf_less_equal(vf a, vf b)
{
    PLAIN_LANES(vm, a.lane[i] <= b.lane[i]);
}
static inline MST_UNUSED vm vm_and(vm a, vm b)
{
    PLAIN_LANES(vm, a.lane[i] && b.lane[i]);
}
static inline MST_UNUSED vf vf_select(vm mask, vf a, vf b)
{
    PLAIN_LANES(vf, mask.lane[i] ? a.lane[i] : b.lane[i]);
}
static inline MST_UNUSED vf vf_iota(void)
{
    PLAIN_LANES(vf, (float)i);
}
static inline MST_UNUSED float vf_sum(vf a)
{
    float sum = 0.0f;
    for (int i = 0; i < VF_LANES; i++)
        sum += a.lane[i];
    return sum;
}
static inline MST_UNUSED float vf_top(vf a)
{
    float top = a.lane[0];
    for (int i = 1; i < VF_LANES; i++)
        top = top > a.lane[i] ? top : a.lane[i];
    return top;
}
static inline MST_UNUSED void vf_transpose(vf *r)
{
    for (int i = 0; i < VF_LANES; i++) {
        for (int j = 0; j < i; j++) {
            float x = r[i].lane[j];
            r[i].lane[j] = r[j].lane[i];
            r[j].lane[i] = x;
        }
    }
}

/* Pairs pass through memory as bits: a float register may not keep every pattern. */
static inline float plain_flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? 0.0f : x;
}
static inline float plain_half(const float *pair, int upper)
{
    uint16_t halves[2];
    memcpy(halves, pair, sizeof halves);
    return plain_flushed(mst_bf16_to_f32(halves[upper]));
}
static inline MST_UNUSED vf vf_pack_pairs(vf lo, vf hi)
{
    vf result;
    for (int i = 0; i < VF_LANES; i++) {
        const uint16_t halves[2] = {mst_f32_to_bf16(plain_flushed(lo.lane[i])),
                                    mst_f32_to_bf16(plain_flushed(hi.lane[i]))};
        memcpy(&result.lane[i], halves, sizeof halves);
    }
    return result;
}
static inline MST_UNUSED vf vf_dot_pairs(vf a, vf b, vf c)
{
    vf result;
    for (int i = 0; i < VF_LANES; i++) {
        float sum = c.lane[i] + plain_half(&a.lane[i], 1) * plain_half(&b.lane[i], 1);
        result.lane[i] = sum + plain_half(&a.lane[i], 0) * plain_half(&b.lane[i], 0);
    }
    return result;
}

#undef PLAIN_LANES

#endif
