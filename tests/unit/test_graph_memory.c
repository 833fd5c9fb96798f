/*
 * test_graph_memory.c - a runner's memory is known before it captures: what it tells is what the
 * allocator then has, to the byte; the memory rule keeps its bound; what does not fit gives back
 * all that was taken for it.
 */
#include "support_runner.h"

#include <string.h>

#include "graph/runner.h"
#include "step/step.h"

static int64_t live_bytes(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_memory_query(&info));
    return (int64_t)info.live_bytes;
}

/* A runner over some of the bench's buckets, and what there was before it. */
typedef struct memory_bench {
    bench b;
    int64_t live_before;
    size_t resources_before;
    mstar_graph_runner_info created;
} memory_bench;

/* buckets: bit 0 is the largest, as prepare meets them. */
enum { ALL = 7 };

static void open_memory(memory_bench *m, unsigned buckets, int32_t slots, bool managed,
                        int32_t num_warmups, int64_t free_bytes)
{
    bench *b = &m->b;
    int64_t lengths[3], num_lengths = 0;
    for (int i = 0; i < 3; i++) {
        if ((buckets >> i & 1) != 0)
            lengths[num_lengths++] = bench_lengths[2 - i];
    }
    bench_open(b, 2);
    if (managed)
        node_manage(&b->node);
    b->configs[0] = bench_packed("w", bench_sizes, 1, lengths, num_lengths);
    b->num_configs = 1;
    mstar_node_hooks hooks = node_hooks(&b->node);
    mstar_graph_runner_desc desc = bench_desc(b, &hooks);
    desc.num_slots = slots;
    desc.num_warmups = num_warmups;
    desc.free_bytes = free_bytes;
    desc.floor_bytes = free_bytes >= 0 ? 1000 : 0;
    m->live_before = live_bytes();
    m->resources_before = mstar_resources_memory_bytes(b->node.resources);
    CHECK_OK(mstar_graph_runner_create(b->device, &desc, &b->runner));
    m->created = bench_query(b);
    assert_int_equal(live_bytes() - m->live_before, m->created.total_bytes);
}

/* Of a managed node: everything that was allocated is the runner's or its resources'. */
static int64_t told(const memory_bench *m)
{
    mstar_graph_runner_info info = bench_query(&m->b);
    assert_int_equal(info.total_bytes, info.scratch_bytes + info.static_input_bytes +
                                           info.graph_bytes + info.host_bytes + info.eager_bytes);
    assert_int_equal(info.resource_bytes, mstar_resources_memory_bytes(m->b.node.resources));
    return (int64_t)(info.total_bytes + info.resource_bytes - m->resources_before);
}

/* What prepare and capture take together. */
static int64_t taken(const memory_bench *m)
{
    return told(m) - (int64_t)m->created.total_bytes;
}

/* What a manager remembers of the claims, which are no bucket's: so many leases, one walk. */
static size_t claims_bytes(int64_t leases)
{
    return (size_t)mst_grown(0, leases) * sizeof(mst_lease_claim) +
           (size_t)mst_grown(0, 1) * sizeof(char *) + sizeof "w";
}

/* Slots, warm-ups, with resources and without: the bytes told after prepare are those allocated
 * after capture. */
static void test_told_before_capture(void **state)
{
    (void)state;
    static memory_bench m;
    check_rng rng = {1};
    for (int round = 0; round < 12; round++) {
        bool managed = round % 2 == 1;
        open_memory(&m, ALL, 1 + round / 2 % 2, managed, round / 4, -1);
        CHECK_OK(mstar_graph_runner_prepare(m.b.runner));
        mstar_graph_runner_info before = bench_query(&m.b);
        int64_t live = live_bytes();
        size_t graphs = 0, resources = 0;
        for (int64_t i = 0; i < 3; i++) {
            mstar_runner_bucket_info bucket = bench_query_bucket(&m.b, i);
            assert_int_equal(bucket.state, MSTAR_BUCKET_PLANNED);
            assert_true(bucket.graph_bytes > 0);
            assert_true((bucket.resource_bytes > 0) == managed);
            graphs += bucket.graph_bytes;
            resources += bucket.resource_bytes;
        }
        assert_int_equal(before.graph_bytes, graphs);
        if (managed) {
            assert_int_equal(before.resource_bytes - m.resources_before,
                             resources + claims_bytes(3 * (1 + round / 2 % 2)));
            assert_int_equal(live + (int64_t)graphs, m.live_before + told(&m));
        }
        CHECK_OK(mstar_graph_runner_capture(m.b.runner));
        mstar_graph_runner_info after = bench_query(&m.b);
        assert_int_equal(after.num_captured, 3);
        assert_int_equal(live_bytes() - live, graphs); /* nothing but the graphs was missing */
        assert_int_equal(after.graph_bytes, before.graph_bytes);
        assert_int_equal(after.total_bytes, before.total_bytes);
        assert_int_equal(after.host_bytes, before.host_bytes);
        assert_int_equal(after.resource_bytes, before.resource_bytes);
        if (managed)
            assert_int_equal(live_bytes() - m.live_before, told(&m));
        bench_check_step(&m.b, "w", &rng, (int64_t[]){10, 20}, 2, MSTAR_GRAPH_MISS_NONE);
        bench_close(&m.b);
    }
}

