/*
 * test_shared_resources.c - runners over the same resources: buckets of equal keys share wrappers,
 * which are there until the last runner that claimed them is gone, however the others fare; padding
 * rows are everyone's own; a resource that would move what is captured is told.
 */
#include "support_runner.h"

#include <string.h>

#include "support_region.h"

/* Two runners over one managed node: the bench's own, and another. */
typedef struct pair {
    bench b;
    mstar_graph_runner *other;
    check_rng rng;
} pair;

static int64_t graph_wrappers(const pair *p)
{
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query(p->b.node.manager, &info));
    return info.graph_wrappers;
}

static void open_pair(pair *p)
{
    memset(p, 0, sizeof *p);
    p->rng = (check_rng){71};
    bench_open(&p->b, 2);
    node_manage(&p->b.node);
    p->b.configs[0] = bench_packed("w", bench_sizes, 1, bench_lengths, 3);
    p->b.num_configs = 1;
}

static void make_other(pair *p, int64_t free_bytes)
{
    mstar_node_hooks hooks = node_hooks(&p->b.node);
    mstar_graph_runner_desc desc = bench_desc(&p->b, &hooks);
    desc.node = "other";
    desc.free_bytes = free_bytes;
    CHECK_OK(mstar_graph_runner_create(p->b.device, &desc, &p->other));
}

static void start_first(pair *p)
{
    mstar_node_hooks hooks = node_hooks(&p->b.node);
    mstar_graph_runner_desc desc = bench_desc(&p->b, &hooks);
    bench_start(&p->b, &desc);
    assert_int_equal(bench_query(&p->b).num_captured, 3);
    assert_int_equal(graph_wrappers(p), 3 * 2);
}

static void swap(pair *p)
{
    mstar_graph_runner *first = p->b.runner;
    p->b.runner = p->other;
    p->other = first;
}

/* The bench's runner replays in every bucket, in both slots, with the bits of eager and alone. */
static void replays(pair *p)
{
    for (int i = 0; i < 2; i++) {
        bench_check_step(&p->b, "w", &p->rng, (int64_t[]){9, 7}, 2, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&p->b, "w", &p->rng, (int64_t[]){1, 30, 0}, 3, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&p->b, "w", &p->rng, (int64_t[]){64}, 1, MSTAR_GRAPH_MISS_NONE);
    }
}

static void close_pair(pair *p)
{
    mstar_graph_runner_destroy(p->other);
    mstar_graph_runner_destroy(p->b.runner);
    p->b.runner = NULL;
    assert_int_equal(graph_wrappers(p), 0);
    bench_close(&p->b);
}

/* The second runner comes when the first has captured, and has room for some of its buckets, for
 * the scratch of others only, or for nothing. */
static void no_room_for_the_second(void **state)
{
    (void)state;
    static pair p;
    bool seen[4] = {false};
    open_pair(&p);
    start_first(&p);
    for (int64_t bytes = 0; bytes < 300000; bytes += 3000) {
        make_other(&p, bytes);
        CHECK_OK(mstar_graph_runner_prepare(p.other));
        assert_int_equal(graph_wrappers(&p), 3 * 2);
        if (bytes % 30000 == 0)
            replays(&p);
        CHECK_OK(mstar_graph_runner_capture(p.other));
        swap(&p);
        seen[bench_query(&p.b).num_captured] = true;
        swap(&p);
        mstar_graph_runner_destroy(p.other);
        p.other = NULL;
    }
    for (int i = 0; i < 4; i++)
        assert_true(seen[i]);
    replays(&p);
    close_pair(&p);
}

/* It fails in every hook and call once, before its capture and in it. */
static void the_second_fails(void **state)
{
    (void)state;
    static pair p;
    open_pair(&p);
    start_first(&p);
    for (int hook = 0; hook < 4; hook++) {
        for (int call = 1; call <= 12; call++) {
            node_fault fault = {0};
            int *const places[] = {&fault.declare, &fault.preprocess, &fault.forward,
                                   &fault.forward};
            *places[hook] = call;
            fault.in_capture = hook == 3;
            make_other(&p, -1);
            memset(&p.b.node.calls, 0, sizeof p.b.node.calls);
            p.b.node.fault = fault;
            CHECK_OK(mstar_graph_runner_prepare(p.other));
            CHECK_OK(mstar_graph_runner_capture(p.other));
            p.b.node.fault = (node_fault){0};
            swap(&p);
            assert_int_equal(bench_query(&p.b).num_failed, 1);
            swap(&p);
            assert_int_equal(graph_wrappers(&p), 3 * 2);
            if (call % 4 == 1)
                replays(&p);
            mstar_graph_runner_destroy(p.other);
            p.other = NULL;
        }
        replays(&p);
    }
    close_pair(&p);
}

