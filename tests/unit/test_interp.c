/*
 * The interpreter itself: what it puts in is what the layout says, and plans
 * with one fault do not get past it. Each fault is one that only some
 * interleavings show, or one that only the callers' behaviour shows.
 */
#include "support/check.h"
#include "support/interp.h"
#include "support/planset.h"

#include "base/util.h"

/* --- The data ---------------------------------------------------------------
 */

static void test_bf16(void)
{
    static const struct {
        float value;
        uint16_t bits;
    } pairs[] = {{1.0f, 0x3f80},   {-2.5f, 0xc020},   {255.0f, 0x437f},
                 {257.0f, 0x4380}, {259.0f, 0x4382},  {258.0f, 0x4381},
                 {0.0f, 0},        {3.4e38f, 0x7f80}, {1e-40f, 0x0001}};
    for (size_t i = 0; i < TDI_COUNT(pairs); i++)
        CHECK_INT(interp_to_bf16(pairs[i].value), ==, pairs[i].bits);
    CHECK(interp_from_bf16(0xc020) == -2.5f);
    float nan = interp_from_bf16(0x7fff);
    CHECK(nan != nan);
    CHECK_INT(interp_to_bf16(nan) & 0x7fff, >, 0x7f80);
}

/* Seven rows over four ranks: two each, the last has one and one of padding. */
static void test_rows_and_padding(void)
{
    tide_param param = {1, 7, 3, TIDE_I16};
    tide_layout *layout;
    CHECK_OK(tide_layout_create(&param, 1, 4, &layout));
    for (uint64_t i = 0; i < 48; i++) {
        uint8_t byte = interp_storage_byte(3, layout, 0, i);
        CHECK((byte == 0) == (i >= 42));
        CHECK_INT(byte, ==,
                  interp_shard_byte(3, layout, 0, (uint32_t)(i / 12), i % 12));
    }
    for (uint64_t i = 0; i < 6; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < 4; r++)
            sum += interp_grad(3, 0, r, 18 + i);
        CHECK(interp_sum(3, layout, 0, 3, i) == (i < 3 ? sum : 0.0f));
    }
    tide_layout_free(layout);
}

/* Two rows of four columns, Shard(1) over two ranks: two columns each. */
static void test_columns(void)
{
    tide_param param = {2, 4, 1, TIDE_U8};
    tide_layout *layout;
    CHECK_OK(tide_layout_create(&param, 1, 2, &layout));
    static const struct {
        uint32_t rank;
        uint64_t at;
    } owners[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1},
                  {0, 2}, {0, 3}, {1, 2}, {1, 3}};
    for (uint64_t i = 0; i < 8; i++)
        CHECK_INT(
            interp_storage_byte(0, layout, 0, i), ==,
            interp_shard_byte(0, layout, 0, owners[i].rank, owners[i].at));
    CHECK(interp_sum(0, layout, 0, 1, 2) ==
          interp_grad(0, 0, 0, 6) + interp_grad(0, 0, 1, 6));
    tide_layout_free(layout);
}

/* --- Faults
 * ------------------------------------------------------------------- */

typedef void breaker(tide_plan *plan);

/* The fault that interleavings up to `seeds` show, or NULL; to be freed. Three
 * calls of the group `uneven`; `broken` is applied to rank 1's plan. */
static char *run_broken(tide_topology topology,
                        const tide_plan_options *options, breaker *broken,
                        uint64_t seeds)
{
    planset set = make_plans(find_group("uneven"), topology, options);
    tide_plan *right = set.plans[1], *wrong = clone_plan(right);
    if (broken)
        broken(wrong);
    set.plans[1] = wrong;
    interp_call call = {set.layout, (const tide_plan *const *)set.plans};
    interp_call calls[] = {call, call, call};
    char *fault = NULL;
    for (uint64_t seed = 1; seed <= seeds && !fault; seed++) {
        interp_how how = {seed, seed % 3 == 0, 0.25f};
        fault = interp_run(calls, 3, &how);
    }
    set.plans[1] = right;
    free(wrong);
    free_plans(&set);
    return fault;
}

