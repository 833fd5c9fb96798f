/* support_check.c - see support_check.h. */
#include "support_check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* Sizes that no machine has are asked for on purpose: the answer must be NULL, as without a
 * sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

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

int64_t check_part(int64_t cases)
{
    static bool told;
    const char *text = getenv("MSTAR_TEST_PART");
    long part = text != NULL ? strtol(text, NULL, 10) : 1;
    if (part <= 1)
        return cases;
    if (!told)
        print_message("MSTAR_TEST_PART: one in %ld of the random cases\n", part);
    told = true;
    return cases / part > 0 ? cases / part : 1;
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum { MARGIN = 128 }; /* elements of poison before and after */

static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    assert_non_null(memory);
    return memory;
}

static check_block *blocks; /* all that are alive */
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

void check_block_add(unsigned char *memory, size_t bytes)
{
    check_block *block = take(sizeof *block);
    (void)pthread_mutex_lock(&blocks_lock);
    *block = (check_block){memory, bytes, blocks};
    blocks = block;
    (void)pthread_mutex_unlock(&blocks_lock);
}

void check_block_remove(const unsigned char *memory)
{
    (void)pthread_mutex_lock(&blocks_lock);
    for (check_block **at = &blocks; *at != NULL; at = &(*at)->next) {
        if ((*at)->memory == memory) {
            check_block *gone = *at;
            *at = gone->next;
            free(gone);
            break;
        }
    }
    (void)pthread_mutex_unlock(&blocks_lock);
}

const check_block *check_block_find(const void *address)
{
    const unsigned char *at = address;
    (void)pthread_mutex_lock(&blocks_lock);
    const check_block *found = blocks;
    while (found != NULL && !(at >= found->memory && at < found->memory + found->bytes))
        found = found->next;
    (void)pthread_mutex_unlock(&blocks_lock);
    return found;
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
    check_block_add(made.block, made.bytes);
    return made;
}

void check_rows_free(check_rows *rows)
{
    check_block_remove(rows->block);
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

double check_activation(mstar_activation activation, double x)
{
    /* the arms for large negative x are limits: -inf times 0 is not what is meant */
    double u;
    switch (activation) {
    case MSTAR_ACTIVATION_GELU:
        return x < -40.0 ? 0.0 : x * erfc(-x / sqrt(2.0)) / 2.0;
    case MSTAR_ACTIVATION_GELU_TANH:
        /* (1 + tanh u) / 2 is the logistic function of 2u, without its cancellation */
        u = sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x);
        return x < -40.0 ? 0.0 : x / (1.0 + exp(-2.0 * u));
    case MSTAR_ACTIVATION_RELU:
        return x < 0.0 ? 0.0 : x;
    case MSTAR_ACTIVATION_SILU:
        return x < -700.0 ? 0.0 : x / (1.0 + exp(-x));
    case MSTAR_ACTIVATION_TANH:
        return tanh(x);
    case MSTAR_ACTIVATION_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    default:
        return x;
    }
}

/*
 * In units of u = 2^-24, relative to the result. exp is good to 3 (a polynomial of 0.1, two
 * roundings, the reduced argument). A logistic function adds a sum, a quotient and e's share of the
 * sum: 7. An error d of the argument of exp is scaled by the argument: that is what the terms with
 * w and z^2 are. Subnormal results have an absolute error instead, scaled by the factor x.
 */
double check_activation_error(mstar_activation activation, double x)
{
    double units = 0.0;
    double factor = 1.0;
    double w = 2.0 * sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x);
    switch (activation) {
    case MSTAR_ACTIVATION_GELU: /* z: 1.3 from its product and constant, its square 2.6, and 1 */
        units = 18.0 + (x < 0.0 ? 4.0 * x * x / 2.0 : 0.0);
        factor = fabs(x);
        break;
    case MSTAR_ACTIVATION_GELU_TANH: /* w: four roundings and two constants */
        units = 9.0 + (x < 0.0 ? 6.0 * fabs(w) : 6.0);
        factor = fabs(x);
        break;
    case MSTAR_ACTIVATION_SILU:
        units = 8.0;
        factor = fabs(x);
        break;
    case MSTAR_ACTIVATION_TANH:
        units = 6.0;
        break;
    case MSTAR_ACTIVATION_SIGMOID:
        units = 7.0;
        break;
    default:
        return 0.0;
    }
    double value = fabs(check_activation(activation, x));
    if (!isfinite(value) || !isfinite(x))
        return 0.0;
    double relative = value > 0.0 ? units * 0x1p-24 * value : 0.0;
    return relative + 2.0 * (factor + 1.0) * 0x1p-149;
}

bool check_near(double got, double want, double bound)
{
    if (isnan(want))
        return isnan(got);
    if (isinf(want))
        return got == want;
    return fabs(got - want) <= bound;
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
