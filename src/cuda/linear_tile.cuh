/*
 * linear_tile.cuh - a tile of a product on Hopper cards: how it is shared, the ring that its
 * operands come in, its sums, and what follows them. linear_kernels.cu makes kernels of it.
 */
#ifndef MST_CUDA_LINEAR_TILE_CUH
#define MST_CUDA_LINEAR_TILE_CUH

#include "cuda/half_types.cuh"
#include "cuda/hopper.cuh"
#include "cuda/linear_args.h"
#include "cuda/overlap.cuh"

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
MST_DEVICE real scale2(const real &x, const real &shifted)
{
    MST_EACH(bits_to_float(__float_as_uint(x.at[i]) + (__float_as_uint(shifted.at[i]) << 23)));
}
/* A zero keeps its sign: -0 is below 0 here. */
MST_DEVICE real positive(const real &x)
{
    MST_EACH(fmaxf(x.at[i], -0.0f));
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

using mst::barrier_arrive;
using mst::barrier_expect;
using mst::barrier_init;
using mst::barrier_wait;
using mst::bf16;
using mst::f16;
using mst::is_elected;
using mst::let_others_begin;
using mst::multiply_begin;
using mst::multiply_commit;
using mst::multiply_wait;
using mst::pack;
using mst::wait_for_others;
using mst::widen;

constexpr int DEPTH = MST_CUDA_LINEAR_DEPTH;
constexpr int GROUP = 128; /* threads that multiply together */

template <int SHARING> struct tile_of;
#define MST_TILE(NAME, TILE_ROWS, TILE_COLUMNS)                            \
    template <> struct tile_of<MST_CUDA_LINEAR_##NAME> {                   \
        static constexpr int ROWS = TILE_ROWS, COLUMNS = TILE_COLUMNS; \
    };
MST_CUDA_LINEAR_SHARINGS(MST_TILE)
#undef MST_TILE

