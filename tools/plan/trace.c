/* Writes a simulated run in the trace event format. */
#include "plan/trace.h"

#include "base/fail.h"
#include "plan/names.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

/* The viewer wants a slice around each end of an arrow: 1 ns at least. */
#define LEAST_US .001

void tdi_trace_comma(FILE *to, int *first)
{
    fputs(*first ? "\n" : ",\n", to);
    *first = 0;
}

static void write_name(FILE *to, int *first, uint32_t rank, uint32_t row,
                       const char *name)
{
    tdi_trace_comma(to, first);
    fprintf(to,
            "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRIu32
            ",\"tid\":%" PRIu32 ",\"args\":{\"name\":\"%s\"}}",
            rank, row, name);
}

static void write_names(const tdi_run_log *log, const uint32_t *row, FILE *to,
                        int *first)
{
    uint32_t size = log->plans[0]->topology.local_size, last = 0;
    for (size_t i = 0; i < log->count; i++)
        last = row[i] > last ? row[i] : last;
    for (uint32_t r = 0; r < log->ranks; r++) {
        tdi_trace_comma(to, first);
        fprintf(to,
                "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRIu32
                ",\"args\":{\"name\":\"rank %" PRIu32 ", node %" PRIu32 "\"}}",
                r, r, r / size);
        for (unsigned lane = 0; lane < TIDE_LANE_COUNT; lane++)
            write_name(to, first, r, lane, tdi_lane_name(lane));
        for (uint32_t puts = TIDE_LANE_COUNT; puts <= last; puts++)
            write_name(to, first, r, puts, "puts");
    }
}

/* "put" with its whole text behind it; waits say for what. */
static void write_slice(const tdi_run_log *log, const tide_sim_op *ran,
                        uint32_t row, FILE *to, int *first)
{
    char text[256];
    const tide_op *op = tdi_run_op(log, ran);
    double us = ran->end_us - ran->start_us;
    if (us < LEAST_US) {
        if (op->kind == TIDE_OP_AFTER)
            return;
        us = LEAST_US;
    }
    tdi_trace_comma(to, first);
    fprintf(to,
            "{\"ph\":\"X\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32
            ",\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":\"%s%s%s\","
            "\"args\":{\"op\":%" PRIu32 ",\"text\":\"%s\"}}",
            ran->rank, row, ran->start_us, us,
            op->kind == TIDE_OP_WAIT || op->kind == TIDE_OP_AFTER ? "wait"
                                                                  : "work",
            tdi_op_name(op->kind),
            op->kind == TIDE_OP_WAIT || op->kind == TIDE_OP_SIGNAL ? " " : "",
            op->kind == TIDE_OP_WAIT || op->kind == TIDE_OP_SIGNAL
                ? tdi_channel_name(op->channel)
                : "",
            ran->op, tdi_op_text(op, text, sizeof(text)));
}

/* --- Arrows --------------------------------------------------------------- */

/* A signal that was sent, or a wait for it: the n-th of a counter. */
typedef struct end {
    uint32_t from;
    uint32_t to;
    uint32_t channel;
    uint32_t waits; /* 0: sent */
    uint64_t n;
    size_t i; /* in the log */
} end;

static int by_counter(const void *a, const void *b)
{
    const end *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    if (x->channel != y->channel)
        return x->channel < y->channel ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return (int)x->waits - (int)y->waits;
}

static int by_send(const void *a, const void *b)
{
    const end *x = a, *y = b;
    end p = *x, q = *y;
    p.n = q.n = 0;
    p.waits = q.waits = 0;
    int order = by_counter(&p, &q);
    return order ? order : (x->i > y->i) - (x->i < y->i);
}

/* Signals first, numbered in the order in which they were sent. */
static size_t collect_ends(const tdi_run_log *log, end *ends)
{
    size_t count = 0, sent;
    for (size_t i = 0; i < log->count; i++) {
        const tide_op *op = tdi_run_op(log, &log->ops[i]);
        if (op->kind == TIDE_OP_SIGNAL || op->kind == TIDE_OP_PUT)
            ends[count++] = (end){log->ops[i].rank,
                                  (uint32_t)tide_operand_rank(op->dst),
                                  op->channel,
                                  0,
                                  0,
                                  i};
    }
    sent = count;
    qsort(ends, sent, sizeof(*ends), by_send);
    for (size_t k = 0; k < sent; k++) {
        bool same = k && ends[k].from == ends[k - 1].from &&
                    ends[k].to == ends[k - 1].to &&
                    ends[k].channel == ends[k - 1].channel;
        ends[k].n = same ? ends[k - 1].n + 1 : 1;
    }
    for (size_t i = 0; i < log->count; i++) {
        const tide_op *op = tdi_run_op(log, &log->ops[i]);
        if (op->kind == TIDE_OP_WAIT && op->count > 0)
            ends[count++] = (end){(uint32_t)tide_operand_rank(op->src),
                                  log->ops[i].rank,
                                  op->channel,
                                  1,
                                  (uint64_t)op->count,
                                  i};
    }
    qsort(ends, count, sizeof(*ends), by_counter);
    return count;
}

static void write_arrow_end(const tdi_run_log *log, const end *e, size_t id,
                            const uint32_t *row, FILE *to, int *first)
{
    const tide_sim_op *ran = &log->ops[e->i];
    double last = ran->end_us - LEAST_US; /* within the slice */
    double at = e->waits               ? ran->end_us
                : last > ran->start_us ? last
                                       : ran->start_us;
    tdi_trace_comma(to, first);
    fprintf(to,
            "{\"ph\":\"%s,\"pid\":%" PRIu32 ",\"tid\":%" PRIu32
            ",\"ts\":%.3f,\"id\":%zu,\"cat\":\"signal\",\"name\":\"%s\"}",
            e->waits ? "f\",\"bp\":\"e\"" : "s\"", ran->rank, row[e->i], at, id,
            tdi_channel_name(e->channel));
}

static tide_status write_arrows(const tdi_run_log *log, const uint32_t *row,
                                FILE *to, int *first)
{
    end *ends = calloc(log->count + 1, sizeof(*ends));
    if (!ends)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for arrows");
    size_t count = collect_ends(log, ends);
    for (size_t i = 0; i + 1 < count; i++) {
        if (ends[i].waits || !ends[i + 1].waits || ends[i].n != ends[i + 1].n)
            continue;
        write_arrow_end(log, &ends[i], i, row, to, first);
        write_arrow_end(log, &ends[i + 1], i, row, to, first);
    }
    free(ends);
    return TIDE_OK;
}

tide_status tdi_trace_write(tdi_run_log *log, FILE *to)
{
    int first = 1;
    uint32_t *row;
    TDI_TRY(tdi_run_log_rows(log, &row));
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", to);
    write_names(log, row, to, &first);
    for (size_t i = 0; i < log->count; i++)
        write_slice(log, &log->ops[i], row[i], to, &first);
    tide_status status = write_arrows(log, row, to, &first);
    if (!status)
        status = tdi_trace_counters(log, to, &first);
    fputs("\n]}\n", to);
    free(row);
    return status;
}
