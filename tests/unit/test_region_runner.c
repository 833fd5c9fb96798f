/*
 * test_region_runner.c - regions captured inside an eager forward: the bits of eager, zeroed tails,
 * results outside of what captures work in, slots, and captures that fail.
 */
#include "support_card.h"
#include "support_region.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "graph/region.h"

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_packed(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2}, totals[] = {128, 32, 64};
    static region_bench b;
    check_rng rng = {31};
    region_bench_open(&b, sizes, 2, 0, totals, 3);
    region_bench_start(&b);
    mstar_region_runner_info info = region_bench_query(&b);
    assert_int_equal(info.num_captured, 6);
    assert_int_equal(info.num_slots, 2); /* the manager asks for two */
    assert_int_equal(info.num_handles, 4);
    for (int round = 0; round < 3; round++) {
        (void)region_bench_check(&b, &rng, (int64_t[]){128}, 1, 1);
        (void)region_bench_check(&b, &rng, (int64_t[]){60, 20}, 2, 2);
        (void)region_bench_check(&b, &rng, (int64_t[]){5}, 1, 1);
        (void)region_bench_check(&b, &rng, (int64_t[]){0, 1}, 2, 2);
        (void)region_bench_check(&b, &rng, (int64_t[]){33}, 1, 1);
    }
    const int steps = level_is_card() ? 20 : 200;
    for (int i = 0; i < steps; i++) {
        int64_t lengths[2], bs = check_integer(&rng, 1, 2);
        for (int64_t j = 0; j < bs; j++)
            lengths[j] = check_integer(&rng, 0, 64);
        (void)region_bench_check(&b, &rng, lengths, bs, bs);
    }
    info = region_bench_query(&b);
    assert_int_equal(info.replays, 15 + steps);
    assert_true(info.tokens > 0 && info.padding_tokens > 0);
    region_bench_close(&b);
}

static void open_one_slot(region_bench *b, const int64_t *size, const int64_t *total)
{
    region_bench_open(b, size, 1, 0, total, 1);
    mstar_region_runner_desc desc = region_bench_desc(b);
    desc.num_slots = 1;
    CHECK_OK(mstar_region_runner_create(b->device, &desc, &b->runner));
    CHECK_OK(mstar_region_runner_prepare(b->runner));
    CHECK_OK(mstar_region_runner_capture(b->runner));
}

/* Views alias the runner's buffers; a copy outlives the next run. */
static void test_views_and_copies(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {16};
    static region_bench b;
    static float kept[16][NODE_WIDTH], before[16][NODE_WIDTH];
    check_rng rng = {32};
    open_one_slot(&b, sizes, totals);
    static region_rows r;
    region_bench_eager(&b, &rng, (int64_t[]){9}, 1, &r);
    mstar_region_result result = region_bench_run(&b, &r, (int64_t[]){9}, 1, 1);
    mstar_tensor copy = mstar_tensor_make(kept, MSTAR_DTYPE_F32, 2, (int64_t[]){9, NODE_WIDTH});
    CHECK_OK(mstar_region_result_copy(&result, "x", &copy));
    const void *address = mstar_tensors_find(result.outputs, "x")->data;
    memcpy(before, kept, sizeof before);
    CHECK_FAILED(mstar_region_result_copy(&result, "y", &copy), MSTAR_NOT_FOUND, "\"y\"");
    copy.shape[0] = 8;
    CHECK_INVALID(mstar_region_result_copy(&result, "x", &copy), "copy");
    const mstar_tensor *y = region_bench_check(&b, &rng, (int64_t[]){16}, 1, 1);
    assert_ptr_equal(y->data, address); /* the view of before shows the new run */
    static float now[16][NODE_WIDTH];
    region_bench_read(&b, y, now);
    assert_memory_not_equal(now, before, 9 * sizeof before[0]);
    assert_memory_equal(kept, before, sizeof before);
    region_bench_close(&b);
}

