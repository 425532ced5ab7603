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
    X(op, "LIST", "ag, rs: all-gather, reduce-scatter (required)")             \
    X(backend, "NAME", "host, cuda; default: the first that can serve")        \
    X(ranks, "R", "ranks to start; default 4")                                 \
    X(processes, NULL, "cuda: ranks are processes, not threads of one")        \
    X(local, "G", "ranks of a node; default: TIDE_LOCAL_SIZE, or all")         \
    X(group, "LIST", "parameters: built-in groups or files")                   \
    X(scale, "LIST", "divides dimension 0 by F >= 1, of all or of each")       \
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
    puts("usage: tide-perf --op LIST [--group LIST | --bytes LIST] [options]\n"
         "Times collectives of tide on this machine and checks their data.\n"
         "Ranks that torchrun or mpirun has started are used as they are.\n");
    tdi_args_print(options, OPT_COUNT);
    puts("\nWithout --group and --bytes: --bytes 1M,4M,16M.\n"
         "With several --op a --mode is for those that have it.\n"
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
    args->size_count = tdi_args_list(text, args->sizes, TDI_PERF_CASES);
    return args->size_count
               ? TDI_RUN
               : tdi_args_refuse("--bytes %s: not up to %u sizes like 512K,32M",
                                 text, TDI_PERF_CASES);
}

/* Cuts a list of up to TDI_PERF_CASES words, none of them empty, which will lie
 * in `room`. Returns how many; 0 if it is not one. */
static uint32_t cut_list(const char *list, char room[TDI_PERF_WORDS],
                         const char **words)
{
    if (strlen(list) >= TDI_PERF_WORDS)
        return 0;
    strcpy(room, list);
    for (uint32_t count = 0; count < TDI_PERF_CASES; room++) {
        words[count++] = room;
        size_t part = strcspn(room, ",");
        bool last = !room[part];
        if (!part)
            return 0;
        room += part;
        *room = 0;
        if (last)
            return count;
    }
    return 0;
}

static tdi_action add_op(const char *word, tdi_perf_args *args)
{
    const tdi_bench_op *ops[] = {&tdi_bench_gather, &tdi_bench_reduce};
    const tdi_bench_op *op = NULL;
    tdi_bench *bench = &args->bench;
    for (size_t i = 0; i < TDI_COUNT(ops); i++)
        if (!strcmp(ops[i]->name, word))
            op = ops[i];
    if (!op)
        return tdi_args_refuse("--op %s: neither ag nor rs", word);
    for (uint32_t p = 0; p < bench->part_count; p++)
        if (bench->parts[p].op == op)
            return tdi_args_refuse("--op %s: %s twice", args->op, word);
    bench->parts[bench->part_count++].op = op;
    return TDI_RUN;
}

static tdi_action parse_op(const char *text, tdi_perf_args *args)
{
    char room[TDI_PERF_WORDS];
    const char *words[TDI_PERF_CASES];
    uint32_t count = cut_list(text, room, words);
    args->op = text;
    args->bench.part_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (add_op(words[i], args))
            return TDI_USAGE;
    return count ? TDI_RUN
                 : tdi_args_refuse("--op %s: not up to %u names", text,
                                   TDI_PERF_CASES);
}

static tdi_action parse_groups(const char *text, tdi_perf_args *args)
{
    args->group_count = cut_list(text, args->words, args->groups);
    return args->group_count ? TDI_RUN
                             : tdi_args_refuse("--group %s: not up to %u names",
                                               text, TDI_PERF_CASES);
}

/* One for all groups, or one for each. */
static tdi_action parse_scales(const char *text, tdi_perf_args *args)
{
    char room[TDI_PERF_WORDS];
    const char *words[TDI_PERF_CASES];
    uint32_t count = cut_list(text, room, words);
    if (count != 1 && count != args->group_count)
        return tdi_args_refuse("--scale %s: neither one number nor %" PRIu32,
                               text, args->group_count);
    for (uint32_t i = 0; i < args->group_count; i++)
        if (tdi_args_scale(words[count == 1 ? 0 : i], &args->scales[i]))
            return TDI_USAGE;
    return TDI_RUN;
}

