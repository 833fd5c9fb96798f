/*
 * test_cuda_encoder.c - the text encoder on the CUDA backend, over the mock or on a card
 * (`test_cuda_encoder cuda:0`): its vectors against a processor's, the bits that never change,
 * graphs, and what a layer launches.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_card.h"
#include "support_encoder.h"
#include "support_mock_cuda.h"

static char *folder;
static mstar_device *gpu, *cpu;
static text_set *texts;
enum { COUNT = 20 };

static int set_up(void **state)
{
    (void)state;
    folder = folder_tiny();
    gpu = card_open_threads(3);
    cpu = encoder_device(1);
    texts = encoder_texts(3);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    card_close(gpu);
    CHECK_OK(mstar_device_close(cpu));
    folder_remove(folder);
    free(texts);
    assert_int_equal(check_live_allocations(), 0);
    return 0;
}

/* A unit vector after so many layers, each of them some ten roundings to the dtype, or sums of
 * hidden and intermediate terms in f32. */
static double bound_of(const mstar_encoder *encoder)
{
    mstar_encoder_info info = encoder_query(encoder);
    double u = info.dtype == MSTAR_DTYPE_F32 ? 2.0 * check_gamma(info.hidden + info.intermediate)
                                             : check_rounding(info.dtype, 1.0);
    return 10.0 * (info.layers + 1) * u;
}

static double distance(const float *a, const float *b)
{
    double sum = 0.0;
    for (int i = 0; i < DIMS; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

static void vectors_are_near_a_processors(void **state)
{
    (void)state;
    mstar_encoder *plain = encoder_load(cpu, folder, NULL);
    float *want = encoder_embed(plain, texts->texts, COUNT);
    const mstar_dtype dtypes[3] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F16};
    for (int d = 0; d < 3; d++) {
        mstar_encoder_desc desc = encoder_defaults();
        desc.dtype = dtypes[d];
        desc.max_batch_tokens = 128;
        mstar_encoder *encoder = encoder_load(gpu, folder, &desc);
        assert_true(encoder_query(encoder).dtype == dtypes[d]);
        double bound = bound_of(encoder), most = 0.0;
        float *got = encoder_embed(encoder, texts->texts, COUNT);
        for (int i = 0; i < COUNT; i++) {
            double apart = distance(got + i * DIMS, want + i * DIMS);
            most = fmax(most, apart);
            if (!(apart <= bound))
                fail_msg("%s text %d: %.3g apart; %.3g is allowed", mstar_dtype_name(dtypes[d]), i,
                         apart, bound);
        }
        assert_true(most > 0.0); /* another order of sums */
        free(got);
        mstar_encoder_release(encoder);
    }
    free(want);
    mstar_encoder_release(plain);
}

/* Alone = in company = replayed = eager. */
static void bits_are_a_texts_own(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        mstar_encoder_desc desc = encoder_defaults();
        desc.dtype = d == 0 ? MSTAR_DTYPE_F32 : MSTAR_DTYPE_BF16;
        desc.max_batch_tokens = 64;
        mstar_encoder *eager = encoder_load(gpu, folder, &desc);
        desc.graphs = 1;
        mstar_encoder *graphs = encoder_load(gpu, folder, &desc);
        float *want = encoder_embed(eager, texts->texts, COUNT);
        float *replayed = encoder_embed(graphs, texts->texts, COUNT);
        for (int i = 0; i < COUNT; i++) {
            float one[DIMS];
            CHECK_OK(mstar_encoder_embed(eager, &texts->texts[i], 1, one, DIMS, NULL));
            assert_memory_equal(one, want + i * DIMS, sizeof one);
            assert_memory_equal(replayed + i * DIMS, want + i * DIMS, sizeof one);
        }
        mstar_graph_runner_info info = {.struct_size = sizeof info};
        CHECK_OK(mstar_encoder_query_graphs(graphs, &info));
        assert_true(info.replays > 0 && info.num_captured == info.num_buckets);
        /* threads tokenise, one worker gives the device its work */
        mstar_runner_bucket_info bucket = {.struct_size = sizeof bucket};
        assert_int_equal(encoder_query(graphs).num_workers, 1);
        CHECK_OK(mstar_encoder_query_graph_bucket(graphs, 0, 0, &bucket));
        CHECK_INVALID(mstar_encoder_query_graph_bucket(graphs, 1, 0, &bucket), "worker is 1");
        free(want);
        free(replayed);
        mstar_encoder_release(eager);
        mstar_encoder_release(graphs);
    }
}

/* Ids, and hidden states, which leave the device in f32 whatever it keeps them in. */
static void hidden_states_are_near(void **state)
{
    (void)state;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7}, offsets[] = {0, 3, 3, 7};
    float want[7][DIMS], got[7][DIMS];
    mstar_encoder *plain = encoder_load(cpu, folder, NULL);
    CHECK_OK(mstar_encoder_hidden(plain, ids, NULL, offsets, 3, &want[0][0], DIMS));
    for (int d = 0; d < 2; d++) {
        mstar_encoder_desc desc = encoder_defaults();
        desc.dtype = d == 0 ? MSTAR_DTYPE_F32 : MSTAR_DTYPE_F16;
        mstar_encoder *encoder = encoder_load(gpu, folder, &desc);
        CHECK_OK(mstar_encoder_hidden(encoder, ids, NULL, offsets, 3, &got[0][0], DIMS));
        for (int t = 0; t < 7; t++) { /* a normed row is sqrt(hidden) long, times its weights */
            double length = 0.0;
            for (int i = 0; i < DIMS; i++)
                length += (double)want[t][i] * (double)want[t][i];
            double apart = distance(got[t], want[t]);
            if (!(apart <= bound_of(encoder) * sqrt(length)))
                fail_msg("row %d: %.3g apart", t, apart);
        }
        mstar_encoder_release(encoder);
    }
    mstar_encoder_release(plain);
}

/* Of a layer: four products, attention, two norms. */
static void launches_of_a_layer(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    float one[DIMS];
    mstar_encoder_desc desc = encoder_defaults();
    desc.dtype = MSTAR_DTYPE_BF16;
    mstar_encoder *encoder = encoder_load(gpu, folder, &desc);
    int64_t before = mock_cuda_now()->launches;
    CHECK_OK(mstar_encoder_embed(encoder, &texts->texts[1], 1, one, DIMS, NULL));
    int64_t layers = encoder_query(encoder).layers;
    /* embedding and its norm before, pooling and what follows it after */
    int64_t rest = mock_cuda_now()->launches - before - 7 * layers;
    assert_true(rest >= 3 && rest < 8);
    mstar_encoder_release(encoder);
}

static void refuses_what_it_cannot(void **state)
{
    (void)state;
    mstar_encoder *encoder = NULL;
    mstar_encoder_desc desc = encoder_defaults();
    desc.dtype = MSTAR_DTYPE_F16;
    CHECK_INVALID(mstar_encoder_load(cpu, folder, &desc, &encoder), "must be f32 or bf16");
    if (card_is_real())
        return;
    mock_cuda_now()->free_bytes = 100;
    CHECK_FAILED(mstar_encoder_load(gpu, folder, NULL, &encoder), MSTAR_OUT_OF_MEMORY,
                 "of device memory were asked for");
    mock_cuda_now()->free_bytes = (int64_t)1 << 34;
    encoder = encoder_load(gpu, folder, NULL);
    mstar_encoder_release(encoder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(vectors_are_near_a_processors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bits_are_a_texts_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hidden_states_are_near, set_up, tear_down),
        cmocka_unit_test_setup_teardown(launches_of_a_layer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_what_it_cannot, set_up, tear_down),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
