/*
 * cuda_product.c - the algorithms of a product's shape, found and tried on the device.
 *
 * cuBLASLt proposes one for each of a few numbers of rows. Which order an algorithm sums in is not
 * told, so that is tried: random rows with the proposed algorithm must have the bits that the
 * reference gives them. What does not pass is not used; at worst one algorithm, or our own kernel,
 * does all. Results are f32: the library refuses an f32 bias with a narrow result.
 */
#include <string.h>

#include "cuda/cuda_linear.h"

/* Numbers of rows that algorithms are asked for; the last one's is the reference. */
static const int64_t proposed_rows[MST_CUDA_MEMBERS] = {16, 64, 256, 1024, 4096, 16384};
#define REFERENCE_ROWS 1024
#define TRIAL_ROWS 192 /* a few tiles high, and the last one not full */
#define FEW_ROWS 16    /* the same algorithm with fewer */
/* A kernel that deals out its tiles counts them in a word of workspace where it is given one, and
 * check asks for that word; without it the tiles are dealt in order. Sums need far more. */
#define COUNTER_BYTES 64

int32_t mst_cuda_class_member(const mst_cuda_class *members, int64_t rows)
{
    int32_t i = 0;
    while (i < members->count - 1 && members->rows[i] < rows)
        i++;
    return members->count == 0 ? -1 : i;
}

/* ---- one multiplication ---------------------------------------------------------------------- */

static int type_of(mstar_dtype dtype)
{
    return dtype == MSTAR_DTYPE_F32    ? MST_BLAS_F32
           : dtype == MSTAR_DTYPE_BF16 ? MST_BLAS_BF16
                                       : MST_BLAS_F16;
}

typedef struct described {
    mst_blas_operation operation;
    mst_blas_layout weights, x, out;
} described;

/* In the library's terms, columns one after another: out^T [n, rows] = w [k, n]^T x^T [k, rows]. */
static mstar_status describe(const mst_blas *blas, const mst_cuda_multiply *m, described *d)
{
    const mst_cuda_product *p = m->product;
    const int32_t transpose = 1, f32 = MST_BLAS_F32;
    const uint32_t epilogue = MST_BLAS_EPILOGUE_BIAS;
    int type = type_of(p->dtype);
    int64_t distance = mst_cuda_linear_distance(p->in_features, p->dtype);
    int failed = blas->operation_init(&d->operation, sizeof d->operation, MST_BLAS_COMPUTE_F32,
                                      MST_BLAS_F32);
    const struct {
        int attribute;
        const void *value;
        size_t bytes;
    } set[] = {{MST_BLAS_TRANSPOSE_A, &transpose, sizeof transpose},
               {MST_BLAS_EPILOGUE, &epilogue, sizeof epilogue},
               {MST_BLAS_BIAS_POINTER, &m->bias, sizeof m->bias},
               {MST_BLAS_BIAS_TYPE, &f32, sizeof f32}};
    for (size_t i = 0; i < sizeof set / sizeof set[0] && failed == 0; i++)
        failed = blas->operation_set(&d->operation, set[i].attribute, set[i].value, set[i].bytes);
    if (failed == 0)
        failed = blas->layout_init(&d->weights, sizeof d->weights, type, (uint64_t)p->in_features,
                                   (uint64_t)p->out_features, distance);
    if (failed == 0)
        failed = blas->layout_init(&d->x, sizeof d->x, type, (uint64_t)p->in_features,
                                   (uint64_t)m->num_rows, m->x_distance);
    if (failed == 0)
        failed = blas->layout_init(&d->out, sizeof d->out, MST_BLAS_F32, (uint64_t)p->out_features,
                                   (uint64_t)m->num_rows, m->out_distance);
    return mst_blas_check(blas, failed, "describing a product");
}

mstar_status mst_cuda_multiply_run(const mst_cuda *cuda, void *stream, const mst_cuda_multiply *m)
{
    const float one = 1.0F, zero = 0.0F;
    described d;
    MST_TRY(describe(cuda->blas, m, &d));
    return mst_blas_check(cuda->blas,
                          cuda->blas->multiply(cuda->blas_handle, &d.operation, &one, m->weights,
                                               &d.weights, m->x, &d.x, &zero, m->out, &d.out,
                                               m->out, &d.out, m->algorithm, NULL, 0, stream),
                          "a matrix product");
}

