/*
 * test_ops_api.c - what the operations refuse, that a refusal writes nothing, empty shapes, names,
 * and failed allocations.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "support_check.h"

enum { T = 4, M = 6, BIG = 1 << 16 };

static mstar_device *device, *other;
static mstar_stream *stream, *elsewhere;
static float memory[BIG], before[BIG]; /* every tensor of these tests lies in it */

static int set_up(void **state)
{
    (void)state;
    mstar_device_desc desc;
    mstar_device_desc_init(&desc);
    desc.num_threads = 2;
    CHECK_OK(mstar_device_open("cpu", &desc, &device));
    CHECK_OK(mstar_device_open("cpu", &desc, &other));
    CHECK_OK(mstar_stream_create(device, -1, &stream));
    CHECK_OK(mstar_stream_create(other, -1, &elsewhere));
    for (int i = 0; i < BIG; i++)
        memory[i] = (float)(i % 97) - 48.0f;
    memcpy(before, memory, sizeof memory);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mstar_stream_destroy(stream);
    mstar_stream_destroy(elsewhere);
    CHECK_OK(mstar_device_close(device));
    CHECK_OK(mstar_device_close(other));
    assert_int_equal(check_live_allocations(), 0);
    return 0;
}

/* [T, M] in a place of its own, counted in blocks of 1000 floats. */
static mstar_tensor matrix(int place, int64_t rows, int64_t width)
{
    const int64_t shape[2] = {rows, width};
    return mstar_tensor_make(memory + 1000 * place, MSTAR_DTYPE_F32, 2, shape);
}

static mstar_tensor vector(int place, int64_t width)
{
    return mstar_tensor_make(memory + 1000 * place, MSTAR_DTYPE_F32, 1, &width);
}

static void nothing_was_written(void)
{
    assert_memory_equal(memory, before, sizeof memory);
}

/* ---- one operation on x and out, with everything else right ---------------------------------- */

typedef mstar_status (*simple_op)(mstar_stream *s, const mstar_tensor *x, const mstar_tensor *out);

static mstar_status run_layer_norm(mstar_stream *s, const mstar_tensor *x, const mstar_tensor *out)
{
    mstar_tensor weight = vector(60, M), bias = vector(61, M);
    return mstar_layer_norm(s, x, NULL, &weight, &bias, 1e-5, out);
}

static mstar_status run_rms_norm(mstar_stream *s, const mstar_tensor *x, const mstar_tensor *out)
{
    mstar_tensor weight = vector(60, M);
    return mstar_rms_norm(s, x, NULL, &weight, 1e-5, out);
}

static mstar_status run_activation(mstar_stream *s, const mstar_tensor *x, const mstar_tensor *out)
{
    return mstar_activation_run(s, MSTAR_ACTIVATION_GELU, x, out);
}

static mstar_linear *square; /* M to M */
static mstar_status run_linear(mstar_stream *s, const mstar_tensor *x, const mstar_tensor *out)
{
    return mstar_linear_run(square, s, x, NULL, out);
}

static mstar_status run_pooling(mstar_stream *s, const mstar_tensor *x, const mstar_tensor *out)
{
    const int32_t cu[T + 1] = {0, 1, 2, 3, 4};
    return mstar_pooling_run(s, MSTAR_POOLING_MEAN, x, cu, T, NULL, out);
}

static mstar_linear *make_square(void)
{
    mstar_tensor weight = matrix(50, M, M);
    const mstar_tensor *weights[1] = {&weight};
    mstar_linear *linear = NULL;
    CHECK_OK(mstar_linear_create(device, NULL, weights, NULL, 1, &linear));
    return linear;
}

static const struct {
    const char *name;
    simple_op run;
    bool in_place;
} simple_ops[] = {
    {"layer_norm", run_layer_norm, true}, {"rms_norm", run_rms_norm, true},
    {"normalize", mstar_normalize, true}, {"activation", run_activation, true},
    {"linear", run_linear, false},        {"pooling", run_pooling, false},
};

