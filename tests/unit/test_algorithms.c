/* The formulas of docs/algorithms.md against the statistics of plans. */
#include "support/check.h"
#include "support/planset.h"

#include "base/util.h"

static const tide_topology topologies[] = {
    {1, 1}, {1, 2}, {1, 8}, {2, 1},  {2, 4},  {3, 2}, {4, 4}, {5, 3},
    {7, 2}, {8, 8}, {9, 4}, {16, 2}, {17, 1}, {3, 8}, {10, 4}};

/* Says which case was wrong, in front of the two numbers. */
static void check_same(const char *what, tide_topology topology, uint64_t found,
                       uint64_t formula)
{
    if (found != formula)
        CHECK_FAIL("%ux%u: %s: %" PRIu64 ", the formula says %" PRIu64,
                   topology.nodes, topology.local_size, what, found, formula);
}

static uint64_t log2_up(uint32_t n)
{
    uint64_t rounds = 0;
    for (uint32_t m = 1; m < n; m *= 2)
        rounds++;
    return rounds;
}

/* --- All-gather ------------------------------------------------------------
 */

/* Two parameters whose shards need no rounding up to 16 bytes, and one whose
 * does; outer > 1 would not change a byte. */
static tide_layout *gather_layout(uint32_t ranks)
{
    tide_param params[] = {{1, 48 * ranks, 8, TIDE_BF16},
                           {1, 5 * ranks, 3, TIDE_BF16},
                           {1, 16 * ranks, 64, TIDE_F32}};
    tide_layout *layout;
    CHECK_OK(tide_layout_create(params, 3, ranks, &layout));
    return layout;
}

static uint64_t sum_shards(const tide_layout *layout)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < tide_layout_count(layout); p++)
        sum += tide_layout_param(layout, p)->shard_bytes;
    return sum;
}

static void check_gather(tide_topology t, uint32_t rank, int push,
                         uint64_t chunk)
{
    uint64_t n = t.nodes, g = t.local_size;
    tide_plan_options options = {
        .coll = TIDE_ALL_GATHER, .push = push, .chunk_bytes = chunk};
    tide_layout *layout = gather_layout(t.nodes * t.local_size);
    uint64_t shard = tide_layout_shard_bytes(layout);
    uint64_t landed = sum_shards(layout);
    tide_plan_stats s;
    tide_plan *plan;
    CHECK(landed < shard); /* the roundings are told apart */
    CHECK_OK(tide_plan_create(layout, t, rank, &options, &plan));
    tide_plan_get_stats(plan, &s);
    check_same("rounds", t, s.rounds, log2_up(t.nodes));
    check_same("rail bytes", t, s.rail_bytes, (n - 1) * shard);
    check_same("sent bytes", t, s.lane_bytes[TIDE_LANE_SEND], (n - 1) * shard);
    check_same("local bytes", t, s.local_bytes, (g - 1) * n * landed);
    check_same("landed bytes", t, s.lane_bytes[TIDE_LANE_LAND],
               (push ? 1 : g) * n * landed);
    check_same("buffer", t, s.buffer_bytes, 2 * n * shard);
    if (shard > chunk) {
        uint64_t part =
            tdi_round_up(tdi_ceil_div(shard, tdi_ceil_div(shard, chunk)), 16);
        check_same("puts", t, s.ops[TIDE_OP_PUT],
                   (n - 1) * tdi_ceil_div(shard, part));
    }
    tide_plan_free(plan);
    tide_layout_free(layout);
}

/* --- Reduce-scatter --------------------------------------------------------
 */

/* S is a whole number of blocks of equal sub-slices. */
static tide_layout *reduce_layout(tide_topology t)
{
    uint32_t ranks = t.nodes * t.local_size;
    tide_param params[] = {{1, 64 * ranks, t.local_size, TIDE_BF16},
                           {1, 32 * ranks, 4 * t.local_size, TIDE_BF16}};
    tide_layout *layout;
    CHECK_OK(tide_layout_create(params, 2, ranks, &layout));
    return layout;
}

/* T, the most nodes of a layer. */
static uint64_t layer_nodes(tide_topology t)
{
    return tdi_ceil_div(t.nodes, tdi_ceil_div(t.nodes, t.local_size));
}

/* c, the ranks that the sub-slices of a layer's nodes are spread over. */
static uint64_t spread_of(tide_topology t)
{
    uint64_t spread = layer_nodes(t);
    while (t.local_size % spread)
        spread++;
    return spread;
}

