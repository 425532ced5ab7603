/* Bounds: ops are well formed, and every access lies in its buffer. */
#include "plan/names.h"
#include "plan/verify.h"
#include "topo/topo.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* Of one counter in one call; keeps sums of counts far from overflow. */
static const int64_t most_signals = (int64_t)1 << 40;

tide_status tdi_fail_op(const tide_plan *plan, uint32_t index,
                        const char *format, ...)
{
    const tide_op *op = &plan->ops[index];
    char text[256], reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    return tdi_fail(TIDE_ERR_PLAN, "rank %u %s op %u (%s): %s", plan->rank,
                    tdi_lane_name(op->lane), index,
                    tdi_op_text(op, text, sizeof(text)), reason);
}

/* --- The form of an op ---------------------------------------------------- */

static bool is_rank(const tide_plan *plan, tide_operand at)
{
    int32_t rank = tide_operand_rank(at);
    return rank >= 0 && (uint32_t)rank < tdi_topo_ranks(plan->topology);
}

static bool is_local(const tide_plan *plan, tide_operand at)
{
    return is_rank(plan, at) &&
           tdi_topo_node(plan->topology, (uint32_t)tide_operand_rank(at)) ==
               tdi_topo_node(plan->topology, plan->rank);
}

static const char *check_put(const tide_plan *plan, const tide_op *op)
{
    if (tide_operand_rank(op->src) != (int32_t)plan->rank)
        return "a put reads its own rank's memory";
    if (!is_rank(plan, op->dst) || is_local(plan, op->dst) ||
        (uint32_t)tide_operand_rank(op->dst) % plan->topology.local_size !=
            plan->rank % plan->topology.local_size)
        return "a put goes to another node, on its own rail";
    if (op->channel >= TIDE_CH_COUNT)
        return "no such channel";
    return NULL;
}

static const char *check_copy(const tide_plan *plan, const tide_op *op)
{
    bool all = tide_operand_rank(op->dst) == TIDE_ALL_LOCAL;
    if (!is_local(plan, op->src) || (!all && !is_local(plan, op->dst)))
        return "a copy stays on its node";
    if (op->height > 1 && op->dst_pitch < op->width)
        return "its rows overwrite each other";
    return NULL;
}

static const char *check_reduce(const tide_plan *plan, const tide_op *op)
{
    const unsigned known = TIDE_SRC_BF16 | TIDE_DST_BF16 | TIDE_ADD |
                           TIDE_SCALE | TIDE_ACROSS | TIDE_SWITCH | TIDE_OWN;
    uint64_t src = op->flags & TIDE_SRC_BF16 ? 2 : 4;
    uint64_t dst = op->flags & TIDE_DST_BF16 ? 2 : 4;
    if (op->flags & ~known)
        return "unknown flags";
    if (op->width >> 60)
        return "so many elements fit no memory";
    if (!is_local(plan, op->dst) || (op->height && !is_local(plan, op->src)))
        return "a sum stays on its node";
    if (op->flags & TIDE_ADD && op->flags & TIDE_DST_BF16)
        return "it adds to a bf16 destination, which would round twice";
    if (op->flags & TIDE_ACROSS && op->height > plan->topology.local_size)
        return "it has more sources than its node has ranks";
    if (op->flags & TIDE_SWITCH &&
        (!(op->flags & TIDE_ACROSS) || op->height != plan->topology.local_size))
        return "the switch adds over all ranks of a node, no fewer";
    if (op->flags & TIDE_OWN &&
        (op->flags & TIDE_ACROSS || op->height != plan->topology.local_size ||
         tide_operand_buffer(op->src) != TIDE_BUF_RSTAGE ||
         tide_operand_rank(op->src) != (int32_t)plan->rank))
        return "a sum with its own gradient has the others' in its rstage";
    if (op->flags & TIDE_OWN && (op->src.offset >> 60 || op->src_pitch >> 48))
        return "its sources fit no memory";
    if (!(op->flags & TIDE_OWN) && op->dst_pitch)
        return "a sum has one destination";
    if (op->dst.offset % dst || op->src.offset % src || op->src_pitch % src ||
        (op->flags & TIDE_OWN && op->dst_pitch % src))
        return "elements are not aligned";
    return NULL;
}

static const char *check_signal(const tide_plan *plan, const tide_op *op,
                                tide_operand peer)
{
    if (!is_rank(plan, peer))
        return "no such rank";
    return op->channel < TIDE_CH_COUNT ? NULL : "no such channel";
}

static const char *check_form(const tide_plan *plan, uint32_t index)
{
    const tide_op *op = &plan->ops[index];
    if (op->lane >= TIDE_LANE_COUNT)
        return "no such lane";
    switch (op->kind) {
    case TIDE_OP_COPY:
        return check_copy(plan, op);
    case TIDE_OP_PUT:
        return check_put(plan, op);
    case TIDE_OP_REDUCE:
        return check_reduce(plan, op);
    case TIDE_OP_SIGNAL:
        return check_signal(plan, op, op->dst);
    case TIDE_OP_WAIT:
        if (op->count > most_signals || op->count < -most_signals)
            return "so many signals never come";
        return check_signal(plan, op, op->src);
    case TIDE_OP_AFTER:
        return op->index < index ? NULL : "it names no earlier op";
    case TIDE_OP_MARK:
        return op->channel < TIDE_PHASE_COUNT ? NULL : "no such phase";
    default:
        return "no such op";
    }
}

