/* The reduce-scatter benchmark: gradients read in place, read from vacated
 * storage, or packed to fp32 first as the flat path does. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/util.h"
#include "layout/layout.h"
#include "perf/bench.h"
#include "perf/fill.h"
#include "perf/flat.h"

#define SCALE      0.5f /* exact, and a scale that is forgotten shows */
#define GRAD_ALIGN 64u

typedef struct reduce {
    tide_group *group;
    tide_group *flat_group; /* one parameter: the packed fp32 gradients */
    const tide_layout *layout;
    uint32_t rank;
    size_t count;
    uint64_t out_elems;
    int reads_private;
    uint16_t **grad;    /* ordinary memory */
    uint16_t **vacated; /* the same gradients' places in the slot */
    tide_slot *slot;
    tide_slot *flat; /* fp32, rank-major; read by the peers where it is */
    float *out;
} reduce;

static uint64_t grad_bytes(const reduce *r, size_t p)
{
    return tide_layout_param(r->layout, p)->grad_elems * sizeof(**r->grad);
}

static void free_reduce(void *state)
{
    reduce *r = state;
    if (!r)
        return;
    for (size_t p = 0; r->grad && p < r->count; p++)
        free(r->grad[p]);
    free(r->grad);
    free(r->vacated);
    free(r->out);
    tide_group_free(r->flat_group);
    tide_group_free(r->group);
    tide_slot_free(r->flat);
    tide_slot_free(r->slot);
    free(r);
}

static tide_status make_groups(reduce *r, tide_comm *comm,
                               const tdi_params *params)
{
    TDI_TRY(tide_group_create(comm, params->params, params->count, "group",
                              &r->group));
    r->layout = tide_group_layout(r->group);
    r->count = params->count;
    r->out_elems = tide_layout_out_elems(r->layout);
    tide_param packed = {1, tide_layout_ranks(r->layout), r->out_elems,
                         TIDE_F32};
    return tide_group_create(comm, &packed, 1, "flat", &r->flat_group);
}

static tide_status take_memory(reduce *r)
{
    tide_status status = TIDE_OK;
    r->out = tdi_bench_take(r->out_elems * sizeof(*r->out), &status);
    r->grad = calloc(tdi_max(r->count, 1), sizeof(*r->grad));
    r->vacated = calloc(tdi_max(r->count, 1), sizeof(*r->vacated));
    if (!r->grad || !r->vacated)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the group");
    for (size_t p = 0; !status && p < r->count; p++)
        r->grad[p] = tdi_bench_take(grad_bytes(r, p), &status);
    return status;
}

static tide_status take_slot(tide_comm *comm, uint64_t bytes, tide_slot **slot)
{
    TDI_TRY(tide_slot_create(comm, tdi_max(bytes, 1), slot));
    return tide_slot_occupy(*slot);
}

static tide_status take_slots(reduce *r, tide_comm *comm)
{
    uint64_t bytes = 0;
    for (size_t p = 0; p < r->count; p++)
        bytes += tdi_round_up(grad_bytes(r, p), GRAD_ALIGN);
    TDI_TRY(take_slot(comm, bytes, &r->slot));
    unsigned char *at = tide_slot_address(r->slot);
    for (size_t p = 0; p < r->count; p++) {
        r->vacated[p] = (uint16_t *)at;
        at += tdi_round_up(grad_bytes(r, p), GRAD_ALIGN);
    }
    return take_slot(
        comm, r->out_elems * sizeof(float) * tide_layout_ranks(r->layout),
        &r->flat);
}

static tide_status create_reduce(tide_comm *comm, const tdi_params *params,
                                 void **state)
{
    tide_comm_info info;
    reduce *r = *state = calloc(1, sizeof(*r));
    if (!r)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the benchmark");
    TDI_TRY(tide_comm_get_info(comm, &info));
    r->rank = info.rank;
    r->reads_private = info.reads_private;
    TDI_TRY(make_groups(r, comm, params));
    TDI_TRY(take_memory(r));
    return take_slots(r, comm);
}

static uint64_t get_bytes(const void *state)
{
    return ((const reduce *)state)->out_elems * sizeof(float);
}

