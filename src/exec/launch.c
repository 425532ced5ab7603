/* The launcher: forks ranks, watches them, and leaves none behind. */
#include "base/env.h"
#include "base/fail.h"
#include "base/util.h"
#include "exec/exchange.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_POLL_MS 8

typedef int (*rank_body)(const tide_bootstrap *bootstrap, void *context);

typedef struct rank_process {
    pid_t pid; /* 0: has ended, or never began */
    int code;
} rank_process;

typedef struct launch {
    tdi_exchange *exchange;
    rank_process *processes;
    uint32_t ranks;
    uint32_t started;
    uint32_t grace_ms;
    uint32_t timeout_ms;
} launch;

/* An exit code has 8 bits; what does not fit must not turn into success. */
static int to_exit_code(int value)
{
    return value >= 0 && value <= 255 ? value : 255;
}

/* Gives the exit code of the rank. */
static int call_body(const launch *run, uint32_t rank, rank_body body,
                     void *context)
{
    tdi_exchange_end end = {
        .exchange = run->exchange, .rank = rank, .timeout_ms = run->timeout_ms};
    tide_bootstrap bootstrap = {.rank = rank,
                                .ranks = run->ranks,
                                .allgather = tdi_exchange_allgather,
                                .context = &end};
    return to_exit_code(body(&bootstrap, context));
}

/* Never returns: no exit handler of the parent may run in a rank. */
static void run_rank(const launch *run, uint32_t rank, pid_t parent,
                     rank_body body, void *context)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(128 + SIGKILL);
    int code = call_body(run, rank, body, context);
    fflush(NULL);
    _exit(code);
}

static tide_status start_ranks(launch *run, rank_body body, void *context)
{
    pid_t parent = getpid();
    fflush(NULL); /* or every rank would print what is still in the buffers */
    for (; run->started < run->ranks; run->started++) {
        pid_t pid = fork();
        if (pid < 0)
            return tdi_fail_errno("cannot start rank %" PRIu32 " of %" PRIu32,
                                  run->started, run->ranks);
        if (!pid)
            run_rank(run, run->started, parent, body, context);
        run->processes[run->started].pid = pid;
    }
    return TIDE_OK;
}

/* Takes note of a rank's end, if it has ended or `options` waits for it. */
static void reap_rank(launch *run, uint32_t rank, int options)
{
    rank_process *process = &run->processes[rank];
    int state;
    pid_t got;
    if (!process->pid)
        return;
    do
        got = waitpid(process->pid, &state, options);
    while (got < 0 && errno == EINTR);
    if (!got)
        return;
    process->pid = 0;
    if (got < 0) /* reaped by someone else: its code is lost */
        process->code = 255;
    else
        process->code =
            WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    tdi_exchange_end_rank(run->exchange, rank);
}

static void kill_ranks(launch *run)
{
    for (uint32_t rank = 0; rank < run->started; rank++)
        if (run->processes[rank].pid)
            kill(run->processes[rank].pid, SIGKILL);
    for (uint32_t rank = 0; rank < run->started; rank++)
        reap_rank(run, rank, 0);
}

/* Reaps who has ended; counts who still runs and says if anyone failed. */
static uint32_t poll_ranks(launch *run, bool *failed)
{
    uint32_t running = 0;
    for (uint32_t rank = 0; rank < run->started; rank++) {
        reap_rank(run, rank, WNOHANG);
        running += run->processes[rank].pid != 0;
        *failed |= run->processes[rank].code != 0;
    }
    return running;
}

/*
 * Polls rather than waits for "any child": the caller may have children of its
 * own, and its signal mask is not ours to change.
 */
static void watch_ranks(launch *run)
{
    uint64_t deadline = UINT64_MAX;
    bool failed = false;
    for (int poll_ms = 1; poll_ranks(run, &failed) > 0;) {
        uint64_t now = tdi_now_ms();
        if (failed && deadline == UINT64_MAX)
            deadline = now + run->grace_ms;
        if (now >= deadline) {
            kill_ranks(run);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = poll_ms * 1000000L}, NULL);
        poll_ms = poll_ms < MAX_POLL_MS ? poll_ms * 2 : MAX_POLL_MS;
    }
}

