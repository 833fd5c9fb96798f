/*
 * linear_kernels.cu - a matrix product and all that follows it, for Hopper cards: out =
 * activation(x W^T + bias) + residual, rounded once.
 *
 * What cuBLASLt cannot store in one go: a 16-bit result from an f32 bias, the erf GELU, a residual.
 * Sums run over the depth in ascending steps of 16, as its kernels' do, so that the results are
 * the very bits; the host compares them before this kernel is used for a shape.
 *
 * One warp has the copy engine fetch steps of the depth into a ring in shared memory, which two
 * groups of four warps multiply. Rows and columns past the matrices come in as zeros and are not
 * stored. There are two kernels:
 * - for many tiles of the result a block takes one after another, and has a multiprocessor to
 *   itself. The next tile's steps are fetched while the groups finish and store theirs; where blocks
 *   have several tiles each group has tiles of its own, and one multiplies while the other finishes.
 *   What follows the sums has a copy of its code for each case that is timed.
 * - for few tiles a block takes one. What takes time there is to begin, the way of what is read once,
 *   and the instructions', each of which is executed once: so a block is small enough to begin
 *   beside one of the kernel before it, bias and residual are asked for before they are needed, and
 *   the code is short, with branches in the place of copies.
 * A kernel may begin before those ahead of it in the stream have ended: weights and bias, which no
 * kernel writes, are fetched then, and nothing else is read or written.
 */
#include "cuda/linear_tile.cuh"

