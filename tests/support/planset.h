/* The plans of all ranks, and the parameter groups that tests make them of. */
#ifndef TIDE_TESTS_PLANSET_H
#define TIDE_TESTS_PLANSET_H

#include <tide/plan.h>

/* A parameter group that is awkward in one way; see planset.c. */
typedef struct test_group {
    const char *name;
    const tide_param *params;
    size_t count;
} test_group;

extern const test_group test_groups[];
extern const size_t test_group_count;
/* By name; the test fails if there is none. */
const test_group *find_group(const char *name);
/* False if the group cannot be sharded so (Shard(d > 0) must divide). */
int group_fits(const test_group *group, uint32_t ranks);

typedef struct planset {
    tide_layout *layout;
    tide_plan **plans; /* [ranks] */
    uint32_t ranks;
} planset;

/* Makes them; a test that cannot, fails. Options as tide_plan_create. */
planset make_plans(const test_group *group, tide_topology topology,
                   const tide_plan_options *options);
void free_plans(planset *set);

/* A copy of a plan whose ops and expects may be written; free() it. */
tide_plan *clone_plan(const tide_plan *plan);
static inline tide_op *plan_ops(tide_plan *plan)
{
    return (tide_op *)plan->ops;
}
/* The n-th op of a kind, and of a channel or phase unless that is -1. The test
 * fails if there is none. */
uint32_t find_op(const tide_plan *plan, tide_op_kind kind, int channel, int n);
static inline tide_op *get_op(tide_plan *plan, tide_op_kind kind, int channel,
                              int n)
{
    return &plan_ops(plan)[find_op(plan, kind, channel, n)];
}
/* Puts a copy of nothing in place of an op of a clone; indices stay. */
void drop_op(tide_plan *plan, uint32_t index);

/* "group uneven, 3x2, all-gather push=1 chunk=64 window=1": for messages. */
void describe_case(const char *group, tide_topology topology,
                   const tide_plan_options *options, char *text, size_t bytes);

#endif
