/*
 * test_attention_poison.c - what a call must not read has NaN or infinity in it, what it must not
 * write has a canary, and pages without access stand at the ends of the tensors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "support_attn.h"
#include "support_card.h"

static attn_isas isas;
static const float poisons[] = {NAN, INFINITY, -INFINITY};
#define NUM_POISONS 3

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

static int32_t kv_row_dim(const attn_problem *problem)
{
    return problem->kv_layout == MSTAR_KV_HND ? 1 : 0;
}

/* A batch with every kind of segment; one dtype, layout and mask a number. */
static void make_batch(int number, attn_problem *problem)
{
    attn_problem_init(problem);
    problem->seed = (uint64_t)(700 + number);
    problem->kind = ATTN_PREFIXED;
    problem->num_qo_heads = 4;
    problem->num_kv_heads = 2;
    problem->head_dim = number % 2 == 0 ? 20 : 64;
    problem->dtype = (mstar_dtype)(number % 3);
    problem->kv_layout = number % 4 < 2 ? MSTAR_KV_NHD : MSTAR_KV_HND;
    problem->causal = number % 2;
    problem->window_left = number % 5 == 4 ? 6 : -1;
    problem->gaps = number % 3 != 0;
    problem->extra_rows = 4;
    attn_problem_add(problem, 3, 7);
    attn_problem_add(problem, 0, 4);
    attn_problem_add(problem, 40, 66);
    attn_problem_add(problem, 5, 0);
    attn_problem_add(problem, 1, 129);
    attn_problem_add(problem, 9, 2);
}

/* Rows past the plan: NaN, infinities and zeros there give the same bits, and eager mode leaves the
 * rows of out past the plan, all gaps and guards, and all inputs as they were. */
static void rows_past_the_plan(void **state)
{
    (void)state;
    for (int number = 0; number < 12; number++)
        for (int32_t isa = 0; isa < isas.count; isa++) {
            attn_problem problem;
            attn_data zero;
            attn_data poisoned;
            make_batch(number, &problem);
            attn_data_make(&problem, &zero);
            attn_data_make(&problem, &poisoned);
            int64_t rows = attn_problem_tokens(&problem);
            int64_t keys = attn_problem_kv_tokens(&problem);
            int32_t dim = kv_row_dim(&problem);
            attn_fill_rows(&zero.q.tensor, 0, rows, rows + 4, 0.0F);
            attn_fill_rows(&zero.k.tensor, dim, keys, keys + 4, 0.0F);
            attn_fill_rows(&zero.v.tensor, dim, keys, keys + 4, 0.0F);
            attn_problem_run(&problem, isas.device[isa], NULL, &zero);
            for (int i = 0; i < NUM_POISONS; i++) {
                attn_fill_rows(&poisoned.q.tensor, 0, rows, rows + 4, poisons[i]);
                attn_fill_rows(&poisoned.k.tensor, dim, keys, keys + 4, poisons[i]);
                attn_fill_rows(&poisoned.v.tensor, dim, keys, keys + 4, poisons[i]);
                attn_data_reset_outputs(&poisoned);
                attn_block *blocks[] = {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.out,
                                        &poisoned.lse};
                unsigned char *before[5];
                for (int b = 0; b < 5; b++)
                    before[b] = attn_block_copy(blocks[b]);
                attn_problem_run(&problem, isas.device[isa], NULL, &poisoned);
                assert_true(attn_same_bits(&zero.out.tensor, 0, &poisoned.out.tensor, 0, rows));
                assert_true(attn_same_bits(&zero.lse.tensor, 0, &poisoned.lse.tensor, 0, rows));
                for (int b = 0; b < 5; b++) {
                    assert_true(attn_block_same_outside(blocks[b], before[b], 0, b < 3 ? 0 : rows));
                    free(before[b]);
                }
            }
            attn_data_free(&zero);
            attn_data_free(&poisoned);
        }
}

