/*
 * test_captured_layouts.c - ragged wrappers inside a graph that was captured once: layout after
 * layout is planned and replayed over buffers that never move, full of NaN past the plan. The
 * sequences are those that users of such wrappers rely on: bf16, 4 heads of 72, ceilings of 4
 * segments and 512 tokens, N(0, 1), within 3e-2 of float64; beside it our own bound, and the bits
 * of a direct call.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_attn.h"
#include "support_card.h"

enum { SEGMENTS = 4, TOKENS = 512, KEYS = 400, HEADS = 4, DIM = 72 };

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
    problem->num_qo_heads = HEADS;
    problem->num_kv_heads = HEADS;
    problem->head_dim = DIM;
    problem->dtype = MSTAR_DTYPE_BF16;
    problem->values = ATTN_POOL;
    problem->return_lse = 1;
    for (int64_t i = 0; i < count; i++)
        attn_problem_add(problem, q[i], kv[i]);
}

/* A wrapper's run, recorded on one ISA level over buffers of the ceilings' size. */
typedef struct recorded {
    mstar_stream *stream;
    attn_wrapper wrapper;
    attn_data data;
    mstar_graph *graph;
} recorded;

static int64_t keys_of(attn_kind kind)
{
    return kind == ATTN_SELF ? TOKENS : KEYS;
}

/* first: what is planned when the run is recorded. */
static void record(mstar_device *device, const attn_problem *first, recorded *made)
{
    attn_kind kind = first->kind;
    attn_problem ceilings;
    mstar_ragged_prefill_desc desc;
    make_problem(kind, (const int64_t[]){TOKENS}, (const int64_t[]){keys_of(kind)}, 1, 1,
                 &ceilings);
    memset(made, 0, sizeof *made);
    attn_data_make(&ceilings, &made->data);
    attn_problem_desc(&ceilings, &desc);
    desc.accelerator_graph = 1;
    desc.max_num_segments = SEGMENTS;
    desc.max_total_tokens = TOKENS;
    desc.max_total_kv_tokens = keys_of(kind);
    attn_must(mstar_stream_create(device, -1, &made->stream));
    attn_must(attn_create(device, kind, &desc, NULL, 0, &made->wrapper));
    attn_must(attn_plan(&made->wrapper, made->stream, first->q_offsets, first->num_segments,
                        first->kv_offsets, first->num_segments, first->causal));
    attn_must(attn_capture(&made->wrapper, made->stream, &made->data, &made->graph));
}

static void release(recorded *made)
{
    attn_graph_destroy(made->graph);
    attn_destroy(&made->wrapper);
    mstar_stream_destroy(made->stream);
    attn_data_free(&made->data);
}

/* The first rows of `from` to the start of `to`, NaN behind them. */
static void stage(const mstar_tensor *from, const mstar_tensor *to, int64_t rows)
{
    attn_fill_rows(to, 0, 0, to->shape[0], NAN);
    if (rows > 0)
        memcpy(to->data, from->data,
               (size_t)(rows * HEADS * DIM) * mstar_dtype_bytes(MSTAR_DTYPE_BF16));
}

/* Replays a step and compares it with the reference, with a direct call and, past the plan, with
 * zeros. */
static void replay_on(recorded *made, mstar_device *device, const attn_problem *problem,
                      attn_data *data, const attn_reference *reference, const char *label)
{
    int64_t rows = attn_problem_tokens(problem), keys = attn_problem_kv_tokens(problem);
    const mstar_tensor *out = &made->data.out.tensor;
    stage(&data->q.tensor, &made->data.q.tensor, rows);
    stage(&data->k.tensor, &made->data.k.tensor, keys);
    stage(&data->v.tensor, &made->data.v.tensor, keys);
    attn_fill_rows(out, 0, 0, TOKENS, NAN);
    attn_must(attn_plan(&made->wrapper, made->stream, problem->q_offsets, problem->num_segments,
                        problem->kv_offsets, problem->num_segments, problem->causal));
    attn_must(attn_replay(made->graph, made->stream));
    for (int64_t row = 0; row < TOKENS; row++)
        for (int64_t head = 0; head < HEADS; head++)
            for (int64_t d = 0; d < DIM; d++) {
                double got = (double)attn_get(out, row, head, d);
                double want = row < rows ? reference->out[(row * HEADS + head) * DIM + d] : 0.0;
                if (!(fabs(got - want) <= (row < rows ? 3e-2 : 0.0)))
                    fail_msg("%s: out[%d, %d, %d] is %g, want %g", label, (int)row, (int)head,
                             (int)d, got, want);
            }
    attn_data_reset_outputs(data);
    attn_problem_run(problem, device, NULL, data);
    assert_true(attn_same_bits(out, 0, &data->out.tensor, 0, rows));
    assert_true(attn_same_bits(&made->data.lse.tensor, 0, &data->lse.tensor, 0, rows));
    assert_true(attn_reference_check(problem, data, reference, label));
}

typedef struct all_levels {
    recorded made[ATTN_MAX_ISAS];
} all_levels;

static void record_all(attn_kind kind, const int64_t *q, const int64_t *kv, int64_t count,
                       all_levels *all)
{
    attn_problem first;
    make_problem(kind, q, kv, count, 1, &first);
    for (int32_t i = 0; i < isas.count; i++)
        record(isas.device[i], &first, &all->made[i]);
}

static void release_all(all_levels *all)
{
    for (int32_t i = 0; i < isas.count; i++)
        release(&all->made[i]);
}

