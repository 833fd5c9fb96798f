/*
 * number.c - floats as text that reads back to the same bits.
 *
 * printf is too slow here (a vector of 384 numbers would take a good part of the time of its
 * forward pass) and needs several tries to be short. Between 1e-5 and 1e9 every candidate of n
 * digits is D / 10^k with D and 10^k exact in a double, so one division gives the double that a
 * reader would get, correctly rounded, and a comparison decides. Nine digits always pass: half a
 * unit of the ninth digit is at most 5e-9 of the value, half the spacing of floats at least 2.9e-8.
 */
#include "number.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const double powers[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6, 1e7,
                                1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14};
static const double steps[] = {1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8};

/* Does the double that a reader gets round to size? A double half way between two floats does not
 * count: the decimal behind it may lie on either side. */
static bool reads_back(double read, float size)
{
    uint64_t bits;
    memcpy(&bits, &read, sizeof bits);
    return (float)read == size && (bits & 0x1fffffffu) != 0x10000000u;
}

/* digits / 10^places, places from 1 to 14, without the zeros at the end that say nothing. */
static size_t write_fixed(bool negative, uint64_t digits, int places, char *text)
{
    while (places > 1 && digits % 10 == 0) {
        digits /= 10;
        places--;
    }
    char reversed[32];
    int count = 0;
    for (; places > 0; places--, digits /= 10)
        reversed[count++] = (char)('0' + digits % 10);
    reversed[count++] = '.';
    do {
        reversed[count++] = (char)('0' + digits % 10);
        digits /= 10;
    } while (digits != 0);
    if (negative)
        reversed[count++] = '-';
    for (int i = 0; i < count; i++)
        text[i] = reversed[count - 1 - i];
    return (size_t)count;
}

size_t cli_format_f32(float value, char *text)
{
    if (value == 0.0f) {
        const char *zero = signbit(value) ? "-0.0" : "0.0";
        size_t bytes = strlen(zero);
        memcpy(text, zero, bytes);
        return bytes;
    }
    double size = fabs((double)value);
    if (size >= 1e-5 && size < 1e9) {
        int exponent = -5; /* of the first digit, give or take one at a power of ten */
        while (exponent < 8 && size >= steps[exponent + 5])
            exponent++;
        for (int n = 6; n <= 10; n++) {
            int places = n - 1 - exponent;
            if (places < 1)
                continue;
            double digits = floor(size * powers[places] + 0.5);
            if (reads_back(digits / powers[places], (float)size))
                return write_fixed(value < 0, (uint64_t)digits, places, text);
        }
    }
    int written = snprintf(text, CLI_F32_CHARS, "%.9g", (double)value);
    size_t used = written > 0 ? (size_t)written : 0;
    if (memchr(text, '.', used) == NULL && memchr(text, 'e', used) == NULL && used > 0) {
        memcpy(text + used, ".0", 2);
        used += 2;
    }
    return used;
}
