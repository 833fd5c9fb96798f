/*
 * test_faults_workspace.c - cases K16 and K21 of the known faults that wrappers answer: what a call
 * may touch is known before it, nothing is taken while it runs, and nothing is left after.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_card.h"
#include "support_faults.h"

enum { CANARY = 256 };

/* A host's pool on the calling thread: devices of any number of units without their threads. */
static void one_after_the_other(void *host, int32_t num_tasks, mstar_parallel_task task,
                                void *context)
{
    (void)host;
    for (int32_t i = 0; i < num_tasks; i++)
        task(context, i);
}

static mstar_device *device_of_units(int64_t units)
{
    mstar_device_desc desc;
    mstar_device *device = NULL;
    mstar_device_desc_init(&desc);
    desc.num_threads = (int32_t)units;
    desc.parallel_for = one_after_the_other;
    attn_must(mstar_device_open("cpu", &desc, &device));
    return device;
}

/* max_batch, max_rows, max_kv, hq, hkv, d and use_graph of a bound. */
static void read_bound(const json_t *bound, mstar_ragged_prefill_desc *desc)
{
    mstar_ragged_prefill_desc_init(desc);
    desc->num_qo_heads = (int32_t)json_integer_value(json_object_get(bound, "hq"));
    desc->num_kv_heads = (int32_t)json_integer_value(json_object_get(bound, "hkv"));
    desc->head_dim = (int32_t)json_integer_value(json_object_get(bound, "d"));
    desc->accelerator_graph = 1;
    desc->max_num_segments = json_integer_value(json_object_get(bound, "max_batch"));
    desc->max_total_tokens = json_integer_value(json_object_get(bound, "max_rows"));
    desc->max_total_kv_tokens = json_integer_value(json_object_get(bound, "max_kv"));
}

/* A workspace of the exact size between canaries. */
typedef struct bounded {
    mstar_device *device;
    unsigned char *block;
    size_t bytes;
    attn_wrapper wrapper;
} bounded;

/* One byte less is refused with both figures; the exact size is taken. */
static bounded make_bounded(mstar_device *device, attn_kind kind,
                            const mstar_ragged_prefill_desc *desc)
{
    bounded made = {.device = device};
    char given[64];
    char needed[64];
    attn_must(attn_workspace_query(device, kind, desc, &made.bytes));
    assert_true(made.bytes > 0);
    made.block = level_take(device, made.bytes + 2 * (size_t)CANARY);
    level_set(device, made.block, 0xC3, made.bytes + 2 * (size_t)CANARY);
    snprintf(given, sizeof given, "workspace_bytes is %zu", made.bytes - 1);
    snprintf(needed, sizeof needed, "needs %zu", made.bytes);
    attn_refused(
        attn_create(device, kind, desc, made.block + CANARY, made.bytes - 1, &made.wrapper),
        MSTAR_INVALID_ARGUMENT, given, needed);
    attn_must(attn_create(device, kind, desc, made.block + CANARY, made.bytes, &made.wrapper));
    return made;
}

static void check_canaries(const bounded *b)
{
    level_expect(b->device, b->block, 0xC3, CANARY);
    level_expect(b->device, b->block + CANARY + b->bytes, 0xC3, CANARY);
}

static void free_bounded(bounded *b)
{
    attn_destroy(&b->wrapper);
    level_give(b->device, b->block);
}

static mstar_ragged_prefill_info info_of(const attn_wrapper *wrapper)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    attn_must(attn_query(wrapper, &info));
    return info;
}

/* Lengths under a bound: few or many segments, up to all rows and keys. */
static void draw_layout(check_rng *rng, const mstar_ragged_prefill_desc *desc, int64_t rows,
                        int64_t keys, attn_problem *problem)
{
    problem->num_segments = 0;
    int64_t count = check_integer(rng, 0, desc->max_num_segments);
    for (int64_t i = 0; i < count; i++) {
        int64_t lq = check_integer(rng, 0, mst_min_i64(rows, 2 * rows / count + 1));
        int64_t lk = check_integer(rng, 0, mst_min_i64(keys, 2 * keys / count + 1));
        rows -= lq;
        keys -= lk;
        attn_problem_add(problem, lq, lk);
    }
}

