/*
 * Control blocks: signals are atomic counters in the destination's segment;
 * a doorbell beside them is a futex. Whoever has nothing to do sleeps on its
 * own doorbell and looks up now and then for peers that died.
 */
#include "backend/host/host.h"
#include "base/fail.h"
#include "base/util.h"
#include "plan/names.h"

#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_UP_MS = 20 }; /* how often a sleeper checks its peers */

static long futex(_Atomic uint32_t *word, int op, uint32_t value,
                  const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

void tdi_host_ring(tide_comm *comm, uint32_t rank)
{
    host_control *control = host_control_of(comm, rank);
    atomic_fetch_add(&control->doorbell, 1);
    if (atomic_load(&control->sleeping))
        futex(&control->doorbell, FUTEX_WAKE, 1, NULL);
}

static _Atomic uint64_t *counter(const tide_comm *comm, uint32_t at,
                                 tdi_flow_id flow, uint32_t channel,
                                 uint32_t source)
{
    size_t row = (size_t)flow * TIDE_CH_COUNT + channel;
    return &host_control_of(comm, at)
                ->signals[row * host_of(comm)->ranks + source];
}

void tdi_host_signal(tide_comm *comm, tdi_flow_id flow, uint32_t to,
                     tide_channel channel)
{
    atomic_fetch_add(counter(comm, to, flow, channel, comm->rank), 1);
    tdi_host_ring(comm, to);
}

/* --- Calls -------------------------------------------------------------- */

void tdi_host_publish(tide_comm *comm, const tdi_call *call)
{
    host_control *control = host_control_of(comm, comm->rank);
    control->call[call->number % HOST_CALLS] = *call;
    control->turn[call->coll][call->turn % HOST_TURNS] = *call;
    atomic_store(&control->calls, call->number);
}

/* Has the peer started that call, and is its record still there? */
static bool has_record(const host_control *control, uint64_t number)
{
    uint64_t calls = atomic_load(&control->calls);
    return calls >= number && calls - number < HOST_CALLS - 1;
}

/* Is the peer in the same call as I am, as far as it has got? */
static tide_status check_call(tide_comm *comm, const tdi_call *mine,
                              uint32_t from)
{
    const host_control *control = host_control_of(comm, from);
    const tdi_call *theirs = &control->call[mine->number % HOST_CALLS];
    /* Afterwards again: it may have been overwritten while I read. */
    if (!has_record(control, mine->number) || theirs->key == mine->key ||
        !has_record(control, mine->number))
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_MISMATCH,
                    "call %llu: rank %u started %s of %s (key %016llx), rank "
                    "%u %s of %.51s (key %016llx): groups, options or order "
                    "differ",
                    (unsigned long long)mine->number, comm->rank,
                    tdi_coll_name(mine->coll), mine->name,
                    (unsigned long long)mine->key, from,
                    tdi_coll_name(theirs->coll), theirs->name,
                    (unsigned long long)theirs->key);
}

tide_status tdi_host_poll(tide_comm *comm, tdi_flow_id flow,
                          const tdi_block *wait, int64_t target, bool *reached)
{
    *reached = true;
    if (target > 0) {
        uint64_t now = atomic_load_explicit(
            counter(comm, comm->rank, flow, wait->channel, wait->from),
            memory_order_acquire);
        *reached = now >= (uint64_t)target;
    }
    if (*reached && wait->call)
        return check_call(comm, wait->call, wait->from);
    return TIDE_OK;
}

/* --- Faults ------------------------------------------------------------- */

void tdi_host_abort(tide_comm *comm, tide_status status, uint32_t culprit)
{
    uint64_t word = (uint64_t)(uint32_t)status << 32 | culprit;
    for (uint32_t r = 0; r < host_of(comm)->ranks; r++) {
        uint64_t none = 0;
        if (!host_of(comm)->peers[r].segment)
            continue;
        /* The first reason stays, and it is the same on every rank. */
        if (!atomic_compare_exchange_strong(&host_control_of(comm, r)->abort,
                                            &none, word))
            word = none;
        tdi_host_ring(comm, r);
    }
}

/* Someone gave up: its reason is mine. */
tide_status tdi_host_check(tide_comm *comm)
{
    uint64_t word = atomic_load(&host_control_of(comm, comm->rank)->abort);
    tide_status status = (tide_status)(int32_t)(word >> 32);
    uint32_t culprit = (uint32_t)word;
    if (!word)
        return TIDE_OK;
    return tdi_fail(status, "rank %u: rank %u %s", comm->rank, culprit,
                    status == TIDE_ERR_ABORTED ? "aborted the communicator"
                    : status == TIDE_ERR_PEER
                        ? "is dead, or did not arrive before the deadline"
                        : "met an error; its own message has the cause");
}

/* The peer's process has ended without saying so. The socket tells it, unless
 * a child of the peer's still holds the other end; the pidfd does not mind. */
static bool is_dead(const tide_comm *comm, uint32_t rank)
{
    const host_peer *peer = &host_of(comm)->peers[rank];
    struct pollfd pollers[] = {{.fd = peer->socket},
                               {.fd = peer->process, .events = POLLIN}};
    if (poll(pollers, TDI_COUNT(pollers), 0) <= 0)
        return false;
    return ((pollers[0].revents & (POLLHUP | POLLERR)) ||
            (pollers[1].revents & POLLIN)) &&
           atomic_load(&host_control_of(comm, rank)->state) != HOST_LEFT;
}

/* Reports what a peer did, and what of mine waits for it (may be NULL). A peer
 * that gave up for a reason, and then ended, left the reason here before. */
