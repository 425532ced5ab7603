/* NCCL's symmetric memory: windows, teams, the addresses of peers. */
#include "nccl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 4096 };

nccl_result ncclMemAlloc(void **memory, size_t bytes)
{
    cu_device device;
    *memory = NULL;
    if (cuCtxGetDevice(&device))
        return set_error(FAKE_NCCL_CUDA, "ncclMemAlloc without a context");
    if (fake_fault("mem_alloc_fails", device))
        return set_error(FAKE_NCCL_CUDA, "out of memory");
    *memory = (void *)(uintptr_t)fake_alloc(device, bytes, ALIGNMENT);
    return *memory ? NCCL_OK : set_error(FAKE_NCCL_CUDA, "out of memory");
}

nccl_result ncclMemFree(void *memory)
{
    if (memory)
        fake_free((uint64_t)(uintptr_t)memory, "ncclMemFree");
    return NCCL_OK;
}

nccl_result ncclCommQueryProperties(nccl_comm comm, nccl_properties *properties)
{
    int version;
    nccl_result result = check_comm(comm, "ncclCommQueryProperties");
    if (result)
        return result;
    ncclGetVersion(&version);
    if (properties->magic != 0xcafebeef ||
        properties->version > (unsigned)version)
        return set_error(FAKE_NCCL_USAGE,
                         "ncclCommProperties_t was not initialised");
    properties->rank = comm->rank;
    properties->ranks = comm->ranks;
    properties->cuda_device = comm->device;
    properties->nvml_device = comm->device;
    properties->device_api = !fake_fault("no_symmetric", comm->rank);
    properties->multimem =
        comm->has_multicast && !fake_fault("no_multicast", comm->rank);
    properties->gin_type = 0;
    properties->lsa_teams = comm->ranks / comm->lsa_size;
    properties->host_rma = comm->has_rma;
    return NCCL_OK;
}

nccl_team ncclTeamLsa(nccl_comm comm)
{
    if (check_comm(comm, "ncclTeamLsa"))
        return (nccl_team){0};
    return (nccl_team){comm->lsa_size, comm->rank % comm->lsa_size, 1};
}

/* --- Registration --------------------------------------------------------- */

typedef struct registration {
    nccl_comm comm;
    void *memory;
    size_t bytes;
    int flags;
    nccl_window *window;
} registration;

/* What NCCL calls undefined or finds out late is a failure here. */
static void check_double(const registration *call)
{
    uint64_t start = (uint64_t)(uintptr_t)call->memory;
    for (nccl_window w = call->comm->windows; w; w = w->next)
        if (w->state == ALIVE && start < w->user + w->bytes &&
            w->user < start + call->bytes)
            fake_fail("rank %d registers memory twice in one communicator",
                      call->comm->rank);
}

static void bring_deposit(const registration *call, deposit *mine)
{
    uint64_t start = (uint64_t)(uintptr_t)call->memory;
    *mine = (deposit){.bytes = call->bytes, .flags = call->flags};
    mine->block = fake_block_of(start, call->bytes, &mine->offset);
    if (!mine->block)
        fake_fail("rank %d registers %zu bytes at %p: no allocation has them",
                  call->comm->rank, call->bytes, call->memory);
    mine->pid = (int)getpid();
    mine->file = fake_block_file(mine->block, &mine->file_bytes);
    if (!(call->flags & NCCL_SYMMETRIC))
        fake_fail("rank %d registers a window that is not symmetric",
                  call->comm->rank);
    if (mine->offset % ALIGNMENT)
        mine->result = FAKE_NCCL_ARGUMENT;
    if (fake_fault("register_refused", call->comm->rank))
        mine->result = FAKE_NCCL_CUDA;
}

static void check_sizes(nccl_comm comm, const nccl_window window)
{
    for (int r = 0; r < comm->ranks; r++)
        if (window->deposits[r].bytes != window->bytes)
            fake_fail("rank %d registers %llu bytes and rank %d %llu",
                      comm->rank, (unsigned long long)window->bytes, r,
                      (unsigned long long)window->deposits[r].bytes);
}

static void map_peers(nccl_comm comm, nccl_window window)
{
    int first = comm->rank - comm->rank % comm->lsa_size;
    for (int l = 0; l < comm->lsa_size; l++) {
        deposit *theirs = &window->deposits[first + l];
        window->peers[l] = fake_map(comm->device, &theirs->block,
                                    &theirs->offset, 1, window->bytes);
    }
}

/* Takes a reference of every rank's memory: a peer that is gone has it still
 * mapped here. */
static void take_deposits(nccl_comm comm, nccl_window window)
{
    for (int r = 0; r < comm->ranks; r++) {
        deposit *theirs = &comm->all->members[r].deposit;
        window->deposits[r] = *theirs;
        window->deposits[r].block =
            fake_has_processes() && r != comm->rank
                ? fake_block_open(theirs->pid, theirs->file, theirs->file_bytes)
                : fake_block_hold(theirs->block);
    }
}

