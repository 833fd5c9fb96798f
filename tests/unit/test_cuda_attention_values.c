/*
 * test_cuda_attention_values.c - numbers of attention on a GPU where values are special: scores too
 * large for the cheap formula, or at the ends of f32, scales next to 0, non-finite v; each row
 * right, and the same bits in any company. With the same arguments as test_cuda_attention.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_check.h"
#include "support_cuda_attn.h"
#if defined(MST_EMULATED_KERNELS)
#include "emulated_kernels.h"
#else
#define emulated_launch NULL
#endif

/* What large scores are made of: rows of one tile whose scores differ by powers of two. */
enum { LARGE_ROWS = 80, LARGE_KEYS = 150 };

static void large_problem(mstar_dtype dtype, int32_t dim, double scale, attn_problem *problem)
{
    attn_problem_init(problem);
    problem->kind = ATTN_PREFIXED;
    problem->dtype = dtype;
    problem->head_dim = dim;
    problem->sm_scale = scale;
    problem->return_lse = 1;
    assert_true(attn_problem_add(problem, LARGE_ROWS, LARGE_KEYS));
}

/* Row r of q times 2^exponents[r % 8]; where the entry is negative, the row's scores of the first
 * 64 keys are about -2^-entry instead, and ordinary after them. */
static void enlarge(attn_data *data, const int *exponents, int32_t dim)
{
    for (int64_t key = 0; key < LARGE_KEYS; key++)
        attn_set(&data->k.tensor, key, 0, 0, key < 64 ? -21.0F : 0.0F);
    for (int64_t row = 0; row < LARGE_ROWS; row++) {
        int exponent = exponents[row % 8];
        for (int32_t d = 0; d < dim && exponent > 0; d++)
            attn_set(&data->q.tensor, row, 0, d,
                     ldexpf(attn_get(&data->q.tensor, row, 0, d), exponent));
        attn_set(&data->q.tensor, row, 0, 0,
                 exponent < 0 ? ldexpf(1.0F + (float)row / 128.0F, -exponent - 4) : 0.0F);
    }
}

typedef struct large_case {
    mstar_dtype dtype;
    double scale;
    int exponents[8]; /* 0: an ordinary row; the scale comes on top */
} large_case;

static const large_case large_cases[] = {
    {MSTAR_DTYPE_BF16, 0.125, {0, 10, 12, 14, 16, 0, -12, -30}},
    {MSTAR_DTYPE_BF16, 0.125, {0, 24, 30, 40, 60, 0, -60, -100}},
    {MSTAR_DTYPE_BF16, -0.125, {0, 80, 100, 120, 1, 0, 3, 118}},
    {MSTAR_DTYPE_F16, 0.125, {0, 8, 10, 12, 13, 0, -12, -18}},
    {MSTAR_DTYPE_F16, 0x1p20, {0, 1, 4, 8, 13, 0, -4, -15}},
    {MSTAR_DTYPE_F16, 0x1p90, {0, 1, 4, 8, 13, 0, -4, -15}},
};
enum { NUM_LARGE = sizeof large_cases / sizeof large_cases[0] };

/* Scores from 2^7 to 2^120, ordinary ones beside them in a tile: the right numbers, and each row
 * the bits it has when the other kind of row is replaced, whether rows are copied by 16 bytes or by
 * elements. */
