/*
 * test_faults_memory.c - cases K05 to K07 of the known faults: poison outside, writes and reads
 * past the ends, and indices beyond 31 bits. Tensors that large are sparse mappings.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_card.h"
#include "support_faults.h"

/* ---- K05: poison outside --------------------------------------------------------------------- */

static const float poisons[] = {NAN, INFINITY, -INFINITY};
#define NUM_POISONS 3

/* Runs with zeros past the plan and with each poison there: the same bits, nothing else written. */
static void poison_past_the_plan(const attn_problem *problem)
{
    int64_t rows = attn_problem_tokens(problem);
    int64_t keys = attn_problem_kv_tokens(problem);
    int64_t more = problem->extra_rows;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data zero;
        attn_data poisoned;
        attn_data_make(problem, &zero);
        attn_data_make(problem, &poisoned);
        attn_fill_rows(&zero.q.tensor, 0, rows, rows + more, 0.0F);
        fault_fill_kv_rows(problem, &zero.k.tensor, keys, keys + more, 0.0F);
        fault_fill_kv_rows(problem, &zero.v.tensor, keys, keys + more, 0.0F);
        attn_problem_run(problem, fault_isas.device[isa], NULL, &zero);
        for (int i = 0; i < NUM_POISONS; i++) {
            attn_fill_rows(&poisoned.q.tensor, 0, rows, rows + more, poisons[i]);
            fault_fill_kv_rows(problem, &poisoned.k.tensor, keys, keys + more, poisons[i]);
            fault_fill_kv_rows(problem, &poisoned.v.tensor, keys, keys + more, poisons[i]);
            attn_data_reset_outputs(&poisoned);
            unsigned char *before = attn_block_copy(&poisoned.out);
            attn_problem_run(problem, fault_isas.device[isa], NULL, &poisoned);
            fault_same(problem, &zero, 0, &poisoned, 0, rows);
            assert_true(attn_block_same_outside(&poisoned.out, before, 0, rows));
            free(before);
            for (int64_t row = 0; row < rows; row++)
                assert_true(isfinite(attn_get(&poisoned.out.tensor, row, 0, 0)));
        }
        attn_data_free(&zero);
        attn_data_free(&poisoned);
    }
}

static void spare_rows(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "equal_to");
    fault_problem(c, &problem);
    int64_t rows = attn_problem_tokens(&problem);
    problem.extra_rows = fault_integer(c, "buffer_rows") - rows;
    if (problem.extra_rows == 3)
        fault_says(c, "poison", "q,k,v rows 21..23 = NaN");
    else
        fault_says(c, "poison", "rows 12..31 of q,k,v = NaN");
    assert_int_equal(rows, problem.extra_rows == 3 ? 21 : 12);
    poison_past_the_plan(&problem);
    fault_match(c, &problem, NULL);
}

/*
 * A cache with slots for each sequence: every sequence is a call on its own rows of k and v, whose
 * tensors hold more rows than the plan has keys. Poison in the spare slots shows nowhere.
 */
static void slots_of_a_cache(const attn_problem *problem, int64_t slots,
                             void (*fill)(const attn_problem *, attn_data *))
{
    for (int64_t i = 0; i < problem->num_segments; i++) {
        attn_problem one = *problem;
        const int64_t q = problem->q_offsets[i + 1] - problem->q_offsets[i];
        const int64_t kv = problem->kv_offsets[i + 1] - problem->kv_offsets[i];
        fault_lengths(&one, &q, &kv, 1);
        one.kind = ATTN_CROSS;
        one.extra_rows = (kv + slots - 1) / slots * slots - kv;
        poison_past_the_plan(&one);
        if (fill == NULL)
            continue;
        for (int32_t isa = 0; isa < fault_isas.count; isa++) {
            attn_data data;
            attn_data_make(&one, &data);
            fill(&one, &data);
            attn_problem_run(&one, fault_isas.device[isa], NULL, &data);
            for (int64_t row = 0; row < q; row++)
                for (int64_t d = 0; d < one.head_dim; d++) {
                    float out = attn_get(&data.out.tensor, row, 0, d);
                    assert_true(out >= 0.5F && out <= 0.5F);
                }
            attn_data_free(&data);
        }
    }
}

