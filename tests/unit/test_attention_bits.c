/*
 * test_attention_bits.c - the promise of the header: the bits of a segment's rows depend on that
 * segment alone. Everything here compares memory, never with a tolerance.
 *
 * `test_attention_bits SEED` repeats one random problem.
 */
#include <pthread.h>
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
#include "support_check.h"

#define RANDOM_PROBLEMS 100
#define MAX_PRODUCTS 1000000

static attn_isas isas;
static uint64_t only_seed;

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

static void must(mstar_status status, const attn_problem *problem)
{
    if (status != MSTAR_OK)
        fail_msg("%s: %s", attn_problem_text(problem), mstar_last_error());
}

static void assert_same(const attn_problem *problem, const attn_data *a, const attn_data *b,
                        const char *what)
{
    int64_t rows = attn_problem_tokens(problem);
    if (!attn_same_bits(&a->out.tensor, 0, &b->out.tensor, 0, rows) ||
        (problem->return_lse && !attn_same_bits(&a->lse.tensor, 0, &b->lse.tensor, 0, rows)))
        fail_msg("%s: %s", what, attn_problem_text(problem));
}

/* Calls a check for each random problem, on each level, after one eager run into `whole`. */
typedef void (*problem_check)(const attn_problem *problem, mstar_device *device,
                              const attn_data *whole, attn_data *other);

static void for_random_problems(problem_check check, uint64_t first_seed, uint64_t count)
{
    count = (uint64_t)check_part((int64_t)count);
    for (uint64_t seed = first_seed; seed < first_seed + count; seed++) {
        attn_problem problem;
        attn_data whole;
        attn_data other;
        if (only_seed != 0 && seed != only_seed)
            continue;
        attn_problem_random(seed, MAX_PRODUCTS, &problem);
        attn_data_make(&problem, &whole);
        attn_data_make(&problem, &other);
        for (int32_t i = 0; i < isas.count; i++) {
            attn_problem_run(&problem, isas.device[i], NULL, &whole);
            check(&problem, isas.device[i], &whole, &other);
        }
        attn_data_free(&whole);
        attn_data_free(&other);
    }
}

static void check_alone(const attn_problem *problem, mstar_device *device, const attn_data *whole,
                        attn_data *other)
{
    attn_data_reset_outputs(other);
    for (int64_t i = 0; i < problem->num_segments; i++)
        attn_problem_run_part(problem, device, NULL, whole, other, i, i + 1);
    assert_same(problem, whole, other, "a segment alone differs from the batch");
}

static void alone_equals_batch(void **state)
{
    (void)state;
    for_random_problems(check_alone, 1, RANDOM_PROBLEMS);
}

/* The batch cut in two at every place, each part on a stream of its own. */
static void check_streams(const attn_problem *problem, mstar_device *device, const attn_data *whole,
                          attn_data *other)
{
    mstar_stream *one = NULL;
    mstar_stream *all = NULL;
    must(mstar_stream_create(device, 1, &one), problem);
    must(mstar_stream_create(device, -1, &all), problem);
    for (int64_t cut = 0; cut <= problem->num_segments; cut += 1 + problem->num_segments / 7) {
        attn_data_reset_outputs(other);
        attn_problem_run_part(problem, device, one, whole, other, 0, cut);
        attn_problem_run_part(problem, device, all, whole, other, cut, problem->num_segments);
        assert_same(problem, whole, other, "a split over two streams differs");
    }
    mstar_stream_destroy(one);
    mstar_stream_destroy(all);
}

static void any_split_over_streams(void **state)
{
    (void)state;
    for_random_problems(check_streams, 201, RANDOM_PROBLEMS / 3);
}

/* Graph mode at two ceilings, after another plan, equals eager. */
static void check_graph(const attn_problem *problem, mstar_device *device, const attn_data *whole,
                        attn_data *other)
{
    int64_t tokens = attn_problem_tokens(problem);
    int64_t kv_tokens = attn_problem_kv_tokens(problem);
    static const int32_t first[] = {0, 1};
    for (int64_t more = 0; more <= 50; more += 50) {
        mstar_ragged_prefill_desc desc;
        attn_wrapper wrapper;
        attn_problem_desc(problem, &desc);
        desc.accelerator_graph = 1;
        desc.max_num_segments = problem->num_segments + more / 10 + 1;
        desc.max_total_tokens = tokens + more + problem->extra_rows + 1;
        desc.max_total_kv_tokens = kv_tokens + 2 * more + problem->extra_rows + 1;
        must(attn_create(device, problem->kind, &desc, NULL, 0, &wrapper), problem);
        must(attn_plan(&wrapper, NULL, first, 1, first, 1, 0), problem);
        must(attn_plan(&wrapper, NULL, problem->q_offsets, problem->num_segments,
                       problem->kv_offsets, problem->num_segments, problem->causal),
             problem);
        attn_data_reset_outputs(other);
        must(attn_run(&wrapper, NULL, &whole->q.tensor, &whole->k.tensor, &whole->v.tensor,
                      &other->out.tensor, other->lse_tensor),
             problem);
        assert_same(problem, whole, other, "graph mode differs from eager");
        attn_destroy(&wrapper);
    }
}