static void large_scores(void **state)
{
    (void)state;
    const int32_t dims[] = {64, 80, 128, 256};
    int64_t bad = 0;
    for (size_t n = 0; n < (size_t)NUM_LARGE * 4; n++) {
        const large_case *now = &large_cases[n % NUM_LARGE];
        int32_t dim = dims[n / NUM_LARGE];
        attn_problem problem;
        attn_data data, part;
        attn_reference reference;
        large_problem(now->dtype, dim, now->scale, &problem);
        attn_data_make(&problem, &data);
        enlarge(&data, now->exponents, dim);
        attn_reference_make(&problem, &data, &reference);
        gpu.aligned = true;
        cuda_attn_run_problem(&problem, NULL, &data);
        bad += !attn_reference_check(&problem, &data, &reference, "sm80");
        attn_reference_free(&reference);
        for (int kind = 0; kind < 3; kind++) {
            attn_data_make(&problem, &part);
            enlarge(&part, now->exponents, dim);
            for (int64_t row = 0; row < LARGE_ROWS; row++) /* 2: all rows stay */
                if ((now->exponents[row % 8] != 0) == (kind == 0))
                    attn_copy_rows(&part.q.tensor, row, &data.q.tensor, kind == 2 ? row : kind, 1);
            gpu.aligned = kind != 2;
            cuda_attn_run_problem(&problem, NULL, &part);
            for (int64_t row = 0; row < LARGE_ROWS; row++)
                if (kind == 2 || (now->exponents[row % 8] != 0) != (kind == 0))
                    bad += !attn_same_bits(&part.out.tensor, row, &data.out.tensor, row, 1);
            attn_data_free(&part);
        }
        attn_data_free(&data);
    }
    assert_int_equal(bad, 0);
}

/* One column of q and k makes the scores of one head; the other columns are 0. */
static void one_column(const attn_problem *problem, attn_data *data, float q)
{
    attn_data_make(problem, data);
    attn_fill_rows(&data->q.tensor, 0, 0, problem->q_offsets[1], 0.0F);
    attn_fill_rows(&data->k.tensor, 0, 0, problem->kv_offsets[1], 0.0F);
    for (int64_t row = 0; row < problem->q_offsets[1]; row++)
        attn_set(&data->q.tensor, row, 0, 0, q);
}

static const struct {
    mstar_dtype dtype;
    const char *backend, *bounds;
} ways[] = {{MSTAR_DTYPE_BF16, NULL, "sm80"},
            {MSTAR_DTYPE_BF16, "reference", "reference"},
            {MSTAR_DTYPE_F32, NULL, "reference"}};

/* Equal scores as large as f32 and bf16 hold them: the mean of v, and a finite lse. */
static void scores_at_the_ends(void **state)
{
    (void)state;
    static const float scores[] = {0x1.fep127F, -0x1.fep127F, 0x1.8p127F, -0x1.8p127F,
                                   0x1p127F,    0x1p-127F,    FLT_MAX,    -FLT_MAX};
    int64_t bad = 0;
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        for (size_t i = 0; i < (ways[w].dtype == MSTAR_DTYPE_F32 ? 8 : 6); i++) {
            attn_problem problem;
            attn_data data;
            large_problem(ways[w].dtype, 64, 1.0, &problem);
            one_column(&problem, &data, 1.0F);
            for (int64_t key = 0; key < LARGE_KEYS; key++)
                attn_set(&data.k.tensor, key, 0, 0, scores[i]);
            cuda_attn_run_problem(&problem, ways[w].backend, &data);
            for (int64_t row = 0; row < LARGE_ROWS; row++) {
                double lse = (double)scores[i] + log(LARGE_KEYS);
                double got = (double)attn_get(&data.lse.tensor, row, 0, 0);
                bad += !isfinite(got) || !check_near(got, lse, check_gamma(8) * (fabs(lse) + 8.0));
                for (int32_t d = 0; d < 64; d++) {
                    double mean = 0.0, magnitude = 0.0;
                    for (int64_t key = 0; key < LARGE_KEYS; key++) {
                        double v = (double)attn_get(&data.v.tensor, key, 0, d);
                        mean += v / LARGE_KEYS;
                        magnitude += fabs(v) / LARGE_KEYS;
                    }
                    bad += !check_near((double)attn_get(&data.out.tensor, row, 0, d), mean,
                                       check_gamma(2 * LARGE_KEYS) * magnitude +
                                           check_rounding(ways[w].dtype, mean));
                }
            }
            attn_data_free(&data);
        }
    }
    assert_int_equal(bad, 0);
}

