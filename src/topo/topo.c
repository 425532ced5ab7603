/* Checks of topologies, and their making from where ranks run. */
#include "topo/topo.h"

#include "base/fail.h"

tide_status tdi_topo_check(tide_topology topology, uint32_t rank)
{
    if (!topology.nodes || !topology.local_size ||
        topology.local_size > TIDE_MAX_LOCAL ||
        topology.nodes > TIDE_MAX_RANKS / topology.local_size)
        return tdi_fail(TIDE_ERR_INVALID,
                        "topology of %u nodes x %u ranks: both must be at "
                        "least 1, a node at most %u, all at most %u",
                        topology.nodes, topology.local_size, TIDE_MAX_LOCAL,
                        TIDE_MAX_RANKS);
    if (rank >= tdi_topo_ranks(topology))
        return tdi_fail(TIDE_ERR_INVALID, "rank %u of %u ranks", rank,
                        tdi_topo_ranks(topology));
    return TIDE_OK;
}

static uint32_t run_length(const uint64_t *machine, uint32_t ranks,
                           uint32_t first)
{
    uint32_t end = first;
    while (end < ranks && machine[end] == machine[first])
        end++;
    return end - first;
}

tide_status tdi_topo_split(const uint64_t *machine, uint32_t ranks,
                           uint32_t local_size, tide_topology *topology)
{
    uint32_t per_machine = run_length(machine, ranks, 0);
    for (uint32_t r = 0; r < ranks; r += per_machine) {
        uint32_t here = run_length(machine, ranks, r);
        if (here != per_machine)
            return tdi_fail(TIDE_ERR_INVALID,
                            "the machine of rank %u runs %u consecutive ranks "
                            "and that of rank 0 runs %u: every machine must "
                            "run equally many, numbered one after the other",
                            r, here, per_machine);
    }
    if (!local_size)
        local_size = per_machine;
    if (per_machine % local_size)
        return tdi_fail(TIDE_ERR_INVALID,
                        "nodes of %u ranks do not divide the %u ranks of a "
                        "machine (TIDE_LOCAL_SIZE)",
                        local_size, per_machine);
    *topology = (tide_topology){ranks / local_size, local_size};
    return tdi_topo_check(*topology, 0);
}
