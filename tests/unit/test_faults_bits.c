/*
 * test_faults_bits.c - cases K12, K15 and K22 of the known faults: a segment's bits are its own,
 * whatever stands beside it, however often, on any number of threads, one call over another.
 */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support_faults.h"

/* ---- K12: neighbours ------------------------------------------------------------------------- */

/* Each segment as a call of its own has the bits that it has in the batch. */
static void check_alone(const attn_problem *problem)
{
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data whole;
        attn_data alone;
        attn_data_make(problem, &whole);
        attn_data_make(problem, &alone);
        attn_problem_run(problem, fault_isas.device[isa], NULL, &whole);
        for (int64_t i = 0; i < problem->num_segments; i++)
            attn_problem_run_part(problem, fault_isas.device[isa], NULL, &whole, &alone, i, i + 1);
        fault_same(problem, &whole, 0, &alone, 0, attn_problem_tokens(problem));
        attn_data_free(&whole);
        attn_data_free(&alone);
    }
}

static void alone_as_in_the_batch(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_outcome(c, "equal_to");
    fault_problem(c, &problem);
    check_alone(&problem);
    fault_match(c, &problem, NULL);
}

/* Copies the first segment's q, k and v over the second's, which is as long. */
static void repeat_first_segment(const attn_problem *problem, attn_data *data)
{
    int64_t q = problem->q_offsets[1];
    int64_t kv = problem->kv_offsets[1];
    attn_copy_rows(&data->q.tensor, q, &data->q.tensor, 0, q);
    attn_copy_rows(&data->k.tensor, kv, &data->k.tensor, 0, kv);
    attn_copy_rows(&data->v.tensor, kv, &data->v.tensor, 0, kv);
}

static void equal_segments(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    if (fault_has(c, "values"))
        fault_says(c, "values", "both sequences identical, fill every key/value slot");
    fault_want(c, "empty_rows");
    fault_problem(c, &problem);
    problem.values = ATTN_POOL;
    int64_t rows = problem.q_offsets[1];
    int32_t heads = problem.num_qo_heads;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data data;
        /* all heads on the highest level of the release preset, two elsewhere */
        bool all =
            fault_work(&problem) < 1e9 || (fault_large_runs() && isa == fault_isas.count - 1);
        if (!all)
            problem.num_qo_heads = problem.num_kv_heads = 2;
        else if (fault_work(&problem) > 1e9)
            problem.num_qo_heads = problem.num_kv_heads = heads;
        attn_data_make(&problem, &data);
        repeat_first_segment(&problem, &data);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
        fault_same(&problem, &data, 0, &data, rows, rows);
        for (int64_t head = 0; head < problem.num_qo_heads; head++) {
            float sum = 0.0F;
            for (int64_t d = 0; d < problem.head_dim; d++)
                sum += fabsf(attn_get(&data.out.tensor, rows, head, d));
            assert_true(isfinite(sum) && sum > 0.0F);
        }
        problem.num_qo_heads = heads;
        attn_data_free(&data);
    }
}

/* The neighbour's length, and rubbish in its keys, leave sequence 0 alone. Keys are not split on
 * the CPU; the number of splits of the case is the number of threads here. */
static void a_long_neighbour(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_problem(c, &problem);
    int32_t threads = (int32_t)fault_integer(c, "force_splits");
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        mstar_device *device = attn_open(fault_isas.name[isa], threads, NULL);
        const int64_t q[] = {1, 1};
        attn_data first;
        attn_data_make(&problem, &first);
        attn_problem_run(&problem, device, NULL, &first);
        for (int64_t other = 0; other <= 3000; other += 750) {
            attn_problem p = problem;
            attn_data data;
            const int64_t kv[] = {problem.kv_offsets[1], other};
            fault_lengths(&p, q, kv, 2);
            attn_data_make(&p, &data);
            const mstar_tensor *from[] = {&first.q.tensor, &first.k.tensor, &first.v.tensor};
            const mstar_tensor *to[] = {&data.q.tensor, &data.k.tensor, &data.v.tensor};
            for (int i = 0; i < 3; i++)
                for (int64_t row = 0; row < (i == 0 ? 1 : kv[0]); row++)
                    for (int64_t head = 0; head < p.num_qo_heads; head++)
                        for (int64_t d = 0; d < p.head_dim; d++)
                            attn_set(to[i], row, head, d, attn_get(from[i], row, head, d));
            attn_problem_run(&p, device, NULL, &data);
            fault_same(&problem, &first, 0, &data, 0, 1);
            attn_data_free(&data);
        }
        attn_data_free(&first);
        attn_close(device);
    }
    fault_match(c, &problem, NULL);
}

