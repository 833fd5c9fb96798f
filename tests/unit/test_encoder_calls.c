/* test_encoder_calls.c - calls by ids and by texts: rows, poison, truncation, prompts, errors. */
#include "support_card.h"
#include "support_encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ids and hidden states ------------------------------------------------------------------- */

typedef struct id_set {
    int32_t ids[2000], types[2000], offsets[41], skip[40];
} id_set;

static void make_ids(id_set *set)
{
    test_random random = {8};
    set->offsets[0] = 0;
    for (int i = 0; i < 40; i++) {
        int32_t length = i % 6 == 2 ? 0 : (int32_t)test_random_between(&random, 1, 40);
        set->offsets[i + 1] = set->offsets[i] + length;
        set->skip[i] = (int32_t)test_random_between(&random, 0, 3);
    }
    for (int i = 0; i < 2000; i++) {
        set->ids[i] = (int32_t)test_random_between(&random, 0, TINY_VOCAB - 1);
        set->types[i] = (int32_t)test_random_between(&random, 0, 1);
    }
}

#define STRIDE (DIMS + 5)

static void test_ids(void **state)
{
    encoder_fixture *f = *state;
    static id_set set;
    static float vectors[40 * STRIDE + 1], hidden[2000 * STRIDE + 1], one[STRIDE], few[40 * STRIDE];
    mstar_encoder *encoder = encoder_load(f->device, f->folder, NULL);
    make_ids(&set);
    int32_t tokens = set.offsets[40];
    memset(vectors, 0xff, sizeof vectors);
    memset(hidden, 0xff, sizeof hidden);
    FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids, set.types, set.offsets, 40, set.skip,
                                      vectors, STRIDE));
    FOLDER_OK(mstar_encoder_hidden(encoder, set.ids, set.types, set.offsets, 40, hidden, STRIDE));
    for (int i = 0; i < 40; i++) {
        int32_t length = set.offsets[i + 1] - set.offsets[i];
        const int32_t offsets[2] = {0, length};
        float sum = 0;
        for (int j = 0; j < DIMS; j++) {
            assert_true(isfinite(vectors[i * STRIDE + j]));
            sum += vectors[i * STRIDE + j] * vectors[i * STRIDE + j];
        }
        /* empty, or nothing left after the skip: zeros */
        assert_true(length <= set.skip[i] ? sum == 0.0f : fabsf(sum - 1.0f) < 1e-5f);
        FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids + set.offsets[i],
                                          set.types + set.offsets[i], offsets, 1, set.skip + i, one,
                                          DIMS));
        assert_memory_equal(one, vectors + i * STRIDE, DIMS * sizeof(float));
        FOLDER_OK(mstar_encoder_hidden(encoder, set.ids + set.offsets[i],
                                       set.types + set.offsets[i], offsets, 1, few, DIMS));
        for (int32_t j = 0; j < length; j++)
            assert_memory_equal(few + j * DIMS, hidden + (set.offsets[i] + j) * STRIDE,
                                DIMS * sizeof(float));
        for (int j = DIMS; j < STRIDE; j++)
            assert_true(isnan(vectors[i * STRIDE + j]));
    }
    for (int32_t i = 0; i < tokens; i++) {
        for (int j = 0; j < STRIDE; j++)
            assert_int_equal(isnan(hidden[i * STRIDE + j]) != 0, j >= DIMS);
    }
    assert_true(isnan(vectors[40 * STRIDE]));
    assert_true(isnan(hidden[tokens * STRIDE]));
    /* type ids NULL is all 0; skip NULL is none */
    static int32_t zeros[2000];
    static float again[40 * STRIDE];
    FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids, NULL, set.offsets, 40, NULL, few, STRIDE));
    FOLDER_OK(
        mstar_encoder_embed_ids(encoder, set.ids, zeros, set.offsets, 40, zeros, again, STRIDE));
    for (int i = 0; i < 40; i++)
        assert_memory_equal(few + i * STRIDE, again + i * STRIDE, DIMS * sizeof(float));
    mstar_encoder_release(encoder);
}

