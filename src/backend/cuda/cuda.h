/*
 * The CUDA backend. Ops are queued on streams of high priority: copies go to
 * copy engines, sums to short-lived blocks, signals and waits within a node
 * are stream memory operations, and NCCL carries what crosses nodes.
 *
 * Every rank's arena is one NCCL window. Cells, the counters of signals, lie in
 * the node segments, host memory that the devices reach: 0.6 us farther than
 * device memory, but a host can see what a stream waits for, and let it go. A
 * rail is one communicator for data and one for OPEN and CREDIT: NCCL has one
 * counter for each pair of ranks of a communicator.
 */
#ifndef TIDE_BACKEND_CUDA_CUDA_H
#define TIDE_BACKEND_CUDA_CUDA_H

#include "backend/cuda/api.h"
#include "backend/cuda/kernels.h"
#include "node/node.h"

enum { CUDA_QUEUES = 4, CUDA_BATCH = 128, CUDA_RAIL_WAITS = 64 };
enum { CUDA_COMMS = 2 * TDI_FLOWS }; /* most communicators of NCCL */

/* A wait that NCCL has queued, and what comes right behind it. */
typedef struct cuda_rail_wait {
    cu_event passed;
    uint32_t from;
    tide_channel channel;
    int64_t target;
} cuda_rail_wait;

typedef struct cuda_rail {
    nccl_comm comm;
    nccl_window window; /* of the arena, where data goes */
    uint64_t *waited;   /* [rank]: signals that waits have asked for so far */
    cuda_rail_wait wait[CUDA_RAIL_WAITS]; /* the last ones, in turn */
    uint64_t waits;
} cuda_rail;

/* A put over a rail, or a signal alone: `from` is NULL. */
typedef struct cuda_send {
    const char *from;
    uint64_t bytes;
    uint64_t offset; /* in the arena of `to` */
    uint32_t to;
} cuda_send;

typedef enum cuda_work {
    CUDA_COPIES,
    CUDA_MEM_OPS,
    CUDA_SENDS, /* over `rail` */
} cuda_work;

/* Work of one kind and queue that is not handed over yet. Rows are contiguous
 * copies; `local` ones stay on this device. */
typedef struct cuda_batch {
    cuda_work work;
    uint8_t queue;
    cuda_rail *rail; /* or NULL */
    uint32_t locals;
    uint32_t strided;
    size_t rows;
    uint32_t ops;
    uint32_t sends;
    tdi_cuda_strided local[CUDA_BATCH];
    cu_batch_copy copy[CUDA_BATCH];
    cu_pointer row_dst[CUDA_BATCH];
    cu_pointer row_src[CUDA_BATCH];
    size_t row_bytes[CUDA_BATCH];
    cu_mem_op op[CUDA_BATCH];
    cuda_send send[CUDA_BATCH];
} cuda_batch;

typedef struct cuda_flow {
    cu_stream stream[CUDA_QUEUES];      /* NULL: no lane has that queue */
    tdi_cuda_chain *chain[CUDA_QUEUES]; /* NULL: launches go one by one */
    cu_stream beside; /* of local copies beside peers'; or NULL */
    cu_event fork;
    cu_event join;
    cu_event end;               /* of the last plan */
    uint8_t end_queue;          /* where that is, once there is an end */
    cu_event gate[CUDA_QUEUES]; /* the beginning or end of a plan's queue */
    cu_event *note;
    uint32_t note_count;
    uint64_t *sent; /* [channel][rank]: signals that I have queued */
    cuda_rail data;
    cuda_rail control;
    cuda_batch batch;
} cuda_flow;

