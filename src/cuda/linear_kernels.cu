/*
 * linear_kernels.cu - a matrix product and all that follows it, for Hopper cards: out =
 * activation(x W^T + bias) + residual, rounded once.
 *
 * What cuBLASLt cannot store in one go: a 16-bit result from an f32 bias, the erf GELU, a residual.
 * Sums run over the depth in ascending steps of 16, as its kernels' do, so that the results are
 * the very bits; the host compares them before this kernel is used for a shape.
 *
 * A block takes one tile of the result after another. One warp has the copy engine fetch steps of
 * the depth into a ring in shared memory; two groups of four warps take turns, so that one
 * multiplies while the other finishes and stores its tile. Rows and columns past the matrices come
 * in as zeros and are not stored.
 */
#include "cuda/half_types.cuh"
#include "cuda/linear_args.h"

#define MST_DEVICE static __device__ __forceinline__
MST_DEVICE float bits_to_float(uint32_t bits)
{
    return __uint_as_float(bits);
}

/* Any argument, one at a time. */
namespace far
{
typedef float real;
MST_DEVICE float below(float a, float b, float y, float n)
{
    return a < b ? y : n;
}
#define MST_NEAR 0
#include "cuda/row_math.h"
#undef MST_NEAR
} // namespace far

/* Arguments that are near, several at a time: what one waits for is the others' work. */
namespace near
{
constexpr int WIDE = 8;
struct real {
    float at[WIDE];
    real() = default;
    __device__ __forceinline__ real(float x)
    {
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            at[i] = x;
    }
};
#define MST_EACH(expression)                                                  \
    real y_;                                                                  \
    _Pragma("unroll") for (int i = 0; i < WIDE; i++) y_.at[i] = (expression); \
    return y_
MST_DEVICE real operator+(const real &a, const real &b)
{
    MST_EACH(a.at[i] + b.at[i]);
}
MST_DEVICE real operator-(const real &a, const real &b)
{
    MST_EACH(a.at[i] - b.at[i]);
}
MST_DEVICE real operator*(const real &a, const real &b)
{
    MST_EACH(a.at[i] * b.at[i]);
}
MST_DEVICE real fmaf(const real &a, const real &b, const real &c)
{
    MST_EACH(::fmaf(a.at[i], b.at[i], c.at[i]));
}
MST_DEVICE real fabsf(const real &a)
{
    MST_EACH(::fabsf(a.at[i]));
}
MST_DEVICE real below(const real &a, const real &b, const real &y, const real &n)
{
    MST_EACH(a.at[i] < b.at[i] ? y.at[i] : n.at[i]);
}
/* The low bits of such a sum are n. */
MST_DEVICE real power2(const real &n)
{
    MST_EACH(bits_to_float((__float_as_uint(n.at[i] + 12582912.0f) << 23) + 0x3f800000u));
}
MST_DEVICE float guess(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
MST_DEVICE real reciprocal(const real &x)
{
    MST_EACH(guess(x.at[i]));
}
#undef MST_EACH
#define MST_NEAR 1
#include "cuda/row_math.h"
#undef MST_NEAR
} // namespace near

typedef mst_cuda_linear_args linear_args;

namespace
{

using mst::bf16;
using mst::f16;
using mst::pack;
using mst::widen;

constexpr int DEPTH = MST_CUDA_LINEAR_DEPTH;
constexpr int GROUP = 128; /* threads that multiply together */

/* What follows from how the work is shared: a tile, and what a group of threads has of it. */
template <int SHARING> struct sizes {
    static constexpr bool IN_TURN = SHARING == MST_CUDA_LINEAR_IN_TURN;
    static constexpr bool SMALL = SHARING == MST_CUDA_LINEAR_SMALL;
    static constexpr int TILE = SMALL ? MST_CUDA_LINEAR_SMALL_TILE : MST_CUDA_LINEAR_TILE;
    static constexpr int BLOCKS = IN_TURN ? 2 : 1; /* of 64 rows, one matrix instruction each */
    static constexpr int COLUMNS = SMALL ? TILE / 2 : TILE;
    static constexpr int SUMS = COLUMNS / 2; /* of a block, of a thread */
    static constexpr uint32_t MATRIX_BYTES = TILE * DEPTH * 2, STAGE_BYTES = 2 * MATRIX_BYTES;
    static constexpr int STAGES = MST_CUDA_LINEAR_RING_BYTES / STAGE_BYTES;
    static_assert(STAGES <= MST_CUDA_LINEAR_MAX_STAGES, "barriers");
    /* Where a group's own part of a tile begins, of x and weights in a stage. */
    static constexpr uint32_t X_STEP = SHARING == MST_CUDA_LINEAR_HALVES ? MATRIX_BYTES / 2 : 0;
    static constexpr uint32_t WEIGHTS_STEP = SMALL ? MATRIX_BYTES / 2 : 0;
    static constexpr int ROW_STEP = SHARING == MST_CUDA_LINEAR_HALVES ? 64 : 0;
    static constexpr int COLUMN_STEP = SMALL ? COLUMNS : 0;
    /* Lanes of a row of four columns each, and rows of a warp at once. */
    static constexpr int LANES = COLUMNS / 4, ROWS = 32 / LANES;
};
constexpr uint32_t BLOCK_BYTES = 64 * DEPTH * 2; /* of x, in a stage */

/* ---- the machine ----------------------------------------------------------------------------- */

/* c [64 x n] = a [64 x 16] b [n x 16]^T, + c where kept, n twice the sums of a thread; a and b
 * describe shared memory. */
template <typename T, int SUMS>
__device__ __forceinline__ void multiply_add(float (&c)[SUMS], uint64_t a, uint64_t b, bool keep);

/* The same for both types but for the name. */
#define MST_MULTIPLY_ADD(TYPE) \
    template <> \
    __device__ __forceinline__ void multiply_add<TYPE>(float (&c)[64], uint64_t a, uint64_t b, \
                                                       bool keep) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." #TYPE "." #TYPE " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7, " \
                     "%8, %9, %10, %11, %12, %13, %14, %15, " \
                     "%16, %17, %18, %19, %20, %21, %22, %23, " \
                     "%24, %25, %26, %27, %28, %29, %30, %31, " \
                     "%32, %33, %34, %35, %36, %37, %38, %39, " \
                     "%40, %41, %42, %43, %44, %45, %46, %47, " \
                     "%48, %49, %50, %51, %52, %53, %54, %55, " \
                     "%56, %57, %58, %59, %60, %61, %62, %63}," \
                     " %64, %65, p, 1, 1, 0, 0;\n}\n" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), \
                       "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), \
                       "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), \
                       "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), \
                       "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), \
                       "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), \
                       "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), \
                       "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), \
                       "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), \
                       "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), \
                       "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]) \
                     : "l"(a), "l"(b), "r"((int32_t)keep)); \
    } \
 \
    template <> \
    __device__ __forceinline__ void multiply_add<TYPE>(float (&c)[16], uint64_t a, uint64_t b, \
                                                       bool keep) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32." #TYPE "." #TYPE " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7, " \
                     "%8, %9, %10, %11, %12, %13, %14, %15}," \
                     " %16, %17, p, 1, 1, 0, 0;\n}\n" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), \
                       "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), \
                       "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]) \
                     : "l"(a), "l"(b), "r"((int32_t)keep)); \
    }
