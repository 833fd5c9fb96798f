/*
 * pretokenizer.c - where words begin and end.
 *
 * Every pre-tokenizer we know gives each character one of four roles, and a boundary lies between
 * two neighbours of different roles, and around each character that stands alone. A sequence of
 * pre-tokenizers therefore is the union of what each asks for, and one pass does all of them.
 */
#include "model/tokenizer.h"

enum { ROLE_OTHER, ROLE_WORD, ROLE_ALONE, ROLE_GOES };

static int role_of(const mst_pretokenizer *pretokenizer, uint32_t code)
{
    if (pretokenizer->drop_space && mst_is_space(code))
        return ROLE_GOES;
    if (pretokenizer->isolate_punctuation && mst_is_punctuation(code))
        return ROLE_ALONE;
    return pretokenizer->split_word && mst_is_word(code) ? ROLE_WORD : ROLE_OTHER;
}

void mst_pretokenizer_finish(mst_pretokenizer *pretokenizer)
{
    for (uint32_t code = 0; code < 128; code++)
        pretokenizer->ascii[code] = (uint8_t)role_of(pretokenizer, code);
}

static int role_at(const mst_pretokenizer *pretokenizer, const unsigned char *text)
{
    return text[0] < 0x80 ? pretokenizer->ascii[text[0]]
                          : role_of(pretokenizer, mst_utf8_decode(text));
}

bool mst_next_word(const mst_pretokenizer *pretokenizer, const unsigned char *text, size_t bytes,
                   size_t *at, size_t *start, int64_t *chars)
{
    size_t position = *at;
    int role = ROLE_GOES;
    while (position < bytes && (role = role_at(pretokenizer, text + position)) == ROLE_GOES)
        position += mst_utf8_length(text[position]);
    if (position >= bytes)
        return false;
    *start = position;
    *chars = 0;
    do {
        position += mst_utf8_length(text[position]);
        *chars += 1;
    } while (role != ROLE_ALONE && position < bytes &&
             role_at(pretokenizer, text + position) == role);
    *at = position;
    return true;
}
