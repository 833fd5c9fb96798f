/*
 * test_cuda_linear.c - products of the CUDA backend beside their numbers: which algorithms a shape
 * may use, what is launched for which operands, graphs, and failed calls. Over the mock; on a card
 * (`test_cuda_linear cuda:0`) what holds there too.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_linear.h"
#include "mock_simt.h"
#include "support_linear.h"
#include "support_mock_blas.h"
#include "support_mock_cuda.h"

static mstar_device *device;
static linear_level level;
static linear_weights weights;
enum { K = 48, N = 40, ROWS = 20 };

static int set_up(void **state)
{
    (void)state;
    check_rng rng = {5};
    device = card_open();
    level = (linear_level){.isa = "cuda", .device = device};
    CHECK_OK(mstar_stream_create(device, -1, &level.streams[0]));
    weights = linear_weights_make(K, N, MSTAR_DTYPE_F32, false, true, &rng);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mstar_stream_destroy(level.streams[0]);
    linear_weights_free(&weights);
    card_close(device);
    return 0;
}

static const mst_cuda_product *product_of(mstar_dtype dtype)
{
    const mst_linear_shape shape = {K, N, dtype, MSTAR_ACTIVATION_NONE};
    return mst_cuda_product_get(mst_cuda_of(device), &shape);
}

static void members_by_rows(void **state)
{
    (void)state;
    const mst_cuda_class members = {.count = 3, .rows = {16, 256, 4096}};
    assert_int_equal(mst_cuda_class_member(&members, 1), 0);
    assert_int_equal(mst_cuda_class_member(&members, 16), 0);
    assert_int_equal(mst_cuda_class_member(&members, 17), 1);
    assert_int_equal(mst_cuda_class_member(&members, 257), 2);
    assert_int_equal(mst_cuda_class_member(&members, 1000000), 2);
    assert_int_equal(mst_cuda_class_member(&(mst_cuda_class){.count = 0}, 1), -1);
    assert_int_equal(mst_cuda_linear_distance(1, MSTAR_DTYPE_F32), 4);
    assert_int_equal(mst_cuda_linear_distance(8, MSTAR_DTYPE_BF16), 8);
    assert_int_equal(mst_cuda_linear_distance(9, MSTAR_DTYPE_F16), 16);
}

/* An algorithm of other bits is left out, whatever it was proposed for. */
static void only_algorithms_of_the_same_bits(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    mst_cuda_of(device)->major = 8;
    for (int base = 0; base < 2; base++) {
        mock_blas_now()->down_is_base = base == 1;
        mstar_dtype dtype = base == 0 ? MSTAR_DTYPE_F32 : MSTAR_DTYPE_BF16;
        mstar_linear *linear = linear_make(&level, &weights, dtype, MSTAR_ACTIVATION_NONE);
        const mst_cuda_product *p = product_of(dtype);
        assert_int_equal(p->members.count, base == 0 ? 2 : 1);
        for (int32_t i = 0; i < p->members.count; i++) {
            uint64_t id = p->members.algorithms[i].data[0];
            assert_int_equal(id == MOCK_BLAS_DOWN, base == 1);
            assert_int_not_equal(id, MOCK_BLAS_SPLIT);
        }
        mstar_linear_destroy(linear);
    }
}

/* What mstar info says of our own product, on a card that has it and on one that has not. */
static void the_reason_is_told(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    for (int i = 0; i < 4; i++) {
        const int major = 8 + i % 2;
        const bool few = i / 2 == 1;
        mstar_kernel_info info = {.struct_size = sizeof info};
        int32_t index = mst_cuda_kernel_index(mst_cuda_linear_kernel_of(MSTAR_DTYPE_BF16, few));
        mst_cuda_of(device)->major = major;
        CHECK_OK(mst_cuda_query_kernel(device, index, &info));
        assert_string_equal(info.symbol, few ? "mst_linear_few_bf16_sm90" : "mst_linear_bf16_sm90");
        assert_int_equal(strncmp(info.reason, "not used", 8) == 0, major == 8);
    }
}

