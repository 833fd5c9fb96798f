/*
 * fuzz_json.c - our JSON parser against jansson's own: the same texts are taken, and give equal
 * values.
 *
 * Where the two may differ: integers past 64 bits (ours are reals), nesting between 1000 and
 * jansson's 2048, numbers of over 1023 characters, and a NUL byte after a number, which jansson
 * drops.
 */
#include <string.h>

#include "model/json.h"
#include "support_fuzz.h"

/* Ours has a bound of its own here; told by the text. */
static bool is_bound(void)
{
    return strstr(mstar_last_error(), "nested deeper") != NULL ||
           strstr(mstar_last_error(), "1023 characters") != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_begin();
    json_t *ours = NULL;
    json_error_t error;
    json_t *theirs = json_loadb(bytes > 0 ? (const char *)data : "", bytes,
                                JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    bool took = fuzz_took(mst_json_parse("fuzz.json", data, bytes, &ours));
    FUZZ_CHECK(took == (ours != NULL));
    if (theirs != NULL)
        FUZZ_CHECK(took ? json_equal(ours, theirs)
                        : is_bound() || memchr(data, '\0', bytes) != NULL);
    else if (took)
        FUZZ_CHECK(json_error_code(&error) == json_error_numeric_overflow);
    json_decref(ours);
    json_decref(theirs);
    fuzz_end();
    return 0;
}
