/*
 * support_attn_levels.c - devices of the attention tests: one for each ISA level of this machine
 * or the GPU, and one whose attention is body_attn.c over tile registers emulated in plain C.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support_attn.h"
#include "support_card.h"

/* The attention body over emulated tile registers: body_attn.c as compiled for the tests. */
size_t mst_attn_scratch_bytes_emulated(const mst_attn_shape *shape);
mst_attn_tile mst_attn_tile_choose_emulated(const mst_attn_shape *shape, int64_t lq, int64_t lk);
void mst_attn_items_run_emulated(const mst_attn_call *call, const mst_attn_item *items,
                                 int64_t num_items, const mst_attn_item *next, void *scratch);

static void emulate_tiles(mstar_device *device)
{
    static mst_kernels kernels;
    kernels = mst_kernels_scalar;
    kernels.attn_scratch_bytes = mst_attn_scratch_bytes_emulated;
    kernels.attn_tile = mst_attn_tile_choose_emulated;
    kernels.attn_items = mst_attn_items_run_emulated;
    mst_cpu *cpu = device->impl;
    cpu->kernels = &kernels;
}

mstar_device *attn_open(const char *isa, int32_t num_threads, mstar_parallel_for host)
{
    if (strcmp(isa, ATTN_CARD) == 0)
        return card_open_threads(num_threads);
    bool emulated = strcmp(isa, ATTN_EMULATED) == 0;
    mstar_device_desc desc;
    mstar_device *device = NULL;
    mstar_device_desc_init(&desc);
    desc.num_threads = num_threads;
    desc.max_isa = emulated ? "scalar" : isa;
    desc.parallel_for = host;
    if (mstar_device_open("cpu", &desc, &device) != MSTAR_OK)
        fail_msg("open: %s", mstar_last_error());
    if (emulated)
        emulate_tiles(device);
    return device;
}

void attn_close(mstar_device *device)
{
    card_close(device);
}

void attn_isas_open(attn_isas *isas, int32_t num_threads)
{
#define LEVEL_NAME(LEVEL, level, unused) #level,
    static const char *const levels[ATTN_MAX_ISAS] = {MST_FOR_EACH_ISA(LEVEL_NAME, _)
                                                          ATTN_EMULATED};
    memset(isas, 0, sizeof *isas);
    if (level_is_card()) {
        isas->name[0] = ATTN_CARD;
        isas->device[0] = attn_open(ATTN_CARD, num_threads, NULL);
        isas->count = 1;
        return;
    }
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        mstar_device *device = attn_open(levels[i], num_threads, NULL);
        mstar_device_info info = {.struct_size = sizeof info};
        assert_int_equal(mstar_device_query(device, &info), MSTAR_OK);
        if (strcmp(info.isa, levels[i]) != 0 && strcmp(levels[i], ATTN_EMULATED) != 0) {
            /* a level below is the best here */
            assert_int_equal(mstar_device_close(device), MSTAR_OK);
            continue;
        }
        printf("attention body that ran: %s\n", levels[i]);
        isas->name[isas->count] = levels[i];
        isas->device[isas->count] = device;
        isas->count++;
    }
    assert_true(isas->count >= 2);
}

void attn_isas_close(attn_isas *isas)
{
    for (int32_t i = 0; i < isas->count; i++)
        attn_close(isas->device[i]);
    isas->count = 0;
}
