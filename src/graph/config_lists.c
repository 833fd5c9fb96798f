/*
 * config_lists.c - lists and texts that configs copy and check.
 */
#include <string.h>

#include "graph/graph.h"

const int64_t mst_default_batch_sizes[MST_NUM_DEFAULT_BATCH_SIZES] = {1, 2, 4, 8, 16, 32, 64};

/* More than anyone captures, few enough for the search of doubles below. */
#define MAX_LIST 4096

mstar_status mst_copy_integers(const char *name, const int64_t *values, int64_t count, int64_t low,
                               int64_t high, int64_t **copy)
{
    if (count < 0 || count > MAX_LIST)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s has %lld entries; it must have 0 to %d", name,
                        (long long)count, MAX_LIST);
    if (count > 0)
        MST_TRY(mst_check_not_null(name, values));
    for (int64_t i = 0; i < count; i++) {
        if (values[i] < low || values[i] > high)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "%s[%lld] is %lld; it must be from %lld to %lld", name, (long long)i,
                            (long long)values[i], (long long)low, (long long)high);
        for (int64_t j = 0; j < i; j++) {
            if (values[j] == values[i])
                return mst_fail(MSTAR_INVALID_ARGUMENT,
                                "%s[%lld] is %lld, as %s[%lld] is; the same bucket would be "
                                "captured twice",
                                name, (long long)i, (long long)values[i], name, (long long)j);
        }
    }
    MST_TRY(mst_alloc_array(count, sizeof **copy, name, (void **)copy));
    if (count > 0)
        memcpy(*copy, values, (size_t)count * sizeof **copy);
    return MSTAR_OK;
}

mstar_status mst_copy_batch_sizes(const int64_t *sizes, int64_t count, int64_t **copy,
                                  int64_t *copied, int64_t *largest)
{
    if (count == 0) {
        sizes = mst_default_batch_sizes;
        count = MST_NUM_DEFAULT_BATCH_SIZES;
    }
    MST_TRY(
        mst_copy_integers("desc.capture_batch_sizes", sizes, count, 1, MSTAR_MAX_BATCH_SIZE, copy));
    *copied = count;
    *largest = 0;
    for (int64_t i = 0; i < count; i++)
        *largest = mst_max_i64(*largest, sizes[i]);
    return MSTAR_OK;
}

mstar_status mst_parse_type(const char *what, const char *text, const char *const names[2],
                            int *index)
{
    for (int i = 0; i < 2; i++) {
        if (strcmp(text, names[i]) == 0) {
            *index = i;
            return MSTAR_OK;
        }
    }
    return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"%.64s\"; there are \"%s\" and \"%s\"", what,
                    text, names[0], names[1]);
}

mstar_status mst_check_flag(const char *name, int32_t value)
{
    return mst_check_range(name, value, 0, 1);
}

mstar_status mst_copy_text(const char *name, const char *text, bool required, char **copy)
{
    *copy = NULL;
    if (text == NULL && !required)
        return MSTAR_OK;
    MST_TRY(mst_check_not_null(name, text));
    if (required && text[0] == '\0')
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"\"; it must have a name", name);
    return mst_strdup(text, name, copy);
}
