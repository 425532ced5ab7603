/* Walks a plan in array order and queues its ops. See queue.h. */
#include "exec/queue.h"

#include "base/fail.h"
#include "base/util.h"
#include "exec/request.h"

#include <stdlib.h>
#include <time.h>

static const tdi_queue_ops *ops_of(const tide_comm *comm)
{
    return comm->backend->queue;
}

static uint8_t queue_of(const tide_request *request, uint8_t lane)
{
    const tide_comm *comm = request->comm;
    return ops_of(comm)->queue_of(comm, request->flow, (tide_lane)lane);
}

/* --- Binding ------------------------------------------------------------ */

tide_status tdi_queue_bind(const tide_comm *comm, tdi_bound *bound)
{
    const tide_plan *plan = bound->plan;
    uint8_t queue[TIDE_LANE_COUNT];
    uint32_t slots = 0;
    for (int lane = 0; lane < TIDE_LANE_COUNT; lane++)
        queue[lane] = ops_of(comm)->queue_of(
            comm, (tdi_flow_id)plan->options.coll, (tide_lane)lane);
    bound->slot = calloc((size_t)plan->op_count + 1, sizeof(uint32_t));
    if (!bound->slot)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan's notes");
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const tide_op *op = &plan->ops[i];
        bound->mask |= 1u << queue[op->lane];
        if (op->kind != TIDE_OP_AFTER)
            continue;
        if (queue[op->lane] != queue[plan->ops[op->index].lane] &&
            !bound->slot[op->index])
            bound->slot[op->index] = ++slots;
    }
    bound->slot[plan->op_count] = ++slots; /* what comes before the ops */
    return TIDE_OK;
}

void tdi_queue_unbind(tdi_bound *bound)
{
    free(bound->slot);
    bound->slot = NULL;
    bound->mask = 0;
}

/* --- Ops ---------------------------------------------------------------- */

static tide_status queue_move(tide_request *request, const tide_op *op)
{
    tide_comm *comm = request->comm;
    uint8_t queue = queue_of(request, op->lane);
    tdi_move move;
    TDI_TRY(tdi_bind_move(request, op, &move));
    if (op->kind == TIDE_OP_PUT)
        return ops_of(comm)->put(comm, request->flow, queue, &move,
                                 (tide_channel)op->channel);
    return ops_of(comm)->copy(comm, request->flow, queue, &move);
}

static tide_status queue_reduce(tide_request *request, const tide_op *op)
{
    tide_comm *comm = request->comm;
    tdi_address sources[TIDE_MAX_LOCAL];
    tdi_sum sum;
    TDI_TRY(tdi_bind_sum(request, op, sources, &sum));
    return ops_of(comm)->sum(comm, request->flow, queue_of(request, op->lane),
                             &sum);
}

static tide_status queue_wait(tide_request *request, const tide_op *op)
{
    tide_comm *comm = request->comm;
    tdi_block wait = {(uint32_t)tide_operand_rank(op->src),
                      (tide_channel)op->channel, &request->call};
    return ops_of(comm)->wait(comm, request->flow, queue_of(request, op->lane),
                              request, &wait, tdi_wait_target(request, op));
}

static tide_status queue_after(tide_request *request, const tide_op *op)
{
    tide_comm *comm = request->comm;
    uint32_t slot = request->bound->slot[op->index];
    uint8_t queue = queue_of(request, op->lane);
    if (queue == queue_of(request, request->bound->plan->ops[op->index].lane))
        return TIDE_OK;
    return ops_of(comm)->after(comm, request->flow, queue, slot - 1);
}

static tide_status queue_op(tide_request *request, uint32_t at)
{
    tide_comm *comm = request->comm;
    const tide_op *op = &request->bound->plan->ops[at];
    uint8_t queue = queue_of(request, op->lane);
    switch ((tide_op_kind)op->kind) {
    case TIDE_OP_COPY:
    case TIDE_OP_PUT:
        TDI_TRY(queue_move(request, op));
        break;
    case TIDE_OP_REDUCE:
        TDI_TRY(queue_reduce(request, op));
        break;
    case TIDE_OP_SIGNAL:
        TDI_TRY(ops_of(comm)->signal(comm, request->flow, queue,
                                     (uint32_t)tide_operand_rank(op->dst),
                                     (tide_channel)op->channel));
        break;
    case TIDE_OP_WAIT:
        TDI_TRY(queue_wait(request, op));
        break;
    case TIDE_OP_AFTER:
        TDI_TRY(queue_after(request, op));
        break;
    case TIDE_OP_MARK:
        TDI_TRY(ops_of(comm)->mark(comm, request->flow, queue,
                                   &request->mark[op->channel]));
        break;
    default:
        return tdi_fail(TIDE_ERR_PLAN, "rank %u: op kind %u in a plan",
                        comm->rank, op->kind);
    }
    if (request->bound->slot[at])
        return ops_of(comm)->note(comm, request->flow, queue,
                                  request->bound->slot[at] - 1);
    return TIDE_OK;
}

