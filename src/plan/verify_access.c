/* What memory an op touches, and the caller at the marks. */
#include "plan/verify.h"

#include "topo/topo.h"

static tdi_access access_at(tide_operand at, int32_t rank, bool write)
{
    return (tdi_access){.buffer = tide_operand_buffer(at),
                        .index = at.index,
                        .rank = (uint32_t)rank,
                        .write = write,
                        .offset = at.offset,
                        .height = 1};
}

static uint32_t count_reads(const tide_op *op)
{
    switch (op->kind) {
    case TIDE_OP_COPY:
    case TIDE_OP_PUT:
        return 1;
    case TIDE_OP_REDUCE:
        return op->flags & (TIDE_ACROSS | TIDE_OWN) ? op->height
                                                    : op->height != 0;
    default:
        return 0;
    }
}

/* Source i of a sum that reads its own gradient in place. */
static tide_operand own_source(const tide_plan *plan, const tide_op *op,
                               uint32_t i)
{
    int32_t me = (int32_t)plan->rank;
    if (i == tdi_topo_local(plan->topology, plan->rank))
        return tide_at(TIDE_BUF_GRAD, op->src.index, me, op->dst_pitch);
    return tide_at(TIDE_BUF_RSTAGE, 0, me, op->src.offset + i * op->src_pitch);
}

static void get_read(const tide_plan *plan, const tide_op *op, uint32_t i,
                     tdi_access *access)
{
    bool sum = op->kind == TIDE_OP_REDUCE;
    tide_operand at =
        sum && op->flags & TIDE_OWN ? own_source(plan, op, i) : op->src;
    int32_t rank = tide_operand_rank(at);
    if (sum && op->flags & TIDE_ACROSS) {
        uint32_t node = tdi_topo_node(plan->topology, (uint32_t)rank);
        uint32_t local = tdi_topo_local(plan->topology, (uint32_t)rank) + i;
        rank = (int32_t)tdi_topo_rank(plan->topology, node,
                                      local % plan->topology.local_size);
    }
    *access = access_at(at, rank, false);
    access->width = op->width;
    if (sum)
        access->width *= op->flags & TIDE_SRC_BF16 ? 2 : 4;
    if (op->kind == TIDE_OP_COPY ||
        (sum && !(op->flags & (TIDE_ACROSS | TIDE_OWN)))) {
        access->height = op->height;
        access->pitch = op->src_pitch;
    }
}

static uint32_t count_writes(const tide_plan *plan, const tide_op *op)
{
    switch (op->kind) {
    case TIDE_OP_COPY:
        return tide_operand_rank(op->dst) == TIDE_ALL_LOCAL
                   ? plan->topology.local_size
                   : 1;
    case TIDE_OP_PUT:
    case TIDE_OP_REDUCE:
        return 1;
    default:
        return 0;
    }
}

static void get_write(const tide_plan *plan, const tide_op *op, uint32_t i,
                      tdi_access *access)
{
    int32_t rank = tide_operand_rank(op->dst);
    if (rank == TIDE_ALL_LOCAL)
        rank = (int32_t)tdi_topo_rank(
            plan->topology, tdi_topo_node(plan->topology, plan->rank), i);
    *access = access_at(op->dst, rank, true);
    access->width = op->width;
    if (op->kind == TIDE_OP_REDUCE)
        access->width *= op->flags & TIDE_DST_BF16 ? 2 : 4;
    if (op->kind == TIDE_OP_COPY) {
        access->height = op->height;
        access->pitch = op->dst_pitch;
    }
}

bool tdi_op_access(const tide_plan *plan, const tide_op *op, uint32_t i,
                   tdi_access *access)
{
    uint32_t reads = count_reads(op);
    if (i < reads)
        get_read(plan, op, i, access);
    else if (i - reads < count_writes(plan, op))
        get_write(plan, op, i - reads, access);
    else
        return false;
    return true;
}

uint64_t tdi_buffer_bytes(const tide_layout *layout, const tide_plan *plan,
                          tide_buffer buffer, uint32_t index)
{
    const tide_plan_options *options = &plan->options;
    bool gather = options->coll == TIDE_ALL_GATHER;
    switch (buffer) {
    case TIDE_BUF_PARAM:
        return gather && index < tide_layout_count(layout)
                   ? tide_layout_param(layout, index)->storage_bytes
                   : 0;
    case TIDE_BUF_GRAD:
        return !gather && index < tide_layout_count(layout)
                   ? tide_layout_param(layout, index)->grad_elems *
                         tide_dtype_size(options->grad_dtype)
                   : 0;
    case TIDE_BUF_OUT:
        return gather ? 0
                      : tide_layout_out_elems(layout) *
                            tide_dtype_size(options->out_dtype);
    default:
        return buffer < TIDE_BUF_COUNT ? plan->buffer_bytes[buffer] : 0;
    }
}

/* All of a buffer of this rank. */
static tdi_access whole(const tide_layout *layout, const tide_plan *plan,
                        tide_buffer buffer, uint32_t index, bool write)
{
    return (tdi_access){.buffer = buffer,
                        .index = index,
                        .rank = plan->rank,
                        .write = write,
                        .width = tdi_buffer_bytes(layout, plan, buffer, index),
                        .height = 1};
}

/* All of parameter i's PARAM or GRAD. */
static bool tensor(const tide_layout *layout, const tide_plan *plan,
                   tide_buffer buffer, uint32_t i, bool write,
                   tdi_access *access)
{
    if (i >= tide_layout_count(layout))
        return false;
    *access = whole(layout, plan, buffer, i, write);
    return true;
}

static bool gather_access(const tide_layout *layout, const tide_plan *plan,
                          uint32_t phase, uint32_t i, tdi_access *access)
{
    uint64_t bytes = tide_layout_shard_bytes(layout);
    if (phase == TIDE_PHASE_DONE)
        return tensor(layout, plan, TIDE_BUF_PARAM, i, false, access);
    if (phase != TIDE_PHASE_FREE)
        return false;
    if (i)
        return tensor(layout, plan, TIDE_BUF_PARAM, i - 1, true, access);
    *access = whole(layout, plan, TIDE_BUF_STAGE, 0, true);
    access->offset = bytes * tdi_topo_node(plan->topology, plan->rank);
    access->width = bytes;
    return true;
}

static bool scatter_access(const tide_layout *layout, const tide_plan *plan,
                           uint32_t phase, uint32_t i, tdi_access *access)
{
    bool start = phase == TDI_CALL_START;
    if ((start && i == 0) || (phase == TIDE_PHASE_DONE && i == 0)) {
        *access = whole(layout, plan, TIDE_BUF_OUT, 0, start);
        return true;
    }
    if (start || phase == TIDE_PHASE_READS)
        return tensor(layout, plan, TIDE_BUF_GRAD, i - start, true, access);
    return false;
}

bool tdi_caller_access(const tide_layout *layout, const tide_plan *plan,
                       uint32_t phase, uint32_t i, tdi_access *access)
{
    return plan->options.coll == TIDE_ALL_GATHER
               ? gather_access(layout, plan, phase, i, access)
               : scatter_access(layout, plan, phase, i, access);
}
