/*
 * test_graph_failures.c - a runner whose captures fail: every call of every hook once, inside and
 * outside of a capture; agreement, bytes, and what is refused.
 */
#include "support_runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/runner.h"

static char last_log[512];
static int num_logs;

static void keep_log(void *context, int level, const char *message)
{
    (void)context;
    assert_int_equal(level, 3);
    (void)snprintf(last_log, sizeof last_log, "%s", message);
    num_logs++;
}

/* Every call of every hook fails once: one bucket is dropped, with its reason; the rest serve, and
 * the dropped one's steps go to the next bucket or run eager. */
static void test_every_call_fails_once(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {4};
    for (int slots = 1; slots <= 2; slots++) {
        /* 3 buckets in prepare, then in capture, all slots: lay_out 3 and once each, forward once
           to warm up, then twice, and once recorded, preprocess before each, declare also for
           the bytes */
        const int all[] = {3 + 6 * slots, 15 * slots, 15 * slots, 18 * slots};
        for (int hook = 0; hook < 4; hook++) {
            int calls = all[hook];
            for (int call = 1; call <= calls; call++) {
                node_fault fault = {0};
                int *const places[] = {&fault.lay_out, &fault.preprocess, &fault.forward,
                                       &fault.declare};
                *places[hook] = call;
                CHECK_OK(bench_capture_with(&b, fault, slots, hook == 3));
                mstar_graph_runner_info info = bench_query(&b);
                assert_int_equal(info.num_captured, 2);
                assert_int_equal(info.num_failed, 1);
                int64_t dropped = -1;
                for (int64_t i = 0; i < 3; i++) {
                    mstar_runner_bucket_info bucket = bench_query_bucket(&b, i);
                    if (bucket.state == MSTAR_BUCKET_FAILED) {
                        dropped = bucket.size.num_tokens;
                        assert_non_null(strstr(bucket.reason, "tiny"));
                        assert_int_equal(bucket.graph_bytes, 0);
                    }
                }
                mstar_graph_miss want =
                    dropped == 64 ? MSTAR_GRAPH_MISS_NOT_CAPTURED : MSTAR_GRAPH_MISS_NONE;
                bench_check_step(&b, "w", &rng, (int64_t[]){30, 34}, 2, want);
                bench_check_step(&b, "w", &rng, (int64_t[]){3, 4}, 2, MSTAR_GRAPH_MISS_NONE);
                bench_close(&b);
            }
        }
    }
}

/* A failure while a stream captures leaves the stream an ordinary one. */
static void test_failure_inside_a_capture(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {5};
    for (int call = 1; call <= 4; call += 3) { /* counted by prepare; captured */
        CHECK_OK(bench_capture_with(&b, (node_fault){.forward = call, .in_capture = 1}, 1, false));
        assert_int_equal(bench_query(&b).num_captured, 2);
        assert_false(mstar_stream_is_capturing(b.runner->stream));
        bench_check_step(&b, "w", &rng, (int64_t[]){8, 8}, 2, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&b, "w", &rng, (int64_t[]){60}, 1, MSTAR_GRAPH_MISS_NOT_CAPTURED);
        bench_close(&b);
    }
}

static void test_stream_of_another_device(void **state)
{
    (void)state;
    static bench b;
    mstar_device *device;
    mstar_stream *stream;
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 2, true));
    CHECK_OK(mstar_device_open("cpu", &(mstar_device_desc){.struct_size = 8, .num_threads = 1},
                               &device));
    CHECK_OK(mstar_stream_create(device, 1, &stream));
    mstar_runner_step step;
    mstar_runner_result result = {.struct_size = sizeof result};
    mstar_graph_miss miss;
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.stream = stream;
    CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), "another device than tiny");
    CHECK_INVALID(mstar_graph_runner_pre_plan(b.runner, &step, &miss), "another device than tiny");
    mstar_stream_destroy(stream);
    CHECK_OK(mstar_device_close(device));
    bench_close(&b);
}

/* ---- hooks that call back -------------------------------------------------------------------- */

typedef struct caller {
    node *node;
    mstar_node_hooks hooks; /* the node's */
    mstar_graph_runner *runner;
    const node_step *step;
    int64_t refused, calls;
    bool plans; /* the call under way is pre_plan: the others are none of its business */
    bool captured;
} caller;

static void refuse_with(caller *c, mstar_status status, const char *text)
{
    c->refused += status == MSTAR_OUT_OF_ORDER && strstr(mstar_last_error(), text) != NULL;
    c->calls++;
}

static void refuse_one(caller *c, mstar_status status)
{
    refuse_with(c, status, "from inside of one of its hooks");
}

