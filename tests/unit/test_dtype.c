/*
 * test_dtype.c - names, sizes, and conversions against exact float64 arithmetic.
 *
 * The reference rounds a double to a grid: every f32 is exact in f64, and so are the distances to
 * the two neighbours on the coarser grid, which makes ties visible.
 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "support_check.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The value of a 16-bit pattern by its definition. */
static double value_of(uint16_t bits, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

/* Nearest value with that many bits of precision and least exponent, ties to even; not NaN. */
static double round_to(double value, int precision, int least_exponent, double largest)
{
    if (isinf(value))
        return value;
    int exponent;
    (void)frexp(value, &exponent);
    if (exponent < least_exponent)
        exponent = least_exponent;
    double unit = ldexp(1.0, exponent - precision);
    double scaled = value / unit; /* exact: a power of two */
    double low = floor(scaled);
    double rest = scaled - low; /* exact: both are small multiples of the same unit */
    double whole = rest > 0.5 || (rest == 0.5 && fmod(low, 2.0) != 0.0) ? low + 1.0 : low;
    double rounded = copysign(whole * unit, value);
    return fabs(rounded) > largest ? copysign((double)INFINITY, value) : rounded;
}

#define BF16_LARGEST 0x1.fep127
#define F16_LARGEST 65504.0

static double round_bf16(double value)
{
    return round_to(value, 8, -125, BF16_LARGEST);
}

static double round_f16(double value)
{
    return round_to(value, 11, -13, F16_LARGEST);
}

/* Equal as numbers, signs of zero included; NaN never. */
static int same(double a, double b)
{
    return a == b && signbit(a) == signbit(b);
}

static void check_narrow(float value)
{
    uint16_t bf16 = mst_f32_to_bf16(value);
    uint16_t f16 = mst_f32_to_f16(value);
    if (isnan(value)) {
        assert_true(isnan(value_of(bf16, 8)) && (bf16 & 0x0040) != 0);
        assert_true(isnan(value_of(f16, 5)) && (f16 & 0x0200) != 0);
        assert_int_equal(bf16 >> 15, bits_of(value) >> 31);
        assert_int_equal(f16 >> 15, bits_of(value) >> 31);
        return;
    }
    if (!same(value_of(bf16, 8), round_bf16((double)value)))
        fail_msg("%a became the bf16 pattern %04x", (double)value, bf16);
    if (!same(value_of(f16, 5), round_f16((double)value)))
        fail_msg("%a became the f16 pattern %04x", (double)value, f16);
}

static void every_pattern_widens_exactly(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t pattern = (uint16_t)bits;
        float wide[2] = {mst_bf16_to_f32(pattern), mst_f16_to_f32(pattern)};
        double want[2] = {value_of(pattern, 8), value_of(pattern, 5)};
        uint16_t back[2] = {mst_f32_to_bf16(wide[0]), mst_f32_to_f16(wide[1])};
        const uint16_t quiet[2] = {0x0040, 0x0200};
        for (int i = 0; i < 2; i++) {
            if (isnan(want[i])) {
                assert_true(isnan(wide[i]));
                assert_int_equal(back[i], pattern | quiet[i]);
                assert_int_equal(bits_of(wide[i]) >> 31, bits >> 15);
                continue;
            }
            assert_true(same((double)wide[i], want[i]));
            assert_int_equal(back[i], pattern);
        }
    }
}

/* Around every value of both formats and halfway to the next: the tie and its two neighbours. */
static void check_boundaries(void)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint32_t wide = bits << 16;
        for (int step = -1; step <= 1; step++) {
            check_narrow(float_of(wide + (uint32_t)step));
            check_narrow(float_of(wide + 0x8000U + (uint32_t)step));
        }
        double value = value_of((uint16_t)bits, 5);
        double next = value_of((uint16_t)(bits + 1), 5);
        if (!isfinite(value))
            continue;
        if (isinf(next) && (bits & 0x7fff) == 0x7bff)
            next = copysign(65536.0, value); /* the step beyond the largest */
        float tie = (float)((value + next) / 2.0);
        if (!isfinite(tie))
            continue;
        check_narrow(tie);
        check_narrow(nextafterf(tie, INFINITY));
        check_narrow(nextafterf(tie, -INFINITY));
    }
}

