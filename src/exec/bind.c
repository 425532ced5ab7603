/* From buffer ids to memory: mine here, a peer's through the backend. */
#include "base/fail.h"
#include "exec/comm.h"

static tide_status bind_mine(tide_request *request, tide_operand at,
                             tdi_address *address)
{
    tide_comm *comm = request->comm;
    tide_buffer buffer = tide_operand_buffer(at);
    switch (buffer) {
    case TIDE_BUF_PARAM:
    case TIDE_BUF_GRAD:
        address->pointer = (char *)request->memory[at.index] + at.offset;
        return TIDE_OK;
    case TIDE_BUF_OUT:
        address->pointer = (char *)request->out + at.offset;
        return TIDE_OK;
    case TIDE_BUF_STAGE:
    case TIDE_BUF_RSTAGE:
    case TIDE_BUF_PARTIAL:
    case TIDE_BUF_RECV:
        address->pointer =
            comm->backend->arena(comm, request->scratch[buffer] + at.offset);
        return TIDE_OK;
    default:
        return tdi_fail(TIDE_ERR_PLAN, "rank %u: buffer %d in a plan",
                        comm->rank, (int)buffer);
    }
}

/* The same offset on every rank of my node: my address, made multicast. */
static tide_status bind_all_local(tide_request *request, tide_operand at,
                                  tdi_address *address)
{
    tide_comm *comm = request->comm;
    const tdi_queue_ops *queue = comm->backend->queue;
    TDI_TRY(bind_mine(request, at, address));
    if (queue)
        address->pointer = queue->multicast(comm, address->pointer);
    if (!queue || !address->pointer)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: a plan writes to all local ranks, and the %s "
                        "backend has no multicast there",
                        comm->rank, comm->backend->name);
    return TIDE_OK;
}

tide_status tdi_bind_address(tide_request *request, tide_operand at,
                             int32_t rank, tdi_address *address)
{
    tide_comm *comm = request->comm;
    if (rank != (int32_t)comm->rank && rank != TIDE_ALL_LOCAL)
        return comm->backend->peer(comm, &request->call, at, rank, address);
    *address = (tdi_address){.rank = rank};
    return rank == TIDE_ALL_LOCAL ? bind_all_local(request, at, address)
                                  : bind_mine(request, at, address);
}

tide_status tdi_bind_move(tide_request *request, const tide_op *op,
                          tdi_move *move)
{
    *move = (tdi_move){.width = op->width,
                       .height = op->height,
                       .dst_pitch = op->dst_pitch,
                       .src_pitch = op->src_pitch};
    TDI_TRY(tdi_bind_address(request, op->dst, tide_operand_rank(op->dst),
                             &move->dst));
    return tdi_bind_address(request, op->src, tide_operand_rank(op->src),
                            &move->src);
}

tide_status tdi_bind_sum(tide_request *request, const tide_op *op,
                         tdi_address *sources, tdi_sum *sum)
{
    tide_comm *comm = request->comm;
    int32_t size = (int32_t)comm->topology.local_size;
    int32_t rank = tide_operand_rank(op->src);
    int32_t node = rank - rank % size;
    *sum = (tdi_sum){.src = sources,
                     .sources = op->height,
                     .flags = op->flags,
                     .elems = op->width,
                     .scale = op->flags & TIDE_SCALE ? request->scale : 1.0f,
                     .lane = op->lane};
    TDI_TRY(tdi_bind_address(request, op->dst, tide_operand_rank(op->dst),
                             &sum->dst));
    if (op->flags & TIDE_SWITCH) {
        sum->sources = 1;
        return tdi_bind_address(request, op->src, TIDE_ALL_LOCAL, sources);
    }
    for (uint32_t i = 0; i < op->height; i++) {
        tide_operand at = op->src;
        int32_t owner = rank;
        if (op->flags & TIDE_OWN && node + (int32_t)i == rank)
            at = tide_at(TIDE_BUF_GRAD, at.index, rank, op->dst_pitch);
        else if (op->flags & TIDE_ACROSS)
            owner = node + (rank - node + (int32_t)i) % size;
        else
            at.offset += i * op->src_pitch;
        TDI_TRY(tdi_bind_address(request, at, owner, &sources[i]));
    }
    return TIDE_OK;
}

int64_t tdi_wait_target(const tide_request *request, const tide_op *op)
{
    const tide_comm *comm = request->comm;
    uint32_t ranks = comm->topology.nodes * comm->topology.local_size;
    uint32_t from = (uint32_t)tide_operand_rank(op->src);
    return (int64_t)request->base[op->channel * ranks + from] + op->count;
}