MST_MULTIPLY_ADD(bf16)
MST_MULTIPLY_ADD(f16)
#undef MST_MULTIPLY_ADD

/* A matrix whose rows are 128 bytes apart, its 16-byte pieces swizzled in groups of 8 rows. */
__device__ __forceinline__ uint64_t describe(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
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
template <int LEFT, int BLOCKS, int SUMS>
__device__ __forceinline__ void multiply_wait(float (&c)[BLOCKS][SUMS])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int h = 0; h < BLOCKS; h++) {
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            asm volatile("" : "+f"(c[h][i])::"memory");
    }
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
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

/* A box at (first element, first row), whose bytes the barrier counts. */
__device__ __forceinline__ void fetch(uint32_t to, const mst_cuda_tensor_map *map, int32_t element,
                                      int32_t row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(element), "r"(row), "r"(barrier)
                 : "memory");
}

/* ---- tiles and the ring ---------------------------------------------------------------------- */

/* Tiles of a row of tiles come one after another, so that they share rows of x in the cache. */
struct work {
    int64_t rows, columns, tiles; /* columns: tiles of a row of tiles */
    int32_t steps;
};

__device__ __forceinline__ work work_of(const linear_args *a, int tile)
{
    work w;
    w.rows = a->live == 0 || *a->live > a->num_rows ? a->num_rows : *a->live;
    w.columns = (a->out_features + tile - 1) / tile;
    w.tiles = (w.rows + tile - 1) / tile * w.columns;
    w.steps = (int32_t)((a->in_features + DEPTH - 1) / DEPTH);
    return w;
}

