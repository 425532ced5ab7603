/* Reads the command line of tide-perf. */
#include "perf/args.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/util.h"

#define MAX_RANKS  1024u
#define MAX_ITERS  1000000u
#define MAX_ROUNDS 1000000000u

/* name, its argument (NULL: none), help */
#define OPTION_LIST(X)                                                         \
    X(op, "ag|rs", "all-gather or reduce-scatter (required)")                  \
    X(backend, "NAME", "host, cuda; default: the first that can serve")        \
    X(ranks, "R", "ranks to start; default 4")                                 \
    X(processes, NULL, "cuda: ranks are processes, not threads of one")        \
    X(local, "G", "ranks of a node; default: TIDE_LOCAL_SIZE, or all")         \
    X(group, "NAME|FILE", "parameters: a built-in group or a file")            \
    X(scale, "F", "divides dimension 0 of every parameter by F >= 1")          \
    X(bytes, "LIST", "bytes of a rank, split like a Llama block: 1M,32M")      \
    X(mode, "LIST", "rs: in-place,slot-reuse; ag on cuda: pull,push")          \
    X(baseline, "LIST", "host: flat; cuda: nccl,nccl-ce,nccl-sym,flat,layout") \
    X(iters, "I", "timed iterations; default 20")                              \
    X(warmup, "W", "iterations before them; default 3")                        \
    X(pipelined, "N", "calls back to back in an iteration; default 1")         \
    X(sm_time, NULL, "cuda: counts the time that kernels of tide hold SMs")    \
    X(verify_runs, "N", "compares the bits of N runs on data that tells")      \
    X(soak, "ROUNDS", "both ops, checked, without a pause; needs no --op")     \
    X(json, "FILE", "writes the result there too")                             \
    X(list_groups, NULL, "lists the built-in groups")                          \
    X(env, NULL, "prints the environment variables as Markdown")               \
    X(version, NULL, "prints the version")                                     \
    X(help, NULL, "prints this")

enum {
#define X(name, argument, text) OPT_##name,
    OPTION_LIST(X)
#undef X
        OPT_COUNT
};

_Static_assert(OPT_COUNT <= TDI_ARGS_MOST, "tdi_args_parse has no more");

static const tdi_option options[OPT_COUNT] = {
#define X(name, argument, text) [OPT_##name] = {#name, argument, text},
    OPTION_LIST(X)
#undef X
};

static tdi_action print_help(void)
{
    puts("usage: tide-perf --op ag|rs [--group NAME|FILE | --bytes LIST] "
         "[options]\n"
         "Times a collective of tide on this machine and checks its data.\n"
         "Ranks that torchrun or mpirun has started are used as they are.\n");
    tdi_args_print(options, OPT_COUNT);
    puts("\nWithout --group and --bytes: --bytes 1M,4M,16M.\n"
         "Exit code: 0 all data right, 1 wrong data or a fault, 2 usage.");
    return TDI_DONE;
}

static tdi_action print_env(void)
{
    puts("| variable | default | from | to | what it does |\n"
         "|---|---|---|---|---|");
    for (int i = 0; i < TDI_ENV_COUNT; i++) {
        const tdi_env_entry *entry = &tdi_env_table[i];
        printf("| `%s` | %" PRId64 " | %" PRId64 " | %" PRId64 " | %s |\n",
               entry->name, entry->value, entry->low, entry->high, entry->text);
    }
    return TDI_DONE;
}

static tdi_action parse_sizes(const char *text, tdi_perf_args *args)
{
    args->size_count = tdi_args_list(text, args->sizes, TDI_PERF_SIZES);
    return args->size_count
               ? TDI_RUN
               : tdi_args_refuse("--bytes %s: not up to %u sizes like 512K,32M",
                                 text, TDI_PERF_SIZES);
}

static tdi_action parse_op(const char *text, tdi_perf_args *args)
{
    const tdi_bench_op *ops[] = {&tdi_bench_gather, &tdi_bench_reduce};
    for (size_t i = 0; i < TDI_COUNT(ops); i++)
        if (!strcmp(ops[i]->name, text))
            args->bench.op = ops[i];
    return args->bench.op ? TDI_RUN
                          : tdi_args_refuse("--op %s: neither ag nor rs", text);
}

/* Is the variant of that kind, and for this device? */
static bool is_meant(const tdi_perf_args *args, const tdi_variant *variant,
                     int baseline)
{
    unsigned device = args->device->queued ? TDI_ON_QUEUED : TDI_ON_HOST;
    return variant->baseline == baseline && variant->devices & device;
}

/* The words of a list are keys of variants of that kind. */
static tdi_action check_words(const tdi_perf_args *args, const char *option,
                              const char *list, int baseline)
{
    const tdi_bench_op *op = args->bench.op;
    for (const char *at = list;; at++) {
        size_t part = strcspn(at, ",");
        bool known = false;
        for (const tdi_variant *v = op->variants; v->name; v++)
            known |= is_meant(args, v, baseline) && *v->key &&
                     tdi_args_has(v->key, at, part);
        if (!known)
            return tdi_args_refuse("--%s: %s on backend %s has no \"%.*s\"",
                                   option, op->name, args->device->name,
                                   (int)part, at);
        at += part;
        if (!*at)
            return TDI_RUN;
    }
}

