/*
 * The planners. Each appends the ops of one rank to a builder; they allocate
 * nothing that outlives the call, log nothing and know no backend. Two rules
 * keep plans right: all signals of one counter come from one lane (or a peer
 * takes one for another), and what peers read is not written before they said
 * that they have read it.
 */
#ifndef TIDE_ALGO_ALGO_H
#define TIDE_ALGO_ALGO_H

#include "plan/build.h"

/* All-gather (DESIGN: TIDE-AG), pull and push landing. */
tide_status tdi_plan_all_gather(tdi_builder *b);
/* Reduce-scatter (TIDE-RS), one node or many. */
tide_status tdi_plan_reduce_scatter(tdi_builder *b);

#endif
