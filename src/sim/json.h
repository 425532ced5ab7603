/* A strict reader of flat JSON: one object of texts and numbers. */
#ifndef TIDE_SIM_JSON_H
#define TIDE_SIM_JSON_H

#include <tide/status.h>

/* One member. `text` is NULL for a number. Keys and texts live until the
 * callback returns. */
typedef struct tdi_member {
    const char *key;
    const char *text;
    double number;
} tdi_member;

typedef tide_status tdi_on_member(void *context, const tdi_member *member);

/*
 * Calls `on` for every member in order and stops at its first error. Escapes,
 * nesting, true, false and null are refused. `name` stands in messages.
 * Errors: TIDE_ERR_INVALID, with the line.
 */
tide_status tdi_json_read(const char *name, const char *text, tdi_on_member *on,
                          void *context);

#endif