/* Addresses in shared memory. A stage is full when its bytes are there and empty when they were
 * multiplied; it is a group's turn when the other one has seen all of its own stages full. */
struct ring {
    uint32_t stages, full, empty, turn;
};

/* The stage of a step, and the parity of how often it was used before. */
struct place {
    int32_t stage;
    uint32_t parity;
};
template <int STAGES> __device__ __forceinline__ void advance(place &p, int32_t steps)
{
    p.stage += steps;
    while (p.stage >= STAGES) {
        p.stage -= STAGES;
        p.parity ^= 1;
    }
}

template <typename S>
__device__ __forceinline__ void fetch_all(const linear_args *a, const work &w, const ring &r)
{
    place p = {0, 0};
    for (int64_t tile = blockIdx.x; tile < w.tiles; tile += gridDim.x) {
        int32_t row = (int32_t)(tile / w.columns) * S::TILE;
        int32_t column = (int32_t)(tile % w.columns) * S::TILE;
        for (int32_t step = 0; step < w.steps; step++) {
            uint32_t stage = r.stages + (uint32_t)p.stage * S::STAGE_BYTES;
            uint32_t full = r.full + (uint32_t)p.stage * 8;
            barrier_wait(r.empty + (uint32_t)p.stage * 8, p.parity ^ 1);
            barrier_expect(full, S::STAGE_BYTES);
            fetch(stage, &a->x, step * DEPTH, row, full);
            fetch(stage + S::MATRIX_BYTES, &a->weights, step * DEPTH, column, full);
            advance<S::STAGES>(p, 1);
        }
    }
}

/* ---- one tile -------------------------------------------------------------------------------- */

template <typename T, typename S>
__device__ __forceinline__ void multiply_tile(const work &w, const ring &r, int group, place &p,
                                              float (&c)[S::BLOCKS][S::SUMS])
{
    const bool tells = threadIdx.x % 32 == 0;
    int32_t before = -1; /* the stage of the step before */
    for (int32_t step = 0; step < w.steps; step++) {
        uint32_t stage = r.stages + (uint32_t)p.stage * S::STAGE_BYTES;
        barrier_wait(r.full + (uint32_t)p.stage * 8, p.parity);
        uint64_t x = describe(stage + (uint32_t)group * S::X_STEP);
        uint64_t weights = describe(stage + S::MATRIX_BYTES + (uint32_t)group * S::WEIGHTS_STEP);
        multiply_begin();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            uint64_t at = (uint64_t)(k * 32 >> 4);
#pragma unroll
            for (int h = 0; h < S::BLOCKS; h++)
                multiply_add<T>(c[h], x + h * (BLOCK_BYTES >> 4) + at, weights + at,
                                step > 0 || k > 0);
        }
        multiply_commit();
        multiply_wait<1>(c);
        if (before >= 0 && tells)
            barrier_arrive(r.empty + (uint32_t)before * 8);
        before = p.stage;
        advance<S::STAGES>(p, 1);
    }
    if (S::IN_TURN && tells)
        barrier_arrive(r.turn + (uint32_t)(1 - group) * 8);
    multiply_wait<0>(c);
    if (tells)
        barrier_arrive(r.empty + (uint32_t)before * 8);
}

/* Where a column of a warp's 16 rows of f32 lies: swizzled, so that neither writing pairs nor
 * reading fours meets in a bank. */
template <typename S> __device__ __forceinline__ uint32_t staged_at(int row, int column)
{
    return (uint32_t)(row * S::COLUMNS + (column ^ (row & 3) * 8)) * 4;
}

/* 16 rows of this warp, from the registers of its lanes. */
template <typename S>
__device__ __forceinline__ void stage_rows(uint32_t to, const float (&c)[S::SUMS])
{
    const int lane = (int)threadIdx.x % 32, row = lane / 4;
#pragma unroll
    for (int g = 0; g < S::COLUMNS / 8; g++) {
        const int column = g * 8 + lane % 4 * 2;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + staged_at<S>(row, column)),
                     "f"(c[4 * g]), "f"(c[4 * g + 1])
                     : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + staged_at<S>(row + 8, column)),
                     "f"(c[4 * g + 2]), "f"(c[4 * g + 3])
                     : "memory");
    }
}

