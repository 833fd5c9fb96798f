/* test_piecewise_config.c - configs of regions, their shapes, replay lengths and choice. */
#include "support_check.h"

#include <stdlib.h>
#include <string.h>

#include "mstar/graph.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static mstar_status region(void *user, const mstar_piecewise_call_inputs *inputs,
                           mstar_tensors *outputs)
{
    (void)user, (void)inputs, (void)outputs;
    return MSTAR_OK;
}

static mstar_status buffers(void *user, const mstar_capture_shape *shape, mstar_tensors *inputs)
{
    (void)user, (void)shape, (void)inputs;
    return MSTAR_OK;
}

static int may_lease(void *user, const mstar_node_input *inputs, int64_t count)
{
    (void)user, (void)inputs;
    return count < 3;
}

static mstar_piecewise_batched_config_desc batched_desc(void)
{
    mstar_piecewise_batched_config_desc desc;
    mstar_piecewise_batched_config_desc_init(&desc);
    desc.capture_fn = region;
    desc.make_static_inputs = buffers;
    desc.seq_len = 16;
    return desc;
}

static const int64_t two_totals[] = {10, 7};

static mstar_piecewise_packed_config_desc packed_desc(void)
{
    mstar_piecewise_packed_config_desc desc;
    mstar_piecewise_packed_config_desc_init(&desc);
    desc.capture_fn = region;
    desc.make_static_inputs = buffers;
    desc.total_tokens = two_totals;
    desc.num_total_tokens = COUNT(two_totals);
    return desc;
}

static mstar_piecewise_config *make_batched(const int64_t *sizes, int64_t count)
{
    mstar_piecewise_batched_config_desc desc = batched_desc();
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = count;
    mstar_piecewise_config *config;
    CHECK_OK(mstar_piecewise_batched_config_create(&desc, &config));
    return config;
}

static mstar_piecewise_config *make_packed(const int64_t *sizes, int64_t count,
                                           const int64_t *totals, int64_t num_totals)
{
    mstar_piecewise_packed_config_desc desc = packed_desc();
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = count;
    desc.total_tokens = totals;
    desc.num_total_tokens = num_totals;
    mstar_piecewise_config *config;
    CHECK_OK(mstar_piecewise_packed_config_create(&desc, &config));
    return config;
}

static void test_defaults(void **state)
{
    (void)state;
    mstar_piecewise_config *config = make_batched(NULL, 0);
    mstar_piecewise_config_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_piecewise_config_query(config, &info));
    static const int64_t sizes[] = {1, 2, 4, 8, 16, 32, 64};
    assert_int_equal(info.type, MSTAR_PIECEWISE_BATCHED);
    assert_int_equal(info.compile, 0); /* other than a whole forward's */
    assert_int_equal(info.lease_before_step, 0);
    assert_int_equal(info.num_capture_batch_sizes, COUNT(sizes));
    assert_memory_equal(info.capture_batch_sizes, sizes, sizeof sizes);
    assert_int_equal(info.seq_len, 16);
    assert_int_equal(info.num_total_tokens, 0);
    assert_null(info.compile_mode);
    assert_string_equal(info.effective_compile_mode, "default");
    assert_true(info.capture_fn == region && info.make_static_inputs == buffers);
    assert_true(info.declare_step == NULL && info.can_lease == NULL);
    assert_null(info.forward_kwargs);
    mstar_piecewise_config_destroy(config);
    mstar_piecewise_config_destroy(NULL);
    mstar_piecewise_packed_config_desc desc = packed_desc();
    int kwargs;
    desc.forward_kwargs = &kwargs;
    desc.lease_before_step = 1;
    desc.can_lease = may_lease;
    CHECK_OK(mstar_piecewise_packed_config_create(&desc, &config));
    CHECK_OK(mstar_piecewise_config_query(config, &info));
    assert_ptr_equal(info.forward_kwargs, &kwargs); /* the same object */
    assert_int_equal(info.seq_len, -1);
    assert_memory_equal(info.total_tokens, two_totals, sizeof two_totals);
    mstar_piecewise_config_destroy(config);
    assert_int_equal(check_live_allocations(), 0);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static void check_shape(const mstar_capture_shape *shape, int64_t bs, const int64_t *lens)
{
    int64_t total = 0;
    for (int64_t i = 0; i < bs; i++)
        total += lens[i];
    mstar_capture_shape want = {bs, lens, total};
    assert_true(mstar_capture_shape_equal(shape, &want));
}

