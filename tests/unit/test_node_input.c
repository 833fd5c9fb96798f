/* test_node_input.c - named tensors, and clones of node inputs that share nothing. */
#include "support_check.h"

#include <string.h>

#include "mstar/node.h"

static void test_list(void **state)
{
    (void)state;
    mstar_tensors list;
    mstar_tensors_init(&list);
    float values[6] = {0};
    mstar_tensor tensor = mstar_tensor_make(values, MSTAR_DTYPE_F32, 2, (int64_t[]){2, 3});
    char name[] = "pixels";
    CHECK_OK(mstar_tensors_add(&list, name, &tensor));
    name[0] = '?'; /* the name was copied */
    CHECK_OK(mstar_tensors_add(&list, NULL, &tensor));
    assert_int_equal(list.count, 2);
    assert_ptr_equal(mstar_tensors_find(&list, "pixels")->data, values);
    assert_string_equal(list.items[1].name, "x");
    assert_null(mstar_tensors_find(&list, "?ixels"));
    assert_null(mstar_tensors_find(&list, NULL));
    CHECK_INVALID(mstar_tensors_add(&list, "x", &tensor), "\"x\"");
    CHECK_INVALID(mstar_tensors_add(&list, "y", NULL), "y is NULL");
    CHECK_INVALID(mstar_tensors_add(NULL, "y", &tensor), "tensors is NULL");
    tensor.rank = -1;
    CHECK_INVALID(mstar_tensors_add(&list, "y", &tensor), "rank");
    tensor = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 1, (int64_t[]){7});
    CHECK_OK(mstar_tensors_add(&list, "shape", &tensor));
    assert_null(mstar_tensors_find(&list, "shape")->data);
    assert_int_equal(list.count, 3);
    mstar_tensors_release(&list);
    mstar_tensors_release(&list);
    mstar_tensors_release(NULL);
    assert_int_equal(check_live_allocations(), 0);
}

/* ---- clones ---------------------------------------------------------------------------------- */

static int live_users;

static void *clone_user(void *user)
{
    live_users++;
    return user;
}

static void release_user(void *user)
{
    assert_non_null(user);
    live_users--;
}

static void test_clone(void **state)
{
    (void)state;
    int32_t values[4][3] = {{0, 1, 2}, {10, 11, 12}, {20, 21, 22}, {30, 31, 32}};
    mstar_tensor whole = mstar_tensor_make(values, MSTAR_DTYPE_I32, 2, (int64_t[]){4, 3});
    mstar_tensor column, nothing = mstar_tensor_make(NULL, MSTAR_DTYPE_F32, 2, (int64_t[]){0, 5});
    CHECK_OK(mstar_tensor_slice(&whole, 1, 1, 2, &column));
    mstar_tensor scalar = mstar_tensor_make(&values[3][2], MSTAR_DTYPE_I32, 0, NULL);
    mstar_named_tensor tensors[3] = {{"column", column}, {"nothing", nothing}, {"scalar", scalar}};
    mstar_node_input input = {.input_seq_len = 5,
                              .tensors = tensors,
                              .num_tensors = 3,
                              .user = values,
                              .user_clone = clone_user,
                              .user_release = release_user};
    mstar_node_input clone;
    CHECK_OK(mstar_node_input_clone(&input, &clone));
    assert_int_equal(live_users, 1);
    memset(values, 0xff, sizeof values); /* the clone has memory of its own */
    assert_int_equal(clone.input_seq_len, 5);
    assert_int_equal(clone.num_tensors, 3);
    assert_string_equal(clone.tensors[0].name, "column");
    const mstar_tensor *copy = &clone.tensors[0].tensor;
    assert_int_equal(copy->strides[0], 2); /* compact */
    const int32_t want[8] = {1, 2, 11, 12, 21, 22, 31, 32};
    assert_memory_equal(copy->data, want, sizeof want);
    assert_int_equal(clone.tensors[1].tensor.shape[1], 5);
    assert_int_equal(*(int32_t *)clone.tensors[2].tensor.data, 32);
    mstar_node_input_release(&clone);
    assert_int_equal(live_users, 0);
    assert_null(clone.tensors);
    mstar_node_input_release(&clone);
    mstar_node_input_release(NULL);
    /* without user_clone the pointer is shared */
    input.user_clone = NULL;
    CHECK_INVALID(mstar_node_input_clone(&input, &clone), "user_release");
    input.user_release = NULL;
    CHECK_OK(mstar_node_input_clone(&input, &clone));
    assert_ptr_equal(clone.user, values);
    mstar_node_input_release(&clone);
    assert_int_equal(check_live_allocations(), 0);
}

static void *refuse_user(void *user)
{
    (void)user;
    return NULL;
}

static void test_clone_refused(void **state)
{
    (void)state;
    float value = 0;
    mstar_named_tensor tensor = {"t",
                                 mstar_tensor_make(&value, MSTAR_DTYPE_F32, 1, (int64_t[]){1})};
    mstar_node_input input = {.input_seq_len = -1, .tensors = &tensor, .num_tensors = 1}, clone;
    CHECK_INVALID(mstar_node_input_clone(&input, &clone), "input_seq_len is -1");
    input.input_seq_len = 0;
    CHECK_INVALID(mstar_node_input_clone(NULL, &clone), "input is NULL");
    CHECK_INVALID(mstar_node_input_clone(&input, NULL), "clone is NULL");
    tensor.tensor.device_kind = MSTAR_DEVICE_CUDA;
    CHECK_FAILED(mstar_node_input_clone(&input, &clone), MSTAR_NOT_SUPPORTED, "\"t\"");
    tensor.tensor.device_kind = MSTAR_DEVICE_CPU;
    tensor.tensor.data = NULL;
    CHECK_INVALID(mstar_node_input_clone(&input, &clone), "t");
    tensor.tensor.data = &value;
    input.num_tensors = -1;
    CHECK_INVALID(mstar_node_input_clone(&input, &clone), "num_tensors is -1");
    input.num_tensors = 1;
    input.tensors = NULL;
    CHECK_INVALID(mstar_node_input_clone(&input, &clone), "tensors is NULL");
    input.tensors = &tensor;
    input.user = &value;
    input.user_clone = refuse_user;
    CHECK_FAILED(mstar_node_input_clone(&input, &clone), MSTAR_OUT_OF_MEMORY, "user_clone");
    assert_int_equal(check_live_allocations(), 0);
}

static mstar_status attempt_clone(void *context)
{
    mstar_node_input clone;
    mstar_status status = mstar_node_input_clone(context, &clone);
    if (status == MSTAR_OK)
        mstar_node_input_release(&clone);
    return status;
}

static void test_alloc_faults(void **state)
{
    (void)state;
    float value = 1;
    mstar_tensor tensor = mstar_tensor_make(&value, MSTAR_DTYPE_F32, 1, (int64_t[]){1});
    mstar_named_tensor tensors[2] = {{"a", tensor}, {"b", tensor}};
    mstar_node_input input = {.tensors = tensors,
                              .num_tensors = 2,
                              .user = &value,
                              .user_clone = clone_user,
                              .user_release = release_user};
    assert_int_equal(check_alloc_faults(attempt_clone, &input), 5);
    assert_int_equal(live_users, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list), cmocka_unit_test(test_clone),
                                       cmocka_unit_test(test_clone_refused),
                                       cmocka_unit_test(test_alloc_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
