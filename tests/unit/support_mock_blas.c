/* support_mock_blas.c - see support_mock_blas.h. */
#include "support_mock_blas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support_check.h"
#include "support_mock_cuda.h"

static mock_blas mock;
enum { INVALID_VALUE = 7 };

/* What the opaque descriptors hold here. */
typedef struct operation {
    int32_t compute, transpose_a, bias_type;
    uint32_t epilogue;
    const float *bias;
} operation;
typedef struct layout {
    int32_t type;
    int64_t rows, columns, distance;
} layout;
typedef struct preference {
    uint64_t workspace;
    uint32_t reductions, alignment[4];
} preference;

static operation read_operation(const mst_blas_operation *from)
{
    operation o;
    memcpy(&o, from->data, sizeof o);
    return o;
}
static layout read_layout(const mst_blas_layout *from)
{
    layout l;
    memcpy(&l, from->data, sizeof l);
    return l;
}

static int b_create(void **handle)
{
    if (mock.fail_create != 0)
        return mock.fail_create;
    *handle = &mock;
    mock.live++;
    return 0;
}
static int b_destroy(void *handle)
{
    (void)handle;
    mock.live--;
    return 0;
}
static size_t b_version(void)
{
    return 130000;
}
static const char *b_status_name(int status)
{
    return status == 15 ? "MOCK_NOT_SUPPORTED" : "MOCK_STATUS";
}
static int b_operation_init(mst_blas_operation *to, size_t bytes, int compute, int scale)
{
    const operation o = {.compute = compute, .bias_type = -1, .epilogue = 1};
    memset(to, 0, bytes);
    memcpy(to->data, &o, sizeof o);
    return scale == MST_BLAS_F32 && compute == MST_BLAS_COMPUTE_F32 ? 0 : INVALID_VALUE;
}
static int b_operation_set(mst_blas_operation *to, int attribute, const void *value, size_t bytes)
{
    operation o = read_operation(to);
    void *field = attribute == MST_BLAS_TRANSPOSE_A    ? (void *)&o.transpose_a
                  : attribute == MST_BLAS_EPILOGUE     ? (void *)&o.epilogue
                  : attribute == MST_BLAS_BIAS_POINTER ? (void *)&o.bias
                  : attribute == MST_BLAS_BIAS_TYPE    ? (void *)&o.bias_type
                                                       : NULL;
    size_t wanted = attribute == MST_BLAS_BIAS_POINTER ? sizeof o.bias : sizeof(int32_t);
    if (field == NULL || bytes != wanted)
        return INVALID_VALUE;
    memcpy(field, value, bytes);
    memcpy(to->data, &o, sizeof o);
    return 0;
}
static int b_layout_init(mst_blas_layout *to, size_t bytes, int type, uint64_t rows,
                         uint64_t columns, int64_t distance)
{
    const layout l = {type, (int64_t)rows, (int64_t)columns, distance};
    memset(to, 0, bytes);
    memcpy(to->data, &l, sizeof l);
    return distance >= (int64_t)rows ? 0 : INVALID_VALUE;
}
static int b_preference_create(void **made)
{
    preference *p = calloc(1, sizeof *p);
    *p = (preference){1 << 20, 7, {256, 256, 256, 256}};
    *made = p;
    mock.live++;
    return 0;
}
static int b_preference_destroy(void *gone)
{
    free(gone);
    mock.live--;
    return 0;
}
static int b_preference_set(void *to, int attribute, const void *value, size_t bytes)
{
    preference *p = to;
    if (attribute == MST_BLAS_MAX_WORKSPACE && bytes == sizeof p->workspace)
        memcpy(&p->workspace, value, bytes);
    else if (attribute == MST_BLAS_REDUCTIONS && bytes == sizeof p->reductions)
        memcpy(&p->reductions, value, bytes);
    else if (attribute >= MST_BLAS_ALIGNMENT_A && attribute <= MST_BLAS_ALIGNMENT_D &&
             bytes == sizeof p->alignment[0])
        memcpy(&p->alignment[attribute - MST_BLAS_ALIGNMENT_A], value, bytes);
    else
        return INVALID_VALUE;
    return 0;
}

