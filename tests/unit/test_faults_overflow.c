/*
 * test_faults_overflow.c - cases K07 of the known faults: indices beyond 31 bits. Tensors that
 * large are sparse mappings, which cost no memory where nothing is written.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mstar/ops.h"
#include "support_card.h"
#include "support_faults.h"

#define FAR_STRIDE (INT64_C(1) << 27) /* elements between rows: row 16 is element 2^31 */

/* A [17, 1, 8] (or [17 heads, 1 row]) view with rows far apart. */
static mstar_tensor far_tensor(void *memory, mstar_dtype dtype, int64_t a, int64_t b, int64_t d,
                               int32_t far_dim)
{
    const int64_t shape[] = {a, b, d};
    mstar_tensor tensor = mstar_tensor_make(memory, dtype, 3, shape);
    tensor.strides[far_dim] = FAR_STRIDE;
    tensor.strides[1 - far_dim] = d;
    return tensor;
}

/* 17 query rows over 16 keys and 1 key, by rows and by heads 2^27 elements apart: the second
 * segment's row is its one value, and all rows equal those of a compact copy. */
static void far_apart(mstar_device *device, const char *isa, int32_t far_dim)
{
    enum { DIM = 8 };
    size_t bytes = (size_t)(17 * FAR_STRIDE) * 2;
    void *memory[4];
    mstar_tensor far[4];
    attn_problem problem;
    attn_data data;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_problem_init(&problem);
    problem.kind = ATTN_CROSS;
    problem.head_dim = DIM;
    problem.dtype = MSTAR_DTYPE_BF16;
    if (far_dim == 0) {
        attn_problem_add(&problem, 16, 16);
        attn_problem_add(&problem, 1, 1);
    } else {
        problem.num_qo_heads = problem.num_kv_heads = 17;
        problem.kv_layout = MSTAR_KV_HND;
        attn_problem_add(&problem, 1, 3);
        attn_problem_add(&problem, 1, 1);
    }
    attn_data_make(&problem, &data);
    attn_problem_run(&problem, device, NULL, &data);
    const mstar_tensor *near[] = {&data.q.tensor, &data.k.tensor, &data.v.tensor, &data.out.tensor};
    for (int i = 0; i < 4; i++) {
        memory[i] = fault_sparse(bytes);
        const mstar_tensor *from = near[i];
        /* the side that is far: rows of NHD, heads of q, out and HND */
        int32_t dim = far_dim == 0 ? 0 : from->shape[0] == 17 ? 0 : 1;
        far[i] = far_tensor(memory[i], MSTAR_DTYPE_BF16, from->shape[0], from->shape[1], DIM, dim);
        for (int64_t a = 0; i < 3 && a < from->shape[0]; a++)
            for (int64_t b = 0; b < from->shape[1]; b++)
                for (int64_t d = 0; d < DIM; d++)
                    attn_set(&far[i], a, b, d, attn_get(from, a, b, d));
    }
    attn_problem_desc(&problem, &desc);
    desc.return_lse = 0;
    attn_must(attn_create(device, problem.kind, &desc, NULL, 0, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, problem.q_offsets, 2, problem.kv_offsets, 2, 0));
    attn_must(attn_run(&wrapper, NULL, &far[0], &far[1], &far[2], &far[3], NULL));
    attn_destroy(&wrapper);
    int64_t rows = attn_problem_tokens(&problem);
    if (!attn_same_bits(&data.out.tensor, 0, &far[3], 0, rows))
        fail_msg("%s, dimension %d far apart", isa, (int)far_dim);
    int64_t last_key = attn_problem_kv_tokens(&problem) - 1;
    for (int64_t head = 0; head < problem.num_qo_heads; head++)
        for (int64_t d = 0; d < DIM; d++) {
            float got = attn_get(&far[3], rows - 1, head, d);
            float want = fault_kv(&problem, &data.v.tensor, last_key, head, d);
            assert_true(got >= want && got <= want);
        }
    for (int i = 0; i < 4; i++)
        fault_sparse_free(memory[i], bytes);
    attn_data_free(&data);
}

