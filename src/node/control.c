/*
 * Control blocks: signals are atomic counters in the destination's segment;
 * a doorbell beside them is a futex. Whoever has nothing to do sleeps on its
 * own doorbell and looks up now and then for peers that died.
 */
#include "node/node.h"

#include "base/fail.h"
#include "base/util.h"
#include "plan/names.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
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

void tdi_node_ring(tide_comm *comm, uint32_t rank)
{
    node_control *control = node_control_of(comm, rank);
    atomic_fetch_add(&control->doorbell, 1);
    if (atomic_load(&control->sleeping))
        futex(&control->doorbell, FUTEX_WAKE, 1, NULL);
}

_Atomic uint64_t *tdi_node_cell(const tide_comm *comm, uint32_t at,
                                tdi_flow_id flow, uint32_t channel,
                                uint32_t source)
{
    size_t row = (size_t)flow * TIDE_CH_COUNT + channel;
    return &node_control_of(comm, at)
                ->signals[row * node_of(comm)->ranks + source];
}

void tdi_node_signal(tide_comm *comm, tdi_flow_id flow, uint32_t to,
                     tide_channel channel)
{
    atomic_fetch_add(tdi_node_cell(comm, to, flow, channel, comm->rank), 1);
    tdi_node_ring(comm, to);
}

/* Half way to where a device's comparison of counters wraps. */
static const uint64_t lots = (uint64_t)1 << 62;

void tdi_node_flood(tide_comm *comm)
{
    for (int flow = 0; flow < TDI_FLOWS; flow++)
        for (uint32_t c = 0; c < TIDE_CH_COUNT; c++)
            for (uint32_t r = 0; r < node_of(comm)->ranks; r++)
                atomic_store(tdi_node_cell(comm, comm->rank, flow, c, r), lots);
}

/* --- Calls -------------------------------------------------------------- */

void tdi_node_publish(tide_comm *comm, const tdi_call *call)
{
    node_control *control = node_control_of(comm, comm->rank);
    control->call[call->number % NODE_CALLS] = *call;
    if (call->coll < TDI_FLOWS)
        control->turn[call->coll][call->turn % NODE_TURNS] = *call;
    atomic_store(&control->calls, call->number);
}

static const char *name_kind(const tdi_call *call)
{
    return call->coll == TDI_CALL_VOTE ? "a vote" : tdi_coll_name(call->coll);
}

/* Has the peer started that call, and is its record still there? */
static bool has_record(const node_control *control, uint64_t number)
{
    uint64_t calls = atomic_load(&control->calls);
    return calls >= number && calls - number < NODE_CALLS - 1;
}

/* Is the peer in the same call as I am, as far as it has got? */
static tide_status check_call(tide_comm *comm, const tdi_call *mine,
                              uint32_t from)
{
    const node_control *control = node_control_of(comm, from);
    const tdi_call *theirs = &control->call[mine->number % NODE_CALLS];
    /* Afterwards again: it may have been overwritten while I read. */
    if (!has_record(control, mine->number) || theirs->key == mine->key ||
        !has_record(control, mine->number))
        return TIDE_OK;
    return tdi_fail(TIDE_ERR_MISMATCH,
                    "call %llu: rank %u started %s of %s (key %016llx), rank "
                    "%u %s of %.51s (key %016llx): groups, options or order "
                    "differ",
                    (unsigned long long)mine->number, comm->rank,
                    name_kind(mine), mine->name, (unsigned long long)mine->key,
                    from, name_kind(theirs), theirs->name,
                    (unsigned long long)theirs->key);
}

tide_status tdi_node_poll(tide_comm *comm, tdi_flow_id flow,
                          const tdi_block *wait, int64_t target, bool *reached)
{
    *reached = true;
    if (target > 0) {
        uint64_t now = atomic_load_explicit(
            tdi_node_cell(comm, comm->rank, flow, wait->channel, wait->from),
            memory_order_acquire);
        *reached = now >= (uint64_t)target;
    }
    if (*reached && wait->call)
        return check_call(comm, wait->call, wait->from);
    return TIDE_OK;
}

/* --- Faults ------------------------------------------------------------- */

/* The word of an abort: what happened, whom it is laid to, and who says so. */
enum { RANK_BITS = 24, RANK_MASK = (1 << RANK_BITS) - 1 };
_Static_assert(TIDE_MAX_RANKS <= RANK_MASK, "two ranks and a status fit");

