/* Reads the command line of tide-plan. */
#include "plan/args.h"

#include "common/groups.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tide/comm.h>
#include <tide/sim.h>

/* name, its argument (NULL: none), help */
#define OPTION_LIST(X)                                                         \
    X(op, "ag|rs", "all-gather or reduce-scatter")                             \
    X(nodes, "LIST", "nodes: 8, or 1,2,4,8 for --sim; default 1")              \
    X(local, "G", "ranks of a node; default: the machine's, or 8")             \
    X(rank, "R", "whose plan --text and --stats show; default 0")              \
    X(group, "NAME|FILE", "parameters: a built-in group or a file")            \
    X(scale, "F", "divides dimension 0 of every parameter by F >= 1")          \
    X(bytes, "LIST", "bytes of a rank, split like a Llama block: 1M,32M")      \
    X(multicast, "0|1", "switch multicast and sums; default: the machine's")   \
    X(chunk, "SIZE", "ag: bytes of a put")                                     \
    X(window, "W", "ag: puts in flight on a rail; 0: no pacing")               \
    X(block, "SIZE", "rs: fp32 bytes of an output block")                      \
    X(slots, "D", "rs: steps of RECV in flight")                               \
    X(unit, "SIZE", "rs: bytes that level 1 reads at a time, at least")        \
    X(staged, "0|1",                                                           \
      "rs: stage gradients before the sum; default: the machine's")            \
    X(verify, NULL, "checks the plans of all ranks")                           \
    X(text, NULL, "prints the plan, one op a line")                            \
    X(stats, NULL, "prints what the plan adds up to")                          \
    X(sim, "MACHINE", "predicts the time on a built-in machine or a file")     \
    X(variant, "LIST", "of --sim: tide,ring+copyout; default: all")            \
    X(paper, NULL, "predicts the paper's tables, on --sim or b200-8x400g")     \
    X(step, "MODEL", "predicts FSDP2 steps of a built-in group's model")       \
    X(trace, "FILE", "writes the simulated run for Perfetto")                  \
    X(html, "FILE", "writes a page that draws the plan")                       \
    X(json, "[FILE]", "prints JSON instead, or writes it to FILE too")         \
    X(list_machines, NULL, "lists the built-in machines")                      \
    X(list_groups, NULL, "lists the built-in groups")                          \
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
    puts("usage: tide-plan --op ag|rs [--nodes N] [--local G] "
         "[--group NAME | --bytes SIZE] [options]\n"
         "Makes the plans of a collective and checks, prints, draws or times "
         "them.\n");
    tdi_args_print(options, OPT_COUNT);
    puts("\nWithout --group and --bytes: --bytes 32M.\n"
         "Exit code: 0 well, 1 a fault in a plan or in writing, 2 usage.");
    return TDI_DONE;
}

static tdi_action print_machines(void)
{
    tide_machine machine;
    for (size_t i = 0; tide_machine_name(i); i++)
        if (!tide_machine_load(tide_machine_name(i), &machine))
            printf("%-14s %s\n", machine.name, machine.about);
    return TDI_DONE;
}

static tdi_action parse_sizes(const char *text, tdi_plan_args *args)
{
    args->size_count = tdi_args_list(text, args->sizes, TDI_PLAN_LIST);
    return args->size_count
               ? TDI_RUN
               : tdi_args_refuse("--bytes %s: not up to %u sizes like 512K,32M",
                                 text, TDI_PLAN_LIST);
}

static tdi_action parse_nodes(const char *text, tdi_plan_args *args)
{
    uint64_t list[TDI_PLAN_LIST];
    args->node_count = tdi_args_list(text, list, TDI_PLAN_LIST);
    for (uint32_t i = 0; i < args->node_count; i++) {
        if (list[i] > TIDE_MAX_RANKS)
            args->node_count = 0;
        else
            args->nodes[i] = (uint32_t)list[i];
    }
    return args->node_count
               ? TDI_RUN
               : tdi_args_refuse("--nodes %s: not up to %u numbers like 1,2,4",
                                 text, TDI_PLAN_LIST);
}

static tdi_action parse_size(const char *name, const char *text, uint64_t *size)
{
    return tdi_args_list(text, size, 1)
               ? TDI_RUN
               : tdi_args_refuse("--%s %s: not a size like 8M", name, text);
}

static tdi_action parse_flag(const char *name, const char *text, int *out)
{
    uint32_t flag = 0;
    tdi_action action = tdi_args_number(name, text, 0, 1, &flag);
    *out = (int)flag;
    return action;
}

