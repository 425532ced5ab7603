/*
 * NCCL's one-sided calls. Signals are counters, one per source rank and
 * communicator; a wait asks for so many more than the waits before it did. The
 * first of these calls on a communicator meets all ranks.
 */
#include "nccl.h"

#include <stdio.h>
#include <string.h>

typedef struct put_work {
    comm_work work;
    uint64_t from;
    uint64_t bytes; /* 0: a signal only */
    int peer;
    nccl_window window;
    uint64_t offset;
    bool lost;   /* never arrives */
    bool silent; /* its signal never arrives */
} put_work;

typedef struct wait_work {
    comm_work work;
    int count;
    struct {
        int peer;
        uint64_t value;
    } waits[FAKE_TEAM];
} wait_work;

static bool same_team(nccl_comm comm, int peer)
{
    return peer / comm->lsa_size == comm->rank / comm->lsa_size;
}

/* For a put that never ends, and for signals that never come. */
static bool is_released(nccl_comm comm)
{
    return comm->aborted && fake_setting("FAKE_ABORT_RELEASES", 0);
}

static void never_end(nccl_comm comm)
{
    member *me = &comm->all->members[comm->rank];
    uint64_t since = 0;
    pthread_mutex_lock(&me->lock);
    while (!is_released(comm))
        fake_wait(&me->changed, &me->lock, &since, "a put that never arrives",
                  comm->device);
    pthread_mutex_unlock(&me->lock);
}

static void move_data(put_work *put)
{
    nccl_comm comm = put->work.comm;
    if (put->window->state != ALIVE)
        fake_fail("rank %d: a put runs whose window is gone", comm->rank);
    fake_view from = fake_pin(comm->device, put->from, put->bytes, FAKE_READ,
                              "the source of a put");
    fake_view to = {.members = 1};
    deposit *theirs = &put->window->deposits[put->peer];
    to.at[0] = fake_block_at(theirs->block, theirs->offset + put->offset);
    fake_move(&to, put->bytes, &from, put->bytes, put->bytes, 1,
              put->work.work.random);
    fake_unpin(&from);
    fake_dawdle(put->work.work.random);
}

static void run_put(comm_work *work)
{
    put_work *put = (put_work *)work;
    nccl_comm comm = work->comm;
    member *peer = &comm->all->members[put->peer];
    bool unreachable = !peer->here && !same_team(comm, put->peer);
    if (put->lost || (put->bytes && unreachable)) {
        never_end(comm);
        return;
    }
    if (put->bytes)
        move_data(put);
    if (put->silent)
        return;
    if (fake_has_processes()) { /* no lock that a killed rank could hold */
        peer->arrived[comm->rank]++;
        return;
    }
    pthread_mutex_lock(&peer->lock);
    peer->arrived[comm->rank]++;
    pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->lock);
}

static void run_wait(comm_work *work)
{
    wait_work *wait = (wait_work *)work;
    nccl_comm comm = work->comm;
    member *me = &comm->all->members[comm->rank];
    char what[80];
    if (fake_fault("no_signal_waits", comm->rank))
        return;
    for (int i = 0; i < wait->count; i++) {
        int peer = wait->waits[i].peer;
        uint64_t since = 0;
        snprintf(what, sizeof(what), "signal %llu of rank %d at rank %d",
                 (unsigned long long)wait->waits[i].value, peer, comm->rank);
        while (fake_has_processes() &&
               me->arrived[peer] < wait->waits[i].value && !is_released(comm))
            fake_sleep_us(200);
        pthread_mutex_lock(&me->lock);
        while (me->arrived[peer] < wait->waits[i].value && !is_released(comm))
            fake_wait(&me->changed, &me->lock, &since, what, comm->device);
        pthread_mutex_unlock(&me->lock);
    }
}

/* --- Calls ---------------------------------------------------------------- */

static nccl_result meet_first(void *context)
{
    nccl_comm comm = *(nccl_comm *)context;
    return meet(comm, &comm->all->host);
}

static nccl_result begin(nccl_comm comm, const char *call, int signal,
                         int context, unsigned int flags)
{
    nccl_result result = check_comm(comm, call);
    if (result)
        return result;
    if (!comm->has_rma)
        return set_error(FAKE_NCCL_ARGUMENT, "host RMA is not supported");
    if (signal || context || flags)
        return set_error(FAKE_NCCL_ARGUMENT,
                         "%s: signal %d, context %d, flags %u must be 0", call,
                         signal, context, flags);
    if (comm->rma_begun)
        return NCCL_OK;
    comm->rma_begun = true;
    return run_call(comm, meet_first, &comm, sizeof(comm));
}

