/* The all-gather benchmark: tide's landing, and the flat path's copy-out. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/util.h"
#include "layout/layout.h"
#include "perf/bench.h"
#include "perf/fill.h"
#include "perf/flat.h"

#define POISON 0xa5
#define ALIGN  512u        /* of storages, as PyTorch's allocator has it */
#define WINDOW (16u << 20) /* bytes of storages that are seen at a time */

typedef struct gather {
    const tdi_rank *rank;
    tdi_device *device;
    const tdi_params *params;
    tide_group *group;
    const tide_layout *layout;
    size_t count;
    uint64_t shard_bytes;
    void *shard;
    uint64_t *offset; /* of each storage in the block of all, and its end */
    unsigned char *block;
    void **storage;
    tide_request *last; /* that has not been joined */
    /* Push landing: storages in the arena. */
    tide_group *push_group;
    unsigned char *pushed_block;
    void **pushed;
    unsigned char *result; /* the block that the last run has written */
    /* The host's flat path: the packed shards of all ranks, gathered as one
     * parameter. */
    tide_group *flat_group;
    void *flat;
    void *unpack; /* the device's copy-out */
} gather;

static uint64_t flat_bytes(const tide_layout *layout)
{
    return tide_layout_shard_bytes(layout) * tide_layout_ranks(layout);
}

/* --- Memory --------------------------------------------------------------- */

static void free_gather(void *state)
{
    gather *g = state;
    if (!g)
        return;
    const tdi_device_kind *kind = g->device->kind;
    tide_request_free(g->last);
    if (g->unpack)
        kind->free_flat(g->unpack);
    kind->give(g->device, g->block);
    free(g->storage);
    tide_memory_give(g->rank->comm, g->pushed_block);
    free(g->pushed);
    free(g->offset);
    tide_group_free(g->push_group);
    kind->give(g->device, g->flat);
    kind->give(g->device, g->shard);
    tide_group_free(g->flat_group);
    tide_group_free(g->group);
    free(g);
}

static tide_status make_flat(gather *g)
{
    const tdi_device_kind *kind = g->device->kind;
    tide_param packed = {1, tide_layout_ranks(g->layout), g->shard_bytes,
                         TIDE_U8};
    if (kind->queued)
        return g->rank->nccl
                   ? kind->make_flat(g->device, g->layout, TIDE_ALL_GATHER,
                                     (const void *const *)g->storage,
                                     &g->unpack)
                   : TIDE_OK;
    TDI_TRY(
        tide_group_create(g->rank->comm, &packed, 1, "flat", &g->flat_group));
    return kind->take(g->device, flat_bytes(g->layout), &g->flat);
}

/* The first storage behind p that is not seen with it. */
static size_t window_end(const gather *g, size_t p)
{
    size_t end = p + 1;
    while (end < g->count && g->offset[end + 1] - g->offset[p] <= WINDOW)
        end++;
    return end;
}

static tide_status place_storages(gather *g, unsigned char *block,
                                  void ***storage)
{
    *storage = calloc(tdi_max(g->count, 1), sizeof(**storage));
    if (!*storage)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the group");
    for (size_t p = 0; p < g->count; p++)
        (*storage)[p] = block + g->offset[p];
    return TIDE_OK;
}

static tide_status take_memory(gather *g)
{
    const tdi_device_kind *kind = g->device->kind;
    uint64_t most = g->shard_bytes;
    void *block;
    g->offset = calloc(g->count + 1, sizeof(*g->offset));
    if (!g->offset)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the group");
    for (size_t p = 0; p < g->count; p++)
        g->offset[p + 1] =
            g->offset[p] +
            tdi_round_up(tide_layout_param(g->layout, p)->storage_bytes, ALIGN);
    for (size_t p = 0; p < g->count; p++)
        most = tdi_max(most, g->offset[window_end(g, p)] - g->offset[p]);
    TDI_TRY(kind->take(g->device, g->shard_bytes, &g->shard));
    TDI_TRY(kind->take(g->device, g->offset[g->count], &block));
    g->block = block;
    TDI_TRY(place_storages(g, g->block, &g->storage));
    return kind->reserve(g->device, most);
}

