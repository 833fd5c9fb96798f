/*
 * test_faults_shapes.c - cases K08 to K10 of the known faults: head dims, groups of heads and the
 * log-sum-exp, strides and alignment.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_faults.h"

/* The numbers of the reference in every way. */
static void match(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_problem(c, &problem);
    fault_match(c, &problem, NULL);
}

/* ---- K08: head dims -------------------------------------------------------------------------- */

/* Each of the case's sizes. */
static void sizes_that_others_lack(void **state)
{
    fault_case *c = *state;
    int64_t dims[16];
    int64_t count = fault_list(c, "dims", dims, 16);
    attn_problem problem;
    fault_problem(c, &problem);
    for (int64_t i = 0; i < count; i++) {
        problem.head_dim = (int32_t)dims[i];
        fault_match(c, &problem, NULL);
    }
}

static void fill_out_with_nan(fault_case *c, const attn_problem *problem, attn_data *data)
{
    (void)c;
    attn_fill_rows(&data->out.tensor, 0, 0, attn_problem_tokens(problem), NAN);
}

static void every_element_is_written(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_out_with_nan};
    attn_problem problem;
    fault_says(c, "prefill_out", "NaN");
    fault_problem(c, &problem);
    fault_match(c, &problem, &ways);
}

/* A value head dim that differs, and 8-bit keys, are refused by name before anything runs. */
static void unlike_dims_are_refused(void **state)
{
    fault_case *c = *state;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    fault_outcome(c, "match_ref_or_reject");
    fault_says(c, "kv_dtype", "f8e4m3");
    fault_says(c, "dtype", "bf16");
    fault_want(c, "empty_rows");
    assert_false(fault_flag(c, "causal"));
    int64_t rows = json_integer_value(json_array_get(fault_get(c, "q_lens"), 0));
    int64_t keys = json_integer_value(json_array_get(fault_get(c, "kv_lens"), 0));
    const int32_t q_offsets[] = {0, (int32_t)rows};
    const int32_t kv_offsets[] = {0, (int32_t)keys};
    for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
        mstar_ragged_prefill_desc_init(&desc);
        desc.num_qo_heads = (int32_t)fault_integer(c, "hq");
        desc.num_kv_heads = (int32_t)fault_integer(c, "hkv");
        desc.head_dim = (int32_t)fault_integer(c, "d_qk");
        desc.value_head_dim = (int32_t)fault_integer(c, "d_vo");
        attn_refused(attn_create(fault_best(), (attn_kind)kind, &desc, NULL, 0, &wrapper),
                     MSTAR_NOT_SUPPORTED, "value_head_dim is 128", "reserved");
        desc.value_head_dim = -1;
        desc.q_data_type = MSTAR_DTYPE_F8_E4M3;
        attn_refused(attn_create(fault_best(), (attn_kind)kind, &desc, NULL, 0, &wrapper),
                     MSTAR_NOT_SUPPORTED, "q_data_type is f8_e4m3", "reserved");
        desc.q_data_type = MSTAR_DTYPE_BF16;
        desc.k_scale = 1.0;
        attn_refused(attn_create(fault_best(), (attn_kind)kind, &desc, NULL, 0, &wrapper),
                     MSTAR_NOT_SUPPORTED, "k_scale is 1", "reserved");
        desc.k_scale = (double)NAN;
        attn_must(attn_create(fault_best(), (attn_kind)kind, &desc, NULL, 0, &wrapper));
        /* keys of 8 bits, and values of 128 columns, at run */
        int64_t k_rows = kind == ATTN_SELF ? rows : keys;
        const int64_t q_shape[] = {rows, desc.num_qo_heads, desc.head_dim};
        const int64_t k_shape[] = {k_rows, desc.num_kv_heads, desc.head_dim};
        const int64_t v_shape[] = {k_rows, desc.num_kv_heads, 128};
        void *memory = calloc((size_t)(keys * 8 * 192), 2);
        void *result = calloc((size_t)(rows * 8 * 192), 2);
        assert_true(memory != NULL && result != NULL);
        mstar_tensor q = mstar_tensor_make(memory, MSTAR_DTYPE_BF16, 3, q_shape);
        mstar_tensor k = mstar_tensor_make(memory, MSTAR_DTYPE_BF16, 3, k_shape);
        mstar_tensor k8 = mstar_tensor_make(memory, MSTAR_DTYPE_F8_E4M3, 3, k_shape);
        mstar_tensor v = mstar_tensor_make(memory, MSTAR_DTYPE_BF16, 3, v_shape);
        mstar_tensor out = mstar_tensor_make(result, MSTAR_DTYPE_BF16, 3, q_shape);
        attn_must(attn_plan(&wrapper, NULL, q_offsets, 1, kv_offsets, 1, 0));
        attn_refused(attn_run(&wrapper, NULL, &q, &k8, &k, &out, NULL), MSTAR_INVALID_ARGUMENT,
                     "k.dtype is f8_e4m3", "bf16");
        attn_refused(attn_run(&wrapper, NULL, &q, &k, &v, &out, NULL), MSTAR_INVALID_ARGUMENT,
                     "v.shape[2] is 128", "192");
        attn_must(attn_run(&wrapper, NULL, &q, &k, &k, &out, NULL));
        attn_destroy(&wrapper);
        free(memory);
        free(result);
    }
}

