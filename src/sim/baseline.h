/*
 * What tide is compared with, as plans where ops can say it. Each appends one
 * rank's ops; none is meant to be executed, only to be simulated. Layouts are
 * those of the flat buffers for CE and SYMM, FSDP2's own for the others.
 */
#ifndef TIDE_SIM_BASELINE_H
#define TIDE_SIM_BASELINE_H

#include "plan/build.h"

#include <tide/sim.h>

typedef tide_status tdi_planner(tdi_builder *b);

/* All-gather with a ring over the nodes of a rail: N - 1 rounds, neighbours
 * only; tide's landing. */
tide_status tdi_plan_rail_ring(tdi_builder *b);
/* Hierarchical copy-engine gather: puts to all nodes, then local pulls. */
tide_status tdi_plan_ce(tdi_builder *b);
/* The reduce-scatter that the paper's times and buffers suggest: one
 * destination node after the other, whole slices, level 2 at the end. */
tide_status tdi_plan_paper_rs(tdi_builder *b);
/* Hierarchical reduce-scatter of packed fp32, as FSDP2 over SymmMem does. */
tide_status tdi_plan_symm(tdi_builder *b);

/* NCCL's ring kernels and the layout kernels: formulas, in us. `bytes` is a
 * rank's shard or output. */
double tdi_ring_us(const tide_machine *machine, tide_topology topology,
                   double bytes);
double tdi_copyout_us(const tide_machine *machine, double group_bytes);
double tdi_pack_us(const tide_machine *machine, double group_elems);

#endif
