/* Addresses in peers' segments, slots, and reads of private memory. */
#include "backend/host/host.h"
#include "base/fail.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>

/* --- Peers -------------------------------------------------------------- */

static tide_status peer_grad(tide_comm *comm, const tdi_call *call,
                             tide_operand at, int32_t rank,
                             tdi_address *address)
{
    char *segment = node_of(comm)->peers[rank].segment;
    const tdi_grad_entry *entry =
        (const tdi_grad_entry *)(segment + call->table) + at.index;
    address->is_private = entry->is_private;
    address->pointer = entry->is_private
                           ? (char *)(uintptr_t)entry->where + at.offset
                           : segment + entry->where + at.offset;
    return TIDE_OK;
}

tide_status tdi_host_peer(tide_comm *comm, const tdi_call *call,
                          tide_operand at, int32_t rank, tdi_address *address)
{
    node_peer *peer = &node_of(comm)->peers[rank];
    const node_control *control = node_control_of(comm, (uint32_t)rank);
    const tdi_call *theirs =
        &control->turn[call->coll][call->turn % NODE_TURNS];
    *address = (tdi_address){.rank = rank};
    if (theirs->number != call->number)
        return tdi_fail(TIDE_ERR_MISMATCH,
                        "rank %u: rank %d is not in call %llu (%s): a plan "
                        "touches its memory without having heard of it",
                        comm->rank, rank, (unsigned long long)call->number,
                        call->name);
    switch (tide_operand_buffer(at)) {
    case TIDE_BUF_STAGE:
        address->pointer = peer->segment + theirs->stage + at.offset;
        return TIDE_OK;
    case TIDE_BUF_RECV:
        address->pointer = peer->segment + theirs->recv + at.offset;
        return TIDE_OK;
    case TIDE_BUF_GRAD:
        return peer_grad(comm, theirs, at, rank, address);
    default:
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: a plan touches buffer %d of rank %d",
                        comm->rank, (int)tide_operand_buffer(at), rank);
    }
}

/* --- Private memory ----------------------------------------------------- */

/* errno is that of the read. */
static tide_status fail_read(tide_comm *comm, uint32_t rank, const void *from,
                             uint64_t bytes)
{
    int saved = errno;
    TDI_TRY(tdi_node_check_peer(comm, rank, saved == ESRCH));
    errno = saved;
    return tdi_fail_errno("rank %u: reading %llu bytes of rank %u's gradient "
                          "at %p",
                          comm->rank, (unsigned long long)bytes, rank, from);
}

tide_status tdi_host_read(tide_comm *comm, uint32_t rank, void *to,
                          const void *from, uint64_t bytes)
{
    pid_t pid = node_of(comm)->peers[rank].pid;
    for (uint64_t done = 0; done < bytes;) {
        struct iovec here = {(char *)to + done, bytes - done};
        struct iovec there = {(char *)(uintptr_t)from + done, bytes - done};
        ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_read(comm, rank, from, bytes);
        done += (uint64_t)got;
    }
    return TIDE_OK;
}

bool tdi_host_try_reads(tide_comm *comm)
{
    uint32_t size = comm->topology.local_size;
    uint32_t first = comm->rank - comm->rank % size;
    for (uint32_t r = first; r < first + size; r++) {
        uint64_t word = 0;
        const node_control *theirs = node_control_of(comm, r);
        struct iovec here = {&word, sizeof(word)};
        struct iovec there = {(void *)(uintptr_t)theirs->magic_address,
                              sizeof(word)};
        pid_t pid = node_of(comm)->peers[r].pid;
        if (r == comm->rank)
            continue;
        if (pid <= 0 ||
            process_vm_readv(pid, &here, 1, &there, 1, 0) != sizeof(word) ||
            word != theirs->magic)
            return false;
    }
    return true;
}

/* --- Arena and slots ---------------------------------------------------- */

char *tdi_host_arena(tide_comm *comm, uint64_t offset)
{
    return node_of(comm)->peers[comm->rank].segment + offset;
}

void *tdi_host_table(tide_comm *comm, uint64_t offset)
{
    return tdi_host_arena(comm, offset);
}

void tdi_host_discard(tide_comm *comm, uint64_t offset, uint64_t bytes)
{
    fallocate(node_of(comm)->memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              (off_t)offset, (off_t)bytes);
}

tide_status tdi_host_reserve(tide_comm *comm, uint64_t bytes, void **address)
{
    void *at = mmap(NULL, bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return tdi_fail_errno("rank %u: reserving %llu bytes of address space",
                              comm->rank, (unsigned long long)bytes);
    *address = at;
    return TIDE_OK;
}

void tdi_host_release(tide_comm *comm, void *address, uint64_t bytes)
{
    (void)comm;
    munmap(address, bytes);
}

tide_status tdi_host_map(tide_comm *comm, void *address, uint64_t offset,
                         uint64_t bytes)
{
    void *at = mmap(address, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_POPULATE,
                    node_of(comm)->memory, (off_t)offset);
    if (at == MAP_FAILED)
        return tdi_fail_errno("rank %u: mapping a slot of %llu bytes",
                              comm->rank, (unsigned long long)bytes);
    return TIDE_OK;
}

tide_status tdi_host_unmap(tide_comm *comm, void *address, uint64_t bytes)
{
    void *at =
        mmap(address, bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return tdi_fail_errno("rank %u: vacating a slot of %llu bytes",
                              comm->rank, (unsigned long long)bytes);
    return TIDE_OK;
}
