/* test_graph_config.c - whole-forward configs: defaults, copies, total tokens, dummy inputs, and
 * everything that is refused when one is made. */
#include "support_check.h"

#include <stdlib.h>
#include <string.h>

#include "mstar/graph.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

/* Inputs of n tokens with one tensor [n]; counts its calls. */
typedef struct maker {
    int64_t calls, lengths[64];
    int32_t data[4096];
    mstar_named_tensor tensor;
    mstar_status answer;
} maker;

static mstar_status make_input(void *user, int64_t num_tokens, mstar_node_input *input)
{
    maker *m = user;
    if (m->answer != MSTAR_OK)
        return m->answer;
    m->lengths[m->calls++ % 64] = num_tokens;
    m->tensor =
        (mstar_named_tensor){"ids", mstar_tensor_make(m->data, MSTAR_DTYPE_I32, 1, &num_tokens)};
    input->tensors = &m->tensor;
    input->num_tensors = 1;
    return MSTAR_OK;
}

static maker the_maker;
static const int64_t two_lengths[] = {256, 1024};

static mstar_packed_graph_config_desc packed_desc(void)
{
    mstar_packed_graph_config_desc desc;
    mstar_packed_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "prefill";
    desc.capture_token_lengths = two_lengths;
    desc.num_capture_token_lengths = COUNT(two_lengths);
    desc.make_node_input = make_input;
    desc.user = &the_maker;
    memset(&the_maker, 0, sizeof the_maker);
    return desc;
}

static mstar_batched_graph_config_desc batched_desc(const mstar_node_input *input)
{
    mstar_batched_graph_config_desc desc;
    mstar_batched_graph_config_desc_init(&desc);
    desc.capture_graph_walk = "decode";
    desc.single_request_inputs = input;
    return desc;
}

static mstar_graph_config_info query(const mstar_graph_config *config)
{
    mstar_graph_config_info info = {.struct_size = sizeof info};
    CHECK_OK(mstar_graph_config_query(config, &info));
    return info;
}

/* ---- types ----------------------------------------------------------------------------------- */

static void test_types(void **state)
{
    (void)state;
    assert_string_equal(mstar_graph_config_type_name(MSTAR_GRAPH_BASIC_BATCHED), "basic_batched");
    assert_string_equal(mstar_graph_config_type_name(MSTAR_GRAPH_FLASH_INFER_PACKED),
                        "flash_infer_packed");
    assert_string_equal(mstar_graph_config_type_name((mstar_graph_config_type)2), "unknown");
    mstar_graph_config_type type = MSTAR_GRAPH_BASIC_BATCHED;
    CHECK_OK(mstar_graph_config_type_parse("flash_infer_packed", &type));
    assert_int_equal(type, MSTAR_GRAPH_FLASH_INFER_PACKED);
    CHECK_INVALID(mstar_graph_config_type_parse("packed", &type), "\"packed\"");
    assert_int_equal(type, MSTAR_GRAPH_FLASH_INFER_PACKED);
    assert_string_equal(mstar_piecewise_type_name(MSTAR_PIECEWISE_BATCHED), "batched");
    mstar_piecewise_type region;
    CHECK_OK(mstar_piecewise_type_parse("packed", &region));
    assert_int_equal(region, MSTAR_PIECEWISE_PACKED);
    CHECK_INVALID(mstar_piecewise_type_parse("", &region), "\"\"");
}

/* ---- what a config keeps --------------------------------------------------------------------- */