/* As given where it is fast enough: 131072 keys of 128 heads, then one key at element 2^31. */
static void second_segment_at_2_31(fault_case *c, const attn_problem *problem)
{
    int64_t keys = attn_problem_kv_tokens(problem);
    int64_t width = (int64_t)problem->num_kv_heads * problem->head_dim;
    size_t bytes = (size_t)(keys * width) * 2;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    const int64_t kv_shape[] = {keys, problem->num_kv_heads, problem->head_dim};
    const int64_t q_shape[] = {2, problem->num_qo_heads, problem->head_dim};
    assert_int_equal((keys - 1) * width, INT64_C(1) << 31);
    (void)c;
    void *k = fault_sparse(bytes);
    void *v = fault_sparse(bytes);
    uint16_t *q = calloc((size_t)(2 * width), sizeof *q);
    uint16_t *out = calloc((size_t)(2 * width), sizeof *out);
    assert_true(q != NULL && out != NULL);
    for (int64_t i = 0; i < width; i++) {
        q[i] = q[width + i] = mst_f32_to_bf16(1.0F);
        mst_store_element(v, MSTAR_DTYPE_BF16, (keys - 1) * width + i, (float)(i % 251 + 1));
        mst_store_element(k, MSTAR_DTYPE_BF16, (keys - 1) * width + i, 0.5F);
    }
    mstar_tensor tensors[] = {mstar_tensor_make(q, MSTAR_DTYPE_BF16, 3, q_shape),
                              mstar_tensor_make(k, MSTAR_DTYPE_BF16, 3, kv_shape),
                              mstar_tensor_make(v, MSTAR_DTYPE_BF16, 3, kv_shape),
                              mstar_tensor_make(out, MSTAR_DTYPE_BF16, 3, q_shape)};
    attn_problem_desc(problem, &desc);
    desc.return_lse = 0;
    attn_must(attn_create(fault_best(), ATTN_CROSS, &desc, NULL, 0, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, problem->q_offsets, 2, problem->kv_offsets, 2, 0));
    attn_must(attn_run(&wrapper, NULL, &tensors[0], &tensors[1], &tensors[2], &tensors[3], NULL));
    attn_destroy(&wrapper);
    for (int64_t i = 0; i < width; i++) {
        assert_int_equal(mst_load_element(out, MSTAR_DTYPE_BF16, i), 0);
        assert_int_equal(mst_load_element(out, MSTAR_DTYPE_BF16, width + i),
                         mst_load_element(v, MSTAR_DTYPE_BF16, (keys - 1) * width + i));
    }
    free(q);
    free(out);
    fault_sparse_free(k, bytes);
    fault_sparse_free(v, bytes);
}

static void offsets_past_2_31(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    fault_want(c, "empty_rows");
    fault_problem(c, &problem);
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int32_t dim = 0; dim <= 1; dim++)
            far_apart(fault_isas.device[isa], fault_isas.name[isa], dim);
    if (fault_large_runs())
        second_segment_at_2_31(c, &problem);
}

/* ---- the operations, the same kind ----------------------------------------------------------- */

enum { FAR_ROWS = 17, WIDTH = 24 };