/* What follows from a tile's size, and what a group of threads has of it. */
template <int SHARING> struct sizes : tile_of<SHARING> {
    using tile = tile_of<SHARING>;
    static constexpr bool ALONE = SHARING == MST_CUDA_LINEAR_PING; /* a group has a tile */
    static constexpr bool FEW = SHARING >= MST_CUDA_LINEAR_FIRST_FEW; /* a block has one tile */
    static constexpr bool BY_COLUMNS = tile::ROWS == 64;
    static constexpr int PARTS = ALONE ? tile::ROWS / 64 : 1; /* of 64 rows, of a group */
    static constexpr int WIDTH = BY_COLUMNS ? tile::COLUMNS / 2 : tile::COLUMNS;
    static constexpr int SUMS = WIDTH / 2; /* of a thread, in a part */
    static constexpr uint32_t X_BYTES = tile::ROWS * DEPTH * 2;
    static constexpr uint32_t WEIGHT_BYTES = tile::COLUMNS * DEPTH * 2;
    static constexpr uint32_t STAGE_BYTES = X_BYTES + WEIGHT_BYTES;
    static constexpr int STAGES =
        (FEW ? MST_CUDA_LINEAR_FEW_RING_BYTES : MST_CUDA_LINEAR_RING_BYTES) / STAGE_BYTES;
    static_assert(STAGES <= MST_CUDA_LINEAR_MAX_STAGES, "barriers");
    static_assert(WEIGHT_BYTES % 1024 == 0, "swizzled in groups of 8 rows");
    static_assert(!FEW || (tile::COLUMNS <= MST_CUDA_LINEAR_FEW_COLUMNS &&
                           tile::ROWS * tile::COLUMNS * 4 <= MST_CUDA_LINEAR_FEW_RING_BYTES),
                  "room for the bias and the tile");
    /* Where a group's own part begins, in a stage and in the tile. */
    static constexpr uint32_t X_STEP = BY_COLUMNS || ALONE ? 0 : X_BYTES / 2;
    static constexpr uint32_t WEIGHTS_STEP = BY_COLUMNS ? WEIGHT_BYTES / 2 : 0;
    static constexpr int ROW_STEP = BY_COLUMNS || ALONE ? 0 : 64;
    static constexpr int COLUMN_STEP = BY_COLUMNS ? WIDTH : 0;
    /* Pieces of four columns: of a row; of a lane, in a warp's 16 rows, and how many at once. */
    static constexpr int LANES = WIDTH / 4, PIECES = (16 * LANES + 31) / 32;
    static constexpr int TOGETHER = PIECES % 4 == 0 ? 4 : 2;
    static constexpr bool IN_COLUMN = 32 % LANES == 0; /* all of a lane's pieces lie */
    static_assert(IN_COLUMN || WIDTH % 16 == 8, "staged rows that meet in a bank");
};

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
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), \
                       "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), \
                       "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), \
                       "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), \
                       "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), \
                       "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), \
                       "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), \
                       "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), \
                       "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), \
                       "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), "+f"(c[49]), \
                       "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), \
                       "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), \
                       "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]) \
                     : "l"(a), "l"(b), "r"((int32_t)keep)); \
    } \
 \
    template <> \
    __device__ __forceinline__ void multiply_add<TYPE>(float (&c)[36], uint64_t a, uint64_t b, \
                                                       bool keep) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n72k16.f32." #TYPE "." #TYPE " {" \
                     "%0, %1, %2, %3, %4, %5, %6, %7, " \
                     "%8, %9, %10, %11, %12, %13, %14, %15, " \
                     "%16, %17, %18, %19, %20, %21, %22, %23, " \
                     "%24, %25, %26, %27, %28, %29, %30, %31, " \
                     "%32, %33, %34, %35}," \
                     " %36, %37, p, 1, 1, 0, 0;\n}\n" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), \
                       "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), \
                       "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), \
                       "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), \
                       "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), \
                       "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), \
                       "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), \
                       "+f"(c[35]) \
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
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), \
                       "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), \
                       "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), \
                       "+f"(c[15]) \
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
    int64_t rows;
    int32_t tiles, columns, steps; /* columns: tiles of a row of tiles */
};

/* All but what the live rows say. */
template <typename S> __device__ __forceinline__ work whole_work(const linear_args *a)
{
    work w;
    w.rows = a->num_rows;
    w.columns = (int32_t)((a->out_features + S::COLUMNS - 1) / S::COLUMNS);
    w.tiles = (int32_t)((w.rows + S::ROWS - 1) / S::ROWS) * w.columns;
    w.steps = (int32_t)((a->in_features + DEPTH - 1) / DEPTH);
    return w;
}

/* After the kernels before. */
template <typename S> __device__ __forceinline__ work live_work(const linear_args *a)
{
    work w = whole_work<S>(a);
    if (a->live != 0 && *a->live < w.rows)
        w.rows = *a->live;
    w.tiles = (int32_t)((w.rows + S::ROWS - 1) / S::ROWS) * w.columns;
    return w;
}

/* Addresses in shared memory. A stage is full when its bytes are there and empty when all groups
 * that share its tile have multiplied them. */
struct ring {
    uint32_t stages, full, empty;
};

/* By one thread; the block's others see it after they have met. */
template <typename S> __device__ __forceinline__ void make_barriers(const ring &r)
{
    for (int i = 0; i < S::STAGES; i++) {
        barrier_init(r.full + i * 8, 1);
        barrier_init(r.empty + i * 8, (S::ALONE ? 1 : 2) * GROUP / 32);
    }
    mst::barriers_made();
}

/* The stage of a step, and the parity of how often it was used before. */
struct place {
    int32_t stage;
    uint32_t parity;
};
template <int STAGES> __device__ __forceinline__ void advance(place &p)
{
    if (++p.stage == STAGES) {
        p.stage = 0;
        p.parity ^= 1;
    }
}
template <int STAGES> __device__ __forceinline__ void skip(place &p, int32_t steps)
{
    const int32_t stage = p.stage + steps;
    p.stage = stage % STAGES;
    p.parity ^= (uint32_t)(stage / STAGES) & 1;
}

