/*
 * NCCL's collectives, which the baselines use: communicators and buffers that
 * are made once a run. A way that does not work, or does not come back, is
 * dropped on all ranks, with a reason, and the others go on.
 */
#ifndef TIDE_TOOLS_NCCL_H
#define TIDE_TOOLS_NCCL_H

#include "perf/device.h"

typedef enum tdi_nccl_way {
    TDI_NCCL_DEFAULT, /* ordinary device memory */
    TDI_NCCL_CE,      /* registered windows, no CTAs: copy engines */
    TDI_NCCL_SYM,     /* registered windows, NCCL's own choice of kernels */
    TDI_NCCL_WAYS
} tdi_nccl_way;

typedef struct tdi_nccl tdi_nccl;

/*
 * Collective: makes what the ways in the bit mask `ways` need, with buffers of
 * `bytes`. A way that cannot be had is no error: calls on it say why. Errors,
 * on which the ranks agree: TIDE_ERR_UNSUPPORTED (no NCCL), TIDE_ERR_PEER,
 * TIDE_ERR_MEMORY.
 */
tide_status tdi_nccl_open(tdi_device *device, const tide_bootstrap *boot,
                          unsigned ways, uint64_t bytes, tdi_nccl **nccl);
void tdi_nccl_close(tdi_nccl *nccl); /* NULL is fine */

/* The way's buffer. TIDE_ERR_UNSUPPORTED, with the reason, if the way cannot
 * be had or was dropped. */
tide_status tdi_nccl_buffer(const tdi_nccl *nccl, tdi_nccl_way way,
                            void **buffer);
/* Queue a collective on the device's stream: `bytes` of each rank to all, and
 * fp32 sums of which each rank receives `elems`. Errors as above. */
tide_status tdi_nccl_gather(tdi_nccl *nccl, tdi_nccl_way way, const void *from,
                            void *to, uint64_t bytes);
tide_status tdi_nccl_reduce(tdi_nccl *nccl, tdi_nccl_way way, const void *from,
                            void *to, uint64_t elems);
/* On every rank: the way is not to be used any more; its work is given up. */
void tdi_nccl_drop(tdi_nccl *nccl, tdi_nccl_way way, const char *why);
/* Drops all of them, after an error of the run. NULL is fine. */
void tdi_nccl_abort(tdi_nccl *nccl);

#endif
