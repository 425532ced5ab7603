/* What tide-plan says of a case's plans: right or wrong, and how much. */
#ifndef TIDE_TOOLS_PLAN_CHECK_H
#define TIDE_TOOLS_PLAN_CHECK_H

#include "common/json.h"
#include "plan/case.h"

/* Runs every check on the plans of all ranks; the first fault is in
 * tide_last_error(). */
tide_status tdi_case_verify(const tdi_case *c);

/* The statistics of one rank's plan, as lines and as a JSON object "stats". */
void tdi_stats_print(FILE *to, const tide_plan *plan);
void tdi_stats_json(tdi_json *json, const tide_plan *plan);

#endif
