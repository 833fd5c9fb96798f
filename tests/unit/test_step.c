/* test_step.c - steps as they are declared, and the keys of buckets. */
#include <stdio.h>
#include <string.h>

#include "step/step.h"
#include "support_check.h"

/* ---- a step -----------------------------------------------------------------------------------
 */

static int step_open(void **state)
{
    mstar_step *step = NULL;
    CHECK_OK(mstar_step_create(&step));
    *state = step;
    return 0;
}

static int step_close(void **state)
{
    mstar_step_destroy(*state);
    mstar_step_destroy(NULL);
    mstar_step_clear(NULL);
    return 0;
}

static void declare_two(mstar_step *step)
{
    char key[16], label[16];
    (void)snprintf(key, sizeof key, "attn");
    (void)snprintf(label, sizeof label, "side");
    CHECK_OK(mstar_step_add_resource(step, key));
    CHECK_OK(mstar_step_add_resource(step, "store"));
    CHECK_OK(mstar_step_add_segment(step, NULL, 7, NULL, 5));
    CHECK_OK(mstar_step_add_segment(step, NULL, -2, NULL, 0));
    CHECK_OK(mstar_step_add_segment(step, "attn", 7, label, 3));
    CHECK_OK(mstar_step_add_pair(step, "attn", label, NULL));
    CHECK_OK(mstar_step_set_causal(step, "attn", 0));
    CHECK_OK(mstar_step_set_details(step, "store", step));
    CHECK_OK(mstar_step_set_additional_key_info(step, label));
    memset(key, 'x', sizeof key); /* texts were copied */
    memset(label, 'x', sizeof label);
}

static void a_step_is_built(void **state)
{
    mstar_step *step = *state;
    mstar_resource_step part;
    declare_two(step);
    assert_int_equal(mstar_step_get_num_resources(step), 2);
    assert_string_equal(mstar_step_get_additional_key_info(step), "side");
    CHECK_OK(mstar_step_query_resource(step, 0, &part));
    assert_string_equal(part.key, "attn");
    assert_int_equal(part.num_segments, 1);
    assert_int_equal(part.segments[0].request, 7);
    assert_int_equal(part.segments[0].span, 3);
    assert_string_equal(part.segments[0].label, "side");
    assert_int_equal(part.num_pairs, 1);
    assert_string_equal(part.pairs[0].q_label, "side");
    assert_string_equal(part.pairs[0].kv_label, "main");
    assert_int_equal(part.causal, 0);
    assert_null(part.details);
    CHECK_OK(mstar_step_query_resource(step, 1, &part));
    assert_string_equal(part.key, "store");
    assert_int_equal(part.num_segments, 2); /* the default ones */
    assert_string_equal(part.segments[1].label, "main");
    assert_int_equal(part.segments[1].request, -2);
    assert_int_equal(part.causal, 1);
    assert_int_equal(part.num_pairs, 0);
    assert_ptr_equal(part.details, step);
    CHECK_FAILED(mstar_step_query_resource(step, 2, &part), MSTAR_NOT_FOUND, "index is 2");
    CHECK_FAILED(mstar_step_query_resource(step, -1, &part), MSTAR_NOT_FOUND, "index is -1");
}

static void a_step_is_filled_again(void **state)
{
    mstar_step *step = *state;
    mstar_memory_info before = {.struct_size = sizeof before}, after = before;
    mstar_resource_step part;
    mstar_step_clear(step);
    declare_two(step);
    CHECK_OK(mstar_memory_query(&before));
    for (int i = 0; i < 100; i++) {
        mstar_step_clear(step);
        assert_int_equal(mstar_step_get_num_resources(step), 0);
        assert_null(mstar_step_get_additional_key_info(step));
        declare_two(step);
    }
    CHECK_OK(mstar_memory_query(&after));
    assert_int_equal(after.total_allocations, before.total_allocations);
    /* nothing of the former step is left in a resource's place */
    mstar_step_clear(step);
    CHECK_OK(mstar_step_add_resource(step, "other"));
    CHECK_OK(mstar_step_query_resource(step, 0, &part));
    assert_int_equal(part.num_segments, 0);
    assert_int_equal(part.num_pairs, 0);
    assert_int_equal(part.causal, 1);
}

