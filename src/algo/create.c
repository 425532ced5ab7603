/* From a layout, a topology and options to the plan of one rank. */
#include "algo/algo.h"
#include "algo/rs.h"
#include "base/fail.h"
#include "base/util.h"
#include "topo/topo.h"

/* Two puts a shard let the second travel while the first is passed on; less
 * than 1 MiB is mostly overhead, more than 8 MiB holds the landing up. */
static const uint64_t least_chunk = (uint64_t)1 << 20;
static const uint64_t most_chunk = (uint64_t)8 << 20;
/* RECV is recv_slots * c blocks (rs.h): at most twice this, whatever N is. */
static const uint64_t block_budget = (uint64_t)64 << 20;
static const uint64_t most_block = (uint64_t)8 << 20;
/* Sub-slices are a G-th of a block: in large domains it has to be larger. */
static const uint64_t most_slice = (uint64_t)1 << 20;
/* A unit costs the host of a GPU some 50 us; in larger ones the rail waits
 * longer for the first put (docs/scaling.md). */
static const uint64_t least_unit = (uint64_t)8 << 20;

static tide_status check(const tide_layout *layout, tide_topology topology,
                         const tide_plan_options *options)
{
    if (!layout || !options)
        return tdi_fail(TIDE_ERR_INVALID, "layout or options is NULL");
    TDI_TRY(tdi_topo_check(topology, 0));
    if (tdi_topo_ranks(topology) != tide_layout_ranks(layout))
        return tdi_fail(
            TIDE_ERR_INVALID, "a layout of %u ranks on a topology of %u x %u",
            tide_layout_ranks(layout), topology.nodes, topology.local_size);
    return TIDE_OK;
}

static tide_status check_dtypes(const tide_plan_options *options)
{
    if ((options->grad_dtype != TIDE_BF16 && options->grad_dtype != TIDE_F32) ||
        (options->out_dtype != TIDE_BF16 && options->out_dtype != TIDE_F32))
        return tdi_fail(TIDE_ERR_INVALID,
                        "a reduce-scatter from %s to %s: both must be bf16 or "
                        "f32",
                        tide_dtype_name(options->grad_dtype),
                        tide_dtype_name(options->out_dtype));
    return TIDE_OK;
}

static uint64_t default_chunk(const tide_layout *layout)
{
    uint64_t half = tide_layout_shard_bytes(layout) / 2;
    return tdi_max(least_chunk, tdi_min(half, most_chunk));
}

static uint64_t default_block(tide_topology topology, int staged)
{
    uint64_t most = tdi_max(most_block, most_slice * topology.local_size);
    if (topology.nodes > 1)
        return tdi_min(block_budget / tdi_rs_spread(topology), most);
    /* RSTAGE is G blocks; without it there is nothing to keep small. */
    return staged ? block_budget / topology.local_size : UINT64_MAX;
}

tide_status tide_plan_defaults(const tide_layout *layout,
                               tide_topology topology,
                               tide_plan_options *options)
{
    TDI_TRY(check(layout, topology, options));
    if (options->coll == TIDE_ALL_GATHER) {
        if (!options->chunk_bytes)
            options->chunk_bytes = default_chunk(layout);
        return TIDE_OK;
    }
    if (options->coll != TIDE_REDUCE_SCATTER)
        return tdi_fail(TIDE_ERR_INVALID, "no collective %d", options->coll);
    if (!options->grad_dtype)
        options->grad_dtype = TIDE_BF16;
    if (!options->out_dtype)
        options->out_dtype = TIDE_F32;
    if (!options->recv_slots)
        options->recv_slots = 2;
    if (!options->unit_bytes)
        options->unit_bytes = least_unit;
    if (!options->block_bytes)
        options->block_bytes = default_block(topology, options->staged);
    return check_dtypes(options);
}

static uint64_t make_key(const tide_layout *layout, tide_topology topology,
                         const tide_plan_options *o)
{
    uint64_t fields[] = {
        tide_layout_hash(layout),
        topology.nodes,
        topology.local_size,
        (uint64_t)o->coll,
        (uint64_t)o->push,
        o->chunk_bytes,
        o->window,
        (uint64_t)o->together,
        (uint64_t)o->grad_dtype,
        (uint64_t)o->out_dtype,
        (uint64_t)o->staged,
        (uint64_t)o->switch_reduce,
        o->block_bytes,
        o->recv_slots,
        o->unit_bytes,
    };
    uint64_t key = 0;
    for (size_t i = 0; i < TDI_COUNT(fields); i++)
        key = tdi_hash(key, fields[i]);
    return key;
}

tide_status tide_plan_create(const tide_layout *layout, tide_topology topology,
                             uint32_t rank, const tide_plan_options *options,
                             tide_plan **plan)
{
    if (!plan)
        return tdi_fail(TIDE_ERR_INVALID, "plan is NULL");
    *plan = NULL;
    TDI_TRY(check(layout, topology, options));
    TDI_TRY(tdi_topo_check(topology, rank));
    tide_plan_options full = *options;
    TDI_TRY(tide_plan_defaults(layout, topology, &full));

    tdi_builder b;
    tide_status status = tdi_build_begin(&b, layout, topology, rank, &full);
    if (!status)
        status = full.coll == TIDE_ALL_GATHER ? tdi_plan_all_gather(&b)
                                              : tdi_plan_reduce_scatter(&b);
    tide_status finished = tdi_build_finish(&b, plan);
    if (!status)
        status = finished;
    if (status) {
        tide_plan_free(*plan);
        *plan = NULL;
        return status;
    }
    (*plan)->key = make_key(layout, topology, &full);
    return TIDE_OK;
}
