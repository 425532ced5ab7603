/* tide-perf: times all-gather and reduce-scatter on this machine's ranks. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/env.h"
#include "base/fail.h"
#include "exec/meet.h"
#include "perf/args.h"
#include "perf/session.h"

#define CLOSE_S 20 /* closing may wait for libraries, too */

/* --- In a rank ---------------------------------------------------------- */

static tide_status measure_groups(const tdi_session *s, const tdi_rank *rank)
{
    const tdi_bench *bench = &s->args->bench;
    TDI_TRY(tdi_bench_grow(bench, rank, s->groups, s->group_count));
    for (uint32_t i = 0; i < s->group_count; i++) {
        tdi_row rows[TDI_BENCH_VARIANTS] = {{0}};
        if (s->args->soak)
            TDI_TRY(tdi_soak_run(rank, &s->groups[i], s->args->soak,
                                 bench->progress, rows));
        else
            TDI_TRY(tdi_bench_run(bench, rank, &s->groups[i], rows));
        if (!rank->boot->rank)
            tdi_report_rows(s, rows, s->args->soak ? 1 : bench->variant_count);
    }
    return TIDE_OK;
}

static tide_status measure(const tdi_session *s, tdi_rank *rank)
{
    if (!rank->boot->rank) {
        TDI_TRY(tide_comm_get_info(rank->comm, &s->report->info));
        rank->device->kind->describe(rank->device, &s->report->device);
        tdi_report_start(s);
    }
    return measure_groups(s, rank);
}

static bool is_usage(tide_status status)
{
    return status == TIDE_ERR_INVALID || status == TIDE_ERR_UNSUPPORTED;
}

/* What a baseline lacks is a fault: the command line was right. */
static tide_status open_baselines(const tdi_session *s, tdi_rank *rank)
{
    if (!s->args->nccl_ways)
        return TIDE_OK;
    tide_status status =
        tdi_nccl_open(rank->device, rank->boot, s->args->nccl_ways,
                      s->flat_bytes, &rank->nccl);
    return is_usage(status) ? TIDE_ERR_SYSTEM : status;
}

/*
 * Ranks agree on each step, so that none waits for one that has failed. NCCL's
 * baselines come first: where ranks share a GPU fewer runs stall then than when
 * NCCL makes its streams after tide (docs/performance.md).
 */
static tide_status open_rank(const tdi_session *s, tdi_rank *rank,
                             const tdi_place *place)
{
    tdi_device *device = rank->device;
    tide_comm_config config = {.backend = s->args->backend,
                               .local_size = s->args->local,
                               .arena_bytes = s->arena_bytes};
    TDI_TRY(tdi_meet_agree(rank->boot, device->kind->open(device, place)));
    TDI_TRY(open_baselines(s, rank));
    if (device->kind->queued)
        TDI_TRY(tdi_meet_agree(rank->boot, device->kind->open_stream(device)));
    return tide_comm_create(rank->boot, &config, &rank->comm);
}

static tide_status work(const tdi_session *s, tdi_rank *rank, bool *opened)
{
    const tdi_perf_args *args = s->args;
    const tdi_place place =
        args->is_started
            ? (tdi_place){args->started.local_rank, args->started.local_ranks}
            : (tdi_place){rank->boot->rank, args->ranks};
    TDI_TRY(open_rank(s, rank, &place));
    *opened = true;
    return measure(s, rank);
}

static bool runs_threads(const tdi_perf_args *args)
{
    return args->device->queued && !args->processes && !args->is_started;
}

/*
 * Nothing can end a thread that is stuck in a call of a library. Once a rank
 * has failed the others have their deadlines; past them, this ends the tool.
 */
static void *guard(void *context)
{
    tdi_session *s = context;
    const struct timespec grace = {
        .tv_sec = (time_t)(2 * tdi_bench_limit_ms() / 1000 + CLOSE_S)};
    nanosleep(&grace, NULL);
    fprintf(stderr, "tide-perf: some ranks are stuck and are given up\n");
    int code = tdi_report_finish(s, EXIT_WRONG);
    fflush(NULL);
    _exit(code);
}

static void start_guard(tdi_session *s)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool started;
    pthread_t thread;
    pthread_mutex_lock(&lock);
    if (!started && !pthread_create(&thread, NULL, guard, s))
        pthread_detach(thread);
    started = true;
    pthread_mutex_unlock(&lock);
}

static int run_rank(const tide_bootstrap *boot, void *context)
{
    tdi_session *s = context;
    tdi_device device = {.kind = s->args->device};
    tdi_rank rank = {.boot = boot, .device = &device};
    bool opened = false;
    rank.one_machine =
        !s->args->is_started || s->args->started.local_ranks == s->args->ranks;
    int code = 0;
    tide_status status = work(s, &rank, &opened);
    if (status) {
        code = !opened && is_usage(status) ? EXIT_USAGE : EXIT_WRONG;
        snprintf(s->report->errors[boot->rank],
                 sizeof(s->report->errors[boot->rank]), "%s",
                 tide_last_error());
        if (runs_threads(s->args))
            start_guard(s);
        tdi_nccl_abort(rank.nccl);
    }
    tdi_nccl_close(rank.nccl);
    tide_comm_destroy(rank.comm);
    device.kind->close(&device);
    return code;
}

/* --- In the parent ------------------------------------------------------ */

static void say_error(void)
{
    fprintf(stderr, "tide-perf: %s\n", tide_last_error());
}

/* This process is one rank. */
static int run_started(tdi_session *s)
{
    const tdi_started *started = &s->args->started;
    uint32_t timeout = (uint32_t)tdi_env_number(TDI_ENV_TIMEOUT_MS);
    tide_bootstrap boot;
    tdi_store *store;
    int code = -1;
    if (!tdi_store_open(started, timeout, &store, &boot))
        code = s->codes[started->rank] = run_rank(&boot, s);
    tdi_store_close(store);
    return code;
}

static int run_ranks(tdi_session *s)
{
    int code;
    if (s->args->is_started)
        code = run_started(s);
    else if (runs_threads(s->args))
        code = tide_launch_threads(s->args->ranks, run_rank, s, s->codes);
    else
        code = tide_launch(s->args->ranks, 0, run_rank, s, s->codes);
    if (code < 0)
        say_error();
    return code;
}

int main(int argc, char **argv)
{
    tdi_perf_args args;
    tdi_action action = tdi_perf_parse(argc, argv, &args);
    if (action != TDI_RUN)
        return action == TDI_DONE ? 0 : EXIT_USAGE;
    tdi_session s = {.args = &args, .argc = argc, .argv = argv};
    int code = EXIT_USAGE;
    if (tdi_session_open(&s))
        say_error();
    else
        code = tdi_report_finish(&s, run_ranks(&s));
    tdi_session_close(&s);
    return code;
}
