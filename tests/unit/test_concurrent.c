/*
 * test_concurrent.c - different objects on different threads that share a device: planning ahead on
 * one thread while another runs, and two encoders at once. Bits must be those of a thread alone;
 * the thread sanitizer looks for races.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support_encoder.h"

enum { HEADS = 4, HEAD_DIM = 16, WIDTH = HEADS * HEAD_DIM, TOKENS = 120, STEPS = 40 };

/* ---- planning ahead -------------------------------------------------------------------------- */

/*
 * Two wrappers in graph mode take turns: while this thread runs the one planned for step i, another
 * thread plans the other for step i + 1, as an engine does that plans ahead of the device.
 */
typedef struct planner {
    mstar_ragged_prefill *wrapper;
    int step;
    mstar_status status;
} planner;

/* The layout of a step: two segments cut at another place each time. */
static void layout(int step, int32_t offsets[3])
{
    offsets[0] = 0;
    offsets[1] = 1 + step * 37 % (TOKENS - 2);
    offsets[2] = TOKENS;
}

static void *plan_ahead(void *context)
{
    planner *p = context;
    int32_t offsets[3];
    layout(p->step, offsets);
    p->status = mstar_ragged_prefill_plan(p->wrapper, NULL, offsets, 2, 1);
    return NULL;
}

static mstar_ragged_prefill *make_wrapper(mstar_device *device, int graph)
{
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill *wrapper = NULL;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    desc.q_data_type = MSTAR_DTYPE_F32;
    desc.accelerator_graph = graph;
    desc.max_num_segments = graph ? 8 : -1;
    desc.max_total_tokens = graph ? TOKENS : -1;
    FOLDER_OK(mstar_ragged_prefill_create(device, &desc, NULL, 0, &wrapper));
    return wrapper;
}

static void run(mstar_ragged_prefill *wrapper, float *values, float *out)
{
    const int64_t shape[3] = {TOKENS, HEADS, HEAD_DIM};
    mstar_tensor x = mstar_tensor_make(values, MSTAR_DTYPE_F32, 3, shape);
    mstar_tensor o = mstar_tensor_make(out, MSTAR_DTYPE_F32, 3, shape);
    FOLDER_OK(mstar_ragged_prefill_run(wrapper, NULL, &x, &x, &x, &o, NULL));
}

static void test_planning_ahead(void **state)
{
    encoder_fixture *f = *state;
    static float values[TOKENS * WIDTH], out[TOKENS * WIDTH], want[TOKENS * WIDTH];
    test_random random = {3};
    for (int i = 0; i < TOKENS * WIDTH; i++)
        values[i] = (float)test_random_normal(&random);
    mstar_ragged_prefill *alone = make_wrapper(f->device, 0);
    for (int graph = 0; graph <= 1; graph++) {
        mstar_ragged_prefill *turns[2] = {make_wrapper(f->device, graph),
                                          make_wrapper(f->device, graph)};
        planner next = {turns[0], 0, MSTAR_OK};
        (void)plan_ahead(&next);
        for (int step = 0; step < STEPS; step++) {
            pthread_t thread;
            int32_t offsets[3];
            FOLDER_OK(next.status);
            next = (planner){turns[(step + 1) % 2], step + 1, MSTAR_INTERNAL};
            assert_int_equal(pthread_create(&thread, NULL, plan_ahead, &next), 0);
            memset(out, 0xff, sizeof out);
            run(turns[step % 2], values, out);
            assert_int_equal(pthread_join(thread, NULL), 0);
            layout(step, offsets);
            FOLDER_OK(mstar_ragged_prefill_plan(alone, NULL, offsets, 2, 1));
            run(alone, values, want);
            assert_memory_equal(out, want, sizeof want);
        }
        mstar_ragged_prefill_destroy(turns[0]);
        mstar_ragged_prefill_destroy(turns[1]);
    }
    mstar_ragged_prefill_destroy(alone);
}

/* ---- two encoders ---------------------------------------------------------------------------- */

typedef struct embedder {
    mstar_device *device;
    const char *folder;
    const text_set *set;
    const float *want;
    bool same;
} embedder;

/* Loads, embeds and releases: loading on one thread meets embedding on the other. */
static void *embed_often(void *context)
{
    embedder *e = context;
    const size_t bytes = NUM_TEXTS * DIMS * sizeof(float);
    float *got = malloc(bytes);
    e->same = got != NULL;
    for (int i = 0; i < 6 && e->same; i++) {
        mstar_encoder *encoder = NULL;
        memset(got, 0xff, bytes);
        e->same =
            mstar_encoder_load(e->device, e->folder, NULL, &encoder) == MSTAR_OK &&
            mstar_encoder_embed(encoder, e->set->texts, NUM_TEXTS, got, DIMS, NULL) == MSTAR_OK &&
            memcmp(got, e->want, bytes) == 0;
        mstar_encoder_release(encoder);
    }
    free(got);
    return NULL;
}

static void test_two_encoders(void **state)
{
    encoder_fixture *f = *state;
    text_set *set = encoder_texts(21);
    mstar_encoder *encoder = encoder_load(f->device, f->folder, NULL);
    float *want = encoder_embed(encoder, set->texts, NUM_TEXTS);
    mstar_encoder_release(encoder);
    embedder embedders[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        embedders[i] = (embedder){f->device, f->folder, set, want, false};
        assert_int_equal(pthread_create(&threads[i], NULL, embed_often, &embedders[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(embedders[i].same);
    }
    free(want);
    free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENCODER_TEST(test_planning_ahead),
        ENCODER_TEST(test_two_encoders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