static void test_batched_shapes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {4, 1, 2};
    mstar_piecewise_config *config = make_batched(sizes, 3);
    mstar_capture_shapes shapes;
    CHECK_OK(mstar_piecewise_config_make_capture_shapes(config, NULL, 0, &shapes));
    assert_int_equal(shapes.count, 3); /* in the order given */
    check_shape(&shapes.items[0], 4, (int64_t[]){16, 16, 16, 16});
    check_shape(&shapes.items[1], 1, (int64_t[]){16});
    check_shape(&shapes.items[2], 2, (int64_t[]){16, 16});
    /* replay: the shape's own lengths, in fresh memory, whatever else is passed */
    int64_t lengths[4], count;
    CHECK_OK(mstar_piecewise_config_replay_seq_lens(config, &shapes.items[2], (int64_t[]){3}, 1, 1,
                                                    lengths, 4, &count));
    assert_int_equal(count, 2);
    assert_int_equal(lengths[0] + lengths[1], 32);
    CHECK_OK(mstar_piecewise_config_replay_seq_lens(config, &shapes.items[2], NULL, -5, -5, lengths,
                                                    4, &count));
    lengths[0] = 0;
    assert_int_equal(shapes.items[2].seq_lens[0], 16);
    mstar_capture_shapes_release(&shapes);
    CHECK_OK(mstar_piecewise_config_make_capture_shapes(config, (int64_t[]){8}, 1, &shapes));
    assert_int_equal(shapes.count, 1);
    assert_int_equal(shapes.items[0].total_tokens, 128);
    mstar_capture_shapes_release(&shapes);
    mstar_capture_shapes_release(&shapes);
    CHECK_INVALID(mstar_piecewise_config_make_capture_shapes(config, (int64_t[]){0}, 1, &shapes),
                  "batch_sizes is 0");
    CHECK_INVALID(mstar_piecewise_config_make_capture_shapes(config, NULL, 0, NULL),
                  "shapes is NULL");
    mstar_piecewise_config_destroy(config);
    assert_int_equal(check_live_allocations(), 0);
}

static void test_packed_shapes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {3, 4};
    mstar_piecewise_config *config = make_packed(sizes, 2, two_totals, 2);
    mstar_capture_shapes shapes;
    CHECK_OK(mstar_piecewise_config_make_capture_shapes(config, NULL, 0, &shapes));
    assert_int_equal(shapes.count, 4); /* bs outer, totals inner */
    check_shape(&shapes.items[0], 3, (int64_t[]){4, 3, 3});
    check_shape(&shapes.items[1], 3, (int64_t[]){3, 2, 2});
    check_shape(&shapes.items[2], 4, (int64_t[]){4, 2, 2, 2});
    check_shape(&shapes.items[3], 4, (int64_t[]){4, 1, 1, 1});
    mstar_capture_shapes_release(&shapes);
    mstar_piecewise_config_destroy(config);
    mstar_capture_shape a = {2, (int64_t[]){1, 2}, 3}, b = {2, (int64_t[]){2, 1}, 3};
    assert_false(mstar_capture_shape_equal(&a, &b));
    b.seq_lens = a.seq_lens;
    assert_true(mstar_capture_shape_equal(&a, &b));
    b.total_tokens = 4;
    assert_false(mstar_capture_shape_equal(&a, &b));
    assert_false(mstar_capture_shape_equal(&a, NULL));
}