/* Every segment but one full of poison: that one's rows keep their bits. */
static void other_segments(void **state)
{
    (void)state;
    for (int number = 0; number < 12; number++)
        for (int32_t isa = 0; isa < isas.count; isa++) {
            attn_problem problem;
            attn_data clean;
            make_batch(number, &problem);
            attn_data_make(&problem, &clean);
            attn_problem_run(&problem, isas.device[isa], NULL, &clean);
            for (int64_t kept = 0; kept < problem.num_segments; kept++)
                for (int i = 0; i < NUM_POISONS; i++) {
                    attn_data poisoned;
                    attn_data_make(&problem, &poisoned);
                    for (int64_t s = 0; s < problem.num_segments; s++) {
                        if (s == kept)
                            continue;
                        attn_fill_rows(&poisoned.q.tensor, 0, problem.q_offsets[s],
                                       problem.q_offsets[s + 1], poisons[i]);
                        attn_fill_rows(&poisoned.k.tensor, kv_row_dim(&problem),
                                       problem.kv_offsets[s], problem.kv_offsets[s + 1],
                                       poisons[i]);
                        attn_fill_rows(&poisoned.v.tensor, kv_row_dim(&problem),
                                       problem.kv_offsets[s], problem.kv_offsets[s + 1],
                                       poisons[i]);
                    }
                    attn_problem_run(&problem, isas.device[isa], NULL, &poisoned);
                    int64_t first = problem.q_offsets[kept];
                    int64_t rows = problem.q_offsets[kept + 1] - first;
                    assert_true(attn_same_bits(&clean.out.tensor, first, &poisoned.out.tensor,
                                               first, rows));
                    assert_true(attn_same_bits(&clean.lse.tensor, first, &poisoned.lse.tensor,
                                               first, rows));
                    attn_data_free(&poisoned);
                }
            attn_data_free(&clean);
        }
}

static bool sees(const attn_problem *problem, int64_t lq, int64_t lk, int64_t row, int64_t key)
{
    int64_t distance = key - (lk - lq + row);
    return (!problem->causal || distance <= 0) &&
           (problem->window_left < 0 || -distance <= problem->window_left) &&
           (problem->window_right < 0 || distance <= problem->window_right);
}

/* A NaN in V shows wherever the key has a weight; an infinite score makes a row NaN as well. */
static bool shows(const mstar_tensor *out, int64_t row)
{
    for (int64_t head = 0; head < out->shape[1]; head++)
        for (int64_t d = 0; d < out->shape[2]; d++) {
            if (!isfinite(attn_get(out, row, head, d)))
                return true;
        }
    return false;
}

/*
 * One key of a segment poisoned in K, in V or in both: rows that do not see it keep their bits, and
 * rows that do see a NaN show it (so the poison was really there).
 */
static void masked_keys_of_the_segment(void **state)
{
    static const struct {
        int64_t lq, lk, left, right;
        int causal;
    } masks[] = {
        {40, 40, -1, -1, 1}, {20, 70, -1, -1, 1},   {70, 20, -1, -1, 1},  {90, 90, 3, -1, 1},
        {66, 66, 0, 0, 0},   {30, 150, 5, 2, 0},    {140, 140, 64, 1, 0}, {50, 45, -1, 7, 0},
        {3, 130, 1, -1, 1},  {100, 100, 33, -1, 0}, {1, 200, 10, -1, 1},
    };
    (void)state;
    for (size_t m = 0; m < sizeof masks / sizeof masks[0]; m++)
        for (int32_t isa = 0; isa < isas.count; isa++) {
            attn_problem problem;
            attn_data clean;
            attn_problem_init(&problem);
            problem.seed = 800 + m;
            problem.kind = ATTN_PREFIXED;
            problem.num_qo_heads = 3;
            problem.head_dim = m % 2 == 0 ? 8 : 19;
            problem.dtype = (mstar_dtype)(m % 3);
            problem.causal = masks[m].causal;
            problem.window_left = masks[m].left;
            problem.window_right = masks[m].right;
            attn_problem_add(&problem, 2, 3);
            attn_problem_add(&problem, masks[m].lq, masks[m].lk);
            attn_problem_add(&problem, 2, 3);
            attn_data_make(&problem, &clean);
            attn_problem_run(&problem, isas.device[isa], NULL, &clean);
            for (int64_t key = 0; key < masks[m].lk; key += 1 + masks[m].lk / 30)
                for (int which = 1; which <= 3; which++)
                    for (int i = 0; i < NUM_POISONS; i++) {
                        attn_data poisoned;
                        attn_data_make(&problem, &poisoned);
                        if (which & 1)
                            attn_fill_rows(&poisoned.k.tensor, 0, 3 + key, 4 + key, poisons[i]);
                        if (which & 2)
                            attn_fill_rows(&poisoned.v.tensor, 0, 3 + key, 4 + key, poisons[i]);
                        attn_problem_run(&problem, isas.device[isa], NULL, &poisoned);
                        for (int64_t row = 0; row < masks[m].lq; row++) {
                            if (sees(&problem, masks[m].lq, masks[m].lk, row, key)) {
                                if (i == 0 && !shows(&poisoned.out.tensor, 2 + row))
                                    fail_msg("%s, %s: row %d hides the NaN of key %d",
                                             isas.name[isa], attn_problem_text(&problem), (int)row,
                                             (int)key);
                                continue;
                            }
                            if (!attn_same_bits(&clean.out.tensor, 2 + row, &poisoned.out.tensor,
                                                2 + row, 1) ||
                                !attn_same_bits(&clean.lse.tensor, 2 + row, &poisoned.lse.tensor,
                                                2 + row, 1))
                                fail_msg("%s, %s: row %d does not see key %d, whose poison %g (in "
                                         "%d: 1 K, 2 V) changed it",
                                         isas.name[isa], attn_problem_text(&problem), (int)row,
                                         (int)key, (double)poisons[i], which);
                        }
                        attn_data_free(&poisoned);
                    }
            attn_data_free(&clean);
        }
}