namespace
{

/* ---- many tiles: a block takes one after another ---------------------------------------------- */

enum { NO_RESIDUAL = -1 }; /* beside the types */

/* The residual of TOGETHER pieces from the i-th on. */
template <typename T, typename S, int RESIDUAL>
__device__ __forceinline__ void get_residual(const linear_args *a, const part &p, int64_t from,
                                             int first, float (&y)[S::TOGETHER * 4])
{
#pragma unroll
    for (int i = 0; i < S::TOGETHER; i++) {
        const int64_t at = residual_at<S>(a, p, from, first + i);
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

/* The bias of four columns, zeros past the last. */
__device__ __forceinline__ float4 bias_at(const linear_args *a, int64_t column)
{
    return column < a->out_features ? *(const float4 *)(a->bias + column)
                                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* Bias, activation, residual, a store. */
template <typename T, typename S, int ACTIVATION, int RESIDUAL, int OUT>
__device__ __forceinline__ void finish_rows(const linear_args *a, const part &p)
{
    constexpr int N = S::TOGETHER * 4;
    const int64_t from = p.row * a->residual_stride + p.column;
    const int64_t out = p.row * a->out_stride + p.column;
    float more[N], next[N];
    get_residual<T, S, RESIDUAL>(a, p, from, 0, next);
#pragma unroll 1
    for (int first = 0; first < S::PIECES && row_of<S>(p, first) < p.count; first += S::TOGETHER) {
        float y[N];
        if (RESIDUAL != NO_RESIDUAL) {
#pragma unroll
            for (int i = 0; i < N; i++)
                more[i] = next[i];
            if (first + S::TOGETHER < S::PIECES)
                get_residual<T, S, RESIDUAL>(a, p, from, first + S::TOGETHER, next);
        }
#pragma unroll
        for (int i = 0; i < S::TOGETHER; i++) {
            const int32_t row = row_of<S>(p, first + i) < 16 ? row_of<S>(p, first + i) : 15;
            get_staged(y + 4 * i, p.staged + staged_at<S>(row, column_of<S>(p, first + i)));
        }
#pragma unroll
        for (int i = 0; i < S::TOGETHER; i++) {
            y[4 * i] = y[4 * i] + p.bias.x, y[4 * i + 1] = y[4 * i + 1] + p.bias.y;
            y[4 * i + 2] = y[4 * i + 2] + p.bias.z, y[4 * i + 3] = y[4 * i + 3] + p.bias.w;
        }
        activate_all<ACTIVATION>(a, y);
#pragma unroll
        for (int i = 0; i < N && RESIDUAL != NO_RESIDUAL; i++)
            y[i] = y[i] + more[i];
        put_results<T, S, OUT>(a, p, out, first, y);
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
    if (p.count <= 0 || !has_columns<S>(a, p))
        return;
    if (!is_whole<S>(a, p)) {
        finish_pieces_slowly<T, S>(a, p);
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

/* Where a piece of eight columns of a warp's rows of 16-bit results lies: swizzled. */
__device__ __forceinline__ uint32_t packed_at(int row, int piece)
{
    return (uint32_t)(row * 256 + (piece ^ (row & 7)) * 16);
}

/* The bias added to 16 columns in all parts, to where they are stored from: to, of a lane
 * where the columns are the first. */
template <typename T, typename S>
__device__ __forceinline__ void pack_columns(uint32_t to, float4 bias,
                                             int columns, const float (&c)[S::PARTS][S::SUMS])
{
    float y[S::PARTS * 8];
#pragma unroll
    for (int i = 0; i < S::PARTS * 8; i++) {
        const float b = i % 8 < 4 ? (i % 2 == 0 ? bias.x : bias.y) : i % 2 == 0 ? bias.z : bias.w;
        y[i] = c[i / 8][columns * 8 + i % 8] + b;
    }
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
        const float *from = y + 8 * part;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         (to ^ (uint32_t)columns * 32) + part * 4096),
                     "r"(pack<T>(from[0], from[1])), "r"(pack<T>(from[2], from[3])),
                     "r"(pack<T>(from[4], from[5])), "r"(pack<T>(from[6], from[7]))
                     : "memory");
    }
}

__device__ __forceinline__ float4 bias_of_lane(const float *bias)
{
    const float2 first = *(const float2 *)bias, second = *(const float2 *)(bias + 8);
    return make_float4(first.x, first.y, second.x, second.y);
}

/* A warp's rows of 16-bit results that nothing but a bias follows, all columns of the tile being
 * there: they are rounded first, which leaves half as much to stage. */
template <typename T, typename S>
__device__ __forceinline__ void finish_packed(const linear_args *a, const part &p,
                                              const float (&c)[S::PARTS][S::SUMS])
{
    const int lane = (int)p.lane;
    const float *bias = a->bias + p.column + lane % 4 * 2;
    const uint32_t staged = p.staged + packed_at(lane % 16, lane / 16);
    float4 next = bias_of_lane(bias);
#pragma unroll
    for (int columns = 0; columns < S::WIDTH / 16; columns++) {
        const float4 now = next;
        if (columns + 1 < S::WIDTH / 16)
            next = bias_of_lane(bias + 16 * columns + 16);
        pack_columns<T, S>(staged, now, columns, c);
    }
    __syncwarp();
    uint16_t *to = (uint16_t *)a->out + (p.row + lane / 16) * a->out_stride + p.column + lane % 16 * 8;
#pragma unroll 8
    for (int i = 0; i < S::PARTS * 8; i++) {
        const int row = 2 * i + lane / 16, own = row / 16 * 64 + row % 16;
        uint4 all;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(all.x), "=r"(all.y), "=r"(all.z), "=r"(all.w)
                     : "r"(p.staged + packed_at(row, lane % 16)));
        if (own < p.count)
            *(uint4 *)(to + (own - lane / 16) * a->out_stride) = all;
    }
}

template <typename T, typename S>
__device__ __forceinline__ bool finish_at_once(const linear_args *a, const part &p,
                                               const float (&c)[S::PARTS][S::SUMS])
{
    if (!S::ALONE || a->residual != 0 || a->activation != 0 ||
        a->out_type != MST_CUDA_LINEAR_HALF || p.column + S::WIDTH > a->out_features)
        return false;
    finish_packed<T, S>(a, p, c);
    return true;
}

template <typename T, typename S>
__device__ __forceinline__ void finish_tile(const linear_args *a, const work &w, uint32_t staged,
                                            int group, int32_t tile,
                                            float (&c)[S::PARTS][S::SUMS])
{
    static_assert(S::IN_COLUMN && !S::BY_COLUMNS, "a lane's bias, a group's columns");
    int warp = (int)threadIdx.x % GROUP / 32;
    part p;
    asm volatile("" : "+r"(warp));
    p.lane = lane_now();
    p.column = tile % w.columns * S::COLUMNS;
    p.row = (int64_t)(tile / w.columns) * S::ROWS + group * S::ROW_STEP + warp * 16;
    p.staged = staged + (uint32_t)(warp * 16 * S::WIDTH * 4);
    p.count = w.rows - p.row < S::ROWS ? (int32_t)(w.rows - p.row) : S::ROWS;
    __syncwarp();
    if (finish_at_once<T, S>(a, p, c))
        return;
    p.bias = bias_at(a, p.column + column_of<S>(p, 0));
#pragma unroll 1
    for (int i = 0; i < S::PARTS; i++, p.row += 64) {
        p.count = w.rows - p.row < 16 ? (int32_t)(w.rows - p.row) : 16;
        __syncwarp();
        stage_rows<S>(p.staged, c[0]);
        __syncwarp();
        finish_part<T, S>(a, p);
#pragma unroll
        for (int sum = 0; sum < S::SUMS && S::PARTS > 1; sum++) /* what was staged is done with */
            c[0][sum] = c[S::PARTS - 1][sum];
    }
}

/* A group's rows of the block's tiles. The ring goes from tile to tile: where a group has tiles of
 * its own, one after another multiplies while the other finishes and stores. */
template <typename T, typename S>
__device__ __forceinline__ void multiply_all(const linear_args *a, const ring &r, uint32_t staged,
                                             int group)
{
    const work w = live_work<S>(a);
    place p = {0, 0};
    float c[S::PARTS][S::SUMS];
    if (S::ALONE && group == 1) {
        skip<S::STAGES>(p, w.steps);
        turn_pass(group);
    }
    const int32_t blocks = (int32_t)gridDim.x;
    for (int32_t tile = (int32_t)blockIdx.x + (S::ALONE ? group * blocks : 0); tile < w.tiles;
         tile += S::ALONE ? 2 * blocks : blocks) {
        multiply_tile<T, S>(w, r, group, p, c);
        if (S::ALONE)
            skip<S::STAGES>(p, w.steps);
        finish_tile<T, S>(a, w, staged, group, tile, c);
    }
}

template <typename T, typename S> __device__ __forceinline__ void run(const linear_args *a)
{
    extern __shared__ unsigned char shared[];
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    ring r;
    let_others_begin();
    r.stages = (address + 1023) / 1024 * 1024;
    const uint32_t staged = r.stages + MST_CUDA_LINEAR_RING_BYTES;
    r.full = staged + MST_CUDA_LINEAR_STAGED_BYTES;
    r.empty = r.full + S::STAGES * 8;
    if (threadIdx.x == 0)
        make_barriers<S>(r);
    __syncthreads();
    const int group = (int)threadIdx.x / GROUP;
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 2 * GROUP / 32 && is_elected())
            fetch_all<S>(a, r);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        wait_for_others();
        multiply_all<T, S>(a, r, staged + (uint32_t)group * (MST_CUDA_LINEAR_STAGED_BYTES / 2),
                           group);
    }
}

/* ---- few tiles: each block has one ------------------------------------------------------------ */

/* The residual of TOGETHER pieces as it lies in memory, a piece in four words or in two of them:
 * what is on its way is not waited for before it is added. */
template <typename S> struct raw_residual {
    uint32_t at[S::TOGETHER * 4];
};

/* Of the pieces from the i-th on. */
template <typename S>
__device__ __forceinline__ void ask_residual(const linear_args *a, const part &p, int64_t from,
                                             int first, raw_residual<S> &raw)
{
    if (a->residual == 0)
        return;
#pragma unroll
    for (int i = 0; i < S::TOGETHER; i++) {
        const int64_t at = residual_at<S>(a, p, from, first + i);
        if (a->residual_type == MST_CUDA_LINEAR_F32) {
            const uint4 all = *(const uint4 *)((const float *)a->residual + at);
            raw.at[4 * i] = all.x, raw.at[4 * i + 1] = all.y;
            raw.at[4 * i + 2] = all.z, raw.at[4 * i + 3] = all.w;
        } else {
            const uint2 all = *(const uint2 *)((const uint16_t *)a->residual + at);
            raw.at[4 * i] = all.x, raw.at[4 * i + 1] = all.y;
        }
    }
}

template <typename T, typename S>
__device__ __forceinline__ void add_residual(const linear_args *a, const raw_residual<S> &raw,
                                             float (&y)[S::TOGETHER * 4])
{
    if (a->residual == 0)
        return;
    if (a->residual_type == MST_CUDA_LINEAR_F32) {
#pragma unroll
        for (int i = 0; i < S::TOGETHER * 4; i++)
            y[i] = y[i] + bits_to_float(raw.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < S::TOGETHER * 4; i++)
            y[i] = y[i] + widen<T>((uint16_t)(raw.at[i / 4 * 4 + i % 4 / 2] >> i % 2 * 16));
    }
}

template <int N> __device__ __forceinline__ void activate_any(const linear_args *a, float (&y)[N])
{
    if (a->activation == 0)
        return;
    if (a->activation == far::GELU_TANH) {
        activate_all<far::GELU_TANH>(a, y);
    } else if (a->activation == far::GELU) {
        activate_all<far::GELU>(a, y);
    } else {
        activate_all<-1>(a, y);
    }
}

/* Bias, activation, residual, a store. bias: in shared memory, of the group's columns; next: of the
 * first pieces. */
template <typename T, typename S>
__device__ __forceinline__ void finish_few(const linear_args *a, const part &p, uint32_t bias,
                                           raw_residual<S> &next)
{
    const int64_t from = p.row * a->residual_stride + p.column;
    const int64_t out = p.row * a->out_stride + p.column;
#pragma unroll 1
    for (int first = 0; first < S::PIECES && row_of<S>(p, first) < p.count; first += S::TOGETHER) {
        const raw_residual<S> now = next;
        float y[S::TOGETHER * 4];
        if (first + S::TOGETHER < S::PIECES)
            ask_residual<S>(a, p, from, first + S::TOGETHER, next);
#pragma unroll
        for (int i = 0; i < S::TOGETHER; i++) {
            const int32_t row = row_of<S>(p, first + i) < 16 ? row_of<S>(p, first + i) : 15;
            const int32_t column = column_of<S>(p, first + i);
            float *to = y + 4 * i, b[4];
            get_staged(to, p.staged + staged_at<S>(row, column));
            get_staged(b, bias + (uint32_t)column * 4);
#pragma unroll
            for (int j = 0; j < 4; j++)
                to[j] = to[j] + b[j];
        }
        activate_any(a, y);
        add_residual<T, S>(a, now, y);
        if (a->out_type == MST_CUDA_LINEAR_F32)
            put_results<T, S, MST_CUDA_LINEAR_F32>(a, p, out, first, y);
        else
            put_results<T, S, MST_CUDA_LINEAR_HALF>(a, p, out, first, y);
    }
}

/* The tile's bias to shared memory. */
template <typename S>
__device__ __forceinline__ void stage_bias(const linear_args *a, int64_t columns, uint32_t bias)
{
    if (threadIdx.x >= S::COLUMNS)
        return;
    const int64_t column = columns + threadIdx.x;
    const float y = column < a->out_features ? a->bias[column] : 0.0f;
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(bias + threadIdx.x * 4), "f"(y) : "memory");
}

