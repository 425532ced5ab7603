/*
 * A plan set runs without deadlock even if every rank does its ops in array
 * order, one after the other: lanes are an opportunity, not a need. Backends
 * that queue ops rely on it, because streams may share hardware queues and NCCL
 * serialises what is issued on one communicator. And copies that stand next to
 * each other may run in any order: those backends hand them over together.
 */
#include "support/check.h"
#include "support/planset.h"

#include <stdbool.h>
#include <stdlib.h>

static const tide_topology topologies[] = {
    {1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {3, 1}, {3, 2},
    {4, 2}, {5, 1}, {6, 3}, {7, 2}, {8, 1}, {8, 4}, {9, 2},
};

static const tide_plan_options variants[] = {
    {.coll = TIDE_ALL_GATHER},
    {.coll = TIDE_ALL_GATHER, .push = 1},
    {.coll = TIDE_ALL_GATHER, .together = 1, .chunk_bytes = 64},
    {.coll = TIDE_ALL_GATHER, .together = 2, .chunk_bytes = 64, .window = 2},
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

static bool same_buffer(tide_operand a, tide_operand b)
{
    return a.where == b.where && a.index == b.index;
}

/* None of them reads a buffer that another writes. */
static bool in_any_order(const tide_op *ops, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < count; k++)
            if (ops[i].kind == TIDE_OP_COPY && ops[k].kind == TIDE_OP_COPY &&
                same_buffer(ops[i].src, ops[k].dst))
                return false;
    return true;
}

/* Of all runs of copies; an AFTER between them may be of no effect. */
static void check_copies(const tide_plan *plan, const char *group)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i <= plan->op_count; i++) {
        uint8_t kind = i < plan->op_count ? plan->ops[i].kind : TIDE_OP_MARK;
        if (kind == TIDE_OP_COPY || kind == TIDE_OP_AFTER)
            continue;
        if (!in_any_order(&plan->ops[first], i - first))
            CHECK_FAIL("group %s, rank %u: a copy before op %u reads what one "
                       "next to it writes",
                       group, plan->rank, i);
        first = i + 1;
    }
}

static void check_case(const test_group *group, tide_topology topology,
                       const tide_plan_options *options)
{
    char text[256];
    planset set = make_plans(group, topology, options);
    for (uint32_t r = 0; r < set.ranks; r++) {
        check_copies(set.plans[r], group->name);
        for (uint32_t i = 0; i < set.plans[r]->op_count; i++)
            plan_ops(set.plans[r])[i].lane = TIDE_LANE_COPY;
    }
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

static void check_that_copies_can_fail(void)
{
    tide_op ops[] = {
        {.kind = TIDE_OP_COPY,
         .dst = tide_at(TIDE_BUF_STAGE, 0, 1, 0),
         .src = tide_at(TIDE_BUF_PARAM, 2, 1, 0)},
        {.kind = TIDE_OP_AFTER},
        {.kind = TIDE_OP_COPY,
         .dst = tide_at(TIDE_BUF_PARAM, 3, 1, 0),
         .src = tide_at(TIDE_BUF_STAGE, 0, 1, 64)},
    };
    CHECK(!in_any_order(ops, 3));
    ops[2].src = tide_at(TIDE_BUF_STAGE, 0, 2, 64); /* another rank's */
    CHECK(in_any_order(ops, 3));
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
    check_that_copies_can_fail();
    printf("%u plan sets folded\n", folded);
    CHECK_INT(folded, >, 500);
    return 0;
}
