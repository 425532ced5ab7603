/* Counters of a trace: what rails and links carry, what buffers hold. */
#include "plan/trace.h"

#include "base/fail.h"
#include "plan/names.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

enum { RAIL_OUT = TIDE_BUF_COUNT, LINK_IN, COUNTERS };

/* A counter of a rank changes. */
typedef struct change {
    double at;
    uint32_t rank;
    uint32_t counter; /* a buffer in MiB, or one of the above in GB/s */
    double by;
} change;

typedef struct changes {
    const tdi_run_log *log;
    change *list;
    size_t count;
    size_t space;
    bool failed;
} changes;

static void add(changes *c, double at, uint32_t rank, uint32_t counter,
                double by)
{
    if (rank >= c->log->ranks || c->failed)
        return; /* of a node that is not simulated */
    if (c->count == c->space) {
        size_t space = c->space ? 2 * c->space : 4096;
        change *list = realloc(c->list, space * sizeof(*list));
        c->failed = !list;
        if (!list)
            return;
        c->list = list;
        c->space = space;
    }
    c->list[c->count++] = (change){at, rank, counter, by};
}

static void add_rate(changes *c, const tide_sim_op *ran, uint32_t rank,
                     uint32_t counter, double bytes)
{
    double us = ran->end_us - ran->start_us;
    if (us <= 0 || bytes <= 0)
        return;
    add(c, ran->start_us, rank, counter, bytes / us / 1e3);
    add(c, ran->end_us, rank, counter, -bytes / us / 1e3);
}

static void add_fill(changes *c, double at, uint32_t rank, uint32_t buffer,
                     double bytes)
{
    add(c, at, rank, buffer, bytes / (1 << 20));
}

/* A local rank of the node of `rank`. */
static uint32_t neighbour(const tdi_run_log *log, uint32_t rank, uint32_t i)
{
    uint32_t size = log->plans[0]->topology.local_size;
    return rank - rank % size + i % size;
}

static void add_copy(changes *c, const tide_sim_op *ran, const tide_op *op)
{
    double bytes = (double)op->width * op->height;
    uint32_t size = c->log->plans[0]->topology.local_size;
    int32_t to = tide_operand_rank(op->dst);
    uint32_t buffer = tide_operand_buffer(op->dst);
    for (uint32_t i = 0; i < (to == TIDE_ALL_LOCAL ? size : 1); i++) {
        uint32_t rank = to == TIDE_ALL_LOCAL ? neighbour(c->log, ran->rank, i)
                                             : (uint32_t)to;
        add_fill(c, ran->end_us, rank, buffer, bytes);
        if (to == TIDE_ALL_LOCAL || tide_operand_rank(op->src) != to)
            add_rate(c, ran, rank, LINK_IN, bytes);
    }
}

/* What a sum has read is free again, in RSTAGE and RECV. */
static void add_reduce(changes *c, const tide_sim_op *ran, const tide_op *op)
{
    double bytes = (double)op->width * (op->flags & TIDE_SRC_BF16 ? 2 : 4);
    uint32_t buffer = tide_operand_buffer(op->src);
    uint32_t first = (uint32_t)tide_operand_rank(op->src);
    uint32_t own = ran->rank % c->log->plans[0]->topology.local_size;
    bool scratch = buffer == TIDE_BUF_RSTAGE || buffer == TIDE_BUF_RECV;
    for (uint32_t i = 0; i < op->height; i++) {
        uint32_t from = ran->rank;
        if (op->flags & TIDE_ACROSS)
            from = neighbour(c->log, ran->rank, first + i);
        if (scratch && !(op->flags & TIDE_OWN && i == own))
            add_fill(c, ran->end_us, from, buffer, -bytes);
        if (from != ran->rank)
            add_rate(c, ran, ran->rank, LINK_IN, bytes);
    }
    if (!(op->flags & TIDE_ADD))
        add_fill(c, ran->end_us, ran->rank, tide_operand_buffer(op->dst),
                 (double)op->width * (op->flags & TIDE_DST_BF16 ? 2 : 4));
}

static void add_put(changes *c, const tide_sim_op *ran, const tide_op *op)
{
    double bytes = (double)op->width;
    add_rate(c, ran, ran->rank, RAIL_OUT, bytes);
    add_fill(c, ran->end_us, (uint32_t)tide_operand_rank(op->dst),
             tide_operand_buffer(op->dst), bytes);
    if (tide_operand_buffer(op->src) == TIDE_BUF_PARTIAL)
        add_fill(c, ran->end_us, ran->rank, TIDE_BUF_PARTIAL, -bytes);
}

static int by_time(const void *a, const void *b)
{
    const change *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1)
                              : (int)x->counter - (int)y->counter;
}

static void write_counter(FILE *to, int *first, const change *c, double value)
{
    tdi_trace_comma(to, first);
    fprintf(to,
            "{\"ph\":\"C\",\"pid\":%" PRIu32
            ",\"ts\":%.3f,\"name\":\"%s\",\"args\":{\"%s\":%.3f}}",
            c->rank, c->at,
            c->counter == RAIL_OUT  ? "rail out"
            : c->counter == LINK_IN ? "link in"
                                    : tdi_buffer_name(c->counter),
            c->counter >= RAIL_OUT ? "GB/s" : "MiB", value < 0 ? 0 : value);
}

/* One event a moment and counter, however many changes fall together. */
static void write_changes(const changes *c, double *now, FILE *to, int *first)
{
    for (size_t i = 0; i < c->count; i++) {
        const change *x = &c->list[i], *next = x + 1;
        double *value = &now[x->rank * COUNTERS + x->counter];
        *value += x->by;
        if (i + 1 == c->count || next->at != x->at || next->rank != x->rank ||
            next->counter != x->counter)
            write_counter(to, first, x, *value);
    }
}

tide_status tdi_trace_counters(const tdi_run_log *log, FILE *to, int *first)
{
    changes c = {.log = log};
    double *now = calloc((size_t)log->ranks * COUNTERS, sizeof(*now));
    for (size_t i = 0; now && i < log->count; i++) {
        const tide_sim_op *ran = &log->ops[i];
        const tide_op *op = tdi_run_op(log, ran);
        if (op->kind == TIDE_OP_COPY)
            add_copy(&c, ran, op);
        else if (op->kind == TIDE_OP_REDUCE)
            add_reduce(&c, ran, op);
        else if (op->kind == TIDE_OP_PUT)
            add_put(&c, ran, op);
    }
    c.failed |= !now;
    if (!c.failed) {
        qsort(c.list, c.count, sizeof(*c.list), by_time);
        write_changes(&c, now, to, first);
    }
    free(c.list);
    free(now);
    return c.failed ? tdi_fail(TIDE_ERR_MEMORY, "no memory for counters")
                    : TIDE_OK;
}
