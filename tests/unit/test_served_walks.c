/*
 * test_served_walks.c - a walk of many buckets served from one runner, and nodes beside one
 * another: captured steps against sequential eager ones, the same step three times, managers that
 * know nothing of each other, a node without resources.
 */
#include "support_runner.h"

#include <string.h>

/* Fifteen buckets of one, two and four requests; each is filled, nearly filled and hardly used. */
static void fifteen_buckets(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 4}, lengths[] = {16, 32, 64, 128, 256};
    static bench b;
    check_rng rng = {61};
    bench_open(&b, 2);
    node_manage(&b.node);
    b.configs[0] = bench_packed("prefill", sizes, 3, lengths, 5);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    bench_start(&b, &desc);
    assert_int_equal(bench_query(&b).num_captured, 15);
    for (int64_t s = 0; s < 3; s++) {
        for (int64_t l = 0; l < 5; l++) {
            int64_t before = l > 0 ? lengths[l - 1] : 0;
            const int64_t fills[] = {lengths[l], lengths[l] - 1, before + 1};
            for (int64_t f = 0; f < 3; f++) {
                int64_t spans[4] = {fills[f], 0, 0, 0};
                for (int64_t i = 1; i < sizes[s]; i++) {
                    spans[i] = check_integer(&rng, 0, spans[0] / 2);
                    spans[0] -= spans[i];
                }
                bench_check_step(&b, "prefill", &rng, spans, sizes[s], MSTAR_GRAPH_MISS_NONE);
            }
        }
    }
    for (int64_t i = 0; i < 15; i++)
        assert_int_equal(bench_query_bucket(&b, i).replays, 3);
    bench_close(&b);
}

/* The same inputs three times, other steps between them, in both slots. */
static void three_times_the_same(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4}, lengths[] = {16, 64, 200};
    static bench b;
    static node_step step;
    static node_result first, again;
    check_rng rng = {62};
    bench_open(&b, 2);
    node_manage(&b.node);
    b.configs[0] = bench_packed("prefill", sizes, 2, lengths, 3);
    b.num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    bench_start(&b, &desc);
    node_step_fill(&step, &rng, (int64_t[]){31, 0, 14}, 3);
    assert_int_equal(node_run(b.runner, "prefill", &step, 0, &first), MSTAR_GRAPH_MISS_NONE);
    for (int i = 0; i < 3; i++) {
        memset(&again, 0x5a, sizeof again);
        bench_poison(&b);
        assert_int_equal(node_run(b.runner, "prefill", &step, 0, &again), MSTAR_GRAPH_MISS_NONE);
        node_check_equal(&step, &again, &first);
        bench_check_step(&b, "prefill", &rng, (int64_t[]){150, 3}, 2, MSTAR_GRAPH_MISS_NONE);
        if (i == 1)
            bench_check_step(&b, "prefill", &rng, (int64_t[]){9}, 1, MSTAR_GRAPH_MISS_NONE);
    }
    bench_close(&b);
}

/* What one manager plans is not planned in another; each has its own wrappers and counters. */
static void managers_are_independent(void **state)
{
    (void)state;
    static node one, two;
    mstar_device *device;
    mstar_step *step;
    CHECK_OK(mstar_device_open("cpu", &(mstar_device_desc){.struct_size = 8, .num_threads = 1},
                               &device));
    node_open(&one, device, 1);
    node_open(&two, device, 2);
    node_manage(&one);
    node_manage(&two);
    CHECK_OK(mstar_step_create(&step));
    CHECK_OK(mstar_step_add_resource(step, "attn"));
    CHECK_OK(mstar_step_add_segment(step, NULL, 3, "towers", 9));
    mstar_step_context context;
    mstar_step_context_init(&context);
    context.requests = (int64_t[]){3};
    context.num_requests = 1;
    mstar_admission admission = {.struct_size = sizeof admission};
    CHECK_OK(mstar_resources_admit(one.resources, &context, step, &admission));
    CHECK_OK(mstar_resources_plan(one.resources, &context, step));
    CHECK_OK(mstar_ragged_manager_set_label(one.manager, "towers"));
    CHECK_FAILED(mstar_ragged_manager_set_label(two.manager, "towers"), MSTAR_NOT_FOUND, "towers");
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query(two.manager, &info));
    assert_int_equal(info.plans + info.eager_wrappers + info.workspaces, 0);
    CHECK_OK(mstar_ragged_manager_query(one.manager, &info));
    assert_true(info.plans == 1 && info.eager_wrappers == 1);
    mstar_step_destroy(step);
    node_close(&one);
    node_close(&two);
    CHECK_OK(mstar_device_close(device));
    assert_int_equal(check_live_allocations(), 0);
}

static const mstar_step_context *seen;
static mstar_resources *seen_resources;

static mstar_status look(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    (void)user;
    seen = frame->context;
    seen_resources = frame->context->resources;
    static float row[NODE_WIDTH];
    mstar_tensor tensor = mstar_tensor_make(row, MSTAR_DTYPE_F32, 2, (int64_t[]){1, NODE_WIDTH});
    return mstar_tensors_add(outputs, "row", &tensor);
}

/* A node that asks for no attention is given none, and its steps touch no resource. */
static void a_node_without_resources(void **state)
{
    (void)state;
    static bench b;
    static node_step step;
    check_rng rng = {63};
    bench_open(&b, 1);
    mstar_node_hooks hooks;
    mstar_node_hooks_init(&hooks);
    hooks.forward = look;
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    desc.configs = NULL;
    desc.num_configs = 0;
    bench_start(&b, &desc);
    node_step_fill(&step, &rng, (int64_t[]){3}, 1);
    mstar_runner_step request;
    mstar_runner_result result = {.struct_size = sizeof result};
    mstar_runner_step_init(&request);
    request.walk = "w";
    request.requests = step.requests;
    request.inputs = step.inputs;
    request.count = 1;
    seen_resources = b.node.resources;
    CHECK_OK(mstar_graph_runner_step(b.runner, &request, &result));
    assert_non_null(seen);
    assert_null(seen_resources);
    assert_int_equal(result.miss, MSTAR_GRAPH_MISS_WALK);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifteen_buckets),
        cmocka_unit_test(three_times_the_same),
        cmocka_unit_test(managers_are_independent),
        cmocka_unit_test(a_node_without_resources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
