/* The costs of ops, from the machine's numbers. */
#include "sim/cost.h"

#include "base/util.h"
#include "topo/topo.h"

static double per_us(double gbps)
{
    return gbps * 1e3;
}

void tdi_cost_limits(const tide_machine *machine, uint32_t ranks,
                     tdi_engine *engine)
{
    uint32_t shared = ranks * TDI_RANK_RESOURCES;
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t at = r * TDI_RANK_RESOURCES;
        double link = per_us(machine->link_gbps);
        double rail = per_us(machine->rail_gbps);
        tdi_engine_limit(engine, at + TDI_LINK_OUT, link);
        tdi_engine_limit(engine, at + TDI_LINK_IN, link);
        tdi_engine_limit(engine, at + TDI_RAIL_OUT, rail);
        tdi_engine_limit(engine, at + TDI_RAIL_IN, rail);
        tdi_engine_limit(engine, at + TDI_MEMORY, per_us(machine->memory_gbps));
    }
    tdi_engine_limit(engine, shared + TDI_CORES, machine->cores);
    tdi_engine_limit(engine, shared + TDI_CORE_MEMORY,
                     per_us(machine->core_gbps));
}

/* The op at hand. */
typedef struct context {
    const tide_machine *machine;
    const tide_plan *plan;
    uint32_t ranks;
    const tdi_batch *batch;
    tdi_cost *cost;
} context;

static void use(context *c, uint32_t rank, uint32_t what, double amount)
{
    uint32_t at = rank % c->ranks * TDI_RANK_RESOURCES + what;
    c->cost->uses[c->cost->count++] = (tdi_use){at, amount};
}

static uint32_t local_rank(const context *c, uint32_t i)
{
    uint32_t size = c->plan->topology.local_size;
    return c->plan->rank - c->plan->rank % size + i % size;
}

/* Bytes from one rank's memory to another's, or within one. */
static void use_path(context *c, uint32_t from, uint32_t to, double bytes)
{
    use(c, from, TDI_MEMORY, bytes);
    use(c, to, TDI_MEMORY, bytes);
    if (from == to)
        return;
    use(c, from, TDI_LINK_OUT, bytes);
    use(c, to, TDI_LINK_IN, bytes);
}

/* A multicast arrives at every rank of the node, the sender included, and at a
 * rate of its own; so it fills the links as more bytes would. */
static void use_multicast(context *c, uint32_t from, double bytes)
{
    const tide_machine *m = c->machine;
    double slower = m->multicast_gbps ? m->link_gbps / m->multicast_gbps : 1;
    use(c, from, TDI_MEMORY, bytes);
    use(c, from, TDI_LINK_OUT, bytes);
    for (uint32_t i = 0; i < c->plan->topology.local_size; i++) {
        use(c, local_rank(c, i), TDI_LINK_IN, bytes * slower);
        use(c, local_rank(c, i), TDI_MEMORY, bytes);
    }
}

/* Copies inside one GPU run on its SMs. */
static bool takes_sms(const tide_machine *m, const tide_op *op)
{
    return !m->cores &&
           tide_operand_rank(op->src) == tide_operand_rank(op->dst);
}

static double copied_bytes(const tide_op *op)
{
    return (double)op->width * (double)op->height;
}

/* Of a copy alone. */
static double copy_us(const tide_machine *m, const tide_op *op)
{
    double bytes = copied_bytes(op);
    return m->copy_us + (takes_sms(m, op)
                             ? tdi_bytes_us(2 * bytes, m->kernel_gbps)
                             : tdi_bytes_us(bytes, m->copy_gbps));
}

void tdi_cost_batch(const tide_machine *machine, const tide_plan *plan,
                    uint32_t first, tdi_batch *batch)
{
    enum { LEAST = 1 << 20 }; /* as the CUDA backend has it */
    double bytes = 0, sms_us = 0, engines_us = 0;
    if (first < batch->end)
        return;
    *batch = (tdi_batch){.end = first};
    for (; batch->end < plan->op_count; batch->end++) {
        const tide_op *op = &plan->ops[batch->end];
        if (op->kind != TIDE_OP_COPY || op->lane != plan->ops[first].lane)
            break;
        bool sms = takes_sms(machine, op);
        bytes += sms ? copied_bytes(op) : 0;
        *(sms ? &sms_us : &engines_us) += copy_us(machine, op);
    }
    if (bytes < LEAST || machine->copy_engines <= 0 || engines_us <= 0)
        return;
    batch->beside = engines_us < sms_us ? engines_us / sms_us : 1;
    batch->memory = 2 * bytes * batch->beside / engines_us;
}

/* What runs beside the copies of engines costs the lane nothing, but memory. */
static void cost_copy(context *c, const tide_op *op)
{
    const tide_machine *m = c->machine;
    double bytes = copied_bytes(op);
    uint32_t from = (uint32_t)tide_operand_rank(op->src);
    int32_t to = tide_operand_rank(op->dst);
    c->cost->us = copy_us(m, op);
    if (takes_sms(m, op)) {
        c->cost->us *= 1 - c->batch->beside;
        use_path(c, from, from, bytes * (1 - c->batch->beside));
        return;
    }
    if (c->batch->memory > 0)
        use(c, c->plan->rank, TDI_MEMORY, c->cost->us * c->batch->memory);
    if (to == TIDE_ALL_LOCAL)
        use_multicast(c, from, bytes);
    else
        use_path(c, from, (uint32_t)to, bytes);
}

