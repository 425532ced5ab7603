/* tide-perf: times all-gather and reduce-scatter on this machine's ranks. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "base/util.h"
#include "common/machine.h"
#include "common/origin.h"
#include "common/table.h"
#include "perf/args.h"
#include "perf/bench.h"

enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };

/* What ranks tell the parent, in memory that they inherit. */
typedef struct report {
    tide_comm_info info; /* of rank 0 */
    size_t row_count;
    tdi_row rows[TDI_PERF_SIZES * TDI_BENCH_VARIANTS];
    char errors[][512]; /* one a rank */
} report;

typedef struct session {
    const tdi_perf_args *args;
    tdi_params groups[TDI_PERF_SIZES];
    uint32_t group_count;
    report *report;
    size_t report_bytes;
    int *codes; /* of each rank */
    FILE *json; /* NULL: none */
} session;

static void say_error(void)
{
    fprintf(stderr, "tide-perf: %s\n", tide_last_error());
}

/* --- In a rank ---------------------------------------------------------- */

static void print_start(const session *s, const tide_comm_info *info)
{
    const tdi_perf_args *args = s->args;
    printf("# tide-perf %s (%s): %s on backend %s\n", tide_version(),
           tdi_origin_commit(), args->bench.op->name, info->backend);
    printf("# ranks %" PRIu32 ": nodes %" PRIu32 " x local %" PRIu32
           "; warmup %" PRIu32 ", iterations %" PRIu32 "\n",
           args->ranks, info->topology.nodes, info->topology.local_size,
           args->bench.warmup, args->bench.iters);
    if (args->group)
        printf("# group %s, scale %g: %zu parameters\n", args->group,
               args->scale, s->groups[0].count);
    else
        printf("# group of the given bytes a rank, split like a Llama block\n");
    if (!info->reads_private)
        printf("# in-place copies first: ranks may not read each other's "
               "memory\n");
    tdi_table_head(stdout);
}

static void add_rows(const session *s, const tide_comm_info *info,
                     const tdi_row *rows)
{
    for (uint32_t v = 0; v < s->args->bench.variant_count; v++) {
        tdi_row *row = &s->report->rows[s->report->row_count++];
        *row = rows[v];
        row->ranks = s->args->ranks;
        row->local = info->topology.local_size;
        tdi_table_row(stdout, row);
    }
}

static tide_status measure_groups(const session *s, tide_comm *comm,
                                  const tide_bootstrap *boot)
{
    tide_comm_info info;
    TDI_TRY(tide_comm_get_info(comm, &info));
    if (!boot->rank) {
        s->report->info = info;
        print_start(s, &info);
    }
    for (uint32_t i = 0; i < s->group_count; i++) {
        tdi_row rows[TDI_BENCH_VARIANTS] = {{0}};
        TDI_TRY(
            tdi_bench_run(&s->args->bench, comm, boot, &s->groups[i], rows));
        if (!boot->rank)
            add_rows(s, &info, rows);
    }
    return TIDE_OK;
}

static int fail_rank(const session *s, uint32_t rank, int code)
{
    snprintf(s->report->errors[rank], sizeof(s->report->errors[rank]), "%s",
             tide_last_error());
    return code;
}

static int run_rank(const tide_bootstrap *boot, void *context)
{
    const session *s = context;
    tide_comm_config config = {.backend = s->args->backend,
                               .local_size = s->args->local};
    tide_comm *comm;
    int code = 0;
    tide_status status = tide_comm_create(boot, &config, &comm);
    if (status)
        return fail_rank(s, boot->rank,
                         status == TIDE_ERR_INVALID ||
                                 status == TIDE_ERR_UNSUPPORTED
                             ? EXIT_USAGE
                             : EXIT_WRONG);
    if (measure_groups(s, comm, boot))
        code = fail_rank(s, boot->rank, EXIT_WRONG);
    tide_comm_destroy(comm);
    return code;
}

/* --- In the parent ------------------------------------------------------ */

