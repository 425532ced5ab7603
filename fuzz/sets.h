/* The plans of one collective on all ranks: making and verifying them. */
#ifndef TIDE_FUZZ_SETS_H
#define TIDE_FUZZ_SETS_H

#include "case.h"

typedef struct plan_set {
    tide_layout *layout;
    tide_plan **plans;
    uint32_t ranks;
    uint64_t ops; /* of all ranks */
} plan_set;

/* Prints the message and the case, and aborts. */
void fail_case(const fuzz_case *c, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

/* Makes the plans of a collective, each twice: both must be the same. */
plan_set make_set(const fuzz_case *c, const fuzz_coll *coll);
void free_set(plan_set *set);

static inline const tide_plan *const *all_plans(const plan_set *set)
{
    return (const tide_plan *const *)set->plans;
}

/* All verifiers, over a row of calls where `calls` names sets. share_slots: the
 * tensors of all sets lie in the same memory, as in Slot-Reuse. The message is
 * tide_last_error(). */
tide_status verify_sets(const plan_set *sets, uint32_t count,
                        const uint32_t *calls, uint32_t call_count,
                        bool share_slots);

#endif
