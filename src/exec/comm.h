/* Inside of communicators, groups, requests and slots. */
#ifndef TIDE_EXEC_COMM_H
#define TIDE_EXEC_COMM_H

#include "exec/arena.h"
#include "exec/backend.h"

#include <pthread.h>
#include <tide/coll.h>

typedef struct tdi_flow {
    tide_request *head; /* the first request that is not complete */
    tide_request *tail;
    uint64_t calls;   /* requests so far */
    uint64_t pending; /* requests not yet complete */
    uint64_t *issued; /* [channel][rank]: signals that all requests so far
                         receive in total */
    tdi_range *scratch;
    tdi_range *copies; /* of gradients, on a device: calls use it in turn */
    uint64_t scratch_bytes; /* what plans asked for, without rounding */
} tdi_flow;

struct tide_comm {
    const tdi_backend *backend;
    void *state;             /* the backend's */
    struct tdi_node *node;   /* the ranks of this machine: node/node.h */
    struct tdi_watch *watch; /* the thread that looks after queued work */
    uint32_t rank;
    tide_topology topology;
    uint32_t timeout_ms;
    uint64_t arena_bytes;
    tdi_arena arena;
    tdi_arena *tables; /* what peers' hosts read; the arena where they can */
    uint64_t calls;
    tide_status failed; /* the first error of a request; then all abort */
    char failure[512];
    tdi_flow flows[TDI_FLOWS];
    tide_slot *slots;
    struct tdi_memory *memories; /* what tide_memory_take has given out */
    uint64_t memory_bytes;
    pthread_mutex_t memory_lock; /* of the two above */
    uint64_t slot_bytes;
    uint64_t copied_bytes;
    uint64_t watched_ms; /* when a caller that polls last looked at peers */
    uint64_t polled_ms;  /* how long it has polled and nothing has moved */

    /* Set by the backend's open. */
    bool reads_private; /* peers' ordinary memory can be read */
    /* Gradients below this size are copied rather than read where they lie;
     * UINT64_MAX where nothing private can be read. */
    uint64_t private_min;
    bool is_stuck; /* a thread may still use the comm: it is never freed */
    bool staged;   /* reduce-scatters stage gradients by default */
    bool multicast;
    bool one_machine;
    int together;         /* of all-gathers by default */
    uint64_t block_bytes; /* default block of a reduce-scatter; 0: the plan's */
    uint64_t unit_bytes;  /* likewise, of what level 1 reads at a time */
};

/* A plan and the order of its lanes. */
typedef struct tdi_bound {
    tide_plan *plan;
    uint32_t first[TIDE_LANE_COUNT];
    uint32_t *next; /* [op]: the next op of the same lane */
    /* For backends with queues: */
    uint32_t *slot; /* [op]: 1 + the note that an AFTER waits for, or 0 */
    uint32_t mask;  /* the queues that it uses */
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
    /* Tables of entries, two of them, by tide_coll: where gradients are, and
     * where storages that peers write. */
    tdi_range *table[2];
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
    const void *
        *copied; /* [p]: the gradient that memory[p] will be a copy of */
    void *out;
    float scale;
    uint64_t scratch[TIDE_BUF_COUNT]; /* arena offsets */
    /* Ranges that peers read: a parameter's slot, or NULL; last, copies. */
    tdi_range **held;
    /* For backends with queues: */
    uint32_t queued; /* ops so far */
    tdi_mark *mark[TIDE_PHASE_COUNT];
    tdi_mark *begun; /* the device has come to the plan */
    tdi_mark *end;   /* all of it is through */
    bool in_flow;
    bool is_freed; /* by its owner; goes when it is through */
};

/* Do reduce-scatters stage? What TIDE_STAGED says, else what is usual. */
bool tdi_comm_staged(bool usual);
/* Is the communicator still good? After a failure: TIDE_ERR_ABORTED. */
tide_status tdi_comm_check(tide_comm *comm);
/* What peers hear of it: they have done nothing INVALID themselves. */
tide_status tdi_status_for_peers(tide_status status);
/* Keeps the first failure and tells the peers. Returns status. */
tide_status tdi_comm_failed(tide_comm *comm, tide_status status,
                            uint32_t culprit);
void tdi_arena_drop(tide_comm *comm, tdi_range *range);

/* The bound plan of a collective; made at first use. */
tide_status tdi_group_bind(tide_group *group, tide_coll coll, tide_dtype grad,
                           tide_dtype out, const tdi_bound **bound);

/* Where an operand lies, for the rank named. */
tide_status tdi_bind_address(tide_request *request, tide_operand at,
                             int32_t rank, tdi_address *address);
/* A COPY or PUT with its addresses. */
tide_status tdi_bind_move(tide_request *request, const tide_op *op,
                          tdi_move *move);
/* A REDUCE with its addresses; sources has room for TIDE_MAX_LOCAL. */
tide_status tdi_bind_sum(tide_request *request, const tide_op *op,
                         tdi_address *sources, tdi_sum *sum);
/* The count that a WAIT of this request waits for. */
int64_t tdi_wait_target(const tide_request *request, const tide_op *op);

/* run.c, for backends without queues. Moves every flow's first request on as
 * far as it goes; *moved becomes true if anything has happened. */
tide_status tdi_run_all(tide_comm *comm, bool *moved);
/* For callers that poll rather than wait, after a run that moved nothing:
 * faults and deadlines are theirs too. */
tide_status tdi_run_watch(tide_comm *comm);
/* Runs and sleeps until `until` says true; else it may name in *missing what
 * it waits for besides the lanes. */
typedef bool tdi_until(void *context, tdi_block *missing);
tide_status tdi_run_until(tide_comm *comm, tdi_until *until, void *context);

/* The pool's allocator no longer knows this communicator. */
void tdi_pool_forget(tide_comm *comm);
/* What tide_memory_take gave last and has not got back; there is one. */
void *tdi_memory_first(const tide_comm *comm);
/* Is [address, address + bytes) memory of the arena? Then its offset. */
bool tdi_find_arena(const tide_comm *comm, const void *address, uint64_t bytes,
                    uint64_t *offset);
/* The slot that [address, address + bytes) lies in, or NULL. */
tide_slot *tdi_find_slot(const tide_comm *comm, const void *address,
                         uint64_t bytes);

#endif