/* ---- K15: again, elsewhere, in other company ------------------------------------------------- */

/* Direct, and in graph mode with room for more. */
static void direct_and_graph(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    attn_problem other;
    const json_t *a = fault_get(c, "a");
    const json_t *b = fault_get(c, "b");
    fault_outcome(c, "bitwise_equal");
    assert_string_equal(json_string_value(json_object_get(a, "mode")), "direct");
    assert_string_equal(json_string_value(json_object_get(b, "mode")), "graph, bucket 8");
    fault_problem_with(c, a, &problem);
    fault_problem_with(c, b, &other);
    assert_memory_equal(problem.kv_offsets, other.kv_offsets, sizeof problem.kv_offsets);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data direct;
        attn_data graph;
        attn_wrapper wrapper = fault_graph(fault_isas.device[isa], &problem, 8, 8, 8 * 777);
        attn_data_make(&problem, &direct);
        attn_data_make(&problem, &graph);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &direct);
        fault_plan_run(&wrapper, &problem, &graph);
        fault_same(&problem, &direct, 0, &graph, 0, 1);
        attn_destroy(&wrapper);
        attn_data_free(&direct);
        attn_data_free(&graph);
    }
}

/* Runs a problem again on a device; the bits must be those of want. */
static void run_again(const attn_problem *problem, mstar_device *device, const attn_data *want,
                      attn_data *data, int64_t times)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_problem_desc(problem, &desc);
    attn_must(attn_create(device, problem->kind, &desc, NULL, 0, &wrapper));
    for (int64_t i = 0; i < times; i++) {
        attn_data_reset_outputs(data);
        fault_plan_run(&wrapper, problem, data);
        fault_same(problem, want, 0, data, 0, attn_problem_tokens(problem));
    }
    attn_destroy(&wrapper);
}

static void many_times(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_problem_from(fault_get(c, "inner"), &problem);
    assert_int_equal(problem.num_segments, 3);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data want;
        attn_data data;
        attn_data_make(&problem, &want);
        attn_data_make(&problem, &data);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &want);
        run_again(&problem, fault_isas.device[isa], &want, &data, fault_integer(c, "times"));
        attn_data_free(&want);
        attn_data_free(&data);
    }
    fault_match(c, &problem, NULL);
}

static void any_number_of_threads(void **state)
{
    fault_case *c = *state;
    int64_t threads[8];
    int64_t count = fault_list(c, "threads", threads, 8);
    attn_problem problem;
    fault_problem_from(fault_get(c, "inner"), &problem);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data want;
        attn_data data;
        attn_data_make(&problem, &want);
        attn_data_make(&problem, &data);
        for (int64_t i = 0; i < count; i++) {
            mstar_device *device = attn_open(fault_isas.name[isa], (int32_t)threads[i], NULL);
            if (i == 0)
                attn_problem_run(&problem, device, NULL, &want);
            run_again(&problem, device, &want, &data, 4);
            attn_close(device);
        }
        attn_data_free(&want);
        attn_data_free(&data);
    }
    fault_match(c, &problem, NULL);
}

static int64_t threads_of_this_process(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int64_t count = 0;
    assert_non_null(tasks);
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count;
}

