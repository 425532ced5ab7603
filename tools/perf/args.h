/* The command line of tide-perf. */
#ifndef TIDE_TOOLS_PERF_ARGS_H
#define TIDE_TOOLS_PERF_ARGS_H

#include <stdint.h>

#include "common/args.h"
#include "common/store.h"
#include "perf/bench.h"

#define TDI_PERF_SIZES 16u

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
    const char *group;   /* NULL: sizes */
    double scale;
    uint64_t sizes[TDI_PERF_SIZES]; /* bytes of one rank */
    uint32_t size_count;
    const char *json; /* NULL: none */
} tdi_perf_args;

tdi_action tdi_perf_parse(int argc, char **argv, tdi_perf_args *args);

#endif
