/* dlpack.c - views from DLPack tensors and DLPack tensors from views. */
#include <string.h>

#include "base/base.h"

/* The layout of DLPack 1.1 on a 64-bit machine. */
_Static_assert(sizeof(mstar_dl_tensor) == 48, "DLTensor");
_Static_assert(offsetof(mstar_dl_tensor, ndim) == 16, "DLTensor.ndim");
_Static_assert(offsetof(mstar_dl_tensor, dtype) == 20, "DLTensor.dtype");
_Static_assert(offsetof(mstar_dl_tensor, shape) == 24, "DLTensor.shape");
_Static_assert(offsetof(mstar_dl_tensor, byte_offset) == 40, "DLTensor.byte_offset");
_Static_assert(sizeof(mstar_dl_managed_tensor_versioned) == 80, "DLManagedTensorVersioned");
_Static_assert(offsetof(mstar_dl_managed_tensor_versioned, manager_ctx) == 8, "manager_ctx");
_Static_assert(offsetof(mstar_dl_managed_tensor_versioned, flags) == 24, "flags");
_Static_assert(offsetof(mstar_dl_managed_tensor_versioned, dl_tensor) == 32, "dl_tensor");

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };

static const struct {
    uint8_t code;
    uint8_t bits;
} dl_types[] = {
    [MSTAR_DTYPE_F32] = {2, 32}, [MSTAR_DTYPE_BF16] = {4, 16},    [MSTAR_DTYPE_F16] = {2, 16},
    [MSTAR_DTYPE_F64] = {2, 64}, [MSTAR_DTYPE_I64] = {0, 64},     [MSTAR_DTYPE_I32] = {0, 32},
    [MSTAR_DTYPE_I16] = {0, 16}, [MSTAR_DTYPE_I8] = {0, 8},       [MSTAR_DTYPE_U8] = {1, 8},
    [MSTAR_DTYPE_BOOL] = {6, 8}, [MSTAR_DTYPE_F8_E4M3] = {10, 8}, [MSTAR_DTYPE_F8_E5M2] = {12, 8},
};

mstar_status mstar_tensor_from_dlpack(const mstar_dl_managed_tensor_versioned *managed,
                                      mstar_tensor *view)
{
    MST_TRY(mst_check_not_null("managed", managed));
    MST_TRY(mst_check_not_null("view", view));
    if (managed->version.major != MSTAR_DLPACK_MAJOR)
        return mst_fail(MSTAR_NOT_SUPPORTED, "managed.version.major is %u; it must be %d",
                        managed->version.major, MSTAR_DLPACK_MAJOR);
    const mstar_dl_tensor *dl = &managed->dl_tensor;
    if (dl->ndim < 0 || dl->ndim > MSTAR_MAX_RANK)
        return mst_fail(MSTAR_INVALID_ARGUMENT, "managed.ndim is %d; it must be from 0 to %d",
                        dl->ndim, MSTAR_MAX_RANK);
    if (dl->ndim > 0)
        MST_TRY(mst_check_not_null("managed.shape", dl->shape));
    if (dl->dtype.lanes != 1)
        return mst_fail(MSTAR_NOT_SUPPORTED, "managed.dtype.lanes is %u; it must be 1",
                        dl->dtype.lanes);
    int32_t device_type = dl->device.device_type;
    if (device_type != DL_CPU && device_type != DL_CUDA && device_type != DL_CUDA_HOST &&
        device_type != DL_CUDA_MANAGED)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "managed.device_type is %d; supported are 1 (CPU), 2, 3 and 13 (CUDA)",
                        device_type);
    size_t count = sizeof dl_types / sizeof dl_types[0];
    size_t dtype = 0;
    while (dtype < count &&
           (dl_types[dtype].code != dl->dtype.code || dl_types[dtype].bits != dl->dtype.bits))
        dtype++;
    if (dtype == count)
        return mst_fail(MSTAR_NOT_SUPPORTED,
                        "managed.dtype has code %u and %u bits, which no dtype of ours has",
                        dl->dtype.code, dl->dtype.bits);
    mstar_tensor result = mstar_tensor_make(NULL, (mstar_dtype)dtype, dl->ndim, dl->shape);
    result.device_kind =
        device_type == DL_CPU || device_type == DL_CUDA_HOST ? MSTAR_DEVICE_CPU : MSTAR_DEVICE_CUDA;
    result.device_index = device_type == DL_CUDA_HOST ? 0 : dl->device.device_id;
    if (dl->strides != NULL && result.rank > 0)
        memcpy(result.strides, dl->strides, (size_t)result.rank * sizeof result.strides[0]);
    if (dl->data != NULL)
        result.data = (char *)dl->data + dl->byte_offset;
    MST_TRY(mst_tensor_check("managed", &result));
    *view = result;
    return MSTAR_OK;
}

typedef struct dl_owner {
    mstar_dl_managed_tensor_versioned managed; /* first: the consumer's pointer is the owner's */
    void *owner;
    void (*release)(void *owner);
    int64_t shape[MSTAR_MAX_RANK];
    int64_t strides[MSTAR_MAX_RANK];
} dl_owner;

static void delete_owner(mstar_dl_managed_tensor_versioned *self)
{
    dl_owner *owner = (dl_owner *)(void *)self;
    if (owner->release != NULL)
        owner->release(owner->owner);
    mst_free(owner);
}

mstar_status mstar_tensor_to_dlpack(const mstar_tensor *tensor, void *owner_context,
                                    void (*owner_release)(void *owner),
                                    mstar_dl_managed_tensor_versioned **managed)
{
    MST_TRY(mst_tensor_check("tensor", tensor));
    MST_TRY(mst_check_not_null("managed", managed));
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(dl_owner), "DLPack tensor", &memory));
    dl_owner *owner = memory;
    owner->owner = owner_context;
    owner->release = owner_release;
    memcpy(owner->shape, tensor->shape, sizeof owner->shape);
    memcpy(owner->strides, tensor->strides, sizeof owner->strides);
    owner->managed.version.major = MSTAR_DLPACK_MAJOR;
    owner->managed.version.minor = MSTAR_DLPACK_MINOR;
    owner->managed.manager_ctx = owner;
    owner->managed.deleter = delete_owner;
    mstar_dl_tensor *dl = &owner->managed.dl_tensor;
    dl->data = tensor->data;
    dl->device.device_type = tensor->device_kind == MSTAR_DEVICE_CUDA ? DL_CUDA : DL_CPU;
    dl->device.device_id = tensor->device_index;
    dl->ndim = tensor->rank;
    dl->dtype.code = dl_types[tensor->dtype].code;
    dl->dtype.bits = dl_types[tensor->dtype].bits;
    dl->dtype.lanes = 1;
    dl->shape = owner->shape;
    dl->strides = owner->strides;
    *managed = &owner->managed;
    return MSTAR_OK;
}
