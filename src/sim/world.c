/* Makes the ranks of a simulation; turns node 0 into all nodes. */
#include "sim/world.h"

#include "base/fail.h"
#include "base/util.h"
#include "topo/topo.h"

#include <stdlib.h>

static uint32_t sources(const tdi_world *w)
{
    return w->topology.local_size + w->topology.nodes;
}

uint64_t *tdi_world_counter(const tdi_world *w, uint32_t rank, uint32_t source,
                            unsigned channel)
{
    uint32_t mine = tdi_topo_node(w->topology, w->rank[rank].plan->rank);
    uint32_t node = tdi_topo_node(w->topology, source);
    uint32_t at = node == mine ? tdi_topo_local(w->topology, source)
                               : w->topology.local_size + node;
    return &w->rank[rank].counters[channel * sources(w) + at];
}

/* Those of the planner, algo/rs.h. */
static uint32_t count_layers(tide_topology topology)
{
    return (uint32_t)tdi_ceil_div(topology.nodes, topology.local_size);
}

int tide_sim_mirrors(tide_coll coll, tide_topology topology)
{
    return coll == TIDE_ALL_GATHER ||
           topology.nodes % count_layers(topology) == 0;
}

/*
 * Nodes are a ring; for a reduce-scatter of several layers a ring of layers,
 * each a ring of nodes. Turned so that node m becomes node 0, node 0 becomes
 * the one that this returns.
 */
static uint32_t turn_back(const tdi_world *w, uint32_t m)
{
    uint32_t nodes = w->topology.nodes;
    if (w->coll == TIDE_ALL_GATHER)
        return (nodes - m) % nodes;
    uint32_t layers = count_layers(w->topology), size = nodes / layers;
    return (layers - m / size) % layers * size + (size - m % size) % size;
}

void tdi_world_route(const tdi_world *w, uint32_t from, uint32_t to,
                     uint32_t *rank, uint32_t *source)
{
    uint32_t node = tdi_topo_node(w->topology, to);
    *rank = to;
    *source = from;
    if (to < w->ranks)
        return;
    *rank = tdi_topo_local(w->topology, to);
    *source = tdi_topo_rank(w->topology, turn_back(w, node),
                            tdi_topo_local(w->topology, from));
}

/* Links the ops of each lane. */
static void link_ops(tdi_sim_rank *rank)
{
    for (int lane = 0; lane < TIDE_LANE_COUNT; lane++)
        rank->lanes[lane] = (tdi_sim_lane){.at = TDI_NO_INDEX, .since = -1};
    for (uint32_t i = 0; i < TDI_PUTS; i++)
        rank->puts[i].at = TDI_NO_INDEX;
    for (uint32_t i = rank->plan->op_count; i--;) {
        tdi_sim_lane *lane = &rank->lanes[rank->plan->ops[i].lane];
        rank->next[i] = lane->at;
        lane->at = i;
    }
}

static tide_status create_rank(tdi_world *w, uint32_t r, const tide_plan *plan)
{
    tdi_sim_rank *rank = &w->rank[r];
    rank->plan = plan;
    rank->next = calloc(tdi_max(plan->op_count, 1), sizeof(uint32_t));
    rank->counters =
        calloc((size_t)TIDE_CH_COUNT * sources(w), sizeof(uint64_t));
    if (!rank->next || !rank->counters)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to simulate rank %u", r);
    link_ops(rank);
    return TIDE_OK;
}

static tide_status check_plans(const tdi_world *w,
                               const tide_plan *const *plans)
{
    for (uint32_t r = 0; r < w->ranks; r++)
        if (!plans[r] || plans[r]->rank != r ||
            plans[r]->key != plans[0]->key ||
            plans[r]->options.coll != w->coll ||
            plans[r]->topology.nodes != w->topology.nodes ||
            plans[r]->topology.local_size != w->topology.local_size)
            return tdi_fail(TIDE_ERR_INVALID,
                            "plan %u is missing, of another rank or of "
                            "another collective than plan 0",
                            r);
    return TIDE_OK;
}

static tide_status create_parts(tdi_world *w, const tide_plan *const *plans)
{
    TDI_TRY(check_plans(w, plans));
    TDI_TRY(tdi_engine_create(
        w->ranks * TDI_TASKS,
        w->ranks * TDI_RANK_RESOURCES + TDI_SHARED_RESOURCES, &w->engine));
    tdi_cost_limits(w->machine, w->ranks, w->engine);
    w->rank = calloc(w->ranks, sizeof(*w->rank));
    if (!w->rank)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory to simulate %u ranks",
                        w->ranks);
    for (uint32_t r = 0; r < w->ranks; r++)
        TDI_TRY(create_rank(w, r, plans[r]));
    return TIDE_OK;
}

tide_status tdi_world_create(const tide_plan *const *plans,
                             const tide_machine *machine,
                             const tide_sim_options *options, tdi_world *w)
{
    w->machine = machine;
    w->options = options;
    w->topology = plans[0]->topology;
    w->coll = plans[0]->options.coll;
    w->ranks = options->mirrored ? w->topology.local_size
                                 : tdi_topo_ranks(w->topology);
    if (options->mirrored && !tide_sim_mirrors(w->coll, w->topology))
        return tdi_fail(TIDE_ERR_INVALID,
                        "a reduce-scatter over %u nodes of %u ranks cannot be "
                        "told from one node: its layers differ in size",
                        w->topology.nodes, w->topology.local_size);
    tide_status status = create_parts(w, plans);
    if (status)
        tdi_world_free(w);
    return status;
}

void tdi_world_free(tdi_world *w)
{
    for (uint32_t r = 0; w->rank && r < w->ranks; r++) {
        free(w->rank[r].next);
        free(w->rank[r].counters);
    }
    free(w->rank);
    tdi_engine_free(w->engine);
    w->rank = NULL;
    w->engine = NULL;
}