/* The layout is made here too, so that a bad group is said once. */
static tide_status load_group(session *s, uint32_t i)
{
    const tdi_perf_args *args = s->args;
    tide_dtype dtype =
        args->bench.op == &tdi_bench_reduce ? TIDE_F32 : TIDE_BF16;
    tide_layout *layout;
    if (args->group)
        TDI_TRY(tdi_params_load(args->group, args->scale, &s->groups[i]));
    else
        TDI_TRY(tdi_params_split(
            tdi_ceil_div(args->sizes[i], tide_dtype_size(dtype)), args->ranks,
            &s->groups[i]));
    TDI_TRY(tide_layout_create(s->groups[i].params, s->groups[i].count,
                               args->ranks, &layout));
    tide_layout_free(layout);
    return TIDE_OK;
}

static tide_status open_session(session *s)
{
    uint32_t count = s->args->group ? 1 : s->args->size_count;
    for (; s->group_count < count; s->group_count++)
        TDI_TRY(load_group(s, s->group_count));
    s->report_bytes =
        sizeof(*s->report) + s->args->ranks * sizeof(s->report->errors[0]);
    void *shared = mmap(NULL, s->report_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return tdi_fail_errno("no memory for the report");
    s->report = shared;
    s->codes = calloc(s->args->ranks, sizeof(*s->codes));
    if (!s->codes)
        return tdi_fail(TIDE_ERR_MEMORY, "no memory for the exit codes");
    /* Now, so that a bad name is known before the work rather than after. */
    if (s->args->json && !(s->json = fopen(s->args->json, "w")))
        return tdi_fail_errno("%s cannot be written", s->args->json);
    return TIDE_OK;
}

static void close_session(session *s)
{
    for (uint32_t i = 0; i < TDI_COUNT(s->groups); i++)
        tdi_params_free(&s->groups[i]);
    if (s->report)
        munmap(s->report, s->report_bytes);
    free(s->codes);
    if (s->json)
        fclose(s->json);
}

/* Every rank may have met the same fault: each message is said once. */
static void print_errors(const session *s)
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

static void write_json(const session *s, int code, int argc, char **argv)
{
    const tide_comm_info *info = &s->report->info;
    tdi_json json = {.to = s->json};
    tdi_json_open(&json, NULL, '{');
    tdi_origin_json(&json, "tide-perf", argc, argv);
    write_machine(&json);
    tdi_json_text(&json, "backend", info->backend ? info->backend : "none");
    tdi_json_flag(&json, "reads_private", info->reads_private);
    tdi_json_flag(&json, "ok", code == 0);
    tdi_table_json(&json, s->report->rows, s->report->row_count);
    tdi_json_close(&json, '}');
}

static int save_json(session *s, int code, int argc, char **argv)
{
    write_json(s, code, argc, argv);
    int failed = ferror(s->json);
    failed |= fclose(s->json);
    s->json = NULL;
    if (!failed)
        return code;
    fprintf(stderr, "tide-perf: %s cannot be written: %s\n", s->args->json,
            strerror(errno));
    return EXIT_WRONG;
}

/* `code` is that of the launch; the result is the tool's. */
static int finish(session *s, int code, int argc, char **argv)
{
    const report *got = s->report;
    print_errors(s);
    if (code && code != EXIT_USAGE) {
        printf("# FAILED\n");
        code = EXIT_WRONG;
    } else if (!code) {
        tdi_table_foot(stdout, got->rows, got->row_count);
        code = tdi_table_wrong(got->rows, got->row_count) ? EXIT_WRONG : 0;
    }
    return s->json ? save_json(s, code, argc, argv) : code;
}

int main(int argc, char **argv)
{
    tdi_perf_args args;
    tdi_action action = tdi_perf_parse(argc, argv, &args);
    if (action != TDI_RUN)
        return action == TDI_DONE ? 0 : EXIT_USAGE;
    session s = {.args = &args};
    int code = EXIT_USAGE;
    if (open_session(&s)) {
        say_error();
    } else {
        code = tide_launch(args.ranks, 0, run_rank, &s, s.codes);
        if (code < 0)
            say_error();
        code = finish(&s, code, argc, argv);
    }
    close_session(&s);
    return code;
}
