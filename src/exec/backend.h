/*
 * A backend: how memory is shared between ranks, and how ops are done there.
 * One const table each, named in backend_list.c alone. A backend knows no
 * algorithm: it sees addresses, counters and sizes.
 */
#ifndef TIDE_EXEC_BACKEND_H
#define TIDE_EXEC_BACKEND_H

#include <stdbool.h>
#include <tide/coll.h>

/* Flows of a communicator: each has its own counters and order. */
typedef enum tdi_flow_id {
    TDI_FLOW_GATHER,
    TDI_FLOW_REDUCE,
    TDI_FLOWS
} tdi_flow_id;

/* A call that moves nothing, of neither flow. */
enum { TDI_CALL_VOTE = TDI_FLOWS };

/* What a rank makes known of a call before its first op. Peers find each
 * other's memory by it, and see whether they are in the same call. */
typedef struct tdi_call {
    uint64_t number; /* 1, 2, ... over both flows */
    uint64_t turn;   /* 0, 1, ... within its flow */
    uint64_t key;    /* the plan's */
    uint64_t stage;  /* arena offsets of what peers may touch; 0: nothing */
    uint64_t recv;
    uint64_t table; /* one tdi_grad_entry a parameter; of a vote: the answer */
    uint32_t coll;  /* or TDI_CALL_VOTE */
    char name[52];  /* of the group */
} tdi_call;

typedef struct tdi_grad_entry {
    uint64_t where;      /* an offset in the arena, or an address */
    uint64_t is_private; /* 1: an address in the rank's own memory */
} tdi_grad_entry;

/* Memory as an op sees it. */
typedef struct tdi_address {
    char *pointer;   /* NULL: it can only be put to */
    uint64_t offset; /* in that rank's arena, for puts; else unspecified */
    int32_t rank;    /* whose memory; TIDE_ALL_LOCAL: a multicast address */
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
    tide_lane lane; /* of the REDUCE */
} tdi_sum;

/* A wait that holds a lane back, for idle's checks and messages. */
typedef struct tdi_block {
    uint32_t from;
    tide_channel channel;
    const tdi_call *call; /* my own call that waits */
} tdi_block;

/* A point in a queue that streams and the host can wait for. */
typedef struct tdi_mark tdi_mark;

enum { TDI_QUEUES = 8 }; /* most queues of a flow */

/*
 * For backends that queue ops on a device rather than do them. Each lane has a
 * queue, several lanes may share one; `queue` below is its number. What is
 * queued runs in order within a queue, and whenever it can across them. No
 * function but `meet` waits for a peer. Those that queue or ask something are
 * called between `enter` and `leave`; all by the thread that uses the
 * communicator, but for those that the watch thread calls besides: `enter`,
 * `leave`, `mark_reached`, `let_go`, and of tdi_backend `check`, `poll`,
 * `watch` and `abort`.
 */
