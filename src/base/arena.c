/* arena.c - one block cut into aligned pieces; counts first, fills second. */
#include "base/base.h"

void mst_arena_count(mst_arena *arena)
{
    *arena = (mst_arena){NULL, 0, 0, false};
}

void mst_arena_over(mst_arena *arena, void *base, size_t capacity)
{
    *arena = (mst_arena){base, capacity, 0, false};
}

void *mst_arena_take(mst_arena *arena, int64_t count, size_t size)
{
    size_t bytes;
    size_t used;
    if (count < 0 || __builtin_mul_overflow((size_t)count, size, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)MST_CACHE_LINE - 1, &bytes) ||
        __builtin_add_overflow(arena->used, bytes & ~((size_t)MST_CACHE_LINE - 1), &used)) {
        arena->overflowed = true;
        return NULL;
    }
    if (arena->base == NULL) {
        arena->used = used;
        return NULL;
    }
    if (used > arena->capacity) {
        arena->overflowed = true;
        return NULL;
    }
    void *piece = arena->base + arena->used;
    arena->used = used;
    return piece;
}
