/* log.c - messages go to the host's sink or nowhere. */
#include <stdarg.h>
#include <stdio.h>

#include "base/base.h"

static mstar_log_sink log_sink;
static void *log_context;

void mstar_set_log_sink(mstar_log_sink sink, void *context)
{
    log_sink = sink;
    log_context = context;
}

void mst_log(int level, const char *format, ...)
{
    if (log_sink == NULL)
        return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_sink(log_context, level, text);
}
