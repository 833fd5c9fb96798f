/*
 * dtype.c - names and sizes of dtypes, and exact scalar conversions.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; NaN stays a quiet NaN with its
 * sign, overflow becomes an infinity, small values become f16 denormals.
 */
#include <string.h>

#include "base/base.h"

typedef struct dtype_row {
    const char *name;
    size_t bytes;
} dtype_row;

static const dtype_row dtype_rows[] = {
#define MST_ROW(value, NAME, name, bytes) [value] = {name, bytes},
    MSTAR_DTYPE_LIST(MST_ROW)
#undef MST_ROW
};
#define NUM_DTYPES (sizeof dtype_rows / sizeof dtype_rows[0])

const char *mstar_dtype_name(mstar_dtype dtype)
{
    return (size_t)dtype < NUM_DTYPES ? dtype_rows[dtype].name : "unknown";
}

size_t mstar_dtype_bytes(mstar_dtype dtype)
{
    return (size_t)dtype < NUM_DTYPES ? dtype_rows[dtype].bytes : 0;
}

mstar_status mstar_dtype_parse(const char *text, mstar_dtype *dtype)
{
    static const struct {
        const char *name;
        mstar_dtype dtype;
    } long_names[] = {
        {"float32", MSTAR_DTYPE_F32}, {"float", MSTAR_DTYPE_F32}, {"bfloat16", MSTAR_DTYPE_BF16},
        {"float16", MSTAR_DTYPE_F16}, {"half", MSTAR_DTYPE_F16},  {"float64", MSTAR_DTYPE_F64},
        {"double", MSTAR_DTYPE_F64},  {"int64", MSTAR_DTYPE_I64}, {"int32", MSTAR_DTYPE_I32},
        {"int16", MSTAR_DTYPE_I16},   {"int8", MSTAR_DTYPE_I8},   {"uint8", MSTAR_DTYPE_U8}};
    MST_TRY(mst_check_not_null("text", text));
    MST_TRY(mst_check_not_null("dtype", dtype));
    const char *name = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (size_t i = 0; i < NUM_DTYPES; i++) {
        if (strcmp(name, dtype_rows[i].name) == 0) {
            *dtype = (mstar_dtype)i;
            return MSTAR_OK;
        }
    }
    for (size_t i = 0; i < sizeof long_names / sizeof long_names[0]; i++) {
        if (strcmp(name, long_names[i].name) == 0) {
            *dtype = long_names[i].dtype;
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "dtype is \"%.64s\"; accepted are f32, bf16, f16, f64, i64, i32, i16, i8, u8, "
                    "bool, f8_e4m3, "
                    "f8_e5m2 and the long names of torch",
                    text);
}

bool mst_dtype_is_compute(mstar_dtype dtype)
{
    return dtype == MSTAR_DTYPE_F32 || dtype == MSTAR_DTYPE_BF16 || dtype == MSTAR_DTYPE_F16;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float mst_bf16_to_f32(uint16_t value)
{
    return float_of((uint32_t)value << 16);
}

uint16_t mst_f32_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)((bits >> 16) | 0x0040U);
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float mst_f16_to_f32(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000U) << 16;
    uint32_t exponent = (value >> 10) & 0x1fU;
    uint32_t mantissa = value & 0x3ffU;
    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000U | (mantissa << 13) | (mantissa != 0 ? 0x00400000U : 0));
    if (exponent != 0)
        return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
    /* denormal or zero: mantissa * 2^-24 is exact in f32 */
    return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
}

uint16_t mst_f32_to_f16(float value)
{
    uint32_t bits = bits_of(value);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000U);
    uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U)
        return (uint16_t)(sign | 0x7e00U | ((magnitude >> 13) & 0x1ffU));
    if (magnitude >= 0x477ff000U) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00U);
    if (magnitude < 0x38800000U) {
        /* Below 2^-14: units of 2^-24, rounded in integers, since a floating-point sum would follow
         * the rounding mode of the calling thread. Up to 2^-25 gives 0. */
        if (magnitude <= 0x33000000U)
            return sign;
        uint32_t shift = 126U - (magnitude >> 23);
        uint32_t whole = (magnitude & 0x7fffffU) | 0x800000U;
        whole += (1U << (shift - 1)) - 1U + ((whole >> shift) & 1U);
        return (uint16_t)(sign | (whole >> shift));
    }
    magnitude += 0xfffU + ((magnitude >> 13) & 1U);
    return (uint16_t)(sign | ((magnitude - 0x38000000U) >> 13));
}

float mst_load_element(const void *data, mstar_dtype dtype, int64_t index)
{
    switch (dtype) {
    case MSTAR_DTYPE_BF16:
        return mst_bf16_to_f32(((const uint16_t *)data)[index]);
    case MSTAR_DTYPE_F16:
        return mst_f16_to_f32(((const uint16_t *)data)[index]);
    default:
        return ((const float *)data)[index];
    }
}

void mst_store_element(void *data, mstar_dtype dtype, int64_t index, float value)
{
    switch (dtype) {
    case MSTAR_DTYPE_BF16:
        ((uint16_t *)data)[index] = mst_f32_to_bf16(value);
        break;
    case MSTAR_DTYPE_F16:
        ((uint16_t *)data)[index] = mst_f32_to_f16(value);
        break;
    default:
        ((float *)data)[index] = value;
        break;
    }
}

mstar_status mstar_convert(const void *src, mstar_dtype src_dtype, void *dst, mstar_dtype dst_dtype,
                           size_t count)
{
    if (!mst_dtype_is_compute(src_dtype))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "src_dtype is %s; it must be f32, bf16 or f16",
                        mstar_dtype_name(src_dtype));
    if (!mst_dtype_is_compute(dst_dtype))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "dst_dtype is %s; it must be f32, bf16 or f16",
                        mstar_dtype_name(dst_dtype));
    if (count == 0)
        return MSTAR_OK;
    MST_TRY(mst_check_not_null("src", src));
    MST_TRY(mst_check_not_null("dst", dst));
    if (count > SIZE_MAX / 4)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "count is %zu; the elements pass the address space",
                        count);
    if (src_dtype == dst_dtype) {
        memcpy(dst, src, count * mstar_dtype_bytes(src_dtype));
        return MSTAR_OK;
    }
    for (size_t i = 0; i < count; i++)
        mst_store_element(dst, dst_dtype, (int64_t)i, mst_load_element(src, src_dtype, (int64_t)i));
    return MSTAR_OK;
}