/* ---- what follows the sums ------------------------------------------------------------------- */

/* Any argument; called rarely, so not a copy for each element. */
__device__ __noinline__ float activate_far(int activation, float x)
{
    return far::activate(activation, x);
}

template <typename T>
__device__ __forceinline__ float load(const void *data, int32_t type, int64_t at)
{
    return type == MST_CUDA_LINEAR_F32 ? ((const float *)data)[at]
                                       : widen<T>(((const uint16_t *)data)[at]);
}

/* Four columns of a row of which some lie past the matrix, or cannot be read at once. */
template <typename T>
__device__ __noinline__ void finish_slowly(const linear_args *a, uint32_t from, int64_t row,
                                           int64_t column)
{
    for (int j = 0; j < 4 && column + j < a->out_features; j++) {
        float y;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(y) : "r"(from + (uint32_t)j * 4));
        y = activate_far(a->activation, y + a->bias[column + j]);
        if (a->residual != 0)
            y = y + load<T>(a->residual, a->residual_type, row * a->residual_stride + column + j);
        const int64_t at = row * a->out_stride + column + j;
        if (a->out_type == MST_CUDA_LINEAR_F32)
            ((float *)a->out)[at] = y;
        else
            ((uint16_t *)a->out)[at] = (uint16_t)pack<T>(y, 0.0f);
    }
}

/* Pieces of four columns that a lane finishes at once, each ROWS rows further. */
constexpr int TOGETHER = 4;
enum { NO_RESIDUAL = -1 }; /* beside the types */

template <int ACTIVATION>
__device__ __forceinline__ void activate_all(const linear_args *a, float (&y)[TOGETHER * 4])
{
    if (ACTIVATION == 0)
        return;
    bool is_near = ACTIVATION > 0;
#pragma unroll
    for (int i = 0; i < TOGETHER * 4; i++)
        is_near = is_near && fabsf(y[i]) <= 8.0f;
    if (!is_near) {
#pragma unroll
        for (int i = 0; i < TOGETHER * 4; i++)
            y[i] = activate_far(a->activation, y[i]);
        return;
    }
#pragma unroll
    for (int first = 0; first < TOGETHER * 4; first += near::WIDE) {
        near::real x;
#pragma unroll
        for (int i = 0; i < near::WIDE; i++)
            x.at[i] = y[first + i];
        x = ACTIVATION == far::GELU ? near::gelu_f32(x) : near::gelu_tanh_f32(x);
#pragma unroll
        for (int i = 0; i < near::WIDE; i++)
            y[first + i] = x.at[i];
    }
}

/* The residual of TOGETHER pieces; the last of count rows stands for those past it. */
template <typename T, typename S, int RESIDUAL>
__device__ __forceinline__ void get_residual(const linear_args *a, int64_t row, int32_t first,
                                             int32_t count, int64_t column,
                                             float (&y)[TOGETHER * 4])
{
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        const int32_t own = first + i * S::ROWS;
        const int64_t at = (row + (own < count ? own : count - 1)) * a->residual_stride + column;
        if (RESIDUAL == MST_CUDA_LINEAR_F32) {
            const float4 all = *(const float4 *)((const float *)a->residual + at);
            y[4 * i] = all.x, y[4 * i + 1] = all.y, y[4 * i + 2] = all.z, y[4 * i + 3] = all.w;
        } else if (RESIDUAL == MST_CUDA_LINEAR_HALF) {
            const uint2 all = *(const uint2 *)((const uint16_t *)a->residual + at);
            y[4 * i] = widen<T>((uint16_t)all.x), y[4 * i + 1] = widen<T>((uint16_t)(all.x >> 16));
            y[4 * i + 2] = widen<T>((uint16_t)all.y);
            y[4 * i + 3] = widen<T>((uint16_t)(all.y >> 16));
        }
    }
}

