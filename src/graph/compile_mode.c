/*
 * compile_mode.c - which compile modes there are; the environment's override.
 *
 * A bad mode is refused when a config is made. At capture it would fail one bucket after another,
 * and each would silently be served eager.
 */
#include <string.h>

#include "graph/graph.h"

static const char *const accepted[] = {"default", "max-autotune-no-cudagraphs"};
static const char *const nested[] = {"reduce-overhead", "max-autotune"};

/* name: what messages call the text. *mode is the static string. */
static mstar_status find_mode(const char *name, const char *text, const char **mode)
{
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        if (strcmp(text, accepted[i]) == 0) {
            *mode = accepted[i];
            return MSTAR_OK;
        }
    }
    const char *why = "";
    for (size_t i = 0; i < sizeof nested / sizeof nested[0]; i++) {
        if (strcmp(text, nested[i]) == 0)
            why = ", which captures graphs of its own inside the capture";
    }
    return mst_fail(MSTAR_INVALID_ARGUMENT,
                    "%s is \"%.64s\"%s; accepted are \"%s\" and \"%s\", or none, which means "
                    "\"%s\"",
                    name, text, why, accepted[0], accepted[1], accepted[0]);
}

mstar_status mstar_check_compile_mode(const char *mode)
{
    const char *found;
    return mode == NULL ? MSTAR_OK : find_mode("compile_mode", mode, &found);
}

mstar_status mstar_effective_compile_mode(const char *mode, const char **effective)
{
    MST_TRY(mst_check_not_null("effective", effective));
    const char *found = accepted[0];
    if (mode != NULL)
        MST_TRY(find_mode("compile_mode", mode, &found));
    const char *override = mst_env_get(MST_ENV_GRAPH_COMPILE_MODE);
    if (override != NULL)
        MST_TRY(find_mode(mst_env_name(MST_ENV_GRAPH_COMPILE_MODE), override, &found));
    *effective = found;
    return MSTAR_OK;
}

mstar_status mst_read_compile_mode(const char *given, const char **mode, const char **effective)
{
    *mode = NULL;
    if (given != NULL)
        MST_TRY(find_mode("desc.compile_mode", given, mode));
    return mstar_effective_compile_mode(*mode, effective);
}
