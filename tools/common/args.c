/* Reads command lines by a table of options. */
#include "common/args.h"

#include "base/util.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tdi_action tdi_args_refuse(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs(" (--help lists the options)\n", stderr);
    return TDI_USAGE;
}

/* --- Options -------------------------------------------------------------- */

/* Options are written with dashes. */
static void dash_name(const char *name, char out[16])
{
    size_t i = 0;
    for (; name[i]; i++)
        out[i] = name[i] == '_' ? '-' : name[i];
    out[i] = 0;
}

void tdi_args_print(const tdi_option *options, int count)
{
    for (int i = 0; i < count; i++) {
        char name[16];
        dash_name(options[i].name, name);
        printf("  --%-13s %-10s %s\n", name,
               options[i].argument ? options[i].argument : "", options[i].text);
    }
}

static bool is_optional(const tdi_option *option)
{
    return option->argument && *option->argument == '[';
}

/* getopt knows optional values after '=' only; these are a word of their own.
 */
static char *take_word(int argc, char **argv)
{
    return optind < argc && argv[optind][0] != '-' ? argv[optind++] : NULL;
}

static tdi_action parse_all(int argc, char **argv, const tdi_option *options,
                            const struct option *known, tdi_apply *apply,
                            void *context)
{
    opterr = 0;
    for (int got; (got = getopt_long(argc, argv, "", known, NULL)) >= 0;) {
        if (got == '?')
            return tdi_args_refuse("%s: unknown, or its value is missing",
                                   argv[optind - 1]);
        const char *value =
            is_optional(&options[got]) ? take_word(argc, argv) : optarg;
        tdi_action action = apply(context, got, value);
        if (action != TDI_RUN)
            return action;
    }
    if (optind < argc)
        return tdi_args_refuse("%s: what is this?", argv[optind]);
    return TDI_RUN;
}

tdi_action tdi_args_parse(int argc, char **argv, const tdi_option *options,
                          int count, tdi_apply *apply, void *context)
{
    char names[TDI_ARGS_MOST][16];
    struct option known[TDI_ARGS_MOST + 1] = {{0}};
    for (int i = 0; i < count; i++) {
        bool takes = options[i].argument && !is_optional(&options[i]);
        dash_name(options[i].name, names[i]);
        known[i] = (struct option){
            names[i], takes ? required_argument : no_argument, NULL, i};
    }
    return parse_all(argc, argv, options, known, apply, context);
}

/* --- Values --------------------------------------------------------------- */

/* "32M" to bytes. *end is behind it. */
static bool parse_bytes(const char *text, const char **end, uint64_t *bytes)
{
    static const char units[] = "KMG";
    char *after;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    uint64_t number = strtoull(text, &after, 10);
    const char *unit = *after ? strchr(units, *after) : NULL;
    uint64_t factor = unit ? (uint64_t)1024 << 10 * (unit - units) : 1;
    *end = after + (unit != NULL);
    return !errno && number && tdi_mul(number, factor, bytes);
}

uint32_t tdi_args_list(const char *text, uint64_t *list, uint32_t most)
{
    const char *at = text;
    for (uint32_t count = 0; count < most; at++) {
        if (!parse_bytes(at, &at, &list[count++]))
            return 0;
        if (!*at)
            return count;
        if (*at != ',')
            return 0;
    }
    return 0;
}

tdi_action tdi_args_number(const char *name, const char *text, uint32_t low,
                           uint32_t high, uint32_t *out)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < low || number > high)
        return tdi_args_refuse("--%s %s: not a number from %" PRIu32
                               " to %" PRIu32,
                               name, text, low, high);
    *out = (uint32_t)number;
    return TDI_RUN;
}

tdi_action tdi_args_scale(const char *text, double *scale)
{
    char *end;
    *scale = strtod(text, &end);
    if (end == text || *end || !(*scale >= 1 && *scale <= 1e18))
        return tdi_args_refuse("--scale %s: not a number of at least 1", text);
    return TDI_RUN;
}

bool tdi_args_has(const char *list, const char *word, size_t length)
{
    for (const char *at = list;; at++) {
        size_t part = strcspn(at, ",");
        if (part == length && !strncmp(at, word, length))
            return true;
        at += part;
        if (!*at)
            return false;
    }
}
