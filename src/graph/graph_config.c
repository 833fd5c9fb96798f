/*
 * graph_config.c - configs of whole-forward captures: checked and copied once, then read only.
 *
 * create walks through every bucket that a capture will ask for, token layout included, so that
 * nothing is left to fail at capture.
 */
#include <string.h>

#include "graph/graph.h"

/* ---- descs ----------------------------------------------------------------------------------- */

static void init_desc(mstar_graph_config_desc *desc)
{
    *desc = (mstar_graph_config_desc){
        .struct_size = sizeof *desc,
        .compile = 1,
        .capture_forward_method = "forward_batched",
        .total_tokens_multiplier = 1,
        .caps_eager_batch_size = 1,
    };
}

void mstar_batched_graph_config_desc_init(mstar_batched_graph_config_desc *desc)
{
    if (desc != NULL)
        init_desc(desc);
}

void mstar_packed_graph_config_desc_init(mstar_packed_graph_config_desc *desc)
{
    if (desc != NULL)
        init_desc(desc);
}

static mstar_status check_other_kind(const mstar_graph_config_desc *desc,
                                     mstar_graph_config_type type)
{
    const char *field = NULL;
    if (type == MSTAR_GRAPH_FLASH_INFER_PACKED) {
        field = desc->single_request_inputs != NULL ? "single_request_inputs" : NULL;
    } else if (desc->capture_token_lengths != NULL || desc->num_capture_token_lengths != 0) {
        field = "capture_token_lengths";
    } else if (desc->make_node_input != NULL) {
        field = "make_node_input";
    } else if (desc->token_layout != NULL) {
        field = "token_layout";
    }
    if (field != NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.%s is given; a %s config has no such field",
                        field, mstar_graph_config_type_name(type));
    return MSTAR_OK;
}

static mstar_status copy_walks(const mstar_graph_config_desc *desc, mstar_graph_config *config)
{
    const char *const *walks = desc->replay_graph_walks;
    int64_t count = desc->num_replay_graph_walks;
    MST_TRY(mst_check_range("desc.num_replay_graph_walks", count, 0, 4096));
    if (count > 0)
        MST_TRY(mst_check_not_null("desc.replay_graph_walks", walks));
    if (count == 0) {
        walks = &desc->capture_graph_walk;
        count = 1;
    }
    MST_TRY(mst_alloc_array(count, sizeof *config->replay_walks, "walks of a config",
                            (void **)&config->replay_walks));
    for (int64_t i = 0; i < count; i++) {
        MST_TRY(mst_copy_text("desc.replay_graph_walks", walks[i], true, &config->replay_walks[i]));
        config->num_replay_walks = i + 1;
    }
    return MSTAR_OK;
}

static mstar_status copy_seq_dims(const mstar_graph_config_desc *desc, mstar_graph_config *config)
{
    int64_t count = desc->num_input_seq_dims;
    MST_TRY(mst_check_range("desc.num_input_seq_dims", count, 0, 4096));
    if (count == 0)
        return MSTAR_OK;
    MST_TRY(mst_check_not_null("desc.input_seq_dims", desc->input_seq_dims));
    MST_TRY(mst_alloc_array(count, sizeof *config->seq_dims, "sequence dims of a config",
                            (void **)&config->seq_dims));
    for (int64_t i = 0; i < count; i++) {
        const mstar_input_seq_dim *given = &desc->input_seq_dims[i];
        for (int64_t j = 0; given->name != NULL && j < i; j++) {
            if (strcmp(config->seq_dims[j].name, given->name) == 0)
                return mst_fail(MSTAR_INVALID_ARGUMENT,
                                "desc.input_seq_dims names \"%.64s\" twice, at %lld and %lld",
                                given->name, (long long)j, (long long)i);
        }
        MST_TRY(mst_check_range("desc.input_seq_dims.dim", given->dim, 0, MSTAR_MAX_RANK - 1));
        char *name;
        MST_TRY(mst_copy_text("desc.input_seq_dims.name", given->name, true, &name));
        config->seq_dims[i] = (mstar_input_seq_dim){.name = name, .dim = given->dim};
        config->num_seq_dims = i + 1;
    }
    return MSTAR_OK;
}

