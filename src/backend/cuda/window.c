/*
 * Communicators and the arena. Every step that waits for all ranks inside NCCL
 * is bounded, and ranks agree between steps: a rank that failed must not leave
 * the others in the next one.
 */
#include "backend/cuda/cuda.h"
#include "backend/cuda/load.h"
#include "base/fail.h"
#include "base/util.h"
#include "exec/meet.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WINDOW_PAGE = 4096, ARENA_PAGE = 512 };

#define NCCL(comm, call, what)                                                 \
    TDI_TRY(tdi_nccl_check(cuda_of(comm)->nccl, call, (comm)->rank, what))

/* With one node NCCL does no more than open the window. */
static uint32_t count_comms(const tide_comm *comm)
{
    return comm->topology.nodes > 1 ? CUDA_COMMS : 1;
}

static cuda_rail *rail_of(tide_comm *comm, uint32_t i)
{
    cuda_flow *flow = &cuda_of(comm)->flows[i / 2];
    return i % 2 ? &flow->control : &flow->data;
}

/* --- Communicators ------------------------------------------------------ */

static tide_status share_ids(tide_comm *comm, const tide_bootstrap *bootstrap)
{
    nccl_id *ids = cuda_of(comm)->ids;
    size_t bytes = sizeof(cuda_of(comm)->ids);
    nccl_id *all = malloc(bootstrap->ranks * bytes);
    tide_status status = TIDE_OK;
    if (!all)
        status = tdi_fail(TIDE_ERR_MEMORY, "no memory to meet %u ranks",
                          bootstrap->ranks);
    for (uint32_t i = 0; !status && !comm->rank && i < count_comms(comm); i++)
        status = tdi_nccl_check(cuda_of(comm)->nccl,
                                cuda_of(comm)->nccl->unique_id(&ids[i]), 0,
                                "ncclGetUniqueId");
    status = tdi_meet_agree(bootstrap, status);
    if (!status)
        status = tdi_meet_exchange(bootstrap, ids, all, bytes);
    if (!status)
        memcpy(ids, all, bytes);
    free(all);
    return status;
}

static tide_status init_comms(tide_comm *comm, void *context)
{
    const nccl_id *ids = cuda_of(comm)->ids;
    (void)context;
    for (uint32_t i = 0; i < count_comms(comm); i++) {
        nccl_config config = NCCL_CONFIG_UNSET;
        NCCL(comm,
             cuda_of(comm)->nccl->init_rank(&rail_of(comm, i)->comm,
                                            (int)cuda_ranks(comm), ids[i],
                                            (int)comm->rank, &config),
             "ncclCommInitRankConfig");
    }
    return TIDE_OK;
}

static tide_status check_properties(tide_comm *comm)
{
    const tdi_nccl_api *nccl = cuda_of(comm)->nccl;
    nccl_properties properties = {.size = sizeof(properties),
                                  .magic = (unsigned)NCCL_API_MAGIC_WORD};
    int version = 0;
    nccl->version(&version);
    properties.version = (unsigned)version;
    NCCL(comm, nccl->properties(rail_of(comm, 0)->comm, &properties),
         "ncclCommQueryProperties");
    if (!properties.device_api)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "rank %u: NCCL has no symmetric memory here; ranks of "
                        "a node must reach each other by NVLink or share a GPU",
                        comm->rank);
    if (comm->topology.nodes > 1 && !properties.host_rma)
        return tdi_fail(
            TIDE_ERR_UNSUPPORTED,
            "rank %u: NCCL cannot put between these nodes "
            "(hostRmaSupport is 0); it needs a network with GPUDirect "
            "RDMA, see NCCL_DEBUG=INFO",
            comm->rank);
    comm->multicast = properties.multimem;
    return TIDE_OK;
}

/* --- The arena ---------------------------------------------------------- */

static tide_status take_memory(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    void *memory = NULL;
    uint64_t wanted =
        comm->arena_bytes ? comm->arena_bytes : (uint64_t)2048 << 20;
    /* Offset 0 means nothing: the first page stays free. */
    comm->arena_bytes = WINDOW_PAGE + tdi_round_up(wanted, WINDOW_PAGE);
    if (cuda->nccl->memory_alloc(&memory, comm->arena_bytes) || !memory)
        return tdi_fail(TIDE_ERR_MEMORY,
                        "rank %u: no device memory for an arena of %llu bytes; "
                        "lower TIDE_ARENA_MIB",
                        comm->rank, (unsigned long long)comm->arena_bytes);
    cuda->arena = memory;
    return tdi_arena_init(&comm->arena, WINDOW_PAGE, comm->arena_bytes,
                          ARENA_PAGE);
}

/* With every communicator: those for control put nothing into it, but without
 * a window NCCL 2.32 has no signals either. */
