/* The public reduce-scatter: where the gradients are, and the start. */
#include "base/fail.h"
#include "base/util.h"
#include "exec/queue.h"
#include "exec/request.h"

#include <string.h>

enum { COPY_ALIGN = 256 };

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

/* A gradient of a call, and how peers will read it. */
typedef struct grad {
    const void *data;
    uint64_t bytes;
    uint64_t offset; /* in the arena, where peers can read it there */
    tide_slot *slot; /* that it lies in, or NULL */
    bool inside;     /* the arena */
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
    if (g.slot && g.slot->range)
        g.offset = g.slot->range->offset +
                   (uint64_t)((const char *)g.data - (char *)g.slot->address);
    g.inside = g.slot || tdi_find_arena(comm, g.data, g.bytes, &g.offset);
    g.copied = !g.inside && g.bytes < comm->private_min;
    return g;
}

/* Calls of a device follow one another and may share one range. A range for
 * each would go when the device is through, which is not the same for all
 * ranks, and so would offsets of what is taken later. */
static tide_status share_copies(tide_request *request, uint64_t bytes)
{
    tide_comm *comm = request->comm;
    tdi_flow *flow = &comm->flows[request->flow];
    if (!flow->copies || flow->copies->bytes < bytes) {
        tdi_queue_settle(comm, request->flow);
        TDI_TRY(tdi_comm_check(comm));
        if (flow->copies)
            tdi_arena_drop(comm, flow->copies);
        flow->copies = NULL;
        TDI_TRY(tdi_arena_take(&comm->arena, bytes, &flow->copies));
    }
    request->held[tide_layout_count(request->group->layout)] = flow->copies;
    tdi_range_keep(&comm->arena, flow->copies);
    return TIDE_OK;
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
    if (!bytes)
        return TIDE_OK;
    if (request->comm->backend->queue)
        return share_copies(request, bytes);
    return tdi_arena_take(&request->comm->arena, bytes, &request->held[count]);
}

/* A slot's memory is held until peers have read it, so the slot may go. */
static void expose_grad(tide_request *request, size_t p, const grad *g,
                        uint64_t copy_at, tdi_grad_entry *entry)
{
    tide_comm *comm = request->comm;
    *entry = (tdi_grad_entry){(uint64_t)(uintptr_t)g->data, 1};
    request->memory[p] = (void *)(uintptr_t)g->data;
    if (!g->inside && !g->copied)
        return;
    entry->is_private = 0;
    entry->where = g->copied ? copy_at : g->offset;
    if (g->slot) {
        request->held[p] = g->slot->range;
        tdi_range_keep(&comm->arena, g->slot->range);
    }
    request->memory[p] = comm->backend->arena(comm, entry->where);
    comm->copied_bytes += g->copied ? g->bytes : 0;
    if (g->copied && comm->backend->queue)
        request->copied[p] = g->data;
    else if (g->copied)
        memcpy(request->memory[p], g->data, g->bytes);
}

static tide_status expose_grads(tide_request *request,
                                const tide_reduce_args *args)
{
    tide_group *group = request->group;
    tdi_grad_entry *entries = tdi_request_table(request);
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
    TDI_TRY(tdi_request_make_tables(group, TIDE_REDUCE_SCATTER));
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
    if (!group->comm->backend->queue)
        status = tdi_run_all(group->comm, &moved);
    else if ((status = tdi_queue_start(made, args->stream)))
        tdi_comm_failed(group->comm, status, group->comm->rank);
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
    if (!status)
        status = tide_wait(request, TIDE_PHASE_DONE);
    if (!status)
        status = tide_wait(request, TIDE_PHASE_READS);
    tide_status freed = tide_request_free(request);
    return status ? status : freed;
}
