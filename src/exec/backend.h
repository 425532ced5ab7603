/*
 * A backend: how memory is shared between ranks, and how ops are done there.
 * One const table each, named in backend_list.c alone. A backend knows no
 * algorithm: it sees addresses, counters and sizes.
 */
#ifndef TIDE_EXEC_BACKEND_H
#define TIDE_EXEC_BACKEND_H

#include <stdbool.h>
#include <tide/comm.h>

/* Flows of a communicator: each has its own counters and order. */
typedef enum tdi_flow_id {
    TDI_FLOW_GATHER,
    TDI_FLOW_REDUCE,
    TDI_FLOWS
} tdi_flow_id;

/* What a rank makes known of a call before its first op. Peers find each
 * other's memory by it, and see whether they are in the same call. */
typedef struct tdi_call {
    uint64_t number; /* 1, 2, ... over both flows */
    uint64_t turn;   /* 0, 1, ... within its flow */
    uint64_t key;    /* the plan's */
    uint64_t stage;  /* arena offsets of what peers may touch; 0: nothing */
    uint64_t recv;
    uint64_t table; /* one tdi_grad_entry a parameter */
    uint32_t coll;
    char name[52]; /* of the group */
} tdi_call;

typedef struct tdi_grad_entry {
    uint64_t where;      /* an offset in the arena, or an address */
    uint64_t is_private; /* 1: an address in the rank's own memory */
} tdi_grad_entry;

/* Memory as an op sees it. */
typedef struct tdi_address {
    char *pointer;
    int32_t rank;    /* whose memory */
    bool is_private; /* pointer is in that other rank's address space */
} tdi_address;

typedef struct tdi_move {
    tdi_address dst;
    tdi_address src;
    uint64_t width;
    uint64_t height;
    uint64_t dst_pitch;
    uint64_t src_pitch;
} tdi_move;

typedef struct tdi_sum {
    tdi_address dst;
    const tdi_address *src;
    uint32_t sources;
    unsigned flags; /* of the REDUCE */
    uint64_t elems;
    float scale;
} tdi_sum;

/* A wait that holds a lane back, for idle's checks and messages. */
typedef struct tdi_block {
    uint32_t from;
    tide_channel channel;
    const tdi_call *call; /* my own call that waits */
} tdi_block;

typedef struct tdi_backend {
    const char *name;
    /* May this backend serve ranks on these machines? TIDE_OK, or the reason
     * why not. Local; ranks then agree. */
    tide_status (*probe)(const uint64_t *machine, uint32_t ranks);
    /* Collective. Sets comm->state and the capabilities in comm. */
    tide_status (*open)(tide_comm *comm, const tide_bootstrap *bootstrap);
    /* Possible after a failed open, too. */
    void (*close)(tide_comm *comm);
    /* Tells every rank to give up, and why; the first reason stays. */
    void (*abort)(tide_comm *comm, tide_status status, uint32_t culprit);

    /* The reason, if a rank has given up. */
    tide_status (*check)(tide_comm *comm);

    /* Makes a call known to the peers. */
    void (*publish)(tide_comm *comm, const tdi_call *call);
    /* The address at `offset` of a buffer of another rank in this call; valid
     * once a signal of that rank's same call has been seen. */
    tide_status (*peer)(tide_comm *comm, const tdi_call *call, tide_operand at,
                        int32_t rank, tdi_address *address);

    tide_status (*copy)(tide_comm *comm, const tdi_move *move);
    tide_status (*sum)(tide_comm *comm, const tdi_sum *sum);
    void (*signal)(tide_comm *comm, tdi_flow_id flow, uint32_t to,
                   tide_channel channel);
    /* Has the counter reached target? If so, the peer's call is checked. */
    tide_status (*poll)(tide_comm *comm, tdi_flow_id flow,
                        const tdi_block *wait, int64_t target, bool *reached);
    /* An error past the deadline, or when a peer is gone, in another call, or
     * has aborted. waited_ms is how long nothing has moved. */
    tide_status (*watch)(tide_comm *comm, const tdi_block *blocks, size_t count,
                         uint64_t waited_ms);
    /* The same, and sleeps until something may have changed. */
    tide_status (*idle)(tide_comm *comm, const tdi_block *blocks, size_t count,
                        uint64_t waited_ms);

    /* The arena's memory at an offset, in this process. */
    char *(*arena)(tide_comm *comm, uint64_t offset);
    /* Memory at this range is not needed for now. */
    void (*discard)(tide_comm *comm, uint64_t offset, uint64_t bytes);
    /* Address ranges that stay: reserve, back by arena memory, take away. */
    tide_status (*reserve)(tide_comm *comm, uint64_t bytes, void **address);
    void (*release)(tide_comm *comm, void *address, uint64_t bytes);
    tide_status (*map)(tide_comm *comm, void *address, uint64_t offset,
                       uint64_t bytes);
    tide_status (*unmap)(tide_comm *comm, void *address, uint64_t bytes);
} tdi_backend;

/* In order of preference; ends with NULL. */
extern const tdi_backend *const tdi_backends[];

#endif