/* One thread means that no other one is started anywhere. */
static void one_thread_is_one_thread(void **state)
{
    fault_case *c = *state;
    int64_t threads[2];
    attn_problem problem;
    int64_t times = fault_integer(c, "times");
    assert_int_equal(fault_list(c, "threads", threads, 2), 1);
    fault_problem_from(fault_get(c, "inner"), &problem);
    problem.values = ATTN_POOL;
    int32_t heads = problem.num_qo_heads;
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        bool all = fault_large_runs() && isa == fault_isas.count - 1;
        attn_data want;
        attn_data data;
        int64_t before = threads_of_this_process();
        mstar_device *device = attn_open(fault_isas.name[isa], (int32_t)threads[0], NULL);
        problem.num_qo_heads = problem.num_kv_heads = all ? heads : 1;
        attn_data_make(&problem, &want);
        attn_data_make(&problem, &data);
        attn_problem_run(&problem, device, NULL, &want);
        run_again(&problem, device, &want, &data, all ? times : 2);
        assert_int_equal(threads_of_this_process(), before);
        attn_close(device);
        attn_data_free(&want);
        attn_data_free(&data);
    }
}

static void one_and_two_sequences(void **state)
{
    fault_case *c = *state;
    attn_problem one;
    attn_problem two;
    fault_problem_with(c, fault_get(c, "a"), &one);
    fault_problem_with(c, fault_get(c, "b"), &two);
    assert_int_equal(one.q_offsets[1], two.q_offsets[1]);
    check_alone(&two);
    fault_match(c, &one, NULL);
    fault_match(c, &two, NULL);
}

/* ---- K22: one call over another -------------------------------------------------------------- */

/* Two layouts planned and run in turn on one wrapper, and their offsets overwritten as soon as plan
 * returns: what a copy that is still on its way would read. */
static void plan_after_plan(const attn_problem *problems, int count, int64_t times)
{
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        mstar_ragged_prefill_desc desc;
        attn_wrapper wrapper;
        attn_data want[2];
        attn_data data[2];
        bool best = isa == fault_isas.count - 1;
        attn_problem_desc(&problems[0], &desc);
        attn_must(attn_create(fault_isas.device[isa], problems[0].kind, &desc, NULL, 0, &wrapper));
        for (int i = 0; i < count; i++) {
            attn_data_make(&problems[i], &want[i]);
            attn_data_make(&problems[i], &data[i]);
            attn_problem_run(&problems[i], fault_isas.device[isa], NULL, &want[i]);
        }
        for (int64_t t = 0; t < (best ? times : times / 20); t++)
            for (int i = 0; i < count; i++) {
                attn_problem p = problems[i];
                attn_must(attn_plan(&wrapper, NULL, p.q_offsets, p.num_segments, p.kv_offsets,
                                    p.num_segments, p.causal));
                memset(p.q_offsets, 0xFF, sizeof p.q_offsets);
                memset(p.kv_offsets, 0xFF, sizeof p.kv_offsets);
                attn_must(attn_run(&wrapper, NULL, &data[i].q.tensor, &data[i].k.tensor,
                                   &data[i].v.tensor, &data[i].out.tensor, data[i].lse_tensor));
                fault_same(&problems[i], &want[i], 0, &data[i], 0,
                           attn_problem_tokens(&problems[i]));
            }
        for (int i = 0; i < count; i++) {
            attn_data_free(&want[i]);
            attn_data_free(&data[i]);
        }
        attn_destroy(&wrapper);
    }
}

static void two_plans_in_a_row(void **state)
{
    fault_case *c = *state;
    const json_t *plans = fault_get(c, "plans");
    attn_problem problems[2];
    fault_says(c, "device_busy", "1 ms kernel first");
    assert_int_equal(json_array_size(plans), 2);
    for (size_t i = 0; i < 2; i++) {
        fault_problem_with(c, json_array_get(plans, i), &problems[i]);
        problems[i].kind = ATTN_PREFIXED;
        problems[i].num_qo_heads = problems[i].num_kv_heads = 1;
        problems[i].head_dim = 8;
        problems[i].values = ATTN_POOL;
    }
    plan_after_plan(problems, 2, fault_integer(c, "times"));
}

