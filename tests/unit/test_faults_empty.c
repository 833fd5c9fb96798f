/*
 * test_faults_masks.c - cases K01 to K04 of the known faults: empty segments, rows that see
 * nothing, scores of any size, causal and windows.
 */
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

/* ---- K01: empty segments --------------------------------------------------------------------- */

/* There is no length to promise: the planner takes the longest itself. */
static void longest_is_not_asked_for(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    assert_int_equal(fault_integer(c, "max_q"), 1);
    fault_problem(c, &problem);
    assert_int_equal(attn_problem_tokens(&problem), 2);
    fault_match(c, &problem, NULL);
}

static void look_at_one_key(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    (void)c;
    fault_row_is_v(problem, data, 0, 0);
}

static void one_key_is_its_value(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.look = look_at_one_key};
    attn_problem problem;
    fault_problem(c, &problem);
    fault_match(c, &problem, &ways);
}

/* The lengths of the report and of its small variant, causal and not. */
static void both_sizes_and_masks(void **state)
{
    fault_case *c = *state;
    const json_t *small = fault_get(c, "small_variant");
    attn_problem problem;
    int64_t q[8];
    int64_t kv[8];
    fault_problem(c, &problem);
    assert_false(problem.causal);
    int64_t count = fault_json_list(json_object_get(small, "q_lens"), q, 8);
    fault_json_list(json_object_get(small, "kv_lens"), kv, 8);
    for (problem.causal = 0; problem.causal <= 1; problem.causal++) {
        attn_problem little = problem;
        fault_lengths(&little, q, kv, count);
        fault_match(c, &little, NULL);
        fault_match(c, &problem, NULL);
    }
}

static void no_keys_under_both_masks(void **state)
{
    fault_case *c = *state;
    const json_t *masks = fault_get(c, "causal");
    attn_problem problem;
    fault_problem(c, &problem);
    assert_int_equal(json_array_size(masks), 2);
    for (size_t i = 0; i < 2; i++) {
        problem.causal = json_is_true(json_array_get(masks, i));
        fault_match(c, &problem, NULL);
    }
}

/* The blocks have these guards around every tensor, and fault_match looks at them. */
static void guards_hold(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "no_oob");
    fault_says(c, "guard", "64 guard bytes (0xA5) before and after out and lse");
    fault_problem(c, &problem);
    fault_match(c, &problem, NULL);
}

static void lse_of_nothing(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_problem(c, &problem);
    problem.return_lse = fault_flag(c, "return_lse") ? 1 : 0;
    assert_int_equal(problem.return_lse, 1);
    fault_match(c, &problem, NULL);
}

/* No segments: offsets of one entry, or none at all. */
static void no_segments(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    attn_data data;
    fault_outcome(c, "ok_noop");
    fault_problem(c, &problem);
    assert_int_equal(problem.num_segments, 0);
    fault_match(c, &problem, NULL);
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            problem.kind = (attn_kind)kind;
            attn_data_make(&problem, &data);
            attn_problem_desc(&problem, &desc);
            attn_must(attn_create(fault_isas.device[isa], problem.kind, &desc, NULL, 0, &wrapper));
            attn_must(attn_plan(&wrapper, NULL, NULL, 0, NULL, 0, 0));
            attn_must(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                               &data.out.tensor, data.lse_tensor));
            attn_destroy(&wrapper);
            attn_data_free(&data);
        }
}

/* ---- K02: rows that see nothing -------------------------------------------------------------- */

static void fill_zero_one(fault_case *c, const attn_problem *problem, attn_data *data)
{
    (void)c;
    fault_fill_qkv(problem, data, 0.0F, 0.0F, 1.0F);
}

static void look_at_row_3(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    fault_row_is(problem, data, 3, 1.0F, fault_want_real(c, "lse_row3"));
}

static void look_after_33(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    (void)c;
    fault_zero_rows(data, 0, 33);
    fault_row_is(problem, data, 33, 1.0F, 0.0);
}

