/*
 * Parameter groups by name, from a file, or of a given size.
 *
 * A file has one parameter a line: SHAPE [DTYPE [DIM]], "4096x14336 bf16 0"
 * say; DTYPE is bf16 and the sharded dimension DIM is 0 unless given. '#'
 * begins a comment.
 */
#ifndef TIDE_TOOLS_GROUPS_H
#define TIDE_TOOLS_GROUPS_H

#include <stdio.h>
#include <tide/layout.h>

typedef struct tdi_params {
    tide_param *params;
    size_t count;
} tdi_params;

/*
 * Loads a built-in group, or else a file of that name. Every dimension 0 that
 * is not 0 becomes dimension / scale, at least 1. Errors: TIDE_ERR_INVALID (no
 * such group or file; a bad line, which the message numbers); TIDE_ERR_MEMORY.
 */
tide_status tdi_params_load(const char *group, double scale, tdi_params *list);

/*
 * Makes a group of bf16 parameters, in the proportions of a Llama block, of
 * which every one of `ranks` has `elems` elements in all. Errors:
 * TIDE_ERR_INVALID (too large), TIDE_ERR_MEMORY.
 */
tide_status tdi_params_split(uint64_t elems, uint32_t ranks, tdi_params *list);

void tdi_params_free(tdi_params *list);

/* Prints the built-in groups, one a line: name, size, what it is. */
void tdi_groups_print(FILE *to);

#endif
