/*
 * stages.c - where an encoder's time goes, kept only when the caller asked for it at load.
 *
 * Each worker adds to its own counters, so nothing is shared while texts are embedded. On a
 * processor a stage is what the clock says. A device with memory of its own works behind its queue:
 * there events go between the stages of a batch, and are read when its results have come.
 */
#include <string.h>
#include <time.h>

#include "model/encoder.h"

static const char *const stage_names[] = {
#define MST_NAME(NAME, name) name,
    MSTAR_STAGE_LIST(MST_NAME)
#undef MST_NAME
};

typedef struct span {
    mstar_stage stage;
    int64_t begin, end; /* indices of events */
} span;

struct mst_stage_marks {
    mstar_device *device;
    mstar_stream *stream; /* of the batch that runs; NULL: the clock counts */
    mstar_event **events; /* made once, recorded anew in each batch */
    int64_t made, used, capacity;
    span *spans;
    int64_t num_spans, spans_capacity;
    mstar_status status; /* the first failure of the batch; its text is this thread's last */
};

const char *mstar_stage_name(mstar_stage stage)
{
    return (unsigned)stage < MSTAR_NUM_STAGES ? stage_names[stage] : "unknown";
}

/* ---- events ---------------------------------------------------------------------------------- */

mstar_status mst_stages_open(mstar_device *device, mst_worker *worker)
{
    void *memory;
    worker->timing = true;
    if (mst_place_is_host(device))
        return MSTAR_OK;
    MST_TRY(mst_alloc_zero(sizeof *worker->marks, "stages of a worker", &memory));
    worker->marks = memory;
    worker->marks->device = device;
    return MSTAR_OK;
}

void mst_stages_close(mst_worker *worker)
{
    mst_stage_marks *marks = worker->marks;
    if (marks == NULL)
        return;
    for (int64_t i = 0; i < marks->made; i++)
        mstar_event_destroy(marks->events[i]);
    mst_free((void *)marks->events);
    mst_free(marks->spans);
    mst_free(marks);
    worker->marks = NULL;
}

static mstar_status next_event(mst_stage_marks *marks)
{
    if (marks->used == marks->made) {
        void *events = (void *)marks->events;
        mstar_status status = mst_grow(&events, &marks->capacity, marks->made + 1,
                                       sizeof *marks->events, "events of stages");
        marks->events = events;
        MST_TRY(status);
        MST_TRY(mstar_event_create(marks->device, &marks->events[marks->made]));
        marks->made++;
    }
    MST_TRY(mstar_event_record(marks->events[marks->used], marks->stream));
    marks->used++;
    return MSTAR_OK;
}

static void note(mst_stage_marks *marks, mstar_status status)
{
    if (marks->status == MSTAR_OK)
        marks->status = status;
}

/* Which event stands here; after a failure any. */
static int64_t mark(mst_stage_marks *marks)
{
    if (marks->status == MSTAR_OK)
        note(marks, next_event(marks));
    return marks->used - 1;
}

static void add_span(mst_stage_marks *marks, span added)
{
    void *spans = marks->spans;
    if (marks->status != MSTAR_OK)
        return;
    note(marks, mst_grow(&spans, &marks->spans_capacity, marks->num_spans + 1, sizeof added,
                         "times of stages"));
    marks->spans = spans;
    if (marks->status == MSTAR_OK)
        marks->spans[marks->num_spans++] = added;
}

void mst_stages_begin(mst_worker *worker, mstar_stream *stream)
{
    if (worker->marks == NULL)
        return;
    worker->marks->stream = stream;
    worker->marks->used = worker->marks->num_spans = 0;
    worker->marks->status = MSTAR_OK;
}

static mstar_status read_spans(mst_worker *worker)
{
    const mst_stage_marks *marks = worker->marks;
    if (marks->used > 0)
        MST_TRY(mstar_event_synchronize(marks->events[marks->used - 1]));
    for (int64_t i = 0; i < marks->num_spans; i++) {
        const span *s = &marks->spans[i];
        int64_t ns;
        MST_TRY(mstar_event_elapsed_ns(marks->events[s->begin], marks->events[s->end], &ns));
        worker->stage_ns[s->stage] += ns;
    }
    return MSTAR_OK;
}

mstar_status mst_stages_end(mst_worker *worker, mstar_status status)
{
    mst_stage_marks *marks = worker->marks;
    if (marks == NULL)
        return status;
    marks->stream = NULL;
    if (status != MSTAR_OK || marks->status != MSTAR_OK)
        return status != MSTAR_OK ? status : marks->status;
    return read_spans(worker);
}

/* ---- stages ---------------------------------------------------------------------------------- */

int64_t mst_stage_start(const mst_worker *worker)
{
    if (!worker->timing)
        return 0;
    if (worker->marks != NULL && worker->marks->stream != NULL)
        return mark(worker->marks);
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t mst_stage_end(mst_worker *worker, mstar_stage stage, int64_t start)
{
    int64_t now = mst_stage_start(worker);
    if (worker->marks != NULL && worker->marks->stream != NULL)
        add_span(worker->marks, (span){stage, start, now});
    else
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
