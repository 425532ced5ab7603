/*
 * What NCCL carries to and from ranks of other nodes. A call of NCCL costs the
 * host 8 to 15 us (docs/performance.md), so neighbouring puts, or signals, are
 * one group of NCCL, which sends them side by side. Waits go one by one: of a
 * wait for several peers no one could tell which of them is late.
 */
#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/fail.h"

/* --- Puts and signals --------------------------------------------------- */

tide_status tdi_cuda_rail_signal(tide_comm *comm, tdi_flow_id flow,
                                 uint8_t queue, uint32_t to)
{
    cuda_batch *batch;
    TDI_TRY(tdi_cuda_open_batch(comm, flow, queue, CUDA_SENDS,
                                &cuda_of(comm)->flows[flow].control, &batch));
    batch->send[batch->sends++] = (cuda_send){.to = to};
    return TIDE_OK;
}

tide_status tdi_cuda_rail_put(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                              const tdi_move *move)
{
    uint32_t to = (uint32_t)move->dst.rank;
    cuda_batch *batch;
    if (!move->src.pointer)
        return tdi_fail(TIDE_ERR_PLAN, "rank %u: a put to rank %u from nowhere",
                        comm->rank, to);
    if (move->dst.offset + move->width > comm->arena_bytes)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: a put of %llu bytes to offset %llu of rank "
                        "%u ends outside its arena of %llu bytes",
                        comm->rank, (unsigned long long)move->width,
                        (unsigned long long)move->dst.offset, to,
                        (unsigned long long)comm->arena_bytes);
    TDI_TRY(tdi_cuda_open_batch(comm, flow, queue, CUDA_SENDS,
                                &cuda_of(comm)->flows[flow].data, &batch));
    batch->send[batch->sends++] = (cuda_send){.from = move->src.pointer,
                                              .bytes = move->width,
                                              .offset = move->dst.offset,
                                              .to = to};
    return TIDE_OK;
}

static tide_status send(tide_comm *comm, const cuda_rail *rail,
                        const cuda_send *one, cu_stream stream)
{
    const tdi_nccl_api *nccl = cuda_of(comm)->nccl;
    if (!one->from)
        return tdi_nccl_check(
            nccl, nccl->signal((int)one->to, 0, 0, 0, rail->comm, stream),
            comm->rank, "ncclSignal");
    return tdi_nccl_check(nccl,
                          nccl->put_signal(one->from, one->bytes, NCCL_INT8,
                                           (int)one->to, rail->window,
                                           one->offset, 0, 0, 0, rail->comm,
                                           stream),
                          comm->rank, "ncclPutSignal");
}

tide_status tdi_cuda_flush_sends(tide_comm *comm, cuda_batch *batch,
                                 cu_stream stream)
{
    const tdi_nccl_api *nccl = cuda_of(comm)->nccl;
    tide_status status = TIDE_OK;
    uint32_t count = batch->sends;
    batch->sends = 0;
    if (count == 1)
        return send(comm, batch->rail, batch->send, stream);
    TDI_TRY(tdi_nccl_check(nccl, nccl->group_start(), comm->rank,
                           "ncclGroupStart"));
    for (uint32_t i = 0; !status && i < count; i++)
        status = send(comm, batch->rail, &batch->send[i], stream);
    nccl_result ended = nccl->group_end(); /* after a fault, too */
    return status ? status
                  : tdi_nccl_check(nccl, ended, comm->rank, "ncclGroupEnd");
}

/* --- Waits -------------------------------------------------------------- */

static uint64_t expected(const tide_request *request, uint32_t from,
                         tide_channel channel)
{
    const tide_plan *plan = request->bound->plan;
    for (uint32_t i = 0; i < plan->expect_count; i++)
        if (plan->expects[i].source == (int32_t)from &&
            plan->expects[i].channel == channel)
            return plan->expects[i].total;
    return 0;
}

/* OPEN and CREDIT share a counter. Within a call a rank says OPEN first, and
 * calls follow one another on a communicator: so a wait for OPEN has the
 * CREDITs of earlier calls before it, one for CREDIT the call's OPEN, too. */
static int64_t control_target(const tide_comm *comm,
                              const tide_request *request,
                              const tdi_block *wait, int64_t target)
{
    bool is_open = wait->channel == TIDE_CH_OPEN;
    tide_channel other = is_open ? TIDE_CH_CREDIT : TIDE_CH_OPEN;
    int64_t before =
        (int64_t)request->base[other * cuda_ranks(comm) + wait->from];
    if (!is_open)
        before += (int64_t)expected(request, wait->from, other);
    return target + before;
}

/* For messages: NCCL does not tell which of its waits is not met. */
static tide_status note_wait(tide_comm *comm, cuda_rail *rail,
                             const tdi_block *wait, int64_t target,
                             cu_stream stream)
{
    cuda_state *cuda = cuda_of(comm);
    cuda_rail_wait *note = &rail->wait[rail->waits++ % CUDA_RAIL_WAITS];
    pthread_mutex_lock(&cuda->rail_lock);
    cu_result result = CU_OK;
    if (!note->passed)
        result = cuda->cuda->event_create(&note->passed, CU_EVENT_NO_TIMING);
    note->from = wait->from;
    note->channel = wait->channel;
    note->target = target;
    if (!result)
        result = cuda->cuda->event_record(note->passed, stream);
    pthread_mutex_unlock(&cuda->rail_lock);
    return tdi_cuda_check(cuda->cuda, result, comm->rank,
                          "an event behind a wait for a rail");
}

tide_status tdi_cuda_rail_wait(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                               const tide_request *request,
                               const tdi_block *wait, int64_t target)
{
    const tdi_nccl_api *nccl = cuda_of(comm)->nccl;
    bool is_data = wait->channel == TIDE_CH_RAIL;
    cuda_flow *of = &cuda_of(comm)->flows[flow];
    cuda_rail *rail = is_data ? &of->data : &of->control;
    const int64_t plain_target = target;
    if (!is_data)
        target = control_target(comm, request, wait, target);
    int64_t count = target - (int64_t)rail->waited[wait->from];
    nccl_wait asked = {.count = (int)count, .peer = (int)wait->from};
    cu_stream stream;
    if (count <= 0)
        return TIDE_OK;
    rail->waited[wait->from] = (uint64_t)target;
    TDI_TRY(tdi_cuda_flush(comm, flow));
    TDI_TRY(tdi_cuda_stream(comm, flow, queue, &stream));
    TDI_TRY(tdi_nccl_check(nccl,
                           nccl->wait_signal(1, &asked, rail->comm, stream),
                           comm->rank, "ncclWaitSignal"));
    return note_wait(comm, rail, wait, plain_target, stream);
}
