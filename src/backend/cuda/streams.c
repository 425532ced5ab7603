/* Queues are streams, notes and marks are events. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/fail.h"

#include <stdlib.h>

struct tdi_mark {
    cu_event event;
    tdi_mark *next; /* while it is spare */
};

#define CHECK(comm, call, what)                                                \
    TDI_TRY(tdi_cuda_check(cuda_of(comm)->cuda, call, (comm)->rank, what))

static tide_status make_event(tide_comm *comm, cu_event *event)
{
    if (!*event)
        CHECK(comm,
              cuda_of(comm)->cuda->event_create(event, CU_EVENT_NO_TIMING),
              "cuEventCreate");
    return TIDE_OK;
}

static tide_status make_stream(tide_comm *comm, cu_stream *stream)
{
    const cuda_state *cuda = cuda_of(comm);
    if (!*stream)
        CHECK(comm,
              cuda->cuda->stream_create(stream, CU_STREAM_NON_BLOCKING_FLAG,
                                        cuda->priority),
              "cuStreamCreateWithPriority");
    return TIDE_OK;
}

tide_status tdi_cuda_stream(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                            cu_stream *stream)
{
    cu_stream *made = &cuda_of(comm)->flows[flow].stream[queue];
    TDI_TRY(make_stream(comm, made));
    *stream = *made;
    return TIDE_OK;
}

bool tdi_cuda_copies_beside(const tide_comm *comm)
{
    const cuda_state *cuda = cuda_of(comm);
    uint32_t size = comm->topology.local_size;
    uint32_t first = comm->rank - comm->rank % size;
    if (cuda->folded || !cuda->own_kernel)
        return false;
    for (uint32_t r = first; r < first + size; r++)
        if (!cuda->is_here[r])
            return true;
    return false;
}

tide_status tdi_cuda_make_streams(tide_comm *comm)
{
    cu_stream made;
    TDI_TRY(tdi_cuda_enter(comm));
    tide_status status = TIDE_OK;
    for (tdi_flow_id flow = 0; flow < TDI_FLOWS; flow++)
        for (tide_lane lane = 0; !status && lane < TIDE_LANE_COUNT; lane++)
            status = tdi_cuda_stream(
                comm, flow, tdi_cuda_queue_of(comm, flow, lane), &made);
    for (tdi_flow_id flow = 0; flow < TDI_FLOWS; flow++)
        if (!status && tdi_cuda_copies_beside(comm))
            status = make_stream(comm, &cuda_of(comm)->flows[flow].beside);
    tdi_cuda_leave(comm);
    return status;
}

/* Records an event in a queue, behind all that was batched for it. */
static tide_status record(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          cu_event *event)
{
    cu_stream stream;
    TDI_TRY(make_event(comm, event));
    TDI_TRY(tdi_cuda_flush(comm, flow));
    TDI_TRY(tdi_cuda_stream(comm, flow, queue, &stream));
    CHECK(comm, cuda_of(comm)->cuda->event_record(*event, stream),
          "cuEventRecord");
    return TIDE_OK;
}

static tide_status wait_for(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                            cu_event event)
{
    cu_stream stream;
    TDI_TRY(tdi_cuda_flush(comm, flow));
    TDI_TRY(tdi_cuda_stream(comm, flow, queue, &stream));
    CHECK(comm, cuda_of(comm)->cuda->stream_wait_event(stream, event, 0),
          "cuStreamWaitEvent");
    return TIDE_OK;
}

tide_status tdi_cuda_order(tide_comm *comm, cu_event *event, cu_stream from,
                           cu_stream to)
{
    const tdi_cuda_api *cuda = cuda_of(comm)->cuda;
    TDI_TRY(make_event(comm, event));
    CHECK(comm, cuda->event_record(*event, from), "cuEventRecord");
    CHECK(comm, cuda->stream_wait_event(to, *event, 0), "cuStreamWaitEvent");
    return TIDE_OK;
}

