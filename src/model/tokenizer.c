/*
 * tokenizer.c - the public face: load, encode, look up.
 *
 * An encode first collects all tokens of both texts, then decides what stays, then makes room in
 * the caller's struct, and only then writes: a failure before that leaves the struct as it was.
 */
#include <string.h>

#include "model/tokenizer.h"

void mstar_tokenize_desc_init(mstar_tokenize_desc *desc)
{
    if (desc == NULL)
        return;
    *desc = (mstar_tokenize_desc){.struct_size = sizeof *desc,
                                  .add_special_tokens = 1,
                                  .max_tokens = -1,
                                  .truncate = MSTAR_TRUNCATE_END};
}

void mstar_tokens_init(mstar_tokens *tokens)
{
    if (tokens != NULL)
        *tokens = (mstar_tokens){0};
}

/* The arrays lie in one block, which starts with ids. */
void mstar_tokens_release(mstar_tokens *tokens)
{
    if (tokens == NULL)
        return;
    mst_free(tokens->ids);
    *tokens = (mstar_tokens){0};
}

/* ---- loading --------------------------------------------------------------------------------- */

static bool ends_with(const char *path, const char *end)
{
    const size_t path_bytes = strlen(path), end_bytes = strlen(end);
    return path_bytes >= end_bytes && strcmp(path + path_bytes - end_bytes, end) == 0;
}

static mstar_status read_vocab_folder(const char *folder, mstar_tokenizer *tokenizer)
{
    char *vocab = NULL, *config = NULL;
    mstar_status status;
    bool there;
    MST_TRY_GOTO(mst_path_join(folder, "vocab.txt", &vocab), done);
    MST_TRY_GOTO(mst_path_join(folder, "tokenizer_config.json", &config), done);
    MST_TRY_GOTO(mst_file_look(vocab, &there), done);
    if (there)
        status = mst_tokenizer_read_bert(vocab, config, tokenizer);
    else
        status = mst_fail(MSTAR_NOT_FOUND, "%s: neither tokenizer.json nor vocab.txt", folder);
done:
    mst_free(vocab);
    mst_free(config);
    return status;
}

/* Folder of a file: up to its last '/', or ".". */
static mstar_status folder_of(const char *path, char **folder)
{
    MST_TRY(mst_strdup(path, "path", folder));
    char *slash = strrchr(*folder, '/');
    if (slash != NULL) {
        slash[slash == *folder ? 1 : 0] = '\0';
        return MSTAR_OK;
    }
    mst_free(*folder);
    return mst_strdup(".", "path", folder);
}

static mstar_status read_vocab_file(const char *path, mstar_tokenizer *tokenizer)
{
    char *folder = NULL, *config = NULL;
    mstar_status status;
    MST_TRY_GOTO(folder_of(path, &folder), done);
    MST_TRY_GOTO(mst_path_join(folder, "tokenizer_config.json", &config), done);
    status = mst_tokenizer_read_bert(path, config, tokenizer);
done:
    mst_free(folder);
    mst_free(config);
    return status;
}

static mstar_status read_folder(const char *folder, mstar_tokenizer *tokenizer)
{
    char *path = NULL;
    MST_TRY(mst_path_join(folder, "tokenizer.json", &path));
    bool there;
    mstar_status status = mst_file_look(path, &there);
    if (status == MSTAR_OK)
        status =
            there ? mst_tokenizer_read_json(path, tokenizer) : read_vocab_folder(folder, tokenizer);
    mst_free(path);
    return status;
}

static mstar_status read_config_file(const char *path, mstar_tokenizer *tokenizer)
{
    char *folder = NULL;
    mstar_status status = folder_of(path, &folder);
    if (status == MSTAR_OK)
        status = read_vocab_folder(folder, tokenizer);
    mst_free(folder);
    return status;
}

static mstar_status read_path(const char *path, mstar_tokenizer *tokenizer)
{
    bool folder;
    MST_TRY(mst_folder_look(path, &folder));
    if (folder)
        return read_folder(path, tokenizer);
    if (strcmp(mst_json_file_name(path), "tokenizer_config.json") == 0)
        return read_config_file(path, tokenizer);
    return ends_with(path, ".txt") ? read_vocab_file(path, tokenizer)
                                   : mst_tokenizer_read_json(path, tokenizer);
}

mstar_status mstar_tokenizer_load(const char *path, mstar_tokenizer **tokenizer)
{
    MST_TRY(mst_check_not_null("path", path));
    MST_TRY(mst_check_not_null("tokenizer", (const void *)tokenizer));
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof **tokenizer, "tokenizer", &memory));
    mstar_tokenizer *fresh = memory;
    mstar_status status = read_path(path, fresh);
    if (status != MSTAR_OK) {
        mstar_tokenizer_release(fresh);
        return status;
    }
    *tokenizer = fresh;
    return MSTAR_OK;
}

