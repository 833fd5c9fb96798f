/*
 * test_tokenizer_files.c - tokenizer files that are refused, each with its text; vocab.txt; paths;
 * files cut anywhere; failed allocations while loading.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"
#include "support_tokenizer.h"

#define REFUSE(want, piece, ...) refuse_parts(&(parts){__VA_ARGS__}, want, piece, __LINE__)

/* ---- files that are refused ------------------------------------------------------------------ */

#define FAILS(piece, ...) REFUSE(MSTAR_BAD_DATA, piece, __VA_ARGS__)
#define UNSUPPORTED(piece, ...) REFUSE(MSTAR_NOT_SUPPORTED, piece, __VA_ARGS__)

static void test_refused_model(void **state)
{
    (void)state;
    UNSUPPORTED("tokenizer.json: model.type is \"BPE\"; supported: WordPiece",
                .model = MODEL("BPE", "\"vocab\":{\"a\":0},\"merges\":[]"));
    UNSUPPORTED("tokenizer.json: model.type is \"Unigram\"; supported: WordPiece",
                .model = MODEL("Unigram", "\"vocab\":[[\"a\",0.5]]"));
    FAILS("tokenizer.json: model is missing; an object is wanted", .model = "null");
    FAILS("tokenizer.json: model: type is missing", .model = "{" VOCAB "}");
    FAILS("tokenizer.json: model: vocab is missing", .model = MODEL("WordPiece", "\"x\":1"));
    FAILS("tokenizer.json: model: the vocabulary is empty",
          .model = MODEL("WordPiece", "\"vocab\":{}"));
    FAILS("tokenizer.json: model: vocab: a is \"x\"; an integer is wanted",
          .model = MODEL("WordPiece", "\"vocab\":{\"[UNK]\":0,\"a\":\"x\"}"));
    FAILS("tokenizer.json: model: vocab: a is -1; it must be from 0 to 16777215",
          .model = MODEL("WordPiece", "\"vocab\":{\"[UNK]\":0,\"a\":-1}"));
    FAILS("tokenizer.json: model: vocab: a is 16777216; it must be from 0 to 16777215",
          .model = MODEL("WordPiece", "\"vocab\":{\"[UNK]\":0,\"a\":16777216}"));
    FAILS("vocab: a is 0.5; an integer is wanted",
          .model = MODEL("WordPiece", "\"vocab\":{\"[UNK]\":0,\"a\":0.5}"));
    FAILS("tokenizer.json: model: token \"a\" is there twice, as 1 and 2",
          .model = MODEL("WordPiece", "\"vocab\":{\"[UNK]\":0,\"a\":1,\"a\":2}"));
    FAILS("model: unk_token is \"[UNK]\", which is not in the vocabulary",
          .model = MODEL("WordPiece", "\"vocab\":{\"a\":1}"));
    FAILS("model: max_input_chars_per_word is -1; it must be from 0",
          .model = MODEL("WordPiece", "\"max_input_chars_per_word\":-1," VOCAB));
    /* JSON itself: line and column are those of the whole file, also past the vocabulary */
    FAILS("tokenizer.json: line 3, column ",
          .model = MODEL("WordPiece", "\"vocab\":{\"a\":\n0,\n\"b\":}"));
    FAILS("tokenizer.json: line 4, column ",
          .model = MODEL("WordPiece", "\"vocab\":{\"[UNK]\":\n0,\n\"b\":1},\n\"x\":}"));
    FAILS("column", .model = MODEL("WordPiece", "\"vocab\":{\"\\ud800\":0}"));
    FAILS("column", .model = MODEL("WordPiece", "\"vocab\":{\"\\u0000\":0}"));
    FAILS("column", .model = MODEL("WordPiece", "\"vocab\":{\"\\x\":0}"));
    FAILS("column", .model = MODEL("WordPiece", "\"vocab\":{\"\xFF\":0}"));
    FAILS("column", .model = MODEL("WordPiece", "\"vocab\":{\"a\":01}"));
    FAILS("column", .model = MODEL("WordPiece", "\"vocab\":{\"a\":0,}"));
    FAILS("column", .model = MODEL("WordPiece", "\"vocab\":{\"a\n\":0}"));
    FAILS("duplicate", .extra = "\"model\":{},");
    FAILS("tokenizer.json: line 1, column 3: ", .extra = "}{");
}