/* One request with many segments: a tower of images. */
static void test_many_segments(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {64};
    static region_bench b;
    check_rng rng = {33};
    region_bench_open(&b, sizes, 1, 0, totals, 1);
    node_close(&b.node); /* a manager of up to six segments a request */
    node_open(&b.node, b.device, 21);
    mstar_ragged_manager_desc manager;
    mstar_ragged_manager_desc_init(&manager);
    manager.num_qo_heads = manager.num_kv_heads = NODE_HEADS;
    manager.head_dim = NODE_DIM;
    manager.dtype = MSTAR_DTYPE_F32;
    manager.max_segments_per_request = 6;
    mstar_resource resource;
    CHECK_OK(mstar_ragged_manager_create(b.device, &manager, &b.node.manager));
    CHECK_OK(mstar_ragged_manager_get_resource(b.node.manager, "attn", &resource));
    CHECK_OK(mstar_resources_create(&resource, 1, &b.node.resources));
    region_bench_start(&b);
    (void)region_bench_check(&b, &rng, (int64_t[]){9, 8, 7, 6, 5, 4}, 6, 1);
    (void)region_bench_check(&b, &rng, (int64_t[]){30, 0, 20}, 3, 1);
    (void)region_bench_check(&b, &rng, (int64_t[]){64}, 1, 1);
    region_bench_close(&b);
}

static void test_batched(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4};
    static region_bench b;
    check_rng rng = {34};
    region_bench_open(&b, sizes, 2, 12, NULL, 0);
    region_bench_start(&b);
    (void)region_bench_check(&b, &rng, (int64_t[]){12}, 1, 1);
    (void)region_bench_check(&b, &rng, (int64_t[]){12, 12, 12, 12}, 4, 4);
    (void)region_bench_check(&b, &rng, (int64_t[]){12, 12}, 2,
                             2); /* padding rows are real work on zeros */
    (void)region_bench_check(&b, &rng, (int64_t[]){12, 12, 12}, 3, 3);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 5, -1), MSTAR_GRAPH_MISS_BATCH_SIZE);
    region_bench_close(&b);
}

static int64_t live_bytes(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_memory_query(&info));
    return (int64_t)info.live_bytes;
}

/* What is told before the captures is what they take: the graphs, and nothing else. */
static void test_bytes_known_before(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 3}, totals[] = {24, 64};
    static region_bench b;
    for (int round = 0; round < 4; round++) {
        region_bench_open(&b, sizes, 2, round % 2 == 0 ? 0 : 7, totals, 2);
        mstar_region_runner_desc desc = region_bench_desc(&b);
        desc.num_slots = 1 + round / 2;
        CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
        CHECK_OK(mstar_region_runner_prepare(b.runner));
        mstar_region_runner_info before = region_bench_query(&b);
        int64_t live = live_bytes();
        assert_true(before.graph_bytes > 0 && before.output_bytes > 0);
        CHECK_OK(mstar_region_runner_capture(b.runner));
        mstar_region_runner_info after = region_bench_query(&b);
        assert_int_equal(after.num_captured, after.num_shapes);
        assert_int_equal(live_bytes() - live, before.graph_bytes);
        assert_int_equal(after.graph_bytes, before.graph_bytes);
        assert_int_equal(after.output_bytes, before.output_bytes);
        assert_int_equal(after.static_input_bytes, before.static_input_bytes);
        region_bench_close(&b);
    }
}

/* The bench's config once more, to be specialised. */
static void compile_with(region_bench *b, const char *mode)
{
    mstar_piecewise_config_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_piecewise_config_query(b->config, &info));
    mstar_piecewise_config_desc desc;
    mstar_piecewise_packed_config_desc_init(&desc);
    desc.compile = 1;
    desc.compile_mode = mode;
    desc.capture_fn = info.capture_fn;
    desc.make_static_inputs = info.make_static_inputs;
    desc.declare_step = info.declare_step;
    desc.user = info.user;
    desc.forward_kwargs = info.forward_kwargs;
    desc.capture_batch_sizes = info.capture_batch_sizes;
    desc.num_capture_batch_sizes = info.num_capture_batch_sizes;
    desc.total_tokens = info.total_tokens;
    desc.num_total_tokens = info.num_total_tokens;
    mstar_piecewise_config *made;
    CHECK_OK(mstar_piecewise_packed_config_create(&desc, &made));
    mstar_piecewise_config_destroy(b->config);
    b->config = made;
}

static int64_t second_wins(void *user, int64_t place, int32_t candidate, void (*run)(void *context),
                           void *context)
{
    (void)place;
    run(context);
    ++*(int64_t *)user;
    return candidate == 1 ? 10 : 1000;
}

