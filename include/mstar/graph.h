/*
 * mstar/graph.h - what to capture, and which capture serves a step.
 *
 * A capture is a forward recorded once for a bucket: bs requests of num_tokens tokens in all. A
 * step of fewer requests and tokens is padded to the bucket and replayed. Configs say which buckets
 * there are; the functions below enumerate them, choose among them, and find, from a record of
 * lengths, the ones that pad least.
 *
 *   mstar_batched_graph_config     whole forward; tokens follow from the number of requests
 *   mstar_packed_graph_config      whole forward; tokens are a property of the requests
 *   mstar_piecewise_batched_config a region inside an eager forward; inputs [bs, seq_len, M]
 *   mstar_piecewise_packed_config  a region inside an eager forward; inputs [total_tokens, M]
 *
 * Everything is checked when a config is made and never at capture, where a fault would only show
 * as a slow bucket. Configs do not change after that and may be used by many threads at once; the
 * author's callbacks are called from whichever thread uses the config.
 */
#ifndef MSTAR_GRAPH_H
#define MSTAR_GRAPH_H

#include "mstar/node.h"
#include "mstar/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Requests of one bucket, at most. Tokens of one bucket: at most INT32_MAX. */
#define MSTAR_MAX_BATCH_SIZE 65536

/* ---- token layouts --------------------------------------------------------------------------- */

/*
 * How total_tokens lie over bs requests: writes lengths[0 .. bs), each >= 0, their sum
 * total_tokens. 1 <= bs <= MSTAR_MAX_BATCH_SIZE, 0 <= total_tokens <= INT32_MAX.
 */
typedef mstar_status (*mstar_token_layout)(void *user, int64_t total_tokens, int64_t bs,
                                           int64_t *lengths);
/* total / bs to each, the whole remainder to the first: (7, 4) gives 4 1 1 1. */
MSTAR_API mstar_status mstar_distribute_tokens(int64_t total_tokens, int64_t bs, int64_t *lengths);
/* bs - 1 requests of one token, then one of the rest: (10, 3) gives 1 1 8. With fewer tokens than
 * requests, mstar_distribute_tokens. */
MSTAR_API mstar_status mstar_decode_rows_then_prompt(int64_t total_tokens, int64_t bs,
                                                     int64_t *lengths);
/* The two as layouts of a config; user is not read. */
MSTAR_API mstar_status mstar_layout_even(void *user, int64_t total_tokens, int64_t bs,
                                         int64_t *lengths);
MSTAR_API mstar_status mstar_layout_decode_then_prompt(void *user, int64_t total_tokens, int64_t bs,
                                                       int64_t *lengths);

/* ---- compile modes --------------------------------------------------------------------------- */

/*
 * "default": kernels and tiles are chosen by rules for the bucket before it is captured;
 * "max-autotune-no-cudagraphs": by timing candidates that have equal bits. NULL is accepted and
 * means "default". Anything else is refused with the mode and the accepted ones: "reduce-overhead"
 * and "max-autotune" would capture a graph inside our capture.
 */
MSTAR_API mstar_status mstar_check_compile_mode(const char *mode);
/* The mode in force: MSTAR_GRAPH_COMPILE_MODE (refused by that name when it holds a bad one), else
 * mode, else "default". Static string. */
MSTAR_API mstar_status mstar_effective_compile_mode(const char *mode, const char **effective);

/* ---- whole-forward configs ------------------------------------------------------------------- */

#define MSTAR_GRAPH_CONFIG_TYPE_LIST(X)  \
    X(0, BASIC_BATCHED, "basic_batched") \
    X(1, FLASH_INFER_PACKED, "flash_infer_packed")
typedef enum mstar_graph_config_type {
#define MSTAR_GRAPH_CONFIG_TYPE_ENUM(value, NAME, name) MSTAR_GRAPH_##NAME = value,
    MSTAR_GRAPH_CONFIG_TYPE_LIST(MSTAR_GRAPH_CONFIG_TYPE_ENUM)
#undef MSTAR_GRAPH_CONFIG_TYPE_ENUM
} mstar_graph_config_type;
/* "basic_batched"; "unknown" outside the list. Static string. */
MSTAR_API const char *mstar_graph_config_type_name(mstar_graph_config_type type);
MSTAR_API mstar_status mstar_graph_config_type_parse(const char *text,
                                                     mstar_graph_config_type *type);