static void fill_reduce(void *state, uint64_t seed)
{
    reduce *r = state;
    for (size_t p = 0; p < r->count; p++)
        tdi_fill_grad(r->grad[p], tdi_hash(seed, p), r->rank,
                      tide_layout_param(r->layout, p)->grad_elems);
}

static void poison_reduce(void *state)
{
    reduce *r = state;
    memset(r->out, 0xff, r->out_elems * sizeof(*r->out)); /* NaN */
}

static uint64_t count_wrong(const void *state, uint64_t seed)
{
    const reduce *r = state;
    uint64_t wrong = 0;
    tdi_piece_iter iter;
    tdi_piece piece;
    tdi_pieces_begin(&iter, r->layout, r->rank, 0, r->out_elems);
    while (tdi_pieces_next(&iter, &piece)) {
        const float *got = r->out + piece.out_offset;
        wrong += piece.real
                     ? tdi_wrong_sums(got, tdi_hash(seed, piece.param),
                                      tide_layout_ranks(r->layout), SCALE,
                                      piece.grad_offset, piece.elems)
                     : tdi_wrong_zeros(got, piece.elems);
    }
    return wrong;
}

static tide_status run_group(reduce *r, tide_group *group,
                             const void *const *grad, tide_dtype dtype)
{
    tide_reduce_args args = {.grad = grad,
                             .grad_dtype = dtype,
                             .out = r->out,
                             .out_dtype = TIDE_F32,
                             .scale = SCALE};
    tide_request *request;
    TDI_TRY(tide_reduce_scatter_start(group, &args, &request));
    tide_status status = tide_wait(request, TIDE_PHASE_DONE);
    tide_status freed = tide_request_free(request);
    return status ? status : freed;
}

static tide_status run_in_place(void *state)
{
    reduce *r = state;
    return run_group(r, r->group, (const void *const *)r->grad, TIDE_BF16);
}

/* The storage is occupied by the parameters until the reshard, so giving it
 * memory is not part of the time; the copy is. */
static tide_status run_slot_reuse(void *state)
{
    reduce *r = state;
    for (size_t p = 0; p < r->count; p++)
        memcpy(r->vacated[p], r->grad[p], grad_bytes(r, p));
    return run_group(r, r->group, (const void *const *)r->vacated, TIDE_BF16);
}

static tide_status run_flat(void *state)
{
    reduce *r = state;
    const void *const flat[] = {tide_slot_address(r->flat)};
    tdi_flat_pack(r->layout, (const uint16_t *const *)r->grad,
                  tide_slot_address(r->flat));
    return run_group(r, r->flat_group, flat, TIDE_F32);
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

/* Where peers cannot read private memory, tide copies the gradients. */
static tide_status in_place_bytes(void *state, uint64_t *bytes)
{
    reduce *r = state;
    TDI_TRY(plan_bytes(r->group, TIDE_BF16, bytes));
    for (size_t p = 0; !r->reads_private && p < r->count; p++)
        *bytes += grad_bytes(r, p);
    return TIDE_OK;
}

static tide_status slot_reuse_bytes(void *state, uint64_t *bytes)
{
    return plan_bytes(((reduce *)state)->group, TIDE_BF16, bytes);
}

static tide_status flat_bytes(void *state, uint64_t *bytes)
{
    reduce *r = state;
    TDI_TRY(plan_bytes(r->flat_group, TIDE_F32, bytes));
    *bytes += r->out_elems * sizeof(float) * tide_layout_ranks(r->layout);
    return TIDE_OK;
}

const tdi_bench_op tdi_bench_reduce = {
    .name = "rs",
    .variants = {{"tide-in-place", "in-place", 0, run_in_place, in_place_bytes},
                 {"tide-slot-reuse", "slot-reuse", 0, run_slot_reuse,
                  slot_reuse_bytes},
                 {"flat", "flat", 1, run_flat, flat_bytes}},
    .create = create_reduce,
    .free = free_reduce,
    .bytes = get_bytes,
    .fill = fill_reduce,
    .poison = poison_reduce,
    .count_wrong = count_wrong,
};
