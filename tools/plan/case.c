/* Makes the case that tide-plan looks at, and its plans. */
#include "plan/case.h"

#include "base/fail.h"
#include "common/groups.h"

#include <stdbool.h>
#include <stdlib.h>

static uint64_t bytes_of(const tdi_case *c)
{
    return c->options.coll == TIDE_ALL_GATHER
               ? tide_layout_shard_bytes(c->layout)
               : tide_layout_out_elems(c->layout) * sizeof(float);
}

static tide_status load_group(const tdi_plan_args *args, uint64_t bytes,
                              uint32_t ranks, tdi_params *params)
{
    bool gather = args->options.coll == TIDE_ALL_GATHER;
    if (args->group)
        return tdi_params_load(args->group, args->scale, params);
    return tdi_params_split(bytes / (gather ? 2 : sizeof(float)), ranks,
                            params);
}

/* What the arguments leave open, the machine decides. */
static void choose_options(const tdi_plan_args *args,
                           const tide_machine *machine, tide_plan_options *to)
{
    bool multicast = machine && machine->multicast_gbps > 0;
    *to = args->options;
    to->push = args->multicast < 0 ? multicast : args->multicast;
    to->switch_reduce = to->push;
    to->together = machine && machine->cores <= 0;
    to->staged =
        args->staged < 0 ? !machine || machine->staged > 0 : args->staged;
    if (machine && !to->block_bytes)
        to->block_bytes = (uint64_t)machine->block_kib << 10;
    if (machine && !to->unit_bytes) /* as the host backend has it, or default */
        to->unit_bytes = machine->cores > 0;
}

tide_status tdi_case_create(const tdi_plan_args *args,
                            const tide_machine *machine, uint32_t nodes,
                            uint64_t bytes, tdi_case *to)
{
    tdi_params params = {0};
    uint32_t local = args->local;
    if (!local)
        local = machine ? (uint32_t)machine->local_size : 8;
    *to = (tdi_case){.topology = {nodes, local}};
    choose_options(args, machine, &to->options);
    if ((uint64_t)nodes * local > TIDE_MAX_RANKS)
        return tdi_fail(TIDE_ERR_INVALID, "%u nodes of %u ranks are too many",
                        nodes, local);
    tide_status status = load_group(args, bytes, tdi_case_ranks(to), &params);
    if (!status)
        status = tide_layout_create(params.params, params.count,
                                    tdi_case_ranks(to), &to->layout);
    if (!status)
        status = tide_plan_defaults(to->layout, to->topology, &to->options);
    tdi_params_free(&params);
    if (status)
        tdi_case_free(to);
    else
        to->bytes = bytes_of(to);
    return status;
}

void tdi_case_free(tdi_case *c)
{
    tide_layout_free(c->layout);
    c->layout = NULL;
}

tide_status tdi_plans_create(const tdi_case *c, uint32_t count,
                             tide_plan ***plans)
{
    tide_plan **made = calloc(count, sizeof(*made));
    tide_status status =
        made ? TIDE_OK
             : tdi_fail(TIDE_ERR_MEMORY, "no memory for %u plans", count);
    for (uint32_t r = 0; r < count && !status; r++)
        status =
            tide_plan_create(c->layout, c->topology, r, &c->options, &made[r]);
    if (status) {
        tdi_plans_free(made, count);
        made = NULL;
    }
    *plans = made;
    return status;
}

void tdi_plans_free(tide_plan **plans, uint32_t count)
{
    for (uint32_t r = 0; plans && r < count; r++)
        tide_plan_free(plans[r]);
    free(plans);
}
