/*
 * mstar/attention.h - the three ragged (cacheless) attention wrappers.
 *
 *   mstar_ragged_prefill        self: each segment attends within itself
 *   mstar_ragged_cross_prefill  query segment i attends key segment i; never causal
 *   mstar_prefixed_prefill      key segment i = frozen prefix + the query's own tokens; causal is
 *                               aligned to the end of the keys
 *
 * Queries and keys of all requests are packed end to end, without padding:
 *   q, out  [Tq, H, D]    k, v  [Tk, K, D] (NHD) or [K, Tk, D] (HND)    lse  [Tq, H] f32
 * and laid out by offsets: segment i owns rows [cu[i], cu[i+1]). For every row r of Lq queries and
 * key j of Lk in the same segment, and head h reading kv head h / (H / K):
 *   visible(r, j) = (not causal or j <= Lk - Lq + r)
 *               and (window_left < 0 or j >= Lk - Lq + r - window_left)
 *               and (window_right < 0 or j <= Lk - Lq + r + window_right)
 *   out = sum_j softmax_j(sm_scale * q.k_j over visible j) v_j
 *   lse = log(sum_j exp(sm_scale * q.k_j) over visible j)     natural logarithm
 * A row that sees no key is exactly 0, with lse -inf. Segments may be empty, on either side.
 *
 * Life of a wrapper: create once, plan once a step, run once a layer, destroy. plan is host work:
 * it checks and copies the offsets, cuts the work into a list, and never waits for the device.
 * run allocates nothing. Any head_dim from 1 to 256 is exact; multiples of 8 are computed in place.
 *
 * The bits of a segment's rows depend on that segment alone: not on its neighbours, the number of
 * threads, eager or graph mode, or the bucket (for one device, build, dtype and ISA level).
 *
 * Graph mode (accelerator_graph = 1) fixes ceilings at create: all memory is taken then, plan takes
 * any layout under the ceilings without an allocation, and addresses never change, so that a
 * captured run may be replayed after any plan. In graph mode run writes exact zeros to the rows of
 * out from the plan's end to out's own row count, and -inf to those of lse; in eager mode rows past
 * the plan stay untouched.
 *
 * Numerics: products and sums in f32, online softmax over key blocks counted from the segment's
 * first key (Milakov and Gimelshein 2018, Rabe and Staats 2021), the result rounded once to q's
 * dtype. bf16 and f16 inputs are widened exactly; where the kernel multiplies pairs of bf16
 * (levels avx512bf16 and amx), bf16 inputs below 2^-126 count as 0 and each weight is rounded to
 * bf16 before it meets v, the sum of weights being taken before. On a GPU bf16 and f16 go through
 * tensor cores, where weights are rounded to q's dtype in the same way and q.k itself, before the
 * scale, must lie inside f32. Masking is by selection: a NaN or infinity outside a segment, or on a
 * key that a row does not see, never reaches that row.
 */
#ifndef MSTAR_ATTENTION_H
#define MSTAR_ATTENTION_H

#include "mstar/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Smallest head dim of {64, 128, 256} that holds head_dim; 64 for 0 and below. For callers and
 * backends that pad; our kernels use true head dims. MSTAR_INVALID_ARGUMENT above 256.
 */
MSTAR_API mstar_status mstar_padded_head_dim(int32_t head_dim, int32_t *padded);

typedef enum mstar_kv_layout { MSTAR_KV_NHD = 0, MSTAR_KV_HND = 1 } mstar_kv_layout;

/*
 * One desc for the three wrappers. Fields marked "reserved" are refused by name when set to
 * anything but their default.
 */
typedef struct mstar_ragged_prefill_desc {
    uint32_t struct_size;
    int32_t num_qo_heads;        /* H, 1..4096; no default: 0 is refused */
    int32_t num_kv_heads;        /* K, 1..H and a divisor of H; no default */
    int32_t head_dim;            /* D, 1..256; no default */
    int64_t max_num_segments;    /* graph mode: ceiling, >= 1; -1 not given */
    int64_t max_total_tokens;    /* graph mode: ceiling of query tokens, >= 0; -1 not given */
    int64_t max_total_kv_tokens; /* graph mode: ceiling of key tokens; -1 = max_total_tokens;
                                    without effect on the self wrapper */
    int32_t accelerator_graph;   /* 0 eager, 1 graph mode */
    mstar_dtype q_data_type;     /* dtype of q, k, v and out: BF16 (default), F16 or F32 */
    double sm_scale; /* NaN: head_dim ** -0.5 of the true head dim; finite values up to 2^127 either
                        way are used as they are */
    mstar_kv_layout kv_layout; /* layout of k and v: NHD (default) or HND */
    int32_t return_lse;        /* 1: run also writes lse */
    int64_t
        window_left; /* -1 no limit; else a row sees at most this many keys before its own place */
    int64_t window_right; /* -1 no limit; else at most this many after it */
    const char *backend;  /* NULL or "auto", "native", "reference"; on a GPU, for bf16 and f16, also
                             "fa2", the tensor-core kernel by mma.sync, and "fa3", one by wgmma,
                             refused where the card or the head dim has none. fa2 and fa3 give the
                             same bits up to  head dim 240 */
    int32_t value_head_dim; /* reserved: -1 */
    int32_t num_sinks;      /* reserved: 0 */
    double logits_soft_cap; /* reserved: 0 */
    double k_scale;         /* reserved: NaN (fp8 inputs) */
    double v_scale;         /* reserved: NaN (fp8 inputs) */
} mstar_ragged_prefill_desc;
typedef mstar_ragged_prefill_desc mstar_ragged_cross_prefill_desc;
typedef mstar_ragged_prefill_desc mstar_prefixed_prefill_desc;

