/*
 * cpu_tune.c - choices for the launches of a recording: by rule, as another recording has them, or
 * by timing.
 *
 * Launches of one kind and shape (the layers of a network) are a class and get one choice. Timing
 * goes over the whole recording, launch after launch, once for each candidate: a launch then finds
 * its weights and rows where a replay leaves them, in whatever cache that is, and reads what the
 * launches before it have written. A candidate's time is the least of some passes, over all
 * launches of its class together.
 *
 * Before that, the first launch of each class runs with every candidate on the same input, and a
 * candidate that leaves other bytes than the rule's is out. The kernels promise that there is none.
 */
#include <string.h>

#include "cpu/cpu_launch.h"

/* Passes over the recording for each candidate: one may meet a thread that was called away. */
#define PASSES 3

typedef struct class
{
    int64_t first; /* launch */
    int32_t count; /* of the candidates; 0: nothing to choose */
    mst_choice list[MST_MAX_CHOICES];
    bool kept[MST_MAX_CHOICES];
    int64_t ns[MST_MAX_CHOICES]; /* least of the passes */
    int64_t pass_ns;             /* of the pass under way */
} class;

typedef struct tuner {
    mst_launch *launches;
    int64_t count;
    mstar_stream *stream;
    const mst_compile *how;
    mst_compiled *what;
    int64_t *class_of;
    class *classes;
    int64_t num_classes;
    mst_launch *launch; /* that runs */
    mstar_status status;
} tuner;

/* ---- classes --------------------------------------------------------------------------------- */

static void get_key(const mst_launch *launch, mst_launch_key *key)
{
    memset(key, 0, sizeof *key);
    if (launch->kind->key != NULL)
        launch->kind->key(launch, key);
}

static bool is_alike(const mst_launch *a, const mst_launch *b)
{
    mst_launch_key one, other;
    get_key(a, &one);
    get_key(b, &other);
    return a->kind == b->kind && a->max_rows == b->max_rows &&
           memcmp(&one, &other, sizeof one) == 0;
}

static int64_t find_class(tuner *t, int64_t index)
{
    const mst_launch *launch = &t->launches[index];
    for (int64_t c = 0; c < t->num_classes; c++) {
        if (is_alike(launch, &t->launches[t->classes[c].first]))
            return c;
    }
    class *made = &t->classes[t->num_classes];
    made->first = index;
    if (launch->kind->choices != NULL)
        made->count = launch->kind->choices(launch, t->stream->max_threads, made->list);
    for (int32_t k = 0; k < made->count; k++) {
        made->kept[k] = true;
        made->ns[k] = INT64_MAX;
    }
    return t->num_classes++;
}

/* ---- running --------------------------------------------------------------------------------- */

static void run_task(void *context, int32_t index)
{
    mst_launch *launch = context;
    launch->kind->task(launch, index);
}

static void run(void *context)
{
    tuner *t = context;
    mst_launch *launch = t->launch;
    t->status = mst_launch_prepare(launch, t->stream->max_threads);
    if (t->status != MSTAR_OK)
        return;
    mst_parallel_for(t->stream->device->pool, t->stream->max_threads, launch->tasks, run_task,
                     launch);
    if (atomic_load_explicit(&launch->bad, memory_order_relaxed))
        t->status = launch->kind->explain(launch);
}

/* Runs a launch with one of its class's candidates. */
static mstar_status run_with(tuner *t, int64_t index, int32_t candidate, int64_t *ns)
{
    const class *of = &t->classes[t->class_of[index]];
    t->launch = &t->launches[index];
    if (of->count > 0)
        t->launch->choice = of->list[candidate];
    *ns = t->how->measure(t->how->user, index, candidate, run, t);
    return t->status;
}

/* ---- equal bits ------------------------------------------------------------------------------ */

static size_t written_bytes(const mst_regions *regions)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < regions->count; i++) {
        const mst_region *region = &regions->list[i];
        if (region->written && !region->scratch)
            bytes += (size_t)region->num_rows * region->width;
    }
    return bytes;
}

typedef enum visit { SAVE, RESTORE, COMPARE } visit;

/* What a launch writes, row by row, against a compact copy. False: it differs. */
static bool visit_written(const mst_regions *regions, unsigned char *copy, visit what)
{
    for (int32_t i = 0; i < regions->count; i++) {
        const mst_region *region = &regions->list[i];
        for (int64_t row = 0; row < region->num_rows && region->written && !region->scratch;
             row++, copy += region->width) {
            void *place = (void *)(region->begin + (uintptr_t)row * region->stride);
            if (what == SAVE)
                memcpy(copy, place, region->width);
            else if (what == RESTORE)
                memcpy(place, copy, region->width);
            else if (memcmp(copy, place, region->width) != 0)
                return false;
        }
    }
    return true;
}