static void graph_equals_eager(void **state)
{
    (void)state;
    for_random_problems(check_graph, 301, RANDOM_PROBLEMS / 2);
}

/* A host's pool that runs tasks backwards on the calling thread. */
static void backwards(void *host, int32_t num_tasks, mstar_parallel_task task, void *context)
{
    (void)host;
    for (int32_t i = num_tasks - 1; i >= 0; i--)
        task(context, i);
}

/* 1 to 5 threads, a stream of fewer, a host's pool, and the same run again. */
static void any_thread_count(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        mstar_device *devices[6];
        for (int32_t t = 0; t < 5; t++)
            devices[t] = attn_open(isas.name[isa], t + 1, NULL);
        devices[5] = attn_open(isas.name[isa], 3, backwards);
        for (uint64_t seed = 401; seed < 401 + (uint64_t)check_part(RANDOM_PROBLEMS / 4); seed++) {
            attn_problem problem;
            attn_data one;
            attn_data other;
            attn_problem_random(seed, MAX_PRODUCTS, &problem);
            attn_data_make(&problem, &one);
            attn_data_make(&problem, &other);
            attn_problem_run(&problem, devices[0], NULL, &one);
            for (int32_t t = 0; t < 6; t++) {
                attn_data_reset_outputs(&other);
                attn_problem_run(&problem, devices[t], NULL, &other);
                assert_same(&problem, &one, &other, "the number of threads changed bits");
            }
            mstar_stream *three = NULL;
            must(mstar_stream_create(devices[4], 3, &three), &problem);
            attn_data_reset_outputs(&other);
            attn_problem_run(&problem, devices[4], three, &other);
            assert_same(&problem, &one, &other, "a stream of three threads changed bits");
            mstar_stream_destroy(three);
            attn_data_free(&one);
            attn_data_free(&other);
        }
        for (int32_t t = 0; t < 6; t++)
            attn_close(devices[t]);
    }
}

/* One plan, many runs, on more threads than cores. */
static void repeated_runs(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        mstar_device *device = attn_open(isas.name[isa], 5, NULL);
        attn_problem problem;
        attn_data data;
        mstar_ragged_prefill_desc desc;
        attn_wrapper wrapper;
        attn_problem_init(&problem);
        problem.seed = 33;
        problem.num_qo_heads = 8;
        problem.num_kv_heads = 2;
        problem.head_dim = 64;
        problem.dtype = MSTAR_DTYPE_F16;
        attn_problem_add(&problem, 33, 33);
        attn_problem_add(&problem, 7, 7);
        attn_problem_add(&problem, 150, 150);
        attn_data_make(&problem, &data);
        attn_problem_desc(&problem, &desc);
        must(attn_create(device, problem.kind, &desc, NULL, 0, &wrapper), &problem);
        must(attn_plan(&wrapper, NULL, problem.q_offsets, 3, NULL, 0, 0), &problem);
        unsigned char *first = NULL;
        for (int i = 0; i < 25; i++) {
            attn_data_reset_outputs(&data);
            must(attn_run(&wrapper, NULL, &data.q.tensor, &data.k.tensor, &data.v.tensor,
                          &data.out.tensor, data.lse_tensor),
                 &problem);
            if (i == 0)
                first = attn_block_copy(&data.out);
            assert_memory_equal(data.out.bytes, first, data.out.num_bytes);
        }
        free(first);
        attn_destroy(&wrapper);
        attn_data_free(&data);
        attn_close(device);
    }
}

/* ---- two wrappers on two threads of one device ----------------------------------------------- */

typedef struct racer {
    const attn_problem *problem;
    const attn_data *want;
    attn_data *data;
    attn_wrapper wrapper;
    mstar_stream *stream;
    bool good;
} racer;

static void *race(void *context)
{
    racer *r = context;
    const attn_problem *p = r->problem;
    r->good = true;
    for (int i = 0; i < 30 && r->good; i++) {
        attn_data_reset_outputs(r->data);
        if (attn_plan(&r->wrapper, r->stream, p->q_offsets, p->num_segments, p->kv_offsets,
                      p->num_segments, p->causal) != MSTAR_OK ||
            attn_run(&r->wrapper, r->stream, &r->data->q.tensor, &r->data->k.tensor,
                     &r->data->v.tensor, &r->data->out.tensor, r->data->lse_tensor) != MSTAR_OK)
            r->good = false;
        else
            r->good = attn_same_bits(&r->want->out.tensor, 0, &r->data->out.tensor, 0,
                                     attn_problem_tokens(p));
    }
    return NULL;
}