/* Both groups have multiplied all that the ring held, and all of the bias is there. */
__device__ __forceinline__ void groups_wait()
{
    asm volatile("bar.sync 3, 256;" ::: "memory");
}

/* A group's rows of the block's tile, which is staged where the ring was. */
template <typename T, typename S>
__device__ __forceinline__ void multiply_one(const linear_args *a, const ring &r, uint32_t bias,
                                             int group)
{
    const int tile = (int)blockIdx.x, warp = (int)threadIdx.x % GROUP / 32;
    work w = whole_work<S>(a);
    const int64_t columns = tile % w.columns * S::COLUMNS;
    stage_bias<S>(a, columns, bias);
    wait_for_others();
    w = live_work<S>(a);
    if (tile >= w.tiles)
        return;
    part p;
    p.lane = lane_now();
    p.column = columns + group * S::COLUMN_STEP;
    p.row = (int64_t)(tile / w.columns) * S::ROWS + group * S::ROW_STEP + warp * 16;
    p.staged = r.stages + (uint32_t)((group * 64 + warp * 16) * S::WIDTH * 4);
    p.count = w.rows - p.row < 16 ? (int32_t)(w.rows - p.row) : 16;
    const bool lies = p.count > 0 && has_columns<S>(a, p), whole = is_whole<S>(a, p);
    raw_residual<S> residual;
    if (lies && whole)
        ask_residual<S>(a, p, p.row * a->residual_stride + p.column, 0, residual);
    place at = {0, 0};
    float c[1][S::SUMS];
    multiply_tile<T, S>(w, r, group, at, c);
    groups_wait();
    stage_rows<S>(p.staged, c[0]);
    __syncwarp();
    if (lies && whole)
        finish_few<T, S>(a, p, bias + (uint32_t)(group * S::COLUMN_STEP) * 4, residual);
    else if (lies)
        finish_pieces_slowly<T, S>(a, p);
}

