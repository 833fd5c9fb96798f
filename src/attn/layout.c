/*
 * layout.c - checks of the caller's offsets, and the one normal form behind all three wrappers.
 *
 * Everything is checked before anything is written, so that a refused plan leaves the former one
 * in force. The whole of both offset vectors is read once; the planner trusts them afterwards.
 */
#include "attn/attn.h"

static const int32_t no_segments[1] = {0};

/* One side of a layout, with the names its errors use. */
typedef struct side {
    const char *offsets_name;
    const char *tokens_ceiling_name;
    const char *tokens_name; /* "query tokens" */
    const int32_t *offsets;
    int64_t max_tokens; /* -1 none */
} side;

static mstar_status check_count(const mst_attn_config *config, const char *name,
                                int64_t num_segments)
{
    /* segments and offsets are numbered in int32 */
    MST_TRY(mst_check_range(name, num_segments, 0, INT32_MAX - 1));
    if (config->graph && num_segments > config->max_num_segments)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is %lld; the ceiling max_num_segments is %lld",
                        name, (long long)num_segments, (long long)config->max_num_segments);
    return MSTAR_OK;
}

static mstar_status check_offsets(side *given, int64_t num_segments)
{
    if (given->offsets == NULL) {
        if (num_segments > 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "%s is NULL; %lld segments need %lld offsets (NULL is allowed for 0 "
                            "segments)",
                            given->offsets_name, (long long)num_segments,
                            (long long)num_segments + 1);
        given->offsets = no_segments;
    }
    if (given->offsets[0] != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s[0] is %d; the first offset must be 0",
                        given->offsets_name, given->offsets[0]);
    for (int64_t i = 0; i < num_segments; i++) {
        if (given->offsets[i + 1] < given->offsets[i])
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "%s[%lld] is %d; offsets never decrease and the one before is %d",
                            given->offsets_name, (long long)i + 1, given->offsets[i + 1],
                            given->offsets[i]);
    }
    int32_t tokens = given->offsets[num_segments];
    if (given->max_tokens >= 0 && tokens > given->max_tokens)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s ends at %d %s; the ceiling %s is %lld",
                        given->offsets_name, tokens, given->tokens_name, given->tokens_ceiling_name,
                        (long long)given->max_tokens);
    return MSTAR_OK;
}

mstar_status mst_attn_layout_self(const mst_attn_config *config, const int32_t *cu_seqlens,
                                  int64_t num_segments, mst_attn_layout *layout)
{
    side both = {"cu_seqlens", "max_total_tokens", "tokens", cu_seqlens, config->max_total_tokens};
    MST_TRY(check_count(config, "num_segments", num_segments));
    MST_TRY(check_offsets(&both, num_segments));
    int64_t tokens = both.offsets[num_segments];
    *layout = (mst_attn_layout){both.offsets, both.offsets, num_segments, tokens, tokens};
    return MSTAR_OK;
}

mstar_status mst_attn_layout_pair(const mst_attn_config *config, const int32_t *q_cu_seqlens,
                                  int64_t q_num_segments, const int32_t *kv_cu_seqlens,
                                  int64_t kv_num_segments, mst_attn_layout *layout)
{
    side q = {"q_cu_seqlens", "max_total_tokens", "query tokens", q_cu_seqlens,
              config->max_total_tokens};
    side kv = {"kv_cu_seqlens", "max_total_kv_tokens", "key tokens", kv_cu_seqlens,
               config->max_total_kv_tokens};
    if (q_num_segments != kv_num_segments)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "q_num_segments is %lld and kv_num_segments is %lld; both sides must have "
                        "the same number of segments",
                        (long long)q_num_segments, (long long)kv_num_segments);
    MST_TRY(check_count(config, "q_num_segments", q_num_segments));
    MST_TRY(check_offsets(&q, q_num_segments));
    MST_TRY(check_offsets(&kv, kv_num_segments));
    *layout = (mst_attn_layout){q.offsets, kv.offsets, q_num_segments, q.offsets[q_num_segments],
                                kv.offsets[kv_num_segments]};
    return MSTAR_OK;
}

void mst_attn_spread(int64_t total_tokens, int64_t num_segments, int32_t *offsets)
{
    int64_t each = total_tokens / num_segments;
    int64_t first = total_tokens % num_segments;
    offsets[0] = 0;
    for (int64_t i = 1; i <= num_segments; i++)
        offsets[i] = (int32_t)(first + i * each);
}