static tide_status register_window(tide_comm *comm, void *context)
{
    (void)context;
    for (uint32_t i = 0; i < count_comms(comm); i++) {
        cuda_rail *rail = rail_of(comm, i);
        NCCL(comm,
             cuda_of(comm)->nccl->window_register(
                 rail->comm, cuda_of(comm)->arena, comm->arena_bytes,
                 &rail->window, NCCL_SYMMETRIC),
             "ncclCommWindowRegister");
        if (!rail->window)
            return tdi_fail(TIDE_ERR_UNSUPPORTED,
                            "rank %u: NCCL registered the arena and gave no "
                            "window: no symmetric memory here",
                            comm->rank);
    }
    return TIDE_OK;
}

/* --- Peers -------------------------------------------------------------- */

static tide_status find_peers(tide_comm *comm)
{
    cuda_state *cuda = cuda_of(comm);
    nccl_window window = rail_of(comm, 0)->window;
    nccl_team lsa = cuda->nccl->team_lsa(rail_of(comm, 0)->comm);
    int first = (int)comm->rank - lsa.rank; /* its ranks are neighbours */
    for (uint32_t r = 0; r < cuda_ranks(comm); r++) {
        int place = (int)r - first;
        void *at = NULL;
        if (r == comm->rank)
            at = cuda->arena;
        else if (place >= 0 && place < lsa.ranks)
            NCCL(comm, cuda->nccl->lsa_pointer(window, 0, place, &at),
                 "ncclGetLsaDevicePointer");
        cuda->base[r] = (cu_pointer)(uintptr_t)at;
        if (!at && cuda_same_node(comm, r))
            return tdi_fail(TIDE_ERR_UNSUPPORTED,
                            "rank %u: rank %u of its node is not within reach "
                            "(NCCL's LSA team has %d ranks from rank %d on); "
                            "lower TIDE_LOCAL_SIZE",
                            comm->rank, r, lsa.ranks, first);
        if (cuda_same_node(comm, r) && !node_has(comm, r))
            return tdi_fail(TIDE_ERR_UNSUPPORTED,
                            "rank %u: rank %u of its node is on another "
                            "machine; lower TIDE_LOCAL_SIZE to the ranks of a "
                            "machine",
                            comm->rank, r);
    }
    return TIDE_OK;
}

/* Is it true on every rank? */
static tide_status agree_on(const tide_bootstrap *bootstrap, bool *yes)
{
    uint8_t mine = *yes;
    uint8_t *all = malloc(bootstrap->ranks);
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to meet %u ranks",
                        bootstrap->ranks);
    tide_status status = tdi_meet_exchange(bootstrap, &mine, all, 1);
    for (uint32_t r = 0; !status && r < bootstrap->ranks; r++)
        *yes = *yes && all[r];
    free(all);
    return status;
}

/* NCCL binds the multicast object at the first call, all ranks together. */
static tide_status find_multicast(tide_comm *comm, void *context)
{
    cuda_state *cuda = cuda_of(comm);
    void *at = NULL;
    (void)context;
    if (!cuda->nccl->multimem_pointer(rail_of(comm, 0)->window, 0, &at))
        cuda->multicast = at;
    return TIDE_OK;
}

/* Multicast reaches the whole LSA team, so that must be the node; and only if
 * every rank has it: else all pull. */
static tide_status agree_on_multicast(tide_comm *comm,
                                      const tide_bootstrap *bootstrap)
{
    cuda_state *cuda = cuda_of(comm);
    nccl_team lsa = cuda->nccl->team_lsa(rail_of(comm, 0)->comm);
    comm->multicast &= lsa.ranks == (int)comm->topology.local_size;
    TDI_TRY(agree_on(bootstrap, &comm->multicast));
    if (!comm->multicast)
        return TIDE_OK;
    TDI_TRY(tdi_meet_agree(bootstrap,
                           tdi_cuda_bounded(comm, find_multicast, NULL,
                                            "binding multicast memory")));
    comm->multicast = cuda->multicast != NULL;
    TDI_TRY(agree_on(bootstrap, &comm->multicast));
    if (!comm->multicast)
        cuda->multicast = NULL;
    return TIDE_OK;
}

/* --- Rails -------------------------------------------------------------- */

/* One signal to and from every peer of my rail, over both communicators of
 * both flows: what NCCL sets up at first use, and whether it works at all, is
 * known before the first call. */
