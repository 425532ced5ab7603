/* The public all-gather: begin, start, and both in one. */
#include "base/fail.h"
#include "base/util.h"
#include "exec/request.h"

#include <string.h>

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
    TDI_TRY(tdi_request_create(group, TDI_FLOW_GATHER, bound, request));
    tdi_request_enqueue(*request);
    uint32_t node = comm->rank / comm->topology.local_size;
    *shard = comm->backend->arena(
        comm, (*request)->scratch[TIDE_BUF_STAGE] +
                  node * tide_layout_shard_bytes(group->layout));
    return TIDE_OK;
}

/* A parameter without elements needs no storage. */
static tide_status check_storages(const tide_group *group, void *const *storage)
{
    size_t count = tide_layout_count(group->layout);
    for (size_t p = 0; p < count; p++)
        if (tide_layout_param(group->layout, p)->storage_bytes &&
            (!storage || !storage[p]))
            return tdi_fail(TIDE_ERR_INVALID,
                            "all-gather of %s: storage of parameter %zu is "
                            "NULL",
                            group->name, p);
    return TIDE_OK;
}

tide_status tide_all_gather_start(tide_request *request, void *const *storage)
{
    bool moved;
    if (!request || request->flow != TDI_FLOW_GATHER || request->started)
        return tdi_fail(TIDE_ERR_INVALID,
                        "no all-gather that was begun and not started");
    size_t count = tide_layout_count(request->group->layout);
    TDI_TRY(check_storages(request->group, storage));
    if (count && storage)
        memcpy(request->memory, storage, count * sizeof(void *));
    request->started = true;
    return tdi_run_all(request->comm, &moved);
}

/* Copies this rank's rows into the packed shard, zeros after them. */
static void fill_param(const tide_layout *layout, size_t p, uint32_t rank,
                       const char *from, char *shard)
{
    const tide_param_layout *param = tide_layout_param(layout, p);
    uint64_t first;
    uint64_t rows = tide_layout_rows(layout, p, rank, &first);
    uint64_t bytes = param->param.outer * rows * param->param.inner *
                     tide_dtype_size(param->param.dtype);
    char *to = shard + param->shard_offset;
    if (bytes)
        memcpy(to, from, bytes);
    memset(to + bytes, 0, param->shard_bytes - bytes);
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

tide_status tide_all_gather(tide_group *group, const void *const *shard,
                            void *const *storage)
{
    void *stage;
    tide_request *request;
    if (!group)
        return tdi_fail(TIDE_ERR_INVALID, "group is NULL");
    TDI_TRY(check_shards(group, shard));
    TDI_TRY(check_storages(group, storage));
    size_t count = tide_layout_count(group->layout);
    TDI_TRY(tide_all_gather_begin(group, &stage, &request));
    for (size_t p = 0; p < count; p++)
        fill_param(group->layout, p, group->comm->rank, shard ? shard[p] : NULL,
                   stage);
    tide_status status = tide_all_gather_start(request, storage);
    tide_status freed = tide_request_free(request);
    return status ? status : freed;
}
