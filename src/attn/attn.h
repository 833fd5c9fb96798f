/*
 * attn.h - the attention area: desc -> layout -> plan (work list) -> run, one struct behind the
 * three public wrappers.
 *
 * The three differ in two places only: how the caller's offsets become the normal form (layout.c)
 * and whether causal may be asked for. Everything after the normal form is shared.
 */
#ifndef MST_ATTN_H
#define MST_ATTN_H

#include "base/base.h"
#include "device/backend.h"
#include "mstar/attention.h"

typedef enum mst_attn_kind {
    MST_ATTN_SELF,    /* one layout for both sides */
    MST_ATTN_CROSS,   /* two layouts, never causal */
    MST_ATTN_PREFIXED /* two layouts, causal aligned to the end of the keys */
} mst_attn_kind;

/* ---- attn_desc.c: what a wrapper is ---------------------------------------------------------- */

/* A desc after its checks: no field left that could be refused later. */
typedef struct mst_attn_config {
    mst_attn_kind kind;
    mst_attn_shape shape;
    double sm_scale; /* as queried; shape.sm_scale is its nearest float */
    int32_t padded_head_dim;
    mstar_kv_layout kv_layout;
    bool graph;
    bool return_lse;
    /* Ceilings; -1 in eager mode. In the self wrapper both token ceilings are the same. */
    int64_t max_num_segments, max_total_tokens, max_total_kv_tokens;
} mst_attn_config;
mstar_status mst_attn_config_read(const mstar_device *device, mst_attn_kind kind,
                                  const mstar_ragged_prefill_desc *desc, mst_attn_config *config);

/* ---- layout.c: self, cross and prefixed as one normal form ----------------------------------- */

/* Segment i: query rows [q_offsets[i], q_offsets[i + 1]), keys likewise. Offsets are borrowed. */
typedef struct mst_attn_layout {
    const int32_t *q_offsets, *kv_offsets; /* num_segments + 1 each, never NULL */
    int64_t num_segments;
    int64_t num_tokens, num_kv_tokens;
} mst_attn_layout;
/* Both check everything and write *layout only when all is well. */
mstar_status mst_attn_layout_self(const mst_attn_config *config, const int32_t *cu_seqlens,
                                  int64_t num_segments, mst_attn_layout *layout);
mstar_status mst_attn_layout_pair(const mst_attn_config *config, const int32_t *q_cu_seqlens,
                                  int64_t q_num_segments, const int32_t *kv_cu_seqlens,
                                  int64_t kv_num_segments, mst_attn_layout *layout);
/*
 * Offsets of total_tokens spread evenly over num_segments, the whole remainder on the first: what
 * graph mode is primed with. num_segments >= 1.
 */
void mst_attn_spread(int64_t total_tokens, int64_t num_segments, int32_t *offsets);

/* ---- visible.c: which keys rows see ---------------------------------------------------------- */

typedef struct mst_key_range {
    int64_t begin, end; /* 0, 0 when nothing is visible */
} mst_key_range;
/*
 * Smallest range of keys that holds every key seen by a row of [row_begin, row_end) of a segment of
 * lq rows and lk keys. Pure. Lengths up to INT32_MAX, windows any int64, negative = no limit.
 */
mst_key_range mst_attn_visible(int64_t lq, int64_t lk, int64_t row_begin, int64_t row_end,
                               bool causal, int64_t window_left, int64_t window_right);

/* ---- plan.c: the work list ------------------------------------------------------------------- */

/* How the segments of one pair of lengths are cut. */
typedef struct mst_attn_cut {
    int32_t lq, lk;      /* 0, 0: nothing known yet */
    int32_t rows, heads; /* of a tile */
    int32_t tiles, groups;
    int16_t classes[2][2]; /* without a mask: of full tiles and of the last, [rows][heads] */
} mst_attn_cut;
#define MST_ATTN_KNOWN_CUTS 512

typedef struct mst_attn_plan {
    /* Storage: one block. In graph mode it is taken once and the three addresses never change. */
    void *block;
    size_t block_bytes;
    int32_t *q_offsets, *kv_offsets; /* the same vector in the self wrapper */
    mst_attn_item *items;
    int64_t items_capacity;
    /* The plan in force. */
    int64_t num_items;
    int64_t num_segments, num_tokens, num_kv_tokens;
    bool causal;
    bool ready; /* something is planned: the caller's layout, or graph mode's priming */
    /* A cut is a function of the wrapper and of two lengths, and lengths repeat, within a plan and
       from plan to plan: what was cut last is kept by length. */
    mst_attn_cut known[MST_ATTN_KNOWN_CUTS];
} mst_attn_plan;

/*
 * Relative work of an item, and its class: 0 for the heaviest, classes an eighth of an octave wide,
 * so that equal classes differ by less than 1/8. Both pure.
 */
int64_t mst_attn_cost(int64_t q_rows, int64_t num_heads, int64_t num_keys);
#define MST_ATTN_COST_CLASSES 504
int32_t mst_attn_cost_class(int64_t cost);

/*
 * The most items that any layout under the ceilings can give, when no segment is cut finer than by
 * worst. Pure. Exact for layouts cut by worst: some layout reaches it.
 */
int64_t mst_attn_max_items(int64_t max_num_segments, int64_t max_total_tokens, int32_t num_kv_heads,
                           mst_attn_tile worst);

/* Bytes that reserve takes. */
mstar_status mst_attn_plan_bytes(const mstar_device *device, const mst_attn_config *config,
                                 size_t *bytes);
/* Graph mode: takes all storage for the ceilings. Eager mode: nothing. */
mstar_status mst_attn_plan_reserve(mst_attn_plan *plan, const mstar_device *device,
                                   const mst_attn_config *config);
/*
 * Plans a checked layout, always of the same device and config. Fails only for want of memory
 * (eager mode), and the former plan is then still in force. In graph mode the layout may lie in the
 * plan's own offset vectors.
 */
mstar_status mst_attn_plan_make(mst_attn_plan *plan, const mstar_device *device,
                                const mst_attn_config *config, const mst_attn_layout *layout,
                                bool causal);
void mst_attn_plan_free(mst_attn_plan *plan);

/* ---- wrapper.c, run.c ------------------------------------------------------------------------ */

typedef struct mst_attn_wrapper {
    mstar_device *device; /* retained */
    mstar_stream *stream; /* all threads, for calls with a NULL stream; NULL on a GPU */
    mst_attn_config config;
    mst_attn_plan plan;
    void *image; /* the plan on the device; NULL where the device reads ours */
    void *workspace;
    size_t workspace_bytes; /* what run needs */
    bool workspace_is_own;
    const char *kernel, *kernel_reason;
    int64_t plans;         /* accepted from the caller; 0 means that only priming is in force */
    int64_t padded_copies; /* stays 0 on the CPU, whose kernels take any head dim in place */
} mst_attn_wrapper;

/* Host memory that create takes over a workspace of the caller's. */
mstar_status mst_attn_wrapper_bytes(const mstar_device *device, mst_attn_kind kind,
                                    const mstar_ragged_prefill_desc *desc, size_t *bytes);
/* The wrapper's own stream for NULL; refuses a stream of another device. */
mstar_status mst_attn_pick_stream(const mst_attn_wrapper *wrapper, mstar_stream *given,
                                  mstar_stream **stream);
mstar_status mst_attn_run(mst_attn_wrapper *wrapper, mstar_stream *stream, const mstar_tensor *q,
                          const mstar_tensor *k, const mstar_tensor *v, const mstar_tensor *out,
                          const mstar_tensor *lse);

#endif