static tide_status peer_fault(tide_comm *comm, uint32_t rank, const char *what,
                              const tdi_block *block)
{
    char mine[160] = "";
    TDI_TRY(tdi_host_check(comm));
    uint64_t calls = atomic_load(&host_control_of(comm, rank)->calls);
    if (block && block->call)
        snprintf(mine, sizeof(mine),
                 "; call %llu, %s of %s, waits for '%s' from rank %u",
                 (unsigned long long)block->call->number,
                 tdi_coll_name(block->call->coll), block->call->name,
                 tdi_channel_name(block->channel), block->from);
    tide_status status =
        tdi_fail(TIDE_ERR_PEER,
                 "rank %u: rank %u %s (it has started %llu "
                 "calls)%s",
                 comm->rank, rank, what, (unsigned long long)calls, mine);
    tdi_host_abort(comm, TIDE_ERR_PEER, rank);
    return status;
}

tide_status tdi_host_check_peer(tide_comm *comm, uint32_t rank, bool gone)
{
    TDI_TRY(tdi_host_check(comm));
    if (gone || is_dead(comm, rank))
        return peer_fault(comm, rank, "is dead", NULL);
    return TIDE_OK;
}

static tide_status check_peers(tide_comm *comm, const tdi_block *blocks,
                               size_t count)
{
    const host_control *mine = host_control_of(comm, comm->rank);
    for (uint32_t r = 0; r < host_of(comm)->ranks; r++)
        if (is_dead(comm, r))
            return peer_fault(comm, r, "is dead", count ? blocks : NULL);
    for (size_t i = 0; i < count; i++) {
        uint32_t from = blocks[i].from;
        if (blocks[i].call)
            TDI_TRY(check_call(comm, blocks[i].call, from));
        if (atomic_load(&host_control_of(comm, from)->state) != HOST_LEFT)
            continue;
        /* Its last signals may have come since I looked. */
        if (atomic_load(&mine->doorbell) == host_of(comm)->rung)
            return peer_fault(comm, from, "has left the communicator",
                              &blocks[i]);
    }
    return TIDE_OK;
}

/*
 * Who keeps me waiting? The rank I wait for may wait itself; the one at the
 * end of the chain is not in tide at all, or stands still there. Of several,
 * the one that has started the fewest calls.
 */
static uint32_t find_late(tide_comm *comm, uint32_t from, uint64_t waited_ms)
{
    uint64_t fewest = UINT64_MAX;
    uint64_t now = tdi_now_ms();
    for (uint32_t r = 0; r < host_of(comm)->ranks; r++) {
        const host_control *control = host_control_of(comm, r);
        uint64_t calls = atomic_load(&control->calls);
        if (r == comm->rank || calls >= fewest ||
            atomic_load(&control->seen_ms) + waited_ms / 2 > now)
            continue;
        fewest = calls;
        from = r;
    }
    return from;
}

static tide_status deadline_fault(tide_comm *comm, const tdi_block *blocks,
                                  size_t count, uint64_t waited_ms)
{
    if (!count)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: nothing has moved for %llu ms, and no lane "
                        "waits for a peer",
                        comm->rank, (unsigned long long)waited_ms);
    TDI_TRY(check_peers(comm, blocks, count));
    return peer_fault(comm, find_late(comm, blocks[0].from, waited_ms),
                      "did not arrive before the deadline", &blocks[0]);
}

/* --- Sleeping ----------------------------------------------------------- */

static void sleep_on_doorbell(host_control *control, uint32_t rung)
{
    struct timespec slice = {0, LOOK_UP_MS * 1000000};
    atomic_store(&control->sleeping, 1);
    if (atomic_load(&control->doorbell) == rung)
        futex(&control->doorbell, FUTEX_WAIT, rung, &slice);
    atomic_store(&control->sleeping, 0);
}

/* Rung since the lanes were last looked at? Then they are worth a look. */
static bool was_rung(tide_comm *comm)
{
    host_state *host = host_of(comm);
    uint32_t rung = atomic_load(&host_control_of(comm, comm->rank)->doorbell);
    if (rung == host->rung)
        return false;
    host->rung = rung;
    host->polls = 0;
    return true;
}

static tide_status look_up(tide_comm *comm, const tdi_block *blocks,
                           size_t count, uint64_t waited_ms)
{
    atomic_store(&host_control_of(comm, comm->rank)->seen_ms, tdi_now_ms());
    if (waited_ms >= comm->timeout_ms)
        return deadline_fault(comm, blocks, count, waited_ms);
    if (waited_ms >= LOOK_UP_MS)
        return check_peers(comm, blocks, count);
    return TIDE_OK;
}

tide_status tdi_host_watch(tide_comm *comm, const tdi_block *blocks,
                           size_t count, uint64_t waited_ms)
{
    return was_rung(comm) ? TIDE_OK : look_up(comm, blocks, count, waited_ms);
}

tide_status tdi_host_idle(tide_comm *comm, const tdi_block *blocks,
                          size_t count, uint64_t waited_ms)
{
    host_state *host = host_of(comm);
    if (was_rung(comm))
        return TIDE_OK;
    bool spins = host->polls < host->spin;
    host->polls += spins;
    if (spins && waited_ms < LOOK_UP_MS)
        return TIDE_OK;
    TDI_TRY(look_up(comm, blocks, count, waited_ms));
    if (!spins)
        sleep_on_doorbell(host_control_of(comm, comm->rank), host->rung);
    return TIDE_OK;
}