/* Workers hold what a batch needs: nothing is asked for once every one of them has met its share.
 */
static void test_steady_state(void **state)
{
    encoder_fixture *f = *state;
    static id_set set;
    static float vectors[40 * DIMS], hidden[2000 * DIMS];
    make_ids(&set);
    for (int32_t threads = 1; threads <= 3; threads++) {
        mstar_device *device = encoder_device(threads);
        mstar_encoder *encoder = encoder_load(device, f->folder, NULL);
        mstar_memory_info info = {.struct_size = sizeof info};
        uint64_t made = 0;
        int quiet = 0;
        for (int call = 0; call < 400 && quiet < 5; call++) {
            FOLDER_OK(mstar_encoder_embed_ids(encoder, set.ids, set.types, set.offsets, 40,
                                              set.skip, vectors, DIMS));
            FOLDER_OK(
                mstar_encoder_hidden(encoder, set.ids, set.types, set.offsets, 40, hidden, DIMS));
            FOLDER_OK(mstar_memory_query(&info));
            quiet = info.total_allocations == made ? quiet + 1 : 0;
            made = info.total_allocations;
        }
        assert_int_equal(quiet, 5);
        mstar_encoder_release(encoder);
        level_close(device);
    }
}

static void test_bad_ids(void **state)
{
    encoder_fixture *f = *state;
    mstar_encoder *encoder = encoder_load(f->device, f->folder, NULL);
    const int32_t good[4] = {2, 7, 8, 3};
    const int32_t offsets[3] = {0, 2, 4};
    float out[4 * DIMS], before[4 * DIMS];
    memset(out, 0xff, sizeof out);
    memset(before, 0xff, sizeof before);
    static const struct {
        int32_t ids[4], types[4], offsets[3], skip[2];
        const char *piece;
    } bad[] = {
        {{2, 60, 8, 3}, {0}, {0, 2, 4}, {0}, "ids[1] is 60; it must be from 0 to 59"},
        {{2, 7, 8, -1}, {0}, {0, 2, 4}, {0}, "ids[3] is -1"},
        {{2, 7, 8, 3}, {0, 0, 2, 0}, {0, 2, 4}, {0}, "type_ids[2] is 2; it must be from 0 to 1"},
        {{2, 7, 8, 3}, {0, -1, 0, 0}, {0, 2, 4}, {0}, "type_ids[1] is -1"},
        {{2, 7, 8, 3}, {0}, {1, 2, 4}, {0}, "cu_seqlens[0] is 1"},
        {{2, 7, 8, 3}, {0}, {0, 3, 2}, {0}, "cu_seqlens[2] is 2, below cu_seqlens[1] = 3"},
        {{2, 7, 8, 3}, {0}, {0, INT32_MAX, 4}, {0}, "max_tokens is 40"},
        {{2, 7, 8, 3}, {0}, {0, -5, 4}, {0}, "cu_seqlens[1] is -5"},
        {{2, 7, 8, 3}, {0}, {0, INT32_MIN, 4}, {0}, "cu_seqlens[1] is -2147483648"},
        {{2, 7, 8, 3}, {0}, {0, 2, 4}, {0, -1}, "skip[1] is -1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        FOLDER_FAILS(mstar_encoder_embed_ids(encoder, bad[i].ids, bad[i].types, bad[i].offsets, 2,
                                             bad[i].skip, out, DIMS),
                     MSTAR_INVALID_ARGUMENT, bad[i].piece);
#define REFUSED(call, piece) FOLDER_FAILS(call, MSTAR_INVALID_ARGUMENT, piece)
    REFUSED(mstar_encoder_embed_ids(NULL, good, NULL, offsets, 2, NULL, out, DIMS), "encoder");
    REFUSED(mstar_encoder_embed_ids(encoder, NULL, NULL, offsets, 2, NULL, out, DIMS), "ids");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, NULL, 2, NULL, out, DIMS), "cu_seqlens");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, offsets, -1, NULL, out, DIMS),
            "num_segments is -1");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, offsets, 2, NULL, NULL, DIMS), "vectors");
    REFUSED(mstar_encoder_embed_ids(encoder, good, NULL, offsets, 2, NULL, out, DIMS - 1),
            "row_stride is 31; it must be from 32");
    REFUSED(mstar_encoder_hidden(encoder, good, NULL, offsets, 2, NULL, DIMS), "out");
    REFUSED(mstar_encoder_hidden(encoder, good, NULL, offsets, 2, out, DIMS - 1), "row_stride");
    REFUSED(mstar_encoder_hidden(NULL, good, NULL, offsets, 2, out, DIMS), "encoder");
