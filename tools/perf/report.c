/* What tide-perf says: the lines above the table, rows, errors, JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/machine.h"
#include "common/origin.h"
#include "common/table.h"
#include "perf/session.h"

static void print_device(const tdi_device_info *device, uint32_t ranks)
{
    printf("# GPU %s, %" PRIu32 " for %" PRIu32
           " ranks; driver %d.%d, NCCL %d.%d.%d\n",
           device->name, device->devices, ranks, device->driver / 1000,
           device->driver / 10 % 100, device->nccl / 10000,
           device->nccl / 100 % 100, device->nccl % 100);
}

static void print_work(const tdi_bench *bench)
{
    printf("; warmup %" PRIu32 ", iterations %" PRIu32, bench->warmup,
           bench->iters);
    if (bench->calls > 1)
        printf(" of %" PRIu32 " calls", bench->calls);
}

static void print_group(const tdi_case *of)
{
    printf("# group %s, scale %g: %zu parameters\n", of->group, of->scale,
           of->params[0].count);
}

void tdi_report_start(const tdi_session *s)
{
    const tdi_perf_args *args = s->args;
    const tide_comm_info *info = &s->report->info;
    printf("# tide-perf %s (%s): %s on backend %s\n", tide_version(),
           tdi_origin_commit(), args->soak ? "soak" : args->op, info->backend);
    printf("# ranks %" PRIu32 ": nodes %" PRIu32 " x local %" PRIu32,
           args->ranks, info->topology.nodes, info->topology.local_size);
    if (args->soak)
        printf("; %" PRIu32 " rounds, %u in flight", args->soak,
               TDI_SOAK_DEPTH);
    else
        print_work(&args->bench);
    putchar('\n');
    if (info->queued)
        print_device(&s->report->device, args->ranks);
    if (!args->group_count)
        printf("# group of the given bytes a rank, split like a Llama block\n");
    else if (s->group_count == 1)
        print_group(&s->groups[0]);
    if (!info->reads_private && !info->queued)
        printf("# in-place copies first: ranks may not read each other's "
               "memory\n");
    tdi_table_head(stdout, info->queued);
}

/* Is row v of a case one of a baseline? */
static bool is_baseline(const tdi_bench *bench, uint32_t v)
{
    const tdi_bench_part *part = bench->parts;
    while (part < bench->parts + bench->part_count && v >= part->variant_count)
        v -= part++->variant_count;
    return part < bench->parts + bench->part_count &&
           part->variants[v]->baseline;
}

/* What a baseline cannot do is no fault of tide's; this is. */
static void note_fate(const tdi_session *s, const tdi_row *row, uint32_t v)
{
    if (row->fate != TDI_ROW_FAILED || is_baseline(&s->args->bench, v))
        return;
    s->report->lost = true;
    fprintf(stderr, "tide-perf: %s: %s\n", row->variant, row->why);
}

void tdi_report_rows(const tdi_session *s, const tdi_row *rows, uint32_t count)
{
    const tdi_case *of = &s->groups[s->report->case_count++];
    if (of->group && s->group_count > 1)
        print_group(of);
    for (uint32_t v = 0; v < count; v++) {
        tdi_row *row = &s->report->rows[s->report->row_count++];
        *row = rows[v];
        if (s->args->bench.part_count > 1 &&
            (!v || rows[v].op != rows[v - 1].op))
            printf("# %s\n", row->op);
        row->ranks = s->args->ranks;
        row->local = s->report->info.topology.local_size;
        tdi_table_row(stdout, row);
        note_fate(s, row, v);
    }
}

/* Every rank may have met the same fault: each message is said once. */
static void print_errors(const tdi_session *s)
{
    for (uint32_t rank = 0; rank < s->args->ranks; rank++) {
        const char *error = s->report->errors[rank];
        uint32_t first = 0;
        while (strcmp(s->report->errors[first], error))
            first++;
        if (*error && first == rank)
            fprintf(stderr, "tide-perf: %s\n", error);
        if (!*error && s->codes[rank])
            fprintf(stderr, "tide-perf: rank %" PRIu32 " ended with code %d\n",
                    rank, s->codes[rank]);
    }
}

