/*
 * body_rows.c - the row by row operations, for one ISA level: norms, activation, embedding,
 * pooling, normalise, rotary. Sums over a row run lane by lane and then over the lanes in one fixed
 * order.
 */
#include <math.h>

#include "cpu/body.h"
#include "cpu/simd/vmath.h"

static vf load_row(mst_rows x, int64_t row, int64_t i, int n)
{
    return vf_load_any_n(x.data, x.dtype, row * x.row_stride + i, n);
}

static void store_row(mst_rows out, int64_t row, int64_t i, vf y, int n)
{
    vf_store_any_n(out.data, out.dtype, row * out.row_stride + i, y, n);
}

static vf load_sum(mst_rows x, mst_rows residual, int64_t row, int64_t i, int n)
{
    vf y = load_row(x, row, i, n);
    return residual.data != NULL ? vf_add(y, load_row(residual, row, i, n)) : y;
}

/* y with the lanes past n made 0, for sums. */
static vf keep_n(vf y, int n)
{
    return n == VF_LANES ? y : vf_select(vf_less(vf_iota(), vf_set1((float)n)), y, vf_zero());
}

/* Sums over a row run in this many chains, vector by vector in turn. */
#define CHAINS 4

static inline vf add_chains(const vf *sums)
{
    return vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3]));
}

/* plain: whole vectors of f32 without a residual; the same bits either way. */
static inline __attribute__((always_inline)) vf load_centred(mst_rows x, mst_rows residual,
                                                             int64_t row, int64_t i, int64_t width,
                                                             vf mean, const bool plain)
{
    if (plain)
        return vf_sub(vf_load((const float *)x.data + row * x.row_stride + i), mean);
    int n = vf_left(width, i);
    return keep_n(vf_sub(load_sum(x, residual, row, i, n), mean), n);
}

/* Mean, then the mean of the centred squares, then the result: three passes over a row in L1. */
static inline __attribute__((always_inline)) void
layer_norm_body(int64_t width, mst_rows x, mst_rows residual, const float *weight,
                const float *bias, float eps, mst_rows out, int64_t row, const bool plain)
{
    const int64_t step = CHAINS * VF_LANES;
    vf sums[CHAINS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t i = 0; i < width; i += step) {
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++) {
            int64_t j = i + c * VF_LANES;
            if (j < width)
                sums[c] =
                    vf_add(sums[c], load_centred(x, residual, row, j, width, vf_zero(), plain));
        }
    }
    vf mean = vf_set1(vf_sum(add_chains(sums)) / (float)width);
    vf squares[CHAINS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t i = 0; i < width; i += step) {
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++) {
            int64_t j = i + c * VF_LANES;
            if (j >= width)
                continue;
            vf d = load_centred(x, residual, row, j, width, mean, plain);
            squares[c] = vf_fma(d, d, squares[c]);
        }
    }
    vf scale = vf_set1(1.0f / sqrtf(vf_sum(add_chains(squares)) / (float)width + eps));
    for (int64_t i = 0; i < width; i += VF_LANES) {
        vf d = vf_mul(load_centred(x, residual, row, i, width, mean, plain), scale);
        int n = plain ? VF_LANES : vf_left(width, i);
        vf w = plain ? vf_load(weight + i) : vf_load_n(weight + i, n);
        vf b = bias == NULL ? vf_zero() : plain ? vf_load(bias + i) : vf_load_n(bias + i, n);
        vf y = vf_fma(d, w, b);
        if (plain)
            vf_store((float *)out.data + row * out.row_stride + i, y);
        else
            store_row(out, row, i, y, n);
    }
}

void MST_FOR_ISA(mst_layer_norm_row)(int64_t width, mst_rows x, mst_rows residual,
                                     const float *weight, const float *bias, float eps,
                                     mst_rows out, int64_t row)
{
    bool plain = x.dtype == MSTAR_DTYPE_F32 && out.dtype == MSTAR_DTYPE_F32 &&
                 residual.data == NULL && width % VF_LANES == 0;
    if (plain)
        layer_norm_body(width, x, residual, weight, bias, eps, out, row, true);
    else
        layer_norm_body(width, x, residual, weight, bias, eps, out, row, false);
}

void MST_FOR_ISA(mst_rms_norm_row)(int64_t width, mst_rows x, mst_rows residual,
                                   const float *weight, float eps, mst_rows out, int64_t row)
{
    vf squares = vf_zero();
    for (int64_t i = 0; i < width; i += VF_LANES) {
        vf y = load_sum(x, residual, row, i, vf_left(width, i));
        squares = vf_fma(y, y, squares);
    }
    vf scale = vf_set1(1.0f / sqrtf(vf_sum(squares) / (float)width + eps));
    for (int64_t i = 0; i < width; i += VF_LANES) {
        int n = vf_left(width, i);
        vf y = vf_mul(load_sum(x, residual, row, i, n), scale);
        store_row(out, row, i, vf_mul(y, vf_load_n(weight + i, n)), n);
    }
}

void MST_FOR_ISA(mst_activation_row)(int64_t width, mstar_activation activation, mst_rows x,
                                     mst_rows out, int64_t row)
{
    for (int64_t i = 0; i < width; i += VF_LANES) {
        int n = vf_left(width, i);
        store_row(out, row, i, vf_activate(activation, load_row(x, row, i, n)), n);
    }
}

