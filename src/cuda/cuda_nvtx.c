/*
 * cuda_nvtx.c - ranges for NVIDIA's profilers, behind the switch MSTAR_NVTX.
 *
 * Without the switch nothing is opened and a range costs one comparison. With it, opening a device
 * opens the library too; one that was asked for and is not there is an error, for a profile without
 * ranges would be found out late. Ranges nest and belong to the calling thread, so one begins and
 * ends in the same call, but for a capture's, which the caller ends on the thread that began it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "cuda/cuda.h"

typedef void (*any_function)(void); /* what any function may be cast to and from */
static any_function find(void *library, const char *symbol)
{
    union {
        void *data;
        any_function code;
    } found = {dlsym(library, symbol)};
    return found.code;
}

static mstar_status open_library(const char *path, void **library)
{
    /* what toolkits of today and of some years ago have */
    static const char *const names[] = {"libnvtx3interop.so.1", "libnvtx3interop.so",
                                        "libnvToolsExt.so.1"};
    const int32_t num_names = (int32_t)(sizeof names / sizeof names[0]);
    errno = 0;
    *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (int32_t i = 0; i < num_names && path == NULL && *library == NULL; i++)
        *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (*library != NULL)
        return MSTAR_OK;
    if (errno == ENOMEM)
        return mst_fail(MSTAR_OUT_OF_MEMORY, "no memory to look for the NVTX library");
    const char *reason = dlerror();
    reason = reason != NULL ? reason : "no reason given";
    if (path != NULL)
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE, "%s is \"%s\": %s", mst_env_name(MST_ENV_NVTX),
                        path, reason);
    return mst_fail(MSTAR_DEVICE_UNAVAILABLE,
                    "%s is 1, which needs %s or %s (or give the library's path): %s",
                    mst_env_name(MST_ENV_NVTX), names[0], names[2], reason);
}

mstar_status mst_cuda_nvtx_open(mst_cuda_nvtx *nvtx)
{
    const char *text = mst_env_get(MST_ENV_NVTX);
    void *library = NULL;
    *nvtx = (mst_cuda_nvtx){NULL, NULL};
    if (text == NULL || strcmp(text, "0") == 0)
        return MSTAR_OK;
    bool is_path = strchr(text, '/') != NULL;
    if (!is_path && strcmp(text, "1") != 0)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s is \"%.64s\"; it must be 0, 1 or the path of a library",
                        mst_env_name(MST_ENV_NVTX), text);
    /* kept open for the life of the process, as the driver is */
    MST_TRY(open_library(is_path ? text : NULL, &library));
    any_function push = find(library, "nvtxRangePushA");
    any_function pop = find(library, "nvtxRangePop");
    if (push == NULL || pop == NULL)
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE, "the NVTX library of %s=%s has no %s",
                        mst_env_name(MST_ENV_NVTX), text,
                        push == NULL ? "nvtxRangePushA" : "nvtxRangePop");
    nvtx->push = (int (*)(const char *))push;
    nvtx->pop = (int (*)(void))pop;
    return MSTAR_OK;
}

void mst_cuda_range(const mstar_device *device, const char *name)
{
    const mst_cuda_nvtx *nvtx = &mst_cuda_of(device)->nvtx;
    if (nvtx->push == NULL)
        return;
    if (name != NULL)
        (void)nvtx->push(name);
    else
        (void)nvtx->pop();
}
