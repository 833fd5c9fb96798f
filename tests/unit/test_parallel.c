/* test_parallel.c - the pool: every index once, who joins, forks, hosts, floating-point mode. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "support_fork.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { MANY = 1000 };

typedef struct tally {
    _Atomic int32_t runs[MANY];
    _Atomic int32_t inside;
    _Atomic int32_t most_inside;
    mst_pool *pool;
} tally;

static void count_index(void *context, int32_t index)
{
    tally *t = context;
    int32_t inside = atomic_fetch_add(&t->inside, 1) + 1;
    int32_t most = atomic_load(&t->most_inside);
    while (inside > most && !atomic_compare_exchange_weak(&t->most_inside, &most, inside)) {
    }
    atomic_fetch_add(&t->runs[index], 1);
    atomic_fetch_sub(&t->inside, 1);
}

static void check_runs(tally *t, int32_t num_tasks, int32_t times)
{
    for (int32_t i = 0; i < MANY; i++) {
        if (atomic_load(&t->runs[i]) != (i < num_tasks ? times : 0))
            fail_msg("task %d of %d ran %d times", i, num_tasks, atomic_load(&t->runs[i]));
    }
}

static mst_pool *make_pool(int32_t threads)
{
    mst_pool *pool = NULL;
    assert_int_equal(mst_pool_create(threads, NULL, NULL, &pool), MSTAR_OK);
    assert_int_equal(mst_pool_threads(pool), threads);
    return pool;
}

static void every_index_once(void **state)
{
    (void)state;
    static tally t;
    const int32_t threads[] = {1, 2, 3, 8};
    const int32_t limits[] = {-1, 0, 1, 2, 3, 1000};
    const int32_t tasks[] = {0, 1, 2, 3, 7, 64, MANY};
    for (size_t a = 0; a < sizeof threads / sizeof threads[0]; a++) {
        mst_pool *pool = make_pool(threads[a]);
        for (size_t b = 0; b < sizeof limits / sizeof limits[0]; b++) {
            for (size_t c = 0; c < sizeof tasks / sizeof tasks[0]; c++) {
                memset(&t, 0, sizeof t);
                for (int i = 0; i < 5; i++)
                    mst_parallel_for(pool, limits[b], tasks[c], count_index, &t);
                check_runs(&t, tasks[c], 5);
                int32_t bound = threads[a] < limits[b] ? threads[a] : limits[b];
                assert_true(atomic_load(&t.most_inside) <= (bound < 1 ? 1 : bound));
            }
        }
        mst_pool_destroy(pool);
    }
    memset(&t, 0, sizeof t);
    mst_parallel_for(NULL, 4, 10, count_index, &t);
    mst_parallel_for(NULL, 4, -3, count_index, &t);
    check_runs(&t, 10, 1);
    mst_pool_destroy(NULL);
}

/* All threads must be inside the same job at once, or this never ends: workers do join. */
static void meet(void *context, int32_t index)
{
    (void)index;
    tally *t = context;
    atomic_fetch_add(&t->inside, 1);
    while (atomic_load(&t->inside) < 3)
        (void)usleep(100);
}

static void workers_join(void **state)
{
    (void)state;
    static tally t;
    mst_pool *pool = make_pool(3);
    for (int i = 0; i < 20; i++) {
        memset(&t, 0, sizeof t);
        mst_parallel_for(pool, 3, 3, meet, &t);
        assert_int_equal(atomic_load(&t.inside), 3);
        if (i % 5 == 0)
            (void)usleep(2000); /* long enough for workers to sleep */
    }
    mst_pool_destroy(pool);
}

/* What tasks wrote without atomics is visible to the caller afterwards. */
static void add_one(void *context, int32_t index)
{
    ((int32_t *)context)[index]++;
}