static void test_refused_normalizer(void **state)
{
    (void)state;
    UNSUPPORTED("tokenizer.json: normalizer.type is \"Precompiled\"; supported: BertNormalizer, ",
                .normalizer = "{\"type\":\"Precompiled\"}");
    UNSUPPORTED("tokenizer.json: normalizer: normalizers[1].type is \"Replace\"",
                .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
                              "{\"type\":\"Replace\"}]}");
    FAILS("tokenizer.json: normalizer is a list; an object is wanted", .normalizer = "[]");
    FAILS("tokenizer.json: normalizer: type is missing", .normalizer = "{}");
    FAILS("tokenizer.json: normalizer: lowercase is missing; true or false is wanted",
          .normalizer = "{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                        "\"handle_chinese_chars\":true}");
    FAILS("strip_accents is 1; true or false is wanted",
          .normalizer = "{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                        "\"handle_chinese_chars\":true,\"strip_accents\":1,\"lowercase\":true}");
    /* nested as deep as it will, and more operations than there is room for */
    char deep[2048] = "";
    for (int i = 0; i < 20; i++)
        strcat(deep, "{\"type\":\"Sequence\",\"normalizers\":[");
    strcat(deep, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 20; i++)
        strcat(deep, "]}");
    UNSUPPORTED("sequences nested deeper than 8", .normalizer = deep);
    char many[2048] = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}";
    for (int i = 0; i < MST_MAX_NORMALIZE_OPS; i++)
        strcat(many, ",{\"type\":\"NFC\"}");
    strcat(many, "]}");
    UNSUPPORTED("more than 16 operations", .normalizer = many);
}

static void test_refused_pre_tokenizer(void **state)
{
    (void)state;
    UNSUPPORTED("tokenizer.json: pre_tokenizer.type is \"ByteLevel\"; supported: BertPreTokenizer",
                .pre_tokenizer = "{\"type\":\"ByteLevel\"}");
    UNSUPPORTED("pre_tokenizer.behavior is \"Removed\"; supported: Isolated",
                .pre_tokenizer = "{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}");
    UNSUPPORTED("pre_tokenizer: pretokenizers[0].type is \"Digits\"",
                .pre_tokenizer =
                    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]}");
    FAILS("pre_tokenizer: pretokenizers is missing; a list is wanted",
          .pre_tokenizer = "{\"type\":\"Sequence\"}");
}

static void test_refused_added_tokens(void **state)
{
    (void)state;
    FAILS("tokenizer.json: added_tokens[1]: content is missing",
          .added = ADDED("0", "[UNK]", RAW) ",{\"id\":1}");
    FAILS("tokenizer.json: added_tokens[0]: entry is a list; an object is wanted", .added = "[]");
    FAILS("added_tokens[0]: id of \"[UNK]\" is 5; by the vocabulary and the tokens before it, it "
          "must be 0",
          .added = ADDED("5", "[UNK]", RAW));
    FAILS("added_tokens[1]: id of \"y\" is 14; by the vocabulary and the tokens before it, it must "
          "be 15",
          .added = ADDED("14", "x", RAW) "," ADDED("14", "y", RAW));
    FAILS("added_tokens[0]: id is -1; it must be from 0", .added = ADDED("-1", "[UNK]", RAW));
    FAILS("added_tokens[0]: lstrip is missing", .added = ADDED("0", "[UNK]", "\"rstrip\":false"));
    FAILS("added token \"\x01\" is empty once normalised",
          .added = ADDED("14", "\\u0001",
                         "\"lstrip\":false,\"rstrip\":false,\"normalized\":true,"
                         "\"special\":false"));
    FAILS("added token \"[UNK]\" is there twice, with different flags",
          .added = ADDED("0", "[UNK]", RAW) "," ADDED("0", "[UNK]",
                                                      "\"lstrip\":true,\"rstrip\":false,"
                                                      "\"normalized\":false,\"special\":true"));
    /* the same token twice is one, and an empty one is none */
    mstar_tokenizer *tokenizer = load_parts(&(parts){
        .added = ADDED("0", "[UNK]", RAW) "," ADDED("0", "[UNK]", RAW) "," ADDED("9", "", RAW)});
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    assert_string_equal(encode(tokenizer, "a[UNK]a", &tokens), "1 4 0 4 2");
    mstar_tokens_release(&tokens);
    mstar_tokenizer_release(tokenizer);
}

