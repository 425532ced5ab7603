/*
 * The alignment of what travels (case: transfers whose bytes are no multiple
 * of 16 are slow). Every put and every read of STAGE starts and ends on 16
 * bytes whatever the shapes are; landing copies do too where the shapes allow,
 * and exactly those of parameters with an odd shard do not.
 */
#include "support/check.h"

#include <tide/plan.h>

static int is_aligned(uint64_t value)
{
    return value % 16 == 0;
}

/* Does a copy of this parameter keep 16 bytes? Its shard decides. */
static int may_be_odd(const tide_layout *layout, const tide_op *op)
{
    return !is_aligned(tide_layout_param(layout, op->dst.index)->shard_bytes);
}

/* Counts landing copies that are not aligned; all others must be. */
static uint32_t audit(const tide_layout *layout, const tide_plan *plan)
{
    uint32_t odd = 0;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const tide_op *op = &plan->ops[i];
        if (op->kind == TIDE_OP_PUT) {
            CHECK(is_aligned(op->width));
            CHECK(is_aligned(op->src.offset) && is_aligned(op->dst.offset));
        }
        if (op->kind != TIDE_OP_COPY)
            continue;
        CHECK(is_aligned(op->src.offset) && is_aligned(op->src_pitch));
        int good = is_aligned(op->width) && is_aligned(op->dst.offset) &&
                   is_aligned(op->dst_pitch);
        CHECK(good || may_be_odd(layout, op));
        odd += !good;
    }
    return odd;
}

static uint32_t audit_all(const tide_param *params, size_t count,
                          tide_topology topology)
{
    tide_layout *layout;
    tide_plan_options options = {.coll = TIDE_ALL_GATHER, .chunk_bytes = 4096};
    uint32_t odd = 0, ranks = topology.nodes * topology.local_size;
    CHECK_OK(tide_layout_create(params, count, ranks, &layout));
    for (uint32_t r = 0; r < ranks; r++) {
        tide_plan *plan;
        CHECK_OK(tide_plan_create(layout, topology, r, &options, &plan));
        odd += audit(layout, plan);
        tide_plan_free(plan);
    }
    tide_layout_free(layout);
    return odd;
}

int main(void)
{
    static const tide_param block[] = {{1, 4096, 64, TIDE_BF16},
                                       {1, 1024, 64, TIDE_BF16},
                                       {1, 4096, 1, TIDE_BF16}};
    static const tide_param odd[] = {
        {1, 4096, 64, TIDE_BF16}, {1, 7, 3, TIDE_BF16}, {1, 5, 1, TIDE_U8}};
    CHECK_INT(audit_all(block, 3, (tide_topology){1, 8}), ==, 0);
    CHECK_INT(audit_all(block, 3, (tide_topology){2, 8}), ==, 0);
    CHECK_INT(audit_all(odd, 3, (tide_topology){2, 4}), >, 0);
    return 0;
}
