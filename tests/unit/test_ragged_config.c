/* test_ragged_config.c - descs of the ragged managers: defaults, ceilings by their vectors, heads
 * of a rank, what is refused, what a deployment may change. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_ragged.h"

#define COUNT(list) (int)(sizeof(list) / sizeof((list)[0]))

/* ---- configs ----------------------------------------------------------------------------------
 */

static void defaults_and_ceilings(void **state)
{
    (void)state;
    mstar_ragged_manager_desc desc;
    int64_t segments, tokens;
    mstar_ragged_manager_desc_init(&desc);
    assert_int_equal(desc.kind, MSTAR_RAGGED_SELF);
    assert_int_equal(desc.max_segments_per_request, 1);
    assert_int_equal(desc.max_tokens_per_request, -1);
    assert_int_equal(desc.tp_world_size, 1);
    assert_true(isnan(desc.sm_scale));
    assert_null(desc.flashinfer_backend);
    ragged_desc(MSTAR_RAGGED_SELF, &desc);
    static const struct {
        int64_t per_request, tokens_per_request, bs, num_tokens, segments, tokens;
    } cases[] = {
        {3, -1, 1, 512, 3, 512},  {3, -1, 8, 512, 24, 512}, {1, 256, 8, 512, 8, 2048},
        {1, 256, 1, 512, 1, 512}, {1, -1, 4, 0, 4, 0},      {1, 0, 4, 9, 4, 9},
        {2, 7, 3, 20, 6, 21},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const mstar_bucket_key key = {"w", NULL, cases[i].bs, cases[i].num_tokens};
        desc.max_segments_per_request = cases[i].per_request;
        desc.max_tokens_per_request = cases[i].tokens_per_request;
        CHECK_OK(mstar_ragged_manager_ceilings(&desc, &key, &segments, &tokens));
        assert_int_equal(segments, cases[i].segments);
        assert_int_equal(tokens, cases[i].tokens);
    }
    const mstar_bucket_key large = {"w", NULL, 1 << 20, 1}, none = {"w", NULL, 0, 1};
    const mstar_bucket_key negative = {"w", NULL, 1, -1};
    desc.max_segments_per_request = 1 << 20;
    CHECK_INVALID(mstar_ragged_manager_ceilings(&desc, &large, &segments, &tokens),
                  "1099511627776 segments");
    CHECK_INVALID(mstar_ragged_manager_ceilings(&desc, &none, &segments, &tokens),
                  "bucket.bs is 0");
    CHECK_INVALID(mstar_ragged_manager_ceilings(&desc, &negative, &segments, &tokens),
                  "bucket.num_tokens is -1");
}

static mstar_ragged_manager_info made_of(const mstar_ragged_manager_desc *desc)
{
    mstar_device *device;
    mstar_ragged_manager *manager = NULL;
    mstar_ragged_manager_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_device_open("cpu", NULL, &device));
    CHECK_OK(mstar_ragged_manager_create(device, desc, &manager));
    CHECK_OK(mstar_ragged_manager_query(manager, &info));
    mstar_ragged_manager_destroy(manager);
    CHECK_OK(mstar_device_close(device));
    return info;
}

static void heads_are_sharded(void **state)
{
    (void)state;
    static const int32_t cases[][5] = {/* q heads, kv heads, world, and of a rank */
                                       {32, 8, 1, 32, 8}, {32, 8, 4, 8, 2}, {32, 8, 8, 4, 1},
                                       {32, 8, 16, 2, 1}, {32, 6, 8, 4, 1}, {12, 1, 4, 3, 1}};
    mstar_ragged_manager_desc desc;
    for (int i = 0; i < COUNT(cases); i++) {
        ragged_desc(MSTAR_RAGGED_SELF, &desc);
        desc.num_qo_heads = cases[i][0];
        desc.num_kv_heads = cases[i][1];
        desc.head_dim = 72;
        desc.tp_world_size = cases[i][2];
        for (int again = 0; again < 2; again++) { /* the desc stays the whole model's */
            mstar_ragged_manager_info info = made_of(&desc);
            assert_int_equal(info.num_qo_heads, cases[i][3]);
            assert_int_equal(info.num_kv_heads, cases[i][4]);
            assert_int_equal(info.head_dim, 72);
            assert_true(info.sm_scale == 1.0 / sqrt(72.0));
        }
    }
}

static mstar_status create(const mstar_ragged_manager_desc *desc)
{
    mstar_device *device;
    mstar_ragged_manager *manager = NULL;
    CHECK_OK(mstar_device_open("cpu", NULL, &device));
    mstar_status status = mstar_ragged_manager_create(device, desc, &manager);
    mstar_ragged_manager_destroy(manager);
    CHECK_OK(mstar_device_close(device));
    return status;
}

