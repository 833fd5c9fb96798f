/* support_check.c - see support_check.h. */
#include "support_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

uint64_t check_bits(check_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

double check_uniform(check_rng *rng, double low, double high)
{
    return low + (high - low) * (double)(check_bits(rng) >> 11) * 0x1p-53;
}

int64_t check_integer(check_rng *rng, int64_t low, int64_t high)
{
    return low + (int64_t)(check_bits(rng) % (uint64_t)(high - low + 1));
}

void check_failed(mstar_status got, mstar_status want, const char *piece, const char *file,
                  int line)
{
    if (got != want) {
        print_error("%s instead of %s: %s\n", mstar_status_name(got), mstar_status_name(want),
                    mstar_last_error());
        _fail(file, line);
    }
    if (strstr(mstar_last_error(), piece) == NULL) {
        print_error("\"%s\" is not in \"%s\"\n", piece, mstar_last_error());
        _fail(file, line);
    }
}

void check_ok(mstar_status got, const char *file, int line)
{
    if (got == MSTAR_OK)
        return;
    print_error("%s: %s\n", mstar_status_name(got), mstar_last_error());
    _fail(file, line);
}

/* ---- failed allocations ---------------------------------------------------------------------- */

uint64_t check_live_allocations(void)
{
    mstar_memory_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_memory_query(&info));
    return info.live_allocations;
}

static int fail_number(void *context, uint64_t number, size_t bytes)
{
    (void)bytes;
    return number == *(const uint64_t *)context;
}

uint64_t check_alloc_faults(mstar_status (*attempt)(void *context), void *context)
{
    uint64_t live = check_live_allocations();
    for (uint64_t number = 1; number < 1000; number++) {
        mstar_set_alloc_fault(fail_number, &number);
        mstar_status status = attempt(context);
        mstar_set_alloc_fault(NULL, NULL);
        assert_int_equal(check_live_allocations(), live);
        if (status == MSTAR_OK)
            return number - 1;
        CHECK_FAILED(status, MSTAR_OUT_OF_MEMORY, "could not be allocated");
    }
    fail_msg("1000 allocations were failed and the attempt never succeeded");
    return 0;
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum { MARGIN = 128 }; /* elements of poison before and after */

static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    assert_non_null(memory);
    return memory;
}

check_rows check_rows_make(mstar_dtype dtype, int64_t rows, int64_t width, int64_t stride)
{
    check_rows made;
    size_t element = mstar_dtype_bytes(dtype);
    made.bytes = (size_t)(rows * stride + 2 * MARGIN) * element;
    made.block = take(made.bytes);
    made.shadow = take(made.bytes);
    memset(made.block, 0xff, made.bytes);
    const int64_t shape[2] = {rows, width};
    made.tensor = mstar_tensor_make(made.block + MARGIN * element, dtype, 2, shape);
    made.tensor.strides[0] = stride;
    check_rows_freeze(&made);
    return made;
}

void check_rows_free(check_rows *rows)
{
    free(rows->block);
    free(rows->shadow);
    memset(rows, 0, sizeof *rows);
}

float check_rows_get(const check_rows *rows, int64_t row, int64_t column)
{
    return mst_load_element(rows->tensor.data, rows->tensor.dtype,
                            row * rows->tensor.strides[0] + column);
}

void check_rows_set(check_rows *rows, int64_t row, int64_t column, double value)
{
    mst_store_element(rows->tensor.data, rows->tensor.dtype, row * rows->tensor.strides[0] + column,
                      (float)value);
}

void check_rows_fill(check_rows *rows, check_rng *rng, double low, double high)
{
    for (int64_t i = 0; i < rows->tensor.shape[0]; i++) {
        for (int64_t j = 0; j < rows->tensor.shape[1]; j++)
            check_rows_set(rows, i, j, check_uniform(rng, low, high));
    }
    check_rows_freeze(rows);
}

void check_rows_freeze(check_rows *rows)
{
    memcpy(rows->shadow, rows->block, rows->bytes);
}

const void *check_row(const check_rows *rows, int64_t row)
{
    return (const unsigned char *)rows->tensor.data +
           (size_t)(row * rows->tensor.strides[0]) * mstar_dtype_bytes(rows->tensor.dtype);
}

size_t check_row_bytes(const check_rows *rows)
{
    return (size_t)rows->tensor.shape[1] * mstar_dtype_bytes(rows->tensor.dtype);
}

void check_rows_outside(const check_rows *rows, const char *what)
{
    size_t at = 0;
    for (int64_t row = 0; row <= rows->tensor.shape[0]; row++) {
        bool last = row == rows->tensor.shape[0];
        size_t stop = last ? rows->bytes
                           : (size_t)((const unsigned char *)check_row(rows, row) - rows->block);
        if (memcmp(rows->block + at, rows->shadow + at, stop - at) != 0)
            fail_msg("%s: bytes before row %lld were written", what, (long long)row);
        at = stop + check_row_bytes(rows);
    }
}

void check_rows_unchanged(const check_rows *rows, const char *what)
{
    if (memcmp(rows->block, rows->shadow, rows->bytes) != 0)
        fail_msg("%s was written", what);
}

/* ---- numbers --------------------------------------------------------------------------------- */

double check_rounding(mstar_dtype dtype, double value)
{
    int precision = dtype == MSTAR_DTYPE_F32 ? 24 : dtype == MSTAR_DTYPE_BF16 ? 8 : 11;
    int least = dtype == MSTAR_DTYPE_F16 ? -13 : -125; /* exponent of frexp at the least normal */
    int exponent;
    (void)frexp(value, &exponent);
    if (exponent < least)
        exponent = least;
    return ldexp(0.5, exponent - precision);
}

double check_gamma(int64_t n)
{
    double nu = (double)n * 0x1p-24;
    return nu / (1.0 - nu);
}

/* ---- devices --------------------------------------------------------------------------------- */

mstar_device *check_open(const char *isa, int32_t num_threads)
{
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = num_threads;
    desc.max_isa = isa;
    mstar_device *device = NULL;
    CHECK_OK(mstar_device_open("cpu", &desc, &device));
    mstar_device_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_device_query(device, &info));
    if (strcmp(info.isa, isa) == 0) {
        printf("[ ISA      ] %s\n", isa);
        return device;
    }
    printf("[ ISA      ] %s is not on this machine or not in this build\n", isa);
    CHECK_OK(mstar_device_close(device));
    return NULL;
}
