/*
 * stages.c - where an encoder's time goes, kept only when the caller asked for it at load.
 *
 * Each worker adds to its own counters, so nothing is shared while texts are embedded.
 */
#include <string.h>
#include <time.h>

#include "model/encoder.h"

static const char *const stage_names[] = {
#define MST_NAME(NAME, name) name,
    MSTAR_STAGE_LIST(MST_NAME)
#undef MST_NAME
};

const char *mstar_stage_name(mstar_stage stage)
{
    return (unsigned)stage < MSTAR_NUM_STAGES ? stage_names[stage] : "unknown";
}

int64_t mst_stage_start(const mst_worker *worker)
{
    if (!worker->timing)
        return 0;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t mst_stage_end(mst_worker *worker, mstar_stage stage, int64_t start)
{
    int64_t now = mst_stage_start(worker);
    worker->stage_ns[stage] += now - start;
    return now;
}

mstar_status mstar_encoder_query_times(const mstar_encoder *encoder, mstar_encoder_times *times)
{
    MST_TRY(mst_check_not_null("encoder", encoder));
    if (!encoder->workers[0].timing)
        return mst_fail(MSTAR_OUT_OF_ORDER,
                        "times: the encoder was loaded with desc.timing 0; it must be 1");
    mstar_encoder_times full;
    memset(&full, 0, sizeof full);
    full.num_stages = MSTAR_NUM_STAGES;
    for (int32_t i = 0; i < encoder->num_workers; i++) {
        for (int stage = 0; stage < MSTAR_NUM_STAGES; stage++)
            full.ns[stage] += encoder->workers[i].stage_ns[stage];
    }
    return mst_info_write("times", &full, sizeof full, times);
}