/* Both serve in turn, and either goes first. */
static void one_is_destroyed(void **state)
{
    (void)state;
    static pair p;
    for (int first_goes = 0; first_goes < 2; first_goes++) {
        open_pair(&p);
        start_first(&p);
        make_other(&p, -1);
        CHECK_OK(mstar_graph_runner_prepare(p.other));
        CHECK_OK(mstar_graph_runner_capture(p.other));
        assert_int_equal(graph_wrappers(&p), 3 * 2); /* shared */
        for (int i = 0; i < 2; i++) {
            replays(&p);
            swap(&p);
        }
        if (first_goes)
            swap(&p);
        mstar_graph_runner_destroy(p.other);
        p.other = NULL;
        assert_int_equal(graph_wrappers(&p), 3 * 2);
        replays(&p);
        close_pair(&p);
    }
}

/* Two buckets of one runner have the same key: that of the second config fails. */
static void equal_keys_in_one_runner(void **state)
{
    (void)state;
    static pair p;
    for (int call = 1; call <= 12; call++) {
        open_pair(&p);
        p.b.configs[1] = bench_batched("w", bench_sizes, 1, 4);
        p.b.num_configs = 2;
        mstar_node_hooks hooks = node_hooks(&p.b.node);
        mstar_graph_runner_desc desc = bench_desc(&p.b, &hooks);
        CHECK_OK(mstar_graph_runner_create(p.b.device, &desc, &p.b.runner));
        p.b.node.fault = (node_fault){.preprocess = call};
        CHECK_OK(mstar_graph_runner_prepare(p.b.runner));
        int64_t prepared = graph_wrappers(&p);
        mstar_graph_runner_info told = bench_query(&p.b);
        CHECK_OK(mstar_graph_runner_capture(p.b.runner));
        p.b.node.fault = (node_fault){0};
        mstar_graph_runner_info info = bench_query(&p.b);
        assert_int_equal(info.num_captured, 3);
        assert_int_equal(graph_wrappers(&p), prepared);
        assert_int_equal(info.resource_bytes, told.resource_bytes);
        bool largest_is_there = bench_query_bucket(&p.b, 0).state == MSTAR_BUCKET_CAPTURED;
        for (int i = 0; i < 2; i++)
            bench_check_step(&p.b, "w", &p.rng, (int64_t[]){4, 4, 4, 4}, 4, MSTAR_GRAPH_MISS_NONE);
        bench_check_step(&p.b, "w", &p.rng, (int64_t[]){60}, 1,
                         largest_is_there ? MSTAR_GRAPH_MISS_NONE : MSTAR_GRAPH_MISS_NOT_CAPTURED);
        close_pair(&p);
    }
}

static mstar_status plan_ahead(mstar_graph_runner *runner, const node_step *step)
{
    mstar_graph_miss miss;
    mstar_runner_step next;
    mstar_runner_step_init(&next);
    next.walk = "w";
    next.requests = step->requests;
    next.inputs = step->inputs;
    next.count = step->count;
    return mstar_graph_runner_pre_plan(runner, &next, &miss);
}

