/*
 * test_faults_scores.c - cases K03 and K04 of the known faults, and BR-025: scores of any size,
 * NaN, causal and windows.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_faults.h"

/* The numbers of the reference in every way, and the rows that the case lists. */
static void match(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "match_ref");
    fault_problem(c, &problem);
    fault_match(c, &problem, NULL);
}

static void look_at_one_key(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    (void)c;
    fault_row_is_v(problem, data, 0, 0);
}

/*
 * There is no bias here; scores take its values. Row 0 scores -FLT_MAX for every key, rows 1 and 2
 * score 1. As finite numbers they are equal, so every row is the mean of v. The other end and
 * numbers near both are twins.
 */
static void scores_at_the_ends_of_f32(void **state)
{
    static const float scores[] = {-FLT_MAX,   FLT_MAX,   -0x1.8p127F,
                                   0x1.8p127F, -0x1p127F, -0x1p-127F};
    fault_case *c = *state;
    fault_outcome(c, "finite");
    fault_says(c, "bias", "row 0: -3.4028235e38 for all keys; rows 1,2: +1.0");
    for (size_t i = 0; i < sizeof scores / sizeof scores[0]; i++)
        for (int32_t isa = 0; isa < fault_isas.count; isa++) {
            attn_problem problem;
            attn_data data;
            attn_problem_init(&problem);
            fault_says(c, "dtype", "f32");
            problem.kind = ATTN_PREFIXED;
            problem.num_qo_heads = problem.num_kv_heads = (int32_t)fault_integer(c, "h");
            problem.head_dim = (int32_t)fault_integer(c, "d");
            problem.sm_scale = 1.0;
            attn_problem_add(&problem, fault_integer(c, "q"), fault_integer(c, "kv"));
            attn_data_make(&problem, &data);
            attn_fill_rows(&data.q.tensor, 0, 0, 3, 0.0F);
            attn_fill_rows(&data.k.tensor, 0, 0, 3, 0.0F);
            for (int64_t r = 0; r < 3; r++) {
                attn_set(&data.q.tensor, r, 0, r == 0 ? 0 : 1, 1.0F);
                attn_set(&data.k.tensor, r, 0, 0, scores[i]);
                attn_set(&data.k.tensor, r, 0, 1, 1.0F);
            }
            attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
            for (int64_t r = 0; r < 3; r++) {
                double score = r == 0 ? (double)scores[i] : 1.0;
                for (int64_t d = 0; d < problem.head_dim; d++) {
                    double mean = 0.0;
                    double magnitude = 0.0;
                    for (int64_t j = 0; j < 3; j++) {
                        mean += (double)attn_get(&data.v.tensor, j, 0, d) / 3.0;
                        magnitude += fabs((double)attn_get(&data.v.tensor, j, 0, d)) / 3.0;
                    }
                    double got = (double)attn_get(&data.out.tensor, r, 0, d);
                    if (!check_near(got, mean, check_gamma(8) * magnitude))
                        fail_msg("%s, score %g: %g instead of %g", fault_isas.name[isa], score, got,
                                 mean);
                }
                double lse = score + log(3.0);
                double got = (double)attn_get(&data.lse.tensor, r, 0, 0);
                if (!isfinite(got) || !check_near(got, lse, check_gamma(8) * (fabs(score) + 2.0)))
                    fail_msg("%s, score %g: lse %g", fault_isas.name[isa], score, got);
            }
            attn_data_free(&data);
        }
}

/* ---- K03: scores of any size ----------------------------------------------------------------- */

static float leading_score;

static void fill_leading(fault_case *c, const attn_problem *problem, attn_data *data)
{
    (void)c;
    attn_fill_rows(&data->q.tensor, 0, 0, 1, 1.0F);
    fault_fill_kv_rows(problem, &data->k.tensor, 0, 64, leading_score / 128.0F);
    fault_fill_kv_rows(problem, &data->k.tensor, 0, 1, (leading_score + 5000.0F) / 128.0F);
}

static void leading_key(void **state)
{
    static const float levels[] = {-40000.0F, -60000.0F, -100000.0F, -1000000.0F};
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_leading, .look = look_at_one_key};
    attn_problem problem;
    fault_says(
        c, "values",
        "q=1; k[j]=L/128, k[0]=(L+5000)/128; v=randn; L in {-40000,-60000,-100000,-1000000}");
    fault_problem(c, &problem);
    for (size_t i = 0; i < 4; i++) {
        leading_score = levels[i];
        fault_match(c, &problem, &ways);
    }
}

static void fill_far_below(fault_case *c, const attn_problem *problem, attn_data *data)
{
    (void)c;
    attn_fill_rows(&data->q.tensor, 0, 0, 1, 64.0F);
    fault_fill_kv_rows(problem, &data->k.tensor, 0, attn_problem_kv_tokens(problem), -64.0F);
}

static void fill_far_below_one(fault_case *c, const attn_problem *problem, attn_data *data)
{
    fill_far_below(c, problem, data);
    fault_fill_kv_rows(problem, &data->v.tensor, 0, 1, 1.0F);
}

