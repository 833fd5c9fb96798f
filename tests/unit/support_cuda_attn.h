/*
 * support_cuda_attn.h - what the tests of attention on a GPU share: where they run (a card, the
 * mock driver, or the mock with an emulated GPU that runs the kernels' own source), and problems
 * there.
 */
#ifndef SUPPORT_CUDA_ATTN_H
#define SUPPORT_CUDA_ATTN_H

#include "attn/attn.h"
#include "support_attn.h"
#include "support_mock_cuda.h"

/* Runs the kernels' own source: emulated_launch of emulated_kernels.h. */
typedef const char *cuda_attn_launch(const char *symbol, const mst_cuda_attn_args *args,
                                     unsigned grid, size_t shared_bytes, unsigned seed);

typedef struct cuda_attn_place {
    const char *card; /* "cuda:0", or NULL for the mock */
    bool emulated;    /* the mock runs the kernels' own source: slow, so there is less of it */
    cuda_attn_launch *launch;
    mock_cuda *mock;
    mstar_device *device;
    mstar_stream *stream;
    /* Tests' own tensors begin off any alignment. Where this is set, the device's copy begins on 16
     * bytes, so that with a head dim of a multiple of 8 and no gaps the kernels copy rows by 16
     * bytes, not by elements. */
    bool aligned;
} cuda_attn_place;
extern cuda_attn_place gpu;

/* From main: no argument, a card's name, or "emulated" with what runs a kernel then. */
void cuda_attn_arguments(int argc, char **argv, cuda_attn_launch *launch);
int cuda_attn_set_up(void **state);
int cuda_attn_tear_down(void **state);

/* A block of a problem on the device. */
typedef struct cuda_attn_mirror {
    mstar_buffer *buffer;
    mstar_tensor tensor;
    size_t at; /* of the block in the buffer */
} cuda_attn_mirror;

typedef struct cuda_attn_mirrors {
    cuda_attn_mirror q, k, v, out, lse;
} cuda_attn_mirrors;

/* Off a card: one of this compute capability, which other kernels are for. */
void cuda_attn_be_a_card_of(int major);
void cuda_attn_mirror_fetch(const cuda_attn_mirror *from, attn_block *block);
void cuda_attn_mirrors_make(const attn_data *data, cuda_attn_mirrors *made);
void cuda_attn_mirrors_free(cuda_attn_mirrors *made);

void cuda_attn_plan_wrapper(const attn_wrapper *wrapper, const attn_problem *problem);
void cuda_attn_run_wrapper(const attn_wrapper *wrapper, const attn_data *data,
                           const cuda_attn_mirrors *m);
/* Runs a problem and brings out and lse back into data. */
void cuda_attn_run_problem(const attn_problem *problem, const char *backend, attn_data *data);
/* Numbers against float64, and not a byte outside the planned rows. */
bool cuda_attn_check_problem(const attn_problem *problem, const char *backend);

#endif
