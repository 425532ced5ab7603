/* Runs a case and keeps what ran when. */
#include "plan/run.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS_ALL = 64 };

static void keep(void *context, const tide_sim_op *op)
{
    tdi_run_log *log = context;
    if (log->count < log->space)
        log->ops[log->count++] = *op;
}

static tide_status run(const tdi_case *c, const tide_machine *machine,
                       tdi_run_log *log)
{
    tide_sim_options options = {
        .ran = keep, .context = log, .mirrored = log->mirrored};
    TDI_TRY(tdi_plans_create(c, log->ranks, &log->plans));
    for (uint32_t r = 0; r < log->ranks; r++)
        log->space += log->plans[r]->op_count;
    log->ops = calloc(log->space + 1, sizeof(*log->ops));
    if (!log->ops)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to keep %zu ops",
                        log->space);
    return tide_simulate((const tide_plan *const *)log->plans, machine,
                         &options, &log->result);
}

tide_status tdi_run_log_create(const tdi_case *c, const tide_machine *machine,
                               tdi_run_log *log)
{
    *log = (tdi_run_log){.ranks = tdi_case_ranks(c)};
    log->mirrored = log->ranks > RANKS_ALL && c->topology.nodes > 1;
    if (log->mirrored)
        log->ranks = c->topology.local_size;
    tide_status status = run(c, machine, log);
    if (status)
        tdi_run_log_free(log);
    return status;
}

void tdi_run_log_free(tdi_run_log *log)
{
    tdi_plans_free(log->plans, log->ranks);
    free(log->ops);
    *log = (tdi_run_log){0};
}

static int by_start(const void *a, const void *b)
{
    const tide_sim_op *x = a, *y = b;
    if (x->start_us != y->start_us)
        return x->start_us < y->start_us ? -1 : 1;
    if (x->end_us != y->end_us)
        return x->end_us < y->end_us ? -1 : 1;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1)
                              : (x->op > y->op) - (x->op < y->op);
}

/* The first row of puts that is free again. */
static uint32_t put_row(double *busy, const tide_sim_op *ran)
{
    uint32_t row = 0;
    while (row + 1 < TDI_PUT_ROWS && busy[row] > ran->start_us)
        row++;
    busy[row] = ran->end_us;
    return TIDE_LANE_COUNT + row;
}

tide_status tdi_run_log_rows(tdi_run_log *log, uint32_t **row)
{
    double *busy = calloc((size_t)log->ranks * TDI_PUT_ROWS, sizeof(*busy));
    *row = calloc(log->count + 1, sizeof(**row));
    if (!busy || !*row) {
        free(busy);
        free(*row);
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %zu rows", log->count);
    }
    qsort(log->ops, log->count, sizeof(*log->ops), by_start);
    for (size_t i = 0; i < log->count; i++) {
        const tide_sim_op *ran = &log->ops[i];
        const tide_op *op = tdi_run_op(log, ran);
        (*row)[i] = op->lane;
        if (op->kind == TIDE_OP_PUT)
            (*row)[i] = put_row(&busy[ran->rank * TDI_PUT_ROWS], ran);
    }
    free(busy);
    return TIDE_OK;
}
