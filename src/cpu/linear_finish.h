/* linear_finish.h - what follows the sums of a product: shared by the bodies of all weight dtypes.
 */
#ifndef MST_LINEAR_FINISH_H
#define MST_LINEAR_FINISH_H

#include "cpu/kernels.h"
#include "cpu/simd/vmath.h"

_Static_assert(MST_LINEAR_PAD % VF_LANES == 0, "whole vectors of bias may be read");

/* As mst_linear_finish, where all is f32 and whole vectors. */
static inline __attribute__((always_inline)) void
mst_linear_finish_plain(const mst_linear_work *work, const float *c, int64_t c_stride, int64_t row,
                        int rows, int64_t first, int64_t columns, const mstar_activation activation,
                        const bool residual)
{
    const float *bias = work->bias + first;
    float *out = (float *)work->out.data + row * work->out.row_stride + first;
    const float *add =
        residual ? (const float *)work->residual.data + row * work->residual.row_stride + first
                 : NULL;
    for (int r = 0; r < rows; r++) {
        for (int64_t j = 0; j < columns; j += VF_LANES) {
            vf y = vf_activate(activation, vf_add(vf_load(c + j), vf_load(bias + j)));
            vf_store(out + j, residual ? vf_add(y, vf_load(add + j)) : y);
        }
        c += c_stride;
        out += work->out.row_stride;
        if (residual)
            add += work->residual.row_stride;
    }
}

/* Bias, activation, residual, one rounding: columns [first, first + columns) of rows from row on.
 */
static inline void mst_linear_finish(const mst_linear_work *work, const float *c, int64_t c_stride,
                                     int64_t row, int rows, int64_t first, int64_t columns)
{
    mstar_activation activation = work->shape->activation;
    columns = mst_min_i64(columns, work->shape->out_features - first);
    bool residual = work->residual.data != NULL;
    bool plain = columns % VF_LANES == 0 && work->out.dtype == MSTAR_DTYPE_F32 &&
                 (!residual || work->residual.dtype == MSTAR_DTYPE_F32);
    if (plain && activation == MSTAR_ACTIVATION_NONE && residual) {
        mst_linear_finish_plain(work, c, c_stride, row, rows, first, columns, MSTAR_ACTIVATION_NONE,
                                true);
        return;
    }
    if (plain && activation == MSTAR_ACTIVATION_NONE) {
        mst_linear_finish_plain(work, c, c_stride, row, rows, first, columns, MSTAR_ACTIVATION_NONE,
                                false);
        return;
    }
    if (plain && activation == MSTAR_ACTIVATION_GELU && !residual) {
        mst_linear_finish_plain(work, c, c_stride, row, rows, first, columns, MSTAR_ACTIVATION_GELU,
                                false);
        return;
    }
    for (int r = 0; r < rows; r++) {
        for (int64_t j = 0; j < columns; j += VF_LANES) {
            int n = vf_left(columns, j);
            vf y = vf_add(vf_load(c + r * c_stride + j), vf_load(work->bias + first + j));
            y = vf_activate(activation, y);
            if (residual)
                y = vf_add(y, vf_load_any_n(work->residual.data, work->residual.dtype,
                                            (row + r) * work->residual.row_stride + first + j, n));
            vf_store_any_n(work->out.data, work->out.dtype,
                           (row + r) * work->out.row_stride + first + j, y, n);
        }
    }
}

#endif
