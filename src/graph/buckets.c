/*
 * buckets.c - which buckets there are, in which order they are captured, and which one serves a
 * step: integers and texts in, an index or a reason out.
 */
#include <math.h>
#include <string.h>

#include "graph/graph.h"

static const char *const type_names[] = {
#define TYPE_NAME(value, NAME, name) [value] = name,
    MSTAR_GRAPH_CONFIG_TYPE_LIST(TYPE_NAME)
#undef TYPE_NAME
};

const char *mstar_graph_config_type_name(mstar_graph_config_type type)
{
    size_t index = (size_t)type;
    return index < sizeof type_names / sizeof type_names[0] ? type_names[index] : "unknown";
}

mstar_status mstar_graph_config_type_parse(const char *text, mstar_graph_config_type *type)
{
    MST_TRY(mst_check_not_null("text", text));
    MST_TRY(mst_check_not_null("type", type));
    int index;
    MST_TRY(mst_parse_type("config type", text, type_names, &index));
    *type = (mstar_graph_config_type)index;
    return MSTAR_OK;
}

static const char *const miss_texts[][2] = {
#define MISS_TEXT(value, NAME, name, text) [value] = {name, text},
    MSTAR_GRAPH_MISS_LIST(MISS_TEXT)
#undef MISS_TEXT
};

const char *mstar_graph_miss_name(mstar_graph_miss miss)
{
    return (size_t)miss < MSTAR_NUM_GRAPH_MISSES ? miss_texts[miss][0] : "unknown";
}

const char *mstar_graph_miss_text(mstar_graph_miss miss)
{
    return (size_t)miss < MSTAR_NUM_GRAPH_MISSES ? miss_texts[miss][1] : "unknown";
}

/* ---- walks ----------------------------------------------------------------------------------- */

bool mst_same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool mst_config_lists(const mstar_graph_config *config, const char *walk)
{
    for (int64_t i = 0; i < config->num_replay_walks; i++) {
        if (strcmp(config->replay_walks[i], walk) == 0)
            return true;
    }
    return false;
}

bool mst_config_serves(const mstar_graph_config *config, const char *walk)
{
    return strcmp(config->walk, walk) == 0 || mst_config_lists(config, walk);
}

int mstar_graph_replays_walk(const mstar_graph_config *const *configs, int64_t num_configs,
                             const char *walk)
{
    for (int64_t i = 0; walk != NULL && i < num_configs; i++) {
        if (configs[i] != NULL && mst_config_lists(configs[i], walk))
            return 1;
    }
    return 0;
}

int64_t mstar_graph_batch_cap(const mstar_graph_config *const *configs, int64_t num_configs,
                              const char *walk)
{
    int64_t cap = -1;
    for (int64_t i = 0; walk != NULL && i < num_configs; i++) {
        const mstar_graph_config *config = configs[i];
        if (config != NULL && config->caps_eager_batch_size && mst_config_lists(config, walk))
            cap = mst_max_i64(cap, config->max_batch_size);
    }
    return cap;
}

/* ---- the order of capture -------------------------------------------------------------------- */

/* Does a come before b? Equal ones keep their order. */
static bool is_larger(const mstar_graph_bucket *a, const mstar_graph_bucket *b)
{
    return a->bs != b->bs ? a->bs > b->bs : a->num_tokens > b->num_tokens;
}

/* A stable merge of two neighbouring sorted runs, through spare. */
static void merge(mstar_graph_bucket *buckets, int64_t middle, int64_t count,
                  mstar_graph_bucket *spare)
{
    int64_t a = 0, b = middle;
    for (int64_t i = 0; i < count; i++) {
        bool take_b = b < count && (a == middle || is_larger(&buckets[b], &buckets[a]));
        spare[i] = take_b ? buckets[b++] : buckets[a++];
    }
    memcpy(buckets, spare, (size_t)count * sizeof *buckets);
}

static void sort_buckets(mstar_graph_bucket *buckets, int64_t count, mstar_graph_bucket *spare)
{
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t first = 0; first + width < count; first += 2 * width)
            merge(buckets + first, width, mst_min_i64(2 * width, count - first), spare);
    }
}

