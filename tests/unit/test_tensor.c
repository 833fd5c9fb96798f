/* test_tensor.c - views, their checks, and which views share memory. */
#include <string.h>

#include "base/base.h"
#include "support_check.h"

static float memory[4096];

static mstar_tensor make(int32_t rank, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[3] = {a, b, c};
    return mstar_tensor_make(memory, MSTAR_DTYPE_F32, rank, shape);
}

static void compact_views(void **state)
{
    (void)state;
    mstar_tensor t = make(3, 4, 5, 6);
    CHECK_OK(mst_tensor_check("t", &t));
    assert_int_equal(t.rank, 3);
    assert_int_equal(t.device_kind, MSTAR_DEVICE_CPU);
    assert_int_equal(t.strides[0], 30);
    assert_int_equal(t.strides[1], 6);
    assert_int_equal(t.strides[2], 1);
    t = make(3, 4, 0, 6); /* a zero keeps the outer strides usable */
    assert_int_equal(t.strides[0], 6);
    t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 0, NULL);
    CHECK_OK(mst_tensor_check("t", &t));
    const int64_t huge[3] = {INT64_MAX, INT64_MAX, 2};
    t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 3, huge);
    CHECK_INVALID(mst_tensor_check("t", &t), "t.rank is -1");
    t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 9, huge);
    CHECK_INVALID(mst_tensor_check("t", &t), "t.rank is -1; it must be from 0 to 8");
    t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, -5, huge);
    CHECK_INVALID(mst_tensor_check("t", &t), "t.rank is -1");
    t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 2, NULL);
    CHECK_INVALID(mst_tensor_check("t", &t), "t.rank is -1");
}

static void slices(void **state)
{
    (void)state;
    mstar_tensor t = make(3, 4, 5, 6), view;
    CHECK_OK(mstar_tensor_slice(&t, 1, 2, 3, &view));
    assert_ptr_equal(view.data, memory + 12);
    assert_int_equal(view.shape[0], 4);
    assert_int_equal(view.shape[1], 3);
    assert_int_equal(view.strides[0], 30);
    CHECK_OK(mstar_tensor_slice(&view, 2, 5, 1, &view)); /* in place */
    assert_ptr_equal(view.data, memory + 17);
    CHECK_OK(mstar_tensor_slice(&t, 0, 4, 0, &view)); /* empty, at the end */
    assert_int_equal(view.shape[0], 0);
    CHECK_OK(mst_tensor_check("view", &view));
    memset(&view, 0x55, sizeof view);
    mstar_tensor before = view;
    CHECK_INVALID(mstar_tensor_slice(&t, 3, 0, 1, &view), "dim is 3; it must be from 0 to 2");
    CHECK_INVALID(mstar_tensor_slice(&t, -1, 0, 1, &view), "dim is -1");
    CHECK_INVALID(mstar_tensor_slice(&t, 1, 6, 0, &view), "start is 6; it must be from 0 to 5");
    CHECK_INVALID(mstar_tensor_slice(&t, 1, -1, 1, &view), "start is -1");
    CHECK_INVALID(mstar_tensor_slice(&t, 1, 3, 3, &view), "length is 3; it must be from 0 to 2");
    CHECK_INVALID(mstar_tensor_slice(&t, 1, 3, INT64_MAX, &view), "length");
    CHECK_INVALID(mstar_tensor_slice(&t, 1, 3, -1, &view), "length is -1");
    CHECK_INVALID(mstar_tensor_slice(NULL, 1, 3, 1, &view), "tensor is NULL");
    assert_memory_equal(&view, &before, sizeof view);
    CHECK_INVALID(mstar_tensor_slice(&t, 1, 3, 1, NULL), "view is NULL");
    t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 0, NULL);
    CHECK_INVALID(mstar_tensor_slice(&t, 0, 0, 1, &view), "rank 0");
}

