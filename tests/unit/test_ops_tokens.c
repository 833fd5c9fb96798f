/*
 * test_ops_tokens.c - rotary, embedding and pooling: against float64 on every ISA level of the
 * machine, and what they refuse.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "support_card.h"

#define U 0x1p-24

enum { T = 4, M = 6 };

static const mstar_dtype dtypes[3] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F16};
static const int64_t widths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 384, 1000};
enum { NUM_WIDTHS = sizeof widths / sizeof widths[0] };

typedef struct level {
    const char *isa;
    mstar_device *device;
    mstar_stream *stream, *alone; /* four threads, one thread */
} level;

static const char *const isas[CHECK_NUM_ISAS] = CHECK_ISAS;
static level levels[CHECK_NUM_ISAS + 1]; /* of processors, and the GPU */
static int num_levels;
static mstar_stream *stream;             /* for what is refused */
static float memory[8000], before[8000]; /* and its tensors */

static int set_up(void **state)
{
    (void)state;
    num_levels = 0;
    for (int i = card_is_real() ? CHECK_NUM_ISAS : 0; i <= CHECK_NUM_ISAS; i++) {
        bool cuda = i == CHECK_NUM_ISAS;
        level l = {.isa = cuda ? "cuda" : isas[i],
                   .device = cuda ? card_open() : check_open(isas[i], 4)};
        if (l.device == NULL)
            continue;
        CHECK_OK(mstar_stream_create(l.device, -1, &l.stream));
        CHECK_OK(mstar_stream_create(l.device, 1, &l.alone));
        levels[num_levels++] = l;
    }
    stream = levels[0].stream; /* a processor's, unless a card was named */
    for (int i = 0; i < 8000; i++)
        memory[i] = (float)(i % 97) - 48.0f;
    memcpy(before, memory, sizeof memory);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < num_levels; i++) {
        mstar_stream_destroy(levels[i].stream);
        mstar_stream_destroy(levels[i].alone);
        card_close(levels[i].device);
    }
    assert_int_equal(check_live_allocations(), 0);
    return 0;
}

static void same_row(const char *what, const check_rows *a, int64_t a_row, const check_rows *b,
                     int64_t b_row)
{
    if (memcmp(check_row(a, a_row), check_row(b, b_row), check_row_bytes(a)) != 0)
        fail_msg("%s: row %lld differs from row %lld of the other run", what, (long long)a_row,
                 (long long)b_row);
}

/* [T, M] in a place of its own, counted in blocks of 1000 floats. */
static mstar_tensor matrix(int place, int64_t rows, int64_t width)
{
    const int64_t shape[2] = {rows, width};
    return mstar_tensor_make(memory + 1000 * place, MSTAR_DTYPE_F32, 2, shape);
}

static void nothing_was_written(void)
{
    assert_memory_equal(memory, before, sizeof memory);
}

/* ---- rotary ---------------------------------------------------------------------------------- */