template <typename S>
__device__ __forceinline__ void fetch_x(const linear_args *a, const ring &r, int32_t stage,
                                        int32_t step, int32_t row)
{
    fetch(r.stages + (uint32_t)stage * S::STAGE_BYTES, &a->x, step * DEPTH, row,
          r.full + (uint32_t)stage * 8);
}
template <typename S>
__device__ __forceinline__ void fetch_weights(const linear_args *a, const ring &r, int32_t stage,
                                              int32_t step, int32_t column)
{
    fetch(r.stages + (uint32_t)stage * S::STAGE_BYTES + S::X_BYTES, &a->weights, step * DEPTH,
          column, r.full + (uint32_t)stage * 8);
}

/* The first steps of a tile, into a ring that was never used; how many. The weights, which no
 * kernel writes, come while the kernels before end. */
template <typename S>
__device__ __forceinline__ int32_t fetch_first(const linear_args *a, const work &w, const ring &r,
                                               int32_t row, int32_t column)
{
    const int32_t ahead = w.steps < S::STAGES ? w.steps : S::STAGES;
    if (S::FEW)
        mst::expect_map(&a->x);
    for (int32_t step = 0; step < ahead; step++) {
        barrier_expect(r.full + (uint32_t)step * 8, S::STAGE_BYTES);
        fetch_weights<S>(a, r, step, step, column);
    }
    wait_for_others();
    for (int32_t step = 0; step < ahead; step++)
        fetch_x<S>(a, r, step, step, row);
    return ahead;
}

template <typename S>
__device__ __forceinline__ void fetch_all(const linear_args *a, const ring &r)
{
    work w = whole_work<S>(a);
    int32_t tile = (int32_t)blockIdx.x;
    int32_t row = tile / w.columns * S::ROWS, column = tile % w.columns * S::COLUMNS;
    int32_t step = fetch_first<S>(a, w, r, row, column);
    w = live_work<S>(a);
    for (int32_t i = 0; i < step && tile >= w.tiles; i++)
        barrier_wait(r.full + (uint32_t)i * 8, 0); /* nobody else does, and the block would end */
    place p = {step % S::STAGES, (uint32_t)(step / S::STAGES)};
    while (tile < w.tiles) {
        for (; step < w.steps; step++) {
            barrier_wait(r.empty + (uint32_t)p.stage * 8, p.parity ^ 1);
            barrier_expect(r.full + (uint32_t)p.stage * 8, S::STAGE_BYTES);
            fetch_weights<S>(a, r, p.stage, step, column);
            fetch_x<S>(a, r, p.stage, step, row);
            advance<S::STAGES>(p);
        }
        if (S::FEW)
            return;
        step = 0;
        tile += (int32_t)gridDim.x;
        row = tile / w.columns * S::ROWS;
        column = tile % w.columns * S::COLUMNS;
    }
}

/* ---- one tile -------------------------------------------------------------------------------- */

/* Groups that have tiles of their own take turns to multiply: one waits, and wakes the other when
 * its last step is on the way. So the stages that it waits for are the ring's next: of a stage one
 * use is not told from the next but one. */
__device__ __forceinline__ void turn_wait(int group)
{
    if (group == 0)
        asm volatile("bar.sync 1, 256;" ::: "memory");
    else
        asm volatile("bar.sync 2, 256;" ::: "memory");
}
__device__ __forceinline__ void turn_pass(int group)
{
    if (group == 0)
        asm volatile("bar.arrive 2, 256;" ::: "memory");
    else
        asm volatile("bar.arrive 1, 256;" ::: "memory");
}