/* Scales next to 0 and none over keys whose dots with q lie 2^110 apart, and further than f32
 * reaches: all weights are the same, or what the scale makes of them; also between parts of keys.
 */
static void scales_next_to_zero(void **state)
{
    (void)state;
    static const double scales[] = {0.0, 1e-38, -1e-38, 0x1p-120};
    static const int exponents[] = {55, 64};
    static const int64_t keys[] = {LARGE_KEYS, 2048};
    int64_t bad = 0;
    for (size_t n = 0; n < 16 * sizeof ways / sizeof ways[0]; n++) {
        size_t w = n / 16;
        int64_t lk = keys[n / 8 % 2];
        attn_problem problem;
        attn_data data;
        attn_reference reference;
        attn_problem_init(&problem);
        problem.kind = ATTN_PREFIXED;
        problem.dtype = ways[w].dtype;
        problem.head_dim = 64;
        problem.sm_scale = scales[n % 4];
        problem.return_lse = 1;
        assert_true(attn_problem_add(&problem, 3, lk));
        int exponent = exponents[n / 4 % 2];
        one_column(&problem, &data, ldexpf(1.0F, exponent));
        for (int64_t key = 0; key < lk; key++)
            attn_set(&data.k.tensor, key, 0, 0, ldexpf(key < lk / 2 ? -1.0F : 1.0F, exponent - 1));
        attn_reference_make(&problem, &data, &reference);
        cuda_attn_run_problem(&problem, ways[w].backend, &data);
        bad += !attn_reference_check(&problem, &data, &reference, ways[w].bounds);
        attn_reference_free(&reference);
        attn_data_free(&data);
    }
    assert_int_equal(bad, 0);
}

/* Row r of a causal segment sees key j, and so what v holds there. */
static bool sees(const attn_problem *problem, int64_t row, int64_t key)
{
    int64_t lq = problem->q_offsets[1], lk = problem->kv_offsets[1];
    return key <= lk - lq + row;
}

/* A NaN and an infinity in v: rows that see their keys have them, in their columns, and no other
 * element is touched, though both keys lie in blocks that are partly masked. */
static void non_finite_v_stays_where_it_is_seen(void **state)
{
    (void)state;
    const int32_t dims[] = {64, 80, 128, 256};
    gpu.aligned = true;
    for (size_t d = 0; d < 2 * sizeof dims / sizeof dims[0]; d++) {
        attn_problem problem;
        attn_data data;
        attn_reference reference;
        attn_problem_init(&problem);
        problem.kind = ATTN_PREFIXED;
        problem.causal = 1;
        problem.dtype = d % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16;
        problem.head_dim = dims[d / 2];
        problem.num_qo_heads = 2;
        assert_true(attn_problem_add(&problem, 100, 150));
        attn_data_make(&problem, &data);
        attn_reference_make(&problem, &data, &reference);
        attn_set(&data.v.tensor, 90, 0, 3, NAN);
        attn_set(&data.v.tensor, 139, 0, 60, INFINITY);
        cuda_attn_run_problem(&problem, NULL, &data);
        for (int64_t row = 0; row < 100; row++) {
            for (int64_t h = 0; h < 2; h++) {
                const double *right = reference.out + (row * 2 + h) * problem.head_dim;
                if (sees(&problem, row, 90)) {
                    assert_true(isnan(attn_get(&data.out.tensor, row, h, 3)));
                    attn_set(&data.out.tensor, row, h, 3, (float)right[3]);
                }
                if (sees(&problem, row, 139)) {
                    assert_true(attn_get(&data.out.tensor, row, h, 60) == INFINITY);
                    attn_set(&data.out.tensor, row, h, 60, (float)right[60]);
                }
            }
        }
        assert_true(attn_reference_check(&problem, &data, &reference, "sm80"));
        attn_reference_free(&reference);
        attn_data_free(&data);
    }
}

/* A NaN that only the last row sees makes a tile's pass the slow one; the other rows keep their
 * bits, an infinity under a weight of 0 (so a NaN) included. */