static tide_status try_rail(tide_comm *comm, cuda_rail *rail, cu_stream stream)
{
    const tdi_nccl_api *nccl = cuda_of(comm)->nccl;
    uint32_t size = comm->topology.local_size;
    for (uint32_t m = 1; m < comm->topology.nodes; m++) {
        uint32_t peer = (comm->rank + m * size) % cuda_ranks(comm);
        NCCL(comm, nccl->signal((int)peer, 0, 0, 0, rail->comm, stream),
             "ncclSignal");
    }
    for (uint32_t m = 1; m < comm->topology.nodes; m++) {
        uint32_t peer = (comm->rank + m * size) % cuda_ranks(comm);
        nccl_wait wait = {.count = 1, .peer = (int)peer};
        NCCL(comm, nccl->wait_signal(1, &wait, rail->comm, stream),
             "ncclWaitSignal");
    }
    return TIDE_OK;
}

static tide_status try_rails(tide_comm *comm, void *context)
{
    cuda_state *cuda = cuda_of(comm);
    cu_stream stream;
    (void)context;
    TDI_TRY(tdi_cuda_stream(comm, TDI_FLOW_GATHER, 0, &stream));
    for (uint32_t i = 0; i < count_comms(comm); i++)
        TDI_TRY(try_rail(comm, rail_of(comm, i), stream));
    return tdi_cuda_check(cuda->cuda, cuda->cuda->stream_sync(stream),
                          comm->rank, "trying the rails");
}

/* --- First use ---------------------------------------------------------- */

enum { TRIED_BYTES = 256 };

/* What the driver sets up at first use can wait for the whole context, and so
 * for streams that wait for peers: every kind of work runs once on every
 * stream before there are any. */
static tide_status try_queue(tide_comm *comm, tdi_flow_id flow, uint8_t queue)
{
    char *page = cuda_of(comm)->arena; /* the first one is no one's */
    tdi_address from = {.pointer = page, .rank = (int32_t)comm->rank};
    tdi_address to = {.pointer = page + TRIED_BYTES,
                      .rank = (int32_t)comm->rank};
    tdi_move move = {.dst = to,
                     .src = from,
                     .width = TRIED_BYTES,
                     .height = 1,
                     .dst_pitch = TRIED_BYTES,
                     .src_pitch = TRIED_BYTES};
    tdi_sum sum = {.dst = to,
                   .src = &from,
                   .sources = 1,
                   .elems = TRIED_BYTES / sizeof(float),
                   .scale = 1};
    tdi_block none = {.from = comm->rank, .channel = TIDE_CH_FREE};
    cu_stream stream;
    TDI_TRY(tdi_cuda_zero(comm, flow, queue, page, WINDOW_PAGE));
    TDI_TRY(tdi_cuda_copy(comm, flow, queue, &move));
    TDI_TRY(tdi_cuda_sum_op(comm, flow, queue, &sum));
    TDI_TRY(tdi_cuda_signal(comm, flow, queue, comm->rank, TIDE_CH_FREE));
    TDI_TRY(tdi_cuda_wait(comm, flow, queue, NULL, &none, 1));
    TDI_TRY(tdi_cuda_note(comm, flow, queue, 0));
    TDI_TRY(tdi_cuda_stream(comm, flow, queue, &stream));
    return tdi_cuda_check(cuda_of(comm)->cuda,
                          cuda_of(comm)->cuda->stream_sync(stream), comm->rank,
                          "trying a stream");
}

/* Copies alone run there. */
static tide_status try_beside(tide_comm *comm, cuda_flow *flow)
{
    const cuda_state *cuda = cuda_of(comm);
    cu_pointer page = (cu_pointer)(uintptr_t)cuda->arena;
    tdi_cuda_strided copy = {.dst = page + TRIED_BYTES,
                             .src = page,
                             .width = TRIED_BYTES,
                             .height = 1};
    TDI_TRY(tdi_cuda_order(comm, &flow->fork, flow->stream[0], flow->beside));
    TDI_TRY(tdi_cuda_strided_queue(cuda->kernels, &copy, 1, 0, flow->beside));
    TDI_TRY(tdi_cuda_order(comm, &flow->join, flow->beside, flow->stream[0]));
    return tdi_cuda_check(cuda->cuda, cuda->cuda->stream_sync(flow->beside),
                          comm->rank, "trying a stream");
}

/* The graphs of a lane that sums, which may share its stream with another. */
static tide_status make_chain(tide_comm *comm, tide_lane lane)
{
    const cuda_state *cuda = cuda_of(comm);
    uint8_t queue = tdi_cuda_queue_of(comm, TDI_FLOW_REDUCE, lane);
    cuda_flow *flow = &cuda_of(comm)->flows[TDI_FLOW_REDUCE];
    if (!cuda->sum_graphs || flow->chain[queue])
        return TIDE_OK;
    return tdi_cuda_chain_create(cuda->kernels, flow->stream[queue],
                                 &flow->chain[queue]);
}

