/*
 * test_cuda_grid.c - how many blocks a launch of attention has, and what shares a multiprocessor.
 * Over the mock driver.
 */
#include "support_check.h"
#include "support_cuda_attn.h"

/* Graph mode's grid, of one segment of so many tokens. */
static unsigned grid_at(int64_t tokens, int32_t heads)
{
    attn_problem problem;
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    attn_data data;
    cuda_attn_mirrors m;
    attn_problem_init(&problem);
    problem.kind = ATTN_SELF;
    problem.dtype = MSTAR_DTYPE_BF16;
    problem.head_dim = 72;
    problem.num_qo_heads = problem.num_kv_heads = heads;
    assert_true(attn_problem_add(&problem, tokens, tokens));
    attn_problem_desc(&problem, &desc);
    desc.accelerator_graph = 1;
    desc.max_num_segments = 1;
    desc.max_total_tokens = tokens;
    attn_data_make(&problem, &data);
    cuda_attn_mirrors_make(&data, &m);
    CHECK_OK(attn_create(gpu.device, problem.kind, &desc, NULL, 0, &wrapper));
    cuda_attn_run_wrapper(&wrapper, &data, &m);
    attn_destroy(&wrapper);
    cuda_attn_mirrors_free(&m);
    attn_data_free(&data);
    return gpu.mock->grid;
}

/* As many blocks as the ceilings can keep busy, and where they are few, none that shares a
 * multiprocessor with another. */
static void the_grid_of_a_plan_at_its_ceilings(void **state)
{
    (void)state;
    assert_int_equal(grid_at(256, 16), 64);
    assert_int_equal(gpu.mock->shared_bytes, 116 << 10);
    assert_int_equal(grid_at(256, 48), 192);
    assert_true(gpu.mock->shared_bytes < 116 << 10);
    assert_int_equal(grid_at(1535, 1), 24);
    assert_true(grid_at(1536, 1) > 24); /* its keys may be shared out */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_grid_of_a_plan_at_its_ceilings, cuda_attn_set_up,
                                        cuda_attn_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
