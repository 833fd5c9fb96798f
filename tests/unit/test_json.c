/* test_json.c - every getter: value, fallback, wrong type, bound, and the texts of errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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

/* One integer past 64 bits turns all of them into reals; the others must still read as integers. */
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
        cmocka_unit_test(test_file_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