/* The scale is that of the true head dim, and a given one with the same float has the same bits. */
static void scale_of_the_true_dim(void **state)
{
    fault_case *c = *state;
    const double given = 0.11785113; /* as the case says */
    attn_problem problem;
    assert_true(json_is_null(fault_get(c, "scale")));
    fault_problem(c, &problem);
    assert_true(isnan(problem.sm_scale));
    fault_match(c, &problem, NULL);
    assert_true((float)given >= (float)(1.0 / sqrt(72.0)) &&
                (float)given <= (float)(1.0 / sqrt(72.0)));
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data derived;
        attn_data told;
        attn_data_make(&problem, &derived);
        attn_data_make(&problem, &told);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &derived);
        attn_problem with = problem;
        with.sm_scale = given;
        attn_problem_run(&with, fault_isas.device[isa], NULL, &told);
        fault_same(&problem, &derived, 0, &told, 0, 16);
        attn_data_free(&derived);
        attn_data_free(&told);
    }
}

/* The given scale, in the result and as queried; the derived one would be off by 1.4. */
static void scale_as_given(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    fault_problem(c, &problem);
    assert_true(problem.sm_scale >= 0.125 && problem.sm_scale <= 0.125);
    fault_match(c, &problem, NULL);
    attn_problem_desc(&problem, &desc);
    attn_must(attn_create(fault_best(), ATTN_SELF, &desc, NULL, 0, &wrapper));
    attn_must(attn_query(&wrapper, &info));
    assert_true(info.sm_scale >= 0.125 && info.sm_scale <= 0.125);
    attn_destroy(&wrapper);
}

/* ---- K09: groups and log-sum-exp ------------------------------------------------------------- */

static void heads_that_do_not_divide(void **state)
{
    fault_case *c = *state;
    const json_t *cases = fault_get(c, "cases");
    int64_t lens[1];
    fault_outcome(c, "reject");
    assert_int_equal(fault_list(c, "q_lens", lens, 1), fault_list(c, "kv_lens", lens, 1));
    assert_int_equal(json_array_size(cases), 4);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            size_t bytes;
            char value[32];
            mstar_ragged_prefill_desc_init(&desc);
            desc.num_qo_heads = (int32_t)json_integer_value(json_object_get(one, "hq"));
            desc.num_kv_heads = (int32_t)json_integer_value(json_object_get(one, "hkv"));
            desc.head_dim = (int32_t)fault_integer(c, "d_qk");
            snprintf(value, sizeof value, "num_kv_heads is %d", desc.num_kv_heads);
            attn_refused(attn_create(fault_best(), (attn_kind)kind, &desc, NULL, 0, &wrapper),
                         MSTAR_INVALID_ARGUMENT, value, "");
            attn_refused(attn_workspace_query(fault_best(), (attn_kind)kind, &desc, &bytes),
                         MSTAR_INVALID_ARGUMENT, value, "");
        }
    }
}

static void fill_lse_with_nan(fault_case *c, const attn_problem *problem, attn_data *data)
{
    (void)c;
    for (int64_t row = 0; row < attn_problem_tokens(problem); row++)
        for (int64_t head = 0; head < problem->num_qo_heads; head++)
            attn_set(&data->lse.tensor, row, head, 0, NAN);
}

static void look_at_every_lse(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    (void)c;
    assert_int_equal(problem->num_qo_heads, 8);
    for (int64_t head = 0; head < 8; head++)
        assert_true(isfinite(attn_get(data->lse_tensor, 0, head, 0)));
}

static void lse_of_every_head(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_lse_with_nan, .look = look_at_every_lse};
    attn_problem problem;
    assert_true(fault_flag(c, "return_lse"));
    fault_says(c, "prefill_lse", "NaN");
    fault_problem(c, &problem);
    fault_match(c, &problem, &ways);
}

static void fill_score_of_one(fault_case *c, const attn_problem *problem, attn_data *data)
{
    (void)c;
    fault_fill_qkv(problem, data, 0.0F, 0.0F, 1.0F);
    attn_set(&data->q.tensor, 0, 0, 0, 1.0F);
    attn_set(&data->k.tensor, 0, 0, 0, 1.0F);
}