static void more_queries_than_keys(void **state)
{
    fault_case *c = *state;
    fault_ways ways = {.fill = fill_zero_one, .look = look_at_row_3};
    attn_problem problem;
    fault_says(c, "values", "q=0,k=0,v=1");
    fault_says(c, "reported_scale", "33 empty rows x 32 heads");
    fault_problem(c, &problem);
    fault_match(c, &problem, &ways);

    /* as reported: 33 rows see nothing, the 34th sees the key */
    const int64_t q = 34;
    const int64_t kv = 1;
    attn_data data;
    fault_lengths(&problem, &q, &kv, 1);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data_make(&problem, &data);
        fill_zero_one(c, &problem, &data);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
        look_after_33(c, &problem, &data);
        attn_data_free(&data);
    }
}

/* A number of the case's states; "-inf" is a text there. */
static double state_number(const json_t *state, const char *name)
{
    const json_t *value = json_object_get(state, name);
    return json_is_string(value) ? -(double)INFINITY : json_number_value(value);
}

/*
 * Partial states here are those of one row over blocks of keys. Every row of the problem sees one
 * key of weight (v 3, score -5), and in the same blocks as its tile's other rows nothing: before,
 * after, or at all.
 */
static void states_of_blocks_merge(void **state)
{
    static const int64_t shapes[][2] = {{64, 400}, {64, 40}, {200, 200},
                                        {1, 1},    {5, 0},   {300, 150}};
    fault_case *c = *state;
    const json_t *cases = fault_get(c, "cases");
    assert_int_equal(json_array_size(cases), 3);
    const json_t *nothing = json_object_get(json_array_get(cases, 0), "want");
    const json_t *one = json_object_get(json_array_get(cases, 1), "want");
    assert_true(
        json_equal(json_object_get(json_array_get(cases, 2), "want"), (json_t *)(uintptr_t)one));
    assert_true(isinf(state_number(nothing, "lse")));
    double v = state_number(one, "v");
    double lse = state_number(one, "lse");
    /* windows of one key, and of 200 keys of which one has weight */
    for (int64_t window = 0; window <= 200; window += 200)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int32_t isa = 0; isa < fault_isas.count; isa++) {
                attn_problem problem;
                attn_data data;
                attn_problem_init(&problem);
                problem.kind = ATTN_PREFIXED;
                problem.head_dim = 8;
                problem.sm_scale = 1.0;
                problem.window_left = window;
                problem.window_right = 0;
                attn_problem_add(&problem, shapes[i][0], shapes[i][1]);
                attn_data_make(&problem, &data);
                fault_fill_qkv(&problem, &data, 0.0F, 0.0F, -77.0F);
                int64_t lq = shapes[i][0];
                int64_t lk = shapes[i][1];
                /* row r: q = e0 + (place) e1; key j: score -5 for its own row, far below for others
                 */
                for (int64_t r = 0; r < lq; r++) {
                    attn_set(&data.q.tensor, r, 0, 0, 1.0F);
                    attn_set(&data.q.tensor, r, 0, 1, (float)(lk - lq + r));
                    attn_set(&data.q.tensor, r, 0, 2, (float)((lk - lq + r) * (lk - lq + r)));
                }
                for (int64_t j = 0; j < lk; j++) { /* -5 - 1000 (place - j)^2 */
                    attn_set(&data.k.tensor, j, 0, 0, (float)(lse - 1000.0 * (double)(j * j)));
                    attn_set(&data.k.tensor, j, 0, 1, 2000.0F * (float)j);
                    attn_set(&data.k.tensor, j, 0, 2, -1000.0F);
                    for (int64_t d = 0; d < 8; d++)
                        attn_set(&data.v.tensor, j, 0, d, (float)v);
                }
                attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
                for (int64_t r = 0; r < lq; r++) {
                    int64_t place = lk - lq + r;
                    if (place < 0) {
                        fault_zero_rows(&data, r, r + 1);
                        continue;
                    }
                    float got = attn_get(&data.lse.tensor, r, 0, 0);
                    /* the three products of a score reach 1000 lk^2 and cancel */
                    double bound = check_gamma(8) * 4000.0 * (double)(lk * lk + 1);
                    assert_true(check_near((double)got, lse, bound));
                    for (int64_t d = 0; d < 8; d++) {
                        float out = attn_get(&data.out.tensor, r, 0, d);
                        assert_true((double)out >= v && (double)out <= v);
                    }
                }
                attn_data_free(&data);
            }
}

