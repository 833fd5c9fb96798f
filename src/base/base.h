/*
 * base.h - what every other area stands on: failing with a text, memory, arenas, tensor checks,
 * environment, threads.
 */
#ifndef MST_BASE_H
#define MST_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mstar/base.h"
#include "mstar/tensor.h"

#if defined(__GNUC__)
#define MST_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define MST_UNUSED __attribute__((unused))
#else
#define MST_PRINTF(text, first)
#define MST_UNUSED
#endif

/* ---- status.c: failing ----------------------------------------------------------------------- */

/* Sets this thread's last-error text and returns status: `return mst_fail(MSTAR_..., "...", ...)`.
 */
mstar_status mst_fail(mstar_status status, const char *format, ...) MST_PRINTF(2, 3);
#if defined(__clang_analyzer__)
/* The static analyzer sees one file at a time and must know that failing is not MSTAR_OK. */
#define mst_fail(status, ...) ((void)mst_fail(status, __VA_ARGS__), (status))
#endif
/* Puts "context: " before the present text; returns status. */
mstar_status mst_fail_in(mstar_status status, const char *format, ...) MST_PRINTF(2, 3);
#if defined(__clang_analyzer__)
#define mst_fail_in(status, ...) ((void)mst_fail_in(status, __VA_ARGS__), (status))
#endif

/* Returns early with the status of a failed expression. */
#define MST_TRY(expression)                          \
    do {                                             \
        mstar_status mst_try_status_ = (expression); \
        if (mst_try_status_ != MSTAR_OK)             \
            return mst_try_status_;                  \
    } while (0)

/* The same, to a clean-up label, with `status` as the function's result variable. */
#define MST_TRY_GOTO(expression, label) \
    do {                                \
        status = (expression);          \
        if (status != MSTAR_OK)         \
            goto label;                 \
    } while (0)

/* INVALID_ARGUMENT naming the argument, its value and the bounds. */
mstar_status mst_check_range(const char *name, int64_t value, int64_t low, int64_t high);
mstar_status mst_check_not_null(const char *name, const void *pointer);
#if defined(__clang_analyzer__) /* as for mst_fail */
#define mst_check_not_null(name, pointer) ((pointer) != NULL ? MSTAR_OK : MSTAR_INVALID_ARGUMENT)
#endif

/* ---- log.c ----------------------------------------------------------------------------------- */

enum { MST_LOG_DEBUG, MST_LOG_INFO, MST_LOG_WARNING, MST_LOG_ERROR };
void mst_log(int level, const char *format, ...) MST_PRINTF(2, 3);

/* ---- alloc.c: the only malloc and free ------------------------------------------------------- */

#define MST_CACHE_LINE 64

/* Memory aligned to 64 bytes; bytes 0 gives a valid pointer. OUT_OF_MEMORY names what and the
 * bytes. */
mstar_status mst_alloc(size_t bytes, const char *what, void **memory);
/* The same, all zero. */
mstar_status mst_alloc_zero(size_t bytes, const char *what, void **memory);
/* count elements of size bytes with an overflow check, all zero. */
mstar_status mst_alloc_array(int64_t count, size_t size, const char *what, void **memory);
/* Takes NULL. */
void mst_free(void *memory);
/* Grows *memory from old to at least want elements (doubling); contents kept, unchanged on failure.
 */
mstar_status mst_grow(void **memory, int64_t *capacity, int64_t want, size_t size,
                      const char *what);
/* Pure: the capacity that mst_grow gives. */
int64_t mst_grown(int64_t capacity, int64_t want);
mstar_status mst_strdup(const char *text, const char *what, char **copy);
/* a * b, a + b of sizes; OUT_OF_MEMORY on overflow. */
mstar_status mst_size_mul(size_t a, size_t b, size_t *product);
mstar_status mst_size_add(size_t a, size_t b, size_t *sum);

/* ---- arena.c: size first, memory second ------------------------------------------------------ */

/*
 * With base NULL an arena counts: mst_arena_take answers NULL and adds up `used`, aligned as if it
 * had memory. The same code then runs again over a base of that many bytes and fills it.
 */
typedef struct mst_arena {
    unsigned char *base;
    size_t capacity;
    size_t used;
    bool overflowed; /* a take that did not fit, or whose size overflowed */
} mst_arena;
void mst_arena_count(mst_arena *arena);
void mst_arena_over(mst_arena *arena, void *base, size_t capacity);
/* count elements of size bytes, aligned to 64. NULL when counting or overflowed. */
void *mst_arena_take(mst_arena *arena, int64_t count, size_t size);

/* ---- desc.c: struct_size rules --------------------------------------------------------------- */

/*
 * Copies the caller's desc over a full one that already holds the defaults: given->struct_size
 * bytes at most full_bytes. given NULL leaves the defaults. struct_size 0, or too small to hold
 * itself, is refused by name.
 */
mstar_status mst_desc_read(const char *name, const void *given, void *full, size_t full_bytes);
/* Copies at most the caller's struct_size bytes of a filled info struct out, keeping struct_size.
 */
mstar_status mst_info_write(const char *name, const void *full, size_t full_bytes, void *given);

/* ---- dtype.c, tensor.c ----------------------------------------------------------------------- */

float mst_bf16_to_f32(uint16_t value);
uint16_t mst_f32_to_bf16(float value);
float mst_f16_to_f32(uint16_t value);
uint16_t mst_f32_to_f16(float value);
bool mst_dtype_is_compute(mstar_dtype dtype); /* f32, bf16, f16 */
float mst_load_element(const void *data, mstar_dtype dtype, int64_t index);
void mst_store_element(void *data, mstar_dtype dtype, int64_t index, float value);

