/*
 * tokenizer_json.c - reads a tokenizer.json. What we cannot honour is refused by name; "truncation"
 * and "padding" are the caller's business and are not read.
 */
#include <stdio.h>
#include <string.h>

#include "model/tokenizer.h"

/* Where in the file something stands: "tokenizer.json: normalizer". */
typedef struct place {
    char text[160];
} place;

static place at_place(const char *where, const char *key)
{
    place inner;
    (void)snprintf(inner.text, sizeof inner.text, "%.100s: %.40s", where, key);
    return inner;
}

static place at_item(const char *where, const char *key, size_t index)
{
    place inner;
    (void)snprintf(inner.text, sizeof inner.text, "%.100s: %.30s[%zu]", where, key, index);
    return inner;
}

static mstar_status fail_type(const char *where, const char *type, const char *supported)
{
    return mst_fail(MSTAR_NOT_SUPPORTED, "%s.type is \"%.64s\"; supported: %s", where, type,
                    supported);
}

/* ---- normalizer ------------------------------------------------------------------------------ */

#define MAX_NESTING 8

static mstar_status add_op(mst_normalizer *normalizer, const char *where, mst_normalize_op op)
{
    if (mst_normalizer_add(normalizer, op))
        return MSTAR_OK;
    return mst_fail(MSTAR_NOT_SUPPORTED, "%s: more than %d operations", where,
                    MST_MAX_NORMALIZE_OPS);
}

static mstar_status read_bert_normalizer(const json_t *json, const char *where,
                                         mst_normalizer *normalizer)
{
    bool clean, ideographs, lowercase, accents;
    MST_TRY(mst_json_get_bool(json, where, "clean_text", &clean));
    MST_TRY(mst_json_get_bool(json, where, "handle_chinese_chars", &ideographs));
    MST_TRY(mst_json_get_bool(json, where, "lowercase", &lowercase));
    MST_TRY(mst_json_get_bool_or(json, where, "strip_accents", lowercase, &accents));
    if (clean)
        MST_TRY(add_op(normalizer, where, MST_OP_CLEAN));
    if (ideographs)
        MST_TRY(add_op(normalizer, where, MST_OP_IDEOGRAPH));
    if (accents) {
        MST_TRY(add_op(normalizer, where, MST_OP_NFD));
        MST_TRY(add_op(normalizer, where, MST_OP_STRIP_MN));
    }
    return lowercase ? add_op(normalizer, where, MST_OP_LOWER) : MSTAR_OK;
}

static mstar_status read_normalizer(const json_t *json, const char *where, int nesting,
                                    mst_normalizer *normalizer)
{
    static const struct {
        const char *name;
        mst_normalize_op op;
    } simple[] = {{"Lowercase", MST_OP_LOWER}, {"StripAccents", MST_OP_STRIP_M},
                  {"NFC", MST_OP_NFC},         {"NFD", MST_OP_NFD},
                  {"NFKC", MST_OP_NFKC},       {"NFKD", MST_OP_NFKD}};
    const char *type;
    MST_TRY(mst_json_get_string(json, where, "type", &type));
    if (strcmp(type, "BertNormalizer") == 0)
        return read_bert_normalizer(json, where, normalizer);
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++) {
        if (strcmp(type, simple[i].name) == 0)
            return add_op(normalizer, where, simple[i].op);
    }
    if (strcmp(type, "Sequence") != 0)
        return fail_type(where, type,
                         "BertNormalizer, Lowercase, StripAccents, NFC, NFD, NFKC, NFKD, Sequence");
    if (nesting == 0)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: sequences nested deeper than %d", where,
                        MAX_NESTING);
    const json_t *list;
    MST_TRY(mst_json_get_array(json, where, "normalizers", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        place inner = at_item(where, "normalizers", i);
        MST_TRY(read_normalizer(json_array_get(list, i), inner.text, nesting - 1, normalizer));
    }
    return MSTAR_OK;
}

/* ---- pre-tokenizer --------------------------------------------------------------------------- */

