/*
 * test_tokenizer.c - the contract of encoding over a small tokenizer written here: ids, offsets,
 * odd bytes, pairs, truncation, misuse, failed allocations. That ids are the right ones for any
 * text is tests/ref/test_tokenizer.py's business.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"
#include "support_tokenizer.h"

/* ---- what is encoded ------------------------------------------------------------------------- */

static void test_encode(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts);
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    assert_string_equal(encode(tokenizer, "", &tokens), "1 2");
    assert_string_equal(encode(tokenizer, " \t\n ", &tokens), "1 2");
    assert_string_equal(encode(tokenizer, "Hello, HELLOS ab", &tokens), "1 7 9 7 8 4 6 2");
    assert_string_equal(encode(tokenizer, "ba hellox", &tokens), "1 0 0 2");
    assert_string_equal(encode(tokenizer, "[MASK]a[CLS ][mask]", &tokens), "1 3 4 0 0 0 0 0 0 2");
    assert_string_equal(encode(tokenizer, "\xC3\xA9 \xC3\x9F \xF0\x9F\x98\x80", &tokens),
                        "1 11 10 12 2");
    /* 10 characters are a word, 11 are not */
    assert_string_equal(encode(tokenizer, "abbbbbbbbb abbbbbbbbbb", &tokens),
                        "1 4 6 6 6 6 6 6 6 6 6 0 2");
    assert_int_equal(tokens.untruncated_count, tokens.count);
    mstar_tokens_release(&tokens);
    assert_null(tokens.ids);
    assert_int_equal(tokens.capacity, 0);
    mstar_tokenizer_release(tokenizer);
}

static void test_offsets_and_flags(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts);
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    /* e + acute, a space of three bytes, an ideograph, a dropped control character, [MASK] */
    encode(tokenizer,
           "e\xCC\x81\xE3\x80\x80h\x01"
           "ello\xE4\xB8\xAD[MASK]s",
           &tokens);
    assert_string_equal(ids_of(&tokens), "1 11 7 0 3 0 2");
    const int32_t starts[] = {0, 0, 3, 9, 10, 16, 0}, ends[] = {0, 1, 9, 10, 16, 17, 0};
    const int8_t special[] = {1, 0, 0, 0, 0, 0, 1};
    assert_memory_equal(tokens.starts, starts, sizeof starts);
    assert_memory_equal(tokens.ends, ends, sizeof ends);
    assert_memory_equal(tokens.special, special, sizeof special);
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

static void test_odd_bytes(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts);
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    /* a NUL and U+FFFD are dropped, so what is around them is one word; both count as characters */
    const mstar_text nul = {"a\0b", 3},
                     bad = {"a\xFF\xE4\xB8"
                            "b",
                            5},
                     empty = {NULL, 0};
    CHECK_OK(mstar_tokenizer_encode(tokenizer, NULL, &nul, NULL, &tokens));
    assert_string_equal(ids_of(&tokens), "1 4 6 2");
    assert_int_equal(tokens.starts[2], 2);
    CHECK_OK(mstar_tokenizer_encode(tokenizer, NULL, &bad, NULL, &tokens));
    assert_string_equal(ids_of(&tokens), "1 4 6 2");
    assert_int_equal(tokens.starts[2], 3); /* FF is one U+FFFD, E4 B8 another */
    CHECK_OK(mstar_tokenizer_encode(tokenizer, NULL, &empty, NULL, &tokens));
    assert_string_equal(ids_of(&tokens), "1 2");
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

/* The text ends where it says: what follows belongs to somebody else. */
static void test_reads_no_further(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts);
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    static const char whole[] = "a [MASK] \xF0\x9F\x98\x80 hellos e\xCC\x81";
    for (size_t bytes = 0; bytes < sizeof whole; bytes++) {
        char *exact = malloc(bytes > 0 ? bytes : 1); /* a sanitizer sees a byte past it */
        assert_non_null(exact);
        memcpy(exact, whole, bytes);
        const mstar_text text = {exact, bytes};
        CHECK_OK(mstar_tokenizer_encode(tokenizer, NULL, &text, NULL, &tokens));
        assert_true(tokens.count >= 2);
        free(exact);
    }
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