void mstar_tokenizer_release(mstar_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    mst_vocab_release(&tokenizer->model.vocab);
    mst_free(tokenizer->model.prefix);
    mst_added_release(&tokenizer->added);
    mst_free(tokenizer);
}

/* ---- one text -------------------------------------------------------------------------------- */

static mstar_status push_added(const mstar_tokenizer *tokenizer, const mst_added_token *added,
                               const unsigned char *text, size_t bytes, int64_t start, int64_t end,
                               mst_encode *work)
{
    mst_token token = {.id = added->id, .start = (int32_t)start, .end = (int32_t)end};
    if (tokenizer->trim_offsets)
        mst_count_spaces(text, bytes, &token.leading, &token.trailing);
    return mst_encode_push(work, token);
}

static mstar_status encode_words(const mstar_tokenizer *tokenizer, size_t start, size_t end,
                                 mst_encode *work)
{
    const unsigned char *text = work->normal.bytes + start;
    size_t at = 0, word;
    int64_t chars;
    while (mst_next_word(&tokenizer->pretokenizer, text, end - start, &at, &word, &chars))
        MST_TRY(mst_wordpiece_encode(&tokenizer->model, start + word, start + at, chars,
                                     tokenizer->trim_offsets, work));
    return MSTAR_OK;
}

/* Text between added tokens; first is the index of its first code point. */
static mstar_status encode_piece(const mstar_tokenizer *tokenizer, const unsigned char *text,
                                 size_t bytes, int64_t first, mst_encode *work)
{
    MST_TRY(mst_normalize(&tokenizer->normalizer, text, bytes, (int32_t)first, &work->run,
                          &work->spare, &work->normal));
    const mst_normal *normal = &work->normal;
    mst_splitter splitter;
    mst_stretch stretch;
    mst_split_start(&splitter, &tokenizer->added.normal, normal->bytes, (size_t)normal->count);
    while (mst_split_next(&splitter, &stretch)) {
        if (stretch.token == NULL)
            MST_TRY(encode_words(tokenizer, stretch.start, stretch.end, work));
        else
            MST_TRY(push_added(tokenizer, stretch.token, normal->bytes + stretch.start,
                               stretch.end - stretch.start, normal->source[stretch.start],
                               normal->source[stretch.end - 1] + 1, work));
    }
    return MSTAR_OK;
}

/*
 * Stretches of raw text come in order, but a token that takes spaces along may end after the next
 * one starts, so the running index of code points can go back.
 */
static int64_t index_at(const unsigned char *text, size_t known, int64_t index, size_t wanted)
{
    return wanted >= known ? index + mst_utf8_count(text + known, wanted - known)
                           : index - mst_utf8_count(text + wanted, known - wanted);
}

static mstar_status encode_valid(const mstar_tokenizer *tokenizer, const unsigned char *text,
                                 size_t bytes, mst_encode *work)
{
    mst_splitter splitter;
    mst_stretch stretch;
    size_t known = 0;
    int64_t index = 0;
    mst_split_start(&splitter, &tokenizer->added.raw, text, bytes);
    while (mst_split_next(&splitter, &stretch)) {
        const size_t length = stretch.end - stretch.start;
        const int64_t start = index_at(text, known, index, stretch.start);
        known = stretch.start;
        index = start;
        if (stretch.token == NULL) {
            MST_TRY(encode_piece(tokenizer, text + stretch.start, length, start, work));
            continue;
        }
        index = index_at(text, known, index, stretch.end);
        known = stretch.end;
        MST_TRY(
            push_added(tokenizer, stretch.token, text + stretch.start, length, start, index, work));
    }
    return MSTAR_OK;
}

static mstar_status encode_text(const mstar_tokenizer *tokenizer, const mstar_text *text,
                                mst_encode *work)
{
    const unsigned char *data = (const unsigned char *)text->data;
    if (mst_utf8_valid_prefix(data, text->bytes) == text->bytes)
        return encode_valid(tokenizer, data, text->bytes, work);
    const size_t bytes = mst_utf8_repair(data, text->bytes, NULL);
    void *memory;
    MST_TRY(mst_alloc(bytes, "repaired text", &memory));
    (void)mst_utf8_repair(data, text->bytes, memory);
    mstar_status status = encode_valid(tokenizer, memory, bytes, work);
    mst_free(memory);
    return status;
}

/* ---- both texts to the result ---------------------------------------------------------------- */