typedef struct cuda_state {
    const tdi_cuda_api *cuda;
    const tdi_nccl_api *nccl;
    cu_device device;
    cu_context context; /* retained */
    tdi_cuda_kernels *kernels;
    tdi_cuda_bounds sum_bounds;
    tdi_cuda_bounds land_bounds;
    int priority;
    bool folded;           /* a flow has one stream for all lanes */
    bool sum_graphs;       /* launches of a sum are graphs */
    bool own_kernel;       /* copies within the device are one of ours */
    uint64_t beside_bytes; /* from which they run beside those from peers */
    bool direct_rails;     /* ranks of other nodes that are in reach: no NCCL */
    nccl_id ids[CUDA_COMMS]; /* here, for a step that comes back late */
    char *arena;
    cu_pointer *base; /* [rank]: its arena, 0 where it cannot be reached */
    bool *is_here;    /* [rank]: on this device */
    bool *is_mapped;  /* [rank]: the device reaches its cells */
    char *multicast;  /* the arenas of my node; NULL: none */
    tdi_arena tables; /* host memory that peers of this machine read */
    cuda_flow flows[TDI_FLOWS];
    tdi_mark *marks;           /* spare ones */
    pthread_mutex_t rail_lock; /* of cuda_rail.wait, which the watch reads */
} cuda_state;

static inline cuda_state *cuda_of(const tide_comm *comm)
{
    return comm->state;
}

static inline uint32_t cuda_ranks(const tide_comm *comm)
{
    return comm->topology.nodes * comm->topology.local_size;
}

static inline bool cuda_same_node(const tide_comm *comm, uint32_t rank)
{
    uint32_t size = comm->topology.local_size;
    return rank / size == comm->rank / size;
}

/* Does NCCL carry what I send to that rank? Else its arena is in reach, and so
 * are its cells, which take a node segment. */
static inline bool cuda_over_rail(const tide_comm *comm, uint32_t rank)
{
    const cuda_state *cuda = cuda_of(comm);
    return !cuda_same_node(comm, rank) &&
           !(cuda->direct_rails && cuda->base[rank] && node_has(comm, rank));
}

/* device.c: the device, its context, kernels; local. */
tide_status tdi_cuda_probe(const uint64_t *machines, uint32_t ranks);
tide_status tdi_cuda_open_device(tide_comm *comm, const uint64_t *machines);
/* Which ranks share my device; collective. Rank 0 warns on stderr of too few
 * hardware queues. */
tide_status tdi_cuda_share_device(tide_comm *comm,
                                  const tide_bootstrap *bootstrap);
void tdi_cuda_close_device(tide_comm *comm);
void *tdi_cuda_plain_take(tide_comm *comm, uint64_t bytes);
void tdi_cuda_plain_give(void *memory);
/* Makes the context current, and what was current before so again. Every enter
 * that went well needs its leave; the two do not nest. */
tide_status tdi_cuda_enter(tide_comm *comm);
void tdi_cuda_leave(tide_comm *comm);

/* window.c: communicators, the arena and its window; collective. */
tide_status tdi_cuda_open_window(tide_comm *comm,
                                 const tide_bootstrap *bootstrap);
void tdi_cuda_close_window(tide_comm *comm);

/* bounded.c: runs a step that may hang in another thread, which it leaves
 * behind after timeout_ms; then TIDE_ERR_PEER, and comm->is_stuck. The step may
 * go on at any time after that: what it uses must live in the comm, its state
 * or its node, which then stay for ever. */
typedef tide_status tdi_cuda_step(tide_comm *comm, void *context);
tide_status tdi_cuda_bounded(tide_comm *comm, tdi_cuda_step *step,
                             void *context, const char *what);

/* peers.c */
tide_status tdi_cuda_meet(tide_comm *comm, const tdi_call *call);
tide_status tdi_cuda_peer(tide_comm *comm, const tdi_call *call,
                          tide_operand at, int32_t rank, tdi_address *address);
tide_status tdi_cuda_compare(tide_comm *comm, const tdi_call *call,
                             size_t count);
