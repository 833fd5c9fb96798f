/*
 * test_attention_graph.c - graph mode as a captured step uses it: one wrapper made at its ceilings,
 * planned with layout after layout, run, and never moving a pointer. The sequences and the 3e-2 are
 * those that users of these wrappers already rely on: bf16, 4 heads of 72, ceilings of 4 segments
 * and 512 tokens, N(0, 1). Our own bound is checked beside it.
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

#define SEGMENTS 4
#define TOKENS 512

static attn_isas isas;

static int open_devices(void **state)
{
    (void)state;
    attn_isas_open(&isas, 2);
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    attn_isas_close(&isas);
    return 0;
}

static void make_problem(attn_kind kind, const int64_t *q, const int64_t *kv, int64_t count,
                         uint64_t seed, attn_problem *problem)
{
    attn_problem_init(problem);
    problem->seed = seed;
    problem->kind = kind;
    problem->num_qo_heads = 4;
    problem->num_kv_heads = 4;
    problem->head_dim = 72;
    problem->dtype = MSTAR_DTYPE_BF16;
    for (int64_t i = 0; i < count; i++)
        attn_problem_add(problem, q[i], kv[i]);
}

static attn_wrapper make_wrapper(mstar_device *device, attn_kind kind, int64_t kv_tokens)
{
    attn_problem problem;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    make_problem(kind, NULL, NULL, 0, 1, &problem);
    attn_problem_desc(&problem, &desc);
    desc.accelerator_graph = 1;
    desc.max_num_segments = SEGMENTS;
    desc.max_total_tokens = TOKENS;
    desc.max_total_kv_tokens = kv_tokens;
    attn_must(attn_create(device, kind, &desc, NULL, 0, &wrapper));
    return wrapper;
}

/* Everything that a captured run may have read the address of. */
typedef struct fixed_state {
    const int32_t *q, *kv;
    size_t plan_bytes, workspace_bytes;
    const char *kernel;
} fixed_state;

static fixed_state state_of(const attn_wrapper *wrapper)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    attn_must(attn_query(wrapper, &info));
    return (fixed_state){info.q_offsets, info.kv_offsets, info.plan_bytes, info.workspace_bytes,
                         info.kernel};
}

/* One captured wrapper on each ISA level. */
typedef struct captured {
    attn_wrapper wrapper[ATTN_MAX_ISAS];
    fixed_state fixed[ATTN_MAX_ISAS];
} captured;

static captured capture(attn_kind kind, int64_t kv_tokens)
{
    captured made;
    memset(&made, 0, sizeof made);
    for (int32_t i = 0; i < isas.count; i++) {
        made.wrapper[i] = make_wrapper(isas.device[i], kind, kv_tokens);
        made.fixed[i] = state_of(&made.wrapper[i]);
    }
    return made;
}

static void release(const captured *all)
{
    for (int32_t i = 0; i < isas.count; i++)
        attn_destroy(&all->wrapper[i]);
}

static void check_vector(const int32_t *got, const int32_t *want, int64_t count)
{
    for (int64_t i = 0; i <= SEGMENTS; i++)
        assert_int_equal(got[i], want[i < count ? i : count]);
}

