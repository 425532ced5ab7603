/*
 * Collectives over parameter groups.
 *
 * A group is a list of parameters, sharded as layout.h says. Its all-gather
 * takes each rank's packed shard and lands every shard in the parameters' own
 * storages. Its reduce-scatter reads the gradients where they lie and writes
 * this rank's shard of their sum.
 *
 * A call is a request: start it, then wait for it. Requests of one flow run
 * one after the other. On the host backend a request moves on only inside tide
 * calls on its communicator (there is no thread behind it). On a device
 * backend (tide_comm_info.queued) a call queues its work and returns: every
 * pointer below is device memory, and streams order it before and after the
 * caller's own work.
 */
#ifndef TIDE_COLL_H
#define TIDE_COLL_H

#include <tide/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tide_group tide_group;
typedef struct tide_slot tide_slot;
typedef struct tide_request tide_request;

/*
 * Makes a group of `count` parameters on comm; local, no communication. Plans
 * are made at the first call of each kind, and ranks compare group, options
 * and order of calls in every call. `name` (may be NULL) appears in messages;
 * it is copied. Errors: as tide_layout_create.
 */
TIDE_API tide_status tide_group_create(tide_comm *comm,
                                       const tide_param *params, size_t count,
                                       const char *name, tide_group **group);
/* The group must have no request left that is not freed. On a device it waits
 * for what those have queued, until the deadline at most. NULL is fine. */
TIDE_API void tide_group_free(tide_group *group);
/* The group's, for as long as it lives; NULL if it is NULL. */
TIDE_API const tide_layout *tide_group_layout(const tide_group *group);

/*
 * Replaces the group's planning options of options->coll. Flags are as they
 * stand there; sizes of zero mean the communicator's defaults, then the
 * planner's. All ranks must do the same. On a device it waits as
 * tide_group_free does. Errors: TIDE_ERR_INVALID (NULL; coll; a request that is
 * not freed), TIDE_ERR_UNSUPPORTED (push or switch_reduce where
 * tide_comm_info.multicast is 0). What a planner refuses shows at the next
 * call.
 */
TIDE_API tide_status tide_group_set_options(tide_group *group,
                                            const tide_plan_options *options);
/* This rank's plan of a collective; owned by the group, until its options
 * change. For `coll` = TIDE_REDUCE_SCATTER the dtypes pick the plan, else they
 * are ignored. Errors: as tide_plan_create. */
TIDE_API tide_status tide_group_plan(tide_group *group, tide_coll coll,
                                     tide_dtype grad_dtype,
                                     tide_dtype out_dtype,
                                     const tide_plan **plan);

/* --- All-gather --------------------------------------------------------- */

/*
 * Begins an all-gather: waits until this rank's STAGE slot is free and returns
 * it in *shard. The caller then writes its packed shard there (parameter p at
 * layout shard_offset, padding included) and calls tide_all_gather_start. On a
 * device nothing waits: the writes must come after TIDE_PHASE_FREE
 * (tide_stream_wait). The slot is the caller's until the start. On error
 * *request is NULL. Errors: TIDE_ERR_INVALID (NULL; another all-gather that was
 * begun and not started is in the way); TIDE_ERR_MEMORY, and then peers that do
 * begin wait for this rank; those of tide_wait.
 */
TIDE_API tide_status tide_all_gather_begin(tide_group *group, void **shard,
                                           tide_request **request);
/*
 * Starts it. storage[p] receives parameter p, storage_bytes long, in any
 * memory of this process; it must stay valid until the request is done. The
 * array itself is copied. On a device the call runs after all that `stream`
 * holds now: the shard is written there and the storages are free. With push
 * landing storages are memory of tide_memory_take at equal offsets on all local
 * ranks. Errors: TIDE_ERR_INVALID (NULL where storage_bytes is not 0; a
 * request that was started before; storages that push cannot reach);
 * TIDE_ERR_MISMATCH, TIDE_ERR_PEER on a device, where ranks meet here.
 */
TIDE_API tide_status tide_all_gather_start(tide_request *request,
                                           void *const *storage,
                                           tide_stream stream);

/*
 * All of it in one blocking call, from separate shards: shard[p] has this
 * rank's rows of parameter p (outer * rows(rank) * inner elements), the
 * padding is filled with zeros. On a device it runs after what the default
 * stream holds now. Errors: those of the two and of tide_wait.
 */
TIDE_API tide_status tide_all_gather(tide_group *group,
                                     const void *const *shard,
                                     void *const *storage);

/* --- Reduce-scatter ----------------------------------------------------- */

typedef struct tide_reduce_args {
    const void *const *grad; /* grad[p]: grad_elems elements, contiguous */
    tide_dtype grad_dtype;   /* TIDE_BF16 or TIDE_F32, of all of them */
    void *out;               /* layout out_elems elements */
    tide_dtype out_dtype;    /* TIDE_F32 or TIDE_BF16 */
    float scale;             /* of the sum: 1/R for the average */
    tide_stream stream;      /* the call runs after all that it holds now */
} tide_reduce_args;

