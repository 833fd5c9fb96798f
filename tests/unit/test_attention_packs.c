/*
 * test_attention_packs.c - tiles of several short segments: the rows of a segment have the bits
 * they have alone, whichever segments and heads lie beside them in the same lanes, in any order,
 * full of NaN and infinities, or empty. Against float64, test_attention has such segments too.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support_attn.h"
#include "support_card.h"

static attn_isas isas;

static int open_devices(void **state)
{
    (void)state;
    attn_isas_open(&isas, 1);
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    attn_isas_close(&isas);
    return 0;
}

/* Rows that end in every place of a vector, no rows, no keys, and keys of one block and of two. */
static const int64_t rows_of[] = {3, 1, 8, 0, 5, 13, 24, 7, 2, 17, 6, 9, 31, 12, 1, 20, 4, 33, 15};
static const int64_t keys_of[] = {3,  9, 8,  4,  1, 0,  24, 6,  70, 17,
                                  73, 9, 11, 12, 2, 71, 5,  33, 129};
#define NUM_SEGMENTS ((int64_t)(sizeof rows_of / sizeof rows_of[0]))

typedef struct pack_case {
    attn_kind kind;
    int32_t heads, kv_heads, dim;
    mstar_dtype dtype;
    int causal;
    int64_t left, right;
} pack_case;

static const pack_case cases[] = {
    {ATTN_SELF, 3, 3, 32, MSTAR_DTYPE_F32, 0, -1, -1},
    {ATTN_SELF, 2, 1, 32, MSTAR_DTYPE_BF16, 1, -1, -1},
    {ATTN_SELF, 1, 1, 40, MSTAR_DTYPE_F16, 0, 2, 1},
    {ATTN_CROSS, 2, 2, 32, MSTAR_DTYPE_F32, 0, -1, -1},
    {ATTN_CROSS, 5, 1, 16, MSTAR_DTYPE_BF16, 0, -1, -1},
    {ATTN_PREFIXED, 2, 2, 24, MSTAR_DTYPE_F32, 1, -1, -1},
    {ATTN_PREFIXED, 2, 2, 32, MSTAR_DTYPE_BF16, 1, 4, 0},
};
#define NUM_CASES (sizeof cases / sizeof cases[0])

/* Which segment stands at place i: in order, or backwards. */
static int64_t segment_at(int64_t i, bool backwards)
{
    return backwards ? NUM_SEGMENTS - 1 - i : i;
}

static void make_problem(const pack_case *c, bool backwards, attn_problem *problem)
{
    attn_problem_init(problem);
    problem->seed = 4711;
    problem->kind = c->kind;
    problem->num_qo_heads = c->heads;
    problem->num_kv_heads = c->kv_heads;
    problem->head_dim = c->dim;
    problem->dtype = c->dtype;
    problem->causal = c->causal;
    problem->window_left = c->left;
    problem->window_right = c->right;
    problem->return_lse = 1;
    for (int64_t i = 0; i < NUM_SEGMENTS; i++) {
        int64_t rows = rows_of[segment_at(i, backwards)];
        int64_t keys = keys_of[segment_at(i, backwards)];
        assert_true(attn_problem_add(problem, rows, c->kind == ATTN_PREFIXED ? rows + keys : keys));
    }
}

static void same_rows(const attn_problem *problem, const char *isa, const attn_data *a,
                      int64_t a_row, const attn_data *b, int64_t b_row, int64_t rows)
{
    if (!attn_same_bits(&a->out.tensor, a_row, &b->out.tensor, b_row, rows) ||
        !attn_same_bits(&a->lse.tensor, a_row, &b->lse.tensor, b_row, rows))
        fail_msg("%s: %lld rows from row %lld on differ: %s", isa, (long long)rows,
                 (long long)a_row, attn_problem_text(problem));
}

/* Calls a check for each case on each level, with all segments' results in `whole`. */
typedef void (*case_check)(const pack_case *c, const attn_problem *problem, int32_t isa,
                           const attn_data *whole, attn_data *other);