/* The case's figures are rounded to 2 and 3 places. */
static void look_far_below_one(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    double nat = fault_want_real(c, "lse_nat");
    assert_true(fabs(nat / log(2.0) - fault_want_real(c, "lse_base2")) < 0.01);
    assert_true(fabs(nat + 524288.0 / sqrt(128.0)) < 0.01);
    fault_row_is(problem, data, 0, 1.0F, -524288.0 / sqrt(128.0));
}

static void one_score_far_below(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_far_below_one, .look = look_far_below_one};
    attn_problem problem;
    fault_says(c, "values", "q=64, k=-64, v=1 (raw score -524288)");
    fault_problem(c, &problem);
    fault_match(c, &problem, &ways);
}

static void look_far_below_five(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    double want = -524288.0 / sqrt(128.0) + log(5.0);
    assert_true(fabs(want - fault_want_real(c, "lse_nat5")) < 0.002);
    for (int64_t head = 0; head < problem->num_qo_heads; head++) {
        double lse = (double)attn_get(&data->lse.tensor, 0, head, 0);
        assert_true(check_near(lse, want, check_gamma(128 + 16) * fabs(want)));
    }
}

/* The mean of five rows: what the reference has too. */
static void five_scores_far_below(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_far_below, .look = look_far_below_five};
    attn_problem problem;
    fault_says(c, "values", "q=64, k=-64 for all 5 keys, v=randn");
    fault_problem(c, &problem);
    fault_match(c, &problem, &ways);
}

/*
 * Windows that leave blocks, or a worker's whole share, without a visible key. On the CPU keys are
 * not split: what the number of splits would change here is the number of threads, 1 to 8.
 */
static void slices_without_visible_keys(void **state)
{
    fault_case *c = *state;
    const json_t *sets = fault_get(c, "lens_sets");
    const json_t *extra = fault_get(c, "extra");
    attn_problem problem;
    int64_t lens[8];
    fault_problem(c, &problem);
    for (size_t i = 0; i < json_array_size(sets); i++) {
        int64_t count = fault_json_list(json_array_get(sets, i), lens, 8);
        fault_lengths(&problem, lens, lens, count);
        fault_match(c, &problem, NULL);
    }
    for (size_t i = 0; i < json_array_size(extra); i++) {
        const json_t *one = json_array_get(extra, i);
        const json_t *left = json_object_get(one, "window_left");
        int64_t kv[8];
        int64_t count = fault_json_list(json_object_get(one, "q_lens"), lens, 8);
        fault_json_list(json_object_get(one, "kv_lens"), kv, 8);
        problem.window_left = left != NULL ? json_integer_value(left) : -1;
        fault_lengths(&problem, lens, kv, count);
        fault_match(c, &problem, NULL);
        for (int32_t isa = 0; isa < fault_isas.count; isa++) {
            attn_data one_thread;
            attn_data data;
            attn_data_make(&problem, &one_thread);
            attn_data_make(&problem, &data);
            for (int32_t threads = 1; threads <= 8; threads++) {
                mstar_device *device = attn_open(fault_isas.name[isa], threads, NULL);
                attn_problem_run(&problem, device, NULL, threads == 1 ? &one_thread : &data);
                if (threads > 1)
                    fault_same(&problem, &one_thread, 0, &data, 0, attn_problem_tokens(&problem));
                attn_close(device);
            }
            attn_data_free(&one_thread);
            attn_data_free(&data);
        }
    }
}

/* ---- f32 sums, not f16 */

static void fill_times_12(fault_case *c, const attn_problem *problem, attn_data *data)
{
    const attn_block *blocks[] = {&data->q, &data->k};
    (void)c;
    (void)problem;
    for (int i = 0; i < 2; i++)
        for (int64_t a = 0; a < blocks[i]->tensor.shape[0]; a++)
            for (int64_t b = 0; b < blocks[i]->tensor.shape[1]; b++)
                for (int64_t d = 0; d < blocks[i]->tensor.shape[2]; d++)
                    attn_set(&blocks[i]->tensor, a, b, d,
                             12.0F * attn_get(&blocks[i]->tensor, a, b, d));
}

/* A plain loop with f32 sums, of one element. */
static double plain_f32(const attn_problem *problem, const attn_data *data, int64_t row,
                        int64_t head, int64_t d)
{
    float score[64];
    float top = -INFINITY;
    float scale = (float)(1.0 / sqrt((double)problem->head_dim));
    for (int64_t j = 0; j <= row; j++) {
        float dot = 0.0F;
        for (int64_t i = 0; i < problem->head_dim; i++)
            dot += attn_get(&data->q.tensor, row, head, i) * attn_get(&data->k.tensor, j, head, i);
        score[j] = dot * scale;
        top = fmaxf(top, score[j]);
    }
    float sum = 0.0F;
    float out = 0.0F;
    for (int64_t j = 0; j <= row; j++) {
        float weight = expf(score[j] - top);
        sum += weight;
        out += weight * attn_get(&data->v.tensor, j, head, d);
    }
    uint16_t rounded = mst_f32_to_f16(out / sum);
    return (double)mst_load_element(&rounded, MSTAR_DTYPE_F16, 0);
}