static void step_on(const attn_wrapper *wrapper, const fixed_state *fixed,
                    const attn_problem *problem, attn_data *data, const attn_reference *reference,
                    const char *label)
{
    int64_t rows = attn_problem_tokens(problem);
    /* the key side keeps at most its ceiling */
    int64_t kv_rows = attn_problem_kv_tokens(problem);
    mstar_tensor k = attn_rows(&data->k.tensor, 0, 0, kv_rows);
    mstar_tensor v = attn_rows(&data->v.tensor, 0, 0, kv_rows);
    if (wrapper->kind == ATTN_SELF) {
        k = data->k.tensor;
        v = data->v.tensor;
    }
    attn_fill_rows(&data->out.tensor, 0, 0, TOKENS, NAN);
    attn_must(attn_plan(wrapper, NULL, problem->q_offsets, problem->num_segments,
                        problem->kv_offsets, problem->num_segments, problem->causal));
    attn_must(
        attn_run(wrapper, NULL, &data->q.tensor, &k, &v, &data->out.tensor, data->lse_tensor));
    assert_true(attn_reference_check(problem, data, reference, label));
    for (int64_t row = 0; row < TOKENS; row++)
        for (int64_t head = 0; head < 4; head++)
            for (int64_t d = 0; d < 72; d++) {
                double got = (double)attn_get(&data->out.tensor, row, head, d);
                double want = row < rows ? reference->out[(row * 4 + head) * 72 + d] : 0.0;
                if (!(fabs(got - want) <= (row < rows ? 3e-2 : 0.0)))
                    fail_msg("%s: out[%d, %d, %d] is %g, want %g", label, (int)row, (int)head,
                             (int)d, got, want);
            }
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    fixed_state now = state_of(wrapper);
    assert_memory_equal(&now, fixed, sizeof now);
    attn_must(attn_query(wrapper, &info));
    assert_int_equal(info.num_segments, problem->num_segments);
    assert_int_equal(info.num_tokens, rows);
    check_vector(info.q_offsets, problem->q_offsets, problem->num_segments);
    check_vector(info.kv_offsets, problem->kv_offsets, problem->num_segments);
}

/* One step on every level: plan, run over static buffers of the ceiling's size with NaN past the
 * plan in q, k, v and out, compare. */
static void step(const captured *all, attn_problem *problem)
{
    attn_data data;
    attn_reference reference;
    problem->extra_rows = TOKENS - attn_problem_tokens(problem);
    attn_data_make(problem, &data);
    attn_reference_make(problem, &data, &reference);
    for (int32_t i = 0; i < isas.count; i++)
        step_on(&all->wrapper[i], &all->fixed[i], problem, &data, &reference, isas.name[i]);
    attn_reference_free(&reference);
    attn_data_free(&data);
}

static void one_wrapper_many_layouts(void **state)
{
    static const int64_t layouts[][4] = {
        {128, 128, 128, 128}, {100, 60, 30, 20}, {100, 60, 30, 0}, {190, 20, 0, 0},
        {7, 0, 0, 0},         {0, 0, 0, 0},      {0, 0, 0, 64},    {1, 1, 1, 1},
    };
    (void)state;
    captured all = capture(ATTN_SELF, -1);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        attn_problem problem;
        make_problem(ATTN_SELF, layouts[i], layouts[i], 4, 10 + i, &problem);
        problem.causal = (int)(i % 2);
        step(&all, &problem);
    }
    release(&all);
}

/* [128]*4, [100,60,30,0], [7,0,0,0], [64]*4, twice, with other data the second time. */
static void the_sequence_twice(void **state)
{
    static const int64_t layouts[][4] = {
        {128, 128, 128, 128}, {100, 60, 30, 0}, {7, 0, 0, 0}, {64, 64, 64, 64}};
    (void)state;
    captured all = capture(ATTN_SELF, -1);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4; i++) {
            attn_problem problem;
            make_problem(ATTN_SELF, layouts[i], layouts[i], 4, (uint64_t)(100 * round + i),
                         &problem);
            step(&all, &problem);
        }
    release(&all);
}

/* A small first plan does not cap later ones; fewer segments than the ceiling are padded. */
static void small_first_then_the_ceiling(void **state)
{
    static const int64_t layouts[][4] = {{3}, {10, 20}, {512}, {1, 509, 2}, {128, 128, 128, 128}};
    static const int64_t counts[] = {1, 2, 1, 3, 4};
    (void)state;
    captured all = capture(ATTN_SELF, -1);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        attn_problem problem;
        make_problem(ATTN_SELF, layouts[i], layouts[i], counts[i], 200 + i, &problem);
        step(&all, &problem);
    }
    release(&all);
}

