/* Ranks, nodes and rails: node-major numbering, as types.h says. */
#ifndef TIDE_TOPO_TOPO_H
#define TIDE_TOPO_TOPO_H

#include <tide/types.h>

static inline uint32_t tdi_topo_ranks(tide_topology topology)
{
    return topology.nodes * topology.local_size;
}

static inline uint32_t tdi_topo_rank(tide_topology topology, uint32_t node,
                                     uint32_t local)
{
    return node * topology.local_size + local;
}

static inline uint32_t tdi_topo_node(tide_topology topology, uint32_t rank)
{
    return rank / topology.local_size;
}

static inline uint32_t tdi_topo_local(tide_topology topology, uint32_t rank)
{
    return rank % topology.local_size;
}

/* TIDE_ERR_INVALID when N or G is 0 or too large, or rank is outside. */
tide_status tdi_topo_check(tide_topology topology, uint32_t rank);

/*
 * Splits `ranks` ranks, given the machine each runs on (any numbers, equal for
 * equal machines), into nodes of `local_size`; 0 takes as many as a machine
 * has. TIDE_ERR_INVALID, with the reason, when machines hold different numbers
 * of ranks or their ranks are not consecutive, or a node would span machines.
 */
tide_status tdi_topo_split(const uint64_t *machine, uint32_t ranks,
                           uint32_t local_size, tide_topology *topology);

#endif
