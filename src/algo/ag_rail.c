/*
 * All-gather rails: recursive doubling over nodes, for any number of nodes.
 *
 * With m slots held (m = 1, 2, 4 ...) node n sends its first min(m, N - m)
 * slots n, n+1 ... to node n - m, and receives as many, n+m ..., from n + m
 * (mod N). N - 1 slots travel in ceil(log2 N) rounds: no schedule moves fewer
 * bytes. Paced: a put is at most chunk_bytes, and at most `window` puts of a
 * round are on their way before the first has landed.
 */
#include "algo/ag.h"

#include "base/fail.h"
#include "base/util.h"
#include "topo/topo.h"

#include <stdlib.h>

enum { MAX_PARTS = 1 << 20 };

/* Cuts slots of `bytes` bytes into puts of at most the chunk (rounded up to 16
 * bytes): parts of a slot, or several slots. */
static void set_parts(tdi_rails *rails, uint64_t bytes, uint64_t chunk)
{
    rails->slot_bytes = bytes;
    rails->part_bytes = bytes;
    rails->parts = 1;
    rails->slots_max = 1;
    if (bytes > chunk) {
        uint64_t parts = tdi_ceil_div(bytes, chunk);
        rails->part_bytes = tdi_round_up(tdi_ceil_div(bytes, parts), 16);
        rails->parts = (uint32_t)tdi_ceil_div(bytes, rails->part_bytes);
    } else if (bytes) {
        rails->slots_max = (uint32_t)tdi_min(chunk / bytes, TIDE_MAX_RANKS);
    }
}

tide_status tdi_rails_begin(tdi_builder *b, tdi_rails *rails, uint32_t filled)
{
    uint64_t chunk = b->options->chunk_bytes;
    uint64_t bytes = tide_layout_shard_bytes(b->layout);
    if (bytes / 16 > MAX_PARTS && bytes / chunk > MAX_PARTS)
        return tdi_fail(TIDE_ERR_INVALID,
                        "chunks of %llu bytes cut a shard of %llu bytes in "
                        "more than %d parts",
                        (unsigned long long)chunk, (unsigned long long)bytes,
                        MAX_PARTS);
    set_parts(rails, bytes, chunk);
    size_t count = (size_t)b->topology.nodes * rails->parts;
    rails->arrival = malloc(count * sizeof(uint32_t));
    if (!rails->arrival)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan of rank %u",
                        b->rank);
    for (size_t i = 0; i < count; i++)
        rails->arrival[i] = filled;
    return TIDE_OK;
}

void tdi_rails_end(tdi_rails *rails)
{
    free(rails->arrival);
}

/* The node that is `distance` after mine, and my rail's rank there. */
static uint32_t node_at(const tdi_builder *b, uint32_t distance)
{
    return (b->node + distance) % b->topology.nodes;
}

static uint32_t rail_rank(const tdi_builder *b, uint32_t node)
{
    return tdi_topo_rank(b->topology, node, b->local);
}

/* Walks the runs of `count` slots from `slot` on (mod N), in travel order. */
typedef struct run_iter {
    uint32_t slot;
    uint32_t left; /* slots not yet finished */
    uint32_t part;
} run_iter;

static bool next_run(const tdi_builder *b, const tdi_rails *rails, run_iter *it,
                     tdi_run *run)
{
    if (!it->left || !rails->slot_bytes)
        return false;
    uint32_t nodes = b->topology.nodes;
    run->slot = it->slot;
    run->offset = it->part * rails->part_bytes;
    run->bytes = tdi_min(rails->part_bytes, rails->slot_bytes - run->offset);
    run->slots = (uint32_t)tdi_min(tdi_min(rails->slots_max, it->left),
                                   nodes - it->slot);
    if (++it->part >= rails->parts) {
        it->part = 0;
        it->slot = (it->slot + run->slots) % nodes;
        it->left -= run->slots;
    }
    return true;
}

static uint32_t count_runs(const tdi_builder *b, const tdi_rails *rails,
                           run_iter it)
{
    tdi_run run;
    uint32_t count = 0;
    while (next_run(b, rails, &it, &run))
        count++;
    return count;
}

static uint32_t *arrival_of(const tdi_rails *rails, const tdi_run *run,
                            uint32_t slot)
{
    uint64_t part = run->offset / rails->part_bytes;
    return &rails->arrival[(uint64_t)slot * rails->parts + part];
}