static void fill_halves(const attn_problem *problem, attn_data *data)
{
    fault_fill_qkv(problem, data, 0.5F, 0.5F, 0.5F);
}

static void spare_slots(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_says(c, "kv_layout", "padded, 3 slots per sequence");
    fault_says(c, "poison", "k,v slots >= length = NaN");
    fault_says(c, "values", "q=0.5, valid k,v = 0.5");
    fault_problem(c, &problem);
    slots_of_a_cache(&problem, 3, fill_halves);
    fault_match(c, &problem, NULL);
}

static void spare_slots_of_blocks(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_says(c, "poison", "slots 37..63 and 1500..1535 = NaN");
    fault_problem(c, &problem);
    problem.kind = ATTN_CROSS;
    slots_of_a_cache(&problem, fault_integer(c, "kv_block"), NULL);
    fault_match(c, &problem, NULL);
}

/*
 * A key that no row sees, with NaN or any number in it: past the segment's end, and hidden by the
 * mask inside the segment (the first row of two causal segments).
 */
static void hidden_key(void **state)
{
    fault_case *c = *state;
    int64_t want[4];
    fault_says(c, "mask", "key 1 hidden for both rows");
    fault_says(c, "poison", "k[1][0]=NaN");
    fault_says(c, "q_values", "arange(8)");
    fault_says(c, "k_values", "arange(8)");
    fault_says(c, "v_values", "arange(8)");
    fault_says(c, "dtype", "f32");
    int64_t rows = fault_integer(c, "q");
    assert_int_equal(fault_integer(c, "kv"), rows);
    assert_int_equal(fault_integer(c, "h"), 1);
    assert_int_equal(fault_json_list(fault_want(c, "out"), want, 4), fault_integer(c, "d"));
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int masked = 0; masked <= 1; masked++) {
            attn_problem problem;
            attn_data data;
            attn_problem_init(&problem);
            problem.kind = masked ? ATTN_PREFIXED : ATTN_CROSS;
            problem.causal = masked;
            problem.head_dim = 4;
            problem.extra_rows = masked ? 0 : 1;
            if (masked) {
                attn_problem_add(&problem, 2, 2);
                attn_problem_add(&problem, 2, 2);
            } else {
                attn_problem_add(&problem, 2, 1);
            }
            attn_data_make(&problem, &data);
            for (int64_t e = 0; e < 8; e++) /* key 1 stands at row 1: spare, or the mask's */
                for (int64_t copy = 0; copy <= 2 * masked; copy += 2) {
                    /* segment 0 starts with query row 0, segment 1 with query row 1 */
                    attn_set(&data.q.tensor, copy + e / 4, 0, e % 4,
                             (float)(copy == 0 ? e : (e + 4) % 8));
                    attn_set(&data.k.tensor, copy + e / 4, 0, e % 4, (float)e);
                    attn_set(&data.v.tensor, copy + e / 4, 0, e % 4, (float)e);
                }
            attn_set(&data.k.tensor, 1, 0, 0, NAN);
            if (masked)
                attn_set(&data.k.tensor, 3, 0, 0, NAN);
            attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t d = 0; d < 4; d++)
                    assert_int_equal(
                        (int64_t)attn_get(&data.out.tensor, masked ? 2 * row : row, 0, d), want[d]);
            attn_data_free(&data);
        }
}

/* Eager mode leaves rows past the plan as they were, whatever was in them. */
static void rows_past_the_plan_stay(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "unchanged");
    fault_problem(c, &problem);
    int64_t rows = attn_problem_tokens(&problem);
    int64_t all = fault_integer(c, "buffer_rows");
    float filled = (float)fault_real(c, "prefill_out");
    problem.extra_rows = all - rows;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data data;
        attn_data_make(&problem, &data);
        attn_fill_rows(&data.out.tensor, 0, 0, all, filled);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
        for (int64_t row = rows; row < all; row++)
            for (int64_t e = 0; e < 2LL * 64; e++) {
                float out = attn_get(&data.out.tensor, row, e / 64, e % 64);
                assert_true(out >= filled && out <= filled);
            }
        attn_data_free(&data);
    }
    fault_match(c, &problem, NULL);
}

/* ---- K06: reads and writes past the ends ----------------------------------------------------- */

