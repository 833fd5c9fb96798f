/*
 * graph_rules.c - the runner's small decisions: slots, padding handles, the varying dimension, and
 * which captures fit into memory.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"

int32_t mstar_graph_num_slots(int forces_double, int can_pre_plan, int pre_plan_on,
                              int32_t wished_slots)
{
    bool doubled = forces_double || (can_pre_plan && pre_plan_on);
    if (!doubled)
        return 1;
    return wished_slots < 2 ? 2 : wished_slots;
}

mstar_status mstar_graph_pad_handles(const int64_t *real, int64_t num_real, int64_t bs,
                                     int64_t first_handle, int64_t *padded)
{
    MST_TRY(mst_check_range("bs", bs, 0, MSTAR_MAX_BATCH_SIZE));
    MST_TRY(mst_check_range("num_real", num_real, 0, bs));
    MST_TRY(mst_check_range("first_handle", first_handle, INT64_MIN / 2, -2));
    if (num_real > 0)
        MST_TRY(mst_check_not_null("real", real));
    if (bs > 0)
        MST_TRY(mst_check_not_null("padded", padded));
    for (int64_t i = 0; i < num_real; i++) {
        if (real[i] < 0)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "real[%lld] is %lld; handles of requests are 0 or more", (long long)i,
                            (long long)real[i]);
    }
    for (int64_t i = 0; i < bs; i++)
        padded[i] = i < num_real ? real[i] : first_handle - i;
    return MSTAR_OK;
}

/* Batches up to here are compared pair by pair, which is quicker than sorting them. */
#define FEW_REQUESTS 128

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Ascending handles, the usual ones, take one look. */
mstar_status mst_check_distinct(const char *name, const int64_t *requests, int64_t count)
{
    int64_t ascending = 1;
    while (ascending < count && requests[ascending] > requests[ascending - 1])
        ascending++;
    int64_t twice = -1;
    if (ascending < count && count <= FEW_REQUESTS) {
        for (int64_t i = 1; i < count && twice < 0; i++)
            for (int64_t j = 0; j < i && twice < 0; j++)
                twice = requests[i] == requests[j] ? requests[i] : -1;
    } else if (ascending < count) {
        int64_t *sorted;
        MST_TRY(mst_alloc_array(count, sizeof *sorted, "requests of a step", (void **)&sorted));
        memcpy(sorted, requests, (size_t)count * sizeof *sorted);
        qsort(sorted, (size_t)count, sizeof *sorted, by_value);
        for (int64_t i = 1; i < count && twice < 0; i++)
            twice = sorted[i] == sorted[i - 1] ? sorted[i] : -1;
        mst_free(sorted);
    }
    return twice < 0
               ? MSTAR_OK
               : mst_fail(MSTAR_INVALID_ARGUMENT, "%s has %lld twice; a request is in a step once",
                          name, (long long)twice);
}

mstar_status mstar_graph_choose_seq_dim(const mstar_tensor *tensor, int64_t num_tokens,
                                        int32_t override_dim, int32_t *dim)
{
    MST_TRY(mst_check_not_null("tensor", tensor));
    MST_TRY(mst_check_not_null("dim", dim));
    MST_TRY(mst_check_range("tensor.rank", tensor->rank, 1, MSTAR_MAX_RANK));
    MST_TRY(mst_check_range("override_dim", override_dim, -1, tensor->rank - 1));
    int32_t found = 0;
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->shape[i] == num_tokens)
            found = i;
    }
    *dim = override_dim >= 0 ? override_dim : found;
    return MSTAR_OK;
}

int64_t mstar_graph_fit_budget(int64_t free_bytes, int64_t floor_bytes, const int64_t *needs_bytes,
                               int64_t num_needs, uint8_t *keep)
{
    for (int64_t i = 0; i < num_needs; i++) {
        int64_t left;
        keep[i] = needs_bytes[i] >= 0 &&
                  !__builtin_sub_overflow(free_bytes, needs_bytes[i], &left) && left >= floor_bytes;
        if (keep[i])
            free_bytes = left;
    }
    return free_bytes;
}
