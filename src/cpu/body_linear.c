/*
 * body_linear.c - packed products y = activation(x W^T + bias) + residual, for one ISA level.
 *
 * W [N, K] is packed once into panels of PANEL columns, each [K][PANEL], f32 or bf16. An output
 * element is one chain of multiply-adds over k from 0 to K - 1 in every path below, so its bits
 * depend on its row of x and its column of W alone. Few rows take several panels at once, which
 * hides the latency of the chains; more rows take one panel and a register tile.
 */
#include "cpu/body.h"
#include "cpu/linear_few.h"
#include "cpu/linear_finish.h"
#include "cpu/simd/tile.h"
#include "cpu/simd/vmath.h"

#define PANEL MST_LINEAR_PANEL
/* Depth of a step where x has to be widened: a tile of x in f32 stays in L1, its rows a
 * line apart from a power of two. */
#define WIDEN_DEPTH 256
#define WIDEN_STRIDE (WIDEN_DEPTH + 16)

size_t MST_FOR_ISA(mst_linear_packed_bytes)(const mst_linear_shape *shape)
{
    size_t panels = (size_t)mst_ceil_div(shape->out_features, PANEL);
    return panels * PANEL * (size_t)shape->in_features * mstar_dtype_bytes(shape->weight_dtype);
}

static float weight_at(const mstar_tensor *weight, int64_t row, int64_t column)
{
    return mst_load_element(weight->data, weight->dtype,
                            row * weight->strides[0] + column * weight->strides[1]);
}

static void put_weight(const mst_linear_shape *shape, void *packed, int64_t index, float value)
{
    mst_store_element(packed, shape->weight_dtype, index, value);
}

/* Columns [begin, end) of one panel from f32 rows that lie contiguous: blocks are transposed in
 * registers. */
static void pack_fast(const float *rows, int64_t row_stride, int64_t depth, int64_t begin,
                      int64_t end, float *panel)
{
    for (int64_t c = begin; c < end; c += VF_LANES) {
        int columns = (int)mst_min_i64(end - c, VF_LANES);
        for (int64_t k = 0; k < depth; k += VF_LANES) {
            int lanes = vf_left(depth, k);
            vf block[VF_LANES];
            for (int i = 0; i < VF_LANES; i++)
                block[i] = i < columns ? vf_load_n(rows + (c - begin + i) * row_stride + k, lanes)
                                       : vf_zero();
            vf_transpose(block);
            for (int i = 0; i < lanes; i++)
                vf_store_n(panel + (k + i) * PANEL + c, block[i], columns);
        }
    }
}

void MST_FOR_ISA(mst_linear_pack)(const mst_linear_shape *shape, const mstar_tensor *weight,
                                  int64_t first_row, void *packed, int64_t panel_begin,
                                  int64_t panel_end)
{
    int64_t depth = shape->in_features;
    int64_t last_row = first_row + weight->shape[0];
    bool plain = weight->dtype == MSTAR_DTYPE_F32 && shape->weight_dtype == MSTAR_DTYPE_F32 &&
                 (weight->strides[1] == 1 || depth == 1);
    for (int64_t p = panel_begin; p < panel_end; p++) {
        int64_t base = p * PANEL * depth;
        int64_t begin = mst_max_i64(first_row - p * PANEL, 0);
        int64_t end = mst_min_i64(last_row - p * PANEL, PANEL);
        if (begin < end && plain) {
            const float *rows =
                (const float *)weight->data + (p * PANEL + begin - first_row) * weight->strides[0];
            pack_fast(rows, weight->strides[0], depth, begin, end, (float *)packed + base);
        } else {
            for (int64_t c = begin; c < end; c++) {
                for (int64_t k = 0; k < depth; k++)
                    put_weight(shape, packed, base + k * PANEL + c,
                               weight_at(weight, p * PANEL + c - first_row, k));
            }
        }
        for (int64_t c = mst_max_i64(shape->out_features - p * PANEL, 0); c < PANEL; c++) {
            for (int64_t k = 0; k < depth; k++)
                put_weight(shape, packed, base + k * PANEL + c, 0.0f);
        }
    }
}

/* c[rows][PANEL] += a b over bf16 panels: as mst_tile_body, with b widened on the way in. */
static inline __attribute__((always_inline)) void half_tile_body(const mst_tile_args *t,
                                                                 const uint16_t *b, const int rows)
{
    vf acc[VF_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++)
            acc[r][v] = t->fresh ? vf_zero() : vf_load(t->c + r * t->c_stride + v * VF_LANES);
    }
    const float *a = t->a;
    for (int64_t i = 0; i < t->depth; i++) {
        vf b0 = vf_load_bf16(b);
        vf b1 = vf_load_bf16(b + VF_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf x = vf_set1(a[r * t->a_stride]);
            acc[r][0] = vf_fma(x, b0, acc[r][0]);
            acc[r][1] = vf_fma(x, b1, acc[r][1]);
        }
        a++;
        b += PANEL;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++)
            vf_store(t->c + r * t->c_stride + v * VF_LANES, acc[r][v]);
    }
}

#define HALF_CASE(n)                                \
    case n:                                         \
        half_tile_body(t, b, n <= VF_ROWS ? n : 1); \
        break;

static void half_tile(const mst_tile_args *t, const uint16_t *b, int rows)
{
    switch (rows) {
        HALF_CASE(1)
        HALF_CASE(2)
        HALF_CASE(3)
        HALF_CASE(4)
#if VF_ROWS > 4
        HALF_CASE(5)
        HALF_CASE(6)
#endif
#if VF_ROWS > 6
        HALF_CASE(7)
        HALF_CASE(8)
        HALF_CASE(9)
        HALF_CASE(10)
        HALF_CASE(11)
        HALF_CASE(12)
#endif
#if VF_ROWS > 12
        HALF_CASE(13)
        HALF_CASE(14)
#endif
    default:
        break;
    }
}