/* ---- proposals ------------------------------------------------------------------------------- */

/* Neither split-K nor stream-K: no reduction between blocks, and no workspace to do one in. */
static mstar_status make_preference(const mst_blas *blas, void **preference)
{
    const uint64_t workspace = 0;
    const uint32_t reductions = 0, alignment = 16;
    MST_TRY(mst_blas_check(blas, blas->preference_create(preference), "choosing algorithms"));
    int failed =
        blas->preference_set(*preference, MST_BLAS_MAX_WORKSPACE, &workspace, sizeof workspace);
    if (failed == 0)
        failed =
            blas->preference_set(*preference, MST_BLAS_REDUCTIONS, &reductions, sizeof reductions);
    for (int i = MST_BLAS_ALIGNMENT_A; i <= MST_BLAS_ALIGNMENT_D && failed == 0; i++)
        failed = blas->preference_set(*preference, i, &alignment, sizeof alignment);
    if (failed != 0)
        (void)blas->preference_destroy(*preference);
    return mst_blas_check(blas, failed, "choosing algorithms");
}

static bool splits(const mst_blas *blas, const mst_blas_found *found)
{
    uint32_t reduction = 1;
    int32_t parts = 0;
    size_t written;
    return found->workspace_bytes > 0 ||
           blas->config_get(&found->algorithm, MST_BLAS_CONFIG_SPLITS, &parts, sizeof parts,
                            &written) != 0 ||
           blas->config_get(&found->algorithm, MST_BLAS_CONFIG_REDUCTION, &reduction,
                            sizeof reduction, &written) != 0 ||
           parts > 1 || reduction != 0;
}

/* The first proposal for m that splits nothing; false: there is none. */
static bool propose(const mst_cuda *cuda, const mst_cuda_multiply *m, void *preference,
                    mst_blas_algorithm *algorithm)
{
    enum { WANTED = 8 };
    mst_blas_found found[WANTED];
    described d;
    int count = 0;
    memset(found, 0, sizeof found);
    if (describe(cuda->blas, m, &d) != MSTAR_OK ||
        cuda->blas->find(cuda->blas_handle, &d.operation, &d.weights, &d.x, &d.out, &d.out,
                         preference, WANTED, found, &count) != 0)
        return false;
    for (int i = 0; i < count && i < WANTED; i++) {
        if (found[i].status == 0 && !splits(cuda->blas, &found[i])) {
            *algorithm = found[i].algorithm;
            return true;
        }
    }
    return false;
}

/* ---- trials ---------------------------------------------------------------------------------- */

/* Random operands on the device, a result there, and two results here. */
typedef struct trial {
    mst_cuda *cuda;
    mst_cuda_product *product;
    void *preference;
    char *memory; /* device: weights, x, bias, out */
    size_t x_at, bias_at, out_at, bytes;
    float *want, *got; /* the reference's, and another's */
    void *host;        /* all of it */
} trial;

static mst_cuda_multiply multiply_of(const trial *t, int64_t rows)
{
    const mst_cuda_product *p = t->product;
    return (mst_cuda_multiply){.product = p,
                               .num_rows = rows,
                               .weights = t->memory,
                               .x = t->memory + t->x_at,
                               .bias = (const float *)(const void *)(t->memory + t->bias_at),
                               .out = (float *)(void *)(t->memory + t->out_at),
                               .x_distance = mst_cuda_linear_distance(p->in_features, p->dtype),
                               .out_distance =
                                   mst_cuda_linear_distance(p->out_features, MSTAR_DTYPE_F32)};
}

/* NaN to where m is stored, so that rows that it leaves out are not those of the trial before. */
static mstar_status spoil_rows(const trial *t, const mst_cuda_multiply *m)
{
    const mst_cuda *cuda = t->cuda;
    size_t bytes = (size_t)(m->num_rows * m->out_distance) * sizeof(float);
    return mst_cuda_check(
        cuda->driver, cuda->driver->memory_set(mst_cuda_address(m->out), 0xff, bytes, cuda->stream),
        "trying an algorithm");
}

