/*
 * The executor: takes the first request of each flow and runs its lanes side
 * by side in one thread. An op that has to wait holds back its lane alone;
 * when nothing moves, the backend sleeps.
 */
#include "base/fail.h"
#include "base/util.h"
#include "exec/request.h"

#include <string.h>

/* Arrivals and puts first: peers wait for them. */
static const tide_lane lane_order[] = {TIDE_LANE_RECV, TIDE_LANE_SEND,
                                       TIDE_LANE_COPY, TIDE_LANE_SUM,
                                       TIDE_LANE_LAND};

typedef enum step { BLOCKED, DONE, HEAVY } step;

/* Ops of less work than this are not worth another look at the other lanes. */
static const uint64_t heavy_work = 64 << 10;

static step weigh(const tide_op *op)
{
    return op->width * op->height < heavy_work ? DONE : HEAVY;
}

static tide_status run_copy(tide_request *request, const tide_op *op)
{
    tide_comm *comm = request->comm;
    tdi_move move;
    TDI_TRY(tdi_bind_move(request, op, &move));
    TDI_TRY(comm->backend->copy(comm, &move));
    if (op->kind == TIDE_OP_PUT)
        comm->backend->signal(comm, request->flow,
                              (uint32_t)tide_operand_rank(op->dst),
                              (tide_channel)op->channel);
    return TIDE_OK;
}

static tide_status run_reduce(tide_request *request, const tide_op *op)
{
    tdi_address sources[TIDE_MAX_LOCAL];
    tdi_sum sum;
    TDI_TRY(tdi_bind_sum(request, op, sources, &sum));
    return request->comm->backend->sum(request->comm, &sum);
}

static tdi_block block_of(const tide_request *request, const tide_op *op)
{
    return (tdi_block){(uint32_t)tide_operand_rank(op->src),
                       (tide_channel)op->channel, &request->call};
}

static tide_status run_wait(tide_request *request, const tide_op *op,
                            bool *reached)
{
    tide_comm *comm = request->comm;
    tdi_block wait = block_of(request, op);
    return comm->backend->poll(comm, request->flow, &wait,
                               tdi_wait_target(request, op), reached);
}

/* An all-gather holds at the mark FREE until its caller has filled STAGE. */
static bool run_mark(tide_request *request, const tide_op *op)
{
    if (op->channel == TIDE_PHASE_FREE && !request->started)
        return false;
    request->reached[op->channel] = true;
    return true;
}

static tide_status run_op(tide_request *request, const tide_op *op,
                          step *outcome)
{
    tide_comm *comm = request->comm;
    bool met = true;
    *outcome = DONE;
    switch ((tide_op_kind)op->kind) {
    case TIDE_OP_COPY:
    case TIDE_OP_PUT:
        *outcome = weigh(op);
        return run_copy(request, op);
    case TIDE_OP_REDUCE:
        *outcome = weigh(op);
        return run_reduce(request, op);
    case TIDE_OP_SIGNAL:
        comm->backend->signal(comm, request->flow,
                              (uint32_t)tide_operand_rank(op->dst),
                              (tide_channel)op->channel);
        return TIDE_OK;
    case TIDE_OP_WAIT:
        TDI_TRY(run_wait(request, op, &met));
        break;
    case TIDE_OP_AFTER:
        met =
            request->at[request->bound->plan->ops[op->index].lane] > op->index;
        break;
    case TIDE_OP_MARK:
        met = run_mark(request, op);
        break;
    default:
        return tdi_fail(TIDE_ERR_PLAN, "rank %u: op kind %u in a plan",
                        comm->rank, op->kind);
    }
    *outcome = met ? DONE : BLOCKED;
    return TIDE_OK;
}

/* Runs one lane until it blocks or has done something heavy. */
static tide_status run_lane(tide_request *request, tide_lane lane, bool *moved,
                            bool *heavy)
{
    const tdi_bound *bound = request->bound;
    while (request->at[lane] != UINT32_MAX && !*heavy) {
        step outcome;
        uint32_t at = request->at[lane];
        TDI_TRY(run_op(request, &bound->plan->ops[at], &outcome));
        if (outcome == BLOCKED)
            break;
        request->at[lane] = bound->next[at];
        *moved = true;
        *heavy = outcome == HEAVY;
    }
    return TIDE_OK;
}

