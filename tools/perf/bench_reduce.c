/* The reduce-scatter benchmark: gradients read in place, read from vacated
 * storage, or packed to fp32 first as the flat path does. */
#include <stdlib.h>

#include "base/fail.h"
#include "base/util.h"
#include "layout/layout.h"
#include "perf/bench.h"
#include "perf/fill.h"
#include "perf/flat.h"

#define SCALE      0.5f /* exact, and a scale that is forgotten shows */
#define GRAD_ALIGN 256u

typedef struct reduce {
    const tdi_rank *rank;
    tdi_device *device;
    tide_group *group;
    const tide_layout *layout;
    size_t count;
    uint64_t out_elems;
    int reads_private;
    void **grad;    /* ordinary memory */
    void **placed;  /* the same where peers read it: of tide_memory_take */
    void **vacated; /* the same gradients' places in the slot */
    tide_slot *slot;
    void *out;
    tide_request *last; /* on a stream: peers may still read its gradients */
    /* Of the last run: where its sums are, and their scale. */
    void *result;
    float scale;
    /* The host's flat path: fp32, rank-major, one parameter; read by the peers
     * where it is. */
    tide_group *flat_group;
    tide_slot *flat;
    void *pack; /* the device's pack */
} reduce;

static uint64_t grad_bytes(const reduce *r, size_t p)
{
    return tide_layout_param(r->layout, p)->grad_elems * sizeof(uint16_t);
}

static uint64_t out_bytes(const reduce *r)
{
    return r->out_elems * sizeof(float);
}

static uint64_t packed_bytes(const tide_layout *layout)
{
    return tide_layout_out_elems(layout) * sizeof(float) *
           tide_layout_ranks(layout);
}

/* NCCL's windows hold the packed gradients, and behind them the sums. */
static uint64_t window_bytes(const tide_layout *layout)
{
    return packed_bytes(layout) + tide_layout_out_elems(layout) * sizeof(float);
}

/* --- Memory --------------------------------------------------------------- */

static void free_tensors(reduce *r)
{
    const tdi_device_kind *kind = r->device->kind;
    for (size_t p = 0; r->grad && p < r->count; p++)
        kind->give(r->device, r->grad[p]);
    for (size_t p = 0; kind->queued && r->placed && p < r->count; p++)
        tide_memory_give(r->rank->comm, r->placed[p]);
    kind->give(r->device, r->out);
    free(r->grad);
    free(r->placed);
    free(r->vacated);
}

static void free_reduce(void *state)
{
    reduce *r = state;
    if (!r)
        return;
    tide_request_free(r->last);
    if (r->pack)
        r->device->kind->free_flat(r->pack);
    free_tensors(r);
    tide_group_free(r->flat_group);
    tide_group_free(r->group);
    tide_slot_free(r->flat);
    tide_slot_free(r->slot);
    free(r);
}

static tide_status take_slot(tide_comm *comm, uint64_t bytes, tide_slot **slot)
{
    TDI_TRY(tide_slot_create(comm, tdi_max(bytes, 1), slot));
    return tide_slot_occupy(*slot);
}

static tide_status take_vacated(reduce *r)
{
    uint64_t bytes = 0;
    for (size_t p = 0; p < r->count; p++)
        bytes += tdi_round_up(grad_bytes(r, p), GRAD_ALIGN);
    TDI_TRY(take_slot(r->rank->comm, bytes, &r->slot));
    unsigned char *at = tide_slot_address(r->slot);
    for (size_t p = 0; p < r->count; p++) {
        r->vacated[p] = at;
        at += tdi_round_up(grad_bytes(r, p), GRAD_ALIGN);
    }
    return TIDE_OK;
}

/* On the host peers read any memory, and gradients are in place anywhere. */
static tide_status take_grad(reduce *r, size_t p)
{
    const tdi_device_kind *kind = r->device->kind;
    uint64_t bytes = grad_bytes(r, p);
    TDI_TRY(kind->take(r->device, bytes, &r->grad[p]));
    if (kind->queued)
        return tide_memory_take(r->rank->comm, tdi_max(bytes, 1),
                                &r->placed[p]);
    r->placed[p] = r->grad[p];
    return TIDE_OK;
}

