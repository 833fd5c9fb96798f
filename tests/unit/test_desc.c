/* test_desc.c - struct_size: older callers, newer callers, and none at all. */
#include <stddef.h>
#include <string.h>

#include "base/base.h"
#include "support_check.h"

typedef struct full_desc {
    uint32_t struct_size;
    int32_t a, b, c;
} full_desc;

typedef struct newer_desc {
    full_desc known;
    int32_t later;
} newer_desc;

static const full_desc defaults = {sizeof(full_desc), 1, 2, 3};

static void descs(void **state)
{
    (void)state;
    full_desc full = defaults;
    CHECK_OK(mst_desc_read("desc", NULL, &full, sizeof full));
    assert_memory_equal(&full, &defaults, sizeof full);

    full_desc given = {sizeof given, 10, 20, 30};
    CHECK_OK(mst_desc_read("desc", &given, &full, sizeof full));
    assert_memory_equal(&full, &given, sizeof full);

    full = defaults; /* an older caller: the fields it does not have keep their defaults */
    given.struct_size = offsetof(full_desc, b);
    CHECK_OK(mst_desc_read("desc", &given, &full, sizeof full));
    assert_int_equal(full.a, 10);
    assert_int_equal(full.b, 2);
    assert_int_equal(full.c, 3);
    assert_int_equal(full.struct_size, sizeof full);

    full = defaults;
    given.struct_size = sizeof(uint32_t);
    CHECK_OK(mst_desc_read("desc", &given, &full, sizeof full));
    assert_memory_equal(&full, &defaults, sizeof full);

    struct {
        full_desc desc;
        int32_t canary;
    } guarded = {defaults, 42}; /* a newer caller: what we do not know is not copied */
    newer_desc newer = {{sizeof newer, 10, 20, 30}, 99};
    CHECK_OK(mst_desc_read("desc", &newer, &guarded.desc, sizeof guarded.desc));
    assert_int_equal(guarded.desc.c, 30);
    assert_int_equal(guarded.canary, 42);

    full = defaults;
    for (uint32_t size = 0; size < 4; size++) {
        given.struct_size = size;
        CHECK_INVALID(mst_desc_read("thing", &given, &full, sizeof full), "thing.struct_size is ");
        assert_memory_equal(&full, &defaults, sizeof full);
    }
}

static void infos(void **state)
{
    (void)state;
    const full_desc full = {sizeof full, 1, 2, 3};
    full_desc out;
    for (uint32_t size = 4; size <= sizeof out; size += 4) {
        memset(&out, 0x77, sizeof out);
        out.struct_size = size;
        CHECK_OK(mst_info_write("info", &full, sizeof full, &out));
        assert_int_equal(out.struct_size, size);
        for (uint32_t i = 4; i < sizeof out; i++) {
            unsigned char want = i < size ? ((const unsigned char *)&full)[i] : 0x77;
            assert_int_equal(((const unsigned char *)&out)[i], want);
        }
    }
    newer_desc newer;
    memset(&newer, 0x77, sizeof newer);
    newer.known.struct_size = sizeof newer;
    CHECK_OK(mst_info_write("info", &full, sizeof full, &newer));
    assert_int_equal(newer.known.c, 3);
    assert_int_equal(newer.later, 0x77777777);
    out.struct_size = 0;
    CHECK_INVALID(mst_info_write("info", &full, sizeof full, &out), "info.struct_size is 0");
    CHECK_INVALID(mst_info_write("info", &full, sizeof full, NULL), "info is NULL");
}

static void inits(void **state)
{
    (void)state;
    mstar_device_desc device;
    memset(&device, 0x77, sizeof device);
    mstar_device_desc_init(&device);
    assert_int_equal(device.struct_size, sizeof device);
    assert_int_equal(device.num_threads, -1);
    assert_true(device.parallel_for == NULL);
    assert_null(device.parallel_host);
    assert_null(device.max_isa);
    mstar_linear_desc linear;
    memset(&linear, 0x77, sizeof linear);
    mstar_linear_desc_init(&linear);
    assert_int_equal(linear.struct_size, sizeof linear);
    assert_int_equal(linear.weight_dtype, MSTAR_DTYPE_F32);
    assert_int_equal(linear.activation, MSTAR_ACTIVATION_NONE);
    assert_int_equal(linear.reserved, 0);
    mstar_device_desc_init(NULL);
    mstar_linear_desc_init(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descs),
        cmocka_unit_test(infos),
        cmocka_unit_test(inits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