/* What m was stored to, as far apart. */
static mstar_status bring_rows(const trial *t, const mst_cuda_multiply *m, float *to)
{
    const mst_cuda *cuda = t->cuda;
    size_t bytes = (size_t)(m->num_rows * m->out_distance) * sizeof(float);
    MST_TRY(mst_cuda_check(
        cuda->driver,
        cuda->driver->copy(mst_cuda_address(to), mst_cuda_address(m->out), bytes, cuda->stream),
        "trying an algorithm"));
    return mst_cuda_check(cuda->driver, cuda->driver->stream_synchronize(cuda->stream),
                          "trying an algorithm");
}

static mstar_status run_trial(const trial *t, const mst_cuda_multiply *m, float *to)
{
    MST_TRY(spoil_rows(t, m));
    MST_TRY(mst_cuda_multiply_run(t->cuda, t->cuda->stream, m));
    return bring_rows(t, m, to);
}

/* Whether the rows in got are the reference's. */
static bool same_rows(const trial *t, const mst_cuda_multiply *m)
{
    for (int64_t row = 0; row < m->num_rows; row++) {
        if (memcmp(t->want + row * m->out_distance, t->got + row * m->out_distance,
                   (size_t)t->product->out_features * sizeof(float)) != 0)
            return false;
    }
    return true;
}

/* The rows of our own kernel, its work shared in one of its ways. */
static mstar_status run_fused(const trial *t, int64_t rows, int32_t sharing, float *to)
{
    const mst_cuda_product *p = t->product;
    mst_cuda_multiply m = multiply_of(t, rows);
    const mst_cuda_fused fused = {.in_features = p->in_features,
                                  .out_features = p->out_features,
                                  .dtype = p->dtype,
                                  .num_rows = rows,
                                  .sharing = sharing,
                                  .weights = m.weights,
                                  .x = m.x,
                                  .bias = m.bias,
                                  .x_distance = m.x_distance,
                                  .out = {m.out, MSTAR_DTYPE_F32, m.out_distance, rows}};
    MST_TRY(spoil_rows(t, &m));
    MST_TRY(mst_cuda_fused_run(t->cuda, t->cuda->stream, &fused));
    return bring_rows(t, &m, to);
}

/* Whether an algorithm gives so many rows of the reference's. */
static mstar_status try_rows(const trial *t, const mst_blas_algorithm *algorithm, int64_t rows,
                             bool *same)
{
    mst_cuda_multiply m = multiply_of(t, rows);
    m.algorithm = algorithm;
    *same = false;
    MST_TRY(run_trial(t, &m, t->got));
    *same = same_rows(t, &m);
    return MSTAR_OK;
}

/* Among many rows and among few. A trial that does not run is one that has not passed. */
static bool passes(const trial *t, const mst_blas_algorithm *algorithm)
{
    bool many, few;
    return try_rows(t, algorithm, TRIAL_ROWS, &many) == MSTAR_OK && many &&
           try_rows(t, algorithm, FEW_ROWS, &few) == MSTAR_OK && few;
}

/* Whether an algorithm that was proposed for one number of rows takes all that a run may give. */
static bool takes_any_rows(const trial *t, const mst_blas_algorithm *algorithm)
{
    const int64_t counts[] = {1, 2, 16, 17, 64, 255, 1024, 4097, 16384, 65535};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        mst_cuda_multiply m = multiply_of(t, counts[i]);
        mst_blas_found found;
        described d;
        memset(&found, 0, sizeof found);
        if (describe(t->cuda->blas, &m, &d) != MSTAR_OK ||
            t->cuda->blas->check(t->cuda->blas_handle, &d.operation, &d.weights, &d.x, &d.out,
                                 &d.out, algorithm, &found) != 0 ||
            found.workspace_bytes > COUNTER_BYTES)
            return false;
    }
    return true;
}

static bool propose_for(const trial *t, int64_t rows, mst_blas_algorithm *algorithm)
{
    mst_cuda_multiply m = multiply_of(t, rows);
    return propose(t->cuda, &m, t->preference, algorithm) && takes_any_rows(t, algorithm);
}

static void add_member(mst_cuda_class *members, int64_t rows, const mst_blas_algorithm *algorithm)
{
    members->rows[members->count] = rows;
    members->algorithms[members->count++] = *algorithm;
}

