/*
 * cpu_depend.c - which launches of a recording wait for which, and the waves in which they run.
 *
 * For each launch a row of bits says which earlier ones come before it, directly or not. Walking
 * back from a launch and skipping what is already reached finds exactly the pairs with nothing in
 * between, and a chain, which a forward mostly is, costs one question a launch.
 *
 * A wave starts at the first launch that is left and takes, from a window behind it, each launch
 * that waits for nothing unfinished. The window keeps the recorded order nearly as it is: that
 * order is the one in which values are still in cache.
 */
#include <string.h>

#include "cpu/cpu_launch.h"

static bool has(const uint64_t *row, int64_t i)
{
    return (row[i / 64] >> (i % 64) & 1) != 0;
}

/* True when nothing that launch waits for is left: every bit of before is in finished. */
static bool is_free(const uint64_t *before, const uint64_t *finished, int64_t words)
{
    for (int64_t w = 0; w < words; w++) {
        if ((before[w] & ~finished[w]) != 0)
            return false;
    }
    return true;
}

static int64_t reach(int64_t num_launches, int64_t words,
                     bool (*conflict)(const void *context, int64_t i, int64_t j),
                     const void *context, uint64_t *before)
{
    int64_t edges = 0;
    for (int64_t j = 0; j < num_launches; j++) {
        uint64_t *row = before + j * words;
        for (int64_t i = j - 1; i >= 0; i--) {
            if (has(row, i) || !conflict(context, i, j))
                continue;
            edges++;
            for (int64_t w = 0; w < words; w++)
                row[w] |= before[i * words + w];
            row[i / 64] |= (uint64_t)1 << (i % 64);
        }
    }
    return edges;
}

static int64_t cut_waves(int64_t num_launches, int64_t words, const uint64_t *before,
                         uint64_t *finished, int64_t *wave)
{
    int64_t num_waves = 0;
    for (int64_t i = 0; i < num_launches; i++)
        wave[i] = -1;
    for (int64_t first = 0; first < num_launches; first++) {
        if (wave[first] >= 0)
            continue;
        int64_t end = mst_min_i64(first + MST_WAVE_WINDOW, num_launches);
        for (int64_t i = first; i < end; i++) {
            if (wave[i] < 0 && is_free(before + i * words, finished, words))
                wave[i] = num_waves;
        }
        for (int64_t i = first; i < end; i++) {
            if (wave[i] == num_waves)
                finished[i / 64] |= (uint64_t)1 << (i % 64);
        }
        num_waves++;
    }
    return num_waves;
}

mstar_status mst_depend(int64_t num_launches,
                        bool (*conflict)(const void *context, int64_t i, int64_t j),
                        const void *context, int64_t *wave, int64_t *num_waves, int64_t *num_edges)
{
    int64_t words = mst_ceil_div(mst_max_i64(num_launches, 1), 64);
    void *memory;
    MST_TRY(
        mst_alloc_array((num_launches + 1) * words, sizeof(uint64_t), "order of a graph", &memory));
    uint64_t *before = memory;
    *num_edges = reach(num_launches, words, conflict, context, before);
    *num_waves = cut_waves(num_launches, words, before, before + num_launches * words, wave);
    mst_free(memory);
    return MSTAR_OK;
}
