/* test_graph_layout.c - token layouts and compile modes: every written vector, and properties
 * against slow versions. */
#include "support_check.h"

#include <stdlib.h>
#include <string.h>

#include "mstar/graph.h"

typedef struct vector {
    int64_t total, bs, want[8];
} vector;

static void check_vectors(mstar_status (*layout)(int64_t, int64_t, int64_t *), const vector *rows,
                          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int64_t got[9];
        memset(got, 0x7f, sizeof got);
        int64_t poison = got[8];
        CHECK_OK(layout(rows[i].total, rows[i].bs, got));
        assert_memory_equal(got, rows[i].want, (size_t)rows[i].bs * sizeof *got);
        assert_int_equal(got[8], poison);
    }
}

static void test_distribute_vectors(void **state)
{
    (void)state;
    static const vector rows[] = {
        {10, 3, {4, 3, 3}}, {7, 4, {4, 1, 1, 1}},  {3, 4, {3}},
        {0, 3, {0}},        {5, 1, {5}},           {512, 8, {64, 64, 64, 64, 64, 64, 64, 64}},
        {0, 1, {0}},        {11, 4, {5, 2, 2, 2}},
    };
    check_vectors(mstar_distribute_tokens, rows, sizeof rows / sizeof rows[0]);
}

static void test_decode_vectors(void **state)
{
    (void)state;
    static const vector rows[] = {
        {10, 3, {1, 1, 8}}, {4, 4, {1, 1, 1, 1}}, {3, 4, {3}},    {5, 1, {5}},    {0, 1, {0}},
        {0, 4, {0}},        {1, 1, {1}},          {2, 2, {1, 1}}, {1, 2, {1, 0}},
    };
    check_vectors(mstar_decode_rows_then_prompt, rows, sizeof rows / sizeof rows[0]);
}

/* One token at a time: to everybody in turn while there is one for each, the rest to the first. */
static void slow_distribute(int64_t total, int64_t bs, int64_t *lengths)
{
    for (int64_t i = 0; i < bs; i++)
        lengths[i] = 0;
    for (; total >= bs; total -= bs) {
        for (int64_t i = 0; i < bs; i++)
            lengths[i]++;
    }
    lengths[0] += total;
}

/* One token to everybody but the last, then all of the rest to the last. */
static void slow_decode(int64_t total, int64_t bs, int64_t *lengths)
{
    slow_distribute(total, bs, lengths);
    if (total < bs)
        return;
    for (int64_t i = 0; i < bs - 1; i++) {
        lengths[i] = 1;
        total--;
    }
    lengths[bs - 1] = total;
}

static void test_properties(void **state)
{
    (void)state;
    check_rng rng = {41};
    int64_t got[64], want[64];
    for (int round = 0; round < 20000; round++) {
        int64_t bs = check_integer(&rng, 1, 64);
        int64_t total = check_integer(&rng, 0, round % 2 ? 3 * bs : 3000);
        CHECK_OK(mstar_distribute_tokens(total, bs, got));
        slow_distribute(total, bs, want);
        assert_memory_equal(got, want, (size_t)bs * sizeof *got);
        CHECK_OK(mstar_decode_rows_then_prompt(total, bs, got));
        slow_decode(total, bs, want);
        assert_memory_equal(got, want, (size_t)bs * sizeof *got);
        CHECK_OK(mstar_layout_decode_then_prompt(NULL, total, bs, got));
        assert_memory_equal(got, want, (size_t)bs * sizeof *got);
        slow_distribute(total, bs, want);
        CHECK_OK(mstar_layout_even(NULL, total, bs, got));
        assert_memory_equal(got, want, (size_t)bs * sizeof *got);
    }
}

static void test_refused(void **state)
{
    (void)state;
    mstar_status (*const layouts[])(int64_t, int64_t, int64_t *) = {mstar_distribute_tokens,
                                                                    mstar_decode_rows_then_prompt};
    for (size_t i = 0; i < 2; i++) {
        int64_t one = -77;
        CHECK_INVALID(layouts[i](5, 0, &one), "bs is 0");
        CHECK_INVALID(layouts[i](5, -1, &one), "bs is -1");
        CHECK_INVALID(layouts[i](5, MSTAR_MAX_BATCH_SIZE + 1, &one), "65536");
        CHECK_INVALID(layouts[i](-1, 1, &one), "total_tokens is -1");
        CHECK_INVALID(layouts[i](INT64_C(1) << 31, 1, &one), "2147483647");
        CHECK_INVALID(layouts[i](1, 1, NULL), "lengths is NULL");
        assert_int_equal(one, -77);
        CHECK_OK(layouts[i](INT32_MAX, 1, &one));
        assert_int_equal(one, INT32_MAX);
    }
}

/* ---- compile modes --------------------------------------------------------------------------- */

static void test_compile_mode(void **state)
{
    (void)state;
    unsetenv("MSTAR_GRAPH_COMPILE_MODE");
    CHECK_OK(mstar_check_compile_mode(NULL));
    CHECK_OK(mstar_check_compile_mode("default"));
    CHECK_OK(mstar_check_compile_mode("max-autotune-no-cudagraphs"));
    static const char *const bad[] = {"reduce-overhead", "max-autotune", "",
                                      "Default",         "fast",         "default "};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *effective = "untouched";
        CHECK_INVALID(mstar_check_compile_mode(bad[i]), bad[i]);
        assert_non_null(strstr(mstar_last_error(), "max-autotune-no-cudagraphs"));
        assert_non_null(strstr(mstar_last_error(), "\"default\""));
        CHECK_INVALID(mstar_effective_compile_mode(bad[i], &effective), bad[i]);
        assert_string_equal(effective, "untouched");
    }
    CHECK_INVALID(mstar_check_compile_mode("reduce-overhead"), "inside the capture");
    CHECK_INVALID(mstar_effective_compile_mode(NULL, NULL), "effective is NULL");
}

static void test_effective_mode(void **state)
{
    (void)state;
    const char *effective;
    unsetenv("MSTAR_GRAPH_COMPILE_MODE");
    CHECK_OK(mstar_effective_compile_mode(NULL, &effective));
    assert_string_equal(effective, "default");
    char mode[] = "max-autotune-no-cudagraphs";
    CHECK_OK(mstar_effective_compile_mode(mode, &effective));
    mode[0] = '?'; /* a static string, not the caller's */
    assert_string_equal(effective, "max-autotune-no-cudagraphs");
    setenv("MSTAR_GRAPH_COMPILE_MODE", "default", 1);
    CHECK_OK(mstar_effective_compile_mode("max-autotune-no-cudagraphs", &effective));
    assert_string_equal(effective, "default");
    setenv("MSTAR_GRAPH_COMPILE_MODE", "max-autotune", 1);
    CHECK_INVALID(mstar_effective_compile_mode(NULL, &effective), "MSTAR_GRAPH_COMPILE_MODE");
    setenv("MSTAR_GRAPH_COMPILE_MODE", "", 1); /* empty counts as unset */
    CHECK_OK(mstar_effective_compile_mode(NULL, &effective));
    unsetenv("MSTAR_GRAPH_COMPILE_MODE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribute_vectors), cmocka_unit_test(test_decode_vectors),
        cmocka_unit_test(test_properties),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_compile_mode),       cmocka_unit_test(test_effective_mode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
