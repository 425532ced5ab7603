/* From bytes to a fuzz case, and from a case to text. */
#include "case.h"

#include "fuzz.h"

#include "base/util.h"

#include <inttypes.h>

enum {
    MAX_NODES = 17,
    MAX_LOCAL = 9,
    SHAPE_COST = 4000, /* N^2 G^3: ops of a reduce-scatter of one block */
    WIDE_COST = 60000, /* the same, for one case in eight */
    GATHER_COST = 4000,
    PIECE_COST = 20000,
    ELEMENTS = 20000, /* of all ranks' unsharded groups */
};

static uint32_t count_ranks(const fuzz_case *c)
{
    return c->topology.nodes * c->topology.local_size;
}

/* --- Groups ------------------------------------------------------------- */

/* Sizes of dimension 0: small, near a multiple of the ranks, or any byte. */
static uint64_t decode_rows(fuzz_bytes *in, uint32_t shape, uint32_t ranks)
{
    uint32_t byte = fuzz_take(in);
    if (shape == 0)
        return byte % 10;
    if (shape == 1)
        return byte;
    uint64_t rows = (uint64_t)ranks * (byte % 4);
    return shape == 2 ? rows + byte / 4 % 3 : rows; /* 3: Shard(d > 0) */
}

static tide_param decode_param(fuzz_bytes *in, const fuzz_case *c)
{
    uint32_t kind = fuzz_take(in);
    uint32_t shape = kind / TIDE_DTYPE_COUNT % 4;
    tide_param param = {.outer = 1, .dtype = kind % TIDE_DTYPE_COUNT};
    if (shape == 3)
        param.outer = 2 + kind / (TIDE_DTYPE_COUNT * 4);
    param.rows = decode_rows(in, shape, count_ranks(c));
    param.inner = fuzz_take(in);
    param.inner = param.inner < 192 ? param.inner % 10 : param.inner;
    if (c->huge) {
        param.inner <<= fuzz_pick(in, 0, 17);
        param.rows <<= fuzz_pick(in, 0, 17);
    }
    return param;
}

/* Elements of a rank's shard, padding included. */
static uint64_t shard_elems(const tide_param *param, uint64_t ranks)
{
    return param->outer * tdi_ceil_div(param->rows, ranks) * param->inner;
}

/* Cuts a parameter to what is left of the budget; returns its cost. */
static uint64_t cut_param(tide_param *param, uint64_t ranks, uint64_t left)
{
    if (shard_elems(param, ranks) * ranks > left)
        param->inner = 1;
    if (shard_elems(param, ranks) * ranks > left)
        param->rows = 0;
    return shard_elems(param, ranks) * ranks;
}

static void decode_group(fuzz_bytes *in, const fuzz_case *c, fuzz_group *group)
{
    uint64_t ranks = count_ranks(c);
    uint64_t left = ELEMENTS / ranks, pieces = PIECE_COST / (ranks * ranks);
    size_t count = fuzz_pick(in, 0, FUZZ_PARAMS);
    for (size_t p = 0; p < count; p++) {
        tide_param param = decode_param(in, c);
        if (param.outer > pieces)
            break;
        pieces -= param.outer;
        if (!c->huge)
            left -= cut_param(&param, ranks, left);
        group->params[group->count++] = param;
    }
}

/* --- Options ------------------------------------------------------------ */

/* A size to cut `whole` bytes with: small, a part of it, or times it. Never
 * so small that there are more than `parts` parts. */
static uint64_t decode_size(fuzz_bytes *in, uint64_t whole, uint64_t standard,
                            uint64_t parts)
{
    uint32_t kind = fuzz_take(in), value = fuzz_take(in);
    uint64_t size = 0;
    if (kind % 4 == 1)
        size = 1 + value;
    else if (kind % 4 == 2)
        size = whole / (1 + value % 16) + kind / 4 % 3;
    else if (kind % 4 == 3)
        size = whole * (1 + value % 8) + kind / 4 % 3;
    uint64_t least = tdi_ceil_div(whole, tdi_max(parts, 1));
    return (size ? size : standard) < least ? least : size;
}

static void measure_group(const fuzz_group *group, uint64_t ranks,
                          uint64_t *shard_bytes, uint64_t *out_elems)
{
    *shard_bytes = *out_elems = 0;
    for (size_t p = 0; p < group->count; p++) {
        const tide_param *param = &group->params[p];
        uint64_t elems = shard_elems(param, ranks);
        *out_elems += elems;
        *shard_bytes += tdi_round_up(elems * tide_dtype_size(param->dtype), 16);
    }
}

