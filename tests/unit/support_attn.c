/* support_attn.c - problems and guarded data of the attention tests. */
#include "support_attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support_check.h"

#define GUARD_BYTES 64
#define OUTPUT_PATTERN 0xA5

/* ---- problems -------------------------------------------------------------------------------- */

void attn_problem_init(attn_problem *problem)
{
    memset(problem, 0, sizeof *problem);
    problem->num_qo_heads = 1;
    problem->num_kv_heads = 1;
    problem->head_dim = 64;
    problem->dtype = MSTAR_DTYPE_F32;
    problem->sm_scale = (double)NAN;
    problem->window_left = -1;
    problem->window_right = -1;
    problem->return_lse = 1;
}

bool attn_problem_add(attn_problem *problem, int64_t lq, int64_t lk)
{
    int64_t at = problem->num_segments;
    if (at == ATTN_MAX_SEGMENTS)
        return false;
    if (problem->kind == ATTN_SELF)
        lk = lq;
    problem->q_offsets[at + 1] = problem->q_offsets[at] + (int32_t)lq;
    problem->kv_offsets[at + 1] = problem->kv_offsets[at] + (int32_t)lk;
    problem->num_segments++;
    return true;
}

static void draw_segments(test_random *random, attn_problem *problem)
{
    static const int64_t edges[] = {15, 16, 17, 31, 32, 33,  63,  64, 65,
                                    69, 70, 71, 72, 73, 127, 128, 129};
    enum { NUM_EDGES = sizeof edges / sizeof edges[0] };
    int64_t pattern = test_random_between(random, 0, 6);
    int64_t count = test_random_between(random, 1, 8);
    int64_t huge = test_random_between(random, 0, 30);
    switch (pattern) {
    case 0: /* short ones of any kind */
        for (int64_t i = 0; i < count; i++)
            attn_problem_add(problem, test_random_between(random, 0, 20),
                             test_random_between(random, 0, 30));
        break;
    case 1: /* empty and single ones */
        for (int64_t i = 0; i < 2 * count; i++)
            attn_problem_add(problem, test_random_between(random, 0, 1),
                             test_random_between(random, 0, 1));
        break;
    case 2: /* tiles and blocks, and one more or less */
        for (int64_t i = 0; i < (count + 3) / 4; i++)
            attn_problem_add(problem, edges[test_random_between(random, 0, NUM_EDGES - 1)],
                             edges[test_random_between(random, 0, NUM_EDGES - 1)]);
        break;
    case 3: /* one huge among many tiny */
        for (int64_t i = 0; i < 31; i++)
            attn_problem_add(problem,
                             i == huge ? test_random_between(random, 150, 350)
                                       : test_random_between(random, 0, 3),
                             i == huge ? test_random_between(random, 150, 350)
                                       : test_random_between(random, 0, 3));
        break;
    case 4: /* fewer keys than queries */
        for (int64_t i = 0; i < count; i++) {
            int64_t lq = test_random_between(random, 1, 40);
            attn_problem_add(problem, lq, test_random_between(random, 0, lq));
        }
        break;
    case 5: /* decode: one row over a long past */
        for (int64_t i = 0; i < count; i++)
            attn_problem_add(problem, 1, test_random_between(random, 0, 300));
        break;
    default: /* nothing at all: no segments, or only empty ones; rarely */
        if (test_random_between(random, 0, 3) > 0)
            attn_problem_add(problem, test_random_between(random, 1, 90),
                             test_random_between(random, 1, 90));
        else
            for (int64_t i = 0; i < count - 1; i++)
                attn_problem_add(problem, 0, test_random_between(random, 0, 3));
        break;
    }
}

static int64_t count_products(const attn_problem *problem)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < problem->num_segments; i++)
        pairs += (int64_t)(problem->q_offsets[i + 1] - problem->q_offsets[i]) *
                 (problem->kv_offsets[i + 1] - problem->kv_offsets[i]);
    return pairs * problem->num_qo_heads * problem->head_dim;
}

