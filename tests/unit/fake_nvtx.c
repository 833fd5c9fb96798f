/* fake_nvtx.c - a library in NVTX's place: keeps what it is told, for test_cuda_nvtx.c. */
#include <stdio.h>
#include <string.h>

static char log_text[512];
static int depth;

int nvtxRangePushA(const char *message);
int nvtxRangePop(void);
const char *fake_nvtx_log(void);
int fake_nvtx_depth(void);
void fake_nvtx_clear(void);

int nvtxRangePushA(const char *message)
{
    size_t used = strlen(log_text);
    (void)snprintf(log_text + used, sizeof log_text - used, "<%s", message);
    return depth++;
}

int nvtxRangePop(void)
{
    size_t used = strlen(log_text);
    (void)snprintf(log_text + used, sizeof log_text - used, ">");
    return --depth;
}

const char *fake_nvtx_log(void)
{
    return log_text;
}

int fake_nvtx_depth(void)
{
    return depth;
}

void fake_nvtx_clear(void)
{
    log_text[0] = '\0';
}
