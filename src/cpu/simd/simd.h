/*
 * simd.h - one vector type, vf, for the ISA that the including body is compiled for.
 *
 * VF_LANES floats; every operation is lane by lane, so a value never depends on where it lies. The
 * _n forms take the first n lanes (1 <= n <= VF_LANES) and never touch memory past them; the other
 * lanes of a _n load are 0. vf_fma is fused where the ISA has it and a product and a sum in scalar
 * code. vf_max and vf_min give the second operand when either is NaN. Horizontal sums add in one
 * fixed order.
 */
#ifndef MST_SIMD_H
#define MST_SIMD_H

#include <math.h>
#include <string.h>

#include "base/base.h"

#if defined(MST_EMULATE_TILES)
#include "cpu/simd/plain16.h"
#elif defined(MST_ISA_AVX512)
#include "cpu/simd/avx512.h"
#elif defined(MST_ISA_AVX2)
#include "cpu/simd/avx2.h"
#elif defined(MST_ISA_NEON)
#include "cpu/simd/neon.h"
#else
#include "cpu/simd/scalar.h"
#endif

/*
 * VF_PAIRS: the ISA multiplies pairs of bf16 into f32 sums. Elsewhere the two functions stand for
 * themselves, so that the code that would use them compiles; it is never reached.
 */
#if !defined(VF_PAIRS)
#define VF_PAIRS 0
static inline MST_UNUSED vf vf_pack_pairs(vf lo, vf hi)
{
    return vf_add(lo, hi);
}
static inline MST_UNUSED vf vf_dot_pairs(vf a, vf b, vf c)
{
    return vf_fma(a, b, c);
}
#endif

/* 1 / a within an ulp for a in [1, 100]: by an estimate and a step of Newton's where that is
 * faster. */
#if !defined(VF_RECIPROCAL)
static inline MST_UNUSED vf vf_reciprocal(vf a)
{
    return vf_div(vf_set1(1.0f), a);
}
#endif

/* Loads n elements of a compute dtype, widened. */
static inline vf vf_load_any_n(const void *data, mstar_dtype dtype, int64_t index, int n)
{
    switch (dtype) {
    case MSTAR_DTYPE_BF16:
        return vf_load_bf16_n((const uint16_t *)data + index, n);
    case MSTAR_DTYPE_F16:
        return vf_load_f16_n((const uint16_t *)data + index, n);
    default:
        return vf_load_n((const float *)data + index, n);
    }
}

/* Stores the first n lanes, rounded once to the dtype. */
static inline void vf_store_any_n(void *data, mstar_dtype dtype, int64_t index, vf value, int n)
{
    switch (dtype) {
    case MSTAR_DTYPE_BF16:
        vf_store_bf16_n((uint16_t *)data + index, value, n);
        break;
    case MSTAR_DTYPE_F16:
        vf_store_f16_n((uint16_t *)data + index, value, n);
        break;
    default:
        vf_store_n((float *)data + index, value, n);
        break;
    }
}

/* Lanes left at column i of width columns, at most VF_LANES. */
static inline int vf_left(int64_t width, int64_t i)
{
    return width - i < VF_LANES ? (int)(width - i) : VF_LANES;
}

#endif