/* q, k, v, out, lse and both offset vectors end (or begin) at a page that may not be touched. */
static void run_fenced(const attn_problem *problem, mstar_device *device, bool at_end)
{
    attn_data data;
    fault_fenced fences[7];
    mstar_tensor tensors[5];
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_data_make(problem, &data);
    attn_problem_run(problem, device, NULL, &data);
    const attn_block *blocks[] = {&data.q, &data.k, &data.v, &data.out, &data.lse};
    for (int i = 0; i < 5; i++) {
        uintptr_t first;
        uintptr_t end;
        mst_tensor_extent(&blocks[i]->tensor, &first, &end);
        fences[i] = fault_fence(end - first, at_end);
        tensors[i] = blocks[i]->tensor;
        tensors[i].data = fences[i].data;
        if (i < 3)
            memcpy(fences[i].data, blocks[i]->tensor.data, end - first);
        else
            memset(fences[i].data, 0xA5, end - first);
    }
    const int32_t *offsets[] = {problem->q_offsets, problem->kv_offsets};
    size_t offsets_bytes = (size_t)(problem->num_segments + 1) * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        fences[5 + i] = fault_fence(offsets_bytes, at_end);
        memcpy(fences[5 + i].data, offsets[i], offsets_bytes);
    }
    attn_problem_desc(problem, &desc);
    attn_must(attn_create(device, problem->kind, &desc, NULL, 0, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, (const int32_t *)(const void *)fences[5].data,
                        problem->num_segments, (const int32_t *)(const void *)fences[6].data,
                        problem->num_segments, problem->causal));
    attn_must(
        attn_run(&wrapper, NULL, &tensors[0], &tensors[1], &tensors[2], &tensors[3], &tensors[4]));
    attn_destroy(&wrapper);
    int64_t rows = attn_problem_tokens(problem);
    assert_true(attn_same_bits(&data.out.tensor, 0, &tensors[3], 0, rows));
    assert_true(attn_same_bits(&data.lse.tensor, 0, &tensors[4], 0, rows));
    for (int i = 0; i < 7; i++)
        fault_unfence(&fences[i]);
    attn_data_free(&data);
}

static void word_after_the_offsets(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "no_oob");
    fault_says(c, "guard",
               "word after each offsets array = 0x7FFFFFFF; 4 KiB guard pages round out");
    fault_problem(c, &problem);
    for (int64_t i = problem.num_segments + 1; i <= ATTN_MAX_SEGMENTS; i++) {
        problem.q_offsets[i] = INT32_MAX;
        problem.kv_offsets[i] = INT32_MAX;
    }
    fault_match(c, &problem, NULL);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        run_fenced(&problem, fault_isas.device[isa], true);
        run_fenced(&problem, fault_isas.device[isa], false);
    }
}

/* 1 to 8 segments of the case's lengths and of tile edges, all ends fenced. */
static void many_segments_fenced(void **state)
{
    static const int64_t edges[] = {127, 129, 255, 1, 63, 65, 71, 73};
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "no_oob");
    fault_says(c, "guard", "memory checker on");
    fault_problem(c, &problem);
    for (int i = 0; i < 4; i++)
        assert_int_equal(problem.q_offsets[i + 1] - problem.q_offsets[i], edges[i]);
    fault_match(c, &problem, NULL);
    int32_t heads = problem.num_qo_heads;
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int64_t count = 1; count <= 8; count++) {
            /* the full number of heads on the case's own four segments */
            problem.num_qo_heads = problem.num_kv_heads = count == 4 ? heads : 2;
            fault_lengths(&problem, edges, edges, count);
            run_fenced(&problem, fault_isas.device[isa], count % 2 == 0);
        }
}