static void bad_declarations(void **state)
{
    mstar_step *step = *state;
    mstar_resource_step part;
    mstar_step_clear(step);
    CHECK_OK(mstar_step_add_resource(step, "attn"));
    CHECK_INVALID(mstar_step_create(NULL), "step is NULL");
    CHECK_INVALID(mstar_step_add_resource(NULL, "a"), "step is NULL");
    CHECK_INVALID(mstar_step_add_resource(step, NULL), "key is NULL");
    CHECK_INVALID(mstar_step_add_resource(step, "attn"), "resource \"attn\" already");
    CHECK_FAILED(mstar_step_add_segment(step, "kv", 1, NULL, 1), MSTAR_NOT_FOUND,
                 "no resource \"kv\"");
    CHECK_FAILED(mstar_step_add_pair(step, "kv", "a", "b"), MSTAR_NOT_FOUND, "\"kv\"");
    CHECK_FAILED(mstar_step_set_causal(step, "kv", 0), MSTAR_NOT_FOUND, "\"kv\"");
    CHECK_FAILED(mstar_step_set_details(step, "kv", step), MSTAR_NOT_FOUND, "\"kv\"");
    CHECK_INVALID(mstar_step_set_causal(step, "attn", 2), "causal is 2");
    CHECK_INVALID(mstar_step_add_segment(step, NULL, -1, NULL, 1), "request is -1");
    CHECK_INVALID(mstar_step_add_segment(step, NULL, 1, NULL, -1), "span is -1");
    CHECK_INVALID(mstar_step_add_segment(step, NULL, 1, "", 1), "label is \"\"");
    CHECK_INVALID(mstar_step_add_pair(step, "attn", "a", ""), "kv_label is \"\"");
    CHECK_INVALID(mstar_step_add_segment(NULL, NULL, 1, NULL, 1), "step is NULL");
    CHECK_INVALID(mstar_step_set_additional_key_info(NULL, "a"), "step is NULL");
    CHECK_INVALID(mstar_step_query_resource(NULL, 0, &part), "step is NULL");
    CHECK_INVALID(mstar_step_query_resource(step, 0, NULL), "resource is NULL");
    assert_int_equal(mstar_step_get_num_resources(NULL), 0);
    CHECK_OK(mstar_step_query_resource(step, 0, &part));
    assert_int_equal(part.num_segments, 0); /* what was refused has left nothing */
}

static mstar_status try_step(void *context)
{
    mstar_step *step = NULL;
    (void)context;
    mstar_status status = mstar_step_create(&step);
    if (status == MSTAR_OK)
        status = mstar_step_add_resource(step, "attn");
    for (int i = 0; i < 40 && status == MSTAR_OK; i++)
        status = mstar_step_add_segment(step, i % 2 ? "attn" : NULL, i, i % 3 ? "a" : NULL, i);
    if (status == MSTAR_OK)
        status = mstar_step_add_pair(step, "attn", "a", "b");
    if (status == MSTAR_OK)
        status = mstar_step_set_additional_key_info(step, "more");
    mstar_step_destroy(step);
    return status;
}

static void a_step_without_memory(void **state)
{
    (void)state;
    assert_true(check_alloc_faults(try_step, NULL) >= 8);
}

static void bucket_keys(void **state)
{
    (void)state;
    char walk[] = "prefill", info[] = "hd";
    const mstar_bucket_key a = {"prefill", "hd", 4, 512};
    const mstar_bucket_key same = {walk, info, 4, 512};
    const mstar_bucket_key others[] = {{"decode", "hd", 4, 512},
                                       {"prefill", NULL, 4, 512},
                                       {"prefill", "sd", 4, 512},
                                       {"prefill", "hd", 5, 512},
                                       {"prefill", "hd", 4, 513}};
    assert_int_equal(mstar_bucket_key_equal(&a, &same), 1);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(mstar_bucket_key_equal(&a, &others[i]), 0);
        assert_int_equal(mstar_bucket_key_equal(&others[i], &a), 0);
    }
    assert_int_equal(mstar_bucket_key_equal(NULL, &a), 0);
    assert_int_equal(mstar_bucket_key_equal(NULL, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_is_built, step_open, step_close),
        cmocka_unit_test_setup_teardown(a_step_is_filled_again, step_open, step_close),
        cmocka_unit_test_setup_teardown(bad_declarations, step_open, step_close),
        cmocka_unit_test(a_step_without_memory),
        cmocka_unit_test(bucket_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
