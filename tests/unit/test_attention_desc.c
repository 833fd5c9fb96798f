/*
 * test_attention_desc.c - what a wrapper is made from and tells about itself: padded head dims,
 * defaults, struct sizes, every refused field with its text, queries.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_attn.h"
#include "support_check.h"

static mstar_device *device;

static int open_devices(void **state)
{
    (void)state;
    return mstar_device_open("cpu", NULL, &device) != MSTAR_OK;
}

static int close_devices(void **state)
{
    (void)state;
    return mstar_device_close(device) != MSTAR_OK;
}

static void padded_head_dims(void **state)
{
    static const int32_t vectors[][2] = {
        {1, 64},    {32, 64},   {64, 64},   {65, 128},  {72, 128},      {80, 128}, {96, 128},
        {112, 128}, {128, 128}, {129, 256}, {192, 256}, {256, 256},     {0, 64},   {-1, 64},
        {-300, 64}, {63, 64},   {127, 128}, {255, 256}, {INT32_MIN, 64}};
    int32_t padded = 7;
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        attn_must(mstar_padded_head_dim(vectors[i][0], &padded));
        assert_int_equal(padded, vectors[i][1]);
    }
    padded = 7;
    attn_refused(mstar_padded_head_dim(257, &padded), MSTAR_INVALID_ARGUMENT, "head_dim is 257",
                 "256");
    attn_refused(mstar_padded_head_dim(INT32_MAX, &padded), MSTAR_INVALID_ARGUMENT, "2147483647",
                 "256");
    assert_int_equal(padded, 7);
    attn_refused(mstar_padded_head_dim(64, NULL), MSTAR_INVALID_ARGUMENT, "padded", "NULL");
}

static void defaults_of_the_desc(void **state)
{
    void (*const inits[])(mstar_ragged_prefill_desc *) = {mstar_ragged_prefill_desc_init,
                                                          mstar_ragged_cross_prefill_desc_init,
                                                          mstar_prefixed_prefill_desc_init};
    (void)state;
    for (int i = 0; i < 3; i++) {
        mstar_ragged_prefill_desc desc;
        memset(&desc, 0x77, sizeof desc);
        inits[i](&desc);
        assert_int_equal(desc.struct_size, sizeof desc);
        assert_int_equal(desc.num_qo_heads, 0);
        assert_int_equal(desc.num_kv_heads, 0);
        assert_int_equal(desc.head_dim, 0);
        assert_int_equal(desc.max_num_segments, -1);
        assert_int_equal(desc.max_total_tokens, -1);
        assert_int_equal(desc.max_total_kv_tokens, -1);
        assert_int_equal(desc.accelerator_graph, 0);
        assert_int_equal(desc.q_data_type, MSTAR_DTYPE_BF16);
        assert_true(isnan(desc.sm_scale));
        assert_int_equal(desc.kv_layout, MSTAR_KV_NHD);
        assert_int_equal(desc.return_lse, 0);
        assert_int_equal(desc.window_left, -1);
        assert_int_equal(desc.window_right, -1);
        assert_null(desc.backend);
        assert_int_equal(desc.value_head_dim, -1);
        assert_int_equal(desc.num_sinks, 0);
        assert_true(desc.logits_soft_cap >= 0.0 && desc.logits_soft_cap <= 0.0);
        assert_true(isnan(desc.k_scale));
        assert_true(isnan(desc.v_scale));
        inits[i](NULL); /* tolerated */
    }
}

/* The query and create refuse alike, and nothing is made. */
static void refuse_desc(attn_kind kind, const mstar_ragged_prefill_desc *desc, mstar_status want,
                        const char *a, const char *b)
{
    size_t bytes = 99;
    attn_wrapper wrapper;
    uint64_t live = check_live_allocations();
    attn_refused(attn_workspace_query(device, kind, desc, &bytes), want, a, b);
    attn_refused(attn_create(device, kind, desc, NULL, 0, &wrapper), want, a, b);
    assert_null(wrapper.object);
    assert_int_equal(bytes, 99);
    assert_int_equal(check_live_allocations(), live);
}

