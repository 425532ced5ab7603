/*
 * Plans: a collective as data.
 *
 * A plan is what one rank does: a short list of strided copies, puts, signals,
 * waits and reductions. It holds no pointer, stream, handle or time. Planners
 * write plans, backends run them, the verifier and the simulator read them.
 *
 * Buffers are ids. An operand is (buffer, rank, byte offset); the rank is
 * global, or TIDE_ALL_LOCAL for "this offset on every rank of my node".
 *
 * Lanes are ordered queues that run side by side. An AFTER makes its lane wait
 * for one op of another lane of the same rank. Ops stand in one array, and an
 * AFTER names an op that stands before it, so the array order is one legal
 * order within the rank. Plans of one collective follow one another on a rank:
 * the next begins when every lane of the last has ended; only the ops up to
 * the mark FREE may run, and the caller fill, before that.
 *
 * Signals are cumulative counters, one per (source rank, channel) at each
 * destination. A WAIT names a count relative to the start of this plan: count 0
 * means all that earlier executions sent, count -1 all but the last of them.
 * `expects` lists how many signals this plan receives on each counter in all.
 */
#ifndef TIDE_PLAN_H
#define TIDE_PLAN_H

#include <stdio.h>
#include <tide/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, text */
#define TIDE_OP_LIST(X)                                                        \
    X(COPY, "copy")     /* 2-D: height rows of width bytes */                  \
    X(PUT, "put")       /* width bytes over the rail, then a signal */         \
    X(SIGNAL, "signal") /* adds one to a counter at dst.rank */                \
    X(WAIT, "wait")     /* until src.rank's counter has reached count */       \
    X(REDUCE, "reduce") /* height sources of width elements, in order */       \
    X(AFTER, "after")   /* until op `index` of this plan is complete */        \
    X(MARK, "mark")     /* the phase `channel` is reached */

/* name, text, what runs there */
#define TIDE_LANE_LIST(X)                                                      \
    X(COPY, "copy") /* fills and stages */                                     \
    X(SUM, "sum")   /* level-1 sums */                                         \
    X(SEND, "send") /* puts over the rail */                                   \
    X(RECV, "recv") /* arrivals over the rail, credits for more */             \
    X(LAND, "land") /* all-gather landing, level-2 sums */

/* name, text. PARAM and GRAD are one buffer a parameter. The input of an
 * all-gather has no buffer of its own: between the mark FREE and the first op
 * that follows it the caller writes its packed shard to STAGE, slot `node`. */
#define TIDE_BUFFER_LIST(X)                                                    \
    X(STAGE, "stage")     /* all-gather slots, one a node; peers read it */    \
    X(PARAM, "param")     /* unsharded storage of a parameter */               \
    X(GRAD, "grad")       /* unsharded gradient of a parameter */              \
    X(RSTAGE, "rstage")   /* gradient slices pulled from local peers */        \
    X(PARTIAL, "partial") /* fp32 node sums on their way to another node */    \
    X(RECV, "recv")       /* fp32 node sums that arrived; peers read it */     \
    X(OUT, "out")         /* reduce-scatter output: this rank's shard */

/* name, text. Each is a counter per (source, destination). */
#define TIDE_CHANNEL_LIST(X)                                                   \
    X(FREE, "free")         /* I have read your STAGE: exactly 1 a call */     \
    X(STAGED, "staged")     /* a run of my STAGE slots may be read */          \
    X(OPEN, "open")         /* you may put into my STAGE */                    \
    X(RAIL, "rail")         /* a put has arrived */                            \
    X(CREDIT, "credit")     /* you may put more */                             \
    X(DEST, "dest")         /* you may write my PARAM */                       \
    X(LANDED, "landed")     /* I have written your PARAM */                    \
    X(GRADS, "grads")       /* my gradients may be read */                     \
    X(READ, "read")         /* I have read your gradients */                   \
    X(ARRIVED, "arrived")   /* a step's node sums lie in my RECV */            \
    X(CONSUMED, "consumed") /* I have read a step of your RECV */

/* name, text. READS may come after DONE: it needs nothing of this rank. */
#define TIDE_PHASE_LIST(X)                                                     \
    X(FREE, "stage free")  /* all-gather: my STAGE slot may be filled */       \
    X(READS, "reads done") /* reduce-scatter: my gradients may go */           \
    X(DONE, "done") /* outputs complete, and no peer waits for me any more */

typedef enum tide_op_kind {
#define X(name, text) TIDE_OP_##name,
    TIDE_OP_LIST(X)
#undef X
        TIDE_OP_COUNT
} tide_op_kind;

