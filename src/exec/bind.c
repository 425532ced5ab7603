/* From buffer ids to memory: mine here, a peer's through the backend. */
#include "base/fail.h"
#include "exec/comm.h"

tide_status tdi_bind_address(tide_request *request, tide_operand at,
                             int32_t rank, tdi_address *address)
{
    tide_comm *comm = request->comm;
    tide_buffer buffer = tide_operand_buffer(at);
    if (rank != (int32_t)comm->rank)
        return comm->backend->peer(comm, &request->call, at, rank, address);
    *address = (tdi_address){.rank = rank};
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
