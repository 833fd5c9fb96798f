/* test_dlpack.c - views from DLPack tensors and back, by the structures' published numbers. */
#include <string.h>

#include "base/base.h"
#include "support_check.h"

static float memory[64];
static int64_t shape[8] = {4, 5, 1, 1, 1, 1, 1, 1};
static int64_t strides[8] = {7, 1, 1, 1, 1, 1, 1, 1};

static mstar_dl_managed_tensor_versioned producer(void)
{
    mstar_dl_managed_tensor_versioned m;
    memset(&m, 0, sizeof m);
    m.version.major = 1;
    m.version.minor = 1;
    m.dl_tensor.data = memory;
    m.dl_tensor.device.device_type = 1;
    m.dl_tensor.ndim = 2;
    m.dl_tensor.dtype.code = 2;
    m.dl_tensor.dtype.bits = 32;
    m.dl_tensor.dtype.lanes = 1;
    m.dl_tensor.shape = shape;
    m.dl_tensor.strides = strides;
    return m;
}

static void borrow(void **state)
{
    (void)state;
    mstar_dl_managed_tensor_versioned m = producer();
    mstar_tensor view;
    CHECK_OK(mstar_tensor_from_dlpack(&m, &view));
    assert_ptr_equal(view.data, memory);
    assert_int_equal(view.dtype, MSTAR_DTYPE_F32);
    assert_int_equal(view.rank, 2);
    assert_int_equal(view.shape[1], 5);
    assert_int_equal(view.strides[0], 7);
    assert_int_equal(view.device_kind, MSTAR_DEVICE_CPU);
    m.dl_tensor.strides = NULL;
    m.dl_tensor.byte_offset = 8;
    m.version.minor = 99; /* a newer minor version adds nothing that breaks */
    m.flags = MSTAR_DLPACK_FLAG_READ_ONLY;
    CHECK_OK(mstar_tensor_from_dlpack(&m, &view));
    assert_ptr_equal(view.data, memory + 2);
    assert_int_equal(view.strides[0], 5);
    m.dl_tensor.device.device_type = 2;
    m.dl_tensor.device.device_id = 3;
    CHECK_OK(mstar_tensor_from_dlpack(&m, &view));
    assert_int_equal(view.device_kind, MSTAR_DEVICE_CUDA);
    assert_int_equal(view.device_index, 3);
    m.dl_tensor.device.device_type = 3; /* pinned host memory is host memory */
    CHECK_OK(mstar_tensor_from_dlpack(&m, &view));
    assert_int_equal(view.device_kind, MSTAR_DEVICE_CPU);
    assert_int_equal(view.device_index, 0);
    m = producer();
    m.dl_tensor.ndim = 0;
    m.dl_tensor.shape = NULL;
    CHECK_OK(mstar_tensor_from_dlpack(&m, &view));
    assert_int_equal(view.rank, 0);
    int64_t none[2] = {0, 5};
    m = producer();
    m.dl_tensor.shape = none;
    m.dl_tensor.data = NULL;
    CHECK_OK(mstar_tensor_from_dlpack(&m, &view));
    assert_int_equal(view.shape[0], 0);
}

static void dtypes(void **state)
{
    (void)state;
    static const struct {
        uint8_t code, bits;
        mstar_dtype dtype;
    } rows[] = {
        {2, 32, MSTAR_DTYPE_F32}, {4, 16, MSTAR_DTYPE_BF16},    {2, 16, MSTAR_DTYPE_F16},
        {2, 64, MSTAR_DTYPE_F64}, {0, 64, MSTAR_DTYPE_I64},     {0, 32, MSTAR_DTYPE_I32},
        {0, 16, MSTAR_DTYPE_I16}, {0, 8, MSTAR_DTYPE_I8},       {1, 8, MSTAR_DTYPE_U8},
        {6, 8, MSTAR_DTYPE_BOOL}, {10, 8, MSTAR_DTYPE_F8_E4M3}, {12, 8, MSTAR_DTYPE_F8_E5M2},
    };
    int known = 0;
    for (int code = 0; code < 256; code++) {
        for (int bits = 0; bits < 256; bits += 4) {
            mstar_dl_managed_tensor_versioned m = producer();
            m.dl_tensor.dtype.code = (uint8_t)code;
            m.dl_tensor.dtype.bits = (uint8_t)bits;
            mstar_tensor view;
            mstar_status status = mstar_tensor_from_dlpack(&m, &view);
            bool found = false;
            for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                if (rows[i].code != code || rows[i].bits != bits)
                    continue;
                found = true;
                known++;
                CHECK_OK(status);
                assert_int_equal(view.dtype, rows[i].dtype);
                mstar_dl_managed_tensor_versioned *back = NULL;
                CHECK_OK(mstar_tensor_to_dlpack(&view, NULL, NULL, &back));
                assert_int_equal(back->dl_tensor.dtype.code, code);
                assert_int_equal(back->dl_tensor.dtype.bits, bits);
                assert_int_equal(back->dl_tensor.dtype.lanes, 1);
                back->deleter(back);
            }
            if (!found)
                CHECK_FAILED(status, MSTAR_NOT_SUPPORTED, "code");
        }
    }
    assert_int_equal(known, 12);
}

