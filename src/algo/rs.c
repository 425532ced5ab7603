/* Reduce-scatter: blocks, sub-slices and the order of steps. See rs.h. */
#include "algo/rs.h"

#include "algo/algo.h"
#include "base/fail.h"
#include "base/util.h"
#include "topo/topo.h"

#include <stdlib.h>

static tdi_span block_span(const tdi_builder *b, const tdi_rs *rs, uint32_t k)
{
    uint64_t first = k * rs->block;
    return (tdi_span){
        first, tdi_min(first + rs->block, tide_layout_out_elems(b->layout))};
}

uint64_t tdi_rs_pitch(const tdi_builder *b, const tdi_rs *rs, uint32_t k)
{
    tdi_span of = block_span(b, rs, k);
    if (b->topology.nodes == 1)
        return rs->piece;
    return tdi_round_up(
        tdi_ceil_div(of.last - of.first, b->topology.local_size), 16);
}

tdi_span tdi_rs_span(const tdi_builder *b, const tdi_rs *rs, uint32_t k,
                     uint32_t t)
{
    tdi_span of = block_span(b, rs, k);
    uint64_t each = tdi_rs_pitch(b, rs, k);
    return (tdi_span){tdi_min(of.first + t * each, of.last),
                      tdi_min(of.first + (t + 1) * each, of.last)};
}

uint32_t tdi_rs_slices(const tdi_builder *b, const tdi_rs *rs, uint32_t k)
{
    tdi_span of = block_span(b, rs, k);
    return (uint32_t)tdi_ceil_div(of.last - of.first, tdi_rs_pitch(b, rs, k));
}

uint32_t tdi_rs_owner(const tdi_builder *b, uint32_t t)
{
    uint32_t size = b->topology.local_size;
    return (b->local + 2 * size - t - b->node % size) % size;
}

static uint32_t count_layers(tide_topology topology)
{
    return (uint32_t)tdi_ceil_div(topology.nodes, topology.local_size);
}

/* Even layers: a full one beside a small one would crowd the small one's
 * ranks while the others wait (docs/scaling.md). */
tdi_nodes tdi_rs_layer(const tdi_builder *b, const tdi_rs *rs, uint32_t layer)
{
    uint64_t nodes = b->topology.nodes;
    uint32_t first = (uint32_t)(layer * nodes / rs->layers);
    uint32_t end = (uint32_t)((layer + 1) * nodes / rs->layers);
    return (tdi_nodes){first, end - first};
}

/* The layer whose nodes include `node`, the inverse of the above. */
static uint32_t layer_of(uint32_t node, uint32_t nodes, uint32_t layers)
{
    return (uint32_t)((((uint64_t)node + 1) * layers - 1) / nodes);
}

uint32_t tdi_rs_spread(tide_topology topology)
{
    uint32_t spread =
        (uint32_t)tdi_ceil_div(topology.nodes, count_layers(topology));
    while (topology.local_size % spread)
        spread++;
    return spread;
}

uint64_t tdi_rs_recv_at(const tdi_builder *b, const tdi_rs *rs, uint32_t step,
                        uint32_t g, uint32_t t)
{
    uint32_t size = b->topology.local_size;
    uint64_t slot = step % b->options->recv_slots;
    uint64_t place = (uint64_t)((g + t) % rs->spread) * size + t;
    return (slot * size * rs->spread * rs->piece +
            place * tdi_rs_pitch(b, rs, step / rs->layers)) *
           sizeof(float);
}

/* As even as can be, so that each reads unit_bytes where there is so much; not
 * of crumbs, whose copies are so many that sums had better run beside them. */
static uint32_t choose_width(const tdi_builder *b, const tdi_rs *rs)
{
    enum { MOST_PARAMS = 64 };
    uint64_t size = b->topology.local_size;
    uint64_t slices = tdi_max(rs->blocks, 1) * size;
    uint64_t params = tdi_ceil_div(tide_layout_count(b->layout), slices);
    uint64_t read = rs->piece * rs->grad_size * rs->targets * size;
    if (b->topology.nodes == 1)
        return 1;
    uint64_t wanted = tdi_ceil_div(b->options->unit_bytes, tdi_max(read, 1));
    uint64_t most = tdi_min(tdi_max(MOST_PARAMS / tdi_max(params, 1), 1), size);
    uint64_t units =
        tdi_max(size / tdi_min(wanted, size), tdi_ceil_div(size, most));
    return (uint32_t)tdi_ceil_div(size, units);
}

