/* Where peers' memory is, and what the watch thread sees of the cells. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/fail.h"

char *tdi_cuda_arena(tide_comm *comm, uint64_t offset)
{
    return cuda_of(comm)->arena + offset;
}

void *tdi_cuda_table(tide_comm *comm, uint64_t offset)
{
    return node_of(comm)->peers[comm->rank].segment + offset;
}

char *tdi_cuda_multicast(tide_comm *comm, const char *local)
{
    const cuda_state *cuda = cuda_of(comm);
    return cuda->multicast ? cuda->multicast + (local - cuda->arena) : NULL;
}

/* Ranks that cannot look each other up rely on equal offsets, and so does the
 * switch when it adds: scratch comes from the top, by the calls alone. */
static tide_status check_scratch(const tide_comm *comm, const tdi_call *mine,
                                 uint32_t rank, const tdi_call *theirs)
{
    if (mine->stage == theirs->stage && mine->recv == theirs->recv)
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_MISMATCH,
                    "call %llu, %s: scratch lies at offset %llu on rank %u and "
                    "at %llu on rank %u: their calls have differed",
                    (unsigned long long)mine->number, mine->name,
                    (unsigned long long)(mine->stage | mine->recv), comm->rank,
                    (unsigned long long)(theirs->stage | theirs->recv), rank);
}

tide_status tdi_cuda_meet(tide_comm *comm, const tdi_call *call)
{
    const tdi_call *theirs;
    for (uint32_t r = 0; r < cuda_ranks(comm); r++)
        if (r != comm->rank && node_has(comm, r)) {
            TDI_TRY(tdi_node_await_call(comm, call, r, &theirs));
            TDI_TRY(check_scratch(comm, call, r, theirs));
        }
    return TIDE_OK;
}

static const tdi_call *call_of(const tide_comm *comm, const tdi_call *mine,
                               uint32_t rank)
{
    if (!node_has(comm, rank))
        return mine; /* scratch lies at equal offsets: tdi_arena_take_top */
    return &node_control_of(comm, rank)->call[mine->number % NODE_CALLS];
}

tide_status tdi_cuda_compare(tide_comm *comm, const tdi_call *call,
                             size_t count)
{
    const tdi_grad_entry *mine = tdi_cuda_table(comm, call->table);
    for (uint32_t r = 0; r < cuda_ranks(comm); r++) {
        if (r == comm->rank || !cuda_same_node(comm, r))
            continue;
        const tdi_grad_entry *theirs =
            (const tdi_grad_entry *)(node_of(comm)->peers[r].segment +
                                     call_of(comm, call, r)->table);
        for (size_t p = 0; p < count; p++)
            if (mine[p].where != theirs[p].where)
                return tdi_fail(
                    TIDE_ERR_MISMATCH,
                    "call %llu, all-gather of %s: push landing, and parameter "
                    "%zu lies at offset %llu on rank %u and at %llu on rank "
                    "%u: their allocations differ",
                    (unsigned long long)call->number, call->name, p,
                    (unsigned long long)mine[p].where, comm->rank,
                    (unsigned long long)theirs[p].where, r);
    }
    return TIDE_OK;
}

static tide_status find_grad(tide_comm *comm, const tdi_call *theirs,
                             uint32_t index, uint32_t rank, uint64_t *offset)
{
    const char *segment = node_of(comm)->peers[rank].segment;
    if (!segment || !theirs->table)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: a plan reads a gradient of rank %u, which is "
                        "on another machine",
                        comm->rank, rank);
    *offset = ((const tdi_grad_entry *)(segment + theirs->table))[index].where;
    return TIDE_OK;
}

tide_status tdi_cuda_peer(tide_comm *comm, const tdi_call *call,
                          tide_operand at, int32_t rank, tdi_address *address)
{
    const cuda_state *cuda = cuda_of(comm);
    const tdi_call *theirs = call_of(comm, call, (uint32_t)rank);
    uint64_t start = 0;
    switch (tide_operand_buffer(at)) {
    case TIDE_BUF_STAGE:
        start = theirs->stage;
        break;
    case TIDE_BUF_RECV:
        start = theirs->recv;
        break;
    case TIDE_BUF_GRAD:
        TDI_TRY(find_grad(comm, theirs, at.index, (uint32_t)rank, &start));
        break;
    default:
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: a plan touches buffer %d of rank %d",
                        comm->rank, (int)tide_operand_buffer(at), rank);
    }
    *address = (tdi_address){.rank = rank, .offset = start + at.offset};
    if (address->offset > comm->arena_bytes)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: offset %llu of rank %d lies outside its "
                        "arena of %llu bytes",
                        comm->rank, (unsigned long long)address->offset, rank,
                        (unsigned long long)comm->arena_bytes);
    if (cuda->base[rank])
        address->pointer =
            (char *)(uintptr_t)(cuda->base[rank] + address->offset);
    return TIDE_OK;
}

/* --- Cells -------------------------------------------------------------- */

tide_status tdi_cuda_map_cells(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    const tdi_node *node = node_of(comm);
    for (uint32_t r = 0; r < cuda_ranks(comm); r++) {
        if (cuda_over_rail(comm, r))
            continue;
        TDI_TRY(tdi_cuda_check(cuda->cuda,
                               cuda->cuda->host_register(
                                   node->peers[r].segment, node->control_bytes,
                                   CU_HOST_PORTABLE | CU_HOST_DEVICE_MAP),
                               comm->rank,
                               "cuMemHostRegister of a node segment"));
        cuda->is_mapped[r] = true;
    }
    return TIDE_OK;
}

void tdi_cuda_unmap_cells(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    for (uint32_t r = 0; r < cuda_ranks(comm); r++)
        if (cuda->is_mapped[r] && !comm->is_stuck)
            cuda->cuda->host_unregister(node_of(comm)->peers[r].segment);
}

/* The wait that covers this one was queued; has its stream passed it? */
static const cuda_rail_wait *
find_rail_wait(const cuda_rail *rail, const tdi_block *wait, int64_t target)
{
    const cuda_rail_wait *found = NULL;
    for (int i = 0; i < CUDA_RAIL_WAITS; i++) {
        const cuda_rail_wait *w = &rail->wait[i];
        if (w->passed && w->from == wait->from && w->channel == wait->channel &&
            w->target >= target && (!found || w->target < found->target))
            found = w;
    }
    return found;
}

static tide_status poll_rail(tide_comm *comm, const cuda_rail *rail,
                             const tdi_block *wait, int64_t target,
                             bool *reached)
{
    cuda_state *cuda = cuda_of(comm);
    pthread_mutex_lock(&cuda->rail_lock);
    const cuda_rail_wait *found = find_rail_wait(rail, wait, target);
    if (found)
        *reached = cuda->cuda->event_query(found->passed) == CU_OK;
    pthread_mutex_unlock(&cuda->rail_lock);
    return found ? TIDE_OK : TIDE_ERR_UNSUPPORTED;
}

tide_status tdi_cuda_poll(tide_comm *comm, tdi_flow_id flow,
                          const tdi_block *wait, int64_t target, bool *reached)
{
    cuda_flow *f = &cuda_of(comm)->flows[flow];
    bool is_data = wait->channel == TIDE_CH_RAIL;
    *reached = true;
    if (target <= 0)
        return TIDE_OK;
    if (cuda_over_rail(comm, wait->from))
        return poll_rail(comm, is_data ? &f->data : &f->control, wait, target,
                         reached);
    return tdi_node_poll(comm, flow, wait, target, reached);
}

void tdi_cuda_let_go(tide_comm *comm)
{
    tdi_node_flood(comm);
}