static void refusals(void **state)
{
    (void)state;
    mstar_tensor view;
    memset(&view, 0x55, sizeof view);
    mstar_tensor before = view;
    mstar_dl_managed_tensor_versioned m = producer();
    CHECK_INVALID(mstar_tensor_from_dlpack(NULL, &view), "managed is NULL");
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, NULL), "view is NULL");
    m.version.major = 2;
    CHECK_FAILED(mstar_tensor_from_dlpack(&m, &view), MSTAR_NOT_SUPPORTED, "major is 2");
    m = producer();
    m.dl_tensor.dtype.lanes = 4;
    CHECK_FAILED(mstar_tensor_from_dlpack(&m, &view), MSTAR_NOT_SUPPORTED, "lanes is 4");
    m = producer();
    m.dl_tensor.ndim = 9;
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, &view), "ndim is 9; it must be from 0 to 8");
    m.dl_tensor.ndim = -1;
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, &view), "ndim is -1");
    m = producer();
    m.dl_tensor.shape = NULL;
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, &view), "managed.shape is NULL");
    m = producer();
    int64_t backwards[2] = {-5, 1};
    m.dl_tensor.strides = backwards;
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, &view), "strides[0] is -5");
    m = producer();
    m.dl_tensor.shape = backwards;
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, &view), "shape[0] is -5");
    m = producer();
    m.dl_tensor.device.device_type = 10;
    CHECK_FAILED(mstar_tensor_from_dlpack(&m, &view), MSTAR_NOT_SUPPORTED, "device_type is 10");
    m = producer();
    m.dl_tensor.data = NULL;
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, &view), "data is NULL");
    m = producer();
    m.dl_tensor.byte_offset = 2;
    CHECK_INVALID(mstar_tensor_from_dlpack(&m, &view), "aligned to 4");
    assert_memory_equal(&view, &before, sizeof view);
}

static void count_release(void *owner)
{
    ++*(int *)owner;
}

static void lend(void **state)
{
    (void)state;
    uint64_t live = check_live_allocations();
    int released = 0;
    mstar_tensor t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 2, shape), back;
    t.strides[0] = 9;
    mstar_dl_managed_tensor_versioned *m = NULL;
    CHECK_OK(mstar_tensor_to_dlpack(&t, &released, count_release, &m));
    assert_int_equal(m->version.major, 1);
    assert_int_equal(m->version.minor, 1);
    assert_int_equal(m->flags, 0);
    assert_int_equal(m->dl_tensor.device.device_type, 1);
    assert_int_equal(m->dl_tensor.byte_offset, 0);
    CHECK_OK(mstar_tensor_from_dlpack(m, &back));
    assert_true(mst_tensor_same_view(&t, &back));
    assert_int_equal(released, 0);
    m->deleter(m);
    assert_int_equal(released, 1);
    CHECK_OK(mstar_tensor_to_dlpack(&t, NULL, NULL, &m));
    m->deleter(m);
    assert_int_equal(check_live_allocations(), live);
    mstar_dl_managed_tensor_versioned *untouched = (mstar_dl_managed_tensor_versioned *)state;
    m = untouched;
    t.rank = 9;
    CHECK_INVALID(mstar_tensor_to_dlpack(&t, &released, count_release, &m), "tensor.rank is 9");
    assert_ptr_equal(m, untouched);
    assert_int_equal(released, 1);
}

static mstar_status try_lend(void *context)
{
    mstar_dl_managed_tensor_versioned *m = NULL;
    mstar_status status = mstar_tensor_to_dlpack(context, NULL, NULL, &m);
    if (status == MSTAR_OK)
        m->deleter(m);
    return status;
}

static void lend_without_memory(void **state)
{
    (void)state;
    mstar_tensor t = mstar_tensor_make(memory, MSTAR_DTYPE_F32, 2, shape);
    assert_int_equal(check_alloc_faults(try_lend, &t), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(borrow),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(refusals),
        cmocka_unit_test(lend),
        cmocka_unit_test(lend_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