static void bad_descs(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        attn_kind kind = (attn_kind)i;
        mstar_ragged_prefill_desc good;
        mstar_ragged_prefill_desc bad;
        attn_small_desc(&good);
#define REFUSE(field, value, status, a, b)             \
    do {                                               \
        bad = good;                                    \
        bad.field = value;                             \
        refuse_desc(kind, &bad, MSTAR_##status, a, b); \
    } while (0)
        REFUSE(num_qo_heads, 0, INVALID_ARGUMENT, "num_qo_heads is 0", "from 1 to 4096");
        REFUSE(num_qo_heads, -4, INVALID_ARGUMENT, "num_qo_heads is -4", "from 1 to 4096");
        REFUSE(num_qo_heads, 4097, INVALID_ARGUMENT, "num_qo_heads is 4097", "from 1 to 4096");
        REFUSE(num_kv_heads, 0, INVALID_ARGUMENT, "num_kv_heads is 0", "from 1 to 4");
        REFUSE(num_kv_heads, 3, INVALID_ARGUMENT, "num_kv_heads is 3", "4");
        REFUSE(num_kv_heads, 8, INVALID_ARGUMENT, "num_kv_heads is 8", "from 1 to 4");
        REFUSE(num_qo_heads, 33, INVALID_ARGUMENT, "num_kv_heads is 2", "33");
        REFUSE(head_dim, 0, INVALID_ARGUMENT, "head_dim is 0", "from 1 to 256");
        REFUSE(head_dim, 257, INVALID_ARGUMENT, "head_dim is 257", "from 1 to 256");
        REFUSE(head_dim, -1, INVALID_ARGUMENT, "head_dim is -1", "from 1 to 256");
        REFUSE(accelerator_graph, 2, INVALID_ARGUMENT, "accelerator_graph is 2", "from 0 to 1");
        REFUSE(return_lse, -1, INVALID_ARGUMENT, "return_lse is -1", "from 0 to 1");
        REFUSE(q_data_type, MSTAR_DTYPE_F64, INVALID_ARGUMENT, "q_data_type is f64", "bf16, f16");
        REFUSE(q_data_type, (mstar_dtype)99, INVALID_ARGUMENT, "q_data_type is unknown (99)",
               "bf16, f16");
        REFUSE(q_data_type, MSTAR_DTYPE_F8_E4M3, NOT_SUPPORTED, "q_data_type is f8_e4m3",
               "reserved");
        REFUSE(q_data_type, MSTAR_DTYPE_F8_E5M2, NOT_SUPPORTED, "q_data_type is f8_e5m2",
               "reserved");
        REFUSE(sm_scale, (double)INFINITY, INVALID_ARGUMENT, "sm_scale is inf", "finite");
        REFUSE(sm_scale, -(double)INFINITY, INVALID_ARGUMENT, "sm_scale is -inf", "finite");
        REFUSE(sm_scale, 1e39, INVALID_ARGUMENT, "sm_scale is 1e+39", "at most 2^127");
        REFUSE(sm_scale, -0x1.000002p127, INVALID_ARGUMENT, "sm_scale is -1.70141e+38",
               "at most 2^127 = 1.70141e+38");
        REFUSE(kv_layout, (mstar_kv_layout)2, INVALID_ARGUMENT, "kv_layout is 2", "from 0 to 1");
        REFUSE(window_left, -2, INVALID_ARGUMENT, "window_left is -2", "from -1");
        REFUSE(window_right, INT64_MIN, INVALID_ARGUMENT, "window_right is -9223372036854775808",
               "from -1");
        REFUSE(backend, "fa2", NOT_SUPPORTED, "backend is \"fa2\"", "GPU only");
        REFUSE(backend, "fa3", NOT_SUPPORTED, "backend is \"fa3\"", "auto, native and reference");
        REFUSE(backend, "flashinfer", INVALID_ARGUMENT, "backend is \"flashinfer\"",
               "auto, native, reference, fa2 and fa3");
        REFUSE(backend, "", INVALID_ARGUMENT, "backend is \"\"", "auto, native");
        REFUSE(backend, "AUTO", INVALID_ARGUMENT, "backend is \"AUTO\"", "auto, native");
        REFUSE(value_head_dim, 16, NOT_SUPPORTED, "value_head_dim is 16", "reserved");
        REFUSE(num_sinks, 1, NOT_SUPPORTED, "num_sinks is 1", "reserved");
        REFUSE(logits_soft_cap, 30.0, NOT_SUPPORTED, "logits_soft_cap is 30", "reserved");
        REFUSE(logits_soft_cap, (double)NAN, NOT_SUPPORTED, "logits_soft_cap is", "reserved");
        REFUSE(k_scale, 1.0, NOT_SUPPORTED, "k_scale is 1", "reserved");
        REFUSE(v_scale, 0.0, NOT_SUPPORTED, "v_scale is 0", "reserved");
        REFUSE(struct_size, 0, INVALID_ARGUMENT, "desc.struct_size is 0", "at least 4");
        REFUSE(struct_size, 3, INVALID_ARGUMENT, "desc.struct_size is 3", "at least 4");
        /* graph mode's ceilings */
        attn_graph_desc(&good);
        REFUSE(max_num_segments, -1, INVALID_ARGUMENT, "max_num_segments is -1", "graph mode");
        REFUSE(max_num_segments, 0, INVALID_ARGUMENT, "max_num_segments is 0", "from 1");
        REFUSE(max_num_segments, -2, INVALID_ARGUMENT, "max_num_segments is -2", "from 1");
        REFUSE(max_num_segments, INT32_MAX, INVALID_ARGUMENT, "max_num_segments is 2147483647",
               "to 2147483646");
        REFUSE(max_total_tokens, -1, INVALID_ARGUMENT, "max_total_tokens is -1", "graph mode");
        REFUSE(max_total_tokens, -2, INVALID_ARGUMENT, "max_total_tokens is -2", "from 0");
        REFUSE(max_total_tokens, INT64_MAX, INVALID_ARGUMENT,
               "max_total_tokens is 9223372036854775807", "to 2147483647");
        if (kind != ATTN_SELF) {
            REFUSE(max_total_kv_tokens, -2, INVALID_ARGUMENT, "max_total_kv_tokens is -2",
                   "from 0");
            REFUSE(max_total_kv_tokens, (int64_t)INT32_MAX + 1, INVALID_ARGUMENT,
                   "max_total_kv_tokens is 2147483648", "to 2147483647");
        }
#undef REFUSE
    }
}

