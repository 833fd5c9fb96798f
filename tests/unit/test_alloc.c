/* test_alloc.c - the one door for memory: counts, alignment, faults, replacement, overflow. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "support_check.h"

static mstar_memory_info memory_now(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_memory_query(&info));
    return info;
}

static void counts_and_alignment(void **state)
{
    (void)state;
    mstar_memory_info before = memory_now();
    assert_int_equal(before.live_allocations, 0);
    const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100000};
    void *blocks[7];
    size_t sum = 0;
    for (int i = 0; i < 7; i++) {
        CHECK_OK(mst_alloc_zero(sizes[i], "block", &blocks[i]));
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 64, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(((unsigned char *)blocks[i])[j], 0);
        memset(blocks[i], 0x5a, sizes[i]);
        sum += sizes[i];
    }
    mstar_memory_info now = memory_now();
    assert_int_equal(now.live_allocations, 7);
    assert_int_equal(now.total_allocations, before.total_allocations + 7);
    assert_true(now.live_bytes >= sum);
    assert_true(now.peak_bytes >= now.live_bytes);
    for (int i = 0; i < 7; i++)
        mst_free(blocks[i]);
    mst_free(NULL);
    mstar_memory_info after = memory_now();
    assert_int_equal(after.live_allocations, 0);
    assert_int_equal(after.live_bytes, 0);
    assert_int_equal(after.peak_bytes, now.peak_bytes);
}

static void overflow_is_out_of_memory(void **state)
{
    (void)state;
    void *memory = state;
    CHECK_FAILED(mst_alloc(SIZE_MAX, "all", &memory), MSTAR_OUT_OF_MEMORY, "address space");
    assert_null(memory);
    CHECK_FAILED(mst_alloc(SIZE_MAX / 2, "half", &memory), MSTAR_OUT_OF_MEMORY, "half: ");
    CHECK_FAILED(mst_alloc_array(INT64_MAX, 16, "rows", &memory), MSTAR_OUT_OF_MEMORY, "rows: ");
    CHECK_FAILED(mst_alloc_array(-1, 16, "rows", &memory), MSTAR_INTERNAL, "-1");
    int64_t capacity = 0;
    memory = NULL;
    CHECK_FAILED(mst_grow(&memory, &capacity, INT64_MAX, 16, "list"), MSTAR_OUT_OF_MEMORY,
                 "list: ");
    assert_null(memory);
    assert_int_equal(capacity, 0);
    size_t size = 1;
    CHECK_OK(mst_size_mul(SIZE_MAX / 2, 2, &size));
    assert_int_equal(size, SIZE_MAX - 1);
    CHECK_FAILED(mst_size_mul(SIZE_MAX / 2, 3, &size), MSTAR_OUT_OF_MEMORY, "times 3");
    CHECK_OK(mst_size_add(SIZE_MAX - 1, 1, &size));
    assert_int_equal(size, SIZE_MAX);
    CHECK_FAILED(mst_size_add(SIZE_MAX, 1, &size), MSTAR_OUT_OF_MEMORY, "plus 1");
    assert_int_equal(memory_now().live_allocations, 0);
}

static void growing_keeps_contents(void **state)
{
    (void)state;
    void *memory = NULL;
    int64_t capacity = 0;
    for (int32_t i = 0; i < 5000; i++) {
        CHECK_OK(mst_grow(&memory, &capacity, i + 1, sizeof(int32_t), "list"));
        assert_true(capacity > i);
        ((int32_t *)memory)[i] = i;
    }
    assert_true(capacity < 3 * 5000); /* doubling, not more */
    for (int32_t i = 0; i < 5000; i++)
        assert_int_equal(((int32_t *)memory)[i], i);
    int64_t before = capacity;
    CHECK_OK(mst_grow(&memory, &capacity, 10, sizeof(int32_t), "list"));
    assert_int_equal(capacity, before);
    mst_free(memory);
    char *copy = NULL;
    CHECK_OK(mst_strdup("hello", "text", &copy));
    assert_string_equal(copy, "hello");
    mst_free(copy);
    assert_int_equal(memory_now().live_allocations, 0);
}

/* ---- the fault hook -------------------------------------------------------------------------- */

typedef struct fault_log {
    uint64_t fail_at;
    uint64_t numbers[8];
    size_t bytes[8];
    int calls;
} fault_log;

static int log_fault(void *context, uint64_t number, size_t bytes)
{
    fault_log *log = context;
    if (log->calls < 8) {
        log->numbers[log->calls] = number;
        log->bytes[log->calls] = bytes;
    }
    log->calls++;
    return number == log->fail_at;
}

