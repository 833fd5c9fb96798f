/*
 * support_attn.h - what the attention tests share: problems, their data in guarded memory, a
 * float64 reference straight from the definition in mstar/attention.h with a bound on the error of
 * any right f32 implementation, and the three wrappers behind one set of calls.
 */
#ifndef SUPPORT_ATTN_H
#define SUPPORT_ATTN_H

#include "cpu/cpu.h"
#include "mstar/attention.h"
#include "support_random.h"

#include <stdbool.h>

/* ---- devices: one for each ISA level of this machine ----------------------------------------- */

/* One more, on any machine: the body that uses tile registers, over tiles emulated in plain C. */
#define ATTN_EMULATED "emulated tiles"
#define ATTN_MAX_ISAS (MST_ISA_LEVELS + 1)
typedef struct attn_isas {
    int32_t count;
    const char *name[ATTN_MAX_ISAS];
    mstar_device *device[ATTN_MAX_ISAS];
} attn_isas;
/* The GPU of support_card.h, where that is the level: then alone. */
#define ATTN_CARD "cuda"
/* A device of one level by name; host NULL: threads of its own (a GPU's are always). Fails the
 * test. */
mstar_device *attn_open(const char *isa, int32_t num_threads, mstar_parallel_for host);
void attn_close(mstar_device *device);
/* Opens a device for each level that runs here and prints one line each. */
void attn_isas_open(attn_isas *isas, int32_t num_threads);
void attn_isas_close(attn_isas *isas);

/* ---- the three wrappers as one --------------------------------------------------------------- */

typedef enum attn_kind { ATTN_SELF, ATTN_CROSS, ATTN_PREFIXED } attn_kind;
const char *attn_kind_name(attn_kind kind);

typedef struct attn_wrapper {
    attn_kind kind;
    void *object;
} attn_wrapper;
mstar_status attn_workspace_query(mstar_device *device, attn_kind kind,
                                  const mstar_ragged_prefill_desc *desc, size_t *bytes);
mstar_status attn_create(mstar_device *device, attn_kind kind,
                         const mstar_ragged_prefill_desc *desc, void *workspace, size_t bytes,
                         attn_wrapper *wrapper);
/* Self ignores the key side, cross ignores causal. On a GPU a NULL stream is one of the tests', and
 * tensors of host memory are lent for the length of a run (support_loans.h). */
mstar_status attn_plan(const attn_wrapper *wrapper, mstar_stream *stream, const int32_t *q,
                       int64_t q_segments, const int32_t *kv, int64_t kv_segments, int causal);
mstar_status attn_run(const attn_wrapper *wrapper, mstar_stream *stream, const mstar_tensor *q,
                      const mstar_tensor *k, const mstar_tensor *v, const mstar_tensor *out,
                      const mstar_tensor *lse);
mstar_status attn_query(const attn_wrapper *wrapper, mstar_ragged_prefill_info *info);
void attn_destroy(const attn_wrapper *wrapper);

/* ---- problems -------------------------------------------------------------------------------- */

#define ATTN_MAX_SEGMENTS 528

/* How values are drawn. */
typedef enum attn_values {
    ATTN_NORMAL, /* N(0, 1) */
    ATTN_LARGE,  /* scores from 1e4 up to near the largest that f32 holds */
    ATTN_TINY,   /* products that are denormal, values that are */
    ATTN_POOL    /* N(0, 1) from a pool of 65521 numbers: fast, for large problems */
} attn_values;

typedef struct attn_problem {
    uint64_t seed;
    attn_kind kind;
    int32_t num_qo_heads, num_kv_heads, head_dim;
    mstar_dtype dtype;
    mstar_kv_layout kv_layout;
    double sm_scale; /* NaN: derived */
    int causal;
    int64_t window_left, window_right;
    int32_t return_lse;
    attn_values values;
    int64_t extra_rows; /* rows of q, k, v and out past the plan */
    bool gaps;          /* rows and heads apart from one another */
    int64_t num_segments;
    int32_t q_offsets[ATTN_MAX_SEGMENTS + 1], kv_offsets[ATTN_MAX_SEGMENTS + 1];
} attn_problem;

/* A self problem of f32, one head of 64, normal values, no segments. */
void attn_problem_init(attn_problem *problem);
/* Adds a segment; self wrappers take lq for both. False when it is full. */
bool attn_problem_add(attn_problem *problem, int64_t lq, int64_t lk);
/* A problem from a seed: every feature by chance, at most so many products in the reference. */
void attn_problem_random(uint64_t seed, int64_t max_products, attn_problem *problem);
void attn_problem_desc(const attn_problem *problem, mstar_ragged_prefill_desc *desc);
/* One line that names everything. Static memory. */
const char *attn_problem_text(const attn_problem *problem);
int64_t attn_problem_tokens(const attn_problem *problem);
int64_t attn_problem_kv_tokens(const attn_problem *problem);

/* ---- data in guarded memory ------------------------------------------------------------------ */