static void test_defaults(void **state)
{
    (void)state;
    unsetenv("MSTAR_GRAPH_COMPILE_MODE");
    mstar_graph_config *config;
    mstar_packed_graph_config_desc desc = packed_desc();
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    mstar_graph_config_info info = query(config);
    static const int64_t sizes[] = {1, 2, 4, 8, 16, 32, 64};
    assert_int_equal(info.type, MSTAR_GRAPH_FLASH_INFER_PACKED);
    assert_int_equal(info.num_capture_batch_sizes, COUNT(sizes));
    assert_memory_equal(info.capture_batch_sizes, sizes, sizeof sizes);
    assert_int_equal(info.max_batch_size, 64);
    assert_int_equal(info.num_replay_graph_walks, 1);
    assert_string_equal(info.replay_graph_walks[0], "prefill");
    assert_string_equal(info.capture_forward_method, "forward_batched");
    assert_null(info.additional_key_info);
    assert_null(info.compile_mode);
    assert_string_equal(info.effective_compile_mode, "default");
    assert_int_equal(info.compile, 1);
    assert_int_equal(info.caps_eager_batch_size, 1);
    assert_int_equal(info.total_tokens_multiplier, 1);
    assert_int_equal(info.num_input_seq_dims, 0);
    assert_int_equal(info.input_seq_len, -1);
    assert_memory_equal(info.capture_token_lengths, two_lengths, sizeof two_lengths);
    mstar_graph_config_destroy(config);
    mstar_graph_config_destroy(NULL);
    assert_int_equal(check_live_allocations(), 0);
}

static void test_copies(void **state)
{
    (void)state;
    char walk[] = "walk", key[] = "cfg", mode[] = "default", method[] = "velocity", name[] = "pos";
    char alias[] = "alias";
    const char *walks[] = {alias};
    int64_t sizes[] = {8, 2, 4};
    mstar_input_seq_dim dims[] = {{.name = name, .dim = 1}};
    mstar_packed_graph_config_desc desc = packed_desc();
    desc.capture_graph_walk = walk;
    desc.additional_key_info = key;
    desc.compile_mode = mode;
    desc.capture_forward_method = method;
    desc.replay_graph_walks = walks;
    desc.num_replay_graph_walks = 1;
    desc.capture_batch_sizes = sizes;
    desc.num_capture_batch_sizes = 3;
    desc.input_seq_dims = dims;
    desc.num_input_seq_dims = 1;
    desc.compile = 0;
    desc.caps_eager_batch_size = 0;
    mstar_graph_config *config;
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    walk[0] = key[0] = mode[0] = method[0] = name[0] = alias[0] = '?';
    sizes[0] = dims[0].dim = 0;
    mstar_graph_config_info info = query(config);
    assert_string_equal(info.capture_graph_walk, "walk");
    assert_string_equal(info.additional_key_info, "cfg");
    assert_string_equal(info.compile_mode, "default");
    assert_string_equal(info.capture_forward_method, "velocity");
    assert_int_equal(info.num_replay_graph_walks, 1); /* the list is not fixed up */
    assert_string_equal(info.replay_graph_walks[0], "alias");
    assert_int_equal(info.capture_batch_sizes[0], 8); /* in the order given */
    assert_int_equal(info.max_batch_size, 8);
    assert_string_equal(info.input_seq_dims[0].name, "pos");
    assert_int_equal(info.input_seq_dims[0].dim, 1);
    assert_int_equal(info.compile, 0);
    assert_int_equal(info.caps_eager_batch_size, 0);
    mstar_graph_config_destroy(config);
}

/* A desc of an older caller, which ends before the last fields, takes their defaults. */
static void test_struct_size(void **state)
{
    (void)state;
    mstar_graph_config *config;
    mstar_packed_graph_config_desc desc = packed_desc();
    desc.token_layout = NULL;
    desc.struct_size = 0;
    CHECK_INVALID(mstar_packed_graph_config_create(&desc, &config), "struct_size is 0");
    desc = packed_desc();
    desc.total_tokens_multiplier = 0; /* beyond the size told: not read */
    desc.struct_size = offsetof(mstar_packed_graph_config_desc, total_tokens_multiplier);
    CHECK_INVALID(mstar_packed_graph_config_create(&desc, &config), "capture_token_lengths");
    mstar_graph_config_info small = {.struct_size = 8, .capture_graph_walk = "untouched"};
    desc = packed_desc();
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    CHECK_OK(mstar_graph_config_query(config, &small));
    assert_string_equal(small.capture_graph_walk, "untouched");
    mstar_graph_config_destroy(config);
}

