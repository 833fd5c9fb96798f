/*
 * test_graph_padding.c - the rows that pad a step, as a resource sees them: known once, for good,
 * distinct in each slot, behind the real rows and at their own places; never committed, and reset
 * with their storage when their step ends.
 */
#include "support_runner.h"

#include <stdio.h>
#include <string.h>

enum { MOST_ROWS = 8, MOST_RESETS = 64, MOST_KNOWN = 32 };

/* What the runner told a resource, the latest of each kind. */
typedef struct ledger {
    int64_t claims, plans, leases, max_bs, max_tokens;
    int64_t known[MOST_KNOWN], num_known; /* requests added, in order */
    int64_t forgotten;
    int64_t planned[MOST_ROWS], num_planned, num_real;
    char walk[16], lease_walk[16];
    int32_t slot;
    bool leased, capturing;
    int64_t committed[MOST_ROWS], num_committed, published[MOST_ROWS], num_published;
    int64_t reset[MOST_RESETS], num_reset, freed;
    bool refuses;
} ledger;

static mstar_status claim(void *self, const mstar_claim *claim)
{
    ledger *l = self;
    assert_int_equal(l->plans, 0); /* before anything is captured, or even planned */
    l->claims++;
    l->leases = claim->num_leases;
    l->max_bs = claim->max_bs;
    l->max_tokens = claim->max_tokens;
    assert_string_equal(claim->node, "tiny");
    return MSTAR_OK;
}

static mstar_status admit(void *self, const mstar_step_context *context,
                          const mstar_resource_step *step, mstar_admission *admission)
{
    (void)context;
    (void)step;
    if (((ledger *)self)->refuses)
        admission->outcome = MSTAR_REFUSED;
    return MSTAR_OK;
}

static int64_t note(const mstar_resource_step *step, int64_t *rows)
{
    assert_true(step->num_segments <= MOST_ROWS);
    for (int64_t i = 0; i < step->num_segments; i++)
        rows[i] = step->segments[i].request;
    return step->num_segments;
}

static mstar_status plan(void *self, const mstar_step_context *context,
                         const mstar_resource_step *step, const mstar_plan_results *results,
                         const void **result)
{
    ledger *l = self;
    (void)results;
    (void)result;
    l->plans++;
    l->num_planned = note(step, l->planned);
    l->num_real = context->num_requests;
    l->slot = context->slot;
    l->leased = context->lease != NULL;
    l->capturing = context->capturing != 0;
    (void)snprintf(l->walk, sizeof l->walk, "%s", context->walk);
    (void)snprintf(l->lease_walk, sizeof l->lease_walk, "%s",
                   l->leased ? context->lease->key.walk : "");
    assert_int_equal(context->num_padded_requests, step->num_segments);
    if (l->leased) {
        assert_int_equal(context->lease->slot, context->slot);
        assert_int_equal(context->lease->key.bs, step->num_segments);
    }
    return MSTAR_OK;
}

static mstar_status commit(void *self, const mstar_step_context *context,
                           const mstar_resource_step *step)
{
    ledger *l = self;
    (void)context;
    l->num_committed = note(step, l->committed);
    assert_int_equal(l->num_reset, 0); /* rows are reset after their step, not in it */
    return MSTAR_OK;
}

static mstar_status publish(void *self, const mstar_step_context *context,
                            const mstar_resource_step *step)
{
    ledger *l = self;
    (void)context;
    l->num_published = note(step, l->published);
    return MSTAR_OK;
}

static mstar_status add_request(void *self, int64_t request)
{
    ledger *l = self;
    for (int64_t i = 0; i < l->num_known; i++)
        assert_int_not_equal(l->known[i], request);
    assert_true(l->num_known < MOST_KNOWN);
    l->known[l->num_known++] = request;
    return MSTAR_OK;
}

static void remove_request(void *self, int64_t request)
{
    (void)request;
    ((ledger *)self)->forgotten++;
}

