/* mock_row_kernels.c - the row kernels' own source over the emulated GPU. */
#include "mock_simt.h"

#include "cuda/row_kernels.cu"

simt_kernel *simt_kernel_find(const char *symbol)
{
    static const struct {
        const char *symbol;
        simt_kernel *kernel;
    } kernels[] = {
        {"mst_layer_norm_sm80", mst_layer_norm_sm80}, {"mst_rms_norm_sm80", mst_rms_norm_sm80},
        {"mst_normalize_sm80", mst_normalize_sm80},   {"mst_activation_sm80", mst_activation_sm80},
        {"mst_embedding_sm80", mst_embedding_sm80},   {"mst_pooling_sm80", mst_pooling_sm80},
        {"mst_rotary_sm80", mst_rotary_sm80}};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (strcmp(kernels[i].symbol, symbol) == 0)
            return kernels[i].kernel;
    }
    return NULL;
}