/* A plan that waits for a step of a runner that is gone is nobody's. */
static void a_plan_goes_with_its_runner(void **state)
{
    (void)state;
    static pair p;
    static node_step step, large;
    static node_result result;
    open_pair(&p);
    start_first(&p);
    make_other(&p, -1);
    CHECK_OK(mstar_graph_runner_prepare(p.other));
    CHECK_OK(mstar_graph_runner_capture(p.other));
    node_step_fill(&step, &p.rng, (int64_t[]){5, 3}, 2);
    assert_int_equal(node_run(p.b.runner, "w", &step, 0, &result), MSTAR_GRAPH_MISS_NONE);
    CHECK_FAILED(plan_ahead(p.other, &step), MSTAR_OUT_OF_ORDER, "that the present step has");
    node_step_fill(&large, &p.rng, (int64_t[]){30, 20}, 2);
    CHECK_OK(plan_ahead(p.other, &large)); /* another bucket, slot 0 */
    CHECK_FAILED(plan_ahead(p.b.runner, &step), MSTAR_OUT_OF_ORDER, "pending on slot 0");
    mstar_graph_runner_destroy(p.other);
    p.other = NULL;
    CHECK_OK(plan_ahead(p.b.runner, &step)); /* slot 1 */
    make_other(&p, -1);                      /* one that comes and goes, or never does, drops no */
    mstar_graph_runner_destroy(p.other);     /* plan of others */
    p.other = NULL;
    mstar_node_hooks hooks = node_hooks(&p.b.node);
    mstar_graph_runner_desc desc = bench_desc(&p.b, &hooks);
    desc.num_threads = 0;
    CHECK_INVALID(mstar_graph_runner_create(p.b.device, &desc, &p.other), "threads");
    assert_int_equal(node_run(p.b.runner, "w", &step, 0, &result), MSTAR_GRAPH_MISS_NONE);
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_ragged_manager_query(p.b.node.manager, &info));
    assert_true(info.promoted == 1 && info.pending == 0);
    replays(&p);
    close_pair(&p);
}

/* ---- lives at random --------------------------------------------------------------------------
 */

enum { LIVES = 3 };

typedef struct life {
    mstar_graph_runner *runner;
    int phase; /* 0 new, 1 prepared, 2 captured */
} life;

static int fails_once(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(const uint64_t *)context;
}

static void begin(pair *p, life *l)
{
    mstar_node_hooks hooks = node_hooks(&p->b.node);
    mstar_graph_runner_desc desc = bench_desc(&p->b, &hooks);
    desc.free_bytes = check_integer(&p->rng, 0, 2) == 0 ? check_integer(&p->rng, 0, 250000) : -1;
    desc.num_slots = (int32_t)check_integer(&p->rng, 1, 3);
    desc.num_warmups = (int32_t)check_integer(&p->rng, 0, 2);
    CHECK_OK(mstar_graph_runner_create(p->b.device, &desc, &l->runner));
    l->phase = 0;
}

/* prepare or capture, with a hook or an allocation that fails at times. */
static void advance(pair *p, life *l)
{
    int *const places[] = {&p->b.node.fault.declare, &p->b.node.fault.preprocess,
                           &p->b.node.fault.lay_out, &p->b.node.fault.forward};
    uint64_t number = (uint64_t)check_integer(&p->rng, 1, 150);
    int64_t how = check_integer(&p->rng, 0, 2);
    memset(&p->b.node.calls, 0, sizeof p->b.node.calls);
    if (how == 1)
        *places[check_integer(&p->rng, 0, 3)] = (int)check_integer(&p->rng, 1, 20);
    if (how == 2)
        mstar_set_alloc_fault(fails_once, &number);
    mstar_status status = l->phase == 0 ? mstar_graph_runner_prepare(l->runner)
                                        : mstar_graph_runner_capture(l->runner);
    mstar_set_alloc_fault(NULL, NULL);
    p->b.node.fault = (node_fault){0};
    assert_true(status == MSTAR_OK || (how == 2 && status == MSTAR_OUT_OF_MEMORY));
    if (status == MSTAR_OK || l->phase == 1)
        l->phase++;
}

static void end(life *l)
{
    mstar_graph_runner_destroy(l->runner);
    l->runner = NULL;
}

/* Planned ahead or not, replayed or not: the bits of eager. */
static void serve(pair *p, const life *l)
{
    static node_step step;
    static node_result served, eager;
    int64_t lengths[4], count = check_integer(&p->rng, 1, 4);
    for (int64_t i = 0; i < count; i++)
        lengths[i] = check_integer(&p->rng, 0, 17);
    node_step_fill(&step, &p->rng, lengths, count);
    if (check_integer(&p->rng, 0, 1)) {
        (void)plan_ahead(l->runner, &step); /* another's may be pending */
        if (check_integer(&p->rng, 0, 3) == 0)
            return;
    }
    (void)node_run(l->runner, "w", &step, 0, &served);
    (void)node_run(l->runner, "w", &step, 1, &eager);
    node_check_equal(&step, &served, &eager);
}

