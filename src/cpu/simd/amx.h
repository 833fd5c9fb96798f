/*
 * amx.h - eight tile registers of 16 rows of 64 bytes, for the level that has them (AMX), or an
 * emulation in plain C (MST_EMULATE_TILES), by which tests run a body that uses them anywhere.
 *
 * A dot of tiles adds to 16 x 16 f32 sums the products of 16 pairs of bf16 each:
 *   c[m][n] += sum over k in 0..15 of a[m][k].lo * b[k][n].lo + a[m][k].hi * b[k][n].hi
 * Products of lower and of upper halves are summed apart, from k = 0 up, then added, and that sum
 * is added to c. Denormal inputs and results count as 0. A product of two bf16 is exact in f32.
 * Tile numbers are constants.
 */
#ifndef MST_SIMD_AMX_H
#define MST_SIMD_AMX_H

#include "base/base.h"

#if defined(MST_ISA_AMX)
#define AMX_TILES 1

#include <immintrin.h>

typedef struct amx_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;
_Static_assert(sizeof(amx_config) == 64, "the layout that ldtilecfg reads");

/* A thread opens the tiles before it uses them and closes them after. */
static inline void amx_open(void)
{
    amx_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}
static inline void amx_close(void)
{
    _tile_release();
}
/* gcc's tile loads do not say that they read memory: what is stored before this is in place. */
static inline void amx_after_stores(void)
{
    __asm__ volatile("" ::: "memory");
}
#define amx_zero(tile) _tile_zero(tile)
/* 16 rows of 64 bytes, stride bytes apart. */
#define amx_load(tile, from, stride) _tile_loadd(tile, from, stride)
#define amx_store(tile, to, stride) _tile_stored(tile, to, stride)
#define amx_dot(c, a, b) _tile_dpbf16ps(c, a, b)

#elif defined(MST_EMULATE_TILES)
#define AMX_TILES 1

#include <math.h>
#include <string.h>

static _Thread_local uint32_t amx_tiles[8][16][16];

static inline void amx_open(void) {}
static inline void amx_close(void) {}
static inline void amx_after_stores(void) {}
static inline void amx_zero(int tile)
{
    memset(amx_tiles[tile], 0, sizeof amx_tiles[tile]);
}
static inline void amx_load(int tile, const void *from, size_t stride)
{
    for (size_t row = 0; row < 16; row++)
        memcpy(amx_tiles[tile][row], (const char *)from + row * stride, 64);
}
static inline void amx_store(int tile, void *to, size_t stride)
{
    for (size_t row = 0; row < 16; row++)
        memcpy((char *)to + row * stride, amx_tiles[tile][row], 64);
}
static inline float amx_flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? 0.0f : x;
}
static inline float amx_half(uint32_t pair, int upper)
{
    uint32_t bits = upper ? pair & 0xffff0000U : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return amx_flushed(x);
}
static inline void amx_dot(int c, int a, int b)
{
    float halves[2][16][16]; /* of b */
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 16; k++) {
            for (int n = 0; n < 16; n++)
                halves[i][k][n] = amx_half(amx_tiles[b][k][n], i);
        }
    }
    for (int m = 0; m < 16; m++) {
        float sums[2][16] = {{0.0f}};
        for (int k = 0; k < 16; k++) {
            for (int i = 0; i < 2; i++) {
                float x = amx_half(amx_tiles[a][m][k], i);
                for (int n = 0; n < 16; n++)
                    sums[i][n] = amx_flushed(sums[i][n] + x * halves[i][k][n]);
            }
        }
        float total[16];
        memcpy(total, amx_tiles[c][m], sizeof total);
        for (int n = 0; n < 16; n++)
            total[n] = amx_flushed(total[n] + amx_flushed(sums[0][n] + sums[1][n]));
        memcpy(amx_tiles[c][m], total, sizeof total);
    }
}

#else
#define AMX_TILES 0

/* A body without tiles opens none. */
static inline void amx_open(void) {}
static inline void amx_close(void) {}
#endif

#endif