static void run_drawn(const bounded *b, const attn_problem *problem)
{
    attn_data data;
    attn_data_make(problem, &data);
    attn_must(attn_run(&b->wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                       &data.out.tensor, data.lse_tensor));
    attn_data_free(&data);
    check_canaries(b);
}

/* 1000 random batches within the bound: every plan is taken in the storage there is, and runs of
 * the smaller ones stay inside the workspace. What a run touches does not depend on the layout. */
static void random_batches_within_the_bound(void **state)
{
    fault_case *c = *state;
    int64_t units[8];
    int64_t count = fault_list(c, "units", units, 8);
    mstar_ragged_prefill_desc desc;
    size_t former = 0;
    fault_outcome(c, "bounded_bytes");
    read_bound(fault_get(c, "bound"), &desc);
    for (int64_t u = 0; u < count; u++) {
        mstar_device *device = device_of_units(units[u]);
        bounded b = make_bounded(device, ATTN_PREFIXED, &desc);
        size_t plan_bytes = info_of(&b.wrapper).plan_bytes;
        check_rng rng = {(uint64_t)units[u]};
        attn_problem problem;
        attn_problem_init(&problem);
        problem.kind = ATTN_PREFIXED;
        problem.dtype = MSTAR_DTYPE_BF16;
        problem.num_qo_heads = desc.num_qo_heads;
        problem.num_kv_heads = desc.num_kv_heads;
        problem.head_dim = desc.head_dim;
        problem.return_lse = 0;
        assert_true(b.bytes > former); /* it grows with the units */
        former = b.bytes;
        for (int i = 0; i < 1000; i++) {
            bool small = i % 100 == 0;
            draw_layout(&rng, &desc, small ? 40 : desc.max_total_tokens,
                        small ? 100 : desc.max_total_kv_tokens, &problem);
            attn_must(attn_plan(&b.wrapper, NULL, problem.q_offsets, problem.num_segments,
                                problem.kv_offsets, problem.num_segments, i % 2));
            assert_int_equal(info_of(&b.wrapper).plan_bytes, plan_bytes);
            if (small)
                run_drawn(&b, &problem);
        }
        free_bounded(&b);
        attn_must(mstar_device_close(device));
    }
}

/* The bound at its own figures: as many segments as it has, run in the exact workspace. */
static void the_bound_itself(void **state)
{
    fault_case *c = *state;
    const json_t *bound = fault_get(c, "bound");
    int64_t units[8] = {2};
    int64_t count = fault_has(c, "units") ? fault_list(c, "units", units, 8) : 1;
    const json_t *lse = fault_has(c, "return_lse") ? fault_get(c, "return_lse") : NULL;
    for (int64_t u = 0; u < count; u++)
        for (size_t want_lse = 0; want_lse < (lse != NULL ? json_array_size(lse) : 1); want_lse++) {
            mstar_ragged_prefill_desc desc;
            attn_problem problem;
            mstar_device *device = device_of_units(units[u]);
            read_bound(bound, &desc);
            desc.return_lse = lse != NULL && json_is_true(json_array_get(lse, want_lse)) ? 1 : 0;
            bounded b = make_bounded(device, ATTN_PREFIXED, &desc);
            attn_problem_init(&problem);
            problem.kind = ATTN_PREFIXED;
            problem.dtype = MSTAR_DTYPE_BF16;
            problem.num_qo_heads = desc.num_qo_heads;
            problem.num_kv_heads = desc.num_kv_heads;
            problem.head_dim = desc.head_dim;
            problem.return_lse = desc.return_lse;
            for (int64_t i = 0; i < desc.max_num_segments; i++)
                attn_problem_add(&problem, 1, i % 6);
            assert_true(attn_problem_kv_tokens(&problem) <= desc.max_total_kv_tokens);
            attn_must(attn_plan(&b.wrapper, NULL, problem.q_offsets, problem.num_segments,
                                problem.kv_offsets, problem.num_segments, 0));
            run_drawn(&b, &problem);
            free_bounded(&b);
            attn_must(mstar_device_close(device));
        }
}

/* ---- shared workspaces ----------------------------------------------------------------------- */

typedef struct shared_user {
    attn_problem problem;
    attn_wrapper wrapper;
    attn_data want, data;
} shared_user;

