/* NCCL's communicators, windows and collectives for the baselines. */
#include "perf/nccl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/load.h"
#include "base/fail.h"
#include "base/util.h"
#include "exec/meet.h"
#include "perf/agree.h"

typedef struct way {
    nccl_comm comm;
    nccl_window window;
    char why[156]; /* it cannot be used; empty: it can */
} way;

struct tdi_nccl {
    const tdi_nccl_api *api;
    const tide_bootstrap *boot;
    tdi_device *device;
    void *plain;    /* of the default way */
    void *windowed; /* of the others: one memory, a window on each comm */
    way ways[TDI_NCCL_WAYS];
};

static tide_status check(const tdi_nccl *n, nccl_result result,
                         const char *what, uint64_t bytes)
{
    if (result == NCCL_OK)
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_SYSTEM,
                    "rank %" PRIu32 ": %s of %" PRIu64 " bytes: %s",
                    n->boot->rank, what, bytes, n->api->error_text(result));
}

/* --- Opening -------------------------------------------------------------- */

/* Collective: a step is done, or the way is dropped on all ranks. */
static tide_status settle(tdi_nccl *n, tdi_nccl_way w, tide_status status)
{
    tdi_verdict verdict;
    TDI_TRY(tdi_agree(n->boot, status, &verdict));
    if (verdict.status)
        tdi_nccl_drop(n, w, verdict.why);
    return TIDE_OK;
}

/* What rank 0 tells the others. */
typedef struct invitation {
    nccl_id id;
    int32_t status;
} invitation;

static tide_status make_comm(tdi_nccl *n, tdi_nccl_way w)
{
    const tide_bootstrap *boot = n->boot;
    nccl_config config = NCCL_CONFIG_UNSET;
    invitation mine = {.status = NCCL_OK};
    invitation *all = calloc(boot->ranks, sizeof(*all));
    if (!all)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for NCCL's ids");
    if (!boot->rank)
        mine.status = n->api->unique_id(&mine.id);
    tide_status status = tdi_exchange_bytes(boot, &mine, all, sizeof(mine));
    mine = all[0];
    free(all);
    if (status)
        return status;
    TDI_TRY(check(n, mine.status, "ncclGetUniqueId", 0));
    if (w == TDI_NCCL_CE)
        config.cta_policy = NCCL_POLICY_ZERO;
    return check(n,
                 n->api->init_rank(&n->ways[w].comm, (int)boot->ranks, mine.id,
                                   (int)boot->rank, &config),
                 "ncclCommInitRankConfig", 0);
}

/* Where symmetric memory is not supported NCCL says yes and gives none. */
static tide_status make_window(tdi_nccl *n, tdi_nccl_way w, uint64_t bytes)
{
    way *use = &n->ways[w];
    TDI_TRY(check(n,
                  n->api->window_register(use->comm, n->windowed, bytes,
                                          &use->window, NCCL_SYMMETRIC),
                  "ncclCommWindowRegister", bytes));
    return use->window ? TIDE_OK
                       : tdi_fail(TIDE_ERR_UNSUPPORTED,
                                  "NCCL has no symmetric memory here");
}

static tide_status take_buffer(tdi_nccl *n, tdi_nccl_way w, uint64_t bytes)
{
    if (w == TDI_NCCL_DEFAULT)
        return n->device->kind->take(n->device, bytes, &n->plain);
    if (n->windowed)
        return TIDE_OK;
    return check(n, n->api->memory_alloc(&n->windowed, bytes), "ncclMemAlloc",
                 bytes);
}

static bool is_usable(const way *use)
{
    return !*use->why;
}

static tide_status open_way(tdi_nccl *n, tdi_nccl_way w, uint64_t bytes)
{
    const way *use = &n->ways[w];
    TDI_TRY(settle(n, w, take_buffer(n, w, bytes)));
    if (is_usable(use))
        TDI_TRY(settle(n, w, make_comm(n, w)));
    if (is_usable(use) && w != TDI_NCCL_DEFAULT)
        TDI_TRY(settle(n, w, make_window(n, w, bytes)));
    return TIDE_OK;
}