static void faults_are_numbered(void **state)
{
    (void)state;
    fault_log log = {.fail_at = 2};
    void *a, *b, *c;
    mstar_set_alloc_fault(log_fault, &log);
    mstar_status first = mst_alloc(10, "first", &a);
    mstar_status second = mst_alloc(20, "second", &b);
    mstar_status third = mst_alloc(30, "third", &c);
    CHECK_OK(first);
    CHECK_FAILED(second, MSTAR_OUT_OF_MEMORY, "second: 20 bytes could not be allocated");
    CHECK_OK(third);
    assert_null(b);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(log.numbers[i], i + 1);
        assert_int_equal(log.bytes[i], 10 * (i + 1));
    }
    mst_free(a);
    mst_free(c);
    log = (fault_log){.fail_at = 1};
    mstar_set_alloc_fault(log_fault, &log); /* the numbers start again */
    void *list = NULL;
    int64_t capacity = 0;
    mstar_status grown = mst_grow(&list, &capacity, 4, 4, "list");
    char *copy = (char *)&log;
    mstar_set_alloc_fault(NULL, NULL);
    CHECK_FAILED(grown, MSTAR_OUT_OF_MEMORY, "list: ");
    assert_null(list);
    CHECK_OK(mst_grow(&list, &capacity, 4, 4, "list"));
    ((int32_t *)list)[3] = 77;
    int64_t before = capacity;
    log = (fault_log){.fail_at = 1};
    mstar_set_alloc_fault(log_fault, &log);
    grown = mst_grow(&list, &capacity, before + 1, 4, "list");
    log.fail_at = 2;
    mstar_status copied = mst_strdup("x", "text", &copy);
    mstar_set_alloc_fault(NULL, NULL);
    CHECK_FAILED(copied, MSTAR_OUT_OF_MEMORY, "text: ");
    assert_int_equal(grown, MSTAR_OUT_OF_MEMORY);
    assert_null(copy);
    assert_int_equal(capacity, before); /* what was there is still there */
    assert_int_equal(((int32_t *)list)[3], 77);
    mst_free(list);
    assert_int_equal(memory_now().live_allocations, 0);
}

/* ---- replacing the allocator ----------------------------------------------------------------- */

typedef struct own_heap {
    int allocs, releases;
    size_t bytes_out, bytes_in;
    int empty;
} own_heap;

static void *own_alloc(void *context, size_t bytes, size_t alignment)
{
    own_heap *heap = context;
    if (heap->empty)
        return NULL;
    assert_true(alignment >= 64 && (alignment & (alignment - 1)) == 0);
    heap->allocs++;
    heap->bytes_out += bytes;
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void own_release(void *context, void *memory, size_t bytes)
{
    own_heap *heap = context;
    heap->releases++;
    heap->bytes_in += bytes;
    free(memory);
}

static void the_allocator_can_be_replaced(void **state)
{
    (void)state;
    own_heap heap = {0};
    mstar_allocator own = {own_alloc, own_release, &heap};
    void *memory;
    CHECK_OK(mst_alloc(8, "alive", &memory));
    CHECK_FAILED(mstar_set_allocator(&own), MSTAR_OUT_OF_ORDER, "1 allocations are alive");
    CHECK_FAILED(mstar_set_allocator(NULL), MSTAR_OUT_OF_ORDER, "alive");
    mst_free(memory);
    mstar_allocator half = {own_alloc, NULL, &heap};
    CHECK_INVALID(mstar_set_allocator(&half), "allocator.release");
    half = (mstar_allocator){NULL, own_release, &heap};
    CHECK_INVALID(mstar_set_allocator(&half), "allocator.alloc");
    CHECK_OK(mstar_set_allocator(&own));
    mstar_device *device = NULL;
    CHECK_OK(mstar_device_open("cpu", NULL, &device));
    assert_true(heap.allocs > 0);
    CHECK_OK(mstar_device_close(device));
    assert_int_equal(heap.allocs, heap.releases);
    assert_int_equal(heap.bytes_out, heap.bytes_in);
    heap.empty = 1;
    CHECK_FAILED(mst_alloc(8, "thing", &memory), MSTAR_OUT_OF_MEMORY, "thing: 8 bytes");
    assert_null(memory);
    CHECK_OK(mstar_set_allocator(NULL));
    CHECK_OK(mst_alloc(8, "thing", &memory));
    mst_free(memory);
    assert_int_equal(heap.allocs, heap.releases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_alignment),
        cmocka_unit_test(overflow_is_out_of_memory),
        cmocka_unit_test(growing_keeps_contents),
        cmocka_unit_test(faults_are_numbered),
        cmocka_unit_test(the_allocator_can_be_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