static uint64_t pack_abort(tide_status status, uint32_t culprit,
                           uint32_t reporter)
{
    return (uint64_t)-status << 2 * RANK_BITS |
           (uint64_t)reporter << RANK_BITS | culprit;
}

void tdi_node_abort(tide_comm *comm, tide_status status, uint32_t culprit)
{
    uint64_t word = pack_abort(status, culprit, comm->rank);
    for (uint32_t r = 0; r < node_of(comm)->ranks; r++) {
        uint64_t none = 0;
        if (!node_of(comm)->peers[r].segment)
            continue;
        /* The first reason stays, and it is the same on every rank. */
        if (!atomic_compare_exchange_strong(&node_control_of(comm, r)->abort,
                                            &none, word))
            word = none;
        tdi_node_ring(comm, r);
    }
}

/* Someone gave up: its reason is mine. */
tide_status tdi_node_check(tide_comm *comm)
{
    uint64_t word = atomic_load(&node_control_of(comm, comm->rank)->abort);
    int code = (int)(word >> 2 * RANK_BITS);
    tide_status status = (tide_status)(-code);
    uint32_t reporter = word >> RANK_BITS & RANK_MASK;
    uint32_t culprit = word & RANK_MASK;
    if (!word)
        return TIDE_OK;
    if (status != TIDE_ERR_PEER)
        return tdi_fail(status, "rank %u: rank %u %s", comm->rank, culprit,
                        status == TIDE_ERR_ABORTED
                            ? "aborted the communicator"
                            : "met an error; its own message has the cause");
    if (culprit == comm->rank)
        return tdi_fail(status,
                        "rank %u: rank %u has waited for this rank in vain, "
                        "and gave up",
                        comm->rank, reporter);
    return tdi_fail(status,
                    "rank %u: rank %u is dead, or did not arrive before the "
                    "deadline; so says rank %u",
                    comm->rank, culprit, reporter);
}

/* The peer's process has ended without saying so. The socket tells it, unless
 * a child of the peer's still holds the other end; the pidfd does not mind. */
static bool is_dead(const tide_comm *comm, uint32_t rank)
{
    const node_peer *peer = &node_of(comm)->peers[rank];
    struct pollfd pollers[] = {{.fd = peer->socket},
                               {.fd = peer->process, .events = POLLIN}};
    if (poll(pollers, TDI_COUNT(pollers), 0) <= 0)
        return false;
    return ((pollers[0].revents & (POLLHUP | POLLERR)) ||
            (pollers[1].revents & POLLIN)) &&
           atomic_load(&node_control_of(comm, rank)->state) != NODE_LEFT;
}

/* Reports what a peer did, and what of mine waits for it (may be NULL). A peer
 * that gave up for a reason, and then ended, left the reason here before. */
static tide_status peer_fault(tide_comm *comm, uint32_t rank, const char *what,
                              const tdi_block *block)
{
    char mine[160] = "";
    TDI_TRY(tdi_node_check(comm));
    uint64_t calls = node_has(comm, rank)
                         ? atomic_load(&node_control_of(comm, rank)->calls)
                         : 0;
    if (block && block->call)
        snprintf(mine, sizeof(mine),
                 "; call %llu, %s of %s, waits for '%s' from rank %u",
                 (unsigned long long)block->call->number,
                 name_kind(block->call), block->call->name,
                 block->channel == TIDE_CH_COUNT
                     ? "the same call"
                     : tdi_channel_name(block->channel),
                 block->from);
    tide_status status =
        tdi_fail(TIDE_ERR_PEER,
                 "rank %u: rank %u %s (it has started %llu "
                 "calls)%s",
                 comm->rank, rank, what, (unsigned long long)calls, mine);
    tdi_node_abort(comm, TIDE_ERR_PEER, rank);
    return status;
}

tide_status tdi_node_check_peer(tide_comm *comm, uint32_t rank, bool gone)
{
    TDI_TRY(tdi_node_check(comm));
    if (gone || is_dead(comm, rank))
        return peer_fault(comm, rank, "is dead", NULL);
    return TIDE_OK;
}

/* A rank that waits for a peer's call: it may have come before it left. */
static bool has_come(const tide_comm *comm, const tdi_block *block)
{
    return block->channel == TIDE_CH_COUNT &&
           atomic_load(&node_control_of(comm, block->from)->calls) >=
               block->call->number;
}