static tide_status take_memory(reduce *r)
{
    const tdi_device_kind *kind = r->device->kind;
    uint64_t most = out_bytes(r);
    size_t slots = tdi_max(r->count, 1);
    r->grad = calloc(slots, sizeof(*r->grad));
    r->placed = calloc(slots, sizeof(*r->placed));
    r->vacated = calloc(slots, sizeof(*r->vacated));
    if (!r->grad || !r->placed || !r->vacated)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the group");
    TDI_TRY(kind->take(r->device, out_bytes(r), &r->out));
    for (size_t p = 0; p < r->count; p++) {
        TDI_TRY(take_grad(r, p));
        most = tdi_max(most, grad_bytes(r, p));
    }
    TDI_TRY(take_vacated(r));
    return kind->reserve(r->device, most);
}

static tide_status make_flat(reduce *r)
{
    const tdi_device_kind *kind = r->device->kind;
    tide_param packed = {1, tide_layout_ranks(r->layout), r->out_elems,
                         TIDE_F32};
    if (kind->queued)
        return r->rank->nccl
                   ? kind->make_flat(r->device, r->layout, TIDE_REDUCE_SCATTER,
                                     (const void *const *)r->grad, &r->pack)
                   : TIDE_OK;
    TDI_TRY(
        tide_group_create(r->rank->comm, &packed, 1, "flat", &r->flat_group));
    return take_slot(r->rank->comm, packed_bytes(r->layout), &r->flat);
}

static tide_status create_reduce(const tdi_rank *rank, const tdi_params *params,
                                 void **state)
{
    tide_comm_info info;
    reduce *r = *state = calloc(1, sizeof(*r));
    if (!r)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the benchmark");
    r->rank = rank;
    r->device = rank->device;
    TDI_TRY(tide_comm_get_info(rank->comm, &info));
    r->reads_private = info.reads_private;
    TDI_TRY(tide_group_create(rank->comm, params->params, params->count,
                              "group", &r->group));
    r->layout = tide_group_layout(r->group);
    r->count = params->count;
    r->out_elems = tide_layout_out_elems(r->layout);
    TDI_TRY(take_memory(r));
    return make_flat(r);
}

static uint64_t get_bytes(const void *state)
{
    return out_bytes(state);
}

/* --- Data ----------------------------------------------------------------- */

typedef void fill_values(uint16_t *to, uint64_t seed, uint32_t rank,
                         uint64_t count);

static tide_status fill_all(reduce *r, uint64_t seed, fill_values *fill)
{
    const tdi_device_kind *kind = r->device->kind;
    for (size_t p = 0; p < r->count; p++) {
        fill(kind->view(r->device, r->grad[p]), tdi_hash(seed, p),
             r->rank->boot->rank, tide_layout_param(r->layout, p)->grad_elems);
        TDI_TRY(kind->upload(r->device, r->grad[p], grad_bytes(r, p)));
        if (r->placed[p] != r->grad[p])
            TDI_TRY(kind->copy(r->device, r->placed[p], r->grad[p],
                               grad_bytes(r, p)));
    }
    return TIDE_OK;
}

static tide_status fill_reduce(void *state, uint64_t seed)
{
    return fill_all(state, seed, tdi_fill_grad);
}

static tide_status fill_noise(void *state, uint64_t seed)
{
    return fill_all(state, seed, tdi_fill_noise);
}

/* All bits set: NaN. */
static tide_status poison_reduce(void *state)
{
    reduce *r = state;
    for (int w = 0; r->rank->nccl && w < TDI_NCCL_WAYS; w++) {
        void *buffer;
        if (!tdi_nccl_buffer(r->rank->nccl, (tdi_nccl_way)w, &buffer))
            TDI_TRY(r->device->kind->set(r->device, buffer, 0xff,
                                         window_bytes(r->layout)));
    }
    return r->device->kind->set(r->device, r->out, 0xff, out_bytes(r));
}

static tide_status count_all(const reduce *r, uint64_t seed,
                             tdi_count_wrong *count, uint64_t *wrong)
{
    const void *seen;
    tdi_piece_iter iter;
    tdi_piece piece;
    TDI_TRY(
        r->device->kind->download(r->device, r->result, out_bytes(r), &seen));
    tdi_pieces_begin(&iter, r->layout, r->rank->boot->rank, 0, r->out_elems);
    while (tdi_pieces_next(&iter, &piece)) {
        const float *got = (const float *)seen + piece.out_offset;
        *wrong += piece.real ? count(got, tdi_hash(seed, piece.param),
                                     tide_layout_ranks(r->layout), r->scale,
                                     piece.grad_offset, piece.elems)
                             : tdi_wrong_zeros(got, piece.elems);
    }
    return TIDE_OK;
}