/* Fills nothing with buckets NULL; returns how many there are. */
static int64_t enumerate(const mstar_graph_config *const *configs, int64_t num_configs,
                         int32_t num_slots, mstar_graph_bucket *buckets)
{
    int64_t count = 0;
    for (int64_t c = 0; c < num_configs; c++) {
        const mstar_graph_config *config = configs[c];
        int64_t totals = mst_config_num_totals(config);
        for (int64_t b = 0; b < config->num_batch_sizes; b++) {
            int64_t bs = config->batch_sizes[b];
            for (int64_t t = 0; t < totals * num_slots; t++, count++) {
                if (buckets == NULL)
                    continue;
                buckets[count] = (mstar_graph_bucket){
                    .config = config,
                    .config_index = (int32_t)c,
                    .slot = (int32_t)(t % num_slots),
                    .bs = bs,
                    .num_tokens = mst_config_total(config, bs, t / num_slots),
                };
            }
        }
    }
    return count;
}

mstar_status mstar_graph_list_captures(const mstar_graph_config *const *configs,
                                       int64_t num_configs, int32_t num_slots,
                                       mstar_graph_bucket *buckets, int64_t capacity,
                                       int64_t *count)
{
    MST_TRY(mst_check_range("num_configs", num_configs, 0, 4096));
    MST_TRY(mst_check_range("num_slots", num_slots, 1, 64));
    MST_TRY(mst_check_not_null("count", count));
    if (num_configs > 0)
        MST_TRY(mst_check_not_null("configs", configs));
    for (int64_t i = 0; i < num_configs; i++) {
        if (configs[i] == NULL)
            return mst_fail(MSTAR_INVALID_ARGUMENT, "configs[%lld] is NULL", (long long)i);
    }
    int64_t total = enumerate(configs, num_configs, num_slots, NULL);
    int64_t wanted = mst_min_i64(mst_max_i64(capacity, 0), total);
    if (wanted > 0) {
        MST_TRY(mst_check_not_null("buckets", buckets));
        mstar_graph_bucket *all; /* two halves: the list, and room for merging */
        MST_TRY(mst_alloc_array(2 * total, sizeof *all, "a list of captures", (void **)&all));
        (void)enumerate(configs, num_configs, num_slots, all);
        sort_buckets(all, total, all + total);
        memcpy(buckets, all, (size_t)wanted * sizeof *buckets);
        mst_free(all);
    }
    *count = total;
    return MSTAR_OK;
}

/* ---- choosing -------------------------------------------------------------------------------- */

void mstar_graph_request_init(mstar_graph_request *request)
{
    if (request != NULL)
        *request = (mstar_graph_request){
            .struct_size = sizeof *request, .num_tokens = -1, .max_waste = (double)NAN};
}

/* How far a bucket gets: the larger, the nearer it was. */
static mstar_graph_miss judge(const mstar_graph_bucket *bucket, bool captured,
                              const mstar_graph_request *request)
{
    const mstar_graph_config *config = bucket->config;
    if (!mst_config_serves(config, request->walk))
        return MSTAR_GRAPH_MISS_WALK;
    if (!mst_same_text(config->key_info, request->additional_key_info))
        return MSTAR_GRAPH_MISS_KEY_INFO;
    bool built = request->num_tokens >= 0;
    if (!built && config->type != MSTAR_GRAPH_BASIC_BATCHED)
        return MSTAR_GRAPH_MISS_NOT_BUILT;
    if (bucket->bs < request->bs)
        return MSTAR_GRAPH_MISS_BATCH_SIZE;
    if (built) {
        int64_t tokens;
        if (__builtin_mul_overflow(request->num_tokens, config->multiplier, &tokens) ||
            bucket->num_tokens < tokens)
            return MSTAR_GRAPH_MISS_TOKENS;
        if (request->with_padding && config->type == MSTAR_GRAPH_BASIC_BATCHED &&
            request->num_tokens > request->bs * config->single.input_seq_len)
            return MSTAR_GRAPH_MISS_TOKENS; /* padding rows take the span of the others */
        if ((double)bucket->num_tokens > request->max_waste * (double)tokens)
            return MSTAR_GRAPH_MISS_WASTE; /* never for NaN */
    }
    return captured ? MSTAR_GRAPH_MISS_NONE : MSTAR_GRAPH_MISS_NOT_CAPTURED;
}

