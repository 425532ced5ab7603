/*
 * Simulation: how long a plan takes on a machine that need not be here.
 *
 * A machine is a list of numbers (machines/<name>.json): how fast its parts
 * move bytes and what an operation costs however small. A simulation is a
 * discrete-event run of the plans of all ranks, lanes in order, edges and
 * signals as the plans have them. An op alone takes its fixed cost plus its
 * bytes at the rate of the engine that does it; while ops that run at the same
 * time want more of a link, a rail, memory or cores than there is, all of them
 * slow down in proportion. Nothing is random: equal input, equal result.
 * docs/scaling.md says what the numbers come from and how far to trust them.
 */
#ifndef TIDE_SIM_H
#define TIDE_SIM_H

#include <tide/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* field, unit, text. A limit of 0 does not limit; a cost may be 0. GB is 10^9
 * bytes. */
#define TIDE_MACHINE_LIST(X)                                                   \
    X(local_size, "ranks", "ranks of a node")                                  \
    X(sms, "SMs", "streaming multiprocessors of a GPU")                        \
    X(copy_engines, "copies", "copies that a rank runs at once")               \
    X(copy_gbps, "GB/s", "one copy engine")                                    \
    X(copy_us, "us", "a copy, however small")                                  \
    X(link_gbps, "GB/s", "NVLink of a GPU, each way")                          \
    X(multicast_gbps, "GB/s", "arrivals by multicast at a GPU; 0: none")       \
    X(switch_gbps, "GB/s", "reads from a GPU by switch sums; 0: none")         \
    X(rail_gbps, "GB/s", "the NIC of a rank, each way")                        \
    X(rail_us, "us", "from the last byte sent to its signal's arrival")        \
    X(put_us, "us", "a put, however small")                                    \
    X(puts, "puts", "puts to different ranks at once, up to 16")               \
    X(memory_gbps, "GB/s", "memory of a rank, reads and writes")               \
    X(block_gbps, "GB/s", "what a thread block of a sum reads")                \
    X(sum_blocks, "blocks", "thread blocks of a level-1 sum")                  \
    X(land_blocks, "blocks", "thread blocks of a level-2 sum")                 \
    X(switch_block_gbps, "GB/s", "a switch sum's result, each block")          \
    X(sum_us, "us", "a sum, however small")                                    \
    X(signal_us, "us", "a signal to a local rank, until it is seen")           \
    X(enqueue_us, "us", "the host, to hand over an op")                        \
    X(call_us, "us", "a call, before its first op and after its last")         \
    X(cores, "cores", "shared by all ranks of a host machine; 0: GPUs")        \
    X(core_gbps, "GB/s", "memory of a host machine, all cores")                \
    X(staged, "0 or 1", "its backend stages gradients before the sum")         \
    X(block_kib, "KiB", "output block of its reduce-scatters; 0: the plan's")  \
    X(kernel_gbps, "GB/s", "copy-out kernel, bytes read and written")          \
    X(pack_gbps, "GB/s", "pack kernel, bytes read and written")                \
    X(kernel_us, "us", "launch of a kernel of a baseline")                     \
    X(ring_gbps, "GB/s", "NVLink under NCCL's ring kernels")                   \
    X(ring_us, "us", "an NCCL ring call, however small")                       \
    X(symm_blocks, "blocks", "thread blocks of the SymmMem reduce-scatter")    \
    X(tflops, "Tflop/s", "of a training step's matrix products, achieved")     \
    X(pod_nodes, "nodes", "nodes below one leaf switch; 0: all")               \
    X(spine_taper, "ratio", "oversubscription above the leaves; 0: none")

typedef struct tide_machine {
    char name[32];
    char about[256];
#define X(field, unit, text) double field;
    TIDE_MACHINE_LIST(X)
#undef X
} tide_machine;

/*
 * Loads a built-in machine by name, or else the file of that path: one flat
 * JSON object with "name", "about" and every field of the list, each once, not
 * negative. Errors: TIDE_ERR_INVALID (NULL; no such machine or file; a fault
 * in it, which the message names).
 */
TIDE_API tide_status tide_machine_load(const char *name, tide_machine *machine);
/* The name of built-in machine i, or NULL behind the last. */
TIDE_API const char *tide_machine_name(size_t i);

/* One op that ran. Waits and edges last from when their lane came to them
 * until they were met. */
typedef struct tide_sim_op {
    uint32_t rank;
    uint32_t op; /* index in the rank's plan */
    double start_us;
    double end_us;
} tide_sim_op;

