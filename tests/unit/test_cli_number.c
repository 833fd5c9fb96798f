/*
 * test_cli_number.c - floats as text: read back to the same bits, as short as can be.
 *
 * The program is not a library, so its file is included here.
 */
#include "../../programs/number.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support_random.h"

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void format(float value, char text[CLI_F32_CHARS + 1])
{
    size_t bytes = cli_format_f32(value, text);
    assert_in_range(bytes, 1, CLI_F32_CHARS);
    text[bytes] = '\0';
}

static int count_digits(const char *text)
{
    int digits = 0;
    bool leading = true;
    for (; *text != '\0' && *text != 'e'; text++) {
        leading = leading && (*text == '0' || *text == '.' || *text == '-');
        digits += !leading && *text != '.';
    }
    return digits;
}

/* Readers go through a double (JSON in most languages) or straight to a float. */
static void check_value(float value)
{
    char text[CLI_F32_CHARS + 1];
    format(value, text);
    char *end = NULL;
    assert_int_equal(to_bits(strtof(text, &end)), to_bits(value));
    assert_int_equal(*end, '\0');
    assert_int_equal(to_bits((float)strtod(text, NULL)), to_bits(value));
    assert_true(strpbrk(text, ".e") != NULL);
    assert_true(text[0] != '.' && !(text[0] == '-' && text[1] == '.'));
    /* no shorter than printf needs, which is tried from one digit up */
    double size = fabs((double)value);
    if (!(size >= 1e-5 && size < 1e5))
        return;
    for (int digits = 1; digits <= 9; digits++) {
        char shortest[64];
        (void)snprintf(shortest, sizeof shortest, "%.*e", digits - 1, (double)value);
        if (to_bits(strtof(shortest, NULL)) == to_bits(value)) {
            /* "2.0" and "10.0" carry zeros that say where the point is */
            if (!(count_digits(text) <= digits || size >= 1))
                fail_msg("%s against %s", text, shortest);
            break;
        }
    }
}

static void test_known_texts(void **state)
{
    (void)state;
    static const struct {
        float value;
        const char *text;
    } known[] = {
        {0.0f, "0.0"},           {-0.0f, "-0.0"},
        {1.0f, "1.0"},           {-2.5f, "-2.5"},
        {0.1f, "0.1"},           {0.3f, "0.3"},
        {-2e-5f, "-0.00002"},    {100.0f, "100.0"},
        {0.0625f, "0.0625"},     {16777216.0f, "16777216.0"},
        {123456.0f, "123456.0"}, {1.0f / 3.0f, "0.33333334"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char text[CLI_F32_CHARS + 1];
        format(known[i].value, text);
        assert_string_equal(text, known[i].text);
    }
}

static void test_every_exponent(void **state)
{
    (void)state;
    static const uint32_t fractions[] = {0, 1, 2, 0x3fffff, 0x400000, 0x400001, 0x7ffffe, 0x7fffff};
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (size_t i = 0; i < sizeof fractions / sizeof fractions[0]; i++) {
            check_value(from_bits(exponent << 23 | fractions[i]));
            check_value(from_bits(0x80000000u | exponent << 23 | fractions[i]));
        }
    }
}

static void test_powers_of_ten_and_neighbours(void **state)
{
    (void)state;
    for (int power = -12; power <= 12; power++) {
        float value =
            strtof((char[8]){'1', 'e', (char)(power < 0 ? '-' : '+'), (char)('0' + abs(power) / 10),
                             (char)('0' + abs(power) % 10), '\0'},
                   NULL);
        for (uint32_t bits = to_bits(value) - 40; bits != to_bits(value) + 40; bits++)
            check_value(from_bits(bits));
    }
}

static void test_random_values(void **state)
{
    (void)state;
    test_random random = {.state = 1};
    for (int i = 0; i < 300000; i++) {
        uint32_t bits = (uint32_t)test_random_bits(&random);
        if ((bits & 0x7f800000u) != 0x7f800000u)
            check_value(from_bits(bits));
        /* where the components of vectors lie: 2^-17 to 2 */
        uint32_t exponent = 110 + (uint32_t)(test_random_bits(&random) % 18);
        check_value(from_bits((bits & 0x807fffffu) | exponent << 23));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_texts),
        cmocka_unit_test(test_every_exponent),
        cmocka_unit_test(test_powers_of_ten_and_neighbours),
        cmocka_unit_test(test_random_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