static mstar_status reserve_tokens(mstar_tokens *tokens, int64_t count)
{
    if (count <= tokens->capacity)
        return MSTAR_OK;
    const int64_t capacity = mst_max_i64(mst_max_i64(count, tokens->capacity * 2), 16);
    const size_t each = 4 * sizeof(int32_t) + sizeof(int8_t);
    size_t bytes;
    void *memory;
    MST_TRY(mst_size_mul((size_t)capacity, each, &bytes));
    MST_TRY(mst_alloc(bytes, "tokens", &memory));
    mst_free(tokens->ids);
    tokens->ids = memory;
    tokens->type_ids = tokens->ids + capacity;
    tokens->starts = tokens->type_ids + capacity;
    tokens->ends = tokens->starts + capacity;
    tokens->special = (int8_t *)(tokens->ends + capacity);
    tokens->capacity = capacity;
    return MSTAR_OK;
}

static void put(mstar_tokens *tokens, int32_t id, int32_t type_id, int32_t start, int32_t end,
                int8_t special)
{
    const int64_t at = tokens->count++;
    tokens->ids[at] = id;
    tokens->type_ids[at] = type_id;
    tokens->starts[at] = start;
    tokens->ends[at] = end;
    tokens->special[at] = special;
}

/* Offsets without the spaces of the token's own text, by the rules of byte-level tokenizers. */
static void trim_offsets(const mstar_tokenizer *tokenizer, int64_t position, mst_token *token)
{
    int32_t leading = token->leading;
    if ((position == 0 || token->start == 0) && tokenizer->add_prefix_space && leading == 1)
        leading = 0;
    if (leading > 0)
        token->start = (int32_t)mst_min_i64((int64_t)token->start + leading, (int64_t)token->end);
    if (token->trailing > 0 && token->end >= token->trailing)
        token->end = (int32_t)mst_max_i64(token->end - token->trailing, token->start);
}

typedef struct kept {
    const mst_token *tokens;
    int64_t count;
} kept;

/* Of the count tokens from first on. A text without tokens may have left the list without memory.
 */
static kept keep(const mst_encode *work, int64_t first, int64_t count, int64_t keep_count,
                 mstar_truncate truncate)
{
    if (keep_count == 0)
        return (kept){NULL, 0};
    const int64_t skip = truncate == MSTAR_TRUNCATE_START ? count - keep_count : 0;
    return (kept){work->tokens + first + skip, keep_count};
}

static void fill(const mstar_tokenizer *tokenizer, const mst_template *template,
                 bool special_tokens, const kept texts[2], mstar_tokens *tokens)
{
    tokens->count = 0;
    for (int32_t i = 0; i < template->count; i++) {
        const mst_template_piece *piece = &template->pieces[i];
        if (piece->kind == MST_PIECE_TOKEN) {
            if (special_tokens)
                put(tokens, piece->id, piece->type_id, 0, 0, 1);
            continue;
        }
        const kept *text = &texts[piece->kind == MST_PIECE_SECOND];
        for (int64_t j = 0; j < text->count; j++) {
            mst_token token = text->tokens[j];
            if (tokenizer->trim_offsets)
                trim_offsets(tokenizer, j, &token);
            put(tokens, token.id, piece->type_id, token.start, token.end, 0);
        }
    }
}

static mstar_status check_text(const char *name, const mstar_text *text)
{
    if (text->data == NULL && text->bytes > 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.data is NULL; %s.bytes is %zu", name, name,
                        text->bytes);
    if (text->bytes > INT32_MAX)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s.bytes is %zu; it must be from 0 to %d", name,
                        text->bytes, INT32_MAX);
    return MSTAR_OK;
}

static mstar_status check_arguments(const mstar_tokenizer *tokenizer,
                                    const mstar_tokenize_desc *given, const mstar_text *text,
                                    const mstar_text *pair, const mstar_tokens *tokens,
                                    mstar_tokenize_desc *desc)
{
    MST_TRY(mst_check_not_null("tokenizer", tokenizer));
    MST_TRY(mst_check_not_null("text", text));
    MST_TRY(mst_check_not_null("tokens", tokens));
    MST_TRY(check_text("text", text));
    if (pair != NULL)
        MST_TRY(check_text("pair", pair));
    mstar_tokenize_desc_init(desc);
    MST_TRY(mst_desc_read("desc", given, desc, sizeof *desc));
    MST_TRY(mst_check_range("desc.max_tokens", desc->max_tokens, -1, INT64_MAX));
    MST_TRY(mst_check_range("desc.add_special_tokens", desc->add_special_tokens, 0, 1));
    return mst_check_range("desc.truncate", (int64_t)desc->truncate, MSTAR_TRUNCATE_END,
                           MSTAR_TRUNCATE_ERROR);
}