static void bad_descs(void **state)
{
    (void)state;
    mstar_ragged_manager_desc desc;
#define REFUSED(change, named)                  \
    do {                                        \
        ragged_desc(MSTAR_RAGGED_CROSS, &desc); \
        change;                                 \
        CHECK_INVALID(create(&desc), named);    \
    } while (0)
    REFUSED(desc.kind = (mstar_ragged_kind)3, "desc.kind is 3");
    REFUSED(desc.num_qo_heads = 0, "desc.num_qo_heads is 0");
    REFUSED(desc.num_kv_heads = 0, "desc.num_kv_heads is 0");
    REFUSED(desc.head_dim = 257, "head_dim is 257");
    REFUSED(desc.tp_world_size = 0, "desc.tp_world_size is 0");
    REFUSED(desc.tp_world_size = 3, "desc.num_qo_heads is 2; it must be a multiple");
    REFUSED((desc.num_qo_heads = 12, desc.num_kv_heads = 6, desc.tp_world_size = 4),
            "desc.num_kv_heads is 6; it must be a multiple");
    REFUSED(desc.max_segments_per_request = 0, "desc.max_segments_per_request is 0");
    REFUSED(desc.max_tokens_per_request = -2, "desc.max_tokens_per_request is -2");
    REFUSED(desc.dtype = -1, "both -1; one must be given");
    REFUSED(desc.dtype = MSTAR_DTYPE_F64, "f64");
    REFUSED(desc.flashinfer_backend = "cudnn", "cudnn");
    REFUSED(desc.flashinfer_backend = "a backend of a very long name", "not a backend's name");
    REFUSED(desc.struct_size = 0, "struct_size");
#undef REFUSED
    CHECK_INVALID(create(NULL), "desc is NULL");
    ragged_desc(MSTAR_RAGGED_SELF, &desc);
    desc.dtype = -1;
    desc.engine_dtype = MSTAR_DTYPE_BF16;
    assert_int_equal(made_of(&desc).dtype, MSTAR_DTYPE_BF16);
    desc.dtype = MSTAR_DTYPE_F16;
    assert_int_equal(made_of(&desc).dtype, MSTAR_DTYPE_F16);
}

static void overrides(void **state)
{
    (void)state;
    mstar_ragged_manager_desc desc;
    ragged_desc(MSTAR_RAGGED_SELF, &desc);
    CHECK_OK(mstar_ragged_manager_desc_override(&desc, "max_segments_per_request", "3"));
    CHECK_OK(mstar_ragged_manager_desc_override(&desc, "max_tokens_per_request", "256"));
    CHECK_OK(mstar_ragged_manager_desc_override(&desc, "flashinfer_backend", "reference"));
    assert_int_equal(desc.max_segments_per_request, 3);
    assert_int_equal(desc.max_tokens_per_request, 256);
    assert_string_equal(desc.flashinfer_backend, "reference");
    static const char *const bad[] = {
        "", "0", "-1", "3x", "2147483648", "1e3", "99999999999999999999"};
    for (int i = 0; i < COUNT(bad); i++)
        CHECK_INVALID(mstar_ragged_manager_desc_override(&desc, "max_tokens_per_request", bad[i]),
                      "max_tokens_per_request is \"");
    assert_int_equal(desc.max_tokens_per_request, 256);
    CHECK_FAILED(mstar_ragged_manager_desc_override(&desc, "head_dim", "64"), MSTAR_NOT_FOUND,
                 "\"head_dim\" cannot be overridden; flashinfer_backend, max_segments");
}

static void workspaces_by_the_environment(void **state)
{
    (void)state;
    mstar_ragged_manager_desc desc;
    ragged_desc(MSTAR_RAGGED_SELF, &desc);
    size_t needed = made_of(&desc).workspace_bytes;
    assert_true(needed > 0);
    assert_int_equal(setenv("MSTAR_WORKSPACE_BUFFER_MB", "64", 1), 0);
    assert_int_equal(made_of(&desc).workspace_bytes, (size_t)64 << 20);
    assert_int_equal(setenv("MSTAR_WORKSPACE_BUFFER_MB", "0", 1), 0);
    CHECK_INVALID(create(&desc), "MSTAR_WORKSPACE_BUFFER_MB is 0, which is 0 bytes; attention");
    assert_int_equal(setenv("MSTAR_WORKSPACE_BUFFER_MB", "much", 1), 0);
    CHECK_INVALID(create(&desc), "MSTAR_WORKSPACE_BUFFER_MB is \"much\"");
    assert_int_equal(unsetenv("MSTAR_WORKSPACE_BUFFER_MB"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_and_ceilings),
        cmocka_unit_test(heads_are_sharded),
        cmocka_unit_test(bad_descs),
        cmocka_unit_test(overrides),
        cmocka_unit_test(workspaces_by_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
