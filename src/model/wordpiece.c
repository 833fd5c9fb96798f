/*
 * wordpiece.c - a word becomes the longest piece that starts it, then the longest that continues,
 * and so on; when any step finds nothing, or the word is too long, it becomes the unknown token.
 */
#include <string.h>

#include "model/tokenizer.h"

mstar_status mst_wordpiece_finish(mst_wordpiece *model, const char *where, const char *unknown,
                                  const char *prefix)
{
    MST_TRY(mst_strdup(prefix, "prefix of continuing pieces", &model->prefix));
    model->prefix_bytes = strlen(prefix);
    model->prefix_hash = MST_HASH_START;
    for (size_t i = 0; i < model->prefix_bytes; i++)
        model->prefix_hash = mst_hash_byte(model->prefix_hash, (unsigned char)prefix[i]);
    model->unknown = mst_vocab_find(&model->vocab, unknown, strlen(unknown));
    if (model->unknown < 0)
        return mst_fail(MSTAR_BAD_DATA,
                        "%s: unk_token is \"%.64s\", which is not in the vocabulary", where,
                        unknown);
    return MSTAR_OK;
}

mstar_status mst_encode_push(mst_encode *work, mst_token token)
{
    if (work->count == work->capacity)
        MST_TRY(mst_grow((void **)&work->tokens, &work->capacity, work->count + 1,
                         sizeof *work->tokens, "tokens of a text"));
    work->tokens[work->count++] = token;
    return MSTAR_OK;
}

static bool counts_as_space(uint32_t code)
{
    return code == 0x120 || mst_is_space(code);
}

void mst_count_spaces(const unsigned char *text, size_t bytes, uint16_t *leading,
                      uint16_t *trailing)
{
    *leading = *trailing = 0;
    for (size_t at = 0; at < bytes && *leading < UINT16_MAX; at += mst_utf8_length(text[at])) {
        if (!counts_as_space(mst_utf8_decode(text + at)))
            break;
        *leading += 1;
    }
    for (size_t end = bytes, start; end > 0 && *trailing < UINT16_MAX; end = start) {
        if (!counts_as_space(mst_utf8_decode_before(text, end, &start)))
            break;
        *trailing += 1;
    }
}

static mstar_status push_piece(const mst_wordpiece *model, int32_t id, size_t start, size_t end,
                               bool count_spaces, mst_encode *work)
{
    const int32_t *source = work->normal.source;
    mst_token token = {.id = id, .start = source[start], .end = source[end - 1] + 1};
    if (count_spaces) {
        const mst_vocab_entry *entry = &model->vocab.entries[model->vocab.entry_of_id[id]];
        mst_count_spaces((const unsigned char *)model->vocab.text + entry->offset, entry->length,
                         &token.leading, &token.trailing);
    }
    return mst_encode_push(work, token);
}

mstar_status mst_wordpiece_encode(const mst_wordpiece *model, size_t start, size_t end,
                                  int64_t chars, bool count_spaces, mst_encode *work)
{
    const unsigned char *text = work->normal.bytes;
    const int64_t mark = work->count;
    size_t at = start;
    bool found = chars <= model->max_chars;
    while (found && at < end) {
        const bool first = at == start;
        const char *prefix = first ? "" : model->prefix;
        const size_t prefix_bytes = first ? 0 : model->prefix_bytes;
        size_t longest =
            model->vocab.longest > prefix_bytes ? model->vocab.longest - prefix_bytes : 0;
        longest = longest < end - at ? longest : end - at;
        uint32_t hash = first ? MST_HASH_START : model->prefix_hash;
        for (size_t i = 0; i < longest; i++) {
            hash = mst_hash_byte(hash, text[at + i]);
            work->hashes[i] = hash;
        }
        int32_t id = -1;
        size_t length = longest;
        for (; length > 0 && id < 0; length--)
            id = mst_vocab_find_hashed(&model->vocab, work->hashes[length - 1], prefix,
                                       prefix_bytes, text + at, length);
        found = id >= 0;
        if (found) {
            MST_TRY(push_piece(model, id, at, at + length + 1, count_spaces, work));
            at += length + 1;
        }
    }
    if (found)
        return MSTAR_OK;
    work->count = mark;
    return push_piece(model, model->unknown, start, end, count_spaces, work);
}