static mstar_status copy_common(const mstar_graph_config_desc *desc, mstar_graph_config *config)
{
    MST_TRY(mst_check_flag("desc.compile", desc->compile));
    MST_TRY(mst_check_flag("desc.caps_eager_batch_size", desc->caps_eager_batch_size));
    MST_TRY(mst_check_range("desc.total_tokens_multiplier", desc->total_tokens_multiplier, 1,
                            INT32_MAX));
    config->compile = desc->compile != 0;
    config->caps_eager_batch_size = desc->caps_eager_batch_size != 0;
    config->multiplier = desc->total_tokens_multiplier;
    config->user = desc->user;
    MST_TRY(mst_read_compile_mode(desc->compile_mode, &config->compile_mode,
                                  &config->effective_compile_mode));
    MST_TRY(
        mst_copy_text("desc.capture_graph_walk", desc->capture_graph_walk, true, &config->walk));
    MST_TRY(mst_copy_text("desc.additional_key_info", desc->additional_key_info, false,
                          &config->key_info));
    MST_TRY(mst_copy_text("desc.capture_forward_method", desc->capture_forward_method, true,
                          &config->forward_method));
    MST_TRY(copy_walks(desc, config));
    MST_TRY(copy_seq_dims(desc, config));
    return mst_copy_batch_sizes(desc->capture_batch_sizes, desc->num_capture_batch_sizes,
                                &config->batch_sizes, &config->num_batch_sizes,
                                &config->max_batch_size);
}

/* ---- buckets are possible -------------------------------------------------------------------- */

static mstar_status fail_total(int64_t length, int64_t times, int64_t multiplier)
{
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "%lld tokens times %lld requests times desc.total_tokens_multiplier %lld pass "
                    "the bound of %d tokens in a bucket",
                    (long long)length, (long long)times, (long long)multiplier, INT32_MAX);
}

static bool total_fits(int64_t length, int64_t times, int64_t multiplier)
{
    int64_t total;
    return !__builtin_mul_overflow(length, times, &total) &&
           !__builtin_mul_overflow(total, multiplier, &total) && total <= INT32_MAX;
}

static mstar_status finish_batched(const mstar_graph_config_desc *desc, mstar_graph_config *config)
{
    MST_TRY(mst_check_not_null("desc.single_request_inputs", desc->single_request_inputs));
    mstar_status status = mstar_node_input_clone(desc->single_request_inputs, &config->single);
    if (status != MSTAR_OK)
        return mst_fail_in(status, "desc.single_request_inputs");
    int64_t length = config->single.input_seq_len;
    if (!total_fits(length, config->max_batch_size, config->multiplier))
        return fail_total(length, config->max_batch_size, config->multiplier);
    return MSTAR_OK;
}

static mstar_status check_layouts(const mstar_graph_config *config, int64_t *lengths)
{
    for (int64_t i = 0; i < config->num_batch_sizes; i++) {
        int64_t bs = config->batch_sizes[i];
        MST_TRY(mst_run_layout(config->layout, config->user, 0, bs, lengths));
        for (int64_t j = 0; j < config->num_token_lengths; j++)
            MST_TRY(mst_run_layout(config->layout, config->user, config->token_lengths[j], bs,
                                   lengths));
    }
    return MSTAR_OK;
}