static tide_status create_gather(const tdi_rank *rank, const tdi_params *params,
                                 void **state)
{
    gather *g = *state = calloc(1, sizeof(*g));
    if (!g)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the benchmark");
    g->rank = rank;
    g->device = rank->device;
    g->params = params;
    TDI_TRY(tide_group_create(rank->comm, params->params, params->count,
                              "group", &g->group));
    g->layout = tide_group_layout(g->group);
    g->count = params->count;
    g->shard_bytes = tide_layout_shard_bytes(g->layout);
    TDI_TRY(take_memory(g));
    return make_flat(g);
}

static uint64_t get_bytes(const void *state)
{
    return ((const gather *)state)->shard_bytes;
}

/* --- Data ----------------------------------------------------------------- */

static uint64_t param_seed(uint64_t seed, size_t p)
{
    return tdi_hash(seed, p);
}

/* Every byte of a tensor depends on its place in the whole of it; the padding
 * is poison that no check may find. */
static tide_status fill_gather(void *state, uint64_t seed)
{
    gather *g = state;
    tdi_piece_iter iter;
    tdi_piece piece;
    unsigned char *shard = g->device->kind->view(g->device, g->shard);
    if (g->shard_bytes)
        memset(shard, POISON, g->shard_bytes);
    tdi_pieces_begin(&iter, g->layout, g->rank->boot->rank, 0, UINT64_MAX);
    while (tdi_pieces_next(&iter, &piece)) {
        const tide_param_layout *entry =
            tide_layout_param(g->layout, piece.param);
        uint64_t size = tide_dtype_size(entry->param.dtype);
        uint64_t inside = (piece.out_offset - entry->out_offset) * size;
        if (piece.real)
            tdi_fill_bytes(shard + entry->shard_offset + inside,
                           param_seed(seed, piece.param),
                           piece.grad_offset * size, piece.elems * size);
    }
    return g->device->kind->upload(g->device, g->shard, g->shard_bytes);
}

static tide_status poison_block(gather *g, unsigned char *block)
{
    return g->device->kind->set(g->device, block, POISON, g->offset[g->count]);
}

static tide_status poison_gather(void *state)
{
    gather *g = state;
    TDI_TRY(poison_block(g, g->block));
    if (g->pushed_block)
        TDI_TRY(poison_block(g, g->pushed_block));
    for (int w = 0; g->rank->nccl && w < TDI_NCCL_WAYS; w++) {
        void *buffer;
        if (!tdi_nccl_buffer(g->rank->nccl, (tdi_nccl_way)w, &buffer))
            TDI_TRY(g->device->kind->set(g->device, buffer, POISON,
                                         flat_bytes(g->layout)));
    }
    return TIDE_OK;
}

/* Looks at a parameter's `bytes` of `size` each; adds to *result. */
typedef void look_function(const void *got, uint64_t seed, uint64_t bytes,
                           uint64_t size, uint64_t *result);

static tide_status look_at_all(const gather *g, uint64_t seed,
                               look_function *look, uint64_t *result)
{
    const void *seen = NULL;
    for (size_t p = 0, first = 0, end = 0; p < g->count; p++) {
        const tide_param_layout *entry = tide_layout_param(g->layout, p);
        uint64_t size = tide_dtype_size(entry->param.dtype);
        if (p == end) {
            first = p;
            end = window_end(g, p);
            TDI_TRY(g->device->kind->download(
                g->device, g->result + g->offset[p],
                g->offset[end] - g->offset[p], &seen));
        }
        look((const unsigned char *)seen + g->offset[p] - g->offset[first],
             param_seed(seed, p), entry->grad_elems * size, size, result);
    }
    return TIDE_OK;
}

static void look_for_wrong(const void *got, uint64_t seed, uint64_t bytes,
                           uint64_t size, uint64_t *wrong)
{
    *wrong += tdi_wrong_bytes(got, seed, bytes, size);
}