template <typename T, typename S> __device__ __forceinline__ void run_few(const linear_args *a)
{
    extern __shared__ __align__(1024) unsigned char aligned[];
    ring r;
    let_others_begin();
    r.stages = (uint32_t)__cvta_generic_to_shared(aligned);
    r.full = r.stages + MST_CUDA_LINEAR_FEW_RING_BYTES;
    r.empty = r.full + S::STAGES * 8;
    const uint32_t bias = r.full + 2 * MST_CUDA_LINEAR_MAX_STAGES * 8;
    if (threadIdx.x == 2 * GROUP)
        make_barriers<S>(r);
    __syncthreads();
    const int group = (int)threadIdx.x / GROUP;
    if (group == 2) {
        if (is_elected())
            fetch_all<S>(a, r);
    } else {
        multiply_one<T, S>(a, r, bias, group);
    }
}

template <typename T> __device__ __forceinline__ void run_shared(const linear_args *a)
{
    switch (a->sharing) {
#define MST_RUN(NAME, ROWS, COLUMNS) \
    case MST_CUDA_LINEAR_##NAME: \
        run<T, sizes<MST_CUDA_LINEAR_##NAME>>(a); \
        break;
        MST_CUDA_LINEAR_MANY(MST_RUN)
#undef MST_RUN
    }
}

template <typename T> __device__ __forceinline__ void run_shared_few(const linear_args *a)
{
    switch (a->sharing) {
#define MST_RUN(NAME, ROWS, COLUMNS) \
    case MST_CUDA_LINEAR_##NAME: \
        run_few<T, sizes<MST_CUDA_LINEAR_##NAME>>(a); \
        break;
        MST_CUDA_LINEAR_FEW(MST_RUN)
#undef MST_RUN
    }
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

extern "C" __global__ void __launch_bounds__(MST_CUDA_LINEAR_FEW_THREADS, 2)
    mst_linear_few_bf16_sm90(const __grid_constant__ linear_args args)
{
    run_shared_few<bf16>(&args);
}

extern "C" __global__ void __launch_bounds__(MST_CUDA_LINEAR_FEW_THREADS, 2)
    mst_linear_few_f16_sm90(const __grid_constant__ linear_args args)
{
    run_shared_few<f16>(&args);
}