/* Events are made once and used again. */
static tide_status take_mark(tide_comm *comm, tdi_mark **mark)
{
    cuda_state *cuda = cuda_of(comm);
    tdi_mark *taken = cuda->marks;
    if (taken) {
        cuda->marks = taken->next;
    } else {
        taken = calloc(1, sizeof(*taken));
        if (!taken)
            return tdi_fail(TIDE_ERR_MEMORY, "rank %u: no memory for a mark",
                            comm->rank);
        tide_status status = make_event(comm, &taken->event);
        if (status) {
            free(taken);
            return status;
        }
    }
    *mark = taken;
    return TIDE_OK;
}

/* --- A plan's beginning and end ----------------------------------------- */

/* Where streams would outnumber the hardware queues all lanes share one: plans
 * end in array order, too (tests/unit/test_folded.c). With one node an
 * all-gather has nothing to overlap anyway, and level 1 of a reduce-scatter
 * copies while it sums, if it stages at all. Pulls on COPY
 * (TIDE_PULL_STREAMS=2) run beside those on LAND. */
uint8_t tdi_cuda_queue_of(const tide_comm *comm, tdi_flow_id flow,
                          tide_lane lane)
{
    static const uint8_t rails[TDI_FLOWS][TIDE_LANE_COUNT] = {
        [TDI_FLOW_GATHER] = {[TIDE_LANE_COPY] = 0,
                             [TIDE_LANE_RECV] = 0,
                             [TIDE_LANE_SEND] = 1,
                             [TIDE_LANE_LAND] = 2},
        [TDI_FLOW_REDUCE] = {[TIDE_LANE_COPY] = 0,
                             [TIDE_LANE_SUM] = 1,
                             [TIDE_LANE_SEND] = 2,
                             [TIDE_LANE_RECV] = 3,
                             [TIDE_LANE_LAND] = 3},
    };
    if (cuda_of(comm)->folded)
        return 0;
    bool pulls_on_copy = flow == TDI_FLOW_GATHER && comm->together > 1;
    if (comm->topology.nodes > 1)
        return pulls_on_copy && lane == TIDE_LANE_COPY ? 3 : rails[flow][lane];
    if (flow == TDI_FLOW_GATHER)
        return pulls_on_copy && lane == TIDE_LANE_LAND;
    return comm->staged && lane != TIDE_LANE_COPY;
}

/* The other queues of the mask wait for what `main` holds now. */
static tide_status open_gate(tide_comm *comm, tdi_flow_id id, uint8_t main,
                             uint32_t mask)
{
    cuda_flow *flow = &cuda_of(comm)->flows[id];
    if (!(mask & ~(1u << main)))
        return TIDE_OK;
    TDI_TRY(record(comm, id, main, &flow->gate[main]));
    for (uint8_t queue = 0; queue < CUDA_QUEUES; queue++)
        if (queue != main && mask >> queue & 1)
            TDI_TRY(wait_for(comm, id, queue, flow->gate[main]));
    return TIDE_OK;
}

static uint8_t first_of(uint32_t mask)
{
    return mask ? (uint8_t)__builtin_ctz(mask) : 0;
}

tide_status tdi_cuda_follow(tide_comm *comm, tdi_flow_id id, uint32_t mask,
                            tide_stream stream, tdi_mark **begun)
{
    cuda_flow *flow = &cuda_of(comm)->flows[id];
    uint8_t main = first_of(mask);
    TDI_TRY(take_mark(comm, begun));
    CHECK(comm,
          cuda_of(comm)->cuda->event_record((*begun)->event, (cu_stream)stream),
          "cuEventRecord on the caller's stream");
    TDI_TRY(wait_for(comm, id, main, (*begun)->event));
    if (flow->end && flow->end_queue != main)
        TDI_TRY(wait_for(comm, id, main, flow->end));
    return open_gate(comm, id, main, mask);
}

tide_status tdi_cuda_finish(tide_comm *comm, tdi_flow_id id, uint32_t mask,
                            tdi_mark **end)
{
    cuda_flow *flow = &cuda_of(comm)->flows[id];
    uint8_t main = first_of(mask);
    for (uint8_t queue = 0; queue < CUDA_QUEUES; queue++) {
        if (queue == main || !(mask >> queue & 1))
            continue;
        TDI_TRY(record(comm, id, queue, &flow->gate[queue]));
        TDI_TRY(wait_for(comm, id, main, flow->gate[queue]));
    }
    TDI_TRY(record(comm, id, main, &flow->end));
    flow->end_queue = main;
    return tdi_cuda_mark(comm, id, main, end);
}

