/*
 * The bootstrap of ranks that something else has started: torchrun or mpirun.
 * Rank 0 listens on a port, the others connect, and an all-gather goes through
 * rank 0. It carries a few bytes, not data.
 */
#ifndef TIDE_TOOLS_STORE_H
#define TIDE_TOOLS_STORE_H

#include <stdbool.h>
#include <tide/comm.h>

/* What the environment says of this rank. */
typedef struct tdi_started {
    uint32_t rank;
    uint32_t ranks;
    uint32_t local_rank;
    uint32_t local_ranks;
    const char *host; /* of rank 0 */
    uint32_t port;    /* one above MASTER_PORT, which torchrun holds itself */
} tdi_started;

/*
 * Reads RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, or those of Open
 * MPI, and MASTER_ADDR and MASTER_PORT. Returns false where no one has started
 * ranks, or the variables make no sense.
 */
bool tdi_started_read(tdi_started *started);

typedef struct tdi_store tdi_store;

/* Collective. `boot` is valid until the store is closed. Errors:
 * TIDE_ERR_PEER (a rank did not come within timeout_ms), TIDE_ERR_SYSTEM,
 * TIDE_ERR_MEMORY. */
tide_status tdi_store_open(const tdi_started *started, uint32_t timeout_ms,
                           tdi_store **store, tide_bootstrap *boot);
void tdi_store_close(tdi_store *store); /* NULL is fine */

#endif
