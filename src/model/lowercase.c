/*
 * lowercase.c - str.lower() of Python, for folders with do_lower_case.
 *
 * That is Unicode's full lowercase mapping: each code point by itself, but for the capital sigma,
 * whose form depends on what stands around it (SpecialCasing.txt, Final_Sigma).
 */
#include <string.h>

#include "model/encoder.h"
#include "model/tokenizer.h"

#define CAPITAL_SIGMA 0x03A3
#define SMALL_SIGMA 0x03C3
#define FINAL_SIGMA 0x03C2
/* No mapping more than doubles the bytes: the worst is 2 to 3. */
#define GROWTH 2

/* The final form: a cased letter before it and none after it, what is ignorable set aside. */
static bool is_final(const unsigned char *text, size_t bytes, size_t place, size_t after)
{
    bool before = false;
    for (size_t at = place; at > 0;) {
        uint32_t code = mst_utf8_decode_before(text, at, &at);
        if (mst_is_case_ignorable(code))
            continue;
        before = mst_is_cased(code);
        break;
    }
    for (size_t at = after; before && at < bytes; at += mst_utf8_length(text[at])) {
        uint32_t code = mst_utf8_decode(text + at);
        if (!mst_is_case_ignorable(code))
            return !mst_is_cased(code);
    }
    return before;
}

mstar_status mst_lowercase(const char *text, size_t bytes, void **out, int64_t *capacity,
                           size_t *out_bytes)
{
    const size_t valid = mst_utf8_repair((const unsigned char *)text, bytes, NULL);
    size_t room;
    *out_bytes = 0;
    if (valid == 0)
        return MSTAR_OK; /* out may still be without memory */
    MST_TRY(mst_size_mul(valid, GROWTH + 1, &room));
    MST_TRY(mst_grow(out, capacity, (int64_t)room, 1, "lowercase text"));
    unsigned char *to = *out;
    unsigned char *from = to + GROWTH * valid; /* behind all that may be written */
    (void)mst_utf8_repair((const unsigned char *)text, bytes, from);
    size_t used = 0;
    for (size_t at = 0; at < valid;) {
        const size_t next = at + mst_utf8_length(from[at]);
        const uint32_t code = mst_utf8_decode(from + at);
        uint32_t lower[MST_MAX_LOWER];
        int32_t count = mst_to_lower(code, lower);
        if (code == CAPITAL_SIGMA)
            lower[0] = is_final(from, valid, at, next) ? FINAL_SIGMA : SMALL_SIGMA;
        for (int32_t i = 0; i < count; i++)
            used += mst_utf8_encode(lower[i], to + used);
        at = next;
    }
    *out_bytes = used;
    return MSTAR_OK;
}
