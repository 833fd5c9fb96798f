/*
 * test_cuda_plans.c - plans of the CUDA backend's attention: when they are refused, what is left of
 * one that failed, which kernel they get. Over a mock driver, or on a card with
 * `test_cuda_plans cuda:0`.
 */
#include <string.h>

#include "support_check.h"
#include "support_cuda_attn.h"

static void a_capture_refuses_a_plan(void **state)
{
    (void)state;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_graph *graph;
    const int32_t offsets[] = {0, 5};
    attn_graph_desc(&desc);
    CHECK_OK(attn_create(gpu.device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_OK(mstar_graph_capture_begin(gpu.stream));
    CHECK_FAILED(attn_plan(&wrapper, gpu.stream, offsets, 1, NULL, 0, 0), MSTAR_OUT_OF_ORDER,
                 "plan");
    CHECK_FAILED(mstar_graph_capture_end(gpu.stream, &graph), MSTAR_OUT_OF_ORDER, "plan");
    CHECK_OK(attn_plan(&wrapper, gpu.stream, offsets, 1, NULL, 0, 0));
    attn_destroy(&wrapper);
}

/* A capture that the library has no part in: the next plan may change what was captured. */
static void a_callers_capture_refuses_an_eager_run(void **state)
{
    (void)state;
    if (gpu.card != NULL)
        return;
    attn_problem problem;
    attn_data data;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    cuda_attn_mirrors m;
    attn_problem_init(&problem);
    problem.dtype = MSTAR_DTYPE_BF16;
    assert_true(attn_problem_add(&problem, 5, 5));
    attn_data_make(&problem, &data);
    attn_problem_desc(&problem, &desc);
    cuda_attn_mirrors_make(&data, &m);
    CHECK_OK(attn_create(gpu.device, problem.kind, &desc, NULL, 0, &wrapper));
    cuda_attn_plan_wrapper(&wrapper, &problem);
    int64_t launches = gpu.mock->launches;
    gpu.mock->capturing = mstar_stream_get_native(gpu.stream);
    CHECK_FAILED(attn_run(&wrapper, gpu.stream, &m.q.tensor, &m.k.tensor, &m.v.tensor,
                          &m.out.tensor, &m.lse.tensor),
                 MSTAR_OUT_OF_ORDER, "graph mode");
    gpu.mock->capturing = NULL;
    assert_int_equal(gpu.mock->launches, launches);
    CHECK_OK(attn_run(&wrapper, gpu.stream, &m.q.tensor, &m.k.tensor, &m.v.tensor, &m.out.tensor,
                      &m.lse.tensor));
    attn_destroy(&wrapper);
    cuda_attn_mirrors_free(&m);
    attn_data_free(&data);
}

/* Everything that create and plan ask of the driver, failed once: an error, nothing lost, and the
 * same calls are fine afterwards. */
static void survives_failed_calls(void **state)
{
    (void)state;
    if (gpu.card != NULL)
        return;
    const mock_call calls[] = {MOCK_memory_alloc,       MOCK_memory_set,   MOCK_module_load,
                               MOCK_module_function,    MOCK_function_set, MOCK_function_occupancy,
                               MOCK_host_alloc,         MOCK_event_create, MOCK_stream_capturing,
                               MOCK_stream_synchronize, MOCK_context_push};
    for (int graph = 0; graph < 2; graph++) {
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
            mstar_device *fresh;
            mstar_stream *own;
            mstar_ragged_prefill_desc desc;
            attn_wrapper wrapper;
            const int32_t offsets[] = {0, 5, 9};
            CHECK_OK(mock_cuda_open(&fresh));
            CHECK_OK(mstar_stream_create(fresh, -1, &own));
            int live = gpu.mock->live;
            attn_small_desc(&desc);
            desc.q_data_type = MSTAR_DTYPE_BF16;
            if (graph) {
                desc.accelerator_graph = 1;
                desc.max_num_segments = 4;
                desc.max_total_tokens = 30;
            }
            gpu.mock->fail_call = calls[i];
            gpu.mock->fail_after = 1;
            gpu.mock->fail_result = 999;
            mstar_status status = attn_create(fresh, ATTN_SELF, &desc, NULL, 0, &wrapper);
            if (status == MSTAR_OK) {
                status = attn_plan(&wrapper, own, offsets, 2, NULL, 0, 0);
                if (status != MSTAR_OK) {
                    assert_int_equal(status, MSTAR_DEVICE_FAILED);
                    CHECK_OK(attn_plan(&wrapper, own, offsets, 2, NULL, 0, 0));
                }
                attn_destroy(&wrapper);
            }
            gpu.mock->fail_after = 0;
            CHECK_OK(attn_create(fresh, ATTN_SELF, &desc, NULL, 0, &wrapper));
            CHECK_OK(attn_plan(&wrapper, own, offsets, 2, NULL, 0, 0));
            attn_destroy(&wrapper);
            (void)live;
            mstar_stream_destroy(own);
            mock_cuda_close(fresh);
        }
    }
}

/* A plan that needs more memory than any before, and fails then: the former is in force. */
static void a_failed_larger_plan_leaves_the_former(void **state)
{
    (void)state;
    if (gpu.card != NULL)
        return;
    attn_problem problem;
    attn_data data;
    attn_reference reference;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    cuda_attn_mirrors m;
    int32_t many[301];
    for (int32_t i = 0; i <= 300; i++)
        many[i] = 200 * i;
    attn_problem_init(&problem);
    problem.dtype = MSTAR_DTYPE_BF16;
    assert_true(attn_problem_add(&problem, 5, 5));
    assert_true(attn_problem_add(&problem, 70, 70));
    attn_data_make(&problem, &data);
    attn_reference_make(&problem, &data, &reference);
    attn_problem_desc(&problem, &desc);
    cuda_attn_mirrors_make(&data, &m);
    CHECK_OK(attn_create(gpu.device, problem.kind, &desc, NULL, 0, &wrapper));
    cuda_attn_plan_wrapper(&wrapper, &problem);
    gpu.mock->fail_call = MOCK_host_alloc;
    gpu.mock->fail_after = 1;
    gpu.mock->fail_result = 2;
    CHECK_FAILED(attn_plan(&wrapper, gpu.stream, many, 300, NULL, 0, 0), MSTAR_OUT_OF_MEMORY, "");
    assert_int_equal(gpu.mock->fail_after, 0);
    cuda_attn_run_wrapper(&wrapper, &data, &m);
    cuda_attn_mirror_fetch(&m.out, &data.out);
    cuda_attn_mirror_fetch(&m.lse, &data.lse);
    assert_true(attn_reference_check(&problem, &data, &reference, "sm80"));
    CHECK_OK(attn_plan(&wrapper, gpu.stream, many, 300, NULL, 0, 0));
    attn_destroy(&wrapper);
    cuda_attn_mirrors_free(&m);
    attn_reference_free(&reference);
    attn_data_free(&data);
}

/* What a plan of one segment repeated has got, eager or with these as ceilings. */
static const char *kernel_of(int32_t heads, int32_t kv_heads, int32_t dim, int32_t length,
                             int32_t times, bool graph, const char **reason)
{
    attn_problem problem;
    attn_wrapper wrapper;
    mstar_ragged_prefill_desc desc;
    attn_problem_init(&problem);
    problem.dtype = MSTAR_DTYPE_BF16;
    problem.num_qo_heads = heads;
    problem.num_kv_heads = kv_heads;
    problem.head_dim = dim;
    for (int32_t i = 0; i < times; i++)
        assert_true(attn_problem_add(&problem, length, length));
    attn_problem_desc(&problem, &desc);
    if (graph) {
        desc.accelerator_graph = 1;
        desc.max_num_segments = times;
        desc.max_total_tokens = (int64_t)length * times;
    }
    CHECK_OK(attn_create(gpu.device, problem.kind, &desc, NULL, 0, &wrapper));
    cuda_attn_plan_wrapper(&wrapper, &problem);
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    CHECK_OK(attn_query(&wrapper, &info));
    attn_destroy(&wrapper);
    *reason = info.kernel_reason;
    return info.kernel; /* static */
}

static void picks_the_kernel_for_the_layout(void **state)
{
    (void)state;
    const struct {
        int32_t heads, kv_heads, dim, length, times;
        const char *any, *hopper;
    } cases[] = {
        {16, 16, 128, 1024, 8, "hd128_m2n64s2_sm80", "hd128_c1n64s1_sm90"},
        {16, 16, 128, 16384, 1, "hd128_m2n64s2_sm80", "hd128_m1n64s1_sm90"},
        {32, 32, 128, 64, 9, "hd128_m1n64s1_sm80", "hd128_c1n64s1_sm90"},
        {32, 8, 128, 240, 1, "hd128_m1n64s2_sm80", "hd128_m1n64s2_sm90"},
        {16, 16, 72, 729, 8, "hd80_m2n64s2_sm80", "hd80_g2n64s4_sm90"},
        {16, 16, 76, 729, 8, "hd80_m2n64s2_sm80", "hd80_m2n64s2_sm80"},
        {16, 16, 80, 64, 90, "hd80_m1n64s2_sm80", "hd80_m1n64s2_sm80"},
        {12, 12, 64, 90, 90, "hd64_m1n64s2_sm80", "hd64_m1n64s2_sm90"},
        {12, 12, 64, 16, 90, "hd64_m1n64s2_sm80", "hd64_m1n64s2_sm80"},
        {12, 12, 64, 40, 90, "hd64_m1n64s2_sm80", "hd64_m1n64s2_sm90"},
        {16, 16, 128, 32, 40, "hd128_m1n64s1_sm80", "hd128_m1n64s1_sm80"},
        {8, 1, 250, 2, 400, "hd256_m1n32s1_sm80", "hd256_m1n64s1_sm90"},
        {8, 1, 250, 50, 4, "hd256_m1n32s1_sm80", "hd256_m1n64s1_sm90"},
        {8, 1, 256, 50, 16, "hd256_m1n32s1_sm80", "hd256_c1n64s1_sm90"},
        {8, 1, 256, 50, 4, "hd256_m1n32s1_sm80", "hd256_c1n64s2_sm90"},
    };
    const int *major = &mst_cuda_of(gpu.device)->major;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int old = 0; old < 2; old++)
            for (int graph = 0; graph < 2; graph++) {
                cuda_attn_be_a_card_of(old ? 8 : 9);
                const char *reason;
                const char *symbol = kernel_of(cases[i].heads, cases[i].kv_heads, cases[i].dim,
                                               cases[i].length, cases[i].times, graph, &reason);
                assert_int_equal(strncmp(symbol, "mst_attn_bf16_", 14), 0);
                assert_string_equal(symbol + 14, *major == 9 ? cases[i].hopper : cases[i].any);
                assert_int_equal(strncmp(reason, "wgmma", 5) == 0, strstr(symbol, "sm90") != NULL);
            }
}