static nccl_result register_now(void *context)
{
    registration *call = context;
    nccl_comm comm = call->comm;
    member *members = comm->all->members;
    nccl_result result;
    if (fake_fault("register_hangs", comm->rank))
        while (!comm->all->host.broken)
            fake_sleep_us(1000);
    if (fake_fault("register_late", comm->rank))
        fake_sleep_us((uint64_t)fake_setting("FAKE_LATE_MS", 1500) * 1000);
    bring_deposit(call, &members[comm->rank].deposit);
    if (members[comm->rank].deposit.result) {
        /* The others go on waiting for this rank, as in NCCL. */
        fake_block_drop(members[comm->rank].deposit.block);
        return set_error(members[comm->rank].deposit.result,
                         "rank %d: the window is refused", comm->rank);
    }
    result = meet(comm, &comm->all->host);
    if (result)
        return result;
    nccl_window made = calloc(1, sizeof(*made));
    made->state = ALIVE;
    made->comm = comm;
    made->user = (uint64_t)(uintptr_t)call->memory;
    made->bytes = call->bytes;
    take_deposits(comm, made);
    check_sizes(comm, made);
    map_peers(comm, made);
    result = meet(comm, &comm->all->host);
    fake_block_drop(members[comm->rank].deposit.block);
    made->next = comm->windows;
    comm->windows = made;
    *call->window = made;
    return result;
}

nccl_result ncclCommWindowRegister(nccl_comm comm, void *memory, size_t bytes,
                                   nccl_window *window, int flags)
{
    registration call = {comm, memory, bytes, flags, window};
    nccl_result result = check_comm(comm, "ncclCommWindowRegister");
    *window = NULL;
    if (result)
        return result;
    if (!memory || !bytes)
        return set_error(FAKE_NCCL_ARGUMENT, "no memory to register");
    if (in_group())
        fake_fail("ncclCommWindowRegister in a group: not in the fake");
    if (fake_fault("null_window", comm->rank) ||
        fake_fault("no_symmetric", comm->rank))
        return NCCL_OK;
    check_double(&call);
    return run_call(comm, register_now, &call, sizeof(call));
}

static void drop_window(nccl_window window)
{
    nccl_comm comm = window->comm;
    for (int l = 0; l < comm->lsa_size; l++)
        fake_unmap(window->peers[l]);
    if (window->multicast)
        fake_unmap(window->multicast);
    for (int r = 0; r < comm->ranks; r++)
        fake_block_drop(window->deposits[r].block);
    window->state = GONE;
}

static void check_window(nccl_window window, const char *call)
{
    if (!window || window->state != ALIVE)
        fake_fail("%s of %p, which is %s", call, (void *)window,
                  window && window->state == GONE ? "a window that is gone"
                                                  : "no window");
}

nccl_result ncclCommWindowDeregister(nccl_comm comm, nccl_window window)
{
    if (!comm || comm->state != ALIVE)
        check_comm(comm, "ncclCommWindowDeregister");
    if (!window)
        return NCCL_OK;
    check_window(window, "ncclCommWindowDeregister");
    if (window->comm != comm)
        fake_fail("ncclCommWindowDeregister: another communicator's window");
    drop_window(window);
    return NCCL_OK;
}

void drop_windows(nccl_comm comm)
{
    for (nccl_window w = comm->windows; w; w = w->next)
        if (w->state == ALIVE)
            drop_window(w);
}

/* --- Addresses ------------------------------------------------------------ */

nccl_result ncclGetLsaDevicePointer(nccl_window window, size_t offset,
                                    int lsa_rank, void **pointer)
{
    check_window(window, "ncclGetLsaDevicePointer");
    if (lsa_rank < 0 || lsa_rank >= window->comm->lsa_size)
        return set_error(FAKE_NCCL_ARGUMENT, "LSA rank %d of %d", lsa_rank,
                         window->comm->lsa_size);
    if (offset >= window->bytes)
        return set_error(FAKE_NCCL_ARGUMENT, "offset %zu of %llu", offset,
                         (unsigned long long)window->bytes);
    *pointer = (void *)(uintptr_t)(window->peers[lsa_rank] + offset);
    return NCCL_OK;
}

static void map_multicast(nccl_window window)
{
    nccl_comm comm = window->comm;
    int first = comm->rank - comm->rank % comm->lsa_size;
    fake_block *blocks[FAKE_TEAM];
    uint64_t offsets[FAKE_TEAM];
    for (int l = 0; l < comm->lsa_size; l++) {
        blocks[l] = window->deposits[first + l].block;
        offsets[l] = window->deposits[first + l].offset;
    }
    window->multicast = fake_map(comm->device, blocks, offsets,
                                 (uint32_t)comm->lsa_size, window->bytes);
}

/* The first call of a communicator makes the team's multicast object, and so
 * waits for all of the team. */
nccl_result ncclGetLsaMultimemDevicePointer(nccl_window window, size_t offset,
                                            void **pointer)
{
    check_window(window, "ncclGetLsaMultimemDevicePointer");
    nccl_comm comm = window->comm;
    int first = comm->rank - comm->rank % comm->lsa_size;
    *pointer = NULL;
    if (!comm->has_multicast || fake_fault("no_multicast", comm->rank))
        return NCCL_OK; /* and the others wait for this rank */
    if (!window->multicast) {
        nccl_result result = meet(comm, &comm->all->team[first]);
        if (result)
            return result;
        if (fake_fault("multicast_null", comm->rank))
            return NCCL_OK;
        if (fake_fault("multicast_fails", comm->rank))
            return set_error(FAKE_NCCL_CUDA,
                             "Cuda failure 802 'system not yet initialized'");
        map_multicast(window);
    }
    *pointer = (void *)(uintptr_t)(window->multicast + offset);
    return NCCL_OK;
}
