/*
 * fuzz_plan.c - descs, ceilings and offsets of any values through the three wrappers, eager and in
 * graph mode. A plan is accepted exactly when the rules of mstar/attention.h hold, a refused one
 * leaves the former in force, and small layouts run: every segment's rows have the bits that it has
 * alone, and rows without a visible key are zero.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_attn.h"
#include "support_fuzz.h"

enum { MAX_SEGMENTS = 20, MAX_ROWS = 48, MAX_WIDTH = 8 * 24, MAX_PLANS = 4 };

typedef struct fuzz_layout {
    int64_t segments, kv_segments;
    int32_t q[MAX_SEGMENTS + 1], kv[MAX_SEGMENTS + 1];
    int causal;
} fuzz_layout;

typedef struct fuzz_case {
    mstar_device *device;
    attn_kind kind;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
} fuzz_case;

static float q_values[MAX_ROWS * MAX_WIDTH], k_values[MAX_ROWS * MAX_WIDTH];
static float v_values[MAX_ROWS * MAX_WIDTH];

static mstar_device *open_device(void)
{
    mstar_device_desc desc;
    mstar_device *device = NULL;
    mstar_device_desc_init(&desc);
    desc.num_threads = 1;
    FUZZ_CHECK(mstar_device_open("cpu", &desc, &device) == MSTAR_OK);
    test_random random = {1};
    for (int i = 0; i < MAX_ROWS * MAX_WIDTH; i++) {
        q_values[i] = (float)test_random_normal(&random);
        k_values[i] = (float)test_random_normal(&random);
        v_values[i] = (float)test_random_normal(&random);
    }
    return device;
}

/* Small numbers mostly, and now and then one from the ends of its type. */
static int64_t draw_limit(fuzz_input *input)
{
    static const int64_t ends[] = {INT64_MAX, INT64_MIN, INT32_MAX, -2, 1LL << 31, 1LL << 40};
    int8_t value = (int8_t)fuzz_byte(input);
    if (value >= 120)
        return ends[value % 6];
    return value < -1 ? fuzz_int32(input) : value;
}

static void draw_desc(fuzz_input *input, fuzz_case *made)
{
    mstar_ragged_prefill_desc *desc = &made->desc;
    made->kind = (attn_kind)(fuzz_byte(input) % 3);
    mstar_ragged_prefill_desc_init(desc);
    desc->q_data_type = MSTAR_DTYPE_F32;
    desc->num_kv_heads = fuzz_byte(input) % 5;
    desc->num_qo_heads = desc->num_kv_heads * (fuzz_byte(input) % 3);
    desc->head_dim = fuzz_byte(input) % 25;
    uint8_t flags = fuzz_byte(input);
    desc->accelerator_graph = flags & 1;
    desc->return_lse = flags >> 1 & 1;
    desc->kv_layout = flags & 4 ? MSTAR_KV_HND : MSTAR_KV_NHD;
    if (flags & 8)
        desc->window_left = draw_limit(input);
    if (flags & 16)
        desc->window_right = draw_limit(input);
    if (flags & 33) {
        desc->max_num_segments = draw_limit(input);
        desc->max_total_tokens = draw_limit(input);
        desc->max_total_kv_tokens = draw_limit(input);
    }
}

static void draw_offsets(fuzz_input *input, bool raw, int64_t segments, int32_t *offsets)
{
    offsets[0] = raw ? fuzz_int32(input) : 0;
    for (int64_t i = 0; i < segments; i++)
        offsets[i + 1] = raw ? fuzz_int32(input) : offsets[i] + fuzz_byte(input) % 24;
}

static void draw_layout(fuzz_input *input, fuzz_layout *layout)
{
    uint8_t flags = fuzz_byte(input);
    layout->causal = flags & 1;
    layout->segments = fuzz_byte(input) % (MAX_SEGMENTS + 1);
    layout->kv_segments = flags & 16 ? fuzz_byte(input) % (MAX_SEGMENTS + 1) : layout->segments;
    draw_offsets(input, flags & 4, layout->segments, layout->q);
    draw_offsets(input, flags & 8, layout->kv_segments, layout->kv);
}

static bool good_offsets(const int32_t *offsets, int64_t segments, int64_t ceiling)
{
    bool good = offsets[0] == 0;
    for (int64_t i = 0; i < segments; i++)
        good = good && offsets[i + 1] >= offsets[i];
    return good && (ceiling < 0 || offsets[segments] <= ceiling);
}

/* What the header says, said once more. */
static bool is_good(const fuzz_case *test, const mstar_ragged_prefill_info *info,
                    const fuzz_layout *layout)
{
    bool graph = test->desc.accelerator_graph != 0;
    if (graph && layout->segments > info->max_num_segments)
        return false;
    if (!good_offsets(layout->q, layout->segments, graph ? info->max_total_tokens : -1))
        return false;
    if (test->kind == ATTN_SELF)
        return true;
    return layout->segments == layout->kv_segments &&
           good_offsets(layout->kv, layout->segments, graph ? info->max_total_kv_tokens : -1);
}

/* ---- small layouts run ----------------------------------------------------------------------- */

static mstar_tensor rows_of(float *data, int64_t first, int64_t rows, int64_t heads, int64_t dim)
{
    const int64_t shape[3] = {rows, heads, dim};
    return mstar_tensor_make(data + first * heads * dim, MSTAR_DTYPE_F32, 3, shape);
}

/* Rows [first, first + rows) of [MAX_ROWS, K, D], or of [K, MAX_ROWS, D]. */
static mstar_tensor keys_of(const fuzz_case *test, float *data, int64_t first, int64_t rows)
{
    int64_t heads = test->desc.num_kv_heads, dim = test->desc.head_dim;
    if (test->desc.kv_layout == MSTAR_KV_NHD)
        return rows_of(data, first, rows, heads, dim);
    const int64_t shape[3] = {heads, rows, dim};
    mstar_tensor keys = mstar_tensor_make(data + first * dim, MSTAR_DTYPE_F32, 3, shape);
    keys.strides[0] = MAX_ROWS * dim;
    return keys;
}

