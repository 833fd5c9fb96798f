/* test_json.c - the parser, and every getter: value, fallback, wrong type, bound, texts of errors.
 */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/json.h"

static json_t *parse(const char *text)
{
    json_t *root = NULL;
    assert_int_equal(mst_json_parse("f.json", text, strlen(text), &root), MSTAR_OK);
    return root;
}

static void expect_error(mstar_status status, mstar_status wanted, const char *text)
{
    assert_int_equal(status, wanted);
    assert_string_equal(mstar_last_error(), text);
}

static void test_parse_errors(void **state)
{
    (void)state;
    json_t *root = (json_t *)(uintptr_t)1;
    assert_int_equal(mst_json_parse("f.json", "{\n \"a\": }", 9, &root), MSTAR_BAD_DATA);
    assert_null(root);
    assert_non_null(strstr(mstar_last_error(), "f.json: line 2, column 7: "));
    assert_int_equal(mst_json_parse("f.json", "{\"a\":1,\"a\":2}", 13, &root), MSTAR_BAD_DATA);
    assert_non_null(strstr(mstar_last_error(), "duplicate"));
    assert_int_equal(mst_json_parse("f.json", NULL, 0, &root), MSTAR_BAD_DATA);
    assert_int_equal(mst_json_parse("f.json", "{} x", 4, &root), MSTAR_BAD_DATA);
    assert_int_equal(mst_json_parse("f.json", "{\"a\":\"\xff\"}", 9, &root), MSTAR_BAD_DATA);
    assert_int_equal(mst_json_read("/nowhere/f.json", &root), MSTAR_NOT_FOUND);
    assert_null(root);
    /* deeper than the parser goes: an error, never a stack overflow */
    static char deep[200000];
    memset(deep, '[', sizeof deep);
    assert_int_equal(mst_json_parse("f.json", deep, sizeof deep, &root), MSTAR_BAD_DATA);
}

static void test_getters(void **state)
{
    (void)state;
    json_t *root =
        parse("{\"i\":12,\"r\":12.0,\"h\":0.5,\"b\":true,\"s\":\"x\",\"z\":\"a\\u0000b\","
              "\"l\":[1],\"o\":{\"p\":1},\"n\":null}");
    int64_t integer = -7;
    assert_int_equal(mst_json_get_int(root, "f.json", "i", 12, 12, &integer), MSTAR_OK);
    assert_int_equal(integer, 12);
    assert_int_equal(mst_json_get_int(root, "f.json", "r", 0, 20, &integer), MSTAR_OK);
    assert_int_equal(integer, 12);
    expect_error(mst_json_get_int(root, "f.json", "i", 13, 20, &integer), MSTAR_BAD_DATA,
                 "f.json: i is 12; it must be from 13 to 20");
    expect_error(mst_json_get_int(root, "f.json", "h", 0, 1, &integer), MSTAR_BAD_DATA,
                 "f.json: h is 0.5; an integer is wanted");
    expect_error(mst_json_get_int(root, "f.json", "q", 0, 1, &integer), MSTAR_BAD_DATA,
                 "f.json: q is missing; an integer is wanted");
    expect_error(mst_json_get_int(root, "f.json", "n", 0, 1, &integer), MSTAR_BAD_DATA,
                 "f.json: n is missing; an integer is wanted");
    expect_error(mst_json_get_int(root, "f.json", "s", 0, 1, &integer), MSTAR_BAD_DATA,
                 "f.json: s is \"x\"; an integer is wanted");
    assert_int_equal(integer, 12);
    assert_int_equal(mst_json_get_int_or(root, "f.json", "n", 0, 1, -1, &integer), MSTAR_OK);
    assert_int_equal(integer, -1);

    double number = 0;
    assert_int_equal(mst_json_get_number(root, "f.json", "h", &number), MSTAR_OK);
    assert_true(number == 0.5);
    assert_int_equal(mst_json_get_number(root, "f.json", "i", &number), MSTAR_OK);
    assert_true(number == 12.0);
    expect_error(mst_json_get_number(root, "f.json", "b", &number), MSTAR_BAD_DATA,
                 "f.json: b is true; a number is wanted");
    assert_int_equal(mst_json_get_number_or(root, "f.json", "q", 1e-12, &number), MSTAR_OK);
    assert_true(number == 1e-12);

    bool boolean = false;
    assert_int_equal(mst_json_get_bool(root, "f.json", "b", &boolean), MSTAR_OK);
    assert_true(boolean);
    expect_error(mst_json_get_bool_or(root, "f.json", "l", false, &boolean), MSTAR_BAD_DATA,
                 "f.json: l is a list; true or false is wanted");
    assert_int_equal(mst_json_get_bool_or(root, "f.json", "q", true, &boolean), MSTAR_OK);
    assert_true(boolean);

    const char *text = NULL;
    assert_int_equal(mst_json_get_string(root, "f.json", "s", &text), MSTAR_OK);
    assert_string_equal(text, "x");
    expect_error(mst_json_get_string(root, "f.json", "z", &text), MSTAR_BAD_DATA,
                 "f.json: z holds a NUL at byte 1");
    expect_error(mst_json_get_string(root, "f.json: o", "p", &text), MSTAR_BAD_DATA,
                 "f.json: o: p is missing; a string is wanted");
    assert_int_equal(mst_json_get_string_or(root, "f.json", "q", "d", &text), MSTAR_OK);
    assert_string_equal(text, "d");

    const json_t *inner = NULL;
    assert_int_equal(mst_json_get_array(root, "f.json", "l", &inner), MSTAR_OK);
    assert_int_equal(json_array_size(inner), 1);
    expect_error(mst_json_get_array(root, "f.json", "o", &inner), MSTAR_BAD_DATA,
                 "f.json: o is an object; a list is wanted");
    assert_int_equal(mst_json_get_object(root, "f.json", "o", &inner), MSTAR_OK);
    assert_int_equal(mst_json_get_int(inner, "f.json: o", "p", 0, 1, &integer), MSTAR_OK);
    expect_error(mst_json_get_object(root, "f.json", "l", &inner), MSTAR_BAD_DATA,
                 "f.json: l is a list; an object is wanted");
    assert_int_equal(mst_json_get_array_or_null(root, "f.json", "n", &inner), MSTAR_OK);
    assert_null(inner);
    assert_int_equal(mst_json_get_object_or_null(NULL, "f.json", "n", &inner), MSTAR_OK);
    assert_null(inner);
    assert_int_equal(mst_json_get_object_or_null(root, "f.json", "i", &inner), MSTAR_BAD_DATA);
    json_decref(root);
}

