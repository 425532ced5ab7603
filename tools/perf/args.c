/* Reads the command line of tide-perf. */
#include "perf/args.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/util.h"

#define MAX_RANKS 1024u
#define MAX_ITERS 1000000u

/* name, its argument (NULL: none), help */
#define OPTION_LIST(X)                                                         \
    X(op, "ag|rs", "all-gather or reduce-scatter (required)")                  \
    X(backend, "NAME", "host; default: the first that can serve")              \
    X(ranks, "R", "processes to start; default 4")                             \
    X(local, "G", "ranks of a node; default: TIDE_LOCAL_SIZE, or all")         \
    X(group, "NAME|FILE", "parameters: a built-in group or a file")            \
    X(scale, "F", "divides dimension 0 of every parameter by F >= 1")          \
    X(bytes, "LIST", "bytes of a rank, split like a Llama block: 1M,32M")      \
    X(mode, "LIST", "rs: in-place,slot-reuse; default: both")                  \
    X(baseline, "LIST", "flat: gather then copy out, pack then reduce")        \
    X(iters, "I", "timed iterations; default 20")                              \
    X(warmup, "W", "iterations before them; default 3")                        \
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
         "Times a collective of tide on this machine and checks its data.\n");
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

/* The words of a list are keys of variants of that kind. */
static tdi_action check_words(const tdi_bench_op *op, const char *option,
                              const char *list, int baseline)
{
    for (const char *at = list;; at++) {
        size_t part = strcspn(at, ",");
        bool known = false;
        for (const tdi_variant *v = op->variants; v->name; v++)
            known |= v->baseline == baseline && *v->key &&
                     tdi_args_has(v->key, at, part);
        if (!known)
            return tdi_args_refuse("--%s: %s has no \"%.*s\"", option, op->name,
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
    if (mode && check_words(bench->op, "mode", mode, 0))
        return TDI_USAGE;
    if (baseline && check_words(bench->op, "baseline", baseline, 1))
        return TDI_USAGE;
    for (const tdi_variant *v = bench->op->variants; v->name; v++) {
        const char *list = v->baseline ? baseline : mode;
        if (list ? tdi_args_has(list, v->key, strlen(v->key)) : !v->baseline)
            bench->variants[bench->variant_count++] = v;
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

static tdi_action finish_args(const session *s)
{
    tdi_perf_args *args = s->args;
    if (!args->bench.op)
        return tdi_args_refuse("--op is missing");
    if (args->group && args->size_count)
        return tdi_args_refuse("--group and --bytes exclude each other");
    if (args->scale > 1 && !args->group)
        return tdi_args_refuse("--scale needs --group");
    if (!args->group && !args->size_count)
        parse_sizes("1M,4M,16M", args);
    return choose_variants(args, s->mode, s->baseline);
}

tdi_action tdi_perf_parse(int argc, char **argv, tdi_perf_args *args)
{
    session s = {.args = args};
    *args = (tdi_perf_args){
        .ranks = 4,
        .scale = 1,
        .bench = {.warmup = 3, .iters = 20, .progress = isatty(STDERR_FILENO)}};
    tdi_action action =
        tdi_args_parse(argc, argv, options, OPT_COUNT, apply_option, &s);
    return action == TDI_RUN ? finish_args(&s) : action;
}
