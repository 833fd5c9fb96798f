/* support_soak.c - see support_soak.h. */
#include "support_soak.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support_card.h"

/* gcc defines the first two, clang answers the question */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SOAK_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SOAK_SANITIZED 1
#endif
#endif
#ifndef SOAK_SANITIZED
#define SOAK_SANITIZED 0
#endif

_Noreturn void soak_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
    exit(1);
}

void soak_must(mstar_status status, const char *what)
{
    if (status != MSTAR_OK)
        soak_fail("%s: %s: %s", what, mstar_status_name(status), mstar_last_error());
}

int64_t soak_count(const char *text)
{
    char *end;
    long long count = strtoll(text, &end, 10);
    if (*end != '\0' || count < 1 || count > 1000000000)
        soak_fail("'%s' is not a count from 1 to 1000000000", text);
    return count;
}

void *soak_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    if (memory == NULL)
        soak_fail("no memory for %zu bytes", bytes);
    return memory;
}

void soak_level(const char *device)
{
    char *arguments[] = {NULL, (char *)(uintptr_t)device};
    level_choose(2, arguments);
    if (!level_is_card())
        soak_fail("'%s' is not a GPU: it must be cuda:N or mock", device);
}

static size_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*u %lu", &pages) != 1)
        soak_fail("/proc/self/statm cannot be read");
    (void)fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static mstar_memory_info library_memory(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    soak_must(mstar_memory_query(&info), "memory");
    return info;
}

void soak_memory_start(soak_memory *memory, int64_t total, uint64_t slack_bytes,
                       uint64_t slack_allocations)
{
    *memory = (soak_memory){.total = total,
                            .next = (total + 9) / 10,
                            .slack_bytes = slack_bytes,
                            .slack_allocations = slack_allocations};
}

void soak_memory_step(soak_memory *memory, int64_t done, void (*settle)(void *context),
                      void *context)
{
    if (done < memory->next)
        return;
    settle(context);
    mstar_memory_info info = library_memory();
    size_t resident = resident_bytes();
    while (memory->next <= done)
        memory->next += (memory->total + 9) / 10;
    if (memory->tenths++ == 0) {
        memory->live_bytes = info.live_bytes;
        memory->live_allocations = info.live_allocations;
        memory->resident_bytes = resident;
    }
    printf("%10lld done: %llu allocations, %llu bytes; %zu KiB resident\n", (long long)done,
           (unsigned long long)info.live_allocations, (unsigned long long)info.live_bytes,
           resident >> 10);
    (void)fflush(stdout);
    if (info.live_allocations > memory->live_allocations + memory->slack_allocations ||
        info.live_bytes > memory->live_bytes + memory->slack_bytes)
        soak_fail("the library holds %llu allocations and %llu bytes; after the first tenth it was "
                  "%llu and %llu",
                  (unsigned long long)info.live_allocations, (unsigned long long)info.live_bytes,
                  (unsigned long long)memory->live_allocations,
                  (unsigned long long)memory->live_bytes);
    if (!SOAK_SANITIZED && !memory->library_only &&
        resident > memory->resident_bytes + SOAK_SLACK_BYTES)
        soak_fail("%zu bytes are resident; after the first tenth it was %zu", resident,
                  memory->resident_bytes);
}

void soak_memory_end(void)
{
    mstar_memory_info info = library_memory();
    if (info.live_allocations != 0)
        soak_fail("%llu allocations are left", (unsigned long long)info.live_allocations);
}
