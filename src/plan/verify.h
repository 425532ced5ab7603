/*
 * The verifier: what its parts share.
 *
 *  verify_access     what memory an op, or the caller at a mark, touches
 *  verify_bounds     ops are well formed, every access lies in its buffer
 *  verify_program    plans sorted by lane, with counters numbered
 *  verify_trace      one legal run
 *  verify_deadlock   or who waits for whom
 *  verify_sync       signals sent and expected, waits, pace, marks
 *  verify_order      happens-before: vector clocks
 *  verify_guarantee  what the wait for a number of signals proves
 *  verify_race       overlapping accesses that nothing orders
 *  verify_history    the accesses to a buffer so far
 *  verify_memory     symbolic memory: which bytes are whose
 *  verify_sets       whose gradients are in a sum
 *  verify_content    the same as text
 *  verify_result     copies and sums on symbolic memory
 *  verify_sum        sums
 *  verify_output     every output byte is the right one, every sum complete
 */
#ifndef TIDE_PLAN_VERIFY_H
#define TIDE_PLAN_VERIFY_H

#include "base/fail.h"

#include <stdbool.h>
#include <tide/plan.h>

/* --- Sets of plans -------------------------------------------------------- */

/* The plans of all ranks for one group; plans[r] is rank r's. */
typedef struct tdi_set {
    const tide_layout *layout; /* NULL where nothing depends on it */
    const tide_plan *const *plans;
    /* Slot-Reuse: the PARAM or GRAD of this set lie in the same memory as
     * those of that set, which stands before it; NULL: in their own. */
    const struct tdi_set *slots;
} tdi_set;

/* TIDE_ERR_INVALID for NULL, TIDE_ERR_PLAN if these are not the plans of all
 * ranks of one topology, made alike, or if an op is ill formed. */
tide_status tdi_check_set(const tdi_set *set);
static inline uint32_t tdi_set_ranks(const tdi_set *set)
{
    return set->plans[0]->topology.nodes * set->plans[0]->topology.local_size;
}
/* Fails with "rank 3 op 17 (copy ...): " before the reason. */
tide_status tdi_fail_op(const tide_plan *plan, uint32_t index,
                        const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- Accesses ------------------------------------------------------------- */

/* `height` rows of `width` bytes, `pitch` apart, in one rank's buffer. */
typedef struct tdi_access {
    tide_buffer buffer;
    uint32_t index; /* the parameter, of PARAM and GRAD */
    uint32_t rank;
    bool write;
    uint64_t offset;
    uint64_t width;
    uint64_t height;
    uint64_t pitch;
} tdi_access;

/* The i-th access of an op, reads first; false if it has no more. The ranks
 * that the op names must exist. */
bool tdi_op_access(const tide_plan *plan, const tide_op *op, uint32_t i,
                   tdi_access *access);
/* Bytes of a buffer in a call of this plan; 0 if the call has none such. */
uint64_t tdi_buffer_bytes(const tide_layout *layout, const tide_plan *plan,
                          tide_buffer buffer, uint32_t index);

/* What the caller does at a mark or at the start of a call (see above): the
 * i-th access of it, as tdi_op_access. */
enum { TDI_CALL_START = TIDE_PHASE_COUNT };
bool tdi_caller_access(const tide_layout *layout, const tide_plan *plan,
                       uint32_t phase, uint32_t i, tdi_access *access);

/* --- Programs: plans, sorted for running ---------------------------------- */

#define TDI_NO_COUNTER UINT32_MAX

/* One plan: its ops lane by lane, and who counts its signals and waits. */
typedef struct tdi_code {
    const tide_plan *plan;
    uint32_t first[TIDE_LANE_COUNT + 1]; /* of each lane, in `order` */
    uint32_t *order;                     /* op indices */
    uint32_t *counter;                   /* [op], or TDI_NO_COUNTER */
} tdi_code;

/* A sequence of calls of one kind on one communicator; sets may recur. */
typedef struct tdi_program {
    const tdi_set *sets;
    uint32_t set_count;
    const uint32_t *calls; /* indices of sets */
    uint32_t call_count;
    uint32_t ranks;
    uint32_t counter_count;
    uint64_t *counters; /* sorted keys: destination, source, channel */
    tdi_code *codes;    /* [set][rank] */
} tdi_program;

tide_status tdi_program_load(tdi_program *program, const tdi_set *sets,
                             uint32_t set_count, const uint32_t *calls,
                             uint32_t call_count);
void tdi_program_unload(tdi_program *program);
uint32_t tdi_find_counter(const tdi_program *program, uint32_t to,
                          uint32_t from, uint32_t channel);
static inline const tdi_code *tdi_code_of(const tdi_program *program,
                                          uint32_t call, uint32_t rank)
{
    return &program
                ->codes[(size_t)program->calls[call] * program->ranks + rank];
}

/* --- Traces: one legal run ------------------------------------------------ */

typedef struct tdi_step {
    uint32_t call; /* position in the program */
    uint32_t rank;
    uint32_t index; /* of the op */
    const tdi_code *code;
    const tide_op *op;
    uint64_t needed; /* WAIT: signals since the first call, 0 if none */
} tdi_step;

typedef struct tdi_visitor {
    /* A rank begins a call; may be NULL. `step` has call, rank and code. */
    tide_status (*start)(void *context, const tdi_step *step);
    tide_status (*op)(void *context, const tdi_step *step);
    void *context;
} tdi_visitor;

/* Visits every op of every rank in an order that the edges allow. Ops only
 * add signals, so if this run comes to its end, every run does. visitor may be
 * NULL. TIDE_ERR_PLAN for a deadlock. */
tide_status tdi_trace(const tdi_program *program, const tdi_visitor *visitor);

/* --- Order, over any sequence of calls ------------------------------------ */

/* All-gathers and reduce-scatters may alternate. A rank starts a call when its
 * lanes are through with the former, whatever that was: for sets that share
 * slots this is the rule that a slot is not given to a new all-gather before
 * the mark READS. */

tide_status tdi_verify_order(const tdi_set *sets, uint32_t set_count,
                             const uint32_t *calls, uint32_t call_count);

#endif
