/*
 * piecewise_config.c - configs of regions inside an eager forward, and their shapes.
 */
#include <string.h>

#include "graph/graph.h"

static const char *const type_names[] = {
#define TYPE_NAME(value, NAME, name) [value] = name,
    MSTAR_PIECEWISE_TYPE_LIST(TYPE_NAME)
#undef TYPE_NAME
};

const char *mstar_piecewise_type_name(mstar_piecewise_type type)
{
    size_t index = (size_t)type;
    return index < sizeof type_names / sizeof type_names[0] ? type_names[index] : "unknown";
}

mstar_status mstar_piecewise_type_parse(const char *text, mstar_piecewise_type *type)
{
    MST_TRY(mst_check_not_null("text", text));
    MST_TRY(mst_check_not_null("type", type));
    int index;
    MST_TRY(mst_parse_type("region type", text, type_names, &index));
    *type = (mstar_piecewise_type)index;
    return MSTAR_OK;
}

/* ---- descs ----------------------------------------------------------------------------------- */

static void init_desc(mstar_piecewise_config_desc *desc)
{
    *desc = (mstar_piecewise_config_desc){.struct_size = sizeof *desc, .seq_len = -1};
}

void mstar_piecewise_batched_config_desc_init(mstar_piecewise_batched_config_desc *desc)
{
    if (desc != NULL)
        init_desc(desc);
}

void mstar_piecewise_packed_config_desc_init(mstar_piecewise_packed_config_desc *desc)
{
    if (desc != NULL)
        init_desc(desc);
}

static mstar_status fail_bucket(int64_t tokens, int64_t bs)
{
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "desc.seq_len %lld times %lld requests passes the bound of %d tokens in a "
                    "bucket",
                    (long long)tokens, (long long)bs, INT32_MAX);
}

