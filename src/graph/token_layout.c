/*
 * token_layout.c - how the tokens of a capture lie over its requests.
 */
#include "graph/graph.h"

mstar_status mst_check_layout_size(int64_t total_tokens, int64_t bs)
{
    MST_TRY(mst_check_range("bs", bs, 1, MSTAR_MAX_BATCH_SIZE));
    return mst_check_range("total_tokens", total_tokens, 0, INT32_MAX);
}

mstar_status mstar_distribute_tokens(int64_t total_tokens, int64_t bs, int64_t *lengths)
{
    MST_TRY(mst_check_layout_size(total_tokens, bs));
    MST_TRY(mst_check_not_null("lengths", lengths));
    for (int64_t i = 0; i < bs; i++)
        lengths[i] = total_tokens / bs;
    lengths[0] += total_tokens % bs;
    return MSTAR_OK;
}

mstar_status mstar_decode_rows_then_prompt(int64_t total_tokens, int64_t bs, int64_t *lengths)
{
    MST_TRY(mst_check_layout_size(total_tokens, bs));
    MST_TRY(mst_check_not_null("lengths", lengths));
    if (total_tokens < bs)
        return mstar_distribute_tokens(total_tokens, bs, lengths);
    for (int64_t i = 0; i < bs - 1; i++)
        lengths[i] = 1;
    lengths[bs - 1] = total_tokens - (bs - 1);
    return MSTAR_OK;
}

mstar_status mstar_layout_even(void *user, int64_t total_tokens, int64_t bs, int64_t *lengths)
{
    (void)user;
    return mstar_distribute_tokens(total_tokens, bs, lengths);
}

mstar_status mstar_layout_decode_then_prompt(void *user, int64_t total_tokens, int64_t bs,
                                             int64_t *lengths)
{
    (void)user;
    return mstar_decode_rows_then_prompt(total_tokens, bs, lengths);
}

mstar_status mst_run_layout(mstar_token_layout layout, void *user, int64_t total_tokens, int64_t bs,
                            int64_t *lengths)
{
    for (int64_t i = 0; i < bs; i++)
        lengths[i] = -1; /* a length that the layout leaves out is then a negative one */
    mstar_status status = layout(user, total_tokens, bs, lengths);
    if (status != MSTAR_OK)
        return mst_fail(status,
                        "desc.token_layout answers \"%s\" for %lld tokens over %lld requests",
                        mstar_status_text(status), (long long)total_tokens, (long long)bs);
    int64_t sum = 0;
    for (int64_t i = 0; i < bs; i++) {
        if (lengths[i] < 0 || lengths[i] > total_tokens)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "desc.token_layout lays %lld tokens over %lld requests with length "
                            "%lld at place %lld; each must be from 0 to the total",
                            (long long)total_tokens, (long long)bs, (long long)lengths[i],
                            (long long)i);
        sum += lengths[i];
    }
    if (sum != total_tokens)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "desc.token_layout lays %lld tokens over %lld requests as lengths that sum "
                        "to %lld",
                        (long long)total_tokens, (long long)bs, (long long)sum);
    return MSTAR_OK;
}
