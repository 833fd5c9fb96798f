/*
 * overlap.cuh - a kernel that begins before those ahead of it in the stream have ended: nothing on
 * cards before Hopper.
 */
#ifndef MST_CUDA_OVERLAP_CUH
#define MST_CUDA_OVERLAP_CUH

namespace mst
{

/* The next kernel may be scheduled. */
__device__ __forceinline__ void let_others_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Until the kernels before have ended: what they wrote is read, and anything written, only then. */
__device__ __forceinline__ void wait_for_others()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace mst

#endif