template <typename T, typename S>
__device__ __forceinline__ void multiply_tile(const work &w, const ring &r, int group, place &p,
                                              float (&c)[S::PARTS][S::SUMS])
{
    const bool tells = threadIdx.x % 32 == 0;
    int32_t before = -1; /* the stage of the step before */
    if (S::ALONE)
        turn_wait(group);
    for (int32_t step = 0; step < w.steps; step++) {
        uint32_t stage = r.stages + (uint32_t)p.stage * S::STAGE_BYTES;
        barrier_wait(r.full + (uint32_t)p.stage * 8, p.parity);
        uint64_t x = describe(stage + (uint32_t)group * S::X_STEP);
        uint64_t weights = describe(stage + S::X_BYTES + (uint32_t)group * S::WEIGHTS_STEP);
        multiply_begin();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            uint64_t at = (uint64_t)(k * 32 >> 4);
#pragma unroll
            for (int part = 0; part < S::PARTS; part++)
                multiply_add<T>(c[part], x + at + part * (64 * DEPTH * 2 >> 4), weights + at,
                                step > 0 || k > 0);
        }
        multiply_commit();
        multiply_wait<1>(c);
        if (before >= 0 && tells)
            barrier_arrive(r.empty + (uint32_t)before * 8);
        before = p.stage;
        advance<S::STAGES>(p);
    }
    if (S::ALONE)
        turn_pass(group);
    multiply_wait<0>(c);
    if (tells)
        barrier_arrive(r.empty + (uint32_t)before * 8);
}

/* The compiler does not keep what follows from it for the next tile. */
__device__ __forceinline__ uint32_t lane_now()
{
    uint32_t lane = threadIdx.x;
    asm volatile("" : "+r"(lane));
    return lane % 32;
}

/* Where a column of a warp's 16 rows of f32 lies: swizzled where the width is a multiple of the
 * banks, so that neither writing pairs nor reading fours meets in one. */
template <typename S> __device__ __forceinline__ uint32_t staged_at(int row, int column)
{
    return (uint32_t)(row * S::WIDTH + (S::IN_COLUMN ? column ^ (row & 3) * 8 : column)) * 4;
}

/* 16 rows of this warp, from the registers of its lanes. A swizzle moves eight columns among the four
 * eights that they are of, and rows that are eight apart alike. */
template <typename S>
__device__ __forceinline__ void stage_rows(uint32_t to, const float (&c)[S::SUMS])
{
    const int lane = (int)lane_now(), row = lane / 4;
    uint32_t own[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        own[i] = to + staged_at<S>(row, i * 8 + lane % 4 * 2);
#pragma unroll
    for (int g = 0; g < S::WIDTH / 8; g++) {
        const uint32_t at = own[g % 4] + (uint32_t)(g / 4) * 128;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(c[4 * g]), "f"(c[4 * g + 1])
                     : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * S::WIDTH * 4),
                     "f"(c[4 * g + 2]), "f"(c[4 * g + 3])
                     : "memory");
    }
}

__device__ __forceinline__ void get_staged(float *to, uint32_t from)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(from));
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

__device__ __forceinline__ float max_or_nan(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

template <int ACTIVATION, int N>
__device__ __forceinline__ bool activate_near(float (&y)[N])
{
    float most = fabsf(y[0]);
#pragma unroll
    for (int i = 1; i < N; i++)
        most = max_or_nan(most, fabsf(y[i]));
    if (!(most <= 8.0f))
        return false;
#pragma unroll
    for (int first = 0; first < N; first += near::WIDE) {
        near::real x;
#pragma unroll
        for (int i = 0; i < near::WIDE; i++)
            x.at[i] = y[first + i];
        x = ACTIVATION == far::GELU ? near::gelu_f32(x) : near::gelu_tanh_f32(x);
#pragma unroll
        for (int i = 0; i < near::WIDE; i++)
            y[first + i] = x.at[i];
    }
    return true;
}

template <int ACTIVATION, int N>
__device__ __forceinline__ void activate_all(const linear_args *a, float (&y)[N])
{
    if constexpr (ACTIVATION > 0) {
        if (activate_near<ACTIVATION>(y))
            return;
    }
    if (ACTIVATION != 0) {
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] = activate_far(a->activation, y[i]);
    }
}