/* Which dimension of a static input grows with the bucket. */
typedef struct mstar_input_seq_dim {
    const char *name; /* as preprocess returns it */
    int32_t dim;      /* 0 .. MSTAR_MAX_RANK - 1 */
    int32_t reserved;
} mstar_input_seq_dim;

/*
 * Makes the dummy input of one request of num_tokens tokens, 0 included: zero tokens are how a step
 * is padded. *input starts zeroed; what is put there stays the author's and is cloned before the
 * library calls again.
 */
typedef mstar_status (*mstar_make_node_input)(void *user, int64_t num_tokens,
                                              mstar_node_input *input);

/*
 * One desc for both. Fields of the other kind are refused by name when set to anything but their
 * default. Everything is copied but `user`.
 */
typedef struct mstar_graph_config_desc {
    uint32_t struct_size;
    int32_t compile;                       /* 1 (default): specialise the forward before capture */
    const char *capture_graph_walk;        /* required: the walk of the capture */
    const char *const *replay_graph_walks; /* walks that may replay it; none: the capture's own */
    int64_t num_replay_graph_walks;
    const char *additional_key_info;    /* further part of the key, compared by its bytes; NULL */
    const char *compile_mode;           /* NULL: "default" */
    const int64_t *capture_batch_sizes; /* each 1..MSTAR_MAX_BATCH_SIZE, none twice; none: 1 2 4 8
                                           16 32 64 */
    int64_t num_capture_batch_sizes;
    const char *capture_forward_method; /* default "forward_batched" */
    const mstar_input_seq_dim *input_seq_dims;
    int64_t num_input_seq_dims;
    int64_t total_tokens_multiplier; /* plan tokens for each input token, >= 1; default 1 */
    int32_t caps_eager_batch_size;   /* 1 (default): the largest size also bounds eager batches */
    int32_t reserved;
    /* batched only */
    const mstar_node_input *single_request_inputs; /* required; cloned */
    /* packed only */
    const int64_t *capture_token_lengths; /* required: input tokens of a bucket, >= 0, none twice */
    int64_t num_capture_token_lengths;
    mstar_make_node_input make_node_input; /* required */
    mstar_token_layout token_layout;       /* NULL: mstar_distribute_tokens. Called at create for
                                              every bucket and for (bs, 0) */
    void *user;                            /* first argument of both; kept */
} mstar_graph_config_desc;
typedef mstar_graph_config_desc mstar_batched_graph_config_desc;
typedef mstar_graph_config_desc mstar_packed_graph_config_desc;

MSTAR_API void mstar_batched_graph_config_desc_init(mstar_batched_graph_config_desc *desc);
MSTAR_API void mstar_packed_graph_config_desc_init(mstar_packed_graph_config_desc *desc);

typedef struct mstar_graph_config mstar_graph_config;
MSTAR_API mstar_status mstar_batched_graph_config_create(
    const mstar_batched_graph_config_desc *desc, mstar_graph_config **config);
MSTAR_API mstar_status mstar_packed_graph_config_create(const mstar_packed_graph_config_desc *desc,
                                                        mstar_graph_config **config);
MSTAR_API void mstar_graph_config_destroy(mstar_graph_config *config);

/* What was given, defaults filled in. Pointers are borrowed from the config. */
typedef struct mstar_graph_config_info {
    uint32_t struct_size;
    mstar_graph_config_type type;
    const char *capture_graph_walk;
    const char *const *replay_graph_walks;
    int64_t num_replay_graph_walks;
    const char *additional_key_info;
    const int64_t *capture_batch_sizes; /* in the order given */
    int64_t num_capture_batch_sizes;
    int64_t max_batch_size;
    const char *capture_forward_method;
    const mstar_input_seq_dim *input_seq_dims;
    int64_t num_input_seq_dims;
    int64_t total_tokens_multiplier;
    const char *compile_mode;           /* as given; NULL */
    const char *effective_compile_mode; /* what a capture does */
    int32_t compile;
    int32_t caps_eager_batch_size;
    const int64_t *capture_token_lengths; /* packed; in the order given */
    int64_t num_capture_token_lengths;
    int64_t input_seq_len; /* batched: of the single request; packed: -1 */
} mstar_graph_config_info;
MSTAR_API mstar_status mstar_graph_config_query(const mstar_graph_config *config,
                                                mstar_graph_config_info *info);

/*
 * Token counts to capture at bs requests: batched one, input_seq_len * bs * multiplier; packed each
 * capture length times the multiplier. Writes at most capacity of them; *count is how many there
 * are.
 */
