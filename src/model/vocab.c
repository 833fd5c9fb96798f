/*
 * vocab.c - the vocabulary: token texts in one block, a table of open addressing over them.
 *
 * Hashes are FNV-1a, which grows by a byte at a time: WordPiece asks about every prefix of a word,
 * and gets all their hashes in one pass. A slot keeps the whole hash, so a miss seldom touches the
 * texts. Half of the slots at least stay empty.
 */
#include <string.h>

#include "model/tokenizer.h"

mstar_status mst_vocab_add(mst_vocab *vocab, const char *token, size_t bytes, int32_t id)
{
    int64_t text_bytes = vocab->text_bytes + (int64_t)bytes + 1;
    if (text_bytes > (int64_t)UINT32_MAX)
        return mst_fail(MSTAR_BAD_DATA, "the vocabulary's texts pass %u bytes", UINT32_MAX);
    MST_TRY(
        mst_grow((void **)&vocab->text, &vocab->text_capacity, text_bytes, 1, "vocabulary texts"));
    MST_TRY(mst_grow((void **)&vocab->entries, &vocab->capacity, vocab->count + 1,
                     sizeof *vocab->entries, "vocabulary"));
    if (bytes > 0)
        memcpy(vocab->text + vocab->text_bytes, token, bytes);
    vocab->text[text_bytes - 1] = '\0';
    vocab->entries[vocab->count++] =
        (mst_vocab_entry){(uint32_t)vocab->text_bytes, (uint32_t)bytes, id};
    vocab->text_bytes = text_bytes;
    return MSTAR_OK;
}

static uint32_t hash_text(const char *text, size_t bytes)
{
    uint32_t hash = MST_HASH_START;
    for (size_t i = 0; i < bytes; i++)
        hash = mst_hash_byte(hash, (unsigned char)text[i]);
    return hash;
}

/* FNV's low bits are its good ones; the product moves them up to where the index is taken. */
static uint32_t slot_of(const mst_vocab *vocab, uint32_t hash)
{
    return (hash * 0x9E3779B1u) >> vocab->shift;
}

static uint32_t slot_mask(const mst_vocab *vocab)
{
    return (1u << (32 - vocab->shift)) - 1;
}

int32_t mst_vocab_find_hashed(const mst_vocab *vocab, uint32_t hash, const char *prefix,
                              size_t prefix_bytes, const unsigned char *word, size_t bytes)
{
    if (vocab->slots == NULL)
        return -1;
    const uint32_t mask = slot_mask(vocab);
    for (uint32_t at = slot_of(vocab, hash); vocab->slots[at].entry >= 0; at = (at + 1) & mask) {
        if (vocab->slots[at].hash != hash)
            continue;
        const mst_vocab_entry *entry = &vocab->entries[vocab->slots[at].entry];
        const char *text = vocab->text + entry->offset;
        if (entry->length == prefix_bytes + bytes && memcmp(text, prefix, prefix_bytes) == 0 &&
            memcmp(text + prefix_bytes, word, bytes) == 0)
            return entry->id;
    }
    return -1;
}

int32_t mst_vocab_find(const mst_vocab *vocab, const char *token, size_t bytes)
{
    return mst_vocab_find_hashed(vocab, hash_text(token, bytes), "", 0,
                                 (const unsigned char *)token, bytes);
}

static mstar_status insert(mst_vocab *vocab, int32_t index, const char *where, bool replace)
{
    const mst_vocab_entry *entry = &vocab->entries[index];
    const char *text = vocab->text + entry->offset;
    const uint32_t hash = hash_text(text, entry->length);
    const uint32_t mask = slot_mask(vocab);
    uint32_t at = slot_of(vocab, hash);
    for (; vocab->slots[at].entry >= 0; at = (at + 1) & mask) {
        const mst_vocab_entry *other = &vocab->entries[vocab->slots[at].entry];
        if (vocab->slots[at].hash != hash || other->length != entry->length ||
            memcmp(vocab->text + other->offset, text, entry->length) != 0)
            continue;
        if (!replace)
            return mst_fail(MSTAR_BAD_DATA, "%s: token \"%.64s\" is there twice, as %d and %d",
                            where, text, other->id, entry->id);
        vocab->entry_of_id[other->id] = -1;
        break;
    }
    vocab->slots[at] = (mst_vocab_slot){hash, index};
    vocab->entry_of_id[entry->id] = index;
    return MSTAR_OK;
}

mstar_status mst_vocab_finish(mst_vocab *vocab, const char *where, bool replace)
{
    vocab->id_limit = 0;
    vocab->longest = 0;
    for (int64_t i = 0; i < vocab->count; i++) {
        const mst_vocab_entry *entry = &vocab->entries[i];
        if (entry->id < 0 || entry->id > MST_MAX_TOKEN_ID)
            return mst_fail(MSTAR_BAD_DATA,
                            "%s: token \"%.64s\" has id %d; it must be from 0 to %d", where,
                            vocab->text + entry->offset, entry->id, MST_MAX_TOKEN_ID);
        vocab->id_limit = mst_max_i64(vocab->id_limit, (int64_t)entry->id + 1);
        vocab->longest = entry->length > vocab->longest ? entry->length : vocab->longest;
    }
    if (vocab->count == 0)
        return mst_fail(MSTAR_BAD_DATA, "%s: the vocabulary is empty", where);
    if (vocab->count > INT32_MAX / 4)
        return mst_fail(MSTAR_BAD_DATA, "%s: the vocabulary has %lld tokens; at most %d", where,
                        (long long)vocab->count, INT32_MAX / 4);
    uint32_t bits = 4;
    while ((INT64_C(1) << bits) < vocab->count * 2)
        bits++;
    vocab->shift = 32 - bits;
    void *memory;
    const size_t slots_bytes = ((size_t)1 << bits) * sizeof *vocab->slots;
    MST_TRY(mst_alloc(slots_bytes, "vocabulary table", &memory));
    vocab->slots = memory;
    memset(vocab->slots, 0xFF, slots_bytes);
    const size_t ids_bytes = (size_t)vocab->id_limit * sizeof *vocab->entry_of_id;
    MST_TRY(mst_alloc(ids_bytes, "vocabulary ids", &memory));
    vocab->entry_of_id = memory;
    memset(vocab->entry_of_id, 0xFF, ids_bytes);
    for (int64_t i = 0; i < vocab->count; i++)
        MST_TRY(insert(vocab, (int32_t)i, where, replace));
    return MSTAR_OK;
}

void mst_vocab_release(mst_vocab *vocab)
{
    mst_free(vocab->text);
    mst_free(vocab->entries);
    mst_free(vocab->slots);
    mst_free(vocab->entry_of_id);
    *vocab = (mst_vocab){0};
}