typedef struct tdi_queue_ops {
    /* Less than TDI_QUEUES, and the same for life. */
    uint8_t (*queue_of)(const tide_comm *comm, tdi_flow_id flow,
                        tide_lane lane);
    /* Makes the calling thread one that may use the device, and undoes it. Not
     * nested; a failed enter needs no leave. */
    tide_status (*enter)(tide_comm *comm);
    void (*leave)(tide_comm *comm);
    /* Waits on the host until every rank of this machine is in the same call,
     * so that `peer` can find its memory. */
    tide_status (*meet)(tide_comm *comm, const tdi_call *call);
    /* A plan begins: the queues of the mask go on after the last plan's end
     * and after what the stream holds now, which is *begun. Marks are the
     * caller's, for mark_drop, also those that came with an error. */
    tide_status (*follow)(tide_comm *comm, tdi_flow_id flow, uint32_t mask,
                          tide_stream stream, tdi_mark **begun);
    /* It ends; *end is reached when all its queues are through. */
    tide_status (*finish)(tide_comm *comm, tdi_flow_id flow, uint32_t mask,
                          tdi_mark **end);

    tide_status (*copy)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                        const tdi_move *move);
    tide_status (*zero)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                        char *memory, uint64_t bytes);
    /* To dst.offset of dst.rank's arena, then a signal on the channel. */
    tide_status (*put)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                       const tdi_move *move, tide_channel channel);
    tide_status (*sum)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                       const tdi_sum *sum);
    tide_status (*signal)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          uint32_t to, tide_channel channel);
    /* request: whose WAIT it is; NULL: no plan's. */
    tide_status (*wait)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                        const tide_request *request, const tdi_block *wait,
                        int64_t target);
    /* Remembers this point of a queue as `slot`, until the next note of that
     * slot; `after` lets another queue wait for it. */
    tide_status (*note)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                        uint32_t slot);
    tide_status (*after)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                         uint32_t slot);
    /* After meet: the call's tables must be equal on all ranks of my node, in
     * `count` entries. */
    tide_status (*compare)(tide_comm *comm, const tdi_call *call, size_t count);
    /* The multicast address of a local one; NULL where there is none. */
    char *(*multicast)(tide_comm *comm, const char *local);

    /* Marks this point of a queue. Streams may wait for a mark, and the host
     * asks; a mark that is dropped (NULL is fine) is used again for others, and
     * who waits for it already does not mind. */
    tide_status (*mark)(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                        tdi_mark **mark);
    tide_status (*mark_wait)(tide_comm *comm, tdi_mark *mark,
                             tide_stream stream);
    tide_status (*mark_reached)(tide_comm *comm, const tdi_mark *mark,
                                bool *reached);
    void (*mark_drop)(tide_comm *comm, tdi_mark *mark);
    /* Ordinary memory of the device; NULL if there is none. For allocators: any
     * thread, without enter; it uses the device already. */
    void *(*plain_take)(tide_comm *comm, uint64_t bytes);
    void (*plain_give)(void *memory);
    /* After a fault: lets every queued wait pass, so that no stream of the
     * caller's stays stuck behind one. Any thread. */
    void (*let_go)(tide_comm *comm);
} tdi_queue_ops;

typedef struct tdi_backend {
    const char *name;
    /* NULL: ops are done when their function returns. Else `copy`, `sum`,
     * `signal` and `idle` are not used. */
    const tdi_queue_ops *queue;
    /* May this backend serve ranks on these machines? TIDE_OK, or the reason
     * why not. Local; ranks then agree. */
    tide_status (*probe)(const uint64_t *machine, uint32_t ranks);
    /* Collective. Sets comm->state and the capabilities in comm. */
    tide_status (*open)(tide_comm *comm, const tide_bootstrap *bootstrap,
                        const uint64_t *machines);
    /* Possible after a failed open, too. */
    void (*close)(tide_comm *comm);
    /* Tells every rank to give up, and why; the first reason stays. */
    void (*abort)(tide_comm *comm, tide_status status, uint32_t culprit);

    /* The reason, if a rank has given up. */
    tide_status (*check)(tide_comm *comm);

    /* Makes a call known to the peers. */
    void (*publish)(tide_comm *comm, const tdi_call *call);
    /* Makes a vote known, and waits for everyone's; all are on one machine. */
    tide_status (*vote)(tide_comm *comm, const tdi_call *call, bool *all);
    /* The address at `offset` of a buffer of another rank in this call; valid
     * once a signal of that rank's same call has been seen. */
    tide_status (*peer)(tide_comm *comm, const tdi_call *call, tide_operand at,
                        int32_t rank, tdi_address *address);

    tide_status (*copy)(tide_comm *comm, const tdi_move *move);
    tide_status (*sum)(tide_comm *comm, const tdi_sum *sum);
    void (*signal)(tide_comm *comm, tdi_flow_id flow, uint32_t to,
                   tide_channel channel);
    /* Has the counter reached target? If so, the peer's call is checked. A
     * backend with queues says so for messages alone; TIDE_ERR_UNSUPPORTED: it
     * cannot tell. */
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
    /* Memory of comm->tables at an offset, which the host can write. */
    void *(*table)(tide_comm *comm, uint64_t offset);
    /* Memory at this range is not needed for now. NULL: it stays. */
    void (*discard)(tide_comm *comm, uint64_t offset, uint64_t bytes);
    /* Address ranges that stay: reserve, back by arena memory, take away.
     * NULL: slots keep their memory for life. */
    tide_status (*reserve)(tide_comm *comm, uint64_t bytes, void **address);
    void (*release)(tide_comm *comm, void *address, uint64_t bytes);
    tide_status (*map)(tide_comm *comm, void *address, uint64_t offset,
                       uint64_t bytes);
    tide_status (*unmap)(tide_comm *comm, void *address, uint64_t bytes);
} tdi_backend;

/* In order of preference; ends with NULL. */
extern const tdi_backend *const tdi_backends[];

#endif
