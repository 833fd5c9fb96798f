/*
 * parallel.c - the thread pool behind mst_parallel_for.
 *
 * One word, `state`, holds how many workers may still join the present job (slots) and how many
 * are inside it (active). A worker joins by taking a slot and adding itself to active in one
 * compare-and-swap; the caller runs tasks too, closes the job by clearing the slots and returns
 * when active is 0. So nobody waits for a worker that never joined, and a worker that comes late
 * finds no slot. Tasks are claimed one by one from a counter: uneven tasks balance themselves.
 *
 * Waiting spins for a short while, then sleeps on a futex (a futex has no state that a fork could
 * leave half way). A fork is seen through a generation number that a pthread_atfork handler counts
 * up: the child drops the workers that it does not have and starts its own at the next job.
 *
 * Everyone who runs tasks does so in one floating-point mode, since a kernel's bits must not depend
 * on the mode that the calling thread, or the thread that created the pool, happens to be in.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* How long a waiting thread looks before it sleeps: longer than the gap between two launches of one
 * forward pass, far shorter than a request. */
#define SPIN_NS 30000
/* Looks between two readings of the clock. */
#define SPIN_BATCH 32

#define SLOT_UNIT 0x10000U
#define ACTIVE_MASK 0xffffU

typedef struct pool_job {
    mst_task task;
    void *context;
    uint32_t num_tasks;
    _Atomic uint32_t next;
} pool_job;

typedef struct pool_worker {
    mst_pool *pool;
    pthread_t thread;
    uint32_t generation; /* of the process that started it */
} pool_worker;

struct mst_pool {
    int32_t num_threads;
    void (*host_for)(void *, int32_t, mst_task, void *);
    void *host;
    int64_t spin_ns;

    /* Owned by whoever holds `owner`. */
    pool_worker *workers;
    int32_t num_workers; /* threads that run now */
    uint32_t generation; /* of the process whose threads they are */
    pool_job *job;

    _Alignas(MST_CACHE_LINE) _Atomic uint32_t owner; /* 2 * generation, + 1 while held */
    _Alignas(MST_CACHE_LINE) _Atomic uint32_t state; /* slots * SLOT_UNIT + active */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t stop;
    _Alignas(MST_CACHE_LINE) _Atomic uint32_t wake; /* futex of idle workers, counted up to wake */
    _Atomic uint32_t sleepers;
};

/* Forks between this process and the one that loaded the library. */
static _Atomic uint32_t fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_error;

/* True on a thread that is running a task: a nested call must not wait for a pool. */
static _Thread_local bool inside_task;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&fork_generation, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
    fork_error = pthread_atfork(NULL, NULL, count_fork);
}

/* ---- floating-point mode --------------------------------------------------------------------- */

