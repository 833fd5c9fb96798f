/*
 * cpu_record.c - record and replay: launches in waves, run by one team of threads.
 *
 * While a stream captures, each launch is copied with the regions that it touches. The end of the
 * capture finds what waits for what, puts the launches into waves (cpu_depend.c) and keeps them in
 * one block, in that order; the regions are let go.
 *
 * A replay prepares every launch (row counts and plans are read here, once), then one team goes
 * through the waves: each member takes the next free task of the present wave, and when none is
 * left waits until those that others took are done: it looks for a while, then sleeps. (Offering
 * the processor again and again instead costs a time slice of another process's each time, where
 * there is one.) There is one wake-up for the whole graph while nobody sleeps. A
 * team of one, as on a stream of one thread, never waits. Nobody waits for a member that has not
 * come, so a host's pool may run the members one after another. A wave of one task is the first
 * member's, in whose cache what such waves hand on stays.
 */
#include <string.h>

#include "cpu/cpu_launch.h"

/* Looks at a wave's counter before sleeping: some thirty microseconds, as long as the pool's own
 * threads look. With more threads than cores, who looks keeps another from working: none then. */
#define SPIN_LOOKS 1500

typedef struct wave {
    _Alignas(MST_CACHE_LINE) _Atomic int32_t next;  /* task to take */
    _Alignas(MST_CACHE_LINE) _Atomic uint32_t done; /* tasks finished; who waits sleeps on it */
    _Atomic uint32_t sleepers;
    int32_t tasks;        /* of this replay */
    int64_t first, count; /* launches */
} wave;

typedef struct recorded {
    mst_launch launch;
    mst_regions regions;
} recorded;

/* While recording: list. Afterwards: block. */
typedef struct cpu_graph {
    recorded *list;
    int64_t list_capacity;
    int64_t num_launches, num_waves, num_edges;
    void *block;
    size_t block_bytes;
    mst_launch *launches;
    wave *waves;
    int32_t spin_looks;
    _Atomic bool failed; /* of this replay */
    _Atomic bool begun;  /* a member of this replay's team has come */
} cpu_graph;

static cpu_graph *graph_of(const mstar_graph *graph)
{
    return graph->impl;
}

/* ---- recording ------------------------------------------------------------------------------- */

mstar_status mst_cpu_capture_begin(mstar_stream *stream, mstar_graph *graph)
{
    (void)stream;
    return mst_alloc_zero(sizeof(cpu_graph), "graph", &graph->impl);
}

mstar_status mst_cpu_record(mstar_stream *stream, mst_launch *launch)
{
    cpu_graph *g = graph_of(stream->graph);
    void *list = g->list;
    mstar_status status = mst_grow(&list, &g->list_capacity, g->num_launches + 1, sizeof *g->list,
                                   "recorded launches");
    g->list = list;
    if (status != MSTAR_OK)
        return status;
    recorded *made = &g->list[g->num_launches++];
    launch->recorded = true;
    memcpy(&made->launch, launch, sizeof *launch);
    made->regions.count = 0;
    launch->kind->touch(launch, &made->regions);
    return MSTAR_OK;
}

static bool conflict(const void *context, int64_t i, int64_t j)
{
    const recorded *list = context;
    return mst_regions_conflict(&list[i].regions, &list[j].regions);
}

static void lay_out(mst_arena *arena, cpu_graph *g)
{
    g->launches = mst_arena_take(arena, g->num_launches, sizeof *g->launches);
    g->waves = mst_arena_take(arena, g->num_waves, sizeof *g->waves);
}

static mstar_status take_block(cpu_graph *g)
{
    mst_arena arena;
    mst_arena_count(&arena);
    lay_out(&arena, g);
    if (arena.overflowed)
        return mst_fail(MSTAR_OUT_OF_MEMORY, "graph: %lld launches pass the address space",
                        (long long)g->num_launches);
    g->block_bytes = arena.used;
    MST_TRY(mst_alloc_zero(g->block_bytes, "graph", &g->block));
    mst_arena_over(&arena, g->block, g->block_bytes);
    lay_out(&arena, g);
    return MSTAR_OK;
}

