/* What a plan adds up to, and its hash. */
#include "base/util.h"
#include "topo/topo.h"

#include <string.h>
#include <tide/plan.h>

/* Bytes a REDUCE reads; one read by the switch counts as each source's. */
static uint64_t reduce_bytes(const tide_op *op)
{
    uint64_t size = op->flags & TIDE_SRC_BF16 ? 2 : 4;
    return op->width * op->height * size;
}

/* Bytes of an op that cross between ranks of my node. */
static uint64_t local_bytes(const tide_plan *plan, const tide_op *op)
{
    int32_t me = (int32_t)plan->rank;
    uint64_t bytes = op->width * op->height;
    if (op->kind == TIDE_OP_REDUCE && op->flags & TIDE_ACROSS) {
        uint32_t first = (uint32_t)tide_operand_rank(op->src);
        uint32_t size = plan->topology.local_size;
        uint32_t mine = (plan->rank + size - first) % size;
        return reduce_bytes(op) / (op->height ? op->height : 1) *
               (op->height - (mine < op->height));
    }
    if (op->kind != TIDE_OP_COPY)
        return 0;
    if (tide_operand_rank(op->dst) == TIDE_ALL_LOCAL)
        return bytes * (plan->topology.local_size - 1);
    return tide_operand_rank(op->src) != me ? bytes : 0;
}

/* A new destination begins a new rail round. */
static uint64_t count_rounds(const tide_plan *plan)
{
    uint64_t rounds = 0;
    int32_t last = -1;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const tide_op *op = &plan->ops[i];
        if (op->kind == TIDE_OP_PUT && tide_operand_rank(op->dst) != last) {
            last = tide_operand_rank(op->dst);
            rounds++;
        }
    }
    return rounds;
}

void tide_plan_get_stats(const tide_plan *plan, tide_plan_stats *stats)
{
    memset(stats, 0, sizeof(*stats));
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const tide_op *op = &plan->ops[i];
        stats->ops[op->kind]++;
        if (op->kind == TIDE_OP_COPY || op->kind == TIDE_OP_PUT)
            stats->lane_bytes[op->lane] += op->width * op->height;
        if (op->kind == TIDE_OP_REDUCE)
            stats->lane_bytes[op->lane] += reduce_bytes(op);
        if (op->kind == TIDE_OP_PUT)
            stats->rail_bytes += op->width;
        stats->local_bytes += local_bytes(plan, op);
    }
    if (plan->options.coll == TIDE_ALL_GATHER)
        stats->rounds = count_rounds(plan);
    for (int i = 0; i < TIDE_BUF_COUNT; i++)
        stats->buffer_bytes +=
            plan->buffer_bytes[i] * (i == TIDE_BUF_STAGE ? TIDE_STAGE_SETS : 1);
}

static uint64_t hash_operand(uint64_t hash, tide_operand at)
{
    hash = tdi_hash(hash, at.offset);
    hash = tdi_hash(hash, at.index);
    return tdi_hash(hash, (uint32_t)at.where);
}

uint64_t tide_plan_hash(const tide_plan *plan)
{
    uint64_t hash = tdi_hash(plan->key, plan->rank);
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const tide_op *op = &plan->ops[i];
        hash = tdi_hash(hash, (uint64_t)op->kind | (uint64_t)op->lane << 8 |
                                  (uint64_t)op->flags << 16 |
                                  (uint64_t)op->channel << 24 |
                                  (uint64_t)op->height << 32);
        hash = tdi_hash(hash, op->width);
        hash = tdi_hash(hash, op->dst_pitch);
        hash = tdi_hash(hash, op->src_pitch);
        hash = hash_operand(hash, op->dst);
        hash = hash_operand(hash, op->src);
    }
    return hash;
}