/* ---- the workspace --------------------------------------------------------------------------- */

/* A caller's workspace of the exact size: canaries on both sides stay, and what was in it before
 * (NaN, or anything) never shows. */
static void workspace_ends_and_contents(void **state)
{
    enum { CANARY = 256 };
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (int number = 0; number < 6; number++) {
            attn_problem problem;
            attn_data own;
            attn_data given;
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            size_t bytes = 0;
            make_batch(number, &problem);
            attn_data_make(&problem, &own);
            attn_data_make(&problem, &given);
            attn_problem_run(&problem, isas.device[isa], NULL, &own);
            attn_problem_desc(&problem, &desc);
            attn_must(attn_workspace_query(isas.device[isa], problem.kind, &desc, &bytes));
            static _Alignas(64) unsigned char of_the_host[64];
            if (level_is_card())
                attn_refused(attn_create(isas.device[isa], problem.kind, &desc, of_the_host, bytes,
                                         &wrapper),
                             MSTAR_INVALID_ARGUMENT, "workspace is", "no memory of the wrapper's");
            size_t whole = bytes + 2 * (size_t)CANARY;
            unsigned char *block = level_take(isas.device[isa], whole);
            for (int fill = 0; fill <= 255; fill += 255) {
                level_set(isas.device[isa], block, 0xC3, whole);
                level_set(isas.device[isa], block + CANARY, fill, bytes);
                attn_must(attn_create(isas.device[isa], problem.kind, &desc, block + CANARY, bytes,
                                      &wrapper));
                attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, problem.num_segments,
                                    problem.kv_offsets, problem.num_segments, problem.causal));
                attn_data_reset_outputs(&given);
                attn_must(attn_run(&wrapper, NULL, &given.q.tensor, &given.k.tensor,
                                   &given.v.tensor, &given.out.tensor, given.lse_tensor));
                attn_destroy(&wrapper);
                int64_t rows = attn_problem_tokens(&problem);
                assert_true(attn_same_bits(&own.out.tensor, 0, &given.out.tensor, 0, rows));
                assert_true(attn_same_bits(&own.lse.tensor, 0, &given.lse.tensor, 0, rows));
                level_expect(isas.device[isa], block, 0xC3, CANARY);
                level_expect(isas.device[isa], block + CANARY + bytes, 0xC3, CANARY);
            }
            level_give(isas.device[isa], block);
            attn_data_free(&own);
            attn_data_free(&given);
        }
}

/* ---- graph mode's tail ----------------------------------------------------------------------- */

static void expect_tail(const attn_data *data, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < data->out.tensor.shape[1]; head++) {
            float lse = attn_get(&data->lse.tensor, row, head, 0);
            assert_true(isinf(lse) && lse < 0.0F);
            for (int64_t d = 0; d < data->out.tensor.shape[2]; d++) {
                float value = attn_get(&data->out.tensor, row, head, d);
                assert_true(value >= 0.0F && value <= 0.0F && !signbit(value));
            }
        }
}

