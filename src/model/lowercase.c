/*
 * lowercase.c - str.lower() of Python, for folders with do_lower_case.
 *
 * That is Unicode's full lowercase mapping: one code point to one, except U+0130, which becomes
 * two, and the capital sigma, which depends on what stands around it (SpecialCasing.txt,
 * Final_Sigma). Simple mappings and categories come from utf8proc; the few code points whose
 * derived properties do not follow from their category are listed.
 */
#include <utf8proc.h>

#include <string.h>

#include "model/encoder.h"

#define CAPITAL_I_WITH_DOT 0x0130
#define COMBINING_DOT_ABOVE 0x0307
#define CAPITAL_SIGMA 0x03a3
#define SMALL_SIGMA 0x03c3
#define FINAL_SIGMA 0x03c2

/* Word_Break MidLetter, MidNumLet and Single_Quote. */
static const utf8proc_int32_t ignorable_points[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,
                                                    0x5f4,  0x2018, 0x2019, 0x2024, 0x2027, 0xfe13,
                                                    0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};

/* Other_Lowercase and Other_Uppercase, modifier letters left out: those are ignorable first. */
static const utf8proc_int32_t cased_ranges[][2] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2160, 0x217f},  {0x24b6, 0x24e9},
    {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

static bool is_case_ignorable(utf8proc_int32_t point)
{
    for (size_t i = 0; i < sizeof ignorable_points / sizeof ignorable_points[0]; i++) {
        if (point == ignorable_points[i])
            return true;
    }
    switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return false;
    }
}

static bool is_cased(utf8proc_int32_t point)
{
    for (size_t i = 0; i < sizeof cased_ranges / sizeof cased_ranges[0]; i++) {
        if (point >= cased_ranges[i][0] && point <= cased_ranges[i][1])
            return true;
    }
    utf8proc_category_t category = utf8proc_category(point);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT;
}

/* Bytes of the code point at text; *point -1 and 1 byte where it is not UTF-8. */
static size_t decode(const utf8proc_uint8_t *text, size_t bytes, utf8proc_int32_t *point)
{
    utf8proc_ssize_t used = utf8proc_iterate(text, bytes < 4 ? (utf8proc_ssize_t)bytes : 4, point);
    if (used > 0)
        return (size_t)used;
    *point = -1;
    return 1;
}

/* The final form: a cased letter before it, none after it, what is ignorable set aside. */
static bool is_final(const utf8proc_uint8_t *text, size_t bytes, size_t place, size_t after)
{
    utf8proc_int32_t point = -1;
    bool before = false;
    for (size_t at = place; at > 0;) {
        size_t start = at - 1;
        while (start > 0 && at - start < 4 && (text[start] & 0xc0) == 0x80)
            start--;
        if (decode(text + start, at - start, &point) != at - start) {
            point = -1;
            start = at - 1;
        }
        at = start;
        if (point >= 0 && is_case_ignorable(point))
            continue;
        before = point >= 0 && is_cased(point);
        break;
    }
    if (!before)
        return false;
    for (size_t at = after; at < bytes;) {
        at += decode(text + at, bytes - at, &point);
        if (point < 0 || !is_case_ignorable(point))
            return point < 0 || !is_cased(point);
    }
    return true;
}

mstar_status mst_lowercase(const char *text, size_t bytes, void **out, int64_t *capacity,
                           size_t *out_bytes)
{
    /* no mapping doubles the bytes: the worst is 2 to 3 */
    if (bytes > SIZE_MAX / 8)
        return mst_fail(MSTAR_OUT_OF_MEMORY, "lowercase of %zu bytes passes the address space",
                        bytes);
    MST_TRY(mst_grow(out, capacity, (int64_t)(2 * bytes), 1, "lowercase text"));
    const utf8proc_uint8_t *from = (const utf8proc_uint8_t *)text;
    utf8proc_uint8_t *to = *out;
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t point;
        size_t step = decode(from + at, bytes - at, &point);
        if (point < 0) {
            to[used++] = from[at];
        } else if (point == CAPITAL_I_WITH_DOT) {
            to[used++] = 'i';
            used += (size_t)utf8proc_encode_char(COMBINING_DOT_ABOVE, to + used);
        } else {
            utf8proc_int32_t lower = utf8proc_tolower(point);
            if (point == CAPITAL_SIGMA)
                lower = is_final(from, bytes, at, at + step) ? FINAL_SIGMA : SMALL_SIGMA;
            used += (size_t)utf8proc_encode_char(lower, to + used);
        }
        at += step;
    }
    *out_bytes = used;
    return MSTAR_OK;
}