/*
 * Starts a reduce-scatter: out = scale * sum over ranks, added in fp32 in a
 * fixed order (rank order within a node, then nodes), padding zero. Gradients
 * inside a slot are read there (Slot-Reuse), and so are those in memory of
 * tide_memory_take; others are read in place where the communicator
 * reads_private, else copied to the arena first. They must keep their values
 * until TIDE_PHASE_READS; a slot may be vacated at once. The args and the array
 * are copied. Errors: TIDE_ERR_INVALID (NULL, dtypes); TIDE_ERR_MEMORY;
 * TIDE_ERR_MISMATCH, TIDE_ERR_PEER on a device, where ranks meet here.
 */
TIDE_API tide_status tide_reduce_scatter_start(tide_group *group,
                                               const tide_reduce_args *args,
                                               tide_request **request);
/* The same, waiting until it is done and the gradients are read. */
TIDE_API tide_status tide_reduce_scatter(tide_group *group,
                                         const tide_reduce_args *args);

/* --- Requests ----------------------------------------------------------- */

/*
 * Waits until the request has reached the phase. Errors: TIDE_ERR_PEER,
 * TIDE_ERR_MISMATCH, TIDE_ERR_ABORTED, TIDE_ERR_SYSTEM; after one of them the
 * communicator is aborted on all ranks and outputs are undefined.
 */
TIDE_API tide_status tide_wait(tide_request *request, tide_phase phase);
/* Moves requests on without waiting; *reached says if the phase is. Errors are
 * those of tide_wait. */
TIDE_API tide_status tide_test(tide_request *request, tide_phase phase,
                               int *reached);
/*
 * What is put in `stream` from now on runs after the phase (a phase that the
 * collective does not have: after all of it); the host does not wait. The
 * request must have been started, but for TIDE_PHASE_FREE of an all-gather.
 * After a fault of a peer the stream goes on, with garbage, and the next call
 * on the communicator says so. Errors: TIDE_ERR_INVALID (NULL, no such phase,
 * not started); TIDE_ERR_UNSUPPORTED on a backend without streams; those of
 * tide_wait.
 */
TIDE_API tide_status tide_stream_wait(tide_request *request, tide_phase phase,
                                      tide_stream stream);
/* Waits until the request is complete in every phase and frees it; errors are
 * those of tide_wait, and it is freed all the same. On a device it does not
 * wait: what is queued goes on. NULL is fine. */
TIDE_API tide_status tide_request_free(tide_request *request);

/* --- Memory ------------------------------------------------------------- */

/*
 * Memory of the arena, which local peers can read: gradients there are read
 * where they lie. Aligned to 256 bytes, contents unspecified. Local, never
 * collective; on a device the same calls on all ranks give equal offsets. It
 * goes with the communicator. Any thread, also while another is in a call.
 * Errors: TIDE_ERR_INVALID (NULL, 0 bytes), TIDE_ERR_MEMORY (the arena is
 * full); then *memory is NULL.
 */
TIDE_API tide_status tide_memory_take(tide_comm *comm, uint64_t bytes,
                                      void **memory);
/* Gives it back; the caller knows that nobody, peers and queued work
 * included, uses it any more. Any thread. NULL is fine. TIDE_ERR_INVALID if it
 * is not what tide_memory_take gave, or comm is NULL. */
TIDE_API tide_status tide_memory_give(tide_comm *comm, void *memory);
/* 1 if [memory, memory + bytes) lies in the arena, else 0, as for NULL. Any
 * thread. */
TIDE_API int tide_memory_owns(const tide_comm *comm, const void *memory,
                              uint64_t bytes);

/*
 * The same for allocators that know no communicator, with the arguments that
 * PyTorch's CUDAPluggableAllocator gives: memory of the communicator that was
 * selected last (the device is its own, whatever is asked for), ordinary device
 * memory when its arena is full, NULL when that is full, too, when bytes are
 * not above 0 or none is selected. `stream` and free's `bytes` and `device` are
 * ignored, and so is what was not given here. Any thread; the one that takes
 * has the device's context. A communicator must not be destroyed while its
 * memory is in use; what is freed after that is forgotten. TIDE_ERR_INVALID:
 * comm is NULL, or its backend has no device memory.
 */
TIDE_API tide_status tide_pool_select(tide_comm *comm);
TIDE_API void *tide_pool_malloc(int64_t bytes, int device, tide_stream stream);
TIDE_API void tide_pool_free(void *memory, int64_t bytes, int device,
                             tide_stream stream);

/* --- Slots -------------------------------------------------------------- */

/*
 * A slot: an address range that stays the same for life, and holds memory of
 * the arena only while it is occupied. Parameter storages live there in
 * Slot-Reuse mode: occupied by the all-gather, vacated by the reshard, and
 * between the two the gradients are copied in and read by the peers.
 *
 * occupy gives it memory with unspecified contents (nothing, if it has some);
 * vacate takes it away. Pages that a reduce-scatter still reads stay alive
 * until its TIDE_PHASE_READS, whatever the slot does. Touching a vacated slot
 * is a fault (SIGSEGV), as using a freed storage should be. On a device a slot
 * keeps its memory from create to free.
 * Errors: TIDE_ERR_INVALID, TIDE_ERR_MEMORY (address space or arena).
 */
TIDE_API tide_status tide_slot_create(tide_comm *comm, uint64_t bytes,
                                      tide_slot **slot);
TIDE_API void *tide_slot_address(const tide_slot *slot);
TIDE_API tide_status tide_slot_occupy(tide_slot *slot);
TIDE_API tide_status tide_slot_vacate(tide_slot *slot);
TIDE_API void tide_slot_free(tide_slot *slot); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
