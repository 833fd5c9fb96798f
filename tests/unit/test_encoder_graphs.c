/* test_encoder_graphs.c - a text encoder through captured graphs: the bits of eager, every batch
 * accounted for, buckets as given, and nothing lost when memory runs out. */
#include "support_card.h"
#include "support_encoder.h"

#include <stdlib.h>
#include <string.h>

/* ---- buckets: pure --------------------------------------------------------------------------- */

static void check_buckets(int64_t most, const int64_t *given, int64_t num_given,
                          const int64_t *want, int64_t num_want)
{
    int64_t tokens[64];
    memset(tokens, 0xff, sizeof tokens);
    assert_int_equal(mst_graph_buckets(most, given, num_given, tokens, 64), num_want);
    assert_memory_equal(tokens, want, (size_t)num_want * sizeof *want);
    assert_int_equal(tokens[num_want], -1);
}

static void test_buckets(void **state)
{
    (void)state;
    check_buckets(64, NULL, 0, (int64_t[]){16, 20, 24, 28, 32, 40, 48, 56, 64}, 9);
    check_buckets(70, NULL, 0, (int64_t[]){16, 20, 24, 28, 32, 40, 48, 56, 64, 70}, 10);
    check_buckets(16, NULL, 0, (int64_t[]){16}, 1);
    check_buckets(3, NULL, 0, (int64_t[]){3}, 1);
    check_buckets(50, (int64_t[]){40, 7, 40, 900}, 4, (int64_t[]){7, 40, 50}, 3);
    check_buckets(40, (int64_t[]){40, 7}, 2, (int64_t[]){7, 40}, 2);
    int64_t few[2];
    assert_int_equal(mst_graph_buckets(64, NULL, 0, few, 2), 9);
    assert_int_equal(few[1], 20);
    /* at most 1 row in 5 is spare from the smallest bucket on, 1 in 9 at the top of an octave */
    int64_t tokens[64], count = mst_graph_buckets(1024, NULL, 0, tokens, 64);
    for (int64_t i = 1; i < count; i++)
        assert_true(5 * (tokens[i] - tokens[i - 1] - 1) < tokens[i]);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static mstar_encoder *load(mstar_device *device, const char *folder, mstar_dtype dtype,
                           int32_t batch_tokens, int32_t graphs)
{
    mstar_encoder_desc desc = encoder_defaults();
    desc.dtype = dtype;
    desc.max_batch_tokens = batch_tokens;
    desc.graphs = graphs;
    return encoder_load(device, folder, &desc);
}

static mstar_graph_runner_info query(const mstar_encoder *encoder)
{
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    FOLDER_OK(mstar_encoder_query_graphs(encoder, &info));
    return info;
}

/* Few texts (all threads share a batch) and many (a batch a worker), in f32 and bf16. */
static void test_bits(void **state)
{
    const encoder_fixture *fixture = *state;
    text_set *set = encoder_texts(7);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        mstar_dtype dtype = bf16 ? MSTAR_DTYPE_BF16 : MSTAR_DTYPE_F32;
        mstar_encoder *eager = load(fixture->device, fixture->folder, dtype, -1, 0);
        static const int32_t batches[] = {-1, 40, 201};
        for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
            mstar_encoder *graphs = load(fixture->device, fixture->folder, dtype, batches[i], 1);
            for (int64_t count = 1; count <= NUM_TEXTS; count = count * 3 + 1) {
                size_t bytes = (size_t)count * DIMS * sizeof(float);
                float *want = encoder_embed(eager, set->texts, count);
                float *got = encoder_embed(graphs, set->texts, count);
                assert_memory_equal(got, want, bytes);
                free(got);
                got = encoder_embed(graphs, set->texts, count); /* and again */
                assert_memory_equal(got, want, bytes);
                free(got);
                free(want);
            }
            mstar_graph_runner_info info = query(graphs);
            assert_true(info.replays > 0);
            assert_int_equal(info.num_captured, info.num_buckets);
            mstar_encoder_release(graphs);
        }
        mstar_encoder_release(eager);
    }
    free(set);
}

