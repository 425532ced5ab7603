/*
 * The verifiers of meaning: order and result. Each fault is found by the check
 * that is meant to find it, and the report names the ops, their ranks and what
 * is missing. test_mutations breaks every op in turn; here are the messages.
 */
#include "support/check.h"
#include "support/verify_all.h"

#include "base/util.h"
#include "plan/verify.h"

static void remove_all(tide_plan *plan, tide_op_kind kind, int channel)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == kind &&
            (channel < 0 || plan->ops[i].channel == channel))
            drop_op(plan, i);
}

static void forget_stage(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_WAIT, TIDE_CH_STAGED, 0));
}
static void forget_arrivals(tide_plan *plan)
{
    remove_all(plan, TIDE_OP_WAIT, TIDE_CH_RAIL);
}
static void forget_readers(tide_plan *plan)
{
    remove_all(plan, TIDE_OP_WAIT, TIDE_CH_READ);
}
static void forget_storages(tide_plan *plan)
{
    remove_all(plan, TIDE_OP_WAIT, TIDE_CH_DEST);
}
static void forget_landed(tide_plan *plan)
{
    remove_all(plan, TIDE_OP_WAIT, TIDE_CH_LANDED);
}
static void forget_sums(tide_plan *plan)
{
    remove_all(plan, TIDE_OP_AFTER, -1);
}
/* STAGED of the own slot from a lane that arrivals do not follow. */
static void signal_from_two_lanes(tide_plan *plan)
{
    uint32_t at = find_op(plan, TIDE_OP_SIGNAL, TIDE_CH_STAGED, 0);
    plan_ops(plan)[at].lane = TIDE_LANE_COPY;
    for (uint32_t i = 0; i < at; i++)
        if (plan->ops[i].kind == TIDE_OP_AFTER &&
            plan->ops[i].lane == TIDE_LANE_RECV)
            drop_op(plan, i);
}

static void copy_other_bytes(tide_plan *plan)
{
    get_op(plan, TIDE_OP_COPY, -1, 0)->src.offset += 2;
}
static void copy_less(tide_plan *plan)
{
    get_op(plan, TIDE_OP_COPY, -1, 0)->width -= 2;
}
static void copy_again(tide_plan *plan)
{
    tide_op *op = get_op(plan, TIDE_OP_COPY, -1, 0);
    *get_op(plan, TIDE_OP_COPY, -1, 1) = *op;
}
static void sum_fewer(tide_plan *plan)
{
    get_op(plan, TIDE_OP_REDUCE, -1, 0)->height--;
}
static void sum_twice(tide_plan *plan)
{
    get_op(plan, TIDE_OP_REDUCE, -1, 0)->src_pitch = 0;
}
static void sum_other(tide_plan *plan)
{
    get_op(plan, TIDE_OP_REDUCE, -1, 0)->src.offset += 2;
}
static void sum_as_floats(tide_plan *plan)
{
    tide_op *op = get_op(plan, TIDE_OP_REDUCE, -1, 0);
    op->flags &= (uint8_t)~TIDE_SRC_BF16;
    op->width = 1;
}
static void scale_never(tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == TIDE_OP_REDUCE)
            plan_ops(plan)[i].flags &= (uint8_t)~TIDE_SCALE;
}
static void scale_twice(tide_plan *plan)
{
    get_op(plan, TIDE_OP_REDUCE, -1, 0)->flags |= TIDE_SCALE;
}

/* Rank 1's plan is broken. */
static const plan_fault faults[] = {
    {"unstaged read",
     &plan_pull,
     forget_stage,
     ORDER,
     {"race on byte", "of stage", "rank 1 land op", "its caller fills"},
     0},
    {"early forward",
     &plan_pull,
     forget_arrivals,
     ORDER,
     {"race", "stage", "put stage", "rank 1 land op"},
     0},
    {"early release",
     &plan_direct,
     forget_readers,
     ORDER,
     {"grad", "rank 1", "its caller may free the gradients", "reduce"},
     0},
    {"early push",
     &plan_push,
     forget_storages,
     ORDER,
     {"of param", "of rank 0", "hands over storages", "knows nothing"},
     0},
    {"early end",
     &plan_push,
     forget_landed,
     ORDER,
     {"of param", "of rank 1", "its caller reads the outputs"},
     0},
    {"unordered lanes",
     &plan_staged,
     forget_sums,
     ORDER,
     {"race", "rank 1"},
     0},
    {"two lanes",
     &plan_pull,
     signal_from_two_lanes,
     ORDER,
     {"race", "rank 1", "its caller fills", "rank 0 land op"},
     0},
    {"wrong bytes",
     &plan_pull,
     copy_other_bytes,
     RESULT,
     {"rank 1 land op", "becomes byte", "it should be byte", "shard"},
     0},
    {"gap",
     &plan_pull,
     copy_less,
     RESULT,
     {"rank 1: byte", "is not written"},
     0},
    {"twice", &plan_pull, copy_again, RESULT, {"is written twice"}, 0},
    {"fewer", &plan_staged, sum_fewer, RESULT, {"without rank 1"}, 0},
    {"rank twice",
     &plan_staged,
     sum_twice,
     RESULT,
     {"since rank 1 op", "counts a rank twice"},
     0},
    {"elements",
     &plan_direct,
     sum_other,
     RESULT,
     {"it should be the scaled"},
     0},
    {"type", &plan_staged, sum_as_floats, RESULT, {"another type"}, 0},
    {"unscaled", &plan_direct, scale_never, RESULT, {"unscaled"}, 0},
    {"scaled twice", &plan_direct, scale_twice, RESULT, {"scales twice"}, 0},
};

