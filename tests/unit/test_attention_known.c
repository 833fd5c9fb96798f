/*
 * test_attention_known.c - attention whose answer is known without a reference: one visible key, no
 * visible key, scores far from 0, NaN that is seen, scales, windows. Most of them went wrong in
 * some library once.
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

static attn_isas isas;

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

/* Sets q, k and v, runs on one level. Data of one compact problem. */
typedef struct known_case {
    attn_problem problem;
    attn_data data;
} known_case;

static void known_make(known_case *known, int32_t qo_heads, int32_t kv_heads, int32_t dim,
                       mstar_dtype dtype, attn_kind kind)
{
    attn_problem_init(&known->problem);
    known->problem.seed = 77;
    known->problem.kind = kind;
    known->problem.num_qo_heads = qo_heads;
    known->problem.num_kv_heads = kv_heads;
    known->problem.head_dim = dim;
    known->problem.dtype = dtype;
}

static void known_fill(known_case *known, float q, float k, float v)
{
    attn_fill_rows(&known->data.q.tensor, 0, 0, attn_problem_tokens(&known->problem), q);
    attn_fill_rows(&known->data.k.tensor, 0, 0, attn_problem_kv_tokens(&known->problem), k);
    attn_fill_rows(&known->data.v.tensor, 0, 0, attn_problem_kv_tokens(&known->problem), v);
}

/* out of every dim of a row and head, and its lse. */
static void expect_row(const known_case *known, int64_t row, int64_t head, float out, double lse,
                       double lse_bound)
{
    for (int64_t d = 0; d < known->problem.head_dim; d++) {
        float got = attn_get(&known->data.out.tensor, row, head, d);
        if (!(got >= out && got <= out))
            fail_msg("out[%d, %d, %d] is %.9g, want %.9g", (int)row, (int)head, (int)d, (double)got,
                     (double)out);
    }
    double got = (double)attn_get(&known->data.lse.tensor, row, head, 0);
    if (isinf(lse) ? !(got <= lse) : !(fabs(got - lse) <= lse_bound))
        fail_msg("lse[%d, %d] is %.9g, want %.9g +- %.3g", (int)row, (int)head, got, lse,
                 lse_bound);
}

/* A row that sees one key is that key's value, exactly: the softmax of one score is 1. */
static void one_visible_key_is_its_value(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        known_case known;
        known_make(&known, 21, 7, 120, MSTAR_DTYPE_BF16, ATTN_CROSS);
        attn_problem_add(&known.problem, 0, 0);
        attn_problem_add(&known.problem, 0, 0);
        attn_problem_add(&known.problem, 0, 0);
        attn_problem_add(&known.problem, 1, 1);
        attn_data_make(&known.problem, &known.data);
        attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
        for (int64_t head = 0; head < 21; head++)
            for (int64_t d = 0; d < 120; d++) {
                float want = attn_get(&known.data.v.tensor, 0, head / 3, d);
                float got = attn_get(&known.data.out.tensor, 0, head, d);
                assert_true(got >= want && got <= want);
            }
        attn_data_free(&known.data);
    }
}

/* Scores far below any sentinel; log-sum-exp natural and not clamped. */
static void very_negative_scores(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        known_case known;
        known_make(&known, 32, 8, 128, MSTAR_DTYPE_BF16, ATTN_CROSS);
        attn_problem_add(&known.problem, 1, 1);
        attn_problem_add(&known.problem, 1, 5);
        attn_data_make(&known.problem, &known.data);
        known_fill(&known, 64.0F, -64.0F, 1.0F);
        attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
        double score = -64.0 * 64.0 * 128.0 / sqrt(128.0);
        for (int64_t head = 0; head < 32; head++) {
            expect_row(&known, 0, head, 1.0F, score, 0.01);
            expect_row(&known, 1, head, 1.0F, score + log(5.0), 0.01);
        }
        attn_data_free(&known.data);
    }
}

/* One key leads by hundreds over keys whose raw scores are -4e4 .. -1e6: the others weigh 0. */
static void a_leading_key_wins_at_any_offset(void **state)
{
    static const float offsets[] = {-40000.0F, -60000.0F, -100000.0F, -1000000.0F, 1000000.0F};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
            known_case known;
            known_make(&known, 16, 1, 128, MSTAR_DTYPE_BF16, ATTN_CROSS);
            attn_problem_add(&known.problem, 1, 64);
            attn_data_make(&known.problem, &known.data);
            attn_fill_rows(&known.data.q.tensor, 0, 0, 1, 1.0F);
            attn_fill_rows(&known.data.k.tensor, 0, 0, 64, offsets[i] / 128.0F);
            /* two bf16 steps and 5000 above */
            attn_fill_rows(&known.data.k.tensor, 0, 0, 1,
                           (offsets[i] + 5000.0F + 0.02F * fabsf(offsets[i])) / 128.0F);
            attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
            for (int64_t head = 0; head < 16; head++)
                for (int64_t d = 0; d < 128; d++) {
                    float want = attn_get(&known.data.v.tensor, 0, 0, d);
                    float got = attn_get(&known.data.out.tensor, 0, head, d);
                    assert_true(got >= want && got <= want);
                }
            attn_data_free(&known.data);
        }
    }
}