static void tensors_are_checked(void **state)
{
    (void)state;
    square = make_square();
    for (size_t i = 0; i < sizeof simple_ops / sizeof simple_ops[0]; i++) {
        simple_op run = simple_ops[i].run;
        mstar_tensor x = matrix(0, T, M), out = matrix(1, T, M), t;
        CHECK_INVALID(run(NULL, &x, &out), "stream is NULL");
        CHECK_INVALID(run(stream, NULL, &out), "x is NULL");
        CHECK_INVALID(run(stream, &x, NULL), "out is NULL");
        for (int side = 0; side < 2; side++) { /* what is wrong with x, then with out */
            const char *name = side == 0 ? "x" : "out";
            char piece[64];
#define WRONG(text)                                                                    \
    do {                                                                               \
        (void)snprintf(piece, sizeof piece, "%s%s", name, text);                       \
        CHECK_INVALID(run(stream, side == 0 ? &t : &x, side == 0 ? &out : &t), piece); \
    } while (0)
            t = side == 0 ? x : out;
            t.rank = 1;
            WRONG(".rank is 1; it must be 2");
            t.rank = 9;
            WRONG(".rank is 9");
            t = side == 0 ? x : out;
            t.dtype = MSTAR_DTYPE_I32;
            WRONG(".dtype is i32; it must be f32, bf16 or f16");
            t.dtype = (mstar_dtype)99;
            WRONG(".dtype is 99");
            t = side == 0 ? x : out;
            t.data = NULL;
            WRONG(".data is NULL");
            t.data = (char *)memory + 1;
            WRONG(".data is ");
            t = side == 0 ? x : out;
            t.shape[0] = -1;
            WRONG(": shape[0] is -1");
            t = side == 0 ? x : out;
            t.strides[0] = INT64_MAX;
            WRONG(": shape[0] = 4 with strides[0] = 9223372036854775807 passes");
            t = side == 0 ? x : out;
            t.strides[1] = 2;
            WRONG(".strides[1] is 2; the last dimension must be contiguous");
            t = side == 0 ? x : out;
            t.device_kind = MSTAR_DEVICE_CUDA;
            WRONG(" lives on device kind 2 index 0; it must be on cpu:0");
            t = side == 0 ? x : out;
            t.device_index = 1; /* as the wrappers have it */
            WRONG(" lives on device kind 1 index 1; it must be on cpu:0");
            t = side == 0 ? x : out;
            t.shape[0] = (int64_t)INT32_MAX + 1;
            t.strides[0] = 0;
            WRONG(".shape[0] is 2147483648; it must be at most 2147483647");
            t = side == 0 ? x : out;
            t.shape[1] = (1 << 24) + 1;
            WRONG(".shape[1] is 16777217; it must be at most 16777216");
        }
        t = out;
        t.shape[0] = T - 1;
        CHECK_INVALID(run(stream, &x, &t), "out.shape[0] is 3; it must be 4");
        t = out;
        t.shape[1] = M - 1;
        CHECK_INVALID(run(stream, &x, &t), "out.shape[1] is 5; it must be 6");
        t = out;
        t.strides[0] = M - 1; /* rows of the output in each other */
        CHECK_INVALID(run(stream, &x, &t), "out.strides[0] is 5; it must be at least 6");
        t.strides[0] = 0;
        CHECK_INVALID(run(stream, &x, &t), "out.strides[0] is 0; it must be at least 6");
        t = out; /* overlaps that are not "in place" */
        t.data = (float *)x.data + 1;
        CHECK_INVALID(run(stream, &x, &t), "x and out overlap");
        t.data = (float *)x.data + (T - 1) * M + M - 1;
        CHECK_INVALID(run(stream, &x, &t), "x and out overlap");
        t = x;
        t.dtype = MSTAR_DTYPE_BF16;
        CHECK_INVALID(run(stream, &x, &t), "x and out overlap");
        if (!simple_ops[i].in_place)
            CHECK_INVALID(run(stream, &x, &x), "x and out overlap");
        nothing_was_written();
        /* all of that was refused for its own reason: the same call is fine */
        CHECK_OK(run(stream, &x, &out));
        if (simple_ops[i].in_place)
            CHECK_OK(run(stream, &x, &x));
        t = x; /* one row for all: an input may stay in place */
        t.strides[0] = 0;
        CHECK_OK(run(stream, &t, &out));
        t = x;
        t.data = (float *)x.data + T * M;
        CHECK_OK(run(stream, &x, &t)); /* right after x */
        memcpy(memory, before, sizeof memory);
    }
    mstar_linear_destroy(square);
}

