/* The verifiers of form: ops, bounds, signals, waits. Each fault is found by
 * the check that is meant to find it, and the report says where and what. */
#include "support/check.h"
#include "support/verify_all.h"

#include "base/util.h"
#include "plan/verify.h"

static void other_rank(tide_plan *plan)
{
    plan->rank = 2;
}
static void other_key(tide_plan *plan)
{
    plan->key++;
}
static void bad_kind(tide_plan *plan)
{
    plan_ops(plan)[3].kind = TIDE_OP_COUNT;
}
static void bad_lane(tide_plan *plan)
{
    plan_ops(plan)[3].lane = TIDE_LANE_COUNT;
}
static void bad_rank(tide_plan *plan)
{
    get_op(plan, TIDE_OP_WAIT, -1, 0)->src = tide_at(0, 0, 4, 0);
}
static void bad_channel(tide_plan *plan)
{
    get_op(plan, TIDE_OP_SIGNAL, -1, 0)->channel = TIDE_CH_COUNT;
}
static void bad_param(tide_plan *plan)
{
    get_op(plan, TIDE_OP_COPY, -1, 0)->dst.index = 4;
}
static void forward_after(tide_plan *plan)
{
    uint32_t at = find_op(plan, TIDE_OP_AFTER, -1, 0);
    plan_ops(plan)[at].index = at;
}
static void wide_copy(tide_plan *plan)
{
    get_op(plan, TIDE_OP_COPY, -1, 0)->width = 1000;
}
static void endless_copy(tide_plan *plan)
{
    tide_op *op = get_op(plan, TIDE_OP_COPY, -1, 0);
    op->height = UINT32_MAX;
    op->dst_pitch = op->src_pitch = UINT64_MAX / 2;
}
static void far_copy(tide_plan *plan)
{
    get_op(plan, TIDE_OP_COPY, -1, 0)->src = tide_at(TIDE_BUF_STAGE, 0, 3, 0);
}
static void near_put(tide_plan *plan)
{
    get_op(plan, TIDE_OP_PUT, -1, 0)->dst = tide_at(TIDE_BUF_STAGE, 0, 0, 0);
}
static void write_gradient(tide_plan *plan)
{
    tide_op *op = get_op(plan, TIDE_OP_REDUCE, -1, 0);
    op->dst = tide_at(TIDE_BUF_GRAD, 0, (int32_t)plan->rank, 0);
    op->width = 1;
}
static void split_element(tide_plan *plan)
{
    get_op(plan, TIDE_OP_REDUCE, -1, 0)->dst.offset += 2;
}
static tide_op *own_sum(tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].flags & TIDE_OWN)
            return &plan_ops(plan)[i];
    CHECK_FAIL("rank %u reads no gradient of its own in place", plan->rank);
}
static void own_across(tide_plan *plan)
{
    own_sum(plan)->flags |= TIDE_ACROSS;
}
static void own_of_few(tide_plan *plan)
{
    own_sum(plan)->height--;
}
static void own_of_other(tide_plan *plan)
{
    tide_op *op = own_sum(plan);
    op->src = tide_at(TIDE_BUF_RSTAGE, op->src.index, 0, op->src.offset);
}
static void own_in_recv(tide_plan *plan)
{
    tide_op *op = own_sum(plan);
    op->src = tide_at(TIDE_BUF_RECV, op->src.index, (int32_t)plan->rank, 0);
}
static void own_split(tide_plan *plan)
{
    own_sum(plan)->dst_pitch++;
}
static void own_param(tide_plan *plan)
{
    own_sum(plan)->src.index = 99;
}
static void own_far(tide_plan *plan)
{
    own_sum(plan)->dst_pitch += 1 << 20;
}
static void own_endless(tide_plan *plan)
{
    own_sum(plan)->dst_pitch = UINT64_MAX - 1;
}
static void own_wraps(tide_plan *plan)
{
    own_sum(plan)->src_pitch = UINT64_MAX - 63;
}
static void two_targets(tide_plan *plan)
{
    get_op(plan, TIDE_OP_REDUCE, -1, 0)->dst_pitch = 64;
}
static void small_stage(tide_plan *plan)
{
    plan->buffer_bytes[TIDE_BUF_STAGE] = 16;
}

static void signal_less(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_SIGNAL, TIDE_CH_STAGED, 0));
}
static void wait_for_more(tide_plan *plan)
{
    get_op(plan, TIDE_OP_WAIT, TIDE_CH_STAGED, 0)->count = 3;
}
static void wait_for_less(tide_plan *plan)
{
    get_op(plan, TIDE_OP_WAIT, TIDE_CH_STAGED, 0)->count = -1;
}
static void expect_twice(tide_plan *plan)
{
    tide_expect *expects = (tide_expect *)plan->expects;
    expects[1] = expects[0];
}
static void mark_twice(tide_plan *plan)
{
    plan_ops(plan)[0] = *get_op(plan, TIDE_OP_MARK, TIDE_PHASE_DONE, 0);
}
static void lose_pace(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_WAIT, TIDE_CH_CREDIT, 0));
}
/* Waits for its peer's storages before it offers its own; rank 0 too. */
static void wait_first(tide_plan *plan)
{
    tide_op *signal = get_op(plan, TIDE_OP_SIGNAL, TIDE_CH_DEST, 0);
    tide_op *wait = get_op(plan, TIDE_OP_WAIT, TIDE_CH_DEST, 0);
    tide_op swapped = *signal;
    *signal = *wait;
    *wait = swapped;
}

