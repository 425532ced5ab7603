/* Reduce-scatters to compare with: the paper's order, and packed fp32. */
#include "base/util.h"
#include "layout/layout.h"
#include "sim/baseline.h"
#include "topo/topo.h"

static uint32_t rail_rank(const tdi_builder *b, uint32_t distance)
{
    return tdi_topo_rank(b->topology, (b->node + distance) % b->topology.nodes,
                         b->local);
}

static tide_operand mine(const tdi_builder *b, tide_buffer buffer,
                         uint64_t elems, uint64_t size)
{
    return tide_at(buffer, 0, (int32_t)b->rank, elems * size);
}

static void begin(tdi_builder *b, tide_lane reader)
{
    tdi_signal_peers(b, reader, TIDE_CH_GRADS);
    tdi_wait_peers(b, reader, TIDE_CH_GRADS, 1);
    tdi_expect_peers(b, TIDE_CH_GRADS, 1);
}

static void end(tdi_builder *b, tide_lane reader)
{
    tdi_signal_peers(b, reader, TIDE_CH_READ);
    tdi_expect_peers(b, TIDE_CH_READ, 1);
    tdi_add_join(b, TIDE_LANE_LAND);
    tdi_add_mark(b, TIDE_LANE_LAND, TIDE_PHASE_DONE);
    tdi_wait_peers(b, reader, TIDE_CH_READ, 1);
    tdi_add_mark(b, reader, TIDE_PHASE_READS);
}

static void await_rails(tdi_builder *b, uint32_t count)
{
    for (uint32_t i = 1; i < b->topology.nodes; i++) {
        uint32_t from = rail_rank(b, b->topology.nodes - i);
        tdi_add_wait(b, TIDE_LANE_RECV, from, TIDE_CH_RAIL, count);
        tdi_expect(b, from, TIDE_CH_RAIL, 1);
    }
}

/* --- The paper's order ---------------------------------------------------- */

typedef struct paper {
    uint64_t elems;  /* S */
    uint64_t slice;  /* of a worker: S / G */
    uint32_t sum[2]; /* newest sum of each half of RSTAGE */
} paper;

/* Copy engines bring slice t of destination rank `to` from one gradient. */
static void stage_slice(tdi_builder *b, const paper *p, uint32_t owner,
                        uint32_t to, uint32_t t, uint64_t at)
{
    tdi_piece_iter iter;
    tdi_piece piece;
    uint64_t first = t * p->slice;
    tdi_pieces_begin(&iter, b->layout, to, first, first + p->slice);
    while (tdi_pieces_next(&iter, &piece)) {
        tdi_copy copy = {
            .dst = mine(b, TIDE_BUF_RSTAGE, at + piece.out_offset - first, 2),
            .src = tide_at(TIDE_BUF_GRAD, (uint32_t)piece.param, (int32_t)owner,
                           piece.grad_offset * 2),
            .width = piece.elems * 2,
            .height = 1,
        };
        if (piece.real)
            tdi_add_copy(b, TIDE_LANE_COPY, &copy);
    }
}

/* Level 1 for one destination node: stage, sum, put. */
static void serve_node(tdi_builder *b, paper *p, uint32_t distance)
{
    uint32_t size = b->topology.local_size, half = distance % 2;
    uint64_t base = half * size * p->elems;
    tide_buffer target = distance ? TIDE_BUF_PARTIAL : TIDE_BUF_RECV;
    uint32_t peer = rail_rank(b, distance);
    uint32_t node = tdi_topo_node(b->topology, peer);
    tdi_add_after(b, TIDE_LANE_COPY, p->sum[half]);
    for (uint32_t g = 0; g < size; g++) {
        uint32_t to = tdi_topo_rank(b->topology, node, g);
        uint32_t t = (b->local + 2 * size - g - b->node % size) % size;
        uint64_t row = base + g * size * p->slice;
        for (uint32_t i = 0; i < size; i++) {
            uint32_t local = (b->local + i) % size;
            stage_slice(b, p, tdi_topo_rank(b->topology, b->node, local), to, t,
                        row + local * p->slice);
        }
        tdi_add_after(b, TIDE_LANE_SUM, b->last[TIDE_LANE_COPY]);
        tdi_add_reduce(b, TIDE_LANE_SUM, TIDE_SRC_BF16,
                       mine(b, target, (half * size + g) * p->slice, 4),
                       mine(b, TIDE_BUF_RSTAGE, row, 2), size, p->slice * 2,
                       p->slice);
    }
    p->sum[half] = b->last[TIDE_LANE_SUM];
    if (!distance)
        return;
    tdi_add_after(b, TIDE_LANE_SEND, b->last[TIDE_LANE_SUM]);
    tdi_add_put(b, TIDE_LANE_SEND, tide_at(TIDE_BUF_RECV, 0, (int32_t)peer, 0),
                mine(b, TIDE_BUF_PARTIAL, half * p->elems, 4), p->elems * 4);
}