/* Regions are not specialised unless asked; then each capture on its own, with the same bits. */
static void test_compile(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2}, totals[] = {32, 64};
    static const char *const modes[] = {NULL, "default", "max-autotune-no-cudagraphs"};
    static region_bench b;
    check_rng rng = {37};
    for (int i = 0; i < 3; i++) {
        int64_t timed = 0;
        region_bench_open(&b, sizes, 1, 0, totals, 2);
        if (modes[i] != NULL)
            compile_with(&b, modes[i]);
        mstar_region_runner_desc desc = region_bench_desc(&b);
        CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
        b.runner->tuning = (mst_tuning){.measure = second_wins, .user = &timed};
        CHECK_OK(mstar_region_runner_prepare(b.runner));
        CHECK_OK(mstar_region_runner_capture(b.runner));
        mstar_region_runner_info info = region_bench_query(&b);
        assert_string_equal(info.compile_mode, i == 0 ? "none" : modes[i]);
        /* two products and attention; there is no choice in the copy that ends the region */
        assert_int_equal(info.specialised, i == 0 ? 0 : 2 * info.num_slots * 3);
        assert_true((timed > 0) == (i == 2));
        assert_true((info.tuned > 0) == (i == 2));
        assert_int_equal(info.dropped_choices, 0);
        assert_true(info.capture_ns > 0);
        (void)region_bench_check(&b, &rng, (int64_t[]){30, 34}, 2, 2);
        (void)region_bench_check(&b, &rng, (int64_t[]){20, 13}, 2, 2);
        (void)region_bench_check(&b, &rng, (int64_t[]){1}, 1, 1);
        region_bench_close(&b);
    }
}

/* Without requests no resource is touched: the plan of the run before still holds, and buffers that
 * are not named keep their contents. */
static void test_without_requests(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {16};
    static region_bench b;
    static region_rows r;
    check_rng rng = {37};
    open_one_slot(&b, sizes, totals);
    const int64_t lengths[] = {9};
    region_bench_eager(&b, &rng, lengths, 1, &r);
    (void)region_bench_run(&b, &r, lengths, 1, 1);
    mstar_ragged_manager_info before = {.struct_size = sizeof before}, after = before;
    CHECK_OK(mstar_ragged_manager_query(b.node.manager, &before));
    mstar_region_call call;
    mstar_region_result result = {.struct_size = sizeof result};
    mstar_region_call_init(&call);
    call.seq_lens = lengths;
    call.num_seq_lens = 1;
    CHECK_OK(mstar_region_runner_run(b.runner, &call, &result));
    assert_int_equal(result.real_len, 9);
    static float got[9][NODE_WIDTH];
    region_bench_read(&b, mstar_tensors_find(result.outputs, "x"), got);
    assert_memory_equal(got, r.want, sizeof got);
    call.real_bs = 2; /* it goes before the number of lengths */
    CHECK_FAILED(mstar_region_runner_run(b.runner, &call, &result), MSTAR_OUT_OF_ORDER,
                 "2 requests");
    CHECK_OK(mstar_ragged_manager_query(b.node.manager, &after));
    assert_int_equal(after.plans, before.plans);
    region_bench_close(&b);
}

static void test_can_run_and_lease(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4}, totals[] = {32, 64};
    static region_bench b;
    region_bench_open(&b, sizes, 2, 0, totals, 2);
    mstar_region_runner_desc desc = region_bench_desc(&b);
    CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
    assert_string_equal(mstar_region_runner_get_label(b.runner), "blocks");
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, 5), MSTAR_GRAPH_MISS_NOT_CAPTURED);
    CHECK_FAILED(mstar_region_runner_capture(b.runner), MSTAR_OUT_OF_ORDER, "before it was");
    CHECK_OK(mstar_region_runner_prepare(b.runner));
    CHECK_OK(mstar_region_runner_capture(b.runner));
    CHECK_FAILED(mstar_region_runner_prepare(b.runner), MSTAR_OUT_OF_ORDER, "prepared already");
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, 64), MSTAR_GRAPH_MISS_NONE);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, 65), MSTAR_GRAPH_MISS_TOKENS);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 1, -1), MSTAR_GRAPH_MISS_NOT_BUILT);
    assert_int_equal(mstar_region_runner_can_run(b.runner, 5, 5), MSTAR_GRAPH_MISS_BATCH_SIZE);
    mstar_node_input inputs[3] = {
        {.input_seq_len = 30}, {.input_seq_len = 30}, {.input_seq_len = 30}};
    assert_int_equal(mstar_region_runner_can_lease(b.runner, inputs, 2), 1);
    assert_int_equal(mstar_region_runner_can_lease(b.runner, inputs, 3), 0); /* 90 tokens */
    assert_int_equal(b.leases_asked, 1); /* asked only where a capture serves */
    inputs[2].input_seq_len = 0;
    assert_int_equal(mstar_region_runner_can_lease(b.runner, inputs, 3), 0); /* can_lease says so */
    assert_int_equal(b.leases_asked, 2);
    region_bench_close(&b);
}

