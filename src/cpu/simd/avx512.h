/* avx512.h - vf as sixteen floats: AVX-512 F, BW, DQ and VL. */
#ifndef MST_SIMD_AVX512_H
#define MST_SIMD_AVX512_H

#include <immintrin.h>

/* Without optimisation gcc's own intrinsics are macros, and two of them convert a mask's sign. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

#define VF_LANES 16
#define VF_ROWS 14

typedef __m512 vf;
typedef __mmask16 vm;

static inline __mmask16 vf_mask_n(int n)
{
    return (__mmask16)((1U << n) - 1U);
}

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline vf vf_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(vf_mask_n(n), p);
}
static inline void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
static inline void vf_store_n(float *p, vf x, int n)
{
    _mm512_mask_storeu_ps(p, vf_mask_n(n), x);
}
static inline vf vf_load_bf16_n(const uint16_t *p, int n)
{
    __m256i half = _mm256_maskz_loadu_epi16(vf_mask_n(n), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
static inline vf vf_load_bf16(const uint16_t *p)
{
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
static inline vf vf_load_f16_n(const uint16_t *p, int n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vf_mask_n(n), p));
}
static inline void vf_store_bf16_n(uint16_t *p, vf x, int n)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i upper = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    __m512i result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    _mm256_mask_storeu_epi16(p, vf_mask_n(n), _mm512_cvtepi32_epi16(result));
}
static inline void vf_store_f16_n(uint16_t *p, vf x, int n)
{
    _mm256_mask_storeu_epi16(p, vf_mask_n(n),
                             _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
#define VF_RECIPROCAL
static inline vf vf_reciprocal(vf a)
{
    vf estimate = _mm512_rcp14_ps(a);
    vf rest = _mm512_fnmadd_ps(a, estimate, _mm512_set1_ps(1.0f));
    return _mm512_fmadd_ps(estimate, rest, estimate);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
static inline vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}
static inline vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_scale2(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
}
static inline vm vf_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline vm vf_less_equal(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
static inline vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}
static inline vf vf_select(vm mask, vf a, vf b)
{
    return _mm512_mask_blend_ps(mask, b, a);
}
static inline vf vf_iota(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
static inline float vf_sum(vf a)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    quarter = _mm_add_ss(quarter, _mm_movehdup_ps(quarter));
    return _mm_cvtss_f32(quarter);
}
static inline float vf_top(vf a)
{
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    quarter = _mm_max_ss(quarter, _mm_movehdup_ps(quarter));
    return _mm_cvtss_f32(quarter);
}
/* Sixteen rows of sixteen become sixteen columns: pairs, quads, then 128-bit quarters twice. */
static inline void vf_transpose(vf *r)
{
    __m512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512 *s = t + 4 * i;
        r[4 * i] = _mm512_shuffle_ps(s[0], s[2], 0x44);
        r[4 * i + 1] = _mm512_shuffle_ps(s[0], s[2], 0xee);
        r[4 * i + 2] = _mm512_shuffle_ps(s[1], s[3], 0x44);
        r[4 * i + 3] = _mm512_shuffle_ps(s[1], s[3], 0xee);
    }
    /* r[4i + j] quarter q holds column 4q + j of rows 4i .. 4i + 3 */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        t[j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        t[8 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        r[j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88);
        r[4 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0x88);
        r[8 + j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd);
        r[12 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0xdd);
    }
}

#if defined(MST_ISA_AVX512BF16)
#define VF_PAIRS 1

/* Each lane a pair of bf16, lo in its lower half: rounded to nearest even, denormals become 0. */
static inline vf vf_pack_pairs(vf lo, vf hi)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512bh both = _mm512_cvtne2ps_pbh(hi, lo);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, (__m512i)both));
}
/* The first n lanes as bf16: rounded to nearest even, denormals become 0. */
static inline void vf_store_pairs_n(uint16_t *p, vf x, int n)
{
    _mm256_mask_storeu_epi16(p, vf_mask_n(n), (__m256i)_mm512_cvtneps_pbh(x));
}
/* c + the products of a's and b's pairs, summed in f32. */
static inline vf vf_dot_pairs(vf a, vf b, vf c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}
#endif

#endif