/* Rank, shape >= 0, strides >= 0, dtype in the list, data not NULL unless some dimension is 0. */
mstar_status mst_tensor_check(const char *name, const mstar_tensor *tensor);
mstar_status mst_tensor_check_rank(const char *name, const mstar_tensor *tensor, int32_t rank);
/* f32, bf16 or f16 on the given device kind, last dimension contiguous. */
mstar_status mst_tensor_check_compute(const char *name, const mstar_tensor *tensor, int32_t rank);
mstar_status mst_tensor_check_dim(const char *name, const mstar_tensor *tensor, int32_t dim,
                                  int64_t size);
/* First byte and one past the last byte that a view touches; both 0 for an empty view. */
void mst_tensor_extent(const mstar_tensor *tensor, uintptr_t *first, uintptr_t *end);
/* INVALID_ARGUMENT when the two views share a byte. */
mstar_status mst_tensor_check_apart(const char *a_name, const mstar_tensor *a, const char *b_name,
                                    const mstar_tensor *b);
bool mst_tensor_same_view(const mstar_tensor *a, const mstar_tensor *b);

/* ---- env.c: the only getenv ------------------------------------------------------------------ */

typedef enum mst_env {
    MST_ENV_MAX_ISA,            /* MSTAR_MAX_ISA */
    MST_ENV_NUM_THREADS,        /* MSTAR_NUM_THREADS */
    MST_ENV_OMP_THREADS,        /* OMP_NUM_THREADS */
    MST_ENV_GRAPH_COMPILE_MODE, /* MSTAR_GRAPH_COMPILE_MODE */
    MST_ENV_WORKSPACE_MB,       /* MSTAR_WORKSPACE_BUFFER_MB */
    MST_ENV_REQUIRE_GRAPHS,     /* MSTAR_REQUIRE_ACCELERATOR_GRAPHS */
    MST_ENV_NUM_SLOTS,          /* MSTAR_NUM_SLOTS */
    MST_ENV_PRE_PLAN,           /* MSTAR_PRE_PLAN_SPEC */
    MST_ENV_STEP_SYNC,          /* MSTAR_ENGINE_STEP_SYNC */
    MST_ENV_NVTX                /* MSTAR_NVTX */
} mst_env;
/* The text, or NULL when unset or empty. */
const char *mst_env_get(mst_env name);
/* A flag: "0" is off, any other text on. */
bool mst_env_flag(mst_env name, bool unset);
const char *mst_env_name(mst_env name);

/* ---- parallel.c: the pool -------------------------------------------------------------------- */

typedef struct mst_pool mst_pool;
typedef void (*mst_task)(void *context, int32_t index);

/* num_threads as resolved (>= 1). host NULL: own threads. */
mstar_status mst_pool_create(int32_t num_threads,
                             void (*host_for)(void *, int32_t, mst_task, void *), void *host,
                             mst_pool **pool);
void mst_pool_destroy(mst_pool *pool);
int32_t mst_pool_threads(const mst_pool *pool);
/*
 * Runs task(context, i) for every i in [0, num_tasks), each once, on the caller and up to
 * max_threads - 1 workers, and returns when all have finished. Safe on several threads at once (a
 * second caller runs its tasks itself), from inside a task (runs inline), and in a forked child.
 * Workers and the caller run tasks with rounding to nearest and denormals kept; the caller's own
 * mode is put back.
 */
void mst_parallel_for(mst_pool *pool, int32_t max_threads, int32_t num_tasks, mst_task task,
                      void *context);
/* Tells the processor that this thread is waiting in a loop. */
void mst_pause(void);
/* Sleeps while the word, an _Atomic uint32_t (which C++ does not know), is `seen`; may return
 * early. Nothing of it outlives a fork. */
void mst_sleep_on(void *word, uint32_t seen);
/* Wakes up to count of those who sleep on the word. */
void mst_wake_on(void *word, int32_t count);

/* ---- threads.c: how many --------------------------------------------------------------------- */

#define MST_MAX_THREADS 1024
/* -1 or a value to check -> threads in use: argument, MSTAR_NUM_THREADS, OMP_NUM_THREADS, cores
 * allowed. */
mstar_status mst_resolve_threads(int32_t given, int32_t *num_threads);
/* Cores that this process may use, 1..MST_MAX_THREADS. */
int32_t mst_allowed_cores(void);
/* Pure: cores that a control group's cpu.max ("150000 100000", "max 100000") allows, rounded up;
 * INT32_MAX without a limit. */
int32_t mst_quota_cores(const char *cpu_max);

/* ---- file.c: reading files ------------------------------------------------------------------- */

/* A whole file mapped read-only. data is NULL for an empty file. */
typedef struct mst_file {
    const unsigned char *data;
    size_t bytes;
    char *path;
} mst_file;
/* NOT_FOUND when there is none, IO_FAILED with the system's reason otherwise; directories refused.
 */
mstar_status mst_file_map(const char *path, mst_file *file);
void mst_file_unmap(mst_file *file);
/*
 * Lets the pages that lie wholly in bytes [begin, end) leave memory: their contents stay and come
 * back from the file when touched. Bytes outside the file are left out.
 */
void mst_file_let_go(const mst_file *file, size_t begin, size_t end);
/* Is there a regular file, a folder? IO_FAILED when the system cannot tell: what may be there must
 * not be taken for absent. */
mstar_status mst_file_look(const char *path, bool *there);
mstar_status mst_folder_look(const char *path, bool *there);
/* folder + "/" + name into a new string. */
mstar_status mst_path_join(const char *folder, const char *name, char **path);

/* ---- small integer helpers ------------------------------------------------------------------- */

static inline int64_t mst_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t mst_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t mst_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t mst_round_up(int64_t a, int64_t b)
{
    return mst_ceil_div(a, b) * b;
}

#endif