/* Is the variant of that kind, and for this device? */
static bool is_meant(const tdi_perf_args *args, const tdi_variant *variant,
                     int baseline)
{
    unsigned device = args->device->queued ? TDI_ON_QUEUED : TDI_ON_HOST;
    return variant->baseline == baseline && variant->devices & device;
}

/* Does a collective have a variant of that kind and name? */
static bool has_variant(const tdi_perf_args *args, const tdi_bench_op *op,
                        int baseline, const char *word, size_t length)
{
    for (const tdi_variant *v = op->variants; v->name; v++)
        if (is_meant(args, v, baseline) && *v->key &&
            tdi_args_has(v->key, word, length))
            return true;
    return false;
}

/* The words of a list are keys of variants of that kind. */
static tdi_action check_words(const tdi_perf_args *args, const char *option,
                              const char *list, int baseline)
{
    const tdi_bench *bench = &args->bench;
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        bool known = false;
        for (uint32_t p = 0; p < bench->part_count; p++)
            known |=
                has_variant(args, bench->parts[p].op, baseline, at, length);
        if (!known)
            return tdi_args_refuse("--%s: %s on backend %s has no \"%.*s\"",
                                   option, args->op, args->device->name,
                                   (int)length, at);
        at += length;
        if (!*at)
            return TDI_RUN;
    }
}

/* A list of modes that are all of the other collective leaves the default. */
static const char *modes_for(const tdi_perf_args *args, const tdi_bench_op *op,
                             const char *mode)
{
    for (const tdi_variant *v = op->variants; mode && v->name; v++)
        if (is_meant(args, v, 0) && tdi_args_has(mode, v->key, strlen(v->key)))
            return mode;
    return NULL;
}

static void choose_for(tdi_perf_args *args, tdi_bench_part *part,
                       const char *mode, const char *baseline)
{
    mode = modes_for(args, part->op, mode);
    for (const tdi_variant *v = part->op->variants; v->name; v++) {
        const char *list = v->baseline ? baseline : mode;
        if (!is_meant(args, v, v->baseline) ||
            !(list ? tdi_args_has(list, v->key, strlen(v->key))
                   : !v->baseline && !v->special))
            continue;
        part->variants[part->variant_count++] = v;
        if (v->baseline && args->device->queued)
            args->nccl_ways |= 1u << v->way;
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
    for (uint32_t p = 0; p < bench->part_count; p++) {
        choose_for(args, &bench->parts[p], mode, baseline);
        bench->variant_count += bench->parts[p].variant_count;
    }
    return TDI_RUN;
}

typedef struct session {
    tdi_perf_args *args;
    const char *scale; /* lists; NULL: the default */
    const char *mode;
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
        return parse_groups(value, args);
    case OPT_scale:
        s->scale = value;
        return TDI_RUN;
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
    if (bench->part_count || s->mode || s->baseline || bench->sm_time ||
        bench->repeat)
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
    if (!args->bench.part_count && !args->soak)
        return tdi_args_refuse("--op is missing");
    if (args->group_count && args->size_count)
        return tdi_args_refuse("--group and --bytes exclude each other");
    if (s->scale && !args->group_count)
        return tdi_args_refuse("--scale needs --group");
    if (parse_scales(s->scale ? s->scale : "1", args))
        return TDI_USAGE;
    if (args->bench.sm_time && !args->device->queued)
        return tdi_args_refuse("--sm-time needs --backend cuda");
    if (!args->group_count && !args->size_count)
        parse_sizes(args->soak ? "32K" : "1M,4M,16M", args);
    return args->soak ? TDI_RUN : choose_variants(args, s->mode, s->baseline);
}

tdi_action tdi_perf_parse(int argc, char **argv, tdi_perf_args *args)
{
    session s = {.args = args};
    *args = (tdi_perf_args){.bench = {.warmup = 3,
                                      .iters = 20,
                                      .calls = 1,
                                      .progress = isatty(STDERR_FILENO)}};
    tdi_action action =
        tdi_args_parse(argc, argv, options, OPT_COUNT, apply_option, &s);
    return action == TDI_RUN ? finish_args(&s) : action;
}