void attn_problem_random(uint64_t seed, int64_t max_products, attn_problem *problem)
{
    static const int32_t heads[][2] = {{1, 1},  {2, 1}, {3, 1}, {4, 1},  {7, 1}, {8, 1},
                                       {12, 1}, {2, 2}, {6, 3}, {6, 2},  {9, 3}, {8, 2},
                                       {14, 2}, {4, 4}, {3, 3}, {24, 2}, {5, 1}, {80, 1}};
    static const int32_t dims[] = {8,   32,  40, 64, 72, 80, 96, 120, 128,
                                   192, 256, 1,  3,  17, 33, 46, 100, 255};
    static const int64_t windows[] = {-1, -1, 0, 1, 5, 33, 64, 100, INT64_MAX};
    enum {
        NUM_HEADS = sizeof heads / sizeof heads[0],
        NUM_DIMS = sizeof dims / sizeof dims[0],
        NUM_WINDOWS = sizeof windows / sizeof windows[0]
    };
    test_random random = {seed * 7919 + 1};
    attn_problem_init(problem);
    problem->seed = seed;
    problem->kind = (attn_kind)test_random_between(&random, 0, 2);
    draw_segments(&random, problem);
    problem->head_dim = 8;
    for (int i = 0; i < 40; i++) {
        int64_t h = test_random_between(&random, 0, NUM_HEADS - 1);
        problem->num_qo_heads = heads[h][0];
        problem->num_kv_heads = heads[h][1];
        problem->head_dim = dims[test_random_between(&random, 0, NUM_DIMS - 1)];
        if (count_products(problem) <= max_products)
            break;
    }
    problem->dtype = (mstar_dtype)test_random_between(&random, 0, 2);
    problem->kv_layout = (mstar_kv_layout)test_random_between(&random, 0, 1);
    problem->causal = problem->kind != ATTN_CROSS && test_random_between(&random, 0, 1) == 1;
    if (test_random_between(&random, 0, 2) == 0) {
        problem->window_left = windows[test_random_between(&random, 0, NUM_WINDOWS - 1)];
        problem->window_right = windows[test_random_between(&random, 0, NUM_WINDOWS - 1)];
    }
    problem->return_lse = (int32_t)test_random_between(&random, 0, 1);
    if (test_random_between(&random, 0, 3) == 0)
        problem->sm_scale = test_random_normal(&random) * 0.3;
    if (test_random_between(&random, 0, 4) == 0)
        problem->values = (attn_values)test_random_between(&random, 1, 2);
    problem->gaps = test_random_between(&random, 0, 1) == 1;
    problem->extra_rows = test_random_between(&random, 0, 3);
}

void attn_problem_desc(const attn_problem *problem, mstar_ragged_prefill_desc *desc)
{
    mstar_ragged_prefill_desc_init(desc);
    desc->num_qo_heads = problem->num_qo_heads;
    desc->num_kv_heads = problem->num_kv_heads;
    desc->head_dim = problem->head_dim;
    desc->q_data_type = problem->dtype;
    desc->sm_scale = problem->sm_scale;
    desc->kv_layout = problem->kv_layout;
    desc->return_lse = problem->return_lse;
    desc->window_left = problem->window_left;
    desc->window_right = problem->window_right;
}

const char *attn_problem_text(const attn_problem *problem)
{
    static char text[1024];
    int used = snprintf(text, sizeof text,
                        "seed %llu: %s H %d K %d D %d %s %s scale %g causal %d windows %lld %lld "
                        "values %d gaps %d lengths",
                        (unsigned long long)problem->seed, attn_kind_name(problem->kind),
                        problem->num_qo_heads, problem->num_kv_heads, problem->head_dim,
                        mstar_dtype_name(problem->dtype),
                        problem->kv_layout == MSTAR_KV_HND ? "HND" : "NHD", problem->sm_scale,
                        problem->causal, (long long)problem->window_left,
                        (long long)problem->window_right, (int)problem->values, problem->gaps);
    for (int64_t i = 0; i < problem->num_segments && used > 0 && used < (int)sizeof text; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, " %d/%d",
                         problem->q_offsets[i + 1] - problem->q_offsets[i],
                         problem->kv_offsets[i + 1] - problem->kv_offsets[i]);
    return text;
}

int64_t attn_problem_tokens(const attn_problem *problem)
{
    return problem->q_offsets[problem->num_segments];
}

int64_t attn_problem_kv_tokens(const attn_problem *problem)
{
    return problem->kv_offsets[problem->num_segments];
}

/* ---- data ------------------------------------------------------------------------------------ */

static void *checked_alloc(size_t bytes)
{
    void *memory = malloc(bytes);
    assert_non_null(memory);
    return memory;
}

/* rank 3: [rows, heads, dim] or, by head, [heads, rows, dim]; rank 2 (lse): dim 1, [rows, heads].
 * The first element stands off any alignment but its own. */
static void make_block(attn_block *block, mstar_dtype dtype, int64_t rows, int64_t heads,
                       int64_t dim, int32_t rank, bool by_head, bool gaps, int64_t shift)
{
    size_t element = mstar_dtype_bytes(dtype);
    int64_t inner = dim + (gaps && rank == 3 ? 3 : 0);
    int64_t outer = (by_head ? rows : heads) * inner + (gaps ? 5 : 0);
    int64_t count = (by_head ? heads : rows) * outer;
    block->num_bytes = (size_t)(count + shift) * element + 2 * (size_t)GUARD_BYTES;
    block->bytes = checked_alloc(block->num_bytes);
    check_block_add(block->bytes, block->num_bytes);
    int64_t shape[3] = {by_head ? heads : rows, by_head ? rows : heads, dim};
    block->tensor =
        mstar_tensor_make(block->bytes + GUARD_BYTES + (size_t)shift * element, dtype, rank, shape);
    block->tensor.strides[0] = outer;
    if (rank == 3)
        block->tensor.strides[1] = inner;
}

