/* Predicts one call of a variant: its plans, simulated, and what formulas add.
 */
#include "base/fail.h"
#include "base/util.h"
#include "sim/baseline.h"
#include "sim/world.h"
#include "topo/topo.h"

#include <stdlib.h>

enum { RANKS_ALL = 64, RANKS_MOST = 1024 };

static const struct {
    const char *name;
    int colls; /* bit c: does collective c */
} variants[] = {
#define X(name, text, colls, what) [TIDE_VARIANT_##name] = {text, colls},
    TIDE_VARIANT_LIST(X)
#undef X
};

const char *tide_variant_name(tide_variant variant)
{
    return variant < TIDE_VARIANT_COUNT ? variants[variant].name : "?";
}

int tide_variant_does(tide_variant variant, tide_coll coll)
{
    return variant < TIDE_VARIANT_COUNT && coll <= TIDE_REDUCE_SCATTER &&
           variants[variant].colls >> coll & 1;
}

/* What plans are made of, and by whom; NULL: tide_plan_create. */
typedef struct job {
    const tide_layout *layout;
    tide_topology topology;
    tide_plan_options options;
    tide_machine machine;
    tdi_planner *planner;
    bool beside; /* see tdi_simulate */
} job;

static tide_status make_plan(const job *j, uint32_t rank, tide_plan **plan)
{
    if (!j->planner)
        return tide_plan_create(j->layout, j->topology, rank, &j->options,
                                plan);
    tdi_builder b;
    tide_status status =
        tdi_build_begin(&b, j->layout, j->topology, rank, &j->options);
    if (!status)
        status = j->planner(&b);
    tide_status finished = tdi_build_finish(&b, plan);
    return status ? status : finished;
}

static tide_status simulate_plans(const job *j, uint32_t ranks,
                                  tide_plan **plans, tide_prediction *to)
{
    tide_sim_options options = {.mirrored = to->mirrored};
    tide_plan_stats stats;
    for (uint32_t r = 0; r < ranks; r++)
        TDI_TRY(make_plan(j, r, &plans[r]));
    tide_plan_get_stats(plans[0], &stats);
    to->buffer_bytes = stats.buffer_bytes;
    return tdi_simulate((const tide_plan *const *)plans, &j->machine, &options,
                        j->beside, &to->result);
}

static tide_status simulate(const job *j, tide_prediction *to)
{
    uint32_t ranks = tdi_topo_ranks(j->topology);
    to->mirrored = j->topology.nodes > 1 && ranks > RANKS_ALL &&
                   tide_sim_mirrors(j->options.coll, j->topology);
    if (to->mirrored)
        ranks = j->topology.local_size;
    if (ranks > RANKS_MOST)
        return tdi_fail(TIDE_ERR_INVALID,
                        "%u ranks are too many to simulate, and no node "
                        "stands for all",
                        ranks);
    tide_plan **plans = calloc(ranks, sizeof(*plans));
    if (!plans)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %u plans", ranks);
    tide_status status = simulate_plans(j, ranks, plans, to);
    for (uint32_t r = 0; r < ranks; r++)
        tide_plan_free(plans[r]);
    free(plans);
    return status;
}

/* As simulate, on a layout of one parameter of R rows: a flat buffer. */
static tide_status simulate_flat(job *j, uint64_t row_elems, tide_dtype dtype,
                                 tide_prediction *to)
{
    uint32_t ranks = tdi_topo_ranks(j->topology);
    tide_param flat = {1, ranks, row_elems, dtype};
    tide_layout *layout;
    TDI_TRY(tide_layout_create(&flat, 1, ranks, &layout));
    j->layout = layout;
    tide_status status = simulate(j, to);
    tide_layout_free(layout);
    return status;
}

static void add_us(tide_prediction *to, double us)
{
    to->result.time_us += us;
    to->result.phase_us[TIDE_PHASE_DONE] = to->result.time_us;
}