static void reset_request(void *self, int64_t request, int free_storage)
{
    ledger *l = self;
    l->freed += free_storage;
    if (l->num_reset < MOST_RESETS)
        l->reset[l->num_reset++] = request;
}

/* ---- a bench with it ------------------------------------------------------------------------- */

static const mstar_resource_hooks hooks_of_ledger = {
    .struct_size = sizeof hooks_of_ledger,
    .pre_plans = 1,
    .claim = claim,
    .admit = admit,
    .plan = plan,
    .commit = commit,
    .publish = publish,
    .add_request = add_request,
    .remove_request = remove_request,
    .reset_request = reset_request,
};

/* Requests 1 and 4, of 16 and 64 tokens, captured as "w", replayed as "w" and "alias". */
static void open_bench(bench *b, ledger *l)
{
    static const int64_t sizes[] = {1, 4}, lengths[] = {16, 64};
    static const char *const walks[] = {"w", "alias"};
    memset(l, 0, sizeof *l);
    bench_open(b, 1);
    node_manage(&b->node);
    mstar_resources_destroy(b->node.resources);
    mstar_resource list[2] = {{.key = "ledger", .hooks = &hooks_of_ledger, .self = l}};
    CHECK_OK(mstar_ragged_manager_get_resource(b->node.manager, "attn", &list[1]));
    CHECK_OK(mstar_resources_create(list, 2, &b->node.resources));
    b->node.also = "ledger";
    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "w";
    desc.replay_graph_walks = walks;
    desc.num_replay_graph_walks = 2;
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = 2;
    desc.capture_token_lengths = lengths;
    desc.num_capture_token_lengths = 2;
    desc.make_node_input = node_make_input;
    CHECK_OK(mstar_packed_graph_config_create(&desc, (mstar_graph_config **)&b->configs[0]));
    b->num_configs = 1;
}

static void run(bench *b, ledger *l, const char *walk, const int64_t *requests, int64_t count,
                mstar_status want)
{
    static node_step step;
    static const int64_t lengths[] = {5, 3, 2, 1, 1};
    check_rng rng = {4};
    int64_t before[5];
    mstar_runner_step request;
    mstar_runner_result result = {.struct_size = sizeof result};
    node_step_fill(&step, &rng, lengths, count);
    memcpy(step.requests, requests, (size_t)count * sizeof *requests);
    memcpy(before, requests, (size_t)count * sizeof *requests);
    l->num_reset = l->freed = l->num_committed = l->num_published = 0;
    mstar_runner_step_init(&request);
    request.walk = walk;
    request.requests = step.requests;
    request.inputs = step.inputs;
    request.count = count;
    assert_int_equal(mstar_graph_runner_step(b->runner, &request, &result), want);
    assert_memory_equal(step.requests, before, (size_t)count * sizeof *before);
}