/* More queries than keys under causal: alignment to the end leaves the first rows without keys. */
static void rows_without_keys_are_zero(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        known_case known;
        known_make(&known, 32, 8, 128, MSTAR_DTYPE_BF16, ATTN_PREFIXED);
        known.problem.causal = 1;
        attn_problem_add(&known.problem, 4, 1);
        attn_problem_add(&known.problem, 76, 1);
        attn_problem_add(&known.problem, 3, 0);
        attn_problem_add(&known.problem, 5, 2);
        attn_data_make(&known.problem, &known.data);
        known_fill(&known, 0.0F, 0.0F, 1.0F);
        attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
        for (int64_t row = 0; row < attn_problem_tokens(&known.problem); row++) {
            double lse = -(double)INFINITY;
            if (row == 3 || row == 79 || row == 86)
                lse = 0.0;
            if (row == 87)
                lse = log(2.0);
            for (int64_t head = 0; head < 32; head++)
                expect_row(&known, row, head, isinf(lse) ? 0.0F : 1.0F, lse, 1e-6);
        }
        attn_data_free(&known.data);
    }
}

/* The zeros are +0 in bits, whatever q holds. */
static void nothing_to_see_is_positive_zero(void **state)
{
    static const float fills[] = {-1.0F, NAN, INFINITY, -INFINITY};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (size_t i = 0; i < sizeof fills / sizeof fills[0]; i++)
            for (int dtype = 0; dtype < 3; dtype++) {
                known_case known;
                known_make(&known, 2, 1, 17, (mstar_dtype)dtype, ATTN_PREFIXED);
                known.problem.causal = 1;
                attn_problem_add(&known.problem, 3, 0);
                attn_problem_add(&known.problem, 3, 1);
                attn_data_make(&known.problem, &known.data);
                known_fill(&known, fills[i], fills[i], fills[i]);
                attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
                for (int64_t row = 0; row < 5; row++)
                    for (int64_t head = 0; head < 2; head++) {
                        expect_row(&known, row, head, 0.0F, -(double)INFINITY, 0.0);
                        for (int64_t d = 0; d < 17; d++)
                            assert_false(signbit(attn_get(&known.data.out.tensor, row, head, d)));
                    }
                attn_data_free(&known.data);
            }
}

/* A NaN that a row does see is an upstream fault and is not hidden. */
static void visible_nan_shows(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (int where = 0; where < 3; where++) {
            known_case known;
            known_make(&known, 4, 4, 8, MSTAR_DTYPE_F32, ATTN_SELF);
            attn_problem_add(&known.problem, 16, 16);
            attn_data_make(&known.problem, &known.data);
            const mstar_tensor *tensors[] = {&known.data.q.tensor, &known.data.k.tensor,
                                             &known.data.v.tensor};
            attn_fill_rows(tensors[where], 0, 0, where == 0 ? 16 : 1, NAN);
            attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
            for (int64_t row = 0; row < 16; row++)
                for (int64_t head = 0; head < 4; head++) {
                    for (int64_t d = 0; d < 8; d++)
                        assert_true(isnan(attn_get(&known.data.out.tensor, row, head, d)));
                    if (where < 2)
                        assert_true(isnan(attn_get(&known.data.lse.tensor, row, head, 0)));
                }
            attn_data_free(&known.data);
        }
}

static void narrow_window_over_many_blocks(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        known_case known;
        known_make(&known, 1, 1, 4, MSTAR_DTYPE_F32, ATTN_SELF);
        known.problem.causal = 1;
        known.problem.window_left = 9;
        attn_problem_add(&known.problem, 640, 640);
        attn_data_make(&known.problem, &known.data);
        known_fill(&known, 1.0F, 1.0F, 1.0F);
        attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
        for (int64_t row = 0; row < 640; row++)
            expect_row(&known, row, 0, 1.0F,
                       2.0 + log((double)(row < 9 ? row + 1 : 10)), /* scale 1/2, score 4 */
                       1e-6);
        attn_data_free(&known.data);
    }
}

/* ---- the scale ------------------------------------------------------------------------------- */

static void natural_lse_and_given_scales(void **state)
{
    static const double scales[] = {1.0, 0.0, 0.125, -2.0};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
            known_case known;
            known_make(&known, 1, 1, 64, MSTAR_DTYPE_F32, ATTN_CROSS);
            known.problem.sm_scale = scales[i];
            attn_problem_add(&known.problem, 1, 1);
            attn_problem_add(&known.problem, 1, 3);
            attn_data_make(&known.problem, &known.data);
            known_fill(&known, 0.0F, 0.0F, 1.0F);
            for (int64_t row = 0; row < 4; row++) {
                if (row < 2)
                    attn_set(&known.data.q.tensor, row, 0, 0, 1.0F);
                attn_set(&known.data.k.tensor, row, 0, 0, 1.0F);
            }
            attn_problem_run(&known.problem, isas.device[isa], NULL, &known.data);
            expect_row(&known, 0, 0, 1.0F, scales[i], 1e-6);
            expect_row(&known, 1, 0, 1.0F, scales[i] + log(3.0), 1e-6);
            attn_data_free(&known.data);
        }
}