static size_t bytes_of(const mstar_graph *graph)
{
    mstar_graph_info info = {.struct_size = sizeof info};
    if (graph == NULL)
        return 0;
    CHECK_OK(mstar_graph_query(graph, &info));
    return info.bytes;
}

/* Asks until the region can run, from a thread of its own. */
static void *ask_while_captured(void *context)
{
    const region_bench *b = context;
    const mstar_node_input input = {.input_seq_len = 5};
    while (mstar_region_runner_can_run(b->runner, 1, 5) == MSTAR_GRAPH_MISS_NOT_CAPTURED)
        (void)mstar_region_runner_can_lease(b->runner, &input, 1);
    return (void *)(uintptr_t)mstar_region_runner_can_run(b->runner, 1, 5);
}

/* Whoever asks meanwhile, on any thread, hears that nothing is captured until all is. */
static void test_asked_while_captured(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2}, totals[] = {16, 32, 64};
    static region_bench b;
    check_rng rng = {37};
    for (int fails = 0; fails < 2; fails++) {
        pthread_t thread;
        void *last;
        region_bench_open(&b, sizes, 2, 0, totals, 3);
        mstar_region_runner_desc desc = region_bench_desc(&b);
        CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
        CHECK_OK(mstar_region_runner_prepare(b.runner));
        assert_int_equal(pthread_create(&thread, NULL, ask_while_captured, &b), 0);
        b.fail_capture = fails ? b.calls_capture + 6 * 6 : 0; /* the last shape, its last slot */
        CHECK_OK(mstar_region_runner_capture(b.runner));
        assert_int_equal(pthread_join(thread, &last), 0);
        assert_int_equal((uintptr_t)last, MSTAR_GRAPH_MISS_NONE);
        assert_int_equal(region_bench_query(&b).num_captured, 6 - fails);
        assert_int_equal(b.served_early, 0);
        b.fail_capture = 0;
        (void)region_bench_check(&b, &rng, (int64_t[]){5}, 1, 1);
        region_bench_close(&b);
    }
}

/* Every call fails once: one shape is dropped, the others are right. */
static void test_every_call_fails_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1}, totals[] = {32, 64};
    static region_bench b;
    check_rng rng = {35};
    for (int hook = 0; hook < 2; hook++) {
        /* two shapes in two slots: inputs 4; prepare runs and records each, then capture runs twice
           and records */
        for (int call = 1; call <= (hook == 0 ? 4 : 20); call++) {
            region_bench_open(&b, sizes, 1, 0, totals, 2);
            *(hook == 0 ? &b.fail_inputs : &b.fail_capture) = call;
            region_bench_start(&b);
            mstar_region_runner_info info = region_bench_query(&b);
            assert_int_equal(info.num_captured, 1);
            assert_int_equal(b.served_early, 0);
            mstar_ragged_manager_info manager = {.struct_size = sizeof manager};
            CHECK_OK(mstar_ragged_manager_query(b.node.manager, &manager));
            assert_int_equal(manager.graph_wrappers, 2); /* of the other shape */
            size_t graph_bytes = 0;
            for (int i = 0; i < 4; i++)
                graph_bytes += bytes_of(b.runner->captures[i].graph);
            assert_int_equal(info.graph_bytes, graph_bytes);
            assert_non_null(
                strstr(info.first_failure, hook == 0 ? "make_static_inputs" : "capture_fn"));
            assert_false(mstar_stream_is_capturing(b.stream));
            bool large = mstar_region_runner_can_run(b.runner, 1, 64) == MSTAR_GRAPH_MISS_NONE;
            b.fail_inputs = b.fail_capture = 0;
            if (large) /* the larger total stands in for the dropped one */
                (void)region_bench_check(&b, &rng, (int64_t[]){20}, 1, 1);
            (void)region_bench_check(&b, &rng, (int64_t[]){large ? 64 : 32}, 1, 1);
            region_bench_close(&b);
        }
    }
    setenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS", "1", 1);
    region_bench_open(&b, sizes, 1, 0, totals, 2);
    b.fail_capture = 1;
    mstar_region_runner_desc desc = region_bench_desc(&b);
    CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
    CHECK_OK(mstar_region_runner_prepare(b.runner));
    CHECK_FAILED(mstar_region_runner_capture(b.runner), MSTAR_DEVICE_FAILED,
                 "tower_blocks: captured 1 of 2");
    region_bench_close(&b);
    unsetenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS");
}