static mstar_status read_pretokenizer(const json_t *json, const char *where, int nesting,
                                      mst_pretokenizer *pretokenizer)
{
    const char *type;
    MST_TRY(mst_json_get_string(json, where, "type", &type));
    if (strcmp(type, "BertPreTokenizer") == 0) {
        pretokenizer->drop_space = pretokenizer->isolate_punctuation = true;
        return MSTAR_OK;
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        pretokenizer->drop_space = true;
        return MSTAR_OK;
    }
    if (strcmp(type, "Whitespace") == 0) {
        pretokenizer->drop_space = pretokenizer->split_word = true;
        return MSTAR_OK;
    }
    if (strcmp(type, "Punctuation") == 0) {
        const char *behavior;
        MST_TRY(mst_json_get_string_or(json, where, "behavior", "Isolated", &behavior));
        if (strcmp(behavior, "Isolated") != 0)
            return mst_fail(MSTAR_NOT_SUPPORTED, "%s.behavior is \"%.64s\"; supported: Isolated",
                            where, behavior);
        pretokenizer->isolate_punctuation = true;
        return MSTAR_OK;
    }
    if (strcmp(type, "Sequence") != 0)
        return fail_type(
            where, type,
            "BertPreTokenizer, Whitespace, WhitespaceSplit, Punctuation, Sequence of these");
    if (nesting == 0)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: sequences nested deeper than %d", where,
                        MAX_NESTING);
    const json_t *list;
    MST_TRY(mst_json_get_array(json, where, "pretokenizers", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        place inner = at_item(where, "pretokenizers", i);
        MST_TRY(read_pretokenizer(json_array_get(list, i), inner.text, nesting - 1, pretokenizer));
    }
    return MSTAR_OK;
}

/* ---- model ----------------------------------------------------------------------------------- */

/* The vocabulary through the parser's tree: the way for files that the quick reader leaves. */
static mstar_status read_vocab_tree(const json_t *model, const char *where, mst_vocab *vocab)
{
    const json_t *tree;
    MST_TRY(mst_json_get_object(model, where, "vocab", &tree));
    place inner = at_place(where, "vocab");
    json_t *object = (json_t *)(uintptr_t)tree; /* iterators take no const */
    for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
        const char *token = json_object_iter_key(at);
        int64_t id;
        MST_TRY(mst_json_get_int(tree, inner.text, token, 0, MST_MAX_TOKEN_ID, &id));
        MST_TRY(mst_vocab_add(vocab, token, json_object_iter_key_len(at), (int32_t)id));
    }
    return MSTAR_OK;
}

static mstar_status read_model(const json_t *root, const char *where, bool has_vocab,
                               mst_wordpiece *model)
{
    const json_t *json;
    MST_TRY(mst_json_get_object(root, where, "model", &json));
    place inner = at_place(where, "model");
    const char *type, *unknown, *prefix;
    MST_TRY(mst_json_get_string_or(json, inner.text, "type", NULL, &type));
    /* files from before `type` was written: only WordPiece has this key */
    if (type == NULL && mst_json_find(json, "max_input_chars_per_word") != NULL)
        type = "WordPiece";
    if (type == NULL)
        return mst_fail(MSTAR_BAD_DATA, "%s: type is missing; a string is wanted", inner.text);
    if (strcmp(type, "WordPiece") != 0)
        return mst_fail(MSTAR_NOT_SUPPORTED, "%s: model.type is \"%.64s\"; supported: WordPiece",
                        where, type);
    MST_TRY(mst_json_get_string_or(json, inner.text, "unk_token", "[UNK]", &unknown));
    MST_TRY(mst_json_get_string_or(json, inner.text, "continuing_subword_prefix", "##", &prefix));
    MST_TRY(mst_json_get_int_or(json, inner.text, "max_input_chars_per_word", 0, INT32_MAX, 100,
                                &model->max_chars));
    if (!has_vocab)
        MST_TRY(read_vocab_tree(json, inner.text, &model->vocab));
    MST_TRY(mst_vocab_finish(&model->vocab, inner.text, false));
    return mst_wordpiece_finish(model, inner.text, unknown, prefix);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/*
 * A file whose ids are not those that the tokenizers package would deal out is refused: whoever
 * wrote it meant another row of the embedding.
 */
static mstar_status read_added_token(const json_t *json, const char *where, const mst_vocab *vocab,
                                     mst_added *added)
{
    mst_added_token token = {0};
    int64_t id;
    MST_TRY(mst_json_check_object(json, where, "entry"));
    const json_t *content = mst_json_find(json, "content");
    const char *checked;
    MST_TRY(mst_json_get_string(json, where, "content", &checked));
    token.content = (char *)(uintptr_t)checked; /* copied by mst_added_add */
    token.bytes = json_string_length(content);
    MST_TRY(mst_json_get_int(json, where, "id", 0, MST_MAX_TOKEN_ID, &id));
    MST_TRY(mst_json_get_bool(json, where, "single_word", &token.single_word));
    MST_TRY(mst_json_get_bool(json, where, "lstrip", &token.lstrip));
    MST_TRY(mst_json_get_bool(json, where, "rstrip", &token.rstrip));
    MST_TRY(mst_json_get_bool(json, where, "normalized", &token.normalized));
    MST_TRY(mst_json_get_bool(json, where, "special", &token.special));
    if (token.bytes == 0)
        return MSTAR_OK;
    token.id = mst_added_deal_id(added, vocab, token.content, token.bytes);
    if (token.id != id)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: id of \"%.64s\" is %lld; by the vocabulary and the tokens before it, "
                        "it must be %d",
                        where, token.content, (long long)id, token.id);
    return mst_added_add(added, where, &token);
}