static void splits(void **state)
{
    (void)state;
    mstar_tensor t = make(2, 7, 24, 0), view;
    CHECK_OK(mstar_tensor_split_dim(&t, 1, 3, 8, &view));
    assert_int_equal(view.rank, 3);
    const int64_t shape[3] = {7, 3, 8}, strides[3] = {24, 8, 1};
    assert_memory_equal(view.shape, shape, sizeof shape);
    assert_memory_equal(view.strides, strides, sizeof strides);
    CHECK_OK(mstar_tensor_split_dim(&view, 0, 7, 1, &view));
    const int64_t shape4[4] = {7, 1, 3, 8}, strides4[4] = {24, 24, 8, 1};
    assert_memory_equal(view.shape, shape4, sizeof shape4);
    assert_memory_equal(view.strides, strides4, sizeof strides4);
    /* q, k and v of a fused projection */
    mstar_tensor fused = make(2, 10, 3 * 24, 0), k;
    CHECK_OK(mstar_tensor_slice(&fused, 1, 24, 24, &k));
    CHECK_OK(mstar_tensor_split_dim(&k, 1, 3, 8, &k));
    assert_ptr_equal(k.data, memory + 24);
    assert_int_equal(k.strides[0], 72);
    assert_int_equal(k.strides[1], 8);
    CHECK_INVALID(mstar_tensor_split_dim(&t, 1, 3, 7, &view),
                  "outer 3 times inner 7 is not shape[1] = 24");
    CHECK_INVALID(mstar_tensor_split_dim(&t, 1, INT64_MAX, 3, &view), "is not shape[1]");
    CHECK_INVALID(mstar_tensor_split_dim(&t, 1, -3, -8, &view), "outer is -3");
    CHECK_INVALID(mstar_tensor_split_dim(&t, 1, 3, -8, &view), "inner is -8");
    CHECK_INVALID(mstar_tensor_split_dim(&t, 2, 3, 8, &view), "dim is 2");
    t = make(2, 0, 24, 0);
    CHECK_OK(mstar_tensor_split_dim(&t, 0, 0, 5, &view));
    CHECK_OK(mstar_tensor_split_dim(&t, 0, 5, 0, &view));
    /* a size beside a zero may be anything, and so may the stride of an empty dimension */
    CHECK_OK(mstar_tensor_split_dim(&t, 0, INT64_MAX, 0, &view));
    mstar_tensor before = view;
    CHECK_INVALID(mstar_tensor_split_dim(&t, 0, 0, INT64_MAX, &view),
                  "inner 9223372036854775807 times strides[0] = 24 passes the address space");
    t.strides[0] = INT64_MAX;
    CHECK_INVALID(mstar_tensor_split_dim(&t, 0, 0, 2, &view), "passes the address space");
    assert_memory_equal(&view, &before, sizeof view);
    const int64_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 8, ones);
    CHECK_INVALID(mstar_tensor_split_dim(&t, 0, 1, 1, &view), "rank 8");
}