MSTAR_API void mstar_ragged_prefill_desc_init(mstar_ragged_prefill_desc *desc);
MSTAR_API void mstar_ragged_cross_prefill_desc_init(mstar_ragged_cross_prefill_desc *desc);
MSTAR_API void mstar_prefixed_prefill_desc_init(mstar_prefixed_prefill_desc *desc);

typedef struct mstar_ragged_prefill mstar_ragged_prefill;
typedef struct mstar_ragged_cross_prefill mstar_ragged_cross_prefill;
typedef struct mstar_prefixed_prefill mstar_prefixed_prefill;

/*
 * Exact scratch bytes that run needs on this device for this desc, whatever the layout: create
 * refuses fewer and run touches no more. A workspace may serve wrappers that never run at the same
 * time. On the CPU it is one piece of equal size a thread of the device, and a run on a stream of n
 * threads touches the first n pieces only: workspaces of wrappers that run at the same time on
 * streams of one thread may overlap from the second piece on.
 */
MSTAR_API mstar_status mstar_ragged_prefill_workspace_query(mstar_device *device,
                                                            const mstar_ragged_prefill_desc *desc,
                                                            size_t *workspace_bytes);
MSTAR_API mstar_status mstar_ragged_cross_prefill_workspace_query(
    mstar_device *device, const mstar_ragged_cross_prefill_desc *desc, size_t *workspace_bytes);
MSTAR_API mstar_status mstar_prefixed_prefill_workspace_query(
    mstar_device *device, const mstar_prefixed_prefill_desc *desc, size_t *workspace_bytes);

/*
 * desc is copied. workspace: memory of the device, of at least workspace_bytes, kept, aligned to
 * 64 bytes, never freed by us (a GPU refuses memory that its driver does not know); NULL lets the
 * wrapper take its own, whatever workspace_bytes. In graph mode the wrapper is planned once at its
 * ceilings (total tokens spread over max_num_segments segments, the remainder on the first), so run
 * is defined before the first plan; in eager mode run before plan is MSTAR_OUT_OF_ORDER.
 */
MSTAR_API mstar_status mstar_ragged_prefill_create(mstar_device *device,
                                                   const mstar_ragged_prefill_desc *desc,
                                                   void *workspace, size_t workspace_bytes,
                                                   mstar_ragged_prefill **wrapper);
MSTAR_API mstar_status mstar_ragged_cross_prefill_create(
    mstar_device *device, const mstar_ragged_cross_prefill_desc *desc, void *workspace,
    size_t workspace_bytes, mstar_ragged_cross_prefill **wrapper);
MSTAR_API mstar_status mstar_prefixed_prefill_create(mstar_device *device,
                                                     const mstar_prefixed_prefill_desc *desc,
                                                     void *workspace, size_t workspace_bytes,
                                                     mstar_prefixed_prefill **wrapper);
MSTAR_API void mstar_ragged_prefill_destroy(mstar_ragged_prefill *wrapper);
MSTAR_API void mstar_ragged_cross_prefill_destroy(mstar_ragged_cross_prefill *wrapper);
MSTAR_API void mstar_prefixed_prefill_destroy(mstar_prefixed_prefill *wrapper);

/*
 * Plans one layout. Offsets are host memory, num_segments + 1 entries, first 0, never decreasing,
 * last at most INT32_MAX; copied before the call returns. num_segments may be 0 (the offsets may
 * then be NULL). causal is 0 or 1. Refused with the value and the bound, the former plan staying in
 * force: offsets that break these rules, more segments or tokens than a ceiling. For cross and
 * prefixed both sides have the same number of segments, kv_num_segments == q_num_segments; a
 * difference is refused naming both. The stream orders the upload on a GPU; NULL is allowed on the
 * CPU.
 */