/* Ids: hidden states too, segments of one token, and more segments than a bucket takes. */
static void test_ids(void **state)
{
    const encoder_fixture *fixture = *state;
    enum { SEGMENTS = 90, TOKENS = 4 * SEGMENTS };
    mstar_encoder *eager = load(fixture->device, fixture->folder, MSTAR_DTYPE_F32, -1, 0);
    mstar_encoder *graphs = load(fixture->device, fixture->folder, MSTAR_DTYPE_F32, 64, 1);
    test_random random = {8};
    int32_t ids[TOKENS], offsets[SEGMENTS + 1] = {0};
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)test_random_between(&random, 0, TINY_VOCAB - 1);
    int64_t width = encoder_query(eager).hidden;
    float *want = malloc((size_t)TOKENS * (size_t)width * sizeof *want);
    float *got = malloc((size_t)TOKENS * (size_t)width * sizeof *got);
    assert_true(want != NULL && got != NULL);
    for (int most = 1; most <= 4; most++) {
        for (int i = 0; i < SEGMENTS; i++)
            offsets[i + 1] = offsets[i] + (int32_t)test_random_between(&random, 0, most);
        FOLDER_OK(mstar_encoder_hidden(eager, ids, NULL, offsets, SEGMENTS, want, width));
        FOLDER_OK(mstar_encoder_hidden(graphs, ids, NULL, offsets, SEGMENTS, got, width));
        assert_memory_equal(got, want, (size_t)offsets[SEGMENTS] * (size_t)width * sizeof *got);
    }
    mstar_graph_runner_info info = query(graphs);
    /* 16 requests fit a bucket of 64 tokens: batches of one-token segments have more */
    assert_true(info.misses[MSTAR_GRAPH_MISS_BATCH_SIZE] > 0);
    assert_true(info.replays > 0);
    free(got);
    free(want);
    mstar_encoder_release(graphs);
    mstar_encoder_release(eager);
}

/* ---- what is told ---------------------------------------------------------------------------- */

static void test_accounts(void **state)
{
    const encoder_fixture *fixture = *state;
    static const int64_t given[] = {8, 20};
    mstar_encoder_desc desc = encoder_defaults();
    desc.graphs = 1;
    desc.max_batch_tokens = 40;
    desc.graph_tokens = given;
    desc.num_graph_tokens = 2;
    mstar_encoder *encoder = encoder_load(fixture->device, fixture->folder, &desc);
    text_set *set = encoder_texts(9);
    mstar_text_result results[NUM_TEXTS];
    float *vectors = malloc(NUM_TEXTS * DIMS * sizeof *vectors);
    assert_non_null(vectors);
    FOLDER_OK(mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, vectors, DIMS, results));
    int64_t tokens = 0, replays = 0, bucket_tokens = 0;
    for (int i = 0; i < NUM_TEXTS; i++)
        tokens += results[i].tokens;
    mstar_graph_runner_info info = query(encoder);
    assert_int_equal(info.replayed_tokens + info.eager_tokens, tokens);
    assert_int_equal(info.misses[MSTAR_GRAPH_MISS_NONE], info.replays);
    for (int32_t worker = 0; worker < encoder_query(encoder).num_workers; worker++) {
        static const int64_t sizes[] = {40, 20, 8};
        for (int64_t i = 0; i < 3; i++) {
            mstar_runner_bucket_info bucket = {.struct_size = sizeof bucket};
            FOLDER_OK(mstar_encoder_query_graph_bucket(encoder, worker, i, &bucket));
            assert_int_equal(bucket.size.num_tokens, sizes[i]);
            assert_int_equal(bucket.state, MSTAR_BUCKET_CAPTURED);
            replays += bucket.replays;
            bucket_tokens += bucket.replays * bucket.size.num_tokens;
        }
        mstar_runner_bucket_info bucket = {.struct_size = sizeof bucket};
        FOLDER_FAILS(mstar_encoder_query_graph_bucket(encoder, worker, 3, &bucket), MSTAR_NOT_FOUND,
                     "3 buckets");
    }
    assert_int_equal(replays, info.replays);
    assert_int_equal(bucket_tokens, info.replayed_tokens + info.padding_tokens);
    assert_true(encoder_query(encoder).arena_bytes > info.graph_bytes + info.host_bytes);
    free(vectors);
    free(set);
    mstar_encoder_release(encoder);
}

