/*
 * Fuzzes the verifiers: breaks one op or one expected count in the plans of a
 * decoded case. What the verifiers accept all the same, the interpreter must
 * find nothing wrong with, and no mutant may crash a verifier.
 */
#include "fuzz.h"
#include "sets.h"

#include <inttypes.h>
#include <stdlib.h>

#include "plan/names.h"
#include "support/planset.h"

/* Small steps hit the neighbour of what is right, powers of two anything. */
static uint64_t take_step(fuzz_bytes *in)
{
    static const int64_t steps[] = {1, 2, 4, 16, -1, -2, -4, -16};
    uint32_t byte = fuzz_take(in);
    if (byte & 128)
        return (uint64_t)1 << byte % 64;
    return (uint64_t)steps[byte % 8];
}

static void remove_op(tide_op *op, uint32_t rank)
{
    *op = (tide_op){.kind = TIDE_OP_COPY,
                    .lane = op->lane,
                    .dst = tide_at(TIDE_BUF_OUT, 0, (int32_t)rank, 0),
                    .src = tide_at(TIDE_BUF_OUT, 0, (int32_t)rank, 0)};
}

static void change_field(tide_op *op, uint32_t field, uint64_t step)
{
    switch (field) {
    case 0:
        op->width += step; /* or the count, or the index */
        break;
    case 1:
        op->height += (uint32_t)step;
        break;
    case 2:
        op->dst_pitch += step;
        break;
    case 3:
        op->src_pitch += step;
        break;
    case 4:
        op->dst.offset += step;
        break;
    case 5:
        op->src.offset += step;
        break;
    case 6:
        op->dst.where = (int32_t)((uint32_t)op->dst.where + (uint32_t)step);
        break;
    case 7:
        op->src.where = (int32_t)((uint32_t)op->src.where + (uint32_t)step);
        break;
    case 8:
        op->dst.index += (uint32_t)step;
        break;
    case 9:
        op->src.index += (uint32_t)step;
        break;
    case 10:
        op->flags ^= (uint8_t)step;
        break;
    case 11:
        op->channel += (uint8_t)step;
        break;
    case 12:
        op->lane += (uint8_t)step;
        break;
    default:
        op->kind += (uint8_t)step;
    }
}

static uint32_t take_index(fuzz_bytes *in, uint32_t count)
{
    uint32_t high = fuzz_take(in);
    return (high << 8 | fuzz_take(in)) % count;
}

/* Breaks the plan and says how. */
static void break_plan(fuzz_bytes *in, tide_plan *plan, char *text,
                       size_t bytes)
{
    char before[256], after[256];
    uint32_t kind = fuzz_pick(in, 0, 15);
    uint64_t step = take_step(in);
    if (kind == 15 && plan->expect_count) {
        uint32_t e = take_index(in, plan->expect_count);
        ((tide_expect *)plan->expects)[e].total += step;
        snprintf(text, bytes, "rank %u expect %u + %" PRId64, plan->rank, e,
                 (int64_t)step);
        return;
    }
    uint32_t i = take_index(in, plan->op_count);
    tide_op *op = &plan_ops(plan)[i];
    tdi_op_text(op, before, sizeof(before));
    if (kind == 14)
        remove_op(op, plan->rank);
    else
        change_field(op, kind, step);
    tdi_op_text(op, after, sizeof(after));
    snprintf(text, bytes, "rank %u op %u: \"%s\" becomes \"%s\" on lane %u",
             plan->rank, i, before, after, op->lane);
}

/* Calls in a row of which the first and the last use the same STAGE. */
static bool is_accepted(const plan_set *set)
{
    static const uint32_t three_calls[] = {0, 0, 0};
    return verify_sets(set, 1, three_calls, 3, false) == TIDE_OK;
}

static void run_mutant(const fuzz_case *c, const plan_set *set,
                       const char *text)
{
    interp_call call = {set->layout, all_plans(set)};
    interp_call calls[] = {call, call, call};
    interp_how how = c->how;
    for (int i = 0; i < 4; i++, how.seed++) {
        char *fault = interp_run(calls, 3, &how);
        if (fault)
            fail_case(c,
                      "the verifiers accept a mutant that fails (seed "
                      "%" PRIu64 "): %s\n%s",
                      how.seed, text, fault);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_bytes in = {data, bytes < 8 ? bytes : 8};
    fuzz_case c;
    fuzz_decode(data + in.left, bytes - in.left, &c);
    plan_set set = make_set(&c, &c.colls[0]);
    uint32_t rank = fuzz_take(&in) % set.ranks;
    tide_plan *right = set.plans[rank], *mutant = clone_plan(right);
    if (!c.huge && set.ops < 5000 && right->op_count) {
        char text[640];
        break_plan(&in, mutant, text, sizeof(text));
        set.plans[rank] = mutant;
        if (is_accepted(&set))
            run_mutant(&c, &set, text);
    }
    free(mutant);
    set.plans[rank] = right;
    free_set(&set);
    return 0;
}