static tdi_action choose_variants(tdi_perf_args *args, const char *mode,
                                  const char *baseline)
{
    tdi_bench *bench = &args->bench;
    if (mode && check_words(args, "mode", mode, 0))
        return TDI_USAGE;
    if (baseline && check_words(args, "baseline", baseline, 1))
        return TDI_USAGE;
    for (const tdi_variant *v = bench->op->variants; v->name; v++) {
        const char *list = v->baseline ? baseline : mode;
        if (!is_meant(args, v, v->baseline) ||
            !(list ? tdi_args_has(list, v->key, strlen(v->key))
                   : !v->baseline && !v->special))
            continue;
        bench->variants[bench->variant_count++] = v;
        if (v->baseline && args->device->queued)
            args->nccl_ways |= 1u << v->way;
    }
    return TDI_RUN;
}

typedef struct session {
    tdi_perf_args *args;
    const char *mode; /* lists of variants; NULL: the default */
    const char *baseline;
} session;

static tdi_action apply_option(void *context, int option, const char *value)
{
    session *s = context;
    tdi_perf_args *args = s->args;
    switch (option) {
    case OPT_op:
        return parse_op(value, args);
    case OPT_backend:
        args->backend = value;
        return TDI_RUN;
    case OPT_ranks:
        return tdi_args_number("ranks", value, 1, MAX_RANKS, &args->ranks);
    case OPT_processes:
        args->processes = true;
        return TDI_RUN;
    case OPT_local:
        return tdi_args_number("local", value, 1, MAX_RANKS, &args->local);
    case OPT_group:
        args->group = value;
        return TDI_RUN;
    case OPT_scale:
        return tdi_args_scale(value, &args->scale);
    case OPT_bytes:
        return parse_sizes(value, args);
    case OPT_mode:
        s->mode = value;
        return TDI_RUN;
    case OPT_baseline:
        s->baseline = value;
        return TDI_RUN;
    case OPT_iters:
        return tdi_args_number("iters", value, 1, MAX_ITERS,
                               &args->bench.iters);
    case OPT_warmup:
        return tdi_args_number("warmup", value, 0, MAX_ITERS,
                               &args->bench.warmup);
    case OPT_pipelined:
        return tdi_args_number("pipelined", value, 1, MAX_ITERS,
                               &args->bench.calls);
    case OPT_sm_time:
        args->bench.sm_time = 1;
        return TDI_RUN;
    case OPT_verify_runs:
        return tdi_args_number("verify-runs", value, 2, MAX_ITERS,
                               &args->bench.repeat);
    case OPT_soak:
        return tdi_args_number("soak", value, 1, MAX_ROUNDS, &args->soak);
    case OPT_json:
        args->json = value;
        return TDI_RUN;
    case OPT_list_groups:
        tdi_groups_print(stdout);
        return TDI_DONE;
    case OPT_env:
        return print_env();
    case OPT_version:
        printf("tide-perf %s\n", tide_version());
        return TDI_DONE;
    default:
        return print_help();
    }
}

/* The soak has its own variants, and calls are compared there anyway. */
static tdi_action check_soak(const session *s)
{
    const tdi_bench *bench = &s->args->bench;
    if (bench->op || s->mode || s->baseline || bench->sm_time || bench->repeat)
        return tdi_args_refuse("--soak takes no --op, --mode, --baseline, "
                               "--sm-time, --verify-runs");
    return TDI_RUN;
}

/* What tells whom to start; an unknown backend is refused later, by tide. */
static void finish_ranks(tdi_perf_args *args)
{
    const tdi_device_kind *kind = tdi_device_find(args->backend);
    args->device = kind ? kind : &tdi_device_host;
    args->is_started = !args->ranks && tdi_started_read(&args->started);
    if (args->is_started)
        args->ranks = args->started.ranks;
    else if (!args->ranks)
        args->ranks = 4;
}

static tdi_action finish_args(const session *s)
{
    tdi_perf_args *args = s->args;
    finish_ranks(args);
    if (args->soak && check_soak(s))
        return TDI_USAGE;
    if (!args->bench.op && !args->soak)
        return tdi_args_refuse("--op is missing");
    if (args->group && args->size_count)
        return tdi_args_refuse("--group and --bytes exclude each other");
    if (args->scale > 1 && !args->group)
        return tdi_args_refuse("--scale needs --group");
    if (args->bench.sm_time && !args->device->queued)
        return tdi_args_refuse("--sm-time needs --backend cuda");
    if (!args->group && !args->size_count)
        parse_sizes(args->soak ? "32K" : "1M,4M,16M", args);
    return args->soak ? TDI_RUN : choose_variants(args, s->mode, s->baseline);
}

tdi_action tdi_perf_parse(int argc, char **argv, tdi_perf_args *args)
{
    session s = {.args = args};
    *args = (tdi_perf_args){.scale = 1,
                            .bench = {.warmup = 3,
                                      .iters = 20,
                                      .calls = 1,
                                      .progress = isatty(STDERR_FILENO)}};
    tdi_action action =
        tdi_args_parse(argc, argv, options, OPT_COUNT, apply_option, &s);
    return action == TDI_RUN ? finish_args(&s) : action;
}
