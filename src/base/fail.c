/* Status names and texts, the last error, and the log. */
#include "base/fail.h"

#include "base/env.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];

const char *tide_status_name(tide_status status)
{
    switch (status) {
#define X(name, value, text)                                                   \
    case TIDE_##name:                                                          \
        return "TIDE_" #name;
        TIDE_STATUS_LIST(X)
#undef X
    }
    return "TIDE_ERR_?";
}

const char *tide_status_text(tide_status status)
{
    switch (status) {
#define X(name, value, text)                                                   \
    case TIDE_##name:                                                          \
        return text;
        TIDE_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *tide_last_error(void)
{
    return last_error;
}

static void set_error(tide_status status, const char *format, va_list args,
                      const char *tail)
{
    vsnprintf(last_error, sizeof(last_error), format, args);
    if (tail) {
        size_t used = strlen(last_error);
        snprintf(last_error + used, sizeof(last_error) - used, ": %s", tail);
    }
    if (tdi_env_number(TDI_ENV_LOG))
        fprintf(stderr, "tide: %s: %s\n", tide_status_name(status), last_error);
}

tide_status tdi_fail(tide_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_error(status, format, args, NULL);
    va_end(args);
    return status;
}

tide_status tdi_fail_errno(const char *format, ...)
{
    int saved = errno;
    va_list args;
    va_start(args, format);
    set_error(TIDE_ERR_SYSTEM, format, args, strerror(saved));
    va_end(args);
    return TIDE_ERR_SYSTEM;
}