static void call_back(caller *c, bool locked)
{
    mstar_graph_miss miss;
    mstar_runner_step step;
    mstar_runner_result result = {.struct_size = sizeof result};
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = c->step->requests;
    step.inputs = c->step->inputs;
    step.count = c->step->count;
    if (c->runner == NULL)
        return;
    if (!c->captured)
        refuse_with(c, mstar_graph_runner_pre_plan(c->runner, &step, &miss),
                    "plans ahead before it has captured");
    if (locked && c->plans)
        refuse_one(c, mstar_graph_runner_pre_plan(c->runner, &step, &miss));
    refuse_one(c, mstar_graph_runner_step(c->runner, &step, &result));
    step.eager = 1;
    refuse_one(c, mstar_graph_runner_step(c->runner, &step, &result));
    if (c->plans)
        return;
    refuse_one(c, mstar_graph_runner_prepare(c->runner));
    refuse_one(c, mstar_graph_runner_capture(c->runner));
}

static mstar_status calling_declare(void *user, const mstar_step_context *context,
                                    const mstar_node_input *inputs, int64_t count, mstar_step *step)
{
    caller *c = user;
    call_back(c, true);
    return c->hooks.declare(c->node, context, inputs, count, step);
}

static mstar_status calling_preprocess(void *user, const mstar_step_context *context,
                                       const mstar_node_input *inputs, int64_t count,
                                       mstar_tensors *tensors)
{
    caller *c = user;
    call_back(c, true);
    return c->hooks.preprocess(c->node, context, inputs, count, tensors);
}

static mstar_status calling_lay_out(void *user, mstar_frame_size size, mstar_tensors *scratch)
{
    caller *c = user;
    call_back(c, false);
    return c->hooks.lay_out(c->node, size, scratch);
}

static mstar_status calling_forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    caller *c = user;
    call_back(c, false);
    return c->hooks.forward(c->node, frame, outputs);
}

/* Every call from inside of every hook is refused, and what is under way goes on. */
static void test_hooks_that_call_back(void **state)
{
    (void)state;
    static bench b;
    static node_step step;
    static node_result replayed, eager;
    check_rng rng = {44};
    bench_open(&b, 1);
    node_manage(&b.node);
    b.configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    b.num_configs = 1;
    node_step_fill(&step, &rng, (int64_t[]){5, 9}, 2);
    caller c = {.node = &b.node, .hooks = node_hooks(&b.node), .step = &step};
    const mstar_node_hooks hooks = {.struct_size = sizeof hooks,
                                    .declare = calling_declare,
                                    .preprocess = calling_preprocess,
                                    .lay_out = calling_lay_out,
                                    .forward = calling_forward};
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    desc.user = &c;
    CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
    c.runner = b.runner;
    CHECK_OK(mstar_graph_runner_prepare(b.runner));
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    c.captured = true;
    assert_int_equal(bench_query(&b).num_captured, 3);
    assert_int_equal(node_run(b.runner, "w", &step, 0, &replayed), MSTAR_GRAPH_MISS_NONE);
    (void)node_run(b.runner, "w", &step, 1, &eager);
    node_check_equal(&step, &replayed, &eager);
    mstar_graph_miss miss;
    mstar_runner_step next;
    mstar_runner_step_init(&next);
    next.walk = "w";
    next.requests = step.requests;
    next.inputs = step.inputs;
    next.count = step.count;
    c.plans = true;
    CHECK_OK(mstar_graph_runner_pre_plan(b.runner, &next, &miss));
    c.plans = false;
    assert_int_equal(node_run(b.runner, "w", &step, 0, &replayed), MSTAR_GRAPH_MISS_NONE);
    node_check_equal(&step, &replayed, &eager);
    assert_true(c.calls > 200);
    assert_int_equal(c.refused, c.calls);
    bench_close(&b);
}

static void test_required(void **state)
{
    (void)state;
    static bench b;
    setenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS", "1", 1);
    mstar_set_log_sink(keep_log, NULL);
    num_logs = 0;
    CHECK_FAILED(bench_capture_with(&b, (node_fault){.forward = 1}, 1, false), MSTAR_DEVICE_FAILED,
                 "MSTAR_REQUIRE_ACCELERATOR_GRAPHS");
    assert_non_null(strstr(mstar_last_error(), "2 of 3"));
    assert_non_null(strstr(mstar_last_error(), "64 tokens"));
    assert_int_equal(num_logs, 2); /* the bucket, and the sum */
    assert_non_null(strstr(last_log, "captured 2 of 3"));
    bench_close(&b);
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 1, false));
    bench_close(&b);
    setenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS", "true", 1);
    CHECK_FAILED(bench_capture_with(&b, (node_fault){.forward = 1}, 1, false), MSTAR_DEVICE_FAILED,
                 "MSTAR_REQUIRE_ACCELERATOR_GRAPHS");
    bench_close(&b);
    setenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS", "0", 1);
    CHECK_OK(bench_capture_with(&b, (node_fault){.forward = 1}, 1, false));
    bench_close(&b);
    unsetenv("MSTAR_REQUIRE_ACCELERATOR_GRAPHS");
    mstar_set_log_sink(NULL, NULL);
}

