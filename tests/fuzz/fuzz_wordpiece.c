/*
 * fuzz_wordpiece.c - texts of any bytes through tokenizers of every kind of normalizer and
 * pre-tokenizer: offsets, ids and cuts hold, and so does str.lower.
 *
 * The first byte chooses the tokenizer, the second where the text is parted into a pair.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"
#include "model/tokenizer.h"
#include "support_fuzz.h"
#include "support_fuzz_tokens.h"

#define ADDED(id, text, flags) \
    "{\"id\":" id ",\"content\":\"" text "\",\"single_word\":" flags ",\"special\":false}"
#define TYPE(name) "{\"type\":\"" name "\"}"
#define BERT(accents, lower)                                                          \
    "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true," \
    "\"strip_accents\":" accents ",\"lowercase\":" lower "}"

static const char *const normalizers[] = {
    BERT("null", "true"),
    BERT("false", "false"),
    "{\"type\":\"Sequence\",\"normalizers\":[" TYPE("NFKC") "," TYPE("Lowercase") "]}",
    "{\"type\":\"Sequence\",\"normalizers\":[" TYPE("NFD") "," TYPE("StripAccents") "]}",
    "{\"type\":\"Sequence\",\"normalizers\":[" TYPE("NFKD") "," TYPE("NFC") "]}",
    "null"};
static const char *const pretokenizers[] = {TYPE("BertPreTokenizer"), TYPE("Whitespace"),
                                            TYPE("WhitespaceSplit")};
enum {
    NUM_NORMALIZERS = sizeof normalizers / sizeof normalizers[0],
    NUM_PRETOKENIZERS = sizeof pretokenizers / sizeof pretokenizers[0],
    NUM_KINDS = NUM_NORMALIZERS * NUM_PRETOKENIZERS
};

static const char vocab[] =
    "\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"a\":3,\"b\":4,\"##a\":5,\"##b\":6,\"ab\":7,\"##ab\":8,"
    "\"\\u00e9\":9,\"##\\u0301\":10,\"\\u4e2d\":11,\"\\ud83d\\ude00\":12,\",\":13,\"hello\":14,"
    "\"##o\":15,\"\\u00df\":16,\"ss\":17,\"i\":18,\"##\\u0307\":19,\"1\":20,\"##1\":21";

static mstar_tokenizer *load(int kind)
{
    char text[4096];
    int written = snprintf(
        text, sizeof text,
        "{\"added_tokens\":[%s,%s],\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":"
        "{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",2],\"cls\":[\"[CLS]\",1]},"
        "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
        "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":20,\"vocab\":{%s}}}",
        ADDED("22", "<x>", "true,\"lstrip\":true,\"rstrip\":false,\"normalized\":false"),
        ADDED("23", "\\u00c9b", "false,\"lstrip\":false,\"rstrip\":true,\"normalized\":true"),
        normalizers[kind % NUM_NORMALIZERS], pretokenizers[kind / NUM_NORMALIZERS], vocab);
    FUZZ_CHECK(written > 0 && (size_t)written < sizeof text);
    fuzz_write_file("tokenizer.json", text, (size_t)written);
    mstar_tokenizer *tokenizer = NULL;
    FUZZ_CHECK(mstar_tokenizer_load(fuzz_folder(), &tokenizer) == MSTAR_OK);
    return tokenizer;
}

static void check_lowercase(const char *text, size_t bytes)
{
    void *lower = NULL, *again = NULL;
    int64_t capacity = 0, again_capacity = 0;
    size_t lower_bytes = 0, again_bytes = 0;
    if (fuzz_took(mst_lowercase(text, bytes, &lower, &capacity, &lower_bytes))) {
        FUZZ_CHECK(mst_utf8_valid_prefix(lower, lower_bytes) == lower_bytes);
        FUZZ_CHECK(mst_lowercase(lower, lower_bytes, &again, &again_capacity, &again_bytes) ==
                   MSTAR_OK);
    }
    mst_free(lower);
    mst_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static mstar_tokenizer *tokenizers[NUM_KINDS];
    for (int i = 0; i < NUM_KINDS; i++) {
        if (tokenizers[i] == NULL)
            tokenizers[i] = load(i);
    }
    fuzz_begin();
    fuzz_input input = {data, bytes};
    const mstar_tokenizer *tokenizer = tokenizers[fuzz_byte(&input) % NUM_KINDS];
    size_t first = fuzz_byte(&input);
    if (first > input.left)
        first = input.left;
    const mstar_text all = {(const char *)input.data, input.left};
    const mstar_text pair = {all.data + first, all.bytes - first};
    fuzz_check_tokens(tokenizer, &all, &pair);
    check_lowercase(all.data, all.bytes);
    fuzz_end();
    return 0;
}
