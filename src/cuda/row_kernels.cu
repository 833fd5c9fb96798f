/*
 * row_kernels.cu - norms, activations, embedding, pooling, normalise and rotary: the kernels of the
 * row operations.
 *
 * Written in what C and CUDA have in common: nvcc compiles it for cards, and the tests compile it
 * for the host over an emulation of threads, shuffles and barriers. For that a kernel stores its
 * results after its last barrier and writes each word of shared memory once.
 *
 * A team of threads does a row: one warp, or a block of its own for a wide row. Sums run thread by
 * thread over groups of four elements, then over lanes as a tree, then over warps in order. All
 * arithmetic is f32 with single roundings (the build turns contraction off), results are rounded
 * once, and neither the number of rows nor strides and alignment change a bit.
 */
#include "cuda/row_args.h"

#if defined(__CUDACC__)
#include "cuda/overlap.cuh"

#define MST_DEVICE static __device__ __forceinline__
#define MST_KERNEL(name, threads, wait)                                   \
    MST_DEVICE void name##_run(const mst_cuda_row_args *a);               \
    extern "C" __global__ void __launch_bounds__(threads)                 \
        name(const __grid_constant__ mst_cuda_row_args args)              \
    {                                                                     \
        mst::let_others_begin();                                          \
        wait;                                                             \
        name##_run(&args);                                                \
    }                                                                     \
    MST_DEVICE void name##_run(const mst_cuda_row_args *a)
#define MST_ROW_KERNEL(name, threads) MST_KERNEL(name, threads, mst::wait_for_others())
/* Itself waits for the kernels before it. */
#define MST_FEW_KERNEL(name, threads) MST_KERNEL(name, threads, )

#define MST_UNROLL _Pragma("unroll")

using mst::wait_for_others;

/* Into the L2 cache, where what is written later is seen. Without a branch. */
MST_DEVICE void prefetch_if(bool wanted, const void *from)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %0, 0;\n\t"
                 "@p prefetch.global.L2 [%1];\n\t}" ::"r"((uint32_t)wanted),
                 "l"(from));
}
/* Asked for in this order. */
MST_DEVICE void load_floats(const void *from, float y[4])
{
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3])
                 : "l"(from)
                 : "memory");
}
MST_DEVICE void load_words(const void *from, uint32_t y[2])
{
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(y[0]), "=r"(y[1])
                 : "l"(from)
                 : "memory");
}
/* At once: of a struct of four the compiler makes four stores. */
MST_DEVICE void store_floats(void *to, const float y[4])
{
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(y[0]), "f"(y[1]),
                 "f"(y[2]), "f"(y[3])
                 : "memory");
}
MST_DEVICE void store_words(void *to, uint32_t first, uint32_t second)
{
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(first), "r"(second) : "memory");
}

