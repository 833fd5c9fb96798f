/*
 * test_attention.c - the numbers of the three wrappers on every ISA level of this machine, against
 * float64 with a bound computed from the dtype and the work (support_attn_reference.c).
 *
 * `test_attention SEED` repeats one random problem.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_attn.h"
#include "support_card.h"
#include "support_check.h"

#define RANDOM_PROBLEMS 300
#define MAX_PRODUCTS 600000

static attn_isas isas;
static uint64_t only_seed;

static int open_devices(void **state)
{
    (void)state;
    attn_isas_open(&isas, 3);
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    attn_isas_close(&isas);
    return 0;
}

typedef struct tally {
    int64_t elements, loose, loose_where_ordinary;
} tally;

/* One problem on every level: numbers, and not a byte written outside the planned rows. */
static bool check_problem(const attn_problem *problem, tally *sum)
{
    attn_data data;
    attn_reference reference;
    bool good = true;
    attn_data_make(problem, &data);
    attn_reference_make(problem, &data, &reference);
    bool runs = !level_is_card() || attn_dots_fit(problem, &reference);
    for (int32_t i = 0; i < isas.count && runs; i++) {
        attn_data_reset_outputs(&data);
        unsigned char *out = attn_block_copy(&data.out);
        unsigned char *lse = attn_block_copy(&data.lse);
        attn_problem_run(problem, isas.device[i], NULL, &data);
        good = attn_reference_check(problem, &data, &reference, isas.name[i]) && good;
        int64_t rows = attn_problem_tokens(problem);
        if (!attn_block_same_outside(&data.out, out, 0, rows) ||
            !attn_block_same_outside(&data.lse, lse, 0, problem->return_lse ? rows : 0)) {
            printf("%s, %s: bytes outside the planned rows changed\n", isas.name[i],
                   attn_problem_text(problem));
            good = false;
        }
        free(out);
        free(lse);
    }
    sum->elements += reference.elements;
    sum->loose += reference.loose;
    if (problem->values != ATTN_LARGE)
        sum->loose_where_ordinary += reference.loose;
    attn_reference_free(&reference);
    attn_data_free(&data);
    return good;
}

static void must_pass(const attn_problem *problem)
{
    tally sum = {0};
    assert_true(check_problem(problem, &sum));
    assert_int_equal(sum.loose_where_ordinary, 0);
}

static void random_problems(void **state)
{
    tally sum = {0};
    int64_t bad = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= (uint64_t)check_part(RANDOM_PROBLEMS); seed++) {
        attn_problem problem;
        if (only_seed != 0 && seed != only_seed)
            continue;
        attn_problem_random(seed, MAX_PRODUCTS, &problem);
        if (!check_problem(&problem, &sum))
            bad++;
    }
    assert_int_equal(bad, 0);
    assert_int_equal(sum.loose_where_ordinary, 0); /* every bound there says something */
    assert_true(sum.loose <= sum.elements / 100 + 1);
    assert_true(only_seed != 0 || check_part(2) < 2 || sum.elements > 100000);
}

/* Every dim in every dtype, causal and not, at lengths about a tile and a block. */
static void every_head_dim(void **state)
{
    static const int32_t dims[] = {8, 32, 40, 64, 72, 80, 96, 120, 128, 192, 256, 1,
                                   2, 3,  7,  15, 16, 17, 31, 33,  46,  100, 255};
    (void)state;
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
        for (int dtype = 0; dtype < 3; dtype++) {
            attn_problem problem;
            attn_problem_init(&problem);
            problem.seed = 1000 + d;
            problem.kind = ATTN_PREFIXED;
            problem.num_qo_heads = 2;
            problem.head_dim = dims[d];
            problem.dtype = (mstar_dtype)dtype;
            problem.causal = (int)((d + (size_t)dtype) % 2);
            problem.gaps = d % 2 == 0;
            attn_problem_add(&problem, 3, 5);
            attn_problem_add(&problem, 1, 65);
            attn_problem_add(&problem, 0, 9);
            attn_problem_add(&problem, 17, 16);
            must_pass(&problem);
        }
    }
}

/* Rows of a tile hold the query heads of a group: ratios that fit, do not, and exceed a tile. */
static void every_group_ratio(void **state)
{
    static const int32_t heads[][2] = {
        {1, 1},  {2, 1},  {3, 1}, {4, 1},  {5, 1},  {6, 1},  {7, 1},   {8, 1},  {12, 1}, {16, 1},
        {24, 4}, {21, 7}, {9, 3}, {64, 1}, {71, 1}, {73, 1}, {150, 1}, {32, 2}, {12, 4}, {14, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        attn_problem problem;
        attn_problem_init(&problem);
        problem.seed = 2000 + i;
        problem.num_qo_heads = heads[i][0];
        problem.num_kv_heads = heads[i][1];
        problem.head_dim = 8;
        problem.causal = (int)(i % 2);
        attn_problem_add(&problem, 1, 1);
        attn_problem_add(&problem, 21, 21);
        attn_problem_add(&problem, 0, 0);
        attn_problem_add(&problem, 4, 4);
        must_pass(&problem);
    }
}

/* Lengths one below, at and one above everything that a tile or a block may be. */
static void tile_edges(void **state)
{
    static const int64_t edges[] = {1,  2,  15, 16, 17, 31, 32, 33, 47, 48,  49,  63, 64,
                                    65, 69, 70, 71, 72, 73, 95, 96, 97, 127, 128, 129};
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        attn_problem problem;
        attn_problem_init(&problem);
        problem.seed = 3000 + i;
        problem.kind = ATTN_PREFIXED;
        problem.head_dim = 4;
        problem.causal = (int)(i % 2);
        problem.window_left = i % 3 == 0 ? edges[i] / 2 : -1;
        attn_problem_add(&problem, edges[i], edges[i]);
        attn_problem_add(&problem, 3, edges[i]);
        attn_problem_add(&problem, edges[i], 3);
        must_pass(&problem);
    }
}