static void empty_shapes(void **state)
{
    (void)state;
    square = make_square();
    mstar_tensor none = matrix(0, 0, M);
    none.data = NULL;
    mstar_tensor out = none;
    CHECK_OK(run_layer_norm(stream, &none, &out));
    CHECK_OK(run_rms_norm(stream, &none, &out));
    CHECK_OK(mstar_normalize(stream, &none, &out));
    CHECK_OK(run_activation(stream, &none, &out));
    CHECK_OK(run_linear(stream, &none, &out));
    CHECK_OK(mstar_pooling_run(stream, MSTAR_POOLING_MAX, &none, NULL, 0, NULL, &out));
    mstar_tensor flat = matrix(0, T, 0), flat_out = matrix(1, T, 0), no_weight = vector(2, 0);
    flat.data = flat_out.data = no_weight.data = NULL;
    CHECK_OK(mstar_normalize(stream, &flat, &flat_out));
    CHECK_OK(run_activation(stream, &flat, &flat_out));
    CHECK_OK(mstar_layer_norm(stream, &flat, NULL, &no_weight, NULL, 0.0, &flat_out));
    CHECK_OK(mstar_rms_norm(stream, &flat, NULL, &no_weight, 0.0, &flat_out));
    const int32_t cu[2] = {0, 0};
    mstar_tensor pooled = matrix(1, 1, M); /* an empty segment gives zeros */
    CHECK_OK(mstar_pooling_run(stream, MSTAR_POOLING_MEAN, &none, cu, 1, NULL, &pooled));
    for (int i = 0; i < M; i++)
        assert_true(memory[1000 + i] == 0.0f);
    memcpy(memory, before, sizeof memory);
    const int64_t shape[3] = {0, 2, 4};
    mstar_tensor none3 = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 3, shape);
    CHECK_OK(mstar_rotary(stream, &none3, NULL, 10000.0, 4, 0, &none3));
    mstar_tensor table = matrix(3, 5, M);
    const mstar_tensor *tables[1] = {&table};
    const int32_t *ids[1] = {NULL};
    CHECK_OK(mstar_embedding(stream, tables, ids, 1, &out));
    nothing_was_written();
    mstar_linear_destroy(square);
}

/* ---- norms and activations ------------------------------------------------------------------- */