/* Our own kernel says which bits they are, where the device has it; a library that has none of them
 * is done without. */
static void our_own_bits_come_first(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    mock_blas_now()->down_is_base = true;
    mstar_linear *linear = linear_make(&level, &weights, MSTAR_DTYPE_BF16, MSTAR_ACTIVATION_NONE);
    const mst_cuda_product *p = product_of(MSTAR_DTYPE_BF16);
    assert_true(p->fused && p->members.count > 0);
    for (int32_t i = 0; i < p->members.count; i++)
        assert_int_not_equal(p->members.algorithms[i].data[0], MOCK_BLAS_DOWN);
    mstar_linear_destroy(linear);
    mock_blas_now()->fail_find = MST_BLAS_NOT_SUPPORTED;
    linear = linear_make(&level, &weights, MSTAR_DTYPE_F16, MSTAR_ACTIVATION_NONE);
    assert_int_equal(product_of(MSTAR_DTYPE_F16)->members.count, 0);
    mock_blas_now()->fail_find = 0;
    mstar_linear_destroy(linear);
}

/* Where the rows of one algorithm depend on their number, nothing can be promised. */
static void refuses_rows_that_depend_on_their_number(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    const mstar_tensor *list[1] = {&weights.weight_view};
    mstar_linear *linear;
    mock_blas_now()->rows_matter = true;
    CHECK_FAILED(mstar_linear_create(device, NULL, list, NULL, 1, &linear), MSTAR_DEVICE_FAILED,
                 "depend on how many there are");
    mock_blas_now()->rows_matter = false;
    mock_blas_now()->fail_find = MST_BLAS_NOT_SUPPORTED;
    CHECK_FAILED(mstar_linear_create(device, NULL, list, NULL, 1, &linear), MSTAR_NOT_SUPPORTED,
                 "no algorithm without split sums for a product of 48 by 40 in f32");
    mock_blas_now()->fail_find = 0;
    mock_blas_now()->fail_multiply = 3;
    CHECK_FAILED(mstar_linear_create(device, NULL, list, NULL, 1, &linear), MSTAR_OUT_OF_MEMORY,
                 "cuBLASLt 130000");
    CHECK_OK(mstar_linear_create(device, NULL, list, NULL, 1, &linear));
    mstar_linear_destroy(linear);
}

/* Nor where they depend on how blocks share our own product, or one of the ways stores nothing. */
static void refuses_rows_that_depend_on_the_sharing(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    const mstar_tensor *list[1] = {&weights.weight_view};
    mstar_linear_desc desc;
    mstar_linear *linear;
    mstar_linear_desc_init(&desc);
    desc.weight_dtype = MSTAR_DTYPE_BF16;
    for (int32_t i = 0; i < 2 * MST_CUDA_LINEAR_NUM_SHARINGS; i++) {
        int32_t *broken = i % 2 == 0 ? &simt_odd_sharing : &simt_idle_sharing;
        *broken = i / 2;
        mstar_status status = mstar_linear_create(device, &desc, list, NULL, 1, &linear);
        *broken = -1;
        CHECK_FAILED(status, MSTAR_DEVICE_FAILED, "depend on how many there are");
    }
    CHECK_OK(mstar_linear_create(device, &desc, list, NULL, 1, &linear));
    mstar_linear_destroy(linear);
}

