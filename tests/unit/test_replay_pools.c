/*
 * test_replay_pools.c - replays over pools of every temper: a host's pool that runs its tasks one
 * after another, backwards, or each on a late thread; from inside a task; in a forked child. Nobody
 * may wait for a member of the team that does not come.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support_fork.h"
#include "support_replay.h"

enum { THREADS = 4, ROUNDS = 12 };

static void one_by_one(void *host, int32_t num_tasks, mstar_parallel_task task, void *context)
{
    (void)host;
    for (int32_t i = 0; i < num_tasks; i++)
        task(context, i);
}

static void backwards(void *host, int32_t num_tasks, mstar_parallel_task task, void *context)
{
    (void)host;
    for (int32_t i = num_tasks - 1; i >= 0; i--)
        task(context, i);
}

typedef struct late {
    mstar_parallel_task task;
    void *context;
    int32_t index;
} late;

static void *come_late(void *argument)
{
    const late *l = argument;
    const struct timespec wait = {0, 200000L * l->index};
    (void)nanosleep(&wait, NULL);
    l->task(l->context, l->index);
    return NULL;
}

static void on_late_threads(void *host, int32_t num_tasks, mstar_parallel_task task, void *context)
{
    pthread_t threads[THREADS];
    late all[THREADS];
    (void)host;
    assert_true(num_tasks <= THREADS);
    for (int32_t i = 0; i < num_tasks; i++) {
        all[i] = (late){task, context, i};
        assert_int_equal(pthread_create(&threads[i], NULL, come_late, &all[i]), 0);
    }
    for (int32_t i = 0; i < num_tasks; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* A network captured on a stream of all threads, and its steps. */
typedef struct rig {
    mstar_device *device;
    mstar_stream *stream, *one;
    mstar_graph *graph;
    net_weights weights;
    net_state recorded, eager;
    check_rng rng;
} rig;

static rig r;

static void rig_open(mstar_parallel_for host)
{
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = THREADS;
    desc.parallel_for = host;
    r.rng.state = 31;
    CHECK_OK(mstar_device_open("cpu", &desc, &r.device));
    CHECK_OK(mstar_stream_create(r.device, -1, &r.stream));
    CHECK_OK(mstar_stream_create(r.device, 1, &r.one));
    net_weights_open(&r.weights, r.device, 2);
    net_state_open(&r.recorded, r.device, true);
    net_state_open(&r.eager, r.device, false);
    CHECK_OK(mstar_graph_capture_begin(r.stream));
    CHECK_OK(net_forward(&r.weights, &r.recorded, r.stream, NULL));
    CHECK_OK(mstar_graph_capture_end(r.stream, &r.graph));
}

static void rig_close(void)
{
    mstar_graph_destroy(r.graph);
    net_state_close(&r.recorded);
    net_state_close(&r.eager);
    net_weights_close(&r.weights);
    mstar_stream_destroy(r.stream);
    mstar_stream_destroy(r.one);
    CHECK_OK(mstar_device_close(r.device));
}

static void one_step(const char *what)
{
    net_step step;
    net_step_random(&step, &r.rng);
    net_state_poison(&r.recorded);
    CHECK_OK(net_stage(&r.recorded, r.stream, &step));
    CHECK_OK(mstar_graph_replay(r.graph, r.stream));
    CHECK_OK(net_stage(&r.eager, r.one, &step));
    CHECK_OK(net_forward(&r.weights, &r.eager, r.one, &step));
    net_compare(&r.recorded, &r.eager, &step, what);
}

static void pools_of_a_host(void **state)
{
    (void)state;
    static const struct {
        mstar_parallel_for host;
        const char *name;
    } hosts[] = {{one_by_one, "one by one"},
                 {backwards, "backwards"},
                 {on_late_threads, "on late threads"},
                 {NULL, "the own pool"}};
    for (int h = 0; h < 4; h++) {
        rig_open(hosts[h].host);
        for (int i = 0; i < ROUNDS; i++)
            one_step(hosts[h].name);
        rig_close();
    }
}

static void step_in_a_task(void *context, int32_t index)
{
    (void)context;
    if (index == 0)
        one_step("inside a task");
}

static void replays_inside_a_task(void **state)
{
    (void)state;
    rig_open(NULL);
    for (int i = 0; i < ROUNDS; i++)
        mst_parallel_for(r.device->pool, THREADS, THREADS, step_in_a_task, NULL);
    rig_close();
}

#if THREADS_AFTER_FORK
/* A graph of the parent replays in the child. */
static void replays_after_a_fork(void **state)
{
    (void)state;
    rig_open(NULL);
    one_step("before a fork");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 3; i++)
            one_step("in a child");
        _exit(0);
    }
    one_step("beside a child");
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    rig_close();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_of_a_host),
        cmocka_unit_test(replays_inside_a_task),
#if THREADS_AFTER_FORK
        cmocka_unit_test(replays_after_a_fork),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