/* --- Parts of a plan ---------------------------------------------------- */

/* The watch thread looks at it. */
static void show_mark(tide_request *request, tdi_mark **where, tdi_mark *mark)
{
    tdi_watch_lock(request->comm);
    *where = mark;
    tdi_watch_unlock(request->comm);
}

static tide_status queue_until_free(tide_request *request)
{
    const tide_plan *plan = request->bound->plan;
    while (request->queued < plan->op_count && !request->mark[TIDE_PHASE_FREE])
        TDI_TRY(queue_op(request, request->queued++));
    return TIDE_OK;
}

static tide_status queue_rest(tide_request *request)
{
    const tdi_bound *bound = request->bound;
    tide_comm *comm = request->comm;
    while (request->queued < bound->plan->op_count)
        TDI_TRY(queue_op(request, request->queued++));
    tdi_mark *end = NULL;
    tide_status status =
        ops_of(comm)->finish(comm, request->flow, bound->mask, &end);
    show_mark(request, &request->end, end);
    return status;
}

/* Where what comes before the ops goes: a gather waits for FREE there. */
static uint8_t first_queue(const tide_request *request)
{
    return queue_of(request, TIDE_LANE_COPY);
}

/* Nothing of the plan runs before what was queued there. */
static tide_status end_first(tide_request *request)
{
    const tdi_bound *bound = request->bound;
    tide_comm *comm = request->comm;
    uint32_t slot = bound->slot[bound->plan->op_count] - 1;
    uint8_t first = first_queue(request);
    TDI_TRY(ops_of(comm)->note(comm, request->flow, first, slot));
    for (uint8_t queue = 0; queue < TDI_QUEUES; queue++)
        if (queue != first && bound->mask >> queue & 1)
            TDI_TRY(ops_of(comm)->after(comm, request->flow, queue, slot));
    return TIDE_OK;
}

static tide_status follow(tide_request *request, tide_stream stream)
{
    tide_comm *comm = request->comm;
    uint32_t mask = request->bound->mask | 1u << first_queue(request);
    tdi_mark *begun = NULL;
    tide_status status =
        ops_of(comm)->follow(comm, request->flow, mask, stream, &begun);
    show_mark(request, &request->begun, begun);
    return status;
}

/* Copies of gradients that peers cannot read go first. */
static tide_status queue_copies(tide_request *request)
{
    const tide_layout *layout = request->group->layout;
    uint64_t size = tide_dtype_size(request->bound->plan->options.grad_dtype);
    bool any = false;
    for (size_t p = 0; p < tide_layout_count(layout); p++) {
        if (!request->copied[p])
            continue;
        any = true;
        TDI_TRY(
            tdi_queue_fill(request, request->memory[p], request->copied[p],
                           tide_layout_param(layout, p)->grad_elems * size));
    }
    return any ? end_first(request) : TIDE_OK;
}

tide_status tdi_queue_fill(tide_request *request, char *to, const void *from,
                           uint64_t bytes)
{
    tide_comm *comm = request->comm;
    uint8_t queue = first_queue(request);
    tdi_move move = {.dst = {.pointer = to, .rank = (int32_t)comm->rank},
                     .src = {.pointer = (char *)(uintptr_t)from,
                             .rank = (int32_t)comm->rank},
                     .width = bytes,
                     .height = 1,
                     .dst_pitch = bytes,
                     .src_pitch = bytes};
    if (!bytes)
        return TIDE_OK;
    if (!from)
        return ops_of(comm)->zero(comm, request->flow, queue, to, bytes);
    return ops_of(comm)->copy(comm, request->flow, queue, &move);
}