/* What is asked of cuBLASLt alone, and what takes kernels of ours before and after it. */
static void launches_by_the_operands(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    static const struct {
        mstar_dtype panel, x, out;
        mstar_activation activation;
        bool residual, odd_x, odd_out, old;
        int64_t launches;
    } cases[] = {
#define F32 MSTAR_DTYPE_F32
#define BF16 MSTAR_DTYPE_BF16
#define F16 MSTAR_DTYPE_F16
#define NONE MSTAR_ACTIVATION_NONE
#define GELU_ERF MSTAR_ACTIVATION_GELU
        {BF16, BF16, BF16, NONE, false, false, false, false, 1},
        {BF16, BF16, F32, NONE, false, false, false, false, 1},
        {F32, F32, F32, NONE, false, false, false, false, 1},
        {F16, F16, F16, NONE, false, false, false, false, 1},
        {BF16, BF16, BF16, NONE, false, false, false, true, 2},
        {BF16, BF16, F16, NONE, false, false, false, false, 2},
        {BF16, BF16, BF16, GELU_ERF, false, false, false, false, 1},
        {BF16, BF16, BF16, GELU_ERF, false, false, false, true, 2},
        {BF16, F32, BF16, GELU_ERF, false, false, false, false, 2},
        {BF16, BF16, BF16, NONE, true, false, false, false, 1},
        {BF16, BF16, F32, NONE, true, false, false, false, 1},
        {BF16, BF16, BF16, NONE, false, false, true, false, 2},
        {F32, F32, F32, NONE, true, false, false, false, 2},
        {F32, F32, F32, NONE, false, true, false, false, 2},
        {F32, F32, F32, NONE, false, false, true, false, 2},
    };
    check_rng rng = {6};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)tear_down(NULL);
        (void)set_up(NULL);
        mst_cuda_of(device)->major = cases[i].old ? 8 : 9; /* our own product is for sm_90 */
        mstar_linear *linear = linear_make(&level, &weights, cases[i].panel, cases[i].activation);
        check_rows x = check_rows_make(cases[i].x, ROWS, K, K + (cases[i].odd_x ? 1 : 8));
        check_rows r = check_rows_make(MSTAR_DTYPE_F32, ROWS, N, N);
        check_rows out = check_rows_make(cases[i].out, ROWS, N, N + (cases[i].odd_out ? 1 : 0));
        check_rows_fill(&x, &rng, -1.0, 1.0);
        check_rows_fill(&r, &rng, -1.0, 1.0);
        const mstar_tensor *residual = cases[i].residual ? &r.tensor : NULL;
        int64_t before = mock_cuda_now()->launches;
        CHECK_OK(card_linear_run(linear, level.streams[0], &x.tensor, residual, &out.tensor));
        assert_int_equal(mock_cuda_now()->launches - before, cases[i].launches);
        if (cases[i].panel != MSTAR_DTYPE_F16) { /* x is exact in the panels' dtype or rounded */
            linear_weights_widen(&weights, cases[i].panel, linear_wide);
            linear_check_product("launches", &weights, linear_wide,
                                 linear_has_dots(&level, cases[i].panel), cases[i].activation, &x,
                                 residual ? &r : NULL, &out);
        }
        check_rows_outside(&out, "out");
        check_rows_unchanged(&x, "x");
        check_rows_free(&x);
        check_rows_free(&r);
        check_rows_free(&out);
        mstar_linear_destroy(linear);
    }
}

/* One product with these strides, against float64. */
static void check_strides(const mstar_linear *linear, mstar_dtype panel, mstar_dtype out_dtype,
                          int64_t rows, int64_t x_stride, int64_t out_stride)
{
    check_rng rng = {13};
    check_rows x = check_rows_make(panel, rows, K, rows == 1 ? K : x_stride);
    check_rows out = check_rows_make(out_dtype, rows, N, N);
    check_rows_fill(&x, &rng, -1.0, 1.0);
    x.tensor.strides[0] = x_stride;
    out.tensor.strides[0] = out_stride;
    CHECK_OK(card_linear_run(linear, level.streams[0], &x.tensor, NULL, &out.tensor));
    x.tensor.strides[0] = rows == 1 ? K : x_stride;
    out.tensor.strides[0] = N;
    linear_check_product("strides", &weights, linear_wide, linear_has_dots(&level, panel),
                         MSTAR_ACTIVATION_NONE, &x, NULL, &out);
    check_rows_outside(&out, "out");
    check_rows_free(&x);
    check_rows_free(&out);
}

