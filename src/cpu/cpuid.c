/* cpuid.c - what this machine is: ISA levels, the processor's name, its data caches. */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)

static bool has_avx512_bf16(void)
{
    unsigned int a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 5)) != 0;
}

/*
 * AMX needs the kernel's word: the tile registers' state is large and a process has to ask for it
 * (arch_prctl, ARCH_REQ_XCOMP_PERM for component 18). Asking twice is harmless; threads made later
 * inherit the answer.
 */
static bool may_use_amx(void)
{
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned int a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0)
        return false;
    bool bf16 = (d & (1U << 22)) != 0;
    bool tile = (d & (1U << 24)) != 0;
    return bf16 && tile && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

#endif

/* The compiler's runtime asks cpuid and xgetbv, so a level counts only if the system saves its
 * registers. */
bool mst_cpu_has(mst_isa isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    unsigned int a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 29)) != 0;
    avx2 = avx2 && f16c;
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    switch (isa) {
    case MST_ISA_LEVEL_SCALAR:
        return true;
    case MST_ISA_LEVEL_AVX2:
        return avx2;
    case MST_ISA_LEVEL_AVX512:
        return avx512;
    case MST_ISA_LEVEL_AVX512BF16:
        return avx512 && has_avx512_bf16();
    case MST_ISA_LEVEL_AMX:
        return avx512 && has_avx512_bf16() && may_use_amx();
    default:
        return false;
    }
#elif defined(__aarch64__)
    return isa == MST_ISA_LEVEL_SCALAR || isa == MST_ISA_LEVEL_NEON; /* no processor is without */
#else
    return isa == MST_ISA_LEVEL_SCALAR;
#endif
}

bool mst_cpu_is_intel(void)
{
#if defined(__x86_64__)
    unsigned int a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_INTEL_ebx &&
           c == signature_INTEL_ecx && d == signature_INTEL_edx;
#else
    return false;
#endif
}

static void trim(char *text)
{
    size_t bytes = strlen(text);
    while (bytes > 0 && (text[bytes - 1] == ' ' || text[bytes - 1] == '\n'))
        text[--bytes] = '\0';
    size_t lead = strspn(text, " ");
    memmove(text, text + lead, bytes - lead + 1);
}

void mst_cpu_model(char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "%s", "unknown");
#if defined(__x86_64__)
    unsigned int words[12];
    if ((unsigned int)__get_cpuid_max(0x80000000U, NULL) < 0x80000004U)
        return;
    for (unsigned int i = 0; i < 3; i++) {
        unsigned int *w = words + i * 4;
        (void)__get_cpuid(0x80000002U + i, &w[0], &w[1], &w[2], &w[3]);
    }
    char brand[sizeof words + 1];
    memcpy(brand, words, sizeof words);
    brand[sizeof words] = '\0';
    trim(brand);
    if (brand[0] != '\0')
        (void)snprintf(text, bytes, "%s", brand);
#else
    (void)trim;
#endif
}

#if defined(__x86_64__)

/*
 * A data cache that this core reads, of the list that the processor gives: Intel's leaf 4, AMD's
 * 0x8000001d where it has topology extensions. The C library adds up all third caches of an AMD
 * package, of which a core has one. 0: not listed.
 */
static int64_t listed_cache_bytes(unsigned int level)
{
    enum { DATA = 1, UNIFIED = 3, MOST = 16 };
    unsigned int a, b, c, d;
    bool amd = __get_cpuid(0x80000001U, &a, &b, &c, &d) != 0 && (c & (1U << 22)) != 0;
    for (unsigned int i = 0; i < MOST; i++) {
        if (__get_cpuid_count(amd ? 0x8000001dU : 4U, i, &a, &b, &c, &d) == 0)
            return 0;
        unsigned int type = a & 31U; /* 0: the list has ended */
        if (type == 0)
            return 0;
        if (((a >> 5) & 7U) == level && (type == DATA || type == UNIFIED))
            return (int64_t)((b >> 22) + 1) * (((b >> 12) & 1023U) + 1) * ((b & 4095U) + 1) *
                   ((int64_t)c + 1);
    }
    return 0;
}

#else

static int64_t listed_cache_bytes(unsigned int level)
{
    (void)level;
    return 0;
}

#endif

static int64_t cache_bytes(unsigned int level, int name)
{
    int64_t listed = listed_cache_bytes(level);
    return listed > 0 ? listed : mst_max_i64(sysconf(name), 0);
}

void mst_cpu_caches(int64_t *l1d, int64_t *l2, int64_t *l3)
{
    *l1d = cache_bytes(1, _SC_LEVEL1_DCACHE_SIZE);
    *l2 = cache_bytes(2, _SC_LEVEL2_CACHE_SIZE);
    *l3 = cache_bytes(3, _SC_LEVEL3_CACHE_SIZE);
}
