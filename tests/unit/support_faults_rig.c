/* support_faults_rig.c - see support_faults_rig.h. */
#include "support_faults_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static mstar_ragged_prefill_info info_of(const attn_wrapper *wrapper)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    attn_must(attn_query(wrapper, &info));
    return info;
}

/* Static tensors of so many rows, and one run of them recorded. */
static void capture(fault_rig *rig, int32_t isa, const attn_problem *shape)
{
    attn_problem all = *shape;
    all.num_segments = 0;
    all.extra_rows = 0;
    attn_problem_add(&all, rig->rows, rig->keys);
    attn_data_make(&all, &rig->fixed[isa]);
    const attn_data *fixed = &rig->fixed[isa];
    attn_must(mstar_stream_create(fault_isas.device[isa], -1, &rig->stream[isa]));
    attn_must(attn_capture(&rig->wrapper[isa], rig->stream[isa], fixed, &rig->graph[isa]));
}

void fault_rig_make(fault_rig *rig, const attn_problem *shape, int64_t segments, int64_t rows,
                    int64_t keys)
{
    *rig = (fault_rig){.segments = segments, .rows = rows, .keys = keys};
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        rig->wrapper[isa] = fault_graph(fault_isas.device[isa], shape, segments, rows, keys + rows);
        mstar_ragged_prefill_info info = info_of(&rig->wrapper[isa]);
        rig->offsets[isa][0] = info.q_offsets;
        rig->offsets[isa][1] = info.kv_offsets;
        /* as planned when it was captured */
        attn_must(attn_plan(&rig->wrapper[isa], NULL, shape->q_offsets, shape->num_segments,
                            shape->kv_offsets, shape->num_segments, shape->causal));
        capture(rig, isa, shape);
    }
}

void fault_rig_free(fault_rig *rig)
{
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_graph_destroy(rig->graph[isa]);
        mstar_stream_destroy(rig->stream[isa]);
        attn_destroy(&rig->wrapper[isa]);
        attn_data_free(&rig->fixed[isa]);
    }
}

/* Slots past the plan repeat the last offset: length 0, the one fill there is. */
static void check_offsets(const fault_rig *rig, int32_t isa, const attn_problem *problem)
{
    mstar_ragged_prefill_info info = info_of(&rig->wrapper[isa]);
    assert_ptr_equal(info.q_offsets, rig->offsets[isa][0]);
    assert_ptr_equal(info.kv_offsets, rig->offsets[isa][1]);
    assert_int_equal(info.num_segments, problem->num_segments);
    for (int64_t i = 0; i <= rig->segments; i++) {
        int64_t at = mst_min_i64(i, problem->num_segments);
        assert_int_equal(info.q_offsets[i], problem->q_offsets[at]);
        if (problem->kind != ATTN_SELF)
            assert_int_equal(info.kv_offsets[i], problem->kv_offsets[at]);
    }
}

/* The first rows of a static tensor, NaN after them. */
static void set_rows(const mstar_tensor *to, const mstar_tensor *from, int64_t rows)
{
    attn_fill_rows(to, 0, 0, to->shape[0], NAN);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < to->shape[1]; head++)
            for (int64_t d = 0; d < to->shape[2]; d++)
                attn_set(to, row, head, d, attn_get(from, row, head, d));
}

void fault_rig_replay(fault_rig *rig, int32_t isa, const attn_problem *problem,
                      const attn_data *data, const attn_data *direct)
{
    const attn_data *fixed = &rig->fixed[isa];
    int64_t rows = attn_problem_tokens(problem);
    int64_t keys = attn_problem_kv_tokens(problem);
    set_rows(&fixed->q.tensor, &data->q.tensor, rows);
    set_rows(&fixed->k.tensor, &data->k.tensor, keys);
    set_rows(&fixed->v.tensor, &data->v.tensor, keys);
    attn_fill_rows(&fixed->out.tensor, 0, 0, rig->rows, NAN);
    attn_must(attn_plan(&rig->wrapper[isa], NULL, problem->q_offsets, problem->num_segments,
                        problem->kv_offsets, problem->num_segments, problem->causal));
    attn_must(attn_replay(rig->graph[isa], rig->stream[isa]));
    fault_same(problem, direct, 0, fixed, 0, rows);
    fault_zero_rows(fixed, rows, rig->rows);
}

void fault_rig_step(fault_rig *rig, const attn_problem *given)
{
    attn_problem problem = *given;
    int64_t rows = attn_problem_tokens(&problem);
    problem.extra_rows = rig->rows - rows;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data direct;
        attn_data graph;
        attn_data_make(&problem, &direct);
        attn_data_make(&problem, &graph);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &direct);
        attn_fill_rows(&graph.out.tensor, 0, 0, rig->rows, NAN);
        const attn_block *inputs[] = {&graph.q, &graph.k, &graph.v};
        unsigned char *before[3];
        for (int i = 0; i < 3; i++)
            before[i] = attn_block_copy(inputs[i]);
        fault_plan_run(&rig->wrapper[isa], &problem, &graph);
        fault_same(&problem, &direct, 0, &graph, 0, rows);
        fault_zero_rows(&graph, rows, rig->rows);
        check_offsets(rig, isa, &problem);
        for (int i = 0; i < 3; i++) {
            assert_memory_equal(before[i], inputs[i]->bytes, inputs[i]->num_bytes);
            free(before[i]);
        }
        fault_rig_replay(rig, isa, &problem, &graph, &direct);
        attn_data_free(&direct);
        attn_data_free(&graph);
    }
}

/* The kind that all of the case's steps can be: self where no step has keys of its own. */
static void choose_kind(attn_problem *problems, int count)
{
    attn_kind kind = ATTN_SELF;
    for (int i = 0; i < count; i++) {
        if (problems[i].kind != ATTN_SELF)
            kind = problems[i].causal ? ATTN_PREFIXED : ATTN_CROSS;
    }
    for (int i = 0; i < count; i++)
        problems[i].kind = kind;
}

void fault_rig_for(fault_rig *rig, fault_case *c, attn_problem *problems, int count)
{
    int64_t segments = fault_has(c, "bucket") ? fault_integer(c, "bucket") : 1;
    int64_t rows = fault_has(c, "bucket_rows") ? fault_integer(c, "bucket_rows") : segments;
    int64_t keys = 0;
    if (fault_has(c, "max_rows"))
        rows = mst_max_i64(rows, fault_integer(c, "max_rows"));
    for (int i = 0; i < count; i++) {
        segments = mst_max_i64(segments, problems[i].num_segments);
        rows = mst_max_i64(rows, attn_problem_tokens(&problems[i]));
        keys = mst_max_i64(keys, attn_problem_kv_tokens(&problems[i]));
    }
    if (fault_has(c, "max_kv")) /* of one sequence */
        keys = mst_max_i64(keys, fault_integer(c, "max_kv"));
    choose_kind(problems, count);
    fault_rig_make(rig, &problems[0], segments, rows, keys);
}
