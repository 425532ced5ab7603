/* Runs the step model on the engine: one task a stream. */
#include "sim/step.h"

#include "base/fail.h"
#include "base/util.h"
#include "sim/engine.h"

#include <stdlib.h>

enum { COMPUTE, GATHER, REDUCE, STREAMS };

/* Memory that is taken or given back. */
typedef struct change {
    double at;
    double bytes;
} change;

typedef struct step {
    const tdi_step_layer *layer;
    uint32_t layers;
    uint32_t items; /* 2 * layers: forward, then backward */
    uint32_t prefetch;
    uint32_t started[STREAMS]; /* items, of REDUCE: backward items */
    uint32_t done[STREAMS];
    tdi_engine *engine;
    change *changes;
    size_t change_count;
    double *read_us; /* [backward item]: its gradients are read */
} step;

static void change_memory(step *s, double at, double bytes)
{
    s->changes[s->change_count++] = (change){at, bytes};
}

static void start(step *s, uint32_t stream, double us, double rail_us)
{
    tdi_use use = {0, rail_us};
    tdi_engine_start(s->engine, stream, us, &use, 1);
    s->started[stream]++;
}

static bool is_idle(const step *s, uint32_t stream)
{
    return s->started[stream] == s->done[stream];
}

/* FSDP2 lets a reduce-scatter begin when the one before has ended, and what is
 * computed next begins behind that. */
static bool may_compute(const step *s, uint32_t item)
{
    return item < s->items && s->done[GATHER] > item &&
           s->done[REDUCE] + s->layers + 1 >= item;
}

static bool may_gather(const step *s, uint32_t item)
{
    if (item >= s->items)
        return false;
    return s->prefetch ? s->started[COMPUTE] + s->prefetch > item
                       : s->done[COMPUTE] >= item;
}

/* Starts what may start; streams run in order. */
static void start_all(step *s)
{
    const tdi_step_layer *l = s->layer;
    uint32_t gather = s->started[GATHER], compute = s->started[COMPUTE];
    double now = tdi_engine_now(s->engine);
    if (is_idle(s, COMPUTE) && may_compute(s, compute)) {
        bool forward = compute < s->layers;
        change_memory(s, now, -l->flat_bytes);
        if (!forward)
            change_memory(s, now, l->grad_bytes);
        start(s, COMPUTE, forward ? l->forward_us : l->backward_us, 0);
    }
    if (is_idle(s, GATHER) && may_gather(s, gather)) {
        change_memory(s, now, l->param_bytes + l->flat_bytes);
        start(s, GATHER, l->gather_us, l->gather_rail_us);
    }
    if (is_idle(s, REDUCE) &&
        s->started[REDUCE] + s->layers < s->done[COMPUTE]) {
        s->read_us[s->started[REDUCE]] = now + l->reads_us;
        start(s, REDUCE, l->reduce_us, l->reduce_rail_us);
    }
}

static void end_task(step *s, uint32_t stream)
{
    const tdi_step_layer *l = s->layer;
    double now = tdi_engine_now(s->engine);
    uint32_t item = s->done[stream]++;
    if (stream == REDUCE)
        change_memory(s, now, -l->packed_bytes);
    if (stream != COMPUTE)
        return;
    if (item < s->layers || !l->params_wait)
        change_memory(s, now, -l->param_bytes);
    if (item >= s->layers && !l->grads_wait)
        change_memory(s, now, -l->grad_bytes);
    if (item >= s->layers)
        change_memory(s, now, l->packed_bytes);
}

/* What waits for peers to have read it. */
static void free_late(step *s)
{
    const tdi_step_layer *l = s->layer;
    double bytes = (l->params_wait ? l->param_bytes : 0) +
                   (l->grads_wait ? l->grad_bytes : 0);
    for (uint32_t i = 0; i < s->layers; i++)
        change_memory(s, s->read_us[i], -bytes);
}

/* What is given back at a moment goes before what is taken then. */
static int by_time(const void *a, const void *b)
{
    const change *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static double peak_bytes(step *s)
{
    double now = 0, peak = 0;
    qsort(s->changes, s->change_count, sizeof(*s->changes), by_time);
    for (size_t i = 0; i < s->change_count; i++) {
        now += s->changes[i].bytes;
        peak = now > peak ? now : peak;
    }
    return peak;
}

static tide_status run(step *s, tdi_step_result *result)
{
    bool some = true;
    tdi_event event;
    start_all(s);
    while (some) {
        TDI_TRY(tdi_engine_next(s->engine, &event, &some));
        if (some)
            end_task(s, event.task);
        start_all(s);
    }
    free_late(s);
    double compute = s->layers * (s->layer->forward_us + s->layer->backward_us);
    result->step_us = tdi_engine_now(s->engine);
    result->waiting_us = result->step_us - compute;
    result->peak_bytes = peak_bytes(s);
    return TIDE_OK;
}

tide_status tdi_step_run(const tdi_step_layer *layer, uint32_t layers,
                         uint32_t prefetch, tdi_step_result *result)
{
    enum { CHANGES = 12 }; /* of an item, at most */
    step s = {.layer = layer,
              .layers = layers,
              .items = 2 * layers,
              .prefetch = prefetch};
    TDI_TRY(tdi_engine_create(STREAMS, 1, &s.engine));
    tdi_engine_limit(s.engine, 0, 1);
    s.changes = calloc((size_t)CHANGES * s.items + 1, sizeof(change));
    s.read_us = calloc(layers + 1, sizeof(double));
    tide_status status =
        s.changes && s.read_us
            ? run(&s, result)
            : tdi_fail(TIDE_ERR_MEMORY, "no memory for %u layers", layers);
    free(s.changes);
    free(s.read_us);
    tdi_engine_free(s.engine);
    return status;
}
