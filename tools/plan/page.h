/* One self-contained HTML page that draws a plan and its simulated run. */
#ifndef TIDE_TOOLS_PLAN_PAGE_H
#define TIDE_TOOLS_PLAN_PAGE_H

#include <stdio.h>

#include "plan/run.h"

/*
 * Fills the template page.html with the case as JSON: its shape, who puts
 * what where, the Latin square, the timeline of node 0. `group` is a title.
 * Sorts the log. Errors: TIDE_ERR_MEMORY.
 */
tide_status tdi_page_write(const tdi_case *c, const tide_machine *machine,
                           const char *group, tdi_run_log *log, FILE *to);

#endif
