/* Reduce-scatter: blocks, sub-slices and the order of steps. See rs.h. */
#include "algo/rs.h"

#include "algo/algo.h"
#include "base/fail.h"
#include "base/util.h"
#include "topo/topo.h"

#include <stdlib.h>

tdi_span tdi_rs_span(const tdi_builder *b, const tdi_rs *rs, uint32_t k,
                     uint32_t t)
{
    uint64_t start = k * rs->block;
    uint64_t end = tdi_min(start + rs->block, tide_layout_out_elems(b->layout));
    uint64_t each =
        tdi_round_up(tdi_ceil_div(end - start, b->topology.local_size), 16);
    return (tdi_span){tdi_min(start + t * each, end),
                      tdi_min(start + (t + 1) * each, end)};
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
    return ((slot * size + g) * rs->spread + t % rs->spread) * rs->piece *
           sizeof(float);
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
    bool running = rs->layers > 1 && b->options->out_dtype == TIDE_BF16;
    if (b->options->staged)
        TDI_TRY(set_buffer(b, TIDE_BUF_RSTAGE, 2 * size * rs->targets,
                           rs->piece, rs->grad_size));
    if (b->topology.nodes == 1)
        return TIDE_OK;
    /* The running sum is a block behind the halves: G more pieces. */
    TDI_TRY(set_buffer(b, TIDE_BUF_PARTIAL,
                       2 * (uint64_t)rs->targets + (running ? size : 0),
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
