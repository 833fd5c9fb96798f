/*
 * test_region_lease.c - regions that are leased before the outer step is declared: who is leased
 * and who is not, what the declaration sees, a lease that a failing step gives back, and the bits
 * of a step around a region, around its eager code, and replayed whole.
 */
#include "support_region.h"

#include <string.h>

#include "graph/region.h"

#define TRY(call)                 \
    do {                          \
        mstar_status s_ = (call); \
        if (s_ != MSTAR_OK)       \
            return s_;            \
    } while (0)

typedef enum hook { NO_HOOK, DECLARE, ADMIT, PLAN, PREPROCESS, FORWARD, COMMIT } hook;

/* A node whose forward is the region and nothing else; its steps always touch "tally", and "attn"
 * unless the region plans that itself. */
typedef struct tower {
    region_bench region;
    const mstar_graph_config *config; /* NULL: no whole forwards */
    mstar_graph_runner *runner;
    hook fails;                     /* in the next step */
    int64_t seen_leases;            /* region leases that declare, preprocess and forward saw */
    bool ignores_lease;             /* forward does not run the region that holds one */
    int32_t slot;                   /* of the region's latest run; -1: it did not run */
    int64_t admits, plans, commits; /* of tally */
    float rows[NODE_TOKENS][NODE_WIDTH];
} tower;

/* ---- a resource ------------------------------------------------------------------------------ */

static mstar_status tally_admit(void *self, const mstar_step_context *context,
                                const mstar_resource_step *step, mstar_admission *admission)
{
    tower *t = self;
    (void)context;
    (void)step;
    t->admits++;
    if (t->fails == ADMIT)
        admission->outcome = MSTAR_NOT_READY;
    return MSTAR_OK;
}

static mstar_status tally_plan(void *self, const mstar_step_context *context,
                               const mstar_resource_step *step, const mstar_plan_results *results,
                               const void **result)
{
    tower *t = self;
    (void)context;
    (void)step;
    (void)results;
    (void)result;
    t->plans++;
    return t->fails == PLAN ? MSTAR_DEVICE_FAILED : MSTAR_OK;
}

static mstar_status tally_commit(void *self, const mstar_step_context *context,
                                 const mstar_resource_step *step)
{
    tower *t = self;
    (void)context;
    (void)step;
    t->commits++;
    return t->fails == COMMIT ? MSTAR_DEVICE_FAILED : MSTAR_OK;
}

/* ---- the node -------------------------------------------------------------------------------- */

static void see(tower *t, const mstar_step_context *context)
{
    t->seen_leases = context->num_region_leases;
    assert_int_equal(mstar_step_context_holds_region(context, "blocks"), t->seen_leases);
    assert_int_equal(mstar_step_context_holds_region(context, "other"), 0);
    if (context->lease != NULL)
        assert_int_equal(t->seen_leases, 0);
}

static mstar_status declare(void *user, const mstar_step_context *context,
                            const mstar_node_input *inputs, int64_t count, mstar_step *step)
{
    tower *t = user;
    see(t, context);
    if (t->fails == DECLARE)
        return MSTAR_DEVICE_FAILED;
    TRY(mstar_step_add_resource(step, "tally"));
    bool own = !mstar_step_context_holds_region(context, "blocks");
    if (own) {
        TRY(mstar_step_add_resource(step, "attn"));
        TRY(mstar_step_set_causal(step, "attn", 0));
    }
    for (int64_t i = 0; i < count; i++)
        TRY(mstar_step_add_segment(step, NULL, context->padded_requests[i], NULL,
                                   (int32_t)inputs[i].input_seq_len));
    return MSTAR_OK;
}