/* The library takes a bias of its result's type alone. */
static bool has(const mst_blas_operation *op, const mst_blas_layout *d)
{
    return read_operation(op).bias_type == read_layout(d).type;
}

/* A split algorithm first, as a careless library would; then the one for so many rows. */
static int b_find(void *handle, const mst_blas_operation *op, const mst_blas_layout *a,
                  const mst_blas_layout *b, const mst_blas_layout *c, const mst_blas_layout *d,
                  void *given, int wanted, mst_blas_found *found, int *count)
{
    const preference *p = given;
    int64_t rows = read_layout(d).columns;
    (void)handle;
    (void)a;
    (void)b;
    (void)c;
    if (mock.fail_find != 0)
        return mock.fail_find;
    if (p->workspace != 0 || p->reductions != 0 || p->alignment[0] != 16 || p->alignment[3] != 16)
        mock_cuda_fault("a preference leaves room for splits, or asks for another alignment");
    if (!has(op, d) || wanted < 2) {
        *count = 0;
        return INVALID_VALUE;
    }
    bool down = mock.down_is_base ? rows >= 1024 : rows <= 64;
    found[0].algorithm.data[0] = MOCK_BLAS_SPLIT;
    found[1].algorithm.data[0] = down          ? MOCK_BLAS_DOWN
                                 : rows <= 256 ? MOCK_BLAS_UP
                                               : MOCK_BLAS_UP_TOO;
    found[0].status = found[1].status = 0;
    *count = 2;
    return 0;
}
/* Asks for a counter of tiles where there are many, which a product does without. */
static int b_check(void *handle, const mst_blas_operation *op, const mst_blas_layout *a,
                   const mst_blas_layout *b, const mst_blas_layout *c, const mst_blas_layout *d,
                   const mst_blas_algorithm *algorithm, mst_blas_found *found)
{
    (void)handle;
    (void)a;
    (void)b;
    (void)c;
    (void)algorithm;
    found->workspace_bytes = read_layout(d).columns > 64 ? 4 : 0;
    return has(op, d) ? 0 : INVALID_VALUE;
}
static int b_config_get(const mst_blas_algorithm *algorithm, int attribute, void *value,
                        size_t bytes, size_t *written)
{
    int32_t parts = algorithm->data[0] == MOCK_BLAS_SPLIT ? 4 : 1;
    uint32_t reduction = 0;
    if (bytes != sizeof parts)
        return INVALID_VALUE;
    memcpy(value,
           attribute == MST_BLAS_CONFIG_SPLITS ? (const void *)&parts : (const void *)&reduction,
           bytes);
    *written = bytes;
    return 0;
}

/* ---- the product ----------------------------------------------------------------------------- */

typedef struct multiplication {
    const void *weights, *x;
    void *out;
    const float *bias;
    int64_t n, k, rows, w_distance, x_distance, out_distance;
    mstar_dtype dtype, out_dtype;
    uint64_t algorithm;
} multiplication;

static mstar_dtype dtype_of(int type)
{
    return type == MST_BLAS_F32    ? MSTAR_DTYPE_F32
           : type == MST_BLAS_BF16 ? MSTAR_DTYPE_BF16
                                   : MSTAR_DTYPE_F16;
}

/* A row of sums, each in one order; w is [k, n]. */
static void multiply_row(const multiplication *m, int64_t row, const float *w, bool up, float *sums)
{
    memset(sums, 0, (size_t)m->n * sizeof *sums);
    for (int64_t step = 0; step < m->k; step++) {
        int64_t i = up ? step : m->k - 1 - step;
        float x = mst_load_element(m->x, m->dtype, row * m->x_distance + i);
        for (int64_t j = 0; j < m->n; j++)
            sums[j] += x * w[i * m->n + j];
    }
    for (int64_t j = 0; j < m->n; j++)
        mst_store_element(m->out, m->out_dtype, row * m->out_distance + j, sums[j] + m->bias[j]);
}