static tide_status check_peers(tide_comm *comm, const tdi_block *blocks,
                               size_t count)
{
    const node_control *mine = node_control_of(comm, comm->rank);
    for (uint32_t r = 0; r < node_of(comm)->ranks; r++)
        if (node_has(comm, r) && is_dead(comm, r))
            return peer_fault(comm, r, "is dead", count ? blocks : NULL);
    for (size_t i = 0; i < count; i++) {
        uint32_t from = blocks[i].from;
        if (!node_has(comm, from))
            continue;
        if (blocks[i].call)
            TDI_TRY(check_call(comm, blocks[i].call, from));
        if (atomic_load(&node_control_of(comm, from)->state) != NODE_LEFT ||
            has_come(comm, &blocks[i]))
            continue;
        /* Its last signals may have come since I looked. */
        if (blocks[i].channel == TIDE_CH_COUNT ||
            atomic_load(&mine->doorbell) == node_of(comm)->rung)
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
    for (uint32_t r = 0; r < node_of(comm)->ranks; r++) {
        const node_control *control = node_control_of(comm, r);
        if (!control)
            continue;
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

static void sleep_on_doorbell(node_control *control, uint32_t rung)
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
    tdi_node *node = node_of(comm);
    uint32_t rung = atomic_load(&node_control_of(comm, comm->rank)->doorbell);
    if (rung == node->rung)
        return false;
    node->rung = rung;
    node->polls = 0;
    return true;
}

static tide_status look_up(tide_comm *comm, const tdi_block *blocks,
                           size_t count, uint64_t waited_ms)
{
    atomic_store(&node_control_of(comm, comm->rank)->seen_ms, tdi_now_ms());
    if (waited_ms >= comm->timeout_ms)
        return deadline_fault(comm, blocks, count, waited_ms);
    if (waited_ms >= LOOK_UP_MS)
        return check_peers(comm, blocks, count);
    return TIDE_OK;
}

tide_status tdi_node_watch(tide_comm *comm, const tdi_block *blocks,
                           size_t count, uint64_t waited_ms)
{
    return was_rung(comm) ? TIDE_OK : look_up(comm, blocks, count, waited_ms);
}

tide_status tdi_node_idle(tide_comm *comm, const tdi_block *blocks,
                          size_t count, uint64_t waited_ms)
{
    tdi_node *node = node_of(comm);
    if (was_rung(comm))
        return TIDE_OK;
    bool spins = node->polls < node->spin;
    node->polls += spins;
    if (spins && waited_ms < LOOK_UP_MS)
        return TIDE_OK;
    TDI_TRY(look_up(comm, blocks, count, waited_ms));
    if (!spins)
        sleep_on_doorbell(node_control_of(comm, comm->rank), node->rung);
    return TIDE_OK;
}

/* --- Meeting in a call -------------------------------------------------- */

enum { SPINS = 2000, LONGEST_NAP_NS = 200000 };

/* Short naps at first: the peer is most likely about to come. */
static void nap(uint32_t tries)
{
    uint64_t ns = tries < SPINS ? 0 : 1000 * (uint64_t)(tries - SPINS);
    struct timespec time = {0, (long)tdi_min(ns, LONGEST_NAP_NS)};
    if (tries < SPINS)
        sched_yield();
    else
        nanosleep(&time, NULL);
}

tide_status tdi_node_await_call(tide_comm *comm, const tdi_call *mine,
                                uint32_t rank, const tdi_call **theirs)
{
    const node_control *control = node_control_of(comm, rank);
    tdi_block block = {rank, TIDE_CH_COUNT, mine};
    uint64_t since = 0, looked = 0;
    for (uint32_t tries = 0; atomic_load(&control->calls) < mine->number;
         tries++) {
        if (tries % SPINS == SPINS - 1 || tries > SPINS) {
            uint64_t now = tdi_now_ms();
            since = since ? since : now;
            if (now - looked >= LOOK_UP_MS) {
                looked = now;
                TDI_TRY(tdi_node_check(comm));
                TDI_TRY(look_up(comm, &block, 1, now - since));
            }
        }
        nap(tries);
    }
    *theirs = &control->call[mine->number % NODE_CALLS];
    return check_call(comm, mine, rank);
}

tide_status tdi_node_vote(tide_comm *comm, const tdi_call *call, bool *all)
{
    const tdi_call *theirs;
    *all = call->table;
    tdi_node_publish(comm, call);
    for (uint32_t r = 0; r < node_of(comm)->ranks; r++) {
        if (r == comm->rank)
            continue;
        TDI_TRY(tdi_node_await_call(comm, call, r, &theirs));
        *all = *all && theirs->table;
    }
    return TIDE_OK;
}
