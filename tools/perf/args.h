/* The command line of tide-perf. */
#ifndef TIDE_TOOLS_PERF_ARGS_H
#define TIDE_TOOLS_PERF_ARGS_H

#include <stdint.h>

#include "common/args.h"
#include "common/store.h"
#include "perf/bench.h"

#define TDI_PERF_CASES 16u
#define TDI_PERF_WORDS 4096u /* a list of groups has fewer characters */

typedef struct tdi_perf_args {
    tdi_bench bench;
    const char *backend; /* NULL: the first that can serve */
    const tdi_device_kind *device;
    unsigned nccl_ways; /* bit mask: what the baselines need */
    uint32_t soak;      /* rounds; 0: times a collective */
    uint32_t ranks;
    bool processes;      /* ranks of a device are processes, too */
    bool is_started;     /* the ranks have been started already */
    tdi_started started; /* if so, which this is */
    uint32_t local;      /* 0: the communicator's default */
    const char *op;      /* as it was given; NULL: soak */
    const char *groups[TDI_PERF_CASES];
    double scales[TDI_PERF_CASES];  /* of each group */
    uint32_t group_count;           /* 0: sizes */
    uint64_t sizes[TDI_PERF_CASES]; /* bytes of one rank */
    uint32_t size_count;
    char words[TDI_PERF_WORDS]; /* the names of groups */
    const char *json;           /* NULL: none */
} tdi_perf_args;

tdi_action tdi_perf_parse(int argc, char **argv, tdi_perf_args *args);

#endif
