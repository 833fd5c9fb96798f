/*
 * tokenizer_bert.c - BERT's older layout: vocab.txt, and tokenizer_config.json for the switches.
 *
 * What the config does not say takes the defaults of BertTokenizer: lower case, ideographs apart,
 * [UNK] [CLS] [SEP] [PAD] [MASK]. Switches that would change ids in a way we do not follow are
 * refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

static mstar_status check_class(const json_t *config, const char *where)
{
    static const char *const known[] = {"BertTokenizer",       "BertTokenizerFast",
                                        "DistilBertTokenizer", "DistilBertTokenizerFast",
                                        "ElectraTokenizer",    "ElectraTokenizerFast",
                                        "MobileBertTokenizer", "MobileBertTokenizerFast"};
    const char *name;
    MST_TRY(mst_json_get_string_or(config, where, "tokenizer_class", known[0], &name));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i]) == 0)
            return MSTAR_OK;
    }
    return mst_fail(MSTAR_NOT_SUPPORTED,
                    "%s: tokenizer_class is \"%.64s\"; supported with vocab.txt: BertTokenizer and "
                    "those that share its code",
                    where, name);
}

static mstar_status read_switches(const json_t *config, const char *where,
                                  mst_normalizer *normalizer)
{
    bool basic, lowercase, accents, ideographs;
    MST_TRY(check_class(config, where));
    MST_TRY(mst_json_get_bool_or(config, where, "do_basic_tokenize", true, &basic));
    if (!basic)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: do_basic_tokenize is false; supported: true",
                        where);
    const json_t *never = mst_json_find(config, "never_split");
    if (never != NULL && json_array_size(never) > 0)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: never_split has %zu tokens; supported: none",
                        where, json_array_size(never));
    MST_TRY(mst_json_get_bool_or(config, where, "do_lower_case", true, &lowercase));
    MST_TRY(mst_json_get_bool_or(config, where, "strip_accents", lowercase, &accents));
    MST_TRY(mst_json_get_bool_or(config, where, "tokenize_chinese_chars", true, &ideographs));
    (void)mst_normalizer_add(normalizer, MST_OP_CLEAN);
    if (ideographs)
        (void)mst_normalizer_add(normalizer, MST_OP_IDEOGRAPH);
    if (accents) {
        (void)mst_normalizer_add(normalizer, MST_OP_NFD);
        (void)mst_normalizer_add(normalizer, MST_OP_STRIP_MN);
    }
    if (lowercase)
        (void)mst_normalizer_add(normalizer, MST_OP_LOWER);
    mst_normalizer_finish(normalizer);
    return MSTAR_OK;
}

/* A special token is a string, or an object with "content". */
static mstar_status read_special(const json_t *config, const char *where, const char *key,
                                 const char *fallback, const char **content)
{
    const json_t *value = mst_json_find(config, key);
    if (json_is_object(value))
        return mst_json_get_string(value, where, "content", content);
    return mst_json_get_string_or(config, where, key, fallback, content);
}

/* One entry of added_tokens_decoder: its key is the id. */
static mstar_status read_decoder_entry(const json_t *json, const char *where, const char *key,
                                       const mst_vocab *vocab, mst_added *added)
{
    mst_added_token token = {0};
    const char *content;
    MST_TRY(mst_json_check_object(json, where, key));
    MST_TRY(mst_json_get_string(json, where, "content", &content));
    token.content = (char *)(uintptr_t)content; /* copied by mst_added_add */
    token.bytes = strlen(content);
    MST_TRY(mst_json_get_bool_or(json, where, "special", false, &token.special));
    MST_TRY(mst_json_get_bool_or(json, where, "single_word", false, &token.single_word));
    MST_TRY(mst_json_get_bool_or(json, where, "lstrip", false, &token.lstrip));
    MST_TRY(mst_json_get_bool_or(json, where, "rstrip", false, &token.rstrip));
    MST_TRY(mst_json_get_bool_or(json, where, "normalized", !token.special, &token.normalized));
    if (token.bytes == 0)
        return MSTAR_OK;
    token.id = mst_added_deal_id(added, vocab, content, token.bytes);
    char wanted[16];
    (void)snprintf(wanted, sizeof wanted, "%d", token.id);
    if (strcmp(key, wanted) != 0)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: added_tokens_decoder: id of \"%.64s\" is %.20s; by the vocabulary and "
                        "the tokens before it, it must be %s",
                        where, content, key, wanted);
    return mst_added_add(added, where, &token);
}

