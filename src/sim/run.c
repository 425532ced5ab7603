/*
 * Runs plans on a machine: every lane looks at its next op when something has
 * changed on its rank, as the executor's lanes do.
 */
#include "base/fail.h"
#include "base/util.h"
#include "plan/names.h"
#include "sim/world.h"

#include <stdlib.h>

static bool is_host(const tdi_world *w)
{
    return w->machine->cores > 0;
}

/* Copies take a copy engine; on a host, everything takes the rank's thread. */
static bool takes_engine(const tdi_world *w, const tide_op *op)
{
    return is_host(w) ? op->kind != TIDE_OP_WAIT && op->kind != TIDE_OP_AFTER
                      : op->kind == TIDE_OP_COPY;
}

static bool engine_free(const tdi_world *w, const tdi_sim_rank *rank)
{
    double engines = is_host(w) ? 1 : w->machine->copy_engines;
    return engines <= 0 || rank->engines < engines;
}

/* Sends what an op says to another rank: it is seen some time later. */
static void send_signal(tdi_world *w, const tdi_sim_rank *rank,
                        const tide_op *op)
{
    uint32_t me = rank->plan->rank;
    uint32_t to = (uint32_t)tide_operand_rank(op->dst), at, source;
    uint32_t size = w->topology.local_size;
    bool local = me / size == to / size;
    tdi_world_route(w, me, to, &at, &source);
    uint64_t message = (uint64_t)at << 32 | (uint64_t)source << 8;
    tdi_engine_post(w->engine,
                    local ? w->machine->signal_us : w->machine->rail_us,
                    message | op->channel);
}

/* An op has ended: what others see of it, and what is told of it. */
static void report_op(tdi_world *w, const tdi_sim_rank *rank, uint32_t index,
                      double since)
{
    const tide_op *op = &rank->plan->ops[index];
    double now = tdi_engine_now(w->engine);
    if (op->kind == TIDE_OP_SIGNAL || op->kind == TIDE_OP_PUT)
        send_signal(w, rank, op);
    if (op->kind == TIDE_OP_MARK && now > w->result->phase_us[op->channel])
        w->result->phase_us[op->channel] = now;
    if (rank->plan->rank == 0 &&
        (op->kind == TIDE_OP_COPY || op->kind == TIDE_OP_PUT ||
         op->kind == TIDE_OP_REDUCE))
        w->result->lane_us[op->lane] += now - since;
    if (w->options->ran) {
        tide_sim_op ran = {rank->plan->rank, index, since, now};
        w->options->ran(w->options->context, &ran);
    }
    w->result->time_us = now;
}

/* The lane goes on to its next op. */
static void pass_op(const tdi_sim_rank *rank, tdi_sim_lane *lane)
{
    lane->done = lane->at + 1;
    lane->at = rank->next[lane->at];
    lane->state = TDI_READY;
    lane->since = -1;
}

/* Has this op ended? A lane goes on before its puts have. */
static bool has_ended(const tdi_sim_rank *rank, uint32_t index)
{
    const tide_op *op = &rank->plan->ops[index];
    for (uint32_t i = 0; op->lane == TIDE_LANE_SEND && i < TDI_PUTS; i++)
        if (rank->puts[i].at <= index)
            return false;
    return rank->lanes[op->lane].done > index;
}

/* Is what a WAIT or an AFTER names there? */
static bool is_met(const tdi_world *w, uint32_t r, const tide_op *op)
{
    if (op->kind == TIDE_OP_AFTER)
        return has_ended(&w->rank[r], (uint32_t)op->index);
    if (op->count <= 0)
        return true;
    return *tdi_world_counter(w, r, (uint32_t)tide_operand_rank(op->src),
                              op->channel) >= (uint64_t)op->count;
}

/* A place for a put; TDI_PUTS if it must wait for an earlier one. */
static uint32_t find_place(const tdi_world *w, const tdi_sim_rank *rank,
                           const tide_op *op)
{
    uint32_t place = TDI_PUTS;
    uint32_t most = (uint32_t)tdi_min((uint64_t)w->machine->puts, TDI_PUTS);
    for (uint32_t i = tdi_max(most, 1); i--;) {
        uint32_t at = rank->puts[i].at;
        if (at == TDI_NO_INDEX)
            place = i;
        else if (rank->plan->ops[at].dst.where == op->dst.where)
            return TDI_PUTS;
    }
    return place;
}

/* The host hands over one op after the other, whatever lane they are of. */
static bool must_sleep(tdi_world *w, uint32_t r, tdi_sim_lane *lane, int l)
{
    double due = w->machine->call_us;
    if (!is_host(w))
        due += w->machine->enqueue_us * (lane->at + 1);
    double left = due - tdi_engine_now(w->engine);
    if (left <= 0)
        return false;
    tdi_engine_start(w->engine, r * TDI_TASKS + (uint32_t)l, left, NULL, 0);
    lane->state = TDI_SLEEPS;
    return true;
}

static void start_op(tdi_world *w, uint32_t r, tdi_sim_lane *lane,
                     uint32_t task)
{
    tdi_sim_rank *rank = &w->rank[r];
    const tide_op *op = &rank->plan->ops[lane->at];
    if (w->beside && op->kind == TIDE_OP_COPY)
        tdi_cost_batch(w->machine, rank->plan, lane->at, &lane->batch);
    tdi_cost_op(w->machine, rank->plan, w->ranks, op, &lane->batch, &w->cost);
    rank->engines += takes_engine(w, op);
    lane->since = tdi_engine_now(w->engine);
    tdi_engine_start(w->engine, r * TDI_TASKS + task, w->cost.us, w->cost.uses,
                     w->cost.count);
}