/* ---- total tokens and node inputs ------------------------------------------------------------ */

static void test_batched(void **state)
{
    (void)state;
    int32_t values[2] = {7, 8};
    mstar_named_tensor tensor = {"ids",
                                 mstar_tensor_make(values, MSTAR_DTYPE_I32, 1, (int64_t[]){2})};
    mstar_node_input input = {.input_seq_len = 1, .tensors = &tensor, .num_tensors = 1};
    mstar_batched_graph_config_desc desc = batched_desc(&input);
    desc.total_tokens_multiplier = 2;
    mstar_graph_config *config;
    CHECK_OK(mstar_batched_graph_config_create(&desc, &config));
    values[0] = -1; /* the template was cloned */
    int64_t totals[2] = {-7, -7}, count;
    CHECK_OK(mstar_graph_config_get_total_tokens(config, 4, totals, 2, &count));
    assert_int_equal(count, 1);
    assert_int_equal(totals[0], 8); /* 1 * 4 * 2 */
    assert_int_equal(totals[1], -7);
    assert_int_equal(query(config).input_seq_len, 1);
    mstar_node_inputs inputs;
    CHECK_OK(mstar_graph_config_make_node_inputs(config, 3, 0, &inputs)); /* tokens are ignored */
    assert_int_equal(inputs.count, 3);
    for (int64_t i = 0; i < 3; i++) {
        assert_int_equal(inputs.items[i].input_seq_len, 1);
        int32_t *data = inputs.items[i].tensors[0].tensor.data;
        assert_int_equal(data[0], 7);
        data[0] = 100; /* independent clones */
    }
    mstar_node_inputs_release(&inputs);
    CHECK_OK(mstar_graph_config_make_node_inputs(config, 0, 5, &inputs));
    assert_int_equal(inputs.count, 0);
    mstar_node_inputs_release(&inputs);
    mstar_graph_config_destroy(config);
    /* a node without tokens has 0 at every bs */
    mstar_node_input stateless = {.input_seq_len = 0};
    desc = batched_desc(&stateless);
    CHECK_OK(mstar_batched_graph_config_create(&desc, &config));
    CHECK_OK(mstar_graph_config_get_total_tokens(config, 64, totals, 1, &count));
    assert_int_equal(totals[0], 0);
    mstar_graph_config_destroy(config);
    assert_int_equal(check_live_allocations(), 0);
}

static void test_packed(void **state)
{
    (void)state;
    mstar_packed_graph_config_desc desc = packed_desc();
    desc.total_tokens_multiplier = 2;
    mstar_graph_config *config;
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    assert_int_equal(the_maker.calls, 0); /* create evaluates layouts, not inputs */
    int64_t totals[3] = {-7, -7, -7}, count;
    for (int64_t bs = 1; bs <= 64; bs *= 2) {
        CHECK_OK(mstar_graph_config_get_total_tokens(config, bs, totals, 3, &count));
        assert_int_equal(count, 2);
        assert_int_equal(totals[0], 512);
        assert_int_equal(totals[1], 2048);
    }
    CHECK_OK(mstar_graph_config_get_total_tokens(config, 1, NULL, 0, &count));
    assert_int_equal(count, 2);
    mstar_node_inputs inputs;
    CHECK_OK(mstar_graph_config_make_node_inputs(config, 3, 20, &inputs));
    static const int64_t want[] = {4, 3, 3}; /* 20 / 2 over 3 */
    assert_memory_equal(the_maker.lengths, want, sizeof want);
    for (int64_t i = 0; i < 3; i++) {
        assert_int_equal(inputs.items[i].input_seq_len, want[i]); /* where make leaves it alone */
        assert_int_equal(inputs.items[i].tensors[0].tensor.shape[0], want[i]);
        assert_ptr_not_equal(inputs.items[i].tensors[0].tensor.data, the_maker.data);
    }
    mstar_node_inputs_release(&inputs);
    CHECK_OK(mstar_graph_config_make_node_inputs(config, 4, 0, &inputs)); /* replay's padding */
    assert_int_equal(inputs.count, 4);
    for (int64_t i = 0; i < 4; i++)
        assert_int_equal(inputs.items[i].input_seq_len, 0);
    mstar_node_inputs_release(&inputs);
    CHECK_INVALID(mstar_graph_config_make_node_inputs(config, 1, 3, &inputs), "num_tokens is 3");
    CHECK_INVALID(mstar_graph_config_make_node_inputs(config, 1, -2, &inputs), "num_tokens is -2");
    CHECK_INVALID(mstar_graph_config_make_node_inputs(config, -1, 0, &inputs), "bs is -1");
    CHECK_INVALID(mstar_graph_config_get_total_tokens(config, 0, totals, 3, &count), "bs is 0");
    the_maker.answer = MSTAR_BAD_DATA;
    CHECK_FAILED(mstar_graph_config_make_node_inputs(config, 1, 2, &inputs), MSTAR_BAD_DATA,
                 "make_node_input answers \"malformed data\" for 1 tokens");
    mstar_graph_config_destroy(config);
    assert_int_equal(check_live_allocations(), 0);
}

