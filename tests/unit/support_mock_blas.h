/*
 * support_mock_blas.h - cuBLASLt in plain C, on the mock driver's streams.
 *
 * It has an algorithm for each range of row counts. They sum over the keys in ascending order but
 * for one, whose sums have other bits: a backend that mixed it with the others would show.
 * Arguments are held against what a card's kernels demand: no workspace, alignment, a bias of the
 * result's type, as cuBLASLt 13.1 does on an H200. As there, check asks for a word of workspace
 * for many rows.
 */
#ifndef SUPPORT_MOCK_BLAS_H
#define SUPPORT_MOCK_BLAS_H

#include "cuda/cuda_blas.h"

enum { MOCK_BLAS_UP = 1, MOCK_BLAS_UP_TOO = 2, MOCK_BLAS_DOWN = 3, MOCK_BLAS_SPLIT = 4 };

typedef struct mock_blas {
    bool down_is_base; /* the algorithm of other bits is what 1024 rows get */
    bool rows_matter;  /* few rows are summed the other way, whatever the algorithm */
    int fail_find, fail_multiply, fail_create; /* a status, 0: none */
    int64_t multiplies;
    uint64_t last; /* algorithm of the last multiplication */
    int live;      /* handles and preferences */
} mock_blas;

/* Part of mock_cuda_install and mock_cuda_remove. */
void mock_blas_install(void);
void mock_blas_remove(void);
mock_blas *mock_blas_now(void);

#endif