static void backends_by_name(void **state)
{
    (void)state;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    mstar_ragged_prefill_info info = {.struct_size = sizeof info};
    attn_small_desc(&desc);
    desc.backend = "fa2";
    CHECK_FAILED(attn_create(gpu.device, ATTN_SELF, &desc, NULL, 0, &wrapper), MSTAR_NOT_SUPPORTED,
                 "f32");
    desc.q_data_type = MSTAR_DTYPE_BF16;
    CHECK_OK(attn_create(gpu.device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_OK(attn_query(&wrapper, &info));
    assert_non_null(strstr(info.kernel, "bf16_hd16"));
    attn_destroy(&wrapper);
    desc.backend = "fa3";
    CHECK_FAILED(attn_create(gpu.device, ATTN_SELF, &desc, NULL, 0, &wrapper), MSTAR_NOT_SUPPORTED,
                 "wgmma");
    desc.head_dim = 80;
    CHECK_OK(attn_create(gpu.device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_OK(attn_query(&wrapper, &info));
    assert_non_null(strstr(info.kernel, "bf16_hd80_g2"));
    attn_destroy(&wrapper);
    desc.head_dim = 16;
    desc.backend = "reference";
    CHECK_OK(attn_create(gpu.device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_OK(attn_query(&wrapper, &info));
    assert_non_null(strstr(info.kernel, "reference"));
    attn_destroy(&wrapper);
    attn_small_desc(&desc);
    CHECK_OK(attn_create(gpu.device, ATTN_SELF, &desc, NULL, 0, &wrapper));
    CHECK_FAILED(mstar_ragged_prefill_plan(wrapper.object, NULL, NULL, 0, 0),
                 MSTAR_INVALID_ARGUMENT, "stream is NULL");
    attn_destroy(&wrapper);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_capture_refuses_a_plan, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(a_callers_capture_refuses_an_eager_run, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(survives_failed_calls, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(a_failed_larger_plan_leaves_the_former, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(picks_the_kernel_for_the_layout, cuda_attn_set_up,
                                        cuda_attn_tear_down),
        cmocka_unit_test_setup_teardown(backends_by_name, cuda_attn_set_up, cuda_attn_tear_down),
    };
    cuda_attn_arguments(argc, argv, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