static nccl_result check_peer(nccl_comm comm, int peer, const char *call)
{
    if (peer >= 0 && peer < comm->ranks)
        return NCCL_OK;
    return set_error(FAKE_NCCL_ARGUMENT, "%s: rank %d of %d", call, peer,
                     comm->ranks);
}

/* NCCL sees only that there is a window; what it lets pass is a failure. */
static nccl_result check_put(nccl_comm comm, uint64_t from, uint64_t bytes,
                             nccl_window window, uint64_t offset)
{
    nccl_window source = comm->windows;
    if (!window || window->state != ALIVE || window->comm != comm)
        fake_fail("rank %d puts into what is no window of the communicator",
                  comm->rank);
    while (source &&
           (source->state != ALIVE || from - source->user >= source->bytes))
        source = source->next;
    if (!from || !source)
        return set_error(FAKE_NCCL_ARGUMENT,
                         "the source is not in a symmetric window");
    if (from + bytes > source->user + source->bytes)
        fake_fail("rank %d puts %llu bytes from the end of its window",
                  comm->rank, (unsigned long long)bytes);
    if (offset > window->bytes || bytes > window->bytes - offset)
        fake_fail("rank %d puts %llu bytes at %llu of a window of %llu",
                  comm->rank, (unsigned long long)bytes,
                  (unsigned long long)offset,
                  (unsigned long long)window->bytes);
    return NCCL_OK;
}

static void queue_put(nccl_comm comm, put_work put, cu_stream stream)
{
    uint64_t after = (uint64_t)fake_setting("FAKE_FAULT_AFTER", 0);
    put_work *work = fake_work_new(sizeof(*work), NULL);
    bool is_put = put.bytes > 0;
    *work = put;
    work->work.run = run_put;
    work->lost =
        is_put && comm->puts++ == after && fake_fault("put_lost", comm->rank);
    work->silent =
        comm->signals++ == after && fake_fault("signal_lost", comm->rank);
    queue_comm_work(comm, &work->work, stream);
}

/* NCCL_OK, or in a communicator that does not block, that it goes on. */
static bool may_go_on(nccl_result result)
{
    return result == NCCL_OK || result == NCCL_IN_PROGRESS;
}

nccl_result ncclPutSignal(const void *from, size_t count, int type, int peer,
                          nccl_window window, size_t offset, int signal,
                          int context, unsigned int flags, nccl_comm comm,
                          cu_stream stream)
{
    put_work put = {.from = (uint64_t)(uintptr_t)from,
                    .bytes = count * type_size(type),
                    .peer = peer,
                    .window = window,
                    .offset = offset};
    nccl_result result = check_comm(comm, "ncclPutSignal");
    if (!result)
        result = check_peer(comm, peer, "ncclPutSignal");
    if (!result)
        result = check_put(comm, put.from, put.bytes, window, offset);
    if (!result)
        result = begin(comm, "ncclPutSignal", signal, context, flags);
    if (may_go_on(result))
        queue_put(comm, put, stream);
    return result;
}

nccl_result ncclSignal(int peer, int signal, int context, unsigned int flags,
                       nccl_comm comm, cu_stream stream)
{
    nccl_result result = check_comm(comm, "ncclSignal");
    if (!result)
        result = check_peer(comm, peer, "ncclSignal");
    if (!result)
        result = begin(comm, "ncclSignal", signal, context, flags);
    if (may_go_on(result))
        queue_put(comm, (put_work){.peer = peer}, stream);
    return result;
}

nccl_result ncclWaitSignal(int count, nccl_wait *waits, nccl_comm comm,
                           cu_stream stream)
{
    nccl_result result = check_comm(comm, "ncclWaitSignal");
    if (result)
        return result;
    if (count < 1 || count > FAKE_TEAM || !waits)
        return set_error(FAKE_NCCL_ARGUMENT, "ncclWaitSignal: %d waits", count);
    for (int i = 0; i < count; i++) {
        if (waits[i].count < 1 || waits[i].signal || waits[i].context)
            return set_error(FAKE_NCCL_ARGUMENT,
                             "ncclWaitSignal: %d of signal %d, context %d",
                             waits[i].count, waits[i].signal, waits[i].context);
        if (check_peer(comm, waits[i].peer, "ncclWaitSignal"))
            return FAKE_NCCL_ARGUMENT;
    }
    result = begin(comm, "ncclWaitSignal", 0, 0, 0);
    if (!may_go_on(result))
        return result;
    wait_work *work = fake_work_new(sizeof(*work), NULL);
    work->work.run = run_wait;
    work->count = count;
    for (int i = 0; i < count; i++) {
        comm->taken[waits[i].peer] += (uint64_t)waits[i].count;
        work->waits[i].peer = waits[i].peer;
        work->waits[i].value = comm->taken[waits[i].peer];
    }
    queue_comm_work(comm, &work->work, stream);
    return result;
}