/* Runs one operation on compact rows and on rows 2^27 elements apart, and compares all rows. */
static void far_rows(mstar_device *device, int op)
{
    static const int32_t cu[] = {0, 16, 17};
    static const int32_t ids[FAR_ROWS] = {16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const int32_t positions[FAR_ROWS] = {0, 1, 2, 3};
    size_t bytes = (size_t)(FAR_ROWS * FAR_STRIDE) * sizeof(float);
    check_rng rng = {5};
    mstar_stream *stream = NULL;
    check_rows near_x = check_rows_make(MSTAR_DTYPE_F32, FAR_ROWS, WIDTH, WIDTH);
    check_rows near_out = check_rows_make(MSTAR_DTYPE_F32, FAR_ROWS, WIDTH, WIDTH);
    check_rows weight = check_rows_make(MSTAR_DTYPE_F32, WIDTH, WIDTH, WIDTH);
    check_rows_fill(&near_x, &rng, -1.0, 1.0);
    check_rows_fill(&weight, &rng, -1.0, 1.0);
    float *far_x = fault_sparse(bytes);
    float *far_out = fault_sparse(bytes);
    for (int64_t row = 0; row < FAR_ROWS; row++)
        memcpy(far_x + row * FAR_STRIDE, check_row(&near_x, row), WIDTH * sizeof(float));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    mstar_linear *linear = NULL;
    const mstar_tensor *weights[] = {&weight.tensor};
    CHECK_OK(mstar_linear_create(device, NULL, weights, NULL, 1, &linear));
    const int64_t one[] = {WIDTH};
    mstar_tensor gain = mstar_tensor_make(weight.tensor.data, MSTAR_DTYPE_F32, 1, one);
    int64_t rows = FAR_ROWS;
    for (int is_far = 0; is_far <= 1; is_far++) {
        mstar_tensor x = near_x.tensor;
        mstar_tensor out = near_out.tensor;
        if (is_far) {
            x.data = far_x;
            out.data = far_out;
            x.strides[0] = out.strides[0] = FAR_STRIDE;
        }
        mstar_tensor heads_x = x;
        mstar_tensor heads_out = out;
        const mstar_tensor *tables[] = {&x};
        const int32_t *id_lists[] = {ids};
        switch (op) {
        case 0:
            CHECK_OK(card_linear_run(linear, stream, &x, NULL, &out));
            break;
        case 1:
            CHECK_OK(card_layer_norm(stream, &x, &x, &gain, &gain, 1e-5, &out));
            break;
        case 2:
            CHECK_OK(card_rms_norm(stream, &x, NULL, &gain, 1e-5, &out));
            break;
        case 3:
            CHECK_OK(card_activation_run(stream, MSTAR_ACTIVATION_GELU, &x, &out));
            break;
        case 4:
            CHECK_OK(card_normalize(stream, &x, &out));
            break;
        case 5:
            CHECK_OK(card_embedding(stream, tables, id_lists, 1, &out));
            break;
        case 6:
            CHECK_OK(mstar_tensor_split_dim(&x, 1, 3, 8, &heads_x));
            CHECK_OK(mstar_tensor_split_dim(&out, 1, 3, 8, &heads_out));
            CHECK_OK(card_rotary(stream, &heads_x, positions, 10000.0, 8, 0, &heads_out));
            break;
        default:
            CHECK_OK(mstar_tensor_slice(&out, 0, 0, 2, &out));
            CHECK_OK(card_pooling_run(stream, MSTAR_POOLING_MEAN, &x, cu, 2, NULL, &out));
            rows = 2;
            break;
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        if (memcmp(far_out + row * FAR_STRIDE, check_row(&near_out, row), WIDTH * sizeof(float)) !=
            0)
            fail_msg("operation %d: row %d differs when rows are far apart", op, (int)row);
    }
    mstar_linear_destroy(linear);
    mstar_stream_destroy(stream);
    fault_sparse_free(far_x, bytes);
    fault_sparse_free(far_out, bytes);
    check_rows_free(&near_x);
    check_rows_free(&near_out);
    check_rows_free(&weight);
}

static void operations_past_2_31(void **state)
{
    (void)state;
    for (int32_t isa = 0; isa < fault_isas.count; isa++)
        for (int op = 0; op <= 7; op++)
            far_rows(fault_isas.device[isa], op);
}

/* More than 2^31 elements in one tensor: right, as compact k and v whose last key lies past it. */
static void more_than_2_31_elements(void **state)
{
    static const int32_t q_offsets[] = {0, 0, 1};
    fault_case *c = *state;
    int64_t elements = fault_integer(c, "elements");
    int64_t dim = fault_integer(c, "d");
    int64_t keys = (elements + dim - 1) / dim;
    const int32_t kv_offsets[] = {0, (int32_t)(keys - 1), (int32_t)keys};
    const int64_t shape[] = {keys, 1, dim};
    const int64_t q_shape[] = {1, 1, dim};
    size_t bytes = (size_t)(keys * dim) * 2;
    uint16_t q[256] = {0};
    uint16_t out[256];
    fault_outcome(c, "ok_or_reject");
    assert_true(keys * dim > INT64_C(2147483648) && dim <= 256);
    void *memory = fault_sparse(bytes);
    for (int64_t d = 0; d < dim; d++)
        mst_store_element(memory, MSTAR_DTYPE_BF16, (keys - 1) * dim + d, (float)(d + 1));
    mstar_tensor kv = mstar_tensor_make(memory, MSTAR_DTYPE_BF16, 3, shape);
    mstar_tensor query = mstar_tensor_make(q, MSTAR_DTYPE_BF16, 3, q_shape);
    mstar_tensor result = mstar_tensor_make(out, MSTAR_DTYPE_BF16, 3, q_shape);
    for (int32_t isa = 0; isa < fault_isas.count; isa++) {
        mstar_ragged_prefill_desc desc;
        attn_wrapper wrapper;
        mstar_ragged_prefill_desc_init(&desc);
        desc.num_qo_heads = desc.num_kv_heads = 1;
        desc.head_dim = (int32_t)dim;
        memset(out, 0xA5, sizeof out);
        attn_must(attn_create(fault_isas.device[isa], ATTN_CROSS, &desc, NULL, 0, &wrapper));
        attn_must(attn_plan(&wrapper, NULL, q_offsets, 2, kv_offsets, 2, 0));
        attn_must(attn_run(&wrapper, NULL, &query, &kv, &kv, &result, NULL));
        for (int64_t d = 0; d < dim; d++)
            assert_int_equal((int64_t)mst_load_element(out, MSTAR_DTYPE_BF16, d), d + 1);
        attn_destroy(&wrapper);
    }
    fault_sparse_free(memory, bytes);
}

/*
 * 15000 sequences of 128 rows, 1.97e9 elements a tensor. k and q are zeros that cost nothing, so
 * every row is the mean of its v; out is one block of memory mapped again for each sequence, but
 * for the sampled ones, whose v and out are their own.
 */
static void fifteen_thousand_sequences(void **state)
{
    fault_case *c = *state;
    static int64_t lens[15000];
    static int32_t offsets[15001];
    int64_t count = fault_list(c, "q_lens", lens, 15000);
    int64_t rows = lens[0];
    int64_t heads = fault_integer(c, "hq");
    int64_t dim = fault_integer(c, "d_qk");
    const int64_t sampled[] = {0, 8191, count - 1};
    fault_want(c, "empty_rows");
    fault_says(c, "dtype", "f16");
    assert_int_equal(fault_list(c, "kv_lens", lens, 15000), count);
    assert_int_equal(fault_integer(c, "hkv"), heads);
    assert_int_equal(fault_integer(c, "d_vo"), dim);
    assert_false(fault_flag(c, "causal"));
    if (!fault_large_runs())
        fault_skip(c, "1e12 operations are for the release preset");
    for (int64_t i = 0; i < count; i++)
        offsets[i + 1] = offsets[i] + (int32_t)lens[i];
    size_t each = (size_t)(rows * heads * dim) * 2;
    size_t bytes = each * (size_t)count;
    const int64_t shape[] = {rows * count, heads, dim};
    unsigned char *zeros = fault_sparse(bytes);
    unsigned char *k = fault_sparse(bytes);
    unsigned char *v = fault_sparse(bytes);
    unsigned char *out = fault_sparse(bytes);
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), (off_t)each), 0);
    for (int64_t i = 0; i < count; i++) {
        if (i == sampled[0] || i == sampled[1] || i == sampled[2]) {
            for (int64_t e = 0; e < rows * heads * dim; e++)
                mst_store_element(v + (size_t)i * each, MSTAR_DTYPE_F16, e,
                                  (float)(e / (heads * dim) % 2 == 0 ? 0 : 2 * (i % 97 + 1)));
            continue;
        }
        void *at = mmap(out + (size_t)i * each, each, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, fileno(file), 0);
        assert_ptr_equal(at, out + (size_t)i * each);
    }
    mstar_tensor tensors[] = {mstar_tensor_make(zeros, MSTAR_DTYPE_F16, 3, shape),
                              mstar_tensor_make(k, MSTAR_DTYPE_F16, 3, shape),
                              mstar_tensor_make(v, MSTAR_DTYPE_F16, 3, shape),
                              mstar_tensor_make(out, MSTAR_DTYPE_F16, 3, shape)};
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_ragged_prefill_desc_init(&desc);
    desc.num_qo_heads = desc.num_kv_heads = (int32_t)heads;
    desc.head_dim = (int32_t)dim;
    desc.q_data_type = MSTAR_DTYPE_F16;
    attn_must(attn_create(fault_best(), ATTN_SELF, &desc, NULL, 0, &wrapper));
    attn_must(attn_plan(&wrapper, NULL, offsets, count, NULL, 0, 0));
    attn_must(attn_run(&wrapper, NULL, &tensors[0], &tensors[1], &tensors[2], &tensors[3], NULL));
    attn_destroy(&wrapper);
    for (int s = 0; s < 3; s++)
        for (int64_t e = 0; e < rows * heads * dim; e++)
            assert_int_equal(
                (int64_t)mst_load_element(out + (size_t)sampled[s] * each, MSTAR_DTYPE_F16, e),
                sampled[s] % 97 + 1);
    fclose(file);
    fault_sparse_free(zeros, bytes);
    fault_sparse_free(k, bytes);
    fault_sparse_free(v, bytes);
    fault_sparse_free(out, bytes);
}