static void for_cases(case_check check)
{
    for (size_t i = 0; i < NUM_CASES; i++) {
        attn_problem problem;
        attn_data whole, other;
        make_problem(&cases[i], false, &problem);
        attn_data_make(&problem, &whole);
        attn_data_make(&problem, &other);
        for (int32_t isa = 0; isa < isas.count; isa++) {
            attn_data_reset_outputs(&whole);
            attn_data_reset_outputs(&other);
            attn_problem_run(&problem, isas.device[isa], NULL, &whole);
            check(&cases[i], &problem, isa, &whole, &other);
        }
        attn_data_free(&whole);
        attn_data_free(&other);
    }
}

static void check_alone(const pack_case *c, const attn_problem *problem, int32_t isa,
                        const attn_data *whole, attn_data *other)
{
    (void)c;
    for (int64_t i = 0; i < NUM_SEGMENTS; i++)
        attn_problem_run_part(problem, isas.device[isa], NULL, whole, other, i, i + 1);
    same_rows(problem, isas.name[isa], whole, 0, other, 0, attn_problem_tokens(problem));
}

static void company_is_as_alone(void **state)
{
    (void)state;
    for_cases(check_alone);
}

static void check_backwards(const pack_case *c, const attn_problem *problem, int32_t isa,
                            const attn_data *whole, attn_data *unused)
{
    (void)unused;
    attn_problem turned;
    attn_data data;
    make_problem(c, true, &turned);
    attn_data_make(&turned, &data);
    for (int64_t i = 0; i < NUM_SEGMENTS; i++) {
        int64_t at = segment_at(i, true);
        int32_t q = turned.q_offsets[i], from_q = problem->q_offsets[at];
        int32_t kv = turned.kv_offsets[i], from_kv = problem->kv_offsets[at];
        int64_t keys = turned.kv_offsets[i + 1] - kv;
        attn_copy_rows(&data.q.tensor, q, &whole->q.tensor, from_q, turned.q_offsets[i + 1] - q);
        attn_copy_rows(&data.k.tensor, kv, &whole->k.tensor, from_kv, keys);
        attn_copy_rows(&data.v.tensor, kv, &whole->v.tensor, from_kv, keys);
    }
    attn_problem_run(&turned, isas.device[isa], NULL, &data);
    for (int64_t i = 0; i < NUM_SEGMENTS; i++)
        same_rows(problem, isas.name[isa], whole, problem->q_offsets[segment_at(i, true)], &data,
                  turned.q_offsets[i], turned.q_offsets[i + 1] - turned.q_offsets[i]);
    attn_data_free(&data);
}

static void any_order_is_the_same(void **state)
{
    (void)state;
    for_cases(check_backwards);
}

/* Every other segment becomes NaN or infinity in q, k and v: the others do not notice. */
static void check_poisoned(const pack_case *c, const attn_problem *problem, int32_t isa,
                           const attn_data *whole, attn_data *unused)
{
    (void)c;
    (void)unused;
    static const float poison[] = {INFINITY, -INFINITY, NAN};
    attn_data data;
    attn_data_make(problem, &data);
    for (int64_t i = 0; i < NUM_SEGMENTS; i += 2) {
        const int32_t *q = problem->q_offsets + i;
        const int32_t *kv = problem->kv_offsets + i;
        float value = poison[i / 2 % 3];
        attn_fill_rows(&data.q.tensor, 0, q[0], q[1], value);
        attn_fill_rows(&data.k.tensor, 0, kv[0], kv[1], value);
        attn_fill_rows(&data.v.tensor, 0, kv[0], kv[1], value);
    }
    attn_problem_run(problem, isas.device[isa], NULL, &data);
    for (int64_t i = 1; i < NUM_SEGMENTS; i += 2) {
        const int32_t *q = problem->q_offsets + i;
        same_rows(problem, isas.name[isa], whole, q[0], &data, q[0], q[1] - q[0]);
    }
    /* segment 4 is NaN: it shows there */
    assert_true(isnan(attn_get(&data.out.tensor, problem->q_offsets[4], 0, 0)));
    attn_data_free(&data);
}

static void neighbours_full_of_nan(void **state)
{
    (void)state;
    for_cases(check_poisoned);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_is_as_alone),
        cmocka_unit_test(any_order_is_the_same),
        cmocka_unit_test(neighbours_full_of_nan),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
