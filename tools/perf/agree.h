/* How the ranks of tide-perf meet: barriers, and verdicts they share. */
#ifndef TIDE_TOOLS_AGREE_H
#define TIDE_TOOLS_AGREE_H

#include <tide/comm.h>

/* The verdict of all ranks on a step; the message is the first failed rank's.
 */
typedef struct tdi_verdict {
    int32_t status; /* a tide_status */
    char why[156];
} tdi_verdict;

/* bootstrap->allgather with a message. Errors: TIDE_ERR_PEER. */
tide_status tdi_exchange_bytes(const tide_bootstrap *boot, const void *send,
                               void *recv, size_t bytes);
tide_status tdi_barrier(const tide_bootstrap *boot);
/* The same on one machine, and all ranks leave within a few microseconds:
 * waiters of a barrier wake up one after the other. */
tide_status tdi_line_up(const tide_bootstrap *boot);

/* Collective: `status` is how this rank fared, with tide_last_error; `verdict`
 * becomes the same on all ranks. Errors: TIDE_ERR_MEMORY, TIDE_ERR_PEER, or
 * instead of that one `status` if it is an error. */
tide_status tdi_agree(const tide_bootstrap *boot, tide_status status,
                      tdi_verdict *verdict);

#endif
