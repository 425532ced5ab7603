/* All verifiers in their order, and plans with one fault for them. */
#ifndef TIDE_TESTS_VERIFY_ALL_H
#define TIDE_TESTS_VERIFY_ALL_H

#include "planset.h"

typedef enum verify_check { BOUNDS, SYNC, ORDER, RESULT } verify_check;

/* The first fault of the plans of all ranks; *at: who found it. */
tide_status verify_all(const tide_layout *layout, const tide_plan *const *plans,
                       verify_check *at);

/* A fault in rank 1's plan of the group `uneven` on 2x2 ranks. */
typedef struct plan_fault {
    const char *name;
    const tide_plan_options *options;
    void (*broken)(tide_plan *plan);
    verify_check at;      /* who must find it */
    const char *texts[4]; /* what the message must have */
    int both;             /* rank 0 has it too */
} plan_fault;

void check_plan_fault(const plan_fault *fault);

/* Options that faults are put into. Those of plan_own read a rank's own
 * gradient in place, of group plain; the others are of group uneven. */
extern const tide_plan_options plan_pull, plan_push, plan_paced, plan_direct,
    plan_staged, plan_own;

#endif
