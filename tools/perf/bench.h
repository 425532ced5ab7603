/*
 * The benchmark of collectives on one group: checked data, variants timed in
 * turn, the slowest rank's time of every iteration.
 */
#ifndef TIDE_TOOLS_BENCH_H
#define TIDE_TOOLS_BENCH_H

#include <tide/coll.h>

#include "common/groups.h"
#include "common/table.h"
#include "perf/device.h"
#include "perf/nccl.h"

#define TDI_OPS            2u
#define TDI_OP_VARIANTS    10u
#define TDI_BENCH_VARIANTS (TDI_OPS * TDI_OP_VARIANTS)

/* What a rank works with. */
typedef struct tdi_rank {
    const tide_bootstrap *boot;
    tide_comm *comm;
    tdi_device *device;
    tdi_nccl *nccl; /* NULL: no baseline needs it */
    bool one_machine;
    bool overlaps; /* runs of tide's do not end before join */
} tdi_rank;

/* The devices that a variant is for. */
enum { TDI_ON_HOST = 1, TDI_ON_QUEUED = 2, TDI_ON_ALL = 3 };

/* A way to do the collective; `state` is what create made. */
typedef struct tdi_variant {
    const char *name;
    const char *key; /* what --mode or --baseline calls it */
    int baseline;
    int special; /* of tide, but run only where it is named */
    unsigned devices;
    tdi_nccl_way way; /* of a baseline on a queued device */
    tide_status (*run)(void *state);
    /* Buffers beside the parameters or gradients themselves. */
    tide_status (*buffer_bytes)(void *state, uint64_t *bytes);
    /* For a variant that is a part of the collective, NULL for the others: what
     * makes its input, and what makes its output one that can be checked. */
    tide_status (*before)(void *state);
    tide_status (*after)(void *state);
} tdi_variant;

/* A collective: its data on one rank, and its variants. */
typedef struct tdi_bench_op {
    const char *name; /* "ag", "rs" */
    tide_coll coll;
    tdi_variant variants[TDI_OP_VARIANTS]; /* name = NULL behind the last */
    tide_status (*create)(const tdi_rank *rank, const tdi_params *params,
                          void **state);
    void (*free)(void *state); /* NULL is fine */
    /* Bytes of one rank, for the table. */
    uint64_t (*bytes)(const void *state);
    /* Bytes of a baseline's buffer for this layout. */
    uint64_t (*flat_bytes)(const tide_layout *layout);
    /* Inputs that depend on seed, and such that another order of the sums would
     * give other bits; poison for the outputs. */
    tide_status (*fill)(void *state, uint64_t seed);
    tide_status (*fill_noise)(void *state, uint64_t seed);
    tide_status (*poison)(void *state);
    /* Where runs overlap: what follows on the stream, or for the host this
     * call's end, comes after the state's last run. */
    tide_status (*join)(void *state);
    /* Adds the wrong elements of the last run's output to *wrong, where the
     * input was fill's and fill_noise's; a hash of all of it. */
    tide_status (*count_wrong)(void *state, uint64_t seed, uint64_t *wrong);
    tide_status (*count_wrong_noise)(void *state, uint64_t seed,
                                     uint64_t *wrong);
    tide_status (*digest)(void *state, uint64_t *hash);
} tdi_bench_op;

extern const tdi_bench_op tdi_bench_gather;
extern const tdi_bench_op tdi_bench_reduce;

/* A collective, and the variants of it that are asked for. */
typedef struct tdi_bench_part {
    const tdi_bench_op *op;
    const tdi_variant *variants[TDI_OP_VARIANTS];
    uint32_t variant_count;
} tdi_bench_part;

/* What is measured on: the parameters for each part, which differ where they
 * are made from a number of bytes. */
typedef struct tdi_case {
    const char *group; /* its name; NULL: made from bytes */
    double scale;
    tdi_params params[TDI_OPS];
} tdi_case;

typedef struct tdi_bench {
    tdi_bench_part parts[TDI_OPS];
    uint32_t part_count;
    uint32_t variant_count; /* of all parts */
    uint32_t warmup;
    uint32_t iters;  /* at least 1 */
    uint32_t calls;  /* back to back in a measurement, at least 1 */
    uint32_t repeat; /* runs whose outputs are compared bit by bit; 0: none */
    int sm_time;     /* measure how long kernels hold SMs */
    int progress;    /* rank 0 shows on stderr how far it is */
} tdi_bench;

/*
 * Collective: measures every variant of one part after the other on the case.
 * Rank 0's rows are filled in, bench->variant_count of them in that order, all
 * but ranks and local. A baseline that fails is dropped, and its row says why.
 * Errors: those of tide's collectives; nothing is left behind.
 */
tide_status tdi_bench_run(const tdi_bench *bench, const tdi_rank *rank,
                          const tdi_case *on, tdi_row *rows);

/*
 * Collective: on a device, lets the scratch of each collective grow to what
 * the largest of the cases needs, one collective after the other. Growing in
 * turn it would leave holes, for which the arena would have to be larger.
 * Errors: as above.
 */
tide_status tdi_bench_grow(const tdi_bench *bench, const tdi_rank *rank,
                           const tdi_case *cases, uint32_t count);

/* Waits for all that this rank has queued. Errors: as the device's wait. */
tide_status tdi_bench_settle(const tdi_rank *rank);

/* How long a run of tide's may take, in milliseconds. */
uint64_t tdi_bench_limit_ms(void);

#endif
