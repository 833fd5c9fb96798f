/* mock_row_kernels.c - the row kernels' own source over the emulated GPU. */
#include "mock_simt.h"

#include "cuda/cuda_driver.h"

#include "cuda/row_kernels.cu"

simt_kernel *simt_kernel_find(const char *symbol)
{
    static const struct {
        const char *symbol;
        simt_kernel *kernel;
    } kernels[] = {{"mst_layer_norm_sm80", mst_layer_norm_sm80},
                   {"mst_rms_norm_sm80", mst_rms_norm_sm80},
                   {"mst_normalize_sm80", mst_normalize_sm80},
                   {"mst_activation_sm80", mst_activation_sm80},
                   {"mst_embedding_sm80", mst_embedding_sm80},
                   {"mst_pooling_sm80", mst_pooling_sm80},
                   {"mst_rotary_sm80", mst_rotary_sm80},
                   {"mst_layer_norm_few_sm80", mst_layer_norm_few_sm80},
                   {"mst_rms_norm_few_sm80", mst_rms_norm_few_sm80}};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].symbol, symbol) == 0)
            return kernels[i].kernel;
    }
    return NULL;
}

/* ---- the product ----------------------------------------------------------------------------- */

int simt_map_encode(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                    int interleave, int swizzle, int promotion, int fill)
{
    if ((type != MST_CUDA_MAP_BF16 && type != MST_CUDA_MAP_F16) || rank < 2 || rank > 3 ||
        (uintptr_t)address % 16 != 0 || box[0] * 2 > 128 || interleave != 0 ||
        swizzle != MST_CUDA_MAP_SWIZZLE_128 || promotion < 0 || fill != 0)
        return MST_CUDA_INVALID_VALUE;
    for (uint32_t i = 0; i < rank; i++) {
        if (sizes[i] < 1 || sizes[i] > UINT32_MAX || box[i] < 1 || box[i] > 256 || steps[i] != 1)
            return MST_CUDA_INVALID_VALUE;
        if (i > 0 && (strides[i - 1] % 16 != 0 || strides[i - 1] >= (uint64_t)1 << 40 ||
                      strides[i - 1] < sizes[0] * 2))
            return MST_CUDA_INVALID_VALUE;
    }
    const simt_map made = {address, sizes[0], sizes[rank - 1], strides[rank - 2]};
    memcpy(map, &made, sizeof made);
    return 0;
}

static simt_map map_of(const mst_cuda_tensor_map *map)
{
    simt_map m;
    memcpy(&m, map->data, sizeof m);
    return m;
}

/* Of a matrix with so many elements in a row. */
static float element(const void *data, int64_t at, bool is_f32, bool is_bf16)
{
    if (is_f32)
        return ((const float *)data)[at];
    uint16_t half = ((const uint16_t *)data)[at];
    return is_bf16 ? from_bf16(half) : from_f16(half);
}

int32_t simt_odd_sharing = -1, simt_idle_sharing = -1;

static float linear_sum(const mst_cuda_linear_args *a, int64_t row, int64_t column, bool is_bf16)
{
    simt_map x = map_of(&a->x), w = map_of(&a->weights);
    float sum = 0.0f;
    for (int64_t step = 0; step < a->in_features; step++) {
        int64_t i = a->sharing == simt_odd_sharing ? a->in_features - 1 - step : step;
        sum += element(x.data, row * (int64_t)(x.row_bytes / 2) + i, false, is_bf16) *
               element(w.data, column * (int64_t)(w.row_bytes / 2) + i, false, is_bf16);
    }
    return sum;
}

const char *simt_linear(const mst_cuda_linear_args *a, bool is_bf16)
{
    simt_map x = map_of(&a->x), w = map_of(&a->weights);
    int64_t rows = a->live == NULL ? a->num_rows : min_i64(*a->live, a->num_rows);
    bool out_f32 = a->out_type == MST_CUDA_LINEAR_F32;
    if ((int64_t)x.columns != a->in_features || (int64_t)x.rows != a->num_rows ||
        w.columns != x.columns || (int64_t)w.rows != a->out_features)
        return "the matrices of a product are not those of its maps";
    if (a->sharing < 0 || a->sharing >= MST_CUDA_LINEAR_NUM_SHARINGS)
        return "the work of a product is not shared in a known way";
    if ((uintptr_t)a->out % 16 != 0 || a->out_stride * (out_f32 ? 4 : 2) % 16 != 0)
        return "the result of a product is not aligned";
    if (a->sharing == simt_idle_sharing)
        return NULL;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < a->out_features; i++) {
            int64_t at = row * a->out_stride + i;
            float y = activate(a->activation, linear_sum(a, row, i, is_bf16) + a->bias[i]);
            if (a->residual != NULL)
                y = y + element(a->residual, row * a->residual_stride + i,
                                a->residual_type == MST_CUDA_LINEAR_F32, is_bf16);
            if (out_f32)
                ((float *)a->out)[at] = y;
            else
                ((uint16_t *)a->out)[at] = is_bf16 ? to_bf16(y) : to_f16(y);
        }
    }
    return NULL;
}