/* An integer past 64 bits becomes a real, and the others stay integers. */
static void test_huge_integer(void **state)
{
    (void)state;
    json_t *root = parse("{\"model_max_length\":1000000000000000019884624838656,\"i\":512}");
    double number = 0;
    int64_t integer = 0;
    assert_int_equal(mst_json_get_number(root, "f.json", "model_max_length", &number), MSTAR_OK);
    assert_true(number == 1e30);
    expect_error(mst_json_get_int(root, "f.json", "model_max_length", 1, 1000, &integer),
                 MSTAR_BAD_DATA, "f.json: model_max_length is 1e+30; it must be from 1 to 1000");
    assert_int_equal(mst_json_get_int(root, "f.json", "i", 1, 1000, &integer), MSTAR_OK);
    assert_int_equal(integer, 512);
    json_decref(root);
}

/* What is refused, where, and why. */
static void test_refused_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "line 1, column 1: the document ends too early"},
        {"5", "line 1, column 1: an object or a list is wanted"},
        {"[1", "line 1, column 3: the document ends too early"},
        {"[1 2]", "line 1, column 4: ',' or ']' is wanted"},
        {"[1,]", "line 1, column 4: not a value"},
        {"{\"a\" 1}", "line 1, column 6: ':' is wanted"},
        {"{\"a\":1,}", "line 1, column 8: a string is wanted"},
        {"[]\n[]", "line 2, column 1: more after the end of the document"},
        {"[01]", "line 1, column 2: not a value"},
        {"[-]", "line 1, column 2: not a value"},
        {"[1.]", "line 1, column 4: digits are wanted after the point"},
        {"[1e+]", "line 1, column 5: digits are wanted in the exponent"},
        {"[1e999]", "line 1, column 2: a number past the largest double"},
        {"[NaN]", "line 1, column 2: not a value"},
        {"[truth]", "line 1, column 2: not a value"},
        {"[\"a\nb\"]", "line 1, column 4: a control character in a string"},
        {"[\"\\x\"]", "line 1, column 4: no such escape"},
        {"[\"\\u12g4\"]", "line 1, column 7: \\u must be followed by four hexadecimal digits"},
        {"[\"\\ud800\"]", "line 1, column 3: half of a surrogate pair"},
        {"[\"\\ud800\\u0041\"]", "line 1, column 3: half of a surrogate pair"},
        {"[\"\\udc00\"]", "line 1, column 3: half of a surrogate pair"},
        {"[\"\xc3\xa9\xc3\"]", "line 1, column 4: not UTF-8"},
        {"{\"a\\u0000\":1}", "line 1, column 2: a NUL in an object key"},
        {"{\"a\":1,\"\\u0061\":2}", "line 1, column 8: duplicate object key"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = NULL;
        char text[256];
        snprintf(text, sizeof text, "f.json: %s", cases[i].error);
        expect_error(mst_json_parse("f.json", cases[i].text, strlen(cases[i].text), &root),
                     MSTAR_BAD_DATA, text);
        assert_null(root);
    }
}