/* One request may bring many segments; zeros follow real_bs, not the number of lengths. */
static void test_packed_replay(void **state)
{
    (void)state;
    static const struct {
        int64_t bs, lens[6], num_lens, real_bs, want[8], count;
    } rows[] = {
        {4, {5, 3}, 2, 2, {5, 3, 0, 0}, 4},
        {4, {5, 3, 2, 1}, 4, 4, {5, 3, 2, 1}, 4},
        {1, {9, 8, 7, 6, 5, 4}, 6, 1, {9, 8, 7, 6, 5, 4}, 6}, /* a tower: bs 1, six images */
        {4, {9, 8, 7}, 3, 1, {9, 8, 7, 0, 0, 0}, 6},
        {2, {1, 2, 3}, 3, 5, {1, 2, 3}, 3}, /* real_bs above bs: no zeros */
        {3, {0}, 0, 0, {0, 0, 0}, 3},
    };
    mstar_piecewise_config *config = make_packed(NULL, 0, two_totals, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mstar_capture_shape shape = {rows[i].bs, NULL, 10};
        int64_t got[8], count = -1;
        memset(got, 0xff, sizeof got);
        CHECK_OK(mstar_piecewise_config_replay_seq_lens(
            config, &shape, rows[i].lens, rows[i].num_lens, rows[i].real_bs, got, 8, &count));
        assert_int_equal(count, rows[i].count);
        assert_memory_equal(got, rows[i].want, (size_t)count * sizeof *got);
        if (count < 8)
            assert_int_equal(got[count], -1);
    }
    mstar_capture_shape shape = {4, NULL, 10};
    int64_t few[2] = {-1, -1}, count;
    CHECK_INVALID(
        mstar_piecewise_config_replay_seq_lens(config, &shape, NULL, 0, 1, few, 2, &count),
        "seq_lens is NULL");
    CHECK_OK(mstar_piecewise_config_replay_seq_lens(config, &shape, (int64_t[]){5}, 1, 1, few, 2,
                                                    &count));
    assert_int_equal(count, 4); /* all of them are told, as many written as fit */
    assert_int_equal(few[0], 5);
    assert_int_equal(few[1], 0);
    mstar_piecewise_config_destroy(config);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static mstar_graph_choice choose(const mstar_piecewise_config *config,
                                 const mstar_capture_shapes *shapes, const uint8_t *captured,
                                 int64_t bs, int64_t tokens)
{
    mstar_graph_choice choice = {.struct_size = sizeof choice};
    CHECK_OK(mstar_piecewise_choose(config, shapes, captured, bs, tokens, &choice));
    assert_true((choice.index >= 0) == (choice.miss == MSTAR_GRAPH_MISS_NONE));
    return choice;
}

static void test_choose_packed(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2, 1}, totals[] = {512, 256};
    mstar_piecewise_config *config = make_packed(sizes, 2, totals, 2);
    mstar_capture_shapes shapes;
    CHECK_OK(mstar_piecewise_config_make_capture_shapes(config, NULL, 0, &shapes));
    /* shapes: (2, 512) (2, 256) (1, 512) (1, 256) */
    assert_int_equal(choose(config, &shapes, NULL, 2, 228).index, 1); /* [128, 100] in 256 */
    assert_int_equal(choose(config, &shapes, NULL, 1, 200).index, 3);
    assert_int_equal(choose(config, &shapes, NULL, 1, 300).index, 2);
    assert_int_equal(choose(config, &shapes, NULL, 1, 256).index, 3);
    assert_int_equal(choose(config, &shapes, NULL, 1, 1024).miss, MSTAR_GRAPH_MISS_TOKENS);
    assert_int_equal(choose(config, &shapes, NULL, 3, 10).miss, MSTAR_GRAPH_MISS_BATCH_SIZE);
    assert_int_equal(choose(config, &shapes, NULL, 1, -1).miss, MSTAR_GRAPH_MISS_NOT_BUILT);
    assert_int_equal(choose(config, &shapes, NULL, 0, 0).miss, MSTAR_GRAPH_MISS_EMPTY);
    /* a larger size never stands in for the one whose captures were dropped */
    uint8_t captured[4] = {1, 1, 0, 0};
    assert_int_equal(choose(config, &shapes, captured, 1, 200).miss, MSTAR_GRAPH_MISS_NOT_CAPTURED);
    captured[2] = 1; /* but a larger total of the same size does */
    assert_int_equal(choose(config, &shapes, captured, 1, 200).index, 2);
    mstar_capture_shapes_release(&shapes);
    mstar_piecewise_config_destroy(config);
}

