/* The all-gather benchmark: tide's landing, and the flat path's copy-out. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/util.h"
#include "layout/layout.h"
#include "perf/bench.h"
#include "perf/fill.h"
#include "perf/flat.h"

typedef struct gather {
    tide_group *group;
    tide_group *flat_group; /* one parameter: the packed shard */
    const tide_layout *layout;
    uint32_t rank;
    size_t count;
    uint64_t shard_bytes;
    unsigned char *shard;
    unsigned char *flat; /* the packed shards of all ranks */
    void **storage;
} gather;

static void free_gather(void *state)
{
    gather *g = state;
    if (!g)
        return;
    for (size_t p = 0; g->storage && p < g->count; p++)
        free(g->storage[p]);
    free(g->storage);
    free(g->flat);
    free(g->shard);
    tide_group_free(g->flat_group);
    tide_group_free(g->group);
    free(g);
}

static tide_status make_groups(gather *g, tide_comm *comm,
                               const tdi_params *params)
{
    TDI_TRY(tide_group_create(comm, params->params, params->count, "group",
                              &g->group));
    g->layout = tide_group_layout(g->group);
    g->count = params->count;
    g->shard_bytes = tide_layout_shard_bytes(g->layout);
    tide_param packed = {1, tide_layout_ranks(g->layout), g->shard_bytes,
                         TIDE_U8};
    return tide_group_create(comm, &packed, 1, "flat", &g->flat_group);
}

static tide_status take_memory(gather *g)
{
    tide_status status = TIDE_OK;
    g->shard = tdi_bench_take(g->shard_bytes, &status);
    g->flat =
        tdi_bench_take(g->shard_bytes * tide_layout_ranks(g->layout), &status);
    g->storage = calloc(tdi_max(g->count, 1), sizeof(*g->storage));
    if (!g->storage)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the group");
    for (size_t p = 0; !status && p < g->count; p++)
        g->storage[p] = tdi_bench_take(
            tide_layout_param(g->layout, p)->storage_bytes, &status);
    return status;
}

static tide_status create_gather(tide_comm *comm, const tdi_params *params,
                                 void **state)
{
    tide_comm_info info;
    gather *g = *state = calloc(1, sizeof(*g));
    if (!g)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the benchmark");
    TDI_TRY(tide_comm_get_info(comm, &info));
    g->rank = info.rank;
    TDI_TRY(make_groups(g, comm, params));
    return take_memory(g);
}

static uint64_t get_bytes(const void *state)
{
    return ((const gather *)state)->shard_bytes;
}

static uint64_t param_seed(uint64_t seed, size_t p)
{
    return tdi_hash(seed, p);
}

/* Every byte of a tensor depends on its place in the whole of it; the padding
 * is poison that no check may find. */
static void fill_gather(void *state, uint64_t seed)
{
    gather *g = state;
    tdi_piece_iter iter;
    tdi_piece piece;
    memset(g->shard, 0xa5, g->shard_bytes);
    tdi_pieces_begin(&iter, g->layout, g->rank, 0, UINT64_MAX);
    while (tdi_pieces_next(&iter, &piece)) {
        const tide_param_layout *entry =
            tide_layout_param(g->layout, piece.param);
        uint64_t size = tide_dtype_size(entry->param.dtype);
        uint64_t inside = (piece.out_offset - entry->out_offset) * size;
        if (piece.real)
            tdi_fill_bytes(g->shard + entry->shard_offset + inside,
                           param_seed(seed, piece.param),
                           piece.grad_offset * size, piece.elems * size);
    }
}

static void poison_gather(void *state)
{
    gather *g = state;
    for (size_t p = 0; p < g->count; p++)
        memset(g->storage[p], 0xa5,
               tide_layout_param(g->layout, p)->storage_bytes);
}

static uint64_t count_wrong(const void *state, uint64_t seed)
{
    const gather *g = state;
    uint64_t wrong = 0;
    for (size_t p = 0; p < g->count; p++) {
        const tide_param_layout *entry = tide_layout_param(g->layout, p);
        uint64_t size = tide_dtype_size(entry->param.dtype);
        wrong += tdi_wrong_bytes(g->storage[p], param_seed(seed, p),
                                 entry->grad_elems * size, size);
    }
    return wrong;
}

static tide_status run_group(const gather *g, tide_group *group,
                             void *const *storage)
{
    void *stage;
    tide_request *request;
    TDI_TRY(tide_all_gather_begin(group, &stage, &request));
    if (g->shard_bytes)
        memcpy(stage, g->shard, g->shard_bytes);
    tide_status status = tide_all_gather_start(request, storage);
    tide_status freed = tide_request_free(request);
    return status ? status : freed;
}

static tide_status run_tide(void *state)
{
    gather *g = state;
    return run_group(g, g->group, g->storage);
}

static tide_status run_flat(void *state)
{
    gather *g = state;
    void *const storage[] = {g->flat};
    TDI_TRY(run_group(g, g->flat_group, storage));
    tdi_flat_unpack(g->layout, g->flat, g->storage);
    return TIDE_OK;
}

static tide_status plan_bytes(tide_group *group, uint64_t *bytes)
{
    const tide_plan *plan;
    tide_plan_stats stats;
    TDI_TRY(
        tide_group_plan(group, TIDE_ALL_GATHER, TIDE_BF16, TIDE_F32, &plan));
    tide_plan_get_stats(plan, &stats);
    *bytes = stats.buffer_bytes;
    return TIDE_OK;
}

static tide_status tide_bytes(void *state, uint64_t *bytes)
{
    return plan_bytes(((gather *)state)->group, bytes);
}

static tide_status flat_bytes(void *state, uint64_t *bytes)
{
    gather *g = state;
    TDI_TRY(plan_bytes(g->flat_group, bytes));
    *bytes += g->shard_bytes * tide_layout_ranks(g->layout);
    return TIDE_OK;
}

const tdi_bench_op tdi_bench_gather = {
    .name = "ag",
    .variants = {{"tide", "", 0, run_tide, tide_bytes},
                 {"flat", "flat", 1, run_flat, flat_bytes}},
    .create = create_gather,
    .free = free_gather,
    .bytes = get_bytes,
    .fill = fill_gather,
    .poison = poison_gather,
    .count_wrong = count_wrong,
};
