/* Requests: making them, waiting for them, and the scratch they use. */
#include "exec/request.h"

#include "base/fail.h"
#include "base/util.h"
#include "exec/queue.h"

#include <stdlib.h>
#include <string.h>

static uint32_t ranks_of(const tide_comm *comm)
{
    return comm->topology.nodes * comm->topology.local_size;
}

/* An all-gather that was begun and not started holds back all behind it: a
 * wait for one of those, or for `until` NULL, could not end. */
tide_status tdi_request_check_started(const tide_comm *comm, tdi_flow_id flow,
                                      const tide_request *until)
{
    const tide_request *at = comm->flows[flow].head;
    for (; at && at != until; at = at->next)
        if (!at->started)
            return tdi_fail(TIDE_ERR_INVALID,
                            "rank %u: an all-gather of %s was begun and not "
                            "started, and this call would wait behind it",
                            comm->rank, at->group->name);
    return TIDE_OK;
}

/* --- Scratch ------------------------------------------------------------ */

typedef struct flow_wait {
    tide_comm *comm;
    tdi_flow_id flow;
    uint64_t pending; /* requests that may still be under way */
    tide_channel channel;
    int64_t lag; /* signals of `channel` that may still be missing */
    tide_status status;
} flow_wait;

/* By it a peer says that it has read my scratch. */
static tide_channel read_channel(tdi_flow_id flow)
{
    return flow == TDI_FLOW_GATHER ? TIDE_CH_FREE : TIDE_CH_CONSUMED;
}

/* Few requests are left, and every local peer has sent what it owes. */
static bool flow_is_quiet(void *context, tdi_block *missing)
{
    flow_wait *wait = context;
    tide_comm *comm = wait->comm;
    tdi_flow *flow = &comm->flows[wait->flow];
    uint32_t size = comm->topology.local_size;
    uint32_t first = comm->rank - comm->rank % size;
    if (flow->pending > wait->pending)
        return false;
    for (uint32_t peer = first; peer < first + size; peer++) {
        uint64_t issued = flow->issued[wait->channel * ranks_of(comm) + peer];
        tdi_block block = {peer, wait->channel, NULL};
        bool reached = true;
        if (peer != comm->rank)
            wait->status =
                comm->backend->poll(comm, wait->flow, &block,
                                    (int64_t)issued - wait->lag, &reached);
        if (wait->status)
            return true;
        if (!reached) {
            *missing = block;
            return false;
        }
    }
    return true;
}

static tide_status await_flow(tide_comm *comm, tdi_flow_id flow,
                              uint64_t pending, int64_t lag)
{
    flow_wait wait = {.comm = comm, .flow = flow, .pending = pending};
    wait.lag = lag;
    wait.channel = read_channel(flow);
    TDI_TRY(tdi_run_until(comm, flow_is_quiet, &wait));
    return wait.status;
}

tide_status tdi_request_settle(tide_comm *comm)
{
    if (comm->backend->queue)
        return TIDE_OK;
    for (tdi_flow_id flow = 0; flow < TDI_FLOWS; flow++)
        TDI_TRY(await_flow(comm, flow, 0, INT64_MAX / 2));
    return TIDE_OK;
}

/* Bytes of a plan's scratch as it lies in the arena, and what it asked for. */
static uint64_t scratch_size(const tide_comm *comm, const tide_plan *plan,
                             uint64_t *asked)
{
    uint64_t bytes = 0;
    *asked = 0;
    for (int i = 0; i < TIDE_BUF_COUNT; i++) {
        uint64_t copies = i == TIDE_BUF_STAGE ? TIDE_STAGE_SETS : 1;
        *asked += copies * plan->buffer_bytes[i];
        bytes += copies * tdi_round_up(plan->buffer_bytes[i], comm->arena.page);
    }
    return bytes;
}

/* Peers may still read the scratch: it goes once they have finished. */
static tide_status drop_scratch(tide_comm *comm, tdi_flow_id id)
{
    tdi_flow *flow = &comm->flows[id];
    if (!flow->scratch)
        return TIDE_OK;
    TDI_TRY(tdi_request_check_started(comm, id, NULL));
    if (comm->backend->queue)
        TDI_TRY(tdi_queue_drain(comm, id, read_channel(id)));
    else
        TDI_TRY(await_flow(comm, id, 0, 0));
    if (comm->backend->discard)
        comm->backend->discard(comm, flow->scratch->offset,
                               flow->scratch->bytes);
    tdi_arena_drop(comm, flow->scratch);
    flow->scratch = NULL;
    flow->scratch_bytes = 0;
    return TIDE_OK;
}

