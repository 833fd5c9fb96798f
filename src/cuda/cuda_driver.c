/*
 * cuda_driver.c - opens the driver's library, once, and turns its results into ours.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "cuda/cuda_driver.h"

#define DRIVER_LIBRARY "libcuda.so.1"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mst_cuda_driver opened;
static bool is_open;
static const mst_cuda_driver *replaced;

/* Data and function pointers are the same thing to dlsym, and to C only by way of memory. */
typedef void (*any_function)(void); /* what any function may be cast to and from */
static bool find(void *library, const char *symbol, any_function *function)
{
    union {
        void *data;
        any_function code;
    } found = {dlsym(library, symbol)};
    *function = found.code;
    return found.data != NULL;
}

static mstar_status open_library(void)
{
    errno = 0;
    void *library = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        if (errno == ENOMEM)
            return mst_fail(MSTAR_OUT_OF_MEMORY, "no memory to look for the NVIDIA driver");
        const char *reason = dlerror();
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE, "the NVIDIA driver cannot be used: %s",
                        reason != NULL ? reason : "no reason given");
    }
    /* kept open for the life of the process: a driver is not made to be closed and opened again */
    any_function function;
#define MST_CUDA_FIND(name, symbol, arguments)                                              \
    if (!find(library, symbol, &function))                                                  \
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE,                                           \
                        DRIVER_LIBRARY " has no " symbol "; the NVIDIA driver is too old"); \
    opened.name = (int(*) arguments)function;
    MST_CUDA_FUNCTIONS(MST_CUDA_FIND)
#undef MST_CUDA_FIND
    return MSTAR_OK;
}

static mstar_status check_version(const mst_cuda_driver *driver)
{
    int version = 0;
    MST_TRY(mst_cuda_check(driver, driver->driver_version(&version), "asking for the version"));
    if (version < MST_CUDA_MIN_DRIVER)
        return mst_fail(
            MSTAR_DEVICE_UNAVAILABLE,
            "the NVIDIA driver is for CUDA %d.%d; the kernels of this build need one for "
            "CUDA %d.%d or newer",
            version / 1000, version % 1000 / 10, MST_CUDA_MIN_DRIVER / 1000,
            MST_CUDA_MIN_DRIVER % 1000 / 10);
    return mst_cuda_check(driver, driver->init(0), "starting the NVIDIA driver");
}

mstar_status mst_cuda_driver_get(const mst_cuda_driver **driver)
{
    mstar_status status = MSTAR_OK;
    (void)pthread_mutex_lock(&lock);
    if (replaced != NULL) {
        *driver = replaced;
    } else {
        if (!is_open) {
            status = open_library();
            is_open = status == MSTAR_OK;
        }
        *driver = &opened;
    }
    (void)pthread_mutex_unlock(&lock);
    return status == MSTAR_OK ? check_version(*driver) : status;
}

void mst_cuda_driver_replace(const mst_cuda_driver *driver)
{
    (void)pthread_mutex_lock(&lock);
    replaced = driver;
    (void)pthread_mutex_unlock(&lock);
}

static mstar_status status_of(int result)
{
    switch (result) {
    case MST_CUDA_SUCCESS:
        return MSTAR_OK;
    case MST_CUDA_OUT_OF_MEMORY:
        return MSTAR_OUT_OF_MEMORY;
    case MST_CUDA_NO_DEVICE:
    case MST_CUDA_INVALID_DEVICE:
    case MST_CUDA_NO_BINARY:
    case MST_CUDA_INVALID_IMAGE:
    case MST_CUDA_UNSUPPORTED_PTX:
        return MSTAR_DEVICE_UNAVAILABLE;
    case MST_CUDA_INVALID_VALUE:
    case MST_CUDA_INVALID_CONTEXT:
    case MST_CUDA_INVALID_HANDLE:
        return MSTAR_INVALID_ARGUMENT;
    default:
        return result >= MST_CUDA_CAPTURE_FIRST && result <= MST_CUDA_CAPTURE_LAST
                   ? MSTAR_OUT_OF_ORDER
                   : MSTAR_DEVICE_FAILED;
    }
}

mstar_status mst_cuda_check(const mst_cuda_driver *driver, int result, const char *what)
{
    const char *name = NULL;
    const char *text = NULL;
    if (result == MST_CUDA_SUCCESS)
        return MSTAR_OK;
    (void)driver->error_name(result, &name);
    (void)driver->error_string(result, &text);
    return mst_fail(status_of(result), "%s: %s (%s)", what, text != NULL ? text : "unknown error",
                    name != NULL ? name : "no name");
}