static void one_huge_among_many_tiny(void **state)
{
    attn_problem problem;
    (void)state;
    attn_problem_init(&problem);
    problem.seed = 4000;
    problem.head_dim = 8;
    problem.dtype = MSTAR_DTYPE_BF16;
    for (int i = 0; i < 80; i++)
        attn_problem_add(&problem, i == 41 ? 700 : i % 3, 0);
    must_pass(&problem);
}

/* ---- layouts in memory ----------------------------------------------------------------------- */

/* q, k and v as three slices of one fused projection [T, (H + 2K) D] equal compact copies. */
static void fused_projection_slices(void **state)
{
    enum { T = 33, H = 4, K = 2, D = 24 };
    static const int32_t offsets[] = {0, 5, 5, 33};
    static float fused[T * (H + 2 * K) * D];
    static float compact[3][T * H * D];
    static float out[2][T * H * D];
    test_random random = {9};
    (void)state;
    for (size_t i = 0; i < sizeof fused / sizeof fused[0]; i++)
        fused[i] = (float)test_random_normal(&random);
    const int64_t shape[] = {T, (H + 2 * K) * D};
    mstar_tensor whole = mstar_tensor_make(fused, MSTAR_DTYPE_F32, 2, shape);
    const int64_t first[] = {0, H * D, (H + K) * D};
    const int64_t heads[] = {H, K, K};
    mstar_tensor slices[3];
    mstar_tensor copies[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mstar_tensor_slice(&whole, 1, first[i], heads[i] * D, &slices[i]),
                         MSTAR_OK);
        assert_int_equal(mstar_tensor_split_dim(&slices[i], 1, heads[i], D, &slices[i]), MSTAR_OK);
        const int64_t dims[] = {T, heads[i], D};
        copies[i] = mstar_tensor_make(compact[i], MSTAR_DTYPE_F32, 3, dims);
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < heads[i]; h++)
                for (int64_t d = 0; d < D; d++)
                    attn_set(&copies[i], t, h, d, attn_get(&slices[i], t, h, d));
    }
    const int64_t out_shape[] = {T, H, D};
    mstar_tensor outs[] = {mstar_tensor_make(out[0], MSTAR_DTYPE_F32, 3, out_shape),
                           mstar_tensor_make(out[1], MSTAR_DTYPE_F32, 3, out_shape)};
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = H;
    desc.num_kv_heads = K;
    desc.head_dim = D;
    desc.q_data_type = MSTAR_DTYPE_F32;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        attn_wrapper wrapper;
        memset(out, 0xA5, sizeof out);
        assert_int_equal(attn_create(isas.device[isa], ATTN_SELF, &desc, NULL, 0, &wrapper),
                         MSTAR_OK);
        assert_int_equal(attn_plan(&wrapper, NULL, offsets, 3, NULL, 0, 1), MSTAR_OK);
        assert_int_equal(
            attn_run(&wrapper, NULL, &slices[0], &slices[1], &slices[2], &outs[0], NULL), MSTAR_OK);
        assert_int_equal(
            attn_run(&wrapper, NULL, &copies[0], &copies[1], &copies[2], &outs[1], NULL), MSTAR_OK);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        attn_destroy(&wrapper);
    }
}

/* Compact or with gaps, by token or by head: the same bits. */
static void strides_do_not_change_bits(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (int dtype = 0; dtype < 3; dtype++) {
            attn_data data[4];
            attn_problem problem;
            attn_problem_init(&problem);
            problem.seed = 31;
            problem.kind = ATTN_CROSS;
            problem.num_qo_heads = 6;
            problem.num_kv_heads = 3;
            problem.head_dim = 46;
            problem.dtype = (mstar_dtype)dtype;
            attn_problem_add(&problem, 16, 33);
            attn_problem_add(&problem, 1, 70);
            for (int i = 0; i < 4; i++) {
                problem.gaps = i % 2 == 1;
                problem.kv_layout = i / 2 == 1 ? MSTAR_KV_HND : MSTAR_KV_NHD;
                attn_data_make(&problem, &data[i]);
                attn_problem_run(&problem, isas.device[isa], NULL, &data[i]);
                assert_true(attn_same_bits(&data[0].out.tensor, 0, &data[i].out.tensor, 0, 17));
                assert_true(attn_same_bits(&data[0].lse.tensor, 0, &data[i].lse.tensor, 0, 17));
            }
            for (int i = 0; i < 4; i++)
                attn_data_free(&data[i]);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_problems),
        cmocka_unit_test(every_head_dim),
        cmocka_unit_test(every_group_ratio),
        cmocka_unit_test(tile_edges),
        cmocka_unit_test(one_huge_among_many_tiny),
        cmocka_unit_test(fused_projection_slices),
        cmocka_unit_test(strides_do_not_change_bits),
    };
    level_choose(argc, argv);
    if (argc > 1 && !level_is_card())
        only_seed = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
