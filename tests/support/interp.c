/* The interpreter's scheduler: picks a lane, lets its next op happen. */
#include "interp_world.h"

#include "base/util.h"
#include "check.h"

enum { WIRE = TIDE_LANE_COUNT, TASKS = TIDE_LANE_COUNT + 1 };

uint64_t *interp_counter(world *w, tide_coll coll, uint32_t rank,
                         uint32_t source, uint32_t channel)
{
    size_t pair = ((size_t)coll * w->ranks + rank) * w->ranks + source;
    return &w->counters[pair * TIDE_CH_COUNT + channel];
}

/* --- Calls start and end on a rank ---------------------------------------- */

static void sort_lanes(flow_state *flow, const tide_plan *plan)
{
    for (int l = 0; l < TIDE_LANE_COUNT; l++) {
        lane_state *lane = &flow->lanes[l];
        lane->ops = realloc(lane->ops, (plan->op_count + 1) * sizeof(uint32_t));
        CHECK(lane->ops);
        lane->count = lane->at = 0;
        lane->done = 0;
    }
    for (uint32_t i = 0; i < plan->op_count; i++) {
        lane_state *lane = &flow->lanes[plan->ops[i].lane];
        lane->ops[lane->count++] = i;
    }
}

static void start_call(world *w, flow_state *flow)
{
    const tide_plan *plan = interp_plan_of(w, flow);
    sort_lanes(flow, plan);
    free(flow->op_done);
    flow->op_done = calloc(plan->op_count + 1, sizeof(bool));
    CHECK(flow->op_done);
    interp_start(w, flow);
    flow->started = true;
}

static void end_call_if_over(world *w, flow_state *flow)
{
    for (int l = 0; l < TIDE_LANE_COUNT; l++)
        if (flow->lanes[l].at < flow->lanes[l].count)
            return;
    const tide_plan *plan = interp_plan_of(w, flow);
    for (uint32_t i = 0; i < plan->expect_count; i++) {
        const tide_expect *expect = &plan->expects[i];
        flow->base[(size_t)expect->source * TIDE_CH_COUNT + expect->channel] +=
            expect->total;
    }
    flow->started = false;
    flow->call_at++;
}

/* --- One step ------------------------------------------------------------- */

uint64_t interp_needed(const flow_state *flow, const tide_op *op)
{
    uint32_t source = (uint32_t)tide_operand_rank(op->src);
    int64_t base =
        (int64_t)flow->base[(size_t)source * TIDE_CH_COUNT + op->channel];
    return base + op->count > 0 ? (uint64_t)(base + op->count) : 0;
}

static bool op_can_run(world *w, flow_state *flow, const lane_state *lane)
{
    const tide_op *op = &interp_plan_of(w, flow)->ops[lane->ops[lane->at]];
    if (op->kind == TIDE_OP_AFTER)
        return flow->op_done[op->index];
    if (op->kind == TIDE_OP_WAIT)
        return *interp_counter(w, flow->coll, flow->rank,
                               (uint32_t)tide_operand_rank(op->src),
                               op->channel) >= interp_needed(flow, op);
    return true;
}

static void deliver(flow_state *flow)
{
    parcel *item = flow->wire;
    flow->wire = item->next;
    if (!flow->wire)
        flow->wire_end = &flow->wire;
    memcpy(item->target, item->data, item->bytes);
    ++*item->counter;
    free(item);
}

/* Lets something happen on this task; false if nothing can. */
static bool try_task(world *w, size_t task)
{
    flow_state *flow = &w->flows[task / TASKS];
    size_t l = task % TASKS;
    if (l == WIRE) {
        if (flow->wire)
            deliver(flow);
        else
            return false;
        return true;
    }
    if (flow->call_at == flow->call_count)
        return false;
    if (!flow->started) {
        start_call(w, flow);
        end_call_if_over(w, flow);
        return true;
    }
    lane_state *lane = &flow->lanes[l];
    bool over;
    if (lane->at == lane->count || !op_can_run(w, flow, lane))
        return false;
    if (!interp_step(w, flow, lane, &over) || !over)
        return true;
    flow->op_done[lane->ops[lane->at++]] = true;
    lane->done = 0;
    end_call_if_over(w, flow);
    return true;
}

/* Even seeds: any task that can go, evenly. Odd seeds: the first that can go
 * in an order that changes rarely, so that some are starved for long. */