static void norm_arguments(void **state)
{
    (void)state;
    mstar_tensor x = matrix(0, T, M), out = matrix(1, T, M), r = matrix(2, T, M);
    mstar_tensor w = vector(60, M), b = vector(61, M), t;
#define LAYER(residual, weight, bias, eps) \
    mstar_layer_norm(stream, &x, residual, weight, bias, eps, &out)
#define RMS(residual, weight, eps) mstar_rms_norm(stream, &x, residual, weight, eps, &out)
    CHECK_INVALID(LAYER(NULL, NULL, &b, 1e-5), "weight is NULL");
    CHECK_INVALID(RMS(NULL, NULL, 1e-5), "weight is NULL");
    const double bad_eps[] = {-1e-30, (double)NAN, (double)INFINITY, 1e39};
    for (int i = 0; i < 4; i++) {
        CHECK_INVALID(LAYER(NULL, &w, &b, bad_eps[i]), "eps is ");
        CHECK_INVALID(RMS(NULL, &w, bad_eps[i]), "eps is ");
    }
    t = w;
    t.shape[0] = M - 1;
    CHECK_INVALID(LAYER(NULL, &t, &b, 1e-5), "weight.shape[0] is 5; it must be 6");
    CHECK_INVALID(LAYER(NULL, &w, &t, 1e-5), "bias.shape[0] is 5; it must be 6");
    CHECK_INVALID(RMS(NULL, &t, 1e-5), "weight.shape[0] is 5; it must be 6");
    t = w;
    t.dtype = MSTAR_DTYPE_BF16;
    CHECK_INVALID(LAYER(NULL, &t, &b, 1e-5), "weight.dtype is bf16; it must be f32");
    CHECK_INVALID(LAYER(NULL, &w, &t, 1e-5), "bias.dtype is bf16; it must be f32");
    t = w;
    t.strides[0] = 2;
    CHECK_INVALID(LAYER(NULL, &t, &b, 1e-5), "weight.strides[0] is 2");
    t = w;
    t.rank = 2;
    t.shape[1] = t.strides[1] = 1;
    CHECK_INVALID(RMS(NULL, &t, 1e-5), "weight.rank is 2; it must be 1");
    t = w;
    t.device_kind = MSTAR_DEVICE_CUDA;
    CHECK_INVALID(RMS(NULL, &t, 1e-5), "weight lives on device kind 2");
    t = w;
    t.data = out.data;
    CHECK_INVALID(LAYER(NULL, &t, &b, 1e-5), "weight and out overlap");
    CHECK_INVALID(LAYER(NULL, &w, &t, 1e-5), "bias and out overlap");
    t = r;
    t.shape[0] = T + 1;
    CHECK_INVALID(LAYER(&t, &w, &b, 1e-5), "residual.shape[0] is 5; it must be 4");
    CHECK_INVALID(RMS(&t, &w, 1e-5), "residual.shape[0] is 5; it must be 4");
    t = r;
    t.dtype = MSTAR_DTYPE_I8;
    CHECK_INVALID(RMS(&t, &w, 1e-5), "residual.dtype is i8");
    t = r;
    t.data = (float *)out.data + 3;
    CHECK_INVALID(LAYER(&t, &w, &b, 1e-5), "residual and out overlap");
    nothing_was_written();
    CHECK_OK(LAYER(&r, &w, NULL, 0.0));
    CHECK_OK(LAYER(&out, &w, &b, 1e-5)); /* in place on the residual */
    CHECK_OK(LAYER(&x, &w, &b, 1e-5));   /* the same tensor twice, as inputs */
    mstar_tensor one = matrix(2, T, M);
    one.strides[0] = 0;
    CHECK_OK(RMS(&one, &w, (double)FLT_MAX));
    memcpy(memory, before, sizeof memory);
    for (int a = -1; a < 9; a += 8) {
        CHECK_INVALID(mstar_activation_run(stream, (mstar_activation)a, &x, &out),
                      "activation is ");
        assert_non_null(strstr(mstar_last_error(), "it must be from 0 to 6"));
    }
    nothing_was_written();
}

/* ---- linear ---------------------------------------------------------------------------------- */

