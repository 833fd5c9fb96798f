/*
 * support_check.h - what several unit tests share: random numbers, failed allocations, rows with
 * poison around them, and one device for each ISA level that the machine has.
 */
#ifndef SUPPORT_CHECK_H
#define SUPPORT_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cpu/cpu.h"
#include "mstar.h"

/* ---- random numbers (splitmix64) ------------------------------------------------------------- */

typedef struct check_rng {
    uint64_t state;
} check_rng;
uint64_t check_bits(check_rng *rng);
/* In [low, high). */
double check_uniform(check_rng *rng, double low, double high);
/* From low to high, both included. */
int64_t check_integer(check_rng *rng, int64_t low, int64_t high);

/* ---- errors ---------------------------------------------------------------------------------- */

/* The status, and a piece of the last error's text. */
void check_failed(mstar_status got, mstar_status want, const char *piece, const char *file,
                  int line);
#define CHECK_FAILED(call, want, piece) check_failed((call), (want), (piece), __FILE__, __LINE__)
#define CHECK_INVALID(call, piece) CHECK_FAILED(call, MSTAR_INVALID_ARGUMENT, piece)
/* OK, or the last error's text in the failure. */
void check_ok(mstar_status got, const char *file, int line);
#define CHECK_OK(call) check_ok((call), __FILE__, __LINE__)

/*
 * Fails the first, second, third ... allocation of attempt until it gets by. Each failure must be
 * OUT_OF_MEMORY and leave no allocation behind. attempt undoes itself when it succeeds. Returns how
 * many allocations were failed.
 */
uint64_t check_alloc_faults(mstar_status (*attempt)(void *context), void *context);
uint64_t check_live_allocations(void);

/* So many random cases; with MSTAR_TEST_PART=N in the environment one in N, at least one, which the
 * first call says: for tools that make a program many times slower. */
int64_t check_part(int64_t cases);

/* ---- rows with poison ------------------------------------------------------------------------ */

/*
 * A [rows, width] view inside a larger block. Every byte of the block starts as 0xff, which is NaN
 * in f32, bf16 and f16: what a call reads by mistake shows in its result, and what it writes
 * outside of the view, or to an input, shows against the shadow copy.
 */
typedef struct check_rows {
    mstar_tensor tensor;
    unsigned char *block, *shadow;
    size_t bytes;
} check_rows;
/* Memory with guards around a tensor, which goes to a device as a whole: that of check_rows, and
 * what is added. */
typedef struct check_block {
    unsigned char *memory;
    size_t bytes;
    struct check_block *next;
} check_block;
void check_block_add(unsigned char *memory, size_t bytes);
void check_block_remove(const unsigned char *memory);
/* The block that an address lies in; NULL: in none. */
const check_block *check_block_find(const void *address);
/* stride >= width: distance between rows in elements. */
check_rows check_rows_make(mstar_dtype dtype, int64_t rows, int64_t width, int64_t stride);
void check_rows_free(check_rows *rows);
float check_rows_get(const check_rows *rows, int64_t row, int64_t column);
void check_rows_set(check_rows *rows, int64_t row, int64_t column, double value);
/* Values in [low, high), rounded to the dtype. */
void check_rows_fill(check_rows *rows, check_rng *rng, double low, double high);
/* Takes the block as it is now for the shadow. */
void check_rows_freeze(check_rows *rows);
/* Nothing outside of the view has changed since the freeze. */
void check_rows_outside(const check_rows *rows, const char *what);
/* Nothing at all has changed since the freeze. */
void check_rows_unchanged(const check_rows *rows, const char *what);
/* Address and bytes of one row of the view. */
const void *check_row(const check_rows *rows, int64_t row);
size_t check_row_bytes(const check_rows *rows);

/* ---- numbers --------------------------------------------------------------------------------- */

/* Half an ulp of the dtype at value: the error of one rounding, subnormals included. */
double check_rounding(mstar_dtype dtype, double value);
/* n roundings of f32 one after another: n u / (1 - n u). */
double check_gamma(int64_t n);

/* An activation in f64, and a bound for the error of an f32 evaluation of it at an exact x: from
 * the roundings of the steps and what they are scaled by, see support_check.c. */
double check_activation(mstar_activation activation, double x);
double check_activation_error(mstar_activation activation, double x);

/* NaN with NaN, an infinity with the same infinity, else within the bound; NaN is never within. */
bool check_near(double got, double want, double bound);

/* ---- devices --------------------------------------------------------------------------------- */

/* Opens a CPU device limited to an ISA level; NULL, with a line that says so, where the machine or
 * the build lacks the level. */
mstar_device *check_open(const char *isa, int32_t num_threads);
#define CHECK_ISA_NAME(LEVEL, level, unused) #level,
#define CHECK_ISAS                          \
    {                                       \
        MST_FOR_EACH_ISA(CHECK_ISA_NAME, _) \
    }
enum { CHECK_NUM_ISAS = MST_ISA_LEVELS };

#endif
