/*
 * tokenizer_vocab.c - vocabularies in bulk: the object model.vocab of a tokenizer.json, and
 * vocab.txt.
 *
 * The object holds tens of thousands of names, and a parser's tree of them costs more than the rest
 * of loading. So it is found and read here, and the parser gets the file without it. This reader
 * takes only what it fully understands; at anything else it gives up, and the parser, which then
 * sees everything, says what is wrong.
 */
#include <string.h>

#include "model/tokenizer.h"

typedef struct scanner {
    const unsigned char *text;
    size_t bytes, at;
} scanner;

/* strchr would find a NUL in every set. */
static bool is_one_of(unsigned char byte, const char *set)
{
    return byte != '\0' && strchr(set, byte) != NULL;
}

static void skip_space(scanner *scan)
{
    while (scan->at < scan->bytes && is_one_of(scan->text[scan->at], " \t\n\r"))
        scan->at++;
}

static bool take(scanner *scan, char wanted)
{
    skip_space(scan);
    if (scan->at >= scan->bytes || scan->text[scan->at] != (unsigned char)wanted)
        return false;
    scan->at++;
    return true;
}

/* Past a string whose first quote is next; *start and *end are what is between the quotes. */
static bool skip_string(scanner *scan, size_t *start, size_t *end)
{
    if (!take(scan, '"'))
        return false;
    *start = scan->at;
    while (scan->at < scan->bytes && scan->text[scan->at] != '"')
        scan->at += scan->text[scan->at] == '\\' ? 2 : 1;
    if (scan->at >= scan->bytes)
        return false;
    *end = scan->at++;
    return true;
}

/* Past any value, by counting brackets; the parser will check it. */
static bool skip_value(scanner *scan)
{
    size_t depth = 0, start, end;
    do {
        skip_space(scan);
        if (scan->at >= scan->bytes)
            return false;
        switch (scan->text[scan->at]) {
        case '"':
            if (!skip_string(scan, &start, &end))
                return false;
            break;
        case '{':
        case '[':
            depth++;
            scan->at++;
            break;
        case '}':
        case ']':
            if (depth == 0)
                return false;
            depth--;
            scan->at++;
            break;
        case ',':
        case ':':
            if (depth == 0)
                return false;
            scan->at++;
            break;
        default:
            while (scan->at < scan->bytes && !is_one_of(scan->text[scan->at], ",:{}[]\" \t\n\r"))
                scan->at++;
        }
    } while (depth > 0);
    return true;
}

/* Into an object, to the value of a key. */
static bool enter(scanner *scan, const char *key)
{
    if (!take(scan, '{'))
        return false;
    const size_t key_bytes = strlen(key);
    size_t start, end;
    while (skip_string(scan, &start, &end)) {
        if (!take(scan, ':'))
            return false;
        if (end - start == key_bytes && memcmp(scan->text + start, key, key_bytes) == 0)
            return true;
        if (!skip_value(scan) || !take(scan, ','))
            return false;
    }
    return false;
}

static int hex_digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const unsigned char *text, size_t bytes, uint32_t *unit)
{
    *unit = 0;
    for (size_t i = 0; i < 4; i++) {
        int digit = i < bytes ? hex_digit(text[i]) : -1;
        if (digit < 0)
            return false;
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return true;
}

/* One escape at text[0] = '\\' to UTF-8; returns the bytes read, 0 for one that is not allowed. */
static size_t read_escape(const unsigned char *text, size_t bytes, unsigned char *out,
                          size_t *written)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (bytes < 2 || text[1] == '\0')
        return 0;
    const char *name = strchr(names, text[1]);
    if (name != NULL) {
        out[0] = (unsigned char)values[name - names];
        *written = 1;
        return 2;
    }
    uint32_t unit, low;
    size_t read = 6;
    if (text[1] != 'u' || !read_hex(text + 2, bytes - 2, &unit))
        return 0;
    if (unit >= 0xD800 && unit <= 0xDBFF) {
        if (bytes < 12 || text[6] != '\\' || text[7] != 'u' || !read_hex(text + 8, 4, &low) ||
            low < 0xDC00 || low > 0xDFFF)
            return 0;
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        read = 12;
    } else if (unit == 0 || (unit >= 0xDC00 && unit <= 0xDFFF)) {
        return 0;
    }
    *written = mst_utf8_encode(unit, out);
    return read;
}

/* A token's text, without quotes, to bytes; false for what a parser would refuse. */
static bool unescape(const unsigned char *text, size_t bytes, unsigned char *out, size_t *written)
{
    *written = 0;
    for (size_t at = 0; at < bytes;) {
        if (text[at] < 0x20)
            return false;
        if (text[at] != '\\') {
            out[(*written)++] = text[at++];
            continue;
        }
        size_t more = 0;
        size_t read = read_escape(text + at, bytes - at, out + *written, &more);
        if (read == 0)
            return false;
        at += read;
        *written += more;
    }
    return true;
}

