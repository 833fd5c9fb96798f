/*
 * cuda_blas.h - the one table of cuBLASLt functions, and what a failed one means.
 *
 * The library is opened at run time, when the first product is made; attention and row operations
 * do without it. Tests put a mock in the table's place. Names and values are the library's own
 * interface, written out so that a build needs none of its headers. Descriptors lie in memory of
 * ours, so that a run allocates nothing.
 */
#ifndef MST_CUDA_BLAS_H
#define MST_CUDA_BLAS_H

#include "cuda/cuda_driver.h"

typedef struct mst_blas_layout {
    uint64_t data[8];
} mst_blas_layout;
typedef struct mst_blas_operation {
    uint64_t data[32];
} mst_blas_operation;
typedef struct mst_blas_algorithm {
    uint64_t data[8];
} mst_blas_algorithm;
typedef struct mst_blas_found {
    mst_blas_algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
} mst_blas_found;

#define MST_BLAS_FUNCTIONS(X)                                                                 \
    X(create, "cublasLtCreate", int, (void **handle))                                         \
    X(destroy, "cublasLtDestroy", int, (void *handle))                                        \
    X(version, "cublasLtGetVersion", size_t, (void))                                          \
    X(status_name, "cublasLtGetStatusName", const char *, (int status))                       \
    X(operation_init, "cublasLtMatmulDescInit_internal", int,                                 \
      (mst_blas_operation * operation, size_t bytes, int compute, int scale))                 \
    X(operation_set, "cublasLtMatmulDescSetAttribute", int,                                   \
      (mst_blas_operation * operation, int attribute, const void *value, size_t bytes))       \
    X(layout_init, "cublasLtMatrixLayoutInit_internal", int,                                  \
      (mst_blas_layout * layout, size_t bytes, int type, uint64_t rows, uint64_t columns,     \
       int64_t distance))                                                                     \
    X(preference_create, "cublasLtMatmulPreferenceCreate", int, (void **preference))          \
    X(preference_destroy, "cublasLtMatmulPreferenceDestroy", int, (void *preference))         \
    X(preference_set, "cublasLtMatmulPreferenceSetAttribute", int,                            \
      (void *preference, int attribute, const void *value, size_t bytes))                     \
    X(find, "cublasLtMatmulAlgoGetHeuristic", int,                                            \
      (void *handle, const mst_blas_operation *operation, const mst_blas_layout *a,           \
       const mst_blas_layout *b, const mst_blas_layout *c, const mst_blas_layout *d,          \
       void *preference, int wanted, mst_blas_found *found, int *count))                      \
    X(check, "cublasLtMatmulAlgoCheck", int,                                                  \
      (void *handle, const mst_blas_operation *operation, const mst_blas_layout *a,           \
       const mst_blas_layout *b, const mst_blas_layout *c, const mst_blas_layout *d,          \
       const mst_blas_algorithm *algorithm, mst_blas_found *found))                           \
    X(config_get, "cublasLtMatmulAlgoConfigGetAttribute", int,                                \
      (const mst_blas_algorithm *algorithm, int attribute, void *value, size_t bytes,         \
       size_t *written))                                                                      \
    X(multiply, "cublasLtMatmul", int,                                                        \
      (void *handle, const mst_blas_operation *operation, const float *alpha, const void *a,  \
       const mst_blas_layout *a_layout, const void *b, const mst_blas_layout *b_layout,       \
       const float *beta, const void *c, const mst_blas_layout *c_layout, void *d,            \
       const mst_blas_layout *d_layout, const mst_blas_algorithm *algorithm, void *workspace, \
       size_t workspace_bytes, void *stream))

typedef struct mst_blas {
#define MST_BLAS_MEMBER(name, symbol, result, arguments) result(*name) arguments;
    MST_BLAS_FUNCTIONS(MST_BLAS_MEMBER)
#undef MST_BLAS_MEMBER
} mst_blas;

enum { MST_BLAS_SUCCESS = 0, MST_BLAS_ALLOC_FAILED = 3, MST_BLAS_NOT_SUPPORTED = 15 };
enum { MST_BLAS_COMPUTE_F32 = 68, MST_BLAS_F32 = 0, MST_BLAS_F16 = 2, MST_BLAS_BF16 = 14 };
enum { /* of an operation */
       MST_BLAS_TRANSPOSE_A = 3,
       MST_BLAS_EPILOGUE = 7,
       MST_BLAS_BIAS_POINTER = 8,
       MST_BLAS_BIAS_TYPE = 26
};
enum { MST_BLAS_EPILOGUE_BIAS = 4 };
enum { /* of a preference */
       MST_BLAS_MAX_WORKSPACE = 1,
       MST_BLAS_REDUCTIONS = 3,
       MST_BLAS_ALIGNMENT_A = 5, /* then b, c and d */
       MST_BLAS_ALIGNMENT_D = 8
};
enum { MST_BLAS_CONFIG_SPLITS = 2, MST_BLAS_CONFIG_REDUCTION = 3 }; /* of an algorithm */

/*
 * The table: libcublasLt.so.13 or .12, opened on the first call and kept. DEVICE_UNAVAILABLE says
 * what is missing. Any thread.
 */
mstar_status mst_blas_get(const mst_blas **blas);
/* For tests: this table instead; NULL: the real one again. Not while a device is open. */
void mst_blas_replace(const mst_blas *blas);
/* MSTAR_OK for 0, else a failure that names what was asked and the library's own word. */
mstar_status mst_blas_check(const mst_blas *blas, int status, const char *what);

#endif
