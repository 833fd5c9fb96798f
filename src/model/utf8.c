/*
 * utf8.c - UTF-8 in and out. Text is checked once and repaired once; after that every reader may
 * trust it.
 */
#include <string.h>

#include "model/tokenizer.h"

/*
 * Length of the sequence at text, or, negated, of the maximal subpart of one that is not valid.
 * The second byte's range depends on the first: no overlong forms, surrogates or codes past
 * 10FFFF.
 */
static int step(const unsigned char *text, size_t bytes)
{
    unsigned char first = text[0];
    if (first < 0x80)
        return 1;
    unsigned char low = 0x80, high = 0xBF;
    int length;
    if (first >= 0xC2 && first <= 0xDF) {
        length = 2;
    } else if (first >= 0xE0 && first <= 0xEF) {
        length = 3;
        low = first == 0xE0 ? 0xA0 : 0x80;
        high = first == 0xED ? 0x9F : 0xBF;
    } else if (first >= 0xF0 && first <= 0xF4) {
        length = 4;
        low = first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xF4 ? 0x8F : 0xBF;
    } else {
        return -1;
    }
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= bytes || text[i] < low || text[i] > high)
            return -i;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

/* First byte from at on that is not ASCII, eight bytes a step. */
static size_t skip_ascii(const unsigned char *text, size_t bytes, size_t at)
{
    while (bytes - at >= 8) {
        uint64_t word;
        memcpy(&word, text + at, 8);
        if ((word & 0x8080808080808080u) != 0)
            break;
        at += 8;
    }
    while (at < bytes && text[at] < 0x80)
        at++;
    return at;
}

size_t mst_utf8_valid_prefix(const unsigned char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        if (text[at] < 0x80) {
            at = skip_ascii(text, bytes, at);
            continue;
        }
        int length = step(text + at, bytes - at);
        if (length < 0)
            return at;
        at += (size_t)length;
    }
    return at;
}

size_t mst_utf8_repair(const unsigned char *text, size_t bytes, unsigned char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < bytes;) {
        int length = step(text + at, bytes - at);
        const unsigned char *from = length < 0 ? (const unsigned char *)"\xEF\xBF\xBD" : text + at;
        size_t copied = length < 0 ? 3 : (size_t)length;
        if (out != NULL)
            memcpy(out + written, from, copied);
        written += copied;
        at += (size_t)(length < 0 ? -length : length);
    }
    return written;
}

int64_t mst_utf8_count(const unsigned char *text, size_t bytes)
{
    int64_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += (text[i] & 0xC0) != 0x80;
    return count;
}

uint32_t mst_utf8_decode_before(const unsigned char *text, size_t end, size_t *start)
{
    size_t at = end - 1;
    while (at > 0 && (text[at] & 0xC0) == 0x80)
        at--;
    *start = at;
    return mst_utf8_decode(text + at);
}

size_t mst_utf8_encode(uint32_t code, unsigned char *out)
{
    if (code < 0x80) {
        out[0] = (unsigned char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (unsigned char)(0xC0 | code >> 6);
        out[1] = (unsigned char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (unsigned char)(0xE0 | code >> 12);
        out[1] = (unsigned char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (unsigned char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (unsigned char)(0xF0 | code >> 18);
    out[1] = (unsigned char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (unsigned char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (unsigned char)(0x80 | (code & 0x3F));
    return 4;
}