/* Rows of x that overlap, and one row whose stride says nothing: neither the library nor the copy
 * engine is told a distance that it refuses. */
static void any_stride(void **state)
{
    (void)state;
    static const int64_t shared[] = {0, 8, 16, K - 8, K - 1}, alone[] = {0, 1, 8, K, 1LL << 40};
    for (int old = 0; old < (card_is_real() ? 1 : 2); old++) {
        for (int i = 0; i < 4; i++) {
            mstar_dtype panel = i < 2 ? MSTAR_DTYPE_F32 : MSTAR_DTYPE_BF16;
            mstar_dtype out = i % 2 == 0 ? MSTAR_DTYPE_F32 : MSTAR_DTYPE_BF16;
            (void)tear_down(NULL);
            (void)set_up(NULL);
            if (old == 1)
                mst_cuda_of(device)->major = 8;
            mstar_linear *linear = linear_make(&level, &weights, panel, MSTAR_ACTIVATION_NONE);
            linear_weights_widen(&weights, panel, linear_wide);
            for (size_t s = 0; s < sizeof shared / sizeof shared[0]; s++)
                check_strides(linear, panel, out, ROWS, shared[s], N);
            for (size_t s = 0; s < sizeof alone / sizeof alone[0]; s++) {
                check_strides(linear, panel, out, 1, alone[s], N);
                check_strides(linear, panel, out, 1, K, alone[s]);
            }
            mstar_linear_destroy(linear);
        }
    }
}

/* f16 weights, which processors do not take, against float64. */
static void f16_is_near(void **state)
{
    (void)state;
    check_rng rng = {7};
    linear_weights w = linear_weights_make(K, N, MSTAR_DTYPE_F16, false, true, &rng);
    mstar_linear *linear = linear_make(&level, &w, MSTAR_DTYPE_F16, MSTAR_ACTIVATION_SILU);
    mstar_linear_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_linear_query(linear, &info));
    assert_string_equal(info.kernel, "cublaslt_f16");
    assert_int_equal(info.x_dtype, MSTAR_DTYPE_F16);
    check_rows x = check_rows_make(MSTAR_DTYPE_F16, ROWS, K, K);
    check_rows out = check_rows_make(MSTAR_DTYPE_F16, ROWS, N, N);
    check_rows_fill(&x, &rng, -1.0, 1.0);
    CHECK_OK(card_linear_run(linear, level.streams[0], &x.tensor, NULL, &out.tensor));
    linear_weights_widen(&w, MSTAR_DTYPE_F16, linear_wide);
    linear_check_product("f16", &w, linear_wide, false, MSTAR_ACTIVATION_SILU, &x, NULL, &out);
    check_rows_free(&x);
    check_rows_free(&out);
    mstar_linear_destroy(linear);
    linear_weights_free(&w);
}

/* Without cuBLASLt's algorithms, whose stores by the copy engine a memory checker does not see. */
static void leave_to_our_kernel(int64_t in_features, int64_t out_features)
{
    const mst_linear_shape shape = {in_features, out_features, MSTAR_DTYPE_BF16,
                                    MSTAR_ACTIVATION_NONE};
    mst_cuda_product *p = mst_cuda_of(device)->products;
    assert_ptr_equal(p, mst_cuda_product_get(mst_cuda_of(device), &shape));
    if (p->fused)
        p->members.count = 0;
}

/* Sums that are 0 leave the bias to the activation. Where all is done in one launch the bits are
 * those of the row kernel, which a result that does not lie on 16 bytes takes. */
