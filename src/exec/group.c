/* Groups: a layout, and the plans of its collectives, made once. */
#include "base/env.h"
#include "base/fail.h"
#include "exec/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the user or the backend prefers to the planner's own defaults. */
static void set_default_sizes(const tide_comm *comm, tide_plan_options *options)
{
    if (!options->chunk_bytes)
        options->chunk_bytes = (uint64_t)tdi_env_number(TDI_ENV_CHUNK_KIB)
                               << 10;
    if (!options->block_bytes)
        options->block_bytes = comm->block_bytes;
    if (!options->unit_bytes)
        options->unit_bytes = comm->unit_bytes;
}

tide_status tide_group_create(tide_comm *comm, const tide_param *params,
                              size_t count, const char *name,
                              tide_group **group)
{
    if (!comm || !group)
        return tdi_fail(TIDE_ERR_INVALID, "comm or group is NULL");
    *group = NULL;
    tide_group *made = calloc(1, sizeof(*made));
    if (!made)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a group");
    tide_status status = tide_layout_create(
        params, count, comm->topology.nodes * comm->topology.local_size,
        &made->layout);
    if (status) {
        free(made);
        return status;
    }
    made->comm = comm;
    snprintf(made->name, sizeof(made->name), "%s", name ? name : "group");
    made->options[TIDE_ALL_GATHER].coll = TIDE_ALL_GATHER;
    made->options[TIDE_ALL_GATHER].together = comm->together;
    made->options[TIDE_REDUCE_SCATTER].coll = TIDE_REDUCE_SCATTER;
    made->options[TIDE_REDUCE_SCATTER].staged = comm->staged;
    made->options[TIDE_REDUCE_SCATTER].switch_reduce = comm->multicast;
    for (int coll = 0; coll < 2; coll++)
        set_default_sizes(comm, &made->options[coll]);
    *group = made;
    return TIDE_OK;
}

static void unbind(tdi_bound *bound)
{
    tide_plan_free(bound->plan);
    tdi_queue_unbind(bound);
    free(bound->next);
    *bound = (tdi_bound){0};
}

void tide_group_free(tide_group *group)
{
    if (!group)
        return;
    if (group->comm->backend->queue)
        tdi_queue_forget(group->comm, group);
    unbind(&group->gather);
    for (int i = 0; i < TDI_RS_PLANS; i++)
        unbind(&group->reduce[i]);
    for (int coll = 0; coll < 2; coll++)
        if (group->table[coll])
            tdi_range_drop(group->comm->tables, group->table[coll]);
    tide_layout_free(group->layout);
    free(group);
}

const tide_layout *tide_group_layout(const tide_group *group)
{
    return group ? group->layout : NULL;
}

tide_status tide_group_set_options(tide_group *group,
                                   const tide_plan_options *options)
{
    if (!group || !options)
        return tdi_fail(TIDE_ERR_INVALID, "group or options is NULL");
    if (options->coll != TIDE_ALL_GATHER &&
        options->coll != TIDE_REDUCE_SCATTER)
        return tdi_fail(TIDE_ERR_INVALID, "no collective %d", options->coll);
    if (group->requests)
        return tdi_fail(TIDE_ERR_INVALID,
                        "options of %s change while it has %u requests",
                        group->name, group->requests);
    if ((options->push || options->switch_reduce) && !group->comm->multicast)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "push landing or switch sums of %s: the %s backend has "
                        "no multicast here",
                        group->name, group->comm->backend->name);
    if (group->comm->backend->queue)
        tdi_queue_forget(group->comm, group);
    group->options[options->coll] = *options;
    set_default_sizes(group->comm, &group->options[options->coll]);
    if (options->coll == TIDE_ALL_GATHER) {
        unbind(&group->gather);
        return TIDE_OK;
    }
    for (int i = 0; i < TDI_RS_PLANS; i++)
        unbind(&group->reduce[i]);
    return TIDE_OK;
}

/* Links the ops of each lane. */
static tide_status bind_lanes(tdi_bound *bound)
{
    const tide_plan *plan = bound->plan;
    bound->next = malloc(((size_t)plan->op_count + 1) * sizeof(uint32_t));
    if (!bound->next)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan's lanes");
    for (int lane = 0; lane < TIDE_LANE_COUNT; lane++)
        bound->first[lane] = UINT32_MAX;
    for (uint32_t i = plan->op_count; i-- > 0;) {
        uint8_t lane = plan->ops[i].lane;
        bound->next[i] = bound->first[lane];
        bound->first[lane] = i;
    }
    return TIDE_OK;
}

tide_status tdi_group_bind(tide_group *group, tide_coll coll, tide_dtype grad,
                           tide_dtype out, const tdi_bound **bound)
{
    tide_comm *comm = group->comm;
    tide_plan_options options = group->options[coll];
    tdi_bound *slot = &group->gather;
    if (coll == TIDE_REDUCE_SCATTER) {
        if ((grad != TIDE_BF16 && grad != TIDE_F32) ||
            (out != TIDE_BF16 && out != TIDE_F32))
            return tdi_fail(TIDE_ERR_INVALID,
                            "reduce-scatter of %s from %s to %s: both must be "
                            "bf16 or f32",
                            group->name, tide_dtype_name(grad),
                            tide_dtype_name(out));
        slot = &group->reduce[(grad == TIDE_F32) * 2 + (out == TIDE_F32)];
        options.grad_dtype = grad;
        options.out_dtype = out;
    }
    *bound = slot;
    if (slot->plan)
        return TIDE_OK;
    TDI_TRY(tide_plan_create(group->layout, comm->topology, comm->rank,
                             &options, &slot->plan));
    tide_status status = bind_lanes(slot);
    if (!status && comm->backend->queue)
        status = tdi_queue_bind(comm, slot);
    if (status)
        unbind(slot);
    return status;
}

tide_status tide_group_plan(tide_group *group, tide_coll coll,
                            tide_dtype grad_dtype, tide_dtype out_dtype,
                            const tide_plan **plan)
{
    const tdi_bound *bound;
    if (!group || !plan ||
        (coll != TIDE_ALL_GATHER && coll != TIDE_REDUCE_SCATTER))
        return tdi_fail(TIDE_ERR_INVALID, "group or plan is NULL, or no "
                                          "collective is named");
    TDI_TRY(tdi_group_bind(group, coll, grad_dtype, out_dtype, &bound));
    *plan = bound->plan;
    return TIDE_OK;
}
