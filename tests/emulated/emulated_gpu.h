/*
 * emulated_gpu.h - what the attention kernels ask of a GPU, on the host: the kernels' own source
 * (attn_tile.cuh, attn_reference.cu) is compiled over it as C++ and run block by block.
 *
 * Each thread of a block has a stack of its own. A thread runs until it meets something that its
 * warp or its block does together; when all of them have come, the last one does it for all. Warps
 * take turns in an order drawn from a seed. Copies without waiting are done at the last moment that
 * the kernel's waits allow, or at once, as the seed says, so that a wait too few shows; shared
 * memory begins as NaN, and every access to it must lie inside and on its own size.
 *
 * Products of a matrix instruction are exact here and their sum with c is rounded once; a card's
 * sums may differ in the last bits. Exponentials are correctly rounded, results below 2^-126 are 0.
 */
#ifndef EMULATED_GPU_H
#define EMULATED_GPU_H

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/attn_args.h"

using std::isinf;

struct gpu_index {
    unsigned x;
};
extern gpu_index threadIdx, blockIdx, gridDim;

/* ---- what CUDA gives, by its names ------------------------------------------------------------
 */

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#define __shared__ static /* blocks run one after the other */

struct uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline void __stcg(float4 *to, float4 value)
{
    *to = value;
}
static inline float4 __ldcg(const float4 *from)
{
    return *from;
}
static inline float __uint_as_float(uint32_t bits)
{
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return std::fmaf(a, b, c);
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline uint32_t max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void __syncthreads();
int __syncthreads_or(int value);
void __syncwarp();
int __any_sync(unsigned mask, int value);
float __shfl_sync(unsigned mask, float value, int from);
float __shfl_xor_sync(unsigned mask, float value, int lane);
/* One thread runs at a time. */
static inline unsigned atomicAdd(unsigned *at, unsigned add)
{
    unsigned old = *at;
    *at = old + add;
    return old;
}
static inline unsigned arrive(unsigned *at, unsigned last)
{
    unsigned old = *at;
    *at = old >= last ? 0 : old + 1;
    return old;
}
static inline void wait_for_others() {}
/* Shared memory is numbered from 0. */
static inline uint32_t __cvta_generic_to_shared(const void *)
{
    return 0;
}

/* ---- what attn_instructions.cuh gives ---------------------------------------------------------
 */

namespace mst
{

struct bf16 {
};
struct f16 {
};

float widen_bf16(uint16_t bits);
float widen_f16(uint16_t bits);
uint16_t round_bf16(float value);
uint16_t round_f16(float value);

template <typename T> float widen(uint16_t bits);
template <> inline float widen<bf16>(uint16_t bits)
{
    return widen_bf16(bits);
}
template <> inline float widen<f16>(uint16_t bits)
{
    return widen_f16(bits);
}
template <typename T> uint32_t pack(float low, float high);
template <> inline uint32_t pack<bf16>(float low, float high)
{
    return round_bf16(low) | (uint32_t)round_bf16(high) << 16;
}
template <> inline uint32_t pack<f16>(float low, float high)
{
    return round_f16(low) | (uint32_t)round_f16(high) << 16;
}

#if !defined(EMULATE_SM80)
#define MST_LARGER_HALVES
static inline uint32_t larger_halves(uint32_t a, uint32_t b)
{
    return max(a & 0xffff0000U, b & 0xffff0000U) | max(a & 0xffffU, b & 0xffffU);
}
#endif

void mma_of(float (*wide)(uint16_t), float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
            uint32_t b1);
template <typename T>
inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma_of(widen<T>, c, a, b0, b1);
}

/* ---- what attn_group.cuh gives: each warp does its 16 rows of a product of the four -----------
 */

#define MST_GROUP
typedef uint64_t matrix;
static inline matrix describe(uint32_t address, uint32_t panel_bytes)
{
    return address | (uint64_t)panel_bytes << 32;
}
static inline matrix moved(matrix from, uint32_t bytes)
{
    return from + bytes;
}
static inline void show_writes() {}
static inline void done_before_waits(float) {}
static inline void multiply_begin() {}
static inline void multiply_commit() {}
template <int LEFT, int N> inline void multiply_wait(float (&)[N][4]) {}

/* A pair of neighbours, and two of one column, of what is described: panels of 128 bytes a row. */
uint32_t described_pair(uint64_t matrix, uint32_t row, uint32_t column);
uint32_t described_column(uint64_t matrix, uint32_t row, uint32_t column);

template <typename T, int N>
inline void multiply(float (&c)[N][4], uint64_t a, uint64_t b, bool keep)
{
    uint32_t lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
    uint32_t row = threadIdx.x / 32 * 16 + group;
    uint32_t own[4];
    for (uint32_t x = 0; x < 4; x++)
        own[x] = described_pair(a, row + x % 2 * 8, pair + x / 2 * 8);
    for (uint32_t j = 0; j < N; j++) {
        for (int x = 0; x < 4 && !keep; x++)
            c[j][x] = 0.0F;
        mma<T>(c[j], own, described_pair(b, j * 8 + group, pair),
               described_pair(b, j * 8 + group, pair + 8));
    }
}

template <typename T, int N>
inline void multiply_rows(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
    uint32_t lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
    for (uint32_t j = 0; j < N; j++)
        mma<T>(c[j], a, described_column(b, pair, j * 8 + group),
               described_column(b, pair + 8, j * 8 + group));
}

void load4(uint32_t (&r)[4], uint32_t address);
void load4_transposed(uint32_t (&r)[4], uint32_t address);
static inline const char *further(const char *from, int64_t bytes)
{
    return from + bytes;
}
void copy16(uint32_t to, const void *from);
void copy16_or_zero(uint32_t to, const void *from, bool wanted);
void copies_commit();
void copies_wait_for(unsigned left);
template <int LEFT> inline void copies_wait()
{
    copies_wait_for(LEFT);
}
float exp2_fast(float x);
uint32_t shared_get(uint32_t at);
void shared_get4(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t at);
void shared_put(uint32_t at, uint32_t word);
void shared_put4(uint32_t at, uint32_t word);

} // namespace mst

#endif