static void rotary_case(const level *l, int64_t tokens, int64_t heads, int64_t dim,
                        int32_t rotary_dim, int interleaved, double theta, int combination)
{
    check_rng rng = {(uint64_t)combination};
    int64_t width = heads * dim;
    check_rows x = check_rows_make(dtypes[combination % 3], tokens, width, width + 6);
    check_rows out = check_rows_make(dtypes[combination / 3 % 3], tokens, width, width + 1);
    check_rows_fill(&x, &rng, -4.0, 4.0);
    int32_t positions[16];
    const int32_t special[] = {0, 1, -1, 511, 100000, INT32_MAX, INT32_MIN};
    for (int64_t t = 0; t < tokens; t++)
        positions[t] = t < 7 ? special[t] : (int32_t)check_integer(&rng, 0, 5000);
    mstar_tensor x3, out3;
    CHECK_OK(mstar_tensor_split_dim(&x.tensor, 1, heads, dim, &x3));
    CHECK_OK(mstar_tensor_split_dim(&out.tensor, 1, heads, dim, &out3));
    CHECK_OK(card_rotary(l->stream, &x3, positions, theta, rotary_dim, interleaved, &out3));
    check_rows_outside(&out, "out");
    check_rows_unchanged(&x, "x");
    int32_t half = rotary_dim / 2;
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t h = 0; h < heads; h++) {
            for (int32_t i = 0; i < half; i++) {
                long double angle =
                    (long double)positions[t] * powl((long double)theta, -2.0L * i / rotary_dim);
                double c = (double)cosl(angle), s = (double)sinl(angle);
                int64_t first = h * dim + (interleaved ? 2 * i : i);
                int64_t second = first + (interleaved ? 1 : half);
                double a = (double)check_rows_get(&x, t, first);
                double b = (double)check_rows_get(&x, t, second);
                const double want[2] = {a * c - b * s, b * c + a * s};
                /* an f64 angle is off by two roundings of its size; c, s, products, sum in f32 */
                double bound = (fabs(a) + fabs(b)) * (fabs((double)angle) * 0x1p-51 + 3 * U);
                for (int k = 0; k < 2; k++) {
                    double got = (double)check_rows_get(&out, t, k ? second : first);
                    double all = bound + check_rounding(out.tensor.dtype, fabs(want[k]) + bound);
                    if (!check_near(got, want[k], all))
                        fail_msg("%s position %d pair %d: %.9g instead of %.9g +- %.3g", l->isa,
                                 positions[t], i, got, want[k], all);
                }
            }
            for (int64_t i = rotary_dim; i < dim; i++) { /* the rest is copied */
                unsigned char one[4];
                mst_store_element(one, out.tensor.dtype, 0, check_rows_get(&x, t, h * dim + i));
                assert_true(mst_load_element(one, out.tensor.dtype, 0) ==
                            check_rows_get(&out, t, h * dim + i));
            }
        }
    }
    /* alone, in place, and each token by itself */
    check_rows again = check_rows_make(out.tensor.dtype, tokens, width, width);
    mstar_tensor again3;
    CHECK_OK(mstar_tensor_split_dim(&again.tensor, 1, heads, dim, &again3));
    for (int64_t t = 0; t < tokens; t++) {
        mstar_tensor xt, outt;
        CHECK_OK(mstar_tensor_slice(&x3, 0, t, 1, &xt));
        CHECK_OK(mstar_tensor_slice(&again3, 0, t, 1, &outt));
        CHECK_OK(card_rotary(l->alone, &xt, positions + t, theta, rotary_dim, interleaved, &outt));
        same_row("rotary", &again, t, &out, t);
    }
    if (x.tensor.dtype == out.tensor.dtype) {
        CHECK_OK(card_rotary(l->stream, &x3, positions, theta, rotary_dim, interleaved, &x3));
        for (int64_t t = 0; t < tokens; t++)
            same_row("rotary in place", &x, t, &out, t);
        check_rows_outside(&x, "x");
    }
    check_rows_free(&again);
    check_rows_free(&x);
    check_rows_free(&out);
}

static void rotary_turns_pairs(void **state)
{
    (void)state;
    static const int32_t dims[][2] = {{2, 2},   {8, 8}, {32, 32}, {64, 64},
                                      {80, 32}, {7, 4}, {5, 0},   {128, 128}};
    for (int l = 0; l < num_levels; l++) {
        int combination = 0;
        for (int d = 0; d < 8; d++) {
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                for (int64_t heads = 1; heads < 4; heads++) {
                    combination++;
                    rotary_case(&levels[l], combination % 11, heads, dims[d][0], dims[d][1],
                                interleaved, combination % 2 ? 10000.0 : 160000.0, combination);
                }
            }
        }
    }
}

/* ---- embedding ------------------------------------------------------------------------------- */