MSTAR_API mstar_status mstar_ragged_prefill_plan(mstar_ragged_prefill *wrapper,
                                                 mstar_stream *stream, const int32_t *cu_seqlens,
                                                 int64_t num_segments, int causal);
MSTAR_API mstar_status mstar_ragged_cross_prefill_plan(
    mstar_ragged_cross_prefill *wrapper, mstar_stream *stream, const int32_t *q_cu_seqlens,
    int64_t q_num_segments, const int32_t *kv_cu_seqlens, int64_t kv_num_segments);
MSTAR_API mstar_status mstar_prefixed_prefill_plan(
    mstar_prefixed_prefill *wrapper, mstar_stream *stream, const int32_t *q_cu_seqlens,
    int64_t q_num_segments, const int32_t *kv_cu_seqlens, int64_t kv_num_segments, int causal);

/*
 * Runs the planned layout. q, k, v and out have the desc's dtype; their last dimension is
 * contiguous (stride 1) and the other strides are free, so q, k and v may be slices of one fused
 * projection. q and out may have more rows than the plan, k and v too; fewer is refused, and in
 * graph mode more rows of q or out than max_total_tokens, or of k or v than max_total_kv_tokens,
 * too. out must not overlap q, k, v, lse or itself. lse is f32 with as many rows as out, [rows, H],
 * and a contiguous last dimension when the desc asks for it, else NULL.
 */
MSTAR_API mstar_status mstar_ragged_prefill_run(mstar_ragged_prefill *wrapper, mstar_stream *stream,
                                                const mstar_tensor *q, const mstar_tensor *k,
                                                const mstar_tensor *v, const mstar_tensor *out,
                                                const mstar_tensor *lse);
MSTAR_API mstar_status mstar_ragged_cross_prefill_run(mstar_ragged_cross_prefill *wrapper,
                                                      mstar_stream *stream, const mstar_tensor *q,
                                                      const mstar_tensor *k, const mstar_tensor *v,
                                                      const mstar_tensor *out,
                                                      const mstar_tensor *lse);
MSTAR_API mstar_status mstar_prefixed_prefill_run(mstar_prefixed_prefill *wrapper,
                                                  mstar_stream *stream, const mstar_tensor *q,
                                                  const mstar_tensor *k, const mstar_tensor *v,
                                                  const mstar_tensor *out, const mstar_tensor *lse);

typedef struct mstar_ragged_prefill_info {
    uint32_t struct_size;
    int32_t num_qo_heads, num_kv_heads, head_dim, padded_head_dim;
    int32_t accelerator_graph;
    double sm_scale;
    mstar_dtype q_data_type;
    mstar_kv_layout kv_layout;
    int64_t max_num_segments, max_total_tokens, max_total_kv_tokens; /* -1 in eager mode */
    int64_t num_segments; /* of the latest plan as given by the caller; 0 before the first */
    int64_t num_tokens, num_kv_tokens; /* of the latest plan */
    int64_t num_work_items;            /* of the latest plan */
    int64_t plans;                     /* accepted plans so far, priming not counted */
    int64_t
        padded_copies; /* runs that copied q, k, v through a padded buffer; 0 for multiples of 8,
                          and always 0 on the CPU, whose kernels take any head_dim in place */
    size_t workspace_bytes;    /* what run may touch */
    size_t plan_bytes;         /* host memory that holds the plan now */
    const char *kernel;        /* symbol of the kernel in use; static */
    const char *kernel_reason; /* why this kernel; static */
    /* Graph mode: the static offset vectors, max_num_segments + 1 entries each, whose addresses
       never change; the tail repeats the last offset. NULL in eager mode. Borrowed. */
    const int32_t *q_offsets, *kv_offsets;
    /* Graph mode: the counts of the plan in force (after create: the ceilings), at addresses that
       never change, for mstar_stream_set_rows. NULL in eager mode. Borrowed. */
    const int64_t *token_counter, *kv_token_counter, *segment_counter;
} mstar_ragged_prefill_info;
MSTAR_API mstar_status mstar_ragged_prefill_query(const mstar_ragged_prefill *wrapper,
                                                  mstar_ragged_prefill_info *info);
MSTAR_API mstar_status mstar_ragged_cross_prefill_query(const mstar_ragged_cross_prefill *wrapper,
                                                        mstar_ragged_prefill_info *info);
MSTAR_API mstar_status mstar_prefixed_prefill_query(const mstar_prefixed_prefill *wrapper,
                                                    mstar_ragged_prefill_info *info);

#ifdef __cplusplus
}
#endif

#endif