static void look_for_hash(const void *got, uint64_t seed, uint64_t bytes,
                          uint64_t size, uint64_t *hash)
{
    (void)seed;
    (void)size;
    *hash = tdi_hash_bytes(got, bytes, *hash);
}

static tide_status count_wrong(void *state, uint64_t seed, uint64_t *wrong)
{
    return look_at_all(state, seed, look_for_wrong, wrong);
}

static tide_status digest(void *state, uint64_t *hash)
{
    *hash = 0;
    return look_at_all(state, 0, look_for_hash, hash);
}

/* --- tide ----------------------------------------------------------------- */

/* On a stream the copy follows the end of the slot's last use. */
static tide_status fill_and_start(const gather *g, void *stage,
                                  tide_request *request, void *const *storage)
{
    tide_stream stream = g->device->stream;
    if (g->device->kind->queued)
        TDI_TRY(tide_stream_wait(request, TIDE_PHASE_FREE, stream));
    TDI_TRY(g->device->kind->copy(g->device, stage, g->shard, g->shard_bytes));
    return tide_all_gather_start(request, storage, stream);
}

static tide_status join_gather(void *state)
{
    gather *g = state;
    tide_status status = TIDE_OK;
    if (g->last && g->device->kind->queued)
        status = tide_stream_wait(g->last, TIDE_PHASE_DONE, g->device->stream);
    tide_status freed = tide_request_free(g->last);
    g->last = NULL;
    return status ? status : freed;
}

static tide_status run_group(gather *g, tide_group *group, void *const *storage)
{
    void *stage;
    TDI_TRY(join_gather(g));
    TDI_TRY(tide_all_gather_begin(group, &stage, &g->last));
    TDI_TRY(fill_and_start(g, stage, g->last, storage));
    return g->rank->overlaps ? TIDE_OK : join_gather(g);
}