static tide_status create(tdi_device *device, const tide_bootstrap *boot,
                          tdi_nccl **nccl)
{
    tdi_nccl *n = *nccl = calloc(1, sizeof(*n));
    if (!n)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the baselines");
    n->boot = boot;
    n->device = device;
    return tdi_nccl_load(&n->api);
}

static tide_status open_ways(tdi_nccl *n, unsigned ways, uint64_t bytes)
{
    /* Windows begin and end at pages. */
    uint64_t room = tdi_round_up(tdi_max(bytes, 1), 4096);
    for (int w = 0; w < TDI_NCCL_WAYS; w++) {
        if (ways & 1u << w)
            TDI_TRY(open_way(n, (tdi_nccl_way)w, room));
        else
            snprintf(n->ways[w].why, sizeof(n->ways[w].why), "not asked for");
    }
    return TIDE_OK;
}

tide_status tdi_nccl_open(tdi_device *device, const tide_bootstrap *boot,
                          unsigned ways, uint64_t bytes, tdi_nccl **nccl)
{
    TDI_TRY(tdi_meet_agree(boot, create(device, boot, nccl)));
    return tdi_meet_agree(boot, open_ways(*nccl, ways, bytes));
}

void tdi_nccl_close(tdi_nccl *n)
{
    if (!n)
        return;
    for (int w = 0; w < TDI_NCCL_WAYS; w++) {
        way *use = &n->ways[w];
        if (use->window)
            n->api->window_deregister(use->comm, use->window);
        if (use->comm)
            n->api->destroy(use->comm);
    }
    if (n->windowed)
        n->api->memory_free(n->windowed);
    n->device->kind->give(n->device, n->plain);
    free(n);
}

/* --- Use ------------------------------------------------------------------ */

static tide_status check_way(const tdi_nccl *n, tdi_nccl_way w)
{
    return is_usable(&n->ways[w])
               ? TIDE_OK
               : tdi_fail(TIDE_ERR_UNSUPPORTED, "%s", n->ways[w].why);
}

tide_status tdi_nccl_buffer(const tdi_nccl *n, tdi_nccl_way w, void **buffer)
{
    TDI_TRY(check_way(n, w));
    *buffer = w == TDI_NCCL_DEFAULT ? n->plain : n->windowed;
    return TIDE_OK;
}

tide_status tdi_nccl_gather(tdi_nccl *n, tdi_nccl_way w, const void *from,
                            void *to, uint64_t bytes)
{
    TDI_TRY(check_way(n, w));
    return check(n,
                 n->api->all_gather(from, to, bytes, NCCL_INT8, n->ways[w].comm,
                                    n->device->stream),
                 "ncclAllGather", bytes);
}

tide_status tdi_nccl_reduce(tdi_nccl *n, tdi_nccl_way w, const void *from,
                            void *to, uint64_t elems)
{
    TDI_TRY(check_way(n, w));
    return check(n,
                 n->api->reduce_scatter(from, to, elems, NCCL_FLOAT32, NCCL_SUM,
                                        n->ways[w].comm, n->device->stream),
                 "ncclReduceScatter", elems * sizeof(float));
}

void tdi_nccl_drop(tdi_nccl *n, tdi_nccl_way w, const char *why)
{
    way *use = &n->ways[w];
    if (!is_usable(use))
        return;
    snprintf(use->why, sizeof(use->why), "%s", why);
    /* The window goes with the communicator. */
    if (use->comm)
        n->api->abort(use->comm);
    use->comm = NULL;
    use->window = NULL;
}

void tdi_nccl_abort(tdi_nccl *n)
{
    for (int w = 0; n && w < TDI_NCCL_WAYS; w++)
        tdi_nccl_drop(n, (tdi_nccl_way)w, "the run has failed");
}