/* NaN in every element of the block, guards included. */
static void poison(attn_block *block)
{
    size_t element = mstar_dtype_bytes(block->tensor.dtype);
    for (size_t i = 0; i < block->num_bytes / element; i++)
        mst_store_element(block->bytes, block->tensor.dtype, (int64_t)i, NAN);
}

float attn_get(const mstar_tensor *tensor, int64_t a, int64_t b, int64_t c)
{
    return mst_load_element(tensor->data, tensor->dtype,
                            a * tensor->strides[0] + b * tensor->strides[1] + c);
}

void attn_set(const mstar_tensor *tensor, int64_t a, int64_t b, int64_t c, float value)
{
    mst_store_element(tensor->data, tensor->dtype,
                      a * tensor->strides[0] + b * tensor->strides[1] + c, value);
}

/* One number of the pool after the other; 65521 is a prime, so that no row repeats another. */
static void draw_pool(test_random *random, const mstar_tensor *tensor, int32_t row_dim,
                      int64_t rows)
{
    enum { POOL = 65521 };
    float *pool = checked_alloc(POOL * sizeof *pool);
    int64_t next = test_random_between(random, 0, POOL - 1);
    for (int i = 0; i < POOL; i++)
        pool[i] = (float)test_random_normal(random);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < tensor->shape[1 - row_dim]; head++)
            for (int64_t d = 0; d < tensor->shape[2]; d++) {
                attn_set(tensor, row_dim == 0 ? row : head, row_dim == 0 ? head : row, d,
                         pool[next]);
                next = next + 1 < POOL ? next + 1 : 0;
            }
    free(pool);
}

static void draw(test_random *random, const mstar_tensor *tensor, int32_t row_dim, int64_t rows,
                 double magnitude)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < tensor->shape[1 - row_dim]; head++)
            for (int64_t d = 0; d < tensor->shape[2]; d++)
                attn_set(tensor, row_dim == 0 ? row : head, row_dim == 0 ? head : row, d,
                         (float)(test_random_normal(random) * magnitude));
}

/* Magnitudes of q and k, and of v. */
static void choose_magnitudes(const attn_problem *problem, test_random *random, double *qk,
                              double *v)
{
    double scale =
        isnan(problem->sm_scale) ? 1.0 / sqrt((double)problem->head_dim) : fabs(problem->sm_scale);
    bool half = problem->dtype == MSTAR_DTYPE_F16;
    *qk = 1.0;
    *v = 1.0;
    if (problem->values == ATTN_LARGE) {
        /* standard deviation of a score: scale sqrt(D) qk^2 */
        double score = pow(10.0, 4.0 + (half ? 2.0 : 26.0) * test_random_unit(random));
        *qk = sqrt(score / (fmax(scale, 1e-3) * sqrt((double)problem->head_dim)));
        *qk = fmin(*qk, half ? 8000.0 : 1e17);
        *v = half ? 1000.0 : 1e30;
    } else if (problem->values == ATTN_TINY) {
        *qk = half ? 1e-5 : 1e-21;
        *v = half ? 1e-6 : 1e-39;
    }
}

void attn_data_make(const attn_problem *problem, attn_data *data)
{
    test_random random = {problem->seed + 12345};
    int64_t tokens = attn_problem_tokens(problem);
    int64_t kv_tokens = attn_problem_kv_tokens(problem);
    int64_t rows = tokens + problem->extra_rows;
    int64_t kv_rows = kv_tokens + problem->extra_rows;
    bool by_head = problem->kv_layout == MSTAR_KV_HND;
    bool gaps = problem->gaps;
    mstar_dtype dtype = problem->dtype;
    double qk;
    double v;
    make_block(&data->q, dtype, rows, problem->num_qo_heads, problem->head_dim, 3, false, gaps, 1);
    make_block(&data->k, dtype, kv_rows, problem->num_kv_heads, problem->head_dim, 3, by_head, gaps,
               3);
    make_block(&data->v, dtype, kv_rows, problem->num_kv_heads, problem->head_dim, 3, by_head, gaps,
               5);
    make_block(&data->out, dtype, rows, problem->num_qo_heads, problem->head_dim, 3, false, gaps,
               7);
    make_block(&data->lse, MSTAR_DTYPE_F32, rows, problem->num_qo_heads, 1, 2, false, gaps, 1);
    data->lse_tensor = problem->return_lse ? &data->lse.tensor : NULL;
    poison(&data->q);
    poison(&data->k);
    poison(&data->v);
    if (problem->values == ATTN_POOL) {
        draw_pool(&random, &data->q.tensor, 0, tokens);
        draw_pool(&random, &data->k.tensor, by_head ? 1 : 0, kv_tokens);
        draw_pool(&random, &data->v.tensor, by_head ? 1 : 0, kv_tokens);
        attn_data_reset_outputs(data);
        return;
    }
    choose_magnitudes(problem, &random, &qk, &v);
    draw(&random, &data->q.tensor, 0, tokens, qk);
    draw(&random, &data->k.tensor, by_head ? 1 : 0, kv_tokens, qk);
    draw(&random, &data->v.tensor, by_head ? 1 : 0, kv_tokens, v);
    attn_data_reset_outputs(data);
}

