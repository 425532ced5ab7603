/* All-gathers to compare with: a ring over nodes, and copy engines. */
#include "algo/ag.h"
#include "base/util.h"
#include "sim/baseline.h"
#include "topo/topo.h"

static uint32_t rail_rank(const tdi_builder *b, uint32_t distance)
{
    return tdi_topo_rank(b->topology, (b->node + distance) % b->topology.nodes,
                         b->local);
}

/* The start that all share: STAGE is mine, `puts_from` may put into it. */
static uint32_t begin(tdi_builder *b)
{
    b->buffer_bytes[TIDE_BUF_STAGE] =
        b->topology.nodes * tide_layout_shard_bytes(b->layout);
    tdi_wait_peers(b, TIDE_LANE_COPY, TIDE_CH_FREE, -1);
    return tdi_add_mark(b, TIDE_LANE_COPY, TIDE_PHASE_FREE);
}

static void end(tdi_builder *b)
{
    tdi_signal_peers(b, TIDE_LANE_LAND, TIDE_CH_FREE);
    tdi_expect_peers(b, TIDE_CH_FREE, 1);
    tdi_add_join(b, TIDE_LANE_LAND);
    tdi_add_mark(b, TIDE_LANE_LAND, TIDE_PHASE_DONE);
}

/* Every local rank reads the `index`-th run (from 1) of every other. */
static void pull_all(tdi_builder *b, const tdi_run *run, uint32_t here,
                     uint32_t index)
{
    tdi_add_after(b, TIDE_LANE_LAND, here);
    tdi_land_run(b, b->rank, run, (int32_t)b->rank, TIDE_LANE_LAND);
    for (uint32_t i = 1; i < b->topology.local_size; i++) {
        tdi_add_wait(b, TIDE_LANE_LAND, tdi_peer(b, i), TIDE_CH_STAGED, index);
        tdi_land_run(b, tdi_peer(b, i), run, (int32_t)b->rank, TIDE_LANE_LAND);
    }
    tdi_expect_peers(b, TIDE_CH_STAGED, 1);
}

/* --- A ring over nodes --------------------------------------------------- */

static void land(tdi_builder *b, const tdi_run *run, tide_lane from,
                 uint32_t index)
{
    uint32_t here = b->last[from];
    if (b->options->push) {
        tdi_add_after(b, TIDE_LANE_LAND, here);
        tdi_land_run(b, b->rank, run, TIDE_ALL_LOCAL, TIDE_LANE_LAND);
        return;
    }
    tdi_signal_peers(b, from, TIDE_CH_STAGED);
    pull_all(b, run, here, index);
}

/* Parts of a slot, so that a part travels on while the next arrives. */
static void pass_slot(tdi_builder *b, uint32_t step, uint64_t parts,
                      uint32_t *arrived)
{
    uint64_t bytes = tide_layout_shard_bytes(b->layout);
    uint64_t each = tdi_round_up(tdi_ceil_div(bytes, parts), 16);
    uint32_t nodes = b->topology.nodes;
    uint32_t sent = (b->node + step) % nodes, got = (sent + 1) % nodes;
    for (uint64_t i = 0; i * each < bytes; i++) {
        tdi_run run = {got, 1, i * each, tdi_min(each, bytes - i * each)};
        uint64_t at = sent * bytes + run.offset;
        uint32_t to = rail_rank(b, nodes - 1);
        tdi_add_after(b, TIDE_LANE_SEND, arrived[i]);
        tdi_add_put(
            b, TIDE_LANE_SEND, tide_at(TIDE_BUF_STAGE, 0, (int32_t)to, at),
            tide_at(TIDE_BUF_STAGE, 0, (int32_t)b->rank, at), run.bytes);
        uint32_t index = step * (uint32_t)parts + (uint32_t)i + 1;
        arrived[i] = tdi_add_wait(b, TIDE_LANE_RECV, rail_rank(b, 1),
                                  TIDE_CH_RAIL, index);
        tdi_expect(b, rail_rank(b, 1), TIDE_CH_RAIL, 1);
        land(b, &run, TIDE_LANE_RECV, index + 1);
    }
}

tide_status tdi_plan_rail_ring(tdi_builder *b)
{
    enum { MOST_PARTS = 64 };
    uint32_t arrived[MOST_PARTS], nodes = b->topology.nodes;
    uint64_t bytes = tide_layout_shard_bytes(b->layout);
    uint64_t parts = tdi_ceil_div(bytes, b->options->chunk_bytes);
    tdi_run own = {b->node, 1, 0, bytes};
    parts = tdi_max(1, tdi_min(parts, MOST_PARTS));
    uint32_t filled = begin(b);
    for (uint32_t i = 0; i < MOST_PARTS; i++)
        arrived[i] = filled;
    if (nodes > 1) {
        tdi_add_signal(b, TIDE_LANE_COPY, rail_rank(b, 1), TIDE_CH_OPEN);
        tdi_add_wait(b, TIDE_LANE_SEND, rail_rank(b, nodes - 1), TIDE_CH_OPEN,
                     1);
        tdi_expect(b, rail_rank(b, nodes - 1), TIDE_CH_OPEN, 1);
    }
    land(b, &own, TIDE_LANE_COPY, 1);
    for (uint32_t step = 0; step + 1 < nodes; step++)
        pass_slot(b, step, parts, arrived);
    end(b);
    return TIDE_OK;
}

/* --- Copy engines -------------------------------------------------------- */

static void exchange_shards(tdi_builder *b)
{
    uint32_t nodes = b->topology.nodes;
    uint64_t bytes = tide_layout_shard_bytes(b->layout);
    uint64_t at = b->node * bytes;
    for (uint32_t i = 1; i < nodes; i++)
        tdi_add_signal(b, TIDE_LANE_COPY, rail_rank(b, i), TIDE_CH_OPEN);
    for (uint32_t i = 1; i < nodes; i++) {
        uint32_t to = rail_rank(b, nodes - i), from = rail_rank(b, i);
        tdi_add_wait(b, TIDE_LANE_SEND, to, TIDE_CH_OPEN, 1);
        tdi_add_put(b, TIDE_LANE_SEND,
                    tide_at(TIDE_BUF_STAGE, 0, (int32_t)to, at),
                    tide_at(TIDE_BUF_STAGE, 0, (int32_t)b->rank, at), bytes);
        tdi_add_wait(b, TIDE_LANE_RECV, from, TIDE_CH_RAIL, 1);
        tdi_expect(b, from, TIDE_CH_RAIL, 1);
        tdi_expect(b, to, TIDE_CH_OPEN, 1);
    }
}

tide_status tdi_plan_ce(tdi_builder *b)
{
    uint32_t nodes = b->topology.nodes, after = b->node + 1;
    uint64_t bytes = tide_layout_shard_bytes(b->layout);
    tdi_run own = {b->node, 1, 0, bytes};
    tdi_run low = {0, b->node, 0, bytes};
    tdi_run high = {after, nodes - after, 0, bytes};
    begin(b);
    tdi_signal_peers(b, TIDE_LANE_COPY, TIDE_CH_STAGED);
    pull_all(b, &own, b->last[TIDE_LANE_COPY], 1);
    if (nodes > 1) {
        exchange_shards(b);
        tdi_signal_peers(b, TIDE_LANE_RECV, TIDE_CH_STAGED);
        uint32_t here = b->last[TIDE_LANE_RECV];
        pull_all(b, low.slots ? &low : &high, here, 2);
        if (low.slots && high.slots)
            pull_all(b, &high, here, 2);
    }
    end(b);
    return TIDE_OK;
}
