/* A thread that feeds a walk: a few pieces are always queued. */
#include "probe/beside.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fail.h"

enum { DEPTH = 6 };

struct beside {
    const gpu *g;
    walk *walk;
    pthread_t thread;
    cu_event events[DEPTH];
    uint64_t bytes[DEPTH]; /* of the piece that ends with the event; 0: none */
    atomic_bool stop;
    atomic_uint_fast64_t done;
    tide_status status;
    char message[512];
};

static tide_status end_piece(beside *b, uint32_t slot)
{
    if (!b->bytes[slot])
        return TIDE_OK;
    TRY_CUDA(b->g, event_sync(b->events[slot]));
    atomic_fetch_add(&b->done, b->bytes[slot]);
    b->bytes[slot] = 0;
    return TIDE_OK;
}

static tide_status feed(beside *b)
{
    TRY_CUDA(b->g, context_set(b->g->context));
    for (uint32_t slot = 0; !atomic_load(&b->stop); slot = (slot + 1) % DEPTH) {
        TDI_TRY(end_piece(b, slot));
        TDI_TRY(walk_some(b->walk, &b->bytes[slot]));
        TRY_CUDA(b->g, event_record(b->events[slot], walk_end(b->walk)));
    }
    for (uint32_t slot = 0; slot < DEPTH; slot++)
        TDI_TRY(end_piece(b, slot));
    return TIDE_OK;
}

static void *run(void *context)
{
    beside *b = context;
    b->status = feed(b);
    if (b->status)
        snprintf(b->message, sizeof(b->message), "%s", tide_last_error());
    return NULL;
}

static void free_beside(beside *b)
{
    for (int i = 0; i < DEPTH; i++)
        if (b->events[i])
            b->g->cuda->event_destroy(b->events[i]);
    free(b);
}

static tide_status make_events(beside *b)
{
    for (int i = 0; i < DEPTH; i++)
        TRY_CUDA(b->g, event_create(&b->events[i], CU_EVENT_NO_TIMING));
    return TIDE_OK;
}

tide_status beside_start(const gpu *g, walk *w, beside **made)
{
    beside *b = calloc(1, sizeof(*b));
    *made = NULL;
    if (!b)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a feeder");
    b->g = g;
    b->walk = w;
    tide_status status = make_events(b);
    if (!status && pthread_create(&b->thread, NULL, run, b))
        status = tdi_fail(TIDE_ERR_SYSTEM, "no thread for a feeder");
    if (status) {
        free_beside(b);
        return status;
    }
    *made = b;
    return TIDE_OK;
}

uint64_t beside_bytes(beside *b)
{
    return atomic_load(&b->done);
}

tide_status beside_stop(beside *b)
{
    atomic_store(&b->stop, true);
    pthread_join(b->thread, NULL);
    tide_status status = b->status;
    if (status)
        tdi_fail(status, "%s", b->message);
    free_beside(b);
    return status;
}
