/*
 * test_encoder_faults.c - failed allocations where test_encoder.c does not look: jansson's own
 * while a folder is loaded, and every call of an encoder on two threads, whose allocations come in
 * any order.
 */
#include "support_encoder.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- jansson's allocations ------------------------------------------------------------------- */

static uint64_t jansson_calls, jansson_fails_at;

static void *jansson_alloc(size_t bytes)
{
    return ++jansson_calls == jansson_fails_at ? NULL : malloc(bytes);
}

typedef mstar_status (*attempt)(encoder_fixture *f);

static mstar_status load_encoder(encoder_fixture *f)
{
    mstar_encoder *encoder = NULL;
    mstar_status status = mstar_encoder_load(f->device, f->folder, NULL, &encoder);
    assert_true((status == MSTAR_OK) == (encoder != NULL));
    mstar_encoder_release(encoder);
    return status;
}

static mstar_status load_tokenizer(encoder_fixture *f)
{
    mstar_tokenizer *tokenizer = NULL;
    mstar_status status = mstar_tokenizer_load(f->folder, &tokenizer);
    assert_true((status == MSTAR_OK) == (tokenizer != NULL));
    mstar_tokenizer_release(tokenizer);
    return status;
}

static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":2,\"content\":\"[CLS]\",\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
    "\"strip_accents\":null,\"lowercase\":true},"
    "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"post_processor\":null,"
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##"
    "\","
    "\"max_input_chars_per_word\":100,\"vocab\":{\"[UNK]\":1,\"[CLS]\":2,"
    "\"hello\":3,\"world\":4,\"##s\":5}}}";

static uint64_t fail_each(encoder_fixture *f, attempt call)
{
    json_malloc_t former_malloc;
    json_free_t former_free;
    json_get_alloc_funcs(&former_malloc, &former_free);
    json_set_alloc_funcs(jansson_alloc, free); /* the test is the host */
    uint64_t live = folder_live(), number = 0;
    mstar_status status;
    do {
        jansson_calls = 0;
        jansson_fails_at = ++number;
        status = call(f);
        assert_true(status == MSTAR_OK || status == MSTAR_OUT_OF_MEMORY);
        assert_int_equal(folder_live(), live);
        assert_true(number < 20000);
    } while (status != MSTAR_OK);
    json_set_alloc_funcs(former_malloc, former_free);
    return number - 1;
}

static void test_jansson_in_an_encoder(void **state)
{
    assert_true(fail_each(*state, load_encoder) > 200);
}

static void test_jansson_in_a_tokenizer(void **state)
{
    encoder_fixture *f = *state;
    folder_text(f->folder, "tokenizer.json", tokenizer_json);
    assert_true(fail_each(f, load_tokenizer) > 20);
}

/* ---- calls on two threads -------------------------------------------------------------------- */

static const int32_t ids[] = {2, 5, 6, 3, 2, 7, 8, 9, 10, 3, 2, 3};
static const int32_t offsets[] = {0, 4, 10, 10, 12};
enum { NUM_IDS = 12, NUM_SEGMENTS = 4, NUM_CALLS = 3, ROWS = NUM_TEXTS };

static mstar_status call(mstar_encoder *encoder, const text_set *set, int which, float *out)
{
    switch (which) {
    case 0:
        return mstar_encoder_embed(encoder, set->texts, NUM_TEXTS, out, DIMS, NULL);
    case 1:
        return mstar_encoder_embed_ids(encoder, ids, NULL, offsets, NUM_SEGMENTS, NULL, out, DIMS);
    default:
        return mstar_encoder_hidden(encoder, ids, NULL, offsets, NUM_SEGMENTS, out, DIMS);
    }
}

static int fail_at(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(const uint64_t *)context;
}

/*
 * Which thread asks for what, and how often, differs from run to run, so a number may or may not be
 * reached; what must hold does not: OUT_OF_MEMORY or the right bits, and the right bits after it.
 */
static void test_calls_on_two_threads(void **state)
{
    encoder_fixture *f = *state;
    text_set *set = encoder_texts(11);
    const size_t bytes = (size_t)ROWS * DIMS * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    assert_non_null(want);
    assert_non_null(got);
    for (int which = 0; which < NUM_CALLS; which++) {
        int failed = 0;
        mstar_encoder *whole = encoder_load(f->device, f->folder, NULL);
        memset(want, 0, bytes);
        FOLDER_OK(call(whole, set, which, want));
        mstar_encoder_release(whole);
        for (uint64_t number = 1; number < 300; number += 1 + number / 12) {
            mstar_encoder *encoder = encoder_load(f->device, f->folder, NULL);
            memset(got, 0, bytes);
            mstar_set_alloc_fault(fail_at, &number);
            mstar_status status = call(encoder, set, which, got);
            mstar_set_alloc_fault(NULL, NULL);
            assert_true(status == MSTAR_OK || status == MSTAR_OUT_OF_MEMORY);
            failed += status != MSTAR_OK;
            if (status != MSTAR_OK) {
                memset(got, 0, bytes);
                FOLDER_OK(call(encoder, set, which, got));
            }
            assert_memory_equal(got, want, bytes);
            mstar_encoder_release(encoder);
        }
        assert_true(failed >= 2);
    }
    free(want);
    free(got);
    free(set);
}

/* ---- texts without a token ------------------------------------------------------------------- */

/* A folder whose tokenizer adds nothing: an empty text has no token, and its vector is zero. */
static void test_texts_without_a_token(void **state)
{
    encoder_fixture *f = *state;
    static const mstar_text texts[] = {{NULL, 0}, {"hello", 5}, {" ", 1}};
    float alone[DIMS], all[3 * DIMS], nothing[DIMS] = {0};
    folder_text(f->folder, "tokenizer.json", tokenizer_json);
    mstar_encoder *encoder = encoder_load(f->device, f->folder, NULL);
    memset(alone, 0xff, sizeof alone);
    FOLDER_OK(mstar_encoder_embed(encoder, texts, 1, alone, DIMS, NULL));
    assert_memory_equal(alone, nothing, sizeof nothing);
    FOLDER_OK(mstar_encoder_embed(encoder, texts, 3, all, DIMS, NULL));
    FOLDER_OK(mstar_encoder_embed(encoder, texts + 1, 1, alone, DIMS, NULL));
    assert_memory_equal(all, nothing, sizeof nothing);
    assert_memory_equal(all + DIMS, alone, sizeof alone);
    assert_memory_equal(all + 2 * DIMS, nothing, sizeof nothing);
    mstar_encoder_release(encoder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENCODER_TEST(test_jansson_in_an_encoder),
        ENCODER_TEST(test_jansson_in_a_tokenizer),
        ENCODER_TEST(test_calls_on_two_threads),
        ENCODER_TEST(test_texts_without_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