/* plan takes host offsets and has copied them when it returns. */
static void offsets_are_read_before_plan_returns(void **state)
{
    fault_case *c = *state;
    const int64_t lens[] = {3, 0, 9, 1};
    const int64_t more[] = {1, 30, 0, 2};
    attn_problem problems[2];
    fault_says(c, "offsets_on", "device");
    for (int i = 0; i < 2; i++) {
        attn_problem_init(&problems[i]);
        fault_lengths(&problems[i], lens, i == 0 ? lens : more, 4);
        problems[i].kind = ATTN_PREFIXED;
        problems[i].head_dim = 16;
    }
    plan_after_plan(problems, 2, fault_integer(c, "times"));
}

typedef struct worker {
    const attn_problem *problem;
    const attn_data *want;
    mstar_device *device;
    int64_t times, wrong;
    bool own_stream;
} worker;

static void *work(void *context)
{
    worker *w = context;
    const attn_problem *p = w->problem;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_stream *stream = NULL;
    attn_data data;
    attn_data_make(p, &data);
    attn_problem_desc(p, &desc);
    w->wrong = w->times;
    if (attn_create(w->device, p->kind, &desc, NULL, 0, &wrapper) != MSTAR_OK)
        return NULL;
    if (w->own_stream && mstar_stream_create(w->device, -1, &stream) != MSTAR_OK)
        return NULL;
    w->wrong = 0;
    for (int64_t i = 0; i < w->times; i++) {
        attn_data_reset_outputs(&data);
        bool same =
            attn_plan(&wrapper, stream, p->q_offsets, p->num_segments, p->kv_offsets,
                      p->num_segments, p->causal) == MSTAR_OK &&
            attn_run(&wrapper, stream, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                     &data.out.tensor, data.lse_tensor) == MSTAR_OK &&
            attn_same_bits(&w->want->out.tensor, 0, &data.out.tensor, 0, attn_problem_tokens(p));
        w->wrong += same ? 0 : 1;
    }
    mstar_stream_destroy(stream);
    attn_destroy(&wrapper);
    attn_data_free(&data);
    return NULL;
}

/* So many threads at once on one device, each with a plan (and stream) of its own; a quarter as
 * often on the levels below the best. */
static void at_once(const attn_problem *problem, int threads, int64_t times, bool own_stream)
{
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        worker workers[8];
        pthread_t ids[8];
        attn_data want;
        attn_data_make(problem, &want);
        attn_problem_run(problem, fault_isas.device[isa], NULL, &want);
        for (int i = 0; i < threads; i++) {
            workers[i] = (worker){.problem = problem,
                                  .want = &want,
                                  .device = fault_isas.device[isa],
                                  .times = isa == fault_isas.count - 1 ? times : times / 4,
                                  .own_stream = own_stream};
            assert_int_equal(pthread_create(&ids[i], NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < threads; i++)
            assert_int_equal(pthread_join(ids[i], NULL), 0);
        for (int i = 0; i < threads; i++)
            assert_int_equal(workers[i].wrong, 0);
        attn_data_free(&want);
    }
}

static void same_shape_on_two_streams(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_threads(c);
    assert_true(fault_flag(c, "same_shape"));
    fault_problem(c, &problem);
    assert_int_equal(problem.num_segments, 512);
    at_once(&problem, 2, fault_integer(c, "times"), true);
}

static void host_threads(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_threads(c);
    fault_problem(c, &problem);
    at_once(&problem, (int)fault_integer(c, "threads"), fault_integer(c, "times"), false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-107", alone_as_in_the_batch),
        FAULT("BR-108", equal_segments),
        FAULT("BR-109", a_long_neighbour),
        FAULT("BR-111", equal_segments),
        FAULT("BR-112", alone_as_in_the_batch),
        FAULT("BR-127", direct_and_graph),
        FAULT("BR-129", many_times),
        FAULT("BR-130", any_number_of_threads),
        FAULT_HOST("BR-131", one_thread_is_one_thread),
        FAULT("BR-132", one_and_two_sequences),
        FAULT("BR-204", two_plans_in_a_row),
        FAULT("BR-205", offsets_are_read_before_plan_returns),
        FAULT("BR-208", same_shape_on_two_streams),
        FAULT("BR-209", host_threads),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