/* The largest error is at most twice that of the plain loop. */
static void sums_are_f32(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_times_12};
    attn_problem problem;
    attn_data data;
    attn_reference reference;
    double plain = 0.0;
    fault_says(c, "values", "randn*12 (raw scores up to ~1e4), seed 3");
    fault_problem(c, &problem);
    assert_int_equal(problem.dtype, MSTAR_DTYPE_F16);
    problem.seed = 3;
    fault_match(c, &problem, &ways);
    attn_data_make(&problem, &data);
    fill_times_12(c, &problem, &data);
    attn_reference_make(&problem, &data, &reference);
    int64_t heads = problem.num_qo_heads;
    int64_t dim = problem.head_dim;
    for (int64_t e = 0; e < reference.elements; e++)
        plain = fmax(plain,
                     fabs(plain_f32(&problem, &data, e / (heads * dim), e / dim % heads, e % dim) -
                          reference.out[e]));
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        double worst = 0.0;
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
        for (int64_t e = 0; e < reference.elements; e++) {
            double got =
                (double)attn_get(&data.out.tensor, e / (heads * dim), e / dim % heads, e % dim);
            assert_true(isfinite(got));
            worst = fmax(worst, fabs(got - reference.out[e]));
        }
        if (!(worst <= 2.0 * plain))
            fail_msg("%s: error %g, a plain loop has %g", fault_isas.name[isa], worst, plain);
    }
    attn_reference_free(&reference);
    attn_data_free(&data);
}

/* A NaN that is seen is not hidden as if nothing were seen. */
static void nan_queries_give_nan(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "nan_out");
    fault_says(c, "values", "q = NaN, k,v = randn");
    fault_problem(c, &problem);
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int dtype = 0; dtype < 3; dtype++) {
            attn_data data;
            problem.dtype = (mstar_dtype)dtype;
            attn_data_make(&problem, &data);
            attn_fill_rows(&data.q.tensor, 0, 0, 16, NAN);
            attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
            for (int64_t e = 0; e < 16LL * problem.num_qo_heads * problem.head_dim; e++)
                assert_true(isnan(attn_get(&data.out.tensor, e / 32, e / 8 % 4, e % 8)));
            for (int64_t e = 0; e < 64; e++)
                assert_true(isnan(attn_get(&data.lse.tensor, e / 4, e % 4, 0)));
            attn_data_free(&data);
        }
}

/* ---- K04: causal and windows ----------------------------------------------------------------- */

static void same_as_causal(fault_case *c, attn_problem *problem, mstar_device *device)
{
    attn_data window;
    attn_data causal;
    int64_t rows = attn_problem_tokens(problem);
    (void)c;
    if (fault_work(problem) > 1e9)
        problem->values = ATTN_POOL;
    attn_data_make(problem, &window);
    attn_data_make(problem, &causal);
    attn_problem_run(problem, device, NULL, &window);
    attn_problem plain = *problem;
    plain.causal = 1;
    plain.window_left = -1;
    plain.window_right = -1;
    attn_problem_run(&plain, device, NULL, &causal);
    fault_same(problem, &window, 0, &causal, 0, rows);
    attn_data_free(&window);
    attn_data_free(&causal);
}

static void window_equals_causal(void **state)
{
    fault_case *c = *state;
    const json_t *small = fault_get(c, "small_variant");
    attn_problem problem;
    int64_t lens[2];
    fault_outcome(c, "equal_to");
    fault_want(c, "empty_rows");
    fault_problem(c, &problem);
    attn_problem little = problem;
    int64_t count = fault_json_list(json_object_get(small, "q_lens"), lens, 2);
    fault_lengths(&little, lens, lens, count);
    little.window_left = json_integer_value(json_object_get(small, "window_left"));
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        same_as_causal(c, &little, fault_isas.device[isa]);
    fault_match(c, &little, NULL);
    if (fault_large_runs())
        same_as_causal(c, &problem, fault_best());
}

/* A window of n keys, the row's own among them, is window_left = n - 1. */
static void window_counts_the_row_itself(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_problem(c, &problem);
    problem.window_left = fault_integer(c, "window_keys") - 1;
    fault_match(c, &problem, NULL);
}

static void look_at_first_rows(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    (void)c;
    fault_row_is_v(problem, data, 0, 0);
    fault_row_is_v(problem, data, 5, 5);
}

static void causal_is_not_dropped(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.look = look_at_first_rows};
    attn_problem problem;
    fault_problem(c, &problem);
    assert_true(problem.causal);
    fault_match(c, &problem, &ways);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-025", scores_at_the_ends_of_f32),
        FAULT("BR-026", leading_key),
        FAULT("BR-027", one_score_far_below),
        FAULT("BR-028", five_scores_far_below),
        FAULT("BR-029", slices_without_visible_keys),
        FAULT("BR-033", sums_are_f32),
        FAULT("BR-034", nan_queries_give_nan),
        FAULT("BR-036", match),
        FAULT("BR-037", match),
        FAULT("BR-038", window_equals_causal),
        FAULT("BR-039", window_counts_the_row_itself),
        FAULT("BR-041", causal_is_not_dropped),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