/* The sum is defined down to the bit: f32 sums in the order of the tables, one rounding. */
static void embedding_sums_tables(void **state)
{
    (void)state;
    check_rng rng = {4};
    for (int l = 0; l < num_levels; l++) {
        for (int num_tables = 1; num_tables <= 8; num_tables++) {
            for (int w = 0; w < NUM_WIDTHS; w++) {
                int64_t width = widths[w], tokens = check_integer(&rng, 1, 40);
                check_rows tables[8];
                const mstar_tensor *table_list[8];
                int32_t ids[8][40];
                const int32_t *id_list[8];
                for (int i = 0; i < num_tables; i++) {
                    int64_t rows = check_integer(&rng, 1, 20);
                    tables[i] = check_rows_make(dtypes[(i + w) % 3], rows, width, width + i);
                    check_rows_fill(&tables[i], &rng, -3.0, 3.0);
                    table_list[i] = &tables[i].tensor;
                    for (int64_t t = 0; t < tokens; t++)
                        ids[i][t] = (int32_t)(t == 0   ? 0
                                              : t == 1 ? rows - 1
                                                       : check_integer(&rng, 0, rows - 1));
                    id_list[i] = ids[i];
                }
                check_rows out = check_rows_make(dtypes[w % 3], tokens, width, width + 2);
                CHECK_OK(card_embedding(w % 2 ? levels[l].stream : levels[l].alone, table_list,
                                        id_list, num_tables, &out.tensor));
                for (int64_t t = 0; t < tokens; t++) {
                    for (int64_t i = 0; i < width; i++) {
                        float sum = check_rows_get(&tables[0], ids[0][t], i);
                        for (int k = 1; k < num_tables; k++)
                            sum += check_rows_get(&tables[k], ids[k][t], i);
                        unsigned char one[4];
                        mst_store_element(one, out.tensor.dtype, 0, sum);
                        float want = mst_load_element(one, out.tensor.dtype, 0);
                        float got = check_rows_get(&out, t, i);
                        assert_true(memcmp(&want, &got, sizeof want) == 0);
                    }
                }
                check_rows_outside(&out, "out");
                check_rows_free(&out);
                for (int i = 0; i < num_tables; i++) {
                    check_rows_unchanged(&tables[i], "table");
                    check_rows_free(&tables[i]);
                }
            }
        }
    }
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* Rows [begin, end) of the segment that starts at first: a weight is the place in the segment. */
static void pooling_reference(mstar_pooling pooling, const check_rows *x, int64_t first,
                              int64_t begin, int64_t end, int64_t column, double *want,
                              double *bound)
{
    double sum = 0.0, sum_abs = 0.0, weights = 0.0;
    *want = 0.0;
    *bound = 0.0;
    if (begin >= end)
        return;
    int64_t n = end - begin;
    double largest = -(double)INFINITY;
    for (int64_t row = begin; row < end; row++) {
        double weight = pooling == MSTAR_POOLING_WEIGHTED_MEAN ? (double)(row - first + 1) : 1.0;
        double value = (double)check_rows_get(x, row, column);
        sum += weight * value;
        sum_abs += weight * fabs(value);
        weights += weight;
        largest = fmax(largest, value);
    }
    switch (pooling) {
    case MSTAR_POOLING_CLS:
        *want = (double)check_rows_get(x, begin, column);
        return;
    case MSTAR_POOLING_LAST:
        *want = (double)check_rows_get(x, end - 1, column);
        return;
    case MSTAR_POOLING_MAX:
        *want = largest;
        return;
    case MSTAR_POOLING_MEAN_SQRT_LEN:
        weights = sqrt((double)n);
        break;
    default:
        break;
    }
    *want = sum / weights;
    *bound = (check_gamma(n + 1) * sum_abs) / weights + 2 * U * fabs(*want) + 0x1p-148;
}

static void pooling_of_all_modes(void **state)
{
    (void)state;
    check_rng rng = {5};
    int combination = 0;
    for (int l = 0; l < num_levels; l++) {
        for (int mode = MSTAR_POOLING_CLS; mode <= MSTAR_POOLING_LAST; mode++) {
            for (int w = 0; w < NUM_WIDTHS - 1; w++, combination++) {
                mstar_pooling pooling = (mstar_pooling)mode;
                int64_t width = widths[w];
                const int32_t lengths[] = {3, 0, 1, 17, 2, 0, 64, 5};
                int32_t cu[9] = {0}, skip[8];
                for (int s = 0; s < 8; s++) {
                    cu[s + 1] = cu[s] + lengths[s];
                    skip[s] = (int32_t)check_integer(&rng, 0, lengths[s] + 2);
                }
                skip[3] = INT32_MAX; /* all of it, without an overflow */
                bool skipping = combination % 2 == 1;
                int64_t rows = cu[8] + combination % 3;
                check_rows x = check_rows_make(dtypes[combination % 3], rows, width, width + 3);
                check_rows out = check_rows_make(dtypes[combination / 3 % 3], 8, width, width + 1);
                check_rows_fill(&x, &rng, -5.0, 5.0);
                for (int64_t row = cu[8]; row < rows; row++) { /* rows past the segments: unread */
                    for (int64_t i = 0; i < width; i++)
                        check_rows_set(&x, row, i, (double)NAN);
                }
                check_rows_freeze(&x);
                CHECK_OK(card_pooling_run(levels[l].stream, pooling, &x.tensor, cu, 8,
                                          skipping ? skip : NULL, &out.tensor));
                check_rows_outside(&out, "out");
                check_rows_unchanged(&x, "x");
                for (int64_t s = 0; s < 8; s++) {
                    int64_t begin = cu[s] + (skipping ? (int64_t)skip[s] : 0);
                    for (int64_t i = 0; i < width; i++) {
                        double want, bound;
                        pooling_reference(pooling, &x, cu[s], begin, cu[s + 1], i, &want, &bound);
                        bound += check_rounding(out.tensor.dtype, fabs(want) + bound);
                        double got = (double)check_rows_get(&out, s, i);
                        if (!check_near(got, want, bound))
                            fail_msg("%s %s segment %lld: %.9g instead of %.9g +- %.3g",
                                     levels[l].isa, mstar_pooling_name(pooling), (long long)s, got,
                                     want, bound);
                    }
                    /* the segment by itself */
                    int32_t own[2] = {0, lengths[s]};
                    mstar_tensor xs;
                    CHECK_OK(mstar_tensor_slice(&x.tensor, 0, cu[s], lengths[s], &xs));
                    check_rows alone = check_rows_make(out.tensor.dtype, 1, width, width);
                    CHECK_OK(card_pooling_run(levels[l].alone, pooling, &xs, own, 1,
                                              skipping ? skip + s : NULL, &alone.tensor));
                    same_row("pooling", &alone, 0, &out, s);
                    check_rows_free(&alone);
                }
                check_rows_free(&x);
                check_rows_free(&out);
            }
        }
    }
}

static void pooling_of_odd_numbers(void **state)
{
    (void)state;
    const int32_t cu[4] = {0, 3, 6, 9};
    for (int l = 0; l < num_levels; l++) {
        for (int mode = MSTAR_POOLING_CLS; mode <= MSTAR_POOLING_LAST; mode++) {
            check_rows x = check_rows_make(MSTAR_DTYPE_F32, 9, 19, 19);
            check_rows out = check_rows_make(MSTAR_DTYPE_F32, 3, 19, 19);
            check_rng rng = {6};
            check_rows_fill(&x, &rng, -1.0, 1.0);
            for (int64_t i = 0; i < 19; i++) {
                check_rows_set(&x, 3 + i % 3, i, (double)NAN); /* second segment, each place */
                check_rows_set(&x, 6, i, -(double)INFINITY);
                check_rows_set(&x, 7, i, -(double)INFINITY);
                check_rows_set(&x, 8, i, -(double)INFINITY);
            }
            CHECK_OK(card_pooling_run(levels[l].stream, (mstar_pooling)mode, &x.tensor, cu, 3, NULL,
                                      &out.tensor));
            for (int64_t i = 0; i < 19; i++) {
                bool sees = mode == MSTAR_POOLING_CLS ? i % 3 == 0
                                                      : mode != MSTAR_POOLING_LAST || i % 3 == 2;
                assert_int_equal(isnan(check_rows_get(&out, 1, i)) != 0, sees);
                assert_true(isfinite(check_rows_get(&out, 0, i)));
                assert_true(check_rows_get(&out, 2, i) == -INFINITY);
            }
            check_rows_free(&x);
            check_rows_free(&out);
        }
    }
}

/* ---- what is refused -------------------------------------------------------------- */

static void rotary_arguments(void **state)
{
    (void)state;
    const int64_t shape[3] = {T, 2, 8};
    mstar_tensor x = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 3, shape), t;
    mstar_tensor out = mstar_tensor_make(memory + 1000, MSTAR_DTYPE_F32, 3, shape);
    const int32_t at[T] = {0, 1, 2, 3};
#define ROTARY(positions, theta, dim, interleaved) \
    mstar_rotary(stream, &x, positions, theta, dim, interleaved, &out)
    CHECK_INVALID(mstar_rotary(NULL, &x, at, 1e4, 8, 0, &out), "stream is NULL");
    CHECK_INVALID(mstar_rotary(stream, NULL, at, 1e4, 8, 0, &out), "x is NULL");
    CHECK_INVALID(mstar_rotary(stream, &x, at, 1e4, 8, 0, NULL), "out is NULL");
    CHECK_INVALID(ROTARY(NULL, 1e4, 8, 0), "positions is NULL");
    const double thetas[] = {0.0, -1.0, (double)NAN, (double)INFINITY};
    for (int i = 0; i < 4; i++)
        CHECK_INVALID(ROTARY(at, thetas[i], 8, 0), "theta is ");
    CHECK_INVALID(ROTARY(at, 1e4, 10, 0), "rotary_dim is 10; it must be from 0 to 8");
    CHECK_INVALID(ROTARY(at, 1e4, -2, 0), "rotary_dim is -2");
    CHECK_INVALID(ROTARY(at, 1e4, 7, 0), "rotary_dim is 7; it must be even");
    CHECK_INVALID(ROTARY(at, 1e4, 8, 2), "interleaved is 2; it must be from 0 to 1");
    CHECK_INVALID(ROTARY(at, 1e4, 8, -1), "interleaved is -1");
    CHECK_INVALID(ROTARY((const int32_t *)(const void *)((const char *)at + 1), 1e4, 8, 0),
                  "positions is ");
    CHECK_INVALID(ROTARY((const int32_t *)out.data + 3, 1e4, 8, 0), "positions and out overlap");
    t = x;
    t.rank = 2;
    CHECK_INVALID(mstar_rotary(stream, &t, at, 1e4, 8, 0, &out), "x.rank is 2; it must be 3");
    t = out;
    t.shape[1] = 3;
    t.strides[0] = 24;
    CHECK_INVALID(mstar_rotary(stream, &x, at, 1e4, 8, 0, &t), "out.shape[1] is 3; it must be 2");
    t = out;
    t.strides[1] = 4; /* heads in each other */
    CHECK_INVALID(mstar_rotary(stream, &x, at, 1e4, 8, 0, &t),
                  "out.strides[1] is 4; it must be at least 8");
    t = x;
    t.data = (float *)x.data + 8;
    CHECK_INVALID(mstar_rotary(stream, &x, at, 1e4, 8, 0, &t), "x and out overlap");
    nothing_was_written();
    CHECK_OK(ROTARY(at, 1e4, 8, 0));
    CHECK_OK(ROTARY(at, 1e4, 0, 1));
    t = out; /* [H, T, D] seen as [T, H, D]: heads outside */
    t.strides[0] = 8;
    t.strides[1] = 8 * T;
    CHECK_OK(mstar_rotary(stream, &x, at, 1e4, 8, 1, &t));
    memcpy(memory, before, sizeof memory);
}