#define TEMPLATE(single, pair, specials) \
    "{\"type\":\"TemplateProcessing\"," single "," pair "," specials "}"

static void test_refused_post_processor(void **state)
{
    (void)state;
    UNSUPPORTED("tokenizer.json: post_processor.type is \"ByteLevel\"; supported: Template",
                .post_processor = "{\"type\":\"ByteLevel\"}");
    FAILS("post_processor: single is missing; a list is wanted",
          .post_processor = "{\"type\":\"TemplateProcessing\"}");
    FAILS("special_tokens: [CLS] is missing; an object is wanted",
          .post_processor = TEMPLATE(SINGLE, PAIR, "\"special_tokens\":{}"));
    FAILS("ids[0] of \"[CLS]\" must be an integer from 0",
          .post_processor =
              TEMPLATE(SINGLE, PAIR, "\"special_tokens\":{\"[CLS]\":{\"ids\":[-1]}}"));
    FAILS("post_processor: single[0]: neither SpecialToken nor Sequence",
          .post_processor = TEMPLATE("\"single\":[{}]", PAIR, SPECIALS));
    FAILS("single[0]: id is \"C\"; A or B is wanted",
          .post_processor = TEMPLATE("\"single\":[" SEQUENCE("C", "0") "]", PAIR, SPECIALS));
    FAILS("single[0]: type_id is -1; it must be from 0",
          .post_processor = TEMPLATE("\"single\":[" SEQUENCE("A", "-1") "]", PAIR, SPECIALS));
    UNSUPPORTED("post_processor: single: A is used 2 times and B 0 times; supported: A once",
                .post_processor = TEMPLATE(
                    "\"single\":[" SEQUENCE("A", "0") "," SEQUENCE("A", "0") "]", PAIR, SPECIALS));
    UNSUPPORTED("post_processor: pair: A is used 1 times and B 0 times",
                .post_processor = TEMPLATE(SINGLE, "\"pair\":[" SEQUENCE("A", "0") "]", SPECIALS));
    FAILS("post_processor: sep must be a token and its id",
          .post_processor = "{\"type\":\"BertProcessing\",\"cls\":[\"[CLS]\",1],\"sep\":[\"x\"]}");
    FAILS("post_processor: trim_offsets is missing",
          .post_processor = "{\"type\":\"RobertaProcessing\",\"cls\":[\"[CLS]\",1],"
                            "\"sep\":[\"[SEP]\",2]}");
}

/* ---- vocab.txt ------------------------------------------------------------------------------- */

static mstar_status load_lines(const char *vocab, const char *config, mstar_tokenizer **tokenizer)
{
    char *folder = folder_make();
    folder_text(folder, "vocab.txt", vocab);
    if (config != NULL)
        folder_text(folder, "tokenizer_config.json", config);
    mstar_status status = mstar_tokenizer_load(folder, tokenizer);
    folder_remove(folder);
    return status;
}