/* In the order of ids, which the file need not have. */
static mstar_status read_decoder(const json_t *decoder, const char *where, const mst_vocab *vocab,
                                 mst_added *added)
{
    json_t *object = (json_t *)(uintptr_t)decoder; /* iterators take no const */
    long long last = -1;
    for (size_t i = 0; i < json_object_size(decoder); i++) {
        const char *next = NULL;
        long long next_id = 0;
        for (void *at = json_object_iter(object); at != NULL;
             at = json_object_iter_next(object, at)) {
            const char *key = json_object_iter_key(at);
            char *end;
            long long id = strtoll(key, &end, 10);
            if (*key == '\0' || *end != '\0' || id < 0 || id > MST_MAX_TOKEN_ID)
                return mst_fail(
                    MSTAR_BAD_DATA,
                    "%s: added_tokens_decoder: \"%.64s\" is not an id; it must be from 0 to %d",
                    where, key, MST_MAX_TOKEN_ID);
            if (id > last && (next == NULL || id < next_id)) {
                next = key;
                next_id = id;
            }
        }
        if (next == NULL)
            return mst_fail(MSTAR_BAD_DATA, "%s: added_tokens_decoder: an id is there twice",
                            where);
        last = next_id;
        MST_TRY(read_decoder_entry(json_object_get(decoder, next), where, next, vocab, added));
    }
    return MSTAR_OK;
}

/* A special token of the vocabulary that the decoder did not name. */
static mstar_status add_special(mst_added *added, const char *where, const mst_vocab *vocab,
                                const char *content)
{
    const size_t bytes = strlen(content);
    const int32_t id = mst_vocab_find(vocab, content, bytes);
    if (id < 0 || bytes == 0)
        return MSTAR_OK;
    for (int64_t i = 0; i < added->count; i++) {
        if (added->tokens[i].id == id)
            return MSTAR_OK;
    }
    mst_added_token token = {.content = (char *)(uintptr_t)content, .bytes = bytes, .id = id};
    token.special = true;
    return mst_added_add(added, where, &token);
}

static mstar_status find_required(const mst_vocab *vocab, const char *where, const char *key,
                                  const char *content, int32_t *id)
{
    *id = mst_vocab_find(vocab, content, strlen(content));
    if (*id >= 0)
        return MSTAR_OK;
    return mst_fail(MSTAR_BAD_DATA, "%s: %s is \"%.64s\", which is not in the vocabulary", where,
                    key, content);
}

static mstar_status read_tokens(const json_t *config, const char *where, mstar_tokenizer *tokenizer)
{
    static const char *const keys[] = {"unk_token", "cls_token", "sep_token", "pad_token",
                                       "mask_token"};
    static const char *const defaults[] = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};
    const char *content[5];
    for (int i = 0; i < 5; i++)
        MST_TRY(read_special(config, where, keys[i], defaults[i], &content[i]));
    const mst_vocab *vocab = &tokenizer->model.vocab;
    MST_TRY(mst_wordpiece_finish(&tokenizer->model, where, content[0], "##"));
    int32_t cls, sep;
    MST_TRY(find_required(vocab, where, keys[1], content[1], &cls));
    MST_TRY(find_required(vocab, where, keys[2], content[2], &sep));
    mst_template_bert(&tokenizer->single, &tokenizer->pair, cls, sep, false);
    const json_t *decoder;
    MST_TRY(mst_json_get_object_or_null(config, where, "added_tokens_decoder", &decoder));
    if (decoder != NULL)
        MST_TRY(read_decoder(decoder, where, vocab, &tokenizer->added));
    for (int i = 0; i < 5; i++)
        MST_TRY(add_special(&tokenizer->added, where, vocab, content[i]));
    return mst_added_finish(&tokenizer->added, where, &tokenizer->normalizer);
}

mstar_status mst_tokenizer_read_bert(const char *vocab_path, const char *config_path,
                                     mstar_tokenizer *tokenizer)
{
    json_t *config = NULL;
    const char *where = mst_json_file_name(vocab_path);
    mstar_status status = MSTAR_OK;
    bool there;
    MST_TRY(mst_file_look(config_path, &there));
    if (there) {
        where = mst_json_file_name(config_path);
        MST_TRY_GOTO(mst_json_read(config_path, &config), done);
        MST_TRY_GOTO(mst_json_check_object(config, where, "document"), done);
    } else {
        mst_log(MST_LOG_WARNING,
                "%s: no tokenizer_config.json beside it; BERT's lower case assumed", vocab_path);
    }
    MST_TRY_GOTO(read_switches(config, where, &tokenizer->normalizer), done);
    MST_TRY_GOTO(mst_vocab_read_lines(vocab_path, &tokenizer->model.vocab), done);
    MST_TRY_GOTO(mst_vocab_finish(&tokenizer->model.vocab, mst_json_file_name(vocab_path), true),
                 done);
    tokenizer->model.max_chars = 100;
    tokenizer->pretokenizer.drop_space = tokenizer->pretokenizer.isolate_punctuation = true;
    mst_pretokenizer_finish(&tokenizer->pretokenizer);
    status = read_tokens(config, where, tokenizer);
done:
    json_decref(config);
    return status;
}
