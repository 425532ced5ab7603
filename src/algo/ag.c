/*
 * All-gather: the caller fills STAGE slot n; rails bring the other nodes'
 * slots; every run of slots lands as soon as it is here.
 *
 *   pull: each rank says STAGED to its local peers, run by run, and reads
 *         theirs into its own storages, which may be any memory.
 *   push: each rank writes the runs of its rail into the storages of all local
 *         ranks at once (multicast), once all have said DEST.
 *
 * COPY has the fill, SEND the puts, RECV the arrivals, LAND the landing.
 */
#include "algo/ag.h"
#include "algo/algo.h"

#include "topo/topo.h"

static void pull_from(tdi_builder *b, uint32_t owner, const tdi_run *run,
                      tide_lane lane)
{
    tdi_land_run(b, owner, run, (int32_t)b->rank, lane);
}

/* As soon as each peer has the `index`-th run (0: the own slots). */
static void pull_in_turn(tdi_builder *b, const tdi_run *run, uint32_t index)
{
    pull_from(b, b->rank, run, TIDE_LANE_LAND);
    for (uint32_t i = 1; i < b->topology.local_size; i++) {
        uint32_t peer = tdi_peer(b, i);
        tdi_add_wait(b, TIDE_LANE_LAND, peer, TIDE_CH_STAGED,
                     (int64_t)index + 1);
        pull_from(b, peer, run, TIDE_LANE_LAND);
    }
}

static void pull_batch(tdi_builder *b, const tdi_run *run, tide_lane lane)
{
    for (uint32_t i = 0; i < b->topology.local_size; i++)
        pull_from(b, tdi_peer(b, i), run, lane);
}

/* Once all have it: one batch of copies a lane for a backend that queues. */
static void pull_together(tdi_builder *b, const tdi_run *run, uint32_t index)
{
    bool two_lanes = b->options->together > 1;
    tdi_wait_peers(b, TIDE_LANE_LAND, TIDE_CH_STAGED, (int64_t)index + 1);
    if (two_lanes) {
        tdi_add_after(b, TIDE_LANE_COPY, b->last[TIDE_LANE_LAND]);
        pull_batch(b, run, TIDE_LANE_COPY);
    }
    pull_batch(b, run, TIDE_LANE_LAND);
    if (two_lanes)
        tdi_add_after(b, TIDE_LANE_LAND, b->last[TIDE_LANE_COPY]);
}

/* Lands a run from me and every local peer, once op `here` is complete. */
static void pull_all(tdi_builder *b, const tdi_run *run, uint32_t here,
                     uint32_t index)
{
    tdi_add_after(b, TIDE_LANE_LAND, here);
    if (b->options->together)
        pull_together(b, run, index);
    else
        pull_in_turn(b, run, index);
}

/* A run of my rail is here: say so to the local peers or write it to them. */
static void land_arrival(tdi_builder *b, const tdi_run *run, uint32_t source,
                         uint32_t round_left, void *context)
{
    uint32_t *runs = context;
    uint32_t here = b->last[TIDE_LANE_RECV];
    if (b->options->push) {
        tdi_add_after(b, TIDE_LANE_LAND, here);
        tdi_land_run(b, b->rank, run, TIDE_ALL_LOCAL, TIDE_LANE_LAND);
    } else {
        tdi_signal_peers(b, TIDE_LANE_RECV, TIDE_CH_STAGED);
        pull_all(b, run, here, *runs);
    }
    ++*runs;
    if (b->options->window && round_left >= b->options->window)
        tdi_add_signal(b, TIDE_LANE_LAND, source, TIDE_CH_CREDIT);
}

static void land_own(tdi_builder *b, uint32_t filled)
{
    tdi_run own = {b->node, 1, 0, tide_layout_shard_bytes(b->layout)};
    if (b->options->push) {
        tdi_add_after(b, TIDE_LANE_LAND, filled);
        tdi_signal_peers(b, TIDE_LANE_LAND, TIDE_CH_DEST);
        tdi_wait_peers(b, TIDE_LANE_LAND, TIDE_CH_DEST, 1);
        tdi_expect_peers(b, TIDE_CH_DEST, 1);
        tdi_land_run(b, b->rank, &own, TIDE_ALL_LOCAL, TIDE_LANE_LAND);
    } else {
        /* On RECV like those of arrivals: signals of one counter need an
         * order, or a peer takes one run's for another's. */
        tdi_add_after(b, TIDE_LANE_RECV, filled);
        tdi_signal_peers(b, TIDE_LANE_RECV, TIDE_CH_STAGED);
        pull_all(b, &own, filled, 0);
    }
}

static void end_landing(tdi_builder *b, uint32_t runs)
{
    if (b->options->push) {
        tdi_signal_peers(b, TIDE_LANE_LAND, TIDE_CH_LANDED);
        tdi_wait_peers(b, TIDE_LANE_LAND, TIDE_CH_LANDED, 1);
        tdi_expect_peers(b, TIDE_CH_LANDED, 1);
    } else {
        tdi_expect_peers(b, TIDE_CH_STAGED, runs);
    }
    tdi_signal_peers(b, TIDE_LANE_LAND, TIDE_CH_FREE);
    tdi_expect_peers(b, TIDE_CH_FREE, 1);
    tdi_add_join(b, TIDE_LANE_LAND);
    tdi_add_mark(b, TIDE_LANE_LAND, TIDE_PHASE_DONE);
}

tide_status tdi_plan_all_gather(tdi_builder *b)
{
    tdi_rails rails;
    uint32_t runs = 1;
    b->buffer_bytes[TIDE_BUF_STAGE] =
        b->topology.nodes * tide_layout_shard_bytes(b->layout);
    /* The set of STAGE that this call takes was read in the last but one. */
    tdi_wait_peers(b, TIDE_LANE_COPY, TIDE_CH_FREE, -1);
    tdi_rails_open(b);
    uint32_t filled = tdi_add_mark(b, TIDE_LANE_COPY, TIDE_PHASE_FREE);
    tide_status status = tdi_rails_begin(b, &rails, filled);
    if (status)
        return status;
    land_own(b, filled);
    tdi_rails_run(b, &rails, land_arrival, &runs);
    end_landing(b, runs);
    tdi_rails_end(&rails);
    return TIDE_OK;
}