static void test_choose_batched(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4, 2};
    mstar_piecewise_config *config = make_batched(sizes, 3);
    mstar_capture_shapes shapes;
    CHECK_OK(mstar_piecewise_config_make_capture_shapes(config, NULL, 0, &shapes));
    assert_int_equal(choose(config, &shapes, NULL, 1, -1).index, 0);
    assert_int_equal(choose(config, &shapes, NULL, 2, -1).index, 2);
    assert_int_equal(choose(config, &shapes, NULL, 3, -1).index, 1);
    assert_int_equal(choose(config, &shapes, NULL, 5, -1).miss, MSTAR_GRAPH_MISS_BATCH_SIZE);
    static const uint8_t captured[3] = {1, 1, 0};
    assert_int_equal(choose(config, &shapes, captured, 2, -1).miss, MSTAR_GRAPH_MISS_NOT_CAPTURED);
    mstar_capture_shapes_release(&shapes);
    mstar_piecewise_config_destroy(config);
}

/* ---- refused --------------------------------------------------------------------------------- */

#define REFUSE(kind, change, piece)                                                   \
    do {                                                                              \
        mstar_piecewise_##kind##_config_desc desc = kind##_desc();                    \
        mstar_piecewise_config *config = NULL;                                        \
        change;                                                                       \
        CHECK_INVALID(mstar_piecewise_##kind##_config_create(&desc, &config), piece); \
        assert_null(config);                                                          \
        assert_int_equal(check_live_allocations(), 0);                                \
    } while (0)

static void test_refused(void **state)
{
    (void)state;
    static const int64_t twice[] = {7, 7}, negative[] = {-1}, huge[] = {MSTAR_MAX_BATCH_SIZE + 1};
    REFUSE(batched, desc.struct_size = 0, "struct_size is 0");
    REFUSE(batched, desc.seq_len = -1, "desc.seq_len is -1");
    REFUSE(batched, desc.seq_len = -2, "desc.seq_len is -2");
    REFUSE(batched, desc.seq_len = 1 << 26, "2147483647"); /* times 64 requests */
    REFUSE(batched, desc.total_tokens = twice, "desc.total_tokens is given");
    REFUSE(batched, desc.capture_fn = NULL, "desc.capture_fn is NULL");
    REFUSE(batched, desc.make_static_inputs = NULL, "desc.make_static_inputs is NULL");
    REFUSE(batched, desc.can_lease = may_lease, "desc.can_lease");
    REFUSE(batched, desc.compile = 7, "desc.compile is 7");
    REFUSE(batched, desc.lease_before_step = 7, "desc.lease_before_step is 7");
    REFUSE(batched, desc.compile_mode = "max-autotune", "desc.compile_mode is \"max-autotune\"");
    REFUSE(batched, (desc.capture_batch_sizes = twice, desc.num_capture_batch_sizes = 2),
           "desc.capture_batch_sizes[1] is 7");
    REFUSE(batched, (desc.capture_batch_sizes = huge, desc.num_capture_batch_sizes = 1), "65536");
    REFUSE(packed, desc.seq_len = 3, "desc.seq_len is 3");
    REFUSE(packed, desc.num_total_tokens = 0, "desc.total_tokens has 0");
    REFUSE(packed, desc.total_tokens = NULL, "desc.total_tokens is NULL");
    REFUSE(packed, desc.total_tokens = twice, "desc.total_tokens[1] is 7");
    REFUSE(packed, (desc.total_tokens = negative, desc.num_total_tokens = 1),
           "desc.total_tokens[0] is -1");
}

static mstar_status attempt(void *context)
{
    (void)context;
    mstar_piecewise_packed_config_desc desc = packed_desc();
    mstar_piecewise_config *config;
    mstar_status status = mstar_piecewise_packed_config_create(&desc, &config);
    if (status != MSTAR_OK)
        return status;
    mstar_capture_shapes shapes;
    status = mstar_piecewise_config_make_capture_shapes(config, NULL, 0, &shapes);
    if (status == MSTAR_OK)
        mstar_capture_shapes_release(&shapes);
    mstar_piecewise_config_destroy(config);
    return status;
}

static void test_alloc_faults(void **state)
{
    (void)state;
    assert_int_equal(check_alloc_faults(attempt, NULL), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_batched_shapes),
        cmocka_unit_test(test_packed_shapes), cmocka_unit_test(test_packed_replay),
        cmocka_unit_test(test_choose_packed), cmocka_unit_test(test_choose_batched),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_alloc_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