static void make_user(shared_user *user, mstar_device *device, void *workspace, size_t bytes,
                      int64_t graph_segments)
{
    mstar_ragged_prefill_desc desc;
    attn_problem_desc(&user->problem, &desc);
    if (graph_segments > 0) {
        desc.accelerator_graph = 1;
        desc.max_num_segments = graph_segments;
        desc.max_total_tokens = attn_problem_tokens(&user->problem);
        desc.max_total_kv_tokens = attn_problem_kv_tokens(&user->problem);
    }
    attn_must(attn_create(device, user->problem.kind, &desc, workspace, bytes, &user->wrapper));
    attn_data_make(&user->problem, &user->want);
    attn_data_make(&user->problem, &user->data);
    attn_problem_run(&user->problem, device, NULL, &user->want);
}

static void run_user(const shared_user *user)
{
    fault_plan_run(&user->wrapper, &user->problem, &user->data);
    fault_same(&user->problem, &user->want, 0, &user->data, 0, attn_problem_tokens(&user->problem));
}

static void free_user(shared_user *user)
{
    attn_destroy(&user->wrapper);
    attn_data_free(&user->want);
    attn_data_free(&user->data);
}

static void shape_user(shared_user *user, attn_kind kind, int32_t heads, int32_t kv_heads,
                       int32_t dim, int64_t window_left)
{
    attn_problem_init(&user->problem);
    user->problem.kind = kind;
    user->problem.dtype = MSTAR_DTYPE_BF16;
    user->problem.num_qo_heads = heads;
    user->problem.num_kv_heads = kv_heads;
    user->problem.head_dim = dim;
    user->problem.window_left = window_left;
    user->problem.causal = kind == ATTN_PREFIXED;
}

/* Two kinds of call over one workspace, with rubbish in it before each. */
static void rubbish_between_calls(void **state)
{
    fault_case *c = *state;
    const json_t *calls = fault_get(c, "calls");
    fault_says(c, "workspace_between", "fill with 0xFF");
    assert_int_equal(json_array_size(calls), 3);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        shared_user users[2];
        size_t most = 0;
        shape_user(&users[0], ATTN_SELF, 8, 2, 64, -1); /* prefill */
        attn_problem_add(&users[0].problem, 70, 70);
        attn_problem_add(&users[0].problem, 5, 5);
        shape_user(&users[1], ATTN_PREFIXED, 8, 2, 128, -1); /* decode */
        attn_problem_add(&users[1].problem, 1, 300);
        attn_problem_add(&users[1].problem, 1, 7);
        for (int i = 0; i < 2; i++) {
            mstar_ragged_prefill_desc desc;
            size_t bytes;
            attn_problem_desc(&users[i].problem, &desc);
            attn_must(
                attn_workspace_query(fault_isas.device[isa], users[i].problem.kind, &desc, &bytes));
            most = bytes > most ? bytes : most;
        }
        unsigned char *workspace = level_take(fault_isas.device[isa], most);
        for (int i = 0; i < 2; i++)
            make_user(&users[i], fault_isas.device[isa], workspace, most, 0);
        for (size_t i = 0; i < 3; i++) {
            bool decode = strstr(json_string_value(json_array_get(calls, i)), "decode") != NULL;
            assert_int_equal(decode, i == 1);
            level_set(fault_isas.device[isa], workspace, 0xFF, most);
            run_user(&users[decode]);
        }
        for (int i = 0; i < 2; i++)
            free_user(&users[i]);
        level_give(fault_isas.device[isa], workspace);
    }
}

/* Wrappers for so many buckets take one workspace; what is a wrapper's own stays under 1 MiB. */
static void buckets_share_a_workspace(void **state)
{
    fault_case *c = *state;
    int64_t plans = fault_integer(c, "plans");
    attn_wrapper wrappers[64];
    mstar_ragged_prefill_desc desc;
    size_t bytes = 0;
    mstar_memory_info before = {.struct_size = sizeof before};
    mstar_memory_info after = {.struct_size = sizeof after};
    read_bound(fault_get(c, "bound"), &desc);
    attn_must(attn_workspace_query(fault_best(), ATTN_PREFIXED, &desc, &bytes));
    void *workspace = level_take(fault_best(), bytes);
    assert_true(plans <= 64);
    attn_must(mstar_memory_query(&before));
    for (int64_t i = 0; i < plans; i++) {
        attn_must(attn_create(fault_best(), ATTN_PREFIXED, &desc, workspace, bytes, &wrappers[i]));
        assert_true(info_of(&wrappers[i]).plan_bytes < 1 << 20);
    }
    attn_must(mstar_memory_query(&after));
    assert_true(after.live_bytes - before.live_bytes < (uint64_t)plans << 20);
    for (int64_t i = 0; i < plans; i++)
        attn_destroy(&wrappers[i]);
    level_give(fault_best(), workspace);
}