static tide_status predict_gather(job *j, tide_variant variant,
                                  tide_prediction *to)
{
    uint64_t shard = tide_layout_shard_bytes(j->layout);
    double group = (double)shard * tdi_topo_ranks(j->topology);
    uint64_t flat = (uint64_t)group;
    switch (variant) {
    case TIDE_VARIANT_RAIL_RING:
        j->planner = tdi_plan_rail_ring;
        return simulate(j, to);
    case TIDE_VARIANT_RING:
    case TIDE_VARIANT_RING_COPY:
        add_us(to, tdi_ring_us(&j->machine, j->topology, (double)shard));
        to->buffer_bytes = flat;
        break;
    case TIDE_VARIANT_CE:
    case TIDE_VARIANT_CE_COPY:
        j->planner = tdi_plan_ce;
        TDI_TRY(simulate_flat(j, shard, TIDE_U8, to));
        to->buffer_bytes = flat;
        break;
    default:
        return simulate(j, to);
    }
    if (variant == TIDE_VARIANT_RING_COPY || variant == TIDE_VARIANT_CE_COPY)
        add_us(to, tdi_copyout_us(&j->machine, group));
    return TIDE_OK;
}

static tide_status predict_reduce(job *j, tide_variant variant,
                                  tide_prediction *to)
{
    uint64_t elems = tide_layout_out_elems(j->layout);
    double group = (double)elems * tdi_topo_ranks(j->topology);
    switch (variant) {
    case TIDE_VARIANT_PAPER:
        if (j->topology.nodes > 1)
            j->planner = tdi_plan_paper_rs;
        return simulate(j, to);
    case TIDE_VARIANT_PACKED:
    case TIDE_VARIANT_STOCK:
        add_us(to, tdi_ring_us(&j->machine, j->topology, (double)elems * 4));
        break;
    case TIDE_VARIANT_SYMM:
        j->planner = tdi_plan_symm;
        j->machine.sum_blocks = j->machine.symm_blocks;
        j->machine.land_blocks = j->machine.symm_blocks;
        TDI_TRY(simulate_flat(j, elems, TIDE_F32, to));
        break;
    default:
        return simulate(j, to);
    }
    if (variant != TIDE_VARIANT_PACKED)
        add_us(to, tdi_pack_us(&j->machine, group));
    to->buffer_bytes = ((uint64_t)group + elems) * sizeof(float);
    return TIDE_OK;
}

/* Whole slots by multicast; staged sums, added by the switch. */
static void choose_paper(const tide_layout *layout, tide_plan_options *o)
{
    *o = (tide_plan_options){
        .coll = o->coll,
        .push = 1,
        .chunk_bytes = tdi_max(tide_layout_shard_bytes(layout), 1),
        .grad_dtype = o->grad_dtype,
        .out_dtype = o->out_dtype,
        .staged = 1,
        .switch_reduce = 1,
    };
}

tide_status tide_predict(const tide_layout *layout, tide_topology topology,
                         const tide_plan_options *options, tide_variant variant,
                         const tide_machine *machine,
                         tide_prediction *prediction)
{
    if (!layout || !options || !machine || !prediction)
        return tdi_fail(TIDE_ERR_INVALID,
                        "layout, options, machine or prediction is NULL");
    if (!tide_variant_does(variant, options->coll))
        return tdi_fail(TIDE_ERR_INVALID, "%s is no variant of this collective",
                        tide_variant_name(variant));
    job j = {.layout = layout,
             .topology = topology,
             .options = *options,
             .machine = *machine,
             .beside = variant == TIDE_VARIANT_TIDE};
    *prediction = (tide_prediction){0};
    if (variant == TIDE_VARIANT_PAPER)
        choose_paper(layout, &j.options);
    /* As the CUDA backend has it, so that its copies are one batch. */
    if (variant == TIDE_VARIANT_TIDE && machine->cores <= 0 &&
        !j.options.together)
        j.options.together = 1;
    TDI_TRY(tide_plan_defaults(layout, topology, &j.options));
    return options->coll == TIDE_ALL_GATHER
               ? predict_gather(&j, variant, prediction)
               : predict_reduce(&j, variant, prediction);
}