MSTAR_API mstar_status mstar_graph_config_get_total_tokens(const mstar_graph_config *config,
                                                           int64_t bs, int64_t *totals,
                                                           int64_t capacity, int64_t *count);
/*
 * bs dummy inputs of num_tokens plan tokens in all; bs may be 0. Batched: clones of the single
 * request, whatever num_tokens. Packed: num_tokens is a multiple of the multiplier, and 0 gives bs
 * inputs of no tokens, which is how replay pads.
 */
MSTAR_API mstar_status mstar_graph_config_make_node_inputs(const mstar_graph_config *config,
                                                           int64_t bs, int64_t num_tokens,
                                                           mstar_node_inputs *inputs);

/* ---- buckets --------------------------------------------------------------------------------- */

/* One capture. Its key is (the config's capture walk, bs, num_tokens, additional key info). */
typedef struct mstar_graph_bucket {
    const mstar_graph_config *config; /* borrowed */
    int32_t config_index;
    int32_t slot;
    int64_t bs;
    int64_t num_tokens; /* plan tokens */
} mstar_graph_bucket;

/*
 * Every (config, bs, tokens, slot) in the order of capture: bs, then tokens, both descending,
 * largest first so that smaller captures fit into the buffers of larger ones; ties keep the order
 * of configs, and the slots of a bucket stand together, ascending. Writes at most capacity of them;
 * *count is how many there are.
 */
MSTAR_API mstar_status mstar_graph_list_captures(const mstar_graph_config *const *configs,
                                                 int64_t num_configs, int32_t num_slots,
                                                 mstar_graph_bucket *buckets, int64_t capacity,
                                                 int64_t *count);

/* Why a step runs eager. Text is static. */
#define MSTAR_GRAPH_MISS_LIST(X)                                                         \
    X(0, NONE, "none", "a bucket serves the step")                                       \
    X(1, EMPTY, "empty", "the step has no requests")                                     \
    X(2, WALK, "walk", "no capture may be replayed by this walk")                        \
    X(3, KEY_INFO, "key_info", "no capture of this walk has this additional key info")   \
    X(4, NOT_BUILT, "not_built", "inputs are not built yet and no batched capture fits") \
    X(5, BATCH_SIZE, "batch_size", "more requests than any capture")                     \
    X(6, TOKENS, "tokens", "more tokens than any capture of enough requests")            \
    X(7, WASTE, "waste", "every capture that fits pads more than allowed")               \
    X(8, NOT_CAPTURED, "not_captured",                                                   \
      "the bucket was dropped: its capture failed or had no room")                       \
    X(9, DISABLED, "disabled", "graphs are switched off")
typedef enum mstar_graph_miss {
#define MSTAR_GRAPH_MISS_ENUM(value, NAME, name, text) MSTAR_GRAPH_MISS_##NAME = value,
    MSTAR_GRAPH_MISS_LIST(MSTAR_GRAPH_MISS_ENUM)
#undef MSTAR_GRAPH_MISS_ENUM
        MSTAR_NUM_GRAPH_MISSES
} mstar_graph_miss;
/* "batch_size"; "unknown" outside the list. Static strings. */
MSTAR_API const char *mstar_graph_miss_name(mstar_graph_miss miss);
MSTAR_API const char *mstar_graph_miss_text(mstar_graph_miss miss);

/* A step that looks for a bucket. */
typedef struct mstar_graph_request {
    uint32_t struct_size;
    int32_t with_padding; /* 1: a batched bucket must also hold the span of its padding rows, as a
                             replay needs; default 0 */
    const char *walk;
    const char *additional_key_info; /* NULL: none */
    int64_t bs;                      /* requests; 0 is answered with EMPTY */
    int64_t num_tokens; /* input tokens of all; -1: not built yet, which only batched captures can
                           serve */
    double max_waste;   /* NaN (default) no bound; else bucket tokens <= max_waste * plan tokens */
} mstar_graph_request;
MSTAR_API void mstar_graph_request_init(mstar_graph_request *request);

typedef struct mstar_graph_choice {
    uint32_t struct_size;
    mstar_graph_miss miss;
    int64_t index; /* into buckets; -1 for a miss */
} mstar_graph_choice;

/*
 * Among buckets whose config lists the walk (the capture's own walk always counts) and has equal
 * key info, with bs and tokens enough: tokens first, then bs, smallest first; the tokens of the
 * step count times the candidate's multiplier. With num_tokens -1 among batched captures only: bs
 * first, then tokens. Exact ties go to the first. captured: one flag a bucket, 0 dropped; NULL: all
 * are there. A miss is MSTAR_OK with its reason.
 */