/* Opens with a bound and captures: the buckets that are there, within the bound. */
static unsigned capture_within(memory_bench *m, unsigned buckets, int32_t slots, int64_t free_bytes)
{
    unsigned captured = 0;
    open_memory(m, buckets, slots, true, 1, free_bytes);
    CHECK_OK(mstar_graph_runner_prepare(m->b.runner));
    int64_t before = taken(m);
    CHECK_OK(mstar_graph_runner_capture(m->b.runner));
    assert_int_equal(taken(m), before);
    assert_int_equal(live_bytes() - m->live_before, told(m));
    if (free_bytes >= 0)
        assert_true(taken(m) + 1000 <= free_bytes);
    for (int64_t i = 0; i < bench_query(&m->b).num_buckets; i++) {
        mstar_runner_bucket_info bucket = bench_query_bucket(&m->b, i);
        if (bucket.state == MSTAR_BUCKET_CAPTURED) {
            captured |= 1U << i;
            continue;
        }
        assert_int_equal(bucket.state, MSTAR_BUCKET_UNAFFORDABLE);
        assert_non_null(strstr(bucket.reason, "of which 1000 are to stay so"));
        assert_int_equal(bucket.graph_bytes + bucket.resource_bytes, 0);
    }
    return captured;
}

/* Largest first, each kept where all that is kept then fits. */
static unsigned fit(const int64_t needs[8], int64_t free_bytes)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < 3; i++)
        kept |= needs[kept | 1U << i] + 1000 <= free_bytes ? 1U << i : 0;
    return kept;
}

/* The rule to the byte: exactly enough keeps a bucket, one byte less does not, and a bucket that
 * was tried in vain has cost nothing. */
static void test_budget(void **state)
{
    (void)state;
    static memory_bench m;
    check_rng rng = {2};
    for (int32_t slots = 1; slots <= 2; slots++) {
        int64_t needs[8] = {0};
        unsigned met = 0;
        for (unsigned buckets = 1; buckets <= ALL; buckets++) {
            (void)capture_within(&m, buckets, slots, -1);
            needs[buckets] = taken(&m);
            bench_close(&m.b);
        }
        for (unsigned buckets = 1; buckets <= ALL; buckets++) {
            for (int64_t more = 999; more <= 1000; more++) {
                unsigned want = fit(needs, needs[buckets] + more);
                unsigned got = capture_within(&m, ALL, slots, needs[buckets] + more);
                if (got != want)
                    fail_msg("%lld bytes: buckets %x, not %x", (long long)(needs[buckets] + more),
                             got, want);
                met |= 1U << got;
                bench_check_step(&m.b, "w", &rng, (int64_t[]){50}, 1,
                                 (got & 1) != 0 ? MSTAR_GRAPH_MISS_NONE
                                                : MSTAR_GRAPH_MISS_NOT_CAPTURED);
                bench_check_step(&m.b, "w", &rng, (int64_t[]){10}, 1,
                                 got != 0 ? MSTAR_GRAPH_MISS_NONE : MSTAR_GRAPH_MISS_NOT_CAPTURED);
                bench_close(&m.b);
            }
        }
        /* none, the smallest alone, all: and something between */
        assert_true((met & 1) != 0 && (met >> 4 & 1) != 0 && (met >> ALL & 1) != 0);
        assert_true((met & ~(1U | 1U << 4 | 1U << ALL)) != 0);
    }
}

static int refuse(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(const uint64_t *)context;
}

/* Every allocation of prepare fails once: it is tried again, or one bucket is dropped; nothing is
 * lost, and the bytes are those that are told. */
static void test_no_memory(void **state)
{
    (void)state;
    static memory_bench m;
    check_rng rng = {3};
    int dropped = 0, refused = 0;
    for (uint64_t at = 1;; at++) {
        open_memory(&m, ALL, 2, true, 1, -1);
        mstar_set_alloc_fault(refuse, &at);
        mstar_status status = mstar_graph_runner_prepare(m.b.runner);
        mstar_set_alloc_fault(NULL, NULL);
        if (status != MSTAR_OK) {
            assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
            refused++;
            CHECK_OK(mstar_graph_runner_prepare(m.b.runner));
        }
        int64_t before = told(&m);
        CHECK_OK(mstar_graph_runner_capture(m.b.runner));
        int64_t captured = bench_query(&m.b).num_captured;
        assert_true(captured >= 2);
        assert_int_equal(told(&m), before);
        assert_int_equal(live_bytes() - m.live_before, before);
        bench_check_step(&m.b, "w", &rng, (int64_t[]){3}, 1, MSTAR_GRAPH_MISS_NONE);
        bench_close(&m.b);
        dropped += captured == 2;
        if (status == MSTAR_OK && captured == 3)
            break;
    }
    assert_true(dropped > 60 && refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_told_before_capture),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