static void fill_times_3(fault_case *c, const attn_problem *problem, attn_data *data)
{
    const attn_block *blocks[] = {&data->q, &data->k, &data->v};
    (void)c;
    (void)problem;
    for (int i = 0; i < 3; i++)
        for (int64_t a = 0; a < blocks[i]->tensor.shape[0]; a++)
            for (int64_t b = 0; b < blocks[i]->tensor.shape[1]; b++)
                for (int64_t d = 0; d < blocks[i]->tensor.shape[2]; d++)
                    attn_set(&blocks[i]->tensor, a, b, d,
                             3.0F * attn_get(&blocks[i]->tensor, a, b, d));
}

/* The last row of each segment sees its one key. */
static void look_at_last_rows(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    (void)c;
    for (int64_t i = 0; i < problem->num_segments; i++)
        fault_row_is_v(problem, data, problem->q_offsets[i + 1] - 1, i);
}

static void one_key_many_queries(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_times_3, .look = look_at_last_rows};
    attn_problem problem;
    fault_says(c, "values", "randn*3, seed 0");
    fault_problem(c, &problem);
    problem.seed = 0;
    fault_match(c, &problem, &ways);
}

static void fill_ones(fault_case *c, const attn_problem *problem, attn_data *data)
{
    (void)c;
    fault_fill_qkv(problem, data, 1.0F, 1.0F, 1.0F);
}

static void look_for_ones(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    (void)c;
    for (int64_t row = 0; row < attn_problem_tokens(problem); row++)
        fault_row_is(problem, data, row, 1.0F,
                     sqrt((double)problem->head_dim) +
                         log((double)mst_min_i64(row + 1, problem->window_left + 1)));
}

static void ones_give_ones(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_ones, .look = look_for_ones};
    attn_problem problem;
    fault_says(c, "values", "all ones");
    fault_problem(c, &problem);
    assert_int_equal(problem.window_left, 9);
    fault_match(c, &problem, &ways);
}

/* Without padding on the left there is nothing to hide; the second item is what it is alone. */
static void items_alone(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    attn_data whole;
    attn_data alone;
    fault_problem(c, &problem);
    fault_match(c, &problem, NULL);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data_make(&problem, &whole);
        attn_data_make(&problem, &alone);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &whole);
        for (int64_t i = 0; i < problem.num_segments; i++)
            attn_problem_run_part(&problem, fault_isas.device[isa], NULL, &whole, &alone, i, i + 1);
        fault_same(&problem, &whole, 0, &alone, 0, attn_problem_tokens(&problem));
        attn_data_free(&whole);
        attn_data_free(&alone);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-001", longest_is_not_asked_for),
        FAULT("BR-002", one_key_is_its_value),
        FAULT("BR-003", both_sizes_and_masks),
        FAULT("BR-004", no_keys_under_both_masks),
        FAULT("BR-007", match),
        FAULT("BR-008", match),
        FAULT("BR-009", guards_hold),
        FAULT("BR-012", lse_of_nothing),
        FAULT("BR-013", no_segments),
        FAULT("BR-015", more_queries_than_keys),
        FAULT("BR-016", states_of_blocks_merge),
        FAULT("BR-017", one_key_many_queries),
        FAULT("BR-018", match),
        FAULT("BR-021", ones_give_ones),
        FAULT("BR-024", items_alone),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