/* --- Between calls
 * -------------------------------------------------------------- */

/* An edge that only a second call needs: rank 1 no longer waits until its peer
 * has read what the last call left in RECV. */
static void test_reuse_by_next_call(void)
{
    planset set =
        make_plans(find_group("uneven"), (tide_topology){2, 2}, &plan_direct);
    tide_plan *plans[4], *wrong = clone_plan(set.plans[1]);
    static const uint32_t calls[] = {0, 0};
    memcpy(plans, set.plans, sizeof(plans));
    plans[1] = wrong;
    uint32_t wait = find_op(wrong, TIDE_OP_WAIT, TIDE_CH_CONSUMED, 0);
    CHECK_INT(wrong->ops[wait].count, ==, 0);
    drop_op(wrong, wait);
    tdi_set view = {.layout = set.layout,
                    .plans = (const tide_plan *const *)plans};
    CHECK_OK(tdi_verify_order(&view, 1, calls, 1));
    CHECK_STATUS(tdi_verify_order(&view, 1, calls, 2), TIDE_ERR_PLAN);
    CHECK_TEXT(tide_last_error(), "of recv");
    CHECK_TEXT(tide_last_error(), "of call 0");
    CHECK_TEXT(tide_last_error(), "of call 1");
    free(wrong);
    free_plans(&set);
}

/* Two lanes may raise one counter where an AFTER puts them in order. */
static void test_counter_of_two_lanes(void)
{
    planset set =
        make_plans(find_group("uneven"), (tide_topology){2, 2}, &plan_pull);
    tide_plan *plans[4], *moved = clone_plan(set.plans[1]);
    uint32_t after = find_op(moved, TIDE_OP_AFTER, -1, 0);
    uint32_t signal = find_op(moved, TIDE_OP_SIGNAL, TIDE_CH_STAGED, 0);
    tide_op *ops = plan_ops(moved);
    CHECK_INT(signal, ==, after + 1);
    CHECK_INT(ops[after].lane, ==, TIDE_LANE_RECV);
    tide_op swapped = ops[after];
    ops[after] = ops[signal];
    ops[after].lane = TIDE_LANE_COPY;
    ops[signal] = swapped;
    ops[signal].index = after;
    memcpy(plans, set.plans, sizeof(plans));
    plans[1] = moved;
    verify_check at;
    CHECK_OK(verify_all(set.layout, (const tide_plan *const *)plans, &at));
    drop_op(moved, signal);
    CHECK_STATUS(verify_all(set.layout, (const tide_plan *const *)plans, &at),
                 TIDE_ERR_PLAN);
    CHECK_INT(at, ==, ORDER);
    free(moved);
    free_plans(&set);
}

/* --- Speed
 * --------------------------------------------------------------- */

/* A block of Llama-3.1 70B on 8 nodes of 8, within the promised time. */
static void test_speed(void)
{
    static const tide_param block[] = {
        {1, 8192, 8192, TIDE_BF16},  {1, 1024, 8192, TIDE_BF16},
        {1, 1024, 8192, TIDE_BF16},  {1, 8192, 8192, TIDE_BF16},
        {1, 28672, 8192, TIDE_BF16}, {1, 28672, 8192, TIDE_BF16},
        {1, 8192, 28672, TIDE_BF16}, {1, 8192, 1, TIDE_BF16},
        {1, 8192, 1, TIDE_BF16}};
    static const test_group group = {"llama3.1-70b", block, TDI_COUNT(block)};
    static const tide_plan_options *const options[] = {&plan_pull,
                                                       &plan_direct};
    uint64_t start = tdi_now_ms();
    for (size_t i = 0; i < TDI_COUNT(options); i++) {
        planset set = make_plans(&group, (tide_topology){8, 8}, options[i]);
        verify_check at;
        CHECK_OK(
            verify_all(set.layout, (const tide_plan *const *)set.plans, &at));
        free_plans(&set);
    }
    CHECK_INT(tdi_now_ms() - start, <, 10000);
}

int main(void)
{
    for (size_t i = 0; i < TDI_COUNT(faults); i++)
        check_plan_fault(&faults[i]);
    test_reuse_by_next_call();
    test_counter_of_two_lanes();
    test_speed();
    return 0;
}