static void test_values(void **state)
{
    (void)state;
    json_t *root = parse(" [9223372036854775807, -9223372036854775808, -0, -1.5e-3, 5e-324, "
                         "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00E9\\ud83d\\ude00\xc3\xa9\", [], {}, "
                         "{\"\":null}] ");
    assert_int_equal(json_array_size(root), 9);
    assert_true(json_integer_value(json_array_get(root, 0)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(root, 1)) == INT64_MIN);
    assert_true(json_is_integer(json_array_get(root, 2)));
    assert_true(json_real_value(json_array_get(root, 3)) == -1.5e-3);
    assert_true(json_real_value(json_array_get(root, 4)) == 0x1p-1074);
    assert_string_equal(json_string_value(json_array_get(root, 5)),
                        "\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80\xc3\xa9");
    assert_int_equal(json_object_size(json_array_get(root, 7)), 0);
    assert_true(json_is_null(json_object_get(json_array_get(root, 8), "")));
    json_decref(root);
}

/* The host's locale may write 1,5 for 1.5. */
static void test_other_locales(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8"};
    const char *set = NULL;
    for (size_t i = 0; i < 3 && set == NULL; i++)
        set = setlocale(LC_NUMERIC, names[i]);
    if (set == NULL)
        skip(); /* no such locale is installed */
    json_t *root = parse("[1.5,-2.25e2]");
    assert_true(json_real_value(json_array_get(root, 0)) == 1.5);
    assert_true(json_real_value(json_array_get(root, 1)) == -225.0);
    json_decref(root);
    (void)setlocale(LC_NUMERIC, "C");
}

/* ---- failed allocations, ours and jansson's -------------------------------------------------- */

static uint64_t jansson_calls, jansson_fails_at;

static void *jansson_alloc(size_t bytes)
{
    return ++jansson_calls == jansson_fails_at ? NULL : malloc(bytes);
}

static int fail_number(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(const uint64_t *)context;
}

/* A failed parse says OUT_OF_MEMORY and gives nothing; one that succeeds gives the whole document.
 */
static void test_failed_allocations(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a key that is longer than sixteen bytes\":[1,2.5,3,4,5,6,7,8,9,10,11,12],\"b\":{\"c\":"
        "\"a text that is longer than sixteen bytes \\u00e9\",\"d\":[[[[\"\"]]]],\"e\":0,\"f\":1,"
        "\"g\":2,\"h\":3,\"i\":4,\"j\":5,\"k\":6,\"l\":7,\"m\":8}}";
    json_t *whole = parse(text);
    json_malloc_t former_malloc;
    json_free_t former_free;
    json_get_alloc_funcs(&former_malloc, &former_free);
    json_set_alloc_funcs(jansson_alloc, free); /* the test is the host */
    for (int ours = 0; ours <= 1; ours++) {
        uint64_t number = 0;
        mstar_status status = MSTAR_OUT_OF_MEMORY;
        while (status != MSTAR_OK) {
            json_t *root = NULL;
            number++;
            jansson_calls = 0;
            jansson_fails_at = ours ? 0 : number;
            if (ours)
                mstar_set_alloc_fault(fail_number, &number);
            status = mst_json_parse("f.json", text, sizeof text - 1, &root);
            mstar_set_alloc_fault(NULL, NULL);
            if (status == MSTAR_OK) {
                assert_true(json_equal(root, whole));
                json_decref(root);
            } else {
                assert_int_equal(status, MSTAR_OUT_OF_MEMORY);
                assert_null(root);
            }
            assert_true(number < 1000);
        }
        assert_true(number > (ours ? 10 : 50));
    }
    json_set_alloc_funcs(former_malloc, former_free);
    json_decref(whole);
}

static void test_file_name(void **state)
{
    (void)state;
    assert_string_equal(mst_json_file_name("/a/b/c.json"), "c.json");
    assert_string_equal(mst_json_file_name("c.json"), "c.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_errors),
        cmocka_unit_test(test_getters),
        cmocka_unit_test(test_huge_integer),
        cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_other_locales),
        cmocka_unit_test(test_failed_allocations),
        cmocka_unit_test(test_file_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
