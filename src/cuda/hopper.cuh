/*
 * hopper.cuh - what kernels of all kinds ask of a Hopper card: barriers in shared memory, the copy
 * engine, what goes around its matrix instructions.
 */
#ifndef MST_CUDA_HOPPER_CUH
#define MST_CUDA_HOPPER_CUH

#include <stdint.h>

#include "cuda/tensor_map.h"

namespace mst
{

/* ---- barriers -------------------------------------------------------------------------------- */

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/* After the last init, before a block's other threads and the copy engine see them. */
__device__ __forceinline__ void barriers_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Both; what one takes the other has already. */
__device__ __forceinline__ void barrier_wait(uint32_t first, uint32_t first_parity, uint32_t second,
                                             uint32_t second_parity)
{
    asm volatile("{\n.reg .pred p, q;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 q, [%2], %3;\n"
                 "and.pred p, p, q;\n"
                 "@!p bra again;\n}\n" ::"r"(first),
                 "r"(first_parity), "r"(second), "r"(second_parity)
                 : "memory");
}

/* ---- the copy engine ------------------------------------------------------------------------- */

/* A map that is about to be needed, on its way already. */
__device__ __forceinline__ void expect_map(const mst_cuda_tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A box at (first element, head, first row), whose bytes the barrier counts. */
__device__ __forceinline__ void fetch(uint32_t to, const mst_cuda_tensor_map *map, int32_t element,
                                      int32_t head, int32_t row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(element), "r"(head), "r"(row), "r"(barrier)
                 : "memory");
}

/* One lane of the warp, whose lanes are all here; the compiler knows that it is one. */
__device__ __forceinline__ bool is_elected()
{
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(elected));
    return elected != 0;
}

/* ---- matrix instructions --------------------------------------------------------------------- */

/* What this thread wrote to shared memory becomes visible to matrix instructions. */
__device__ __forceinline__ void show_writes()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void multiply_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void multiply_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most so many of the last committed are not done; c is read or written after it. */
template <int LEFT, int N, int SUMS> __device__ __forceinline__ void multiply_wait(float (&c)[N][SUMS])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int x = 0; x < SUMS; x++)
            asm volatile("" : "+f"(c[i][x])::"memory");
}

/* A matrix in shared memory, as the instructions have it described: rows 128 bytes apart, their
 * 16-byte pieces swizzled in groups of 8 rows. The low word tells where it begins, and how many
 * bytes on the next 64 columns are where those are not what is summed over; the high word is
 * always the same. A description moves by adding bytes / 16. */
__device__ __forceinline__ uint32_t describe_low(uint32_t address, uint32_t step)
{
    return (address & 0x3ffffu) >> 4 | step >> 4 << 16;
}
#define MST_DESCRIBED_HIGH_TEXT "0x40000040"

} // namespace mst

#endif