static tide_status grow_scratch(tide_comm *comm, tdi_flow_id id,
                                const tide_plan *plan)
{
    tdi_flow *flow = &comm->flows[id];
    uint64_t asked;
    uint64_t bytes = scratch_size(comm, plan, &asked);
    asked = tdi_max(flow->scratch_bytes, asked);
    if (bytes > (flow->scratch ? flow->scratch->bytes : 0)) {
        TDI_TRY(drop_scratch(comm, id));
        /* From the top: peers on other machines rely on equal offsets, and
         * what lies below may differ from rank to rank. */
        TDI_TRY(tdi_arena_take_top(&comm->arena, bytes, &flow->scratch));
    }
    flow->scratch_bytes = asked;
    return TIDE_OK;
}

static void place_scratch(tide_request *request)
{
    const tdi_flow *flow = &request->comm->flows[request->flow];
    const uint64_t *bytes = request->bound->plan->buffer_bytes;
    uint64_t page = request->comm->arena.page;
    if (!flow->scratch)
        return;
    uint64_t at = flow->scratch->offset;
    if (request->flow == TDI_FLOW_GATHER) {
        /* Both sets keep their place whatever the group is: the last call's
         * set may still be read while this one's is filled. */
        uint64_t half = flow->scratch->bytes / TIDE_STAGE_SETS;
        request->scratch[TIDE_BUF_STAGE] =
            at + request->turn % TIDE_STAGE_SETS * half;
        return;
    }
    request->scratch[TIDE_BUF_RECV] = at;
    at += tdi_round_up(bytes[TIDE_BUF_RECV], page);
    request->scratch[TIDE_BUF_PARTIAL] = at;
    at += tdi_round_up(bytes[TIDE_BUF_PARTIAL], page);
    request->scratch[TIDE_BUF_RSTAGE] = at;
}

/* --- Life --------------------------------------------------------------- */

static void free_arrays(tide_request *request)
{
    free(request->base);
    free(request->memory);
    free(request->copied);
    free(request->held);
}

static tide_request *allocate(tide_group *group)
{
    size_t params = tide_layout_count(group->layout);
    size_t counters = (size_t)TIDE_CH_COUNT * ranks_of(group->comm);
    tide_request *request = calloc(1, sizeof(*request));
    if (!request)
        return NULL;
    request->base = malloc(counters * sizeof(uint64_t));
    request->memory = calloc(params + 1, sizeof(void *));
    request->copied = calloc(params + 1, sizeof(void *));
    request->held = calloc(params + 1, sizeof(tdi_range *));
    if (request->base && request->memory && request->copied && request->held)
        return request;
    free_arrays(request);
    free(request);
    return NULL;
}

/* --- Tables ------------------------------------------------------------- */

tide_status tdi_request_make_tables(tide_group *group, tide_coll coll)
{
    tide_comm *comm = group->comm;
    uint64_t each = tdi_round_up(tdi_max(1, tide_layout_count(group->layout)) *
                                     sizeof(tdi_grad_entry),
                                 comm->tables->page);
    if (group->table[coll])
        return TIDE_OK;
    return tdi_arena_take(comm->tables, 2 * each, &group->table[coll]);
}

/* The two are used in turn. */
static uint64_t table_offset(const tide_request *request)
{
    const tdi_range *table =
        request->group->table[request->bound->plan->options.coll];
    return table->offset + request->turn % 2 * (table->bytes / 2);
}

tdi_grad_entry *tdi_request_table(const tide_request *request)
{
    tide_comm *comm = request->comm;
    return comm->backend->table(comm, table_offset(request));
}

static void set_call(tide_request *request)
{
    tide_group *group = request->group;
    tdi_call *call = &request->call;
    call->number = ++request->comm->calls;
    call->turn = request->turn;
    call->key = request->bound->plan->key;
    call->stage = request->scratch[TIDE_BUF_STAGE];
    call->recv = request->scratch[TIDE_BUF_RECV];
    call->coll = request->bound->plan->options.coll;
    memcpy(call->name, group->name, sizeof(call->name));
    if (group->table[call->coll])
        call->table = table_offset(request);
}

