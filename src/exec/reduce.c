/* The public reduce-scatter: where the gradients are, and the start. */
#include "base/fail.h"
#include "base/util.h"
#include "exec/request.h"

#include <string.h>

enum { COPY_ALIGN = 64 };

static tide_status check_args(const tide_group *group,
                              const tide_reduce_args *args)
{
    if (!group || !args)
        return tdi_fail(TIDE_ERR_INVALID, "group or args is NULL");
    size_t count = tide_layout_count(group->layout);
    for (size_t p = 0; p < count; p++)
        if (tide_layout_param(group->layout, p)->grad_elems &&
            (!args->grad || !args->grad[p]))
            return tdi_fail(TIDE_ERR_INVALID,
                            "reduce-scatter of %s: gradient of parameter %zu "
                            "is NULL",
                            group->name, p);
    if (tide_layout_out_elems(group->layout) && !args->out)
        return tdi_fail(TIDE_ERR_INVALID, "reduce-scatter of %s: out is NULL",
                        group->name);
    return TIDE_OK;
}

/* Two tables of entries, used in turn. */
static tide_status make_table(tide_group *group)
{
    tide_comm *comm = group->comm;
    uint64_t each = tdi_round_up(tdi_max(1, tide_layout_count(group->layout)) *
                                     sizeof(tdi_grad_entry),
                                 comm->arena.page);
    if (group->table)
        return TIDE_OK;
    return tdi_arena_take(&comm->arena, 2 * each, &group->table);
}

/* A gradient of a call, and how peers will read it. */
typedef struct grad {
    const void *data;
    uint64_t bytes;
    tide_slot *slot; /* that it lies in, or NULL */
    bool copied;     /* to the arena, for the call's time */
} grad;

static grad look_at(const tide_group *group, const tide_reduce_args *args,
                    size_t p)
{
    const tide_comm *comm = group->comm;
    grad g = {.data = args->grad ? args->grad[p] : NULL,
              .bytes = tide_layout_param(group->layout, p)->grad_elems *
                       tide_dtype_size(args->grad_dtype)};
    if (!g.bytes)
        return g;
    g.slot = tdi_find_slot(comm, g.data, g.bytes);
    g.copied = !g.slot && g.bytes < comm->private_min;
    return g;
}

/* One range for all gradients that peers cannot read, or not cheaply. */
static tide_status take_copies(tide_request *request,
                               const tide_reduce_args *args)
{
    size_t count = tide_layout_count(request->group->layout);
    uint64_t bytes = 0;
    for (size_t p = 0; p < count; p++) {
        grad g = look_at(request->group, args, p);
        bytes += g.copied ? tdi_round_up(g.bytes, COPY_ALIGN) : 0;
        if (g.slot && !g.slot->range)
            return tdi_fail(TIDE_ERR_INVALID,
                            "reduce-scatter of %s: gradient of parameter %zu "
                            "lies in a vacated slot",
                            request->group->name, p);
    }
    return bytes ? tdi_arena_take(&request->comm->arena, bytes,
                                  &request->held[count])
                 : TIDE_OK;
}

/* Memory of the arena is held until peers have read it, so a slot may go. */
static void expose_grad(tide_request *request, size_t p, const grad *g,
                        uint64_t copy_at, tdi_grad_entry *entry)
{
    tide_comm *comm = request->comm;
    *entry = (tdi_grad_entry){(uint64_t)(uintptr_t)g->data, 1};
    request->memory[p] = (void *)(uintptr_t)g->data;
    if (!g->slot && !g->copied)
        return;
    entry->is_private = 0;
    entry->where = copy_at;
    if (g->slot) {
        const char *start = g->slot->address;
        entry->where =
            g->slot->range->offset + (uint64_t)((const char *)g->data - start);
        request->held[p] = g->slot->range;
        tdi_range_keep(g->slot->range);
    }
    request->memory[p] = comm->backend->arena(comm, entry->where);
    if (g->copied)
        memcpy(request->memory[p], g->data, g->bytes);
}

static tide_status expose_grads(tide_request *request,
                                const tide_reduce_args *args)
{
    tide_group *group = request->group;
    tide_comm *comm = request->comm;
    uint64_t table =
        group->table->offset + request->turn % 2 * (group->table->bytes / 2);
    tdi_grad_entry *entries =
        (tdi_grad_entry *)comm->backend->arena(comm, table);
    size_t count = tide_layout_count(group->layout);
    TDI_TRY(take_copies(request, args));
    uint64_t copy_at = request->held[count] ? request->held[count]->offset : 0;
    for (size_t p = 0; p < count; p++) {
        grad g = look_at(group, args, p);
        expose_grad(request, p, &g, copy_at, &entries[p]);
        copy_at += g.copied ? tdi_round_up(g.bytes, COPY_ALIGN) : 0;
    }
    return TIDE_OK;
}

tide_status tide_reduce_scatter_start(tide_group *group,
                                      const tide_reduce_args *args,
                                      tide_request **request)
{
    const tdi_bound *bound;
    bool moved;
    if (!request)
        return tdi_fail(TIDE_ERR_INVALID, "request is NULL");
    *request = NULL;
    TDI_TRY(check_args(group, args));
    TDI_TRY(tdi_comm_check(group->comm));
    TDI_TRY(tdi_group_bind(group, TIDE_REDUCE_SCATTER, args->grad_dtype,
                           args->out_dtype, &bound));
    TDI_TRY(make_table(group));
    tide_request *made;
    TDI_TRY(tdi_request_create(group, TDI_FLOW_REDUCE, bound, &made));
    tide_status status = expose_grads(made, args);
    if (status) {
        tdi_request_drop(made);
        return status;
    }
    made->out = args->out;
    made->scale = args->scale;
    made->started = true;
    tdi_request_enqueue(made);
    status = tdi_run_all(group->comm, &moved);
    if (status)
        tide_request_free(made);
    else
        *request = made;
    return status;
}

tide_status tide_reduce_scatter(tide_group *group, const tide_reduce_args *args)
{
    tide_request *request;
    tide_status status = tide_reduce_scatter_start(group, args, &request);
    tide_status freed = tide_request_free(request);
    return status ? status : freed;
}
