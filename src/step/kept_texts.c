/* kept_texts.c - texts kept once: labels and keys come again with every step. */
#include <string.h>

#include "step/step.h"

mstar_status mst_texts_keep(mst_texts *texts, const char *text, const char **kept)
{
    for (int64_t i = 0; i < texts->count; i++) {
        if (strcmp(texts->items[i], text) == 0) {
            *kept = texts->items[i];
            return MSTAR_OK;
        }
    }
    void *items = texts->items;
    MST_TRY(mst_grow(&items, &texts->capacity, texts->count + 1, sizeof *texts->items, "texts"));
    texts->items = items;
    MST_TRY(mst_strdup(text, "text", &texts->items[texts->count]));
    *kept = texts->items[texts->count++];
    return MSTAR_OK;
}

void mst_texts_release(mst_texts *texts)
{
    for (int64_t i = 0; i < texts->count; i++)
        mst_free(texts->items[i]);
    mst_free(texts->items);
    *texts = (mst_texts){NULL, 0, 0};
}

size_t mst_texts_bytes(const mst_texts *texts)
{
    size_t bytes = (size_t)texts->capacity * sizeof *texts->items;
    for (int64_t i = 0; i < texts->count; i++)
        bytes += strlen(texts->items[i]) + 1;
    return bytes;
}

static bool is_among(const char *text, const char *const *list, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (list[i] != NULL && strcmp(list[i], text) == 0)
            return true;
    }
    return false;
}

size_t mst_texts_growth(const mst_texts *texts, const char *const *more, int64_t count)
{
    int64_t fresh = 0;
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (more[i] == NULL || is_among(more[i], more, i) ||
            is_among(more[i], (const char *const *)texts->items, texts->count))
            continue;
        fresh++;
        bytes += strlen(more[i]) + 1;
    }
    int64_t grown = mst_grown(texts->capacity, texts->count + fresh);
    return bytes + (size_t)(grown - texts->capacity) * sizeof *texts->items;
}
