/* A simulated run of a case, op by op: what the trace and the page draw. */
#ifndef TIDE_TOOLS_PLAN_RUN_H
#define TIDE_TOOLS_PLAN_RUN_H

#include "plan/case.h"

typedef struct tdi_run_log {
    tide_plan **plans; /* of the simulated ranks */
    uint32_t ranks;    /* all of the case, or those of node 0 */
    int mirrored;
    tide_sim_op *ops; /* in order of end_us */
    size_t count;
    size_t space;
    tide_sim_result result;
} tdi_run_log;

/* Runs all ranks up to 64, else one node. Errors: those of the plans and of
 * tide_simulate; TIDE_ERR_MEMORY. */
tide_status tdi_run_log_create(const tdi_case *c, const tide_machine *machine,
                               tdi_run_log *log);
void tdi_run_log_free(tdi_run_log *log);

static inline const tide_op *tdi_run_op(const tdi_run_log *log,
                                        const tide_sim_op *ran)
{
    return &log->plans[ran->rank]->ops[ran->op];
}

/*
 * Sorts the ops by start and gives each a row of its rank, row[i] for ops[i],
 * so that no two on a row overlap: its lane, or for puts, which go on while
 * their lane does, one of TDI_PUT_ROWS rows behind the lanes. Free row.
 */
#define TDI_PUT_ROWS 16u
tide_status tdi_run_log_rows(tdi_run_log *log, uint32_t **row);

#endif
