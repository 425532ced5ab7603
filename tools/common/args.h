/* Command lines: options from a table, values of the kinds that tools share. */
#ifndef TIDE_TOOLS_ARGS_H
#define TIDE_TOOLS_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TDI_ARGS_MOST 64 /* options of a tool */

typedef enum tdi_action {
    TDI_RUN,
    TDI_DONE, /* it has printed what was asked for */
    TDI_USAGE /* it has said on stderr what is wrong */
} tdi_action;

typedef struct tdi_option {
    char name[16];        /* with '_' where users write '-' */
    const char *argument; /* NULL: none; "[...]": the next word, if it is no
                             option */
    const char *text;
} tdi_option;

/* Takes the value of options[option], NULL where there is none. */
typedef tdi_action tdi_apply(void *context, int option, const char *value);

/* Applies every option of the command line, until one is not TDI_RUN. */
tdi_action tdi_args_parse(int argc, char **argv, const tdi_option *options,
                          int count, tdi_apply *apply, void *context);
/* Prints the options, one a line. */
void tdi_args_print(const tdi_option *options, int count);

/* Says what is wrong, after the tool's name; returns TDI_USAGE. */
tdi_action tdi_args_refuse(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* "512K,32M": sizes with commas between them, K, M and G powers of 1024.
 * Returns how many; 0 if it is not up to `most` of them, or one is 0. */
uint32_t tdi_args_list(const char *text, uint64_t *list, uint32_t most);
/* The value of --name; refuses what is out of range. */
tdi_action tdi_args_number(const char *name, const char *text, uint32_t low,
                           uint32_t high, uint32_t *out);
/* The value of --scale. */
tdi_action tdi_args_scale(const char *text, double *scale);

/* Does the list, with commas between its words, have this word? */
bool tdi_args_has(const char *list, const char *word, size_t length);

#endif