static void null_arguments(void **state)
{
    mstar_ragged_prefill_desc desc;
    mstar_ragged_prefill *wrapper = NULL;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    size_t bytes;
    (void)state;
    attn_small_desc(&desc);
    attn_refused(mstar_ragged_prefill_create(NULL, &desc, NULL, 0, &wrapper),
                 MSTAR_INVALID_ARGUMENT, "device", "NULL");
    attn_refused(mstar_ragged_prefill_create(device, NULL, NULL, 0, &wrapper),
                 MSTAR_INVALID_ARGUMENT, "desc", "NULL");
    attn_refused(mstar_ragged_prefill_create(device, &desc, NULL, 0, NULL), MSTAR_INVALID_ARGUMENT,
                 "wrapper", "NULL");
    attn_refused(mstar_ragged_cross_prefill_create(device, &desc, NULL, 0, NULL),
                 MSTAR_INVALID_ARGUMENT, "wrapper", "NULL");
    attn_refused(mstar_prefixed_prefill_create(device, &desc, NULL, 0, NULL),
                 MSTAR_INVALID_ARGUMENT, "wrapper", "NULL");
    attn_refused(mstar_ragged_prefill_workspace_query(NULL, &desc, &bytes), MSTAR_INVALID_ARGUMENT,
                 "device", "NULL");
    attn_refused(mstar_ragged_prefill_workspace_query(device, &desc, NULL), MSTAR_INVALID_ARGUMENT,
                 "workspace_bytes", "NULL");
    attn_refused(mstar_ragged_prefill_plan(NULL, NULL, NULL, 0, 0), MSTAR_INVALID_ARGUMENT,
                 "wrapper", "NULL");
    attn_refused(mstar_ragged_cross_prefill_plan(NULL, NULL, NULL, 0, NULL, 0),
                 MSTAR_INVALID_ARGUMENT, "wrapper", "NULL");
    attn_refused(mstar_prefixed_prefill_plan(NULL, NULL, NULL, 0, NULL, 0, 0),
                 MSTAR_INVALID_ARGUMENT, "wrapper", "NULL");
    attn_refused(mstar_ragged_prefill_run(NULL, NULL, NULL, NULL, NULL, NULL, NULL),
                 MSTAR_INVALID_ARGUMENT, "wrapper", "NULL");
    attn_refused(mstar_ragged_prefill_query(NULL, &info), MSTAR_INVALID_ARGUMENT, "wrapper",
                 "NULL");
    attn_must(mstar_ragged_prefill_create(device, &desc, NULL, 0, &wrapper));
    attn_refused(mstar_ragged_prefill_query(wrapper, NULL), MSTAR_INVALID_ARGUMENT, "info", "NULL");
    mstar_ragged_prefill_destroy(wrapper);
    mstar_ragged_prefill_destroy(NULL);
    mstar_ragged_cross_prefill_destroy(NULL);
    mstar_prefixed_prefill_destroy(NULL);
}