/* After a heavy op the first lanes get another look: a peer may wait there. */
static tide_status run_request(tide_request *request, bool *moved)
{
    for (size_t i = 0; i < TDI_COUNT(lane_order);) {
        bool heavy = false;
        TDI_TRY(run_lane(request, lane_order[i], moved, &heavy));
        i = heavy ? 0 : i + 1;
    }
    request->complete = true;
    for (int lane = 0; lane < TIDE_LANE_COUNT; lane++)
        request->complete &= request->at[lane] == UINT32_MAX;
    return TIDE_OK;
}

static tide_status run_flow(tide_comm *comm, tdi_flow *flow, bool *moved)
{
    while (flow->head) {
        tide_request *request = flow->head;
        tide_status status = run_request(request, moved);
        if (status)
            return tdi_comm_failed(comm, status, comm->rank);
        if (request->reached[TIDE_PHASE_READS])
            tdi_request_release(request);
        if (!request->complete)
            break;
        flow->head = request->next;
        flow->pending--;
    }
    return TIDE_OK;
}

tide_status tdi_run_all(tide_comm *comm, bool *moved)
{
    TDI_TRY(tdi_comm_check(comm));
    bool any = false;
    for (int flow = 0; flow < TDI_FLOWS; flow++)
        TDI_TRY(run_flow(comm, &comm->flows[flow], &any));
    if (any) {
        comm->polled_ms = 0;
        *moved = true;
    }
    return TIDE_OK;
}

/* The waits that hold lanes back now. */
static size_t collect_blocks(tide_comm *comm, tdi_block *blocks)
{
    size_t count = 0;
    for (int f = 0; f < TDI_FLOWS; f++) {
        const tide_request *request = comm->flows[f].head;
        for (int lane = 0; request && lane < TIDE_LANE_COUNT; lane++) {
            uint32_t at = request->at[lane];
            if (at == UINT32_MAX)
                continue;
            const tide_op *op = &request->bound->plan->ops[at];
            if (op->kind == TIDE_OP_WAIT)
                blocks[count++] = block_of(request, op);
        }
    }
    return count;
}

enum { WATCH_MS = 20 };

tide_status tdi_run_watch(tide_comm *comm)
{
    tdi_block blocks[TDI_FLOWS * TIDE_LANE_COUNT];
    uint64_t now = tdi_now_ms();
    uint64_t since = now - comm->watched_ms;
    if (since < WATCH_MS)
        return TIDE_OK;
    /* Only time spent polling counts, not what lies between two rounds of it:
     * peers may have had no reason to hurry. */
    comm->watched_ms = now;
    comm->polled_ms += tdi_min(since, 2 * WATCH_MS);
    tide_status status = comm->backend->watch(
        comm, blocks, collect_blocks(comm, blocks), comm->polled_ms);
    return status ? tdi_comm_failed(comm, status, comm->rank) : TIDE_OK;
}

tide_status tdi_run_until(tide_comm *comm, tdi_until *until, void *context)
{
    uint64_t since = tdi_now_ms();
    for (;;) {
        bool moved = false;
        tdi_block blocks[TDI_FLOWS * TIDE_LANE_COUNT + 1];
        tdi_block missing = {.from = UINT32_MAX};
        TDI_TRY(tdi_run_all(comm, &moved));
        if (until(context, &missing))
            return TIDE_OK;
        uint64_t now = tdi_now_ms();
        if (moved)
            since = now;
        size_t count = collect_blocks(comm, blocks);
        if (missing.from != UINT32_MAX)
            blocks[count++] = missing;
        tide_status status =
            comm->backend->idle(comm, blocks, count, now - since);
        if (status)
            return tdi_comm_failed(comm, status, comm->rank);
    }
}
