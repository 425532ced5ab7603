/*
 * Communicators: how ranks meet, and how they part.
 *
 * A communicator belongs to the R ranks that created it. It has two flows, one
 * for all-gathers and one for reduce-scatters; calls of one flow run in the
 * order in which they were started, and all ranks must start the same calls in
 * the same order. A communicator, its groups, slots and requests may be used
 * by one thread at a time, but for tide_comm_abort, tide_memory_* and
 * tide_pool_*, which any thread may call at any time; different communicators
 * are independent.
 */
#ifndef TIDE_COMM_H
#define TIDE_COMM_H

#include <tide/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TIDE_VERSION_MAJOR 0
#define TIDE_VERSION_MINOR 1
#define TIDE_VERSION_PATCH 0
TIDE_API const char *tide_version(void); /* "0.1.0" */
/* The same for all processes of one machine, as communicators see it: those
 * that share its boot and its network. */
TIDE_API uint64_t tide_this_machine(void);

/*
 * How ranks exchange a few bytes while a communicator is created. `allgather`
 * receives `bytes` bytes from every rank, in rank order, into recv (ranks *
 * bytes), and returns 0, or not 0 on failure. It must itself give up in time
 * when a rank does not come. It is called during tide_comm_create only.
 */
typedef struct tide_bootstrap {
    uint32_t rank;
    uint32_t ranks;
    int (*allgather)(void *context, const void *send, void *recv, size_t bytes);
    void *context;
} tide_bootstrap;

/* Zero everywhere asks for the defaults. All ranks give the same, but for
 * timeout_ms. */
typedef struct tide_comm_config {
    const char *backend;  /* "host", "cuda"; NULL: the first that can serve */
    uint32_t local_size;  /* G; 0: TIDE_LOCAL_SIZE, or the ranks of a machine */
    uint32_t timeout_ms;  /* deadline of every wait; 0: TIDE_TIMEOUT_MS */
    uint64_t arena_bytes; /* size of the arena, rounded up; 0: TIDE_ARENA_MIB */
} tide_comm_config;

typedef struct tide_comm tide_comm;

typedef struct tide_comm_info {
    uint32_t rank;
    tide_topology topology;
    const char *backend;
    int reads_private;     /* gradients may be read in any memory of a peer */
    int queued;            /* work is queued on a device, streams order it */
    int multicast;         /* all-gathers may land by multicast push */
    int one_machine;       /* all ranks are on one: they can vote */
    uint64_t arena_bytes;  /* address space reserved, or memory held */
    uint64_t buffer_bytes; /* STAGE, RSTAGE, PARTIAL, RECV: scratch in use */
    uint64_t slot_bytes;   /* memory that slots hold now */
    uint64_t memory_bytes; /* what tide_memory_take has given out now */
    uint64_t copied_bytes; /* gradients copied to the arena, since creation */
} tide_comm_info;

/*
 * Collective: creates the communicator; *comm is NULL on error. The name of the
 * backend is not kept. On a device rank 0 warns on stderr of too few hardware
 * queues. Ranks compare version, topology and configuration. Errors:
 * TIDE_ERR_INVALID (NULL, ranks = 0 or too many, rank outside them, a local
 * size that does not divide ranks); TIDE_ERR_MISMATCH (ranks differ; the
 * message names them); TIDE_ERR_UNSUPPORTED (no backend can serve; the message
 * says why each cannot); TIDE_ERR_PEER (a rank did not arrive before the
 * deadline); TIDE_ERR_SYSTEM, TIDE_ERR_MEMORY. On error nothing is left behind,
 * but for what a library that does not return holds.
 */
TIDE_API tide_status tide_comm_create(const tide_bootstrap *bootstrap,
                                      const tide_comm_config *config,
                                      tide_comm **comm);

/*
 * Frees the communicator; its groups, slots and requests must be freed before.
 * Not collective, waits for no one (peers map this rank's memory themselves),
 * possible in every state, also after abort or errors. On a device it waits for
 * what is queued, until the deadline at most. Memory that was taken goes with
 * it. A peer that still needs this rank gets TIDE_ERR_PEER. NULL is fine.
 */
TIDE_API void tide_comm_destroy(tide_comm *comm);

/*
 * Makes every pending and later call on this communicator that waits for peers
 * or starts a collective, on every rank, return TIDE_ERR_ABORTED at once. May
 * be called from any thread. NULL is fine.
 */
TIDE_API void tide_comm_abort(tide_comm *comm);

/*
 * Collective, in one order with the calls of both flows: *all becomes whether
 * `mine` is not 0 on every rank. The host waits for the other hosts, and for no
 * device; some microseconds where all have come. On the host backend it first
 * ends all requests that were started. Errors: TIDE_ERR_INVALID
 * (NULL; an all-gather was begun and not started), TIDE_ERR_UNSUPPORTED (ranks
 * on several machines; nothing has changed), TIDE_ERR_MISMATCH (a rank makes
 * another call instead), TIDE_ERR_PEER, TIDE_ERR_ABORTED.
 */
TIDE_API tide_status tide_comm_vote(tide_comm *comm, int mine, int *all);

/* The backend's name is static. TIDE_ERR_INVALID: comm or info is NULL. */
TIDE_API tide_status tide_comm_get_info(const tide_comm *comm,
                                        tide_comm_info *info);

/*
 * The launcher for tools and tests: forks `ranks` processes, gives each a
 * bootstrap over inherited shared memory, and calls body(bootstrap, context)
 * in each. A body's return value is its exit code. Returns the first non-zero
 * exit code by rank (a signal s counts as 128 + s), 0 if all are 0, or -1 with
 * tide_last_error set if no rank could be started. When a rank fails, the
 * others have `grace_ms` left (0: the default deadline) and are then killed;
 * no process outlives the call. codes[r], where codes is not NULL, receives
 * each rank's exit code.
 */
TIDE_API int tide_launch(uint32_t ranks, uint32_t grace_ms,
                         int (*body)(const tide_bootstrap *bootstrap,
                                     void *context),
                         void *context, int *codes);

/*
 * The same with ranks as threads of this process, up to TIDE_MAX_LOCAL of them,
 * for tools and tests on devices; `body` runs in all of them at once. A thread
 * that cannot be started has exit code 255. Nothing can kill a thread: when a
 * rank fails, the others have to end by their own deadlines, and the call waits
 * for all.
 */
TIDE_API int tide_launch_threads(uint32_t ranks,
                                 int (*body)(const tide_bootstrap *bootstrap,
                                             void *context),
                                 void *context, int *codes);

#ifdef __cplusplus
}
#endif
#endif