static bool is_same(const mst_blas_algorithm *a, const mst_blas_algorithm *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* The proposals that pass, each tried once; the reference, if it is one of them, not. */
static void fill_class(const trial *t, const mst_blas_algorithm *reference, mst_cuda_class *members)
{
    mst_blas_algorithm refused[MST_CUDA_MEMBERS];
    int32_t num_refused = 0;
    for (int i = 0; i < MST_CUDA_MEMBERS; i++) {
        mst_blas_algorithm algorithm;
        if (!propose_for(t, proposed_rows[i], &algorithm))
            continue;
        bool known = reference != NULL && is_same(&algorithm, reference), bad = false;
        for (int32_t m = 0; m < members->count; m++)
            known = known || is_same(&algorithm, &members->algorithms[m]);
        for (int32_t r = 0; r < num_refused; r++)
            bad = bad || is_same(&algorithm, &refused[r]);
        if (bad)
            continue;
        if (!known && !passes(t, &algorithm))
            refused[num_refused++] = algorithm;
        else if (members->count > 0 &&
                 is_same(&algorithm, &members->algorithms[members->count - 1]))
            members->rows[members->count - 1] = proposed_rows[i];
        else
            add_member(members, proposed_rows[i], &algorithm);
    }
}

static mstar_status fail_depends(const mst_cuda_product *p)
{
    return mst_fail(MSTAR_DEVICE_FAILED,
                    "the rows of a product of %lld by %lld in %s depend on how many there are",
                    (long long)p->in_features, (long long)p->out_features,
                    mstar_dtype_name(p->dtype));
}

/* The library's own rows, where our kernel is not on this device. */
static mstar_status find_reference(const trial *t, mst_blas_algorithm *reference)
{
    const mst_cuda_product *p = t->product;
    bool same;
    if (!propose_for(t, REFERENCE_ROWS, reference))
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "cuBLASLt has no algorithm without split sums for a product of %lld by "
                        "%lld in %s",
                        (long long)p->in_features, (long long)p->out_features,
                        mstar_dtype_name(p->dtype));
    mst_cuda_multiply m = multiply_of(t, TRIAL_ROWS);
    m.algorithm = reference;
    MST_TRY(run_trial(t, &m, t->want));
    MST_TRY(try_rows(t, reference, FEW_ROWS, &same));
    return same ? MSTAR_OK : fail_depends(p);
}

/* However the work is shared, among many rows and among few: a run takes any of them. */
static mstar_status find_fused_reference(const trial *t)
{
    const int64_t counts[] = {TRIAL_ROWS, FEW_ROWS};
    MST_TRY(run_fused(t, TRIAL_ROWS, MST_CUDA_LINEAR_WIDE, t->want));
    for (int32_t sharing = 0; sharing < MST_CUDA_LINEAR_NUM_SHARINGS; sharing++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            const mst_cuda_multiply m = multiply_of(t, counts[i]);
            MST_TRY(run_fused(t, counts[i], sharing, t->got));
            if (!same_rows(t, &m))
                return fail_depends(t->product);
        }
    }
    return MSTAR_OK;
}

static mstar_status find_class(const trial *t)
{
    mst_cuda_product *p = t->product;
    mst_blas_algorithm reference;
    if (p->fused) {
        MST_TRY(find_fused_reference(t));
        fill_class(t, NULL, &p->members);
        return MSTAR_OK;
    }
    MST_TRY(find_reference(t, &reference));
    fill_class(t, &reference, &p->members);
    if (p->members.count == 0)
        add_member(&p->members, INT64_MAX, &reference);
    return MSTAR_OK;
}

/* Numbers in [-1, 1) of the product's dtype. */
static void fill_random(void *memory, mstar_dtype dtype, int64_t count)
{
    uint64_t state = 88172645463325252U;
    for (int64_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        mst_store_element(memory, dtype, i, (float)(int64_t)(state >> 40) * 0x1p-23F - 1.0F);
    }
}