static void embedding_arguments(void **state)
{
    (void)state;
    mstar_tensor a = matrix(0, 5, M), b = matrix(1, 3, M), out = matrix(2, T, M), t;
    const mstar_tensor *tables[2] = {&a, &b}, *odd[2] = {&a, &t}, *hole[2] = {&a, NULL};
    int32_t ids_a[T] = {0, 4, 1, 2}, ids_b[T] = {2, 0, 1, 2};
    const int32_t *ids[2] = {ids_a, ids_b}, *ids_hole[2] = {ids_a, NULL};
#define EMBED(ts, is, n) mstar_embedding(stream, ts, is, n, &out)
    CHECK_INVALID(mstar_embedding(NULL, tables, ids, 2, &out), "stream is NULL");
    CHECK_INVALID(mstar_embedding(stream, tables, ids, 2, NULL), "out is NULL");
    CHECK_INVALID(EMBED(NULL, ids, 2), "tables is NULL");
    CHECK_INVALID(EMBED(tables, NULL, 2), "ids is NULL");
    CHECK_INVALID(EMBED(tables, ids, 0), "num_tables is 0; it must be from 1 to 8");
    CHECK_INVALID(EMBED(tables, ids, 9), "num_tables is 9");
    CHECK_INVALID(EMBED(hole, ids, 2), "tables[1] is NULL");
    CHECK_INVALID(EMBED(tables, ids_hole, 2), "ids[1] is NULL");
    t = matrix(1, 3, M - 1);
    CHECK_INVALID(EMBED(odd, ids, 2), "tables[1].shape[1] is 5; it must be 6");
    t = matrix(1, 3, M);
    t.dtype = MSTAR_DTYPE_I32;
    CHECK_INVALID(EMBED(odd, ids, 2), "tables[1].dtype is i32");
    t = matrix(2, 3, M);
    CHECK_INVALID(EMBED(odd, ids, 2), "tables[1] and out overlap");
    const int32_t *inside[2] = {ids_a, (const int32_t *)out.data};
    CHECK_INVALID(EMBED(tables, inside, 2), "ids[1] and out overlap");
    ids_b[3] = 3;
    CHECK_INVALID(EMBED(tables, ids, 2), "ids[1][3] is 3; tables[1] has rows 0 to 2");
    ids_b[3] = -1;
    CHECK_INVALID(EMBED(tables, ids, 2), "ids[1][3] is -1");
    ids_b[3] = INT32_MIN;
    CHECK_INVALID(EMBED(tables, ids, 2), "ids[1][3] is -2147483648");
    ids_b[3] = 2;
    ids_a[0] = 5;
    CHECK_INVALID(EMBED(tables, ids, 2), "ids[0][0] is 5; tables[0] has rows 0 to 4");
    ids_a[0] = 0;
    t = matrix(1, 0, M);
    CHECK_INVALID(EMBED(odd, ids, 2), "ids[1][0] is 2; tables[1] has rows 0 to -1");
    t = out;
    t.strides[0] = 0;
    CHECK_INVALID(mstar_embedding(stream, tables, ids, 2, &t), "out.strides[0] is 0");
    nothing_was_written();
    CHECK_OK(EMBED(tables, ids, 2));
    memcpy(memory, before, sizeof memory);
}