static void padding_segments_repeat_the_last_offset(void **state)
{
    static const int32_t given[] = {0, 10, 30};
    static const int32_t want[] = {0, 10, 30, 30, 30};
    static const int32_t padded[] = {0, 10, 30, 30};
    attn_wrapper wrapper = make_wrapper(isas.device[0], ATTN_SELF, -1);
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    (void)state;
    attn_must(attn_plan(&wrapper, NULL, given, 2, NULL, 0, 0));
    attn_must(attn_query(&wrapper, &info));
    assert_memory_equal(info.q_offsets, want, sizeof want);
    assert_ptr_equal(info.q_offsets, info.kv_offsets);
    assert_int_equal(info.num_segments, 2);
    /* padding that the caller makes does count */
    attn_must(attn_plan(&wrapper, NULL, padded, 3, NULL, 0, 0));
    attn_must(attn_query(&wrapper, &info));
    assert_int_equal(info.num_segments, 3);
    assert_memory_equal(info.q_offsets, want, sizeof want);
    attn_destroy(&wrapper);
}

/* Offsets are copied, also when there are exactly as many as the ceiling. */
static void offsets_are_copied(void **state)
{
    int32_t given[] = {0, 1, 2, 3, 4};
    static const int32_t want[] = {0, 1, 2, 3, 4};
    attn_wrapper wrapper = make_wrapper(isas.device[0], ATTN_SELF, -1);
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    (void)state;
    attn_must(attn_plan(&wrapper, NULL, given, 4, NULL, 0, 0));
    memset(given, 0xFF, sizeof given);
    attn_must(attn_query(&wrapper, &info));
    assert_memory_equal(info.q_offsets, want, sizeof want);
    attn_destroy(&wrapper);
}

static void too_much_is_refused(void **state)
{
    static const int32_t five[] = {0, 1, 2, 3, 4, 5};
    static const int32_t over[] = {0, 512, 513};
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        attn_wrapper wrapper = make_wrapper(isas.device[0], (attn_kind)kind, -1);
        assert_int_equal(attn_plan(&wrapper, NULL, five, 5, five, 5, 0), MSTAR_INVALID_ARGUMENT);
        assert_non_null(strstr(mstar_last_error(), "5"));
        assert_non_null(strstr(mstar_last_error(), "max_num_segments is 4"));
        assert_int_equal(attn_plan(&wrapper, NULL, over, 2, over, 2, 0), MSTAR_INVALID_ARGUMENT);
        assert_non_null(strstr(mstar_last_error(), "513"));
        assert_non_null(strstr(mstar_last_error(), "max_total_tokens is 512"));
        attn_destroy(&wrapper);
    }
}

/* Before the first plan a run is that of the ceilings, spread with the remainder first. */
static void primed_at_the_ceilings(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (int kind = 0; kind < 3; kind++) {
            static const int32_t q_want[] = {0, 128, 256, 384, 512};
            static const int32_t kv_want[] = {0, 13, 25, 37, 49}; /* 49 = 13 + 3 * 12 */
            attn_problem problem;
            attn_data primed;
            attn_data planned;
            const int64_t q[] = {128, 128, 128, 128};
            const int64_t kv[] = {13, 12, 12, 12};
            make_problem((attn_kind)kind, q, kv, 4, 300, &problem);
            problem.return_lse = 0;
            attn_data_make(&problem, &primed);
            attn_data_make(&problem, &planned);
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            attn_problem_desc(&problem, &desc);
            desc.accelerator_graph = 1;
            desc.max_num_segments = SEGMENTS;
            desc.max_total_tokens = TOKENS;
            desc.max_total_kv_tokens = 49;
            attn_must(attn_create(isas.device[isa], problem.kind, &desc, NULL, 0, &wrapper));
            mstar_ragged_prefill_info info = {.struct_size = sizeof info};
            attn_must(attn_query(&wrapper, &info));
            assert_memory_equal(info.q_offsets, q_want, sizeof q_want);
            assert_memory_equal(info.kv_offsets, kind == ATTN_SELF ? q_want : kv_want,
                                sizeof q_want);
            attn_must(attn_run(&wrapper, NULL, &primed.q.tensor, &primed.k.tensor, &primed.v.tensor,
                               &primed.out.tensor, NULL));
            attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, 4, problem.kv_offsets, 4, 0));
            attn_must(attn_run(&wrapper, NULL, &planned.q.tensor, &planned.k.tensor,
                               &planned.v.tensor, &planned.out.tensor, NULL));
            assert_true(attn_same_bits(&primed.out.tensor, 0, &planned.out.tensor, 0, TOKENS));
            attn_destroy(&wrapper);
            attn_data_free(&primed);
            attn_data_free(&planned);
        }
}