double tdi_cost_spine(const tide_machine *machine, uint32_t distance)
{
    double share = 1;
    if (machine->pod_nodes > 0 && distance < machine->pod_nodes)
        share = distance / machine->pod_nodes;
    double slower = machine->pod_nodes > 0 ? machine->spine_taper * share : 1;
    return slower > 1 ? slower : 1;
}

static void cost_put(context *c, const tide_op *op)
{
    const tide_machine *m = c->machine;
    tide_topology topology = c->plan->topology;
    uint32_t from = c->plan->rank;
    uint32_t to = (uint32_t)tide_operand_rank(op->dst);
    uint32_t a = tdi_topo_node(topology, from), b = tdi_topo_node(topology, to);
    uint32_t apart = a < b ? b - a : a - b;
    apart = (uint32_t)tdi_min(apart, topology.nodes - apart);
    double bytes = (double)op->width;
    double slowed = bytes * tdi_cost_spine(m, apart);
    c->cost->us = m->put_us + tdi_bytes_us(slowed, m->rail_gbps);
    use(c, from, TDI_MEMORY, bytes);
    use(c, to, TDI_MEMORY, bytes);
    use(c, from, TDI_RAIL_OUT, slowed);
    use(c, to, TDI_RAIL_IN, slowed);
}

/* The switch reads every local rank and returns one sum. */
static void cost_switch(context *c, const tide_op *op)
{
    const tide_machine *m = c->machine;
    double bytes = (double)op->width * sizeof(float);
    double slower = m->switch_gbps ? m->link_gbps / m->switch_gbps : 1;
    c->cost->us =
        m->sum_us + tdi_bytes_us(bytes, m->land_blocks * m->switch_block_gbps);
    for (uint32_t i = 0; i < c->plan->topology.local_size; i++) {
        use(c, local_rank(c, i), TDI_LINK_OUT, bytes * slower);
        use(c, local_rank(c, i), TDI_MEMORY, bytes);
    }
    use(c, c->plan->rank, TDI_LINK_IN, bytes);
    use(c, c->plan->rank, TDI_MEMORY, bytes);
}

static void cost_reduce(context *c, const tide_op *op)
{
    const tide_machine *m = c->machine;
    bool land = op->lane == TIDE_LANE_LAND;
    double source = (double)op->width * (op->flags & TIDE_SRC_BF16 ? 2 : 4);
    double target = (double)op->width * (op->flags & TIDE_DST_BF16 ? 2 : 4);
    double added = op->flags & TIDE_ADD ? target : 0;
    double read = source * op->height + added;
    uint32_t first = (uint32_t)tide_operand_rank(op->src);
    uint32_t me = c->plan->rank;
    double blocks = land ? m->land_blocks : m->sum_blocks;
    if (op->flags & TIDE_SWITCH && m->switch_gbps) {
        cost_switch(c, op);
        return;
    }
    c->cost->us = m->sum_us + tdi_bytes_us(op->height ? read : target,
                                           blocks * m->block_gbps);
    use(c, me, TDI_MEMORY, target + added);
    if (!(op->flags & TIDE_ACROSS)) {
        use(c, me, TDI_MEMORY, source * op->height);
        return;
    }
    for (uint32_t i = 0; i < op->height; i++) {
        uint32_t from = local_rank(c, first + i);
        use(c, from, TDI_MEMORY, source);
        if (from != me) {
            use(c, from, TDI_LINK_OUT, source);
            use(c, me, TDI_LINK_IN, source);
        }
    }
}

/* A core does everything itself; ranks share cores and memory. */
static void add_host(context *c)
{
    double bytes = 0;
    uint32_t shared = c->ranks * TDI_RANK_RESOURCES;
    for (uint32_t i = 0; i < c->cost->count; i++)
        if (c->cost->uses[i].resource % TDI_RANK_RESOURCES == TDI_MEMORY)
            bytes += c->cost->uses[i].amount;
    c->cost->us += c->machine->enqueue_us;
    c->cost->uses[c->cost->count++] =
        (tdi_use){shared + TDI_CORES, c->cost->us};
    c->cost->uses[c->cost->count++] =
        (tdi_use){shared + TDI_CORE_MEMORY, bytes};
}

void tdi_cost_op(const tide_machine *machine, const tide_plan *plan,
                 uint32_t ranks, const tide_op *op, const tdi_batch *batch,
                 tdi_cost *cost)
{
    context c = {machine, plan, ranks, batch, cost};
    cost->us = 0;
    cost->count = 0;
    if (op->kind == TIDE_OP_COPY)
        cost_copy(&c, op);
    else if (op->kind == TIDE_OP_PUT)
        cost_put(&c, op);
    else if (op->kind == TIDE_OP_REDUCE)
        cost_reduce(&c, op);
    if (machine->cores > 0)
        add_host(&c);
}