static mstar_status try_all(tuner *t, class *of, const mst_regions *regions, unsigned char *before,
                            unsigned char *want)
{
    int64_t ns;
    (void)visit_written(regions, before, SAVE);
    MST_TRY(run_with(t, of->first, 0, &ns));
    (void)visit_written(regions, want, SAVE);
    for (int32_t k = 1; k < of->count; k++) {
        (void)visit_written(regions, before, RESTORE);
        MST_TRY(run_with(t, of->first, k, &ns));
        of->kept[k] = visit_written(regions, want, COMPARE);
        if (of->kept[k])
            continue;
        t->what->dropped++;
        mst_log(MST_LOG_WARNING, "graph: choice %d of %d for a %s of %lld rows gives other bits", k,
                of->count, t->launches[of->first].kind->name,
                (long long)t->launches[of->first].max_rows);
    }
    (void)visit_written(regions, want, RESTORE);
    return MSTAR_OK;
}

static mstar_status check_class(tuner *t, class *of)
{
    mst_regions regions = {.count = 0};
    void *memory;
    size_t bytes, both;
    t->launches[of->first].kind->touch(&t->launches[of->first], &regions);
    bytes = written_bytes(&regions);
    MST_TRY(mst_size_mul(bytes, 2, &both));
    MST_TRY(mst_alloc(both, "results to compare", &memory));
    mstar_status status = try_all(t, of, &regions, memory, (unsigned char *)memory + bytes);
    mst_free(memory);
    return status;
}

static mstar_status check_bits(tuner *t)
{
    int64_t ns;
    for (int64_t i = 0; i < t->count; i++) {
        class *of = &t->classes[t->class_of[i]];
        if (of->first == i && of->count > 1)
            MST_TRY(check_class(t, of));
        else
            MST_TRY(run_with(t, i, 0, &ns));
    }
    return MSTAR_OK;
}

/* ---- times ----------------------------------------------------------------------------------- */

static bool is_tried(const class *of, int32_t candidate)
{
    return candidate < of->count && of->kept[candidate];
}

static mstar_status time_pass(tuner *t, int32_t candidate)
{
    for (int64_t c = 0; c < t->num_classes; c++)
        t->classes[c].pass_ns = 0;
    for (int64_t i = 0; i < t->count; i++) {
        class *of = &t->classes[t->class_of[i]];
        int64_t ns;
        MST_TRY(run_with(t, i, is_tried(of, candidate) ? candidate : 0, &ns));
        of->pass_ns += ns;
    }
    for (int64_t c = 0; c < t->num_classes; c++) {
        class *of = &t->classes[c];
        if (is_tried(of, candidate))
            of->ns[candidate] = mst_min_i64(of->ns[candidate], of->pass_ns);
    }
    return MSTAR_OK;
}

static mstar_status time_all(tuner *t)
{
    int32_t most = 0;
    for (int64_t c = 0; c < t->num_classes; c++)
        most = t->classes[c].count > most ? t->classes[c].count : most;
    for (int pass = 0; pass < PASSES && most > 1; pass++) {
        for (int32_t candidate = 0; candidate < most; candidate++)
            MST_TRY(time_pass(t, candidate));
    }
    return MSTAR_OK;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static void count_choice(tuner *t, int64_t index)
{
    const class *of = &t->classes[t->class_of[index]];
    if (of->count == 0)
        return;
    t->what->specialised++;
    t->what->tuned += !mst_choice_equal(&t->launches[index].choice, &of->list[0]);
}

/* As the other recording has it, where that was made for as many threads; else by rule. */
static void take_over(tuner *t, const mst_launch *like)
{
    for (int64_t i = 0; i < t->count; i++) {
        const class *of = &t->classes[t->class_of[i]];
        bool equal =
            is_alike(&t->launches[i], &like[i]) && like[i].choice.threads == t->stream->max_threads;
        if (of->count > 0)
            t->launches[i].choice = equal ? like[i].choice : of->list[0];
        count_choice(t, i);
    }
}

static void take_best(tuner *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        const class *of = &t->classes[t->class_of[i]];
        if (of->count > 0)
            t->launches[i].choice =
                of->list[t->how->by_timing ? mst_choice_fastest(of->ns, of->kept, of->count) : 0];
        count_choice(t, i);
    }
}

mstar_status mst_cpu_choose(mst_launch *launches, const mst_launch *like, int64_t count,
                            mstar_stream *stream, const mst_compile *how, mst_compiled *what)
{
    *what = (mst_compiled){0, 0, 0};
    tuner t = {.launches = launches, .count = count, .stream = stream, .how = how, .what = what};
    void *memory;
    mstar_status status;
    MST_TRY_GOTO(mst_alloc_array(count, sizeof *t.class_of, "classes of launches", &memory), done);
    t.class_of = memory;
    MST_TRY_GOTO(mst_alloc_array(count, sizeof *t.classes, "classes of launches", &memory), done);
    t.classes = memory;
    for (int64_t i = 0; i < count; i++)
        t.class_of[i] = find_class(&t, i);
    if (how->by_timing && like == NULL) {
        MST_TRY_GOTO(check_bits(&t), done);
        MST_TRY_GOTO(time_all(&t), done);
    }
    if (like != NULL)
        take_over(&t, like);
    else
        take_best(&t);
done:
    mst_free(t.class_of);
    mst_free(t.classes);
    return status;
}