static void test_custom_layout(void **state)
{
    (void)state;
    mstar_packed_graph_config_desc desc = packed_desc();
    desc.token_layout = mstar_layout_decode_then_prompt;
    mstar_graph_config *config;
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    mstar_node_inputs inputs;
    CHECK_OK(mstar_graph_config_make_node_inputs(config, 3, 10, &inputs));
    assert_int_equal(inputs.items[2].input_seq_len, 8); /* the prompt is last */
    mstar_node_inputs_release(&inputs);
    CHECK_OK(mstar_graph_config_make_node_inputs(config, 3, 0, &inputs));
    mstar_node_inputs_release(&inputs);
    mstar_graph_config_destroy(config);
}

/* ---- refused at create ----------------------------------------------------------------------- */

/* What a bad layout does to one pair; every other pair is laid out evenly. */
typedef struct spoiler {
    int64_t total, bs, add_to_last, set_first;
    mstar_status answer;
} spoiler;

static mstar_status spoil(void *user, int64_t total, int64_t bs, int64_t *lengths)
{
    const spoiler *s = user;
    mstar_status status = mstar_distribute_tokens(total, bs, lengths);
    if (total != s->total || bs != s->bs)
        return status;
    lengths[bs - 1] += s->add_to_last;
    if (s->set_first != 0)
        lengths[0] = s->set_first;
    return s->answer;
}

static mstar_status leave_out(void *user, int64_t total, int64_t bs, int64_t *lengths)
{
    (void)user;
    for (int64_t i = 0; i + 1 < bs; i++) /* one short */
        lengths[i] = total / (bs > 1 ? bs - 1 : 1);
    return MSTAR_OK;
}

static void test_layouts_refused(void **state)
{
    (void)state;
    mstar_packed_graph_config_desc desc = packed_desc();
    mstar_graph_config *config = NULL;
    desc.token_layout = spoil;
    spoiler bad = {.total = 1024, .bs = 32, .add_to_last = 1};
    desc.user = &bad;
    CHECK_INVALID(mstar_packed_graph_config_create(&desc, &config), "sum to 1025");
    bad = (spoiler){.total = 0, .bs = 64, .add_to_last = 1};
    CHECK_INVALID(mstar_packed_graph_config_create(&desc, &config), "0 tokens over 64");
    bad = (spoiler){.total = 256, .bs = 4, .set_first = -1};
    CHECK_INVALID(mstar_packed_graph_config_create(&desc, &config), "length -1 at place 0");
    bad = (spoiler){.total = 256, .bs = 4, .answer = MSTAR_NOT_SUPPORTED};
    CHECK_FAILED(mstar_packed_graph_config_create(&desc, &config), MSTAR_NOT_SUPPORTED,
                 "not supported");
    desc.token_layout = leave_out;
    CHECK_INVALID(mstar_packed_graph_config_create(&desc, &config), "length -1 at place");
    assert_null(config);
    bad = (spoiler){.total = -1};
    desc.token_layout = spoil;
    CHECK_OK(mstar_packed_graph_config_create(&desc, &config));
    mstar_graph_config_destroy(config);
    assert_int_equal(check_live_allocations(), 0);
}

