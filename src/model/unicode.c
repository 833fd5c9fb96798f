/*
 * unicode.c - properties of code points as the tokenizers package sees them; the only user of
 * utf8proc.
 *
 * That package takes categories and normal forms from Unicode 8 and 9, lower case and \w from
 * Unicode 16 and 17; utf8proc 2.8 holds Unicode 15. The tables below are the differences, found by
 * asking the package about every code point (tests/ref/test_tokenizer.py does so again). A range of
 * a `newer` table may span code points that never had the property, which keeps the tables short.
 */
#include <utf8proc.h>

#include "model/tokenizer.h"

typedef struct code_range {
    uint32_t first, last;
} code_range;

/* Cc, Cf, Co in Unicode 15, but not yet there */
static const code_range newer_control[] = {{0x0890, 0x08E2}, {0x110CD, 0x1343F}};

/* Mn in Unicode 15, but not yet in 8 */
static const code_range newer_nonspacing[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x08E1},   {0x09FE, 0x09FE},   {0x0AFA, 0x0AFF},
    {0x0B55, 0x0B55},   {0x0C04, 0x0C3C},   {0x0D00, 0x0D00},   {0x0D3B, 0x0D3C},
    {0x0D81, 0x0D81},   {0x0EBA, 0x0EBA},   {0x0ECE, 0x0ECE},   {0x180F, 0x1886},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFB},   {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},
    {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
    {0x110C2, 0x110C2}, {0x111C9, 0x111C9}, {0x111CF, 0x111CF}, {0x1123E, 0x11241},
    {0x1133B, 0x1133B}, {0x11438, 0x1145E}, {0x1182F, 0x13455}, {0x16F4F, 0x16F4F},
    {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF}, {0x1E944, 0x1E94A}};

/* M* in Unicode 15, but not yet in 9 */
static const code_range newer_mark[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x08D3},   {0x09FE, 0x09FE},   {0x0AFA, 0x0AFF},
    {0x0B55, 0x0B55},   {0x0C04, 0x0C3C},   {0x0CF3, 0x0D00},   {0x0D3B, 0x0D3C},
    {0x0D81, 0x0D81},   {0x0EBA, 0x0EBA},   {0x0ECE, 0x0ECE},   {0x1715, 0x1715},
    {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
    {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF},
    {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x11A99},
    {0x11D31, 0x13455}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FF1},
    {0x1CF00, 0x1CF46}, {0x1E08F, 0x1E4EF}};

/* P* in Unicode 15, but not yet in 8 */
static const code_range newer_punctuation[] = {
    {0x061D, 0x061D},   {0x09FD, 0x0A76},   {0x0C77, 0x0C84},   {0x1B7D, 0x1B7E},
    {0x2E43, 0x2E5D},   {0x10EAD, 0x10F89}, {0x1144B, 0x1145D}, {0x11660, 0x116B9},
    {0x1183B, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16E97, 0x16FE2}, {0x1E95E, 0x1E95F}};