/* How many tokens of each text stay. */
static mstar_status choose(const mstar_tokenize_desc *desc, int64_t special, const int64_t count[2],
                           int64_t keep_count[2])
{
    keep_count[0] = count[0];
    keep_count[1] = count[1];
    const int64_t whole = special + count[0] + count[1];
    if (desc->max_tokens < 0 || whole <= desc->max_tokens)
        return MSTAR_OK;
    if (desc->truncate == MSTAR_TRUNCATE_ERROR)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "text has %lld tokens, special tokens included; max_tokens is %lld",
                        (long long)whole, (long long)desc->max_tokens);
    if (desc->max_tokens < special)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.max_tokens is %lld; it must be at least %lld, the special tokens",
                        (long long)desc->max_tokens, (long long)special);
    mst_truncate_pair(count[0], count[1], desc->max_tokens - special, &keep_count[0],
                      &keep_count[1]);
    return MSTAR_OK;
}

static mstar_status encode_into(const mstar_tokenizer *tokenizer, const mstar_tokenize_desc *desc,
                                const mstar_text *text, const mstar_text *pair, mst_encode *work,
                                mstar_tokens *tokens)
{
    MST_TRY(encode_text(tokenizer, text, work));
    int64_t count[2] = {work->count, 0}, keep_count[2];
    if (pair != NULL)
        MST_TRY(encode_text(tokenizer, pair, work));
    count[1] = work->count - count[0];
    const mst_template *template = pair != NULL ? &tokenizer->pair : &tokenizer->single;
    const int64_t special = desc->add_special_tokens ? template->num_special : 0;
    MST_TRY(choose(desc, special, count, keep_count));
    MST_TRY(reserve_tokens(tokens, special + keep_count[0] + keep_count[1]));
    const kept texts[2] = {keep(work, 0, count[0], keep_count[0], desc->truncate),
                           keep(work, count[0], count[1], keep_count[1], desc->truncate)};
    fill(tokenizer, template, desc->add_special_tokens != 0, texts, tokens);
    tokens->untruncated_count = special + count[0] + count[1];
    return MSTAR_OK;
}

mstar_status mstar_tokenizer_encode(const mstar_tokenizer *tokenizer,
                                    const mstar_tokenize_desc *desc, const mstar_text *text,
                                    const mstar_text *pair, mstar_tokens *tokens)
{
    mstar_tokenize_desc full;
    MST_TRY(check_arguments(tokenizer, desc, text, pair, tokens, &full));
    /* the longest token's hashes; on the stack for every real vocabulary */
    uint32_t hashes[256];
    mst_encode work = {.hashes = hashes};
    void *memory = NULL;
    if (tokenizer->model.vocab.longest > sizeof hashes / sizeof hashes[0]) {
        MST_TRY(mst_alloc_array((int64_t)tokenizer->model.vocab.longest, sizeof *hashes,
                                "hashes of a word", &memory));
        work.hashes = memory;
    }
    mstar_status status = encode_into(tokenizer, &full, text, pair, &work, tokens);
    mst_free(memory);
    mst_free(work.run.items);
    mst_free(work.spare.items);
    mst_free(work.normal.bytes);
    mst_free(work.normal.source);
    mst_free(work.tokens);
    return status;
}

/* ---- looking up ------------------------------------------------------------------------------ */

int64_t mstar_tokenizer_get_vocab_size(const mstar_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return 0;
    int64_t limit = tokenizer->model.vocab.id_limit;
    for (int64_t i = 0; i < tokenizer->added.count; i++)
        limit = mst_max_i64(limit, (int64_t)tokenizer->added.tokens[i].id + 1);
    return limit;
}

const char *mstar_tokenizer_get_token(const mstar_tokenizer *tokenizer, int32_t id)
{
    if (tokenizer == NULL || id < 0)
        return NULL;
    const mst_vocab *vocab = &tokenizer->model.vocab;
    if (id < vocab->id_limit && vocab->entry_of_id[id] >= 0)
        return vocab->text + vocab->entries[vocab->entry_of_id[id]].offset;
    for (int64_t i = 0; i < tokenizer->added.count; i++) {
        if (tokenizer->added.tokens[i].id == id)
            return tokenizer->added.tokens[i].content;
    }
    return NULL;
}

int32_t mstar_tokenizer_get_id(const mstar_tokenizer *tokenizer, const char *token)
{
    if (tokenizer == NULL || token == NULL)
        return -1;
    const size_t bytes = strlen(token);
    const int32_t id = mst_vocab_find(&tokenizer->model.vocab, token, bytes);
    if (id >= 0)
        return id;
    for (int64_t i = 0; i < tokenizer->added.count; i++) {
        const mst_added_token *added = &tokenizer->added.tokens[i];
        if (added->bytes == bytes && memcmp(added->content, token, bytes) == 0)
            return added->id;
    }
    return -1;
}