MSTAR_API mstar_status mstar_graph_choose(const mstar_graph_bucket *buckets,
                                          const uint8_t *captured, int64_t num_buckets,
                                          const mstar_graph_request *request,
                                          mstar_graph_choice *choice);

/* Does any config list the walk? Aliases count, a capture walk that its own list omits does not. */
MSTAR_API int mstar_graph_replays_walk(const mstar_graph_config *const *configs,
                                       int64_t num_configs, const char *walk);
/* Requests that the engine may batch for a walk: the largest size over the configs that list it and
 * cap; -1 when none does. It holds whether or not captures exist. */
MSTAR_API int64_t mstar_graph_batch_cap(const mstar_graph_config *const *configs,
                                        int64_t num_configs, const char *walk);

/*
 * Sizes that leave no batch up to max_bs without a bucket: wished (those up to max_bs; none: powers
 * of two, or with stride > 0 its multiples) and max_bs itself, ascending, none twice. Writes at
 * most capacity of them; *count is how many there are.
 */
MSTAR_API mstar_status mstar_graph_batch_sizes(int64_t max_bs, int64_t stride,
                                               const int64_t *wished, int64_t num_wished,
                                               int64_t *sizes, int64_t capacity, int64_t *count);

/* ---- slots, padding, memory ------------------------------------------------------------------ */

/* Slots of every bucket: 1 unless a resource forces double buffering, or pre-planning is on and
 * some resource supports it; then wished_slots, at least 2. */
MSTAR_API int32_t mstar_graph_num_slots(int forces_double, int can_pre_plan, int pre_plan_on,
                                        int32_t wished_slots);

/*
 * Handles of the rows that pad a step: negative, from -2 down, distinct for each (pool, index);
 * a pool of num_slots slots and max_bs rows is one config's. first_handle of pool p starts where
 * that of p - 1 ended. padded: the real handles, then row i of the pool at each place i >=
 * num_real.
 */
MSTAR_API mstar_status mstar_graph_pad_handles(const int64_t *real, int64_t num_real, int64_t bs,
                                               int64_t first_handle, int64_t *padded);

/* Which dimension of a static input varies: the override where it is >= 0, else the first whose
 * size is num_tokens, else 0. Decided once, by the largest capture. */
MSTAR_API mstar_status mstar_graph_choose_seq_dim(const mstar_tensor *tensor, int64_t num_tokens,
                                                  int32_t override_dim, int32_t *dim);

/*
 * Which captures fit: in the order given (largest first), one is kept when free memory less its
 * need stays at or above floor_bytes, and takes its need. keep: one flag a capture. Returns what
 * is free after all.
 */
MSTAR_API int64_t mstar_graph_fit_budget(int64_t free_bytes, int64_t floor_bytes,
                                         const int64_t *needs_bytes, int64_t num_needs,
                                         uint8_t *keep);

/* ---- regions --------------------------------------------------------------------------------- */

#define MSTAR_PIECEWISE_TYPE_LIST(X) X(0, BATCHED, "batched") X(1, PACKED, "packed")
typedef enum mstar_piecewise_type {
#define MSTAR_PIECEWISE_TYPE_ENUM(value, NAME, name) MSTAR_PIECEWISE_##NAME = value,
    MSTAR_PIECEWISE_TYPE_LIST(MSTAR_PIECEWISE_TYPE_ENUM)
#undef MSTAR_PIECEWISE_TYPE_ENUM
} mstar_piecewise_type;
MSTAR_API const char *mstar_piecewise_type_name(mstar_piecewise_type type);
MSTAR_API mstar_status mstar_piecewise_type_parse(const char *text, mstar_piecewise_type *type);

/* One region bucket: bs lengths that sum to total_tokens. */
typedef struct mstar_capture_shape {
    int64_t bs;
    const int64_t *seq_lens;
    int64_t total_tokens;
} mstar_capture_shape;
typedef struct mstar_capture_shapes {
    mstar_capture_shape *items;
    int64_t count;
    int64_t *lengths; /* behind the items' seq_lens */
} mstar_capture_shapes;
MSTAR_API void mstar_capture_shapes_release(mstar_capture_shapes *shapes);
/* 1 when both hold equal values. */
MSTAR_API int mstar_capture_shape_equal(const mstar_capture_shape *a, const mstar_capture_shape *b);

/*
 * Everything that a region is handed, at capture and at replay alike. Its host code runs at capture
 * only: what it reads from here is baked; at replay only the contents of the static inputs and of
 * the plans change. A region reads static_inputs and never puts another tensor there.
 */
