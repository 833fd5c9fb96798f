/*
 * dispatch.c - picks the kernels of a device once: the best level that the machine and the build
 * have, lowered by the desc's max_isa or by MSTAR_MAX_ISA. The reason is kept beside the choice.
 */
#include <string.h>

#include "cpu/cpu.h"

#define NAME(LEVEL, level, unused) #level,
static const char *const isa_names[MST_ISA_LEVELS] = {MST_FOR_EACH_ISA(NAME, _)};
#define LISTED(LEVEL, level, before) before #level
static const char isa_list[] = MST_FOR_EACH_ISA(LISTED, ", ");

const char *mst_isa_name(mst_isa isa)
{
    return (unsigned)isa < MST_ISA_LEVELS ? isa_names[isa] : "unknown";
}

mstar_status mst_isa_parse(const char *source, const char *text, mst_isa *isa)
{
    for (int i = 0; i < MST_ISA_LEVELS; i++) {
        if (strcmp(text, isa_names[i]) == 0) {
            *isa = (mst_isa)i;
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"%.32s\"; accepted on this architecture are %s",
                    source, text, isa_list + strlen(", "));
}

static const mst_kernels *kernels_of(mst_isa isa)
{
    switch (isa) {
#if defined(MST_HAVE_NEON)
    case MST_ISA_LEVEL_NEON:
        return &mst_kernels_neon;
#endif
#if defined(MST_HAVE_AMX)
    case MST_ISA_LEVEL_AMX:
        return &mst_kernels_amx;
#endif
#if defined(MST_HAVE_AVX512BF16)
    case MST_ISA_LEVEL_AVX512BF16:
        return &mst_kernels_avx512bf16;
#endif
#if defined(MST_HAVE_AVX512)
    case MST_ISA_LEVEL_AVX512:
        return &mst_kernels_avx512;
#endif
#if defined(MST_HAVE_AVX2)
    case MST_ISA_LEVEL_AVX2:
        return &mst_kernels_avx2;
#endif
    case MST_ISA_LEVEL_SCALAR:
        return &mst_kernels_scalar;
    default:
        return NULL;
    }
}

/* Highest level at or below limit that is built and on this machine. */
static mst_isa best_below(mst_isa limit)
{
    int level = (int)limit;
    while (level > 0 && (kernels_of((mst_isa)level) == NULL || !mst_cpu_has((mst_isa)level)))
        level--;
    return (mst_isa)level;
}

mst_isa mst_isa_choose(mst_isa best, mst_isa limit, bool intel, const char *lowered,
                       const char **reason)
{
    if (limit < best) {
        *reason = lowered;
        best = limit;
    } else {
        *reason = "best ISA of this machine and build";
    }
#if defined(__x86_64__)
    if (best == MST_ISA_LEVEL_AVX512BF16 && limit != MST_ISA_LEVEL_AVX512BF16 && intel) {
        *reason = "vdpbf16ps is slower than f32 multiply-adds on Intel";
        best = MST_ISA_LEVEL_AVX512;
    }
#else
    (void)intel;
#endif
    return best;
}

mstar_status mst_cpu_dispatch(const char *max_isa, mst_cpu *cpu)
{
    mst_isa limit = (mst_isa)(MST_ISA_LEVELS - 1);
    const char *lowered = "lowered by max_isa";
    if (max_isa != NULL) {
        MST_TRY(mst_isa_parse("max_isa", max_isa, &limit));
    } else if (mst_env_get(MST_ENV_MAX_ISA) != NULL) {
        lowered = "lowered by MSTAR_MAX_ISA";
        MST_TRY(mst_isa_parse("MSTAR_MAX_ISA", mst_env_get(MST_ENV_MAX_ISA), &limit));
    }
    cpu->isa_best = best_below((mst_isa)(MST_ISA_LEVELS - 1));
    /* a level below the best that the build lacks: the one below it */
    if (limit < cpu->isa_best)
        limit = best_below(limit);
    cpu->isa =
        mst_isa_choose(cpu->isa_best, limit, mst_cpu_is_intel(), lowered, &cpu->kernel_reason);
    cpu->kernels = kernels_of(cpu->isa);
    return MSTAR_OK;
}

typedef struct kernel_line {
    const char *op;
    mstar_dtype dtype;
    const char *dtype_name;
    const char *symbols[MST_ISA_LEVELS]; /* by level */
} kernel_line;

#define NAME_F32 "f32"
#define NAME_BF16 "bf16"
#define NAME_F16 "f16"
#define SYMBOL(LEVEL, level, prefix) prefix #level,
static const kernel_line kernel_lines[] = {
#define MST_KERNEL(op, dtype, part) \
    {#op,                           \
     MSTAR_DTYPE_##dtype,           \
     NAME_##dtype,                  \
     {MST_FOR_EACH_ISA(SYMBOL, "mst_" #part "_" NAME_##dtype "_")}},
#include "cpu/kernels.def"
#undef MST_KERNEL
};
#define NUM_KERNEL_LINES ((int32_t)(sizeof kernel_lines / sizeof kernel_lines[0]))

static const char *symbol_of(const kernel_line *line, const mst_kernels *kernels)
{
    for (int i = 0; i < MST_ISA_LEVELS; i++) {
        if (strcmp(kernels->isa, isa_names[i]) == 0)
            return line->symbols[i];
    }
    return "unknown";
}

const char *mst_kernel_symbol(const char *op, mstar_dtype dtype, const mst_kernels *kernels)
{
    for (int32_t i = 0; i < NUM_KERNEL_LINES; i++) {
        if (strcmp(kernel_lines[i].op, op) == 0 && kernel_lines[i].dtype == dtype)
            return symbol_of(&kernel_lines[i], kernels);
    }
    return "unknown";
}

mstar_status mst_cpu_query_kernel(const mstar_device *device, int32_t index,
                                  mstar_kernel_info *info)
{
    if (index < 0 || index >= NUM_KERNEL_LINES)
        return mst_fail(MSTAR_NOT_FOUND, "index is %d; this device has kernels 0 to %d", index,
                        NUM_KERNEL_LINES - 1);
    const mst_cpu *cpu = mst_cpu_of(device);
    info->op = kernel_lines[index].op;
    info->dtype = kernel_lines[index].dtype_name;
    info->symbol = symbol_of(&kernel_lines[index], cpu->kernels);
    info->reason = cpu->kernel_reason;
    return MSTAR_OK;
}