/*
 * There is no bias: causal is computed from indices. 65537 rows and keys, whose products pass 2^32,
 * under a window on every level, and all of the triangle where that is fast enough.
 */
static void rows_times_keys_past_2_32(void **state)
{
    fault_case *c = *state;
    attn_problem problem;
    const int64_t rows = fault_integer(c, "q");
    fault_says(c, "bias", "causal as 0/-inf, row stride 65537; only check rows 65534..65536");
    fault_says(c, "dtype", "bf16");
    assert_int_equal(fault_integer(c, "kv"), rows);
    attn_problem_init(&problem);
    problem.dtype = MSTAR_DTYPE_BF16;
    problem.causal = 1;
    problem.num_qo_heads = problem.num_kv_heads = (int32_t)fault_integer(c, "h");
    problem.head_dim = (int32_t)fault_integer(c, "d");
    problem.values = ATTN_POOL;
    fault_lengths(&problem, &rows, &rows, 1);
    bool *wanted = calloc((size_t)rows, sizeof *wanted);
    assert_non_null(wanted);
    wanted[rows - 3] = wanted[rows - 2] = wanted[rows - 1] = true;
    attn_data data;
    attn_data_make(&problem, &data);
    for (int whole = 0; whole <= (fault_large_runs() ? 1 : 0); whole++) {
        attn_reference reference;
        problem.window_left = whole ? -1 : 63;
        attn_reference_make_rows(&problem, &data, wanted, &reference);
        for (int32_t isa = whole ? fault_isas.count - 1 : 0; isa < fault_isas.count; isa++) {
            attn_data_reset_outputs(&data);
            attn_problem_run(&problem, fault_isas.device[isa], NULL, &data);
            assert_true(attn_reference_check(&problem, &data, &reference, fault_isas.name[isa]));
        }
        attn_reference_free(&reference);
    }
    attn_data_free(&data);
    free(wanted);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        FAULT("BR-058", offsets_past_2_31),         cmocka_unit_test(operations_past_2_31),
        FAULT("BR-059", more_than_2_31_elements),   FAULT("BR-060", fifteen_thousand_sequences),
        FAULT("BR-063", rows_times_keys_past_2_32),
    };
    return fault_run(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
