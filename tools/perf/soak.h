/* Rounds of all-gathers and reduce-scatters without a pause, all checked. */
#ifndef TIDE_TOOLS_SOAK_H
#define TIDE_TOOLS_SOAK_H

#include "perf/bench.h"

#define TDI_SOAK_DEPTH 8u /* rounds in flight, each with data of its own */

/*
 * Collective: `rounds` rounds (up to the next multiple of TDI_SOAK_DEPTH) of
 * one all-gather and one reduce-scatter, in place and with slots in turn. Data
 * is stamped with the round, ranks are delayed at random on the host and on
 * the device, and every output is checked. Rank 0's row has the wrong elements
 * and the time of a round. Errors: those of the collectives.
 */
tide_status tdi_soak_run(const tdi_rank *rank, const tdi_case *on,
                         uint32_t rounds, int progress, tdi_row *row);

#endif