static mstar_status preprocess(void *user, const mstar_step_context *context,
                               const mstar_node_input *inputs, int64_t count,
                               mstar_tensors *tensors)
{
    tower *t = user;
    int64_t tokens = 0;
    assert_int_equal(t->seen_leases, context->num_region_leases);
    if (t->fails == PREPROCESS)
        return MSTAR_DEVICE_FAILED;
    for (int64_t i = 0; i < count; i++)
        tokens += inputs[i].input_seq_len;
    mstar_tensor rows =
        mstar_tensor_make(t->rows, MSTAR_DTYPE_F32, 2, (int64_t[]){tokens, NODE_WIDTH});
    return mstar_tensors_add(tensors, "rows", &rows);
}

static mstar_status lay_out(void *user, mstar_frame_size size, mstar_tensors *scratch)
{
    static const struct {
        const char *name;
        int64_t width;
    } wanted[] = {{"qkv", 3 * NODE_WIDTH}, {"context", NODE_WIDTH}, {"out", NODE_WIDTH}};
    (void)user;
    for (int i = 0; i < 3; i++) {
        mstar_tensor tensor = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2,
                                                (int64_t[]){size.num_tokens, wanted[i].width});
        TRY(mstar_tensors_add(scratch, wanted[i].name, &tensor));
    }
    return MSTAR_OK;
}

static mstar_status run_region(tower *t, const mstar_frame *frame, const mstar_tensor *out)
{
    mstar_tensors inputs;
    mstar_region_call call;
    mstar_region_result result = {.struct_size = sizeof result};
    int64_t length =
        frame->size.num_tokens; /* requests are alone in these steps, or of one length */
    int64_t lengths[2] = {length / frame->size.bs, length / frame->size.bs};
    mstar_tensors_init(&inputs);
    TRY(mstar_tensors_add(&inputs, "x", mstar_tensors_find(frame->inputs, "rows")));
    mstar_region_call_init(&call);
    call.inputs = &inputs;
    call.requests = frame->context->requests;
    call.num_requests = frame->context->num_requests;
    call.seq_lens = lengths;
    call.num_seq_lens = frame->size.bs;
    mstar_status status = mstar_region_runner_run(t->region.runner, &call, &result);
    mstar_tensors_release(&inputs);
    t->slot = result.slot;
    return status == MSTAR_OK ? mstar_region_result_copy(&result, "x", out) : status;
}

static mstar_status forward(void *user, const mstar_frame *frame, mstar_tensors *outputs)
{
    tower *t = user;
    const mstar_tensor *out = mstar_tensors_find(frame->scratch, "out");
    assert_int_equal(t->seen_leases, frame->context->num_region_leases);
    if (t->fails == FORWARD)
        return MSTAR_DEVICE_FAILED;
    if (!mstar_step_context_holds_region(frame->context, "blocks"))
        TRY(region_bench_layer(&t->region, frame->stream, mstar_tensors_find(frame->inputs, "rows"),
                               mstar_tensors_find(frame->scratch, "qkv"),
                               mstar_tensors_find(frame->scratch, "context"), out, true));
    else if (!t->ignores_lease)
        TRY(run_region(t, frame, out));
    return mstar_tensors_add(outputs, "out", out);
}

/* ---- opening --------------------------------------------------------------------------------- */

static mstar_status make_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    (void)user;
    input->input_seq_len = num_tokens;
    return MSTAR_OK;
}

/* A region of up to 2 requests of 16 or 32 tokens; whole > 0: whole forwards of one request of so
 * many tokens. Nothing is prepared yet. */
