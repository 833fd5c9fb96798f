/*
 * json_parse.c - JSON text to jansson values (RFC 8259; one object or list a document).
 *
 * The values are jansson's and the parser is ours: jansson's drops bytes of a token, and can write
 * past its own buffer, when an allocation fails in the middle of one. Its constructors tell of
 * every failure, so a document here is whole, or the call fails.
 *
 * An integer past 64 bits becomes a real (Python writes 1e30 as 1000000000000000019884624838656,
 * which is model_max_length for "none"); a real past the largest double is refused.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/json.h"
#include "model/tokenizer.h"

enum { MAX_DEPTH = 1000, MAX_NUMBER = 1024 };

typedef struct parser {
    const char *name; /* for errors */
    const unsigned char *text;
    size_t bytes, at;
    int depth;
    unsigned char *string; /* the string read last */
    int64_t string_capacity;
    size_t string_bytes;
} parser;

static mstar_status parse_value(parser *p, json_t **value);

/* ---- errors ---------------------------------------------------------------------------------- */

/* Line and column (in code points) of byte `at`, both from 1. */
static mstar_status fail_at(const parser *p, size_t at, const char *what)
{
    size_t start = 0;
    int64_t line = 1;
    for (size_t i = 0; i < at; i++) {
        if (p->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    int64_t column = at > start ? mst_utf8_count(p->text + start, at - start) + 1 : 1;
    return mst_fail(MSTAR_BAD_DATA, "%s: line %lld, column %lld: %s", p->name, (long long)line,
                    (long long)column, what);
}

static mstar_status fail_here(const parser *p, const char *what)
{
    return fail_at(p, p->at, p->at < p->bytes ? what : "the document ends too early");
}

static mstar_status fail_memory(const parser *p)
{
    return mst_fail(MSTAR_OUT_OF_MEMORY, "%s: no memory for the parsed document", p->name);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The next byte, or -1 at the end. */
static int peek(const parser *p)
{
    return p->at < p->bytes ? p->text[p->at] : -1;
}

static bool take(parser *p, char byte)
{
    if (peek(p) != byte)
        return false;
    p->at++;
    return true;
}

static void skip_space(parser *p)
{
    while (p->at < p->bytes && strchr(" \t\r\n", p->text[p->at]) != NULL && p->text[p->at] != '\0')
        p->at++;
}

static bool take_word(parser *p, const char *word)
{
    size_t bytes = strlen(word);
    if (p->bytes - p->at < bytes || memcmp(p->text + p->at, word, bytes) != 0)
        return false;
    p->at += bytes;
    return true;
}

/* ---- strings --------------------------------------------------------------------------------- */

static mstar_status push_code(parser *p, uint32_t code)
{
    MST_TRY(mst_grow((void **)&p->string, &p->string_capacity, (int64_t)p->string_bytes + 4, 1,
                     "string of a JSON document"));
    p->string_bytes += mst_utf8_encode(code, p->string + p->string_bytes);
    return MSTAR_OK;
}

/* The four digits after \u. */
static bool take_hex(parser *p, uint32_t *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        int byte = peek(p);
        uint32_t digit;
        if (byte >= '0' && byte <= '9')
            digit = (uint32_t)(byte - '0');
        else if (byte >= 'a' && byte <= 'f')
            digit = (uint32_t)(byte - 'a' + 10);
        else if (byte >= 'A' && byte <= 'F')
            digit = (uint32_t)(byte - 'A' + 10);
        else
            return false;
        *unit = *unit << 4 | digit;
        p->at++;
    }
    return true;
}

static mstar_status parse_unicode(parser *p)
{
    size_t start = p->at - 2;
    uint32_t code, low;
    if (!take_hex(p, &code))
        return fail_here(p, "\\u must be followed by four hexadecimal digits");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (!take_word(p, "\\u") || !take_hex(p, &low) || low < 0xDC00 || low > 0xDFFF)
            return fail_at(p, start, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
        return fail_at(p, start, "half of a surrogate pair");
    }
    return push_code(p, code);
}

static mstar_status parse_escape(parser *p)
{
    static const char names[] = "\"\\/bfnrt";
    static const char codes[] = "\"\\/\b\f\n\r\t";
    int byte = peek(p);
    const char *found = byte > 0 ? strchr(names, byte) : NULL;
    if (byte != 'u' && found == NULL)
        return fail_here(p, "no such escape");
    p->at++;
    return byte == 'u' ? parse_unicode(p) : push_code(p, (unsigned char)codes[found - names]);
}

/* A string from its opening quote on, into p->string. */
static mstar_status parse_string(parser *p)
{
    p->string_bytes = 0;
    if (!take(p, '"'))
        return fail_here(p, "a string is wanted");
    for (;;) {
        size_t start = p->at;
        while (p->at < p->bytes && p->text[p->at] >= 0x20 && p->text[p->at] != '"' &&
               p->text[p->at] != '\\')
            p->at++;
        size_t plain = p->at - start;
        size_t valid = mst_utf8_valid_prefix(p->text + start, plain);
        if (valid != plain)
            return fail_at(p, start + valid, "not UTF-8");
        MST_TRY(mst_grow((void **)&p->string, &p->string_capacity,
                         (int64_t)(p->string_bytes + plain + 1), 1, "string of a JSON document"));
        memcpy(p->string + p->string_bytes, p->text + start, plain);
        p->string_bytes += plain;
        if (take(p, '"'))
            return MSTAR_OK;
        if (!take(p, '\\'))
            return fail_here(p, "a control character in a string");
        MST_TRY(parse_escape(p));
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool take_digits(parser *p)
{
    size_t start = p->at;
    while (peek(p) >= '0' && peek(p) <= '9')
        p->at++;
    return p->at > start;
}

/* strtod reads the point that the host's locale has. */
static double read_real(const char *digits, size_t bytes)
{
    char point[8], text[MAX_NUMBER + sizeof point];
    size_t used = 0;
    (void)snprintf(point, sizeof point, "%.1f", 0.5);
    size_t point_bytes = strlen(point) - 2; /* between "0" and "5" */
    for (size_t i = 0; i < bytes; i++) {
        if (digits[i] == '.') {
            memcpy(text + used, point + 1, point_bytes);
            used += point_bytes;
        } else {
            text[used++] = digits[i];
        }
    }
    text[used] = '\0';
    return strtod(text, NULL);
}

static mstar_status parse_number(parser *p, json_t **value)
{
    size_t start = p->at;
    bool real = false;
    (void)take(p, '-');
    bool zero = peek(p) == '0';
    if (!take_digits(p) || (zero && p->at > start + 1 + (p->text[start] == '-')))
        return fail_at(p, start, "not a value");
    if (take(p, '.')) {
        real = true;
        if (!take_digits(p))
            return fail_here(p, "digits are wanted after the point");
    }
    if (take(p, 'e') || take(p, 'E')) {
        real = true;
        if (!take(p, '-'))
            (void)take(p, '+');
        if (!take_digits(p))
            return fail_here(p, "digits are wanted in the exponent");
    }
    size_t bytes = p->at - start;
    if (bytes >= MAX_NUMBER)
        return fail_at(p, start, "a number of more than 1023 characters");
    char text[MAX_NUMBER];
    memcpy(text, p->text + start, bytes);
    text[bytes] = '\0';
    errno = 0;
    long long integer = real ? 0 : strtoll(text, NULL, 10);
    if (!real && errno == 0) {
        *value = json_integer(integer);
    } else {
        double number = read_real(text, bytes);
        if (!isfinite(number))
            return fail_at(p, start, "a number past the largest double");
        *value = json_real(number);
    }
    return *value != NULL ? MSTAR_OK : fail_memory(p);
}

/* ---- lists and objects ----------------------------------------------------------------------- */

/* The end of a list or object, or the comma before its next item. */
static mstar_status parse_more(parser *p, char end, bool *more)
{
    skip_space(p);
    *more = take(p, ',');
    if (*more || take(p, end))
        return MSTAR_OK;
    return fail_here(p, end == ']' ? "',' or ']' is wanted" : "',' or '}' is wanted");
}

static mstar_status parse_list(parser *p, json_t *list)
{
    p->at++;
    skip_space(p);
    bool more = !take(p, ']');
    while (more) {
        json_t *item = NULL;
        MST_TRY(parse_value(p, &item));
        if (json_array_append_new(list, item) != 0)
            return fail_memory(p);
        MST_TRY(parse_more(p, ']', &more));
    }
    return MSTAR_OK;
}

/* The key is kept while the value is read, which needs p->string again. */
static mstar_status parse_member(parser *p, json_t *object)
{
    skip_space(p);
    size_t place = p->at;
    MST_TRY(parse_string(p));
    const size_t key_bytes = p->string_bytes;
    unsigned char *key = p->string;
    p->string = NULL;
    p->string_capacity = 0;
    json_t *value = NULL;
    mstar_status status;
    if (memchr(key, '\0', key_bytes) != NULL) {
        /* nobody writes one, and whoever reads keys as C strings would take it for another */
        status = fail_at(p, place, "a NUL in an object key");
        goto done;
    }
    if (json_object_getn(object, (const char *)key, key_bytes) != NULL) {
        status = fail_at(p, place, "duplicate object key");
        goto done;
    }
    skip_space(p);
    if (!take(p, ':')) {
        status = fail_here(p, "':' is wanted");
        goto done;
    }
    MST_TRY_GOTO(parse_value(p, &value), done);
    if (json_object_setn_new_nocheck(object, (const char *)key, key_bytes, value) != 0)
        status = fail_memory(p);
done:
    mst_free(key);
    return status;
}

static mstar_status parse_object(parser *p, json_t *object)
{
    p->at++;
    skip_space(p);
    bool more = !take(p, '}');
    while (more) {
        MST_TRY(parse_member(p, object));
        MST_TRY(parse_more(p, '}', &more));
    }
    return MSTAR_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static mstar_status parse_container(parser *p, bool object, json_t **value)
{
    if (++p->depth > MAX_DEPTH)
        return fail_here(p, "nested deeper than 1000");
    *value = object ? json_object() : json_array();
    if (*value == NULL)
        return fail_memory(p);
    mstar_status status = object ? parse_object(p, *value) : parse_list(p, *value);
    p->depth--;
    if (status != MSTAR_OK) {
        json_decref(*value);
        *value = NULL;
    }
    return status;
}

static mstar_status parse_value(parser *p, json_t **value)
{
    skip_space(p);
    int first = peek(p);
    if (first == '{' || first == '[')
        return parse_container(p, first == '{', value);
    if (first == '"') {
        MST_TRY(parse_string(p));
        *value = json_stringn_nocheck((const char *)p->string, p->string_bytes);
    } else if (take_word(p, "true")) {
        *value = json_true();
    } else if (take_word(p, "false")) {
        *value = json_false();
    } else if (take_word(p, "null")) {
        *value = json_null();
    } else if (first == '-' || (first >= '0' && first <= '9')) {
        return parse_number(p, value);
    } else {
        return fail_here(p, "not a value");
    }
    return *value != NULL ? MSTAR_OK : fail_memory(p);
}

mstar_status mst_json_parse(const char *name, const void *data, size_t bytes, json_t **root)
{
    parser p = {.name = name, .text = data, .bytes = bytes};
    *root = NULL;
    skip_space(&p);
    mstar_status status;
    if (peek(&p) != '{' && peek(&p) != '[')
        status = fail_here(&p, "an object or a list is wanted");
    else
        status = parse_value(&p, root);
    if (status == MSTAR_OK) {
        skip_space(&p);
        if (p.at < p.bytes)
            status = fail_here(&p, "more after the end of the document");
    }
    mst_free(p.string);
    if (status != MSTAR_OK && *root != NULL) {
        json_decref(*root);
        *root = NULL;
    }
    return status;
}
