/*
 * The host backend: ranks are processes of one machine, and all that peers
 * touch lies in their node segments: the arena is what follows the control
 * block.
 */
#ifndef TIDE_BACKEND_HOST_HOST_H
#define TIDE_BACKEND_HOST_HOST_H

#include "node/node.h"

typedef struct host_state {
    char *bounce; /* where pieces of peers' private memory are read to */
} host_state;

enum { HOST_BOUNCE_BYTES = 128 << 10 }; /* for each source of a sum */

static inline host_state *host_of(const tide_comm *comm)
{
    return comm->state;
}

/* memory.c: addresses, slots, peers' private memory. */
tide_status tdi_host_peer(tide_comm *comm, const tdi_call *call,
                          tide_operand at, int32_t rank, tdi_address *address);
char *tdi_host_arena(tide_comm *comm, uint64_t offset);
void *tdi_host_table(tide_comm *comm, uint64_t offset);
void tdi_host_discard(tide_comm *comm, uint64_t offset, uint64_t bytes);
tide_status tdi_host_reserve(tide_comm *comm, uint64_t bytes, void **address);
void tdi_host_release(tide_comm *comm, void *address, uint64_t bytes);
tide_status tdi_host_map(tide_comm *comm, void *address, uint64_t offset,
                         uint64_t bytes);
tide_status tdi_host_unmap(tide_comm *comm, void *address, uint64_t bytes);
/* Reads rank's private memory; TIDE_ERR_PEER if it is gone. */
tide_status tdi_host_read(tide_comm *comm, uint32_t rank, void *to,
                          const void *from, uint64_t bytes);
/* Can this rank read its local peers' private memory? */
bool tdi_host_try_reads(tide_comm *comm);

/* ops.c */
tide_status tdi_host_do_copy(tide_comm *comm, const tdi_move *move);
tide_status tdi_host_do_sum(tide_comm *comm, const tdi_sum *sum);

#endif