static void non_finite_v_moves_no_other_row(void **state)
{
    (void)state;
    const int32_t dims[] = {64, 80, 128, 256};
    for (size_t d = 0; d < 2 * sizeof dims / sizeof dims[0]; d++) {
        attn_problem problem;
        attn_data data, with;
        large_problem(d % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16, dims[d / 2], 0.125,
                      &problem);
        problem.causal = 1;
        attn_data *both[] = {&data, &with};
        gpu.aligned = true;
        for (int i = 0; i < 2; i++) {
            attn_data_make(&problem, both[i]);
            for (int64_t row = 0; row < LARGE_ROWS; row++)
                attn_set(&both[i]->q.tensor, row, 0, 1, 8.0F);
            attn_set(&both[i]->k.tensor, 10, 0, 1, -2000.0F);
            attn_set(&both[i]->v.tensor, 10, 0, 5, INFINITY);
            if (i == 1)
                attn_set(&both[i]->v.tensor, LARGE_KEYS - 1, 0, 3, NAN);
            cuda_attn_run_problem(&problem, NULL, both[i]);
        }
        for (int64_t row = 0; row < LARGE_ROWS; row++) {
            assert_true(isnan(attn_get(&data.out.tensor, row, 0, 5)));
            assert_true(isnan(attn_get(&with.out.tensor, row, 0, 5)));
            attn_set(&data.out.tensor, row, 0, 5, 0.0F); /* NaNs have many bits */
            attn_set(&with.out.tensor, row, 0, 5, 0.0F);
        }
        assert_true(isnan(attn_get(&with.out.tensor, LARGE_ROWS - 1, 0, 3)));
        assert_true(attn_same_bits(&with.out.tensor, 0, &data.out.tensor, 0, LARGE_ROWS - 1));
        attn_data_free(&data);
        attn_data_free(&with);
    }
}

/* Blocks take one tile after another: one whose rows are all NaN leaves nothing to the next, not in
 * the padding of a head dim of 8 past a multiple of 16 either. */
static void a_tile_of_nan_leaves_nothing_behind(void **state)
{
    (void)state;
    const int32_t dims[] = {8, 24, 72, 104, 128, 200};
    const int64_t segments = gpu.card != NULL ? 100 : 6;
    gpu.aligned = true;
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
        attn_problem problem;
        attn_data clean, spoilt;
        attn_problem_init(&problem);
        problem.dtype = d % 2 == 0 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F16;
        problem.head_dim = dims[d];
        problem.num_qo_heads = problem.num_kv_heads = gpu.card != NULL ? 16 : 4;
        for (int64_t i = 0; i < segments; i++)
            assert_true(attn_problem_add(&problem, 70, 70));
        attn_data *both[] = {&clean, &spoilt};
        for (int i = 0; i < 2; i++) {
            attn_data_make(&problem, both[i]);
            for (int64_t segment = 0; i == 1 && segment < segments; segment += 2)
                for (int32_t h = 0; h < problem.num_kv_heads; h++)
                    attn_set(&spoilt.k.tensor, 70 * segment, h, 1, NAN);
            cuda_attn_run_problem(&problem, NULL, both[i]);
        }
        assert_true(isnan(attn_get(&spoilt.out.tensor, 3, 0, 0)));
        for (int64_t segment = 1; segment < segments; segment += 2)
            assert_true(attn_same_bits(&spoilt.out.tensor, 70 * segment, &clean.out.tensor,
                                       70 * segment, 70));
        attn_data_free(&clean);
        attn_data_free(&spoilt);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(large_scores, cuda_attn_set_up, cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(scores_at_the_ends, cuda_attn_set_up, cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(scales_next_to_zero, cuda_attn_set_up, cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(non_finite_v_stays_where_it_is_seen, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(non_finite_v_moves_no_other_row, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(a_tile_of_nan_leaves_nothing_behind, cuda_attn_set_up,
                                        cuda_attn_tear_down),
    };
    cuda_attn_arguments(argc, argv, emulated_launch);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