static bool start_put(tdi_world *w, uint32_t r, tdi_sim_lane *lane)
{
    tdi_sim_rank *rank = &w->rank[r];
    uint32_t place = find_place(w, rank, &rank->plan->ops[lane->at]);
    if (place == TDI_PUTS)
        return false;
    start_op(w, r, lane, TIDE_LANE_COUNT + place);
    rank->puts[place] = (tdi_sim_put){lane->at, lane->since};
    pass_op(rank, lane);
    return true;
}

/* Moves one lane on by at most one op; false if it cannot. */
static bool step_lane(tdi_world *w, uint32_t r, int l)
{
    tdi_sim_rank *rank = &w->rank[r];
    tdi_sim_lane *lane = &rank->lanes[l];
    if (lane->state != TDI_READY || lane->at == TDI_NO_INDEX)
        return false;
    const tide_op *op = &rank->plan->ops[lane->at];
    if (lane->since < 0)
        lane->since = tdi_engine_now(w->engine);
    if (must_sleep(w, r, lane, l))
        return false;
    if (op->kind == TIDE_OP_WAIT || op->kind == TIDE_OP_AFTER ||
        op->kind == TIDE_OP_MARK) {
        if (op->kind != TIDE_OP_MARK && !is_met(w, r, op))
            return false;
        report_op(w, rank, lane->at, lane->since);
        pass_op(rank, lane);
        return true;
    }
    if (takes_engine(w, op) && !engine_free(w, rank))
        return false;
    if (op->kind == TIDE_OP_PUT)
        return start_put(w, r, lane);
    start_op(w, r, lane, (uint32_t)l);
    lane->state = TDI_RUNNING;
    return true;
}

static void step_rank(tdi_world *w, uint32_t r)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int l = 0; l < TIDE_LANE_COUNT; l++)
            while (step_lane(w, r, l))
                moved = true;
    }
}

static void end_task(tdi_world *w, uint32_t r, uint32_t task)
{
    tdi_sim_rank *rank = &w->rank[r];
    if (task >= TIDE_LANE_COUNT) {
        tdi_sim_put *put = &rank->puts[task - TIDE_LANE_COUNT];
        rank->engines -= takes_engine(w, &rank->plan->ops[put->at]);
        report_op(w, rank, put->at, put->since);
        put->at = TDI_NO_INDEX;
        return;
    }
    tdi_sim_lane *lane = &rank->lanes[task];
    if (lane->state == TDI_RUNNING) {
        rank->engines -= takes_engine(w, &rank->plan->ops[lane->at]);
        report_op(w, rank, lane->at, lane->since);
        pass_op(rank, lane);
    }
    lane->state = TDI_READY;
}

/* Returns the rank on which something has changed. */
static uint32_t handle(tdi_world *w, const tdi_event *event)
{
    if (!event->is_message) {
        uint32_t r = event->task / TDI_TASKS;
        end_task(w, r, event->task % TDI_TASKS);
        return r;
    }
    uint32_t r = (uint32_t)(event->message >> 32);
    uint32_t source = (uint32_t)event->message >> 8;
    ++*tdi_world_counter(w, r, source, event->message & 0xff);
    return r;
}

/* Every lane must have come to its end. */
static tide_status check_ended(const tdi_world *w)
{
    for (uint32_t r = 0; r < w->ranks; r++) {
        for (int l = 0; l < TIDE_LANE_COUNT; l++) {
            uint32_t at = w->rank[r].lanes[l].at;
            char text[256];
            if (at == TDI_NO_INDEX)
                continue;
            return tdi_fail(
                TIDE_ERR_PLAN,
                "the simulation stands still: rank %u, lane %s, op %u (%s) "
                "is never met%s",
                r, tdi_lane_name((unsigned)l), at,
                tdi_op_text(&w->rank[r].plan->ops[at], text, sizeof(text)),
                w->options->mirrored ? "; one node stands for all" : "");
        }
    }
    return TIDE_OK;
}

static tide_status run(tdi_world *w)
{
    bool some;
    tdi_event event;
    for (uint32_t r = 0; r < w->ranks; r++)
        step_rank(w, r);
    for (;;) {
        TDI_TRY(tdi_engine_next(w->engine, &event, &some));
        if (!some)
            break;
        w->result->events++;
        step_rank(w, handle(w, &event));
    }
    TDI_TRY(check_ended(w));
    return TIDE_OK;
}

tide_status tdi_simulate(const tide_plan *const *plans,
                         const tide_machine *machine,
                         const tide_sim_options *options, bool beside,
                         tide_sim_result *result)
{
    static const tide_sim_options none;
    if (!plans || !plans[0] || !machine || !result)
        return tdi_fail(TIDE_ERR_INVALID, "plans, machine or result is NULL");
    *result = (tide_sim_result){0};
    tdi_world *w = calloc(1, sizeof(*w)); /* too large for a stack */
    if (!w)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to simulate");
    w->result = result;
    w->beside = beside;
    tide_status status =
        tdi_world_create(plans, machine, options ? options : &none, w);
    if (!status)
        status = run(w);
    tdi_world_free(w);
    free(w);
    return status;
}

tide_status tide_simulate(const tide_plan *const *plans,
                          const tide_machine *machine,
                          const tide_sim_options *options,
                          tide_sim_result *result)
{
    return tdi_simulate(plans, machine, options, true, result);
}
