/*
 * attn_instructions.cuh - what the tensor-core kernel asks of the machine: matrix instructions,
 * shared memory, copies without waiting.
 *
 * Everything else of the kernel is plain C++ over these and CUDA's own functions. The tests put an
 * emulation of both in their place and run the kernel's source on the host.
 */
#ifndef MST_CUDA_ATTN_INSTRUCTIONS_CUH
#define MST_CUDA_ATTN_INSTRUCTIONS_CUH

#include "cuda/half_types.cuh"
#include "cuda/overlap.cuh"

namespace mst
{

/* Counts up to last and from there to 0; what it was. Orders what this thread, and those that it has
 * met at a barrier, wrote before against what they read after on the whole card. */
__device__ __forceinline__ unsigned arrive(unsigned *count, unsigned last)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(count), "r"(last)
                 : "memory");
    return before;
}

template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1);

template <>
__device__ __forceinline__ void mma<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<f16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The larger of each pair of unsigned halves, where that is one instruction. */
#if __CUDA_ARCH__ >= 900
#define MST_LARGER_HALVES
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b)
{
    uint32_t c;
    asm("max.u16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
#endif

/* Four 8 x 8 matrices of 16-bit elements; lane i names a row of matrix i / 8. */
__device__ __forceinline__ void load4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load4_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* A step along memory, which the compiler must not turn back into products. */
__device__ __forceinline__ const char *further(const char *from, int64_t bytes)
{
    asm volatile("add.s64 %0, %0, %1;" : "+l"(from) : "l"(bytes));
    return from;
}

/* 16 bytes to shared memory without waiting. */
__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

/* The same where wanted, else zeros, and nothing is read. */
__device__ __forceinline__ void copy16_or_zero(uint32_t to, const void *from, bool wanted)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- shared memory, by its address there ------------------------------------------------------
 */

__device__ __forceinline__ uint32_t shared_get(uint32_t at)
{
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
    return word;
}

__device__ __forceinline__ void shared_get4(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d,
                                            uint32_t at)
{
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(at));
}

__device__ __forceinline__ void shared_put(uint32_t at, uint32_t word)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
}

/* The same word four times. */
__device__ __forceinline__ void shared_put4(uint32_t at, uint32_t word)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(at), "r"(word) : "memory");
}

} // namespace mst

#endif
