/* Reads the command line of tide-probe. */
#include "probe/args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tide/comm.h>

#include "backend/cuda/kernels/params.h"

/* name, its argument (NULL: none), help */
#define OPTION_LIST(X)                                                         \
    X(run, "LIST", "experiments, copy,sum,gemm; default: all")                 \
    X(ctas, "LIST", "bounds on blocks; default 4,8,16,32,128")                 \
    X(chunk, "LIST",                                                           \
      "bounds on the bytes that a launch reads; default "                      \
      "1M,2M,4M,8M,16M")                                                       \
    X(share, "LIST",                                                           \
      "instead: on what a block reads; default "                               \
      "128K,512K")                                                             \
    X(ring, "SIZE", "shared memory of a sum's block, 32K to 192K")             \
    X(gemm, "MxNxK", "the bf16 GEMM; default 1536x2816x8192")                  \
    X(runs, "N", "timed GEMMs of a measurement; default 200")                  \
    X(group, "NAME|FILE",                                                      \
      "whose reduce-scatter runs beside the GEMM; "                            \
      "default llama3.1-70b")                                                  \
    X(scale, "F", "divides dimension 0 of every parameter by F >= 1")          \
    X(bytes, "SIZE", "instead: fp32 bytes of a rank's output")                 \
    X(priority, "high|low", "of tide's streams; default high")                 \
    X(cublas, "PATH", "libcublas or its folder; also TIDE_CUBLAS_LIBRARY")     \
    X(json, "FILE", "writes the result there too")                             \
    X(list, NULL, "lists the experiments")                                     \
    X(version, NULL, "prints the version")                                     \
    X(help, NULL, "prints this")

enum {
#define X(name, argument, text) OPT_##name,
    OPTION_LIST(X)
#undef X
        OPT_COUNT
};

static const tdi_option options[OPT_COUNT] = {
#define X(name, argument, text) [OPT_##name] = {#name, argument, text},
    OPTION_LIST(X)
#undef X
};

enum { MAX_DIM = 1 << 20, MAX_RUNS = 1000 };

static tdi_action print_help(void)
{
    puts("usage: tide-probe [--run LIST] [options]\n"
         "Measures on one GPU what sums and copies cost the kernels beside "
         "them.\n");
    tdi_args_print(options, OPT_COUNT);
    puts("\nExit code: 0 measured, 1 a fault, 2 usage or no GPU.");
    return TDI_DONE;
}

static tdi_action print_list(void)
{
    puts("copy  device copies: by the driver, and by some blocks\n"
         "sum   sums: unbounded, by some blocks, cut in launches\n"
         "gemm  a one-wave GEMM alone, and beside copies, sums, the local "
         "phase of a\n      reduce-scatter, and a block that holds an SM");
    return TDI_DONE;
}

static tdi_action parse_gemm(const char *text, uint32_t *gemm)
{
    char end;
    if (sscanf(text, "%" SCNu32 "x%" SCNu32 "x%" SCNu32 "%c", &gemm[0],
               &gemm[1], &gemm[2], &end) != 3 ||
        gemm[0] - 1 >= MAX_DIM || gemm[1] - 1 >= MAX_DIM ||
        gemm[2] - 1 >= MAX_DIM)
        return tdi_args_refuse("--gemm %s: not MxNxK", text);
    return TDI_RUN;
}

static tdi_action parse_list(const char *name, const char *text, uint64_t *list,
                             uint32_t *count)
{
    *count = tdi_args_list(text, list, PROBE_LIST);
    return *count ? TDI_RUN
                  : tdi_args_refuse("--%s %s: not up to %d numbers", name, text,
                                    PROBE_LIST);
}

static tdi_action parse_ring(const char *text, uint64_t *ring)
{
    return tdi_args_list(text, ring, 1) && *ring >= 32 << 10 &&
                   *ring <= TDI_SUM_RING
               ? TDI_RUN
               : tdi_args_refuse("--ring %s: not from 32K to 192K", text);
}

static tdi_action parse_priority(const char *text, bool *low)
{
    *low = !strcmp(text, "low");
    return *low || !strcmp(text, "high")
               ? TDI_RUN
               : tdi_args_refuse("--priority %s: neither high nor low", text);
}

static tdi_action parse_run(const char *text, const char **run)
{
    for (const char *at = text;; at++) {
        size_t part = strcspn(at, ",");
        if (!tdi_args_has("copy,sum,gemm", at, part))
            return tdi_args_refuse("--run: no experiment \"%.*s\"", (int)part,
                                   at);
        at += part;
        if (!*at)
            break;
    }
    *run = text;
    return TDI_RUN;
}

static tdi_action apply_option(void *context, int option, const char *value)
{
    probe_args *args = context;
    switch (option) {
    case OPT_run:
        return parse_run(value, &args->run);
    case OPT_ctas:
        return parse_list("ctas", value, args->ctas, &args->cta_count);
    case OPT_chunk:
        return parse_list("chunk", value, args->chunks, &args->chunk_count);
    case OPT_share:
        return parse_list("share", value, args->shares, &args->share_count);
    case OPT_ring:
        return parse_ring(value, &args->ring);
    case OPT_gemm:
        return parse_gemm(value, args->gemm);
    case OPT_runs:
        return tdi_args_number("runs", value, 3, MAX_RUNS, &args->runs);
    case OPT_group:
        args->group = value;
        return TDI_RUN;
    case OPT_scale:
        return tdi_args_scale(value, &args->scale);
    case OPT_bytes:
        return tdi_args_list(value, &args->bytes, 1)
                   ? TDI_RUN
                   : tdi_args_refuse("--bytes %s: not a size", value);
    case OPT_priority:
        return parse_priority(value, &args->low_priority);
    case OPT_cublas:
        args->cublas = value;
        return TDI_RUN;
    case OPT_json:
        args->json = value;
        return TDI_RUN;
    case OPT_list:
        return print_list();
    case OPT_version:
        printf("tide-probe %s\n", tide_version());
        return TDI_DONE;
    default:
        return print_help();
    }
}

tdi_action probe_parse(int argc, char **argv, probe_args *args)
{
    *args = (probe_args){
        .gemm = {1536, 2816, 8192},
        .runs = 200,
        .group = "llama3.1-70b",
        .scale = 1,
        .ctas = {4, 8, 16, 32, 128},
        .cta_count = 5,
        .chunks = {1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20},
        .chunk_count = 5,
        .shares = {128 << 10, 512 << 10},
        .share_count = 2,
    };
    return tdi_args_parse(argc, argv, options, OPT_COUNT, apply_option, args);
}

tide_status probe_params(const probe_args *args, tdi_params *params)
{
    return args->bytes ? tdi_params_split(args->bytes / 4, 8, params)
                       : tdi_params_load(args->group, args->scale, params);
}