static void decode_coll(fuzz_bytes *in, const fuzz_case *c, fuzz_coll *coll)
{
    static const tide_dtype floats[] = {TIDE_BF16, TIDE_F32};
    const fuzz_group *group = &c->groups[coll->group];
    uint64_t n = c->topology.nodes, g = c->topology.local_size;
    uint64_t shard_bytes, out_elems;
    measure_group(group, n * g, &shard_bytes, &out_elems);
    uint32_t flags = fuzz_take(in), limits = fuzz_take(in);
    coll->options = (tide_plan_options){
        .coll = flags & 1 ? TIDE_REDUCE_SCATTER : TIDE_ALL_GATHER,
        .push = flags >> 1 & 1,
        .staged = flags >> 2 & 1,
        .switch_reduce = flags >> 3 & 1,
        .grad_dtype = floats[flags >> 4 & 1],
        .out_dtype = floats[flags >> 5 & 1],
        .window = limits % 5,
        .together = (int)(flags >> 6 & 3) % 3,
        .recv_slots = limits / 5 % 5,
    };
    uint64_t gather = n * n * g * g * (1 + group->count);
    coll->options.chunk_bytes =
        decode_size(in, shard_bytes, (uint64_t)8 << 20, GATHER_COST / gather);
    coll->options.block_bytes =
        decode_size(in, 4 * out_elems, ((uint64_t)64 << 20) / g,
                    SHAPE_COST / (n * n * g * g * g));
    /* What level 1 reads: the default, one by one, about a half, a fifth. */
    const uint64_t units[] = {0, 1, out_elems * n * g, out_elems * n * g / 3};
    coll->options.unit_bytes = units[limits / 25 % 4];
}

/* --- The case ----------------------------------------------------------- */

static void decode_topology(fuzz_bytes *in, uint32_t cost,
                            tide_topology *topology)
{
    uint32_t nodes = fuzz_pick(in, 1, MAX_NODES);
    uint32_t size = fuzz_pick(in, 1, MAX_LOCAL);
    while (nodes * nodes * size * size * size > cost)
        nodes--;
    *topology = (tide_topology){nodes, size};
}

static void decode_calls(fuzz_bytes *in, fuzz_case *c)
{
    uint32_t order = fuzz_take(in);
    uint32_t ranks = count_ranks(c);
    const float scales[] = {1.0f, 1.0f / (float)ranks, -0.75f};
    c->call_count = FUZZ_COLLS + order / 4 % (FUZZ_CALLS - FUZZ_COLLS + 1);
    for (uint32_t i = 0; i < c->call_count; i++)
        c->calls[i] = i < FUZZ_COLLS ? i : order >> (i - FUZZ_COLLS) & 1;
    c->how.seed = fuzz_take(in);
    c->how.split = (int)fuzz_pick(in, 0, 1);
    c->how.scale = scales[fuzz_pick(in, 0, 2)];
}

void fuzz_decode(const uint8_t *data, size_t bytes, fuzz_case *c)
{
    fuzz_bytes in = {data, bytes};
    *c = (fuzz_case){0};
    uint32_t kind = fuzz_take(&in);
    c->huge = kind % 8 == 7;
    decode_topology(&in, kind % 8 == 6 ? WIDE_COST : SHAPE_COST, &c->topology);
    decode_calls(&in, c);
    c->colls[1].group = kind / 8 % 2;
    for (size_t i = 0; i <= c->colls[1].group; i++)
        decode_group(&in, c, &c->groups[i]);
    for (size_t i = 0; i < FUZZ_COLLS; i++)
        decode_coll(&in, c, &c->colls[i]);
}

/* --- Text --------------------------------------------------------------- */

static void print_group(const fuzz_group *group, FILE *to)
{
    fputc('{', to);
    for (size_t p = 0; p < group->count; p++) {
        const tide_param *param = &group->params[p];
        fprintf(to, "%s{%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %s}",
                p ? ", " : "", param->outer, param->rows, param->inner,
                tide_dtype_name(param->dtype));
    }
    fputs("}\n", to);
}

static void print_coll(const fuzz_coll *coll, FILE *to)
{
    const tide_plan_options *o = &coll->options;
    fprintf(to, "group %u, ", coll->group);
    if (o->coll == TIDE_ALL_GATHER)
        fprintf(to,
                "all-gather push=%d chunk=%" PRIu64 " window=%u together=%d\n",
                o->push, o->chunk_bytes, o->window, o->together);
    else
        fprintf(to,
                "reduce-scatter %s->%s staged=%d switch=%d block=%" PRIu64
                " slots=%u unit=%" PRIu64 "\n",
                tide_dtype_name(o->grad_dtype), tide_dtype_name(o->out_dtype),
                o->staged, o->switch_reduce, o->block_bytes, o->recv_slots,
                o->unit_bytes);
}

void fuzz_print(const fuzz_case *c, FILE *to)
{
    fprintf(to, "topology {%u, %u}%s\n", c->topology.nodes,
            c->topology.local_size, c->huge ? ", plans only" : "");
    for (size_t i = 0; i <= c->colls[1].group; i++) {
        fprintf(to, "group %zu: ", i);
        print_group(&c->groups[i], to);
    }
    for (size_t i = 0; i < FUZZ_COLLS; i++) {
        fprintf(to, "collective %zu: ", i);
        print_coll(&c->colls[i], to);
    }
    fputs("calls:", to);
    for (uint32_t i = 0; i < c->call_count; i++)
        fprintf(to, " %u", c->calls[i]);
    fprintf(to, "; seed %" PRIu64 " split=%d scale=%g\n", c->how.seed,
            c->how.split, (double)c->how.scale);
}
