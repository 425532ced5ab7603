/*
 * Training steps: compute from flops, communication from the simulator,
 * interference from the paper's measurements.
 */
#include "plan/step.h"

#include "base/fail.h"
#include "base/util.h"
#include "common/groups.h"
#include "sim/baseline.h"
#include "sim/step.h"

#include <inttypes.h>
#include <string.h>

/* A model of equal blocks; the group of that name is one block. */
typedef struct model {
    const char *name;
    uint32_t layers;
    double active;   /* parameters of a block that a token meets */
    double width;    /* heads x head dimension, for attention */
    double sequence; /* tokens that attend to each other; 0: all of a GPU's */
    double mask;     /* share of them that count: 0.5 if causal */
    double tokens[3];
} model;

static const model models[] = {
    {"llama3.1-8b", 32, 218.1e6, 4096, 8192, .5, {8192, 16384, 32768}},
    {"llama3.1-70b", 80, 855.6e6, 8192, 8192, .5, {8192, 16384, 32768}},
    /* 8 of 128 experts */
    {"qwen3-30b-a3b", 48, 56.9e6, 4096, 4096, .5, {16384, 24576, 32768}},
    {"wan2.2", 40, 351.3e6, 5120, 0, 1, {7800, 15600, 31200}},
};

/* What a way of communicating does to compute beside it: the paper's replay of
 * Llama-3.1 70B (victim slowdown), and for SymmMem's reduce-scatter its
 * 28-wave GEMM. */
typedef struct way {
    const char *name;
    tide_variant gather;
    tide_variant reduce;
    int copies; /* layout copies, which run on the compute stream */
    int slots;  /* Slot-Reuse */
    double gather_slows;
    double reduce_slows;
} way;

static const way ways[] = {
    {"stock", TIDE_VARIANT_RING, TIDE_VARIANT_PACKED, 1, 0, .066, .116},
    {"symmmem", TIDE_VARIANT_CE, TIDE_VARIANT_SYMM, 1, 0, .0305, .106},
    {"tide-in-place", TIDE_VARIANT_TIDE, TIDE_VARIANT_TIDE, 0, 0, .0033, .042},
    {"tide-slot-reuse", TIDE_VARIANT_TIDE, TIDE_VARIANT_TIDE, 0, 1, .0033,
     .042},
};

/* One block on one topology; communication of one way. */
typedef struct block {
    const model *model;
    const tide_machine *machine;
    tide_layout *layout;
    tide_topology topology;
} block;

typedef struct costs {
    tide_prediction gather;
    tide_prediction reduce;
    double copyout_us;
    double pack_us;
} costs;

static double group_elems(const block *b)
{
    return (double)tide_layout_out_elems(b->layout) * b->topology.nodes *
           b->topology.local_size;
}

static tide_status predict(const block *b, tide_coll coll, tide_variant variant,
                           tide_prediction *to)
{
    int multicast = b->machine->multicast_gbps > 0;
    tide_plan_options options = {.coll = coll,
                                 .push = multicast,
                                 .switch_reduce = multicast,
                                 .staged = b->machine->staged > 0,
                                 .block_bytes = (uint64_t)b->machine->block_kib
                                                << 10,
                                 .unit_bytes = b->machine->cores > 0};
    return tide_predict(b->layout, b->topology, &options, variant, b->machine,
                        to);
}

static tide_status find_costs(const block *b, const way *w, costs *c)
{
    *c = (costs){0};
    TDI_TRY(predict(b, TIDE_ALL_GATHER, w->gather, &c->gather));
    TDI_TRY(predict(b, TIDE_REDUCE_SCATTER, w->reduce, &c->reduce));
    if (!w->copies)
        return TIDE_OK;
    c->copyout_us = tdi_copyout_us(b->machine, 2 * group_elems(b));
    c->pack_us = tdi_pack_us(b->machine, group_elems(b));
    if (w->reduce == TIDE_VARIANT_SYMM) /* there it is part of the time */
        c->reduce.result.time_us -= c->pack_us;
    return TIDE_OK;
}

/* Of one layer forward; backward is twice that. */
static double compute_us(const block *b, double tokens)
{
    const model *m = b->model;
    double sequence = m->sequence > 0 ? m->sequence : tokens;
    double flops = tokens * (2 * m->active + 4 * sequence * m->mask * m->width);
    return flops / (b->machine->tflops * 1e6);
}

static tdi_step_layer make_layer(const block *b, const way *w, const costs *c,
                                 double tokens)
{
    double forward = compute_us(b, tokens), group = 2 * group_elems(b);
    double gather = c->gather.result.time_us, reduce = c->reduce.result.time_us;
    double ranks = (double)b->topology.nodes * b->topology.local_size;
    double rails = b->topology.nodes > 1
                       ? (b->topology.nodes - 1) / ranks * group /
                             (b->machine->rail_gbps * 1e3)
                       : 0;
    double read = c->reduce.result.phase_us[TIDE_PHASE_READS];
    /* Slot-Reuse copies the gradients once, on the compute stream. */
    double moved = w->slots ? tdi_copyout_us(b->machine, group) : 0;
    return (tdi_step_layer){
        .forward_us = forward + c->copyout_us + w->gather_slows * gather,
        .backward_us = 2 * forward + c->copyout_us + c->pack_us + moved +
                       w->gather_slows * gather + w->reduce_slows * reduce,
        .gather_us = gather,
        .gather_rail_us = rails,
        .reduce_us = reduce,
        .reduce_rail_us = 2 * rails, /* fp32 */
        .reads_us = read,
        .param_bytes = group,
        .grad_bytes = group,
        .flat_bytes = w->copies ? group : 0,
        .packed_bytes = w->copies ? 2 * group : 0,
        .grads_wait = !w->copies && !w->slots,
        .params_wait = w->slots,
    };
}