typedef struct tide_sim_options {
    /* Called as each op ends, in order of end_us; may be NULL. */
    void (*ran)(void *context, const tide_sim_op *op);
    void *context;
    int mirrored; /* see tide_simulate */
} tide_sim_options;

typedef struct tide_sim_result {
    double time_us;                    /* a call, until every rank is done */
    double phase_us[TIDE_PHASE_COUNT]; /* the last rank's; 0 if none has it */
    double lane_us[TIDE_LANE_COUNT];   /* rank 0: moving or adding bytes */
    uint64_t events;
} tide_sim_result;

/*
 * Runs one call of the plans on the machine. plans[r] is rank r's, all ranks
 * of the topology; or, with options->mirrored, only those of node 0: every
 * other node is taken to do the same at the same time, turned by its distance
 * from node 0, so that what node 0 sends to node m arrives as what node N - m
 * sends to it. That holds for all-gathers, and for reduce-scatters whose layers
 * are of one size (ceil(N / G) divides N); there a node between others has a
 * sum a unit more than node 0, a few percent of a small call. Signals of
 * earlier calls have arrived. options may be NULL.
 * Errors: TIDE_ERR_INVALID (NULL, plans of several collectives, or mirrored
 * where it does not hold), TIDE_ERR_MEMORY, TIDE_ERR_PLAN (the ranks wait for
 * each other for ever; the message names a wait).
 */
TIDE_API tide_status tide_simulate(const tide_plan *const *plans,
                                   const tide_machine *machine,
                                   const tide_sim_options *options,
                                   tide_sim_result *result);
/* Does `mirrored` hold for this topology? */
TIDE_API int tide_sim_mirrors(tide_coll coll, tide_topology topology);

/*
 * Ways to do a collective that are predicted side by side. The baselines are
 * plans where ops can say what they do, else formulas (src/sim/ring.c).
 */
/* name, text, collectives (1 all-gather, 2 reduce-scatter, 3 both), what */
#define TIDE_VARIANT_LIST(X)                                                   \
    X(TIDE, "tide", 3, "tide's plan")                                          \
    X(PAPER, "paper", 3, "the schedule that the paper's times suggest")        \
    X(RAIL_RING, "rail-ring", 1, "tide's landing, but a ring over nodes")      \
    X(RING, "ring", 1, "NCCL's ring kernels, flat result")                     \
    X(CE, "ce", 1, "hierarchical copy-engine gather, flat result")             \
    X(RING_COPY, "ring+copyout", 1, "ring, then the layout copy")              \
    X(CE_COPY, "ce+copyout", 1, "copy engines, then the layout copy")          \
    X(PACKED, "nccl-packed", 2, "NCCL's ring on packed fp32")                  \
    X(STOCK, "stock", 2, "pack, then NCCL's ring")                             \
    X(SYMM, "symmmem", 2, "pack, then a hierarchical sum of packed fp32")

typedef enum tide_variant {
#define X(name, text, colls, what) TIDE_VARIANT_##name,
    TIDE_VARIANT_LIST(X)
#undef X
        TIDE_VARIANT_COUNT
} tide_variant;

TIDE_API const char *tide_variant_name(tide_variant variant);
/* Is the variant one of this collective? */
TIDE_API int tide_variant_does(tide_variant variant, tide_coll coll);

typedef struct tide_prediction {
    tide_sim_result result;
    uint64_t buffer_bytes; /* of one rank, beside inputs and outputs */
    int mirrored;          /* simulated on the ranks of node 0 alone */
} tide_prediction;

/*
 * Predicts one call of a variant. `options` names the collective and is what
 * TIDE plans with; the other variants take from it the collective and dtypes.
 * TIDE's all-gather has `together` 1, unless it is set, on machines whose
 * copies are engines' (no `cores`), as the CUDA backend has it.
 * Up to 64 ranks all are simulated, beyond that one node where mirroring
 * holds, else all up to 1024. Errors: as tide_plan_create and tide_simulate;
 * TIDE_ERR_INVALID (not a variant of the collective; too many ranks).
 */
TIDE_API tide_status tide_predict(const tide_layout *layout,
                                  tide_topology topology,
                                  const tide_plan_options *options,
                                  tide_variant variant,
                                  const tide_machine *machine,
                                  tide_prediction *prediction);

#ifdef __cplusplus
}
#endif
#endif
