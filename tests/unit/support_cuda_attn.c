/* support_cuda_attn.c - see support_cuda_attn.h. */
#include "support_cuda_attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_check.h"

cuda_attn_place gpu;

void cuda_attn_arguments(int argc, char **argv, cuda_attn_launch *launch)
{
    gpu.emulated = argc > 1 && strcmp(argv[1], "emulated") == 0;
    gpu.card = argc > 1 && !gpu.emulated ? argv[1] : NULL;
    gpu.launch = gpu.emulated ? launch : NULL;
}

int cuda_attn_set_up(void **state)
{
    (void)state;
    gpu.aligned = false;
    if (gpu.card == NULL) {
        gpu.mock = mock_cuda_install();
        if (gpu.launch != NULL) { /* few blocks, so that each takes work again and again */
            gpu.mock->run_tile = gpu.launch;
            gpu.mock->multiprocessors = 2;
        }
        CHECK_OK(mock_cuda_open(&gpu.device));
    } else {
        CHECK_OK(mstar_device_open(gpu.card, NULL, &gpu.device));
    }
    CHECK_OK(mstar_stream_create(gpu.device, -1, &gpu.stream));
    return 0;
}

int cuda_attn_tear_down(void **state)
{
    (void)state;
    mstar_stream_destroy(gpu.stream);
    if (gpu.card == NULL) {
        mock_cuda_close(gpu.device);
        mock_cuda_remove();
    } else {
        CHECK_OK(mstar_device_close(gpu.device));
    }
    return 0;
}

void cuda_attn_be_a_card_of(int major)
{
    if (gpu.card == NULL)
        mst_cuda_of(gpu.device)->major = major;
}

static void mirror_make(const attn_block *block, cuda_attn_mirror *made)
{
    size_t offset = block->tensor.data != NULL
                        ? (size_t)((unsigned char *)block->tensor.data - block->bytes)
                        : 0;
    made->at = gpu.aligned ? (16 - offset % 16) % 16 : 0;
    CHECK_OK(mstar_buffer_create(gpu.device, made->at + block->num_bytes, &made->buffer));
    CHECK_OK(
        mstar_buffer_upload(made->buffer, gpu.stream, made->at, block->bytes, block->num_bytes));
    made->tensor = block->tensor;
    made->tensor.device_kind = MSTAR_DEVICE_CUDA;
    made->tensor.device_index = 0;
    if (block->tensor.data != NULL)
        made->tensor.data =
            (unsigned char *)mstar_buffer_get_data(made->buffer) + made->at + offset;
}

void cuda_attn_mirror_fetch(const cuda_attn_mirror *from, attn_block *block)
{
    CHECK_OK(
        mstar_buffer_download(from->buffer, gpu.stream, from->at, block->bytes, block->num_bytes));
    CHECK_OK(mstar_stream_synchronize(gpu.stream));
}

void cuda_attn_mirrors_make(const attn_data *data, cuda_attn_mirrors *made)
{
    mirror_make(&data->q, &made->q);
    mirror_make(&data->k, &made->k);
    mirror_make(&data->v, &made->v);
    mirror_make(&data->out, &made->out);
    mirror_make(&data->lse, &made->lse);
}

void cuda_attn_mirrors_free(cuda_attn_mirrors *made)
{
    mstar_buffer_destroy(made->q.buffer);
    mstar_buffer_destroy(made->k.buffer);
    mstar_buffer_destroy(made->v.buffer);
    mstar_buffer_destroy(made->out.buffer);
    mstar_buffer_destroy(made->lse.buffer);
}

void cuda_attn_run_wrapper(const attn_wrapper *wrapper, const attn_data *data,
                           const cuda_attn_mirrors *m)
{
    CHECK_OK(attn_run(wrapper, gpu.stream, &m->q.tensor, &m->k.tensor, &m->v.tensor, &m->out.tensor,
                      data->lse_tensor != NULL ? &m->lse.tensor : NULL));
}

void cuda_attn_plan_wrapper(const attn_wrapper *wrapper, const attn_problem *problem)
{
    CHECK_OK(attn_plan(wrapper, gpu.stream, problem->q_offsets, problem->num_segments,
                       problem->kv_offsets, problem->num_segments, problem->causal));
}

void cuda_attn_run_problem(const attn_problem *problem, const char *backend, attn_data *data)
{
    mstar_ragged_prefill_desc desc;
    attn_wrapper wrapper;
    cuda_attn_mirrors m;
    attn_problem_desc(problem, &desc);
    desc.backend = backend;
    cuda_attn_mirrors_make(data, &m);
    CHECK_OK(attn_create(gpu.device, problem->kind, &desc, NULL, 0, &wrapper));
    cuda_attn_plan_wrapper(&wrapper, problem);
    cuda_attn_run_wrapper(&wrapper, data, &m);
    cuda_attn_mirror_fetch(&m.out, &data->out);
    cuda_attn_mirror_fetch(&m.lse, &data->lse);
    attn_destroy(&wrapper);
    cuda_attn_mirrors_free(&m);
}

bool cuda_attn_check_problem(const attn_problem *problem, const char *backend)
{
    attn_data data;
    attn_reference reference;
    attn_data_make(problem, &data);
    attn_reference_make(problem, &data, &reference);
    bool good = true;
    if (attn_dots_fit(problem, &reference)) {
        unsigned char *out = attn_block_copy(&data.out);
        unsigned char *lse = attn_block_copy(&data.lse);
        int64_t rows = attn_problem_tokens(problem);
        cuda_attn_run_problem(problem, backend, &data);
        bool rounds = problem->dtype != MSTAR_DTYPE_F32 && backend == NULL;
        good = attn_reference_check(problem, &data, &reference, rounds ? "sm80" : "reference");
        if (!attn_block_same_outside(&data.out, out, 0, rows) ||
            !attn_block_same_outside(&data.lse, lse, 0, problem->return_lse ? rows : 0)) {
            printf("%s: bytes outside the planned rows changed\n", attn_problem_text(problem));
            good = false;
        }
        free(out);
        free(lse);
    }
    attn_reference_free(&reference);
    attn_data_free(&data);
    return good;
}
