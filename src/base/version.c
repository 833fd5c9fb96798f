/* version.c - what was built. */
#include "base/base.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif

const char *mstar_version(void)
{
    return MST_VERSION;
}

const char *mstar_build_info(void)
{
    return "mstar " MST_VERSION " commit " MST_COMMIT " " MST_BUILD_TYPE " " COMPILER
           " isa: " MST_ISAS_TEXT " backends: cpu"
#if defined(MST_HAVE_CUDA)
           " cuda"
#endif
        ;
}