/*
 * Rows whose distance is a multiple of 4096 bytes fall into one set of a first cache, which holds 8
 * or 12 lines, and push each other out: a tile takes no more of them than fit.
 */
#define SAME_SET_ROWS 7
_Static_assert(VF_ROWS <= 2 * SAME_SET_ROWS, "half a tile fits");

static int next_rows(const mst_linear_work *work, int64_t left)
{
    int rows = mst_tile_rows(left);
    int64_t bytes = work->x.row_stride * (int64_t)sizeof(float);
    bool same_set = work->x.dtype == MSTAR_DTYPE_F32 && bytes % 4096 == 0;
    return same_set && rows > SAME_SET_ROWS ? (rows + 1) / 2 : rows;
}

/* x[row .. row + rows)[k .. k + depth) as f32: in place or widened into buffer. */
static const float *get_x(const mst_linear_work *work, int64_t row, int rows, int64_t k,
                          int64_t depth, bool in_place, float *buffer, int64_t *stride)
{
    if (in_place) {
        *stride = work->x.row_stride;
        return (const float *)work->x.data + row * work->x.row_stride + k;
    }
    *stride = WIDEN_STRIDE;
    for (int r = 0; r < rows; r++) {
        for (int64_t i = 0; i < depth; i += VF_LANES) {
            int n = vf_left(depth, i);
            vf_store_n(buffer + r * WIDEN_STRIDE + i,
                       vf_load_any_n(work->x.data, work->x.dtype,
                                     (row + r) * work->x.row_stride + k + i, n),
                       n);
        }
    }
    return buffer;
}

/*
 * rows of mst_few_panels(rows) panels, or of one. fetch: a line for each step of depth to ask for
 * meanwhile, or NULL.
 */
static void run_tile(const mst_linear_work *work, int64_t row, int rows, int64_t panel, int panels,
                     const char *fetch)
{
    _Alignas(64) float c[MST_LINEAR_SUMS];
    _Alignas(64) float buffer[VF_ROWS * WIDEN_STRIDE];
    const mst_linear_shape *shape = work->shape;
    int64_t depth = shape->in_features;
    int64_t panel_elements = depth * PANEL;
    bool half = shape->weight_dtype == MSTAR_DTYPE_BF16;
    bool in_place = work->x.dtype == MSTAR_DTYPE_F32;
    int64_t step = in_place ? depth : WIDEN_DEPTH;
    int64_t width = panels * PANEL;
    for (int64_t k = 0; k < depth; k += step) {
        int64_t d = mst_min_i64(step, depth - k);
        int64_t stride;
        const float *a = get_x(work, row, rows, k, d, in_place, buffer, &stride);
        int64_t at = panel * panel_elements + k * PANEL;
        const void *b = half ? (const void *)((const uint16_t *)work->packed + at)
                             : (const void *)((const float *)work->packed + at);
        if (panels > 1) {
            const mst_few_args few = {.a = a,
                                      .a_stride = stride,
                                      .packed = b,
                                      .panel_elements = panel_elements,
                                      .depth = d,
                                      .c = c,
                                      .fresh = k == 0};
            if (half)
                mst_few_tile(&few, rows, MST_FEW_WIDENED);
            else
                mst_few_tile(&few, rows, MST_FEW_F32);
            continue;
        }
        mst_tile_args t = {.a = a,
                           .a_stride = stride,
                           .b_stride = PANEL,
                           .depth = d,
                           .c = c,
                           .c_stride = PANEL,
                           .fresh = k == 0};
        if (half) {
            half_tile(&t, b, rows);
        } else {
            t.b = b;
            t.fetch = fetch != NULL ? fetch + k * MST_CACHE_LINE : NULL;
            if (fetch != NULL)
                mst_tile_by_rows_fetching(&t, rows, 2);
            else
                mst_tile_by_rows(&t, rows, 2);
        }
    }
    mst_linear_finish(work, c, width, row, rows, panel * PANEL, width);
}

void MST_FOR_ISA(mst_linear_block)(const mst_linear_work *work, int64_t row_begin, int64_t row_end,
                                   int64_t panel_begin, int64_t panel_end)
{
    int64_t panel = panel_begin;
    int64_t panel_bytes =
        work->shape->in_features * PANEL * (int64_t)mstar_dtype_bytes(work->shape->weight_dtype);
    int64_t step_bytes = work->shape->in_features * MST_CACHE_LINE;
    int64_t rows_left = row_end - row_begin;
    /* up to this many rows are one tile, or two of 4 to 6 rows in one set, which take a pair each
     */
    int at_once = rows_left <= 2 * MST_PAIR_ROWS ? mst_few_panels(next_rows(work, rows_left)) : 1;
    for (; at_once > 1 && panel + at_once <= panel_end; panel += at_once) {
        for (int64_t row = row_begin, rows; row < row_end; row += rows) {
            rows = next_rows(work, row_end - row);
            run_tile(work, row, (int)rows, panel, at_once, NULL);
        }
    }
    for (; panel < panel_end; panel++) {
        /* the first tiles of a panel ask for the next one, a part each until all of it is asked for
         */
        const char *next =
            panel + 1 < panel_end ? (const char *)work->packed + (panel + 1) * panel_bytes : NULL;
        int64_t asked = 0;
        for (int64_t row = row_begin; row < row_end;) {
            int rows = next_rows(work, row_end - row);
            bool ask = next != NULL && asked + step_bytes <= panel_bytes;
            run_tile(work, row, rows, panel, 1, ask ? next + asked : NULL);
            asked += step_bytes;
            row += rows;
        }
    }
}
