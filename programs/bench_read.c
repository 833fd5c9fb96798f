/*
 * bench_read.c - the other ceiling of the machine, measured: how fast bytes are read.
 *
 * Few rows of a product take less time to multiply than their weights take to arrive. Each thread
 * reads its part in one stream of whole vectors, and does nothing else.
 */
#include "bench.h"

#include <string.h>

enum { BLOCK_BYTES = 512 }; /* of one step of a loop */

typedef void (*read_loop)(const char *data, const char *end);

#if defined(__x86_64__)

#define READ_BLOCK(load, bytes, r)                                                                \
    load " 0*" bytes "(%0), %%" r "0\n\t" load " 1*" bytes "(%0), %%" r "1\n\t" load " 2*" bytes  \
         "(%0), %%" r "2\n\t" load " 3*" bytes "(%0), %%" r "3\n\t" load " 4*" bytes "(%0), %%" r \
         "4\n\t" load " 5*" bytes "(%0), %%" r "5\n\t" load " 6*" bytes "(%0), %%" r "6\n\t" load \
         " 7*" bytes "(%0), %%" r "7\n\t"
#define READ_REGISTERS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "memory"

static void read_zmm(const char *data, const char *end)
{
    for (; data < end; data += BLOCK_BYTES)
        __asm__ volatile(READ_BLOCK("vmovups", "64", "zmm")::"r"(data) : READ_REGISTERS);
}

static void read_ymm(const char *data, const char *end)
{
    for (; data < end; data += BLOCK_BYTES / 2)
        __asm__ volatile(READ_BLOCK("vmovups", "32", "ymm")::"r"(data) : READ_REGISTERS);
}

static void read_xmm(const char *data, const char *end)
{
    for (; data < end; data += BLOCK_BYTES / 4)
        __asm__ volatile(READ_BLOCK("movups", "16", "xmm")::"r"(data) : READ_REGISTERS);
}

static read_loop find_loop(const char *isa)
{
    if (strcmp(isa, "scalar") == 0)
        return read_xmm;
    return strcmp(isa, "avx2") == 0 ? read_ymm : read_zmm;
}

#elif defined(__aarch64__)

static void read_pairs(const char *data, const char *end)
{
    for (; data < end; data += BLOCK_BYTES / 4)
        __asm__ volatile("ldp q0, q1, [%0]\n\tldp q2, q3, [%0, #32]\n\t"
                         "ldp q4, q5, [%0, #64]\n\tldp q6, q7, [%0, #96]" ::"r"(data)
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "memory");
}

static read_loop find_loop(const char *isa)
{
    (void)isa;
    return read_pairs;
}

#else

static void read_words(const char *data, const char *end)
{
    for (; data < end; data += sizeof(uint64_t))
        (void)*(const volatile uint64_t *)(const void *)data;
}

static read_loop find_loop(const char *isa)
{
    (void)isa;
    return read_words;
}

#endif

typedef struct read_job {
    read_loop loop;
    const char *data;
    size_t bytes;
} read_job;

/* Whole blocks of one thread's part; the clock is looked at after a megabyte or more. */
static double read_part(const void *context, int index, int count)
{
    const read_job *job = context;
    size_t part = job->bytes / (size_t)count / BLOCK_BYTES * BLOCK_BYTES;
    const char *data = job->data + part * (size_t)index;
    int passes = part > 0 ? 1 + (int)((1 << 20) / part) : 0;
    double done = 0, passed = 0;
    job->loop(data, data + part);
    for (double start = cli_bench_now(); passes > 0 && passed < 0.01;) {
        for (int i = 0; i < passes; i++)
            job->loop(data, data + part);
        done += (double)passes * (double)part;
        passed = cli_bench_now() - start;
    }
    return passes > 0 ? done / passed * 1e-9 : 0;
}

double cli_bench_read(const mstar_device_info *machine, const void *data, size_t bytes)
{
    size_t skipped = -(uintptr_t)data % 64; /* to a whole line */
    if (bytes < skipped)
        return 0;
    const read_job job = {find_loop(machine->isa), (const char *)data + skipped, bytes - skipped};
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double now = cli_bench_all_threads(machine->num_threads, read_part, &job);
        best = now > best ? now : best;
    }
    return best;
}
