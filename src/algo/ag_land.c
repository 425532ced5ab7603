/*
 * All-gather landing: a run of STAGE slots goes straight into the parameters'
 * storages, one strided copy a parameter (width: the shard; height: the slots;
 * the ranks' shards of a rail lie G shards apart).
 */
#include "algo/ag.h"

#include "base/util.h"
#include "topo/topo.h"

/* One parameter's part [first, last) of a slot, in bytes of its shard. */
typedef struct span {
    const tide_param_layout *param;
    uint32_t index;
    uint64_t first;
    uint64_t last;
} span;

/* Two lanes are two queues of copies to a backend that has queues. */
static tide_lane lane_of(const tdi_builder *b, size_t param)
{
    bool other = b->options->together > 1 && !b->options->push;
    return other && param % 2 ? TIDE_LANE_COPY : TIDE_LANE_LAND;
}

static tide_operand storage_at(const span *s, int32_t where, uint64_t offset)
{
    return tide_at(TIDE_BUF_PARAM, s->index, where, offset);
}

/* Shard(0): the shard is contiguous, all slots go in one copy. */
static void land_rows(tdi_builder *b, uint32_t owner, const tdi_run *run,
                      int32_t where, const span *s)
{
    uint64_t slot_bytes = tide_layout_shard_bytes(b->layout);
    uint32_t rank = tdi_topo_rank(b->topology, run->slot,
                                  tdi_topo_local(b->topology, owner));
    tdi_copy copy = {
        .dst = storage_at(s, where, rank * s->param->shard_bytes + s->first),
        .src =
            tide_at(TIDE_BUF_STAGE, 0, (int32_t)owner,
                    run->slot * slot_bytes + s->param->shard_offset + s->first),
        .width = s->last - s->first,
        .height = run->slots,
        .dst_pitch = b->topology.local_size * s->param->shard_bytes,
        .src_pitch = slot_bytes,
    };
    tdi_add_copy(b, lane_of(b, s->index), &copy);
}

/* Shard(d > 0): a shard is `outer` pieces, each a part of a longer row. A part
 * of it is the end of one piece, whole pieces, and the start of another. */
static void land_pieces(tdi_builder *b, uint32_t owner, uint32_t slot,
                        int32_t where, const span *s)
{
    const tide_param_layout *p = s->param;
    uint64_t piece = p->shard_bytes / p->param.outer;
    uint64_t pitch = piece * tide_layout_ranks(b->layout);
    uint32_t rank =
        tdi_topo_rank(b->topology, slot, tdi_topo_local(b->topology, owner));
    uint64_t base = slot * tide_layout_shard_bytes(b->layout) + p->shard_offset;
    for (uint64_t at = s->first, step; at < s->last; at += step) {
        uint64_t in = at % piece;
        uint64_t whole = in ? 0 : (s->last - at) / piece;
        tdi_copy copy = {
            .dst = storage_at(s, where, at / piece * pitch + rank * piece + in),
            .src = tide_at(TIDE_BUF_STAGE, 0, (int32_t)owner, base + at),
            .width = whole ? piece : tdi_min(piece - in, s->last - at),
            .height = whole ? whole : 1,
            .dst_pitch = pitch,
            .src_pitch = piece,
        };
        step = copy.width * copy.height;
        tdi_add_copy(b, lane_of(b, s->index), &copy);
    }
}

/* The last parameter that starts at or before `offset` of the packed shard. */
static size_t find_param(const tide_layout *layout, uint64_t offset)
{
    size_t low = 0, high = tide_layout_count(layout);
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (tide_layout_param(layout, middle)->shard_offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void tdi_land_run(tdi_builder *b, uint32_t owner, const tdi_run *run,
                  int32_t where, tide_lane lane)
{
    size_t count = tide_layout_count(b->layout);
    uint64_t end = run->offset + run->bytes;
    for (size_t p = find_param(b->layout, run->offset); p < count; p++) {
        const tide_param_layout *param = tide_layout_param(b->layout, p);
        uint64_t start = param->shard_offset;
        if (start >= end)
            break;
        span s = {param, (uint32_t)p, tdi_max(run->offset, start) - start,
                  tdi_min(end - start, param->shard_bytes)};
        if (s.first >= s.last || lane_of(b, p) != lane)
            continue;
        if (param->param.outer == 1) {
            land_rows(b, owner, run, where, &s);
            continue;
        }
        for (uint32_t slot = run->slot; slot < run->slot + run->slots; slot++)
            land_pieces(b, owner, slot, where, &s);
    }
}