static void forget_stage(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_WAIT, TIDE_CH_STAGED, 0));
}
static void forget_arrival(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_WAIT, TIDE_CH_RAIL, 0));
}
static void forget_edges(tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == TIDE_OP_AFTER)
            drop_op(plan, i);
}
static void forget_gradients(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_WAIT, TIDE_CH_GRADS, 0));
}
static void forget_readers(tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == TIDE_OP_WAIT &&
            plan->ops[i].channel == TIDE_CH_READ)
            drop_op(plan, i);
}
static void skip_copy(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_COPY, -1, 1));
}
static void move_copy(tide_plan *plan)
{
    get_op(plan, TIDE_OP_COPY, -1, 0)->dst.offset += 2;
}
static void leave_buffer(tide_plan *plan)
{
    get_op(plan, TIDE_OP_COPY, -1, 0)->dst.offset += 1u << 20;
}
static void hold_back(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_SIGNAL, -1, 0));
}
static void signal_twice(tide_plan *plan)
{
    tide_op *wait = get_op(plan, TIDE_OP_WAIT, TIDE_CH_FREE, 0);
    *wait = *get_op(plan, TIDE_OP_SIGNAL, TIDE_CH_FREE, 0);
    wait->lane = TIDE_LANE_COPY;
}
static void scale_never(tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == TIDE_OP_REDUCE)
            plan_ops(plan)[i].flags &= (uint8_t)~TIDE_SCALE;
}
static void take_one_twice(tide_plan *plan)
{
    tide_op *sum = get_op(plan, TIDE_OP_REDUCE, -1, 0);
    sum->src_pitch = 0;
}
static void end_early(tide_plan *plan)
{
    tide_op done = {.kind = TIDE_OP_MARK,
                    .lane = TIDE_LANE_RECV,
                    .channel = TIDE_PHASE_DONE};
    *get_op(plan, TIDE_OP_MARK, TIDE_PHASE_DONE, 0) = done;
}
static void end_never(tide_plan *plan)
{
    drop_op(plan, find_op(plan, TIDE_OP_MARK, TIDE_PHASE_DONE, 0));
}

static const tide_plan_options pull = {.coll = TIDE_ALL_GATHER};
static const tide_plan_options push = {.coll = TIDE_ALL_GATHER, .push = 1};
static const tide_plan_options direct = {.coll = TIDE_REDUCE_SCATTER};
static const tide_plan_options staged = {
    .coll = TIDE_REDUCE_SCATTER, .staged = 1, .block_bytes = 64};

static void test_faults_show(void)
{
    static const struct {
        const char *name;
        const tide_plan_options *options;
        breaker *broken;
        const char *text; /* in the message */
    } faults[] = {
        {"no wait for STAGED", &pull, forget_stage, "parameter"},
        {"no wait for RAIL", &pull, forget_arrival, "parameter"},
        {"pull without AFTERs", &pull, forget_edges, "parameter"},
        {"push without AFTERs", &push, forget_edges, "parameter"},
        {"a copy is missing", &pull, skip_copy, "parameter"},
        {"a copy goes astray", &push, move_copy, "parameter"},
        {"a copy leaves its buffer", &pull, leave_buffer, "which has"},
        {"a signal is missing", &pull, hold_back, "deadlock"},
        {"a signal too many", &pull, signal_twice, "expected"},
        {"DONE comes early", &pull, end_early, "parameter"},
        {"DONE never comes", &direct, end_never, "no MARK DONE"},
        {"no wait for GRADS", &direct, forget_gradients, "output"},
        {"gradients go early", &direct, forget_readers, "output"},
        {"staged without AFTERs", &staged, forget_edges, "output"},
        {"nothing is scaled", &direct, scale_never, "output"},
        {"a source counts twice", &staged, take_one_twice, "output"},
    };
    for (size_t i = 0; i < TDI_COUNT(faults); i++) {
        char *fault = run_broken((tide_topology){2, 2}, faults[i].options,
                                 faults[i].broken, 200);
        if (!fault)
            CHECK_FAIL("%s: nothing was found", faults[i].name);
        if (!strstr(fault, faults[i].text))
            CHECK_FAIL("%s: \"%s\" lacks \"%s\"", faults[i].name, fault,
                       faults[i].text);
        free(fault);
    }
}

static void test_right_plans_pass(void)
{
    static const tide_plan_options *const all[] = {&pull, &push, &direct,
                                                   &staged};
    for (size_t i = 0; i < TDI_COUNT(all); i++) {
        char *fault = run_broken((tide_topology){2, 2}, all[i], NULL, 60);
        if (fault)
            CHECK_FAIL("%s", fault);
    }
}

/* In a deadlock every lane that is not through is named, with what it needs. */
static void test_deadlock_report(void)
{
    char *fault = run_broken((tide_topology){1, 2}, &pull, hold_back, 1);
    CHECK(fault);
    CHECK_TEXT(fault, "deadlock");
    CHECK_TEXT(fault, "rank 0 land op");
    CHECK_TEXT(fault, "waits for signal 1 of `staged` from rank 1, has 0");
    free(fault);
}

int main(void)
{
    test_bf16();
    test_rows_and_padding();
    test_columns();
    test_right_plans_pass();
    test_faults_show();
    test_deadlock_report();
    return 0;
}
