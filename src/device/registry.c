/* registry.c - the backends of this build, by name. */
#include <string.h>

#include "device/backend.h"

const mst_backend *mst_backend_find(const char *name, size_t name_bytes)
{
    const mst_backend *const built[] = {
        mst_cpu_backend(),
#if defined(MST_HAVE_CUDA)
        mst_cuda_backend(),
#endif
    };
    for (size_t i = 0; i < sizeof built / sizeof built[0]; i++) {
        if (strlen(built[i]->name) == name_bytes && memcmp(built[i]->name, name, name_bytes) == 0)
            return built[i];
    }
    return NULL;
}
