/* Appends ops and turns them into a plan. */
#include "plan/build.h"

#include "base/fail.h"
#include "base/util.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

static uint32_t sources(const tdi_builder *b)
{
    return b->topology.local_size + b->topology.nodes;
}

tide_status tdi_build_begin(tdi_builder *b, const tide_layout *layout,
                            tide_topology topology, uint32_t rank,
                            const tide_plan_options *options)
{
    memset(b, 0, sizeof(*b));
    b->layout = layout;
    b->options = options;
    b->topology = topology;
    b->rank = rank;
    b->node = tdi_topo_node(topology, rank);
    b->local = tdi_topo_local(topology, rank);
    memset(b->last, 0xff, sizeof(b->last));
    memset(b->waited, 0xff, sizeof(b->waited));
    b->expects = calloc((size_t)TIDE_CH_COUNT * sources(b), sizeof(uint64_t));
    b->failed = !b->expects;
    return b->failed ? tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan")
                     : TIDE_OK;
}

/* A zeroed op at the end, or NULL when memory is out. */
static tide_op *append(tdi_builder *b, tide_op_kind kind, tide_lane lane)
{
    if (b->failed)
        return NULL;
    if (b->count == b->capacity) {
        uint32_t capacity = b->capacity ? 2 * b->capacity : 256;
        tide_op *ops = realloc(b->ops, (size_t)capacity * sizeof(tide_op));
        if (!ops || capacity > UINT32_MAX / 4) {
            b->failed = true;
            b->ops = ops ? ops : b->ops;
            return NULL;
        }
        b->ops = ops;
        b->capacity = capacity;
    }
    tide_op *op = &b->ops[b->count];
    memset(op, 0, sizeof(*op));
    op->kind = (uint8_t)kind;
    op->lane = (uint8_t)lane;
    b->last[lane] = b->count++;
    return op;
}

static uint32_t newest(const tdi_builder *b)
{
    return b->count - 1;
}

uint32_t tdi_add_copy(tdi_builder *b, tide_lane lane, const tdi_copy *copy)
{
    tide_op *op = append(b, TIDE_OP_COPY, lane);
    if (op) {
        op->height = (uint32_t)copy->height;
        op->width = copy->width;
        op->dst_pitch = copy->dst_pitch;
        op->src_pitch = copy->src_pitch;
        op->dst = copy->dst;
        op->src = copy->src;
    }
    return newest(b);
}

uint32_t tdi_add_put(tdi_builder *b, tide_lane lane, tide_operand dst,
                     tide_operand src, uint64_t bytes)
{
    tide_op *op = append(b, TIDE_OP_PUT, lane);
    if (op) {
        op->channel = TIDE_CH_RAIL;
        op->height = 1;
        op->width = bytes;
        op->dst = dst;
        op->src = src;
    }
    return newest(b);
}

uint32_t tdi_add_signal(tdi_builder *b, tide_lane lane, uint32_t to,
                        tide_channel channel)
{
    tide_op *op = append(b, TIDE_OP_SIGNAL, lane);
    if (op) {
        op->channel = (uint8_t)channel;
        op->dst = tide_at(0, 0, (int32_t)to, 0);
    }
    return newest(b);
}

uint32_t tdi_add_wait(tdi_builder *b, tide_lane lane, uint32_t from,
                      tide_channel channel, int64_t count)
{
    tide_op *op = append(b, TIDE_OP_WAIT, lane);
    if (op) {
        op->channel = (uint8_t)channel;
        op->count = count;
        op->src = tide_at(0, 0, (int32_t)from, 0);
    }
    return newest(b);
}

uint32_t tdi_add_reduce(tdi_builder *b, tide_lane lane, unsigned flags,
                        tide_operand dst, tide_operand src, uint32_t count,
                        uint64_t src_pitch, uint64_t elems)
{
    tide_op *op = append(b, TIDE_OP_REDUCE, lane);
    if (op) {
        op->flags = (uint8_t)flags;
        op->height = count;
        op->width = elems;
        op->src_pitch = src_pitch;
        op->dst = dst;
        op->src = src;
    }
    return newest(b);
}

void tdi_reduce_own(tdi_builder *b, uint32_t param, uint64_t offset)
{
    if (b->failed)
        return;
    tide_op *op = &b->ops[newest(b)];
    op->flags |= TIDE_OWN;
    op->src.index = param;
    op->dst_pitch = offset;
}

