/*
 * body_linear_bf16.c - products over bf16 panels by bf16 dot instructions: AVX-512 BF16 (vdpbf16ps)
 * and AMX (tdpbf16ps). Levels without them widen the panels instead, in body_linear.c.
 *
 * Panels hold pairs of k: [ceil(K / 2)][PANEL][2], K padded with zeros to DEPTH_UNIT. x is rounded
 * to bf16 (nearest even) a row tile at a time. An output element is one chain over pairs of k from
 * 0 up, in f32, in every path, so its bits depend on its row and column alone.
 */
#include "cpu/body.h"

#if defined(MST_ISA_AVX512BF16)

#include "cpu/linear_few.h"
#include "cpu/linear_finish.h"
#include "cpu/simd/amx.h"
#include "cpu/simd/tile.h"

#define PANEL MST_LINEAR_PANEL
/* Depth of x converted at a time: a row tile of it stays in the second cache, rows a line off a
 * power of two. */
#define MAX_DEPTH 3072
#define X_PADDING 32
/* Bytes of panels that stay in the second cache while row tiles pass. */
#define GROUP_BYTES (384 * 1024)

#if defined(MST_ISA_AMX)
#define DEPTH_UNIT 32 /* k of one tile */
#define TILE_ROWS 32
#else
#define DEPTH_UNIT 2
#define TILE_ROWS VF_ROWS
#endif

static int64_t padded_depth(const mst_linear_shape *shape)
{
    return mst_round_up(shape->in_features, DEPTH_UNIT);
}

size_t MST_FOR_ISA(mst_linear_bf16_packed_bytes)(const mst_linear_shape *shape)
{
    size_t panels = (size_t)mst_ceil_div(shape->out_features, PANEL);
    return panels * PANEL * (size_t)padded_depth(shape) * sizeof(uint16_t);
}

void MST_FOR_ISA(mst_linear_bf16_pack)(const mst_linear_shape *shape, const mstar_tensor *weight,
                                       int64_t first_row, void *packed, int64_t panel_begin,
                                       int64_t panel_end)
{
    int64_t depth = padded_depth(shape);
    int64_t last_row = first_row + weight->shape[0];
    for (int64_t p = panel_begin; p < panel_end; p++) {
        uint16_t *panel = (uint16_t *)packed + p * PANEL * depth;
        int64_t begin = mst_max_i64(first_row - p * PANEL, 0);
        int64_t end = mst_min_i64(last_row - p * PANEL, PANEL);
        for (int64_t c = begin; c < end; c++) {
            int64_t at = (p * PANEL + c - first_row) * weight->strides[0];
            for (int64_t k = 0; k < depth; k++) {
                float w = k < shape->in_features ? mst_load_element(weight->data, weight->dtype,
                                                                    at + k * weight->strides[1])
                                                 : 0.0f;
                panel[(k / 2 * PANEL + c) * 2 + k % 2] = mst_f32_to_bf16(w);
            }
        }
        for (int64_t c = mst_max_i64(shape->out_features - p * PANEL, 0); c < PANEL; c++) {
            for (int64_t k = 0; k < depth; k++)
                panel[(k / 2 * PANEL + c) * 2 + k % 2] = 0;
        }
    }
}

/* x[row .. row + rows)[k .. k + depth) rounded to bf16, subnormals to 0, as which they would count;
 * zeros past in_features and past the rows. */
static void round_x(const mst_linear_work *work, int64_t row, int rows, int64_t k, int64_t depth,
                    uint16_t *to, int64_t stride)
{
    int64_t real = mst_min_i64(depth, work->shape->in_features - k);
    for (int r = 0; r < TILE_ROWS; r++) {
        uint16_t *out = to + r * stride;
        if (r >= rows) {
#if defined(MST_ISA_AMX)
            memset(out, 0, (size_t)depth * sizeof *out);
#endif
            continue;
        }
        int64_t at = (row + r) * work->x.row_stride + k;
        for (int64_t i = 0; i < real; i += VF_LANES) {
            int n = vf_left(real, i);
            vf_store_pairs_n(out + i, vf_load_any_n(work->x.data, work->x.dtype, at + i, n), n);
        }
        for (int64_t i = real; i < depth; i++)
            out[i] = 0;
    }
}

#if defined(MST_ISA_AMX)

/* Two by two tiles of 16 x 16 sums: rows of x 0-15 and 16-31, columns 0-15 and 16-31. */
static void dot_tile(const uint16_t *a, int64_t a_stride, const uint16_t *b, int64_t depth,
                     float *c, int rows, bool fresh)
{
    const size_t c_bytes = PANEL * sizeof(float);
    const size_t a_bytes = (size_t)a_stride * sizeof(uint16_t);
    const size_t b_bytes = 2 * PANEL * sizeof(uint16_t);
    bool two = rows > 16;
    amx_after_stores();
    if (fresh) {
        amx_zero(0);
        amx_zero(1);
        amx_zero(2);
        amx_zero(3);
    } else {
        amx_load(0, c, c_bytes);
        amx_load(1, c + 16, c_bytes);
        amx_load(2, c + 16 * PANEL, c_bytes);
        amx_load(3, c + 16 * PANEL + 16, c_bytes);
    }
    for (int64_t k = 0; k < depth; k += DEPTH_UNIT) {
        amx_load(6, b + k * PANEL, b_bytes);
        amx_load(7, b + k * PANEL + 32, b_bytes);
        amx_load(4, a + k, a_bytes);
        amx_dot(0, 4, 6);
        amx_dot(1, 4, 7);
        if (two) {
            amx_load(5, a + 16 * a_stride + k, a_bytes);
            amx_dot(2, 5, 6);
            amx_dot(3, 5, 7);
        }
    }
    amx_store(0, c, c_bytes);
    amx_store(1, c + 16, c_bytes);
    if (two) {
        amx_store(2, c + 16 * PANEL, c_bytes);
        amx_store(3, c + 16 * PANEL + 16, c_bytes);
    }
}