static tide_status count_wrong(void *state, uint64_t seed, uint64_t *wrong)
{
    return count_all(state, seed, tdi_wrong_sums, wrong);
}

static tide_status count_wrong_noise(void *state, uint64_t seed,
                                     uint64_t *wrong)
{
    return count_all(state, seed, tdi_wrong_noise, wrong);
}

static tide_status digest(void *state, uint64_t *hash)
{
    const reduce *r = state;
    const void *seen;
    TDI_TRY(
        r->device->kind->download(r->device, r->result, out_bytes(r), &seen));
    *hash = tdi_hash_bytes(seen, out_bytes(r), 0);
    return TIDE_OK;
}

/* --- tide ----------------------------------------------------------------- */

/* A request on a stream is kept until the next one: only then may its gradients
 * be in use again, which must wait for the peers' reads. */
static tide_status join_reduce(void *state)
{
    reduce *r = state;
    if (!r->last)
        return TIDE_OK;
    if (r->device->kind->queued)
        return tide_stream_wait(r->last, TIDE_PHASE_DONE, r->device->stream);
    tide_status status = tide_wait(r->last, TIDE_PHASE_DONE);
    tide_status freed = tide_request_free(r->last);
    r->last = NULL;
    return status ? status : freed;
}

static tide_status run_group(reduce *r, tide_group *group,
                             const void *const *grad, tide_dtype dtype)
{
    tide_reduce_args args = {.grad = grad,
                             .grad_dtype = dtype,
                             .out = r->out,
                             .out_dtype = TIDE_F32,
                             .scale = SCALE,
                             .stream = r->device->stream};
    tide_request *request;
    r->result = r->out;
    r->scale = SCALE;
    TDI_TRY(tide_reduce_scatter_start(group, &args, &request));
    tide_status freed = tide_request_free(r->last);
    r->last = request;
    if (freed)
        return freed;
    return r->rank->overlaps ? TIDE_OK : join_reduce(r);
}

static tide_status run_in_place(void *state)
{
    reduce *r = state;
    return run_group(r, r->group, (const void *const *)r->placed, TIDE_BF16);
}

/* The storage is occupied by the parameters until the reshard, so giving it
 * memory is not part of the time; the copy is. */
static tide_status run_slot_reuse(void *state)
{
    reduce *r = state;
    if (r->last && r->device->kind->queued)
        TDI_TRY(tide_stream_wait(r->last, TIDE_PHASE_READS, r->device->stream));
    for (size_t p = 0; p < r->count; p++)
        TDI_TRY(r->device->kind->copy(r->device, r->vacated[p], r->grad[p],
                                      grad_bytes(r, p)));
    return run_group(r, r->group, (const void *const *)r->vacated, TIDE_BF16);
}

static tide_status plan_bytes(tide_group *group, tide_dtype grad,
                              uint64_t *bytes)
{
    const tide_plan *plan;
    tide_plan_stats stats;
    TDI_TRY(tide_group_plan(group, TIDE_REDUCE_SCATTER, grad, TIDE_F32, &plan));
    tide_plan_get_stats(plan, &stats);
    *bytes = stats.buffer_bytes;
    return TIDE_OK;
}

/* Where peers cannot read private memory, the host's gradients are copied. */
static tide_status in_place_bytes(void *state, uint64_t *bytes)
{
    reduce *r = state;
    TDI_TRY(plan_bytes(r->group, TIDE_BF16, bytes));
    bool copied = !r->device->kind->queued && !r->reads_private;
    for (size_t p = 0; copied && p < r->count; p++)
        *bytes += grad_bytes(r, p);
    return TIDE_OK;
}

static tide_status slot_reuse_bytes(void *state, uint64_t *bytes)
{
    return plan_bytes(((reduce *)state)->group, TIDE_BF16, bytes);
}

/* --- The flat path on tide's transport, host ------------------------------ */

static tide_status run_host_flat(void *state)
{
    reduce *r = state;
    const void *const flat[] = {tide_slot_address(r->flat)};
    tdi_flat_pack(r->layout, (const uint16_t *const *)r->grad,
                  tide_slot_address(r->flat));
    return run_group(r, r->flat_group, flat, TIDE_F32);
}

