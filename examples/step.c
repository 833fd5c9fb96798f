/*
 * step.c - the step protocol with two resources: pages of one's own, and a manager of ragged
 * attention.
 *
 * Three requests are served step by step until the pages run short, which is not an error: the
 * step is not ready, and would be once a request has given its pages back.
 */
#include <mstar.h>
#include <stdio.h>
#include <string.h>

#define TRY(call)                    \
    do {                             \
        mstar_status status_ = call; \
        if (status_ != MSTAR_OK)     \
            return status_;          \
    } while (0)

enum { HEADS = 2, HEAD_DIM = 8, MAX_TOKENS = 64, REQUESTS = 3 };

/* ---- a resource: so many tokens may still be stored ---------------------------------------------
 */

typedef struct pages {
    int64_t free;
} pages;

static mstar_status admit(void *self, const mstar_step_context *context,
                          const mstar_resource_step *step, mstar_admission *admission)
{
    int64_t wanted = 0;
    (void)context;
    for (int64_t i = 0; i < step->num_segments; i++)
        wanted += step->segments[i].span;
    if (wanted > ((pages *)self)->free) {
        admission->outcome = MSTAR_NOT_READY;
        snprintf(admission->reason, sizeof admission->reason, "%lld tokens short",
                 (long long)(wanted - ((pages *)self)->free));
    }
    return MSTAR_OK;
}

static mstar_status commit(void *self, const mstar_step_context *context,
                           const mstar_resource_step *step)
{
    (void)context;
    for (int64_t i = 0; i < step->num_segments; i++)
        ((pages *)self)->free -= step->segments[i].span;
    return MSTAR_OK;
}

static mstar_status make_set(pages *own, mstar_ragged_manager *attention, mstar_resources **set)
{
    static const mstar_resource_hooks hooks = {
        .struct_size = sizeof hooks, .admit = admit, .commit = commit};
    mstar_resource list[2] = {{.key = "pages", .hooks = &hooks, .self = own}};
    TRY(mstar_ragged_manager_get_resource(attention, "attention", &list[1]));
    return mstar_resources_create(list, 2, set);
}

/* ---- a model: one attention over its own inputs -------------------------------------------------
 */

static float rows[MAX_TOKENS][HEADS][HEAD_DIM], out[MAX_TOKENS][HEADS][HEAD_DIM];

static mstar_status declare(mstar_step *step, const int64_t *requests, const int32_t *spans)
{
    mstar_step_clear(step);
    TRY(mstar_step_add_resource(step, "pages"));
    TRY(mstar_step_add_resource(step, "attention"));
    TRY(mstar_step_set_causal(step, "attention", 0));
    for (int i = 0; i < REQUESTS; i++)
        TRY(mstar_step_add_segment(step, NULL, requests[i], NULL, spans[i]));
    return MSTAR_OK;
}

static mstar_status forward(mstar_ragged_manager *attention, mstar_stream *stream)
{
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    TRY(mstar_ragged_manager_query_wrapper(attention, NULL, &info));
    const int64_t shape[] = {info.num_tokens, HEADS, HEAD_DIM};
    const mstar_tensor x = mstar_tensor_make(rows, MSTAR_DTYPE_F32, 3, shape);
    const mstar_tensor o = mstar_tensor_make(out, MSTAR_DTYPE_F32, 3, shape);
    return mstar_ragged_manager_run(attention, stream, NULL, &x, &x, &x, &o, NULL);
}

/* ---- the engine's part --------------------------------------------------------------------------
 */

static mstar_status serve(mstar_resources *set, mstar_ragged_manager *attention, mstar_step *step,
                          mstar_stream *stream, int *served)
{
    static const int64_t requests[REQUESTS] = {0, 1, 2};
    static const int32_t spans[REQUESTS] = {5, 9, 2};
    mstar_step_context context;
    mstar_step_context_init(&context);
    context.walk = "encode";
    context.requests = requests;
    context.num_requests = REQUESTS;
    context.stream = stream;
    for (;;) {
        mstar_admission admission = {.struct_size = sizeof admission};
        TRY(declare(step, requests, spans));
        TRY(mstar_resources_admit(set, &context, step, &admission));
        if (admission.outcome != MSTAR_ADMITTED) {
            printf("step %d is not ready: %s: %s\n", *served, admission.resource, admission.reason);
            return MSTAR_OK;
        }
        TRY(mstar_resources_plan(set, &context, step));
        TRY(forward(attention, stream));
        TRY(mstar_resources_commit(set, &context, step));
        TRY(mstar_resources_publish(set, &context, step));
        printf("step %d: %d requests\n", (*served)++, REQUESTS);
    }
}

int main(void)
{
    pages own = {40};
    int served = 0;
    mstar_device *device = NULL;
    mstar_stream *stream = NULL;
    mstar_ragged_manager *attention = NULL;
    mstar_resources *set = NULL;
    mstar_step *step = NULL;
    mstar_ragged_manager_desc desc;
    mstar_ragged_manager_desc_init(&desc);
    desc.num_qo_heads = HEADS;
    desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    desc.dtype = MSTAR_DTYPE_F32;

    mstar_status status = mstar_device_open("cpu", NULL, &device);
    if (status == MSTAR_OK)
        status = mstar_stream_create(device, -1, &stream);
    if (status == MSTAR_OK)
        status = mstar_ragged_manager_create(device, &desc, &attention);
    if (status == MSTAR_OK)
        status = make_set(&own, attention, &set);
    if (status == MSTAR_OK)
        status = mstar_step_create(&step);
    if (status == MSTAR_OK)
        status = serve(set, attention, step, stream, &served);
    if (status != MSTAR_OK)
        fprintf(stderr, "step: %s: %s\n", mstar_status_text(status), mstar_last_error());
    mstar_step_destroy(step);
    mstar_resources_destroy(set);
    mstar_ragged_manager_destroy(attention);
    mstar_stream_destroy(stream);
    if (device != NULL && mstar_device_close(device) != MSTAR_OK)
        return 1;
    return status == MSTAR_OK && served == 2 && own.free == 8 ? 0 : 1;
}