static void test_refused(void **state)
{
    const encoder_fixture *fixture = *state;
    mstar_encoder *encoder = NULL;
    mstar_encoder_desc desc = encoder_defaults();
    desc.graphs = 2;
    FOLDER_FAILS(mstar_encoder_load(fixture->device, fixture->folder, &desc, &encoder),
                 MSTAR_INVALID_ARGUMENT, "desc.graphs is 2");
    desc.graphs = desc.timing = 1;
    FOLDER_FAILS(mstar_encoder_load(fixture->device, fixture->folder, &desc, &encoder),
                 MSTAR_INVALID_ARGUMENT, "desc.timing");
    desc.timing = 0;
    desc.num_graph_tokens = 1;
    FOLDER_FAILS(mstar_encoder_load(fixture->device, fixture->folder, &desc, &encoder),
                 MSTAR_INVALID_ARGUMENT, "desc.graph_tokens is NULL");
    desc.graph_tokens = (int64_t[]){0};
    FOLDER_FAILS(mstar_encoder_load(fixture->device, fixture->folder, &desc, &encoder),
                 MSTAR_INVALID_ARGUMENT, "desc.graph_tokens is 0");
    assert_null(encoder);
    encoder = load(fixture->device, fixture->folder, MSTAR_DTYPE_F32, -1, 0);
    mstar_graph_runner_info info = {.struct_size = sizeof info};
    mstar_runner_bucket_info bucket = {.struct_size = sizeof bucket};
    FOLDER_FAILS(mstar_encoder_query_graphs(encoder, &info), MSTAR_OUT_OF_ORDER, "desc.graphs");
    FOLDER_FAILS(mstar_encoder_query_graph_bucket(encoder, 0, 0, &bucket), MSTAR_OUT_OF_ORDER,
                 "desc.graphs");
    FOLDER_FAILS(mstar_encoder_query_graph_bucket(encoder, 2, 0, &bucket), MSTAR_INVALID_ARGUMENT,
                 "worker is 2");
    mstar_encoder_release(encoder);
}

/* ---- failed allocations ---------------------------------------------------------------------- */

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(const uint64_t *)context;
}

/* Every 17th allocation of a load fails once: refused, or a bucket dropped and the vectors right.
 */
static void test_alloc_faults(void **state)
{
    const encoder_fixture *fixture = *state;
    text_set *set = encoder_texts(10);
    mstar_encoder *encoder = load(fixture->device, fixture->folder, MSTAR_DTYPE_F32, 64, 0);
    float *want = encoder_embed(encoder, set->texts, 5);
    mstar_encoder_release(encoder);
    mstar_encoder_desc desc = encoder_defaults();
    desc.max_batch_tokens = 64;
    desc.graphs = 1;
    bool through = false;
    int dropped = 0;
    for (uint64_t number = 1; !through; number += 17) {
        uint64_t before = folder_live();
        mstar_set_alloc_fault(fail_at, &number);
        mstar_status status = mstar_encoder_load(fixture->device, fixture->folder, &desc, &encoder);
        mstar_memory_info memory = {.struct_size = sizeof memory};
        FOLDER_OK(mstar_memory_query(&memory));
        mstar_set_alloc_fault(NULL, NULL);
        if (status != MSTAR_OK) {
            assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
            assert_int_equal(folder_live(), before);
            continue;
        }
        mstar_graph_runner_info info = query(encoder);
        dropped += info.num_failed > 0;
        through = info.num_failed == 0;
        float *got = encoder_embed(encoder, set->texts, 5);
        assert_memory_equal(got, want, 5 * DIMS * sizeof *got);
        free(got);
        mstar_encoder_release(encoder);
        assert_int_equal(folder_live(), before);
    }
    assert_true(dropped > 0);
    free(want);
    free(set);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets), ENCODER_TEST(test_bits),
        ENCODER_TEST(test_ids),         ENCODER_TEST(test_accounts),
        ENCODER_TEST(test_refused),     ENCODER_TEST(test_alloc_faults)};
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