static mstar_status read_added_tokens(const json_t *root, const char *where,
                                      mstar_tokenizer *tokenizer)
{
    const json_t *list;
    MST_TRY(mst_json_get_array_or_null(root, where, "added_tokens", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        place inner = at_item(where, "added_tokens", i);
        MST_TRY(read_added_token(json_array_get(list, i), inner.text, &tokenizer->model.vocab,
                                 &tokenizer->added));
    }
    return mst_added_finish(&tokenizer->added, where, &tokenizer->normalizer);
}

/* ---- post-processor -------------------------------------------------------------------------- */

static mstar_status add_piece(mst_template *template, const char *where, int32_t kind, int64_t id,
                              int64_t type_id)
{
    if (mst_template_add(template, kind, (int32_t)id, (int32_t)type_id))
        return MSTAR_OK;
    return mst_fail(MSTAR_NOT_SUPPORTED, "%s: more than %d pieces", where, MST_MAX_TEMPLATE);
}

static mstar_status add_special(const json_t *specials, const json_t *piece, const char *where,
                                mst_template *template)
{
    const char *name;
    const json_t *special, *ids;
    int64_t type_id;
    MST_TRY(mst_json_get_string(piece, where, "id", &name));
    MST_TRY(mst_json_get_int(piece, where, "type_id", 0, INT32_MAX, &type_id));
    place inner = at_place(where, "special_tokens");
    MST_TRY(mst_json_get_object(specials, inner.text, name, &special));
    MST_TRY(mst_json_get_array(special, inner.text, "ids", &ids));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > MST_MAX_TOKEN_ID)
            return mst_fail(MSTAR_BAD_DATA,
                            "%s: ids[%zu] of \"%.64s\" must be an integer from 0 to %d", inner.text,
                            i, name, MST_MAX_TOKEN_ID);
        MST_TRY(add_piece(template, where, MST_PIECE_TOKEN, json_integer_value(id), type_id));
    }
    return MSTAR_OK;
}

static mstar_status add_sequence(const json_t *piece, const char *where, mst_template *template)
{
    const char *name;
    int64_t type_id;
    MST_TRY(mst_json_get_string(piece, where, "id", &name));
    MST_TRY(mst_json_get_int(piece, where, "type_id", 0, INT32_MAX, &type_id));
    if (strcmp(name, "A") != 0 && strcmp(name, "B") != 0)
        return mst_fail(MSTAR_BAD_DATA, "%s: id is \"%.64s\"; A or B is wanted", where, name);
    return add_piece(template, where, name[0] == 'A' ? MST_PIECE_FIRST : MST_PIECE_SECOND, 0,
                     type_id);
}

/* Each text stands in its template once: only then does max_tokens bound the result. */
static mstar_status check_template(const mst_template *template, const char *where, bool pair)
{
    int32_t times[3] = {0};
    for (int32_t i = 0; i < template->count; i++)
        times[template->pieces[i].kind]++;
    if (times[MST_PIECE_FIRST] == 1 && times[MST_PIECE_SECOND] == (pair ? 1 : 0))
        return MSTAR_OK;
    return mst_fail(
        MSTAR_NOT_SUPPORTED, "%s: A is used %d times and B %d times; supported: A once%s", where,
        times[MST_PIECE_FIRST], times[MST_PIECE_SECOND], pair ? " and B once" : " and no B");
}

static mstar_status read_template(const json_t *json, const char *where, const char *key, bool pair,
                                  mst_template *template)
{
    const json_t *list, *specials;
    MST_TRY(mst_json_get_array(json, where, key, &list));
    MST_TRY(mst_json_get_object_or_null(json, where, "special_tokens", &specials));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *piece = json_array_get(list, i), *inside;
        place inner = at_item(where, key, i);
        MST_TRY(mst_json_get_object_or_null(piece, inner.text, "SpecialToken", &inside));
        if (inside != NULL) {
            MST_TRY(add_special(specials, inside, inner.text, template));
            continue;
        }
        MST_TRY(mst_json_get_object_or_null(piece, inner.text, "Sequence", &inside));
        if (inside == NULL)
            return mst_fail(MSTAR_BAD_DATA, "%s: neither SpecialToken nor Sequence", inner.text);
        MST_TRY(add_sequence(inside, inner.text, template));
    }
    place inner = at_place(where, key);
    return check_template(template, inner.text, pair);
}

/* ["[SEP]", 102] */
static mstar_status read_token_and_id(const json_t *json, const char *where, const char *key,
                                      int32_t *id)
{
    const json_t *list;
    MST_TRY(mst_json_get_array(json, where, key, &list));
    const json_t *value = json_array_get(list, 1);
    if (json_array_size(list) != 2 || !json_is_string(json_array_get(list, 0)) ||
        !json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > MST_MAX_TOKEN_ID)
        return mst_fail(MSTAR_BAD_DATA, "%s: %s must be a token and its id, from 0 to %d", where,
                        key, MST_MAX_TOKEN_ID);
    *id = (int32_t)json_integer_value(value);
    return MSTAR_OK;
}