static void test_utf8_repair(void **state)
{
    (void)state;
    static const struct {
        const char *bad, *good;
    } cases[] = {
        {"a\x80z", "a\xEF\xBF\xBDz"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"}, /* overlong */
        {"\xE0\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* surrogate */
        {"\xF0\x90\x80"
         "A",
         "\xEF\xBF\xBD"
         "A"}, /* one maximal subpart */
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE4\xB8", "\xEF\xBF\xBD"},
        {"\xE4\xB8\xAD", "\xE4\xB8\xAD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char out[64];
        const unsigned char *bad = (const unsigned char *)cases[i].bad;
        const size_t bytes = mst_utf8_repair(bad, strlen(cases[i].bad), NULL);
        assert_int_equal(mst_utf8_repair(bad, strlen(cases[i].bad), out), bytes);
        assert_int_equal(bytes, strlen(cases[i].good));
        assert_memory_equal(out, cases[i].good, bytes);
        assert_int_equal(mst_utf8_valid_prefix(out, bytes), bytes);
    }
    /* every code point comes back as it was */
    for (uint32_t code = 0; code < 0x110000; code++) {
        unsigned char out[4];
        size_t start, bytes = mst_utf8_encode(code, out);
        const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        assert_int_equal(mst_utf8_valid_prefix(out, bytes), surrogate ? 0 : bytes);
        assert_int_equal(mst_utf8_decode(out), code);
        assert_int_equal(mst_utf8_length(out[0]), bytes);
        assert_int_equal(mst_utf8_decode_before(out, bytes, &start), code);
        assert_int_equal(start, 0);
    }
}

/* ---- pairs and truncation -------------------------------------------------------------------- */

static void test_pairs(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts);
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    const mstar_text first = text_of("a b"), second = text_of("hello");
    mstar_tokenize_desc desc;
    mstar_tokenize_desc_init(&desc);
    CHECK_OK(mstar_tokenizer_encode(tokenizer, &desc, &first, &second, &tokens));
    assert_string_equal(ids_of(&tokens), "1 4 5 2 7 2");
    const int32_t types[] = {0, 0, 0, 0, 1, 1};
    assert_memory_equal(tokens.type_ids, types, sizeof types);
    assert_int_equal(tokens.starts[4], 0);
    assert_int_equal(tokens.ends[4], 5);
    desc.add_special_tokens = 0;
    CHECK_OK(mstar_tokenizer_encode(tokenizer, &desc, &first, &second, &tokens));
    assert_string_equal(ids_of(&tokens), "4 5 7");
    assert_int_equal(tokens.type_ids[2], 1);
    assert_int_equal(tokens.untruncated_count, 3);
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

static const char *cut(const mstar_tokenizer *tokenizer, const char *first, const char *second,
                       int64_t max_tokens, mstar_truncate truncate, mstar_tokens *tokens)
{
    const mstar_text a = text_of(first), b = text_of(second != NULL ? second : "");
    mstar_tokenize_desc desc;
    mstar_tokenize_desc_init(&desc);
    desc.max_tokens = max_tokens;
    desc.truncate = truncate;
    CHECK_OK(mstar_tokenizer_encode(tokenizer, &desc, &a, second != NULL ? &b : NULL, tokens));
    assert_true(tokens->count <= max_tokens);
    return ids_of(tokens);
}

static void test_truncation(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts);
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    assert_string_equal(cut(tokenizer, "a b e ,", NULL, 4, MSTAR_TRUNCATE_END, &tokens), "1 4 5 2");
    assert_int_equal(tokens.untruncated_count, 6);
    assert_string_equal(cut(tokenizer, "a b e ,", NULL, 4, MSTAR_TRUNCATE_START, &tokens),
                        "1 11 9 2");
    assert_int_equal(tokens.starts[1], 4);
    assert_string_equal(cut(tokenizer, "a b e ,", NULL, 2, MSTAR_TRUNCATE_END, &tokens), "1 2");
    assert_string_equal(cut(tokenizer, "a b e ,", NULL, 6, MSTAR_TRUNCATE_ERROR, &tokens),
                        "1 4 5 11 9 2");
    assert_string_equal(cut(tokenizer, "a b e ,", "a b", 7, MSTAR_TRUNCATE_END, &tokens),
                        "1 4 5 2 4 5 2");
    assert_string_equal(cut(tokenizer, "a b", "a b e ,", 6, MSTAR_TRUNCATE_START, &tokens),
                        "1 5 2 11 9 2");

    const mstar_text text = text_of("a b e ,");
    mstar_tokenize_desc desc;
    mstar_tokenize_desc_init(&desc);
    desc.max_tokens = 5;
    desc.truncate = MSTAR_TRUNCATE_ERROR;
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens),
                  "text has 6 tokens, special tokens included; max_tokens is 5");
    desc.truncate = MSTAR_TRUNCATE_END;
    desc.max_tokens = 1;
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens),
                  "desc.max_tokens is 1; it must be at least 2");
    desc.add_special_tokens = 0;
    CHECK_OK(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens));
    assert_string_equal(ids_of(&tokens), "4");
    desc.max_tokens = 0;
    CHECK_OK(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens));
    assert_int_equal(tokens.count, 0);
    assert_int_equal(tokens.untruncated_count, 4);
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

