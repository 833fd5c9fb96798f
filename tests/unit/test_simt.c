/* test_simt.c - the emulated GPU itself: what it computes, and the faults of kernels that it
 * finds. */
#include "mock_simt.h"
#include "support_check.h"

static float results[96], numbers[96];
static bool barrier;

static int number_of(void)
{
    return (int)(threadIdx.x + blockIdx.x * blockDim.x);
}

/* Every thread gets the sum over its warp, then the block adds its warps. */
static void sum(const mst_cuda_row_args args)
{
    __shared__ float parts[2];
    (void)args;
    float y = numbers[number_of()];
    for (int i = 16; i > 0; i /= 2)
        y = y + __shfl_xor_sync(0xffffffffU, y, i);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = y;
    if (barrier)
        __syncthreads();
    results[number_of()] = parts[0] + parts[1];
}

static void shuffle_of_half(const mst_cuda_row_args args)
{
    (void)args;
    if (threadIdx.x % 32 < 16)
        results[number_of()] = (float)__shfl_xor_sync(0xffffffffU, 1.0, 16);
}

static void shuffle_of_another_lane(const mst_cuda_row_args args)
{
    (void)args;
    results[number_of()] = __shfl_xor_sync(0xffffffffU, 1.0F, threadIdx.x == 3 ? 1 : 2);
}

static void shuffle_of_some(const mst_cuda_row_args args)
{
    (void)args;
    results[number_of()] = __shfl_xor_sync(0xffffU, 1.0F, 1);
}

static void barrier_of_some(const mst_cuda_row_args args)
{
    (void)args;
    if (threadIdx.x != 5)
        __syncthreads();
}

static void sums_over_blocks(void **state)
{
    (void)state;
    const mst_cuda_row_args args = {.width = 1};
    for (int i = 0; i < 64; i++)
        numbers[i] = (float)(i * i);
    barrier = true;
    assert_null(simt_launch(sum, &args, 1, 1, 64));
    for (int i = 0; i < 64; i++)
        assert_true(results[i] == 85344.0F);                    /* 63 * 64 * 127 / 6 */
    assert_null(simt_launch(shuffle_of_half, &args, 0, 1, 64)); /* no block */
}

/* Without the barrier some thread reads a sum that is not there yet. */
static void missing_barriers_show(void **state)
{
    (void)state;
    const mst_cuda_row_args args = {.width = 1};
    int wrong = 0;
    barrier = false;
    assert_null(simt_launch(sum, &args, 1, 1, 64));
    for (int i = 0; i < 64; i++)
        wrong += isnan(results[i]) ? 1 : 0;
    assert_true(wrong > 0);
}

static void faults_are_named(void **state)
{
    (void)state;
    const mst_cuda_row_args args = {.width = 1};
    assert_string_equal(simt_launch(shuffle_of_half, &args, 1, 1, 32),
                        "a lane is missing at a shuffle");
    assert_string_equal(simt_launch(shuffle_of_another_lane, &args, 1, 1, 32),
                        "a lane is missing at a shuffle");
    assert_string_equal(simt_launch(shuffle_of_some, &args, 1, 1, 32),
                        "a shuffle does not name all lanes");
    assert_string_equal(simt_launch(barrier_of_some, &args, 1, 1, 64),
                        "threads wait for one another");
    assert_non_null(simt_launch(sum, &args, 1, 1, 33));
    assert_non_null(simt_launch(sum, &args, 1, 1, 2048));
    assert_null(simt_kernel_find("mst_no_such_kernel"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_blocks),
        cmocka_unit_test(missing_barriers_show),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