typedef enum tide_lane {
#define X(name, text) TIDE_LANE_##name,
    TIDE_LANE_LIST(X)
#undef X
        TIDE_LANE_COUNT
} tide_lane;

typedef enum tide_buffer {
#define X(name, text) TIDE_BUF_##name,
    TIDE_BUFFER_LIST(X)
#undef X
        TIDE_BUF_COUNT
} tide_buffer;

typedef enum tide_channel {
#define X(name, text) TIDE_CH_##name,
    TIDE_CHANNEL_LIST(X)
#undef X
        TIDE_CH_COUNT
} tide_channel;

typedef enum tide_phase {
#define X(name, text) TIDE_PHASE_##name,
    TIDE_PHASE_LIST(X)
#undef X
        TIDE_PHASE_COUNT
} tide_phase;

#define TIDE_ALL_LOCAL (-1)

typedef struct tide_operand {
    uint64_t offset; /* bytes */
    uint32_t index;  /* the parameter, for PARAM and GRAD; else 0 */
    int32_t where;   /* buffer << 24 | (rank + 1): see the helpers below */
} tide_operand;

static inline tide_operand tide_at(tide_buffer buffer, uint32_t index,
                                   int32_t rank, uint64_t offset)
{
    return (tide_operand){offset, index, (int32_t)buffer << 24 | (rank + 1)};
}
static inline tide_buffer tide_operand_buffer(tide_operand at)
{
    return (tide_buffer)(at.where >> 24);
}
static inline int32_t tide_operand_rank(tide_operand at)
{
    return (at.where & 0xffffff) - 1;
}

/* Flags of a REDUCE. */
enum {
    TIDE_SRC_BF16 = 1, /* sources are bf16, else fp32 */
    TIDE_DST_BF16 = 2, /* destination is bf16 (rounded to nearest even) */
    TIDE_ADD = 4,      /* destination (fp32) is the first summand */
    TIDE_SCALE = 8,    /* multiply by the call's scale at the end */
    /* Source i lies at the same offset on local rank (l + i) mod G, where l
     * is the local index of src.rank; otherwise at src + i * src_pitch. */
    TIDE_ACROSS = 16,
    TIDE_SWITCH = 32, /* with ACROSS and height = G: the switch may add */
    /* src is this rank's RSTAGE, height is G. Source l, where l is this rank's
     * local index, is read where it lies: in GRAD src.index, at byte dst_pitch.
     */
    TIDE_OWN = 64,
};

/*
 * One op, 64 bytes. COPY: height rows of width bytes, at dst_pitch and
 * src_pitch. PUT: width contiguous bytes, then a signal on `channel` to
 * dst.rank. SIGNAL: dst.rank, channel. WAIT: src.rank, channel, count. REDUCE:
 * sums `height` sources (0: writes zeros) of `width` elements; dst_pitch is 0,
 * but see OWN. AFTER: index. MARK: channel is the phase.
 */
typedef struct tide_op {
    uint8_t kind;
    uint8_t lane;
    uint8_t flags;
    uint8_t channel;
    uint32_t height;
    union {
        uint64_t width; /* COPY, PUT: bytes; REDUCE: elements */
        int64_t count;  /* WAIT */
        uint64_t index; /* AFTER */
    };
    uint64_t dst_pitch;
    uint64_t src_pitch;
    tide_operand dst;
    tide_operand src;
} tide_op;

_Static_assert(sizeof(tide_op) == 64, "an op is one cache line");

/* This plan receives `total` signals from `source` on `channel`. */
typedef struct tide_expect {
    int32_t source;
    uint32_t channel;
    uint64_t total;
} tide_expect;

typedef enum tide_coll { TIDE_ALL_GATHER, TIDE_REDUCE_SCATTER } tide_coll;

/*
 * What a planner may choose. Zero everywhere asks for the defaults, which
 * tide_plan_defaults writes out. All ranks must use equal options.
 */
typedef struct tide_plan_options {
    tide_coll coll;
    /* All-gather. */
    int push;             /* 1: multicast push; 0: every rank pulls */
    uint64_t chunk_bytes; /* a put's size; default B/2, 1 MiB to 8 MiB */
    uint32_t window;      /* puts in flight on a rail; 0: no pacing */
    /* Pulls of a run begin: 0, from each local peer when it has it; when all
     * have it, 1, on one lane; 2, on two, every other parameter on COPY. */
    int together;
    /* Reduce-scatter. */
    tide_dtype grad_dtype; /* TIDE_BF16 or TIDE_F32 */
    tide_dtype out_dtype;  /* TIDE_F32 or TIDE_BF16 */
    int staged;            /* 1: copies into RSTAGE, then sums there */
    int switch_reduce;     /* 1: level 2 by the switch where full */
    uint64_t block_bytes;  /* fp32 bytes of one output block */
    uint32_t recv_slots;   /* steps of RECV in flight; default 2 */
    /* Over rails level 1 takes sub-slices together until it reads so many
     * bytes at a time; default 8 MiB, 1: one by one. */
    uint64_t unit_bytes;
} tide_plan_options;