/* --- Notes -------------------------------------------------------------- */

static tide_status grow_notes(tide_comm *comm, cuda_flow *flow, uint32_t slot)
{
    uint32_t count = flow->note_count ? flow->note_count : 32;
    while (count <= slot)
        count *= 2;
    cu_event *notes = realloc(flow->note, count * sizeof(*notes));
    if (!notes)
        return tdi_fail(TIDE_ERR_MEMORY, "rank %u: no memory for %u events",
                        comm->rank, count);
    for (uint32_t i = flow->note_count; i < count; i++)
        notes[i] = NULL;
    flow->note = notes;
    flow->note_count = count;
    return TIDE_OK;
}

tide_status tdi_cuda_note(tide_comm *comm, tdi_flow_id id, uint8_t queue,
                          uint32_t slot)
{
    cuda_flow *flow = &cuda_of(comm)->flows[id];
    if (slot >= flow->note_count)
        TDI_TRY(grow_notes(comm, flow, slot));
    return record(comm, id, queue, &flow->note[slot]);
}

tide_status tdi_cuda_after(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                           uint32_t slot)
{
    return wait_for(comm, flow, queue, cuda_of(comm)->flows[flow].note[slot]);
}

/* --- Marks -------------------------------------------------------------- */

tide_status tdi_cuda_mark(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          tdi_mark **mark)
{
    TDI_TRY(take_mark(comm, mark));
    return record(comm, flow, queue, &(*mark)->event);
}

tide_status tdi_cuda_mark_wait(tide_comm *comm, tdi_mark *mark,
                               tide_stream stream)
{
    CHECK(comm,
          cuda_of(comm)->cuda->stream_wait_event((cu_stream)stream, mark->event,
                                                 0),
          "cuStreamWaitEvent on the caller's stream");
    return TIDE_OK;
}

tide_status tdi_cuda_mark_reached(tide_comm *comm, const tdi_mark *mark,
                                  bool *reached)
{
    cu_result result = cuda_of(comm)->cuda->event_query(mark->event);
    *reached = result == CU_OK;
    if (result == CU_ERROR_NOT_READY)
        return TIDE_OK;
    CHECK(comm, result, "cuEventQuery");
    return TIDE_OK;
}

void tdi_cuda_mark_drop(tide_comm *comm, tdi_mark *mark)
{
    if (!mark)
        return;
    mark->next = cuda_of(comm)->marks;
    cuda_of(comm)->marks = mark;
}

/* --- The end ------------------------------------------------------------ */

static void free_event(tide_comm *comm, cu_event *event)
{
    if (*event)
        cuda_of(comm)->cuda->event_destroy(*event);
    *event = NULL;
}

static void free_rail_events(tide_comm *comm, cuda_rail *rail)
{
    for (int i = 0; i < CUDA_RAIL_WAITS; i++)
        free_event(comm, &rail->wait[i].passed);
}

static void free_flow(tide_comm *comm, cuda_flow *flow)
{
    for (int q = 0; q < CUDA_QUEUES; q++) {
        tdi_cuda_chain_free(flow->chain[q]);
        flow->chain[q] = NULL;
        if (flow->stream[q])
            cuda_of(comm)->cuda->stream_destroy(flow->stream[q]);
        flow->stream[q] = NULL;
        free_event(comm, &flow->gate[q]);
    }
    if (flow->beside)
        cuda_of(comm)->cuda->stream_destroy(flow->beside);
    flow->beside = NULL;
    for (uint32_t i = 0; i < flow->note_count; i++)
        free_event(comm, &flow->note[i]);
    free_event(comm, &flow->fork);
    free_event(comm, &flow->join);
    free_event(comm, &flow->end);
    free_rail_events(comm, &flow->data);
    free_rail_events(comm, &flow->control);
}

void tdi_cuda_free_streams(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    for (int f = 0; f < TDI_FLOWS; f++)
        free_flow(comm, &cuda->flows[f]);
    while (cuda->marks) {
        tdi_mark *mark = cuda->marks;
        cuda->marks = mark->next;
        free_event(comm, &mark->event);
        free(mark);
    }
}
