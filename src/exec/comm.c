/* Communicators: ranks meet, agree on what they are, and open a backend. */
#include "exec/queue.h"

#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "exec/meet.h"
#include "exec/request.h"
#include "topo/topo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF(x)       #x
#define VERSION(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *tide_version(void)
{
    return VERSION(TIDE_VERSION_MAJOR, TIDE_VERSION_MINOR, TIDE_VERSION_PATCH);
}

tide_status tdi_comm_check(tide_comm *comm)
{
    if (!comm->failed) {
        tide_status status = tdi_watch_fault(comm);
        if (!status)
            status = comm->backend->check(comm);
        return status ? tdi_comm_failed(comm, status, comm->rank) : TIDE_OK;
    }
    return tdi_fail(TIDE_ERR_ABORTED, "the communicator was aborted: %s",
                    comm->failure);
}

tide_status tdi_status_for_peers(tide_status status)
{
    bool theirs = status == TIDE_ERR_PEER || status == TIDE_ERR_MISMATCH ||
                  status == TIDE_ERR_SYSTEM;
    return theirs ? status : TIDE_ERR_ABORTED;
}

tide_status tdi_comm_failed(tide_comm *comm, tide_status status,
                            uint32_t culprit)
{
    if (comm->failed)
        return status;
    comm->failed = status;
    snprintf(comm->failure, sizeof(comm->failure), "%s", tide_last_error());
    comm->backend->abort(comm, tdi_status_for_peers(status), culprit);
    return status;
}

void tdi_arena_drop(tide_comm *comm, tdi_range *range)
{
    tdi_range_drop(&comm->arena, range);
}

/* --- Creation ----------------------------------------------------------- */

static tide_status configure(tide_comm *comm, const tide_comm_config *config)
{
    tide_comm_config none = {0};
    config = config ? config : &none;
    comm->timeout_ms = config->timeout_ms
                           ? config->timeout_ms
                           : (uint32_t)tdi_env_number(TDI_ENV_TIMEOUT_MS);
    comm->arena_bytes = config->arena_bytes
                            ? config->arena_bytes
                            : (uint64_t)tdi_env_number(TDI_ENV_ARENA_MIB) << 20;
    if (comm->arena_bytes > (uint64_t)1 << 62)
        return tdi_fail(TIDE_ERR_INVALID, "an arena of %llu bytes",
                        (unsigned long long)comm->arena_bytes);
    for (int flow = 0; flow < TDI_FLOWS; flow++) {
        uint32_t ranks = comm->topology.nodes * comm->topology.local_size;
        comm->flows[flow].issued =
            calloc((size_t)TIDE_CH_COUNT * ranks, sizeof(uint64_t));
        if (!comm->flows[flow].issued)
            return tdi_fail(TIDE_ERR_MEMORY, "no memory for counters");
    }
    return TIDE_OK;
}

static void add_reason(char *reasons, size_t size, const char *name,
                       const char *reason)
{
    size_t used = strlen(reasons);
    snprintf(reasons + used, size - used, " %s: %s.", name, reason);
}

/* Takes the first backend that every rank can use. */
static tide_status choose_backend(tide_comm *comm, const char *wanted,
                                  const tide_bootstrap *bootstrap,
                                  const uint64_t *machines)
{
    char reasons[768] = "";
    for (size_t i = 0; tdi_backends[i]; i++) {
        const tdi_backend *backend = tdi_backends[i];
        /* Pointers to device memory are for who knows that they are. */
        if (wanted ? strcmp(wanted, backend->name) != 0
                   : backend->queue != NULL) {
            add_reason(reasons, sizeof(reasons), backend->name,
                       "not asked for");
            continue;
        }
        tide_status local = backend->probe(machines, bootstrap->ranks);
        tide_status status = tdi_meet_agree(bootstrap, local);
        if (!status) {
            comm->backend = backend;
            return TIDE_OK;
        }
        if (status != TIDE_ERR_UNSUPPORTED)
            return status;
        add_reason(reasons, sizeof(reasons), backend->name, tide_last_error());
    }
    return tdi_fail(TIDE_ERR_UNSUPPORTED,
                    "no backend can serve (asked for: "
                    "%s).%s",
                    wanted ? wanted : "any", reasons);
}

bool tdi_comm_staged(bool usual)
{
    int64_t asked = tdi_env_number(TDI_ENV_STAGED);
    return asked < 0 ? usual : asked;
}

static tide_status open_comm(tide_comm *comm, const tide_bootstrap *bootstrap,
                             const tide_comm_config *config,
                             const uint64_t *machines)
{
    TDI_TRY(tdi_meet_agree(bootstrap, configure(comm, config)));
    TDI_TRY(choose_backend(comm, config ? config->backend : NULL, bootstrap,
                           machines));
    comm->tables = &comm->arena;
    comm->staged = tdi_comm_staged(false);
    TDI_TRY(tdi_meet_agree(bootstrap,
                           comm->backend->open(comm, bootstrap, machines)));
    if (comm->backend->queue)
        TDI_TRY(tdi_meet_agree(bootstrap, tdi_watch_start(comm)));
    int64_t block = tdi_env_number(TDI_ENV_BLOCK_KIB);
    if (block)
        comm->block_bytes = (uint64_t)block << 10;
    int64_t unit = tdi_env_number(TDI_ENV_UNIT_KIB);
    if (unit)
        comm->unit_bytes = (uint64_t)unit << 10;
    return TIDE_OK;
}