/* ---- two sides ------------------------------------------------------------------------------- */

/* Cross and prefixed: pairs that vary from step to step, the key ceiling apart from the query's. */
static void pairs_vary(void **state)
{
    static const int64_t q[][4] = {{1, 1, 1, 1}, {2, 4, 0, 0}, {100, 0, 30, 7},
                                   {5, 5, 5, 5}, {0, 0, 0, 0}, {9, 3, 1, 1}};
    static const int64_t kv[][4] = {{300, 0, 80, 1}, {5, 13, 0, 0}, {10, 40, 30, 200},
                                    {5, 5, 5, 5},    {9, 9, 9, 9},  {3, 1, 0, 70}};
    (void)state;
    for (int kind = ATTN_CROSS; kind <= ATTN_PREFIXED; kind++) {
        captured all = capture((attn_kind)kind, 400);
        assert_ptr_not_equal(all.fixed[0].q, all.fixed[0].kv);
        for (size_t i = 0; i < sizeof q / sizeof q[0]; i++) {
            attn_problem problem;
            make_problem((attn_kind)kind, q[i], kv[i], 4, 400 + i, &problem);
            problem.causal = kind == ATTN_PREFIXED ? (int)(i % 2) : 0;
            step(&all, &problem);
        }
        release(&all);
    }
}

/* A key ceiling of 0 is a ceiling. Priming with no keys does not leave the work out later either:
 * capturing at 0 keys is another wrapper's plan. */
static void key_ceilings(void **state)
{
    static const int32_t q[] = {0, 1, 2};
    static const int32_t none[] = {0, 0, 0};
    static const int32_t one[] = {0, 1, 1};
    static const int32_t most[] = {0, 200, 400};
    static const int32_t over[] = {0, 200, 401};
    (void)state;
    for (int kind = ATTN_CROSS; kind <= ATTN_PREFIXED; kind++) {
        attn_wrapper wrapper = make_wrapper(isas.device[0], (attn_kind)kind, 0);
        attn_must(attn_plan(&wrapper, NULL, q, 2, none, 2, 0));
        assert_int_equal(attn_plan(&wrapper, NULL, q, 2, one, 2, 0), MSTAR_INVALID_ARGUMENT);
        assert_non_null(strstr(mstar_last_error(), "max_total_kv_tokens is 0"));
        attn_destroy(&wrapper);
        wrapper = make_wrapper(isas.device[0], (attn_kind)kind, 400);
        attn_must(attn_plan(&wrapper, NULL, q, 2, none, 2, 0));
        attn_must(attn_plan(&wrapper, NULL, q, 2, most, 2, 0));
        assert_int_equal(attn_plan(&wrapper, NULL, q, 2, over, 2, 0), MSTAR_INVALID_ARGUMENT);
        assert_non_null(strstr(mstar_last_error(), "key tokens"));
        assert_non_null(strstr(mstar_last_error(), "max_total_kv_tokens is 400"));
        attn_destroy(&wrapper);
    }
}

/* First planned with no keys at all, then with 1500: the same as a direct call. */
static void planned_without_keys_then_with_many(void **state)
{
    static const int32_t q[] = {0, 1, 2};
    static const int32_t none[] = {0, 0, 0};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        attn_problem problem;
        attn_data direct;
        attn_data graph;
        mstar_ragged_prefill_desc desc;
        attn_wrapper wrapper;
        attn_problem_init(&problem);
        problem.kind = ATTN_CROSS;
        problem.num_qo_heads = 2;
        problem.num_kv_heads = 2;
        attn_problem_add(&problem, 1, 1500);
        attn_problem_add(&problem, 1, 1500);
        attn_data_make(&problem, &direct);
        attn_data_make(&problem, &graph);
        attn_problem_run(&problem, isas.device[isa], NULL, &direct);
        attn_problem_desc(&problem, &desc);
        desc.accelerator_graph = 1;
        desc.max_num_segments = 2;
        desc.max_total_tokens = 2;
        desc.max_total_kv_tokens = 3000;
        attn_must(attn_create(isas.device[isa], ATTN_CROSS, &desc, NULL, 0, &wrapper));
        attn_must(attn_plan(&wrapper, NULL, q, 2, none, 2, 0));
        attn_must(attn_plan(&wrapper, NULL, q, 2, problem.kv_offsets, 2, 0));
        attn_must(attn_run(&wrapper, NULL, &graph.q.tensor, &graph.k.tensor, &graph.v.tensor,
                           &graph.out.tensor, graph.lse_tensor));
        assert_true(attn_same_bits(&direct.out.tensor, 0, &graph.out.tensor, 0, 2));
        attn_destroy(&wrapper);
        attn_data_free(&direct);
        attn_data_free(&graph);
    }
}

