/* A simulated run as a trace that ui.perfetto.dev and chrome://tracing open. */
#ifndef TIDE_TOOLS_PLAN_TRACE_H
#define TIDE_TOOLS_PLAN_TRACE_H

#include <stdio.h>

#include "plan/run.h"

/*
 * Ranks are processes and lanes their threads; arrows go from a signal to the
 * wait that it meets; counters show what rails and links carry and what the
 * scratch buffers hold. Sorts the log. Errors: TIDE_ERR_MEMORY.
 */
tide_status tdi_trace_write(tdi_run_log *log, FILE *to);

/* The counters alone, as events; `first` as tdi_trace_comma wants it. */
tide_status tdi_trace_counters(const tdi_run_log *log, FILE *to, int *first);
/* Separates events. */
void tdi_trace_comma(FILE *to, int *first);

#endif