tide_status tdi_queue_fill_begin(tide_request *request)
{
    tide_comm *comm = request->comm;
    tdi_mark *begun = NULL;
    TDI_TRY(ops_of(comm)->enter(comm));
    tide_status status = ops_of(comm)->follow(
        comm, request->flow, 1u << first_queue(request), NULL, &begun);
    ops_of(comm)->mark_drop(comm, begun);
    if (status)
        ops_of(comm)->leave(comm);
    return status;
}

tide_status tdi_queue_fill_end(tide_request *request)
{
    tide_comm *comm = request->comm;
    tdi_mark *filled = NULL;
    tide_status status =
        ops_of(comm)->mark(comm, request->flow, first_queue(request), &filled);
    if (!status)
        status = ops_of(comm)->mark_wait(comm, filled, NULL);
    ops_of(comm)->mark_drop(comm, filled);
    ops_of(comm)->leave(comm);
    return status;
}

tide_status tdi_queue_begin(tide_request *request)
{
    tide_comm *comm = request->comm;
    TDI_TRY(ops_of(comm)->enter(comm));
    tide_status status = queue_until_free(request);
    ops_of(comm)->leave(comm);
    return status;
}

tide_status tdi_queue_start(tide_request *request, tide_stream stream)
{
    tide_comm *comm = request->comm;
    TDI_TRY(ops_of(comm)->enter(comm));
    comm->backend->publish(comm, &request->call);
    tide_status status = ops_of(comm)->meet(comm, &request->call);
    if (!status && request->bound->plan->options.push)
        status = ops_of(comm)->compare(
            comm, &request->call, tide_layout_count(request->group->layout));
    if (!status)
        status = follow(request, stream);
    if (!status && request->flow == TDI_FLOW_REDUCE)
        status = queue_copies(request);
    if (!status)
        status = queue_rest(request);
    ops_of(comm)->leave(comm);
    return status;
}

/* --- Waiting ------------------------------------------------------------ */

/* A fault lets all waits pass: what is reached after one is not. */
static tide_status check_mark(tide_comm *comm, const tdi_mark *mark,
                              bool *reached)
{
    bool passed = false;
    tide_status status = ops_of(comm)->mark_reached(comm, mark, &passed);
    if (status)
        return tdi_comm_failed(comm, status, comm->rank);
    if (passed)
        TDI_TRY(tdi_comm_check(comm));
    *reached = passed;
    return TIDE_OK;
}

static tide_status check_end(tide_request *request)
{
    if (request->complete || !request->end)
        return TIDE_OK;
    return check_mark(request->comm, request->end, &request->complete);
}

/* Takes requests from the front; those of owners that wait no more go. */
static tide_status reap(tdi_flow *flow)
{
    while (flow->head) {
        tide_request *request = flow->head;
        TDI_TRY(check_end(request));
        if (!request->complete)
            break;
        flow->head = request->next;
        flow->pending--;
        request->in_flow = false;
        tdi_request_release(request);
        if (request->is_freed)
            tdi_request_drop(request);
    }
    return TIDE_OK;
}

tide_status tdi_queue_reap(tide_comm *comm, tdi_flow_id id)
{
    TDI_TRY(ops_of(comm)->enter(comm));
    tdi_watch_lock(comm);
    tide_status status = reap(&comm->flows[id]);
    tdi_watch_unlock(comm);
    ops_of(comm)->leave(comm);
    return status;
}

tide_status tdi_queue_reached(tide_request *request, tide_phase phase,
                              bool *reached)
{
    tide_comm *comm = request->comm;
    const tdi_mark *mark =
        phase == TIDE_PHASE_COUNT ? NULL : request->mark[phase];
    *reached = request->complete;
    if (*reached)
        return TIDE_OK;
    TDI_TRY(ops_of(comm)->enter(comm));
    tide_status status =
        mark ? check_mark(comm, mark, reached) : check_end(request);
    ops_of(comm)->leave(comm);
    *reached = *reached || request->complete;
    return status;
}

/* Short naps: work on a device takes tens of microseconds. */
static void nap(uint32_t tries)
{
    enum { SPINS = 200, LONGEST_US = 200 };
    uint64_t us = tries < SPINS ? 0 : tdi_min(tries - SPINS, LONGEST_US);
    if (us)
        nanosleep(&(struct timespec){0, (long)us * 1000}, NULL);
}