template <typename T, typename S, int OUT>
__device__ __forceinline__ void put_results(const linear_args *a, int64_t row, int32_t first,
                                            int32_t count, int64_t column,
                                            const float (&y)[TOGETHER * 4])
{
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        const int32_t own = first + i * S::ROWS;
        const int64_t at = (row + own) * a->out_stride + column;
        if (OUT == MST_CUDA_LINEAR_F32) {
            if (own < count)
                *(float4 *)((float *)a->out + at) =
                    make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
        } else {
            const uint2 all =
                make_uint2(pack<T>(y[4 * i], y[4 * i + 1]), pack<T>(y[4 * i + 2], y[4 * i + 3]));
            if (own < count)
                *(uint2 *)((uint16_t *)a->out + at) = all;
        }
    }
}

/* A warp's 16 staged rows as one lane has them: four columns, and the rows first, first + ROWS, ...
 * of count live ones; row is that of the first of the 16. */
struct part {
    uint32_t staged;
    int32_t first, count;
    int64_t row, column;
    float4 bias;
};

/* Bias, activation, residual, a store. */
template <typename T, typename S, int ACTIVATION, int RESIDUAL, int OUT>
__device__ __forceinline__ void finish_rows(const linear_args *a, const part &p)
{
    constexpr int STEP = TOGETHER * S::ROWS;
    float more[TOGETHER * 4], next[TOGETHER * 4];
    get_residual<T, S, RESIDUAL>(a, p.row, p.first, p.count, p.column, next);
#pragma unroll 1
    for (int first = p.first; first < p.count; first += STEP) {
        float y[TOGETHER * 4];
        if (RESIDUAL != NO_RESIDUAL) {
#pragma unroll
            for (int i = 0; i < TOGETHER * 4; i++)
                more[i] = next[i];
            if (first + STEP < p.count)
                get_residual<T, S, RESIDUAL>(a, p.row, first + STEP, p.count, p.column, next);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            float *to = y + 4 * i;
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                         : "r"(p.staged +
                               staged_at<S>(first + i * S::ROWS, (int)threadIdx.x % S::LANES * 4)));
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            y[4 * i] = y[4 * i] + p.bias.x, y[4 * i + 1] = y[4 * i + 1] + p.bias.y;
            y[4 * i + 2] = y[4 * i + 2] + p.bias.z, y[4 * i + 3] = y[4 * i + 3] + p.bias.w;
        }
        activate_all<ACTIVATION>(a, y);
#pragma unroll
        for (int i = 0; i < TOGETHER * 4 && RESIDUAL != NO_RESIDUAL; i++)
            y[i] = y[i] + more[i];
        put_results<T, S, OUT>(a, p.row, first, p.count, p.column, y);
    }
}

template <typename T, typename S, int ACTIVATION, int RESIDUAL>
__device__ __forceinline__ void finish_as(const linear_args *a, const part &p)
{
    if (a->out_type == MST_CUDA_LINEAR_F32)
        finish_rows<T, S, ACTIVATION, RESIDUAL, MST_CUDA_LINEAR_F32>(a, p);
    else
        finish_rows<T, S, ACTIVATION, RESIDUAL, MST_CUDA_LINEAR_HALF>(a, p);
}

template <typename T, typename S, int ACTIVATION>
__device__ __forceinline__ void finish_with(const linear_args *a, const part &p)
{
    if (a->residual == 0)
        finish_as<T, S, ACTIVATION, NO_RESIDUAL>(a, p);
    else if (a->residual_type == MST_CUDA_LINEAR_F32)
        finish_as<T, S, ACTIVATION, MST_CUDA_LINEAR_F32>(a, p);
    else
        finish_as<T, S, ACTIVATION, MST_CUDA_LINEAR_HALF>(a, p);
}

template <typename T, typename S>
__device__ __forceinline__ void finish_part(const linear_args *a, const part &p)
{
    const bool whole =
        p.column + 4 <= a->out_features && (a->residual == 0 || a->residual_vector != 0);
    if (p.first >= p.count || p.column >= a->out_features)
        return;
    if (!whole) {
        for (int i = p.first; i < p.count; i += S::ROWS)
            finish_slowly<T>(a, p.staged + staged_at<S>(i, (int)threadIdx.x % S::LANES * 4),
                             p.row + i, p.column);
    } else if (a->activation == 0) {
        finish_with<T, S, 0>(a, p);
    } else if (a->activation == far::GELU && a->residual == 0) {
        finish_as<T, S, far::GELU, NO_RESIDUAL>(a, p);
    } else if (a->activation == far::GELU_TANH && a->residual == 0) {
        finish_as<T, S, far::GELU_TANH, NO_RESIDUAL>(a, p);
    } else {
        finish_with<T, S, -1>(a, p);
    }
}