#define REFUSE_PACKED(change, piece)                                            \
    do {                                                                        \
        mstar_packed_graph_config_desc desc = packed_desc();                    \
        mstar_graph_config *config = NULL;                                      \
        change;                                                                 \
        CHECK_INVALID(mstar_packed_graph_config_create(&desc, &config), piece); \
        assert_null(config);                                                    \
        assert_int_equal(check_live_allocations(), 0);                          \
    } while (0)

static void test_packed_refused(void **state)
{
    (void)state;
    static const int64_t twice[] = {1, 2, 4, 2}, zero[] = {0}, negative[] = {256, -1};
    static const int64_t huge[] = {MSTAR_MAX_BATCH_SIZE + 1}, big[] = {1 << 30};
    static const char *const empty_walk[] = {"a", ""};
    static const mstar_input_seq_dim dims[] = {{.name = "x", .dim = 8}};
    static const mstar_input_seq_dim twins[] = {{.name = "x", .dim = 0}, {.name = "x", .dim = 1}};
    static const mstar_node_input input = {.input_seq_len = 1};
    REFUSE_PACKED(desc.capture_graph_walk = NULL, "desc.capture_graph_walk is NULL");
    REFUSE_PACKED(desc.capture_graph_walk = "", "desc.capture_graph_walk is \"\"");
    REFUSE_PACKED(desc.total_tokens_multiplier = 0, "desc.total_tokens_multiplier is 0");
    REFUSE_PACKED(desc.total_tokens_multiplier = -3, "desc.total_tokens_multiplier is -3");
    REFUSE_PACKED(desc.compile_mode = "reduce-overhead",
                  "desc.compile_mode is \"reduce-overhead\"");
    REFUSE_PACKED(desc.compile_mode = "bogus", "desc.compile_mode is \"bogus\"");
    REFUSE_PACKED(desc.compile = 2, "desc.compile is 2");
    REFUSE_PACKED(desc.caps_eager_batch_size = -1, "desc.caps_eager_batch_size is -1");
    REFUSE_PACKED(desc.capture_forward_method = NULL, "desc.capture_forward_method is NULL");
    REFUSE_PACKED(desc.make_node_input = NULL, "desc.make_node_input is NULL");
    REFUSE_PACKED(desc.single_request_inputs = &input, "desc.single_request_inputs");
    REFUSE_PACKED(desc.num_capture_token_lengths = 0, "desc.capture_token_lengths has 0");
    REFUSE_PACKED(desc.num_capture_token_lengths = -1, "desc.capture_token_lengths has -1");
    REFUSE_PACKED(desc.capture_token_lengths = NULL, "desc.capture_token_lengths is NULL");
    REFUSE_PACKED(desc.capture_token_lengths = negative, "desc.capture_token_lengths[1] is -1");
    REFUSE_PACKED((desc.capture_token_lengths = twice, desc.num_capture_token_lengths = 4),
                  "desc.capture_token_lengths[3] is 2, as desc.capture_token_lengths[1]");
    REFUSE_PACKED((desc.capture_token_lengths = big, desc.num_capture_token_lengths = 1,
                   desc.total_tokens_multiplier = 2),
                  "2147483647");
    REFUSE_PACKED((desc.capture_batch_sizes = twice, desc.num_capture_batch_sizes = 4),
                  "desc.capture_batch_sizes[3] is 2");
    REFUSE_PACKED((desc.capture_batch_sizes = zero, desc.num_capture_batch_sizes = 1),
                  "desc.capture_batch_sizes[0] is 0");
    REFUSE_PACKED((desc.capture_batch_sizes = huge, desc.num_capture_batch_sizes = 1),
                  "desc.capture_batch_sizes[0] is 65537; it must be from 1 to 65536");
    REFUSE_PACKED(desc.num_capture_batch_sizes = 1, "desc.capture_batch_sizes is NULL");
    REFUSE_PACKED((desc.replay_graph_walks = empty_walk, desc.num_replay_graph_walks = 2),
                  "desc.replay_graph_walks is \"\"");
    REFUSE_PACKED(desc.num_replay_graph_walks = 1, "desc.replay_graph_walks is NULL");
    REFUSE_PACKED((desc.input_seq_dims = dims, desc.num_input_seq_dims = 1),
                  "desc.input_seq_dims.dim is 8");
    REFUSE_PACKED((desc.input_seq_dims = twins, desc.num_input_seq_dims = 2), "\"x\" twice");
    CHECK_INVALID(mstar_packed_graph_config_create(NULL, NULL), "config is NULL");
    setenv("MSTAR_GRAPH_COMPILE_MODE", "nonsense", 1);
    REFUSE_PACKED((void)desc, "MSTAR_GRAPH_COMPILE_MODE is \"nonsense\"");
    unsetenv("MSTAR_GRAPH_COMPILE_MODE");
}