static void results_are_visible(void **state)
{
    (void)state;
    static int32_t sums[64];
    mst_pool *pool = make_pool(4);
    for (int i = 0; i < 2000; i++)
        mst_parallel_for(pool, 4, 64, add_one, sums);
    for (int i = 0; i < 64; i++)
        assert_int_equal(sums[i], 2000);
    mst_pool_destroy(pool);
}

static void nest(void *context, int32_t index)
{
    (void)index;
    tally *t = context;
    mst_parallel_for(t->pool, 8, MANY / 10, count_index, t);
}

static void nested_calls(void **state)
{
    (void)state;
    static tally t;
    memset(&t, 0, sizeof t);
    t.pool = make_pool(4);
    mst_parallel_for(t.pool, 4, 8, nest, &t);
    check_runs(&t, MANY / 10, 8);
    mst_pool_destroy(t.pool);
}

static void *call_often(void *context)
{
    tally *t = context;
    for (int i = 0; i < 50; i++)
        mst_parallel_for(t->pool, 3, MANY, count_index, t);
    return NULL;
}

static void concurrent_callers(void **state)
{
    (void)state;
    static tally t[4];
    memset(t, 0, sizeof t);
    mst_pool *pool = make_pool(3);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        t[i].pool = pool;
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &t[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 4; i++)
        check_runs(&t[i], MANY, 50);
    mst_pool_destroy(pool);
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* Runs body in a child; a child that hangs is ended by its alarm. */
static void in_child(void (*body)(tally *), tally *t)
{
    (void)fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(100);
        body(t);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child ended with wait status %d", status);
}

#if THREADS_AFTER_FORK
static void child_runs(tally *t)
{
    memset(t->runs, 0, sizeof t->runs);
    for (int i = 0; i < 20; i++)
        mst_parallel_for(t->pool, 4, MANY, count_index, t);
    for (int32_t i = 0; i < MANY; i++) {
        if (atomic_load(&t->runs[i]) != 20)
            _exit(1);
    }
    atomic_store(&t->inside, 0);
    mst_parallel_for(t->pool, 3, 3, meet, t); /* with workers of its own */
    mst_pool_destroy(t->pool);
}

static void fork_then_use(void **state)
{
    (void)state;
    static tally t;
    memset(&t, 0, sizeof t);
    t.pool = make_pool(4);
    in_child(child_runs, &t); /* before the first job */
    mst_parallel_for(t.pool, 4, MANY, count_index, &t);
    in_child(child_runs, &t);
    check_runs(&t, MANY, 1);
    mst_parallel_for(t.pool, 4, MANY, count_index, &t); /* the parent's pool still works */
    check_runs(&t, MANY, 2);
    mst_pool_destroy(t.pool);
}

static _Atomic int stop_calling;
static void *call_until_stopped(void *context)
{
    tally *t = context;
    while (atomic_load(&stop_calling) == 0)
        mst_parallel_for(t->pool, 4, 50, count_index, t);
    return NULL;
}

/* Another thread holds the pool at the moment of the fork. */
static void fork_while_busy(void **state)
{
    (void)state;
    static tally t, other;
    memset(&t, 0, sizeof t);
    memset(&other, 0, sizeof other);
    t.pool = other.pool = make_pool(4);
    atomic_store(&stop_calling, 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_until_stopped, &other), 0);
    for (int i = 0; i < 10; i++)
        in_child(child_runs, &t);
    atomic_store(&stop_calling, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    mst_pool_destroy(t.pool);
}

#endif

static void child_destroys(tally *t)
{
    mst_pool_destroy(t->pool);
}

static void fork_then_destroy(void **state)
{
    (void)state;
    static tally t;
    memset(&t, 0, sizeof t);
    t.pool = make_pool(4);
    in_child(child_destroys, &t);
    mst_parallel_for(t.pool, 4, MANY, count_index, &t);
    in_child(child_destroys, &t);
    check_runs(&t, MANY, 1);
    mst_pool_destroy(t.pool);
}

static void fork_in_task(void *context, int32_t index)
{
    tally *t = context;
    if (index != 0)
        return;
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)alarm(100);
        tally *mine = t;
        atomic_store(&mine->most_inside, 0);
        mst_parallel_for(mine->pool, 4, MANY, count_index, mine); /* inline: still in a task */
        _exit(atomic_load(&mine->runs[MANY - 1]) == 1 ? 0 : 1);
    }
    int status = -1;
    (void)waitpid(child, &status, 0);
    atomic_store(&t->inside, WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : -1);
}

