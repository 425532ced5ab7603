/* What an op costs on a machine: its time alone, and what it uses. */
#ifndef TIDE_SIM_COST_H
#define TIDE_SIM_COST_H

#include <tide/sim.h>

#include "sim/engine.h"

/* Resources: these of each simulated rank, then those of the machine. */
enum {
    TDI_LINK_OUT,
    TDI_LINK_IN,
    TDI_RAIL_OUT,
    TDI_RAIL_IN,
    TDI_MEMORY,
    TDI_RANK_RESOURCES,
};
enum { TDI_CORES, TDI_CORE_MEMORY, TDI_SHARED_RESOURCES };

typedef struct tdi_cost {
    double us;
    uint32_t count;
    tdi_use uses[3 * TIDE_MAX_LOCAL + 8];
} tdi_cost;

/* Copies that follow one another in a lane: the CUDA backend starts them at
 * once, those inside a GPU on SMs beside the others on copy engines. */
typedef struct tdi_batch {
    uint32_t end;  /* the op behind them */
    double beside; /* the part of those inside a GPU that is hidden */
    double memory; /* what that takes of it, in bytes a us of the others */
} tdi_batch;

/* Sets the capacity of every resource of `ranks` simulated ranks. */
void tdi_cost_limits(const tide_machine *machine, uint32_t ranks,
                     tdi_engine *engine);
/* Of the batch that the copy `first` begins; as it was, if it is inside. */
void tdi_cost_batch(const tide_machine *machine, const tide_plan *plan,
                    uint32_t first, tdi_batch *batch);
/* The cost of an op of a plan; of a copy, in its batch. The ranks of node 0
 * alone are simulated when `ranks` is fewer than the topology has: others are
 * taken for those. */
void tdi_cost_op(const tide_machine *machine, const tide_plan *plan,
                 uint32_t ranks, const tide_op *op, const tdi_batch *batch,
                 tdi_cost *cost);

/* How many times a put over `distance` nodes is slowed by the spine. */
double tdi_cost_spine(const tide_machine *machine, uint32_t distance);

static inline double tdi_bytes_us(double bytes, double gbps)
{
    return gbps > 0 ? bytes / (gbps * 1e3) : 0;
}

#endif