/* \w in Unicode 16, but not yet in 15 */
static const code_range later_word[] = {
    {0x0897, 0x0897},   {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},
    {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85},
    {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
    {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2},
    {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0}, {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A},
    {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D6C}, {0x16D70, 0x16D79},
    {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9}, {0x1E5D0, 0x1E5FA}, {0x2EBF0, 0x2EE5D}};

/* Alphabetic, though neither letters nor marks: circled and squared letters; and the joiners */
static const code_range other_word[] = {
    {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

/* Other_Lowercase and Other_Uppercase, but for modifier letters, which are ignorable first */
static const code_range other_cased[] = {{0xAA, 0xAA},      {0xBA, 0xBA},       {0x2160, 0x217F},
                                         {0x24B6, 0x24E9},  {0x1F130, 0x1F149}, {0x1F150, 0x1F169},
                                         {0x1F170, 0x1F189}};

/* Word_Break MidLetter, MidNumLet and Single_Quote */
static const code_range between_letters[] = {
    {0x27, 0x27},     {0x2E, 0x2E},     {0x3A, 0x3A},     {0xB7, 0xB7},
    {0x387, 0x387},   {0x55F, 0x55F},   {0x5F4, 0x5F4},   {0x2018, 0x2019},
    {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52},
    {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E}, {0xFF1A, 0xFF1A}};

/* a compatibility decomposition in Unicode 15, but not yet in 9 */
static const code_range newer_compatibility[] = {
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},  {0x10781, 0x107BA},
    {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

/* a combining class in Unicode 15, but not yet in 9 */
static const code_range newer_combining[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x11A99}, {0x11D42, 0x11F42},
    {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E4EF}};

/* lower case in Unicode 17, but not yet in 15: first, last, first of the lower case */
static const struct {
    uint32_t first, last, lower;
} later_lower[] = {{0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x0264},
                   {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
                   {0xA7D2, 0xA7D2, 0xA7D3},    {0xA7D4, 0xA7D4, 0xA7D5},
                   {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x019B},
                   {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))
#define IN(table, code) in_table(table, COUNT(table), code)

static bool in_table(const code_range *table, int count, uint32_t code)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (code > table[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= table[low].first;
}

static utf8proc_category_t category_of(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code);
}

bool mst_is_dropped(uint32_t code)
{
    if (code < 0x80)
        return (code < 0x20 && code != '\t' && code != '\n' && code != '\r') || code == 0x7F;
    if (code == 0xFFFD)
        return true;
    utf8proc_category_t category = category_of(code);
    return (category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
            category == UTF8PROC_CATEGORY_CO) &&
           !IN(newer_control, code);
}

bool mst_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 0x09 && code <= 0x0D);
    if (code < 0x1680)
        return code == 0x85 || code == 0xA0;
    return code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool mst_is_punctuation(uint32_t code)
{
    if (code < 0x80)
        return code > 0x20 && code < 0x7F && !(code >= '0' && code <= '9') &&
               !((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
    utf8proc_category_t category = category_of(code);
    if (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO)
        return !IN(newer_punctuation, code);
    return code == 0x166D || code == 0x111C9; /* a symbol and a mark since Unicode 12 and 11 */
}

bool mst_is_word(uint32_t code)
{
    if (code < 0x80)
        return (code >= '0' && code <= '9') || code == '_' ||
               ((code | 0x20) >= 'a' && (code | 0x20) <= 'z');
    utf8proc_category_t category = category_of(code);
    if ((category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
        category == UTF8PROC_CATEGORY_PC)
        return true;
    return IN(other_word, code) || IN(later_word, code);
}

bool mst_is_ideograph(uint32_t code)
{
    return (code >= 0x3400 && code <= 0x4DBF) || (code >= 0x4E00 && code <= 0x9FFF) ||
           (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x20000 && code <= 0x2A6DF) ||
           (code >= 0x2A700 && code <= 0x2B81F) || (code >= 0x2B920 && code <= 0x2CEAF) ||
           (code >= 0x2F800 && code <= 0x2FA1F);
}

bool mst_is_nonspacing(uint32_t code)
{
    if (code < 0x300)
        return false;
    if (category_of(code) == UTF8PROC_CATEGORY_MN)
        return !IN(newer_nonspacing, code);
    return code == 0x1734; /* a spacing mark since Unicode 14 */
}

bool mst_is_mark(uint32_t code)
{
    if (code < 0x300)
        return false;
    utf8proc_category_t category = category_of(code);
    if (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME)
        return !IN(newer_mark, code);
    return code == 0x1CF2 || code == 0x1CF3; /* letters since Unicode 12 */
}

bool mst_is_cased(uint32_t code)
{
    utf8proc_category_t category = category_of(code);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT) ||
           IN(other_cased, code);
}

bool mst_is_case_ignorable(uint32_t code)
{
    utf8proc_category_t category = category_of(code);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
           category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
           category == UTF8PROC_CATEGORY_SK || IN(between_letters, code);
}

uint8_t mst_combining_class(uint32_t code)
{
    if (code < 0x300)
        return 0;
    utf8proc_propval_t value = utf8proc_get_property((utf8proc_int32_t)code)->combining_class;
    return value == 0 || IN(newer_combining, code) ? 0 : (uint8_t)value;
}

int32_t mst_to_lower(uint32_t code, uint32_t out[MST_MAX_LOWER])
{
    if (code == 0x130) { /* the only one with two */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    if (out[0] != code || code < later_lower[0].first)
        return 1;
    for (int i = 0; i < COUNT(later_lower); i++) {
        if (code >= later_lower[i].first && code <= later_lower[i].last)
            out[0] = later_lower[i].lower + (code - later_lower[i].first);
    }
    return 1;
}

/* The only canonical decomposition between Unicode 9 and 15. */
#define NEWER_COMPOSITE 0x11938

int32_t mst_decompose(uint32_t code, bool compatibility, uint32_t out[MST_MAX_DECOMPOSED])
{
    out[0] = code;
    bool ideograph = (code >= 0x3400 && code <= 0x4DBF) || (code >= 0x4E00 && code <= 0x9FFF);
    if (code < 0xA0 || ideograph || code == NEWER_COMPOSITE)
        return 1;
    int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE;
    if (compatibility && !IN(newer_compatibility, code))
        options |= UTF8PROC_COMPAT;
    utf8proc_int32_t codes[MST_MAX_DECOMPOSED];
    int boundary = 0;
    utf8proc_ssize_t count = utf8proc_decompose_char(
        (utf8proc_int32_t)code, codes, MST_MAX_DECOMPOSED, (utf8proc_option_t)options, &boundary);
    if (count < 1 || count > MST_MAX_DECOMPOSED)
        return 1;
    for (utf8proc_ssize_t i = 0; i < count; i++)
        out[i] = (uint32_t)codes[i];
    return (int32_t)count;
}

uint32_t mst_compose(uint32_t first, uint32_t second)
{
    utf8proc_int32_t codes[2] = {(utf8proc_int32_t)first, (utf8proc_int32_t)second};
    utf8proc_ssize_t count = utf8proc_normalize_utf32(codes, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return count == 1 && codes[0] != NEWER_COMPOSITE ? (uint32_t)codes[0] : 0;
}
