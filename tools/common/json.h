/* A small JSON writer: the commas, the indentation and the escapes. */
#ifndef TIDE_TOOLS_JSON_H
#define TIDE_TOOLS_JSON_H

#include <stdint.h>
#include <stdio.h>

typedef struct tdi_json {
    FILE *to;
    int depth;
    int first; /* nothing has been written at this depth */
} tdi_json;

/* `key` is NULL for an element of an array and for the outermost value. */
void tdi_json_open(tdi_json *json, const char *key, char bracket);
void tdi_json_close(tdi_json *json, char bracket);
void tdi_json_text(tdi_json *json, const char *key, const char *text);
void tdi_json_count(tdi_json *json, const char *key, uint64_t count);
void tdi_json_flag(tdi_json *json, const char *key, int flag);
/* Not a number and infinities, which JSON lacks, become null. */
void tdi_json_real(tdi_json *json, const char *key, double value);

#endif