static void fork_inside_a_task(void **state)
{
    (void)state;
    static tally t;
    memset(&t, 0, sizeof t);
    t.pool = make_pool(4);
    mst_parallel_for(t.pool, 4, 4, fork_in_task, &t);
    assert_int_equal(atomic_load(&t.inside), 1);
    mst_pool_destroy(t.pool);
}

/* ---- host pools ------------------------------------------------------------------------------ */

typedef struct host {
    int32_t calls, largest;
    bool lazy; /* runs nothing at all */
} host;

typedef struct host_part {
    mst_task task;
    void *context;
    int32_t index;
} host_part;

static void *host_thread(void *argument)
{
    host_part *part = argument;
    part->task(part->context, part->index);
    return NULL;
}

static void host_for(void *context, int32_t num_tasks, mst_task task, void *task_context)
{
    host *h = context;
    h->calls++;
    h->largest = num_tasks > h->largest ? num_tasks : h->largest;
    if (h->lazy)
        return;
    assert_true(num_tasks <= 8);
    pthread_t threads[8];
    host_part parts[8];
    for (int32_t i = 0; i < num_tasks; i++) {
        parts[i] = (host_part){task, task_context, i};
        assert_int_equal(pthread_create(&threads[i], NULL, host_thread, &parts[i]), 0);
    }
    for (int32_t i = 0; i < num_tasks; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void host_runs_tasks(void **state)
{
    (void)state;
    static tally t;
    memset(&t, 0, sizeof t);
    host h = {0};
    assert_int_equal(mst_pool_create(4, host_for, &h, &t.pool), MSTAR_OK);
    mst_parallel_for(t.pool, 4, MANY, count_index, &t);
    check_runs(&t, MANY, 1);
    assert_int_equal(h.calls, 1);
    assert_int_equal(h.largest, 4);
    h.largest = 0;
    mst_parallel_for(t.pool, 2, MANY, count_index, &t);
    assert_int_equal(h.largest, 2);
    mst_parallel_for(t.pool, 1, MANY, count_index, &t);
    assert_int_equal(h.calls, 2);
    check_runs(&t, MANY, 3);
    memset(t.runs, 0, sizeof t.runs);
    mst_parallel_for(t.pool, 4, 8, nest, &t);
    check_runs(&t, MANY / 10, 8);
    assert_int_equal(h.calls, 3); /* nested calls do not reach the host */
    memset(t.runs, 0, sizeof t.runs);
    h.lazy = true;
    mst_parallel_for(t.pool, 4, MANY, count_index, &t);
    check_runs(&t, MANY, 1);
    mst_pool_destroy(t.pool);
}

/* ---- floating-point mode --------------------------------------------------------------------- */

static volatile float third_of = 1.0f, three = 3.0f, smallest = 0x1p-149f, two = 2.0f;

typedef struct numbers {
    float thirds[64];
    float denormals[64];
} numbers;

static void compute(void *context, int32_t index)
{
    numbers *n = context;
    n->thirds[index] = (third_of + (float)index) / three;
    n->denormals[index] = smallest * two;
    (void)usleep(50); /* lets workers take some */
}

static void check_modes(mst_pool *pool, const numbers *want)
{
    numbers got;
    memset(&got, 0, sizeof got);
    mst_parallel_for(pool, 4, 64, compute, &got);
    assert_memory_equal(&got, want, sizeof got);
    memset(&got, 0, sizeof got);
    mst_parallel_for(pool, 1, 64, compute, &got);
    assert_memory_equal(&got, want, sizeof got);
}

static void fp_mode_is_ours(void **state)
{
    (void)state;
    numbers want;
    for (int i = 0; i < 64; i++) {
        want.thirds[i] = (float)((1.0 + i) / 3.0);
        want.denormals[i] = 0x1p-148f;
    }
    host h = {0};
    mst_pool *hosted = NULL;
    assert_int_equal(mst_pool_create(4, host_for, &h, &hosted), MSTAR_OK);
    mst_pool *pool = make_pool(4);
    check_modes(pool, &want);
    check_modes(hosted, &want);
#if defined(__x86_64__)
    unsigned int before = _mm_getcsr();
    const unsigned int modes[] = {0x8040U | 0x1f80U, 0x4000U | 0x1f80U, 0x6000U | 0x9fc0U,
                                  0x2000U | 0x1f80U};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        _mm_setcsr(modes[i]);
        mst_pool *born_odd = NULL; /* its threads start in the odd mode */
        mstar_status made = mst_pool_create(4, NULL, NULL, &born_odd);
        numbers got[6];
        memset(got, 0, sizeof got);
        mst_parallel_for(pool, 4, 64, compute, &got[0]);
        unsigned int after = _mm_getcsr();
        mst_parallel_for(pool, 1, 64, compute, &got[1]);
        mst_parallel_for(hosted, 4, 64, compute, &got[2]);
        mst_parallel_for(born_odd, 4, 64, compute, &got[3]);
        mst_parallel_for(NULL, 4, 64, compute, &got[4]);
        mst_parallel_for(born_odd, 4, 1, compute, &got[5]);
        unsigned int last = _mm_getcsr();
        numbers odd; /* the mode itself does change these numbers */
        for (int32_t j = 0; j < 64; j++)
            compute(&odd, j);
        _mm_setcsr(before);
        assert_int_equal(made, MSTAR_OK);
        assert_int_equal(after, modes[i]);
        assert_int_equal(last, modes[i]);
        assert_memory_not_equal(&odd, &want, sizeof want);
        for (int j = 0; j < 5; j++)
            assert_memory_equal(&got[j], &want, sizeof want);
        assert_memory_equal(&got[5].thirds[0], &want.thirds[0], sizeof(float));
        mst_pool_destroy(born_odd);
    }
#endif
    mst_pool_destroy(pool);
    mst_pool_destroy(hosted);
}

/* ---- life, and how many ---------------------------------------------------------------------- */

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(uint64_t *)context;
}