static void plain_templates(mstar_tokenizer *tokenizer)
{
    (void)mst_template_add(&tokenizer->single, MST_PIECE_FIRST, 0, 0);
    (void)mst_template_add(&tokenizer->pair, MST_PIECE_FIRST, 0, 0);
    (void)mst_template_add(&tokenizer->pair, MST_PIECE_SECOND, 0, 1);
}

static mstar_status read_post_processor(const json_t *json, const char *where,
                                        mstar_tokenizer *tokenizer)
{
    const char *type;
    MST_TRY(mst_json_get_string(json, where, "type", &type));
    if (strcmp(type, "TemplateProcessing") == 0) {
        MST_TRY(read_template(json, where, "single", false, &tokenizer->single));
        return read_template(json, where, "pair", true, &tokenizer->pair);
    }
    const bool roberta = strcmp(type, "RobertaProcessing") == 0;
    if (!roberta && strcmp(type, "BertProcessing") != 0)
        return fail_type(where, type, "TemplateProcessing, BertProcessing, RobertaProcessing");
    int32_t cls, sep;
    MST_TRY(read_token_and_id(json, where, "cls", &cls));
    MST_TRY(read_token_and_id(json, where, "sep", &sep));
    if (roberta) {
        MST_TRY(mst_json_get_bool(json, where, "trim_offsets", &tokenizer->trim_offsets));
        MST_TRY(mst_json_get_bool(json, where, "add_prefix_space", &tokenizer->add_prefix_space));
    }
    mst_template_bert(&tokenizer->single, &tokenizer->pair, cls, sep, roberta);
    return MSTAR_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static mstar_status read_root(const json_t *root, const char *where, bool has_vocab,
                              mstar_tokenizer *tokenizer)
{
    const json_t *part;
    MST_TRY(mst_json_check_object(root, where, "document"));
    MST_TRY(read_model(root, where, has_vocab, &tokenizer->model));
    place inner = at_place(where, "normalizer");
    MST_TRY(mst_json_get_object_or_null(root, where, "normalizer", &part));
    if (part != NULL)
        MST_TRY(read_normalizer(part, inner.text, MAX_NESTING, &tokenizer->normalizer));
    mst_normalizer_finish(&tokenizer->normalizer);
    inner = at_place(where, "pre_tokenizer");
    MST_TRY(mst_json_get_object_or_null(root, where, "pre_tokenizer", &part));
    if (part != NULL)
        MST_TRY(read_pretokenizer(part, inner.text, MAX_NESTING, &tokenizer->pretokenizer));
    mst_pretokenizer_finish(&tokenizer->pretokenizer);
    MST_TRY(read_added_tokens(root, where, tokenizer));
    inner = at_place(where, "post_processor");
    MST_TRY(mst_json_get_object_or_null(root, where, "post_processor", &part));
    if (part != NULL)
        return read_post_processor(part, inner.text, tokenizer);
    plain_templates(tokenizer);
    return MSTAR_OK;
}

/* The document without the entries of its vocabulary, when those could be read apart. */
static mstar_status parse_rest(const char *path, const mst_file *file, mst_vocab *vocab,
                               bool *has_vocab, json_t **root)
{
    size_t start, end;
    *root = NULL;
    MST_TRY(mst_vocab_scan_json(file->data, file->bytes, vocab, &start, &end, has_vocab));
    if (*has_vocab) {
        void *rest;
        MST_TRY(mst_alloc(start + (file->bytes - end), "tokenizer.json", &rest));
        memcpy(rest, file->data, start);
        memcpy((unsigned char *)rest + start, file->data + end, file->bytes - end);
        mstar_status status = mst_json_parse(path, rest, start + (file->bytes - end), root);
        mst_free(rest);
        if (status != MSTAR_BAD_DATA)
            return status;
        /* again from the whole file, for the right line and column */
        *has_vocab = false;
        vocab->count = vocab->text_bytes = 0;
    }
    return mst_json_parse(path, file->data, file->bytes, root);
}

mstar_status mst_tokenizer_read_json(const char *path, mstar_tokenizer *tokenizer)
{
    mst_file file;
    MST_TRY(mst_file_map(path, &file));
    bool has_vocab = false;
    json_t *root = NULL;
    mstar_status status = parse_rest(path, &file, &tokenizer->model.vocab, &has_vocab, &root);
    if (status == MSTAR_OK)
        status = read_root(root, mst_json_file_name(path), has_vocab, tokenizer);
    json_decref(root);
    mst_file_unmap(&file);
    return status;
}