static mstar_status read_batched(const mstar_piecewise_config_desc *desc,
                                 mstar_piecewise_config *config)
{
    if (desc->total_tokens != NULL || desc->num_total_tokens != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.total_tokens is given; a batched region has seq_len instead");
    if (desc->seq_len == -1)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.seq_len is -1, not given; a batched region needs it");
    MST_TRY(mst_check_range("desc.seq_len", desc->seq_len, 0, INT32_MAX));
    if (desc->seq_len > INT32_MAX / config->info.max_batch_size)
        return fail_bucket(desc->seq_len, config->info.max_batch_size);
    config->info.seq_len = desc->seq_len;
    return MSTAR_OK;
}

static mstar_status read_packed(const mstar_piecewise_config_desc *desc,
                                mstar_piecewise_config *config)
{
    if (desc->seq_len != -1)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.seq_len is %lld; a packed region has total_tokens instead",
                        (long long)desc->seq_len);
    if (desc->num_total_tokens == 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.total_tokens has 0 entries; a packed region needs at least 1");
    MST_TRY(mst_copy_integers("desc.total_tokens", desc->total_tokens, desc->num_total_tokens, 0,
                              INT32_MAX, &config->totals));
    config->info.seq_len = -1;
    config->info.total_tokens = config->totals;
    config->info.num_total_tokens = desc->num_total_tokens;
    return MSTAR_OK;
}

static mstar_status read_desc(const mstar_piecewise_config_desc *desc,
                              mstar_piecewise_config *config)
{
    mstar_piecewise_config_info *info = &config->info;
    MST_TRY(mst_check_flag("desc.compile", desc->compile));
    MST_TRY(mst_check_flag("desc.lease_before_step", desc->lease_before_step));
    if (desc->capture_fn == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.capture_fn is NULL");
    if (desc->make_static_inputs == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "desc.make_static_inputs is NULL");
    if (desc->can_lease != NULL && !desc->lease_before_step)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.can_lease is given with lease_before_step 0; it would never be "
                        "asked");
    info->compile = desc->compile;
    info->lease_before_step = desc->lease_before_step;
    info->capture_fn = desc->capture_fn;
    info->make_static_inputs = desc->make_static_inputs;
    info->declare_step = desc->declare_step;
    info->can_lease = desc->can_lease;
    info->user = desc->user;
    info->forward_kwargs = desc->forward_kwargs;
    MST_TRY(mst_read_compile_mode(desc->compile_mode, &info->compile_mode,
                                  &info->effective_compile_mode));
    MST_TRY(mst_copy_batch_sizes(desc->capture_batch_sizes, desc->num_capture_batch_sizes,
                                 &config->batch_sizes, &info->num_capture_batch_sizes,
                                 &info->max_batch_size));
    info->capture_batch_sizes = config->batch_sizes;
    return info->type == MSTAR_PIECEWISE_BATCHED ? read_batched(desc, config)
                                                 : read_packed(desc, config);
}

static mstar_status create(const mstar_piecewise_config_desc *given, mstar_piecewise_type type,
                           mstar_piecewise_config **config)
{
    MST_TRY(mst_check_not_null("config", config));
    MST_TRY(mst_check_not_null("desc", given));
    mstar_piecewise_config_desc desc;
    init_desc(&desc);
    MST_TRY(mst_desc_read("desc", given, &desc, sizeof desc));
    mstar_piecewise_config *made;
    MST_TRY(mst_alloc_zero(sizeof *made, "a region's config", (void **)&made));
    made->info.type = type;
    mstar_status status = read_desc(&desc, made);
    if (status != MSTAR_OK) {
        mstar_piecewise_config_destroy(made);
        return status;
    }
    *config = made;
    return MSTAR_OK;
}

mstar_status mstar_piecewise_batched_config_create(const mstar_piecewise_batched_config_desc *desc,
                                                   mstar_piecewise_config **config)
{
    return create(desc, MSTAR_PIECEWISE_BATCHED, config);
}

mstar_status mstar_piecewise_packed_config_create(const mstar_piecewise_packed_config_desc *desc,
                                                  mstar_piecewise_config **config)
{
    return create(desc, MSTAR_PIECEWISE_PACKED, config);
}

void mstar_piecewise_config_destroy(mstar_piecewise_config *config)
{
    if (config == NULL)
        return;
    mst_free(config->batch_sizes);
    mst_free(config->totals);
    mst_free(config);
}

mstar_status mstar_piecewise_config_query(const mstar_piecewise_config *config,
                                          mstar_piecewise_config_info *info)
{
    MST_TRY(mst_check_not_null("config", config));
    return mst_info_write("info", &config->info, sizeof config->info, info);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

void mstar_capture_shapes_release(mstar_capture_shapes *shapes)
{
    if (shapes == NULL)
        return;
    mst_free(shapes->items);
    mst_free(shapes->lengths);
    *shapes = (mstar_capture_shapes){NULL, 0, NULL};
}

int mstar_capture_shape_equal(const mstar_capture_shape *a, const mstar_capture_shape *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    if (a->bs != b->bs || a->total_tokens != b->total_tokens)
        return 0;
    return a->bs <= 0 || a->seq_lens == b->seq_lens ||
           (a->seq_lens != NULL && b->seq_lens != NULL &&
            memcmp(a->seq_lens, b->seq_lens, (size_t)a->bs * sizeof *a->seq_lens) == 0);
}

static mstar_status check_sizes(const mstar_piecewise_config *config, const int64_t *sizes,
                                int64_t count, int64_t *num_lengths)
{
    *num_lengths = 0;
    for (int64_t i = 0; i < count; i++) {
        MST_TRY(mst_check_range("batch_sizes", sizes[i], 1, MSTAR_MAX_BATCH_SIZE));
        if (config->info.type == MSTAR_PIECEWISE_BATCHED &&
            config->info.seq_len > INT32_MAX / sizes[i])
            return fail_bucket(config->info.seq_len, sizes[i]);
        *num_lengths += sizes[i];
    }
    return MSTAR_OK;
}

mstar_status mstar_piecewise_config_make_capture_shapes(const mstar_piecewise_config *config,
                                                        const int64_t *batch_sizes,
                                                        int64_t num_batch_sizes,
                                                        mstar_capture_shapes *shapes)
{
    MST_TRY(mst_check_not_null("config", config));
    MST_TRY(mst_check_not_null("shapes", shapes));
    MST_TRY(mst_check_range("num_batch_sizes", num_batch_sizes, 0, 4096));
    if (batch_sizes == NULL) {
        batch_sizes = config->batch_sizes;
        num_batch_sizes = config->info.num_capture_batch_sizes;
    }
    int64_t num_lengths;
    MST_TRY(check_sizes(config, batch_sizes, num_batch_sizes, &num_lengths));
    bool batched = config->info.type == MSTAR_PIECEWISE_BATCHED;
    int64_t each = batched ? 1 : config->info.num_total_tokens;
    mstar_capture_shapes made = {NULL, 0, NULL};
    mstar_status status;
    MST_TRY_GOTO(mst_alloc_array(num_batch_sizes * each, sizeof *made.items, "capture shapes",
                                 (void **)&made.items),
                 failed);
    MST_TRY_GOTO(mst_alloc_array(num_lengths * each, sizeof *made.lengths, "capture shapes",
                                 (void **)&made.lengths),
                 failed);
    int64_t *at = made.lengths;
    for (int64_t i = 0; i < num_batch_sizes; i++) {
        int64_t bs = batch_sizes[i];
        for (int64_t j = 0; j < each; j++, at += bs) {
            int64_t total = batched ? config->info.seq_len * bs : config->totals[j];
            MST_TRY_GOTO(mstar_distribute_tokens(total, bs, at), failed);
            made.items[made.count++] = (mstar_capture_shape){bs, at, total};
        }
    }
    *shapes = made;
    return MSTAR_OK;
failed:
    mstar_capture_shapes_release(&made);
    return status;
}

mstar_status mstar_piecewise_config_replay_seq_lens(const mstar_piecewise_config *config,
                                                    const mstar_capture_shape *shape,
                                                    const int64_t *seq_lens, int64_t num_seq_lens,
                                                    int64_t real_bs, int64_t *lengths,
                                                    int64_t capacity, int64_t *count)
{
    MST_TRY(mst_check_not_null("config", config));
    MST_TRY(mst_check_not_null("shape", shape));
    MST_TRY(mst_check_not_null("count", count));
    MST_TRY(mst_check_range("shape.bs", shape->bs, 0, MSTAR_MAX_BATCH_SIZE));
    if (capacity > 0)
        MST_TRY(mst_check_not_null("lengths", lengths));
    if (config->info.type == MSTAR_PIECEWISE_BATCHED) {
        if (shape->bs > 0)
            MST_TRY(mst_check_not_null("shape.seq_lens", shape->seq_lens));
        *count = shape->bs;
        for (int64_t i = 0; i < mst_min_i64(*count, capacity); i++)
            lengths[i] = shape->seq_lens[i];
        return MSTAR_OK;
    }
    if (seq_lens == NULL)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "seq_lens is NULL; a packed region needs the lengths of this call");
    MST_TRY(mst_check_range("num_seq_lens", num_seq_lens, 0, INT32_MAX));
    MST_TRY(mst_check_range("real_bs", real_bs, 0, INT32_MAX));
    *count = num_seq_lens + mst_max_i64(0, shape->bs - real_bs);
    for (int64_t i = 0; i < mst_min_i64(*count, capacity); i++)
        lengths[i] = i < num_seq_lens ? seq_lens[i] : 0;
    return MSTAR_OK;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The smallest configured size >= bs; 0 when there is none. */
static int64_t padded_size(const mstar_piecewise_config *config, int64_t bs)
{
    int64_t best = 0;
    for (int64_t i = 0; i < config->info.num_capture_batch_sizes; i++) {
        int64_t size = config->batch_sizes[i];
        if (size >= bs && (best == 0 || size < best))
            best = size;
    }
    return best;
}

mstar_status mstar_piecewise_choose(const mstar_piecewise_config *config,
                                    const mstar_capture_shapes *shapes, const uint8_t *captured,
                                    int64_t bs, int64_t num_tokens, mstar_graph_choice *choice)
{
    MST_TRY(mst_check_not_null("config", config));
    MST_TRY(mst_check_not_null("shapes", shapes));
    MST_TRY(mst_check_range("bs", bs, 0, INT64_MAX));
    MST_TRY(mst_check_range("num_tokens", num_tokens, -1, INT64_MAX));
    bool packed = config->info.type == MSTAR_PIECEWISE_PACKED;
    int64_t size = padded_size(config, bs);
    mstar_graph_choice found = {.miss = MSTAR_GRAPH_MISS_BATCH_SIZE, .index = -1};
    if (bs == 0)
        found.miss = MSTAR_GRAPH_MISS_EMPTY;
    else if (packed && num_tokens < 0)
        found.miss = MSTAR_GRAPH_MISS_NOT_BUILT;
    else if (size > 0)
        found.miss = MSTAR_GRAPH_MISS_TOKENS;
    bool searched = found.miss == MSTAR_GRAPH_MISS_TOKENS;
    for (int64_t i = 0; searched && i < shapes->count; i++) {
        const mstar_capture_shape *shape = &shapes->items[i];
        if (shape->bs != size || (packed && shape->total_tokens < num_tokens))
            continue;
        if (captured != NULL && captured[i] == 0) {
            if (found.index < 0)
                found.miss = MSTAR_GRAPH_MISS_NOT_CAPTURED;
            continue;
        }
        found.miss = MSTAR_GRAPH_MISS_NONE;
        if (found.index < 0 || shape->total_tokens < shapes->items[found.index].total_tokens)
            found.index = i;
    }
    return mst_info_write("choice", &found, sizeof found, choice);
}
