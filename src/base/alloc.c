/*
 * alloc.c - the only malloc and free of the library.
 *
 * Each block carries a 64-byte header with its size, so that release needs no size from the caller
 * and live bytes can be counted. Counters are atomics; the hooks are set before other calls start.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

typedef struct block_header {
    size_t bytes; /* of the whole block, header included */
} block_header;

#define HEADER_BYTES MST_CACHE_LINE
_Static_assert(sizeof(block_header) <= HEADER_BYTES, "the header fits its line");

static void *default_alloc(void *context, size_t bytes, size_t alignment)
{
    (void)context;
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void default_release(void *context, void *memory, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(memory);
}

static mstar_allocator allocator = {default_alloc, default_release, NULL};
static mstar_alloc_fault fault_hook;
static void *fault_context;
static _Atomic uint64_t fault_number;
static _Atomic uint64_t live_bytes, live_allocations, total_allocations, peak_bytes;

mstar_status mstar_set_allocator(const mstar_allocator *given)
{
    uint64_t live = atomic_load(&live_allocations);
    if (live != 0)
        return mst_fail(
            MSTAR_OUT_OF_ORDER,
            "allocator: %llu allocations are alive; it can be replaced when there are 0",
            (unsigned long long)live);
    if (given == NULL) {
        allocator = (mstar_allocator){default_alloc, default_release, NULL};
        return MSTAR_OK;
    }
    MST_TRY(mst_check_not_null("allocator.alloc", (const void *)(uintptr_t)given->alloc));
    MST_TRY(mst_check_not_null("allocator.release", (const void *)(uintptr_t)given->release));
    allocator = *given;
    return MSTAR_OK;
}

void mstar_set_alloc_fault(mstar_alloc_fault fault, void *context)
{
    fault_hook = fault;
    fault_context = context;
    atomic_store(&fault_number, 0);
}

mstar_status mstar_memory_query(mstar_memory_info *info)
{
    mstar_memory_info full = {0};
    full.struct_size = (uint32_t)sizeof full;
    full.live_bytes = atomic_load(&live_bytes);
    full.live_allocations = atomic_load(&live_allocations);
    full.total_allocations = atomic_load(&total_allocations);
    full.peak_bytes = atomic_load(&peak_bytes);
    return mst_info_write("info", &full, sizeof full, info);
}

static void count_up(size_t bytes)
{
    uint64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    atomic_fetch_add(&live_allocations, 1);
    atomic_fetch_add(&total_allocations, 1);
    uint64_t peak = atomic_load(&peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live)) {
    }
}

mstar_status mst_alloc(size_t bytes, const char *what, void **memory)
{
    *memory = NULL;
    size_t whole;
    MST_TRY(mst_size_add(bytes, HEADER_BYTES, &whole));
    bool refused = false;
    if (fault_hook != NULL)
        refused = fault_hook(fault_context, atomic_fetch_add(&fault_number, 1) + 1, bytes) != 0;
    unsigned char *block =
        refused ? NULL : allocator.alloc(allocator.context, whole, MST_CACHE_LINE);
    if (block == NULL)
        return mst_fail(MSTAR_OUT_OF_MEMORY, "%s: %zu bytes could not be allocated", what, bytes);
    ((block_header *)(void *)block)->bytes = whole;
    count_up(bytes);
    *memory = block + HEADER_BYTES;
    return MSTAR_OK;
}

mstar_status mst_alloc_zero(size_t bytes, const char *what, void **memory)
{
    MST_TRY(mst_alloc(bytes, what, memory));
    memset(*memory, 0, bytes);
    return MSTAR_OK;
}

mstar_status mst_alloc_array(int64_t count, size_t size, const char *what, void **memory)
{
    *memory = NULL;
    if (count < 0)
        return mst_fail(MSTAR_INTERNAL, "%s: a count of %lld", what, (long long)count);
    size_t bytes;
    if (mst_size_mul((size_t)count, size, &bytes) != MSTAR_OK)
        return mst_fail(MSTAR_OUT_OF_MEMORY,
                        "%s: %lld elements of %zu bytes pass the address space", what,
                        (long long)count, size);
    return mst_alloc_zero(bytes, what, memory);
}

void mst_free(void *memory)
{
    if (memory == NULL)
        return;
    unsigned char *block = (unsigned char *)memory - HEADER_BYTES;
    size_t whole = ((block_header *)(void *)block)->bytes;
    atomic_fetch_sub(&live_bytes, whole - HEADER_BYTES);
    atomic_fetch_sub(&live_allocations, 1);
    allocator.release(allocator.context, block, whole);
}

int64_t mst_grown(int64_t capacity, int64_t want)
{
    if (want <= capacity)
        return capacity;
    int64_t grown = mst_max_i64(want, capacity > INT64_MAX / 2 ? want : capacity * 2);
    return mst_max_i64(grown, 16);
}

mstar_status mst_grow(void **memory, int64_t *capacity, int64_t want, size_t size, const char *what)
{
    if (want <= *capacity)
        return MSTAR_OK;
    int64_t grown = mst_grown(*capacity, want);
    size_t bytes;
    if (mst_size_mul((size_t)grown, size, &bytes) != MSTAR_OK)
        return mst_fail(MSTAR_OUT_OF_MEMORY,
                        "%s: %lld elements of %zu bytes pass the address space", what,
                        (long long)grown, size);
    void *fresh;
    MST_TRY(mst_alloc(bytes, what, &fresh));
    if (*memory != NULL && *capacity > 0)
        memcpy(fresh, *memory, (size_t)*capacity * size);
    mst_free(*memory);
    *memory = fresh;
    *capacity = grown;
    return MSTAR_OK;
}

mstar_status mst_strdup(const char *text, const char *what, char **copy)
{
    size_t bytes = strlen(text) + 1;
    void *memory;
    *copy = NULL;
    MST_TRY(mst_alloc(bytes, what, &memory));
    memcpy(memory, text, bytes);
    *copy = memory;
    return MSTAR_OK;
}

mstar_status mst_size_mul(size_t a, size_t b, size_t *product)
{
    if (__builtin_mul_overflow(a, b, product))
        return mst_fail(MSTAR_OUT_OF_MEMORY, "%zu times %zu bytes pass the address space", a, b);
    return MSTAR_OK;
}

mstar_status mst_size_add(size_t a, size_t b, size_t *sum)
{
    if (__builtin_add_overflow(a, b, sum))
        return mst_fail(MSTAR_OUT_OF_MEMORY, "%zu plus %zu bytes pass the address space", a, b);
    return MSTAR_OK;
}