/* A step that fails leaves the runner usable, replayed or eager. */
static void test_failed_step(void **state)
{
    (void)state;
    static bench b;
    static node_step fine;
    check_rng rng = {6};
    CHECK_OK(bench_capture_with(&b, (node_fault){0}, 1, false));
    node_step_fill(&fine, &rng, (int64_t[]){5}, 1);
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = fine.requests;
    step.inputs = fine.inputs;
    step.count = 1;
    mstar_runner_result result = {.struct_size = sizeof result};
    for (int eager = 0; eager < 2; eager++) {
        step.eager = eager;
        memset(&b.node.calls, 0, sizeof b.node.calls);
        b.node.fault = (node_fault){.preprocess = 1};
        CHECK_FAILED(mstar_graph_runner_step(b.runner, &step, &result), MSTAR_DEVICE_FAILED,
                     "tiny: preprocess");
        fine.ids[2] = NODE_WORDS; /* outside the table: met at replay */
        CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), "50");
        fine.ids[2] = 1;
        CHECK_OK(mstar_graph_runner_step(b.runner, &step, &result));
        bench_check_step(&b, "w", &rng, (int64_t[]){9, 3}, 2, MSTAR_GRAPH_MISS_NONE);
    }
    bench_close(&b);
}

/* ---- agreement, memory, order ---------------------------------------------------------------- */

static mstar_status drop_second(void *user, uint8_t *captured, int64_t num_buckets)
{
    assert_int_equal(num_buckets, 3);
    (*(int *)user)++;
    captured[1] = 0;
    return MSTAR_OK;
}

static void test_agreement(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {7};
    bench_open(&b, 1);
    b.configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    int asked = 0;
    desc.agree = drop_second;
    desc.agree_user = &asked;
    bench_start(&b, &desc);
    assert_int_equal(asked, 1);
    assert_int_equal(bench_query_bucket(&b, 1).state, MSTAR_BUCKET_DISAGREED);
    assert_non_null(strstr(bench_query_bucket(&b, 1).reason, "another rank"));
    bench_check_step(&b, "w", &rng, (int64_t[]){20}, 1,
                     MSTAR_GRAPH_MISS_NONE); /* 64 stands in for 32 */
    assert_int_equal(bench_query_bucket(&b, 0).replays, 1);
    bench_close(&b);
}

/* All buckets share one pool, as large as the largest needs; bytes are known before capture. */
static void test_memory(void **state)
{
    (void)state;
    static bench b;
    bench_open(&b, 1);
    b.configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
    CHECK_OK(mstar_graph_runner_prepare(b.runner));
    mstar_graph_runner_info before = bench_query(&b);
    size_t a_token = 5 * NODE_WIDTH * sizeof(float), pooled = 4 * NODE_WIDTH * sizeof(float);
    assert_int_equal(before.scratch_bytes, 64 * a_token + pooled);
    assert_int_equal(before.static_input_bytes, (64 + 64 + 5) * sizeof(int32_t));
    for (int64_t i = 0; i < 3; i++)
        assert_int_equal(bench_query_bucket(&b, i).scratch_bytes,
                         (size_t)bench_query_bucket(&b, i).size.num_tokens * a_token + pooled);
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    mstar_graph_runner_info after = bench_query(&b);
    assert_int_equal(after.scratch_bytes, before.scratch_bytes);
    assert_int_equal(after.static_input_bytes, before.static_input_bytes);
    assert_true(after.graph_bytes > 0);
    assert_int_equal(bench_query_bucket(&b, 0).nodes, 2 + 4 * NODE_LAYERS);
    bench_close(&b);
}

/* Known faults BR-194, BR-195, BR-196, BR-203: nothing is lost over cycles, replays, failed
 * captures, and buckets that come large after small. */
static void test_flat_memory(void **state)
{
    (void)state;
    static bench b;
    check_rng rng = {9};
    for (int cycle = 0; cycle < 20; cycle++) {
        CHECK_OK(bench_capture_with(&b, (node_fault){.forward = cycle}, 2, false));
        bench_check_step(&b, "w", &rng, (int64_t[]){5, 5}, 2, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&b, "w", &rng, (int64_t[]){20}, 1, MSTAR_GRAPH_MISS_NONE);
        mstar_memory_info before = {.struct_size = sizeof before}, after = before;
        CHECK_OK(mstar_memory_query(&before));
        for (int i = 0; i < 50; i++)
            bench_check_step(&b, "w", &rng, (int64_t[]){5, 5}, 2, MSTAR_GRAPH_MISS_NONE);
        CHECK_OK(mstar_memory_query(&after));
        assert_int_equal(after.live_bytes, before.live_bytes);
        assert_int_equal(after.live_allocations, before.live_allocations);
        bench_close(&b);
    }
}