#undef REFUSED
    assert_memory_equal(out, before, sizeof out);
    FOLDER_OK(mstar_encoder_embed_ids(encoder, NULL, NULL, NULL, 0, NULL, NULL, DIMS));
    FOLDER_OK(mstar_encoder_hidden(encoder, NULL, NULL, NULL, 0, NULL, DIMS));
    FOLDER_OK(mstar_encoder_embed_ids(encoder, good, NULL, offsets, 2, NULL, out, DIMS));
    assert_memory_equal(out + 2 * DIMS, before, 2 * DIMS * sizeof(float));
    mstar_encoder_release(encoder);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void test_texts(void **state)
{
    encoder_fixture *f = *state;
    mstar_encoder *encoder = encoder_load(f->device, f->folder, NULL);
    text_set *set = encoder_texts(5);
    static float vectors[NUM_TEXTS * STRIDE + 1], before[NUM_TEXTS * STRIDE + 1];
    mstar_text_result results[NUM_TEXTS + 1];
    memset(results, 0x77, sizeof results);
    memset(vectors, 0xff, sizeof vectors);
    memset(before, 0xff, sizeof before);
#define REFUSED(call, piece) FOLDER_FAILS(call, MSTAR_INVALID_ARGUMENT, piece)
    REFUSED(mstar_encoder_embed(NULL, set->texts, 1, vectors, DIMS, NULL), "encoder");
    REFUSED(mstar_encoder_embed(encoder, NULL, 1, vectors, DIMS, NULL), "texts");
    REFUSED(mstar_encoder_embed(encoder, set->texts, -1, vectors, DIMS, NULL), "count is -1");
    REFUSED(mstar_encoder_embed(encoder, set->texts, 1, NULL, DIMS, NULL), "vectors");
    REFUSED(mstar_encoder_embed(encoder, set->texts, 1, vectors, 31, NULL), "row_stride is 31");
    mstar_text saved = set->texts[70];
    set->texts[70] = (mstar_text){NULL, 3};
    set->texts[100] = (mstar_text){NULL, 4};
    REFUSED(mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, vectors, STRIDE, results),
            "texts[70]: data is NULL and bytes is 3");
#undef REFUSED
    assert_memory_equal(vectors, before, sizeof vectors);
    set->texts[70] = saved;
    set->texts[100] = (mstar_text){NULL, 0}; /* empty is fine */
    FOLDER_OK(mstar_encoder_embed(encoder, NULL, 0, NULL, DIMS, NULL));
    FOLDER_OK(mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, vectors, STRIDE, results));
    int cut = 0;
    for (int i = 0; i < NUM_TEXTS; i++) {
        assert_in_range(results[i].tokens, 2, 40);
        assert_true(results[i].untruncated_tokens >= results[i].tokens);
        assert_true(results[i].untruncated_tokens == results[i].tokens || results[i].tokens == 40);
        cut += results[i].untruncated_tokens > results[i].tokens;
        if (set->texts[i].bytes == 0)
            assert_int_equal(results[i].tokens, 2);
        for (int j = 0; j < STRIDE; j++)
            assert_int_equal(isnan(vectors[i * STRIDE + j]) != 0, j >= DIMS);
    }
    assert_true(cut > 3);
    assert_int_equal(results[NUM_TEXTS].tokens, 0x7777777777777777);
    assert_true(isnan(vectors[NUM_TEXTS * STRIDE]));

    mstar_encoder_release(encoder);
    free(set);
}