/* Rank 1's plan is broken. */
static const plan_fault faults[] = {
    {"rank", &plan_pull, other_rank, BOUNDS, {"plan 1 is that of rank 2"}, 0},
    {"key", &plan_pull, other_key, BOUNDS, {"ranks 0 and 1"}, 0},
    {"kind", &plan_pull, bad_kind, BOUNDS, {"rank 1", "op 3", "no such op"}, 0},
    {"lane", &plan_pull, bad_lane, BOUNDS, {"op 3", "no such lane"}, 0},
    {"peer", &plan_pull, bad_rank, BOUNDS, {"from=4", "no such rank"}, 0},
    {"channel", &plan_pull, bad_channel, BOUNDS, {"no such channel"}, 0},
    {"parameter",
     &plan_pull,
     bad_param,
     BOUNDS,
     {"param", "ends at byte 0"},
     0},
    {"after", &plan_pull, forward_after, BOUNDS, {"no earlier op"}, 0},
    {"width", &plan_pull, wide_copy, BOUNDS, {"rank 1 land op", "ends at"}, 0},
    {"height", &plan_push, endless_copy, BOUNDS, {"ends at"}, 0},
    {"far copy", &plan_pull, far_copy, BOUNDS, {"stays on its node"}, 0},
    {"near put", &plan_pull, near_put, BOUNDS, {"on its own rail"}, 0},
    {"gradient",
     &plan_direct,
     write_gradient,
     BOUNDS,
     {"caller's gradients"},
     0},
    {"alignment", &plan_direct, split_element, BOUNDS, {"aligned"}, 0},
    {"stage", &plan_pull, small_stage, BOUNDS, {"16 bytes"}, 0},
    {"own across", &plan_own, own_across, BOUNDS, {"in its rstage"}, 0},
    {"own of few", &plan_own, own_of_few, BOUNDS, {"in its rstage"}, 0},
    {"own of other", &plan_own, own_of_other, BOUNDS, {"in its rstage"}, 0},
    {"own in recv", &plan_own, own_in_recv, BOUNDS, {"in its rstage"}, 0},
    {"own split", &plan_own, own_split, BOUNDS, {"aligned"}, 0},
    {"own param", &plan_own, own_param, BOUNDS, {"grad", "byte 0"}, 0},
    {"own far", &plan_own, own_far, BOUNDS, {"grad", "ends at"}, 0},
    {"own endless", &plan_own, own_endless, BOUNDS, {"ends at"}, 0},
    {"own wraps", &plan_own, own_wraps, BOUNDS, {"fit no memory"}, 0},
    {"two targets", &plan_direct, two_targets, BOUNDS, {"one destination"}, 0},
    {"signal",
     &plan_pull,
     signal_less,
     SYNC,
     {"rank 1 sends 1 `staged` to rank 0, which expects 2"},
     0},
    {"count", &plan_pull, wait_for_more, SYNC, {"receives only 2"}, 0},
    {"negative",
     &plan_pull,
     wait_for_less,
     SYNC,
     {"only `free` counts calls"},
     0},
    {"expects", &plan_pull, expect_twice, SYNC, {"there twice"}, 0},
    {"marks", &plan_pull, mark_twice, SYNC, {"marks `done` 2 times, not 1"}, 0},
    {"pace",
     &plan_paced,
     lose_pace,
     SYNC,
     {"put 2", "after 0 credits", "window is 1"},
     0},
    {"deadlock",
     &plan_push,
     wait_first,
     SYNC,
     {"deadlock: land op", "that waits for", "of rank 1", "has 0 of 1"},
     1},
};

static void test_bad_input(void)
{
    const tide_plan *nothing[] = {NULL};
    tide_layout *layout;
    CHECK_OK(tide_layout_create(NULL, 0, 1, &layout));
    CHECK_STATUS(tide_verify_bounds(NULL, nothing), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_verify_bounds(layout, NULL), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_verify_bounds(layout, nothing), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_verify_sync(NULL), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_verify_order(NULL, nothing), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_verify_order(layout, NULL), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_verify_result(NULL, nothing), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_verify_result(layout, nothing), TIDE_ERR_INVALID);
    tide_layout_free(layout);
}

int main(void)
{
    test_bad_input();
    for (size_t i = 0; i < TDI_COUNT(faults); i++)
        check_plan_fault(&faults[i]);
    return 0;
}