static void test_order_of_calls(void **state)
{
    (void)state;
    static bench b;
    bench_open(&b, 1);
    b.configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
    CHECK_FAILED(mstar_graph_runner_capture(b.runner), MSTAR_OUT_OF_ORDER,
                 "before it was prepared");
    /* before the captures every step runs eager */
    check_rng rng = {10};
    static node_step step;
    static node_result result;
    node_step_fill(&step, &rng, (int64_t[]){3}, 1);
    assert_int_equal(node_run(b.runner, "w", &step, 0, &result), MSTAR_GRAPH_MISS_NOT_CAPTURED);
    CHECK_OK(mstar_graph_runner_prepare(b.runner));
    CHECK_FAILED(mstar_graph_runner_prepare(b.runner), MSTAR_OUT_OF_ORDER, "prepared already");
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    CHECK_FAILED(mstar_graph_runner_capture(b.runner), MSTAR_OUT_OF_ORDER, "captured already");
    node_step_fill(&step, &rng, NULL, 0);
    assert_int_equal(node_run(b.runner, "w", &step, 0, &result), MSTAR_GRAPH_MISS_EMPTY);
    mstar_runner_bucket_info info = {.struct_size = sizeof info};
    CHECK_FAILED(mstar_graph_runner_query_bucket(b.runner, 3, &info), MSTAR_NOT_FOUND, "3 buckets");
    bench_close(&b);
}

static void test_refused(void **state)
{
    (void)state;
    static bench b;
    bench_open(&b, 1);
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    mstar_graph_runner *runner = NULL;
#define REFUSE(change, piece)                                                      \
    do {                                                                           \
        desc = bench_desc(&b, &hooks);                                             \
        change;                                                                    \
        CHECK_INVALID(mstar_graph_runner_create(b.device, &desc, &runner), piece); \
        assert_null(runner);                                                       \
    } while (0)
    REFUSE(desc.hooks = NULL, "desc.hooks is NULL");
    REFUSE(desc.num_slots = 0, "desc.num_slots is 0");
    REFUSE(desc.num_slots = 65, "desc.num_slots is 65");
    REFUSE(desc.num_warmups = -1, "desc.num_warmups is -1");
    REFUSE(desc.free_bytes = -2, "desc.free_bytes is -2");
    REFUSE(desc.floor_bytes = -1, "desc.floor_bytes is -1");
    REFUSE(desc.num_configs = 1, "desc.configs[0] is NULL");
    REFUSE(desc.num_configs = -1, "desc.num_configs is -1");
    REFUSE(desc.node = NULL, "desc.node is NULL");
    REFUSE(desc.struct_size = 0, "struct_size is 0");
    hooks.forward = NULL;
    REFUSE((void)0, "desc.hooks.forward is NULL");
    hooks = node_hooks(&b.node);
    desc = bench_desc(&b, &hooks);
    CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    mstar_runner_result result = {.struct_size = sizeof result};
    CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), "step.walk is NULL");
    step.walk = "w";
    step.count = 1;
    CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), "step.requests is NULL");
    int64_t handle = -2;
    step.requests = &handle;
    mstar_node_input input = {.input_seq_len = -1};
    step.inputs = &input;
    CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), "step.requests[0] is -2");
    handle = 0;
    CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), "input_seq_len is -1");
    /* a request twice, among few and among many; many in any order are no fault of theirs */
    static int64_t handles[400];
    static mstar_node_input inputs[400];
    step.requests = handles;
    step.inputs = inputs;
    for (int64_t count = 2; count <= 400; count += 199) {
        step.count = count;
        for (int64_t i = 0; i < count; i++) {
            handles[i] = count - i;
            inputs[i].input_seq_len = -1;
        }
        CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), "input_seq_len is -1");
        handles[count - 1] = count;
        CHECK_INVALID(mstar_graph_runner_step(b.runner, &step, &result), " twice");
    }
    assert_string_equal(mstar_bucket_state_name(MSTAR_BUCKET_CAPTURED), "captured");
    assert_string_equal(mstar_bucket_state_name((mstar_bucket_state)9), "unknown");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_failure_inside_a_capture),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_hooks_that_call_back),
        cmocka_unit_test(test_stream_of_another_device),
        cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_agreement),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_flat_memory),
        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
