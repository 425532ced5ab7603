/* Barriers and shared verdicts over the ranks' bootstrap. */
#include "perf/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/fail.h"

#define WAKE_US 200 /* by then all waiters are awake */

tide_status tdi_exchange_bytes(const tide_bootstrap *boot, const void *send,
                               void *recv, size_t bytes)
{
    if (boot->allgather(boot->context, send, recv, bytes))
        return tdi_fail(TIDE_ERR_PEER, "rank %" PRIu32 ": a rank did not come",
                        boot->rank);
    return TIDE_OK;
}

tide_status tdi_barrier(const tide_bootstrap *boot)
{
    return tdi_exchange_bytes(boot, NULL, NULL, 0);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* They share a clock: the latest proposal is when all of them go. */
tide_status tdi_line_up(const tide_bootstrap *boot)
{
    double start = now_us() + WAKE_US;
    double *all = calloc(boot->ranks, sizeof(*all));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %" PRIu32 " times",
                        boot->ranks);
    tide_status status = tdi_exchange_bytes(boot, &start, all, sizeof(start));
    for (uint32_t rank = 0; !status && rank < boot->ranks; rank++)
        start = all[rank] > start ? all[rank] : start;
    free(all);
    while (!status && now_us() < start)
        continue;
    return status;
}

/* Who waited in vain knows less than who could not go on. */
static int weigh(const tdi_verdict *verdict)
{
    return verdict->status == TIDE_OK         ? 0
           : verdict->status == TIDE_ERR_PEER ? 1
                                              : 2;
}

tide_status tdi_agree(const tide_bootstrap *boot, tide_status status,
                      tdi_verdict *verdict)
{
    tdi_verdict mine = {.status = status};
    tdi_verdict *all = calloc(boot->ranks, sizeof(*all));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %" PRIu32 " verdicts",
                        boot->ranks);
    if (status)
        snprintf(mine.why, sizeof(mine.why), "%s", tide_last_error());
    tide_status met = tdi_exchange_bytes(boot, &mine, all, sizeof(mine));
    *verdict = all[0];
    for (uint32_t rank = 1; rank < boot->ranks; rank++)
        if (weigh(&all[rank]) > weigh(verdict))
            *verdict = all[rank];
    free(all);
    if (met && status) /* my own fault is the better reason */
        return tdi_fail(status, "%s", mine.why);
    return met;
}