static int next_rows(int64_t left)
{
    return (int)mst_min_i64(left, TILE_ROWS);
}

/* A tile's rows cost the same, few or many. */
static int64_t run_few(const mst_linear_work *work, int64_t row, int64_t rows, int64_t panel,
                       int64_t panel_end, uint16_t *x, float *c)
{
    (void)work, (void)row, (void)rows, (void)panel_end, (void)x, (void)c;
    return panel;
}

#else

static void dot_tile(const uint16_t *a, int64_t a_stride, const uint16_t *b, int64_t depth,
                     float *c, int rows, bool fresh)
{
    /* a pair of bf16 is one element of the tile */
    mst_tile_args t = {.a = (const float *)(const void *)a,
                       .a_stride = a_stride / 2,
                       .b = (const float *)(const void *)b,
                       .b_stride = PANEL,
                       .depth = depth / 2,
                       .c = c,
                       .c_stride = PANEL,
                       .fresh = fresh};
    mst_pair_tile_by_rows(&t, rows, 2);
}

static int next_rows(int64_t left)
{
    return mst_tile_rows(left);
}

/* Few rows take several panels at once; returns the first panel that is left. */
static int64_t run_few(const mst_linear_work *work, int64_t row, int64_t rows, int64_t panel,
                       int64_t panel_end, uint16_t *x, float *c)
{
    int panels = mst_few_panels(rows);
    int64_t depth = padded_depth(work->shape);
    int64_t step = mst_min_i64(depth, MAX_DEPTH);
    int64_t width = panels * PANEL;
    mst_few_args few = {.a = (const float *)(const void *)x,
                        .a_stride = (step + X_PADDING) / 2,
                        .panel_elements = depth / 2 * PANEL,
                        .c = c};
    if (panels > 1 && depth <= step)
        round_x(work, row, (int)rows, 0, depth, x, step + X_PADDING);
    for (; panels > 1 && panel + panels <= panel_end; panel += panels) {
        for (int64_t k = 0; k < depth; k += step) {
            few.depth = mst_min_i64(step, depth - k) / 2;
            few.packed = (const uint16_t *)work->packed + (panel * depth + k) * PANEL;
            few.fresh = k == 0;
            if (depth > step)
                round_x(work, row, (int)rows, k, 2 * few.depth, x, step + X_PADDING);
            mst_few_tile(&few, (int)rows, MST_FEW_PAIRS);
        }
        mst_linear_finish(work, c, width, row, (int)rows, panel * PANEL, width);
    }
    return panel;
}

#endif

void MST_FOR_ISA(mst_linear_bf16_block)(const mst_linear_work *work, int64_t row_begin,
                                        int64_t row_end, int64_t panel_begin, int64_t panel_end)
{
    _Alignas(64) float c[TILE_ROWS * PANEL];
    _Alignas(64) uint16_t x[TILE_ROWS * (MAX_DEPTH + X_PADDING)];
    int64_t depth = padded_depth(work->shape);
    int64_t step = mst_min_i64(depth, MAX_DEPTH);
    int64_t stride = step + X_PADDING;
    int64_t panel_bytes = depth * PANEL * (int64_t)sizeof(uint16_t);
    int64_t group = mst_max_i64(1, GROUP_BYTES / mst_max_i64(panel_bytes, 1));
    panel_begin = run_few(work, row_begin, row_end - row_begin, panel_begin, panel_end, x, c);
    amx_open();
    for (int64_t first = panel_begin; first < panel_end; first += group) {
        int64_t last = mst_min_i64(first + group, panel_end);
        for (int64_t row = row_begin; row < row_end;) {
            int rows = next_rows(row_end - row);
            if (depth <= step)
                round_x(work, row, rows, 0, depth, x, stride);
            for (int64_t panel = first; panel < last; panel++) {
                const uint16_t *b = (const uint16_t *)work->packed + panel * PANEL * depth;
                for (int64_t k = 0; k < depth; k += step) {
                    int64_t d = mst_min_i64(step, depth - k);
                    if (depth > step)
                        round_x(work, row, rows, k, d, x, stride);
                    dot_tile(x, stride, b + k * PANEL, d, c, rows, k == 0);
                }
                mst_linear_finish(work, c, PANEL, row, rows, panel * PANEL, PANEL);
            }
            row += rows;
        }
    }
    amx_close();
}

#else

/* ISO C forbids an empty translation unit. */
typedef int mst_linear_bf16_is_widened_here;

#endif