static void test_vocab_lines(void **state)
{
    (void)state;
    mstar_tokenizer *tokenizer = NULL;
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    CHECK_OK(load_lines(vocab_lines, NULL, &tokenizer));
    /* the last b counts; no config: lower case without accents */
    assert_string_equal(encode(tokenizer, "AB b \xC3\xA9 [PAD] [MASK]", &tokens),
                        "1 3 5 9 0 7 0 0 0 2");
    assert_int_equal(mstar_tokenizer_get_vocab_size(tokenizer), 10);
    assert_null(mstar_tokenizer_get_token(tokenizer, 4));
    assert_string_equal(mstar_tokenizer_get_token(tokenizer, 3), "a");
    mstar_tokenizer_release(tokenizer);
    CHECK_OK(
        load_lines(vocab_lines,
                   "{\"do_lower_case\":false,\"model_max_length\":1000000000000000019884624838656,"
                   "\"cls_token\":{\"content\":\"[PAD]\"},\"tokenizer_class\":\"BertTokenizer\","
                   "\"added_tokens_decoder\":{\"10\":{\"content\":\"zz\"},\"0\":{\"content\":"
                   "\"[UNK]\",\"special\":true}}}",
                   &tokenizer));
    assert_string_equal(encode(tokenizer, "A ab \xC3\xA9zz", &tokens), "7 0 3 5 6 10 2");
    mstar_tokenizer_release(tokenizer);
    mstar_tokens_release(&tokens);

    CHECK_FAILED(load_lines(vocab_lines, "{\"do_basic_tokenize\":false}", &tokenizer),
                 MSTAR_NOT_SUPPORTED,
                 "tokenizer_config.json: do_basic_tokenize is false; supported: true");
    CHECK_FAILED(load_lines(vocab_lines, "{\"never_split\":[\"x\"]}", &tokenizer),
                 MSTAR_NOT_SUPPORTED, "never_split has 1 tokens; supported: none");
    CHECK_FAILED(
        load_lines(vocab_lines, "{\"tokenizer_class\":\"BertJapaneseTokenizer\"}", &tokenizer),
        MSTAR_NOT_SUPPORTED, "tokenizer_class is \"BertJapaneseTokenizer\"");
    CHECK_FAILED(load_lines(vocab_lines, "{\"sep_token\":\"<sep>\"}", &tokenizer), MSTAR_BAD_DATA,
                 "tokenizer_config.json: sep_token is \"<sep>\", which is not in the vocabulary");
    CHECK_FAILED(load_lines(vocab_lines, "{\"do_lower_case\":\"no\"}", &tokenizer), MSTAR_BAD_DATA,
                 "do_lower_case is \"no\"; true or false is wanted");
    CHECK_FAILED(load_lines(vocab_lines, "[]", &tokenizer), MSTAR_BAD_DATA,
                 "tokenizer_config.json: document is a list; an object is wanted");
    CHECK_FAILED(load_lines(vocab_lines, "{\"added_tokens_decoder\":{\"5x\":{\"content\":\"a\"}}}",
                            &tokenizer),
                 MSTAR_BAD_DATA, "added_tokens_decoder: \"5x\" is not an id");
    CHECK_FAILED(load_lines(vocab_lines, "{\"added_tokens_decoder\":{\"5\":{\"content\":\"a\"}}}",
                            &tokenizer),
                 MSTAR_BAD_DATA, "id of \"a\" is 5; by the vocabulary");
    CHECK_FAILED(load_lines("", NULL, &tokenizer), MSTAR_BAD_DATA, "the vocabulary is empty");
    CHECK_FAILED(load_lines("a\nb\n", NULL, &tokenizer), MSTAR_BAD_DATA,
                 "unk_token is \"[UNK]\", which is not in the vocabulary");
    CHECK_FAILED(load_lines("[UNK]\n\xE4\xB8\n", NULL, &tokenizer), MSTAR_BAD_DATA,
                 "vocab.txt: line 2 is not UTF-8 (byte 6 of the file)");
}