static void create_without_memory(void **state)
{
    (void)state;
    mstar_memory_info before = {.struct_size = sizeof before}, after = before;
    assert_int_equal(mstar_memory_query(&before), MSTAR_OK);
    for (uint64_t n = 1;; n++) {
        mst_pool *pool = (mst_pool *)&n;
        mstar_set_alloc_fault(fail_at, &n);
        mstar_status status = mst_pool_create(2, NULL, NULL, &pool);
        mstar_set_alloc_fault(NULL, NULL);
        if (status == MSTAR_OK) {
            assert_true(n > 1);
            mst_pool_destroy(pool);
            break;
        }
        assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
        assert_null(pool);
    }
    assert_int_equal(mstar_memory_query(&after), MSTAR_OK);
    assert_int_equal(after.live_allocations, before.live_allocations);
    mst_pool *pool = NULL;
    assert_int_equal(mst_pool_create(0, NULL, NULL, &pool), MSTAR_INVALID_ARGUMENT);
    assert_int_equal(mst_pool_create(1025, NULL, NULL, &pool), MSTAR_INVALID_ARGUMENT);
    assert_non_null(strstr(mstar_last_error(), "num_threads is 1025"));
}

static void expect_threads(const char *mstar, const char *omp, int32_t given, int32_t want)
{
    mstar != NULL ? setenv("MSTAR_NUM_THREADS", mstar, 1) : unsetenv("MSTAR_NUM_THREADS");
    omp != NULL ? setenv("OMP_NUM_THREADS", omp, 1) : unsetenv("OMP_NUM_THREADS");
    int32_t got = -7;
    mstar_status status = mst_resolve_threads(given, &got);
    if (want > 0) {
        assert_int_equal(status, MSTAR_OK);
        assert_int_equal(got, want);
    } else {
        assert_int_equal(status, MSTAR_INVALID_ARGUMENT);
        assert_int_equal(got, -7);
    }
}

