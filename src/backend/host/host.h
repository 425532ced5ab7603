/*
 * The host backend: ranks are processes of one machine. Each has a memfd
 * segment that every other rank maps: first the control block (signals, calls,
 * doorbell), then the arena. Nothing has a name in a file system, so nothing
 * can be left behind.
 */
#ifndef TIDE_BACKEND_HOST_HOST_H
#define TIDE_BACKEND_HOST_HOST_H

#include "exec/comm.h"

#include <stdatomic.h>
#include <sys/types.h>

/* Calls that ranks can compare; who is further apart is not compared. */
enum { HOST_CALLS = 64 };
/* Calls of one flow whose memory peers may look for. The last but two is over
 * for everyone before a rank starts another: see tdi_request_create. */
enum { HOST_TURNS = 4 };

/* How this rank stands: in `state`, and in `abort` once someone gives up. */
enum { HOST_ALIVE = 1, HOST_LEFT = 2 };

typedef struct host_control {
    _Atomic uint32_t state;
    _Atomic uint32_t doorbell; /* rung after every change that peers make */
    _Atomic uint32_t sleeping; /* the rank waits on its doorbell */
    _Atomic uint64_t abort;    /* status << 32 | culprit; 0: none */
    _Atomic uint64_t calls;    /* calls made known so far */
    _Atomic uint64_t seen_ms;  /* when the rank last waited, tdi_now_ms */
    uint64_t magic_address;    /* of a word that holds `magic`, to try reads */
    uint64_t magic;
    tdi_call call[HOST_CALLS];            /* [number mod HOST_CALLS] */
    tdi_call turn[TDI_FLOWS][HOST_TURNS]; /* [coll][turn mod HOST_TURNS] */
    _Atomic uint64_t signals[];           /* [flow][channel][source rank] */
} host_control;

typedef struct host_peer {
    char *segment; /* mapped; control block first */
    int socket;    /* hangs up when the peer ends; -1: none */
    int process;   /* its pidfd, readable when it ends; -1: none */
    pid_t pid;     /* 0: cannot be seen from here */
} host_peer;

typedef struct host_state {
    uint32_t ranks;
    uint64_t control_bytes; /* before the arena */
    uint64_t segment_bytes;
    int memory; /* the memfd of my segment */
    host_peer *peers;
    uint32_t spin;  /* polls before a wait sleeps */
    uint32_t polls; /* since the doorbell last rang */
    uint32_t rung;  /* the doorbell before the lanes were last looked at */
    uint64_t magic; /* peers try to read it */
    char *bounce;   /* where pieces of peers' private memory are read to */
} host_state;

enum { HOST_BOUNCE_BYTES = 128 << 10 }; /* for each source of a sum */

static inline host_state *host_of(const tide_comm *comm)
{
    return comm->state;
}

static inline host_control *host_control_of(const tide_comm *comm,
                                            uint32_t rank)
{
    return (host_control *)host_of(comm)->peers[rank].segment;
}

/* segment.c: my segment, and its handing over to the peers. */
tide_status tdi_host_make_segment(tide_comm *comm);
tide_status tdi_host_hand_over(tide_comm *comm,
                               const tide_bootstrap *bootstrap);
void tdi_host_free_segments(tide_comm *comm);

/* control.c: signals, calls, sleeping, faults. */
void tdi_host_ring(tide_comm *comm, uint32_t rank); /* a doorbell */
void tdi_host_abort(tide_comm *comm, tide_status status, uint32_t culprit);
void tdi_host_publish(tide_comm *comm, const tdi_call *call);
void tdi_host_signal(tide_comm *comm, tdi_flow_id flow, uint32_t to,
                     tide_channel channel);
tide_status tdi_host_check(tide_comm *comm);
/* An access to the peer's memory has failed: does abort or death explain it?
 * gone: its process is known to have ended. */
tide_status tdi_host_check_peer(tide_comm *comm, uint32_t rank, bool gone);
tide_status tdi_host_poll(tide_comm *comm, tdi_flow_id flow,
                          const tdi_block *wait, int64_t target, bool *reached);
tide_status tdi_host_watch(tide_comm *comm, const tdi_block *blocks,
                           size_t count, uint64_t waited_ms);
tide_status tdi_host_idle(tide_comm *comm, const tdi_block *blocks,
                          size_t count, uint64_t waited_ms);

/* memory.c: addresses, slots, peers' private memory. */
tide_status tdi_host_peer(tide_comm *comm, const tdi_call *call,
                          tide_operand at, int32_t rank, tdi_address *address);
char *tdi_host_arena(tide_comm *comm, uint64_t offset);
void tdi_host_discard(tide_comm *comm, uint64_t offset, uint64_t bytes);
tide_status tdi_host_reserve(tide_comm *comm, uint64_t bytes, void **address);
void tdi_host_release(tide_comm *comm, void *address, uint64_t bytes);
tide_status tdi_host_map(tide_comm *comm, void *address, uint64_t offset,
                         uint64_t bytes);
tide_status tdi_host_unmap(tide_comm *comm, void *address, uint64_t bytes);
/* Reads rank's private memory; TIDE_ERR_PEER if it is gone. */
tide_status tdi_host_read(tide_comm *comm, uint32_t rank, void *to,
                          const void *from, uint64_t bytes);
/* Can this rank read its local peers' private memory? */
bool tdi_host_try_reads(tide_comm *comm);

/* ops.c */
tide_status tdi_host_do_copy(tide_comm *comm, const tdi_move *move);
tide_status tdi_host_do_sum(tide_comm *comm, const tdi_sum *sum);

#endif