typedef struct mstar_piecewise_call_inputs {
    const mstar_tensors *static_inputs;
    const mstar_step_context *engine_inputs; /* the batch, padded, and the node's resources */
    void *kwargs;                            /* the config's forward_kwargs, as they are */
    /* How many tokens and requests are real, at addresses that hold for this shape and slot: for
       mstar_stream_set_rows. While the region runs, the stream's live row count is num_tokens. */
    const int64_t *num_tokens, *num_requests;
} mstar_piecewise_call_inputs;

/* The region itself: gives work to engine_inputs->stream and adds its results to outputs (a NULL
 * name is "x"), compact tensors; at least one. Memory that it works in is among the static inputs.
 */
typedef mstar_status (*mstar_capture_fn)(void *user, const mstar_piecewise_call_inputs *inputs,
                                         mstar_tensors *outputs);
/* The input buffers of a shape, called once for each (shape, slot). A tensor without data is
 * memory that the runner brings, zeroed: the device's, for integers the host's. */
typedef mstar_status (*mstar_make_static_inputs)(void *user, const mstar_capture_shape *shape,
                                                 mstar_tensors *inputs);
/* The region's own resource work over the padded batch: fills *step, which starts empty, or leaves
 * *declared at 0. One request may bring several lengths. Pure: also asked about handles that no
 * resource knows yet. */
typedef mstar_status (*mstar_declare_region_step)(void *user, const int64_t *requests,
                                                  int64_t num_requests, const int64_t *lengths,
                                                  int64_t num_lengths, mstar_step *step,
                                                  int *declared);
/* May the region's lease be taken before the outer step is declared? */
typedef int (*mstar_can_lease)(void *user, const mstar_node_input *inputs, int64_t count);

/* One desc for both, as above. */
typedef struct mstar_piecewise_config_desc {
    uint32_t struct_size;
    int32_t compile;                             /* default 0 */
    mstar_capture_fn capture_fn;                 /* required */
    mstar_make_static_inputs make_static_inputs; /* required */
    mstar_declare_region_step declare_step;      /* NULL: no resource work */
    mstar_can_lease can_lease;                   /* NULL: always; needs lease_before_step */
    void *user;                                  /* first argument of the four; kept */
    void *forward_kwargs;                        /* kept */
    int32_t lease_before_step;                   /* default 0 */
    int32_t reserved;
    const int64_t *capture_batch_sizes; /* as above */
    int64_t num_capture_batch_sizes;
    const char *compile_mode;    /* NULL: "default" */
    int64_t seq_len;             /* batched: required, >= 0; -1 not given */
    const int64_t *total_tokens; /* packed: required, >= 0, none twice */
    int64_t num_total_tokens;
} mstar_piecewise_config_desc;
typedef mstar_piecewise_config_desc mstar_piecewise_batched_config_desc;
typedef mstar_piecewise_config_desc mstar_piecewise_packed_config_desc;
MSTAR_API void mstar_piecewise_batched_config_desc_init(mstar_piecewise_batched_config_desc *desc);
MSTAR_API void mstar_piecewise_packed_config_desc_init(mstar_piecewise_packed_config_desc *desc);

typedef struct mstar_piecewise_config mstar_piecewise_config;
MSTAR_API mstar_status mstar_piecewise_batched_config_create(
    const mstar_piecewise_batched_config_desc *desc, mstar_piecewise_config **config);
MSTAR_API mstar_status mstar_piecewise_packed_config_create(
    const mstar_piecewise_packed_config_desc *desc, mstar_piecewise_config **config);
MSTAR_API void mstar_piecewise_config_destroy(mstar_piecewise_config *config);

typedef struct mstar_piecewise_config_info {
    uint32_t struct_size;
    mstar_piecewise_type type;
    int32_t compile;
    int32_t lease_before_step;
    const int64_t *capture_batch_sizes; /* in the order given, defaults filled in */
    int64_t num_capture_batch_sizes;
    int64_t max_batch_size;
    const char *compile_mode;
    const char *effective_compile_mode;
    int64_t seq_len;             /* batched; else -1 */
    const int64_t *total_tokens; /* packed */
    int64_t num_total_tokens;
    mstar_capture_fn capture_fn;
    mstar_make_static_inputs make_static_inputs;
    mstar_declare_region_step declare_step;
    mstar_can_lease can_lease;
    void *user;
    void *forward_kwargs;
} mstar_piecewise_config_info;
MSTAR_API mstar_status mstar_piecewise_config_query(const mstar_piecewise_config *config,
                                                    mstar_piecewise_config_info *info);

