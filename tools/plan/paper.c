/*
 * The source paper's tables (8 B200 a node, a 400 Gb/s NIC for each), min of
 * its runs in ms, against predictions of the same schedules. The numbers of
 * b200-8x400g were chosen to fit the rows marked as fitted; the others are
 * held out.
 */
#include "plan/paper.h"

#include "base/fail.h"
#include "base/util.h"
#include "common/groups.h"

#include <inttypes.h>
#include <stdlib.h>

enum { COLUMNS = 5 };

static const tide_variant gathers[COLUMNS] = {
    TIDE_VARIANT_PAPER, TIDE_VARIANT_RING, TIDE_VARIANT_CE,
    TIDE_VARIANT_RING_COPY, TIDE_VARIANT_CE_COPY};
static const tide_variant reduces[COLUMNS] = {
    TIDE_VARIANT_PAPER, TIDE_VARIANT_STOCK, TIDE_VARIANT_SYMM,
    TIDE_VARIANT_PACKED};

/* A line of a table: times of the variants above, 0 for none. */
typedef struct paper_line {
    tide_coll coll;
    uint32_t nodes;
    uint32_t mib; /* of a rank: shard, or fp32 output */
    double ms[COLUMNS];
    int fitted[COLUMNS];
    uint32_t sum_blocks; /* 0: the machine's */
} paper_line;

#define AG TIDE_ALL_GATHER
#define RS TIDE_REDUCE_SCATTER

static const paper_line lines[] = {
    {AG, 1, 32, {.38, .40, .35, .50, .45}, {1, 1, 1, 1, 0}, 0},
    {AG, 2, 32, {1.11, 1.35, 1.08, 1.53, 1.26}, {0, 1, 0, 0, 0}, 0},
    {AG, 4, 32, {2.57, 2.71, 3.14, 3.11, 3.56}, {0}, 0},
    {AG, 8, 32, {5.52, 5.46, 7.25, 6.15, 7.96}, {0}, 0},
    {AG, 1, 128, {1.40, 1.50, 1.27, 1.85, 1.61}, {1, 1, 1, 1, 0}, 0},
    {AG, 2, 128, {4.19, 5.29, 4.04, 5.99, 4.73}, {0}, 0},
    {RS, 1, 32, {.41, .59, .60, .39}, {1, 1, 1, 0}, 0},
    {RS, 2, 32, {2.08, 1.67, 1.16, 1.30}, {0}, 0},
    {RS, 4, 32, {3.70, 3.39, 3.06, 2.69}, {0}, 0},
    {RS, 8, 32, {6.61, 6.82, 6.67, 5.40}, {1, 0, 0, 0}, 0},
    {RS, 1, 128, {1.29, 2.23, 2.36, 1.44}, {1, 1, 1, 0}, 0},
    {RS, 2, 128, {7.63, 6.70, 4.62, 5.17}, {0}, 0},
    /* The reduce-scatter alone of the interference table, 4 + 4 blocks. */
    {RS, 8, 32, {12.02}, {0}, 4},
};

static tide_variant variant_of(const paper_line *line, int column)
{
    return (line->coll == AG ? gathers : reduces)[column];
}

static tide_status predict_time(const paper_line *line, int column,
                                const tide_machine *machine, double *ms)
{
    tide_topology topology = {line->nodes, (uint32_t)machine->local_size};
    uint32_t ranks = topology.nodes * topology.local_size;
    uint64_t bytes = (uint64_t)line->mib << 20;
    tide_plan_options options = {.coll = line->coll};
    tide_machine m = *machine;
    tide_prediction prediction;
    tide_layout *layout;
    tdi_params params;
    if (line->sum_blocks)
        m.sum_blocks = line->sum_blocks;
    TDI_TRY(
        tdi_params_split(bytes / (line->coll == AG ? 2 : 4), ranks, &params));
    tide_status status =
        tide_layout_create(params.params, params.count, ranks, &layout);
    tdi_params_free(&params);
    TDI_TRY(status);
    status = tide_predict(layout, topology, &options, variant_of(line, column),
                          &m, &prediction);
    tide_layout_free(layout);
    *ms = prediction.result.time_us / 1e3;
    return status;
}

static void print_time(FILE *to, const paper_line *line, int column, double ms)
{
    double paper = line->ms[column];
    fprintf(to,
            "  %-2s  %5" PRIu32 " %6" PRIu32 "  %-13s%-5s %8.2f %8.2f "
            "%+7.1f%%  %s\n",
            line->coll == AG ? "ag" : "rs", line->nodes, line->mib,
            tide_variant_name(variant_of(line, column)),
            line->sum_blocks ? "4+4" : "", paper, ms, 100 * (ms / paper - 1),
            line->fitted[column] ? "fitted" : "held out");
}

static void json_time(tdi_json *json, const paper_line *line, int column,
                      double ms)
{
    tdi_json_open(json, NULL, '{');
    tdi_json_text(json, "op", line->coll == AG ? "ag" : "rs");
    tdi_json_count(json, "nodes", line->nodes);
    tdi_json_count(json, "mib", line->mib);
    tdi_json_text(json, "variant", tide_variant_name(variant_of(line, column)));
    tdi_json_count(json, "sum_blocks", line->sum_blocks);
    tdi_json_real(json, "paper_ms", line->ms[column]);
    tdi_json_real(json, "time_ms", ms);
    tdi_json_flag(json, "fitted", line->fitted[column]);
    tdi_json_close(json, '}');
}

static tide_status predict_line(const paper_line *line,
                                const tide_machine *machine, FILE *to,
                                tdi_json *json)
{
    for (int column = 0; column < COLUMNS; column++) {
        double ms;
        if (line->ms[column] <= 0)
            continue;
        TDI_TRY(predict_time(line, column, machine, &ms));
        if (to)
            print_time(to, line, column, ms);
        if (json)
            json_time(json, line, column, ms);
    }
    return TIDE_OK;
}

tide_status tdi_paper_predict(const tide_machine *machine, FILE *to,
                              tdi_json *json)
{
    tide_status status = TIDE_OK;
    if (to)
        fprintf(to,
                "# simulated on %s, beside the paper's times (min)\n"
                "# op  nodes    MiB  variant               paper      sim    "
                "error\n# %35s %8s %8s\n",
                machine->name, "", "(ms)", "(ms)");
    if (json)
        tdi_json_open(json, "paper", '[');
    for (size_t i = 0; i < TDI_COUNT(lines) && !status; i++)
        status = predict_line(&lines[i], machine, to, json);
    if (json)
        tdi_json_close(json, ']');
    return status;
}
