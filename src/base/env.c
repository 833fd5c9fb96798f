/* env.c - every environment variable that the library reads. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static const char *const env_names[] = {
    [MST_ENV_MAX_ISA] = "MSTAR_MAX_ISA",
    [MST_ENV_NUM_THREADS] = "MSTAR_NUM_THREADS",
    [MST_ENV_OMP_THREADS] = "OMP_NUM_THREADS",
    [MST_ENV_GRAPH_COMPILE_MODE] = "MSTAR_GRAPH_COMPILE_MODE",
    [MST_ENV_WORKSPACE_MB] = "MSTAR_WORKSPACE_BUFFER_MB",
    [MST_ENV_REQUIRE_GRAPHS] = "MSTAR_REQUIRE_ACCELERATOR_GRAPHS",
    [MST_ENV_NUM_SLOTS] = "MSTAR_NUM_SLOTS",
    [MST_ENV_PRE_PLAN] = "MSTAR_PRE_PLAN_SPEC",
    [MST_ENV_STEP_SYNC] = "MSTAR_ENGINE_STEP_SYNC",
    [MST_ENV_NVTX] = "MSTAR_NVTX",
};

const char *mst_env_name(mst_env name)
{
    return env_names[name];
}

const char *mst_env_get(mst_env name)
{
    const char *text = getenv(env_names[name]);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

bool mst_env_flag(mst_env name, bool unset)
{
    const char *text = mst_env_get(name);
    return text == NULL ? unset : strcmp(text, "0") != 0;
}
