/*
 * The watch thread of a communicator with queues. The caller's thread is away
 * while the device works, perhaps inside a synchronisation that a dead peer
 * would never let end. The thread looks at the oldest request of each flow: a
 * fault, or a request that stands still past the deadline, ends the
 * communicator and lets all queued waits pass.
 */
#include "base/fail.h"
#include "base/util.h"
#include "exec/queue.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TICK_MS = 20 };
/* From here on it is worth asking the device what a request waits for. */
enum { SUSPICIOUS_MS = 500 };

/* A flow as the thread last saw it. */
typedef struct sight {
    const tide_request *head;
    uint64_t turn;
    uint64_t since_ms; /* when its work began, as far as was seen; 0: not yet */
} sight;

typedef struct tdi_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    sight seen[TDI_FLOWS];
    tide_status fault; /* and its message, once is_over */
    char message[512];
    atomic_bool is_over;
} tdi_watch;

void tdi_watch_lock(tide_comm *comm)
{
    if (comm->watch)
        pthread_mutex_lock(&comm->watch->lock);
}

void tdi_watch_unlock(tide_comm *comm)
{
    if (comm->watch)
        pthread_mutex_unlock(&comm->watch->lock);
}

tide_status tdi_watch_fault(tide_comm *comm)
{
    tdi_watch *watch = comm->watch;
    if (!watch || !atomic_load(&watch->is_over))
        return TIDE_OK;
    return tdi_fail(watch->fault, "%s", watch->message);
}

/* --- Looking ------------------------------------------------------------ */

/* How long the oldest request of a flow has been at work without an end. */
static uint64_t stands_still_ms(tide_comm *comm, sight *seen,
                                const tide_request *head)
{
    const tdi_queue_ops *queue = comm->backend->queue;
    bool begun = false, ended = false;
    uint64_t now = tdi_now_ms();
    if (head != seen->head || (head && head->turn != seen->turn))
        *seen = (sight){head, head ? head->turn : 0, 0};
    if (!head || !head->end || queue->mark_reached(comm, head->end, &ended) ||
        ended || queue->mark_reached(comm, head->begun, &begun) || !begun)
        return 0;
    if (!seen->since_ms)
        seen->since_ms = now;
    return now - seen->since_ms;
}

/* The waits of a request that are not met yet. Of those that the backend
 * cannot see, the first counts if nothing else is found. */
static size_t collect_blocks(tide_comm *comm, const tide_request *request,
                             tdi_block *blocks, size_t most)
{
    const tide_plan *plan = request->bound->plan;
    size_t count = 0;
    tdi_block unseen = {.call = NULL};
    for (uint32_t i = 0; i < plan->op_count && count < most; i++) {
        const tide_op *op = &plan->ops[i];
        bool reached = false;
        if (op->kind != TIDE_OP_WAIT)
            continue;
        tdi_block block = {(uint32_t)tide_operand_rank(op->src),
                           (tide_channel)op->channel, &request->call};
        tide_status status =
            comm->backend->poll(comm, request->flow, &block,
                                tdi_wait_target(request, op), &reached);
        if (!status && !reached)
            blocks[count++] = block;
        if (status == TIDE_ERR_UNSUPPORTED && !unseen.call)
            unseen = block;
    }
    if (!count && unseen.call)
        blocks[count++] = unseen;
    return count;
}

static tide_status look_at(tide_comm *comm, tdi_flow_id id)
{
    const tide_request *head = comm->flows[id].head;
    tdi_block blocks[4];
    size_t count = 0;
    uint64_t waited = stands_still_ms(comm, &comm->watch->seen[id], head);
    if (waited >= SUSPICIOUS_MS || waited >= comm->timeout_ms)
        count = collect_blocks(comm, head, blocks, TDI_COUNT(blocks));
    if (waited >= comm->timeout_ms && !count)
        return tdi_fail(TIDE_ERR_SYSTEM,
                        "rank %u: call %llu, %s, has not ended after %llu ms, "
                        "though every signal has come: the device is stuck",
                        comm->rank, (unsigned long long)head->call.number,
                        head->call.name, (unsigned long long)waited);
    /* Dead peers matter only to those who still wait for something. */
    return head ? comm->backend->watch(comm, blocks, count, waited) : TIDE_OK;
}

static tide_status look(tide_comm *comm)
{
    TDI_TRY(comm->backend->check(comm));
    for (tdi_flow_id id = 0; id < TDI_FLOWS; id++)
        TDI_TRY(look_at(comm, id));
    return TIDE_OK;
}

/* --- The thread --------------------------------------------------------- */

static void sleep_a_tick(tdi_watch *watch)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&watch->wake, &watch->lock, &until);
}

static void find_fault(tide_comm *comm)
{
    tdi_watch *watch = comm->watch;
    tide_status status = look(comm);
    if (!status)
        return;
    watch->fault = status;
    snprintf(watch->message, sizeof(watch->message), "%s", tide_last_error());
    atomic_store(&watch->is_over, true);
    comm->backend->abort(comm, tdi_status_for_peers(status), comm->rank);
    comm->backend->queue->let_go(comm);
}

static void *run(void *context)
{
    tide_comm *comm = context;
    tdi_watch *watch = comm->watch;
    const tdi_queue_ops *queue = comm->backend->queue;
    bool entered = !queue->enter(comm);
    pthread_mutex_lock(&watch->lock);
    while (!watch->stop) {
        if (!atomic_load(&watch->is_over))
            find_fault(comm);
        else
            queue->let_go(comm); /* again: late signals undo it */
        sleep_a_tick(watch);
    }
    pthread_mutex_unlock(&watch->lock);
    if (entered)
        queue->leave(comm);
    return NULL;
}

static void free_watch(tide_comm *comm)
{
    tdi_watch *watch = comm->watch;
    comm->watch = NULL;
    pthread_mutex_destroy(&watch->lock);
    pthread_cond_destroy(&watch->wake);
    free(watch);
}

tide_status tdi_watch_start(tide_comm *comm)
{
    tdi_watch *watch = calloc(1, sizeof(*watch));
    if (!watch)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a watch thread");
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->wake, NULL);
    comm->watch = watch;
    int error = pthread_create(&watch->thread, NULL, run, comm);
    if (!error)
        return TIDE_OK;
    free_watch(comm);
    return tdi_fail(TIDE_ERR_SYSTEM, "rank %u: no watch thread: %s", comm->rank,
                    strerror(error));
}

void tdi_watch_stop(tide_comm *comm)
{
    tdi_watch *watch = comm->watch;
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->stop = true;
    pthread_cond_signal(&watch->wake);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    free_watch(comm);
}