/* Runners come and go, fail and serve, in any order. */
static void lives_at_random(void **state)
{
    (void)state;
    static pair p;
    life lives[LIVES] = {{.runner = NULL}};
    open_pair(&p);
    for (int i = 0; i < 3000; i++) {
        life *l = &lives[check_integer(&p.rng, 0, LIVES - 1)];
        if (l->runner == NULL)
            begin(&p, l);
        else if (l->phase < 2)
            advance(&p, l);
        else if (check_integer(&p.rng, 0, 9) == 0)
            end(l);
        else
            serve(&p, l);
    }
    for (int i = 0; i < LIVES; i++)
        end(&lives[i]);
    close_pair(&p);
}

/* ---- a resource that holds rows and buffers that move -----------------------------------------
 */

enum { MOST_ROWS = 256 };

typedef struct rows {
    int64_t known[MOST_ROWS], num_known, claimed;
    int32_t captured;
    bool moves, refuses;
} rows;

static mstar_status add_row(void *self, int64_t request)
{
    rows *r = self;
    for (int64_t i = 0; i < r->num_known; i++) {
        if (r->known[i] == request)
            return mstar_fail(MSTAR_INVALID_ARGUMENT, "the row is known already");
    }
    assert_true(r->num_known < MOST_ROWS);
    r->known[r->num_known++] = request;
    return MSTAR_OK;
}

static void remove_row(void *self, int64_t request)
{
    rows *r = self;
    for (int64_t i = 0; i < r->num_known; i++) {
        if (r->known[i] != request)
            continue;
        r->known[i] = r->known[--r->num_known];
        return;
    }
    fail_msg("row %lld is not known", (long long)request);
}

static mstar_status claim_rows(void *self, const mstar_claim *claim)
{
    rows *r = self;
    r->captured = claim->captured;
    if (r->refuses)
        return mstar_fail(MSTAR_OUT_OF_ORDER, "no");
    if (r->moves && claim->captured)
        return mstar_fail(MSTAR_OUT_OF_ORDER, "captures hold the buffers");
    r->claimed += claim->num_leases;
    return MSTAR_OK;
}

static void unclaim_rows(void *self, const mstar_lease *lease)
{
    (void)lease;
    ((rows *)self)->claimed--;
}

static const mstar_resource_hooks row_hooks = {.struct_size = sizeof row_hooks,
                                               .claim = claim_rows,
                                               .unclaim = unclaim_rows,
                                               .add_request = add_row,
                                               .remove_request = remove_row};

static void open_rows(pair *p, rows *r)
{
    mstar_resource list[2] = {[1] = {.key = "rows", .hooks = &row_hooks, .self = r}};
    open_pair(p);
    CHECK_OK(mstar_ragged_manager_get_resource(p->b.node.manager, "attn", &list[0]));
    mstar_resources_destroy(p->b.node.resources);
    CHECK_OK(mstar_resources_create(list, 2, &p->b.node.resources));
}

static void rows_are_their_own(void **state)
{
    (void)state;
    static pair p;
    rows r = {.num_known = 0};
    open_rows(&p, &r);
    start_first(&p);
    assert_int_equal(r.captured, 0);
    assert_int_equal(r.num_known, 4 * 2);
    make_other(&p, -1);
    CHECK_OK(mstar_graph_runner_prepare(p.other));
    assert_int_equal(r.captured, 1);
    assert_int_equal(r.num_known, 2 * 4 * 2);
    assert_int_equal(r.claimed, 2 * 3 * 2);
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_runner_query(p.other, &info));
    assert_int_equal(info.first_handle, bench_query(&p.b).first_handle - 8);
    CHECK_OK(mstar_graph_runner_capture(p.other));
    mstar_graph_runner_destroy(p.other);
    assert_int_equal(r.num_known, 4 * 2);
    assert_int_equal(r.claimed, 3 * 2);
    r.moves = true; /* the first has captured: the next is refused, and nothing is left of it */
    make_other(&p, -1);
    CHECK_FAILED(mstar_graph_runner_prepare(p.other), MSTAR_OUT_OF_ORDER,
                 "resource \"rows\": captures hold the buffers");
    CHECK_FAILED(mstar_graph_runner_prepare(p.other), MSTAR_OUT_OF_ORDER,
                 "resource \"rows\": captures hold the buffers");
    CHECK_FAILED(mstar_graph_runner_capture(p.other), MSTAR_OUT_OF_ORDER, "before it was prepared");
    assert_int_equal(r.claimed, 3 * 2);
    mstar_graph_runner_destroy(p.other);
    p.other = NULL;
    replays(&p);
    mstar_graph_runner_destroy(p.b.runner);
    p.b.runner = NULL;
    assert_int_equal(r.num_known + r.claimed, 0);
    start_first(&p); /* nothing captured is there any more */
    assert_int_equal(r.captured, 0);
    replays(&p);
    close_pair(&p);
}

