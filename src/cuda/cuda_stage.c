/*
 * cuda_stage.c - a ring of pinned stages: what the host writes there goes to the device in stream
 * order, and the host goes on at once.
 *
 * A stage is taken, filled, and sent; an event after the copy says when it may be taken again. The
 * ring begins with MST_CUDA_STAGES and grows when all are in flight, so that a plan never waits for
 * the device. Inside a capture nothing may be allocated: a full ring is then BUSY.
 */
#include "cuda/cuda.h"

#define SMALLEST_STAGE ((size_t)64 << 10)

void mst_cuda_ring_init(mst_cuda_ring *ring)
{
    *ring = (mst_cuda_ring){.num_stages = 0};
    (void)pthread_mutex_init(&ring->lock, NULL);
}

static void free_stage(const mst_cuda_driver *driver, mst_cuda_stage *stage)
{
    if (stage->event != NULL)
        (void)driver->event_destroy(stage->event);
    if (stage->memory != NULL)
        (void)driver->host_free(stage->memory);
    mst_free(stage);
}

void mst_cuda_ring_free(mst_cuda *cuda)
{
    mst_cuda_ring *ring = &cuda->ring;
    for (int64_t i = 0; i < ring->num_stages; i++) {
        if (ring->stages[i]->sent)
            (void)cuda->driver->event_synchronize(ring->stages[i]->event);
        free_stage(cuda->driver, ring->stages[i]);
    }
    mst_free(ring->stages);
    (void)pthread_mutex_destroy(&ring->lock);
}

static bool is_free(const mst_cuda *cuda, const mst_cuda_stage *stage)
{
    return !stage->taken &&
           (!stage->sent || cuda->driver->event_query(stage->event) == MST_CUDA_SUCCESS);
}

/* The next stage whose copy has ended; NULL when all are in use. */
static mst_cuda_stage *find_free(mst_cuda *cuda)
{
    mst_cuda_ring *ring = &cuda->ring;
    for (int64_t i = 0; i < ring->num_stages; i++) {
        int64_t at = (ring->next + i) % ring->num_stages;
        if (is_free(cuda, ring->stages[at])) {
            ring->next = at + 1;
            return ring->stages[at];
        }
    }
    return NULL;
}

static mstar_status add_stage(mst_cuda *cuda, mst_cuda_stage **stage)
{
    mst_cuda_ring *ring = &cuda->ring;
    void *memory = ring->stages;
    MST_TRY(mst_grow(&memory, &ring->capacity, ring->num_stages + 1, sizeof(mst_cuda_stage *),
                     "staging ring"));
    ring->stages = memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_cuda_stage), "stage", &memory));
    mst_cuda_stage *made = memory;
    mstar_status status = mst_cuda_check(
        cuda->driver, cuda->driver->event_create(&made->event, MST_CUDA_EVENT_NO_TIMING),
        "making an event of the staging ring");
    if (status != MSTAR_OK) {
        mst_free(made);
        return status;
    }
    ring->stages[ring->num_stages++] = made;
    *stage = made;
    return MSTAR_OK;
}

static mstar_status grow_stage(mst_cuda *cuda, mst_cuda_stage *stage, size_t bytes)
{
    size_t want = stage->bytes > 0 ? stage->bytes : SMALLEST_STAGE;
    while (want < bytes && want <= SIZE_MAX / 2)
        want *= 2;
    want = want < bytes ? bytes : want;
    void *memory = NULL;
    MST_TRY(mst_cuda_check(cuda->driver, cuda->driver->host_alloc(&memory, want, 0),
                           "taking pinned host memory for a stage"));
    if (stage->memory != NULL)
        (void)cuda->driver->host_free(stage->memory);
    stage->memory = memory;
    stage->bytes = want;
    return MSTAR_OK;
}

static mstar_status take(mst_cuda *cuda, void *stream, size_t bytes, mst_cuda_stage **stage)
{
    bool capturing = false;
    MST_TRY(mst_cuda_is_capturing(cuda, stream, &capturing));
    mst_cuda_stage *found = NULL;
    if (cuda->ring.num_stages >= MST_CUDA_STAGES || capturing)
        found = find_free(cuda);
    if (capturing && (found == NULL || found->bytes < bytes))
        return mst_fail(MSTAR_BUSY,
                        "the staging ring has no free stage of %zu bytes and cannot grow while the "
                        "stream captures",
                        bytes);
    if (found == NULL)
        MST_TRY(add_stage(cuda, &found));
    if (found->bytes < bytes)
        MST_TRY(grow_stage(cuda, found, bytes));
    found->taken = true;
    *stage = found;
    return MSTAR_OK;
}

mstar_status mst_cuda_stage_take(mst_cuda *cuda, void *stream, size_t bytes, mst_cuda_stage **stage)
{
    (void)pthread_mutex_lock(&cuda->ring.lock);
    mstar_status status = take(cuda, stream, bytes, stage);
    (void)pthread_mutex_unlock(&cuda->ring.lock);
    return status;
}

void mst_cuda_stage_drop(mst_cuda *cuda, mst_cuda_stage *stage)
{
    (void)pthread_mutex_lock(&cuda->ring.lock);
    stage->taken = false;
    (void)pthread_mutex_unlock(&cuda->ring.lock);
}

mstar_status mst_cuda_stage_send(mst_cuda *cuda, void *stream, mst_cuda_stage *stage, void *to,
                                 size_t bytes)
{
    const mst_cuda_driver *driver = cuda->driver;
    mstar_status status = mst_cuda_check(
        driver, driver->copy(mst_cuda_address(to), mst_cuda_address(stage->memory), bytes, stream),
        "copying a stage to the device");
    if (status == MSTAR_OK)
        status = mst_cuda_check(driver, driver->event_record(stage->event, stream),
                                "recording the event of a stage");
    (void)pthread_mutex_lock(&cuda->ring.lock);
    stage->sent = stage->sent || status == MSTAR_OK;
    stage->taken = false;
    (void)pthread_mutex_unlock(&cuda->ring.lock);
    return status;
}
