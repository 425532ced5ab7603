/* Breaks one op of a plan in one way. */
#ifndef TIDE_TESTS_MUTATE_H
#define TIDE_TESTS_MUTATE_H

#include "planset.h"

#include <stdbool.h>

/* Name, what it does. Elements are those of the operand. */
#define MUTATION_LIST(X)                                                       \
    X(DROP, "drop")                                                            \
    X(DROP_PAIR, "drop with its expectation")                                  \
    X(LOWER, "await one less")                                                 \
    X(NARROW, "one element less")                                              \
    X(SHORTEN, "one row or source less")                                       \
    X(DST_UP, "destination + 1 element")                                       \
    X(DST_DOWN, "destination - 1 element")                                     \
    X(SRC_UP, "source + 1 element")                                            \
    X(SRC_DOWN, "source - 1 element")                                          \
    X(DST_PITCH, "destination pitch + 1 element")                              \
    X(SRC_PITCH, "source pitch + 1 element")                                   \
    X(OWN_UP, "own source + 1 element")                                        \
    X(FLIP_ADD, "add or not")                                                  \
    X(FLIP_SCALE, "scale or not")

typedef enum mutation {
#define X(name, text) name,
    MUTATION_LIST(X)
#undef X
        MUTATION_COUNT
} mutation;

extern const char *const mutation_names[MUTATION_COUNT];

/* Does the mutation make sense for this op? */
bool mutation_applies(const tide_op *op, mutation how);
/* Carries it out on a clone. */
void break_op(tide_plan *plan, uint32_t index, mutation how);
/* The other half of DROP_PAIR, on the receiver's plan: it expects one signal
 * less, and waits for none that does not come. */
void expect_less(tide_plan *plan, uint32_t source, uint32_t channel);

#endif
