/* Predicts variants over numbers of nodes and sizes. */
#include "plan/predict.h"

#include "base/fail.h"
#include "base/util.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

tide_status tdi_variants_check(const char *list, tide_coll coll)
{
    for (const char *at = list; at && *at; at += *at == ',') {
        size_t part = strcspn(at, ",");
        bool known = false;
        for (int v = 0; v < TIDE_VARIANT_COUNT; v++) {
            const char *name = tide_variant_name((tide_variant)v);
            known |= tide_variant_does((tide_variant)v, coll) &&
                     strlen(name) == part && !strncmp(at, name, part);
        }
        if (!known)
            return tdi_fail(TIDE_ERR_INVALID, "--variant: there is no \"%.*s\"",
                            (int)part, at);
        at += part;
    }
    return TIDE_OK;
}

const char *tdi_predictions_assume(int mirrored)
{
    return mirrored
               ? "one node's ranks stand for all: every node does the same at "
                 "the same time, turned by its distance"
               : "all ranks are simulated";
}

static tide_status predict_one(const tdi_case *c, tide_variant variant,
                               const tide_machine *machine,
                               tdi_predictions *list)
{
    tide_prediction p;
    bool gather = c->options.coll == TIDE_ALL_GATHER;
    TDI_TRY(tide_predict(c->layout, c->topology, &c->options, variant, machine,
                         &p));
    double ms = p.result.time_us / 1e3;
    list->mirrored |= p.mirrored;
    list->rows[list->count++] = (tdi_row){
        .op = gather ? "ag" : "rs",
        .variant = tide_variant_name(variant),
        .ranks = tdi_case_ranks(c),
        .local = c->topology.local_size,
        .bytes = c->bytes,
        .time_ms = ms,
        .min_ms = ms,
        .p99_ms = ms,
        .buffer_bytes = p.buffer_bytes,
    };
    return TIDE_OK;
}

static tide_status predict_case(const tdi_plan_args *args, const tdi_case *c,
                                const tide_machine *machine, FILE *to,
                                tdi_predictions *list)
{
    for (int v = 0; v < TIDE_VARIANT_COUNT; v++) {
        tide_variant variant = (tide_variant)v;
        const char *name = tide_variant_name(variant);
        if (!tide_variant_does(variant, c->options.coll) ||
            (args->variant && !tdi_args_has(args->variant, name, strlen(name))))
            continue;
        TDI_TRY(predict_one(c, variant, machine, list));
        if (to)
            tdi_table_row(to, &list->rows[list->count - 1]);
    }
    return TIDE_OK;
}

static tide_status predict_nodes(const tdi_plan_args *args,
                                 const tide_machine *machine, uint32_t nodes,
                                 FILE *to, tdi_predictions *list)
{
    uint32_t sizes = args->group ? 1 : args->size_count;
    for (uint32_t i = 0; i < sizes; i++) {
        tdi_case c;
        TDI_TRY(tdi_case_create(args, machine, nodes, args->sizes[i], &c));
        if (to && i == 0)
            fprintf(to,
                    "# ranks %" PRIu32 ": nodes %" PRIu32 " x local %" PRIu32
                    "\n",
                    tdi_case_ranks(&c), nodes, c.topology.local_size);
        tide_status status = predict_case(args, &c, machine, to, list);
        tdi_case_free(&c);
        TDI_TRY(status);
    }
    return TIDE_OK;
}

tide_status tdi_predict_all(const tdi_plan_args *args,
                            const tide_machine *machine, FILE *to,
                            tdi_predictions *list)
{
    size_t most = (size_t)TDI_PLAN_LIST * TDI_PLAN_LIST * TIDE_VARIANT_COUNT;
    *list = (tdi_predictions){.rows = calloc(most, sizeof(tdi_row))};
    if (!list->rows)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for %zu rows", most);
    if (to) {
        fprintf(to, "# simulated on %s: %s\n", machine->name, machine->about);
        tdi_table_head(to, 0);
    }
    for (uint32_t i = 0; i < args->node_count; i++)
        TDI_TRY(predict_nodes(args, machine, args->nodes[i], to, list));
    if (to)
        fprintf(to, "# %s\n", tdi_predictions_assume(list->mirrored));
    return TIDE_OK;
}

void tdi_predictions_free(tdi_predictions *list)
{
    free(list->rows);
    *list = (tdi_predictions){0};
}
