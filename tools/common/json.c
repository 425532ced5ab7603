/* Writes JSON to a file, value by value. */
#include "common/json.h"

#include <inttypes.h>
#include <math.h>

static void write_quoted(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(to, "\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            fprintf(to, "\\u%04x", *c);
        else
            fputc(*c, to);
    }
    fputc('"', to);
}

static void begin_value(tdi_json *json, const char *key)
{
    if (json->depth)
        fprintf(json->to, "%s\n%*s", json->first ? "" : ",", 2 * json->depth,
                "");
    json->first = 0;
    if (key) {
        write_quoted(json->to, key);
        fputs(": ", json->to);
    }
}

void tdi_json_open(tdi_json *json, const char *key, char bracket)
{
    begin_value(json, key);
    fputc(bracket, json->to);
    json->depth++;
    json->first = 1;
}

void tdi_json_close(tdi_json *json, char bracket)
{
    json->depth--;
    if (!json->first)
        fprintf(json->to, "\n%*s", 2 * json->depth, "");
    fputc(bracket, json->to);
    if (!json->depth)
        fputc('\n', json->to);
    json->first = 0;
}

void tdi_json_text(tdi_json *json, const char *key, const char *text)
{
    begin_value(json, key);
    write_quoted(json->to, text);
}

void tdi_json_count(tdi_json *json, const char *key, uint64_t count)
{
    begin_value(json, key);
    fprintf(json->to, "%" PRIu64, count);
}

void tdi_json_flag(tdi_json *json, const char *key, int flag)
{
    begin_value(json, key);
    fputs(flag ? "true" : "false", json->to);
}

void tdi_json_real(tdi_json *json, const char *key, double value)
{
    begin_value(json, key);
    if (isfinite(value))
        fprintf(json->to, "%.9g", value);
    else
        fputs("null", json->to);
}