static void open_tower(tower *t, int64_t whole)
{
    static const int64_t sizes[] = {1, 2, 4}, totals[] = {16, 32};
    memset(t, 0, sizeof *t);
    region_bench_open(&t->region, sizes, 3, 0, totals, 2);
    node *n = &t->region.node;
    mstar_resources_destroy(n->resources);
    static const mstar_resource_hooks tally = {.struct_size = sizeof tally,
                                               .admit = tally_admit,
                                               .plan = tally_plan,
                                               .commit = tally_commit};
    mstar_resource list[2] = {{.key = "tally", .hooks = &tally, .self = t}};
    CHECK_OK(mstar_ragged_manager_get_resource(n->manager, "attn", &list[1]));
    CHECK_OK(mstar_resources_create(list, 2, &n->resources));
    check_rng rng = {7};
    for (int i = 0; i < NODE_TOKENS; i++)
        for (int j = 0; j < NODE_WIDTH; j++)
            t->rows[i][j] = (float)check_uniform(&rng, -1, 1);
    if (whole > 0) {
        mstar_packed_graph_config_desc desc;
        mstar_packed_graph_config_desc_init(&desc);
        desc.capture_graph_walk = "w";
        desc.capture_batch_sizes = sizes;
        desc.num_capture_batch_sizes = 1;
        desc.capture_token_lengths = &whole;
        desc.num_capture_token_lengths = 1;
        desc.make_node_input = make_input;
        CHECK_OK(mstar_packed_graph_config_create(&desc, (mstar_graph_config **)&t->config));
    }
    mstar_node_hooks hooks;
    mstar_node_hooks_init(&hooks);
    hooks.declare = declare;
    hooks.preprocess = preprocess;
    hooks.lay_out = lay_out;
    hooks.forward = forward;
    mstar_graph_runner_desc desc;
    mstar_graph_runner_desc_init(&desc);
    desc.node = "tower";
    desc.num_threads = 1;
    desc.hooks = &hooks;
    desc.user = t;
    desc.configs = &t->config;
    desc.num_configs = whole > 0;
    desc.resources = n->resources;
    CHECK_OK(mstar_graph_runner_create(t->region.device, &desc, &t->runner));
}

static int64_t num_handles(const tower *t)
{
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_runner_query(t->runner, &info));
    return info.num_handles;
}

static mstar_region_runner_desc region_desc(const tower *t)
{
    mstar_region_runner_desc desc = region_bench_desc(&t->region);
    desc.stream = mstar_graph_runner_get_stream(t->runner);
    desc.first_handle = -2 - num_handles(t);
    return desc;
}

/* Adds the region, then all are prepared, then all capture. */
static void start_tower(tower *t)
{
    mstar_region_runner_desc desc = region_desc(t);
    CHECK_OK(mstar_region_runner_create(t->region.device, &desc, &t->region.runner));
    CHECK_OK(mstar_graph_runner_add_region(t->runner, t->region.runner));
    CHECK_OK(mstar_graph_runner_prepare(t->runner));
    CHECK_OK(mstar_region_runner_prepare(t->region.runner));
    CHECK_OK(mstar_graph_runner_capture(t->runner));
    CHECK_OK(mstar_region_runner_capture(t->region.runner));
    t->admits = t->plans = t->commits = 0;
}