MST_DEVICE float bits_to_float(uint32_t bits)
{
    return __uint_as_float(bits);
}
MST_DEVICE float from_bf16(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}
MST_DEVICE float from_f16(uint16_t x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
MST_DEVICE uint16_t to_bf16(float x)
{
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
MST_DEVICE uint16_t to_f16(float x)
{
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
/* Two in a word, the first in its low half. */
MST_DEVICE uint32_t to_two_bf16(float first, float second)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}
MST_DEVICE uint32_t to_two_f16(float first, float second)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}
#endif

typedef float real;
MST_DEVICE float below(float a, float b, float y, float n)
{
    return a < b ? y : n;
}
#define MST_NEAR 0
#include "cuda/row_math.h"

typedef mst_cuda_row_args row_args;

/* Four elements that lie together and aligned. */
typedef struct __attribute__((aligned(16))) four_floats {
    float at[4];
} four_floats;
typedef struct __attribute__((aligned(8))) four_halves {
    uint16_t at[4];
} four_halves;

MST_DEVICE int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- elements -------------------------------------------------------------------------------- */

MST_DEVICE float get(const mst_cuda_rows *r, int64_t at)
{
    if (r->dtype == MST_CUDA_F32)
        return ((const float *)r->data)[at];
    uint16_t half = ((const uint16_t *)r->data)[at];
    return r->dtype == MST_CUDA_BF16 ? from_bf16(half) : from_f16(half);
}

MST_DEVICE void put(const mst_cuda_rows *r, int64_t at, float y)
{
    if (r->dtype == MST_CUDA_F32)
        ((float *)r->data)[at] = y;
    else
        ((uint16_t *)r->data)[at] = r->dtype == MST_CUDA_BF16 ? to_bf16(y) : to_f16(y);
}

/* Elements i to i + 3 of a row; those past the width are 0. */
MST_DEVICE void get4(const mst_cuda_rows *r, int64_t row, int64_t i, int64_t width, float y[4])
{
    int64_t at = row * r->row_stride + i;
    if (!r->vector || i + 4 > width) {
        for (int j = 0; j < 4; j++)
            y[j] = i + j < width ? get(r, at + j) : 0.0f;
    } else if (r->dtype == MST_CUDA_F32) {
        four_floats all = *(const four_floats *)((const float *)r->data + at);
        for (int j = 0; j < 4; j++)
            y[j] = all.at[j];
    } else {
        four_halves all = *(const four_halves *)((const uint16_t *)r->data + at);
        for (int j = 0; j < 4; j++)
            y[j] = r->dtype == MST_CUDA_BF16 ? from_bf16(all.at[j]) : from_f16(all.at[j]);
    }
}

/* Four elements, where four are written at once. */
MST_DEVICE void store_four(void *to, int32_t dtype, const float y[4])
{
    if (dtype == MST_CUDA_F32)
        store_floats(to, y);
    else if (dtype == MST_CUDA_BF16)
        store_words(to, to_two_bf16(y[0], y[1]), to_two_bf16(y[2], y[3]));
    else
        store_words(to, to_two_f16(y[0], y[1]), to_two_f16(y[2], y[3]));
}

MST_DEVICE int64_t bytes_of(int32_t dtype)
{
    return dtype == MST_CUDA_F32 ? 4 : 2;
}

/* Elements i to i + 3 of a row of fours. */
MST_DEVICE void put_whole(const mst_cuda_rows *r, int64_t row, int64_t i, const float y[4])
{
    store_four((char *)r->data + (row * r->row_stride + i) * bytes_of(r->dtype), r->dtype, y);
}

MST_DEVICE void put4(const mst_cuda_rows *r, int64_t row, int64_t i, int64_t width,
                     const float y[4])
{
    if (r->vector && i + 4 <= width) {
        put_whole(r, row, i, y);
        return;
    }
    for (int j = 0; j < 4 && i + j < width; j++)
        put(r, row * r->row_stride + i + j, y[j]);
}

/* x + residual. */
MST_DEVICE void get4_sum(const row_args *a, int64_t row, int64_t i, float y[4])
{
    float r[4];
    get4(&a->x, row, i, a->width, y);
    if (a->residual.data == 0)
        return;
    get4(&a->residual, row, i, a->width, r);
    for (int j = 0; j < 4; j++)
        y[j] = y[j] + r[j];
}

/* ---- teams ----------------------------------------------------------------------------------- */

/* Of the grid. */
MST_DEVICE int64_t team_index(const row_args *a)
{
    return (int64_t)blockIdx.x * (int)(blockDim.x / (unsigned)a->team) +
           (int)(threadIdx.x / (unsigned)a->team);
}

MST_DEVICE int64_t live_rows(const row_args *a)
{
    return a->live == 0 ? a->num_rows : min_i64(*a->live, a->num_rows);
}

/* The row of this thread's team; -1: none. A whole warp has one answer. */
MST_DEVICE int64_t team_row(const row_args *a)
{
    int64_t row = team_index(a);
    return row < live_rows(a) ? row : -1;
}

MST_DEVICE int64_t lane_of(const row_args *a)
{
    return (int64_t)(threadIdx.x % (unsigned)a->team);
}

enum { WARPS = MST_CUDA_MAX_TEAM / 32 };

/* The team's sums of several rows, the same bits in every thread. parts: a word a warp and row, of
 * nobody else. */
MST_DEVICE void team_sums(const int team, const int rows, float *y, float *parts)
{
    MST_UNROLL
    for (int i = 16; i > 0; i /= 2) {
        MST_UNROLL
        for (int r = 0; r < rows; r++)
            y[r] = y[r] + __shfl_xor_sync(0xffffffffu, y[r], i);
    }
    if (team == 32)
        return;
    MST_UNROLL
    for (int r = 0; r < rows; r++) {
        if (threadIdx.x % 32 == 0)
            parts[r * WARPS + (int)(threadIdx.x / 32)] = y[r];
    }
    __syncthreads();
    MST_UNROLL
    for (int r = 0; r < rows; r++) {
        y[r] = parts[r * WARPS];
        for (int i = 1; i < team / 32; i++)
            y[r] = y[r] + parts[r * WARPS + i];
    }
}

MST_DEVICE float team_sum(const row_args *a, float y, float *parts)
{
    team_sums(a->team, 1, &y, parts);
    return y;
}

MST_DEVICE double team_sum_f64(const row_args *a, double y, double *parts)
{
    for (int i = 16; i > 0; i /= 2)
        y = y + __shfl_xor_sync(0xffffffffu, y, i);
    if (a->team == 32)
        return y;
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = y;
    __syncthreads();
    double sum = parts[0];
    for (int i = 1; i < a->team / 32; i++)
        sum = sum + parts[i];
    return sum;
}

/* ---- norms ----------------------------------------------------------------------------------- */

MST_DEVICE float scaled(const bool rms, float y, float mean, float scale, float weight, float bias)
{
    float d = (y - mean) * scale;
    return rms ? d * weight : fmaf(d, weight, bias);
}

/* Group c of this thread: kept where the row fits what the team keeps, else read again. */
MST_DEVICE void group(const row_args *a, const bool kept, float all[MST_CUDA_KEPT][4], int64_t row,
                      int64_t i, int c, float y[4])
{
    if (!kept) {
        get4_sum(a, row, i, y);
        return;
    }
    for (int j = 0; j < 4; j++)
        y[j] = all[c][j];
}

/* Mean, mean of the centred squares, result; rms: without the first. */
MST_DEVICE void norm_row(const row_args *a, const bool rms, const bool kept, int64_t row,
                         float *parts)
{
    const int64_t first = 4 * lane_of(a), step = 4 * (int64_t)a->team, width = a->width;
    const int groups = kept ? MST_CUDA_KEPT : (int)((width + step - 1) / step);
    float all[MST_CUDA_KEPT][4], y[4];
    float mean = 0.0f, sum = 0.0f, squares = 0.0f;
    MST_UNROLL
    for (int c = 0; c < groups; c++) {
        int64_t i = first + c * step;
        if (i >= width)
            break;
        get4_sum(a, row, i, y);
        for (int j = 0; j < 4 && kept; j++)
            all[c][j] = y[j];
        sum = sum + ((y[0] + y[1]) + (y[2] + y[3]));
    }
    if (!rms)
        mean = team_sum(a, sum, parts) / (float)width;
    MST_UNROLL
    for (int c = 0; c < groups; c++) {
        int64_t i = first + c * step;
        if (i >= width)
            break;
        group(a, kept, all, row, i, c, y);
        for (int j = 0; j < 4; j++) {
            float d = i + j < width ? y[j] - mean : 0.0f;
            squares = fmaf(d, d, squares);
        }
    }
    squares = team_sum(a, squares, parts + MST_CUDA_MAX_TEAM / 32);
    float scale = 1.0f / sqrtf(squares / (float)width + a->eps);
    MST_UNROLL
    for (int c = 0; c < groups; c++) {
        int64_t i = first + c * step;
        if (i >= width)
            break;
        group(a, kept, all, row, i, c, y);
        for (int j = 0; j < 4; j++) {
            if (i + j >= width)
                break;
            y[j] = scaled(rms, y[j], mean, scale, a->weight[i + j],
                          a->bias == 0 ? 0.0f : a->bias[i + j]);
        }
        put4(&a->out, row, i, width, y);
    }
}

/* ---- norms of whole rows: all that is read is asked for at once ------------------------------- */

enum { FEW = MST_CUDA_FEW, MOST = MST_CUDA_TOGETHER };

/* A thread's groups of a row as they lie in memory: floats or halves. */
typedef struct raw_row {
    four_floats floats[FEW];
    four_halves halves[FEW];
} raw_row;

/* Groups past the width are 0. */
MST_DEVICE void ask_row(const row_args *a, const void *data, const bool halves, const int groups,
                        int64_t at, raw_row *raw)
{
    const four_floats no_floats = {{0.0f}};
    const four_halves no_halves = {{0}};
    MST_UNROLL
    for (int c = 0; c < groups; c++) {
        const int64_t i = 4 * (lane_of(a) + c * (int64_t)a->team);
        if (halves)
            raw->halves[c] = i < a->width ? *(const four_halves *)((const uint16_t *)data + at + i)
                                          : no_halves;
        else
            raw->floats[c] =
                i < a->width ? *(const four_floats *)((const float *)data + at + i) : no_floats;
    }
}

MST_DEVICE float raw_at(const raw_row *raw, const bool halves, int32_t dtype, int c, int j)
{
    if (!halves)
        return raw->floats[c].at[j];
    return dtype == MST_CUDA_BF16 ? from_bf16(raw->halves[c].at[j])
                                  : from_f16(raw->halves[c].at[j]);
}

/* So many rows from first on, those from end on not stored: the order of norm_row's sums. */
MST_DEVICE void norm_whole(const row_args *a, const bool rms, const bool x_halves,
                           const bool has_residual, const bool residual_halves, const int together,
                           const int groups, int64_t first, int64_t end, float *parts)
{
    const int64_t width = a->width;
    raw_row x[MOST], more[MOST], weight, bias;
    float y[MOST][FEW][4], mean[MOST], sum[MOST], squares[MOST];
    ask_row(a, a->weight, false, groups, 0, &weight);
    if (!rms && a->bias != 0)
        ask_row(a, a->bias, false, groups, 0, &bias);
    MST_UNROLL
    for (int r = 0; r < together; r++)
        ask_row(a, a->x.data, x_halves, groups, min_i64(first + r, end - 1) * a->x.row_stride,
                &x[r]);
    MST_UNROLL
    for (int r = 0; r < together && has_residual; r++)
        ask_row(a, a->residual.data, residual_halves, groups,
                min_i64(first + r, end - 1) * a->residual.row_stride, &more[r]);
    MST_UNROLL
    for (int r = 0; r < together; r++) {
        sum[r] = mean[r] = squares[r] = 0.0f;
        MST_UNROLL
        for (int c = 0; c < groups; c++) {
            for (int j = 0; j < 4; j++) {
                y[r][c][j] = raw_at(&x[r], x_halves, a->x.dtype, c, j);
                if (has_residual)
                    y[r][c][j] =
                        y[r][c][j] + raw_at(&more[r], residual_halves, a->residual.dtype, c, j);
            }
            if (4 * (lane_of(a) + c * (int64_t)a->team) < width)
                sum[r] = sum[r] + ((y[r][c][0] + y[r][c][1]) + (y[r][c][2] + y[r][c][3]));
        }
    }
    if (!rms)
        team_sums(a->team, together, sum, parts);
    MST_UNROLL
    for (int r = 0; r < together; r++) {
        mean[r] = rms ? 0.0f : sum[r] / (float)width;
        MST_UNROLL
        for (int c = 0; c < groups; c++) {
            const bool lies = 4 * (lane_of(a) + c * (int64_t)a->team) < width;
            for (int j = 0; j < 4; j++) {
                float d = lies ? y[r][c][j] - mean[r] : 0.0f;
                squares[r] = fmaf(d, d, squares[r]);
            }
        }
    }
    team_sums(a->team, together, squares, parts + MOST * WARPS);
    MST_UNROLL
    for (int r = 0; r < together; r++) {
        float scale = 1.0f / sqrtf(squares[r] / (float)width + a->eps);
        MST_UNROLL
        for (int c = 0; c < groups; c++) {
            const int64_t i = 4 * (lane_of(a) + c * (int64_t)a->team);
            for (int j = 0; j < 4; j++)
                y[r][c][j] = scaled(rms, y[r][c][j], mean[r], scale, weight.floats[c].at[j],
                                    rms || a->bias == 0 ? 0.0f : bias.floats[c].at[j]);
            if (i < width && first + r < end)
                put_whole(&a->out, first + r, i, y[r][c]);
        }
    }
}

MST_DEVICE void norm_types(const row_args *a, const bool rms, const int together, const int groups,
                           int64_t first, int64_t end, float *parts)
{
    const bool x_halves = a->x.dtype != MST_CUDA_F32;
    const bool residual_halves = a->residual.dtype != MST_CUDA_F32;
    if (a->residual.data == 0 && x_halves)
        norm_whole(a, rms, true, false, false, together, groups, first, end, parts);
    else if (a->residual.data == 0)
        norm_whole(a, rms, false, false, false, together, groups, first, end, parts);
    else if (x_halves && residual_halves)
        norm_whole(a, rms, true, true, true, together, groups, first, end, parts);
    else if (x_halves)
        norm_whole(a, rms, true, true, false, together, groups, first, end, parts);
    else if (residual_halves)
        norm_whole(a, rms, false, true, true, together, groups, first, end, parts);
    else
        norm_whole(a, rms, false, true, false, together, groups, first, end, parts);
}

MST_DEVICE void norm(const row_args *a, const bool rms, float *parts)
{
    const int64_t end = live_rows(a), row = team_index(a) * a->together;
    if (row >= end)
        return;
    if (a->together == MOST)
        norm_types(a, rms, MOST, FEW - 1, row, end, parts);
    else if (a->whole)
        norm_types(a, rms, 1, FEW, row, end, parts);
    else if (a->width <= 4 * (int64_t)MST_CUDA_KEPT * a->team)
        norm_row(a, rms, true, row, parts);
    else
        norm_row(a, rms, false, row, parts);
}

/* More than are launched: the compiler then takes 96 registers, and 20 warps fit. */
enum { NORM_THREADS = 640 };

MST_ROW_KERNEL(mst_layer_norm_sm80, NORM_THREADS)
{
    __shared__ float parts[2 * MOST * WARPS];
    norm(a, false, parts);
}

MST_ROW_KERNEL(mst_rms_norm_sm80, NORM_THREADS)
{
    __shared__ float parts[2 * MOST * WARPS];
    norm(a, true, parts);
}

/* ---- norms of few rows: no more instructions than it takes ------------------------------------ */

/* Such a norm's time is mostly that of its instructions on their way to the multiprocessors, each
 * of which is executed once: so the types and the team are constants, and what is executed lies
 * together. The host has checked what norm_few takes for granted: mst_cuda_norm_is_few. */
enum { FEW_GROUPS = MST_CUDA_FEW - 1, FEW_THREADS = 128 };

/* Four elements as they lie in memory: floats, or halves. */
typedef struct four_raw {
    float floats[4];
    uint32_t words[2];
} four_raw;

MST_DEVICE void few_ask(const char *from, const int32_t dtype, four_raw *raw)
{
    if (dtype == MST_CUDA_F32)
        load_floats(from, raw->floats);
    else
        load_words(from, raw->words);
}

MST_DEVICE float few_at(const four_raw *raw, const int32_t dtype, const int j)
{
    if (dtype == MST_CUDA_F32)
        return raw->floats[j];
    const uint32_t word = raw->words[j / 2];
    if (dtype == MST_CUDA_F16)
        return from_f16((uint16_t)(j % 2 == 0 ? word & 0xffffu : word >> 16));
    return bits_to_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

/* The order of norm_row's sums. A group past the width adds 0 to a sum that is not -0. */
MST_DEVICE void norm_few(const row_args *a, const bool rms, const int team, const int32_t x_type,
                         const int32_t out_type, float *parts)
{
    const float width = (float)(int32_t)a->width;
    const bool alone = team == FEW_THREADS;
    const uint32_t lane = alone ? threadIdx.x : threadIdx.x % (unsigned)team;
    const uint32_t row = alone ? blockIdx.x
                               : blockIdx.x * (unsigned)(FEW_THREADS / team) +
                                     threadIdx.x / (unsigned)team;
    prefetch_if(32 * lane < (uint32_t)a->width, a->weight + 32 * (int64_t)lane);
    if (!rms)
        prefetch_if(32 * lane < (uint32_t)a->width, a->bias + 32 * (int64_t)lane);
    const uint32_t first = 4 * lane;
    const float *weight = a->weight + (int64_t)first, *bias = rms ? 0 : a->bias + (int64_t)first;
    const char *from = (const char *)a->x.data +
                       (int64_t)(row * (uint32_t)a->x.row_stride + first) * bytes_of(x_type);
    char *to = (char *)a->out.data +
               (int64_t)(row * (uint32_t)a->out.row_stride + first) * bytes_of(out_type);
    wait_for_others();
    if (!alone && row >= (uint32_t)a->num_rows)
        return;
    if (a->live != 0 && (int64_t)row >= *a->live)
        return;
    four_raw x[FEW_GROUPS];
    float w[FEW_GROUPS][4], b[FEW_GROUPS][4];
    bool lies[FEW_GROUPS];
    MST_UNROLL
    for (int c = 0; c < FEW_GROUPS; c++) {
        /* a team of 128 has rows of more than 1024 */
        lies[c] = (team == 128 && c < 2) ||
                  first + (uint32_t)(4 * c * team) < (uint32_t)a->width;
        x[c] = (four_raw){{0.0f, 0.0f, 0.0f, 0.0f}, {0, 0}};
        if (lies[c])
            few_ask(from + 4 * c * team * bytes_of(x_type), x_type, &x[c]);
    }
    MST_UNROLL
    for (int c = 0; c < FEW_GROUPS; c++) {
        if (lies[c]) {
            load_floats(weight + 4 * c * team, w[c]);
            if (!rms)
                load_floats(bias + 4 * c * team, b[c]);
        }
    }
    float y[FEW_GROUPS][4], mean = 0.0f, sum = 0.0f, squares = 0.0f;
    MST_UNROLL
    for (int c = 0; c < FEW_GROUPS; c++) {
        for (int j = 0; j < 4; j++)
            y[c][j] = few_at(&x[c], x_type, j);
        sum = sum + ((y[c][0] + y[c][1]) + (y[c][2] + y[c][3]));
    }
    if (!rms) {
        team_sums(team, 1, &sum, parts);
        mean = sum / width;
    }
    MST_UNROLL
    for (int c = 0; c < FEW_GROUPS; c++) {
        for (int j = 0; j < 4; j++) {
            y[c][j] = y[c][j] - mean;
            squares = lies[c] ? fmaf(y[c][j], y[c][j], squares) : squares;
        }
    }
    team_sums(team, 1, &squares, parts + FEW_THREADS / 32);
    const float scale = 1.0f / sqrtf(squares / width + a->eps);
    MST_UNROLL
    for (int c = 0; c < FEW_GROUPS; c++) {
        if (!lies[c])
            continue;
        for (int j = 0; j < 4; j++)
            y[c][j] = scaled(rms, y[c][j], 0.0f, scale, w[c][j], rms ? 0.0f : b[c][j]);
        store_four(to + 4 * c * team * bytes_of(out_type), out_type, y[c]);
    }
}

/* What comes last is what the compiler puts first, where nothing is jumped over: bf16. */
MST_DEVICE void few_types(const row_args *a, const bool rms, const int team, float *parts)
{
    const int32_t x = a->x.dtype, out = a->out.dtype;
    if (x == MST_CUDA_F32 && out == MST_CUDA_F32)
        norm_few(a, rms, team, MST_CUDA_F32, MST_CUDA_F32, parts);
    else if (x == MST_CUDA_F32 && out == MST_CUDA_F16)
        norm_few(a, rms, team, MST_CUDA_F32, MST_CUDA_F16, parts);
    else if (x == MST_CUDA_F32)
        norm_few(a, rms, team, MST_CUDA_F32, MST_CUDA_BF16, parts);
    else if (x == MST_CUDA_F16)
        norm_few(a, rms, team, MST_CUDA_F16, MST_CUDA_F16, parts);
    else
        norm_few(a, rms, team, MST_CUDA_BF16, MST_CUDA_BF16, parts);
}

MST_DEVICE void few(const row_args *a, const bool rms, float *parts)
{
    if (a->team == 32)
        few_types(a, rms, 32, parts);
    else
        few_types(a, rms, 128, parts);
}

MST_FEW_KERNEL(mst_layer_norm_few_sm80, FEW_THREADS)
{
    __shared__ __attribute__((aligned(16))) float parts[2 * FEW_THREADS / 32];
    few(a, false, parts);
}

MST_FEW_KERNEL(mst_rms_norm_few_sm80, FEW_THREADS)
{
    __shared__ __attribute__((aligned(16))) float parts[2 * FEW_THREADS / 32];
    few(a, true, parts);
}

/* ---- rows of length 1 ------------------------------------------------------------------------ */

/* The sum of squares is redone in f64 where f32 would overflow or vanish. */
MST_DEVICE double length_of(const row_args *a, int64_t row, float *parts, double *wide_parts)
{
    const int64_t first = 4 * lane_of(a), step = 4 * (int64_t)a->team;
    float squares = 0.0f, y[4];
    for (int64_t i = first; i < a->width; i += step) {
        get4(&a->x, row, i, a->width, y);
        for (int j = 0; j < 4; j++)
            squares = fmaf(y[j], y[j], squares);
    }
    squares = team_sum(a, squares, parts);
    if (squares > 1e-30f && squares < 1e37f)
        return (double)sqrtf(squares);
    double wide = 0.0;
    for (int64_t i = first; i < a->width; i += step) {
        get4(&a->x, row, i, a->width, y);
        for (int j = 0; j < 4; j++)
            wide = wide + (double)y[j] * (double)y[j];
    }
    return sqrt(team_sum_f64(a, wide, wide_parts));
}

/* A length past the range of f32 is divided out of a row made smaller by a power of two. */
MST_ROW_KERNEL(mst_normalize_sm80, MST_CUDA_MAX_TEAM)
{
    __shared__ float parts[MST_CUDA_MAX_TEAM / 32];
    __shared__ double wide_parts[MST_CUDA_MAX_TEAM / 32];
    int64_t row = team_row(a);
    if (row < 0)
        return;
    double length = length_of(a, row, parts, wide_parts);
    float factor = length < 0x1p127 ? 1.0f : 0x1p-64f;
    /* NaN is kept: the comparison is false for it */
    float divisor = (float)(length < 1e-12 ? 1e-12 : length * (double)factor);
    float y[4];
    for (int64_t i = 4 * lane_of(a); i < a->width; i += 4 * (int64_t)a->team) {
        get4(&a->x, row, i, a->width, y);
        for (int j = 0; j < 4; j++)
            y[j] = y[j] * factor / divisor;
        put4(&a->out, row, i, a->width, y);
    }
}

/* ---- element by element ---------------------------------------------------------------------- */

/* activation(x + bias) + residual: an operation, a conversion, and what is left of a product. */
MST_ROW_KERNEL(mst_activation_sm80, MST_CUDA_MAX_TEAM)
{
    int64_t row = team_row(a);
    if (row < 0)
        return;
    float y[4], r[4];
    for (int64_t i = 4 * lane_of(a); i < a->width; i += 4 * (int64_t)a->team) {
        get4(&a->x, row, i, a->width, y);
        for (int j = 0; j < 4; j++) {
            if (a->bias != 0 && i + j < a->width)
                y[j] = y[j] + a->bias[i + j];
            y[j] = activate(a->activation, y[j]);
        }
        if (a->residual.data != 0) {
            get4(&a->residual, row, i, a->width, r);
            for (int j = 0; j < 4; j++)
                y[j] = y[j] + r[j];
        }
        put4(&a->out, row, i, a->width, y);
    }
}

/* ---- embedding ------------------------------------------------------------------------------- */

/* Rows of the tables, summed in order. The host has checked the ids. */
MST_ROW_KERNEL(mst_embedding_sm80, MST_CUDA_MAX_TEAM)
{
    int64_t row = team_row(a);
    if (row < 0)
        return;
    float y[4], more[4];
    for (int64_t i = 4 * lane_of(a); i < a->width; i += 4 * (int64_t)a->team) {
        get4(&a->tables[0], a->ids[0][row], i, a->width, y);
        for (int t = 1; t < a->num_tables; t++) {
            get4(&a->tables[t], a->ids[t][row], i, a->width, more);
            for (int j = 0; j < 4; j++)
                y[j] = y[j] + more[j];
        }
        put4(&a->out, row, i, a->width, y);
    }
}

/* ---- pooling --------------------------------------------------------------------------------- */

enum { POOL_CLS, POOL_MAX, POOL_MEAN, POOL_SQRT, POOL_WEIGHTED, POOL_LAST };

MST_DEVICE float larger(float y, float v) /* a NaN on either side stays */
{
    return v <= y ? y : y < v ? v : y + v;
}

/* Rows begin + share, begin + share + 8, ... of four columns, in order. */
MST_DEVICE void pool_share(const row_args *a, int64_t begin, int64_t end, int64_t share,
                           int64_t skipped, int64_t i, float y[4])
{
    float v[4];
    for (int64_t r = begin + share; r < end; r += MST_CUDA_POOL_SHARES) {
        float weight = a->pooling == POOL_WEIGHTED ? (float)(skipped + r - begin + 1) : 1.0f;
        bool is_first = r == begin + share;
        get4(&a->x, r, i, a->width, v);
        for (int j = 0; j < 4; j++) {
            if (is_first)
                y[j] = v[j] * weight;
            else if (a->pooling == POOL_MAX)
                y[j] = larger(y[j], v[j]);
            else
                y[j] = a->pooling == POOL_WEIGHTED ? fmaf(v[j], weight, y[j]) : y[j] + v[j];
        }
    }
}

MST_DEVICE double pool_divisor(int pooling, int64_t rows, int64_t skipped)
{
    if (pooling == POOL_MEAN)
        return (double)rows;
    if (pooling == POOL_SQRT)
        return sqrt((double)rows);
    if (pooling == POOL_WEIGHTED)
        return (double)rows * (2.0 * (double)skipped + (double)rows + 1.0) / 2.0;
    return 1.0;
}

/* A block does 128 columns of a segment: 8 shares of its tokens, then the shares in order. */
MST_ROW_KERNEL(mst_pooling_sm80, MST_CUDA_POOL_THREADS)
{
    __shared__ float shares[MST_CUDA_POOL_SHARES][MST_CUDA_POOL_LANES][4];
    int64_t segment = (int64_t)blockIdx.x;
    if (segment >= live_rows(a))
        return;
    int lane = (int)threadIdx.x % MST_CUDA_POOL_LANES;
    int share = (int)threadIdx.x / MST_CUDA_POOL_LANES;
    int64_t i = ((int64_t)blockIdx.y * MST_CUDA_POOL_LANES + lane) * 4;
    int64_t begin = a->offsets[segment], end = a->offsets[segment + 1];
    int64_t skipped = a->skip == 0 ? 0 : min_i64(a->skip[segment], end - begin);
    begin += skipped;
    if (a->pooling == POOL_CLS)
        end = min_i64(end, begin + 1);
    else if (a->pooling == POOL_LAST && end > begin)
        begin = end - 1;
    float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    pool_share(a, begin, i < a->width ? end : begin, share, skipped, i, y);
    for (int j = 0; j < 4; j++)
        shares[share][lane][j] = y[j];
    __syncthreads();
    if (share != 0 || i >= a->width)
        return;
    int64_t rows = end - begin;
    float divisor = (float)pool_divisor(a->pooling, rows, skipped);
    for (int j = 0; j < 4; j++) {
        for (int s = 1; s < MST_CUDA_POOL_SHARES && s < rows; s++)
            y[j] = a->pooling == POOL_MAX ? larger(y[j], shares[s][lane][j])
                                          : y[j] + shares[s][lane][j];
        if (rows > 0 && divisor != 1.0f)
            y[j] = y[j] / divisor;
    }
    put4(&a->out, segment, i, a->width, y);
}

/* ---- rotary ---------------------------------------------------------------------------------- */

/* Angles in f64, the turn in f32. */
MST_ROW_KERNEL(mst_rotary_sm80, MST_CUDA_MAX_TEAM)
{
    int64_t row = team_row(a);
    if (row < 0)
        return;
    int half = a->rotary_dim / 2;
    for (int64_t i = lane_of(a); i < half; i += a->team) {
        double angle = (double)a->positions[row] * a->frequencies[i];
        float c = (float)cos(angle), s = (float)sin(angle);
        int64_t first = a->interleaved ? 2 * i : i;
        int64_t second = a->interleaved ? 2 * i + 1 : i + half;
        for (int h = 0; h < a->num_heads; h++) {
            int64_t from = row * a->x.row_stride + h * a->x_head_stride;
            int64_t to = row * a->out.row_stride + h * a->out_head_stride;
            float u = get(&a->x, from + first), v = get(&a->x, from + second);
            put(&a->out, to + first, u * c - v * s);
            put(&a->out, to + second, v * c + u * s);
        }
    }
    int rest = a->head_dim - a->rotary_dim;
    for (int64_t i = lane_of(a); i < (int64_t)rest * a->num_heads; i += a->team) {
        int64_t h = i / rest, d = a->rotary_dim + i % rest;
        put(&a->out, row * a->out.row_stride + h * a->out_head_stride + d,
            get(&a->x, row * a->x.row_stride + h * a->x_head_stride + d));
    }
}