/* Launches in the order of their waves, within a wave as recorded. */
static void fill_block(cpu_graph *g, const int64_t *wave_of)
{
    int64_t place = 0;
    for (int64_t w = 0; w < g->num_waves; w++) {
        g->waves[w].first = place;
        for (int64_t i = 0; i < g->num_launches; i++) {
            if (wave_of[i] == w)
                memcpy(&g->launches[place++], &g->list[i].launch, sizeof *g->launches);
        }
        g->waves[w].count = place - g->waves[w].first;
    }
}

mstar_status mst_cpu_capture_end(mstar_stream *stream, mstar_graph *graph)
{
    cpu_graph *g = graph_of(graph);
    void *memory = NULL;
    mstar_status status;
    MST_TRY_GOTO(mst_alloc_array(g->num_launches, sizeof(int64_t), "waves", &memory), done);
    int64_t *wave_of = memory;
    MST_TRY_GOTO(
        mst_depend(g->num_launches, conflict, g->list, wave_of, &g->num_waves, &g->num_edges),
        done);
    MST_TRY_GOTO(take_block(g), done);
    fill_block(g, wave_of);
    g->spin_looks = stream->device->num_threads <= mst_allowed_cores() ? SPIN_LOOKS : 0;
done:
    mst_free(memory);
    mst_free(g->list);
    g->list = NULL;
    g->list_capacity = 0;
    return status;
}

mstar_status mst_cpu_graph_compile(mstar_graph *graph, mstar_stream *stream, const mst_compile *how,
                                   mst_compiled *what)
{
    cpu_graph *g = graph_of(graph);
    const cpu_graph *like = how->like != NULL ? graph_of(how->like) : NULL;
    bool equal = like != NULL && like->num_launches == g->num_launches;
    return mst_cpu_choose(g->launches, equal ? like->launches : NULL, g->num_launches, stream, how,
                          what);
}

void mst_cpu_capture_abort(mstar_stream *stream, mstar_graph *graph)
{
    (void)stream;
    (void)graph;
}

void mst_cpu_graph_close(mstar_graph *graph)
{
    cpu_graph *g = graph_of(graph);
    if (g == NULL)
        return;
    mst_free(g->list);
    mst_free(g->block);
    mst_free(g);
    graph->impl = NULL;
}

void mst_cpu_graph_query(const mstar_graph *graph, mstar_graph_info *info)
{
    const cpu_graph *g = graph_of(graph);
    info->nodes = g->num_launches;
    info->edges = g->num_edges;
    info->waves = g->num_waves;
    info->bytes = sizeof *g + g->block_bytes;
}

void mst_cpu_graph_query_node(const mstar_graph *graph, int64_t index, mstar_graph_node_info *info)
{
    const cpu_graph *g = graph_of(graph);
    const mst_launch *launch = &g->launches[index];
    info->op = launch->kind->name;
    info->num_rows = launch->max_rows;
    info->live_rows = launch->live_rows != NULL || launch->follows_plan;
    for (int64_t w = 0; w < g->num_waves; w++) {
        if (index >= g->waves[w].first)
            info->wave = w;
    }
}

/* ---- replay ---------------------------------------------------------------------------------- */

static mstar_status prepare(cpu_graph *g, int32_t max_threads, int32_t *team)
{
    int32_t widest = 1;
    for (int64_t w = 0; w < g->num_waves; w++) {
        wave *at = &g->waves[w];
        int64_t tasks = 0;
        for (int64_t i = at->first; i < at->first + at->count; i++) {
            MST_TRY(mst_launch_prepare(&g->launches[i], max_threads));
            tasks += g->launches[i].tasks;
        }
        at->tasks = (int32_t)tasks;
        atomic_store_explicit(&at->next, 0, memory_order_relaxed);
        atomic_store_explicit(&at->done, 0, memory_order_relaxed);
        atomic_store_explicit(&at->sleepers, 0, memory_order_relaxed);
        widest = at->tasks > widest ? at->tasks : widest;
    }
    atomic_store_explicit(&g->failed, false, memory_order_relaxed);
    atomic_store_explicit(&g->begun, false, memory_order_relaxed);
    *team = widest < max_threads ? widest : max_threads;
    return MSTAR_OK;
}