/* --- The set -------------------------------------------------------------- */

static tide_status check_forms(const tide_plan *plan)
{
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const char *reason = check_form(plan, i);
        if (reason)
            return tdi_fail_op(plan, i, "%s", reason);
    }
    return TIDE_OK;
}

static tide_status check_member(const tide_plan *first, const tide_plan *plan,
                                uint32_t rank)
{
    if (!plan)
        return tdi_fail(TIDE_ERR_INVALID, "the plan of rank %u is NULL", rank);
    if (plan->rank != rank)
        return tdi_fail(TIDE_ERR_PLAN, "plan %u is that of rank %u", rank,
                        plan->rank);
    if (plan->topology.nodes != first->topology.nodes ||
        plan->topology.local_size != first->topology.local_size)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u plans for %u x %u ranks, rank 0 for %u x %u",
                        rank, plan->topology.nodes, plan->topology.local_size,
                        first->topology.nodes, first->topology.local_size);
    if (plan->key != first->key)
        return tdi_fail(TIDE_ERR_PLAN,
                        "ranks 0 and %u plan for other groups or options",
                        rank);
    return TIDE_OK;
}

tide_status tdi_check_set(const tdi_set *set)
{
    if (!set->plans || !set->plans[0])
        return tdi_fail(TIDE_ERR_INVALID, "plans is NULL");
    TDI_TRY(tdi_topo_check(set->plans[0]->topology, 0));
    uint32_t ranks = tdi_set_ranks(set);
    if (set->layout && tide_layout_ranks(set->layout) != ranks)
        return tdi_fail(TIDE_ERR_PLAN, "plans of %u ranks, a layout of %u",
                        ranks, tide_layout_ranks(set->layout));
    for (uint32_t r = 0; r < ranks; r++)
        TDI_TRY(check_member(set->plans[0], set->plans[r], r));
    for (uint32_t r = 0; r < ranks; r++)
        TDI_TRY(check_forms(set->plans[r]));
    return TIDE_OK;
}

/* --- Accesses ------------------------------------------------------------- */

static tide_status check_access(const tdi_set *set, const tide_plan *plan,
                                uint32_t index, const tdi_access *access)
{
    const char *name = tdi_buffer_name(access->buffer);
    uint64_t bytes = tdi_buffer_bytes(set->layout, set->plans[access->rank],
                                      access->buffer, access->index);
    uint64_t end = access->width, rows = 0;
    bool fits = true;
    if (access->height > 1)
        fits =
            !__builtin_mul_overflow(access->height - 1, access->pitch, &rows);
    fits = fits && !__builtin_add_overflow(rows, end, &end) &&
           !__builtin_add_overflow(access->offset, end, &end);
    if (!fits || end > bytes)
        return tdi_fail_op(plan, index,
                           "%s of rank %u ends at byte %" PRIu64
                           ", the access at %" PRIu64,
                           name, access->rank, bytes, fits ? end : UINT64_MAX);
    if (access->write && access->buffer == TIDE_BUF_GRAD)
        return tdi_fail_op(plan, index, "it writes the caller's gradients");
    return TIDE_OK;
}

static tide_status check_op(const tdi_set *set, const tide_plan *plan,
                            uint32_t index)
{
    tdi_access access;
    for (uint32_t i = 0; tdi_op_access(plan, &plan->ops[index], i, &access);
         i++)
        TDI_TRY(check_access(set, plan, index, &access));
    return TIDE_OK;
}

static tide_status check_stage(const tdi_set *set, const tide_plan *plan)
{
    uint64_t slots =
        plan->topology.nodes * tide_layout_shard_bytes(set->layout);
    if (plan->options.coll == TIDE_ALL_GATHER &&
        plan->buffer_bytes[TIDE_BUF_STAGE] < slots)
        return tdi_fail(TIDE_ERR_PLAN,
                        "rank %u: stage has %" PRIu64 " bytes, its slots "
                        "need %" PRIu64,
                        plan->rank, plan->buffer_bytes[TIDE_BUF_STAGE], slots);
    return TIDE_OK;
}

tide_status tide_verify_bounds(const tide_layout *layout,
                               const tide_plan *const *plans)
{
    tdi_set set = {.layout = layout, .plans = plans};
    if (!layout)
        return tdi_fail(TIDE_ERR_INVALID, "layout is NULL");
    TDI_TRY(tdi_check_set(&set));
    for (uint32_t r = 0; r < tdi_set_ranks(&set); r++)
        TDI_TRY(check_stage(&set, plans[r]));
    for (uint32_t r = 0; r < tdi_set_ranks(&set); r++)
        for (uint32_t i = 0; i < plans[r]->op_count; i++)
            TDI_TRY(check_op(&set, plans[r], i));
    return TIDE_OK;
}