static void show_step(const block *b, const way *w, double tokens,
                      uint32_t prefetch, const tdi_step_result *r,
                      double buffers, FILE *to, tdi_json *json)
{
    double compute = 3 * compute_us(b, tokens) * b->model->layers / 1e3;
    double step = r->step_us / 1e3, waiting = r->waiting_us / 1e3;
    double peak = (r->peak_bytes + buffers) / (1 << 30);
    if (to)
        fprintf(to,
                "  %6.0f  %-15s %8" PRIu32 " %9.1f %9.1f %9.1f %9.1f "
                "%8.2f\n",
                tokens, w->name, prefetch, step, compute, waiting,
                step - compute - waiting, peak);
    if (!json)
        return;
    tdi_json_open(json, NULL, '{');
    tdi_json_real(json, "tokens", tokens);
    tdi_json_text(json, "way", w->name);
    tdi_json_count(json, "prefetch", prefetch);
    tdi_json_real(json, "step_ms", step);
    tdi_json_real(json, "compute_ms", compute);
    tdi_json_real(json, "exposed_ms", waiting);
    tdi_json_real(json, "slowed_ms", step - compute - waiting);
    tdi_json_real(json, "peak_gib", peak);
    tdi_json_close(json, '}');
}

static tide_status run_way(const block *b, const way *w, FILE *to,
                           tdi_json *json)
{
    costs c;
    TDI_TRY(find_costs(b, w, &c));
    double buffers = 0;
    if (!w->copies)
        buffers = (double)(c.gather.buffer_bytes + c.reduce.buffer_bytes);
    for (size_t t = 0; t < TDI_COUNT(b->model->tokens); t++) {
        double tokens = b->model->tokens[t];
        tdi_step_layer layer = make_layer(b, w, &c, tokens);
        for (uint32_t prefetch = 0; prefetch <= 2; prefetch++) {
            tdi_step_result result;
            TDI_TRY(tdi_step_run(&layer, b->model->layers, prefetch, &result));
            show_step(b, w, tokens, prefetch, &result, buffers, to, json);
        }
    }
    return TIDE_OK;
}

static tide_status find_model(const char *name, const model **found)
{
    for (size_t i = 0; i < TDI_COUNT(models); i++) {
        *found = &models[i];
        if (!strcmp(models[i].name, name))
            return TIDE_OK;
    }
    return tdi_fail(TIDE_ERR_INVALID,
                    "--step %s: the models are llama3.1-8b, llama3.1-70b, "
                    "qwen3-30b-a3b and wan2.2",
                    name);
}

static tide_status open_block(const char *name, const tide_machine *machine,
                              uint32_t nodes, block *b)
{
    tdi_params params;
    *b = (block){.machine = machine,
                 .topology = {nodes, (uint32_t)machine->local_size}};
    TDI_TRY(find_model(name, &b->model));
    if (machine->tflops <= 0)
        return tdi_fail(TIDE_ERR_INVALID, "--step needs a machine with tflops");
    TDI_TRY(tdi_params_load(name, 1, &params));
    tide_status status =
        tide_layout_create(params.params, params.count,
                           nodes * b->topology.local_size, &b->layout);
    tdi_params_free(&params);
    return status;
}

static void show_head(const block *b, FILE *to)
{
    fprintf(to,
            "# simulated: a step of %s, %" PRIu32 " layers, on %" PRIu32
            " x %" PRIu32 " of %s\n# %6s  %-15s %8s %9s %9s %9s %9s %8s\n"
            "# %6s  %-15s %8s %9s %9s %9s %9s %8s\n",
            b->model->name, b->model->layers, b->topology.nodes,
            b->topology.local_size, b->machine->name, "tokens", "way",
            "prefetch", "step", "compute", "exposed", "slowed", "peak", "a GPU",
            "", "", "(ms)", "(ms)", "(ms)", "(ms)", "(GiB)");
}

tide_status tdi_step_predict(const char *model_name,
                             const tide_machine *machine, uint32_t nodes,
                             FILE *to, tdi_json *json)
{
    block b;
    tide_status status = TIDE_OK;
    TDI_TRY(open_block(model_name, machine, nodes, &b));
    if (to)
        show_head(&b, to);
    if (json)
        tdi_json_open(json, "steps", '[');
    for (size_t i = 0; i < TDI_COUNT(ways) && !status; i++)
        status = run_way(&b, &ways[i], to, json);
    if (json)
        tdi_json_close(json, ']');
    tide_layout_free(b.layout);
    return status;
}