/* One tensor in a block of its own: guard bytes on both sides, poison in every gap. */
typedef struct attn_block {
    unsigned char *bytes;
    size_t num_bytes;
    mstar_tensor tensor;
} attn_block;

typedef struct attn_data {
    attn_block q, k, v, out, lse;
    const mstar_tensor *lse_tensor; /* NULL when the problem wants none */
} attn_data;

/*
 * Makes tensors as the problem says and draws q, k and v. Everything around and between them, and
 * rows past the plan, is NaN; out and lse are full of a pattern that no result has.
 */
void attn_data_make(const attn_problem *problem, attn_data *data);
void attn_data_free(attn_data *data);
/* Fills out and lse with the pattern again. */
void attn_data_reset_outputs(attn_data *data);
/* Writes one value over every element of rows [begin, end) of q, k, v or out. dim 0: NHD. */
void attn_fill_rows(const mstar_tensor *tensor, int32_t row_dim, int64_t begin, int64_t end,
                    float value);
float attn_get(const mstar_tensor *tensor, int64_t a, int64_t b, int64_t c);
void attn_set(const mstar_tensor *tensor, int64_t a, int64_t b, int64_t c, float value);
/* A view of rows [begin, begin + rows) of dimension dim. */
mstar_tensor attn_rows(const mstar_tensor *tensor, int32_t dim, int64_t begin, int64_t rows);
/*
 * True when every byte of the block is what it is in before, except elements of rows
 * [begin, end).
 */
bool attn_block_same_outside(const attn_block *block, const unsigned char *before, int64_t begin,
                             int64_t end);
/* A copy of the block's bytes, for the caller to free. */
unsigned char *attn_block_copy(const attn_block *block);
/* Bit for bit: rows of a against rows of b, over heads and dims. Prints the first difference. */
bool attn_same_bits(const mstar_tensor *a, int64_t a_row, const mstar_tensor *b, int64_t b_row,
                    int64_t rows);

/* One run over these tensors, recorded. The graph is replayed and destroyed by the next two: on a
 * GPU their memory goes there before each replay and comes back after it. */
mstar_status attn_capture(const attn_wrapper *wrapper, mstar_stream *stream, const attn_data *data,
                          mstar_graph **graph);
mstar_status attn_replay(mstar_graph *graph, mstar_stream *stream);
void attn_graph_destroy(mstar_graph *graph);

/* ---- reference ------------------------------------------------------------------------------- */

typedef struct attn_reference {
    int64_t tokens;
    double *out, *out_bound; /* [tokens, H, D] */
    double *pair_bound;      /* more, for levels that round weights: pairs of bf16, tensor cores */
    double *lse, *lse_bound; /* [tokens, H] */
    int64_t loose;           /* elements whose bound says nothing (over a tenth of the values) */
    int64_t elements;
    bool *known; /* [tokens] rows that were computed; NULL: all */
} attn_reference;
void attn_reference_make(const attn_problem *problem, const attn_data *data,
                         attn_reference *reference);
/* Only the rows that are wanted[row]; the check then passes over the others. */
void attn_reference_make_rows(const attn_problem *problem, const attn_data *data,
                              const bool *wanted, attn_reference *reference);
void attn_reference_free(attn_reference *reference);
/* q.k itself lies inside f32. Of ATTN_LARGE it may pass it before the scale, which the GPU's
 * kernels apply to the product. */
bool attn_dots_fit(const attn_problem *problem, const attn_reference *reference);
/* Compares out and lse of a level with the reference, element by element and, over many ordinary
 * ones in bf16, all together; prints the first few that are off. True when all fit. */
bool attn_reference_check(const attn_problem *problem, const attn_data *data,
                          const attn_reference *reference, const char *isa);

/* Copies rows of a tensor in order, from the given row, to another's. */
void attn_copy_rows(const mstar_tensor *to, int64_t to_row, const mstar_tensor *from,
                    int64_t from_row, int64_t rows);
/* Creates, plans, runs and destroys on a device; fails the test where a call fails. */
void attn_problem_run(const attn_problem *problem, mstar_device *device, mstar_stream *stream,
                      const attn_data *data);
/*
 * The same for segments [begin, end) as a call of its own: offsets start at 0, tensors are row
 * slices of the whole data, out and lse those of `to`.
 */
void attn_problem_run_part(const attn_problem *problem, mstar_device *device, mstar_stream *stream,
                           const attn_data *data, const attn_data *to, int64_t begin, int64_t end);

/* ---- calls that must succeed or be refused --------------------------------------------------- */

/* Fails the test with the library's text unless the status is OK. */
void attn_must(mstar_status status);
/* A refusal: this status, and a text with both parts. */
void attn_refused(mstar_status got, mstar_status want, const char *a, const char *b);
/* 4 heads over 2 of 16, f32, eager. */
void attn_small_desc(mstar_ragged_prefill_desc *desc);
/* The same in graph mode: 4 segments, 30 tokens. */
void attn_graph_desc(mstar_ragged_prefill_desc *desc);

#endif
