/*
 * Reduce-scatter, level 2: node sums arrive in RECV and become the output.
 *
 * For any (g, t) the nodes of a layer have put to different ranks of my node,
 * at one offset: rank (n, g) adds them with one switch reduction a sub-slice,
 * or reads them and adds in node order. RECV slots are reused by credit: a
 * sender may put step c + D once all my local peers have read step c.
 */
#include "algo/rs.h"

#include "base/util.h"
#include "topo/topo.h"

static uint32_t steps(const tdi_rs *rs)
{
    return rs->blocks * rs->layers;
}

/* The nodes that put to mine in a step. */
static tdi_nodes step_sources(const tdi_builder *b, const tdi_rs *rs,
                              uint32_t step)
{
    return tdi_rs_layer(b, rs, (rs->layer + step % rs->layers) % rs->layers);
}

static uint32_t rail_rank(const tdi_builder *b, uint32_t node)
{
    return tdi_topo_rank(b->topology, node, b->local);
}

/* Lets the sources of `step` write its RECV slot, from this op of RECV on. */
static void open_slot(tdi_builder *b, tdi_rs *rs, uint32_t step)
{
    tdi_nodes from = step_sources(b, rs, step);
    rs->slot_open[step % b->options->recv_slots] = b->last[TIDE_LANE_RECV];
    for (uint32_t i = 0; i < from.count; i++) {
        uint32_t node = from.first + i;
        if (node != b->node)
            tdi_add_signal(b, TIDE_LANE_RECV, rail_rank(b, node),
                           TIDE_CH_CREDIT);
    }
}

void tdi_rs_final_begin(tdi_builder *b, tdi_rs *rs)
{
    uint32_t slots = b->options->recv_slots;
    for (uint32_t i = 0; i < slots; i++)
        rs->slot_open[i] = TDI_NO_OP;
    /* Local peers have read all that the last execution left in RECV. */
    if (steps(rs))
        tdi_wait_peers(b, TIDE_LANE_RECV, TIDE_CH_CONSUMED, 0);
    for (uint32_t c = 0; c < tdi_min(slots, steps(rs)); c++)
        open_slot(b, rs, c);
}

/* Puts of a source up to and with block k: one a unit. */
static int64_t count_puts(const tdi_builder *b, const tdi_rs *rs, uint32_t k)
{
    uint64_t whole = tdi_ceil_div(b->topology.local_size, rs->width);
    return (int64_t)(k * whole +
                     tdi_ceil_div(tdi_rs_slices(b, rs, k), rs->width));
}

static void await_step(tdi_builder *b, const tdi_rs *rs, uint32_t step)
{
    tdi_nodes from = step_sources(b, rs, step);
    if (tdi_nodes_have(from, b->node))
        tdi_add_after(b, TIDE_LANE_RECV, rs->own_sum);
    for (uint32_t i = 0; i < from.count; i++) {
        uint32_t node = from.first + i;
        if (node != b->node)
            tdi_add_wait(b, TIDE_LANE_RECV, rail_rank(b, node), TIDE_CH_RAIL,
                         count_puts(b, rs, step / rs->layers));
    }
    tdi_signal_peers(b, TIDE_LANE_RECV, TIDE_CH_ARRIVED);
}

/* The running fp32 sum of bf16 output, kept behind the halves of PARTIAL. */
static tide_operand running_at(const tdi_builder *b, const tdi_rs *rs,
                               uint64_t in)
{
    uint64_t after = 2 * (uint64_t)rs->targets * rs->width * rs->piece;
    return tide_at(TIDE_BUF_PARTIAL, 0, (int32_t)b->rank,
                   (after + in) * sizeof(float));
}

/* Adds the contributions of one layer to sub-slice t of my output. */
static void sum_layer(tdi_builder *b, const tdi_rs *rs, uint32_t step,
                      uint32_t t, tdi_span span)
{
    uint32_t turn = step % rs->layers, k = step / rs->layers;
    uint32_t local_size = b->topology.local_size;
    tdi_nodes from = step_sources(b, rs, step);
    bool last = turn + 1 == rs->layers;
    bool narrow = b->options->out_dtype == TIDE_BF16;
    uint32_t first = (b->local + t + from.first) % local_size;
    uint64_t elems = span.last - span.first;
    tide_operand out =
        tide_at(TIDE_BUF_OUT, 0, (int32_t)b->rank,
                span.first * tide_dtype_size(b->options->out_dtype));
    tide_operand src = tide_at(
        TIDE_BUF_RECV, 0, (int32_t)tdi_topo_rank(b->topology, b->node, first),
        tdi_rs_recv_at(b, rs, step, b->local, t));
    unsigned flags = TIDE_ACROSS | (turn ? TIDE_ADD : 0u);
    if (b->options->switch_reduce && from.count == local_size)
        flags |= TIDE_SWITCH;
    if (narrow && rs->layers > 1) {
        tide_operand sum = running_at(b, rs, span.first - k * rs->block);
        tdi_add_reduce(b, TIDE_LANE_LAND, flags, sum, src, from.count, 0,
                       elems);
        if (last)
            tdi_add_reduce(b, TIDE_LANE_LAND, TIDE_SCALE | TIDE_DST_BF16, out,
                           sum, 1, 0, elems);
        return;
    }
    flags |= (last ? TIDE_SCALE : 0u) | (narrow ? TIDE_DST_BF16 : 0u);
    tdi_add_reduce(b, TIDE_LANE_LAND, flags, out, src, from.count, 0, elems);
}

void tdi_rs_final_step(tdi_builder *b, tdi_rs *rs, uint32_t k, uint32_t turn)
{
    uint32_t step = k * rs->layers + turn;
    await_step(b, rs, step);

    tdi_add_after(b, TIDE_LANE_LAND, b->last[TIDE_LANE_RECV]);
    tdi_wait_peers(b, TIDE_LANE_LAND, TIDE_CH_ARRIVED, (int64_t)step + 1);
    for (uint32_t t = 0; t < b->topology.local_size; t++) {
        tdi_span span = tdi_rs_span(b, rs, k, t);
        if (span.first < span.last)
            sum_layer(b, rs, step, t, span);
    }
    tdi_signal_peers(b, TIDE_LANE_LAND, TIDE_CH_CONSUMED);

    uint32_t next = step + b->options->recv_slots;
    if (next < steps(rs)) {
        tdi_wait_peers(b, TIDE_LANE_RECV, TIDE_CH_CONSUMED, (int64_t)step + 1);
        tdi_add_after(b, TIDE_LANE_RECV, b->last[TIDE_LANE_LAND]);
        open_slot(b, rs, next);
    }
}

void tdi_rs_final_expect(tdi_builder *b, tdi_rs *rs)
{
    for (uint32_t node = 0; node < b->topology.nodes; node++) {
        if (node == b->node || !rs->blocks)
            continue;
        tdi_expect(b, rail_rank(b, node), TIDE_CH_CREDIT, rs->blocks);
        tdi_expect(b, rail_rank(b, node), TIDE_CH_RAIL,
                   (uint64_t)count_puts(b, rs, rs->blocks - 1));
    }
    tdi_expect_peers(b, TIDE_CH_ARRIVED, steps(rs));
    tdi_expect_peers(b, TIDE_CH_CONSUMED, steps(rs));
}