static mstar_status finish_packed(const mstar_graph_config_desc *desc, mstar_graph_config *config)
{
    if (desc->num_capture_token_lengths == 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.capture_token_lengths has 0 entries; a packed config needs at least "
                        "1");
    MST_TRY(mst_copy_integers("desc.capture_token_lengths", desc->capture_token_lengths,
                              desc->num_capture_token_lengths, 0, INT32_MAX,
                              &config->token_lengths));
    config->num_token_lengths = desc->num_capture_token_lengths;
    for (int64_t i = 0; i < config->num_token_lengths; i++) {
        if (!total_fits(config->token_lengths[i], 1, config->multiplier))
            return fail_total(config->token_lengths[i], 1, config->multiplier);
    }
    if (desc->make_node_input == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.make_node_input is NULL");
    config->make_node_input = desc->make_node_input;
    config->layout = desc->token_layout != NULL ? desc->token_layout : mstar_layout_even;
    int64_t *lengths;
    MST_TRY(mst_alloc_array(config->max_batch_size, sizeof *lengths, "a token layout",
                            (void **)&lengths));
    mstar_status status = check_layouts(config, lengths);
    mst_free(lengths);
    return status;
}

/* ---- create, destroy, query ------------------------------------------------------------------ */

static mstar_status create(const mstar_graph_config_desc *given, mstar_graph_config_type type,
                           mstar_graph_config **config)
{
    MST_TRY(mst_check_not_null("config", config));
    MST_TRY(mst_check_not_null("desc", given));
    mstar_graph_config_desc desc;
    init_desc(&desc);
    MST_TRY(mst_desc_read("desc", given, &desc, sizeof desc));
    MST_TRY(check_other_kind(&desc, type));
    mstar_graph_config *made;
    MST_TRY(mst_alloc_zero(sizeof *made, "a graph config", (void **)&made));
    made->type = type;
    mstar_status status = copy_common(&desc, made);
    if (status == MSTAR_OK)
        status = type == MSTAR_GRAPH_BASIC_BATCHED ? finish_batched(&desc, made)
                                                   : finish_packed(&desc, made);
    if (status != MSTAR_OK) {
        mstar_graph_config_destroy(made);
        return status;
    }
    *config = made;
    return MSTAR_OK;
}

mstar_status mstar_batched_graph_config_create(const mstar_batched_graph_config_desc *desc,
                                               mstar_graph_config **config)
{
    return create(desc, MSTAR_GRAPH_BASIC_BATCHED, config);
}

mstar_status mstar_packed_graph_config_create(const mstar_packed_graph_config_desc *desc,
                                              mstar_graph_config **config)
{
    return create(desc, MSTAR_GRAPH_FLASH_INFER_PACKED, config);
}

void mstar_graph_config_destroy(mstar_graph_config *config)
{
    if (config == NULL)
        return;
    for (int64_t i = 0; i < config->num_replay_walks; i++)
        mst_free(config->replay_walks[i]);
    for (int64_t i = 0; i < config->num_seq_dims; i++)
        mst_free((void *)(uintptr_t)config->seq_dims[i].name);
    mst_free(config->replay_walks);
    mst_free(config->seq_dims);
    mst_free(config->walk);
    mst_free(config->key_info);
    mst_free(config->forward_method);
    mst_free(config->batch_sizes);
    mst_free(config->token_lengths);
    mstar_node_input_release(&config->single);
    mst_free(config);
}

mstar_status mstar_graph_config_query(const mstar_graph_config *config,
                                      mstar_graph_config_info *info)
{
    MST_TRY(mst_check_not_null("config", config));
    bool batched = config->type == MSTAR_GRAPH_BASIC_BATCHED;
    mstar_graph_config_info full = {
        .type = config->type,
        .capture_graph_walk = config->walk,
        .replay_graph_walks = (const char *const *)config->replay_walks,
        .num_replay_graph_walks = config->num_replay_walks,
        .additional_key_info = config->key_info,
        .capture_batch_sizes = config->batch_sizes,
        .num_capture_batch_sizes = config->num_batch_sizes,
        .max_batch_size = config->max_batch_size,
        .capture_forward_method = config->forward_method,
        .input_seq_dims = config->seq_dims,
        .num_input_seq_dims = config->num_seq_dims,
        .total_tokens_multiplier = config->multiplier,
        .compile_mode = config->compile_mode,
        .effective_compile_mode = config->effective_compile_mode,
        .compile = config->compile,
        .caps_eager_batch_size = config->caps_eager_batch_size,
        .capture_token_lengths = config->token_lengths,
        .num_capture_token_lengths = config->num_token_lengths,
        .input_seq_len = batched ? config->single.input_seq_len : -1,
    };
    return mst_info_write("info", &full, sizeof full, info);
}

/* ---- what a capture asks for ----------------------------------------------------------------- */

mstar_status mstar_graph_config_get_total_tokens(const mstar_graph_config *config, int64_t bs,
                                                 int64_t *totals, int64_t capacity, int64_t *count)
{
    MST_TRY(mst_check_not_null("config", config));
    MST_TRY(mst_check_not_null("count", count));
    MST_TRY(mst_check_range("bs", bs, 1, MSTAR_MAX_BATCH_SIZE));
    if (capacity > 0)
        MST_TRY(mst_check_not_null("totals", totals));
    if (config->type == MSTAR_GRAPH_BASIC_BATCHED &&
        !total_fits(config->single.input_seq_len, bs, config->multiplier))
        return fail_total(config->single.input_seq_len, bs, config->multiplier);
    *count = mst_config_num_totals(config);
    for (int64_t i = 0; i < mst_min_i64(*count, capacity); i++)
        totals[i] = mst_config_total(config, bs, i);
    return MSTAR_OK;
}

static mstar_status make_packed_input(const mstar_graph_config *config, int64_t length,
                                      mstar_node_input *input)
{
    mstar_node_input made = {.input_seq_len = length};
    mstar_status status = config->make_node_input(config->user, length, &made);
    if (status != MSTAR_OK)
        return mst_fail(status, "make_node_input answers \"%s\" for %lld tokens",
                        mstar_status_text(status), (long long)length);
    return mstar_node_input_clone(&made, input);
}

static mstar_status fill_inputs(const mstar_graph_config *config, const int64_t *lengths,
                                int64_t bs, mstar_node_inputs *inputs)
{
    for (; inputs->count < bs; inputs->count++) {
        mstar_node_input *input = &inputs->items[inputs->count];
        MST_TRY(lengths == NULL ? mstar_node_input_clone(&config->single, input)
                                : make_packed_input(config, lengths[inputs->count], input));
    }
    return MSTAR_OK;
}

mstar_status mstar_graph_config_make_node_inputs(const mstar_graph_config *config, int64_t bs,
                                                 int64_t num_tokens, mstar_node_inputs *inputs)
{
    MST_TRY(mst_check_not_null("config", config));
    MST_TRY(mst_check_not_null("inputs", inputs));
    MST_TRY(mst_check_range("bs", bs, 0, MSTAR_MAX_BATCH_SIZE));
    bool packed = config->type == MSTAR_GRAPH_FLASH_INFER_PACKED;
    if (packed) {
        MST_TRY(mst_check_range("num_tokens", num_tokens, 0, INT32_MAX));
        if (num_tokens % config->multiplier != 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "num_tokens is %lld; plan tokens are multiples of the config's "
                            "multiplier %lld",
                            (long long)num_tokens, (long long)config->multiplier);
    }
    mstar_node_inputs made = {NULL, 0};
    int64_t *lengths = NULL;
    mstar_status status;
    MST_TRY_GOTO(mst_alloc_array(bs, sizeof *made.items, "node inputs", (void **)&made.items),
                 failed);
    if (packed && bs > 0) {
        MST_TRY_GOTO(mst_alloc_array(bs, sizeof *lengths, "a token layout", (void **)&lengths),
                     failed);
        MST_TRY_GOTO(mst_run_layout(config->layout, config->user, num_tokens / config->multiplier,
                                    bs, lengths),
                     failed);
    }
    MST_TRY_GOTO(fill_inputs(config, lengths, bs, &made), failed);
    mst_free(lengths);
    *inputs = made;
    return MSTAR_OK;
failed:
    mst_free(lengths);
    mstar_node_inputs_release(&made);
    return status;
}
