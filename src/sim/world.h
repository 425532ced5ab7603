/* The ranks of a simulation: their lanes and counters. */
#ifndef TIDE_SIM_WORLD_H
#define TIDE_SIM_WORLD_H

#include "sim/cost.h"

#define TDI_NO_INDEX UINT32_MAX

typedef enum tdi_state {
    TDI_READY,   /* looks at its next op */
    TDI_RUNNING, /* until the engine says so */
    TDI_SLEEPS,  /* until the host has handed over its next op */
} tdi_state;

typedef struct tdi_sim_lane {
    uint32_t at;   /* next op; TDI_NO_INDEX behind the last */
    uint32_t done; /* newest op that is complete + 1 */
    tdi_state state;
    double since;    /* when it came to its next op; < 0: not yet */
    tdi_batch batch; /* the newest */
} tdi_sim_lane;

/* Puts go on while their lane does: to one peer one after the other, to
 * different ones at once, as queue pairs do. */
#define TDI_PUTS  16u
#define TDI_TASKS (TIDE_LANE_COUNT + TDI_PUTS) /* of a rank */

typedef struct tdi_sim_put {
    uint32_t at; /* the op; TDI_NO_INDEX: none */
    double since;
} tdi_sim_put;

typedef struct tdi_sim_rank {
    const tide_plan *plan;
    uint32_t *next;     /* [op]: the next op of its lane */
    uint64_t *counters; /* [channel][local peers, then nodes] */
    tdi_sim_lane lanes[TIDE_LANE_COUNT];
    uint32_t engines; /* copies that run; the one thread, on a host */
    tdi_sim_put puts[TDI_PUTS];
} tdi_sim_rank;

typedef struct tdi_world {
    const tide_machine *machine;
    const tide_sim_options *options;
    tide_topology topology;
    tide_coll coll;
    uint32_t ranks; /* simulated: all, or node 0's */
    bool beside;
    tdi_engine *engine;
    tdi_sim_rank *rank;
    tdi_cost cost; /* of the op at hand */
    tide_sim_result *result;
} tdi_world;

/* tide_simulate, which has copies inside a GPU `beside` those of its batch on
 * copy engines, as the CUDA backend has them; baselines do one by one. */
tide_status tdi_simulate(const tide_plan *const *plans,
                         const tide_machine *machine,
                         const tide_sim_options *options, bool beside,
                         tide_sim_result *result);

tide_status tdi_world_create(const tide_plan *const *plans,
                             const tide_machine *machine,
                             const tide_sim_options *options, tdi_world *world);
void tdi_world_free(tdi_world *world);

/* The counter that a WAIT of `rank` looks at. */
uint64_t *tdi_world_counter(const tdi_world *world, uint32_t rank,
                            uint32_t source, unsigned channel);
/* Which simulated rank sees a signal, and as whose. */
void tdi_world_route(const tdi_world *world, uint32_t from, uint32_t to,
                     uint32_t *rank, uint32_t *source);

#endif