static void bits_of_the_row_kernels(void **state)
{
    (void)state;
    enum { WIDE = 4096, IN = 8, TWO = 2 };
    static float weight[WIDE * IN], bias[WIDE];
    check_rng rng = {12};
    const int64_t shape[] = {WIDE, IN};
    mstar_tensor w = mstar_tensor_make(weight, MSTAR_DTYPE_F32, 2, shape);
    mstar_tensor b = mstar_tensor_make(bias, MSTAR_DTYPE_F32, 1, shape);
    const mstar_tensor *ws[] = {&w}, *bs[] = {&b};
    for (int round = 0; round < 2; round++) { /* near 0, and anywhere */
        for (int i = 0; i < WIDE; i++)
            bias[i] = (float)(check_uniform(&rng, -8.0, 8.0) *
                              exp2(floor(check_uniform(&rng, round == 0 ? -20.0 : 0.0,
                                                       round == 0 ? 1.0 : 8.0))));
        bias[0] = 0.0F;
        for (int a = MSTAR_ACTIVATION_NONE; a <= MSTAR_ACTIVATION_SIGMOID; a++) {
            mstar_linear_desc desc;
            mstar_linear *linear;
            mstar_linear_desc_init(&desc);
            desc.weight_dtype = MSTAR_DTYPE_BF16;
            desc.activation = (mstar_activation)a;
            CHECK_OK(mstar_linear_create(device, &desc, ws, bs, 1, &linear));
            leave_to_our_kernel(IN, WIDE);
            check_rows in = check_rows_make(MSTAR_DTYPE_BF16, TWO, IN, IN);
            check_rows_fill(&in, &rng, -1.0, 1.0);
            check_rows one = check_rows_make(MSTAR_DTYPE_F32, TWO, WIDE, WIDE);
            check_rows two = check_rows_make(MSTAR_DTYPE_F32, TWO, WIDE, WIDE + 1);
            CHECK_OK(card_linear_run(linear, level.streams[0], &in.tensor, NULL, &one.tensor));
            CHECK_OK(card_linear_run(linear, level.streams[0], &in.tensor, NULL, &two.tensor));
            for (int row = 0; row < TWO; row++)
                assert_memory_equal((float *)one.tensor.data + row * WIDE,
                                    (float *)two.tensor.data + row * (WIDE + 1),
                                    WIDE * sizeof(float));
            check_rows_free(&in);
            check_rows_free(&one);
            check_rows_free(&two);
            mstar_linear_destroy(linear);
        }
    }
}

/* A replay has eager's bits in the live rows and leaves the rows of `finish` past them alone. */
static void replays_have_eagers_bits(void **state)
{
    (void)state;
    enum { PAD = N };
    check_rng rng = {8};
    static float host[ROWS * (K + 2 * PAD)];
    mstar_linear *linear = linear_make(&level, &weights, MSTAR_DTYPE_F32, MSTAR_ACTIVATION_GELU);
    mstar_buffer *buffer;
    mstar_graph *graph;
    mstar_stream *stream = level.streams[0];
    int64_t rows = ROWS;
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++)
        host[i] = (float)check_uniform(&rng, -1.0, 1.0);
    CHECK_OK(mstar_buffer_create(device, sizeof host, &buffer));
    CHECK_OK(mstar_buffer_upload(buffer, stream, 0, host, sizeof host));
    float *data = mstar_buffer_get_data(buffer);
    mstar_tensor x = mstar_tensor_make(data, MSTAR_DTYPE_F32, 2, (const int64_t[]){ROWS, K});
    mstar_tensor eager =
        mstar_tensor_make(data + ROWS * K, MSTAR_DTYPE_F32, 2, (const int64_t[]){ROWS, N});
    mstar_tensor replayed =
        mstar_tensor_make(data + ROWS * (K + N), MSTAR_DTYPE_F32, 2, (const int64_t[]){ROWS, N});
    x.device_kind = eager.device_kind = replayed.device_kind = MSTAR_DEVICE_CUDA;
    CHECK_OK(mstar_linear_run(linear, stream, &x, NULL, &eager));
    CHECK_OK(mstar_stream_set_rows(stream, &rows));
    CHECK_OK(mstar_graph_capture_begin(stream));
    CHECK_OK(mstar_linear_run(linear, stream, &x, NULL, &replayed));
    CHECK_OK(mstar_graph_capture_end(stream, &graph));
    CHECK_OK(mstar_stream_set_rows(stream, NULL));
    rows = 7;
    CHECK_OK(mstar_graph_replay(graph, stream));
    static float back[ROWS * (K + 2 * PAD)];
    CHECK_OK(mstar_buffer_download(buffer, stream, 0, back, sizeof back));
    CHECK_OK(mstar_stream_synchronize(stream));
    const float *from = back + ROWS * K, *to = back + ROWS * (K + N);
    assert_memory_equal(to, from, 7 * N * sizeof(float));
    assert_memory_equal(to + 7 * N, host + ROWS * (K + N) + 7 * N, (ROWS - 7) * N * sizeof(float));
    rows = ROWS + 1;
    CHECK_INVALID(mstar_graph_replay(graph, stream), "linear: the live row count is 21");
    rows = ROWS;
    CHECK_OK(mstar_graph_replay(graph, stream));
    CHECK_OK(mstar_buffer_download(buffer, stream, 0, back, sizeof back));
    CHECK_OK(mstar_stream_synchronize(stream));
    assert_memory_equal(to, from, ROWS * N * sizeof(float));
    mstar_graph_destroy(graph);
    mstar_buffer_destroy(buffer);
    mstar_linear_destroy(linear);
}

