/* Says who waits for whom when a run of plans comes to a standstill. */
#include "plan/names.h"
#include "plan/verify_trace.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct place {
    uint32_t rank;
    uint32_t lane;
} place;

/* A lane of this rank that is not through. */
static bool stuck_lane(const tdi_runner *run, uint32_t rank, place *at)
{
    uint32_t index;
    if (run->ranks[rank].call == run->program->call_count)
        return false;
    for (uint32_t lane = 0; lane < TIDE_LANE_COUNT; lane++)
        if (tdi_lane_head(run, rank, lane, &index)) {
            *at = (place){rank, lane};
            return true;
        }
    return false;
}

/* The lane of `rank` that will raise `counter` next; false if none will. */
static bool find_raiser(const tdi_runner *run, uint32_t rank, uint32_t counter,
                        place *at)
{
    if (run->ranks[rank].call == run->program->call_count)
        return false;
    const tdi_code *code = tdi_runner_code(run, rank);
    for (uint32_t lane = 0; lane < TIDE_LANE_COUNT; lane++)
        for (uint32_t i = run->ranks[rank].at[lane]; i < code->first[lane + 1];
             i++) {
            uint32_t op = code->order[i];
            if (code->counter[op] == counter &&
                code->plan->ops[op].kind != TIDE_OP_WAIT) {
                *at = (place){rank, lane};
                return true;
            }
        }
    return false;
}

/* Where the one stands that the lane at *at waits for; false: nobody. */
static bool find_cause(const tdi_runner *run, place *at)
{
    uint32_t index = 0;
    tdi_lane_head(run, at->rank, at->lane, &index);
    const tdi_code *code = tdi_runner_code(run, at->rank);
    const tide_op *op = &code->plan->ops[index];
    if (op->kind == TIDE_OP_AFTER) {
        at->lane = code->plan->ops[op->index].lane;
        return true;
    }
    uint32_t source = (uint32_t)tide_operand_rank(op->src);
    if (find_raiser(run, source, code->counter[index], at))
        return true;
    /* Perhaps a later call would, which another lane holds up. */
    return run->ranks[source].call < run->ranks[at->rank].call &&
           stuck_lane(run, source, at);
}

static int show_place(const tdi_runner *run, place at, char *text, size_t size)
{
    char op_text[128];
    uint32_t index = 0;
    tdi_lane_head(run, at.rank, at.lane, &index);
    const tdi_code *code = tdi_runner_code(run, at.rank);
    const tide_op *op = &code->plan->ops[index];
    int used = snprintf(text, size, "%s op %u of rank %u (call %u: %s)",
                        tdi_lane_name(at.lane), index, at.rank,
                        run->ranks[at.rank].call,
                        tdi_op_text(op, op_text, sizeof(op_text)));
    if (op->kind != TIDE_OP_WAIT || used >= (int)size)
        return used;
    uint32_t counter = code->counter[index];
    return used + snprintf(text + used, size - (size_t)used,
                           ", which has %" PRIu64 " of %" PRIu64,
                           run->count[counter],
                           tdi_count_needed(run, counter, op->count));
}

/* Follows who waits for whom until it closes or ends. */
static tide_status fail_deadlock(const tdi_runner *run, place at)
{
    char text[900];
    int used = 0;
    bool more = true;
    for (int hops = 0; more && hops < 8 && used < (int)sizeof(text); hops++) {
        if (hops)
            used += snprintf(text + used, sizeof(text) - (size_t)used,
                             "; that waits for ");
        if (used < (int)sizeof(text))
            used +=
                show_place(run, at, text + used, sizeof(text) - (size_t)used);
        more = find_cause(run, &at);
    }
    return tdi_fail(TIDE_ERR_PLAN, "deadlock: %s%s", text,
                    more ? "" : "; nobody will do that");
}

tide_status tdi_check_through(const tdi_runner *run)
{
    place at;
    for (uint32_t r = 0; r < run->program->ranks; r++)
        if (stuck_lane(run, r, &at))
            return fail_deadlock(run, at);
    return TIDE_OK;
}