static void close_tower(tower *t)
{
    mstar_graph_runner_destroy(t->runner);
    mstar_graph_config_destroy((mstar_graph_config *)(uintptr_t)t->config);
    region_bench_close(&t->region);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static mstar_status step_of(tower *t, int64_t bs, int64_t length, int eager,
                            mstar_runner_result *result)
{
    static const int64_t requests[] = {3, 4, 5, 6};
    mstar_node_input inputs[4] = {{.input_seq_len = length},
                                  {.input_seq_len = length},
                                  {.input_seq_len = length},
                                  {.input_seq_len = length}};
    mstar_runner_step step;
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.eager = eager;
    step.requests = requests;
    step.inputs = inputs;
    step.count = bs;
    t->slot = -1;
    *result = (mstar_runner_result){.struct_size = sizeof *result};
    return mstar_graph_runner_step(t->runner, &step, result);
}

/* The step's bits, whoever ran it, and how many leases its hooks saw. */
static void check_step(tower *t, int64_t bs, int64_t length, int eager, int64_t want_leases)
{
    static float qkv[NODE_TOKENS][3 * NODE_WIDTH], context[NODE_TOKENS][NODE_WIDTH];
    static float want[NODE_TOKENS][NODE_WIDTH];
    int32_t offsets[5] = {0};
    int64_t tokens = bs * length;
    mstar_runner_result result;
    CHECK_OK(step_of(t, bs, length, eager, &result));
    assert_int_equal(t->seen_leases, want_leases);
    assert_int_equal(t->slot >= 0, want_leases);
    for (int64_t i = 0; i < bs; i++)
        offsets[i + 1] = offsets[i] + (int32_t)length;
    mstar_tensor x =
        mstar_tensor_make(t->rows, MSTAR_DTYPE_F32, 2, (int64_t[]){tokens, NODE_WIDTH});
    mstar_tensor wide =
        mstar_tensor_make(qkv, MSTAR_DTYPE_F32, 2, (int64_t[]){tokens, 3 * NODE_WIDTH});
    mstar_tensor between = x, out = x;
    between.data = context;
    out.data = want;
    CHECK_OK(mstar_ragged_prefill_plan(t->region.node.eager, t->region.stream, offsets, bs, 0));
    CHECK_OK(region_bench_layer(&t->region, t->region.stream, &x, &wide, &between, &out, false));
    assert_memory_equal(mstar_tensors_find(result.outputs, "out")->data, want,
                        (size_t)tokens * sizeof want[0]);
}

static mstar_graph_runner_info query(const tower *t)
{
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_runner_query(t->runner, &info));
    return info;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void leased_where_a_capture_serves(void **state)
{
    (void)state;
    static tower t;
    open_tower(&t, 0);
    start_tower(&t);
    check_step(&t, 1, 9, 0, 1);
    check_step(&t, 2, 16, 0, 1);
    check_step(&t, 1, 33, 0, 0); /* no capture of so many tokens: the step plans for itself */
    check_step(&t, 3, 5, 0, 0);  /* can_lease says no */
    check_step(&t, 2, 1, 0, 1);
    check_step(&t, 1, 9, 1, 0);     /* a step that asks to be eager replays nothing */
    assert_int_equal(t.commits, 6); /* what is not the region's is the step's own, always */
    mstar_region_runner_info region = region_bench_query(&t.region);
    assert_int_equal(region.replays, 3);
    assert_int_equal(region.leases, 3);
    assert_int_equal(region.unused_leases, 0);
    assert_int_equal(query(&t).region_leases, 3);
    assert_int_equal(query(&t).eager_steps, 6);
    assert_int_equal(t.region.leases_asked, 4); /* asked only where a capture serves */
    close_tower(&t);
}

static void none_under_a_whole_lease(void **state)
{
    (void)state;
    static tower t;
    mstar_runner_result result;
    open_tower(&t, 12);
    start_tower(&t);
    for (int round = 0; round < 3; round++) {
        CHECK_OK(step_of(&t, 1, 12, 0, &result));
        assert_int_equal(result.miss, MSTAR_GRAPH_MISS_NONE);
        check_step(&t, 1, 12, 0, 0);
        check_step(&t, 1, 13, 0, 1); /* past the whole forward's bucket: eager around the region */
        check_step(&t, 1, 3, 0, 0);
    }
    assert_int_equal(query(&t).replays, 9);
    assert_int_equal(query(&t).misses[MSTAR_GRAPH_MISS_TOKENS], 3);
    assert_int_equal(region_bench_query(&t.region).leases, 3);
    close_tower(&t);
}

static void a_config_that_does_not_ask(void **state)
{
    (void)state;
    static tower t;
    open_tower(&t, 0);
    t.region.config->info.lease_before_step = 0;
    start_tower(&t);
    check_step(&t, 1, 9, 0, 0);
    t.region.config->info.lease_before_step = 1;
    t.region.config->info.can_lease = NULL; /* always */
    check_step(&t, 1, 9, 0, 1);
    assert_int_equal(t.region.leases_asked, 0);
    close_tower(&t);
}

static void given_back_by_a_failing_step(void **state)
{
    (void)state;
    static const mstar_status want[] = {
        [DECLARE] = MSTAR_DEVICE_FAILED, [ADMIT] = MSTAR_BUSY,
        [PLAN] = MSTAR_DEVICE_FAILED,    [PREPROCESS] = MSTAR_DEVICE_FAILED,
        [FORWARD] = MSTAR_DEVICE_FAILED, [COMMIT] = MSTAR_DEVICE_FAILED,
    };
    static tower t;
    mstar_runner_result result;
    open_tower(&t, 0);
    start_tower(&t);
    assert_int_equal(region_bench_query(&t.region).num_slots, 2);
    int64_t unused = 0;
    for (hook fails = DECLARE; fails <= COMMIT; fails++) {
        check_step(&t, 1, 9, 0, 1);
        int32_t slot = t.slot;
        t.fails = fails;
        assert_int_equal(step_of(&t, 1, 9, 0, &result), want[fails]);
        assert_int_equal(t.seen_leases, 1);
        t.fails = NO_HOOK;
        bool ran = fails == COMMIT; /* then the lease was used */
        unused += !ran;
        assert_int_equal(region_bench_query(&t.region).unused_leases, unused);
        check_step(&t, 1, 9, 0, 1);
        assert_int_equal(t.slot == slot, ran); /* what was given back is the next slot again */
    }
    /* a forward that does not run the region which it left out: told, and the next step is right */
    t.ignores_lease = true;
    CHECK_OK(step_of(&t, 1, 9, 0, &result));
    t.ignores_lease = false;
    assert_int_equal(region_bench_query(&t.region).unused_leases, unused + 1);
    check_step(&t, 1, 9, 0, 1);
    close_tower(&t);
}

static void refused(void **state)
{
    (void)state;
    static tower t;
    open_tower(&t, 12);
    mstar_region_runner_desc desc = region_desc(&t);
    CHECK_OK(mstar_region_runner_create(t.region.device, &desc, &t.region.runner));
    mstar_region_runner *other = NULL;
    CHECK_INVALID(mstar_graph_runner_add_region(NULL, t.region.runner), "runner is NULL");
    CHECK_INVALID(mstar_graph_runner_add_region(t.runner, NULL), "region is NULL");
    CHECK_OK(mstar_graph_runner_add_region(t.runner, t.region.runner));
    CHECK_INVALID(mstar_graph_runner_add_region(t.runner, t.region.runner),
                  "has a region \"blocks\" already");

    desc.label = "more"; /* the handles of the first region */
    CHECK_OK(mstar_region_runner_create(t.region.device, &desc, &other));
    CHECK_INVALID(mstar_graph_runner_add_region(t.runner, other), "region tower_blocks pads the");
    mstar_region_runner_destroy(other);
    int64_t count = region_bench_query(&t.region).num_handles, first = desc.first_handle;
    desc.first_handle = first - count + 1; /* one is shared */
    CHECK_OK(mstar_region_runner_create(t.region.device, &desc, &other));
    CHECK_INVALID(mstar_graph_runner_add_region(t.runner, other), "region tower_blocks pads the");
    mstar_region_runner_destroy(other);
    desc.first_handle = -2; /* those of whole forwards */
    CHECK_OK(mstar_region_runner_create(t.region.device, &desc, &other));
    CHECK_INVALID(mstar_graph_runner_add_region(t.runner, other), "from -2 down");
    mstar_region_runner_destroy(other);
    desc.first_handle = first - count;
    CHECK_OK(mstar_region_runner_create(t.region.device, &desc, &other));
    CHECK_OK(mstar_graph_runner_add_region(t.runner, other));

    mstar_device *device;
    mstar_region_runner *foreign;
    mstar_stream *stream;
    CHECK_OK(mstar_device_open("cpu", &(mstar_device_desc){.struct_size = 8, .num_threads = 1},
                               &device));
    CHECK_OK(mstar_stream_create(device, 1, &stream));
    desc.label = "foreign";
    desc.stream = stream;
    desc.first_handle = first - 2 * count;
    CHECK_OK(mstar_region_runner_create(device, &desc, &foreign));
    CHECK_INVALID(mstar_graph_runner_add_region(t.runner, foreign), "on another device");
    mstar_region_runner_destroy(foreign);
    mstar_stream_destroy(stream);
    CHECK_OK(mstar_device_close(device));

    /* all are prepared before the first captures */
    CHECK_OK(mstar_graph_runner_prepare(t.runner));
    CHECK_OK(mstar_region_runner_prepare(t.region.runner));
    CHECK_FAILED(mstar_graph_runner_capture(t.runner), MSTAR_OUT_OF_ORDER,
                 "before its region \"more\" was prepared");
    CHECK_OK(mstar_region_runner_prepare(other));
    CHECK_OK(mstar_graph_runner_capture(t.runner));
    CHECK_FAILED(mstar_graph_runner_add_region(t.runner, t.region.runner), MSTAR_OUT_OF_ORDER,
                 "has captured already");
    check_step(&t, 1, 14, 0, 0); /* regions that have not captured are not leased */
    CHECK_OK(mstar_region_runner_capture(t.region.runner));
    check_step(&t, 1, 14, 0, 1);

    mstar_runner_step step;
    mstar_runner_result result = {.struct_size = sizeof result};
    mstar_node_input input = {.input_seq_len = 14};
    mstar_runner_step_init(&step);
    step.walk = "w";
    step.requests = (int64_t[]){8};
    step.inputs = &input;
    step.count = 1;
    step.stream = t.region.stream; /* the region runs on the runner's */
    CHECK_INVALID(mstar_graph_runner_step(t.runner, &step, &result), "region tower_blocks");
    check_step(&t, 1, 14, 0, 1);
    mstar_graph_runner_destroy(t.runner);
    t.runner = NULL;
    mstar_region_runner_destroy(other);
    close_tower(&t);
}

static void two_regions(void **state)
{
    (void)state;
    static tower t;
    open_tower(&t, 0);
    mstar_region_runner_desc desc = region_desc(&t);
    mstar_region_runner *other;
    mstar_step_context context;
    mstar_step_context_init(&context);
    assert_int_equal(mstar_step_context_holds_region(NULL, "blocks"), 0);
    assert_int_equal(mstar_step_context_holds_region(&context, "blocks"), 0);
    const char *labels[] = {"stem", "blocks"};
    context.region_leases = labels;
    context.num_region_leases = 2;
    assert_int_equal(mstar_step_context_holds_region(&context, "blocks"), 1);
    assert_int_equal(mstar_step_context_holds_region(&context, "stem"), 1);
    assert_int_equal(mstar_step_context_holds_region(&context, NULL), 0);
    /* the second has captured nothing, and is passed over */
    desc.label = "idle";
    desc.first_handle -= 1000;
    CHECK_OK(mstar_region_runner_create(t.region.device, &desc, &other));
    CHECK_OK(mstar_graph_runner_add_region(t.runner, other));
    CHECK_OK(mstar_region_runner_prepare(other));
    start_tower(&t);
    check_step(&t, 2, 4, 0, 1);
    mstar_region_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_region_runner_query(other, &info));
    assert_int_equal(info.leases, 0);
    mstar_graph_runner_destroy(t.runner);
    t.runner = NULL;
    mstar_region_runner_destroy(other);
    close_tower(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leased_where_a_capture_serves),
        cmocka_unit_test(none_under_a_whole_lease),
        cmocka_unit_test(a_config_that_does_not_ask),
        cmocka_unit_test(given_back_by_a_failing_step),
        cmocka_unit_test(refused),
        cmocka_unit_test(two_regions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
