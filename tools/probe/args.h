/* The command line of tide-probe. */
#ifndef TIDE_TOOLS_PROBE_ARGS_H
#define TIDE_TOOLS_PROBE_ARGS_H

#include "common/args.h"
#include "common/groups.h"

enum { PROBE_LIST = 16 };

typedef struct probe_args {
    const char *run;    /* experiments; NULL: all */
    const char *cublas; /* a library or a folder; NULL: the usual places */
    uint32_t gemm[3];   /* M, N, K */
    uint32_t runs;      /* timed GEMMs of a measurement */
    const char *group;
    double scale;
    uint64_t bytes; /* fp32 output of a rank; 0: the group */
    uint64_t ctas[PROBE_LIST];
    uint32_t cta_count;
    uint64_t chunks[PROBE_LIST];
    uint32_t chunk_count;
    uint64_t shares[PROBE_LIST];
    uint32_t share_count;
    uint64_t ring; /* bytes of shared memory of a sum's block; 0: as built */
    bool low_priority;
    const char *json; /* NULL: none */
} probe_args;

tdi_action probe_parse(int argc, char **argv, probe_args *args);

/* The parameters of --group or --bytes over 8 ranks. */
tide_status probe_params(const probe_args *args, tdi_params *params);

#endif
