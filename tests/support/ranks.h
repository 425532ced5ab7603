/*
 * Ranks that a test can hurt: forked processes with the launcher's bootstrap,
 * which the test kills or stops from outside and joins within a bound. After
 * every join nothing may be left: no process here, and in a rank that ended in
 * order no descriptor and no mapping.
 */
#ifndef TIDE_TESTS_RANKS_H
#define TIDE_TESTS_RANKS_H

#include "exec/exchange.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>
#include <tide/comm.h>

enum { RANKS_MAX = 16 };

/* A deadline for faults to hit, and how late a loaded machine may be. */
enum { RANKS_DEADLINE_MS = 1000, RANKS_SLACK_MS = 8000 };
/* Far longer than any test: whoever ends sooner did not wait for it. */
enum { RANKS_FOREVER_MS = 60000 };

typedef int ranks_body(const tide_bootstrap *bootstrap, void *context);

typedef struct ranks {
    uint32_t count;
    tdi_exchange *exchange;
    pid_t pid[RANKS_MAX]; /* 0: joined */
    int code[RANKS_MAX];  /* exit code, or 128 + signal */
} ranks;

/* Forks them; their bootstrap gives up after bootstrap_ms. */
ranks ranks_start(uint32_t count, uint32_t bootstrap_ms, ranks_body *body,
                  void *context);
void ranks_signal(const ranks *run, uint32_t rank, int signal);
/* Joins all; a rank that has not ended after bound_ms fails the test. */
void ranks_join(ranks *run, uint64_t bound_ms);
/* Starts and joins them; all must return 0. */
void ranks_run(uint32_t count, ranks_body *body, void *context);
/* Every rank but `hurt` must have returned 0, and that one `code`. */
void ranks_check_codes(const ranks *run, uint32_t hurt, int code);

/* Zeroed memory that the test and its ranks share; NULL frees nothing. */
void *ranks_share(size_t bytes);
void ranks_unshare(void *memory, size_t bytes);

void ranks_nap(uint32_t ms);
/* Counts itself in, in shared memory, and waits until `count` are. */
void ranks_arrive(atomic_uint *arrived, uint32_t count);

/* What this process holds of the system. */
typedef struct ranks_traces {
    int descriptors;
    int maps;     /* lines of /proc/self/maps */
    int segments; /* of them, tide's */
} ranks_traces;
ranks_traces ranks_count_traces(void);

/* A communicator in nodes of local_size, or the test fails. */
tide_comm *ranks_comm(const tide_bootstrap *bootstrap, uint32_t local_size,
                      uint32_t timeout_ms);

#endif