static void multiply(const void *args)
{
    multiplication m;
    memcpy(&m, args, sizeof m);
    float *w = calloc((size_t)(m.n * m.k), sizeof *w);
    float *sums = calloc((size_t)m.n, sizeof *sums);
    for (int64_t j = 0; j < m.n; j++) {
        for (int64_t i = 0; i < m.k; i++)
            w[i * m.n + j] = mst_load_element(m.weights, m.dtype, j * m.w_distance + i);
    }
    bool up = m.algorithm != MOCK_BLAS_DOWN && !(mock.rows_matter && m.rows <= 16);
    for (int64_t row = 0; row < m.rows; row++)
        multiply_row(&m, row, w, up, sums);
    free(w);
    free(sums);
}

static bool on_16(const void *data, const layout *l)
{
    return (uintptr_t)data % 16 == 0 &&
           (size_t)l->distance * mstar_dtype_bytes(dtype_of(l->type)) % 16 == 0;
}

static int b_multiply(void *handle, const mst_blas_operation *op, const float *alpha, const void *a,
                      const mst_blas_layout *a_layout, const void *b,
                      const mst_blas_layout *b_layout, const float *beta, const void *c,
                      const mst_blas_layout *c_layout, void *d, const mst_blas_layout *d_layout,
                      const mst_blas_algorithm *algorithm, void *workspace, size_t workspace_bytes,
                      void *stream)
{
    operation o = read_operation(op);
    layout w = read_layout(a_layout), x = read_layout(b_layout), out = read_layout(d_layout);
    if (mock.fail_multiply != 0) {
        int status = mock.fail_multiply;
        mock.fail_multiply = 0;
        return status;
    }
    if (handle != &mock || *alpha != 1.0F || *beta != 0.0F || c != d || workspace != NULL ||
        workspace_bytes != 0 || o.transpose_a != 1 || o.epilogue != MST_BLAS_EPILOGUE_BIAS ||
        memcmp(c_layout, d_layout, sizeof *c_layout) != 0)
        mock_cuda_fault("a product is not the one that is meant");
    if (w.rows != x.rows || w.columns != out.rows || x.columns != out.columns || w.type != x.type)
        mock_cuda_fault("the matrices of a product do not fit");
    if (!on_16(a, &w) || !on_16(b, &x) || !on_16(d, &out))
        mock_cuda_fault("a matrix of a product is not aligned as was told");
    if (!has(op, d_layout))
        return INVALID_VALUE;
    const multiplication m = {.weights = a,
                              .x = b,
                              .out = d,
                              .bias = o.bias,
                              .n = w.columns,
                              .k = w.rows,
                              .rows = x.columns,
                              .w_distance = w.distance,
                              .x_distance = x.distance,
                              .out_distance = out.distance,
                              .dtype = dtype_of(w.type),
                              .out_dtype = dtype_of(out.type),
                              .algorithm = algorithm->data[0]};
    mock.multiplies++;
    mock.last = algorithm->data[0];
    return mock_cuda_call(stream, multiply, &m, sizeof m);
}

void mock_blas_install(void)
{
    static const mst_blas blas = {
#define MOCK_MEMBER(name, symbol, result, arguments) .name = b_##name,
        MST_BLAS_FUNCTIONS(MOCK_MEMBER)
#undef MOCK_MEMBER
    };
    mock = (mock_blas){.live = 0};
    mst_blas_replace(&blas);
}

void mock_blas_remove(void)
{
    mst_blas_replace(NULL);
    assert_int_equal(mock.live, 0);
}

mock_blas *mock_blas_now(void)
{
    return &mock;
}
