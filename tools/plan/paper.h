/* The times that the source paper reports, and what the simulator says. */
#ifndef TIDE_TOOLS_PLAN_PAPER_H
#define TIDE_TOOLS_PLAN_PAPER_H

#include <stdio.h>
#include <tide/sim.h>

#include "common/json.h"

/* Predicts every time of the tables of all-gather and reduce-scatter, and
 * prints it beside the paper's (unless `to` is NULL), and as the array
 * "paper" (unless `json` is NULL). Errors: those of tide_predict. */
tide_status tdi_paper_predict(const tide_machine *machine, FILE *to,
                              tdi_json *json);

#endif
