/*
 * specialise.c - a captured graph specialised for its bucket, as its config asks.
 */
#include <string.h>

#include "graph/runner.h"

/* The clock's answer; tests put their own in its place. */
static int64_t measure_time(void *user, int64_t node, int32_t candidate, void (*run)(void *context),
                            void *context)
{
    (void)user;
    (void)node;
    (void)candidate;
    int64_t start = mst_runner_now();
    run(context);
    return mst_runner_now() - start;
}

mstar_status mst_specialise(mstar_graph *graph, mstar_stream *stream, const char *mode,
                            const mstar_graph *like, const mst_tuning *tuning,
                            mst_specialised *made)
{
    *made = (mst_specialised){.tuning_ns = 0};
    mstar_status (*compile)(mstar_graph *, mstar_stream *, const mst_compile *, mst_compiled *) =
        graph->device->backend->graph_compile;
    if (mode == NULL || compile == NULL)
        return MSTAR_OK;
    const mst_compile how = {
        .by_timing = strcmp(mode, "default") != 0,
        .like = like,
        .measure = tuning->measure != NULL ? tuning->measure : measure_time,
        .user = tuning->user,
    };
    int64_t start = mst_runner_now();
    mstar_status status = compile(graph, stream, &how, &made->counts);
    made->tuning_ns = mst_runner_now() - start;
    return status == MSTAR_OK ? MSTAR_OK : mst_fail_in(status, "compile_mode \"%s\"", mode);
}
