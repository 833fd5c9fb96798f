/* cuda_blas.c - opens cuBLASLt, once, and turns its results into ours. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "cuda/cuda_blas.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mst_blas opened;
static bool is_open;
static const mst_blas *replaced;

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
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *library = NULL;
    errno = 0;
    for (int i = 0; i < 2 && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        if (errno == ENOMEM)
            return mst_fail(MSTAR_OUT_OF_MEMORY, "no memory to look for cuBLASLt");
        const char *reason = dlerror();
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE, "matrix products on a GPU need %s or %s: %s",
                        names[0], names[1], reason != NULL ? reason : "no reason given");
    }
    /* kept open for the life of the process, as the driver is */
    any_function function;
#define MST_BLAS_FIND(name, symbol, result, arguments)                                          \
    if (!find(library, symbol, &function))                                                      \
        return mst_fail(MSTAR_DEVICE_UNAVAILABLE, "cuBLASLt has no " symbol "; it is too old"); \
    opened.name = (result(*) arguments)function;
    MST_BLAS_FUNCTIONS(MST_BLAS_FIND)
#undef MST_BLAS_FIND
    return MSTAR_OK;
}

mstar_status mst_blas_get(const mst_blas **blas)
{
    mstar_status status = MSTAR_OK;
    (void)pthread_mutex_lock(&lock);
    if (replaced != NULL) {
        *blas = replaced;
    } else {
        if (!is_open) {
            status = open_library();
            is_open = status == MSTAR_OK;
        }
        *blas = &opened;
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}

void mst_blas_replace(const mst_blas *blas)
{
    (void)pthread_mutex_lock(&lock);
    replaced = blas;
    (void)pthread_mutex_unlock(&lock);
}

mstar_status mst_blas_check(const mst_blas *blas, int status, const char *what)
{
    if (status == MST_BLAS_SUCCESS)
        return MSTAR_OK;
    const char *name = blas->status_name(status);
    mstar_status ours = status == MST_BLAS_ALLOC_FAILED    ? MSTAR_OUT_OF_MEMORY
                        : status == MST_BLAS_NOT_SUPPORTED ? MSTAR_NOT_SUPPORTED
                                                           : MSTAR_DEVICE_FAILED;
    return mst_fail(ours, "%s: %s (cuBLASLt %zu)", what, name != NULL ? name : "unknown error",
                    blas->version());
}