static void test_paths(void **state)
{
    (void)state;
    char *folder = folder_make();
    mstar_tokenizer *tokenizer = NULL;
    CHECK_FAILED(mstar_tokenizer_load(folder, &tokenizer), MSTAR_NOT_FOUND,
                 "neither tokenizer.json nor vocab.txt");
    CHECK_FAILED(mstar_tokenizer_load(folder_path(folder, "none.json"), &tokenizer),
                 MSTAR_NOT_FOUND, "none.json");
    folder_text(folder, "vocab.txt", vocab_lines);
    folder_text(folder, "tokenizer_config.json", "{\"do_lower_case\":false}");
    static const char *const names[] = {"vocab.txt", "tokenizer_config.json"};
    mstar_tokens tokens;
    mstar_tokens_init(&tokens);
    for (size_t i = 0; i < 2; i++) {
        CHECK_OK(mstar_tokenizer_load(folder_path(folder, names[i]), &tokenizer));
        assert_string_equal(encode(tokenizer, "a A", &tokens), "1 3 0 2");
        mstar_tokenizer_release(tokenizer);
    }
    /* tokenizer.json goes first */
    write_parts(folder, &usual_parts);
    CHECK_OK(mstar_tokenizer_load(folder, &tokenizer));
    assert_string_equal(encode(tokenizer, "a A", &tokens), "1 4 4 2");
    mstar_tokenizer_release(tokenizer);
    CHECK_OK(mstar_tokenizer_load(folder_path(folder, "tokenizer.json"), &tokenizer));
    mstar_tokenizer_release(tokenizer);
    folder_text(folder, "tokenizer.json", "");
    CHECK_FAILED(mstar_tokenizer_load(folder, &tokenizer), MSTAR_BAD_DATA, "line 1");
    mstar_tokens_release(&tokens);
    folder_remove(folder);
}

/* A file cut anywhere, and one with any byte replaced, is refused or read, and never more. */
static void test_damaged_files(void **state)
{
    (void)state;
    static const char odd[] = {'\0', '"', '\\', '{', '}', ']', ',', '9', (char)0xFF};
    write_parts(scratch, &usual_parts);
    mst_file file;
    CHECK_OK(mst_file_map(folder_path(scratch, "tokenizer.json"), &file));
    const size_t bytes = file.bytes;
    char *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, file.data, bytes);
    mst_file_unmap(&file);
    const uint64_t live = check_live_allocations();
    mstar_tokenizer *tokenizer = NULL;
    for (size_t at = 0; at < bytes; at++) {
        folder_write(scratch, "tokenizer.json", copy, at);
        CHECK_FAILED(mstar_tokenizer_load(scratch, &tokenizer), MSTAR_BAD_DATA, "tokenizer.json: ");
        const char kept = copy[at];
        copy[at] = odd[at % sizeof odd];
        folder_write(scratch, "tokenizer.json", copy, bytes);
        copy[at] = kept;
        const mstar_status status = mstar_tokenizer_load(scratch, &tokenizer);
        if (status == MSTAR_OK)
            mstar_tokenizer_release(tokenizer);
        else
            assert_true(status == MSTAR_BAD_DATA || status == MSTAR_NOT_SUPPORTED);
        tokenizer = NULL;
        assert_int_equal(check_live_allocations(), live);
    }
    free(copy);
}

/* ---- failed allocations ---------------------------------------------------------------------- */

static mstar_status attempt_load(void *context)
{
    mstar_tokenizer *tokenizer = NULL;
    mstar_status status = mstar_tokenizer_load(context, &tokenizer);
    mstar_tokenizer_release(tokenizer);
    return status;
}

static void test_failed_allocations_of_load(void **state)
{
    (void)state;
    static const char token[] = ADDED("14", "[Caf\\u00e9]",
                                      "\"lstrip\":true,\"rstrip\":true,\"normalized\":true,"
                                      "\"special\":false");
    write_parts(scratch, &(parts){.added = token});
    assert_true(check_alloc_faults(attempt_load, scratch) >= 10);
    char *folder = folder_make();
    folder_text(folder, "vocab.txt", vocab_lines);
    folder_text(folder, "tokenizer_config.json", "{}");
    assert_true(check_alloc_faults(attempt_load, folder) >= 10);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_model),
        cmocka_unit_test(test_refused_normalizer),
        cmocka_unit_test(test_refused_pre_tokenizer),
        cmocka_unit_test(test_refused_added_tokens),
        cmocka_unit_test(test_refused_post_processor),
        cmocka_unit_test(test_vocab_lines),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_failed_allocations_of_load),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
