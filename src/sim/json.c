/* A strict reader of flat JSON; json.h says how strict. */
#include "sim/json.h"

#include "base/fail.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char *name;
    const char *at;
    int line;
} reader;

static tide_status fail(const reader *r, const char *what)
{
    return tdi_fail(TIDE_ERR_INVALID, "%s, line %d: %s", r->name, r->line,
                    what);
}

static char peek(reader *r)
{
    while (*r->at && strchr(" \t\r\n", *r->at))
        r->line += *r->at++ == '\n';
    return *r->at;
}

static bool take(reader *r, char c)
{
    bool found = peek(r) == c;
    r->at += found;
    return found;
}

/* The text between quotes, which must fit. */
static tide_status read_text(reader *r, char *to, size_t size)
{
    if (!take(r, '"'))
        return fail(r, "a text in quotes should stand here");
    size_t length = strcspn(r->at, "\"\\\n");
    if (r->at[length] != '"')
        return fail(r, "a text must end on its line and have no backslash");
    if (length >= size)
        return fail(r, "this text is too long");
    memcpy(to, r->at, length);
    to[length] = '\0';
    r->at += length + 1;
    return TIDE_OK;
}

/* strtod reads more than JSON allows: "inf", "0x1", " 1", "+1". */
static tide_status read_number(reader *r, double *to)
{
    char *end;
    size_t length = strspn(r->at, "0123456789+-.eE");
    *to = strtod(r->at, &end);
    if (!length || end != r->at + length || strchr("+.", *r->at) ||
        !isfinite(*to))
        return fail(r, "a number or a text should stand here");
    r->at = end;
    return TIDE_OK;
}

static tide_status read_member(reader *r, tdi_on_member *on, void *context)
{
    char key[64], text[256];
    tdi_member member = {.key = key};
    TDI_TRY(read_text(r, key, sizeof(key)));
    if (!take(r, ':'))
        return fail(r, "':' should stand here");
    if (peek(r) == '"') {
        TDI_TRY(read_text(r, text, sizeof(text)));
        member.text = text;
    } else {
        TDI_TRY(read_number(r, &member.number));
    }
    return on(context, &member);
}

tide_status tdi_json_read(const char *name, const char *text, tdi_on_member *on,
                          void *context)
{
    reader r = {name, text, 1};
    if (!take(&r, '{'))
        return fail(&r, "'{' should stand here");
    if (!take(&r, '}')) {
        do
            TDI_TRY(read_member(&r, on, context));
        while (take(&r, ','));
        if (!take(&r, '}'))
            return fail(&r, "',' or '}' should stand here");
    }
    if (peek(&r))
        return fail(&r, "nothing may follow the object");
    return TIDE_OK;
}