static tide_status shape(const tdi_builder *b, tdi_rs *rs)
{
    uint64_t elems = tide_layout_out_elems(b->layout);
    uint32_t size = b->topology.local_size;
    uint64_t unit = 16 * (uint64_t)size;
    uint64_t wanted = tdi_min(b->options->block_bytes / sizeof(float), elems);
    rs->block = tdi_max(tdi_ceil_div(wanted, unit), 1) * unit;
    if (tdi_ceil_div(elems, rs->block) > 1u << 20 ||
        b->options->recv_slots > 1u << 10)
        return tdi_fail(TIDE_ERR_INVALID,
                        "a block of %llu bytes cuts an output of %llu elements "
                        "in more than 2^20 blocks, or there are more than "
                        "1024 recv_slots (%u)",
                        (unsigned long long)b->options->block_bytes,
                        (unsigned long long)elems, b->options->recv_slots);
    rs->blocks = (uint32_t)tdi_ceil_div(elems, rs->block);
    rs->piece = b->topology.nodes == 1 ? rs->block : rs->block / size;
    rs->layers = count_layers(b->topology);
    rs->layer = layer_of(b->node, b->topology.nodes, rs->layers);
    rs->targets = (uint32_t)tdi_ceil_div(b->topology.nodes, rs->layers);
    rs->spread = tdi_rs_spread(b->topology);
    rs->grad_size = tide_dtype_size(b->options->grad_dtype);
    rs->width = choose_width(b, rs);
    return TIDE_OK;
}

/* count * elems * size bytes of a scratch buffer, if they fit below 2^62. */
static tide_status set_buffer(tdi_builder *b, tide_buffer buffer,
                              uint64_t count, uint64_t elems, uint64_t size)
{
    uint64_t bytes;
    if (!tdi_mul(count, elems, &bytes) || !tdi_mul(bytes, size, &bytes))
        return tdi_fail(TIDE_ERR_INVALID,
                        "rank %u: scratch of %llu x %llu elements is too "
                        "large; lower block_bytes or recv_slots",
                        b->rank, (unsigned long long)count,
                        (unsigned long long)elems);
    b->buffer_bytes[buffer] = bytes;
    return TIDE_OK;
}

static tide_status set_buffers(tdi_builder *b, const tdi_rs *rs)
{
    uint64_t size = b->topology.local_size;
    uint64_t unit = (uint64_t)rs->targets * rs->width;
    bool running = rs->layers > 1 && b->options->out_dtype == TIDE_BF16;
    if (b->options->staged)
        TDI_TRY(set_buffer(b, TIDE_BUF_RSTAGE, 2 * size * unit, rs->piece,
                           rs->grad_size));
    if (b->topology.nodes == 1)
        return TIDE_OK;
    /* The running sum is a block behind the halves: G more pieces. */
    TDI_TRY(set_buffer(b, TIDE_BUF_PARTIAL, 2 * unit + (running ? size : 0),
                       rs->piece, sizeof(float)));
    return set_buffer(b, TIDE_BUF_RECV,
                      b->options->recv_slots * size * rs->spread, rs->piece,
                      sizeof(float));
}

tide_status tdi_plan_reduce_scatter(tdi_builder *b)
{
    tdi_rs rs = {0};
    bool rails = b->topology.nodes > 1;
    TDI_TRY(shape(b, &rs));
    if (rs.blocks)
        TDI_TRY(set_buffers(b, &rs));
    rs.slot_open = calloc(b->options->recv_slots, sizeof(uint32_t));
    if (!rs.slot_open)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for a plan of rank %u",
                        b->rank);
    if (rails)
        tdi_rs_final_begin(b, &rs);
    tdi_rs_local_begin(b, &rs);
    for (uint32_t k = 0; k < rs.blocks; k++) {
        for (uint32_t turn = 0; turn < rs.layers; turn++) {
            tdi_rs_local_step(b, &rs, k, turn);
            if (rails)
                tdi_rs_final_step(b, &rs, k, turn);
        }
    }
    tdi_rs_local_end(b, &rs);
    if (rails)
        tdi_rs_final_expect(b, &rs);
    free(rs.slot_open);
    return TIDE_OK;
}