tide_status tdi_queue_wait(tide_request *request, tide_phase phase)
{
    bool reached = false;
    for (uint32_t tries = 0; !reached; tries++) {
        TDI_TRY(tdi_comm_check(request->comm));
        TDI_TRY(tdi_queue_reached(request, phase, &reached));
        if (!reached)
            nap(tries);
    }
    return TIDE_OK;
}

/* --- Draining ----------------------------------------------------------- */

void tdi_queue_settle(tide_comm *comm, tdi_flow_id id)
{
    const tdi_flow *flow = &comm->flows[id];
    while (flow->head && flow->head->end)
        if (tdi_queue_wait(flow->head, TIDE_PHASE_COUNT) ||
            tdi_queue_reap(comm, id))
            return; /* a fault: nothing will be through */
}

static tide_status queue_owed(tide_comm *comm, tdi_flow_id id,
                              tide_channel channel, tdi_mark **mark)
{
    const tdi_flow *flow = &comm->flows[id];
    uint32_t size = comm->topology.local_size;
    uint32_t ranks = comm->topology.nodes * size;
    uint32_t first = comm->rank - comm->rank % size;
    uint8_t queue = ops_of(comm)->queue_of(comm, id, TIDE_LANE_COPY);
    for (uint32_t peer = first; peer < first + size; peer++) {
        tdi_block wait = {peer, channel, NULL};
        if (peer != comm->rank)
            TDI_TRY(ops_of(comm)->wait(
                comm, id, queue, NULL, &wait,
                (int64_t)flow->issued[channel * ranks + peer]));
    }
    return ops_of(comm)->mark(comm, id, queue, mark);
}

static tide_status await_mark(tide_comm *comm, const tdi_mark *mark)
{
    bool reached = false;
    for (uint32_t tries = 0; !reached; tries++) {
        TDI_TRY(tdi_comm_check(comm));
        TDI_TRY(check_mark(comm, mark, &reached));
        nap(tries);
    }
    return TIDE_OK;
}

tide_status tdi_queue_drain(tide_comm *comm, tdi_flow_id id,
                            tide_channel channel)
{
    tdi_mark *mark = NULL;
    tdi_queue_settle(comm, id);
    TDI_TRY(tdi_comm_check(comm));
    TDI_TRY(ops_of(comm)->enter(comm));
    tide_status status = queue_owed(comm, id, channel, &mark);
    if (!status)
        status = await_mark(comm, mark);
    ops_of(comm)->mark_drop(comm, mark);
    ops_of(comm)->leave(comm);
    return status;
}

/* After a fault nothing will be through: what has no owner goes as it is. */
static void abandon(tide_comm *comm, tdi_flow *flow, const tide_group *group)
{
    tdi_watch_lock(comm);
    for (tide_request **at = &flow->head, *before = NULL; *at;) {
        tide_request *request = *at;
        if (group && request->group != group) {
            before = request;
            at = &request->next;
            continue;
        }
        *at = request->next;
        flow->pending--;
        if (flow->tail == request)
            flow->tail = before;
        request->in_flow = false;
        if (request->is_freed)
            tdi_request_drop(request);
    }
    tdi_watch_unlock(comm);
}

static bool has_requests(const tdi_flow *flow, const tide_group *group)
{
    const tide_request *at = flow->head;
    while (at && group && at->group != group)
        at = at->next;
    return at != NULL;
}

void tdi_queue_forget(tide_comm *comm, const tide_group *group)
{
    for (tdi_flow_id id = 0; id < TDI_FLOWS; id++) {
        tdi_flow *flow = &comm->flows[id];
        tide_status status = TIDE_OK;
        while (!status && has_requests(flow, group)) {
            status = flow->head->end
                         ? tdi_queue_wait(flow->head, TIDE_PHASE_COUNT)
                         : TIDE_ERR_INVALID;
            if (!status)
                status = tdi_queue_reap(comm, id);
        }
        if (status)
            abandon(comm, flow, group);
    }
}

void tdi_queue_drop(tide_request *request)
{
    const tdi_queue_ops *ops = ops_of(request->comm);
    if (!ops)
        return;
    for (int phase = 0; phase < TIDE_PHASE_COUNT; phase++)
        ops->mark_drop(request->comm, request->mark[phase]);
    ops->mark_drop(request->comm, request->begun);
    ops->mark_drop(request->comm, request->end);
}