static tdi_action parse_op(const char *text, tdi_plan_args *args)
{
    if (strcmp(text, "ag") && strcmp(text, "rs"))
        return tdi_args_refuse("--op %s: neither ag nor rs", text);
    args->has_op = 1;
    args->options.coll = *text == 'a' ? TIDE_ALL_GATHER : TIDE_REDUCE_SCATTER;
    return TDI_RUN;
}

/* Options of the planner. */
static tdi_action apply_choice(int option, const char *value,
                               tdi_plan_args *args)
{
    tide_plan_options *o = &args->options;
    switch (option) {
    case OPT_chunk:
        return parse_size("chunk", value, &o->chunk_bytes);
    case OPT_window:
        return tdi_args_number("window", value, 0, 1 << 20, &o->window);
    case OPT_block:
        return parse_size("block", value, &o->block_bytes);
    case OPT_slots:
        return tdi_args_number("slots", value, 1, 1024, &o->recv_slots);
    case OPT_unit:
        return parse_size("unit", value, &o->unit_bytes);
    case OPT_staged:
        return parse_flag("staged", value, &args->staged);
    default:
        return parse_flag("multicast", value, &args->multicast);
    }
}

/* What to show, and where. */
static tdi_action apply_output(int option, const char *value,
                               tdi_plan_args *args)
{
    switch (option) {
    case OPT_verify:
        args->verify = 1;
        return TDI_RUN;
    case OPT_text:
        args->text = 1;
        return TDI_RUN;
    case OPT_stats:
        args->stats = 1;
        return TDI_RUN;
    case OPT_paper:
        args->paper = 1;
        return TDI_RUN;
    case OPT_sim:
        args->sim = value;
        return TDI_RUN;
    case OPT_variant:
        args->variant = value;
        return TDI_RUN;
    case OPT_step:
        args->step = value;
        return TDI_RUN;
    case OPT_trace:
        args->trace = value;
        return TDI_RUN;
    case OPT_html:
        args->html = value;
        return TDI_RUN;
    case OPT_list_machines:
        return print_machines();
    case OPT_list_groups:
        tdi_groups_print(stdout);
        return TDI_DONE;
    case OPT_version:
        printf("tide-plan %s\n", tide_version());
        return TDI_DONE;
    default:
        return print_help();
    }
}

static tdi_action apply_option(void *context, int option, const char *value)
{
    tdi_plan_args *args = context;
    switch (option) {
    case OPT_op:
        return parse_op(value, args);
    case OPT_nodes:
        return parse_nodes(value, args);
    case OPT_local:
        return tdi_args_number("local", value, 1, TIDE_MAX_LOCAL, &args->local);
    case OPT_rank:
        return tdi_args_number("rank", value, 0, TIDE_MAX_RANKS, &args->rank);
    case OPT_group:
        args->group = value;
        return TDI_RUN;
    case OPT_scale:
        return tdi_args_scale(value, &args->scale);
    case OPT_bytes:
        return parse_sizes(value, args);
    case OPT_json:
        args->json = value == NULL;
        args->json_path = value;
        return TDI_RUN;
    case OPT_multicast:
    case OPT_chunk:
    case OPT_window:
    case OPT_block:
    case OPT_slots:
    case OPT_unit:
    case OPT_staged:
        return apply_choice(option, value, args);
    default:
        return apply_output(option, value, args);
    }
}

static tdi_action finish_args(tdi_plan_args *args)
{
    if (!args->has_op && !args->paper && !args->step)
        return tdi_args_refuse("--op is missing");
    if (args->group && args->size_count)
        return tdi_args_refuse("--group and --bytes exclude each other");
    if (args->scale > 1 && !args->group)
        return tdi_args_refuse("--scale needs --group");
    if (args->variant && !args->sim)
        return tdi_args_refuse("--variant needs --sim");
    if (args->step && !args->sim)
        return tdi_args_refuse("--step needs --sim");
    if (!args->group && !args->size_count)
        parse_sizes("32M", args);
    bool one = args->size_count <= 1 && args->node_count == 1;
    if (!one && (args->verify || args->text || args->stats || args->trace ||
                 args->html))
        return tdi_args_refuse("lists are for --sim alone");
    return TDI_RUN;
}

tdi_action tdi_plan_parse(int argc, char **argv, tdi_plan_args *args)
{
    *args = (tdi_plan_args){.multicast = -1,
                            .nodes = {1},
                            .node_count = 1,
                            .scale = 1,
                            .staged = -1};
    tdi_action action =
        tdi_args_parse(argc, argv, options, OPT_COUNT, apply_option, args);
    return action == TDI_RUN ? finish_args(args) : action;
}
