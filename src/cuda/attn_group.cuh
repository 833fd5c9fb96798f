/*
 * attn_group.cuh - Hopper's matrix instructions for the tensor-core kernel of attention: the four
 * warps of a block multiply together, and operands come from shared memory as they lie there.
 *
 * Matrices in shared memory are panels of 64 columns; a row of one is 128 bytes, its 16-byte chunks
 * swizzled in groups of 8 rows. Accumulators lie over the threads as those of mma.sync do.
 */
#ifndef MST_CUDA_ATTN_GROUP_CUH
#define MST_CUDA_ATTN_GROUP_CUH

#include "cuda/half_types.cuh"
#include "cuda/hopper.cuh"

#define MST_GROUP
#define MST_BULK

namespace mst
{

/* What the instructions are told of a matrix: the word that differs. */
typedef uint32_t matrix;

/* A matrix that begins at an address. panel_bytes: from one panel to the next, where an instruction
 * takes several and rows are what it sums over. */
__device__ __forceinline__ matrix describe(uint32_t address, uint32_t panel_bytes)
{
    return describe_low(address, panel_bytes);
}

/* The same so many bytes further: one addition, where the instructions wait for it. */
__device__ __forceinline__ matrix moved(matrix from, uint32_t bytes)
{
    return from + (bytes >> 4);
}

/* What went into x, which is not below 0, is computed before what follows. The compiler moves a wait
 * for matrix instructions ahead of work that was to run beside them; it does not move it ahead of
 * this, an instruction that never runs. */
__device__ __forceinline__ void done_before_waits(float x)
{
    asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 1;\n}\n" ::"f"(x)
                 : "memory");
}

#define MST_C1(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define MST_C4(c, i) MST_C1(c, i), MST_C1(c, i + 1), MST_C1(c, i + 2), MST_C1(c, i + 3)
#define MST_C8(c, i) MST_C4(c, i), MST_C4(c, i + 4)
#define MST_C16(c, i) MST_C8(c, i), MST_C8(c, i + 8)
#define MST_C32(c, i) MST_C16(c, i), MST_C16(c, i + 16)

/* c [64 x n] = a [64 x 16] b [n x 16]^T, + c where kept. */
template <typename T>
__device__ __forceinline__ void multiply(float (&c)[8][4], matrix a, matrix b, bool keep);
/* c [64 x n] += a [64 x 16] b [16 x n], a spread over the threads as mma.sync has it. */
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&c)[8][4], const uint32_t (&a)[4],
                                              matrix b);
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&c)[16][4], const uint32_t (&a)[4],
                                              matrix b);
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&c)[32][4], const uint32_t (&a)[4],
                                              matrix b);

#define MST_GROUP_INSTRUCTIONS(TYPE) \
    template <> \
    __device__ __forceinline__ void multiply<TYPE>(float (&c)[8][4], matrix a, \
        matrix b, bool keep) \
    { \
        asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\n" \
            "mov.b64 a, {%32, " MST_DESCRIBED_HIGH_TEXT "};\nmov.b64 b, {%33, " MST_DESCRIBED_HIGH_TEXT "};\n" \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." #TYPE "." #TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
            "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
            "%28, %29, %30, %31" \
            "}, a, b, p, 1, 1, 0, 0;\n}\n" \
            : MST_C8(c, 0) \
            : "r"(a), "r"(b), "r"((int32_t)keep)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply_rows<TYPE>(float (&c)[8][4], \
        const uint32_t (&a)[4], matrix b) \
    { \
        asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%36, " MST_DESCRIBED_HIGH_TEXT "};\n" \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." #TYPE "." #TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
            "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
            "%28, %29, %30, %31" \
            "}, {%32, %33, %34, %35}, b, 1, 1, 1, 1;\n}\n" \
            : MST_C8(c, 0) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply_rows<TYPE>(float (&c)[16][4], \
        const uint32_t (&a)[4], matrix b) \
    { \
        asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%68, " MST_DESCRIBED_HIGH_TEXT "};\n" \
            "wgmma.mma_async.sync.aligned.m64n128k16.f32." #TYPE "." #TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
            "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
            "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
            "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
            "%56, %57, %58, %59, %60, %61, %62, %63" \
            "}, {%64, %65, %66, %67}, b, 1, 1, 1, 1;\n}\n" \
            : MST_C16(c, 0) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply_rows<TYPE>(float (&c)[32][4], \
        const uint32_t (&a)[4], matrix b) \
    { \
        asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%132, " MST_DESCRIBED_HIGH_TEXT "};\n" \
            "wgmma.mma_async.sync.aligned.m64n256k16.f32." #TYPE "." #TYPE " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
            "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
            "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
            "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
            "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, " \
            "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
            "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, " \
            "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
            "%126, %127" \
            "}, {%128, %129, %130, %131}, b, 1, 1, 1, 1;\n}\n" \
            : MST_C32(c, 0) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b)); \
    }
MST_GROUP_INSTRUCTIONS(bf16)
MST_GROUP_INSTRUCTIONS(f16)
#undef MST_GROUP_INSTRUCTIONS

} // namespace mst

#endif
