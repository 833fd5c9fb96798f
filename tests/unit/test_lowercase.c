/* test_lowercase.c - str.lower() of Python. */
#include "support_folder.h"

#include <stdlib.h>
#include <string.h>

#include "model/encoder.h"

#define FFFD "\xef\xbf\xbd"

static void test_lowercase(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"", ""},
        {"Hello [SEP] 1", "hello [sep] 1"},
        {"\xc3\x84\xc3\x9f", "\xc3\xa4\xc3\x9f"},     /* umlaut; sharp s stays */
        {"\xc4\xb0", "i\xcc\x87"},                    /* I with dot: two code points */
        {"\xc8\xba", "\xe2\xb1\xa5"},                 /* 2 bytes become 3 */
        {"\xce\x91\xce\xa3", "\xce\xb1\xcf\x82"},     /* sigma at the end of a word */
        {"\xce\xa3", "\xcf\x83"},                     /* and alone */
        {"\xce\xa3\xce\x91", "\xcf\x83\xce\xb1"},     /* and at its start */
        {"\xce\x91.\xce\xa3.", "\xce\xb1.\xcf\x82."}, /* '.' is set aside */
        {"\xce\x91\xce\xa3.\xce\x91", "\xce\xb1\xcf\x83.\xce\xb1"},
        {"\xce\x91 \xce\xa3", "\xce\xb1 \xcf\x83"},
        {"\xce\x91\xce\xa3\xcc\x81", "\xce\xb1\xcf\x82\xcc\x81"}, /* so is an accent */
        /* what is not UTF-8 is read as U+FFFD, one for each maximal part */
        {"A\xff\xc3Z\xed\xa0\x80", "a" FFFD FFFD "z" FFFD FFFD FFFD},
        {"\xff\xce\xa3", FFFD "\xcf\x83"},
        {"\xce\x91\xce\xa3\xff", "\xce\xb1\xcf\x82" FFFD},
    };
    void *out = NULL;
    int64_t capacity = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = strlen(cases[i].text);
        size_t got;
        char *exact = malloc(bytes + 1); /* no terminator: nothing behind it may be read */
        assert_non_null(exact);
        memcpy(exact, cases[i].text, bytes);
        FOLDER_OK(mst_lowercase(exact, bytes, &out, &capacity, &got));
        free(exact);
        if (got != strlen(cases[i].wanted) || (got > 0 && memcmp(out, cases[i].wanted, got) != 0))
            print_error("case %zu\n", i);
        assert_int_equal(got, strlen(cases[i].wanted));
        if (got > 0)
            assert_memory_equal(out, cases[i].wanted, got);
    }
    /* NUL is a character like any other */
    size_t got;
    FOLDER_OK(mst_lowercase("A\0B", 3, &out, &capacity, &got));
    assert_int_equal(got, 3);
    assert_memory_equal(out, "a\0b", 3);
    mst_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowercase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