/* The rule in words, token by token: take from the longer; when equal, from the first, which leaves
 * the odd one to the second; but once the first was the longer one, from the second. */
static void test_truncate_pair(void **state)
{
    (void)state;
    for (int64_t first = 0; first < 12; first++) {
        for (int64_t second = 0; second < 12; second++) {
            for (int64_t room = 0; room < 26; room++) {
                int64_t a, b, want_a = first, want_b = second;
                while (want_a + want_b > room) {
                    if (want_a > want_b || (want_a == want_b && first <= second))
                        want_a--;
                    else
                        want_b--;
                }
                mst_truncate_pair(first, second, room, &a, &b);
                assert_int_equal(a, want_a);
                assert_int_equal(b, want_b);
            }
        }
    }
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void test_arguments(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts), *other = NULL;
    mstar_tokens tokens, before;
    mstar_tokens_init(&tokens);
    encode(tokenizer, "a b", &tokens);
    before = tokens;
    const mstar_text text = text_of("hello hello"), null = {NULL, 3}, huge = {"x", (size_t)1 << 40};
    mstar_tokenize_desc desc;
    mstar_tokenize_desc_init(&desc);
    CHECK_INVALID(mstar_tokenizer_load(NULL, &other), "path is NULL");
    CHECK_INVALID(mstar_tokenizer_load(scratch, NULL), "tokenizer is NULL");
    CHECK_INVALID(mstar_tokenizer_encode(NULL, NULL, &text, NULL, &tokens), "tokenizer is NULL");
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, NULL, NULL, NULL, &tokens), "text is NULL");
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, NULL, &text, NULL, NULL), "tokens is NULL");
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, NULL, &null, NULL, &tokens),
                  "text.data is NULL; text.bytes is 3");
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, NULL, &text, &null, &tokens),
                  "pair.data is NULL; pair.bytes is 3");
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, NULL, &huge, NULL, &tokens),
                  "text.bytes is 1099511627776; it must be from 0 to 2147483647");
    desc.struct_size = 0;
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens), "struct_size");
    mstar_tokenize_desc_init(&desc);
    desc.max_tokens = -2;
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens),
                  "desc.max_tokens is -2");
    mstar_tokenize_desc_init(&desc);
    desc.truncate = (mstar_truncate)3;
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens),
                  "desc.truncate is 3; it must be from 0 to 2");
    mstar_tokenize_desc_init(&desc);
    desc.add_special_tokens = 2;
    CHECK_INVALID(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens),
                  "desc.add_special_tokens is 2; it must be from 0 to 1");
    /* an older caller's desc ends before max_tokens */
    mstar_tokenize_desc_init(&desc);
    desc.struct_size = 8;
    desc.max_tokens = 1;
    assert_memory_equal(&tokens, &before, sizeof tokens);
    assert_string_equal(ids_of(&tokens), "1 4 5 2");
    CHECK_OK(mstar_tokenizer_encode(tokenizer, &desc, &text, NULL, &tokens));
    assert_string_equal(ids_of(&tokens), "1 7 7 2");
    mstar_tokens_release(&tokens);
    mstar_tokens_release(NULL);
    mstar_tokens_init(NULL);
    mstar_tokenize_desc_init(NULL);
    mstar_tokenizer_release(NULL);
    mstar_tokenizer_release(tokenizer);
}