static void run_task(cpu_graph *g, const wave *at, int32_t task)
{
    mst_launch *launch = &g->launches[at->first];
    while (task >= launch->tasks)
        task -= (launch++)->tasks;
    launch->kind->task(launch, task);
    if (atomic_load_explicit(&launch->bad, memory_order_relaxed))
        atomic_store_explicit(&g->failed, true, memory_order_relaxed);
}

static void wait_for(wave *at, int32_t spin_looks)
{
    uint32_t tasks = (uint32_t)at->tasks, done = 0;
    for (int32_t looks = 0; looks <= spin_looks; looks++) {
        if (atomic_load_explicit(&at->done, memory_order_acquire) == tasks)
            return;
        mst_pause();
    }
    /* either who finishes the wave sees this sleeper, or this thread sees the wave finished */
    atomic_fetch_add(&at->sleepers, 1);
    while ((done = atomic_load(&at->done)) != tasks)
        mst_sleep_on(&at->done, done);
}

/* Tells the wave that this member has finished so many of its tasks. */
static void tell(wave *at, int32_t finished)
{
    uint32_t done = atomic_fetch_add(&at->done, (uint32_t)finished) + (uint32_t)finished;
    if (done == (uint32_t)at->tasks && atomic_load(&at->sleepers) > 0)
        mst_wake_on(&at->done, INT32_MAX);
}

static void member(void *context, int32_t index)
{
    cpu_graph *g = context;
    (void)index;
    bool first = !atomic_exchange_explicit(&g->begun, true, memory_order_relaxed);
    for (int64_t w = 0; w < g->num_waves; w++) {
        wave *at = &g->waves[w];
        if (atomic_load_explicit(&g->failed, memory_order_relaxed))
            return;
        int32_t finished = 0;
        while (first || at->tasks > 1) {
            int32_t task = atomic_fetch_add_explicit(&at->next, 1, memory_order_relaxed);
            if (task >= at->tasks)
                break;
            run_task(g, at, task);
            finished++;
        }
        if (finished > 0)
            tell(at, finished);
        wait_for(at, g->spin_looks);
    }
}

/* A team of one: no counter is shared, so none is kept. */
static void alone(void *context, int32_t index)
{
    cpu_graph *g = context;
    (void)index;
    for (int64_t i = 0; i < g->num_launches; i++) {
        mst_launch *launch = &g->launches[i];
        for (int32_t task = 0; task < launch->tasks; task++)
            launch->kind->task(launch, task);
        if (atomic_load_explicit(&launch->bad, memory_order_relaxed)) {
            atomic_store_explicit(&g->failed, true, memory_order_relaxed);
            return;
        }
    }
}

static mstar_status explain(const cpu_graph *g)
{
    for (int64_t i = 0; i < g->num_launches; i++) {
        if (atomic_load_explicit(&g->launches[i].bad, memory_order_relaxed))
            return g->launches[i].kind->explain(&g->launches[i]);
    }
    return mst_fail(MSTAR_INTERNAL, "a replay failed without a launch that says why");
}

mstar_status mst_cpu_graph_replay(mstar_graph *graph, mstar_stream *stream)
{
    cpu_graph *g = graph_of(graph);
    int32_t team = 1;
    MST_TRY(prepare(g, stream->max_threads, &team));
    mst_parallel_for(stream->device->pool, team, team, team > 1 ? member : alone, g);
    return atomic_load_explicit(&g->failed, memory_order_relaxed) ? explain(g) : MSTAR_OK;
}