void MST_FOR_ISA(mst_embedding_row)(int64_t width, const mst_rows *tables,
                                    const int32_t *const *ids, int32_t num_tables, mst_rows out,
                                    int64_t row)
{
    for (int64_t i = 0; i < width; i += VF_LANES) {
        int n = vf_left(width, i);
        vf sum = load_row(tables[0], ids[0][row], i, n);
        for (int32_t t = 1; t < num_tables; t++)
            sum = vf_add(sum, load_row(tables[t], ids[t][row], i, n));
        store_row(out, row, i, sum, n);
    }
}

/* Rows in order, a column a chain; the divisor is exact for any length that fits memory. */
void MST_FOR_ISA(mst_pooling_segment)(mstar_pooling pooling, int64_t width, mst_rows x,
                                      int64_t row_begin, int64_t row_end, int64_t skipped,
                                      mst_rows out, int64_t segment)
{
    int64_t rows = row_end - row_begin;
    double divisor = 1.0;
    if (pooling == MSTAR_POOLING_MEAN)
        divisor = (double)rows;
    else if (pooling == MSTAR_POOLING_MEAN_SQRT_LEN)
        divisor = sqrt((double)rows);
    else if (pooling == MSTAR_POOLING_WEIGHTED_MEAN)
        divisor = (double)rows * (2.0 * (double)skipped + (double)rows + 1.0) / 2.0;
    vf first = vf_set1(pooling == MSTAR_POOLING_WEIGHTED_MEAN ? (float)(skipped + 1) : 1.0f);
    for (int64_t i = 0; i < width; i += VF_LANES) {
        int n = vf_left(width, i);
        vf y = vf_zero();
        if (rows > 0 && pooling == MSTAR_POOLING_LAST) {
            y = load_row(x, row_end - 1, i, n);
        } else if (rows > 0) {
            y = vf_mul(load_row(x, row_begin, i, n), first);
            for (int64_t r = row_begin + 1; r < row_end && pooling != MSTAR_POOLING_CLS; r++) {
                vf v = load_row(x, r, i, n);
                if (pooling == MSTAR_POOLING_MAX) /* a NaN on either side stays */
                    y = vf_select(vf_less_equal(v, y), y,
                                  vf_select(vf_less(y, v), v, vf_add(y, v)));
                else if (pooling == MSTAR_POOLING_WEIGHTED_MEAN)
                    y = vf_fma(v, vf_set1((float)(skipped + r - row_begin + 1)), y);
                else
                    y = vf_add(y, v);
            }
            if (divisor != 1.0)
                y = vf_div(y, vf_set1((float)divisor));
        }
        store_row(out, segment, i, y, n);
    }
}

/* The sum of squares is redone in f64 where f32 would overflow or vanish. */
static double length_of(int64_t width, mst_rows x, int64_t row)
{
    vf squares = vf_zero();
    for (int64_t i = 0; i < width; i += VF_LANES) {
        vf y = load_row(x, row, i, vf_left(width, i));
        squares = vf_fma(y, y, squares);
    }
    float sum = vf_sum(squares);
    if (sum > 1e-30f && sum < 1e37f)
        return (double)sqrtf(sum);
    double wide = 0.0;
    for (int64_t i = 0; i < width; i++) {
        double y = (double)mst_load_element(x.data, x.dtype, row * x.row_stride + i);
        wide += y * y;
    }
    return sqrt(wide);
}

/* A length past the range of f32 is divided out of a row made smaller by a power of two. */
void MST_FOR_ISA(mst_normalize_row)(int64_t width, mst_rows x, mst_rows out, int64_t row)
{
    double length = length_of(width, x, row);
    double shrink = length < 0x1p127 ? 1.0 : 0x1p-64;
    vf factor = vf_set1((float)shrink);
    /* NaN is kept: the comparison is false for it */
    vf divisor = vf_set1((float)(length < 1e-12 ? 1e-12 : length * shrink));
    for (int64_t i = 0; i < width; i += VF_LANES) {
        int n = vf_left(width, i);
        store_row(out, row, i, vf_div(vf_mul(load_row(x, row, i, n), factor), divisor), n);
    }
}

/* Angles in f64 by libm; the turn in f32. Element by element: rotary is a small part of a layer. */
void MST_FOR_ISA(mst_rotary_row)(int32_t num_heads, int32_t head_dim, mst_rows x,
                                 int64_t x_head_stride, int32_t position, double theta,
                                 int32_t rotary_dim, bool interleaved, mst_rows out,
                                 int64_t out_head_stride, int64_t row)
{
    int32_t half = rotary_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        double angle = (double)position * pow(theta, -2.0 * i / (double)rotary_dim);
        float c = (float)cos(angle);
        float s = (float)sin(angle);
        int32_t first = interleaved ? 2 * i : i;
        int32_t second = interleaved ? 2 * i + 1 : i + half;
        for (int32_t h = 0; h < num_heads; h++) {
            int64_t from = row * x.row_stride + h * x_head_stride;
            int64_t to = row * out.row_stride + h * out_head_stride;
            float a = mst_load_element(x.data, x.dtype, from + first);
            float b = mst_load_element(x.data, x.dtype, from + second);
            mst_store_element(out.data, out.dtype, to + first, a * c - b * s);
            mst_store_element(out.data, out.dtype, to + second, b * c + a * s);
        }
    }
    for (int32_t h = 0; h < num_heads; h++) {
        int64_t from = row * x.row_stride + h * x_head_stride;
        int64_t to = row * out.row_stride + h * out_head_stride;
        for (int32_t i = rotary_dim; i < head_dim; i++)
            mst_store_element(out.data, out.dtype, to + i,
                              mst_load_element(x.data, x.dtype, from + i));
    }
}
