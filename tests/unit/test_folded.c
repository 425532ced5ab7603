/*
 * A plan set runs without deadlock even if every rank does its ops in array
 * order, one after the other: lanes are an opportunity, not a need. Backends
 * that queue ops rely on it, because streams may share hardware queues and NCCL
 * serialises what is issued on one communicator.
 */
#include "support/check.h"
#include "support/planset.h"

#include <stdlib.h>

static const tide_topology topologies[] = {
    {1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {3, 1}, {3, 2},
    {4, 2}, {5, 1}, {6, 3}, {7, 2}, {8, 1}, {8, 4}, {9, 2},
};

static const tide_plan_options variants[] = {
    {.coll = TIDE_ALL_GATHER},
    {.coll = TIDE_ALL_GATHER, .push = 1},
    {.coll = TIDE_ALL_GATHER, .chunk_bytes = 64},
    {.coll = TIDE_ALL_GATHER, .chunk_bytes = 64, .window = 1},
    {.coll = TIDE_ALL_GATHER, .chunk_bytes = 32, .window = 2},
    {.coll = TIDE_ALL_GATHER, .chunk_bytes = 16, .window = 5, .push = 1},
    {.coll = TIDE_REDUCE_SCATTER},
    {.coll = TIDE_REDUCE_SCATTER, .staged = 1},
    {.coll = TIDE_REDUCE_SCATTER, .staged = 1, .block_bytes = 256},
    {.coll = TIDE_REDUCE_SCATTER, .block_bytes = 256, .recv_slots = 1},
    {.coll = TIDE_REDUCE_SCATTER,
     .staged = 1,
     .block_bytes = 128,
     .recv_slots = 3,
     .switch_reduce = 1},
};

static uint32_t folded;

static void check_case(const test_group *group, tide_topology topology,
                       const tide_plan_options *options)
{
    char text[256];
    planset set = make_plans(group, topology, options);
    for (uint32_t r = 0; r < set.ranks; r++)
        for (uint32_t i = 0; i < set.plans[r]->op_count; i++)
            plan_ops(set.plans[r])[i].lane = TIDE_LANE_COPY;
    if (tide_verify_sync((const tide_plan *const *)set.plans)) {
        describe_case(group->name, topology, options, text, sizeof(text));
        CHECK_FAIL("%s: %s", text, tide_last_error());
    }
    folded++;
    free_plans(&set);
}

/* The check can fail: a put that waits for a credit which its receiver gives
 * only after a put of its own. */
static void check_that_it_can_fail(void)
{
    static const tide_plan_options paced = {
        .coll = TIDE_ALL_GATHER, .chunk_bytes = 64, .window = 1};
    planset set =
        make_plans(find_group("uneven"), (tide_topology){2, 1}, &paced);
    for (uint32_t r = 0; r < set.ranks; r++) {
        tide_op *ops = plan_ops(set.plans[r]);
        uint32_t wait = find_op(set.plans[r], TIDE_OP_WAIT, TIDE_CH_RAIL, 0);
        uint32_t put = find_op(set.plans[r], TIDE_OP_PUT, -1, 0);
        tide_op moved = ops[wait];
        CHECK_INT(put, <, wait);
        for (uint32_t i = wait; i > put; i--)
            ops[i] = ops[i - 1];
        ops[put] = moved; /* all receive before they send */
        for (uint32_t i = 0; i < set.plans[r]->op_count; i++) {
            ops[i].lane = TIDE_LANE_COPY;
            if (ops[i].kind == TIDE_OP_AFTER)
                ops[i].index = 0; /* order within the lane is enough */
        }
    }
    CHECK_INT(tide_verify_sync((const tide_plan *const *)set.plans), ==,
              TIDE_ERR_PLAN);
    free_plans(&set);
}

int main(void)
{
    for (size_t g = 0; g < test_group_count; g++)
        for (size_t t = 0; t < sizeof(topologies) / sizeof(*topologies); t++)
            for (size_t v = 0; v < sizeof(variants) / sizeof(*variants); v++)
                if (group_fits(&test_groups[g],
                               topologies[t].nodes * topologies[t].local_size))
                    check_case(&test_groups[g], topologies[t], &variants[v]);
    check_that_it_can_fail();
    printf("%u plan sets folded\n", folded);
    CHECK_INT(folded, >, 500);
    return 0;
}