static void linear_arguments(void **state)
{
    (void)state;
    mstar_linear *const untouched = (mstar_linear *)(uintptr_t)64, *linear = untouched;
    mstar_tensor w = matrix(0, 7, M), w2 = matrix(1, 3, M), b = vector(2, 7), b2 = vector(3, 3), t;
    const mstar_tensor *weights[2] = {&w, &w2}, *biases[2] = {&b, &b2};
    mstar_linear_desc desc;
    uint64_t live = check_live_allocations();
#define CREATE(d, ws, bs, n) mstar_linear_create(device, d, ws, bs, n, &linear)
    CHECK_INVALID(mstar_linear_create(NULL, NULL, weights, biases, 2, &linear), "device is NULL");
    CHECK_INVALID(mstar_linear_create(device, NULL, weights, biases, 2, NULL), "linear is NULL");
    CHECK_INVALID(CREATE(NULL, NULL, biases, 2), "weights is NULL");
    CHECK_INVALID(CREATE(NULL, weights, biases, 0), "num_parts is 0; it must be from 1 to 64");
    CHECK_INVALID(CREATE(NULL, weights, biases, 65), "num_parts is 65");
    CHECK_INVALID(CREATE(NULL, weights, biases, -1), "num_parts is -1");
    mstar_linear_desc_init(&desc);
    desc.struct_size = 0;
    CHECK_INVALID(CREATE(&desc, weights, biases, 2), "desc.struct_size is 0");
    mstar_linear_desc_init(&desc);
    desc.weight_dtype = MSTAR_DTYPE_F16;
    CHECK_INVALID(CREATE(&desc, weights, biases, 2), "desc.weight_dtype is f16; it must be f32 or");
    desc.weight_dtype = (mstar_dtype)77;
    CHECK_INVALID(CREATE(&desc, weights, biases, 2), "desc.weight_dtype is unknown");
    mstar_linear_desc_init(&desc);
    desc.activation = (mstar_activation)7;
    CHECK_INVALID(CREATE(&desc, weights, biases, 2),
                  "desc.activation is 7; it must be from 0 to 6");
    mstar_linear_desc_init(&desc);
    desc.reserved = 1;
    CHECK_INVALID(CREATE(&desc, weights, biases, 2), "desc.reserved is 1; it must be 0");
    const mstar_tensor *hole[2] = {&w, NULL}, *no_first[2] = {NULL, &b2};
    CHECK_INVALID(CREATE(NULL, hole, biases, 2), "weights[1]: ");
    CHECK_INVALID(CREATE(NULL, weights, no_first, 2), "biases[1] is given and biases[0] is NULL");
    const mstar_tensor *no_second[2] = {&b, NULL};
    CHECK_INVALID(CREATE(NULL, weights, no_second, 2), "biases[1] is NULL and biases[0] is given");
    const mstar_tensor *odd[2] = {&w, &t}, *odd_bias[2] = {&b, &t};
    t = matrix(1, 3, M - 1);
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "weights[1].shape[1] is 5; it must be 6");
    t = matrix(1, 0, M);
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "weights[1]: shape[0] is 0; it must be from 1");
    t = matrix(1, 3, 0);
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "weights[1]: shape[1] is 0; it must be from 1");
    t = vector(1, M);
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "weights[1]: tensor.rank is 1; it must be 2");
    t = matrix(1, 3, M);
    t.dtype = MSTAR_DTYPE_I64;
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "weights[1]: dtype is i64");
    t = matrix(1, 3, M);
    t.device_kind = MSTAR_DEVICE_CUDA;
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "weights[1]: device_kind is 2; it must be 1");
    t = matrix(1, 3, M);
    t.strides[1] = -1;
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "strides[1] is -1");
    t = matrix(1, (1 << 24) + 1, M);
    t.strides[0] = 0;
    CHECK_INVALID(CREATE(NULL, odd, biases, 2), "weights[1]: shape[0] is 16777217");
    t.shape[0] = 1 << 24;
    CHECK_INVALID(CREATE(NULL, odd, NULL, 2), "out_features of all parts is 16777223");
    t = vector(3, 4);
    CHECK_INVALID(CREATE(NULL, weights, odd_bias, 2), "biases[1].shape[0] is 4; it must be 3");
    t = matrix(3, 3, 1);
    CHECK_INVALID(CREATE(NULL, weights, odd_bias, 2), "biases[1]: tensor.rank is 2; it must be 1");
    t = vector(3, 3);
    t.dtype = MSTAR_DTYPE_F64;
    CHECK_INVALID(CREATE(NULL, weights, odd_bias, 2), "biases[1]: dtype is f64");
    assert_ptr_equal(linear, untouched);
    assert_int_equal(check_live_allocations(), live);

    CHECK_OK(CREATE(NULL, weights, biases, 2));
    mstar_tensor x = matrix(10, T, M), out = matrix(11, T, 10), r = matrix(12, T, 10);
    CHECK_INVALID(mstar_linear_run(NULL, stream, &x, NULL, &out), "linear is NULL");
    CHECK_INVALID(mstar_linear_run(linear, elsewhere, &x, NULL, &out), "two devices");
    t = matrix(10, T, M + 1);
    CHECK_INVALID(mstar_linear_run(linear, stream, &t, NULL, &out),
                  "x.shape[1] is 7; it must be 6");
    t = matrix(12, T, 9);
    CHECK_INVALID(mstar_linear_run(linear, stream, &x, &t, &out),
                  "residual.shape[1] is 9; it must be 10");
    t = r;
    t.data = (float *)out.data + 1;
    CHECK_INVALID(mstar_linear_run(linear, stream, &x, &t, &out), "residual and out overlap");
    t = r;
    t.dtype = MSTAR_DTYPE_U8;
    CHECK_INVALID(mstar_linear_run(linear, stream, &x, &t, &out), "residual.dtype is u8");
    nothing_was_written();
    CHECK_OK(mstar_linear_run(linear, stream, &x, &r, &out));
    CHECK_OK(mstar_linear_run(linear, stream, &x, &out, &out));
    memcpy(memory, before, sizeof memory);

    mstar_linear_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_linear_query(linear, &info));
    assert_int_equal(info.weight_dtype, MSTAR_DTYPE_F32);
    assert_int_equal(info.in_features, M);
    assert_int_equal(info.out_features, 10);
    assert_true(info.packed_bytes >= 10 * M * sizeof(float));
    assert_non_null(strstr(info.kernel, "linear"));
    CHECK_INVALID(mstar_linear_query(NULL, &info), "linear is NULL");
    CHECK_INVALID(mstar_linear_query(linear, NULL), "info is NULL");
    info.struct_size = 0;
    CHECK_INVALID(mstar_linear_query(linear, &info), "info.struct_size is 0");
    mstar_linear_destroy(linear);
    const mstar_tensor *none[2] = {NULL, NULL}; /* a list of NULLs is no bias */
    CHECK_OK(CREATE(NULL, weights, none, 2));
    mstar_linear_destroy(linear);
    mstar_linear_desc_init(&desc);
    desc.struct_size = offsetof(mstar_linear_desc, activation); /* an older caller */
    desc.weight_dtype = MSTAR_DTYPE_BF16;
    desc.activation = (mstar_activation)99;
    CHECK_OK(CREATE(&desc, weights, NULL, 2));
    info.struct_size = sizeof info;
    CHECK_OK(mstar_linear_query(linear, &info));
    assert_int_equal(info.weight_dtype, MSTAR_DTYPE_BF16);
    mstar_linear_destroy(linear);
}