/* Without a stream of its own (one racer) and with one (the other). */
static void two_wrappers_on_two_threads(void **state)
{
    if (level_is_card() && !card_is_real()) /* the mock is one thread's */
        skip();
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++) {
        mstar_device *device = attn_open(isas.name[isa], 3, NULL);
        attn_problem problem[2];
        attn_data want[2];
        attn_data data[2];
        racer racers[2];
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            mstar_ragged_prefill_desc desc;
            attn_problem_init(&problem[i]);
            problem[i].seed = (uint64_t)(500 + i);
            problem[i].kind = i == 0 ? ATTN_SELF : ATTN_PREFIXED;
            problem[i].num_qo_heads = 4;
            problem[i].num_kv_heads = 2;
            problem[i].head_dim = 24 + 9 * i;
            problem[i].causal = i;
            attn_problem_add(&problem[i], 20, 40);
            attn_problem_add(&problem[i], 70 - 60 * i, 50);
            attn_data_make(&problem[i], &want[i]);
            attn_data_make(&problem[i], &data[i]);
            attn_problem_run(&problem[i], device, NULL, &want[i]);
            racers[i] = (racer){.problem = &problem[i], .want = &want[i], .data = &data[i]};
            attn_problem_desc(&problem[i], &desc);
            must(attn_create(device, problem[i].kind, &desc, NULL, 0, &racers[i].wrapper),
                 &problem[i]);
        }
        must(mstar_stream_create(device, -1, &racers[1].stream), &problem[1]);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < 2; i++) {
            assert_true(racers[i].good);
            attn_destroy(&racers[i].wrapper);
            mstar_stream_destroy(racers[i].stream);
            attn_data_free(&want[i]);
            attn_data_free(&data[i]);
        }
        attn_close(device);
    }
}

/* ---- neighbours ------------------------------------------------------------------------------ */

/* The same segment twice in a batch gives the same rows twice, at odd places too. */
static void equal_segments_give_equal_rows(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (int dtype = 0; dtype < 3; dtype++) {
            attn_problem problem;
            attn_data data;
            attn_problem_init(&problem);
            problem.seed = 1296;
            problem.num_qo_heads = 4;
            problem.num_kv_heads = 2;
            problem.head_dim = 80;
            problem.dtype = (mstar_dtype)dtype;
            attn_problem_add(&problem, 81, 81);
            attn_problem_add(&problem, 1, 1);
            attn_problem_add(&problem, 81, 81);
            attn_problem_add(&problem, 81, 81);
            attn_data_make(&problem, &data);
            const mstar_tensor *tensors[] = {&data.q.tensor, &data.k.tensor, &data.v.tensor};
            for (int i = 0; i < 3; i++)
                for (int64_t row = 0; row < 81; row++)
                    for (int64_t head = 0; head < tensors[i]->shape[1]; head++)
                        for (int64_t d = 0; d < 80; d++) {
                            float value = attn_get(tensors[i], row, head, d);
                            attn_set(tensors[i], 82 + row, head, d, value);
                            attn_set(tensors[i], 163 + row, head, d, value);
                        }
            attn_problem_run(&problem, isas.device[isa], NULL, &data);
            assert_true(attn_same_bits(&data.out.tensor, 0, &data.out.tensor, 82, 81));
            assert_true(attn_same_bits(&data.out.tensor, 0, &data.out.tensor, 163, 81));
            assert_true(attn_same_bits(&data.lse.tensor, 0, &data.lse.tensor, 163, 81));
            attn_data_free(&data);
        }
}

/* A key capacity larger than the segment, and one long neighbour, change nothing. */
static void capacity_and_long_neighbours(void **state)
{
    static const int64_t lengths[][2] = {{5, 1500}, {37, 0}, {5, 4096}};
    (void)state;
    for (int32_t isa = 0; isa < isas.count; isa++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            attn_problem problem;
            attn_data whole;
            attn_data other;
            attn_problem_init(&problem);
            problem.seed = 600 + i;
            problem.kind = ATTN_CROSS;
            problem.num_qo_heads = 4;
            problem.num_kv_heads = 4;
            problem.head_dim = 16;
            problem.extra_rows = 64;
            attn_problem_add(&problem, 1, lengths[i][0]);
            attn_problem_add(&problem, 1, lengths[i][1]);
            attn_data_make(&problem, &whole);
            attn_data_make(&problem, &other);
            attn_problem_run(&problem, isas.device[isa], NULL, &whole);
            check_alone(&problem, isas.device[isa], &whole, &other);
            attn_data_free(&whole);
            attn_data_free(&other);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_equals_batch),
        cmocka_unit_test(any_split_over_streams),
        cmocka_unit_test(graph_equals_eager),
        cmocka_unit_test(any_thread_count),
        cmocka_unit_test(repeated_runs),
        cmocka_unit_test(two_wrappers_on_two_threads),
        cmocka_unit_test(equal_segments_give_equal_rows),
        cmocka_unit_test(capacity_and_long_neighbours),
    };
    level_choose(argc, argv);
    if (argc > 1 && !level_is_card())
        only_seed = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
