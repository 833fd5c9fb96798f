/*
 * mock_module.c - the extension of the Python package over the mock driver: "cuda:0" is there, its
 * memory is the host's, and kernels run as in support_mock_cuda.h.
 *
 * Linked with --wrap=mst_backend_find, since a build without nvcc does not offer the device.
 */
#include <string.h>

#include "support_mock_cuda.h"
#include "support_mock_track.h"

const mst_backend *__real_mst_backend_find(const char *name, size_t name_bytes);
const mst_backend *__wrap_mst_backend_find(const char *name, size_t name_bytes);
MSTAR_API const char *mock_module_fault(void);
MSTAR_API int mock_module_live(void);
MSTAR_API int64_t mock_module_allocations(void);
MSTAR_API int64_t mock_module_waits(void);
MSTAR_API int mock_module_is_after(const void *stream, const void *other);

const mst_backend *__wrap_mst_backend_find(const char *name, size_t name_bytes)
{
    static bool installed;
    if (name_bytes != strlen("cuda") || memcmp(name, "cuda", name_bytes) != 0)
        return __real_mst_backend_find(name, name_bytes);
    if (!installed)
        (void)mock_cuda_install();
    installed = true;
    return mst_cuda_backend();
}

/* What a launch found wrong; "" nothing. */
const char *mock_module_fault(void)
{
    return mock_cuda_now()->fault;
}

/* Memory, streams, events, modules and graphs that are not given back. */
int mock_module_live(void)
{
    return mock_cuda_now()->live;
}

/* Calls for device memory so far. */
int64_t mock_module_allocations(void)
{
    return mock_cuda_now()->calls[MOCK_memory_alloc];
}

/* Times that the host waited for a stream. */
int64_t mock_module_waits(void)
{
    return mock_cuda_now()->calls[MOCK_stream_synchronize];
}

/* Whether what the stream gets from now on runs after all that the other one has got. */
int mock_module_is_after(const void *stream, const void *other)
{
    return track_is_after(stream, other);
}