/* Layers of two head dims in every bucket, all on one workspace, run in any order. 512 is refused
 * by name, and 128 stands in for it. */
static void layers_share_a_workspace(void **state)
{
    fault_case *c = *state;
    int64_t buckets[8];
    const json_t *layers = fault_get(c, "layers");
    int64_t count = fault_list(c, "buckets", buckets, 8);
    int64_t rows = fault_integer(c, "q_per_seq");
    size_t num_layers = json_array_size(layers);
    assert_true(count <= 4 && num_layers == 2);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        shared_user users[8];
        size_t most = 0;
        check_rng rng = {142};
        for (int64_t i = 0; i < 2 * count; i++) {
            const json_t *layer = json_array_get(layers, (size_t)(i % 2));
            const json_t *left = json_object_get(layer, "window_left");
            mstar_ragged_prefill_desc desc;
            size_t bytes;
            shape_user(&users[i], ATTN_PREFIXED,
                       (int32_t)json_integer_value(json_object_get(layer, "hq")),
                       (int32_t)json_integer_value(json_object_get(layer, "hkv")),
                       (int32_t)json_integer_value(json_object_get(layer, "d")),
                       left != NULL ? json_integer_value(left) : -1);
            for (int64_t s = 0; s < buckets[i / 2]; s++)
                attn_problem_add(&users[i].problem, rows, rows + 11 * s);
            attn_problem_desc(&users[i].problem, &desc);
            if (desc.head_dim > 256) {
                attn_refused(
                    attn_workspace_query(fault_isas.device[isa], ATTN_PREFIXED, &desc, &bytes),
                    MSTAR_INVALID_ARGUMENT, "head_dim is 512", "256");
                users[i].problem.head_dim = 128;
                desc.head_dim = 128;
            }
            attn_must(attn_workspace_query(fault_isas.device[isa], ATTN_PREFIXED, &desc, &bytes));
            most = bytes > most ? bytes : most;
        }
        void *workspace = level_take(fault_isas.device[isa], most);
        for (int64_t i = 0; i < 2 * count; i++)
            make_user(&users[i], fault_isas.device[isa], workspace, most, buckets[i / 2]);
        for (int i = 0; i < 40; i++)
            run_user(&users[check_integer(&rng, 0, 2 * count - 1)]);
        for (int64_t i = 0; i < 2 * count; i++)
            free_user(&users[i]);
        level_give(fault_isas.device[isa], workspace);
    }
}

/* ---- K21: memory over many cycles ------------------------------------------------------------ */

static void small_problem(attn_problem *problem)
{
    attn_problem_init(problem);
    problem->num_qo_heads = 2;
    problem->head_dim = 16;
    attn_problem_add(problem, 3, 3);
    attn_problem_add(problem, 5, 5);
}

static mstar_memory_info memory_now(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    attn_must(mstar_memory_query(&info));
    return info;
}

/* Made, planned, captured, replayed and destroyed: the library holds as much after as before. */
static void cycles_leave_nothing(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    attn_data data;
    int64_t cycles = fault_integer(c, "cycles");
    fault_says(c, "what", "plan+capture+replay+destroy");
    small_problem(&problem);
    attn_data_make(&problem, &data);
    mstar_memory_info before = memory_now();
    for (int64_t i = 0; i < cycles; i++) {
        attn_wrapper wrapper = fault_graph(fault_best(), &problem, 4, 16, 16);
        mstar_stream *stream = NULL;
        mstar_graph *graph = NULL;
        attn_must(mstar_stream_create(fault_best(), -1, &stream));
        fault_plan_run(&wrapper, &problem, &data);
        attn_must(attn_capture(&wrapper, stream, &data, &graph));
        attn_must(attn_replay(graph, stream));
        attn_graph_destroy(graph);
        mstar_stream_destroy(stream);
        attn_destroy(&wrapper);
        attn_problem_run(&problem, fault_best(), NULL, &data);
    }
    assert_int_equal(memory_now().live_bytes, before.live_bytes);
    assert_int_equal(memory_now().live_allocations, before.live_allocations);
    attn_data_free(&data);
}

