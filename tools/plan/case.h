/* The case that tide-plan looks at: a group on a topology, and its plans. */
#ifndef TIDE_TOOLS_PLAN_CASE_H
#define TIDE_TOOLS_PLAN_CASE_H

#include <tide/sim.h>

#include "plan/args.h"

typedef struct tdi_case {
    tide_layout *layout;
    tide_topology topology;
    tide_plan_options options;
    uint64_t bytes; /* of one rank: packed shard (ag), fp32 output (rs) */
} tdi_case;

/*
 * Makes the case of one number of nodes and one size (ignored with --group).
 * `machine` decides what the arguments leave open; it may be NULL. Errors:
 * those of the group, the layout and tide_plan_defaults.
 */
tide_status tdi_case_create(const tdi_plan_args *args,
                            const tide_machine *machine, uint32_t nodes,
                            uint64_t bytes, tdi_case *to);
void tdi_case_free(tdi_case *c);
static inline uint32_t tdi_case_ranks(const tdi_case *c)
{
    return c->topology.nodes * c->topology.local_size;
}

/* The plans of ranks 0..count-1; NULL-safe to free. */
tide_status tdi_plans_create(const tdi_case *c, uint32_t count,
                             tide_plan ***plans);
void tdi_plans_free(tide_plan **plans, uint32_t count);

#endif
