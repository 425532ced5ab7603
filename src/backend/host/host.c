/* The host backend's table, its probe, opening and closing. */
#include "backend/host/host.h"

#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "exec/meet.h"

#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 4096 };

static tide_status probe(const uint64_t *machine, uint32_t ranks)
{
    for (uint32_t r = 1; r < ranks; r++)
        if (machine[r] != machine[0])
            return tdi_fail(TIDE_ERR_UNSUPPORTED,
                            "ranks 0 and %u are on different machines (or in "
                            "different network namespaces), and rails between "
                            "machines are not built in yet",
                            r);
    return TIDE_OK;
}

/* A worker's sums of one block should stay in its core's cache from the sum to
 * the put and to level 2; docs/performance.md has the measurement. */
static const uint64_t block_bytes = 512 << 10;

/* Address space: memory is committed as it is used. */
static const uint64_t arena_bytes = (uint64_t)64 << 30;

/* Below this size a copy of a gradient is cheaper than the system calls that
 * read its pieces; docs/performance.md has the measurement. */
static const uint64_t private_min = 1 << 20;

/* Every rank must read its peers in the same way, so all must be able to. */
static tide_status agree_on_reads(tide_comm *comm,
                                  const tide_bootstrap *bootstrap)
{
    uint32_t ranks = bootstrap->ranks;
    uint8_t mine = tdi_env_number(TDI_ENV_READV) && tdi_host_try_reads(comm);
    uint8_t *all = malloc(ranks);
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to meet %u ranks", ranks);
    tide_status status = tdi_meet_exchange(bootstrap, &mine, all, 1);
    comm->reads_private = true;
    for (uint32_t r = 0; !status && r < ranks; r++)
        comm->reads_private &= all[r];
    free(all);
    comm->private_min = comm->reads_private ? private_min : UINT64_MAX;
    return status;
}

static tide_status open_host(tide_comm *comm, const tide_bootstrap *bootstrap,
                             const uint64_t *machines)
{
    host_state *host = calloc(1, sizeof(*host));
    if (!host)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the host backend");
    comm->state = host;
    comm->block_bytes = block_bytes;
    comm->unit_bytes = 1; /* sub-slice by sub-slice: calls cost nothing here */
    if (!comm->arena_bytes)
        comm->arena_bytes = arena_bytes;
    TDI_TRY(tdi_node_open(comm, bootstrap, machines, comm->arena_bytes));
    const tdi_node *node = node_of(comm);
    TDI_TRY(tdi_arena_init(&comm->arena, node->control_bytes,
                           node->segment_bytes, PAGE));
    TDI_TRY(agree_on_reads(comm, bootstrap));
    if (posix_memalign((void **)&host->bounce, 64,
                       (size_t)comm->topology.local_size * HOST_BOUNCE_BYTES))
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the host backend");
    return TIDE_OK;
}

static void close_host(tide_comm *comm)
{
    host_state *host = comm->state;
    tdi_node_close(comm);
    if (!host)
        return;
    free(host->bounce);
    free(host);
    comm->state = NULL;
}

const tdi_backend tdi_host_backend = {
    .name = "host",
    .probe = probe,
    .open = open_host,
    .close = close_host,
    .abort = tdi_node_abort,
    .check = tdi_node_check,
    .publish = tdi_node_publish,
    .vote = tdi_node_vote,
    .peer = tdi_host_peer,
    .copy = tdi_host_do_copy,
    .sum = tdi_host_do_sum,
    .signal = tdi_node_signal,
    .poll = tdi_node_poll,
    .watch = tdi_node_watch,
    .idle = tdi_node_idle,
    .arena = tdi_host_arena,
    .table = tdi_host_table,
    .discard = tdi_host_discard,
    .reserve = tdi_host_reserve,
    .release = tdi_host_release,
    .map = tdi_host_map,
    .unmap = tdi_host_unmap,
};