/*
 * The shapes for these batch sizes (NULL: the config's own): batched one a size, packed the token
 * counts of each size in turn, laid out by mstar_distribute_tokens.
 */
MSTAR_API mstar_status mstar_piecewise_config_make_capture_shapes(
    const mstar_piecewise_config *config, const int64_t *batch_sizes, int64_t num_batch_sizes,
    mstar_capture_shapes *shapes);

/*
 * Lengths to declare at replay. Batched: those of the shape; the other arguments are not read.
 * Packed: seq_lens (required), then max(0, shape->bs - real_bs) zeros; one request may bring many
 * segments, so num_seq_lens need not be real_bs. Writes at most capacity of them; *count is how
 * many there are.
 */
MSTAR_API mstar_status mstar_piecewise_config_replay_seq_lens(
    const mstar_piecewise_config *config, const mstar_capture_shape *shape, const int64_t *seq_lens,
    int64_t num_seq_lens, int64_t real_bs, int64_t *lengths, int64_t capacity, int64_t *count);

/*
 * The shape that serves bs requests of num_tokens tokens (-1: not known). The smallest configured
 * size >= bs, and no larger one when its captures are missing; then batched that size's shape,
 * packed the smallest captured total >= num_tokens. captured: one flag a shape, NULL: all.
 */
MSTAR_API mstar_status mstar_piecewise_choose(const mstar_piecewise_config *config,
                                              const mstar_capture_shapes *shapes,
                                              const uint8_t *captured, int64_t bs,
                                              int64_t num_tokens, mstar_graph_choice *choice);

/* ---- buckets from traffic -------------------------------------------------------------------- */

/* A step that was seen: bs requests of num_tokens tokens, count times. */
typedef struct mstar_traffic_step {
    int64_t bs;         /* 1..MSTAR_MAX_BATCH_SIZE */
    int64_t num_tokens; /* 0..INT32_MAX */
    int64_t count;      /* >= 0 */
} mstar_traffic_step;

/*
 * Requests of these token counts, in order of arrival, as the steps that a batcher makes of them:
 * batch_size > 0: so many at a time, the last step perhaps fewer; max_tokens >= 0: as many as their
 * tokens sum up to at most that, and at most MSTAR_MAX_BATCH_SIZE (a longer request is refused by
 * its place). One of the two is -1; with both, each request is a step. steps has room for
 * num_lengths.
 */
MSTAR_API mstar_status mstar_traffic_batch(const int64_t *lengths, int64_t num_lengths,
                                           int64_t batch_size, int64_t max_tokens,
                                           mstar_traffic_step *steps, int64_t *num_steps);

/* A bucket that was planned, and what it serves. */
typedef struct mstar_traffic_bucket {
    int64_t bs, num_tokens;
    int64_t steps, tokens;  /* served, and their real tokens */
    int64_t padding_tokens; /* steps * num_tokens - tokens */
} mstar_traffic_bucket;

/*
 * The at most max_buckets buckets that serve every step with the fewest padding tokens in all, by
 * an exact dynamic programme in O(max_buckets * n log n) for n different token counts; among equal
 * ones the fewest buckets. A bucket's bs is the largest of the steps it serves: a packed bucket's
 * spare requests hold no tokens, so bs costs none. A step of count 0 is served and costs nothing:
 * the longest that must not miss. Ascending. buckets has room for max_buckets; *num_buckets is how
 * many there are. Steps may come in any order, several times.
 */
MSTAR_API mstar_status mstar_traffic_plan(const mstar_traffic_step *steps, int64_t num_steps,
                                          int64_t max_buckets, mstar_traffic_bucket *buckets,
                                          int64_t *num_buckets);
/* Fills steps, tokens and padding_tokens of given buckets (bs and num_tokens set, any order) by the
 * rule of mstar_graph_choose; *missed: steps that no bucket serves. */
MSTAR_API mstar_status mstar_traffic_serve(const mstar_traffic_step *steps, int64_t num_steps,
                                           mstar_traffic_bucket *buckets, int64_t num_buckets,
                                           int64_t *missed);
/* padding / (padding + real) tokens of what the buckets serve; 0 when they serve nothing. */
MSTAR_API double mstar_traffic_waste(const mstar_traffic_bucket *buckets, int64_t num_buckets);

#ifdef __cplusplus
}
#endif

#endif