/* The last resource refuses: those before it that were given the claim are told, lease by lease. */
static void a_claim_is_given_back(void **state)
{
    (void)state;
    rows first = {.claimed = 7}, none = {.claimed = 0}, last = {.refuses = true};
    mstar_resource_hooks without_claim = row_hooks;
    without_claim.claim = NULL;
    const mstar_resource list[] = {{.key = "first", .hooks = &row_hooks, .self = &first},
                                   {.key = "none", .hooks = &without_claim, .self = &none},
                                   {.key = "last", .hooks = &row_hooks, .self = &last}};
    mstar_resources *set;
    CHECK_OK(mstar_resources_create(list, 3, &set));
    const mstar_lease leases[2] = {{.key = {"w", NULL, 1, 8}},
                                   {.key = {"w", NULL, 1, 8}, .slot = 1}};
    mstar_claim claim = {
        .struct_size = sizeof claim, .captured = 1, .leases = leases, .num_leases = 2};
    CHECK_FAILED(mstar_resources_claim(set, &claim), MSTAR_OUT_OF_ORDER, "resource \"last\": no");
    assert_int_equal(first.claimed, 7);
    assert_int_equal(first.captured, 0); /* whatever the caller wrote */
    last.refuses = false;
    CHECK_OK(mstar_resources_claim(set, &claim));
    assert_int_equal(first.claimed, 9);
    mstar_resources_unclaim(set, &leases[1]);
    mstar_resources_unclaim(set, NULL);
    mstar_resources_unclaim(NULL, &leases[0]);
    assert_true(first.claimed == 8 && last.claimed == 1 && none.claimed == 0);
    claim.leases = NULL;
    CHECK_INVALID(mstar_resources_claim(set, &claim), "claim.leases is NULL");
    claim.num_leases = -1;
    CHECK_INVALID(mstar_resources_claim(set, &claim), "claim.num_leases is -1");
    mstar_resources_destroy(set);
}

/* ---- regions ----------------------------------------------------------------------------------
 */

/* A region whose claim is refused can be prepared again. */
static void a_region_is_refused_first(void **state)
{
    (void)state;
    static region_bench b;
    static const int64_t sizes[] = {1}, totals[] = {32};
    check_rng rng = {73};
    rows r = {.moves = true};
    mstar_resource list[2] = {[1] = {.key = "rows", .hooks = &row_hooks, .self = &r}};
    region_bench_open(&b, sizes, 1, 0, totals, 1);
    CHECK_OK(mstar_ragged_manager_get_resource(b.node.manager, "attn", &list[0]));
    mstar_resources_destroy(b.node.resources);
    CHECK_OK(mstar_resources_create(list, 2, &b.node.resources));
    region_bench_start(&b);
    mstar_region_runner *first = b.runner;
    mstar_region_runner_desc desc = region_bench_desc(&b);
    CHECK_OK(mstar_region_runner_create(b.device, &desc, &b.runner));
    for (int i = 0; i < 2; i++) {
        CHECK_FAILED(mstar_region_runner_prepare(b.runner), MSTAR_OUT_OF_ORDER,
                     "captures hold the buffers");
        CHECK_FAILED(mstar_region_runner_capture(b.runner), MSTAR_OUT_OF_ORDER,
                     "before it was prepared");
    }
    mstar_region_runner_destroy(first);
    CHECK_OK(mstar_region_runner_prepare(b.runner));
    CHECK_OK(mstar_region_runner_capture(b.runner));
    assert_int_equal(region_bench_query(&b).num_captured, 1);
    (void)region_bench_check(&b, &rng, (int64_t[]){20}, 1, 1);
    mstar_region_runner_destroy(b.runner);
    b.runner = NULL;
    assert_int_equal(r.num_known + r.claimed, 0);
    region_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_room_for_the_second),
        cmocka_unit_test(the_second_fails),
        cmocka_unit_test(one_is_destroyed),
        cmocka_unit_test(equal_keys_in_one_runner),
        cmocka_unit_test(a_plan_goes_with_its_runner),
        cmocka_unit_test(lives_at_random),
        cmocka_unit_test(rows_are_their_own),
        cmocka_unit_test(a_claim_is_given_back),
        cmocka_unit_test(a_region_is_refused_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