/* The tail of out is poisoned before each run: exact zeros and -inf up to out's own rows, and not a
 * byte in gaps or past them. */
static void graph_tail_is_cleared(void **state)
{
    static const int64_t lengths[][4] = {
        {128, 128, 128, 128}, {100, 60, 30, 0}, {7, 0, 0, 0}, {0, 0, 0, 0}, {64, 64, 64, 64}};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (int number = 0; number < 6; number++) {
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            attn_problem shape;
            make_batch(number, &shape);
            attn_problem_desc(&shape, &desc);
            desc.accelerator_graph = 1;
            desc.max_num_segments = 4;
            desc.max_total_tokens = 512;
            attn_must(attn_create(isas.device[isa], ATTN_SELF, &desc, NULL, 0, &wrapper));
            for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
                attn_problem problem = shape;
                attn_data data;
                attn_data eager;
                problem.kind = ATTN_SELF;
                problem.num_segments = 0;
                for (int i = 0; i < 4; i++)
                    attn_problem_add(&problem, lengths[l][i], 0);
                int64_t rows = attn_problem_tokens(&problem);
                problem.extra_rows =
                    512 - rows - (int64_t)l; /* out may be shorter than the ceiling */
                if (problem.extra_rows < 0)
                    problem.extra_rows = 0;
                attn_data_make(&problem, &data);
                attn_data_make(&problem, &eager);
                attn_problem_run(&problem, isas.device[isa], NULL, &eager);
                attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, 4, NULL, 0, problem.causal));
                int64_t all = rows + problem.extra_rows;
                attn_fill_rows(&data.out.tensor, 0, 0, all, NAN);
                unsigned char *out = attn_block_copy(&data.out);
                unsigned char *lse = attn_block_copy(&data.lse);
                attn_must(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                                   &data.out.tensor, data.lse_tensor));
                assert_true(attn_same_bits(&eager.out.tensor, 0, &data.out.tensor, 0, rows));
                assert_true(attn_same_bits(&eager.lse.tensor, 0, &data.lse.tensor, 0, rows));
                expect_tail(&data, rows, all);
                assert_true(attn_block_same_outside(&data.out, out, 0, all));
                assert_true(attn_block_same_outside(&data.lse, lse, 0, all));
                free(out);
                free(lse);
                attn_data_free(&data);
                attn_data_free(&eager);
            }
            attn_destroy(&wrapper);
        }
}

/* ---- pages without access -------------------------------------------------------------------- */

/* bytes of memory that end (or start) at a page that may not be touched. */
typedef struct fenced {
    unsigned char *pages;
    size_t mapped;
    unsigned char *data;
} fenced;