template <typename T, typename S>
__device__ __forceinline__ void finish_tile(const linear_args *a, const work &w, uint32_t staged,
                                            int group, int64_t tile,
                                            const float (&c)[S::BLOCKS][S::SUMS])
{
    const int warp = (int)threadIdx.x % GROUP / 32, lane = (int)threadIdx.x % 32;
    part p;
    p.column = tile % w.columns * S::TILE + group * S::COLUMN_STEP + lane % S::LANES * 4;
    p.staged = staged + (uint32_t)(warp * 16 * S::COLUMNS * 4);
    p.first = lane / S::LANES;
    p.bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (p.column < a->out_features)
        p.bias = *(const float4 *)(a->bias + p.column);
#pragma unroll
    for (int h = 0; h < S::BLOCKS; h++) {
        p.row = tile / w.columns * S::TILE + group * S::ROW_STEP + h * 64 + warp * 16;
        p.count = w.rows - p.row < 16 ? (int32_t)(w.rows - p.row) : 16;
        __syncwarp();
        stage_rows<S>(p.staged, c[h]);
        __syncwarp();
        finish_part<T, S>(a, p);
    }
}

/* A group's tiles: every second one of the block, or its part of each. */
template <typename T, typename S>
__device__ __forceinline__ void multiply_all(const linear_args *a, const work &w, const ring &r,
                                             uint32_t staged, int group)
{
    place p = {0, 0};
    uint32_t parity = (uint32_t)(1 - group); /* the first turn is group 0's without a word */
    float c[S::BLOCKS][S::SUMS];
    if (S::IN_TURN && group == 1)
        advance<S::STAGES>(p, w.steps);
    for (int64_t tile = blockIdx.x + (S::IN_TURN ? group * (int64_t)gridDim.x : 0); tile < w.tiles;
         tile += (S::IN_TURN ? 2 : 1) * (int64_t)gridDim.x) {
        if (S::IN_TURN)
            barrier_wait(r.turn + (uint32_t)group * 8, parity);
        parity ^= 1;
        multiply_tile<T, S>(w, r, group, p, c);
        if (S::IN_TURN)
            advance<S::STAGES>(p, w.steps);
        finish_tile<T, S>(a, w, staged, group, tile, c);
    }
}

template <typename T, typename S> __device__ __forceinline__ void run(const linear_args *a)
{
    extern __shared__ unsigned char shared[];
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    ring r;
    r.stages = (address + 1023) / 1024 * 1024;
    const uint32_t staged = r.stages + MST_CUDA_LINEAR_RING_BYTES;
    r.full = staged + MST_CUDA_LINEAR_STAGED_BYTES;
    r.empty = r.full + S::STAGES * 8;
    r.turn = r.empty + S::STAGES * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(r.full + i * 8, 1);
            barrier_init(r.empty + i * 8, (S::IN_TURN ? 1 : 2) * GROUP / 32);
        }
        for (int i = 0; i < 2; i++)
            barrier_init(r.turn + i * 8, GROUP / 32);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const work w = work_of(a, S::TILE);
    const int group = (int)threadIdx.x / GROUP;
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 2 * GROUP)
            fetch_all<S>(a, w, r);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_all<T, S>(a, w, r, staged + (uint32_t)group * (MST_CUDA_LINEAR_STAGED_BYTES / 2),
                           group);
    }
}

template <typename T> __device__ __forceinline__ void run_shared(const linear_args *a)
{
    if (a->sharing == MST_CUDA_LINEAR_IN_TURN)
        run<T, sizes<MST_CUDA_LINEAR_IN_TURN>>(a);
    else if (a->sharing == MST_CUDA_LINEAR_HALVES)
        run<T, sizes<MST_CUDA_LINEAR_HALVES>>(a);
    else
        run<T, sizes<MST_CUDA_LINEAR_SMALL>>(a);
}

} // namespace

extern "C" __global__ void __launch_bounds__(MST_CUDA_LINEAR_THREADS, 1)
    mst_linear_bf16_sm90(const __grid_constant__ linear_args args)
{
    run_shared<bf16>(&args);
}

extern "C" __global__ void __launch_bounds__(MST_CUDA_LINEAR_THREADS, 1)
    mst_linear_f16_sm90(const __grid_constant__ linear_args args)
{
    run_shared<f16>(&args);
}