static void test_truncation(void **state)
{
    encoder_fixture *f = *state;
    const mstar_text texts[3] = {{"a b c d e f g h", 15}, {"a", 1}, {"", 0}};
    const mstar_text kept[2] = {{"a b c", 5}, {"f g h", 5}};
    mstar_text_result results[3];
    float out[3 * DIMS], want[DIMS];
    for (int truncate = 0; truncate < 2; truncate++) {
        mstar_encoder_desc desc = encoder_defaults();
        desc.max_tokens = 5;
        desc.truncate = (mstar_truncate)truncate;
        mstar_encoder *encoder = encoder_load(f->device, f->folder, &desc);
        assert_string_equal(encoder_query(encoder).max_tokens_source, "caller");
        FOLDER_OK(mstar_encoder_embed(encoder, texts, 3, out, DIMS, results));
        assert_int_equal(results[0].tokens, 5);
        assert_int_equal(results[0].untruncated_tokens, 10);
        assert_int_equal(results[1].tokens, 3);
        assert_int_equal(results[2].tokens, 2);
        FOLDER_OK(mstar_encoder_embed(encoder, &kept[truncate], 1, want, DIMS, NULL));
        assert_memory_equal(out, want, sizeof want);
        mstar_encoder_release(encoder);
    }
    mstar_encoder_desc desc = encoder_defaults();
    desc.max_tokens = 5;
    desc.truncate = MSTAR_TRUNCATE_ERROR;
    mstar_encoder *encoder = encoder_load(f->device, f->folder, &desc);
    memset(out, 0xff, sizeof out);
    FOLDER_FAILS(mstar_encoder_embed(encoder, texts, 3, out, DIMS, results), MSTAR_INVALID_ARGUMENT,
                 "texts[0]: ");
    assert_non_null(strstr(mstar_last_error(), "10"));
    for (int i = 0; i < 3 * DIMS; i++)
        assert_true(isnan(out[i]));
    FOLDER_OK(mstar_encoder_embed(encoder, texts + 1, 2, out, DIMS, results));
    mstar_encoder_release(encoder);
}