static bool is_better(const mstar_graph_bucket *a, const mstar_graph_bucket *b, bool built)
{
    if (built)
        return a->num_tokens != b->num_tokens ? a->num_tokens < b->num_tokens : a->bs < b->bs;
    return a->bs != b->bs ? a->bs < b->bs : a->num_tokens < b->num_tokens;
}

mstar_status mstar_graph_choose(const mstar_graph_bucket *buckets, const uint8_t *captured,
                                int64_t num_buckets, const mstar_graph_request *given,
                                mstar_graph_choice *choice)
{
    mstar_graph_request request;
    mstar_graph_request_init(&request);
    MST_TRY(mst_check_not_null("request", given));
    MST_TRY(mst_desc_read("request", given, &request, sizeof request));
    MST_TRY(mst_check_not_null("request.walk", request.walk));
    MST_TRY(mst_check_range("request.bs", request.bs, 0, INT32_MAX));
    MST_TRY(mst_check_flag("request.with_padding", request.with_padding));
    MST_TRY(mst_check_range("request.num_tokens", request.num_tokens, -1, INT64_MAX));
    MST_TRY(mst_check_range("num_buckets", num_buckets, 0, INT64_MAX));
    if (num_buckets > 0)
        MST_TRY(mst_check_not_null("buckets", buckets));
    mstar_graph_choice found = {.miss = MSTAR_GRAPH_MISS_WALK, .index = -1};
    if (request.bs == 0) {
        found.miss = MSTAR_GRAPH_MISS_EMPTY;
        num_buckets = 0;
    }
    for (int64_t i = 0; i < num_buckets; i++) {
        MST_TRY(mst_check_not_null("buckets.config", buckets[i].config));
        mstar_graph_miss miss = judge(&buckets[i], captured == NULL || captured[i] != 0, &request);
        if (miss != MSTAR_GRAPH_MISS_NONE) {
            if (found.index < 0 && miss > found.miss)
                found.miss = miss;
            continue;
        }
        found.miss = MSTAR_GRAPH_MISS_NONE;
        if (found.index < 0 ||
            is_better(&buckets[i], &buckets[found.index], request.num_tokens >= 0))
            found.index = i;
    }
    return mst_info_write("choice", &found, sizeof found, choice);
}

/* ---- sizes that leave no gap ----------------------------------------------------------------- */

/* The smallest size above `above` by the rule; INT64_MAX when there is none. */
static int64_t next_size(int64_t above, int64_t stride, const int64_t *wished, int64_t num_wished)
{
    int64_t next = INT64_MAX;
    for (int64_t i = 0; i < num_wished; i++) {
        if (wished[i] > above)
            next = mst_min_i64(next, wished[i]);
    }
    if (num_wished > 0)
        return next;
    if (stride > 0)
        return (above / stride + 1) * stride;
    return above == 0 ? 1 : above * 2;
}

mstar_status mstar_graph_batch_sizes(int64_t max_bs, int64_t stride, const int64_t *wished,
                                     int64_t num_wished, int64_t *sizes, int64_t capacity,
                                     int64_t *count)
{
    MST_TRY(mst_check_range("max_bs", max_bs, 1, MSTAR_MAX_BATCH_SIZE));
    MST_TRY(mst_check_range("stride", stride, 0, MSTAR_MAX_BATCH_SIZE));
    MST_TRY(mst_check_range("num_wished", num_wished, 0, MSTAR_MAX_BATCH_SIZE));
    MST_TRY(mst_check_not_null("count", count));
    if (num_wished > 0)
        MST_TRY(mst_check_not_null("wished", wished));
    if (capacity > 0)
        MST_TRY(mst_check_not_null("sizes", sizes));
    for (int64_t i = 0; i < num_wished; i++)
        MST_TRY(mst_check_range("wished", wished[i], 1, INT64_MAX));
    int64_t total = 0, size = 0;
    while (size < max_bs) {
        size = mst_min_i64(next_size(size, stride, wished, num_wished), max_bs);
        if (total < capacity)
            sizes[total] = size;
        total++;
    }
    *count = total;
    return MSTAR_OK;
}