/* One side of a round: its runs, and how many have been dealt with. */
typedef struct side {
    uint32_t peer;
    run_iter runs;
    uint32_t done;
    uint32_t count;
} side;

/* The next put of a round, once its bytes are here and the window opens. */
static bool send_next(tdi_builder *b, const tdi_rails *rails, side *out)
{
    tdi_run run;
    uint32_t window = b->options->window;
    if (!next_run(b, rails, &out->runs, &run))
        return false;
    for (uint32_t s = run.slot; s < run.slot + run.slots; s++)
        tdi_add_after(b, TIDE_LANE_SEND, *arrival_of(rails, &run, s));
    if (window && out->done >= window)
        tdi_add_wait(b, TIDE_LANE_SEND, out->peer, TIDE_CH_CREDIT,
                     (int64_t)(out->done - window) + 1);
    uint64_t at = run.slot * rails->slot_bytes + run.offset;
    tdi_add_put(b, TIDE_LANE_SEND,
                tide_at(TIDE_BUF_STAGE, 0, (int32_t)out->peer, at),
                tide_at(TIDE_BUF_STAGE, 0, (int32_t)b->rank, at),
                run.slots * run.bytes);
    out->done++;
    return true;
}

static bool receive_next(tdi_builder *b, tdi_rails *rails, side *in,
                         tdi_on_arrival *arrived, void *context)
{
    tdi_run run;
    if (!next_run(b, rails, &in->runs, &run))
        return false;
    in->done++;
    uint32_t here = tdi_add_wait(b, TIDE_LANE_RECV, in->peer, TIDE_CH_RAIL,
                                 (int64_t)in->done);
    for (uint32_t s = run.slot; s < run.slot + run.slots; s++)
        *arrival_of(rails, &run, s) = here;
    arrived(b, &run, in->peer, in->count - in->done, context);
    return true;
}

/* Puts a round ahead of arrivals by so many: enough to keep the rail busy where
 * a backend runs both in this order. A put waits for the credit of the
 * window-th before it, which must not stand behind the put itself. */
static uint32_t choose_lead(uint32_t window)
{
    enum { LEAD = 2 };
    return window ? (uint32_t)tdi_min(window - 1, LEAD) : LEAD;
}

static void run_round(tdi_builder *b, tdi_rails *rails, side *out, side *in,
                      tdi_on_arrival *arrived, void *context)
{
    uint32_t lead = choose_lead(b->options->window);
    bool sends = true, receives = true;
    tdi_add_wait(b, TIDE_LANE_SEND, out->peer, TIDE_CH_OPEN, 1);
    for (uint32_t i = 0; sends || receives; i++) {
        sends = sends && send_next(b, rails, out);
        if (i >= lead)
            receives = receives && receive_next(b, rails, in, arrived, context);
    }
    tdi_expect(b, in->peer, TIDE_CH_RAIL, in->count);
}

void tdi_rails_open(tdi_builder *b)
{
    uint32_t nodes = b->topology.nodes;
    for (uint32_t m = 1; m < nodes; m *= 2) {
        tdi_add_signal(b, TIDE_LANE_COPY, rail_rank(b, node_at(b, m)),
                       TIDE_CH_OPEN);
        tdi_expect(b, rail_rank(b, node_at(b, nodes - m)), TIDE_CH_OPEN, 1);
    }
}

void tdi_rails_run(tdi_builder *b, tdi_rails *rails, tdi_on_arrival *arrived,
                   void *context)
{
    uint32_t nodes = b->topology.nodes;
    uint32_t window = b->options->window;
    for (uint32_t m = 1; m < nodes; m *= 2) {
        uint32_t count = (uint32_t)tdi_min(m, nodes - m);
        side out = {.peer = rail_rank(b, node_at(b, nodes - m)),
                    .runs = {b->node, count, 0}};
        side in = {.peer = rail_rank(b, node_at(b, m)),
                   .runs = {node_at(b, m), count, 0}};
        out.count = count_runs(b, rails, out.runs);
        in.count = count_runs(b, rails, in.runs);
        run_round(b, rails, &out, &in, arrived, context);
        if (window && out.count > window)
            tdi_expect(b, out.peer, TIDE_CH_CREDIT, out.count - window);
    }
}
