/* The one way to report a fault: a status and a message, at the origin. */
#ifndef TIDE_BASE_FAIL_H
#define TIDE_BASE_FAIL_H

#include <tide/status.h>

/* Sets this thread's last error ("rank 2: ...") and returns status. Logs the
 * message when TIDE_LOG asks for errors. */
tide_status tdi_fail(tide_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* As tdi_fail(TIDE_ERR_SYSTEM), with errno's text behind the message. */
tide_status tdi_fail_errno(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Returns from the caller when expr is not TIDE_OK. */
#define TDI_TRY(expr)                                                          \
    do {                                                                       \
        tide_status tdi_try_status = (expr);                                   \
        if (tdi_try_status)                                                    \
            return tdi_try_status;                                             \
    } while (0)

#define TDI_TRY_GOTO(status, expr, label)                                      \
    do {                                                                       \
        if ((status = (expr)))                                                 \
            goto label;                                                        \
    } while (0)

#endif
