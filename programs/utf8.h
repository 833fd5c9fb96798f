/* utf8.h - how many bytes of well-formed UTF-8 stand at the start of a text. */
#ifndef CLI_UTF8_H
#define CLI_UTF8_H

#include <stddef.h>

/* 1 to 4; 0 when the first bytes are not a character (surrogates, overlong forms, cut ones). */
static inline size_t cli_utf8_length(const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    if (bytes == 0)
        return 0;
    if (at[0] < 0x80)
        return 1;
    size_t length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || length > bytes)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return length;
}

#endif