/* Fields beyond the caller's struct_size take their defaults, whatever stands there; bytes beyond
 * ours are ignored. */
static void older_and_newer_descs(void **state)
{
    static const size_t sizes[] = {offsetof(mstar_ragged_prefill_desc, max_num_segments),
                                   offsetof(mstar_ragged_prefill_desc, accelerator_graph),
                                   offsetof(mstar_ragged_prefill_desc, sm_scale),
                                   offsetof(mstar_ragged_prefill_desc, window_left),
                                   offsetof(mstar_ragged_prefill_desc, value_head_dim)};
    attn_wrapper wrapper;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        mstar_ragged_prefill_desc desc;
        attn_small_desc(&desc);
        memset((unsigned char *)&desc + sizes[i], 0x77, sizeof desc - sizes[i]);
        desc.struct_size = (uint32_t)sizes[i];
        attn_must(attn_create(device, ATTN_SELF, &desc, NULL, 0, &wrapper));
        attn_must(attn_query(&wrapper, &info));
        assert_int_equal(info.accelerator_graph, 0);
        assert_int_equal(info.head_dim, 16);
        assert_true(info.sm_scale >= 0.25 && info.sm_scale <= 0.25);
        assert_int_equal(info.q_data_type,
                         sizes[i] > offsetof(mstar_ragged_prefill_desc, q_data_type)
                             ? MSTAR_DTYPE_F32
                             : MSTAR_DTYPE_BF16);
        attn_destroy(&wrapper);
    }
    struct {
        mstar_ragged_prefill_desc desc;
        unsigned char newer[64];
    } larger;
    memset(&larger, 0x77, sizeof larger);
    attn_small_desc(&larger.desc);
    larger.desc.struct_size = (uint32_t)sizeof larger;
    attn_must(attn_create(device, ATTN_SELF, &larger.desc, NULL, 0, &wrapper));
    attn_destroy(&wrapper);
}

static void info_never_outgrows_the_caller(void **state)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_ragged_prefill_info full = {.struct_size = sizeof full};
    (void)state;
    attn_graph_desc(&desc);
    attn_must(attn_create(device, ATTN_PREFIXED, &desc, NULL, 0, &wrapper));
    attn_must(attn_query(&wrapper, &full));
    for (uint32_t size = 4; size <= sizeof full; size += 4) {
        mstar_ragged_prefill_info info;
        memset(&info, 0x77, sizeof info);
        info.struct_size = size;
        attn_must(attn_query(&wrapper, &info));
        assert_int_equal(info.struct_size, size);
        assert_memory_equal((unsigned char *)&info + 4, (unsigned char *)&full + 4, size - 4);
        for (size_t i = size; i < sizeof info; i++)
            assert_int_equal(((unsigned char *)&info)[i], 0x77);
    }
    mstar_ragged_prefill_info none = {.struct_size = 0};
    attn_refused(attn_query(&wrapper, &none), MSTAR_INVALID_ARGUMENT, "info.struct_size is 0",
                 "at least 4");
    attn_destroy(&wrapper);
}