/* The weights may go as soon as create has returned. */
static void linear_copies(void **state)
{
    (void)state;
    float weight[2] = {2.0f, 3.0f}, bias[1] = {5.0f}, x[2] = {10.0f, 100.0f}, out[1];
    const int64_t row[2] = {1, 2}, one[2] = {1, 1};
    mstar_tensor w = mstar_tensor_make(weight, MSTAR_DTYPE_F32, 2, row);
    mstar_tensor b = mstar_tensor_make(bias, MSTAR_DTYPE_F32, 1, one);
    const mstar_tensor *weights[1] = {&w}, *biases[1] = {&b};
    mstar_linear *linear = NULL;
    CHECK_OK(mstar_linear_create(device, NULL, weights, biases, 1, &linear));
    weight[0] = weight[1] = bias[0] = NAN;
    mstar_tensor in = mstar_tensor_make(x, MSTAR_DTYPE_F32, 2, row);
    mstar_tensor result = mstar_tensor_make(out, MSTAR_DTYPE_F32, 2, one);
    CHECK_OK(mstar_linear_run(linear, stream, &in, NULL, &result));
    assert_true(out[0] == 325.0f);
    mstar_linear_destroy(linear);
}

static mstar_status try_linear(void *context)
{
    (void)context;
    mstar_tensor w = matrix(0, 7, M), b = vector(2, 7);
    const mstar_tensor *weights[1] = {&w}, *biases[1] = {&b};
    mstar_linear *linear = NULL;
    mstar_status status = mstar_linear_create(device, NULL, weights, biases, 1, &linear);
    mstar_linear_destroy(linear);
    return status;
}