/* ---- eager, the same common settings --------------------------------------------------------- */

static void eager_layouts(void **state)
{
    static const int64_t layouts[][3] = {{128, 96, 40}, {7, 1, 300}};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int causal = 0; causal <= 1; causal++) {
            attn_problem problem;
            attn_data data;
            attn_reference reference;
            make_problem(ATTN_SELF, layouts[i], layouts[i], 3, (uint64_t)(500 + i), &problem);
            problem.causal = causal;
            attn_data_make(&problem, &data);
            attn_reference_make(&problem, &data, &reference);
            for (int32_t isa = 0; isa < isas.count; isa++) {
                attn_data_reset_outputs(&data);
                attn_problem_run(&problem, isas.device[isa], NULL, &data);
                assert_true(attn_reference_check(&problem, &data, &reference, isas.name[isa]));
                for (int64_t e = 0; e < reference.elements; e++) {
                    double got = (double)attn_get(&data.out.tensor, e / 288, e / 72 % 4, e % 72);
                    assert_true(fabs(got - reference.out[e]) <= 3e-2);
                }
            }
            attn_reference_free(&reference);
            attn_data_free(&data);
        }
}

/* Prefixes of 3 and 9 before 2 and 4 fresh tokens: row r sees its prefix and the fresh tokens up to
 * itself, so a change of a later fresh key leaves it alone. */
static void prefixed_rows_see_prefix_and_past(void **state)
{
    static const int64_t q[] = {2, 4};
    static const int64_t kv[] = {5, 13};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        attn_problem problem;
        attn_data before;
        make_problem(ATTN_PREFIXED, q, kv, 2, 600, &problem);
        problem.causal = 1;
        attn_data_make(&problem, &before);
        attn_problem_run(&problem, isas.device[isa], NULL, &before);
        for (int64_t key = 0; key < 18; key++) {
            attn_data after;
            attn_data_make(&problem, &after);
            attn_fill_rows(&after.v.tensor, 0, key, key + 1, 9.0F);
            attn_problem_run(&problem, isas.device[isa], NULL, &after);
            for (int64_t row = 0; row < 6; row++) {
                bool sees = row < 2 ? key <= 3 + row : key >= 5 && key - 5 <= 9 + row - 2;
                bool same = true;
                for (int64_t head = 0; head < 4; head++)
                    for (int64_t d = 0; d < 72; d++) {
                        float a = attn_get(&before.out.tensor, row, head, d);
                        float b = attn_get(&after.out.tensor, row, head, d);
                        same = same && a >= b && a <= b;
                    }
                assert_int_equal(same, !sees);
            }
            attn_data_free(&after);
        }
        attn_data_free(&before);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_wrapper_many_layouts),
        cmocka_unit_test(the_sequence_twice),
        cmocka_unit_test(small_first_then_the_ceiling),
        cmocka_unit_test(padding_segments_repeat_the_last_offset),
        cmocka_unit_test(offsets_are_copied),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(primed_at_the_ceilings),
        cmocka_unit_test(pairs_vary),
        cmocka_unit_test(key_ceilings),
        cmocka_unit_test(planned_without_keys_then_with_many),
        cmocka_unit_test(eager_layouts),
        cmocka_unit_test(prefixed_rows_see_prefix_and_past),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