static tide_status run_tide(void *state)
{
    gather *g = state;
    g->result = g->block;
    return run_group(g, g->group, g->storage);
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

/* At the same offsets on all ranks: all take the same memory in one order. */
static tide_status take_pushed(gather *g)
{
    void *block;
    TDI_TRY(tide_memory_take(g->rank->comm, tdi_max(g->offset[g->count], 1),
                             &block));
    g->pushed_block = block;
    TDI_TRY(place_storages(g, g->pushed_block, &g->pushed));
    return poison_block(g, g->pushed_block);
}

/* Made only where push is asked for. */
static tide_status prepare_push(void *state)
{
    gather *g = state;
    const tide_plan_options push = {.coll = TIDE_ALL_GATHER, .push = 1};
    tide_comm_info info;
    if (g->push_group)
        return TIDE_OK;
    TDI_TRY(tide_comm_get_info(g->rank->comm, &info));
    if (!info.multicast)
        return tdi_fail(TIDE_ERR_UNSUPPORTED,
                        "no multicast among the ranks of a node");
    TDI_TRY(tide_group_create(g->rank->comm, g->params->params, g->count,
                              "push", &g->push_group));
    TDI_TRY(tide_group_set_options(g->push_group, &push));
    return take_pushed(g);
}

static tide_status run_push(void *state)
{
    gather *g = state;
    g->result = g->pushed_block;
    return run_group(g, g->push_group, g->pushed);
}

static tide_status push_bytes(void *state, uint64_t *bytes)
{
    return plan_bytes(((gather *)state)->push_group, bytes);
}

/* --- The flat path on tide's transport, host ------------------------------ */

static tide_status run_host_flat(void *state)
{
    gather *g = state;
    void *const storage[] = {g->flat};
    g->result = g->block;
    TDI_TRY(run_group(g, g->flat_group, storage));
    tdi_flat_unpack(g->layout, g->flat, g->storage);
    return TIDE_OK;
}

static tide_status host_flat_bytes(void *state, uint64_t *bytes)
{
    gather *g = state;
    TDI_TRY(plan_bytes(g->flat_group, bytes));
    *bytes += flat_bytes(g->layout);
    return TIDE_OK;
}

/* --- NCCL, with FSDP2's copy-out ------------------------------------------ */

/* As FSDP2 does: the shard is copied to its place in the gathered buffer. */
static tide_status gather_flat(gather *g, tdi_nccl_way way)
{
    void *flat;
    TDI_TRY(tdi_nccl_buffer(g->rank->nccl, way, &flat));
    void *mine = (char *)flat + g->rank->boot->rank * g->shard_bytes;
    TDI_TRY(g->device->kind->copy(g->device, mine, g->shard, g->shard_bytes));
    return tdi_nccl_gather(g->rank->nccl, way, mine, flat, g->shard_bytes);
}

static tide_status copy_out(gather *g, tdi_nccl_way way)
{
    void *flat;
    TDI_TRY(tdi_nccl_buffer(g->rank->nccl, way, &flat));
    g->result = g->block;
    return g->device->kind->queue_flat(g->device, g->unpack, flat);
}

static tide_status run_flat(void *state)
{
    return gather_flat(state, TDI_NCCL_DEFAULT);
}

static tide_status run_layout(void *state)
{
    return copy_out(state, TDI_NCCL_DEFAULT);
}

static tide_status run_nccl(void *state)
{
    TDI_TRY(gather_flat(state, TDI_NCCL_DEFAULT));
    return copy_out(state, TDI_NCCL_DEFAULT);
}

static tide_status run_ce(void *state)
{
    TDI_TRY(gather_flat(state, TDI_NCCL_CE));
    return copy_out(state, TDI_NCCL_CE);
}

static tide_status run_sym(void *state)
{
    TDI_TRY(gather_flat(state, TDI_NCCL_SYM));
    return copy_out(state, TDI_NCCL_SYM);
}

static tide_status nccl_bytes(void *state, uint64_t *bytes)
{
    *bytes = flat_bytes(((gather *)state)->layout);
    return TIDE_OK;
}

const tdi_bench_op tdi_bench_gather = {
    .name = "ag",
    .coll = TIDE_ALL_GATHER,
    .variants =
        {
            {.name = "tide",
             .key = "pull",
             .devices = TDI_ON_ALL,
             .run = run_tide,
             .buffer_bytes = tide_bytes},
            {.name = "tide-push",
             .key = "push",
             .special = 1,
             .devices = TDI_ON_QUEUED,
             .before = prepare_push,
             .run = run_push,
             .buffer_bytes = push_bytes},
            {.name = "flat",
             .key = "flat",
             .baseline = 1,
             .devices = TDI_ON_HOST,
             .run = run_host_flat,
             .buffer_bytes = host_flat_bytes},
            {.name = "nccl+copy-out",
             .key = "nccl",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_DEFAULT,
             .run = run_nccl,
             .buffer_bytes = nccl_bytes},
            {.name = "nccl-ce+copy-out",
             .key = "nccl-ce",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_CE,
             .run = run_ce,
             .buffer_bytes = nccl_bytes},
            {.name = "nccl-sym+copy-out",
             .key = "nccl-sym",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_SYM,
             .run = run_sym,
             .buffer_bytes = nccl_bytes},
            {.name = "flat",
             .key = "flat",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_DEFAULT,
             .run = run_flat,
             .after = run_layout,
             .buffer_bytes = nccl_bytes},
            {.name = "layout",
             .key = "layout",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_DEFAULT,
             .before = run_flat,
             .run = run_layout,
             .buffer_bytes = nccl_bytes},
        },
    .create = create_gather,
    .free = free_gather,
    .bytes = get_bytes,
    .flat_bytes = flat_bytes,
    .fill = fill_gather,
    .fill_noise = fill_gather,
    .poison = poison_gather,
    .join = join_gather,
    .count_wrong = count_wrong,
    .count_wrong_noise = count_wrong,
    .digest = digest,
};
