/* The interpreter's state: memory, counters and lanes of all ranks. */
#ifndef TIDE_TESTS_INTERP_WORLD_H
#define TIDE_TESTS_INTERP_WORLD_H

#include "interp.h"

#include <stdbool.h>

enum { FLOWS = 2, POISON = 0xa5 };

/* A put on its way: its bytes, and where they and the signal go. */
typedef struct parcel {
    struct parcel *next;
    uint8_t *target;
    uint64_t bytes;
    uint64_t *counter;
    uint8_t data[];
} parcel;

typedef struct lane_state {
    uint32_t *ops; /* indices of this lane's ops in the current plan */
    uint32_t count;
    uint32_t at;
    uint64_t done; /* units of the op at `at` that have happened */
    parcel *open;  /* of the put at `at`, while its bytes are read */
} lane_state;

/* One rank's run through the calls of one kind. */
typedef struct flow_state {
    uint32_t rank;
    tide_coll coll;
    uint32_t *calls; /* of this kind */
    uint32_t call_count;
    uint32_t call_at;
    bool started;
    bool *op_done;
    uint64_t *base; /* signals expected by earlier calls, [source][channel] */
    lane_state lanes[TIDE_LANE_COUNT];
    parcel *wire; /* puts on their way, in order */
    parcel **wire_end;
} flow_state;

typedef struct rank_memory {
    uint8_t *stage[TIDE_STAGE_SETS];
    uint8_t *scratch[TIDE_BUF_COUNT]; /* RSTAGE, PARTIAL, RECV */
} rank_memory;

/* The tensors of one rank in one call. */
typedef struct call_memory {
    uint8_t **tensors; /* PARAM or GRAD */
    uint8_t *out;
    bool done;
} call_memory;

typedef struct world {
    const interp_call *calls;
    uint32_t call_count;
    uint32_t ranks;
    const interp_how *how;
    uint64_t random;
    rank_memory *memory;   /* [rank] */
    call_memory *bindings; /* [call][rank] */
    uint32_t *turn;        /* [call]: which call of its kind it is */
    flow_state *flows;     /* [coll][rank] */
    uint64_t *counters;    /* [coll][rank][source][channel] */
    size_t *order;         /* lanes and wires of all ranks: flow * 6 + lane */
    size_t tasks;
    char *fault;
} world;

/* interp_report.c. Says what is wrong, once: the first fault stays. Returns
 * false. */
bool interp_fault(world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "call 0 rank 3 land op 17 (copy)" for messages. */
void interp_name_op(const world *w, const flow_state *flow, uint32_t index,
                    char *text, size_t bytes);

/* A deadlock: where every lane stands. */
void interp_report_deadlock(world *w);
/* Every signal must have been expected, or the next call would miscount. */
void interp_check_counters(world *w);

/* interp.c */
uint64_t *interp_counter(world *w, tide_coll coll, uint32_t rank,
                         uint32_t source, uint32_t channel);
/* Signals that a WAIT needs, since the first call. */
uint64_t interp_needed(const flow_state *flow, const tide_op *op);
static inline uint32_t interp_call_of(const flow_state *flow)
{
    return flow->calls[flow->call_at];
}
static inline const tide_plan *interp_plan_of(const world *w,
                                              const flow_state *flow)
{
    return w->calls[interp_call_of(flow)].plans[flow->rank];
}
static inline call_memory *interp_binding(const world *w, uint32_t call,
                                          uint32_t rank)
{
    return &w->bindings[(size_t)call * w->ranks + rank];
}

/* interp_memory.c */
void interp_allocate(world *w);
void interp_release(world *w);
/* Bytes of parameter p's PARAM or GRAD, and of OUT. */
uint64_t interp_tensor_bytes(const interp_call *call, size_t p);
uint64_t interp_out_bytes(const interp_call *call);
/* bytes of the operand's buffer from its offset on must be there. */
bool interp_locate(world *w, flow_state *flow, uint32_t index, tide_operand at,
                   uint64_t bytes, uint8_t **memory);

/* interp_caller.c. A reduce-scatter starts on a rank: gradients are there, OUT
 * is handed over. */
void interp_start(world *w, flow_state *flow);
bool interp_mark(world *w, flow_state *flow, uint32_t phase);
/* Outputs were poisoned when DONE was reached; a write after that shows. */
bool interp_check_late_writes(world *w);

/* interp_ops.c: a piece of an op; *over says that it is complete. */
bool interp_step(world *w, flow_state *flow, lane_state *lane, bool *over);

#endif