static void checks(void **state)
{
    (void)state;
    mstar_tensor t = make(2, 4, 5, 0);
    CHECK_INVALID(mst_tensor_check("w", NULL), "w is NULL");
    t.dtype = (mstar_dtype)50;
    CHECK_INVALID(mst_tensor_check("w", &t), "w.dtype is 50");
    t = make(2, 4, 5, 0);
    t.shape[1] = -2;
    CHECK_INVALID(mst_tensor_check("w", &t), "shape[1] is -2");
    t = make(2, 4, 5, 0);
    t.strides[0] = -1;
    CHECK_INVALID(mst_tensor_check("w", &t), "strides[0] is -1");
    t = make(2, 4, 5, 0);
    t.strides[0] = INT64_MAX;
    CHECK_INVALID(mst_tensor_check("w", &t), "address space");
    t.strides[0] = INT64_MAX / 3;
    CHECK_INVALID(mst_tensor_check("w", &t), "address space");
    t = make(2, 4, 5, 0);
    t.data = NULL;
    CHECK_INVALID(mst_tensor_check("w", &t), "w.data is NULL and no dimension is 0");
    t.shape[0] = 0;
    CHECK_OK(mst_tensor_check("w", &t));
    t = make(2, 4, 5, 0);
    t.data = (char *)memory + 2;
    CHECK_INVALID(mst_tensor_check("w", &t), "aligned to 4 bytes");
    t.dtype = MSTAR_DTYPE_BF16;
    CHECK_OK(mst_tensor_check("w", &t));
    t = make(2, 4, 5, 0);
    CHECK_INVALID(mst_tensor_check_rank("w", &t, 3), "w.rank is 2; it must be 3");
    CHECK_INVALID(mst_tensor_check_dim("w", &t, 1, 6), "w.shape[1] is 5; it must be 6");
    CHECK_OK(mst_tensor_check_compute("w", &t, 2));
    t.strides[1] = 2;
    CHECK_INVALID(mst_tensor_check_compute("w", &t, 2), "w.strides[1] is 2");
    t.shape[0] = 0; /* strides of an empty tensor are without effect; NumPy's are 0 */
    CHECK_OK(mst_tensor_check_compute("w", &t, 2));
    t.strides[1] = 0;
    CHECK_OK(mst_tensor_check_compute("w", &t, 2));
    t.shape[0] = 4;
    CHECK_INVALID(mst_tensor_check_compute("w", &t, 2), "w.strides[1] is 0");
    t.shape[1] = 1; /* the stride of one element is without effect */
    CHECK_OK(mst_tensor_check_compute("w", &t, 2));
    t = make(2, 4, 5, 0);
    t.dtype = MSTAR_DTYPE_I32;
    CHECK_INVALID(mst_tensor_check_compute("w", &t, 2), "w.dtype is i32");
}

/* Whether two views share a byte, by looking at every element. */
static bool share_a_byte(const mstar_tensor *a, const mstar_tensor *b)
{
    static unsigned char touched[sizeof memory];
    const mstar_tensor *both[2] = {a, b};
    memset(touched, 0, sizeof touched);
    bool shared = false;
    for (int side = 0; side < 2; side++) {
        const mstar_tensor *t = both[side];
        size_t bytes = mstar_dtype_bytes(t->dtype);
        int64_t inner = t->rank == 3 ? t->shape[2] : 1;
        for (int64_t i = 0; i < t->shape[0]; i++) {
            for (int64_t j = 0; j < t->shape[1]; j++) {
                for (int64_t k = 0; k < inner; k++) {
                    int64_t at = i * t->strides[0] + j * t->strides[1] +
                                 (t->rank == 3 ? k * t->strides[2] : 0);
                    size_t byte = (size_t)((unsigned char *)t->data - (unsigned char *)memory) +
                                  (size_t)at * bytes;
                    for (size_t n = 0; n < bytes; n++) {
                        shared = shared || (side == 1 && touched[byte + n] != 0);
                        touched[byte + n] = (unsigned char)(touched[byte + n] | (side == 0));
                    }
                }
            }
        }
    }
    return shared;
}

static void overlap(void **state)
{
    (void)state;
    mstar_tensor a = make(2, 4, 5, 0), b = make(2, 4, 5, 0);
    b.data = memory + 19;
    CHECK_INVALID(mst_tensor_check_apart("a", &a, "b", &b), "a and b overlap in memory");
    CHECK_INVALID(mst_tensor_check_apart("b", &b, "a", &a), "b and a overlap in memory");
    b.data = memory + 20;
    CHECK_OK(mst_tensor_check_apart("a", &a, "b", &b));
    CHECK_OK(mst_tensor_check_apart("b", &b, "a", &a));
    CHECK_INVALID(mst_tensor_check_apart("a", &a, "a", &a), "overlap");
    b = a;
    b.shape[0] = 0;
    CHECK_OK(mst_tensor_check_apart("a", &a, "b", &b));
    CHECK_OK(mst_tensor_check_apart("b", &b, "b", &b));
    /* the three slices of one fused tensor, whole and split into heads */
    mstar_tensor fused = make(2, 10, 72, 0), parts[3];
    for (int split = 0; split < 2; split++) {
        for (int i = 0; i < 3; i++) {
            CHECK_OK(mstar_tensor_slice(&fused, 1, 24 * i, 24, &parts[i]));
            if (split)
                CHECK_OK(mstar_tensor_split_dim(&parts[i], 1, 3, 8, &parts[i]));
        }
        for (int i = 0; i < 3; i++) {
            for (int j = 0; j < 3; j++) {
                mstar_status apart = mst_tensor_check_apart("a", &parts[i], "b", &parts[j]);
                assert_int_equal(apart, i == j ? MSTAR_INVALID_ARGUMENT : MSTAR_OK);
            }
        }
    }
    /* slices that share one column */
    CHECK_OK(mstar_tensor_slice(&fused, 1, 0, 25, &a));
    CHECK_OK(mstar_tensor_slice(&fused, 1, 24, 24, &b));
    CHECK_INVALID(mst_tensor_check_apart("a", &a, "b", &b), "overlap");
    CHECK_INVALID(mst_tensor_check_apart("b", &b, "a", &a), "overlap");
}