void attn_data_free(attn_data *data)
{
    const attn_block *blocks[] = {&data->q, &data->k, &data->v, &data->out, &data->lse};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        check_block_remove(blocks[i]->bytes);
        free(blocks[i]->bytes);
    }
    memset(data, 0, sizeof *data);
}

void attn_data_reset_outputs(attn_data *data)
{
    memset(data->out.bytes, OUTPUT_PATTERN, data->out.num_bytes);
    memset(data->lse.bytes, OUTPUT_PATTERN, data->lse.num_bytes);
}

void attn_fill_rows(const mstar_tensor *tensor, int32_t row_dim, int64_t begin, int64_t end,
                    float value)
{
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < tensor->shape[1 - row_dim]; head++)
            for (int64_t d = 0; d < tensor->shape[2]; d++)
                attn_set(tensor, row_dim == 0 ? row : head, row_dim == 0 ? head : row, d, value);
}

mstar_tensor attn_rows(const mstar_tensor *tensor, int32_t dim, int64_t begin, int64_t rows)
{
    mstar_tensor view = {0};
    if (mstar_tensor_slice(tensor, dim, begin, rows, &view) != MSTAR_OK)
        fail_msg("slice: %s", mstar_last_error());
    return view;
}

unsigned char *attn_block_copy(const attn_block *block)
{
    unsigned char *copy = checked_alloc(block->num_bytes);
    memcpy(copy, block->bytes, block->num_bytes);
    return copy;
}

bool attn_block_same_outside(const attn_block *block, const unsigned char *before, int64_t begin,
                             int64_t end)
{
    const mstar_tensor *tensor = &block->tensor;
    size_t element = mstar_dtype_bytes(tensor->dtype);
    unsigned char *now = attn_block_copy(block);
    int64_t heads = tensor->shape[1];
    int64_t dim = tensor->rank == 3 ? tensor->shape[2] : 1;
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < heads; head++) {
            int64_t at = row * tensor->strides[0] + head * tensor->strides[1];
            size_t offset =
                (size_t)((unsigned char *)tensor->data - block->bytes) + (size_t)at * element;
            memcpy(now + offset, before + offset, (size_t)dim * element);
        }
    bool same = memcmp(now, before, block->num_bytes) == 0;
    free(now);
    return same;
}

bool attn_same_bits(const mstar_tensor *a, int64_t a_row, const mstar_tensor *b, int64_t b_row,
                    int64_t rows)
{
    size_t element = mstar_dtype_bytes(a->dtype);
    int64_t dim = a->rank == 3 ? a->shape[2] : 1;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < a->shape[1]; head++) {
            int64_t a_at = (a_row + row) * a->strides[0] + head * a->strides[1];
            int64_t b_at = (b_row + row) * b->strides[0] + head * b->strides[1];
            if (memcmp((const unsigned char *)a->data + (size_t)a_at * element,
                       (const unsigned char *)b->data + (size_t)b_at * element,
                       (size_t)dim * element) != 0) {
                printf("bits differ at row %lld (of %lld), head %lld\n", (long long)row,
                       (long long)rows, (long long)head);
                return false;
            }
        }
    return true;
}

void attn_copy_rows(const mstar_tensor *to, int64_t to_row, const mstar_tensor *from,
                    int64_t from_row, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < to->shape[1]; h++)
            for (int64_t d = 0; d < to->shape[2]; d++)
                attn_set(to, to_row + r, h, d, attn_get(from, from_row + r, h, d));
}

/* ---- descs that many tests take -------------------------------------------------------------- */

void attn_small_desc(mstar_ragged_prefill_desc *desc)
{
    mstar_ragged_prefill_desc_init(desc);
    desc->num_qo_heads = 4;
    desc->num_kv_heads = 2;
    desc->head_dim = 16;
    desc->q_data_type = MSTAR_DTYPE_F32;
}

void attn_graph_desc(mstar_ragged_prefill_desc *desc)
{
    attn_small_desc(desc);
    desc->accelerator_graph = 1;
    desc->max_num_segments = 4;
    desc->max_total_tokens = 30;
}
