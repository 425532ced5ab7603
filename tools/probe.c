/* tide-probe: what copies and sums do on one GPU, and to the GEMMs beside them.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tide/comm.h>

#include "backend/cuda/image.h"
#include "base/fail.h"
#include "base/util.h"
#include "common/origin.h"
#include "probe/args.h"
#include "probe/gemm.h"
#include "probe/report.h"
#include "probe/sum.h"

enum { EXIT_FAULT = 1, EXIT_USAGE = 2 };

typedef struct experiment {
    const char *name;
    tide_status (*run)(const gpu *g, const probe_args *args);
} experiment;

static const experiment experiments[] = {
    {"copy", probe_run_copy},
    {"sum", probe_run_sum},
    {"gemm", probe_run_gemm},
};

static int say_error(int code)
{
    fprintf(stderr, "tide-probe: %s\n", tide_last_error());
    return code;
}

static int run_all(const gpu *g, const probe_args *args)
{
    if (args->ring)
        g->kernels->ring = (uint32_t)args->ring;
    printf("# tide-probe %s (%s): %s, %u SMs, tide's streams of %s priority\n",
           tide_version(), tdi_origin_commit(), g->name, g->sms,
           args->low_priority ? "low" : "high");
    for (size_t i = 0; i < TDI_COUNT(experiments); i++) {
        const experiment *e = &experiments[i];
        if (args->run && !tdi_args_has(args->run, e->name, strlen(e->name)))
            continue;
        tide_status status = e->run(g, args);
        if (status)
            return say_error(status == TIDE_ERR_UNSUPPORTED ? EXIT_USAGE
                                                            : EXIT_FAULT);
    }
    return 0;
}

static int save_json(const gpu *g, FILE *to, int code, int argc, char **argv)
{
    tdi_json json = {.to = to};
    tdi_json_open(&json, NULL, '{');
    tdi_origin_json(&json, "tide-probe", argc, argv);
    tdi_json_text(&json, "device", g->name);
    tdi_json_count(&json, "sms", g->sms);
    tdi_json_flag(&json, "ok", code == 0);
    probe_json(&json);
    tdi_json_close(&json, '}');
    int failed = ferror(to);
    failed |= fclose(to);
    if (!failed)
        return code;
    fprintf(stderr, "tide-probe: the JSON file cannot be written\n");
    return EXIT_FAULT;
}

int main(int argc, char **argv)
{
    probe_args args;
    gpu g;
    FILE *json = NULL;
    tdi_action action = probe_parse(argc, argv, &args);
    if (action != TDI_RUN)
        return action == TDI_DONE ? 0 : EXIT_USAGE;
    if (args.json && !(json = fopen(args.json, "w"))) {
        tdi_fail_errno("%s cannot be written", args.json);
        return say_error(EXIT_USAGE);
    }
    int code = 0;
    if (gpu_open(&g, args.low_priority))
        code = say_error(EXIT_USAGE);
    else
        code = run_all(&g, &args);
    if (json)
        code = save_json(&g, json, code, argc, argv);
    gpu_close(&g);
    probe_free();
    return code;
}