/* Scratch and tables alternate: the request before last must be over, and its
 * STAGE read. On a device the queued waits see to that. */
static tide_status make_room(tide_comm *comm, tdi_flow_id id)
{
    const tdi_flow *flow = &comm->flows[id];
    if (comm->backend->queue) {
        /* Its signals are counted from its start on. */
        if (flow->head && !flow->tail->started)
            TDI_TRY(tdi_request_check_started(comm, id, NULL));
        return tdi_queue_reap(comm, id);
    }
    if (flow->pending > 1)
        TDI_TRY(tdi_request_check_started(comm, id, flow->tail));
    return await_flow(comm, id, 1, id == TDI_FLOW_GATHER ? 1 : INT64_MAX / 2);
}

tide_status tdi_request_create(tide_group *group, tdi_flow_id id,
                               const tdi_bound *bound, tide_request **made)
{
    tide_comm *comm = group->comm;
    tdi_flow *flow = &comm->flows[id];
    const tide_plan *plan = bound->plan;
    uint32_t ranks = ranks_of(comm);
    *made = NULL;
    TDI_TRY(make_room(comm, id));
    TDI_TRY(grow_scratch(comm, id, plan));
    tide_request *request = allocate(group);
    if (!request)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a request of %s",
                        group->name);
    request->comm = comm;
    request->group = group;
    request->bound = bound;
    request->flow = id;
    request->turn = flow->calls;
    request->scale = 1.0f;
    memcpy(request->at, bound->first, sizeof(request->at));
    memcpy(request->base, flow->issued,
           (size_t)TIDE_CH_COUNT * ranks * sizeof(uint64_t));
    place_scratch(request);
    *made = request;
    return TIDE_OK;
}

void tdi_request_enqueue(tide_request *request)
{
    tide_comm *comm = request->comm;
    tdi_flow *flow = &comm->flows[request->flow];
    const tide_plan *plan = request->bound->plan;
    for (uint32_t i = 0; i < plan->expect_count; i++) {
        const tide_expect *e = &plan->expects[i];
        flow->issued[e->channel * ranks_of(comm) + (uint32_t)e->source] +=
            e->total;
    }
    set_call(request);
    flow->calls++;
    request->group->requests++;
    tdi_watch_lock(comm);
    flow->pending++;
    request->in_flow = true;
    if (flow->head)
        flow->tail->next = request;
    else
        flow->head = request;
    flow->tail = request;
    tdi_watch_unlock(comm);
    /* On a device ranks meet at the start: tdi_queue_start. */
    if (!comm->backend->queue)
        comm->backend->publish(comm, &request->call);
}

void tdi_request_release(tide_request *request)
{
    size_t count = tide_layout_count(request->group->layout);
    for (size_t p = 0; p <= count; p++) {
        if (request->held[p])
            tdi_arena_drop(request->comm, request->held[p]);
        request->held[p] = NULL;
    }
}

void tdi_request_drop(tide_request *request)
{
    tdi_request_release(request);
    tdi_queue_drop(request);
    free_arrays(request);
    free(request);
}

/* --- Waiting ------------------------------------------------------------ */

typedef struct phase_wait {
    tide_request *request;
    tide_phase phase;
} phase_wait;

static bool has_reached(const tide_request *request, tide_phase phase)
{
    return request->reached[phase] || request->complete;
}

static bool phase_is_reached(void *context, tdi_block *missing)
{
    (void)missing;
    phase_wait *wait = context;
    return has_reached(wait->request, wait->phase);
}

static tide_status check_wait(const tide_request *request, tide_phase phase)
{
    if (!request || phase < 0 || phase >= TIDE_PHASE_COUNT)
        return tdi_fail(TIDE_ERR_INVALID, "request is NULL, or no phase %d",
                        (int)phase);
    if (!request->started)
        return tdi_fail(TIDE_ERR_INVALID,
                        "a wait for an all-gather of %s that was begun and "
                        "not started",
                        request->group->name);
    return TIDE_OK;
}

tide_status tide_wait(tide_request *request, tide_phase phase)
{
    TDI_TRY(check_wait(request, phase));
    phase_wait wait = {request, phase};
    if (has_reached(request, phase))
        return TIDE_OK;
    TDI_TRY(tdi_comm_check(request->comm));
    TDI_TRY(tdi_request_check_started(request->comm, request->flow, request));
    if (request->comm->backend->queue)
        return tdi_queue_wait(request, phase);
    return tdi_run_until(request->comm, phase_is_reached, &wait);
}

