/*
 * half_types.cuh - the two 16-bit types as kernels name them, and how floats become them and back.
 */
#ifndef MST_CUDA_HALF_TYPES_CUH
#define MST_CUDA_HALF_TYPES_CUH

#include <stdint.h>

namespace mst
{

struct bf16 {
};
struct f16 {
};

/* Two floats rounded to the nearest, low half first. */
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);

template <> __device__ __forceinline__ uint32_t pack<bf16>(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <> __device__ __forceinline__ uint32_t pack<f16>(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* One 16-bit element as a float. */
template <typename T> __device__ __forceinline__ float widen(uint16_t bits);

template <> __device__ __forceinline__ float widen<bf16>(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

template <> __device__ __forceinline__ float widen<f16>(uint16_t bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

} // namespace mst

#endif
