/* Inside of communicators, groups, requests and slots. */
#ifndef TIDE_EXEC_COMM_H
#define TIDE_EXEC_COMM_H

#include "exec/arena.h"
#include "exec/backend.h"

#include <tide/coll.h>

typedef struct tdi_flow {
    tide_request *head; /* the request that runs */
    tide_request *tail;
    uint64_t calls;   /* requests so far */
    uint64_t pending; /* requests not yet complete */
    uint64_t *issued; /* [channel][rank]: signals that all requests so far
                         receive in total */
    tdi_range *scratch;
    uint64_t scratch_bytes; /* what plans asked for, without rounding */
} tdi_flow;

struct tide_comm {
    const tdi_backend *backend;
    void *state; /* the backend's */
    uint32_t rank;
    tide_topology topology;
    uint32_t timeout_ms;
    uint64_t arena_bytes;
    tdi_arena arena;
    uint64_t calls;
    tide_status failed; /* the first error of a request; then all abort */
    char failure[512];
    tdi_flow flows[TDI_FLOWS];
    tide_slot *slots;
    uint64_t slot_bytes;
    uint64_t watched_ms; /* when a caller that polls last looked at peers */
    uint64_t polled_ms;  /* how long it has polled and nothing has moved */

    /* Set by the backend's open. */
    bool reads_private; /* peers' ordinary memory can be read */
    /* Gradients below this size are copied rather than read where they lie;
     * UINT64_MAX where nothing private can be read. */
    uint64_t private_min;
    bool staged; /* reduce-scatters stage gradients by default */
    bool multicast;
    uint64_t block_bytes; /* default block of a reduce-scatter; 0: the plan's */
};

/* A plan and the order of its lanes. */
typedef struct tdi_bound {
    tide_plan *plan;
    uint32_t first[TIDE_LANE_COUNT];
    uint32_t *next; /* [op]: the next op of the same lane */
} tdi_bound;

/* Reduce-scatter plans: one for each pair of dtypes. */
enum { TDI_RS_PLANS = 4 };

struct tide_group {
    tide_comm *comm;
    char name[52];
    tide_layout *layout;
    tide_plan_options options[2]; /* by tide_coll */
    tdi_bound gather;
    tdi_bound reduce[TDI_RS_PLANS];
    tdi_range *table; /* of gradient entries, two of them */
    uint32_t requests;
};

struct tide_slot {
    tide_comm *comm;
    tide_slot *next;
    void *address;
    uint64_t bytes;
    tdi_range *range; /* NULL while vacated */
};

struct tide_request {
    tide_comm *comm;
    tide_group *group;
    const tdi_bound *bound;
    tide_request *next;
    tdi_flow_id flow;
    uint64_t turn; /* which request of its flow */
    tdi_call call;
    bool started;
    bool complete;
    bool reached[TIDE_PHASE_COUNT];
    uint32_t at[TIDE_LANE_COUNT]; /* next op of each lane */
    uint64_t *base; /* [channel][rank]: signals received by earlier requests */
    void **memory;  /* storages, or gradients */
    void *out;
    float scale;
    uint64_t scratch[TIDE_BUF_COUNT]; /* arena offsets */
    /* Ranges that peers read: a parameter's slot, or NULL; last, copies. */
    tdi_range **held;
};

/* Is the communicator still good? After a failure: TIDE_ERR_ABORTED. */
tide_status tdi_comm_check(tide_comm *comm);
/* Keeps the first failure and tells the peers. Returns status. */
tide_status tdi_comm_failed(tide_comm *comm, tide_status status,
                            uint32_t culprit);
void tdi_arena_drop(tide_comm *comm, tdi_range *range);

/* The bound plan of a collective; made at first use. */
tide_status tdi_group_bind(tide_group *group, tide_coll coll, tide_dtype grad,
                           tide_dtype out, const tdi_bound **bound);

/* Where an operand lies, for the rank named (not TIDE_ALL_LOCAL). */
tide_status tdi_bind_address(tide_request *request, tide_operand at,
                             int32_t rank, tdi_address *address);

/* Moves every flow's first request on as far as it goes; moved says whether
 * anything happened. */
tide_status tdi_run_all(tide_comm *comm, bool *moved);
/* For callers that poll rather than wait, after a run that moved nothing:
 * faults and deadlines are theirs too. */
tide_status tdi_run_watch(tide_comm *comm);
/* Runs and sleeps until `until` says true; else it may name in *missing what
 * it waits for besides the lanes. */
typedef bool tdi_until(void *context, tdi_block *missing);
tide_status tdi_run_until(tide_comm *comm, tdi_until *until, void *context);

/* The slot that [address, address + bytes) lies in, or NULL. */
tide_slot *tdi_find_slot(const tide_comm *comm, const void *address,
                         uint64_t bytes);

#endif