tide_status tide_comm_create(const tide_bootstrap *bootstrap,
                             const tide_comm_config *config, tide_comm **comm)
{
    if (!comm)
        return tdi_fail(TIDE_ERR_INVALID, "comm is NULL");
    *comm = NULL;
    if (!bootstrap || !bootstrap->allgather || !bootstrap->ranks ||
        bootstrap->ranks > TIDE_MAX_RANKS ||
        bootstrap->rank >= bootstrap->ranks)
        return tdi_fail(TIDE_ERR_INVALID,
                        "bootstrap is NULL or incomplete, or rank %u of %u "
                        "ranks is none",
                        bootstrap ? bootstrap->rank : 0,
                        bootstrap ? bootstrap->ranks : 0);
    uint64_t *machines = malloc(bootstrap->ranks * sizeof(uint64_t));
    tide_comm *made = calloc(1, sizeof(*made));
    if (!machines || !made) {
        free(machines);
        free(made);
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a communicator");
    }
    made->rank = bootstrap->rank;
    made->one_machine = true;
    pthread_mutex_init(&made->memory_lock, NULL);
    tide_status status = tdi_meet(bootstrap, config, machines, &made->topology);
    for (uint32_t r = 1; !status && r < bootstrap->ranks; r++)
        made->one_machine &= machines[r] == machines[0];
    if (!status)
        status = open_comm(made, bootstrap, config, machines);
    free(machines);
    if (status) {
        tide_comm_destroy(made);
        return status;
    }
    *comm = made;
    return TIDE_OK;
}

void tide_comm_destroy(tide_comm *comm)
{
    if (!comm)
        return;
    if (comm->backend && comm->backend->queue)
        tdi_queue_forget(comm, NULL);
    tdi_watch_stop(comm);
    tdi_pool_forget(comm);
    while (comm->slots)
        tide_slot_free(comm->slots);
    while (comm->memories)
        tide_memory_give(comm, tdi_memory_first(comm));
    for (int i = 0; i < TDI_FLOWS; i++) {
        tdi_flow *flow = &comm->flows[i];
        if (flow->scratch)
            tdi_arena_drop(comm, flow->scratch);
        if (flow->copies)
            tdi_arena_drop(comm, flow->copies);
        free(flow->issued);
    }
    if (comm->backend)
        comm->backend->close(comm);
    tdi_arena_destroy(&comm->arena);
    pthread_mutex_destroy(&comm->memory_lock);
    if (!comm->is_stuck)
        free(comm);
}

void tide_comm_abort(tide_comm *comm)
{
    if (!comm)
        return;
    tdi_fail(TIDE_ERR_ABORTED, "rank %u called tide_comm_abort", comm->rank);
    comm->backend->abort(comm, TIDE_ERR_ABORTED, comm->rank);
}

/* Stands where a call has the key of its plan. */
static const uint64_t vote_key = 0x766f7465;

tide_status tide_comm_vote(tide_comm *comm, int mine, int *all)
{
    tdi_call call = {.key = vote_key,
                     .table = mine != 0,
                     .coll = TDI_CALL_VOTE,
                     .name = "all ranks"};
    bool yes = false;
    if (!comm || !all)
        return tdi_fail(TIDE_ERR_INVALID, "comm or all is NULL");
    TDI_TRY(tdi_comm_check(comm));
    if (!comm->one_machine)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "rank %u: ranks on several machines cannot vote",
                        comm->rank);
    for (tdi_flow_id flow = 0; flow < TDI_FLOWS; flow++)
        TDI_TRY(tdi_request_check_started(comm, flow, NULL));
    TDI_TRY(tdi_request_settle(comm));
    call.number = ++comm->calls;
    tide_status status = comm->backend->vote(comm, &call, &yes);
    if (status)
        return tdi_comm_failed(comm, status, comm->rank);
    *all = yes;
    return TIDE_OK;
}

tide_status tide_comm_get_info(const tide_comm *comm, tide_comm_info *info)
{
    if (!comm || !info)
        return tdi_fail(TIDE_ERR_INVALID, "comm or info is NULL");
    pthread_mutex_t *lock = (pthread_mutex_t *)&comm->memory_lock;
    pthread_mutex_lock(lock);
    uint64_t memory_bytes = comm->memory_bytes;
    pthread_mutex_unlock(lock);
    *info = (tide_comm_info){
        .rank = comm->rank,
        .topology = comm->topology,
        .backend = comm->backend->name,
        .reads_private = comm->reads_private,
        .queued = comm->backend->queue != NULL,
        .multicast = comm->multicast,
        .one_machine = comm->one_machine,
        .arena_bytes = comm->arena_bytes,
        .buffer_bytes = comm->flows[TDI_FLOW_GATHER].scratch_bytes +
                        comm->flows[TDI_FLOW_REDUCE].scratch_bytes,
        .slot_bytes = comm->slot_bytes,
        .memory_bytes = memory_bytes,
        .copied_bytes = comm->copied_bytes,
    };
    return TIDE_OK;
}