static void write_machine(tdi_json *json)
{
    tdi_machine machine;
    tdi_machine_read(&machine);
    tdi_json_open(json, "machine", '{');
    tdi_json_text(json, "cpu", machine.cpu);
    tdi_json_text(json, "kernel", machine.kernel);
    tdi_json_count(json, "cores", machine.cores);
    tdi_json_count(json, "memory_bytes", machine.memory_bytes);
    tdi_json_close(json, '}');
}

static void write_device(tdi_json *json, const tdi_session *s)
{
    const tdi_device_info *device = &s->report->device;
    tdi_json_open(json, "device", '{');
    tdi_json_text(json, "name", device->name);
    tdi_json_count(json, "count", device->devices);
    tdi_json_count(json, "driver", (uint64_t)device->driver);
    tdi_json_count(json, "nccl", (uint64_t)device->nccl);
    tdi_json_close(json, '}');
}

/* Those that have rows, in the order of the rows. */
static void write_groups(tdi_json *json, const tdi_session *s)
{
    const tdi_report *got = s->report;
    tdi_json_open(json, "groups", '[');
    for (uint32_t i = 0; i < got->case_count; i++) {
        tdi_json_open(json, NULL, '{');
        tdi_json_text(json, "name", s->groups[i].group);
        tdi_json_real(json, "scale", s->groups[i].scale);
        tdi_json_count(json, "parameters", s->groups[i].params[0].count);
        tdi_json_count(json, "rows", got->row_count / got->case_count);
        tdi_json_close(json, '}');
    }
    tdi_json_close(json, ']');
}

static void write_json(const tdi_session *s, int code)
{
    const tide_comm_info *info = &s->report->info;
    tdi_json json = {.to = s->json};
    tdi_json_open(&json, NULL, '{');
    tdi_origin_json(&json, "tide-perf", s->argc, s->argv);
    write_machine(&json);
    tdi_json_text(&json, "backend", info->backend ? info->backend : "none");
    tdi_json_flag(&json, "reads_private", info->reads_private);
    if (info->queued)
        write_device(&json, s);
    if (s->args->soak)
        tdi_json_count(&json, "rounds", s->args->soak);
    if (s->args->bench.repeat)
        tdi_json_count(&json, "verify_runs", s->args->bench.repeat);
    tdi_json_flag(&json, "ok", code == 0);
    if (s->args->group_count)
        write_groups(&json, s);
    tdi_table_json(&json, s->report->rows, s->report->row_count);
    tdi_json_close(&json, '}');
}

static int save_json(tdi_session *s, int code)
{
    write_json(s, code);
    int failed = ferror(s->json);
    failed |= fclose(s->json);
    s->json = NULL;
    if (!failed)
        return code;
    fprintf(stderr, "tide-perf: %s cannot be written: %s\n", s->args->json,
            strerror(errno));
    return EXIT_WRONG;
}

int tdi_report_finish(tdi_session *s, int code)
{
    const tdi_report *got = s->report;
    print_errors(s);
    if (!tdi_is_reporter(s))
        return code < 0 ? EXIT_WRONG : code;
    if (!code && got->lost)
        code = EXIT_WRONG;
    if (code && code != EXIT_USAGE) {
        printf("# FAILED\n");
        code = EXIT_WRONG;
    } else if (!code) {
        if (s->args->bench.repeat)
            printf("# Bits of each variant compared over %" PRIu32 " runs\n",
                   s->args->bench.repeat);
        tdi_table_foot(stdout, got->rows, got->row_count);
        code = tdi_table_wrong(got->rows, got->row_count) ? EXIT_WRONG : 0;
    }
    return s->json ? save_json(s, code) : code;
}