static void look_at_natural_lse(fault_case *c, const attn_problem *problem, const attn_data *data)
{
    fault_row_is(problem, data, 0, 1.0F, fault_want_real(c, "lse_nat"));
}

static void lse_is_natural(void **state)
{
    fault_case *c = *state;
    const fault_ways ways = {.fill = fill_score_of_one, .look = look_at_natural_lse};
    attn_problem problem;
    assert_true(fault_flag(c, "return_lse"));
    fault_says(c, "values", "q=[1,0..], k=[1,0..], v=1 (score exactly 1)");
    fault_problem(c, &problem);
    fault_match(c, &problem, &ways);
}

/* ---- K10: strides and alignment -------------------------------------------------------------- */

/* Offsets are dense: a strided array handed over as it is is refused where it decreases, and the
 * dense copy of its entries is right. */
static void offsets_are_dense(void **state)
{
    fault_case *c = *state;
    int64_t memory[16];
    int32_t strided[16];
    int64_t count = fault_list(c, "offsets_memory", memory, 16);
    int64_t stride = fault_integer(c, "offsets_stride");
    attn_problem problem;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    fault_problem(c, &problem);
    for (int64_t i = 0; i < count; i++)
        strided[i] = (int32_t)memory[i];
    for (int64_t i = 0; i <= problem.num_segments; i++)
        assert_int_equal(strided[i * stride], problem.q_offsets[i]);
    attn_problem_desc(&problem, &desc);
    for (int kind = ATTN_SELF; kind <= ATTN_PREFIXED; kind++) {
        attn_must(attn_create(fault_best(), (attn_kind)kind, &desc, NULL, 0, &wrapper));
        attn_refused(attn_plan(&wrapper, NULL, strided, problem.num_segments, strided,
                               problem.num_segments, 0),
                     MSTAR_INVALID_ARGUMENT, "cu_seqlens[1] is -1", "never decrease");
        attn_destroy(&wrapper);
    }
    fault_match(c, &problem, NULL);
}

/* Each of the five tensors with its last dimension apart: refused, naming it. */
static void last_dimension_apart(void **state)
{
    static const char *const names[] = {"q.strides[2] is 2", "k.strides[2] is 2",
                                        "v.strides[2] is 2", "out.strides[2] is 2",
                                        "lse.strides[1] is 2"};
    fault_case *c = *state;
    attn_problem problem;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_data data;
    fault_says(c, "layout", "d-stride 2");
    fault_outcome(c, "match_ref_or_reject");
    fault_problem(c, &problem);
    fault_match(c, &problem, NULL);
    attn_data_make(&problem, &data);
    attn_problem_desc(&problem, &desc);
    attn_must(attn_create(fault_best(), ATTN_SELF, &desc, NULL, 0, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, 1, NULL, 0, 0));
    for (int i = 0; i < 5; i++) {
        mstar_tensor t[] = {data.q.tensor, data.k.tensor, data.v.tensor, data.out.tensor,
                            data.lse.tensor};
        int32_t last = t[i].rank - 1;
        t[i].strides[last] = 2;
        for (int32_t d = 0; d < last; d++)
            t[i].strides[d] *= 2;
        attn_refused(attn_run(&wrapper, NULL, &t[0], &t[1], &t[2], &t[3], &t[4]),
                     MSTAR_INVALID_ARGUMENT, names[i], "");
    }
    attn_destroy(&wrapper);
    attn_data_free(&data);
}

/* Copies a tensor [a, b, c] into memory with these strides, and views it. */
static mstar_tensor restride(const mstar_tensor *from, void *memory, int64_t s0, int64_t s1)
{
    mstar_tensor to = *from;
    to.data = memory;
    to.strides[0] = s0;
    to.strides[1] = s1;
    for (int64_t a = 0; a < from->shape[0]; a++)
        for (int64_t b = 0; b < from->shape[1]; b++)
            for (int64_t d = 0; d < from->shape[2]; d++)
                attn_set(&to, a, b, d, attn_get(from, a, b, d));
    return to;
}

/* v, and then k and q too, stored by head and passed as views of tokens: the bits of dense copies.
 */