static void test_batched_refused(void **state)
{
    (void)state;
    mstar_graph_config *config = NULL;
    mstar_node_input input = {.input_seq_len = 1 << 26};
    mstar_batched_graph_config_desc desc = batched_desc(NULL);
    CHECK_INVALID(mstar_batched_graph_config_create(&desc, &config),
                  "desc.single_request_inputs is NULL");
    desc = batched_desc(&input); /* 2^26 * 64 requests */
    CHECK_INVALID(mstar_batched_graph_config_create(&desc, &config), "2147483647");
    input.input_seq_len = -1;
    CHECK_INVALID(mstar_batched_graph_config_create(&desc, &config), "input_seq_len is -1");
    input.input_seq_len = 1;
    desc.num_capture_token_lengths = 1;
    CHECK_INVALID(mstar_batched_graph_config_create(&desc, &config), "capture_token_lengths");
    desc = batched_desc(&input);
    desc.make_node_input = make_input;
    CHECK_INVALID(mstar_batched_graph_config_create(&desc, &config), "make_node_input");
    desc = batched_desc(&input);
    desc.token_layout = mstar_layout_even;
    CHECK_INVALID(mstar_batched_graph_config_create(&desc, &config), "token_layout");
    desc = batched_desc(&input);
    desc.total_tokens_multiplier = 0;
    CHECK_INVALID(mstar_batched_graph_config_create(&desc, &config), "multiplier is 0");
    assert_null(config);
    assert_int_equal(check_live_allocations(), 0);
}

/* ---- failed allocations ---------------------------------------------------------------------- */

static mstar_status attempt_packed(void *context)
{
    (void)context;
    static const mstar_input_seq_dim dims[] = {{.name = "x", .dim = 0}};
    mstar_packed_graph_config_desc desc = packed_desc();
    desc.additional_key_info = "info";
    desc.input_seq_dims = dims;
    desc.num_input_seq_dims = 1;
    mstar_graph_config *config;
    mstar_status status = mstar_packed_graph_config_create(&desc, &config);
    if (status != MSTAR_OK)
        return status;
    mstar_node_inputs inputs;
    status = mstar_graph_config_make_node_inputs(config, 2, 256, &inputs);
    if (status == MSTAR_OK)
        mstar_node_inputs_release(&inputs);
    mstar_graph_config_destroy(config);
    return status;
}

static void test_alloc_faults(void **state)
{
    (void)state;
    assert_true(check_alloc_faults(attempt_packed, NULL) > 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),          cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_copies),         cmocka_unit_test(test_struct_size),
        cmocka_unit_test(test_batched),        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_custom_layout),  cmocka_unit_test(test_layouts_refused),
        cmocka_unit_test(test_packed_refused), cmocka_unit_test(test_batched_refused),
        cmocka_unit_test(test_alloc_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