static tide_status try_queues(tide_comm *comm, void *context)
{
    (void)context;
    TDI_TRY(make_chain(comm, TIDE_LANE_SUM));
    TDI_TRY(make_chain(comm, TIDE_LANE_LAND));
    for (tdi_flow_id id = 0; id < TDI_FLOWS; id++) {
        cuda_flow *flow = &cuda_of(comm)->flows[id];
        for (uint8_t queue = 0; queue < CUDA_QUEUES; queue++)
            if (flow->stream[queue])
                TDI_TRY(try_queue(comm, id, queue));
        if (flow->beside)
            TDI_TRY(try_beside(comm, flow));
    }
    return TIDE_OK;
}

/* --- All of it ---------------------------------------------------------- */

tide_status tdi_cuda_open_window(tide_comm *comm,
                                 const tide_bootstrap *bootstrap)
{
    TDI_TRY(share_ids(comm, bootstrap));
    TDI_TRY(tdi_meet_agree(
        bootstrap,
        tdi_cuda_bounded(comm, init_comms, NULL, "making NCCL communicators")));
    TDI_TRY(tdi_meet_agree(bootstrap, tdi_cuda_enter(comm)));
    tide_status status = tdi_meet_agree(bootstrap, check_properties(comm));
    if (!status)
        status = tdi_meet_agree(bootstrap, take_memory(comm));
    if (!status)
        status = tdi_meet_agree(
            bootstrap, tdi_cuda_bounded(comm, register_window, NULL,
                                        "registering the arena with NCCL"));
    if (!status)
        status = tdi_meet_agree(bootstrap, find_peers(comm));
    if (!status)
        status = tdi_meet_agree(bootstrap, agree_on_multicast(comm, bootstrap));
    if (!status)
        status = tdi_meet_agree(bootstrap, tdi_cuda_map_cells(comm));
    if (!status)
        status =
            tdi_meet_agree(bootstrap, tdi_cuda_bounded(comm, try_queues, NULL,
                                                       "trying the streams"));
    if (!status && comm->topology.nodes > 1)
        status =
            tdi_meet_agree(bootstrap, tdi_cuda_bounded(comm, try_rails, NULL,
                                                       "trying NCCL's rails"));
    tdi_cuda_leave(comm);
    return status;
}

/* --- The end ------------------------------------------------------------ */

enum { CLOSE_PATIENCE_MS = 5000 };

static bool is_idle(const cuda_state *cuda, cu_stream stream)
{
    return !stream || cuda->cuda->stream_query(stream) != CU_ERROR_NOT_READY;
}

/* Are my streams through? After a fault some may never be. */
static bool is_quiet(const cuda_state *cuda)
{
    for (int f = 0; f < TDI_FLOWS; f++) {
        const cuda_flow *flow = &cuda->flows[f];
        if (!is_idle(cuda, flow->beside))
            return false;
        for (int q = 0; q < CUDA_QUEUES; q++)
            if (!is_idle(cuda, flow->stream[q]))
                return false;
    }
    return true;
}

static bool await_quiet(tide_comm *comm)
{
    uint64_t until = tdi_now_ms() + CLOSE_PATIENCE_MS;
    while (!is_quiet(cuda_of(comm))) {
        if (tdi_now_ms() > until)
            return false;
        if (comm->failed)
            tdi_cuda_let_go(comm);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return true;
}

static tide_status free_nccl(tide_comm *comm, void *context)
{
    cuda_state *cuda = cuda_of(comm);
    (void)context;
    for (uint32_t i = 0; i < count_comms(comm); i++) {
        cuda_rail *rail = rail_of(comm, i);
        if (rail->window)
            cuda->nccl->window_deregister(rail->comm, rail->window);
    }
    if (cuda->arena)
        cuda->nccl->memory_free(cuda->arena);
    for (uint32_t i = 0; i < count_comms(comm); i++) {
        cuda_rail *rail = rail_of(comm, i);
        if (rail->comm && comm->failed)
            cuda->nccl->abort(rail->comm);
        else if (rail->comm)
            cuda->nccl->destroy(rail->comm);
    }
    return TIDE_OK;
}

/* Peers map my memory themselves and wait for no one either; what hangs all
 * the same is left behind. */
void tdi_cuda_close_window(tide_comm *comm)
{
    if (comm->is_stuck)
        return;
    if (!await_quiet(comm)) {
        comm->is_stuck = true;
        return;
    }
    tdi_cuda_free_streams(comm);
    uint32_t patience = comm->timeout_ms;
    comm->timeout_ms = (uint32_t)tdi_min(patience, CLOSE_PATIENCE_MS);
    tdi_cuda_bounded(comm, free_nccl, NULL, "leaving NCCL");
    comm->timeout_ms = patience;
}