static tide_status test_queued(tide_request *request, tide_phase phase,
                               int *reached)
{
    bool is_reached;
    if (!request->complete) /* what was complete before a fault stays so */
        TDI_TRY(tdi_comm_check(request->comm));
    TDI_TRY(tdi_queue_reached(request, phase, &is_reached));
    *reached = is_reached;
    return TIDE_OK;
}

tide_status tide_test(tide_request *request, tide_phase phase, int *reached)
{
    bool moved = false;
    if (!reached)
        return tdi_fail(TIDE_ERR_INVALID, "reached is NULL");
    TDI_TRY(check_wait(request, phase));
    if (request->comm->backend->queue)
        return test_queued(request, phase, reached);
    if (!has_reached(request, phase))
        TDI_TRY(tdi_run_all(request->comm, &moved));
    *reached = has_reached(request, phase);
    if (!*reached && !moved)
        return tdi_run_watch(request->comm);
    return TIDE_OK;
}

tide_status tide_stream_wait(tide_request *request, tide_phase phase,
                             tide_stream stream)
{
    if (!request || phase < 0 || phase >= TIDE_PHASE_COUNT)
        return tdi_fail(TIDE_ERR_INVALID, "request is NULL, or no phase %d",
                        (int)phase);
    const tdi_queue_ops *queue = request->comm->backend->queue;
    if (!queue)
        return tdi_fail(TIDE_ERR_UNSUPPORTED, "the %s backend has no streams",
                        request->comm->backend->name);
    if (phase != TIDE_PHASE_FREE)
        TDI_TRY(check_wait(request, phase));
    TDI_TRY(tdi_comm_check(request->comm));
    tdi_mark *mark = request->mark[phase] ? request->mark[phase] : request->end;
    if (!mark)
        return tdi_fail(TIDE_ERR_INVALID,
                        "rank %u: a request of %s has no such phase",
                        request->comm->rank, request->group->name);
    TDI_TRY(queue->enter(request->comm));
    tide_status status = queue->mark_wait(request->comm, mark, stream);
    queue->leave(request->comm);
    return status;
}

static bool is_complete(void *context, tdi_block *missing)
{
    (void)missing;
    return ((tide_request *)context)->complete;
}

/* Takes a request that will not complete out of its flow. */
static void unlink_request(tide_request *request)
{
    tdi_flow *flow = &request->comm->flows[request->flow];
    tide_request **at = &flow->head;
    tide_request *before = NULL;
    while (*at && *at != request) {
        before = *at;
        at = &before->next;
    }
    if (!*at)
        return;
    *at = request->next;
    flow->pending--;
    if (flow->tail == request)
        flow->tail = before;
}

/* The device goes on with it: the flow keeps it until that is through. */
static tide_status leave_to_flow(tide_request *request)
{
    tide_comm *comm = request->comm;
    tdi_flow_id flow = request->flow;
    request->is_freed = true;
    if (!request->in_flow)
        tdi_request_drop(request);
    return tdi_queue_reap(comm, flow);
}

/* Peers count on a request once it has a place in the queue: one that cannot
 * be completed is the end of the communicator. */
static tide_status complete(tide_request *request)
{
    tide_comm *comm = request->comm;
    if (request->complete)
        return TIDE_OK;
    TDI_TRY(tdi_comm_check(comm));
    tide_status status =
        comm->backend->queue
            ? TIDE_OK
            : tdi_request_check_started(comm, request->flow, request);
    if (!request->started)
        status = tdi_fail(TIDE_ERR_INVALID,
                          "rank %u: an all-gather of %s was begun and freed "
                          "before it was started; its peers wait for it",
                          comm->rank, request->group->name);
    if (status)
        return tdi_comm_failed(comm, status, comm->rank);
    if (comm->backend->queue)
        return TIDE_OK;
    return tdi_run_until(comm, is_complete, request);
}

tide_status tide_request_free(tide_request *request)
{
    if (!request)
        return TIDE_OK;
    tide_status status = complete(request);
    request->group->requests--;
    if (!status && request->comm->backend->queue)
        return leave_to_flow(request);
    tdi_watch_lock(request->comm);
    unlink_request(request);
    tdi_watch_unlock(request->comm);
    tdi_request_drop(request);
    return status;
}