static void expect_refused(const char *mstar, const char *omp, const char *text)
{
    expect_threads(mstar, omp, -1, 0);
    if (strstr(mstar_last_error(), text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, mstar_last_error());
}

static void thread_count(void **state)
{
    (void)state;
    expect_threads("3", "5", 7, 7);
    expect_threads("3", "5", 1, 1);
    expect_threads("x", "y", 1024, 1024);
    expect_threads("3", "5", -1, 3);
    expect_threads("", "5", -1, 5);
    expect_threads(NULL, "4,2", -1, 4);
    expect_threads(NULL, " 4 , 2", -1, 4);
    expect_threads("1024", NULL, -1, 1024);
    expect_threads(NULL, NULL, -1, mst_allowed_cores());
    expect_threads(NULL, NULL, 0, 0);
    assert_non_null(strstr(mstar_last_error(), "num_threads is 0; it must be from 1 to 1024"));
    expect_threads(NULL, NULL, -2, 0);
    expect_threads(NULL, NULL, 1025, 0);
    expect_refused("0", "5", "MSTAR_NUM_THREADS is \"0\"");
    expect_refused("1025", NULL, "1025");
    expect_refused("-1", NULL, "MSTAR_NUM_THREADS is \"-1\"");
    expect_refused("3x", NULL, "MSTAR_NUM_THREADS is \"3x\"");
    expect_refused("4,2", NULL, "MSTAR_NUM_THREADS is \"4,2\"");
    expect_refused("99999999999999999999999999", NULL, "from 1 to 1024");
    expect_refused(NULL, "many", "OMP_NUM_THREADS is \"many\"");
    expect_refused(NULL, ",2", "OMP_NUM_THREADS is \",2\"");
    expect_refused(NULL, "0,2", "OMP_NUM_THREADS is \"0,2\"");
    unsetenv("OMP_NUM_THREADS");
    assert_true(mst_allowed_cores() >= 1);
    assert_true(mst_allowed_cores() <= MST_MAX_THREADS);
    assert_int_equal(mst_quota_cores("max 100000\n"), INT32_MAX);
    assert_int_equal(mst_quota_cores("100000 100000\n"), 1);
    assert_int_equal(mst_quota_cores("150000 100000"), 2);
    assert_int_equal(mst_quota_cores("1 100000"), 1);
    assert_int_equal(mst_quota_cores("400000 100000"), 4);
    assert_int_equal(mst_quota_cores("400000"), INT32_MAX);
    assert_int_equal(mst_quota_cores("400000 0"), INT32_MAX);
    assert_int_equal(mst_quota_cores(""), INT32_MAX);
    assert_int_equal(mst_quota_cores("99999999999999999999 1"), INT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_once),
        cmocka_unit_test(workers_join),
        cmocka_unit_test(results_are_visible),
        cmocka_unit_test(nested_calls),
        cmocka_unit_test(concurrent_callers),
#if THREADS_AFTER_FORK
        cmocka_unit_test(fork_then_use),
        cmocka_unit_test(fork_while_busy),
#endif
        cmocka_unit_test(fork_then_destroy),
        cmocka_unit_test(fork_inside_a_task),
        cmocka_unit_test(host_runs_tasks),
        cmocka_unit_test(fp_mode_is_ours),
        cmocka_unit_test(create_without_memory),
        cmocka_unit_test(thread_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