/* Never "apart" for views that share a byte; and exact for rows of equal stride. */
static void overlap_is_never_missed(void **state)
{
    (void)state;
    check_rng rng = {5};
    const mstar_dtype dtypes[] = {MSTAR_DTYPE_F32, MSTAR_DTYPE_BF16, MSTAR_DTYPE_F64};
    int shared = 0, apart = 0;
    for (int i = 0; i < 20000; i++) {
        mstar_tensor t[2];
        int64_t stride = check_integer(&rng, 0, 40);
        int32_t rank = (int32_t)check_integer(&rng, 2, 3);
        bool same_grid = check_integer(&rng, 0, 1) == 0;
        mstar_dtype dtype = dtypes[check_integer(&rng, 0, 2)];
        for (int side = 0; side < 2; side++) {
            const int64_t shape[3] = {check_integer(&rng, 0, 6), check_integer(&rng, 0, 5),
                                      check_integer(&rng, 1, 4)};
            if (!same_grid)
                dtype = dtypes[check_integer(&rng, 0, 2)];
            t[side] = mstar_tensor_make((char *)memory + 8 * check_integer(&rng, 0, 60), dtype,
                                        rank, shape);
            t[side].strides[0] = same_grid ? stride : check_integer(&rng, 0, 40);
            if (rank == 3)
                t[side].strides[1] = check_integer(&rng, 0, 10);
        }
        bool want = share_a_byte(&t[0], &t[1]);
        mstar_status status = mst_tensor_check_apart("a", &t[0], "b", &t[1]);
        assert_int_equal(status, mst_tensor_check_apart("b", &t[1], "a", &t[0]));
        if (want)
            assert_int_equal(status, MSTAR_INVALID_ARGUMENT);
        shared += want;
        apart += status == MSTAR_OK;
    }
    assert_true(shared > 1000);
    assert_true(apart > 1000);
}

static void same_views(void **state)
{
    (void)state;
    mstar_tensor a = make(2, 4, 5, 0), b = a;
    assert_true(mst_tensor_same_view(&a, &b));
    b.strides[0] = 6;
    assert_false(mst_tensor_same_view(&a, &b));
    a.shape[0] = b.shape[0] = 1; /* a stride that nothing steps along */
    assert_true(mst_tensor_same_view(&a, &b));
    b = a;
    b.dtype = MSTAR_DTYPE_I32;
    assert_false(mst_tensor_same_view(&a, &b));
    b = a;
    b.data = memory + 1;
    assert_false(mst_tensor_same_view(&a, &b));
    b = a;
    b.shape[1] = 4;
    assert_false(mst_tensor_same_view(&a, &b));
    b = a;
    b.rank = 1;
    assert_false(mst_tensor_same_view(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compact_views), cmocka_unit_test(slices),
        cmocka_unit_test(splits),        cmocka_unit_test(checks),
        cmocka_unit_test(overlap),       cmocka_unit_test(overlap_is_never_missed),
        cmocka_unit_test(same_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
