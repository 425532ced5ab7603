/* Runs the plans of all ranks without their bytes, until all are through or
 * none can go on. */
#include "plan/verify_trace.h"

#include <stdlib.h>

static void enqueue(tdi_runner *run, uint32_t rank)
{
    if (run->ranks[rank].queued)
        return;
    run->ranks[rank].queued = true;
    run->queue[(run->head + run->waiting++) % run->program->ranks] = rank;
}

static uint32_t dequeue(tdi_runner *run)
{
    uint32_t rank = run->queue[run->head];
    run->head = (run->head + 1) % run->program->ranks;
    run->waiting--;
    run->ranks[rank].queued = false;
    return rank;
}

/* --- One op --------------------------------------------------------------- */

/* Lanes keep the order of the array, so a lane that stands behind an op has
 * completed it. */
static bool is_complete(const tdi_runner *run, uint32_t rank, uint32_t op)
{
    uint32_t head;
    uint32_t lane = tdi_runner_code(run, rank)->plan->ops[op].lane;
    return !tdi_lane_head(run, rank, lane, &head) || head > op;
}

static bool can_run(const tdi_runner *run, uint32_t rank, uint32_t index)
{
    const tdi_code *code = tdi_runner_code(run, rank);
    const tide_op *op = &code->plan->ops[index];
    uint32_t counter = code->counter[index];
    if (op->kind == TIDE_OP_AFTER)
        return is_complete(run, rank, (uint32_t)op->index);
    if (op->kind == TIDE_OP_WAIT)
        return run->count[counter] >= tdi_count_needed(run, counter, op->count);
    return true;
}

static tide_status run_op(tdi_runner *run, uint32_t rank, uint32_t index)
{
    const tdi_code *code = tdi_runner_code(run, rank);
    const tide_op *op = &code->plan->ops[index];
    uint32_t counter = code->counter[index];
    tdi_step step = {.call = run->ranks[rank].call,
                     .rank = rank,
                     .index = index,
                     .code = code,
                     .op = op};
    if (op->kind == TIDE_OP_WAIT)
        step.needed = tdi_count_needed(run, counter, op->count);
    if (run->visitor)
        TDI_TRY(run->visitor->op(run->visitor->context, &step));
    if (op->kind == TIDE_OP_SIGNAL || op->kind == TIDE_OP_PUT) {
        run->count[counter]++;
        enqueue(run, (uint32_t)tide_operand_rank(op->dst));
    }
    return TIDE_OK;
}

/* --- One rank ------------------------------------------------------------- */

static tide_status start_call(tdi_runner *run, uint32_t rank)
{
    tdi_rank_state *state = &run->ranks[rank];
    const tdi_code *code = tdi_runner_code(run, rank);
    state->started = true;
    for (int lane = 0; lane < TIDE_LANE_COUNT; lane++)
        state->at[lane] = code->first[lane];
    tdi_step step = {.call = state->call, .rank = rank, .code = code};
    if (!run->visitor || !run->visitor->start)
        return TIDE_OK;
    return run->visitor->start(run->visitor->context, &step);
}

static void end_call(tdi_runner *run, uint32_t rank)
{
    const tide_plan *plan = tdi_runner_code(run, rank)->plan;
    for (uint32_t i = 0; i < plan->expect_count; i++) {
        const tide_expect *expect = &plan->expects[i];
        uint32_t counter = tdi_find_counter(
            run->program, rank, (uint32_t)expect->source, expect->channel);
        run->base[counter] += expect->total;
    }
    run->ranks[rank].call++;
    run->ranks[rank].started = false;
}

/* Lets every lane go as far as it can; *left counts lanes not through. */
static tide_status run_lanes(tdi_runner *run, uint32_t rank, uint32_t *left)
{
    bool moved = true;
    uint32_t index;
    while (moved) {
        moved = false;
        *left = 0;
        for (uint32_t lane = 0; lane < TIDE_LANE_COUNT; lane++) {
            while (tdi_lane_head(run, rank, lane, &index) &&
                   can_run(run, rank, index)) {
                TDI_TRY(run_op(run, rank, index));
                run->ranks[rank].at[lane]++;
                moved = true;
            }
            *left += tdi_lane_head(run, rank, lane, &index);
        }
    }
    return TIDE_OK;
}

static tide_status run_rank(tdi_runner *run, uint32_t rank)
{
    tdi_rank_state *state = &run->ranks[rank];
    while (state->call < run->program->call_count) {
        uint32_t left = 0;
        if (!state->started)
            TDI_TRY(start_call(run, rank));
        TDI_TRY(run_lanes(run, rank, &left));
        if (left)
            return TIDE_OK;
        end_call(run, rank);
    }
    return TIDE_OK;
}

/* --- All ranks -------------------------------------------------------------
 */

static tide_status run_all(tdi_runner *run)
{
    for (uint32_t r = 0; r < run->program->ranks; r++)
        enqueue(run, r);
    while (run->waiting)
        TDI_TRY(run_rank(run, dequeue(run)));
    return tdi_check_through(run);
}

tide_status tdi_trace(const tdi_program *program, const tdi_visitor *visitor)
{
    tdi_runner run = {.program = program, .visitor = visitor};
    run.ranks = calloc(program->ranks, sizeof(*run.ranks));
    run.queue = calloc(program->ranks, sizeof(*run.queue));
    run.count = calloc(program->counter_count + 1, sizeof(*run.count));
    run.base = calloc(program->counter_count + 1, sizeof(*run.base));
    tide_status status =
        run.ranks && run.queue && run.count && run.base
            ? run_all(&run)
            : tdi_fail(TIDE_ERR_MEMORY, "no memory to check %u ranks",
                       program->ranks);
    free(run.ranks);
    free(run.queue);
    free(run.count);
    free(run.base);
    return status;
}