/* The derived scale is that of the true head dim, not of the padded one. */
static void derived_scale_is_of_the_true_dim(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        attn_problem problem;
        attn_data derived;
        attn_data given;
        attn_problem_init(&problem);
        problem.seed = 72;
        problem.num_qo_heads = 4;
        problem.num_kv_heads = 4;
        problem.head_dim = 72;
        problem.dtype = MSTAR_DTYPE_BF16;
        attn_problem_add(&problem, 16, 16);
        attn_data_make(&problem, &derived);
        attn_problem_run(&problem, isas.device[isa], NULL, &derived);
        problem.sm_scale = 1.0 / sqrt(72.0);
        attn_data_make(&problem, &given);
        attn_problem_run(&problem, isas.device[isa], NULL, &given);
        assert_true(attn_same_bits(&derived.out.tensor, 0, &given.out.tensor, 0, 16));
        assert_true(attn_same_bits(&derived.lse.tensor, 0, &given.lse.tensor, 0, 16));
        attn_data_free(&derived);
        attn_data_free(&given);
    }
}

/* A left window of S - 1 with right window 0 is plain causal. */
static void window_that_is_causal(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        attn_problem problem;
        attn_data causal;
        attn_data window;
        attn_problem_init(&problem);
        problem.seed = 257;
        problem.num_qo_heads = 2;
        problem.head_dim = 16;
        problem.dtype = MSTAR_DTYPE_F16;
        attn_problem_add(&problem, 257, 257);
        attn_data_make(&problem, &causal);
        attn_data_make(&problem, &window);
        problem.causal = 1;
        attn_problem_run(&problem, isas.device[isa], NULL, &causal);
        problem.causal = 0;
        problem.window_left = 256;
        problem.window_right = 0;
        attn_problem_run(&problem, isas.device[isa], NULL, &window);
        assert_true(attn_same_bits(&causal.out.tensor, 0, &window.out.tensor, 0, 257));
        assert_true(attn_same_bits(&causal.lse.tensor, 0, &window.lse.tensor, 0, 257));
        attn_data_free(&causal);
        attn_data_free(&window);
    }
}

/* backend "reference" is the scalar body on every device. */
static void reference_backend_is_the_scalar_body(void **state)
{
    if (level_is_card()) /* which has neither */
        skip();
    attn_problem problem;
    attn_data scalar;
    attn_data asked;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    (void)state;
    attn_problem_init(&problem);
    problem.seed = 5;
    problem.num_qo_heads = 6;
    problem.num_kv_heads = 2;
    problem.head_dim = 40;
    attn_problem_add(&problem, 90, 90);
    attn_data_make(&problem, &scalar);
    attn_data_make(&problem, &asked);
    assert_string_equal(isas.name[0], "scalar");
    attn_problem_run(&problem, isas.device[0], NULL, &scalar);
    attn_problem_desc(&problem, &desc);
    desc.backend = "reference";
    for (int32_t isa = 0; isa < isas.count; isa++) {
        attn_data_reset_outputs(&asked);
        assert_int_equal(attn_create(isas.device[isa], ATTN_SELF, &desc, NULL, 0, &wrapper),
                         MSTAR_OK);
        assert_int_equal(attn_query(&wrapper, &info), MSTAR_OK);
        assert_non_null(strstr(info.kernel, "scalar"));
        assert_int_equal(attn_plan(&wrapper, NULL, problem.q_offsets, 1, NULL, 0, 0), MSTAR_OK);
        assert_int_equal(attn_run(&wrapper, NULL, &asked.q.tensor, &asked.k.tensor, &asked.v.tensor,
                                  &asked.out.tensor, asked.lse_tensor),
                         MSTAR_OK);
        assert_true(attn_same_bits(&scalar.out.tensor, 0, &asked.out.tensor, 0, 90));
        attn_destroy(&wrapper);
    }
    attn_data_free(&scalar);
    attn_data_free(&asked);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_visible_key_is_its_value),
        cmocka_unit_test(very_negative_scores),
        cmocka_unit_test(a_leading_key_wins_at_any_offset),
        cmocka_unit_test(rows_without_keys_are_zero),
        cmocka_unit_test(nothing_to_see_is_positive_zero),
        cmocka_unit_test(visible_nan_shows),
        cmocka_unit_test(narrow_window_over_many_blocks),
        cmocka_unit_test(natural_lse_and_given_scales),
        cmocka_unit_test(derived_scale_is_of_the_true_dim),
        cmocka_unit_test(window_that_is_causal),
        cmocka_unit_test(reference_backend_is_the_scalar_body),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
