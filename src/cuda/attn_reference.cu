/*
 * attn_reference.cu - attention in plain f32: the reference beside the tensor-core kernels, and the
 * kernel for f32.
 *
 * A warp takes one query row of one head; a lane scores one key of 32 and then holds every 32nd
 * column of the result. Keys go in blocks of 32 counted from the segment's first key, with an online
 * softmax over them; keys that the row does not see are never read. Scores are kept halved, so that
 * any score that f32 holds stays finite in base 2. Any head dim to 256, any stride.
 */
#include "cuda/attn_args.h"
#if defined(__CUDACC__)
#include "cuda/attn_instructions.cuh"
#endif

namespace {

enum { WARPS = 4, MAX_HEAD_DIM = 256, COLUMNS = MAX_HEAD_DIM / 32 };

struct f32 {
    typedef float type;
    static __device__ float load(const float *p) { return *p; }
    static __device__ void store(float *p, float x) { *p = x; }
};
template <typename T> struct half {
    typedef uint16_t type;
    static __device__ float load(const uint16_t *p) { return mst::widen<T>(*p); }
    static __device__ void store(uint16_t *p, float x) { *p = (uint16_t)mst::pack<T>(x, x); }
};

__device__ float warp_max(float x)
{
    for (int i = 16; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
__device__ float warp_sum(float x)
{
    for (int i = 16; i > 0; i /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* 2^(2 (x - top)) for halved scores. */
__device__ float weight_of(float x, float top)
{
    float below = __fsub_rn(x, top);
    return exp2f(__fadd_rn(below, below));
}

template <typename T>
__device__ void one_row(const mst_cuda_attn_args &a, const mst_cuda_attn_item &item, int causal,
                        int kv_head, int packed, float *q)
{
    typedef typename T::type element;
    int lane = threadIdx.x % 32;
    int token = packed / a.group;
    int64_t head = (int64_t)kv_head * a.group + packed % a.group;
    int64_t row = (int64_t)item.q_first + token;
    const element *q_from = (const element *)a.q + row * a.q_row_stride + head * a.q_head_stride;
    __syncwarp();
    for (int d = lane; d < a.head_dim; d += 32)
        q[d] = T::load(q_from + d);
    __syncwarp();

    int diagonal = item.lk - item.lq + token;
    int after = causal ? 0 : a.window_right;
    int low = a.window_left == MST_CUDA_NO_WINDOW ? 0 : max(0, diagonal - a.window_left);
    int high = after == MST_CUDA_NO_WINDOW ? item.lk : min(item.lk, diagonal + after + 1);

    float o[COLUMNS] = {0.0f};
    float m = __uint_as_float(0xff800000u), l = 0.0f;
    for (int first = low / 32 * 32; first < high; first += 32) {
        int key = first + lane;
        bool seen = key >= low && key < high;
        float s = __uint_as_float(0xff800000u);
        if (seen) {
            const element *k = (const element *)a.k + ((int64_t)item.kv_first + key) * a.k_row_stride +
                               kv_head * a.k_head_stride;
            float dot = 0.0f;
            for (int d = 0; d < a.head_dim; d++)
                dot = __fmaf_rn(q[d], T::load(k + d), dot);
            s = __fmul_rn(dot, a.half_scale);
        }
        float largest = fmaxf(m, warp_max(s));
        float reference = isinf(largest) && largest < 0.0f ? 0.0f : largest;
        float p = seen ? weight_of(s, reference) : 0.0f;
        float shrink = weight_of(m, reference);
        m = largest;
        l = __fmaf_rn(l, shrink, warp_sum(p));
        for (int i = 0; i < COLUMNS; i++)
            o[i] = __fmul_rn(o[i], shrink);
        for (int j = max(0, low - first); j < min(32, high - first); j++) {
            float weight = __shfl_sync(0xffffffffu, p, j);
            const element *v = (const element *)a.v + ((int64_t)item.kv_first + first + j) * a.v_row_stride +
                               kv_head * a.v_head_stride;
            for (int i = 0; i < COLUMNS; i++) {
                int d = lane + 32 * i;
                if (d < a.head_dim)
                    o[i] = __fmaf_rn(weight, T::load(v + d), o[i]);
            }
        }
    }
    float inverse = l == 0.0f ? 0.0f : __fdiv_rn(1.0f, l);
    element *to = (element *)a.out + row * a.out_row_stride + head * a.out_head_stride;
    for (int i = 0; i < COLUMNS; i++) {
        int d = lane + 32 * i;
        if (d < a.head_dim)
            T::store(to + d, l == 0.0f ? 0.0f : __fmul_rn(o[i], inverse));
    }
    if (a.lse != nullptr && lane == 0)
        a.lse[row * a.lse_row_stride + head] =
            l == 0.0f ? __uint_as_float(0xff800000u)
                      : __fmaf_rn(m, 1.3862943611198906f, logf(l));
}

template <typename T> __device__ void run(const mst_cuda_attn_args &a)
{
    __shared__ float rows[WARPS][MAX_HEAD_DIM];
    int warp = threadIdx.x / 32;
    int causal = a.header->causal;
    unsigned total = (unsigned)a.header->num_items * (unsigned)a.num_kv_heads;
    for (unsigned work = blockIdx.x; work < total; work += gridDim.x) {
        const mst_cuda_attn_item item = a.items[work / (unsigned)a.num_kv_heads];
        int kv_head = (int)(work % (unsigned)a.num_kv_heads);
        for (int packed = item.row_begin + warp; packed < item.row_end; packed += WARPS)
            one_row<T>(a, item, causal, kv_head, packed, rows[warp]);
    }
    /* rows past the plan */
    int64_t heads = (int64_t)a.num_kv_heads * a.group;
    for (int64_t at = a.header->num_tokens * heads + blockIdx.x * WARPS + warp; at < a.zero_end * heads;
         at += (int64_t)gridDim.x * WARPS) {
        int64_t row = at / heads, head = at % heads;
        typename T::type *to = (typename T::type *)a.out + row * a.out_row_stride + head * a.out_head_stride;
        for (int d = threadIdx.x % 32; d < a.head_dim; d += 32)
            T::store(to + d, 0.0f);
        if (a.lse != nullptr && threadIdx.x % 32 == 0)
            a.lse[row * a.lse_row_stride + head] = __uint_as_float(0xff800000u);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    mst_attn_f32_reference_sm80(const __grid_constant__ mst_cuda_attn_args args)
{
    run<f32>(args);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    mst_attn_bf16_reference_sm80(const __grid_constant__ mst_cuda_attn_args args)
{
    run<half<mst::bf16>>(args);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    mst_attn_f16_reference_sm80(const __grid_constant__ mst_cuda_attn_args args)
{
    run<half<mst::f16>>(args);
}