static bool step_evenly(world *w)
{
    size_t first = check_random(&w->random) % w->tasks;
    for (size_t i = 0; i < w->tasks; i++)
        if (try_task(w, w->order[(first + i) % w->tasks]))
            return true;
    return false;
}

static bool step_by_priority(world *w)
{
    if (check_random(&w->random) % 32 == 0) {
        size_t *a = &w->order[check_random(&w->random) % w->tasks];
        size_t *b = &w->order[check_random(&w->random) % w->tasks];
        size_t task = *a;
        *a = *b;
        *b = task;
    }
    for (size_t i = 0; i < w->tasks; i++)
        if (try_task(w, w->order[i]))
            return true;
    return false;
}

/* --- The run -------------------------------------------------------------- */

static void open_flow(world *w, flow_state *flow, tide_coll coll, uint32_t rank)
{
    flow->rank = rank;
    flow->coll = coll;
    flow->calls = calloc(w->call_count + 1, sizeof(*flow->calls));
    flow->base = calloc((size_t)w->ranks * TIDE_CH_COUNT, sizeof(uint64_t));
    flow->wire_end = &flow->wire;
    CHECK(flow->calls && flow->base);
    for (uint32_t c = 0; c < w->call_count; c++)
        if (w->calls[c].plans[rank]->options.coll == coll) {
            w->turn[c] = flow->call_count;
            flow->calls[flow->call_count++] = c;
        }
}

/* The tasks of flows that have calls, in random order. */
static void shuffle_tasks(world *w)
{
    for (size_t task = 0; task < (size_t)FLOWS * w->ranks * TASKS; task++) {
        if (!w->flows[task / TASKS].call_count)
            continue;
        size_t at = check_random(&w->random) % (w->tasks + 1);
        w->order[w->tasks++] = w->order[at];
        w->order[at] = task;
    }
}

static void open_world(world *w)
{
    size_t pairs = (size_t)FLOWS * w->ranks * w->ranks;
    w->flows = calloc((size_t)FLOWS * w->ranks, sizeof(*w->flows));
    w->counters = calloc(pairs * TIDE_CH_COUNT, sizeof(*w->counters));
    w->order = calloc((size_t)FLOWS * w->ranks * TASKS, sizeof(*w->order));
    w->turn = calloc(w->call_count + 1, sizeof(*w->turn));
    CHECK(w->flows && w->counters && w->order && w->turn);
    for (int coll = 0; coll < FLOWS; coll++)
        for (uint32_t r = 0; r < w->ranks; r++)
            open_flow(w, &w->flows[(size_t)coll * w->ranks + r],
                      (tide_coll)coll, r);
    shuffle_tasks(w);
    interp_allocate(w);
}

static void close_world(world *w)
{
    for (size_t f = 0; f < (size_t)FLOWS * w->ranks; f++) {
        flow_state *flow = &w->flows[f];
        for (int l = 0; l < TIDE_LANE_COUNT; l++) {
            free(flow->lanes[l].ops);
            free(flow->lanes[l].open);
        }
        while (flow->wire) {
            parcel *next = flow->wire->next;
            free(flow->wire);
            flow->wire = next;
        }
        free(flow->op_done);
        free(flow->calls);
        free(flow->base);
    }
    interp_release(w);
    free(w->flows);
    free(w->counters);
    free(w->order);
    free(w->turn);
}

static bool all_over(const world *w)
{
    for (size_t f = 0; f < (size_t)FLOWS * w->ranks; f++)
        if (w->flows[f].call_at < w->flows[f].call_count || w->flows[f].wire)
            return false;
    return true;
}

char *interp_run(const interp_call *calls, size_t count, const interp_how *how)
{
    if (!count)
        return NULL;
    world w = {.calls = calls,
               .call_count = (uint32_t)count,
               .ranks = tide_layout_ranks(calls[0].layout),
               .how = how,
               .random = how->seed * 2654435761u + 1};
    open_world(&w);
    bool moved = true;
    while (moved && !w.fault)
        moved = how->seed % 2 ? step_by_priority(&w) : step_evenly(&w);
    if (!w.fault && !all_over(&w))
        interp_report_deadlock(&w);
    if (!w.fault)
        interp_check_late_writes(&w);
    interp_check_counters(&w);
    close_world(&w);
    return w.fault;
}