uint32_t tdi_add_mark(tdi_builder *b, tide_lane lane, tide_phase phase)
{
    tide_op *op = append(b, TIDE_OP_MARK, lane);
    if (op)
        op->channel = (uint8_t)phase;
    return newest(b);
}

void tdi_add_after(tdi_builder *b, tide_lane lane, uint32_t target)
{
    if (target == TDI_NO_OP || b->failed)
        return;
    tide_lane other = (tide_lane)b->ops[target].lane;
    uint32_t known = b->waited[lane][other];
    if (other == lane || (known != TDI_NO_OP && known >= target))
        return;
    tide_op *op = append(b, TIDE_OP_AFTER, lane);
    if (op) {
        op->index = target;
        b->waited[lane][other] = target;
    }
}

void tdi_add_join(tdi_builder *b, tide_lane lane)
{
    for (int other = 0; other < TIDE_LANE_COUNT; other++)
        tdi_add_after(b, lane, b->last[other]);
}

void tdi_expect(tdi_builder *b, uint32_t from, tide_channel channel, uint64_t n)
{
    uint32_t node = tdi_topo_node(b->topology, from);
    uint32_t at = node == b->node ? tdi_topo_local(b->topology, from)
                                  : b->topology.local_size + node;
    if (!b->failed)
        b->expects[channel * sources(b) + at] += n;
}

void tdi_signal_peers(tdi_builder *b, tide_lane lane, tide_channel channel)
{
    for (uint32_t i = 1; i < b->topology.local_size; i++)
        tdi_add_signal(b, lane, tdi_peer(b, i), channel);
}

void tdi_wait_peers(tdi_builder *b, tide_lane lane, tide_channel channel,
                    int64_t count)
{
    for (uint32_t i = 1; i < b->topology.local_size; i++)
        tdi_add_wait(b, lane, tdi_peer(b, i), channel, count);
}

void tdi_expect_peers(tdi_builder *b, tide_channel channel, uint64_t n)
{
    for (uint32_t i = 1; i < b->topology.local_size; i++)
        tdi_expect(b, tdi_peer(b, i), channel, n);
}

static uint32_t count_expects(const tdi_builder *b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < TIDE_CH_COUNT * sources(b); i++)
        count += b->expects[i] != 0;
    return count;
}

/* Local peers come first in a channel's row, then one rail rank a node. */
static void write_expects(const tdi_builder *b, tide_expect *to)
{
    for (uint32_t channel = 0; channel < TIDE_CH_COUNT; channel++) {
        for (uint32_t at = 0; at < sources(b); at++) {
            uint64_t total = b->expects[channel * sources(b) + at];
            uint32_t local = b->topology.local_size;
            uint32_t from =
                at < local ? tdi_topo_rank(b->topology, b->node, at)
                           : tdi_topo_rank(b->topology, at - local, b->local);
            if (total)
                *to++ = (tide_expect){(int32_t)from, channel, total};
        }
    }
}

tide_status tdi_build_finish(tdi_builder *b, tide_plan **plan)
{
    tide_plan *made = NULL;
    if (!b->failed) {
        uint32_t expects = count_expects(b);
        size_t ops_bytes = (size_t)b->count * sizeof(tide_op);
        size_t head = tdi_round_up(sizeof(tide_plan), 64);
        made = aligned_alloc(
            64,
            tdi_round_up(head + ops_bytes + expects * sizeof(tide_expect), 64));
        if (made) {
            memset(made, 0, head);
            tide_op *ops = (tide_op *)((char *)made + head);
            tide_expect *expect = (tide_expect *)((char *)ops + ops_bytes);
            if (b->count)
                memcpy(ops, b->ops, ops_bytes);
            write_expects(b, expect);
            made->options = *b->options;
            made->topology = b->topology;
            made->rank = b->rank;
            made->op_count = b->count;
            made->expect_count = expects;
            made->ops = ops;
            made->expects = expect;
            memcpy(made->buffer_bytes, b->buffer_bytes,
                   sizeof(made->buffer_bytes));
        }
    }
    free(b->ops);
    free(b->expects);
    b->ops = NULL;
    b->expects = NULL;
    *plan = made;
    return made ? TIDE_OK
                : tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan of rank %u",
                           b->rank);
}

void tide_plan_free(tide_plan *plan)
{
    free(plan);
}