typedef struct tide_plan {
    tide_plan_options options; /* complete: no zero stands for a default */
    tide_topology topology;
    uint32_t rank;
    uint32_t op_count;
    uint32_t expect_count;
    const tide_op *ops;
    const tide_expect *expects;
    uint64_t buffer_bytes[TIDE_BUF_COUNT]; /* per instance; scratch only */
    uint64_t key; /* hash of layout, topology, options: equal on all ranks */
} tide_plan;

/* STAGE exists this many times: call k uses set k mod 2. */
#define TIDE_STAGE_SETS 2u

typedef struct tide_plan_stats {
    uint64_t ops[TIDE_OP_COUNT];
    uint64_t lane_bytes[TIDE_LANE_COUNT]; /* bytes copied, put or read to sum */
    uint64_t local_bytes;  /* bytes read from or written to local peers */
    uint64_t rail_bytes;   /* bytes that leave this node */
    uint64_t rounds;       /* of an all-gather over the rails */
    uint64_t buffer_bytes; /* scratch in all: STAGE twice, the rest once */
} tide_plan_stats;

/* Fills in the default of every zero field. */
TIDE_API tide_status tide_plan_defaults(const tide_layout *layout,
                                        tide_topology topology,
                                        tide_plan_options *options);

/*
 * Writes the plan of `rank`. The same arguments give the same bytes. The plan
 * refers to nothing; free it with tide_plan_free. Errors: TIDE_ERR_INVALID
 * (NULL; a topology whose N*G is not the layout's ranks; rank outside it;
 * options out of range), TIDE_ERR_MEMORY. Source of the algorithms:
 * docs/algorithms.md.
 */
TIDE_API tide_status tide_plan_create(const tide_layout *layout,
                                      tide_topology topology, uint32_t rank,
                                      const tide_plan_options *options,
                                      tide_plan **plan);
TIDE_API void tide_plan_free(tide_plan *plan); /* NULL is fine */

/* A hash of every op: equal plans hash equally, in every build. */
TIDE_API uint64_t tide_plan_hash(const tide_plan *plan);
TIDE_API void tide_plan_get_stats(const tide_plan *plan,
                                  tide_plan_stats *stats);
/* One line an op, greppable; see docs/plan_format.md. */
TIDE_API void tide_plan_print(const tide_plan *plan, FILE *to);

/*
 * The verifier. It takes the plans of all ranks (plans[r] is rank r's) and
 * proves them right without running them. On the first fault: TIDE_ERR_PLAN,
 * and tide_last_error() names rank, lane, op, bytes and reason;
 * TIDE_ERR_INVALID for NULL, TIDE_ERR_MEMORY.
 *
 * bounds: ops are well formed, every access stays inside its buffer.
 * sync: signals sent equal signals expected on each counter, every wait is
 *   met, there is no deadlock.
 * order: any two accesses of overlapping bytes, one of them a write, are
 *   ordered by lanes, AFTERs and signals, within a call and over three calls
 *   in a row. The caller's own accesses count: at the mark FREE it fills its
 *   slot of STAGE and hands over its storages; from the start of a
 *   reduce-scatter to READS it keeps its gradients, and OUT is the plan's
 *   until DONE; at DONE it reads the outputs. A put's data arrive with its
 *   signal, not with the end of the op. (All-gathers and reduce-scatters share
 *   neither scratch nor counters, and tensors that they share change hands at
 *   marks, so the two need no check side by side.) Needs sync.
 * result: every byte of every PARAM is written exactly once, by the byte that
 *   belongs there; every element of every OUT is the scaled sum of exactly R
 *   contributions, each once, or a zero of the padding. Needs order.
 */
TIDE_API tide_status tide_verify_bounds(const tide_layout *layout,
                                        const tide_plan *const *plans);
TIDE_API tide_status tide_verify_sync(const tide_plan *const *plans);
TIDE_API tide_status tide_verify_order(const tide_layout *layout,
                                       const tide_plan *const *plans);
TIDE_API tide_status tide_verify_result(const tide_layout *layout,
                                        const tide_plan *const *plans);

#ifdef __cplusplus
}
#endif
#endif
