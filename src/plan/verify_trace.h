/* The state of a run of plans: what verify_trace and verify_deadlock share. */
#ifndef TIDE_PLAN_VERIFY_TRACE_H
#define TIDE_PLAN_VERIFY_TRACE_H

#include "plan/verify.h"

typedef struct tdi_rank_state {
    uint32_t call; /* position in the program; call_count: through */
    bool started;
    bool queued;
    uint32_t at[TIDE_LANE_COUNT]; /* in the code's order */
} tdi_rank_state;

typedef struct tdi_runner {
    const tdi_program *program;
    const tdi_visitor *visitor;
    tdi_rank_state *ranks;
    uint64_t *count; /* [counter] signals that came */
    uint64_t *base;  /* [counter] expected by calls that are over */
    uint32_t *queue; /* ranks to look at, a ring */
    uint32_t head, waiting;
} tdi_runner;

static inline const tdi_code *tdi_runner_code(const tdi_runner *run,
                                              uint32_t rank)
{
    return tdi_code_of(run->program, run->ranks[rank].call, rank);
}

/* The op at which a lane stands; false if the lane is through. */
static inline bool tdi_lane_head(const tdi_runner *run, uint32_t rank,
                                 uint32_t lane, uint32_t *index)
{
    const tdi_code *code = tdi_runner_code(run, rank);
    uint32_t at = run->ranks[rank].at[lane];
    if (at == code->first[lane + 1])
        return false;
    *index = code->order[at];
    return true;
}

static inline uint64_t tdi_count_needed(const tdi_runner *run, uint32_t counter,
                                        int64_t count)
{
    int64_t needed = (int64_t)run->base[counter] + count;
    return needed > 0 ? (uint64_t)needed : 0;
}

/* TIDE_ERR_PLAN, with the chain of waits, unless every rank is through. */
tide_status tdi_check_through(const tdi_runner *run);

#endif