static int fail_all(void *context, uint64_t number, size_t bytes)
{
    (void)number;
    (void)bytes;
    ++*(int *)context;
    return 1;
}

static void allocations(void **state)
{
    (void)state;
    assert_int_equal(check_alloc_faults(try_linear, NULL), 3);
    /* nothing but create allocates */
    square = make_square();
    mstar_tensor x = matrix(0, T, M), out = matrix(1, T, M), table = matrix(2, 5, M), x3, out3;
    const mstar_tensor *tables[1] = {&table};
    const int32_t numbers[T] = {0, 1, 2, 3};
    const int32_t *ids[1] = {numbers};
    CHECK_OK(mstar_tensor_split_dim(&x, 1, 1, M, &x3));
    CHECK_OK(mstar_tensor_split_dim(&out, 1, 1, M, &out3));
    int calls = 0;
    mstar_set_alloc_fault(fail_all, &calls);
    mstar_status status[16];
    int n = 0;
    for (size_t i = 0; i < sizeof simple_ops / sizeof simple_ops[0]; i++)
        status[n++] = simple_ops[i].run(stream, &x, &out);
    status[n++] = mstar_rotary(stream, &x3, numbers, 10000.0, M, 0, &out3);
    status[n++] = mstar_embedding(stream, tables, ids, 1, &out);
    mstar_set_alloc_fault(NULL, NULL);
    for (int i = 0; i < n; i++)
        assert_int_equal(status[i], MSTAR_OK);
    assert_int_equal(calls, 0);
    mstar_linear_destroy(square);
    memcpy(memory, before, sizeof memory);
}

/* ---- names ---- */

static void names(void **state)
{
    (void)state;
    static const char *const activations[] = {"none", "gelu", "gelu_tanh", "relu",
                                              "silu", "tanh", "sigmoid"};
    for (int i = -2; i < 12; i++)
        assert_string_equal(mstar_activation_name((mstar_activation)i),
                            i >= 0 && i < 7 ? activations[i] : "unknown");
    static const char *const poolings[][4] = {
        {"cls", "cls_token", "pooling_mode_cls_token", "pooling_mode_cls"},
        {"max", "max_tokens", "pooling_mode_max_tokens", "pooling_mode_max"},
        {"mean", "mean_tokens", "pooling_mode_mean_tokens", "pooling_mode_mean"},
        {"mean_sqrt_len", "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens",
         "pooling_mode_mean_sqrt_len"},
        {"weightedmean", "weightedmean_tokens", "pooling_mode_weightedmean_tokens",
         "pooling_mode_weightedmean"},
        {"lasttoken", "pooling_mode_lasttoken", "lasttoken", "lasttoken"},
    };
    for (int i = -2; i < 12; i++)
        assert_string_equal(mstar_pooling_name((mstar_pooling)i),
                            i >= 0 && i < 6 ? poolings[i][0] : "unknown");
    mstar_pooling pooling;
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 4; j++) {
            pooling = (mstar_pooling)77;
            CHECK_OK(mstar_pooling_parse(poolings[i][j], &pooling));
            assert_int_equal(pooling, i);
        }
    }
    static const char *const bad[] = {"",          "Mean",      "mean_",         "means",
                                      "mean_sqrt", "cls_words", "pooling_mode_", "max tokens"};
    pooling = (mstar_pooling)77;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INVALID(mstar_pooling_parse(bad[i], &pooling), "accepted are cls, max, mean");
        assert_non_null(strstr(mstar_last_error(), bad[i]));
    }
    CHECK_INVALID(mstar_pooling_parse(NULL, &pooling), "text is NULL");
    CHECK_INVALID(mstar_pooling_parse("mean", NULL), "pooling is NULL");
    assert_int_equal(pooling, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_checked),
        cmocka_unit_test(empty_shapes),
        cmocka_unit_test(norm_arguments),
        cmocka_unit_test(linear_arguments),
        cmocka_unit_test(linear_copies),
        cmocka_unit_test(allocations),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
