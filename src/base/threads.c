/*
 * threads.c - how many threads to use: the caller's number, else the environment's, else the cores
 * that this process may run on (its affinity, lowered by a control group's quota).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "base/base.h"

/* Reads digits; false without one or past limit (which stops the sum from overflowing). */
static bool read_number(const char **text, int64_t limit, int64_t *number)
{
    const char *at = *text;
    if (*at < '0' || *at > '9')
        return false;
    int64_t sum = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        sum = sum * 10 + (*at - '0');
        if (sum > limit)
            return false;
    }
    *number = sum;
    *text = at;
    return true;
}

static void skip_spaces(const char **text)
{
    while (**text == ' ' || **text == '\t')
        (*text)++;
}

static mstar_status read_threads(const char *name, const char *text, bool list,
                                 int32_t *num_threads)
{
    const char *at = text;
    int64_t number = 0;
    skip_spaces(&at);
    bool good = read_number(&at, MST_MAX_THREADS, &number) && number >= 1;
    skip_spaces(&at);
    if (!good || !(*at == '\0' || (list && *at == ',')))
        return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is \"%.64s\"; it must be a number from 1 to %d",
                        name, text, MST_MAX_THREADS);
    *num_threads = (int32_t)number;
    return MSTAR_OK;
}

int32_t mst_quota_cores(const char *cpu_max)
{
    int64_t quota, period;
    skip_spaces(&cpu_max);
    if (!read_number(&cpu_max, INT64_MAX / 16, &quota)) /* "max": no limit */
        return INT32_MAX;
    skip_spaces(&cpu_max);
    if (!read_number(&cpu_max, INT64_MAX / 16, &period) || period == 0 || quota == 0)
        return INT32_MAX;
    int64_t cores = mst_ceil_div(quota, period);
    return cores > INT32_MAX ? INT32_MAX : (int32_t)cores;
}

static bool read_small_file(const char *path, char *text, size_t capacity)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t bytes = read(file, text, capacity - 1);
    (void)close(file);
    if (bytes <= 0)
        return false;
    text[bytes] = '\0';
    return true;
}

int32_t mst_allowed_cores(void)
{
    int32_t cores = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        cores = CPU_COUNT(&set);
    } else { /* more processors than the set holds */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        cores = online > MST_MAX_THREADS ? MST_MAX_THREADS : (int32_t)online;
    }
    char text[64];
    if (read_small_file("/sys/fs/cgroup/cpu.max", text, sizeof text)) {
        int32_t quota = mst_quota_cores(text);
        cores = quota < cores ? quota : cores;
    }
    if (cores < 1)
        return 1;
    return cores < MST_MAX_THREADS ? cores : MST_MAX_THREADS;
}

mstar_status mst_resolve_threads(int32_t given, int32_t *num_threads)
{
    if (given != -1) {
        if (given < 1 || given > MST_MAX_THREADS)
            return mst_fail(MSTAR_INVALID_ARGUMENT,
                            "num_threads is %d; it must be from 1 to %d, or -1 for the default",
                            given, MST_MAX_THREADS);
        *num_threads = given;
        return MSTAR_OK;
    }
    const char *text = mst_env_get(MST_ENV_NUM_THREADS);
    if (text != NULL)
        return read_threads(mst_env_name(MST_ENV_NUM_THREADS), text, false, num_threads);
    text = mst_env_get(MST_ENV_OMP_THREADS);
    if (text != NULL) /* one number a nesting level: the first counts */
        return read_threads(mst_env_name(MST_ENV_OMP_THREADS), text, true, num_threads);
    *num_threads = mst_allowed_cores();
    return MSTAR_OK;
}
