/*
 * mock_simt.h - threads, warps and blocks of a GPU in plain C: the source of the row kernels runs
 * on it, block by block.
 *
 * A thread runs until it meets a shuffle or a barrier whose outcome is not there yet; then the
 * next one runs. When all that take part have met it, each thread is run again from its start, and
 * gets the outcomes that there are until it meets the next one. No stacks are switched, so that
 * sanitizers and emulators see plain calls. What this asks of a kernel: results are stored after
 * its last shuffle or barrier, and a word of shared memory is written once.
 *
 * What it finds: a lane that is missing at a shuffle, a thread at a barrier, threads that wait for
 * one another; and a barrier that is missing, since shared memory begins as NaN and threads run in
 * turns from first to last and from last to first.
 */
#ifndef MOCK_SIMT_H
#define MOCK_SIMT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/base.h"
#include "cuda/linear_args.h"
#include "cuda/row_args.h"

typedef struct simt_index {
    unsigned x, y, z;
} simt_index;
extern simt_index simt_thread, simt_block, simt_block_size;

typedef void simt_kernel(const mst_cuda_row_args args);
/* Runs every block of the grid. NULL, or what is wrong; static. */
const char *simt_launch(simt_kernel *kernel, const mst_cuda_row_args *args, unsigned grid_x,
                        unsigned grid_y, unsigned threads);
/* mock_row_kernels.c: by symbol; NULL: no such kernel. */
simt_kernel *simt_kernel_find(const char *symbol);

/* What the mock driver writes into a tensor map. */
typedef struct simt_map {
    const uint16_t *data;
    uint64_t columns, rows, row_bytes;
} simt_map;
/* mock_row_kernels.c: writes one, or refuses what the driver would. */
int simt_map_encode(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                    int interleave, int swizzle, int promotion, int fill);
/* How the work of a product has to be shared for its sums to have other bits, and for nothing to be
 * stored; -1: never. */
extern int32_t simt_odd_sharing, simt_idle_sharing;
/* mock_row_kernels.c: our own product, sums in ascending order as mock_blas has them. NULL, or what
 * is wrong; static. */
const char *simt_linear(const mst_cuda_linear_args *args, bool is_bf16);

float simt_shuffle_f32(unsigned mask, float value, int lane);
double simt_shuffle_f64(unsigned mask, double value, int lane);
void simt_barrier(void);

/* ---- what kernels call these things ---------------------------------------------------------- */

#define threadIdx simt_thread
#define blockIdx simt_block
#define blockDim simt_block_size
#define __shared__ static __attribute__((section("mock_shared")))
#define __syncthreads simt_barrier
#define __shfl_xor_sync(mask, value, lane) \
    _Generic((value), double : simt_shuffle_f64, default : simt_shuffle_f32)(mask, value, lane)

#define MST_DEVICE static inline
#define MST_UNROLL
#define MST_ROW_KERNEL(name, threads)                       \
    MST_DEVICE void name##_run(const mst_cuda_row_args *a); \
    static void name(const mst_cuda_row_args args)          \
    {                                                       \
        name##_run(&args);                                  \
    }                                                       \
    MST_DEVICE void name##_run(const mst_cuda_row_args *a)

#define MST_FEW_KERNEL MST_ROW_KERNEL

static inline void wait_for_others(void) {}
static inline void prefetch_if(bool wanted, const void *from)
{
    (void)wanted;
    (void)from;
}
static inline void load_floats(const void *from, float y[4])
{
    memcpy(y, from, 4 * sizeof *y);
}
static inline void load_words(const void *from, uint32_t y[2])
{
    memcpy(y, from, 2 * sizeof *y);
}
static inline void store_floats(void *to, const float y[4])
{
    memcpy(to, y, 4 * sizeof *y);
}
static inline void store_words(void *to, uint32_t first, uint32_t second)
{
    memcpy(to, (uint32_t[]){first, second}, 2 * sizeof first);
}
static inline float bits_to_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline float from_bf16(uint16_t x)
{
    return mst_bf16_to_f32(x);
}
static inline float from_f16(uint16_t x)
{
    return mst_f16_to_f32(x);
}
static inline uint16_t to_bf16(float x)
{
    return mst_f32_to_bf16(x);
}
static inline uint16_t to_f16(float x)
{
    return mst_f32_to_f16(x);
}
static inline uint32_t to_two_bf16(float first, float second)
{
    return to_bf16(first) | (uint32_t)to_bf16(second) << 16;
}
static inline uint32_t to_two_f16(float first, float second)
{
    return to_f16(first) | (uint32_t)to_f16(second) << 16;
}

#endif