char *tdi_cuda_arena(tide_comm *comm, uint64_t offset);
void *tdi_cuda_table(tide_comm *comm, uint64_t offset);
char *tdi_cuda_multicast(tide_comm *comm, const char *local);
/* The device reaches the cells of the ranks that it signals, and mine. Both
 * after tdi_cuda_enter, which does not nest. */
tide_status tdi_cuda_map_cells(tide_comm *comm);
void tdi_cuda_unmap_cells(tide_comm *comm);
tide_status tdi_cuda_poll(tide_comm *comm, tdi_flow_id flow,
                          const tdi_block *wait, int64_t target, bool *reached);
void tdi_cuda_let_go(tide_comm *comm);

/* streams.c: queues, notes, marks. */
/* Are there copies from other devices, beside which those on mine can run? */
bool tdi_cuda_copies_beside(const tide_comm *comm);
uint8_t tdi_cuda_queue_of(const tide_comm *comm, tdi_flow_id flow,
                          tide_lane lane);
tide_status tdi_cuda_follow(tide_comm *comm, tdi_flow_id flow, uint32_t mask,
                            tide_stream stream, tdi_mark **begun);
tide_status tdi_cuda_finish(tide_comm *comm, tdi_flow_id flow, uint32_t mask,
                            tdi_mark **end);
tide_status tdi_cuda_note(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          uint32_t slot);
tide_status tdi_cuda_after(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                           uint32_t slot);
tide_status tdi_cuda_mark(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          tdi_mark **mark);
tide_status tdi_cuda_mark_wait(tide_comm *comm, tdi_mark *mark,
                               tide_stream stream);
tide_status tdi_cuda_mark_reached(tide_comm *comm, const tdi_mark *mark,
                                  bool *reached);
void tdi_cuda_mark_drop(tide_comm *comm, tdi_mark *mark);
/* All streams, before NCCL makes its own: the first ones of a process get
 * hardware queues of their own, which ranks that are threads need. */
tide_status tdi_cuda_make_streams(tide_comm *comm);
/* What is queued on `to` from now on follows what is on `from`. */
tide_status tdi_cuda_order(tide_comm *comm, cu_event *event, cu_stream from,
                           cu_stream to);
/* The stream of a queue. */
tide_status tdi_cuda_stream(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                            cu_stream *stream);
void tdi_cuda_free_streams(tide_comm *comm);

/* ops.c */
tide_status tdi_cuda_copy(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          const tdi_move *move);
tide_status tdi_cuda_zero(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          char *memory, uint64_t bytes);
tide_status tdi_cuda_put(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                         const tdi_move *move, tide_channel channel);
tide_status tdi_cuda_sum_op(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                            const tdi_sum *sum);
tide_status tdi_cuda_signal(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                            uint32_t to, tide_channel channel);
tide_status tdi_cuda_wait(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                          const tide_request *request, const tdi_block *wait,
                          int64_t target);
/* Hands over what is batched. */
tide_status tdi_cuda_flush(tide_comm *comm, tdi_flow_id flow);
/* The flow's batch, for this work in this queue, with room for one more. */
tide_status tdi_cuda_open_batch(tide_comm *comm, tdi_flow_id flow,
                                uint8_t queue, cuda_work work, cuda_rail *rail,
                                cuda_batch **opened);

/* rails.c: to and from ranks that NCCL carries to, see cuda_over_rail. */
tide_status tdi_cuda_rail_put(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                              const tdi_move *move);
tide_status tdi_cuda_rail_signal(tide_comm *comm, tdi_flow_id flow,
                                 uint8_t queue, uint32_t to);
tide_status tdi_cuda_rail_wait(tide_comm *comm, tdi_flow_id flow, uint8_t queue,
                               const tide_request *request,
                               const tdi_block *wait, int64_t target);
/* The batch's sends, at least one. */
tide_status tdi_cuda_flush_sends(tide_comm *comm, cuda_batch *batch,
                                 cu_stream stream);

#endif
