/*
 * The ranks of one machine, seen through shared memory. Each has a memfd
 * segment that every other maps: first the control block (calls, doorbell,
 * signals), then memory for whoever opened it. Nothing has a name in a file
 * system, so nothing can be left behind. Backends that run on one machine or
 * on several build on it; ranks of other machines have no segment here.
 */
#ifndef TIDE_NODE_NODE_H
#define TIDE_NODE_NODE_H

#include "exec/comm.h"

#include <stdatomic.h>
#include <sys/types.h>

/* Calls that ranks can compare; who is further apart is not compared. */
enum { NODE_CALLS = 64 };
/* Calls of one flow whose memory peers may look for. The last but two is over
 * for everyone before a rank starts another: see tdi_request_create. */
enum { NODE_TURNS = 4 };

/* How this rank stands: in `state`, and in `abort` once someone gives up. */
enum { NODE_ALIVE = 1, NODE_LEFT = 2 };

typedef struct node_control {
    _Atomic uint32_t state;
    _Atomic uint32_t doorbell; /* rung after every change that peers make */
    _Atomic uint32_t sleeping; /* the rank waits on its doorbell */
    _Atomic uint64_t abort;    /* who gave up, and why; 0: nobody */
    _Atomic uint64_t calls;    /* calls made known so far */
    _Atomic uint64_t seen_ms;  /* when the rank last waited, tdi_now_ms */
    uint64_t magic_address;    /* of a word that holds `magic`, to try reads */
    uint64_t magic;
    tdi_call call[NODE_CALLS];            /* [number mod NODE_CALLS] */
    tdi_call turn[TDI_FLOWS][NODE_TURNS]; /* [coll][turn mod NODE_TURNS] */
    _Atomic uint64_t signals[];           /* [flow][channel][source rank] */
} node_control;

typedef struct node_peer {
    char *segment; /* mapped; control block first; NULL: another machine */
    int socket;    /* hangs up when the peer ends; -1: none */
    int process;   /* its pidfd, readable when it ends; -1: none */
    pid_t pid;     /* 0: cannot be seen from here */
} node_peer;

typedef struct tdi_node {
    uint32_t ranks;
    uint64_t control_bytes; /* before the rest */
    uint64_t segment_bytes;
    int memory; /* the memfd of my segment */
    node_peer *peers;
    uint32_t spin;  /* polls before a wait sleeps */
    uint32_t polls; /* since the doorbell last rang */
    uint32_t rung;  /* the doorbell before the lanes were last looked at */
    uint64_t magic; /* peers try to read it */
} tdi_node;

static inline tdi_node *node_of(const tide_comm *comm)
{
    return comm->node;
}

static inline node_control *node_control_of(const tide_comm *comm,
                                            uint32_t rank)
{
    return (node_control *)node_of(comm)->peers[rank].segment;
}

static inline bool node_has(const tide_comm *comm, uint32_t rank)
{
    return node_of(comm)->peers[rank].segment != NULL;
}

/*
 * segment.c. Collective: makes comm->node, my segment with `bytes` behind the
 * control block, and maps those of the ranks of my machine; machines[r] says
 * where rank r runs. A failed open is closed by tdi_node_close, too.
 */
tide_status tdi_node_open(tide_comm *comm, const tide_bootstrap *bootstrap,
                          const uint64_t *machines, uint64_t bytes);
/* Tells the peers, who need not wait. If comm->is_stuck, what is mapped stays.
 * NULL comm->node is fine. */
void tdi_node_close(tide_comm *comm);

/* control.c: signals, calls, sleeping, faults. What follows serves as the
 * functions of a backend of the same names; see backend.h. */
void tdi_node_ring(tide_comm *comm, uint32_t rank); /* a doorbell */
/* Tells all ranks of my machine what happened and whose fault it is; who hears
 * of several aborts keeps the first. Any thread. */
void tdi_node_abort(tide_comm *comm, tide_status status, uint32_t culprit);
void tdi_node_publish(tide_comm *comm, const tdi_call *call);
tide_status tdi_node_vote(tide_comm *comm, const tdi_call *call, bool *all);
void tdi_node_signal(tide_comm *comm, tdi_flow_id flow, uint32_t to,
                     tide_channel channel);
/* The cell that counts what `source` has signalled to `at`. */
_Atomic uint64_t *tdi_node_cell(const tide_comm *comm, uint32_t at,
                                tdi_flow_id flow, uint32_t channel,
                                uint32_t source);
/* More signals than ever come, in all of my cells: every wait passes. */
void tdi_node_flood(tide_comm *comm);
/* The first abort that I have heard of. Any thread. */
tide_status tdi_node_check(tide_comm *comm);
/* An access to the peer's memory has failed: does abort or death explain it?
 * gone: its process is known to have ended. */
tide_status tdi_node_check_peer(tide_comm *comm, uint32_t rank, bool gone);
tide_status tdi_node_poll(tide_comm *comm, tdi_flow_id flow,
                          const tdi_block *wait, int64_t target, bool *reached);
tide_status tdi_node_watch(tide_comm *comm, const tdi_block *blocks,
                           size_t count, uint64_t waited_ms);
tide_status tdi_node_idle(tide_comm *comm, const tdi_block *blocks,
                          size_t count, uint64_t waited_ms);
/* Waits until the peer has made its call of my call's number known, until the
 * deadline at most; *theirs is its record, which lasts until my next call. A
 * mismatch if the two calls differ. */
tide_status tdi_node_await_call(tide_comm *comm, const tdi_call *mine,
                                uint32_t rank, const tdi_call **theirs);

#endif
