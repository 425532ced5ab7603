/* NCCL of the fake: what its files share. */
#ifndef TIDE_TESTS_FAKE_NCCL_H
#define TIDE_TESTS_FAKE_NCCL_H

#include "fake.h"

/* All ranks of a communicator come here, again and again. */
typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ranks;
    uint32_t arrived;
    uint64_t round;
    atomic_bool broken; /* a rank has aborted: nobody waits any more */
} meeting;

/* What a rank brings to a registration. */
typedef struct deposit {
    fake_block *block;
    uint64_t offset;
    uint64_t bytes;
    int flags;
    nccl_result result;
    int pid; /* and file: of the block, where ranks are processes */
    int file;
    uint64_t file_bytes;
} deposit;

/* A rank's signals and what collectives ask of it; it lives as long as the
 * union of all ranks' communicators. */
typedef struct member {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_ulong arrived[FAKE_TEAM]; /* signals, by source */
    atomic_bool here;                /* its communicator lives */
    deposit deposit;
    const void *from; /* of the collective that runs */
    int device;
} member;

typedef struct shared {
    struct shared *next;
    nccl_id id;
    uint32_t ranks;
    uint32_t joined;
    uint32_t left;
    meeting host;            /* calls meet here */
    meeting team[FAKE_TEAM]; /* calls of one LSA team */
    meeting streams;         /* collectives on streams meet here */
    member members[FAKE_TEAM];
} shared;

/* Never freed, as windows, so that use of one that is gone is seen. */
struct ncclComm {
    nccl_comm next;
    unsigned state;
    shared *all;
    int rank;
    int ranks;
    int device;
    int lsa_size;
    bool blocking;
    bool has_rma;
    bool has_multicast;
    bool rma_begun;   /* its first one-sided call has met the others */
    atomic_int async; /* the result of what goes on */
    atomic_bool aborted;
    uint64_t taken[FAKE_TEAM]; /* signals that waits have asked for */
    uint64_t puts;
    uint64_t signals;
    nccl_window windows;
    /* Calls on one communicator run in the order of issue on any streams. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t issued;
    uint64_t finished;
};

struct ncclWindow_vidmem {
    nccl_window next;
    unsigned state;
    nccl_comm comm;
    uint64_t user; /* address of this rank's memory */
    uint64_t bytes;
    uint64_t multicast;        /* 0: not asked for */
    uint64_t peers[FAKE_TEAM]; /* by LSA rank */
    deposit deposits[FAKE_TEAM];
};

enum { ALIVE = 0x6e63636c, GONE = 0x64656164 };

/* Work of a communicator, in its order. */
typedef struct comm_work {
    fake_work work;
    nccl_comm comm;
    uint64_t ticket;
    void (*run)(struct comm_work *work);
} comm_work;

nccl_result meet(nccl_comm comm, meeting *at);
void break_meeting(meeting *at);
nccl_result check_comm(nccl_comm comm, const char *call);
nccl_result set_error(nccl_result result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Runs a call that meets the other ranks: here, or in a thread of its own
 * where the communicator does not block. */
nccl_result run_call(nccl_comm comm, nccl_result (*call)(void *), void *context,
                     size_t bytes);
/* Queues it on the stream, or keeps it until the end of the group. */
void queue_comm_work(nccl_comm comm, comm_work *work, cu_stream stream);
bool in_group(void);
void drop_windows(nccl_comm comm);
uint64_t type_size(int type);

#endif