/* Graph mode with rubbish in the workspace, then a plan with many more keys. */
static void rubbish_in_the_workspace(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_says(c, "before", "fill the plan workspace with 0xFF");
    assert_true(fault_flag(c, "use_graph"));
    assert_false(fault_flag(c, "split_kv"));
    fault_problem(c, &problem);
    problem.kind = ATTN_PREFIXED;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        const int64_t one[] = {1, 1};
        const int64_t many[] = {8192, 8192};
        mstar_ragged_prefill_desc desc;
        attn_wrapper wrapper;
        size_t bytes = 0;
        attn_problem_desc(&problem, &desc);
        desc.accelerator_graph = 1;
        desc.max_num_segments = 2;
        desc.max_total_tokens = 2;
        desc.max_total_kv_tokens = 2 * 8192;
        attn_must(attn_workspace_query(fault_isas.device[isa], ATTN_PREFIXED, &desc, &bytes));
        unsigned char *workspace = level_take(fault_isas.device[isa], bytes);
        level_set(fault_isas.device[isa], workspace, 0xFF, bytes);
        attn_must(
            attn_create(fault_isas.device[isa], ATTN_PREFIXED, &desc, workspace, bytes, &wrapper));
        for (int step = 0; step < 3; step++) { /* 2 keys, 8192, 2 again */
            attn_problem now = problem;
            attn_data direct;
            attn_data graph;
            if (step == 1)
                fault_lengths(&now, one, many, 2);
            now.kind = ATTN_PREFIXED;
            attn_data_make(&now, &direct);
            attn_data_make(&now, &graph);
            attn_problem_run(&now, fault_isas.device[isa], NULL, &direct);
            level_set(fault_isas.device[isa], workspace, 0xFF, bytes);
            fault_plan_run(&wrapper, &now, &graph);
            fault_same(&now, &direct, 0, &graph, 0, 2);
            attn_data_free(&direct);
            attn_data_free(&graph);
        }
        attn_destroy(&wrapper);
        level_give(fault_isas.device[isa], workspace);
    }
    fault_match(c, &problem, NULL);
}

/*
 * The whole triangle over 16384 tokens takes minutes on a CPU. Every row is computed under a window
 * of 512 keys, and the last 8 rows over all 16384.
 */
static void totals_round_16384(void **state)
{
    fault_case *c = *state;
    const json_t *sets = fault_get(c, "lens_sets");
    attn_problem problem;
    fault_problem(c, &problem);
    if (!fault_large_runs())
        fault_skip(c, "16384 tokens of 32 heads are for the release preset");
    for (size_t i = 0; i < json_array_size(sets); i++) {
        int64_t lens[16];
        int64_t count = fault_json_list(json_array_get(sets, i), lens, 16);
        attn_reference reference;
        attn_data data;
        problem.values = ATTN_POOL;
        problem.window_left = 511;
        fault_lengths(&problem, lens, lens, count);
        int64_t rows = attn_problem_tokens(&problem);
        bool *wanted = calloc((size_t)rows, sizeof *wanted);
        assert_non_null(wanted);
        wanted[0] = wanted[1023] = wanted[rows / 2] = wanted[rows - 1] = true;
        attn_data_make(&problem, &data);
        attn_problem_run(&problem, fault_best(), NULL, &data);
        attn_reference_make_rows(&problem, &data, wanted, &reference);
        assert_true(attn_reference_check(&problem, &data, &reference,
                                         fault_isas.name[fault_isas.count - 1]));
        attn_reference_free(&reference);
        attn_data_free(&data);
        free(wanted);
        const int64_t last = 8;
        const int64_t keys = lens[0];
        attn_problem end = problem;
        end.window_left = -1;
        fault_lengths(&end, &last, &keys, 1);
        attn_data_make(&end, &data);
        attn_problem_run(&end, fault_best(), NULL, &data);
        wanted = calloc(8, sizeof *wanted);
        assert_non_null(wanted);
        wanted[0] = wanted[7] = true;
        attn_reference_make_rows(&end, &data, wanted, &reference);
        assert_true(
            attn_reference_check(&end, &data, &reference, fault_isas.name[fault_isas.count - 1]));
        attn_reference_free(&reference);
        attn_data_free(&data);
        free(wanted);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-043", spare_rows),
        FAULT("BR-044", spare_slots),
        FAULT("BR-045", spare_slots_of_blocks),
        FAULT("BR-046", spare_rows),
        FAULT("BR-047", hidden_key),
        FAULT("BR-048", rows_past_the_plan_stay),
        FAULT("BR-052", word_after_the_offsets),
        FAULT("BR-053", many_segments_fenced),
        FAULT("BR-054", rubbish_in_the_workspace),
        FAULT("BR-056", totals_round_16384),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