static void test_prompts(void **state)
{
    encoder_fixture *f = *state;
    folder_text(f->folder, "config_sentence_transformers.json",
                "{\"prompts\":{\"query\":\"a b: \"},\"default_prompt_name\":null}");
    mstar_encoder_desc desc = encoder_defaults();
    const mstar_text bare[2] = {{"hello", 5}, {"", 0}};
    const mstar_text full[2] = {{"a b: hello", 10}, {"a b: ", 5}};
    float got[2 * DIMS], want[2 * DIMS];
    mstar_text_result results[2];
    mstar_encoder *plain = encoder_load(f->device, f->folder, NULL);
    FOLDER_OK(mstar_encoder_embed(plain, full, 2, want, DIMS, NULL));
    desc.prompt_name = "query";
    mstar_encoder *prompted = encoder_load(f->device, f->folder, &desc);
    assert_string_equal(encoder_query(prompted).prompt, "a b: ");
    FOLDER_OK(mstar_encoder_embed(prompted, bare, 2, got, DIMS, results));
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(results[0].tokens, 6); /* [CLS] a b [UNK] hello [SEP] */
    mstar_encoder_release(prompted);

    /* the prompt's tokens, [CLS] with them, stay out of every mode but cls */
    folder_text(f->folder, "1_Pooling/config.json",
                "{\"pooling_mode\":\"mean\",\"include_prompt\":false}");
    prompted = encoder_load(f->device, f->folder, &desc);
    FOLDER_OK(mstar_encoder_embed(prompted, bare, 2, got, DIMS, results));
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    for (int i = 0; i < 2; i++) {
        const int32_t skip = 4;
        FOLDER_OK(mstar_tokenizer_encode(mstar_encoder_get_tokenizer(plain), NULL, &full[i], NULL,
                                         &tokens));
        const int32_t offsets[2] = {0, (int32_t)tokens.count};
        FOLDER_OK(mstar_encoder_embed_ids(plain, tokens.ids, NULL, offsets, 1, &skip,
                                          want + i * DIMS, DIMS));
    }
    assert_memory_equal(got, want, sizeof want);
    mstar_encoder_release(prompted);
    desc.pooling = MSTAR_POOLING_CLS;
    prompted = encoder_load(f->device, f->folder, &desc);
    FOLDER_OK(mstar_encoder_embed(prompted, bare, 2, got, DIMS, NULL));
    desc.prompt_name = NULL;
    mstar_encoder *cls = encoder_load(f->device, f->folder, &desc);
    FOLDER_OK(mstar_encoder_embed(cls, full, 2, want, DIMS, NULL));
    assert_memory_equal(got, want, sizeof want);
    mstar_tokens_release(&tokens);
    mstar_encoder_release(cls);
    mstar_encoder_release(prompted);
    mstar_encoder_release(plain);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Times never change vectors, and every stage that a text passes has some. */
static void test_times(void **state)
{
    encoder_fixture *f = *state;
    text_set *set = encoder_texts(31);
    mstar_encoder *plain = encoder_load(f->device, f->folder, NULL);
    mstar_encoder_times times = {.struct_size = sizeof times};
    assert_int_equal(mstar_encoder_query_times(plain, &times), MSTAR_OUT_OF_ORDER);
    assert_non_null(strstr(mstar_last_error(), "desc.timing 0"));
    mstar_encoder_desc desc = encoder_defaults();
    desc.timing = 2;
    mstar_encoder *timed = NULL;
    assert_int_equal(mstar_encoder_load(f->device, f->folder, &desc, &timed),
                     MSTAR_INVALID_ARGUMENT);
    assert_non_null(strstr(mstar_last_error(), "desc.timing is 2; it must be from 0 to 1"));
    desc.timing = 1;
    timed = encoder_load(f->device, f->folder, &desc);
    FOLDER_OK(mstar_encoder_query_times(timed, &times));
    assert_int_equal(times.num_stages, MSTAR_NUM_STAGES);
    for (int i = 0; i < MSTAR_NUM_STAGES; i++)
        assert_int_equal(times.ns[i], 0);
    float *want = encoder_embed(plain, set->texts, NUM_TEXTS);
    float *got = encoder_embed(timed, set->texts, NUM_TEXTS);
    assert_memory_equal(got, want, NUM_TEXTS * DIMS * sizeof(float));
    FOLDER_OK(mstar_encoder_query_times(timed, &times));
    for (int i = 0; i < MSTAR_NUM_STAGES; i++)
        assert_true(times.ns[i] > 0);
    assert_string_equal(mstar_stage_name(MSTAR_STAGE_QKV), "qkv");
    assert_string_equal(mstar_stage_name(MSTAR_NUM_STAGES), "unknown");
    free(got);
    free(want);
    free(set);
    mstar_encoder_release(timed);
    mstar_encoder_release(plain);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ENCODER_TEST(test_ids),   ENCODER_TEST(test_steady_state), ENCODER_TEST(test_bad_ids),
        ENCODER_TEST(test_texts), ENCODER_TEST(test_truncation),   ENCODER_TEST(test_prompts),
        ENCODER_TEST(test_times),
    };
    level_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
