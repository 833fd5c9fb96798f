/*
 * device.c - opening devices by name, and counting what is made on them.
 *
 * Everything that a backend will be asked later has been checked here or in the files beside this
 * one; a backend only has to be right.
 */
#include <string.h>

#include "device/backend.h"

/* The names that this build can open, for error texts. */
#if defined(MST_HAVE_CUDA)
#define DEVICE_NAMES "\"cpu\", \"cuda:0\" and on"
#else
#define DEVICE_NAMES "\"cpu\""
#endif

void mstar_device_desc_init(mstar_device_desc *desc)
{
    if (desc == NULL)
        return;
    memset(desc, 0, sizeof *desc);
    desc->struct_size = (uint32_t)sizeof *desc;
    desc->num_threads = -1;
}

void mst_device_retain(mstar_device *device)
{
    atomic_fetch_add_explicit(&device->users, 1, memory_order_relaxed);
}

void mst_device_release(mstar_device *device)
{
    /* release: the closing thread sees everything that the last user did */
    atomic_fetch_sub_explicit(&device->users, 1, memory_order_release);
}

/* "cuda:12" -> 4 bytes of kind and index 12; no index is index 0. False for anything else. */
static bool split_name(const char *name, size_t *kind_bytes, int32_t *index)
{
    *kind_bytes = strcspn(name, ":");
    *index = 0;
    if (name[*kind_bytes] == '\0')
        return *kind_bytes > 0;
    const char *digit = name + *kind_bytes + 1;
    size_t digits = strspn(digit, "0123456789");
    if (digits == 0 || digits > 4 || digit[digits] != '\0')
        return false;
    for (size_t i = 0; i < digits; i++)
        *index = *index * 10 + (digit[i] - '0');
    return *kind_bytes > 0;
}

static mstar_status find_backend(const char *name, const mst_backend **backend, int32_t *index)
{
    size_t kind_bytes;
    if (!split_name(name, &kind_bytes, index))
        return mst_fail(MSTAR_NOT_FOUND,
                        "device \"%.64s\" is not a device name; this build has " DEVICE_NAMES,
                        name);
    *backend = mst_backend_find(name, kind_bytes);
    if (*backend == NULL && kind_bytes == 4 && memcmp(name, "cuda", 4) == 0)
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE,
                        "device \"%.64s\": this build has no CUDA backend; it has " DEVICE_NAMES,
                        name);
    if (*backend == NULL)
        return mst_fail(MSTAR_NOT_FOUND,
                        "device \"%.64s\" is unknown; this build has " DEVICE_NAMES, name);
    if ((*backend)->kind == MSTAR_DEVICE_CPU && *index != 0)
        return mst_fail(MSTAR_NOT_FOUND, "device \"%.64s\": there is one CPU device, \"cpu\"",
                        name);
    return MSTAR_OK;
}

mstar_status mstar_device_open(const char *name, const mstar_device_desc *desc,
                               mstar_device **device)
{
    MST_TRY(mst_check_not_null("name", name));
    MST_TRY(mst_check_not_null("device", device));
    mstar_device_desc full;
    mstar_device_desc_init(&full);
    MST_TRY(mst_desc_read("desc", desc, &full, sizeof full));
    const mst_backend *backend = NULL;
    int32_t index;
    MST_TRY(find_backend(name, &backend, &index));
    void *memory;
    MST_TRY(mst_alloc_zero(sizeof(mstar_device), "device", &memory));
    mstar_device *made = memory;
    made->backend = backend;
    made->index = index;
    mstar_status status = backend->open(made, &full);
    if (status != MSTAR_OK) {
        mst_free(made);
        return backend->kind == MSTAR_DEVICE_CPU ? status
                                                 : mst_fail_in(status, "device \"%s\"", name);
    }
    *device = made;
    return MSTAR_OK;
}

mstar_status mstar_device_close(mstar_device *device)
{
    if (device == NULL)
        return MSTAR_OK;
    int64_t users = atomic_load_explicit(&device->users, memory_order_acquire);
    if (users != 0)
        return mst_fail(MSTAR_BUSY,
                        "device \"%s\": %lld objects made on it are alive; it can be closed when "
                        "there are 0",
                        device->backend->name, (long long)users);
    device->backend->close(device);
    mst_free(device);
    return MSTAR_OK;
}

mstar_status mstar_device_query(const mstar_device *device, mstar_device_info *info)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("info", info));
    mstar_device_info full;
    memset(&full, 0, sizeof full);
    full.kind = device->backend->kind;
    full.index = device->index;
    full.num_threads = device->num_threads;
    MST_TRY(device->backend->query(device, &full));
    return mst_info_write("info", &full, sizeof full, info);
}

mstar_status mstar_device_query_kernel(const mstar_device *device, int32_t index,
                                       mstar_kernel_info *info)
{
    MST_TRY(mst_check_not_null("device", device));
    MST_TRY(mst_check_not_null("info", info));
    MST_TRY(mst_check_range("index", index, 0, INT32_MAX));
    mstar_kernel_info full;
    memset(&full, 0, sizeof full);
    MST_TRY(device->backend->query_kernel(device, index, &full));
    return mst_info_write("info", &full, sizeof full, info);
}