static void transposed_values(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_says(c, "layout", "v stored [h,tokens,d], passed with strides (d, tokens*d, 1)");
    fault_outcome(c, "equal_to");
    fault_problem(c, &problem);
    int64_t rows = attn_problem_tokens(&problem);
    int64_t dim = problem.head_dim;
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int dtype = 0; dtype < 3; dtype++) {
            attn_data dense;
            attn_data view;
            attn_problem p = problem;
            p.dtype = (mstar_dtype)dtype;
            attn_data_make(&p, &dense);
            attn_data_make(&p, &view);
            attn_problem_run(&p, fault_isas.device[isa], NULL, &dense);
            attn_block *blocks[] = {&view.v, &view.k, &view.q};
            void *memory[3];
            for (int i = 0; i < 3; i++) {
                memory[i] = malloc((size_t)(rows * p.num_qo_heads * dim) * 4);
                assert_non_null(memory[i]);
                blocks[i]->tensor = restride(&blocks[i]->tensor, memory[i], dim, rows * dim);
                attn_data_reset_outputs(&view);
                attn_problem_run(&p, fault_isas.device[isa], NULL, &view);
                fault_same(&p, &dense, 0, &view, 0, rows);
            }
            for (int i = 0; i < 3; i++)
                free(memory[i]);
            attn_data_free(&dense);
            attn_data_free(&view);
        }
    fault_match(c, &problem, NULL);
}

/* Segment 1 takes its own queries: what it gives alone. */
static void queries_of_the_second_segment(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    int64_t starts[2];
    fault_list(c, "row_starts", starts, 2);
    fault_problem(c, &problem);
    for (int64_t i = 0; i < 2; i++)
        assert_int_equal(problem.q_offsets[i], starts[i]);
    fault_match(c, &problem, NULL);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data whole;
        attn_data alone;
        attn_data_make(&problem, &whole);
        attn_data_make(&problem, &alone);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &whole);
        attn_problem_run_part(&problem, fault_isas.device[isa], NULL, &whole, &alone, 1, 2);
        fault_same(&problem, &whole, 6, &alone, 6, 6);
        attn_data_free(&whole);
        attn_data_free(&alone);
    }
}

/* There is no bias to be out of line; what is left is every odd number of keys. */
static void every_number_of_keys(void **state)
{
    fault_case *c = *state;
    int64_t lens[32];
    int64_t count = fault_list(c, "kv_lens", lens, 32);
    attn_problem problem;
    assert_int_equal(count, 32);
    attn_problem_init(&problem);
    fault_says(c, "dtype", "f16");
    problem.dtype = MSTAR_DTYPE_F16;
    problem.num_qo_heads = problem.num_kv_heads = (int32_t)fault_integer(c, "h");
    problem.head_dim = (int32_t)fault_integer(c, "d");
    for (int64_t i = 0; i < count; i++) {
        const int64_t q = fault_integer(c, "q");
        fault_lengths(&problem, &q, &lens[i], 1);
        fault_match(c, &problem, NULL);
    }
}

/* One buffer [tokens, 3, h, d] holds q, k and v: the bits of dense copies. */
static void interleaved_qkv(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_says(c, "layout", "one [tokens,3,h,d] buffer");
    fault_problem(c, &problem);
    int64_t token_stride = fault_integer(c, "token_stride");
    int64_t rows = attn_problem_tokens(&problem);
    int64_t width = (int64_t)problem.num_qo_heads * problem.head_dim;
    assert_int_equal(token_stride, 3 * width);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        attn_data dense;
        attn_data view;
        uint16_t *memory = malloc((size_t)(rows * token_stride) * sizeof *memory);
        assert_non_null(memory);
        attn_data_make(&problem, &dense);
        attn_data_make(&problem, &view);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &dense);
        attn_block *blocks[] = {&view.q, &view.k, &view.v};
        for (int i = 0; i < 3; i++)
            blocks[i]->tensor =
                restride(&blocks[i]->tensor, memory + i * width, token_stride, problem.head_dim);
        attn_problem_run(&problem, fault_isas.device[isa], NULL, &view);
        fault_same(&problem, &dense, 0, &view, 0, rows);
        free(memory);
        attn_data_free(&dense);
        attn_data_free(&view);
    }
    fault_match(c, &problem, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-067", sizes_that_others_lack),
        FAULT("BR-068", match),
        FAULT("BR-069", match),
        FAULT("BR-070", every_element_is_written),
        FAULT("BR-073", unlike_dims_are_refused),
        FAULT("BR-076", scale_of_the_true_dim),
        FAULT("BR-077", scale_as_given),
        FAULT("BR-078", match),
        FAULT("BR-081", heads_that_do_not_divide),
        FAULT("BR-082", lse_of_every_head),
        FAULT("BR-084", lse_is_natural),
        FAULT("BR-085", offsets_are_dense),
        FAULT("BR-087", last_dimension_apart),
        FAULT("BR-088", transposed_values),
        FAULT("BR-090", queries_of_the_second_segment),
        FAULT("BR-091", match),
        FAULT("BR-092", every_number_of_keys),
        FAULT("BR-094", interleaved_qkv),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