static void test_lookups(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&(parts){.added = ADDED("14", "[NEW]", RAW)});
    assert_int_equal(mstar_tokenizer_get_vocab_size(tokenizer), 15);
    assert_string_equal(mstar_tokenizer_get_token(tokenizer, 7), "hello");
    assert_string_equal(mstar_tokenizer_get_token(tokenizer, 12), "\xF0\x9F\x98\x80");
    assert_string_equal(mstar_tokenizer_get_token(tokenizer, 13), "##\n");
    assert_string_equal(mstar_tokenizer_get_token(tokenizer, 14), "[NEW]");
    assert_null(mstar_tokenizer_get_token(tokenizer, 15));
    assert_null(mstar_tokenizer_get_token(tokenizer, -1));
    assert_null(mstar_tokenizer_get_token(NULL, 0));
    assert_int_equal(mstar_tokenizer_get_id(tokenizer, "hello"), 7);
    assert_int_equal(mstar_tokenizer_get_id(tokenizer, "[NEW]"), 14);
    assert_int_equal(mstar_tokenizer_get_id(tokenizer, "hell"), -1);
    assert_int_equal(mstar_tokenizer_get_id(tokenizer, NULL), -1);
    assert_int_equal(mstar_tokenizer_get_id(NULL, "a"), -1);
    assert_int_equal(mstar_tokenizer_get_vocab_size(NULL), 0);
    mstar_tokenizer_release(tokenizer);
}

/* ---- kinds of tokenizers --------------------------------------------------------------------- */