static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    check_boundaries();
    const float special[] = {0.0f,        -0.0f,           INFINITY,    -INFINITY,      NAN,
                             -NAN,        0x1p-149f,       0x1p-126f,   0x1p-25f,       -0x1p-25f,
                             0x1.8p-25f,  0x1p-24f,        65519.99f,   65520.0f,       65536.0f,
                             0x1.fep127f, 0x1.fffffep127f, 0x1.ffp127f, 0x1.fefffep127f};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        check_narrow(special[i]);
    check_narrow(float_of(0x7f800001)); /* signalling, with a payload in the low bits only */
    check_narrow(float_of(0xff800001));
    check_narrow(float_of(0x7fffffff));
    check_rng rng = {7};
    for (int i = 0; i < 200000; i++)
        check_narrow(float_of((uint32_t)check_bits(&rng)));
}

/* Conversions run on the caller's thread, in whatever mode it is. */
static void the_callers_mode_does_not_matter(void **state)
{
    (void)state;
#if defined(__x86_64__)
    enum { COUNT = 4096 };
    static float in[COUNT], wide[2][COUNT];
    static uint16_t want[2][COUNT], got[2][COUNT];
    check_rng rng = {11};
    for (int i = 0; i < COUNT; i++)
        in[i] =
            float_of((uint32_t)check_integer(&rng, 0x30000000, 0x3a000000)); /* f16 subnormals */
    CHECK_OK(mstar_convert(in, MSTAR_DTYPE_F32, want[0], MSTAR_DTYPE_F16, COUNT));
    CHECK_OK(mstar_convert(in, MSTAR_DTYPE_F32, want[1], MSTAR_DTYPE_BF16, COUNT));
    CHECK_OK(mstar_convert(want[0], MSTAR_DTYPE_F16, wide[0], MSTAR_DTYPE_F32, COUNT));
    unsigned int before = _mm_getcsr();
    const unsigned int modes[] = {0x8040U, 0x4000U, 0x6000U, 0x2000U};
    for (int i = 0; i < 4; i++) {
        _mm_setcsr(0x1f80U | modes[i]);
        mstar_status status[3] = {
            mstar_convert(in, MSTAR_DTYPE_F32, got[0], MSTAR_DTYPE_F16, COUNT),
            mstar_convert(in, MSTAR_DTYPE_F32, got[1], MSTAR_DTYPE_BF16, COUNT),
            mstar_convert(got[0], MSTAR_DTYPE_F16, wide[1], MSTAR_DTYPE_F32, COUNT)};
        _mm_setcsr(before);
        for (int j = 0; j < 3; j++)
            CHECK_OK(status[j]);
        assert_memory_equal(got, want, sizeof want);
        assert_memory_equal(wide[1], wide[0], sizeof wide[0]);
    }
#endif
}

static void convert_between_all(void **state)
{
    (void)state;
    const mstar_dtype dtypes[] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F16};
    check_rng rng = {3};
    float source[100];
    for (int i = 0; i < 100; i++)
        source[i] = (float)check_uniform(&rng, -1000.0, 1000.0);
    for (int a = 0; a < 3; a++) {
        for (int b = 0; b < 3; b++) {
            unsigned char from[400], to[404];
            for (int i = 0; i < 100; i++)
                mst_store_element(from, dtypes[a], i, source[i]);
            memset(to, 0x77, sizeof to);
            CHECK_OK(mstar_convert(from, dtypes[a], to, dtypes[b], 100));
            for (int i = 0; i < 100; i++) {
                unsigned char one[4];
                mst_store_element(one, dtypes[b], 0, mst_load_element(from, dtypes[a], i));
                size_t bytes = mstar_dtype_bytes(dtypes[b]);
                assert_memory_equal(to + (size_t)i * bytes, one, bytes);
            }
            for (size_t i = 100 * mstar_dtype_bytes(dtypes[b]); i < sizeof to; i++)
                assert_int_equal(to[i], 0x77);
        }
    }
    float out[1] = {5.0f};
    CHECK_OK(mstar_convert(NULL, MSTAR_DTYPE_F32, NULL, MSTAR_DTYPE_BF16, 0));
    CHECK_INVALID(mstar_convert(NULL, MSTAR_DTYPE_F32, out, MSTAR_DTYPE_F32, 1), "src is NULL");
    CHECK_INVALID(mstar_convert(out, MSTAR_DTYPE_F32, NULL, MSTAR_DTYPE_F32, 1), "dst is NULL");
    CHECK_INVALID(mstar_convert(source, MSTAR_DTYPE_I32, out, MSTAR_DTYPE_F32, 1), "src_dtype");
    CHECK_INVALID(mstar_convert(source, MSTAR_DTYPE_F32, out, MSTAR_DTYPE_F64, 1), "dst_dtype");
    CHECK_INVALID(mstar_convert(source, MSTAR_DTYPE_F32, out, (mstar_dtype)99, 1), "unknown");
    CHECK_INVALID(mstar_convert(source, MSTAR_DTYPE_F32, out, MSTAR_DTYPE_BF16, SIZE_MAX),
                  "count is");
    assert_true(out[0] == 5.0f);
}