static void test_refused(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2}, totals[] = {32};
    static region_bench b;
    check_rng rng = {36};
    region_bench_open(&b, sizes, 1, 0, totals, 1);
    mstar_region_runner_desc desc;
#define REFUSE(change, piece)                                                         \
    do {                                                                              \
        desc = region_bench_desc(&b);                                                 \
        change;                                                                       \
        CHECK_INVALID(mstar_region_runner_create(b.device, &desc, &b.runner), piece); \
        assert_null(b.runner);                                                        \
    } while (0)
    REFUSE(desc.label = NULL, "desc.label is NULL");
    REFUSE(desc.config = NULL, "desc.config is NULL");
    REFUSE(desc.stream = NULL, "desc.stream is NULL");
    REFUSE(desc.resources = NULL, "desc.resources is NULL");
    REFUSE(desc.num_slots = 0, "desc.num_slots is 0");
    REFUSE(desc.first_handle = 0, "desc.first_handle is 0");
    REFUSE(desc.free_bytes = -2, "desc.free_bytes is -2");
    REFUSE(desc.floor_bytes = -1, "desc.floor_bytes is -1");
    region_bench_start(&b);
    mstar_region_call call;
    mstar_region_result result = {.struct_size = sizeof result};
    mstar_region_call_init(&call);
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "call.real_bs is -1");
    call.real_bs = 1;
    CHECK_FAILED(mstar_region_runner_run(b.runner, &call, &result), MSTAR_OUT_OF_ORDER,
                 "ask can_run first");
    call.seq_lens = (int64_t[]){33};
    call.num_seq_lens = 1;
    CHECK_FAILED(mstar_region_runner_run(b.runner, &call, &result), MSTAR_OUT_OF_ORDER,
                 "33 tokens");
    call.seq_lens = (int64_t[]){-1};
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "call.seq_lens[0] is -1");
    call.seq_lens = (int64_t[]){5};
    float x[6][NODE_WIDTH] = {{0}};
    mstar_tensors inputs;
    mstar_tensors_init(&inputs);
    mstar_tensor narrow = mstar_tensor_make(x, MSTAR_DTYPE_F32, 2, (int64_t[]){5, NODE_WIDTH - 1});
    CHECK_OK(mstar_tensors_add(&inputs, "x", &narrow));
    call.inputs = &inputs;
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "input \"x\"");
    mstar_tensors_release(&inputs);
    call.inputs = NULL;
    call.real_bs = -1;
    call.requests = (int64_t[]){3, 3};
    call.num_requests = 2;
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "call.requests has 3 twice");
    call.requests = (int64_t[]){3, -2};
    CHECK_INVALID(mstar_region_runner_run(b.runner, &call, &result), "real[1] is -2");
    assert_int_equal(region_bench_query(&b).refused, 2);
    (void)region_bench_check(&b, &rng, (int64_t[]){5, 7}, 2, 2); /* still usable */
    region_bench_close(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed),
                                       cmocka_unit_test(test_views_and_copies),
                                       cmocka_unit_test(test_many_segments),
                                       cmocka_unit_test(test_batched),
                                       cmocka_unit_test(test_bytes_known_before),
                                       cmocka_unit_test(test_compile),
                                       cmocka_unit_test(test_without_requests),
                                       cmocka_unit_test(test_can_run_and_lease),
                                       cmocka_unit_test(test_asked_while_captured),
                                       cmocka_unit_test(test_every_call_fails_once),
                                       cmocka_unit_test(test_refused)};
    /* bytes of graphs and their specialisation are a processor's */
    const struct CMUnitTest card_tests[] = {
        cmocka_unit_test(test_packed),           cmocka_unit_test(test_views_and_copies),
        cmocka_unit_test(test_many_segments),    cmocka_unit_test(test_batched),
        cmocka_unit_test(test_without_requests), cmocka_unit_test(test_can_run_and_lease),
        cmocka_unit_test(test_refused)};
    card_choose(argc, argv);
    int failed = card_is_real() ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
    level_use_card(true);
    return failed + cmocka_run_group_tests(card_tests, NULL, NULL);
}