static void test_processors(void **state)
{
    (void)state;
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    const mstar_text first = text_of("a"), second = text_of("b");
    static const struct {
        const char *processor, *ids;
        int32_t types[7];
    } cases[] = {
        {"null", "4 5", {0, 1}},
        {"{\"type\":\"BertProcessing\",\"cls\":[\"[CLS]\",1],\"sep\":[\"[SEP]\",2]}",
         "1 4 2 5 2",
         {0, 0, 0, 1, 1}},
        {"{\"type\":\"RobertaProcessing\",\"cls\":[\"[CLS]\",1],\"sep\":[\"[SEP]\",2],"
         "\"trim_offsets\":true,\"add_prefix_space\":false}",
         "1 4 2 2 5 2",
         {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mstar_tokenizer *tokenizer = load_parts(&(parts){.post_processor = cases[i].processor});
        CHECK_OK(mstar_tokenizer_encode(tokenizer, NULL, &first, &second, &tokens));
        assert_string_equal(ids_of(&tokens), cases[i].ids);
        assert_memory_equal(tokens.type_ids, cases[i].types,
                            (size_t)tokens.count * sizeof(int32_t));
        mstar_tokenizer_release(tokenizer);
    }
    mstar_tokens_release(&tokens);
}

/* Names in escapes hide the vocabulary from the quick reader; the parser's tree then serves. */
static void test_vocab_through_the_parser(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&(parts){
        .model = "{\"type\":\"WordPiece\",\"voc\\u0061b\":{\"[UNK]\":0,\"a\":7,\"##\\u00e9\":3}}",
        .added = "",
        .normalizer = "null"});
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    assert_string_equal(encode(tokenizer, "a\xC3\xA9 b", &tokens), "1 7 3 0 2");
    assert_int_equal(mstar_tokenizer_get_vocab_size(tokenizer), 8);
    assert_null(mstar_tokenizer_get_token(tokenizer, 1));
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

/* Tokens longer than the usual room for hashes, and no prefix for continuing pieces. */
static void test_long_tokens(void **state)
{
    (void)state;
    char model[2048], text[700];
    memset(text, 'x', 600);
    text[600] = '\0';
    snprintf(model, sizeof model,
             "{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"\","
             "\"max_input_chars_per_word\":1000,\"vocab\":{\"[UNK]\":0,\"%s\":1,\"x\":2}}",
             text);
    mstar_tokenizer *tokenizer =
        load_parts(&(parts){.model = model, .added = "", .post_processor = "null"});
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    assert_string_equal(encode(tokenizer, text, &tokens), "1");
    strcat(text, "xx");
    assert_string_equal(encode(tokenizer, text, &tokens), "1 2 2");
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct encode_thread {
    const mstar_tokenizer *tokenizer;
    pthread_t thread;
    mstar_tokens tokens;
    mstar_status status;
} encode_thread;

static const char shared_text[] = "Hellos [MASK] \xC4\xB0 e\xCC\x81 \xE4\xB8\xAD abbb, a\xFF";

static void *encode_often(void *context)
{
    encode_thread *one = context;
    const mstar_text text = text_of(shared_text);
    for (int i = 0; i < 200 && one->status == MSTAR_OK; i++)
        one->status = mstar_tokenizer_encode(one->tokenizer, NULL, &text, &text, &one->tokens);
    return NULL;
}

static void test_shared_by_threads(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = load_parts(&usual_parts);
    encode_thread threads[5] = {{0}};
    for (int i = 0; i < 5; i++)
        threads[i].tokenizer = tokenizer;
    encode_often(&threads[0]); /* alone, to compare with */
    for (int i = 1; i < 5; i++)
        assert_int_equal(pthread_create(&threads[i].thread, NULL, encode_often, &threads[i]), 0);
    for (int i = 1; i < 5; i++)
        assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(threads[i].status, MSTAR_OK);
        assert_int_equal(threads[i].tokens.count, threads[0].tokens.count);
        assert_memory_equal(threads[i].tokens.ids, threads[0].tokens.ids,
                            (size_t)threads[0].tokens.count * sizeof(int32_t));
    }
    assert_true(threads[0].tokens.count > 20);
    for (int i = 0; i < 5; i++)
        mstar_tokens_release(&threads[i].tokens);
    mstar_tokenizer_release(tokenizer);
}

/* ---- failed allocations ---------------------------------------------------------------------- */

typedef struct encode_attempt {
    const mstar_tokenizer *tokenizer;
    mstar_tokens *tokens;
    mstar_text text, pair;
} encode_attempt;

static mstar_status attempt_encode(void *context)
{
    encode_attempt *attempt = context;
    mstar_tokens fresh;
    mstar_tokens_init(&fresh);
    /* into a struct that holds something, which must stay as it was, and into an empty one */
    mstar_tokens before = *attempt->tokens;
    mstar_status status =
        mstar_tokenizer_encode(attempt->tokenizer, NULL, &attempt->text, &attempt->pair, &fresh);
    mstar_tokens_release(&fresh);
    if (status != MSTAR_OK)
        return status;
    status = mstar_tokenizer_encode(attempt->tokenizer, NULL, &attempt->text, &attempt->pair,
                                    attempt->tokens);
    if (status != MSTAR_OK) {
        assert_memory_equal(&before, attempt->tokens, sizeof before);
        assert_string_equal(ids_of(attempt->tokens), "1 4 2");
    }
    return status;
}

static void test_failed_allocations_of_encode(void **state)
{
    (void)state;
    /* every growing list: more tokens, code points and bytes than their first rooms hold */
    mstar_tokenizer *tokenizer = load_parts(&(parts){
        .normalizer =
            "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}," BERT_NORMALIZER "]}"});
    char text[4096] = "\xFF";
    for (int i = 0; i < 60; i++)
        strcat(text, "a \xEF\xB7\xBA\xE4\xB8\xAD\xC4\xB0\xCC\x81\xCC\xA3");
    for (int i = 0; i < 60; i++)
        strcat(text, i % 2 ? "\xCC\x81" : "\xCC\xA3");
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    encode(tokenizer, "a", &tokens);
    encode_attempt attempt = {tokenizer, &tokens, text_of(text), text_of("b")};
    assert_true(check_alloc_faults(attempt_encode, &attempt) >= 10);
    assert_true(tokens.count > 100);
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_offsets_and_flags),
        cmocka_unit_test(test_odd_bytes),
        cmocka_unit_test(test_reads_no_further),
        cmocka_unit_test(test_utf8_repair),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_truncate_pair),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_processors),
        cmocka_unit_test(test_vocab_through_the_parser),
        cmocka_unit_test(test_long_tokens),
        cmocka_unit_test(test_shared_by_threads),
        cmocka_unit_test(test_failed_allocations_of_encode),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
