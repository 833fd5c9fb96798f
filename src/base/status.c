/* status.c - the status table's texts and the thread's last-error text. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

/* What stands for them in the static analyzer's sight. */
#undef mst_fail
#undef mst_fail_in
#undef mst_check_not_null

#define MST_ERROR_BYTES 1024

static _Thread_local char last_error[MST_ERROR_BYTES];

typedef struct status_row {
    int value;
    const char *name;
    const char *text;
    int http;
    const char *python;
} status_row;

static const status_row status_rows[] = {
#define MST_ROW(value, name, text, http, python) {value, #name, text, http, #python},
    MSTAR_STATUS_LIST(MST_ROW)
#undef MST_ROW
};

static const status_row *find_row(mstar_status status)
{
    for (size_t i = 0; i < sizeof status_rows / sizeof status_rows[0]; i++) {
        if (status_rows[i].value == (int)status)
            return &status_rows[i];
    }
    return NULL;
}

const char *mstar_status_name(mstar_status status)
{
    const status_row *row = find_row(status);
    return row != NULL ? row->name : "UNKNOWN";
}

const char *mstar_status_text(mstar_status status)
{
    const status_row *row = find_row(status);
    return row != NULL ? row->text : "unknown status";
}

int mstar_status_http(mstar_status status)
{
    const status_row *row = find_row(status);
    return row != NULL ? row->http : 500;
}

const char *mstar_status_python(mstar_status status)
{
    const status_row *row = find_row(status);
    return row != NULL ? row->python : "RuntimeError";
}

const char *mstar_last_error(void)
{
    return last_error;
}

mstar_status mstar_fail(mstar_status status, const char *text)
{
    return mst_fail(status, "%s", text != NULL ? text : "");
}

/* The text is built aside first, since its arguments may point into the present text. */
mstar_status mst_fail(mstar_status status, const char *format, ...)
{
    char text[MST_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_error, text, sizeof text);
    return status;
}

mstar_status mst_fail_in(mstar_status status, const char *format, ...)
{
    char text[MST_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (written >= 0 && (size_t)written + 3 < sizeof text) {
        size_t room = sizeof text - (size_t)written - 3;
        memcpy(text + written, ": ", 2);
        (void)snprintf(text + written + 2, room, "%.*s", (int)room - 1, last_error);
    }
    memcpy(last_error, text, sizeof text);
    return status;
}

mstar_status mst_check_range(const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return MSTAR_OK;
    return mst_fail(MSTAR_INVALID_ARGUMENT, "%s is %lld; it must be from %lld to %lld", name,
                    (long long)value, (long long)low, (long long)high);
}

mstar_status mst_check_not_null(const char *name, const void *pointer)
{
    return pointer != NULL ? MSTAR_OK : mst_fail(MSTAR_INVALID_ARGUMENT, "%s is NULL", name);
}