static void same_rows(const int64_t *rows, int64_t count, const int64_t *want, int64_t num_want)
{
    assert_int_equal(count, num_want);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(rows[i], want[i]);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void known_before_any_capture(void **state)
{
    (void)state;
    static bench b;
    static ledger l;
    open_bench(&b, &l);
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    CHECK_OK(mstar_graph_runner_create(b.device, &desc, &b.runner));
    assert_int_equal(l.claims + l.num_known + l.plans, 0);
    CHECK_OK(mstar_graph_runner_prepare(b.runner));
    assert_int_equal(l.claims, 1);
    assert_int_equal(l.leases, 4 * 2); /* every bucket and slot at once */
    assert_int_equal(l.max_bs, 4);
    assert_int_equal(l.max_tokens, 64);
    same_rows(l.known, l.num_known, (int64_t[]){-2, -3, -4, -5, -6, -7, -8, -9}, 8);
    assert_int_equal(bench_query(&b).num_handles, 8);
    l.num_reset = l.freed = 0;
    CHECK_OK(mstar_graph_runner_capture(b.runner));
    assert_true(l.capturing && l.leased);
    assert_int_equal(l.num_real, l.num_planned); /* a dummy step has no other rows */
    assert_string_equal(l.walk, "w");
    assert_int_equal(l.num_known, 8); /* none is added twice */
    assert_int_equal(l.num_committed, 0);
    /* of each bucket's rows and slots: after each of two warm-ups, and with storage at the end */
    assert_int_equal(l.num_reset, 2 * (4 + 4 + 1 + 1) * 3);
    assert_int_equal(l.freed, 2 * (4 + 4 + 1 + 1));
    mstar_graph_runner_destroy(b.runner);
    b.runner = NULL;
    assert_int_equal(l.forgotten, 8);
    bench_close(&b);
}

static void rows_behind_the_real_ones(void **state)
{
    (void)state;
    static bench b;
    static ledger l;
    open_bench(&b, &l);
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    bench_start(&b, &desc);
    assert_int_equal(bench_query(&b).num_slots, 2);
    for (int round = 0; round < 4; round++) {
        int64_t first = -2 - 4 * (round % 2); /* of the slot */
        run(&b, &l, "alias", (int64_t[]){70, 71}, 2, MSTAR_OK);
        assert_int_equal(l.slot, round % 2);
        assert_string_equal(l.walk, "alias");
        assert_string_equal(l.lease_walk, "w"); /* the buffers that the graph recorded */
        assert_int_equal(l.num_real, 2);
        same_rows(l.planned, l.num_planned, (int64_t[]){70, 71, first - 2, first - 3}, 4);
        same_rows(l.committed, l.num_committed, (int64_t[]){70, 71}, 2);
        same_rows(l.published, l.num_published, (int64_t[]){70, 71}, 2);
        same_rows(l.reset, l.num_reset, (int64_t[]){first - 2, first - 3}, 2);
        assert_int_equal(l.freed, 2);
    }
    run(&b, &l, "w", (int64_t[]){1, 2, 3, 4}, 4, MSTAR_OK); /* a full batch has no tail */
    same_rows(l.planned, l.num_planned, (int64_t[]){1, 2, 3, 4}, 4);
    assert_int_equal(l.num_reset, 0);
    run(&b, &l, "w", (int64_t[]){1, 2, 3, 4, 5}, 5, MSTAR_OK); /* eager */
    assert_false(l.leased);
    same_rows(l.planned, l.num_planned, (int64_t[]){1, 2, 3, 4, 5}, 5);
    same_rows(l.committed, l.num_committed, (int64_t[]){1, 2, 3, 4, 5}, 5);
    assert_int_equal(l.num_reset, 0);
    bench_close(&b);
}

/* Rows of a step that fails are reset too, and nothing of it is committed. */
static void reset_when_the_step_fails(void **state)
{
    (void)state;
    static bench b;
    static ledger l;
    open_bench(&b, &l);
    mstar_node_hooks hooks = node_hooks(&b.node);
    mstar_graph_runner_desc desc = bench_desc(&b, &hooks);
    desc.num_slots = 1;
    bench_start(&b, &desc);
    l.refuses = true;
    run(&b, &l, "w", (int64_t[]){7, 8}, 2, MSTAR_CANCELLED);
    l.refuses = false;
    same_rows(l.reset, l.num_reset, (int64_t[]){-4, -5}, 2);
    assert_int_equal(l.freed, 2);
    assert_int_equal(l.num_committed, 0);
    b.node.fault.preprocess = b.node.calls.preprocess + 1;
    run(&b, &l, "w", (int64_t[]){7, 8}, 2, MSTAR_DEVICE_FAILED);
    same_rows(l.reset, l.num_reset, (int64_t[]){-4, -5}, 2);
    assert_int_equal(l.num_committed, 0);
    run(&b, &l, "w", (int64_t[]){7, 8}, 2, MSTAR_OK);
    same_rows(l.committed, l.num_committed, (int64_t[]){7, 8}, 2);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_before_any_capture),
        cmocka_unit_test(rows_behind_the_real_ones),
        cmocka_unit_test(reset_when_the_step_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