static void pooling_arguments(void **state)
{
    (void)state;
    mstar_tensor x = matrix(0, T, M), out = matrix(1, 2, M);
    int32_t cu[3] = {0, 1, 4}, skip[2] = {0, 9};
#define POOL(mode, offsets, count, skipped) \
    mstar_pooling_run(stream, mode, &x, offsets, count, skipped, &out)
    CHECK_INVALID(POOL((mstar_pooling)6, cu, 2, NULL), "pooling is 6; it must be from 0 to 5");
    CHECK_INVALID(POOL((mstar_pooling)-1, cu, 2, NULL), "pooling is ");
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, NULL, 2, NULL), "cu_seqlens is NULL");
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, -1, NULL), "num_segments is -1");
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, INT64_MAX, NULL), "num_segments is ");
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 1, NULL), "out.shape[0] is 2; it must be 1");
    cu[0] = 1;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, NULL), "cu_seqlens[0] is 1; it must be 0");
    cu[0] = -1;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, NULL), "cu_seqlens[0] is -1; it must be 0");
    cu[0] = 0;
    cu[1] = 5;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, NULL),
                  "cu_seqlens[2] is 4; it must be at least the one before it, 5");
    cu[1] = -1;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, NULL), "cu_seqlens[1] is -1");
    cu[1] = 1;
    cu[2] = 5;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, NULL),
                  "cu_seqlens[2] is 5; it must be at most x.shape[0] = 4");
    cu[2] = INT32_MAX;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, NULL), "cu_seqlens[2] is 2147483647");
    cu[2] = 4;
    skip[1] = -1;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, skip), "skip[1] is -1; it must be 0 or more");
    skip[1] = 9;
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, (const int32_t *)out.data, 2, NULL),
                  "cu_seqlens and out overlap");
    CHECK_INVALID(POOL(MSTAR_POOLING_MEAN, cu, 2, (const int32_t *)out.data),
                  "skip and out overlap");
    nothing_was_written();
    CHECK_OK(POOL(MSTAR_POOLING_MEAN, cu, 2, skip)); /* more skipped than there is: zeros */
    for (int i = 0; i < M; i++)
        assert_true(memory[1000 + M + i] == 0.0f);
    cu[2] = 3; /* rows of x past the last segment are allowed */
    CHECK_OK(POOL(MSTAR_POOLING_LAST, cu, 2, NULL));
    memcpy(memory, before, sizeof memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotary_turns_pairs),
        cmocka_unit_test(embedding_sums_tables),
        cmocka_unit_test(pooling_of_all_modes),
        cmocka_unit_test(pooling_of_odd_numbers),
    };
    const struct CMUnitTest refusals[] = {
        /* of tensors in host memory */
        cmocka_unit_test(rotary_arguments),
        cmocka_unit_test(embedding_arguments),
        cmocka_unit_test(pooling_arguments),
    };
    card_choose(argc, argv);
    int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    if (!card_is_real())
        failed += cmocka_run_group_tests(refusals, set_up, tear_down);
    return failed;
}