static mstar_status make_and_drop(void *context)
{
    const mstar_tensor *list[1] = {&weights.weight_view};
    mstar_linear *linear;
    (void)context;
    MST_TRY(mstar_linear_create(device, NULL, list, NULL, 1, &linear));
    mstar_linear_destroy(linear);
    return MSTAR_OK;
}

static mstar_status make_on_a_fresh_device(void *context)
{
    mstar_device *usual = device, *fresh;
    MST_TRY(mock_cuda_open(&fresh));
    device = fresh;
    mstar_status status = make_and_drop(context);
    device = usual;
    mock_cuda_close(fresh);
    return status;
}

/* Every driver call and allocation of create, failed once: told, nothing left, fine after. */
static void create_survives_failed_calls(void **state)
{
    (void)state;
    if (card_is_real())
        return;
    mock_cuda *mock = mock_cuda_now();
    const mock_call calls[] = {MOCK_memory_alloc, MOCK_memory_set, MOCK_copy, MOCK_stream_create,
                               MOCK_stream_synchronize};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        for (int64_t number = 1; number < 100; number++) {
            mstar_status status;
            (void)tear_down(NULL);
            (void)set_up(NULL);
            mock = mock_cuda_now();
            mock->fail_call = calls[i];
            mock->fail_after = number;
            mock->fail_result = 999;
            status = make_and_drop(NULL);
            bool failed = mock->fail_after == 0;
            mock->fail_after = 0;
            if (!failed)
                break;
            if (status != MSTAR_OK) /* a trial that fails leaves its algorithm out */
                CHECK_FAILED(status, MSTAR_DEVICE_FAILED, "MOCK_ERROR_999");
            CHECK_OK(make_and_drop(NULL));
        }
    }
    (void)tear_down(NULL);
    (void)set_up(NULL);
    mock_blas_now()->fail_create = 1;
    CHECK_FAILED(make_and_drop(NULL), MSTAR_DEVICE_FAILED, "starting cuBLASLt");
    mock_blas_now()->fail_create = 0;
    CHECK_OK(make_and_drop(NULL));
    assert_true(check_alloc_faults(make_on_a_fresh_device, NULL) >= 6);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_by_rows),
        cmocka_unit_test_setup_teardown(only_algorithms_of_the_same_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(our_own_bits_come_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_reason_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refuses_rows_that_depend_on_their_number, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(refuses_rows_that_depend_on_the_sharing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(launches_by_the_operands, set_up, tear_down),
        cmocka_unit_test_setup_teardown(any_stride, set_up, tear_down),
        cmocka_unit_test_setup_teardown(f16_is_near, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bits_of_the_row_kernels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(replays_have_eagers_bits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(create_survives_failed_calls, set_up, tear_down),
    };
    card_choose(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
