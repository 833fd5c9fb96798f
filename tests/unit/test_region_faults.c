/*
 * test_region_faults.c - a region that lacks memory. Every allocation in its life failed once: it
 * says so, or drops the shapes that it cannot have and serves the others with the right bits, and
 * nothing is left. A bound on what it may take is kept, the largest shapes first.
 */
#include "support_region.h"

#include <string.h>

#include "graph/region.h"

typedef struct fault {
    uint64_t number;
    bool came;
} fault;

static int fails_once(void *context, uint64_t number, size_t bytes)
{
    fault *f = context;
    (void)bytes;
    f->came = f->came || number == f->number;
    return number == f->number;
}

static const int64_t sizes[] = {1, 2}, totals[] = {16, 48};

/* How far a life came. */
typedef enum stage { CREATED, PREPARED, CAPTURED, SERVED } stage;

static stage live(region_bench *b, const region_rows *rows, mstar_status *status)
{
    mstar_region_runner_desc desc = region_bench_desc(b);
    mstar_tensors inputs = {NULL, 0, 0};
    mstar_region_call call;
    mstar_region_result result = {.struct_size = sizeof result};
    *status = mstar_region_runner_create(b->device, &desc, &b->runner);
    if (*status != MSTAR_OK)
        return CREATED;
    *status = mstar_region_runner_prepare(b->runner);
    if (*status != MSTAR_OK)
        return PREPARED;
    *status = mstar_region_runner_capture(b->runner);
    if (*status != MSTAR_OK)
        return CAPTURED;
    mstar_region_call_init(&call);
    mstar_tensor x = mstar_tensor_make((void *)(uintptr_t)rows->x, MSTAR_DTYPE_F32, 2,
                                       (int64_t[]){20, NODE_WIDTH});
    *status = mstar_tensors_add(&inputs, "x", &x);
    call.inputs = &inputs;
    call.requests = (int64_t[]){4, 7};
    call.num_requests = 2;
    call.seq_lens = (int64_t[]){13, 7};
    call.num_seq_lens = 2;
    if (*status == MSTAR_OK)
        *status = mstar_region_runner_run(b->runner, &call, &result);
    mstar_tensors_release(&inputs);
    return SERVED;
}

static void each_allocation_failed_once(void **state)
{
    (void)state;
    static region_bench b;
    static region_rows rows;
    check_rng rng = {91};
    int64_t dropped = 0, seen[SERVED + 1] = {0};
    fault failing = {.came = true};
    while (failing.came) {
        region_bench_open(&b, sizes, 2, 0, totals, 2);
        region_bench_eager(&b, &rng, (int64_t[]){13, 7}, 2, &rows);
        mstar_status status;
        failing.number++;
        failing.came = false;
        mstar_set_alloc_fault(fails_once, &failing);
        stage reached = live(&b, &rows, &status);
        mstar_set_alloc_fault(NULL, NULL);
        assert_true(status == MSTAR_OK || status == MSTAR_OUT_OF_MEMORY ||
                    (reached == SERVED && status == MSTAR_OUT_OF_ORDER));
        if (status != MSTAR_OK)
            seen[reached]++;
        if (reached == PREPARED && status != MSTAR_OK) { /* it can be prepared again */
            CHECK_OK(mstar_region_runner_prepare(b.runner));
            CHECK_OK(mstar_region_runner_capture(b.runner));
        }
        if (reached != CREATED) {
            mstar_region_runner_info info = region_bench_query(&b);
            dropped += info.num_shapes - info.num_captured;
            assert_true(info.num_captured >= info.num_shapes - 1);
            for (int64_t bs = 1; bs <= 2; bs++) {
                int64_t lengths[] = {bs == 1 ? 40 : 30, 10};
                if (mstar_region_runner_can_run(b.runner, bs, 40) == MSTAR_GRAPH_MISS_NONE)
                    (void)region_bench_check(&b, &rng, lengths, bs, bs);
            }
            if (!failing.came)
                assert_int_equal(info.num_captured, info.num_shapes);
        }
        region_bench_close(&b);
    }
    assert_true(dropped > 20);
    for (int i = CREATED; i <= SERVED; i++)
        assert_true(i == CAPTURED || seen[i] > 0);
}

/* ---- a bound --------------------------------------------------------------------------------- */

static int64_t told(const mstar_region_runner_info *info)
{
    return (int64_t)(info->static_input_bytes + info->output_bytes + info->graph_bytes +
                     info->resource_bytes);
}

/* Shapes that were captured, by size and total: bit 0 is (1, 16), bit 3 is (2, 48). */
static unsigned capture_within(region_bench *b, int64_t free_bytes, mstar_region_runner_info *info)
{
    unsigned captured = 0;
    region_bench_open(b, sizes, 2, 0, totals, 2);
    mstar_region_runner_desc desc = region_bench_desc(b);
    desc.free_bytes = free_bytes;
    desc.floor_bytes = free_bytes < 0 ? 0 : 500;
    CHECK_OK(mstar_region_runner_create(b->device, &desc, &b->runner));
    CHECK_OK(mstar_region_runner_prepare(b->runner));
    *info = region_bench_query(b);
    int64_t before = told(info);
    CHECK_OK(mstar_region_runner_capture(b->runner));
    *info = region_bench_query(b);
    assert_int_equal(told(info), before);
    assert_int_equal(info->num_captured + info->num_unaffordable, info->num_shapes);
    for (unsigned i = 0; i < 4; i++)
        captured |= (unsigned)b->runner->captured[i] << i;
    return captured;
}

static void a_bound_is_kept(void **state)
{
    (void)state;
    static region_bench b;
    check_rng rng = {92};
    mstar_region_runner_info info;
    assert_int_equal(capture_within(&b, -1, &info), 15);
    region_bench_close(&b);
    int64_t all = told(&info);
    unsigned seen = 0;
    for (int64_t room = 0; room <= all; room += room > all - 4 ? 1 : 997) {
        unsigned captured = capture_within(&b, room + 500, &info);
        assert_true(captured == 0 || told(&info) <= room); /* a claim itself is remembered */
        if (room < all && captured == 15)
            fail_msg("all shapes in %lld bytes of %lld", (long long)room, (long long)all);
        seen |= 1U << captured;
        for (unsigned i = 0; i < 4; i++) {
            if ((captured >> i & 1) == 0)
                continue;
            int64_t bs = sizes[i / 2], lengths[] = {totals[i % 2] - (bs - 1), 1};
            (void)region_bench_check(&b, &rng, lengths, bs, bs);
        }
        if (captured != 15)
            assert_non_null(strstr(info.first_failure, "of which 500 are to stay so"));
        if (captured ==
            0) /* what the resources remember of a claim, and of a step that was tried */
            assert_int_equal(info.static_input_bytes + info.output_bytes + info.graph_bytes, 0);
        region_bench_close(&b);
    }
    assert_int_equal(capture_within(&b, all + 500, &info), 15);
    region_bench_close(&b);
    /* none, the largest alone, it and smaller ones */
    assert_true((seen & 1U << 0) != 0 && (seen & 1U << 8) != 0 && (seen & 1U << 12) != 0);
    assert_int_equal(capture_within(&b, 0, &info), 0);
    region_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_failed_once),
                                       cmocka_unit_test(a_bound_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