static mstar_status place_trial(trial *t)
{
    const mst_cuda_product *p = t->product;
    const mst_cuda_driver *driver = t->cuda->driver;
    size_t element = mstar_dtype_bytes(p->dtype);
    int64_t distance = mst_cuda_linear_distance(p->in_features, p->dtype);
    int64_t biases = mst_round_up(p->out_features, MST_LINEAR_PAD);
    size_t results =
        (size_t)(TRIAL_ROWS * mst_cuda_linear_distance(p->out_features, MSTAR_DTYPE_F32)) *
        sizeof(float);
    t->x_at = (size_t)mst_round_up((int64_t)((size_t)(p->out_features * distance) * element), 256);
    t->bias_at = t->x_at + (size_t)mst_round_up((int64_t)(TRIAL_ROWS * distance) * 4, 256);
    t->out_at = t->bias_at + (size_t)biases * sizeof(float);
    size_t operands = t->out_at > 2 * results ? t->out_at : 2 * results;
    uint64_t address = 0;
    MST_TRY(mst_alloc(operands, "trial of a product", &t->host));
    MST_TRY(mst_cuda_check(driver, driver->memory_alloc(&address, t->out_at + results),
                           "taking device memory for a trial"));
    t->memory = mst_cuda_pointer(address);
    fill_random(t->host, p->dtype, p->out_features * distance);
    fill_random((char *)t->host + t->x_at, p->dtype, TRIAL_ROWS * distance);
    fill_random((char *)t->host + t->bias_at, MSTAR_DTYPE_F32, biases);
    t->want = t->host;
    t->got = (float *)(void *)((char *)t->host + results);
    MST_TRY(mst_cuda_check(
        driver, driver->copy(address, mst_cuda_address(t->host), t->out_at, t->cuda->stream),
        "sending a trial"));
    return mst_cuda_check(driver, driver->stream_synchronize(t->cuda->stream), "sending a trial");
}

/* ---- the products of a device ---------------------------------------------------------------- */

const mst_cuda_product *mst_cuda_product_get(mst_cuda *cuda, const mst_linear_shape *shape)
{
    (void)pthread_mutex_lock(&cuda->lock);
    const mst_cuda_product *p = cuda->products;
    while (p != NULL && (p->in_features != shape->in_features ||
                         p->out_features != shape->out_features || p->dtype != shape->weight_dtype))
        p = p->next;
    (void)pthread_mutex_unlock(&cuda->lock);
    return p;
}

/* One thread at a time: the second of two that make the same shape finds it. */
static mstar_status find_product(mst_cuda *cuda, const mst_linear_shape *shape)
{
    if (mst_cuda_product_get(cuda, shape) != NULL)
        return MSTAR_OK;
    if (cuda->blas_handle == NULL) {
        MST_TRY(mst_blas_get(&cuda->blas));
        MST_TRY(mst_blas_check(cuda->blas, cuda->blas->create(&cuda->blas_handle),
                               "starting cuBLASLt"));
    }
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mst_cuda_product), "algorithms of a product", &memory));
    trial t = {.cuda = cuda, .product = memory};
    t.product->in_features = shape->in_features;
    t.product->out_features = shape->out_features;
    t.product->dtype = shape->weight_dtype;
    t.product->fused = mst_cuda_fused_load(cuda, shape->weight_dtype) == MSTAR_OK;
    mstar_status status = make_preference(cuda->blas, &t.preference);
    bool has_preference = status == MSTAR_OK;
    if (status == MSTAR_OK)
        status = place_trial(&t);
    if (status == MSTAR_OK)
        status = find_class(&t);
    if (has_preference)
        (void)cuda->blas->preference_destroy(t.preference);
    if (t.memory != NULL)
        (void)cuda->driver->memory_free(mst_cuda_address(t.memory));
    mst_free(t.host);
    if (status != MSTAR_OK) {
        mst_free(t.product);
        return status;
    }
    (void)pthread_mutex_lock(&cuda->lock);
    t.product->next = cuda->products;
    cuda->products = t.product;
    (void)pthread_mutex_unlock(&cuda->lock);
    return MSTAR_OK;
}

mstar_status mst_cuda_product_prepare(mst_cuda *cuda, const mst_linear_shape *shape)
{
    (void)pthread_mutex_lock(&cuda->products_lock);
    mstar_status status = find_product(cuda, shape);
    (void)pthread_mutex_unlock(&cuda->products_lock);
    return status;
}

void mst_cuda_products_free(mst_cuda *cuda)
{
    while (cuda->products != NULL) {
        mst_cuda_product *next = cuda->products->next;
        mst_free(cuda->products);
        cuda->products = next;
    }
    if (cuda->blas_handle != NULL)
        (void)cuda->blas->destroy(cuda->blas_handle);
    cuda->blas_handle = NULL;
}