static void names_and_sizes(void **state)
{
    (void)state;
    static const struct {
        mstar_dtype dtype;
        const char *name, *long_name;
        size_t bytes;
    } rows[] = {
        {MSTAR_DTYPE_F32, "f32", "float32", 4},    {MSTAR_DTYPE_BF16, "bf16", "bfloat16", 2},
        {MSTAR_DTYPE_F16, "f16", "float16", 2},    {MSTAR_DTYPE_F64, "f64", "float64", 8},
        {MSTAR_DTYPE_I64, "i64", "int64", 8},      {MSTAR_DTYPE_I32, "i32", "int32", 4},
        {MSTAR_DTYPE_I16, "i16", "int16", 2},      {MSTAR_DTYPE_I8, "i8", "int8", 1},
        {MSTAR_DTYPE_U8, "u8", "uint8", 1},        {MSTAR_DTYPE_BOOL, "bool", "bool", 1},
        {MSTAR_DTYPE_F8_E4M3, "f8_e4m3", NULL, 1}, {MSTAR_DTYPE_F8_E5M2, "f8_e5m2", NULL, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_string_equal(mstar_dtype_name(rows[i].dtype), rows[i].name);
        assert_int_equal(mstar_dtype_bytes(rows[i].dtype), rows[i].bytes);
        assert_int_equal(mst_dtype_is_compute(rows[i].dtype), i < 3);
        mstar_dtype dtype = (mstar_dtype)77;
        CHECK_OK(mstar_dtype_parse(rows[i].name, &dtype));
        assert_int_equal(dtype, rows[i].dtype);
        if (rows[i].long_name == NULL)
            continue;
        dtype = (mstar_dtype)77;
        CHECK_OK(mstar_dtype_parse(rows[i].long_name, &dtype));
        assert_int_equal(dtype, rows[i].dtype);
        char torch[32] = "torch.";
        strcat(torch, rows[i].long_name);
        dtype = (mstar_dtype)77;
        CHECK_OK(mstar_dtype_parse(torch, &dtype));
        assert_int_equal(dtype, rows[i].dtype);
    }
    for (int value = -2; value < 40; value++) {
        if (value >= 0 && value < 12)
            continue;
        assert_string_equal(mstar_dtype_name((mstar_dtype)value), "unknown");
        assert_int_equal(mstar_dtype_bytes((mstar_dtype)value), 0);
    }
    mstar_dtype dtype = MSTAR_DTYPE_I8;
    CHECK_INVALID(mstar_dtype_parse("f31", &dtype), "\"f31\"; accepted are f32, bf16, f16");
    CHECK_INVALID(mstar_dtype_parse("", &dtype), "\"\"");
    CHECK_INVALID(mstar_dtype_parse("F32", &dtype), "F32");
    CHECK_INVALID(mstar_dtype_parse("torch.", &dtype), "torch.");
    CHECK_INVALID(mstar_dtype_parse(NULL, &dtype), "text is NULL");
    CHECK_INVALID(mstar_dtype_parse("f32", NULL), "dtype is NULL");
    assert_int_equal(dtype, MSTAR_DTYPE_I8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_widens_exactly),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(the_callers_mode_does_not_matter),
        cmocka_unit_test(convert_between_all),
        cmocka_unit_test(names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