/* Plans, runs and replays in graph mode take no memory at all. */
static void replays_take_nothing(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    attn_data data;
    int64_t cycles = fault_integer(c, "cycles");
    fault_says(c, "what", "replay");
    small_problem(&problem);
    attn_data_make(&problem, &data);
    attn_wrapper wrapper = fault_graph(fault_best(), &problem, 4, 16, 16);
    mstar_stream *stream = NULL;
    mstar_graph *graph = NULL;
    attn_must(mstar_stream_create(fault_best(), -1, &stream));
    fault_plan_run(&wrapper, &problem, &data);
    attn_must(attn_capture(&wrapper, stream, &data, &graph));
    mstar_memory_info before = memory_now();
    for (int64_t i = 0; i < cycles; i++) {
        if (level_is_card()) /* a run of it would be lent its tensors */
            attn_must(attn_plan(&wrapper, stream, problem.q_offsets, problem.num_segments,
                                problem.kv_offsets, problem.num_segments, problem.causal));
        else
            fault_plan_run(&wrapper, &problem, &data);
        attn_must(attn_replay(graph, stream));
    }
    assert_int_equal(memory_now().total_allocations, before.total_allocations);
    assert_int_equal(memory_now().live_bytes, before.live_bytes);
    attn_graph_destroy(graph);
    mstar_stream_destroy(stream);
    attn_destroy(&wrapper);
    attn_data_free(&data);
}

static int fail_number(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(const uint64_t *)context;
}

/* A create, or a capture, that is interrupted at any allocation leaves nothing, a hundred times
 * over, and the next capture on the stream is whole. */
static void interrupted_captures(void **state)
{
    fault_case *c = *state;
    int64_t cycles = fault_integer(c, "cycles");
    attn_problem problem;
    attn_data data;
    fault_says(c, "what", "capture with injected failure");
    small_problem(&problem);
    attn_data_make(&problem, &data);
    attn_wrapper ready = fault_graph(fault_best(), &problem, 4, 16, 16);
    mstar_stream *stream = NULL;
    attn_must(mstar_stream_create(fault_best(), -1, &stream));
    fault_plan_run(&ready, &problem, &data);
    mstar_memory_info before = memory_now();
    for (int64_t i = 0; i < 2 * cycles; i++) {
        mstar_status status = MSTAR_OUT_OF_MEMORY;
        for (uint64_t number = 1; status != MSTAR_OK; number++) {
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            mstar_graph *graph = NULL;
            attn_problem_desc(&problem, &desc);
            desc.accelerator_graph = 1;
            desc.max_num_segments = 4;
            desc.max_total_tokens = 16;
            mstar_set_alloc_fault(fail_number, &number);
            status = i % 2 ? attn_create(fault_best(), ATTN_SELF, &desc, NULL, 0, &wrapper)
                           : attn_capture(&ready, stream, &data, &graph);
            mstar_set_alloc_fault(NULL, NULL);
            assert_true(status == MSTAR_OK ? number > 1 : status == MSTAR_OUT_OF_MEMORY);
            if (status == MSTAR_OK && i % 2)
                attn_destroy(&wrapper);
            attn_graph_destroy(graph);
            assert_int_equal(memory_now().live_bytes, before.live_bytes);
        }
    }
    mstar_stream_destroy(stream);
    attn_destroy(&ready);
    attn_data_free(&data);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-133", random_batches_within_the_bound),
        FAULT("BR-137", the_bound_itself),
        FAULT("BR-138", the_bound_itself),
        FAULT("BR-139", the_bound_itself),
        FAULT("BR-140", rubbish_between_calls),
        FAULT("BR-141", buckets_share_a_workspace),
        FAULT("BR-142", layers_share_a_workspace),
        FAULT("BR-194", cycles_leave_nothing),
        FAULT("BR-195", replays_take_nothing),
        FAULT_HOST("BR-196", interrupted_captures),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