/* Sub-slices of a unit that reads `block` elements of T nodes in G of them. */
static uint64_t unit_width(tide_topology t, const tide_plan_options *o,
                           uint64_t block)
{
    uint64_t g = t.local_size;
    uint64_t read = block * tide_dtype_size(o->grad_dtype) * layer_nodes(t);
    uint64_t wanted = (o->unit_bytes + read - 1) / read;
    if (t.nodes == 1)
        return 1;
    uint64_t units = wanted >= g ? 1 : g / wanted;
    return (g + units - 1) / units;
}

static void check_reduce_buffers(tide_topology t, const tide_plan *plan,
                                 uint64_t block, uint64_t size)
{
    uint64_t width = unit_width(t, &plan->options, block);
    uint64_t g = t.local_size, targets = layer_nodes(t);
    uint64_t staged = (uint64_t)plan->options.staged;
    bool running = t.nodes > g && plan->options.out_dtype == TIDE_BF16;
    if (t.nodes == 1) {
        check_same("RSTAGE", t, plan->buffer_bytes[TIDE_BUF_RSTAGE],
                   staged * 2 * g * block * size);
        check_same("PARTIAL", t, plan->buffer_bytes[TIDE_BUF_PARTIAL], 0);
        check_same("RECV", t, plan->buffer_bytes[TIDE_BUF_RECV], 0);
        return;
    }
    check_same("RSTAGE", t, plan->buffer_bytes[TIDE_BUF_RSTAGE],
               staged * 2 * targets * width * block * size);
    check_same("PARTIAL", t, plan->buffer_bytes[TIDE_BUF_PARTIAL],
               8 * targets * width * block / g + (running ? 4 * block : 0));
    check_same("RECV", t, plan->buffer_bytes[TIDE_BUF_RECV],
               4 * plan->options.recv_slots * spread_of(t) * block);
}

/* Bytes of its own gradient that a rank does not stage. */
static uint64_t kept_bytes(const tide_plan *plan)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->op_count; i++)
        if (plan->ops[i].kind == TIDE_OP_REDUCE &&
            plan->ops[i].flags & TIDE_OWN)
            bytes +=
                plan->ops[i].width * tide_dtype_size(plan->options.grad_dtype);
    return bytes;
}

static void check_reduce(tide_topology t, uint32_t rank,
                         const tide_plan_options *options, uint64_t blocks)
{
    uint64_t n = t.nodes, g = t.local_size;
    tide_layout *layout = reduce_layout(t);
    uint64_t elems = tide_layout_out_elems(layout), block = elems / blocks;
    uint64_t size = tide_dtype_size(options->grad_dtype);
    tide_plan_options full = *options;
    tide_plan_stats s;
    tide_plan *plan;
    full.block_bytes = 4 * block;
    CHECK_INT(elems % (blocks * g * 16), ==, 0);
    CHECK_OK(tide_plan_create(layout, t, rank, &full, &plan));
    tide_plan_get_stats(plan, &s);
    check_same("rail bytes", t, s.rail_bytes, 4 * elems * (n - 1));
    uint64_t width = unit_width(t, &plan->options, block);
    check_same("puts", t, s.ops[TIDE_OP_PUT],
               blocks * ((g + width - 1) / width) * (n - 1));
    check_same("staged bytes, and those kept", t,
               s.lane_bytes[TIDE_LANE_COPY] + kept_bytes(plan),
               full.staged ? n * g * elems * size : 0);
    check_same("summed bytes", t, s.lane_bytes[TIDE_LANE_SUM],
               n * g * elems * size);
    bool extra = n > g && full.out_dtype == TIDE_BF16; /* the last rounding */
    check_same("level-2 bytes", t, s.lane_bytes[TIDE_LANE_LAND],
               n == 1 ? 0 : 4 * n * elems + (extra ? 4 * elems : 0));
    check_same("local bytes", t, s.local_bytes,
               (g - 1) * n * elems * size +
                   (n == 1 ? 0 : 4 * n * elems / g * (g - 1)));
    check_reduce_buffers(t, plan, block, size);
    tide_plan_free(plan);
    tide_layout_free(layout);
}

static void check_reduces(tide_topology t, uint32_t rank)
{
    for (int staged = 0; staged < 2; staged++) {
        for (int narrow = 0; narrow < 2; narrow++) {
            tide_plan_options options = {
                .coll = TIDE_REDUCE_SCATTER,
                .grad_dtype = narrow ? TIDE_BF16 : TIDE_F32,
                .out_dtype = narrow ? TIDE_BF16 : TIDE_F32,
                .staged = staged,
                .switch_reduce = narrow,
                .recv_slots = 2 + (uint32_t)staged};
            check_reduce(t, rank, &options, 1);
            check_reduce(t, rank, &options, 3);
            options.unit_bytes = 1;
            check_reduce(t, rank, &options, 3);
            options.unit_bytes = 1 << 20;
            check_reduce(t, rank, &options, 1);
        }
    }
}