static void replay_all(all_levels *all, const attn_problem *problem)
{
    attn_data data;
    attn_reference reference;
    attn_data_make(problem, &data);
    attn_reference_make(problem, &data, &reference);
    for (int32_t i = 0; i < isas.count; i++)
        replay_on(&all->made[i], isas.device[i], problem, &data, &reference, isas.name[i]);
    attn_reference_free(&reference);
    attn_data_free(&data);
}

static void replay_self(all_levels *all, const int64_t *lengths, int64_t count, uint64_t seed,
                        int causal)
{
    attn_problem problem;
    make_problem(ATTN_SELF, lengths, lengths, count, seed, &problem);
    problem.causal = causal;
    replay_all(all, &problem);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const int64_t brim[] = {128, 128, 128, 128};

static void captured_at_the_brim(void **state)
{
    static const int64_t layouts[][4] = {
        {128, 128, 128, 128}, {100, 60, 30, 20}, {100, 60, 30, 0}, {190, 20, 0, 0}, {7, 0, 0, 0}};
    static all_levels all;
    (void)state;
    record_all(ATTN_SELF, brim, brim, 4, &all);
    for (int i = 0; i < 5; i++)
        replay_self(&all, layouts[i], 4, (uint64_t)(10 + i), 0);
    replay_self(&all, layouts[1], 4, 20, 1); /* causal is the plan's, not the capture's */
    release_all(&all);
}

static void the_sequence_twice(void **state)
{
    static const int64_t layouts[][4] = {
        {128, 128, 128, 128}, {100, 60, 30, 0}, {7, 0, 0, 0}, {64, 64, 64, 64}};
    static all_levels all;
    (void)state;
    record_all(ATTN_SELF, brim, brim, 4, &all);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4; i++)
            replay_self(&all, layouts[i], 4, (uint64_t)(100 * round + i), 0);
    release_all(&all);
}

/* Captured with one segment of three tokens in the plan, replayed up to the ceilings; a layout past
 * them is refused and the plan before it still replays. */
static void captured_small(void **state)
{
    static const int64_t small[] = {3}, full[] = {512}, two[] = {10, 20};
    static const int32_t over[] = {0, 512, 513}, five[] = {0, 1, 2, 3, 4, 5};
    static all_levels all;
    (void)state;
    record_all(ATTN_SELF, small, small, 1, &all);
    replay_self(&all, full, 1, 200, 0);
    replay_self(&all, brim, 4, 201, 0);
    replay_self(&all, two, 2, 202, 0); /* fewer segments than the ceiling */
    for (int32_t i = 0; i < isas.count; i++) {
        recorded *made = &all.made[i];
        attn_problem problem;
        attn_data direct;
        assert_int_equal(attn_plan(&made->wrapper, NULL, over, 2, over, 2, 0),
                         MSTAR_INVALID_ARGUMENT);
        assert_int_equal(attn_plan(&made->wrapper, NULL, five, 5, five, 5, 0),
                         MSTAR_INVALID_ARGUMENT);
        attn_fill_rows(&made->data.out.tensor, 0, 0, TOKENS, NAN);
        attn_must(attn_replay(made->graph, made->stream));
        make_problem(ATTN_SELF, two, two, 2, 202, &problem);
        attn_data_make(&problem, &direct);
        attn_problem_run(&problem, isas.device[i], NULL, &direct);
        assert_true(attn_same_bits(&made->data.out.tensor, 0, &direct.out.tensor, 0, 30));
        attn_data_free(&direct);
    }
    release_all(&all);
}

static void pairs_vary(void **state)
{
    static const int64_t q[][4] = {
        {1, 1, 1, 1}, {2, 4, 0, 0}, {100, 0, 30, 7}, {128, 128, 128, 128}, {0, 0, 0, 0}};
    static const int64_t kv[][4] = {
        {300, 0, 80, 1}, {5, 13, 0, 0}, {110, 40, 30, 200}, {128, 130, 1, 128}, {9, 9, 9, 9}};
    static all_levels all;
    (void)state;
    for (int kind = ATTN_CROSS; kind <= ATTN_PREFIXED; kind++) {
        record_all((attn_kind)kind, brim, (const int64_t[]){100, 100, 100, 100}, 4, &all);
        for (int i = 0; i < 5; i++) {
            attn_problem problem;
            make_problem((attn_kind)kind, q[i], kv[i], 4, (uint64_t)(400 + i), &problem);
            problem.causal = kind == ATTN_PREFIXED ? i % 2 : 0;
            replay_all(&all, &problem);
        }
        release_all(&all);
    }
}

/* As many key segments as query segments: another number of one of them is refused. */
static void counts_that_differ(void **state)
{
    static const int32_t q[] = {0, 2, 4}, kv[] = {0, 5, 9, 10};
    static all_levels all;
    (void)state;
    for (int kind = ATTN_CROSS; kind <= ATTN_PREFIXED; kind++) {
        record_all((attn_kind)kind, brim, (const int64_t[]){100, 100, 100, 100}, 4, &all);
        assert_int_equal(attn_plan(&all.made[0].wrapper, NULL, q, 2, kv, 3, 0),
                         MSTAR_INVALID_ARGUMENT);
        assert_non_null(strstr(mstar_last_error(), "3"));
        release_all(&all);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_at_the_brim), cmocka_unit_test(the_sequence_twice),
        cmocka_unit_test(captured_small),       cmocka_unit_test(pairs_vary),
        cmocka_unit_test(counts_that_differ),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