static tide_status host_flat_bytes(void *state, uint64_t *bytes)
{
    reduce *r = state;
    TDI_TRY(plan_bytes(r->flat_group, TIDE_F32, bytes));
    *bytes += packed_bytes(r->layout);
    return TIDE_OK;
}

/* --- NCCL, with FSDP2's pack ---------------------------------------------- */

static tide_status pack(reduce *r, tdi_nccl_way way)
{
    void *flat;
    TDI_TRY(tdi_nccl_buffer(r->rank->nccl, way, &flat));
    return r->device->kind->queue_flat(r->device, r->pack, flat);
}

/* Windows must hold both ends. NCCL sums without a scale. */
static tide_status reduce_flat(reduce *r, tdi_nccl_way way)
{
    void *flat;
    TDI_TRY(tdi_nccl_buffer(r->rank->nccl, way, &flat));
    r->result = way == TDI_NCCL_DEFAULT
                    ? r->out
                    : (char *)flat + packed_bytes(r->layout);
    r->scale = 1;
    return tdi_nccl_reduce(r->rank->nccl, way, flat, r->result, r->out_elems);
}

static tide_status run_layout(void *state)
{
    return pack(state, TDI_NCCL_DEFAULT);
}

static tide_status run_flat(void *state)
{
    return reduce_flat(state, TDI_NCCL_DEFAULT);
}

static tide_status run_nccl(void *state)
{
    TDI_TRY(pack(state, TDI_NCCL_DEFAULT));
    return reduce_flat(state, TDI_NCCL_DEFAULT);
}

static tide_status run_ce(void *state)
{
    TDI_TRY(pack(state, TDI_NCCL_CE));
    return reduce_flat(state, TDI_NCCL_CE);
}

static tide_status run_sym(void *state)
{
    TDI_TRY(pack(state, TDI_NCCL_SYM));
    return reduce_flat(state, TDI_NCCL_SYM);
}

static tide_status packed_size(void *state, uint64_t *bytes)
{
    *bytes = packed_bytes(((reduce *)state)->layout);
    return TIDE_OK;
}

static tide_status window_size(void *state, uint64_t *bytes)
{
    *bytes = window_bytes(((reduce *)state)->layout);
    return TIDE_OK;
}

const tdi_bench_op tdi_bench_reduce = {
    .name = "rs",
    .coll = TIDE_REDUCE_SCATTER,
    .variants =
        {
            {.name = "tide-in-place",
             .key = "in-place",
             .devices = TDI_ON_ALL,
             .run = run_in_place,
             .buffer_bytes = in_place_bytes},
            {.name = "tide-slot-reuse",
             .key = "slot-reuse",
             .devices = TDI_ON_ALL,
             .run = run_slot_reuse,
             .buffer_bytes = slot_reuse_bytes},
            {.name = "flat",
             .key = "flat",
             .baseline = 1,
             .devices = TDI_ON_HOST,
             .run = run_host_flat,
             .buffer_bytes = host_flat_bytes},
            {.name = "nccl+pack",
             .key = "nccl",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_DEFAULT,
             .run = run_nccl,
             .buffer_bytes = packed_size},
            {.name = "nccl-ce+pack",
             .key = "nccl-ce",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_CE,
             .run = run_ce,
             .buffer_bytes = window_size},
            {.name = "nccl-sym+pack",
             .key = "nccl-sym",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_SYM,
             .run = run_sym,
             .buffer_bytes = window_size},
            {.name = "flat",
             .key = "flat",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_DEFAULT,
             .before = run_layout,
             .run = run_flat,
             .buffer_bytes = packed_size},
            {.name = "layout",
             .key = "layout",
             .baseline = 1,
             .devices = TDI_ON_QUEUED,
             .way = TDI_NCCL_DEFAULT,
             .run = run_layout,
             .after = run_flat,
             .buffer_bytes = packed_size},
        },
    .create = create_reduce,
    .free = free_reduce,
    .bytes = get_bytes,
    .flat_bytes = window_bytes,
    .fill = fill_reduce,
    .fill_noise = fill_noise,
    .poison = poison_reduce,
    .join = join_reduce,
    .count_wrong = count_wrong,
    .count_wrong_noise = count_wrong_noise,
    .digest = digest,
};