/* --- A rank's own gradient -------------------------------------------------
 */

typedef struct own_case {
    const char *name;
    tide_param params[2];
    uint32_t count;
    tide_dtype grads;
    uint64_t kept; /* bytes */
} own_case;

/* Two ranks of a node; a long piece is one of 4 Mi elements of bf16. */
static const own_case own_cases[] = {
    {"all of the span", {{1, 128, 8, TIDE_BF16}}, 1, TIDE_BF16, 1024},
    {"short pieces",
     {{1, 128, 8, TIDE_BF16}, {1, 128, 8, TIDE_BF16}},
     2,
     TIDE_BF16,
     0},
    {"long and short",
     {{1, 8192, 1024, TIDE_BF16}, {1, 128, 8, TIDE_BF16}},
     2,
     TIDE_BF16,
     8 << 20},
    {"not so long",
     {{1, 8190, 1024, TIDE_BF16}, {1, 128, 8, TIDE_BF16}},
     2,
     TIDE_BF16,
     0},
    {"long in fp32",
     {{1, 4096, 1024, TIDE_F32}, {1, 128, 8, TIDE_F32}},
     2,
     TIDE_F32,
     8 << 20},
    {"long behind an odd one",
     {{1, 6, 1, TIDE_BF16}, {1, 8192, 1024, TIDE_BF16}},
     2,
     TIDE_BF16,
     0},
    {"an odd pitch", {{1, 6, 1, TIDE_BF16}}, 1, TIDE_BF16, 0},
    {"pieces of Shard(1)", {{2, 128, 8, TIDE_BF16}}, 1, TIDE_BF16, 0},
};

static void check_own(const own_case *c)
{
    const tide_topology pair = {1, 2};
    tide_plan_options options = {.coll = TIDE_REDUCE_SCATTER,
                                 .grad_dtype = c->grads,
                                 .out_dtype = TIDE_F32,
                                 .staged = 1};
    tide_layout *layout;
    CHECK_OK(tide_layout_create(c->params, c->count, 2, &layout));
    for (uint32_t rank = 0; rank < 2; rank++) {
        tide_plan *plan;
        CHECK_OK(tide_plan_create(layout, pair, rank, &options, &plan));
        check_same(c->name, pair, kept_bytes(plan), c->kept);
        tide_plan_free(plan);
    }
    tide_layout_free(layout);
}

/* --- Defaults --------------------------------------------------------------
 */

static void check_defaults(tide_topology t, uint64_t shard)
{
    const uint64_t mib = 1 << 20;
    uint32_t ranks = t.nodes * t.local_size;
    tide_param param = {1, ranks, shard, TIDE_U8};
    tide_plan_options gather = {.coll = TIDE_ALL_GATHER};
    tide_plan_options reduce = {.coll = TIDE_REDUCE_SCATTER, .staged = 1};
    tide_layout *layout;
    CHECK_OK(tide_layout_create(&param, 1, ranks, &layout));
    CHECK_OK(tide_plan_defaults(layout, t, &gather));
    CHECK_OK(tide_plan_defaults(layout, t, &reduce));
    check_same("chunk", t, gather.chunk_bytes,
               tdi_max(mib, tdi_min(8 * mib, shard / 2)));
    check_same("block", t, reduce.block_bytes,
               t.nodes == 1 ? 64 * mib / t.local_size
                            : tdi_min(8 * mib, 64 * mib / spread_of(t)));
    tide_layout_free(layout);
}

int main(void)
{
    for (size_t i = 0; i < TDI_COUNT(own_cases); i++)
        check_own(&own_cases[i]);
    for (size_t i = 0; i < TDI_COUNT(topologies); i++) {
        tide_topology t = topologies[i];
        uint32_t ranks = t.nodes * t.local_size;
        uint32_t some[] = {0, ranks / 2, ranks - 1};
        for (size_t k = 0; k < TDI_COUNT(some); k++) {
            for (int push = 0; push < 2; push++) {
                check_gather(t, some[k], push, 1 << 20);
                check_gather(t, some[k], push, 1 << 10);
            }
            check_reduces(t, some[k]);
        }
        check_defaults(t, 1 << 20);
        check_defaults(t, 5 << 20);
        check_defaults(t, 64 << 20);
    }
    return 0;
}
