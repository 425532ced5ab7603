/* The command line of tide-plan. */
#ifndef TIDE_TOOLS_PLAN_ARGS_H
#define TIDE_TOOLS_PLAN_ARGS_H

#include <stdint.h>
#include <tide/plan.h>

#include "common/args.h"

#define TDI_PLAN_LIST 24u

typedef struct tdi_plan_args {
    tide_plan_options options;
    int has_op;
    int multicast; /* -1: as the machine has it; without one, no */
    int staged;    /* -1: as the machine does it; without one, yes */
    uint32_t nodes[TDI_PLAN_LIST];
    uint32_t node_count;
    uint32_t local; /* 0: the machine's; without one, 8 */
    uint32_t rank;
    const char *group; /* NULL: sizes */
    double scale;
    uint64_t sizes[TDI_PLAN_LIST]; /* bytes of one rank */
    uint32_t size_count;
    const char *sim;     /* machine, or NULL */
    const char *variant; /* list, or NULL: all */
    const char *step;    /* model, or NULL */
    int verify;
    int text;
    int stats;
    int paper;
    int json;              /* to standard output, unless there is a path */
    const char *json_path; /* NULL: none */
    const char *trace;
    const char *html;
} tdi_plan_args;

tdi_action tdi_plan_parse(int argc, char **argv, tdi_plan_args *args);

#endif