static fenced fence(size_t bytes, bool at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (bytes + page - 1) / page * page + page;
    fenced made = {.mapped = inner + 2 * page};
    made.pages = mmap(NULL, made.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(made.pages != MAP_FAILED);
    assert_int_equal(mprotect(made.pages + page, inner, PROT_READ | PROT_WRITE), 0);
    made.data = at_end ? made.pages + page + inner - bytes : made.pages + page;
    return made;
}

/* q, k, v, out, lse and the workspace each with their last (or first) byte at such a page. */
static void fenced_tensors(void **state)
{
    static const int32_t dims[] = {1, 3, 8, 17, 33, 64, 100, 255};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
            for (int variant = 0; variant < 12; variant++) {
                attn_problem problem;
                attn_data data;
                mstar_ragged_prefill_desc desc;
                attn_wrapper wrapper;
                size_t workspace_bytes = 0;
                bool at_end = variant % 2 == 0;
                attn_problem_init(&problem);
                problem.seed = 900 + d;
                problem.kind = ATTN_PREFIXED;
                problem.num_qo_heads = 2;
                problem.head_dim = dims[d];
                problem.dtype = (mstar_dtype)(variant / 2 % 3);
                problem.kv_layout = variant / 6 == 0 ? MSTAR_KV_NHD : MSTAR_KV_HND;
                problem.causal = 1;
                attn_problem_add(&problem, 5, 3);
                attn_problem_add(&problem, 1, 66);
                attn_problem_add(&problem, 3, 7);
                attn_data_make(&problem, &data);
                attn_problem_run(&problem, isas.device[isa], NULL, &data);

                attn_block *blocks[] = {&data.q, &data.k, &data.v, &data.out, &data.lse};
                fenced fences[6];
                mstar_tensor tensors[5];
                for (int i = 0; i < 5; i++) {
                    uintptr_t first;
                    uintptr_t end;
                    mst_tensor_extent(&blocks[i]->tensor, &first, &end);
                    fences[i] = fence(end - first, at_end);
                    memcpy(fences[i].data, blocks[i]->tensor.data, end - first);
                    tensors[i] = blocks[i]->tensor;
                    tensors[i].data = fences[i].data;
                    if (i >= 3)
                        memset(fences[i].data, 0xA5, end - first);
                }
                attn_problem_desc(&problem, &desc);
                attn_must(
                    attn_workspace_query(isas.device[isa], problem.kind, &desc, &workspace_bytes));
                assert_int_equal(workspace_bytes % 64, 0); /* else its end cannot be fenced */
                fences[5] = fence(workspace_bytes, at_end);
                void *workspace =
                    level_is_card() ? NULL : fences[5].data; /* a GPU's has no pages */
                attn_must(attn_create(isas.device[isa], problem.kind, &desc, workspace,
                                      workspace_bytes, &wrapper));
                attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, problem.num_segments,
                                    problem.kv_offsets, problem.num_segments, problem.causal));
                attn_must(attn_run(&wrapper, NULL, &tensors[0], &tensors[1], &tensors[2],
                                   &tensors[3], &tensors[4]));
                attn_destroy(&wrapper);
                assert_true(attn_same_bits(&data.out.tensor, 0, &tensors[3], 0, 9));
                assert_true(attn_same_bits(&data.lse.tensor, 0, &tensors[4], 0, 9));
                for (int i = 0; i < 6; i++)
                    assert_int_equal(munmap(fences[i].pages, fences[i].mapped), 0);
                attn_data_free(&data);
            }
}

/* A stream of n threads leaves all pieces of the workspace but the first n as they were, which is
 * what lets the workspaces of serial runs overlap. */
static void pieces_past_the_stream(void **state)
{
    if (level_is_card()) /* which has neither */
        skip();
    (void)state;
    for (int number = 0; number < 6; number++)
        for (int32_t isa = 0; isa < isas.count; isa++) {
            attn_problem problem;
            attn_data data;
            mstar_ragged_prefill_desc desc;
            mstar_stream *stream = NULL;
            attn_wrapper wrapper;
            size_t bytes = 0;
            make_batch(number, &problem);
            attn_data_make(&problem, &data);
            attn_problem_desc(&problem, &desc);
            attn_must(attn_workspace_query(isas.device[isa], problem.kind, &desc, &bytes));
            assert_int_equal(bytes % (2 * 64), 0); /* two threads: two whole pieces */
            unsigned char *workspace = aligned_alloc(64, bytes);
            assert_non_null(workspace);
            memset(workspace, 0x5a, bytes);
            attn_must(mstar_stream_create(isas.device[isa], 1, &stream));
            attn_must(
                attn_create(isas.device[isa], problem.kind, &desc, workspace, bytes, &wrapper));
            attn_must(attn_plan(&wrapper, stream, problem.q_offsets, problem.num_segments,
                                problem.kv_offsets, problem.num_segments, problem.causal));
            attn_must(attn_run(&wrapper, stream, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                               &data.out.tensor, data.lse_tensor));
            size_t used = 0;
            for (size_t i = 0; i < bytes / 2; i++)
                used += workspace[i] != 0x5a;
            assert_true(used > 0);
            for (size_t i = bytes / 2; i < bytes; i++)
                assert_int_equal(workspace[i], 0x5a);
            attn_destroy(&wrapper);
            mstar_stream_destroy(stream);
            free(workspace);
            attn_data_free(&data);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_past_the_plan),         cmocka_unit_test(other_segments),
        cmocka_unit_test(masked_keys_of_the_segment), cmocka_unit_test(workspace_ends_and_contents),
        cmocka_unit_test(graph_tail_is_cleared),      cmocka_unit_test(fenced_tensors),
        cmocka_unit_test(pieces_past_the_stream),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
