/*
 * Steps of the set-up that wait for every rank inside NCCL, which knows no
 * deadline: each runs in a thread that is left behind when it does not return.
 */
#include "backend/cuda/cuda.h"
#include "base/fail.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Freed by whoever is last: the thread, or the one that waits. */
typedef struct bounded {
    pthread_mutex_t lock;
    pthread_cond_t done;
    tide_comm *comm;
    tdi_cuda_step *step;
    void *context;
    tide_status status;
    char message[512];
    bool is_done;
    bool is_left; /* no one waits any more */
} bounded;

static void free_bounded(bounded *b)
{
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->done);
    free(b);
}

static void *run(void *context)
{
    bounded *b = context;
    tide_status status = tdi_cuda_enter(b->comm);
    if (!status)
        status = b->step(b->comm, b->context);
    pthread_mutex_lock(&b->lock);
    b->status = status;
    if (status)
        snprintf(b->message, sizeof(b->message), "%s", tide_last_error());
    b->is_done = true;
    pthread_cond_signal(&b->done);
    bool left = b->is_left;
    pthread_mutex_unlock(&b->lock);
    if (left)
        free_bounded(b);
    return NULL;
}

static void wait_until_done(bounded *b)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += b->comm->timeout_ms / 1000;
    until.tv_nsec += (long)(b->comm->timeout_ms % 1000) * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    while (!b->is_done &&
           pthread_cond_timedwait(&b->done, &b->lock, &until) != ETIMEDOUT)
        ;
}

/* Called with the lock; gives it back and b up. */
static tide_status end_bounded(bounded *b, const char *what)
{
    tide_comm *comm = b->comm;
    tide_status status = b->status;
    if (!b->is_done) {
        b->is_left = true;
        comm->is_stuck = true;
        pthread_mutex_unlock(&b->lock);
        return tdi_fail(TIDE_ERR_PEER,
                        "rank %u: %s has not ended after %u ms: a rank does "
                        "not take part in it",
                        comm->rank, what, comm->timeout_ms);
    }
    pthread_mutex_unlock(&b->lock);
    if (status)
        tdi_fail(status, "%s", b->message);
    free_bounded(b);
    return status;
}

tide_status tdi_cuda_bounded(tide_comm *comm, tdi_cuda_step *step,
                             void *context, const char *what)
{
    pthread_t thread;
    bounded *b = calloc(1, sizeof(*b));
    if (!b)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a thread");
    b->comm = comm;
    b->step = step;
    b->context = context;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->done, NULL);
    int error = pthread_create(&thread, NULL, run, b);
    if (error) {
        free_bounded(b);
        return tdi_fail(TIDE_ERR_SYSTEM, "rank %u: no thread for %s: %s",
                        comm->rank, what, strerror(error));
    }
    pthread_detach(thread);
    pthread_mutex_lock(&b->lock);
    wait_until_done(b);
    return end_bounded(b, what);
}