#if defined(__x86_64__)
typedef uint32_t fp_mode;
#define FP_MODE_TASKS 0x1f80U /* nearest, denormals kept, exceptions masked */
static fp_mode fp_mode_get(void)
{
    return _mm_getcsr();
}
static void fp_mode_set(fp_mode mode)
{
    _mm_setcsr(mode);
}
#elif defined(__aarch64__)
typedef uint64_t fp_mode;
#define FP_MODE_TASKS 0U /* the same in FPCR */
static fp_mode fp_mode_get(void)
{
    fp_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void fp_mode_set(fp_mode mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#else
typedef uint32_t fp_mode;
#define FP_MODE_TASKS 0U
static fp_mode fp_mode_get(void)
{
    return 0;
}
static void fp_mode_set(fp_mode mode)
{
    (void)mode;
}
#endif

/* ---- waiting --------------------------------------------------------------------------------- */

void mst_sleep_on(void *word, uint32_t seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

void mst_wake_on(void *word, int32_t count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void mst_pause(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until (state & mask) != 0 equals wanted, at most spin_ns. True when it does. */
static bool spin_for(mst_pool *pool, uint32_t mask, bool wanted)
{
    int64_t deadline = 0;
    for (;;) {
        for (int i = 0; i < SPIN_BATCH; i++) {
            uint32_t state = atomic_load_explicit(&pool->state, memory_order_acquire);
            if (((state & mask) != 0) == wanted ||
                atomic_load_explicit(&pool->stop, memory_order_relaxed) != 0)
                return true;
            if (pool->spin_ns == 0)
                return false;
            mst_pause();
        }
        int64_t now = now_ns();
        if (deadline == 0)
            deadline = now + pool->spin_ns;
        else if (now >= deadline)
            return false;
    }
}

/* ---- running tasks --------------------------------------------------------------------------- */

static void run_tasks(pool_job *job)
{
    bool was_inside = inside_task;
    fp_mode before = fp_mode_get();
    inside_task = true;
    fp_mode_set(FP_MODE_TASKS);
    for (;;) {
        uint32_t index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (index >= job->num_tasks)
            break;
        job->task(job->context, (int32_t)index);
    }
    fp_mode_set(before);
    inside_task = was_inside;
}

/* A host's thread takes part: its index only says that it is one of several. */
static void run_tasks_on_host(void *context, int32_t index)
{
    (void)index;
    run_tasks(context);
}

static bool join_job(mst_pool *pool)
{
    uint32_t state = atomic_load_explicit(&pool->state, memory_order_relaxed);
    while (state >= SLOT_UNIT) {
        if (atomic_compare_exchange_weak_explicit(&pool->state, &state, state - SLOT_UNIT + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    }
    return false;
}

static void leave_job(mst_pool *pool)
{
    /* no task is left, so that nobody else needs to join */
    atomic_fetch_and_explicit(&pool->state, ACTIVE_MASK, memory_order_relaxed);
    uint32_t before = atomic_fetch_sub(&pool->state, 1);
    if ((before & ACTIVE_MASK) == 1 && atomic_load(&pool->caller_sleeps) != 0)
        mst_wake_on(&pool->state, 1);
}

static void *worker_main(void *argument)
{
    pool_worker *worker = argument;
    mst_pool *pool = worker->pool;
    (void)pthread_setname_np(pthread_self(), "mstar");
    while (atomic_load_explicit(&pool->stop, memory_order_acquire) == 0) {
        if (join_job(pool)) {
            run_tasks(pool->job);
            if (atomic_load_explicit(&fork_generation, memory_order_relaxed) != worker->generation)
                return NULL; /* a task forked: this is the child's only thread, not a worker */
            leave_job(pool);
            continue;
        }
        if (spin_for(pool, ~ACTIVE_MASK, true))
            continue;
        /* Either the caller sees this sleeper, or this thread sees the caller's slots. */
        uint32_t seen = atomic_load(&pool->wake);
        atomic_fetch_add(&pool->sleepers, 1);
        if (atomic_load(&pool->state) < SLOT_UNIT && atomic_load(&pool->stop) == 0)
            mst_sleep_on(&pool->wake, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return NULL;
}

/* Starts what it can: a pool with fewer threads gives the same results. Workers take no signals,
 * those belong to the host's threads. */
static void start_workers(mst_pool *pool)
{
    pool->num_workers = 0;
    pool->generation = atomic_load_explicit(&fork_generation, memory_order_relaxed);
    if (pool->host_for != NULL)
        return;
    sigset_t all, before;
    (void)sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0)
        return;
    while (pool->num_workers < pool->num_threads - 1) {
        pool_worker *worker = &pool->workers[pool->num_workers];
        worker->pool = pool;
        worker->generation = pool->generation;
        int error = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (error != 0) {
            mst_log(MST_LOG_WARNING, "%d of %d threads could be started (error %d)",
                    pool->num_workers + 1, pool->num_threads, error);
            break;
        }
        pool->num_workers++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* In a forked child: nothing of the parent's threads is left but their traces in these words. */
static void forget_workers(mst_pool *pool)
{
    atomic_store(&pool->state, 0);
    atomic_store(&pool->caller_sleeps, 0);
    atomic_store(&pool->wake, 0);
    atomic_store(&pool->sleepers, 0);
    pool->num_workers = 0;
    pool->job = NULL;
}

/* False when another thread of this process holds the pool; one that held it across a fork is gone.
 */
static bool try_own(mst_pool *pool, uint32_t generation)
{
    uint32_t held = 2 * generation + 1;
    uint32_t owner = atomic_load_explicit(&pool->owner, memory_order_relaxed);
    return owner != held &&
           atomic_compare_exchange_strong_explicit(&pool->owner, &owner, held, memory_order_acquire,
                                                   memory_order_relaxed);
}

static void run_on_workers(mst_pool *pool, uint32_t slots, pool_job *job)
{
    pool->job = job;
    atomic_store(&pool->state, slots * SLOT_UNIT);
    uint32_t sleepers = atomic_load(&pool->sleepers);
    if (sleepers > 0) {
        atomic_fetch_add(&pool->wake, 1);
        mst_wake_on(&pool->wake, (int32_t)(sleepers < slots ? sleepers : slots));
    }
    run_tasks(job);
    atomic_fetch_and_explicit(&pool->state, ACTIVE_MASK, memory_order_acquire);
    /* a task that forked returns here in the child, where no worker will ever leave */
    while (pool->generation == atomic_load_explicit(&fork_generation, memory_order_relaxed) &&
           !spin_for(pool, ACTIVE_MASK, false)) {
        atomic_store(&pool->caller_sleeps, 1);
        uint32_t state = atomic_load(&pool->state);
        if ((state & ACTIVE_MASK) != 0)
            mst_sleep_on(&pool->state, state);
        atomic_store(&pool->caller_sleeps, 0);
    }
}

void mst_parallel_for(mst_pool *pool, int32_t max_threads, int32_t num_tasks, mst_task task,
                      void *context)
{
    if (num_tasks <= 0)
        return;
    pool_job job = {task, context, (uint32_t)num_tasks, 0};
    int32_t threads = pool == NULL || inside_task ? 1 : pool->num_threads;
    threads = threads < max_threads ? threads : max_threads;
    threads = threads < num_tasks ? threads : num_tasks;
    uint32_t generation = atomic_load_explicit(&fork_generation, memory_order_relaxed);
    if (pool != NULL && threads > 1 && try_own(pool, generation)) {
        if (pool->generation != generation) {
            forget_workers(pool);
            start_workers(pool);
        }
        if (pool->host_for != NULL)
            pool->host_for(pool->host, threads, run_tasks_on_host, &job);
        else if (pool->num_workers > 0)
            run_on_workers(pool, (uint32_t)threads - 1, &job);
        atomic_store_explicit(&pool->owner, 2 * generation, memory_order_release);
    }
    /* alone, or what a host left over */
    if (atomic_load_explicit(&job.next, memory_order_relaxed) < (uint32_t)num_tasks)
        run_tasks(&job);
}

/* ---- life ------------------------------------------------------------------------------------ */

mstar_status mst_pool_create(int32_t num_threads,
                             void (*host_for)(void *, int32_t, mst_task, void *), void *host,
                             mst_pool **pool)
{
    *pool = NULL;
    MST_TRY(mst_check_range("num_threads", num_threads, 1, MST_MAX_THREADS));
    (void)pthread_once(&fork_once, watch_forks);
    if (fork_error != 0)
        return mst_fail(MSTAR_OUT_OF_MEMORY, "thread pool: the fork handler could not be set (%d)",
                        fork_error);
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_pool), "thread pool", &memory));
    mst_pool *made = memory;
    mstar_status status = mst_alloc_array(num_threads, sizeof(pool_worker), "workers", &memory);
    if (status != MSTAR_OK) {
        mst_free(made);
        return status;
    }
    made->workers = memory;
    made->num_threads = num_threads;
    made->host_for = host_for;
    made->host = host;
    /* with more threads than cores, who spins keeps somebody else from working */
    made->spin_ns = num_threads <= mst_allowed_cores() ? SPIN_NS : 0;
    start_workers(made);
    atomic_store(&made->owner, 2 * made->generation);
    *pool = made;
    return MSTAR_OK;
}

void mst_pool_destroy(mst_pool *pool)
{
    if (pool == NULL)
        return;
    if (pool->generation == atomic_load_explicit(&fork_generation, memory_order_relaxed)) {
        atomic_store(&pool->stop, 1);
        atomic_fetch_add(&pool->wake, 1);
        mst_wake_on(&pool->wake, INT32_MAX);
        for (int32_t i = 0; i < pool->num_workers; i++)
            (void)pthread_join(pool->workers[i].thread, NULL);
    }
    mst_free(pool->workers);
    mst_free(pool);
}

int32_t mst_pool_threads(const mst_pool *pool)
{
    return pool->num_threads;
}
