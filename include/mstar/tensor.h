/*
 * mstar/tensor.h - dtypes, strided tensor views, and DLPack.
 *
 * A tensor is a view: it owns nothing. Shapes and strides count elements. A zero in the shape is
 * legal, and data may then be NULL.
 */
#ifndef MSTAR_TENSOR_H
#define MSTAR_TENSOR_H

#include "mstar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* value, NAME, "name", bytes of an element */
#define MSTAR_DTYPE_LIST(X)      \
    X(0, F32, "f32", 4)          \
    X(1, BF16, "bf16", 2)        \
    X(2, F16, "f16", 2)          \
    X(3, F64, "f64", 8)          \
    X(4, I64, "i64", 8)          \
    X(5, I32, "i32", 4)          \
    X(6, I16, "i16", 2)          \
    X(7, I8, "i8", 1)            \
    X(8, U8, "u8", 1)            \
    X(9, BOOL, "bool", 1)        \
    X(10, F8_E4M3, "f8_e4m3", 1) \
    X(11, F8_E5M2, "f8_e5m2", 1)

typedef enum mstar_dtype {
#define MSTAR_DTYPE_ENUM(value, NAME, name, bytes) MSTAR_DTYPE_##NAME = value,
    MSTAR_DTYPE_LIST(MSTAR_DTYPE_ENUM)
#undef MSTAR_DTYPE_ENUM
} mstar_dtype;

/* "f32"; "unknown" outside the list. Static string. */
MSTAR_API const char *mstar_dtype_name(mstar_dtype dtype);
/* Bytes of one element; 0 outside the list. */
MSTAR_API size_t mstar_dtype_bytes(mstar_dtype dtype);
/*
 * Reads "f32", "bf16", "f16", ... and the long names "float32", "bfloat16", "float16" (a leading
 * "torch." is ignored). MSTAR_INVALID_ARGUMENT names the text and lists what is accepted.
 */
MSTAR_API mstar_status mstar_dtype_parse(const char *text, mstar_dtype *dtype);

/*
 * Exact widening and rounding to nearest, ties to even, element by element; NaN stays NaN (quiet),
 * overflow becomes an infinity. src and dst are contiguous, must not overlap, and hold f32, bf16
 * or f16. Runs on the calling thread.
 */
MSTAR_API mstar_status mstar_convert(const void *src, mstar_dtype src_dtype, void *dst,
                                     mstar_dtype dst_dtype, size_t count);

#define MSTAR_MAX_RANK 8

typedef enum mstar_device_kind { MSTAR_DEVICE_CPU = 1, MSTAR_DEVICE_CUDA = 2 } mstar_device_kind;

typedef struct mstar_tensor {
    void *data;
    mstar_dtype dtype;
    mstar_device_kind device_kind; /* where data lives */
    int32_t device_index;
    int32_t rank; /* 0 .. MSTAR_MAX_RANK */
    int64_t shape[MSTAR_MAX_RANK];
    int64_t strides[MSTAR_MAX_RANK]; /* elements; may be larger than compact, never negative */
} mstar_tensor;

/*
 * A compact row-major view on CPU memory. Cannot fail for 0 <= rank <= MSTAR_MAX_RANK; a bad rank
 * gives a tensor of rank -1, which every function refuses by name.
 */
MSTAR_API mstar_tensor mstar_tensor_make(void *data, mstar_dtype dtype, int32_t rank,
                                         const int64_t *shape);

/*
 * View [start, start + length) of dimension dim, same memory: the q, k and v of a fused projection
 * are three slices of one tensor. MSTAR_INVALID_ARGUMENT outside the shape. view may be tensor.
 */
MSTAR_API mstar_status mstar_tensor_slice(const mstar_tensor *tensor, int32_t dim, int64_t start,
                                          int64_t length, mstar_tensor *view);

/*
 * Splits dimension dim into two, outer x inner, whose product is its size: [T, H * D] becomes
 * [T, H, D] without a copy.
 */
MSTAR_API mstar_status mstar_tensor_split_dim(const mstar_tensor *tensor, int32_t dim,
                                              int64_t outer, int64_t inner, mstar_tensor *view);

/*
 * DLPack 1.1 structures (https://dmlc.github.io/dlpack), declared here under our names so that the
 * header stands alone and does not clash with dlpack.h; the layouts are identical and asserted.
 */
#define MSTAR_DLPACK_MAJOR 1
#define MSTAR_DLPACK_MINOR 1
#define MSTAR_DLPACK_FLAG_READ_ONLY (1ULL << 0)
#define MSTAR_DLPACK_FLAG_IS_COPIED (1ULL << 1)

typedef struct mstar_dl_tensor {
    void *data;
    struct {
        int32_t device_type; /* 1 CPU, 2 CUDA, 3 CUDA host, 13 CUDA managed */
        int32_t device_id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code; /* 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 10 f8 e4m3fn, 12 f8 e5m2 */
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; /* elements; NULL for compact row-major */
    uint64_t byte_offset;
} mstar_dl_tensor;

typedef struct mstar_dl_managed_tensor_versioned {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct mstar_dl_managed_tensor_versioned *self);
    uint64_t flags;
    mstar_dl_tensor dl_tensor;
} mstar_dl_managed_tensor_versioned;

/*
 * Borrows a DLPack tensor as a view: the producer's struct must outlive the view, and the caller
 * still calls its deleter. Refused: a newer major version, lanes other than 1, a dtype outside the
 * list, rank over MSTAR_MAX_RANK, negative strides, a device that is neither CPU nor CUDA.
 */
MSTAR_API mstar_status mstar_tensor_from_dlpack(const mstar_dl_managed_tensor_versioned *managed,
                                                mstar_tensor *view);

/*
 * Makes a managed DLPack tensor of a view. owner_release(owner) is called once by the deleter; it
 * may be NULL when the memory outlives the consumer. The struct is freed by its deleter.
 */
MSTAR_API mstar_status mstar_tensor_to_dlpack(const mstar_tensor *tensor, void *owner,
                                              void (*owner_release)(void *owner),
                                              mstar_dl_managed_tensor_versioned **managed);

#ifdef __cplusplus
}
#endif

#endif
