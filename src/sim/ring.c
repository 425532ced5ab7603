/*
 * NCCL's ring and FSDP2's layout kernels, as formulas: a ring kernel sends,
 * receives and adds sub-chunks inside one launch, which ops cannot say.
 */
#include "base/util.h"
#include "sim/baseline.h"
#include "sim/cost.h"

/*
 * R - 1 steps in which every rank sends one shard to the next. NCCL lays one
 * ring a NIC, so that a node's NICs share what crosses its border: each byte
 * passes every link once and one of the node's G rails. Filling the pipeline
 * costs the way once around: N rails and the links between.
 */
double tdi_ring_us(const tide_machine *m, tide_topology topology, double bytes)
{
    double nodes = topology.nodes, size = topology.local_size;
    double moved = (nodes * size - 1) * bytes;
    double link = tdi_bytes_us(moved, m->ring_gbps);
    double rail = nodes > 1 ? tdi_bytes_us(moved / size, m->rail_gbps) *
                                  tdi_cost_spine(m, 1)
                            : 0;
    double fill = (nodes - 1) * (m->rail_us + (size - 1) * m->signal_us);
    return m->ring_us + fill + (link > rail ? link : rail);
}

/* split_with_sizes_copy: every byte of the group is read and written. */
double tdi_copyout_us(const tide_machine *m, double group_bytes)
{
    return m->kernel_us + tdi_bytes_us(2 * group_bytes, m->kernel_gbps);
}

/* _chunk_cat: reads bf16, writes fp32. */
double tdi_pack_us(const tide_machine *m, double group_elems)
{
    return m->kernel_us + tdi_bytes_us(6 * group_elems, m->pack_gbps);
}