static void run_rows(const fuzz_case *test, const attn_wrapper *wrapper, int64_t q_first,
                     int64_t q_rows, int64_t k_first, int64_t k_rows, float *out, float *lse)
{
    int64_t heads = test->desc.num_qo_heads, dim = test->desc.head_dim;
    const int64_t lse_shape[2] = {q_rows, heads};
    mstar_tensor q = rows_of(q_values, q_first, q_rows, heads, dim);
    mstar_tensor k = keys_of(test, k_values, k_first, k_rows);
    mstar_tensor v = keys_of(test, v_values, k_first, k_rows);
    mstar_tensor o = rows_of(out, 0, q_rows, heads, dim);
    mstar_tensor l = mstar_tensor_make(lse, MSTAR_DTYPE_F32, 2, lse_shape);
    FUZZ_CHECK(attn_run(wrapper, NULL, &q, &k, &v, &o, test->desc.return_lse ? &l : NULL) ==
               MSTAR_OK);
}

static bool sees_a_key(const fuzz_case *test, int causal, int64_t lq, int64_t lk, int64_t row)
{
    for (int64_t key = 0; key < lk; key++) {
        int64_t place = lk - lq + row;
        bool left = test->desc.window_left < 0 || place - key <= test->desc.window_left;
        bool right = test->desc.window_right < 0 || key - place <= test->desc.window_right;
        if (left && right && (!causal || key <= place))
            return true;
    }
    return false;
}

static void check_run(const fuzz_case *test, const fuzz_layout *layout)
{
    static float out[MAX_ROWS * MAX_WIDTH], alone[MAX_ROWS * MAX_WIDTH];
    static float lse[MAX_ROWS * 8], lse_alone[MAX_ROWS * 8];
    const int32_t *kv_offsets = test->kind == ATTN_SELF ? layout->q : layout->kv;
    int64_t rows = layout->q[layout->segments], keys = kv_offsets[layout->segments];
    int64_t heads = test->desc.num_qo_heads, width = heads * test->desc.head_dim;
    if (rows > MAX_ROWS || keys > MAX_ROWS)
        return;
    int causal = test->kind == ATTN_CROSS ? 0 : layout->causal;
    fuzz_case single = *test;
    single.desc.accelerator_graph = 0;
    if (!fuzz_took(attn_create(test->device, test->kind, &single.desc, NULL, 0, &single.wrapper)))
        return;
    memset(out, 0xff, sizeof out);
    run_rows(test, &test->wrapper, 0, rows, 0, keys, out, lse);
    for (int64_t s = 0; s < layout->segments; s++) {
        int64_t first = layout->q[s], lq = layout->q[s + 1] - first;
        int64_t k_first = kv_offsets[s], lk = kv_offsets[s + 1] - k_first;
        const int32_t q_alone[2] = {0, (int32_t)lq}, kv_alone[2] = {0, (int32_t)lk};
        FUZZ_CHECK(attn_plan(&single.wrapper, NULL, q_alone, 1, kv_alone, 1, causal) == MSTAR_OK);
        run_rows(&single, &single.wrapper, first, lq, k_first, lk, alone, lse_alone);
        FUZZ_CHECK(memcmp(out + first * width, alone, (size_t)(lq * width) * sizeof *out) == 0);
        FUZZ_CHECK(!test->desc.return_lse ||
                   memcmp(lse + first * heads, lse_alone, (size_t)(lq * heads) * sizeof *lse) == 0);
        for (int64_t row = 0; row < lq; row++) {
            bool sees = sees_a_key(test, causal, lq, lk, row);
            for (int64_t i = 0; i < width; i++) {
                float value = alone[row * width + i];
                FUZZ_CHECK(sees ? isfinite(value) : value == 0.0F);
            }
        }
    }
    attn_destroy(&single.wrapper);
}

static void check_plans(fuzz_case *test, fuzz_input *input)
{
    int64_t accepted = 0, tokens = -1;
    for (int i = 0; i < MAX_PLANS; i++) {
        fuzz_layout layout = {.causal = 0};
        mstar_ragged_prefill_info info = {.struct_size = sizeof info};
        draw_layout(input, &layout);
        FUZZ_CHECK(attn_query(&test->wrapper, &info) == MSTAR_OK);
        mstar_status status = attn_plan(&test->wrapper, NULL, layout.q, layout.segments, layout.kv,
                                        layout.kv_segments, layout.causal);
        bool took = fuzz_took(status);
        FUZZ_CHECK(status == MSTAR_OUT_OF_MEMORY || took == is_good(test, &info, &layout));
        FUZZ_CHECK(status != MSTAR_OUT_OF_MEMORY || !test->desc.accelerator_graph);
        if (took) {
            accepted++;
            tokens = layout.q[layout.segments];
            check_run(test, &layout);
        }
        FUZZ_CHECK(attn_query(&test->wrapper, &info) == MSTAR_OK);
        FUZZ_CHECK(info.plans == accepted && (accepted == 0 || info.num_tokens == tokens));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static mstar_device *device;
    if (device == NULL)
        device = open_device();
    fuzz_begin();
    fuzz_input input = {data, bytes};
    fuzz_case test = {.device = device};
    draw_desc(&input, &test);
    if (fuzz_took(attn_create(device, test.kind, &test.desc, NULL, 0, &test.wrapper))) {
        check_plans(&test, &input);
        attn_destroy(&test.wrapper);
    }
    fuzz_end();
    return 0;
}