/* ---- what a query says ----------------------------------------------------------------------- */

static void queries(void **state)
{
    static const int32_t q[] = {0, 10, 30};
    static const int32_t kv[] = {0, 3, 21};
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int graph = 0; graph <= 1; graph++) {
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            mstar_ragged_prefill_info info = {.struct_size = sizeof info};
            size_t bytes = 0;
            attn_small_desc(&desc);
            desc.head_dim = 72;
            desc.kv_layout = MSTAR_KV_HND;
            desc.accelerator_graph = graph;
            desc.max_num_segments = 4;
            desc.max_total_tokens = 30;
            desc.max_total_kv_tokens = 25;
            desc.backend = kind == 0 ? "auto" : "native";
            attn_must(attn_workspace_query(device, (attn_kind)kind, &desc, &bytes));
            attn_must(attn_create(device, (attn_kind)kind, &desc, NULL, 0, &wrapper));
            attn_must(attn_query(&wrapper, &info));
            assert_int_equal(info.num_qo_heads, 4);
            assert_int_equal(info.num_kv_heads, 2);
            assert_int_equal(info.head_dim, 72);
            assert_int_equal(info.padded_head_dim, 128);
            assert_int_equal(info.accelerator_graph, graph);
            assert_true(fabs(info.sm_scale - 1.0 / sqrt(72.0)) <= 1e-16);
            assert_int_equal(info.q_data_type, MSTAR_DTYPE_F32);
            assert_int_equal(info.kv_layout, MSTAR_KV_HND);
            assert_int_equal(info.max_num_segments, graph ? 4 : -1);
            assert_int_equal(info.max_total_tokens, graph ? 30 : -1);
            assert_int_equal(info.max_total_kv_tokens, !graph ? -1 : kind == 0 ? 30 : 25);
            assert_int_equal(info.num_segments, 0); /* priming is not a plan of the caller's */
            assert_int_equal(info.num_tokens, 0);
            assert_int_equal(info.num_kv_tokens, 0);
            assert_int_equal(info.num_work_items, 0);
            assert_int_equal(info.plans, 0);
            assert_int_equal(info.padded_copies, 0);
            assert_int_equal(info.workspace_bytes, bytes);
            assert_true((info.plan_bytes > 0) == (graph == 1));
            assert_true(info.kernel != NULL && info.kernel[0] != '\0');
            assert_true(info.kernel_reason != NULL && info.kernel_reason[0] != '\0');
            assert_true((info.q_offsets != NULL) == (graph == 1));
            assert_true((info.kv_offsets != NULL) == (graph == 1));
            attn_must(attn_plan(&wrapper, NULL, q, 2, kv, 2, 0));
            attn_must(attn_query(&wrapper, &info));
            assert_int_equal(info.num_segments, 2);
            assert_int_equal(info.num_tokens, 30);
            assert_int_equal(info.num_kv_tokens, kind == 0 ? 30 : 21);
            assert_true(info.num_work_items >= 2);
            assert_int_equal(info.plans, 1);
            assert_true(info.plan_bytes > 0);
            attn_destroy(&wrapper);
        }
}

static void a_device_with_wrappers_stays_open(void **state)
{
    mstar_ragged_prefill_desc desc;
    mstar_device *own = NULL;
    attn_wrapper wrapper;
    (void)state;
    attn_small_desc(&desc);
    attn_must(mstar_device_open("cpu", NULL, &own));
    attn_must(attn_create(own, ATTN_CROSS, &desc, NULL, 0, &wrapper));
    assert_int_equal(mstar_device_close(own), MSTAR_BUSY);
    attn_destroy(&wrapper);
    attn_must(mstar_device_close(own));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padded_head_dims),
        cmocka_unit_test(defaults_of_the_desc),
        cmocka_unit_test(bad_descs),
        cmocka_unit_test(null_arguments),
        cmocka_unit_test(older_and_newer_descs),
        cmocka_unit_test(info_never_outgrows_the_caller),
        cmocka_unit_test(queries),
        cmocka_unit_test(a_device_with_wrappers_stays_open),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