/* A warp's 16 staged rows: count live ones from row on, columns from column on. bias: of a lane's
 * pieces, in the kernel for many tiles, where they lie in a column. */
struct part {
    uint32_t staged, lane;
    int32_t count;
    int64_t row, column;
    float4 bias;
};

/* Row and column of a lane's i-th piece among them. */
template <typename S> __device__ __forceinline__ int32_t row_of(const part &p, int i)
{
    return (int32_t)((p.lane + 32 * (uint32_t)i) / S::LANES);
}
template <typename S> __device__ __forceinline__ int32_t column_of(const part &p, int i)
{
    return (int32_t)((p.lane + (S::IN_COLUMN ? 0 : 32 * (uint32_t)i)) % S::LANES * 4);
}

/* Where the i-th piece's residual lies, of which the part's first is at from; the last of count
 * rows stands for those past it, and 0 for columns past the last. */
template <typename S>
__device__ __forceinline__ int64_t residual_at(const linear_args *a, const part &p, int64_t from,
                                               int i)
{
    const int32_t own = row_of<S>(p, i), column = column_of<S>(p, i);
    return from + (own < p.count ? own : p.count - 1) * a->residual_stride +
           (S::IN_COLUMN || p.column + column < a->out_features ? column : 0);
}

/* Four results, at once and without a branch: of a struct the compiler makes several stores. */
__device__ __forceinline__ void store_floats(float *to, float a, float b, float c, float d,
                                             bool lies)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
                 "@p st.global.v4.f32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(to),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"((int32_t)lies)
                 : "memory");
}
__device__ __forceinline__ void store_words(uint16_t *to, uint32_t first, uint32_t second,
                                            bool lies)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
                 "@p st.global.v2.u32 [%0], {%1, %2};\n}\n" ::"l"(to),
                 "r"(first), "r"(second), "r"((int32_t)lies)
                 : "memory");
}

/* The results of TOGETHER pieces from the i-th on, of which the part's first goes to to. */
template <typename T, typename S, int OUT>
__device__ __forceinline__ void put_results(const linear_args *a, const part &p, int64_t to,
                                            int first, const float (&y)[S::TOGETHER * 4])
{
#pragma unroll
    for (int i = 0; i < S::TOGETHER; i++) {
        const int32_t own = row_of<S>(p, first + i);
        const int32_t column = column_of<S>(p, first + i);
        const int64_t at = to + own * a->out_stride + column;
        const bool lies = own < p.count && (S::IN_COLUMN || p.column + column < a->out_features);
        const float *from = y + 4 * i;
        if (OUT == MST_CUDA_LINEAR_F32)
            store_floats((float *)a->out + at, from[0], from[1], from[2], from[3], lies);
        else
            store_words((uint16_t *)a->out + at, pack<T>(from[0], from[1]),
                        pack<T>(from[2], from[3]), lies);
    }
}

/* Whether the matrix has columns for this lane; whether all of its fours can be read and written at
 * once. */
template <typename S> __device__ __forceinline__ bool has_columns(const linear_args *a, const part &p)
{
    return p.column + (S::IN_COLUMN ? column_of<S>(p, 0) : 0) < a->out_features;
}
template <typename S> __device__ __forceinline__ bool is_whole(const linear_args *a, const part &p)
{
    return (S::IN_COLUMN ? p.column + column_of<S>(p, 0) + 4 <= a->out_features
                         : a->out_features % 4 == 0) &&
           (a->residual == 0 || a->residual_vector != 0);
}

template <typename T, typename S>
__device__ __forceinline__ void finish_pieces_slowly(const linear_args *a, const part &p)
{
    for (int i = 0; i < S::PIECES && row_of<S>(p, i) < p.count; i++)
        finish_slowly<T>(a, p.staged + staged_at<S>(row_of<S>(p, i), column_of<S>(p, i)),
                         p.row + row_of<S>(p, i), p.column + column_of<S>(p, i));
}

} // namespace

#endif
