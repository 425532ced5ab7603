/* The public all-gather: begin, start, and both in one. */
#include "base/fail.h"
#include "base/util.h"
#include "exec/queue.h"
#include "exec/request.h"

#include <string.h>

/* Ops that are half queued cannot be taken back. */
static tide_status fail_begin(tide_request **request, tide_status status)
{
    tide_request *made = *request;
    *request = NULL;
    tdi_comm_failed(made->comm, status, made->comm->rank);
    tide_request_free(made);
    return status;
}

tide_status tide_all_gather_begin(tide_group *group, void **shard,
                                  tide_request **request)
{
    const tdi_bound *bound;
    if (!group || !shard || !request)
        return tdi_fail(TIDE_ERR_INVALID, "group, shard or request is NULL");
    *request = NULL;
    tide_comm *comm = group->comm;
    TDI_TRY(tdi_comm_check(comm));
    TDI_TRY(tdi_group_bind(group, TIDE_ALL_GATHER, 0, 0, &bound));
    if (bound->plan->options.push)
        TDI_TRY(tdi_request_make_tables(group, TIDE_ALL_GATHER));
    TDI_TRY(tdi_request_create(group, TDI_FLOW_GATHER, bound, request));
    tdi_request_enqueue(*request);
    if (comm->backend->queue) {
        tide_status status = tdi_queue_begin(*request);
        if (status)
            return fail_begin(request, status);
    }
    uint32_t node = comm->rank / comm->topology.local_size;
    *shard = comm->backend->arena(
        comm, (*request)->scratch[TIDE_BUF_STAGE] +
                  node * tide_layout_shard_bytes(group->layout));
    return TIDE_OK;
}

/* A parameter without elements needs no storage. With push landing peers write
 * at my offset of the arena. */
static tide_status check_storages(const tide_group *group, void *const *storage)
{
    const tide_comm *comm = group->comm;
    size_t count = tide_layout_count(group->layout);
    for (size_t p = 0; p < count; p++) {
        uint64_t bytes = tide_layout_param(group->layout, p)->storage_bytes;
        uint64_t offset;
        if (bytes && (!storage || !storage[p]))
            return tdi_fail(TIDE_ERR_INVALID,
                            "all-gather of %s: storage of parameter %zu is "
                            "NULL",
                            group->name, p);
        if (bytes && group->options[TIDE_ALL_GATHER].push &&
            !tdi_find_arena(comm, storage[p], bytes, &offset))
            return tdi_fail(TIDE_ERR_INVALID,
                            "rank %u: all-gather of %s: push landing, and "
                            "storage of parameter %zu is not in the arena "
                            "(tide_memory_take)",
                            comm->rank, group->name, p);
    }
    return TIDE_OK;
}

/* Where they are, for peers to compare. */
static void expose_storages(tide_request *request, void *const *storage)
{
    const tide_group *group = request->group;
    tdi_grad_entry *entries = tdi_request_table(request);
    for (size_t p = 0; p < tide_layout_count(group->layout); p++) {
        uint64_t bytes = tide_layout_param(group->layout, p)->storage_bytes;
        entries[p] = (tdi_grad_entry){0, 0};
        if (bytes)
            tdi_find_arena(group->comm, storage[p], bytes, &entries[p].where);
    }
}

tide_status tide_all_gather_start(tide_request *request, void *const *storage,
                                  tide_stream stream)
{
    bool moved;
    if (!request || request->flow != TDI_FLOW_GATHER || request->started)
        return tdi_fail(TIDE_ERR_INVALID,
                        "no all-gather that was begun and not started");
    tide_comm *comm = request->comm;
    tide_group *group = request->group;
    size_t count = tide_layout_count(group->layout);
    TDI_TRY(check_storages(group, storage));
    if (request->bound->plan->options.push)
        expose_storages(request, storage);
    if (count && storage)
        memcpy(request->memory, storage, count * sizeof(void *));
    if (!comm->backend->queue) {
        request->started = true;
        return tdi_run_all(comm, &moved);
    }
    TDI_TRY(tdi_comm_check(comm));
    request->started = true;
    tide_status status = tdi_queue_start(request, stream);
    return status ? tdi_comm_failed(comm, status, comm->rank) : TIDE_OK;
}

/* Copies this rank's rows into the packed shard, zeros after them. */
static tide_status fill_param(tide_request *request, size_t p, const char *from,
                              char *shard)
{
    const tide_layout *layout = request->group->layout;
    const tide_param_layout *param = tide_layout_param(layout, p);
    uint64_t first;
    uint64_t rows = tide_layout_rows(layout, p, request->comm->rank, &first);
    uint64_t bytes = param->param.outer * rows * param->param.inner *
                     tide_dtype_size(param->param.dtype);
    char *to = shard + param->shard_offset;
    uint64_t padding = param->shard_bytes - bytes;
    if (request->comm->backend->queue) {
        TDI_TRY(tdi_queue_fill(request, to, bytes ? from : NULL, bytes));
        return tdi_queue_fill(request, to + bytes, NULL, padding);
    }
    if (bytes)
        memcpy(to, from, bytes);
    memset(to + bytes, 0, padding);
    return TIDE_OK;
}

static tide_status check_shards(const tide_group *group,
                                const void *const *shard)
{
    size_t count = tide_layout_count(group->layout);
    uint64_t first;
    for (size_t p = 0; p < count; p++) {
        const tide_param_layout *param = tide_layout_param(group->layout, p);
        if (param->shard_bytes &&
            tide_layout_rows(group->layout, p, group->comm->rank, &first) &&
            (!shard || !shard[p]))
            return tdi_fail(TIDE_ERR_INVALID,
                            "all-gather of %s: shard of parameter %zu is NULL",
                            group->name, p);
    }
    return TIDE_OK;
}

static tide_status fill_shard(tide_request *request, const void *const *shard,
                              char *stage)
{
    bool queued = request->comm->backend->queue != NULL;
    size_t count = tide_layout_count(request->group->layout);
    tide_status status = queued ? tdi_queue_fill_begin(request) : TIDE_OK;
    if (status)
        return status;
    for (size_t p = 0; !status && p < count; p++)
        status = fill_param(request, p, shard ? shard[p] : NULL, stage);
    tide_status ended = queued ? tdi_queue_fill_end(request) : TIDE_OK;
    return status ? status : ended;
}

tide_status tide_all_gather(tide_group *group, const void *const *shard,
                            void *const *storage)
{
    void *stage;
    tide_request *request;
    if (!group)
        return tdi_fail(TIDE_ERR_INVALID, "group is NULL");
    TDI_TRY(check_shards(group, shard));
    TDI_TRY(check_storages(group, storage));
    TDI_TRY(tide_all_gather_begin(group, &stage, &request));
    tide_status status = fill_shard(request, shard, stage);
    if (!status)
        status = tide_all_gather_start(request, storage, NULL);
    if (!status)
        status = tide_wait(request, TIDE_PHASE_DONE);
    tide_status freed = tide_request_free(request);
    return status ? status : freed;
}
