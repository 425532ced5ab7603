/*
 * Fuzz cases: a topology, parameter groups, collectives over them and a row of
 * calls, decoded from bytes. Every input is a legal case, missing bytes are
 * zeros, and sizes are cut so that a case takes milliseconds.
 */
#ifndef TIDE_FUZZ_CASE_H
#define TIDE_FUZZ_CASE_H

#include <stdbool.h>
#include <tide/plan.h>

#include "support/interp.h"

enum { FUZZ_PARAMS = 9, FUZZ_GROUPS = 2, FUZZ_COLLS = 2, FUZZ_CALLS = 4 };

typedef struct fuzz_group {
    tide_param params[FUZZ_PARAMS];
    size_t count;
} fuzz_group;

typedef struct fuzz_coll {
    uint32_t group;
    tide_plan_options options;
} fuzz_coll;

typedef struct fuzz_case {
    tide_topology topology;
    fuzz_group groups[FUZZ_GROUPS];
    fuzz_coll colls[FUZZ_COLLS];
    uint32_t calls[FUZZ_CALLS]; /* which collective: 0, 1, then any */
    uint32_t call_count;
    bool huge; /* for plans alone: no memory holds the tensors */
    interp_how how;
} fuzz_case;

void fuzz_decode(const uint8_t *data, size_t bytes, fuzz_case *c);
/* All of it, in the notation of C initialisers. */
void fuzz_print(const fuzz_case *c, FILE *to);

#endif
