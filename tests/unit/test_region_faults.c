/*
 * test_region_faults.c - every allocation in the life of a region failed once: it says so, or drops
 * the shapes that it cannot have and serves the others with the right bits, and nothing is left.
 */
#include "support_region.h"

#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_failed_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
