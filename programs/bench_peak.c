/*
 * bench_peak.c - the machine's own ceiling, measured: independent multiply-adds on registers.
 *
 * One thread a core of the device's count, all at about the same time; each reports its own rate
 * and the rates are added. Chains are long enough to fill any core's pipes.
 */
#include "bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef double (*peak_loop)(double seconds);

enum { STEPS = 20000 }; /* of a loop between two looks at the clock */

/* Runs `body` STEPS times until seconds have passed; flops is what one body does. */
#define PEAK_LOOP(name, body, flops)          \
    static double name(double seconds)        \
    {                                         \
        double start = cli_bench_now();       \
        double done = 0;                      \
        double passed;                        \
        do {                                  \
            for (int i = 0; i < STEPS; i++) { \
                body                          \
            }                                 \
            done += (double)STEPS * (flops);  \
            passed = cli_bench_now() - start; \
        } while (passed < seconds);           \
        return done / passed * 1e-9;          \
    }

#if defined(__x86_64__)

#define TWELVE(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11)
#define REGISTERS \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define FMA_YMM(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define FMA_ZMM(n) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #n "\n\t"
#define DOT_ZMM(n) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #n "\n\t"

PEAK_LOOP(peak_avx2, __asm__ volatile(TWELVE(FMA_YMM)::: REGISTERS);, 12 * 8 * 2)
PEAK_LOOP(peak_avx512, __asm__ volatile(TWELVE(FMA_ZMM)::: REGISTERS);, 12 * 16 * 2)
PEAK_LOOP(peak_avx512bf16, __asm__ volatile(TWELVE(DOT_ZMM)::: REGISTERS);, 12 * 16 * 4)

/* Denormals left in the registers by earlier code would slow the loop. Needs AVX, as every loop but
 * the scalar one does. */
static void zero_registers(void)
{
    __asm__ volatile("vzeroall" ::: REGISTERS, "xmm12", "xmm13", "xmm14", "xmm15");
}

/* Four accumulating tiles of 16 x 16, as a product uses them; the tiles hold zeros. */
static double peak_amx(double seconds)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
    __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
                     "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7" ::
                         : "memory");
    double start = cli_bench_now();
    double done = 0;
    double passed;
    do {
        for (int i = 0; i < 1000; i++)
            __asm__ volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
                             "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
                             "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
                             "tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::
                                 : "memory");
        done += 1000.0 * 4 * 16 * 16 * 32 * 2;
        passed = cli_bench_now() - start;
    } while (passed < seconds);
    __asm__ volatile("tilerelease");
    return done / passed * 1e-9;
}

static peak_loop find_loop(const char *isa, mstar_dtype dtype)
{
    bool amx = strcmp(isa, "amx") == 0;
    bool pairs = amx || strcmp(isa, "avx512bf16") == 0;
    if (dtype == MSTAR_DTYPE_BF16 && pairs)
        return amx ? peak_amx : peak_avx512bf16;
    if (pairs || strcmp(isa, "avx512") == 0)
        return peak_avx512;
    return strcmp(isa, "avx2") == 0 ? peak_avx2 : NULL;
}

#elif defined(__aarch64__)

#define EIGHT(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7)
#define EIGHT_MORE(OP) OP(8) OP(9) OP(10) OP(11) OP(12) OP(13) OP(14) OP(15)
#define LAST_EIGHT(OP) OP(16) OP(17) OP(18) OP(19) OP(20) OP(21) OP(22) OP(23)
#define TWENTY_FOUR(OP) EIGHT(OP) EIGHT_MORE(OP) LAST_EIGHT(OP)
#define REGISTERS                                                                                  \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23"
#define ZERO(n) "movi v" #n ".4s, #0\n\t"
#define FMA_Q(n) "fmla v" #n ".4s, v30.4s, v31.4s\n\t"

PEAK_LOOP(peak_neon, __asm__ volatile(TWENTY_FOUR(FMA_Q)::: REGISTERS);, 24 * 4 * 2)

static void zero_registers(void)
{
    __asm__ volatile(TWENTY_FOUR(ZERO) ZERO(30) ZERO(31)::: REGISTERS, "v30", "v31");
}

static peak_loop find_loop(const char *isa, mstar_dtype dtype)
{
    (void)dtype;
    return strcmp(isa, "neon") == 0 ? peak_neon : NULL;
}

#else

static void zero_registers(void) {}

static peak_loop find_loop(const char *isa, mstar_dtype dtype)
{
    (void)isa;
    (void)dtype;
    return NULL;
}

#endif

/* One multiplication and one addition a step on eight chains: what scalar code can reach. */
static void step_scalar(void)
{
    static volatile float seed = 1.0f;
    float x = seed;
    float a[8] = {x, x, x, x, x, x, x, x};
    for (int j = 0; j < 16; j++) {
        for (int i = 0; i < 8; i++)
            a[i] = a[i] * x + 1.0f;
    }
    float sum = 0;
    for (int i = 0; i < 8; i++)
        sum += a[i];
    seed = sum * 0.0f + 1.0f;
}
PEAK_LOOP(peak_scalar, step_scalar();, 16 * 8 * 2)

typedef struct rate_job {
    cli_bench_rate rate;
    const void *context;
    int index, count;
    double result;
} rate_job;

static void *run_job(void *context)
{
    rate_job *job = context;
    job->result = job->rate(job->context, job->index, job->count);
    return NULL;
}

double cli_bench_all_threads(int threads, cli_bench_rate rate, const void *context)
{
    enum { MAX_THREADS = 1024 };
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    rate_job *jobs = calloc((size_t)threads, sizeof *jobs);
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    double sum = 0;
    if (jobs != NULL && handles != NULL) {
        int started = 0;
        for (int i = 0; i < threads; i++)
            jobs[i] = (rate_job){rate, context, i, threads, 0};
        while (started < threads - 1 &&
               pthread_create(&handles[started], NULL, run_job, &jobs[started]) == 0)
            started++;
        (void)run_job(&jobs[started]);
        for (int i = 0; i <= started; i++) {
            if (i < started)
                (void)pthread_join(handles[i], NULL);
            sum += jobs[i].result;
        }
    }
    free(jobs);
    free(handles);
    return sum;
}

static double run_loop(const void *context, int index, int count)
{
    const peak_loop *loop = context;
    (void)index;
    (void)count;
    if (*loop != peak_scalar)
        zero_registers();
    return (*loop)(0.1);
}

double cli_bench_peak(const mstar_device_info *machine, mstar_dtype dtype)
{
    peak_loop loop = find_loop(machine->isa, dtype);
    if (loop == NULL)
        loop = peak_scalar;
    return cli_bench_all_threads(machine->num_threads, run_loop, &loop);
}
