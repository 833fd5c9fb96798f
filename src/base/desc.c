/* desc.c - the rules of struct_size, in one place. */
#include <string.h>

#include "base/base.h"

mstar_status mst_desc_read(const char *name, const void *given, void *full, size_t full_bytes)
{
    if (given == NULL)
        return MSTAR_OK;
    uint32_t struct_size;
    memcpy(&struct_size, given, sizeof struct_size);
    if (struct_size < sizeof struct_size)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s.struct_size is %u; it must be at least %zu (call the desc's _init)",
                        name, struct_size, sizeof struct_size);
    size_t bytes = struct_size < full_bytes ? struct_size : full_bytes;
    memcpy((unsigned char *)full + sizeof struct_size,
           (const unsigned char *)given + sizeof struct_size, bytes - sizeof struct_size);
    return MSTAR_OK;
}

mstar_status mst_info_write(const char *name, const void *full, size_t full_bytes, void *given)
{
    MST_TRY(mst_check_not_null(name, given));
    uint32_t struct_size;
    memcpy(&struct_size, given, sizeof struct_size);
    if (struct_size < sizeof struct_size)
        return mst_fail(MSTAR_INVALID_ARGUMENT,
                        "%s.struct_size is %u; it must be at least %zu (set it to sizeof)", name,
                        struct_size, sizeof struct_size);
    size_t bytes = struct_size < full_bytes ? struct_size : full_bytes;
    memcpy((unsigned char *)given + sizeof struct_size,
           (const unsigned char *)full + sizeof struct_size, bytes - sizeof struct_size);
    return MSTAR_OK;
}
