/*
 * The launcher's bootstrap: an all-gather of a few bytes over memory that the
 * ranks inherit.
 */
#ifndef TIDE_EXEC_EXCHANGE_H
#define TIDE_EXEC_EXCHANGE_H

#include <stdbool.h>
#include <tide/comm.h>

typedef struct tdi_exchange tdi_exchange; /* shared by all ranks */

/* One rank's end of it. */
typedef struct tdi_exchange_end {
    tdi_exchange *exchange;
    uint32_t rank;
    uint32_t round;
    uint32_t timeout_ms;
    bool broken; /* once it has failed it stays so: rounds no longer match */
} tdi_exchange_end;

/* Maps the area before the fork; errors: TIDE_ERR_SYSTEM. */
tide_status tdi_exchange_create(uint32_t ranks, tdi_exchange **exchange);
void tdi_exchange_free(tdi_exchange *exchange); /* NULL is fine */

/* A rank has ended or given up: no one need wait for it any more. */
void tdi_exchange_end_rank(tdi_exchange *exchange, uint32_t rank);

/* tide_bootstrap.allgather; context is a tdi_exchange_end. */
int tdi_exchange_allgather(void *context, const void *send, void *recv,
                           size_t bytes);

#endif