static int collect_codes(const launch *run, int *codes)
{
    int first = 0;
    for (uint32_t rank = 0; rank < run->ranks; rank++) {
        int code = run->processes[rank].code;
        first = first ? first : code;
        if (codes)
            codes[rank] = code;
    }
    return first;
}

int tide_launch(uint32_t ranks, uint32_t grace_ms, rank_body body,
                void *context, int *codes)
{
    launch run = {.ranks = ranks};
    int code = -1;
    if (!body || !ranks || ranks > TIDE_MAX_RANKS) {
        tdi_fail(TIDE_ERR_INVALID, "cannot launch %" PRIu32 " ranks%s", ranks,
                 body ? "" : " without a body");
        return -1;
    }
    run.timeout_ms = (uint32_t)tdi_env_number(TDI_ENV_TIMEOUT_MS);
    run.grace_ms = grace_ms ? grace_ms : run.timeout_ms;
    run.processes = calloc(ranks, sizeof(*run.processes));
    if (!run.processes) {
        tdi_fail(TIDE_ERR_MEMORY, "no memory to launch %" PRIu32 " ranks",
                 ranks);
        return -1;
    }
    if (tdi_exchange_create(ranks, &run.exchange))
        goto free_processes;
    if (start_ranks(&run, body, context)) {
        kill_ranks(&run);
        goto free_exchange;
    }
    watch_ranks(&run);
    code = collect_codes(&run, codes);
free_exchange:
    tdi_exchange_free(run.exchange);
free_processes:
    free(run.processes);
    return code;
}

/* --- Ranks as threads --------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    bool started;
    uint32_t rank;
    launch *run;
    rank_body body;
    void *context;
} rank_thread;

static void *run_thread(void *context)
{
    rank_thread *mine = context;
    launch *run = mine->run;
    run->processes[mine->rank].code =
        call_body(run, mine->rank, mine->body, mine->context);
    tdi_exchange_end_rank(run->exchange, mine->rank);
    return NULL;
}

/* What cannot be started counts as a rank that failed. */
static void run_threads(launch *run, rank_thread *threads)
{
    for (uint32_t rank = 0; rank < run->ranks; rank++) {
        rank_thread *mine = &threads[rank];
        mine->started = !pthread_create(&mine->thread, NULL, run_thread, mine);
        if (mine->started)
            continue;
        run->processes[rank].code = 255;
        tdi_exchange_end_rank(run->exchange, rank);
    }
    for (uint32_t rank = 0; rank < run->ranks; rank++)
        if (threads[rank].started)
            pthread_join(threads[rank].thread, NULL);
}

int tide_launch_threads(uint32_t ranks, rank_body body, void *context,
                        int *codes)
{
    launch run = {.ranks = ranks};
    int code = -1;
    if (!body || !ranks || ranks > TIDE_MAX_LOCAL) {
        tdi_fail(TIDE_ERR_INVALID, "cannot launch %" PRIu32 " threads%s", ranks,
                 body ? "" : " without a body");
        return -1;
    }
    run.timeout_ms = (uint32_t)tdi_env_number(TDI_ENV_TIMEOUT_MS);
    run.processes = calloc(ranks, sizeof(*run.processes));
    rank_thread *threads = calloc(ranks, sizeof(*threads));
    if (!run.processes || !threads) {
        tdi_fail(TIDE_ERR_MEMORY, "no memory to launch %" PRIu32 " threads",
                 ranks);
    } else if (!tdi_exchange_create(ranks, &run.exchange)) {
        for (uint32_t rank = 0; rank < ranks; rank++)
            threads[rank] = (rank_thread){
                .rank = rank, .run = &run, .body = body, .context = context};
        run_threads(&run, threads);
        code = collect_codes(&run, codes);
        tdi_exchange_free(run.exchange);
    }
    free(threads);
    free(run.processes);
    return code;
}
