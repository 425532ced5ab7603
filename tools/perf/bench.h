/*
 * The benchmark of one collective on one group: checked data, variants timed
 * in turn, the slowest rank's time of every iteration.
 */
#ifndef TIDE_TOOLS_BENCH_H
#define TIDE_TOOLS_BENCH_H

#include <tide/coll.h>

#include "common/groups.h"
#include "common/table.h"

#define TDI_BENCH_VARIANTS 4u

/* A way to do the collective; `state` is what create made. */
typedef struct tdi_variant {
    const char *name;
    const char *key; /* what --mode or --baseline calls it */
    int baseline;
    tide_status (*run)(void *state);
    /* Buffers beside the parameters or gradients themselves. */
    tide_status (*buffer_bytes)(void *state, uint64_t *bytes);
} tdi_variant;

/* A collective: its data on one rank, and its variants. */
typedef struct tdi_bench_op {
    const char *name;                         /* "ag", "rs" */
    tdi_variant variants[TDI_BENCH_VARIANTS]; /* name = NULL behind the last */
    tide_status (*create)(tide_comm *comm, const tdi_params *params,
                          void **state);
    void (*free)(void *state); /* NULL is fine */
    /* Bytes of one rank, for the table. */
    uint64_t (*bytes)(const void *state);
    /* Writes inputs that depend on seed, and poisons the outputs. */
    void (*fill)(void *state, uint64_t seed);
    void (*poison)(void *state);
    uint64_t (*count_wrong)(const void *state, uint64_t seed);
} tdi_bench_op;

extern const tdi_bench_op tdi_bench_gather;
extern const tdi_bench_op tdi_bench_reduce;

typedef struct tdi_bench {
    const tdi_bench_op *op;
    const tdi_variant *variants[TDI_BENCH_VARIANTS];
    uint32_t variant_count;
    uint32_t warmup;
    uint32_t iters; /* at least 1 */
    int progress;   /* rank 0 shows on stderr how far it is */
} tdi_bench;

/*
 * Collective: measures every variant on the group. Rank 0's rows[v] are filled
 * in, all but ranks and local. Errors: those of the collectives; nothing is
 * left behind.
 */
tide_status tdi_bench_run(const tdi_bench *bench, tide_comm *comm,
                          const tide_bootstrap *boot, const tdi_params *params,
                          tdi_row *rows);

/* Memory for data, 64-byte aligned; *status becomes TIDE_ERR_MEMORY if there
 * is none. Free it with free. */
void *tdi_bench_take(uint64_t bytes, tide_status *status);

#endif