/* Level 2: the switch adds over all G ranks, positions that no node has filled
 * included; the paper's times at 2 and 4 nodes fit that. */
static void add_nodes(tdi_builder *b, const paper *p)
{
    uint32_t size = b->topology.local_size;
    uint32_t layers = (uint32_t)tdi_ceil_div(b->topology.nodes, size);
    tdi_signal_peers(b, TIDE_LANE_RECV, TIDE_CH_ARRIVED);
    tdi_expect_peers(b, TIDE_CH_ARRIVED, 1);
    tdi_add_after(b, TIDE_LANE_LAND, b->last[TIDE_LANE_RECV]);
    tdi_wait_peers(b, TIDE_LANE_LAND, TIDE_CH_ARRIVED, 1);
    for (uint32_t q = 0; q < layers; q++)
        tdi_add_reduce(
            b, TIDE_LANE_LAND, TIDE_ACROSS | TIDE_SWITCH | (q ? TIDE_ADD : 0u),
            mine(b, TIDE_BUF_OUT, 0, 4),
            mine(b, TIDE_BUF_RECV, q * size * p->elems, 4), size, 0, p->elems);
}

tide_status tdi_plan_paper_rs(tdi_builder *b)
{
    uint32_t size = b->topology.local_size, nodes = b->topology.nodes;
    paper p = {.elems = tide_layout_out_elems(b->layout),
               .sum = {TDI_NO_OP, TDI_NO_OP}};
    p.slice = tdi_ceil_div(p.elems, size);
    b->buffer_bytes[TIDE_BUF_RSTAGE] = 2 * size * p.elems * 2;
    b->buffer_bytes[TIDE_BUF_PARTIAL] = 2 * p.elems * 4;
    b->buffer_bytes[TIDE_BUF_RECV] =
        tdi_ceil_div(nodes, size) * size * p.elems * 4;
    begin(b, TIDE_LANE_COPY);
    for (uint32_t distance = 0; distance < nodes; distance++)
        serve_node(b, &p, distance);
    tdi_add_after(b, TIDE_LANE_RECV, p.sum[0]);
    await_rails(b, 1);
    add_nodes(b, &p);
    end(b, TIDE_LANE_COPY);
    return TIDE_OK;
}

/* --- Packed fp32, hierarchical -------------------------------------------- */

tide_status tdi_plan_symm(tdi_builder *b)
{
    enum { CHUNKS = 4 };
    uint32_t nodes = b->topology.nodes, size = b->topology.local_size;
    uint64_t elems = tide_layout_out_elems(b->layout);
    uint64_t each = tdi_ceil_div(elems, CHUNKS);
    begin(b, TIDE_LANE_SUM);
    for (uint64_t c = 0; c < CHUNKS; c++) {
        uint64_t at = tdi_min(c * each, elems);
        uint64_t count = tdi_min(each, elems - at);
        for (uint32_t i = 1; i <= nodes; i++) {
            uint32_t peer = rail_rank(b, i);
            bool own = peer == b->rank;
            uint64_t slot = b->node * elems + at;
            tide_operand packed = tide_at(TIDE_BUF_GRAD, 0, (int32_t)b->rank,
                                          (peer * elems + at) * 4);
            tdi_add_reduce(b, TIDE_LANE_SUM, TIDE_ACROSS | TIDE_SWITCH,
                           own ? mine(b, TIDE_BUF_RECV, slot, 4)
                               : mine(b, TIDE_BUF_PARTIAL, at, 4),
                           packed, size, 0, count);
            if (own)
                continue;
            tdi_add_after(b, TIDE_LANE_SEND, b->last[TIDE_LANE_SUM]);
            tdi_add_put(b, TIDE_LANE_SEND,
                        tide_at(TIDE_BUF_RECV, 0, (int32_t)peer, slot * 4),
                        mine(b, TIDE_BUF_PARTIAL, at, 4), count * 4);
        }
        if (nodes == 1)
            continue;
        tdi_add_after(b, TIDE_LANE_RECV, b->last[TIDE_LANE_SUM]);
        await_rails(b, (uint32_t)c + 1);
        tdi_add_after(b, TIDE_LANE_LAND, b->last[TIDE_LANE_RECV]);
        tdi_add_reduce(b, TIDE_LANE_LAND, 0, mine(b, TIDE_BUF_OUT, at, 4),
                       mine(b, TIDE_BUF_RECV, at, 4), nodes, elems * 4, count);
    }
    end(b, TIDE_LANE_SUM);
    return TIDE_OK;
}
