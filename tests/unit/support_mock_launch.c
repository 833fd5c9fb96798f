/* support_mock_launch.c - see the header. */
#include "support_mock_launch.h"

#include <string.h>

#include "cuda/cuda_linear.h"
#include "mock_simt.h"

static bool is_linear(const mst_cuda_kernel *kernel)
{
    return strcmp(kernel->op, "linear") == 0;
}

static bool is_attention(const mst_cuda_kernel *kernel)
{
    return strcmp(kernel->op, "attention") == 0;
}

size_t mock_args_bytes(const mst_cuda_kernel *kernel)
{
    return kernel->described      ? sizeof(mst_cuda_hopper_args)
           : is_attention(kernel) ? sizeof(mst_cuda_attn_args)
           : is_linear(kernel)    ? sizeof(mst_cuda_linear_args)
                                  : sizeof(mst_cuda_row_args);
}

static bool is_right_size(const mst_cuda_launch_config *c, const mst_cuda_kernel *kernel)
{
    bool attention = is_attention(kernel);
    return c->grid_x >= 1 && c->grid_x <= INT32_MAX && c->grid_y >= 1 &&
           c->grid_y <= (attention ? 1 : 65535) && c->grid_z == 1 &&
           (!attention || c->block_x == (unsigned)kernel->threads) && c->block_y == 1 &&
           c->block_z == 1 && (int32_t)c->shared_bytes >= kernel->shared_bytes &&
           c->shared_bytes <= 227 << 10;
}

static bool are_right_attributes(const mst_cuda_launch_config *c, const mst_cuda_kernel *kernel)
{
    return c->num_attributes == 0 ||
           (c->num_attributes == 1 && c->attributes[0].id == MST_CUDA_LAUNCH_OVERLAP &&
            c->attributes[0].padding == 0 && c->attributes[0].value.overlap == 1 &&
            mock_cuda_now()->major >= 9 && kernel->waits);
}

void mock_check_launch(const mst_cuda_launch_config *config, const mst_cuda_kernel *kernel)
{
    if (!is_right_size(config, kernel))
        mock_cuda_fault("a launch of the wrong size");
    if (!are_right_attributes(config, kernel))
        mock_cuda_fault("a launch with attributes that the kernel or the card lacks");
}

/* The kernels for few tiles and for many know their own ways of sharing the work alone. */
static const char *run_linear(const mock_launch *launch)
{
    const mst_cuda_linear_args *args = &launch->args.linear;
    const bool few = strstr(launch->kernel->symbol, "_few_") != NULL;
    if (mst_cuda_fused_is_few(args->sharing) != few)
        return "a product's kernel that lacks the sharing";
    return simt_linear(args, launch->kernel->dtype == MSTAR_DTYPE_BF16);
}

/* A row kernel's own source, over the emulated GPU; a product in plain C. */
static int run_rows(const mock_launch *launch)
{
    const char *wrong = "a launch of a kernel that the emulation lacks";
    simt_kernel *kernel = simt_kernel_find(launch->kernel->symbol);
    if (is_linear(launch->kernel))
        wrong = run_linear(launch);
    else if (kernel != NULL)
        wrong = simt_launch(kernel, &launch->args.rows, launch->grid_x, launch->grid_y,
                            launch->threads);
    if (wrong != NULL)
        mock_cuda_fault(wrong);
    return 0;
}

/* What the copy engine of a card would read has to be what the plain code reads. */
static void check_maps(const mst_cuda_hopper_args *args)
{
    const mst_cuda_attn_args *a = &args->attn;
    simt_map k, v;
    memcpy(&k, args->k.data, sizeof k);
    memcpy(&v, args->v.data, sizeof v);
    if (a->elements || k.data == NULL) /* read by elements, or there are no rows */
        return;
    if (k.data != a->k || v.data != a->v || k.rows != v.rows ||
        k.columns != (uint64_t)a->head_dim || k.row_bytes != (uint64_t)a->k_row_stride * 2 ||
        v.row_bytes != (uint64_t)a->v_row_stride * 2)
        mock_cuda_fault("keys or values are not described as they lie");
}

int mock_run_kernel(const mock_launch *launch)
{
    if (launch->kernel->described) {
        check_maps(&launch->args.hopper);
        return mock_attention_run(mock_cuda_now(), launch->kernel, &launch->args.hopper.attn,
                                  launch->grid_x);
    }
    return is_attention(launch->kernel) ? mock_attention_run(mock_cuda_now(), launch->kernel,
                                                             &launch->args.attn, launch->grid_x)
                                        : run_rows(launch);
}