/* Digits without a sign, a leading zero, a fraction or an exponent. */
static bool read_id(scanner *scan, int32_t *id)
{
    skip_space(scan);
    const size_t start = scan->at;
    int64_t value = 0;
    while (scan->at < scan->bytes && scan->text[scan->at] >= '0' && scan->text[scan->at] <= '9') {
        value = value * 10 + (scan->text[scan->at++] - '0');
        if (value > MST_MAX_TOKEN_ID)
            return false;
    }
    *id = (int32_t)value;
    const size_t digits = scan->at - start;
    return digits > 0 && (digits == 1 || scan->text[start] != '0') && scan->at < scan->bytes &&
           is_one_of(scan->text[scan->at], ",} \t\n\r");
}

/* The entries up to the closing brace. Tokens are unescaped in place at the end of vocab->text. */
static mstar_status read_entries(scanner *scan, mst_vocab *vocab, bool *good)
{
    *good = false;
    mst_vocab_entry entry;
    do {
        size_t start, end, written;
        if (!skip_string(scan, &start, &end))
            return MSTAR_OK;
        const int64_t wanted = vocab->text_bytes + (int64_t)(end - start) + 1;
        MST_TRY(
            mst_grow((void **)&vocab->text, &vocab->text_capacity, wanted, 1, "vocabulary texts"));
        unsigned char *out = (unsigned char *)vocab->text + vocab->text_bytes;
        if (!unescape(scan->text + start, end - start, out, &written) || !take(scan, ':') ||
            !read_id(scan, &entry.id))
            return MSTAR_OK;
        out[written] = '\0';
        entry.offset = (uint32_t)vocab->text_bytes;
        entry.length = (uint32_t)written;
        vocab->text_bytes += (int64_t)written + 1;
        MST_TRY(mst_grow((void **)&vocab->entries, &vocab->capacity, vocab->count + 1,
                         sizeof *vocab->entries, "vocabulary"));
        vocab->entries[vocab->count++] = entry;
    } while (take(scan, ','));
    *good = take(scan, '}');
    return MSTAR_OK;
}

mstar_status mst_vocab_scan_json(const unsigned char *text, size_t bytes, mst_vocab *vocab,
                                 size_t *start, size_t *end, bool *found)
{
    *found = false;
    scanner scan = {text, bytes, 0};
    if (bytes > UINT32_MAX || !enter(&scan, "model") || !enter(&scan, "vocab") || !take(&scan, '{'))
        return MSTAR_OK;
    *start = scan.at;
    scanner ahead = scan;
    ahead.at--;
    if (!skip_value(&ahead))
        return MSTAR_OK;
    *end = ahead.at - 1;
    if (mst_utf8_valid_prefix(text + *start, *end - *start) != *end - *start)
        return MSTAR_OK;
    /* Unescaped text is never longer than its source, so one block does. */
    MST_TRY(mst_grow((void **)&vocab->text, &vocab->text_capacity, (int64_t)(*end - *start), 1,
                     "vocabulary texts"));
    MST_TRY(read_entries(&scan, vocab, found));
    if (!*found)
        vocab->text_bytes = vocab->count = 0;
    return MSTAR_OK;
}

/* Lines end at '\n'; whitespace at a line's end is not part of its token. */
mstar_status mst_vocab_read_lines(const char *path, mst_vocab *vocab)
{
    mst_file file;
    MST_TRY(mst_file_map(path, &file));
    mstar_status status = MSTAR_OK;
    const size_t valid = mst_utf8_valid_prefix(file.data, file.bytes);
    int32_t id = 0;
    for (size_t start = 0; start < file.bytes; id++) {
        const unsigned char *newline = memchr(file.data + start, '\n', file.bytes - start);
        const size_t next = newline != NULL ? (size_t)(newline - file.data) + 1 : file.bytes;
        if (next > valid) {
            status = mst_fail(MSTAR_BAD_DATA, "%s: line %d is not UTF-8 (byte %zu of the file)",
                              path, id + 1, valid);
            goto done;
        }
        if (id > MST_MAX_TOKEN_ID) {
            status = mst_fail(MSTAR_BAD_DATA, "%s: more than %d lines", path, MST_MAX_TOKEN_ID + 1);
            goto done;
        }
        size_t end = next, before;
        while (end > start && mst_is_space(mst_utf8_decode_before(file.data, end, &before)))
            end = before;
        MST_TRY_GOTO(mst_vocab_add(vocab, (const char *)file.data + start, end - start, id), done);
        start = next;
    }
done:
    mst_file_unmap(&file);
    return status;
}
